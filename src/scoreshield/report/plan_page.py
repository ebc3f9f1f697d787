"""A plan as a page: one HTML file that a data-protection officer and an engineer can both read.

The page fetches nothing and runs nothing: its styles are inside and its charts are SVG. Every figure is the plan's own,
or `scoreshield.decisions` computes it from the plan's scores.
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from scoreshield import _files
from scoreshield._formatting import (
    NO_BREAK_SPACE,
    typeset_attack_rate,
    typeset_delta,
    typeset_interval,
    typeset_number,
    typeset_percent,
)
from scoreshield._validation import reject, validate
from scoreshield.decisions.scores import Sample, Scores
from scoreshield.plan.alternatives import Alternative
from scoreshield.plan.base import Plan
from scoreshield.plan.candidates import Candidate
from scoreshield.plan.choice import Choice
from scoreshield.plan.contracts import Contract
from scoreshield.plan.retrieval_plan import RetrievalPlan
from scoreshield.plan.sentences import answer_need, find_interval, get_error, is_cut, name_mechanism
from scoreshield.plan.targets import Goal
from scoreshield.plan.verification_plan import VerificationPlan
from scoreshield.privacy.verdicts import format_right_guesses
from scoreshield.report.chart import Chart
from scoreshield.report.pages import Cell, KeyFigure, TableRow, Verdict, get_moment, render_template
from scoreshield.report.plan_charts import (
    build_attack_chart,
    build_fmr_chart,
    build_ranking_chart,
    build_recall_chart,
    build_roc_chart,
    build_shift_chart,
    describe_range_end,
    find_gaussian,
)


@validate()
def render_plan_page(plan: Plan, *, now: datetime | None = None) -> str:
    """Render a plan as a whole HTML document.

    Args:
        plan: what `scoreshield.plan.verification` or `scoreshield.plan.retrieval` returns.
        now: the time in the footer; the present by default.

    Raises:
        InvalidInput: the argument is not a plan, or the 'report' extra is not installed.
    """
    if isinstance(plan, VerificationPlan):
        parts = _describe_verification(plan)
    elif isinstance(plan, RetrievalPlan):
        parts = _describe_retrieval(plan)
    else:
        reject("plan", "a verification or a retrieval plan", plan)
    says, *more = _lead_with_best(plan.answer)
    ranking = None if plan.choice is None else _describe_ranking(plan.choice, plan.goal)
    return render_template(
        "plan.html",
        ranking=ranking,
        origin=_describe_origin(plan.source),
        source=plan.source,
        verdict=judge_plan(plan),
        says=says,
        more=" ".join(more),
        warnings=plan.warnings,
        moment=get_moment(now),
        sources=_SOURCES,
        **parts,
    )


@validate()
def render_choice_page(
    choice: Choice, *, goal: Goal | None = None, is_searched: bool = False, now: datetime | None = None
) -> str:
    """Render a ranking of mechanisms as a whole HTML document.

    Args:
        choice: What `scoreshield.plan.choose` returns.
        goal: Whether the best mechanism meets a target.
        is_searched: Whether the contract is the least epsilon that meets the target.
        now: The time in the footer; the present by default.

    Raises:
        InvalidInput: The argument is not a ranking, or the 'report' extra is not installed.
    """
    if not isinstance(choice, Choice):
        reject("choice", "a ranking of plan.choose", choice)
    says, *more = _lead_with_best(answer_need(choice, goal, is_searched=is_searched))
    return render_template(
        "choice.html",
        title=f"Mechanisms for {_NEED_NAMES.get(choice.need, choice.need)}",
        origin=_describe_origin(choice.source),
        source=choice.source,
        verdict=judge_choice(choice, goal),
        says=says,
        more=" ".join(more),
        warnings=choice.warnings,
        ranking=_describe_ranking(choice, goal),
        terms=_list_choice_terms(choice),
        moment=get_moment(now),
        sources=_CHOICE_SOURCES,
    )


def save_choice_page(choice: Choice, path: str | Path, *, goal: Goal | None = None, is_searched: bool = False) -> None:
    """Write the page of a ranking, whole or not at all. Only its owner may read the file."""
    page = render_choice_page(choice, goal=goal, is_searched=is_searched).encode()
    _files.write_whole({Path(path): lambda file: file.write(page)}, private=True)


def judge_choice(choice: Choice, goal: Goal | None) -> Verdict:
    """Say whether the best mechanism meets the target, and if not, whether any could."""
    if goal is None:
        return Verdict("open", "–", "No target stated")
    if goal.is_met:
        return Verdict("met", "✓", f"Need met by {name_mechanism(choice.chosen.mechanism)}")
    if goal.target > goal.clean:
        return Verdict("unreachable", "✗", "Not reachable at any ε")
    if goal.target > goal.bound:
        return Verdict("unreachable", "✗", "Not reachable under this contract by any mechanism")
    return Verdict("missed", "✗", "Need not met under this contract")


def save_plan_page(plan: Plan, path: str | Path) -> None:
    """Write the page of a plan, whole or not at all.

    Only its owner may read the file, because its curves may show private scores.
    """
    page = render_plan_page(plan).encode()
    _files.write_whole({Path(path): lambda file: file.write(page)}, private=True)


def judge_plan(plan: Plan) -> Verdict:
    """Say whether the plan or the best mechanism meets the need, and if not, why."""
    if plan.choice is not None and plan.goal is not None and plan.goal.is_met and plan.is_surpassed:
        return judge_choice(plan.choice, plan.goal)
    if isinstance(plan, VerificationPlan) and not plan.recalibration.feasible:
        return Verdict("unreachable", "✗", "Not reachable on clipped scores")
    if isinstance(plan, RetrievalPlan) and plan.target_recall is None:
        return Verdict("open", "–", "No target stated")
    if plan.met:
        return Verdict("met", "✓", "Need met")
    if math.isinf(plan.least_epsilon):
        return Verdict("unreachable", "✗", "Not reachable at any ε")
    if isinstance(plan, RetrievalPlan) and plan.contract.epsilon < plan.floor:
        return Verdict("unreachable", "✗", "Not reachable at this ε by any mechanism")
    return Verdict("missed", "✗", "Need not met at this ε")


def _describe_verification(plan: VerificationPlan) -> dict[str, Any]:
    roc = build_roc_chart(plan)
    return {
        "title": "Verification plan",
        "figures": _list_verification_figures(plan),
        "charts": [
            build_fmr_chart(plan),
            build_shift_chart(plan),
            *([] if roc is None else [roc]),
            build_attack_chart(plan.contract),
        ],
        "heads": ("Choice", "Noise sd", "Threshold", "False matches if kept", "True matches", "Least ε", "Note"),
        "rows": [
            TableRow(
                " ".join(["plan"] * (place == 0) + ["rejected"] * (not outcome.private)),
                _list_verification_cells(plan, outcome),
            )
            for place, outcome in enumerate(plan.alternatives)
        ],
        "terms": (*_VERIFICATION_TERMS, *_COMMON_TERMS, ("What this plan is based on", _describe_data(plan))),
    }


def _describe_retrieval(plan: RetrievalPlan) -> dict[str, Any]:
    roc = build_roc_chart(plan)
    return {
        "title": "Retrieval plan",
        "figures": _list_retrieval_figures(plan),
        "charts": [
            build_recall_chart(plan),
            *([] if roc is None else [roc]),
            build_attack_chart(plan.contract),
        ],
        "heads": ("Public score range", "Noise sd", "Recall", "Least ε", "Note"),
        "rows": _list_retrieval_rows(plan),
        "terms": (*_RETRIEVAL_TERMS, *_COMMON_TERMS, ("What this plan is based on", _describe_data(plan))),
    }


# ---- The ranking.


class RankingPart(NamedTuple):
    """The ranking of mechanisms as a page shows it."""

    figures: list[KeyFigure]
    call: str
    chart: Chart
    heads: tuple[str, ...]
    rows: list[TableRow]
    caution: str


def _describe_ranking(choice: Choice, goal: Goal | None) -> RankingPart:
    has_shift = any(row.shifted for row in choice.candidates)
    heads = ("Mechanism", "Predicted", *(["0.05 lower, higher"] if has_shift else []), "ε", "Best attack", "Note")
    rows = [
        TableRow("plan" if place == 0 else "", _list_ranking_cells(choice, row, place + 1, goal, has_shift))
        for place, row in enumerate(choice.candidates)
    ]
    target = None if goal is None else goal.target
    return RankingPart(
        _list_ranking_figures(choice, goal),
        choice.chosen.call,
        build_ranking_chart(choice, target),
        heads,
        rows,
        choice.caution,
    )


def _list_ranking_figures(choice: Choice, goal: Goal | None) -> list[KeyFigure]:
    best, gaussian = choice.chosen, find_gaussian(choice)
    paper = "not ranked: it needs a δ above 0"
    if gaussian is not None:
        paper = f"rank {choice.candidates.index(gaussian) + 1} of {len(choice.candidates)}"
    about = [] if math.isnan(get_error(best)) else [_show_error(choice, best)]
    about += [choice.metric] if goal is None else [choice.metric, f"required: {typeset_percent(goal.target)}"]
    return [
        KeyFigure("Best mechanism", best.mechanism, best.note or typeset_interval(best.score_range)),
        KeyFigure(
            "Predicted",
            _show_utility(choice, best.utility),
            "; ".join(about),
            role="private" if goal is not None and not goal.is_met else "",
        ),
        KeyFigure(
            "Gaussian noise, as in the paper",
            "none" if gaussian is None else _show_utility(choice, gaussian.utility),
            paper,
        ),
        KeyFigure(
            "Best attack, advantage",
            typeset_attack_rate(best.advantage),
            f"against one release: right at most {format_right_guesses(best.advantage)} of the time; "
            f"{_state_budget(best)}",
        ),
    ]


def _state_budget(row: Candidate) -> str:
    if not math.isfinite(row.epsilon):
        return "no ε at δ = 0"
    budget = f"ε = {typeset_number(row.epsilon)}"
    return f"{budget}, {typeset_delta(row.delta)}" if row.delta > 0 else f"{budget}, pure"


def _list_ranking_cells(choice: Choice, row: Candidate, rank: int, goal: Goal | None, has_shift: bool) -> list[Cell]:
    within = "" if row.score_range == (-1.0, 1.0) else f" on {typeset_interval(row.score_range)}"
    is_paper = row is find_gaussian(choice) and "paper" not in row.note
    shown = Cell(
        _show_utility(choice, row.utility),
        "" if math.isnan(get_error(row)) else _show_error(choice, row),
        share=min(max(row.utility, 0.0), 1.0) if choice.larger and math.isfinite(row.utility) else None,
    )
    shifts = [_show_utility(choice, value) for value in row.shifted or ()]
    note = " ".join(part for part in ("As in the paper." if is_paper else "", _capitalise(row.note)) if part)
    meets = goal is not None and row.utility >= goal.target
    return [
        Cell(f"{rank}. {row.mechanism}{within}", row.call),
        shown,
        *([Cell(", ".join(shifts))] if has_shift else []),
        Cell(typeset_number(row.epsilon, 3) if math.isfinite(row.epsilon) else "none"),
        Cell(typeset_attack_rate(row.advantage)),
        Cell(note, mark=_MEETS if meets else ""),
    ]


def _show_utility(choice: Choice, value: float) -> str:
    return typeset_percent(value) if choice.larger else typeset_number(value, 3)


def _show_error(choice: Choice, row: Candidate) -> str:
    if not choice.larger:
        return f"± {typeset_number(row.error, 2)}"
    if is_cut(row):
        low, high = find_interval(row)
        return f"{typeset_number(100 * low, 2)} to {typeset_number(100 * high, 2)}{NO_BREAK_SPACE}%"
    return f"± {typeset_number(100 * row.error, 2)} points"


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def _list_choice_terms(choice: Choice) -> tuple[tuple[str, str], ...]:
    own: tuple[tuple[str, str], ...] = ()
    if choice.need == "verification":
        own = _VERIFICATION_TERMS
    elif choice.need in ("retrieval", "matches", "top-k"):
        own = _RETRIEVAL_TERMS
    origin = f"It was made from {_ORIGINS.get(choice.source, choice.source)}. Nothing is simulated."
    return (*own, *_RANKING_TERMS, *_COMMON_TERMS, ("What this plan is based on", origin))


def _describe_origin(source: str) -> str:
    return f"From {'assumed parameters' if source == 'parameters' else f'{source} scores'}"


def _lead_with_best(text: str) -> list[str]:
    """Split an answer into sentences; one about what no mechanism reaches follows the one about the best mechanism."""
    first, *rest = re.split(r"(?<=\.) (?=[A-Z])", text)
    return [rest[0], first, *rest[1:]] if rest and "no mechanism" in first.lower() else [first, *rest]


# ---- Key figures.


def _state_promise(plan: Plan) -> KeyFigure:
    contract = plan.contract
    stated = f"; stated as {contract.stated}" if contract.calibration == "attack" else ""
    return KeyFigure(
        "Privacy promise", f"ε = {typeset_number(contract.epsilon)}", typeset_delta(contract.delta) + stated
    )


def _state_noise(plan: Plan) -> KeyFigure:
    reach, within = typeset_number(plan.sensitivity), typeset_interval(plan.score_range)
    return KeyFigure(
        "Noise on each score",
        f"sd {typeset_number(plan.scale)}",
        f"Gaussian; one record moves a score by up to {reach}, within {within}",
    )


def _state_attack(contract: Contract) -> KeyFigure:
    members = typeset_attack_rate(float(contract.tpr_at(0.01)))
    return KeyFigure(
        "Best attack, advantage",
        typeset_attack_rate(contract.attack_advantage),
        f"right at most {format_right_guesses(contract.attack_advantage)} of the time; finds {members} of members at "
        f"{typeset_percent(0.01)} false alarms",
    )


def _state_least_epsilon(plan: Plan, name: str) -> KeyFigure:
    """State the least epsilon as a word or number, and what it means."""
    value = plan.least_epsilon
    if isinstance(plan, RetrievalPlan) and plan.target_recall is None:
        return KeyFigure(name, "not computed", "the plan has no target for recall")
    if math.isnan(value):
        return KeyFigure(name, "none", "with this calibration, which is not private there; the analytic one has one")
    if math.isinf(value):
        return KeyFigure(name, "none", "not even scores without noise meet the need")
    if not value:
        if isinstance(plan, VerificationPlan) and plan.target_tar is None:
            return KeyFigure(name, "not computed", "the plan has no target for true matches")
        return KeyFigure(name, "every one", "meets the need")
    return KeyFigure(name, typeset_number(value), f"meets the need, at {typeset_delta(plan.contract.delta)}")


def _list_verification_figures(plan: VerificationPlan) -> list[KeyFigure]:
    recalibration, target = plan.recalibration, typeset_percent(plan.target_fmr)
    threshold = f"on noisy scores: {typeset_number(recalibration.unclipped_threshold, 3)}"
    if recalibration.feasible:
        threshold = f"a shift of {typeset_number(recalibration.shift, 3)}"
    moved = f"{typeset_percent(recalibration.limit)} pass {describe_range_end(plan)}"
    if recalibration.feasible:
        moved = f"target {target}"
        # Where noise hides the sample's own randomness, its standard error is not worth a line here.
        if plan.rate_error > 0.005 * plan.target_fmr:
            moved += f"; standard error {typeset_number(100 * plan.rate_error, 2)} points"
    matches = KeyFigure("True matches", "unknown", "needs scores of genuine pairs")
    if plan.genuine is not None:
        need = "no rate is required" if plan.target_tar is None else f"required: {typeset_percent(plan.target_tar)}"
        clean = typeset_percent(plan.clean_tar)
        matches = KeyFigure("True matches", typeset_percent(plan.tar), f"{need}, at the target", before=clean)
    return [
        _state_promise(plan),
        _state_noise(plan),
        KeyFigure(
            "Threshold",
            typeset_number(recalibration.threshold, 3),
            f"clean to private, on {plan.rule}; {threshold}",
            before=typeset_number(recalibration.clean_threshold, 3),
        ),
        KeyFigure(
            "False matches, threshold kept",
            typeset_percent(recalibration.rate_before),
            f"{typeset_number(recalibration.rate_before / plan.target_fmr, 2)} times the target, if it is kept",
            role="private",
        ),
        KeyFigure("False matches, threshold moved", typeset_percent(recalibration.rate), moved),
        matches,
        _state_attack(plan.contract),
        _state_least_epsilon(plan, "Least ε for the need"),
    ]


def _list_retrieval_figures(plan: RetrievalPlan) -> list[KeyFigure]:
    aim = plan.recall if plan.target_recall is None else plan.target_recall
    need = "" if plan.target_recall is None else f"; required: {typeset_percent(plan.target_recall)}"
    return [
        _state_promise(plan),
        _state_noise(plan),
        KeyFigure(
            "Recall",
            typeset_percent(plan.recall),
            f"relevant record among the best {plan.k:,} of {plan.records:,}{need}",
            before=typeset_percent(plan.clean_recall),
        ),
        KeyFigure(
            "Floor for every mechanism",
            f"ε ≥ {typeset_number(plan.floor, 3)}" if plan.floor > 0 else "none",
            f"ln(n (p − δ) / k), for a recall of {typeset_percent(aim)}",
        ),
        _state_least_epsilon(plan, "Least ε with this noise"),
        _state_attack(plan.contract),
    ]


# ---- The table of choices.

_MEETS = "✓ meets the need"


def _list_verification_cells(plan: VerificationPlan, outcome: Alternative) -> list[Cell]:
    shift = ""
    if math.isfinite(outcome.shift):
        shift = ("+" if outcome.shift >= 0 else "") + typeset_number(outcome.shift, 3, aligned=True)
    meets = plan.target_tar is not None and outcome.private and outcome.tar >= plan.target_tar * (1 - 1e-9)
    return [
        _describe_choice(plan.alternatives[0], outcome),
        Cell(typeset_number(outcome.scale, 3, aligned=True)),
        Cell(typeset_number(outcome.threshold, 3, aligned=True), shift),
        Cell("" if math.isnan(outcome.rate_kept) else typeset_percent(outcome.rate_kept, aligned=True)),
        Cell("unknown") if plan.genuine is None else _show_share(outcome.tar),
        Cell("not computed")
        if plan.target_tar is None and outcome.least_epsilon == 0
        else _show_least_epsilon(
            outcome.least_epsilon, outcome.describe_missing_epsilon(plan.clean_tar, plan.target_tar)
        ),
        Cell(_capitalise(outcome.note), mark=_MEETS if meets else ""),
    ]


def _describe_choice(first: Alternative, outcome: Alternative) -> Cell:
    """Say what a row changes, and from what."""
    if outcome is first:
        within = typeset_interval(outcome.score_range)
        return Cell("This plan", f"{outcome.calibration} calibration, {outcome.rule}, range {within}")
    if outcome.mechanism == "accept bit":
        return Cell("Accept bit", "one randomised decision per pair")
    if outcome.mechanism != first.mechanism:
        return Cell(f"{outcome.mechanism.capitalize()} noise", f"instead of {first.mechanism}")
    if outcome.calibration != first.calibration:
        return Cell(f"{outcome.calibration.capitalize()} calibration", f"instead of {first.calibration}")
    if outcome.score_range != first.score_range:
        within = typeset_interval(outcome.score_range)
        return Cell(f"Scores clamped to {within}", f"sensitivity {typeset_number(outcome.sensitivity)}")
    return Cell(str(outcome.rule).capitalize(), f"instead of {first.rule}")


def _list_retrieval_rows(plan: RetrievalPlan) -> list[TableRow]:
    rows = []
    for place, (within, scale, recall, least) in enumerate(plan.alternatives):
        name = (
            f"Scores clamped to {typeset_interval(within)}" if place else f"This plan, range {typeset_interval(within)}"
        )
        meets = plan.target_recall is not None and recall >= plan.target_recall * (1 - 1e-9)
        cells = [
            Cell(name, f"sensitivity {typeset_number(within[1] - within[0])}"),
            Cell(typeset_number(scale, 3, aligned=True)),
            _show_share(recall),
            Cell("not computed") if plan.target_recall is None else _show_least_epsilon(least),
            Cell("", mark=_MEETS if meets else ""),
        ]
        rows.append(TableRow("" if place else "plan", cells))
    return rows


def _show_least_epsilon(value: float, missing: str = "none") -> Cell:
    if not math.isfinite(value):
        return Cell(missing if math.isinf(value) else "none")
    return Cell(typeset_number(value, 3, aligned=True) if value else "every one")


def _show_share(value: float) -> Cell:
    """Show a rate with a bar under it."""
    if not math.isfinite(value):
        return Cell(typeset_percent(value))
    return Cell(typeset_percent(value, aligned=True), share=value)


# ---- Explanations.


def _describe_data(plan: Plan) -> str:
    """Say which scores the plan was computed from."""
    is_search = isinstance(plan, RetrievalPlan)
    sizes = [_describe_scores(plan.impostor, "irrelevant" if is_search else "impostor")]
    if plan.genuine is not None:
        sizes.append(_describe_scores(plan.genuine, "relevant" if is_search else "genuine"))
    text = f"It was made from {_ORIGINS.get(plan.source, plan.source)}. It used {' and '.join(sizes)}."
    if isinstance(plan, VerificationPlan) and plan.rate_error > 0:
        text += (
            f" As an estimate from this number of impostor scores, the private false-match rate of "
            f"{typeset_percent(plan.target_fmr)} has a standard error of {typeset_number(100 * plan.rate_error, 2)} "
            "percentage points."
        )
    if is_search:
        text += " It assumes one relevant record per query, and other records that score independently."
    return text + " Rates after noise are computed from these scores, not simulated."


def _describe_scores(scores: Scores, name: str) -> str:
    return f"{len(scores):,} {name} scores" if isinstance(scores, Sample) else f"a distribution of {name} scores"


_SOURCES = (
    "Formulae: the noise for (ε, δ) and the attack curve, docs/calibration.md (Balle & Wang 2018, Theorem 8); what one "
    "record can move, docs/sensitivity.md; rates, thresholds and limits after noise, scoreshield.decisions; "
    "what is not covered, docs/limitations.md."
)
_CHOICE_SOURCES = (
    "Formulae: mechanisms and their proofs, docs/mechanisms.md and docs/optimal.md; predictions from public scores, "
    "scoreshield.decisions and docs/plan.md; what is not covered, docs/limitations.md."
)
_NEED_NAMES = {"gram": "a Gram matrix", "many queries": "many queries", "operating point": "an operating point"}
_ORIGINS = {
    "public": "public scores: the plan reveals nothing about private records",
    "released": "scores that were released under a guarantee: the plan reveals no more than they do",
    "parameters": "assumed distributions, not measured scores: the plan is as good as the assumption",
    "private": "private scores that no ledger was charged for: this page reveals them, so only the curator may see it",
}
_COMMON_TERMS = (
    (
        "Epsilon and delta (ε, δ)",
        "The promise to every person in the collection: replacing their record changes the probability of anything "
        "that can be seen by a factor of at most e to the power ε, up to a small allowance δ. Smaller is safer: 1 is "
        "strong. Above 10 the formula alone says little, and the attack figures say more.",
    ),
    (
        "Best attack, advantage",
        "An attacker who knows everything except one record sees the release and tests whether a given record is in "
        "the collection. The advantage is how often such a test finds a member, minus how often it takes a non-member "
        "for a member: 0 % is guessing, 100 % is certainty. No attack does better, known or unknown.",
    ),
    (
        "One release",
        "All of this is about a single release. Several releases of the same records add up: an attacker may combine "
        "them, and the promise weakens with each.",
    ),
)
_RANKING_TERMS = (
    (
        "Predicted",
        "What a release by this mechanism is expected to keep, computed from public scores. The figure after ± is half "
        "the width of an interval that holds the released figure nine times in ten, for data of the same population.",
    ),
    (
        "One row per mechanism",
        "Every mechanism is set to the same contract, so the rows differ in use and not in the promise. A mechanism "
        "for one decision releases one bit per pair, and no score.",
    ),
)
_VERIFICATION_TERMS = (
    (
        "False-match rate (FMR)",
        "The share of pairs that do not belong together and are accepted. Noise pushes some of them over any "
        "threshold, so the threshold must rise to keep the rate.",
    ),
    (
        "True-match rate (TAR)",
        "The share of pairs that do belong together and are accepted. At the same false-match rate, more noise means "
        "fewer true matches.",
    ),
)
_RETRIEVAL_TERMS = (
    (
        "Recall",
        "The share of queries whose relevant record is among those returned. Noise lifts some of the many irrelevant "
        "records above it.",
    ),
    (
        "The floor",
        "Any record might be the relevant one, so each must be returned sometimes. From that alone follows the least "
        "ε for a recall p among k of n records, ln(n (p − δ) / k). It holds for every mechanism.",
    ),
)
