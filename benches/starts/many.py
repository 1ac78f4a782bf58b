"""Many containers of many images on one host: the memory of the programs that serve them, beyond the page cache.

Each image is small and converted; the agent attaches all of them, and each gets as many containers, whose files are
mounted as containerd mounts them. Counted is the private memory of the agent, the snapshotter, the keeper and the
disks' processes, and their share of what they have in common (PSS of what is no file, and that of files beside it).
"""

import io
import pathlib
import shutil
import tarfile

from hosts import HeadstartHost
from images import TAG
from layout import Layout, Uploads, entry, gzipped, plain
from page import table
from rig import HEADSTART, run

MIB = 1 << 20
# Images, and containers of each.
USUAL = 20, 10
# Files of each image, of some pages each.
FILES = 40
FILE_SIZE = 20_000
GROUPS = {"agent": "agent", "snapshotter": "snapshotter", "keeper": "keeper", "attach": "disks"}


def _layout(place, images):
    made = Layout(place / "layout", run("dpkg", "--print-architecture").strip())
    for number in range(images):
        path = place / f"{number}.tar"
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
            for file in range(FILES):
                text = f"image {number}, file {file}\n".encode() * (FILE_SIZE // 20)
                tar.addfile(entry(f"file-{file}", len(text)), io.BytesIO(text))
        made.add(f"many-{number}", [gzipped(plain(path))])
    return place / "layout"


def _memory(pid):
    """Bytes of a process: private and anonymous, all of its share, and that without pages of files."""
    fields = {}
    for text in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = text.split()[:2]
        fields[name.rstrip(":")] = int(value) << 10
    beyond = fields.get("Pss_Anon", 0) + fields.get("Pss_Shmem", 0)
    return {"private": fields["Private_Dirty"] + fields["Private_Clean"], "pss": fields["Pss"], "beyond": beyond}


def _processes(host):
    """The processes of a host, by what they are."""
    found = []
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == str(HEADSTART).encode() and any(str(host.work).encode() in word for word in words):
            found.append((GROUPS.get(words[1].decode(), "others"), int(place.name)))
    return found




def measure(setting, images, containers, say):
    """Rows of figures: bytes by kind of process."""
    place = setting.place()
    layout = _layout(place, images)
    host = HeadstartHost(place / "host", setting.registry)
    mounted = []
    try:
        tops = set()
        for number in range(images):
            name = f"many-{number}"
            Uploads(setting.registry, name).image(layout, name, TAG)
            run(HEADSTART, "image", "convert", f"oci://{setting.registry}/{name}:{TAG}", "--index", "--plain-http",
                setting.registry)
            before = _snapshots(host)
            host.pull(name)
            new = _snapshots(host) - before
            tops |= new
            for top in new:
                for container in range(containers):
                    key, at = f"{name}-{container}", place / f"mount-{name}-{container}"
                    at.mkdir()
                    said = run(*host.client("snapshots", "--snapshotter", host.snapshotter, "prepare", "--target", at,
                                            key, top))
                    run("sh", "-c", said.strip())
                    mounted.append(at)
                    # As a container's start does.
                    for file in sorted(at.iterdir())[:5]:
                        file.read_bytes()
        rows = {}
        for kind, pid in _processes(host):
            row = rows.setdefault(kind, {"processes": 0, "private": 0, "pss": 0, "beyond": 0})
            row["processes"] += 1
            for name, value in _memory(pid).items():
                row[name] += value
        rows = [{"kind": kind, "images": images, "containers": images * containers, **row}
                for kind, row in sorted(rows.items())]
        for row in rows:
            say(f"{row['kind']}: {row['processes']} processes, {row['beyond'] / MIB:.1f} MiB beyond files")
        return rows
    finally:
        for at in mounted:
            run("umount", "-l", at)
        host.end()
        shutil.rmtree(place, ignore_errors=True)


def _snapshots(host):
    listed = run(*host.client("snapshots", "--snapshotter", host.snapshotter, "ls")).splitlines()[1:]
    return {line.split()[0] for line in listed if line.split()}


def many_table(rows):
    """Memory by kind of process, and for each container."""
    lines = [[row["kind"], str(row["processes"]), *(f"{row[name] / MIB:.1f}" for name in ("private", "pss", "beyond"))]
             for row in rows]
    total = {name: sum(row[name] for row in rows) for name in ("processes", "private", "pss", "beyond")}
    lines.append(["all", str(total["processes"]),
                  *(f"{total[name] / MIB:.1f}" for name in ("private", "pss", "beyond"))])
    each = rows[0]["containers"]
    lines.append([f"for each of {each} containers", "-",
                  *(f"{total[name] / each / MIB:.2f}" for name in ("private", "pss", "beyond"))])
    return table(["MiB", "processes", "private", "PSS", "PSS without files"], lines)
