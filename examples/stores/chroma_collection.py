"""Private search over a Chroma collection: one private index, made once, answers every query.

Run it with: python examples/stores/chroma_collection.py
It needs: pip install '.[chroma]' in a checkout of this repository
"""

import chromadb
import numpy as np
from chromadb.config import Settings

from scoreshield.search import PrivateSearch
from scoreshield.stores import ChromaStore

rng = np.random.default_rng()
vectors = rng.standard_normal((2_000, 64)).astype(np.float32)
client = chromadb.EphemeralClient(settings=Settings(anonymized_telemetry=False))  # or PersistentClient, HttpClient
collection = client.create_collection("people", configuration={"hnsw": {"space": "cosine"}}, embedding_function=None)
collection.add(ids=[f"person-{i}" for i in range(2_000)], embeddings=vectors)

search = PrivateSearch(ChromaStore(collection), epsilon=40)
for number in (42, 43):
    hits = search.search(vectors[number], k=3)
    print("found:", hits.ids, "with released scores", hits.scores)
print(search.facts(hits))  # it covers both queries, and all that follow

collection.delete(ids=["person-7"])
print("the index is of another version than the collection:", search.stale)
search.hide(["person-7"])  # leaves it out of all answers, at no cost; refresh() would charge a new index
