"""Private search over a LanceDB table: which records pass a public threshold, by randomised response.

Run it with: python examples/stores/lance_table.py
It needs: pip install '.[lancedb]' in a checkout of this repository
"""

import tempfile

import lancedb
import numpy as np

import scoreshield as ss
from scoreshield.search import PrivateSearch
from scoreshield.stores import LanceStore

rng = np.random.default_rng()
vectors = rng.standard_normal((2_000, 64)).astype(np.float32)

with tempfile.TemporaryDirectory() as folder:
    rows = [{"id": f"person-{i}", "vector": row} for i, row in enumerate(vectors)]
    table = lancedb.connect(f"{folder}/lance").create_table("people", rows)

    account = ss.Ledger.create(f"sqlite:///{folder}/ledger.db", epsilon=50, delta=0.0).account("people")
    search = PrivateSearch(LanceStore(table), epsilon=10, mode="screening", threshold=0.9, ledger=account)
    hits = search.search(vectors[42], k=5)
    print("named as matches:", hits.ids)
    print(search.facts(hits))  # hits.guarantee is the whole certificate

    table.update(where="id = 'person-42'", values={"vector": vectors[0].tolist()})
    print("version", search.search(vectors[42]).version, "and spent so far:", account.spent)
