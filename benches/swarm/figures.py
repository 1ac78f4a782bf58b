"""What the measurements say."""

import statistics

MB = 1e6
# The most that a host prefetches and has not read, by default.
THRESHOLD = 16 << 20


def failed(row):
    return any(one["error"] for one in row["each"])


def completion(row):
    """Seconds from the start until the last host has read everything."""
    return row["completion"]


def readers(row):
    """The hosts that read anything."""
    return [one for one in row["each"] if one["read"]]


def took(row):
    """Seconds that each host read, from when it began."""
    return [one["ended"] - one["began"] for one in readers(row)]


def slowest(row):
    return max(took(row))


def mean(row):
    return statistics.fmean(took(row))


def speeds(row):
    """MB/s that each host read, as the disk counts."""
    return [one["read"] / seconds / MB for one, seconds in zip(readers(row), took(row))]


def fairness(row):
    """The slowest host's throughput as a share of the fastest's."""
    return min(speeds(row)) / max(speeds(row))


def least_possible(row):
    """Seconds that the region takes over the store's link, without anything around it."""
    return row["region"] / row["uplink"] / MB


def times_least(row):
    return row["completion"] / least_possible(row)


def from_store(row):
    """Bytes that the store sent while it was read."""
    return sum(one["store"] for one in row["each"])


def store_share(row):
    return from_store(row) / row["region"]


def exchanged(row, what):
    """A host's bytes of a kind (`on_demand`, `ahead`, `prefetched`, `unread`), on average; None without a swarm."""
    counts = [one["swarm"][what] for one in row["each"] if one.get("swarm")]
    return statistics.fmean(counts) if counts else None


def most_unread(row):
    return max((one["swarm"]["unread"] for one in row["each"] if one.get("swarm")), default=None)


def summary(row):
    """One line of words."""
    own, rates = took(row), speeds(row)
    errors = [one["error"] for one in row["each"] if one["error"]]
    parts = [f"{row['completion']:.2f} s", f"{times_least(row):.2f} x region/uplink",
             f"each {min(own):.2f} to {max(own):.2f} s (mean {mean(row):.2f})",
             f"{min(rates):.2f} to {max(rates):.2f} MB/s",
             f"store {from_store(row) / MB:.1f} MB = {store_share(row):.2f} x region",
             f"opening {row['opening']['store'] / MB:.1f} MB in {row['open']:.1f} s",
             f"busy {row['busy']:.0%}",
             f"{row['worked']:.1f} s of processors, others' {row['others']:.1f} s",
             f"slowest read {max(one['slowest_read'] for one in row['each']):.2f} s"]
    for what in ("on_demand", "ahead", "prefetched", "unread"):
        if (bytes_each := exchanged(row, what)) is not None:
            parts.append(f"{what} {bytes_each / MB:.1f} MB each")
    if row.get("wrong"):
        parts.append(f"{row['wrong']} HOSTS READ WRONG BYTES")
    if errors:
        parts.append(f"{len(errors)} FAILED: {errors[0][:200]}")
    return ", ".join(parts)
