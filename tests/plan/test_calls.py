"""Calls of a ranking: each can be made as it is written, and spends no more than the contract."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import plan
from scoreshield.plan.contracts import Contract, round_budget_down, round_budget_up
from scoreshield.privacy.profiles import GaussianProfile, Profile, PureProfile

RNG = np.random.default_rng(5)
ROWS, QUERIES = RNG.standard_normal((60, 16)), RNG.standard_normal((3, 16))
FAR, NEAR = RNG.normal(0.0, 0.1, 400).clip(-1, 1), RNG.normal(0.5, 0.15, 300).clip(-1, 1)
PAIRS = np.stack([np.arange(30), RNG.integers(0, 200, 30)], axis=1)
SCORES = RNG.normal(0.05, 0.12, (30, 200)) + RNG.normal(0, 0.05, (30, 1))
SCORES[PAIRS[:, 0], PAIRS[:, 1]] += 0.45
SCORES = SCORES.clip(-1, 1)
CODEBOOK = ss.PublicCodebook(RNG.standard_normal((32, 16)), source="random directions")
PUBLIC_QUERIES = RNG.standard_normal((30, 16))

NEEDS: dict[str, tuple[str, dict[str, Any]]] = {
    "scores": ("scores", {}),
    "scores on a range": ("scores", {"ranges": [(0.0, 0.7)]}),
    "verification": ("verification", {"irrelevant": FAR, "relevant": NEAR, "target_fmr": 0.02, "source": "public"}),
    "retrieval": ("retrieval", {"benchmark": (SCORES, PAIRS), "records": 60, "k": 3, "source": "public"}),
    "three queries": (
        "retrieval",
        {
            "benchmark": (SCORES, PAIRS),
            "records": 60,
            "k": 3,
            "queries": 3,
            "dimension": 16,
            "codebook": CODEBOOK,
            "public_queries": PUBLIC_QUERIES,
            "source": "public",
        },
    ),
    "many-queries, one": ("many-queries", {"queries": 1, "dimension": 16}),
    "many-queries": ("many-queries", {"queries": 3, "dimension": 16}),
    "many-queries on a range": ("many-queries", {"queries": 3, "dimension": 16, "ranges": [(0.0, 0.7)]}),
    "gram": ("gram", {"records": 60, "dimension": 16}),
    "operating-point": ("operating-point", {"records": 60}),
}
CONTRACTS: list[dict[str, float]] = [
    {"epsilon": 2 / 3},
    {"epsilon": 8.0, "delta": 1e-6},
    {"epsilon": 11.9999996, "delta": 2e-6 / 3},
    {"max_advantage": 0.3},
    {"max_advantage": 0.6, "delta": 1e-6},
    {"max_advantage": 1 / 3, "epsilon": 20 / 3, "delta": 2e-6 / 3},
    {"max_tpr": 0.3, "at_fpr": 0.01, "delta": 1e-6},
]


def list_functions(account: Any) -> dict[str, Any]:
    """The names that a call may use, with an account for every release."""
    public = {name: getattr(ss, name) for name in ss.__all__ if not name.startswith("_")}
    charged = [name for name in public if name.startswith("release_")] + ["PrivateSearch"]
    return public | {name: functools.partial(public[name], ledger=account) for name in charged}


def list_profiles(made: Any) -> Iterator[Profile]:
    for release in made if isinstance(made, list) else [made]:
        yield release.guarantee.profile


def compose_profiles(profiles: list[Profile]) -> Profile:
    """Compose the releases of a call: Gaussian noise by the squares of mu, everything else by its pure epsilon."""
    if len(profiles) == 1:
        return profiles[0]
    if all(isinstance(profile, GaussianProfile) for profile in profiles):
        return GaussianProfile(math.sqrt(sum(profile.mu**2 for profile in profiles)))  # type: ignore[attr-defined]
    return PureProfile(sum(profile.epsilon_at(0.0) for profile in profiles))


def check_contract(contract: Contract, whole: Profile) -> None:
    """Assert that a composed release keeps what an attack bound states."""
    if contract.max_advantage is not None:
        assert whole.advantage <= contract.max_advantage
    if contract.max_rates is not None:
        assert float(whole.tpr_at(contract.max_rates[1])) <= contract.max_rates[0]


@pytest.mark.parametrize("stated", CONTRACTS, ids=str)
@pytest.mark.parametrize("name", NEEDS)
def test_every_call_keeps_the_contract(name: str, stated: dict[str, float], tmp_path: Path) -> None:
    """Each call runs as written, on a ledger of the contract, and no attack bound is exceeded."""
    need, facts = NEEDS[name]
    made = plan.choose(need, **facts, **stated)  # type: ignore[arg-type]
    names = {"np": np, "rows": ROWS, "query": QUERIES[0], "queries": QUERIES, "store": ROWS, "codebook": CODEBOOK}
    names |= {"impostor": FAR, "genuine": NEAR, "public_scores": SCORES}
    # An attack bound alone limits no epsilon.
    limit = {"epsilon": stated.get("epsilon", 1e6), "delta": stated.get("delta", 0.0)}
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", **limit)
    for place, row in enumerate(made.candidates):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ss.UselessRelease)
            warnings.simplefilter("ignore", ss.TailShapeWarning)
            released = eval(row.call.removesuffix(".gram()"), names | list_functions(ledger.account(str(place))))
        if row.call.endswith(".gram()"):  # the matrix of an index has no guarantee of its own
            assert released.gram().shape == (60, 60)
        profiles = list(list_profiles(released))
        whole = compose_profiles(profiles)
        check_contract(made.contract, whole)
        assert whole.advantage <= row.advantage * (1 + 1e-7), row.mechanism
        assert math.isfinite(row.epsilon), row.mechanism
        if stated.get("delta", 0.0) == 0:
            assert row.delta == 0
            assert "gaussian" not in row.mechanism


@pytest.mark.parametrize("value", [2 / 3, 0.3, 8.0, 11.9999996, 1e-7 / 3, 123456.789, 8 / 3, 0.1, 5e-324, 1 - 2**-53])
def test_budgets_are_rounded_in_one_direction(value: float) -> None:
    """Six digits, at most one unit of the last away, and what is written is read again."""
    low, high = round_budget_down(value), round_budget_up(value)
    assert low <= value <= high
    assert high - low <= 1.000001e-5 * value or value < 1e-300
    for one in (low, high):
        assert float(f"{one:.6g}") == one


def test_without_a_delta_no_gaussian_is_ranked() -> None:
    """An attack bound without a delta leaves Gaussian noise out, for every need."""
    for name, (need, facts) in NEEDS.items():
        made = plan.choose(need, **facts, max_advantage=0.3)  # type: ignore[arg-type]
        assert all("gaussian" not in row.mechanism for row in made.candidates), name
        assert all(math.isfinite(row.epsilon) for row in made.candidates)
