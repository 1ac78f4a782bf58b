"""The files of a container, read by du, tar and fio: on a disk's file system and on directories of overlayfs.

All of the image is on the host. *Cold*: nothing of it is in memory (the kernel's caches are dropped, those of the
whole machine). *Warm*: right after that.
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import time

from hosts import HeadstartHost, Host
from images import APPS, TAG
from layout import Uploads
from page import table
from rig import HEADSTART, run

APP = "python"
FIO_TIME = 4


def _drop_caches():
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3\n")


def _timed(command):
    start = time.monotonic()
    subprocess.run(["sh", "-c", command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.monotonic() - start


def _largest(tree):
    files = (path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    return max(files, key=lambda path: path.stat().st_size)


def _fio(file, *options):
    """Bytes a second."""
    said = run("fio", "--name=read", f"--filename={file}", "--readonly", "--ioengine=psync", "--output-format=json",
               f"--size={file.stat().st_size}", *options)
    return json.loads(said)["jobs"][0]["read"]["bw_bytes"]


def _container(host, reference, at):
    """Mounts the files of a container at `at`."""
    at.mkdir()
    listed = run(*host.client("snapshots", "--snapshotter", host.snapshotter, "ls")).splitlines()[1:]
    words = [line.split() for line in listed]
    parents = {line[1] for line in words if len(line) > 2}
    top = next(line[0] for line in words if line[0] not in parents)
    said = run(*host.client("snapshots", "--snapshotter", host.snapshotter, "prepare", "--target", at, at.name, top))
    run("sh", "-c", said.strip())


def measure(setting, runs, say):
    """Rows of figures: seconds, and bytes a second for fio."""
    app = next(app for app in APPS if app.name == APP)
    place, hosts, mounted, rows = setting.place(), {}, [], []
    try:
        for codec in ("lz4", "zstd"):
            name = f"{APP}-{codec}"
            Uploads(setting.registry, name).image(setting.layout, app.name, TAG)
            run(HEADSTART, "image", "convert", f"oci://{setting.registry}/{name}:{TAG}", "--index", "--codec", codec,
                "--plain-http", setting.registry)
        kinds = {"overlayfs": (Host, "lz4"), "headstart lz4": (HeadstartHost, "lz4"),
                 "headstart zstd": (HeadstartHost, "zstd")}
        for who, (kind, codec) in kinds.items():
            hosts[who] = kind(place / who.replace(" ", "-"), setting.registry)
            hosts[who].pull(f"{APP}-{codec}")
            at = place / f"tree-{who.replace(' ', '-')}"
            _container(hosts[who], None, at)
            mounted.append((who, at))
            # All of it is on the host from now on.
            _timed(f"tar -C {at} -cf - . | cat")
        for who, at in mounted:
            rows.append({"who": who, **_figures(at, runs)})
            say(line(rows[-1]))
        return rows
    finally:
        for _, at in mounted:
            run("umount", "-l", at)
        for host in hosts.values():
            host.end()
        shutil.rmtree(place, ignore_errors=True)


def _figures(at, runs):
    works = {"du": f"du -s {at}", "tar": f"tar -C {at} -cf - . | cat"}
    times = {}
    for _ in range(runs):
        for name, command in works.items():
            _drop_caches()
            times.setdefault(f"{name} cold", []).append(_timed(command))
            times.setdefault(f"{name} warm", []).append(_timed(command))
        largest = _largest(at)
        for name, options in {"fio 4k": ["--rw=randread", "--bs=4k", f"--runtime={FIO_TIME}"],
                              "fio 1M": ["--rw=read", "--bs=1M"]}.items():
            _drop_caches()
            times.setdefault(f"{name} cold", []).append(_fio(largest, *options))
    return {name: statistics.median(values) for name, values in times.items()}


def line(row):
    """A row, for those who watch."""
    return f"{row['who']}: " + ", ".join(
        f"{name} {value / 1e6:.0f} MB/s" if name.startswith("fio") else f"{name} {value:.2f} s"
        for name, value in row.items() if name != "who")


def trees_table(rows):
    """Each contestant, with its share of overlayfs."""
    names = [name for name in rows[0] if name != "who"]
    beside = rows[0]
    lines = []
    for row in rows:
        figure = lambda name: f"{row[name] / 1e6:.0f} MB/s" if name.startswith("fio") else f"{row[name]:.2f} s"
        lines.append([row["who"], *(f"{figure(name)} ({row[name] / beside[name]:.2f})" for name in names)])
    return table(["", *names], lines)
