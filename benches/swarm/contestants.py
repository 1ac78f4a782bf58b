"""Who competes: each gives every host the disk of the image, as a file that the kernel reads through FUSE."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time

from faults import ROGUES
from image import TAG
from network import STORE, STORE_ADDRESS
from patterns import BAD
from rig import HEADSTART, ROOT, Failed, Running, run, web_server

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

ROGUE = pathlib.Path(os.environ.get("BENCH_ROGUE", ROOT / "target/release/examples/rogue"))

# Of a fleet with roots, how many are; and the host whose agent is the tracker, where there is one.
ROOTS, TRACKER = 2, 2
# Copies of each stripe, where hosts are the repository.
COPIES = 2
# How long it may take to make them, in seconds.
PINNING = 300

TITLES = {
    "independent": "each on its own",
    "tree": "all of the image down a tree first",
    "swarm-0": "swarm, nothing prefetched",
    "swarm": "swarm",
    "swarm-inf": "swarm, everything prefetched",
    "swarm-roots": "swarm with two roots",
    "swarm-tracker": "swarm with a tracker",
    "pinned": "no store: two copies on the hosts",
    "local": "the image is on each host already",
}


IMAGE = f"http://{STORE_ADDRESS}/image:{TAG}"


class Store:
    """A web server over the image, in its own namespace."""

    def __init__(self, place, image):
        self.place = place / "store"
        self.place.mkdir()
        server = web_server(self.place, f"{STORE_ADDRESS}:80", image.layout.parent, "$remote_addr $bytes_sent")
        self.program = Running(self.place, "nginx", "nsenter", f"--net=/var/run/netns/{STORE}", *server)
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

    # Where the image lies.
    store = None

    def __init__(self, network, image):
        self.network, self.image = network, image
        self.disks, self.others = {}, []
        # The hosts that get a disk.
        self.readers = network.hosts

    def open(self):
        self._attach_all(IMAGE)

    def _attach_all(self, reference):
        for host in [self._attach(host, reference) for host in self.readers]:
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

    def processes_of(self, host):
        """What runs for it on a host, by what it is."""
        disk = self.disks.get(host.number)
        return {"disk": disk.process.pid} if disk else {}

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
        self._attach_all(f"file://{self.image.layout}:{TAG}")


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

    # What all agents are told, and what some are.
    arguments = []

    def __init__(self, network, image, rogue=None):
        super().__init__(network, image)
        self.agents, self.rogue = {}, rogue
        self.honest = [host for host in network.hosts if not rogue or host.number != BAD]

    def open(self):
        self._start()
        self._meet()
        if self.rogue:
            self._invite()
        self.prepare()
        super().open()

    def _start(self):
        hosts, self.cluster = self.network.hosts, self.network.place / "cluster"
        run(HEADSTART, "swarm", "init", self.cluster, *(part for host in hosts for part in ("--host", host.place.name)))
        for host in self.honest:
            known = [other for other in self.honest[:TOLD] if other is not host]
            agent = host.start("agent", HEADSTART, "agent", "--json", "--dir", host.place / "daemon",
                               "--cache", host.place / "cache", "--credentials", self.credentials(host),
                               "--name", host.place.name, "--listen", self.at(host),
                               "--allow-store", IMAGE.removesuffix(f":{TAG}"),
                               *self.arguments, *self.arguments_of(host),
                               *(part for other in known for part in ("--join", self.at(other))))
            self.agents[host.number] = agent
            self.others.append(agent)
        for agent in self.others:
            agent.wait_for(lambda agent=agent: "\n" in agent.said(), READY, LOOK)

    def credentials(self, host):
        return self.cluster / "hosts" / host.place.name

    @staticmethod
    def at(host):
        return f"{host.address}:{SWARM_PORT}"

    def arguments_of(self, host):
        return []

    def prepare(self):
        """Agents have met, and no disk is there yet."""

    def _meet(self):
        """Agents run for days before a disk is attached: each has found all others."""
        until, count = time.monotonic() + READY, len(self.honest) - 1
        for host in self.honest:
            while metrics(host.place / "daemon" / SOCKET)["peers"] < count:
                if time.monotonic() > until:
                    raise Failed(f"{host.name} does not find all others within {READY} s")
                time.sleep(0.1)

    def _invite(self):
        """One more connects to all of them, that knows the image as well."""
        host = self.network.hosts[BAD]
        program = host.start("rogue", ROGUE, self.credentials(host), host.place.name, self.image.manifest, self.rogue,
                             *(f"{other.place.name}@{self.at(other)}" for other in self.honest))
        self.others.append(program)
        program.wait_for(lambda: f"connected {len(self.honest)}\n" in program.said(), READY, LOOK)

    def processes_of(self, host):
        agent = self.agents.get(host.number)
        return super().processes_of(host) | ({"agent": agent.process.pid} if agent else {})

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


class NoThreshold(Swarm):
    arguments = ["--threshold", "none"]


class NothingPrefetched(Swarm):
    arguments = ["--threshold", "0"]


class Rooted(Swarm):
    """A few roots fetch for all."""

    arguments = ["--topology", "roots"]

    @property
    def roots(self):
        return self.honest[:ROOTS]

    def arguments_of(self, host):
        return ["--root"] if host in self.roots else []


class Tracked(Swarm):
    """Disks preload what a tracker has heard that others read."""

    @property
    def tracker(self):
        return self.honest[TRACKER]

    def arguments_of(self, host):
        return ["--tracker"] if host is self.tracker else []

    def options(self, host):
        return [option if option != "lazy" else "auto" for option in super().options(host)]


class Pinned(Swarm):
    """The image is on the hosts, each stripe on some of them, and the store ends before any disk is attached."""

    def prepare(self):
        sock = self.network.hosts[0].place / "daemon" / SOCKET
        run(*self.network.hosts[0].command(HEADSTART, "swarm", "pin", IMAGE, "--copies", COPIES, "--agent", sock),
            within=PINNING)
        self.store.end()

    def _attach_all(self, reference):
        # Its tag was the store's to tell.
        super()._attach_all(reference.removesuffix(f":{TAG}") + f"@{self.image.digest}")


def metrics(path):
    """What an agent counts of the swarm."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        said = b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()
    lines = (line.removeprefix(METRIC).split() for line in said.splitlines() if line.startswith(METRIC))
    return {name: int(value) for name, value in lines}


KINDS = {"independent": Contestant, "tree": Tree, "local": Local, "swarm-0": NothingPrefetched, "swarm": Swarm,
         "swarm-inf": NoThreshold, "swarm-roots": Rooted, "swarm-tracker": Tracked, "pinned": Pinned}


def contestant(name, network, image, fault):
    kind = KINDS.get(name)
    if not kind:
        raise Failed(f"there is no contestant '{name}'; there are {', '.join(KINDS)}")
    if fault not in ROGUES:
        return kind(network, image)
    if not issubclass(kind, Swarm):
        raise Failed(f"to be {fault} takes a swarm")
    return kind(network, image, rogue=fault)
