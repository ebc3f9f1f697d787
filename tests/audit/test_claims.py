"""The ceiling that a claim puts on every test, and what is no claim."""

import json
import math
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.audit import Claim
from scoreshield.errors import InvalidInput
from scoreshield.privacy.profiles import GaussianProfile, PureProfile


def test_the_ceiling_by_hand() -> None:
    claim = Claim(math.log(3), 0.1)
    # 3 a + 0.1 up to the corner at a = 0.9/4, then 1 - (0.9 - a)/3, then 1.
    fpr = [0.0, 0.1, 0.225, 0.5, 0.9, 0.95, 1.0]
    np.testing.assert_allclose(claim.tpr_at(fpr), [0.1, 0.4, 0.775, 1 - 0.4 / 3, 1.0, 1.0, 1.0], rtol=1e-12)
    assert isinstance(claim.tpr_at(0.1), float)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0, 800.0, 1e9])
def test_pure_ceiling(epsilon: float) -> None:
    """Without delta the ceiling is that of randomised response."""
    fpr = np.concatenate([[0.0, 1.0], np.geomspace(1e-12, 1, 50)])
    np.testing.assert_allclose(Claim(epsilon).tpr_at(fpr), PureProfile(epsilon).tpr_at(fpr), rtol=1e-12)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 0.0), (0.0, 0.3), (0.5, 1e-6), (3.0, 0.1), (800.0, 0.0), (1.0, 0.9)]
)
def test_the_advantage_by_brute_force(epsilon: float, delta: float) -> None:
    """The advantage is the largest distance of the ceiling from the diagonal."""
    claim = Claim(epsilon, delta)
    fpr = np.concatenate([np.linspace(0, 1, 200_001), np.geomspace(1e-12, 1, 1_001)])
    found = np.max(claim.tpr_at(fpr) - fpr)
    assert found <= claim.advantage * (1 + 1e-12)
    assert found >= claim.advantage - 2e-5


def test_a_claim_in_words() -> None:
    """The verdict of a claim is that of a certificate: the word changes at ln 19, and a profile has its own."""
    assert Claim(math.log(19) * (1 - 1e-9)).verdict == "weak"
    assert Claim(math.log(19) * (1 + 1e-9)).verdict == "hides practically nothing"
    assert Claim(0.1, 1e-6).verdict == "strong"
    assert Claim(0.1, 0.3).verdict == "weak"  # a third of the records may be revealed
    release = ss.release_scores(np.eye(4), np.eye(4)[0], epsilon=5, delta=1e-6)
    assert Claim.of(release).verdict == release.guarantee.verdict == "moderate"
    assert Claim.of(release).advantage == release.guarantee.attack_advantage
    assert Claim(5, 1e-6).verdict == "hides practically nothing"  # of any mechanism with this pair


def test_a_profile_lowers_the_ceiling() -> None:
    profile = GaussianProfile(0.5)
    pair = Claim(profile.epsilon_at(1e-5), 1e-5)
    whole = Claim(pair.epsilon, 1e-5, profile=profile)
    fpr = np.linspace(0, 1, 101)
    np.testing.assert_allclose(whole.tpr_at(fpr), profile.tpr_at(fpr))
    assert np.all(whole.tpr_at(fpr) <= pair.tpr_at(fpr) + 1e-12)
    assert whole.tpr_at(0.3) < pair.tpr_at(0.3) - 0.1


def test_weak_profile() -> None:
    """A profile that is weaker than the pair raises an error."""
    with pytest.raises(InvalidInput, match=r"'profile' .* at least as strong"):
        Claim(1.0, 1e-5, profile=GaussianProfile(3.0))
    with pytest.raises(InvalidInput, match=r"'profile' .* at least as strong"):
        Claim(1.0, profile=PureProfile(1.01))
    assert Claim(1.0, profile=PureProfile(1.0)).tpr_at(0.0) == 0


def test_claim_of_release(collection: np.ndarray, query: np.ndarray) -> None:
    """The claim of a release is that of its guarantee."""
    release = ss.release_scores(collection, query, epsilon=2.0, delta=1e-6, rng=1)
    claim = Claim.of(release)
    assert claim == Claim.of(release.guarantee)
    assert (claim.epsilon, claim.delta, claim.adjacency) == (2.0, 1e-6, "replace one record")
    np.testing.assert_allclose(claim.tpr_at([0.01, 0.5]), release.guarantee.tpr_at([0.01, 0.5]))


def test_adjacency_in_words(collection: np.ndarray) -> None:
    """Other adjacencies are described in words."""
    release = ss.release_gram(
        collection, epsilon=1.0, delta=1e-5, adjacency=ss.GramRadius(0.5), projection="none", rng=1
    )
    assert "Gram matrix by at most 0.5" in Claim.of(release).adjacency
    assert Claim(1.0, adjacency=ss.Replacement()).adjacency == "replace one record"  # type: ignore[arg-type]


@pytest.mark.parametrize("profile", [None, GaussianProfile(0.2), PureProfile(0.9)])
def test_a_claim_survives_json(profile) -> None:
    claim = Claim(1.0, 1e-3, "replace one identity", profile)
    assert Claim.from_dict(json.loads(json.dumps(claim.to_dict()))) == claim
    assert str(claim) == "(1, 0.001)-differential privacy, adjacency: replace one identity"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Claim(-1.0), "'epsilon'"),
        (lambda: Claim(math.inf), "'epsilon'"),
        (lambda: Claim("1"), "'epsilon'"),
        (lambda: Claim(1.0, 1.0), "'delta'"),
        (lambda: Claim(1.0, math.nan), "'delta'"),
        (lambda: Claim(1.0, adjacency=None), "'adjacency' .* says nothing"),
        (lambda: Claim(1.0, adjacency="  "), "'adjacency'"),
        (lambda: Claim(1.0, profile="gaussian"), "'profile'"),
        (lambda: Claim.of(3), "'source'"),
        (lambda: Claim(1.0).tpr_at(1.5), "'fpr'"),
        (lambda: Claim(1.0).tpr_at([0.1, math.nan]), "'fpr'"),
        (lambda: Claim(1.0).tpr_at("a"), "'fpr'"),
        (lambda: Claim.from_dict({"epsilon": 1.0}), "not complete"),
        (lambda: Claim.from_dict(None), "not complete"),
        (
            lambda: Claim.from_dict({"epsilon": 1.0, "delta": 0.0, "adjacency": "x", "profile": {"kind": "?"}}),
            "profile",
        ),
    ],
)
def test_bad_input_is_one_sentence(call, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_lazy_import() -> None:
    """The module is imported when it is first used."""
    import subprocess
    import sys

    code = (
        "import sys, scoreshield as ss; assert 'scoreshield.audit' not in sys.modules; "
        "assert ss.audit.Claim(1.0).epsilon == 1.0"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "replaces"),
    [
        ("replace one record", True),
        ("Replace", True),
        ("replace-one", True),
        (ss.Replacement(), True),
        (ss.GramRadius(1.0), False),
        (ss.Identity([0, 0, 1]), False),
        ("add or remove one record", False),
    ],
)
def test_is_replacement(words: Any, replaces: bool) -> None:
    """A claim says whether one record is replaced."""
    assert Claim(1.0, adjacency=words).is_replacement == replaces
