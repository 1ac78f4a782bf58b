"""Who competes: each makes the disk of an image available over NBD, from a web server behind a link."""

import json
import time

from rig import HEADSTART, Failed, headstart, lab

# nbdkit as its manual recommends for slow servers, in the combinations that came into question. The best is the one
# that won on debian, and was within a tenth of the best on postgres (the search is `--nbdkit-search`).
NBDKIT = {
    "cache": ["--filter=cache", "curl", "URL", "cache-on-read=true"],
    "readahead-cache": ["--filter=readahead", "--filter=cache", "curl", "URL", "cache-on-read=true"],
    "cache-readahead": ["--filter=cache", "--filter=readahead", "curl", "URL", "cache-on-read=true"],
    "cow-cache-readahead": ["--filter=cow", "--filter=cache", "--filter=readahead", "curl", "URL",
                            "cache-on-read=true"],
    "cow-on-read": ["--filter=cow", "curl", "URL", "cow-on-read=true"],
    "cow": ["--filter=cow", "curl", "URL"],
    "readahead-cow": ["--filter=readahead", "--filter=cow", "curl", "URL", "cow-on-read=true", "cow-on-cache=true"],
    "cache-256k": ["--filter=cache", "curl", "URL", "cache-on-read=true", "cache-min-block-size=256k"],
    "cache-1M": ["--filter=cache", "curl", "URL", "cache-on-read=true", "cache-min-block-size=1M"],
    "cache-2M": ["--filter=cache", "curl", "URL", "cache-on-read=true", "cache-min-block-size=2M"],
    "readahead-cache-256k": ["--filter=readahead", "--filter=cache", "curl", "URL", "cache-on-read=true",
                             "cache-min-block-size=256k"],
}
NBDKIT_BEST = "cache-256k"

# How headstart is attached: options, which store (with plans beside the images or without), which tag.
ATTACH = {
    "whole-lazy": (["--policy", "lazy", "--whole-blocks"], "bare", "{name}"),
    "whole-score": (["--policy", "auto", "--whole-blocks", "--plans", "{plans}/{name}.score"], "bare", "{name}"),
    "lazy": (["--policy", "lazy"], "bare", "{name}"),
    "planned": (["--policy", "auto"], "store", "{name}"),
    "zero-shot": (["--policy", "auto", "--plans", "{plans}/{base}.own"], "bare", "{name}"),
    "optimized": (["--policy", "auto"], "store", "{name}-optimized"),
    "useless": (["--policy", "{plans}/{name}.useless"], "bare", "{name}"),
    "adversarial": (["--policy", "{plans}/{name}.adversarial"], "bare", "{name}"),
}

TITLES = {
    "download": "full download first",
    "nbdkit": "nbdkit curl, its best filters",
    "whole-lazy": "lazy, whole blocks",
    "whole-score": "whole blocks in score order",
    "lazy": "headstart, lazy",
    "zero-shot": "headstart, zero-shot",
    "planned": "headstart, planned",
    "optimized": "headstart, optimized",
    "useless": "headstart, another image's plan",
    "adversarial": "headstart, a plan of what is never read",
    "local": "local disk",
}


class Disk:
    """A disk that can be used: where, how long that took, and how it ends."""

    def __init__(self, uri, ready, program=None):
        self.uri, self.ready, self.program = uri, ready, program


def open_local(rig, images, name):
    return _nbdkit(rig, ["file", images.disk(name)], time.monotonic())


def open_nbdkit(rig, images, name, filters=NBDKIT_BEST):
    url = f"http://{rig.link}/{name}.raw"
    return _nbdkit(rig, [url if part == "URL" else part for part in NBDKIT[filters]], time.monotonic())


def _nbdkit(rig, arguments, start):
    socket = rig.work / "nbdkit"
    writes = [] if "--filter=cow" in arguments else ["--readonly"]
    program = rig.start("disk", "nbdkit", "--foreground", "--exit-with-parent", *writes, "--unix", socket,
                        *arguments)
    program.wait_for(socket.exists)
    return Disk(f"nbd+unix:///?socket={socket}", time.monotonic() - start, program)


def open_headstart(rig, images, name, how):
    options, store, tag = ATTACH[how]
    known = {"name": name, "base": name.removesuffix("-derived"), "plans": images.plans}
    start = time.monotonic()
    program = rig.start("disk", HEADSTART, "attach", f"http://{rig.link}/{store}:{tag.format(**known)}", "--json",
                        "--nbd", f"unix:{rig.work}/nbd", "--cache", rig.work / "cache", "--no-record",
                        *[part.format(**known) for part in options])
    program.wait_for(lambda: "\n" in program.said())
    return Disk(json.loads(program.said().splitlines()[0])["ways"][0]["uri"], time.monotonic() - start, program)


def open_downloaded(rig, images, name):
    """All of the image comes first; then it is a local disk."""
    here, disk = rig.work / "downloaded", rig.work / "downloaded.raw"
    start = time.monotonic()
    headstart("--quiet", "image", "pull", f"http://{rig.link}/bare:{name}", f"file://{here}:{name}")
    headstart("--quiet", "image", "export", f"file://{here}:{name}", "-o", disk)
    ready = time.monotonic() - start
    opened = _nbdkit(rig, ["file", disk], time.monotonic())
    opened.ready += ready
    return opened


def opener(contestant):
    """The function that opens a disk as this contestant does."""
    if contestant == "local":
        return open_local
    if contestant == "download":
        return open_downloaded
    if contestant == "nbdkit":
        return open_nbdkit
    if contestant.startswith("nbdkit:"):
        return lambda rig, images, name: open_nbdkit(rig, images, name, contestant.removeprefix("nbdkit:"))
    if contestant in ATTACH:
        return lambda rig, images, name: open_headstart(rig, images, name, contestant)
    raise Failed(f"there is no contestant '{contestant}'; there are {', '.join(TITLES)}")


def replay(disk, trace, grace, faster):
    """The recorded boot's reads on that disk: the report of `headstart-lab replay`.

    The first read comes `grace` seconds after the machine's creation, when the disk began to be attached; or when it
    is ready, where that takes longer. What takes no longer than a millisecond is a hit: no link here is that quick.
    """
    left = max(0.0, grace - disk.ready)
    return lab("--quiet", "replay", trace, disk.uri, "--grace", f"{round(left * 1e6)}us", "--faster", faster,
               "--hit", "1ms", within=3600)
