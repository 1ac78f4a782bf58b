"""One measurement: a fleet, a contestant, a pattern; and what was measured already."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

from contestants import Store, contestant
from faults import Strike
from network import STORE_ADDRESS, Network
from patterns import plans, read_all
from rig import Failed, Processors, build_of, run

TICKS = os.sysconf("SC_CLK_TCK")


class Room:
    """A file system in memory for what hosts keep, so that the machine's one disk does not decide. Gone when left."""

    def __init__(self, place):
        self.place = place / "run"

    def __enter__(self):
        self._clear()
        self.place.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=90%", "hs-bench", self.place], check=True)
        return self.place

    def __exit__(self, *_):
        self._clear()

    def _clear(self):
        """Unmounts everything there, innermost first."""
        mounts = [line.split()[1] for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((one for one in mounts if pathlib.Path(one).is_relative_to(self.place)), reverse=True):
            subprocess.run(["umount", "-l", mount], check=False)


DOWNLOAD = """
import sys, time, urllib.request
length = int(sys.argv[2])
asked = urllib.request.Request(sys.argv[1], headers={"Range": f"bytes=0-{length - 1}"})
buffer, start, left = bytearray(1 << 20), time.monotonic(), length
with urllib.request.urlopen(asked) as answer:
    while left:
        left -= answer.readinto(buffer) or sys.exit("it ends early")
print(length / (time.monotonic() - start))
"""


def calibrate(options, image):
    """What one download gives at the rate of the store's link, and at that of a host's: MB/s of payload, two seconds
    each."""
    found = {}
    for name, rate in (("uplink", options.uplink), ("rate", options.rate)):
        hosts_rate = round(options.rate * 1e6)
        with Room(options.dir) as room, Network(room, 1, round(rate * 1e6), hosts_rate) as network:
            store = Store(room, image)
            try:
                url = f"http://{STORE_ADDRESS}/image/{image.layer_path}"
                length = min(round(2e6 * rate), image.layer)
                said = run(*network.hosts[0].command(sys.executable, "-c", DOWNLOAD, url, length), within=60)
            finally:
                store.end()
        found[name] = round(float(said) / 1e6, 2)
    return found | round_trips(options, image)


LATENCY = """
import http.client, json, socket, statistics, sys, time
def median(what):
    took = []
    for _ in range(41):
        start = time.perf_counter()
        what()
        took.append(time.perf_counter() - start)
    return statistics.median(took)
def refused():
    with socket.socket() as asked:
        asked.connect_ex((sys.argv[1], 9))
store = http.client.HTTPConnection(sys.argv[2])
def one_byte():
    store.request("GET", sys.argv[3], headers={"Range": "bytes=0-0"})
    store.getresponse().read()
print(json.dumps({"round_trip": median(refused), "store_round_trip": median(one_byte)}))
"""


def round_trips(options, image):
    """Seconds from one host to another and back, and for a byte of the store, with nothing else on the links."""
    uplink, rate = round(options.uplink * 1e6), round(options.rate * 1e6)
    with Room(options.dir) as room, Network(room, 2, uplink, rate) as network:
        store = Store(room, image)
        try:
            here, there = network.hosts
            said = run(*here.command(sys.executable, "-c", LATENCY, there.address, STORE_ADDRESS,
                                     f"/image/{image.layer_path}"), within=60)
        finally:
            store.end()
    return {name: round(seconds, 6) for name, seconds in json.loads(said).items()}


def worked():
    """Processor seconds of every process so far, by its id."""
    found = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parts = stat.read_text().rsplit(")", 1)[1].split()
            found[int(stat.parent.name)] = (int(parts[11]) + int(parts[12])) / TICKS
    return found


class Work:
    """What processors did from now on: for what is measured, with what reads it, and for others on this machine."""

    def __init__(self):
        self.busy, self.before = Processors(), worked()

    def until_now(self, pids):
        """What is said of it, and seconds by process."""
        ours = {*pids, os.getpid()}
        spent = {pid: round(total - self.before.get(pid, 0), 2) for pid, total in worked().items()}
        return spent, {"busy": self.busy.busy(), "worked": round(sum(spent.get(pid, 0) for pid in ours), 2),
                "others": round(sum(work for pid, work in spent.items() if pid not in ours), 2)}


def difference(later, earlier):
    return {name: [a - b for a, b in zip(values, earlier.get(name, (0, 0)))] for name, values in later.items()}


def measure(options, image, row):
    """Fills the row."""
    uplink, rate = round(options.uplink * 1e6), round(options.rate * 1e6)
    fault = row["pattern"].partition(":")[2]
    with Room(options.dir) as room, Network(room, row["hosts"], uplink, rate) as network:
        store = Store(room, image)
        ours = contestant(row["contestant"], network, image, fault)
        ours.store = store
        try:
            _run(options, image, row, network, store, ours)
        finally:
            ended = ours.end()
            store.end()
            if options.logs:
                _keep(room, options.dir / "logs")
        for host in row["each"]:
            host["disk"] = ended.get(host["host"])
    return row


def _keep(room, place):
    """What programs said, of the last measurement."""
    shutil.rmtree(place, ignore_errors=True)
    for path in room.glob("*/*"):
        if path.is_file():
            (place / path.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place / path.parent.name)


def _run(options, image, row, network, store, ours):
    hosts = network.hosts
    # In bytes a second of payload: what all times go by.
    who = plans(row["pattern"], image, len(hosts), row["links"]["uplink"] * 1e6)
    ours.readers = [host for host, plan in zip(hosts, who) if plan.attached]
    began = time.monotonic()
    ours.open()
    row["open"] = round(time.monotonic() - began, 2)
    # Connections are made, adverts said, what was read ahead while opening has come.
    time.sleep(options.settle)
    before, asked, work = network.moved(), store.sent(), Work()
    fault = row["pattern"].partition(":")[2]
    least = image.region / options.uplink / 1e6
    with Strike(fault, network, ours, least) if fault else contextlib.nullcontext() as strike:
        readings = read_all(who, [lambda host=host: ours.use(host) for host in hosts], options.longest)
    if strike and strike.error:
        raise Failed(f"the fault did not come: {strike.error}")
    spent, said = work.until_now([*ours.processes(), store.program.process.pid])
    row |= said
    # Requests are in the web server's log when they have been answered.
    time.sleep(0.5)
    moved, sent = difference(network.moved(), before), store.sent()
    row["uplink_bytes"] = moved["store"][1]
    row["opening"] = {"store": sum(count for count, _ in asked.values())}
    row["each"] = [_host(host, plan, reading, moved, sent, asked)
                   | {"stored": round(image.as_stored(plan.length()))}
                   for host, plan, reading in zip(hosts, who, readings)]
    for host, one in zip(hosts, row["each"]):
        one["swarm"] = ours.exchanged(host)
        one["worked"] = {what: spent.get(pid, 0) for what, pid in ours.processes_of(host).items()}
    row["completion"] = round(max(reading.ended for reading in readings), 3)
    row["wrong"] = sum(_wrong(image, ours.path(host), plan, one) for host, plan, one in zip(hosts, who, row["each"])
                       if plan.ranges and not one["error"])
    row["here"] = [round(at, 3) for _, at in sorted(getattr(ours, "here", {}).items())]


def _host(host, plan, reading, moved, sent, asked):
    (stored, requests), (before, requests_before) = sent.get(host.address, (0, 0)), asked.get(host.address, (0, 0))
    down, up = moved[f"h{host.number:02}"]
    return {"host": host.number, "began": round(reading.began, 3), "ended": round(reading.ended, 3),
            "read": plan.length(), "slowest_read": round(reading.slowest, 3), "tenths": reading.tenths,
            "error": reading.error, "store": stored - before, "requests": requests - requests_before,
            "opening": before, "down": down, "up": up}


def _wrong(image, path, plan, one):
    """Reads it all again, out of the time: what the kernel holds is what was read."""
    at = image.differs(path, plan.ranges)
    if at is not None:
        one["error"] = f"wrong byte in the piece at {at}"
    return at is not None


class Results:
    """Lines of JSON, one a measurement, in a file that only grows."""

    KEY = ("pattern", "contestant", "hosts", "region", "uplink", "rate", "repetition")

    def __init__(self, path):
        self.path, self.build = path, build_of()
        self.rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def key(self, row):
        return tuple(row[part] for part in self.KEY)

    def has(self, row):
        return any(self.key(known) == self.key(row) and known["build"] == self.build for known in self.rows)

    def add(self, row):
        row |= {"build": self.build, "at": round(time.time())}
        self.rows.append(row)
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")

    def latest(self):
        return list({self.key(row): row for row in self.rows}.values())


def measured(options, image, row):
    """The row, or why there is none."""
    start = time.monotonic()
    try:
        measure(options, image, row)
    except (Failed, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        raise Failed(f"{row['pattern']}, {row['contestant']}: {error}") from error
    row["took"] = round(time.monotonic() - start, 1)
    return row
