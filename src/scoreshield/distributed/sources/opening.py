"""Describe a collection by its address, and open it again from its facts."""

from __future__ import annotations

import re
from pathlib import Path

from scoreshield._rows import RowSource
from scoreshield.distributed.filesystems import check_address, check_path_text, is_remote
from scoreshield.distributed.sources.facts import Seal, SourceFacts
from scoreshield.distributed.sources.files import FileIds, FileRows, describe_files
from scoreshield.distributed.sources.ids import IdSource
from scoreshield.errors import InvalidInput

_TABLE = re.compile(r"(lance|delta|iceberg)://(.+?)(?:@([0-9]+))?")


def describe_source(
    address: str | Path, column: str = "", ids: str = "", *, begun: SourceFacts | None = None
) -> SourceFacts:
    """Describe a collection.

    Args:
        address: A path of a .parquet or .npy file, or of a folder of them; an address of fsspec, such as
            ``s3://bucket/folder``; or a table: ``lance://PATH``, ``delta://PATH``, ``iceberg://PATH`` of a metadata
            file, or ``iceberg://CATALOG/NAMESPACE.TABLE``. A path may be an address of fsspec. A table may end in
            ``@VERSION``. A folder whose name ends in .lance, or that holds ``_delta_log``, is such a table.
        column: The column of the vectors; empty for the only one.
        ids: The column of public ids; empty for none.
        begun: The facts of a release that was begun. Its version of the same table, or its files of the same folder,
            are described again, so that it can go on after the table got a later version, or the folder more files.

    Raises:
        InvalidInput: The collection is empty, or its parts do not fit together.
        FileError: It cannot be read.
    """
    text = _name_table(str(address))
    check_path_text(text)
    match = _TABLE.fullmatch(text)
    if match is None:
        return describe_files(text, column, ids, begun=begun)
    kind, place, version = match[1], match[2], match[3] or ""
    if is_remote(place):
        check_address(place)  # the packages of tables open it by themselves
    if not is_remote(place) and kind != "iceberg":
        place = str(Path(place).absolute())
    if not version and begun is not None and (begun.kind, begun.address) == (kind, place):
        version = begun.version
    if kind == "lance":
        from scoreshield.distributed.sources.lance import describe_lance

        return describe_lance(place, version, column, ids)
    if kind == "delta":
        from scoreshield.distributed.sources.delta import describe_delta

        return describe_delta(place, version, column, ids)
    from scoreshield.distributed.sources.iceberg import describe_iceberg

    return describe_iceberg(place, version, column, ids)


def describe_again(facts: SourceFacts) -> SourceFacts:
    """Describe the collection of these facts, which are not sealed, as it is now: equal facts if nothing changed."""
    address = facts.address if facts.kind == "files" else f"{facts.kind}://{facts.address}@{facts.version}"
    return describe_source(address, facts.column, facts.ids)


def open_source(facts: SourceFacts, *, is_lenient: bool = False, seal: Seal | None = None) -> RowSource:
    """Open the collection that was described, in the same state.

    Args:
        facts: What `describe_source` found.
        is_lenient: Whether a missing vector, or one of another length, is a row of zeros and no error.
        seal: Seals states, to compare them with the sealed ones of the facts. None compares nothing.

    Raises:
        InvalidInput: It changed since. The error comes when changed rows are read.
    """
    if facts.kind == "lance":
        from scoreshield.distributed.sources.lance import LanceRows

        return LanceRows(facts, is_lenient, seal)
    return FileRows(facts, is_lenient, seal)


def open_ids(facts: SourceFacts, seal: Seal | None = None) -> IdSource:
    """Open the ids of the collection that was described."""
    if not facts.ids:
        raise InvalidInput("The collection was described without ids.")
    if facts.kind == "lance":
        from scoreshield.distributed.sources.lance import LanceIds

        return LanceIds(facts, seal)
    return FileIds(facts, seal)


def _name_table(text: str) -> str:
    """Name the format of a path or an address that shows it."""
    if not is_remote(text):
        text = text.removeprefix("file://")
    path = re.sub("@[0-9]+$", "", text)
    if _TABLE.fullmatch(text) is None:
        if path.rstrip("/").endswith(".lance"):
            return f"lance://{text}"
        if path.endswith(".metadata.json"):
            return f"iceberg://{text}"
        if not is_remote(path) and (Path(path) / "_delta_log").is_dir():
            return f"delta://{text}"
    return text
