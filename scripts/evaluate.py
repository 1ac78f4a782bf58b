#!/usr/bin/env python3
"""Writes the tables of docs/evaluation.md for a data set of the FAST'26 layout.

    scripts/evaluate.py DIR [LABELS]

Of each image's boots, in the order of their creation, two at a time are replayed and the others learned from, until
each was replayed once. LABELS is a table with the columns volume_id and kind: then only boots of the kind `normal` are
replayed. Nothing that trains sees it. Needs target/release/headstart-lab.
"""

import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile

LAB = pathlib.Path(__file__).parent.parent / "target/release/headstart-lab"
BANDWIDTHS = [2, 4, 6, 8, 10, 30, 50, 70, 90, 150]
TABLE = "VD_creation_meta.csv"


def rows_of(source):
    with open(source / TABLE, newline="") as table:
        return sorted(csv.DictReader(table), key=lambda row: (row["gmt_create"], row["volume_id"]))


def data_set(source, target, rows):
    """A data set of some of the boots of another."""
    os.makedirs(target)
    with open(target / TABLE, "w", newline="") as table:
        writer = csv.DictWriter(table, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        gib = -(-int(row["device_size"]) // 2**30)
        trace = pathlib.Path("trace", "it" + row["image_type"], row["image_id"], f"{gib}GB", row["volume_id"] + ".npy")
        os.makedirs((target / trace).parent, exist_ok=True)
        os.symlink((source / trace).resolve(), target / trace)


def turns(source, work, normal):
    """Makes the pairs of data sets to learn from and to replay."""
    images = {}
    for row in rows_of(source):
        images.setdefault(row["image_id"], []).append(row)
    pairs = []
    for turn in range(max(len(boots) + 1 for boots in images.values()) // 2):
        train, test = [], []
        for boots in images.values():
            for at, row in enumerate(boots):
                replayed = at // 2 == turn
                (test if replayed else train).append(row)
        test = [row for row in test if normal is None or row["volume_id"] in normal]
        if test:
            data_set(source, work / f"train{turn}", train)
            data_set(source, work / f"test{turn}", test)
            pairs.append((work / f"train{turn}", work / f"test{turn}"))
    return pairs


def simulate(pairs, options, figures):
    """Means over all boots: {(group, bandwidth, policy): {figure: mean}}."""
    sums = {}
    for train, test in pairs:
        command = [LAB, "simulate", "disk", "--traces", test, "--train", train, "--json", *options]
        report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        for row in report["rows"]:
            policy = row["policy"] + (f" without {row['without']}" if row.get("without") else "")
            boots, place = row["boots"], (row.get("group"), row["bandwidth"], policy)
            known = sums.setdefault(place, {"boots": 0})
            known["boots"] += boots
            for figure in figures:
                if row.get(figure) is not None:
                    known[figure] = known.get(figure, 0.0) + row[figure] * boots
    mean = lambda known: {figure: known[figure] / known["boots"] for figure in figures if figure in known}
    return {place: mean(known) | {"boots": known["boots"]} for place, known in sums.items()}


def print_table(head, lines):
    print("| " + " | ".join(head) + " |")
    print("|---" * len(head) + "|")
    for line in lines:
        print("| " + " | ".join(line) + " |")
    print(flush=True)


def by_bandwidth(title, pairs, options, figure, digits, bandwidths):
    means = simulate(pairs, [*options, "--bandwidth", ",".join(map(str, bandwidths))], [figure])
    policies = list(dict.fromkeys(policy for _, _, policy in means))
    boots = next(iter(means.values()))["boots"]
    print(f"{title}, {boots} boots:\n")
    values = {p: [means[None, b, p][figure] for b in bandwidths] for p in policies}
    line = lambda policy, all: [policy, *(f"{value:.{digits}f}" for value in all)]
    lines = [line(p, [*values[p], sum(values[p]) / len(bandwidths)]) for p in policies]
    print_table(["MB/s", *map(str, bandwidths), "mean"], lines)


def ranges(pairs, speed):
    """Hot ranges beside whole blocks at 5 MB/s: shares of waits and bytes, means over images."""
    figures = ["wait_total", "bytes_before_last_read"]
    options = ["--model", "real", "--bandwidth", "5", "--by", "image", "--policies", "lazy,search", "--faster", speed]
    hot = simulate(pairs, options, figures)
    whole = simulate(pairs, [*options, "--preloads", "blocks", "--misses", "blocks"], figures)
    lines = []
    for policy in ["search", "lazy"]:
        shares = {}
        for (image, _, name), value in hot.items():
            for figure in figures if name == policy else []:
                # Where nothing waits there is nothing to gain.
                if of := whole[image, 5, policy][figure]:
                    shares.setdefault(figure, []).append(value[figure] / of)
        mean = [f"{sum(shares[figure]) / len(shares[figure]):.3f}" for figure in figures]
        lines.append([policy, *mean])
    print(f"Hot ranges, misses by ranges, as shares of whole blocks; guests at {speed} times the recorded speed:\n")
    print_table(["policy", "total wait", "bytes before the last read"], lines)


def main():
    source = pathlib.Path(sys.argv[1])
    normal = None
    if len(sys.argv) > 2:
        with open(sys.argv[2], newline="") as table:
            normal = {row["volume_id"] for row in csv.DictReader(table) if row["kind"] == "normal"}
    with tempfile.TemporaryDirectory() as work:
        pairs = turns(source, pathlib.Path(work), normal)
        for speed in ["1", "5"]:
            title = f"Guests at {speed} times the recorded speed"
            by_bandwidth(f"Hit rate. {title}", pairs, ["--faster", speed], "hit_rate", 3, BANDWIDTHS)
            real = ["--model", "real", "--faster", speed]
            by_bandwidth(f"Total wait in seconds. {title}", pairs, real, "wait_total", 2, BANDWIDTHS)
            ranges(pairs, speed)
        hidden = ["--hide-own", "--policies", "thinkahead,search,history"]
        few = BANDWIDTHS[:6]
        by_bandwidth("Hit rate, zero-shot", pairs, hidden, "hit_rate", 3, few)
        by_bandwidth("Total wait in seconds, zero-shot", pairs, [*hidden, "--model", "real"], "wait_total", 2, few)
        parts = ["--policies", "thinkahead", "--without", "preprocessing,switching,zero-shot,selection"]
        by_bandwidth("Hit rate, parts left out", pairs, parts, "hit_rate", 3, few)


main()
