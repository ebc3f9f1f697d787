"""Draws by several threads: the same for every number of threads, from key streams that do not overlap."""

from __future__ import annotations

import itertools
import math
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.stats import kstest
from support import STRICT

import scoreshield as ss
from scoreshield.privacy.noise import GaussianNoise, LaplaceNoise, StaircaseNoise, add_noise
from scoreshield.privacy.noise import gaussian as noise_module
from scoreshield.privacy.sampling import gaussian, parallel, threads
from scoreshield.privacy.sampling.parallel import BLOCK, draw_blocks
from scoreshield.privacy.sampling.stream import BlockStream, ResearchStream, SecureStream, Stream
from scoreshield.releases import index as index_module

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
STEP = 2.0**-25
SENTENCE = "This release was started in another process; a fork cannot continue it."


@pytest.fixture
def fixed_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all streams have one key, so that their draws can be compared."""
    monkeypatch.setattr(os, "urandom", lambda count: bytes(range(100, 100 + count)))


def set_threads(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setenv(threads.VARIABLE, str(count))


def draw_noise(law: Any, size: int, step: float = STEP) -> np.ndarray:
    values = np.linspace(-1, 1, size)
    add_noise(values, law, step, SecureStream())
    return values


LAWS: dict[str, Callable[[int], np.ndarray]] = {
    "gaussian": lambda size: draw_noise(GaussianNoise(3.7), size),
    "laplace": lambda size: draw_noise(LaplaceNoise(2.1), size),
    "staircase": lambda size: draw_noise(StaircaseNoise.calibrate(1.0, 2.0, STEP), size),
}


@pytest.mark.usefixtures("fixed_key")
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK + 1, 5 * BLOCK + 77])
def test_noise_does_not_depend_on_the_number_of_threads(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for count in (1, 2, 3):
        set_threads(monkeypatch, count)
        found.append(LAWS[name](size))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    assert len(np.unique(found[0] / STEP)) > size / 2  # blocks do not repeat each other


@pytest.mark.usefixtures("fixed_key")
def test_other_blocks_would_be_other_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of a block is part of what a key draws: the test above would see a block that follows the threads."""
    before = LAWS["gaussian"](3 * BLOCK)
    monkeypatch.setattr(noise_module, "BLOCK", BLOCK // 2)
    assert not np.array_equal(LAWS["gaussian"](3 * BLOCK), before)


@pytest.mark.usefixtures("fixed_key")
@pytest.mark.parametrize("options", [{}, {"components": 6}, {"mechanism": "gaussian", "delta": 1e-6}])
def test_an_index_does_not_depend_on_the_number_of_threads(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(3).standard_normal((2000, 24)).astype(np.float32)
    monkeypatch.setattr(index_module, "_BLOCK_ENTRIES", 24 * 190)
    # The seed of a random subspace comes from the stream, and is part of what is compared.
    found = []
    for count in (1, 2, 3):
        set_threads(monkeypatch, count)
        found.append(ss.release_index(rows, epsilon=20, use="pairs", **options).vectors)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    assert len(np.unique(found[0], axis=0)) == len(rows)


def read_counters(start: int, count: int) -> list[int]:
    """The words at these counters, from the cipher itself."""
    key = bytes(range(100, 132))
    cipher = Cipher(algorithms.AES(key), modes.CTR((start % 2**128).to_bytes(16, "big"))).encryptor()
    return list(np.frombuffer(cipher.update(bytes(8 * count)), dtype="<i8"))


@pytest.mark.usefixtures("fixed_key")
@pytest.mark.parametrize("start", [bytes(range(100, 116)), b"\xff" * 16, bytes(16)])
def test_block_streams_start_where_the_proof_says(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stream s reads the counters from start + s 2^64, modulo 2^128; a second drawing continues the numbers."""
    monkeypatch.setattr(os, "urandom", lambda count: bytes(range(100, 132)) if count == 32 else start)
    first = int.from_bytes(start, "big")
    stream = SecureStream()
    assert stream.words(6).tolist() == read_counters(first, 6)
    one, two = stream.open_blocks(3), stream.open_blocks(2)
    for number, open_block in ((1, lambda: one(0)), (3, lambda: one(2)), (4, lambda: two(0)), (5, lambda: two(1))):
        assert open_block().words(9).tolist() == read_counters(first + number * 2**64, 9)
    assert stream.words(4).tolist() == read_counters(first + 3, 4)  # the stream itself goes on: 6 words are 3 blocks
    for place in (3, 7):
        with pytest.raises(IndexError):
            one(place)


def test_streams_of_one_release_share_no_word() -> None:
    stream = SecureStream()
    words = stream.words(2000).tolist()
    for _ in range(3):
        open_block = stream.open_blocks(4)
        words += itertools.chain.from_iterable(open_block(place).words(2000).tolist() for place in range(4))
    words += stream.words(2000).tolist()
    assert len(set(words)) == len(words) == 14 * 2000
    again = stream.open_blocks(1)
    assert again(0).words(5).tolist() == again(0).words(5).tolist()  # a number that is used twice would be seen


def test_a_block_has_no_blocks() -> None:
    block = SecureStream().open_blocks(1)(0)
    with pytest.raises(RuntimeError, match="no blocks of its own"):
        block.open_blocks(2)
    assert not parallel.has_blocks(block)
    values = np.zeros(2 * BLOCK)
    add_noise(values, GaussianNoise(1.0), STEP, block)  # from this stream alone
    assert np.unique(values).size > BLOCK


@pytest.mark.usefixtures("fixed_key")
def test_one_block_is_drawn_from_the_stream_itself() -> None:
    values, same = np.zeros(BLOCK), np.empty(BLOCK)
    add_noise(values, GaussianNoise(2.0), STEP, SecureStream())
    gaussian.fill_rounded_gaussian(SecureStream(), 2.0 / STEP, same)
    assert np.array_equal(values / STEP, same)


def test_research_draws_are_those_of_one_stream() -> None:
    values, same = np.zeros(3 * BLOCK), np.empty(3 * BLOCK)
    add_noise(values, GaussianNoise(2.0), STEP, ResearchStream(np.random.default_rng(1)))
    gaussian.fill_rounded_gaussian(ResearchStream(np.random.default_rng(1)), 2.0 / STEP, same)
    assert np.array_equal(values / STEP, same)


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    return abs(float(np.corrcoef(first, second)[0, 1])) * math.sqrt(len(first))


def test_blocks_have_the_law_and_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    set_threads(monkeypatch, 3)
    values = np.zeros(4 * BLOCK)
    add_noise(values, GaussianNoise(1.0), STEP, SecureStream())
    assert kstest(values, "norm").pvalue > 1e-7
    assert kstest(values * 1.05, "norm").pvalue < 1e-12  # near miss
    parts = values.reshape(4, BLOCK)
    for first, second in itertools.combinations(range(4), 2):
        for power in (1, 2):
            assert correlation(parts[first] ** power, parts[second] ** power) < STRICT
    assert correlation(parts[0], parts[0] + 20 * parts[1]) > 4 * STRICT  # near miss: a twentieth in common


def secure_blocks(
    draw: Callable[[int, Stream], None], count: int = 12, report: Callable[[int], None] | None = None
) -> None:
    draw_blocks(SecureStream(), range(count), count, draw, report)


def test_every_block_is_drawn_once_and_reported_here(monkeypatch: pytest.MonkeyPatch) -> None:
    set_threads(monkeypatch, 3)
    drawn, told, here = [], [], threading.current_thread()  # type: tuple[list[tuple[int, Any]], list[int], Any]
    helpers = set()
    meet = threading.Barrier(3, timeout=30)  # three threads are at work at once

    def draw(block: int, stream: Stream) -> None:
        assert isinstance(stream, BlockStream)
        if block < 3:
            meet.wait()
        helpers.add(threading.current_thread())
        drawn.append((block, int(stream.words(1)[0])))

    def report(done: int) -> None:
        assert threading.current_thread() is here
        told.append(done)

    secure_blocks(draw, report=report)
    assert sorted(block for block, _ in drawn) == list(range(12))
    assert len({word for _, word in drawn}) == 12
    assert len(helpers) == 3
    assert told == sorted(set(told))
    assert told[-1] == 12
    assert not any(thread.is_alive() for thread in helpers - {here})


@pytest.mark.parametrize("place", ["calling", "other"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_ends_all_threads(place: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of any thread is raised in the caller, when no thread draws any more."""
    set_threads(monkeypatch, 3)
    here, drawn, seen = threading.current_thread(), [], set()  # type: tuple[Any, list[int], set[Any]]
    meet = threading.Barrier(3, timeout=30)

    def draw(block: int, _: Stream) -> None:
        seen.add(threading.current_thread())
        if block < 3:
            meet.wait()
            if (threading.current_thread() is here) == (place == "calling"):
                raise error("stop here")
        drawn.append(block)

    with pytest.raises(error, match="stop here"):
        secure_blocks(draw, count=10_000)
    assert len(drawn) < 10_000
    assert not any(thread.is_alive() for thread in seen - {here})


def test_an_error_of_another_thread_keeps_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frames of the other thread are part of the traceback, and are cleared with the caller's."""
    set_threads(monkeypatch, 2)
    monkeypatch.setattr(index_module, "_BLOCK_ENTRIES", 24 * 50)
    here, meet = threading.current_thread(), threading.Barrier(2, timeout=30)
    normalise, calls = index_module.normalise_window, itertools.count()

    def fail(*given: Any) -> None:
        normalise(*given)
        if next(calls) < 2:
            meet.wait()
            if threading.current_thread() is not here:
                raise OSError("the disk is gone")

    monkeypatch.setattr(index_module, "normalise_window", fail)
    with pytest.raises(OSError, match="the disk is gone") as caught:
        ss.release_index(np.eye(24)[np.arange(2000) % 24], epsilon=20, use="pairs")
    trace, seen = caught.tb, []
    while trace is not None:
        if f"{os.sep}scoreshield{os.sep}" in trace.tb_frame.f_code.co_filename:
            seen.append(trace.tb_frame.f_code.co_name)
            if trace.tb_frame.f_code.co_name != "call_and_clear":
                assert not trace.tb_frame.f_locals, seen
        trace = trace.tb_next
    assert "_help" in seen
    assert "release_block" in seen


def test_an_error_of_the_reader_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    set_threads(monkeypatch, 2)

    def blocks() -> Iterator[int]:
        yield from range(5)
        raise ss.InvalidInput("the file ends here")

    with pytest.raises(ss.InvalidInput, match="ends here"):
        draw_blocks(SecureStream(), blocks(), 9, lambda *_: None)


def test_fewer_threads_than_asked_for_draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without room for threads draws in the calling one."""
    set_threads(monkeypatch, 4)

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    drawn: list[int] = []
    secure_blocks(lambda block, _: drawn.append(block))
    assert drawn == list(range(12))


@forks
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_fork_during_a_drawing_gets_an_error(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child has none of the other threads. It must neither wait for them nor go on drawing."""
    set_threads(monkeypatch, count)
    read, write = os.pipe()
    child: int | None = None

    def fork(_: int) -> None:
        nonlocal child
        if child is None:
            child = os.fork()

    found = "drawn"
    try:
        secure_blocks(lambda _, stream: stream.words(100_000), count=200, report=fork)
    except BaseException as error:  # a child must not run the tests that follow
        found = str(error)
    if child == 0:
        try:
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(found, pipe)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        other = pickle.load(pipe)
    assert child is not None
    os.waitpid(child, 0)
    assert found == "drawn"
    assert other == SENTENCE


@forks
def test_a_fork_between_drawings_draws_with_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    set_threads(monkeypatch, 2)
    LAWS["gaussian"](2 * BLOCK)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(np.isfinite(LAWS["gaussian"](2 * BLOCK)).all(), pipe)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pickle.load(pipe)
    os.waitpid(child, 0)


class TestCount:
    @pytest.fixture(autouse=True)
    def _clear(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in (threads.VARIABLE, "OMP_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)

    def test_all_cores_that_the_process_may_use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 5}, raising=False)
        assert threads.count_threads() == 3
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(200)), raising=False)
        assert threads.count_threads() == threads.MOST_THREADS
        monkeypatch.delattr(os, "sched_getaffinity")
        monkeypatch.setattr(os, "cpu_count", lambda: 2)
        assert threads.count_threads() == 2

    def test_variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        assert threads.count_threads() == 3
        monkeypatch.setenv(threads.VARIABLE, "5")
        assert threads.count_threads() == 5
        monkeypatch.setenv(threads.VARIABLE, "5000")
        assert threads.count_threads() == threads.MOST_THREADS

    def test_other_values_of_the_shared_variable_are_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
        for text in ("", "4,2", "0", "many"):
            monkeypatch.setenv("OMP_NUM_THREADS", text)
            assert threads.count_threads() == 2

    @pytest.mark.parametrize("text", ["", "0", "-1", "2.5", "two", "٣", "9" * 10])
    def test_a_bad_number_costs_nothing(self, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is found before the charge, although the threads start after it."""
        monkeypatch.setenv(threads.VARIABLE, text)
        with pytest.raises(ss.InvalidInput, match=r"^The environment variable SCORESHIELD_THREADS must be a number"):
            threads.count_threads()
        ledger = ss.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=2, delta=1e-5)
        with pytest.raises(ss.InvalidInput, match="SCORESHIELD_THREADS"):
            ss.release_scores(np.eye(3), np.ones(3), epsilon=1, delta=1e-6, ledger=ledger.account("people"))
        assert list(ledger.entries()) == []
        assert ss.release_scores(np.eye(3), np.ones(3), epsilon=1, delta=1e-6, rng=1).noisy.shape == (3,)


def test_a_custom_law_is_drawn_in_blocks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has a `fill` is drawn from the streams of its blocks."""
    set_threads(monkeypatch, 2)
    kinds: list[tuple[type, int]] = []

    class Law:
        def fill(self, stream: Stream, _: float, out: np.ndarray) -> None:
            kinds.append((type(stream), len(out)))
            out[:] = 1.0

    values = np.zeros(2 * BLOCK + 5)
    add_noise(values, Law(), 0.5, SecureStream())
    assert sorted(kinds, key=lambda kind: -kind[1]) == [(BlockStream, BLOCK), (BlockStream, BLOCK), (BlockStream, 5)]
    assert (values == 0.5).all()
