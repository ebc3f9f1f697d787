"""The compact sets: the figures their README states, and files that are missing, damaged or of another kind."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from scoreshield import _loading
from scoreshield.bench.data import archives, compact
from scoreshield.errors import FileError, InvalidInput, ScoreShieldError


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_stsb_correlation_readme_states(shared_data: Path) -> None:
    """STS-B has the correlation that its readme states."""
    made = compact.load_compact_stsb(shared_data)
    assert (len(made.sentences), len(made.human)) == (2552, 1379)
    assert made.sentences[:2] == ("A girl is styling her hair.", "A girl is brushing her hair.")
    cosines = np.einsum("ij,ij->i", made.embeddings[made.first], made.embeddings[made.second])
    assert spearmanr(cosines, made.human).statistic == pytest.approx(0.8203, abs=5e-5)


@pytest.mark.parametrize(
    ("read", "sizes", "recall"), [("scifact", (5183, 300, 339), 0.783), ("frames", (2519, 824, 2675), 0.592)]
)
def test_retrieval_recall_readme_states(shared_data: Path, read: str, sizes: tuple[int, ...], recall: float) -> None:
    """Retrieval has the recall that its readme states."""
    made = getattr(compact, f"load_compact_{read}")(shared_data)
    assert (len(made.documents), len(made.queries), len(made.pairs)) == sizes
    best = np.argsort(-(made.query_embeddings @ made.document_embeddings.T), axis=1)[:, :10]
    found = [np.isin(relevant, row).mean() for relevant, row in zip(made.relevant, best, strict=True)]
    assert np.mean(found) == pytest.approx(recall, abs=5e-4)


def test_frames_keeps_questions_titles(shared_data: Path) -> None:
    """FRAMES keeps questions titles and answers together."""
    made = compact.load_compact_frames(shared_data)
    assert made.answers[0] == "Jane Ballou"
    assert [made.documents[number] for number in made.relevant[2]] == ["Punxsutawney Phil", "United States Capitol"]


def test_movielens_has_the_official_folds(shared_data: Path) -> None:
    made = compact.load_compact_movielens(shared_data)
    assert (made.user_count, made.item_count, len(made)) == (943, 1682, 100_000)
    train, test = made.split(1)
    assert (len(train), len(test)) == (80_000, 20_000)
    error = np.sqrt(np.mean((test.ratings - train.ratings.mean()) ** 2))
    assert error == pytest.approx(1.154, abs=5e-4)


def test_cifar10_gallery_queries_not(shared_data: Path) -> None:
    """CIFAR-10 is a gallery and queries not normalised."""
    gallery, queries = compact.load_compact_cifar10(shared_data)
    assert (gallery.embeddings.shape, queries.embeddings.shape) == ((3000, 1280), (1000, 1280))
    assert gallery.embeddings.dtype == np.float32
    assert np.bincount(gallery.labels).tolist() == [300] * 10
    assert np.abs(np.linalg.norm(gallery.embeddings, axis=1) - 1).min() > 0.1
    nearest = np.argmax(unit(queries.embeddings) @ unit(gallery.embeddings).T, axis=1)
    assert np.mean(gallery.labels[nearest] == queries.labels) == pytest.approx(0.63, abs=0.005)
    assert gallery.class_names[1] == "automobile"


@pytest.mark.parametrize("model", compact.LFW_MODELS)
def test_lfw_scores_cosines_lfw_faces(shared_data: Path, model: str) -> None:
    """LFW scores are the cosines of lfw faces."""
    faces, scores = (
        compact.load_compact_lfw_faces(shared_data, model),
        compact.load_compact_lfw_scores(shared_data, model),
    )
    rows = unit(faces.embeddings.astype(np.float64))
    cosines = np.einsum("ij,ij->i", rows[faces.first], rows[faces.second])
    assert np.abs(cosines[faces.same] - scores.genuine).max() < 2e-3  # one set is kept in half precision
    assert np.abs(cosines[~faces.same] - scores.impostor).max() < 2e-3
    assert np.array_equal(faces.fold[faces.same], scores.genuine_fold)
    assert len(np.unique(faces.identity)) == 4281


def test_every_score_set_can_be_read(shared_data: Path) -> None:
    means = {name: compact.load_compact_lfw_scores(shared_data, name).genuine.mean() for name in compact.LFW_SCORE_SETS}
    stated = {"dlib": 0.953, "dlib_centred": 0.709, "faceres": 0.712, "faceres_centred": 0.540, "mobileface": 0.447}
    assert means == pytest.approx(stated, abs=5e-4)


def write_csv(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as out:
        csv.writer(out).writerows([header, *rows])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All the files, tiny."""
    rng = np.random.default_rng(1)
    write_csv(
        tmp_path / "stsb_test.csv",
        ["genre", "source", "score", "sentence1", "sentence2"],
        [["g", "s", 2.5, "a", "b, with a comma"], ["g", "s", 5, "b, with a comma", "c"]],
    )
    np.savez(tmp_path / "stsb_test_minilm.npz", emb=rng.random((3, 4)), i=[0, 1], j=[1, 2], score=[2.5, 5])
    write_csv(tmp_path / "scifact_titles.csv", ["doc_id", "title"], [[4, "t"], [9, "u"]])
    write_csv(tmp_path / "scifact_queries.csv", ["id", "claim"], [[1, "q"]])
    documents, queries = rng.random((2, 3)), rng.random((1, 3))
    np.savez(
        tmp_path / "scifact_minilm.npz",
        doc_emb=documents,
        query_emb=queries,
        doc_id=[4, 9],
        query_id=[1],
        qrels=[[0, 1]],
    )
    write_csv(tmp_path / "frames_titles.csv", ["doc", "title"], [[0, "t"], [1, "u"]])
    write_csv(
        tmp_path / "frames_questions.csv", ["query", "question", "answer", "reasoning_types"], [[0, "q", "a", "r"]]
    )
    np.savez(tmp_path / "frames_minilm.npz", title_emb=documents, query_emb=queries, qrels=[[0, 1]])
    header = ["user", "item", "rating", "timestamp", "test_fold"]
    write_csv(tmp_path / "ml100k_ratings.csv", header, [[1, 2, 5, 9, 1], [2, 1, 3, 9, 2]])
    np.savez(
        tmp_path / "cifar10_effnetlite0.npz", gallery_emb=documents, gallery_label=[0, 1], query_emb=queries,
        query_label=[1], class_names=["x", "y"],
    )  # fmt: skip
    scores = {f"{name}_{side}": [0.5, 0.4] for name in compact.LFW_SCORE_SETS for side in ("genuine", "impostor")}
    np.savez(tmp_path / "lfw_scores.npz", fold_genuine=[0, 1], fold_impostor=[0, 1], **scores)
    for model in compact.LFW_MODELS:
        np.savez(
            tmp_path / f"lfw_{model}.npz",
            emb=rng.random((3, 2)),
            identity=[5, 5, 6],
            pairs=[[0, 1, 1, 0], [1, 2, 0, 1]],
        )
    return tmp_path


READERS: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "stsb": (compact.load_compact_stsb, ("stsb_test.csv", "stsb_test_minilm.npz")),
    "scifact": (compact.load_compact_scifact, ("scifact_minilm.npz", "scifact_queries.csv", "scifact_titles.csv")),
    "frames": (compact.load_compact_frames, ("frames_minilm.npz", "frames_questions.csv", "frames_titles.csv")),
    "movielens": (compact.load_compact_movielens, ("ml100k_ratings.csv",)),
    "cifar10": (compact.load_compact_cifar10, ("cifar10_effnetlite0.npz",)),
    "lfw_scores": (lambda folder: compact.load_compact_lfw_scores(folder, "dlib"), ("lfw_scores.npz",)),
    "lfw_faces": (lambda folder: compact.load_compact_lfw_faces(folder, "faceres"), ("lfw_faceres.npz",)),
}
FILES = [(name, file) for name, (_, files) in READERS.items() for file in files]


@pytest.mark.parametrize("name", READERS)
def test_the_tiny_files_are_sound(folder: Path, name: str) -> None:
    """Each reader takes the folder as a path and as a text, and returns the same kind of data set."""
    found = READERS[name][0](folder)
    assert found is not None
    assert type(READERS[name][0](str(folder))) is type(found)


@pytest.mark.parametrize(("name", "file"), FILES)
def test_missing_file_named_place_content(folder: Path, name: str, file: str) -> None:
    """A missing file is named with its place and content."""
    (folder / file).unlink()
    with pytest.raises(FileError, match=rf"^There is no file {file} in .*; it should hold the ") as caught:
        READERS[name][0](folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(("name", "file"), FILES)
@pytest.mark.parametrize("damage", ["empty", "cut", "noise", "flipped", "folder"])
def test_a_damaged_file_gives_one_sentence(folder: Path, name: str, file: str, damage: str) -> None:
    path = folder / file
    content = bytearray(path.read_bytes())
    if damage == "folder":
        path.unlink()
        path.mkdir()
    elif damage == "flipped":
        if path.suffix == ".csv":
            content[-5:] = b'\n"\xff'
        else:
            middle = content.index(b"NUMPY") + 70
            content[middle : middle + 4] = b"\xff\xfe\xfd\xfc"
        path.write_bytes(content)
    else:
        path.write_bytes({"empty": b"", "cut": content[:-7], "noise": b"\x93\x00junk\n" * 40}[damage])
    with pytest.raises(ScoreShieldError) as caught:
        READERS[name][0](folder)
    assert "\n" not in str(caught.value)
    assert file in str(caught.value)


def test_ratings_keep_the_order_of_the_file(folder: Path) -> None:
    made = compact.load_compact_movielens(folder)
    assert (made.users.tolist(), made.items.tolist()) == ([0, 1], [1, 0])
    assert (made.ratings.tolist(), made.fold.tolist()) == ([5, 3], [1, 2])


def test_pickles_are_rejected(folder: Path) -> None:
    np.savez(folder / "lfw_scores.npz", **{name: np.array([{}]) for name in ("fold_genuine", "fold_impostor",
             "dlib_genuine", "dlib_impostor")})  # fmt: skip
    with pytest.raises(InvalidInput, match="arrays of type object are not read"):
        compact.load_compact_lfw_scores(folder, "dlib")


def test_array_beyond_limit_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kilobytes can unpack to gigabytes."""
    monkeypatch.setattr(archives, "LIMIT", 100)
    monkeypatch.setattr(_loading.Archive, "__getitem__", lambda *_: pytest.fail("an array was read"))
    with pytest.raises(InvalidInput, match=r"the member \w+\.npy has \d+ bytes, more than the 100 that are read"):
        compact.load_compact_lfw_scores(folder, "dlib")


def test_npy_under_name_npz_rejected(folder: Path) -> None:
    """An npy under the name of an npz is rejected."""
    with (folder / "lfw_scores.npz").open("wb") as out:
        np.save(out, np.ones(3))
    with pytest.raises(InvalidInput, match=r"is an \.npy file in spite of its name"):
        compact.load_compact_lfw_scores(folder, "dlib")


@pytest.mark.parametrize(
    ("name", "file", "changes", "words"),
    [
        ("stsb", "stsb_test_minilm.npz", {"emb": None}, r"lacks the array 'emb'; it should hold"),
        ("stsb", "stsb_test_minilm.npz", {"emb": np.ones((2, 4))}, r"matrix of 3 rows as in stsb_test\.csv"),
        ("stsb", "stsb_test_minilm.npz", {"emb": np.ones(3)}, r"it has the shape \(3,\)"),
        ("stsb", "stsb_test_minilm.npz", {"j": [1, 1]}, "do not belong together"),
        ("stsb", "stsb_test_minilm.npz", {"score": [np.nan, 1]}, "'human'"),
        ("stsb", "stsb_test_minilm.npz", {"i": np.zeros((0,), int)}, "'i' is empty"),
        ("scifact", "scifact_minilm.npz", {"doc_id": [4, 8]}, "list other records"),
        ("scifact", "scifact_minilm.npz", {"qrels": [[0, 2]]}, "'relevant'"),
        ("scifact", "scifact_minilm.npz", {"qrels": [0, 1]}, "'pairs'"),
        (
            "frames",
            "frames_minilm.npz",
            {"query_emb": np.ones((2, 3))},
            r"matrix of 1 rows as in frames_questions\.csv",
        ),
        ("frames", "frames_minilm.npz", {"query_emb": np.ones((1, 4))}, "'query_embeddings'"),
        ("cifar10", "cifar10_effnetlite0.npz", {"gallery_label": [0, 5]}, "'labels'"),
        ("cifar10", "cifar10_effnetlite0.npz", {"query_emb": np.ones((2, 3))}, "matrix of 1 rows"),
        ("lfw_scores", "lfw_scores.npz", {"fold_genuine": [0]}, "'genuine_fold'"),
        ("lfw_faces", "lfw_faceres.npz", {"pairs": [[0, 1, 2, 0]]}, "same 0 or 1"),
        ("lfw_faces", "lfw_faceres.npz", {"pairs": [[0, 1, 1]]}, "same 0 or 1"),
        ("lfw_faces", "lfw_faceres.npz", {"pairs": [[0, 2, 1, 0]]}, "disagree"),
    ],
)
def test_arrays_that_do_not_fit_are_rejected(
    folder: Path, name: str, file: str, changes: dict[str, Any], words: str
) -> None:
    with np.load(folder / file) as old:
        arrays = {**dict(old), **changes}
    np.savez(folder / file, **{key: value for key, value in arrays.items() if value is not None})
    with pytest.raises(InvalidInput, match=words) as caught:
        READERS[name][0](folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("user,item,rating\n1,2,3\n", "lacks the column 'test_fold'"),
        ("user,item,rating,timestamp,test_fold\n", "has no rows"),
        ("user,item,rating,timestamp,test_fold\n1,2,3,4,1\n1,2,3,4\n", "line 3: the row has too many or too few"),
        ("user,item,rating,timestamp,test_fold\n1,2,3,4,1,7\n", "line 2: the row has too many or too few"),
        ("user,item,rating,timestamp,test_fold\n1,2,3,4,1\n1,x,3,4,1\n", "line 3: the column 'item' must hold whole"),
        ("user,item,rating,timestamp,test_fold\n1,,3,4,1\n", "line 2: the column 'item' must hold whole"),
        ("user,item,rating,timestamp,test_fold\n0,1,3,4,1\n", "line 2: the column 'user' must hold whole"),
    ],
)
def test_rows_not_fit_rejected_their_line(folder: Path, text: str, words: str) -> None:
    """Rows that do not fit are rejected with their line."""
    (folder / "ml100k_ratings.csv").write_text(text)
    with pytest.raises(InvalidInput, match=words):
        compact.load_compact_movielens(folder)


def test_whole_numbers_no_plain_digits(folder: Path) -> None:
    """Whole numbers that are no plain digits are rejected too."""
    for number in ("-1", "00", "1000001", "9" * 5000, "1_0", "²"):
        (folder / "ml100k_ratings.csv").write_text(
            f"user,item,rating,timestamp,test_fold\n{number},1,3,4,1\n", encoding="utf-8"
        )
        with pytest.raises(InvalidInput, match="line 2: the column 'user' must hold whole numbers from 1"):
            compact.load_compact_movielens(folder)


def test_names_and_folders_are_checked(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="'set_name' parameter of load_compact_lfw_scores must be one of 'dlib'"):
        compact.load_compact_lfw_scores(folder, "arcface")
    with pytest.raises(InvalidInput, match="'model' parameter of load_compact_lfw_faces"):
        compact.load_compact_lfw_faces(folder, "mobileface")
    with pytest.raises(InvalidInput, match="'data_dir' parameter"):
        compact.load_compact_movielens(None)  # type: ignore[arg-type]
    with pytest.raises(FileError, match=r"There is no file ml100k_ratings\.csv in nowhere"):
        compact.load_compact_movielens("nowhere")


def test_array_claims_huge_rejected(folder: Path) -> None:
    """An array that claims to be huge is rejected."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (2**40,)})
    with zipfile.ZipFile(folder / "lfw_scores.npz", "w") as archive:
        for name in ("dlib_genuine", "dlib_impostor", "fold_genuine", "fold_impostor"):
            archive.writestr(f"{name}.npy", header.getvalue())
    with pytest.raises(InvalidInput, match="corrupt, truncated or of another kind"):
        compact.load_compact_lfw_scores(folder, "dlib")
