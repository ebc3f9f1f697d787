"""Search a usearch index, viewed from its file; the private index that is made of it is kept beside it.

Run it with: python examples/stores/usearch_index.py
It needs: pip install '.[usearch]' in a checkout of this repository
"""

import tempfile
from pathlib import Path

import numpy as np
from usearch.index import Index

from scoreshield.search import PrivateSearch
from scoreshield.stores import UsearchStore

folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng()
rows = rng.standard_normal((3_000, 384)).astype(np.float32)
index = Index(ndim=384, metric="cos", dtype="f16")
index.add(np.arange(len(rows)), rows)
index.save(folder / "people.usearch")
query = rows[42] + 0.5 * rng.standard_normal(384)

store = UsearchStore(Index.restore(folder / "people.usearch", view=True))
search = PrivateSearch(store, epsilon=40, file=folder / "private.npz")  # made and kept the first time, then read
print("best three:", search.search(query, k=3).ids)
print("even keys only:", search.search(query, k=3, where=lambda key: key % 2 == 0).ids)
print("without 42:", end=" ")
search.hide([42])  # leaves record 42 out of all answers, at once and at no cost
print(search.search(query, k=3).ids)

elsewhere = PrivateSearch.load(folder / "private.npz")  # needs neither the store nor a clean vector
print("the same elsewhere:", elsewhere.search(query, k=3).ids)
print(elsewhere.guarantee)  # the certificate
