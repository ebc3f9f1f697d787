"""An audit as a page: one HTML file of evidence that a data-protection officer and an engineer can both read.

The verdict comes first, in plain words. Then come three charts, the checks, what no audit can show, and the published
control that the evidence is for. The page fetches nothing and runs nothing. Every figure is the audit's own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from scoreshield import _files
from scoreshield._formatting import (
    typeset_attack_rate,
    typeset_duration,
    typeset_lower_bound,
    typeset_number,
    typeset_percent,
    typeset_power,
    typeset_upper_bound,
)
from scoreshield._validation import reject, validate
from scoreshield.audit.result import POWER, AuditResult
from scoreshield.privacy.verdicts import format_right_guesses
from scoreshield.report.audit_charts import (
    build_bound_chart,
    build_histogram_chart,
    build_tradeoff_chart,
    describe_statistic,
)
from scoreshield.report.pages import Cell, KeyFigure, TableRow, Verdict, get_moment, render_template

PAGE, DATA = "report.html", "report.json"
#: The fact that says how many releases a resumed audit found in its folder, and how old they are.
RESUMED = "Resumed"


class Control(NamedTuple):
    """A requirement of a published standard, what an audit contributes to it, and what it leaves open."""

    standard: str
    identifier: str
    asks: str
    speaks: str
    leaves: str
    drafts: str


#: The identifier has the form that the standard asks for ("How to Reference AISVS Requirements", in its README). The
#: standard's folder of version 1.0 is frozen, so identifiers do not move.
CONTROL = Control(
    "OWASP Artificial Intelligence Security Verification Standard (AISVS) 1.0, June 2026",
    "v1.0-C11.2.5, level 3 (section C11.2, Membership-Inference and Model-Inversion Mitigation)",
    "Simulated membership-inference attacks which show that an attack does no better than guessing on the data that "
    "were evaluated.",
    "This page is such a simulation: one record in or out, the strongest test that was found, its success beside that "
    "of guessing, and a command that fails the pipeline when the bound passes the claim.",
    "The requirement speaks of training data, and the audit is of a collection of embeddings. Any finite ε lets the "
    "best attack do somewhat better than guessing. The page says how much better was measured and how much is allowed. "
    "The reader who applies the standard decides whether that is enough.",
    "Two requirements in drafts were closer: leakage targets for embeddings that every change is tested against "
    "(8.4.1), and black-box audits with a lower bound on ε at a stated confidence (12.3.2). The published version has "
    "neither.",
)


@validate()
def render_audit_page(
    result: AuditResult, *, facts: Mapping[str, Any] | None = None, now: datetime | None = None
) -> str:
    """Render an audit as a whole HTML document.

    Args:
        result: what an audit found.
        facts: more about how the audit was made, as names with short values, in the order in which they are shown.
        now: the time in the footer; the present by default.

    Raises:
        InvalidInput: the argument is not the result of an audit, or the 'report' extra is not installed.
    """
    if not isinstance(result, AuditResult):
        reject("result", "the result of an audit", result)
    return render_template(
        "audit.html",
        name=result.name,
        effort=_describe_effort(result),
        verdict=judge_claim(result),
        says=write_verdict(result, facts),
        more=_explain_verdict(result),
        figures=_list_figures(result),
        charts=[build_tradeoff_chart(result), build_histogram_chart(result), build_bound_chart(result)],
        heads=("Check", "Outcome", "What was seen"),
        rows=_list_checks(result),
        limits=_list_limits(result),
        control=_CONTROL_TERMS,
        method=_describe_method(result, facts or {}),
        moment=get_moment(now),
        sources="Method and its limits: docs/audit.md.",
    )


def save_audit_page(
    result: AuditResult, folder: str | Path, *, facts: Mapping[str, Any] | None = None, now: datetime | None = None
) -> tuple[Path, Path]:
    """Write ``report.html`` and ``report.json`` into a folder, both or neither. Only their owner may read them.

    Returns:
        The paths of the page and of the data.
    """
    moment = get_moment(now)
    page = render_audit_page(result, facts=facts, now=moment).encode()
    content = {
        "scoreshield": version("scoreshield"),
        "time": moment.isoformat(timespec="seconds"),
        "verdict": write_verdict(result, facts),
        "broken": result.broken,
        "control": CONTROL._asdict(),
        "facts": dict(facts or {}),
        "result": result.to_dict(),
    }
    data = json.dumps(content, indent=2, allow_nan=False).encode()
    paths = Path(folder) / PAGE, Path(folder) / DATA
    _files.write_whole({paths[0]: lambda file: file.write(page), paths[1]: lambda file: file.write(data)}, private=True)
    return paths


# ---- The verdict, and the figures under it.


def write_verdict(result: AuditResult, facts: Mapping[str, Any] | None = None) -> str:
    """Write the outcome in one sentence; for a resumed audit, a second sentence says what it found in its folder."""
    resumed = (facts or {}).get(RESUMED)
    return result.verdict if resumed is None else f"{result.verdict} {RESUMED}: {resumed}."


def judge_claim(result: AuditResult) -> Verdict:
    """Say whether the audit broke the claim."""
    if result.broken:
        return Verdict("missed", "✗", "Claim broken")
    if math.isinf(result.detectable):
        return Verdict("open", "–", "Too few releases for a verdict")
    return Verdict("met", "✓", "No violation found")


def _describe_effort(result: AuditResult) -> str:
    if result.canaries:
        return f"one release with {result.canaries:,} canaries"
    return f"{result.releases:,} releases on each side"


def _explain_verdict(result: AuditResult) -> str:
    """Explain the verdict to a reader who is responsible for the people in the collection."""
    if result.broken and result.epsilon_lower > result.claim.epsilon:
        return (
            "In plain words: a person who sees the outputs can find out, with better odds than promised, whether one "
            "record is in the collection. Do not rely on the promise, and release nothing more until the mechanism is "
            "fixed."
        )
    if result.broken:
        failures = ", ".join(check.name for check in result.checks if not check.passed)
        return (
            f"In plain words: a check failed that every sound mechanism passes ({failures}). The bound alone does not "
            "contradict the promise, but do not rely on the promise until the check passes."
        )
    outcome = "The test did not distinguish the two collections"
    if result.epsilon_lower > 0:
        bound = typeset_lower_bound(result.epsilon_lower)
        outcome = f"The test distinguished the two collections, as any finite ε allows (ε is at least {bound})"
    return (
        "In plain words: the audit ran the mechanism on two collections that differ in one record, and compared the "
        f"outputs. {outcome}, and no result contradicts the promise."
    )


def _list_figures(result: AuditResult) -> list[KeyFigure]:
    claim = result.claim
    delta = f"δ = {typeset_power(claim.delta)}" if claim.delta else "δ = 0 (pure)"
    area, area_low, area_high = (typeset_number(value, 3) for value in result.auc)
    found, found_low, found_high = (typeset_percent(value) for value in result.tpr_at_1_percent)
    duration = f"in {typeset_duration(result.seconds)}"
    effort = KeyFigure("Releases", f"{result.releases:,}", f"on each side, {duration}")
    if result.canaries:
        effort = KeyFigure("Canaries", f"{result.canaries:,}", f"in one release, {duration}")
    allowed = typeset_attack_rate(float(claim.tpr_at(0.01)))
    return [
        KeyFigure("Claimed", f"ε = {typeset_number(claim.epsilon)}", f"{delta}; neighbours: {claim.adjacency}"),
        KeyFigure(
            "The claim in words",
            claim.verdict,
            "if it is true, an attacker who must choose between two candidates is right at most "
            f"{format_right_guesses(claim.advantage)} of the time",
        ),
        KeyFigure(
            "Measured, at least",
            f"ε ≥ {typeset_lower_bound(result.epsilon_lower)}",
            f"with confidence {typeset_percent(result.confidence)}",
            role="private" if result.epsilon_lower > claim.epsilon else "clean",
        ),
        _state_detectable(result),
        effort,
        KeyFigure("Area under the curve", area, f"{area_low} to {area_high}; 0.5 is guessing"),
        KeyFigure("Found at 1 % false alarms", found, f"{found_low} to {found_high}; the claim allows {allowed}"),
    ]


def _state_detectable(result: AuditResult) -> KeyFigure:
    name = "Would have been found"
    if math.isinf(result.detectable):
        return KeyFigure(
            name, "nothing", "by the bound alone: too few releases to contradict this ε, even if everything leaks"
        )
    detail = f"a true ε of this or more, with probability {typeset_percent(POWER)}"
    return KeyFigure(name, f"ε ≥ {typeset_upper_bound(result.detectable)}", detail)


def _list_checks(result: AuditResult) -> list[TableRow]:
    bound, claimed = typeset_lower_bound(result.epsilon_lower), typeset_number(result.claim.epsilon)
    checks = [
        (
            "The bound stays within the claim",
            result.epsilon_lower <= result.claim.epsilon,
            f"ε is at least {bound}, the claim is {claimed}",
        ),
        *((check.name, check.passed, check.detail) for check in result.checks),
    ]
    return [
        TableRow(
            "" if passed else "plan",
            [
                Cell(name[:1].upper() + name[1:]),
                Cell("", mark="✓ passed" if passed else "✗ failed", is_good=passed),
                Cell(detail),
            ],
        )
        for name, passed, detail in checks
    ]


# ---- Explanations.


def _list_limits(result: AuditResult) -> list[tuple[str, str]]:
    return [
        (
            "It is no proof",
            "An audit gives a lower bound on the leak. A claim that it breaks is false, with the stated confidence. "
            "A claim that it does not break may still be false, for other records, other queries or a better test.",
        ),
        (
            "It sees what the releases show",
            f"{_describe_reach(result)} It does not see smaller violations, or a leak that shows once in many more "
            "releases.",
        ),
        (
            "It asks one question",
            f"Two collections were compared: {result.neighbours}. The audit does not ask what several releases say "
            "together, what logs, timing or error messages say, or who can read the outputs.",
        ),
        (
            "It is of this day and this code",
            "The outputs were those of the mechanism as it ran during the audit. Audit again whenever the embedding "
            "model, the mechanism or its settings change.",
        ),
    ]


def _describe_reach(result: AuditResult) -> str:
    effort = _describe_effort(result)
    if math.isinf(result.detectable):
        return f"An audit of this size ({effort}) cannot contradict an ε as large as the claimed one."
    return (
        f"With {effort}, a true ε of {typeset_upper_bound(result.detectable)} or more would have been found with "
        f"probability {typeset_percent(POWER)}, if {result.assuming}."
    )


_CONTROL_TERMS = (
    ("Standard", f"{CONTROL.standard}: requirement {CONTROL.identifier}."),
    ("What it asks for", CONTROL.asks),
    ("What this audit contributes", CONTROL.speaks),
    ("What that leaves open", CONTROL.leaves),
    ("Drafts before 1.0", CONTROL.drafts),
)


def _describe_method(result: AuditResult, facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    statistic, pair = describe_statistic(result), result.neighbours
    return [
        (
            "Test statistic",
            f"{statistic[:1].upper()}{statistic[1:]}; chosen on one part of the releases and evaluated on the other.",
        ),
        ("Neighbouring collections", f"{pair[:1].upper()}{pair[1:]}; adjacency: {result.claim.adjacency}."),
        ("Bounds", _describe_bounds(result)),
        *((str(name), str(value)) for name, value in facts.items()),
    ]


def _describe_bounds(result: AuditResult) -> str:
    confidence = typeset_percent(result.confidence)
    if result.canaries:
        return (
            "Guesses of fair coins, one per canary, and how many of them an ε-private release lets be right; "
            f"confidence {confidence} (Steinke, Nasr & Jagielski 2023)."
        )
    return (
        f"Clopper–Pearson intervals at confidence {confidence} for the test's rates, and ε ≥ ln((rate with − δ) / rate "
        "without), each for its share of the confidence (Jagielski, Ullman & Oprea 2020; Nasr et al. 2021)."
    )
