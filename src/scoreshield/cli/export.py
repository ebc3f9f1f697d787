"""`scoreshield export`: a released index for another engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

import scoreshield as ss
from scoreshield.cli.options import Json
from scoreshield.cli.output import say
from scoreshield.releases.index import PrivateIndex

EXAMPLE = "scoreshield export index.npz --to parquet --output index.parquet"
Target = Literal["faiss", "hnsw", "parquet", "lance"]


def export_index_command(
    index: Annotated[Path, typer.Argument(help="A released index, as `release index` wrote it.", metavar="INDEX")],
    to: Annotated[Target, typer.Option(help="faiss is exact, hnsw is FAISS with approximate search.")],
    output: Annotated[Path, typer.Option(help="The file or, for lance, the folder; it must not exist.")],
    as_json: Json = False,
) -> None:
    """Write a released index for another engine, with its certificate in the metadata. This costs no budget."""
    release = ss.load(index)
    if not isinstance(release, PrivateIndex):
        raise ss.InvalidInput(f"{index} holds a {release.kind} release and no index.")
    match to:
        case "faiss":
            release.to_faiss(output)
        case "hnsw":
            release.to_faiss(output, kind="hnsw")
        case "parquet":
            release.to_parquet(output)
        case "lance":
            release.to_lance(output)
    records = release.guarantee.shape[0]
    if as_json:
        typer.echo(json.dumps({"output": str(output), "to": to, "records": records}))
        return
    say(f"{output}: {records:,} private vectors. Rank by inner product with reduced queries.")
