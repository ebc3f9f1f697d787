"""The hash of labels, units and sums of a ledger, in small pieces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.privacy.ledger_units import _hash_labels

KEY = bytes(32)


def test_equal_labels_have_one_hash_whatever_array_holds_them() -> None:
    same = [np.array([1, 2, 200], dtype=kind) for kind in ("i8", "u1", "u2", "i2", ">i4", "u8")]
    assert len({_hash_labels(labels, KEY) for labels in same}) == 1
    texts = [np.array(["a", "bc"]), np.array(["a", "bc"], dtype="<U9"), np.array(["a", "bc"], dtype=">U2")]
    assert len({_hash_labels(labels, KEY) for labels in texts}) == 1
    assert _hash_labels(np.array([True, False]), KEY) == _hash_labels(np.array([1, 0]), KEY)


def test_other_labels_have_another_hash() -> None:
    labels = [
        np.array([1, 2]),
        np.array([2, 1]),
        np.array([1, 2, 2]),
        np.array([-1, 2]),
        np.array([2**64 - 1, 2], dtype=np.uint64),  # the same bits as -1, 2
        np.array(["1", "2"]),
        np.array([b"1", b"2"]),
        np.array(["12", ""]),
    ]
    assert len({_hash_labels(each, KEY) for each in labels}) == len(labels)
    assert _hash_labels(labels[0], KEY) != _hash_labels(labels[0], bytes(31) + b"1")


def test_what_another_process_charged_is_counted_before_the_next_charge(tmp_path: Path) -> None:
    """Two handles of one ledger: each catches up with what the other has written, and the limit holds for both."""
    rows, query = np.eye(6), np.ones(6)
    first = ss.Ledger.create(f"sqlite:///{tmp_path / 'l.db'}", epsilon=1.0, delta=0.0)
    second = ss.Ledger.open(f"sqlite:///{tmp_path / 'l.db'}")
    for number in range(8):
        handle = (first, second)[number % 2]
        ss.release_scores(rows, query, epsilon=0.125, mechanism="laplace", ledger=handle.account("six"))
        assert first.account("six").spent == second.account("six").spent == pytest.approx(0.125 * (number + 1))
    for handle in (first, second):
        with pytest.raises(ss.BudgetExceeded):
            ss.release_scores(rows, query, epsilon=0.125, mechanism="laplace", ledger=handle.account("six"))
    assert len(first.entries()) == 8
