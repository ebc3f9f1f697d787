"""Files in and out: embeddings from .npy, .npz, .parquet and .csv; releases to .npz; writes whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray

from scoreshield import _loading, _parquet, _text_tables
from scoreshield.errors import FileError, InvalidArrayFile, InvalidInput

FORMAT = 1  # of saved releases; a number never changes meaning


def write_whole(files: Mapping[Path, Callable[[BinaryIO], object]], *, private: bool = False) -> None:
    """Write several files so that they appear together, complete, or not at all.

    Each is written under a temporary name beside its own and brought to disk. When all are done, each takes its place
    in a single step, so that a process that is killed leaves no name without a file. The old files keep a second name
    until the last is in place, and are put back after any error. A kill between two of these steps leaves some files
    new and others old, in the order in which they were given.

    Args:
        files: What writes each file, by its path.
        private: Whether only their owner may read them, from the first byte on.

    Raises:
        FileError: A file cannot be written; nothing is changed then.
    """
    mode = 0o600 if private else 0o666  # which the umask lessens
    ending = f".{secrets.token_hex(8)}.part"
    fresh = {path: path.parent / f".{path.name}{ending}" for path in files}
    aside = {path: path.parent / f".{path.name}.old{ending}" for path in files}
    placed: list[Path] = []
    path = None
    try:
        for path, write in files.items():
            with open(fresh[path], "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
        for path in files:
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            _give_second_name(path, aside[path])
        for path in files:
            placed.append(path)
            fresh[path].replace(path)
        for folder in {path.parent for path in files}:
            with contextlib.suppress(PermissionError):  # a folder that may be written and not read
                sync_folder(folder)
        placed.clear()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise FileError(f"Cannot write {path}: {reason}; nothing was changed there.") from error
    finally:
        for path in placed:  # only if something went wrong
            with contextlib.suppress(OSError):
                if aside[path].exists():
                    aside[path].replace(path)
                elif not fresh[path].exists():
                    path.unlink()
        for leftover in (*fresh.values(), *aside.values()):
            with contextlib.suppress(OSError, ValueError):
                leftover.unlink()


def _give_second_name(path: Path, second: Path) -> None:
    """Give a file a second name, or copy it where the disk has no links; do nothing where there is no file."""
    try:
        os.link(path, second, follow_symlinks=False)
    except FileNotFoundError:
        return
    except (OSError, NotImplementedError):
        with contextlib.suppress(FileNotFoundError):  # such a disk may say so only now
            shutil.copy2(path, second, follow_symlinks=False)


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write one file whole or not at all, and make its folder where there is none.

    The new file takes the place of an old one in a single step, so that there is no moment without a file: several
    processes may write and read the same file at once, which `write_whole` does not allow.
    """
    make_folder(path.parent)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with fresh.open("xb") as out:
            write(out)
            out.flush()
            os.fsync(out.fileno())
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        fresh.replace(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise FileError(f"Cannot write {path}: {reason}; nothing was changed there.") from error
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink()


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk: only then does a new file remain after a power cut."""
    if os.name != "posix":  # Windows opens no folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, where there is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot make the folder {folder}: {error.strerror}.") from None


def check_writable(path: Path) -> None:
    """Raise an OSError or a ValueError where `write_whole` could not write here; for use before a charge."""
    probe = path.parent / f".{path.name}.old.{secrets.token_hex(8)}.part"  # the longest name that it takes
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with probe.open("xb") as file:
            file.write(b"rehearsal")
    finally:
        with contextlib.suppress(OSError, ValueError):
            probe.unlink()


#: How a cell begins that a spreadsheet would take for a formula, and the mark that makes it a text.
_FORMULAS, _MARK = ("=", "+", "-", "@", "\t", "\r", "\n"), "'"


def csv_text(text: str) -> str:
    """Turn a text into a cell of a CSV table, with an apostrophe in front of what a spreadsheet would run as a formula.

    Carriage returns become line feeds: Python's writer does not quote them, and they would end the row.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _MARK + text if _needs_mark(text) else text


def from_csv_text(cell: str) -> str:
    """Return the text from which `csv_text` made the cell."""
    return cell[1:] if cell.startswith(_MARK) and _needs_mark(cell[1:]) else cell


def _needs_mark(text: str) -> bool:
    """Return whether a cell needs the mark. Some spreadsheets ignore spaces in front of a formula."""
    return text.lstrip(" ").startswith((*_FORMULAS, _MARK))


def release_writer(
    kind: str, guarantee: dict[str, Any], facts: dict[str, Any], arrays: dict[str, NDArray[Any]]
) -> Callable[[BinaryIO], None]:
    """Make a function that writes one .npz: the arrays, and a JSON text with kind, guarantee and small facts."""
    meta = json.dumps({"format": FORMAT, "kind": kind, "guarantee": guarantee, "facts": facts})
    return lambda file: np.savez(file, meta=np.array(meta), **arrays)  # type: ignore[arg-type]


def read_release(
    path: str | Path,
) -> tuple[str, dict[str, Any], dict[str, Any], dict[str, NDArray[Any]]]:
    """Read the parts that ``release_writer`` wrote."""
    with _loading.open_regular_file(path) as raw:
        archive = _loading.Archive(raw, path)
        if "meta" not in archive.names:
            raise InvalidInput(f"{path} is not a ScoreShield release: it holds no guarantee.")
        meta = _loading.parse_json(str(archive["meta"]))
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise InvalidInput(f"{path} is a release of another format than this version reads ({FORMAT}).")
        arrays = {name: archive[name] for name in archive.names if name != "meta"}
        return str(meta["kind"]), dict(meta["guarantee"]), dict(meta["facts"]), arrays


def holds_release(path: str | Path) -> bool:
    """Whether a file is an .npz that `release_writer` wrote, by its parts."""
    if Path(path).suffix.lower() != ".npz":
        return False
    with _loading.open_regular_file(path) as raw:
        return "meta" in _loading.Archive(raw, path).names


def write_json_file(path: str | Path, data: Mapping[str, Any]) -> None:
    """Write plain values to a JSON file, completely or not at all."""
    text = json.dumps(data, indent=1).encode()
    write_whole({Path(path): lambda file: file.write(text)})


def read_json_file(path: str | Path) -> Any:
    """Read a JSON file; what is in it is not checked."""
    with _loading.explain_read_errors(path):
        return _loading.parse_json(_loading.read_bytes(path, most=_loading.find_limit(0)))


def read_array(path: str | Path, *, name: str | None = None, mapped: bool = False) -> NDArray[Any]:
    """Read embeddings or a query from a file.

    .npy holds one array. From .npz, ``name`` chooses; without it the file must hold one array, or one named
    "embeddings", "emb" or "query". From .parquet, a column of fixed-length lists, or else all numeric columns. .csv
    holds one row of numbers per line, with or without a header. With ``mapped``, a .npy file is mapped, and a .parquet
    file is a `scoreshield._rows.RowSource`, which is read part by part.
    """
    readers: dict[str, Callable[[], NDArray[Any]]] = {
        ".npy": lambda: _read_npy(path, mapped),
        ".npz": lambda: _read_npz(path, name),
        ".parquet": lambda: _read_parquet(path, name, mapped),
        ".csv": lambda: _text_tables.read_text_matrix(path),
    }
    suffix = Path(path).suffix.lower()
    if suffix not in readers:
        raise InvalidArrayFile(path, "must be a .npy, .npz, .parquet or .csv file, by its ending")
    if suffix in (".npy", ".csv") and name is not None:
        article = "an" if suffix == ".npy" else "a"
        raise InvalidInput(f"{path} is {article} {suffix} file and holds one array without a name; leave {name!r} out.")
    return readers[suffix]()


def _read_npy(path: str | Path, mapped: bool) -> NDArray[Any]:
    with _loading.open_regular_file(path) as raw:
        header = _loading.read_header(raw)
        if header.nbytes > os.fstat(raw.fileno()).st_size - raw.tell():
            raise ValueError("it is shorter than its header says")
        if not mapped or not header.nbytes:
            return _loading.read_values(raw, header)
        order: Literal["F", "C"] = "F" if header.fortran else "C"
        return np.memmap(raw, header.dtype, "r", raw.tell(), header.shape, order)


def _read_parquet(path: str | Path, name: str | None, mapped: bool) -> NDArray[Any]:
    if not mapped:
        return _parquet.read_parquet(path, name)
    # A row source has what releases use of an array.
    return cast("NDArray[Any]", _parquet.open_parquet(path, name))


def _read_npz(path: str | Path, name: str | None) -> NDArray[Any]:
    with _loading.open_regular_file(path) as raw:
        archive = _loading.Archive(raw, path)
        names = archive.names
        if name is None:
            usual = [option for option in ("embeddings", "emb", "query") if option in names]
            if len(names) != 1 and not usual:
                raise InvalidArrayFile(path, f"holds several arrays ({_loading.join_names(names)})", is_ambiguous=True)
            name = names[0] if len(names) == 1 else usual[0]
        if name not in names:
            raise InvalidInput(f"{path} holds no array {name!r}; it holds {_loading.join_names(names) or 'nothing'}.")
        return archive[name]


# ---- Folders of jobs that can be resumed.


class RunFolder:
    """The folder of one job that can be stopped and resumed.

    It holds ``settings.json`` (what the job does), ``.lock`` (which keeps a second run out) and the files of the job.
    `write` writes files whole or not at all, and `append_line` adds whole lines to a file. Only
    `lock` creates the folder, and a folder of another job is left as it is.

    Args:
        path: The folder.
        job: What runs there, for error messages, such as "run" or "audit".
        extra: The extra that installs filelock, for the error message where it is missing.
        is_private: Whether only the owner may read what is written.
        leftovers: Prefixes of file names that belong to the job. Files of interrupted writes always belong to it.

    Example:
        ::

            with RunFolder(path).lock() as folder:
                folder.start_or_resume({"epsilon": 1.0})
                done = folder.read_lines("cells.jsonl")
                folder.append_line("cells.jsonl", {"cell": 1})
                folder.write({"results.json": b"{}"})
    """

    SETTINGS, LOCK = "settings.json", ".lock"

    def __init__(
        self,
        path: Path,
        *,
        job: str = "run",
        extra: str = "bench",
        is_private: bool = False,
        leftovers: tuple[str, ...] = (),
    ) -> None:
        self.path = path
        self._job, self._extra, self._is_private, self._leftovers = job, extra, is_private, leftovers

    @contextlib.contextmanager
    def lock(self) -> Iterator[Self]:
        """Create the folder where there is none, and keep a second run out of it within the block.

        Raises:
            InvalidInput: Another run holds the lock, the folder holds other files and no settings, or filelock is not
                installed.
            FileError: The folder cannot be made or read.
        """
        try:
            self.path.mkdir(mode=0o700 if self._is_private else 0o777, parents=True, exist_ok=True)
            if not (self.path / self.LOCK).exists():
                self._reject_other_files()  # before the lock adds a file to them
        except OSError as error:
            raise self._make_folder_error(error) from None
        with lock_file(self.path / self.LOCK, extra=self._extra, is_private=self._is_private):
            try:
                self._reject_other_files()
            except OSError as error:
                raise self._make_folder_error(error) from None
            yield self

    def start_or_resume(self, settings: Mapping[str, Any], *, compatible: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write the settings of a new job, or check that the job in the folder has these settings.

        Args:
            settings: Values that JSON can hold.
            compatible: Other settings that the job in the folder may have; they are replaced by ``settings``.

        Raises:
            InvalidInput: The job in the folder has other settings. The message names the first that differs.
        """
        plain = json.loads(json.dumps(settings))
        before = self.read_settings()
        if before is not None and before not in [plain, *(json.loads(json.dumps(other)) for other in compatible)]:
            raise self.settings_error(describe_difference(before, plain))
        if before != plain:
            self.write_settings(plain)

    def read_settings(self) -> dict[str, Any] | None:
        """Read the settings of the job in the folder.

        Returns:
            None where there are none, and an empty dictionary where the file is damaged.
        """
        try:
            content = _loading.read_bytes(self.path / self.SETTINGS)
        except _loading.MissingFile:
            return None
        try:
            settings = _loading.parse_json(content)
        except ValueError:
            return {}
        return settings if isinstance(settings, dict) else {}

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Write the settings without a comparison."""
        self.write({self.SETTINGS: json.dumps(settings, indent=2).encode()})

    def settings_error(self, difference: str) -> InvalidInput:
        """Make the error for a folder whose job has other settings."""
        return InvalidInput(
            f"The {self._job} in {self.path} was begun with other settings ({difference}); name another folder, or "
            "move that one away."
        )

    def write(self, files: Mapping[str, bytes | Callable[[BinaryIO], object]]) -> None:
        """Write files so that they appear together, complete, or not at all; see `write_whole`.

        Args:
            files: The content of each file, or what writes it, by the name in the folder.
        """

        def make_writer(content: bytes | Callable[[BinaryIO], object]) -> Callable[[BinaryIO], object]:
            return content if callable(content) else lambda file: file.write(content)

        write_whole(
            {self.path / name: make_writer(content) for name, content in files.items()}, private=self._is_private
        )

    def read_lines(self, name: str) -> list[Any]:
        """Read the whole lines of a file of JSON lines; see `read_json_lines`."""
        return read_json_lines(self.path / name)

    def append_line(self, name: str, line: object) -> None:
        """Add one JSON line to a file and bring it to disk, after any line that a kill cut short was removed."""
        path, mode = self.path / name, 0o600 if self._is_private else 0o666
        try:
            with open(path, "ab+", opener=lambda path, flags: os.open(path, flags, mode)) as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":
                        file.seek(0)
                        file.truncate(file.read().rfind(b"\n") + 1)
                file.write(json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FileError(f"Cannot write {path}: {error.strerror}; the lines before are kept.") from None

    def _reject_other_files(self) -> None:
        names = {path.name for path in self.path.iterdir()}
        if self.SETTINGS not in names and not all(self._is_leftover(name) for name in names):
            raise InvalidInput(
                f"The folder {self.path} holds other files and no {self._job}; name an empty or new one."
            )

    def _is_leftover(self, name: str) -> bool:
        is_part = name.startswith(".") and name.endswith(".part")
        return name == self.LOCK or is_part or name.startswith(self._leftovers)

    def _make_folder_error(self, error: OSError) -> FileError:
        return FileError(f"Cannot use the folder {self.path}: {error.strerror}.")


@contextlib.contextmanager
def lock_file(path: Path, *, extra: str = "bench", is_private: bool = False) -> Iterator[None]:
    """Keep a second run out of the folder of this file within the block.

    Args:
        path: The file of the lock. Nothing may rename or remove it, since a lock belongs to a file and not to a name.
        extra: The extra that installs filelock.
        is_private: Whether only the owner may open the file.

    Raises:
        InvalidInput: Another run holds the lock, or filelock is not installed.
        FileError: The file cannot be opened.
    """
    try:
        import filelock
    except ImportError:
        raise InvalidInput(f"Run folders need the {extra!r} extra: pip install 'scoreshield[{extra}]'.") from None
    lock = filelock.FileLock(path, mode=0o600) if is_private else filelock.FileLock(path)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        raise InvalidInput(f"Another run is writing into {path.parent}; wait for it or name another folder.") from None
    except OSError as error:
        raise FileError(f"Cannot write {path}: {error.strerror}.") from None
    try:
        yield
    finally:
        lock.release()


def read_json_lines(path: Path) -> list[Any]:
    """Read the whole lines of a file of JSON lines; a last line that a kill cut short is left out.

    Another process may append to the file meanwhile; its lines since the opening are left out.

    Returns:
        The value of each line, and nothing where there is no file.

    Raises:
        InvalidInput: A whole line is not JSON.
    """
    try:
        lines = _loading.read_bytes(path, growing=True).split(b"\n")
    except _loading.MissingFile:
        return []
    try:
        return [_loading.parse_json(line) for line in lines[:-1] if line]
    except ValueError:
        raise InvalidInput(f"{path} is damaged before its end; move the folder away and start again.") from None


def describe_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Name the first setting that differs, with dots where one is within another."""
    if not before:
        return f"its {RunFolder.SETTINGS} cannot be read"
    for name, value in after.items():
        old = before.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and old != value:
            return f"{name}.{describe_difference(old, value)}" if old else name
        if name not in before or old != value:
            return f"version {old or 'unknown'}, not {value}" if name == "version" else name
    return "more settings than this version knows"
