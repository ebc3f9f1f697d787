"""Signatures: of the whole content, by one key, and checked offline."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

import scoreshield as ss
from scoreshield.privacy.signatures import SigningKey, find_signature_fault

SEED = bytes(range(32))
DOCUMENT = {"collection": "docs", "hits": [{"id": "a", "score": 0.1}, {"id": "b", "score": 1e-300}]}


def test_signature_is_of_the_content() -> None:
    key = SigningKey(SEED)
    signed = key.sign_document(DOCUMENT)
    assert signed == SigningKey(SEED).sign_document(DOCUMENT)  # the same bytes each time
    read = json.loads(json.dumps(signed, indent=3))  # other spaces, the same content
    assert find_signature_fault(read, key.public) is None
    assert find_signature_fault(read, key.public.upper() + "\n") is None
    assert find_signature_fault(read) is None
    content = b"scoreshield signed document 1\n" + json.dumps(DOCUMENT, sort_keys=True, separators=(",", ":")).encode()
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.public)).verify(
        bytes.fromhex(signed["signature"]["value"]), content
    )


@pytest.mark.parametrize(
    "change",
    [
        {"collection": "dogs"},
        {"hits": DOCUMENT["hits"][:1]},
        {"more": 1},
        {"signature": None},
        {"signature": {"algorithm": "none"}},
        {"signature": {"algorithm": "Ed25519", "key": "00", "value": "00"}},
        {"signature": {"algorithm": "Ed25519"}},
        {"signature": {"algorithm": "Ed25519", "key": SigningKey(SEED).public, "value": "é"}},
    ],
)
def test_changed_document_fails(change: dict[str, object]) -> None:
    signed = {**SigningKey(SEED).sign_document(DOCUMENT), **change}
    assert find_signature_fault(signed) is not None


@pytest.mark.parametrize(
    "respell",
    [
        lambda signature: signature | {"note": "approved"},
        lambda signature: signature | {"key": signature["key"].upper()},
        lambda signature: signature | {"value": signature["value"].upper()},
        lambda signature: signature | {"value": signature["value"][:64] + " " + signature["value"][64:]},
        lambda signature: signature | {"value": signature["value"] + "\n"},
    ],
)
def test_signature_has_one_form(respell: Callable[[dict[str, str]], dict[str, str]]) -> None:
    signed = SigningKey(SEED).sign_document(DOCUMENT)
    changed = {**signed, "signature": respell(signed["signature"])}
    assert find_signature_fault(signed) is None
    assert find_signature_fault(changed) == "its signature does not have the form that an installation writes"


def test_other_key_fails() -> None:
    signed = SigningKey(bytes(32)).sign_document(DOCUMENT)
    assert find_signature_fault(signed) is None
    assert find_signature_fault(signed, SigningKey(SEED).public) == "another key than the given one signed it"


@pytest.mark.parametrize("given", ["", "b314f7f4...", SigningKey(SEED).public[:-1], SigningKey(SEED).public + "0"])
def test_part_of_a_key_is_not_another_key(given: str) -> None:
    """Pages show keys cut short. Who copies such a part learns what is wrong with it."""
    signed = SigningKey(SEED).sign_document(DOCUMENT)
    assert find_signature_fault(signed, given) == "the given public key must have 64 hexadecimal digits"


def test_key_leaves_no_trace() -> None:
    key = SigningKey(SEED)
    assert SEED.hex() not in repr(key) + str(vars(key))
    with pytest.raises(ss.InvalidInput):
        pickle.dumps(key)
    with pytest.raises(ss.InvalidInput):
        SigningKey(SEED[:31])
