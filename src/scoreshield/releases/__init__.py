"""The releases: one module for each score object, and the pipeline that they share.

A release (1) checks its arguments, (2) finds the sensitivity from the adjacency and public facts, (3) calibrates
the noise and its grid and states its guarantee, (4) reserves that guarantee in the ledger, (5) computes the clean
scores and clamps them to the public range, (6) commits the charge, (7) overwrites the scores with their noisy version,
and (8) projects that onto the valid cosine objects. Each ``prepare_`` function does steps 1 to 3 and returns the rest
as a `PendingRelease`. Between steps 5 and 7 clean scores live in local arrays
that are overwritten or freed; nothing returned, raised or stored holds one.
"""

from scoreshield.releases.batch import BatchRelease, PublicLevels, release_batch
from scoreshield.releases.codebook import CodebookRelease, PublicCodebook
from scoreshield.releases.gram import release_gram
from scoreshield.releases.histogram import release_histogram
from scoreshield.releases.index import IndexRelease, release_index
from scoreshield.releases.index_pairs import pair_components
from scoreshield.releases.matches import release_matches
from scoreshield.releases.results import load
from scoreshield.releases.row import release_row
from scoreshield.releases.scores import release_scores
from scoreshield.releases.top_k import release_top_k
from scoreshield.releases.versions import CodebookVersion, IndexVersion

__all__ = [
    "BatchRelease",
    "CodebookRelease",
    "CodebookVersion",
    "IndexRelease",
    "IndexVersion",
    "PublicCodebook",
    "PublicLevels",
    "load",
    "pair_components",
    "release_batch",
    "release_gram",
    "release_histogram",
    "release_index",
    "release_matches",
    "release_row",
    "release_scores",
    "release_top_k",
]
