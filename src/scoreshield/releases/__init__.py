"""The releases: one module for each score object, and the pipeline that they share."""

from scoreshield.releases.histogram import release_histogram
from scoreshield.releases.index import IndexRelease, pair_components, release_index
from scoreshield.releases.matches import release_matches, release_top_k
from scoreshield.releases.results import load
from scoreshield.releases.scores import release_gram, release_row, release_scores

__all__ = [
    "IndexRelease",
    "load",
    "pair_components",
    "release_gram",
    "release_histogram",
    "release_index",
    "release_matches",
    "release_row",
    "release_scores",
    "release_top_k",
]
