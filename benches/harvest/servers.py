"""What serves disks: a harvest daemon, asked over REST, and others that serve a file."""

import http.client
import json
import socket
import time

from rig import HEADSTART, Failed, Running

MIB = 1 << 20


class OverUnix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("h", timeout=120)
        self.unix = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.unix)


class Harvest:
    """A harvest daemon with flash in a sparse file. Ends with the block that it is for."""

    def __init__(self, work, name, size, rate=None):
        self.place = work / name
        rated = ["--channel-rate", rate] if rate else []
        self.program = Running(work, name + ".out", HEADSTART, "harvest", "serve", self.place, "--size", str(size),
                               "--json", *rated)
        self.program.wait_for(lambda: "harvest" in self.program.said())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.program.end()

    def tried(self, method, path, body=None):
        """What it answers: status and value."""
        connection = OverUnix(self.place / "harvest.sock")
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None,
                               {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def ask(self, method, path, body=None):
        status, value = self.tried(method, path, body)
        if status >= 400:
            raise Failed(f"{method} {path}: {value}")
        return value

    def create(self, name, kind, channels, within=60):
        """Makes a vSSD, as soon as there are channels for it; where it is."""
        body = {"name": name, "kind": kind, "channels": channels}
        made = self.until(lambda: self._or_none("POST", "/v1/vssds", body), within, f"room for {name}")
        return made["uris"][0] if made["uris"] else None

    def lease(self, name, capacity, bandwidth, within=60):
        """Borrows as soon as there is something to spare."""
        request = {"capacity": capacity, "bandwidth": bandwidth, "duration_s": 7200}
        return self.until(lambda: self._or_none("POST", f"/v1/vssds/{name}/requests", request), within,
                          "flash to spare")

    def _or_none(self, method, path, body):
        status, value = self.tried(method, path, body)
        if status in (409, 507):
            return None
        if status >= 400:
            raise Failed(f"{method} {path}: {value}")
        return value

    @staticmethod
    def until(condition, within, what):
        """Looks every few milliseconds."""
        end = time.monotonic() + within
        while True:
            found = condition()
            if found:
                return found
            if time.monotonic() > end:
                raise Failed(f"no {what} after {within} s")
            time.sleep(0.003)


class Peer:
    """Another server, of a sparse file of its own."""

    def __init__(self, work, name, size):
        self.socket = work / f"{name}.sock"
        file = work / f"{name}.img"
        with open(file, "wb") as disk:
            disk.truncate(size)
        command = {
            "nbdkit": ["nbdkit", "-f", "-U", self.socket, "file", file],
            "qemu-nbd": ["qemu-nbd", "-t", "-e", "8", "-f", "raw", "-k", self.socket, "-x", "", file],
        }[name]
        self.program = Running(work, name + ".out", *command)
        self.program.wait_for(self.socket.exists)
        self.uri = f"nbd+unix:///?socket={self.socket}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.program.end()
