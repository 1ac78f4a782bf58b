"""What is measured: conversions by headstart, and what other programs do with the same layers.

Each is a function of a setting and an empty directory; it gives the figures of one run.
"""

import json
import os
import shutil
import subprocess

from corpus import one_file
from layout import Uploads
from programs import Containerd, Link, measured, stored
from rig import HEADSTART, Failed

# The size of all disks.
SIZE = "64G"
# Python's zlib without Python's start, which is measured and taken off.
ZLIB = ("import sys, zlib\ninflate, piece = zlib.decompressobj(wbits=31), 1 << 18\n"
        "with open(sys.argv[1], 'rb') as file:\n"
        "    while data := file.read(piece):\n        inflate.decompress(data)\n")


class Setting:
    """What all of them need: the images, the registry (if there is one), the options of the bench."""

    def __init__(self, options, corpus, registry):
        self.options, self.corpus, self.registry = options, corpus, registry
        self.work, self.known, self.tries = options.work, {}, 0

    def converted(self, codec):
        """A directory that has a conversion of `e`, to be copied."""
        if codec not in self.known:
            place = self.work / f"known-{codec}"
            convert(self.corpus.image("e-gzip"), f"file://{place}:e", "--codec", codec)
            self.known[codec] = place
        return self.known[codec]

    def repository(self, name):
        """A repository of the registry that has `e` and the images of one file."""
        if name not in self.known:
            uploads = Uploads(self.registry.address, name)
            for tag in self.corpus.known["tags"]:
                if tag == "e-gzip" or tag.startswith("one-file"):
                    uploads.image(self.corpus.layout, tag)
            self.known[name] = f"{self.registry.address}/{name}"
        return self.known[name]

    def remote_parent(self):
        """A repository that has a conversion of `e`, too; the path of it at the registry."""
        address = self.repository("remote")
        if "parent" not in self.known:
            self.known["parent"] = convert(f"oci://{address}:e-gzip", f"oci://{address}:e-disk", "--codec", "lz4")
        return address.partition("/")[2]

    def next_try(self):
        """A number that no run had before."""
        self.tries += 1
        return self.tries


def convert(source, target, *more, cache=None):
    """Converts an image: the program's report, with what it took as `took`."""
    env = {"TMPDIR": str(cache)} if cache else None
    hosts = {name.split("/")[2] for name in (source, target) if name.startswith("oci://")}
    plain = [part for host in sorted(hosts) for part in ("--plain-http", host)]
    said, took = measured(HEADSTART, "image", "convert", source, target, "--size", SIZE, "--json", *plain, *more,
                          env=env)
    return json.loads(said) | {"took": took}


def figures(report):
    return report["took"] | {"stored": report["added_bytes"], "layers": [one["digest"] for one in report["layers"]]}


def from_layout(tag, codec, *more):
    """From a layout to an empty directory."""
    def run(setting, work):
        report = convert(setting.corpus.image(tag), f"file://{work}/images:disk", "--codec", codec, *more)
        return figures(report) | {"directory": stored(work / "images")}
    return run


def on_known(tag, codec):
    """The same where the directory has a conversion of `e`: only the layers above it are converted."""
    def run(setting, work):
        shutil.copytree(setting.converted(codec), work / "images")
        before = stored(work / "images")
        report = convert(setting.corpus.image(tag), f"file://{work}/images:disk", "--codec", codec)
        return figures(report) | {"directory": stored(work / "images") - before}
    return run


def in_registry(codec):
    """From the registry into an empty repository of it."""
    def run(setting, work):
        source = setting.repository("sources")
        target = f"oci://{setting.registry.address}/converted-{setting.next_try()}:disk"
        return figures(convert(f"oci://{source}:e-gzip", target, "--codec", codec, cache=work))
    return run


def over_link(setting, work):
    """A layer of one file on `e`, all of which is at the other end of a slow link: the conversion of `e`, too."""
    repository = setting.remote_parent()
    tag = one_file(setting.next_try())
    if not setting.corpus.has(tag):
        raise Failed("all images of one file were converted already: fewer runs")
    link = Link(work, setting.registry.address, setting.options.rate, setting.options.delay)
    try:
        address = f"oci://{link.address}/{repository}"
        report = convert(f"{address}:{tag}", f"{address}:{tag}-disk", "--codec", "lz4", cache=work)
    finally:
        moved = link.end()
    return figures(report) | {"moved": moved}


def inflate(program, *arguments):
    """Decompressing a layer to nowhere."""
    def run(setting, work):
        return measured(program, *arguments, setting.corpus.gzip, to=subprocess.DEVNULL)[1]
    return run


def zlib_inflate(layer):
    def run(setting, work):
        start = measured("python3", "-I", "-S", "-c", "import sys, zlib")[1]
        took = measured("python3", "-I", "-S", "-c", ZLIB, layer(setting.corpus))[1]
        return took | {figure: took[figure] - start[figure] for figure in ("wall", "cpu")}
    return run


def umoci(tag):
    """Unpacking to a directory, as root."""
    def run(setting, work):
        image = f"{setting.corpus.layout}:{tag}"
        took = measured("umoci", "raw", "unpack", "--image", image, work / "tree")[1]
        return took | {"stored": stored(work / "tree")}
    return run


def untar(setting, work):
    (work / "tree").mkdir()
    took = measured("tar", "-xzf", setting.corpus.gzip, "-C", work / "tree", "--numeric-owner")[1]
    return took | {"stored": stored(work / "tree")}


def tree(setting):
    """`e`, unpacked."""
    if "tree" not in setting.known:
        place = setting.work / "tree"
        place.mkdir()
        subprocess.run(["tar", "-xf", setting.corpus.tar, "-C", place, "--numeric-owner"], check=True)
        setting.known["tree"] = place
    return setting.known["tree"]


def mke2fs(setting, work):
    source, disk = tree(setting), work / "disk"
    took = measured("mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-d", source, disk, SIZE)[1]
    return took | {"stored": stored(disk.parent)}


def mkfs_erofs(*options):
    def run(setting, work):
        took = measured("mkfs.erofs", "--quiet", "-T0", *options, work / "disk", tree(setting))[1]
        return took | {"stored": stored(work)}
    return run


def containerd_import(*options):
    """`ctr image import` into an empty containerd; `--no-unpack` leaves out what follows the copying."""
    def run(setting, work):
        with Containerd(work / "containerd") as server:
            command = server.client("image", "import", *options, "--snapshotter", "overlayfs",
                                    setting.corpus.oci_archive)
            return measured(*command, beside=server.program)[1] | {"stored": stored(work / "containerd/root")}
    return run


def containerd_pull(setting, work):
    """`ctr image pull` from the registry into an empty containerd."""
    source = setting.repository("sources")
    with Containerd(work / "containerd") as server:
        command = server.client("image", "pull", "--plain-http", "--snapshotter", "overlayfs", f"{source}:e-gzip")
        return measured(*command, beside=server.program)[1] | {"stored": stored(work / "containerd/root")}


def buildah(setting, work):
    places = ["--root", work / "root", "--runroot", work / "run", "--storage-driver", "overlay"]
    try:
        took = measured("buildah", *places, "pull", "-q", f"oci:{setting.corpus.layout}:e-gzip")[1]
        return took | {"stored": stored(work / "root")}
    finally:
        # The driver leaves its directory mounted on itself.
        for mounted in (work / "root/overlay", work / "root"):
            if os.path.ismount(mounted):
                subprocess.run(["umount", mounted], check=True)


# What is measured, in the order of the page: part, what, who, program that has to be there, function.
ALL = [
    ("layer", "gzip-lz4", "headstart", HEADSTART, from_layout("e-gzip", "lz4")),
    ("layer", "gzip-lz4", "headstart, 1 thread", HEADSTART, from_layout("e-gzip", "lz4", "--threads", "1")),
    ("layer", "gzip-zstd", "headstart", HEADSTART, from_layout("e-gzip", "zstd")),
    ("layer", "gzip-none", "headstart", HEADSTART, from_layout("e-gzip", "none")),
    ("layer", "zstd-lz4", "headstart", HEADSTART, from_layout("e-zstd", "lz4")),
    ("layer", "plain-lz4", "headstart", HEADSTART, from_layout("e-plain", "lz4")),
    ("layer", "turbo", "headstart", HEADSTART, from_layout("e-gzip", "lz4", "--mode", "turbo")),
    ("registry", "registry-lz4", "headstart", HEADSTART, in_registry("lz4")),
    ("remote", "one-file", "headstart", HEADSTART, over_link),
    ("layers", "tiny", "headstart", HEADSTART, from_layout("tiny", "lz4")),
    ("layers", "tiny-on-e", "headstart", HEADSTART, on_known("tiny-on-e", "lz4")),
    ("layers", "chmod", "headstart", HEADSTART, on_known("chmod", "lz4")),
    ("peers", "gzip-lz4", "umoci raw unpack", "umoci", umoci("e-gzip")),
    ("peers", "gzip-lz4", "ctr image import", "containerd", containerd_import()),
    ("peers", "gzip-lz4", "ctr image import --no-unpack", "containerd", containerd_import("--no-unpack")),
    ("peers", "gzip-lz4", "buildah pull", "buildah", buildah),
    ("peers", "gzip-lz4", "tar -xzf", "tar", untar),
    ("peers", "tree", "mke2fs -d", "mke2fs", mke2fs),
    ("peers", "tree", "mkfs.erofs", "mkfs.erofs", mkfs_erofs()),
    ("peers", "tree", "mkfs.erofs -zlz4", "mkfs.erofs", mkfs_erofs("-zlz4")),
    ("peers", "registry-lz4", "ctr image pull", "containerd", containerd_pull),
    ("peers", "tiny", "umoci raw unpack", "umoci", umoci("tiny")),
    ("peers", "inflate", "zlib", "python3", zlib_inflate(lambda corpus: corpus.gzip)),
    ("peers", "inflate", "gzip", "gzip", inflate("gzip", "-dc")),
    ("peers", "inflate", "igzip (isa-l)", "igzip", inflate("igzip", "-dc")),
    ("peers", "inflate", "libdeflate-gunzip", "libdeflate-gunzip", inflate("libdeflate-gunzip", "-c")),
    ("peers", "inflate-chmod", "zlib", "python3", zlib_inflate(lambda corpus: corpus.chmod_gzip)),
]
# Of these, as root only.
AS_ROOT = ("umoci", "containerd", "buildah", "tar", "mke2fs", "mkfs.erofs")
# What nothing runs without, beside the program.
NEEDS = {"registry-lz4": "docker-registry", "one-file": "docker-registry"}


def missing(what, program):
    """Why something cannot be measured here; nothing where it can."""
    for needed in (program, NEEDS.get(what)):
        if needed and not shutil.which(str(needed)):
            return f"{needed} is not there"
    if program in AS_ROOT and os.geteuid() != 0:
        return f"{program} needs root here"
    return None
