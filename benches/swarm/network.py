"""Hosts that are network namespaces of this machine: a switch between them, a link of a settable rate to each.

Everything is called hs-*: `remove` takes away whatever an earlier run left, and ends the processes in it.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

from rig import Failed, Running, run

PREFIX, SWITCH, STORE = "hs-", "hs-switch", "hs-store"
SUBNET = "10.77.0"
STORE_ADDRESS = f"{SUBNET}.1"
# No smaller than what the kernel hands to a link at once, or it would cut it into packets one by one.
BURST = 128 << 10
# What a link holds back before it drops: 64 ms of the store's at 12 MB/s.
QUEUE = 768 << 10


def missing():
    """Why namespaces cannot be made here; nothing where they can."""
    if os.geteuid() != 0:
        return "not root"
    for program in ("ip", "tc", "nsenter"):
        if not shutil.which(program):
            return f"there is no {program}"
    probe = PREFIX + "probe"
    try:
        run("ip", "netns", "add", probe)
        try:
            run("ip", "-n", probe, "link", "add", "one", "type", "veth", "peer", "name", "two")
            shape(probe, "one", 1_000_000)
            run("ip", "-n", probe, "link", "add", "three", "type", "bridge")
        finally:
            run("ip", "netns", "del", probe)
    except Failed as failed:
        return str(failed)
    return None


def shape(namespace, device, rate):
    """What leaves through this device leaves at `rate` bytes a second."""
    run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{rate * 8}bit",
        "burst", BURST, "limit", QUEUE)


def remove():
    """Takes away all namespaces of ours, with the processes in them."""
    listed = pathlib.Path("/var/run/netns")
    names = sorted(path.name for path in listed.glob(PREFIX + "*")) if listed.is_dir() else []
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        left = [int(pid) for name in names for pid in run("ip", "netns", "pids", name).split()]
        for pid in left:
            try:
                os.kill(pid, signal_number)
            except ProcessLookupError:
                pass
        until = time.monotonic() + 5
        while left and time.monotonic() < until:
            time.sleep(0.05)
            left = [pid for pid in left if pathlib.Path(f"/proc/{pid}").exists()]
    for name in names:
        subprocess.run(["ip", "netns", "del", name], check=False)


class Host:
    """A namespace, its address, and a place for its files."""

    def __init__(self, number, place):
        self.number, self.name = number, f"{PREFIX}h{number:02}"
        self.address, self.place = f"{SUBNET}.{number + 10}", place / f"h{number:02}"
        self.place.mkdir(parents=True)

    def command(self, *command):
        """The command, in this namespace, and in everybody's file system."""
        return ["nsenter", f"--net=/var/run/netns/{self.name}", *command]

    def start(self, name, *command, **options):
        return Running(self.place, name, *self.command(*command), **options)


class Network:
    """So many hosts and a store on one switch. Gone when it is left."""

    def __init__(self, place, count, uplink, rate):
        self.place, self.count, self.uplink, self.rate = place, count, uplink, rate
        self.hosts = []

    def __enter__(self):
        remove()
        try:
            self._switch()
            self._attach(STORE, "store", STORE_ADDRESS, self.uplink)
            for number in range(self.count):
                host = Host(number, self.place)
                self._attach(host.name, f"h{number:02}", host.address, self.rate)
                self.hosts.append(host)
        except BaseException:
            remove()
            raise
        return self

    def __exit__(self, *_):
        remove()

    @staticmethod
    def _switch():
        run("ip", "netns", "add", SWITCH)
        run("ip", "-n", SWITCH, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", SWITCH, "link", "set", "bridge", "up")

    @staticmethod
    def _attach(name, port, address, rate):
        run("ip", "netns", "add", name)
        run("ip", "-n", SWITCH, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "-n", SWITCH, "link", "set", port, "master", "bridge", "up")
        # What goes to nobody goes nowhere, instead of to everybody.
        run("ip", "-n", SWITCH, "link", "set", port, "type", "bridge_slave", "flood", "off")
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        # Whatever this machine prefers: every kernel lets everybody have this one, and it needs no timer a packet.
        run("nsenter", f"--net=/var/run/netns/{name}", "sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno")
        shape(name, "eth0", rate)
        shape(SWITCH, port, rate)

    def moved(self):
        """Bytes that went to and came from everybody so far, headers included: name of the port to (down, up)."""
        ports = json.loads(run("ip", "-n", SWITCH, "-s", "-j", "link", "show"))
        return {port["ifname"]: (port["stats64"]["tx"]["bytes"], port["stats64"]["rx"]["bytes"]) for port in ports
                if port["ifname"] not in ("lo", "bridge")}
