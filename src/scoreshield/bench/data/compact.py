"""Readers of the compact sets: small files of ready-made embeddings and public truth, for machines without a network.

Each reader takes the folder the files lie in. Text embeddings there have length one; face and image embeddings do not
and are handed over as they are, in float32. Numbers of users, items, sentences, documents and records start from 0.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _loading, _validation
from scoreshield._validation import one_of, validate
from scoreshield.bench.data import archives
from scoreshield.bench.data.sets import (
    FacePairs,
    LabelledSet,
    Ratings,
    RetrievalSet,
    ScorePairs,
    SentencePairs,
    group_by_query,
)
from scoreshield.errors import FileError, InvalidInput

#: The score sets of ``load_compact_lfw_scores``: one face model each, raw or with the mean over the images taken away.
LFW_SCORE_SETS = ("dlib", "dlib_centred", "faceres", "faceres_centred", "mobileface")

#: The face models of ``load_compact_lfw_faces``.
LFW_MODELS = ("dlib", "faceres")

_PAIRS = "the pairs (a, b, same, fold)"
_CONTENT: Mapping[str, str] = {
    "stsb_test.csv": "the STS-B test pairs with columns genre, source, score, sentence1, sentence2",
    "stsb_test_minilm.npz": "the sentence embeddings 'emb', the pairs 'i' and 'j' and the human scores 'score'",
    "scifact_minilm.npz": "the embeddings 'doc_emb' and 'query_emb', 'doc_id', 'query_id' and the judgements 'qrels'",
    "scifact_queries.csv": "the SciFact claims with columns id, claim",
    "scifact_titles.csv": "the titles of the SciFact abstracts with columns doc_id, title",
    "frames_minilm.npz": "the embeddings 'query_emb' and 'title_emb' and the judgements 'qrels'",
    "frames_questions.csv": "the FRAMES questions with columns query, question, answer, reasoning_types",
    "frames_titles.csv": "the titles of the pages that answer them with columns doc, title",
    "ml100k_ratings.csv": "the MovieLens-100K ratings with columns user, item, rating, timestamp, test_fold",
    "cifar10_effnetlite0.npz": "the image embeddings 'gallery_emb' and 'query_emb', their labels and 'class_names'",
    "lfw_scores.npz": "the scores '<set>_genuine' and '<set>_impostor' and their folds",
    "lfw_dlib.npz": f"the face embeddings 'emb', their 'identity' and {_PAIRS}",
    "lfw_faceres.npz": f"the face embeddings 'emb', their 'identity' and {_PAIRS}",
}


@validate()
def load_compact_stsb(data_dir: str | Path) -> SentencePairs:
    """Load the STS-B test pairs: 1,379 pairs of 2,552 distinct sentences, 384 dimensions."""
    rows = _read_table(data_dir, "stsb_test.csv", ("score", "sentence1", "sentence2"))
    arrays = _read_arrays(data_dir, "stsb_test_minilm.npz", ("emb", "i", "j", "score"))
    sentences = tuple(dict.fromkeys(row[name] for row in rows for name in ("sentence1", "sentence2")))
    first, second = arrays["i"], arrays["j"]
    made = SentencePairs(
        name="STS-B test", sentences=sentences, first=first, second=second, human=arrays["score"],
        embeddings=_match_rows(arrays, "emb", len(sentences), "stsb_test_minilm.npz", "stsb_test.csv"),
    )  # fmt: skip
    said = [(row["sentence1"], row["sentence2"]) for row in rows]
    if said != [(sentences[a], sentences[b]) for a, b in made.pairs]:
        raise InvalidInput(_describe_disagreement("stsb_test_minilm.npz", "stsb_test.csv", "pair other sentences"))
    return made


@validate()
def load_compact_scifact(data_dir: str | Path) -> RetrievalSet:
    """Load SciFact in BEIR's test form: 300 claims, 5,183 abstracts, 339 judgements.

    The embeddings are of title and abstract; ``documents`` holds the titles only, since the abstracts are not kept.
    """
    file, about, asked = "scifact_minilm.npz", "scifact_titles.csv", "scifact_queries.csv"
    arrays = _read_arrays(data_dir, file, ("doc_emb", "query_emb", "doc_id", "query_id", "qrels"))
    documents = _read_table(data_dir, about, ("doc_id", "title"))
    claims = _read_table(data_dir, asked, ("id", "claim"))
    for key, rows, column, other in (("doc_id", documents, "doc_id", about), ("query_id", claims, "id", asked)):
        if [str(number) for number in arrays[key]] != [row[column] for row in rows]:
            raise InvalidInput(_describe_disagreement(file, other, "list other records"))
    titles = tuple(row["title"] for row in documents)
    return RetrievalSet(
        name="SciFact",
        documents=titles,
        queries=tuple(row["claim"] for row in claims),
        relevant=group_by_query(arrays["qrels"], len(claims)),
        titles=titles,
        document_embeddings=_match_rows(arrays, "doc_emb", len(titles), file, about),
        query_embeddings=_match_rows(arrays, "query_emb", len(claims), file, asked),
    )


@validate()
def load_compact_frames(data_dir: str | Path) -> RetrievalSet:
    """Load FRAMES: 824 questions of several steps, and the titles of the 2,519 pages that answer them.

    Only titles are embedded and held in ``documents``: the text of the pages is not kept. ``answers`` holds the
    right answers.
    """
    file, about, asked = "frames_minilm.npz", "frames_titles.csv", "frames_questions.csv"
    arrays = _read_arrays(data_dir, file, ("title_emb", "query_emb", "qrels"))
    titles = tuple(row["title"] for row in _read_table(data_dir, about, ("doc", "title")))
    questions = _read_table(data_dir, asked, ("query", "question", "answer"))
    return RetrievalSet(
        name="FRAMES",
        documents=titles,
        queries=tuple(row["question"] for row in questions),
        relevant=group_by_query(arrays["qrels"], len(questions)),
        titles=titles,
        answers=tuple(row["answer"] for row in questions),
        document_embeddings=_match_rows(arrays, "title_emb", len(titles), file, about),
        query_embeddings=_match_rows(arrays, "query_emb", len(questions), file, asked),
    )


@validate()
def load_compact_movielens(data_dir: str | Path) -> Ratings:
    """Load MovieLens-100K: 943 users, 1,682 films, 100,000 ratings, folds 1 to 5 of the official split.

    User 1 of the official files is 0 here, and so for the films. ``split(1)`` gives u1.base and u1.test.
    """
    file = "ml100k_ratings.csv"
    rows = _read_table(data_dir, file, ("user", "item", "rating", "test_fold"))
    columns = {name: _read_numbers(data_dir, file, rows, name) for name in ("user", "item", "rating", "test_fold")}
    users, items = columns["user"] - 1, columns["item"] - 1
    return Ratings(
        name="MovieLens-100K", users=users, items=items, ratings=columns["rating"].astype(np.float64),
        fold=columns["test_fold"], user_count=int(users.max()) + 1, item_count=int(items.max()) + 1,
    )  # fmt: skip


@validate()
def load_compact_cifar10(data_dir: str | Path) -> tuple[LabelledSet, LabelledSet]:
    """Load CIFAR-10: 3,000 gallery images (300 per class) and 1,000 queries (100 per class), 1,280 dimensions.

    The embeddings are not of length one. ``gallery, queries = load_compact_cifar10(folder)``.
    """
    file = "cifar10_effnetlite0.npz"
    wanted = ("gallery_emb", "gallery_label", "query_emb", "query_label", "class_names")
    arrays = _read_arrays(data_dir, file, wanted)
    parts = [
        LabelledSet(
            name=f"CIFAR-10 {title}", labels=arrays[f"{part}_label"], class_names=tuple(arrays["class_names"].tolist()),
            embeddings=_match_rows(arrays, f"{part}_emb", len(arrays[f"{part}_label"]), file),
        )
        for part, title in (("gallery", "gallery"), ("query", "queries"))
    ]  # fmt: skip
    return parts[0], parts[1]


@validate(set_name=one_of(LFW_SCORE_SETS))
def load_compact_lfw_scores(data_dir: str | Path, set_name: str) -> ScorePairs:
    """Load the cosine scores of the 6,000 pairs of the official LFW protocol, by one of ``LFW_SCORE_SETS``."""
    names = (f"{set_name}_genuine", f"{set_name}_impostor", "fold_genuine", "fold_impostor")
    genuine, impostor, genuine_fold, impostor_fold = _read_arrays(data_dir, "lfw_scores.npz", names).values()
    return ScorePairs(
        name=f"LFW {set_name}", genuine=genuine, impostor=impostor,
        genuine_fold=genuine_fold, impostor_fold=impostor_fold,
    )  # fmt: skip


@validate()
def load_compact_lfw_faces(data_dir: str | Path, model: str) -> FacePairs:
    """Load embeddings of the 7,701 LFW images of the official pairs, by "dlib" (128) or "faceres" (1,024 values).

    They are not of length one, and people are numbers: no names, no pictures.
    """
    file = f"lfw_{_validation.check_option(model, 'model', LFW_MODELS)}.npz"
    arrays = _read_arrays(data_dir, file, ("emb", "identity", "pairs"))
    pairs = arrays["pairs"]
    if pairs.ndim != 2 or pairs.shape[1] != 4 or pairs.dtype.kind not in "iu" or not np.isin(pairs[:, 2], (0, 1)).all():
        raise InvalidInput(
            f"{Path(data_dir, file)}: 'pairs' must hold rows of whole numbers (a, b, same 0 or 1, fold)."
        )
    return FacePairs(
        name=f"LFW {model}", first=pairs[:, 0], second=pairs[:, 1], same=pairs[:, 2] == 1, fold=pairs[:, 3],
        identity=arrays["identity"], embeddings=_match_rows(arrays, "emb", len(arrays["identity"]), file),
    )  # fmt: skip


def _find_file(data_dir: str | Path, file: str) -> Path:
    path = archives.check_path(data_dir, "data_dir", "the folder of the compact sets") / file
    if not path.is_file():
        raise FileError(f"There is no file {file} in {data_dir}; it should hold {_CONTENT[file]}.")
    return path


def _read_arrays(data_dir: str | Path, file: str, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read the named arrays of an .npz file, in this order. Pickled objects are never read: they could run code."""
    path = _find_file(data_dir, file)
    with _loading.open_regular_file(path) as raw:
        archive = _loading.Archive(raw, path)
        missing = [name for name in names if name not in archive.names]
        if missing:
            raise InvalidInput(f"{path} lacks the array '{missing[0]}'; it should hold {_CONTENT[file]}.")
        for name, size in archive.sizes.items():
            archives.check_member_size(path, f"{name}.npy", size, archives.LIMIT)
        arrays = {name: archive[name] for name in names}
    for name, array in arrays.items():
        if not array.ndim or not len(array):
            raise InvalidInput(f"{path}: the array '{name}' is empty; the file should hold {_CONTENT[file]}.")
    return arrays


def _read_table(data_dir: str | Path, file: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """Read the rows of a .csv file that has at least these columns."""
    path = _find_file(data_dir, file)
    rows = []
    with _loading.explain_read_errors(path), path.open(encoding="utf-8", newline="") as text:
        reader = csv.DictReader(text, strict=True)
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise InvalidInput(f"{path} lacks the column '{missing[0]}'; it should hold {_CONTENT[file]}.")
        for row in reader:
            if None in row or None in row.values():
                raise InvalidInput(f"{path}, line {reader.line_num}: the row has too many or too few columns.")
            rows.append(row)
    if not rows:
        raise InvalidInput(f"{path} has no rows; it should hold {_CONTENT[file]}.")
    return rows


def _read_numbers(data_dir: str | Path, file: str, rows: list[dict[str, str]], column: str) -> NDArray[np.int64]:
    numbers = [archives.parse_digits(row[column], archives.MOST_RATED) for row in rows]
    for line, number in enumerate(numbers, 2):
        if not number:
            where = f"{Path(data_dir, file)}, line {line}"
            raise InvalidInput(
                f"{where}: the column '{column}' must hold whole numbers from 1 to {archives.MOST_RATED}."
            )
    return np.array(numbers, dtype=np.int64)


def _match_rows(arrays: dict[str, NDArray[Any]], name: str, records: int, file: str, other: str = "") -> NDArray[Any]:
    """Return an embedding array, after a check that it has one row per record."""
    array = arrays[name]
    if array.ndim != 2 or len(array) != records:
        beside = f" as in {other}" if other else ""
        raise InvalidInput(
            f"{file}: the array '{name}' must be a matrix of {records} rows{beside}; it has the shape {array.shape}."
        )
    return array


def _describe_disagreement(file: str, other: str, how: str) -> str:
    return f"{file} and {other} do not belong together: they {how}."
