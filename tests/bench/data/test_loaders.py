"""Loaders of the official files, each on a small file in exactly the official form, whole and damaged."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreshield.bench.data import archives, compact, faces, images, ratings, texts
from scoreshield.bench.data.catalogue import CATALOGUE
from scoreshield.errors import FileError, InvalidInput, ScoreShieldError

CIFAR10 = "cifar-10-batches-bin"
LONG = "9" * 5000  # more digits than int() takes


def tar(path: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def zipped(path: Path, members: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def accept(monkeypatch: pytest.MonkeyPatch, name: str, *paths: Path) -> None:
    """Let the catalogue take these files for the official ones."""
    sums = {path.name: "md5:" + hashlib.md5(path.read_bytes()).hexdigest() for path in paths}
    files = tuple(replace(file, checksum=sums.get(file.name, file.checksum)) for file in CATALOGUE[name].files)
    monkeypatch.setitem(CATALOGUE, name, replace(CATALOGUE[name], files=files))


def cifar_record(labels: list[int], seed: int) -> tuple[bytes, np.ndarray]:
    """One record, made pixel by pixel from the description: all red, then all green, then all blue, row by row."""
    picture = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    pixels = bytes(int(picture[row, column, c]) for c in range(3) for row in range(32) for column in range(32))
    return bytes(labels) + pixels, picture


def cifar10_archive(path: Path, **changes: bytes | None) -> Path:
    members: dict[str, bytes | None] = {f"{CIFAR10}/batches.meta.txt": b"airplane\nautomobile\nbird\n\n"}
    for number in range(1, 6):
        members[f"{CIFAR10}/data_batch_{number}.bin"] = cifar_record([number % 3], number)[0]
    members[f"{CIFAR10}/readme.html"] = b"<html>"
    members[f"{CIFAR10}/test_batch.bin"] = b"".join(cifar_record([seed % 3], seed)[0] for seed in (10, 11, 12, 13))
    members.update({f"{CIFAR10}/{name}": content for name, content in changes.items()})
    return tar(path, {name: content for name, content in members.items() if content is not None})


def test_cifar10_gives_back_pixels_labels(tmp_path: Path) -> None:
    """CIFAR-10 gives back pixels and labels."""
    path = cifar10_archive(tmp_path / "c.tar.gz")
    made = images.read_cifar10(path)
    assert made.labels.tolist() == [1, 2, 0, 1]
    assert made.class_names == ("airplane", "automobile", "bird")
    for place, seed in enumerate((10, 11, 12, 13)):
        assert np.array_equal(made.items[place], cifar_record([0], seed)[1])
    train = images.read_cifar10(path, split="train")
    assert train.labels.tolist() == [1, 2, 0, 1, 2]
    assert np.array_equal(train.items[4], cifar_record([0], 5)[1])
    assert images.read_cifar10(path, limit=2).labels.tolist() == [1, 0]  # spread over the file
    assert len(images.read_cifar10(path, limit=9)) == 4
    assert made.embeddings is None


def test_cifar10_comes_cache_once_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR-10 comes from the cache once its checksum is right."""
    (tmp_path / "cifar-10").mkdir()
    path = cifar10_archive(tmp_path / "cifar-10" / "cifar-10-binary.tar.gz")
    with pytest.raises(InvalidInput, match="is not the published one md5:c32a1d4ab5d03f1284b67883e8d87530"):
        images.load_cifar10(tmp_path, offline=True)
    accept(monkeypatch, "cifar-10", path)
    assert len(images.load_cifar10(tmp_path, offline=True)) == 4
    with pytest.raises(FileError, match=r"cifar-100-binary\.tar\.gz and put it there"):
        images.load_cifar100(tmp_path, offline=True)


def test_cifar100_has_coarse_and_fine_labels(tmp_path: Path) -> None:
    records = [cifar_record([seed % 2, seed], seed) for seed in range(3)]
    path = tar(
        tmp_path / "c.tar.gz",
        {
            "cifar-100-binary/test.bin": b"".join(content for content, _ in records),
            "cifar-100-binary/fine_label_names.txt": b"apple\nbaby\nbear\n",
            "cifar-100-binary/coarse_label_names.txt": b"fruit\npeople\n",
        },
    )
    fine, coarse = images.read_cifar100(path), images.read_cifar100(path, labels="coarse")
    assert (fine.labels.tolist(), coarse.labels.tolist()) == ([0, 1, 2], [0, 1, 0])
    assert (fine.class_names[2], coarse.class_names) == ("bear", ("fruit", "people"))
    assert np.array_equal(fine.items[2], records[2][1])
    with pytest.raises(InvalidInput, match=r"holds no member cifar-100-binary/train\.bin"):
        images.read_cifar100(path, split="train")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"test_batch.bin": None}, r"holds no member cifar-10-batches-bin/test_batch\.bin"),
        ({"test_batch.bin": b"\0" * 3072}, r"must hold records of 3073 bytes; it has 3072 bytes"),
        ({"test_batch.bin": b""}, r"must hold records of 3073 bytes; it has 0 bytes"),
        ({"test_batch.bin": b"\3" + b"\0" * 3072}, r"a label is 3, but .* names 3 classes"),
        ({"batches.meta.txt": b"\n"}, r"names no class"),
        ({"batches.meta.txt": b"cat\n\xff\n"}, r"batches\.meta\.txt, line 2: the text is not UTF-8"),
    ],
)
def test_cifar10_refuses_not_form(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """CIFAR-10 refuses what is not its form."""
    path = cifar10_archive(tmp_path / "c.tar.gz", **changes)
    with pytest.raises(InvalidInput, match=words):
        images.read_cifar10(path)


def test_options_image_loaders_checked(tmp_path: Path) -> None:
    """Options of the image loaders are checked."""
    path = cifar10_archive(tmp_path / "c.tar.gz")
    with pytest.raises(InvalidInput, match="'split' parameter of read_cifar10 must be one of 'train', 'test'"):
        images.read_cifar10(path, split="dev")
    with pytest.raises(InvalidInput, match="'labels' parameter of read_cifar100"):
        images.read_cifar100(path, labels="both")
    for limit in (0, -1, 2.5, "3", True):
        with pytest.raises(InvalidInput, match="'limit' parameter"):
            images.read_cifar10(path, limit=limit)  # type: ignore[arg-type]


PETS = b"Abyssinian_1 1 1 1\nAbyssinian_2 1 1 1\namerican_bulldog_10 2 2 1\n"


def test_pets_taken_out_archive_when_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pets are taken out of the archive when they are wanted."""
    folder = tmp_path / "oxford-iiit-pet"
    folder.mkdir()
    notes = tar(folder / "annotations.tar.gz", {"annotations/test.txt": PETS, "annotations/._test.txt": b"\0"})
    names = ("Abyssinian_1", "Abyssinian_2", "american_bulldog_10", "Abyssinian_3")
    members = {f"images/{name}.jpg": name.encode() for name in names}
    pictures = tar(folder / "images.tar.gz", {"images/../../evil.jpg": b"evil", **members})
    accept(monkeypatch, "oxford-iiit-pet", notes, pictures)
    made = images.load_pets(tmp_path, offline=True)
    assert made.labels.tolist() == [0, 0, 1]
    assert made.class_names == ("Abyssinian", "american bulldog")
    assert [Path(item).read_bytes() for item in made.items] == [name.encode() for name in names[:3]]
    assert sorted(path.name for path in (folder / "images").iterdir()) == [f"{name}.jpg" for name in names[:3]]
    assert not list(tmp_path.rglob("evil*"))
    pictures.unlink()  # the folder is enough from now on
    assert len(images.load_pets(tmp_path, offline=True)) == 3
    (folder / "images" / "Abyssinian_2.jpg").unlink()
    with pytest.raises(FileError, match=r"images\.tar\.gz; download https://www\.robots\.ox\.ac\.uk"):
        images.load_pets(tmp_path, offline=True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"Abyssinian_1 1 1\n", "line 1: a line must be 'name class species breed'"),
        (b"Abyssinian_1 1 1 1\nAbyssinian_2 x 1 1\n", "line 2"),
        (b"Abyssinian_1 0 1 1\n", "line 1"),
        (b"Abyssinian_1 %s 1 1\n" % LONG.encode(), "line 1"),
        ("Abyssinian_1 ٣ 1 1\n".encode(), "line 1"),
        (b"../../evil_1 1 1 1\n", "line 1"),
        (b"Abyssinian_1 1 1 1\nBengal_1 1 1 1\n", "line 2: class 1 is both Abyssinian and Bengal"),
        (b"Abyssinian_1 1 1 1\nBengal_1 3 1 1\n", "must run from 1 without a gap"),
        (b"", "must run from 1 without a gap"),
    ],
)
def test_pets_refuse_malformed_lists(tmp_path: Path, content: bytes, words: str) -> None:
    path = tar(tmp_path / "a.tar.gz", {"annotations/test.txt": content})
    with pytest.raises(InvalidInput, match=words):
        images.read_pets(path, tmp_path)


STS = (
    'main-captions\tMSRvid\t2012test\t0024\t2.500\tA girl said "hi.\tA girl, brushing.\n'
    "main-news\theadlines\t2015\t0003\t0\tA girl, brushing.\tNobody  \tsource one\tsource two\n"
)


def test_stsb_reads_tabs_takes_quotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """STS-B reads tabs and takes quotation marks as they are."""
    (tmp_path / "stsb").mkdir()
    path = tar(tmp_path / "stsb" / "Stsbenchmark.tar.gz", {"stsbenchmark/sts-test.csv": STS.encode()})
    accept(monkeypatch, "stsb", path)
    made = texts.load_stsb(tmp_path, offline=True)
    assert made.sentences == ('A girl said "hi.', "A girl, brushing.", "Nobody")
    assert made.pairs.tolist() == [[0, 1], [1, 2]]
    assert made.human.tolist() == [2.5, 0]
    with pytest.raises(InvalidInput, match=r"holds no member stsbenchmark/sts-dev\.csv"):
        texts.load_stsb(tmp_path, split="dev", offline=True)
    with pytest.raises(InvalidInput, match="'split' parameter of read_stsb"):
        texts.read_stsb(path, split="all")


def test_stsb_official_form_compact_set(shared_data: Path, tmp_path: Path) -> None:
    """STS-B in the official form is the compact set."""
    with (shared_data / "stsb_test.csv").open(encoding="utf-8", newline="") as file:
        rows = [
            "\t".join(
                [row["genre"], row["source"], "2017", f"{number:04d}", row["score"], row["sentence1"], row["sentence2"]]
            )
            for number, row in enumerate(csv.DictReader(file))
        ]
    path = tar(tmp_path / "s.tar.gz", {"stsbenchmark/sts-test.csv": "\n".join(rows).encode()})
    made, known = texts.read_stsb(path), compact.load_compact_stsb(shared_data)
    assert np.array_equal(made.pairs, known.pairs)
    assert np.allclose(made.human, known.human, atol=1e-6)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (STS + "g\tf\ty\t1\t2.0\tonly one\n", "line 3: a line must hold genre"),
        (STS + "g\tf\ty\t1\t2.0\tone\t \n", "line 3: a line must hold genre"),
        (STS + "g\tf\ty\t1\tx\tone\ttwo\n", "line 3: the score must be a number from 0 to 5; it is 'x'"),
        (STS + "g\tf\ty\t1\t5.5\tone\ttwo\n", "line 3: the score"),
        (STS + "g\tf\ty\t1\tnan\tone\ttwo\n", "line 3: the score"),
        (STS + "g\tf\ty\t1\t0_1\tone\ttwo\n", "line 3: the score must be a number from 0 to 5; it is '0_1'"),
        (STS + "g\tf\ty\t1\t٣\tone\ttwo\n", "line 3: the score"),
        ("\n", "holds no pairs"),
    ],
)
def test_stsb_refuses_malformed_lines(tmp_path: Path, content: str, words: str) -> None:
    path = tar(tmp_path / "s.tar.gz", {"stsbenchmark/sts-test.csv": content.encode()})
    with pytest.raises(InvalidInput, match=words):
        texts.read_stsb(path)


def movielens_archive(path: Path, **changes: bytes | None) -> Path:
    rows = [f"{1 + number % 3}\t{1 + number // 3}\t{1 + number % 5}\t88{number}\n".encode() for number in range(10)]
    members: dict[str, bytes | None] = {"ml-100k/u.data": b"".join(reversed(rows))}
    for fold in range(1, 6):
        members[f"ml-100k/u{fold}.test"] = b"".join(rows[2 * fold - 2 : 2 * fold])
        members[f"ml-100k/u{fold}.base"] = b"not read"
    members.update({f"ml-100k/{name}": content for name, content in changes.items()})
    return zipped(path, {name: content for name, content in members.items() if content is not None})


def test_movielens_knows_fold_rating_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Movielens knows in which fold a rating is tested."""
    (tmp_path / "movielens-100k").mkdir()
    path = movielens_archive(tmp_path / "movielens-100k" / "ml-100k.zip")
    accept(monkeypatch, "movielens-100k", path)
    made = ratings.load_movielens(tmp_path, offline=True)
    assert (made.user_count, made.item_count, len(made)) == (3, 4, 10)
    train, test = made.split(2)  # rows 2 and 3: user 3 of film 1, user 1 of film 2
    told = sorted(zip(test.users.tolist(), test.items.tolist(), test.ratings.tolist(), strict=True))
    assert told == [(0, 1, 4), (2, 0, 3)]
    assert len(train) == 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"u.data": None}, r"holds no member ml-100k/u\.data"),
        ({"u3.test": None}, r"holds no member ml-100k/u3\.test"),
        ({"u3.test": b"1\t1\t1\t880\n"}, r"u3\.test holds a rating that is tested already"),
        ({"u3.test": b"9\t9\t1\t880\n"}, r"u3\.test holds a rating that is not in ml-100k/u\.data"),
        ({"u1.test": b"1\t1\t2\t880\n2\t1\t2\t881\n"}, r"u1\.test holds a rating that is not in"),
        ({"u1.test": b"1\t1\t1\t880\n"}, r"1 ratings of ml-100k/u\.data are in no test file"),
        ({"u1.test": b"1\t1\t1\t880\n1\t1\t1\t880\n"}, r"u1\.test holds a rating that is tested already"),
        ({"u.data": b"1\t1\t1\t880\n1\t1\t2\t881\n"}, r"rates a film twice"),
        ({"u.data": b"1\t1\t1\t880\n1\t1\n"}, r"u\.data, line 2: a line must hold user and item"),
        ({"u.data": b"1\t1\t6\t880\n"}, r"u\.data, line 1"),
        ({"u.data": b"0\t1\t3\t880\n"}, r"u\.data, line 1"),
        ({"u.data": b"1 1 3 880\n"}, r"u\.data, line 1"),
        ({"u.data": b"00\t1\t3\t880\n"}, r"u\.data, line 1"),
        ({"u.data": b"100000000000000\t1\t3\t880\n"}, r"u\.data, line 1: .*from 1 to 1000000"),
        ({"u.data": b"1\t1\t3\t%s\n" % LONG.encode()}, r"u\.data, line 1"),
        ({"u.data": b""}, r"u\.data holds no ratings"),
    ],
)
def test_movielens_refuses_not_add_up(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """Movielens refuses what does not add up."""
    path = movielens_archive(tmp_path / "m.zip", **changes)
    with pytest.raises(InvalidInput, match=words):
        ratings.read_movielens(path)


PAIRS = "2\t1\nAnn\t1\t2\nAnn\t1\tBob_Lee\t3\nCy\t4\t5\nBob_Lee\t3\tCy\t4\n"


def test_pairs_have_folds_and_people(tmp_path: Path) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text(PAIRS)
    made = faces.read_pairs(path, "f")
    assert [str(item) for item in made.items] == [
        "f/Ann/Ann_0001.jpg",
        "f/Ann/Ann_0002.jpg",
        "f/Bob_Lee/Bob_Lee_0003.jpg",
        "f/Cy/Cy_0004.jpg",
        "f/Cy/Cy_0005.jpg",
    ]
    assert made.pairs.tolist() == [[0, 1], [0, 2], [3, 4], [2, 3]]
    assert made.same.tolist() == [True, False, True, False]
    assert made.fold.tolist() == [0, 0, 1, 1]
    assert made.identity.tolist() == [0, 0, 1, 2, 2]


@pytest.mark.parametrize("header", ["", "2\n"])
def test_pairs_without_folds_are_one_fold(tmp_path: Path, header: str) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text(header + PAIRS.partition("\n")[2])
    assert faces.read_pairs(path, "f").fold.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "must hold at least one pair; it holds 0"),
        ("3\t1\n" + PAIRS.partition("\n")[2], r"must hold 3 x 2 pairs, as its first line says; it holds 4"),
        ("10\t300\n", r"must hold 10 x 600 pairs"),
        ("Ann\t1\t2\nAnn\tx\t2\n", "line 2: a line must be 'person number number'"),
        ("Ann\t1\n", "line 1"),
        ("Ann\t1\tBob\t2\t3\n", "line 1"),
        ("../x\t1\t2\n", "line 1.*without slashes"),
        ("Ann\t1\t..\t2\n", "line 1"),
        ("Ann\t1\t-2\n", "line 1"),
        (LONG + "\nAnn\t1\t2\n", "line 1: the first line must be 'folds pairs', 'pairs' or a pair"),
        (f"2\t{LONG}\nAnn\t1\t2\n", "line 1: the first line must be"),
        (f"Ann\t1\t{LONG}\n", "line 1: a line must be 'person number number'"),
        ("Ann\t1\t2\nAnn\t1\tAnn\t2\n", "line 2: a line of four fields must name two people; it names one twice"),
        ("Ann\t1\t2\nAnn\t3\t3\n", "line 2: a line of three fields must name two pictures; it names one twice"),
        ("Ann\t1\t01\n", "line 1: a line of three fields must name two pictures"),
    ],
)
def test_pairs_refuse_malformed_lists(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=words):
        faces.read_pairs(path, "f")


@pytest.mark.parametrize(("alignment", "inside"), [("deepfunneled", "lfw-deepfunneled"), ("funneled", "lfw_funneled")])
def test_lfw_takes_pictures_out_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alignment: str, inside: str
) -> None:
    """LFW takes its pictures out of the archive."""
    folder = tmp_path / f"lfw-{alignment}"
    folder.mkdir()
    (folder / "pairs.txt").write_text(PAIRS)
    names = ["Ann/Ann_0001", "Ann/Ann_0002", "Bob_Lee/Bob_Lee_0003", "Cy/Cy_0004", "Cy/Cy_0005", "Di/Di_0001"]
    archive = tar(folder / f"lfw-{alignment}.tgz", {f"{inside}/{name}.jpg": name.encode() for name in names})
    accept(monkeypatch, f"lfw-{alignment}", folder / "pairs.txt", archive)
    made = faces.load_lfw(tmp_path, alignment=alignment, offline=True)
    assert [Path(item).read_text() for item in made.items] == names[:5]
    archive.unlink()
    assert len(faces.load_lfw(tmp_path, alignment=alignment, offline=True).items) == 5
    with pytest.raises(InvalidInput, match="'alignment' parameter of load_lfw"):
        faces.load_lfw(tmp_path, alignment="raw")


def test_lfw_can_downloaded_says_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LFW is what can be downloaded and says so of what cannot."""
    with pytest.raises(FileError, match=r"lfw-funneled/pairs\.txt; download https://ndownloader"):
        faces.load_lfw(tmp_path, offline=True)
    folder = tmp_path / "lfw-deepfunneled"
    folder.mkdir()
    (folder / "pairs.txt").write_text(PAIRS)
    accept(monkeypatch, "lfw-deepfunneled", folder / "pairs.txt")
    with pytest.raises(FileError, match=r"lfw-deepfunneled\.tgz, and the server .* is gone: .* alignment='funneled'"):
        faces.load_lfw(tmp_path, alignment="deepfunneled")


def test_lfw_says_pictures_archive_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LFW says which pictures an archive lacks."""
    folder = tmp_path / "lfw-funneled"
    folder.mkdir()
    (folder / "pairs.txt").write_text(PAIRS)
    archive = tar(folder / "lfw-funneled.tgz", {"lfw_funneled/Ann/Ann_0001.jpg": b"x"})
    accept(monkeypatch, "lfw-funneled", folder / "pairs.txt", archive)
    with pytest.raises(InvalidInput, match=r"holds no member lfw_funneled/Ann/Ann_0002\.jpg and 3 more"):
        faces.load_lfw(tmp_path, alignment="funneled", offline=True)


def beir_archive(path: Path, **changes: str | None) -> Path:
    documents = [
        {"_id": "31", "title": "On cats", "text": "They purr.", "metadata": {}},
        {"_id": "5", "text": "No title."},
    ]
    queries = [{"_id": "q9", "text": "train only"}, {"_id": "q2", "text": "cats?"}, {"_id": "q1", "text": "titles?"}]
    members: dict[str, str | None] = {
        "corpus.jsonl": "\n".join(json.dumps(record) for record in documents),
        "queries.jsonl": "\n".join(json.dumps(record) for record in queries),
        "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq1\t5\t1\nq1\t31\t0\nq2\t5\t1\nq2\t31\t2\n",
    }
    members.update(changes)
    return zipped(
        path, {f"scifact/{name}": content.encode() for name, content in members.items() if content is not None}
    )


def test_scifact_keeps_judged_queries_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scifact keeps judged queries and joins title and text."""
    (tmp_path / "scifact").mkdir()
    path = beir_archive(tmp_path / "scifact" / "scifact.zip")
    accept(monkeypatch, "scifact", path)
    made = texts.load_scifact(tmp_path, offline=True)
    assert made.documents == ("On cats They purr.", "No title.")
    assert made.titles == ("On cats", "")
    assert made.queries == ("cats?", "titles?")
    assert [part.tolist() for part in made.relevant] == [[0, 1], [1]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"qrels/test.tsv": None}, r"holds no member scifact/qrels/test\.tsv"),
        (
            {"corpus.jsonl": '{"_id": "1", "text": "a"}\n{"_id": '},
            r"corpus\.jsonl, line 2: a line must be a JSON object",
        ),
        ({"corpus.jsonl": "[1]"}, r"corpus\.jsonl, line 1"),
        ({"corpus.jsonl": '{"_id": 1, "text": "a"}'}, r"corpus\.jsonl, line 1"),
        ({"corpus.jsonl": '{"_id": "1", "text": "a"}\n' * 2}, r"line 2: the identifier '1' comes twice"),
        ({"corpus.jsonl": ""}, r"corpus\.jsonl holds no records"),
        ({"queries.jsonl": "[" * 100_000}, r"queries\.jsonl, line 1"),
        ({"qrels/test.tsv": "q1\t5\t1\n"}, r"line 1: the first line must name query-id"),
        ({"qrels/test.tsv": "query-id\tcorpus-id\tscore\nq1\t5\n"}, r"test\.tsv, line 2: a line must hold"),
        ({"qrels/test.tsv": "query-id\tcorpus-id\tscore\nq1\t5\tx\n"}, r"test\.tsv, line 2"),
        ({"qrels/test.tsv": f"query-id\tcorpus-id\tscore\nq1\t5\t{LONG}\n"}, r"test\.tsv, line 2"),
        ({"qrels/test.tsv": "query-id\tcorpus-id\tscore\nq1\t6\t1\n"}, r"line 2: it names a query or a document"),
        ({"qrels/test.tsv": "query-id\tcorpus-id\tscore\nq1\t5\t0\n"}, r"judges no document relevant"),
    ],
)
def test_scifact_refuses_malformed_files(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = beir_archive(tmp_path / "scifact.zip", **changes)
    with pytest.raises(InvalidInput, match=words):
        texts.read_beir(path, name="x")


def frames_file(path: Path, rows: list[dict[str, str]]) -> Path:
    links = [f"wikipedia_link_{number}" for number in range(1, 11)]
    columns = ["", "Prompt", "Answer", *links, "wikipedia_link_11+", "reasoning_types", "wiki_links"]
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, columns, restval="", delimiter="\t")
        writer.writeheader()
        writer.writerows(rows)
    return path


WIKI = "https://en.wikipedia.org/wiki/"


def test_frames_reads_links_list_their(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FRAMES reads links as a list or from their columns."""
    (tmp_path / "frames").mkdir()
    path = frames_file(
        tmp_path / "frames" / "test.tsv",
        [
            {
                "Prompt": 'Who said\n"so"? ',
                "Answer": "Jane",
                "wiki_links": f"['{WIKI}James_A._Garfield', '{WIKI}Charlotte_Bront%C3%AB', \"{WIKI}Rubik's_Cube\"]",
                "wikipedia_link_1": WIKI + "Not_read",
            },
            {
                "Prompt": "Where?",
                "Answer": "here, there",
                "wikipedia_link_1": WIKI + "AC/DC",
                "wikipedia_link_2": WIKI + "Solomon_Sea#Deepest_point",
                "wikipedia_link_11+": WIKI + "James_A._Garfield",
            },
        ],
    )
    with pytest.raises(InvalidInput, match="is not the published one sha256:4255093c"):
        texts.load_frames(tmp_path, offline=True)
    accept(monkeypatch, "frames", path)
    made = texts.load_frames(tmp_path, offline=True)
    assert made.documents == ("James A. Garfield", "Charlotte Brontë", "Rubik's Cube", "AC/DC", "Solomon Sea")
    assert made.queries == ('Who said\n"so"?', "Where?")
    assert made.answers == ("Jane", "here, there")
    assert [part.tolist() for part in made.relevant] == [[0, 1, 2], [3, 4, 0]]  # in the order of the links
    assert texts.read_frames_links(path) == (
        ("James A. Garfield", "Charlotte Brontë", "Rubik's Cube"),
        ("AC/DC", "Solomon Sea", "James A. Garfield"),
    )


@pytest.mark.parametrize(
    ("links", "titles"),
    [
        ([WIKI + "A_b?oldid=3", WIKI + "A_b#x", WIKI + "A_b"], ["A b"]),
        ([WIKI + "Who%27s_That%3F"], ["Who's That?"]),
        ([WIKI + "2021_French_Open_%E2%80%93_Men%2527s_singles"], ["2021 French Open – Men's singles"]),
        ([WIKI + "C%23_part", WIKI + "100%25"], ["C", "100%"]),  # no title holds "#"
        ([f"{WIKI}B, {WIKI}C"], ["B", "C"]),
        (
            [f"{WIKI}Shreve,_Lamb_%26_Harmon | {WIKI}ID;_Peace_B\n{WIKI}D,"],
            ["Shreve, Lamb & Harmon", "ID; Peace B", "D"],
        ),
        (["https://en.wikipedia.org/w/index.php?title=A_b&oldid=3"], ["A b"]),
    ],
)
def test_frames_titles_pages(tmp_path: Path, links: list[str], titles: list[str]) -> None:
    """FRAMES titles are those of the pages."""
    listed = frames_file(tmp_path / "a.tsv", [{"Prompt": "q", "Answer": "a", "wiki_links": repr(links)}])
    assert texts.read_frames_links(listed) == (tuple(titles),)
    columns = {f"wikipedia_link_{number}": link for number, link in enumerate(links[:-1], 1)}
    columns["wikipedia_link_11+"] = links[-1]
    spread = frames_file(tmp_path / "b.tsv", [{"Prompt": "q", "Answer": "a", **columns}])
    assert texts.read_frames_links(spread) == (tuple(titles),)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"wiki_links": "['a'"}, r"line 2: the column wiki_links must hold a list of addresses"),
        ({"wiki_links": "__import__('os').getcwd()"}, r"line 2: the column wiki_links must hold a list"),
        ({"wiki_links": "[1]"}, r"line 2: the column wiki_links must hold a list"),
        ({"wiki_links": "[]"}, r"line 2: a question needs a text and at least one link"),
        ({}, r"line 2: a question needs a text and at least one link"),
        ({"Prompt": " ", "wiki_links": f"['{WIKI}A']"}, r"line 2: a question needs a text"),
    ],
)
def test_frames_refuses_malformed_rows(tmp_path: Path, row: dict[str, str], words: str) -> None:
    path = frames_file(tmp_path / "test.tsv", [{"Prompt": "q", "Answer": "a", **row}])
    with pytest.raises(InvalidInput, match=words):
        texts.read_frames(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "must hold questions in columns Prompt, Answer and links"),
        (b"Prompt\tAnswer\twiki_links\n", "must hold questions"),
        (b"Question\tAnswer\nq\ta\n", "must hold questions"),
        (b"Prompt\tAnswer\twiki_links\nq\ta\n", "line 2: the row has too many or too few columns"),
        (b"Prompt\tAnswer\n\xff\ta\n", "corrupt, truncated or of another kind"),
        (b'Prompt\tAnswer\n"q\ta\n', "corrupt, truncated or of another kind"),
    ],
)
def test_frames_refuses_another_kind_of_file(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "test.tsv").write_bytes(content)
    with pytest.raises(InvalidInput, match=words):
        texts.read_frames(tmp_path / "test.tsv")


READERS: list[tuple[str, Callable[[Path], Path], Callable[[Path], Any]]] = [
    ("x.tar.gz", cifar10_archive, images.read_cifar10),
    ("y.zip", movielens_archive, ratings.read_movielens),
    ("scifact.zip", beir_archive, lambda path: texts.read_beir(path, name="x")),
    ("z.tar.gz", lambda p: tar(p, {"stsbenchmark/sts-test.csv": STS.encode()}), texts.read_stsb),
]


@pytest.mark.parametrize(("name", "make", "read"), READERS)
def test_damaged_archives_are_one_sentence(tmp_path: Path, name: str, make: Any, read: Any) -> None:
    path = tmp_path / name
    whole = make(path).read_bytes()
    read(path)
    middle = bytearray(whole)
    middle[len(whole) // 3 : len(whole) // 3 + 40] = bytes(40)
    for content in (b"", b"junk" * 300, whole[: len(whole) // 2], bytes(middle)):
        path.write_bytes(content)
        with pytest.raises(ScoreShieldError, match=r"corrupt|holds no member|not UTF-8|line ") as caught:
            read(path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)
    path.unlink()
    with pytest.raises(FileError, match=f"^There is no file {path}"):
        read(path)
    path.mkdir()
    with pytest.raises(FileError, match=r"^Cannot read .*: Is a directory"):
        read(path)


def test_text_list_missing_sentence(tmp_path: Path) -> None:
    """A text list that is missing is one sentence."""
    with pytest.raises(FileError, match=r"^There is no file .*none\.$"):
        faces.read_pairs(tmp_path / "none", "f")
    with pytest.raises(FileError, match=r"^There is no file .*none\.$"):
        texts.read_frames(tmp_path / "none")


@pytest.mark.parametrize("path", [None, 5, b"x", "", "a\0b", ["x"]])
def test_what_is_no_path_is_rejected(path: Any) -> None:
    readers: dict[str, Callable[[Any], Any]] = {
        "read_cifar10": images.read_cifar10,
        "read_cifar100": images.read_cifar100,
        "read_pets": lambda value: images.read_pets(value, "f"),
        "read_stsb": texts.read_stsb,
        "read_movielens": ratings.read_movielens,
        "read_beir": lambda value: texts.read_beir(value, name="x"),
        "read_frames": texts.read_frames,
        "read_pairs": lambda value: faces.read_pairs(value, "f"),
    }
    for name, read in readers.items():
        with pytest.raises(InvalidInput, match=rf"^The '\w+' parameter of {name} must be the path of a file\. Got"):
            read(path)
    with pytest.raises(InvalidInput, match="'folder' parameter of read_pairs must be the path of a folder"):
        faces.read_pairs("x", path)
    with pytest.raises(InvalidInput, match="'folder' parameter of read_pets must be the path of a folder"):
        images.read_pets("x", path)
    with pytest.raises(InvalidInput, match="'split' parameter of read_beir must be a text"):
        texts.read_beir("x", name="x", split=3)  # type: ignore[arg-type]


def test_members_beyond_limit_not_read(tmp_path: Path) -> None:
    """Members beyond the limit are not read."""
    packed = tar(tmp_path / "a.tar.gz", {"big": bytes(2000)})
    with pytest.raises(InvalidInput, match="the member big has 2000 bytes, more than the 1000 that are read"):
        archives.read_tar_members(packed, ["big"], limit=1000)
    flat = zipped(tmp_path / "a.zip", {"big": bytes(2000)})
    with pytest.raises(InvalidInput, match="the member big has 2000 bytes, more than the 1000"):
        archives.read_zip_members(flat, ["big"], limit=1000)
    assert archives.read_zip_members(flat, ["big"], limit=2000)["big"] == bytes(2000)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_header_claims_much_not_read(tmp_path: Path, kind: bytes) -> None:
    """tarfile would read all that a header of names claims into memory."""
    for size, words in (
        (2 << 20, "a header claims 2097152 bytes of names, more than 1048576"),
        (100, "holds no member"),
    ):
        header = tarfile.TarInfo("names")
        header.type, header.size = kind, size
        follows = tarfile.TarInfo("other").tobuf(tarfile.USTAR_FORMAT)
        content = header.tobuf(tarfile.USTAR_FORMAT) + bytes(-(-size // 512) * 512) + follows + bytes(1024)
        (tmp_path / "a.tar").write_bytes(content)
        with pytest.raises(InvalidInput, match=words):
            archives.read_tar_members(tmp_path / "a.tar", ["wanted"])


def test_links_inside_archive_not_followed(tmp_path: Path) -> None:
    """Links inside an archive are not followed."""
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        link = tarfile.TarInfo("wanted")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
    with pytest.raises(InvalidInput, match="holds no member wanted"):
        archives.read_tar_members(tmp_path / "a.tar", ["wanted"])
