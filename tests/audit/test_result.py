"""What a result says, and that it can be written down and read back."""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest

from scoreshield.audit import AuditCheck, AuditResult, Claim
from scoreshield.errors import InvalidInput


def result(**changes: Any) -> AuditResult:
    given: dict[str, Any] = {
        "name": "scores",
        "claim": Claim(1.0, 1e-6),
        "releases": 2000,
        "confidence": 0.95,
        "epsilon_lower": 0.4,
        "checks": (AuditCheck("random", True, "two calls differ"),),
        "auc": (0.6, 0.55, 0.65),
        "tpr_at_1_percent": (0.02, 0.01, 0.04),
        "fpr": np.linspace(0, 1, 5),
        "tpr": np.linspace(0, 1, 5) ** 0.5,
        "edges": np.array([0.0, 1.0, 2.0]),
        "counts_in": np.array([3, 7]),
        "counts_out": np.array([6, 4]),
        "trajectory": ((1000, 0.2), (2000, 0.4)),
        "detectable": 1.2344,
        "statistic": "likelihood ratio",
        "neighbours": "q against -q",
        "seconds": 1.5,
    }
    return AuditResult(**(given | changes))


BETS: dict[str, Any] = {"calls": 212_996, "pairs": 118}


def test_verdict_of_pass() -> None:
    """The verdict of a pass names no epsilon: the checks say what would have been found."""
    assert not result().broken
    assert result(**BETS).verdict == (
        "No violation found with 212,996 outputs of 118 pairs of neighbouring collections. The checks say what size of "
        "each fault would have been found, and what was not tested. Smaller faults may be there; this is evidence, not "
        "proof."
    )
    assert "with 40 outputs of 1 pair of neighbouring collections." in result(calls=40, pairs=1).verdict
    assert "No violation found with 2,000 releases." in result().verdict  # of an earlier version
    assert "1.235" not in result().verdict


def test_verdict_of_pass_with_canaries() -> None:
    """An audit of one release says what would have been found."""
    passed = result(releases=1, canaries=500)
    assert passed.verdict == (
        "No violation found: with one release and 500 canaries a true epsilon of 1.235 or more would have been found "
        "with probability 90 % if the release reveals it on these collections as clearly as randomised response does; "
        "this is evidence, not proof."
    )
    assert "90 % if the noise is small; this" in dataclasses.replace(passed, assuming="the noise is small").verdict


def test_rows_alone_break_no_claim_about_unit_rows() -> None:
    """Rows of other lengths are a finding of their own."""
    rows = AuditCheck("rows of other lengths", False, "a row of length 3 shows")
    found = result(checks=(AuditCheck("low bits", None, "whole numbers"), rows), **BETS)
    assert not found.broken
    assert found.broken_by_rows
    assert found.verdict.startswith("No violation found for unit rows with 212,996 outputs of 118 pairs")
    assert "but the claim is broken for other rows" in found.verdict
    assert "a row of length 3 shows" in found.verdict
    assert "broken for rows of other lengths" in repr(found)
    assert found.to_dict()["broken"] is False
    both = dataclasses.replace(found, epsilon_lower=1.5)
    assert both.broken
    assert not both.broken_by_rows
    assert "BROKEN" in repr(both)


def test_a_check_that_was_not_tested_is_neither_passed_nor_failed() -> None:
    found = result(checks=(AuditCheck("low bits", None, "the outputs are whole numbers"),))
    assert not found.broken
    assert not found.broken_by_rows
    assert "not tested       low bits: the outputs are whole numbers" in str(found)
    assert AuditResult.from_dict(found.to_dict()).checks[0].passed is None
    assert found.to_frame()["result"].tolist() == ["nothing found", "not tested"]


def test_a_pass_that_could_not_fail_says_so() -> None:
    verdict = result(claim=Claim(10.0), detectable=math.inf).verdict
    assert "cannot raise the bound above 10, even if everything leaks" in verdict
    assert "at least 110,073 on each side would be needed" in verdict
    # Enough in all, but the test was counted on too few of them: no number to give.
    assert "on each side" not in result(claim=Claim(10.0), releases=110_073, detectable=math.inf).verdict
    assert "on each side" not in result(claim=Claim(10.0), detectable=math.inf, canaries=5).verdict


@pytest.mark.parametrize("epsilon", [100.0, 1000.0])
def test_no_count_of_47_digits_is_printed(epsilon: float) -> None:
    verdict = result(claim=Claim(epsilon), detectable=math.inf).verdict
    assert "no feasible number of releases can" in verdict
    assert len(max(verdict.split(), key=len)) < 20


def test_a_result_of_before_is_read() -> None:
    data = result().to_dict()
    del data["assuming"], data["calls"], data["pairs"]
    assert AuditResult.from_dict(data) == result()


def test_a_bound_above_the_claim_breaks_it() -> None:
    broken = result(epsilon_lower=1.2349, confidence=1 - 1e-7)
    assert broken.broken
    assert broken.verdict == (
        "The claim is broken: at 99.99999 % confidence the true epsilon is at least 1.234, where 1 was claimed "
        "(delta 1e-06, replace one record)."
    )
    assert not result(epsilon_lower=1.0).broken  # as much as was claimed is no violation


def test_a_failed_check_breaks_it_too() -> None:
    checks = (AuditCheck("random", True, "fine"), AuditCheck("low bits", False, "24 % against 3 %"))
    broken = result(checks=checks)
    assert broken.broken
    assert broken.verdict == "The claim is broken: low bits: 24 % against 3 %."
    both = result(checks=checks, epsilon_lower=2.0).verdict
    assert both.count("; ") == 1
    assert both.index("epsilon is at least 2") < both.index("low bits")


@pytest.mark.parametrize("changes", [{}, BETS, {"detectable": math.inf}, {"canaries": 9, "epsilon_lower": 3.0}])
def test_a_result_survives_strict_json(changes: dict[str, Any]) -> None:
    found = result(**changes)
    text = json.dumps(found.to_dict(), allow_nan=False)
    back = AuditResult.from_dict(json.loads(text))
    assert back == found
    assert back.verdict == found.verdict == json.loads(text)["verdict"]
    assert back.detectable == found.detectable
    for field in dataclasses.fields(AuditResult):
        ours, theirs = getattr(found, field.name), getattr(back, field.name)
        assert np.array_equal(ours, theirs) if isinstance(ours, np.ndarray) else ours == theirs
    assert back != result(epsilon_lower=0.41)


def test_arrays_are_frozen_copies() -> None:
    """Arrays are copies that cannot be written."""
    fpr = np.linspace(0, 1, 5)
    found = result(fpr=fpr)
    fpr[0] = 0.5
    assert found.fpr[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        found.fpr[0] = 1


def test_the_text_holds_the_figures() -> None:
    text = str(result(checks=(AuditCheck("random", False, "two calls agree"),)))
    for part in ("Audit of scores", "0.6000 (0.5500 to 0.6500)", "epsilon at least 0.4", "FAILED", "two calls agree"):
        assert part in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": None}, "'name'"),
        ({"assuming": None}, "'assuming'"),
        ({"claim": (1.0, 0.0)}, "'claim'"),
        ({"releases": 0}, "'releases'"),
        ({"calls": -1}, "'calls'"),
        ({"pairs": 1.5}, "'pairs'"),
        ({"confidence": 1.0}, "'confidence'"),
        ({"epsilon_lower": math.nan}, "'epsilon_lower'"),
        ({"epsilon_lower": -0.1}, "'epsilon_lower'"),
        ({"detectable": math.nan}, "'detectable'"),
        ({"detectable": "1"}, "'detectable'"),
        ({"auc": (0.6, 0.7, 0.8)}, "'auc'"),
        ({"auc": (0.6, 0.5)}, "'auc'"),
        ({"tpr_at_1_percent": (0.1, math.nan, 0.2)}, "'tpr_at_1_percent'"),
        ({"fpr": np.zeros(4)}, "'fpr'"),
        ({"fpr": np.zeros(513), "tpr": np.zeros(513)}, "2 to 512 points"),
        ({"tpr": np.array([0, 1, math.inf, 1, 1])}, "'tpr'"),
        ({"edges": np.array([0.0, 1.0])}, "'edges'"),
        ({"edges": np.arange(62.0), "counts_in": np.zeros(61), "counts_out": np.zeros(61)}, "1 to 60"),
    ],
)
def test_bad_input_is_one_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        result(**changes)
    assert "\n" not in str(caught.value)


def test_an_incomplete_file_is_refused() -> None:
    data = result().to_dict()
    del data["edges"]
    for wrong in (data, None, [], result().to_dict() | {"checks": 3}, result().to_dict() | {"trajectory": [1]}):
        with pytest.raises(InvalidInput, match="not complete or not valid"):
            AuditResult.from_dict(wrong)
