"""The options of `scoreshield release --engine`, and what runs a release on a cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import scoreshield as ss
from scoreshield._loading import make_printable
from scoreshield.cli.options import ChargeOptions, IdentityOptions, OutputOptions, progress_bar
from scoreshield.cli.output import say
from scoreshield.report.certificate import describe_verdict

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+([^/@]*)")
#: Addresses of these schemes hold a path, which may be absolute.
_PATH_SCHEMES = {"file", "lance", "delta", "iceberg"}
#: What an interrupt leaves, with a ledger or a seed and without both.
_INTERRUPTED = "scoreshield: Give the same command again: the release goes on, and nothing is charged twice."
_LOST = "scoreshield: Without --ledger this release cannot go on: name a new folder."


@dataclass(frozen=True)
class ClusterOptions:
    """Where a release runs, if not in this process."""

    engine: Annotated[
        Literal["local", "dask", "spark", "ray"] | None,
        typer.Option(help="Release a partitioned collection in blocks; --output is then a folder."),
    ] = None
    scheduler: Annotated[
        str | None, typer.Option(help="With --engine: the address of a cluster; this machine without it.")
    ] = None
    key_folder: Annotated[
        Path | None,
        typer.Option(help="With --engine: a folder that only you and the workers can read, for the key while it runs."),
    ] = None
    keep_best: Annotated[
        int | None,
        typer.Option(
            help="With --engine: store only this many best records of each block; the other scores are never stored."
        ),
    ] = None
    id_column: Annotated[
        str | None, typer.Option(help="With --engine: the column of public ids, kept beside scores and matches.")
    ] = None
    block_rows: Annotated[int | None, typer.Option(help="With --engine: records of a task, a multiple of 65,536.")] = (
        None
    )
    unchecked: Annotated[
        bool,
        typer.Option("--unchecked", help="With --engine: do not read all rows before the charge to check them."),
    ] = False

    def check(self, source: Path, identities: IdentityOptions, **others: bool) -> None:
        """Check the options before anything is charged.

        Args:
            source: The collection. Without an engine it is one file.
            identities: Who is protected: on a cluster, single records.
            others: Whether an option was given that a cluster does not take, by its name.
        """
        if self.engine is None:
            given = (self.scheduler, self.key_folder, self.keep_best, self.id_column, self.block_rows)
            if self.unchecked or any(value is not None for value in given):
                raise ss.InvalidInput(
                    "--scheduler, --key-folder, --keep-best, --id-column, --block-rows and --unchecked need --engine, "
                    "which says what runs."
                )
            address = restore_address(source)
            if source.is_dir() or "://" in address:
                raise ss.InvalidInput(
                    f"{make_printable(address)} is a folder, a table or an address: give --engine, such "
                    "as --engine local, or name one file."
                )
            return
        if self.keep_best is not None and self.keep_best < 1:
            raise ss.InvalidInput(f"--keep-best must be a whole number, at least 1. Got {self.keep_best} instead.")
        named = {"labels": identities.labels is not None, "centroids": identities.centroids, **others}
        for name, is_given in named.items():
            if is_given:
                raise ss.InvalidInput(f"--{name.replace('_', '-')} cannot be used with --engine.")

    def release(
        self,
        make: Callable[..., Any],
        source: Path,
        *arguments: Any,
        output: Path,
        array: str | None,
        charge: ChargeOptions,
        options: OutputOptions,
        describe: Callable[[Any], Mapping[str, Any]] = lambda _: {},
        **named: Any,
    ) -> None:
        """Make a release on the cluster, or go on with it, and print its certificate."""
        if options.html or options.force:
            raise ss.InvalidInput("--html and --force cannot be used with --engine: name a new folder.")
        if charge.ledger is None and (charge.who or charge.why or charge.dataset):
            raise ss.InvalidInput("--dataset, --who and --why need --ledger with --engine.")
        try:
            with progress_bar(options.as_json) as show:
                release = make(
                    restore_address(source),
                    *arguments,
                    to=restore_address(output),
                    column=array or "",
                    engine=self.engine,
                    scheduler=self.scheduler,
                    key_folder=self.key_folder,
                    block_rows=self.block_rows,
                    check_rows=not self.unchecked,
                    ledger=charge.open_account(),
                    seed=charge.seed,
                    progress=None if show is None else lambda _, done, total: show(done, total),
                    **named,
                )
        except KeyboardInterrupt:
            can_go_on = charge.ledger is not None or charge.seed is not None  # a seed makes the same key again
            typer.echo(_INTERRUPTED if can_go_on else _LOST, err=True)
            raise
        facts = describe(release)
        if options.as_json:
            typer.echo(json.dumps({"folder": release.address, **facts, **describe_verdict(release.guarantee)}))
            return
        say(str(release.guarantee))
        for name, value in facts.items():
            say(f"{name.replace('_', ' ').capitalize():<15} {value}")
        say(f"Written        {make_printable(release.address)}, {len(release):,} part{'s' * (len(release) != 1)}")


def restore_address(path: Path) -> str:
    """Return the text of a path or an address. A path object keeps one slash of ``s3://`` and of ``delta:///``.

    So a path in an address is absolute if it begins with a name in the root folder that the current folder does not
    have.
    """
    text = str(path)
    found = _ADDRESS.match(text)
    if found is None:
        return text
    is_absolute = found[1] in _PATH_SCHEMES and Path("/", found[2]).exists() and not Path(found[2] or ".").exists()
    return f"{found[1]}://{'/' * is_absolute}{text[found.start(2) :]}"
