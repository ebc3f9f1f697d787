"""The secret key of a release: how a task finds it, and what is derived from it.

A task is given a `KeyHandle`, which names the release and holds no secret. What a task is given lies in graphs,
dashboards, object stores and event files. The worker finds the key by the handle: in the memory of its process, where
an engine's plugin put it, or in a folder that only the owner may read. The driver keeps the key in the ledger
(`scoreshield.distributed.key_table`).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _loading
from scoreshield.errors import InvalidInput
from scoreshield.privacy import ciphers
from scoreshield.privacy.sampling.stream import KEY_BYTES, KeyedStream, derive_stream

#: The first part of what the key of a tile is derived for. Another meaning of the other parts gets another version.
_VERSION = "scoreshield tile key 2"
#: What the key of hashes is derived for. No other derivation from a release key has this text.
_HASH_VERSION = "scoreshield hash of values 1"
#: What the key of encrypted bytes is derived for.
_CIPHER_VERSION = "scoreshield encrypted bytes 1"
_RELEASE = re.compile("[0-9a-f]{32}")
#: The keys in this process, by the name of the key and of who holds it. Closures, because the values of a dictionary
#: appear in every dump of variables.
_held: dict[tuple[str, str], Callable[[], bytes]] = {}


@dataclass(frozen=True)
class KeyHandle:
    """The name of a release's key, which holds no secret and may be sent to workers.

    Attributes:
        release: The id of the release.
        folder: A folder that the workers can read, with the key in a file of this name; empty if an engine gives the
            key to the process of each worker.
        driver: Names the driver that shares the key. Drivers that make one release at once share it under different
            names, so that the first one to end does not take the key from the workers of another.
    """

    release: str
    folder: str = ""
    driver: str = ""

    @property
    def name(self) -> str:
        """The name by which a worker finds the key."""
        return f"{self.release}-{self.driver}"

    def open_stream(self, *facts: str) -> KeyedStream:
        """Open the stream of one tile: the facts say which, and of which release.

        Raises:
            InvalidInput: This process has no key of the release.
        """
        return derive_stream(self._find_secret(), _VERSION, *facts)

    def seal(self, path: str, size: int, state: str) -> str:
        """Seal the state of a file, as `seal_state` does."""
        return seal_state(self._find_secret(), path, size, state)

    def seal_text(self, purpose: str, text: str) -> str:
        """Seal a text, as `seal_text` does."""
        return seal_text(self._find_secret(), purpose, text)

    def hash_values(self, purpose: str, *arrays: NDArray[Any]) -> str:
        """Hash the values of arrays, as `hash_values` does."""
        return hash_values(self._find_secret(), purpose, *arrays)

    def encrypt(self, content: bytes, *facts: str) -> bytes:
        """Encrypt bytes under a key for these facts."""
        return ciphers.encrypt(self._find_secret(), self._name_cipher(facts), content)

    def decrypt(self, content: bytes, *facts: str) -> bytes | None:
        """Decrypt what `encrypt` returned for the same facts; None if it is something else."""
        return ciphers.decrypt(self._find_secret(), self._name_cipher(facts), content)

    def _name_cipher(self, facts: tuple[str, ...]) -> bytes:
        return json.dumps([_CIPHER_VERSION, self.release, *facts]).encode()

    def _find_secret(self) -> bytes:
        for (name, _), read_secret in list(_held.items()):
            if name == self.name:
                return read_secret()
        if self.folder:
            try:
                secret = _loading.read_bytes(Path(self.folder) / self.name, most=KEY_BYTES)
            except (_loading.MissingFile, InvalidInput, OSError):
                secret = b""
            if len(secret) == KEY_BYTES:
                return secret
        raise InvalidInput(
            "This worker has no key of the release: it ended, or the folder of keys cannot be read from this machine."
        )


def hold_secret(handle: KeyHandle, secret: bytes, holder: str = "") -> None:
    """Keep the key of a release in the memory of this process, until each holder dropped it.

    Args:
        handle: Names the key.
        secret: The key.
        holder: Who needs it: several workers may be threads of one process.
    """
    _held[handle.name, holder] = lambda: secret


def drop_secret(handle: KeyHandle, holder: str = "") -> None:
    """Forget the key of a release in this process, unless another holder needs it."""
    _held.pop((handle.name, holder), None)


def make_driver_name(machine: str = "0" * 8) -> str:
    """Draw the name of a driver that shares a key; 8 hexadecimal digits of it are of its machine."""
    return machine + secrets.token_hex(4)


@contextlib.contextmanager
def share_in_process(release: str, secret: bytes) -> Iterator[KeyHandle]:
    """Hold the key in this process, for tasks that run in it."""
    handle = KeyHandle(release, driver=make_driver_name())
    hold_secret(handle, secret)
    try:
        yield handle
    finally:
        drop_secret(handle)


def seal_state(secret: bytes, path: str, size: int, state: str) -> str:
    """Compute a keyed hash of the state of a file, in hexadecimal."""
    return seal_text(secret, "file", json.dumps([path, size, state]))


def seal_text(secret: bytes, purpose: str, text: str) -> str:
    """Compute a keyed hash of a text for one purpose, in hexadecimal."""
    content = f"scoreshield seal 1 {purpose} {text}".encode()
    return hmac.new(secret, content, hashlib.sha256).hexdigest()


def hash_values(secret: bytes, purpose: str, *arrays: NDArray[Any]) -> str:
    """Compute a keyed hash of the values of arrays for one purpose, in hexadecimal.

    Each array is hashed by GMAC under a secret key, which is fast. HMAC-SHA256 of the tags leaves this function: to
    someone without the key it says whether two arrays are equal, and nothing else.

    Args:
        secret: The key of the release.
        purpose: What the hash is for. Hashes for other purposes do not meet this one.
        arrays: Numbers of any type and shape.
    """
    facts = []
    for values in arrays:
        content = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        tag = ciphers.compute_tag(secret, _HASH_VERSION.encode(), content)
        facts.append([values.dtype.str, list(values.shape), tag.hex()])
    return seal_text(secret, purpose, json.dumps(facts))


def make_secret() -> bytes:
    """Draw a key from the operating system."""
    return secrets.token_bytes(KEY_BYTES)


def make_release_id() -> str:
    """Draw the id of a release. It is public."""
    return secrets.token_hex(16)


def check_release_id(text: object) -> str:
    """Check an id that comes from a file: it becomes a file name."""
    if not isinstance(text, str) or not _RELEASE.fullmatch(text):
        raise InvalidInput("The id of the release is not valid.")
    return text
