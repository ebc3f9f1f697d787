"""Releases of real sentences (STS-B), where the compact data sets are beside the checkout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import scoreshield as ss


@pytest.fixture(scope="module")
def sentences(shared_data: Path) -> np.ndarray:
    with np.load(shared_data / "stsb_test_minilm.npz") as file:
        rows: np.ndarray = file["emb"][:400]
    return rows


def test_projection_and_denoising_help_on_real_sentences(sentences: np.ndarray) -> None:
    clean = sentences.astype(float) @ sentences.T
    off = ~np.eye(len(sentences), dtype=bool)
    contract = {"epsilon": 20, "delta": 1e-5, "adjacency": ss.GramRadius(2.0), "rng": 0}

    def error(matrix: np.ndarray) -> float:
        return float(np.mean((matrix - clean)[off] ** 2))

    exact = ss.release_gram(sentences, **contract)
    assert exact.converged
    assert error(exact.gram) < 0.15 * error(exact.noisy)
    chosen = ss.release_gram(sentences, **contract, denoise="sure")
    assert error(chosen.gram) <= error(exact.gram)
    assert chosen.risks[chosen.denoise] == min(chosen.risks.values())
    for name, risk in chosen.risks.items():
        true = error(ss.release_gram(sentences, **contract, denoise=name).gram)
        assert risk == pytest.approx(true, abs=0.05 * exact.guarantee.noise.std**2)


def test_a_query_with_little_noise_finds_itself(sentences: np.ndarray) -> None:
    release = ss.release_scores(sentences, sentences[17], epsilon=2000, delta=1e-5, rng=0)
    assert release.top_k(1).tolist() == [17]
    # At a strong budget it comes among the best five about as often as any other of the 400: 2.5 times in 200.
    found = sum(
        17 in ss.release_scores(sentences, sentences[17], epsilon=0.1, delta=1e-5, rng=seed).top_k(5)
        for seed in range(200)
    )
    assert found < 20
