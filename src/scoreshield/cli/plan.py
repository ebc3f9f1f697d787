"""`scoreshield plan`: the best mechanism for a need, its noise and threshold, and what they cost."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import scoreshield as ss
from scoreshield import _files
from scoreshield._formatting import format_rate
from scoreshield._types import Calibration
from scoreshield.cli.options import Force, Json, ScoreRange
from scoreshield.cli.output import check_new_file, make_printable
from scoreshield.cli.plan_calls import write_plan_call
from scoreshield.cli.score_files import (
    compute_benchmark_scores,
    read_matrix,
    read_relevant_pairs,
    read_score_file,
    split_array_name,
)
from scoreshield.decisions import Distribution, Endpoint, QueryScores, recall_at_k
from scoreshield.plan import (
    RetrievalPlan,
    VerificationPlan,
    retrieval,
    scores_of_collection,
    verification,
)
from scoreshield.plan.base import Source, check_plan_scores
from scoreshield.plan.choice import NEEDS, Choice, choose
from scoreshield.plan.sentences import answer_need, format_utility, name_mechanism
from scoreshield.plan.targets import Goal, MatchTarget, SearchTarget, Target

EXAMPLE = "scoreshield plan --impostor imp.csv --genuine gen.csv --target-fmr 0.01 --epsilon 5 --html plan.html"

_SCORES, _NEED, _CONTRACT, _CHOICES, _OUTPUT = "Scores", "Need", "Contract", "Gaussian noise", "Output"
_FULL = (-1.0, 1.0)
_SEARCH_NEEDS = ("retrieval", "matches", "top-k")
_SEARCH_OPTIONS = {
    "--impostor",
    "--genuine",
    "--embeddings",
    "--labels",
    "--query-embeddings",
    "--scores",
    "--relevant",
}
_SEARCH_OPTIONS |= {"--records", "--k", "--target-recall", "--queries", "--dimension"}
#: The options that each need takes, besides the contract.
_OPTIONS: dict[str, set[str]] = {
    "verification": {"--impostor", "--genuine", "--embeddings", "--labels", "--target-fmr", "--target-tar"},
    **{need: _SEARCH_OPTIONS for need in _SEARCH_NEEDS},
    "scores": set(),
    "many-queries": {"--queries", "--dimension"},
    "gram": {"--records", "--dimension"},
    "operating-point": {"--records"},
}


def _parse_need(text: str) -> str:
    """Parse a need. A space counts as a hyphen."""
    need = text.replace(" ", "-")
    if need not in NEEDS:
        raise ss.InvalidInput(f"--need must be one of {', '.join(NEEDS)}. Got {make_printable(text[:40])!r}.")
    return need


@dataclass(frozen=True)
class _Request:
    """What the options ask for."""

    need: str
    contract: dict[str, float | None]
    delta: float
    score_range: tuple[float, float]
    source: Source | None
    far: Any
    near: Any
    benchmark: tuple[NDArray[Any], NDArray[Any]] | None
    records: int | None
    k: int | None
    target_fmr: float | None
    target: float | None
    queries: int
    dimension: int | None

    @property
    def has_contract(self) -> bool:
        """Whether a contract is stated; otherwise the least epsilon that meets the target is found."""
        return any(value is not None for value in self.contract.values())

    def rank(self) -> tuple[Choice, Goal | None, bool]:
        """Rank the mechanisms, judge the target, and say whether the contract was searched."""
        if self.target is None:
            return self._choose(), None, False
        target = self._make_target()
        choice = self._choose() if self.has_contract else target.find_least()
        return choice, target.judge(choice), not self.has_contract

    def _choose(self, epsilon: float | None = None) -> Choice:
        contract = self.contract if epsilon is None else {"epsilon": epsilon}
        more: dict[str, Any] = {} if self.score_range == _FULL else {"ranges": (self.score_range,)}
        return choose(
            self.need,  # type: ignore[arg-type]
            self.far,
            self.near,
            delta=self.delta,
            records=self.records,
            k=self.k,
            target_fmr=self.target_fmr,
            benchmark=self.benchmark,
            queries=self.queries,
            dimension=self.dimension,
            source=self.source,
            **contract,
            **more,
        )

    def _make_target(self) -> Target:
        """Make the target from the scores; `choose` explains what is missing."""
        assert self.target is not None
        if self.need == "verification":
            if self.far is None or self.near is None or self.target_fmr is None:
                raise ss.InvalidInput("--target-tar needs --impostor, --genuine and --target-fmr.")
            far, near = check_plan_scores(self.far, "impostor"), check_plan_scores(self.near, "genuine")
            clean = float(near.rate(far.clean_threshold(self.target_fmr), None))
            return MatchTarget(self.target, clean, self.delta, self._choose, far, near, self.target_fmr)
        records = self.records or (None if self.benchmark is None else self.benchmark[0].shape[1])
        if self.k is None or records is None or (self.benchmark is None and (self.far is None or self.near is None)):
            raise ss.InvalidInput("--target-recall needs --k, --records, and public scores of both kinds.")
        if self.k >= records:
            raise ss.InvalidInput(f"With --k {self.k} of {records:,} records every record is returned: lower --k.")
        if self.benchmark is not None:
            clean = QueryScores(*self.benchmark).predict_recall(0.0, k=self.k, records=records).value
        else:
            clean = recall_at_k(self.near, self.far, 0.0, records=records, k=self.k)
        return SearchTarget(self.target, clean, self.delta, self._choose, records, self.k)


def plan_command(
    impostor: Annotated[
        str | None,
        typer.Option(
            help="Impostor (irrelevant) cosines: a file (.npy, .npz, .parquet, .csv, .txt; FILE:NAME for one array or "
            "column), or a model like normal:0,0.2, beta:5,5 or t:10,0,0.25.",
            rich_help_panel=_SCORES,
        ),
    ] = None,
    genuine: Annotated[
        str | None,
        typer.Option(help="Genuine (relevant) cosines: a file or a model, as above.", rich_help_panel=_SCORES),
    ] = None,
    scores: Annotated[
        str | None,
        typer.Option(
            help="For search, instead: the scores of a public benchmark, one row per query and one column per record, "
            "with --relevant.",
            rich_help_panel=_SCORES,
        ),
    ] = None,
    relevant: Annotated[
        str | None,
        typer.Option(
            help="The pairs (query, record) that answer, counted from 0: two columns of a file.",
            rich_help_panel=_SCORES,
        ),
    ] = None,
    source: Annotated[
        Source | None,
        typer.Option(
            help="Where the scores come from; private ones, and those not declared, are warned about.",
            rich_help_panel=_SCORES,
        ),
    ] = None,
    embeddings: Annotated[
        str | None,
        typer.Option(
            help="Instead of scores: a collection, with --labels, or with --query-embeddings and --relevant.",
            rich_help_panel=_SCORES,
        ),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="With --embeddings: one label per record.", rich_help_panel=_SCORES)
    ] = None,
    query_embeddings: Annotated[
        str | None,
        typer.Option(help="With --embeddings: public queries of a benchmark.", rich_help_panel=_SCORES),
    ] = None,
    research: Annotated[
        bool,
        typer.Option(
            "--research",
            help="With --embeddings: confirm that the plan may read clean scores. --source public confirms it too.",
            rich_help_panel=_SCORES,
        ),
    ] = False,
    need: Annotated[
        str | None,
        typer.Option(
            parser=_parse_need,
            metavar="[" + "|".join(NEEDS) + "]",
            help="What the release is for. Without it: verification with --target-fmr, retrieval with --k; with a "
            "--delta, Gaussian noise is then planned in detail too.",
            rich_help_panel=_NEED,
        ),
    ] = None,
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
    queries: Annotated[
        int | None, typer.Option(help="For search, and many-queries: the number of queries.", rich_help_panel=_NEED)
    ] = None,
    dimension: Annotated[
        int | None,
        typer.Option(help="For several queries, and gram: the dimension of the vectors.", rich_help_panel=_NEED),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="The privacy budget. Without any contract the plan finds the least that meets the target.",
            rich_help_panel=_CONTRACT,
        ),
    ] = None,
    delta: Annotated[
        float,
        typer.Option(
            help="Slack added to every probability, well below 1/records. Without it (0) only pure mechanisms are "
            "planned; Gaussian noise needs it.",
            rich_help_panel=_CONTRACT,
        ),
    ] = 0.0,
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
    score_range: ScoreRange = _FULL,
    calibration: Annotated[
        Calibration,
        typer.Option(help="The rule that sets the noise.", rich_help_panel=_CHOICES),
    ] = "analytic",
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
    """Plan a release: the best mechanism for a need, its call, what it keeps, and the least epsilon."""
    given = {
        "--impostor": impostor,
        "--genuine": genuine,
        "--scores": scores,
        "--relevant": relevant,
        "--embeddings": embeddings,
        "--labels": labels,
        "--query-embeddings": query_embeddings,
        "--target-fmr": target_fmr,
        "--target-tar": target_tar,
        "--records": records,
        "--k": k,
        "--target-recall": target_recall,
        "--queries": queries,
        "--dimension": dimension,
    }
    wanted = need or _infer_need(given)
    _reject_options(
        f"--need {wanted}" if need else _describe_need(wanted),
        {option: value for option, value in given.items() if option not in _OPTIONS[wanted]},
    )
    if html is not None:
        texts = [
            text for text in (impostor, genuine, scores, relevant, embeddings, query_embeddings) if text is not None
        ]
        inputs = [path for text in texts for path in (Path(text), split_array_name(text)[0])]
        _check_plan_page(html, force, [*inputs, labels])
    is_gaussian = need is None and delta > 0 and scores is None and query_embeddings is None
    gaussian = {"calibration": calibration, "endpoint": endpoint, "clipped": clipped}
    if not is_gaussian:
        _reject_gaussian_options(gaussian, need, delta)
    may_read = research or source in ("public", "released")
    (far, near), benchmark, origin = _collect_scores(given, may_read, research)
    _check_needed(wanted, given, benchmark is not None)
    for option, part in (("--impostor", far), ("--genuine", near)):
        if given[option] is not None:
            _check_scores(option, part)
    request = _Request(
        need=wanted,
        contract={"epsilon": epsilon, "max_advantage": max_advantage, "max_tpr": max_tpr, "at_fpr": at_fpr},
        delta=delta,
        score_range=score_range,
        source=source or origin,
        far=far,
        near=near,
        benchmark=benchmark,
        records=records,
        k=k,
        target_fmr=target_fmr,
        target=target_tar if wanted == "verification" else target_recall,
        queries=1 if queries is None else queries,
        dimension=dimension,
    )
    if is_gaussian:
        plan = _plan_gaussian(request, **gaussian)
        _write_outputs(plan, given, html, as_json)
    else:
        _write_choice(*request.rank(), given, html, as_json)


def _infer_need(given: dict[str, Any]) -> str:
    """Infer the need from the options: a matcher has a false-match rate, a search returns k records."""
    searched = [name for name in ("--records", "--k", "--scores", "--query-embeddings") if given[name] is not None]
    if searched:
        return "retrieval"
    if given["--target-fmr"] is not None:
        return "verification"
    raise ss.InvalidInput("Say what you need: --target-fmr for a matcher, --records and --k for a search, or --need.")


def _describe_need(need: str) -> str:
    return "a matcher (--target-fmr)" if need == "verification" else "a search (--records, --k)"


def _reject_gaussian_options(given: dict[str, Any], need: str | None, delta: float) -> None:
    usual = {"calibration": "analytic", "endpoint": "strict", "clipped": False}
    wrong = [f"--{name}" for name, value in given.items() if value != usual[name]]
    if wrong:
        change = (
            "leave --need out" if need else "give a --delta above 0" if delta == 0 else "plan from two sets of scores"
        )
        raise ss.InvalidInput(f"{' and '.join(wrong)} set Gaussian noise: leave them out, or {change}.")


def _plan_gaussian(request: _Request, **choices: Any) -> VerificationPlan | RetrievalPlan:
    """Plan Gaussian noise, with the ranking of all mechanisms."""
    shared: dict[str, Any] = {
        "delta": request.delta,
        "score_range": request.score_range,
        "source": request.source,
        **request.contract,
    }
    if request.need == "verification" and request.target_fmr is not None:
        return verification(
            request.far, request.near, target_fmr=request.target_fmr, target_tar=request.target, **shared, **choices
        )
    if choices.pop("clipped") or choices.pop("endpoint") != "strict":
        raise ss.InvalidInput("--clipped and --endpoint are about a matcher's threshold: leave them out for a search.")
    if request.records is None or request.k is None or request.near is None:
        raise ss.InvalidInput("A search needs --records, --k and both --impostor and --genuine scores.")
    return retrieval(
        request.far,
        request.near,
        records=request.records,
        k=request.k,
        target_recall=request.target,
        calibration=choices["calibration"],
        **shared,
    )


def _collect_scores(
    given: dict[str, Any], may_read: bool, research: bool
) -> tuple[tuple[Any, Any], tuple[NDArray[Any], NDArray[Any]] | None, Source | None]:
    """Collect two sets of scores or a benchmark, and where they come from if the user does not state it."""
    relevant, embeddings, labels = given["--relevant"], given["--embeddings"], given["--labels"]
    both = {name: given[name] for name in ("--impostor", "--genuine")}
    if given["--scores"] is not None:
        rest = ("--embeddings", "--labels", "--query-embeddings")
        _reject_options("--scores", {**both, **{name: given[name] for name in rest}})
        if relevant is None:
            raise ss.InvalidInput("--scores needs --relevant, the pairs (query, record) that answer.")
        return (None, None), (read_matrix(given["--scores"]), read_relevant_pairs(relevant)), None
    if embeddings is not None:
        _reject_options("--embeddings", both)
        if given["--query-embeddings"] is not None:
            _reject_options("--query-embeddings", {"--labels": labels})
            if relevant is None:
                raise ss.InvalidInput("--query-embeddings needs --relevant, the pairs (query, record) that answer.")
            if not may_read:
                raise ss.InvalidInput(
                    "--embeddings and --query-embeddings are read as clean scores, and no budget is charged for them: "
                    "state --source public, or --research if the plan stays with the curator."
                )
            return (
                (None, None),
                (compute_benchmark_scores(embeddings, given["--query-embeddings"]), read_relevant_pairs(relevant)),
                None,
            )
        if labels is None:
            raise ss.InvalidInput(
                "--embeddings needs --labels, which state which records match, or --query-embeddings."
            )
        path, name = split_array_name(embeddings)
        records, groups = _files.read_array(path, name=name), _files.read_array(labels)
        return scores_of_collection(records, groups, research=may_read), None, "private"
    if labels is not None or research or given["--query-embeddings"] is not None:
        raise ss.InvalidInput("--labels, --query-embeddings and --research go with --embeddings.")
    if relevant is not None:
        raise ss.InvalidInput("--relevant goes with --scores, or with --embeddings and --query-embeddings.")
    if given["--impostor"] is None:
        if given["--genuine"] is not None:
            raise ss.InvalidInput("--genuine needs --impostor, the scores of pairs that do not match.")
        return (None, None), None, None
    scores = tuple(None if text is None else read_score_file(text) for text in both.values())
    is_model = all(part is None or isinstance(part, Distribution) for part in scores)
    return (scores[0], scores[1]), None, "parameters" if is_model else "private"


def _check_needed(need: str, given: dict[str, Any], has_benchmark: bool) -> None:
    """Raise an error that names the options that a need lacks."""
    both = [] if given["--embeddings"] is not None else ["--impostor", "--genuine"]
    needed = {
        "gram": ["--records", "--dimension"],
        "many-queries": ["--dimension"],
        "operating-point": ["--records"],
        **{search: ["--k"] if has_benchmark else ["--k", "--records", *both] for search in _SEARCH_NEEDS},
    }.get(need, [])
    missing = [option for option in needed if given[option] is None]
    if missing:
        instead = " Or give --scores with --relevant." if "--impostor" in missing else ""
        raise ss.InvalidInput(f"--need {need} needs {' and '.join(missing)} too.{instead}")


def _check_scores(option: str, scores: Any) -> None:
    """Check the scores of an option, and name it in the error."""
    try:
        check_plan_scores(scores, option)
    except ss.InvalidParameter as error:
        raise ss.InvalidInput(f"The scores of {option} {error.problem}") from None


def _reject_options(purpose: str, given: dict[str, Any]) -> None:
    """Raise an error where options are given that do not go with a purpose."""
    wrong = [name for name, value in given.items() if value is not None]
    if wrong:
        raise ss.InvalidInput(f"{' and '.join(wrong)} cannot go with {purpose}: leave one of them out.")


def _check_plan_page(html: Path, force: bool, inputs: list[Path | None]) -> None:
    if html.suffix not in (".html", ".htm"):
        raise ss.InvalidInput(f"The page must end in .html; got {html}.")
    check_new_file(html, force, *inputs)


# ---- Output.


def _write_choice(
    choice: Choice, goal: Goal | None, is_searched: bool, given: dict[str, Any], html: Path | None, as_json: bool
) -> None:
    if html is not None:
        from scoreshield.report.plan_page import save_choice_page

        save_choice_page(choice, html, goal=goal, is_searched=is_searched)
    if as_json:
        typer.echo(json.dumps({**choice.to_dict(), "goal": None if goal is None else goal.to_dict()}))
        return
    console = Console(highlight=False)
    _say(console, answer_need(choice, goal, is_searched=is_searched), "bold")
    _show_ranking(console, choice, given)
    _show_end(console, choice, choice.warnings, html)


def _write_outputs(
    plan: VerificationPlan | RetrievalPlan, given: dict[str, Any], html: Path | None, as_json: bool
) -> None:
    if html is not None:
        from scoreshield.report.plan_page import save_plan_page

        save_plan_page(plan, html)
    if as_json:
        typer.echo(json.dumps(plan.to_dict()))
        return
    console = Console(highlight=False)
    _say(console, plan.answer, "bold")
    if plan.choice is not None:
        _show_ranking(console, plan.choice, given)
    _say(
        console,
        f"Against Gaussian noise the best membership test has an advantage of {plan.contract.attack_advantage:.4f} "
        f"(AUC {plan.contract.attack_auc:.4f}); at 1 % false alarms it finds "
        f"{format_rate(float(plan.contract.tpr_at(0.01)))}.",
    )
    table, notes = _make_verification_table(plan) if isinstance(plan, VerificationPlan) else _make_retrieval_table(plan)
    console.print(table)
    for note in notes:
        console.print(f"* {note}", markup=False)
    _show_end(console, plan.choice, plan.warnings, html)


def _say(console: Console, text: str, style: str | None = None) -> None:
    console.print(make_printable(text), style=style, markup=False)


def _show_ranking(console: Console, choice: Choice, given: dict[str, Any]) -> None:
    """Print the ranked mechanisms and the call of the best one."""
    table = Table(title=f"Predicted {choice.metric}")
    for name in ("mechanism", "range", "predicted", "eps", "attack advantage"):
        table.add_column(name, justify="left" if name == "mechanism" else "right")
    for place, row in enumerate(choice.candidates):
        window = f"[{row.score_range[0]:g}, {row.score_range[1]:g}]"
        cells = (format_utility(choice, row), f"{row.epsilon:.4g}", f"{row.advantage:.4f}")
        table.add_row(row.mechanism, escape(window), *cells, style="bold" if place == 0 else None)
    console.print(table)
    lines = write_plan_call(choice.chosen.call, given)
    is_command = len(lines) == 1
    how = "with this command" if is_command else "in Python, since no command makes it"
    _say(console, f"Ask for {name_mechanism(choice.chosen.mechanism)} {how}, on your own rows and queries:")
    for line in lines:
        console.print(f"  {line}" if is_command else line, markup=False, soft_wrap=True)
    if choice.chosen.note:
        _say(console, f"* {choice.chosen.mechanism}: {choice.chosen.note}")
    if choice.contract.delta == 0:
        _say(console, "Delta is 0, so only pure mechanisms are ranked; Gaussian noise needs --delta.")


def _show_end(console: Console, choice: Choice | None, warnings: tuple[str, ...], html: Path | None) -> None:
    """Print the warnings, what another population would do, and the name of the page."""
    for warning in warnings:
        _say(console, f"Warning: {warning}", "yellow")
    if choice is not None and choice.caution:
        _say(console, choice.caution)
    if html is not None:
        console.print(make_printable(f"Written {html}"), soft_wrap=True, markup=False)


def _make_verification_table(plan: VerificationPlan) -> tuple[Table, list[str]]:
    title = "Gaussian noise, and one choice changed at a time"
    table = _make_table(title, "noise sd", "threshold", "FMR if kept", "TAR")
    notes: list[str] = []
    for place, row in enumerate(plan.alternatives):
        if row.note:
            notes.append(f"{row.change}: {row.note}")
        table.add_row(
            escape(row.change) + " *" * bool(row.note),
            f"{row.scale:.4g}",
            "-" if math.isnan(row.threshold) else f"{row.threshold:.4g}",
            "-" if math.isnan(row.rate_kept) else format_rate(row.rate_kept),
            "" if math.isnan(row.tar) else format_rate(row.tar),
            _format_least_epsilon(
                row.least_epsilon,
                row.describe_missing_epsilon(plan.clean_tar, plan.target_tar),
                has_target=plan.target_tar is not None,
            ),
            style=None if row.private else "dim",
            end_section=place == 0,
        )
    return table, notes


def _make_retrieval_table(plan: RetrievalPlan) -> tuple[Table, list[str]]:
    table = _make_table("Gaussian noise, and other public score ranges", "noise sd", "recall")
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


def _format_least_epsilon(value: float, missing: str = "none", *, has_target: bool = True) -> str:
    if math.isnan(value):
        return "-"
    if value == 0:  # any noise meets the need
        return "every one" if has_target else "no target"
    return missing if math.isinf(value) else f"{value:.4g}"
