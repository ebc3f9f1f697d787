"""What the interfaces of other programs share: one way to answer, errors in their form, filters on public fields."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from scoreshield.errors import LedgerError, ScoreShieldError
from scoreshield.service.answers import Payer
from scoreshield.service.collection import FieldValue
from scoreshield.service.core import Filter, RecordTest, ServedAnswer, ServedCollection
from scoreshield.service.offers import Query
from scoreshield.service.problems import ServiceProblem, describe_faults
from scoreshield.service.rest import JSON, MOST_CONDITIONS, CallerRequest, Document, answer_once

#: The statuses of problems that every path may answer with.
PROBLEM_STATUSES = (400, 401, 403, 404, 408, 410, 413, 422, 429, 431, 503)
#: Filters that are nested more deeply are rejected.
MOST_DEPTH = 8
_TOO_MANY = f"The filters of one request have at most {MOST_CONDITIONS} conditions."
_WRONG_FORM = "The request does not have the form that this interface takes."


@dataclass(frozen=True, eq=False)
class RankingRequest:
    """A part of the released ranking of one query.

    Attributes:
        query: The canonical query.
        k: How many records; None for the number of the policy.
        where: Which records. It chooses among the released ones.
    """

    query: Query
    k: int | None = None
    where: Filter | None = None


def answer_parts(served: ServedCollection, payer: Payer, parts: Sequence[RankingRequest]) -> list[ServedAnswer]:
    """Answer several queries. They are charged together or not at all, also where each asks for another part."""
    if len(parts) == 1:
        return served.search(payer, "search", [parts[0].query], parts[0].k, parts[0].where)
    largest = max((part.k for part in parts if part.k is not None), default=None)
    charged = served.search(payer, "search", [part.query for part in parts], largest)
    return [
        replace(stored, is_fresh=first.is_fresh)
        for part, first in zip(parts, charged, strict=True)
        for stored in served.search(payer, "search", [part.query], part.k, part.where)
    ]


async def respond(
    asked: CallerRequest,
    name: str,
    read: Callable[[ServedCollection], list[RankingRequest]],
    write: Callable[[ServedCollection, list[ServedAnswer]], dict[str, Any]],
    *,
    is_text: bool = False,
) -> Response:
    """Answer a search in the form of an interface. The same request gets the same bytes.

    Args:
        asked: The request and its caller.
        name: The collection.
        read: Reads what is asked for, before anything is charged.
        write: Writes the answers in the form of the interface.
        is_text: Whether ``read`` embeds a text.
    """

    def work(served: ServedCollection, payer: Payer, remember: Callable[[], None]) -> Document:
        parts = read(served)
        if len(parts) > asked.service.policy.installation.most_queries:
            raise ServiceProblem("too_many_queries")
        remember()
        answers = answer_parts(served, payer, parts)
        return write(served, answers), answers

    return await answer_once(asked, name, "search", work, is_text=is_text)


class ProblemRoute(APIRoute, ABC):
    """A route whose errors are answers of its own form."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except (RequestValidationError, HTTPException, ScoreShieldError) as error:
                problem = find_problem(error)
            return self.answer_problem(request, problem)

        return answer

    @classmethod
    @abstractmethod
    def answer_problem(cls, request: Request, problem: ServiceProblem) -> Response:
        """Answer a request that failed."""


class FormRoute(ProblemRoute):
    """A route whose errors have the form of another program's interface."""

    @classmethod
    def answer_problem(cls, request: Request, problem: ServiceProblem) -> Response:
        """Answer with the document of `write_error`."""
        del request
        return cls.make_response(problem)

    @classmethod
    def make_response(cls, problem: ServiceProblem) -> Response:
        """Write a problem in the form of the interface."""
        content = json.dumps(cls.write_error(problem), sort_keys=True).encode("ascii")
        return Response(content, problem.status, {**problem.headers, "x-problem-code": problem.code}, JSON)

    @staticmethod
    @abstractmethod
    def write_error(problem: ServiceProblem) -> dict[str, Any]:
        """Write a problem in the form of the interface."""


def describe_errors(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Describe the errors of an interface for OpenAPI: one form for every status."""
    return {status: {"model": model, "description": "A problem"} for status in PROBLEM_STATUSES}


def find_problem(error: Exception) -> ServiceProblem:
    """Find the problem that stands for an error. It holds no value of the request and no message of a lower layer."""
    if isinstance(error, ServiceProblem):
        return error
    if isinstance(error, RequestValidationError):
        return describe_faults(error.errors(), error.body)
    if isinstance(error, HTTPException):
        return ServiceProblem("invalid_json" if error.status_code == 400 else "invalid_request")
    return ServiceProblem("ledger_unavailable" if isinstance(error, LedgerError) else "internal_error")


def reject_form() -> ServiceProblem:
    """Make the problem of a request that does not have the form of its interface."""
    return ServiceProblem("invalid_request", _WRONG_FORM)


class FieldTests:
    """Makes the tests of public fields for one request, and counts its conditions.

    A field that is not public is a problem, before anything is charged. Filters are free, and each condition is tested
    on each released record, so their number is limited.
    """

    _COMPARISONS: ClassVar[dict[str, Callable[[float, float], bool]]] = {
        "gt": lambda value, bound: value > bound,
        "gte": lambda value, bound: value >= bound,
        "lt": lambda value, bound: value < bound,
        "lte": lambda value, bound: value <= bound,
    }

    def __init__(self, served: ServedCollection) -> None:
        self._fields = served.data.fields
        self._conditions = 0

    def count_condition(self) -> None:
        """Count one condition, or one group of conditions, of the filters of the request."""
        self._conditions += 1
        if self._conditions > MOST_CONDITIONS:
            raise ServiceProblem("invalid_request", _TOO_MANY)

    def find(self, name: Any) -> str:
        """Return the name of a public field."""
        if not isinstance(name, str):
            raise reject_form()
        if name not in self._fields:
            raise ServiceProblem("unknown_field")
        return name

    def is_one_of(self, name: Any, values: Any) -> RecordTest:
        """Test whether the field has one of these values. A truth value is no number."""
        field = self.find(name)
        if not isinstance(values, list) or not all(isinstance(one, str | bool) or _is_number(one) for one in values):
            raise reject_form()
        wanted = {(isinstance(one, bool), one) for one in values}
        return lambda record: (isinstance(record[field], bool), record[field]) in wanted

    def is_null(self, name: Any) -> RecordTest:
        """Test whether the field has no value."""
        field = self.find(name)
        return lambda record: record[field] is None

    def compare(self, name: Any, kind: Any, bound: Any) -> RecordTest:
        """Test the field against a bound: "gt", "gte", "lt" or "lte". Only numbers are compared."""
        field = self.find(name)
        if not isinstance(kind, str) or kind not in self._COMPARISONS or not _is_number(bound):
            raise reject_form()
        holds = self._COMPARISONS[kind]

        def test(record: Mapping[str, FieldValue]) -> bool:
            value = record[field]
            return isinstance(value, int | float) and not isinstance(value, bool) and holds(value, bound)

        return test


def _is_number(value: Any) -> bool:
    """Return whether a value of a request is a number. A NaN or an infinity is none."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)
