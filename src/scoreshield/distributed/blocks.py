"""One block of a release, without any engine: from a manifest, a key handle and a number to the bytes of a file.

The noise of a tile comes from a stream that HKDF-SHA256 derives from the release key, the release, the snapshot of the
collection, the mechanism and the number of the tile. So a block can be computed twice, anywhere, and is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scoreshield._frames import clear_frames_on_error
from scoreshield._loading import make_printable
from scoreshield._rows import RowSource
from scoreshield.distributed import storage
from scoreshield.distributed.duplicates import write_hashes
from scoreshield.distributed.keys import KeyHandle
from scoreshield.distributed.kinds import KINDS, draw_pairs, sum_counts
from scoreshield.distributed.manifest import TILE_ROWS, Manifest
from scoreshield.distributed.parts import Columns, join_columns, read_part, write_part
from scoreshield.distributed.sources.facts import Seal
from scoreshield.distributed.sources.files import FileRows
from scoreshield.distributed.sources.opening import open_ids, open_source
from scoreshield.errors import InvalidInput, InvalidRow, ScoreShieldError
from scoreshield.geometry.embeddings import Rows
from scoreshield.privacy.sampling.stream import KeyedStream


class BlockFacts(NamedTuple):
    """What a task reports of its block; all of it is public.

    Attributes:
        number: The number of the block.
        size: The bytes of its file.
        digest: The SHA-256 of its file.
    """

    number: int
    size: int
    digest: str


@clear_frames_on_error
def release_block(manifest: Manifest, handle: KeyHandle, i: int, j: int = 0) -> bytes:
    """Release one block of records: the same bytes wherever and whenever it is called.

    Args:
        manifest: The public facts of the release.
        handle: Names the key, which must be with this process.
        i: The number of the block.
        j: The number of the second block, for pairs of records; 0 otherwise.

    Raises:
        InvalidInput: A file changed since the release began, there is no such block, or the process has no key.
    """
    most = -(-manifest.source.rows // manifest.options["side"]) if manifest.kind == "gram" else manifest.count_blocks
    if not (0 <= i < most and 0 <= j < (most if manifest.kind == "gram" else 1)):
        raise InvalidInput(f"The release has no block ({i}, {j}).")
    if manifest.kind == "gram":
        return write_part(_release_pairs(manifest, handle, min(i, j), max(i, j)))
    guarantee, draw = manifest.read_guarantee(), KINDS[manifest.kind]
    rows = _open_rows(manifest, handle)
    room = np.empty((min(TILE_ROWS, manifest.source.rows), manifest.source.dimension), dtype=rows.dtype)
    parts: list[Columns] = []
    for tile, start, stop in manifest.list_tiles(i):
        window = _read_rows(manifest, rows, start, stop, room)
        stream = _open_tile(manifest, handle, manifest.kind, tile, j)
        columns = draw(manifest, guarantee, window, stream)
        columns["row"] = columns["row"] + start
        parts.append(columns)
    columns = join_columns(parts)
    best = manifest.options.get("best")
    if best is not None:
        columns = select_best_scores(columns, best, read_tie_break(manifest, handle))
    if manifest.source.ids:
        columns = _add_ids(manifest, handle, i, columns)
    return write_part(columns)


def _release_pairs(manifest: Manifest, handle: KeyHandle, i: int, j: int) -> Columns:
    """Release the scores of the records of one tile of pairs with those of another, or among themselves."""
    source, side = _open_rows(manifest, handle), manifest.options["side"]
    first, second = (_read_rows(manifest, source, tile * side, (tile + 1) * side) for tile in (i, j))
    stream = _open_tile(manifest, handle, manifest.kind, i, j)
    return draw_pairs(manifest.read_guarantee(), first, None if i == j else second, stream)


def _open_rows(manifest: Manifest, handle: KeyHandle) -> RowSource:
    return open_source(manifest.source, is_lenient=not manifest.options["checked"], seal=handle.seal)


def _read_rows(manifest: Manifest, source: RowSource, start: int, stop: int, room: Rows | None = None) -> Rows:
    """Read rows, into the same room again and again where it is given and the source can."""
    if room is not None and isinstance(source, FileRows):
        rows: Rows = source.read(start, stop, room)
    else:
        rows = source[start:stop]
    return rows if manifest.options["checked"] else _replace_unusable(rows)


def read_tie_break(manifest: Manifest, handle: KeyHandle) -> int:
    """Draw the seed of the order of records with equal scores. It is public once the release is whole."""
    return int(_open_tile(manifest, handle, "ties", 0, 0).words(1)[0] >> 1) & (2**62 - 1)


@clear_frames_on_error
def draw_last_values(
    manifest: Manifest, handle: KeyHandle, folder: storage.ReleaseFolder, written: Sequence[BlockFacts]
) -> dict[str, Any]:
    """Draw what the driver adds to the last file when all parts are written: the same if it is called again."""
    found: dict[str, Any] = {"tie_break": read_tie_break(manifest, handle)}
    if manifest.kind == "histogram":
        parts = (read_part(_read_written(folder, one)) for one in written)
        tiles = -(-manifest.source.rows // TILE_ROWS)
        pads = (_open_tile(manifest, handle, manifest.kind, tile, 0) for tile in range(tiles))
        noise = _open_tile(manifest, handle, "histogram noise", 0, 0)
        found["counts"] = sum_counts(parts, pads, manifest.read_guarantee(), noise)
    return found


def select_best_scores(columns: Columns, count: int, tie_break: int) -> Columns:
    """Keep the records of the best released scores, best first; equal scores are in a random, public order."""
    scores, rows = columns["score"], columns["row"]
    if len(scores) > count:
        least = np.partition(scores, len(scores) - count)[len(scores) - count]
        kept = np.flatnonzero(scores >= least)
        scores, rows = scores[kept], rows[kept]
    order = np.lexsort((_draw_ties(rows, tie_break), -scores))[:count]
    return {"row": rows[order], "score": scores[order]}


@dataclass(frozen=True)
class BlockTask:
    """What an engine sends to its workers. It holds no secret and no record.

    Attributes:
        address: The folder of the release.
        digest: The SHA-256 of its manifest.
        handle: Names the key.
        step: ``"check"`` reads the rows and releases nothing; ``"release"`` writes blocks.
    """

    address: str
    digest: str
    handle: KeyHandle
    step: Literal["check", "release"] = "release"

    @clear_frames_on_error
    def run(self, number: int) -> BlockFacts:
        """Do the work of one block, unless another task did it.

        Engines keep and log the text of an error. One of another library could show rows, and is left out here.
        """
        try:
            return self._run(number)
        except InvalidRow:
            reason = "A block holds a row that cannot be released."
        except ScoreShieldError:
            raise
        except Exception as error:
            reason = f"A block failed with {type(error).__name__}; start the same release again to go on."
        raise InvalidInput(reason)  # outside of the handler, so that the first error is not its context

    def _run(self, number: int) -> BlockFacts:
        manifest = _read_manifest(self.address, self.digest)
        if self.step == "check":
            if manifest.options["checked"]:
                _check_rows(manifest, number)
            if manifest.source.ids:
                ids = _read_ids(manifest, number, None)
                write_hashes(storage.open_folder(self.address), self.digest, number, ids)
            return BlockFacts(number, 0, "")
        folder, name = storage.open_folder(self.address), storage.name_part(number)
        content = folder.read(name)
        if content is None:
            content = folder.put_or_read(name, release_block(manifest, self.handle, *manifest.find_tiles(number)))
        return BlockFacts(number, len(content), storage.compute_digest(content))


def _read_written(folder: storage.ReleaseFolder, facts: BlockFacts) -> bytes:
    content = folder.read(storage.name_part(facts.number))
    if content is None or storage.compute_digest(content) != facts.digest:
        raise InvalidInput(f"Part {facts.number} of the release changed after it was written.")
    return content


@lru_cache(maxsize=8)
def _read_manifest(address: str, digest: str) -> Manifest:
    content = storage.open_folder(address).read(storage.MANIFEST)
    if content is None or storage.compute_digest(content) != digest:
        raise InvalidInput(
            f"This worker does not find the manifest of the release in {make_printable(address)}: the folder must be "
            "on storage that all workers share."
        )
    manifest = Manifest.from_bytes(content)
    manifest.check_version()
    return manifest


def _open_tile(manifest: Manifest, handle: KeyHandle, kind: str, i: int, j: int) -> KeyedStream:
    facts = (manifest.stream_name, manifest.snapshot, manifest.mechanism, kind, str(i), str(j))
    return handle.open_stream(*facts)


def _draw_ties(rows: NDArray[np.int64], tie_break: int) -> NDArray[np.float64]:
    """Draw one number for each record, the same in every selection of the release."""
    ties = np.empty(len(rows))
    for tile in np.unique(rows // TILE_ROWS).tolist():
        here = rows // TILE_ROWS == tile
        ties[here] = np.random.default_rng([tie_break, tile]).random(TILE_ROWS)[rows[here] % TILE_ROWS]
    return ties


def _check_rows(manifest: Manifest, number: int) -> None:
    """Raise an error, which names no record, if a row cannot be released."""
    rows: RowSource = open_source(manifest.source)
    for _, start, stop in manifest.list_tiles(number):
        if not np.isfinite(rows[start:stop]).all():
            raise InvalidInput(
                "The collection holds vectors with a missing number, a NaN or an infinity; nothing was charged."
            )


def _read_ids(manifest: Manifest, number: int, seal: Seal | None) -> list[Any]:
    tiles = manifest.list_tiles(number)
    return open_ids(manifest.source, seal).read(tiles[0][1], tiles[-1][2])


def _add_ids(manifest: Manifest, handle: KeyHandle, number: int, columns: Columns) -> Columns:
    """Add the ids of the records beside their numbers."""
    ids = _read_ids(manifest, number, handle.seal)
    found = np.array(ids, dtype=np.int64 if isinstance(ids[0], int) else object)
    chosen = found[columns["row"] - number * manifest.block_rows]
    return {"row": columns["row"], "id": chosen} | {name: values for name, values in columns.items() if name != "row"}


def _replace_unusable(rows: Rows) -> Rows:
    """Take a row that is not finite as zero: after the charge, no record may decide whether there is a release."""
    with np.errstate(all="ignore"):
        odd = np.flatnonzero(~np.isfinite(np.vecdot(rows, rows)))  # also where a square overflows
    unusable = odd[~np.isfinite(rows[odd]).all(axis=1)]
    if len(unusable):
        rows = rows.copy()
        rows[unusable] = 0
    return rows
