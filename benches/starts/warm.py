"""Starts on a host that has everything: beside overlayfs, one start after the other in turns.

The *first* container of an image comes right after a pull, whose bytes the host had already, and *further* ones after
it. *Restarted* is the first one on a host that was started again: the image's disk is neither attached nor mounted. For
overlayfs all of these are further ones, and those are what is compared with.
"""

import io
import shutil
import statistics
import tarfile
import time

import images
from hosts import HeadstartHost, Host
from images import TAG
from layout import Layout, Uploads, entry, gzipped, plain
from page import table
from rig import HEADSTART, run

# Layers of the image whose snapshots are prepared without being started.
LAYERS = 70
MANY = "many-layers"


class DirHost(HeadstartHost):
    """With a disk of its own for each container."""

    def __init__(self, work, link):
        super().__init__(work, link, "--writable", "dir")


WHO = {"overlayfs": Host, "headstart": HeadstartHost, "headstart dir": DirHost}


def measure(setting, say):
    """Rows of figures, in seconds."""
    rows = []
    place = setting.place()
    hosts = {}
    try:
        for who, host in WHO.items():
            hosts[who] = host(place / who.replace(" ", "-"), setting.registry)
        rows.append(_prepared(setting, place, hosts))
        say(line(rows[-1]))
        for app in (app for app in images.APPS if app.name in setting.options.apps):
            rows.append(_started(setting, app, hosts))
            say(line(rows[-1]))
    finally:
        for host in hosts.values():
            host.end()
        shutil.rmtree(place, ignore_errors=True)
    return rows


def _publish(setting, layout, name):
    Uploads(setting.registry, name).image(layout, name, TAG)
    run(HEADSTART, "image", "convert", f"oci://{setting.registry}/{name}:{TAG}", "--index", "--plain-http",
        setting.registry)


def _many_layers(place):
    """An image of many layers, each with one file."""
    made = Layout(place / "layout", run("dpkg", "--print-architecture").strip())
    layers = []
    for number in range(LAYERS):
        path, text = place / f"{number}.tar", f"layer {number}\n".encode()
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
            tar.addfile(entry(f"file-{number}", len(text)), io.BytesIO(text))
        layers.append(gzipped(plain(path)))
    made.add(MANY, layers)
    return place / "layout"


def _prepared(setting, place, hosts):
    """The time of `ctr snapshots prepare` on an image of many layers, first and again, with that of the client itself."""
    layers = place / "layers"
    layers.mkdir()
    _publish(setting, _many_layers(layers), MANY)
    figures = {}
    tops = {}
    for who, host in hosts.items():
        host.pull(MANY)
        tops[who] = _top(host)
    for number in range(setting.options.warm):
        for who, host in hosts.items():
            times = figures.setdefault(who, {"restarted": [], "further": [], "client": []})
            snapshots = ["snapshots", "--snapshotter", host.snapshotter]
            host.forget()
            for kind in ("restarted", "further"):
                times[kind].append(_timed(host, *snapshots, "prepare", f"{kind}-{number}", tops[who]))
            times["client"].append(_timed(host, *snapshots, "info", tops[who]))
            for kind in ("further", "restarted"):
                run(*host.client(*snapshots, "rm", f"{kind}-{number}"))
    return {"what": f"prepare on {LAYERS} layers", "figures": _medians(figures)}


def _top(host):
    """The name of the topmost layer's snapshot: no other one has it for its parent."""
    listed = run(*host.client("snapshots", "--snapshotter", host.snapshotter, "ls")).splitlines()[1:]
    words = [line.split() for line in listed]
    parents = {line[1] for line in words if len(line) > 2}
    return next(line[0] for line in words if line[0] not in parents)


def _timed(host, *command):
    start = time.monotonic()
    run(*host.client(*command))
    return time.monotonic() - start


def _started(setting, app, hosts):
    _publish(setting, setting.layout, app.name)
    figures = {}
    for host in hosts.values():
        host.pull(app.name)
        # What it reads is here from now on.
        host.run_until_up(app, app.name)
    for _ in range(setting.options.warm):
        for who, host in hosts.items():
            times = figures.setdefault(who, {"restarted": [], "first": [], "further": []})
            host.forget()
            times["restarted"].append(host.run_until_up(app, app.name))
            host.pull_anew(app.name)
            for kind in ("first", "further"):
                times[kind].append(host.run_until_up(app, app.name))
    return {"what": f"start of {app.name}", "figures": _medians(figures)}


def _medians(figures):
    return {who: {kind: statistics.median(values) for kind, values in times.items()}
            for who, times in figures.items()}


def line(row):
    """A row, for who watches."""
    parts = [f"{who}, " + ", ".join(f"{kind} {time * 1000:.0f} ms" for kind, time in times.items())
             for who, times in row["figures"].items()]
    return f"{row['what']}: {'; '.join(parts)}"


def warm_table(rows):
    lines = []
    for row in rows:
        beside = row["figures"]["overlayfs"]
        for who, times in row["figures"].items():
            figures = [f"{times[kind] * 1000:.1f}" if kind in times else "-"
                       for kind in ("restarted", "first", "further", "client")]
            behind = [f"{(times[kind] - beside['further']) * 1000:+.1f}" if kind in times else "-"
                      for kind in ("first", "further")]
            lines.append([f"{row['what']}: {who}", *figures, *behind])
    head = ["ms, medians", "restarted", "first", "further", "client alone", "first behind overlayfs",
            "further behind overlayfs"]
    return table(head, lines)
