"""No exception that leaves a public function, interrupts included, keeps rows, clean scores or an unpaid release.

Error trackers collect the variables of every frame of a traceback. The walker below looks at all of them, from the
first frame of the library inwards, and through everything that they lead to.
"""

from __future__ import annotations

import ast
import asyncio
import concurrent.futures
import functools
import gc
import importlib
import inspect
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import _frames
from scoreshield._frames import clear_frames_on_error
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy.levels.tables import LevelChannel
from scoreshield.privacy.sampling.stream import SecureStream, open_stream
from scoreshield.search import PrivateSearch
from scoreshield.stores import ArrayStore, Convention, PinnedStore, Records, StoreScores

N, D = 24, 6
ROWS = np.random.default_rng(5).standard_normal((N, D))
QUERIES = np.random.default_rng(6).standard_normal((3, D))
QUERY = QUERIES[0]
LABELS = np.arange(N) // 3
LIBRARY = str(Path(ss.__file__).parent)


def _clean_values() -> np.ndarray:
    """Rows, unit rows, centroids, scores and pairs, in both precisions."""
    unit = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
    sums = np.stack([unit[label == LABELS].sum(axis=0) for label in np.unique(LABELS)])
    centroids = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    queries = QUERIES / np.linalg.norm(QUERIES, axis=1, keepdims=True)
    parts = [ROWS, unit, centroids, unit @ queries.T, centroids @ queries.T, np.triu(unit @ unit.T, 1)]
    values = np.concatenate([part.reshape(-1) for part in parts])
    return values[np.abs(values) > 1e-6]


CLEAN = np.sort(_clean_values())


def _clean_counts() -> list[np.ndarray]:
    """Of the scores of one query and of all pairs, in the 64 bins of a histogram."""
    unit = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
    scores, pairs = unit @ QUERY / np.linalg.norm(QUERY), (unit @ unit.T)[np.triu_indices(N, 1)]
    inner = np.linspace(-1, 1, 65)[1:-1]
    return [np.bincount(np.searchsorted(inner, values), minlength=64) for values in (scores, pairs)]


COUNTS = _clean_counts()


def is_clean(values: Any) -> bool:
    """Whether a number among these is a clean one, to single precision."""
    numbers = np.asarray(values, dtype=np.float64).reshape(-1)
    numbers = numbers[np.isfinite(numbers)]
    place = np.clip(np.searchsorted(CLEAN, numbers), 1, len(CLEAN) - 1)
    near = np.minimum(np.abs(CLEAN[place] - numbers), np.abs(CLEAN[place - 1] - numbers))
    # Rounded to single precision they are 1e-7 apart at most; two clean values by chance at 1e-5 of the time.
    return bool((near < 2e-7).mean() > 0.05) if len(numbers) else False


def leaks(error: BaseException) -> list[str]:
    """Where a traceback, its causes and contexts, lead to something clean or to a release."""
    found: list[str] = []
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        one = errors.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        errors += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
        waiting: list[tuple[str, Any]] = [(type(one).__name__, [one.args, vars(one), getattr(one, "obj", None)])]
        inside = False
        for frame, _ in traceback.walk_tb(one.__traceback__):
            inside = inside or frame.f_code.co_filename.startswith(LIBRARY)
            if inside:
                waiting.append((frame.f_code.co_qualname, dict(frame.f_locals)))
        while waiting:
            where, value = waiting.pop()
            if id(value) in seen or value is None:
                continue
            seen.add(id(value))
            keep_alive.append(value)
            if isinstance(value, ss.Release):
                found.append(f"{where}: {type(value).__name__}")
            elif isinstance(value, np.ndarray):
                counted = value.shape == (64,) and any(np.array_equal(value, counts) for counts in COUNTS)
                if counted or (value.dtype.kind == "f" and is_clean(value)):
                    found.append(f"{where}: array {value.shape}")
                waiting.append((where, value.base))
                if value.dtype == object:
                    waiting += [(where, item) for item in value.reshape(-1)]
            elif isinstance(value, float | np.floating) and is_clean(value):
                found.append(f"{where}: {value}")
            else:
                waiting += [(f"{where} > {name}", part) for name, part in _parts(value)]
    keep_alive.clear()
    return found


keep_alive: list[Any] = []  # so that no two objects share an id during one walk


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, str | bytes | int | float | type | types.ModuleType | types.CodeType | np.random.Generator):
        return
    if isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            try:
                yield value.__name__, cell.cell_contents
            except ValueError:  # an empty cell
                continue
        yield from ((value.__name__, part) for part in value.__defaults__ or ())
        return
    if isinstance(value, dict):
        yield from ((str(key), part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (("item", part) for part in value)
    elif isinstance(value, types.MethodType):
        yield "self", value.__self__
        yield "function", value.__func__
    elif isinstance(value, functools.partial):
        yield "partial", (value.func, value.args, value.keywords)
    elif isinstance(value, types.GeneratorType):
        yield "generator", {} if value.gi_frame is None else dict(value.gi_frame.f_locals)
    elif isinstance(value, types.FrameType):
        yield "frame", dict(value.f_locals) if value.f_code.co_filename.startswith(LIBRARY) else {}
    elif isinstance(value, memoryview):
        yield "memory", np.asarray(value)
    else:
        yield from getattr(value, "__dict__", {}).items()
        for name in getattr(type(value), "__slots__", ()):
            if isinstance(name, str) and hasattr(value, name):
                yield name, getattr(value, name)


class Stop(BaseException):
    """Neither an Exception nor anything that the library knows."""


class Book:
    """An account that fails at one of its two steps, or at none."""

    dataset = "people"

    def __init__(self, fails: str = "") -> None:
        self._fails = fails

    def reserve(self, guarantees: Any, **_: Any) -> Book:  # noqa: ARG002
        return self._step("reserve")

    def commit(self) -> list[Any]:
        self._step("commit")
        return []

    def _step(self, name: str) -> Book:
        if self._fails == name:
            raise ss.LedgerError("The disk is full.")
        return self


class Memory:
    """A store that can fail while its own frame holds vectors."""

    name, convention, zero_copy, dimension = "The memory", Convention.COSINE, False, D

    def __init__(self) -> None:
        self.stops: type[BaseException] | None = None
        self.token = 0

    def _work(self) -> None:
        held = ROWS.copy()
        if self.stops is not None:
            raise self.stops
        del held

    def state(self) -> int:
        self._work()
        return self.token

    def scores(self, query: np.ndarray) -> StoreScores:
        self._work()
        return StoreScores(range(N), _embeddings.compute_scores(ROWS, query[None], "unit")[0].astype(np.float32))

    def ids(self) -> list[int]:
        self._work()
        return list(range(N))

    def records(self) -> Records:
        self._work()
        return Records(range(N), ROWS)


PURE: dict[str, Any] = {"epsilon": 1.0}
LOOSE: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
CENTROIDS = ss.Identity(LABELS, centroids=True)

#: Every public function that takes records, in each of its ways; each takes the account and a progress callback.
RELEASES: dict[str, list[Callable[..., Any]]] = {
    "release_scores": [
        lambda f, book, _: f(ROWS, QUERY, **LOOSE, ledger=book),
        lambda f, book, _: f(ROWS.tolist(), QUERIES, **LOOSE, ledger=book),
        lambda f, book, _: f(ROWS, QUERY, **PURE, mechanism="optimal", ledger=book),
        lambda f, book, _: f(ROWS, QUERY, **PURE, mechanism="staircase", adjacency=CENTROIDS, ledger=book),
    ],
    "release_row": [lambda f, book, _: f(ROWS, 3, **LOOSE, ledger=book)],
    "release_gram": [
        lambda f, book, progress: f(ROWS, **LOOSE, ledger=book, progress=progress),
        lambda f, book, progress: f(ROWS, **LOOSE, projection="none", ledger=book, progress=progress),
    ],
    "release_histogram": [
        lambda f, book, _: f(ROWS, QUERY, **PURE, ledger=book),
        lambda f, book, _: f(ROWS, None, **LOOSE, mechanism="gaussian", ledger=book),
    ],
    "release_matches": [lambda f, book, _: f(ROWS, QUERY, 0.1, **PURE, refine=0.5, ledger=book)],
    "release_top_k": [lambda f, book, _: f(ROWS, QUERY, 2, **PURE, ledger=book)],
    "release_batch": [
        lambda f, book, progress: f(ROWS, QUERIES, **PURE, k=2, ledger=book, progress=progress),
        lambda f, book, progress: f(ROWS, QUERY, **PURE, k=2, adjacency=CENTROIDS, ledger=book, progress=progress),
    ],
    "release_index": [
        lambda f, book, progress: f(ROWS, **PURE, ledger=book, progress=progress),
        lambda f, book, progress: f(ROWS, **LOOSE, components=3, reduction="pca", ledger=book, progress=progress),
        lambda f, book, progress: f(ROWS, **PURE, adjacency=CENTROIDS, ledger=book, progress=progress),
    ],
}
CALLS = [pytest.param(name, call, id=f"{name}-{n}") for name, calls in RELEASES.items() for n, call in enumerate(calls)]

#: What else is public, and why no private record passes through it.
WITHOUT_RECORDS = {
    "calibrate": "takes a contract",
    "compose": "takes guarantees",
    "group": "takes guarantees",
    "parallel": "takes guarantees",
    "optimal_channel": "takes a contract",
    "randomised_response": "takes a contract",
    "retrieval_cuts": "takes public scores, as its documentation says",
    "accept_bit": "takes a contract and public scores",
    "gaussian_bit": "takes a contract",
    "thinned_response": "takes a contract and public cuts",
    "pair_components": "takes a contract",
    "project_elliptope": "takes a noisy matrix",
    "load": "reads a release",
}


def test_no_public_function_is_forgotten() -> None:
    public = {name for name in ss.__all__ if inspect.isfunction(getattr(ss, name))}
    assert public == set(RELEASES) | set(WITHOUT_RECORDS)
    assert all(hasattr(getattr(ss, name), "__wrapped__") for name in RELEASES)
    modules = {name for name in ss.__all__ if inspect.ismodule(getattr(ss, name))}
    # Those of the curator's own analysis take clean data and give clean figures back; searches and stores are below.
    assert modules == {"attack", "audit", "decisions", "distributed", "plan", "risk", "search", "stores", "tasks"}
    # Tasks of a cluster are walked in tests/distributed.
    on_clusters = [getattr(ss.distributed, name) for name in ss.distributed.__all__ if name.startswith("release_")]
    assert all(hasattr(function, "__wrapped__") for function in on_clusters)


def attempt(work: Callable[[], Any]) -> BaseException | None:
    """What is raised, if anything is."""
    try:
        work()
    except BaseException as error:
        return error
    return None


def caught(work: Callable[[], Any]) -> BaseException:
    error = attempt(work)
    assert error is not None, "nothing was raised"
    return error


def no_progress(done: int, total: int) -> None:
    """Nothing to report."""


@pytest.mark.parametrize("step", ["reserve", "commit"])
@pytest.mark.parametrize(("name", "call"), CALLS)
def test_an_account_that_fails(name: str, call: Any, step: str) -> None:
    error = caught(lambda: call(getattr(ss, name), Book(step), no_progress))
    assert isinstance(error, ss.LedgerError)
    assert leaks(error) == []


@pytest.mark.parametrize(("name", "call"), CALLS)
def test_walker_finds_undecorated_functions(name: str, call: Any) -> None:
    """The near miss, for every function: the same failure without the decorator leaks."""
    error = caught(lambda: call(getattr(ss, name).__wrapped__, Book("commit"), no_progress))
    assert leaks(error)


@pytest.mark.parametrize("call", RELEASES["release_histogram"])
def test_the_walker_knows_clean_counts(call: Any) -> None:
    wrapped: Any = ss.release_histogram.__wrapped__  # type: ignore[attr-defined]
    found = leaks(caught(lambda: call(wrapped, Book("commit"), no_progress)))
    assert any("array (64,)" in one for one in found)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, MemoryError, Stop])
@pytest.mark.parametrize(("name", "call"), CALLS)
def test_a_stream_that_stops(name: str, call: Any, error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(SecureStream, "words", stop)
    raised = caught(lambda: call(getattr(ss, name), Book(), no_progress))
    assert isinstance(raised, error)
    assert leaks(raised) == []


@pytest.fixture
def signals() -> Iterator[None]:
    """A handler that raises, as that of Ctrl-C does; it is handed the frame that was interrupted."""

    def handle(number: int, frame: Any) -> None:  # noqa: ARG001
        raise Stop

    before = signal.signal(signal.SIGUSR1, handle), signal.signal(signal.SIGALRM, handle)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGUSR1, before[0])
    signal.signal(signal.SIGALRM, before[1])


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize(
    "spot", ["compute_scores", "normalise_rows", "check_finite", "compute_upper_gram", "compute_centroids"]
)
@pytest.mark.parametrize(("name", "call"), CALLS)
def test_a_signal_while_clean_values_are_computed(
    name: str, call: Any, spot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(_embeddings, spot)

    def interrupted(rows: Any, *args: Any, **kwargs: Any) -> Any:
        clean = real(rows, *args, **kwargs)
        if len(rows) > len(QUERIES):  # not the queries, which are public
            signal.raise_signal(signal.SIGUSR1)
        return clean

    monkeypatch.setattr(_embeddings, spot, interrupted)
    error = attempt(lambda: call(getattr(ss, name), Book(), no_progress))
    assert isinstance(error, Stop | None)
    assert error is not None or spot not in {
        "release_scores": ["compute_scores"],
        "release_gram": ["compute_upper_gram"],
    }.get(name, [])
    assert error is None or leaks(error) == []


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("name", RELEASES)
def test_a_timer_at_any_moment(name: str) -> None:
    """Wherever the signal falls. Those that come after the end are of no interest."""
    call, function = RELEASES[name][-1], getattr(ss, name)
    call(function, Book(), no_progress)  # the first time is slow
    start = time.perf_counter()
    call(function, Book(), no_progress)
    whole = time.perf_counter() - start
    stopped = 0
    for part in np.random.default_rng(1).uniform(0, 1, 1000):

        def timed(part: float = part) -> None:
            signal.setitimer(signal.ITIMER_REAL, max(1e-5, part * whole))
            call(function, Book(), no_progress)
            signal.setitimer(signal.ITIMER_REAL, 0)

        error = attempt(timed)
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert isinstance(error, Stop | None)
        if error is not None and not at_the_door(error):
            assert leaks(error) == []
            stopped += 1
        if stopped == 20:
            break
    assert stopped == 20


def at_the_door(error: BaseException) -> bool:
    """Whether an interrupt came in the instant of the call, before the decorator's own guard, or outside the call."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [frame.f_code.co_name for frame in frames if frame.f_code.co_filename.startswith(LIBRARY)]
    return names in ([], ["call_and_clear"])


@pytest.mark.usefixtures("signals")
def test_a_second_signal_while_the_first_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    real, times = _frames.clear_frames, []

    def interrupted(error: BaseException, callers: BaseException | None = None) -> None:
        times.append(1)
        if len(times) == 1:
            signal.raise_signal(signal.SIGUSR1)
        real(error, callers)

    monkeypatch.setattr(_frames, "clear_frames", interrupted)
    error = caught(lambda: ss.release_scores(ROWS, QUERY, **LOOSE, ledger=Book("commit")))
    assert isinstance(error, Stop)
    assert isinstance(error.__context__, ss.LedgerError)
    assert leaks(error) == []


@pytest.mark.parametrize(("name", "call"), [one for one in CALLS if one.values[0] in ("release_gram", "release_index")])
def test_a_progress_callback_that_raises(name: str, call: Any) -> None:
    def stop(done: int, total: int) -> None:
        raise Stop(done, total)

    error = caught(lambda: call(getattr(ss, name), Book(), stop))
    assert isinstance(error, Stop)
    assert leaks(error) == []


def test_names_signatures_and_documentation_stay() -> None:
    for name in RELEASES:
        function = getattr(ss, name)
        assert function.__name__ == name
        assert "epsilon" in inspect.signature(function).parameters
        assert function.__doc__
    assert inspect.iscoroutinefunction(PrivateSearch.asearch)
    assert "max_epsilon" in inspect.signature(PrivateSearch).parameters


# ---- Search.

MODES: dict[str, dict[str, Any]] = {
    "index": {},
    "query": {"mode": "query"},
    "screening": {"mode": "screening", "threshold": 0.2, "refine": 0.5},
    "scores": {"mode": "query", "pin": "scores"},
}
#: The public methods and properties, and how each is called; None where it reads nothing private.
METHODS: dict[str, Callable[[PrivateSearch], Any] | None] = {
    "search": lambda search: search.search(QUERY),
    "search_batch": lambda search: search.search_batch(QUERIES),
    "asearch": lambda search: asyncio.run(search.asearch(QUERY)),
    "asearch_batch": lambda search: asyncio.run(search.asearch_batch(QUERIES)),
    "refresh": lambda search: search.refresh(),
    "ids": lambda search: search.ids,
    "dimension": lambda search: search.dimension,
    "stale": lambda search: search.stale,
    "hide": lambda search: search.hide([1]),
    "save": None,
    "load": None,
    "facts": None,
    "version": None,
    "guarantee": None,
    "releases_scores": None,
    "spent": None,
    "check_before_refresh": None,
    "without_hidden": None,
    "worth": lambda search: search.worth,
}


def test_no_method_of_a_search_is_forgotten() -> None:
    assert {name for name in vars(PrivateSearch) if not name.startswith("_")} == set(METHODS)


def _search(mode: str, book: Book, store: Any = None) -> PrivateSearch:
    return PrivateSearch(Memory() if store is None else store, epsilon=1, ledger=book, **MODES[mode])  # type: ignore[arg-type]


#: What charges and draws: an index when it is made, and every other mode when it is asked.
CHARGES = [("refresh", "index")] + [
    (method, mode)
    for method in ("search", "search_batch", "asearch", "asearch_batch")
    for mode in MODES
    if mode != "index"
]


@pytest.mark.parametrize("step", ["reserve", "commit"])
@pytest.mark.parametrize(("method", "mode"), CHARGES)
def test_a_search_whose_account_fails(method: str, mode: str, step: str) -> None:
    book = Book()
    search, use = _search(mode, book), METHODS[method]
    book._fails = step
    assert use is not None
    error = caught(lambda: use(search))
    assert isinstance(error, ss.LedgerError)
    assert leaks(error) == []


@pytest.mark.parametrize("stops", [SystemExit, Stop, MemoryError, ConnectionError])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", [name for name, use in METHODS.items() if use is not None])
def test_a_search_whose_store_stops(method: str, mode: str, stops: type[BaseException]) -> None:
    store = Memory()
    search, use = _search(mode, Book(), store), METHODS[method]
    search.search(QUERY)
    search._search._records.forget()
    store.stops = stops
    store.token += 1
    assert use is not None
    error = attempt(lambda: use(search))
    if error is None:  # an index does not need its store, and this one says its dimension and worth without looking
        assert method in ("dimension", "worth") or (mode == "index" and method not in ("refresh", "stale"))
        return
    assert isinstance(error, stops | ss.StoreError | ss.InvalidInput)
    assert leaks(error) == []


@pytest.mark.parametrize(("method", "mode"), CHARGES)
def test_a_search_whose_stream_stops(method: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    search, use = _search(mode, Book()), METHODS[method]
    assert use is not None

    def stop(*_: Any) -> Any:
        raise Stop

    monkeypatch.setattr(SecureStream, "words", stop)
    error = caught(lambda: use(search))
    assert isinstance(error, Stop)
    assert leaks(error) == []


def test_walker_finds_undecorated_search() -> None:
    """The near miss: a search without the decorator leaks."""
    search = _search("query", Book("commit"))
    batch: Any = PrivateSearch.search_batch
    assert leaks(caught(lambda: batch.__wrapped__(search, QUERIES)))


@pytest.mark.parametrize("given", [ROWS, ROWS.tolist(), "store", "pinned"], ids=["array", "list", "store", "pinned"])
@pytest.mark.parametrize("fault", ["contract", "reserve", "commit", "stream", "progress"])
def test_failed_constructor_leaves_an_empty_object(fault: str, given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search whose constructor raises holds nothing."""
    store = {"store": ArrayStore(ROWS), "pinned": PinnedStore(ArrayStore(ROWS))}.get(
        given if isinstance(given, str) else ""
    )
    options: dict[str, Any] = {"epsilon": 1, "ledger": Book(fault)}
    if fault == "contract":
        options["delta"] = 0.1
    if fault == "stream":
        monkeypatch.setattr(SecureStream, "words", lambda *_: (_ for _ in ()).throw(Stop))
    if fault == "progress":
        options["progress"] = lambda *_: (_ for _ in ()).throw(Stop)
    search = PrivateSearch.__new__(PrivateSearch)
    error = caught(lambda: search.__init__(given if store is None else store, **options))  # type: ignore[misc]
    assert leaks(error) == []
    assert vars(search) == {}
    assert repr(search) == "<PrivateSearch of nothing yet: mode None, version 0>"


@pytest.mark.parametrize("build", [lambda s: s.__init__(ROWS, ids=[1]), lambda s: s.__init__(ROWS, ids=5)])
def test_rejected_store_keeps_no_array(build: Any) -> None:
    """An array store that is rejected holds no array, and neither does its error."""
    store = ArrayStore.__new__(ArrayStore)
    error = caught(lambda: build(store))
    assert isinstance(error, ss.InvalidInput)
    assert leaks(error) == []
    assert vars(store) == {}


def test_every_store_clears_what_it_reads() -> None:
    found = 0
    for name in ss.stores.__all__:
        store = getattr(ss.stores, name)
        if isinstance(store, type) and {"scores", "records"} <= set(dir(store)) and store is not ss.stores.Store:
            found += 1
            assert hasattr(store.scores, "__wrapped__"), name
            assert hasattr(store.records, "__wrapped__"), name
    assert found >= 8


@pytest.mark.parametrize("read", [PinnedStore.take_snapshot, PinnedStore.list_ids, PinnedStore.is_stale])
@pytest.mark.parametrize("stops", [SystemExit, Stop, ConnectionError])
def test_a_pinned_store_that_stops(read: Any, stops: type[BaseException]) -> None:
    store = Memory()
    pinned = PinnedStore(store)
    pinned.take_snapshot()
    store.stops = stops
    error = caught(lambda: read(pinned))
    assert isinstance(error, stops | ss.StoreError)
    assert leaks(error) == []


# ---- The decorator by itself.


@clear_frames_on_error
def fail(how: Callable[[np.ndarray], Any]) -> Any:
    clean = ROWS.copy()
    return how(clean)


def _inside(error: BaseException) -> list[str]:
    """As :func:`leaks`, with all frames inside ``fail``; this file is not part of the library."""
    global LIBRARY
    before, LIBRARY = LIBRARY, __file__
    try:
        trace: Any = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_name != "call_and_clear":
            trace = trace.tb_next
        return leaks(error.with_traceback(trace))
    finally:
        LIBRARY = before


def _raise(error: BaseException) -> Any:
    raise error


def _chained(clean: np.ndarray) -> None:
    def deep(values: np.ndarray) -> None:
        raise KeyError(len(values))

    try:
        deep(clean)
    except KeyError as error:
        raise ValueError("a") from error


def _grouped(clean: np.ndarray) -> None:
    def deep(values: np.ndarray) -> None:
        raise KeyError(len(values))

    found = []
    for _ in range(2):
        try:
            deep(clean)
        except KeyError as error:
            found.append(error)
    raise ExceptionGroup("two", found)


def _generated(clean: np.ndarray) -> None:
    def numbers(values: np.ndarray) -> Iterator[float]:
        yield 0.0
        raise Stop(len(values))

    for _ in numbers(clean):
        pass


def _thread(clean: np.ndarray) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(lambda values: _raise(Stop(len(values))), clean).result()


WAYS: dict[str, Callable[[np.ndarray], Any]] = {
    "chained": _chained,
    "grouped": _grouped,
    "generated": _generated,
    "thread": _thread,
    "attribute": lambda clean: clean.no_such_attribute,
    "exit": lambda clean: _raise(SystemExit(len(clean))),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_decorator_clears(way: str) -> None:
    error = caught(lambda: fail(WAYS[way]))
    assert _inside(error) == []
    raw = caught(lambda: fail.__wrapped__(WAYS[way]))  # type: ignore[attr-defined]
    global LIBRARY
    before, LIBRARY = LIBRARY, __file__
    try:
        assert leaks(raw)
    finally:
        LIBRARY = before


@pytest.mark.parametrize(
    "error",
    [
        UnicodeEncodeError("ascii", "private", 2, 3, "no such letter"),
        UnicodeDecodeError("utf-8", b"private", 2, 3, "no such letter"),
        UnicodeTranslateError("private", 2, 3, "no such letter"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_text_that_has_no_encoding_is_not_kept(error: UnicodeError) -> None:
    """The exception itself holds the whole text, beside its message."""
    raised = caught(lambda: fail(lambda _: _raise(error)))
    assert raised is error
    assert "private" not in repr((raised.args, vars(raised), getattr(raised, "object", None)))
    assert "no such letter" in str(raised)


def test_the_same_exception_with_its_lines_comes_out() -> None:
    error = Stop("a")
    assert caught(lambda: fail(lambda _: _raise(error))) is error
    assert "_raise" in {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}


def test_a_coroutine_is_cleared_too() -> None:
    @clear_frames_on_error
    async def work(values: np.ndarray) -> None:
        copied = values.copy()
        await asyncio.sleep(0)
        raise Stop(len(copied))

    error = caught(lambda: asyncio.run(work(ROWS)))
    assert isinstance(error, Stop)
    names = {}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        names[frame.f_code.co_name] = set(frame.f_locals)
    assert not names["work"] & {"values", "copied"}
    assert not names["await_and_clear"] & {"args", "kwargs"}


def test_abandoned_thread_keeps_nothing() -> None:
    """The exception of a worker thread is handed to the hook of threads, which error trackers replace."""
    search, errors = _search("query", Book("commit")), []
    before, threading.excepthook = threading.excepthook, lambda given: errors.append(given.exc_value)
    try:
        thread = threading.Thread(target=search.search, args=(QUERY,))
        thread.start()
        thread.join()
    finally:
        threading.excepthook = before
    assert isinstance(errors[0], ss.LedgerError)
    trace = errors[0].__traceback__
    names = {name: value for frame, _ in traceback.walk_tb(trace) for name, value in frame.f_locals.items()}
    assert not [name for name, value in names.items() if isinstance(value, np.ndarray) and is_clean(value)]
    gc.collect()


def test_what_the_caller_was_handling_stays_as_it_was() -> None:
    """A release that fails inside the caller's own ``except`` clears its own frames and not the caller's."""

    def own() -> None:
        precious = "the caller's"
        raise KeyError(precious)

    def keeps_an_error() -> Iterator[BaseException]:
        precious = "the caller's"
        try:
            own()
        except KeyError as error:
            yield error
        yield RuntimeError(precious)

    def failing_while(handled: BaseException, how: Any) -> BaseException:
        try:
            raise handled
        except BaseException:
            return caught(lambda: fail(how))

    suspended = keeps_an_error()
    handled = next(suspended)
    error = failing_while(handled, _chained)
    assert error.__cause__ is not None
    assert error.__cause__.__context__ is handled
    assert _inside(error) == []
    frames = {frame.f_code.co_name: frame for frame, _ in traceback.walk_tb(handled.__traceback__)}
    assert frames["own"].f_locals == {"precious": "the caller's"}
    assert str(next(suspended)) == "the caller's"
    lacking = AttributeError("a", obj=suspended)
    failing_while(lacking, lambda clean: clean.no_such_attribute)
    assert lacking.obj is suspended


@pytest.mark.parametrize(
    "call",
    [
        lambda: ss.release_scores(ROWS, QUERY, epsilon=1.0, delta=1e-6),
        lambda: ss.release_gram(ROWS, epsilon=1.0, delta=1e-6, projection="none"),
        lambda: ss.release_top_k(ROWS, QUERY, 1, epsilon=1.0),
    ],
    ids=["scores", "gram", "top-k"],
)
def test_a_stack_that_is_full_at_any_depth(call: Any) -> None:
    def deep(levels: int) -> Any:
        return deep(levels - 1) if levels else call()

    call()
    used = len(inspect.stack())
    before, raised = sys.getrecursionlimit(), 0
    for levels in range(130):
        error = None
        sys.setrecursionlimit(used + 160)
        try:
            deep(levels + 30)
        except RecursionError as full:
            error = full
        finally:
            sys.setrecursionlimit(before)
        if error is not None:
            raised += 1
            assert leaks(error) == []
    assert raised > 5


def test_a_table_of_levels_that_is_given_a_nan() -> None:
    table = ss.randomised_response(1.0, cuts=[0.0, 0.5])
    unit = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
    scores = np.append(unit @ QUERY / np.linalg.norm(QUERY), np.nan)
    error = caught(lambda: table.release(open_stream(None), scores))
    assert isinstance(error, InvalidInput)
    assert leaks(error) == []
    assert leaks(caught(lambda: LevelChannel.release.__wrapped__(table, open_stream(None), scores)))  # type: ignore[attr-defined]


PASSWORD = "a word that nobody may see"


def _shows(error: BaseException) -> list[str]:
    """The frames of the library whose variables show the password, as an error tracker would print them."""
    found, waiting = [], [error]
    for one in waiting:
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None and other not in waiting]
        for frame, _ in traceback.walk_tb(one.__traceback__):
            inside = frame.f_code.co_filename.startswith(LIBRARY)
            if inside and any(PASSWORD in repr(value) for value in frame.f_locals.values()):
                found.append(frame.f_code.co_qualname)
    return found


def test_failed_store_keeps_no_address() -> None:
    """The error of a store that cannot be opened holds no address or password."""
    pytest.importorskip("psycopg")
    from scoreshield.stores import PgVectorStore

    error = caught(lambda: PgVectorStore(f"host=127.0.0.1 port=1 user=a password='{PASSWORD}'", "people"))
    assert isinstance(error, ss.StoreError)
    assert _shows(error) == []


@pytest.mark.parametrize(
    "options",
    [
        {"base_url": f"http://user:{PASSWORD}@127.0.0.1/v1"},
        {"base_url": f"http://127.0.0.1/v1?key={PASSWORD}"},
        {"proxy": f"ftp://user:{PASSWORD}@127.0.0.1"},
        {"timeout": "soon"},
    ],
    ids=["user", "query", "proxy", "timeout"],
)
def test_failed_chat_model_keeps_no_key(options: dict[str, Any]) -> None:
    """The error of a chat model that cannot be made holds no key."""
    chat = pytest.importorskip("scoreshield.bench.rag.chat")
    given = {"base_url": "http://127.0.0.1:1/v1", "api_key": PASSWORD.replace(" ", "-"), **options}
    error = caught(lambda: chat.ChatModel("a", **given))
    assert isinstance(error, InvalidInput)
    assert _shows(error) == []
    assert leaks(error) == []


def test_the_prompt_of_a_chat_that_fails_is_not_kept() -> None:
    """Prompts hold texts of the collection."""
    pytest.importorskip("openai")
    from scoreshield.bench.rag.chat import ChatError, ChatModel

    messages = [{"role": "user", "content": PASSWORD}]
    with ChatModel("a", base_url="http://127.0.0.1:1/v1", retries=0, timeout=2) as model:
        for work in (lambda: model.complete(messages), lambda: model.complete_all([messages])):
            error = caught(work)
            assert isinstance(error, ChatError)
            assert _shows(error) == []


def test_store_constructors_clear_frames() -> None:
    """Every constructor of a store clears its frames."""
    for name in ss.stores.__all__:
        store = getattr(ss.stores, name)
        if isinstance(store, type) and name.endswith("Store") and name != "Store":
            assert hasattr(store.__init__, "__wrapped__"), name


#: Classes that hold released values or public facts only.
RELEASED_ONLY = {"BatchEffect", "Hit", "Hits", "IndexNotSaved", "ModeChoice", "SentenceHits"}
#: Members that store or return what they are given, or return a constant, and read nothing.
STORED = {
    "PrivateCorpus.private_search",
    "PrivateNearestNeighbors.__init__",
    "PrivateNearestNeighbors.guarantee_",
    "PrivateRetriever.search",
    "PrivateSearch.releases_scores",
    "PrivateSearch.version",
    "PrivateVectorStore.choice",
    "PrivateVectorStore.class_name",
    "PrivateVectorStore.client",
    "PrivateVectorStore.embeddings",
    "PrivateVectorStore.mode",
    "PrivateVectorStore.search",
}
PUBLIC_MODULES = {
    "search": "pip install scoreshield",
    "integrations.haystack": "pip install 'scoreshield[haystack]'",
    "integrations.langchain": "pip install 'scoreshield[langchain]'",
    "integrations.llama_index": "pip install 'scoreshield[llama-index]'",
    "integrations.scikit_learn": "pip install 'scoreshield[sklearn]'",
    "integrations.sentence_transformers": "pip install 'scoreshield[sentence-transformers]'",
    "integrations.text": "pip install scoreshield",
}


def _is_cleared(function: Any) -> bool:
    """Whether one of the layers of a function is `clear_frames_on_error`."""
    while function is not None:
        if function.__code__.co_name in ("call_and_clear", "await_and_clear"):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def _list_functions(module: Any) -> Iterator[tuple[str, Any]]:
    """List the public functions of a module, and the constructors, methods and properties of its public classes."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    for public in getattr(module, "__all__", [name for name in own if not name.startswith("_")]):
        value = getattr(module, public)
        if inspect.isfunction(value):
            yield public, value
        if not inspect.isclass(value) or public in RELEASED_ONLY:
            continue
        for name, member in vars(value).items():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            is_own = inspect.isfunction(function) and function.__module__.startswith("scoreshield")
            if is_own and (not name.startswith("_") or name == "__init__"):
                yield f"{public}.{name}", function


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_public_methods_clear_their_frames(name: str) -> None:
    """Whatever a store, a model or a ledger raises inside a public method, no frame of it keeps a record."""
    try:
        module = importlib.import_module(f"scoreshield.{name}")
    except InvalidInput as error:
        pytest.skip(f"{error}: {PUBLIC_MODULES[name]}")
    functions = dict(_list_functions(module))
    assert functions
    assert {place for place, function in functions.items() if not _is_cleared(function)} <= STORED


def test_packages_define_no_functions() -> None:
    """The packages of the frameworks give other names to the classes of the library, and add no method."""
    for path in (Path(__file__).parents[1] / "packages").rglob("*.py"):
        if "tests" not in path.parts:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            assert not [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)], path
