"""What can be audited: a Python function, files of outputs that were made before, an HTTP endpoint.

Each becomes what :func:`scoreshield.audit.audit` takes, a callable from an (n, d) collection to one output. To an
endpoint go the collections that the auditor made up and its query, in one JSON object a request, and nothing else; to
the address that was named, and nowhere else: redirections and proxies are not followed.
"""

from __future__ import annotations

import hashlib
import http.client
import importlib
import inspect
import ipaddress
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._loading import describe_error
from scoreshield._validation import validate
from scoreshield.audit.deadline import Reply, left
from scoreshield.audit.saved import saved_outputs
from scoreshield.errors import InvalidInput

__all__ = ["Endpoint", "TargetError", "code_digest", "entry_point", "saved_outputs", "waited_for"]

Release = Callable[..., Any]  # from an (n, d) float32 array to an output

#: Statuses that may pass by themselves: time-out, too many requests, trouble at the server.
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_EXPLAINED = {
    401: "refuses the request for want of a key (status 401)",
    403: "refuses the request (status 403)",
    404: "knows no such path (status 404)",
    405: "takes no POST requests there (status 405)",
    413: "finds the collection too large (status 413)",
    422: "does not take what was sent (status 422)",
}
#: An answer longer than this is none: a million scores are 20 MB.
_LARGEST = 64 * 2**20
_LONGEST_PAUSE = 60.0
_LONGEST = 86_400.0  # a day; sockets overflow far beyond


class TargetError(InvalidInput):
    """What is audited does not answer, or not with what it should; a collection that it refuses is of that kind too."""


# ---- A Python function.


@validate()
def entry_point(text: str, *, query: ArrayLike | None = None, dimensions: int = 8) -> Release:
    """The function that ``module:function`` names, imported as from a program in the working folder.

    Parameters
    ----------
    query : handed over as ``query=`` where the function has a parameter of that name.
    dimensions : of the query, where the function asks for one and none is given: it is the first axis then.
    """
    module_name, _, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not all(part.isidentifier() for path in (module_name, name) for part in path.split(".")):
        _validation.reject("text", "of the form module:function", text)
    if (here := str(Path.cwd())) not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    found = _imported(module_name)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise InvalidInput(f"The module {module_name} holds no function {name!r}.")
    if not callable(found):
        raise InvalidInput(
            f"{text} must be a function from an (n, d) array to an output. Got a {type(found).__name__}."
        )
    if _is_asynchronous(found) or _is_asynchronous(type(found).__call__):
        raise InvalidInput(
            f"{text} is asynchronous (async def); wrap it in a plain function that waits for the outcome."
        )
    return _with_query(found, query, dimensions)


def waited_for(release: Release) -> Release:
    """The same function; what it leaves unfinished is refused in one sentence, instead of a warning later."""

    def call(embeddings: NDArray[Any]) -> Any:
        output = release(embeddings)
        if inspect.iscoroutine(output):
            output.close()
        if inspect.isawaitable(output):
            raise TargetError(
                "The release under audit is asynchronous; wrap it in a function that waits for the outcome."
            )
        return output

    return call


def code_digest(text: str) -> str:
    """Checksum of a function's code: the files of its module and of those from the working folder that it imported.

    Installed packages are left out. An audit that goes on with other code would mix the releases of two mechanisms.
    """
    module_name, here = text.partition(":")[0], Path.cwd().resolve()
    found = hashlib.sha256()
    for name, module in sorted(sys.modules.copy().items()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(file, str) or name == "__main__" or name.partition(".")[0] == "scoreshield":
            continue
        path = Path(file).resolve()
        if name == module_name or (path.is_relative_to(here) and "site-packages" not in path.parts):
            content = path.read_bytes() if path.is_file() else b""
            found.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
    return found.hexdigest()[:16]


def _is_asynchronous(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _with_query(release: Release, query: ArrayLike | None, dimensions: int) -> Release:
    try:
        parameter = inspect.signature(release).parameters.get("query")
    except (TypeError, ValueError):  # compiled functions may have no signature
        parameter = None
    if parameter is None or (query is None and parameter.default is not inspect.Parameter.empty):
        return release
    chosen = np.eye(1, _validation.check_count(dimensions, "dimensions"))[0] if query is None else query
    return partial(release, query=_vector(chosen))


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever its top level does
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (name == missing or name.startswith(f"{missing}.")):
            raise InvalidInput(f"There is no module {missing!r} here or among the installed ones.") from None
        said = describe_error(error)
        raise InvalidInput(f"The module {name} cannot be imported: {type(error).__name__}: {said}") from None


def _vector(query: ArrayLike) -> NDArray[np.float32]:
    must = "a vector of finite numbers"
    found = _validation.check_array(query, "query", must)
    if found.dtype.kind not in "fiu" or found.ndim != 1 or not found.size or not np.isfinite(found).all():
        _validation.reject("query", must, query)
    return found.astype(np.float32)


# ---- An HTTP endpoint.


class Endpoint:
    """A service that takes a collection and a query by POST and answers with scores; calling it is one release.

    Parameters
    ----------
    url : its address, http or https.
    query : sent with every collection; None sends none.
    embeddings_field, query_field : names in the JSON object that is sent.
    output_field : name in the one that comes back; dots lead into objects within it, as in "result.scores".
    timeout : seconds that one request may take in all: sending, the answer's head and its body; and as many again to
        find the server first.
    retries : how often a request is repeated that found no server, no answer in time, or a passing trouble.
    bearer : a key to send as "Authorization: Bearer ...", over https or to this machine alone.

    Attributes
    ----------
    retried : how many requests were repeated so far. The outputs of a service that fails now and then are those of its
        successes: if failing depends on private data, that is a leak which no score shows.
    """

    @validate()
    def __init__(
        self,
        url: str,
        query: ArrayLike | None = None,
        *,
        embeddings_field: str = "embeddings",
        query_field: str = "query",
        output_field: str = "scores",
        timeout: float = 30.0,
        retries: int = 3,
        bearer: str | None = None,
    ) -> None:
        self.url = url
        self._parts = _checked_url(url)
        self._fields = tuple(
            _checked_name(value, name)
            for name, value in (
                ("embeddings_field", embeddings_field),
                ("query_field", query_field),
                ("output_field", output_field),
            )
        )
        if embeddings_field == query_field:
            _validation.reject("query_field", "another name than embeddings_field", query_field)
        self._query = None if query is None else _vector(query).tolist()
        self.timeout = _validation.check_positive(timeout, "timeout")
        if self.timeout > _LONGEST:
            _validation.reject("timeout", f"at most {_LONGEST:,.0f} seconds", timeout)
        self.retries = _validation.check_count(retries, "retries", least=0)
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"} | _authorised(
            bearer, self._parts
        )
        self._connection: http.client.HTTPConnection | None = None
        self.retried = 0

    @validate()
    def __call__(self, embeddings: ArrayLike) -> NDArray[np.float64]:
        """One release of a collection: the numbers that the service answers with."""
        body = self._body(embeddings)
        for attempt in range(self.retries + 1):
            pause = min(0.25 * 2.0**attempt, 8.0)
            try:
                status, answer, asked = self._post(body)
            except TimeoutError:
                problem = f"did not answer within {self.timeout:g} seconds"
            except (OSError, http.client.HTTPException):
                problem = "cannot be reached, or broke the connection off"
            else:
                if 200 <= status < 300:
                    return self._numbers(answer)
                problem = _EXPLAINED.get(status, f"answered with status {status}")
                if 300 <= status < 400:
                    problem = f"sends requests elsewhere (status {status}), which an audit does not follow"
                if status not in _PASSING:
                    self.close()
                    raise TargetError(f"{self._name()} {problem}.")
                pause = min(max(pause, asked), _LONGEST_PAUSE)
            self.close()
            if attempt < self.retries:
                self.retried += 1
                time.sleep(pause)
        tries = "1 try" if not self.retries else f"{self.retries + 1} tries"
        raise TargetError(f"{self._name()} {problem} ({tries}).")

    def close(self) -> None:
        """Give the connection back; a later call opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _body(self, embeddings: ArrayLike) -> bytes:
        rows = _validation.check_array(embeddings, "embeddings", "an (n, d) array")
        if rows.ndim != 2 or rows.dtype.kind not in "fiu" or not rows.size or not np.isfinite(rows).all():
            _validation.reject("embeddings", "an (n, d) array of finite numbers", embeddings)
        sent: dict[str, Any] = {self._fields[0]: rows.astype(np.float32).tolist()}
        if self._query is not None:
            sent[self._fields[1]] = self._query
        return json.dumps(sent, separators=(",", ":")).encode()

    def _post(self, body: bytes) -> tuple[int, bytes, float]:
        """Status, answer, and the pause that the server asks for; TimeoutError when the time for it all is up."""
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
            self._connection = kind(self._parts.hostname or "", self._parts.port, timeout=self.timeout)
        connection = self._connection
        path = (self._parts.path or "/") + (f"?{self._parts.query}" if self._parts.query else "")
        if connection.sock is None:
            connection.connect()
        connection.sock.settimeout(self.timeout)
        end = time.monotonic() + self.timeout
        connection.response_class = partial(Reply, end=end)  # type: ignore[assignment]
        connection.request("POST", path, body, self._headers)
        reply = connection.getresponse()
        parts, size = [], 0
        while part := reply.read1(2**16):
            parts.append(part)
            size += len(part)
            if size > _LARGEST:
                raise TargetError(f"{self._name()} sent more than {_LARGEST // 2**20} MiB for one release.")
            left(end)
        reply.close()  # or the connection would not take the next request
        return reply.status, b"".join(parts), _seconds(reply.getheader("Retry-After"))

    def _numbers(self, answer: bytes) -> NDArray[np.float64]:
        """The released numbers out of an answer."""
        field = self._fields[2]
        try:
            found = json.loads(answer)
        except (ValueError, RecursionError):
            raise TargetError(f"{self._name()} answered with something that is no JSON.") from None
        for part in field.split("."):
            if not isinstance(found, dict) or part not in found:
                raise TargetError(f"{self._name()} answered without the field {field!r}; name its field of outputs.")
            found = found[part]
        try:
            numbers = np.asarray(found)
        except (ValueError, OverflowError):  # ragged
            numbers = np.empty(0, dtype=object)
        if numbers.dtype.kind not in "fiub" or not numbers.size or not np.isfinite(numbers).all():
            raise TargetError(f"{self._name()} answered with a field {field!r} that holds no array of finite numbers.")
        return numbers.astype(np.float64)

    def _name(self) -> str:
        return f"The endpoint at {self._parts.scheme}://{self._parts.netloc}{self._parts.path}"


def _checked_url(url: object) -> SplitResult:
    """An address; what is wrong with another is said without it, since it may hold a password."""
    try:
        parts = urlsplit(url) if isinstance(url, str) and url.isprintable() and " " not in url else None
        good = (
            parts is not None
            and parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
            and "@" not in parts.netloc
            and not parts.fragment
        )
        (parts.hostname or "").encode("idna") if parts is not None else None
    except ValueError:
        parts, good = None, False
    if not good or parts is None:
        raise InvalidInput(
            "The 'url' parameter of Endpoint must be an address that begins with http:// or https:// and names a host, "
            "without a user's name or '#'. Got something else instead."
        )
    return parts


def _checked_name(value: object, name: str) -> str:
    if not isinstance(value, str) or not value.strip(". "):
        _validation.reject(name, "the name of a JSON field", value)
    return value


def _authorised(bearer: str | None, parts: SplitResult) -> dict[str, str]:
    if bearer is None:
        return {}
    if not isinstance(bearer, str) or not bearer or not bearer.isascii() or not bearer.isprintable() or " " in bearer:
        raise InvalidInput(
            "The 'bearer' parameter of Endpoint must be printable ASCII without spaces. Got something else instead."
        )
    if parts.scheme == "http" and not _is_local(parts.hostname or ""):
        raise InvalidInput(
            f"A key to {parts.hostname} would go over plain http, for anyone on the way to read: use https."
        )
    return {"Authorization": f"Bearer {bearer}"}


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _seconds(header: str | None) -> float:
    """Retry-After in seconds; its other form, a date, is left aside."""
    return float(header) if header is not None and header.isascii() and header.isdigit() else 0.0
