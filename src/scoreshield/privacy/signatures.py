"""Ed25519 signatures of answers, certificates and entries.

A signature is over the canonical JSON of a document without its member ``"signature"``. Anyone with the public key of
an installation checks it offline (`scoreshield verify`). It shows that the installation wrote the document. It does not
show that the installation is honest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from scoreshield.errors import InvalidInput
from scoreshield.privacy.ledger.entries import write_canonical_json

ALGORITHM = "Ed25519"
#: The member of a document that holds its signature.
MEMBER = "signature"
_DOMAIN = b"scoreshield signed document 1\n"
_PARTS = {"algorithm", "key", "value"}


class SigningKey:
    """The private key of an installation. Neither ``repr`` nor an error shows it, and it cannot be pickled.

    Attributes:
        public: The public key, in hexadecimal. It names the key in signatures.
    """

    def __init__(self, seed: bytes) -> None:
        try:
            key = Ed25519PrivateKey.from_private_bytes(seed)
        except ValueError:
            raise InvalidInput("The private key of a signature has 32 bytes.") from None
        self.public = key.public_key().public_bytes_raw().hex()
        self._sign: Callable[[bytes], bytes] = lambda content: key.sign(content)  # a closure: attributes are dumped

    def __repr__(self) -> str:
        return f"<SigningKey {self.public[:16]}>"

    def __reduce__(self) -> NoReturn:
        raise InvalidInput("A signing key cannot be pickled or copied: it is secret.")

    def sign_document(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the document with its signature."""
        plain = {name: value for name, value in document.items() if name != MEMBER}
        value = self._sign(_write_content(plain)).hex()
        return {**plain, MEMBER: {"algorithm": ALGORITHM, "key": self.public, "value": value}}


def find_signature_fault(document: Mapping[str, Any], public_key: str | None = None) -> str | None:
    """Return what is wrong with the signature of a document; None if it is good.

    Args:
        document: The document, as it was read from JSON.
        public_key: The expected public key in hexadecimal. None takes the key that the document names, which anyone
            could have made.
    """
    signature = document.get(MEMBER)
    if not isinstance(signature, Mapping) or signature.get("algorithm") != ALGORITHM:
        return "it holds no Ed25519 signature"
    if public_key is not None and not _is_hex(public_key.strip().lower(), 32):
        return "the given public key must have 64 hexadecimal digits"
    if public_key is not None and signature.get("key") != public_key.strip().lower():
        return "another key than the given one signed it"
    # One form only. What is added or respelled inside of the signature is signed by no one.
    if set(signature) != _PARTS or not (_is_hex(signature["key"], 32) and _is_hex(signature["value"], 64)):
        return "its signature does not have the form that an installation writes"
    plain = {name: value for name, value in document.items() if name != MEMBER}
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature["key"]))
        key.verify(bytes.fromhex(signature["value"]), _write_content(plain))
    except (InvalidSignature, TypeError, ValueError, RecursionError):
        return "the signature is not of this content"
    return None


def _is_hex(text: Any, size: int) -> bool:
    """Return whether a text is this many bytes in lower-case hexadecimal."""
    return isinstance(text, str) and re.fullmatch(f"[0-9a-f]{{{2 * size}}}", text) is not None


def _write_content(plain: Mapping[str, Any]) -> bytes:
    return _DOMAIN + write_canonical_json(plain).encode("ascii")
