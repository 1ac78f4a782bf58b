"""Harvest on a real file system: vSSDs beside nbdkit and qemu-nbd, a regular VM beside a harvest VM, and how long it
takes to lend flash and to take it back.

    make bench-harvest [BENCH="OPTION..."]

All disks lie in files of one file system and are served by NBD over Unix sockets to fio. Contestants take turns, round
by round. Takes about eight minutes, and wants a machine that does nothing else. Writes docs/benchmarks-harvest.md and
target/bench/harvest.json, the same figures.
"""

import argparse
import os
import pathlib
import shutil
import sys
import tempfile
import time

sys.dont_write_bytecode = True
# Its processes and its words for failures.
sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "boot"))

import page
import parts
from rig import ROOT, Failed, Processors

PARTS = {"peers": parts.peers, "neighbours": parts.neighbours, "borrowed": parts.borrowed, "times": parts.times}


def names(text):
    return text.split(",")


def arguments():
    parser = argparse.ArgumentParser(prog="make bench-harvest", formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description=__doc__)
    parser.add_argument("--dir", type=pathlib.Path, default=ROOT / "target", help="the file system to measure on "
                        "[target]; all that is made there is gone at the end")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3, help="of each load [3]")
    parser.add_argument("--rate", default="70M", help="bytes a second of a channel, where it has a rate [70M]")
    parser.add_argument("--parts", type=names, default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--docs", type=pathlib.Path, default=ROOT / "docs", help="where the page goes [docs]")
    parser.add_argument("--note", default="", help="what a reader of the page has to know of this run")
    return parser.parse_args()


def main():
    options = arguments()
    absent = [tool for tool in ("fio", "nbdkit", "qemu-nbd") if not shutil.which(tool)]
    if "fio" in absent:
        sys.exit("bench-harvest: fio is not there; `make setup` installs it")
    load, busy, started = os.getloadavg()[0], Processors(), time.monotonic()
    rows, failed = [], []
    options.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="bench-harvest-") as work:
        options.work = pathlib.Path(work)
        for name in options.parts:
            try:
                for row in PARTS[name](options, absent):
                    rows.append(row)
                    print(f"  {time.monotonic() - started:4.0f} s  {page.line(row)}", flush=True)
            except Failed as error:
                failed.append(f"{name}: {error}")
                print(f"  FAILED {failed[-1]}", flush=True)
        machine = page.machine(options, load, busy.busy(), time.monotonic() - started)
    print(page.write(options, machine, rows, absent, failed))
    if failed:
        sys.exit(f"{len(failed)} parts failed")


if __name__ == "__main__":
    main()
