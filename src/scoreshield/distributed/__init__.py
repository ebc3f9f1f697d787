"""Releases of partitioned collections on clusters: the same promise as on one machine, whatever runs twice or fails.

`release_block` is the core, without any engine. The other functions charge once, run the blocks on an engine, and open
the release when it is whole. docs/distributed.md says which engine to use, and what workers and operators can see.
"""

from scoreshield.distributed.blocks import release_block
from scoreshield.distributed.driver import abandon_release
from scoreshield.distributed.readers import DistributedBatch, DistributedGram, DistributedHistogram, DistributedIndex
from scoreshield.distributed.requests import (
    release_batch,
    release_gram,
    release_histogram,
    release_index,
    release_matches,
    release_scores,
)
from scoreshield.distributed.results import DistributedRelease, open_release

__all__ = [
    "DistributedBatch",
    "DistributedGram",
    "DistributedHistogram",
    "DistributedIndex",
    "DistributedRelease",
    "abandon_release",
    "open_release",
    "release_batch",
    "release_block",
    "release_gram",
    "release_histogram",
    "release_index",
    "release_matches",
    "release_scores",
]
