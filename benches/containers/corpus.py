"""The images that are converted, made of Debian's packages: the same packages give the same bytes.

`e` is one layer of Python, Django, NumPy, SciPy, pandas, Matplotlib, botocore and git: 325 MB, 14 thousand entries.
"""

import concurrent.futures
import hashlib
import io
import json
import pathlib
import posixpath
import shutil
import subprocess
import tarfile
import tempfile

import layout
from layout import Layout, entry, gzipped, plain, zstandard
from rig import Failed, run

PACKAGES = """
    python3 python3-minimal python3.11 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib python3-distutils
    git python3-numpy python3-scipy python3-pandas python3-pandas-lib python3-django python3-matplotlib python3-botocore
""".split()
# Goes up where other bytes are made of the same packages.
VERSION = 1
TINY_LAYERS = 60
ONE_FILE_IMAGES = 24


class Corpus:
    """What was made: an OCI layout with the tags of `TAGS`, archives of `e`, and what is known of them."""

    def __init__(self, place, known):
        self.place, self.layout, self.known = place, place / "layout", known
        self.tar, self.gzip = place / "layers/e.tar", place / "layers/e.tar.gz"
        self.chmod_gzip = place / "layers/chmod.tar.gz"
        self.oci_archive, self.docker_archive = place / "e.oci.tar", place / "e.docker.tar"

    def image(self, tag):
        return f"file://{self.layout}:{tag}"

    def has(self, tag):
        return tag in self.known["tags"]


def one_file(number):
    return f"one-file-{number}"


def make(base):
    """The corpus in `base`: made if it is not there, by a process of its own that keeps its memory to itself."""
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        return Corpus(base / "corpus", pool.submit(_make, base).result())


def _make(base):
    packages = _packages(base / "packages")
    wanted = {"version": VERSION, "packages": {path.name: path.stat().st_size for path in packages}}
    place = base / "corpus"
    noted = place / "corpus.json"
    if noted.exists() and (known := json.loads(noted.read_text()))["wanted"] == wanted:
        return known
    print("  making the images, once", flush=True)
    shutil.rmtree(place, ignore_errors=True)
    (place / "layers").mkdir(parents=True)
    known = _images(place, packages) | {"wanted": wanted}
    noted.write_text(json.dumps(known, indent=1))
    return known


def _packages(place):
    """The packages as files, fetched if they are not there."""
    place.mkdir(parents=True, exist_ok=True)
    absent = [name for name in PACKAGES if not any(place.glob(name + "_*.deb"))]
    if absent:
        print(f"  fetching {len(absent)} packages from Debian's mirror", flush=True)
        done = subprocess.run(["apt-get", "-q", "download", *absent], cwd=place, capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(f"apt-get download: {done.stderr.strip()[-600:]}; after `apt-get update`, try again")
    return [next(iter(sorted(place.glob(name + "_*.deb")))) for name in PACKAGES]


def _images(place, packages):
    layers = place / "layers"
    base = plain(_unite(packages, layers / "e.tar"))
    base_gzip, base_zstd = gzipped(base), zstandard(base)
    chmod = gzipped(plain(_chmod(base.path, layers / "chmod.tar")))
    tiny = [gzipped(plain(_tiny(number, layers))) for number in range(TINY_LAYERS)]
    made = Layout(place / "layout", run("dpkg", "--print-architecture").strip())
    made.add("e-plain", [base])
    made.add("e-gzip", [base_gzip])
    if base_zstd:
        made.add("e-zstd", [base_zstd])
    made.add("chmod", [base_gzip, chmod])
    made.add("tiny", tiny)
    made.add("tiny-on-e", [base_gzip, *tiny])
    for number in range(ONE_FILE_IMAGES):
        made.add(one_file(number), [base_gzip, gzipped(plain(_one_file(number, layers)))])
    layout.oci_archive(made.place, "e-gzip", place / "e.oci.tar")
    _, manifest = layout.manifest_of(made.place, "e-plain")
    config = layout.blob(made.place, manifest["config"]["digest"]).read_bytes()
    layout.docker_archive("bench:e", [base], config, place / "e.docker.tar")
    with tarfile.open(base.path) as tar:
        entries = sum(1 for _ in tar)
    names = hashlib.sha256("".join(path.name for path in packages).encode()).hexdigest()[:12]
    return {"tags": sorted(made.tags), "entries": entries, "packages_sum": names, "e_digest": base.digest,
            "bytes": {"plain": base.size, "gzip": base_gzip.size, "zstd": base_zstd.size if base_zstd else None,
                      "chmod": chmod.size, "tiny": sum(layer.size for layer in tiny)}}


class Package:
    """A package's files as an open tar."""

    def __init__(self, path):
        self.file = tempfile.TemporaryFile()
        subprocess.run(["dpkg-deb", "--fsys-tarfile", path], stdout=self.file, check=True)
        self.file.seek(0)
        self.tar = tarfile.open(fileobj=self.file)


def _unite(packages, target):
    """All files of the packages in one tar, in the order in which a walk of the tree finds them."""
    found = {}
    for package in map(Package, packages):
        for member in package.tar:
            name = posixpath.normpath(member.name)
            if name != ".":
                found.setdefault(name, (member, package))
    written = {}
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(found, key=lambda name: name.split("/")):
            member, package = found[name]
            # The first of the names of a file has its content, whichever the package has first.
            content = posixpath.normpath(member.linkname) if member.islnk() else name
            made = _like(found[content][0], name)
            if content in written:
                made.type, made.linkname, made.size = tarfile.LNKTYPE, written[content], 0
            elif made.isfile():
                written[content] = name
            tar.addfile(made, package.tar.extractfile(found[content][0]) if made.isreg() else None)
    return target


def _like(member, name):
    made = tarfile.TarInfo(name)
    made.type, made.linkname = member.type, member.linkname
    made.mode, made.uid, made.gid, made.mtime = member.mode, member.uid, member.gid, int(member.mtime)
    made.size = member.size if member.isfile() else 0
    return made


def _chmod(source, target):
    """The layer that `chmod -R g+w` leaves in a container on overlayfs: all files again, with other modes."""
    with tarfile.open(source) as before, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as after:
        for member in before:
            if not member.issym():
                member.mode |= 0o020
                after.addfile(member, before.extractfile(member) if member.isreg() else None)
    return target


def _tiny(number, layers):
    """One small file; every tenth layer also removes the one of ten before."""
    directory = "etc/bench.d"
    names = {f"{directory}/{number:02}.conf": f"[setting]\nnumber = {number}\nenabled = true\n"}
    if number % 10 == 0 and number:
        names[f"{directory}/.wh.{number - 10:02}.conf"] = ""
    return _small(layers / f"tiny-{number:02}.tar", ["etc", directory], names)


def _one_file(number, layers):
    return _small(layers / f"one-file-{number:02}.tar", ["usr", "usr/share"], {f"usr/share/one-{number}": "x"})


def _small(target, directories, files):
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        for name in directories:
            tar.addfile(entry(name, 0, tarfile.DIRTYPE, 0o755))
        for name, text in files.items():
            tar.addfile(entry(name, len(text)), io.BytesIO(text.encode()))
    return target
