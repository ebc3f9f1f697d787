"""Attacks on releases: reconstruction of clean scores, score-guided attacks on a matcher, membership tests."""

from scoreshield.attack import hillclimb, membership, reconstruction

__all__ = ["hillclimb", "membership", "reconstruction"]


def __dir__() -> list[str]:
    return list(__all__)
