"""Blocks that are computed while the rows are checked, before the charge, and kept encrypted until after it.

So the rows are read once. Before the charge no one may learn anything from such a file: its content is encrypted under
the release key, and its size depends on public facts only. If there is no charge, the key is destroyed, and with it
what is in the file. A file that is missing, damaged, planted or of another key is not used: its block is computed
again, with the same noise.
"""

from __future__ import annotations

from scoreshield.distributed import storage
from scoreshield.distributed.keys import KeyHandle
from scoreshield.distributed.manifest import Manifest
from scoreshield.distributed.storage import ReleaseFolder

#: The kinds whose blocks cost little more than reading their rows, and are much smaller than those.
_KINDS = {"scores", "matches", "batch", "histogram"}
#: The bytes of the largest file. A larger block is computed after the charge, and its rows are read twice.
_MOST_BYTES = 2**28
#: What a part needs beside its values, at most, and what each of its values needs: 8 bytes, and the headers of pages.
_FRAME_BYTES, _VALUE_BYTES = 2**16, 10
_LENGTH_BYTES = 8


def is_prepared(manifest: Manifest) -> bool:
    """Whether the blocks of a release are computed before the charge.

    Where noise decides which records are in a part, their ids are too: no public size holds any of them.
    """
    if not manifest.options["checked"] or manifest.kind not in _KINDS:
        return False
    has_choice = manifest.kind == "matches" or "best" in manifest.options
    if has_choice and manifest.source.ids:
        return False
    scores = min(manifest.block_rows, manifest.source.rows) * len(manifest.queries)
    most = 8 * scores if manifest.kind == "scores" and not has_choice else _find_room(manifest, 0)
    return most < _MOST_BYTES


def keep_block(manifest: Manifest, handle: KeyHandle, folder: ReleaseFolder, number: int, content: bytes) -> None:
    """Keep the file of a block until after the charge, encrypted and padded to a public size."""
    framed = _LENGTH_BYTES + max(len(content), _find_room(manifest, number))
    if framed > _MOST_BYTES:
        return
    padded = (len(content).to_bytes(_LENGTH_BYTES, "big") + content).ljust(framed, b"\0")
    name, encrypted = storage.name_prepared(number), handle.encrypt(padded, *_list_facts(manifest, number))
    if not folder.put_if_absent(name, encrypted) and open_block(manifest, handle, folder, number) is None:
        folder.remove(name)  # a damaged file, or one of another key
        folder.put_if_absent(name, encrypted)


def open_block(manifest: Manifest, handle: KeyHandle, folder: ReleaseFolder, number: int) -> bytes | None:
    """Decrypt the file of a block that was computed before the charge; None if there is none of this release."""
    if not is_prepared(manifest):
        return None
    content = folder.read(storage.name_prepared(number))
    padded = None if content is None else handle.decrypt(content, *_list_facts(manifest, number))
    if padded is None:
        return None
    return padded[_LENGTH_BYTES : _LENGTH_BYTES + int.from_bytes(padded[:_LENGTH_BYTES], "big")]


def _find_room(manifest: Manifest, number: int) -> int:
    """Find the size of the largest part that this block can have; 0 where all of them have one size.

    How many records match is a released value, and must not be seen before the charge. The numbers of records are
    written as differences, so that the size of a part depends on which records are in it.
    """
    tiles = manifest.list_tiles(number)
    records = tiles[-1][2] - tiles[0][1]
    if manifest.kind == "matches":
        return _FRAME_BYTES + records * 2 * _VALUE_BYTES
    best = manifest.options.get("best")
    return 0 if best is None else _FRAME_BYTES + min(best, records) * len(manifest.queries) * 3 * _VALUE_BYTES


def _list_facts(manifest: Manifest, number: int) -> tuple[str, ...]:
    """List the facts that fix the content of a block, for the key that encrypts it."""
    return manifest.snapshot, manifest.mechanism, str(manifest.block_rows), str(number)
