"""The grid of settings, in which order it is measured, and what was measured already."""

import concurrent.futures
import json
import os
import subprocess
import threading
import time

import contestants
from rig import ROOT, Failed, Processors, Rig, build_of, calibrate, run

KEY = ("kind", "image", "trace", "rate", "delay", "grace", "faster", "contestant", "repetition")


class Results:
    """Lines of JSON, one a measurement, in a file that only grows: what is there is not measured again."""

    def __init__(self, path, renew=()):
        self.path, self.lock, self.build = path, threading.Lock(), build_of()
        self.rows, self.links_path = [], path.with_name("links.json")
        self.links = json.loads(self.links_path.read_text()) if self.links_path.exists() else {}
        if path.exists():
            self.rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        renewed = lambda row: row["contestant"] in renew and row["build"] != self.build
        self.known = {self.key(row) for row in self.rows if not renewed(row)}

    @staticmethod
    def key(row):
        return tuple(row.get(part) for part in KEY)

    def has(self, **row):
        return self.key(row) in self.known

    def add(self, row):
        row |= {"build": self.build, "at": round(time.time())}
        with self.lock:
            self.rows.append(row)
            self.known.add(self.key(row))
            with open(self.path, "a") as file:
                file.write(json.dumps(row) + "\n")

    def calibrate(self, options):
        """What the links give on this machine, as it is now: kept beside the results."""
        for rate in options.rates:
            for delay in options.delays:
                self.links[f"{rate} MB/s, {delay} ms"] = calibrate(rate, delay).removeprefix("measured: ")
        self.links_path.write_text(json.dumps(self.links, indent=1))

    def latest(self):
        """The last measurement of each kind."""
        return list({self.key(row): row for row in self.rows}.values())


def settings(options):
    """(rate, delay, grace, faster): all rates and round trips with the first grace period and speed, the other guests
    at the middle round trip. `--all` gives all combinations."""
    first = (options.graces[0], options.speeds[0])
    middle = options.delays[len(options.delays) // 2]
    for rate in options.rates:
        for delay in options.delays:
            for grace in options.graces:
                for faster in options.speeds:
                    if options.all or delay == middle or (grace, faster) == first:
                        yield rate, delay, grace, faster


def rounds(options, images):
    """What is measured together, interleaved: one boot in one setting by each contestant.

    The settings that matter most come first, and the first boot of each before the second of any.
    """
    listed = list(settings(options))
    listed.sort(key=lambda setting: (setting[1] != 20, setting[0] not in (5, 10)))
    for repetition in range(options.repetitions):
        for boot in range(options.boots):
            for rate, delay, grace, faster in listed:
                for name in options.images:
                    _, test = images.boots(name)
                    if boot < len(test):
                        yield {"image": name, "trace": test[boot].name, "rate": rate, "delay": delay,
                               "grace": grace, "faster": faster, "repetition": repetition}


def row_of(setting, contestant):
    """What names a measurement. A local disk has no link, and neither it nor a download knows of grace periods."""
    row = {"kind": "replay", "contestant": contestant} | setting
    if contestant == "local":
        row |= {"rate": 0, "delay": 0, "grace": 0}
    if contestant == "download":
        row |= {"kind": "download", "grace": 0, "faster": 1, "trace": ""}
    return row


def measure(images, row):
    """One measurement: fills the row."""
    name, contestant = row["image"], row["contestant"]
    busy, load, start = Processors(), os.getloadavg()[0], time.monotonic()
    with Rig(images.place, images.www, row["rate"], row["delay"]) as rig:
        disk = contestants.opener(contestant)(rig, images, name)
        row["ready"] = round(disk.ready, 4)
        if row["kind"] == "replay":
            row["replay"] = contestants.replay(disk, images.traces / name / row["trace"], row["grace"], row["faster"])
        if row["kind"] == "guest":
            # A disk that is here is opened by QEMU itself, as one would.
            where = images.disk(name) if contestant in ("local", "download") else disk.uri
            took = float(run(ROOT / "scripts/boot-vm", "--snapshot", "--timeout", "900", where).split()[0])
            row["up"] = round(disk.ready + took, 3)
        # What came until now, and not what comes while everything ends.
        row["moved"] = rig.disconnect()
        ended = rig.end(disk.program).splitlines()
        row["disk"] = json.loads(ended[-1]) if ended and ended[-1].startswith("{") else None
    return row | {"busy": busy.busy(), "load": round(load, 2), "took": round(time.monotonic() - start, 1)}


def replays(options, images, results):
    """Measures everything that is not known, several settings at once: a replay mostly sleeps."""
    todo = []
    for setting in rounds(options, images):
        rows = [row_of(setting, contestant) for contestant in options.contestants]
        rows = [row for row in rows if not results.has(**row)]
        # Turn by turn another one is first.
        turn = len(todo) % max(1, len(rows))
        if rows:
            todo.append(rows[turn:] + rows[:turn])
    count, done, failed = sum(map(len, todo)), 0, []
    start = time.monotonic()
    lock = threading.Lock()
    taken = set()

    def one(rows):
        nonlocal done
        for row in rows:
            key = Results.key(row)
            with lock:
                if key in taken:
                    continue
                taken.add(key)
            try:
                results.add(measure(images, row))
            except (Failed, subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
                failed.append(f"{row}: {error}")
                print(f"  FAILED {row['image']} {row['contestant']}: {error}", flush=True)
            done += 1
        print(f"  {done} of {count} after {time.monotonic() - start:.0f} s, load {os.getloadavg()[0]:.1f}",
              flush=True)

    with concurrent.futures.ThreadPoolExecutor(options.parallel) as pool:
        for finished in [pool.submit(one, rows) for rows in todo]:
            finished.result()
    return failed


def guests(options, images, results):
    """Real boots, one at a time, in interleaved rounds with the local disk."""
    for repetition in range(options.guests):
        for name in options.images:
            for contestant in options.guest_contestants:
                row = {"kind": "guest", "image": name, "rate": options.guest_rate, "delay": options.guest_delay,
                       "contestant": contestant, "repetition": repetition}
                if results.has(**row):
                    continue
                try:
                    row = measure(images, row)
                except (Failed, subprocess.SubprocessError) as error:
                    print(f"  FAILED {name} {contestant}: {error}", flush=True)
                    continue
                results.add(row)
                print(f"  {name}, {contestant}: up {row['up']:.2f} s after its disk began to be attached, "
                      f"{row['moved']['down'] / 1e6:.1f} MB, {row['moved']['requests']} requests", flush=True)
