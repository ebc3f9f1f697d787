"""What an attacker can do: estimators of what was released, and score-guided attacks on a matcher."""

from scoreshield.attack import hillclimb, reconstruction

__all__ = ["hillclimb", "reconstruction"]
