"""Many hosts read one image at once: headstart's swarm beside independent reads and a broadcast.

    make bench-swarm [BENCH="OPTION..."]

Hosts are network namespaces of this machine, on a switch, behind links that tc shapes; the store is a web server
behind a slower one. Needs root. Each host attaches the image and reads it through FUSE as dd does, in the patterns of
the content-exchange paper. What was measured is kept in DIR/results.jsonl and not measured again with the same build.
Everything that runs, is mounted or named is gone at the end, and what an earlier run left is taken away at the start.
"""

import argparse
import pathlib
import sys

sys.dont_write_bytecode = True
# Its processes and its words for failures.
sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "boot"))

import faults
import figures
import network
import page
from contestants import TITLES
from image import Image
from measure import Results, calibrate, measured
from patterns import PATTERNS
from rig import ROOT, Failed


def names(text):
    return text.split(",")


def size(text):
    return int(text.rstrip("M")) << 20


def arguments():
    parser = argparse.ArgumentParser(prog="make bench-swarm", formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description=__doc__)
    parser.add_argument("--dir", type=pathlib.Path, default=ROOT / "target/swarm", help="images, results")
    parser.add_argument("--hosts", type=int, default=24)
    parser.add_argument("--region", type=size, default=size("64M"), help="what is read, as stored [64M]")
    parser.add_argument("--uplink", type=float, default=12, help="the store's link, MB/s [12]")
    parser.add_argument("--rate", type=float, default=50, help="each host's link, MB/s [50]")
    parser.add_argument("--patterns", type=names, default=list(page.PATTERNS),
                        help=f"{', '.join(PATTERNS)}; with a fault as sync-same:FAULT: {', '.join(faults.TITLES)}")
    parser.add_argument("--contestants", type=names, default=["independent", "tree"], help=", ".join(TITLES))
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--settle", type=float, default=2, help="seconds from open disks to the first read [2]")
    parser.add_argument("--longest", type=float, default=900, help="seconds until reading is given up [900]")
    parser.add_argument("--again", action="store_true", help="measure what is known as well")
    parser.add_argument("--logs", action="store_true", help="keep what programs said in DIR/logs (see HEADSTART_LOG)")
    parser.add_argument("--page", action="store_true",
                        help="write benchmarks-swarm.md and target/bench/swarm.json of what is known")
    parser.add_argument("--docs", type=pathlib.Path, default=ROOT / "docs", help="where that page goes [docs]")
    parser.add_argument("--note", default="", help="what a reader of the page has to know of this run")
    options = parser.parse_args()
    options.dir = options.dir.resolve()
    return options


def settings(options):
    for repetition in range(options.repetitions):
        for pattern in options.patterns:
            for contestant in options.contestants:
                yield {"pattern": pattern, "contestant": contestant, "hosts": options.hosts, "region": options.region,
                       "uplink": options.uplink, "rate": options.rate, "repetition": repetition}


def main():
    options = arguments()
    why = network.missing()
    if why:
        print(f"\n  *** SKIPPED: bench-swarm needs network namespaces, and tc in them: {why}\n", flush=True)
        return
    options.dir.mkdir(parents=True, exist_ok=True)
    image = Image(options.dir, options.region)
    image.make()
    results, failed = Results(options.dir / "results.jsonl"), 0
    todo = [row for row in settings(options) if options.again or not results.has(row)]
    links = calibrate(options, image) if todo else {}
    for row in todo:
        row["links"] = links
        try:
            results.add(measured(options, image, row))
            print(f"  {row['pattern']}, {row['contestant']}: {figures.summary(row)}", flush=True)
        except Failed as error:
            failed += 1
            print(f"  FAILED {error}", flush=True)
    if options.page:
        print(page.write(options, image, results, options.docs), flush=True)
    if failed:
        sys.exit(f"{failed} measurements failed")


if __name__ == "__main__":
    main()
