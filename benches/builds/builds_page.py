"""The tables at the terminal and in docs/benchmarks-builds.md."""

import datetime
import os
import pathlib
import platform
import statistics

from page import MB, digits, flowed, left_out, table
from rig import build_of

# The share of the time of overlayfs that a build may take, ...
SHARE = 0.6
# ... and the seconds of the commit of the large step.
COMMIT_S = 1.0


def line(row):
    """A row, for who watches."""
    return (f"{row['part']}: {row['who']}: steps {row['steps']:.2f} s, commits {row['commits']:.2f} s, "
            f"{row['stored'] / MB:.0f} MB stored")


def median(found, part, who, figure):
    return statistics.median(row[figure] for row in found["builds"] if row["part"] == part and row["who"] == who)


def contestants(found, part):
    return list(dict.fromkeys(row["who"] for row in found["builds"] if row["part"] == part))


def spread(found, part, who, figure):
    values = [row[figure] for row in found["builds"] if row["part"] == part and row["who"] == who]
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def measured_table(found, part):
    lines = [[who, spread(found, part, who, "wall"), spread(found, part, who, "steps"),
              spread(found, part, who, "commits"), digits(median(found, part, who, "stored") / MB)]
             for who in contestants(found, part)]
    return table(["", "s", "s of them steps", "s of them commits", "MB stored"], lines)


def goals_table(found):
    lines = []
    peers = [who for who in contestants(found, "build") if who.startswith("overlayfs")]
    best = min(peers, key=lambda who: median(found, "build", who, "wall"), default=None)
    for who in contestants(found, "build"):
        if best and "sealed" in who:
            share = median(found, "build", who, "wall") / median(found, "build", best, "wall")
            lines.append([f"build: {who}: share of {best}", f"{share:.2f}", f"{SHARE}",
                          "yes" if share <= SHARE else "**no**"])
    for who in contestants(found, "commit"):
        if "sealed" in who:
            took = median(found, "commit", who, "commits")
            lines.append([f"commit of 500 MB: {who}: s", f"{took:.2f}", f"{COMMIT_S}",
                          "yes" if took <= COMMIT_S else "**no**"])
    return table(["", "measured", "goal, at most", "met"], lines)


def machine(options, files, load, busy, took):
    return {"processors": os.cpu_count(), "kernel": platform.release().split("-")[0], "load_before": round(load, 2),
            "busy": busy, "took_s": round(took), "build": build_of(), "runs": options.runs, "files": files[0],
            "megabytes": round(files[1] / MB)}


def write(path, found, note):
    made = found["machine"]
    text = (pathlib.Path(__file__).parent / "builds_page.md").read_text().format(
        date=datetime.date.today().isoformat(), **made, busy_percent=round(100 * made["busy"]), note=note,
        left_out=left_out(found["skipped"], found["failed"]), goals=goals_table(found),
        builds=measured_table(found, "build"), commits=measured_table(found, "commit"))
    path.write_text(flowed(text))


def terminal(found):
    parts = [measured_table(found, part) for part in ("build", "commit") if contestants(found, part)]
    return "\n".join([goals_table(found), *parts, left_out(found["skipped"], found["failed"])])
