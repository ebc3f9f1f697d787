"""Collections in files that are read in windows: the same bits as in memory, without memory for all rows."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield._rows import RowSource
from scoreshield.geometry.windows import convert_when_read

Array = np.ndarray
TYPES = ["<f2", ">f2", ">f4", ">f8", "i1", "u2", "<i8"]


def map_rows(folder: Path, rows: Array) -> Array:
    np.save(folder / "rows.npy", rows)
    mapped: Array = np.load(folder / "rows.npy", mmap_mode="r")
    return mapped


def make_rows(kind: str, n: int = 3000, dimension: int = 24) -> Array:
    return np.round(20 * np.random.default_rng(0).standard_normal((n, dimension))).clip(0).astype(kind)


@pytest.mark.parametrize("kind", TYPES)
def test_a_mapped_file_of_another_type_gives_the_same_bits(kind: str, tmp_path: Path) -> None:
    """Half precision, whole numbers and another order of bytes are what they are in memory."""
    rows = make_rows(kind)
    mapped = map_rows(tmp_path, rows)
    assert isinstance(convert_when_read(mapped), RowSource)
    labels = np.arange(3000) % 700
    contracts: list[dict[str, Any]] = [
        {"epsilon": 1, "delta": 1e-6},
        {"epsilon": 1, "delta": 1e-6, "adjacency": ss.Identity(labels, centroids=True)},
    ]
    for contract in contracts:
        released, expected = (ss.release_scores(given, np.arange(24.0), rng=1, **contract) for given in (mapped, rows))
        assert np.array_equal(released.noisy, expected.noisy)
        assert released.guarantee == expected.guarantee
    for options in ({}, {"use": "pairs"}, {"codebook": ss.PublicCodebook(np.eye(24))}):
        assert ss.release_index(mapped, epsilon=12, rng=1, **options) == ss.release_index(
            rows, epsilon=12, rng=1, **options
        )
    public: dict[str, Any] = {"changes": "public", "ids": range(3000)}
    first, second = (ss.release_index(given, epsilon=12, rng=1, **public) for given in (mapped, rows))
    assert np.array_equal(first.vectors, second.vectors)


@pytest.mark.parametrize("kind", ["<f2", ">f4"])
def test_a_mapped_file_of_another_type_needs_no_memory_for_its_rows(kind: str, tmp_path: Path) -> None:
    """Such a file may be larger than memory, as `.npy` files of float32 may."""
    mapped = map_rows(tmp_path, make_rows(kind, 40_000, 128))
    in_memory = 4 * mapped.size
    ss.release_scores(mapped[:10], np.ones(128), epsilon=1, delta=1e-6)  # what is loaded once
    tracemalloc.start()
    try:
        ss.release_scores(mapped, np.ones(128), epsilon=1, delta=1e-6)
        assert tracemalloc.get_traced_memory()[1] < in_memory / 4
    finally:
        tracemalloc.stop()


def test_what_needs_no_conversion_is_left_alone(tmp_path: Path) -> None:
    for kind in ("f4", "f8"):
        mapped = map_rows(tmp_path, make_rows(kind))
        assert convert_when_read(mapped) is mapped
    rows = make_rows("f2")
    assert convert_when_read(rows) is rows


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (4,), (2, 2, 2)])
def test_a_mapped_file_that_is_no_collection(shape: tuple[int, ...], tmp_path: Path) -> None:
    """The error is that of an array in memory."""
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros(shape, dtype="f2"))
    mapped = np.load(path, mmap_mode="r") if np.prod(shape) else np.zeros(shape, dtype="f2")
    with pytest.raises(ss.InvalidInput, match="two-dimensional"):
        ss.release_index(mapped, epsilon=12)


def test_mapped_booleans_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ss.InvalidInput, match="two-dimensional array of real numbers"):
        ss.release_index(map_rows(tmp_path, make_rows("?")), epsilon=12)


def test_a_row_that_is_not_finite_is_named(tmp_path: Path) -> None:
    rows = make_rows("f2", 60_000)
    rows[50_123, 3] = np.inf
    with pytest.raises(ss.InvalidInput, match="Row 50123"):
        ss.release_scores(map_rows(tmp_path, rows), np.ones(24), epsilon=1, delta=1e-6)
    with pytest.raises(ss.InvalidInput, match="Row 50123"):
        ss.release_index(map_rows(tmp_path, rows), epsilon=12)
