"""The same fleet in `headstart-lab simulate fleet`: its figures beside the measured ones."""

import dataclasses
import os
import statistics

import figures
from contestants import COPIES, ROOTS
from image import TIMES
from rig import lab

PATTERNS = ("sync-same", "shifted-same", "sync-disjoint", "boot-disjoint")
SWARM = ("--ways", "swarm")
# What each contestant is there.
WAYS = {
    "independent": ["--ways", "independent"],
    "tree": ["--ways", "tree"],
    "swarm-0": [*SWARM, "--thresholds", "0"],
    "swarm": [*SWARM],
    "swarm-inf": [*SWARM, "--thresholds", "inf"],
    "swarm-roots": [*SWARM, "--topology", "roots", "--roots", ROOTS],
    "pinned": [*SWARM, "--pinned", COPIES],
}
# A simulated read, as stored: parts of an image are multiples of it.
READ = 1 << 20


@dataclasses.dataclass
class Beside:
    """A figure, measured and simulated."""

    pattern: str
    contestant: str
    figure: str
    measured: float
    simulated: float

    @property
    def deviation(self):
        """As a share of the measured one; None where there was nothing to measure."""
        return self.simulated / self.measured - 1 if self.measured else None


# Of a packet, beside its payload: Ethernet's, IP's and TCP's heads. What a download gave is payload; shaped, and
# simulated, is what goes over a link.
HEADS, PAYLOAD = 66, 1448


def _wire(payload):
    """MB/s of it, as an option is given."""
    return f"{payload * (1 + HEADS / PAYLOAD):.2f}MB/s"


def _links(rows):
    """What the links gave and how far it is over them, in the median of all calibrations."""
    found = {name: statistics.median(row["links"][name] for row in rows) for name in rows[0]["links"]}
    return ["--uplink", _wire(found["uplink"]), "--host-link", _wire(found["rate"]),
            "--round-trip", f"{round(found['round_trip'] * 1e6)}us",
            "--store-round-trip", f"{round(found['store_round_trip'] * 1e6)}us"]


@dataclasses.dataclass
class Costs:
    """What the processors of this machine, which all hosts share, let them exchange. Taken from contestants that they
    do not hold back."""

    # Processor seconds for a GB that agents exchange and nobody reads: where everything is prefetched, what is read
    # is the same, and so much more is exchanged.
    exchanged: float
    # And for a GB, as stored, that disks bring and somebody reads: all that is not the agents'.
    read: float

    @property
    def together(self):
        """MB/s that all hosts exchange, each byte once, and read."""
        return 1e3 * os.cpu_count() / (self.exchanged + self.read)


def costs(found):
    """Nothing where what it takes was not measured."""
    median = lambda pattern, contestant, figure: found.median(pattern, contestant, figure)
    all_exchanged = lambda row: sum(figures.exchanged(row, what) for what in ("on_demand", "ahead", "prefetched")) \
        * len(row["each"]) / 1e9
    beside_agents = lambda row: (row["worked"] - sum(one["worked"].get("agent", 0) for one in row["each"])) \
        / (row["region"] * len(row["each"]) / 1e9)
    more = [[median("sync-disjoint", one, figure) for one in ("swarm-inf", "swarm")]
            for figure in (lambda row: row["worked"], all_exchanged)]
    read = median("sync-same", "swarm", beside_agents)
    if None in (*more[0], *more[1], read):
        return None
    (worked, worked_less), (gave, gave_less) = more
    return Costs((worked - worked_less) / (gave - gave_less), read)


def command(contestant, patterns, hosts, image, found):
    """What is simulated; settings as they were measured, and nothing fitted. The processors are those of a swarm's
    programs: where there is none they do next to nothing, or it is another program's."""
    region = image.layer // TIMES // READ * READ
    known = costs(found) if "swarm" in WAYS[contestant] else None
    fabric = ["--fabric", _wire(known.together)] if known else []
    return ["simulate", "fleet", "--hosts", hosts, "--region", region, "--patterns", ",".join(patterns),
            *_links(found.rows), *fabric, *WAYS[contestant]]


def all_beside(found, hosts, image):
    """Of each contestant and pattern that were measured: a time, what the store sent, and what a host had in vain."""
    for contestant in WAYS:
        measured = [pattern for pattern in PATTERNS if found.get(pattern, contestant)]
        if not measured:
            continue
        report = lab(*command(contestant, measured, hosts, image, found))
        for row in report["rows"]:
            # The last of those that begin one after the other says little: each host's own time counts.
            of, theirs, name = (figures.slowest, "took_max", "slowest host's own time, s") \
                if row["pattern"] == "shifted-same" else (figures.completion, "completion", "completion, s")
            median = lambda figure: found.median(row["pattern"], contestant, figure)
            yield Beside(row["pattern"], contestant, name, median(of), row[theirs])
            yield Beside(row["pattern"], contestant, "from the store, MB", median(figures.from_store) / figures.MB,
                         row["store_bytes"] / figures.MB)
            if contestant == "swarm":
                yield Beside(row["pattern"], contestant, "prefetched and never read, the most of any host, kB",
                             median(figures.most_unread) / 1e3, row["unmatched_max"] / 1e3)
