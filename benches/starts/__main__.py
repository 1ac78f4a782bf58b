"""Starts of containers over a slow link: `ctr images pull` and `ctr run` until the application is up.

    make bench-starts [BENCH="OPTION..."]

Makes images of nginx, of a web application in Python, of PostgreSQL and of WordPress (Apache, PHP and MariaDB in one
container) from Debian's packages (once, kept in DIR), and starts each on hosts that have nothing: with overlayfs and
a full pull, and with `headstart snapshotter` lazily and by a plan; then again on the same host, which has everything.
Wants root, a containerd 2 (`scripts/setup peers`) and a machine that does nothing else.
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

import batch
import contestants
import counted
import images
import many
import page_cache
import rates
import start_page
import trees
import warm
from programs import Registry
import rig
from rig import FIGURES, HEADSTART, ROOT, Failed, Processors

CONTESTANTS = {one.name: one for one in contestants.ALL}


def names(text):
    return text.split(",")


def numbers(text):
    return [int(number) for number in text.split(",")]


def arguments():
    parser = argparse.ArgumentParser(prog="make bench-starts",
                                     formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("--dir", type=pathlib.Path, default=ROOT / "target/bench-starts",
                        help="images, kept, and the hosts' files [target/bench-starts]")
    parser.add_argument("--runs", type=int, default=3, help="of each cold start [3]")
    parser.add_argument("--warm-runs", type=int, default=10, help="starts on each host that has everything [10]")
    parser.add_argument("--warm", type=int, default=0, metavar="N",
                        help="measure this instead: the first and further starts on a host that has everything, and "
                        "snapshots on an image of 70 layers, N times each [not]")
    parser.add_argument("--apps", type=names, default=[app.name for app in images.APPS],
                        help=", ".join(app.name for app in images.APPS))
    parser.add_argument("--contestants", type=names, default=list(CONTESTANTS), help=", ".join(CONTESTANTS))
    parser.add_argument("--rate", type=int, default=10, help="of the link, MB/s [10]")
    parser.add_argument("--delay", type=int, default=20, help="round trip of the link, ms [20]")
    parser.add_argument("--rates", type=numbers, metavar="RATE,...",
                        help="measure only cold starts over links of these rates, MB/s, beside a full pull")
    parser.add_argument("--batch", type=int, metavar="N", help="measure only one container beside N at once")
    parser.add_argument("--many", action="store_true", help="measure only the memory of 200 containers of 20 images")
    parser.add_argument("--trees", action="store_true",
                        help="measure only du, tar and fio over the files of a container")
    parser.add_argument("--bytes", action="store_true",
                        help="measure only what the bytes of a start are, of headstart's contestants")
    parser.add_argument("--page-cache", type=names, metavar="WAY,...", help="measure only what the disks leave in the "
                        "page cache, with these values of `attach --page-cache`, or `default`")
    parser.add_argument("--parts", type=names, default=["scans", "boots", "starts"],
                        help="of --page-cache [scans,boots,starts]")
    parser.add_argument("--codecs", type=names, default=["lz4", "zstd"], help="of --page-cache [lz4,zstd]")
    parser.add_argument("--traces", type=pathlib.Path, default=ROOT.parent / "shared/data/traces/trace",
                        help="recorded boots, of --page-cache [../shared/data/traces/trace]")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON in place of tables")
    parser.add_argument("--write", type=pathlib.Path, metavar="PAGE",
                        help="write the page, too, such as docs/benchmarks-starts.md, and the figures to "
                        "target/bench/starts.json, where those of parts that were not measured now are taken from")
    parser.add_argument("--note", default="", help="what a reader of the page has to know of this run")
    return parser.parse_args()


class Bench(rig.Bench):
    """One run of the contestants."""

    def chosen(self):
        """The contestants that can be measured here."""
        chosen = []
        for one in (CONTESTANTS[name] for name in self.options.contestants):
            if why := one.missing():
                self.skip(f"{one.name}: {why}")
            else:
                chosen.append(one)
        return chosen

    def measure(self, setting):
        chosen = self.chosen()
        for app in (app for app in images.APPS if app.name in self.options.apps):
            for one in chosen:
                self.attempt(app, one, "published", lambda: one.publish(setting, app))
            for number in range(self.options.runs):
                turn = number % max(1, len(chosen))
                for one in chosen[turn:] + chosen[:turn]:
                    self.attempt(app, one, f"run {number}", lambda: self._once(setting, app, one, number))

    def _once(self, setting, app, one, number):
        row = {"app": app.name, "who": one.name, "run": number, **one.start(setting, app)}
        self.rows.append(row)
        self.say(start_page.line(row))

    def attempt(self, app, one, what, step):
        if any(failure.startswith(f"{app.name}, {one.name},") for failure in self.failed):
            return
        try:
            step()
        except Failed as error:
            self.fail(f"{app.name}, {one.name}, {what}: {error}")


def main():
    options = arguments()
    options.dir = options.dir.resolve()
    options.dir.mkdir(parents=True, exist_ok=True)
    if not HEADSTART.exists():
        sys.exit(f"bench-starts: {HEADSTART} is not there: `make bench-starts` builds it")
    if os.geteuid() != 0:
        sys.exit("bench-starts: only root can start containers here: run it as root")
    load, busy, bench = os.getloadavg()[0], Processors(), Bench(options)
    work = pathlib.Path(tempfile.mkdtemp(dir=options.dir, prefix="work-"))
    try:
        layout, known = images.make(options.dir)
        with Registry(work / "registry") as registry:
            setting = contestants.Setting(options, work, layout, registry.address)
            if options.warm:
                part, rows = "warm", warm.measure(setting, bench.say)
            elif options.rates:
                apps = [app for app in images.APPS if app.name in options.apps]
                chosen = [one for one in bench.chosen() if one.name in rates.USUAL]
                part, rows = "rates", rates.measure(setting, apps, chosen, bench)
            elif options.batch:
                part, rows = "batch", batch.measure(setting, bench.chosen(), options, bench.say)
            elif options.many:
                part, rows = "many", many.measure(setting, *many.USUAL, bench.say)
            elif options.trees:
                part, rows = "trees", trees.measure(setting, options.runs, bench.say)
            elif options.bytes:
                ours = [one for one in bench.chosen() if one.name.startswith("headstart")]
                part, rows = "bytes", counted.measure(setting, ours, options.apps, options.runs, bench.say)
            elif options.page_cache:
                part, rows = "pages", page_cache.measure(setting, options, bench.say)
            else:
                bench.measure(setting)
                part, rows = "starts", bench.rows
    except Failed as error:
        sys.exit(f"bench-starts: {error}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    machine = start_page.machine(options, known, load, busy.busy(), bench.seconds())
    found = {part: rows, "skipped": bench.skipped, "failed": bench.failed, "note": options.note,
             "machine" if part == "starts" else f"{part}_machine": machine}
    if options.write:
        FIGURES.mkdir(parents=True, exist_ok=True)
        found = start_page.merged(FIGURES / "starts.json", found, part)
        start_page.write(options.write, found)
    print(json.dumps(found, indent=1) if options.json else start_page.terminal(found))
    if bench.failed:
        sys.exit("something failed")


if __name__ == "__main__":
    main()
