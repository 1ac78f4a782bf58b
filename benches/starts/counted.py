"""The bytes of a start by what they are: documents, plans, hash trees, indices of layers, data.

A proxy between the link and the registry notes each answer; the manifest of the converted image says which blob, and
which end of it, the answer was of.
"""

import json
import pathlib
import shutil
import socket
import statistics
import tempfile
import threading

from images import APPS, TAG
from page import table
from programs import Link
from rig import HEADSTART, run

# The beginning of a blob that opening its layer reads.
HEAD = 32 << 10
TREE, INDEX = "dev.headstart.tree-digest", "dev.headstart.index-offset"
KINDS = ["containerd's documents", "manifests and lists", "plans and configs", "hash trees",
         "beginnings and indices of layers", "data", "data that came twice"]


class Counter:
    """An HTTP/1.1 proxy before a server, which notes the requests and the lengths of their answers."""

    def __init__(self, server):
        host, port = server.rsplit(":", 1)
        self.server, self.answers = (host, int(port)), []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client, socket.create_connection(self.server) as server:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            asking, answering = client.makefile("rb"), server.makefile("rb")
            while request := _head(asking):
                server.sendall(b"".join(request) + asking.read(_length(request)))
                method, path, _ = request[0].decode().split(" ")
                answer = _head(answering)
                if not answer:
                    return
                client.sendall(b"".join(answer))
                left = 0 if method == "HEAD" else _length(answer)
                self.answers.append((path, _field(request, "range"), _field(request, "user-agent"), left))
                while left > 0:
                    part = answering.read1(min(left, 1 << 18))
                    if not part:
                        return
                    client.sendall(part)
                    left -= len(part)


def _head(stream):
    """The lines of a head; empty at the end of the connection."""
    lines = []
    while line := stream.readline():
        lines.append(line)
        if line == b"\r\n":
            return lines
    return []


def _field(head, name):
    fields = (line.decode().partition(":") for line in head[1:])
    return next((value.strip() for field, _, value in fields if field.lower() == name), "")


def _length(head):
    return int(_field(head, "content-length") or 0)


def by_kind(answers, manifest):
    """Requests and bytes of each kind."""
    layers = {layer["digest"]: int(layer["annotations"][INDEX]) for layer in manifest["layers"]}
    trees = {layer["annotations"].get(TREE) for layer in manifest["layers"]}
    counts, seen = {kind: [0, 0] for kind in KINDS}, {}

    def note(kind, length, requests=1):
        counts[kind][0] += requests
        counts[kind][1] += length

    for path, span, agent, length in answers:
        digest = path.rpartition("/")[2]
        if not agent.startswith("headstart"):
            note("containerd's documents", length)
        elif "/blobs/" not in path:
            note("manifests and lists", length)
        elif digest in trees:
            note("hash trees", length)
        elif digest not in layers:
            note("plans and configs", length)
        else:
            first = int(span.removeprefix("bytes=").split("-")[0])
            is_opening = first == 0 and length <= HEAD or first >= layers[digest] // 4096 * 4096
            known = seen.setdefault(digest, set())
            pages = set(range(first // 4096, (first + length) // 4096))
            note("beginnings and indices of layers" if is_opening else "data", length)
            note("data that came twice", len(pages & known) * 4096, requests=0)
            known |= pages
    return counts


def measure(setting, contestants, apps, runs, say):
    """Rows: an application, a contestant, and for each kind requests and bytes."""
    rows = []
    for app in (app for app in APPS if app.name in apps):
        for one in contestants:
            one.publish(setting, app)
            counted = [_start(setting, app, one) for _ in range(runs)]
            for kind in KINDS:
                requests, length = (statistics.median(counts[kind][at] for counts in counted) for at in (0, 1))
                rows.append({"app": app.name, "who": one.name, "kind": kind, "requests": requests, "bytes": length})
            say(f"{app.name}, {one.name}: {sum(counts[1] for counts in counted[0].values()) / 1e6:.2f} MB")
    return rows


def _start(setting, app, one):
    repository = one.repository(app)
    image = f"oci://{setting.registry}/{repository}:{TAG}"
    with tempfile.TemporaryDirectory(dir=setting.work) as copy:
        run(HEADSTART, "image", "pull", image, f"file://{copy}:copy", "--plain-http", setting.registry)
        manifest = _manifest(pathlib.Path(copy))
    place = setting.place()
    with Counter(setting.registry) as counter:
        with Link(place, counter.address, setting.options.rate, setting.options.delay) as link:
            with one.host(place / "host", link.address) as host:
                host.pull(repository)
                host.run_until_up(app, repository)
                answers = list(counter.answers)
    shutil.rmtree(place, ignore_errors=True)
    return by_kind(answers, manifest)


def _manifest(layout):
    index = json.loads((layout / "index.json").read_text())
    digest = next(entry["digest"] for entry in index["manifests"]
                  if entry.get("annotations", {}).get("org.opencontainers.image.ref.name") == "copy")
    return json.loads((layout / "blobs/sha256" / digest.partition(":")[2]).read_text())


def counted_table(rows):
    """Requests and KB of each kind, side by side."""
    sides = list(dict.fromkeys((row["app"], row["who"]) for row in rows))
    lines = []
    for kind in KINDS:
        of_kind = {(row["app"], row["who"]): row for row in rows if row["kind"] == kind}
        figures = (f"{of_kind[side]['bytes'] / 1e3:.0f} ({of_kind[side]['requests']:.0f})" for side in sides)
        lines.append([kind, *figures])
    return table(["KB (requests)", *(f"{app}: {who}" for app, who in sides)], lines)
