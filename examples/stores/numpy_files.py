"""Search embeddings in a .npy file, which is mapped and never read whole; each query is charged to a ledger.

Run it with: python examples/stores/numpy_files.py
"""

import tempfile
from pathlib import Path

import numpy as np

import scoreshield as ss
from scoreshield.search import PrivateSearch
from scoreshield.stores import ArrayStore

folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng()
rows = rng.standard_normal((5_000, 384)).astype(np.float32)  # your embeddings, one record per row
np.save(folder / "rows.npy", rows)
query = rows[42] + 0.5 * rng.standard_normal(384)  # a public query, here close to record 42

ledger = ss.Ledger.create(f"sqlite:///{folder / 'ledger.db'}", epsilon=60, delta=1e-6)
store = ArrayStore(folder / "rows.npy")  # ids are the row numbers; ArrayStore(path, ids) takes others
search = PrivateSearch(store, epsilon=20, mode="query", score_range=(0, 0.9), ledger=ledger.account("patients"))
hits = search.search(query, k=3)
for number, score in zip(hits.ids, hits.scores, strict=True):
    print(f"record {number}: {score:.2f}")
print(f"version {hits.version}, spent {ledger.spent_on('patients'):g} of {ledger.epsilon:g}")

# To add a record, write a new file and rename it. It is the next version, charged to the same account.
np.save(folder / "next.npy", np.vstack([rows, query]).astype(np.float32))
(folder / "next.npy").rename(folder / "rows.npy")
hits = search.search(query, k=2)
print(f"version {hits.version}, best {hits.ids}, spent {ledger.spent_on('patients'):g} of {ledger.epsilon:g}")
print(hits.guarantee)  # the certificate
