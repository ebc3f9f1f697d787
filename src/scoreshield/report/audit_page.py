"""An audit as a page: one HTML file of evidence that a data-protection officer and an engineer can both read.

The verdict comes first, in plain words; then three pictures, the checks, what no audit can show, and the published
control that the evidence speaks to. Nothing is fetched and nothing is run, as in :mod:`scoreshield.report.page`, whose
style sheet and building blocks these are. Every figure is the audit's own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from scoreshield import _files, _validation
from scoreshield._formatting import (
    typeset_attack_rate,
    typeset_duration,
    typeset_lower_bound,
    typeset_number,
    typeset_percent,
    typeset_power,
    typeset_upper_bound,
)
from scoreshield._validation import validate
from scoreshield.audit.result import POWER, AuditResult
from scoreshield.report.audit_charts import bound_chart, histogram_chart, statistic_words, tradeoff_chart
from scoreshield.report.page import KeyFigure, key_figures, picture_grid, prose, section, table_html

PAGE, DATA = "report.html", "report.json"
#: The fact that says how many releases an audit that went on found there, and how old they are.
RESUMED = "Resumed"


class Control(NamedTuple):
    """A requirement of a published standard, in what way an audit speaks to it, and what it leaves open."""

    standard: str
    identifier: str
    asks: str
    speaks: str
    leaves: str
    drafts: str


#: Identifiers in the form that the standard itself asks for ("How to Reference AISVS Requirements", in its README). Its
#: folder of version 1.0 is frozen, so they do not move.
CONTROL = Control(
    "OWASP Artificial Intelligence Security Verification Standard (AISVS) 1.0, June 2026",
    "v1.0-C11.2.5, level 3 (section C11.2, Membership-Inference and Model-Inversion Mitigation)",
    "Simulated membership-inference attacks which show that an attack does no better than guessing on the data that "
    "were evaluated.",
    "This page is such a simulation: one record in or out, the strongest test that was found, its success beside that "
    "of guessing, and a command that fails the pipeline when the bound passes the claim.",
    "The requirement speaks of training data, and the audit is of a collection of embeddings. Any finite ε lets the "
    "best attack do somewhat better than guessing: the page says how much better was measured and how much is allowed, "
    "and whoever applies the standard decides whether that will do.",
    "Two requirements in drafts were closer: leakage targets for embeddings that every change is tested against "
    "(8.4.1), and black-box audits with a lower bound on ε at a stated confidence (12.3.2). The published version has "
    "neither.",
)


@validate()
def render(result: AuditResult, *, facts: Mapping[str, Any] | None = None, now: datetime | None = None) -> str:
    """An audit as a whole HTML document.

    Parameters
    ----------
    facts : more about how the audit was made, as names with short values; shown in the order given.
    now : the time in the footer; the present unless told otherwise.
    """
    if not isinstance(result, AuditResult):
        _validation.reject("result", "the result of an audit", result)
    style = files("scoreshield.report").joinpath("page.css").read_text("utf-8")
    charts = [tradeoff_chart(result), histogram_chart(result), bound_chart(result)]
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>ScoreShield: audit of {escape(result.name)}</title>\n<style>\n{style}</style>\n</head>\n<body>",
            f'<header><p class="brand">ScoreShield</p><h1>Privacy audit: {escape(result.name)}</h1>'
            f'<p class="source">{escape(_effort(result))}</p></header>',
            "<main>",
            _answer(result, facts or {}),
            section("key", "Key figures", key_figures(_key_figures(result))),
            section("pictures", "The evidence in pictures", picture_grid(charts)),
            section("checks", "Checks", _checks_table(result)),
            section("limits", "What this audit cannot show", _words(_limits(result))),
            section("control", "The published control", _words(_control())),
            section("made", "How it was made", _words(_made(result, facts or {}))),
            "</main>",
            _footer(now or datetime.now(UTC)),
            "</body>\n</html>\n",
        )
    )


def save(
    result: AuditResult, folder: str | Path, *, facts: Mapping[str, Any] | None = None, now: datetime | None = None
) -> tuple[Path, Path]:
    """Write ``report.html`` and ``report.json`` into a folder, both or neither, for their owner alone.

    Returns:
        where they are.
    """
    moment = now or datetime.now(UTC)
    page = render(result, facts=facts, now=moment).encode()
    told = {
        "scoreshield": version("scoreshield"),
        "time": moment.astimezone(UTC).isoformat(timespec="seconds"),
        "verdict": verdict(result, facts),
        "broken": result.broken,
        "control": CONTROL._asdict(),
        "facts": dict(facts or {}),
        "result": result.to_dict(),
    }
    data = json.dumps(told, indent=2, allow_nan=False).encode()
    paths = Path(folder) / PAGE, Path(folder) / DATA
    _files.write_whole({paths[0]: lambda file: file.write(page), paths[1]: lambda file: file.write(data)}, private=True)
    return paths


# ---- The verdict, and the figures under it.


def verdict(result: AuditResult, facts: Mapping[str, Any] | None = None) -> str:
    """The outcome in one sentence; where an audit went on after a stop, a second one says what it found there."""
    resumed = (facts or {}).get(RESUMED)
    return result.verdict if resumed is None else f"{result.verdict} {RESUMED}: {resumed}."


def _effort(result: AuditResult) -> str:
    if result.canaries:
        return f"one release with {result.canaries:,} canaries"
    return f"{result.releases:,} releases on each side"


def status(result: AuditResult) -> tuple[str, str, str]:
    """How the claim stands: a class, a sign and words, so that colour is never alone."""
    if result.broken:
        return "missed", "✗", "Claim broken"
    if math.isinf(result.detectable):
        return "open", "–", "Too few releases to tell"
    return "met", "✓", "No violation found"


def _answer(result: AuditResult, facts: Mapping[str, Any]) -> str:
    kind, sign, words = status(result)
    says, more = prose(verdict(result, facts)), prose(_meaning(result))
    return (
        f'<div class="answer {kind}"><p class="status"><span class="sign" aria-hidden="true">{sign}</span>'
        f'{words}</p>\n<p class="says">{says} <span class="more">{more}</span></p></div>'
    )


def _meaning(result: AuditResult) -> str:
    """What the verdict means to someone who is responsible for the people in the collection."""
    if result.broken:
        failed = [check.name for check in result.checks if not check.passed]
        if result.epsilon_lower > result.claim.epsilon:
            return (
                "In plain words: whoever sees the outputs can tell better than promised whether one person's record "
                "is in the collection. Do not rely on the promise, and release nothing more until it is mended."
            )
        return (
            f"In plain words: a check failed that every sound mechanism passes ({', '.join(failed)}). The bound on its "
            "own stays within the promise, but the promise cannot be relied upon until the check passes."
        )
    if result.epsilon_lower <= 0:
        seen = "The test could not tell the two collections apart at all"
    else:
        seen = f"The test could tell the two collections apart, as any finite ε allows (ε is at least {_bound(result)})"
    return (
        f"In plain words: two collections that differ in one record were put through the mechanism and its outputs "
        f"compared. {seen}, and nothing it saw contradicts the promise."
    )


def _bound(result: AuditResult) -> str:
    return typeset_lower_bound(result.epsilon_lower)


def _least_found(result: AuditResult) -> str:
    return typeset_upper_bound(result.detectable)


def _key_figures(result: AuditResult) -> list[KeyFigure]:
    claim, confidence = result.claim, typeset_percent(result.confidence)
    stated = f"δ = {typeset_power(claim.delta)}" if claim.delta else "δ = 0 (pure)"
    area, low, high = result.auc
    found, found_low, found_high = result.tpr_at_1_percent
    style = "private" if result.epsilon_lower > claim.epsilon else "clean"
    return [
        KeyFigure("Claimed", f"ε = {typeset_number(claim.epsilon)}", f"{stated}; neighbours: {claim.adjacency}"),
        KeyFigure(
            "Measured, at least", f'<span class="{style}">ε ≥ {_bound(result)}</span>', f"with confidence {confidence}"
        ),
        KeyFigure("Would have been found", *_found(result)),
        KeyFigure("Canaries", f"{result.canaries:,}", f"in one release, in {typeset_duration(result.seconds)}")
        if result.canaries
        else KeyFigure("Releases", f"{result.releases:,}", f"on each side, in {typeset_duration(result.seconds)}"),
        KeyFigure(
            "Area under the curve",
            typeset_number(area, 3),
            f"{typeset_number(low, 3)} to {typeset_number(high, 3)}; 0.5 is guessing",
        ),
        KeyFigure(
            "Found at 1 % false alarms",
            typeset_percent(found),
            f"{typeset_percent(found_low)} to {typeset_percent(found_high)}; the claim allows "
            f"{typeset_attack_rate(float(claim.tpr_at(0.01)))}",
        ),
    ]


def _found(result: AuditResult) -> tuple[str, str]:
    if math.isinf(result.detectable):
        return "nothing", "by the bound alone: too few releases to contradict this ε, whatever leaks"
    return f"ε ≥ {_least_found(result)}", f"a true ε of this or more, with probability {typeset_percent(POWER)}"


def _checks_table(result: AuditResult) -> str:
    bound = result.epsilon_lower <= result.claim.epsilon
    rows = [
        (
            "The bound stays within the claim",
            bound,
            f"ε is at least {_bound(result)}, the claim is {typeset_number(result.claim.epsilon)}",
        ),
        *((check.name, check.passed, check.detail) for check in result.checks),
    ]
    good, bad = '<span class="good">✓ passed</span>', "<strong>✗ failed</strong>"
    cells = [
        ("" if passed else "plan", [prose(name[:1].upper() + name[1:]), good if passed else bad, prose(detail)])
        for name, passed, detail in rows
    ]
    return table_html(("Check", "Outcome", "What was seen"), cells)


# ---- Words.


def _limits(result: AuditResult) -> list[tuple[str, str]]:
    return [
        (
            "It is no proof",
            "An audit gives a lower bound on the leak. A claim that it breaks is false, with the stated confidence; "
            "a claim that it does not break may still be false, for other records, other queries or a better test.",
        ),
        (
            "It sees what the releases show",
            f"{_reach(result)} Smaller violations, and a leak that shows once in many more releases, stay unseen.",
        ),
        (
            "It asks one question",
            f"Two collections were compared: {result.neighbours}. What several releases tell together, what logs, "
            "timing or error messages tell, and who can read the outputs are other questions.",
        ),
        (
            "It is of this day and this code",
            "The outputs were those of the mechanism as it ran during the audit. Audit again whenever the embedding "
            "model, the mechanism or its settings change.",
        ),
    ]


def _reach(result: AuditResult) -> str:
    if math.isinf(result.detectable):
        return f"An audit of this size ({_effort(result)}) cannot contradict an ε as large as the claimed one."
    return (
        f"With {_effort(result)}, a true ε of {_least_found(result)} or more would have been found with "
        f"probability {typeset_percent(POWER)}, if {result.assuming}."
    )


def _control() -> list[tuple[str, str]]:
    return [
        ("Standard", f"{CONTROL.standard}: requirement {CONTROL.identifier}."),
        ("What it asks for", CONTROL.asks),
        ("How this audit speaks to it", CONTROL.speaks),
        ("What that leaves open", CONTROL.leaves),
        ("Drafts before 1.0", CONTROL.drafts),
    ]


def _made(result: AuditResult, facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    words, pair = statistic_words(result), result.neighbours
    return [
        (
            "Test statistic",
            f"{words[:1].upper()}{words[1:]}; chosen on one part of the releases and judged on the other.",
        ),
        ("Neighbouring collections", f"{pair[:1].upper()}{pair[1:]}; adjacency: {result.claim.adjacency}."),
        ("Bounds", _method(result)),
        *((str(name), str(value)) for name, value in facts.items()),
    ]


def _method(result: AuditResult) -> str:
    confidence = typeset_percent(result.confidence)
    if result.canaries:
        return (
            f"Guesses of fair coins, one a canary, and how many of them an ε-private release lets be right; confidence "
            f"{confidence} (Steinke, Nasr & Jagielski 2023)."
        )
    return (
        f"Clopper–Pearson intervals at confidence {confidence} for the test's rates, and ε ≥ ln((rate with − δ) / rate "
        "without), each for its share of the confidence (Jagielski, Ullman & Oprea 2020; Nasr et al. 2021)."
    )


def _words(terms: list[tuple[str, str]]) -> str:
    entries = "".join(f"<div><dt>{escape(term)}</dt><dd>{prose(text)}</dd></div>\n" for term, text in terms)
    return f'<dl class="words">\n{entries}</dl>'


def _footer(now: datetime) -> str:
    moment = now.astimezone(UTC)
    return (
        f'<footer><p>ScoreShield {escape(version("scoreshield"))}, <time datetime="{moment:%Y-%m-%dT%H:%MZ}">'
        f"{moment.day} {moment:%B %Y, %H:%M} UTC</time>.</p>\n<p>Method and its limits: docs/audit.md.</p></footer>"
    )
