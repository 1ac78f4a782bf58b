"""What the measurements say."""

MB = 1e6


def took(row):
    """Seconds that each host read, from when it began."""
    return [one["ended"] - one["began"] for one in row["each"]]


def speeds(row):
    """MB/s that each host read, as the disk counts."""
    return [one["read"] / seconds / MB for one, seconds in zip(row["each"], took(row))]


def least_possible(row):
    """Seconds that the region takes over the store's link, without anything around it."""
    return row["region"] / row["uplink"] / MB


def from_store(row):
    """Bytes that the store sent while it was read."""
    return sum(one["store"] for one in row["each"])


def from_peers(row):
    """Bytes that hosts sent, headers included; what they ask of the store is in it, and small."""
    return sum(one["up"] for one in row["each"])


def summary(row):
    """One line of words."""
    own, rates = took(row), speeds(row)
    errors = [one["error"] for one in row["each"] if one["error"]]
    parts = [f"{row['completion']:.2f} s", f"{row['completion'] / least_possible(row):.2f} x region/uplink",
             f"each {min(own):.2f} to {max(own):.2f} s (mean {sum(own) / len(own):.2f})",
             f"{min(rates):.2f} to {max(rates):.2f} MB/s",
             f"store {from_store(row) / MB:.1f} MB = {from_store(row) / row['region']:.2f} x region",
             f"opening {row['opening']['store'] / MB:.1f} MB in {row['open']:.1f} s",
             f"busy {row['busy']:.0%}, {row['worked']:.1f} s of processors",
             f"slowest read {max(one['slowest_read'] for one in row['each']):.2f} s"]
    if row.get("wrong"):
        parts.append(f"{row['wrong']} HOSTS READ WRONG BYTES")
    if errors:
        parts.append(f"{len(errors)} FAILED: {errors[0][:200]}")
    return ", ".join(parts)
