"""What commands read and write: checks of file names, the three files of a release, and printed text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer
from numpy.typing import NDArray

import scoreshield as ss
from scoreshield import _files, _loading
from scoreshield._formatting import format_number
from scoreshield._loading import make_printable
from scoreshield._types import AccountLike
from scoreshield.report.certificate import describe_verdict, list_release_paths, save_with_certificate
from scoreshield.report.pages import check_report_extra

__all__ = [
    "LEDGER_SCHEMES",
    "check_file_is_new",
    "check_folder",
    "check_new_file",
    "check_not_input",
    "check_output",
    "find_ledger_file",
    "is_same_file",
    "make_printable",
    "open_account",
    "read_codebook",
    "read_ids",
    "read_ledger_address",
    "read_query",
    "say",
    "say_line",
    "select_query",
    "write_release",
]


#: How the address of a ledger begins.
LEDGER_SCHEMES = ("sqlite:///", "postgresql://", "postgres://")
#: How printed text calls and states a fact of a release, where its name in JSON is no word.
_FACTS = {
    "count_95_percent": ("count between", "{}, 95 times in 100"),
    "rate_error_95_percent": ("error of a rate", "at most {}, 95 times in 100"),
    "score_std": ("noise", "{} on a score, as a standard deviation"),
}


def say(text: str) -> None:
    """Print lines to standard output without control characters, which names of files and records may hold."""
    typer.echo("\n".join(map(make_printable, text.split("\n"))))


def say_line(text: str) -> None:
    """Print one line to standard output. A line break in a text from a file cannot start another one."""
    typer.echo(make_printable(text))


def open_account(url: str | None, dataset: str | None, *, who: str | None = None, why: str = "") -> AccountLike | None:
    """Open the account of the named dataset in a ledger; None where nothing is charged."""
    if url is None:
        if dataset is not None:
            raise ss.InvalidInput("--dataset needs --ledger, which says where its budget is kept.")
        return None
    if dataset is None:
        raise ss.InvalidInput("--ledger needs --dataset, the name of the collection that is charged.")
    return ss.Ledger.open(url).account(dataset, who=who, why=why)


def read_ledger_address(value: str | None) -> str | None:
    """Read where a ledger is: an address as it stands, and a path as the address of its file."""
    if value is None or value.startswith(LEDGER_SCHEMES):
        return value
    if not value or "://" in value:
        raise typer.BadParameter("a ledger is a file, sqlite:///FILE or postgresql://HOST/DATABASE")
    return f"sqlite:///{value}"


def read_query(path: Path, name: str | None = None) -> NDArray[Any]:
    """Read a query file: a vector, or a matrix of several queries."""
    return select_query(_files.read_array(path, name=name))


def read_codebook(path: Path, source: str | None, code_size: int | None, name: str | None = None) -> ss.PublicCodebook:
    """Read a saved codebook, or make one of public vectors."""
    if not _files.holds_release(path):
        stated = {} if source is None else {"source": source}
        return ss.PublicCodebook(_files.read_array(path, name=name), code_size=code_size, **stated)
    if source is not None or code_size is not None:
        raise ss.InvalidInput(f"{path} is a saved codebook and states its source and code size: leave both out.")
    return ss.PublicCodebook.load(path)


def read_ids(path: Path) -> list[Any]:
    """Read ids: an array of whole numbers or texts, or a text with one id per line."""
    if path.suffix.lower() == ".npy":
        ids: list[Any] = _files.read_array(path).tolist()
        return ids
    try:
        return _loading.read_bytes(path).decode().splitlines()
    except UnicodeDecodeError:
        raise ss.InvalidInput(f"{path} must be a text with one id per line, or an .npy file.") from None


def select_query(query: NDArray[Any]) -> NDArray[Any]:
    """Take a matrix of one row as one query, since a .parquet file holds no vector."""
    return query[0] if query.ndim == 2 and len(query) == 1 else query


def check_output(
    output: Path, force: bool, *inputs: Path | None, ledger: str | None = None, has_page: bool = False
) -> None:
    """Check the name of a release before anything is charged or drawn: it is writable, new and no input."""
    if output.suffix != ".npz":
        raise ss.InvalidInput(f"--output must end in .npz. Got {output}.")
    if has_page:
        check_report_extra()
    paths = list_release_paths(output, has_page=has_page)
    try:
        check_folder(output)
        check_not_input(paths, (*inputs, find_ledger_file(ledger)))
        str(output).encode()  # the certificate names the file
        for path in paths:
            _files.check_writable(path)
        taken = [path for path in paths if path.exists()]
    except UnicodeEncodeError:
        raise ss.InvalidInput("The output's name is no valid text, and its certificate could not name it.") from None
    except OSError as error:
        raise ss.FileError(f"Cannot write {output}: {error.strerror or error}; nothing was released.") from None
    for path in taken:
        check_file_is_new(path, force)


def check_file_is_new(path: Path, force: bool) -> None:
    """Raise an error where a file exists and may not be overwritten."""
    if not force and path.exists():
        raise ss.InvalidInput(f"{path} exists already; choose another name or pass --force to overwrite it.")


def check_new_file(path: Path, force: bool, *inputs: Path | None) -> None:
    """Check the name of one file before its content is computed: it is writable, new and no input."""
    check_folder(path)
    check_not_input([path], inputs)
    check_file_is_new(path, force)
    try:
        _files.check_writable(path)
    except (OSError, ValueError) as error:
        raise ss.FileError(f"Cannot write {path}: {getattr(error, 'strerror', None) or error}.") from None


def check_folder(path: Path) -> None:
    """Raise an error where the folder of a file is missing."""
    if not path.parent.is_dir():
        raise ss.InvalidInput(f"There is no folder {path.parent} to write to.")


def check_not_input(outputs: Iterable[Path], inputs: Iterable[Path | None]) -> None:
    """Raise an error where an output is the same file as an input, under any path or link, even with --force."""
    present = [path for path in inputs if path is not None]
    for output in outputs:
        for path in present:
            if is_same_file(output, path):
                raise ss.InvalidInput(f"{output} is the same file as the input {path}; choose another output.")


def is_same_file(one: Path, other: Path) -> bool:
    """Whether two paths are one file, under any name or link."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):  # one of them is missing, which reading it reports
        return False


def find_ledger_file(url: str | None) -> Path | None:
    """Find the file of an SQLite ledger; None for other ledgers."""
    scheme = "sqlite:///"
    return Path(url.removeprefix(scheme)) if url is not None and url.startswith(scheme) else None


def _format_fact(value: Any) -> str:
    """Write a number in four digits, also within a list."""
    if isinstance(value, list):
        return "[" + ", ".join(map(_format_fact, value)) + "]"
    return format_number(value) if isinstance(value, float) else str(value)


def write_release(
    release: ss.Release, output: Path, as_json: bool, facts: dict[str, Any], *, has_page: bool = False
) -> None:
    """Write the release and its certificate, all files or none, and print the facts."""
    save_with_certificate(release, output, has_page=has_page)
    paths = list_release_paths(output, has_page=has_page)
    if as_json:
        files = [str(path) for path in paths]
        typer.echo(json.dumps({"files": files, **facts, **describe_verdict(release.guarantee)}))
        return
    say(str(release.guarantee))
    for name, value in facts.items():
        label, form = _FACTS.get(name, (name.replace("_", " "), "{}"))
        say(f"{label:<15} {form.format(_format_fact(value))}")
    say("Written        " + ", ".join(make_printable(str(path)) for path in paths))
