"""Honest mechanisms, which an auditor must not accuse: of our own writing, the fixed forms of the faults, and releases.

Those that are tight reach their claim exactly on some pair of neighbours, but for the public grid.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import scoreshield as ss
from audit_battery.cases import (
    APPROXIMATE,
    BATCH,
    COUNTED,
    DELTA,
    EPSILON,
    GENERATOR,
    PURE,
    QUERY,
    SCALE,
    SIGMA,
    Array,
    Case,
    add_case,
    count,
    draw_laplace,
    draw_normal,
    round_to_grid,
    score,
    score_batch,
    shorten,
)
from audit_battery.faults import CURVE, FAULTS
from scoreshield.audit import Claim

HONEST: list[Case] = []
add_honest = partial(add_case, HONEST, is_honest=True, findable=False)

#: How often the mechanism with a delta reveals everything, and how often records are published as they are.
CLEAN_DELTA = 0.01


@add_honest("Dwork, McSherry, Nissim & Smith 2006", note="tight")
def add_laplace(rows: Array, query: Any) -> Array:
    """Scores with Laplace noise."""
    scores = score(rows, query)
    return round_to_grid(scores + draw_laplace(SCALE, len(scores)))


@add_honest("Balle & Wang 2018", claim=APPROXIMATE, note="tight")
def add_gaussian(rows: Array, query: Any) -> Array:
    """Scores with Gaussian noise."""
    scores = score(rows, query)
    return round_to_grid(scores + draw_normal(SIGMA, len(scores)))


@add_honest("Dong, Roth & Su 2022", claim=CURVE, note="tight; the whole curve is claimed")
def add_gaussian_curve(rows: Array, query: Any) -> Array:
    """Scores with Gaussian noise, and the claim is the whole curve."""
    return add_gaussian(rows, query)


@add_honest("Geng & Viswanath 2016", note="tight")
def add_staircase(rows: Array, query: Any) -> Array:
    """Scores with staircase noise: a geometric number of steps of 2, and a place in the step."""
    n, share = len(rows), 1 / (1 + math.exp(EPSILON / 2))
    steps = GENERATOR.geometric(1 - math.exp(-EPSILON), n) - 1
    is_inner = GENERATOR.random(n) < share / (share + (1 - share) * math.exp(-EPSILON))
    places = GENERATOR.random(n)
    size = np.where(is_inner, share * places, share + (1 - share) * places)
    signs = np.where(GENERATOR.random(n) < 0.5, -1.0, 1.0)
    return round_to_grid(score(rows, query) + 2.0 * signs * (steps + size))


@add_honest("Ghosh, Roughgarden & Sundararajan 2009", note="tight; whole numbers repeat")
def add_geometric(rows: Array, query: Any) -> int:
    """The number of matching records with two-sided geometric noise."""
    return int(count(rows, [query])[0]) + int(_draw_geometric(EPSILON, 1)[0])


def _draw_geometric(epsilon: float, size: int) -> Array:
    draws = GENERATOR.geometric(1 - math.exp(-epsilon), (2, size))
    return draws[0] - draws[1]


@add_honest("Warner 1965", note="tight; a set of positions")
def flip_matches(rows: Array, query: Any) -> set[int]:
    """The positions of the matching records, by randomised response."""
    bits = score(rows, query) > COUNTED
    is_flipped = GENERATOR.random(len(bits)) < 1 / (1 + math.exp(EPSILON))
    return set(np.flatnonzero(bits ^ is_flipped).tolist())


@add_honest("Kairouz, Oh & Viswanath 2016", query=None, note="tight; whole numbers from a small set")
def replace_axes(rows: Array) -> Array:
    """The axis that each record is nearest to, by randomised response over all axes."""
    d = rows.shape[1]
    nearest = np.abs(np.nan_to_num(rows)).argmax(axis=1)
    is_kept = GENERATOR.random(len(rows)) < math.exp(EPSILON) / (math.exp(EPSILON) + d - 1)
    others = (nearest + GENERATOR.integers(1, d, len(rows))) % d
    return np.where(is_kept, nearest, others).astype(np.float64)


@add_honest("McSherry & Talwar 2007", query=BATCH)
def select_query(rows: Array, query: Any) -> int:
    """The query with the most matching records, by the exponential mechanism."""
    return int((count(rows, query) * EPSILON / 2 + GENERATOR.gumbel(size=len(query))).argmax())


@add_honest("Durfee & Rogers 2019", note="whole numbers without repetition")
def select_best_records(rows: Array, query: Any) -> Array:
    """The positions of the two best records, each with half of epsilon; one record's score moves by 2."""
    # Selections one after the other with an exponent of epsilon / 2 each are one draw of Gumbel noise.
    noisy = score(rows, query) * (EPSILON / 2) / (2 * 2.0) + GENERATOR.gumbel(size=len(rows))
    return np.argsort(-noisy)[:2].astype(np.float64)


@add_honest("Dwork & Roth 2014, algorithm 1", query=BATCH)
def find_first_above(rows: Array, query: Any) -> int:
    """The first query with a noisy count above a noisy threshold, or -1."""
    noisy = count(rows, query) + draw_laplace(4 / EPSILON, len(query))
    places = np.flatnonzero(noisy >= 1.0 + draw_laplace(2 / EPSILON))
    return int(places[0]) if len(places) else -1


@add_honest("Dwork & Roth 2014, section 3.3", note="tight; whole numbers")
def count_bins(rows: Array, query: Any) -> Array:
    """A histogram of the scores in four public bins, with geometric noise."""
    places = np.minimum(((score(rows, query) + 1) * 2).astype(int), 3)
    return (np.bincount(places, minlength=4) + _draw_geometric(EPSILON / 2, 4)).astype(np.float64)


@add_honest("Balle & Wang 2018", claim=APPROXIMATE, query=None)
def add_gaussian_to_gram(rows: Array) -> Array:
    """All pairwise similarities with Gaussian noise, clipped to [-1, 1]."""
    unit, n = shorten(rows), len(rows)
    noise = np.triu(draw_normal(SIGMA * math.sqrt(n - 1), (n, n)), 1)
    noisy = np.clip(round_to_grid(unit @ unit.T + noise + noise.T), -1.0, 1.0)
    np.fill_diagonal(noisy, 1.0)
    return noisy


@add_honest("Balle & Wang 2018", claim=APPROXIMATE, query=BATCH[:4], note="tight: the queries are orthogonal")
def add_gaussian_to_batch(rows: Array, query: Any) -> Array:
    """The scores of a batch with Gaussian noise for their L2 sensitivity."""
    scores = score_batch(rows, query)
    return round_to_grid(scores + draw_normal(SIGMA * float(np.linalg.norm(query, 2)), scores.shape))


@add_honest("Dwork & Roth 2014, section 3.3", note="tight; one number")
def add_laplace_to_mean(rows: Array, query: Any) -> float:
    """The mean score with Laplace noise; the number of records is public."""
    return float(round_to_grid(score(rows, query).mean() + draw_laplace(SCALE / len(rows))))


@add_honest("Dwork & Roth 2014, proposition 2.1", note="many outputs are exactly -1 or 1")
def clip_noisy_scores(rows: Array, query: Any) -> Array:
    """Scores with Laplace noise, clipped to [-1, 1] and rounded to two digits."""
    return np.round(np.clip(add_laplace(rows, query), -1.0, 1.0), 2)


@add_honest("Dwork & Roth 2014, section 2.3", claim=Claim(EPSILON, CLEAN_DELTA), note="tight; delta is used up")
def answer_clean_with_delta(rows: Array, query: Any) -> Array:
    """Scores with Laplace noise, but clean ones with probability delta."""
    if GENERATOR.random() < CLEAN_DELTA:
        return round_to_grid(score(rows, query))
    return add_laplace(rows, query)


@add_honest("Dwork & Roth 2014, section 2.3", claim=Claim(0.0, CLEAN_DELTA), note="tight at epsilon 0")
def publish_few_scores(rows: Array, query: Any) -> Array:
    """Each score is published clean with probability delta, and is 0 otherwise."""
    # Not a product with 0: -0.0 would reveal the sign of a score.
    return np.where(GENERATOR.random(len(rows)) < CLEAN_DELTA, round_to_grid(score(rows, query)), 0.0)


@add_honest("Dwork & Roth 2014, theorem 3.14", note="a dictionary of two answers")
def answer_two_questions(rows: Array, query: Any) -> dict[str, Any]:
    """A noisy count and a noisy best position, each with half of epsilon."""
    scores = score(rows, query)
    matches = int(count(rows, [query])[0]) + int(_draw_geometric(EPSILON / 2, 1)[0])
    best = int((scores + draw_laplace(2 * SCALE, len(scores))).argmax())
    return {"matches": matches, "best": best}


@add_honest("Dwork & Roth 2014, definition 2.4", note="fails in 5 % of calls, whatever the records are")
def fail_at_random(rows: Array, query: Any) -> Array:
    """Scores with Laplace noise, and errors that do not depend on the data."""
    if GENERATOR.random() < 0.05:
        raise TimeoutError("The service did not answer in time.")
    return add_laplace(rows, query)


_CALLS = itertools.count(1)


@add_honest("Dwork & Roth 2014, definition 2.4", note="the number rises with every call")
def number_answers(rows: Array, query: Any) -> tuple[int, float]:
    """The number of the call, and the noisy mean score."""
    return next(_CALLS), add_laplace_to_mean(rows, query)


@add_honest("Dwork & Roth 2014, definition 2.4", note="reads no record, so it is private without noise")
def ignore_records(rows: Array, query: Any) -> Array:  # noqa: ARG001
    """A public constant."""
    return np.zeros(len(rows))


# ---- The fixed forms of the faults.


def _fix(case: Case) -> Case:
    name, release = f"{case.name}-fixed", partial(case.release, fixed=True)
    return replace(case, name=name, release=release, is_honest=True, fault="", findable=False, note="")


FIXED = [_fix(case) for case in FAULTS if "fixed" in inspect.signature(case.release).parameters]


# ---- Releases of ScoreShield.


def _make_release_case(
    name: str, function: Callable[..., Any], claim: Claim, query: Array | None = QUERY, **options: Any
) -> Case:
    release = partial(function, epsilon=claim.epsilon, **options)
    return Case(f"scoreshield-{name}", release, claim, query, "ScoreShield", True, "", False, "")


SCORESHIELD = [
    _make_release_case("laplace", ss.release_scores, PURE, mechanism="laplace"),
    _make_release_case("staircase", ss.release_scores, PURE, mechanism="staircase"),
    _make_release_case("gaussian", ss.release_scores, APPROXIMATE, mechanism="gaussian", delta=DELTA),
    _make_release_case("matches", ss.release_matches, PURE, threshold=0.5),
    _make_release_case("top-k", ss.release_top_k, PURE, k=2),
    _make_release_case("histogram", ss.release_histogram, PURE, bins=4),
    _make_release_case("gram", ss.release_gram, APPROXIMATE, None, delta=DELTA),
    _make_release_case("index", ss.release_index, PURE, None),
]
HONEST += SCORESHIELD
