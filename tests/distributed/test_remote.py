"""Folders of releases on object storage: each name is written once, and what fails gives one sentence."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from source_support import DIMENSION, make_vectors, write_file

import scoreshield as ss
from scoreshield.distributed import open_release, release_scores, storage
from scoreshield.distributed.key_table import ReleaseKeyTable
from scoreshield.distributed.manifest import TILE_ROWS
from scoreshield.distributed.remote import EXCLUSIVE, RemoteFolder
from scoreshield.distributed.sources.opening import describe_source, open_source
from scoreshield.errors import FileError, InvalidInput

fsspec = pytest.importorskip("fsspec", reason="the 'fsspec' extra is not installed")
S3 = "needs: pip install s3fs 'moto[s3]' flask flask-cors"


@pytest.fixture
def memory() -> Any:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


@pytest.fixture
def account(tmp_path: Path) -> Any:
    return ss.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=1000.0, delta=1e-6).account("vectors")


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A server of S3's protocol, and the settings that lead s3fs to it. It gives the address of a bucket."""
    for package in ("s3fs", "moto", "flask", "flask_cors"):
        pytest.importorskip(package, reason=S3)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    settings = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        try:
            wait_for(port, process)
            fsspec.filesystem("s3").mkdir("bucket")
            yield "s3://bucket"
        finally:
            process.terminate()
            process.wait(10)
            fsspec.filesystem("s3").clear_instance_cache()


def wait_for(port: int, process: Any) -> None:
    for _ in range(300):
        assert process.poll() is None
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError("the server did not start")


@pytest.fixture(params=["memory", "s3"])
def address(request: pytest.FixtureRequest) -> str:
    """A new folder on each storage that can be had here."""
    request.getfixturevalue(request.param)
    where = "memory://bucket" if request.param == "memory" else "s3://bucket"
    return f"{where}/{request.node.name.partition('[')[0]}"


def release(source: Any, to: Any, **options: Any) -> Any:
    return release_scores(source, np.ones(DIMENSION), to=to, epsilon=2.0, mechanism="staircase", **options)


def test_a_name_is_written_once(address: str) -> None:
    folder = storage.open_folder(address + "/")
    assert isinstance(folder, RemoteFolder)
    assert folder.address == address
    assert folder.list_names() == []
    assert folder.read("manifest.json") is None
    assert folder.put_if_absent("manifest.json", b"one")
    assert not folder.put_if_absent("manifest.json", b"two")
    assert folder.put_or_read("manifest.json", b"two") == b"one"
    assert folder.put_or_read("parts/part-1.parquet", b"") == b""
    assert folder.list_names() == ["manifest.json", "parts/part-1.parquet"]
    folder.remove("manifest.json")
    folder.remove("manifest.json")
    assert folder.list_names() == ["parts/part-1.parquet"]


def test_of_many_writers_one_wins(address: str) -> None:
    folder = storage.open_folder(address)
    for attempt in range(5):
        name, won, read, start = f"parts/{attempt}", [], [], threading.Barrier(4)

        def write(number: int, name: str = name, won: Any = won, read: Any = read, start: Any = start) -> None:
            start.wait()
            if folder.put_if_absent(name, bytes([number]) * 1000):
                won.append(number)
            read.append(folder.read(name))

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert read == [bytes([won[0]]) * 1000] * 4


def test_a_release_on_storage_is_that_of_a_folder(address: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_file(data / "a.parquet", make_vectors(TILE_ROWS + 100))
    local = release(data, tmp_path / "out", seed=1)
    remote = release(data, address, seed=1, block_rows=TILE_ROWS)
    assert len(remote) == 2
    assert np.array_equal(local.scores(), remote.scores())
    assert np.array_equal(open_release(address).top_k(5).indices, local.top_k(5).indices)


def test_a_lost_connection_stops_and_the_release_goes_on(
    address: str, tmp_path: Path, account: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(tmp_path / "data" / "a.parquet", make_vectors(100))
    original = RemoteFolder._find

    def lose(self: Any, name: str) -> Any:
        system, path = original(self, name)
        return (LossySystem(system) if name.startswith("parts") else system), path

    with monkeypatch.context() as patch:
        patch.setattr(RemoteFolder, "_find", lose)
        with pytest.raises(FileError, match=r"storage failed with ConnectionResetError; start the same") as caught:
            release(tmp_path / "data", address, ledger=account)
    assert "0.12345" not in str(caught.value)
    charged = account.ledger.spent
    assert charged > 0
    with pytest.raises(InvalidInput, match=r"no (whole )?release"):
        open_release(address)
    made = release(tmp_path / "data", address, ledger=account)
    assert account.ledger.spent == charged
    assert len(made.scores()) == 100


class LossySystem:
    """A file system that loses the connection at each write."""

    def __init__(self, system: Any) -> None:
        self._system = system

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)

    def pipe_file(self, *_: Any, **__: Any) -> None:
        raise ConnectionResetError("a text with 0.12345 in it")


def test_the_key_is_never_on_the_storage(
    address: str, tmp_path: Path, account: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(tmp_path / "data" / "a.parquet", make_vectors(100))
    secrets: list[bytes] = []
    add = ReleaseKeyTable.add

    def watch(self: Any, name: str, secret: bytes, folder: str) -> None:
        secrets.append(secret)
        add(self, name, secret, folder)

    monkeypatch.setattr(ReleaseKeyTable, "add", watch)
    release(tmp_path / "data", address, ledger=account)
    folder = storage.open_folder(address)
    names = folder.list_names()
    assert {"manifest.json", "parts/part-00000000.parquet", "release.json"} <= set(names)
    assert len(secrets) == 1
    content = b"".join(folder.read(name) or b"" for name in names)
    assert secrets[0] not in content
    assert secrets[0].hex().encode() not in content


def test_the_folder_of_keys_is_apart(memory: Any, tmp_path: Path, account: Any) -> None:
    write_file(tmp_path / "data" / "a.parquet", make_vectors(10))
    out = tmp_path / "out"
    for keys, to in (("memory://keys", out), (out, out), (out / "parts" / "keys", out)):
        with pytest.raises(InvalidInput, match="folder of keys must be a path"):
            release(tmp_path / "data", to, ledger=account, key_folder=keys)
    assert account.ledger.spent == 0
    assert memory.store == {}
    assert not out.exists()
    made = release(tmp_path / "data", "memory://bucket/out", ledger=account, key_folder=tmp_path / "keys")
    assert len(made.scores()) == 10
    assert list((tmp_path / "keys").iterdir()) == []


def test_a_folder_that_is_not_empty(address: str, tmp_path: Path, account: Any) -> None:
    write_file(tmp_path / "data" / "a.parquet", make_vectors(10))
    system, path = fsspec.core.url_to_fs(f"{address}/notes.txt")
    system.pipe_file(path, b"mine")
    with pytest.raises(InvalidInput, match="is not empty"):
        release(tmp_path / "data", address, ledger=account)
    assert account.ledger.spent == 0


@pytest.mark.parametrize("scheme", ["ftp", "sftp", "hdfs", "http", "webdav", "dbfs"])
def test_other_storages_are_rejected(scheme: str) -> None:
    assert scheme not in EXCLUSIVE
    with pytest.raises(InvalidInput, match=f"not written to {scheme}://, where two tasks could write one block"):
        storage.open_folder(f"{scheme}://host/folder")


def test_a_storage_that_overwrites_is_found_before_the_charge(
    memory: Any, tmp_path: Path, account: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(tmp_path / "data" / "a.parquet", make_vectors(10))
    pipe = type(memory).pipe_file

    def overwrite(self: Any, path: str, value: bytes, mode: str = "", **options: Any) -> None:
        del mode
        pipe(self, path, value, "overwrite", **options)

    monkeypatch.setattr(type(memory), "pipe_file", overwrite)
    with pytest.raises(InvalidInput, match="overwrites a file although it is told not to"):
        release(tmp_path / "data", "memory://bucket/out", ledger=account)
    assert account.ledger.spent == 0
    assert storage.open_folder("memory://bucket/out").list_names() == []


def test_no_permission_to_write(memory: Any, tmp_path: Path, account: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "data" / "a.parquet", make_vectors(10))

    def deny(*_: Any, **__: Any) -> None:
        raise PermissionError("signature 0.12345")

    monkeypatch.setattr(type(memory), "pipe_file", deny)
    with pytest.raises(FileError, match=r"^No permission to write memory://bucket/out") as caught:
        release(tmp_path / "data", "memory://bucket/out", ledger=account)
    assert "0.12345" not in str(caught.value)
    assert account.ledger.spent == 0


def test_a_write_whose_answer_was_lost_counts(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, pipe, lost = storage.open_folder("memory://bucket/out"), type(memory).pipe_file, []

    def lose(self: Any, *arguments: Any, **options: Any) -> None:
        pipe(self, *arguments, **options)
        lost.append(1)
        raise TimeoutError

    assert folder.put_if_absent("manifest.json", b"{}")  # as a release does first, which tries the storage
    monkeypatch.setattr(type(memory), "pipe_file", lose)
    assert folder.put_or_read("parts/1", b"content") == b"content"
    assert len(lost) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a POSIX system")
def test_a_forked_process_makes_a_connection_of_its_own(s3: str) -> None:
    """In a process of its own, because this one may have threads that a fork would not copy."""
    code = f"""
import os
from scoreshield.distributed.storage import open_folder
folder = open_folder("{s3}/forked")
assert folder.put_if_absent("a", b"parent")
child = os.fork()
if child == 0:
    ok = folder.read("a") == b"parent" and folder.put_if_absent("b", b"child")
    os._exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0
assert folder.read("b") == b"child"
assert not folder.put_if_absent("b", b"parent")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr


def test_a_source_on_s3(s3: str, tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.parquet", make_vectors(5000), row_group_size=700)
    system = fsspec.filesystem("s3")
    system.put_file(str(path), "bucket/data/year=1/a.parquet")
    local, remote = release(path, tmp_path / "out", seed=1), release(f"{s3}/data", f"{s3}/out", seed=1)
    assert remote.manifest.source.files[0].path == "s3://bucket/data/year=1/a.parquet"
    assert len(local.scores()) == len(remote.scores()) == 5000
    system.put_file(str(write_file(tmp_path / "b.parquet", make_vectors(5000, 1))), "bucket/data/year=1/a.parquet")
    again = release(f"{s3}/data", f"{s3}/out", seed=1)  # it is whole, and no file is looked at
    assert np.array_equal(again.scores(), remote.scores())
    system.rm_file("bucket/out/release.json")
    with pytest.raises(InvalidInput, match="begun with other arguments, or of files that changed since"):
        release(f"{s3}/data", f"{s3}/out", seed=1)


@pytest.mark.parametrize("name", ["a b%20c#d.parquet", "a?b+c.parquet", "ü=é/q[0]*.parquet", "x=1/a@b:c.PARQUET"])
def test_odd_names_on_s3(s3: str, tmp_path: Path, name: str) -> None:
    vectors = make_vectors(50)
    path = write_file(tmp_path / "a.parquet", vectors)
    folder = f"odd-{name.encode().hex()}"
    fsspec.filesystem("s3").put_file(str(path), f"bucket/{folder}/{name}")
    assert np.array_equal(open_source(describe_source(f"{s3}/{folder}"))[0:50], vectors)
