"""Made the ledgers beside it, with the code of commit 9031fe6 (format 1, rules 1, no table of sums).

They stand for ledgers that were written before, so they are never made again.
`tests/privacy/ledger/test_ledger_golden.py` reads them, compares what they say with ledgers.json and charges copies of
them further. Kept to show what is in them:

    python tests/golden/make_ledgers.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ledger_support import Promise, gaussian, pure

import scoreshield as ss
from scoreshield.privacy.ledger import Ledger
from scoreshield.privacy.profiles import CurveProfile, LaplaceProfile, StepProfile

ROWS = np.random.default_rng(5).standard_normal((6, 3))
GROUPS = np.arange(6) // 2


def mixed(ledger: Any) -> None:
    """Names, a fingerprint, charges to all; every kind of profile, pure and Gaussian in one account."""
    ledger.spend(pure(0.1), dataset="a", who="ada", why="first")
    for _ in range(7):
        ledger.spend(pure(0.1), dataset="a", who="ada")
    ledger.spend(gaussian(0.3), dataset="a", who="ada")
    ledger.spend(gaussian(0.4), dataset="b", who="ada")
    ledger.spend(gaussian(0.3), dataset="b", who="ada")
    ledger.spend(Promise(LaplaceProfile(0.7)), dataset="c", who="ada")
    ledger.spend(Promise(StepProfile(0.9, 0.4)), dataset="c", who="ada")
    ledger.spend(Promise(CurveProfile((0.0, 0.1, 0.3), (0.02, 0.01, 1e-10))), dataset="c", who="ada")
    ledger.spend(pure(0.3), dataset=ROWS, who="ada", why="by its fingerprint")
    ledger.spend(gaussian(0.05), who="ada", why="counts against all")
    ledger.spend(pure(0.05), who="ada")
    release = ss.release_scores(ROWS, ROWS[0], epsilon=0.5, delta=1e-8)
    ledger.spend(release, dataset="a", who="ada", why="a release")


def pure_only(ledger: Any) -> None:
    """Ten tenths are one, to the last digit: the budget of 'full' is spent whole."""
    for _ in range(10):
        ledger.spend(pure(0.1), dataset="full", who="ada")
    for value in (0.1, 0.2, 0.3, 0.15):
        ledger.spend(pure(value), dataset="near", who="ada")


def whole(ledger: Any) -> None:
    """The first charge takes the budget whole."""
    release = ss.release_scores(ROWS, ROWS[0], epsilon=1.0, delta=1e-6)
    ledger.spend(release, dataset="full", who="ada")
    ledger.spend(pure(0.25), dataset="rest", who="ada")


def identities(ledger: Any) -> None:
    """Units of format 1: counts of identities, without a hash of their labels."""
    for name, centroids, labels in (("raw", False, [GROUPS]), ("centroids", True, [GROUPS, np.arange(6) // 3])):
        for some in labels:
            adjacency = ss.Identity(some, centroids=centroids)
            release = ss.release_scores(ROWS, ROWS[0], epsilon=0.5, delta=1e-8, adjacency=adjacency)
            ledger.spend_all([release], dataset=name, who="ada", same_people=True)
    radius = ss.release_gram(ROWS, epsilon=0.5, delta=1e-8, adjacency=ss.GramRadius(0.5))
    ledger.spend(radius, dataset="radius", who="ada")


def names(ledger: Any) -> None:
    """Names that later rules reject: outer spaces, loose accents, compatibility forms, two scripts."""
    for name in (" faces", "faces ", "cafe\u0301", "\uff46aces", "f\u0430ces", "hmac-sha256:mine", "faces"):
        ledger.spend(pure(0.2), dataset=name, who="ada")


def empty(_: Any) -> None:
    """A ledger without an entry."""


LEDGERS = {
    "mixed": (mixed, 5.0, 1e-6),
    "pure": (pure_only, 1.0, 0.0),
    "whole": (whole, 1.0, 1e-6),
    "identities": (identities, 3.0, 1e-6),
    "names": (names, 1.0, 0.0),
    "empty": (empty, 2.0, 1e-6),
}


def main(folder: Path) -> None:
    facts = {}
    for name, (fill, epsilon, delta) in LEDGERS.items():
        ledger = Ledger(f"sqlite:///{folder / name}.db", epsilon=epsilon, delta=delta)
        fill(ledger)
        rooms = {None: ledger.headroom, **{dataset: ledger.headroom_on(dataset) for dataset in ledger.datasets()}}
        facts[name] = {
            "epsilon": epsilon,
            "delta": delta,
            "head": ledger.head(),
            "spent": ledger.spent,
            "spent_on": {dataset: ledger.spent_on(dataset) for dataset in ledger.datasets()},
            "room": {str(dataset or ""): [room.pure, room.mu, room.gaussian] for dataset, room in rooms.items()},
        }
        assert ledger.verify()
    (folder / "ledgers.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
