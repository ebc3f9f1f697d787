"""Spearman's correlation against its definition by ranks, and on real sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata

import scoreshield as ss
from scoreshield import tasks

MATRIX = np.array([[1, 0.5, 0.1, 0.3], [0.5, 1, 0.2, 0.5], [0.1, 0.2, 1, 0.0], [0.3, 0.5, 0.0, 1]])
PAIRS = [[0, 1], [0, 2], [3, 1], [2, 3]]


def test_against_the_correlation_of_ranks() -> None:
    """The result is the correlation of ranks."""
    human = [4.0, 1.0, 5.0, 2.0]
    ranks = rankdata([0.5, 0.1, 0.5, 0.0]), rankdata(human)
    assert tasks.sts_spearman(MATRIX, PAIRS, human) == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert tasks.sts_spearman(MATRIX, PAIRS[1:], [2.0, 9.0, 1.0]) == pytest.approx(1.0)
    assert tasks.sts_spearman(MATRIX, PAIRS[1:], [2.0, 1.0, 9.0]) == pytest.approx(-1.0)


def test_equal_similarities_correlate() -> None:
    """Equal similarities correlate with nothing."""
    assert tasks.sts_spearman(np.ones((4, 4)), PAIRS, [1, 2, 3, 4]) == 0.0


def test_reads_the_view_that_is_asked_for(collection: np.ndarray) -> None:
    """The view argument chooses the matrix."""
    release = ss.release_gram(collection, epsilon=5, delta=1e-6, adjacency=ss.GramRadius(2.0), rng=1)
    pairs = np.stack([np.arange(20), np.arange(20, 40)], axis=1)
    human = release.noisy[pairs[:, 0], pairs[:, 1]]
    assert tasks.sts_spearman(release, pairs, human, view="noisy") == pytest.approx(1.0)
    assert tasks.sts_spearman(release, pairs, human) < 0.999


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"pairs": [[0, 4], [1, 2], [0, 1], [0, 2]]}, "record numbers below 4"),
        ({"pairs": [[0, 0], [1, 2], [0, 1], [0, 2]]}, "different record numbers"),
        ({"pairs": [[0, -1], [1, 2], [0, 1], [0, 2]]}, "'pairs'"),
        ({"pairs": [0, 1, 2, 3]}, "shape (m, 2)"),
        ({"pairs": []}, "shape (m, 2)"),
        ({"pairs": [[0.0, 1.0]]}, "'pairs'"),
        ({"human": [1, 2, 3]}, "4 finite numbers"),
        ({"human": [1, 2, 3, np.nan]}, "4 finite numbers"),
        ({"human": [2, 2, 2, 2]}, "two of them different"),
        ({"pairs": [[0, 1]], "human": [2]}, "two of them different"),
        ({"human": ["1", "2", "3", "4"]}, "'human'"),
    ],
)
def test_bad_input(given: dict[str, object], says: str) -> None:
    """A bad argument raises an error."""
    with pytest.raises(ss.InvalidInput, match="sts_spearman") as caught:
        tasks.sts_spearman(**{"release": MATRIX, "pairs": PAIRS, "human": [1, 2, 3, 4], **given})
    assert says in str(caught.value)


def test_real_sentences(shared_data: Path) -> None:
    """The figure that came with the data."""
    with np.load(shared_data / "stsb_test_minilm.npz") as file:
        rows, pairs, human = file["emb"], np.stack([file["i"], file["j"]], axis=1), file["score"]
    assert tasks.sts_spearman(rows @ rows.T, pairs, human) == pytest.approx(0.8203, abs=5e-5)
