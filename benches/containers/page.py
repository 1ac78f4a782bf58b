"""The tables at the terminal and in docs/benchmarks-containers.md, and the same as JSON."""

import datetime
import os
import pathlib
import platform
import statistics
import textwrap

from corpus import PACKAGES
from rig import HEADSTART, build_of, run

WHATS = {
    "gzip-lz4": "a layer (tar.gz), lz4",
    "gzip-zstd": "a layer (tar.gz), zstd",
    "gzip-none": "a layer (tar.gz), not compressed",
    "zstd-lz4": "a layer (tar.zst), lz4",
    "plain-lz4": "a layer (tar), lz4",
    "turbo": "a layer (tar.gz), its metadata only (TurboOCI)",
    "registry-lz4": "a layer (tar.gz), lz4, from registry to registry",
    "one-file": "one file on a remote base",
    "tiny": "60 tiny layers",
    "tiny-on-e": "60 tiny layers on a base that is there",
    "chmod": "a chmod of all files, on a base that is there",
    "tree": "the layer's tree, unpacked before",
    "inflate": "the layer's tar.gz, only decompressed",
    "inflate-chmod": "the chmod's tar.gz, only decompressed",
}
# Bytes, of which the page tells MB.
MB = 1e6
# What, figure, its unit, the goal (or where a peer has it), who else is shown.
TARGETS = [
    ("gzip-lz4", "wall", 1.3, [("gzip-lz4", "umoci raw unpack"), ("gzip-lz4", "ctr image import")]),
    ("gzip-lz4", "cpu", 2.3, [("gzip-lz4", "umoci raw unpack"), ("tree", "mke2fs -d")]),
    ("gzip-zstd", "wall", 1.6, [("gzip-lz4", "buildah pull"), ("gzip-lz4", "tar -xzf")]),
    ("turbo", "wall", 0.9, [("gzip-lz4", "umoci raw unpack"), ("gzip-lz4", "ctr image import"), ("tree", "mke2fs -d")]),
    ("turbo", "stored", 1.8e6, []),
    ("one-file", "wall", 0.5, []),
    ("one-file", "down", 1e6, []),
    ("one-file", "stored", 16e3, []),
    ("tiny", "wall", 1.0, [("tiny", "umoci raw unpack")]),
    ("tiny", "stored", 300e3, []),
    ("tiny-on-e", "wall", 1.0, []),
    ("tiny-on-e", "stored", 300e3, []),
    ("chmod", "wall", ("inflate-chmod", "zlib"), [("inflate-chmod", "zlib")]),
    ("chmod", "stored", 1e6, []),
    ("all", "rss", 128 * 1024 * 1024, [("gzip-lz4", "umoci raw unpack"), ("gzip-lz4", "ctr image import")]),
]
FIGURES = {"wall": "s", "cpu": "s of processors", "stored": "bytes stored", "down": "bytes read", "rss": "MB of memory"}


def digits(value):
    """Three digits that mean something."""
    if value is None:
        return "-"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:.{max(0, 3 - max(whole, 1))}f}"


def number(figure, value):
    if value is None:
        return "-"
    if figure in ("wall", "cpu"):
        return f"{value:.2f}"
    return f"{value:,.0f}" if figure in ("stored", "down") else digits(value / MB)


def kilobytes(value):
    return "-" if value is None else f"{value / 1000:,.0f}" if value >= 100_000 else digits(value / 1000)


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


class Rows:
    def __init__(self, rows):
        self.rows = rows

    def values(self, what, who, figure):
        chosen = [row for row in self.rows if row["what"] == what and row["who"] == who]
        if what == "all":
            chosen = [row for row in self.rows if row["who"].startswith("headstart")]
        read = {"down": lambda row: row.get("moved", {}).get("down")}.get(figure, lambda row: row.get(figure))
        return [value for value in map(read, chosen) if value is not None]

    def median(self, what, who, figure):
        """The median of the runs; of the memory of all, the most."""
        values = self.values(what, who, figure)
        if not values:
            return None
        return max(values) if what == "all" else statistics.median(values)

    def measured(self):
        return dict.fromkeys((row["what"], row["who"]) for row in self.rows)


def line(row):
    """A row, for who watches."""
    more = f", {row['stored']:,} bytes stored" if "stored" in row else ""
    moved = f", {row['moved']['down']:,} bytes read, {row['moved']['up']:,} sent" if "moved" in row else ""
    return (f"{row['who']}, {WHATS[row['what']]}: {row['wall']:.2f} s, {row['cpu']:.2f} s of processors, "
            f"{row['rss'] / MB:.0f} MB{more}{moved}")


def targets(rows):
    """Each goal with what was measured: what, figure, ours, goal, whether it is met, peers."""
    for what, figure, goal, peers in TARGETS:
        ours = rows.median(what, "headstart", figure)
        if isinstance(goal, tuple):
            goal = rows.median(*goal, figure)
        met = None if ours is None or goal is None else ours <= goal
        others = [(who, rows.median(other, who, figure)) for other, who in peers]
        yield what, figure, ours, goal, met, [(who, value) for who, value in others if value is not None]


def targets_table(rows):
    lines = []
    for what, figure, ours, goal, met, peers in targets(rows):
        beside = "; ".join(f"{who} {number(figure, value)}" for who, value in peers)
        title = "any conversion here" if what == "all" else WHATS[what]
        verdict = {True: "yes", False: "**no**", None: "not measured"}[met]
        lines.append([f"{title}: {FIGURES[figure]}", number(figure, ours), number(figure, goal), verdict, beside])
    return table(["", "headstart", "goal, at most", "met", "beside"], lines)


def spread(values):
    if not values:
        return "-"
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def all_table(rows):
    """A table for each thing that was converted."""
    parts = []
    for what, title in WHATS.items():
        lines = []
        for _, who in (pair for pair in rows.measured() if pair[0] == what):
            median = lambda figure: rows.median(what, who, figure)
            lines.append([who, spread(rows.values(what, who, "wall")), spread(rows.values(what, who, "cpu")),
                          number("rss", median("rss")), *(kilobytes(median(figure)) for figure in ("stored", "down"))])
        if lines:
            parts.append(f"### {title[0].upper() + title[1:]}\n\n" + table(
                ["", "s", "s of processors", "peak memory, MB", "stored, kB", "read over the link, kB"], lines))
    return "\n".join(parts)


def checks_table(checks):
    lines = []
    for check in checks:
        verdict = {True: "yes", False: "**no**", None: check.get("complaint") or "-"}[check["ok"]]
        if check["check"] == "identity":
            ways = f"the same layers on {len(check['ways'])} ways: {'; '.join(check['ways'])}"
        else:
            ways = "`e2fsck -fn` finds nothing"
        lines.append([f"{check['what']}: {ways}", verdict])
    return table(["", "holds"], lines) if lines else "Not checked.\n"


def machine(options, corpus, load, busy, took):
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    kind, source = run("findmnt", "-n", "-o", "FSTYPE,SOURCE", "-T", options.dir).split()[:2]
    return {"processors": os.cpu_count(), "memory_gib": round(memory), "kernel": platform.release().split("-")[0],
            "file_system": kind, "device": source, "load_before": round(load, 2), "busy": busy, "took_s": round(took),
            "build": build_of(), "runs": options.runs, "rate": options.rate, "delay": options.delay,
            "entries": corpus.known["entries"], "bytes": corpus.known["bytes"], "e_digest": corpus.known["e_digest"],
            "versions": versions()}


def versions():
    """The versions of Debian's packages of the peers."""
    found = []
    for package in ("containerd", "umoci", "buildah", "e2fsprogs", "erofs-utils", "docker-registry"):
        said = run("sh", "-c", f"dpkg-query -W -f '${{Version}}' {package} 2>/dev/null || echo absent").strip()
        found.append(f"{package} {said}")
    return ", ".join(found)


def flowed(text):
    """Paragraphs with lines of one length, whatever was put into them."""
    parts = [part.strip() for part in text.split("\n\n") if part.strip()]
    return "\n\n".join(part if part.startswith(("|", "#", "* ")) else textwrap.fill(part, 118) for part in parts) + "\n"


def left_out(skipped, failed):
    lines = [f"* Not measured: {why}." for why in skipped] + [f"* Failed: {why}" for why in failed]
    return "\n".join(dict.fromkeys(lines))


def write(path, found, measured, checks, skipped, failed, note):
    rows = Rows(measured)
    missed = [f"{WHATS.get(what, 'memory')} ({FIGURES[figure]}: {number(figure, ours)} for {number(figure, goal)})"
              for what, figure, ours, goal, met, _ in targets(rows) if met is False]
    size = {name: digits(value / MB) if value else "-" for name, value in found["bytes"].items()}
    text = (pathlib.Path(__file__).parent / "page.md").read_text().format(
        date=datetime.date.today().isoformat(), **{key: value for key, value in found.items() if key != "bytes"},
        busy_percent=round(100 * found["busy"]), note=note, left_out=left_out(skipped, failed), size=size,
        packages=", ".join(PACKAGES), targets=targets_table(rows), all=all_table(rows), checks=checks_table(checks),
        missed="Missed: " + "; ".join(missed) + "." if missed else "All goals that were measured are met.")
    path.write_text(flowed(text))


def terminal(measured, checks, skipped, failed):
    """The page's tables without a page."""
    return "\n".join([targets_table(Rows(measured)), checks_table(checks), left_out(skipped, failed)])


def absent_headstart():
    """Why our own program cannot be measured; nothing where it can."""
    if not HEADSTART.exists():
        return f"{HEADSTART} is not there: `make bench-containers` builds it"
    return None
