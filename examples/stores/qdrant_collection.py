"""Private search over a Qdrant collection, here in memory: every query is a release, and a ledger counts them.

Run it with: python examples/stores/qdrant_collection.py
It needs: pip install '.[qdrant]' in a checkout of this repository
"""

import tempfile

import numpy as np
from qdrant_client import QdrantClient, models

import scoreshield as ss
from scoreshield.search import PrivateSearch
from scoreshield.stores import QdrantStore

rng = np.random.default_rng()
vectors = rng.standard_normal((2_000, 64))
client = QdrantClient(":memory:")  # or QdrantClient(url=..., api_key=...)
client.create_collection("people", vectors_config=models.VectorParams(size=64, distance=models.Distance.COSINE))
client.upsert("people", [models.PointStruct(id=i, vector=row.tolist()) for i, row in enumerate(vectors)])

with tempfile.TemporaryDirectory() as folder:
    ledger = ss.Ledger.create(f"sqlite:///{folder}/ledger.db", epsilon=100, delta=0.0)
    search = PrivateSearch(QdrantStore(client, "people"), epsilon=16, mode="query", ledger=ledger.account("people"))
    hits = search.search(vectors[42], k=3)
    print("found:", hits.ids, "with released scores", hits.scores)
    print(search.facts(hits))  # hits.guarantee is the whole certificate

    client.delete("people", [7])  # the collection changed: the next answer is of a new version
    print("version", search.search(vectors[42]).version, "and spent so far:", ledger.spent)
