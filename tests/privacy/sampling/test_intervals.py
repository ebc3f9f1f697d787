"""Interval arithmetic encloses, where mpmath's own does not: against 200 more bits, with errors planted in mpmath."""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from mpmath import ctx_mp_python
from mpmath.ctx_iv import MPIntervalContext

import scoreshield
from scoreshield.privacy import privunit
from scoreshield.privacy.sampling import discrete, gaussian, intervals, sphere
from scoreshield.privacy.sampling.intervals import Intervals
from scoreshield.privacy.sampling.stream import ResearchStream

FUNCTIONS = ("exp", "log", "sqrt", "sin", "cos", "pi")
PRECISIONS = (20, 53, 128, 255, 320)


def points(function: str, count: int) -> list[Fraction]:
    """Fractions of 53 bits, of every size that the samplers meet."""
    generator = np.random.default_rng([5, FUNCTIONS.index(function)])
    mantissas, exponents = generator.integers(1, 2**53, count).tolist(), generator.integers(-60, 7, count).tolist()
    found = [Fraction(m | 1, 2**53) * Fraction(2) ** e for m, e in zip(mantissas, exponents, strict=True)]
    return found if function in ("log", "sqrt") else [(-1) ** place * x for place, x in enumerate(found)]


def value(context: Any, function: str, x: Any) -> Any:
    return +context.pi if function == "pi" else getattr(context, function)(x)


def ends(interval: Any) -> tuple[Any, Any]:
    return tuple(mpmath.mp.make_mpf(end) for end in interval._mpi_)  # type: ignore[return-value]


def misses(context: Any, function: str, count: int) -> int:
    """At how many points the true value lies outside."""
    missed = 0
    for place, x in enumerate(points(function, count)):
        context.prec = 53
        point = context.mpf(x.numerator) / x.denominator  # exact
        context.prec = PRECISIONS[place % len(PRECISIONS)]
        low, high = ends(value(context, function, point))
        with mpmath.workprec(2 * context.prec + 200):
            missed += not low <= value(mpmath.mp, function, mpmath.mpf(x.numerator) / x.denominator) <= high
    return missed


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_enclose(function: str) -> None:
    assert misses(Intervals(), function, 10_000 if function == "exp" else 3000) == 0


def test_the_search_finds_what_is_wrong_in_mpmath() -> None:
    assert misses(MPIntervalContext(), "exp", 10_000) > 0


@pytest.mark.parametrize("function", ["exp", "log", "sin", "cos"])
def test_margin_covers_error_mpmath_up_2_60_units(function: str) -> None:
    """The margin covers an error of mpmath up to 2 to the 60 units."""
    for bits, enough in ((60, True), (66, False)):
        context = Intervals()
        right = getattr(context._context, function)

        def wrong(x: Any, right: Any = right, bits: int = bits, context: Intervals = context) -> Any:
            low, high = (context.mpf(end) for end in ends(right(x)))
            return context.mpf([low.a, high.b]) * (1 + context.mpf(1) / (1 << (context.prec - bits)))

        setattr(context._context, function, wrong)
        assert (misses(context, function, 300) == 0) == enough


def test_arithmetic_and_roots_enclose_exactly() -> None:
    """Sums, products and quotients against fractions; a root against its square."""
    context = Intervals()
    operations: tuple[Callable[[Any, Any], Any], ...] = (
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        lambda a, b: a / b,
    )
    for place, (a, b) in enumerate(zip(points("sin", 2000), points("exp", 2000), strict=True)):
        context.prec = (8, 20, 53, 128)[place % 4]
        one, other = context.mpf(a.numerator) / a.denominator, context.mpf(b.numerator) / b.denominator
        for operation in operations:
            low, high = (fraction(end) for end in operation(one, other)._mpi_)
            assert low <= operation(a, b) <= high
        low, high = (fraction(end) for end in context.sqrt(abs(one))._mpi_)
        assert low**2 <= abs(a) <= high**2


def fraction(end: Any) -> Fraction:
    sign, mantissa, exponent, _ = end
    return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** exponent


def test_edges_that_must_stay_where_they_are() -> None:
    """ln 1 is 0 and not above, so that a radius is real; the root of a bound below zero is that of zero."""
    context = Intervals()
    context.prec = 127
    assert context.log(context.mpf(1)) == 0
    assert ends(context.sqrt(context.mpf([-1, 4])))[0] == 0
    assert context.prec == 127


def test_nobody_else_uses_mpmaths_intervals() -> None:
    folder = Path(scoreshield.__file__).parent
    users = {path.name for path in folder.rglob("*.py") if "MPIntervalContext" in path.read_text("utf-8")}
    assert users == {"intervals.py"}


def test_coin_edge_chance_decided_true() -> None:
    """e^-1/4 to 640 bits: words that agree with it in 64, 128, ... bits and then fall short or go beyond by one."""
    chance = discrete.enclose(lambda iv: iv.exp(-iv.mpf(1) / 4))
    with mpmath.workprec(900):
        true = int(mpmath.floor(mpmath.exp(-mpmath.mpf(1) / 4) * mpmath.mpf(2) ** 640))
    words = [(true >> (64 * (9 - place))) & (2**64 - 1) for place in range(10)]
    for length in range(1, 10):
        for change, heads in ((-1, True), (1, False)):
            script = [*words[: length - 1], words[length - 1] + change]
            assert discrete.flip_coins(Words(script), chance, 1)[0] == heads
    assert all(low <= true >> (640 - bits) < high for bits in (64, 128, 320) for low, high in [chance(bits)])


class Words:
    """A stream of these words, as unsigned numbers, and of nothing after them."""

    name = "research"

    def __init__(self, script: list[int]) -> None:
        self.left = list(script)

    def words(self, count: int) -> np.ndarray:
        if count > len(self.left):
            raise AssertionError("the sampler read more words than it should")
        given, self.left = self.left[:count], self.left[count:]
        return np.array(given, dtype=np.uint64).view(np.int64)


EXACT_PATHS: dict[str, Callable[[ResearchStream], Any]] = {
    "gaussian": lambda stream: gaussian._decide(stream, 5, 7, 2.0**20),
    "laplace": lambda stream: discrete._decide_log(stream, 5, Fraction(3, 7), half=True),
    "geometric": lambda stream: discrete._decide_log(stream, 5, Fraction(3, 7), half=False),
    "coin": lambda _: discrete.enclose(lambda iv: iv.exp(-iv.mpf(1) / 4))(128),
    "height": lambda stream: sphere._exact_height(CAP, (5, 63), 2**63, stream),
    "cap": lambda stream: sphere._exact_cap(CAP, np.array([1.0, 0.0]), (5, 63), [(7, 9, 63)], stream),
    "sphere, in the cap": lambda stream: sphere._exact_sphere(
        sphere.Cap(2, 1.0, 0.01, 2.0**10, 0.4), np.array([0.6, 0.8]), True, [(7, 9, 63)], stream
    ),
    "sphere, outside": lambda stream: sphere._exact_sphere(CAP, np.array([0.6, 0.8]), False, [(7, 9, 63)], stream),
}
CAP = sphere.Cap(2, 1.0, 0.9, 2.0**10, 0.1)


@pytest.mark.parametrize("name", EXACT_PATHS)
def test_interrupt_any_conversion_number_arrives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """mpmath compares an interval with a number under a bare ``except``, which makes a TypeError of an interrupt."""
    original, left = MPIntervalContext.convert, [math.inf]

    def interrupted(context: Any, x: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return original(context, x)

    monkeypatch.setattr(MPIntervalContext, "convert", interrupted)
    expected = EXACT_PATHS[name](ResearchStream(np.random.default_rng(1)))
    for place in range(1, 10_000):
        left[0] = place
        try:
            found = EXACT_PATHS[name](ResearchStream(np.random.default_rng(1)))
        except KeyboardInterrupt:
            continue
        break
    assert found == expected  # no interrupt was left to raise
    assert left[0] > 0
    assert place > 3
    assert intervals.LOCK.acquire(blocking=False)
    intervals.LOCK.release()


def test_intervals_are_compared_by_their_ends() -> None:
    context = Intervals()
    low, high, inner = context.mpf([1, 2]), context.mpf([2, 3]), context.mpf([1, 3])
    assert context.is_at_most(low, high)
    assert not context.is_below(low, high)
    assert not context.is_at_most(inner, high)
    assert not context.is_at_most(high, low)
    assert context.is_below(low, 3)
    assert not context.is_below(low, 2)
    assert context.is_at_most(low, 2)
    assert context.is_below(0, low)
    assert not context.is_below(1, low)
    assert context.is_at_most(1, low)
    assert context.is_below(low, 10**400)


def test_calibration_cap_not_convert_height_float(monkeypatch: pytest.MonkeyPatch) -> None:
    """mpmath's conversion of a float turns an interrupt into a NaN, and a cache would keep the result."""
    original, seen = ctx_mp_python.from_float, []

    def convert(x: float, *arguments: Any) -> Any:
        seen.append(x)
        return original(x, *arguments)

    monkeypatch.setattr(ctx_mp_python, "from_float", convert)
    privunit._cap_cost(24, 0.3)
    assert seen  # mpmath's own thresholds
    assert 0.3 not in seen


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork_while_another_thread_computes() -> None:
    """A lock that was held at the fork is held forever in the child, unless it is renewed."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with intervals.LOCK:
            intervals.INTERVALS.prec = 3
            held.set()
            done.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(20)
    child = multiprocessing.get_context("fork").Process(target=_draw_by_intervals)
    child.start()
    child.join(20)
    stuck = child.is_alive()
    if stuck:
        child.kill()
    done.set()
    thread.join()
    assert not stuck
    assert child.exitcode == 0


def _draw_by_intervals() -> None:
    stream = ResearchStream(np.random.default_rng(1))
    gaussian._decide(stream, 5, 7, 2.0**20)
    sphere._exact_cap(sphere.Cap(2, 1.0, 0.9, 2.0**10, 0.1), np.array([1.0, 0.0]), (5, 63), [(7, 9, 63)], stream)


def test_each_function_is_widened_as_it_says() -> None:
    """By 2^(1 - precision) of the value; sine and cosine by that much itself, so that a zero is covered too."""
    context = Intervals()
    context.prec = 53
    tiny, unit = context.mpf(1) / (1 << 100), mpmath.mpf(2) ** -52
    functions = {
        "pi": (context.pi, mpmath.pi),
        "exp": (context.exp(context.mpf(3)), mpmath.e**3),
        "small exp": (context.exp(context.mpf(-200)), mpmath.exp(-200)),
        "log": (context.log(context.mpf(3)), mpmath.log(3)),
        "sin": (context.sin(tiny), 1),
        "cos": (context.cos(context.mpf(11) / 7), 1),  # 0.00036 before its zero
    }
    for name, (found, size) in functions.items():
        low, high = (mpmath.mpf(end._mpi_[0]) for end in (found.a, found.b))
        assert 1.99 * unit * abs(size) <= high - low <= 4.1 * unit * abs(size), name
    assert context.sin(tiny).a < 0
    assert not context.is_below(context.exp(context.mpf(-200)), 0)
    assert context.is_below(0, context.exp(context.mpf(-200)))
    one = context.log(context.mpf(1))
    assert (float(one.a), float(one.b)) == (0.0, 0.0)
    assert context.prec == 53


def test_precision_is_given_back_after_an_error() -> None:
    context = Intervals()
    context.prec = 60
    with pytest.raises(ZeroDivisionError):
        context._widen(lambda: 1 // 0, relative=True)
    assert context.prec == 60
    seen: list[int] = []
    context._widen(lambda: seen.append(context.prec) or context.mpf(1), relative=True)
    assert seen == [124]


def test_roots_of_what_reaches_below_zero() -> None:
    context = Intervals()
    found = context.sqrt(context.mpf([-1, 4]))
    assert (float(found.a), float(found.b)) == (0.0, 2.0)
    found = context.sqrt(context.mpf([4, 9]))
    assert (float(found.a), float(found.b)) == (2.0, 3.0)


def test_comparisons_do_not_convert_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Intervals()
    low, high = context.mpf([1, 2]), context.mpf([3, 4])

    def convert(*_: Any) -> Any:
        raise AssertionError("a conversion may swallow an interrupt")

    monkeypatch.setattr(context, "mpf", convert)
    assert context.is_below(low, high)
    assert context.is_at_most(low, high)
