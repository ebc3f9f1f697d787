"""Every way to draw noise, in one list: a release function, a mechanism, and each option that changes what is drawn.

Tests of payment, of what reaches the samplers and of combinations run over this list. `test_mechanism_registry`
compares the list with what the release functions accept, so that a new mechanism fails until it has an entry here.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.stats

import scoreshield as ss
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.noise import GaussianNoise, LaplaceNoise, StaircaseNoise
from scoreshield.privacy.noise import gaussian as noise
from scoreshield.privacy.privunit import PrivUnit
from scoreshield.privacy.profiles import GaussianProfile
from scoreshield.privacy.sampling import discrete, sphere
from scoreshield.releases import histogram
from scoreshield.stores import ArrayStore, PinnedStore

RECORDS, DIMENSION, GROUP = 12, 6, 3
ROWS = np.random.default_rng(14).standard_normal((RECORDS, DIMENSION))
QUERY = np.random.default_rng(15).standard_normal(DIMENSION)
BATCH = np.random.default_rng(16).standard_normal((4, DIMENSION))
BASIS = np.random.default_rng(17).standard_normal((4, DIMENSION))
BOOK = ss.PublicCodebook(np.random.default_rng(18).standard_normal((9, DIMENSION)), source="Random vectors.")
PUBLIC_CENTER = np.full(DIMENSION, 0.1)
LABELS = np.arange(RECORDS) // GROUP
RAW = ss.Identity(LABELS)
CENTROIDS = ss.Identity(LABELS, centroids=True)
#: What rounding to the safe side may cost: relative, far below any fault that matters.
SLACK = Fraction(1, 2**40)


@dataclass(frozen=True)
class Call:
    """One use of a sampler by a release: its name, what it was given apart from the stream, and how many it drew."""

    sampler: str
    arguments: tuple[Any, ...]
    count: int


@dataclass(frozen=True)
class Entry:
    """One way to draw noise.

    Attributes:
        name: For people and for test ids.
        mechanism: What the guarantee calls it.
        regime: What the guarantee says was released.
        release: Calls the release function with ``ledger=`` and ``rng=`` passed through.
        check: Asserts that what reached the samplers is what the guarantee says.
    """

    name: str
    mechanism: str
    regime: str
    release: Callable[..., Any]
    check: Callable[[Guarantee, list[Call]], None]


def watch_samplers(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """What reaches the samplers from now on; what a sampler hands to another one is not listed."""
    calls: list[Call] = []
    depth = [0]

    def watch(module: Any, function: str, sampler: str, describe: Callable[..., tuple[tuple[Any, ...], int]]) -> None:
        original = getattr(module, function)

        def watched(*arguments: Any) -> Any:
            if depth[0] == 0:
                calls.append(Call(sampler, *describe(*arguments)))
            depth[0] += 1
            try:
                return original(*arguments)
            finally:
                depth[0] -= 1

        monkeypatch.setattr(module, function, watched)

    for module in (noise, histogram):
        watch(module, "fill_rounded_gaussian", "gaussian", lambda _, scale, out: ((scale,), len(out)))
    watch(discrete, "fill_rounded_laplace", "laplace", lambda _, scale, out: ((scale,), len(out)))
    watch(discrete, "fill_staircase", "staircase", lambda _, *shape: (shape[:-1], len(shape[-1])))
    watch(discrete, "draw_geometric", "geometric", lambda _, rate, count: ((rate,), count))
    watch(discrete, "flip_coins", "coins", lambda _, chance, count: ((chance(192),), count))
    watch(discrete, "draw_below", "below", lambda _, bounds: ((int(bounds.max()),), len(bounds)))
    watch(discrete, "draw_weighted", "weighted", lambda _, weights: ((tuple(weights),), 1))
    watch(discrete, "draw_columns", "choose", lambda _, table, rows: ((table.copy(),), len(rows)))
    watch(discrete, "fill_table", "table", lambda _, weights, first, out: ((weights, first), len(out)))
    watch(sphere, "lean", "lean", lambda cap, rows, *_: ((cap,), len(rows)))
    return calls


def at_least(found: Fraction, wanted: Fraction) -> None:
    """Equal up to rounding, and rounded up."""
    assert wanted <= found <= wanted * (1 + SLACK)


def at_most(found: Fraction, wanted: Fraction) -> None:
    """Equal up to rounding, and rounded down."""
    assert wanted * (1 - SLACK) <= found <= wanted


def check_gaussian(guarantee: Guarantee, calls: list[Call]) -> None:
    """Scores, rows and Gram matrices: the drawn deviation is the certified one and gives the certified mu."""
    law, entries = guarantee.noise, math.prod(guarantee.shape)
    assert isinstance(law, GaussianNoise)
    gram = guarantee.regime == "gram"
    assert {call.sampler for call in calls} == {"gaussian"}
    assert {call.arguments for call in calls} == {(law.std / guarantee.grid,)}
    n = guarantee.shape[-1]
    assert sum(call.count for call in calls) == (n * (n - 1) // 2 if gram else entries)
    # On a Gram matrix an entry is drawn once and appears twice: its share of the scale is one in sqrt 2.
    share = Fraction(2 if gram else 1)
    at_least(Fraction(law.std) ** 2 * share, Fraction(guarantee.scale) ** 2)
    assert isinstance(guarantee.profile, GaussianProfile)
    at_least(Fraction(guarantee.profile.mu) * (1 + Fraction(1, 2**52)), sensitivity_over(guarantee, guarantee.scale))
    moved = guarantee.adjacency.sensitivity(guarantee.regime, n, score_range=guarantee.score_range).moved
    if guarantee.regime == "scores" and len(guarantee.shape) == 2:
        moved *= guarantee.shape[0]
    # Rounding to the grid moves each entry by up to one step.
    lengthened = Fraction(guarantee.sensitivity) + Fraction(guarantee.grid) * Fraction(math.sqrt(moved))
    assert abs(Fraction(guarantee.grid_sensitivity) / lengthened - 1) < SLACK


def sensitivity_over(guarantee: Guarantee, scale: float) -> Fraction:
    return Fraction(guarantee.grid_sensitivity) / Fraction(scale)


def steps_of(low: float, high: float, grid: float) -> int:
    """How far apart two clamped and rounded scores can be, in steps; computed without the library."""
    ends = [Fraction(end) / Fraction(grid) for end in (low, high)]
    return max(round(ends[1]) - round(ends[0]), math.ceil(ends[1] - ends[0]))


def check_laplace(guarantee: Guarantee, calls: list[Call]) -> None:
    law = guarantee.noise
    assert isinstance(law, LaplaceNoise)
    assert calls == [Call("laplace", (law.b / guarantee.grid,), guarantee.shape[0])]
    width = steps_of(*guarantee.score_range, guarantee.grid)
    assert Fraction(guarantee.grid_sensitivity) == width * Fraction(guarantee.grid)
    at_least(Fraction(law.b) * Fraction(guarantee.epsilon), Fraction(guarantee.grid_sensitivity))
    assert law.b == guarantee.scale


def check_staircase(guarantee: Guarantee, calls: list[Call]) -> None:
    law = guarantee.noise
    assert isinstance(law, StaircaseNoise)
    assert law.epsilon == guarantee.epsilon
    width = steps_of(*guarantee.score_range, guarantee.grid)
    check_steps(calls, law, width, guarantee.grid, guarantee.shape[0])
    assert Fraction(guarantee.grid_sensitivity) == width * Fraction(guarantee.grid) == Fraction(law.sensitivity)
    assert law.std == guarantee.scale


def check_steps(calls: list[Call], law: StaircaseNoise, width: int, grid: float, count: int) -> None:
    """The drawn staircase falls by e^-epsilon over a full width, and its inner part is the certified share of it."""
    inner = round(Fraction(law.gamma) * width)
    assert calls == [Call("staircase", (law.epsilon, width, inner), count)]
    assert Fraction(law.sensitivity) == width * Fraction(grid)


def check_table(guarantee: Guarantee, calls: list[Call]) -> None:
    """What is drawn from is the certified table, whose privacy is computed here in fractions."""
    law = guarantee.noise
    assert isinstance(law, ss.LevelChannel)
    (call,) = calls
    assert (call.sampler, call.count) == ("choose", math.prod(guarantee.shape))
    rows = [[int(weight) for weight in row] for row in law.weights]
    assert call.arguments[0].tolist() == [[sum(row[: j + 1]) for j in range(len(row))] for row in rows]
    with mpmath.workdps(60):
        power = int(mpmath.floor(mpmath.exp(mpmath.mpf(guarantee.epsilon)) * mpmath.mpf(2) ** 100))
    ratio = Fraction(power + 1, 2**100)
    worst = max(sum(max(Fraction(0), p - ratio * q) for p, q in zip(a, b, strict=True)) for a in rows for b in rows)
    assert worst <= Fraction(guarantee.delta) * 2**62


def check_custom(guarantee: Guarantee, calls: list[Call]) -> None:
    """What is drawn from is the certified table, whose privacy is computed here in fractions for every shift."""
    law = guarantee.noise
    assert isinstance(law, ss.CustomNoise)
    (call,) = calls
    assert (call.sampler, call.count) == ("table", guarantee.shape[0])
    weights, first = call.arguments
    assert (weights, first, law.step) == (law.weights, law.first, guarantee.grid)
    width = steps_of(*guarantee.score_range, guarantee.grid)
    assert Fraction(guarantee.grid_sensitivity) == width * Fraction(guarantee.grid)
    with mpmath.workdps(60):
        power = int(mpmath.floor(mpmath.exp(mpmath.mpf(guarantee.epsilon)) * mpmath.mpf(2) ** 100))
    padded = {place: weight for place, weight in enumerate(weights)}
    worst = max(
        sum(max(0, (weight << 100) - (power + 1) * padded.get(place - shift, 0)) for place, weight in padded.items())
        for shift in (*range(-width, 0), *range(1, width + 1))
    )
    assert sum(weights) == 2**128
    true = Fraction(worst, 2**228)
    assert true <= Fraction(guarantee.profile.delta_at(guarantee.epsilon)) <= Fraction(guarantee.delta)
    assert guarantee.profile.delta_at(guarantee.epsilon) <= true * (1 + Fraction(1, 10**6)) + Fraction(1, 10**13)


def check_screening(guarantee: Guarantee, calls: list[Call]) -> None:
    told = guarantee.details
    screening, refining = Fraction(told["screening_epsilon"]), Fraction(told["refining_epsilon"])
    at_most(screening + refining, Fraction(guarantee.epsilon))
    coins, *rest = calls
    with mpmath.workdps(80):
        true = mpmath.mpf(2) ** 192 / (1 + mpmath.exp(-mpmath.mpf(told["screening_epsilon"])))
        low, high = coins.arguments[0]
        assert coins == Call("coins", ((low, high),), guarantee.shape[0])
        assert low <= true <= high <= low + 3
    if guarantee.mechanism == "randomised-response":
        assert refining == 0
        assert rest == []
        return
    low, high = told["threshold"], guarantee.score_range[1]
    width = steps_of(low, high, guarantee.grid)
    law = StaircaseNoise.calibrate(told["refining_epsilon"], width * guarantee.grid, guarantee.grid)
    check_steps(rest, law, width, guarantee.grid, rest[0].count)
    assert law.std == guarantee.scale


def check_anchored(guarantee: Guarantee, calls: list[Call]) -> None:
    """The anchor's weights fall by at most e^(its epsilon / 2) for each count; the windows get the rest, exactly."""
    told = guarantee.details
    anchor, window = Fraction(told["anchor_epsilon"]), Fraction(told["window_epsilon"])
    at_most(anchor + window, Fraction(guarantee.epsilon))
    weighted, coins, inside, anywhere = calls
    n, cells, width = guarantee.shape[0], told["cells"], told["window"]
    assert inside == Call("below", (width,), n)
    assert anywhere == Call("below", (cells,), n)
    weights = sorted(set(weighted.arguments[0]), reverse=True)
    with mpmath.workdps(330):
        # Counts that are nearest to each other differ by one, and their weights by the bound.
        distances = [mpmath.log(mpmath.mpf(weights[0]) / weight) * 2 / told["anchor_epsilon"] for weight in weights]
        steps = [far - near for near, far in itertools.pairwise(distances)]
        assert 1 - 1e-9 < min(steps) <= 1
        shrunk = mpmath.exp(-mpmath.mpf(told["window_epsilon"]))
        true = width * (1 - shrunk) / (width + (cells - width) * shrunk) * mpmath.mpf(2) ** 192
        low, high = coins.arguments[0]
        assert coins == Call("coins", ((low, high),), n)
        assert low <= true <= high <= low + 3


def check_selection(guarantee: Guarantee, calls: list[Call]) -> None:
    """Each of k rounds spends at most one k-th: its rate times the widest gap."""
    width = steps_of(*guarantee.score_range, guarantee.grid)
    assert Fraction(guarantee.grid_sensitivity) == width * Fraction(guarantee.grid)
    rates = {call.arguments[0] for call in calls if call.sampler == "geometric"}
    (rate,) = rates
    at_most(Fraction(rate) * width * guarantee.shape[0], Fraction(guarantee.epsilon))
    assert {call.sampler for call in calls} == {"geometric", "below"}
    assert sum(call.sampler == "geometric" for call in calls) >= guarantee.shape[0]


def check_histogram(guarantee: Guarantee, calls: list[Call]) -> None:
    n = round((1 + math.sqrt(1 + 8 * guarantee.details["scores"])) / 2)
    pairs = guarantee.details["scores"] == RECORDS * (RECORDS - 1) // 2 and n == RECORDS
    moved = RECORDS - 1 if pairs else 1
    first = calls[0]
    assert first.count == guarantee.shape[0]
    if guarantee.mechanism == "geometric":
        assert {(call.sampler, call.arguments) for call in calls} == {("geometric", (1 / guarantee.scale,))}
        assert guarantee.sensitivity == 2.0 * moved
        at_most(Fraction(first.arguments[0]) * 2 * moved, Fraction(guarantee.epsilon))
        return
    assert calls == [Call("gaussian", (guarantee.scale,), guarantee.shape[0])]
    at_least(Fraction(guarantee.sensitivity) ** 2 * (1 + Fraction(1, 2**50)), Fraction(2 * moved**2))
    assert isinstance(guarantee.profile, GaussianProfile)
    assert guarantee.profile.mu == guarantee.sensitivity / guarantee.scale


def check_index(guarantee: Guarantee, calls: list[Call]) -> None:
    told, rest = guarantee.details, list(calls)
    group = guarantee.adjacency.largest if isinstance(guarantee.adjacency, ss.Identity) else 1
    left, square = Fraction(guarantee.epsilon), Fraction(0)
    if told.get("center") == "private":
        mu = check_center_noise(guarantee, rest[0], group)
        rest, square = rest[1:], mu**2
        left *= 1 - Fraction(told["center_share"])
    if told["reduction"] == "pca":
        mu = check_covariance(guarantee, rest[:2], group)
        rest, square = rest[2:], mu**2
        left *= 1 - Fraction(told["pca_share"])
    n, r = guarantee.shape
    if guarantee.mechanism == "gaussian":
        assert {(call.sampler, call.arguments) for call in rest} == {
            ("gaussian", (guarantee.noise.std / guarantee.grid,))
        }
        assert sum(call.count for call in rest) == n * r
        # |E - E'| <= 2 sqrt g, and a step more for each of the entries that move.
        moved = 2 * mpmath.sqrt(group) + mpmath.mpf(guarantee.grid) * mpmath.sqrt(group * r)
        square += Fraction(str(mpmath.nstr(moved, 30))) ** 2 / Fraction(guarantee.noise.std) ** 2
        assert isinstance(guarantee.profile, GaussianProfile)
        at_least(Fraction(guarantee.profile.mu) ** 2, square)
        return
    (call,) = rest
    cap = call.arguments[0]
    assert (call.sampler, call.count, cap.dimension) == ("lean", n, r)
    at_most(Fraction(told["epsilon_per_record"]) * group, left)
    # The density ratio of the drawn cap, in 50 digits, is within what one record pays.
    spent = PrivUnit(r, told["epsilon_per_record"], cap.coin, cap.gamma).compute_epsilon()
    assert told["epsilon_per_record"] * (1 - 1e-9) <= spent <= told["epsilon_per_record"]
    assert cap.gamma == told["cap_height"]
    assert 1 / (told["shrinkage"] * guarantee.grid) == cap.factor


def check_covariance(guarantee: Guarantee, calls: list[Call], group: int) -> Fraction:
    """The noise on the second moment, drawn on the diagonal and once above it; returns its mu."""
    told = guarantee.details
    diagonal, above = calls
    assert [call.sampler for call in calls] == ["gaussian", "gaussian"]
    assert (diagonal.count, above.count) == (DIMENSION, DIMENSION * (DIMENSION - 1) // 2)
    step = told["covariance_std"] / diagonal.arguments[0]
    assert math.frexp(step)[0] == 0.5  # a grid: a power of two, so the quotient is exact
    at_least(Fraction(above.arguments[0]) ** 2 * 2, Fraction(diagonal.arguments[0]) ** 2)
    # g rows of length one: g sqrt 2, a step for each entry, and entries rounded to 2^-18 before they are multiplied.
    least = group * math.sqrt(2) + DIMENSION * step
    assert least <= told["covariance_sensitivity"] <= least * (1 + 1e-4)
    return Fraction(told["covariance_sensitivity"]) / Fraction(told["covariance_std"])


def check_batch(guarantee: Guarantee, calls: list[Call]) -> None:
    """One keep coin per record, a uniform set, uniform levels and the bottom symbol, for the stated symbols."""
    told, records = guarantee.details, guarantee.shape[0]
    group = guarantee.adjacency.largest if isinstance(guarantee.adjacency, ss.Identity) else 1
    at_most(Fraction(told["epsilon_per_record"]) * group, Fraction(guarantee.epsilon))
    size, queries, levels = told["names_per_record"], told["queries"], told["levels"]
    symbols = math.comb(queries, size) * levels**size + (size == 1)
    keep, *drawn = calls
    with mpmath.workdps(80):
        power = mpmath.exp(mpmath.mpf(told["epsilon_per_record"]))
        check_coins(keep, (power - 1) / (power + symbols - 1), records)
        if size == 1:
            check_coins(drawn.pop(), mpmath.mpf(1) / symbols, records)
    bounds = [Call("below", (last + 1,), records) for last in range(queries - size, queries)]
    assert drawn == [*bounds, Call("below", (levels,), records * size)]


def check_coins(call: Call, chance: Any, count: int) -> None:
    low, high = call.arguments[0]
    assert (call.sampler, call.count) == ("coins", count)
    assert low <= chance * mpmath.mpf(2) ** 192 <= high <= low + 3


def check_center_noise(guarantee: Guarantee, call: Call, group: int) -> Fraction:
    """The noise on the sum of the unit rows; returns its mu."""
    told = guarantee.details
    assert (call.sampler, call.count) == ("gaussian", DIMENSION)
    step = told["center_std"] / call.arguments[0]
    assert math.frexp(step)[0] == 0.5  # a grid: a power of two, so the quotient is exact
    # g rows of length one: 2 g, a step for each entry, and entries rounded to 2^-18 before they are summed.
    least = 2 * group + math.sqrt(DIMENSION) * step
    assert least <= told["center_sensitivity"] <= least * (1 + 1e-4)
    return Fraction(told["center_sensitivity"]) / Fraction(told["center_std"])


def check_codebook(guarantee: Guarantee, calls: list[Call]) -> None:
    """Each record keeps its true set with the probability of the response, or sends a uniform set of all C(K, T)."""
    told, (n, size) = guarantee.details, guarantee.shape
    group = guarantee.adjacency.largest if isinstance(guarantee.adjacency, ss.Identity) else 1
    each = Fraction(told["epsilon_per_record"])
    at_most(each * group, Fraction(guarantee.epsilon))
    assert (told["codewords"], told["code_size"]) == (len(BOOK), size)
    assert told["fingerprint"] == BOOK.fingerprint
    coins, *uniform = calls
    low, high = coins.arguments[0]
    assert coins == Call("coins", ((low, high),), n)
    with mpmath.workdps(80):
        power = mpmath.exp(mpmath.mpf(each.numerator) / each.denominator)
        keep = (power - 1) / (power + math.comb(len(BOOK), size) - 1) * mpmath.mpf(2) ** 192
        assert low <= keep <= high <= low + 3
    bounds = [len(BOOK) - size + 1 + place for place in range(size)]
    assert uniform == [*(Call("below", (bound,), n) for bound in bounds), Call("below", (1,), n * size)]


def scores(name: str, mechanism: str, check: Callable[[Guarantee, list[Call]], None], /, **options: Any) -> Entry:
    query = options.pop("query", QUERY)
    contract = {"epsilon": 1.0, **options}
    return Entry(
        f"scores, {name}", mechanism, "scores", lambda **k: ss.release_scores(ROWS, query, **contract, **k), check
    )


def index(name: str, mechanism: str, **options: Any) -> Entry:
    contract = {"epsilon": 6.0, "mechanism": mechanism, **options}
    return Entry(f"index, {name}", mechanism, "index", lambda **k: ss.release_index(ROWS, **contract, **k), check_index)


def simple(
    name: str, mechanism: str, regime: str, check: Any, function: Any, /, *arguments: Any, **options: Any
) -> Entry:
    contract = {"epsilon": 1.0, **options}
    return Entry(name, mechanism, regime, lambda **k: function(ROWS, *arguments, **contract, **k), check)


@functools.cache
def pin_rows(rows: bytes) -> PinnedStore:
    """The rows as a store that was read and checked."""
    store = PinnedStore(ArrayStore(np.frombuffer(rows).reshape(-1, DIMENSION)))
    store.take_snapshot()
    return store


def hits(name: str, **options: Any) -> Entry:
    """One answer of a search with a hit budget."""
    contract: dict[str, Any] = {"mode": "hits", "epsilon": 6.0, "cuts": [0.0, 0.3], **options}

    def answer(**k: Any) -> Any:
        return ss.PrivateSearch(pin_rows(ROWS.tobytes()), **(contract | k)).search(QUERY)

    return Entry(f"hits, {name}", "hit-budget", "hits", answer, check_hits)


def check_hits(guarantee: Guarantee, calls: list[Call]) -> None:
    """Each round is drawn by the certified coins, which cost what is certified for hits and for the miss."""
    told = guarantee.details
    assert {(call.sampler, call.count) for call in calls} == {("choose", guarantee.shape[0])}
    tables = {tuple(map(tuple, call.arguments[0].tolist())) for call in calls}
    ((cold, whole), (hot, _)) = tables.pop()
    assert (tables, whole) == (set(), 2**62)
    named = [Fraction(whole - weight, whole) for weight in (cold, hot)]
    with mpmath.workdps(60):
        hit, miss = (
            Fraction(int(mpmath.exp(mpmath.mpf(told[f"{part}_epsilon"])) * mpmath.mpf(2) ** 100), 2**100)
            for part in ("hit", "miss")
        )
    at_most(named[1] / named[0], hit)
    at_most((1 - named[0]) / (1 - named[1]), miss)
    a, b = Fraction(told["hit_epsilon"]), Fraction(told["miss_epsilon"])
    null = isinstance(guarantee.adjacency, ss.NullRecord)
    at_most(max(told["hits"] * a, b) if null else told["hits"] * a + b, Fraction(guarantee.epsilon))


GAUSSIAN = {"delta": 1e-6, "mechanism": "gaussian"}
REDUCTIONS: dict[str, dict[str, Any]] = {
    "all dimensions": {},
    "random subspace": {"components": 3},
    "components for pairs": {"use": "pairs"},
    "public basis": {"reduction": BASIS},
    "private PCA": {"components": 3, "reduction": "pca", "delta": 1e-6},
    "private center": {"center": "private", "delta": 1e-6},
    "public center": {"center": PUBLIC_CENTER},
}
#: A public range that random scores leave on both sides.
NARROW = (-0.1, 0.2)
ADJACENCIES = {"records": ss.Replacement(), "identities": RAW, "centroids": CENTROIDS}
ACCEPT = ss.accept_bit(1.0, impostor=np.linspace(-0.5, 0.5, 101), false_match_rate=0.1)
#: A public shape for the best record of a few, made of the one that ships, without its dimension.
FEW = dataclasses.replace(ss.TailShape.default(1), dimension=None)
#: A law that has exactly the delta of its contract at epsilon 1.
LOGISTIC = ss.CustomNoise.tabulate(scipy.stats.logistic(scale=1.9), step=0.5)
LOGISTIC_DELTA = LOGISTIC.state_profile(1.0).delta_at(1.0)
WIDE_TABLE = ss.optimal_channel(1.0, 1e-3, levels=5)

ENTRIES: tuple[Entry, ...] = (
    *(
        scores(f"Gaussian, {who}, {what}", "gaussian", check_gaussian, adjacency=adjacency, query=query, **GAUSSIAN)
        for who, adjacency in ADJACENCIES.items()
        for what, query in (("one query", QUERY), ("batch", BATCH))
    ),
    *(
        scores(f"{mechanism}, {who}", mechanism, check, mechanism=mechanism, adjacency=ADJACENCIES[who])
        for mechanism, check in (("laplace", check_laplace), ("staircase", check_staircase))
        for who in ("records", "centroids")
    ),
    scores("auto", "staircase", check_staircase, mechanism="auto"),
    scores("narrow range", "staircase", check_staircase, mechanism="staircase", score_range=(-0.1, 0.7)),
    scores("narrow Laplace", "laplace", check_laplace, mechanism="laplace", score_range=(-0.1, 0.7)),
    *(
        scores(f"narrow Gaussian, {what}", "gaussian", check_gaussian, query=query, score_range=NARROW, **GAUSSIAN)
        for what, query in (("one query", QUERY), ("batch", BATCH))
    ),
    scores("narrow optimal table", "optimal", check_table, mechanism="optimal", score_range=NARROW),
    *(
        scores(
            f"custom law, {who}",
            "custom",
            check_custom,
            mechanism=LOGISTIC,
            delta=LOGISTIC_DELTA,
            adjacency=ADJACENCIES[who],
        )
        for who in ("records", "centroids")
    ),
    scores("optimal table", "optimal", check_table, mechanism="optimal"),
    scores("optimal table with delta", "optimal", check_table, mechanism="optimal", delta=1e-6, epsilon=6.0),
    scores("response table", "levels", check_table, mechanism=ss.randomised_response(0.9, [0.1, 0.4])),
    scores("thinned table", "levels", check_table, mechanism=ss.thinned_response(0.9, [0.1, 0.4], advantage=0.1)),
    scores("accept table", "levels", check_table, mechanism=ACCEPT.table),
    scores(
        "one-bit table",
        "levels",
        check_table,
        mechanism=ss.gaussian_bit(1.0, 1e-6, 0.2, false_share=0.1),
        delta=1e-6,
    ),
    scores("table with delta", "levels", check_table, mechanism=WIDE_TABLE, delta=1e-3),
    *(
        simple(f"row, {who}", "gaussian", "row", check_gaussian, ss.release_row, 1, adjacency=adjacency, **GAUSSIAN)
        for who, adjacency in ADJACENCIES.items()
    ),
    *(
        simple(
            f"Gram matrix, {who}",
            "gaussian",
            "gram",
            check_gaussian,
            ss.release_gram,
            adjacency=adjacency,
            projection="none",
            **GAUSSIAN,
        )
        for who, adjacency in (*ADJACENCIES.items(), ("radius", ss.GramRadius(0.5)))
    ),
    simple("row, narrow", "gaussian", "row", check_gaussian, ss.release_row, 1, score_range=NARROW, **GAUSSIAN),
    simple(
        "Gram matrix, narrow",
        "gaussian",
        "gram",
        check_gaussian,
        ss.release_gram,
        score_range=NARROW,
        projection="none",
        **GAUSSIAN,
    ),
    simple(
        "matches, centroids",
        "randomised-response",
        "matches",
        check_screening,
        ss.release_matches,
        QUERY,
        0.1,
        adjacency=CENTROIDS,
    ),
    simple(
        "top-k, centroids",
        "permute-and-flip",
        "top-k",
        check_selection,
        ss.release_top_k,
        QUERY,
        3,
        adjacency=CENTROIDS,
    ),
    simple(
        "histogram, centroids",
        "geometric",
        "histogram",
        check_histogram,
        ss.release_histogram,
        QUERY,
        adjacency=CENTROIDS,
    ),
    *(
        scores(
            f"anchored, {who}",
            "anchored",
            check_anchored,
            mechanism=ss.AnchoredWindows(tail=FEW),
            adjacency=ADJACENCIES[who],
        )
        for who in ("records", "centroids")
    ),
    scores(
        "narrow anchored", "anchored", check_anchored, mechanism=ss.AnchoredWindows(tail=FEW), score_range=(-0.1, 0.7)
    ),
    scores("anchored, too few records", "staircase", check_staircase, mechanism="anchored"),
    scores("optimal table, centroids", "optimal", check_table, mechanism="optimal", adjacency=CENTROIDS),
    simple("matches", "randomised-response", "matches", check_screening, ss.release_matches, QUERY, 0.1),
    simple(
        "matches, refined", "screen-and-refine", "matches", check_screening, ss.release_matches, QUERY, -0.9, refine=0.3
    ),
    *(
        simple(
            f"top-k, {mechanism}", mechanism, "top-k", check_selection, ss.release_top_k, QUERY, 3, mechanism=mechanism
        )
        for mechanism in ("permute-and-flip", "gumbel")
    ),
    simple(
        "top-k, narrow",
        "permute-and-flip",
        "top-k",
        check_selection,
        ss.release_top_k,
        QUERY,
        3,
        score_range=NARROW,
    ),
    *(
        simple(
            f"histogram, {mechanism}, {what}",
            mechanism,
            "histogram",
            check_histogram,
            ss.release_histogram,
            query,
            mechanism=mechanism,
            delta=delta,
        )
        for mechanism, delta in (("geometric", 0.0), ("gaussian", 1e-6))
        for what, query in (("query", QUERY), ("all pairs", None))
    ),
    hits("records", hits=2),
    hits("null record", hits=2, adjacency=ss.NullRecord()),
    index("privunit, public changes", "privunit", changes="public", ids=range(len(ROWS))),
    *(
        index(
            f"{mechanism}, {how}, {who}",
            mechanism,
            adjacency=adjacency,
            **{**({"delta": 1e-6} if mechanism == "gaussian" else {}), **reduction},
        )
        for mechanism in ("privunit", "gaussian")
        for how, reduction in REDUCTIONS.items()
        for who, adjacency in ADJACENCIES.items()
    ),
    *(
        simple(
            f"batch, {what}, {who}",
            "set-response",
            "batch",
            check_batch,
            ss.release_batch,
            BATCH,
            epsilon=6.0,
            k=2,
            adjacency=adjacency,
            **options,
        )
        for what, options in (("chosen", {}), ("two names", {"names": 2, "levels": (0.1, 0.3)}))
        for who, adjacency in ADJACENCIES.items()
    ),
    *(
        Entry(
            f"index, codebook, {who}",
            "codebook",
            "index",
            lambda adjacency=adjacency, **k: ss.release_index(
                ROWS, epsilon=6.0, codebook=BOOK, adjacency=adjacency, **k
            ),
            check_codebook,
        )
        for who, adjacency in ADJACENCIES.items()
    ),
)
BY_NAME = {entry.name: entry for entry in ENTRIES}
