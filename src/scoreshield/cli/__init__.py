"""The command line: one module for each command or group of commands.

A bad input prints one line on standard error and exits with code 2, without a traceback. An interrupted command exits
with 130; while Python is still loading the package, Python itself handles the interrupt. Neither leaves a half-written
file. An unforeseen failure also prints one line and exits with code 70. Where a reader stops, as ``| head`` does, the
command says nothing and exits with 141. Code 1 only means that an audit broke a claim. With SCORESHIELD_DEBUG=1 in the
environment the traceback comes first. Progress goes to standard error: a bar on a terminal, and elsewhere a line every
ten seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import scoreshield as ss
from scoreshield._loading import describe_error
from scoreshield._types import Calibration
from scoreshield.cli import audit, bench, export, hits, ledger, plan, public, rag, release, report
from scoreshield.cli.options import Delta, Epsilon, Json, progress_bar
from scoreshield.cli.output import make_printable
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.profiles import GaussianProfile
from scoreshield.privacy.verdicts import judge_profile

_UNFORESEEN = 70  # EX_SOFTWARE in sysexits.h
_INTERRUPTED = 130  # the code of Typer
_CLOSED = 141  # of a program that a closed pipe ends
_COMPLETION = "_SCORESHIELD_COMPLETE"  # a shell that asks for completions sets it, and Typer then calls sys.exit()
#: Calls that a warning suggests, and what they are on the command line.
_COMMANDS = {
    "release_scores with for_='ranking', or mode='query' with a ledger": "scoreshield release scores --for ranking",
    "release_scores with for_='ranking'": "scoreshield release scores --for ranking",
    "release_batch": "scoreshield release batch",
    "public_scores of": "--public-scores of",
    "a batch of 30 queries that are known now": "a batch of 30 known queries (scoreshield release batch)",
}
_COMPLETION_OPTIONS = ("--install-completion", "--show-completion")  # Typer calls sys.exit() for these too

app = typer.Typer(
    help="Release cosine similarities under differential privacy, with a certificate.",
    epilog="Start with: scoreshield demo",
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
)
app.add_typer(release.app, name="release")
app.add_typer(public.app, name="public")
app.command(name="hits", epilog=hits.EXAMPLE)(hits.hits_command)
app.command(name="plan", epilog=plan.EXAMPLE)(plan.plan_command)
app.command(name="bench", epilog=bench.EXAMPLE)(bench.bench_command)
app.command(name="rag", epilog=rag.EXAMPLE)(rag.rag_command)
app.command(name="audit", epilog=audit.EXAMPLE)(audit.run_audit_command)
app.command(name="export", epilog=export.EXAMPLE)(export.export_index_command)
app.add_typer(report.app, name="report")
app.add_typer(ledger.app, name="ledger")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        typer.echo(f"scoreshield {ss.__version__}")
        raise typer.Exit


@app.command("calibrate", epilog="scoreshield calibrate --epsilon 1 --delta 1e-6 --sensitivity 2")
def calibrate_command(
    epsilon: Epsilon,
    delta: Delta,
    sensitivity: Annotated[float, typer.Option(help="How far one neighbour moves the output, in l2; 2 for one query.")],
    method: Annotated[Calibration, typer.Option(help="The rule.")] = "analytic",
    as_json: Json = False,
) -> None:
    """Compute the least Gaussian noise for a contract, and the best attack against it."""
    scale = ss.calibrate(epsilon, delta, sensitivity, method)
    mu = sensitivity / scale
    facts = {
        "scale": scale,
        "epsilon": epsilon,
        "delta": delta,
        "sensitivity": sensitivity,
        "method": method,
        "delta_at_epsilon": gaussian.compute_delta(epsilon, mu),
        "attack_auc": gaussian.attack_auc(mu),
        "attack_advantage": gaussian.attack_advantage(mu),
        "verdict": judge_profile(GaussianProfile(mu)),
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"scale (standard deviation)   {scale!r}")
    typer.echo(f"exact delta at this epsilon  {facts['delta_at_epsilon']:.6g} (asked: {delta:g})")
    typer.echo(f"best attack: AUC             {facts['attack_auc']:.6f} (0.5 is a coin toss)")
    typer.echo(f"best attack: advantage       {facts['attack_advantage']:.6f} (0 is a coin toss)")
    typer.echo(f"verdict                      {facts['verdict']}")


@app.command("demo")
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


def main() -> None:
    """Run the command line. Every expected failure and every warning prints one line."""
    with warnings.catch_warnings():  # which restores how warnings are shown
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        _run()


def _run() -> None:
    arguments = sys.argv[1:] or ["--help"]
    try:
        code = typer.main.get_command(app).main(arguments, prog_name="scoreshield", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        _stop(f"{message.rstrip('.')}. See 'scoreshield --help'.")
    except ss.ScoreShieldError as error:
        _stop(_read_message(error))
    except OSError as error:
        _stop_printing(error)
    except MemoryError:
        _stop("Not enough memory for a release of this size; nothing was written.")
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BaseException as error:  # a fault of ours, or a foreign sys.exit(): code 1 would mean a broken claim
        if isinstance(error, SystemExit) and (_COMPLETION in os.environ or arguments[0] in _COMPLETION_OPTIONS):
            raise
        if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):  # of Typer and Rich
            _stop_printing(error.__context__)
        if os.environ.get("SCORESHIELD_DEBUG") == "1":
            traceback.print_exc()
        _stop(
            f"Unforeseen {type(error).__name__} ({describe_error(error)}); SCORESHIELD_DEBUG=1 shows where.",
            _UNFORESEEN,
        )
    if code == _INTERRUPTED:
        _stop("Interrupted; no file was left half-written.", code)
    sys.exit(code if isinstance(code, int) else 0)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any) -> None:
    """Print a warning as one line on standard error, without the line of code that gave it."""
    text = " ".join(str(message).split())
    for call, command in _COMMANDS.items():
        text = text.replace(call, command)
    with contextlib.suppress(OSError, ValueError):
        print(f"{category.__name__}: {make_printable(text)}", file=sys.stderr, flush=True)


def _stop_printing(error: OSError) -> None:
    """Stop because standard output is full, or closed by a reader that has enough, such as ``| head``."""
    with contextlib.suppress(OSError):  # so that the interpreter does not write again when it ends
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    if isinstance(error, BrokenPipeError):
        sys.exit(_CLOSED)
    _stop(f"Cannot print the answer: {error.strerror}.")


def _stop(message: str, code: int = 2) -> None:
    with contextlib.suppress(OSError, ValueError):  # standard error may be full or closed
        print("scoreshield: " + make_printable(" ".join(message.split())), file=sys.stderr, flush=True)
    sys.exit(code)


def _read_message(error: BaseException) -> str:
    """Read the message of one of our errors. A foreign subclass may fail to give one."""
    try:
        return str(error)
    except BaseException:
        return type(error).__name__
