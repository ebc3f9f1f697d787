"""Parts of official files: paths, members of archives by their exact names, lines with their numbers, whole numbers.

Nothing is ever extracted by the paths an archive names: a member is read into memory, up to a limit, or written to a
place that the caller chose.
"""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from scoreshield._files import replace_file
from scoreshield._loading import explain_read_errors
from scoreshield._validation import reject
from scoreshield.errors import InvalidInput

LIMIT = 256 << 20  # bytes of one member; the largest here, the training images of CIFAR-100, has 154 MB

#: The largest number of a user or item that is plausible; MovieLens 100K has 943 and 1,682.
MOST_RATED = 1_000_000

_NAME_LIMIT = 1 << 20  # bytes of a header that holds long names and the like; real ones have a few hundred
_NAME_HEADERS = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip


def check_path(value: Any, name: str = "path", must: str = "the path of a file") -> Path:
    """Check for the path of a file or folder."""
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        reject(name, must, value)
    return Path(value)


def read_tar_members(path: Path, names: Sequence[str], *, limit: int = LIMIT) -> dict[str, bytes]:
    """Read these regular files of a tar archive, compressed or not, in one pass."""
    found = dict(_tar(path, set(names), limit))
    return _complete(path, names, found)


def unpack_members(path: Path, targets: Mapping[str, Path], *, limit: int = LIMIT) -> None:
    """Write these members of a tar archive to these places, each whole or not at all."""
    found = {}
    for name, content in _tar(path, set(targets), limit):
        replace_file(targets[name], lambda out, content=content: out.write(content))  # type: ignore[misc]
        found[name] = b""
    _complete(path, list(targets), found)


def read_zip_members(path: Path, names: Sequence[str], *, limit: int = LIMIT) -> dict[str, bytes]:
    """Read these files of a zip archive."""
    with explain_read_errors(path), zipfile.ZipFile(path) as archive:
        there = set(archive.namelist())
        found = {}
        for name in (name for name in names if name in there):
            check_member_size(path, name, archive.getinfo(name).file_size, limit)
            with archive.open(name) as member:
                found[name] = member.read(limit + 1)
            check_member_size(path, name, len(found[name]), limit)
    return _complete(path, names, found)


def split_lines(content: bytes, where: str) -> Iterator[tuple[int, str]]:
    """Split a UTF-8 text into lines with their numbers from 1; blank lines are left out."""
    for number, raw in enumerate(content.split(b"\n"), 1):
        try:
            line = raw.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError:
            raise InvalidInput(f"{where}, line {number}: the text is not UTF-8.") from None
        if line.strip():
            yield number, line


def parse_digits(text: str, most: int) -> int | None:
    """Read a number of plain digits 0 to 9; None where the text is something else or the number is above ``most``."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:  # int() raises an error for thousands of digits
        return None
    return int(text) if int(text) <= most else None


def _tar(path: Path, names: set[str], limit: int) -> Iterator[tuple[str, bytes]]:
    left = set(names)
    with explain_read_errors(path), tarfile.open(path, "r|*", tarinfo=_Header) as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            if name not in left or not member.isreg():
                continue
            check_member_size(path, name, member.size, limit)
            file = archive.extractfile(member)
            assert file is not None  # a regular file has content
            yield name, file.read()
            left.discard(name)
            if not left:
                return


class _Header(tarfile.TarInfo):
    """A header whose own content is read only up to a limit; tarfile reads as much as the header claims."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _NAME_HEADERS and header.size > _NAME_LIMIT:
            raise tarfile.TarError(f"a header claims {header.size} bytes of names, more than {_NAME_LIMIT}")
        return header


def check_member_size(path: Path, name: str, size: int, limit: int) -> None:
    """Raise InvalidInput where a member is too large to be read."""
    if size > limit:
        raise InvalidInput(f"{path}: the member {name} has {size} bytes, more than the {limit} that are read.")


def _complete(path: Path, names: Sequence[str], found: dict[str, bytes]) -> dict[str, bytes]:
    missing = [name for name in names if name not in found]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InvalidInput(f"{path} holds no member {missing[0]}{more}: it is incomplete or of another kind.")
    return found
