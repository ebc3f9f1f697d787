"""A plan as a page: one HTML file that a data-protection officer and an engineer can both read.

Nothing is fetched and nothing is run: styles are inside, charts are SVG (:mod:`scoreshield.report.svg`), text is text.
Every figure is the plan's own, or comes from :mod:`scoreshield.decisions` on the plan's scores.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from scoreshield import _files, _validation
from scoreshield._formatting import (
    typeset_attack_rate,
    typeset_delta,
    typeset_interval,
    typeset_number,
    typeset_percent,
    typeset_text,
)
from scoreshield._validation import validate
from scoreshield.decisions.scores import Sample, Scores
from scoreshield.plan.alternatives import Outcome
from scoreshield.plan.base import Plan
from scoreshield.plan.contracts import Contract
from scoreshield.plan.retrieval_plan import RetrievalPlan
from scoreshield.plan.verification_plan import VerificationPlan
from scoreshield.report.charts import at_the_end, attack_chart, fmr_chart, recall_chart, roc_chart, shift_chart
from scoreshield.report.svg import Chart


@validate()
def render(plan: Plan, *, now: datetime | None = None) -> str:
    """A plan as a whole HTML document.

    Parameters
    ----------
    plan : what :func:`scoreshield.plan.verification` or :func:`scoreshield.plan.retrieval` gave.
    now : the time in the footer; the present unless told otherwise.
    """
    if isinstance(plan, VerificationPlan):
        title, figures, table, words = "Verification plan", _match_figures(plan), _match_table(plan), _MATCH_WORDS
        charts = [fmr_chart(plan), shift_chart(plan), roc_chart(plan), attack_chart(plan.contract)]
    elif isinstance(plan, RetrievalPlan):
        title, figures, table, words = "Retrieval plan", _search_figures(plan), _search_table(plan), _SEARCH_WORDS
        charts = [recall_chart(plan), roc_chart(plan), attack_chart(plan.contract)]
    else:
        _validation.reject("plan", "a verification or a retrieval plan", plan)
    style = files("scoreshield.report").joinpath("page.css").read_text("utf-8")
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>ScoreShield: {title.lower()}</title>\n<style>\n{style}</style>\n</head>\n<body>",
            _header(plan, title),
            "<main>",
            _answer(plan),
            _warnings(plan),
            section("key", "Key figures", key_figures(figures)),
            section("pictures", "The plan in pictures", picture_grid([chart for chart in charts if chart is not None])),
            section("choices", "What other choices would change", table),
            section("reading", "How to read this", _reading(plan, words)),
            "</main>",
            _footer(now or datetime.now(UTC)),
            "</body>\n</html>\n",
        )
    )


def save(plan: Plan, path: str | Path) -> None:
    """Write the page of a plan, whole or not at all, for its owner alone: its curves may show private scores."""
    page = render(plan).encode()
    _files.write_whole({Path(path): lambda file: file.write(page)}, private=True)


# ---- Parts of a page.


def prose(text: str) -> str:
    """Escape a text and keep its percent signs with their numbers."""
    return typeset_text(escape(text))


def section(ident: str, title: str, body: str) -> str:
    return f'<section aria-labelledby="{ident}"><h2 id="{ident}">{escape(title)}</h2>\n{body}\n</section>'


def _header(plan: Plan, title: str) -> str:
    origin = "assumed parameters" if plan.source == "parameters" else f"{plan.source} scores"
    return (
        f'<header><p class="brand">ScoreShield</p><h1>{escape(title)}</h1>'
        f'<p class="source {escape(plan.source)}">From {escape(origin)}</p></header>'
    )


def status(plan: Plan) -> tuple[str, str, str]:
    """How the plan stands: a class, a sign and words, so that colour is never alone."""
    if isinstance(plan, VerificationPlan) and not plan.recalibration.feasible:
        return "unreachable", "✗", "Not reachable on clipped scores"
    if isinstance(plan, RetrievalPlan) and plan.target_recall is None:
        return "open", "–", "No target stated"
    if plan.met:
        return "met", "✓", "Need met"
    if math.isinf(plan.least_epsilon):
        return "unreachable", "✗", "Not reachable at any ε"
    if isinstance(plan, RetrievalPlan) and plan.contract.epsilon < plan.floor:
        return "unreachable", "✗", "Not reachable at this ε by any mechanism"
    return "missed", "✗", "Need not met at this ε"


def _answer(plan: Plan) -> str:
    kind, sign, words = status(plan)
    first, *rest = re.split(r"(?<=\.) (?=[A-Z])", plan.answer)
    more = f' <span class="more">{prose(" ".join(rest))}</span>' if rest else ""
    return (
        f'<div class="answer {kind}"><p class="status"><span class="sign" aria-hidden="true">{sign}</span>'
        f'{escape(words)}</p>\n<p class="says">{prose(first)}{more}</p></div>'
    )


def _warnings(plan: Plan) -> str:
    if not plan.warnings:
        return ""
    items = "".join(f"<li>{prose(text)}</li>" for text in plan.warnings)
    return f'<div class="warnings" role="note"><h2>Beware</h2><ul>{items}</ul></div>'


class KeyFigure(NamedTuple):
    """One key figure: its name, its value (HTML), and a line of text under it."""

    name: str
    value: str
    detail: str


def key_figures(figures: Sequence[KeyFigure]) -> str:
    cells = "".join(
        f'<div class="figure"><dt>{escape(name)}</dt><dd class="value">{value}</dd>'
        f'<dd class="detail">{escape(detail)}</dd></div>'
        for name, value, detail in figures
    )
    return f'<dl class="figures n{len(figures)}">{cells}</dl>'


def _moves(before: str, after: str) -> str:
    arrow = '<span class="arrow" role="img" aria-label="to">→</span>'
    return f'<span class="clean">{escape(before)}</span>&nbsp;{arrow} <span class="private">{escape(after)}</span>'


def picture_grid(charts: Sequence[Chart]) -> str:
    drawn = (
        f"<figure><h3>{escape(chart.title)}</h3>\n{chart.legend(f'chart-{place}')}\n{chart.render(f'chart-{place}')}\n"
        f"<figcaption>{escape(chart.caption)}</figcaption></figure>"
        for place, chart in enumerate(charts, start=1)
    )
    return '<div class="pictures">' + "\n".join(drawn) + "</div>"


def table_html(heads: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Rows of a class and cells (HTML); a phone shows each row as a card, so cells carry their heads."""
    head = "".join(f'<th scope="col" role="columnheader">{escape(name)}</th>' for name in heads)
    body = ""
    for kind, (first, *cells) in rows:
        rest = "".join(
            f'<td role="cell" data-head="{escape(name)}" class="{"" if cell else "empty"}"><span>{cell}</span></td>'
            for name, cell in zip(heads[1:], cells, strict=True)
        )
        body += f'<tr role="row" class="{kind}"><th scope="row" role="rowheader">{first}</th>{rest}</tr>\n'
    return (
        f'<div class="scroll"><table role="table"><thead role="rowgroup"><tr role="row">{head}</tr></thead>\n'
        f'<tbody role="rowgroup">\n{body}</tbody></table></div>'
    )


def _reading(plan: Plan, words: Sequence[tuple[str, str]]) -> str:
    terms = (*words, *_COMMON_WORDS, ("What this plan rests on", _rests_on(plan)))
    entries = "".join(f"<div><dt>{escape(term)}</dt><dd>{prose(text)}</dd></div>\n" for term, text in terms)
    return f'<dl class="words">\n{entries}</dl>'


def _rests_on(plan: Plan) -> str:
    search = isinstance(plan, RetrievalPlan)
    sizes = [_size(plan.impostor, "irrelevant" if search else "impostor")]
    if plan.genuine is not None:
        sizes.append(_size(plan.genuine, "relevant" if search else "genuine"))
    text = f"It was made from {_SOURCES.get(plan.source, plan.source)}. It used {' and '.join(sizes)}."
    if isinstance(plan, VerificationPlan) and plan.rate_error > 0:
        text += (
            " As an estimate from so many impostor scores, the private false-match rate of "
            f"{typeset_percent(plan.target_fmr)} "
            f"has a standard error of {typeset_number(100 * plan.rate_error, 2)} percentage points."
        )
    if search:
        text += " It assumes one relevant record a query, and other records that score independently."
    return text + " Rates after noise are computed from these scores, none is simulated."


def _size(scores: Scores, name: str) -> str:
    return f"{len(scores):,} {name} scores" if isinstance(scores, Sample) else f"a distribution of {name} scores"


def _footer(now: datetime) -> str:
    moment = now.astimezone(UTC)
    return (
        f'<footer><p>ScoreShield {escape(version("scoreshield"))}, <time datetime="{moment:%Y-%m-%dT%H:%MZ}">'
        f"{moment.day} {moment:%B %Y, %H:%M} UTC</time>.</p>\n<p>{escape(_FORMULAE)}</p></footer>"
    )


_FORMULAE = (
    "Formulae: the noise for (ε, δ) and the attack curve, docs/calibration.md (Balle & Wang 2018, Theorem 8); what one "
    "record can move, docs/sensitivity.md; rates, thresholds and limits after noise, scoreshield.decisions; "
    "what is not covered, docs/limitations.md."
)
_SOURCES = {
    "public": "public scores: the plan reveals nothing about private records",
    "released": "scores that were released under a guarantee: the plan reveals no more than they do",
    "parameters": "assumed distributions, not measured scores: the plan is as good as the assumption",
    "private": "private scores that nobody has paid for: this page reveals them, keep it with the curator",
}
_COMMON_WORDS = (
    (
        "Epsilon and delta (ε, δ)",
        "The promise to every person in the collection: replacing their record changes the probability of anything "
        "that can be seen by a factor of at most e to the power ε, up to a small allowance δ. Smaller is safer: 1 is "
        "strong; above 10 the formula says little by itself, and the attack figures say more.",
    ),
    (
        "Best attack, advantage",
        "Someone who knows everything but one record looks at the release and tests whether a given record is in it. "
        "The advantage is how often such a test finds a member, less how often it accuses a non-member: 0 % is "
        "guessing, 100 % is certainty. No attack does better, known or unknown.",
    ),
    (
        "One release",
        "All of this is about a single release. Several releases of the same records add up: an attacker may combine "
        "them, and the promise weakens with each.",
    ),
)
_MATCH_WORDS = (
    (
        "False-match rate (FMR)",
        "The share of pairs that do not belong together and are accepted all the same. Noise pushes some of them over "
        "any threshold, so the threshold must rise to keep the rate.",
    ),
    (
        "True-match rate (TAR)",
        "The share of pairs that do belong together and are accepted. It pays for the noise: at the same false-match "
        "rate, more noise means fewer true matches.",
    ),
)
_SEARCH_WORDS = (
    (
        "Recall",
        "The share of queries whose relevant record is among those returned. Noise lifts some of the many irrelevant "
        "records above it.",
    ),
    (
        "The floor",
        "Any record might be the relevant one, so each must be returned now and then. From that alone follows the "
        "least ε for a recall p among k of n records, ln(n (p − δ) / k), for every mechanism that can be invented.",
    ),
)


# ---- Key figures.


def _promise(plan: Plan) -> KeyFigure:
    promise = plan.contract
    stated = f"; stated as {promise.stated}" if promise.calibration == "attack" else ""
    return KeyFigure("Privacy promise", f"ε = {typeset_number(promise.epsilon)}", typeset_delta(promise.delta) + stated)


def _noise(plan: Plan) -> KeyFigure:
    reach = f"one record moves a score by up to {typeset_number(plan.sensitivity)}, within "
    f"{typeset_interval(plan.score_range)}"
    return KeyFigure("Noise on each score", f"sd {typeset_number(plan.scale)}", f"Gaussian; {reach}")


def _attack(promise: Contract) -> KeyFigure:
    found = (
        f"finds {typeset_attack_rate(float(promise.tpr_at(0.01)))} of members at {typeset_percent(0.01)} false alarms"
    )
    return KeyFigure("Best attack, advantage", typeset_attack_rate(promise.attack_advantage), found)


def _least(plan: Plan) -> tuple[str, str]:
    """The least epsilon as a word or number, and what it means."""
    value = plan.least_epsilon
    if isinstance(plan, RetrievalPlan) and plan.target_recall is None:
        return "not asked", "the plan states no recall to reach"
    if math.isnan(value):
        return "none", "with this calibration, which is not private there; the analytic one has one"
    if math.isinf(value):
        return "none", "not even scores without noise meet the need"
    return (
        (typeset_number(value), f"meets the need, at {typeset_delta(plan.contract.delta)}")
        if value
        else ("any", "meets the need")
    )


def _match_figures(plan: VerificationPlan) -> list[KeyFigure]:
    moved, target = plan.recalibration, typeset_percent(plan.target_fmr)
    where = f"on noisy scores: {typeset_number(moved.unclipped_threshold, 3)}"
    # Where noise hides the sample's own randomness, its standard error is not worth a line here.
    error = f"; standard error {typeset_number(100 * plan.rate_error, 2)} points"
    reached = f"target {target}" + (error if plan.rate_error > 0.005 * plan.target_fmr else "")
    asked = "no rate was asked for" if plan.target_tar is None else f"asked for: {typeset_percent(plan.target_tar)}"
    matches = KeyFigure(
        "True matches", _moves(typeset_percent(plan.clean_tar), typeset_percent(plan.tar)), f"{asked}, at the target"
    )
    return [
        _promise(plan),
        _noise(plan),
        KeyFigure(
            "Threshold",
            _moves(typeset_number(moved.clean_threshold, 3), typeset_number(moved.threshold, 3)),
            f"clean to private, on {plan.rule}; "
            + (f"a shift of {typeset_number(moved.shift, 3)}" if moved.feasible else where),
        ),
        KeyFigure(
            "False matches, threshold kept",
            f'<span class="private">{typeset_percent(moved.rate_before)}</span>',
            f"{typeset_number(moved.rate_before / plan.target_fmr, 2)} times the target, if nobody moves it",
        ),
        KeyFigure(
            "False matches, threshold moved",
            typeset_percent(moved.rate),
            reached if moved.feasible else f"{typeset_percent(moved.limit)} pass {at_the_end(plan)}",
        ),
        matches if plan.genuine is not None else KeyFigure("True matches", "unknown", "needs scores of genuine pairs"),
        _attack(plan.contract),
        KeyFigure("Least ε for the need", *_least(plan)),
    ]


def _search_figures(plan: RetrievalPlan) -> list[KeyFigure]:
    aim = plan.recall if plan.target_recall is None else plan.target_recall
    asked = "" if plan.target_recall is None else f"; asked for: {typeset_percent(plan.target_recall)}"
    return [
        _promise(plan),
        _noise(plan),
        KeyFigure(
            "Recall",
            _moves(typeset_percent(plan.clean_recall), typeset_percent(plan.recall)),
            f"relevant record among the best {plan.k:,} of {plan.records:,}{asked}",
        ),
        KeyFigure(
            "Floor for every mechanism",
            f"ε ≥ {typeset_number(plan.floor, 3)}" if plan.floor > 0 else "none",
            f"ln(n (p − δ) / k), for a recall of {typeset_percent(aim)}",
        ),
        KeyFigure("Least ε with this noise", *_least(plan)),
        _attack(plan.contract),
    ]


_MEETS = '<span class="good">✓ meets the need</span>'


def _match_table(plan: VerificationPlan) -> str:
    heads = ("Choice", "Noise sd", "Threshold", "False matches if kept", "True matches", "Least ε", "Note")
    rows = []
    for place, item in enumerate(plan.alternatives):
        kinds = ("plan" if place == 0 else "", "" if item.private else "refused")
        rows.append((" ".join(kinds).strip(), _match_row(plan, item)))
    return table_html(heads, rows)


def _match_row(plan: VerificationPlan, item: Outcome) -> list[str]:
    threshold = typeset_number(item.threshold, 3, aligned=True)
    if math.isfinite(item.shift):
        threshold += f"<small>{'+' if item.shift >= 0 else ''}{typeset_number(item.shift, 3, aligned=True)}</small>"
    meets = plan.target_tar is not None and item.private and item.tar >= plan.target_tar * (1 - 1e-9)
    note = item.note[:1].upper() + item.note[1:]
    return [
        _choice(plan.alternatives[0], item),
        typeset_number(item.scale, 3, aligned=True),
        threshold,
        typeset_percent(item.rate_kept, aligned=True),
        "unknown" if plan.genuine is None else _bar(item.tar),
        _least_cell(item.least_epsilon),
        f"{_MEETS if meets else ''} {prose(note)}".strip(),
    ]


def _choice(first: Outcome, item: Outcome) -> str:
    """What a row changes, and from what."""
    name, detail = str(item.rule).capitalize(), f"instead of {first.rule}"
    if item is first:
        name, detail = (
            "This plan",
            f"{item.calibration} calibration, {item.rule}, range {typeset_interval(item.score_range)}",
        )
    elif item.mechanism != first.mechanism:
        name, detail = f"{item.mechanism.capitalize()} noise", f"instead of {first.mechanism}"
    elif item.calibration != first.calibration:
        name, detail = f"{item.calibration.capitalize()} calibration", f"instead of {first.calibration}"
    elif item.score_range != first.score_range:
        name, detail = (
            f"Scores clamped to {typeset_interval(item.score_range)}",
            f"sensitivity {typeset_number(item.sensitivity)}",
        )
    return f"{escape(name)}<small>{escape(detail)}</small>"


def _search_table(plan: RetrievalPlan) -> str:
    rows = []
    for place, (within, scale, recall, least) in enumerate(plan.alternatives):
        name = (
            f"Scores clamped to {typeset_interval(within)}" if place else f"This plan, range {typeset_interval(within)}"
        )
        meets = plan.target_recall is not None and recall >= plan.target_recall * (1 - 1e-9)
        choice = f"{name}<small>sensitivity {typeset_number(within[1] - within[0])}</small>"
        needed = "not asked" if plan.target_recall is None else _least_cell(least)
        cells = [choice, typeset_number(scale, 3, aligned=True), _bar(recall), needed, _MEETS if meets else ""]
        rows.append(("" if place else "plan", cells))
    return table_html(("Public score range", "Noise sd", "Recall", "Least ε", "Note"), rows)


def _least_cell(value: float) -> str:
    if not math.isfinite(value):
        return "none"
    return typeset_number(value, 3, aligned=True) if value else "any"


def _bar(value: float) -> str:
    """A rate with a bar under it."""
    if not math.isfinite(value):
        return typeset_percent(value)
    text = typeset_percent(value, aligned=True)
    return f'{text}<i class="bar" style="--share:{100 * value:.1f}%" aria-hidden="true"></i>'
