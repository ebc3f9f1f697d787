"""Verification on released scores: ROC-AUC, accuracy, equal error rate, true accepts at a rate.

A pair is accepted when its score is strictly above the threshold. With public folds the accuracy follows the protocol
of Labeled Faces in the Wild (Huang et al. 2007): the threshold for a fold is the best one on all other folds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import validate
from scoreshield.releases.results import Release, RowRelease, ScoreRelease
from scoreshield.tasks import _reading
from scoreshield.tasks._reading import Float, View, Whole


def _check_rate(value: Any, name: str) -> float:
    """Check for a number above 0 and at most 1."""
    must = "a number above 0 and at most 1"
    rate = _validation.check_real(value, name, must)
    if not 0 < rate <= 1:
        _validation.reject(name, must, value)
    return rate


@dataclass(frozen=True, eq=False)
class Verification:
    """How well scores distinguish genuine pairs from impostors.

    Attributes:
        auc: The probability that a genuine score is above an impostor's; ties count half.
        eer: The error at equal false accepts and false rejects, interpolated linearly between points of the curve.
        accuracy: The share of right decisions: at the best threshold, or the mean over folds if folds were given.
        threshold: The best threshold over all scores, the largest if several are; halfway between two scores.
        genuine: The number of genuine pairs.
        impostors: The number of impostor pairs.
        fold_accuracy: The accuracy on each fold, in the order of their numbers; None without folds.
        fpr: The false-accept rates of the operating points, from 0 to 1, one for each different score.
        tpr: The true-accept rates of the same points.
    """

    auc: float
    eer: float
    accuracy: float
    threshold: float
    genuine: int
    impostors: int
    fold_accuracy: Float | None = field(repr=False)
    fpr: Float = field(repr=False)
    tpr: Float = field(repr=False)

    @validate(fpr=_check_rate)
    def tar_at(self, fpr: float) -> float:
        """Return the largest true-accept rate whose false-accept rate is at most `fpr`.

        The result is NaN with fewer than 1 / fpr impostors, since they cannot show so small a rate.
        """
        if self.impostors * fpr < 1 - 1e-9:
            return float("nan")
        return float(self.tpr[self.fpr <= fpr].max())


@validate()
def evaluate_verification(
    release: Release | ArrayLike,
    labels: ArrayLike,
    *,
    pairs: ArrayLike | None = None,
    folds: ArrayLike | None = None,
    view: View = "feasible",
) -> Verification:
    """Measure how well released scores distinguish same from different.

    Args:
        release: Scores (a score or row release, or an array shaped as `labels`), evaluated one by one on their noisy
            values; or pairwise similarities (a Gram or index release, or a symmetric matrix). A row's own public 1 is
            left out. A plain array is read as it is and carries no promise.
        labels: For scores, whether each is of the same person or thing. For a matrix, a class label for each record,
            and all pairs i < j are evaluated; or, with `pairs`, whether each pair is the same.
        pairs: (m, 2) Record numbers; for a matrix only.
        folds: A public fold number for each score or pair (all pairs: in the order of ``numpy.triu_indices``).
        view: Which matrix of a Gram release: "feasible" or "noisy".
    """
    values, same = _collect_comparisons(release, labels, pairs, view)
    groups = None if folds is None else _check_folds(folds, values.shape)
    if isinstance(release, RowRelease):
        values, others = np.delete(values, release.index), np.delete(same, release.index)
        same = _reading.read_outcomes(others, values.shape)
        groups = None if groups is None else np.delete(groups, release.index)
    values, same = values.ravel(), same.ravel()
    fpr, tpr, cuts = _compute_operating_points(values, same)
    best, threshold = _find_best_threshold(fpr, tpr, cuts, same)
    by_fold = None if groups is None else _measure_folds(values, same, groups.ravel())
    return Verification(
        auc=float(_reading.import_sklearn("metrics", "Verification").auc(fpr, tpr)),
        eer=_find_equal_error(fpr, tpr),
        accuracy=best if by_fold is None else float(by_fold.mean()),
        threshold=threshold,
        genuine=int(same.sum()),
        impostors=int((~same).sum()),
        fold_accuracy=by_fold,
        fpr=fpr,
        tpr=tpr,
    )


def _collect_comparisons(release: Any, labels: Any, pairs: Any, view: View) -> tuple[Float, NDArray[np.bool_]]:
    """Return the scores to evaluate, and whether each is of a genuine pair."""
    if isinstance(release, ScoreRelease):
        if pairs is not None:
            _validation.reject("pairs", "left out where scores are released one by one", pairs)
        return release.noisy, _reading.read_outcomes(labels, release.noisy.shape)
    if pairs is None and not isinstance(release, Release):
        array = _validation.check_array(release, "release", "a release or an array of finite numbers")
        if array.ndim == 1 or array.shape == np.shape(_validation.check_array(labels, "labels", "an array of labels")):
            return _reading.read_scores(release), _reading.read_outcomes(labels, array.shape)
    matrix = _reading.read_similarities(release, view)
    if pairs is not None:
        chosen = _reading.read_pair_numbers(pairs, len(matrix))
        return matrix[chosen[:, 0], chosen[:, 1]], _reading.read_outcomes(labels, (len(chosen),))
    classes = _reading.read_classes(labels, len(matrix))
    upper = np.triu(np.ones(matrix.shape, dtype=np.bool_), 1)
    same = (classes[:, None] == classes)[upper]
    if same.all() or not same.any():
        must = "class labels of which two are equal and two are not"
        _validation.reject("labels", must, labels)
    return matrix[upper], same


def _check_folds(folds: Any, shape: tuple[int, ...]) -> Whole:
    must = f"one whole number for each score or pair, an array of shape {shape}, with at least two different ones"
    groups = _reading.read_whole_numbers(folds, "folds", must)
    if groups.shape != shape or groups.min() == groups.max():
        _validation.reject("folds", must, folds)
    return groups


def _compute_operating_points(values: Float, same: NDArray[np.bool_]) -> tuple[Float, Float, Float]:
    """Return rates with a falling threshold, and the thresholds of the rule "at or above"; the first accepts none."""
    metrics = _reading.import_sklearn("metrics", "Verification")
    fpr, tpr, cuts = metrics.roc_curve(same, values, drop_intermediate=False)
    return fpr, tpr, cuts


def _find_best_threshold(fpr: Float, tpr: Float, cuts: Float, same: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the best share of right decisions, and a threshold of the rule "above" that reaches it."""
    genuine, impostors = int(same.sum()), int((~same).sum())
    right = np.rint(tpr * genuine) + impostors - np.rint(fpr * impostors)  # whole numbers, so that ties are exact
    place = int(np.argmax(right))
    return float(right[place] / len(same)), _find_threshold_below(cuts, place)


def _find_threshold_below(cuts: Float, place: int) -> float:
    """Return a threshold t for which "above t" accepts the same as "at or above cuts[place]"."""
    if place == 0:
        return float(cuts[1])  # the largest score: nothing is above it
    if place == len(cuts) - 1:
        return float(np.nextafter(cuts[-1], -np.inf))
    high, low = float(cuts[place]), float(cuts[place + 1])
    middle = high / 2 + low / 2
    return middle if low <= middle < high else low  # neighbouring floats have nothing between them


def _measure_folds(values: Float, same: NDArray[np.bool_], groups: Whole) -> Float:
    accuracies = []
    for fold in np.unique(groups):
        is_held_out = groups == fold
        rest = same[~is_held_out]
        if rest.all() or not rest.any():
            must = "such that each fold leaves genuine and impostor pairs in the others"
            _validation.reject("folds", must, groups)
        threshold = _find_best_threshold(*_compute_operating_points(values[~is_held_out], rest), rest)[1]
        accuracies.append(np.mean((values[is_held_out] > threshold) == same[is_held_out]))
    return np.array(accuracies)


def _find_equal_error(fpr: Float, tpr: Float) -> float:
    gap = fpr + tpr - 1  # rises from -1 to 1
    place = int(np.argmax(gap >= 0))
    share = -gap[place - 1] / (gap[place] - gap[place - 1])
    return float(fpr[place - 1] + share * (fpr[place] - fpr[place - 1]))
