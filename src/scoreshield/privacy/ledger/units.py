"""The unit of a charge: what it protects. Promises about different changes of the records do not add up.

The unit of an identity adjacency names the grouping itself, by a keyed hash of its labels: two groupings with equal
counts are two promises. Without the ledger's key, the hash reveals nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield.errors import InvalidInput, InvalidParameter
from scoreshield.privacy.adjacency import Adjacency, Identity, NullRecord, Replacement
from scoreshield.privacy.ledger.entries import LONGEST_WRITTEN, read_json, write_canonical_json
from scoreshield.privacy.losses import extract_profile
from scoreshield.privacy.profiles import Profile, profile_from_dict

#: The number of identities, the size of the largest, and a hash of the labels.
_GROUPING = re.compile(r" identities \d+ largest \d+( labels [0-9a-f]{64})?$")


def check_units(known: Iterable[str], unit: str, *, same_people: bool) -> None:
    """Raise an error where an account holds promises about another change than this one.

    Other labels are another grouping of the records, unless the caller says that they are of the ``same_people``, of
    whom some came and went.
    """
    for earlier in sorted(set(known) - {unit}):
        alike = _drop_identities(earlier) == _drop_identities(unit)
        if alike and same_people:
            continue
        if alike and " labels " not in earlier:
            raise InvalidInput(
                f"This budget counts a promise about {earlier!r} without a hash of its labels, as earlier versions "
                "wrote it. Whether these are the same groups is unknown; say same_people=True if they are."
            )
        if alike:
            raise InvalidInput(
                f"This budget counts promises about {_drop_hash(earlier)!r}, and the release groups the records in "
                "another way. Promises about different groups do not add up. Keep the labels, or say same_people=True "
                "if these are the same people of whom some came or went."
            )
        raise InvalidInput(
            f"This budget counts promises about {_drop_hash(earlier)!r}, and the release makes one about "
            f"{_drop_hash(unit)!r}. Promises about different changes do not add up. Release the same records under one "
            "adjacency. Another name for them would not count what was spent."
        )


def make_charge(item: Any, adjacency: Adjacency | None, key: bytes, *, same_people: bool) -> tuple[Profile, str, str]:
    """Return the profile, the unit and the guarantee as text; raise an error for what cannot be charged."""
    guarantee = getattr(item, "guarantee", item)
    if isinstance(guarantee, Profile) or not hasattr(guarantee, "sampler"):
        _validation.reject("item", "a guarantee or a release", guarantee)
    if guarantee.sampler != "exact":
        raise InvalidInput(
            f"A ledger does not take a release from the {guarantee.sampler!r} sampler: anyone who knows its seed can "
            "undo the noise, so no budget covers it; release without a seed."
        )
    profile = extract_profile(guarantee)
    unit = _unit(guarantee.adjacency, adjacency, key, same_people)
    if isinstance(guarantee.adjacency, NullRecord):
        # Two records are two changes from a null record apart. The release also states what it promises between them,
        # which adds up with every other promise about the replacement of a record.
        profile, unit = guarantee.record_profile(), _unit(Replacement(), None, key, same_people)
    try:
        # What later versions read back must be what is charged now.
        text = write_canonical_json(profile.to_dict())
        # An entry has its own dataset, who and why.
        stated = {name: value for name, value in guarantee.to_dict().items() if name != "provenance"}
        promise = write_canonical_json(stated)
        if max(len(text), len(promise)) > LONGEST_WRITTEN:
            raise ValueError(f"it has more than {LONGEST_WRITTEN:,} characters")
        if profile_from_dict(read_json(text)) != profile:
            raise ValueError("it does not read back")
        return profile, unit, promise
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidInput(f"The guarantee cannot be written to a ledger: {error}") from None


def _unit(promised: Adjacency, given: Adjacency | None, key: bytes, same_people: bool) -> str:
    if given is not None and given.drop_labels() != promised.drop_labels():
        raise InvalidParameter(
            "adjacency", f"must be the one of the release, {promised.to_dict()}. Got {given.to_dict()} instead."
        )
    facts = promised.to_dict()
    unit = " ".join([str(facts["kind"]), *(f"{name} {facts[name]!r}" for name in sorted(facts) if name != "kind")])
    if not isinstance(promised, Identity):
        return unit
    labels = getattr(given, "labels", None)
    labels = promised.labels if labels is None else labels
    if labels is not None:
        return f"{unit} labels {_hash_labels(labels, key)}"
    if same_people:
        return unit
    raise InvalidInput(
        "A charge for an identity release needs its labels, to tell its groups from others: give adjacency=, the "
        "Identity that it was made with, or same_people=True if every charge is about the same people."
    )


def _hash_labels(labels: NDArray[Any], key: bytes) -> str:
    """Compute the HMAC of the labels in the order of the rows. Equal labels have one hash in any type of array."""
    kind: str = labels.dtype.kind
    if kind in "US":
        width = max(1, int(np.strings.str_len(labels).max()))
        plain = labels.astype(f"<U{width}" if kind == "U" else f"S{width}")
    else:
        kind = "large" if kind == "u" and int(labels.max()) > np.iinfo(np.int64).max else "integer"
        plain = labels.astype("<i8")  # large ones keep their bits
    mac = hmac.new(key, f"scoreshield labels 1\n{kind} {plain.dtype.itemsize} {plain.size}\n".encode(), hashlib.sha256)
    mac.update(plain.tobytes())
    return mac.hexdigest()


def _drop_identities(unit: str) -> str:
    """Return what a unit of an entry promises, without its identities."""
    return _GROUPING.sub("", unit) if unit.startswith("identity ") else unit


def _drop_hash(unit: str) -> str:
    """Return a unit without the hash of its labels."""
    return unit.partition(" labels ")[0]
