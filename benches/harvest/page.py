"""docs/benchmarks-harvest.md, and the same as JSON in target/bench."""

import datetime
import json
import os
import pathlib
import platform
import statistics
import textwrap

import loads
from rig import FIGURES, ROOT, build_of, run

TITLES = {"headstart": "headstart harvest, a regular vSSD", "nbdkit": "nbdkit file", "qemu-nbd": "qemu-nbd"}
TIMES = {
    "offered": "a regular vSSD's flash is offered, until it is erased and can be had",
    "requested": "a request for it, until the disk is larger",
    "released": "given back full of data, until it is erased and can be had by the next",
    "moved": "an unsold channel that is lent and full is sold; what is on it moves to other spare flash",
    "lost": "the same, where there is no other: what is on it is lost",
}


def number(value, digits=3):
    """A few digits that mean something."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:.{max(0, digits - max(whole, 1))}f}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def spread(values, scale=1.0):
    """The median, and in brackets the least and the most."""
    values = [value * scale for value in values if value is not None]
    if not values:
        return "not measured"
    low, high = min(values), max(values)
    return f"{number(statistics.median(values))} ({number(low)}-{number(high)})"


class Rows:
    def __init__(self, rows):
        self.rows = rows

    def of(self, figure, **wanted):
        """A figure of all rows that have these words."""
        fits = lambda row: all(row.get(key) == value for key, value in wanted.items())
        return [figure(row) for row in self.rows if fits(row)]

    def words(self, part, key):
        return list(dict.fromkeys(row[key] for row in self.rows if row["part"] == part))


def speed(row):
    """MB/s of large requests, thousands a second of small ones."""
    return row["bytes"] / 1e6 if row["load"] in ("write", "read") else row["iops"] / 1e3


def unit(load):
    return "MB/s" if load in ("write", "read") else "1000/s"


def line(row):
    """A row, for who watches."""
    if row["part"] == "times":
        return f"{row['what']}: {row['seconds']:.3f} s, {row['bytes'] / 1e6:.0f} MB"
    who = row.get("who") or f"channels' rate {row['rate']}, beside {row['beside']}"
    return (f"{who}, {loads.title(row['load'])}: {speed(row):.4g} {unit(row['load'])}, P50 {row['p50']:.0f} us, "
            f"P99 {row['p99']:.0f} us")


def peers(rows):
    names = rows.words("peers", "who")
    lines = []
    for load in rows.words("peers", "load"):
        values = {name: rows.of(speed, part="peers", who=name, load=load) for name in names}
        ours = values.get("headstart")
        ratios = [number(statistics.median(ours) / statistics.median(values[name])) if ours and values[name] else "-"
                  for name in names if name != "headstart"]
        lines.append([f"{loads.title(load)}, {unit(load)}", *(spread(values[name]) for name in names), *ratios])
    if not lines:
        return "Not measured.\n"
    heads = [TITLES[name] for name in names] + [f"ours / {name}" for name in names if name != "headstart"]
    return table(["", *heads], lines)


def percentiles(rows):
    names, lines = rows.words("peers", "who"), []
    for load in rows.words("peers", "load"):
        if load in ("write", "read"):
            continue
        cells = [" / ".join(number(statistics.median(rows.of(lambda row: row[p], part="peers", who=name, load=load)))
                            for p in ("p50", "p95", "p99")) for name in names]
        what = "the flush of: " if load == "flush" else ""
        lines.append([what + loads.title(load), *cells])
    return table(["P50 / P95 / P99, microseconds", *(TITLES[name] for name in names)], lines) if lines else ""


BESIDE = {"nothing": "alone", "write": "beside 1 MiB writes", "read": "beside 1 MiB reads"}


def neighbours(rows):
    lines = []
    for rate in rows.words("neighbours", "rate"):
        alone = rows.of(speed, part="neighbours", rate=rate, beside="nothing")
        for beside in BESIDE:
            wanted = {"part": "neighbours", "rate": rate, "beside": beside}
            found = rows.of(speed, **wanted)
            if not found:
                continue
            loss = 1 - statistics.median(found) / statistics.median(alone) if alone else None
            others = [row["bytes"] / 1e6 for row in rows.of(lambda row: row["other"], **wanted) if row]
            lines.append([f"{'no rate' if rate == 'none' else rate + ' a channel'}, {BESIDE[beside]}", spread(found),
                          "-" if beside == "nothing" or loss is None else f"{100 * loss:.1f}%",
                          *(spread(rows.of(lambda row: row[p], **wanted)) for p in ("p50", "p95", "p99")),
                          spread(others) if others else "-"])
    if not lines:
        return "Not measured.\n"
    return table(["", "regular VM, 1000/s", "it loses", "P50, us", "P95, us", "P99, us",
                  "harvest VM, MB/s"], lines)


def borrowed(rows):
    names, lines = rows.words("borrowed", "who"), []
    for load in rows.words("borrowed", "load"):
        values = {name: rows.of(speed, part="borrowed", who=name, load=load) for name in names}
        median = lambda name: statistics.median(values[name]) if values.get(name) else None
        ours = median("4 own, 2 borrowed")
        ratios = [number(ours / median(name)) if ours and median(name) else "-" for name in ("6 own", "4 own")]
        lines.append([f"{loads.title(load)}, {unit(load)}", *(spread(values[name]) for name in names), *ratios])
    if not lines:
        return "Not measured.\n"
    return table(["", *names, "borrowed / 6 own", "borrowed / 4 own"], lines)


def times(rows):
    lines = []
    for what, words in TIMES.items():
        wanted = {"part": "times", "what": what}
        found = rows.of(lambda row: row["seconds"], **wanted)
        if found:
            size = statistics.median(rows.of(lambda row: row["bytes"], **wanted))
            lines.append([words, number(size / 1e6), spread(found, 1e3)])
    return table(["", "MB", "milliseconds"], lines) if lines else "Not measured.\n"


def machine(options, load, busy, took):
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    kind, source = run("findmnt", "-n", "-o", "FSTYPE,SOURCE", "-T", options.dir).split()[:2]
    return {"processors": os.cpu_count(), "memory_gib": round(memory), "kernel": platform.release().split("-")[0],
            "file_system": kind, "device": source, "load_before": round(load, 2), "busy": busy,
            "took_s": round(took), "build": build_of(), "rounds": options.rounds, "seconds": options.seconds,
            "versions": ", ".join(version(tool) for tool in ("fio", "nbdkit", "qemu-nbd"))}


def version(tool):
    try:
        return run(tool, "--version").splitlines()[0].split(" (")[0]
    except OSError:
        return f"no {tool}"


def flowed(text):
    """Paragraphs with lines of one length, whatever was put into them."""
    parts = [part.strip() for part in text.split("\n\n") if part.strip()]
    return "\n\n".join(part if part[0] in "|#*" else textwrap.fill(part, 118) for part in parts) + "\n"


def write(options, found, measured, absent, failed):
    rows = Rows(measured)
    missing = [f"* Not measured: {tool} is not there." for tool in absent] + [f"* Failed: {why}" for why in failed]
    text = (pathlib.Path(__file__).parent / "page.md").read_text().format(
        date=datetime.date.today().isoformat(), **found, busy_percent=round(100 * found["busy"]),
        region=loads.REGION >> 20, note=options.note, missing="\n".join(missing), peers=peers(rows),
        percentiles=percentiles(rows), neighbours=neighbours(rows), borrowed=borrowed(rows), times=times(rows),
        rate=options.rate)
    (options.docs / "benchmarks-harvest.md").write_text(flowed(text))
    FIGURES.mkdir(parents=True, exist_ok=True)
    (FIGURES / "harvest.json").write_text(
        json.dumps({"machine": found, "measurements": measured}, indent=1) + "\n")
    return f"{len(measured)} measurements in {found['took_s']} s: {options.docs / 'benchmarks-harvest.md'}"
