"""A host that has nothing yet: a containerd of its own, a snapshotter, and what that needs."""

import contextlib
import itertools
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request

from images import PORT, TAG
from rig import HEADSTART, ROOT, Failed, Running, headstart, run

# Built by `scripts/setup peers`: Debian's containerd fetches all layers before it asks a snapshotter.
PEERS = ROOT / "target/peers/bin"
LONGEST_START = 240
LOOK = 0.002


def unmount(pattern):
    run("sh", "-c", f"grep -o ' {pattern}' /proc/self/mounts | sort -r | xargs -r umount -l")


class Host:
    """A containerd with an ordinary snapshotter. Ends what it started."""

    snapshotter = "overlayfs"
    # The socket of a snapshotter that is a program of its own.
    snapshots = None

    def __init__(self, work, link, *options):
        """`options` are those of a snapshotter."""
        self.options = options
        self.work, self.link, self.programs, self.kept, self.numbers = work, link, [], [], itertools.count(1)
        self.work.mkdir(parents=True)
        self.socket = self.work / "containerd.sock"
        try:
            self.prepare()
            self._containerd()
        except BaseException:
            self.end()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def prepare(self):
        """Starts the snapshotter."""

    def proxy(self):
        """The snapshotter's part of containerd's configuration."""
        if not self.snapshots:
            return ""
        return f"""[proxy_plugins.{self.snapshotter}]
  type = "snapshot"
  address = "{self.snapshots}"
  [proxy_plugins.{self.snapshotter}.exports]
    enable_remote_snapshot_annotations = "true"
"""

    def start(self, name, *command, **options):
        program = Running(self.work, name, *command, **options)
        self.programs.append(program)
        return program

    def _containerd(self):
        config = self.work / "containerd.toml"
        config.write_text(f"""version = 3
root = "{self.work}/root"
state = "{self.work}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images",
                    "io.containerd.nri.v1.nri"]
[grpc]
  address = "{self.socket}"
[ttrpc]
  address = "{self.socket}.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "{self.work}/opt"
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = "{self.snapshotter}"
{self.proxy()}""")
        environment = {"PATH": f"{PEERS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        program = self.start("containerd.out", PEERS / "containerd", "--config", config, "--log-level", "warn",
                             env=environment)
        program.wait_for(lambda: self.socket.exists() and self._ask("version").returncode == 0)

    def _ask(self, *arguments):
        return subprocess.run(self.client(*arguments), capture_output=True, text=True)

    def client(self, *arguments):
        return [str(PEERS / "ctr"), "--address", str(self.socket), *map(str, arguments)]

    def reference(self, repository):
        return f"{self.link}/{repository}:{TAG}"

    def pull(self, repository):
        run(*self.client("images", "pull", "--plain-http", "--snapshotter", self.snapshotter,
                         self.reference(repository)))

    def run_until_up(self, app, repository):
        """Starts a container, waits until its application is up (`up_at`), and ends it; the seconds that it took."""
        start = time.monotonic()
        try:
            self.up_at = self.start_and_keep(app, repository)
        finally:
            self.end_kept()
        return self.up_at - start

    def start_and_keep(self, app, repository, look=LOOK):
        """Starts a container, and waits until its application is up; that moment. It runs on."""
        # runc keeps the containers of all daemons of a host in one place.
        name = f"{app.name}-{self.work.name}-{next(self.numbers)}"
        output = self.work / f"{name}.out"
        start = time.monotonic()
        with open(output, "w") as out:
            process = subprocess.Popen(self.client("run", "--rm", "--net-host", "--snapshotter", self.snapshotter,
                                                   self.reference(repository), name, *app.command),
                                       stdout=out, stderr=subprocess.STDOUT)
        self.kept.append((name, process))
        while not self._is_up(app, output):
            if process.poll() is not None or time.monotonic() - start > LONGEST_START:
                raise Failed(f"{app.name} does not start: {output.read_text().strip()[-800:]}")
            time.sleep(look)
        return time.monotonic()

    def end_kept(self):
        """Ends the containers that run."""
        for name, _ in self.kept:
            self._ask("task", "kill", "-s", "SIGKILL", name)
        for _, process in self.kept:
            process.wait(30)
        self.kept.clear()

    @staticmethod
    def _is_up(app, output):
        if app.line:
            return app.line in output.read_text(errors="replace")
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{PORT}/", timeout=LONGEST_START).status == 200
        except (urllib.error.URLError, ConnectionError):
            return False

    def forget(self):
        """Ends what a start of the host would end: nothing, for directories."""

    def pull_anew(self, repository):
        """Pulls an image whose bytes the host has, as if it did not know the image: directories stay as they are."""

    def end(self):
        for program in reversed(self.programs):
            program.end()
        unmount(f"{self.work}/[^ ]*")


class StargzHost(Host):
    """With stargz's snapshotter."""

    snapshotter = "stargz"

    def prepare(self):
        config, self.snapshots = self.work / "stargz.toml", self.work / "stargz.sock"
        config.write_text(f"""[[resolver.host."{self.link}".mirrors]]
  host = "{self.link}"
  insecure = true
""")
        program = self.start("stargz.out", PEERS / "containerd-stargz-grpc", "--address", self.snapshots, "--root",
                             self.work / "stargz", "--config", config, "--log-level", "warn")
        program.wait_for(self.snapshots.exists)

    def remote_client(self, *arguments):
        return [str(PEERS / "ctr-remote"), *self.client(*arguments)[1:]]

    def pull(self, repository):
        run(*self.remote_client("images", "rpull", "--plain-http", "--snapshotter", self.snapshotter,
                                self.reference(repository)))


class SociHost(Host):
    """With SOCI's snapshotter."""

    snapshotter = "soci"

    def prepare(self):
        config, self.snapshots, root = self.work / "soci.toml", self.work / "soci.sock", self.work / "soci"
        config.write_text(f"""[content_store]
  type = "soci"
  containerd_address = "{self.socket}"
[resolver.host."{self.link}"]
  [[resolver.host."{self.link}".mirrors]]
    host = "{self.link}"
    insecure = true
""")
        program = self.start("soci.out", PEERS / "soci-snapshotter-grpc", "--address", self.snapshots, "--root", root,
                             "--config", config, "--log-level", "warn")
        program.wait_for(self.snapshots.exists)

    def soci(self, *arguments):
        return run(PEERS / "soci", "--address", self.socket, "--root", self.work / "soci", *arguments)


class HeadstartHost(Host):
    """With our snapshotter and agent."""

    snapshotter = "headstart"
    def prepare(self):
        cache, run_dir = self.work / "cache", self.work / "run"
        self.agent_socket = run_dir / "agent.sock"
        program = self.start("agent.out", HEADSTART, "agent", "--dir", run_dir, "--cache", cache)
        program.wait_for(self.agent_socket.exists)
        self.traces = cache / "traces"
        self.snapshots = run_dir / "snapshotter.sock"
        program = self.start("snapshotter.out", HEADSTART, "snapshotter", "--root", self.work / "snapshots", "--socket",
                             self.snapshots, "--agent", self.agent_socket, "--plain-http", self.link, "--trust",
                             f"oci://{self.link}", "--containerd", self.socket, *self.options)
        program.wait_for(self.snapshots.exists)

    def forget(self):
        """No image is attached or mounted any more."""
        self.detach_all()

    def pull_anew(self, repository):
        run(*self.client("images", "rm", "--sync", self.reference(repository)))
        self.pull(repository)

    def detach_all(self):
        """Ends the disks, whose recordings are whole then."""
        unmount(f"{self.work}/snapshots/trees/[^ ]*/fs")
        for name in self.disks():
            # The snapshotter has it for containers, of which none is left.
            try:
                run(HEADSTART, "disk", "detach", name, "--force", "--agent", self.agent_socket)
            except Failed:
                # A container's own disk is one that the snapshotter detaches, too, once the container is gone.
                if name in self.disks():
                    raise

    def disks(self):
        """The names of the disks that are attached."""
        return [disk["name"] for disk in headstart("disk", "list", "--agent", self.agent_socket)["disks"]]

    def end(self):
        if self.agent_socket.exists():
            self.detach_all()
        super().end()
        # The keeper outlives the agent that started it.
        number = self.work / "run/keeper/keeper.pid"
        if number.exists():
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(number.read_text()), signal.SIGTERM)
