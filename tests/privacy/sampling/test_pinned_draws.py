"""What each sampler draws for one seed, for good: a change here breaks everyone's recorded experiments.

The scales are so large that some draws are left to interval arithmetic; a test counts them, so that the pins cover it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scoreshield.privacy.levels.program import floor_ratio
from scoreshield.privacy.levels.tables import randomised_response
from scoreshield.privacy.privunit import PrivUnit
from scoreshield.privacy.response import SetResponse, Symbols
from scoreshield.privacy.sampling import discrete, gaussian, sphere
from scoreshield.privacy.sampling.stream import ResearchStream


def stream() -> ResearchStream:
    return ResearchStream(np.random.default_rng(20_261_115))


def units(n: int, d: int) -> np.ndarray:
    rows = np.random.default_rng(3).integers(-50, 51, (n, d)).astype(np.float64)
    rows[:, 0] += 0.5  # no zero rows
    return rows / np.sqrt((rows * rows).sum(axis=1, keepdims=True))


def filled(draw: Callable[..., None], *arguments: Any, count: int = 40_000) -> np.ndarray:
    out = np.empty(count)
    draw(stream(), *arguments, out)
    return out


def signed_geometric(epsilon: float) -> np.ndarray:
    found, minus = discrete.draw_geometric(stream(), epsilon, 40_000)
    return np.where(minus, ~found, found)


def logistic(epsilon: float) -> Callable[[int], tuple[int, int]]:
    return discrete.enclose(lambda iv: 1 / (1 + iv.exp(-discrete.make_rational(iv, epsilon))))


def make_symbols(count: int, size: int) -> Symbols:
    return Symbols(np.tile(np.arange(size), (count, 1)), np.ones((count, size), dtype=np.int64))


#: Weights that sum to 2^128, some so small that a draw of them needs more than 64 bits.
NOISE_TABLE = (5, 2**127 + 3, 2**64, 2**126 - 2**70, 2**126 - 2**64 + 2**70 - 8)

DRAWS: dict[str, Callable[[], Any]] = {
    "gaussian": lambda: filled(gaussian.fill_rounded_gaussian, 1.37 * 2.0**26),
    "gaussian, the largest scale": lambda: filled(gaussian.fill_rounded_gaussian, 2.0**32),
    "laplace": lambda: filled(discrete.fill_rounded_laplace, 1.37 * 2.0**26),
    "laplace, the largest scale": lambda: filled(discrete.fill_rounded_laplace, 2.0**32),
    "staircase": lambda: filled(discrete.fill_staircase, 1.3, 2**27 + 5, 2**25 - 3),
    "geometric": lambda: signed_geometric(1e-10),
    "coins": lambda: discrete.flip_coins(stream(), logistic(0.7), 40_000),
    "below": lambda: discrete.draw_below(stream(), np.arange(1, 40_001) ** 2 * 7),
    "table": lambda: randomised_response(1.0, [-0.5, 0.1, 0.3]).release(stream(), np.linspace(-1, 1, 40_000)),
    "noise table": lambda: filled(discrete.fill_table, NOISE_TABLE, -2),
    "sets": lambda: np.stack(SetResponse(9.0, 300, 2, 4).release(stream(), make_symbols(40_000, 2))),
    "names or none": lambda: np.stack(SetResponse(5.0, 30, 1, 6, True).release(stream(), make_symbols(40_000, 1))),
    "small cap": lambda: sphere.lean(sphere.Cap(8, 1.0, 0.6, 2.0**36, 0.04), units(1500, 8), stream()),
    "large cap": lambda: sphere.lean(sphere.Cap(5, -0.4, 0.1, 2.0**36, 0.4), units(1500, 5), stream()),
    "privunit": lambda: PrivUnit.calibrate(24, 6.0).release(units(1500, 24), stream()),
    "chances": lambda: [logistic(e)(bits) for e in (1e-6, 0.5, 3.0, 40.0) for bits in (64, 128, 320)],
    "powers of e": lambda: [floor_ratio(e) for e in (1e-6, 0.1, 1.0, 5.0, 39.9, 64.0)],
}
PINS = {
    "gaussian": "8b1d307fad43d689",
    "gaussian, the largest scale": "a2b52485e3a03127",
    "laplace": "79a30592c9a66d24",
    "laplace, the largest scale": "47911200ba11ea16",
    "staircase": "c0f2aa7e6ec85bba",
    "geometric": "b242ba49e0c3f355",
    "coins": "6f1f4968c8956c1d",
    "below": "e50fa4284ab7ac4a",
    "table": "c77eaabe750f3d0d",
    "noise table": "a1cf05c27c555b8d",
    "sets": "3a00a2fa0955a825",
    "names or none": "2b8ebc193e790bc2",
    "small cap": "4a61c935dd1f26b4",
    "large cap": "ee9bce80cf3bf894",
    "privunit": "628f76ac24f9d12c",
    "chances": "ca32b319275fa7ee",
    "powers of e": "bba070445b344135",
}


def digest(value: Any) -> str:
    if isinstance(value, np.ndarray):
        value = value.astype("<f8" if value.dtype.kind == "f" else "<i8").tobytes()
    else:
        value = repr(value).encode()
    return hashlib.sha256(value).hexdigest()[:16]


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_draws_what_it_drew(name: str) -> None:
    assert digest(DRAWS[name]()) == PINS[name]


@pytest.mark.parametrize(
    "name", ["gaussian, the largest scale", "laplace, the largest scale", "geometric", "small cap", "large cap"]
)
def test_the_pins_cover_interval_arithmetic(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decided: list[str] = []
    for module, function in (
        (gaussian, "_decide"),
        (discrete, "_decide_log"),
        (sphere, "_exact_cap"),
        (sphere, "_exact_sphere"),
    ):
        original = getattr(module, function)

        def watched(*arguments: Any, original: Any = original, **more: Any) -> Any:
            decided.append(original.__name__)
            return original(*arguments, **more)

        monkeypatch.setattr(module, function, watched)
    DRAWS[name]()
    assert len(decided) >= 10


def test_a_changed_draw_would_be_noticed() -> None:
    drawn = DRAWS["coins"]()
    drawn[7] = ~drawn[7]
    assert digest(drawn) != PINS["coins"]
