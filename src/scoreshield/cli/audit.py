"""`scoreshield audit TARGET`: try to contradict a privacy claim, and write the evidence down.

Exit code 1 when the claim is broken, 0 when no violation was found, 2 for bad input, 70 for a failure that nobody
foresaw: it can gate a pipeline.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from scoreshield.cli.options import Json
from scoreshield.cli.output import check_not_input
from scoreshield.errors import InvalidInput

EXAMPLE = "scoreshield audit service:release --epsilon 1 --delta 1e-6 --adjacency replace --out audit"


def audit(
    target: Annotated[
        str | None,
        typer.Argument(help="module:function, http(s)://..., or a file of outputs made with the record (.npy, ...)."),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="The claimed epsilon.")] = None,
    delta: Annotated[float, typer.Option(help="The claimed delta; 0 is a pure claim.")] = 0.0,
    adjacency: Annotated[
        str | None, typer.Option(help="Who counts as a neighbour in the claim: 'replace', one record by another.")
    ] = None,
    noise: Annotated[
        Literal["any", "gaussian"],
        typer.Option(help="'gaussian' claims Gaussian noise that just meets the pair: far smaller violations show."),
    ] = "any",
    plain: Annotated[
        bool,
        typer.Option("--plain", help="With --noise gaussian: outputs are clean values plus that noise, never clipped."),
    ] = False,
    releases: Annotated[
        int | None, typer.Option(help="Releases on each side; 2,000 unless --minutes is given.", min=1)
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="As many releases as about so many minutes allow.")] = None,
    confidence: Annotated[float, typer.Option(help="Of everything that the audit states.")] = 0.95,
    statistic: Annotated[str, typer.Option(help="auto, linear, table, membership, classifier, likelihood.")] = "auto",
    records: Annotated[int, typer.Option(help="Records in the collections that the auditor makes up.", min=1)] = 8,
    dimensions: Annotated[int, typer.Option(help="Their length, where no query or canary says it.", min=1)] = 8,
    query: Annotated[Path | None, typer.Option(help="The public query (.npy, ...); by default the first axis.")] = None,
    no_query: Annotated[bool, typer.Option("--no-query", help="An endpoint that takes no query.")] = False,
    canaries: Annotated[
        Path | None, typer.Option(help="Records to put in and take out, one a row, instead of the worst cases.")
    ] = None,
    without: Annotated[Path | None, typer.Option(help="For files: the outputs made without the record.")] = None,
    embeddings_field: Annotated[str, typer.Option(help="For endpoints: the collection's name in JSON.")] = "embeddings",
    query_field: Annotated[str, typer.Option(help="For endpoints: the query's name.")] = "query",
    output_field: Annotated[str, typer.Option(help="For endpoints: the answer's name; dots lead inside.")] = "scores",
    key_from: Annotated[
        str | None, typer.Option(help="For endpoints: environment variable that holds a bearer key to send.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one release may take.", max=86_400)] = 60.0,
    retries: Annotated[int, typer.Option(help="For endpoints: how often a failed request is repeated.", min=0)] = 3,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the releases and the report. A killed audit goes on there.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="With --out: begin afresh where an audit was before, which is removed.")
    ] = False,
    own: Annotated[bool, typer.Option("--own", help="Audit ScoreShield's own mechanisms instead of a target.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="With --own: the short form.")] = False,
    as_json: Json = False,
) -> None:
    """Attack a release function, a service or saved outputs, and bound from below what they leak.

    Exit code 1 means that the claim is broken, 0 that no violation was found: evidence, never proof.
    """
    if own:
        given: dict[str, object] = {
            "epsilon": epsilon,
            "releases": releases,
            "minutes": minutes,
            "out": out,
            "again": again or None,
        }
        _own(target, quick, as_json, given)
        return
    if target is None:
        raise InvalidInput("Say what to audit: module:function, an address, a file of outputs, or --own.")
    if quick:
        raise InvalidInput("--quick is the short form of --own; for a target, --releases or --minutes set the budget.")
    if again and out is None:
        raise InvalidInput("--again begins afresh in the folder of an earlier audit; name it with --out.")
    from scoreshield.cli import audit_run

    folder = audit_run.Folder(out, again)
    web = target.lower().startswith(("http://", "https://"))
    files = not web and Path(target).suffix.lower() in (".npy", ".npz", ".parquet")
    if out is not None:
        check_not_input((out / name for name in audit_run.FILES), (query, canaries, without, Path(target)))
    claim = audit_run.claimed(epsilon, delta, adjacency, noise, files=files)
    if plain and noise != "gaussian":
        raise InvalidInput("--plain says what is done with Gaussian noise; give --noise gaussian with it.")
    budget = audit_run.Budget(releases, minutes, confidence, statistic, plain)
    if files:
        unasked = {"--minutes": minutes, "--query": query, "--canaries": canaries}
        if unfit := [name for name, value in unasked.items() if value is not None]:
            raise InvalidInput(f"{unfit[0]} is for targets that can be asked; outputs in files were made before.")
        audit_run.of_files(target, without, claim, budget, folder).tell(as_json)
        return
    if without is not None:
        raise InvalidInput("--without is for outputs in files; this target makes its outputs itself.")
    inputs = audit_run.Inputs.read(records, dimensions, query, canaries)
    if web:
        fields = {"embeddings_field": embeddings_field, "query_field": query_field, "output_field": output_field}
        subject = audit_run.endpoint(
            target, inputs, fields, no_query=no_query, key_from=key_from, timeout=timeout, retries=retries
        )
    else:
        subject = audit_run.function(target, inputs, timeout)
    audit_run.of_subject(subject, claim, budget, inputs, folder, quiet=as_json).tell(as_json)


def _own(target: str | None, quick: bool, as_json: bool, others: dict[str, object]) -> None:
    if target is not None:
        raise InvalidInput(f"--own audits ScoreShield itself; leave {target!r} out.")
    if given := [name for name, value in others.items() if value is not None]:
        raise InvalidInput(f"--own has its own claims and budgets; leave --{given[0]} out.")
    from scoreshield.audit import own as own_audit

    if own_audit.main(["--quick"] * quick + ["--json"] * as_json):
        raise typer.Exit(1)
