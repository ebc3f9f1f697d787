"""Sources of random bits: a cryptographic stream for releases, a seeded generator for research.

A release draws from AES-256 in counter mode under a fresh key from the operating system, through `cryptography`.
The key exists during one release, in one process, and is never stored. Draws by several threads come from parts of the
key stream that do not overlap, one per block of draws. So a saved object cannot make two releases share
noise, and a fork cannot continue its parent's release. If the operating system cannot provide random bytes, a release
fails; there is no other source. A service that must repeat one release after a crash keeps a `ReleaseKey` beside the
charge until the answer is stored. Without the key, the words of its stream cannot be predicted. The research stream
repeats, which helps experiments and attackers alike. The guarantee of a release says whether the release was made with
it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._types import Rng
from scoreshield.errors import InvalidInput
from scoreshield.privacy.sampling.threads import count_threads

Words = NDArray[np.int64]
#: The first part of what a key is derived for. Another meaning of the other parts gets another version.
_KEY_VERSION = "scoreshield release key 1"
#: The bytes of a key.
KEY_BYTES = 32

#: Streams of one key start 2^64 counters apart. A counter gives 16 bytes.
_COUNTER_BITS = 64

_zeros = b""  # what the cipher encrypts, as long as it was ever needed
_forks = 0  # the number of forks between the first process and this one


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def _make_zeros(size: int) -> memoryview:
    global _zeros
    zeros = _zeros
    if len(zeros) < size:
        zeros = _zeros = bytes(size)
    return memoryview(zeros)[:size]


def identify_process() -> tuple[int, int]:
    """Identify this process by its id and the number of forks before it: the system may use an id again."""
    return os.getpid(), _forks


def check_process(started: tuple[int, int]) -> None:
    """Raise an error in a fork of the process that started a release: it would make a second release for one charge."""
    if started != identify_process():
        raise InvalidInput("This release was started in another process; a fork cannot continue it.")


class Stream(Protocol):
    """A source of uniform 64-bit words."""

    name: str

    def words(self, count: int) -> Words:
        """Return the next ``count`` words as signed integers, uniform on [-2^63, 2^63)."""


class SecureStream:
    """AES-256-CTR with a key from the operating system. Its words cannot be predicted, and do not repeat.

    A process that was forked while the stream was in use gets an error. A stream belongs to one release, and so to one
    thread; other threads draw from block streams (`open_blocks`). Two threads that call one stream at the same time get
    different words, or an error.
    """

    name = "exact"

    def __init__(self) -> None:
        self._begin(os.urandom(KEY_BYTES), os.urandom(16))

    def _begin(self, key: bytes, start: bytes) -> None:
        self._key, self._start = key, int.from_bytes(start, "big")
        self._numbers = 1  # of streams that have this key
        #: Memory that the draws of this release use again and again, in any thread: take it out, and put it back.
        self.rooms: list[Any] = []
        self._read_from(0)
        self._process = identify_process()

    def words(self, count: int, room: Words | None = None) -> Words:
        """Return the next words; in ``room``, if it is given, which must have two words more than are returned."""
        size = 8 * count
        # Some versions of the cipher need room for one more block.
        block = np.empty(count + 2, dtype="<i8") if room is None else room[: count + 2]
        if self._keystream.update_into(_make_zeros(size), block.view(np.uint8).data) != size:
            raise RuntimeError("The cipher returned fewer random bytes than requested.")
        self.check_process()  # at the end, so that it also detects a fork inside this function
        return block[:count]

    def open_blocks(self, count: int) -> Callable[[int], BlockStream]:
        """Return a function that opens the stream of block 0, 1, ..., count - 1 of one drawing, in any thread.

        The counters of two streams of one key never meet: stream number s counts from start + s 2^64, modulo 2^128,
        and would have to read 2^68 bytes to reach the next one (docs/noise.md). This stream has number 0. Each call
        continues the numbers of the call before.
        """
        first = self._numbers
        self._numbers += count
        return lambda block: BlockStream(self, first + range(count)[block])

    def check_process(self) -> None:
        """Raise an error in a fork of the process that made the stream."""
        check_process(self._process)

    def _read_from(self, number: int) -> None:
        counter = (self._start + (number << _COUNTER_BITS)) % (1 << 128)
        self._keystream = Cipher(algorithms.AES(self._key), modes.CTR(counter.to_bytes(16, "big"))).encryptor()


class BlockStream(SecureStream):
    """The words of one block of draws: another part of the key stream of a release, which no other block reads.

    Args:
        whole: The stream of the release.
        number: The number of this stream, at least 1, which `SecureStream.open_blocks` gives to one block only.
    """

    def __init__(self, whole: SecureStream, number: int) -> None:
        self._key, self._start, self._process, self.rooms = whole._key, whole._start, whole._process, whole.rooms
        self._read_from(number)

    def open_blocks(self, count: int) -> Callable[[int], BlockStream]:
        """Raise an error: streams of a block of a block would share words with those of other blocks."""
        del count
        raise RuntimeError("A block stream has no blocks of its own.")


class ReleaseKey:
    """The secret key of one release, for the ``rng`` argument. The same key and facts give the same noise.

    The noise of a key must never be added to two different clean values: their difference would be free of noise. So
    the facts that fix the clean values are part of the derivation, and a key opens one stream. Make another object of
    the same key to repeat the same release. Neither ``repr`` nor an error shows the key, and it cannot be pickled.

    Args:
        secret: 32 random bytes.
        release: The id of the release: one charge.
        snapshot: The state of the records.
        mechanism: The mechanism, its parameters and the query.
    """

    __slots__ = ("_openings",)

    def __init__(self, secret: bytes, *, release: str, snapshot: str, mechanism: str) -> None:
        if not isinstance(secret, bytes) or len(secret) != KEY_BYTES:
            raise InvalidInput(f"A release key has {KEY_BYTES} bytes.")
        info = _prefix_lengths(_KEY_VERSION, release, snapshot, mechanism)
        # A closure, because attributes appear in every dump of variables.
        self._openings: list[Callable[[], KeyedStream]] = [lambda: KeyedStream(secret, info)]

    def __repr__(self) -> str:
        return "<ReleaseKey>"

    def __reduce__(self) -> NoReturn:
        raise InvalidInput("A release key cannot be pickled or copied: it is secret.")

    def open_stream(self) -> KeyedStream:
        """Open the stream of this key, once.

        Raises:
            InvalidInput: The key opened a stream before. A second release with the same noise would reveal the first.
        """
        try:
            opening = self._openings.pop()  # of two threads, one gets it
        except IndexError:
            raise InvalidInput("A release key is for one release; this one was used before.") from None
        return opening()


class KeyedStream(SecureStream):
    """AES-256-CTR under a key that HKDF-SHA256 derives from a release key and the facts of the release."""

    def __init__(self, secret: bytes, info: bytes) -> None:
        derived = HKDF(hashes.SHA256(), KEY_BYTES + 16, salt=None, info=info).derive(secret)
        self._begin(derived[:KEY_BYTES], derived[KEY_BYTES:])

    def __reduce__(self) -> NoReturn:
        raise InvalidInput("A keyed stream cannot be pickled or copied: its key is secret.")


def derive_stream(secret: bytes, *facts: str) -> KeyedStream:
    """Open the stream of a key and facts. The facts must fix the clean values that its noise is added to.

    Args:
        secret: 32 random bytes.
        facts: A version first, so that keys for other purposes never meet these.
    """
    if not isinstance(secret, bytes) or len(secret) != KEY_BYTES:
        raise InvalidInput(f"A release key has {KEY_BYTES} bytes.")
    return KeyedStream(secret, _prefix_lengths(*facts))


def _prefix_lengths(*parts: str) -> bytes:
    """Join texts with the length of each before it, so that no two lists of texts give the same bytes."""
    encoded = [part.encode("utf-8") for part in parts]
    return b"".join(len(part).to_bytes(8, "big") + part for part in encoded)


class ResearchStream:
    """A NumPy generator. It repeats bit for bit and is predictable, so it must not be used for real data."""

    name = "research"

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def words(self, count: int) -> Words:
        limits = np.iinfo(np.int64)
        return self._generator.integers(limits.min, limits.max, size=count, dtype=np.int64, endpoint=True)


def name_sampler(rng: Rng) -> str:
    """Check ``rng`` and name the stream that `open_stream` will make of it, without drawing a key.

    The number of threads is checked too: the draws use it after the charge, and an error would be too late then.
    """
    if rng is None:
        count_threads()
        return SecureStream.name
    if isinstance(rng, ReleaseKey):
        count_threads()
        return KeyedStream.name
    seed = isinstance(rng, int | np.integer) and not isinstance(rng, bool) and rng >= 0
    if not seed and not isinstance(rng, np.random.Generator):
        _validation.reject("rng", "None (secure), a non-negative integer seed or a numpy Generator (research)", rng)
    return ResearchStream.name


def open_stream(rng: Rng) -> Stream:
    """Make the stream that ``rng`` names: None is the secure one, an integer seed or a Generator is research mode."""
    name_sampler(rng)
    if rng is None:
        return SecureStream()
    if isinstance(rng, ReleaseKey):
        return rng.open_stream()
    return ResearchStream(rng if isinstance(rng, np.random.Generator) else np.random.default_rng(int(rng)))
