"""Seconds of an audit: of a function that is called once per release, of an HTTP service, and of bulk releases.

python benchmarks/audit.py

The three rows of docs/audit.md, with the claim epsilon 1 and Laplace noise. Each audit has a number of releases instead
of a time, which is about four calls per release. The service runs in a process of its own on the same machine and
answers with noisy scores from a seeded generator, so that its own time is small.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np

import scoreshield as ss
from scoreshield.audit import Claim, audit
from scoreshield.audit.targets import Endpoint

QUERY = np.eye(8)[0]


class Service(BaseHTTPRequestHandler):
    """Answers {"embeddings": rows, "query": vector} with the scores and Laplace noise of scale 2."""

    protocol_version = "HTTP/1.1"
    rng = np.random.default_rng(1)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        rows = np.asarray(body["embeddings"])
        lengths = np.maximum(np.linalg.norm(rows, axis=1), 1e-9)
        scores = rows @ np.asarray(body["query"]) / lengths + self.rng.laplace(0, 2.0, len(rows))
        answer = json.dumps({"scores": scores.tolist()}).encode()
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def serve(port: Connection) -> None:
    server = HTTPServer(("127.0.0.1", 0), Service)
    port.send(server.server_address[1])
    server.serve_forever()


def report(name: str, release: Callable[..., object], releases: int) -> None:
    start = time.perf_counter()
    result = audit(release, Claim(epsilon=1.0), query=QUERY, releases=releases, seed=None)
    verdict = "BROKEN" if result.broken else "no violation found"
    seconds = time.perf_counter() - start
    print(f"{name:<55} {releases:>9,} releases {result.calls:>9,} calls {seconds:6.1f} s  {verdict}", flush=True)


def main() -> None:
    def call_once(rows: np.ndarray) -> np.ndarray:
        return ss.release_scores(rows, QUERY, epsilon=1, mechanism="laplace").noisy

    report("a Python function that calls release_scores", call_once, 2_000)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    report("an HTTP service on the same machine", Endpoint(f"http://127.0.0.1:{ours.recv()}/", QUERY), 2_000)
    process.kill()
    report(
        "functools.partial(release_scores, ...), secure sampler",
        functools.partial(ss.release_scores, query=QUERY, epsilon=1, mechanism="laplace"),
        1_000_000,
    )


if __name__ == "__main__":
    main()
