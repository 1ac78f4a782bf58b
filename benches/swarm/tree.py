"""One host of a broadcast: files come down a tree of hosts, and go on to the next ones as they come.

    tree.py LISTING INTO PORT (--from URL | --wait) [--to ADDRESS]...

LISTING is JSON, a list of [path, size]. The root takes them from a web server when it is told so by a line on its
standard input; all others wait for who is above them. Ends when everything is here and with those below; says when.
"""

import argparse
import json
import pathlib
import queue
import socket
import sys
import threading
import time
import urllib.request

CHUNK = 256 << 10
# Chunks that wait for somebody below: it is the links that are to limit it, not the waiting of one for the other.
WAITING = 16


def take(source, length):
    """The next chunks of so many bytes."""
    while length:
        chunk = bytearray(min(CHUNK, length))
        view, got = memoryview(chunk), 0
        while got < len(chunk):
            count = source(view[got:])
            if not count:
                sys.exit("tree: the stream ends early")
            got += count
        length -= got
        yield chunk


def from_web(url, files):
    for path, size in files:
        with urllib.request.urlopen(f"{url}/{path}") as answer:
            yield from take(answer.readinto, size)


def from_above(port, files):
    with socket.create_server(("", port)) as server:
        connection, _ = server.accept()
        with connection:
            yield from take(connection.recv_into, sum(size for _, size in files))


def hand_on(address, port, waiting):
    """To one that is below."""
    for _ in range(500):
        try:
            connection = socket.create_connection((address, port))
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    with connection:
        while chunk := waiting.get():
            connection.sendall(chunk)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)


def write(chunks, files, into):
    """The stream is all files one after the other."""
    pending = b""
    for path, size in files:
        place = into / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(place, "wb", buffering=0) as file:
            left = size
            while left:
                pending = memoryview(pending or next(chunks))
                part = pending[:left]
                file.write(part)
                pending, left = pending[len(part):], left - len(part)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("listing")
    parser.add_argument("into", type=pathlib.Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--from", dest="url")
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("--to", action="append", default=[])
    options = parser.parse_args()
    files = json.loads(options.listing)
    queues = [queue.Queue(WAITING) for _ in options.to]
    below = [threading.Thread(target=hand_on, args=(address, options.port, waiting))
             for address, waiting in zip(options.to, queues)]
    for thread in below:
        thread.start()
    if options.url:
        sys.stdin.readline()

    def chunks():
        for chunk in from_web(options.url, files) if options.url else from_above(options.port, files):
            for waiting in queues:
                waiting.put(chunk)
            yield chunk

    write(chunks(), files, options.into)
    print(f"here {time.monotonic()}", flush=True)
    for waiting in queues:
        waiting.put(None)
    for thread in below:
        thread.join()


if __name__ == "__main__":
    main()
