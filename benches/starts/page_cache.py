"""Memory beside speed: the pages that a scan, a boot and a container's start leave in the page cache.

Of each byte that a disk gives, the host may keep two copies: compressed, as a page of a cache file, and decoded, as a
page of the file system above. Both are counted after the work, beside the time and the processor that it took.
"""

import array
import ast
import json
import os
import pathlib
import shutil
import subprocess
import time

from contestants import Lazy
from hosts import HeadstartHost
from images import APPS, TAG
from page import MB, table
from pages import cached, cached_below, files, forget
from programs import Link, processor_time
from rig import HEADSTART, Failed, Running, lab, run

# The image whose first recorded boot is replayed, where the traces are stored beside the repository.
BOOT = "m-nginx"
# A read of the replayed boot finds data for so many bytes around it.
AROUND = 64 << 10
# Pages that are used up are dropped every few seconds, others a minute after they came.
SETTLE = 6
LONGEVITY = 66
READ_AHEAD_SECTORS = "2048"
# The parts of the work, as the table names them.
PARTS = ["a scan, from the store", "a scan, from the cache", "the same disk once more",
         "a second disk, the first still there", "a boot", "the same boot again, after a reboot",
         "a second disk boots", "a container's start", "the next start"]
LATER = [PARTS[4], PARTS[7]]


class Attached:
    """A disk of an image in a registry, through a cache."""

    def __init__(self, place, name, reference, registry, cache, *way):
        self.work = place
        self.program = Running(place, name, HEADSTART, "attach", reference, "--plain-http", registry, "--cache", cache,
                               "--no-record", "--policy", "lazy", "--json", *way)
        self.program.wait_for(lambda: "\n" in self.program.said())
        self.way = json.loads(self.program.said().splitlines()[0])["ways"][0]

    def processor(self):
        return processor_time(self.program.process.pid)[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.program.end()


class Mounted(Attached):
    """A disk whose file system is mounted, as the snapshotter mounts those of containers."""

    def __init__(self, place, name, reference, registry, cache, *more):
        self.file, self.tree = place / f"{name}.raw", place / f"{name}.tree"
        self.file.touch()
        self.tree.mkdir()
        super().__init__(place, name, reference, registry, cache, "--fuse", self.file, *more)
        self.device = run("losetup", "--find", "--show", "--read-only", "--direct-io=on", self.file).strip()
        run("blockdev", "--setra", READ_AHEAD_SECTORS, self.device)
        run("mount", "-o", "ro,noload,noatime", self.device, self.tree)

    def scan(self):
        """Reads all files; the bytes."""
        total = 0
        for path in files(self.tree):
            with open(path, "rb", buffering=0) as file:
                while part := file.read(1 << 20):
                    total += len(part)
        return total

    def decoded(self):
        return cached_below(self.tree) + cached(self.device) + cached(self.file)

    def __exit__(self, *_):
        subprocess.run(["umount", self.tree], check=False)
        subprocess.run(["losetup", "--detach", self.device], check=False)
        # The device goes when nothing uses it any more.
        time.sleep(0.2)
        super().__exit__()
        self.file.unlink()
        self.tree.rmdir()


class Memory:
    """The measurements of one way to treat the page cache."""

    def __init__(self, setting, app, codec, way, add):
        self.setting, self.app, self.codec, self.add = setting, app, codec, add
        self.way, self.options = way, ["--page-cache", way] if way else []

    def _row(self, part, cache, wall, **more):
        time.sleep(SETTLE)
        row = {"part": part, "codec": self.codec, "way": self.way or "as it is", "wall": wall,
               "compressed": cached_below(cache), **more}
        if part in LATER:
            time.sleep(LONGEVITY)
            row["later"] = cached_below(cache)
        self.add(row)

    def _timed(self, part, cache, disk, work):
        start, before = time.monotonic(), disk.processor()
        more = work()
        wall, used = time.monotonic() - start, disk.processor() - before
        self._row(part, cache, wall, cpu=used, **more)

    def scans(self):
        place, registry = self.setting.place(), self.setting.registry
        cache = place / "cache"
        self.setting.push(self.app, f"{self.app.name}-memory")
        reference = f"oci://{registry}/{self.app.name}-memory:disk-{self.codec}"
        run(HEADSTART, "image", "convert", f"oci://{registry}/{self.app.name}-memory:{TAG}", reference, "--codec",
            self.codec, "--plain-http", registry)

        def scan(disk, part):
            self._timed(part, cache, disk, lambda: {"read": disk.scan(), "decoded": disk.decoded()})

        def open_disk(name):
            return Mounted(place, name, reference, registry, cache, *self.options)

        with open_disk("first") as disk:
            scan(disk, PARTS[0])
        forget(cache)
        with open_disk("second") as disk:
            scan(disk, PARTS[1])
            scan(disk, PARTS[2])
            with open_disk("third") as other:
                scan(other, PARTS[3])
        shutil.rmtree(place)

    def boots(self, traces):
        """Replays a recorded boot over NBD, on a disk that has data wherever the boot reads."""
        place, registry = self.setting.place(), self.setting.registry
        trace = sorted(traces.glob(f"*/{BOOT}/*/*.npy"))[0]
        raw, cache = place / "disk.raw", place / "cache"
        self._make_disk(trace, raw)
        reference = f"oci://{registry}/boot:{self.codec}"
        local = f"file://{place}/store:boot"
        run(HEADSTART, "image", "import", raw, local, "--codec", self.codec)
        run(HEADSTART, "image", "push", local, reference, "--plain-http", registry)
        raw.unlink()

        def boot(disk, part):
            replay = lambda: lab("replay", trace, disk.way["uri"], "--faster", "5", "--grace", "0s")
            self._timed(part, cache, disk, lambda: {"waits": replay()["wait"]["total"]})

        def open_disk(name):
            return Attached(place, name, reference, registry, cache, "--nbd", f"unix:{place}/{name}.sock",
                            *self.options)

        with open_disk("first") as disk:
            boot(disk, PARTS[4])
        forget(cache)
        with open_disk("second") as disk:
            boot(disk, PARTS[5])
            with open_disk("third") as other:
                boot(other, PARTS[6])
        shutil.rmtree(place)

    @staticmethod
    def _make_disk(trace, raw):
        reads, size = reads_of(trace)
        blocks = {block for start, length in reads
                  for block in range(start // AROUND, (start + length - 1) // AROUND + 1)}
        content = content_of(pathlib.Path("/usr"))
        with open(raw, "wb") as disk:
            for block in sorted(blocks):
                disk.seek(block * AROUND)
                disk.write(next(content))
            disk.truncate(size)

    def starts(self):
        """A container's start on a host that has nothing, and the next one."""
        lazy = Lazy(f"memory-{self.codec}", "--codec", self.codec)
        lazy.publish(self.setting, self.app)
        place, options = self.setting.place(), self.setting.options
        with Link(place, self.setting.registry, options.rate, options.delay) as link:
            with HeadstartHost(place / "host", link.address, *self.options) as host:
                host.pull(lazy.repository(self.app))
                for part in PARTS[7:]:
                    wall = host.run_until_up(self.app, lazy.repository(self.app))
                    trees = [tree for tree in (host.work / "snapshots/trees").glob("*/fs") if os.path.ismount(tree)]
                    self._row(part, host.work / "cache", wall, decoded=sum(map(cached_below, trees)))
        shutil.rmtree(place, ignore_errors=True)


def reads_of(trace):
    """The reads of a trace in the layout of the FAST'26 data set, as (offset, length); the size of its disk."""
    data = trace.read_bytes()
    start = 10 + int.from_bytes(data[8:10], "little")
    header = ast.literal_eval(data[10:start].decode())
    if header["descr"] != "<i8" or header["fortran_order"]:
        raise Failed(f"{trace}: not the layout of a trace")
    numbers = array.array("q", data[start:])
    requests = [numbers[at:at + 4] for at in range(0, len(numbers), 4)]
    size = max(offset + length for _, offset, length, _ in requests)
    return [(offset, length) for op, offset, length, _ in requests if op == 1], -(-size >> 20 << 20)


def content_of(directory):
    """This machine's files, in parts."""
    rest = b""
    for path in files(directory):
        try:
            rest += path.read_bytes()
        except OSError:
            continue
        while len(rest) >= AROUND:
            yield rest[:AROUND]
            rest = rest[AROUND:]


def measure(setting, options, say):
    """All rows."""
    app = next(app for app in APPS if app.name == "python")
    rows = []

    def add(row):
        rows.append(row)
        say(line(row))

    for codec in options.codecs:
        for way in options.page_cache:
            memory = Memory(setting, app, codec, None if way == "default" else way, add)
            if "scans" in options.parts:
                memory.scans()
            if "boots" in options.parts and not options.traces.is_dir():
                say(f"SKIPPED: no recorded boots in {options.traces}")
            elif "boots" in options.parts:
                memory.boots(options.traces)
            if "starts" in options.parts:
                memory.starts()
    return rows


def line(row):
    """A row, for those who watch."""
    return ", ".join(f"{key} {value:.2f}" if isinstance(value, float) else
                     f"{key} {value / MB:.0f} MB" if isinstance(value, int) else str(value)
                     for key, value in row.items())


def pages_table(rows):
    """Each part with each codec, the ways to treat the page cache below each other."""
    rows = sorted(rows, key=lambda row: (row["codec"], PARTS.index(row["part"])))
    megabytes = lambda row, figure: f"{row[figure] / MB:.0f}" if figure in row else "-"
    seconds = lambda row, figure: f"{row[figure]:.2f}" if figure in row else "-"
    lines = [[f"{row['part']}, {row['codec']}: {row['way']}", *(megabytes(row, figure) for figure in
              ("compressed", "later", "decoded")), seconds(row, "waits" if "waits" in row else "wall"),
              seconds(row, "cpu")] for row in rows]
    return table(["", "MB compressed", "a minute later", "MB decoded", "s", "s of processor"], lines)
