"""What can go wrong, as types: one sentence that says what is wrong, what was got and what would be right."""

from __future__ import annotations

from typing import Any


class ScoreShieldError(Exception):
    """Base of every error that ScoreShield raises on purpose."""


class InvalidInput(ScoreShieldError, ValueError):
    """An argument, an array or a file is not what the function takes."""


class InvalidParameter(InvalidInput):
    """The value of one parameter breaks its constraint.

    Attributes:
        parameter: The name of the parameter.
        problem: What is wrong with it, such as "must be a positive number. Got -1 instead."
        function: The public function or class that was called, where it is known.
    """

    def __init__(self, parameter: str, problem: str, function: str | None = None) -> None:
        of = f" of {function}" if function else ""
        super().__init__(f"The '{parameter}' parameter{of} {problem}")
        self.parameter, self.problem, self.function = parameter, problem, function

    def name_function(self, function: str) -> None:
        """Add the name of the function that was called, unless the error has one already."""
        if self.function is None:
            InvalidParameter.__init__(self, self.parameter, self.problem, function)

    def __reduce__(self) -> tuple[Any, ...]:
        return InvalidParameter, (self.parameter, self.problem, self.function)


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


class BudgetExceeded(ScoreShieldError):
    """A charge would pass the limit; nothing was charged.

    Attributes
    ----------
    spent, asked, limit : epsilons at the budget's delta: what is charged already, what this charge costs by itself, and
        the most that may be spent.
    """

    def __init__(self, message: str, *, spent: float, asked: float, limit: float) -> None:
        super().__init__(message)
        self.spent = spent
        self.asked = asked
        self.limit = limit

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (str(self), self.spent, self.asked, self.limit)


def _rebuild(message: str, spent: float, asked: float, limit: float) -> BudgetExceeded:
    return BudgetExceeded(message, spent=spent, asked=asked, limit=limit)


class LedgerError(ScoreShieldError):
    """A ledger cannot be read or written, or is not what it was; nothing was released on its account."""


class LedgerWarning(UserWarning):
    """A ledger was made where one may have been expected, or everyone on this computer may read its file."""


class StoreError(ScoreShieldError):
    """A store of embeddings is empty, changed under way, cannot be reached or is not what it was said to be.

    Nothing was released or charged. The message holds no score, no vector and no text of the store's own errors.
    """


class DocumentsNotRead(StoreError):
    """A query was charged, and the documents of the records that it released could not be read.

    Attributes
    ----------
    ids : the released records of each query, best first. They are released values: whoever may see the answer may read
        these documents by other means. The same query, asked again, is answered without another charge.
    """

    def __init__(self, message: str, *, ids: tuple[tuple[Any, ...], ...]) -> None:
        super().__init__(message)
        self.ids = ids

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_not_read, (str(self), self.ids)


def _rebuild_not_read(message: str, ids: tuple[tuple[Any, ...], ...]) -> DocumentsNotRead:
    return DocumentsNotRead(message, ids=ids)
