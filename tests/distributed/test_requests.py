"""What a caller may give: addresses and not arrays, engines, and the size of blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from source_support import make_vectors, pa, write_file

import scoreshield as ss
from scoreshield import distributed
from scoreshield.distributed.manifest import TILE_ROWS
from scoreshield.distributed.requests import _count_rows
from scoreshield.distributed.sources.facts import FileFacts, SourceFacts

QUERY = np.ones(8)
OPTIONS = {"epsilon": 3.0, "mechanism": "staircase", "seed": 1}


@pytest.mark.parametrize("form", [np.asarray, list, np.ndarray.tolist], ids=["array", "rows", "lists"])
def test_an_array_is_no_address(form: object, tmp_path: Path) -> None:
    """Its text would show private rows."""
    vectors = make_vectors(5)
    with pytest.raises(ss.InvalidInput, match="and not an array") as caught:
        distributed.release_scores(form(vectors), QUERY, to=tmp_path / "out", **OPTIONS)  # type: ignore[operator]
    assert str(vectors[0, 0])[:6] not in str(caught.value)
    write_file(tmp_path / "docs" / "a.parquet", vectors)
    with pytest.raises(ss.InvalidInput, match="'to' parameter"):
        distributed.release_scores(tmp_path / "docs", QUERY, to=None, **OPTIONS)  # type: ignore[arg-type]


def test_local_engine_has_no_scheduler(tmp_path: Path) -> None:
    write_file(tmp_path / "docs" / "a.parquet", make_vectors(5))
    with pytest.raises(ss.InvalidInput, match="takes no scheduler"):
        distributed.release_scores(
            tmp_path / "docs", QUERY, to=tmp_path / "out", engine="local", scheduler="tcp://x:1", **OPTIONS
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("rows", "tiles"), [(1, 1), (64 * TILE_ROWS, 1), (640 * TILE_ROWS, 10), (10**9, 16)])
def test_blocks_follow_the_number_of_records(rows: int, tiles: int) -> None:
    """It is public, so that the same call again has the same blocks."""
    facts = SourceFacts("files", "/x", "", "", (FileFacts("/x/a", rows, 1, "s"),), 8, "float32")
    assert _count_rows(None, facts) == tiles * TILE_ROWS
    assert _count_rows(3 * TILE_ROWS, facts) == 3 * TILE_ROWS


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list], ids=["list", "large list, as polars writes it"])
def test_long_lists_are_found_in_the_footer(tmp_path: Path, kind: Any) -> None:
    """One record with a huge list stops a release before its charge, also where rows are not checked."""
    rows, of_floats = make_vectors(50).tolist(), kind(pa.float32())
    path = write_file(tmp_path / "docs" / "a.parquet", rows, kind=of_floats)
    account = ss.Ledger.create(f"sqlite:///{tmp_path}/l.db", epsilon=10, delta=0).account("docs")
    options = {"epsilon": 3.0, "mechanism": "staircase", "ledger": account, "check_rows": False}
    release = distributed.release_scores(tmp_path / "docs", QUERY, to=tmp_path / "short", **options)
    assert len(release.scores()) == 50
    write_file(path, [*rows[:20], [0.0] * 5000, *rows[21:]], kind=of_floats)
    with pytest.raises(ss.InvalidInput, match="lists of one length"):
        distributed.release_scores(tmp_path / "docs", QUERY, to=tmp_path / "long", **options)
    assert len(account.entries()) == 1


def test_a_path_object_shortens_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that was meant for a storage does not go into a folder of this machine with a name like it."""
    monkeypatch.chdir(tmp_path)
    write_file(tmp_path / "vectors.parquet", make_vectors(9))
    options = {"epsilon": 2.0, "mechanism": "staircase", "seed": 1}
    for to in (Path("s3://bucket/out"), "gs:/bucket/out"):
        with pytest.raises(ss.InvalidInput, match="give the address as text"):
            distributed.release_scores("vectors.parquet", make_vectors(1)[0], to=to, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["vectors.parquet"]
    (tmp_path / "s3:").mkdir()  # someone named a folder so
    release = distributed.release_scores("vectors.parquet", make_vectors(1)[0], to="s3:/out", **options)
    assert release.address == str(tmp_path / "s3:" / "out")
