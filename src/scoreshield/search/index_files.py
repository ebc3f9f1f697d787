"""A private index on disk: the release, the public ids of its rows beside it, and whether a request matches it.

The two files are bound together by a hash over both. It detects accidents, such as the ids of another index or a list
that was edited by hand. It does not detect an attack: an attacker can write a hash too.

A new index takes the place of an old one in two steps: first the ids, then the release. Until the second step the file
of ids holds both lists, so that it fits whichever release a killed process leaves.

A third file counts the indexes that were made for these files (`scoreshield.search.totals`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from scoreshield import _files, _loading, _validation
from scoreshield._types import AccountLike
from scoreshield.errors import FileError, InvalidInput
from scoreshield.privacy.adjacency import Adjacency, Identity
from scoreshield.privacy.ledger import Account
from scoreshield.privacy.ledger.entries import write_canonical_json
from scoreshield.privacy.profiles import Profile, profile_from_dict
from scoreshield.privacy.sampling.stream import identify_process
from scoreshield.releases.codebook import CodebookRelease, PublicCodebook
from scoreshield.releases.index import IndexRelease, PrivateIndex
from scoreshield.releases.index_plan import check_center, hash_center
from scoreshield.releases.results import load
from scoreshield.releases.versions import Changes, IndexHistory
from scoreshield.search.base import SearchMechanism
from scoreshield.search.sources import Names
from scoreshield.search.totals import (
    Charges,
    decode_charges,
    encode_charges,
    make_index_charge,
    make_write_error,
    path_exists,
    read_total,
)

_FORMAT = 4
_FORMAT_WITH_COUNTS = 3  # how often each profile was charged, without a name for each index
_FORMAT_WITHOUT_TOTAL = 2  # before indexes without a ledger had a limit

#: The lock files that each thread holds. A thread that takes one of them again would wait forever.
_thread_locks = threading.local()


class ChargeReference(NamedTuple):
    """The entry of a ledger that an index was charged with."""

    dataset: str
    entry: str  # its hash


class SavedIndex(NamedTuple):
    """The content of the files of an index."""

    release: PrivateIndex
    ids: Names
    version: int
    hidden: frozenset[Any]
    charge: ChargeReference | None
    charges: Charges  # all indexes that were made for these files, this one among them


class IndexRequest(NamedTuple):
    """The index that a search needs. A saved one is used only if it matches."""

    epsilon: float
    delta: float
    mechanism: SearchMechanism | Literal["codebook"]
    is_research: bool
    components: int | None
    dimension: int
    has_identities: bool
    centroids: bool
    ledger: AccountLike | None
    center: str | ArrayLike = "none"
    codebook: PublicCodebook | None = None
    changes: Changes = "private"


def resolve_path(file: Any) -> Path:
    """Resolve a path against the working directory and through links, so that one file has one count."""
    if not isinstance(file, str | Path) or not Path(file).name:
        _validation.reject("file", "the path of a file", file)
    try:
        return Path(os.path.realpath(file))
    except (OSError, ValueError):  # no file can have this name; the function that uses it raises the error
        return Path(file).absolute()


def has_saved_index(file: Any) -> bool:
    """Check whether a search with this ``file`` would load its index from there, and so charge nothing."""
    return path_exists(resolve_path(file))


def check_savable(ids: Names) -> None:
    """Raise an error for ids that a file cannot hold."""
    if not all(isinstance(one, int | np.integer | str) and not isinstance(one, bool) for one in ids):
        raise InvalidInput("An index is saved with ids that are whole numbers or strings.")


def write_index(path: Path, saved: SavedIndex, *, keep_hidden: bool = False) -> None:
    """Write both files, or none. The charges of the index that they replace stay counted.

    Args:
        path: The file of the index.
        saved: Its content.
        keep_hidden: Whether records that are hidden in the present files stay hidden: they are of the same records.
    """
    before, beside = try_read_index(path), _locate_ids(path)
    if before is not None:
        hidden = saved.hidden | (before.hidden if keep_hidden else frozenset())
        saved = saved._replace(charges={**before.charges, **saved.charges}, hidden=hidden)
    _files.write_whole({beside: _make_writer(saved, before), path: saved.release.writer()})
    if before is not None:
        with contextlib.suppress(FileError):  # the old ids may stay: the files are whole with them
            _files.write_whole({beside: _make_writer(saved)})


def write_hidden(path: Path, hidden: frozenset[Any]) -> None:
    """Add to the hidden records of the index in these files, whichever process wrote it last."""
    saved = read_index(path)
    _files.write_whole({_locate_ids(path): _make_writer(saved._replace(hidden=saved.hidden | hidden))})


def try_read_index(path: Path) -> SavedIndex | None:
    """Read the index in these files, or return None where there is none that can be read."""
    try:
        return read_index(path)
    except (FileError, InvalidInput):
        return None


def read_index(path: Path) -> SavedIndex:
    """Read what `write_index` wrote."""
    index = load(path)
    if not isinstance(index, PrivateIndex):
        raise InvalidInput(f"{path} holds a {index.kind} release and no index.")
    beside = _locate_ids(path)
    try:
        facts = _loading.parse_json(_loading.read_bytes(beside).decode())
    except FileError as error:
        raise FileError(f"{str(error).rstrip('.')}: it should hold the ids of the index {path}.") from None
    except ValueError:
        facts = None
    former = facts.get("before") if isinstance(facts, dict) else None
    saved = _fit_facts(index, facts) or _fit_facts(index, former)
    if saved is None:
        raise InvalidInput(f"{beside} does not hold the ids of the index in {path}.")
    return saved._replace(charges={**saved.charges, **read_total(path)})


def _fit_facts(index: PrivateIndex, content: Any) -> SavedIndex | None:
    """Join a release with what a file says of its ids, or return None where that is of another index."""
    try:
        facts = dict(content)
        kind, digest = facts.pop("format"), facts.pop("index")
        version, charge = facts["version"], facts["paid"]
        ids, hidden = _decode_ids(facts["ids"]), _decode_ids(facts["hidden"])
        charges = _decode_all_charges(kind, facts, index, digest)
        reference = None if charge is None else ChargeReference(**charge)
        is_whole = len(ids) == index.guarantee.shape[0] and type(version) is int
        is_whole = is_whole and all(isinstance(part, str) for part in reference or ())
        is_whole = is_whole and digest == _hash_index(index, facts)
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    return SavedIndex(index, ids, version, frozenset(hidden), reference, charges) if is_whole else None


def check_index_writable(path: Path) -> None:
    """Raise an error, before an index is charged, where `write_index` could not write its files."""
    for target in (path, _locate_ids(path)):
        try:
            _files.check_writable(target)
        except FileNotFoundError:
            raise FileError(f"Cannot write {path}: there is no folder {path.parent} that can be written to.") from None
        except (OSError, ValueError) as error:
            raise make_write_error(target, error) from None


@contextlib.contextmanager
def lock_index(path: Path, *, to_write: bool = True) -> Iterator[None]:
    """Hold the files of an index alone. A process that waits here finds what the other one made.

    The lock is a file beside them, which is removed at the end.

    Args:
        path: The file of the index.
        to_write: False where an index that exists is only read. It is then read without the lock where no lock file
            can be made, such as on a read-only disk.
    """
    try:
        import fcntl
    except ImportError:  # Windows: without the lock
        yield
        return
    lock = path.with_name(f".{path.stem}.npz.lock")  # as the ids and the count, whatever the file's ending is
    name, process = str(lock.absolute()), identify_process()
    mine: set[str] = vars(_thread_locks).setdefault("names", set())
    if name in mine:
        raise InvalidInput(
            f"The files of {path} are being written in this thread: a callback may not open, refresh or save them."
        )
    handle: BinaryIO | None = None
    try:
        while handle is None:
            with contextlib.ExitStack() as stack:
                file = stack.enter_context(lock.open("ab"))
                fcntl.flock(file, fcntl.LOCK_EX)
                # A lock belongs to a file, not to a name: the last holder may have removed this one.
                if _is_same_file(lock, file):
                    handle = file
                    stack.pop_all()
    except FileNotFoundError:
        raise FileError(f"Cannot write {path}: there is no folder {path.parent} that can be written to.") from None
    except (OSError, ValueError) as error:
        if to_write or not path_exists(path):
            raise make_write_error(path, error) from None
    try:
        mine.add(name)
        yield
    finally:
        mine.discard(name)
        if handle is not None:
            if identify_process() == process:  # a fork has a copy of the lock, which belongs to the parent
                with contextlib.suppress(OSError):
                    lock.unlink()
                with contextlib.suppress(OSError):
                    fcntl.flock(handle, fcntl.LOCK_UN)  # also for copies of it in forked processes
            handle.close()


def check_request(saved: SavedIndex, request: IndexRequest, path: Path) -> None:
    """Raise an error unless a saved index was released as requested, and charged to the given ledger."""
    guarantee = saved.release.guarantee
    if guarantee.details.get("changes", "private") != request.changes:
        raise InvalidInput(f"{path} holds an index with another declaration of its changes than requested.")
    epsilon = guarantee.details.get("epsilon_per_draw", guarantee.epsilon)
    if (epsilon, guarantee.delta) != (request.epsilon, request.delta):
        raise InvalidInput(
            f"{path} holds an index at ({epsilon:g}, {guarantee.delta:g}), and "
            f"({request.epsilon:g}, {request.delta:g}) was requested; choose another file, or keep those values."
        )
    if (guarantee.sampler == "research") != request.is_research:
        raise InvalidInput(f"{path} holds an index by the {guarantee.sampler} sampler, and another was requested.")
    if saved.release.dimension != request.dimension:
        raise InvalidInput(f"{path} holds an index of another dimension than the store.")
    if request.components not in (None, guarantee.shape[1]):
        raise InvalidInput(f"{path} holds an index with another number of components than requested.")
    _check_public_parts(saved, request, path)
    adjacency = guarantee.adjacency
    kind = (isinstance(adjacency, Identity), getattr(adjacency, "centroids", False))
    if guarantee.mechanism != request.mechanism or (request.has_identities, request.centroids) != kind:
        raise InvalidInput(f"{path} holds an index with another mechanism or adjacency than requested.")
    if request.ledger is not None:
        _check_charge(saved, request.ledger, path)


def _check_public_parts(saved: SavedIndex, request: IndexRequest, path: Path) -> None:
    """Raise an error unless a saved index has the requested codebook and center."""
    details, center = saved.release.guarantee.details, check_center(request.center, request.dimension)
    if request.codebook is not None and details.get("fingerprint") != request.codebook.fingerprint:
        raise InvalidInput(f"{path} holds an index over another codebook than requested, or over none.")
    if request.codebook is None and not isinstance(saved.release, CodebookRelease):
        stated = details.get("center_fingerprint", details.get("center", "none"))
        asked = center if isinstance(center, str) else hash_center(center)
        if stated != asked:
            raise InvalidInput(f"{path} holds an index with another center than requested.")


def _check_charge(saved: SavedIndex, account: Any, path: Path) -> None:
    if isinstance(saved.release, IndexHistory):
        account.read_draws(saved.release.history, saved.release.counts)  # raises an error without a charge
        return
    charge, promise = saved.charge, write_canonical_json(saved.release.guarantee.drop_provenance().to_dict())
    if charge is None or (charge.dataset == account.dataset and not has_entry(account, charge, promise)):
        raise InvalidInput(
            f"{path} holds an index that the ledger {account.ledger.name} has no charge for: open it with the ledger "
            "that was charged, or without one, or name another file."
        )
    if charge.dataset != account.dataset:
        raise InvalidInput(
            f"{path} holds an index that was charged to {charge.dataset!r}, and the ledger is given for "
            f"{account.dataset!r}: open it with the account that was charged."
        )


def has_entry(account: Account, charge: ChargeReference, promise: str) -> bool:
    """Check whether the ledger of an account has the entry of a charge, for this promise."""
    entry = account.ledger.entry(charge.entry)
    return entry is not None and (entry.dataset, entry.guarantee) == (charge.dataset, promise)


def check_records(saved: SavedIndex, names: Names, adjacency: Adjacency, path: Path) -> bool:
    """Raise an error unless a saved index is of these records and protects them as requested.

    Returns:
        Whether records were added or removed since it was made.
    """
    here, there = set(names), set(saved.ids)
    if here.isdisjoint(there):
        raise InvalidInput(f"{path} names none of these records; their ids must be what they were.")
    before = saved.release.guarantee.adjacency
    if isinstance(before, Identity) and isinstance(adjacency, Identity):
        sizes = [(one.identities, one.largest) for one in (before, adjacency)]
        if (here == there and sizes[0] != sizes[1]) or before.largest < adjacency.largest:
            raise InvalidInput(
                f"{path} protects {before.identities:,} identities of up to {before.largest:,} records, and "
                f"'identity_of' now gives {adjacency.identities:,} of up to {adjacency.largest:,}: name another file."
            )
    if not getattr(before, "centroids", False) and there - here and _are_places(names) and _are_places(saved.ids):
        raise InvalidInput(
            f"{path} holds an index of {len(there):,} numbered rows, and now there are {len(here):,}: numbers name "
            "other records once rows are gone; give the store ids that stay, and name another file."
        )
    return here != there


def _are_places(names: Names) -> bool:
    """Whether the names are the row numbers 0, 1, 2, ..."""
    return all(type(one) is int and one == place for place, one in enumerate(names))


def _decode_ids(data: Any) -> Names:
    """Read a list of different whole numbers or strings, or raise a ValueError."""
    if not isinstance(data, list) or not all(type(one) in (int, str) for one in data):
        raise ValueError("no ids")
    if len(set(data)) != len(data):
        raise ValueError("the same id more than once")
    return tuple(data)


def _decode_all_charges(kind: Any, facts: dict[str, Any], index: PrivateIndex, digest: str) -> dict[str, Profile]:
    """Read the count of any format, or raise a ValueError. Indexes without a name get one from the hash."""
    if kind == _FORMAT:
        return decode_charges(facts["charged"])
    if kind == _FORMAT_WITHOUT_TOTAL:
        return make_index_charge(index.guarantee, digest)
    if kind != _FORMAT_WITH_COUNTS:
        raise ValueError("no charges")
    if not all(type(count) is int and 0 < count <= 10**6 for _, count in facts["charged"]):
        raise ValueError("no charges")
    profiles = [profile_from_dict(profile) for profile, count in facts["charged"] for _ in range(count)]
    return {f"{digest}-{number}": profile for number, profile in enumerate(profiles)}


def _make_writer(saved: SavedIndex, before: SavedIndex | None = None) -> Callable[[BinaryIO], object]:
    """Make what writes the file of ids, with those of the index that is replaced until its release is gone."""
    check_savable((*saved.ids, *saved.hidden))
    text = json.dumps(_encode_facts(saved, {} if before is None else {"before": _encode_facts(before, {})})).encode()
    return lambda file: file.write(text)


def _encode_facts(saved: SavedIndex, more: dict[str, Any]) -> dict[str, Any]:
    """Encode what belongs to a release, bound to it by a hash over all."""
    ids, hidden = ([one if isinstance(one, str) else int(one) for one in names] for names in (saved.ids, saved.hidden))
    facts = {
        "charged": encode_charges(saved.charges),
        "version": saved.version,
        "paid": None if saved.charge is None else saved.charge._asdict(),
        "hidden": sorted(hidden, key=lambda one: (str(one), type(one).__name__)),
        "ids": ids,
        **more,
    }
    return {"format": _FORMAT, "index": _hash_index(saved.release, facts), **facts}


def _hash_index(index: PrivateIndex, facts: dict[str, Any]) -> str:
    if isinstance(index, CodebookRelease):
        digest = hashlib.sha256(np.ascontiguousarray(index.codes).data)  # the guarantee has the hash of its codebook
    else:
        assert isinstance(index, IndexRelease)
        digest = hashlib.sha256(np.ascontiguousarray(index.vectors).data)
        if index.center is not None:
            digest.update(hash_center(index.center).encode())
    digest.update(write_canonical_json({"guarantee": index.guarantee.to_dict(), **facts}).encode())
    return digest.hexdigest()


def _locate_ids(path: Path) -> Path:
    return path.with_name(path.stem + ".ids.json")


def _is_same_file(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
