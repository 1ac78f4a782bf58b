"""What has to hold of the images: the same bytes on every way, and file systems that e2fsck finds clean."""

import itertools
import shutil

from contestants import SIZE, convert
from corpus import ONE_FILE_IMAGES, one_file
from programs import Link, measured
from rig import HEADSTART, Failed, run

THREADS = {1: "1 thread", 2: "2 threads", 8: "8 threads"}


def layers(report):
    return tuple(one["digest"] for one in report["layers"])


class Ways:
    """The digests of layers by the ways in which they were made."""

    def __init__(self, what):
        self.what, self.found = what, {}

    def add(self, way, report):
        self.found[way] = layers(report)

    def result(self):
        return {"check": "identity", "what": self.what, "ways": list(self.found),
                "different": len(set(self.found.values())), "ok": len(set(self.found.values())) == 1}


def into(work, source, codec, threads, target="disk"):
    """A conversion into a directory that had nothing."""
    place = work / "images"
    try:
        return convert(source, f"file://{place}:{target}", "--codec", codec, "--threads", str(threads))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def layer(setting, work, codec):
    """`e` on all ways: threads, forms of the source, kinds of stores and archives."""
    corpus, ways = setting.corpus, Ways(f"e, {codec}")
    forms = [form for form in ("gzip", "zstd", "plain") if corpus.has(f"e-{form}")]
    for form, threads in itertools.product(forms, THREADS):
        ways.add(f"{form}, {THREADS[threads]}", into(work, corpus.image(f"e-{form}"), codec, threads))
    ways.add("oci-archive", into(work, f"oci-archive:{corpus.oci_archive}", codec, 2))
    ways.add("docker-archive", into(work, f"docker-archive:{corpus.docker_archive}", codec, 2))
    if setting.registry:
        source = setting.repository("sources")
        target = f"oci://{setting.registry.address}/identity-{codec}:disk"
        ways.add("registry to registry", convert(f"oci://{source}:e-gzip", target, "--codec", codec))
    yield ways.result()


def parents(setting, work):
    """A layer on a parent that was made in the same run, that was there, and that stayed remote."""
    for tag in ("chmod", "tiny-on-e", one_file(0)):
        ways = Ways(tag)
        for threads in THREADS:
            ways.add(f"fresh parent, {THREADS[threads]}", into(work, setting.corpus.image(tag), "lz4", threads))
        shutil.copytree(setting.converted("lz4"), work / "copy")
        ways.add("parent that was there",
                 convert(setting.corpus.image(tag), f"file://{work}/copy:disk", "--codec", "lz4"))
        shutil.rmtree(work / "copy")
        if setting.registry and tag.startswith("one-file"):
            repository = setting.remote_parent()
            with Link(work, setting.registry.address, setting.options.rate, setting.options.delay) as link:
                address = f"oci://{link.address}/{repository}"
                ways.add("remote parent",
                         convert(f"{address}:{tag}", f"{address}:{tag}-checked", "--codec", "lz4", cache=work))
        yield ways.result()


def file_systems(setting, work):
    """Every image as a disk, by `e2fsck -fn`."""
    for tag in ("e-gzip", "chmod", "tiny", "tiny-on-e", one_file(ONE_FILE_IMAGES - 1)):
        image = f"file://{work}/images:disk"
        convert(setting.corpus.image(tag), image, "--codec", "lz4")
        run(HEADSTART, "image", "export", image, "-o", work / "disk.raw", "--quiet")
        said, complaint = "", None
        try:
            said, _ = measured("e2fsck", "-fn", work / "disk.raw")
        except Failed as failed:
            complaint = str(failed)
        (work / "disk.raw").unlink()
        shutil.rmtree(work / "images")
        yield {"check": "e2fsck", "what": tag, "said": said.strip().splitlines()[-1:], "complaint": complaint,
               "ok": complaint is None}


def run_all(setting, work):
    """All checks, one after the other."""
    yield from layer(setting, work, "lz4")
    yield from layer(setting, work, "zstd")
    yield from parents(setting, work)
    if shutil.which("e2fsck"):
        yield from file_systems(setting, work)
    else:
        yield {"check": "e2fsck", "what": f"all disks of {SIZE}", "complaint": "e2fsck is not there", "ok": None}
