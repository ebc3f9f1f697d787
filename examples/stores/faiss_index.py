"""Search a FAISS index: its memory is viewed, not copied, and its approximate search is not used.

Run it with: python examples/stores/faiss_index.py
It needs: pip install '.[faiss]' in a checkout of this repository
"""

import tempfile

import faiss
import numpy as np

import scoreshield as ss
from scoreshield.search import PrivateSearch
from scoreshield.stores import FaissStore

rng = np.random.default_rng()
rows = rng.standard_normal((5_000, 384)).astype(np.float32)
index = faiss.IndexIDMap2(faiss.IndexHNSWFlat(384, 8, faiss.METRIC_INNER_PRODUCT))  # an index as you have it
index.add_with_ids(rows, 1_000_000 + np.arange(len(rows)))
query = rows[42] + 0.5 * rng.standard_normal(384)

# Charge every query: all scores are released anew each time.
ledger = ss.Ledger.create(f"sqlite:///{tempfile.mkdtemp()}/ledger.db", epsilon=100, delta=1e-6)
search = PrivateSearch(FaissStore(index), epsilon=20, mode="query", ledger=ledger.account("people"))
print("per query:", search.search(query, k=3).ids, f"spent {ledger.spent_on('people'):g}")

# A record that is added is in the next version.
index.add_with_ids(query[None].astype(np.float32), np.array([7]))
hits = search.search(query, k=1)
print(f"version {hits.version}:", hits.ids, f"spent {ledger.spent_on('people'):g}")

# Or charge once: a private index answers every later query.
once = PrivateSearch(FaissStore(index), epsilon=40, ledger=ledger.account("people"))
print("pay once:", once.search(query, k=3).ids, f"spent {ledger.spent_on('people'):g}")
print(once.guarantee)  # the certificate
