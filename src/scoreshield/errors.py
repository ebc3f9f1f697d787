"""The errors of ScoreShield. Each message says in one sentence what is wrong, what was given and what is expected."""

from __future__ import annotations

from typing import Any, cast


class ScoreShieldError(Exception):
    """Base class of all errors that ScoreShield raises on purpose. Processes exchange them with their attributes."""

    def __reduce__(self) -> tuple[Any, ...]:
        kept = cast("tuple[Any, ...]", super().__reduce__())  # an OSError keeps its file name outside of its args
        return _rebuild, (type(self), kept[1], vars(self))


def _rebuild(kind: type[ScoreShieldError], args: tuple[Any, ...], attributes: dict[str, Any]) -> ScoreShieldError:
    """Make an error without its constructor, whose arguments differ from class to class."""
    error = kind.__new__(kind, *args)
    vars(error).update(attributes)
    return error


class InvalidInput(ScoreShieldError, ValueError):
    """An argument, an array or a file has the wrong form."""


class InvalidParameter(InvalidInput):
    """The value of one parameter breaks its constraint.

    Attributes:
        parameter: The name of the parameter.
        problem: What is wrong with it, such as "must be a positive number. Got -1 instead."
        function: The public function or class that was called, if it is known.
    """

    def __init__(self, parameter: str, problem: str, function: str | None = None) -> None:
        of = f" of {function}" if function else ""
        super().__init__(f"The '{parameter}' parameter{of} {problem}")
        self.parameter, self.problem, self.function = parameter, problem, function

    def name_function(self, function: str) -> None:
        """Add the name of the public function, unless the error already has one."""
        if self.function is None:
            InvalidParameter.__init__(self, self.parameter, self.problem, function)


class InvalidRow(InvalidInput):
    """One row of an array holds a NaN or an infinity.

    Attributes:
        parameter: The name of the parameter that the array was given for.
        row: The number of the row.
    """

    def __init__(self, parameter: str, row: int) -> None:
        super().__init__(f"Row {row} of '{parameter}' holds a NaN or an infinity; give finite numbers only.")
        self.parameter, self.row = parameter, row


class InvalidArrayFile(InvalidInput):
    """A file is of no kind that holds arrays, or holds several of which none was named.

    Attributes:
        path: The file, as it was given.
        problem: What is wrong, such as "must be an .npy file".
        is_ambiguous: Whether it holds several arrays, so that a name would help.
    """

    def __init__(self, path: object, problem: str, *, is_ambiguous: bool = False) -> None:
        super().__init__(f"{path} {problem}{'; say which one by name' * is_ambiguous}.")
        self.path, self.problem, self.is_ambiguous = str(path), problem, is_ambiguous


class InvalidCalibration(ScoreShieldError, ValueError):
    """A closed-form rule does not give the privacy that it claims.

    Attributes:
        true_delta: The true delta of the rule's scale at the requested epsilon.
        true_epsilon: The true epsilon of the rule's scale at the requested delta.
        analytic_scale: The least scale that meets the requested pair.
    """

    def __init__(self, message: str, *, true_delta: float, true_epsilon: float, analytic_scale: float) -> None:
        super().__init__(message)
        self.true_delta = true_delta
        self.true_epsilon = true_epsilon
        self.analytic_scale = analytic_scale


class FileError(ScoreShieldError, OSError):
    """A file could not be read or written. No partial file was left behind."""


class BudgetExceeded(ScoreShieldError):
    """A charge would pass the limit. Nothing was charged.

    All three attributes are epsilons at the budget's delta.

    Attributes:
        spent: The total of earlier charges.
        asked: The cost of this charge by itself.
        limit: The limit of the budget.
    """

    def __init__(self, message: str, *, spent: float, asked: float, limit: float) -> None:
        super().__init__(message)
        self.spent = spent
        self.asked = asked
        self.limit = limit


class LedgerError(ScoreShieldError):
    """A ledger cannot be read or written, or was changed from outside. Nothing was released on its account."""


class LedgerWarning(UserWarning):
    """A ledger was created where the caller may have expected one, or every user of this computer may read its file."""


class TailShapeWarning(UserWarning):
    """A shape of the tail of scores was measured with embeddings of another dimension than those of a release."""


class UselessRelease(UserWarning):
    """A release is predicted to find less than half of what it would find without privacy. Nothing was charged yet.

    The message names the cheapest change that is predicted to help. The prediction reads public facts only.
    """


class StoreError(ScoreShieldError):
    """A store of embeddings is empty, changed during a call, cannot be reached or is not of the stated kind.

    Nothing was released or charged, unless it is a `DocumentsNotRead`. The message holds no score, no vector and no
    text of the store's own errors.
    """


class DocumentsNotRead(StoreError):
    """A query was charged, but the documents of its released records could not be read.

    Attributes:
        ids: The released records of each query, best first. They are released values, so everyone who may see the
            answer may read these documents by other means. Repeating the same query costs nothing.
    """

    def __init__(self, message: str, *, ids: tuple[tuple[Any, ...], ...]) -> None:
        super().__init__(message)
        self.ids = ids
