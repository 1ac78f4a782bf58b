"""The image that is measured: so many bytes as stored, of a disk that compresses by half."""

import json
import mmap
import random
import shutil

from rig import headstart

# How much larger than the region the image is.
TIMES = 4
PAGE = 4096
TAG = "swarm"


class Image:
    """An OCI layout in a directory, with the disk beside it. `region` is in bytes as stored: what goes over links."""

    def __init__(self, place, region):
        self.place = place / f"image-{region >> 20}M"
        self.disk, self.layout = self.place / "disk.raw", self.place / "www" / "image"
        self.region = region
        # The half of each page is noise, the other a pattern: two bytes of the disk for each that is stored.
        self.size = 2 * TIMES * region

    def make(self):
        done = self.place / "done"
        if not done.exists():
            shutil.rmtree(self.place, ignore_errors=True)
            self.place.mkdir(parents=True)
            self._write_disk()
            headstart("--quiet", "image", "import", self.disk, f"file://{self.layout}:{TAG}")
            done.touch()
        self.files = sorted(path for path in self.layout.rglob("*") if path.is_file())
        self.stored = sum(path.stat().st_size for path in self.files)
        largest = max(self.files, key=lambda path: path.stat().st_size)
        self.layer, self.layer_path = largest.stat().st_size, largest.relative_to(self.layout)
        index = json.loads((self.layout / "index.json").read_text())
        self.digest = index["manifests"][0]["digest"]
        self.manifest = self.layout / "blobs" / self.digest.replace(":", "/")

    def _write_disk(self):
        noise = random.Random(self.region)
        at_once = 1 << 20
        with open(self.disk, "wb") as disk:
            for start in range(0, self.size, at_once):
                drawn = memoryview(noise.randbytes(at_once // 2))
                half = PAGE // 2
                for page in range(at_once // PAGE):
                    tail = (start // PAGE + page).to_bytes(8, "little") * (half // 8)
                    disk.write(drawn[page * half:(page + 1) * half])
                    disk.write(tail)

    def as_stored(self, length):
        """What so many bytes of the disk are in the layer: it is alike all over."""
        return length * self.layer / self.size

    def listing(self):
        """Paths in the layout, with sizes: what a broadcast brings."""
        return json.dumps([[str(path.relative_to(self.layout)), path.stat().st_size] for path in self.files])

    def differs(self, opened, ranges):
        """The first offset at which a disk has something else than it should; nothing where it is right."""
        with open(self.disk, "rb") as disk, mmap.mmap(disk.fileno(), 0, prot=mmap.PROT_READ) as right, \
                open(opened, "rb", buffering=0) as file:
            for offset, length in ranges:
                for at in range(offset, offset + length, 1 << 20):
                    end = min(at + (1 << 20), offset + length)
                    file.seek(at)
                    if file.read(end - at) != right[at:end]:
                        return at
        return None
