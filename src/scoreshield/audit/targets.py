"""What can be audited: a Python function, files of outputs that were made before, an HTTP endpoint.

A function and an endpoint become what `scoreshield.audit.audit` takes, a callable from an (n, d) collection to
one output. Files become the arrays that `scoreshield.audit.audit_outputs` takes.

An endpoint gets the collections that the auditor constructs and the auditor's query, in one JSON object per request,
and nothing else. Requests go to the named address only: redirects and proxies are not followed, and no cookie is sent
back.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import inspect
import ipaddress
import itertools
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _files, _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._loading import describe_error
from scoreshield._validation import check_count, check_positive, optional, validate, whole_from
from scoreshield.errors import InvalidInput

if TYPE_CHECKING:
    from scoreshield.audit.connection import Connection

__all__ = [
    "Endpoint",
    "ReleaseWrapper",
    "StatusError",
    "TargetError",
    "digest_code",
    "load_function",
    "read_saved_outputs",
    "reject_awaitables",
]

#: From an (n, d) float32 array to an output.
ReleaseFunction = Callable[..., Any]

#: Statuses of a temporary failure: time-out, too many requests, trouble at the server.
_TEMPORARY = (408, 425, 429, 500, 502, 503, 504)
#: Statuses of requests that ask wrongly: they say nothing about the collection. Others from 400 to 499 are outputs.
_WRONG_REQUESTS = (401, 403, 404, 405, 408, 413, 425, 429)
_EXPLANATIONS = {
    401: "rejects the request because it has no key (status 401)",
    403: "rejects the request (status 403)",
    404: "has no such path (status 404)",
    405: "accepts no POST requests there (status 405)",
    413: "rejects the collection as too large (status 413)",
    422: "does not accept the fields that were sent (status 422)",
}
#: The most bytes of one answer: a million scores are 20 MB.
_LARGEST = 64 * 2**20
#: The longest pause in seconds before a request is repeated.
_LONGEST_PAUSE = 60.0
#: The types of JSON numbers, and the most axes of an array.
_NUMBERS, _MOST_AXES = {bool, int, float}, 32
#: The longest time-out in seconds, a day.
_LONGEST_TIMEOUT = 86_400.0


#: The error for a wrong address does not repeat it, since it may hold a password.
_BAD_URL = (
    "The 'url' parameter of Endpoint must be an address that begins with http:// or https:// and names a host, "
    "without a user's name or '#'. Got something else instead."
)


class TargetError(InvalidInput):
    """The target does not answer, answers with something else than outputs, or rejects every collection."""


class StatusError(Exception):
    """A service rejected a collection, after it had answered for others. For an audit this is an output.

    Args:
        status: The status of its answer, from 400 to 499.

    Attributes:
        status: That status.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class ReleaseWrapper:
    """A release that is called through another function, such as one that saves its outputs.

    It has a method `with_query` where the release takes a query: the same release of another query, wrapped alike.

    Args:
        release: The release.
        wrap: Called with the release and None, or with the release of another query and that query. It returns what is
            called instead.
    """

    with_query: Callable[[Any], ReleaseWrapper]

    def __init__(self, release: ReleaseFunction, wrap: Callable[[ReleaseFunction, Any], ReleaseFunction]) -> None:
        self._call = wrap(release, None)
        change = _find_query_change(release)
        if change is not None:
            self.with_query = lambda query: ReleaseWrapper(change(query), lambda other, _: wrap(other, query))

    def __call__(self, embeddings: NDArray[Any]) -> Any:
        return self._call(embeddings)


def _find_query_change(release: ReleaseFunction) -> Callable[[Any], ReleaseFunction] | None:
    """Find what makes the same release of another query; None where it takes no query."""
    if isinstance(release, partial) and "query" in release.keywords:
        return lambda query: partial(release, query=query)
    return getattr(release, "with_query", None)


def _check_query(value: Any, name: str) -> NDArray[np.float32]:
    must = "a vector of finite numbers, or a batch of such, one per row"
    query = _validation.check_array(value, name, must)
    if query.dtype.kind not in "fiu" or query.ndim not in (1, 2) or not query.size or not np.isfinite(query).all():
        _validation.reject(name, must, value)
    return query.astype(np.float32)


# ---- A Python function.


def _check_path_of_function(value: Any, name: str) -> str:
    module_name, _, function = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not all(part.isidentifier() for path in (module_name, function) for part in path.split(".")):
        _validation.reject(name, "of the form module:function", value)
    return str(value)


@validate(text=_check_path_of_function, query=optional(_check_query), dimensions=check_count)
def load_function(text: str, *, query: ArrayLike | None = None, dimensions: int = 8) -> ReleaseFunction:
    """Import the function that `module:function` names, as a program in the working folder would.

    Args:
        text: The module and the function.
        query: One query, or a batch with one per row. It is passed as `query=` where the function has such a parameter.
        dimensions: The length of the query where the function needs one and none is given. It is the first axis then.

    Returns:
        The function, with the query bound where there is one.

    Raises:
        InvalidInput: The module cannot be imported, or has no such function, or the function is asynchronous.
    """
    module_name, _, name = text.partition(":")
    if (here := str(Path.cwd())) not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    function = _import_module(module_name)
    for part in name.split("."):
        function = getattr(function, part, None)
    if function is None:
        raise InvalidInput(f"The module {module_name} holds no function {name!r}.")
    if not callable(function):
        raise InvalidInput(
            f"{text} must be a function from an (n, d) array to an output. Got a {type(function).__name__}."
        )
    if _is_asynchronous(function) or _is_asynchronous(type(function).__call__):
        raise InvalidInput(
            f"{text} is asynchronous (async def); wrap it in a plain function that waits for the outcome."
        )
    return bind_query(function, query, dimensions)


def reject_awaitables(release: ReleaseFunction) -> ReleaseFunction:
    """Wrap a function so that an output which must be awaited raises `TargetError`, and no warning later."""

    def wrap(inner: ReleaseFunction, _: Any) -> ReleaseFunction:
        def call(embeddings: NDArray[Any]) -> Any:
            output = inner(embeddings)
            if inspect.iscoroutine(output):
                output.close()
            if inspect.isawaitable(output):
                raise TargetError(
                    "The release under audit is asynchronous; wrap it in a function that waits for the outcome."
                )
            return output

        return call

    return ReleaseWrapper(release, wrap)


def digest_code(text: str) -> str:
    """Compute a checksum of a function's code: of its module and of the modules of the working folder that it imports.

    Installed packages are left out. An audit that is resumed with other code would mix releases of two mechanisms.

    Args:
        text: `module:function`, already imported.
    """
    module_name, here = text.partition(":")[0], Path.cwd().resolve()
    digest = hashlib.sha256()
    for name, module in sorted(sys.modules.copy().items()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(file, str) or name == "__main__" or name.partition(".")[0] == "scoreshield":
            continue
        path = Path(file).resolve()
        if name == module_name or (path.is_relative_to(here) and "site-packages" not in path.parts):
            content = path.read_bytes() if path.is_file() else b""
            digest.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
    return digest.hexdigest()[:16]


def _is_asynchronous(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def bind_query(release: ReleaseFunction, query: ArrayLike | None, dimensions: int) -> ReleaseFunction:
    """Bind the query of a function that has a parameter of that name; without one, the first axis if it is needed."""
    try:
        parameter = inspect.signature(release).parameters.get("query")
    except (TypeError, ValueError):  # compiled functions may have no signature
        parameter = None
    if parameter is None or (query is None and parameter.default is not inspect.Parameter.empty):
        return release
    return partial(release, query=np.eye(1, dimensions, dtype=np.float32)[0] if query is None else query)


def _import_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the module is not our code; it may even call sys.exit()
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (name == missing or name.startswith(f"{missing}.")):
            raise InvalidInput(f"There is no module {missing!r} here or among the installed ones.") from None
        reason = describe_error(error)
        raise InvalidInput(f"The module {name} cannot be imported: {type(error).__name__}: {reason}") from None


# ---- Files of outputs.


def read_saved_outputs(
    with_record: str | Path, without_record: str | Path | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Read outputs that were made before: one row per release, with the record and without it.

    Columns of two .parquet files are matched by name, in the order of the first.

    Args:
        with_record: A .npy, .npz or .parquet file; or one .npz that holds both sides, in arrays named "with" and
            "without".
        without_record: The other side; None where `with_record` holds both.

    Returns:
        Two (m, k) arrays.

    Raises:
        InvalidInput: The files hold no finite numbers, or their shapes or columns differ.
    """
    if without_record is None:
        if Path(with_record).suffix.lower() != ".npz":
            raise InvalidInput(
                f"{with_record} holds the outputs with the record; a second file must hold those without it."
            )
        both = [_files.read_array(with_record, name=name) for name in ("with", "without")]
    else:
        both = [_files.read_array(path) for path in (with_record, without_record)]
    paths = (with_record, with_record if without_record is None else without_record)
    first, second = (_flatten_rows(array, path) for array, path in zip(both, paths, strict=True))
    shapes = [array.shape[1:] or (1,) for array in both]  # before they are flattened: (2, 4) is not (4, 2)
    if shapes[0] != shapes[1]:
        raise InvalidInput(
            f"Both sides must hold outputs of one shape. Got {shapes[0]} with the record and {shapes[1]} without it."
        )
    if all(Path(path).suffix.lower() == ".parquet" for path in paths):
        second = second[:, _match_columns(*map(_list_columns, paths))]
    return first, second


def _list_columns(path: str | Path) -> list[str]:
    """List the names of the columns that `_files.read_array` reads of a .parquet file, in its order."""
    import pyarrow.parquet as parquet
    from pyarrow import types

    fields = list(parquet.read_schema(path))
    lists = [
        field.name
        for field in fields
        if types.is_list(field.type) or types.is_large_list(field.type) or types.is_fixed_size_list(field.type)
    ]
    return lists or [field.name for field in fields if types.is_floating(field.type) or types.is_integer(field.type)]


def _match_columns(first: list[str], second: list[str]) -> Any:
    """Find the positions of the first file's columns in the second file."""
    if first == second:
        return slice(None)
    if len(set(first)) < len(first) or sorted(first) != sorted(second):
        apart = sorted(set(first) ^ set(second)) or first
        raise InvalidInput(f"Both .parquet files must have the same columns, each once. They differ in {apart[0]!r}.")
    return [second.index(name) for name in first]


def _flatten_rows(array: NDArray[Any], path: str | Path) -> NDArray[np.float64]:
    if array.dtype.kind not in "fiub" or array.ndim < 1 or not array.size:
        raise InvalidInput(
            f"{path} must hold numbers, one row per release. Got shape {array.shape}, type {array.dtype}."
        )
    rows = array.astype(np.float64).reshape(len(array), -1)
    if not np.isfinite(rows).all():
        bad = int((~np.isfinite(rows)).any(axis=1).sum())
        raise InvalidInput(f"{path} must hold finite numbers. Got NaN or infinities in {bad} of {len(rows)} rows.")
    return rows


# ---- An HTTP endpoint.


def _check_timeout(value: Any, name: str) -> float:
    timeout = check_positive(value, name)
    if timeout > _LONGEST_TIMEOUT:
        _validation.reject(name, f"at most {_LONGEST_TIMEOUT:,.0f} seconds", value)
    return timeout


def _check_field(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip(". "):
        _validation.reject(name, "the name of a JSON field", value)
    return value


class Endpoint:
    """A service that takes a collection and a query by POST and answers with an output. A call is one release.

    The output may be any JSON value. A collection that the service rejects, after it has answered for another one,
    raises `StatusError`, which an audit takes for an output.

    Args:
        url: Its address, http or https.
        query: One query, or a batch with one per row. It is sent with every collection; None sends none.
        embeddings_field: The name of the collection in the JSON object that is sent.
        query_field: The name of the query in it.
        output_field: The name of the output in the JSON object of the answer. Dots lead into objects within it, as in
            "result.scores".
        timeout: Seconds that one request may take in all: connecting, sending, and the head and body of the answer. The
            lookup of the host's name is not part of them.
        retries: How often a request is repeated that found no server, no answer in time, or a temporary failure.
        bearer: A key to send as "Authorization: Bearer ...", only over https or to this machine.

    Attributes:
        url: The address.
        timeout: The time-out.
        retries: The number of retries.
        has_answered: Whether the service answered with an output before. Set it where an earlier run showed that.

    Raises:
        InvalidInput: A setting makes no sense, or httpx is not installed.
    """

    @clear_frames_on_error  # the key
    @validate(
        query=optional(_check_query),
        embeddings_field=_check_field,
        query_field=_check_field,
        output_field=_check_field,
        timeout=_check_timeout,
        retries=whole_from(0),
    )
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
        self.url, self.timeout, self.retries, self.has_answered = url, timeout, retries, False
        self._retried, self._others = 0, list[Endpoint]()
        self._parts = _parse_url(url)
        if embeddings_field == query_field:
            _validation.reject("query_field", "another name than embeddings_field", query_field)
        self._embeddings_field, self._query_field, self._output_field = embeddings_field, query_field, output_field
        self._query = None if query is None else np.asarray(query).tolist()
        # "identity": an answer that is compressed could grow beyond the limit before it is counted.
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        self._headers |= {"Accept-Encoding": "identity"} | _make_authorisation(bearer, self._parts)
        self._connection = _make_connection(url)

    @property
    def retried(self) -> int:
        """How many requests were repeated so far, also by endpoints that `with_query` made.

        The audit sees only the outputs of successful requests: if temporary failures depend on private data, that is a
        leak that no output shows.
        """
        return self._retried + sum(other.retried for other in self._others)

    @validate(query=_check_query)
    def with_query(self, query: ArrayLike) -> Endpoint:
        """Return an endpoint of the same service that sends another query.

        Both use one connection, because a service that serves one connection at a time would not answer on a second.

        Args:
            query: One query, or a batch with one per row.
        """
        other = copy.copy(self)
        other._query, other._headers = np.asarray(query).tolist(), dict(self._headers)
        other._retried, other._others = 0, []
        self._others.append(other)
        return other

    @validate()
    def __call__(self, embeddings: ArrayLike) -> Any:
        """Draw one release of a collection.

        Args:
            embeddings: The collection.

        Returns:
            The output: an array where the answer holds numbers, otherwise its JSON value.

        Raises:
            TargetError: The service does not answer, or not with an output.
            StatusError: The service rejects this collection, and has answered for another one before.
        """
        body = self._make_body(embeddings)
        for attempt in range(self.retries + 1):
            pause = min(0.25 * 2.0**attempt, 8.0)
            try:
                answer = self._connection.post(self._headers, body, self.timeout)
            except TimeoutError:
                problem = f"did not answer within {self.timeout:g} seconds"
            except ConnectionError:
                problem = "cannot be reached, or broke the connection off"
            else:
                if answer.body is None:
                    self._connection.close()
                    raise TargetError(f"{self._describe()} sent more than {_LARGEST // 2**20} MiB for one release.")
                if 200 <= answer.status < 300:
                    output = self._read_output(answer.body)
                    self.has_answered = True
                    return output
                if self.has_answered and 400 <= answer.status < 500 and answer.status not in _WRONG_REQUESTS:
                    raise StatusError(answer.status)
                problem = _EXPLANATIONS.get(answer.status, f"answered with status {answer.status}")
                if 300 <= answer.status < 400:
                    problem = f"redirects requests (status {answer.status}), which an audit does not follow"
                if answer.status not in _TEMPORARY:
                    self._connection.close()
                    raise TargetError(f"{self._describe()} {problem}.")
                pause = min(max(pause, answer.pause), _LONGEST_PAUSE)
            self._connection.close()
            if attempt < self.retries:
                self._retried += 1
                time.sleep(pause)
        tries = "1 try" if not self.retries else f"{self.retries + 1} tries"
        raise TargetError(f"{self._describe()} {problem} ({tries}).")

    def close(self) -> None:
        """Close the connection, which endpoints of `with_query` share. A later call opens another one."""
        self._connection.close()

    def _make_body(self, embeddings: ArrayLike) -> bytes:
        rows = _validation.check_array(embeddings, "embeddings", "an (n, d) array")
        if rows.ndim != 2 or rows.dtype.kind not in "fiu" or not rows.size or not np.isfinite(rows).all():
            _validation.reject("embeddings", "an (n, d) array of finite numbers", embeddings)
        fields: dict[str, Any] = {self._embeddings_field: rows.astype(np.float32).tolist()}
        if self._query is not None:
            fields[self._query_field] = self._query
        return json.dumps(fields, separators=(",", ":")).encode()

    def _read_output(self, body: bytes) -> Any:
        field = self._output_field
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            raise TargetError(f"{self._describe()} answered with something that is not JSON.") from None
        for part in field.split("."):
            if not isinstance(value, dict) or part not in value:
                raise TargetError(
                    f"{self._describe()} answered without the field {field!r}; name its field of outputs."
                )
            value = value[part]
        if not _holds_numbers(value):
            return value
        try:
            numbers = np.asarray(value)
        except ValueError:  # ragged
            return value
        return numbers.astype(np.float64) if numbers.dtype.kind in "fiub" else value

    def _describe(self) -> str:
        return f"The endpoint at {self._parts.scheme}://{self._parts.netloc}{self._parts.path}"


def _holds_numbers(value: Any) -> bool:
    """Whether a JSON value is a number, or lists of nothing but numbers. NumPy would also convert texts and null."""
    depth = 0
    while isinstance(value, list):
        kinds = set(map(type, value))
        if kinds != {list}:
            return bool(kinds) and kinds <= _NUMBERS
        value, depth = list(itertools.chain.from_iterable(value)), depth + 1
        if depth > _MOST_AXES:
            return False
    return type(value) in _NUMBERS


def _make_connection(url: str) -> Connection:
    try:
        from scoreshield.audit import connection
    except ImportError:
        raise InvalidInput(
            "The audit of an endpoint needs the 'audit' extra: pip install 'scoreshield[audit]'."
        ) from None
    try:
        return connection.Connection(url, _LARGEST)
    except connection.InvalidURL:
        raise InvalidInput(_BAD_URL) from None


def _parse_url(url: object) -> SplitResult:
    try:
        parts = urlsplit(url) if isinstance(url, str) and url.isprintable() and " " not in url else None
        is_valid = (
            parts is not None
            and parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
            and "@" not in parts.netloc
            and not parts.fragment
        )
        (parts.hostname or "").encode("idna") if parts is not None else None
    except ValueError:
        parts, is_valid = None, False
    if not is_valid or parts is None:
        raise InvalidInput(_BAD_URL)
    return parts


def _make_authorisation(bearer: str | None, parts: SplitResult) -> dict[str, str]:
    if bearer is None:
        return {}
    if not isinstance(bearer, str) or not bearer or not bearer.isascii() or not bearer.isprintable() or " " in bearer:
        raise InvalidInput(
            "The 'bearer' parameter of Endpoint must be printable ASCII without spaces. Got something else instead."
        )
    if parts.scheme == "http" and not _is_local(parts.hostname or ""):
        raise InvalidInput(
            f"A key to {parts.hostname} would be sent over plain http, where others can read it: use https."
        )
    return {"Authorization": f"Bearer {bearer}"}


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
