"""Who reads what and when: the content-exchange paper's patterns, scaled."""

import dataclasses
import os
import random
import threading
import time

from faults import ROGUES

REQUEST = 1 << 20
# The paper starts its machines 5 s after each other, which is this share of its region's time over its store's link
# (1 GiB over 1 Gbit/s).
SHIFT = 0.54
# What all read before they go their own ways, as a share of what each then reads: the paper's machines read some 70
# MB to boot, then 128 MB.
BOOT = 0.55
BOOT_REQUEST = 256 << 10
# Parts of the disk are whole multiples of it: half as much as stored, as in the simulation.
PART = 2 << 20
# How long nothing is read, in seconds.
IDLE = 60
# The host that is slow, or no honest one.
BAD = 1


@dataclasses.dataclass
class Plan:
    """What one host reads: so many seconds after the start, these ranges of the disk in this order."""

    after: float
    ranges: list
    # The largest request.
    request: int = REQUEST
    # Whether the host has the disk at all.
    attached: bool = True

    def length(self):
        return sum(length for _, length in self.ranges)


def sync_same(image, count, uplink):
    """All read the same region, the second quarter of the disk, at once."""
    quarter = image.size // 4
    return [Plan(0.0, [(quarter, quarter)]) for _ in range(count)]


def shifted_same(image, count, uplink):
    """All read that region, each a while after the one before."""
    quarter = image.size // 4
    delay = SHIFT * image.as_stored(quarter) / uplink
    return [Plan(host * delay, [(quarter, quarter)]) for host in range(count)]


def sync_disjoint(image, count, uplink):
    """Each reads a part of its own, at once; together it is the whole disk."""
    part = image.size // count // PART * PART
    return [Plan(0.0, [(host * part, part)]) for host in range(count)]


def boot_disjoint(image, count, uplink):
    """All read the same scattered pieces, as a boot does, and then each a part of its own."""
    part = int(image.size / (count + BOOT)) // PART * PART
    boot = int(part * BOOT) // PART * PART
    pieces = [(at, BOOT_REQUEST) for at in range(0, boot, BOOT_REQUEST)]
    random.Random(1).shuffle(pieces)
    start = image.size - count * part
    return [Plan(0.0, pieces + [(start + host * part, part)]) for host in range(count)]


def alone(image, count, uplink):
    """One host has the disk and reads that region; the others are there, and have nothing to do with it."""
    quarter = image.size // 4
    return [Plan(0.0, [(quarter, quarter)])] + [Plan(0.0, [], attached=False) for _ in range(1, count)]


def idle(image, count, uplink):
    """All have the disk, and nobody reads."""
    return [Plan(IDLE, []) for _ in range(count)]


PATTERNS = {"sync-same": sync_same, "shifted-same": shifted_same, "sync-disjoint": sync_disjoint,
            "boot-disjoint": boot_disjoint, "alone": alone, "idle": idle}


def plans(name, image, count, uplink):
    """Of a pattern, such as `sync-same`, or with a fault, as `sync-same:killed`. `uplink` is in bytes a second."""
    pattern, _, fault = name.partition(":")
    found = PATTERNS[pattern](image, count, uplink)
    if fault == "slow":
        # It takes part and reads nothing: what it is slow for is others.
        found[BAD].ranges = []
    if fault in ROGUES:
        found[BAD] = Plan(0.0, [], attached=False)
    if fault == "no-store":
        # The first half has read everything when the store goes; then comes the other.
        for plan in found[count // 2:]:
            plan.after = 4 * image.region / uplink
    return found


@dataclasses.dataclass
class Reading:
    """How it went, in seconds from the start of all."""

    began: float = 0.0
    ended: float = 0.0
    # When each tenth was read.
    tenths: list = dataclasses.field(default_factory=list)
    slowest: float = 0.0
    error: str = ""

    def took(self):
        return self.ended - self.began


def read(plan, opened, start, reading):
    """What dd does: one request after the other, with the kernel's own read-ahead. Waits for its time first."""
    time.sleep(max(0.0, start + plan.after - time.monotonic()))
    if not plan.ranges:
        reading.ended = time.monotonic() - start
        return
    try:
        # A host that has to get ready within the time, such as by a download, does so here.
        path = opened()
        disk = os.open(path, os.O_RDONLY)
        try:
            _read_all(plan, disk, start, reading)
        finally:
            os.close(disk)
    except Exception as error:  # Whatever it is, it is this host's, and said with its figures.
        reading.error = str(error) or repr(error)
        reading.ended = time.monotonic() - start


def _read_all(plan, disk, start, reading):
    buffer, done, every = bytearray(plan.request), 0, plan.length() / 10
    reading.began = plan.after
    for offset, length in plan.ranges:
        for at in range(offset, offset + length, plan.request):
            asked = time.monotonic()
            wanted = min(plan.request, offset + length - at)
            got = os.preadv(disk, [memoryview(buffer)[:wanted]], at)
            if got != wanted:
                raise OSError(f"{got} bytes at {at} where {wanted} were asked for")
            now = time.monotonic()
            reading.slowest = max(reading.slowest, now - asked)
            done += got
            if done >= every * (len(reading.tenths) + 1):
                reading.tenths.append(round(now - start, 3))
    reading.ended = time.monotonic() - start


def read_all(plans, opened, within):
    """All hosts read; how it went for each. `opened[n]` gives the path of host n's disk."""
    readings = [Reading() for _ in plans]
    start = time.monotonic() + 0.05
    threads = [threading.Thread(target=read, args=(plan, path, start, reading), daemon=True)
               for plan, path, reading in zip(plans, opened, readings)]
    for thread in threads:
        thread.start()
    for thread, reading in zip(threads, readings):
        thread.join(max(0.0, start + within - time.monotonic()))
        if thread.is_alive():
            reading.error, reading.ended = f"not read within {within} s", within
    return readings
