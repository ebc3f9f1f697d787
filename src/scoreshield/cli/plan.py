"""`scoreshield plan`: the noise, the threshold and what they cost, as a table, a page or JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import scoreshield as ss
from scoreshield import _files
from scoreshield._formatting import format_rate
from scoreshield._types import Calibration
from scoreshield.cli.options import Delta, Force, Json, ScoreRange
from scoreshield.cli.output import check_new_file, make_printable
from scoreshield.decisions import Endpoint
from scoreshield.decisions.models import parse_score_model
from scoreshield.plan import (
    Plan,
    RetrievalPlan,
    VerificationPlan,
    retrieval,
    scores_of_collection,
    verification,
)
from scoreshield.plan.base import Source
from scoreshield.plan.choice import Choice, Need, choose

EXAMPLE = (
    "scoreshield plan --impostor imp.npy --genuine gen.npy --target-fmr 0.01 --epsilon 10 --delta 1e-6 --html p.html"
)

_SCORES, _NEED, _CONTRACT, _CHOICES, _OUTPUT = "Scores", "Need", "Contract", "Choices", "Output"

ScoreFile = Annotated[
    str | None,
    typer.Option(
        help="Impostor (irrelevant) cosines: a file (.npy, .npz and .parquet as FILE:NAME), or a model like "
        "normal:0,0.2, beta:5,5 or t:10,0,0.25.",
        rich_help_panel=_SCORES,
    ),
]
GenuineFile = Annotated[
    str | None,
    typer.Option(help="Genuine (relevant) cosines: a file or a model, as above.", rich_help_panel=_SCORES),
]


def plan_command(
    delta: Delta,
    need: Annotated[
        Need | None,
        typer.Option(
            help="Rank all mechanisms for this need, instead of planning Gaussian noise.", rich_help_panel=_NEED
        ),
    ] = None,
    queries: Annotated[
        int, typer.Option(help="With --need 'many queries': the number of queries.", rich_help_panel=_NEED)
    ] = 1,
    dimension: Annotated[
        int | None,
        typer.Option(help="With --need 'many queries' or gram: the dimension of the vectors.", rich_help_panel=_NEED),
    ] = None,
    impostor: ScoreFile = None,
    genuine: GenuineFile = None,
    source: Annotated[
        Source | None,
        typer.Option(
            help="Where the scores come from; private ones, and those not declared, are warned about.",
            rich_help_panel=_SCORES,
        ),
    ] = None,
    embeddings: Annotated[
        Path | None,
        typer.Option(help="Instead of scores: a labelled collection, with --labels.", rich_help_panel=_SCORES),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="With --embeddings: one label per record.", rich_help_panel=_SCORES)
    ] = None,
    research: Annotated[
        bool,
        typer.Option(
            "--research",
            help="With --embeddings: confirm that the plan may read clean scores.",
            rich_help_panel=_SCORES,
        ),
    ] = False,
    target_fmr: Annotated[
        float | None, typer.Option(help="The false-match rate to keep.", rich_help_panel=_NEED)
    ] = None,
    target_tar: Annotated[
        float | None, typer.Option(help="The true-match rate needed with it.", rich_help_panel=_NEED)
    ] = None,
    records: Annotated[
        int | None, typer.Option(help="For search: how many records there are.", rich_help_panel=_NEED)
    ] = None,
    k: Annotated[
        int | None, typer.Option("--k", help="For search: how many are returned.", rich_help_panel=_NEED)
    ] = None,
    target_recall: Annotated[
        float | None,
        typer.Option(help="For search: how often the relevant record must be returned.", rich_help_panel=_NEED),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="The privacy budget. Without any contract the plan finds the least.", rich_help_panel=_CONTRACT
        ),
    ] = None,
    max_advantage: Annotated[
        float | None,
        typer.Option(
            help="Or, or beside epsilon: the largest advantage (TPR - FPR) of a membership test.",
            rich_help_panel=_CONTRACT,
        ),
    ] = None,
    max_tpr: Annotated[
        float | None,
        typer.Option(help="Or: the largest true-positive rate it may have...", rich_help_panel=_CONTRACT),
    ] = None,
    at_fpr: Annotated[
        float | None, typer.Option(help="... at this false-positive rate.", rich_help_panel=_CONTRACT)
    ] = None,
    calibration: Annotated[
        Calibration,
        typer.Option(help="The rule that sets the noise.", rich_help_panel=_CHOICES),
    ] = "analytic",
    score_range: ScoreRange = (-1.0, 1.0),
    endpoint: Annotated[
        Endpoint,
        typer.Option(help="Accept score > threshold (strict) or >= (nonstrict).", rich_help_panel=_CHOICES),
    ] = "strict",
    clipped: Annotated[
        bool,
        typer.Option("--clipped", help="Decide on clipped scores instead of noisy ones.", rich_help_panel=_CHOICES),
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write the plan as one self-contained page.", rich_help_panel=_OUTPUT)
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Plan a release: noise, threshold, error rates, the least epsilon, and the alternatives."""
    if need is not None:
        _reject_options("--need", {"--html": html, "--target-tar": target_tar, "--target-recall": target_recall})
        far, near = (None if text is None else _read_scores(text) for text in (impostor, genuine))
        choice = choose(
            need,
            far,
            near,
            epsilon=epsilon,
            delta=delta,
            max_advantage=max_advantage,
            max_tpr=max_tpr,
            at_fpr=at_fpr,
            records=records,
            k=k,
            target_fmr=target_fmr,
            queries=queries,
            dimension=dimension,
            source=source,
        )
        _show_choice(choice, as_json)
        return
    if html is not None:
        texts = [text for text in (impostor, genuine) if text is not None]
        inputs = [path for text in texts for path in (Path(text), _split_array_name(text)[0])]
        _check_plan_page(html, force, [*inputs, embeddings, labels])
    contract = {"epsilon": epsilon, "max_advantage": max_advantage, "max_tpr": max_tpr, "at_fpr": at_fpr}
    shared: dict[str, Any] = {"delta": delta, "calibration": calibration, "score_range": score_range, **contract}
    scores, origin = _collect_scores(impostor, genuine, embeddings, labels, research)
    shared["source"] = source or origin
    if records is not None or k is not None:
        _reject_options("a search (--records, --k)", {"--target-fmr": target_fmr, "--target-tar": target_tar})
        if clipped or endpoint != "strict":
            raise ss.InvalidInput(
                "--clipped and --endpoint are about a matcher's threshold: leave them out for a search."
            )
        if records is None or k is None or scores[1] is None:
            raise ss.InvalidInput("A search needs --records, --k and both --impostor and --genuine scores.")
        plan: VerificationPlan | RetrievalPlan = retrieval(
            *scores, records=records, k=k, target_recall=target_recall, **shared
        )
    else:
        _reject_options("a matcher (--target-fmr)", {"--target-recall": target_recall})
        if target_fmr is None:
            raise ss.InvalidInput("Say what you need: --target-fmr for a matcher, or --records and --k for a search.")
        plan = verification(
            *scores, target_fmr=target_fmr, target_tar=target_tar, endpoint=endpoint, clipped=clipped, **shared
        )
    if html is not None:
        from scoreshield.report.plan_page import save_plan_page

        save_plan_page(plan, html)
    if as_json:
        typer.echo(json.dumps(plan.to_dict()))
    else:
        _show_plan(plan, html)


def _show_choice(choice: Choice, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(choice.to_dict()))
        return
    console = _open_console(choice)
    table = Table(title=f"Predicted {choice.metric}")
    for name in ("mechanism", "range", "predicted", "eps", "attack advantage"):
        table.add_column(name, justify="left" if name == "mechanism" else "right")
    for row in choice.candidates:
        window = f"[{row.score_range[0]:g}, {row.score_range[1]:g}]"
        cells = (f"{row.utility:.4g}", f"{row.epsilon:.4g}", f"{row.advantage:.4f}")
        table.add_row(row.mechanism, escape(window), *cells)
    console.print(table)
    console.print(f"Ask for it with {choice.chosen.call}", markup=False)


def _collect_scores(
    impostor: str | None, genuine: str | None, embeddings: Path | None, labels: Path | None, research: bool
) -> tuple[tuple[Any, Any], str]:
    """Collect the two sets of scores, and where they come from if the user does not state it."""
    if embeddings is not None:
        _reject_options("--embeddings", {"--impostor": impostor, "--genuine": genuine})
        if labels is None:
            raise ss.InvalidInput("--embeddings needs --labels, which state which records match.")
        records, groups = _files.read_array(embeddings), _files.read_array(labels)
        return scores_of_collection(records, groups, research=research), "private"
    if labels is not None or research:
        raise ss.InvalidInput("--labels and --research go with --embeddings.")
    if impostor is None:
        raise ss.InvalidInput("Give scores: --impostor (and --genuine), or a collection: --embeddings and --labels.")
    scores = _read_scores(impostor), None if genuine is None else _read_scores(genuine)
    is_model = all(part is None or isinstance(part, ss.decisions.Distribution) for part in scores)
    return scores, "parameters" if is_model else "private"


def _read_scores(text: str) -> Any:
    """Read a model such as normal:0,0.2, or a file, or FILE.npz:ARRAY."""
    model = parse_score_model(text)
    if model is not None:
        return model
    path, name = _split_array_name(text)
    array = _files.read_array(path, name=name)
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array  # a column of a table has two dimensions


def _split_array_name(text: str) -> tuple[Path, str | None]:
    """Split FILE or FILE.npz:ARRAY into the file and the array."""
    has_name = ".npz:" in text or ".parquet:" in text
    path, _, name = text.rpartition(":") if has_name else (text, "", "")
    return Path(path), name or None


def _reject_options(purpose: str, given: dict[str, Any]) -> None:
    """Raise an error where options are given that do not go with a purpose."""
    wrong = [name for name, value in given.items() if value is not None]
    if wrong:
        raise ss.InvalidInput(f"{' and '.join(wrong)} cannot go with {purpose}: leave one of them out.")


def _check_plan_page(html: Path, force: bool, inputs: list[Path | None]) -> None:
    if html.suffix not in (".html", ".htm"):
        raise ss.InvalidInput(f"The page must end in .html; got {html}.")
    check_new_file(html, force, *inputs)


def _open_console(result: Plan | Choice) -> Console:
    """Open the console and print the answer and the warnings."""
    console = Console(highlight=False)
    console.print(make_printable(result.answer), style="bold", markup=False)
    for warning in result.warnings:
        console.print(make_printable(f"Warning: {warning}"), style="yellow", markup=False)
    return console


def _show_plan(plan: VerificationPlan | RetrievalPlan, html: Path | None) -> None:
    console = _open_console(plan)
    console.print(
        f"The best membership test has an advantage of {plan.contract.attack_advantage:.4f} (AUC "
        f"{plan.contract.attack_auc:.4f}); at 1 % false alarms it finds "
        f"{format_rate(float(plan.contract.tpr_at(0.01)))}."
    )
    table, notes = _make_verification_table(plan) if isinstance(plan, VerificationPlan) else _make_retrieval_table(plan)
    console.print(table)
    for note in notes:
        console.print(f"* {note}", markup=False)
    if html is not None:
        console.print(make_printable(f"Written {html}"), soft_wrap=True, markup=False)


def _make_verification_table(plan: VerificationPlan) -> tuple[Table, list[str]]:
    table = _make_table("The plan, and one choice changed at a time", "noise sd", "threshold", "FMR if kept", "TAR")
    notes: list[str] = []
    for place, row in enumerate(plan.alternatives):
        if row.note:
            notes.append(f"{row.change}: {row.note}")
        table.add_row(
            escape(row.change) + " *" * bool(row.note),
            f"{row.scale:.4g}",
            "-" if math.isnan(row.threshold) else f"{row.threshold:.4g}",
            format_rate(row.rate_kept),
            "" if math.isnan(row.tar) else format_rate(row.tar),
            _format_least_epsilon(row.least_epsilon),
            style=None if row.private else "dim",
            end_section=place == 0,
        )
    return table, notes


def _make_retrieval_table(plan: RetrievalPlan) -> tuple[Table, list[str]]:
    table = _make_table("The plan, and other public score ranges", "noise sd", "recall")
    for place, row in enumerate(plan.alternatives):
        label = "this plan" if place == 0 else f"range [{row.score_range[0]:g}, {row.score_range[1]:g}]"
        cells = (f"{row.scale:.4g}", format_rate(row.recall), _format_least_epsilon(row.least_epsilon))
        table.add_row(escape(label), *cells, end_section=place == 0)
    return table, []


def _make_table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    table.add_column("choice")
    for name in (*columns, "least eps"):
        table.add_column(name, justify="right")
    return table


def _format_least_epsilon(value: float) -> str:
    if math.isnan(value):
        return "-"
    return "none" if math.isinf(value) else "any" if value == 0 else f"{value:.4g}"
