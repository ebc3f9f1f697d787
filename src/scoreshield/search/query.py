"""All scores of a query, with a new release for each query."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from scoreshield._types import Rng
from scoreshield.privacy.adjacency import Adjacency
from scoreshield.releases.pipeline import PendingRelease
from scoreshield.releases.results import ScoreRelease
from scoreshield.releases.scores import prepare_scores
from scoreshield.search.base import Float, Reading, SearchOptions
from scoreshield.search.batch import PerQuerySearch, Ranking


class QuerySearch(PerQuerySearch):
    """Release all n scores of each query, as `scoreshield.release_scores` does."""

    mode = "query"
    adviser_kind = "query"
    releases_scores = True

    @classmethod
    def check_options(cls, options: SearchOptions) -> None:
        super().check_options(options)
        options.reject_screening()

    def prepare(
        self, rows: NDArray[Any], query: Float, adjacency: Adjacency, rng: Rng
    ) -> PendingRelease[Float, ScoreRelease]:
        options = self._options
        mechanism: Any = "auto" if options.mechanism is None else options.mechanism
        return prepare_scores(
            rows,
            query,
            epsilon=options.epsilon,
            delta=options.delta,
            mechanism=mechanism,
            for_="ranking" if mechanism == "auto" else "values",
            k=options.k,
            public_scores=options.public_scores,
            adjacency=adjacency,
            score_range=options.score_range,
            rng=rng,
        )

    def rank(self, release: ScoreRelease, reading: Reading) -> Ranking:
        return Ranking(release.noisy, release.top_k, reading)
