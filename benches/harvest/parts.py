"""What is measured: each part gives rows, dictionaries with the part, who, the load and the figures."""

import contextlib
import time

import loads
from loads import Load, REGION
from servers import MIB, Harvest, Peer

FLASH = 16 << 30
# For what takes as long as there is data.
SMALL = 4 << 30
PEERS = ("nbdkit", "qemu-nbd")
ALONE = ("write", "read", "randread-1", "randread-32", "randwrite-1", "randwrite-32", "flush")
BORROWED = ("write", "read", "randread-32")


def turns(names, round_):
    """Another one is first in each round."""
    names = list(names)
    return names[round_ % len(names):] + names[:round_ % len(names)]


def peers(options, absent):
    """A regular vSSD beside others that serve a file."""
    with contextlib.ExitStack() as running:
        host = running.enter_context(Harvest(options.work, "peers", FLASH))
        uris = {"headstart": host.create("db", "regular", 4)}
        for name in PEERS:
            if name not in absent:
                uris[name] = running.enter_context(Peer(options.work, name, REGION)).uri
        for uri in uris.values():
            loads.fill(uri)
        for round_ in range(options.rounds):
            for load in ALONE:
                for name in turns(uris, round_):
                    yield {"part": "peers", "who": name, "load": load, "round": round_,
                           **loads.run(uris[name], load, options.seconds)}


class Pair:
    """A regular VM of 4 channels, and a harvest VM of 1 that has borrowed 2 of them."""

    def __init__(self, options, name, rate):
        self.host = Harvest(options.work, name, FLASH, rate)
        try:
            self.regular = self.host.create("regular", "regular", 4)
            self.harvest = self.host.create("harvest", "harvest", 1)
            channel = FLASH // 16
            self.host.ask("POST", "/v1/vssds/regular/offers",
                          {"capacity": channel, "bandwidth": 2, "duration_s": 8 * 3600})
            leases = self.host.lease("harvest", channel // 2, 2)
            self.channels = sum(lease["bandwidth"] for lease in leases)
            for uri in (self.regular, self.harvest):
                loads.fill(uri)
        except BaseException:
            self.host.program.end()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.host.program.end()


def neighbours(options, _):
    """A regular VM alone, and while the harvest VM that borrows from it reads and writes as fast as it can."""
    with contextlib.ExitStack() as running:
        pairs = {"none": running.enter_context(Pair(options, "unlimited", None)),
                 options.rate: running.enter_context(Pair(options, "rated", options.rate))}
        for round_ in range(options.rounds):
            for rate, pair in pairs.items():
                for beside in turns(("nothing", "write", "read"), round_):
                    # It is there before the regular VM begins, and until it has ended.
                    other = Load(pair.harvest, beside, options.seconds + 2) if beside != "nothing" else None
                    time.sleep(1 if other else 0)
                    row = {"part": "neighbours", "rate": rate, "beside": beside, "load": "mixed", "round": round_,
                           "borrowed": pair.channels, **Load(pair.regular, "mixed", options.seconds).end()}
                    row["other"] = other.end() if other else None
                    loads.sync()
                    yield row


def borrowed(options, _):
    """4 channels, 4 and 2 borrowed ones, and 6 of one's own; each channel has a rate."""
    with Harvest(options.work, "borrowed", FLASH, options.rate) as host:
        uris = {"4 own": host.create("four", "harvest", 4),
                "4 own, 2 borrowed": host.create("borrower", "harvest", 4),
                "6 own": host.create("six", "harvest", 6)}
        host.create("shelf", "unsold", 2)
        host.lease("borrower", FLASH // 16, 2)
        for uri in uris.values():
            loads.fill(uri)
        for round_ in range(options.rounds):
            for load in BORROWED:
                for name in turns(uris, round_):
                    yield {"part": "borrowed", "who": name, "load": load, "round": round_, "rate": options.rate,
                           **loads.run(uris[name], load, options.seconds)}


def times(options, _):
    """How long it takes to lend flash that is spare, and to have it back."""
    for round_ in range(options.rounds):
        for row in (*lent(options, f"lent-{round_}"), *(sold(options, f"sold-{round_}-{room}", room)
                                                        for room in (True, False))):
            yield {"part": "times", "round": round_, **row}


def timed(work):
    start = time.monotonic()
    result = work()
    return round(time.monotonic() - start, 4), result


def ready(host):
    """Bytes that can be had at once."""
    return sum(gssd["capacity"] for gssd in host.ask("GET", "/v1/status")["pool"] if gssd["ready"])


def lent(options, name):
    """Half a channel of a regular vSSD: offered, requested, written, given back."""
    half = SMALL // 16 // 2
    with Harvest(options.work, name, SMALL) as host:
        host.create("db", "regular", 2)
    # A daemon that begins again knows of no flash block that it is clean: all are erased before they are lent.
    with Harvest(options.work, name, SMALL) as host:
        uri = host.create("batch", "harvest", 1)
        offer = {"capacity": half, "bandwidth": 1, "duration_s": 8 * 3600}
        took, got = timed(lambda: (host.ask("POST", "/v1/vssds/db/offers", offer),
                                   host.until(lambda: ready(host), 60, "flash to spare"))[1])
        yield {"what": "offered", "seconds": took, "bytes": got}
        took, leases = timed(lambda: host.lease("batch", half, 1))
        got = sum(lease["capacity"] for lease in leases)
        yield {"what": "requested", "seconds": took, "bytes": got}
        fill_up(host, uri)
        took, _ = timed(lambda: (host.ask("DELETE", "/v1/vssds/batch/leases"),
                                 host.until(lambda: ready(host) >= got, 60, "flash that came back")))
        yield {"what": "released", "seconds": took, "bytes": got}


def sold(options, name, room):
    """A channel that was nobody's and is lent and full of data is sold: until its owner has it."""
    with Harvest(options.work, name, SMALL) as host:
        uri = host.create("batch", "harvest", 1)
        host.create("shelf", "unsold", 1)
        # All channels are somebody's: the one that is sold is the one that was lent.
        host.create("rest", "regular", 12 if room else 14)
        leases = host.lease("batch", SMALL // 16 // 2, 1)
        fill_up(host, uri)
        if room:
            host.create("room", "unsold", 2)
            host.until(lambda: ready(host), 60, "room elsewhere")
        took, _ = timed(lambda: (host.ask("DELETE", "/v1/vssds/shelf"), host.create("db", "regular", 1, 120)))
        broker = host.ask("GET", "/v1/status")["broker"]
        return {"what": "moved" if room else "lost", "seconds": took,
                "bytes": sum(lease["capacity"] for lease in leases), "migrated": broker["migrated"],
                "evicted": broker["evicted"]}


def fill_up(host, uri):
    """Nearly all of the harvest disk: a lease has its share of it."""
    size = host.ask("GET", "/v1/vssds/batch")["size"]
    loads.fill(uri, size // 16 * 15 // MIB * MIB)
