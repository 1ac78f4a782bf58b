"""The images that are measured: disks, the image store, recorded boots, what was learned of them."""

import os
import pathlib
import shutil

from rig import HEADSTART, ROOT, Rig, build_of, headstart, run

# Five boots to learn from, three to measure with.
TRAINED, TESTED = 5, 3


class Images:
    """Everything in one directory; made where it is not there."""

    def __init__(self, place):
        self.place = pathlib.Path(place).resolve()
        self.disks, self.www, self.traces = self.place / "disks", self.place / "www", self.place / "traces"
        self.plans = self.place / "plans"
        for directory in (self.disks, self.www, self.traces, self.plans):
            directory.mkdir(parents=True, exist_ok=True)

    def disk(self, name):
        return self.disks / f"{name}.raw"

    def store(self, kind="store"):
        """`store` has plans beside the images, `bare` has none."""
        return f"file://{self.www / kind}"

    def reference(self, name, kind="store"):
        return f"{self.store(kind)}:{name}"

    def has(self, name, kind="store"):
        index = self.www / kind / "index.json"
        return index.exists() and f'"{name}"' in index.read_text()

    def make(self, name):
        """The disk and its image. `BASE-derived` lies on the image of its base."""
        base = name.removesuffix("-derived")
        on = []
        if base != name:
            self.make(base)
            run(ROOT / "scripts/demo-disk", self.disk(name), "derived", self.disk(base))
            on = ["--base", self.reference(base, "bare")]
        else:
            run(ROOT / "scripts/demo-disk", self.disk(name), name)
        link = self.www / f"{name}.raw"
        if not link.is_symlink():
            link.symlink_to(f"../disks/{name}.raw")
        if not self.has(name, "bare"):
            headstart("--quiet", "image", "import", self.disk(name), self.reference(name, "bare"), *on)

    def boots(self, name):
        """The recorded boots: the first ones, to learn from, and the later ones, to measure with."""
        known = sorted((self.traces / name).glob("*.parquet"))
        return known[:TRAINED], known[TRAINED:TRAINED + TESTED]

    def record(self, name):
        """Boots it until there are enough, lazily from the store here."""
        while sum(map(len, self.boots(name))) < TRAINED + TESTED:
            with Rig(self.place, self.www) as rig:
                disk = rig.start("disk", HEADSTART, "attach", self.reference(name, "bare"), "--policy", "lazy",
                                 "--nbd", f"unix:{rig.work}/nbd", "--cache", rig.work / "cache",
                                 "--record", self.traces / name)
                disk.wait_for((rig.work / "nbd").exists)
                took = run(ROOT / "scripts/boot-vm", "--snapshot", f"nbd+unix:///?socket={rig.work}/nbd").strip()
                rig.end(disk)
            print(f"  recorded a boot of {name}: {took}", flush=True)

    def learn(self, names):
        """Trains on the boots to learn from, publishes, lays out anew; with the score's order as ThinkAhead has it, and
        with plans that are wrong. All of it anew for another build."""
        done = self.place / "learned"
        known = done.read_text().split() if done.exists() else [""]
        if known[0] != build_of():
            shutil.rmtree(self.www / "store", ignore_errors=True)
            known = [build_of()]
        for name in names:
            if name not in known:
                headstart("--quiet", "image", "copy", self.reference(name, "bare"), self.reference(name))
                self._train(name)
                known.append(name)
        for name in names:
            self._mislead(name, next(other for other in names if other not in name and name not in other))
        done.write_text(" ".join(known) + "\n")

    def _train(self, name):
        boots = self.place / "learn" / name
        shutil.rmtree(boots, ignore_errors=True)
        boots.mkdir(parents=True)
        for trace in self.boots(name)[0]:
            os.link(trace, boots / trace.name)
        image = self.reference(name)
        train = ["--quiet", "train", "--traces", boots, "--image", image]
        headstart(*train, "-o", self.plans / f"{name}.own", "--publish", image)
        headstart(*train, "-o", self.plans / f"{name}.score", "--policy", "thinkahead", "--objective", "hits")
        headstart("--quiet", "image", "optimize", image, self.reference(f"{name}-optimized"))

    def _mislead(self, name, other):
        """Lists of blocks that are of no use: those of another image's plan, and those that are in no plan of this."""
        useful = set(self._blocks(name))
        never = [block for block in range(self.disk(name).stat().st_size >> 21) if block not in useful]
        for kind, blocks in (("useless", self._blocks(other)), ("adversarial", never)):
            (self.plans / f"{name}.{kind}").write_text("".join(f"{block}\n" for block in blocks))

    def _blocks(self, name):
        plan = headstart("--quiet", "plan", "show", "--plans", self.plans / f"{name}.own", "--bandwidth", "10",
                         "--reference", self.reference(name, "bare"))
        return [block for block, _ in plan["order"]]
