"""What the measurements say together: medians, ratios, intervals."""

import math
import statistics


def reads_wait(row):
    """Seconds that reads which were no hits waited."""
    return row["replay"]["wait"]["missed"]


def reads_take(row):
    """Seconds from the first read to the last answer."""
    return row["replay"]["last_read"] - row["replay"]["first_read"]


def late(row):
    """Seconds that the disk was ready after the grace period."""
    return max(0.0, row["ready"] - row["grace"])


def wait(row):
    """Seconds that a machine waited for its disk."""
    return late(row) + reads_wait(row)


def boot(row):
    """Seconds from where the first read should have come until the last was answered."""
    return late(row) + reads_take(row)


def p99(row):
    return row["replay"]["wait"]["p99"]


def moved(row):
    return row["moved"]["down"]


def requests(row):
    return row["moved"]["requests"]


def interval(values):
    """The narrowest interval of order statistics that has the median with at least 95%; all of them where few."""
    values, count = sorted(values), len(values)
    for cut in range(count // 2, -1, -1):
        outside = 2 * sum(math.comb(count, k) for k in range(cut + 1)) / 2**count
        if outside <= 0.05:
            return values[cut], values[-1 - cut]
    return (values[0], values[-1]) if values else (math.nan, math.nan)


class Figures:
    """Looks measurements up, by setting (rate, delay, grace, faster)."""

    def __init__(self, rows):
        self.rows, self.places = rows, {}
        for row in rows:
            self.places.setdefault(self._place(row), []).append(row)

    @staticmethod
    def _place(row):
        kind, contestant = row["kind"], row["contestant"]
        if kind == "guest":
            return kind, row["image"], contestant
        if kind == "download":
            return kind, row["image"], row["rate"], row["delay"]
        if contestant == "local":
            return kind, row["image"], contestant, row["faster"]
        return kind, row["image"], contestant, row["rate"], row["delay"], row["grace"], row["faster"]

    def replayed(self, image, contestant, setting):
        """The replays of a contestant in a setting. A download, then a local disk, for the one that downloads."""
        rate, delay, grace, faster = setting
        if contestant == "local":
            return [row | {"grace": grace, "ready": 0.0}
                    for row in self.places.get(("replay", image, "local", faster), [])]
        if contestant != "download":
            return self.places.get(("replay", image, contestant, rate, delay, grace, faster), [])
        downloads = self.places.get(("download", image, rate, delay), [])
        if not downloads:
            return []
        took = statistics.median(row["ready"] for row in downloads)
        return [row | {"grace": grace, "ready": took, "moved": downloads[-1]["moved"]}
                for row in self.places.get(("replay", image, "local", faster), [])]

    def median(self, image, contestant, setting, figure):
        """None where nothing was measured."""
        rows = self.replayed(image, contestant, setting)
        return statistics.median(map(figure, rows)) if rows else None

    def traces(self, image, contestant, setting):
        """The boots that were replayed."""
        return sorted({row["trace"] for row in self.replayed(image, contestant, setting)})

    def guests(self, image, contestant):
        return self.places.get(("guest", image, contestant), [])

    def pairs(self, image, contestant):
        """Each round's boot of a contestant as a multiple of the local disk's in the same round."""
        local = {row["repetition"]: row["up"] for row in self.guests(image, "local")}
        return [row["up"] / local[row["repetition"]] for row in self.guests(image, contestant)
                if row["repetition"] in local]

    def settings(self):
        """All that something was measured in."""
        found = {(row["rate"], row["delay"], row["grace"], row["faster"]) for row in self.rows
                 if row["kind"] == "replay" and row["contestant"] != "local"}
        return sorted(found, key=lambda one: (one[2] != 3, one[3], one[1] != 20, one[1], one[0]))

    def images(self, derived=False):
        names = dict.fromkeys(row["image"] for row in self.rows if row["image"].endswith("-derived") == derived)
        return list(names)
