"""Those that build: headstart's disk, committed step by step, and overlayfs with a walk of the differences."""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import threading
import time

import steps
from rig import HEADSTART, Failed, Running, run

# The size of the disk on which headstart builds.
SIZE = 8 << 30
# The time between two syncs of its file system.
WRITE_BACK_S = 0.5


class Clock:
    """The time that steps and commits took, apart."""

    def __init__(self):
        self.steps, self.commits = [], []

    @contextlib.contextmanager
    def measuring(self, into):
        start = time.monotonic()
        yield
        into.append(time.monotonic() - start)

    def figures(self):
        return {"steps": sum(self.steps), "commits": sum(self.commits), "each": self.commits,
                "wall": sum(self.steps) + sum(self.commits)}


class Disk:
    """A writable disk of an empty file system, attached and mounted."""

    def __init__(self, work, *options):
        self.work, self.store = work, work / "images"
        empty = work / "empty.raw"
        with open(empty, "wb") as raw:
            raw.truncate(SIZE)
        run("mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-E", "lazy_itable_init=1", empty)
        run(HEADSTART, "image", "import", empty, f"file://{self.store}:base", "--codec", "lz4", "--quiet")
        empty.unlink()
        self.image, self.options = "base", options

    def __enter__(self):
        served = self.work / "disk.raw"
        served.touch()
        self.program = Running(self.work, "attach.out", HEADSTART, "attach", f"file://{self.store}:{self.image}",
                               "--writable", self.work / "vm", "--fuse", served, "--json", "--no-record",
                               *self.options)
        self.program.wait_for(lambda: "ready_ms" in self.program.said())
        self.loop = run("losetup", "--find", "--show", "--direct-io=on", served).strip()
        self.root = self.work / "root"
        self.root.mkdir(exist_ok=True)
        run("mount", "-o", "discard", self.loop, self.root)
        self.ended = threading.Event()
        self.writeback = threading.Thread(target=self._write_back)
        self.writeback.start()
        return self

    def _write_back(self):
        """Brings what was written to the disk while steps go on; the kernel alone keeps it for half a minute."""
        while not self.ended.wait(WRITE_BACK_S):
            subprocess.run(["sync", "--file-system", self.root], capture_output=True)

    def __exit__(self, *_):
        self.ended.set()
        self.writeback.join()
        subprocess.run(["umount", self.root], capture_output=True)
        subprocess.run(["losetup", "--detach", self.loop], capture_output=True)
        self.program.end()
        self.program.end()

    def commit(self, tag, codec, *options):
        """Commits the disk with all that was written to the file system."""
        run("fsfreeze", "--freeze", self.root)
        try:
            said = run(HEADSTART, "image", "commit", "--writable", self.work / "vm", f"file://{self.store}:{tag}",
                       "--codec", codec, "--json", "--quiet", *options)
        finally:
            run("fsfreeze", "--unfreeze", self.root)
        return json.loads(said)


def on_disk(codec, ahead):
    """A build on headstart's disk: one disk for all steps, a stacked commit after each."""
    def build(setting, work):
        clock, layers = Clock(), 0
        options = [f"--seal-ahead={codec}"] if ahead else []
        with Disk(work, *options) as disk:
            for number, (kind, which) in enumerate(steps.order()):
                with clock.measuring(clock.steps):
                    steps.carry_out(setting.files, disk.root, kind, which)
                with clock.measuring(clock.commits):
                    layers += disk.commit(f"s{number}", codec, "--stack")["layer_size"]
            listed = steps.listing(disk.root)
        image = Disk.__new__(Disk)
        image.work, image.store, image.image, image.options = work, disk.store, f"s{number}", ()
        shutil.rmtree(work / "vm")
        with image:
            if steps.listing(image.root) != listed:
                raise Failed("the image is not what was built")
        return clock.figures() | {"stored": layers, "tree": hashlib.sha256(listed).hexdigest()}
    return build


@contextlib.contextmanager
def overlay(root, lowers, upper, scratch):
    """An overlay of directories, the lowest first, mounted at `root`."""
    below = ":".join(str(one) for one in reversed(lowers))
    run("mount", "-t", "overlay", "-o", f"lowerdir={below},upperdir={upper},workdir={scratch}", "overlay", root)
    try:
        yield
    finally:
        run("umount", root)


def on_overlay(*compressor):
    """A build on overlayfs: a new upper directory for each step, and then a tar of it, compressed and hashed."""
    def build(setting, work):
        clock, lowers, layers = Clock(), [work / "base"], 0
        lowers[0].mkdir()
        root = work / "root"
        root.mkdir()
        for number, (kind, which) in enumerate(steps.order()):
            upper, scratch, blob = work / f"upper{number}", work / f"work{number}", work / f"layer{number}"
            upper.mkdir()
            scratch.mkdir()
            with clock.measuring(clock.steps), overlay(root, lowers, upper, scratch):
                steps.carry_out(setting.files, root, kind, which)
            with clock.measuring(clock.commits):
                walk = f"tar -C '{upper}' --numeric-owner --sort=name -cf - . | tee >(sha256sum >'{blob}.diff') | " \
                       f"{' '.join(compressor)} | tee '{blob}' | sha256sum && sync '{blob}'"
                run("bash", "-o", "pipefail", "-c", walk)
            layers += blob.stat().st_size
            lowers.append(upper)
        for name in ("upper", "work"):
            (work / f"{name}-last").mkdir()
        with overlay(root, lowers, work / "upper-last", work / "work-last"):
            listed = steps.listing(root)
        return clock.figures() | {"stored": layers, "tree": hashlib.sha256(listed).hexdigest()}
    return build


def large_step(codec, ahead):
    """One commit of 500 MB that a step of ten seconds has written."""
    def build(setting, work):
        clock = Clock()
        with Disk(work, *([f"--seal-ahead={codec}"] if ahead else [])) as disk:
            with clock.measuring(clock.steps):
                steps.paced(disk.root / "data", 500_000_000, 10)
                # A step that ends well has written its files.
                os.sync()
            with clock.measuring(clock.commits):
                made = disk.commit("large", codec, "--stack")
        run(HEADSTART, "image", "verify", "--deep", f"file://{disk.store}:large", "--quiet")
        return clock.figures() | {"stored": made["layer_size"]}
    return build


ALL = [
    ("build", "headstart, zstd, sealed ahead", None, on_disk("zstd", True)),
    ("build", "headstart, zstd", None, on_disk("zstd", False)),
    ("build", "headstart, lz4, sealed ahead", None, on_disk("lz4", True)),
    ("build", "headstart, lz4", None, on_disk("lz4", False)),
    ("build", "overlayfs, tar, gzip", "gzip", on_overlay("gzip", "-6")),
    ("build", "overlayfs, tar, pigz", "pigz", on_overlay("pigz", "-6")),
    ("build", "overlayfs, tar, zstd", "zstd", on_overlay("zstd", "-3", "-T2", "-q")),
    ("commit", "headstart, zstd, sealed ahead", None, large_step("zstd", True)),
    ("commit", "headstart, zstd", None, large_step("zstd", False)),
    ("commit", "headstart, lz4, sealed ahead", None, large_step("lz4", True)),
    ("commit", "headstart, lz4", None, large_step("lz4", False)),
]


def missing(program):
    """Why a contestant cannot be measured here."""
    return f"{program} is not there" if program and not shutil.which(program) else None
