"""Every kind of release when tasks run twice, in another order, or stop half-way: one view, and one charge."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import distributed
from scoreshield.distributed import requests
from scoreshield.distributed.blocks import BlockFacts, BlockTask
from scoreshield.distributed.engines.base import LocalEngine
from scoreshield.distributed.key_table import ReleaseKeyTable
from scoreshield.distributed.manifest import TILE_ROWS, Manifest

ROWS, DIMENSION, SIDE = 2 * TILE_ROWS + 300, 4, 40
QUERIES = np.random.default_rng(3).standard_normal((3, DIMENSION))


class RepeatingEngine(LocalEngine):
    """Runs each task three times, in another order, from copies of what an engine would send."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    def run(self, task: BlockTask, numbers: Sequence[int]) -> Iterator[BlockFacts]:
        self.sent.append(pickle.dumps(task))
        for number in reversed(numbers):
            found = {pickle.loads(self.sent[-1]).run(number) for _ in range(3)}
            assert len(found) == 1
            yield from found


class StoppingEngine(LocalEngine):
    """Stops after the first block of a release."""

    def run(self, task: BlockTask, numbers: Sequence[int]) -> Iterator[BlockFacts]:
        for number in numbers:
            yield task.run(number)
            if task.step == "release":
                raise KeyboardInterrupt


KINDS: dict[str, tuple[Callable[..., Any], Callable[[Any], np.ndarray]]] = {
    "index": (
        lambda source, **options: distributed.release_index(source, epsilon=20.0, components=3, **options),
        lambda release: release.to_index().vectors,
    ),
    "batch": (
        lambda source, **options: distributed.release_batch(source, QUERIES, epsilon=9.0, k=5, **options),
        lambda release: release.to_batch().names,
    ),
    "histogram": (
        lambda source, **options: distributed.release_histogram(source, QUERIES[0], epsilon=1.0, **options),
        lambda release: release.to_histogram().counts,
    ),
    "gram": (
        lambda source, **options: distributed.release_gram(source, epsilon=5.0, delta=1e-6, **options),
        lambda release: release.to_gram(project=False).noisy,
    ),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One collection of three tiles of records, and one of three tiles of pairs."""
    folder = tmp_path_factory.mktemp("collections")
    rows = np.random.default_rng(4).standard_normal((ROWS, DIMENSION)).astype(np.float32)
    np.save(folder / "many.npy", rows)
    np.save(folder / "few.npy", rows[:100])
    return {kind: folder / ("few.npy" if kind == "gram" else "many.npy") for kind in KINDS}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "PAIR_ROWS", SIDE)


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_that_run_again_write_the_same(kind, sources, tmp_path):
    release, read = KINDS[kind]
    engine = RepeatingEngine()
    plain = release(sources[kind], to=tmp_path / "a", seed=7, block_rows=TILE_ROWS)
    again = release(sources[kind], to=tmp_path / "b", seed=7, block_rows=TILE_ROWS, engine=engine)
    assert len(plain) > 2
    assert np.array_equal(read(plain), read(again))
    assert all(one.read_bytes() == (tmp_path / "b/parts" / one.name).read_bytes() for one in tmp_path.glob("a/parts/*"))


@pytest.mark.filterwarnings("ignore::scoreshield.errors.UselessRelease")
@pytest.mark.parametrize("kind", KINDS)
def test_a_release_that_was_stopped_goes_on(kind, sources, tmp_path):
    release, read = KINDS[kind]
    ledger = ss.Ledger.create(f"sqlite:///{tmp_path}/ledger.db", epsilon=60.0, delta=1e-5)
    options = {"to": tmp_path / "out", "block_rows": TILE_ROWS, "ledger": ledger.account("x")}
    with pytest.raises(KeyboardInterrupt):
        release(sources[kind], engine=StoppingEngine(), **options)
    parts = {path.name: path.read_bytes() for path in (tmp_path / "out" / "parts").iterdir()}
    assert len(parts) == 1
    with pytest.raises(ss.InvalidInput, match=r"no (whole )?release"):
        distributed.open_release(tmp_path / "out")
    engine = RepeatingEngine()
    spent = ledger.account("x").spent
    manifest = Manifest.from_bytes((tmp_path / "out" / "manifest.json").read_bytes())
    kept = ReleaseKeyTable(ledger).read(manifest.release)
    assert kept is not None
    assert kept.secret is not None
    whole = release(sources[kind], engine=engine, **options)
    assert all((tmp_path / "out" / "parts" / name).read_bytes() == content for name, content in parts.items())
    assert len(ledger.entries()) == 1
    assert ledger.account("x").spent == spent
    assert whole.guarantee.provenance is not None
    # The key travelled with no task, is in no file of the release, and is destroyed.
    files = [path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    for content in [*engine.sent, *files]:
        assert kept.secret not in content
        assert kept.secret.hex().encode() not in content
    after = ReleaseKeyTable(ledger).read(manifest.release)
    assert after is not None
    assert after.secret is None
    assert np.array_equal(read(distributed.open_release(tmp_path / "out")), read(whole))
