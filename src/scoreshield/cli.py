"""The command line: `scoreshield demo`, `release`, `calibrate`.

A bad input is one line on standard error and exit code 2, never a traceback; an interrupted command exits with 130.
Neither leaves a half-written file. Progress bars go to standard error, and only to a person's terminal.
"""

from __future__ import annotations

import contextlib
import hashlib
import io as bytes_io
import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import scoreshield as ss
from scoreshield import io
from scoreshield.embeddings import Norm
from scoreshield.geometry.arrays import Progress as ProgressCallback
from scoreshield.geometry.denoise import Denoiser
from scoreshield.privacy import calibration as gaussian
from scoreshield.releases import GramProjection, Mechanism

app = typer.Typer(
    help="Release cosine similarities under differential privacy, with a certificate.",
    epilog="Start with: scoreshield demo",
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
)
release_app = typer.Typer(
    help="Release scores, a row or a Gram matrix: FILE.npz with the guarantee inside, FILE.json and FILE.txt beside it."
)
app.add_typer(release_app, name="release")

Embeddings = Annotated[
    Path,
    typer.Argument(help="The private collection, one record a row: .npy, .npz or .parquet.", metavar="EMBEDDINGS"),
]
Array = Annotated[str | None, typer.Option(help="Which array of the .npz, or column of the .parquet, to read.")]
Epsilon = Annotated[float, typer.Option(help="The privacy budget, > 0: smaller is more private. No default.")]
Delta = Annotated[
    float, typer.Option(help="Slack added to every probability, in (0, 1); well below 1/records. No default.")
]
MechanismOption = Annotated[Mechanism, typer.Option(help="The noise.")]
CalibrationOption = Annotated[
    gaussian.Method,
    typer.Option(help="The rule that sets the noise; textbook rules are refused where they are false."),
]
Labels = Annotated[
    Path | None,
    typer.Option(help="Public labels, one a record (.npy): protect whole identities, not single records."),
]
Centroids = Annotated[bool, typer.Option("--centroids", help="With --labels: release one centroid per identity.")]
ScoreRange = Annotated[
    tuple[float, float],
    typer.Option(help="Public range that clean scores are clamped to; narrower means less noise."),
]
Output = Annotated[Path, typer.Option(help="Where to write the release; ends in .npz.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an earlier release of that name.")]
Seed = Annotated[int | None, typer.Option(help="Research mode: repeatable noise, NOT PRIVATE, for public data only.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, for machines.")]
Unsafe = Annotated[
    bool,
    typer.Option(
        "--unsafe-reproduce-paper",
        help="Use a textbook rule where it is false; the certificate says what it is worth.",
    ),
]
TopK = Annotated[int | None, typer.Option(help="Also print the indices of the best K noisy scores.")]
Threshold = Annotated[float | None, typer.Option(help="With --top-k: only scores at or above this.")]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        typer.echo(f"scoreshield {ss.__version__}")
        raise typer.Exit


@release_app.command(
    "scores",
    epilog="scoreshield release scores docs.npy --query q.npy --epsilon 5 --delta 1e-6 --output r.npz",
)
def release_scores(
    embeddings: Embeddings,
    query: Annotated[Path, typer.Option(help="The public query, a vector, or a matrix of several, one a row.")],
    epsilon: Epsilon,
    delta: Delta,
    output: Output,
    array: Array = None,
    query_array: Annotated[str | None, typer.Option(help="Which array of the query file to read.")] = None,
    mechanism: MechanismOption = "gaussian",
    calibration: CalibrationOption = "analytic",
    labels: Labels = None,
    centroids: Centroids = False,
    score_range: ScoreRange = (-1.0, 1.0),
    norm: Annotated[Norm, typer.Option(help="unit: normalise rows; ball: only shorten rows longer than one.")] = "unit",
    top_k: TopK = None,
    threshold: Threshold = None,
    seed: Seed = None,
    unsafe_reproduce_paper: Unsafe = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Release the similarity of a public query with every record."""
    _check_output(output, force)
    release = ss.release_scores(
        io.read_array(embeddings, name=array, mapped=True),
        _one_or_many(io.read_array(query, name=query_array)),
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,
        calibration=calibration,
        adjacency=_adjacency(labels, centroids),
        score_range=score_range,
        norm=norm,
        rng=seed,
        unsafe_reproduce_paper=unsafe_reproduce_paper,
    )
    _finish(release, output, as_json, _ranking(release, top_k, threshold))


@release_app.command(
    "row", epilog="scoreshield release row faces.npy --index 17 --epsilon 5 --delta 1e-6 --output r.npz"
)
def release_row(
    embeddings: Embeddings,
    index: Annotated[int, typer.Option(help="Which record, counted from 0; public.")],
    epsilon: Epsilon,
    delta: Delta,
    output: Output,
    array: Array = None,
    mechanism: MechanismOption = "gaussian",
    calibration: CalibrationOption = "analytic",
    labels: Labels = None,
    centroids: Centroids = False,
    score_range: ScoreRange = (-1.0, 1.0),
    top_k: TopK = None,
    threshold: Threshold = None,
    seed: Seed = None,
    unsafe_reproduce_paper: Unsafe = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Release the similarity of one record with every record."""
    _check_output(output, force)
    release = ss.release_row(
        io.read_array(embeddings, name=array, mapped=True),
        index,
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,
        calibration=calibration,
        adjacency=_adjacency(labels, centroids),
        score_range=score_range,
        rng=seed,
        unsafe_reproduce_paper=unsafe_reproduce_paper,
    )
    _finish(release, output, as_json, _ranking(release, top_k, threshold))


@release_app.command("gram", epilog="scoreshield release gram emb.npy --epsilon 20 --delta 1e-6 --output r.npz")
def release_gram(
    embeddings: Embeddings,
    epsilon: Epsilon,
    delta: Delta,
    output: Output,
    array: Array = None,
    mechanism: MechanismOption = "gaussian",
    calibration: CalibrationOption = "analytic",
    labels: Labels = None,
    centroids: Centroids = False,
    gram_radius: Annotated[
        float | None,
        typer.Option(help="Promise only this much movement of the matrix: weaker than a whole record."),
    ] = None,
    score_range: ScoreRange = (-1.0, 1.0),
    projection: Annotated[
        GramProjection, typer.Option(help="How the noisy matrix is made a valid cosine matrix.")
    ] = "exact",
    denoise: Annotated[
        Denoiser, typer.Option(help="What is made of the noisy matrix; sure picks by estimated risk.")
    ] = "projection",
    device: Annotated[str, typer.Option(help="Where the projection runs: cpu or cuda.")] = "cpu",
    max_iterations: Annotated[int | None, typer.Option(help="Stop the projection after so many steps.")] = None,
    seed: Seed = None,
    unsafe_reproduce_paper: Unsafe = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Release all pairwise similarities."""
    _check_output(output, force)
    adjacency = _adjacency(labels, centroids)
    if gram_radius is not None:
        if labels is not None:
            raise ss.InvalidInput("Give --labels or --gram-radius, not both: each names who is protected.")
        adjacency = ss.GramRadius(gram_radius)
    with _progress(as_json) as progress:
        release = ss.release_gram(
            io.read_array(embeddings, name=array),
            epsilon=epsilon,
            delta=delta,
            mechanism=mechanism,
            calibration=calibration,
            adjacency=adjacency,
            score_range=score_range,
            projection=projection,
            denoise=denoise,
            device=device,
            max_iterations=max_iterations,
            rng=seed,
            unsafe_reproduce_paper=unsafe_reproduce_paper,
            progress=progress,
        )
    _finish(
        release,
        output,
        as_json,
        {
            "projection": release.projection,
            "denoise": release.denoise,
            "iterations": release.iterations,
            "residual": release.residual,
            "converged": release.converged,
        },
    )


@app.command(epilog="scoreshield calibrate --epsilon 1 --delta 1e-6 --sensitivity 2")
def calibrate(
    epsilon: Epsilon,
    delta: Delta,
    sensitivity: Annotated[float, typer.Option(help="How far one neighbour moves the output, in l2; 2 for one query.")],
    method: Annotated[gaussian.Method, typer.Option(help="The rule.")] = "analytic",
    as_json: Json = False,
) -> None:
    """The least Gaussian noise for a contract, and what an attacker can still do."""
    scale = ss.calibrate(epsilon, delta, sensitivity, method)
    mu = sensitivity / scale
    facts = {
        "scale": scale,
        "epsilon": epsilon,
        "delta": delta,
        "sensitivity": sensitivity,
        "method": method,
        "delta_at_epsilon": gaussian.delta_of(epsilon, mu),
        "attack_auc": gaussian.attack_auc(mu),
        "attack_advantage": gaussian.attack_advantage(mu),
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"scale (standard deviation)   {scale!r}")
    typer.echo(f"exact delta at this epsilon  {facts['delta_at_epsilon']:.6g} (asked: {delta:g})")
    typer.echo(f"best attack: AUC             {facts['attack_auc']:.6f} (0.5 is a coin toss)")
    typer.echo(f"best attack: advantage       {facts['attack_advantage']:.6f} (0 is a coin toss)")


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Folder for the picture, the releases and the certificates.")] = Path(
        "scoreshield-demo"
    ),
    as_json: Json = False,
) -> None:
    """One release of each kind on public data, a picture and a certificate: no file and no network needed."""
    from scoreshield import demo as demo_module

    with _progress(as_json) as progress:
        summary = demo_module.run(output, progress)
    if as_json:
        typer.echo(json.dumps(summary.to_dict()))
    else:
        summary.show(Console())


def _adjacency(labels: Path | None, centroids: bool) -> ss.Adjacency:
    if labels is None:
        if centroids:
            raise ss.InvalidInput("--centroids needs --labels, which say who belongs to whom.")
        return ss.Replacement()
    return ss.Identity(io.read_array(labels), centroids=centroids)


def _one_or_many(query: Any) -> Any:
    """A query file may hold a vector or a matrix; a matrix of one row (all that .parquet can hold) is one query."""
    return query[0] if query.ndim == 2 and len(query) == 1 else query


def _check_output(output: Path, force: bool) -> None:
    """Refuse a wrong ending, a missing folder or a taken name before any noise is drawn."""
    if output.suffix != ".npz":
        raise ss.InvalidInput(f"The output must end in .npz; got {output}.")
    if not output.parent.is_dir():
        raise ss.InvalidInput(f"There is no folder {output.parent} to write to.")
    taken = [path for path in _beside(output) if path.exists()]
    if taken and not force:
        raise ss.InvalidInput(f"{taken[0]} exists already; choose another name or pass --force to overwrite it.")


def _beside(output: Path) -> tuple[Path, Path, Path]:
    return output, output.with_suffix(".json"), output.with_suffix(".txt")


def _ranking(release: ss.ScoreRelease, top_k: int | None, threshold: float | None) -> dict[str, Any]:
    if top_k is None:
        if threshold is not None:
            raise ss.InvalidInput("--threshold needs --top-k, which says how many to print.")
        return {}
    return {"top_k": release.top_k(top_k, threshold).tolist()}


def _finish(release: ss.Release, output: Path, as_json: bool, facts: dict[str, Any]) -> None:
    """Write the release and its certificate, all three files or none, and say so."""
    write_with_certificate(release, output)
    if as_json:
        files = [str(path) for path in _beside(output)]
        typer.echo(json.dumps({"files": files, **facts, "guarantee": release.guarantee.to_dict()}))
        return
    typer.echo(str(release.guarantee))
    for name, value in facts.items():
        typer.echo(f"{name:<15}{value}")
    typer.echo("Written        " + ", ".join(str(path) for path in _beside(output)))


def write_with_certificate(release: ss.Release, output: Path) -> None:
    """FILE.npz with the release, FILE.json and FILE.txt with the certificate, bound to it by a checksum."""
    buffer = bytes_io.BytesIO()
    release.writer()(buffer)
    content = buffer.getbuffer()
    checksum = hashlib.sha256(content).hexdigest()
    issued = datetime.now(UTC).isoformat(timespec="seconds")
    record = {
        "file": output.name,
        "sha256": checksum,
        "issued": issued,
        "scoreshield": ss.__version__,
        "guarantee": release.guarantee.to_dict(),
    }
    text = f"{release.guarantee}\nFile           {output.name}\nSHA-256        {checksum}\nIssued         {issued}\n"
    npz, beside_json, beside_text = _beside(output)
    io.write_whole(
        {
            npz: lambda file: file.write(content),
            beside_json: lambda file: file.write(json.dumps(record, indent=2).encode() + b"\n"),
            beside_text: lambda file: file.write(text.encode()),
        }
    )


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[ProgressCallback | None]:
    """A bar on standard error, if a person is there to see it."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("working", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def main() -> None:
    """Run the command line and turn every foreseen failure into one line."""
    command = typer.main.get_command(app)
    arguments = sys.argv[1:] or ["--help"]
    try:
        code = command.main(arguments, prog_name="scoreshield", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        _stop(f"{message.rstrip('.')}. See 'scoreshield --help'.")
    except ss.ScoreShieldError as error:
        _stop(str(error))
    except OSError as error:
        with contextlib.suppress(OSError):  # so that the interpreter does not try once more at its end
            sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
        _stop(f"Cannot print the answer: {error.strerror}.")
    except MemoryError:
        _stop("Not enough memory for a release of this size; nothing was written.")
    if code == 130:  # how Typer reports an interrupt
        _stop("Interrupted; nothing was written.", code)
    sys.exit(code if isinstance(code, int) else 0)


def _stop(message: str, code: int = 2) -> None:
    print("scoreshield: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
