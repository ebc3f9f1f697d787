"""`scoreshield audit TARGET`: try to contradict a privacy claim, and save the evidence.

The exit code is 1 where the claim is broken, 3 where it is broken only for rows that are not unit vectors, 0 where no
violation was found, 2 for bad input and for too few outputs to find anything, and 70 for an unexpected failure, so that
the command can gate a pipeline.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from scoreshield.cli.options import Json, make_line_printer
from scoreshield.cli.output import check_not_input
from scoreshield.errors import InvalidInput

EXAMPLE = (
    "scoreshield audit service:release --epsilon 1 --delta 1e-6 --adjacency replace --out audit\n"
    "scoreshield audit --own --quick"
)


def run_audit_command(
    target: Annotated[
        str | None,
        typer.Argument(help="module:function, http(s)://..., or a file of outputs made with the record (.npy, ...)."),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="The claimed epsilon.")] = None,
    delta: Annotated[float, typer.Option(help="The claimed delta; 0 is a pure claim.")] = 0.0,
    adjacency: Annotated[
        str | None,
        typer.Option(help="Which collections are neighbours in the claim: 'replace' is one record by another."),
    ] = None,
    noise: Annotated[
        Literal["any", "gaussian"],
        typer.Option(
            help="'gaussian' claims Gaussian noise that is just enough for epsilon and delta; smaller faults show then."
        ),
    ] = "any",
    plain: Annotated[
        bool,
        typer.Option("--plain", help="With --noise gaussian: outputs are clean values plus that noise, never clipped."),
    ] = False,
    releases: Annotated[
        int | None,
        typer.Option(
            help="At most this number of releases on each side of a pair, instead of a time; 2,000 test all kinds.",
            min=1,
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="How long the audit may take; 2 minutes unless --releases is given.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="The confidence of the verdict and of the bound.")] = 0.99,
    rows: Annotated[
        Literal["any", "unit"],
        typer.Option(
            help="'unit' leaves out rows that are not unit vectors; with 'any' they are a finding of their own."
        ),
    ] = "any",
    records: Annotated[int, typer.Option(help="Records in the collections that the auditor constructs.", min=1)] = 8,
    dimensions: Annotated[int, typer.Option(help="The length of a record, if no query or canary gives it.", min=1)] = 8,
    query: Annotated[
        Path | None,
        typer.Option(
            help="The public query, or a batch (.npy, ...). Without it a function's is searched for, and an endpoint "
            "gets the first axis."
        ),
    ] = None,
    no_query: Annotated[bool, typer.Option("--no-query", help="An endpoint that takes no query.")] = False,
    canaries: Annotated[
        Path | None, typer.Option(help="Records to put in and take out, one per row, instead of the worst cases.")
    ] = None,
    without: Annotated[Path | None, typer.Option(help="For files: the outputs made without the record.")] = None,
    embeddings_field: Annotated[str, typer.Option(help="For endpoints: the collection's name in JSON.")] = "embeddings",
    query_field: Annotated[str, typer.Option(help="For endpoints: the query's name.")] = "query",
    output_field: Annotated[
        str, typer.Option(help="For endpoints: the output's name in JSON; a dot goes into an object.")
    ] = "scores",
    key_from: Annotated[
        str | None, typer.Option(help="For endpoints: environment variable that holds a bearer key to send.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one release may take.", max=86_400)] = 60.0,
    retries: Annotated[int, typer.Option(help="For endpoints: how often a failed request is repeated.", min=0)] = 3,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the releases and the report. A killed audit is resumed there.")
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="With --out: start again in the folder of an earlier audit, and remove that audit."
        ),
    ] = False,
    own: Annotated[bool, typer.Option("--own", help="Audit ScoreShield's own mechanisms instead of a target.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="With --own: the short form.")] = False,
    as_json: Json = False,
) -> None:
    """Try to contradict a privacy claim about a release function, a service or saved outputs.

    Exit code 1 means that the claim is broken, and 3 that only rows of other lengths break it. Exit code 0 means that
    no violation was found: evidence, never proof. Read then what size of each fault would have been found, and what was
    not tested. Exit code 2 means that no audit was made, for example because too few outputs came in time.
    """
    if own:
        given: dict[str, object] = {
            "epsilon": epsilon,
            "releases": releases,
            "minutes": minutes,
            "out": out,
            "again": again or None,
        }
        _audit_shipped_releases(target, quick, as_json, given)
        return
    if target is None:
        raise InvalidInput("Say what to audit: module:function, an address, a file of outputs, or --own.")
    if quick:
        raise InvalidInput("--quick is the short form of --own; for a target, --releases or --minutes set the budget.")
    if again and out is None:
        raise InvalidInput("--again starts again in the folder of an earlier audit; name it with --out.")
    from scoreshield.cli import audit_run

    folder = audit_run.AuditFolder(out, again)
    is_address = target.lower().startswith(("http://", "https://"))
    is_file = not is_address and Path(target).suffix.lower() in (".npy", ".npz", ".parquet")
    if out is not None:
        check_not_input((out / name for name in audit_run.FILES), (query, canaries, without, Path(target)))
    claim = audit_run.make_claim(epsilon, delta, adjacency, noise, is_file=is_file)
    if plain and noise != "gaussian":
        raise InvalidInput("--plain says what is done with Gaussian noise; give --noise gaussian with it.")
    budget = audit_run.AuditBudget(releases, minutes, confidence, plain, rows)
    if is_file:
        options = {"--minutes": minutes, "--query": query, "--canaries": canaries}
        if unfit := [name for name, value in options.items() if value is not None]:
            raise InvalidInput(f"{unfit[0]} is for targets that the audit calls; files hold outputs made before.")
        audit_run.audit_files(target, without, claim, budget, folder).show(as_json)
        return
    if without is not None:
        raise InvalidInput("--without is for outputs in files; this target makes its outputs itself.")
    inputs = audit_run.AuditInputs.read(records, dimensions, query, canaries)
    if is_address:
        fields = {"embeddings_field": embeddings_field, "query_field": query_field, "output_field": output_field}
        subject = audit_run.make_endpoint_subject(
            target, inputs, fields, no_query=no_query, key_from=key_from, timeout=timeout, retries=retries
        )
    else:
        subject = audit_run.make_function_subject(target, inputs, timeout)
    audit_run.audit_subject(subject, claim, budget, inputs, folder, quiet=as_json).show(as_json)


def _audit_shipped_releases(target: str | None, quick: bool, as_json: bool, others: dict[str, object]) -> None:
    if target is not None:
        raise InvalidInput(f"--own audits ScoreShield itself; leave {target!r} out.")
    if given := [name for name, value in others.items() if value is not None]:
        raise InvalidInput(f"--own has its own claims and budgets; leave --{given[0]} out.")
    from scoreshield.audit import self_audit

    results = self_audit.audit_shipped_releases(quick=quick, progress=_choose_progress(as_json))
    if as_json:
        typer.echo(json.dumps([result.to_dict() for result in results]))
    else:
        typer.echo(self_audit.format_results(results))
        for result in results:
            if result.broken:
                typer.echo(f"\n{result}")
    if any(result.broken for result in results):
        raise typer.Exit(1)


def _choose_progress(quiet: bool) -> Callable[[int, int, str], None] | None:
    """Choose how progress is shown: on one line of a terminal, and elsewhere by a line every ten seconds."""
    if quiet:
        return None
    if sys.stderr.isatty():
        return _show_step
    show_line = make_line_printer("audited")
    return lambda done, total, _name: show_line(done, total)


def _show_step(done: int, total: int, name: str) -> None:
    print(f"\r{done} of {total}: {name:60}", end="" if done < total else "\n", file=sys.stderr, flush=True)
