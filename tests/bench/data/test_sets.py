"""The data sets: parts that agree are kept read-only, parts that do not are rejected in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreshield.bench.data.sets import (
    FacePairs,
    LabelledSet,
    Ratings,
    RetrievalSet,
    ScorePairs,
    SentencePairs,
    group_by_query,
)
from scoreshield.errors import InvalidInput


class Lengths:
    """An embedder that gives the length of a text and 1."""

    name = "lengths"

    def embed(self, items: Any) -> np.ndarray:
        return np.array([[len(item), 1.0] for item in items], dtype=np.float32)


def labelled(**changes: Any) -> LabelledSet:
    parts: dict[str, Any] = {
        "name": "tiny",
        "labels": [0, 1, 1],
        "class_names": ("cat", "dog"),
        "items": ("a", "bb", "ccc"),
    }
    return LabelledSet(**{**parts, **changes})


def sentences(**changes: Any) -> SentencePairs:
    parts: dict[str, Any] = {
        "name": "tiny",
        "sentences": ["one", "three", "five"],
        "first": [0, 1],
        "second": [1, 2],
        "human": [0.5, 4],
    }
    return SentencePairs(**{**parts, **changes})


def retrieval(**changes: Any) -> RetrievalSet:
    parts: dict[str, Any] = {
        "name": "tiny",
        "documents": ["x", "yy", "zzz"],
        "queries": ["q", "rr"],
        "relevant": ([2], [0, 1]),
    }
    return RetrievalSet(**{**parts, **changes})


def ratings(**changes: Any) -> Ratings:
    parts: dict[str, Any] = {
        "name": "tiny",
        "users": [0, 0, 1, 2],
        "items": [0, 1, 1, 0],
        "ratings": [5, 4, 3, 1],
        "fold": [1, 2, 1, 2],
        "user_count": 3,
        "item_count": 2,
    }
    return Ratings(**{**parts, **changes})


def faces(**changes: Any) -> FacePairs:
    parts: dict[str, Any] = {
        "name": "tiny",
        "identity": [7, 7, 8],
        "first": [0, 1],
        "second": [1, 2],
        "same": np.array([True, False]),
        "fold": [0, 0],
    }
    return FacePairs(**{**parts, **changes})


def scores(**changes: Any) -> ScorePairs:
    parts: dict[str, Any] = {
        "name": "tiny",
        "genuine": [0.9, 0.8],
        "impostor": [0.1],
        "genuine_fold": [0, 1],
        "impostor_fold": [1],
    }
    return ScorePairs(**{**parts, **changes})


def test_a_set_is_embedded_by_what_it_holds() -> None:
    done = labelled().embed(Lengths())
    assert np.array_equal(done.embeddings, [[1, 1], [2, 1], [3, 1]])
    assert done.embeddings.dtype == np.float32
    assert np.array_equal(sentences().embed(Lengths()).embeddings[:, 0], [3, 5, 4])
    both = retrieval().embed(Lengths())
    assert np.array_equal(both.document_embeddings[:, 0], [1, 2, 3])
    assert np.array_equal(both.query_embeddings[:, 0], [1, 2])
    assert np.array_equal(faces(items=("a", "bb", "c")).embed(Lengths()).embeddings[:, 0], [1, 2, 1])
    assert labelled().embeddings is None  # the first one is as it was


def test_set_without_items_says_cannot() -> None:
    """A set without items says that it cannot be embedded."""
    with pytest.raises(InvalidInput, match=r"^The set tiny holds no items to embed"):
        labelled(items=None).embed(Lengths())


def test_arrays_copies_nobody_can_change() -> None:
    """Arrays are copies that nobody can change."""
    labels = np.array([0, 1, 1])
    made = labelled(labels=labels)
    labels[0] = 1
    assert made.labels[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        made.labels[0] = 1
    rows = np.ones((3, 2), dtype=np.float32)
    made = made.with_embeddings(rows)
    rows[0, 0] = 9
    assert made.embeddings[0, 0] == 1


def test_records_can_be_taken_by_number() -> None:
    part = labelled(embeddings=np.arange(6.0).reshape(3, 2)).take([2, 0])
    assert part.labels.tolist() == [1, 0]
    assert part.items == ("ccc", "a")
    assert part.embeddings.tolist() == [[4, 5], [0, 1]]
    pixels = np.arange(3, dtype=np.uint8).reshape(3, 1, 1, 1)
    assert labelled(items=pixels).take([2]).items.tolist() == [[[[2]]]]
    with pytest.raises(InvalidInput, match="'records' parameter"):
        labelled().take([3])


def test_rating_tested_fold_learnt_others() -> None:
    """A rating is tested in its fold and learnt from in the others."""
    train, test = ratings().split(2)
    assert train.users.tolist() == [0, 1]
    assert test.users.tolist() == [0, 2]
    assert test.ratings.tolist() == [4, 1]
    assert train.user_count == 3  # users without a rating left still count
    with pytest.raises(InvalidInput, match=r"^Fold 3 of tiny cannot be split off: the folds are 1, 2\.$"):
        ratings().split(3)
    with pytest.raises(InvalidInput, match=r"'fold' parameter of Ratings\.split"):
        ratings().split("1")


def test_pairs_given_order_truth() -> None:
    """Pairs are given in the order of the truth."""
    assert sentences().pairs.tolist() == [[0, 1], [1, 2]]
    assert faces().pairs.tolist() == [[0, 1], [1, 2]]
    assert retrieval().pairs.tolist() == [[0, 2], [1, 0], [1, 1]]
    made = scores()
    assert made.scores.tolist() == [0.9, 0.8, 0.1]
    assert made.same.tolist() == [True, True, False]
    assert made.fold.tolist() == [0, 1, 1]


def test_judgements_grouped_query_each() -> None:
    """Judgements are grouped by query each document once."""
    parts = group_by_query([[1, 5], [0, 3], [1, 2], [1, 5]], 3)
    assert [part.tolist() for part in parts] == [[3], [2, 5], []]
    with pytest.raises(InvalidInput, match=r"queries lie in 0\.\.1"):
        group_by_query([[2, 0]], 2)
    with pytest.raises(InvalidInput, match="pairs"):
        group_by_query([[0.5, 1]], 2)


@pytest.mark.parametrize(
    ("make", "changes", "words"),
    [
        (labelled, {"labels": [0, 2, 1]}, "'labels' parameter of LabelledSet must be .* from 0 to 1"),
        (labelled, {"labels": [0, -1, 1]}, "'labels'"),
        (labelled, {"labels": [0.0, 1.0, 1.0]}, "'labels'"),
        (labelled, {"labels": []}, "'labels'"),
        (labelled, {"labels": [[0, 1, 1]]}, "'labels'"),
        (labelled, {"labels": None}, "'labels'"),
        (labelled, {"class_names": "cat"}, "'class_names'"),
        (labelled, {"class_names": ()}, "'class_names'"),
        (labelled, {"items": ("a", "bb")}, "'items' .* 3 items"),
        (labelled, {"items": 5}, "'items'"),
        (labelled, {"items": np.array(5)}, "'items'"),
        (labelled, {"embeddings": np.ones((2, 2))}, "'embeddings' .* 3 rows"),
        (labelled, {"embeddings": np.ones(3)}, "'embeddings'"),
        (labelled, {"embeddings": np.ones((3, 0))}, "'embeddings'"),
        (labelled, {"embeddings": [[1, 2], [3, np.nan], [5, 6]]}, "'embeddings'"),
        (labelled, {"embeddings": [[1, 2], [3, 1e300], [5, 6]]}, "float32 can hold"),
        (labelled, {"embeddings": [[1, 2], [3], [5, 6]]}, "'embeddings'"),
        (labelled, {"embeddings": [["1"], ["2"], ["3"]]}, "'embeddings'"),
        (sentences, {"first": [0, 3]}, "'first'"),
        (sentences, {"second": [0]}, "'second' .* 2 whole numbers"),
        (sentences, {"human": [0.5, np.inf]}, "'human'"),
        (sentences, {"human": []}, "'human'"),
        (sentences, {"sentences": ["one", 2, "five"]}, "'sentences'"),
        (retrieval, {"relevant": ([2],)}, "'relevant' .* 2 queries"),
        (retrieval, {"relevant": ([2], [])}, "'relevant'"),
        (retrieval, {"relevant": ([2], [3])}, "'relevant'"),
        (retrieval, {"titles": ["x"]}, "'titles' .* 3 texts"),
        (retrieval, {"answers": ["x"]}, "'answers' .* 2 texts"),
        (
            retrieval,
            {"document_embeddings": np.ones((3, 2)), "query_embeddings": np.ones((2, 3))},
            "'query_embeddings' .* as long as",
        ),
        (ratings, {"users": [0, 0, 1, 3]}, "'users'"),
        (ratings, {"item_count": 0}, "'item_count'"),
        (ratings, {"fold": [1, 2]}, "'fold'"),
        (faces, {"same": [1, 0]}, "'same'"),
        (faces, {"same": np.array([True, True])}, "^The parts of tiny disagree"),
        (faces, {"second": [1, 3]}, "'second'"),
        (scores, {"impostor": [np.nan]}, "'impostor'"),
        (scores, {"genuine_fold": [0]}, "'genuine_fold'"),
    ],
)
def test_parts_not_fit_rejected_sentence(make: Any, changes: dict[str, Any], words: str) -> None:
    """Parts that do not fit are rejected in one sentence."""
    make()  # the set is sound without the change
    with pytest.raises(InvalidInput, match=words) as caught:
        make(**changes)
    assert "\n" not in str(caught.value)


def test_one_record_is_a_set() -> None:
    made = LabelledSet(name="one", labels=[0], class_names=["x"], items=[Path("a")], embeddings=[[1.0]])
    assert len(made) == 1


@pytest.mark.parametrize("missing", ["pandas", "pydantic"])
def test_missing_extra(missing: str) -> None:
    """Without its packages, the benchmarks name their extra in one sentence."""
    code = f"import sys; sys.modules['{missing}'] = None; import scoreshield.bench.data.sets"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "The benchmarks need the 'bench' extra: pip install 'scoreshield[bench]'." in done.stderr


def test_unknown_field() -> None:
    """A field that a set does not have is rejected by its name, without its content."""
    with pytest.raises(InvalidInput, match="The 'label' parameter of LabelledSet") as caught:
        labelled(label="a secret")
    assert "secret" not in str(caught.value)
