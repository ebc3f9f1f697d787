"""File systems that are named by an address, such as ``s3://bucket/folder``, through fsspec.

The keys of a storage come from the settings of each machine, never from an address: an address is written into the
manifest of a release. fsspec keeps one connection for each process and thread, and drops them in a forked process. So
a file system is asked for at each use, and no object here holds one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from scoreshield._loading import make_printable
from scoreshield.errors import FileError, InvalidInput, ScoreShieldError

#: What names the state of a file, by the names of different storages, the surest first.
_STATES = ("ETag", "etag", "generation", "md5Hash", "mtime", "LastModified", "last_modified", "modified", "created")
#: The schemes whose addresses may have a key in their query.
_WEB = {"http", "https"}


def is_remote(address: str) -> bool:
    """Whether an address is one for fsspec, and not a path of this machine."""
    return "://" in address and not address.startswith("file://")


def check_path_text(path: str) -> None:
    """Raise an error for a path that no manifest and no ledger can hold: its name is not text in UTF-8."""
    try:
        path.encode()
        return
    except UnicodeEncodeError:
        pass
    raise InvalidInput(f"The name of {make_printable(path)} is not valid UTF-8; rename it.")


def check_address(address: str) -> None:
    """Raise an error for an address that may hold a password: addresses are written into the release, and into logs.

    A signed address of the web has its key in the query, and some have a token in place of the user's name. The
    question mark belongs to the name of a file on other storages.
    """
    scheme = make_printable(address.partition("://")[0])
    try:
        parts = urlsplit(address)
        has_password = parts.password is not None
    except ValueError:
        raise InvalidInput(f"The address {scheme}://... is not valid: check its brackets.") from None
    if has_password or (parts.scheme in _WEB and parts.username):
        raise InvalidInput(
            f"The address {scheme}://... holds a password or a user, and addresses are written into the release: give "
            "them in the settings of each machine."
        )
    if parts.scheme in _WEB and parts.query:
        raise InvalidInput(
            f"The address {scheme}://... holds a query (?...), which may be a key, and addresses are written into the "
            "release: copy the files to a storage whose key is in the settings of each machine."
        )


def open_filesystem(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path on it.

    Raises:
        InvalidInput: The address may hold a password, or no installed package opens it.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise InvalidInput(
            "An address such as s3://bucket/folder needs fsspec: pip install 'scoreshield[fsspec]'"
        ) from None
    scheme = make_printable(address.partition("://")[0])
    if "::" in address:  # a cache would hide that a file changed
        raise InvalidInput(f"The address {scheme}://... joins several file systems; give the address of one.")
    check_address(address)
    with explain_storage_errors(address, "open"):
        try:
            # Listings that are kept would hide files of other processes.
            found: tuple[Any, str] = url_to_fs(address, use_listings_cache=False)
        except (ImportError, ValueError):
            raise InvalidInput(
                f"No installed package opens addresses of {scheme}://: install the one that does, such as s3fs for "
                "s3://, gcsfs for gs:// or adlfs for abfs://."
            ) from None
    return found


def list_files(address: str) -> list[str]:
    """List the addresses of all files in a folder, also in the folders in it, or of one file."""
    system, path = open_filesystem(address)
    with explain_storage_errors(address, "read"):
        if system.isfile(path):
            return [address]
        found = system.find(path)
        return sorted((str(system.unstrip_protocol(name)) for name in found), key=lambda name: name.split("/"))


def read_remote_state(address: str) -> tuple[int, str]:
    """Read the size of a file and what changes whenever the file changes."""
    system, path = open_filesystem(address)
    with explain_storage_errors(address, "read"):
        facts = system.info(path)
    found = next(((name, facts[name]) for name in _STATES if facts.get(name) is not None), None)
    if found is None or facts.get("type") != "file" or facts.get("size") is None:
        raise InvalidInput(
            f"The storage of {make_printable(address)} does not say when a file changes; copy the files elsewhere."
        )
    return int(facts["size"]), f"{found[0]}-{found[1]}"


def open_remote_stream(address: str) -> Any:
    """Open a file for reading. Reads are passed on as they are: the reader has a buffer."""
    system, path = open_filesystem(address)
    with explain_storage_errors(address, "read"):
        return system.open(path, "rb", cache_type="none")


@contextlib.contextmanager
def explain_storage_errors(address: str, action: str) -> Iterator[None]:
    """Turn an error of a storage into one sentence, without its own text, which could show rows or passwords."""
    where = make_printable(address)
    try:
        yield
    except ScoreShieldError:
        raise
    except FileNotFoundError:
        raise FileError(f"There is no file or folder {where}.") from None
    except PermissionError:
        raise FileError(f"No permission to {action} {where}.") from None
    except Exception as error:  # each storage has errors of its own
        raise FileError(
            f"Cannot {action} {where}: its storage failed with {type(error).__name__}; start the same release again "
            "to go on."
        ) from None
