"""An index leaves for other engines: what they hold is what was released, with its guarantee."""

from __future__ import annotations

import base64
import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.errors import FileError, InvalidInput, StoreError
from scoreshield.stores import export
from scoreshield.stores.export import ExportMetadata, name_metadata

N, DIMENSION, REDUCED = 120, 16, 8
ROWS = np.random.default_rng(8).normal(size=(N, DIMENSION))
QUERIES = np.random.default_rng(9).normal(size=(5, DIMENSION))
NAMES = [f"document {place}" for place in range(N)]


@pytest.fixture(scope="module")
def index() -> ss.IndexRelease:
    return ss.release_index(ROWS, epsilon=30.0, components=REDUCED)


@pytest.fixture(scope="module")
def version() -> ss.IndexRelease:
    return ss.release_index(ROWS, epsilon=30.0, changes="public", ids=NAMES)


def check_metadata(text: str | bytes, index: ss.IndexRelease) -> None:
    """The metadata holds the guarantee, and reduces queries as the index does."""
    metadata = ExportMetadata.from_json(text)
    assert metadata.guarantee == index.guarantee
    assert json.loads(text)["certificate"] == str(index.guarantee)
    scores = metadata.reduce_query(QUERIES) @ index.vectors.T
    np.testing.assert_allclose(scores, index.scores(QUERIES), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(metadata.reduce_query(QUERIES[0]), index.reduce_query(QUERIES)[0])


def test_center_and_codebook(tmp_path: Path) -> None:
    """Queries of a centred index are turned, and a codebook index leaves as the vectors of its codes."""
    pq = pytest.importorskip("pyarrow.parquet")
    book = ss.PublicCodebook(np.random.default_rng(7).normal(size=(20, DIMENSION)), source="test")
    centred = ss.release_index(ROWS, epsilon=30.0, components=REDUCED, center=np.full(DIMENSION, 0.05))
    for place, one in enumerate((centred, ss.release_index(ROWS, epsilon=30.0, codebook=book))):
        one.to_parquet(tmp_path / f"{place}.parquet")
        table = pq.read_table(tmp_path / f"{place}.parquet")
        metadata = ExportMetadata.from_json(table.schema.metadata[b"scoreshield"])
        assert metadata.guarantee == one.guarantee
        scores = metadata.reduce_query(QUERIES) @ np.stack(table.column("vector").to_numpy()).T
        np.testing.assert_allclose(scores, one.scores(QUERIES), rtol=1e-4, atol=1e-5)


class TestFaiss:
    def test_flat(self, index: ss.IndexRelease, tmp_path: Path) -> None:
        faiss = pytest.importorskip("faiss")
        made = index.to_faiss(tmp_path / "index.faiss")
        read = faiss.read_index(str(tmp_path / "index.faiss"))
        for one in (made, read, index.to_faiss()):
            scores, places = one.search(index.reduce_query(QUERIES), 10)
            np.testing.assert_array_equal(places, index.search(QUERIES, 10).indices)
            np.testing.assert_allclose(scores, index.search(QUERIES, 10).scores, rtol=1e-5)
        text = name_metadata(tmp_path / "index.faiss").read_bytes()
        check_metadata(text, index)
        assert json.loads(text)["ids"] == list(range(N))

    def test_hnsw(self, version: ss.IndexRelease, tmp_path: Path) -> None:
        """On so few records HNSW finds all; and the metadata names the rows."""
        pytest.importorskip("faiss")
        made = version.to_faiss(tmp_path / "index.faiss", kind="hnsw")
        _, places = made.search(version.reduce_query(QUERIES), 5)
        np.testing.assert_array_equal(places, version.search(QUERIES, 5).indices)
        assert json.loads(name_metadata(tmp_path / "index.faiss").read_text())["ids"] == NAMES

    def test_both_files_or_none(self, index: ss.IndexRelease, tmp_path: Path) -> None:
        pytest.importorskip("faiss")
        target = tmp_path / "index.faiss"
        name_metadata(target).write_text("mine")
        with pytest.raises(InvalidInput, match="exists"):
            index.to_faiss(target)
        assert [one.name for one in tmp_path.iterdir()] == ["index.faiss.json"]


class TestParquet:
    def test_round_trip(self, index: ss.IndexRelease, version: ss.IndexRelease, tmp_path: Path) -> None:
        pq = pytest.importorskip("pyarrow.parquet")
        for one, ids in ((index, list(range(N))), (version, NAMES)):
            target = tmp_path / f"{one.kind}.parquet"
            one.to_parquet(target)
            table = pq.read_table(target)
            assert table.column("id").to_pylist() == ids
            rows = np.stack(table.column("vector").to_numpy())
            np.testing.assert_array_equal(rows, one.vectors)
            check_metadata(table.schema.metadata[b"scoreshield"], one)

    def test_given_ids(self, index: ss.IndexRelease, tmp_path: Path) -> None:
        pq = pytest.importorskip("pyarrow.parquet")
        index.to_parquet(tmp_path / "index.parquet", ids=NAMES)
        assert pq.read_table(tmp_path / "index.parquet").column("id").to_pylist() == NAMES
        with pytest.raises(InvalidInput, match=r"119 ids in .ids. for 120 records"):
            index.to_parquet(tmp_path / "other.parquet", ids=NAMES[1:])

    def test_a_full_disk_leaves_nothing(
        self, index: ss.IndexRelease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pq = pytest.importorskip("pyarrow.parquet")

        def fail(_: Any, file: Any) -> None:
            file.write(b"PAR1")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(pq, "write_table", fail)
        with pytest.raises(FileError, match="No space left on device; nothing was changed"):
            index.to_parquet(tmp_path / "index.parquet")
        assert list(tmp_path.iterdir()) == []


class TestLance:
    def test_round_trip(self, index: ss.IndexRelease, version: ss.IndexRelease, tmp_path: Path) -> None:
        lancedb = pytest.importorskip("lancedb")
        for one, name in ((index, "plain"), (version, "named")):
            one.to_lance(tmp_path / f"{name}.lance")
            table = lancedb.connect(str(tmp_path)).open_table(name)
            check_metadata(table.schema.metadata[b"scoreshield"], one)
            rows = table.to_arrow()
            np.testing.assert_array_equal(np.stack(rows.column("vector").to_numpy()), one.vectors)
            search = table.search(one.reduce_query(QUERIES[0])).distance_type("dot").limit(5).to_arrow()
            best = [rows.column("id").to_pylist()[place] for place in one.search(QUERIES[0], 5).indices]
            assert search.column("id").to_pylist() == best
        assert sorted(one.name for one in tmp_path.iterdir()) == ["named.lance", "plain.lance"]

    def test_errors(self, index: ss.IndexRelease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        lancedb = pytest.importorskip("lancedb")
        with pytest.raises(InvalidInput, match=r"ends in \.lance"):
            index.to_lance(tmp_path / "index")
        for name in ("a b$é.lance", ".lance"):
            with pytest.raises(InvalidInput, match="LanceDB names its tables"):
                index.to_lance(tmp_path / name)
        (tmp_path / "index.lance").mkdir()
        with pytest.raises(InvalidInput, match="exists"):
            index.to_lance(tmp_path / "index.lance")
        with pytest.raises(FileError, match="No such file or directory"):
            index.to_lance(tmp_path / "nowhere" / "index.lance")

        def fail(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(lancedb, "connect", fail)
        with pytest.raises(FileError, match="No space left"):
            index.to_lance(tmp_path / "other.lance")
        assert [one.name for one in tmp_path.iterdir()] == ["index.lance"]


class TestQdrant:
    def test_round_trip(
        self, index: ss.IndexRelease, version: ss.IndexRelease, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        qdrant = pytest.importorskip("qdrant_client")
        monkeypatch.setattr(export, "_PAGE", 50)
        client = qdrant.QdrantClient(":memory:")
        for one, name, ids in ((index, "plain", list(range(N))), (version, "named", NAMES)):
            one.to_qdrant(client, name)
            assert client.count(name).count == N
            points = client.query_points(name, query=one.reduce_query(QUERIES[0]).tolist(), limit=5).points
            best = one.search(QUERIES[0], 5)
            assert [point.payload["id"] for point in points] == [ids[place] for place in best.indices]
            np.testing.assert_allclose([point.score for point in points], best.scores, rtol=1e-5)
            record = client.retrieve(f"{name}_certificate", [0])[0]
            check_metadata(record.payload["scoreshield"], one)

    def test_errors(self, index: ss.IndexRelease, monkeypatch: pytest.MonkeyPatch) -> None:
        qdrant = pytest.importorskip("qdrant_client")
        client = qdrant.QdrantClient(":memory:")
        with pytest.raises(InvalidInput, match="a QdrantClient"):
            index.to_qdrant("localhost", "people")
        with pytest.raises(InvalidInput, match="a name of 1 to 200"):
            index.to_qdrant(client, "")
        index.to_qdrant(client, "people")
        with pytest.raises(InvalidInput, match="exists"):
            index.to_qdrant(client, "people")
        assert client.count("people").count == N

        def fail(*_: Any, **__: Any) -> None:
            raise ConnectionError

        monkeypatch.setattr(client, "upsert", fail)
        with pytest.raises(StoreError, match="could not be filled: ConnectionError"):
            index.to_qdrant(client, "others")
        assert not client.collection_exists("others")
        assert not client.collection_exists("others_certificate")

    @pytest.mark.parametrize("stop", [1, 2, 3])
    def test_an_interrupt_leaves_nothing(
        self, index: ss.IndexRelease, monkeypatch: pytest.MonkeyPatch, stop: int
    ) -> None:
        client = pytest.importorskip("qdrant_client").QdrantClient(":memory:")
        monkeypatch.setattr(export, "_PAGE", 50)
        plain, calls = client.upsert, []

        def interrupt(*given: Any, **options: Any) -> None:
            calls.append(given[0])
            if len(calls) == stop:
                raise KeyboardInterrupt
            plain(*given, **options)

        monkeypatch.setattr(client, "upsert", interrupt)
        with pytest.raises(KeyboardInterrupt):
            index.to_qdrant(client, "people")
        assert client.get_collections().collections == []
        index.to_qdrant(client, "people")
        assert client.count("people").count == N

    @pytest.mark.parametrize("name", ["people", "people_certificate"])
    @pytest.mark.parametrize("error", [TimeoutError, KeyboardInterrupt])
    def test_a_lost_answer_leaves_nothing(
        self, index: ss.IndexRelease, monkeypatch: pytest.MonkeyPatch, name: str, error: type[BaseException]
    ) -> None:
        """The server makes a collection, and its answer does not arrive."""
        client = pytest.importorskip("qdrant_client").QdrantClient(":memory:")
        plain = client.create_collection

        def lose(one: str, **options: Any) -> None:
            plain(one, **options)
            if one == name:
                raise error

        monkeypatch.setattr(client, "create_collection", lose)
        with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else StoreError):
            index.to_qdrant(client, "people")
        assert client.get_collections().collections == []

    @pytest.mark.parametrize("is_filled", [True, False])
    def test_a_collection_that_another_client_makes_stays(
        self, index: ss.IndexRelease, monkeypatch: pytest.MonkeyPatch, is_filled: bool
    ) -> None:
        """A name that another client takes between the look and the creation is not removed.

        It stays because the server says that the name is taken, or, if its answer is lost, because it holds points.
        """
        qdrant = pytest.importorskip("qdrant_client")
        client = qdrant.QdrantClient(":memory:")
        plain = client.create_collection

        def take(name: str, **options: Any) -> None:
            plain(name, **options)
            if name == "people":
                if is_filled:
                    client.upsert(name, [qdrant.models.PointStruct(id=0, vector=[1.0] * REDUCED)])
                    raise TimeoutError
                plain(name, **options)

        monkeypatch.setattr(client, "create_collection", take)
        with pytest.raises(StoreError, match="could not be filled"):
            index.to_qdrant(client, "people")
        assert client.collection_exists("people")
        assert not client.collection_exists("people_certificate")


class TestPgVector:
    def test_round_trip(self, index: ss.IndexRelease, version: ss.IndexRelease, postgres: str) -> None:
        psycopg = pytest.importorskip("psycopg")
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            connection.execute("CREATE SCHEMA exports")
            for one, name, ids in ((index, "exports.plain", list(range(N))), (version, "exports.named", NAMES)):
                one.to_pgvector(connection, name)
                query = "[" + ",".join(map(str, one.reduce_query(QUERIES[0]).tolist())) + "]"
                order = f"SELECT id FROM {name} ORDER BY embedding <#> %s::vector LIMIT 5"
                found = [row[0] for row in connection.execute(order, (query,)).fetchall()]
                assert found == [ids[place] for place in one.search(QUERIES[0], 5).indices]
                comment = f"SELECT obj_description('{name}'::regclass)"
                check_metadata(connection.execute(comment).fetchone()[0], one)
                rows = connection.execute(f"SELECT embedding::text FROM {name}").fetchall()
                np.testing.assert_array_equal(np.array([json.loads(row[0]) for row in rows], np.float32), one.vectors)
            with pytest.raises(InvalidInput, match="exists"):
                index.to_pgvector(connection, "exports.plain")
            with pytest.raises(StoreError, match="could not be written"):
                index.to_pgvector(connection, "nowhere.plain")
            with pytest.raises(InvalidInput, match="a connection of psycopg"):
                index.to_pgvector(postgres, "exports.other")
            connection.execute("DROP SCHEMA exports CASCADE")


@pytest.mark.parametrize(
    ("module", "extra"),
    [("faiss", "faiss"), ("pyarrow", "parquet"), ("lancedb", "lancedb"), ("qdrant_client", "qdrant")],
)
def test_a_missing_extra(
    module: str, extra: str, index: ss.IndexRelease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = builtins.__import__

    def reject(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == module:
            raise ImportError(name)
        return plain(name, *args, **kwargs)

    calls = {
        "faiss": lambda: index.to_faiss(),
        "parquet": lambda: index.to_parquet(tmp_path / "a.parquet"),
        "lancedb": lambda: index.to_lance(tmp_path / "a.lance"),
        "qdrant": lambda: index.to_qdrant(None, "a"),
    }
    monkeypatch.setattr(builtins, "__import__", reject)
    with pytest.raises(InvalidInput, match=rf"needs the '{extra}' extra"):
        calls[extra]()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["", 3, "a\0b"])
def test_bad_paths(path: Any, index: ss.IndexRelease) -> None:
    for write in (index.to_parquet, index.to_faiss):
        with pytest.raises(InvalidInput, match="path"):
            write(path)


def test_bad_metadata(index: ss.IndexRelease) -> None:
    text = json.loads(index._describe_metadata().to_json())
    for edit in ({"format": 2}, {"projection": 3}, {"projection": {"shape": [2], "type": "<f8", "base64": "AA"}}):
        with pytest.raises(InvalidInput, match="not the metadata"):
            ExportMetadata.from_json(json.dumps(text | edit))
    with pytest.raises(InvalidInput, match="guarantee in the file"):
        ExportMetadata.from_json(json.dumps(text | {"guarantee": text["guarantee"] | {"epsilon": 1.0}}))
    with pytest.raises(InvalidInput, match="not the metadata"):
        ExportMetadata.from_json("{")
    plain, batch = text["projection"], ss.release_batch(ROWS, QUERIES, epsilon=3.0, k=2).guarantee
    assert plain["shape"] == [REDUCED, DIMENSION]
    for edit in (
        {"components": REDUCED + 1},
        {"components": DIMENSION},
        {"projection": None},
        {"projection": plain | {"shape": [REDUCED * DIMENSION]}},
        {"projection": plain | {"shape": [1, REDUCED, DIMENSION]}},
        {"projection": plain | {"shape": [DIMENSION, REDUCED]}},
        {"center": plain},
        {"center": {"shape": [1], "type": "<f8", "base64": base64.b64encode(np.ones(1).tobytes()).decode()}},
        {"metric": "cosine"},
        {"guarantee": batch.to_dict()},
    ):
        with pytest.raises(InvalidInput, match="not the metadata"):
            ExportMetadata.from_json(json.dumps(text | edit))
    nothing: Any = None
    for given in (nothing, b"\xff", "[]", "[" * 10**5, "null"):
        with pytest.raises(InvalidInput, match="not the metadata"):
            ExportMetadata.from_json(given)
    assert str(ExportMetadata.from_json(json.dumps(text | {"certificate": "x"})).guarantee) == str(index.guarantee)


def test_bad_centers() -> None:
    index = ss.release_index(ROWS, epsilon=30.0, components=REDUCED, center=np.ones(DIMENSION) / 10)
    text = json.loads(index._describe_metadata().to_json())
    for edit in (None, text["center"] | {"shape": [1, DIMENSION]}, text["projection"]):
        with pytest.raises(InvalidInput, match="not the metadata"):
            ExportMetadata.from_json(json.dumps(text | {"center": edit}))
