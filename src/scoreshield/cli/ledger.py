"""`scoreshield ledger`: make, read, check and export a ledger of privacy charges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from scoreshield.cli.help import CommandApp
from scoreshield.cli.options import Force, Json, LedgerArgument, ListedDataset
from scoreshield.cli.output import check_new_file, find_ledger_file, say
from scoreshield.errors import LedgerError
from scoreshield.privacy.ledger import Ledger
from scoreshield.privacy.ledger.entries import DRAW, FREE_DRAW, Entry, shorten

app = CommandApp(
    help="Keep the privacy budget of a collection: what was spent, what is left, and whether it is whole.",
    epilog="scoreshield ledger init sqlite:///ledger.db --epsilon 10 --delta 1e-6",
)


@app.command("init", epilog="scoreshield ledger init sqlite:///ledger.db --epsilon 10 --delta 1e-6")
def init_command(
    url: LedgerArgument,
    epsilon: Annotated[float, typer.Option(help="The most epsilon that may ever be spent on one dataset. No default.")],
    delta: Annotated[float, typer.Option(help="The delta it is counted at; 0 takes pure mechanisms only. No default.")],
    as_json: Json = False,
) -> None:
    """Make a new ledger with its limit, which cannot be changed later."""
    _print_status(Ledger.create(url, epsilon=epsilon, delta=delta), None, as_json)


@app.command("status", epilog="scoreshield ledger status sqlite:///ledger.db")
def status_command(url: LedgerArgument, dataset: ListedDataset = None, as_json: Json = False) -> None:
    """Print what was spent, what is left, and what one more release may cost."""
    _print_status(Ledger.open(url), dataset, as_json)


@app.command("list", epilog="scoreshield ledger list sqlite:///ledger.db")
def list_command(url: LedgerArgument, dataset: ListedDataset = None, as_json: Json = False) -> None:
    """List every charge: when, who, why and how much."""
    entries = [entry for entry in Ledger.open(url).entries() if dataset is None or entry.dataset in (dataset, None)]
    if as_json:
        typer.echo(json.dumps([entry.to_dict() for entry in entries]))
        return
    table = Table("entry", "time (UTC)", "dataset", "who", "why", "mechanism", "epsilon", "delta", "note")
    for entry in entries:
        try:
            mechanism, epsilon, delta = _read_price(entry)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise LedgerError(f"Entry {shorten(entry.id)} holds no guarantee that can be listed.") from None
        where = (entry.dataset or "all").removeprefix("hmac-sha256:")[:16]
        time = entry.time[:19].replace("T", " ")
        table.add_row(
            *map(
                _escape_controls,
                (entry.id, time, where, entry.who, entry.why, mechanism, epsilon, delta, entry.note),
            )
        )
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a pipe has no width to fit
    console.print(table, markup=False)


@app.command("verify", epilog="scoreshield ledger verify sqlite:///ledger.db")
def verify_command(
    url: LedgerArgument,
    head: Annotated[
        str | None, typer.Option(help="A head that was noted earlier: shows entries cut off at the end since then.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check every entry and the chain. Keep the printed head somewhere else."""
    verification = Ledger.open(url).verify(head=head)
    if not verification:
        raise LedgerError(verification.reason)
    facts = {"ok": True, "entries": verification.entries, "head": verification.head}
    typer.echo(json.dumps(facts) if as_json else str(verification))


@app.command("export", epilog="scoreshield ledger export sqlite:///ledger.db --output ledger.csv")
def export_command(
    url: LedgerArgument,
    output: Annotated[Path, typer.Option(help="Where to write; ends in .csv or .json.")],
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write every entry to a table or a JSON file."""
    check_new_file(output, force, find_ledger_file(url))
    ledger = Ledger.open(url)
    ledger.export(output)
    facts = {"file": str(output), "head": ledger.head()}
    say(json.dumps(facts) if as_json else f"Wrote {output}; head {facts['head']}.")


@app.command("abandon", epilog="scoreshield ledger abandon sqlite:///ledger.db scores-of-q")
def abandon_command(
    url: LedgerArgument,
    folder: Annotated[str, typer.Argument(help="The folder of the release; it need not exist anymore.")],
    as_json: Json = False,
) -> None:
    """Destroy the key of a cluster release that cannot go on. A charge stays."""
    from scoreshield.distributed.driver import abandon_release

    destroyed = abandon_release(folder, ledger=Ledger.open(url))
    facts = {"folder": folder, "keys_destroyed": destroyed}
    say(json.dumps(facts) if as_json else f"The release in {_escape_controls(folder)} is abandoned; a charge stays.")


def _read_price(entry: Entry) -> tuple[str, str, str]:
    """Read the mechanism of an entry, and the epsilon and delta that it charges.

    An entry of draws states the total of its index, and charges one draw or nothing.
    """
    promise: Any = entry.to_dict()["guarantee"]
    if entry.kind not in (DRAW, FREE_DRAW):
        return promise["mechanism"], f"{promise['epsilon']:g}", f"{promise['delta']:g}"
    promise = promise["promise"]
    epsilon = promise["details"]["epsilon_per_draw"] if entry.kind == DRAW else 0.0
    return promise["mechanism"], f"{epsilon:g}", f"{promise['delta']:g}"


def _escape_controls(value: object) -> str:
    """Escape control characters, which a terminal would act on. An edited ledger may hold some."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in str(value))


def _print_status(ledger: Ledger, dataset: str | None, as_json: bool) -> None:
    spent, headroom = ledger.spent_on(dataset), ledger.headroom_on(dataset)
    facts = {
        "ledger": ledger.name,
        "dataset": dataset,
        "limit": ledger.epsilon,
        "delta": ledger.delta,
        "spent": spent,
        "remaining": max(0.0, ledger.epsilon - spent),
        "fits": {"pure": headroom.pure, "gaussian": headroom.gaussian, "gaussian_mu": headroom.mu},
        "datasets": ledger.datasets(),
        "head": ledger.head(),
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    of = f"of {dataset}" if dataset else "of the dataset on which most is spent"
    typer.echo(f"limit      epsilon {ledger.epsilon:g} at delta {ledger.delta:g}, for each dataset")
    typer.echo(f"spent      epsilon {spent:.6g} ({of})")
    typer.echo(f"remaining  epsilon {facts['remaining']:.6g}; {headroom}")
    typer.echo(f"datasets   {len(ledger.datasets())} named, {ledger.head().partition(':')[0]} entries")
    typer.echo(f"head       {facts['head']}")
