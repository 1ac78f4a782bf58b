"""The same fleet in `headstart simulate fleet`: its figures beside the measured ones."""

import dataclasses
import statistics

import figures
from contestants import COPIES, ROOTS
from image import TIMES
from rig import headstart

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


def _links(rows):
    """What the links gave and how far it is over them, in the median of all calibrations."""
    found = {name: statistics.median(row["links"][name] for row in rows) for name in rows[0]["links"]}
    return ["--uplink", f"{found['uplink']:.2f}MB/s", "--host-link", f"{found['rate']:.2f}MB/s",
            "--round-trip", f"{round(found['round_trip'] * 1e6)}us",
            "--store-round-trip", f"{round(found['store_round_trip'] * 1e6)}us"]


def command(contestant, patterns, hosts, image, rows):
    """What is simulated; settings as they were measured, and nothing fitted."""
    region = image.layer // TIMES // READ * READ
    return ["simulate", "fleet", "--hosts", hosts, "--region", region, "--patterns", ",".join(patterns),
            *_links(rows), *WAYS[contestant]]


def all_beside(found, hosts, image):
    """Of each contestant and pattern that were measured: a time, and what the store sent."""
    for contestant in WAYS:
        measured = [pattern for pattern in PATTERNS if found.get(pattern, contestant)]
        if not measured:
            continue
        report = headstart(*command(contestant, measured, hosts, image, found.rows))
        for row in report["rows"]:
            # The last of those that begin one after the other says little: each host's own time counts.
            of, theirs, name = (figures.slowest, "took_max", "slowest host's own time, s") \
                if row["pattern"] == "shifted-same" else (figures.completion, "completion", "completion, s")
            median = lambda figure: found.median(row["pattern"], contestant, figure)
            yield Beside(row["pattern"], contestant, name, median(of), row[theirs])
            yield Beside(row["pattern"], contestant, "from the store, MB", median(figures.from_store) / figures.MB,
                         row["store_bytes"] / figures.MB)
