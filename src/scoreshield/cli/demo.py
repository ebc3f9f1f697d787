"""`scoreshield demo`: private search on public images, offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from scoreshield.cli.options import Json, progress_bar

EXAMPLE = "scoreshield demo --output scoreshield-demo"


def demo_command(
    output: Annotated[Path, typer.Option(help="Folder for the picture, the releases and the certificates.")] = Path(
        "scoreshield-demo"
    ),
    as_json: Json = False,
) -> None:
    """Search public images privately, where it works and where it cannot: a picture and certificates, offline."""
    from scoreshield import demo as demo_module

    with progress_bar(as_json) as progress:
        summary = demo_module.run_demo(output, progress)
    if as_json:
        typer.echo(json.dumps(summary.to_dict()))
    else:
        summary.show(Console())
