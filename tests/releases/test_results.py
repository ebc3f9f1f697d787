"""Saving and loading: equal, whole or not at all, and honest about files that are not releases."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest

import scoreshield as ss
from scoreshield import _files
from scoreshield.geometry.elliptope import factor_gram

Array = np.ndarray
CONTRACT = {"epsilon": 3.0, "delta": 1e-6}


@pytest.fixture(params=["scores", "batch", "row", "gram", "identity", "unsafe", "unprojected", "sure"])
def release(request: pytest.FixtureRequest, collection: Array, query: Array) -> ss.Release:
    labels = np.arange(len(collection)) // 2
    makers = {
        "scores": lambda: ss.release_scores(collection, query, **CONTRACT),
        "batch": lambda: ss.release_scores(collection, np.stack([query, -query]), **CONTRACT),
        "row": lambda: ss.release_row(collection, 3, **CONTRACT),
        "gram": lambda: ss.release_gram(collection, **CONTRACT, adjacency=ss.GramRadius(1.0), max_iterations=5),
        "identity": lambda: ss.release_scores(collection, query, **CONTRACT, adjacency=ss.Identity(labels)),
        "unsafe": lambda: ss.release_scores(
            collection, query, epsilon=90, delta=1e-4, calibration="classical", unsafe_reproduce_paper=True, rng=1
        ),
        "sure": lambda: ss.release_gram(collection, **CONTRACT, adjacency=ss.GramRadius(1.0), denoise="sure"),
        "unprojected": lambda: ss.release_gram(collection, **CONTRACT, projection="none"),
    }
    return makers[request.param]()


def test_round_trip_is_equal(release: ss.Release, tmp_path: Path) -> None:
    path = tmp_path / "release.npz"
    release.save(path)
    back = ss.load(path)
    assert type(back) is type(release)
    assert back == release
    assert back.guarantee == release.guarantee
    assert str(back.guarantee) == str(release.guarantee)
    assert not back.noisy.flags.writeable
    assert list(tmp_path.iterdir()) == [path]
    if isinstance(release, ss.ScoreRelease):
        assert np.array_equal(back.top_k(5), release.top_k(5))


class TestLowRank:
    """A projected Gram matrix has low rank: it can be kept as vectors."""

    @pytest.fixture
    def gram(self) -> ss.GramRelease:
        rows = np.random.default_rng(3).standard_normal((80, 6))
        return ss.release_gram(rows, epsilon=20, delta=1e-6, adjacency=ss.GramRadius(2.0), rng=1)

    def test_vectors_whose_cosines_are_the_release(self, gram: ss.GramRelease) -> None:
        vectors = gram.embeddings()
        assert vectors.shape[1] < 60
        assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(80), abs=1e-14)
        assert np.abs(vectors @ vectors.T - gram.gram).max() < 1e-7
        fewer = gram.embeddings(6)
        assert fewer.shape == (80, 6)
        assert np.linalg.norm(fewer, axis=1) == pytest.approx(np.ones(80))
        assert np.abs(fewer @ fewer.T - gram.gram).max() > 1e-3  # near miss: too few dimensions do lose something

    def test_kept_and_saved_as_factors(self, gram: ss.GramRelease, tmp_path: Path) -> None:
        small = gram.factored()
        small.save(tmp_path / "small.npz")
        gram.save(tmp_path / "whole.npz")
        back = ss.load(tmp_path / "small.npz")
        assert back == small
        assert back.guarantee == gram.guarantee
        assert np.abs(back.gram - gram.gram).max() < 1e-7
        assert np.all(back.gram.diagonal() == 1)
        assert (tmp_path / "small.npz").stat().st_size < 0.5 * (tmp_path / "whole.npz").stat().st_size
        assert np.array_equal(back.embeddings(), small.factor)
        assert back.embeddings(3).shape == (80, 3)
        assert "FactoredGramRelease 80 x 80" in repr(back)

    def test_a_row_that_few_dimensions_do_not_see(self) -> None:
        gram = np.eye(4)
        gram[:3, :3] = 1
        vectors = factor_gram(gram, 1)
        assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(4))

    @pytest.mark.parametrize("rank", [0, -1, 1.5, "2"])
    def test_bad_ranks(self, gram: ss.GramRelease, rank: object) -> None:
        for release in (gram, gram.factored()):
            with pytest.raises(ss.InvalidInput):
                release.embeddings(rank)  # type: ignore[arg-type]


def test_releases_differ_when_anything_does(collection: Array, query: Array) -> None:
    one = ss.release_scores(collection, query, **CONTRACT, rng=1)
    assert one != ss.release_scores(collection, query, **CONTRACT, rng=2)
    assert one != ss.release_scores(collection, query, epsilon=2, delta=1e-6, rng=1)
    assert one != ss.release_row(collection, 0, **CONTRACT, rng=1)
    assert one != "a release"


def test_repr_is_readable(collection: Array, query: Array) -> None:
    text = repr(ss.release_scores(collection, query, **CONTRACT))
    assert text.startswith("<ScoreRelease 40: (3, 1e-06)-DP, strong, gaussian, noise sd")
    assert text.endswith("exact sampler>")


@pytest.fixture
def saved(collection: Array, query: Array, tmp_path: Path) -> Path:
    path = tmp_path / "release.npz"
    ss.release_scores(collection, query, **CONTRACT).save(path)
    return path


def test_every_truncation_is_noticed(saved: Path) -> None:
    content = saved.read_bytes()
    for length in (0, 1, 10, len(content) // 2, len(content) - 30, len(content) - 1):
        saved.write_bytes(content[:length])
        with pytest.raises(ss.InvalidInput, match="corrupt, truncated or of another kind"):
            ss.load(saved)


def test_flipped_bits_are_noticed(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    for place in range(60, len(content) - 400, 97):
        damaged = content.copy()
        damaged[place] ^= 0x10
        saved.write_bytes(damaged)
        try:
            back = ss.load(saved)
        except ss.InvalidInput:
            continue
        saved.write_bytes(content)
        assert back == ss.load(saved)  # a byte that means nothing to a reader, such as a time stamp


def rewrite(path: Path, **changes: object) -> None:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(str(arrays.pop("meta")))
    meta.update({name: value for name, value in changes.items() if name in meta})
    arrays.update({name: value for name, value in changes.items() if name not in meta})
    np.savez(path, meta=np.array(json.dumps(meta)), **arrays)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "hologram"}, "kind 'hologram'"),
        ({"format": 2}, "another format"),
        ({"facts": {}}, "not a whole release"),
        ({"facts": {"tie_break": 1, "index": 3}}, "not a whole release"),
        ({"facts": 3}, "corrupt"),
        ({"kind": ["scores"]}, "which this version does not know"),
        ({"kind": "row", "facts": {"tie_break": 1, "index": 3}}, "does not hold together"),
        ({"noisy": np.zeros(40, dtype=np.float32)}, "does not hold together"),
        ({"extra": np.zeros(3)}, "not a whole release"),
        ({"guarantee": {}}, "not complete"),
        ({"noisy": np.zeros(7)}, "does not hold together"),
        ({"noisy": np.full(40, 0.1)}, "does not hold together"),
    ],
)
def test_files_not_hold_together_refused(saved: Path, changes: dict[str, object], message: str) -> None:
    """Files that do not hold together are refused."""
    rewrite(saved, **changes)
    with pytest.raises(ss.InvalidInput, match=message):
        ss.load(saved)


def test_files_that_are_not_releases(tmp_path: Path) -> None:
    other = tmp_path / "other.npz"
    np.savez(other, a=np.zeros(3))
    with pytest.raises(ss.InvalidInput, match="holds no guarantee"):
        ss.load(other)
    plain = tmp_path / "plain.npy"
    np.save(plain, np.zeros(3))
    with pytest.raises(ss.InvalidInput):
        ss.load(plain)
    pickled = tmp_path / "pickled.npz"
    np.savez(pickled, meta=np.array({"a": 1}, dtype=object))
    with pytest.raises(ss.InvalidInput):
        ss.load(pickled)
    with pytest.raises(ss.FileError, match="There is no file"):
        ss.load(tmp_path / "missing.npz")
    with pytest.raises(ss.FileError, match="Cannot read"):
        ss.load(tmp_path)


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_what_was_there(
    saved: Path, collection: Array, query: Array, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    before = saved.read_bytes()
    release = ss.release_scores(collection, query, **CONTRACT)

    def fail(_: int) -> None:
        raise failure

    monkeypatch.setattr(_files.os, "fsync", fail)
    expected = KeyboardInterrupt if isinstance(failure, KeyboardInterrupt) else ss.FileError
    with pytest.raises(expected):
        release.save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_several_files_put_back_when_last_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third of three names is a folder, or the process is interrupted between two renames."""
    paths = [tmp_path / name for name in ("a", "b", "c")]
    paths[0].write_text("old")
    writers = {path: lambda file: file.write(b"new") for path in paths}
    paths[2].mkdir()
    with pytest.raises(ss.FileError, match="directory"):
        _files.write_whole(writers)
    paths[2].rmdir()
    real = Path.replace

    def interrupted(self: Path, target: Path) -> Path:
        if target == paths[1]:
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _files.write_whole(writers)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert paths[0].read_text() == "old"
    monkeypatch.undo()
    _files.write_whole(writers)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"new"}


@pytest.mark.parametrize("name", ["", ".", "a\0b.npz"])
def test_names_that_are_none(
    name: str, collection: Array, query: Array, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ss.FileError, match="Cannot write"):
        ss.release_scores(collection, query, **CONTRACT).save(name)
    assert list(tmp_path.iterdir()) == []


def test_unwritable_places(collection: Array, query: Array, tmp_path: Path) -> None:
    release = ss.release_scores(collection, query, **CONTRACT)
    with pytest.raises(ss.FileError, match=r"Cannot write .*nothing was changed there"):
        release.save(tmp_path / "no such folder" / "release.npz")
    (tmp_path / "taken.npz").mkdir()
    with pytest.raises(ss.FileError):
        release.save(tmp_path / "taken.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.npz"]
