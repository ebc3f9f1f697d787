"""One block of a release, without any engine: from a manifest, a key handle and a number to the bytes of a file.

The noise of a tile comes from a stream that HKDF-SHA256 derives from the release key, the release, the snapshot of the
collection, the mechanism, the number of the tile and a keyed hash of its rows. So a block can be computed twice,
anywhere, and is the same. Rows that changed get other noise, also where their file does not show the change: the same
noise would give away the difference.
"""

from __future__ import annotations

import contextlib
import hmac
import json
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
from scoreshield.distributed.kinds import KINDS, add_noise_to_sum, count_tile, draw_pairs, pad_counts, sum_counts
from scoreshield.distributed.manifest import TILE_ROWS, Manifest
from scoreshield.distributed.parts import Columns, join_columns, list_numbers, read_sealed_part, write_part
from scoreshield.distributed.prepared import is_prepared, keep_block, open_block
from scoreshield.distributed.sources.facts import Seal
from scoreshield.distributed.sources.files import FileRows
from scoreshield.distributed.sources.opening import open_ids, open_source
from scoreshield.errors import FileError, InvalidInput, InvalidRow, ScoreShieldError
from scoreshield.geometry.arrays import check_device
from scoreshield.geometry.embeddings import Rows
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.sampling.stream import KeyedStream

#: What a task does with its block.
Step = Literal["check", "release"]
#: The kinds whose scores are computed by what raises `InvalidRow` for a row that is not finite.
_SCORED_KINDS = {"scores", "matches", "histogram"}


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
def release_block(manifest: Manifest, handle: KeyHandle, i: int, j: int = 0, *, device: str = "cpu") -> bytes:
    """Release one block of records: the same bytes wherever and whenever it is called.

    Products of pairs could differ in their last bit on another processor, and above all on a GPU. Noise and grid hide
    almost all such differences, and the first block that is written is the only one that is shown.

    Args:
        manifest: The public facts of the release.
        handle: Names the key, which must be with this process.
        i: The number of the block.
        j: The number of the second block, for pairs of records; 0 otherwise.
        device: Where pairs of records are multiplied.

    Raises:
        InvalidInput: A file changed since the release began, there is no such block, or the process has no key.
    """
    most = -(-manifest.source.rows // manifest.options["side"]) if manifest.kind == "gram" else manifest.count_blocks
    if not (0 <= i < most and 0 <= j < (most if manifest.kind == "gram" else 1)):
        raise InvalidInput(f"The release has no block ({i}, {j}).")
    if manifest.kind == "gram":
        i, j = min(i, j), max(i, j)
        return _write_sealed(_release_pairs(manifest, handle, i, j, device), handle, manifest.find_part(i, j))
    guarantee, rows = manifest.read_guarantee(), _open_rows(manifest, handle)
    room = np.empty((min(TILE_ROWS, manifest.source.rows), manifest.source.dimension), dtype=rows.dtype)
    best, tie_break = manifest.options.get("best"), read_tie_break(manifest, handle)
    parts: list[Columns] = []
    for tile, start, stop in manifest.list_tiles(i):
        window = _read_rows(manifest, rows, start, stop, room, will_score=manifest.kind in _SCORED_KINDS)
        columns = _release_tile(manifest, handle, guarantee, tile, window)
        columns["row"] = columns["row"] + start
        parts.append(columns if best is None else select_best_scores(columns, best, tie_break))
    columns = join_columns(parts)
    if best is not None:
        columns = select_best_scores(columns, best, tie_break)
    if manifest.source.ids:
        columns = _add_ids(manifest, handle, i, columns)
    return _write_sealed(columns, handle, i)


def _release_tile(manifest: Manifest, handle: KeyHandle, guarantee: Guarantee, tile: int, rows: Rows) -> Columns:
    """Release the records of one tile."""
    if manifest.kind == "histogram":  # the pad is for these counts: a score at an edge may round to another bin
        counts = count_tile(manifest, rows)
        # With the number of the tile: the hash is in the part, and must not show that two tiles have the same counts.
        hash_ = handle.hash_values(f"counts of tile {tile}", counts)
        return pad_counts(counts, hash_, _open_tile(manifest, handle, manifest.kind, tile, 0, hash_))
    stream = _open_tile(manifest, handle, manifest.kind, tile, 0, handle.hash_values("rows", rows))
    return KINDS[manifest.kind](manifest, guarantee, rows, stream)


def _write_sealed(columns: Columns, handle: KeyHandle, number: int) -> bytes:
    return write_part(columns, _seal_columns(columns, handle, number))


def _seal_columns(columns: Columns, handle: KeyHandle, number: int) -> str:
    """Seal the columns of a part, which no one without the key can do."""
    return handle.hash_values(f"part {number} {json.dumps(list(columns))}", *list_numbers(columns))


def check_part(content: bytes, handle: KeyHandle, number: int) -> Columns:
    """Read a part that another task wrote.

    Raises:
        InvalidInput: It is no part of this release, or is damaged.
    """
    with contextlib.suppress(InvalidInput):
        columns, seal = read_sealed_part(content)
        if hmac.compare_digest(seal, _seal_columns(columns, handle, number)):
            return columns
    raise InvalidInput(
        f"The file {storage.name_part(number)} was not written by this release, or is damaged: remove it, and start "
        "the same release again to go on."
    )


def _release_pairs(manifest: Manifest, handle: KeyHandle, i: int, j: int, device: str) -> Columns:
    """Release the scores of the records of one tile of pairs with those of another, or among themselves."""
    source, side = _open_rows(manifest, handle), manifest.options["side"]
    first, second = (_read_rows(manifest, source, tile * side, (tile + 1) * side) for tile in (i, j))
    hash_ = handle.hash_values("rows", first, second)
    stream = _open_tile(manifest, handle, manifest.kind, i, j, hash_)
    return draw_pairs(manifest.read_guarantee(), first, None if i == j else second, stream, device)


def _open_rows(manifest: Manifest, handle: KeyHandle) -> RowSource:
    return open_source(manifest.source, is_lenient=not manifest.options["checked"], seal=handle.seal)


def _read_rows(
    manifest: Manifest,
    source: RowSource,
    start: int,
    stop: int,
    room: Rows | None = None,
    *,
    will_score: bool = False,
) -> Rows:
    """Read rows, into the same room again and again where it is given and the source can.

    Rows that are not finite are zeros if the release takes them so. Otherwise they raise `InvalidRow`, here or, to save
    a pass over the rows, where they are scored.
    """
    if room is not None and isinstance(source, FileRows):
        rows: Rows = source.read(start, stop, room)
    else:
        rows = source[start:stop]
    is_checked = manifest.options["checked"]
    if is_checked and will_score:
        return rows
    unusable = _find_unusable(rows)
    if not len(unusable):
        return rows
    if is_checked:
        raise InvalidRow("source", start + int(unusable[0]))
    # Such a row counts as zero: after the charge, no record may decide whether there is a release.
    rows = rows.copy()
    rows[unusable] = 0
    return rows


def read_tie_break(manifest: Manifest, handle: KeyHandle) -> int:
    """Draw the seed of the order of records with equal scores. It is public once the release is whole."""
    return int(_open_tile(manifest, handle, "ties", 0, 0, "").words(1)[0] >> 1) & (2**62 - 1)


@clear_frames_on_error
def draw_last_values(
    manifest: Manifest, handle: KeyHandle, folder: storage.ReleaseFolder, written: Sequence[BlockFacts]
) -> dict[str, Any]:
    """Draw what the driver adds to the last file when all parts are written: the same if it is called again."""
    found: dict[str, Any] = {"tie_break": read_tie_break(manifest, handle)}
    if manifest.kind == "histogram":
        guarantee = manifest.read_guarantee()
        parts = (check_part(_read_written(folder, one), handle, one.number) for one in written)

        def open_pad(tile: int, hash_: str) -> KeyedStream:
            return _open_tile(manifest, handle, manifest.kind, tile, 0, hash_)

        counts = sum_counts(parts, open_pad, guarantee.shape[0])
        noise = _open_tile(manifest, handle, "histogram noise", 0, 0, handle.hash_values("counts", counts))
        found["counts"] = add_noise_to_sum(counts, guarantee, noise)
    return found


def select_best_scores(columns: Columns, count: int, tie_break: int) -> Columns:
    """Keep the records of the best released scores of each query, best first.

    Equal scores are in a random, public order, which is the same for all queries.

    Args:
        columns: Scores of one query; of several, with one column for each (``scores``); or what this function returned
            for several, where a column names the query.
        count: How many records are kept for each query.
        tie_break: The seed of the order of equal scores.
    """
    rows = columns["row"]
    if "scores" in columns:
        lists = [(rows, scores) for scores in columns["scores"].T]
    elif "query" in columns:
        chosen = [columns["query"] == query for query in np.unique(columns["query"])]
        lists = [(rows[here], columns["score"][here]) for here in chosen]
    else:
        return _select_best(rows, columns["score"], count, tie_break)
    found = [_select_best(*one, count, tie_break) for one in lists]
    return join_columns([{"query": np.full(len(one["row"]), query), **one} for query, one in enumerate(found)])


def _select_best(rows: NDArray[np.int64], scores: NDArray[np.float64], count: int, tie_break: int) -> Columns:
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
        step: ``"check"`` reads the rows, and what it computes of them stays encrypted; ``"release"`` writes blocks.
        device: Where pairs of records are multiplied: ``"cpu"``, or a GPU of the worker.
    """

    address: str
    digest: str
    handle: KeyHandle
    step: Step = "release"
    device: str = "cpu"

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
        manifest, folder = _read_manifest(self.address, self.digest), storage.open_folder(self.address)
        if self.step == "check":
            try:
                self._check(manifest, folder, number)
            finally:
                with contextlib.suppress(FileError):
                    self._remove_after_end(folder, number)
            return BlockFacts(number, 0, "")
        name = storage.name_part(number)
        content, ours = folder.read(name), b""
        if content is None:
            ours = open_block(manifest, self.handle, folder, number) or self._compute(manifest, number)
            content = folder.put_or_read(name, ours)
        if content != ours:
            check_part(content, self.handle, number)
        return BlockFacts(number, len(content), storage.compute_digest(content))

    def _check(self, manifest: Manifest, folder: storage.ReleaseFolder, number: int) -> None:
        check_device(self.device)
        self.handle.seal_text("trial", "")  # after the charge, each task needs the key; some checks do not
        if manifest.options["checked"]:
            self._check_rows(manifest, folder, number)
        if manifest.source.ids:
            write_hashes(folder, self.handle.name, number, _read_ids(manifest, number, None))
        elif not is_prepared(manifest):
            name = storage.name_trial(self.handle.name, number)
            folder.put_if_absent(name, b"")  # raises an error if this worker cannot write
            folder.remove(name)

    def _remove_after_end(self, folder: storage.ReleaseFolder, number: int) -> None:
        """Remove what this task wrote if its release was given up meanwhile: engines cannot stop every task."""
        found = folder.read(storage.MANIFEST)
        if found is None or storage.compute_digest(found) != self.digest:
            check = self.handle.name
            left = storage.name_prepared(number), storage.name_hashes(check, number), storage.name_trial(check, number)
            for name in left:
                folder.remove(name)

    def _compute(self, manifest: Manifest, number: int) -> bytes:
        return release_block(manifest, self.handle, *manifest.find_tiles(number), device=self.device)

    def _check_rows(self, manifest: Manifest, folder: storage.ReleaseFolder, number: int) -> None:
        """Read all rows of a block before the charge, and keep the block encrypted where that saves a second reading.

        Raises:
            InvalidInput: A row cannot be released. The error names no record.
        """
        try:
            if not is_prepared(manifest):
                _read_all_rows(manifest, number)
            elif open_block(manifest, self.handle, folder, number) is None:
                keep_block(manifest, self.handle, folder, number, self._compute(manifest, number))
            return
        except InvalidRow:
            pass
        raise InvalidInput(  # outside of the handler, so that the first error is not its context
            "The collection holds vectors with a missing number, a NaN or an infinity; nothing was charged."
        )


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


def _open_tile(manifest: Manifest, handle: KeyHandle, kind: str, i: int, j: int, hash_: str) -> KeyedStream:
    """Open the stream of a tile, or of two; the hash is of the private values that the noise is drawn for."""
    facts = (manifest.stream_name, manifest.snapshot, manifest.mechanism, kind, str(i), str(j), hash_)
    return handle.open_stream(*facts)


def _draw_ties(rows: NDArray[np.int64], tie_break: int) -> NDArray[np.float64]:
    """Draw one number for each record, the same in every selection of the release."""
    ties = np.empty(len(rows))
    for tile in np.unique(rows // TILE_ROWS).tolist():
        here = rows // TILE_ROWS == tile
        ties[here] = _draw_tile_ties(tie_break, tile)[rows[here] % TILE_ROWS]
    return ties


@lru_cache(maxsize=4)
def _draw_tile_ties(tie_break: int, tile: int) -> NDArray[np.float64]:
    return np.random.default_rng([tie_break, tile]).random(TILE_ROWS)


def _read_all_rows(manifest: Manifest, number: int) -> None:
    """Read the rows of a block, and raise an error if one cannot be released."""
    rows: RowSource = open_source(manifest.source)
    for _, start, stop in manifest.list_tiles(number):
        _read_rows(manifest, rows, start, stop)


def _read_ids(manifest: Manifest, number: int, seal: Seal | None) -> list[Any]:
    tiles = manifest.list_tiles(number)
    return open_ids(manifest.source, seal).read(tiles[0][1], tiles[-1][2])


def _add_ids(manifest: Manifest, handle: KeyHandle, number: int, columns: Columns) -> Columns:
    """Add the ids of the records beside their numbers."""
    ids = _read_ids(manifest, number, handle.seal)
    found = np.array(ids, dtype=np.int64 if isinstance(ids[0], int) else object)
    chosen = found[columns["row"] - number * manifest.block_rows]
    return {"row": columns["row"], "id": chosen} | {name: values for name, values in columns.items() if name != "row"}


def _find_unusable(rows: Rows) -> NDArray[np.intp]:
    """Find the rows that are not finite."""
    with np.errstate(all="ignore"):
        odd = np.flatnonzero(~np.isfinite(np.vecdot(rows, rows)))  # also where a square overflows
    return odd[~np.isfinite(rows[odd]).all(axis=1)]
