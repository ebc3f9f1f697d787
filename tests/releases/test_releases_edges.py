"""Releases of scores, rows and Gram matrices: each option is passed on, each field is stated, each draw is used."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from release_support import PEOPLE, QUERY, ROWS, Account

import scoreshield as ss
from scoreshield.geometry import embeddings
from scoreshield.geometry.partial import WarmStart
from scoreshield.privacy.adjacency import ReleaseShape
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.noise import GaussianNoise, StaircaseNoise
from scoreshield.privacy.profiles import GaussianProfile
from scoreshield.privacy.sampling.stream import Stream, open_stream
from scoreshield.releases import gram, row, scores
from scoreshield.releases.pipeline import CalibratedNoise, PrivacyRequest

CONTRACT: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6}
BATCH = np.array([[1.0, 0], [0, 2], [1, 1]])
COSINES = np.array([1.0, 0.8, 0.0, -0.6, -1.0])
RAW = ss.Identity([0, 0, 1, 2, 3])


def watch_sensitivity(monkeypatch: pytest.MonkeyPatch) -> list[ReleaseShape]:
    """Return the list of what the sensitivity of Replacement is asked for."""
    asked: list[ReleaseShape] = []
    bound = ss.Replacement.bound_sensitivity

    def bound_sensitivity(self: ss.Replacement, released: ReleaseShape) -> Any:
        asked.append(released)
        return bound(self, released)

    monkeypatch.setattr(ss.Replacement, "bound_sensitivity", bound_sensitivity)
    return asked


def watch_noise(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let all noise be 0, 1, 2, ...; returns the list of laws, steps and streams that it is asked from."""
    seen: list[Any] = []

    def add_noise(values: np.ndarray, law: Any, step: float, stream: Stream) -> None:
        seen.append((law, step, stream.name, len(values)))
        values += np.arange(len(values))

    for module in (scores, row, gram):
        monkeypatch.setattr(module, "add_noise", add_noise)
    for module in (scores, row):
        monkeypatch.setattr(module, "draw_tie_break", lambda stream: {"research": 17, "exact": 23}[stream.name])
    return seen


def stated(noise: CalibratedNoise, regime: str, shape: tuple[int, ...], adjacency: Any, **options: Any) -> Guarantee:
    """The guarantee of Gaussian noise, field by field."""
    usual: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "calibration": "analytic", "score_range": (-1.0, 1.0)}
    usual |= {"sampler": "research"} | options
    return Guarantee(
        mechanism="gaussian",
        adjacency=adjacency.drop_labels(),
        regime=regime,
        shape=shape,
        sensitivity=noise.sensitivity,
        grid_sensitivity=noise.grid_sensitivity,
        scale=noise.scale,
        grid=noise.step,
        noise=noise.law,
        profile=GaussianProfile(noise.grid_sensitivity / noise.scale),
        **usual,
    )


def contract(
    score_range: tuple[float, float] = (-1.0, 1.0), rule: str = "analytic", unsafe: bool = False
) -> PrivacyRequest:
    return PrivacyRequest(2.0, 1e-6, "gaussian", rule, score_range, unsafe)


# Scores


def test_each_option_score_release_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each option of a score release is passed on."""
    seen: list[Any] = []

    def prepare(*given: Any, **options: Any) -> Any:
        seen.append((given, options))
        return SimpleNamespace(release=lambda ledger: ledger)

    monkeypatch.setattr(scores, "prepare_scores", prepare)
    options: dict[str, Any] = {
        "epsilon": 3.0,
        "delta": 0.25,
        "mechanism": "staircase",
        "for_": "values",
        "k": 5,
        "threshold": None,
        "public_scores": None,
        "calibration": "classical",
        "adjacency": PEOPLE,
        "score_range": (0.0, 0.5),
        "norm": "ball",
        "rng": 7,
        "unsafe_reproduce_paper": True,
        "progress": print,
    }
    assert ss.release_scores("rows", "query", ledger="account", **options) == "account"  # type: ignore[arg-type]
    assert seen == [(("rows",), {"query": "query", **options})]
    assert ss.release_scores("rows", "query", epsilon=3.0) is None  # type: ignore[arg-type]
    assert seen[1][1] == {
        "query": "query",
        "epsilon": 3.0,
        "delta": 0.0,
        "mechanism": None,
        "for_": "values",
        "k": 10,
        "threshold": None,
        "public_scores": None,
        "calibration": "analytic",
        "adjacency": ss.Replacement(),
        "score_range": (-1.0, 1.0),
        "norm": "unit",
        "rng": None,
        "unsafe_reproduce_paper": False,
        "progress": None,
    }


@pytest.mark.parametrize("query", [QUERY, QUERY[None], BATCH])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_state(query: np.ndarray, dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole guarantee; the sensitivity is asked for with all public facts, and the noise is the stated one."""
    seen, account, watched = watch_noise(monkeypatch), Account(), watch_sensitivity(monkeypatch)
    release = ss.release_scores(ROWS.astype(dtype), query, **CONTRACT, rng=1, ledger=account)
    shape = {1: (5,), 2: (len(query), 5)}[query.ndim]
    queries = np.atleast_2d(query) / np.linalg.norm(np.atleast_2d(query), axis=1, keepdims=True)
    norm = ss.privacy.adjacency.spectral_norm(queries)
    released = ReleaseShape("scores", 5, 2.0, len(queries), norm, embeddings.bound_rounding_error(2, dtype))
    assert watched == [released]
    assert released.rounding > 0
    noise = contract().calibrate(ss.Replacement().bound_sensitivity(released))
    assert release.guarantee == stated(noise, "scores", shape, ss.Replacement())
    assert (account.guarantees, account.adjacency, account.paid) == ([release.guarantee], ss.Replacement(), True)
    assert seen == [(noise.law, noise.step, "research", math.prod(shape))]
    clean = queries @ (ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)).T
    assert release.noisy == pytest.approx((clean + np.arange(clean.size).reshape(clean.shape)).reshape(shape), abs=1e-6)
    assert release.tie_break == 17


def test_scores_with_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch_noise(monkeypatch)
    options: dict[str, Any] = {"score_range": (-0.5, 0.7), "norm": "ball", "adjacency": RAW}
    release = ss.release_scores(
        ROWS / 4, QUERY, **CONTRACT, **options, calibration="conservative", unsafe_reproduce_paper=True
    )
    noise = contract((-0.5, 0.7), "conservative", True).calibrate(RAW.bound_sensitivity(ReleaseShape("scores", 5, 1.2)))
    assert release.guarantee == stated(
        noise, "scores", (5,), RAW, score_range=(-0.5, 0.7), calibration="conservative", sampler="exact"
    )
    # Lengths of 0.5, 1.25, 0.25, 1.25 and 0.25, cut to 1; then the range.
    assert release.noisy == pytest.approx(np.array([0.5, 0.7, 0.0, -0.5, -0.25]) + np.arange(5))
    assert seen[0][0] == noise.law
    assert release.tie_break == 23
    central = ss.release_scores(ROWS, QUERY, **CONTRACT, adjacency=PEOPLE)
    assert central.guarantee.shape == (4,)


def test_defaults_of_prepared_scores() -> None:
    g = scores.prepare_scores(ROWS / 2, QUERY, **CONTRACT).guarantee
    assert (g.mechanism, g.calibration, g.adjacency) == ("gaussian", "analytic", ss.Replacement())
    assert (g.score_range, g.sampler, g.claimed) == ((-1.0, 1.0), "exact", None)
    values = scores.prepare_scores(ROWS / 8, QUERY, **CONTRACT).compute()
    assert values == pytest.approx(COSINES)
    with pytest.raises(ss.InvalidInput, match="'delta'"):
        scores.prepare_scores(ROWS, QUERY, epsilon=1.0)
    with pytest.raises(ss.InvalidCalibration):
        scores.prepare_scores(ROWS, QUERY, epsilon=100.0, delta=1e-4, calibration="classical")


@pytest.mark.parametrize(
    "options",
    [
        {"mechanism": 3},
        {"mechanism": "magic"},
        {"calibration": "by eye"},
        {"norm": "cube"},
        {"score_range": (0.3, 0.3)},
        {"rng": -1},
        {"adjacency": "one"},
        {"unsafe_reproduce_paper": 1},
        {"mechanism": "optimal", "norm": "cube"},
        {"mechanism": "optimal", "calibration": "classical"},
        {"mechanism": "optimal", "score_range": (0.3, 0.3)},
        {"mechanism": "optimal", "rng": -1},
        {"mechanism": "optimal", "epsilon": 1e10},
        {"mechanism": "optimal", "delta": 1.0},
        {"mechanism": "optimal", "adjacency": RAW},
        {"mechanism": "auto", "epsilon": 0.0},
        {"mechanism": "auto", "delta": -0.1},
        {"mechanism": "auto", "score_range": (0.3, 0.3)},
        {"mechanism": "auto", "adjacency": "one"},
    ],
)
def test_scores_that_are_none(options: dict[str, Any]) -> None:
    with pytest.raises(ss.InvalidInput):
        scores.prepare_scores(ROWS, QUERY, **{**CONTRACT, **options})


def test_the_smaller_noise() -> None:
    """Staircase noise where it is smaller and one score moves; it leaves delta unspent. Both stand for any width."""

    def chosen(epsilon: float, delta: float = 1e-6, query: Any = QUERY, adjacency: Any = ss.Replacement()) -> Any:  # noqa: B008
        problem = scores._ScoreProblem.check(ROWS, query, adjacency, (-0.4, 0.9), "unit", None)
        return scores._choose_noise(problem, epsilon, delta)

    assert chosen(0.01, 0.0) == ("staircase", 0.0)
    assert chosen(3.0) == ("staircase", 0.0)
    assert chosen(3.0, query=BATCH) == ("gaussian", 1e-6)
    assert chosen(3.0, query=QUERY[None]) == ("staircase", 0.0)
    assert chosen(3.0, adjacency=RAW) == ("gaussian", 1e-6)
    assert chosen(3.0, adjacency=PEOPLE) == ("staircase", 0.0)
    # Where the two standard deviations cross.
    low, high = 1e-3, 30.0
    for _ in range(40):
        middle = math.sqrt(low * high)
        larger = StaircaseNoise.calibrate(middle, 1.3).std >= ss.calibrate(middle, 0.4, 1.3)
        low, high = (middle, high) if larger else (low, middle)
    assert chosen(low * 0.999, 0.4) == ("gaussian", 0.4)
    assert chosen(high * 1.001, 0.4) == ("staircase", 0.0)
    release = ss.release_scores(ROWS, QUERY, epsilon=3.0, delta=1e-6, mechanism="auto")
    assert (release.guarantee.mechanism, release.guarantee.delta) == ("staircase", 0.0)


def test_what_the_choice_is_made_from(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def smaller(*given: Any) -> tuple[str, float]:
        seen.append(given)
        return "gaussian", 0.25

    monkeypatch.setattr(scores, "_choose_noise", smaller)
    g = ss.release_scores(ROWS, QUERY, **CONTRACT, mechanism="auto", adjacency=PEOPLE, score_range=(0.0, 0.5)).guarantee
    assert seen[0][1:] == (2.0, 1e-6)
    assert (seen[0][0].source.adjacency, seen[0][0].score_range) == (PEOPLE, (0.0, 0.5))
    assert seen[0][0].source.records is ROWS
    assert (g.mechanism, g.delta) == ("gaussian", 0.25)


# Tables of levels


@pytest.mark.parametrize("table", [None, ss.optimal_channel(1.5, levels=4), ss.optimal_channel(2.0, 1e-6, levels=4)])
@pytest.mark.parametrize("query", [QUERY, QUERY[None]])
def test_levels_state(table: Any, query: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole guarantee; a table's own promise may be smaller than the contract."""
    account, watched, asked = Account(), watch_sensitivity(monkeypatch), []
    if table is None:
        monkeypatch.setattr(
            scores,
            "optimal_channel",
            lambda *given, **named: asked.append((given, named)) or ss.optimal_channel(*given, **named, levels=4),
        )
    monkeypatch.setattr(scores, "draw_tie_break", lambda stream: {"research": 17}[stream.name])
    release = ss.release_scores(
        ROWS / 4,
        query,
        **CONTRACT,
        mechanism=table or "optimal",
        adjacency=ss.Replacement(),
        rng=5,
        norm="ball",
        ledger=account,
    )
    used = table or ss.optimal_channel(2.0, 1e-6, levels=4)
    shape = (5,) if query.ndim == 1 else (1, 5)
    assert asked == ([] if table else [((2.0, 1e-6), {"score_range": (-1.0, 1.0)})])
    assert watched == [ReleaseShape("scores", 5)]
    assert release.guarantee == Guarantee(
        epsilon=used.epsilon,
        delta=used.delta,
        mechanism="levels" if table else "optimal",
        calibration="pure" if used.delta == 0 else "analytic",
        adjacency=ss.Replacement(),
        regime="scores",
        shape=shape,
        score_range=(-1.0, 1.0),
        sensitivity=2.0,
        grid_sensitivity=2.0,
        scale=used.std,
        grid=used.step,
        noise=used,
        profile=used.profile(),
        sampler="research",
        details={"levels": 4},
    )
    assert (account.guarantees, account.adjacency, account.paid) == ([release.guarantee], ss.Replacement(), True)
    clean = np.array([0.5, 0.8, 0.0, -0.6, -0.25])
    assert np.array_equal(release.noisy, used.release(open_stream(5), clean).reshape(shape))
    assert release.tie_break == 17


def test_levels_over_a_narrow_range() -> None:
    table = ss.optimal_channel(1.0, levels=4, score_range=(0.0, 0.5))
    release = ss.release_scores(ROWS, QUERY, epsilon=1.0, mechanism=table, score_range=(0.0, 0.5), adjacency=PEOPLE)
    g = release.guarantee
    assert (g.score_range, g.sensitivity, g.grid_sensitivity, g.shape) == ((0.0, 0.5), 0.5, 0.5, (4,))
    assert g.adjacency == PEOPLE.drop_labels()
    assert (
        scores.prepare_scores(ROWS, QUERY, epsilon=1.0, mechanism=table, score_range=(0.0, 0.5)).compute().max() == 0.5
    )


def test_tables_that_the_contract_does_not_cover() -> None:
    table = ss.optimal_channel(1.0, 1e-3, levels=4)
    for epsilon, delta in ((math.nextafter(1.0, 0), 1e-3), (1.0, math.nextafter(1e-3, 0)), (9.0, 0.0)):
        with pytest.raises(ss.InvalidInput, match="does not cover"):
            ss.release_scores(ROWS, QUERY, epsilon=epsilon, delta=delta, mechanism=table)
    assert ss.release_scores(ROWS, QUERY, epsilon=1.0, delta=1e-3, mechanism=table).guarantee.delta == 1e-3
    for options in ({"query": BATCH}, {"query": QUERY, "adjacency": RAW}):
        with pytest.raises(ss.InvalidInput, match="one score"):
            ss.release_scores(ROWS, epsilon=1.0, delta=1e-3, mechanism=table, **options)  # type: ignore[arg-type]


# A row


@pytest.mark.parametrize("index", [1, -4])
def test_a_row_states(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, account, watched = watch_noise(monkeypatch), Account(), watch_sensitivity(monkeypatch)
    release = ss.release_row(
        ROWS,
        index,
        **CONTRACT,
        adjacency=ss.Replacement(),
        score_range=(-0.5, 0.9),
        calibration="conservative",
        rng=1,
        ledger=account,
    )
    assert watched == [ReleaseShape("row", 5, 1.4)]
    noise = contract((-0.5, 0.9), "conservative").calibrate(
        ss.Replacement().bound_sensitivity(ReleaseShape("row", 5, 1.4))
    )
    assert release.guarantee == stated(
        noise, "row", (5,), ss.Replacement(), score_range=(-0.5, 0.9), calibration="conservative"
    )
    assert (account.guarantees, account.adjacency, account.paid) == ([release.guarantee], ss.Replacement(), True)
    assert seen == [(noise.law, noise.step, "research", 5)]
    assert release.noisy == pytest.approx(np.array([0.8, 1 - 1, 0.6, 0.0, -0.5]) + np.array([0, 1, 2, 3, 4]))
    assert (release.index, release.tie_break) == (1, 17)


def test_defaults_of_a_row() -> None:
    g = ss.release_row(ROWS, 0, **CONTRACT).guarantee
    assert (g.mechanism, g.calibration, g.adjacency) == ("gaussian", "analytic", ss.Replacement())
    assert (g.score_range, g.sampler, g.claimed) == ((-1.0, 1.0), "exact", None)
    unsafe = {"epsilon": 100.0, "delta": 1e-4, "calibration": "classical"}
    with pytest.raises(ss.InvalidCalibration):
        ss.release_row(ROWS, 0, **unsafe)
    assert ss.release_row(ROWS, 0, **unsafe, unsafe_reproduce_paper=True).guarantee.claimed == (100.0, 1e-4)
    assert ss.release_row(ROWS, 3, **CONTRACT, adjacency=PEOPLE).noisy.shape == (4,)
    for options, says in (
        ({"mechanism": "laplace", "delta": 0.0}, "many entries"),
        ({"delta": 0.0}, "'delta'"),
        ({"rng": -1}, "'rng'"),
    ):
        with pytest.raises(ss.InvalidInput, match=says):
            ss.release_row(ROWS, 0, **{**CONTRACT, **options})
    assert ss.release_row(ROWS[:2], 0, **CONTRACT).noisy.shape == (2,)
    with pytest.raises(ss.InvalidInput, match="two records"):
        ss.release_row(ROWS[:1], 0, **CONTRACT)
    with pytest.raises(ss.InvalidInput, match="'index'"):
        ss.release_row(ROWS, 4, **CONTRACT, adjacency=PEOPLE)


def test_a_row_of_zeros_has_a_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first basis vector, in a row of similarities and behind a table as elsewhere."""
    watch_noise(monkeypatch)
    rows = np.array([[0.6, 0.8], [0.0, 0.0], [0.0, 1.0]])
    assert ss.release_row(rows, 0, **CONTRACT).noisy == pytest.approx([1.0, 0.6 + 1, 0.8 + 2])
    assert ss.release_row(rows, 1, **CONTRACT).noisy == pytest.approx([0.6, 1.0, 0.0 + 2])
    prepared = scores.prepare_scores(rows, QUERY, epsilon=1.0, mechanism=ss.optimal_channel(1.0, levels=4))
    assert prepared.compute() == pytest.approx([0.6, 1.0, 0.0])


def test_bad_rows_are_named() -> None:
    rows = ROWS.copy()
    rows[3, 1] = math.nan
    for index in (0, 3):
        with pytest.raises(ss.InvalidInput, match="Row 3 "):
            ss.release_row(rows, index, **CONTRACT)
    for call in (lambda: ss.release_row(ROWS, 0, epsilon=1.0), lambda: ss.release_gram(ROWS, epsilon=1.0)):
        with pytest.raises(ss.InvalidInput, match="above 0 for Gaussian"):
            call()


def test_the_place_of_a_row() -> None:
    assert [row._position(place, 3) for place in (0, 2, -1, -3, np.int8(1))] == [0, 2, 2, 0, 1]
    assert type(row._position(np.int8(1), 3)) is int
    for place in (3, -4, True, 1.0, "1"):
        with pytest.raises(ss.InvalidInput):
            row._position(place, 3)


# Gram matrices


@pytest.mark.parametrize("options", [{"projection": "none"}, {"denoise": "none"}])
def test_a_gram_matrix_states(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole guarantee, the noise above the diagonal, mirrored, and nothing else."""
    seen, account, watched = watch_noise(monkeypatch), Account(), watch_sensitivity(monkeypatch)
    monkeypatch.setattr(gram, "check_memory", None)
    monkeypatch.setattr(gram, "to_device", None)
    steps: list[tuple[int, int]] = []
    release = ss.release_gram(
        ROWS.astype(np.float32),
        **CONTRACT,
        adjacency=ss.Replacement(),
        score_range=(-0.9, 0.7),
        calibration="conservative",
        rng=1,
        ledger=account,
        progress=lambda *at: steps.append(at),
        **options,
    )
    released = ReleaseShape("gram", 5, 0.7 - -0.9, rounding=embeddings.bound_rounding_error(2, np.float64))
    assert watched == [released]
    noise = contract((-0.9, 0.7), "conservative").calibrate(
        ss.Replacement().bound_sensitivity(released), entries_per_draw=2
    )
    assert release.guarantee == stated(
        noise, "gram", (5, 5), ss.Replacement(), score_range=(-0.9, 0.7), calibration="conservative"
    )
    assert (account.guarantees, account.adjacency, account.paid) == ([release.guarantee], ss.Replacement(), True)
    assert seen == [(noise.law, noise.step, "research", 10)]
    unit = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
    wanted = np.clip(unit @ unit.T, -0.9, 0.7)
    above = np.triu_indices(5, 1)
    wanted[above] += np.arange(10)
    wanted.T[above] = wanted[above]
    np.fill_diagonal(wanted, 1.0)
    assert release.noisy == pytest.approx(wanted)
    assert release.gram is release.noisy or np.array_equal(release.gram, release.noisy)
    assert (release.projection, release.denoise, release.risks) == ("none", "none", {})
    assert (release.iterations, release.residual, release.converged) == (0, 0.0, True)
    assert steps == [(5, 5)]


@pytest.mark.parametrize(("projection", "method"), [("exact", "auto"), ("aap", "aap"), ("dykstra", "dykstra")])
def test_a_gram_matrix_is_projected_as_asked(projection: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watch_noise(monkeypatch)
    seen: dict[str, Any] = {}

    def denoise(noisy: np.ndarray, std: float, name: str, *, rank: int, project: Any) -> Any:
        seen["denoise"] = (noisy.shape, std, name, rank)
        return SimpleNamespace(matrix=project(np.eye(5)), method="rank", risks={"rank": 0.5}, factor=None)

    def project(matrix: np.ndarray, *given: Any, **named: Any) -> Any:
        seen["project"] = (matrix.tolist(), given, named)
        return SimpleNamespace(matrix=np.full((5, 5), 0.5), iterations=6, residual=0.25, converged=False, factor=None)

    def move(matrix: np.ndarray, device: str) -> np.ndarray:
        seen.setdefault("moved", []).append((matrix.shape, device))
        return matrix

    monkeypatch.setattr(gram, "to_device", move)
    monkeypatch.setattr(gram, "check_device", lambda device: move(np.zeros((1, 1)), device))
    monkeypatch.setattr(gram, "check_memory", lambda *given: seen.update(memory=given))
    monkeypatch.setattr(gram.post, "denoise_array", denoise)
    monkeypatch.setattr(gram, "project_array", project)

    def progress(*_: int) -> None: ...

    release = ss.release_gram(
        ROWS, **CONTRACT, projection=projection, denoise="sure", max_iterations=9, device="cuda", progress=progress
    )
    assert seen["moved"] == [((1, 1), "cuda"), ((5, 5), "cuda")]  # a small one first, before any noise is drawn
    assert seen["memory"] == (5, method, "cuda")
    assert seen["denoise"] == ((5, 5), release.guarantee.noise.std, "sure", 2)
    assert seen["project"] == (
        np.eye(5).tolist(),
        (method,),
        {"max_iterations": 9, "progress": progress, "warm": WarmStart()},
    )
    assert (release.projection, release.denoise, release.risks) == (projection, "rank", {"rank": 0.5})
    assert (release.iterations, release.residual, release.converged) == (6, 0.25, False)
    assert np.array_equal(release.gram, np.full((5, 5), 0.5))
    assert not np.array_equal(release.gram, release.noisy)


def test_defaults_of_a_gram_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    project = gram.project_array

    def watched(matrix: np.ndarray, *given: Any, **named: Any) -> Any:
        seen.update(given=given, **named)
        return project(matrix, *given, **named)

    monkeypatch.setattr(gram, "project_array", watched)
    release = ss.release_gram(ROWS, **CONTRACT)
    g = release.guarantee
    assert (g.mechanism, g.calibration, g.adjacency) == ("gaussian", "analytic", ss.Replacement())
    assert (g.score_range, g.sampler, g.claimed) == ((-1.0, 1.0), "exact", None)
    assert (release.projection, release.denoise) == ("exact", "projection")
    assert seen == {"given": ("auto",), "max_iterations": None, "progress": None, "warm": WarmStart()}
    unsafe = {"epsilon": 100.0, "delta": 1e-4, "calibration": "classical", "projection": "none"}
    with pytest.raises(ss.InvalidCalibration):
        ss.release_gram(ROWS, **unsafe)
    assert ss.release_gram(ROWS, **unsafe, unsafe_reproduce_paper=True).guarantee.claimed == (100.0, 1e-4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mechanism": "laplace", "delta": 0.0}, "many entries"),
        ({"projection": "magic"}, "'projection'"),
        ({"denoise": "magic"}, "'denoise'"),
        ({"projection": "none", "denoise": "rank"}, "valid cosine matrix"),
        ({"max_iterations": 0}, "'max_iterations'"),
        ({"max_iterations": 1.5}, "'max_iterations'"),
        ({"device": "abacus"}, "'device'"),
        ({"rng": -1}, "'rng'"),
        ({"score_range": (0.3, 0.3)}, "'score_range'"),
    ],
)
def test_gram_matrices_that_are_none(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ss.InvalidInput, match=says):
        ss.release_gram(ROWS, **{**CONTRACT, **options})


def test_gram_matrices_at_the_ends() -> None:
    with pytest.raises(ss.InvalidInput, match="two records"):
        ss.release_gram(ROWS[:1], **CONTRACT)
    assert ss.release_gram(ROWS[:2], **CONTRACT, max_iterations=1).gram.shape == (2, 2)
    # Neither projects, so neither cares for a device.
    for options in ({"projection": "none", "denoise": "none"}, {"projection": "none", "denoise": "projection"}):
        assert ss.release_gram(ROWS, **CONTRACT, **options, device="abacus").projection == "none"


@pytest.mark.parametrize("tile", [1, 2, 3, 4, 5, 7])
def test_noise_tile_by_tile(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry above the diagonal has one draw of its own, whatever the tiles; progress counts rows."""
    drawn = [0]

    def add_noise(values: np.ndarray, law: Any, step: float, _: Stream) -> None:
        assert (law, step) == (GaussianNoise(2.0), 0.5)
        values += np.arange(drawn[0], drawn[0] + len(values)) + 100
        drawn[0] += len(values)

    monkeypatch.setattr(gram, "add_noise", add_noise)
    monkeypatch.setattr(gram, "_TILE", tile)
    noise = CalibratedNoise(2.0, 2.0, 2.0, GaussianNoise(2.0), 0.5, GaussianProfile(1.0))
    matrix = np.zeros((5, 5))
    steps: list[tuple[int, int]] = []
    gram._add_symmetric_noise(matrix, noise, open_stream(1), lambda *at: steps.append(at))
    assert steps == [(min(end, 5), 5) for end in range(tile, 5 + tile, tile)]
    assert np.array_equal(matrix, matrix.T)
    assert matrix.diagonal().tolist() == [1.0] * 5
    assert sorted(matrix[np.triu_indices(5, 1)].tolist()) == list(range(100, 110))
    gram._add_symmetric_noise(np.zeros((5, 5)), noise, open_stream(1), None)


def test_a_projector_starts_from_nothing() -> None:
    fresh = gram._Projector("newton", None, None)
    assert (fresh.iterations, fresh.residual, fresh.converged) == (0, 0.0, True)
