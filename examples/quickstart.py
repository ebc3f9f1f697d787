"""Release the similarity of one query with a private collection, rank by it, keep the certificate.

Run it with: python examples/quickstart.py
"""

import numpy as np

import scoreshield as ss

rng = np.random.default_rng()
collection = rng.standard_normal((5_000, 384)).astype(np.float32)  # your embeddings, one record per row
query = collection[42] + 0.5 * rng.standard_normal(384)  # a public query, here close to record 42

release = ss.release_scores(collection, query, epsilon=10, delta=1e-6, score_range=(0, 0.8))

print(release)
print("best five:", release.top_k(5))
print(release.guarantee)  # the certificate
