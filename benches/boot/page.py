"""docs/benchmarks.md, its plots, and the same as JSON in target/bench."""

import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess

import checks
import predictions
from contestants import NBDKIT, NBDKIT_BEST, TITLES
from figures import Figures, boot, interval, moved, p99, requests, wait
from rig import FIGURES, ROOT, run

COMPARED = ("lazy", "whole-lazy", "zero-shot", "planned", "useless", "adversarial")
ORDER = [name for name in TITLES if name not in ("useless", "adversarial")]
DRAW = os.environ.get("BENCH_DRAW", ROOT / "target/release/examples/draw")


def number(value):
    """Three digits that mean something."""
    if value is None:
        return "-"
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def by_rate(figures, image, figure, rest, scale=1.0):
    """A table of a figure: a row a contestant, a column a rate; `rest` is (delay, grace, faster)."""
    rates = sorted({setting[0] for setting in figures.settings() if setting[1:] == rest})
    rows = []
    for contestant in ORDER:
        values = [figures.median(image, contestant, (rate, *rest), figure) for rate in rates]
        if any(value is not None for value in values):
            rows.append([TITLES[contestant]] + [number(value and value * scale) for value in values])
    return table(["MB/s"] + [str(rate) for rate in rates], rows) if rows else ""


def waits(figures):
    """Total waits, by image and setting, and what was moved for it."""
    for image in figures.images():
        yield f"### {image}\n"
        rests = dict.fromkeys(setting[1:] for setting in figures.settings())
        for rest in rests:
            delay, grace, faster = rest
            guest = "as recorded" if faster == 1 else f"{faster} times as fast as recorded"
            yield f"Total wait in seconds; round trip {delay} ms, first read after {grace} s, the guest {guest}:\n"
            yield by_rate(figures, image, wait, rest)
        rest = (20, 3, 1)
        yield "P99 of the waits, in milliseconds (20 ms, 3 s, as recorded):\n"
        yield by_rate(figures, image, p99, rest, 1e3)
        yield "From where the first read should come to the last answer, in seconds (20 ms, 3 s, as recorded):\n"
        yield by_rate(figures, image, boot, rest)
        yield "MB that came over the link until then:\n"
        yield by_rate(figures, image, moved, rest, 1e-6)
        yield "Requests to the web server until then:\n"
        yield by_rate(figures, image, requests, rest)


def guests(figures):
    """Real boots."""
    for image in figures.images():
        rows = []
        for contestant in ORDER:
            boots = figures.guests(image, contestant)
            if not boots:
                continue
            up = [row["up"] for row in boots]
            low, high = interval(up)
            pairs = figures.pairs(image, contestant)
            ratio = "-"
            if pairs:
                ratio = f"{statistics.median(pairs):.2f} ({interval(pairs)[0]:.2f}-{interval(pairs)[1]:.2f})"
            rows.append([TITLES[contestant], str(len(boots)), f"{statistics.median(up):.1f} ({low:.1f}-{high:.1f})",
                         ratio, number(statistics.median(map(moved, boots)) / 1e6),
                         number(statistics.median(map(requests, boots)))])
        if rows:
            yield f"{image}:\n"
            yield table(["", "boots", "to SERVICE-UP, s", "of the local disk's", "MB", "requests"], rows)


def others(figures, images):
    """Zero-shot, and plans that are wrong."""
    for image in images:
        for rest in dict.fromkeys(setting[1:] for setting in figures.settings() if setting[1] == 20):
            rates = [setting[0] for setting in figures.settings() if setting[1:] == rest]
            rows = []
            for contestant in TITLES:
                values = [figures.median(image, contestant, (rate, *rest), wait) for rate in rates]
                if contestant in COMPARED and any(value is not None for value in values):
                    rows.append([TITLES[contestant]] + [number(value) for value in values])
            if rows:
                yield f"{image}; round trip {rest[0]} ms, first read after {rest[1]} s, {rest[2]} times as fast:\n"
                yield table(["total wait, s; MB/s"] + list(map(str, rates)), rows)


def predicted(figures, said):
    """What the simulator says beside what was measured."""
    rows = [[f"{image}, {checks.words(setting)}", TITLES[contestant],
             *(number(figure) for both in zip(one, measured) for figure in both)]
            for image, setting, contestant, one, measured in predictions.beside(figures, said) if setting[1] == 20]
    if rows:
        yield table(["", "", "wait, said", "measured", "boot, said", "measured"], rows)


def judged(found):
    """The checks: how many are met, and the worst of each goal."""
    goals = {}
    for check in found:
        goals.setdefault(check.goal, []).append(check)
    rows = []
    for goal, list_ in goals.items():
        worst = min(list_, key=lambda check: check.margin)
        rows.append([goal, f"{sum(check.met for check in list_)} of {len(list_)}", f"{worst.value:.3f}",
                     ("at least " if worst.least else "at most ") + f"{worst.limit:.3f}",
                     f"{worst.where}{': ' + worst.note if worst.note else ''}"])
    return table(["", "met", "the worst", "goal", "where"], rows)


def missed(found):
    lines = [f"* {check.goal}, {check.where}: {check.value:.3f}, goal {check.limit:.3f}"
             + (f" ({check.note})" if check.note else "") for check in sorted(found, key=lambda check: check.margin)
             if not check.met]
    return "\n".join(lines) + "\n" if lines else "All goals are met.\n"


def draw(file, description):
    said = subprocess.run([str(DRAW)], input=json.dumps(description), stdout=subprocess.PIPE, text=True, check=True)
    pathlib.Path(file).write_text(said.stdout)


def plots(figures, docs):
    """Waits and bytes by rate; guests' boots."""
    for name, figure, label, scale in (("waits", wait, "total wait [s]", 1), ("bytes", moved, "moved [MB]", 1e-6)):
        charts = []
        for rest in ((20, 3, 1), (20, 0, 1), (20, 0, 5)) if name == "waits" else ((20, 3, 1),):
            for image in figures.images():
                rates = [setting[0] for setting in figures.settings() if setting[1:] == rest]
                series = []
                for style, contestant in enumerate(ORDER):
                    points = [(rate, value * scale) for rate in rates
                              if (value := figures.median(image, contestant, (rate, *rest), figure))]
                    if points and contestant != "zero-shot":
                        series.append({"name": TITLES[contestant], "style": style, "points": points})
                title = f"{image}, grace {rest[1]} s" + (f", {rest[2]} times faster" if rest[2] > 1 else "")
                charts.append({"title": title, "x": {"label": "bandwidth [MB/s]", "log": True},
                               "y": {"label": label, "log": True}, "series": series})
        draw(docs / f"benchmarks-{name}.svg", {"title": "", "columns": max(1, len(figures.images())), "width": 360,
                                               "height": 280, "charts": charts})
    images = [image for image in figures.images() if figures.guests(image, "local")]
    if images:
        series = [{"name": TITLES[contestant], "kind": "bars", "style": style,
                   "heights": [statistics.median([row["up"] for row in figures.guests(image, contestant)] or [0])
                               for image in images]}
                  for style, contestant in enumerate(ORDER)
                  if any(figures.guests(image, contestant) for image in images)]
        draw(docs / "benchmarks-guests.svg", {"width": 760, "height": 300, "columns": 1, "charts": [
            {"x": {"label": "", "names": images}, "y": {"label": "attach to SERVICE-UP [s]", "from": 0},
             "series": series}]})


def page(figures, found, said, versions, results, note):
    template = (pathlib.Path(__file__).parent / "page.md").read_text()
    parts = {
        "machine": f"{os.cpu_count()} processors, {platform.machine()}, Linux {platform.release().split('-')[0]}",
        "versions": versions,
        "note": f"\n{note}\n" if note else "",
        "date": datetime.date.today().isoformat(),
        "filters": " ".join(NBDKIT[NBDKIT_BEST]).replace("URL", "http://..."),
        "links": table(["asked for", "measured"], list(map(list, results.links.items()))),
        "count": str(len(results.latest())),
        "hours": f"{sum(row.get('took', 0) for row in results.latest()) / 3600:.1f}",
        "judged": judged(found),
        "missed": missed(found),
        "waits": "\n".join(waits(figures)),
        "guests": "\n".join(guests(figures)) or "Not measured.\n",
        "derived": "\n".join(others(figures, figures.images(derived=True))) or "Not measured.\n",
        "harm": "\n".join(others(figures, [image for image in figures.images() if figures.median(
            image, "useless", next(iter(figures.settings()), None), wait) is not None])) or "Not measured.\n",
        "predicted": "\n".join(predicted(figures, said)) or "Not computed.\n",
        "nbdkit": "\n".join(nbdkit(figures)) or "Not measured.\n",
    }
    for name, text in parts.items():
        template = template.replace("{" + name + "}", text)
    return template


def nbdkit(figures):
    """The search for nbdkit's best filters."""
    settings = [setting for setting in figures.settings() if setting[0] in (5, 10) and setting[1:] == (20, 3, 1)]
    rows = []
    for name, arguments in NBDKIT.items():
        values = [figures.median(image, f"nbdkit:{name}", setting, wait) for image in figures.images()
                  for setting in settings]
        if any(value is not None for value in values):
            rows.append([f"`{' '.join(arguments)}`"] + [number(value) for value in values])
    if rows:
        yield table(["total wait, s"] + [f"{image}, {setting[0]} MB/s" for image in figures.images()
                                         for setting in settings], rows)


def portable(replay):
    """A replay without what is of one machine: where the trace lay, and the disk."""
    return replay and {key: value for key, value in replay.items() if key not in ("trace", "uri", "plots")}


def write(images, results, docs, note):
    """Writes all of it; a line that says how the checks went."""
    figures = Figures(results.latest())
    said = predictions.add(images, figures)
    found = checks.all_checks(figures, said.needed, said.predicted)
    versions = run("nbdkit", "--version").strip() + ", " + run("qemu-system-x86_64", "--version").splitlines()[0]
    docs.mkdir(exist_ok=True)
    (docs / "benchmarks.md").write_text(page(figures, found, said.predicted, versions, results, note))
    plots(figures, docs)
    summary = [{"kind": row["kind"], "image": row["image"], "contestant": row["contestant"], "rate": row["rate"],
                "delay": row["delay"], "grace": row.get("grace"), "faster": row.get("faster"),
                "ready_s": row["ready"], "up_s": row.get("up"), "replay": portable(row.get("replay")),
                "moved": row["moved"], "build": row.get("build"), "load": row.get("load"), "at": row.get("at")}
               for row in results.latest()]
    report = {"checks": [check.__dict__ | {"met": check.met} for check in found], "measured": summary}
    text = json.dumps(report, separators=(",", ":")).replace('},{"kind"', '},\n{"kind"')
    FIGURES.mkdir(parents=True, exist_ok=True)
    (FIGURES / "boot.json").write_text(text + "\n")
    met = sum(check.met for check in found)
    print(judged(found))
    return f"{met} of {len(found)} checks met"
