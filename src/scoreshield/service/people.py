"""People who sign in: their roles, their passwords and their sessions, in the database that all replicas share.

Passwords are stored as Argon2id hashes. A session is a random token of 256 bits, of which the database holds the
SHA-256. Attempts are counted before a password is checked, so that racing guesses are all counted. An unknown name, a
wrong password and a disabled person get the same answer after the same work.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import secrets
import threading
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Literal, get_args

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from scoreshield.errors import InvalidInput, LedgerError
from scoreshield.service.events import COMMAND_LINE, Author, Event, write_event
from scoreshield.service.installation import InstallationKey
from scoreshield.service.policy import Role
from scoreshield.service.problems import ServiceProblem
from scoreshield.service.tables import InstallationDatabase, StatementRunner

#: A session that is not used for this time ends.
IDLE_TIME = timedelta(hours=1)
#: Every session ends after this time.
LONGEST_TIME = timedelta(hours=12)
#: Attempts are counted in windows of this length.
ATTEMPT_TIME = timedelta(minutes=15)
#: The most attempts in a window, for one name and from one address. Those that succeed do not count.
MOST_PER_NAME, MOST_PER_ADDRESS = 20, 60
#: The number of characters of a password.
SHORTEST_PASSWORD, LONGEST_PASSWORD = 12, 1024
#: How exactly the last use of a session is kept. Each request would write otherwise.
_SEEN_STEP = timedelta(minutes=1)
_OLD = timedelta(days=1)
_NAME = re.compile(r"[a-z0-9][a-z0-9@._+-]{0,79}")
_PEOPLE, _SESSIONS = "scoreshield_service_people", "scoreshield_service_sessions"
_ATTEMPTS = "scoreshield_service_attempts"
_COLUMNS = "name, role, collections, password, generation, created, disabled, source"
_HERE, _PROVIDER = "here", "provider"


@dataclass(frozen=True)
class Person:
    """A person who is signed in.

    Attributes:
        name: The name.
        role: The role.
        collections: The served collections that the person may see.
        has_all_collections: Whether the person may also see those that the policy adds later.
        has_password: Whether the person signs in by a password, which the person may change.
    """

    name: str
    role: Role
    collections: tuple[str, ...]
    has_all_collections: bool = False
    has_password: bool = False


@dataclass(frozen=True)
class PersonFacts:
    """What the database knows about a person, without the password.

    Attributes:
        name: The name.
        role: The role.
        collections: The collections that the person may see; None for all.
        created: When the person was added.
        disabled: When the person was disabled; None if not.
        has_password: Whether the person can sign in by a password.
    """

    name: str
    role: Role
    collections: tuple[str, ...] | None
    created: datetime
    disabled: datetime | None
    has_password: bool


@dataclass(frozen=True)
class ProviderGrant:
    """Whom a provider of identities has identified, and what the policy grants to this person.

    Attributes:
        name: The name of the person.
        role: The role by the claims; None if no grant fits them.
        collections: The collections by the claims.
    """

    name: str
    role: Role | None
    collections: tuple[str, ...]


@dataclass(frozen=True)
class _Row:
    """A row of the table of people. The source says who keeps the role: this table, or a provider of identities."""

    facts: PersonFacts
    password: str | None
    generation: int
    source: str


class PeopleTable:
    """The people of an installation and their sessions.

    Args:
        database: The database of the installation.
        key: The secrets of the installation. Names and addresses of attempts are stored as keyed hashes. Commands check
            no password and need none.
        hasher: Hashes passwords; Argon2id with the parameters of RFC 9106 by default.
        clock: Gives the time.
    """

    def __init__(
        self,
        database: InstallationDatabase,
        key: InstallationKey | None = None,
        *,
        hasher: PasswordHasher | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database, self._key, self._clock = database, key, clock
        self._hasher = PasswordHasher() if hasher is None else hasher
        self._lock = threading.Lock()

    def create(
        self,
        name: str,
        role: Role,
        collections: Sequence[str] | None = (),
        password: str | None = None,
        *,
        author: Author = COMMAND_LINE,
    ) -> PersonFacts:
        """Add a person.

        Args:
            name: The name, in small letters. It may be an address of e-mail.
            role: The role.
            collections: The collections that the person may see; none by default, and None for all.
            password: The password; None for someone who signs in elsewhere.
            author: Who adds the person.

        Raises:
            InvalidInput: The name, the role or the password is wrong, or the name is taken.
        """
        if not _NAME.fullmatch(name):
            raise InvalidInput("A name has 1 to 80 of a-z, 0-9 and @._+-, and begins with a letter or a digit.")
        _check_role(role)
        hashed = None if password is None else self._hash(password)
        chosen = None if collections is None else tuple(collections)
        now = self._clock()

        def work(execute: StatementRunner) -> None:
            if execute(f"SELECT 1 FROM {_PEOPLE} WHERE name = :name", name=name).fetchone() is not None:
                raise InvalidInput(f"There is a person {name} already.")
            execute(
                f"INSERT INTO {_PEOPLE} ({_COLUMNS}) "
                "VALUES (:name, :role, :collections, :password, 1, :created, NULL, :source)",
                name=name,
                role=role,
                collections=_write_collections(chosen),
                password=hashed,
                created=_write_time(now),
                source=_HERE,
            )
            write_event(execute, Event("person created", author, name))

        self._database.write(work)
        return PersonFacts(name, role, chosen, now, None, hashed is not None)

    def list_people(self) -> list[PersonFacts]:
        """List all people by name."""
        rows = self._database.read(f"SELECT {_COLUMNS} FROM {_PEOPLE} ORDER BY name")
        return [_read_row(row).facts for row in rows]

    def change(
        self,
        name: str,
        role: Role | None = None,
        collections: Sequence[str] | Literal["unchanged"] | None = "unchanged",
        *,
        author: Author = COMMAND_LINE,
    ) -> PersonFacts:
        """Change the role or the collections of a person, and end all sessions of the person.

        Args:
            name: The name.
            role: The new role; None for the role as it is.
            collections: The collections that the person may see from now on; unchanged by default, and None for all.
            author: Who changes the person.

        Raises:
            InvalidInput: There is no such person, the role is wrong, or a provider of identities keeps the role.
        """
        if role is not None:
            _check_role(role)

        def work(execute: StatementRunner) -> PersonFacts:
            row = self._end_sessions(execute, name)
            # Someone with a password cannot sign in by the provider, so no grant would undo the change.
            if row.source == _PROVIDER and row.password is None:
                raise InvalidInput(
                    f"A grant of the policy gives {name} the role and the collections: change the grant."
                )
            chosen = row.facts.collections if collections == "unchanged" else collections
            changed = self._set_role(execute, name, row.facts.role if role is None else role, chosen)
            write_event(execute, Event("person changed", author, name))
            return changed.facts

        return self._database.write(work)

    def set_password(self, name: str, password: str, *, author: Author = COMMAND_LINE) -> PersonFacts:
        """Set the password of a person and end all sessions of the person. Failed attempts no longer count.

        A disabled person stays disabled.

        Raises:
            InvalidInput: There is no such person, or the password is too short or too long.
        """
        hashed = self._hash(password)

        def work(execute: StatementRunner) -> PersonFacts:
            self._end_sessions(execute, name)
            changed = self._update(execute, name, "password = :password", password=hashed)
            write_event(execute, Event("password set", author, name))
            return changed.facts

        return self._database.write(work)

    def change_password(self, name: str, old: str, new: str, address: str) -> str:
        """Change the password of a person who knows it, and end all sessions of the person.

        Attempts count with those to sign in, so that a stolen session does not guess the password.

        Args:
            name: The person.
            old: What was typed as the password.
            new: What was typed as the new password.
            address: The address that the request came from.

        Returns:
            The token of a new session.

        Raises:
            InvalidInput: The new password is too short, too long or the old one.
            ServiceProblem: The old password is wrong, was changed meanwhile, or there were too many attempts.
        """
        address = group_address(address)
        author = Author(f"person:{name}", address)
        row = self._find_row(name)
        if row is None or row.password is None or row.facts.disabled is not None:
            raise ServiceProblem("sign_in_failed")
        tags = self._tag_attempt(name, row.generation, address)
        self._count_attempt(tags, Event("sign-ins blocked", author, name))
        if not self._verify(row.password, old):
            self._database.write(lambda execute: write_event(execute, Event("password change failed", author, name)))
            raise ServiceProblem("sign_in_failed", "The password that you have now is another one.")
        self._take_back(tags)
        if _normalise(new) == _normalise(old):
            raise InvalidInput("The new password is the old one.")
        hashed, was = self._hash(new), row.password

        def work(execute: StatementRunner) -> None:
            changed = execute(
                f"UPDATE {_PEOPLE} SET password = :new WHERE name = :name AND password = :old AND disabled IS NULL",
                new=hashed,
                old=was,
                name=name,
            )
            if not changed.rowcount:
                raise ServiceProblem("sign_in_failed", "The password was changed meanwhile; sign in again.")
            self._end_sessions(execute, name)
            write_event(execute, Event("password set", author, name))

        self._database.write(work)
        # Of the state that this change left. One that came after it ends the session before it is used.
        return self._begin_session(replace(row, generation=row.generation + 1), address)

    def disable(self, name: str, *, author: Author = COMMAND_LINE) -> None:
        """Disable a person, and end all sessions of the person.

        Raises:
            InvalidInput: There is no such person.
        """
        now = _write_time(self._clock())

        def work(execute: StatementRunner) -> None:
            self._end_sessions(execute, name)
            execute(f"UPDATE {_PEOPLE} SET disabled = :now WHERE name = :name AND disabled IS NULL", now=now, name=name)
            write_event(execute, Event("person disabled", author, name))

        self._database.write(work)

    def enable(self, name: str, *, author: Author = COMMAND_LINE) -> None:
        """Enable a person who was disabled. Sessions that ended then do not come back.

        Raises:
            InvalidInput: There is no such person.
        """

        def work(execute: StatementRunner) -> None:
            self._update(execute, name, "disabled = NULL")
            write_event(execute, Event("person enabled", author, name))

        self._database.write(work)

    def sign_in(self, name: str, password: str, address: str) -> str:
        """Check a password and begin a session; return its token.

        Args:
            name: What was typed as a name.
            password: What was typed as a password.
            address: The address that the request came from.

        Raises:
            ServiceProblem: The name or the password is wrong, the person is disabled, or there were too many attempts.
        """
        address = group_address(address)
        row = self._find_row(name) if _NAME.fullmatch(name) else None
        tags = self._tag_attempt(name, 0 if row is None else row.generation, address)
        self._count_attempt(tags, Event("sign-ins blocked", Author("", address), "" if row is None else row.facts.name))
        hashed = None if row is None else row.password
        is_right = self._verify(self._decoy if hashed is None else hashed, password)
        if row is None or hashed is None or row.facts.disabled is not None or not is_right:
            subject = "" if row is None else row.facts.name
            self._database.write(
                lambda execute: write_event(execute, Event("sign-in failed", Author("", address), subject))
            )
            raise ServiceProblem("sign_in_failed")
        if self._hasher.check_needs_rehash(hashed):
            self._replace_hash(row.facts.name, hashed, password)
        self._take_back(tags)
        return self._begin_session(row, address)

    def admit(self, grant: ProviderGrant, address: str) -> str:
        """Begin a session for a person whom a provider of identities has identified; return its token.

        Someone in the table without a password has the role of the table. Someone with a password must use it: a
        provider whose users choose their names could otherwise take the place of anyone. Someone else has the role of
        the grant, which is looked at anew at each sign-in.

        Raises:
            ServiceProblem: The person may not sign in so.
        """
        if not _NAME.fullmatch(grant.name):
            raise ServiceProblem("sign_in_failed")
        name, row = grant.name, self._find_row(grant.name)
        if row is None and grant.role is not None:
            self._database.write(lambda execute: self._insert_granted(execute, grant))
            row = self._find_row(name)
        if row is None or row.password is not None or row.facts.disabled is not None:
            raise ServiceProblem("sign_in_failed")
        if row.source == _PROVIDER and (row.facts.role, row.facts.collections) != (grant.role, grant.collections):
            self._database.write(lambda execute: self._change_granted(execute, grant))
            row = self._find_row(name)
            if row is None or grant.role is None:
                raise ServiceProblem("sign_in_failed")
        return self._begin_session(row, address)

    def record_failure(self, address: str, name: str = "") -> None:
        """Write the event of a sign-in that failed. The name is that of a person, or nothing."""
        event = Event("sign-in failed", Author("", group_address(address)), name)
        self._database.write(lambda execute: write_event(execute, event))

    def find_session(self, token: str) -> PersonFacts | None:
        """Find the person of a session; None if it has ended, or never was."""
        now, digest = self._clock(), _compute_digest(token)
        columns = ", ".join(f"p.{name}" for name in _COLUMNS.split(", "))
        rows = self._database.read(
            f"SELECT {columns}, s.seen FROM {_SESSIONS} s JOIN {_PEOPLE} p ON p.name = s.person "
            "AND p.generation = s.generation WHERE s.digest = :digest AND p.disabled IS NULL "
            "AND s.expires > :now AND s.seen > :idle",
            digest=digest,
            now=_write_time(now),
            idle=_write_time(now - IDLE_TIME),
        )
        if not rows:
            return None
        if now - datetime.fromisoformat(rows[0][-1]) >= _SEEN_STEP:
            statement = f"UPDATE {_SESSIONS} SET seen = :now WHERE digest = :digest"
            self._database.write(lambda execute: execute(statement, now=_write_time(now), digest=digest))
        return _read_row(rows[0][:-1]).facts

    def end_session(self, token: str, address: str = "") -> None:
        """End a session, on every replica and at once."""
        facts = self.find_session(token)

        def work(execute: StatementRunner) -> None:
            execute(f"DELETE FROM {_SESSIONS} WHERE digest = :digest", digest=_compute_digest(token))
            if facts is not None:
                write_event(execute, Event("signed out", Author(f"person:{facts.name}", address), facts.name))

        self._database.write(work)

    def _insert_granted(self, execute: StatementRunner, grant: ProviderGrant) -> None:
        made = execute(
            f"INSERT INTO {_PEOPLE} ({_COLUMNS}) VALUES (:name, :role, :collections, NULL, 1, :created, NULL, :source) "
            "ON CONFLICT (name) DO NOTHING",
            name=grant.name,
            role=grant.role,
            collections=_write_collections(grant.collections),
            created=_write_time(self._clock()),
            source=_PROVIDER,
        )
        if made.rowcount:
            write_event(execute, Event("person created", Author("provider"), grant.name))

    def _change_granted(self, execute: StatementRunner, grant: ProviderGrant) -> None:
        """End the sessions of a person whose claims have changed, and write the role that they give now."""
        self._end_sessions(execute, grant.name)
        if grant.role is not None:
            self._set_role(execute, grant.name, grant.role, grant.collections)

    def _set_role(self, execute: StatementRunner, name: str, role: Role, collections: Sequence[str] | None) -> _Row:
        written = _write_collections(collections)
        return self._update(execute, name, "role = :role, collections = :collections", role=role, collections=written)

    def _begin_session(self, row: _Row, address: str) -> str:
        token, now, name = secrets.token_urlsafe(32), self._clock(), row.facts.name

        def work(execute: StatementRunner) -> None:
            # A password that was changed meanwhile has another generation, so this session would not be found.
            execute(
                f"INSERT INTO {_SESSIONS} (digest, person, generation, created, seen, expires) "
                "VALUES (:digest, :person, :generation, :now, :now, :expires)",
                digest=_compute_digest(token),
                person=name,
                generation=row.generation,
                now=_write_time(now),
                expires=_write_time(now + LONGEST_TIME),
            )
            write_event(execute, Event("signed in", Author(f"person:{name}", address), name))

        self._database.write(work)
        self._forget_old(now)
        return token

    def _end_sessions(self, execute: StatementRunner, name: str) -> _Row:
        row = self._update(execute, name, "generation = generation + 1")
        execute(f"DELETE FROM {_SESSIONS} WHERE person = :name", name=name)
        return row

    def _update(self, execute: StatementRunner, name: str, assignments: str, **values: Any) -> _Row:
        """Update the row of a person; return it as it is then."""
        statement = f"UPDATE {_PEOPLE} SET {assignments} WHERE name = :name RETURNING {_COLUMNS}"
        row = execute(statement, name=name, **values).one_or_none()
        if row is None:
            raise InvalidInput("There is no person of this name; 'scoreshield serve people list' lists them.")
        return _read_row(row)

    def _forget_old(self, now: datetime) -> None:
        """Delete sessions that have ended and attempts that no longer count."""
        try:
            self._database.write(
                lambda execute: execute(f"DELETE FROM {_SESSIONS} WHERE expires <= :now", now=_write_time(now))
            )
            self._database.write(
                lambda execute: execute(f"DELETE FROM {_ATTEMPTS} WHERE begin_time < :old", old=_write_time(now - _OLD))
            )
        except LedgerError:  # another replica deletes the same rows; the next sign-in tries again
            pass

    def _find_row(self, name: str) -> _Row | None:
        rows = self._database.read(f"SELECT {_COLUMNS} FROM {_PEOPLE} WHERE name = :name", name=name)
        return _read_row(rows[0]) if rows else None

    def _count_attempt(self, tags: tuple[str, str], event: Event) -> None:
        """Count an attempt for its address and its name, in one transaction, before the password is checked.

        An attempt from an address that has too many counts for no name. Otherwise one address could lock out everyone,
        and fill the table with invented names. The event is written once in each window that has too many attempts.
        """
        now = self._clock()
        limits = list(zip(tags, (MOST_PER_ADDRESS, MOST_PER_NAME), strict=True))

        def work(execute: StatementRunner) -> datetime | None:
            for tag, most in limits:
                execute(
                    f"INSERT INTO {_ATTEMPTS} (tag, begin_time, attempts) VALUES (:tag, :now, 1) ON CONFLICT (tag) "
                    f"DO UPDATE SET attempts = CASE WHEN {_ATTEMPTS}.begin_time < :oldest THEN 1 "
                    f"ELSE {_ATTEMPTS}.attempts + 1 END, begin_time = CASE WHEN {_ATTEMPTS}.begin_time < :oldest "
                    f"THEN :now ELSE {_ATTEMPTS}.begin_time END",
                    tag=tag,
                    now=_write_time(now),
                    oldest=_write_time(now - ATTEMPT_TIME),
                )
                row = execute(f"SELECT begin_time, attempts FROM {_ATTEMPTS} WHERE tag = :tag", tag=tag).one()
                if row.attempts == most + 1:
                    write_event(execute, event)
                if row.attempts > most:
                    return datetime.fromisoformat(row.begin_time) + ATTEMPT_TIME
            return None

        end = self._database.write(work)
        if end is not None:
            wait = max(1, int((end - now).total_seconds()) + 1)
            raise ServiceProblem("too_many_attempts", headers={"retry-after": str(wait)})

    def _take_back(self, tags: tuple[str, str]) -> None:
        """Uncount an attempt that succeeded. Earlier failures stay, so that no one clears them by an own account."""

        def work(execute: StatementRunner) -> None:
            for tag in tags:
                execute(
                    f"UPDATE {_ATTEMPTS} SET attempts = attempts - 1 WHERE tag = :tag AND attempts > 0",
                    tag=tag,
                )

        self._database.write(work)

    def _tag_attempt(self, name: str, generation: int, address: str) -> tuple[str, str]:
        """Name the counters of an attempt, of its address and of its name. A new password has a new counter."""
        if self._key is None:
            raise InvalidInput("A password is checked with the installation key.")
        by_name = self._key.compute_tag("attempt by name", name.encode("utf-8", "replace"), str(generation))
        return self._key.compute_tag("attempt by address", address), by_name

    @cached_property
    def _decoy(self) -> str:
        """The hash that passwords of unknown people are compared with."""
        return self._hasher.hash(secrets.token_hex(32))

    def _hash(self, password: str) -> str:
        if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
            raise InvalidInput(f"A password has {SHORTEST_PASSWORD} to {LONGEST_PASSWORD:,} characters.")
        return self._hasher.hash(_normalise(password))

    def _verify(self, hashed: str, password: str) -> bool:
        with self._lock:
            decoy = self._decoy  # made before the first comparison, for known and unknown names alike
        is_short = len(password) <= LONGEST_PASSWORD
        try:
            return self._hasher.verify(hashed if is_short else decoy, _normalise(password[:LONGEST_PASSWORD]))
        except (Argon2Error, InvalidHashError):
            return False

    def _replace_hash(self, name: str, old: str, password: str) -> None:
        """Hash a right password again, with the parameters of today."""
        fresh = self._hasher.hash(_normalise(password))
        self._database.write(
            lambda execute: execute(
                f"UPDATE {_PEOPLE} SET password = :fresh WHERE name = :name AND password = :old",
                fresh=fresh,
                name=name,
                old=old,
            )
        )


def group_address(address: str) -> str:
    """Return what attempts from an address are counted for: an address of IPv4, or the network of one of IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


def make_password() -> str:
    """Make a random password of 125 bits, in groups that people can type."""
    letters = "abcdefghijkmnpqrstuvwxyz23456789"
    return "-".join("".join(secrets.choice(letters) for _ in range(5)) for _ in range(5))


def _check_role(role: str) -> None:
    if role not in get_args(Role):
        raise InvalidInput(f"The role must be one of {', '.join(get_args(Role))}.")


def _normalise(password: str) -> bytes:
    """Give the same bytes for a text that another keyboard writes in another form. Half a character is replaced."""
    return unicodedata.normalize("NFC", password).encode("utf-8", "replace")


def _compute_digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def _read_row(row: Any) -> _Row:
    name, role, collections, password, generation, created, disabled, source = row
    facts = PersonFacts(
        name,
        role,
        None if collections is None else tuple(json.loads(collections)),
        datetime.fromisoformat(created),
        None if disabled is None else datetime.fromisoformat(disabled),
        password is not None,
    )
    return _Row(facts, password, generation, source)


def _write_collections(names: Sequence[str] | None) -> str | None:
    return None if names is None else json.dumps(names)


def _write_time(value: datetime) -> str:
    return value.astimezone(UTC).isoformat(timespec="microseconds")
