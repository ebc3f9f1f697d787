"""Find two records with one id, before the charge and in bounded memory.

Each task of the check writes the 128-bit hashes of its block's ids to a file in the folder of the release. The driver
sorts the hashes of all blocks into buckets on its own disk, 16 bytes for each record, and then looks for equal hashes
in one bucket after the other. So it holds the hashes of one block or of one bucket, whatever the number of records.
Two different ids have one hash with a chance of about 10^-21 in a collection of 10^9 records.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scoreshield.distributed.storage import ReleaseFolder, name_hashes
from scoreshield.errors import FileError, InvalidInput

_HASH_BYTES = 16
#: How many hashes a bucket holds on average, at most: 64 MB.
_BUCKET = 2**22


def write_hashes(folder: ReleaseFolder, check: str, number: int, ids: Sequence[str] | Sequence[int]) -> None:
    """Write the hashes of the ids of one block.

    Args:
        folder: The folder of the release.
        check: Names this check, so that no file of another driver is taken for one of this one.
        number: The number of the block.
        ids: The ids of its records.
    """
    hashes = b"".join(hashlib.blake2b(str(one).encode(), digest_size=_HASH_BYTES).digest() for one in ids)
    folder.put_or_read(name_hashes(check, number), hashes)


def find_duplicates(folder: ReleaseFolder, check: str, blocks: int, rows: int) -> None:
    """Compare what `write_hashes` wrote for all blocks, and remove it.

    Raises:
        InvalidInput: Two records have one id. The error does not say which.
    """
    try:
        with contextlib.closing(_collect_buckets(folder, check, blocks, rows)) as buckets:
            if any(map(_has_duplicate, buckets)):
                raise InvalidInput("Two records of the collection have one id; nothing was charged.")
    finally:
        for number in range(blocks):
            with contextlib.suppress(FileError):
                folder.remove(name_hashes(check, number))


def _collect_buckets(folder: ReleaseFolder, check: str, blocks: int, rows: int) -> Generator[NDArray[np.uint64]]:
    """Give the hashes, (n, 2) words, in buckets: equal hashes are in one bucket."""
    count = -(-rows // _BUCKET)
    if count == 1:
        yield np.concatenate([_read_hashes(folder, check, number) for number in range(blocks)])
        return
    with tempfile.TemporaryDirectory() as place:
        paths = [Path(place, str(bucket)) for bucket in range(count)]
        for number in range(blocks):
            hashes = _read_hashes(folder, check, number)
            hashes = hashes[np.argsort(hashes[:, 0] % np.uint64(count), kind="stable")]
            ends = np.cumsum(np.bincount((hashes[:, 0] % np.uint64(count)).astype(np.intp), minlength=count))
            for path, part in zip(paths, np.split(hashes, ends[:-1]), strict=True):
                with path.open("ab") as file:
                    file.write(part.tobytes())
        for path in paths:
            yield np.fromfile(path, dtype=np.uint64).reshape(-1, 2)
            path.unlink()


def _read_hashes(folder: ReleaseFolder, check: str, number: int) -> NDArray[np.uint64]:
    content = folder.read(name_hashes(check, number))
    if content is None:
        raise FileError("A file of the check of ids vanished; start the same release again.")
    return np.frombuffer(content, dtype=np.uint64).reshape(-1, 2)


def _has_duplicate(hashes: NDArray[np.uint64]) -> bool:
    first = np.sort(hashes[:, 0])
    repeated = first[1:][first[1:] == first[:-1]]
    if not len(repeated):
        return False
    suspects = hashes[np.isin(hashes[:, 0], repeated)]  # equal in the first half
    return len(np.unique(suspects, axis=0)) < len(suspects)
