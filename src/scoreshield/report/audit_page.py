"""An audit as a page: one HTML file of evidence that a data-protection officer and an engineer can both read.

The verdict comes first, in plain words, and then what to do. Then come the key figures, what was tried, three charts,
what no audit can show, and the published control that the evidence is for. The page fetches nothing and runs nothing.
Every figure is the audit's own.

There are three kinds of results. Those with outputs of many pairs of collections come from bets. Those with canaries
come from one release. Those with neither were saved by earlier versions, which compared two sides of releases.
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
from scoreshield.audit.result import POWER, ROWS_CHECK, AuditCheck, AuditResult
from scoreshield.privacy.verdicts import format_right_guesses
from scoreshield.report.audit_charts import (
    build_bound_chart,
    build_histogram_chart,
    build_tradeoff_chart,
    count_shown_outputs,
    describe_statistic,
    has_test,
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
    "of guessing, and a command that fails the pipeline when the claim is broken.",
    "The requirement speaks of training data, and the audit is of a collection of embeddings. Any finite ε lets the "
    "best attack do somewhat better than guessing. The page says how much better was measured and how much is allowed. "
    "The reader who applies the standard decides whether that is enough.",
    "Two requirements in drafts were closer: leakage targets for embeddings that every change is tested against "
    "(8.4.1), and black-box audits with a lower bound on ε at a stated confidence (12.3.2). The published version has "
    "neither.",
)


class FaultKind(NamedTuple):
    """A kind of fault that an audit looks for: what it is, and what to do where it is found."""

    meaning: str
    advice: str


_CALIBRATE = (
    "Calibrate the noise to the sensitivity: the most that the replacement of one record can move the whole output. "
    "Compare the scale in the code with its formula (Laplace noise: sensitivity / ε). Common mistakes are a standard "
    "deviation in place of a scale, a sensitivity of 1 for scores from −1 to 1, where it is 2, and the sensitivity of "
    "one number where a record moves several. Where the noise answers several queries, divide ε among them "
    "(composition)."
)
#: What an audit looks for, by the name of its check. Earlier versions also had the trade-off curve.
FAULT_KINDS = {
    "amount of noise": FaultKind("less noise than the claim needs", _CALIBRATE),
    "low bits": FaultKind(
        "last bits of numbers that show the value before the noise",
        "Round the outputs to a public grid after the noise is added, or draw the noise with an exact sampler, as "
        "ScoreShield releases do. The floating-point sum of a value and noise keeps traces of the value in its last "
        "bits (Mironov 2012).",
    ),
    "noise in every direction": FaultKind(
        "a number, a sum or a ratio of numbers without noise",
        "Draw noise of its own for every number of the output. Return no clean number beside the noisy ones, and do "
        "not add one draw to several numbers: their differences then have no noise.",
    ),
    "fresh noise": FaultKind(
        "noise that repeats, or no noise",
        "Seed the generator from the system (in NumPy: default_rng() without a seed), and draw new noise in each call. "
        "Use no fixed seed, no seed from the input or from a clock, and no cache of outputs. Processes that are forked "
        "must not share the state of a generator.",
    ),
    "form of the output": FaultKind(
        "a type, a length, an order or an error that depends on the record",
        "Return the same type, the same length and the same order for every collection. Sort by noisy values or by "
        "public names, never by clean values. Raise no error that depends on the data: return a fixed output instead.",
    ),
    "several calls": FaultKind(
        "noise that several calls share",
        "Draw independent noise for each call and each query. Keep no noise and no generator state that another call "
        "can see or repeat.",
    ),
    "noise scale": FaultKind("Gaussian noise that is narrower than claimed", _CALIBRATE),
    ROWS_CHECK: FaultKind(
        "rows that are not unit vectors: too long, too short or zero",
        "Normalise rows to length 1, or clamp them to a length of at most 1, inside the release and before anything "
        "is computed. Or reject rows that are not unit vectors, limit the claim to unit rows, and audit unit rows only "
        "(the option rows with the value unit).",
    ),
    "trade-off curve": FaultKind("a point of the claimed curve that the outputs contradict", _CALIBRATE),
}
_UNKNOWN_KIND = FaultKind("", "Find the cause in the code. The table “What was tried” says what was seen.")


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
        is_limited=result.broken_by_rows,
        says=_explain_verdict(result),
        more=write_verdict(result, facts),
        actions=_list_actions(result),
        figures=_list_figures(result),
        charts=[build_tradeoff_chart(result), build_histogram_chart(result), build_bound_chart(result)],
        heads=("Kind of fault", "Outcome", "What was seen, or what would be found in 9 of 10 such audits"),
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
        "broken_by_rows": result.broken_by_rows,
        "control": CONTROL._asdict(),
        "facts": dict(facts or {}),
        "result": result.to_dict(),
    }
    data = json.dumps(content, indent=2, allow_nan=False).encode()
    paths = Path(folder) / PAGE, Path(folder) / DATA
    _files.write_whole({paths[0]: lambda file: file.write(page), paths[1]: lambda file: file.write(data)}, private=True)
    return paths


# ---- The verdict, and what to do.


def write_verdict(result: AuditResult, facts: Mapping[str, Any] | None = None) -> str:
    """Write the outcome in one sentence or a few; for a resumed audit, the last says what was in its folder."""
    resumed = (facts or {}).get(RESUMED)
    return result.verdict if resumed is None else f"{result.verdict} {RESUMED}: {resumed}."


def judge_claim(result: AuditResult) -> Verdict:
    """Say whether the audit broke the claim, for all rows or only for rows that are not unit vectors."""
    if result.broken:
        return Verdict("missed", "✗", "Claim broken")
    if result.broken_by_rows:
        return Verdict("open", "!", "Claim broken only for rows that are not unit vectors")
    if math.isinf(result.detectable):
        return Verdict("open", "–", f"Too few {'canaries' if result.canaries else 'outputs'} for a verdict")
    return Verdict("met", "✓", "No violation found")


def _describe_effort(result: AuditResult) -> str:
    if result.canaries:
        return f"one release with {result.canaries:,} canaries"
    if result.calls:
        return f"{result.calls:,} outputs of {_count_pairs(result)}"
    return f"{result.releases:,} releases on each side"


def _count_pairs(result: AuditResult) -> str:
    return "1 pair of collections" if result.pairs == 1 else f"{result.pairs:,} pairs of collections"


def _list_failed(result: AuditResult) -> list[AuditCheck]:
    return [check for check in result.checks if check.passed is False]


def _explain_verdict(result: AuditResult) -> str:
    """Explain the verdict to a reader who is responsible for the people in the collection."""
    if result.broken and result.epsilon_lower > result.claim.epsilon:
        return (
            "The promise is false: a person who sees the outputs can find out, with better odds than promised, whether "
            "one record is in the collection. Do not rely on the promise, and release nothing more until the mechanism "
            "is fixed."
        )
    if result.broken:
        failures = ", ".join(check.name for check in _list_failed(result))
        return (
            f"The promise is false: a check failed that every sound mechanism passes ({failures}). Do not rely on the "
            "promise, and release nothing more until the mechanism is fixed."
        )
    if result.broken_by_rows:
        return (
            "For unit rows no result contradicts the promise. For other rows the promise is false: such a row moves "
            "the outputs further than the noise hides. Normalise or clamp rows, or promise privacy for unit rows only."
        )
    if math.isinf(result.detectable):
        return (
            "This audit says nothing for or against the promise: it is too small to contradict an ε of "
            f"{typeset_number(result.claim.epsilon)}, even if everything leaks."
        )
    outcome = "The tests did not distinguish the collections"
    if result.epsilon_lower > 0:
        bound = typeset_lower_bound(result.epsilon_lower)
        outcome = f"The tests distinguished the collections, as any finite ε allows (ε is at least {bound})"
    return (
        "The audit ran the mechanism on collections that differ in one record, and compared the outputs. "
        f"{outcome}, but no result contradicts the promise."
    )


def _list_actions(result: AuditResult) -> list[tuple[str, str]]:
    """List what to do about the outcome."""
    if result.broken or result.broken_by_rows:
        return _list_repairs(result)
    if math.isinf(result.detectable):
        return _list_ways_to_see_more(result)
    if result.canaries:
        return [
            (
                "Look further",
                "One release shows little. Where the mechanism can be called often, audit it on many pairs of "
                "collections too.",
            )
        ]
    actions = [
        (
            "Read what was tried",
            "This audit found no fault, and smaller ones may be there. The table “What was tried” says for each kind "
            "of fault what size would have been found. Decide whether that is enough for your records. Where it is "
            "not, give the audit more time (the option minutes).",
        )
    ]
    untested = [check.name for check in result.checks if _find_outcome(check) is None]
    if untested:
        actions.append(
            (
                "Review what was not tested",
                f"Not tested: {', '.join(untested)}. The audit says nothing about these faults; the table says why. "
                "Review the code for them, or audit again with what the table says is missing.",
            )
        )
    return actions


def _list_repairs(result: AuditResult) -> list[tuple[str, str]]:
    """List what to do about each check that failed, and about a bound that passes the claim by itself."""
    names = [check.name for check in _list_failed(result)]
    if result.epsilon_lower > result.claim.epsilon and not any(name != ROWS_CHECK for name in names):
        names.insert(0, "amount of noise")
    repairs = [(_capitalise(name), FAULT_KINDS.get(name, _UNKNOWN_KIND).advice) for name in names]
    if result.broken and result.calls:
        where = (
            f"{_capitalise(result.neighbours)}. Call the mechanism many times on both collections of this pair, and "
            "compare the outputs: they show the fault."
        )
        repairs.append(("Where it showed most", where))
    again = "Run the same audit on the corrected mechanism."
    if result.broken and result.calls:
        again += " An audit ends soon after the claim is broken, so that the next one may find other faults."
    return [*repairs, ("Then audit again", again)]


def _list_ways_to_see_more(result: AuditResult) -> list[tuple[str, str]]:
    if result.canaries:
        return [("Use more canaries", "The number of canaries that is needed grows with ε, about as e^ε.")]
    return [
        (
            "Draw more outputs",
            "Give the audit more time or more releases (the options minutes and releases). The number that is needed "
            "grows with ε, about as e^ε.",
        ),
        (
            "State more about Gaussian noise",
            "For Gaussian noise, claim its whole curve (the option noise of the command, a profile in Python). Where "
            "outputs are clean values plus this noise and nothing else, say so (the option plain). Then the scale of "
            "the noise can break the claim.",
        ),
        (
            "Or claim a smaller ε",
            "A large ε promises little, whatever an audit finds. The key figures say what this one promises.",
        ),
    ]


# ---- Key figures, and what was tried.


def _list_figures(result: AuditResult) -> list[KeyFigure]:
    claim = result.claim
    delta = f"δ = {typeset_power(claim.delta)}" if claim.delta else "δ = 0 (pure)"
    area, area_low, area_high = (typeset_number(value, 3) for value in result.auc)
    found, found_low, found_high = (typeset_percent(value) for value in result.tpr_at_1_percent)
    allowed = typeset_attack_rate(float(claim.tpr_at(0.01)))
    shown = f", on the last {count_shown_outputs(result):,} outputs" if result.calls else ""
    return [
        KeyFigure("Claimed", f"ε = {typeset_number(claim.epsilon)}", f"{delta}; neighbours: {claim.adjacency}"),
        KeyFigure(
            "The claim, if it is true",
            claim.verdict,
            "then an attacker who must choose between two candidates is right at most "
            f"{format_right_guesses(claim.advantage)} of the time",
        ),
        KeyFigure(
            "Measured, at least",
            f"ε ≥ {typeset_lower_bound(result.epsilon_lower)}",
            f"with confidence {typeset_percent(result.confidence)}; a lower bound, the true ε may be larger",
            role="private" if result.epsilon_lower > claim.epsilon else "clean",
        ),
        *([_state_detectable(result)] if result.canaries else []),
        _state_effort(result),
        KeyFigure("Area under the curve", area, f"{area_low} to {area_high}{shown}; 0.5 is guessing"),
        KeyFigure(
            "Found at 1 % false alarms", found, f"{found_low} to {found_high}{shown}; the claim allows {allowed}"
        ),
    ]


def _state_effort(result: AuditResult) -> KeyFigure:
    duration = f"in {typeset_duration(result.seconds)}"
    if result.canaries:
        return KeyFigure("Canaries", f"{result.canaries:,}", f"in one release, {duration}")
    if result.calls:
        return KeyFigure("Outputs", f"{result.calls:,}", f"of {_count_pairs(result)}, {duration}")
    return KeyFigure("Releases", f"{result.releases:,}", f"on each side, {duration}")


def _state_detectable(result: AuditResult) -> KeyFigure:
    """State what an audit with canaries would have found."""
    name = "Would have been found"
    if math.isinf(result.detectable):
        return KeyFigure(name, "nothing", "too few canaries to contradict this ε, even if everything leaks")
    detail = f"a true ε of this or more, with probability {typeset_percent(POWER)}"
    return KeyFigure(name, f"ε ≥ {typeset_upper_bound(result.detectable)}", detail)


def _list_checks(result: AuditResult) -> list[TableRow]:
    return [_list_bound(result), *(_list_check(check) for check in result.checks)]


def _list_bound(result: AuditResult) -> TableRow:
    """List the bound, which could not have passed the claim where there are too few outputs."""
    bound, claimed = typeset_lower_bound(result.epsilon_lower), typeset_number(result.claim.epsilon)
    passed = None if math.isinf(result.detectable) else True
    passed = False if result.epsilon_lower > result.claim.epsilon else passed
    detail = f"ε is at least {bound}, the claim is {claimed}"
    if passed is None:
        detail += ", which this audit is too small to contradict"
    name = Cell("All tests together", "the bound on ε") if result.calls else Cell("Bound on ε")
    return _make_row(name, passed, detail)


def _list_check(check: AuditCheck) -> TableRow:
    name = Cell(_capitalise(check.name), FAULT_KINDS.get(check.name, _UNKNOWN_KIND).meaning)
    return _make_row(name, _find_outcome(check), check.detail.removeprefix(_NOT_TESTED))


def _make_row(name: Cell, passed: bool | None, detail: str) -> TableRow:
    outcome = Cell("– not tested")
    if passed is not None:
        outcome = Cell("", mark="✓ nothing found" if passed else "✗ failed", is_good=passed)
    return TableRow("plan" if passed is False else "", [name, outcome, Cell(detail)])


_NOT_TESTED = "not tested: "


def _find_outcome(check: AuditCheck) -> bool | None:
    """Find the outcome of a check. Earlier versions saved one that was not tested as passed, and said so in words."""
    return None if check.passed and check.detail.startswith(_NOT_TESTED) else check.passed


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


# ---- Explanations.


def _list_limits(result: AuditResult) -> list[tuple[str, str]]:
    return [
        (
            "It is no proof",
            "An audit gives a lower bound on the leak. A claim that it breaks is false, with the stated confidence. "
            "A claim that it does not break may still be false, for other records, other queries or a better test.",
        ),
        ("It sees what the outputs show", _describe_reach(result)),
        ("It asks certain questions", _describe_questions(result)),
        (
            "It is of this day and this code",
            "The outputs were those of the mechanism as it ran during the audit. Audit again whenever the embedding "
            "model, the mechanism or its settings change.",
        ),
    ]


def _describe_reach(result: AuditResult) -> str:
    smaller = "It does not see smaller faults, or a leak that shows once in many more outputs."
    effort = _describe_effort(result)
    if math.isinf(result.detectable) and not result.broken:
        return f"An audit of this size ({effort}) cannot contradict an ε as large as the claimed one."
    if result.canaries and not math.isinf(result.detectable):
        return (
            f"With {effort}, a true ε of {typeset_upper_bound(result.detectable)} or more would have been found with "
            f"probability {typeset_percent(POWER)}, if {result.assuming}. {smaller}"
        )
    if result.calls and result.broken:
        return "The audit ended soon after the claim was broken. There may be other faults, and a larger ε."
    if result.calls:
        return f"The table “What was tried” says what size of each fault is found with {effort}. {smaller}"
    return f"It had {effort}. {smaller}"


def _describe_questions(result: AuditResult) -> str:
    if not result.calls:
        return (
            f"Two collections were compared: {result.neighbours}. The audit does not ask what several releases say "
            "together, what logs, timing or error messages say, or who can read the outputs."
        )
    compared = f"The two collections of the pair were: {result.neighbours}"
    if result.pairs != 1:
        compared = (
            f"{result.pairs:,} pairs of collections were tried, and most outputs are of those that showed most. The "
            f"pictures are of this pair: {result.neighbours}"
        )
    return (
        f"{compared}. The audit does not ask what more than two calls say together, what logs or timing say, or who "
        "can read the outputs."
    )


_CONTROL_TERMS = (
    ("Standard", f"{CONTROL.standard}: requirement {CONTROL.identifier}."),
    ("What it asks for", CONTROL.asks),
    ("What this audit contributes", CONTROL.speaks),
    ("What that leaves open", CONTROL.leaves),
    ("Drafts before 1.0", CONTROL.drafts),
)


def _describe_method(result: AuditResult, facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        ("Test statistic", _describe_test(result)),
        (
            "Neighbouring collections",
            f"{_capitalise(result.neighbours)}; adjacency: {result.claim.adjacency}.",
        ),
        *_describe_bounds(result),
        *((str(name), str(value)) for name, value in facts.items()),
    ]


def _describe_test(result: AuditResult) -> str:
    statistic = _capitalise(describe_statistic(result))
    if result.canaries or not has_test(result):
        return f"{statistic}."
    if result.calls:
        return f"{statistic}; the test that showed most. It was fitted on earlier outputs than those in the pictures."
    return f"{statistic}; chosen on one part of the releases and evaluated on the other."


def _describe_bounds(result: AuditResult) -> list[tuple[str, str]]:
    confidence = typeset_percent(result.confidence)
    if result.canaries:
        text = (
            "Guesses of fair coins, one per canary, and how many of them an ε-private release lets be right; "
            f"confidence {confidence} (Steinke, Nasr & Jagielski 2023)."
        )
        return [("Bounds", text)]
    if not result.calls:
        text = (
            f"Clopper–Pearson intervals at confidence {confidence} for the test's rates, and ε ≥ ln((rate with − δ) / "
            "rate without), each for its share of the confidence (Jagielski, Ullman & Oprea 2020; Nasr et al. 2021). "
            "This is the method of an earlier version."
        )
        return [("Bounds", text)]
    enough, error = typeset_number(1 / (1 - result.confidence)), typeset_percent(1 - result.confidence)
    return [
        (
            "Bets",
            "A fair coin chooses one of two neighbouring collections, and tests bet on which one made the output. The "
            "capital begins at 1. Each bet is priced so that the capital is not expected to grow if the claim is true, "
            "whatever was learnt from earlier outputs, whichever pairs are tried, and whenever the audit stops. Then "
            f"it ever reaches {enough} with probability at most {error} (Ville's inequality). So the claim is broken, "
            f"at confidence {confidence}, once the capital reaches {enough} (Shafer 2021; Ramdas, Grünwald, Vovk & "
            "Shafer 2023).",
        ),
        (
            "Bound",
            "The same tests bet against many values of ε at once. The bound is the largest value such that it and all "
            "smaller values are rejected.",
        ),
        (
            "Intervals",
            "The area under the curve and the share found at 1 % false alarms describe the best test on the last "
            f"outputs of its pair. Their intervals assume no noise law, and have confidence {confidence} each. The "
            "verdict does not use them.",
        ),
    ]
