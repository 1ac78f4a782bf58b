"""What the measurements say."""

import statistics

MB = 1e6
# What hosts get from each other, by why.
EXCHANGED = ("on_demand", "ahead", "prefetched", "unread")


def failed(row):
    return any(one["error"] for one in row["each"])


def completion(row):
    """Seconds from the start until the last host has read everything."""
    return row["completion"]


def readers(row):
    """The hosts that read anything."""
    return [one for one in row["each"] if one["read"]]


def took(row):
    """Seconds that each host read, from when it began; one of none where nobody read."""
    return [one["ended"] - one["began"] for one in readers(row)] or [0.0]


def slowest(row):
    return max(took(row))


def mean(row):
    return statistics.fmean(took(row))


def speeds(row):
    """MB/s that each host read, as the disk counts."""
    return [one["read"] / seconds / MB for one, seconds in zip(readers(row), took(row))] or [0.0]


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


def threshold(read):
    """Bytes that a host may have prefetched and not read, by default, when it has read so many, as stored."""
    return min(16 << 20, (512 << 10) + read // 100)


def most_unread(row):
    """Bytes that a host prefetched and did not read, the most of any."""
    return max((one["swarm"]["unread"] for one in row["each"] if one.get("swarm")), default=0)


def unread_share(row):
    """The most that a host has prefetched and not read, as a share of what it may have: once anew after each reset."""
    read = lambda one: one.get("stored", one["read"] // 2)
    shares = [one["swarm"]["unread"] / threshold(read(one)) / (1 + one["swarm"]["counters"].get("resets_total", 0))
              for one in row["each"] if one.get("swarm")]
    return max(shares, default=None)


def longest_read(row):
    return max(one["slowest_read"] for one in row["each"])


def dropped(row):
    """How often hosts dropped another for what it did."""
    return sum(count for one in row["each"] if one.get("swarm")
               for name, count in one["swarm"]["counters"].items() if name.startswith("dropped_"))


def worked(row, host):
    """Processor seconds of a host's agent and disk."""
    return sum(row["each"][host].get("worked", {}).values())


def most_worked(row):
    """The busiest host's agent and disk, as a share of one processor."""
    return max(worked(row, host) for host in range(len(row["each"]))) / row["completion"]


def most_moved(row):
    """What went over the busiest host's link, in its busier direction, as a share of what the link carries."""
    return max(max(one["down"], one["up"]) for one in row["each"]) / (row["rate"] * MB * row["completion"])


def beside_store(row, host=0):
    """What a host exchanged with others than the store, as a share of what its link carries in that time, the busier
    direction."""
    one = row["each"][host]
    return max(one["down"] - one["store"], one["up"]) / (row["rate"] * MB * row["completion"])


def record(row):
    """What a program may want to know of a measurement."""
    kept = {name: row[name] for name in ("pattern", "contestant", "hosts", "region", "uplink", "rate", "repetition",
                                         "links", "build", "at", "completion", "wrong", "busy", "worked")}
    kept |= {"failed": [one["error"] for one in row["each"] if one["error"]],
             "from_store": from_store(row), "opening": row["opening"]["store"], "longest_read": longest_read(row),
             "dropped": dropped(row), "most_worked": most_worked(row), "most_moved": most_moved(row),
             "took": [round(seconds, 3) for seconds in took(row)], "speeds": [round(speed, 3) for speed in speeds(row)]}
    return kept | {what: exchanged(row, what) for what in EXCHANGED}


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
             f"slowest read {longest_read(row):.2f} s",
             f"busiest host {most_worked(row):.1%} of a processor, {most_moved(row):.2%} of its link"]
    if dropped(row):
        parts.append(f"{dropped(row)} hosts dropped")
    for what in EXCHANGED:
        if (bytes_each := exchanged(row, what)) is not None:
            parts.append(f"{what} {bytes_each / MB:.1f} MB each")
    if row.get("wrong"):
        parts.append(f"{row['wrong']} HOSTS READ WRONG BYTES")
    if errors:
        parts.append(f"{len(errors)} FAILED: {errors[0][:200]}")
    return ", ".join(parts)
