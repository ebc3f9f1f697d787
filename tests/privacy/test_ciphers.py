"""Encryption and tags of bytes: they agree with other implementations, and nothing else opens."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from scoreshield.privacy import ciphers

SECRET, INFO = bytes(range(32)), b"purpose"
KEY = HKDF(hashes.SHA256(), 32, salt=None, info=INFO).derive(SECRET)


@pytest.mark.parametrize("size", [0, 1, 16, 100_000])
def test_encryption(size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    encrypted = ciphers.encrypt(SECRET, INFO, content)
    assert len(encrypted) == size + 28  # a nonce and a tag
    assert ciphers.decrypt(SECRET, INFO, encrypted) == content
    assert AESGCM(KEY).decrypt(encrypted[:12], encrypted[12:], None) == content
    assert ciphers.encrypt(SECRET, INFO, content) != encrypted  # another nonce


def test_nothing_else_opens() -> None:
    encrypted = ciphers.encrypt(SECRET, INFO, b"content")
    edited = [encrypted[:place] + bytes([encrypted[place] ^ 1]) + encrypted[place + 1 :] for place in range(35)]
    for content in [*edited, encrypted[:-1], encrypted + b"x", encrypted[:12], encrypted[:5], b""]:
        assert ciphers.decrypt(SECRET, INFO, content) is None
    assert ciphers.decrypt(SECRET[::-1], INFO, encrypted) is None
    assert ciphers.decrypt(SECRET, INFO + b"x", encrypted) is None


def test_tag() -> None:
    """The tag of AES-GCM without a message; the parts that are read at once do not matter."""
    content = bytes(range(256)) * 5
    tag = AESGCM(KEY).encrypt(bytes(12), b"", content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ciphers, "_PART_BYTES", 100)
        assert ciphers.compute_tag(SECRET, INFO, memoryview(content)) == tag
    assert ciphers.compute_tag(SECRET, INFO, memoryview(content)) == tag
    assert ciphers.compute_tag(SECRET, INFO, memoryview(content[:-1])) != tag
