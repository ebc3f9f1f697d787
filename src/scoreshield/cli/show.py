"""`scoreshield show FILE`: what a file is, its certificate and its verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import scoreshield as ss
from scoreshield.cli.inspection import FileDescription, describe_file, locate_release
from scoreshield.cli.options import Force, Json
from scoreshield.cli.output import check_new_file, say, say_line
from scoreshield.report.certificate import describe_verdict, list_file_facts

EXAMPLE = "scoreshield show r.npz\nscoreshield show r.npz --html certificate.html"


def show_command(
    file: Annotated[
        str,
        typer.Argument(
            help="A release, an index, a certificate, a page, a codebook, levels, a tail, counters, a ledger or its "
            "address, or the folder of a run or an audit.",
            metavar="FILE",
        ),
    ],
    html: Annotated[Path | None, typer.Option(help="Also write the certificate as a page that prints.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Say what a file is, and print its certificate and verdict. This reads released and public facts only."""
    if html is not None:
        if html.suffix.lower() not in (".html", ".htm"):
            raise ss.InvalidInput(f"--html must end in .html. Got {html}.")
        check_new_file(html, force, Path(file))
    found = describe_file(file)
    if html is not None:
        _write_page(found, Path(file), html)
    if as_json:
        typer.echo(json.dumps(_to_dict(found, file, html)))
        return
    say_line(f"{file}: {found.summary}")
    for name, value in found.facts.items():
        say_line(f"{name:<20} {value}")
    if found.guarantee is not None:
        say(f"{'verdict':<20} {found.guarantee.verdict}\n")
        say(str(found.guarantee))
    if html is not None:
        say_line(f"Written {html}")


def _write_page(found: FileDescription, path: Path, html: Path) -> None:
    from scoreshield.report import save_certificate_page

    if found.guarantee is None:
        raise ss.InvalidInput(f"--html writes a certificate, and {path} has none: it is {found.summary}.")
    release = locate_release(path)
    facts = list_file_facts(release) if release.is_file() else {}
    save_certificate_page(found.guarantee, html, facts=facts)


def _to_dict(found: FileDescription, file: str, html: Path | None) -> dict[str, Any]:
    facts = {name.replace(" ", "_"): value for name, value in found.facts.items()}
    answer: dict[str, Any] = {"file": file, "kind": found.kind, "summary": found.summary, "facts": facts}
    if html is not None:
        answer["html"] = str(html)
    return answer | ({} if found.guarantee is None else describe_verdict(found.guarantee))
