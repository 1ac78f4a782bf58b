"""docs/benchmarks-swarm.md, and the same as JSON."""

import datetime
import json
import os
import pathlib
import platform
import statistics

import figures
from checks import Table, all_checks
from contestants import TITLES, TREE_ARITY
from image import TIMES
from patterns import BOOT, SHIFT

PATTERNS = {"sync-same": "Sync-Same", "shifted-same": "Shifted-Same", "sync-disjoint": "Sync-Disjoint",
            "boot-disjoint": "Boot, then disjoint"}


def number(value, digits=1):
    return "-" if value is None else f"{value:.{digits}f}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def by_contestant(found, head, cells):
    """A table for each pattern, with a row for each contestant that was measured there."""
    for pattern, title in PATTERNS.items():
        rows = [[name] + cells(lambda figure: found.median(pattern, contestant, figure))
                for contestant, name in TITLES.items() if found.get(pattern, contestant)]
        if rows:
            yield f"### {title}\n\n" + table(["", *head], rows)


def times(found):
    head = ["completion, s", "x region/uplink", "a host's own time: mean, s", "slowest, s",
            "throughput: slowest, MB/s", "fastest, MB/s", "longest read, s"]

    def cells(median):
        return [number(median(figures.completion)),
                number(median(figures.times_least), 2),
                number(median(figures.mean)), number(median(figures.slowest)),
                number(median(lambda row: min(figures.speeds(row))), 2),
                number(median(lambda row: max(figures.speeds(row))), 2),
                number(median(lambda row: max(one["slowest_read"] for one in row["each"])), 2)]

    return by_contestant(found, head, cells)


def moved(found):
    head = ["store, MB", "store, all hosts / region", "store, to open, MB", "peers, on demand, MB",
            "peers, read ahead by disks, MB", "peers, prefetched, MB", "of it never read, MB"]

    def cells(median):
        exchanged = []
        for what in ("on_demand", "ahead", "prefetched", "unread"):
            value = median(lambda row: figures.exchanged(row, what) or 0.0)
            exchanged.append(number(value and value / figures.MB) if value else "-")
        hosts = lambda row: len(row["each"]) * figures.MB
        return [number(median(lambda row: figures.from_store(row) / hosts(row))),
                number(median(figures.store_share), 2),
                number(median(lambda row: row["opening"]["store"] / hosts(row)), 2), *exchanged]

    return by_contestant(found, head, cells)


def budget(found):
    """Processor seconds for each GB that all hosts read, as stored."""
    rows = []
    for contestant, name in TITLES.items():
        measured = found.get("sync-same", contestant)
        if measured:
            per_byte = [row["worked"] / (row["region"] * len(row["each"]) / 1e9) for row in measured]
            rows.append([name, number(statistics.median(per_byte), 2),
                         number(100 * statistics.median(row["busy"] for row in measured), 0)])
    return (f"All hosts share {os.cpu_count()} processors. In Sync-Same, for each GB (as stored) that hosts read:\n\n"
            + table(["", "processor seconds", "processors busy, %"], rows))


def write(options, results, docs):
    setting = lambda row: (row["hosts"], row["region"], row["uplink"], row["rate"])
    wanted = (options.hosts, options.region, options.uplink, options.rate)
    rows = [row for row in results.latest() if setting(row) == wanted]
    found, checks = Table(rows), all_checks(rows)
    least = options.region / options.uplink / 1e6
    listed = [[("met: " if check.met else "**missed**: ") + check.goal, number(check.value, 2),
               ("at least " if check.least else "at most ") + number(check.limit, 2), check.note] for check in checks]
    links = rows[-1]["links"]
    builds = sorted({row["build"] for row in rows})
    text = pathlib.Path(__file__).with_name("page.md").read_text().format(
        date=datetime.date.today().isoformat(), machine=f"{os.cpu_count()} processors", kernel=platform.release(),
        build="build " + ", ".join(builds), hosts=options.hosts, rate=number(options.rate, 0),
        uplink=number(options.uplink, 0),
        links=" and ".join(number(links[kind]) for kind in ("rate", "uplink")),
        times=TIMES, region=number(options.region / 1e6), least=number(least, 2), shift=number(SHIFT * least, 2),
        boot=f"{BOOT:.0%}", arity=TREE_ARITY, note=options.note, budget=budget(found),
        checks=table(["", "measured", "limit", ""], listed), times_tables="\n".join(times(found)),
        bytes_tables="\n".join(moved(found)))
    (docs / "benchmarks-swarm.md").write_text(text.replace("\n\n\n", "\n\n").rstrip() + "\n")
    (docs / "benchmarks-swarm.json").write_text(json.dumps(
        {"checks": [vars(check) | {"met": check.met} for check in checks], "measurements": rows}, indent=1) + "\n")
    return f"{sum(check.met for check in checks)} of {len(checks)} checks are met"
