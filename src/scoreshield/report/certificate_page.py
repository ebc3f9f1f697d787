"""A certificate as a page: one HTML file that says what `FILE.txt` says, for a screen and for paper.

The verdict comes first, then the warnings, the key figures, a chart of what the best attacker detects, and every
statement of the certificate. The page fetches nothing and runs nothing. It shows the guarantee, no released value.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import numpy as np

from scoreshield import _files
from scoreshield._formatting import format_bound, typeset_delta, typeset_percent_tick, typeset_text
from scoreshield._validation import reject, validate
from scoreshield.privacy.certificate import Statement, format_ceiling, list_statements
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.profiles import Profile
from scoreshield.privacy.verdicts import FALSE_ALARMS, LAST, VerdictWord, format_right_guesses
from scoreshield.releases.results import Release
from scoreshield.report.chart import Axis, Chart
from scoreshield.report.pages import KeyFigure, Verdict, get_moment, render_template

#: Where the best attacker detects more than this at 1 % false alarms, only rarer alarms say anything.
_STEEP = 0.5
_ORIGIN = ("Dataset", "Who", "Why", "Ledger entry")
_METHOD = ("How", "Sampler")
#: The statements that the top of the page has in other words.
_LEADING = ("Verdict", "Promise")


@validate()
def render_certificate_page(
    certified: Guarantee | Release, *, facts: Mapping[str, str] | None = None, now: datetime | None = None
) -> str:
    """Render a certificate as a whole HTML document.

    Args:
        certified: A guarantee, or a release that has one.
        facts: More about the file, as names with short texts, such as its checksum.
        now: The time in the footer; the present by default.

    Raises:
        InvalidInput: The argument has no guarantee, or the 'report' extra is not installed.
    """
    guarantee = certified.guarantee if isinstance(certified, Release) else certified
    if not isinstance(guarantee, Guarantee):
        reject("certified", "a guarantee or a release", certified)
    statements = list_statements(guarantee)
    stated = {statement.label: statement for statement in statements}
    dataset = stated.get("Dataset")
    origin = [(one.label, one.text) for one in statements if one.label in _ORIGIN]
    return render_template(
        "certificate.html",
        subject=stated["Released"].text,
        source="No dataset is stated" if dataset is None else dataset.text,
        verdict=_judge(guarantee.verdict),
        says=_explain_verdict(guarantee, stated["Verdict"]),
        more=f"The promise: {stated['Promise'].text}",
        warnings=[f"{text[0].upper()}{text[1:]}" for text in guarantee.warnings],
        figures=_list_figures(guarantee),
        charts=[build_detection_chart(guarantee.record_profile())],
        statements=[(one.label, one.text) for one in statements if one.label not in (*_LEADING, *_ORIGIN, *_METHOD)],
        origin=[*origin, *(facts or {}).items()],
        method=[(one.label, one.text) for one in statements if one.label in _METHOD],
        moment=get_moment(now),
        sources="How to read it: docs/certificate.md. The page is not signed.",
    )


def save_certificate_page(
    certified: Guarantee | Release,
    path: str | Path,
    *,
    facts: Mapping[str, str] | None = None,
    now: datetime | None = None,
) -> None:
    """Write a certificate as one HTML file, completely or not at all. It prints well, to paper or to a PDF.

    Args:
        certified: A guarantee, or a release that has one.
        path: The file.
        facts: More about the file, as names with short texts, such as its checksum.
        now: The time in the footer; the present by default.

    Example:
        >>> from scoreshield import report
        >>> report.save_certificate_page(release, "certificate.html")
    """
    page = render_certificate_page(certified, facts=facts, now=now).encode()
    _files.write_whole({Path(path): lambda file: file.write(page)})


def build_detection_chart(profile: Profile) -> Chart:
    """Show what the best attacker detects of changes of one record, by the false alarms that it raises."""
    detected = float(profile.tpr_at(FALSE_ALARMS))
    shown = _format_detected(profile)
    log = detected > _STEEP
    low = 1e-6 if log else 0.0
    rates = np.geomspace(low, 1.0, 241) if log else np.concatenate([[0.0], np.geomspace(1e-6, 1.0, 241)])
    chart = Chart(
        "What the best possible attacker detects",
        Axis("false alarms: unchanged, called changed", low, 1.0, log=log, format_tick=typeset_percent_tick),
        Axis("detected: changed, called changed", 0.0, 1.0, format_tick=typeset_percent_tick),
        "No test of whether one record was changed passes this line, however much its author knows. At 1 % false "
        f"alarms it detects at most {shown} of the changes. The nearer the line is to guessing, "
        "the more the release hides.",
    )
    ceiling = np.asarray(profile.tpr_at(rates), dtype=np.float64)
    chart.add_area(rates, ceiling, 1.0, "impossible", "aux", hatched=True)
    chart.add_line(rates, ceiling, "the best attacker", "private")
    chart.add_line(rates, rates, "guessing", "aux", dashed=True)
    chart.add_point(FALSE_ALARMS, detected, f"{shown} at 1 %", "private")
    return chart


def _judge(word: VerdictWord) -> Verdict:
    """Choose the colour and the sign of a verdict."""
    match word:
        case "strong":
            return Verdict("met", "✓", "Strong")
        case "moderate":
            return Verdict("open", "–", "Moderate")
        case "weak":
            return Verdict("missed", "!", "Weak")
        case _:
            return Verdict("missed", "✕", LAST.capitalize())


def _explain_verdict(guarantee: Guarantee, verdict: Statement) -> str:
    """Drop the word of the verdict from its text, where the page shows it above."""
    word = f"{guarantee.verdict.capitalize()}."
    return verdict.text.removeprefix(word).strip()


def _format_detected(profile: Profile) -> str:
    """Format the share of changes that is detected at 1 % false alarms, rounded up."""
    return typeset_text(f"{format_ceiling(100 * float(profile.tpr_at(FALSE_ALARMS)), 2)} %")


def _list_figures(guarantee: Guarantee) -> list[KeyFigure]:
    profile = guarantee.record_profile()
    slack = f"at {typeset_delta(guarantee.delta)}" if guarantee.delta else "pure: no slack, δ = 0"
    return [
        KeyFigure("Privacy budget ε, at most", format_bound(guarantee.epsilon), slack),
        KeyFigure(
            "Attacker right at most",
            format_right_guesses(profile.advantage),
            "of the time, between two candidates for one record; 50 % is a coin toss",
        ),
        KeyFigure(
            "Changes detected at most",
            _format_detected(profile),
            "of changes of one record, at 1 % false alarms; 1 % is a coin toss",
        ),
        KeyFigure(
            "Best attack, AUC at most",
            format_ceiling(profile.auc, 4),
            "over all rates of false alarms; 0.5 is a coin toss",
        ),
    ]
