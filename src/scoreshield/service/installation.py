"""The secrets of an installation: what answers are found by, and what signs them.

They lie in one file that only its owner can read, outside of the database. So a copy of the database alone shows
neither which queries were asked nor the noise of an answer that is not computed yet, and cannot sign.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from scoreshield import _files, _loading
from scoreshield.errors import FileError, InvalidInput
from scoreshield.privacy.ledger.entries import write_canonical_json
from scoreshield.privacy.signatures import SigningKey

_FORMAT = 1


class InstallationKey:
    """The secret of an installation and its signing keys, the newest first."""

    def __init__(self, secret: bytes, signing: list[bytes]) -> None:
        self._tag: Callable[[bytes], bytes] = lambda content: hmac.digest(secret, content, "sha256")
        self.signing_keys = [SigningKey(seed) for seed in signing]

    def __repr__(self) -> str:
        return f"<InstallationKey {self.fingerprint[:16]}>"

    def __reduce__(self) -> NoReturn:
        raise InvalidInput("An installation key cannot be pickled or copied: it is secret.")

    @property
    def fingerprint(self) -> str:
        """A public name of the secret."""
        return self.compute_tag("fingerprint")

    @property
    def signer(self) -> SigningKey:
        """The key that signs new answers."""
        return self.signing_keys[0]

    def find_signer(self, public: str | None) -> SigningKey:
        """Find the key that signed an answer first, so that its bytes stay the same; the newest if it is gone."""
        return next((key for key in self.signing_keys if key.public == public), self.signer)

    def compute_tag(self, purpose: str, *parts: str | bytes) -> str:
        """Compute the HMAC-SHA256 of texts for one purpose, in hexadecimal."""
        return self.derive_secret(purpose, *parts).hex()

    def derive_secret(self, purpose: str, *parts: str | bytes) -> bytes:
        """Derive 32 secret bytes from texts, each with its length before it."""
        encoded = [part.encode("utf-8") if isinstance(part, str) else part for part in (purpose, *parts)]
        return self._tag(b"".join(len(part).to_bytes(8, "big") + part for part in encoded))


def open_installation_key(path: Path, *, is_made: bool) -> InstallationKey:
    """Read the file of the installation's secrets.

    Args:
        path: The file.
        is_made: Whether a missing file is made. Replicas share one file, so only the first start makes it.
    """
    if is_made and not path.exists():
        _write_key_file(path, secrets.token_bytes(32), [secrets.token_bytes(32)], is_new=True)
    secret, signing = _read_key_file(path)
    return InstallationKey(secret, signing)


def rotate_signing_key(path: Path) -> str:
    """Add a new signing key to the file, and return its public key. Older ones stay, for the answers they signed."""
    secret, signing = _read_key_file(path)
    fresh = secrets.token_bytes(32)
    _write_key_file(path, secret, [fresh, *signing], is_new=False)
    return SigningKey(fresh).public


def hash_text(text: str) -> str:
    """Compute the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _read_key_file(path: Path) -> tuple[bytes, list[bytes]]:
    try:
        mode = path.stat().st_mode
        content: Any = _loading.parse_json(_loading.read_bytes(path, most=2**16))
        secret, signing = bytes.fromhex(content["secret"]), [bytes.fromhex(seed) for seed in content["signing"]]
        is_whole = content["format"] == _FORMAT and len(secret) == 32 and signing
    except FileNotFoundError:
        raise InvalidInput(
            f"There is no installation key {path}. The first start on this database made one; copy it from there."
        ) from None
    except (OSError, KeyError, TypeError, ValueError):
        is_whole = False
    if not is_whole:
        raise InvalidInput(f"{path} is no installation key.")
    if os.name == "posix" and mode & (stat.S_IRWXO | stat.S_IRWXG):
        raise InvalidInput(f"Others may read the installation key {path}: chmod 600 removes this access.")
    return secret, signing


def _write_key_file(path: Path, secret: bytes, signing: list[bytes], *, is_new: bool) -> None:
    content = {"format": _FORMAT, "secret": secret.hex(), "signing": [seed.hex() for seed in signing]}
    text = write_canonical_json(content).encode("ascii") + b"\n"
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            os.link(temporary, path)  # another process that made one first wins
        else:
            temporary.replace(path)
        _files.sync_folder(path.parent)
    except FileExistsError:
        pass
    except OSError as error:
        raise FileError(f"The installation key {path} cannot be written: {error.strerror}.") from None
    finally:
        temporary.unlink(missing_ok=True)
