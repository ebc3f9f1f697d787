"""A private index on disk: the release, the public ids of its rows beside it, and whether it is what is asked for.

The two files are bound together by a hash over both. It shows accidents, such as the ids of another index or a list
that was edited by hand; whoever means to deceive can write a hash as well.

A third file counts the indexes that were made for these files. It is written before the noise of an index is drawn, so
it knows those that could not be saved too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from scoreshield import _files, _loading, _validation
from scoreshield.errors import FileError, InvalidInput
from scoreshield.privacy.adjacency import Adjacency, Identity
from scoreshield.privacy.ledger import Account
from scoreshield.privacy.ledger.entries import canonical
from scoreshield.privacy.profiles import Profile, profile_from_dict
from scoreshield.privacy.sampling.stream import this_process
from scoreshield.releases.index import IndexRelease
from scoreshield.releases.results import load
from scoreshield.search.answers import Names, Recipe
from scoreshield.search.totals import Charges, charge

_FORMAT = 4
_WITH_COUNTS = 3  # how often each profile was charged, without a name for each index
_WITHOUT_TOTAL = 2  # before indexes without a ledger had a limit
_TOTAL_FORMAT = 1

#: The files of indexes that each thread holds: it would wait for itself forever.
_held = threading.local()


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
    charged: Charges  # all indexes that were made for these files, this one among them


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


def as_path(file: Any) -> Path:
    """The file that a path means, in whatever working directory later, and through whatever links: it has one count."""
    if not isinstance(file, str | Path) or not Path(file).name:
        _validation.reject("file", "the path of a file", file)
    try:
        return Path(os.path.realpath(file))
    except (OSError, ValueError):  # a name that no file can have: whoever uses it says so
        return Path(file).absolute()


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


def write_index(path: Path, saved: Saved, keep_hidden: bool = False) -> None:
    """Both files, or none. What was counted for the index that stands there stays counted.

    With ``keep_hidden``, so does what is hidden there: it is an index of the same records.
    """
    before = readable_index(path)
    if before is not None:
        hidden = saved.hidden | (before.hidden if keep_hidden else frozenset())
        saved = saved._replace(charged={**before.charged, **saved.charged}, hidden=hidden)
    _files.write_whole({path: saved.release.writer(), _beside(path): _writer(saved)})


def write_hidden(path: Path, hidden: frozenset[Any]) -> None:
    """Add to what the index in these files never answers with, whoever wrote it last."""
    saved = read_index(path)
    _files.write_whole({_beside(path): _writer(saved._replace(hidden=saved.hidden | hidden))})


def write_total(path: Path, charged: Charges) -> None:
    """Count indexes durably: the count on the disk is the old one or the new one, whatever interrupts this.

    Raises:
        FileError: It could not be written, so that nothing may be drawn.
    """
    target = total_path(path)
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    text = json.dumps({"format": _TOTAL_FORMAT, "charged": _grouped(charged)}).encode()
    try:
        with fresh.open("xb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(target)
        _bring_to_disk(target.parent)
    except (OSError, ValueError) as error:
        raise _cannot_write(target, error) from None
    finally:
        with contextlib.suppress(OSError, ValueError):
            fresh.unlink()


def read_total(path: Path) -> dict[str, Profile]:
    """What :func:`write_total` wrote; nothing where no index was counted yet, or by an older version."""
    target = total_path(path)
    if not is_there(target):
        return {}
    try:
        facts = _loading.parse_json(_loading.read_bytes(target).decode())
        if facts["format"] == _TOTAL_FORMAT:
            return _charges(facts["charged"])
    except (ValueError, KeyError, TypeError, OverflowError):
        pass
    raise InvalidInput(f"{target} does not hold the total of the indexes in {path}: restore it from a backup.")


def total_path(path: Path) -> Path:
    """The file that counts the indexes."""
    return path.with_name(path.stem + ".total.json")


def _bring_to_disk(folder: Path) -> None:
    """A file that took its place is there after a power cut only once its folder is on the disk."""
    if os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
        if not isinstance(facts, dict):
            raise ValueError("no facts")
        kind, digest = facts.pop("format"), facts.pop("index")
        version, paid = facts["version"], facts["paid"]
        ids, hidden = _names(facts["ids"]), _names(facts["hidden"])
        charged = _charges_of(kind, facts, index, digest)
        saved = Saved(index, ids, version, frozenset(hidden), None if paid is None else Paid(**paid), charged)
        whole = len(ids) == len(index.vectors) and type(version) is int
        whole = whole and all(isinstance(part, str) for part in saved.paid or ())
        whole = whole and digest == _digest(index, facts)
    except FileError as error:
        raise FileError(f"{str(error).rstrip('.')}: it should hold the ids of the index {path}.") from None
    except (ValueError, KeyError, TypeError, OverflowError):
        whole = False
    if not whole:
        raise InvalidInput(f"{beside} does not hold the ids of the index in {path}.")
    return saved._replace(charged={**saved.charged, **read_total(path)})


def rehearse(path: Path) -> None:
    """Before an index is paid for: can it be kept? Whatever :func:`write_index` will make is made, and removed."""
    for target in (path, _beside(path)):
        try:
            _files.rehearse(target)
        except FileNotFoundError:
            raise FileError(f"Cannot write {path}: there is no folder {path.parent} that can be written to.") from None
        except (OSError, ValueError) as error:
            raise _cannot_write(target, error) from None


@contextlib.contextmanager
def locked(path: Path, *, to_write: bool = True) -> Iterator[None]:
    """Make, change or read the files of an index alone: who waits here finds what the other made.

    The lock is a file beside them, gone when it is given back. Without ``to_write``, an index that is there is read
    without it where no file can be made, on a read-only disk for one.
    """
    try:
        import fcntl
    except ImportError:  # Windows: without the lock
        yield
        return
    lock = path.with_name(f".{path.stem}.npz.lock")  # as the ids and the count, whatever the file's ending is
    name, process = str(lock.absolute()), this_process()
    mine: set[str] = vars(_held).setdefault("locks", set())
    if name in mine:
        raise InvalidInput(
            f"The files of {path} are being written in this thread: a callback may not open, refresh or save them."
        )
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
        if to_write or not is_there(path):
            raise _cannot_write(path, error) from None
    try:
        mine.add(name)
        yield
    finally:
        mine.discard(name)
        if held is not None:
            if this_process() == process:  # a fork has copied the lock, and it is the parent's to give back
                with contextlib.suppress(OSError):
                    lock.unlink()
                with contextlib.suppress(OSError):
                    fcntl.flock(held, fcntl.LOCK_UN)  # also for copies of it in forked processes
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
    entry = account.ledger.entry(paid.entry)
    return entry is not None and (entry.dataset, entry.guarantee) == (paid.dataset, promise)


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


def _charges_of(kind: Any, facts: dict[str, Any], index: IndexRelease, digest: str) -> dict[str, Profile]:
    """The count in a file of any format, or a ValueError; indexes without a name of their own get one from the hash."""
    if kind == _FORMAT:
        return _charges(facts["charged"])
    if kind == _WITHOUT_TOTAL:
        return charge(index.guarantee, digest)
    if kind != _WITH_COUNTS or not all(type(count) is int and 0 < count <= 10**6 for _, count in facts["charged"]):
        raise ValueError("no charges")
    profiles = [profile_from_dict(profile) for profile, count in facts["charged"] for _ in range(count)]
    return {f"{digest}-{number}": profile for number, profile in enumerate(profiles)}


def _charges(given: Any) -> dict[str, Profile]:
    """What :func:`_grouped` wrote, or a ValueError."""
    pairs = [(name, profile_from_dict(profile)) for profile, names in given for name in names]
    whole = all(isinstance(names, list) for _, names in given) and all(isinstance(name, str) for name, _ in pairs)
    if not whole or len(dict(pairs)) != len(pairs):
        raise ValueError("no charges")
    return dict(pairs)


def _grouped(charged: Charges) -> list[tuple[dict[str, Any], list[str]]]:
    """Each profile once, with the names of its indexes."""
    profiles = dict.fromkeys(charged.values())
    return [(one.to_dict(), sorted(name for name in charged if charged[name] == one)) for one in profiles]


def _writer(saved: Saved) -> Any:
    check_ids((*saved.ids, *saved.hidden))
    facts = _facts(saved)
    text = json.dumps({"format": _FORMAT, "index": _digest(saved.release, facts), **facts}).encode()
    return lambda file: file.write(text)


def _facts(saved: Saved) -> dict[str, Any]:
    ids, hidden = ([one if isinstance(one, str) else int(one) for one in names] for names in (saved.ids, saved.hidden))
    paid = None if saved.paid is None else saved.paid._asdict()
    return {
        "charged": _grouped(saved.charged),
        "version": saved.version,
        "paid": paid,
        "hidden": sorted(hidden, key=lambda one: (str(one), type(one).__name__)),
        "ids": ids,
    }


def _digest(index: IndexRelease, facts: dict[str, Any]) -> str:
    found = hashlib.sha256(np.ascontiguousarray(index.vectors).data)
    found.update(canonical({"guarantee": index.guarantee.to_dict(), **facts}).encode())
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
