"""No edit of a guarantee's epsilon, delta and profile is accepted if it would charge less than the honest guarantee."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mechanism_registry import BOOK, BY_NAME, ENTRIES, FEW, QUERY, ROWS

import scoreshield as ss
from scoreshield.privacy.consistency import is_consistent
from scoreshield.privacy.filters import compute_cost
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.losses import find_pure_epsilon
from scoreshield.privacy.profiles import (
    CurveProfile,
    GaussianProfile,
    LaplaceProfile,
    Profile,
    PureProfile,
    StepProfile,
)

#: Stated epsilons of an edit, as multiples of the honest one.
PROMISES = (0.999, 1.0, 2.0, 32.0)
#: The end of an edited profile, as multiples of the honest epsilon.
ENDS = (1e-3, 0.3, 0.6, 0.9, 0.97, 0.999, 1 - 1e-10, 1.0, 1.01, 3.0)
#: What rounding may cost.
ROUNDING = 1e-8


@cache
def made(name: str) -> Guarantee:
    found: Guarantee = BY_NAME[name].release(rng=1).guarantee
    return found


def edit_profile(honest: Guarantee) -> Iterator[Profile]:
    """Profiles of every kind, most of them too good, some true."""
    epsilon, profile = honest.epsilon, honest.profile
    for end in ENDS:
        yield PureProfile(epsilon * end)
        yield LaplaceProfile(epsilon * end)
        for mass in (1e-6, 0.1, 0.5, 0.99):
            yield StepProfile(epsilon * end, mass)
        if profile.delta_at(0.0) < 1:
            yield StepProfile.of_advantage(epsilon * end, profile.delta_at(0.0))
        for knots in (3, 9):
            losses = [min(700.0, epsilon * end) * i / (knots - 1) for i in range(knots)]
            deltas = [profile.delta_at(loss) for loss in losses]
            yield CurveProfile(tuple(losses), tuple(deltas))
            yield CurveProfile(tuple(losses), (*deltas[:-1], 0.0))
    mu = profile.mu if isinstance(profile, GaussianProfile) else epsilon
    for factor in (1e-3, 0.5, 0.999, 1.0, 1.01, 30.0):
        yield GaussianProfile(mu * factor)
    for far in (50.0, 700.0):  # where the delta of Gaussian noise is smaller than any double
        yield PureProfile(far)
        yield CurveProfile((0.0, far), (1.0, 0.0))


def edits(honest: Guarantee) -> Iterator[Guarantee]:
    deltas = {honest.delta, 0.0, min(0.5, honest.delta * 1000)}
    for profile, promise, delta in itertools.product(edit_profile(honest), PROMISES, deltas):
        yield replace(honest, epsilon=honest.epsilon * promise, delta=delta, profile=profile)


def charges_no_less(edited: Profile, honest: Profile, epsilon: float) -> bool:
    """Whether a profile is nowhere below the honest one, and costs at least as much in every sum of a budget.

    A curve that ends above 0 is charged for that rest, and its moments are those of the loss until there.
    """
    end = min(find_pure_epsilon(honest), 2 * epsilon + 50)
    points = [*np.linspace(0, 1.2 * end, 301), end * (1 - 1e-6)]
    if any(edited.delta_at(point) < honest.delta_at(point) * (1 - ROUNDING) for point in points):
        return False
    ours, theirs = compute_cost(edited, 1000.0, 1e-3), compute_cost(honest, 1000.0, 1e-3)
    pairs = [(ours.pure, theirs.pure), (ours.squared_mu, theirs.squared_mu), (ours.residual, theirs.residual)]
    if ours.residual == theirs.residual:
        pairs += zip(ours.moments, theirs.moments, strict=True)
    return all(float(our) >= float(their) * (1 - ROUNDING) for our, their in pairs)


def is_accepted(guarantee: Guarantee) -> bool:
    """What `Guarantee.from_dict` decides, without writing the rest of the guarantee again."""
    try:
        return is_consistent(guarantee)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        return False


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_no_accepted_edit_charges_less(entry: Any) -> None:
    honest = made(entry.name)
    assert is_accepted(honest)
    accepted = [edited for edited in edits(honest) if is_accepted(edited)]
    profiles = {edited.profile for edited in accepted}
    for profile in profiles:
        assert charges_no_less(profile, honest.profile, honest.epsilon), profile
    assert all(edited.delta_at(edited.epsilon) <= edited.delta for edited in accepted)
    exact = "largest_draws" in honest.details or entry.mechanism == "anchored"
    if not exact and honest.delta == 0:  # a weaker promise is true, and accepted
        assert {PureProfile(honest.epsilon), PureProfile(honest.epsilon * 3.0)} <= profiles


# Files


def edit_file(honest: Guarantee, **fields: Any) -> Guarantee:
    return Guarantee.from_dict(json.loads(json.dumps({**honest.to_dict(), **fields})))


LARGE = np.random.default_rng(0).standard_normal((300, 16)).astype(np.float32)
QUERIES = np.random.default_rng(1).standard_normal((40, 16))
CODEWORDS = ss.PublicCodebook(np.random.default_rng(2).standard_normal((64, 16)), source="Random vectors.")
#: A release, the epsilon that its edited file states, and the end of the pure profile that its file states.
EDITED_FILES: dict[str, tuple[Callable[[], Any], float, float]] = {
    "batch": (
        lambda: ss.release_batch(LARGE, QUERIES, epsilon=10.0, k=10, names=4, levels=(0.0, 0.1, 0.2, 0.3)),
        320.0,
        0.002,
    ),
    "batch, epsilon unchanged": (
        lambda: ss.release_batch(LARGE, QUERIES, epsilon=10.0, k=10, names=4, levels=(0.0, 0.1, 0.2, 0.3)),
        10.0,
        9.4,
    ),
    "codebook": (lambda: ss.release_index(LARGE, epsilon=10.0, codebook=CODEWORDS), 320.0, 3.14),
    "PrivUnit": (lambda: ss.release_index(LARGE, epsilon=20.0), 640.0, 5.2),
    "staircase": (
        lambda: ss.release_scores(LARGE, QUERIES[0], epsilon=8.0, mechanism="staircase"),
        256.0,
        5.4,
    ),
    "Laplace": (lambda: ss.release_scores(LARGE, QUERIES[0], epsilon=8.0, mechanism="laplace"), 256.0, 4.8),
    "thinned table": (
        lambda: ss.release_scores(
            LARGE, QUERIES[0], epsilon=8.0, mechanism=ss.thinned_response(8.0, [0.3, 0.4], advantage=0.1)
        ),
        256.0,
        0.3,
    ),
    "private center": (
        lambda: ss.release_index(LARGE, epsilon=20.0, delta=1e-6, center="private"),
        640.0,
        19.5,
    ),
}


@pytest.mark.parametrize("name", EDITED_FILES)
def test_an_edited_file_is_rejected_and_a_true_one_is_charged(name: str, tmp_path: Path) -> None:
    make, epsilon, end = EDITED_FILES[name]
    honest = make().guarantee
    with pytest.raises(ss.InvalidInput, match="contradicts itself"):
        edit_file(honest, epsilon=epsilon, profile={"kind": "pure", "epsilon": end})
    spent = []
    for number, guarantee in enumerate((honest, edit_file(honest), edit_file(honest, epsilon=2 * honest.epsilon))):
        account = ss.Ledger.create(f"sqlite:///{tmp_path}/{number}.db", epsilon=50.0, delta=1e-4).account("faces")
        account.spend(guarantee)
        spent.append(account.spent)
    assert spent == [spent[0]] * 3  # a larger promise is true as well, and its profile is charged


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3.0, 20.0, 100.0])
def test_honest_guarantees_of_every_budget_are_accepted(epsilon: float) -> None:
    contract: dict[str, Any] = {"epsilon": epsilon, "rng": 1}
    for release in (
        ss.release_scores(ROWS, QUERY, mechanism="laplace", **contract),
        ss.release_scores(ROWS, QUERY, mechanism="staircase", **contract),
        ss.release_scores(ROWS, QUERY, mechanism=ss.randomised_response(epsilon, [0.1, 0.4]), **contract),
        ss.release_scores(LARGE, QUERIES[0], mechanism=ss.AnchoredWindows(tail=FEW), **contract),
        ss.release_top_k(ROWS, QUERY, 3, **contract),
        ss.release_matches(ROWS, QUERY, 0.1, refine=0.3, **contract),
        ss.release_histogram(ROWS, QUERY, **contract),
        ss.release_index(ROWS, **contract),
        ss.release_index(ROWS, codebook=BOOK, **contract),
        ss.release_index(ROWS, delta=1e-6, center="private", **contract),
        ss.release_index(ROWS, delta=1e-6, mechanism="gaussian", **contract),
        ss.release_batch(LARGE, QUERIES, k=10, **contract),
    ):
        assert edit_file(release.guarantee) == release.guarantee
