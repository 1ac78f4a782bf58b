"""Builds of images, with commit and compression: on headstart's disk, and on overlayfs.

    make bench-builds [BENCH="OPTION..."]

Carries out the build of the DADI paper's kind (15 steps: 7,944 files of 545 MB, and changes of their modes), commits
each step, and does the same on overlayfs with a tar of each step's differences, compressed and hashed. Then a commit of
500 MB that a step of ten seconds has written, with and without `attach --seal-ahead`. Wants root and a machine that
does nothing else; takes some ten minutes.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
BENCHES = pathlib.Path(__file__).resolve().parent.parent
sys.path += [str(BENCHES / "containers"), str(BENCHES / "boot")]

import builders
import builds_page
import steps
from programs import Place
import rig
from rig import FIGURES, HEADSTART, ROOT, Failed, Processors

PARTS = list(dict.fromkeys(part for part, *_ in builders.ALL))


class Setting:
    """The input of all builds."""

    def __init__(self, options, files):
        self.work, self.files = options.dir, files


def arguments():
    parser = argparse.ArgumentParser(prog="make bench-builds",
                                     formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("--dir", type=pathlib.Path, default=ROOT / "target/bench-builds",
                        help="the files, kept, and the file system to measure on [target/bench-builds]")
    parser.add_argument("--runs", type=int, default=3, help="of each measurement [3]")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=PARTS, help=", ".join(PARTS))
    parser.add_argument("--json", action="store_true", help="print the figures as JSON in place of tables")
    parser.add_argument("--write", type=pathlib.Path, metavar="PAGE",
                        help="write the page, too, such as docs/benchmarks-builds.md, and the figures to "
                        "target/bench/builds.json")
    parser.add_argument("--note", default="", help="what a reader of the page has to know of this run")
    return parser.parse_args()


class Bench(rig.Bench):
    """One run of the contestants."""

    def measure(self, setting):
        chosen = []
        for part, who, program, function in builders.ALL:
            if part not in self.options.parts:
                continue
            if why := builders.missing(program):
                self.skip(f"{part}: {who}: {why}")
            else:
                chosen.append((part, who, function))
        for number in range(self.options.runs):
            # Another one first in each round.
            turn = number * len(chosen) // max(1, self.options.runs)
            for part, who, function in chosen[turn:] + chosen[:turn]:
                if not any(failure.startswith(f"{part}: {who}:") for failure in self.failed):
                    self._once(setting, number, part, who, function)

    def _once(self, setting, number, part, who, function):
        try:
            with Place(setting.work) as work:
                row = {"part": part, "who": who, "run": number, **function(setting, work)}
            self.rows.append(row)
            self.say(builds_page.line(row))
        except Failed as error:
            self.fail(f"{part}: {who}: {error}")

    def check(self):
        """All builds have the same tree."""
        trees = {row["tree"] for row in self.rows if "tree" in row}
        if len(trees) > 1:
            self.failed.append(f"check: {len(trees)} different trees were built")


def main():
    options = arguments()
    options.dir = options.dir.resolve()
    options.dir.mkdir(parents=True, exist_ok=True)
    if not HEADSTART.exists():
        sys.exit(f"bench-builds: {HEADSTART} is not there: `make bench-builds` builds it")
    if os.geteuid() != 0:
        sys.exit("bench-builds: only root can mount here: run it as root")
    files = steps.make(options.dir / "files")
    load, busy, bench = os.getloadavg()[0], Processors(), Bench(options)
    options.dir = pathlib.Path(tempfile.mkdtemp(dir=options.dir, prefix="work-"))
    try:
        bench.measure(Setting(options, options.dir.parent / "files"))
    finally:
        shutil.rmtree(options.dir, ignore_errors=True)
    bench.check()
    machine = builds_page.machine(options, files, load, busy.busy(), bench.seconds())
    found = {"machine": machine, "builds": bench.rows, "skipped": bench.skipped, "failed": bench.failed}
    if options.write:
        builds_page.write(options.write, found, options.note)
        FIGURES.mkdir(parents=True, exist_ok=True)
        (FIGURES / "builds.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1) if options.json else builds_page.terminal(found))
    if bench.failed:
        sys.exit("something failed")


if __name__ == "__main__":
    main()
