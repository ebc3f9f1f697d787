"""API keys: 256 random bits with a public prefix and a checksum, shown once and stored as SHA-256.

A key belongs to a caller of the policy. It may be narrower than the caller: fewer collections, fewer actions, an
earlier end. It is never wider.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from scoreshield.errors import InvalidInput
from scoreshield.service.events import COMMAND_LINE, Author, Event, write_event
from scoreshield.service.policy import RatePolicy
from scoreshield.service.problems import ServiceProblem
from scoreshield.service.tables import InstallationDatabase, StatementRunner

_KEYS = "scoreshield_service_keys"
_COLUMNS = "prefix, digest, caller, collections, actions, created, expires, revoked, successor"
_FORM = re.compile(r"ss_([0-9a-f]{8})_[0-9a-f]{72}")
#: For how many seconds a key that was looked up is not looked up again. A revocation takes effect within this time.
_CACHE_SECONDS = 1.0
_MOST_CACHED = 10_000
_ENDED = "The key {prefix} is revoked, expired or replaced; create another one."
_NO_DIGEST = hashlib.sha256(b"no key").hexdigest()


@dataclass(frozen=True)
class ApiKey:
    """The public facts of an API key.

    Attributes:
        prefix: The public name of the key.
        caller: The caller that it belongs to.
        collections: The collections that it opens; None for all of the caller's.
        actions: The actions that it allows; None for all of the caller's.
        created: When it was made.
        expires: When it ends; None for no end of its own.
        revoked: When it was revoked; None if it was not.
        successor: The prefix of the key that replaces it.
    """

    prefix: str
    caller: str
    collections: tuple[str, ...] | None
    actions: tuple[str, ...] | None
    created: datetime
    expires: datetime | None
    revoked: datetime | None
    successor: str | None

    def allows(self, collection: str, action: str | None) -> bool:
        """Return whether the key is not narrower than this. No action means a look at public facts."""
        is_open = self.collections is None or collection in self.collections
        return is_open and (action is None or self.actions is None or action in self.actions)

    def describe(self) -> dict[str, Any]:
        """Return the facts of the key in a form that JSON takes, without any secret."""
        is_over = self.expires is not None and self.expires <= datetime.now(UTC)
        return {
            "prefix": self.prefix,
            "caller": self.caller,
            "collections": self.collections,
            "actions": self.actions,
            "state": "revoked" if self.revoked is not None else "expired" if is_over else "valid",
            "created": self.created.isoformat(timespec="seconds"),
            "expires": None if self.expires is None else self.expires.isoformat(timespec="seconds"),
            "successor": self.successor,
        }


def make_key_text() -> tuple[str, str]:
    """Make a new key; return its prefix and the whole text, which is shown once."""
    prefix = secrets.token_hex(4)
    start = f"ss_{prefix}_{secrets.token_hex(32)}"
    return prefix, start + _compute_checksum(start)


def parse_prefix(text: str) -> str | None:
    """Return the prefix of a key; None if this is no key or its checksum is wrong, as after a typing error."""
    found = _FORM.fullmatch(text)
    return found[1] if found and text[-8:] == _compute_checksum(text[:-8]) else None


def _compute_checksum(start: str) -> str:
    return hashlib.sha256(start.encode("ascii")).hexdigest()[:8]


def _compute_digest(text: str) -> str:
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class KeyTable:
    """The API keys of an installation."""

    def __init__(self, database: InstallationDatabase) -> None:
        self._database = database
        self._cache: dict[str, tuple[float, str, ApiKey | None]] = {}
        self._lock = threading.Lock()

    def create(
        self,
        caller: str,
        *,
        collections: Sequence[str] | None = None,
        actions: Sequence[str] | None = None,
        expires: datetime | None = None,
        author: Author = COMMAND_LINE,
    ) -> tuple[ApiKey, str]:
        """Make a key for a caller; return its facts and its text, which is not kept."""
        prefix, text = make_key_text()
        key = ApiKey(
            prefix,
            caller,
            None if collections is None else tuple(collections),
            None if actions is None else tuple(actions),
            datetime.now(UTC),
            expires,
            None,
            None,
        )

        def work(execute: StatementRunner) -> None:
            _insert(execute, key, _compute_digest(text))
            write_event(execute, Event("key created", author, prefix))

        self._database.write(work)
        self._forget(prefix)
        return key, text

    def rotate(
        self, prefix: str, *, overlap: timedelta, expires: datetime | None = None, author: Author = COMMAND_LINE
    ) -> tuple[ApiKey, str]:
        """Make the successor of a key. The old one stays valid for the overlap, so that programs can change over.

        Args:
            prefix: The public prefix of the key.
            overlap: For how long both are valid.
            expires: The end of the successor; by default that of the key.
            author: Who does it.

        Raises:
            InvalidInput: There is no such key, or it is revoked, expired or replaced already.
        """
        fresh_prefix, text = make_key_text()
        now = datetime.now(UTC)

        def work(execute: StatementRunner) -> ApiKey:
            old = self._read_in(execute, prefix)
            if old.revoked is not None or old.successor is not None or (old.expires is not None and old.expires <= now):
                raise InvalidInput(_ENDED.format(prefix=prefix))
            fresh_end = old.expires if expires is None else expires
            fresh = ApiKey(fresh_prefix, old.caller, old.collections, old.actions, now, fresh_end, None, None)
            end = now + overlap if old.expires is None else min(old.expires, now + overlap)
            changed = execute(
                f"UPDATE {_KEYS} SET expires = :expires, successor = :successor "
                "WHERE prefix = :prefix AND revoked IS NULL AND successor IS NULL",
                expires=_write_time(end),
                successor=fresh_prefix,
                prefix=prefix,
            )
            if not changed.rowcount:  # another replica has revoked or replaced it since it was read
                raise InvalidInput(_ENDED.format(prefix=prefix))
            _insert(execute, fresh, _compute_digest(text))
            write_event(execute, Event("key rotated", author, prefix))
            return fresh

        fresh = self._database.write(work)
        self._forget(prefix)
        return fresh, text

    def revoke(self, prefix: str, *, author: Author = COMMAND_LINE) -> None:
        """Revoke a key, now and forever.

        Raises:
            InvalidInput: There is no such key.
        """
        now = _write_time(datetime.now(UTC))

        def work(execute: StatementRunner) -> None:
            self._read_in(execute, prefix)
            statement = f"UPDATE {_KEYS} SET revoked = :now WHERE prefix = :prefix AND revoked IS NULL"
            if execute(statement, now=now, prefix=prefix).rowcount:
                write_event(execute, Event("key revoked", author, prefix))

        self._database.write(work)
        self._forget(prefix)

    def find(self, prefix: str) -> ApiKey | None:
        """Find the facts of a key, as the database has them now; None if there is no such key."""
        rows = self._database.read(f"SELECT {_COLUMNS} FROM {_KEYS} WHERE prefix = :prefix", prefix=prefix)
        return _read_row(rows[0])[1] if rows else None

    def list_keys(self) -> list[ApiKey]:
        """List all keys, the oldest first."""
        rows = self._database.read(f"SELECT {_COLUMNS} FROM {_KEYS} ORDER BY created, prefix")
        return [_read_row(row)[1] for row in rows]

    def authenticate(self, text: str, *, now: datetime | None = None) -> ApiKey:
        """Find the key of a text.

        Raises:
            ServiceProblem: The key is unknown, expired or revoked. Only someone who has the whole key learns which.
        """
        prefix = parse_prefix(text)
        if prefix is None:
            raise ServiceProblem("invalid_key")
        digest, key = self._look_up(prefix)
        if not hmac.compare_digest(digest, _compute_digest(text)) or key is None:
            raise ServiceProblem("invalid_key")
        if key.revoked is not None:
            raise ServiceProblem("key_revoked")
        if key.expires is not None and key.expires <= (datetime.now(UTC) if now is None else now):
            raise ServiceProblem("key_expired")
        return key

    def is_remembered(self, text: str) -> bool:
        """Return whether the row of a key was read just now."""
        prefix = parse_prefix(text)
        return prefix is not None and self._recall(prefix) is not None

    def _recall(self, prefix: str) -> tuple[str, ApiKey | None] | None:
        with self._lock:
            known = self._cache.get(prefix)
        is_recent = known is not None and time.monotonic() - known[0] < _CACHE_SECONDS
        return None if known is None or not is_recent else (known[1], known[2])

    def _look_up(self, prefix: str) -> tuple[str, ApiKey | None]:
        now = time.monotonic()
        known = self._recall(prefix)
        if known is not None:
            return known
        rows = self._database.read(f"SELECT {_COLUMNS} FROM {_KEYS} WHERE prefix = :prefix", prefix=prefix)
        digest, key = _read_row(rows[0]) if rows else (_NO_DIGEST, None)
        with self._lock:
            if len(self._cache) >= _MOST_CACHED:  # anyone can invent prefixes
                self._cache = {name: one for name, one in self._cache.items() if now - one[0] < _CACHE_SECONDS}
            if key is not None or len(self._cache) < _MOST_CACHED:
                self._cache[prefix] = (now, digest, key)
        return digest, key

    def _forget(self, prefix: str) -> None:
        with self._lock:
            self._cache.pop(prefix, None)

    @staticmethod
    def _read_in(execute: StatementRunner, prefix: str) -> ApiKey:
        row = execute(f"SELECT {_COLUMNS} FROM {_KEYS} WHERE prefix = :prefix", prefix=prefix).fetchone()
        if row is None:
            raise InvalidInput("There is no key of this prefix; 'scoreshield serve keys list' lists them.")
        return _read_row(row)[1]


class RateLimiter:
    """The rate of requests of each key, on this replica: a bucket that refills evenly."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def count(self, name: str, rate: RatePolicy) -> None:
        """Count one request.

        Raises:
            ServiceProblem: The key is too fast. The header Retry-After says how long to wait.
        """
        now, speed = self._clock(), rate.requests / rate.seconds
        with self._lock:
            left, then = self._buckets.get(name, (float(rate.requests), now))
            left = min(float(rate.requests), left + (now - then) * speed)
            is_allowed = left >= 1
            self._buckets[name] = (left - is_allowed, now)
        if not is_allowed:
            wait = max(1, int(-(-(1 - left) // speed)))
            raise ServiceProblem("rate_limited", headers={"retry-after": str(wait)})


def _insert(execute: StatementRunner, key: ApiKey, digest: str) -> None:
    execute(
        f"INSERT INTO {_KEYS} ({_COLUMNS}) VALUES (:prefix, :digest, :caller, :collections, :actions, :created, "
        ":expires, NULL, NULL)",
        prefix=key.prefix,
        digest=digest,
        caller=key.caller,
        collections=_write_list(key.collections),
        actions=_write_list(key.actions),
        created=_write_time(key.created),
        expires=_write_time(key.expires),
    )


def _read_row(row: Any) -> tuple[str, ApiKey]:
    prefix, digest, caller, collections, actions, created, expires, revoked, successor = row
    begin = datetime.fromisoformat(created)
    lists = (_read_list(collections), _read_list(actions))
    return digest, ApiKey(prefix, caller, *lists, begin, _read_time(expires), _read_time(revoked), successor)


def _write_list(values: tuple[str, ...] | None) -> str | None:
    return None if values is None else json.dumps(list(values))


def _read_list(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(json.loads(text))


def _write_time(value: datetime | None) -> str | None:
    return None if value is None else value.astimezone(UTC).isoformat(timespec="microseconds")


def _read_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
