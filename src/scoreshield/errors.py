"""What can go wrong, as types: one sentence that says what is wrong, what was got and what would be right."""

from __future__ import annotations


class ScoreShieldError(Exception):
    """Base of every error that ScoreShield raises on purpose."""


class InvalidInput(ScoreShieldError, ValueError):
    """An argument, an array or a file is not what the function takes."""


class InvalidCalibration(ScoreShieldError, ValueError):
    """A closed-form rule was asked for where it does not give the privacy it names.

    Attributes
    ----------
    true_delta : the delta that the refused scale really has at the asked epsilon.
    true_epsilon : the epsilon that the refused scale really has at the asked delta.
    analytic_scale : the least scale that does meet the asked pair.
    """

    def __init__(self, message: str, *, true_delta: float, true_epsilon: float, analytic_scale: float) -> None:
        super().__init__(message)
        self.true_delta = true_delta
        self.true_epsilon = true_epsilon
        self.analytic_scale = analytic_scale


class FileError(ScoreShieldError, OSError):
    """A file could not be read or written; nothing was left half-written."""
