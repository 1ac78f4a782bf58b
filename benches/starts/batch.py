"""Many containers of one image, started at once on a host that has nothing, and once more on the same host."""

import concurrent.futures
import dataclasses
import shutil
import time

from images import APPS, PORT
from page import table
from programs import Link

# Many threads that look every few milliseconds would take a processor.
LOOK = 0.02
# Its port is in its command, so that many of them can run in one network.
APP = next(app for app in APPS if app.name == "postgres")


def numbered(number):
    """The application with a port of its own."""
    command = [str(PORT + 1 + number) if word == str(PORT) else word for word in APP.command]
    return dataclasses.replace(APP, command=command)


def start_all(host, repository, count):
    """Starts so many containers at once; the seconds until each was up, ascending."""
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        started = [pool.submit(host.start_and_keep, numbered(number), repository, LOOK) for number in range(count)]
        return sorted(one.result() - start for one in started)


def measure(setting, contestants, options, say):
    """One container and a batch, each on hosts that have nothing; then the batch on a host that has everything."""
    rows = []
    for one in contestants:
        one.publish(setting, APP)
        for count in (1, options.batch):
            place = setting.place()
            with Link(place, setting.registry, options.rate, options.delay) as link:
                with one.host(place / "host", link.address) as host:
                    start = time.monotonic()
                    host.pull(one.repository(APP))
                    pull = time.monotonic() - start
                    cold = [pull + seconds for seconds in start_all(host, one.repository(APP), count)]
                    host.end_kept()
                    down = link.down()
                    warm = start_all(host, one.repository(APP), count)
                    host.end_kept()
            shutil.rmtree(place, ignore_errors=True)
            rows.append({"who": one.name, "count": count, "pull": pull, "cold": cold, "warm": warm, "down": down})
            say(f"{one.name}, {count} at once: the last up after {cold[-1]:.2f} s, the first after {cold[0]:.2f} s; "
                f"again {warm[-1]:.2f} s; {down / 1e6:.1f} MB")
    return rows


def batch_table(rows):
    """The slowest of each batch, beside one alone."""
    lines = []
    for who in dict.fromkeys(row["who"] for row in rows):
        one, many = sorted((row for row in rows if row["who"] == who), key=lambda row: row["count"])
        last = [row[when][-1] for when in ("cold", "warm") for row in (one, many)]
        lines.append([who, f"{last[0]:.2f}", f"{last[1]:.2f}", f"{last[1] / last[0]:.2f}", f"{last[2]:.2f}",
                      f"{last[3]:.2f}", *(f"{row['down'] / 1e6:.1f}" for row in (one, many))])
    count = max(row["count"] for row in rows)
    return table(["", "s, one", f"s, the last of {count}", "times", "s warm, one", f"s warm, the last of {count}",
                  "MB, one", f"MB, {count}"], lines)
