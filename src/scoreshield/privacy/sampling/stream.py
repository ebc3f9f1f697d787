"""Sources of random bits: a cryptographic stream for releases, a seeded generator for research.

A release draws from AES-256 in counter mode under a fresh key from the operating system, through `cryptography`.
The key exists during one release, in one process, and is never stored. So a saved object cannot make two releases share
noise, and a fork cannot continue its parent's release. If the operating system cannot provide random bytes, a release
fails; there is no other source. The research stream repeats, which helps experiments and attackers alike. The guarantee
of a release says whether the release was made with it.
"""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._types import Rng
from scoreshield.errors import InvalidInput

Words = NDArray[np.int64]

_forks = 0  # the number of forks between the first process and this one


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


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
    thread. Two threads that call it at the same time get different words, or an error.
    """

    name = "exact"

    def __init__(self) -> None:
        self._zeros = b""
        self._keystream = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(os.urandom(16))).encryptor()
        self._process = identify_process()

    def words(self, count: int) -> Words:
        size, zeros = 8 * count, self._zeros
        if len(zeros) < size:
            zeros = self._zeros = bytes(size)
        block = bytearray(size + 15)  # some versions of the cipher need room for one more block
        if self._keystream.update_into(memoryview(zeros)[:size], block) != size:
            raise RuntimeError("The cipher returned fewer random bytes than requested.")
        check_process(self._process)  # at the end, so that it also detects a fork inside this function
        return np.frombuffer(block, dtype="<i8", count=count)


class ResearchStream:
    """A NumPy generator. It repeats bit for bit and is predictable, so it must not be used for real data."""

    name = "research"

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def words(self, count: int) -> Words:
        limits = np.iinfo(np.int64)
        return self._generator.integers(limits.min, limits.max, size=count, dtype=np.int64, endpoint=True)


def name_sampler(rng: Rng) -> str:
    """Check ``rng`` and name the stream that `open_stream` will make of it, without drawing a key."""
    if rng is None:
        return SecureStream.name
    seed = isinstance(rng, int | np.integer) and not isinstance(rng, bool) and rng >= 0
    if not seed and not isinstance(rng, np.random.Generator):
        _validation.reject("rng", "None (secure), a non-negative integer seed or a numpy Generator (research)", rng)
    return ResearchStream.name


def open_stream(rng: Rng) -> Stream:
    """Make the stream that ``rng`` names: None is the secure one, an integer seed or a Generator is research mode."""
    name_sampler(rng)
    if rng is None:
        return SecureStream()
    return ResearchStream(rng if isinstance(rng, np.random.Generator) else np.random.default_rng(int(rng)))
