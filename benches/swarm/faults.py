"""What goes wrong while hosts read: at a moment of their reading, in the network or to what runs on them."""

import threading

from network import STORE, SWITCH, shape
from rig import run

# The share of hosts that are struck, and how much slower a slow one is.
STRUCK, SLOWER = 0.3, 100
# Where frames go that nobody is to get.
NOWHERE = "02:00:00:00:00:01"

# In the place of one agent there is a program that says it has everything (fleet/peer-net/examples/rogue.rs).
ROGUES = {
    "silent": "one host says that it has everything, and never answers",
    "promising": "one host says that it has everything, promises it, and never sends it",
    "corrupt": "one host says that it has everything, and sends other bytes",
    "endless": "one host says that it has everything, and sends it again and again",
}


def struck(network):
    """Every third host or so, and not the first ones alone."""
    count = max(1, round(len(network.hosts) * STRUCK))
    return [network.hosts[n * len(network.hosts) // count] for n in range(count)]


def killed(network, ours):
    """30% of the agents are killed; their disks live"""
    for host in struck(network):
        ours.kill_agent(host)


def halved(network, ours):
    """no host reaches any of the other half; all reach the store"""
    halves = network.hosts[::2], network.hosts[1::2]
    for here, there in (halves, halves[::-1]):
        lost = "".join(f"neigh replace {host.address} lladdr {NOWHERE} nud permanent dev eth0\n" for host in there)
        for host in here:
            run("ip", "-n", host.name, "-batch", "-", feed=lost)


def isolated(network, ours):
    """no host reaches any other; all reach the store"""
    for host in network.hosts:
        run("ip", "-n", SWITCH, "link", "set", f"h{host.number:02}", "type", "bridge_slave", "isolated", "on")


def slow(network, ours):
    """one host's link is a hundredth of what it was"""
    # It takes part and reads nothing.
    host = network.hosts[1]
    for namespace, device in ((host.name, "eth0"), (SWITCH, f"h{host.number:02}")):
        shape(namespace, device, max(1, network.rate // SLOWER))


def no_store(network, ours):
    """the store is gone when half of the hosts have read everything and the others begin"""
    run("ip", "-n", STORE, "link", "set", "eth0", "down")


def roots_lost(network, ours):
    """all roots are killed"""
    for host in ours.roots:
        ours.kill_agent(host)


def tracker_lost(network, ours):
    """the tracker is killed"""
    ours.kill_agent(ours.tracker)


# When, as a share of the region's time over the store's link.
FAULTS = {"killed": (killed, 0.5), "halved": (halved, 0.5), "isolated": (isolated, 0.5), "slow": (slow, 0.0),
          "no-store": (no_store, 3.0), "roots-lost": (roots_lost, 0.5), "tracker-lost": (tracker_lost, 0.5)}

TITLES = {name: what.__doc__ for name, (what, _) in FAULTS.items()} | ROGUES


class Strike:
    """A fault that comes by itself at its moment; `error` says where it did not. A rogue is there from the start."""

    def __init__(self, name, network, ours, least):
        self.what, share = FAULTS.get(name, (None, 0.0))
        self.error, self.network, self.ours = "", network, ours
        self.timer = threading.Timer(share * least, self._strike)

    def __enter__(self):
        if self.what:
            self.timer.start()
        return self

    def __exit__(self, *_):
        if self.what:
            self.timer.cancel()
            self.timer.join()

    def _strike(self):
        try:
            self.what(self.network, self.ours)
        except Exception as error:  # It is said with the measurement.
            self.error = str(error)
