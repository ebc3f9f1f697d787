"""Private search over a DuckDB table, and over the same records in a Parquet file.

Run it with: python examples/stores/duckdb_table.py
It needs: pip install '.[duckdb]' in a checkout of this repository
"""

import tempfile

import duckdb
import numpy as np

import scoreshield as ss
from scoreshield.search import PrivateSearch
from scoreshield.stores import DuckDBStore, ParquetStore

rng = np.random.default_rng()
vectors = rng.standard_normal((1_000, 64))

with tempfile.TemporaryDirectory() as folder, duckdb.connect(f"{folder}/people.duckdb") as connection:
    connection.execute("CREATE TABLE people (id INTEGER, embedding FLOAT[64])")
    connection.executemany("INSERT INTO people VALUES (?, ?)", list(enumerate(vectors.tolist())))
    connection.execute(f"COPY people TO '{folder}/people.parquet'")

    # Both stores hold the same people, so both charge the same account.
    account = ss.Ledger.create(f"sqlite:///{folder}/ledger.db", epsilon=100, delta=0.0).account("people")
    for store in (DuckDBStore(connection, "people"), ParquetStore(f"{folder}/people.parquet")):
        search = PrivateSearch(store, epsilon=16, mode="query", ledger=account)
        hits = search.search(vectors[42], k=3)
        print(store.name, "found:", hits.ids, "with released scores", hits.scores)
    print("spent so far:", account.spent)
