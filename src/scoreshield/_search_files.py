"""A private index on disk: the release, the public ids of its rows beside it, and whether it is what is asked for.

The two files are bound together by a hash over both. It shows accidents, such as the ids of another index or a list
that was edited by hand; whoever means to deceive can write a hash as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from scoreshield import _checks, _loading, io
from scoreshield._search_answers import Names, Recipe
from scoreshield._search_total import first_charge
from scoreshield.errors import FileError, InvalidInput
from scoreshield.indexing import IndexRelease
from scoreshield.privacy.adjacency import Adjacency, Identity
from scoreshield.privacy.ledger import Account
from scoreshield.privacy.ledger_entry import canonical
from scoreshield.privacy.profile import Profile, profile_from_dict
from scoreshield.results import load

_FORMAT = 3
_WITHOUT_TOTAL = 2  # the format before indexes without a ledger had a limit


class Paid(NamedTuple):
    """The entry of a ledger that an index was charged with."""

    dataset: str
    entry: str  # its hash


class Saved(NamedTuple):
    """What is kept of an index."""

    release: IndexRelease
    ids: Names
    version: int
    hidden: frozenset[Any]
    paid: Paid | None
    charged: Mapping[Profile, int] | None = None  # all indexes made for these files; None in files without a total

    @property
    def total(self) -> Mapping[Profile, int]:
        """All indexes that were made for these files; at least this one."""
        return first_charge(self.release.guarantee) if self.charged is None else self.charged


class IndexNotSaved(FileError):
    """An index was made and paid for, and could not be written: ``search`` holds it, and can answer and save it."""

    def __init__(self, error: FileError, search: Any) -> None:
        super().__init__(
            f"{error} The index has been made and charged: call save() on the 'search' of this error; making it again "
            "would pay again."
        )
        self.search = search

    def __reduce__(self) -> Any:
        return FileError, (str(self),)


def as_path(file: Any, function: str) -> Path:
    if not isinstance(file, str | Path) or not Path(file).name:
        _checks.reject("file", function, "the path of a file", file)
    return Path(file)


def is_there(path: Path) -> bool:
    """Whether there is anything by this name; a name that no file can have is told in a sentence."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from None
    return True


def check_ids(ids: Names) -> None:
    if not all(isinstance(one, int | np.integer | str) and not isinstance(one, bool) for one in ids):
        raise InvalidInput("An index is saved with ids that are whole numbers or strings.")


def write_index(path: Path, saved: Saved) -> None:
    """Both files, or none."""
    io.write_whole({path: saved.release.writer(), _beside(path): _writer(saved)})


def write_hidden(path: Path, hidden: frozenset[Any]) -> None:
    """Add to what the index in these files never answers with, whoever wrote it last."""
    saved = read_index(path)
    io.write_whole({_beside(path): _writer(saved._replace(hidden=saved.hidden | hidden))})


def readable_index(path: Path) -> Saved | None:
    """The index in these files, or None where there is none that can be read."""
    try:
        return read_index(path)
    except (FileError, InvalidInput):
        return None


def read_index(path: Path) -> Saved:
    """What :func:`write_index` wrote."""
    index = load(path)
    if not isinstance(index, IndexRelease):
        raise InvalidInput(f"{path} holds a {index.kind} release and no index.")
    beside = _beside(path)
    try:
        facts = _loading.parse_json(_loading.read_bytes(beside).decode())
        version, paid = facts["version"], facts["paid"]
        ids, hidden = _names(facts["ids"]), _names(facts["hidden"])
        charged = _profiles(facts["charged"]) if facts["format"] == _FORMAT else None
        saved = Saved(index, ids, version, frozenset(hidden), None if paid is None else Paid(**paid), charged)
        whole = facts["format"] in (_FORMAT, _WITHOUT_TOTAL) and len(ids) == len(index.vectors) and type(version) is int
        whole = whole and all(isinstance(part, str) for part in saved.paid or ())
        whole = whole and facts["index"] == _digest(saved)
    except FileError as error:
        raise FileError(f"{str(error).rstrip('.')}: it should hold the ids of the index {path}.") from None
    except (ValueError, KeyError, TypeError, OverflowError):
        whole = False
    if not whole:
        raise InvalidInput(f"{beside} does not hold the ids of the index in {path}.")
    return saved


def rehearse(path: Path) -> None:
    """Before an index is paid for: can it be kept? Whatever :func:`write_index` will make is made, and removed."""
    for target in (path, _beside(path)):
        probe = target.with_name(f".{target.name}.old.{secrets.token_hex(8)}.part")  # the longest name it takes
        try:
            if target.is_dir():
                raise IsADirectoryError(21, "Is a directory")
            with probe.open("xb") as file:
                file.write(b"rehearsal")
        except FileNotFoundError:
            raise FileError(f"Cannot write {path}: there is no folder {path.parent} that can be written to.") from None
        except (OSError, ValueError) as error:
            raise _cannot_write(target, error) from None
        finally:
            with contextlib.suppress(OSError, ValueError):
                probe.unlink()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Make, change or read the files of an index alone: who waits here finds what the other made.

    The lock is a file beside them, gone when it is given back. An index that is there is read without it where no file
    can be made, on a read-only disk for one.
    """
    try:
        import fcntl
    except ImportError:  # Windows: without the lock
        yield
        return
    lock = path.with_name(f".{path.name}.lock")
    held: BinaryIO | None = None
    try:
        while held is None:
            with contextlib.ExitStack() as stack:
                file = stack.enter_context(lock.open("ab"))
                fcntl.flock(file, fcntl.LOCK_EX)
                if _same(lock, file):  # or else its last holder has removed it: a lock belongs to a file, not to a name
                    held = file
                    stack.pop_all()
    except FileNotFoundError:
        raise FileError(f"Cannot write {path}: there is no folder {path.parent} that can be written to.") from None
    except (OSError, ValueError) as error:
        if not is_there(path):
            raise _cannot_write(path, error) from None
    try:
        yield
    finally:
        if held is not None:
            with contextlib.suppress(OSError):
                lock.unlink()
            held.close()


class Asked(NamedTuple):
    """What an index must be, to be taken from a file."""

    recipe: Recipe
    components: int | None
    dimension: int
    identities: bool
    centroids: bool
    ledger: Account | None


def check_contract(saved: Saved, asked: Asked, path: Path) -> None:
    """Is it released as asked for, and charged to the ledger that is given?"""
    guarantee, recipe = saved.release.guarantee, asked.recipe
    if (guarantee.epsilon, guarantee.delta) != (recipe.epsilon, recipe.delta):
        raise InvalidInput(
            f"{path} holds an index at ({guarantee.epsilon:g}, {guarantee.delta:g}), and "
            f"({recipe.epsilon:g}, {recipe.delta:g}) was asked for: name another file, or leave that one."
        )
    if (guarantee.sampler == "research") != (recipe.rng is not None):
        raise InvalidInput(f"{path} holds an index by the {guarantee.sampler} sampler, and another was asked for.")
    if saved.release.dimension != asked.dimension:
        raise InvalidInput(f"{path} holds an index of another dimension than the store.")
    if asked.components not in (None, saved.release.vectors.shape[1]):
        raise InvalidInput(f"{path} holds an index of another number of components than asked for.")
    adjacency = guarantee.adjacency
    kind = (isinstance(adjacency, Identity), getattr(adjacency, "centroids", False))
    if guarantee.mechanism != recipe.mechanism or (asked.identities, asked.centroids) != kind:
        raise InvalidInput(f"{path} holds an index by another mechanism or for another adjacency than asked for.")
    if asked.ledger is not None:
        _check_paid(saved, asked.ledger, path)


def _check_paid(saved: Saved, account: Account, path: Path) -> None:
    paid, promise = saved.paid, canonical(saved.release.guarantee.to_dict())
    if paid is None or (paid.dataset == account.dataset and not _holds(account, paid, promise)):
        raise InvalidInput(
            f"{path} holds an index that the ledger {account.ledger.name} knows no charge for: open it with the ledger "
            "that paid for it, or without one, or name another file."
        )
    if paid.dataset != account.dataset:
        raise InvalidInput(
            f"{path} holds an index that was charged to {paid.dataset!r}, and the ledger is given for "
            f"{account.dataset!r}: open it with the account that paid for it."
        )


def _holds(account: Account, paid: Paid, promise: str) -> bool:
    wanted = (paid.entry, paid.dataset, promise)
    return any((entry.hash, entry.dataset, entry.guarantee) == wanted for entry in account.ledger.entries())


def check_records(saved: Saved, names: Names, adjacency: Adjacency, path: Path) -> bool:
    """Is it an index of these records, and does it protect them as asked? True if some have come or gone since."""
    here, there = set(names), set(saved.ids)
    if here.isdisjoint(there):
        raise InvalidInput(f"{path} names none of these records; their ids must be what they were.")
    before = saved.release.guarantee.adjacency
    if isinstance(before, Identity) and isinstance(adjacency, Identity):
        sizes = [(one.identities, one.largest) for one in (before, adjacency)]
        if (here == there and sizes[0] != sizes[1]) or before.largest < adjacency.largest:
            raise InvalidInput(
                f"{path} protects {before.identities:,} identities of up to {before.largest:,} records, and "
                f"'identity_of' now says {adjacency.identities:,} of up to {adjacency.largest:,}: name another file."
            )
    if not getattr(before, "centroids", False) and there - here and _numbered(names) and _numbered(saved.ids):
        raise InvalidInput(
            f"{path} holds an index of {len(there):,} numbered rows, and now there are {len(here):,}: numbers name "
            "other records once rows are gone; give the store ids that stay, and name another file."
        )
    return here != there


def _numbered(names: Names) -> bool:
    return all(type(one) is int and one == place for place, one in enumerate(names))


def _names(given: Any) -> Names:
    """A list of different whole numbers or strings, or a ValueError."""
    if not isinstance(given, list) or not all(type(one) in (int, str) for one in given):
        raise ValueError("no ids")
    if len(set(given)) != len(given):
        raise ValueError("the same id more than once")
    return tuple(given)


def _profiles(given: Any) -> dict[Profile, int]:
    """How often each privacy profile was charged, or a ValueError."""
    if not isinstance(given, list) or not all(type(count) is int and count > 0 for _, count in given):
        raise ValueError("no charges")
    return {profile_from_dict(profile): count for profile, count in given}


def _writer(saved: Saved) -> Any:
    check_ids((*saved.ids, *saved.hidden))
    saved = saved._replace(charged=saved.total)
    facts = {"format": _FORMAT, "index": _digest(saved), **_facts(saved)}
    text = json.dumps(facts).encode()
    return lambda file: file.write(text)


def _facts(saved: Saved) -> dict[str, Any]:
    ids, hidden = ([one if isinstance(one, str) else int(one) for one in names] for names in (saved.ids, saved.hidden))
    paid = None if saved.paid is None else saved.paid._asdict()
    charged = {} if saved.charged is None else {"charged": [[p.to_dict(), n] for p, n in saved.charged.items()]}
    return charged | {
        "version": saved.version,
        "paid": paid,
        "hidden": sorted(hidden, key=lambda one: (str(one), type(one).__name__)),
        "ids": ids,
    }


def _digest(saved: Saved) -> str:
    found = hashlib.sha256(np.ascontiguousarray(saved.release.vectors).data)
    found.update(canonical({"guarantee": saved.release.guarantee.to_dict(), **_facts(saved)}).encode())
    return found.hexdigest()


def _beside(path: Path) -> Path:
    return path.with_name(path.stem + ".ids.json")


def _same(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _cannot_write(path: Path, error: Exception) -> FileError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return FileError(f"Cannot write {path}: {reason}; nothing was released.")
