"""What the simulator says of the same boots in the same settings, kept in a file beside the results."""

import json
import statistics
import tempfile

from figures import reads_take, reads_wait
from rig import Failed, build_of, headstart, lab

# Each contestant to the simulator: which plans, which image, which policy, what misses and preloads are. `foreseen`
# preloads what this very boot reads: no policy does better with slices and one link.
CONTENDERS = {
    "whole-lazy": ("own", "{name}", "lazy", ["--misses", "blocks", "--preloads", "blocks"]),
    "whole-score": ("score", "{name}", "thinkahead", ["--misses", "blocks", "--preloads", "blocks"]),
    "lazy": ("own", "{name}", "lazy", []),
    "planned": ("own", "{name}", "search", []),
    "optimized": ("own", "{name}-optimized", "search", []),
    "foreseen": ("own", "{name}", "history", []),
}


# The contestants that the simulator is compared with.
MEASURED = [name for name in CONTENDERS if name != "foreseen"]


def beside(figures, predicted):
    """(image, setting, contestant, what was said, what was measured), for all that has both; each of these as
    (total wait, boot time). `predicted` as `Said.predicted`."""
    for image in figures.images():
        for setting in figures.settings():
            for contestant in MEASURED:
                said = predicted(image, contestant, setting, figures.traces(image, contestant, setting))
                waited = figures.median(image, contestant, setting, reads_wait)
                took = figures.median(image, contestant, setting, reads_take)
                if said and waited is not None:
                    yield image, setting, contestant, said, (waited, took)


class Said:
    """Looks up what was said."""

    def __init__(self, images):
        self.path = images.place / "predictions.json"
        self.known = json.loads(self.path.read_text()) if self.path.exists() else {}
        # The simulator runs the product's own code: another build may say something else.
        if self.known.get("build") != build_of():
            kept = {key: value for key, value in self.known.items() if key.startswith("needed ")}
            self.known = kept | {"build": build_of()}

    def save(self):
        self.path.write_text(json.dumps(self.known, indent=1))

    @staticmethod
    def key(*parts):
        return " ".join(map(str, parts))

    def predicted(self, image, contestant, setting, traces):
        """(total wait, boot time) in seconds, the medians of these boots; or None."""
        found = [self.known.get(self.key("boot", image, contestant, *setting, trace)) for trace in traces]
        if not found or None in found:
            return None
        return [statistics.median(figure) for figure in zip(*found)]

    def needed(self, image, trace):
        """Compressed bytes of the distinct slices that a boot reads, or None."""
        return self.known.get(self.key("needed", image, trace))


def add(images, figures):
    """Computes what is missing for the settings that were measured."""
    said = Said(images)
    for name in figures.images():
        _, test = images.boots(name)
        for trace in test:
            key = said.key("needed", name, trace.name)
            if key not in said.known:
                said.known[key] = needed(images, name, trace)
        guests = {}
        for rate, *guest in figures.settings():
            guests.setdefault(tuple(guest), []).append(rate)
        for guest, rates in guests.items():
            for contender in CONTENDERS:
                for trace in test:
                    key = lambda rate: said.key("boot", name, contender, rate, *guest, trace.name)
                    if any(key(rate) not in said.known for rate in rates):
                        try:
                            found = simulated(images, name, contender, rates, guest, trace)
                        except Failed as error:
                            print(f"  not predicted: {error}", flush=True)
                            continue
                        said.known |= {key(rate): value for rate, value in found.items()}
    said.save()
    return said


def simulated(images, name, contender, rates, guest, trace):
    """{rate: (total wait, boot time)}."""
    plans, tag, policy, options = CONTENDERS[contender]
    delay, grace, faster = guest
    report = lab("--quiet", "simulate", "disk", "--traces", trace, "--plans", images.plans / f"{name}.{plans}",
                       "--model", "real", "--image", images.reference(tag.format(name=name)), "--policies", policy,
                       "--grace", f"{grace}s", "--faster", faster, "--round-trip", f"{delay}ms",
                       "--bandwidth", ",".join(map(str, rates)), *options, within=60)
    return {row["bandwidth"]: [round(row["wait_total"], 4), round(row["last_read"] - grace, 4)]
            for row in report["rows"]}


def needed(images, name, trace):
    """The slices of that boot, as they are when nothing else is between them."""
    with tempfile.TemporaryDirectory(dir=images.place) as work:
        try:
            image = images.reference(name, "bare")
            headstart("--quiet", "train", "--traces", trace, "-o", f"{work}/plans", "--image", image)
            made = headstart("--quiet", "image", "optimize", image, f"file://{work}/store:one",
                             "--plans", f"{work}/plans", "--no-others")
        except Failed as error:
            print(f"  how much {trace.name} reads is not known: {error}", flush=True)
            return None
    return made["boot_bytes"]
