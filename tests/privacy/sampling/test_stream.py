"""Where random bits come from: never shared by two processes or threads, and never from anywhere else."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

import scoreshield as ss
from scoreshield.privacy.sampling import gaussian
from scoreshield.privacy.sampling import stream as streams
from scoreshield.privacy.sampling.gaussian import fill_rounded_gaussian
from scoreshield.privacy.sampling.stream import ResearchStream, SecureStream
from scoreshield.releases import pipeline, scores

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


def words_or_error(stream: SecureStream) -> list[int] | str:
    try:
        return stream.words(64).tolist()
    except ss.InvalidInput as error:
        return str(error)


SENTENCE = "This release was started in another process; a fork cannot continue it."


@forks
def test_fork_middle_drawing_gets_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork in the middle of drawing gets no word."""
    monkeypatch.setattr(os, "urandom", lambda count: bytes(range(count)))
    undisturbed = SecureStream()
    undisturbed.words(1000)
    expected = undisturbed.words(64).tolist()
    stream = SecureStream()
    stream.words(1000)
    monkeypatch.undo()
    child, grandchild = in_a_fork(lambda: (words_or_error(stream), in_a_fork(lambda: words_or_error(stream))))
    assert child == grandchild == SENTENCE
    assert stream.words(64).tolist() == expected  # the parent goes on as if nothing had happened


@forks
def test_same_fork_without_check_would_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same fork without the check would be seen."""
    monkeypatch.setattr(streams, "identify_process", lambda: (1, 0))
    stream = SecureStream()
    stream.words(1000)
    assert in_a_fork(lambda: words_or_error(stream)) == stream.words(64).tolist()


@forks
def test_process_id_given_out_again_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process id that is given out again is another process."""
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    stream = SecureStream()
    assert in_a_fork(lambda: words_or_error(stream)) == SENTENCE
    assert len(words_or_error(stream)) == 64


class Fork:
    """Forks at its first call; the child says through a pipe how the release ends for it."""

    def __init__(self) -> None:
        self.child: int | None = None
        self._read, self._write = os.pipe()

    def __call__(self, *arguments: Any) -> None:
        del arguments
        if self.child is None:
            self.child = os.fork()

    def ending(self, release: Callable[[], Any]) -> tuple[Any, Any]:
        """What the release returns here, and what it returned or raised in the child."""
        try:
            found = release()
        except Exception as error:  # a child must not run the tests that follow
            found = str(error)
        if self.child == 0:
            try:
                with os.fdopen(self._write, "wb") as pipe:
                    pickle.dump(found, pipe)
            finally:
                os._exit(0)
        os.close(self._write)
        with os.fdopen(self._read, "rb") as pipe:
            other = pickle.load(pipe)
        assert self.child is not None
        os.waitpid(self.child, 0)
        return found, other


ROWS = np.random.default_rng(2).standard_normal((600, 4))


@forks
@pytest.mark.parametrize("moment", ["score", "commit", "stream", "words", "last words", "done"])
def test_fork_inside_release_gives_no_second_view(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a process forks between the check of the arguments and the result, only one side gets a result."""
    fork = Fork()

    def before(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def forking(*arguments: Any, **options: Any) -> Any:
            fork()
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, forking)

    account = Account()
    match moment:
        case "score":
            before(scores._embeddings, "compute_scores")
        case "commit":
            before(account, "commit")
        case "stream":
            before(pipeline, "open_stream")
        case "words":
            before(SecureStream, "words")
        case "last words":
            before(gaussian, "_normal_pairs")
        case "done":
            before(scores, "ScoreRelease")
    here, there = fork.ending(
        lambda: ss.release_scores(ROWS, np.ones(4), epsilon=1, delta=1e-6, ledger=account).noisy.tolist()
    )
    assert len(here) == len(ROWS)
    assert there == SENTENCE


class Account:
    dataset = "people"

    def reserve(self, guarantees: Any, **options: Any) -> Account:
        del guarantees, options
        return self

    def commit(self) -> tuple[Any, ...]:
        return ()


@forks
def test_forks_of_a_callback_inside_a_gram_matrix(tmp_path: Path) -> None:
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=2, delta=1e-5)
    fork = Fork()
    here, there = fork.ending(
        lambda: ss.release_gram(
            ROWS, epsilon=1, delta=1e-6, projection="none", progress=fork, ledger=ledger.account("people")
        ).noisy.tolist()
    )
    assert len(here) == len(ROWS)
    assert there == SENTENCE
    assert len(list(ledger.entries())) == 1


@forks
def test_fork_inside_research_release_repeats() -> None:
    """A fork inside a research release repeats it."""
    fork = Fork()
    here, there = fork.ending(
        lambda: ss.release_gram(ROWS, epsilon=1, delta=1e-6, projection="none", progress=fork, rng=3).noisy.tolist()
    )
    assert here == there


@forks
def test_forks_between_releases_release() -> None:
    """Forks between releases release by themselves."""

    def release() -> list[float]:
        noisy: list[float] = ss.release_scores(ROWS, np.ones(4), epsilon=1, delta=1e-6).noisy.tolist()
        return noisy

    before, child, after = release(), in_a_fork(release), release()
    assert len(child) == len(ROWS)
    assert before != child != after


def test_threads_share_stream_share_no_word() -> None:
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


def test_cipher_returns_too_little_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cipher that returns too little is an error."""
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


def test_words_are_the_key_stream_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """AES-256 in counter mode under 32 bytes of key and 16 of counter, little-endian, each byte used once."""
    monkeypatch.setattr(os, "urandom", lambda count: bytes(range(count)))
    cipher = Cipher(algorithms.AES(bytes(range(32))), modes.CTR(bytes(range(16)))).encryptor()
    expected = np.frombuffer(cipher.update(bytes(8 * 1111)), dtype="<i8")
    stream = SecureStream()
    found = [stream.words(count) for count in (3, 5, 1000, 1, 100, 2)]
    assert np.array_equal(np.concatenate(found), expected)
    assert [len(words) for words in found] == [3, 5, 1000, 1, 100, 2]
    assert found[0].dtype == np.int64
    assert len(stream.words(0)) == 0


def test_research_words_those_generator() -> None:
    """Research words are those of the generator."""
    words = ResearchStream(np.random.default_rng(5)).words(1000)
    same = np.random.default_rng(5).integers(0, 2**64, 1000, dtype=np.uint64)
    assert np.array_equal(words.view(np.uint64), same ^ np.uint64(2**63))
    for seed in (5, np.int64(5), np.random.default_rng(5)):
        assert np.array_equal(streams.open_stream(seed).words(1000), words)


def test_errors_name_the_seed() -> None:
    for seed in (-1, True, 1.5):
        for call in (streams.open_stream, streams.name_sampler):
            with pytest.raises(ss.InvalidInput, match=r"^The 'rng' parameter must be"):
                call(seed)
