"""Scores in blocks by every mechanism that works record by record, and the choice among them."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

import scoreshield as ss
from scoreshield import distributed
from scoreshield.decisions.queries import QueryScores
from scoreshield.decisions.ranking import choose_for_ranking
from scoreshield.distributed.manifest import TILE_ROWS
from scoreshield.privacy.tails import AnchoredWindows

ROWS, DIMENSION = 2 * TILE_ROWS + 500, 4
QUERY = np.array([1.0, 2.0, -1.0, 0.5])
CUTS = (-0.5, 0.0, 0.5)


@pytest.fixture(scope="module")
def records() -> np.ndarray:
    return np.random.default_rng(8).standard_normal((ROWS, DIMENSION))


@pytest.fixture(scope="module")
def source(records: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("collection") / "rows.npy"
    np.save(path, records)
    return path


def make_public_scores() -> QueryScores:
    """Scores of a model whose cosines lie close together, where a table of levels ranks best."""
    rng = np.random.default_rng(5)
    scores = rng.normal(0.8, 0.03, (80, 1_000))
    scores[:, 0] = 0.92 + rng.normal(0, 0.03, 80)
    pairs = np.column_stack([np.arange(80), np.zeros(80, dtype=int)])
    return QueryScores(np.clip(scores, -1, 1), pairs, origin="made up")


MECHANISMS = {
    "table": {"epsilon": 3.0, "mechanism": ss.randomised_response(3.0, CUTS)},
    "optimal": {"epsilon": 3.0, "mechanism": "optimal"},
    "custom": {"epsilon": 4.0, "delta": 1e-9, "mechanism": ss.CustomNoise.tabulate(scipy.stats.logistic(scale=0.51))},
    "threshold": {"epsilon": 3.0, "for_": "threshold", "threshold": 0.2},
    "gaussian": {"epsilon": 3.0, "delta": 1e-6},
    "laplace": {"epsilon": 3.0, "mechanism": "laplace"},
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_blocks_change_nothing_and_the_promise_is_that_of_one_machine(source, records, tmp_path, name):
    options = MECHANISMS[name]
    found = [
        distributed.release_scores(
            source, QUERY, to=tmp_path / str(tiles), seed=1, block_rows=tiles * TILE_ROWS, **options
        )
        for tiles in (1, 2)
    ]
    assert np.array_equal(*(one.scores() for one in found))
    alone = ss.release_scores(records, QUERY, rng=1, **options).guarantee
    stated = distributed.open_release(tmp_path / "1").guarantee
    for fact in ("epsilon", "delta", "mechanism", "scale", "grid", "noise", "shape", "sensitivity", "profile"):
        assert getattr(stated, fact) == getattr(alone, fact), fact
    assert {k: v for k, v in stated.details.items() if k not in ("release", "snapshot")} == alone.details


def test_a_table_draws_each_level_with_its_probability(source, records, tmp_path):
    table = MECHANISMS["table"]["mechanism"]
    release = distributed.release_scores(source, QUERY, to=tmp_path / "out", seed=3, **MECHANISMS["table"])
    clean = records @ QUERY / np.linalg.norm(records, axis=1) / np.linalg.norm(QUERY)
    true, drawn = np.searchsorted(CUTS, clean), np.searchsorted(np.sort(table.outputs), release.scores())
    truth = np.exp(3.0) / (np.exp(3.0) + len(CUTS))
    share, error = np.mean(true == drawn), np.sqrt(truth * (1 - truth) / ROWS)
    assert abs(share - truth) < 5 * error  # exceeded less than once in a million
    assert abs(share - np.exp(2.9) / (np.exp(2.9) + len(CUTS))) > 5 * error


def test_ranking_chooses_among_mechanisms_for_single_records(source, tmp_path):
    """Windows around a private quantile would be chosen on one machine, and need all scores."""
    chosen = choose_for_ranking(9.0, records=ROWS, dimension=DIMENSION)
    assert isinstance(chosen.mechanism, AnchoredWindows)
    assert choose_for_ranking(9.0, records=ROWS, dimension=DIMENSION, may_anchor=False).mechanism == "staircase"
    plain = distributed.release_scores(source, QUERY, to=tmp_path / "a", epsilon=9.0, for_="ranking", seed=1)
    assert plain.guarantee.mechanism == "staircase"
    public = make_public_scores()
    table = distributed.release_scores(
        source, QUERY, to=tmp_path / "b", epsilon=14.0, for_="ranking", public_scores=public, best=20, seed=1
    )
    assert table.guarantee.mechanism == "levels"
    assert len(table.top_k(20).indices) == 20


@pytest.mark.parametrize("settings", [{"for_": "ranking"}, {"mechanism": "staircase", "best": 5}])
def test_a_ranking_by_noise_is_warned_of(source, tmp_path, settings):
    """The warning comes with every release that is ranked, before it is charged; not in research, or for values."""
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=60.0, delta=0.0)
    account = ledger.account("x")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ss.UselessRelease)
        with pytest.raises(ss.UselessRelease, match="ranks mostly by noise"):
            distributed.release_scores(source, QUERY, to=tmp_path / "a", epsilon=1.0, ledger=account, **settings)
        assert account.spent == 0.0
        distributed.release_scores(source, QUERY, to=tmp_path / "b", epsilon=1.0, mechanism="staircase", ledger=account)
        distributed.release_scores(source, QUERY, to=tmp_path / "c", epsilon=1.0, seed=1, **settings)
        distributed.release_scores(source, QUERY, to=tmp_path / "d", epsilon=40.0, ledger=account, **settings)
    assert account.spent == 41.0


def test_windows_are_rejected_before_anything_is_written(source, tmp_path):
    with pytest.raises(ss.InvalidInput, match="quantile of all scores"):
        distributed.release_scores(source, QUERY, to=tmp_path / "out", epsilon=9.0, mechanism="anchored")
    assert not (tmp_path / "out").exists()
