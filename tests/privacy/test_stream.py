"""Where random bits come from: never shared by two processes or threads, and never from anywhere else."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.privacy import stream as streams
from scoreshield.privacy.sampling import fill_rounded_gaussian
from scoreshield.privacy.stream import ResearchStream, SecureStream

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def in_a_fork(function: Callable[[], Any]) -> Any:
    """What a function returns in a real fork of this process, made while its objects are in use."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(function(), pipe)
        finally:
            os._exit(0)  # nothing of the test session runs twice
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pickle.load(pipe)
    os.waitpid(child, 0)
    return answer


@forks
def test_a_fork_in_the_middle_of_drawing_shares_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda count: bytes(range(count)))
    undisturbed = SecureStream()
    undisturbed.words(1000)
    expected = undisturbed.words(64).tolist()
    stream = SecureStream()
    stream.words(1000)
    monkeypatch.undo()
    child, grandchild = in_a_fork(lambda: (stream.words(64).tolist(), in_a_fork(lambda: stream.words(64).tolist())))
    assert stream.words(64).tolist() == expected  # the parent goes on as if nothing had happened
    assert len({*expected, *child, *grandchild}) == 3 * 64


@forks
def test_the_same_fork_without_a_new_key_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "this_process", lambda: (1, 0))
    stream = SecureStream()
    stream.words(1000)
    assert in_a_fork(lambda: stream.words(64).tolist()) == stream.words(64).tolist()


@forks
def test_a_process_id_that_is_given_out_again_is_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    stream = SecureStream()
    assert not set(in_a_fork(lambda: stream.words(64).tolist())) & set(stream.words(64).tolist())


@forks
def test_a_fork_inside_a_release() -> None:
    """Parent and child go on with one Gram matrix: the entries noised before the fork agree, those after it do not."""
    rows = np.random.default_rng(2).standard_normal((600, 4))
    found: list[Any] = []

    def progress(done: int, total: int) -> None:
        if done < total and not found:
            found.append(None)
            read, write = os.pipe()
            child = os.fork()
            found[0] = (child, read if child else write)

    noisy = ss.release_gram(rows, epsilon=1, delta=1e-6, projection="none", progress=progress).noisy
    child, end = found[0]
    if child == 0:
        try:
            with os.fdopen(end, "wb") as pipe:
                pickle.dump(noisy, pipe)
        finally:
            os._exit(0)
    with os.fdopen(end, "rb") as pipe:
        other = pickle.load(pipe)
    os.waitpid(child, 0)
    equal = noisy == other
    assert equal[:256].all()
    after = equal[256:, 256:]
    assert np.count_nonzero(after) == len(after)  # the public diagonal alone


def test_threads_that_share_a_stream_share_no_word() -> None:
    """Two calls at once get different words, or one of them an error of the cipher: never the same words, or none."""
    stream, found = SecureStream(), [[] for _ in range(4)]  # type: list[list[int]]
    sizes = [3, 700, 1, 64]

    def draw(place: int) -> None:
        for _ in range(300):
            with contextlib.suppress(RuntimeError):
                found[place] += stream.words(sizes[place]).tolist()

    threads = [threading.Thread(target=draw, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drawn = [word for words in found for word in words]
    assert len(drawn) > 1000
    assert len(set(drawn)) == len(drawn)
    assert 0 not in drawn  # which unfilled room would be


def test_a_cipher_that_returns_too_little_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SecureStream()

    class Short:
        def update_into(self, data: Any, block: Any) -> int:
            del block
            return len(data) - 1

    monkeypatch.setattr(stream, "_keystream", Short())
    with pytest.raises(RuntimeError, match="fewer random bytes"):
        stream.words(8)


@forks
def test_research_mode_repeats_in_a_fork_too() -> None:
    def draw() -> list[float]:
        out = np.empty(100)
        fill_rounded_gaussian(ResearchStream(np.random.default_rng(1)), 1e6, out)
        return out.tolist()

    assert in_a_fork(draw) == draw()
