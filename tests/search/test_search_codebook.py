"""A private search over a public codebook or with a center: answers, files, and what does not fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield.search import PrivateSearch

Array = np.ndarray


@pytest.fixture
def rows(rng: np.random.Generator) -> Array:
    topics = rng.standard_normal((10, 12))
    return topics[rng.integers(0, 10, 200)] + 0.3 * rng.standard_normal((200, 12))


@pytest.fixture
def book(rows: Array) -> ss.PublicCodebook:
    return ss.PublicCodebook(rows[:80], source="Other rows.")


def test_a_search_answers_from_codes(rows: Array, book: ss.PublicCodebook) -> None:
    search = PrivateSearch(rows[80:], epsilon=30.0, codebook=book)
    assert search.guarantee.mechanism == "codebook"
    assert search.guarantee.sampler == "exact"
    assert len(search.search(rows[80], 3).ids) == 3
    assert search.spent == 30.0


@pytest.mark.parametrize("kind", ["codebook", "private center", "public center"])
def test_files_keep_the_index(kind: str, rows: Array, book: ss.PublicCodebook, tmp_path: Path) -> None:
    """A second search on the file charges nothing and answers the same; an edited file is rejected."""
    options: dict[str, dict[str, Any]] = {
        "codebook": {"epsilon": 9.0, "codebook": book},
        "private center": {"epsilon": 9.0, "delta": 1e-6, "center": "private"},
        "public center": {"epsilon": 9.0, "center": np.full(12, 0.1)},
    }
    path = tmp_path / "i.npz"
    first = PrivateSearch(rows[80:], file=path, **options[kind])
    before = path.read_bytes()
    second = PrivateSearch(rows[80:], file=path, **options[kind])
    loaded = PrivateSearch.load(path)
    assert path.read_bytes() == before
    for other in (second, loaded):
        assert list(other.search(rows[0], 7).ids) == list(first.search(rows[0], 7).ids)
        assert other.guarantee == first.guarantee
    release = ss.load(path)
    values = "codes" if kind == "codebook" else "center" if kind == "private center" else "vectors"
    with np.load(path) as file:
        parts = {name: file[name] for name in file.files}
    parts[values] = parts[values] + 0.01 if values == "center" else parts[values][::-1].copy()
    with path.open("wb") as file:
        np.savez(file, **parts)
    assert ss.load(path) != release
    with pytest.raises(ss.InvalidInput, match="does not hold the ids"):
        PrivateSearch.load(path)


def test_a_file_of_another_request_is_rejected(rows: Array, book: ss.PublicCodebook, tmp_path: Path) -> None:
    coded, centered, plain = (tmp_path / f"{name}.npz" for name in ("coded", "centered", "plain"))
    PrivateSearch(rows[80:], epsilon=9.0, codebook=book, file=coded)
    PrivateSearch(rows[80:], epsilon=9.0, center=np.full(12, 0.1), file=centered)
    PrivateSearch(rows[80:], epsilon=9.0, file=plain)
    other = ss.PublicCodebook(rows[1:80])
    for path, options, words in (
        (coded, {"codebook": other}, "over another codebook"),
        (coded, {}, "with another mechanism"),
        (plain, {"codebook": book}, "over another codebook than requested, or over none"),
        (plain, {"center": np.full(12, 0.1)}, "with another center"),
        (centered, {"center": np.full(12, 0.2)}, "with another center"),
        (centered, {}, "with another center"),
    ):
        with pytest.raises(ss.InvalidInput, match=words):
            PrivateSearch(rows[80:], epsilon=9.0, file=path, **options)


def test_options_that_do_not_fit(rows: Array, book: ss.PublicCodebook, tmp_path: Path) -> None:
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path / 'l.db'}", epsilon=100, delta=1e-5)
    account = ledger.account("rows")
    for options, words in (
        ({"mode": "query", "codebook": book}, "'codebook' and 'center' are for mode='index'"),
        ({"mode": "query", "center": "private"}, "'codebook' and 'center' are for mode='index'"),
        ({"mode": "hits", "hits": 1, "center": "private"}, "'codebook' and 'center' are for mode='index'"),
        ({"codebook": book, "components": 3}, "A codebook replaces the mechanism"),
        ({"codebook": ss.PublicCodebook(np.eye(5))}, "as the embeddings are"),
        ({"center": "private"}, "above 0 for a private center"),
    ):
        with pytest.raises(ss.InvalidInput, match=words):
            PrivateSearch(rows, epsilon=2.0, ledger=account, **options)
    assert ledger.spent == 0
