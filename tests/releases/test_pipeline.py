"""What every release shares, in small pieces: the contract, the collection, the noise, and the order of payment."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.privacy import calibration
from scoreshield.privacy.adjacency import Sensitivity
from scoreshield.privacy.guarantee import ReleaseFacts
from scoreshield.privacy.noise import GaussianNoise, LaplaceNoise, StaircaseNoise, choose_grid_step
from scoreshield.privacy.profiles import GaussianProfile
from scoreshield.privacy.sampling.stream import ResearchStream, SecureStream, identify_process
from scoreshield.releases import pipeline
from scoreshield.releases.pipeline import (
    PendingRelease,
    PrivacyRequest,
    PrivateCollection,
    check_account,
    count_steps,
    draw_tie_break,
    release_all,
    reserve,
)

GIVEN: dict[str, Any] = {
    "epsilon": 1.0,
    "delta": 1e-6,
    "mechanism": "gaussian",
    "calibration": "analytic",
    "score_range": (-1.0, 1.0),
}
ONE = Sensitivity(2.0, 2.0, 1)
FACTS = ReleaseFacts(ss.Replacement(), "scores", (5,), (-1.0, 1.0), "exact")


def contract(**changes: Any) -> PrivacyRequest:
    return PrivacyRequest(**{**GIVEN, **changes})


def pure(mechanism: str, **changes: Any) -> PrivacyRequest:
    return contract(mechanism=mechanism, delta=0.0, **changes)


class TestContract:
    def test_fields(self) -> None:
        assert contract() == PrivacyRequest(1.0, 1e-6, "gaussian", "analytic", (-1.0, 1.0), False)
        assert pure("laplace") == PrivacyRequest(1.0, 0.0, "laplace", "analytic", (-1.0, 1.0), False)
        unsafe = contract(calibration="classical", unsafe=True, score_range=(0.0, 0.5), epsilon=3.0)
        assert unsafe == PrivacyRequest(3.0, 1e-6, "gaussian", "classical", (0.0, 0.5), True)
        assert unsafe.width == 0.5

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"delta": 0}, "above 0 for Gaussian noise"),
            ({"mechanism": "laplace"}, "private without it"),
            ({"mechanism": "staircase"}, "private without it"),
            ({"mechanism": "laplace", "delta": 0, "calibration": "classical"}, "rules are for Gaussian noise"),
            ({"mechanism": "staircase", "delta": 0, "unsafe": True}, "rules are for Gaussian noise"),
        ],
    )
    def test_errors(self, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(ss.InvalidInput) as caught:
            contract(**changes)
        assert words in str(caught.value)

    def test_many_entries(self) -> None:
        contract().require_gaussian("a Gram matrix")
        for mechanism in ("laplace", "staircase"):
            with pytest.raises(ss.InvalidInput, match="moves many entries of a Gram matrix"):
                pure(mechanism).require_gaussian("a Gram matrix")


class TestNoise:
    def test_gaussian(self) -> None:
        """Calibrated for the sensitivity on the grid, where each entry that moves may move by one step more."""
        sensitivity = Sensitivity(2.0, 6.0, 9)
        noise = contract().calibrate(sensitivity)
        step = choose_grid_step(calibration.calibrate(1.0, 1e-6, 2.0))
        on_grid = 2.0 + 3 * step
        scale = calibration.calibrate(1.0, 1e-6, on_grid)
        assert (noise.sensitivity, noise.grid_sensitivity, noise.scale, noise.step) == (2.0, on_grid, scale, step)
        assert noise.law == GaussianNoise(scale * (1 + 2**-50))
        assert noise.profile == GaussianProfile(on_grid / scale)
        assert noise == contract().calibrate(sensitivity, entries_per_draw=1)

    @pytest.mark.parametrize("entries", [*range(1, 60), 1000, 4097])
    def test_several_draws_are_as_much_as_one(self, entries: int) -> None:
        """So many draws, added up, have the variance that was calibrated: not less, and hardly more."""
        noise = contract().calibrate(ONE, entries_per_draw=entries)
        assert isinstance(noise.law, GaussianNoise)
        total = entries * Fraction(noise.law.std) ** 2 / Fraction(noise.scale) ** 2
        assert 1 <= total < 1 + Fraction(1, 2**48)
        assert noise.step == choose_grid_step(calibration.calibrate(1.0, 1e-6, 2.0) / math.sqrt(entries))

    @pytest.mark.parametrize(("mechanism", "law"), [("laplace", LaplaceNoise), ("staircase", StaircaseNoise)])
    @pytest.mark.parametrize("score_range", [(-1.0, 1.0), (0.0, 1 / 3), (-0.1, 0.7)])
    def test_pure(self, mechanism: str, law: Any, score_range: tuple[float, float]) -> None:
        """For a width of whole steps, and of as many as two scores can be apart."""
        low, high = score_range
        noise = pure(mechanism, epsilon=0.7, score_range=score_range).calibrate(Sensitivity(0.25, 0.25, 1))
        step = choose_grid_step(law.calibrate(0.7, high - low).std)
        width = count_steps(low, high, step) * step
        expected = law.calibrate(0.7, width, step)
        assert (noise.sensitivity, noise.grid_sensitivity, noise.step) == (0.25, width, step)
        assert (noise.law, noise.scale, noise.profile) == (expected, expected.scale, expected.profile(width))
        assert width >= high - low
        with pytest.raises(ss.InvalidInput, match="here 2 entries move"):
            pure(mechanism).calibrate(Sensitivity(1.0, 2.0, 2))

    def test_rules(self) -> None:
        """A textbook rule is used beyond where it is true only in the mode that says so."""
        for rule in ("classical", "conservative"):
            safe = contract(calibration=rule)
            unsafe = contract(calibration=rule, unsafe=True)
            textbook = 2.0 / calibration.compute_rule_mu(1.0, 1e-6, rule)
            assert safe._scale(2.0) == calibration.calibrate(1.0, 1e-6, 2.0, rule)
            assert unsafe._scale(2.0) == textbook
            assert safe._scale(2.0) == pytest.approx(textbook, rel=1e-9)
        assert contract(unsafe=True)._scale(2.0) == contract()._scale(2.0) == calibration.calibrate(1.0, 1e-6, 2.0)
        with pytest.raises(ss.InvalidCalibration):
            contract(calibration="classical", epsilon=30.0)._scale(2.0)

    def test_steps(self) -> None:
        assert count_steps(0.0, 1.0, 0.25) == 4
        assert count_steps(-1.0, 1.0, 0.25) == 8
        assert count_steps(0.0, 1.0, 0.4) == 3, "no fewer than the range is wide"
        assert count_steps(0.5, 1.5, 1.0) == 2, "both ends are rounded to even"
        assert count_steps(0.25, 0.75, 0.5) == 2
        assert count_steps(2.25, 3.0, 0.5) == 2
        for low, high, step in ((0.1, 0.3, 1.0), (-0.4, 0.4, 1.0), (0.6, 0.7, 0.5), (-0.7, -0.65, 0.25)):
            with pytest.raises(ss.InvalidInput, match="narrower than one step"):
                count_steps(low, high, step)


class TestGuarantee:
    @pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
    def test_fields(self, mechanism: str) -> None:
        given = contract() if mechanism == "gaussian" else pure(mechanism)
        noise, adjacency = given.calibrate(ONE), ss.Identity([0, 1, 2, 3, 4], centroids=True)
        found = given.state_guarantee(noise, ReleaseFacts(adjacency, "scores", (5,), given.score_range, "exact"))
        assert (found.epsilon, found.delta, found.claimed) == (1.0, given.delta, None)
        assert (found.mechanism, found.calibration) == (mechanism, "analytic" if mechanism == "gaussian" else "pure")
        assert found.adjacency == adjacency.drop_labels()
        assert (found.regime, found.shape, found.score_range) == ("scores", (5,), (-1.0, 1.0))
        assert (found.sensitivity, found.grid_sensitivity) == (noise.sensitivity, noise.grid_sensitivity)
        assert (found.scale, found.grid, found.noise) == (noise.scale, noise.step, noise.law)
        assert (found.profile, found.sampler) == (noise.profile, "exact")

    def test_a_false_claim(self) -> None:
        """Where a rule does not keep what it claims, the guarantee states what is true, and the claim beside it."""
        given = contract(calibration="classical", unsafe=True, epsilon=30.0)
        found = given.state_guarantee(given.calibrate(ONE), FACTS)
        assert found.claimed == (30.0, 1e-6)
        assert found.epsilon == found.profile.epsilon_at(1e-6) > 30.0
        assert found.delta == 1e-6

    def test_a_true_claim(self) -> None:
        given = contract(calibration="classical", unsafe=True, epsilon=0.5)
        found = given.state_guarantee(given.calibrate(ONE), FACTS)
        assert (found.epsilon, found.delta, found.claimed) == (0.5, 1e-6, None)


ROWS = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [1.0, 1.0]])


class TestCollection:
    def test_records(self) -> None:
        for adjacency in (ss.Replacement(), ss.Identity([0, 0, 1, 2])):
            found = PrivateCollection.check(ROWS, adjacency)
            assert (found.adjacency, found.size, found.labels) == (adjacency, 4, None)
            assert found.dimension == 2
            assert found.rows() is found.records
            np.testing.assert_array_equal(found.records, ROWS)

    def test_centroids(self) -> None:
        adjacency = ss.Identity([0, 0, 1, 2], centroids=True)
        found = PrivateCollection.check(ROWS.astype(np.float32), adjacency)
        assert (found.size, found.labels) == (3, adjacency.labels)
        np.testing.assert_array_equal(found.rows(), _embeddings.compute_centroids(found.records, adjacency.labels))  # type: ignore[arg-type]
        bad = PrivateCollection.check(np.array([[np.nan, 0.0]] * 4), adjacency)
        with pytest.raises(ss.InvalidInput, match="; give finite"):
            bad.rows()

    def test_rounding(self) -> None:
        """Of the precision that scores are computed in: that of the rows, or double for centroids."""
        single = ROWS.astype(np.float32)
        bound = _embeddings.bound_rounding_error
        assert PrivateCollection.check(ROWS, ss.Replacement()).rounding == bound(2, np.float64)
        assert PrivateCollection.check(single, ss.Replacement()).rounding == bound(2, np.float32)
        centroids = ss.Identity([0, 0, 1, 2], centroids=True)
        assert PrivateCollection.check(single, centroids).rounding == bound(2, np.float64)

    def test_least(self) -> None:
        assert PrivateCollection.check(ROWS[:1], ss.Replacement()).size == 1
        assert PrivateCollection.check(ROWS[:2], ss.Replacement(), least=2).size == 2
        for rows, adjacency in ((ROWS[:1], ss.Replacement()), (ROWS[:2], ss.Identity([0, 0], centroids=True))):
            with pytest.raises(ss.InvalidInput, match="Give at least two records"):
                PrivateCollection.check(rows, adjacency, least=2)

    @pytest.mark.parametrize(
        ("rows", "adjacency", "words"),
        [
            (ROWS, "replacement", "'adjacency' parameter must"),
            (ROWS[0], ss.Replacement(), "'embeddings' parameter must"),
            (ROWS, ss.Identity([0, 0, 1, 2]).drop_labels(), "Identity was read from a guarantee"),
            (ROWS, ss.Identity([0, 0, 1]), "one per record, 4 of them"),
            (ROWS, ss.Identity([0, 0, 1, 2, 3]), "one per record, 4 of them"),
        ],
    )
    def test_errors(self, rows: Any, adjacency: Any, words: str) -> None:
        with pytest.raises(ss.InvalidInput) as caught:
            PrivateCollection.check(rows, adjacency)
        assert words in str(caught.value)


class Book:
    """An account that writes down what it is asked."""

    dataset = "a"

    def __init__(self, order: list[Any]) -> None:
        self.order = order

    def reserve(self, guarantees: Any, **options: Any) -> Any:
        self.order.append(("reserve", guarantees, options))
        return SimpleNamespace(commit=lambda: self.order.append("commit") or ["entry"])


class TestPayment:
    def prepared(self, order: list[Any], rng: Any = None, **more: Any) -> PendingRelease[str, str]:
        def draw(clean: str, stream: Any) -> str:
            order.append(("draw", clean, type(stream)))
            return "noisy"

        def score() -> str:
            order.append("score")
            return "clean"

        return PendingRelease("guarantee", "adjacency", rng, score, draw, **more)  # type: ignore[arg-type]

    @pytest.mark.parametrize(("rng", "stream"), [(None, SecureStream), (3, ResearchStream)])
    def test_order(self, rng: Any, stream: type) -> None:
        order: list[Any] = []
        assert self.prepared(order, rng).release(Book(order)) == "noisy"
        asked = ("reserve", ["guarantee"], {"adjacency": "adjacency", "same_people": False})
        assert order == [asked, "score", "commit", ("draw", "clean", stream)]

    def test_release_all(self) -> None:
        """Several releases are reserved and committed together, and each one is used before the next is drawn."""
        order: list[Any] = []
        several = [self.prepared(order) for _ in range(3)]
        assert release_all(several, Book(order), order.append, same_people=True) == [None] * 3  # type: ignore[arg-type]
        draw = ("draw", "clean", SecureStream)
        asked = ("reserve", ["guarantee"] * 3, {"adjacency": "adjacency", "same_people": True})
        assert order == [asked, "score", "commit", draw, "noisy", "score", draw, "noisy", "score", draw, "noisy"]

    def test_without_a_ledger(self) -> None:
        order: list[Any] = []
        assert self.prepared(order).release(None) == "noisy"
        assert order == ["score", ("draw", "clean", SecureStream)]

    def test_forks(self) -> None:
        """A fork is not charged and draws nothing, except in research mode."""
        other = (identify_process()[0] + 1, 0)
        order: list[Any] = []
        fork = self.prepared(order, process=other)
        with pytest.raises(ss.InvalidInput, match="another process"):
            fork.release(Book(order))
        assert [step for step in order if step == "commit" or step[0] == "draw"] == []
        order.clear()
        with pytest.raises(ss.InvalidInput, match="another process"):
            fork.finish("clean")
        assert order == []
        assert self.prepared(order, 3, process=other).release(Book(order)) == "noisy"

    def test_a_fork_while_noise_is_drawn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        order: list[Any] = []
        release = self.prepared(order)
        moved = lambda *_: monkeypatch.setattr("scoreshield.privacy.sampling.stream._forks", 99)  # noqa: E731
        with pytest.raises(ss.InvalidInput, match="another process"):
            PendingRelease(release.guarantee, release.adjacency, None, release.compute, moved).finish("clean")

    def test_errors(self) -> None:
        order: list[Any] = []
        with pytest.raises(ss.InvalidInput, match="'ledger' parameter must"):
            self.prepared(order).release("a ledger")
        with pytest.raises(ss.InvalidInput, match="'rng' parameter must"):
            self.prepared(order, "seed").release(None)

    @pytest.mark.parametrize("same_people", [True, False])
    def test_reserve(self, same_people: bool) -> None:
        order: list[Any] = []
        pending = reserve(Book(order), ["g"], "adjacency", same_people=same_people)  # type: ignore[list-item,arg-type]
        assert order == [("reserve", ["g"], {"adjacency": "adjacency", "same_people": same_people})]
        assert pending.commit() == ["entry"]
        order.clear()
        reserve(Book(order), [], "adjacency")  # type: ignore[arg-type]
        assert order == [("reserve", [], {"adjacency": "adjacency", "same_people": False})]
        assert reserve(None, [], "adjacency").commit() == ()  # type: ignore[arg-type]

    def test_accounts(self) -> None:
        """An account has a name, and something to call."""
        check_account(Book([]))
        for bad in (
            SimpleNamespace(dataset="a"),
            SimpleNamespace(dataset="a", reserve=5),
            SimpleNamespace(dataset="", reserve=print),
            SimpleNamespace(dataset=None, reserve=print),
            SimpleNamespace(reserve=print),
            "a",
        ):
            with pytest.raises(ss.InvalidInput, match="'ledger' parameter must"):
                check_account(bad)


@pytest.mark.parametrize(
    ("word", "number"),
    [
        (0, 0),
        (1, 0),
        (2, 1),
        (3, 1),
        (2**62, 2**61),
        (2**63 - 1, 2**62 - 1),
        (-1, 2**62 - 1),
        (-(2**63), 0),
        (-4, 2**62 - 2),
    ],
)
def test_tie_break(word: int, number: int) -> None:
    """62 bits of one word, so that the number is not negative."""
    asked: list[int] = []
    stream: Any = SimpleNamespace(words=lambda count: asked.append(count) or np.array([word, 99], dtype=np.int64))
    assert draw_tie_break(stream) == number
    assert asked == [1]


def test_the_kinds_of_noise() -> None:
    assert tuple(pipeline.PURE) == ("laplace", "staircase")
    assert pipeline.ADDITIVE == ("gaussian", "laplace", "staircase")
