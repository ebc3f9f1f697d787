"""The records that pass a public threshold, with a new release for each query."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._types import Rng
from scoreshield.errors import InvalidInput
from scoreshield.privacy.adjacency import Adjacency
from scoreshield.releases.matches import prepare_matches
from scoreshield.releases.pipeline import PendingRelease
from scoreshield.releases.results import MatchRelease
from scoreshield.search.base import Float, Reading, SearchOptions
from scoreshield.search.batch import PerQuerySearch, Ranking


class ScreeningSearch(PerQuerySearch):
    """Release which records pass a threshold, as `scoreshield.release_matches` does."""

    mode = "screening"
    adviser_kind = "screening"

    @classmethod
    def check_options(cls, options: SearchOptions) -> None:
        super().check_options(options)
        if options.threshold is None:
            raise InvalidInput("Mode 'screening' needs a 'threshold': the score that a record must pass.")
        if options.delta:
            _validation.reject("delta", "0 (left out) for screening, which is private without it", options.delta)
        if options.mechanism is not None:
            raise InvalidInput("Screening has one mechanism, randomised response; leave 'mechanism' out.")

    @property
    def releases_scores(self) -> bool:
        return self._options.refine > 0

    def prepare(
        self, rows: NDArray[Any], query: Float, adjacency: Adjacency, rng: Rng
    ) -> PendingRelease[Float, MatchRelease]:
        options = self._options
        assert options.threshold is not None  # check_options requires one
        return prepare_matches(
            rows,
            query,
            options.threshold,
            epsilon=options.epsilon,
            refine=options.refine,
            adjacency=adjacency,
            score_range=options.score_range,
            rng=rng,
        )

    def rank(self, release: MatchRelease, reading: Reading) -> Ranking:
        matches = release.indices
        if not self.releases_scores:
            return Ranking(None, lambda k, _: matches[:k], reading)
        noisy = np.full(release.guarantee.shape[0], -np.inf)
        noisy[release.candidates] = release.noisy

        def rank(k: int, threshold: float | None) -> NDArray[np.intp]:
            return matches[:k] if threshold is None else matches[noisy[matches] >= threshold][:k]

        return Ranking(noisy, rank, reading)
