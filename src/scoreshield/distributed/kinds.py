"""What a tile of each kind of release draws: rows and a stream in, released columns out.

A kind that is here releases each record by itself: what it draws for one record depends on that record, on public facts
and on the stream. So a tile needs nothing of the other tiles, and the promise is that of the same release on one
machine. There are two exceptions. The tiles of a histogram are encrypted, and the driver adds the noise. Pairs of
records have tiles of their own, and noise that covers what one record moves in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from scoreshield.distributed.manifest import Manifest
from scoreshield.distributed.parts import Columns, decode_matrix
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.geometry.arrays import to_device, to_numpy
from scoreshield.geometry.embeddings import Rows
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.levels.tables import LevelChannel
from scoreshield.privacy.noise import GaussianNoise, add_noise
from scoreshield.privacy.sampling.stream import Stream
from scoreshield.releases.batch import BatchAlphabet
from scoreshield.releases.histogram import add_count_noise, count_scores
from scoreshield.releases.index import draw_vectors
from scoreshield.releases.index_plan import find_maker
from scoreshield.releases.matches import screen_scores

Counts = NDArray[np.int64]
#: The most steps of the grid that 32 bits hold.
_LARGEST_STEPS = 2**31 - 1
#: Draws one tile: its manifest, the promise, its rows, its stream.
TileDraw = Callable[[Manifest, Guarantee, Rows, Stream], Columns]


def draw_scores(manifest: Manifest, guarantee: Guarantee, rows: Rows, stream: Stream) -> Columns:
    """Add noise to the scores of each query, or draw their levels from a table."""
    scores = _embeddings.compute_scores(rows, manifest.queries, manifest.options["norm"], repeats=True)
    values = np.clip(scores, *guarantee.score_range, out=scores).reshape(-1)
    noise = guarantee.noise
    assert noise is not None  # `release_scores` accepts no other mechanism
    if isinstance(noise, LevelChannel):
        values = noise.release(stream, values)
    else:
        add_noise(values, noise, guarantee.grid, stream)
    numbers = np.arange(len(rows))
    if len(manifest.queries) == 1:
        return {"row": numbers, "score": values}
    return {"row": numbers, "scores": values.reshape(len(manifest.queries), len(rows)).T}


def draw_matches(manifest: Manifest, guarantee: Guarantee, rows: Rows, stream: Stream) -> Columns:
    """Name the records above the threshold, by randomised response, with noisy scores if they are refined."""
    scores = _embeddings.compute_scores(rows, manifest.queries, manifest.options["norm"], repeats=True)[0]
    np.clip(scores, *guarantee.score_range, out=scores)
    candidates, values = screen_scores(scores, guarantee, stream)
    return {"row": candidates, "score": values} if guarantee.details["refining_epsilon"] else {"row": candidates}


def draw_index(manifest: Manifest, guarantee: Guarantee, rows: Rows, stream: Stream) -> Columns:
    """Draw the private vector of each record."""
    projection, center = (decode_matrix(manifest.options[name]) for name in ("projection", "center"))
    vectors = draw_vectors(find_maker(guarantee), rows, projection, center, stream)
    return {"row": np.arange(len(rows)), "vector": vectors}


def draw_batch(manifest: Manifest, guarantee: Guarantee, rows: Rows, stream: Stream) -> Columns:
    """Draw the symbol of each record: the queries that it names, and a level for each of them."""
    alphabet = BatchAlphabet.from_guarantee(guarantee)
    true = alphabet.find_symbols(rows, manifest.queries, manifest.options["norm"], None)
    names, levels = alphabet.draw(true, stream)
    return {"row": np.arange(len(rows)), "names": names, "levels": levels}


def count_tile(manifest: Manifest, rows: Rows) -> Counts:
    """Count the clean scores of a tile in each bin. They must be hidden by `pad_counts` before they leave the task."""
    edges = decode_matrix(manifest.options["edges"])
    assert edges is not None  # `release_histogram` writes them
    return count_scores(rows, manifest.queries, edges, manifest.options["norm"])


def pad_counts(counts: Counts, hash_: str, stream: Stream) -> Columns:
    """Add a one-time pad to the counts of a tile, modulo 2^64, which hides them.

    Counts are sums over all records, so that noise is added once, to the sum over all tiles. Until then no tile's
    counts may be seen. The pad is uniform: without the key, the part reveals nothing. The driver has the key, subtracts
    the pads from the sum, and adds the noise (`add_noise_to_sum`).

    Args:
        counts: The counts of a tile.
        hash_: A keyed hash of them, which the driver needs to draw the same pad.
        stream: The stream of the tile and of the hash, so that no pad is added to two different counts.
    """
    padded = counts.view(np.uint64) + _draw_pad(stream, len(counts))
    return {"row": np.zeros(1, dtype=np.int64), "padded": padded[None], "hash": np.array([hash_], dtype=object)}


def sum_counts(parts: Iterable[Columns], open_pad: Callable[[int, str], Stream], size: int) -> Counts:
    """Sum the padded counts of all tiles, and subtract the pads. The sum is clean.

    Args:
        parts: What `pad_counts` returned for each tile, of one or several tiles each.
        open_pad: Opens the stream of a tile, by its number and the hash of its counts.
        size: The number of bins.

    Raises:
        InvalidInput: A part holds something else.
    """
    total, tile = np.zeros(size, dtype=np.uint64), 0
    for columns in parts:
        padded, hashes = columns.get("padded"), columns.get("hash")
        if padded is None or hashes is None or padded.ndim != 2 or padded.shape != (len(hashes), size):
            raise InvalidInput("A part of the release holds no counts of this histogram: was a file put in its place?")
        total += padded.sum(axis=0, dtype=np.uint64)
        for hash_ in hashes.tolist():
            total -= _draw_pad(open_pad(tile, hash_), size)
            tile += 1
    return total.view(np.int64)


def add_noise_to_sum(counts: Counts, guarantee: Guarantee, noise: Stream) -> list[int]:
    """Add the noise of the promise to the counts of all records."""
    add_count_noise(counts, guarantee, noise)
    found: list[int] = counts.tolist()
    return found


def draw_pairs(guarantee: Guarantee, first: Rows, second: Rows | None, stream: Stream, device: str = "cpu") -> Columns:
    """Add noise to the scores of pairs: every record of one tile with every record of another, row by row.

    Args:
        guarantee: The promise.
        first: The records of the first tile.
        second: Those of the second; None for the pairs of the first tile, each once, above the diagonal.
        stream: The stream of both tiles.
        device: Where they are multiplied, in double precision.
    """
    unit = to_device(_embeddings.normalise_rows(first), device)
    other = unit if second is None else to_device(_embeddings.normalise_rows(second), device)
    products = to_numpy(unit @ other.T)
    values = products[np.triu_indices(len(products), 1)] if second is None else products.reshape(-1)
    np.clip(values, *guarantee.score_range, out=values)
    law = guarantee.noise
    assert isinstance(law, GaussianNoise)  # a Gram matrix takes no other noise
    add_noise(values, law, guarantee.grid, stream)
    if not has_short_steps(guarantee):
        return {"value": values}
    steps = values / guarantee.grid  # exact: the grid is a power of two
    return {"steps": np.clip(steps, -_LARGEST_STEPS, _LARGEST_STEPS).astype(np.int32)}


def has_short_steps(guarantee: Guarantee) -> bool:
    """Whether 32 bits hold noisy scores as whole steps, up to 12 standard deviations of the noise."""
    return (1 + 12 * guarantee.noise_std) / guarantee.grid <= _LARGEST_STEPS


def _draw_pad(stream: Stream, count: int) -> NDArray[np.uint64]:
    return stream.words(count).astype(np.int64).view(np.uint64)


#: The kinds of release whose tiles are released by themselves.
KINDS: dict[str, TileDraw] = {
    "scores": draw_scores,
    "matches": draw_matches,
    "index": draw_index,
    "batch": draw_batch,
}
