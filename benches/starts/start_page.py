"""The tables at the terminal and in docs/benchmarks-starts.md."""

import datetime
import json
import os
import pathlib
import platform
import statistics

from batch import batch_table
from counted import counted_table
from hosts import PEERS
from many import many_table
from page import MB, digits, flowed, left_out, table
from page_cache import pages_table
from rates import rates_table
from rig import build_of, run
from trees import trees_table
from warm import warm_table

# Parts with a run of their own, and their tables.
MORE = {"many": many_table, "rates": rates_table, "trees": trees_table, "bytes": counted_table, "warm": warm_table}
# A plan may wait so much longer than the larger of a warm start and of the link's time for what is read, ...
SLACK = 1.2
# ... which has so many round trips.
ROUND_TRIPS = 5


def line(row):
    """A row, for who watches."""
    return (f"{row['app']}, {row['who']}: {row['wall']:.2f} s from nothing ({row['pull']:.2f} s of them to pull), "
            f"{row['down'] / MB:.1f} MB by then; again {row['warm']:.3f} s")


def median(rows, app, who, figure):
    values = [row[figure] for row in rows if row["app"] == app and row["who"] == who]
    return statistics.median(values) if values else None


def bound(rows, app, who, lazy, machine):
    """The longest time that the goal gives to a start by a plan, in seconds."""
    warm, down = median(rows, app, who, "warm"), median(rows, app, lazy, "down")
    if warm is None or down is None:
        return None
    return SLACK * max(warm, down / machine["rate"] / MB + ROUND_TRIPS * machine["delay"] / 1000)


def seconds(value):
    return "-" if value is None else f"{value:.2f}"


def starts_table(found):
    rows, machine = found["starts"], found["machine"]
    lines = []
    for app, who in dict.fromkeys((row["app"], row["who"]) for row in rows):
        of = lambda figure: median(rows, app, who, figure)
        lines.append([f"{app}: {who}", seconds(of("wall")), seconds(of("pull")), digits(of("down") / MB),
                      f"{of('warm'):.3f}"])
    return table(["", "s to the first answer", "s of them to pull", "MB by then", "s again, warm"], lines)


def goals_table(found):
    rows, machine, lines = found["starts"], found["machine"], []
    for app, who in dict.fromkeys((row["app"], row["who"]) for row in rows):
        if "planned" not in who:
            continue
        lazy = "headstart lazy"
        ours, goal = median(rows, app, who, "wall"), bound(rows, app, who, lazy, machine)
        pulled = median(rows, app, "overlayfs", "wall")
        met = "not measured" if goal is None else "yes" if ours <= goal else "**no**"
        share = "-" if not pulled else f"{ours / pulled:.2f}"
        lines.append([f"{app}: {who}", seconds(ours), seconds(goal), met, seconds(median(rows, app, lazy, "wall")),
                      seconds(pulled), share])
    return table(["", "s", "goal, at most", "met", "lazily", "pulled whole", "share of that"], lines)


def machine(options, images, load, busy, took):
    there = (PEERS / "containerd").exists()
    versions = run(PEERS / "containerd", "--version").split()[2].partition("+")[0] if there else "absent"
    return {"date": datetime.date.today().isoformat(), "processors": os.cpu_count(),
            "kernel": platform.release().split("-")[0], "load_before": round(load, 2), "busy": busy,
            "took_s": round(took), "build": build_of(), "runs": options.runs, "rate": options.rate,
            "warm_runs": options.warm_runs, "delay": options.delay, "images": images, "containerd": versions}


def images_text(images):
    return "; ".join(f"{name} {digits(known['gzip'] / MB)} MB as gzip, {digits(known['plain'] / MB)} MB unpacked"
                     for name, known in images.items())


def merged(path, found, part):
    """The figures of one part, with those of the other parts from the file, which has all of them then."""
    before = json.loads(path.read_text()) if path.exists() else {}
    if part != "starts":
        # These are about the starts.
        found = {key: value for key, value in found.items() if key not in ("skipped", "failed", "note")} | {
            f"{part}_note": found["note"]}
        # Rows of the same kind are replaced.
        kind = {"batch": ("who", "count"), "pages": ("part", "codec", "way"), "many": ("kind", "images"),
                "rates": ("app", "who", "rate", "run"), "trees": ("who",), "bytes": ("app", "who", "kind"),
                "warm": ("what",)}[part]
        key = lambda row: tuple(row[name] for name in kind)
        new = {key(row) for row in found[part]}
        found[part] = [row for row in before.get(part, []) if key(row) not in new] + found[part]
        nothing = {"machine": found[f"{part}_machine"], "starts": [], "skipped": [], "failed": []}
        found = {**nothing, **before, **found}
    found = {**before, **found}
    path.write_text(json.dumps(found, indent=1) + "\n")
    return found


def about(found, part):
    """The run that a part is from."""
    made, note = found.get(f"{part}_machine"), found.get(f"{part}_note", "")
    if not made:
        return note
    return (f"From a run of its own on {made['date']}: build {made['build']}, load before {made['load_before']}, "
            f"processors {round(100 * made['busy'])}% busy. {note}")


def write(path, found):
    made = found["machine"]
    batch, pages = found.get("batch"), found.get("pages")
    text = (pathlib.Path(__file__).parent / "start_page.md").read_text().format(
        **{"date": datetime.date.today().isoformat(), **made, "images": images_text(made["images"])},
        busy_percent=round(100 * made["busy"]), note=found.get("note", ""),
        left_out=left_out(found["skipped"], found["failed"]), goals=goals_table(found), starts=starts_table(found),
        batch=batch_table(batch) if batch else "Not measured.", about_batch=about(found, "batch"),
        pages=pages_table(pages) if pages else "Not measured.", about_pages=about(found, "pages"),
        **{part: made(found[part]) if found.get(part) else "Not measured." for part, made in MORE.items()},
        **{f"about_{part}": about(found, part) for part in MORE})
    path.write_text(flowed(text))


def terminal(found):
    tables = [goals_table(found), starts_table(found)] if "starts" in found else []
    tables += [batch_table(found["batch"])] if "batch" in found else []
    tables += [pages_table(found["pages"])] if "pages" in found else []
    tables += [made(found[part]) for part, made in MORE.items() if part in found]
    return "\n".join([*tables, left_out(found["skipped"], found["failed"])])
