"""Container images by hand: layers as files, images in an OCI layout, archives of them, and copies in a registry."""

import dataclasses
import hashlib
import http.client
import io
import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import zlib

from rig import Failed

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
# Of everything that has a time here: the same bytes on every run.
TIME = 1_700_000_000
PIECE = 1 << 20


def sha256(path):
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            found.update(piece)
    return found.hexdigest()


def entry(name, size=0, kind=tarfile.REGTYPE, mode=0o644):
    """An entry of root's, with the time that everything has here."""
    made = tarfile.TarInfo(name)
    made.size, made.type, made.mode, made.mtime = size, kind, mode, TIME
    return made


@dataclasses.dataclass
class Layer:
    """A layer in one of its forms: `diff_id` is the sum of its tar, `digest` of the file."""

    path: pathlib.Path
    media_type: str
    diff_id: str
    digest: str
    size: int

    def descriptor(self):
        return {"mediaType": self.media_type, "digest": f"sha256:{self.digest}", "size": self.size}


def plain(tar):
    found = sha256(tar)
    return Layer(tar, LAYER, found, found, tar.stat().st_size)


def gzipped(layer, level=1):
    path = layer.path.with_suffix(".tar.gz")
    packer = zlib.compressobj(level, wbits=31)
    with open(layer.path, "rb") as tar, open(path, "wb") as packed:
        while piece := tar.read(PIECE):
            packed.write(packer.compress(piece))
        packed.write(packer.flush())
    return Layer(path, LAYER + "+gzip", layer.diff_id, sha256(path), path.stat().st_size)


def zstandard(layer, level=3):
    """The layer packed by the `zstd` program; nothing where that is not there."""
    path = layer.path.with_suffix(".tar.zst")
    if not shutil.which("zstd"):
        return None
    subprocess.run(["zstd", f"-{level}", "--single-thread", "-q", "-f", layer.path, "-o", path], check=True)
    return Layer(path, LAYER + "+zstd", layer.diff_id, sha256(path), path.stat().st_size)


class Layout:
    """A directory in the form of the OCI image layout."""

    def __init__(self, place, architecture):
        self.place, self.architecture, self.tags = place, architecture, {}
        (place / "blobs/sha256").mkdir(parents=True, exist_ok=True)
        (place / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')

    def _data(self, data, media_type):
        found = hashlib.sha256(data).hexdigest()
        (self.place / "blobs/sha256" / found).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{found}", "size": len(data)}

    def add(self, tag, layers):
        for layer in layers:
            blob = self.place / "blobs/sha256" / layer.digest
            if not blob.exists():
                os.link(layer.path, blob)
        config = {"architecture": self.architecture, "os": "linux", "config": {},
                  "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.diff_id}" for layer in layers]}}
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST,
                    "config": self._data(json.dumps(config).encode(), CONFIG),
                    "layers": [layer.descriptor() for layer in layers]}
        described = self._data(json.dumps(manifest).encode(), MANIFEST)
        self.tags[tag] = described | {"annotations": {"org.opencontainers.image.ref.name": tag}}
        index = {"schemaVersion": 2, "manifests": list(self.tags.values())}
        (self.place / "index.json").write_text(json.dumps(index))


def manifest_of(place, tag):
    """The descriptor of a tag of the layout in `place`, and its manifest."""
    index = json.loads((place / "index.json").read_text())
    name = "org.opencontainers.image.ref.name"
    found = next(one for one in index["manifests"] if one["annotations"][name] == tag)
    return found, json.loads(blob(place, found["digest"]).read_text())


def blob(place, digest):
    return place / "blobs" / digest.replace(":", "/")


def oci_archive(place, tag, target):
    """One image of a layout as a tar, as `ctr image import` wants it."""
    described, manifest = manifest_of(place, tag)
    index = json.dumps({"schemaVersion": 2, "manifests": [described]}).encode()
    with tarfile.open(target, "w") as archive:
        _add(archive, "oci-layout", (place / "oci-layout").read_bytes())
        _add(archive, "index.json", index)
        for part in (described, manifest["config"], *manifest["layers"]):
            path = blob(place, part["digest"])
            archive.add(path, "blobs/" + part["digest"].replace(":", "/"))


def docker_archive(name, layers, config, target):
    """The same as `docker save` writes it, of plain layers."""
    config_name = hashlib.sha256(config).hexdigest() + ".json"
    listed = [{"Config": config_name, "RepoTags": [name], "Layers": [f"{one.digest}/layer.tar" for one in layers]}]
    with tarfile.open(target, "w") as archive:
        _add(archive, config_name, config)
        for layer in layers:
            archive.add(layer.path, f"{layer.digest}/layer.tar")
        _add(archive, "manifest.json", json.dumps(listed).encode())


def _add(archive, name, data):
    archive.addfile(entry(name, len(data)), io.BytesIO(data))


class Uploads:
    """Copies images of a layout into a repository of a registry."""

    def __init__(self, address, repository):
        self.connection, self.base = http.client.HTTPConnection(address, timeout=120), f"/v2/{repository}"

    def _ask(self, expected, method, path, body=None, headers=()):
        self.connection.request(method, path, body, dict(headers))
        answer = self.connection.getresponse()
        said = answer.read()
        if answer.status not in expected:
            raise Failed(f"{method} {path}: {answer.status} {said[:300]}")
        return answer

    def image(self, place, tag, pushed=None):
        """Copies a tag of a layout to the tag `pushed`, or to one of the same name."""
        _, manifest = manifest_of(place, tag)
        for part in (manifest["config"], *manifest["layers"]):
            self._blob(blob(place, part["digest"]), part)
        body = json.dumps(manifest).encode()
        self._ask([201], "PUT", f"{self.base}/manifests/{pushed or tag}", body, {"Content-Type": MANIFEST}.items())

    def _blob(self, path, part):
        if self._ask([200, 404], "HEAD", f"{self.base}/blobs/{part['digest']}").status == 200:
            return
        begun = self._ask([202], "POST", f"{self.base}/blobs/uploads/")
        where = begun.headers["Location"]
        where = where[where.index("/v2/"):] + ("&" if "?" in where else "?") + f"digest={part['digest']}"
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(part["size"])}
        with open(path, "rb") as body:
            self._ask([201], "PUT", where, body, headers.items())
