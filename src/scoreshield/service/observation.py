"""What may be known about a request afterwards: its path, its outcome and a class of its duration.

Logs, metrics and traces are made of these facts alone. So none of them holds a query, an id, a score or an exact time.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, NamedTuple

#: Coarse classes of duration, with their upper ends: an exact time could depend on a record.
DURATIONS = ((0.1, "below 0.1 s"), (1.0, "below 1 s"), (10.0, "below 10 s"))
LONGEST = "10 s or more"
_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")


class RequestFacts(NamedTuple):
    """The public facts of one request.

    Attributes:
        method: The method; "other" for one that no path takes.
        path: The path with the names of its parameters, not their values; "unknown" where there is none.
        status: The status of the response.
        code: The code of the problem; empty where there is none.
        caller: Who sent it; empty where the key was not valid.
        duration: The class of its duration.
        source: "stored" or "fresh" where a query was answered; otherwise empty.
    """

    method: str
    path: str
    status: int
    code: str
    caller: str
    duration: str
    source: str


Observer = Callable[[RequestFacts], None]


def read_facts(scope: MutableMapping[str, Any], status: int, code: str, seconds: float) -> RequestFacts:
    """Read the facts of a request that has ended.

    Args:
        scope: The request, as ASGI describes it.
        status: The status of the response.
        code: The code of the problem.
        seconds: How long it took. Only its class is kept.
    """
    state = scope.get("state", {})
    is_fresh = state.get("is_fresh")
    return RequestFacts(
        scope["method"] if scope["method"] in _METHODS else "other",
        getattr(scope.get("route"), "path", "unknown"),
        status,
        code,
        state.get("caller", ""),
        next((name for limit, name in DURATIONS if seconds < limit), LONGEST),
        "" if is_fresh is None or status != 200 else "fresh" if is_fresh else "stored",
    )
