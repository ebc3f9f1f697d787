"""How many threads draw secure noise. The number changes the time of a release, and no drawn value."""

from __future__ import annotations

import os

from scoreshield.errors import InvalidInput

#: Sets the number of threads.
VARIABLE = "SCORESHIELD_THREADS"
#: What numerical libraries use. It is taken where `VARIABLE` is not set and this is one whole number.
_SHARED_VARIABLE = "OMP_NUM_THREADS"
#: More would mostly wait for Python's lock: ten million draws took 59 ms with eight threads and 70 ms with sixteen.
MOST_THREADS = 8


def count_threads() -> int:
    """Return how many threads may draw: what the environment says, or else the cores that this process may use.

    Raises:
        InvalidInput: The environment variable SCORESHIELD_THREADS is no number of threads.
    """
    given = os.environ.get(VARIABLE)
    if given is not None:
        if not _is_number(given):
            raise InvalidInput(
                f"The environment variable {VARIABLE} must be a number of threads, at least 1. Got {given[:40]!r}."
            )
        return min(int(given), MOST_THREADS)
    shared = os.environ.get(_SHARED_VARIABLE, "")
    if _is_number(shared):
        return min(int(shared), MOST_THREADS)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_THREADS)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) >= 1
