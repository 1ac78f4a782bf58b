"""What goes wrong while hosts read: at a moment of their reading, in the network or to what runs on them."""

import threading

from network import STORE, SWITCH, shape
from rig import run

# The share of hosts that are struck, and how much slower a slow one is.
STRUCK, SLOWER = 0.3, 100


def struck(network):
    """Every third host or so, and not the first ones alone."""
    count = max(1, round(len(network.hosts) * STRUCK))
    return [network.hosts[n * len(network.hosts) // count] for n in range(count)]


def killed(network, ours):
    """The agents of some hosts die; their disks live."""
    for host in struck(network):
        ours.kill_agent(host)


def isolated(network, ours):
    """No host reaches any other; all reach the store."""
    for host in network.hosts:
        run("ip", "-n", SWITCH, "link", "set", f"h{host.number:02}", "type", "bridge_slave", "isolated", "on")


def parted(network, ours):
    """Some hosts reach the others and the store, and no longer each other."""
    for host in struck(network):
        run("ip", "-n", SWITCH, "link", "set", f"h{host.number:02}", "type", "bridge_slave", "isolated", "on")


def slow(network, ours):
    """One host's link is a hundredth of what it was. It takes part and reads nothing."""
    host = network.hosts[1]
    for namespace, device in ((host.name, "eth0"), (SWITCH, f"h{host.number:02}")):
        shape(namespace, device, max(1, network.rate // SLOWER))


def no_store(network, ours):
    """The store is gone."""
    run("ip", "-n", STORE, "link", "set", "eth0", "down")


# When, as a share of the region's time over the store's link.
FAULTS = {"killed": (killed, 0.5), "isolated": (isolated, 0.5), "parted": (parted, 0.5), "slow": (slow, 0.0),
          "no-store": (no_store, 3.0)}


class Strike:
    """A fault that comes by itself at its moment; `error` says where it did not."""

    def __init__(self, name, network, ours, least):
        self.what, share = FAULTS[name]
        self.error, self.network, self.ours = "", network, ours
        self.timer = threading.Timer(share * least, self._strike)

    def __enter__(self):
        self.timer.start()
        return self

    def __exit__(self, *_):
        self.timer.cancel()
        self.timer.join()

    def _strike(self):
        try:
            self.what(self.network, self.ours)
        except Exception as error:  # It is said with the measurement.
            self.error = str(error)
