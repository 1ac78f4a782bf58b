"""How a host gets an image and starts a container of it, as each contestant does.

Every cold start is that of a host that has nothing. Further starts on it, with all that it has by then, are warm.
"""

import json
import pathlib
import shutil
import statistics
import tempfile
import time

from hosts import PEERS, HeadstartHost, Host, SociHost, StargzHost
from images import TAG
from layout import Uploads
from programs import Link
from rig import HEADSTART, Failed, run

# The starts that a plan is learned from, on other hosts.
RECORDED = 2


class Setting:
    """The images, the registry that they are pushed to, and places for hosts."""

    def __init__(self, options, work, layout, registry):
        self.options, self.work, self.layout, self.registry = options, work, layout, registry

    def place(self):
        return pathlib.Path(tempfile.mkdtemp(dir=self.work, prefix="run-"))

    def push(self, app, repository):
        """The image as its maker has it."""
        Uploads(self.registry, repository).image(self.layout, app.name, TAG)


class Pulled:
    """The image is pulled and unpacked whole, then started."""

    name, host, programs = "overlayfs", Host, ["containerd", "ctr", "containerd-shim-runc-v2"]

    def missing(self):
        absent = [program for program in self.programs if not (PEERS / program).exists()]
        if absent:
            return f"{', '.join(absent)}: not in {PEERS}"
        missing = [program for program in ("runc", "mmdebstrap", "docker-registry") if not shutil.which(program)]
        return f"not there: {', '.join(missing)}" if missing else None

    def repository(self, app):
        return f"{app.name}-{self.name.replace(' ', '-')}"

    def publish(self, setting, app):
        setting.push(app, self.repository(app))

    def start(self, setting, app):
        """A cold start over the link, and warm ones; the figures."""
        place = setting.place()
        with Link(place, setting.registry, setting.options.rate, setting.options.delay) as link:
            with self.host(place / "host", link.address) as host:
                start = time.monotonic()
                host.pull(self.repository(app))
                pull = time.monotonic() - start
                host.run_until_up(app, self.repository(app))
                wall, down = host.up_at - start, link.down()
                warm = [host.run_until_up(app, self.repository(app)) for _ in range(setting.options.warm_runs)]
        shutil.rmtree(place, ignore_errors=True)
        return {"pull": pull, "wall": wall, "down": down, "warm": statistics.median(warm)}


class Remade(Pulled):
    """The image is made anew for a snapshotter of its own, and pushed."""

    def publish(self, setting, app):
        source = self.repository(app) + "-source"
        setting.push(app, source)
        place = setting.place()
        with self.host(place / "host", setting.registry) as host:
            names = host.reference(source), host.reference(self.repository(app))
            run(*host.client("images", "pull", "--local", "--plain-http", names[0]))
            self.remake(host, app, *names)
        shutil.rmtree(place, ignore_errors=True)


class Stargz(Remade):
    """Stargz's snapshotter: the image becomes eStargz; with `has_list`, with a list of the files that a start reads."""

    host, programs = StargzHost, [*Pulled.programs, "containerd-stargz-grpc", "ctr-remote"]

    def __init__(self, name, has_list):
        self.name, self.has_list = name, has_list

    def remake(self, host, app, source, target):
        command = ["convert", "--estargz", "--oci"]
        if self.has_list:
            command = ["optimize", "--oci", "--net-host", "--period", "8", "--entrypoint", json.dumps(app.command),
                       "--args", "[]"]
        run(*host.remote_client("images", *command, source, target))
        run(*host.remote_client("images", "push", "--plain-http", target))


class Soci(Remade):
    """SOCI's snapshotter: the image as it is, with an index of its layers beside it."""

    name, host, programs = "soci", SociHost, [*Pulled.programs, "soci-snapshotter-grpc", "soci"]

    def remake(self, host, app, source, target):
        host.soci("convert", source, target)
        run(*host.client("images", "push", "--plain-http", target))


class Lazy(Pulled):
    """The image is converted, beside the original and under its name; its blocks come when they are read. Nothing was
    learned from earlier starts."""

    host = HeadstartHost

    def __init__(self, name, *options):
        self.name, self.options = name, options

    def publish(self, setting, app):
        super().publish(setting, app)
        run(HEADSTART, "image", "convert", f"oci://{setting.registry}/{self.repository(app)}:{TAG}", "--index",
            "--plain-http", setting.registry, *self.options)


class Planned(Lazy):
    """The same, with a plan that other hosts' starts were learned into."""

    def publish(self, setting, app):
        super().publish(setting, app)
        traces = setting.work / f"traces-{self.repository(app)}"
        traces.mkdir()
        for number in range(RECORDED):
            place = setting.place()
            with self.host(place / "host", setting.registry) as host:
                host.pull(self.repository(app))
                host.run_until_up(app, self.repository(app))
                host.detach_all()
                for trace in host.traces.rglob("*"):
                    if trace.is_file():
                        shutil.copy(trace, traces / f"{number}-{trace.name}")
            shutil.rmtree(place, ignore_errors=True)
        if not any(traces.iterdir()):
            raise Failed("the starts were not recorded")
        run(HEADSTART, "train", "--traces", traces, "--publish",
            f"oci://{setting.registry}/{self.repository(app)}:{TAG}", "--plain-http", setting.registry)


ALL = [Pulled(), Soci(), Stargz("stargz", False), Stargz("stargz with a list", True),
       Lazy("headstart lazy", "--codec", "lz4"), Planned("headstart planned", "--codec", "lz4"),
       Planned("headstart planned zstd", "--codec", "zstd")]
