"""Shared material. Statistical tests use fixed seeds in research mode and state their false-alarm rate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("project", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("project")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240607)


@pytest.fixture
def collection(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((40, 8)).astype(np.float32)


@pytest.fixture
def query(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal(8)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The compact real data beside the checkout; tests that use it skip where it is not there."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the compact data sets (../shared/data) are not beside this checkout")
    return folder
