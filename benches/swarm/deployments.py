"""Simulated deployments of recorded boots, one table for all images (Python 3, standard library).

    python3 benches/swarm/deployments.py --lab target/release/headstart-lab --traces TRACES

Each image of the data set is deployed on so many hosts at once, over each of some kinds of links, in each of the ways
in which a disk can get what it reads: lazily; by hints of an image that nobody has seen, and of one that was deployed
once before; by a plan; by a swarm; and by a swarm with hints or a plan. What is told is how long the reads of a disk
waited in all, and how much less that is than lazily.

And at 25 Mbit/s: how long a disk takes from its creation to its last read on an agent with nothing, whose root has the
image; with a root that sends ahead what it was asked for in a deployment before; the same where strays were among
that; and on an agent that has the image.
"""

import argparse
import concurrent.futures
import csv
import json
import pathlib
import subprocess
import sys

# The Euro-Par paper's: an image striped over the disks of 120 hosts on Gigabit Ethernet, 55 MB/s each, which seek.
# Hosts of 1 Gbit/s before a store of 10 Gbit/s, near and far; and slow ones, far from a store that is none the slower.
LINKS = {
    "120 disks, 1 Gbit/s hosts": "--uplink 6600MB/s --host-link 117500kB/s --round-trip 100us "
    "--store-round-trip 100us --store-latency 20ms",
    "store of 10 Gbit/s, 5 ms": "--uplink 1250MB/s --host-link 125MB/s --store-round-trip 5ms",
    "store of 1 Gbit/s, 5 ms": "--uplink 125MB/s --host-link 125MB/s --store-round-trip 5ms",
    "hosts of 30 MB/s, 20 ms": "--uplink 3600MB/s --host-link 30MB/s --store-round-trip 20ms",
}

# Everything at 25 Mbit/s, in another region; images compressed as ours are, and guests that read at once.
PUSH = (
    "--uplink 3125kB/s --host-link 3125kB/s --round-trip 40ms --store-round-trip 40ms --ratio 2.2 --grace 0s "
    "--topology roots --roots 1 --roots-apart --warm roots --hosts 2"
)

WAYS = {
    "lazy": "independent",
    "hints, first": "independent-hints",
    "hints, second": "independent-known",
    "plan": "independent-plan",
    "swarm": "swarm",
    "swarm, hints, first": "swarm-hints",
    "swarm, hints, second": "swarm-known",
    "swarm, plan": "swarm-plan",
}


def simulate(arguments, words):
    """The rows of a simulation by the way's name."""
    command = [arguments.lab, "simulate", "fleet", "--json", "--patterns", "boots"]
    command += ["--traces", arguments.traces, "--faster", str(arguments.faster), "--seed", str(arguments.seed)]
    done = subprocess.run(command + words, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout:
        sys.exit(f"{' '.join(command + words)}: {done.stderr}")
    return {row["way"]: row for row in json.loads(done.stdout)["rows"]}


def deployed(arguments, image, links):
    words = ["--hosts", str(arguments.hosts), "--jitter", arguments.jitter, "--boots-of", image, "--hints"]
    words += ["--plan", "recorded", "--ways", "independent,swarm", *LINKS[links].split()]
    return simulate(arguments, words)


def pushed(arguments, images):
    words = ["--disks", str(len(images)), "--boots-of", ",".join(images), "--ways", "local,swarm"]
    words += ["--push", str(arguments.push), "--strays", "10%", *PUSH.split()]
    return simulate(arguments, words)


def less(row, than, figure):
    return f"{row[figure]:.1f} ({1 - row[figure] / max(than[figure], 1e-9):.0%})"


def table(head, rows):
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lab", default="headstart-lab")
    parser.add_argument("--traces", required=True)
    parser.add_argument("--images", help="separated by commas [default: all]")
    parser.add_argument("--hosts", type=int, default=120)
    parser.add_argument("--jitter", default="1s")
    parser.add_argument("--faster", type=int, default=1)
    parser.add_argument("--push", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--links", help="of them, those whose name has this in it")
    parser.add_argument("--only", choices=["deployments", "push"])
    arguments = parser.parse_args()
    with open(pathlib.Path(arguments.traces) / "VD_creation_meta.csv", encoding="utf-8") as rows:
        images = sorted({row["image_id"] for row in csv.DictReader(rows)})
    if arguments.images:
        images = arguments.images.split(",")
    with concurrent.futures.ThreadPoolExecutor(arguments.threads) as pool:
        for links in LINKS if arguments.only != "push" else []:
            if arguments.links and arguments.links not in links:
                continue
            ran = list(pool.map(lambda image, links=links: deployed(arguments, image, links), images))
            print(f"\n{arguments.hosts} disks, {links}; seconds that the reads of a disk waited, and less than lazily")
            rows = []
            for image, by_way in zip(images, ran):
                ways = [by_way[way] for way in WAYS.values()]
                rows.append([image, *(less(row, ways[0], "waited") for row in ways)])
            table(["image", *WAYS], rows)
        if arguments.only == "deployments":
            return
        together = [[image] for image in images] + [images[n : n + 3] for n in range(0, len(images) - 2, 3)]
        ran = list(pool.map(lambda several: pushed(arguments, several), together))
        print("\n25 Mbit/s; seconds from a disk's creation to its last read (half of the disks), and less than cold")
        rows = []
        for several, by_way in zip(together, ran):
            ways = [by_way[way] for way in ("swarm", "swarm-push", "swarm-push-strays", "local")]
            figures = ("took_p50", "waited")
            cells = (", waited ".join(less(row, ways[0], figure) for figure in figures) for row in ways)
            rows.append([", ".join(several), *cells])
        table(["images", "cold", "push", "push, after strays", "warm"], rows)


if __name__ == "__main__":
    main()
