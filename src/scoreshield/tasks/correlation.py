"""Semantic textual similarity: Spearman's rank correlation of released similarities with human scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from scoreshield import _validation
from scoreshield._validation import validate
from scoreshield.releases.results import Release
from scoreshield.tasks import _reading


@validate()
def sts_spearman(release: Release | ArrayLike, pairs: ArrayLike, human: ArrayLike, *, view: str = "feasible") -> float:
    """Compute Spearman's correlation of the released similarities of some pairs with human scores.

    If all released similarities are equal, the correlation is undefined. The result is then 0.0, since such a release
    has no order.

    Args:
        release: Pairwise similarities: a Gram or index release, or a symmetric matrix, which is read as it is and
            carries no promise.
        pairs: (m, 2) Record numbers, at least two pairs.
        human: m scores by people, not all equal; they are public.
        view: Which matrix of a Gram release: "feasible" or "noisy".
    """
    from scipy.stats import spearmanr  # takes a third of a second, and is needed only here

    matrix = _reading.read_similarities(release, view)
    chosen = _reading.read_pair_numbers(pairs, len(matrix))
    must = f"a list of {len(chosen)} finite numbers, one a pair, at least two of them different"
    scores = _reading.read_numbers(human, "human", must)
    if scores.shape != (len(chosen),) or scores.min() == scores.max():
        _validation.reject("human", must, human)
    entries = matrix[chosen[:, 0], chosen[:, 1]]
    if np.ptp(entries) == 0:
        return 0.0
    return float(spearmanr(entries, scores).statistic)
