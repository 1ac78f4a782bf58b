"""Conversion of container images: `headstart image convert` beside what else unpacks layers and makes file systems.

    make bench-containers [BENCH="OPTION..."]

Makes the images of Debian's packages (fetched once, kept in DIR), converts them, and lets umoci, containerd, buildah,
mke2fs and mkfs.erofs have the same layers, round by round. What is not there is skipped, and said. Peers want root;
headstart does not. Takes about ten minutes, and wants a machine that does nothing else.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
# Its processes and its words for failures.
sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "boot"))

import checks
import contestants
import corpus
import page
from programs import Place, Registry
import rig
from rig import FIGURES, ROOT, Failed, Processors

PARTS = list(dict.fromkeys(part for part, *_ in contestants.ALL)) + ["checks"]


def names(text):
    return text.split(",")


def arguments():
    parser = argparse.ArgumentParser(prog="make bench-containers",
                                     formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("--dir", type=pathlib.Path, default=ROOT / "target/bench-containers",
                        help="packages and images, kept, and the file system to measure on [target/bench-containers]")
    parser.add_argument("--runs", type=int, default=3, help="of each measurement [3]")
    parser.add_argument("--parts", type=names, default=PARTS, help=", ".join(PARTS))
    parser.add_argument("--rate", type=int, default=10, help="of the slow link, MB/s [10]")
    parser.add_argument("--delay", type=int, default=20, help="round trip of the slow link, ms [20]")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON in place of tables")
    parser.add_argument("--write", type=pathlib.Path, metavar="PAGE",
                        help="write the page, too, such as docs/benchmarks-containers.md, and the same figures to "
                        "target/bench/containers.json")
    parser.add_argument("--note", default="", help="what a reader of the page has to know of this run")
    return parser.parse_args()


class Bench(rig.Bench):
    """One run, with checks."""

    def __init__(self, options):
        super().__init__(options)
        self.checks = []

    def chosen(self):
        """What can be measured here."""
        for part, what, who, program, function in contestants.ALL:
            if part not in self.options.parts:
                continue
            why = contestants.missing(what, program)
            if why:
                self.skip(f"{who}, {page.WHATS[what]}: {why}")
            else:
                yield what, who, function

    def measure(self, setting):
        chosen = list(self.chosen())
        for number in range(self.options.runs):
            # Another one first in each round.
            turn = number * len(chosen) // max(1, self.options.runs)
            for what, who, function in chosen[turn:] + chosen[:turn]:
                if not any(failure.startswith(f"{who}, {page.WHATS[what]}:") for failure in self.failed):
                    self._once(setting, number, what, who, function)
        order = {(what, who): number for number, (what, who, _) in enumerate(chosen)}
        self.rows.sort(key=lambda row: (order[row["what"], row["who"]], row["run"]))

    def _once(self, setting, number, what, who, function):
        try:
            with Place(setting.work) as work:
                row = {"what": what, "who": who, "run": number, **function(setting, work)}
            self.rows.append(row)
            self.say(page.line(row))
        except Failed as error:
            self.fail(f"{who}, {page.WHATS[what]}: {error}")

    def check(self, setting):
        with tempfile.TemporaryDirectory(dir=setting.work, prefix="checks-") as work:
            try:
                for check in checks.run_all(setting, pathlib.Path(work)):
                    self.checks.append(check)
                    self.say(page.checks_table([check]).splitlines()[-1])
            except Failed as error:
                self.fail(f"checks: {error}")


def run_all(bench, options, images):
    options.work = pathlib.Path(tempfile.mkdtemp(dir=options.dir, prefix="work-"))
    registry = None
    try:
        if shutil.which("docker-registry"):
            registry = Registry(options.work / "registry")
        setting = contestants.Setting(options, images, registry)
        bench.measure(setting)
        if "checks" in options.parts:
            bench.check(setting)
    finally:
        if registry:
            registry.program.end()
        shutil.rmtree(options.work, ignore_errors=True)


def main():
    options = arguments()
    options.dir = options.dir.resolve()
    options.dir.mkdir(parents=True, exist_ok=True)
    if why := page.absent_headstart():
        sys.exit(f"bench-containers: {why}")
    try:
        images = corpus.make(options.dir)
    except Failed as error:
        sys.exit(f"bench-containers: {error}")
    load, busy, bench = os.getloadavg()[0], Processors(), Bench(options)
    run_all(bench, options, images)
    machine = page.machine(options, images, load, busy.busy(), bench.seconds())
    found = {"machine": machine, "measurements": bench.rows, "checks": bench.checks, "skipped": bench.skipped,
             "failed": bench.failed}
    if options.write:
        page.write(options.write, machine, bench.rows, bench.checks, bench.skipped, bench.failed, options.note)
        FIGURES.mkdir(parents=True, exist_ok=True)
        (FIGURES / "containers.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1) if options.json
          else page.terminal(bench.rows, bench.checks, bench.skipped, bench.failed))
    if bench.failed or any(check["ok"] is False for check in bench.checks):
        sys.exit("something failed, or does not hold")


if __name__ == "__main__":
    main()
