"""The target of the golden journal: Laplace noise of a fifth of the scale that the claim needs."""

import numpy as np

calls, stop_after = 0, None


def release(embeddings, query):
    """Draw the noise of a call from the number of the call, so that a resumed audit continues as the first would."""
    global calls
    if stop_after is not None and calls >= stop_after:
        raise RuntimeError("stopped")
    calls += 1
    noise = np.random.default_rng([calls, 7]).laplace(size=len(embeddings)) * 0.4
    return np.round((embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True) @ query + noise) * 2**20) / 2**20
