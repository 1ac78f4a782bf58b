"""What the swarm has to show, each with its limit."""

import dataclasses
import statistics

import figures

OURS = "swarm"


@dataclasses.dataclass
class Check:
    """Met where `value` is at most `limit` (at least, where `least`)."""

    goal: str
    value: float
    limit: float
    least: bool = False
    note: str = ""

    @property
    def met(self):
        return self.value >= self.limit if self.least else self.value <= self.limit


class Table:
    """Measurements by pattern and contestant; a figure of several is their median."""

    def __init__(self, rows):
        self.rows = rows

    def get(self, pattern, contestant):
        return [row for row in self.rows if (row["pattern"], row["contestant"]) == (pattern, contestant)
                and not figures.failed(row)]

    def median(self, pattern, contestant, figure):
        """None where nothing was measured."""
        rows = self.get(pattern, contestant)
        return statistics.median(map(figure, rows)) if rows else None

    def beside(self, pattern, figure, other, ours=OURS):
        """Ours and the other's, where both were measured."""
        values = self.median(pattern, ours, figure), self.median(pattern, other, figure)
        return None if None in values else values


def all_checks(rows):
    table = Table(rows)
    return [check for of in (_same, _shifted, _disjoint, _right) for check in of(table)]


def _seconds(ours, other):
    return f"{ours:.1f} s / {other:.1f} s"


def _same(table):
    ours = lambda figure: table.median("sync-same", OURS, figure)
    if found := ours(figures.times_least):
        yield Check("Sync-Same: completion / (region / uplink)", found, 1.7)
        yield Check("Sync-Same: bytes from the store / region", ours(figures.store_share), 1.15)
        yield Check("Sync-Same: slowest / fastest host's throughput", ours(figures.fairness), 0.9, least=True)
    for other, least in (("tree", 2.5), ("independent", 7)):
        if found := table.beside("sync-same", figures.completion, other):
            yield Check(f"Sync-Same: times faster than {other}", found[1] / found[0], least, least=True,
                        note=_seconds(*found))


def _shifted(table):
    """Each host's own time counts, as in the paper: the last one begins late."""
    if found := table.beside("shifted-same", figures.slowest, "independent"):
        yield Check("Shifted-Same: times faster than independent, slowest host's own time", found[1] / found[0], 3.5,
                    least=True, note=_seconds(*found))


def _disjoint(table):
    if found := table.beside("sync-disjoint", figures.completion, "independent"):
        yield Check("Sync-Disjoint: completion / independent", found[0] / found[1], 1.03, note=_seconds(*found))
        unread = table.median("sync-disjoint", OURS, figures.most_unread)
        if unread is not None:
            yield Check("Sync-Disjoint: most bytes that a host prefetched and did not read, MB", unread / 1e6,
                        figures.THRESHOLD / 1e6)
    if found := table.beside("boot-disjoint", figures.completion, "independent"):
        yield Check("The same after a boot that all share: completion / independent", found[0] / found[1], 0.8,
                    note=_seconds(*found))


def _right(table):
    """What was read is compared with the disk, out of the time."""
    yield Check("hosts that read a wrong byte", sum(row.get("wrong") or 0 for row in table.rows), 0)
