"""`scoreshield bench NAME`: an experiment over a grid, resumable, with a table and pictures at the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import scoreshield as ss
from scoreshield.cli.options import Json, progress_bar
from scoreshield.cli.output import check_not_input, say

EXAMPLE = "scoreshield bench noise --show-grid\nscoreshield bench noise --quick --out runs/noise"


def bench_command(
    name: Annotated[
        str, typer.Argument(help="dp-fr, dp-rag, gram-sts, gram-movielens, gram-vision, runtime or noise.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Run folder, 'runs/NAME' by default. A stopped run is resumed there.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the compact data sets.")] = None,
    grid: Annotated[
        Path | None, typer.Option(help="YAML file with what differs from the grid that ships (see --show-grid).")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small grid, for about two minutes on two cores.")] = False,
    law: Annotated[
        list[str] | None,
        typer.Option(
            help="A noise law of yours for the grid, as NAME=module:function. The function returns a CustomNoise for "
            "(epsilon, delta). Repeatable."
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Number of processes; by default one per core.", min=1)] = None,
    show_grid: Annotated[bool, typer.Option("--show-grid", help="Print the grid and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Run one experiment. Every value has its guarantee; values of the paper's setting have their true privacy."""
    from scoreshield.bench.experiments import EXPERIMENTS, run_experiment
    from scoreshield.bench.experiments.grid import read_yaml
    from scoreshield.bench.experiments.runner import FILES
    from scoreshield.bench.report.pictures import draw_pictures

    if name not in EXPERIMENTS:
        raise ss.InvalidInput(f"There is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}.")
    experiment = EXPERIMENTS[name]
    if law:
        experiment = experiment.add_laws(dict(_read_law(text) for text in law))
    changes = {} if grid is None else read_yaml(grid)
    settings = experiment.make_grid(changes, quick=quick, source=str(grid or f"{name}.yaml"))
    if show_grid:
        typer.echo(_as_yaml(settings.to_dict()), nl=False)
        return
    folder = out or Path("runs") / name
    check_not_input((folder / file for file in FILES), [grid])
    with progress_bar(as_json, f"{name}") as progress:
        rows = run_experiment(experiment, settings, folder, data_dir=data_dir, workers=workers, progress=progress)
    left_out: list[str] = []
    pictures = draw_pictures(name, rows, folder / "figures", report_omission=left_out.append)
    if as_json:
        summary = {"rows": len(rows), "folder": str(folder), "figures": [str(path) for path in pictures]}
        typer.echo(
            json.dumps(summary | {"left_out": left_out} | ({"scope": experiment.scope} if experiment.scope else {}))
        )
        return
    say(f"{len(rows):,} values in {folder / 'results.csv'}, each with its guarantee.")
    if experiment.scope:
        say(experiment.scope)
    for path in pictures:
        say(f"picture  {path}")
    for line in left_out or (["Nothing of this run can be drawn."] if not pictures else []):
        say(line)


def _read_law(text: str) -> tuple[str, Callable[..., Any]]:
    """Import the function of NAME=module:function."""
    from scoreshield.audit.targets import load_function

    name, _, path = text.partition("=")
    if not name or not path:
        raise ss.InvalidInput(f"--law must be NAME=module:function. Got {text[:80]!r}.")
    return name, load_function(path)


def _as_yaml(settings: dict[str, object]) -> str:
    import yaml

    return str(yaml.safe_dump(settings, sort_keys=False, default_flow_style=None, width=120))
