"""One-bit tables, thinned tables and tables of many levels: their law, their privacy and what they are worth."""

from __future__ import annotations

import json
import math
import sys
import threading
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.special import ndtr, ndtri
from scipy.stats import norm

import scoreshield as ss
from scoreshield.privacy.calibration import find_mu
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.levels.bits import compute_gaussian_power
from scoreshield.privacy.profiles import CurveProfile, GaussianProfile

WHOLE = 2**62
IMPOSTOR = np.random.default_rng(1).normal(0.0, 0.2, 2_000).clip(-1, 1)
GENUINE = np.random.default_rng(2).normal(0.6, 0.15, 1_000).clip(-1, 1)
ROWS = np.random.default_rng(3).standard_normal((50, 8))
QUERY = ROWS[0]


def least_ratio(epsilon: float) -> Fraction:
    """A rational number above e^epsilon by less than a millionth of a millionth."""
    with mpmath.workdps(60):
        power = mpmath.exp(mpmath.mpf(epsilon)) * mpmath.mpf(2) ** 100
        return Fraction(int(mpmath.floor(power)) + 1, 2**100)


def is_private(table: ss.LevelChannel) -> bool:
    ratio, rows = least_ratio(table.epsilon), [[int(weight) for weight in row] for row in table.weights]
    worst = max(sum(max(Fraction(0), p - ratio * q) for p, q in zip(a, b, strict=True)) for a in rows for b in rows)
    return worst <= Fraction(table.delta) * WHOLE


# The accept bit


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 5.0, 9.0])
@pytest.mark.parametrize("rate", [0.002, 0.01, 0.2])
def test_the_accept_bit_is_the_best_of_all_tables(epsilon: float, rate: float) -> None:
    """Against a linear program in (a, b) for every threshold."""
    impostor, genuine = IMPOSTOR[:600], GENUINE[:300]
    best = 0.0
    for threshold in np.unique(impostor):
        u = ((impostor > threshold).sum() + 0.5) / 600.5
        v = (genuine > threshold).mean()
        grows = math.exp(epsilon)
        found = linprog(
            [-(1 - v), -v],
            A_ub=[[1 - u, u], [-1.0, 1 / grows], [-1 / grows, 1.0]],
            b_ub=[rate, 0.0, 1 - 1 / grows],
            bounds=[(0, 1), (0, 1)],
        )
        best = max(best, -found.fun)
    bit = ss.accept_bit(epsilon, impostor=impostor, genuine=genuine, false_match_rate=rate)
    assert bit.true_match_rate == pytest.approx(best, rel=1e-7)
    assert bit.false_match_rate <= rate * (1 + 1e-9)
    assert is_private(bit.table)
    assert bit.threshold == bit.table.cuts[0]


def test_the_bit_accepts_at_its_rates() -> None:
    """Through a release of scores, on records of known levels; false alarms below one in a million."""
    bit = ss.accept_bit(3, impostor=IMPOSTOR, genuine=GENUINE, false_match_rate=0.01)
    angle = np.concatenate([np.full(20_000, 0.1), np.full(20_000, 0.9)])
    rows = np.stack([angle, np.sqrt(1 - angle**2)], axis=1)
    release = ss.release_scores(rows, np.array([1.0, 0.0]), epsilon=3, mechanism=bit.table, rng=4)
    accepted = release.noisy > bit.threshold
    for level, side in ((0, accepted[:20_000]), (1, accepted[20_000:])):
        chance = float(bit.table.probabilities[level, 1])
        error = 5 * math.sqrt(chance * (1 - chance) / 20_000)
        assert abs(side.mean() - chance) < error
        assert abs(side.mean() - (1.8 if level == 0 else 0.8) * chance) > error  # a near miss
    assert release.guarantee.epsilon == 3
    assert release.guarantee.delta == 0


def test_symmetric_bits() -> None:
    """Randomised response at the lowest threshold that keeps the rate; also the choice without genuine scores."""
    bit = ss.accept_bit(6, impostor=IMPOSTOR, false_match_rate=0.01, symmetric=True)
    assert bit.table == ss.randomised_response(6, [bit.threshold])
    assert bit.table == ss.accept_bit(6, impostor=IMPOSTOR, false_match_rate=0.01).table
    lower = np.sort(IMPOSTOR)[np.searchsorted(np.sort(IMPOSTOR), bit.threshold) - 1]
    chance = 1 / (1 + math.exp(6))
    shares = [((threshold < IMPOSTOR).sum() + 0.5) / 2000.5 for threshold in (bit.threshold, lower)]
    kept, missed = (chance + (1 - 2 * chance) * share for share in shares)
    assert kept <= 0.01 < missed
    with pytest.raises(ss.InvalidInput, match=r"symmetric table accepts 1\.8 % of impostors by chance at epsilon 4"):
        ss.accept_bit(4, impostor=IMPOSTOR, false_match_rate=0.01, symmetric=True)


def test_a_bit_without_genuine_scores() -> None:
    """Where chance exceeds the rate: the lowest threshold with 95 % of the largest chance above it."""
    bit = ss.accept_bit(4, impostor=IMPOSTOR, false_match_rate=0.01)
    below, above = bit.table.probabilities[:, 1]
    assert above == pytest.approx(math.exp(4) * below)
    most = math.exp(4) * 0.01 / (1 + math.expm1(4) * 0.5 / 2000.5)
    assert 0.95 * most <= above < 0.98 * most
    assert math.isnan(bit.true_match_rate)


def test_a_bit_from_distributions() -> None:
    exact = ss.accept_bit(
        5,
        impostor=ss.decisions.Distribution(norm(0, 0.2)),
        genuine=ss.decisions.Distribution(norm(0.6, 0.15)),
        false_match_rate=0.01,
    )
    sample = ss.accept_bit(5, impostor=ss.decisions.Sample(IMPOSTOR), genuine=GENUINE, false_match_rate=0.01)
    assert sample == ss.accept_bit(5, impostor=IMPOSTOR, genuine=GENUINE, false_match_rate=0.01)
    assert exact.true_match_rate == pytest.approx(sample.true_match_rate, abs=0.08)
    assert exact.threshold == pytest.approx(sample.threshold, abs=0.05)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"impostor": IMPOSTOR[:50]}, "50 impostor scores cannot show a false-match rate of 0.01: give at least 100"),
        ({"impostor": [0.1, math.nan]}, "'impostor'"),
        ({"genuine": [[0.1]]}, "'genuine'"),
        ({"false_match_rate": 0}, "'false_match_rate'"),
        ({"false_match_rate": 1.0}, "'false_match_rate'"),
        ({"epsilon": 0}, "'epsilon'"),
        ({"score_range": (0.5, 0.5)}, "'score_range'"),
        ({"symmetric": 1}, "'symmetric'"),
    ],
)
def test_bad_bits(change: dict[str, Any], match: str) -> None:
    options: dict[str, Any] = {"epsilon": 5, "impostor": IMPOSTOR, "false_match_rate": 0.01, **change}
    with pytest.raises(ss.InvalidInput, match=match):
        ss.accept_bit(options.pop("epsilon"), **options)


def test_a_bit_at_the_ends() -> None:
    """A score at the end of the range, equal scores, and a large epsilon."""
    for scores in (np.full(200, 1.0), np.full(200, -1.0), np.zeros(200)):
        bit = ss.accept_bit(3, impostor=scores, false_match_rate=0.05)
        assert bit.false_match_rate <= 0.05 * (1 + 1e-9)
        assert is_private(bit.table)
    assert ss.accept_bit(500, impostor=IMPOSTOR, genuine=GENUINE, false_match_rate=0.05).true_match_rate > 0.95


@pytest.mark.parametrize("with_genuine", [True, False])
def test_the_rate_is_kept_where_a_chance_is_below_a_unit(with_genuine: bool) -> None:
    """From epsilon 41 on, e^epsilon times one unit of 2^-62 is more than the rate allows above the threshold."""
    rng = np.random.default_rng(7)
    for epsilon in np.concatenate([rng.uniform(30, 100, 60), [41.0, 50.85, 64.0, 700.0, 746.0, 1e4, 1e9]]):
        size, rate = int(rng.integers(50, 500)), float(10 ** rng.uniform(-1.5, -0.3))
        impostor, genuine = rng.uniform(-1, 1, size), rng.uniform(-1, 1, 20)
        bit = ss.accept_bit(
            float(epsilon), impostor=impostor, genuine=genuine if with_genuine else None, false_match_rate=rate
        )
        a, b = (Fraction(int(weight), WHOLE) for weight in bit.table.weights[:, 1])
        share = Fraction(2 * int((impostor > bit.threshold).sum()) + 1, 2 * size + 1)
        assert a + (b - a) * share <= Fraction(rate) * (1 + Fraction(1, 10**9))
        assert bit.false_match_rate == pytest.approx(float(a + (b - a) * share), rel=1e-9)
        # At such an epsilon all of the rate is used.
        if with_genuine:
            assert bit.false_match_rate > 0.5 * rate


def test_a_rate_below_a_unit_raises_an_error() -> None:
    everything = ss.decisions.Distribution(norm(-0.9, 0.001))
    with pytest.raises(ss.InvalidInput, match=r"2\^-62nds accepts 2.17e-17 % of impostors, above the false-match rate"):
        ss.accept_bit(30, impostor=everything, false_match_rate=1e-20)


# Bits on the trade-off curve of a Gaussian


def test_threads_do_not_share_a_precision() -> None:
    """The precision of mpmath is the caller's: it stays as it was, and threads do not change each other's."""
    expected = [ss.gaussian_bit(5.0, 1e-6, 0.2, false_share=(7 + i) / 5183) for i in range(10)]
    found: list[bool] = []

    def work() -> None:
        tables = [ss.gaussian_bit(5.0, 1e-6, 0.2, false_share=(7 + i) / 5183) for i in range(10)]
        found.append(tables == expected)

    interval, digits = sys.getswitchinterval(), mpmath.mp.dps
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert mpmath.mp.dps == digits
    finally:
        sys.setswitchinterval(interval)
        mpmath.mp.dps = digits
    assert found == [True] * 6


def test_no_call_changes_the_precision_of_mpmath(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpmath, "workdps", None)
    monkeypatch.setattr(mpmath, "erfinv", None)
    assert ss.gaussian_bit(5.0, 1e-6, 0.2, false_share=0.01).epsilon < 5


def test_the_least_epsilon_of_a_bit() -> None:
    """A table that needs less than the least epsilon states the least one."""
    table = ss.gaussian_bit(1e-9, 1e-12, 0.2, false_share=0.3)
    assert table.epsilon == 1e-9
    assert is_private(table)


@pytest.mark.parametrize(("epsilon", "delta"), [(20.0, 1e-6), (5.0, 1e-6), (1.0, 1e-2), (0.1, 1e-9)])
@pytest.mark.parametrize("share", [1e-9, 7 / 5183, 0.2, 0.9])
def test_no_test_does_better_than_against_the_gaussian(epsilon: float, delta: float, share: float) -> None:
    """The profile is nowhere above the Gaussian one, and touches it; a millionth more power would exceed it."""
    table = ss.gaussian_bit(epsilon, delta, 0.4, false_share=share)
    mu = find_mu(epsilon, delta)
    wide = GaussianProfile(mu)
    assert is_private(table)
    assert (table.epsilon, table.delta) <= (epsilon, delta)
    assert table.epsilon <= epsilon
    a, b = (Fraction(int(weight), WHOLE) for weight in table.weights[:, 1])
    assert float(b) == pytest.approx(float(ndtr(ndtri(share) + mu)), rel=1e-6)
    for loss in np.linspace(0, 12, 121):
        grows = math.exp(loss)
        excess = max(float(b) - grows * float(a), (1 - float(a)) - grows * (1 - float(b)))
        assert excess <= wide.delta_at(float(loss)) + 1e-12
        assert table.profile().delta_at(float(loss)) >= excess - 1e-13
    # The best test at this false-positive rate: a table with more power would beat it.
    assert float(b) <= ndtr(ndtri(float(a)) + mu) * (1 + 1e-12) < float(b) * (1 + 1e-6)


def test_the_power_of_the_best_gaussian_test() -> None:
    """Rounded down, by less than one in 2^45, against numerical integration in 40 digits."""
    for first, mu in ((2**50, 3.0), (2**61, 0.5), (7 * WHOLE // 5183, 3.2), (1, 5.0)):
        with mpmath.workdps(40):
            place = mpmath.findroot(
                lambda x, p=first: mpmath.ncdf(x) - mpmath.mpf(p) / WHOLE, float(ndtri(first / WHOLE))
            )
            power = mpmath.quad(mpmath.npdf, [-mpmath.inf, -8, place + mu])
            found = mpmath.mpf(compute_gaussian_power(first, mu)) / WHOLE
            assert power * (1 - mpmath.mpf(2) ** -45) - mpmath.mpf(2) ** -60 < found < power


def test_a_bit_that_needs_its_delta() -> None:
    """Where a share is so small that the ratio exceeds e^epsilon, the table states the pair."""
    table = ss.gaussian_bit(0.5, 1e-3, 0.4, false_share=1e-7)
    assert (table.epsilon, table.delta) == (0.5, 1e-3)
    assert isinstance(table.profile(), CurveProfile)
    a, b = table.probabilities[:, 1]
    assert b > math.exp(0.5) * a
    assert table.profile().delta_at(0.5) == pytest.approx(b - math.exp(0.5) * a, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"delta": 0.0}, "'delta'"),
        ({"threshold": 1.0}, "'threshold'"),
        ({"threshold": math.nan}, "'threshold'"),
        ({"threshold": -1}, r"'threshold' parameter of gaussian_bit must be inside \(-1, 1\)"),
        ({"threshold": 1 - 2.0**-45}, "'threshold'"),
        ({"threshold": "0.4"}, "'threshold'"),
        ({"false_share": 0.0}, "'false_share'"),
        ({"false_share": 1.0}, "'false_share'"),
        ({"false_share": 1 - 2.0**-53, "epsilon": 1e-6}, "'false_share'"),
    ],
)
def test_bad_gaussian_bits(change: dict[str, Any], match: str) -> None:
    options = {"epsilon": 20.0, "delta": 1e-6, "threshold": 0.4, "false_share": 0.01, **change}
    with pytest.raises(ss.InvalidInput, match=match):
        ss.gaussian_bit(options.pop("epsilon"), options.pop("delta"), options.pop("threshold"), **options)


# Thinned tables


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 8.0, 30.0])
@pytest.mark.parametrize("share", [1e-6, 0.3, 0.999])
def test_a_thinned_table_is_the_mixture(epsilon: float, share: float) -> None:
    whole = ss.randomised_response(epsilon, [0.1, 0.3, 0.5])
    table = whole.thin(share)
    mixture = share * whole.probabilities
    mixture[:, 0] += 1 - share
    assert np.abs(table.probabilities - mixture).max() < 1e-15
    assert np.abs(table.probabilities - mixture)[:, 1:].max() < 1e-6 * mixture[:, 1:].max()
    assert is_private(table)
    assert table.epsilon == epsilon
    assert table.profile().advantage == pytest.approx(share * whole.profile().advantage, rel=1e-9)
    assert share <= table.share <= share * (1 + 1e-9) + 1e-15
    again = table.thin(0.5)
    assert again.share == pytest.approx(share / 2, rel=1e-9)
    assert ss.LevelChannel.from_dict(again.to_dict()) == again


def test_a_thinned_optimal_table() -> None:
    whole = ss.optimal_channel(2.0, levels=9)
    table = whole.thin(0.25)
    assert is_private(table)
    assert table.profile().advantage == pytest.approx(whole.profile().advantage / 4, rel=1e-6)
    with pytest.raises(ss.InvalidInput, match="Only a pure table"):
        ss.optimal_channel(2.0, 1e-3, levels=5).thin(0.5)


@pytest.mark.parametrize("advantage", [1e-4, 0.05, 0.5, 0.9])
def test_the_share_follows_the_advantage(advantage: float) -> None:
    table = ss.thinned_response(8, [0.3, 0.4, 0.5], advantage=advantage)
    assert advantage * (1 - 1e-9) < table.profile().advantage <= advantage
    # The profile is exact: the chance of a level above the lowest, and that of another record's.
    own, other = table.probabilities[1, 1], table.probabilities[0, 1]
    for loss in (0.0, 2.0, 7.9):
        assert table.profile().delta_at(loss) == pytest.approx(own - math.exp(loss) * other, rel=1e-9)


def test_a_table_within_the_advantage_is_not_thinned() -> None:
    assert ss.thinned_response(1, [0.3], advantage=0.5) == ss.randomised_response(1, [0.3])
    for advantage in (0.0, 1.0, math.nan, -0.5):
        with pytest.raises(ss.InvalidInput, match="'advantage'"):
            ss.thinned_response(8, [0.3], advantage=advantage)
    with pytest.raises(ss.InvalidInput, match="'share'"):
        ss.randomised_response(1, [0.3]).thin(1.0)


def test_a_stated_share_is_verified() -> None:
    """A table cannot state that it answers for fewer records than it does."""
    table = ss.thinned_response(8, [0.3], advantage=0.5)
    with pytest.raises(ss.InvalidInput, match="'share'"):
        replace(table, share=table.share * 0.999)
    with pytest.raises(ss.InvalidInput, match="'share'"):
        ss.LevelChannel.from_dict(table.to_dict() | {"share": 0.4})
    with pytest.raises(ss.InvalidInput, match="'share'"):
        replace(ss.randomised_response(8, [0.3]), share=0.9)


SHARED = [
    (ss.thinned_response(1.0, [0.0], advantage=0.2), "pure"),
    (ss.thinned_response(1.0, [0.0, 0.3], advantage=0.2), "pure"),
    (ss.thinned_response(30.0, [0.0, 0.3, 0.5], advantage=1e-3), "pure"),
    (ss.randomised_response(1.0, [0.0]), "pure"),
    (ss.optimal_channel(2.0, levels=9).thin(0.25).thin(0.5), "pure"),
    (ss.gaussian_bit(0.5, 1e-3, 0.4, false_share=1e-7), "delta"),
    (ss.optimal_channel(1.0, 1e-3, levels=5), "delta"),
]


def rest_is_private(table: ss.LevelChannel, share: float) -> bool:
    """Whether the records that are answered for have an epsilon-private table."""
    ratio, removed = least_ratio(table.epsilon), (1 - Fraction(share)) * WHOLE
    rows = [
        [Fraction(int(weight)) - (removed if j == 0 else 0) for j, weight in enumerate(row)] for row in table.weights
    ]
    return all(min(column) >= 0 and max(column) <= ratio * min(column) for column in zip(*rows, strict=True))


@pytest.mark.parametrize(("table", "kind"), SHARED)
def test_the_records_that_are_answered_for_are_private(tmp_path: Path, table: ss.LevelChannel, kind: str) -> None:
    """A file cannot state a share for which the rest of the table, without the lowest output, is not private."""
    least = 1 - float(table.probabilities[:, 0].min())
    forged = [share for share in (least + 1e-15, (least + table.share) / 2, table.share * (1 - 1e-12)) if share < 1]
    if kind == "pure":
        assert rest_is_private(table, table.share)
        # An optimal table may have room in its lowest column; then a smaller share is true.
        forged = [share for share in forged if not rest_is_private(table, share)]
    release = ss.release_scores(ROWS, QUERY, epsilon=table.epsilon, delta=table.delta, mechanism=table, rng=1)
    path = tmp_path / "scores.npz"
    release.save(path)
    assert ss.load(path).guarantee == release.guarantee
    with np.load(path) as file:
        parts = dict(file)
    meta = json.loads(str(parts.pop("meta")))
    assert forged
    for share in forged:
        with pytest.raises(ss.InvalidInput, match="'share'"):
            replace(table, share=share)
        meta["guarantee"]["details"]["share"] = meta["guarantee"]["noise"]["share"] = share
        np.savez(path, meta=np.array(json.dumps(meta)), **parts)
        with pytest.raises(ss.InvalidInput, match="'share'"):
            ss.load(path)


def test_a_share_is_printed_rounded_up() -> None:
    table = ss.thinned_response(8, [0.3, 0.4], advantage=0.33333333)
    text = " ".join(str(ss.release_scores(ROWS, QUERY, epsilon=8, mechanism=table, rng=1).guarantee).split())
    printed = float(text.split("A share of ")[1].split()[0])
    assert table.share <= printed < table.share + 1e-5
    assert "Share:" not in text


def test_a_thinned_release(tmp_path: Path) -> None:
    """Certificate, file, and edited guarantees."""
    table = ss.thinned_response(8, [0.3, 0.4], advantage=0.5)
    release = ss.release_scores(ROWS, QUERY, epsilon=8, mechanism=table, rng=1)
    guarantee = release.guarantee
    text = " ".join(str(guarantee).split())
    shown = f"{math.ceil(table.share * 1e6) / 1e6:g}"
    assert f"A share of {shown} of the records is answered for, each exposed as under epsilon 8;" in text
    assert guarantee.attack_advantage <= 0.5
    release.save(tmp_path / "scores.npz")
    assert ss.load(tmp_path / "scores.npz").guarantee == guarantee
    data = guarantee.to_dict()
    assert Guarantee.from_dict(data) == guarantee
    for details in ({"levels": 3}, {"levels": 3, "share": 0.4}, {"levels": 3, "share": 1.0}):
        with pytest.raises(ss.InvalidInput, match="contradicts itself"):
            Guarantee.from_dict(data | {"details": details})
    with pytest.raises(ss.InvalidInput, match="contradicts itself"):
        Guarantee.from_dict(data | {"profile": {"kind": "step", "epsilon": 8.0, "mass": 0.4}})


# Many levels


@pytest.mark.parametrize("epsilon", [0.01, 12.0, 30.0, 45.0, 200.0])
def test_forty_levels(epsilon: float) -> None:
    table = ss.randomised_response(epsilon, 0.30 + 0.0125 * np.arange(39))
    assert table.weights.shape == (40, 40)
    assert is_private(table) or epsilon > 64  # beyond e^64 no two weights differ that much
    share = 1 / (1 + 39 * math.exp(-epsilon))
    assert table.probabilities.diagonal() == pytest.approx(share, rel=1e-12)
    assert table.profile().advantage == pytest.approx(share - (1 - share) / 39, rel=1e-9)
