"""A guarantee as a text that a data-protection officer can read."""

from __future__ import annotations

import math
import textwrap
from decimal import ROUND_CEILING, Decimal
from typing import NamedTuple

from scoreshield._formatting import format_bound, format_number
from scoreshield.privacy.adjacency import Identity, NullRecord
from scoreshield.privacy.consistency import count_rows
from scoreshield.privacy.details import describe_details
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.privacy.mechanisms import MECHANISMS, REGIMES
from scoreshield.privacy.profiles import Profile
from scoreshield.privacy.provenance import Provenance
from scoreshield.privacy.verdicts import FALSE_ALARMS, LAST, choose_verdict, format_right_guesses, judge_profile


class Statement(NamedTuple):
    """One statement of a certificate.

    Attributes:
        label: What it is about, such as "Promise".
        text: One or more sentences.
        is_free: Whether the text is the owner's, which may hold very long words.
    """

    label: str
    text: str
    is_free: bool = False


def write_certificate(guarantee: Guarantee) -> str:
    """Write the guarantee as a text that a data-protection officer can read."""
    lines = ["ScoreShield certificate", "=======================", ""]
    for warning in list_warnings(guarantee):
        lines.extend([*textwrap.wrap(f"WARNING: {warning}", 79), ""])
    for statement in list_statements(guarantee):
        if statement.label == "How":
            lines.append("")
        start, indent = f"{statement.label:<15}", " " * 15
        # A fingerprint stays whole.
        wrapper = textwrap.TextWrapper(79, start, indent, break_long_words=statement.is_free)
        lines.extend(wrapper.wrap(statement.text))
    return "\n".join(lines) + "\n"


def list_statements(guarantee: Guarantee) -> list[Statement]:
    """List what the certificate states, in the order in which it is read; the warnings are `list_warnings`."""
    found: list[Statement] = []

    def say(label: str, *sentences: str, is_free: bool = False) -> None:
        found.append(Statement(label, " ".join(sentences), is_free))

    say("Verdict", *_write_verdict(guarantee))
    say("Released", _describe_release(guarantee) + ".")
    if guarantee.provenance is not None:
        for label, text in _list_provenance(guarantee.provenance):
            say(label, text, is_free=True)
    say(
        "Promise",
        f"({format_bound(guarantee.epsilon)}, {format_bound(guarantee.delta)})-differential privacy"
        if guarantee.delta
        else f"pure {format_bound(guarantee.epsilon)}-differential privacy",
        "(one change multiplies the probability of an event by at most e^epsilon, and adds at most delta)."
        if guarantee.delta
        else "(one change multiplies the probability of an event by at most e^epsilon).",
    )
    say(
        "Protects",
        "An attacker who sees the release cannot find out, with better odds than those below, whether "
        f"{guarantee.adjacency.describe()}.",
        *(
            ["One record is everything that one id ever held, in all versions."]
            if _has_public_changes(guarantee)
            else []
        ),
        "This holds even if the attacker knows everything else.",
    )
    if guarantee.regime == "hits":
        null, replacement = (format_bound(guarantee.details[f"{kind}_epsilon"]) for kind in ("null", "replacement"))
        say(
            "Both figures",
            f"Whether a record ever answered at all (against a null record): {null}-differential privacy.",
            f"Which of any two records it was (record replacement): {replacement}-differential privacy.",
        )
    say(
        "In practice",
        "The best possible test of whether one such change was made has an AUC of at most",
        f"{format_ceiling(guarantee.attack_auc, 4)} (0.5 is a coin toss) and an advantage of at most",
        f"{format_ceiling(guarantee.attack_advantage, 4)} (0 is a coin toss); at 1 % false alarms it detects at most",
        f"{format_ceiling(100 * guarantee.tpr_at(0.01), 2)} % of such changes.",
    )
    say(
        "Does not cover",
        "Other releases from the same records: each spends its own epsilon and delta, and they add up.",
        "The records themselves, if they are shown beside their scores.",
        f"What is taken as public: {_list_public_facts(guarantee)}the number, order and dimension of the records,",
        "and any label.",
        "Facts that hold whether or not one particular record is in the collection.",
    )
    say("How", *_describe_mechanism(guarantee))
    say("Sampler", *_describe_sampler(guarantee))
    return found


def _write_verdict(guarantee: Guarantee) -> list[str]:
    profile = guarantee.record_profile()
    word = judge_profile(profile)
    sentences = [f"{word.capitalize()}."]
    attacker = "An attacker who knows everything else"
    if word != guarantee.verdict:  # a seed makes it worse than its noise
        sentences = [
            f"{guarantee.verdict.capitalize()}, because it was made in research mode.",
            f"With the exact sampler it would be {word}.",
        ]
        attacker += ", except the seed,"
    return [
        *sentences,
        f"{attacker} and must choose between two candidates for one {_name_unit(guarantee)} is right at most",
        f"{format_right_guesses(profile.advantage)} of the time (50 % is a coin toss).",
        *_explain_verdict(profile, word),
    ]


def _explain_verdict(profile: Profile, word: str) -> list[str]:
    """Say that the rate at few false alarms decided, where the other rate alone would have a better word."""
    if choose_verdict(profile.advantage, 0.0) == word:
        return []
    share = format_ceiling(100 * float(profile.tpr_at(FALSE_ALARMS)), 1)
    return [f"It is called {word} for the {share} % of changes that are detected at 1 % false alarms."]


def _name_unit(guarantee: Guarantee) -> str:
    return "identity" if isinstance(guarantee.adjacency, Identity) else "record"


def _list_provenance(provenance: Provenance) -> list[tuple[str, str]]:
    number, _, checksum = provenance.entry.partition(":")
    entry = f"Number {number}, with the hash {checksum}" if number else "None: no ledger was charged."
    texts = [("Dataset", provenance.dataset), ("Who", provenance.who), ("Why", provenance.why)]
    return [*((label, text) for label, text in texts if text.strip()), ("Ledger entry", entry)]


def format_ceiling(value: float, digits: int) -> str:
    """Format a number with so many decimals, never below its value."""
    return f"{Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING)}"


def _describe_mechanism(guarantee: Guarantee) -> list[str]:
    sentences = [MECHANISMS[guarantee.mechanism].sentence]
    if guarantee.mechanism in ("optimal", "levels"):
        sentences.append(f"Root mean squared error at most {guarantee.noise_std:.6g}, at the worst level.")
        if "share" in guarantee.details:
            sentences.append(
                f"A share of {format_bound(guarantee.details['share'])} of the records is answered for, each exposed "
                f"as under epsilon {format_bound(guarantee.epsilon)}; the others are released at the lowest level."
            )
    elif guarantee.noise is not None:
        sentences += _describe_noise(guarantee)
    sentences += describe_details(guarantee.details)
    low, high = guarantee.score_range
    if guarantee.regime == "histogram":
        sentences.append("Scores outside the bins are counted at the ends.")
    elif guarantee.regime not in ("index", "batch"):
        sentences.append(f"Clean scores were first clamped to the public range [{low:g}, {high:g}].")
    if guarantee.mechanism == "screen-and-refine":
        sentences.append(f"Those behind released scores: to [{guarantee.details['threshold']:g}, {high:g}].")
    return sentences


def _describe_noise(guarantee: Guarantee) -> list[str]:
    if guarantee.mechanism == "custom":
        return [
            f"Standard deviation {guarantee.noise_std:.6g} on each entry;",
            f"one record moves a score by at most {guarantee.sensitivity:.6g}",
            f"({guarantee.grid_sensitivity:.9g} with rounding to the grid), checked numerically and rounded up.",
        ]
    beside = "with rounding to the grid"
    beside += "".join(f" and the {part}" for part in ("covariance", "center") if f"{part}_std" in guarantee.details)
    end = ", checked numerically and rounded up." if guarantee.claimed is None else " as published."
    return [
        f"Standard deviation {guarantee.noise_std:.6g} on each entry;",
        f"l2 sensitivity {guarantee.sensitivity:.6g} ({guarantee.grid_sensitivity:.9g} {beside}),",
        f"scale {guarantee.scale:.9g}, {guarantee.calibration} calibration{end}",
    ]


def _describe_sampler(guarantee: Guarantee) -> list[str]:
    if guarantee.sampler != "exact":
        warning = "Research: a seeded generator. Anyone who knows the seed can remove the noise."
        return [warning, _describe_grid(guarantee)]
    draws = "Exact: all draws have exactly the stated law,"
    if guarantee.mechanism == "gaussian":
        draws = "Exact: the real-valued Gaussian rounded to the grid,"
    return [f"{draws} from an AES-256 stream keyed by the operating system.", _describe_grid(guarantee)]


def _describe_grid(guarantee: Guarantee) -> str:
    if guarantee.grid == 1:
        return "Every released number is a whole number."
    return f"Every released number is a multiple of {guarantee.grid:g} (2^{round(math.log2(guarantee.grid))})."


def _list_public_facts(guarantee: Guarantee) -> str:
    if guarantee.mechanism == "anchored":
        return "the query, the shape of the tail of the scores, "
    if guarantee.regime != "index":
        return REGIMES[guarantee.regime].public
    if guarantee.mechanism == "codebook":
        return "the codebook, " + _list_public_changes(guarantee)
    has_public_projection = guarantee.details.get("reduction") not in ("pca", "none")
    facts = "the projection, " * has_public_projection + "the center, " * (guarantee.details.get("center") == "public")
    return facts + _list_public_changes(guarantee)


def _list_public_changes(guarantee: Guarantee) -> str:
    if not _has_public_changes(guarantee):
        return ""
    return "the ids of the records, when each was added, changed or removed, and how often, "


def _has_public_changes(guarantee: Guarantee) -> bool:
    return guarantee.details.get("changes") == "public"


def _describe_release(guarantee: Guarantee) -> str:
    shape = guarantee.shape
    central = isinstance(guarantee.adjacency, Identity) and guarantee.adjacency.centroids
    one, all_ = ("identity", "identities") if central else ("record", "records")
    match guarantee.regime:
        case "scores" if len(shape) == 2:
            return f"the similarity scores of {shape[0]:,} public queries against {shape[1]:,} {all_}"
        case "scores":
            return f"{shape[0]:,} similarity scores, of one public query against {shape[0]:,} {all_}"
        case "matches":
            return f"which of {shape[0]:,} {all_} pass a public threshold for one public query"
        case "top-k":
            return f"the {shape[0]:,} best {all_} for one public query, without their scores"
        case "histogram":
            return f"a histogram of similarity scores in {shape[0]:,} bins"
        case "index" if guarantee.mechanism == "codebook":
            return f"{shape[0]:,} codes of {shape[1]:,} public codewords each, which answer every later query"
        case "index":
            return f"{shape[0]:,} vectors of {shape[1]:,} dimensions that answer every later query"
        case "batch":
            queries = f"{guarantee.details['queries']:,}"
            return f"which of {queries} public queries each of {shape[0]:,} {all_} answers best, and a level for each"
        case "hits":
            return (
                f"the answers to any number of public queries, which name some of {shape[0]:,} {all_}, with a level of "
                "the score for each"
            )
        case "row":
            return f"the {shape[0]:,} similarity scores of one {one}, at a public index, with all {all_}"
        case _:
            return (
                f"the Gram matrix of {shape[0]:,} {all_}: all {shape[0] * (shape[0] - 1) // 2:,} pairwise similarities"
            )


def list_warnings(guarantee: Guarantee) -> list[str]:
    """List what a reader must know before anything else."""
    found = []
    if guarantee.sampler != "exact":
        found.append("made in research mode with a seeded generator: for experiments on public data only, NOT PRIVATE.")
    if guarantee.claimed is not None:
        found.append(
            f"reproduces a published calibration that claims (epsilon {guarantee.claimed[0]:g}, delta "
            f"{guarantee.claimed[1]:g}) and does not reach it; the pair below is the true one."
        )
    if isinstance(guarantee.adjacency, NullRecord):
        found.append(
            "the promise is against a null record; between any two records it is pure "
            f"{format_bound(guarantee.details['replacement_epsilon'])}-differential privacy."
        )
    elif not guarantee.covers_record_replacement:
        found.append(
            "this radius does NOT cover the replacement of a whole record, which can move the Gram matrix by up to "
            f"{guarantee._replacement():.4g}."
        )
    profile = guarantee.record_profile()
    if judge_profile(profile) == LAST:
        right = format_right_guesses(profile.advantage)
        found.append(
            f"this release hides practically nothing about one {_name_unit(guarantee)}: the best attacker has an "
            f"advantage of up to {format_ceiling(profile.advantage, 4)} and is right up to {right} of the time."
        )
    records = max(count_rows(guarantee))
    if guarantee.delta >= 1 / records:
        found.append(
            f"delta {format_bound(guarantee.delta)} is not below 1/n for the n = {records:,} records: a release that "
            f"reveals {format_number(guarantee.delta * records)} whole records on average would keep a promise with "
            "this delta. The verdict is about one record only."
        )
    return found
