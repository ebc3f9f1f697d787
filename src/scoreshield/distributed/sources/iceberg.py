"""A snapshot of an Iceberg table: the Parquet files that it names. Workers read the files, and need no Iceberg package.

The address is the path of a metadata file, such as ``/data/table/metadata/00002-....metadata.json``, or
``CATALOG/NAMESPACE.TABLE`` with a catalog of pyiceberg's own settings.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from scoreshield import _parquet
from scoreshield._loading import make_printable
from scoreshield.distributed.filesystems import explain_storage_errors, is_remote
from scoreshield.distributed.sources.facts import SourceFacts
from scoreshield.distributed.sources.files import describe_paths
from scoreshield.distributed.sources.streams import explain_errors, open_file_stream
from scoreshield.errors import FileError, InvalidInput

#: Where Parquet files keep the number of a column, which stays when the column gets another name.
_FIELD_ID = b"PARQUET:field_id"


def describe_iceberg(address: str, version: str, column: str, ids: str) -> SourceFacts:
    """Describe a snapshot of an Iceberg table; empty for the current. Its records are in the order of the files' paths.

    Raises:
        InvalidInput: The snapshot has delete files, or files that are not Parquet, or renamed columns.
        FileError: There is no such table or snapshot.
    """
    table, where = _open_table(address), make_printable(address)
    with explain_storage_errors(address, "read"):
        snapshot = table.snapshot_by_id(int(version)) if version else table.current_snapshot()
        if snapshot is None and version:
            raise FileError(f"The Iceberg table {where} has no snapshot {version}; it may have expired.")
        if snapshot is None:
            raise InvalidInput("The collection holds no records.")
        scan = table.scan(snapshot_id=snapshot.snapshot_id)
        tasks = list(scan.plan_files())
        fields = {field.name: field.field_id for field in scan.projection().fields}
    if any(task.delete_files for task in tasks):
        raise InvalidInput(
            f"The Iceberg table {where} has delete files, so that its data files hold records that it does not: "
            "rewrite its data files first."
        )
    if any(str(getattr(task.file.file_format, "value", task.file.file_format)).upper() != "PARQUET" for task in tasks):
        raise InvalidInput(f"The Iceberg table {where} has data files that are not Parquet; rewrite its data files.")
    for name in filter(None, (column, ids)):
        if name not in fields:
            raise InvalidInput(f"The Iceberg table {where} has no column {name!r} in this snapshot.")
    paths = sorted(_make_path(task.file.file_path) for task in tasks)
    if not paths:
        raise InvalidInput("The collection holds no records.")
    for path in paths:
        _check_names(path, fields, column, ids)
    return describe_paths("iceberg", address, paths, column, ids, str(snapshot.snapshot_id))


def _open_table(address: str) -> Any:
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, NotInstalledError
        from pyiceberg.table import StaticTable
    except ImportError:
        raise InvalidInput("An Iceberg table needs pyiceberg: pip install 'scoreshield[iceberg]'") from None
    where = make_printable(address)
    with explain_storage_errors(address, "read"):
        if address.endswith(".metadata.json"):
            return StaticTable.from_metadata(address if is_remote(address) else str(Path(address).absolute()))
        catalog, _, name = address.partition("/")
        if not name or "/" in name or "." not in name:
            raise InvalidInput(
                f"iceberg://{where} names no table: give the path of a .metadata.json file, or "
                "iceberg://CATALOG/NAMESPACE.TABLE."
            )
        try:
            opened = load_catalog(catalog)
        except (NotInstalledError, ValueError):
            raise InvalidInput(
                f"pyiceberg cannot open the catalog {make_printable(catalog)}: name it in .pyiceberg.yaml, or in "
                "PYICEBERG_CATALOG__... variables."
            ) from None
        with contextlib.ExitStack() as at_end:
            at_end.callback(getattr(opened, "close", lambda: None))  # older versions have none
            try:
                return opened.load_table(name)
            except (NoSuchNamespaceError, NoSuchTableError):
                raise FileError(f"There is no Iceberg table {where}.") from None


def _make_path(path: str) -> str:
    return path if is_remote(path) else str(Path(path.removeprefix("file://")).absolute())


def _check_names(path: str, fields: dict[str, int], column: str, ids: str) -> None:
    """Raise an error if a column has another number in a file than in the table: it was renamed since."""
    used = {ids} | ({column} if column else set())
    pa, parquet = _parquet.import_arrow(path)
    with explain_errors(path), open_file_stream(path) as stream:
        try:
            found = parquet.ParquetFile(stream).schema_arrow
        except pa.ArrowException:
            raise InvalidInput(f"{make_printable(path)} is not a readable Parquet file.") from None
        for field in found:
            number = (field.metadata or {}).get(_FIELD_ID)
            is_used = field.name in used or (not column and pa.types.is_nested(field.type))
            if is_used and number is not None and fields.get(field.name) != int(number):
                raise InvalidInput(
                    f"A column of the Iceberg table was renamed or dropped since {make_printable(path)} was written; "
                    "rewrite its data files."
                )
