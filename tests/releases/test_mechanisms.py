"""Pure releases of scores: what they promise, what they draw, and where they are refused."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2
from support import STRICT

import scoreshield as ss
from scoreshield.privacy.profiles import LaplaceProfile, StepProfile
from scoreshield.privacy.sampling import discrete
from scoreshield.privacy.sampling.stream import Stream, open_stream
from scoreshield.releases import top_k

PURE = ("laplace", "staircase")


@pytest.mark.parametrize("mechanism", PURE)
@pytest.mark.parametrize("score_range", [(-1.0, 1.0), (0.0, 0.8), (-0.3, 0.1)])
def test_a_pure_release_is_what_it_says(
    mechanism: str, score_range: tuple[float, float], collection: np.ndarray, query: np.ndarray, tmp_path: Path
) -> None:
    release = ss.release_scores(collection, query, epsilon=3, mechanism=mechanism, score_range=score_range)
    g = release.guarantee
    assert (g.epsilon, g.delta, g.mechanism, g.sampler, g.calibration) == (3, 0.0, mechanism, "exact", "pure")
    assert g.sensitivity == pytest.approx(score_range[1] - score_range[0])
    assert g.profile.delta_at(3) == 0
    assert g.epsilon_at(0.0) <= 3 * (1 + 1e-12)
    assert isinstance(g.profile, LaplaceProfile if mechanism == "laplace" else StepProfile)
    steps = release.noisy / g.grid
    assert np.array_equal(steps, np.rint(steps))
    assert g.grid >= g.scale / 2**46
    assert "pure 3-differential privacy" in str(g)
    release.save(tmp_path / "r.npz")
    assert ss.load(tmp_path / "r.npz") == release
    assert ss.decisions.flip_probability(0.05, 0.0, g.noise) < 0.5
    with pytest.raises(ss.InvalidInput, match="mu belongs to Gaussian"):
        _ = g.mu


@pytest.mark.parametrize("mechanism", PURE)
def test_the_noise_on_a_release_has_its_law(mechanism: str) -> None:
    size = 200_000
    rows = np.tile(np.array([[1.0, 0.0]]), (size, 1))
    release = ss.release_scores(rows, [0.6, 0.8], epsilon=4, mechanism=mechanism, rng=3)
    u = np.sort(release.guarantee.noise.cdf(release.noisy - 0.6))
    gap = np.abs(u - (np.arange(size) + 0.5) / size).max()
    assert gap < math.sqrt(math.log(2 / 1e-7) / (2 * size))
    other = type(release.guarantee.noise).calibrate(4.3, 2.0)
    wrong = np.sort(other.cdf(release.noisy - 0.6))
    assert np.abs(wrong - (np.arange(size) + 0.5) / size).max() > math.sqrt(math.log(2 / 1e-7) / (2 * size))


@pytest.mark.parametrize("mechanism", PURE)
def test_attacker_reaches_stated_rate_no_more(mechanism: str) -> None:
    """The likelihood ratio of worst-case neighbours, by the law's own cell masses, at one false-positive rate."""
    size, epsilon = 300_000, 2.0
    outs, ins = (
        ss.release_scores(
            np.tile(np.array([[sign, 0.0]]), (size, 1)), [1.0, 0.0], epsilon=epsilon, mechanism=mechanism, rng=seed
        )
        for sign, seed in ((-1.0, 5), (1.0, 6))
    )
    law = ins.guarantee.noise
    h = 1e-6

    def ratio(x: np.ndarray) -> np.ndarray:
        member = law.cdf(x - 1 + h) - law.cdf(x - 1 - h)
        other = law.cdf(x + 1 + h) - law.cdf(x + 1 - h)
        return np.log(member) - np.log(other)

    cut = 0.99 * epsilon
    fpr, tpr = float(np.mean(ratio(outs.noisy) > cut)), float(np.mean(ratio(ins.noisy) > cut))
    most = ins.guarantee.tpr_at(fpr)
    assert tpr < most + STRICT * math.sqrt(0.25 / size) * 2
    assert tpr == pytest.approx(math.exp(epsilon) * fpr, rel=0.03)  # the whole allowance is spent
    assert tpr > math.exp(0.9 * epsilon) * fpr


@pytest.mark.parametrize("mechanism", PURE)
def test_any_range_comes_back(mechanism: str, collection: np.ndarray, query: np.ndarray, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    for _ in range(40):
        low, high = np.sort(np.round(rng.uniform(-1, 1, 2), 2))
        if high - low < 0.02:
            continue
        within = (float(low), float(high))
        release = ss.release_scores(collection, query, epsilon=2, mechanism=mechanism, score_range=within)
        g = release.guarantee
        assert g.grid_sensitivity >= g.sensitivity
        assert g.noise.profile(g.grid_sensitivity).delta_at(2.0) == 0
        release.save(tmp_path / "r.npz")
        assert ss.load(tmp_path / "r.npz") == release


def test_auto_takes_the_smaller_noise(collection: np.ndarray, query: np.ndarray) -> None:
    assert ss.release_scores(collection, query, epsilon=1, delta=1e-6, mechanism="auto").guarantee.delta == 0
    lax = ss.release_scores(collection, query, epsilon=0.01, delta=0.1, mechanism="auto")
    batch = ss.release_scores(collection, np.stack([query, -query]), epsilon=1, delta=1e-6, mechanism="auto")
    assert lax.guarantee.mechanism == batch.guarantee.mechanism == "gaussian"
    with pytest.raises(ss.InvalidInput, match="'mechanism'"):
        ss.release_scores(collection, query, epsilon=1, mechanism=np.array(["a", "b"]))


@pytest.mark.parametrize(
    "call",
    [
        lambda e, q: ss.release_scores(e, q, epsilon=1e-9, mechanism="staircase", score_range=(0, 0.001)),
        lambda e, q: ss.release_scores(e, q, epsilon=1e-9, mechanism="laplace", score_range=(0, 0.001)),
        lambda e, q: ss.release_top_k(e, q, 2, epsilon=1e-9, score_range=(0, 0.001)),
        lambda e, q: ss.release_matches(e, q, float(np.nextafter(1, 0)), epsilon=1, refine=0.5),
        lambda e, q: ss.release_matches(e, q, 0.1, epsilon=1, refine=1e-200),
        lambda e, q: ss.release_matches(e, q, 0.1, epsilon=1, refine=1 - 2.0**-53),
        lambda e, _: ss.release_histogram(e, None, epsilon=1e-9, delta=1e-9, mechanism="gaussian"),
        lambda e, q: ss.release_histogram(e, q, epsilon=1, bins=10**12),
        lambda e, q: ss.release_scores(e, q, epsilon=3, delta=1e-15, mechanism="optimal"),
        lambda e, _: ss.release_index(e, epsilon=3e5, delta=1e-6, mechanism="gaussian"),
        lambda e, _: ss.release_index(e, epsilon=800, delta=1e-6, reduction="pca", components=4, pca_share=0.5),
    ],
)
def test_degenerate_contracts_are_one_sentence(call: object, collection: np.ndarray, query: np.ndarray) -> None:
    with pytest.raises(ss.InvalidInput) as caught:
        call(collection, query)  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_refined_scores_false_names_say_nothing() -> None:
    """A record below the threshold that is named by a false bit is scored as if it stood at the threshold."""
    seed = next(
        seed
        for seed in range(1000)
        if 0 in ss.release_matches([[-1.0, 0.0]], [1.0, 0.0], 0.5, epsilon=2, refine=0.5, rng=seed).candidates
    )
    low, edge = (
        ss.release_matches([[x, math.sqrt(1 - x * x)]], [1.0, 0.0], 0.5, epsilon=2, refine=0.5, rng=seed)
        for x in (-1.0, 0.4)
    )
    assert low.candidates.tolist() == edge.candidates.tolist() == [0]
    assert low.noisy.tolist() == edge.noisy.tolist()


def test_shares_add_up_to_the_last_bit(collection: np.ndarray, query: np.ndarray) -> None:
    for epsilon, share in ((0.57, 0.27), (1.0, 0.1), (3.3, 0.7), (7.77, 0.31)):
        told = ss.release_matches(collection, query, 0.1, epsilon=epsilon, refine=share).guarantee.details
        assert Fraction(told["screening_epsilon"]) + Fraction(told["refining_epsilon"]) <= Fraction(epsilon)


FORGERIES = {
    "matches": (lambda e, q: ss.release_matches(e, q, 0.1, epsilon=5), {"epsilon": 0.1}, 0.1),
    "top-k": (lambda e, q: ss.release_top_k(e, q, 2, epsilon=20), {"epsilon": 0.1}, 0.1),
    "histogram": (lambda e, q: ss.release_histogram(e, q, epsilon=5), {"epsilon": 0.01}, 0.01),
    "index": (lambda e, _: ss.release_index(e, epsilon=100), {"epsilon": 0.1}, 0.1),
    "batch": (lambda e, q: ss.release_batch(e, q, epsilon=5, k=2), {"epsilon": 0.1}, 0.1),
    "laplace": (lambda e, q: ss.release_scores(e, q, epsilon=5, mechanism="laplace"), {"epsilon": 0.1}, 0.1),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_guarantees_are_refused(name: str, collection: np.ndarray, query: np.ndarray) -> None:
    make, change, epsilon = FORGERIES[name]
    data = make(collection, query).guarantee.to_dict()
    assert ss.Guarantee.from_dict(data).to_dict() == data
    forged = {**data, **change, "profile": {"kind": "pure", "epsilon": epsilon}}
    with pytest.raises(ss.InvalidInput, match="contradicts itself"):
        ss.Guarantee.from_dict(forged)
    without = {**data, "details": {}}
    if data["details"]:
        with pytest.raises(ss.InvalidInput):
            ss.Guarantee.from_dict(without)


def test_sensitivity_below_adjacencys_refused(collection: np.ndarray, query: np.ndarray) -> None:
    """A sensitivity below the adjacencys is refused."""
    data = ss.release_scores(collection, query, epsilon=5, delta=1e-6).guarantee.to_dict()
    small = {"sensitivity": 0.001, "grid_sensitivity": 0.001, "epsilon": 0.01}
    mu = 0.001 / data["scale"]
    with pytest.raises(ss.InvalidInput, match="contradicts itself"):
        ss.Guarantee.from_dict({**data, **small, "profile": {"kind": "gaussian", "mu": mu}})


@pytest.mark.parametrize(
    ("make", "damage"),
    [
        (lambda e, q: ss.release_matches(e, q, 0.1, epsilon=5), {"candidates": np.array(["a"])}),
        (lambda e, q: ss.release_matches(e, q, 0.1, epsilon=5), {"candidates": np.array([0.5])}),
        (lambda e, q: ss.release_matches(e, q, 0.1, epsilon=5), {"noisy": np.zeros((2, 2))}),
        (lambda e, q: ss.release_top_k(e, q, 2, epsilon=5), {"indices": np.array([1.5, 7.5])}),
        (lambda e, q: ss.release_top_k(e, q, 2, epsilon=5), {"indices": np.array(["a", "b"])}),
        (lambda e, q: ss.release_histogram(e, q, epsilon=5, bins=4), {"edges": np.array(list("abcde"))}),
        (lambda e, q: ss.release_scores(e, q, epsilon=5, mechanism="laplace"), {"noisy": np.array(["a"] * 40)}),
    ],
)
def test_damaged_files_are_refused(
    make: object, damage: dict[str, np.ndarray], collection: np.ndarray, query: np.ndarray, tmp_path: Path
) -> None:
    make(collection, query).save(tmp_path / "r.npz")  # type: ignore[operator]
    with np.load(tmp_path / "r.npz") as file:
        parts = {name: file[name] for name in file.files}
    np.savez(tmp_path / "bad.npz", **{**parts, **damage})
    with pytest.raises(ss.InvalidInput, match="hold together"):
        ss.load(tmp_path / "bad.npz")


def test_certificates_say_what_happened(collection: np.ndarray, query: np.ndarray) -> None:
    def text(release: Any) -> str:
        return " ".join(str(release.guarantee).split())

    assert "clamped" not in text(ss.release_histogram(collection, query, epsilon=1))
    assert "outside the bins" in text(ss.release_histogram(collection, query, epsilon=1))
    refined = text(ss.release_matches(collection, query, 0.25, epsilon=4, refine=0.5))
    assert "Those behind released scores: to [0.25, 1]." in refined
    table = text(ss.release_scores(collection, query, epsilon=4, mechanism="optimal"))
    assert "at the worst level" in table
    assert "rounded up" not in table
    pca = {"epsilon": 9, "delta": 1e-6, "components": 3, "reduction": "pca"}
    paid = text(ss.release_index(collection, mechanism="gaussian", **pca))
    assert "taken as public: the number" in paid
    assert "and the covariance" in paid
    free = text(ss.release_index(collection, epsilon=9, components=3))
    assert "taken as public: the projection, the number" in free
    assert "Exact" in free


def test_more_than_one_moved_score_is_refused(collection: np.ndarray, query: np.ndarray) -> None:
    labels = np.arange(len(collection)) // 4
    for call in (
        lambda: ss.release_scores(collection, query, epsilon=1, mechanism="laplace", adjacency=ss.Identity(labels)),
        lambda: ss.release_scores(collection, np.stack([query, -query]), epsilon=1, mechanism="staircase"),
        lambda: ss.release_row(collection, 0, epsilon=1, mechanism="staircase"),
        lambda: ss.release_gram(collection, epsilon=1, mechanism="laplace"),
        lambda: ss.release_matches(collection, query, 0.5, epsilon=1, adjacency=ss.Identity(labels)),
        lambda: ss.release_top_k(collection, query, 2, epsilon=1, adjacency=ss.Identity(labels)),
    ):
        with pytest.raises(ss.InvalidInput, match=r"moves?"):
            call()
    central = ss.Identity(labels, centroids=True)
    assert ss.release_scores(collection, query, epsilon=1, mechanism="laplace", adjacency=central).noisy.shape == (10,)


@pytest.mark.parametrize("mechanism", PURE)
def test_pure_noise_takes_no_delta_and_no_rule(mechanism: str, collection: np.ndarray, query: np.ndarray) -> None:
    with pytest.raises(ss.InvalidInput, match="private without it"):
        ss.release_scores(collection, query, epsilon=1, delta=1e-6, mechanism=mechanism)
    with pytest.raises(ss.InvalidInput, match="Calibration rules"):
        ss.release_scores(collection, query, epsilon=1, mechanism=mechanism, calibration="classical")
    with pytest.raises(ss.InvalidInput, match="hides every cosine"):
        ss.release_scores(collection, query, epsilon=1e-9, mechanism=mechanism)


def test_unmoved_scores_are_the_same_bit_for_bit(collection: np.ndarray, query: np.ndarray) -> None:
    other = collection.copy()
    other[7] = -query
    for mechanism in PURE:
        first, second = (
            ss.release_scores(rows, query, epsilon=2, mechanism=mechanism, rng=1).noisy for rows in (collection, other)
        )
        assert np.flatnonzero(first != second).tolist() == [7]


# Screening


def test_screening_keeps_bits_probability(tmp_path: Path) -> None:
    """Screening keeps bits with its probability."""
    n = 200_000
    rows = np.zeros((n, 2))
    rows[:, 0], rows[: n // 4, 1] = 1.0, 5.0
    release = ss.release_matches(rows, [0.0, 1.0], 0.5, epsilon=2, rng=4)
    told = np.isin(np.arange(n), release.candidates)
    keep = math.exp(2) / (1 + math.exp(2))
    for part, p in ((told[: n // 4], keep), (told[n // 4 :], 1 - keep)):
        error = STRICT * math.sqrt(p * (1 - p) / len(part))
        assert abs(part.mean() - p) < error
        wrong = math.exp(2.2) / (1 + math.exp(2.2))
        assert abs(part.mean() - (wrong if p > 0.5 else 1 - wrong)) > error
    assert release.expected_false == pytest.approx(n * (1 - keep))
    spread = math.sqrt(n * keep * (1 - keep)) / (2 * keep - 1)
    assert abs(release.count - n / 4) < STRICT * spread
    low, high = release.count_interval(0.999999)
    assert low < n / 4 < high
    assert high - low < 14 * spread
    assert sorted(release.indices) == release.candidates.tolist()
    assert release.indices.tolist() != release.candidates.tolist()
    assert release.guarantee.epsilon_at(0.0) == 2
    release.save(tmp_path / "m.npz")
    assert ss.load(tmp_path / "m.npz") == release


def test_intervals_cover(collection: np.ndarray, query: np.ndarray) -> None:
    rows = np.repeat(collection, 20, axis=0)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    true = int((unit @ query / np.linalg.norm(query) > 0.1).sum())
    misses = near = 0
    for seed in range(300):
        low, high = ss.release_matches(rows, query, 0.1, epsilon=1, rng=seed).count_interval(0.9)
        misses += not low <= true <= high
        middle, half = (low + high) / 2, (high - low) / 2
        near += abs(true - middle) > 0.4 * half  # an interval of two fifths the width must be seen to fail
    allowed = 300 * 0.1 + STRICT * math.sqrt(300 * 0.09)
    assert misses < allowed < near


def test_refined_matches_ordered_noisy_score(collection: np.ndarray, query: np.ndarray, tmp_path: Path) -> None:
    """Refined matches are ordered by noisy score."""
    release = ss.release_matches(collection, query, 0.0, epsilon=40, refine=0.5, rng=1)
    g = release.guarantee
    assert (g.mechanism, g.details["screening_epsilon"], g.details["refining_epsilon"]) == ("screen-and-refine", 20, 20)
    steps = release.noisy / g.grid
    assert np.array_equal(steps, np.rint(steps))
    place = {index: value for index, value in zip(release.candidates, release.noisy, strict=True)}
    values = [place[index] for index in release.indices]
    assert values == sorted(values, reverse=True)
    unit = collection / np.linalg.norm(collection, axis=1, keepdims=True)
    scores = unit @ query / np.linalg.norm(query)
    assert sorted(release.candidates) == np.flatnonzero(scores > 0).tolist()  # at epsilon 20 no bit flips
    assert np.abs(release.noisy - scores[release.candidates]).max() < 0.1
    release.save(tmp_path / "m.npz")
    assert ss.load(tmp_path / "m.npz") == release


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"threshold": 1.0}, "'threshold'"),
        ({"threshold": math.nan}, "'threshold'"),
        ({"epsilon": 0}, "'epsilon'"),
        ({"refine": 1.0}, "'refine'"),
        ({"refine": -0.1}, "'refine'"),
        ({"query": np.ones((2, 8))}, "Give one query"),
        ({"score_range": (0.5, 0.2)}, "'score_range'"),
    ],
)
def test_bad_screens(change: dict[str, object], says: str, collection: np.ndarray, query: np.ndarray) -> None:
    given = {"query": query, "threshold": 0.5, "epsilon": 1.0, **change}
    with pytest.raises(ss.InvalidInput, match=says):
        ss.release_matches(collection, given.pop("query"), given.pop("threshold"), **given)  # type: ignore[arg-type]


# The k best


def selection_law(scores: np.ndarray, scale: float, mechanism: str) -> np.ndarray:
    """Of one selection: the exponential mechanism, or permute-and-flip by integration over arrival times."""
    p = np.exp((scores - scores.max()) / scale)
    if mechanism == "gumbel":
        return p / p.sum()
    u, w = np.polynomial.legendre.leggauss(60)
    u, w = (u + 1) / 2, w / 2
    factors = 1 - u[:, None] * p
    return np.array([p[i] * float(w @ np.prod(np.delete(factors, i, axis=1), axis=1)) for i in range(len(p))])


@pytest.mark.parametrize("mechanism", ["permute-and-flip", "gumbel"])
def test_selections_follow_their_law(mechanism: str) -> None:
    angles = np.array([0.2, 0.5, 0.9, 1.2, 1.5])
    rows, trials, epsilon = np.stack([np.cos(angles), np.sin(angles)], axis=1), 8000, 2.0
    picked = np.array(
        [
            ss.release_top_k(rows, [1.0, 0.0], 1, epsilon=epsilon, mechanism=mechanism, rng=seed).indices[0]
            for seed in range(trials)
        ]
    )
    seen = np.bincount(picked, minlength=5)

    def statistic(scale: float) -> float:
        expected = selection_law(np.cos(angles), scale, mechanism) * trials
        return float(((seen - expected) ** 2 / expected).sum())

    assert statistic(2 / epsilon) < chi2.isf(1e-7, 4)
    assert statistic(2 * 2 / epsilon) > chi2.isf(1e-7, 4)  # twice the scale, which others use


@pytest.mark.parametrize("mechanism", ["permute-and-flip", "gumbel"])
def test_moved_score_changes_selection_epsilon(mechanism: str) -> None:
    """Over random scores and moves the exact laws never differ by more than e^epsilon, and come near."""
    rng, epsilon, worst = np.random.default_rng(1), 1.0, 0.0
    for _ in range(400):
        scores = rng.choice([-1.0, 0.0, 1.0], size=rng.integers(2, 6))
        moved = scores.copy()
        moved[0] = rng.choice([-1.0, 1.0])
        p, q = (selection_law(x, 2 / epsilon, mechanism) for x in (scores, moved))
        worst = max(worst, float(np.abs(np.log(p / q)).max()))
    assert 0.6 * epsilon < worst <= epsilon + 1e-9


def test_the_best_are_found_with_a_large_budget(collection: np.ndarray, query: np.ndarray, tmp_path: Path) -> None:
    unit = collection / np.linalg.norm(collection, axis=1, keepdims=True)
    best = np.argsort(-(unit @ query))[:5].tolist()
    for mechanism in ("permute-and-flip", "gumbel"):
        release = ss.release_top_k(collection, query, 5, epsilon=1e5, mechanism=mechanism)
        assert release.indices.tolist() == best
        assert release.guarantee.mechanism == mechanism
        assert release.guarantee.details["epsilon_for_each"] == 2e4
        release.save(tmp_path / "t.npz")
        assert ss.load(tmp_path / "t.npz") == release
    all_of_them = ss.release_top_k(collection, query, len(collection), epsilon=1).indices
    assert sorted(all_of_them) == list(range(len(collection)))


@pytest.mark.parametrize(("k", "epsilon"), [(0, 1.0), (41, 1.0), (1.5, 1.0), (1, 0.0)])
def test_bad_selections(k: int, epsilon: float, collection: np.ndarray, query: np.ndarray) -> None:
    with pytest.raises(ss.InvalidInput):
        ss.release_top_k(collection, query, k, epsilon=epsilon)


# Histograms


def test_histogram_counts_and_their_noise(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    rows, query = rng.standard_normal((4000, 32)), rng.standard_normal(32)
    scores = rows @ query / np.linalg.norm(rows, axis=1) / np.linalg.norm(query)
    clean, edges = np.histogram(scores, bins=64, range=(-1, 1))
    draws = np.concatenate(
        [ss.release_histogram(rows, query, epsilon=1, rng=seed).counts - clean for seed in range(300)]
    )
    q = math.exp(-1 / 2)
    for k in (0, 1, 2, 5):
        p = (1 - q) / (1 + q) * q**k * (1 if k == 0 else 2)
        error = STRICT * math.sqrt(p * (1 - p) / len(draws))
        seen = float(np.mean(np.abs(draws) == k))
        assert abs(seen - p) < error
    wrong = math.exp(-1.15 / 2)
    assert abs(float(np.mean(draws == 0)) - (1 - wrong) / (1 + wrong)) > STRICT * math.sqrt(0.2 / len(draws))
    release = ss.release_histogram(rows, query, epsilon=1, rng=0)
    assert np.allclose(release.edges, edges)
    release.save(tmp_path / "h.npz")
    assert ss.load(tmp_path / "h.npz") == release


@pytest.mark.parametrize(("mechanism", "delta"), [("geometric", 0.0), ("gaussian", 1e-6)])
def test_curve_histogram_within_error(mechanism: str, delta: float) -> None:
    """The curve of a histogram is within its error."""
    rng = np.random.default_rng(3)
    rows, query = rng.standard_normal((5000, 16)), rng.standard_normal(16)
    scores = rows @ query / np.linalg.norm(rows, axis=1) / np.linalg.norm(query)
    misses = near = 0
    for seed in range(200):
        release = ss.release_histogram(rows, query, epsilon=1, delta=delta, mechanism=mechanism, rng=seed)
        true = (scores[:, None] > release.edges).mean(axis=0)
        worst = float(np.abs(release.rates - true)[1:-1].max())
        misses += worst > release.error(0.9)
        near += worst > 0.15 * release.error(0.9)  # a bound far too small must be seen to fail
    assert misses < 200 * 0.1 < near
    assert np.all(np.diff(release.rates) <= 0)
    t = release.threshold(0.05)
    assert release.rate(t) == pytest.approx(0.05, abs=1e-9)
    assert abs(float(np.mean(scores > t)) - 0.05) < release.error(0.999) + 0.01
    plan = ss.plan.verification(release.distribution(), target_fmr=0.05, epsilon=5, delta=1e-6, source="released")
    assert not plan.warnings
    assert plan.recalibration.clean_threshold == pytest.approx(t, abs=0.02)


def test_all_pairs_cost_more() -> None:
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((300, 8))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    scores = (unit @ unit.T)[np.triu_indices(300, 1)]
    release = ss.release_histogram(rows, None, bins=np.linspace(-1, 1, 21), epsilon=1e6, rng=1)
    assert release.guarantee.sensitivity == 2 * 299
    assert release.total == 300 * 299 // 2
    edges = np.linspace(-1, 1, 21)
    clean = [int(((scores > low) & (scores <= high)).sum()) for low, high in itertools.pairwise(edges)]
    assert release.counts.tolist() == clean
    gaussian = ss.release_histogram(rows, None, bins=20, epsilon=1, delta=1e-6, mechanism="gaussian", rng=1)
    assert gaussian.guarantee.sensitivity == pytest.approx(math.sqrt(2) * 299)
    assert gaussian.guarantee.mu == pytest.approx(math.sqrt(2) * 299 / gaussian.guarantee.scale)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"bins": 1}, "'bins'"),
        ({"bins": [0.0, 1.0]}, "'bins'"),
        ({"bins": [0.0, 0.5, 0.2]}, "'bins'"),
        ({"bins": [0.0, 0.5, math.inf]}, "'bins'"),
        ({"bins": "many"}, "'bins'"),
        ({"delta": 1e-6}, "'delta'"),
        ({"mechanism": "gaussian"}, "'delta'"),
        ({"mechanism": "laplace"}, "'mechanism'"),
        ({"epsilon": -1}, "'epsilon'"),
    ],
)
def test_bad_histograms(change: dict[str, object], says: str, collection: np.ndarray, query: np.ndarray) -> None:
    with pytest.raises(ss.InvalidInput, match=says):
        ss.release_histogram(collection, query, **{"epsilon": 1, **change})  # type: ignore[arg-type]


def test_random_order_uniform_even_keys_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random order is uniform even where keys collide."""
    draws, close = 24_000, 6 * math.sqrt(24_000 * 5 / 36)  # six deviations of each of six counts
    monkeypatch.setattr(top_k, "_KEYS", 4)
    stream = open_stream(3)
    found = Counter(tuple(top_k._random_order(stream, 3).tolist()) for _ in range(draws))
    assert len(found) == 6
    assert max(abs(number - draws / 6) for number in found.values()) < close

    def kept(stream: Stream) -> tuple[int, ...]:
        return tuple(np.argsort(discrete.draw_below(stream, np.full(3, 4)), kind="stable").tolist())

    near = Counter(kept(stream) for _ in range(draws))
    assert abs(near[0, 1, 2] - draws / 6) > 2 * close, "equal keys that keep the records' order must show"
