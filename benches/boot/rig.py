"""Processes that a measurement runs: a web server, a slow link to it, disks, guests."""

import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# The figures behind the pages of docs/, as JSON: too much for git, and made again by each run.
FIGURES = ROOT / "target/bench"
HEADSTART = pathlib.Path(os.environ.get("BENCH_HEADSTART", ROOT / "target/release/headstart"))
LAB = pathlib.Path(os.environ.get("BENCH_LAB", HEADSTART.with_name("headstart-lab")))
SHAPER = pathlib.Path(os.environ.get("BENCH_SHAPER", ROOT / "target/release/headstart-shaper"))
# What hangs is ended and said, and does not hold up the rest.
LONGEST = 1800


class Failed(Exception):
    """A measurement that came to nothing, with what its programs said."""


def run(*command, within=LONGEST, feed=None):
    """Runs a program to its end, with `feed` as its standard input; its standard output."""
    try:
        done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=within, input=feed)
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(map(str, command))}: takes longer than {within} s") from None
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}: {done.stderr.strip()[-800:]}")
    return done.stdout


class Running:
    """A program in the background, whose output goes to files."""

    def __init__(self, work, name, *command, **options):
        self.output, self.errors = work / name, work / (name + ".errors")
        with open(self.output, "w") as output, open(self.errors, "w") as errors:
            self.process = subprocess.Popen([str(part) for part in command], stdout=output, stderr=errors, **options)

    def said(self):
        return self.output.read_text()

    def wait_for(self, condition, within=120.0, every=0.002):
        """Until the condition gives something, which is returned. Looks every so many seconds."""
        until = time.monotonic() + within
        while True:
            found = condition()
            if found:
                return found
            if self.process.poll() is not None or time.monotonic() > until:
                raise Failed(f"{self.output.name} does not start: {self.errors.read_text().strip()[-800:]}")
            time.sleep(every)

    def end(self):
        """Asks it to end, and waits; what it said."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return self.said()


def web_server(place, address, directory, line):
    """The command of a web server that keeps its files in `place`, and in `requests` there a line of each request."""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = " ".join(f"{kind}_temp_path {place}/{kind};" for kind in kinds)
    (place / "nginx.conf").write_text(f"""
daemon off; master_process off; pid {place}/nginx.pid; error_log stderr;
events {{ worker_connections 4096; }}
http {{
    {places}
    log_format moved '{line}';
    access_log {place}/requests moved;
    default_type application/octet-stream; sendfile on; tcp_nodelay on; keepalive_requests 1000000;
    server {{ listen {address}; root {directory}; }}
}}
""")
    return "nginx", "-p", place, "-c", place / "nginx.conf"


class Rig:
    """One link to a web server over a directory, with a place for what runs beside it. Ends all of it with itself."""

    def __init__(self, base, directory, rate=None, delay=0):
        self.base, self.directory, self.rate, self.delay = base, directory, rate, delay
        self.running = []
        self.moved = None

    def __enter__(self):
        self.work = pathlib.Path(tempfile.mkdtemp(dir=self.base, prefix="run-"))
        try:
            self._serve()
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for program in reversed(self.running):
            program.end()
        shutil.rmtree(self.work, ignore_errors=True)

    def start(self, name, *command, **options):
        program = Running(self.work, name, *command, **options)
        self.running.append(program)
        return program

    def end(self, program):
        self.running.remove(program)
        return program.end()

    def _serve(self):
        for _ in range(20):
            self.web = f"127.0.0.1:{random.randrange(20000, 32000)}"
            server = self.start("nginx", *web_server(self.work, self.web, self.directory, "$status $bytes_sent"))
            try:
                server.wait_for((self.work / "nginx.pid").exists, 5)
                time.sleep(0.05)
                if server.process.poll() is None:
                    return
            except Failed:
                pass
            self.end(server)
        raise Failed("nginx does not start: " + server.errors.read_text())

    def _connect(self):
        limits = ["--rate", f"{self.rate}MB/s", "--delay", f"{self.delay}ms"] if self.rate else []
        self.shaper = self.start("link", SHAPER, "--to", self.web, *limits)
        self.link = self.shaper.wait_for(lambda: self.shaper.said().strip())

    def disconnect(self):
        """Ends the link; what came over it."""
        said = self.end(self.shaper).split("moved: ")[1].split()
        requests = (self.work / "requests").read_text().splitlines()
        self.moved = {"down": int(said[0]), "up": int(said[3]), "connections": int(said[6]),
                      "requests": len(requests)}
        return self.moved


def calibrate(rate, delay):
    """What such a link gives on this machine at this moment, in the shaper's words."""
    return run(SHAPER, "--rate", f"{rate}MB/s", "--delay", f"{delay}ms", "--calibrate").strip()


def headstart(*arguments, **limits):
    """The report of a command, as JSON."""
    said = run(HEADSTART, *arguments, "--json", **limits)
    return json.loads(said) if said.strip() else None


def lab(*arguments, **limits):
    """The report of a command of the lab, as JSON."""
    return json.loads(run(LAB, *arguments, "--json", **limits))


def build_of(program=HEADSTART):
    """Names the program that is measured."""
    return hashlib.sha256(program.read_bytes()).hexdigest()[:12]


class Bench:
    """One run: its rows, what was left out, and what failed. `options.json`: standard output is for figures alone."""

    def __init__(self, options):
        self.options, self.started = options, time.monotonic()
        self.rows, self.skipped, self.failed = [], [], []

    def seconds(self):
        """The time since the beginning."""
        return time.monotonic() - self.started

    def say(self, text):
        out = sys.stderr if self.options.json else sys.stdout
        print(f"  {self.seconds():4.0f} s  {text}", file=out, flush=True)

    def skip(self, text):
        self.skipped.append(text)
        self.say(f"SKIPPED: {text}")

    def fail(self, text):
        self.failed.append(text)
        self.say(f"FAILED {text}")


class Processors:
    """How busy the machine's processors were between two moments."""

    def __init__(self):
        self.start = self._times()

    @staticmethod
    def _times():
        times = [int(part) for part in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(times), times[3] + times[4]

    def busy(self):
        """A share of all of them."""
        (total, idle), (end, end_idle) = self.start, self._times()
        return round(1 - (end_idle - idle) / max(1, end - total), 3)
