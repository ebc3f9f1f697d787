"""Ledgers that an earlier version wrote load, verify, say the same and can be charged further."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from ledger_support import gaussian, pure

import scoreshield as ss
from scoreshield.privacy.ledger import Ledger

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
FACTS: dict[str, Any] = json.loads((GOLDEN / "ledgers.json").read_text())


@pytest.fixture(params=list(FACTS))
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Ledger, dict[str, Any]]:
    return opened(request.param, tmp_path), FACTS[request.param]


def opened(name: str, folder: Path) -> Ledger:
    path = folder / f"{name}.db"
    shutil.copyfile(GOLDEN / path.name, path)
    path.chmod(0o600)
    return Ledger.open(f"sqlite:///{path}")


def says(ledger: Ledger, facts: dict[str, Any]) -> None:
    assert (ledger.epsilon, ledger.delta) == (facts["epsilon"], facts["delta"])
    assert ledger.verify()
    assert ledger.verify(head=facts["head"])
    assert ledger.spent == facts["spent"]
    assert {name: ledger.spent_on(name) for name in ledger.datasets()} == facts["spent_on"]
    for name, (largest, mu, epsilon) in facts["room"].items():
        room = ledger.headroom_on(name or None)
        assert (room.pure, room.mu, room.gaussian) == (largest, mu, epsilon)


def test_it_says_what_it_said(golden: tuple[Ledger, dict[str, Any]]) -> None:
    ledger, facts = golden
    assert ledger.head() == facts["head"]
    says(ledger, facts)


def test_it_is_charged_further(golden: tuple[Ledger, dict[str, Any]]) -> None:
    ledger, facts = golden
    before = ledger.entries()
    ledger.spend(pure(0.01), dataset="another")
    assert ledger.entries()[:-1] == before
    assert ledger.spent_on("another") >= 0.01
    assert ledger.verify(head=facts["head"])
    assert {name: ledger.spent_on(name) for name in facts["spent_on"]} == facts["spent_on"]
    again = Ledger.open(ledger.name)
    assert again.verify()
    assert again.spent_on("another") == ledger.spent_on("another")


def test_every_account_goes_stood(golden: tuple[Ledger, dict[str, Any]]) -> None:
    """Every account goes on from where it stood."""
    ledger, facts = golden
    for name, before in facts["spent_on"].items():
        units = {entry.unit for entry in ledger.entries() if entry.dataset == name}
        if units != {"replacement"}:
            continue
        room = ledger.headroom_on(name).pure
        if room:
            with pytest.raises(ss.BudgetExceeded):
                ledger.spend(pure(room * 1.001), dataset=name)
            ledger.spend(pure(room), dataset=name)
            assert ledger.spent_on(name) > before
        with pytest.raises(ss.BudgetExceeded):
            ledger.spend(pure(0.01), dataset=name)
    assert ledger.verify(head=facts["head"])


def test_budget_exactly_full_holds_takes_no_more(tmp_path: Path) -> None:
    """A budget that is exactly full holds and takes no more."""
    for name, charge in (("pure", pure(1e-9)), ("whole", pure(1e-9)), ("whole", gaussian(1e-6))):
        ledger = opened(name, tmp_path)
        assert ledger.verify()
        with pytest.raises(ss.BudgetExceeded):
            ledger.spend(charge, dataset="full")


@pytest.mark.parametrize(("name", "centroids"), [("raw", False), ("centroids", True)])
def test_identities_without_hash_labels_need(tmp_path: Path, name: str, centroids: bool) -> None:
    """Identities without a hash of their labels need the callers word."""
    ledger = opened("identities", tmp_path)
    promise = pure(0.01, adjacency=ss.Identity([0, 0, 1, 1, 2, 2], centroids=centroids))
    with pytest.raises(ss.InvalidInput, match="without a hash of its labels, as earlier versions wrote it"):
        ledger.spend(promise, dataset=name)
    ledger.spend(promise, dataset=name, same_people=True)
    with pytest.raises(ss.InvalidInput, match="do not add up"):
        ledger.spend(pure(0.01), dataset=name, same_people=True)
    ledger.spend(pure(0.01, adjacency=ss.GramRadius(0.5)), dataset="radius")
    assert ledger.verify(head=FACTS["identities"]["head"])


def test_names_rejected_now_still_reached(tmp_path: Path) -> None:
    """Names that are rejected now are still reached."""
    ledger = opened("names", tmp_path)
    for name in ledger.datasets():
        assert ledger.account(name).dataset == name, "as it was written, composed or not"
        assert ledger.account(name).spend(pure(0.1)).dataset == name
        assert ledger.spent_on(name) == pytest.approx(0.3)
    assert len(ledger.datasets()) == 7
    with pytest.raises(ss.InvalidInput, match="must be a name"):
        ledger.account("faces  ")
    assert ledger.account("caf\u00e9").spent == 0.0, "a new name in its one spelling"
