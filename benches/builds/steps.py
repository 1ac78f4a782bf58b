"""The build that is measured: fifteen steps, ten of which add files and five of which change modes.

The files are generated: the same on every machine, and compressible as programs and libraries are.
"""

import random
import shutil
import subprocess
import time

# As in the evaluation of the DADI paper (section 5.7): files, and their bytes.
FILES, BYTES = 7944, 545_000_000
ADDING, CHANGING = 10, 5
STEPS = ADDING + CHANGING


def pool(seed):
    """Bytes from which files are put together: words, records, and a third that does not compress."""
    dice = random.Random(seed)
    words = [bytes(dice.choices(b"etaoinshrdlucmfwypvbgkjqxz", k=dice.randint(2, 9))) for _ in range(3000)]
    text = b" ".join(dice.choices(words, k=200_000))
    records = b"".join(dice.randbytes(6) + bytes(2) + dice.randbytes(2) + bytes(6) for _ in range(40_000))
    return [text, records, dice.randbytes(1 << 20)]


def make(place):
    """The files of the steps that add, each step's in a directory of its own; the numbers of files and bytes."""
    done = place / "complete"
    if not done.exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        dice, kinds = random.Random(7), pool(8)
        # Many small files and few large ones.
        sizes = [dice.lognormvariate(0, 1.8) for _ in range(FILES)]
        scale = BYTES / sum(sizes)
        for number, size in enumerate(sizes):
            directory = place / f"step{number * ADDING // FILES}" / f"dir{number % 40}"
            directory.mkdir(parents=True, exist_ok=True)
            left, parts = max(1, int(size * scale)), []
            while left > 0:
                kind = dice.choice(kinds)
                start = dice.randrange(len(kind) - 1000)
                part = kind[start:start + min(left, dice.randint(1000, 200_000))]
                parts.append(part)
                left -= len(part)
            (directory / f"file{number}").write_bytes(b"".join(parts))
        done.touch()
    found = [path.stat().st_size for path in place.rglob("file*")]
    return len(found), sum(found)


def order():
    """The steps: after every two that add, one that changes the modes of what these have added."""
    adding = iter(range(ADDING))
    for step in range(CHANGING):
        pair = [next(adding), next(adding)]
        yield from (("add", [one]) for one in pair)
        yield "chmod", pair


def carry_out(files, root, kind, numbers):
    """One step in the root of the image."""
    for number in numbers:
        target = root / f"step{number}"
        if kind == "add":
            subprocess.run(["cp", "-r", files / f"step{number}", target], check=True)
        else:
            subprocess.run(["chmod", "-R", "g+w,o-r", target], check=True)


def listing(root):
    """All that a tree has: modes, sizes, digests of contents."""
    modes = subprocess.run(f"cd '{root}' && find step* -printf '%y %m %p\\n' | sort", shell=True, check=True,
                           capture_output=True).stdout
    sums = subprocess.run(f"cd '{root}' && find step* -type f -print0 | sort -z | xargs -0 sha256sum", shell=True,
                          check=True, capture_output=True).stdout
    return modes + sums


def paced(path, size, seconds):
    """Writes so many bytes in so many seconds, as a step that works does."""
    kinds, dice = pool(9), random.Random(10)
    start, written = time.monotonic(), 0
    with open(path, "wb") as out:
        while written < size:
            kind = dice.choice(kinds)
            place = dice.randrange(len(kind) - 500_000)
            out.write(kind[place:place + min(500_000, size - written)])
            written = out.tell()
            time.sleep(max(0, start + seconds * written / size - time.monotonic()))
