"""What an attacker can do: estimators of what was released, score-guided attacks on a matcher, membership tests."""

from scoreshield.attack import hillclimb, membership, reconstruction

__all__ = ["hillclimb", "membership", "reconstruction"]
