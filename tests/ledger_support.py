"""Promises that a ledger can be charged with, for the tests of ledgers and for the processes that they start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import scoreshield as ss
from scoreshield.privacy.profiles import GaussianProfile, Profile, PureProfile

RECORD = ss.Replacement()


@dataclass(frozen=True)
class Promise:
    """What a ledger reads of a guarantee, and nothing else."""

    profile: Profile
    sampler: str = "exact"
    adjacency: ss.Adjacency = RECORD
    mechanism: str = "test"

    def to_dict(self) -> dict[str, Any]:
        return {
            "mechanism": self.mechanism,
            "epsilon": self.profile.epsilon_at(1e-6),
            "delta": 1e-6,
            "sampler": self.sampler,
            "adjacency": self.adjacency.to_dict(),
        }


def pure(epsilon: float, **more: Any) -> Promise:
    return Promise(PureProfile(epsilon), **more)


def gaussian(mu: float, **more: Any) -> Promise:
    return Promise(GaussianProfile(mu), **more)
