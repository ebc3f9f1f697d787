"""A version of a Delta table: the Parquet files that it names. Workers read the files, and need no Delta package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scoreshield._loading import make_printable
from scoreshield.distributed.filesystems import explain_storage_errors, is_remote
from scoreshield.distributed.sources.facts import SourceFacts
from scoreshield.distributed.sources.files import describe_paths
from scoreshield.errors import FileError, InvalidInput

#: Features of a table with which its files hold exactly its records, under the names of its columns.
_HARMLESS = {"v2Checkpoint", "timestampNtz", "vacuumProtocolCheck"}


def describe_delta(address: str, version: str, column: str, ids: str) -> SourceFacts:
    """Describe a version of a Delta table; empty for the newest. Its records are in the order of the files' paths.

    Raises:
        InvalidInput: Its files alone do not say which records it holds.
        FileError: There is no such version.
    """
    table = _open_table(address, version)
    where = make_printable(address)
    with explain_storage_errors(address, "read"):
        protocol = table.protocol()
        features = set(protocol.reader_features or ()) - _HARMLESS
        files = _list_files(table, address)
        if features == {"deletionVectors"} and not _has_deleted(table):
            features = set()
        mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if features or protocol.min_reader_version == 2 or mapping != "none":
        names = ", ".join(sorted(make_printable(name[:40]) for name in features)) or "columnMapping"
        raise InvalidInput(
            f"The Delta table {where} uses {names}, so that its files alone do not hold its records: rewrite it "
            "without (for deletion vectors: REORG TABLE ... APPLY (PURGE), then turn them off)."
        )
    if not files:
        raise InvalidInput("The collection holds no records.")
    return describe_paths("delta", address, sorted(files), column, ids, str(table.version()))


def _list_files(table: Any, address: str) -> list[str]:
    """List the addresses of the files. The package encodes the folder of the table as in a URL, and not their names."""
    root, found = f"{str(table.table_uri).removeprefix('file://').rstrip('/')}/", []
    for uri in map(str, table.file_uris()):
        path = uri.removeprefix("file://")
        if path.startswith(root):
            path = f"{address.rstrip('/')}/{path.removeprefix(root)}"
        found.append(path if is_remote(path) else str(Path(path).absolute()))
    return found


def _has_deleted(table: Any) -> bool:
    """Whether a file may hold rows that a deletion vector hides."""
    try:
        return any(batch.num_rows for batch in table.deletion_vectors())
    except Exception:  # an older package, which cannot tell, or a vector that it cannot read
        return True


def _open_table(address: str, version: str) -> Any:
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError
    except ImportError:
        raise InvalidInput("A Delta table needs deltalake: pip install 'scoreshield[delta]'") from None
    where = make_printable(address)
    with explain_storage_errors(address, "read"):
        try:
            return DeltaTable(address, version=int(version) if version else None)
        except TableNotFoundError:
            raise FileError(f"There is no Delta table {where}.") from None
        except DeltaError:
            if not version:
                raise FileError(f"The Delta table {where} cannot be read; is its log damaged?") from None
            raise FileError(
                f"The Delta table {where} has no version {version}, or its log was cleaned up since."
            ) from None
