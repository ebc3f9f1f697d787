"""What the parts of the battery share: the record of a case, one generator, clean scores and counts, and a public grid.

Every release of the battery is written in NumPy and draws from `GENERATOR`. All of them round their outputs to a public
grid after the noise was added, except those whose fault is that they do not. So each fault is the only one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import scoreshield as ss
from scoreshield.audit import Claim

Array = NDArray[Any]
ReleaseFunction = Callable[..., Any]

#: The size of the collections that the cases are made for. The releases take any size.
RECORDS, DIMENSIONS = 8, 8
QUERY = np.eye(DIMENSIONS)[0]
BATCH = np.eye(DIMENSIONS)
#: The claims of most cases, and the noise that they need where one score moves by at most 2.
EPSILON, DELTA = 1.0, 1e-5
PURE, APPROXIMATE = Claim(EPSILON), Claim(EPSILON, DELTA)
SCALE = 2.0 / EPSILON
SIGMA = float(ss.calibrate(EPSILON, DELTA, 2.0))
#: Counts are of records that score above this. A unit record can do so for all eight queries of `BATCH`.
COUNTED = 0.3
_STEP = 2.0**-20

#: Not seeded, as in production. `set_seed` is for tests and benchmarks.
GENERATOR = np.random.default_rng()


@dataclass(frozen=True)
class Case:
    """One release that an auditor is tried on.

    Attributes:
        name: A short name, in words with hyphens.
        release: A callable from an (n, d) float32 array to an output. With a parameter `query` it answers a query.
        claim: What it claims to be.
        query: The query, or a batch with one query per row; None where it answers none.
        source: Where the fault, or the mechanism, was published.
        is_honest: Whether the claim is true.
        fault: What is wrong, in one sentence; empty for honest cases.
        findable: Whether an auditor that sees only outputs could find it in two minutes.
        note: What else a reader should know.
        known_leak: For mechanisms of other libraries: the measured rates of a leak; empty where none was found.
    """

    name: str
    release: ReleaseFunction
    claim: Claim
    query: Array | None
    source: str
    is_honest: bool
    fault: str
    findable: bool
    note: str
    known_leak: str = ""


def add_case(
    group: list[Case],
    source: str,
    *,
    claim: Claim = PURE,
    query: Array | None = QUERY,
    is_honest: bool = False,
    findable: bool = True,
    note: str = "",
) -> Callable[[ReleaseFunction], ReleaseFunction]:
    """Make a decorator that adds a release to a group of cases; the first line of its docstring says what is wrong."""

    def add(release: ReleaseFunction) -> ReleaseFunction:
        first_line = (inspect.getdoc(release) or "").partition("\n")[0]
        name = release.__name__.replace("_", "-")
        fault = "" if is_honest else first_line
        group.append(Case(name, release, claim, query, source, is_honest, fault, findable, note))
        return release

    return add


def set_seed(seed: int) -> None:
    """Seed the generator of the battery, so that a test or a benchmark can be repeated."""
    GENERATOR.bit_generator.state = np.random.default_rng(seed).bit_generator.state


def round_to_grid(values: Any) -> Any:
    """Round to a public grid, so that the low bits of an output reveal nothing."""
    return np.rint(np.asarray(values) / _STEP) * _STEP


def score(rows: Array, query: Any) -> Array:
    """Compute the clean scores of one query, in [-1, 1] whatever the rows are."""
    # fmax and fmin are faster than np.clip, and turn NaN into a number.
    return np.fmin(np.fmax(np.asarray(rows, dtype=np.float64) @ np.asarray(query, dtype=np.float64), -1.0), 1.0)


def score_batch(rows: Array, query: Any) -> Array:
    """Compute the (n, m) clean scores of a batch; rows longer than 1 are shortened to 1."""
    return shorten(rows) @ np.asarray(query, dtype=np.float64).T


def shorten(rows: Array) -> Array:
    """Shorten rows that are longer than 1, so that no record has more influence than a unit vector."""
    wide = np.asarray(rows, dtype=np.float64)
    return wide / np.maximum(np.sqrt(np.einsum("ij,ij->i", wide, wide)), 1.0)[:, None]


def count(rows: Array, query: Any) -> Array:
    """Count the records that score above `COUNTED`, for each query of a batch. One record moves a count by 1."""
    return (score_batch(rows, query) > COUNTED).sum(axis=0)


def draw_laplace(scale: float, size: Any = None) -> Any:
    """Draw Laplace noise."""
    return GENERATOR.laplace(0.0, scale, size)


def draw_normal(sigma: float, size: Any = None) -> Any:
    """Draw Gaussian noise."""
    return sigma * GENERATOR.standard_normal(size)
