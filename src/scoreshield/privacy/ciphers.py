"""Encryption and tags of bytes under keys that are derived from a secret key, by AES-256 in Galois/counter mode."""

from __future__ import annotations

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from scoreshield.privacy.sampling.stream import KEY_BYTES

_NONCE_BYTES = 12
#: GMAC may have one nonce for all contents, because no tag is ever shown.
_NONCE = bytes(_NONCE_BYTES)
#: The bytes that are read at once.
_PART_BYTES = 2**24


def encrypt(secret: bytes, info: bytes, content: bytes) -> bytes:
    """Encrypt bytes by AES-256-GCM under the key of ``info``, with a random nonce before them."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(_derive_key(secret, info)).encrypt(nonce, content, None)


def decrypt(secret: bytes, info: bytes, content: bytes) -> bytes | None:
    """Decrypt what `encrypt` returned for the same key; None if it is something else."""
    try:
        return AESGCM(_derive_key(secret, info)).decrypt(content[:_NONCE_BYTES], content[_NONCE_BYTES:], None)
    except (InvalidTag, ValueError):  # too short for a nonce
        return None


def compute_tag(secret: bytes, info: bytes, content: memoryview) -> bytes:
    """Compute the GMAC of bytes under the key of ``info``. Tags must stay secret: two of them allow to forge others.

    AES and the multiplication of GMAC have instructions in every processor, so that it costs less than reading the
    content from memory. Two different contents of n bytes have one tag with a chance of at most (n / 16 + 2) / 2^128.
    """
    mac = Cipher(algorithms.AES(_derive_key(secret, info)), modes.GCM(_NONCE)).encryptor()
    for start in range(0, len(content), _PART_BYTES):
        mac.authenticate_additional_data(content[start : start + _PART_BYTES])
    mac.finalize()
    return mac.tag


def _derive_key(secret: bytes, info: bytes) -> bytes:
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)
