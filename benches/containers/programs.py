"""Programs that are measured, and those that they need beside them: a registry, a link to it, containerd."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

from rig import LONGEST, SHAPER, Failed, Running, run

# The size of a run's own file system, of which it takes what is written.
PLACE_SIZE = 12 << 30
TICKS = os.sysconf("SC_CLK_TCK")


def processor_time(pid):
    """Seconds that a process and the children that it waited for took of processors, and its largest memory."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return sum(int(field) for field in fields[11:15]) / TICKS, int(peak.split()[1]) << 10


def measured(*command, beside=None, env=None, to=None):
    """Runs a program to its end; what it said (if not `to` elsewhere), and what that took. Counts what a program
    beside it did, too."""
    command = [str(part) for part in command]
    os.sync()
    before = processor_time(beside.process.pid)[0] if beside else 0
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        start = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=to or output,
                                   stderr=errors, env={**os.environ, **(env or {})})
        limit = threading.Timer(LONGEST, process.kill)
        limit.start()
        _, status, used = os.wait4(process.pid, 0)
        wall = time.monotonic() - start
        limit.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        said, complaint = output.read().decode(), errors.read().decode(errors="replace")
    if process.returncode != 0:
        raise Failed(f"{' '.join(command)}: {process.returncode}: {complaint.strip()[-800:]}")
    figures = {"wall": wall, "cpu": used.ru_utime + used.ru_stime, "rss": used.ru_maxrss << 10}
    if beside:
        after, peak = processor_time(beside.process.pid)
        figures["cpu"] += after - before
        figures["rss"] = max(figures["rss"], peak)
    return said, figures


def stored(place):
    """Bytes that a tree takes on its file system, each file once."""
    seen, total = set(), 0
    for directory, names, files in os.walk(place):
        for name in [*files, *names, "."]:
            found = os.lstat(os.path.join(directory, name))
            if (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                total += found.st_blocks * 512
    return total


class Place:
    """An empty directory for one run. For root it is a new ext4 on a loop device: a used one gives no inode again that
    was freed in the last five minutes, and looks at all of these for every new file, so that trees which were removed
    would be measured with those that are made after them."""

    def __init__(self, work):
        self.place = pathlib.Path(tempfile.mkdtemp(dir=work, prefix="run-"))
        self.disk = self.place.with_suffix(".ext4")
        self.is_mounted = False

    def __enter__(self):
        if os.geteuid() == 0:
            with open(self.disk, "wb") as disk:
                disk.truncate(PLACE_SIZE)
            run("mke2fs", "-q", "-F", "-t", "ext4", self.disk)
            run("mount", "-o", "loop,noinit_itable", self.disk, self.place)
            self.is_mounted = True
        return self.place

    def __exit__(self, *_):
        if self.is_mounted:
            run("umount", self.place)
            self.disk.unlink()
        shutil.rmtree(self.place)


class Beside:
    """A program that ends with the block that it is for."""

    program = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.program.end()


class Registry(Beside):
    """A `docker-registry` on a port of its own."""

    def __init__(self, work):
        work.mkdir(parents=True, exist_ok=True)
        config = work / "registry.yml"
        config.write_text(f"""version: 0.1
log: {{accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {work}/registry}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:0"}}
""")
        self.program = Running(work, "registry.out", "docker-registry", "serve", config)
        self.address = self.program.wait_for(self._address, 20)

    def _address(self):
        for line in (self.program.errors.read_text() + self.program.said()).splitlines():
            if "listening on " in line:
                return line.split("listening on ")[1].split('"')[0]
        return None


class Link(Beside):
    """A link to a server with so many MB/s and such a round trip."""

    def __init__(self, work, server, rate, delay):
        # A line on its standard input asks it for counts.
        self.program = Running(work, "link.out", SHAPER, "--to", server, "--rate", f"{rate}MB/s",
                               "--delay", f"{delay}ms", stdin=subprocess.PIPE, text=True)
        self.address = self.program.wait_for(lambda: self.program.said().strip())

    def down(self):
        """Bytes that came over it so far."""
        before = self.program.said().count("moved: ")
        self.program.process.stdin.write("\n")
        self.program.process.stdin.flush()
        said = self.program.wait_for(lambda: self.program.said().count("moved: ") > before and self.program.said())
        return int(said.rpartition("moved: ")[2].split()[0])

    def end(self):
        """What came over it: bytes down and up, connections."""
        said = self.program.end().rpartition("moved: ")[2].split()
        return {"down": int(said[0]), "up": int(said[3]), "connections": int(said[6])}


class Containerd(Beside):
    """A private containerd whose files are all in `work`."""

    def __init__(self, work):
        work.mkdir(parents=True, exist_ok=True)
        self.socket = work / "containerd.sock"
        config = work / "containerd.toml"
        config.write_text(f"""version = 2
root = "{work}/root"
state = "{work}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{self.socket}"
[ttrpc]
  address = "{self.socket}.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "{work}/opt"
""")
        self.program = Running(work, "containerd.out", "containerd", "--config", config, "--log-level", "warn")
        self.program.wait_for(self._answers)

    def _answers(self):
        return subprocess.run(self.client("version"), capture_output=True).returncode == 0

    def client(self, *arguments):
        return ["ctr", "--address", str(self.socket), *map(str, arguments)]
