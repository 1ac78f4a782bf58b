"""docs/benchmarks-swarm.md, and the same as JSON in target/bench."""

import datetime
import json
import os
import pathlib
import platform
import statistics

import faults
import figures
import simulated
from checks import OURS, Table, all_checks, faulty
from contestants import COPIES, ROOTS, TITLES, TREE_ARITY
from image import TIMES
from patterns import BOOT, IDLE, SHIFT
from rig import FIGURES

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
        for what in figures.EXCHANGED:
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


def broken(found):
    """What went wrong, and what came of it."""
    rows = []
    for row in faulty(found.rows):
        pattern, fault = row["pattern"].split(":")
        lazy = found.median(pattern, "independent", figures.completion)
        well = found.median(pattern, row["contestant"], figures.completion)
        wrong = sum(bool(one["error"]) for one in row["each"])
        rows.append([faults.TITLES[fault], TITLES[row["contestant"]], number(figures.completion(row)), number(well),
                     number(lazy), number(figures.longest_read(row), 2), number(figures.store_share(row), 2),
                     str(figures.dropped(row)), str(wrong)])
    if not rows:
        return "None was measured.\n"
    return table(["", "contestant", "completion, s", "without the fault, s", "independent, s", "longest read, s",
                  "store, all hosts / region", "hosts dropped, by all", "hosts whose reading failed"], rows)


def beside(compared):
    rows = [[f"{PATTERNS[one.pattern]}, {TITLES[one.contestant]}", one.figure, number(one.measured),
             number(one.simulated), "-" if one.deviation is None else f"{one.deviation:+.0%}"] for one in compared]
    return table(["", "figure", "measured", "simulated", "deviation"], rows) if rows else "None was measured.\n"


def processors(found):
    """How the simulation knows what they take."""
    costs = simulated.costs(found)
    if not costs:
        return "What processors take (all hosts here share those of one machine) is left out."
    return (f"All hosts here share the processors of one machine, which hold back a swarm that nothing else does: so "
            f"what hosts exchange goes through a *fabric* (`--fabric`) of {costs.together:.0f} MB/s, which is what "
            f"{os.cpu_count()} processors carry at {costs.exchanged:.2f} seconds for a GB that agents exchange and "
            f"{costs.read:.2f} for a GB that disks bring and that is read. The first is the difference between "
            "everything and little prefetched in Sync-Disjoint, the second what all but the agents took in Sync-Same, "
            "where processors hold back no host: what is compared here is a prediction.")


def overhead(found):
    """Of agents and disks, where there is nothing to share."""
    rows = []
    for pattern, name in (("idle", f"all have the disk, no host reads, for {IDLE} s"),
                          ("alone", "one host reads the region, no other has the disk")):
        for contestant in ("independent", OURS):
            measured = found.get(pattern, contestant)
            if measured:
                median = lambda figure: found.median(pattern, contestant, figure)
                bytes_each = median(lambda row: max(one["up"] + one["down"] for one in row["each"][1:]) / 1e3)
                rows.append([name, TITLES[contestant], number(median(figures.completion)),
                             number(median(lambda row: figures.worked(row, 0)), 2),
                             number(100 * median(figures.most_worked), 2), number(bytes_each, 0),
                             number(100 * median(figures.most_moved), 3)])
    if not rows:
        return "Not measured.\n"
    return table(["", "", "it took, s", "processor seconds, first host", "busiest host, % of a processor",
                  "most kB of any other host, both ways", "busiest link, %"], rows)


def write(options, image, results, docs):
    setting = lambda row: (row["hosts"], row["region"], row["uplink"], row["rate"])
    wanted = (options.hosts, options.region, options.uplink, options.rate)
    rows = [row for row in results.latest() if setting(row) == wanted]
    found = Table(rows)
    compared = list(simulated.all_beside(found, options.hosts, image))
    checks = all_checks(rows, compared)
    least = options.region / options.uplink / 1e6
    listed = [[("met: " if check.met else "**missed**: ") + check.goal, number(check.value, 2),
               ("at least " if check.least else "at most ") + number(check.limit, 2), check.note] for check in checks]
    link = lambda name: statistics.median(row["links"][name] for row in rows)
    builds = sorted({row["build"] for row in rows})
    text = pathlib.Path(__file__).with_name("page.md").read_text().format(
        date=datetime.date.today().isoformat(), machine=f"{os.cpu_count()} processors",
        kernel=platform.release().split("-")[0],
        build="build " + ", ".join(builds), hosts=options.hosts, rate=number(options.rate, 0),
        uplink=number(options.uplink, 0),
        links=" and ".join(number(link(kind)) for kind in ("rate", "uplink")),
        trips=" and ".join(number(link(kind) * 1e3, 2) for kind in ("round_trip", "store_round_trip")),
        times=TIMES, region=number(options.region / 1e6), least=number(least, 2),
        shift=number(SHIFT * image.as_stored(image.size / 4) / link("uplink") / 1e6, 2),
        boot=f"{BOOT:.0%}", arity=TREE_ARITY, copies=COPIES, roots=ROOTS, note=options.note, budget=budget(found),
        checks=table(["", "measured", "limit", ""], listed), times_tables="\n".join(times(found)),
        bytes_tables="\n".join(moved(found)), faults=broken(found), beside=beside(compared),
        processors=processors(found), overhead=overhead(found))
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    (docs / "benchmarks-swarm.md").write_text(text.rstrip() + "\n")
    FIGURES.mkdir(parents=True, exist_ok=True)
    (FIGURES / "swarm.json").write_text(json.dumps(
        {"checks": [vars(check) | {"met": check.met} for check in checks],
         "simulated": [vars(one) | {"deviation": one.deviation} for one in compared],
         "measurements": [figures.record(row) for row in rows]}, indent=1) + "\n")
    return f"{sum(check.met for check in checks)} of {len(checks)} checks are met"
