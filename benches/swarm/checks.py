"""What the swarm has to show, each with its limit."""

import dataclasses
import statistics

import faults
import figures

OURS = "swarm"
# The longest that a read may take, in seconds: `attach --deadline` is 5 minutes.
DEADLINE = 300


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


def all_checks(rows, beside=()):
    """Of measurements, and of what was simulated beside them."""
    table = Table(rows)
    of_all = (_same, _shifted, _disjoint, _repository, _faults, _overhead, _right)
    return [check for of in of_all for check in of(table)] + list(_simulated(list(beside)))


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
        unread = table.median("sync-disjoint", OURS, figures.unread_share)
        if unread is not None:
            yield Check("Sync-Disjoint: most that a host prefetched and did not read, as a share of the threshold",
                        unread, 1)
    if found := table.beside("boot-disjoint", figures.completion, "independent"):
        yield Check("The same after a boot that all share: completion / independent", found[0] / found[1], 0.8,
                    note=_seconds(*found))


def _repository(table):
    """The image is on the hosts, and the store is gone."""
    median = lambda pattern, figure: table.median(pattern, "pinned", figure)
    if found := median("sync-same", figures.times_least):
        yield Check("Fleet as repository, Sync-Same: completion / (region / uplink)", found, 1.7)
        yield Check("Fleet as repository, Sync-Same: bytes from the store", median("sync-same", figures.from_store), 0)
        yield Check("Fleet as repository, Sync-Same: slowest / fastest host's throughput",
                    median("sync-same", figures.fairness), 0.9, least=True)
    for pattern, name, figure, limit in (("shifted-same", "Shifted-Same", figures.slowest, 3.5),
                                         ("sync-disjoint", "Sync-Disjoint", figures.completion, 1 / 1.03)):
        found = table.beside(pattern, figure, "independent", ours="pinned")
        if found:
            yield Check(f"Fleet as repository, {name}: times faster than independent", found[1] / found[0], limit,
                        least=True, note=_seconds(*found))


def faulty(rows):
    """Measurements of swarms with a fault, those that failed as well."""
    return [row for row in rows if ":" in row["pattern"] and row["contestant"] != "independent"]


def _faults(table):
    """Each beside independent reads of the same pattern without a fault."""
    for row in faulty(table.rows):
        pattern, fault = row["pattern"].split(":")
        name = faults.TITLES[fault]
        yield Check(f"{name}: hosts whose reading failed", sum(bool(one["error"]) for one in row["each"]), 0)
        lazy = table.median(pattern, "independent", figures.completion)
        if lazy and not figures.failed(row):
            done = figures.completion(row)
            yield Check(f"{name}: completion / independent without a fault", done / lazy, 1,
                        note=_seconds(done, lazy))
    longest = max(map(figures.longest_read, table.rows), default=None)
    if longest is not None:
        yield Check("the longest read of all, s", longest, DEADLINE)


def _overhead(table):
    if table.get("idle", OURS):
        median = lambda figure: table.median("idle", OURS, figure)
        yield Check("no host reads: busiest host's agent and disk, share of a processor", median(figures.most_worked),
                    0.02)
        yield Check("no host reads: busiest host's link, share of what it carries", median(figures.most_moved), 0.01)
    ours, other = table.get("alone", OURS), table.get("alone", "independent")
    if ours and other:
        # Seconds of a processor more than without a swarm, in the time that it takes.
        spent = lambda rows: statistics.median(figures.worked(row, 0) for row in rows)
        done = statistics.median(map(figures.completion, ours))
        yield Check("one host reads alone: processor time beyond independent, as a share of a processor",
                    (spent(ours) - spent(other)) / done, 0.02, note=_seconds(spent(ours), spent(other)))
        yield Check("one host reads alone: its exchange with others, share of its link",
                    table.median("alone", OURS, figures.beside_store)
                    - table.median("alone", "independent", figures.beside_store), 0.01)
        yield Check("one host reads alone: completion / independent",
                    done / statistics.median(map(figures.completion, other)), 1.03)


def _simulated(beside):
    for figure, which in (("times", lambda one: one.figure.endswith(", s")), ("bytes", lambda one: "MB" in one.figure)):
        deviations = [(abs(one.deviation), one) for one in beside if which(one) and one.deviation is not None]
        if deviations:
            most, one = max(deviations, key=lambda pair: pair[0])
            yield Check(f"simulated {figure}: largest deviation from the measured ones", most, 0.15,
                        note=f"{one.pattern}, {one.contestant}")


def _right(table):
    """What was read is compared with the disk, out of the time."""
    yield Check("hosts that read a wrong byte", sum(row.get("wrong") or 0 for row in table.rows), 0)
