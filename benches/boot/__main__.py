"""Boots from images over slow links: headstart beside what else there is.

    make bench-boot [BENCH="OPTION..."]

Makes the disks (once, as root), records boots, learns from five of each and measures with three others: their reads
are replayed over a link of several rates and round trips by every contestant, and for one link real guests boot.
Everything that was measured is kept in DIR/results.jsonl, and not measured again: it can be stopped at any time and
goes on where it was. Writes docs/benchmarks.md, its plots, and the same figures as target/bench/boot.json.
"""

import argparse
import sys
import time

import page
import rounds
from contestants import NBDKIT, TITLES
from images import Images
from rig import ROOT

IMAGES = ["debian", "postgres", "node"]
CONTESTANTS = ["download", "nbdkit", "whole-lazy", "whole-score", "lazy", "planned", "optimized", "local"]
DERIVED = ["whole-lazy", "lazy", "zero-shot", "planned", "local"]
HARMFUL = ["useless", "adversarial"]


def numbers(text):
    return [int(part) for part in text.split(",")]


def names(text):
    return text.split(",")


def arguments():
    parser = argparse.ArgumentParser(prog="make bench-boot", formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description=__doc__)
    parser.add_argument("--dir", default=ROOT / "target/bench", help="disks, images, traces, results [target/bench]")
    parser.add_argument("--images", type=names, default=IMAGES)
    parser.add_argument("--contestants", type=names, default=CONTESTANTS, help=", ".join(TITLES))
    parser.add_argument("--rates", type=numbers, default=[2, 5, 10, 30, 100], help="MB/s")
    parser.add_argument("--delays", type=numbers, default=[1, 20, 50], help="round trips, ms")
    parser.add_argument("--graces", type=numbers, default=[3, 0], help="from creation to the first read, s")
    parser.add_argument("--speeds", type=numbers, default=[1, 5], help="times as fast as recorded")
    parser.add_argument("--all", action="store_true", help="all combinations of these")
    parser.add_argument("--boots", type=int, default=3, help="boots of each image that are replayed [3]")
    parser.add_argument("--repetitions", type=int, default=1, help="of each measurement [1]")
    parser.add_argument("--parallel", type=int, default=6, help="settings measured at once [6]")
    parser.add_argument("--derived", type=names, default=["debian-derived", "postgres-derived", "node-derived"],
                        help="images for zero-shot")
    parser.add_argument("--guests", type=int, default=7, help="rounds of real boots [7]")
    parser.add_argument("--guest-contestants", type=names,
                        default=["local", "planned", "optimized", "lazy", "whole-lazy", "nbdkit", "download"])
    parser.add_argument("--guest-rate", type=int, default=10)
    parser.add_argument("--guest-delay", type=int, default=20)
    parser.add_argument("--renew", type=names, default=[], help="contestants to measure again where the build differs")
    parser.add_argument("--nbdkit-search", action="store_true", help="all combinations of nbdkit's filters, only")
    parser.add_argument("--note", default="", help="what a reader of the page has to know of this run")
    parser.add_argument("--only", choices=["make", "replays", "guests", "page"], help="only this part")
    return parser.parse_args()


def prepare(options, images):
    for name in options.images + options.derived:
        images.make(name)
        images.record(name)
    images.learn(options.images + options.derived)


def search(options, images, results):
    options.contestants = [f"nbdkit:{filters}" for filters in NBDKIT]
    options.rates, options.delays, options.graces, options.speeds = [5, 10], [20], [3], [1]
    options.boots = 1
    return rounds.replays(options, images, results)


def main():
    options = arguments()
    start = time.monotonic()
    images = Images(options.dir)
    results = rounds.Results(images.place / "results.jsonl", options.renew)
    part = lambda name: options.only in (None, name)
    failed = []
    if part("make"):
        prepare(options, images)
    if options.nbdkit_search:
        failed = search(options, images, results)
    elif part("replays"):
        results.calibrate(options)
        failed = rounds.replays(options, images, results)
        chosen = options.images, options.contestants, options.rates, options.delays
        if set(CONTESTANTS) <= set(options.contestants):
            options.rates, options.delays = [5, 10], [20]
            options.images, options.contestants = options.derived, DERIVED
            failed += rounds.replays(options, images, results)
            options.images, options.contestants = chosen[0], HARMFUL
            failed += rounds.replays(options, images, results)
            options.images, options.contestants, options.rates, options.delays = chosen
    if part("guests") and not options.nbdkit_search:
        rounds.guests(options, images, results)
    if options.only != "make" and not options.nbdkit_search:
        ok = page.write(images, results, ROOT / "docs", options.note)
        print(f"after {time.monotonic() - start:.0f} s: docs/benchmarks.md; {ok}")
    if failed:
        sys.exit(f"{len(failed)} measurements failed")


if __name__ == "__main__":
    main()
