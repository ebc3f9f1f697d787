"""Partitioned collections, searches for secrets, and faults of workers, for the tests of distributed releases."""

from __future__ import annotations

import base64
import contextlib
import os
import resource
import shutil
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
import scoreshield.distributed as sd
from scoreshield.distributed import blocks, driver, key_table, keys, manifest, prepared
from scoreshield.distributed.manifest import TILE_ROWS
from scoreshield.distributed.storage import LocalFolder
from scoreshield.geometry import embeddings


class Killed(BaseException):
    """Ends a driver as a signal would: nothing of the library handles it."""


DIMENSION = 4
SECRET = bytes(range(100, 132))
RELEASE = "0123456789abcdef" * 2
#: The ids that the releases of a test draw, one after the other.
RELEASES = [RELEASE, *(f"{number:032x}" for number in range(1, 9))]
QUERY = np.array([1.0, -2.0, 0.5, 3.0])
#: A folder of this many rows has three tiles, the last one short, and files that end within tiles.
FILE_ROWS = (70_000, 10, 90_000)
#: Undo what a test did to this worker.
_undo: list[Callable[[], None]] = []


def write_collection(folder: Path, rows: tuple[int, ...] = FILE_ROWS) -> np.ndarray:
    """Write .npy files and return all their rows."""
    folder.mkdir()
    rng = np.random.default_rng(22)
    parts = [rng.standard_normal((count, DIMENSION)).astype(np.float32) for count in rows]
    for number, part in enumerate(parts):
        np.save(folder / f"{number}.npy", part)
    return np.concatenate(parts)


def release(source: Path, to: Path, **options: Any) -> sd.DistributedRelease:
    """Release scores in blocks of one tile."""
    options = {"epsilon": 2.0, "mechanism": "staircase", "block_rows": TILE_ROWS} | options
    return sd.release_scores(source, options.pop("query", QUERY), to=to, **options)


def make_account(folder: Path) -> Any:
    return ss.Ledger.create(f"sqlite:///{folder / 'ledger.db'}", epsilon=10.0, delta=0.0).account("people")


def use_same_key(patch: pytest.MonkeyPatch, ids: list[str] = RELEASES) -> None:
    """Let every release have the same key, and ids that the test knows, to compare two of them."""
    left = iter(ids)
    patch.setattr(driver, "make_secret", lambda: SECRET)
    patch.setattr(driver, "make_release_id", lambda: next(left))


def read_key_rows(account: Any) -> list[dict[str, Any]]:
    """Read all rows of the keys of a ledger."""
    names = ("release", "folder", "entry", "manifest", "place", "secret")

    def read(session: Any) -> list[Any]:
        session.execute(key_table._TABLE)
        return list(session.execute(f"SELECT {', '.join(names)} FROM {key_table.RELEASE_KEYS}").fetchall())

    return [dict(zip(names, row, strict=True)) for row in account.ledger.write_beside(read)]


def read_folder(folder: Path) -> dict[str, bytes]:
    """Read every file of a folder."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def fail_after(patch: pytest.MonkeyPatch, owner: Any, name: str, calls: int, *, before: bool = False) -> None:
    """End the process after some calls of a function, or before the last of them does anything."""
    work: Callable[..., Any] = getattr(owner, name)
    done = []

    def fail(*arguments: Any, **options: Any) -> Any:
        done.append(1)
        if before and len(done) == calls:
            raise Killed
        answer = work(*arguments, **options)
        if len(done) == calls:
            raise Killed
        return answer

    patch.setattr(owner, name, fail)


def fail_at_write(patch: pytest.MonkeyPatch, prefix: str, count: int = 1, *, before: bool = False) -> None:
    """End the process after, or before, some writes of files whose names begin with this."""
    work = LocalFolder.put_if_absent
    done = []

    def write(folder: Any, name: str, content: bytes) -> bool:
        done.extend([1] * name.startswith(prefix))
        if before and len(done) == count:
            raise Killed
        is_first = work(folder, name, content)
        if len(done) == count:
            raise Killed
        return is_first

    patch.setattr(LocalFolder, "put_if_absent", write)


def act_after(patch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], object]) -> None:
    """Do something after each call of a function."""
    work: Callable[..., Any] = getattr(owner, name)

    def run(*arguments: Any, **options: Any) -> Any:
        answer = work(*arguments, **options)
        act()
        return answer

    patch.setattr(owner, name, run)


def lose_encrypted_blocks(to: Path) -> None:
    """Remove what was computed before the charge, so that the rows are read again."""
    shutil.rmtree(to / "checks")


def read_files(folder: Path) -> dict[str, bytes]:
    """Read every file of a release, without those that name the time or the charge."""
    return {path.name: path.read_bytes() for path in sorted((folder / "parts").iterdir())}


def list_forms(secret: bytes) -> list[bytes]:
    """List the forms in which a key could lie in a file, a log or a page."""
    numbers = ", ".join(str(byte) for byte in secret)
    texts = [
        secret.hex(),
        base64.b64encode(secret).decode(),
        base64.urlsafe_b64encode(secret).decode(),
        repr(secret)[2:-1],
        repr(str(secret))[1:-1],
        numbers,
        numbers.replace(" ", ""),
        secret.hex().upper(),
        " ".join(f"{byte:02x}" for byte in secret),
    ]
    return [secret, secret[::-1], *(text.encode() for text in texts)]


def holds_secret(content: bytes, secret: bytes) -> bool:
    """Whether bytes hold a key in any of its forms. Half a key counts."""
    halves = (secret, secret[:16], secret[16:])
    return any(form in content for half in halves for form in list_forms(half))


def slow_down(seconds: float) -> None:
    """Let each block of this worker take longer, so that a test can interrupt it."""
    work = blocks.release_block

    def wait(*arguments: Any, **options: Any) -> bytes:
        content: bytes = work(*arguments, **options)
        time.sleep(seconds)
        return content

    _replace(blocks, "release_block", wait)


def die_after_writing(mark: str, prefix: str) -> None:
    """Let the first worker that writes a file whose name begins with this die before it can report."""
    work = LocalFolder.put_if_absent

    def write_and_die(folder: Any, name: str, content: bytes) -> bool:
        is_first = work(folder, name, content)
        if not name.startswith(prefix):
            return is_first
        with contextlib.suppress(FileExistsError):
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            os._exit(1)
        return is_first

    _replace(LocalFolder, "put_if_absent", write_and_die)


def keep_no_blocks() -> None:
    """Let this worker keep nothing of what it computes before the charge, as of a release with larger blocks."""
    _replace(prepared, "_MOST_BYTES", 0)


def change_last_bits() -> None:
    """Let this worker compute as a machine with another BLAS: the last bit of each clean score in single precision."""
    work = embeddings.compute_scores

    def compute(*arguments: Any, **options: Any) -> Any:
        scores = work(*arguments, **options)
        return np.nextafter(scores.astype(np.float32), np.float32(2)).astype(np.float64)

    _replace(embeddings, "compute_scores", compute)


def limit_files(size: int) -> None:
    """Let this worker write no file larger than this, as on a disk that is full."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    _undo.append(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


def change_version() -> None:
    """Let this worker have another version of the package."""
    _replace(manifest, "VERSION", "0.0.1")
    blocks._read_manifest.cache_clear()


class HiddenPackage:
    """Finds no module of the package, as on a machine that has none."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name.partition(".")[0] == "scoreshield":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def hide_package() -> None:
    """Let this worker have no scoreshield."""
    hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "scoreshield"}
    for name in hidden:
        del sys.modules[name]
    finder = HiddenPackage()
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    _undo.append(lambda: sys.modules.update(hidden))
    _undo.append(lambda: sys.meta_path.remove(finder))  # type: ignore[arg-type]


def have_torch(is_there: bool) -> None:
    """Let this worker have PyTorch, as far as the check of a device looks, or let it have none."""
    fake: Any = types.ModuleType("torch")
    fake.from_numpy = np.asarray
    before = sys.modules.get("torch")
    sys.modules["torch"] = fake if is_there else None  # type: ignore[assignment]
    _undo.append(lambda: sys.modules.pop("torch", None) if before is None else sys.modules.update(torch=before))


def restore_worker() -> None:
    """Undo what the functions above did to this worker."""
    while _undo:
        _undo.pop()()
    blocks._read_manifest.cache_clear()


def has_key(release: str) -> bool:
    """Whether this process holds the key of a release."""
    return any(name.startswith(release) for name, _ in keys._held)


def dump_process() -> str:
    """Dump what others can see of this process: its arguments and its environment, as it began and as it is now."""
    found = [Path(f"/proc/self/{name}") for name in ("cmdline", "environ")]
    return repr([sys.argv, dict(os.environ), *(path.read_bytes() for path in found if path.exists())])


def dump_scheduler(dask_scheduler: Any) -> dict[str, bytes]:
    """Dump what a scheduler knows: its graph, its events, its transitions, and its plugins."""
    import cloudpickle  # Dask brings it

    tasks = [
        (key, repr(task), task.run_spec, task.annotations, task.metadata, repr(task.exception), task.exception_text)
        for key, task in dask_scheduler.tasks.items()
    ]
    return {
        "tasks": cloudpickle.dumps(tasks) + repr(tasks).encode(),
        "events": repr({name: list(topic.events) for name, topic in dask_scheduler._broker._topics.items()}).encode(),
        "transitions": repr(list(dask_scheduler.transition_log)).encode(),
        "identity": repr(dask_scheduler.identity()).encode(),
        "plugins": b"".join(dask_scheduler.worker_plugins.values()),
    }


def _replace(owner: Any, name: str, value: Any) -> None:
    before = getattr(owner, name)
    _undo.append(lambda: setattr(owner, name, before))
    setattr(owner, name, value)


def wait_until(is_done: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < end
        time.sleep(0.02)
