"""Semantic search with sentence-transformers over private notes: one line changes. Nothing is downloaded.

Run it with: python examples/frameworks/sentence_transformers_search.py
"""

import hashlib

import numpy as np

from scoreshield.integrations.sentence_transformers import PrivateCorpus, semantic_search
from scoreshield.integrations.text import embed_rows

NOTES = [
    "The patient reports pain in the left knee after running.",
    "The patient sleeps badly and drinks six cups of coffee a day.",
    "Blood pressure is high; the patient was told to eat less salt.",
    "The patient has asked for a second opinion on the knee.",
    "A rash on both hands, after work with cleaning agents.",
    "The patient is afraid of flying and asks for something to calm down.",
]


class WordModel:
    """Stands for a SentenceTransformer: each word is a fixed random direction, a text is their sum."""

    def encode(self, sentences: list[str], normalize_embeddings: bool = False) -> np.ndarray:
        rows = np.array([self._sum(text) for text in sentences])
        return rows / np.linalg.norm(rows, axis=1, keepdims=True) if normalize_embeddings else rows

    def _sum(self, text: str) -> np.ndarray:
        seeds = [int.from_bytes(hashlib.sha256(w.strip(".,;?").encode()).digest()[:4]) for w in text.lower().split()]
        return np.sum([np.random.default_rng(seed).standard_normal(32) for seed in seeds], axis=0)


model = WordModel()
corpus = embed_rows(model.encode, NOTES)  # one text per call, so that a row depends on its own text alone
queries = model.encode(["pain in the knee", "coffee and sleep"])

# Before: found = util.semantic_search(queries, corpus, top_k=2)
found = semantic_search(queries, corpus, epsilon=40, top_k=2)
print(found)

# Every call above is a release. A corpus is charged once, and later queries are free.
notes = PrivateCorpus(model, NOTES, epsilon=40)
for one in notes.search("pain in the knee", 2):
    print(f"{one['score']:+.2f}  {one['text']}")
print(notes.private_search.guarantee)
