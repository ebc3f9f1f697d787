"""Search a private collection: what works at a small budget, what cannot, and the certificate.

Run it with: python examples/quickstart.py
"""

import numpy as np

import scoreshield as ss

# Your embeddings, one record per row. Here: 4,000 records about 200 topics, made up.
rng = np.random.default_rng()
topics = rng.standard_normal((200, 384))
topic = np.repeat(np.arange(200), 20)
collection = (topics[topic] + rng.standard_normal((4_000, 384))).astype(np.float32)
query = topics[7] + rng.standard_normal(384)  # public: a question about topic 7

# Works: windows around a private quantile, made for the best records of one query. Pure epsilon, no delta. About one
# search in a hundred finds nothing, because its quantile is drawn far off.
good = ss.release_scores(collection, query, epsilon=8, mechanism="anchored")
best = good.top_k(10)
print(f"anchored windows, epsilon 8: {np.sum(topic[best] == 7)} of the ten best are about the topic: {best}")

# Cannot work: Gaussian noise at the same epsilon is larger than any difference of two cosines.
noisy = ss.release_scores(collection, query, epsilon=8, delta=1e-6, mechanism="gaussian")
found = np.sum(topic[noisy.top_k(10)] == 7)
print(
    f"Gaussian noise, epsilon 8: {found} of the ten best; the noise on a cosine has sd {noisy.guarantee.noise_std:.2f}"
)

print(good.guarantee)  # the certificate
