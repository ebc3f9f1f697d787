"""What all `scoreshield release` commands share: their common options, and the three files they write."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

import scoreshield as ss
from scoreshield import _files
from scoreshield.cli.text import make_printable, say
from scoreshield.report.certificate import beside, write_with_certificate

Embeddings = Annotated[
    Path,
    typer.Argument(help="The private collection, one record a row: .npy, .npz or .parquet.", metavar="EMBEDDINGS"),
]
Array = Annotated[str | None, typer.Option(help="Which array of the .npz, or column of the .parquet, to read.")]
Labels = Annotated[
    Path | None,
    typer.Option(help="Public labels, one a record (.npy): protect whole identities, not single records."),
]
Centroids = Annotated[bool, typer.Option("--centroids", help="With --labels: release one centroid per identity.")]
Output = Annotated[Path, typer.Option(help="Where to write the release; ends in .npz.")]
LedgerUrl = Annotated[
    str | None,
    typer.Option("--ledger", help="Charge this ledger before the noise: sqlite:///FILE or postgresql://..."),
]
Dataset = Annotated[str | None, typer.Option(help="With --ledger: the name of the collection that is charged.")]
Seed = Annotated[int | None, typer.Option(help="Research mode: repeatable noise, NOT PRIVATE, for public data only.")]


def adjacency_of(labels: Path | None, centroids: bool) -> ss.Adjacency:
    if labels is None:
        if centroids:
            raise ss.InvalidInput("--centroids needs --labels, which say who belongs to whom.")
        return ss.Replacement()
    return ss.Identity(_files.read_array(labels), centroids=centroids)


def ledger_of(url: str | None, dataset: str | None) -> Any:
    """The account of the named dataset in a ledger, or None where nothing is charged."""
    if url is None:
        if dataset is not None:
            raise ss.InvalidInput("--dataset needs --ledger, which says where its budget is kept.")
        return None
    if dataset is None:
        raise ss.InvalidInput("--ledger needs --dataset, the name of the collection that is charged.")
    return ss.Ledger.open(url).account(dataset)


def one_or_many(query: Any) -> Any:
    """A query file may hold a vector or a matrix; a matrix of one row (all that .parquet can hold) is one query."""
    return query[0] if query.ndim == 2 and len(query) == 1 else query


def check_output(output: Path, force: bool, *inputs: Path | None, ledger: str | None = None) -> None:
    """Reject a name that cannot be written, is taken, or is that of an input, before anything is paid or drawn."""
    if output.suffix != ".npz":
        raise ss.InvalidInput(f"The output must end in .npz; got {output}.")
    try:
        if not output.parent.is_dir():
            raise ss.InvalidInput(f"There is no folder {output.parent} to write to.")
        check_not_input(beside(output), (*inputs, ledger_file(ledger)))
        str(output).encode()  # the certificate names the file
        for path in beside(output):
            _files.check_writable(path)
        taken = [path for path in beside(output) if path.exists()]
    except UnicodeEncodeError:
        raise ss.InvalidInput("The output's name is no valid text, and its certificate could not name it.") from None
    except OSError as error:
        raise ss.FileError(f"Cannot write {output}: {error.strerror or error}; nothing was released.") from None
    if taken and not force:
        raise ss.InvalidInput(f"{taken[0]} exists already; choose another name or pass --force to overwrite it.")


def check_not_input(outputs: Iterable[Path], inputs: Iterable[Path | None]) -> None:
    """Reject an output that is the same file as an input, by whatever path or link; --force is no reason to lose it."""
    given = [path for path in inputs if path is not None]
    for written in outputs:
        for read in given:
            if _is_same(written, read):
                raise ss.InvalidInput(f"{written} is the same file as the input {read}; choose another output.")


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):  # one of them is not there: reading it will say so
        return False


def ledger_file(url: str | None) -> Path | None:
    """The file of an SQLite ledger."""
    scheme = "sqlite:///"
    return Path(url.removeprefix(scheme)) if url is not None and url.startswith(scheme) else None


def check_ranking(top_k: int | None, threshold: float | None) -> None:
    """Refuse a ranking that makes no sense before anything is charged or drawn."""
    if top_k is None and threshold is not None:
        raise ss.InvalidInput("--threshold needs --top-k, which says how many to print.")
    if top_k is not None and top_k < 1:
        raise ss.InvalidInput(f"--top-k must be at least 1. Got {top_k}.")


def ranking(release: ss.ScoreRelease, top_k: int | None, threshold: float | None) -> dict[str, Any]:
    if top_k is None:
        return {}
    return {"top_k": release.top_k(top_k, threshold).tolist()}


def finish(release: ss.Release, output: Path, as_json: bool, facts: dict[str, Any]) -> None:
    """Write the release and its certificate, all three files or none, and say so."""
    write_with_certificate(release, output)
    if as_json:
        files = [str(path) for path in beside(output)]
        typer.echo(json.dumps({"files": files, **facts, "guarantee": release.guarantee.to_dict()}))
        return
    say(str(release.guarantee))
    for name, value in facts.items():
        say(f"{name:<15} {value}")
    say("Written        " + ", ".join(make_printable(str(path)) for path in beside(output)))
