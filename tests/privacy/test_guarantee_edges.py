"""Guarantees asked about what they were not made for, and the small pieces that samplers rest on."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from typing import Any

import mpmath
import numpy as np
import pytest

import scoreshield as ss
from scoreshield.privacy import guarantee as guarantees
from scoreshield.privacy import privunit
from scoreshield.privacy.noise import GaussianNoise, LaplaceNoise, StaircaseNoise
from scoreshield.privacy.privunit import PrivUnit
from scoreshield.privacy.profiles import CurveProfile, GaussianProfile, PureProfile
from scoreshield.privacy.sampling import intervals, sphere, stream
from scoreshield.releases import histogram


@pytest.fixture
def narrow(collection: np.ndarray) -> ss.Guarantee:
    """A matrix of 40 records under a radius that does not cover the replacement of a record."""
    release = ss.release_gram(collection, epsilon=2, delta=1e-6, adjacency=ss.GramRadius(0.5), score_range=(-0.5, 0.5))
    return release.guarantee


def test_radius_protects_record_noise_worth(narrow: ss.Guarantee) -> None:
    """Replacing a record moves 2 (n - 1) entries of the matrix by up to 1 each, over the same noise."""
    moved = math.sqrt(2 * 39)
    assert not narrow.covers_record_replacement
    record = narrow.record_profile()
    assert record.mu == pytest.approx(narrow.mu * moved / 0.5, rel=1e-6)  # type: ignore[attr-defined]
    assert record.delta_at(2.0) > narrow.delta


def test_radius_large_enough_covers_record(collection: np.ndarray) -> None:
    """A radius that is large enough covers a record."""
    large = ss.release_gram(collection, epsilon=2, delta=1e-6, adjacency=ss.GramRadius(2 * math.sqrt(2 * 39) + 1e-9))
    assert large.guarantee.covers_record_replacement
    assert large.guarantee.record_profile() == large.guarantee.profile


@pytest.mark.parametrize("fpr", [-0.001, 1.001, "a", [0.1, 2.0], None, [True], math.nan])
def test_rates_that_are_none(narrow: ss.Guarantee, fpr: object) -> None:
    with pytest.raises(ss.InvalidInput):
        narrow.tpr_at(fpr)  # type: ignore[arg-type]


def test_rates_of_every_shape(narrow: ss.Guarantee) -> None:
    assert isinstance(narrow.tpr_at(0.1), float)
    assert narrow.tpr_at([0.0, 0.1, 1.0]).tolist() == [0.0, narrow.tpr_at(0.1), 1.0]
    assert narrow.tpr_at(1) == 1.0


def test_what_may_be_asked_of_a_guarantee(narrow: ss.Guarantee) -> None:
    assert 0 < narrow.delta_at(0) < 1
    assert narrow.epsilon_at(0) == math.inf
    for epsilon in (-1e-9, math.nan, "1", None):
        with pytest.raises(ss.InvalidInput):
            narrow.delta_at(epsilon)  # type: ignore[arg-type]
    for delta in (-1e-9, 1, math.nan, "1", None):
        with pytest.raises(ss.InvalidInput):
            narrow.epsilon_at(delta)  # type: ignore[arg-type]


def test_written_guarantee_states_attacker_gains(narrow: ss.Guarantee) -> None:
    """A written guarantee states what an attacker gains."""
    attack = {"auc": narrow.attack_auc, "advantage": narrow.attack_advantage, "tpr_at_fpr_0.01": narrow.tpr_at(0.01)}
    assert narrow.to_dict()["attack"] == attack


def test_counts_have_noise_of_either_sign() -> None:
    """P[0] = (1 - q) / (1 + q) and each sign half of the rest; 5 deviations of a fair coin."""
    noise = histogram._two_sided_geometric(stream.open_stream(3), 0.5, 20_000)
    q = math.exp(-0.5)
    moved = noise[noise != 0]
    assert abs(np.sign(moved).sum()) < 5.4 * math.sqrt(len(moved))
    assert abs((noise == 0).sum() - 20_000 * (1 - q) / (1 + q)) < 5.4 * 71
    # The near miss: without the sign, they all lie on one side.
    assert np.sign(np.abs(moved)).sum() > 5.4 * math.sqrt(len(moved))


def test_mu_belongs_to_gaussian_noise(collection: np.ndarray, query: np.ndarray) -> None:
    laplace = ss.release_scores(collection, query, epsilon=1, mechanism="laplace").guarantee
    with pytest.raises(ss.InvalidInput):
        _ = laplace.mu


def test_tail_gaussian_digits() -> None:
    """The tail of a gaussian has all its digits."""
    assert GaussianNoise(2.0).sf(60.0) == pytest.approx(4.906713927148187e-198, rel=1e-12, abs=0)
    assert GaussianNoise(2.0).sf(np.uint8(2)) == pytest.approx(0.15865525393145705, rel=1e-12)


@pytest.mark.parametrize("value", [2, np.float32(2), np.int64(2)])
def test_scale_plain_number_whatever_given(value: float) -> None:
    """A scale is a plain number whatever was given."""
    for found in (GaussianNoise(value).std, LaplaceNoise(value).b, StaircaseNoise(value, value, 0.5).sensitivity):
        assert type(found) is float
        assert found == 2.0


def test_each_fork_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child of a child is a third process, though its id may be one that was given out before."""
    monkeypatch.setattr(stream, "_forks", 0)
    seen = {stream.identify_process()}
    for _ in range(3):
        stream._count_fork()
        seen.add(stream.identify_process())
    assert len(seen) == 4


def test_forked_process_computes_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked process computes with a lock of its own."""
    lock, context = intervals.LOCK, intervals.INTERVALS
    monkeypatch.setattr(intervals, "LOCK", lock)
    monkeypatch.setattr(intervals, "INTERVALS", context)
    with lock:  # held by another thread at the fork
        intervals._renew()
        assert intervals.LOCK is not lock
        assert intervals.INTERVALS is not context
        assert intervals.LOCK.acquire(blocking=False)


@pytest.mark.parametrize("seed", [0, 7, np.int64(7), np.random.default_rng(7)])
def test_seeds_of_every_kind_are_research(seed: object) -> None:
    assert stream.name_sampler(seed) == "research"
    assert stream.open_stream(seed).name == "research"
    assert stream.open_stream(None).name == "exact"


@pytest.mark.parametrize("seed", [-1, True, 1.5, "1", np.random.RandomState(1)])
def test_no_seed_error_never_secure(seed: object) -> None:
    """What is no seed is an error and never secure."""
    with pytest.raises(ss.InvalidInput):
        stream.open_stream(seed)


def test_research_words_cover_all_64_bits() -> None:
    words = stream.open_stream(3).words(4000)
    assert words.dtype == np.int64
    ones = np.unpackbits(words.view(np.uint8)).reshape(4000, 64).sum(axis=0, dtype=int)
    assert np.all(np.abs(ones - 2000) < 250)
    assert np.array_equal(words[:5], stream.ResearchStream(np.random.default_rng(3)).words(5))


@pytest.mark.parametrize("gamma", [1e-9, 1e-4, 0.1, 0.5, 0.9, 0.9999])
@pytest.mark.parametrize("d", [2, 3, 20, 1000])
def test_the_share_of_a_cap_has_all_its_digits(d: int, gamma: float) -> None:
    share = privunit._cap_share(d, gamma)
    with mpmath.workdps(60):
        height = mpmath.mpf(gamma)
        exact = mpmath.betainc(mpmath.mpf(d - 1) / 2, 0.5, 0, 1 - height**2, regularized=True) / 2
        assert abs(share - exact) < exact * mpmath.mpf("1e-11") + mpmath.mpf("1e-300")
        rest = mpmath.mpf(1) / 2 - exact  # where the cap is nearly half of the sphere
        assert abs(mpmath.mpf(1) / 2 - share - rest) < mpmath.mpf("2e-16") + rest * mpmath.mpf("1e-11")


@pytest.mark.parametrize(("d", "epsilon"), [(2, 0.001), (2, 500.0), (65_536, 1.0)])
def test_ends_asked_privunit(d: int, epsilon: float) -> None:
    """The ends of what may be asked of privunit."""
    maker = PrivUnit.calibrate(d, epsilon)
    assert maker.compute_epsilon() <= epsilon
    assert 0 <= maker.gamma < 1


def test_scores_of_privunit_vary_as_stated() -> None:
    """Between <v, x> = 0 and 1 the variance of a score is linear in its square."""
    maker = PrivUnit.calibrate(16, 5.0)
    ends = maker.score_std([0.0, 1.0])
    assert ends[0] == pytest.approx(maker.std)
    assert ends[1] == pytest.approx(math.sqrt(maker.second_moment / maker.mean**2 - 1))
    assert maker.score_std(0.6) ** 2 == pytest.approx(0.36 * ends[1] ** 2 + 0.64 * ends[0] ** 2)
    assert maker.score_std(np.float32(0.6)).dtype == np.float64
    assert maker.score_std(1) == ends[1]


def test_directions_are_of_length_one_in_truth() -> None:
    with intervals.LOCK:
        intervals.INTERVALS.prec = 100
        found = sphere._unit(np.array([3.0, 4.0]))
        assert [float(entry.mid) for entry in found] == pytest.approx([0.6, 0.8], rel=1e-15)
        assert float(sphere._dot(found, found).mid) == pytest.approx(1.0, rel=1e-15)
        other = sphere._dot(found, [intervals.INTERVALS.mpf(1), intervals.INTERVALS.mpf(2)])
        assert float(other.mid) == pytest.approx(2.2, rel=1e-15)


def test_rows_beyond_one_block_are_released_too() -> None:
    """A block holds 2^20 entries; with d = 64 that is 16,384 rows."""
    maker = PrivUnit.calibrate(64, 60.0)
    rows = np.zeros((16_384 + 5, 64))
    rows[:, 3] = 1.0
    released = maker.release(rows, stream.open_stream(5))
    assert released.shape == rows.shape
    heights = released[:, 3] * maker.mean
    assert heights.min() > -1.01
    assert np.mean(heights >= maker.gamma - 0.01) > 0.99 * maker.p


LABELS = [number // 2 for number in range(40)]
CERTIFICATES = {
    "scores": (
        lambda e, q: ss.release_scores(e, q, epsilon=1, delta=1e-6),
        ["40 similarity scores", "40 records", "the query,"],
    ),
    "batch": (
        lambda e, q: ss.release_scores(e, np.stack([q, -q]), epsilon=1, delta=1e-6),
        ["2 public queries", "40 records", "the query,"],
    ),
    "laplace": (
        lambda e, q: ss.release_scores(e, q, epsilon=1, mechanism="laplace"),
        ["pure 1-differential", "Laplace noise"],
    ),
    "row": (
        lambda e, _: ss.release_row(e, 3, epsilon=1, delta=1e-6),
        ["similarity scores of one record", "the index of the record,"],
    ),
    "gram": (lambda e, _: ss.release_gram(e, epsilon=1, delta=1e-6), ["40 records", "780 pairwise", "[-1, 1]"]),
    "centroids": (
        lambda e, _: ss.release_gram(e, epsilon=1, delta=1e-6, adjacency=ss.Identity(LABELS, centroids=True)),
        ["20 identities", "190 pairwise"],
    ),
    "index": (
        lambda e, _: ss.release_index(e, epsilon=20, components=4, reduction="random"),
        ["40 vectors of 4 dimensions", "the projection,"],
    ),
    "paid index": (
        lambda e, _: ss.release_index(e, epsilon=20, delta=1e-6, components=4, reduction="pca", mechanism="gaussian"),
        ["40 vectors of 4 dimensions", "and the covariance"],
    ),
}


@pytest.mark.parametrize("name", CERTIFICATES)
def test_a_certificate_states_what_was_released(name: str, collection: np.ndarray, query: np.ndarray) -> None:
    make, facts = CERTIFICATES[name]
    guarantee = make(collection, query).guarantee
    text = " ".join(str(guarantee).split())
    for fact in facts:
        assert fact in text
    assert f"multiple of {guarantee.grid:g} (2^{round(math.log2(guarantee.grid))})" in text
    assert ("the projection," in text) == (name == "index")
    assert ("clamped" in text) == ("index" not in name)
    assert ("WARNING" in text) == (name == "index")  # PrivUnit at epsilon 20
    assert ("real-valued Gaussian" in text) == (guarantee.mechanism == "gaussian")
    assert f"{math.ceil(1e4 * guarantee.attack_auc) / 1e4:.4f}" in text
    assert f"{math.ceil(1e4 * guarantee.attack_advantage) / 1e4:.4f}" in text
    assert f"{math.ceil(1e4 * guarantee.tpr_at(0.01)) / 1e2:.2f} %" in text
    assert all(len(line) <= 79 for line in str(guarantee).splitlines())
    assert ("adds at most delta" in text) == (guarantee.delta > 0)
    if guarantee.noise is not None:
        assert f"{guarantee.noise.std:.6g} on each entry" in text


def test_a_certificate_rounds_its_promise_up(collection: np.ndarray, query: np.ndarray) -> None:
    text = str(ss.release_scores(collection, query, epsilon=1.23456789, delta=1.23456789e-6).guarantee)
    assert "(1.23457, 1.23457e-06)" in text
    text = str(ss.release_scores(collection, query, epsilon=1.2345611, delta=1.2345611e-6).guarantee)
    assert "(1.23457, 1.23457e-06)" in text


def test_certificate_published_rule_not_say(collection: np.ndarray, query: np.ndarray) -> None:
    """A certificate of a published rule does not say that it was checked."""
    contract = {"epsilon": 100, "delta": 1e-4, "calibration": "classical", "unsafe_reproduce_paper": True}
    text = " ".join(str(ss.release_scores(collection, query, **contract).guarantee).split())
    assert "calibration as published" in text
    assert "checked numerically" not in text
    assert text.count("WARNING") == 2  # also for its true privacy, which hides practically nothing
    seeded = " ".join(str(ss.release_scores(collection, query, **contract, rng=1).guarantee).split())
    assert seeded.count("WARNING") == 3
    assert "AES" not in seeded


def test_record_behind_gram_radius_pays_rounding() -> None:
    """In 50 digits: its 2 (n - 1) entries move by the whole range and by one step more each."""
    rows = np.random.default_rng(2).standard_normal((9, 4))
    for score_range in ((-1.0, 1.0), (-0.25, 0.5)):
        guarantee = ss.release_gram(
            rows,
            epsilon=1.0,
            delta=1e-6,
            adjacency=ss.GramRadius(0.5),
            score_range=score_range,
            projection="none",
            rng=1,
        ).guarantee
        profile = guarantee.record_profile()
        assert isinstance(profile, GaussianProfile)
        with mpmath.workdps(50):
            width = mpmath.mpf(score_range[1]) - mpmath.mpf(score_range[0])
            moved = (width + mpmath.mpf(guarantee.grid)) * mpmath.sqrt(2 * (len(rows) - 1))
            assert moved / mpmath.mpf(guarantee.scale) <= profile.mu
            assert profile.mu <= moved / mpmath.mpf(guarantee.scale) * (1 + mpmath.mpf(10) ** -5)


def test_certificate_centroid_says_identity(collection: np.ndarray) -> None:
    """A certificate of a centroid says identity."""
    central = ss.Identity(LABELS, centroids=True)
    text = " ".join(str(ss.release_row(collection, 3, epsilon=1, delta=1e-6, adjacency=central).guarantee).split())
    assert "20 similarity scores of one identity, at a public index, with all identities" in text


def test_a_certificate_of_a_pure_release(collection: np.ndarray, query: np.ndarray) -> None:
    table = ss.release_scores(collection, query, epsilon=1, mechanism="optimal").guarantee
    text = " ".join(str(table).split())
    assert f"Root mean squared error at most {table.noise.std:.6g}, at the worst level. Score levels: 41." in text
    assert "Exact: all draws have exactly the stated law, from an AES-256 stream" in text
    assert "on each entry" not in text
    refined = ss.release_matches(collection, query, 0.25, epsilon=2, refine=0.5, score_range=(-0.5, 0.75)).guarantee
    text = " ".join(str(refined).split())
    assert "Threshold: 0.25. Epsilon of the screening: 1. Epsilon of the released scores: 1." in text
    assert "[-0.5, 0.75]. Those behind released scores: to [0.25, 0.75]." in text
    assert "What is taken as public: the query, the threshold, the number" in text
    counts = " ".join(str(ss.release_histogram(collection, query, epsilon=1, bins=7).guarantee).split())
    assert "a histogram of similarity scores in 7 bins" in counts
    assert "Scores: 40. Scores outside the bins are counted at the ends." in counts
    whole = " ".join(str(ss.release_index(collection, epsilon=9).guarantee).split())
    assert "What is taken as public: the number, order and dimension of the records, and any label." in whole


def test_a_radius_at_the_border_covers_a_record(narrow: ss.Guarantee) -> None:
    least = math.sqrt(2 * 39)
    assert replace(narrow, sensitivity=least).covers_record_replacement
    assert not replace(narrow, sensitivity=math.nextafter(least, 0)).covers_record_replacement
    assert replace(narrow, sensitivity=1e-9, adjacency=ss.Replacement()).covers_record_replacement


def written(guarantee: ss.Guarantee) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(guarantee.to_dict()))
    return found


def test_each_field_is_written_and_read(collection: np.ndarray, query: np.ndarray) -> None:
    """Also what is missing from most: a claim, details, no noise, no delta."""
    paper = {"epsilon": 100, "delta": 1e-4, "calibration": "classical", "unsafe_reproduce_paper": True}
    for release in (
        ss.release_scores(collection, query, **paper),
        ss.release_scores(collection, query, epsilon=1, mechanism="laplace", score_range=(-0.5, 0.5)),
        ss.release_matches(collection, query, 0.1, epsilon=3),
        ss.release_top_k(collection, query, 3, epsilon=3, rng=1),
        ss.release_gram(collection, epsilon=1, delta=1e-6, adjacency=ss.GramRadius(0.5), projection="none"),
    ):
        guarantee = release.guarantee
        data = written(guarantee)
        assert ss.Guarantee.from_dict(data) == guarantee
        assert set(data) == {field.name for field in fields(guarantee)} - {"provenance"} | {"attack"}
        for name in ("epsilon", "delta", "mechanism", "calibration", "regime", "sensitivity", "grid_sensitivity"):
            assert data[name] == getattr(guarantee, name)
        for name in ("scale", "grid", "sampler", "details"):
            assert data[name] == getattr(guarantee, name)
        assert data["shape"] == list(guarantee.shape)
        assert data["score_range"] == list(guarantee.score_range)
        assert data["claimed"] == (None if guarantee.claimed is None else [100, 1e-4])
        assert (data["noise"] is None) == (guarantee.noise is None)
        assert data["profile"] == guarantee.profile.to_dict()
        assert data["adjacency"] == guarantee.adjacency.to_dict()


def test_what_cannot_be_checked_is_rejected(collection: np.ndarray, query: np.ndarray) -> None:
    data = written(ss.release_matches(collection, query, 0.1, epsilon=3).guarantee)
    assert ss.Guarantee.from_dict(data)
    for details in ({}, {**data["details"], "threshold": "0.1"}, {**data["details"], "screening_epsilon": None}):
        with pytest.raises(ss.InvalidInput, match="contradicts itself"):
            ss.Guarantee.from_dict({**data, "details": details})


def test_curves_of_earlier_versions() -> None:
    """Only beside the noise of a covariance is a delta of 0 raised to the least one."""
    curve = CurveProfile((0.0, 1.0, 2.0), (0.5, 0.25, 0.0))
    data = {"profile": curve.to_dict(), "details": {"reduction": "pca"}}
    raised = CurveProfile((0.0, 1.0, 2.0), (0.5, 0.25, 5e-324))
    assert guarantees._profile_from_dict(data) == raised
    for details in ({"reduction": "random"}, {"reduction": "none"}, {}):
        assert guarantees._profile_from_dict({**data, "details": details}) == curve
    pure = {"profile": PureProfile(1.0).to_dict(), "details": {"reduction": "pca"}}
    assert guarantees._profile_from_dict(pure) == PureProfile(1.0)
