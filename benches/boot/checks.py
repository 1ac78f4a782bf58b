"""What headstart has to show, measured: each check with its limit, and by how much it is met or missed."""

import dataclasses
import statistics

import predictions
from figures import boot, interval, moved, p99, requests, wait

PREFETCHING = ("planned", "optimized")


@dataclasses.dataclass
class Check:
    """Met where `value` is at most `limit` (at least, where `least`)."""

    goal: str
    where: str
    value: float
    limit: float
    least: bool = False
    note: str = ""

    @property
    def met(self):
        return self.value >= self.limit if self.least else self.value <= self.limit

    @property
    def margin(self):
        """Above 1 where it is met: how many times better than it has to be."""
        better, worse = (self.value, self.limit) if self.least else (self.limit, self.value)
        return better / worse if worse else float("inf")


def words(setting):
    rate, delay, grace, faster = setting
    return f"{rate} MB/s, {delay} ms, grace {grace} s" + (f", {faster} times faster" if faster != 1 else "")


def of_waits(figures, predicted):
    """Total waits beside what the field does; with what a boot would wait of which everything was known."""
    for image in figures.images():
        for setting in figures.settings():
            rate, delay, grace, _ = setting
            if delay != 20 or rate not in (2, 5, 10):
                continue
            limits = {"whole-lazy": 1 / 4}
            if rate in (5, 10):
                limits = {"whole-lazy": 1 / 10 if grace else 1 / 5, "nbdkit": 1 / 10 if grace else 1 / 5,
                          "whole-score": 1 / 5}
            foreseen = predicted(image, "foreseen", setting, figures.traces(image, "whole-lazy", setting))
            for ours in PREFETCHING:
                value = figures.median(image, ours, setting, wait)
                for peer, limit in limits.items():
                    other = figures.median(image, peer, setting, wait)
                    if value is not None and other:
                        yield Check(f"total wait, {ours} / {peer}", f"{image}, {words(setting)}", value / other, limit,
                                    note=f"{value:.2f} s / {other:.2f} s"
                                    + (f"; all foreseen {foreseen[0]:.2f} s" if foreseen else ""))


def of_boots(figures):
    """P99 and the time to the last read at 10 MB/s, recorded speed."""
    for image in figures.images():
        for grace in (3, 0):
            setting = (10, 20, grace, 1)
            local = figures.median(image, "local", setting, boot)
            for ours, limit in (("planned", 1.10), ("optimized", 1.05)):
                value = figures.median(image, ours, setting, boot)
                if value is None or local is None:
                    continue
                where = f"{image}, {words(setting)}"
                yield Check(f"time to the last read, {ours} / local", where, value / local, limit,
                            note=f"{value:.2f} s / {local:.2f} s")
                if grace == 3:
                    yield Check(f"P99 wait, {ours} [s]", where, figures.median(image, ours, setting, p99), 0.05)


def of_guests(figures):
    for image in figures.images():
        for ours in PREFETCHING:
            pairs = figures.pairs(image, ours)
            if pairs:
                low, high = interval(pairs)
                yield Check(f"guest to SERVICE-UP, {ours} / local", f"{image}, {len(pairs)} pairs",
                            statistics.median(pairs), 1.15, note=f"interval {low:.3f} to {high:.3f}")


def of_bytes(figures, needed):
    """`needed(image, trace)`: the compressed size of the distinct slices of that boot, until its last read."""
    for image in figures.images():
        sizes = [size for trace in figures.traces(image, "local", (10, 20, 3, 1)) if (size := needed(image, trace))]
        for ours, limit in (("planned", 1.25), ("optimized", 1.1)):
            for where, rows in moved_by(figures, image, ours):
                shares = [moved(row) / (needed(image, row.get("trace")) or statistics.median(sizes)) for row in rows
                          if sizes]
                if shares:
                    yield Check(f"bytes, {ours} / needed", where, statistics.median(shares), limit,
                                note=f"{statistics.median(map(moved, rows)) / 1e6:.1f} MB")
                if rows and ours == "optimized":
                    misses = statistics.median(row["disk"]["waits"]["reads"] for row in rows)
                    yield Check("requests, optimized", where, statistics.median(map(requests, rows)), 20,
                                note=f"{misses:.0f} reads waited: one more is allowed for each that no plan foresaw")


def moved_by(figures, image, contestant):
    """(where, measurements) at 10 MB/s and 20 ms: replays at recorded speed, and guests."""
    for setting in figures.settings():
        if setting[:2] == (10, 20) and setting[3] == 1:
            yield f"{image}, {words(setting)}", figures.replayed(image, contestant, setting)
    yield f"{image}, guests", figures.guests(image, contestant)


def of_zero_shot(figures):
    for image in figures.images(derived=True):
        for setting in figures.settings():
            lazy, zero, own = (figures.median(image, how, setting, wait) for how in ("lazy", "zero-shot", "planned"))
            if None not in (lazy, zero, own) and lazy > own:
                yield Check("zero-shot's share of the trained plan's gain", f"{image}, {words(setting)}",
                            (lazy - zero) / (lazy - own), 0.6, least=True,
                            note=f"{lazy:.2f} s, {zero:.2f} s, {own:.2f} s")


def of_harm(figures):
    """The boot's time, not its waits: two percent of nothing are nothing."""
    for image in figures.images() + figures.images(derived=True):
        for setting in figures.settings():
            lazy = figures.median(image, "lazy", setting, boot)
            for ours in ("planned", "optimized", "zero-shot", "useless", "adversarial"):
                value = figures.median(image, ours, setting, boot)
                if lazy and value is not None:
                    useless = ours in ("useless", "adversarial")
                    yield Check(f"never hurts: {ours} / lazy", f"{image}, {words(setting)}", value / lazy,
                                1.05 if useless else 1.02, note=f"{value:.2f} s / {lazy:.2f} s")


def of_predictions(figures, predicted):
    """A setting is right where one of its figures is within 15%; a share of the settings has to be."""
    near = [any(abs(one - other) <= 0.15 * other for one, other in zip(said, measured))
            for *_, said, measured in predictions.beside(figures, predicted)]
    if near:
        yield Check("predictions within 15% of the total wait or the boot's time", f"{len(near)} settings",
                    sum(near) / len(near), 0.9, least=True)


def all_checks(figures, needed, predicted):
    found = [*of_waits(figures, predicted), *of_boots(figures), *of_guests(figures), *of_bytes(figures, needed)]
    return [*found, *of_zero_shot(figures), *of_harm(figures), *of_predictions(figures, predicted)]
