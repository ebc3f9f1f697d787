"""Where records come from: files, addresses and versions of tables; and what is found before a charge."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import os
import pickle
import shutil
import struct
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_support import SECRET as KEY
from cluster_support import act_after, lose_encrypted_blocks, read_key_rows
from source_support import DIMENSION, make_table, make_vectors, pa, parquet, write_file

import scoreshield as ss
from scoreshield import _parquet
from scoreshield.distributed import driver, duplicates, filesystems, open_release, release_matches, release_scores
from scoreshield.distributed.keys import seal_state
from scoreshield.distributed.manifest import TILE_ROWS
from scoreshield.distributed.sources.facts import SourceFacts
from scoreshield.distributed.sources.opening import describe_source, open_ids, open_source
from scoreshield.distributed.storage import LocalFolder
from scoreshield.errors import FileError, InvalidInput, ScoreShieldError
from scoreshield.privacy.ledger.accounts import PendingCharge

QUERY = np.ones(DIMENSION)


#: Seals facts as the key of a release does.
SEAL = partial(seal_state, KEY)


def open_sealed(facts: SourceFacts) -> Any:
    """Open a collection from facts that were sealed and went through JSON, as they do to a worker."""
    return open_source(SourceFacts.from_dict(json.loads(json.dumps(facts.seal(SEAL).to_dict()))), seal=SEAL)


def read_all(facts: SourceFacts, step: int = 37) -> Any:
    """Read all rows in small parts."""
    rows = open_sealed(facts)
    return np.concatenate([rows[start : start + step] for start in range(0, facts.rows, step)])


def release(source: Any, to: Any, **options: Any) -> Any:
    return release_scores(source, QUERY, to=to, epsilon=2.0, mechanism="staircase", **options)


@pytest.fixture
def account(tmp_path: Path) -> Any:
    return ss.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=1000.0, delta=1e-6).account("vectors")


def check_stops(source: Any, tmp_path: Path, account: Any, error: type[Exception], match: str, **options: Any) -> None:
    """A release stops with one sentence, charges nothing, and shows nothing."""
    with pytest.raises(error, match=match) as caught:
        release(source, tmp_path / "out", ledger=account, **options)
    text = str(caught.value)
    assert isinstance(caught.value, ScoreShieldError)
    assert len(text.splitlines()) == 1
    assert "0.12345" not in text
    assert account.ledger.spent == 0
    assert LocalFolder(tmp_path / "out").list_names() == []
    assert not any(row["entry"] for row in read_key_rows(account))
    with pytest.raises(InvalidInput, match=r"no (whole )?release"):
        open_release(tmp_path / "out")


# ---- Files.


def test_folders_of_partitions_in_the_order_of_their_paths(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_file(data / "year=2024" / "b.parquet", make_vectors(30, 1))
    write_file(data / "year=2024" / "a.parquet", make_vectors(20, 2))
    write_file(data / "year=2023" / "z.parquet", make_vectors(10, 3))
    write_file(data / "year=2025" / "empty.parquet", make_vectors(0))
    write_file(data / "year=2025" / "lists.parquet", [])
    with parquet.ParquetWriter(data / "year=2025" / "no_groups.parquet", make_table([]).schema):
        pass
    for hidden in (".tmp/a.parquet", "_temporary/a.parquet", "year=2024/_b.parquet", "year=2024/.c.parquet"):
        write_file(data / hidden, make_vectors(5, 4))
    (data / "_SUCCESS").write_text("")
    facts = describe_source(data)
    assert [Path(file.path).name for file in facts.files] == ["z.parquet", "a.parquet", "b.parquet"]
    expected = np.concatenate([make_vectors(10, 3), make_vectors(20, 2), make_vectors(30, 1)])
    assert np.array_equal(read_all(facts), expected)
    assert np.array_equal(open_source(facts)[5:45], expected[5:45])
    assert describe_source(f"file://{data}") == facts


def test_numbers_of_several_types_are_read_in_the_widest(tmp_path: Path) -> None:
    parts = {np.float16: "a", np.float32: "b", np.float64: "c"}
    for dtype, name in parts.items():
        np.save(tmp_path / f"{name}.npy", make_vectors(10, 1, dtype))
    write_file(tmp_path / "d.parquet", make_vectors(10, 1, np.float16))
    facts = describe_source(tmp_path)
    assert facts.dtype == "float64"
    expected = np.concatenate([make_vectors(10, 1, dtype) for dtype in (*parts, np.float16)], dtype=np.float64)
    assert np.array_equal(read_all(facts, 7), expected)
    (tmp_path / "c.npy").unlink()
    assert describe_source(tmp_path).dtype == "float32"


def test_a_row_group_is_decoded_once_in_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = make_vectors(5000)
    write_file(tmp_path / "a.parquet", vectors, row_group_size=1700)
    facts, decoded = describe_source(tmp_path), 0
    original = _parquet._make_matrix

    def count(path: Any, table: Any, module: Any) -> Any:
        nonlocal decoded
        decoded += len(table)
        return original(path, table, module)

    monkeypatch.setattr(_parquet, "_make_matrix", count)
    rows = open_source(facts)
    found = [rows[start : min(start + 600, 5000)] for start in range(1700, 5000, 600)]
    assert np.array_equal(np.concatenate(found), vectors[1700:])
    assert decoded == 3300


def test_a_folder_that_cannot_be_listed_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "a" / "a.parquet", make_vectors(5))
    write_file(tmp_path / "b" / "b.parquet", make_vectors(5))
    scandir = os.scandir

    def deny(path: Any) -> Any:
        if str(path).endswith("/b"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", deny)
    with pytest.raises(FileError, match=r"Cannot read the folder .*b: Permission denied"):
        describe_source(tmp_path)


def test_links(tmp_path: Path, account: Any) -> None:
    """A link to a file is that file. A link to a folder stops the release: its records would be left out."""
    vectors, data = make_vectors(30), tmp_path / "data"
    write_file(tmp_path / "elsewhere" / "a.parquet", vectors[:10])
    write_file(data / "b.parquet", vectors[10:])
    (data / "a.parquet").symlink_to(tmp_path / "elsewhere" / "a.parquet")
    (tmp_path / "link").symlink_to(data)
    (data / ".hidden").symlink_to(tmp_path / "elsewhere")
    assert np.array_equal(read_all(describe_source(tmp_path / "link")), vectors)
    (data / "year=2024").symlink_to(tmp_path / "elsewhere")
    check_stops(data, tmp_path, account, InvalidInput, "data holds a link to a folder")


def test_endings_in_capitals(tmp_path: Path) -> None:
    vectors = make_vectors(30)
    write_file(tmp_path / "a.PARQUET", vectors[:10])
    write_file(tmp_path / "b.parquet", vectors[10:20])
    with (tmp_path / "c.NPY").open("wb") as file:
        np.save(file, vectors[20:])
    assert np.array_equal(read_all(describe_source(tmp_path)), vectors)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_no_file(tmp_path: Path, account: Any) -> None:
    write_file(tmp_path / "data" / "a.parquet", make_vectors(5))
    os.mkfifo(tmp_path / "data" / "b.parquet")
    check_stops(tmp_path / "data", tmp_path, account, FileError, r"b\.parquet is not a file")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_no_permission_to_read(tmp_path: Path, account: Any) -> None:
    path = write_file(tmp_path / "data" / "a.parquet", make_vectors(5))
    path.chmod(0)
    check_stops(tmp_path / "data", tmp_path, account, FileError, "Permission denied")


def test_a_file_that_changed_stops(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.parquet", make_vectors(100))
    facts = describe_source(tmp_path)
    rows = open_sealed(facts)
    assert np.array_equal(rows[0:50], make_vectors(50))
    write_file(path, make_vectors(100, 1))
    with pytest.raises(InvalidInput, match="changed since the release began"):
        rows[50:100]
    path.unlink()
    with pytest.raises(FileError, match="Cannot read"):
        open_sealed(facts)[0:10]


# ---- Addresses.


@pytest.fixture
def memory() -> Any:
    fsspec = pytest.importorskip("fsspec", reason="the 'fsspec' extra is not installed")
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def put_file(system: Any, path: str, vectors: Any, ids: Any = None) -> None:
    with system.open(path, "wb") as file:
        parquet.write_table(make_table(vectors, ids), file)


def test_files_by_an_address(memory: Any) -> None:
    put_file(memory, "/data/b/2.parquet", make_vectors(40, 1), pa.array(range(100, 140)))
    put_file(memory, "/data/a/1.parquet", make_vectors(60, 2), pa.array(range(60)))
    put_file(memory, "/data/_tmp/1.parquet", make_vectors(60, 2))
    facts = describe_source("memory://data/", ids="doc_id")
    assert [file.path for file in facts.files] == ["memory:///data/a/1.parquet", "memory:///data/b/2.parquet"]
    assert np.array_equal(read_all(facts), np.concatenate([make_vectors(60, 2), make_vectors(40, 1)]))
    assert open_ids(facts).read(58, 62) == [58, 59, 100, 101]
    rows = open_sealed(facts)
    rows[0:10]
    put_file(memory, "/data/a/1.parquet", make_vectors(60, 3))
    with pytest.raises(InvalidInput, match="changed since"):
        rows[10:20]
    with pytest.raises(InvalidInput, match=r"holds no \.parquet files"):
        describe_source("memory://nothing")


@pytest.mark.usefixtures("memory")
def test_an_address_is_one_of_a_known_storage_without_a_password() -> None:
    with pytest.raises(InvalidInput, match="No installed package opens addresses of nowhere://"):
        describe_source("nowhere://bucket/data")
    with pytest.raises(InvalidInput, match="holds a password"):
        describe_source("ftp://anna:secret@host/data")
    with pytest.raises(InvalidInput, match="joins several file systems"):
        describe_source("simplecache::memory://data")
    with pytest.raises(InvalidInput, match="is not valid"):
        describe_source("s3://[bucket/data")


@pytest.mark.parametrize("form", ["{}", "lance://{}", "delta://{}", "iceberg://{}"])
@pytest.mark.parametrize(
    "address",
    [
        "https://host/a.parquet?X-Amz-Signature=SECRET",
        "HTTPS://host/a.parquet?sig=SECRET",
        "https://SECRET@host/a.parquet",
        "s3://name:SECRET@bucket/a.parquet",
    ],
)
def test_no_key_of_an_address_is_written(form: str, address: str, tmp_path: Path) -> None:
    """A signed address is rejected before anything is asked for or written, and no message shows it."""
    pytest.importorskip("fsspec", reason="the 'fsspec' extra is not installed")
    with pytest.raises(InvalidInput, match="are written into the release") as error:
        release_scores(form.format(address), np.ones(3), to=tmp_path / "out", epsilon=1, seed=1)
    assert "SECRET" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (ConnectionResetError("row 0.12345"), "its storage failed with ConnectionResetError; start the same release"),
        (TimeoutError("row 0.12345"), "its storage failed with TimeoutError"),
        (PermissionError("row 0.12345"), "No permission to read memory"),
        (RuntimeError("row 0.12345"), "its storage failed with RuntimeError"),
    ],
)
def test_a_storage_that_fails_gives_one_sentence_and_the_release_goes_on(
    memory: Any, tmp_path: Path, account: Any, monkeypatch: pytest.MonkeyPatch, failure: Exception, sentence: str
) -> None:
    put_file(memory, "/data/1.parquet", make_vectors(100))
    out = tmp_path / "out"
    opened: list[int] = []

    class LossyFile(io.BytesIO):
        """A file whose storage fails once the release is charged."""

        def read(self, *arguments: Any) -> bytes:
            if account.ledger.spent > 0:
                raise failure
            return super().read(*arguments)

    def open_lossy(address: str) -> Any:
        opened.append(1)
        return LossyFile(memory.cat_file(address.removeprefix("memory://")))

    with monkeypatch.context() as patch:
        patch.setattr(filesystems, "open_remote_stream", open_lossy)
        act_after(patch, PendingCharge, "commit", lambda: lose_encrypted_blocks(out))
        with pytest.raises(FileError, match=sentence) as caught:
            release("memory://data", out, ledger=account)
    assert len(opened) == 4  # described, checked, described again, and lost after the charge
    assert "0.12345" not in str(caught.value)
    charged = account.ledger.spent
    assert charged > 0
    made = release("memory://data", out, ledger=account)
    assert account.ledger.spent == charged
    assert len(made.scores()) == 100


# ---- Tables.


class LanceCase:
    """A Lance data set: two appends of several fragments."""

    package, extra, name = "lance", "lance", "data.lance"

    def append(self, path: Path, table: Any) -> None:
        import lance

        lance.write_dataset(table, str(path), mode="append" if path.exists() else "create", max_rows_per_file=70)

    def empty(self, path: Path) -> None:
        import lance

        lance.dataset(str(path)).delete("true")

    def locate(self, path: Path) -> str:
        return str(path)

    def forget(self, path: Path) -> None:
        import lance

        lance.dataset(str(path)).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)


class DeltaCase:
    """A Delta table."""

    package, extra, name = "deltalake", "delta", "data"

    def append(self, path: Path, table: Any) -> None:
        import deltalake

        deltalake.write_deltalake(str(path), table, mode="append")

    def empty(self, path: Path) -> None:
        import deltalake

        deltalake.DeltaTable(str(path)).delete()

    def locate(self, path: Path) -> str:
        return str(path)

    def forget(self, path: Path) -> None:
        import deltalake

        table = deltalake.DeltaTable(str(path))
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


class IcebergCase:
    """An Iceberg table in a SQLite catalog, found by its metadata file."""

    package, extra, name = "pyiceberg", "iceberg", "data"

    def open(self, path: Path) -> Any:
        pytest.importorskip("sqlalchemy", reason="the 'service' extra is not installed")
        from pyiceberg.catalog.sql import SqlCatalog

        path.mkdir(exist_ok=True)
        catalog = SqlCatalog("local", uri=f"sqlite:///{path}/catalog.db", warehouse=f"file://{path}")
        catalog.create_namespace_if_not_exists("ns")
        return catalog

    def append(self, path: Path, table: Any) -> None:
        plain = table.set_column(0, "vector", table["vector"].cast(pa.list_(pa.float32())))
        catalog = self.open(path)
        try:
            catalog.create_table_if_not_exists("ns.t", plain.schema).append(plain)
        finally:
            catalog.engine.dispose()

    def empty(self, path: Path) -> None:
        catalog = self.open(path)
        try:
            catalog.load_table("ns.t").delete()
        finally:
            catalog.engine.dispose()

    def locate(self, path: Path) -> str:
        catalog = self.open(path)
        try:
            return "iceberg://" + catalog.load_table("ns.t").metadata_location.removeprefix("file://")
        finally:
            catalog.engine.dispose()

    def forget(self, path: Path) -> None:
        for file in path.rglob("*.parquet"):
            file.unlink()


TABLES = [LanceCase(), DeltaCase(), IcebergCase()]


@pytest.fixture(params=TABLES, ids=lambda case: case.package)
def case(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip(request.param.package, reason=f"the '{request.param.extra}' extra is not installed")
    return request.param


def test_a_version_of_a_table_stays_readable_after_later_commits(
    case: Any, tmp_path: Path, account: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "make_secret", lambda: KEY)
    path, ids = tmp_path / case.name, pa.array([f"é{number}" for number in range(150)])
    case.append(path, make_table(make_vectors(150, 1), ids))
    first = describe_source(case.locate(path), ids="doc_id")
    assert first.kind in ("lance", "delta", "iceberg")
    assert first.rows == 150
    assert first.version
    made = release(case.locate(path), tmp_path / "out", ids="doc_id", ledger=account)
    case.append(path, make_table(make_vectors(100, 2), pa.array([f"b{number}" for number in range(100)])))
    second = describe_source(case.locate(path), "vector", "doc_id")
    assert second.rows == 250
    assert second.version != first.version
    again = describe_source(f"{name_table(case, path)}@{first.version}")
    assert again.files == first.files
    assert np.array_equal(read_all(first), make_vectors(150, 1))
    assert open_ids(first).read(148, 150) == ["é148", "é149"]
    found = {tuple(row) for row in read_all(second).tolist()}
    assert found == {tuple(row) for row in np.concatenate([make_vectors(150, 1), make_vectors(100, 2)]).tolist()}
    assert np.array_equal(read_all(second), read_all(describe_source(case.locate(path), "vector")))  # the same order
    assert made.manifest.source == first.seal(SEAL)
    assert made.manifest.source.version == first.version
    assert made.read()["id"].tolist() == [f"é{number}" for number in range(150)]


def name_table(case: Any, path: Path) -> str:
    """Name a table with its format, which an address with a version needs."""
    return (
        f"delta://{path}"
        if case.package == "deltalake"
        else f"lance://{path}"
        if case.package == "lance"
        else str(case.locate(path))
    )


def test_a_begun_release_goes_on_with_its_version(
    case: Any, tmp_path: Path, account: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = tmp_path / case.name, tmp_path / "out"
    case.append(path, make_table(make_vectors(150, 1)))
    where = case.locate(path)
    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "put_if_absent", stop_at_parts(LocalFolder.put_if_absent))
        with pytest.raises(KeyboardInterrupt):
            release(where, out, ledger=account)
    charged = account.ledger.spent
    assert charged > 0
    case.append(path, make_table(make_vectors(100, 2)))
    made = release(where, out, ledger=account)
    assert account.ledger.spent == charged
    assert len(made.scores()) == 150


def stop_at_parts(put: Any) -> Any:
    def stop(self: Any, name: str, content: bytes) -> bool:
        if name.startswith("parts"):
            raise KeyboardInterrupt
        return bool(put(self, name, content))

    return stop


def test_a_version_that_vanished_stops(case: Any, tmp_path: Path) -> None:
    path = tmp_path / case.name
    case.append(path, make_table(make_vectors(150, 1)))
    facts = describe_source(case.locate(path))
    case.empty(path)
    assert np.array_equal(read_all(facts), make_vectors(150, 1))  # still there
    with pytest.raises(InvalidInput, match="holds no records"):
        describe_source(case.locate(path))
    case.forget(path)
    with pytest.raises(FileError) as caught:
        read_all(facts)
    assert len(str(caught.value).splitlines()) == 1
    assert facts.version in str(caught.value)


def test_a_table_that_is_not_there(case: Any, tmp_path: Path) -> None:
    path = tmp_path / case.name
    case.append(path, make_table(make_vectors(10)))
    name = name_table(case, path)
    with pytest.raises(FileError, match=r"has no (version|snapshot) 987"):
        describe_source(f"{name}@987")
    with pytest.raises(FileError):
        describe_source(name.replace(f"/{path.name}", "/none", 1))
    for names in ({"column": "other"}, {"ids": "other"}):
        with pytest.raises(InvalidInput, match="no column 'other'"):
            describe_source(case.locate(path), **names)


def test_a_table_that_was_made_anew_under_its_version_stops(case: Any, tmp_path: Path) -> None:
    path = tmp_path / case.name
    case.append(path, make_table(make_vectors(100, 1)))
    facts = describe_source(case.locate(path))
    shutil.rmtree(path)
    case.append(path, make_table(make_vectors(100, 2)))
    with pytest.raises(ScoreShieldError, match=r"is another one than|is gone"):
        read_all(facts)


def test_a_lance_file_that_was_replaced_stops(tmp_path: Path, account: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other vectors in a file of the same name and size, which Lance itself does not find."""
    pytest.importorskip("lance", reason="the 'lance' extra is not installed")
    vectors = {"a": make_vectors(60, 1), "b": make_vectors(60, 1)}
    vectors["b"][7] *= -1
    files = {}
    for name, values in vectors.items():
        LanceCase().append(tmp_path / f"{name}.lance", make_table(values))
        (files[name],) = (tmp_path / f"{name}.lance" / "data").iterdir()
    where, out, first = tmp_path / "a.lance", tmp_path / "out", files["a"].read_bytes()
    assert files["b"].stat().st_size == len(first)
    facts = describe_source(where)

    def replace_file() -> None:
        shutil.copyfile(files["b"], files["a"])

    with pytest.raises(InvalidInput, match="changed while it was checked; nothing was charged"):
        release(where, out, ledger=account, progress=lambda *_: replace_file())
    assert np.array_equal(open_source(facts)[0:60], vectors["b"])  # without a key, nothing shows the change
    with pytest.raises(InvalidInput, match="is another one than when the release began"):
        read_all(facts)
    assert account.ledger.spent == 0
    assert LocalFolder(out).list_names() == []
    files["a"].write_bytes(first)
    with monkeypatch.context() as patch:
        act_after(patch, PendingCharge, "commit", lambda: lose_encrypted_blocks(out))
        act_after(patch, PendingCharge, "commit", replace_file)
        with pytest.raises(InvalidInput, match="is another one than when the release began"):
            release(where, out, ledger=account)
    assert LocalFolder(out).list_names() == ["manifest.json"]
    charged = account.ledger.spent
    assert charged > 0
    with pytest.raises(InvalidInput, match="of files that changed since"):
        release(where, out, ledger=account)
    assert account.ledger.spent == charged


def test_lance_leaves_out_deleted_rows(tmp_path: Path) -> None:
    lance = pytest.importorskip("lance", reason="the 'lance' extra is not installed")
    LanceCase().append(tmp_path / "a.lance", make_table(make_vectors(200), pa.array(range(200))))
    lance.dataset(str(tmp_path / "a.lance")).delete("doc_id % 3 = 0")
    facts = describe_source(tmp_path / "a.lance", ids="doc_id")
    kept = [number for number in range(200) if number % 3]
    assert np.array_equal(read_all(facts), make_vectors(200)[kept])
    assert np.array_equal(open_source(facts)[90:120], make_vectors(200)[kept][90:120])
    assert open_ids(facts).read(0, len(kept)) == kept


def test_delta_in_folders_with_odd_names(tmp_path: Path) -> None:
    """The package encodes the folder of a table as in a URL, and the names of its partitions in another way."""
    deltalake = pytest.importorskip("deltalake", reason="the 'delta' extra is not installed")
    path, vectors = tmp_path / "a b ü#c", make_vectors(30)
    cities = [["Zü rich%20#?&", "a=b", "x/y"][number % 3] for number in range(30)]
    deltalake.write_deltalake(str(path), make_table(vectors).append_column("city", [cities]), partition_by=["city"])
    facts = describe_source(path)
    assert len(facts.files) == 3
    assert all(Path(file.path).is_file() for file in facts.files)
    assert sorted(read_all(facts).tolist()) == sorted(vectors.tolist())


def test_delta_with_deletion_vectors_stops(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason="the 'delta' extra is not installed")
    # One bitmap of 32 bits, with one container of two rows, as the format of Delta and that of Roaring lay it out.
    hidden = struct.pack("<IqIIIHHIHH", 1681511377, 1, 0, 12346, 1, 0, 1, 16, 3, 7)
    python = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    zeromq = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    inline = base64.b85encode(hidden).decode().translate(str.maketrans(python, zeromq))
    DeltaCase().append(tmp_path / "data", make_table(make_vectors(20)))
    log = tmp_path / "data" / "_delta_log" / "00000000000000000000.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "protocol" in line:
            features = ["deletionVectors"]
            line["protocol"] = {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": features,
                "writerFeatures": features,
            }
        if "add" in line:
            line["add"]["deletionVector"] = {
                "storageType": "i",
                "pathOrInlineDv": inline,
                "sizeInBytes": len(hidden),
                "cardinality": 2,
            }
    log.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    with pytest.raises(InvalidInput, match="deletionVectors, so that its files alone do not hold its records"):
        describe_source(tmp_path / "data")
    if not hasattr(deltalake.DeltaTable, "deletion_vectors"):
        return  # an older package, which cannot tell whether there are some
    vectors = deltalake.DeltaTable(str(tmp_path / "data")).deletion_vectors()
    assert [batch.num_rows for batch in vectors] == [1]  # the test wrote one that the package can read
    for line in lines:
        line.get("add", {}).pop("deletionVector", None)
    log.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    assert describe_source(tmp_path / "data").rows == 20  # the table may have some, and has none


def test_iceberg_with_delete_files_or_renamed_columns_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyiceberg", reason="the 'iceberg' extra is not installed")
    from pyiceberg.table import DataScan
    from pyiceberg.types import LongType

    case, path = IcebergCase(), tmp_path / "data"
    case.append(path, make_table(make_vectors(20), pa.array(range(20))))
    where, plan = case.locate(path), DataScan.plan_files

    def plan_with_deletes(self: Any) -> Any:
        for task in plan(self):
            task.delete_files.add(task.file)
            yield task

    with monkeypatch.context() as patch:
        patch.setattr(DataScan, "plan_files", plan_with_deletes)
        with pytest.raises(InvalidInput, match="has delete files"):
            describe_source(where)
    catalog = case.open(path)
    with catalog.load_table("ns.t").update_schema() as update:
        update.rename_column("doc_id", "old_id")
    with catalog.load_table("ns.t").update_schema() as update:
        update.add_column("doc_id", LongType())
    catalog.load_table("ns.t").append(
        pa.table({"vector": pa.array(GOOD, pa.list_(pa.float32())), "old_id": [1, 2, 3, 4], "doc_id": [5, 6, 7, 8]})
    )
    catalog.engine.dispose()
    assert describe_source(case.locate(path), "vector").rows == 24  # this column kept its name
    with pytest.raises(InvalidInput, match="renamed or dropped"):
        describe_source(case.locate(path), "vector", "doc_id")
    with pytest.raises(InvalidInput, match="no column 'old_id'"):
        describe_source(case.locate(path), "vector", "old_id")


def test_iceberg_by_a_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyiceberg", reason="the 'iceberg' extra is not installed")
    import pyiceberg.catalog

    case, path = IcebergCase(), tmp_path / "data"
    case.append(path, make_table(make_vectors(20), pa.array(range(20))))
    with pytest.raises(InvalidInput, match="names no table"):
        describe_source("iceberg://somewhere")
    with pytest.raises(InvalidInput, match="cannot open the catalog no_such_catalog"):
        describe_source("iceberg://no_such_catalog/ns.t")
    monkeypatch.setattr(pyiceberg.catalog, "load_catalog", lambda _: case.open(path))
    facts = describe_source("iceberg://local/ns.t")
    assert facts.address == "local/ns.t"
    assert facts.files == describe_source(case.locate(path)).files
    assert np.array_equal(read_all(facts), make_vectors(20))
    assert describe_source(f"iceberg://local/ns.t@{facts.version}") == facts
    for name in ("ns.none", "none.t"):
        with pytest.raises(FileError, match=f"There is no Iceberg table local/{name}"):
            describe_source(f"iceberg://local/{name}")


# ---- Bad rows, found before the charge.

GOOD = [[float(number)] * DIMENSION for number in range(1, 5)]
SECRET = [0.12345] * DIMENSION
BAD = {
    "ragged": ([*GOOD, [0.12345] * 3], "lists of one length"),
    "no vector": ([*GOOD, None, SECRET], "lists of one length, none missing"),
    "no number": ([*GOOD, [0.12345] * (DIMENSION - 1) + [None]], "missing number, a NaN or an infinity"),
    "NaN": ([*GOOD, [0.12345] * (DIMENSION - 1) + [float("nan")]], "missing number, a NaN or an infinity"),
    "infinity": ([*GOOD, [0.12345] * (DIMENSION - 1) + [float("-inf")]], "missing number, a NaN or an infinity"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("is_first", [False, True], ids=["late", "first"])
def test_bad_vectors_in_one_partition(
    tmp_path: Path, account: Any, monkeypatch: pytest.MonkeyPatch, name: str, is_first: bool
) -> None:
    # Small batches, so that a bad row that is late is not found when the files are described.
    monkeypatch.setattr(_parquet, "_BATCH", 2)
    monkeypatch.setattr(_parquet, "_BATCH_BYTES", 1)
    data, (rows, sentence) = tmp_path / "data", BAD[name]
    write_file(data / "a.parquet", GOOD)
    write_file(data / "b.parquet", rows[::-1] if is_first else rows)
    match = "lists of one length|different lengths" if name in ("ragged", "no vector") else sentence
    check_stops(data, tmp_path, account, InvalidInput, match)
    # Repaired, the same folder takes the release.
    write_file(data / "b.parquet", GOOD)
    assert len(release(data, tmp_path / "out", ledger=account).scores()) == 8


@pytest.mark.parametrize("name", BAD)
def test_without_a_check_a_bad_vector_counts_as_zero(
    tmp_path: Path, account: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(_parquet, "_BATCH", 2)
    monkeypatch.setattr(_parquet, "_BATCH_BYTES", 1)
    rows = BAD[name][0]
    zeros = [[0.0] * DIMENSION if number == 4 else row for number, row in enumerate(rows)]
    write_file(tmp_path / "bad" / "a.parquet", rows)
    facts = describe_source(tmp_path / "bad")
    assert len(release(tmp_path / "bad", tmp_path / "out", ledger=account, check_rows=False).scores()) == len(rows)
    found = open_source(facts, is_lenient=True)[0 : len(rows)]
    usable = np.isfinite(found).all(axis=1)
    found[~usable] = 0
    assert np.array_equal(found, np.array(zeros, dtype=np.float32))


def test_other_lengths_types_and_names(tmp_path: Path, account: Any) -> None:
    data = tmp_path / "data"
    write_file(data / "a.parquet", make_vectors(10))
    write_file(data / "b.parquet", make_vectors(10)[:, :5])
    check_stops(data, tmp_path, account, InvalidInput, "different lengths")
    (data / "b.parquet").unlink()
    np.save(data / "b.npy", np.ones((4, DIMENSION), dtype=np.int8))
    check_stops(data, tmp_path, account, InvalidInput, "floating-point numbers")
    (data / "b.npy").unlink()
    parquet.write_table(pa.table({"text": ["0.12345"]}), data / "b.parquet")
    check_stops(data, tmp_path, account, InvalidInput, "neither a column of lists nor numeric columns")
    check_stops(data, tmp_path, account, InvalidInput, "no column 'embedding'", column="embedding")
    (data / "b.parquet").write_bytes(b"PAR1 0.12345 is no Parquet file")
    check_stops(data, tmp_path, account, InvalidInput, "not a readable Parquet file")
    (data / "b.parquet").unlink()
    check_stops(tmp_path / "none", tmp_path, account, FileError, "no file or folder")
    (tmp_path / "none").mkdir()
    check_stops(tmp_path / "none", tmp_path, account, InvalidInput, r"no \.parquet or \.npy files")
    write_file(tmp_path / "none" / "a.parquet", make_vectors(0))
    check_stops(tmp_path / "none", tmp_path, account, InvalidInput, "holds no records")


def test_columns_that_differ_between_files(tmp_path: Path, account: Any) -> None:
    """Numbers of another column, or in another order, are not taken for the same vectors."""
    vectors, data = make_vectors(10), tmp_path / "data"
    write_file(data / "a.parquet", vectors)
    parquet.write_table(make_table(vectors).rename_columns(["other"]), data / "b.parquet")
    check_stops(data, tmp_path, account, InvalidInput, "columns of other names, or in another order")
    names = [f"x{place}" for place in range(DIMENSION)]
    for file, order in {"a": range(DIMENSION), "b": reversed(range(DIMENSION))}.items():
        columns = {names[place]: vectors[:, place] for place in order}
        parquet.write_table(pa.table(columns), data / f"{file}.parquet")
    check_stops(data, tmp_path, account, InvalidInput, "columns of other names, or in another order")
    shutil.copy(data / "a.parquet", data / "b.parquet")
    np.save(data / "c.npy", vectors)  # it has no names
    assert np.array_equal(read_all(describe_source(data)), np.concatenate([vectors] * 3))


@pytest.mark.parametrize("values", [[["0.12345"]] * 9, [[[0.12345]]] * 9], ids=["texts", "lists"])
def test_lists_of_other_things(tmp_path: Path, account: Any, values: Any) -> None:
    parquet.write_table(pa.table({"vector": values}), tmp_path / "a.parquet")
    check_stops(tmp_path / "a.parquet", tmp_path, account, InvalidInput, "must hold lists of numbers")


def test_whole_numbers_in_lists_are_read_as_doubles(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(-128, 128, (50, DIMENSION)).astype(np.int8)
    parquet.write_table(make_table(rows), tmp_path / "a.parquet")
    facts = describe_source(tmp_path)
    assert facts.dtype == "float64"
    assert np.array_equal(read_all(facts), rows)


def test_a_missing_vector_of_fixed_length(tmp_path: Path, account: Any) -> None:
    kind = pa.list_(pa.float32(), DIMENSION)
    table = make_table([*GOOD, None, SECRET], kind=kind)
    parquet.write_table(table, tmp_path / "a.parquet")
    places = [tmp_path / "a.parquet"]
    if importlib.util.find_spec("lance") is not None:
        LanceCase().append(tmp_path / "a.lance", table)
        places.append(tmp_path / "a.lance")
    for place in places:
        check_stops(place, tmp_path, account, InvalidInput, "none missing")
        found = open_source(describe_source(place), is_lenient=True)[0:6]
        assert np.array_equal(found, np.array([*GOOD, [0.0] * DIMENSION, SECRET], dtype=np.float32))


def test_a_damaged_file_stops_before_the_charge(tmp_path: Path, account: Any) -> None:
    path = write_file(tmp_path / "data" / "a.parquet", make_vectors(5000), row_group_size=1000, compression="zstd")
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 2000] = bytes(2000)
    path.write_bytes(content)
    check_stops(tmp_path / "data", tmp_path, account, ScoreShieldError, "a.parquet")


def test_a_target_that_cannot_be_used(tmp_path: Path, account: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "data" / "a.parquet", make_vectors(10))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="is not empty"):
        release(tmp_path / "data", tmp_path / "full", ledger=account)
    assert sorted(path.name for path in (tmp_path / "full").iterdir()) == ["notes.txt"]
    link = os.link

    def deny(source: Any, target: Any) -> None:
        if "manifest" in str(target):
            raise PermissionError(13, "Permission denied")
        link(source, target)

    monkeypatch.setattr(os, "link", deny)
    check_stops(tmp_path / "data", tmp_path, account, FileError, "Cannot write .*Permission denied")


# ---- Ids.


@pytest.mark.parametrize("kind", ["text", "integer", "dictionary"])
def test_ids_are_released_beside_the_numbers(tmp_path: Path, kind: str) -> None:
    values: Any = np.arange(300) * 7 - 50
    column = pa.array(values) if kind == "integer" else pa.array([f"doc é {value}" for value in values])
    column = column.dictionary_encode() if kind == "dictionary" else column
    for start, name in ((0, "a"), (120, "b")):
        stop = 120 if name == "a" else 300
        write_file(tmp_path / "data" / f"{name}.parquet", make_vectors(300)[start:stop], column[start:stop])
    made = release(tmp_path / "data", tmp_path / "out", ids="doc_id", seed=3)
    columns = made.read()
    assert list(columns) == ["row", "id", "score"]
    assert columns["id"].tolist() == column.to_pylist()
    plain = release(tmp_path / "data", tmp_path / "plain", seed=3)
    assert plain.manifest.snapshot != made.manifest.snapshot
    best = release(tmp_path / "data", tmp_path / "best", ids="doc_id", seed=3, best=5).read()
    assert best["id"].tolist() == [column.to_pylist()[row] for row in best["row"]]
    matches = release_matches(
        tmp_path / "data", QUERY, 0.3, to=tmp_path / "matches", epsilon=4.0, ids="doc_id", seed=3
    ).read()
    assert matches["id"].tolist() == [column.to_pylist()[row] for row in matches["row"]]
    assert not any(name.startswith("checks") for name in LocalFolder(tmp_path / "out").list_names())


def test_duplicate_ids_stop_before_the_charge(tmp_path: Path, account: Any) -> None:
    data = tmp_path / "data"
    write_file(data / "a.parquet", make_vectors(TILE_ROWS), pa.array(range(TILE_ROWS)))
    write_file(data / "b.parquet", make_vectors(50, 1), pa.array([*range(TILE_ROWS, TILE_ROWS + 49), 12345]))
    options = {"ids": "doc_id", "block_rows": TILE_ROWS}
    check_stops(data, tmp_path, account, InvalidInput, "Two records of the collection have one id", **options)
    check_stops(data, tmp_path, account, InvalidInput, "one id", **options, check_rows=False)
    write_file(data / "b.parquet", make_vectors(50, 1), pa.array(range(TILE_ROWS, TILE_ROWS + 50)))
    assert len(release(data, tmp_path / "out", ledger=account, **options).read()["id"]) == TILE_ROWS + 50


def test_a_check_that_fails_between_the_blocks_of_ids_leaves_nothing(tmp_path: Path, account: Any) -> None:
    """What the check of the first block wrote goes too, and the corrected release takes the folder."""
    data, vectors = tmp_path / "data", make_vectors(50, 1)
    write_file(data / "a.parquet", make_vectors(TILE_ROWS), pa.array(range(TILE_ROWS)))
    ids = pa.array(range(TILE_ROWS, TILE_ROWS + 50))
    write_file(data / "b.parquet", np.where(np.arange(50)[:, None] == 7, np.float32(np.nan), vectors), ids)
    options, seen = {"ids": "doc_id", "block_rows": TILE_ROWS}, []

    def look(*_: Any) -> None:
        seen.append([name.rpartition(".")[2] for name in LocalFolder(tmp_path / "out").list_names()])

    check_stops(data, tmp_path, account, InvalidInput, "a NaN or an infinity", progress=look, **options)
    assert [sorted(names) for names in seen] == [["encrypted", "ids", "json"]]
    assert read_key_rows(account) == []
    write_file(data / "b.parquet", vectors, ids)
    assert len(release(data, tmp_path / "out", ledger=account, **options).read()["id"]) == TILE_ROWS + 50
    assert len(account.ledger.entries()) == 1


def test_ids_that_are_missing_or_of_other_types(tmp_path: Path, account: Any) -> None:
    data = tmp_path / "data"
    for column, sentence in (
        (pa.array([1, 2, None]), "without an id"),
        (pa.array([0.1, 0.2, 0.3]), "must be texts, or integers"),
        (pa.array([1, 2, 3], pa.uint64()), "must be texts, or integers"),
        (pa.array([b"a", b"b", b"\xff"]).view(pa.string()), "ids that are not valid UTF-8"),
    ):
        write_file(data / "a.parquet", make_vectors(3), column)
        check_stops(data, tmp_path, account, InvalidInput, sentence, ids="doc_id")
    parquet.write_table(pa.table({"x": [0.5, 1.0], "y": [0.5, 2.0], "doc_id": [1, 2]}), data / "a.parquet")
    check_stops(data, tmp_path, account, InvalidInput, "Ids need vectors that are lists", ids="doc_id")
    write_file(data / "a.parquet", make_vectors(3), pa.array([1, 2, 3]))
    write_file(data / "b.parquet", make_vectors(3), pa.array(["4", "5", "6"]))
    check_stops(data, tmp_path, account, InvalidInput, "texts in some files", ids="doc_id")
    check_stops(data, tmp_path, account, InvalidInput, "no column 'other'", ids="other", column="vector")
    np.save(tmp_path / "rows.npy", make_vectors(3))
    check_stops(tmp_path / "rows.npy", tmp_path, account, InvalidInput, "holds no ids", ids="doc_id")


@pytest.mark.parametrize("bucket", [2**22, 100], ids=["memory", "buckets"])
def test_the_search_for_duplicates_finds_one_pair_among_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: int
) -> None:
    monkeypatch.setattr(duplicates, "_BUCKET", bucket)
    folder = LocalFolder(tmp_path / "out")
    ids = [f"id {number}" for number in range(3000)]
    for last, is_double in (("id 3000", False), ("id 17", True)):
        for number in range(4):
            block = [*ids, last][number * 800 : (number + 1) * 800]
            duplicates.write_hashes(folder, last[-2:], number, block)
        if is_double:
            with pytest.raises(InvalidInput, match="one id"):
                duplicates.find_duplicates(folder, last[-2:], 4, 3001)
        else:
            duplicates.find_duplicates(folder, last[-2:], 4, 3001)
        assert folder.list_names() == []


def test_facts_travel(tmp_path: Path) -> None:
    """The facts of a collection are the same after they were sent to a worker."""
    facts = describe_source(write_file(tmp_path / "a.parquet", make_vectors(5)))
    assert pickle.loads(pickle.dumps(facts)) == facts
