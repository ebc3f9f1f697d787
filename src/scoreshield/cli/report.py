"""`scoreshield report`: the figures of the paper and the results page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

import scoreshield as ss
from scoreshield.cli.help import CommandApp
from scoreshield.cli.options import Json, progress_bar
from scoreshield.cli.output import check_not_input, say

app = CommandApp(
    help="Make the results page, and the figures of the paper.", epilog="scoreshield report figures --out figures"
)


@app.command("results", epilog="scoreshield report results --runs runs --markdown results.md --html results.html")
def results_command(
    runs: Annotated[Path, typer.Option(help="Folder that holds the run folders of `scoreshield bench`.")] = Path(
        "runs"
    ),
    markdown: Annotated[
        Path, typer.Option(help="The page as Markdown; its parts go into a folder of the same name beside it.")
    ] = Path("results.md"),
    html: Annotated[Path, typer.Option(help="The page as one self-contained HTML file.")] = Path("results.html"),
    images: Annotated[
        Path | None, typer.Option(help="Folder for the pictures of the Markdown page; 'images/results' beside it.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the compact data sets, to draw the operating points of LFW too.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make the results page from all finished runs, with the command of each."""
    from scoreshield.bench.report.results import make_results_page

    check_not_input((markdown, html), runs.rglob("*"))
    folder = images or markdown.parent / "images" / "results"
    page = make_results_page(runs, markdown=markdown, html=html, images=folder, data_dir=data_dir)
    if as_json:
        typer.echo(json.dumps({"markdown": str(markdown), "html": str(html), "sections": len(page.sections)}))
        return
    say(f"{markdown} and {html}, {len(page.sections)} sections.")


@app.command("figures", epilog="scoreshield report figures --out figures")
def figures_command(
    out: Annotated[Path, typer.Option(help="Folder for the pictures; made if it is not there.")],
    scores: Annotated[int, typer.Option(help="Synthetic scores on each side, impostor and genuine.")] = 200_000,
    seed: Annotated[int, typer.Option(help="The seed of the synthetic scores.")] = 1,
    as_json: Json = False,
) -> None:
    """Draw the paper's face-recognition figures on synthetic scores, and mark calibrations that are not private."""
    from scoreshield.report.figures import make_figures

    if scores < 1000:
        raise ss.InvalidInput(f"--scores must be at least 1000, for a false-match rate of 1e-3. Got {scores}.")
    with progress_bar(as_json) as progress:
        paths = make_figures(out, scores_per_side=scores, seed=seed, progress=progress)
    if as_json:
        typer.echo(json.dumps({"files": [str(path) for path in paths]}))
        return
    for path in paths:
        say(str(path))
