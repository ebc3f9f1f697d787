"""A chat model behind an OpenAI-compatible server, for generating and judging answers.

The `openai` package (the 'rag' extra) sends the requests. It repeats a request after status 408, 409, 429 or 5xx,
a time-out or a lost connection. The pauses are 0.5, 1, 2, 4 and then 8 seconds, each shortened at random by up to a
quarter. If the server states a delay of up to two minutes in Retry-After, it waits that long; if the delay is longer,
the request fails. Prompts go only to the named server: redirections are not followed, proxies of the environment (such
as $HTTP_PROXY) are not used, and plain http to another machine must be allowed explicitly.

Answers can be kept in a folder, each under a hash of the whole request, so that a stopped run can be resumed. No
message of this module holds a prompt, an answer or a key.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import ipaddress
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed, wait
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NoReturn, Self, TypeAlias
from urllib.parse import urlsplit

from scoreshield import _loading, _validation
from scoreshield._files import write_whole
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import check_count, validate
from scoreshield.errors import FileError, InvalidInput, InvalidParameter, ScoreShieldError
from scoreshield.geometry.arrays import Progress

#: One conversation: a list of {"role": ..., "content": ...}.
Messages: TypeAlias = Sequence[Mapping[str, str]]

KEY_VARIABLE = "SCORESHIELD_API_KEY"
LONGEST_WAIT = 86_400.0  # seconds; system calls overflow far beyond
_ROLES = ("system", "user", "assistant")
_OLDEST = (3, 10)  # of the openai package; releases up to 3.0 write whole prompts to the log at level DEBUG
_OWN = ("messages", "model", "n", "stream")  # what a request always sets by itself
_UNKNOWN = "leave out what the server may not know: temperature, max_tokens or seed"
_EXPLAINED = {
    400: f"rejected the request (status 400); the context may be longer than the model takes, or {_UNKNOWN}",
    401: "rejected the key (status 401); give another as api_key or in $" + KEY_VARIABLE,
    403: "does not allow this key to use the model (status 403)",
    404: "has no such model or address (status 404); check the model's name and base_url, which often ends in /v1",
    413: "rejected the request as too long (status 413)",
    422: f"rejected a parameter of the request (status 422); {_UNKNOWN}",
    429: "is still over its rate limit (status 429)",
}


class ChatError(ScoreShieldError):
    """A chat model gave no usable answer.

    Attributes:
        status: The HTTP status of the last reply, if there was one.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ChatModel:
    """One model on one server, with its decoding parameters fixed.

    Args:
        model: The name of the model on the server.
        base_url: The address up to and with the version, for instance ``"http://localhost:8000/v1"``, without a user's
            name, a query or a fragment.
        allow_http: Also send prompts over plain http to another machine, where others can read them.
        proxy: Address of an HTTP proxy for servers on other machines; requests to this machine never take it.
        api_key: None takes $SCORESHIELD_API_KEY, or "none", which local servers accept.
        temperature: Sent with every request; None leaves it out.
        max_tokens: Sent with every request; None leaves it out.
        seed: Sent with every request; None leaves it out.
        options: Further decoding parameters, sent as they are, for instance ``{"top_p": 0.9}``.
        timeout: Seconds to wait for the server to connect, or to send its next byte. It does not limit the time of a
            whole answer, but most servers send the first byte when the answer is complete.
        retries: How often a request is repeated where that may help.
        cache: A folder for answers, made if necessary. It holds answers in plain text, and no prompts. Only its owner
            may read them.
    """

    @clear_frames_on_error
    @validate()
    def __init__(
        self,
        model: str,
        *,
        base_url: str,
        allow_http: bool = False,
        proxy: str | None = None,
        api_key: str | None = None,
        temperature: float | None = 0.0,
        max_tokens: int | None = 512,
        seed: int | None = 0,
        options: Mapping[str, object] | None = None,
        timeout: float = 60.0,
        retries: int = 5,
        cache: str | Path | None = None,
    ) -> None:
        secret, route = _Secret(api_key), _Secret(proxy)
        api_key = proxy = None  # an error below would keep them in its frame
        self.model = _check_name(model)
        self.base_url = _check_url(base_url, allow_http)
        self.parameters = _check_parameters(temperature, max_tokens, seed, options)
        self.retries = _validation.check_count(retries, "retries", least=0)
        self._client = _client(
            self.base_url, _check_key(secret), _check_proxy(route), _check_timeout(timeout), self.retries
        )
        self.cache = None if cache is None else _check_folder(cache)
        self._answers = None if self.cache is None else AnswerCache(self.cache)

    def __repr__(self) -> str:
        return f"<ChatModel {self.model} at {self.base_url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        if self._answers is not None:
            self._answers.close()

    @clear_frames_on_error  # prompts hold texts of the collection
    @validate()
    def complete(self, messages: Messages, *, allow_empty: bool = False) -> str:
        """Ask for the answer to one conversation. An empty one is an error, or "" with ``allow_empty``."""
        return self._answer(_check_messages(messages), allow_empty)

    @clear_frames_on_error
    @validate(workers=check_count)
    def complete_all(
        self,
        conversations: Sequence[Messages],
        *,
        workers: int = 4,
        allow_empty: bool = False,
        progress: Progress | None = None,
    ) -> list[str]:
        """Ask for the answers to many conversations, at most ``workers`` at a time; equal ones are asked once.

        The first failure ends the run: what is under way is finished, nothing more is begun, and the error says how
        many answers are in and whether they were kept. An interrupt ends it at once. ``progress`` is called with
        (answers in, answers in all).
        """
        if not isinstance(conversations, Sequence) or isinstance(conversations, str):
            _validation.reject("conversations", "a list of conversations", conversations)
        checked = [_check_messages(messages) for messages in conversations]
        names = [self._name(messages) for messages in checked]
        distinct = dict(zip(names, checked, strict=True))
        jobs = [lambda messages=messages: self._answer(messages, allow_empty) for messages in distinct.values()]
        close = None if self._answers is None else self._answers.close
        futures = dict(zip(distinct, _in_threads(jobs, workers, close), strict=True))
        try:
            for done, future in enumerate(as_completed(futures.values()), start=1):
                if future.exception() is not None:
                    break
                if progress is not None:
                    progress(done, len(futures))
        finally:  # also when interrupted
            for future in futures.values():
                future.cancel()
        wait(futures.values())
        self._raise_first(list(futures.values()))
        return [futures[name].result() for name in names]

    def _raise_first(self, futures: list[Future[str]]) -> None:
        """Raise the first error, if there is one, with the number of answers that exist and where they are."""
        finished = [future for future in futures if not future.cancelled()]
        errors = [error for future in finished if (error := future.exception()) is not None]
        if not errors:
            return
        first = errors[0]
        if not isinstance(first, ChatError):
            raise first
        kept = (
            "lost, since no cache folder was given"
            if self.cache is None
            else f"kept in {self.cache}, so that the same call goes on from there"
        )
        done = len(finished) - len(errors)
        message = f"{str(first).rstrip('.')}; {done} of {len(futures)} answers are in and are {kept}."
        raise ChatError(message, status=first.status)

    def _answer(self, messages: list[dict[str, str]], allow_empty: bool) -> str:
        name = self._name(messages)
        answer = None if self._answers is None else self._answers.read(name)
        if answer is None:
            answer = self._ask(messages)
            if self._answers is not None and (answer or allow_empty):
                self._answers.write(name, answer)
        if not answer and not allow_empty:
            raise ChatError(f"{self._name_server()} gave an empty answer; a larger max_tokens may help.")
        return answer

    def _name(self, messages: list[dict[str, str]]) -> str:
        """Hash everything that an answer depends on, without the key."""
        request = {
            "model": self.model,
            "base_url": self.base_url,
            "parameters": self.parameters,
            "messages": messages,
        }
        return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()

    def _ask(self, messages: list[dict[str, str]]) -> str:
        import openai

        # Errors of the package carry the whole request, key included: ours are raised after theirs are forgotten.
        reply: Any = None
        problem, status = "", None
        try:
            reply = self._client.chat.completions.create(
                model=self.model, messages=messages, extra_body=self.parameters
            )
        except openai.APITimeoutError:
            problem = f"did not answer in time ({self._describe_tries()})"
        except openai.APIConnectionError:
            problem = f"cannot be reached or broke the connection off ({self._describe_tries()})"
        except openai.APIStatusError as error:
            status = error.status_code
            problem = _EXPLAINED.get(status, f"answered with status {status}")
            if 300 <= status < 400:
                problem = f"sends requests elsewhere (status {status}), which prompts do not follow; name that address"
            problem += f" ({self._describe_tries()})" if status == 429 or status >= 500 else ""
        except (openai.OpenAIError, ValueError, TypeError, RecursionError):
            problem = "sent a reply that is no chat completion"
        if problem:
            raise ChatError(f"{self._name_server()} {problem}.", status=status)
        content = _content(reply)
        if content is None:
            raise ChatError(f"{self._name_server()} sent a reply that is no chat completion.")
        return content

    def _name_server(self) -> str:
        return f"The server at {self.base_url} (model {self.model!r})"

    def _describe_tries(self) -> str:
        return "1 try" if self.retries == 0 else f"up to {self.retries + 1} tries"


def _in_threads(jobs: Sequence[Callable[[], str]], workers: int, close: Callable[[], None] | None) -> list[Future[str]]:
    """Start the jobs in threads that call ``close`` at their end, and return their answers to come.

    An executor's threads would keep an interrupted program waiting for them; these do not.
    """
    futures: list[Future[str]] = [Future() for _ in jobs]
    waiting: SimpleQueue[tuple[Future[str], Callable[[], str]]] = SimpleQueue()
    for pair in zip(futures, jobs, strict=True):
        waiting.put(pair)

    def work() -> None:
        while True:
            try:
                future, job = waiting.get_nowait()
            except Empty:
                break
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = job()
            except BaseException as error:  # the caller raises it when it reads the answer
                future.set_exception(error)
            else:
                future.set_result(result)
        if close is not None:
            close()

    for _ in range(min(workers, len(jobs))):
        threading.Thread(target=work, daemon=True).start()
    return futures


class _Secret:
    """A text that no repr shows, so that a report of an error with the values of its frames does not either."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "<hidden>"

    def reveal(self) -> Any:
        return self._value


def _client(base_url: str, key: _Secret, proxy: _Secret, timeout: float, retries: int) -> Any:
    try:
        import httpx
        import openai
    except ImportError:
        raise _make_missing_extra_error() from None
    if tuple(int(part) for part in openai.__version__.split(".")[:2]) < _OLDEST:
        raise InvalidInput(
            f"Chat models need the openai package, version 3.10 or newer. Got {openai.__version__}: "
            "pip install 'scoreshield[rag]'."
        )
    local = _is_local(urlsplit(base_url).hostname or "")
    client = None
    with contextlib.suppress(Exception):  # of the package's HTTP library: all else is checked by now
        client = openai.OpenAI(
            base_url=base_url,
            api_key=key.reveal(),
            timeout=timeout,
            max_retries=retries,
            http_client=openai.DefaultHttpxClient(
                follow_redirects=False,
                trust_env=False,  # no proxies, and no passwords from ~/.netrc
                proxy=None if local else proxy.reveal(),
                verify=httpx.create_ssl_context(),  # which does know $SSL_CERT_FILE
            ),
        )
    if client is None:
        _reject_url()
    # The package takes these from the environment; a server that is not OpenAI's must not get them.
    client.organization = client.project = client.admin_api_key = client.webhook_secret = None
    return client


def _content(reply: Any) -> str | None:
    """Return the answer's text, "" where the model said nothing, None where the reply is of another kind."""
    choices = getattr(reply, "choices", None)
    if not isinstance(choices, list) or not choices:
        return None
    message = getattr(choices[0], "message", None)
    if message is None or not hasattr(message, "content"):
        return None
    content = message.content
    if content is None:
        return ""
    return content.strip() if isinstance(content, str) else None


class AnswerCache:
    """Answers in a folder, by the hash of their request, in one SQLite file that its owner alone may read.

    Versions up to 0.1 kept one JSON file per answer; those files are still read. A damaged answer counts as none.

    Args:
        folder: An existing folder.

    Raises:
        InvalidInput: diskcache is not installed.
        FileError: The file in the folder cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import diskcache
        except ImportError:
            raise _make_missing_extra_error() from None

        class TextDisk(diskcache.Disk):  # type: ignore[misc]
            """Keeps plain texts within the database, and reads nothing else.

            The base class unpickles values, and opens and removes files by the names in the database. So a run folder
            from another person could run code.
            """

            def fetch(self, mode: int, filename: object, value: object, read: bool) -> str:  # noqa: ARG002
                if filename is not None or not isinstance(value, str):
                    raise OSError(errno.EIO, "the answer is not a text")  # which counts as no answer
                return value

            def remove(self, file_path: object) -> None:
                """Remove nothing: no answer has a file of its own."""

        self.folder = folder
        with self._translate_errors():
            (folder / "cache.db").touch(mode=0o600)  # before SQLite makes it for everybody to read
            self._cache = diskcache.Cache(
                str(folder), disk=TextDisk, disk_min_file_size=2**31, eviction_policy="none", cull_limit=0
            )

    def read(self, name: str) -> str | None:
        """Read one answer; None where there is none, or a damaged one."""
        with self._translate_errors():
            answer = self._cache.get(name, retry=True)
        return _read_old_answer(self.folder / f"{name}.json") if answer is None else str(answer)

    def write(self, name: str, answer: str) -> None:
        """Write one answer and bring it to disk."""
        if not _fits_utf8(answer):  # half a character, which JSON can name and SQLite cannot hold
            data = json.dumps({"answer": answer}).encode()
            write_whole({self.folder / f"{name}.json": lambda file: file.write(data)}, private=True)
            return
        with self._translate_errors():
            self._cache.set(name, answer, retry=True)

    def close(self) -> None:
        """Close the connection of this thread; the next call opens another."""
        with contextlib.suppress(sqlite3.Error):
            self._cache.close()

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error, ValueError, TypeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "its cache.db is damaged"
            raise FileError(f"Cannot use the folder of answers {self.folder}: {reason}.") from None


def _read_old_answer(path: Path) -> str | None:
    try:
        answer = _loading.parse_json(_loading.read_bytes(path))["answer"]
    except (_loading.MissingFile, ValueError, KeyError, TypeError):
        return None
    return answer if isinstance(answer, str) else None


def _fits_utf8(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _make_missing_extra_error() -> InvalidInput:
    return InvalidInput("Chat models need the 'rag' extra: pip install 'scoreshield[rag]'.")


def _check_name(model: object) -> str:
    if not isinstance(model, str) or not model.strip():
        _validation.reject("model", "the name of a model", model)
    return model


def _check_url(url: object, allow_http: bool) -> str:
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        host = (parts and parts.hostname) or ""
        good = parts is not None and parts.scheme in ("http", "https") and parts.port != 0 and "@" not in parts.netloc
        host.encode("idna")  # what a connection does: it fails where a part of the name is empty or too long
    except ValueError:
        good, host = False, ""
    if not good or not host or not isinstance(url, str) or not url.isprintable() or any(mark in url for mark in "?# "):
        _reject_url()
    if url.lower().startswith("http:") and not allow_http and not _is_local(host):
        raise InvalidInput(
            f"Prompts to {host} would be sent over plain http, where others can read them: use https, or allow it with "
            "allow_http=True (--allow-http)."
        )
    return url.rstrip("/")


def _reject_url() -> NoReturn:
    # Without what was got: it may hold a password.
    must = "an address that begins with http:// or https:// and names a host, without a user's name, '?' or '#'"
    raise InvalidInput(f"The 'base_url' parameter of ChatModel must be {must}. Got something else instead.") from None


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_timeout(timeout: object) -> float:
    seconds = _validation.check_positive(timeout, "timeout")
    if seconds > LONGEST_WAIT:
        _validation.reject("timeout", f"at most {LONGEST_WAIT:,.0f} seconds", timeout)
    return seconds


def _check_proxy(proxy: _Secret) -> _Secret:
    if not _is_proxy(proxy.reveal()):
        # Without what was got: it may hold a password.
        must = "must be an address that begins with http:// or https:// and names a host. Got something else instead."
        raise InvalidParameter("proxy", must, "ChatModel")
    return proxy


def _is_proxy(url: object) -> bool:
    if url is None:
        return True
    try:
        parts = urlsplit(url) if isinstance(url, str) and url.isprintable() and " " not in url else None
        return parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_key(key: object) -> bool:
    return isinstance(key, str) and key.isascii() and key.isprintable() and bool(key) and " " not in key


def _check_key(secret: _Secret) -> _Secret:
    if secret.reveal() is None:
        secret = _Secret(os.environ.get(KEY_VARIABLE) or "none")
    if not _is_key(secret.reveal()):
        raise InvalidInput(
            f"The 'api_key' parameter of ChatModel (or ${KEY_VARIABLE}) must be printable ASCII without spaces or line "
            "breaks. Got something else instead."
        )
    return secret


def _check_parameters(
    temperature: object, max_tokens: object, seed: object, options: Mapping[str, object] | None
) -> dict[str, Any]:
    """Make the body of a request, without the model and the messages."""
    must = f"a dict of JSON values without {', '.join(_OWN)}, temperature, max_tokens and seed"
    parameters: dict[str, Any] = {}
    if temperature is not None:
        parameters["temperature"] = _validation.check_real(temperature, "temperature")
        if parameters["temperature"] < 0:
            _validation.reject("temperature", "at least 0", temperature)
    if max_tokens is not None:
        parameters["max_tokens"] = _validation.check_count(max_tokens, "max_tokens")
    if seed is not None:
        parameters["seed"] = _validation.check_count(seed, "seed", least=0)
    if options is None:
        return parameters
    taken = {"temperature", "max_tokens", "seed", *_OWN}
    if not isinstance(options, Mapping) or any(not isinstance(name, str) or name in taken for name in options):
        _validation.reject("options", must, options)
    try:
        copied: dict[str, Any] = json.loads(json.dumps(dict(options), allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        _validation.reject("options", must, "values that JSON has no form for")
    return parameters | copied


def _check_folder(cache: object) -> Path:
    if not isinstance(cache, str | Path):
        _validation.reject("cache", "a folder", cache)
    folder = Path(cache)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no path"
        raise FileError(f"Cannot make the folder {folder}: {reason}.") from None
    return folder


def _check_messages(messages: object) -> list[dict[str, str]]:
    """Check for a conversation that can be sent; an error message does not repeat its text."""
    must = 'a list of {"role": "system", "user" or "assistant", "content": a text}, not empty'
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        _validation.reject("messages", must, type(messages).__name__)
    checked = []
    for message in messages:
        if not isinstance(message, Mapping) or set(message) != {"role", "content"} or message["role"] not in _ROLES:
            _validation.reject("messages", must, "another kind of message")
        content = message["content"]
        if not isinstance(content, str) or not content.strip():
            _validation.reject("messages", must, "a message without text")
        if not _fits_utf8(content):
            _validation.reject("messages", "text that UTF-8 can hold", "a lone surrogate")
        checked.append({"role": message["role"], "content": content})
    return checked
