"""Cold starts over links of several rates, beside a full pull over the same links."""

import argparse
import statistics

from contestants import Setting
from page import table

# A full pull, and what does without one: the others are measured over one link.
USUAL = ["overlayfs", "headstart lazy", "headstart planned"]


def measure(setting, apps, chosen, bench):
    """Each application, contestant and rate, some times each."""
    rows = []
    for app in apps:
        for one in chosen:
            bench.attempt(app, one, "published", lambda: one.publish(setting, app))
        for rate in bench.options.rates:
            link = argparse.Namespace(**{**vars(bench.options), "rate": rate, "warm_runs": 1})
            over = Setting(link, setting.work, setting.layout, setting.registry)
            for number in range(bench.options.runs):
                for one in chosen:
                    bench.attempt(app, one, f"{rate} MB/s, run {number}",
                                  lambda: rows.append(start(over, app, one, number, bench.say)))
    return rows


def start(setting, app, one, number, say):
    rate = setting.options.rate
    row = {"app": app.name, "who": one.name, "rate": rate, "run": number, **one.start(setting, app)}
    say(f"{app.name}, {one.name}, {rate} MB/s: {row['wall']:.2f} s from nothing, {row['down'] / 1e6:.1f} MB by then")
    return row


def rates_table(rows):
    """Seconds to the first answer by rate, with their share of a full pull's."""
    rates = sorted({row["rate"] for row in rows})

    def wall(app, who, rate):
        of = lambda row: (row["app"], row["who"], row["rate"]) == (app, who, rate)
        found = [row["wall"] for row in rows if of(row)]
        return statistics.median(found) if found else None

    def cell(app, who, rate):
        ours, pulled = wall(app, who, rate), wall(app, "overlayfs", rate)
        if ours is None:
            return "-"
        return f"{ours:.2f}" if who == "overlayfs" or not pulled else f"{ours:.2f} ({ours / pulled:.2f})"

    lines = [[f"{app}: {who}", *(cell(app, who, rate) for rate in rates)]
             for app, who in dict.fromkeys((row["app"], row["who"]) for row in rows)]
    return table(["", *(f"{rate} MB/s" for rate in rates)], lines)
