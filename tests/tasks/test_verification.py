"""Verification against hand-made curves, loops over thresholds and the LFW figures that came with the data."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import scoreshield as ss
from scoreshield import tasks

Array = np.ndarray


@pytest.fixture
def scored(rng: np.random.Generator) -> tuple[Array, Array]:
    """Scores with many ties."""
    same = rng.random(400) < 0.3
    return np.round(rng.normal(0, 0.3, 400) + 0.4 * same, 1), same


def operating_points(scores: Array, same: Array) -> list[tuple[float, float, float]]:
    """(threshold, false accepts, true accepts) of the rule "above", one threshold after another."""
    thresholds = [-math.inf, *np.unique(scores)]
    return [(t, float((scores[~same] > t).mean()), float((scores[same] > t).mean())) for t in thresholds]


def test_a_case_by_hand() -> None:
    """Genuine 0.9, 0.6, 0.6; impostors 0.6, 0.2: of 6 pairs 4 are right and 2 tie, so the AUC is 5/6."""
    found = tasks.evaluate_verification([0.9, 0.6, 0.6, 0.6, 0.2], [1, 1, 1, 0, 0])
    assert found.auc == pytest.approx(5 / 6)
    assert found.accuracy == pytest.approx(4 / 5)  # all but the impostor at 0.6
    assert 0.2 <= found.threshold < 0.6
    assert (found.genuine, found.impostors) == (3, 2)
    assert found.tar_at(0.5) == 1.0
    # From (0, 1/3) straight to (1/2, 1): where false accepts x equal the misses 1 - 1/3 - 4x/3, x = 2/7.
    assert found.eer == pytest.approx(2 / 7)


def test_figures_by_a_loop(scored: tuple[Array, Array]) -> None:
    """Every figure agrees with a loop over thresholds."""
    scores, same = scored
    found = tasks.evaluate_verification(scores, same)
    points = operating_points(scores, same)
    assert found.auc == pytest.approx(roc_auc_score(same, scores), abs=1e-12)
    wins = np.mean((scores[same][:, None] > scores[~same]) + 0.5 * (scores[same][:, None] == scores[~same]))
    assert found.auc == pytest.approx(wins, abs=1e-12)
    right = [np.mean((scores > t) == same) for t, _, _ in points]
    assert found.accuracy == pytest.approx(max(right))
    assert np.mean((scores > found.threshold) == same) == pytest.approx(max(right))
    for fpr in (0.005, 0.01, 0.1, 0.37, 1.0):
        assert found.tar_at(fpr) == max(tpr for _, f, tpr in points if f <= fpr)
    assert found.eer == pytest.approx(ss.decisions.roc(scores[same], scores[~same]).eer, abs=1e-6)


def test_threshold_largest_best() -> None:
    """The threshold is the largest of the best."""
    found = tasks.evaluate_verification([0.8, 0.5, 0.3], [True, False, True])  # 2 of 3 right above 0.5 and above 0.3
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.threshold == pytest.approx(0.65)


def test_accepting_nothing_or_everything() -> None:
    """Accepting nothing or everything can be best."""
    nothing = tasks.evaluate_verification([0.0, 1.0, 1.0, 1.0], [True, False, False, False])
    assert nothing.accuracy == 0.75
    assert nothing.threshold >= 1.0
    everything = tasks.evaluate_verification([0.0, 0.0, 0.0, 1.0], [True, True, True, False])
    assert everything.accuracy == 0.75
    assert everything.threshold < 0.0


def test_neighbouring_floats_are_told_apart() -> None:
    """Neighbouring floats are distinguished."""
    low = 1.0
    for _ in range(4):
        high = float(np.nextafter(low, 2.0))
        found = tasks.evaluate_verification([high, low], [True, False])
        assert (high > found.threshold, low > found.threshold) == (True, False)
        low = high


def test_rate_below_one_impostor(scored: tuple[Array, Array]) -> None:
    """A rate that the impostors cannot show is not a number."""
    scores, same = scored
    found = tasks.evaluate_verification(scores, same)
    rate = 1 / found.impostors
    assert math.isnan(found.tar_at(0.999 * rate))
    assert not math.isnan(found.tar_at(rate))


def test_folds_choose_threshold_others(scored: tuple[Array, Array]) -> None:
    """Folds choose their threshold on the others."""
    scores, same = scored
    folds = np.arange(400) % 7 + 3
    expected = []
    for fold in range(3, 10):
        held = folds == fold
        options = [(np.mean((scores[~held] > t) == same[~held]), t) for t in np.arange(-2.05, 2.0, 0.1)]
        best = max(options)[1]  # the largest of the best, halfway between two of the rounded scores
        expected.append(np.mean((scores[held] > best) == same[held]))
    found = tasks.evaluate_verification(scores, same, folds=folds)
    assert found.fold_accuracy == pytest.approx(expected)
    assert found.accuracy == pytest.approx(np.mean(expected))
    assert found.accuracy < tasks.evaluate_verification(scores, same).accuracy


def test_held_out_score_at_threshold() -> None:
    """On each fold it is best to accept nothing: the threshold is 1, and the impostors of the other lie on it."""
    scores, same = [0.0, 1.0, 1.0, 1.0] * 2, [True, False, False, False] * 2
    found = tasks.evaluate_verification(scores, same, folds=[0] * 4 + [1] * 4)
    assert found.fold_accuracy.tolist() == [0.75, 0.75]


class TestMatrices:
    @pytest.fixture
    def gram(self, collection: Array) -> ss.GramRelease:
        return ss.release_gram(collection, epsilon=20, delta=1e-6, adjacency=ss.GramRadius(2.0), rng=1)

    @pytest.mark.parametrize("view", ["feasible", "noisy"])
    def test_all_pairs_of_a_release(self, gram: ss.GramRelease, view: str) -> None:
        """All pairs of a release are compared."""
        labels = [str(i % 3) for i in range(40)]
        matrix = gram.gram if view == "feasible" else gram.noisy
        scores = [matrix[i, j] for i in range(40) for j in range(i + 1, 40)]
        same = [labels[i] == labels[j] for i in range(40) for j in range(i + 1, 40)]
        found = tasks.evaluate_verification(gram, labels, view=view)
        assert found.auc == pytest.approx(roc_auc_score(same, scores), abs=1e-12)
        assert found.genuine + found.impostors == 780
        assert tasks.evaluate_verification(matrix, labels).auc == found.auc

    def test_chosen_pairs(self, gram: ss.GramRelease) -> None:
        """Chosen pairs are compared."""
        pairs = np.array([[0, 1], [2, 3], [5, 4], [7, 6]])
        same = [True, False, True, False]
        found = tasks.evaluate_verification(gram, same, pairs=pairs)
        assert found.auc == tasks.evaluate_verification([gram.gram[i, j] for i, j in pairs], same).auc
        assert (found.genuine, found.impostors) == (2, 2)

    def test_all_pairs_upper_triangle(self, rng: np.random.Generator) -> None:
        """All pairs are those of the upper triangle."""
        rows = rng.standard_normal((100, 4))
        matrix, labels = rows @ rows.T, rng.integers(0, 9, 100)
        upper = np.triu_indices(100, 1)
        same = labels[upper[0]] == labels[upper[1]]
        folds = rng.integers(0, 3, len(same))
        one = tasks.evaluate_verification(matrix, labels, folds=folds)
        other = tasks.evaluate_verification(matrix[upper], same, folds=folds)
        assert one.fold_accuracy.tolist() == other.fold_accuracy.tolist()
        assert one.auc == other.auc


def test_scores_are_read_before_clipping(collection: Array, query: Array) -> None:
    """Scores are read before clipping."""
    release = ss.release_scores(collection, query, epsilon=1, delta=1e-6, rng=3)
    same = np.arange(40) < 10
    assert tasks.evaluate_verification(release, same).auc == pytest.approx(
        roc_auc_score(same, release.noisy), abs=1e-12
    )
    assert tasks.evaluate_verification(release, same).auc != pytest.approx(
        roc_auc_score(same, release.scores), abs=1e-3
    )


def test_a_batch_is_judged_entry_by_entry(collection: Array, query: Array) -> None:
    """A batch is judged entry by entry."""
    release = ss.release_scores(collection, np.stack([query, -query]), epsilon=50, delta=1e-6, rng=3)
    same = np.arange(80).reshape(2, 40) % 5 == 0
    expected = roc_auc_score(same.ravel(), release.noisy.ravel())
    assert tasks.evaluate_verification(release, same).auc == pytest.approx(expected, abs=1e-12)
    assert tasks.evaluate_verification(release.noisy, same).auc == pytest.approx(expected, abs=1e-12)


def test_a_row_leaves_its_own_record_out(collection: Array) -> None:
    """A row leaves its own record out."""
    release = ss.release_row(collection, 4, epsilon=50, delta=1e-6, rng=3)
    same, folds = np.arange(40) % 4 == 0, np.arange(40) % 3
    others = np.arange(40) != 4
    found = tasks.evaluate_verification(release, same, folds=folds)
    alone = tasks.evaluate_verification(release.noisy[others], same[others], folds=folds[others])
    assert (found.auc, found.accuracy, found.genuine) == (alone.auc, alone.accuracy, 9)
    with pytest.raises(ss.InvalidInput, match="at least one of each"):
        tasks.evaluate_verification(release, np.arange(40) == 4)


@pytest.mark.parametrize(
    ("name", "accuracy", "eer", "auc", "tar"),
    [
        ("dlib", 0.990, 0.010, 0.9991, 0.968),
        ("dlib_centred", 0.984, 0.016, 0.9978, 0.784),
        ("faceres", 0.978, 0.021, 0.9972, 0.864),
        ("faceres_centred", 0.980, 0.020, 0.9984, 0.907),
        ("mobileface", 0.943, 0.063, 0.9829, 0.688),
    ],
)
def test_real_faces(shared_data: Path, name: str, accuracy: float, eer: float, auc: float, tar: float) -> None:
    """The table that came with the data; which of the best thresholds is taken moves an accuracy by up to 0.002."""
    with np.load(shared_data / "lfw_scores.npz") as file:
        scores = np.concatenate([file[f"{name}_genuine"], file[f"{name}_impostor"]])
        folds = np.concatenate([file["fold_genuine"], file["fold_impostor"]])
    found = tasks.evaluate_verification(scores, np.arange(6000) < 3000, folds=folds)
    assert found.accuracy == pytest.approx(accuracy, abs=0.002)
    assert found.eer == pytest.approx(eer, abs=5e-4)
    assert found.auc == pytest.approx(auc, abs=5e-5)
    assert found.tar_at(1e-3) == pytest.approx(tar, abs=5e-4)
    assert math.isnan(found.tar_at(1e-4))
    assert len(found.fold_accuracy) == 10


def test_pairs_of_real_faces(shared_data: Path) -> None:
    """Pairs of real faces are those scores."""
    with np.load(shared_data / "lfw_dlib.npz") as file:
        rows, pairs = file["emb"].astype(float), file["pairs"]
    chosen = pairs[pairs[:, 3] <= pairs[:, 3].min() + 1]  # two folds, 1200 pairs
    records, places = np.unique(chosen[:, :2], return_inverse=True)
    rows = rows[records] / np.linalg.norm(rows[records], axis=1, keepdims=True)
    found = tasks.evaluate_verification(
        rows @ rows.T, chosen[:, 2] == 1, pairs=places.reshape(-1, 2), folds=chosen[:, 3]
    )
    assert found.accuracy == pytest.approx(0.990, abs=0.01)
    assert (found.genuine, found.impostors) == (600, 600)
