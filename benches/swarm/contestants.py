"""Who competes: each gives every host the disk of the image, as a file that the kernel reads through FUSE."""

import json
import pathlib
import socket
import subprocess
import sys
import time

from image import TAG
from network import STORE, STORE_ADDRESS
from rig import HEADSTART, Failed, Running, run

TREE_PORT, TREE_ARITY = 7000, 2
# A contestant is ready when every disk is there; 24 of them start on few processors.
READY = 60
# So often it is looked whether it is, by a thread a host.
LOOK = 0.02

SWARM_PORT = 4647
# How many hosts each one is told of at its start; gossip tells it of the others.
TOLD = 2
CHUNK = 64 << 10

# Where an agent answers in its directory, and what is asked.
SOCKET, METRIC = "agent.sock", "headstart_agent_swarm_"

# Thresholds beside each other.
SWARMS = {"swarm-0": ["--threshold", "0"], "swarm": [], "swarm-inf": ["--threshold", "none"]}

TITLES = {
    "independent": "each on its own",
    "tree": "all of the image down a tree first",
    "swarm-0": "swarm, nothing prefetched",
    "swarm": "swarm",
    "swarm-inf": "swarm, everything prefetched",
    "local": "the image is on each host already",
}


class Store:
    """A web server over the image, in its own namespace."""

    def __init__(self, place, image):
        self.place = place / "store"
        self.place.mkdir()
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        places = " ".join(f"{kind}_temp_path {self.place}/{kind};" for kind in kinds)
        (self.place / "nginx.conf").write_text(f"""
daemon off; master_process off; pid {self.place}/nginx.pid; error_log stderr;
events {{ worker_connections 4096; }}
http {{
    {places}
    log_format moved '$remote_addr $bytes_sent';
    access_log {self.place}/requests moved;
    default_type application/octet-stream; sendfile on; tcp_nodelay on; keepalive_requests 1000000;
    server {{ listen {STORE_ADDRESS}:80; root {image.layout.parent}; }}
}}
""")
        self.program = Running(self.place, "nginx", "nsenter", f"--net=/var/run/netns/{STORE}", "nginx",
                               "-p", self.place, "-c", self.place / "nginx.conf")
        self.program.wait_for((self.place / "nginx.pid").exists, 5)

    def sent(self):
        """Bytes and requests that were answered whole so far, by address."""
        found = {}
        for line in (self.place / "requests").read_text().splitlines():
            address, count = line.split()
            moved, requests = found.get(address, (0, 0))
            found[address] = moved + int(count), requests + 1
        return found

    def end(self):
        self.program.end()


class Contestant:
    """Disks on all hosts. `open()` is before the time is taken, `use(host)` within it, `path(host)` thereafter."""

    def __init__(self, network, image):
        self.network, self.image = network, image
        self.disks, self.others = {}, []

    def open(self):
        started = [self._attach(host, f"http://{STORE_ADDRESS}/image:{TAG}") for host in self.network.hosts]
        for host in started:
            self._ready(host)

    def use(self, host):
        """The host's disk, as soon as it can be read."""
        return self.path(host)

    @staticmethod
    def path(host):
        return host.place / "disk" / "disk.raw"

    def options(self, host):
        """How disks are attached beyond what all have."""
        return ["--policy", "lazy"]

    def _attach(self, host, reference):
        mount = host.place / "disk"
        mount.mkdir()
        program = host.start("attach", HEADSTART, "attach", reference, "--json", "--no-record", "--fuse", mount,
                             "--cache", host.place / "cache", *self.options(host))
        self.disks[host.number] = program
        return host

    def _ready(self, host):
        program = self.disks[host.number]
        program.wait_for(lambda: "\n" in program.said(), READY, LOOK)

    def exchanged(self, host):
        """What a host had from others so far; nothing where there is no swarm."""
        return None

    def processes(self):
        """What runs for it."""
        return [program.process.pid for program in [*self.disks.values(), *self.others]]

    def end(self):
        """Ends everything, disks first; what each disk said at its end."""
        said = {}
        for number, program in self._ended(self.disks):
            lines = program.said().splitlines()
            said[number] = json.loads(lines[-1]) if len(lines) > 1 and lines[-1].startswith("{") else None
        for _ in self._ended(dict(enumerate(self.others))):
            pass
        return said

    @staticmethod
    def _ended(programs):
        """Asks all of them at once, and each only once: a program that is asked twice leaves without its report."""
        for program in programs.values():
            if program.process.poll() is None:
                program.process.terminate()
        for number, program in programs.items():
            try:
                program.process.wait(20)
            except subprocess.TimeoutExpired:
                program.process.kill()
                program.process.wait()
            yield number, program


class Local(Contestant):
    """What the machine carries, with nothing on the links."""

    def open(self):
        for host in [self._attach(host, f"file://{self.image.layout}:{TAG}") for host in self.network.hosts]:
            self._ready(host)


class Tree(Contestant):
    """Every host waits until all of the image is with it, and attaches it there."""

    def open(self):
        hosts, self.here = self.network.hosts, {}
        program = pathlib.Path(__file__).with_name("tree.py")
        for host in reversed(hosts):
            first = TREE_ARITY * host.number + 1
            below = [other.address for other in hosts[first:first + TREE_ARITY]]
            from_whom = ["--from", f"http://{STORE_ADDRESS}/image"] if host.number == 0 else ["--wait"]
            listening = host.start("tree", sys.executable, "-B", program, self.image.listing(), host.place / "copy",
                                   TREE_PORT, *from_whom, *(part for address in below for part in ("--to", address)),
                                   stdin=subprocess.PIPE)
            self.others.insert(0, listening)
        # All of them listen, and all but the root are connected.
        time.sleep(1)

    def use(self, host):
        if host.number == 0:
            self.others[0].process.stdin.write(b"go\n")
            self.others[0].process.stdin.close()
        program = self.others[host.number]
        program.wait_for(lambda: "\n" in program.said(), 900, LOOK)
        self.here[host.number] = float(program.said().split()[1])
        self._ready(self._attach(host, f"file://{host.place / 'copy'}:{TAG}"))
        return self.path(host)


class Swarm(Contestant):
    """An agent on every host, with certificates of one cluster; disks ask it first."""

    def __init__(self, network, image, arguments):
        super().__init__(network, image)
        self.arguments, self.agents = arguments, {}

    def open(self):
        hosts = self.network.hosts
        cluster = self.network.place / "cluster"
        run(HEADSTART, "swarm", "init", cluster, *(part for host in hosts for part in ("--host", host.place.name)))
        for host in hosts:
            known = [other for other in hosts[:TOLD] if other is not host]
            agent = host.start("agent", HEADSTART, "agent", "--json", "--dir", host.place / "daemon",
                               "--cache", host.place / "cache", "--credentials", cluster / "hosts" / host.place.name,
                               "--name", host.place.name,
                               "--listen", f"{host.address}:{SWARM_PORT}", *self.arguments,
                               *(part for other in known for part in ("--join", f"{other.address}:{SWARM_PORT}")))
            self.agents[host.number] = agent
            self.others.append(agent)
        for agent in self.others:
            agent.wait_for(lambda agent=agent: "\n" in agent.said(), READY, LOOK)
        self._meet()
        super().open()

    def _meet(self):
        """Agents run for days before a disk is attached: each has found all others."""
        until, count = time.monotonic() + READY, len(self.network.hosts) - 1
        for host in self.network.hosts:
            while metrics(host.place / "daemon" / SOCKET)["peers"] < count:
                if time.monotonic() > until:
                    raise Failed(f"{host.name} does not find all others within {READY} s")
                time.sleep(0.1)

    def options(self, host):
        return [*super().options(host), "--swarm", host.place / "daemon" / "swarm.sock"]

    def kill_agent(self, host):
        self.agents[host.number].process.kill()

    def exchanged(self, host):
        """What its agent counts, and in bytes what came from others; nothing of one that is dead."""
        try:
            counts = metrics(host.place / "daemon" / SOCKET)
        except OSError:
            return None
        chunks = lambda what: counts.get(f"{what}_chunks_total", 0) * CHUNK
        return {"on_demand": chunks("demand"), "ahead": chunks("background"), "prefetched": chunks("prefetched"),
                "unread": chunks("prefetched") - chunks("prefetched_read"), "counters": counts}


def metrics(path):
    """What an agent counts of the swarm."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        said = b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()
    lines = (line.removeprefix(METRIC).split() for line in said.splitlines() if line.startswith(METRIC))
    return {name: int(value) for name, value in lines}


def contestant(name, network, image):
    simple = {"independent": Contestant, "tree": Tree, "local": Local}
    if name in simple:
        return simple[name](network, image)
    if name in SWARMS:
        return Swarm(network, image, SWARMS[name])
    raise Failed(f"there is no contestant '{name}'; there are {', '.join(TITLES)}")
