"""What fio does to a disk, and what it says of it."""

import json
import os
import subprocess

from rig import Failed

# Of each disk so much is used: it fits the page cache many times over, as the peers' files do.
REGION = 768 << 20
LOADS = {
    "write": ["1 MiB writes", "--rw=write", "--bs=1M", "--iodepth=4"],
    "read": ["1 MiB reads", "--rw=read", "--bs=1M", "--iodepth=4"],
    "randread-1": ["4 KiB random reads, one at a time", "--rw=randread", "--bs=4k", "--iodepth=1"],
    "randread-32": ["4 KiB random reads, 32 at a time", "--rw=randread", "--bs=4k", "--iodepth=32"],
    "randwrite-1": ["4 KiB random writes, one at a time", "--rw=randwrite", "--bs=4k", "--iodepth=1"],
    "randwrite-32": ["4 KiB random writes, 32 at a time", "--rw=randwrite", "--bs=4k", "--iodepth=32"],
    "flush": ["4 KiB random write, then a flush", "--rw=randwrite", "--bs=4k", "--iodepth=1", "--fsync=1"],
    "mixed": ["4 KiB, 70% reads, 30% writes, 8 at a time", "--rw=randrw", "--rwmixread=70", "--bs=4k",
              "--iodepth=8"],
}
WRITES = ("write", "randwrite-1", "randwrite-32", "flush", "mixed")


def title(load):
    return LOADS[load][0]


def sync():
    """What loads left in memory goes to disk, so that the next does not pay for it."""
    os.sync()


class Load:
    """A load that runs."""

    def __init__(self, uri, load, seconds, region=REGION):
        self.load = load
        command = ["fio", f"--name={load}", "--ioengine=nbd", f"--uri={uri}", f"--size={region}", "--time_based",
                   f"--runtime={round(seconds * 1000)}ms", "--randseed=1", "--norandommap", "--output-format=json",
                   "--percentile_list=50:95:99", *LOADS[load][1:]]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self):
        """Waits for its end. Bytes and operations a second, and percentiles of how long one took, in microseconds."""
        said, errors = self.process.communicate(timeout=300)
        try:
            job = json.loads(said[said.index("{"):])["jobs"][0]
        except (ValueError, KeyError, IndexError):
            raise Failed(f"fio {self.load}: {errors.strip()[-400:]}") from None
        if job["error"] or self.process.returncode:
            raise Failed(f"fio {self.load}: {errors.strip()[-400:]}")
        sides = [job[side] for side in ("read", "write") if job[side]["total_ios"]]
        bounds = lambda part: {f"p{float(key):.0f}": nanoseconds / 1e3
                               for key, nanoseconds in part.get("percentile", {}).items()}
        result = {"bytes": sum(side["bw_bytes"] for side in sides), "iops": sum(side["iops"] for side in sides)}
        # Of a mixed load what reads took: writes wait for memory alone.
        result |= bounds(sides[0]["clat_ns"])
        if self.load == "flush":
            result |= bounds(job["sync"]["lat_ns"])
        return result


def run(uri, load, seconds, region=REGION):
    """Runs one to its end."""
    result = Load(uri, load, seconds, region).end()
    if load in WRITES:
        sync()
    return result


def fill(uri, region=REGION):
    """Writes all of the region once."""
    command = ["fio", "--name=fill", "--ioengine=nbd", f"--uri={uri}", f"--size={region}", "--rw=write", "--bs=1M",
               "--iodepth=4", "--output-format=json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    if done.returncode:
        raise Failed(f"fio fill: {done.stderr.strip()[-400:]}")
    sync()
