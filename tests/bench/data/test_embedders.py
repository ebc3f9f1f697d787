"""Embedders: without weights, around small models made here, and kept on disk; nothing touches the network."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreshield.bench.data import neural
from scoreshield.bench.data.embedders import HashingEmbedder, embed_cached, embedder
from scoreshield.bench.data.neural import open_picture
from scoreshield.bench.data.sets import SentencePairs
from scoreshield.errors import FileError, InvalidInput

TEXTS = ["a cat sat on the mat", "the cat sat on a mat", "quarterly earnings rose", "¿dónde?"]


@pytest.fixture(autouse=True, scope="module")
def _no_network() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        if "huggingface_hub" in sys.modules:  # which reads the variable when it is imported
            patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        yield


def test_hashing_gives_unit_rows_follow() -> None:
    """Hashing gives unit rows that follow the words."""
    made = embedder("hashing:256")
    rows = made.embed(TEXTS)
    assert rows.shape == (4, 256)
    assert rows.dtype == np.float32
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert rows[0] @ rows[1] > 0.5 > rows[0] @ rows[2]
    assert np.array_equal(rows, embedder("hashing:256").embed(tuple(TEXTS)))
    assert made.name == "hashing:256"


def test_hashing_agrees_counting_hand() -> None:
    """Each word and each pair of neighbours adds +1 or -1 in one place; scikit-learn documents MurmurHash3."""
    from sklearn.utils import murmurhash3_32

    counts = np.zeros(64)
    words = ["so", "it", "goes", "so"]
    for token in words + [" ".join(pair) for pair in pairwise(words)]:
        code = murmurhash3_32(token, seed=0)
        counts[abs(code) % 64] += 1 if code >= 0 else -1
    assert np.allclose(embedder("hashing:64").embed(["so it goes so"])[0], counts / np.linalg.norm(counts), atol=1e-6)


def test_words_opposite_signs_never_cancel() -> None:
    """Words of opposite signs never cancel to nothing."""
    made = embedder("hashing:1")
    words = [f"w{number}" for number in range(20)]
    assert set(made.embed(words)[:, 0].tolist()) == {1.0, -1.0}  # both signs occur
    texts = [f"{a} {b}" for a in words for b in words] + [" ".join(words[:count]) for count in range(1, 20)]
    rows = made.embed([*texts, "!", "?!"])
    assert np.array_equal(np.abs(rows), np.ones_like(rows))


def test_progress_is_told_after_each_batch() -> None:
    seen: list[tuple[int, int]] = []
    rows = embedder("hashing:16", batch_size=3).embed(TEXTS, progress=lambda *said: seen.append(said))
    assert seen == [(3, 4), (4, 4)]
    assert np.array_equal(rows, embedder("hashing:16").embed(TEXTS))


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("word2vec:x", {}, "'kind' parameter of embedder must be 'sentence-transformers:<model>'"),
        ("", {}, "'kind'"),
        (None, {}, "'kind'"),
        ("timm", {}, "'kind'"),
        ("timm:", {}, "'kind'"),
        ("dlib:x", {}, "'kind'"),
        ("hashing:0", {}, "1 to 1048576 dimensions"),
        ("hashing:x", {}, "1 to 1048576 dimensions"),
        ("hashing:99999999999", {}, "1 to 1048576 dimensions"),
        ("hashing:" + "9" * 5000, {}, "1 to 1048576 dimensions"),
        ("hashing:٣", {}, "1 to 1048576 dimensions"),
        ("hashing:8", {"batch": 3}, "'options' parameter of embedder must be one of 'batch_size'. Got 'batch'"),
        ("hashing:8", {"batch_size": 0}, "'batch_size'"),
        ("dlib", {"missing": "skip"}, "'missing'"),
    ],
)
def test_names_and_options_are_checked(kind: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        embedder(kind, **options)


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([], "'items' parameter of HashingEmbedder.embed"),
        ("a text", "'items'"),
        (None, "'items'"),
        (np.array("x"), "'items'"),
        (["a", " \n"], "^Item 1 must be a text with at least one character to read; it is blank"),
        (["a", 5], "^Item 1 must be a text .* it is a int"),
    ],
)
def test_items_are_checked(items: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        embedder("hashing:8").embed(items)


@pytest.mark.parametrize(
    ("kind", "package", "extra"),
    [
        ("sentence-transformers:x", "sentence_transformers", "text-embedders"),
        ("timm:x", "timm", "image-embedders"),
        ("dlib", "dlib", "face-embedders"),
    ],
)
def test_a_missing_package_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, kind: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InvalidInput, match=rf"need the '{extra}' extra: pip install 'scoreshield\[{extra}\]'\.$"):
        embedder(kind)


def test_missing_scikit_learn_names_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing scikit learn names its extra."""
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    with pytest.raises(InvalidInput, match=r"needs the 'tasks' extra: pip install 'scoreshield\[tasks\]'"):
        embedder("hashing:8")


def test_a_broken_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise RuntimeError(f"operator of {name} does not exist\nand more")

    monkeypatch.setattr(neural.importlib, "import_module", broken)
    with pytest.raises(
        InvalidInput, match=r"cannot be imported \(operator of timm does not exist\); they need"
    ) as caught:
        embedder("timm:resnet10t")
    assert "\n" not in str(caught.value)


class Counting:
    """An embedder that counts how often it is asked."""

    def __init__(self, name: str = "counting") -> None:
        self.name, self.asked = name, 0

    def embed(self, items: Any, *, progress: Any = None) -> np.ndarray:
        del progress
        self.asked += 1
        return np.array([[self.asked, place] for place in range(len(items))], dtype=np.float32)


def test_embeddings_made_once_same_items(tmp_path: Path) -> None:
    """Embeddings are made once for the same items and embedder."""
    first = Counting()
    rows = embed_cached(first, TEXTS, tmp_path / "kept")
    again = embed_cached(first, tuple(TEXTS), tmp_path / "kept")
    assert first.asked == 1
    assert np.array_equal(rows, again)
    assert again.dtype == np.float32
    embed_cached(first, [*TEXTS[:-1], "changed"], tmp_path / "kept")
    embed_cached(first, [TEXTS[0] + TEXTS[1], *TEXTS[2:]], tmp_path / "kept")
    assert first.asked == 3
    other = Counting("another")
    embed_cached(other, TEXTS, tmp_path / "kept")
    assert other.asked == 1


def test_kept_embeddings_know_path_holds(tmp_path: Path) -> None:
    """Kept embeddings know what a path holds."""
    picture, made = tmp_path / "a.jpg", Counting()
    for content in (b"one", b"one", b"two"):
        picture.write_bytes(content)
        embed_cached(made, [picture], tmp_path)
    assert made.asked == 2
    pixels = np.zeros((1, 2, 2, 3), dtype=np.uint8)
    embed_cached(made, pixels, tmp_path)
    embed_cached(made, pixels.reshape(1, 4, 1, 3), tmp_path)  # the same bytes in another shape
    assert made.asked == 4
    with pytest.raises(FileError, match=r"^Item 0 cannot be read from .*none\.jpg: No such file"):
        embed_cached(made, [tmp_path / "none.jpg"], tmp_path)
    with pytest.raises(InvalidInput, match=r"^Item 0 must be a text, a path, bytes or an array; it is a dict"):
        embed_cached(made, [{}], tmp_path)
    with pytest.raises(InvalidInput, match="'folder' parameter"):
        embed_cached(made, TEXTS, None)  # type: ignore[arg-type]


def cut(content: bytes) -> bytes:
    return content[:-3]


def flip(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def another_shape(_: bytes) -> bytes:
    out = io.BytesIO()
    np.save(out, np.ones((2, 2), dtype=np.float32))
    return out.getvalue()


def pickled(_: bytes) -> bytes:
    out = io.BytesIO()
    np.save(out, np.array([{}]), allow_pickle=True)
    return out.getvalue()


@pytest.mark.parametrize(
    ("ending", "damage"),
    [
        (".npy", cut),
        (".npy", flip),
        (".npy", another_shape),
        (".npy", pickled),
        (".json", cut),
        (".json", flip),
        (".json", lambda _: b"[]"),
        (".json", lambda _: json.dumps({"shape": [4, 2]}).encode()),
    ],
)
def test_damaged_embeddings_are_made_anew(tmp_path: Path, ending: str, damage: Callable[[bytes], bytes]) -> None:
    made = Counting()
    embed_cached(made, TEXTS, tmp_path)
    file = next(path for path in tmp_path.iterdir() if path.suffix == ending)
    file.write_bytes(damage(file.read_bytes()))
    assert embed_cached(made, TEXTS, tmp_path)[0, 0] == 2
    assert embed_cached(made, TEXTS, tmp_path)[0, 0] == 2  # and kept


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (np.ones((3, 2), np.float32), r"must give 4 rows of numbers; it gave float32 \(3, 2\)"),
        (np.ones(4, np.float32), "must give 4 rows"),
        (np.ones((4, 2), int), "must give 4 rows"),
        (np.array([[1.0], [2.0], [np.nan], [3.0]]), "must give finite numbers; row 2"),
    ],
)
def test_embedder_gives_checked_before_kept(tmp_path: Path, rows: np.ndarray, words: str) -> None:
    """What an embedder gives is checked before it is kept."""
    made = Counting()
    made.embed = lambda items, *, progress=None: rows  # type: ignore[method-assign]  # noqa: ARG005
    with pytest.raises(InvalidInput, match=words):
        embed_cached(made, TEXTS, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_folder_cannot_written_sentence(tmp_path: Path) -> None:
    """A folder that cannot be written is one sentence."""
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"^Cannot make the folder "):
        embed_cached(Counting(), TEXTS, tmp_path / "file")


def test_a_set_takes_an_embedder() -> None:
    pairs = SentencePairs(name="x", sentences=TEXTS, first=[0, 0], second=[1, 2], human=[5, 0])
    rows = pairs.embed(HashingEmbedder(128)).embeddings
    assert rows[0] @ rows[1] > rows[0] @ rows[2]


@pytest.fixture
def picture() -> tuple[np.ndarray, bytes]:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(3).integers(0, 256, (24, 20, 3), dtype=np.uint8)
    out = io.BytesIO()
    image.fromarray(pixels).save(out, "PNG")
    return pixels, out.getvalue()


def test_picture_same_path_bytes_pixels(picture: tuple[np.ndarray, bytes], tmp_path: Path) -> None:
    """A picture is the same from path bytes pixels and image."""
    pixels, content = picture
    path = tmp_path / "p.png"
    path.write_bytes(content)
    for item in (path, str(path), content, pixels, open_picture(pixels, 0)):
        assert np.array_equal(np.asarray(open_picture(item, 0)), pixels)
    grey = np.asarray(open_picture(pixels[:, :, 0], 0))
    assert np.array_equal(grey, np.repeat(pixels[:, :, :1], 3, axis=2))


def test_pictures_cannot_decoded_sentence(
    picture: tuple[np.ndarray, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures that cannot be decoded are one sentence."""
    pixels, content = picture
    for item, words in (
        (content[:-40], r"^Picture 7 cannot be decoded"),
        (b"junk", r"^Picture 7 is not a picture file\.$"),
        (pixels.astype(float), r"^Picture 7 must be a uint8 array of shape \(height, width, 3\)"),
        (pixels[:, :, :2], "^Picture 7 must be a uint8 array"),
        (5, "^Picture 7 must be a path, bytes, an array of pixels or a Pillow image; it is a int"),
    ):
        with pytest.raises(InvalidInput, match=words):
            open_picture(item, 7)
    with pytest.raises(FileError, match=r"^Picture 7 \(.*none\.png\) cannot be read: No such file"):
        open_picture(tmp_path / "none.png", 7)
    with pytest.raises(FileError, match=r"^Picture 7 .* cannot be read: Is a directory"):
        open_picture(tmp_path, 7)
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 10)
    with pytest.raises(InvalidInput, match=r"^Picture 7 cannot be decoded: .*decompression bomb"):
        open_picture(content, 7)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(InvalidInput, match="need the 'image-embedders' extra"):
        open_picture(content, 7)


@pytest.mark.parametrize(
    "item", ["my secret diary", "my secret diary\0", "my secret diary " * 5000, "", "/my/secret/diary.png", "\ud800"]
)
def test_text_names_no_file_not_repeated(item: str) -> None:
    """A text that names no file is not repeated."""
    pytest.importorskip("PIL")
    with pytest.raises(InvalidInput) as caught:
        open_picture(item, 3)
    assert str(caught.value) == "Picture 3 is not a picture file: a text must be the path of a file that exists."


def test_file_another_kind_not_repeated(tmp_path: Path) -> None:
    """A file of another kind is not repeated."""
    pytest.importorskip("PIL")
    path = tmp_path / "secret.txt"
    path.write_text("no picture")
    with pytest.raises(InvalidInput, match=r"^Picture 3 is not a picture file\.$"):
        open_picture(str(path), 3)
    with pytest.raises(InvalidInput, match=r"^Picture 3 \(.*secret\.txt\) is not a picture file\.$"):
        open_picture(path, 3)


@pytest.fixture(scope="module")
def sentence_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random BERT of one layer with a vocabulary of letters, made and saved here."""
    pytest.importorskip("sentence_transformers")
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=64,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder / "bert")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder / "bert")
    words = Transformer(str(folder / "bert"))
    SentenceTransformer(modules=[words, Pooling(16)], device="cpu").save(str(folder / "sentences"))
    return str(folder / "sentences")


def test_sentence_transformers_embed_texts(sentence_model: str) -> None:
    """Sentence transformers embed texts in batches."""
    from sentence_transformers import SentenceTransformer

    made = embedder(f"sentence-transformers:{sentence_model}", batch_size=2, device="cpu", local=True)
    seen: list[tuple[int, int]] = []
    rows = made.embed(TEXTS, progress=lambda *said: seen.append(said))
    assert rows.shape == (4, 16)
    assert rows.dtype == np.float32
    assert seen == [(2, 4), (4, 4)]
    direct = SentenceTransformer(sentence_model, device="cpu").encode(TEXTS, show_progress_bar=False)
    assert np.allclose(rows, direct, atol=1e-5)
    assert np.linalg.norm(rows[0] - rows[2]) > 1e-3
    same = embedder(f"sentence-transformers:{sentence_model}", batch_size=2, device="cpu")
    alone = embedder(f"sentence-transformers:{sentence_model}", device="cpu")
    assert made.name == same.name
    assert made.name != alone.name  # rows that were padded together have other bits


def test_sentence_embedder_reads_text_time(sentence_model: str) -> None:
    """A sentence embedder reads one text at a time by default."""
    made = embedder(f"sentence-transformers:{sentence_model}", device="cpu", local=True)
    seen: list[list[str]] = []
    encode = made.model.encode  # type: ignore[attr-defined]
    made.model.encode = lambda texts, **options: seen.append(texts) or encode(texts, **options)  # type: ignore
    made.embed(TEXTS)
    assert seen == [[text] for text in TEXTS]


def test_name_embedder_knows_weights(sentence_model: str) -> None:
    """The name of an embedder knows its weights."""
    made = embedder(f"sentence-transformers:{sentence_model}", device="cpu")
    stem, _, digest = made.name.rpartition("@")
    assert stem == f"sentence-transformers:{sentence_model}"
    assert len(digest) == 12
    before = neural._digest(neural._iterate_weights(made.model))  # type: ignore[attr-defined]
    weights = next(made.model.parameters())  # type: ignore[attr-defined]
    weights.data[0, 0] += 1
    assert neural._digest(neural._iterate_weights(made.model)) != before  # type: ignore[attr-defined]


def pooled_by_its_first_token(folder: Path) -> None:
    path = next(folder.glob("*_Pooling")) / "config.json"
    settings = json.loads(path.read_text())
    assert settings["pooling_mode"] == "mean"
    path.write_text(json.dumps(settings | {"pooling_mode": "cls"}))


def cut_at_five_tokens(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": 5}))


def with_letters_exchanged(folder: Path) -> None:
    path = folder / "tokenizer.json"
    settings = json.loads(path.read_text())
    words = settings["model"]["vocab"]
    words["a"], words["q"] = words["q"], words["a"]
    path.write_text(json.dumps(settings))


def with_a_prompt(folder: Path) -> None:
    path = folder / "config_sentence_transformers.json"
    prompts = {"prompts": {"query": "search for: "}, "default_prompt_name": "query"}
    path.write_text(json.dumps(json.loads(path.read_text()) | prompts))


def with_another_activation(folder: Path) -> None:
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    assert settings["hidden_act"] == "gelu"
    path.write_text(json.dumps(settings | {"hidden_act": "relu"}))


@pytest.mark.parametrize(
    "change",
    [
        pooled_by_its_first_token,
        cut_at_five_tokens,
        with_letters_exchanged,
        with_a_prompt,
        with_another_activation,
    ],
)
def test_name_embedder_knows_how_model_set(sentence_model: str, tmp_path: Path, change: Callable[[Path], None]) -> None:
    """Each change leaves the weights alone and changes the rows, so that kept rows must not be used."""
    folder = tmp_path / "model"
    shutil.copytree(sentence_model, folder)
    kind = f"sentence-transformers:{folder}"
    before = embedder(kind, device="cpu", local=True)
    rows = embed_cached(before, ["a cat sat on the mat"], tmp_path / "kept")
    assert embedder(kind, device="cpu", local=True).name == before.name
    change(folder)
    after = embedder(kind, device="cpu", local=True)
    assert after.name != before.name
    assert np.abs(embed_cached(after, ["a cat sat on the mat"], tmp_path / "kept") - rows).max() > 1e-4


def test_name_embedder_knows_versions(sentence_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of an embedder knows the versions of its packages."""
    kind = f"sentence-transformers:{sentence_model}"
    before = embedder(kind, device="cpu", local=True).name
    monkeypatch.setattr(neural.importlib.metadata, "version", lambda package: f"{package} of tomorrow")
    assert embedder(kind, device="cpu", local=True).name != before


def test_weights_not_here_sentence(tmp_path: Path) -> None:
    """Weights that are not here are one sentence."""
    pytest.importorskip("sentence_transformers")
    for model in ("nobody/has-this-model", str(tmp_path)):
        with pytest.raises(FileError, match=r"^The sentence-transformers model .* cannot be loaded \(") as caught:
            embedder(f"sentence-transformers:{model}", local=True)
        assert "\n" not in str(caught.value)
        assert "without one, copy what it keeps from a machine that has them" in str(caught.value)


def timm_or_skip() -> Any:
    # timm needs torchvision, which fails on import where it was built for another torch.
    try:
        import timm
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"timm cannot be imported: {str(error).splitlines()[0]}")
    return timm


def test_timm_embeds_pictures_without(picture: tuple[np.ndarray, bytes]) -> None:
    """Timm embeds pictures without a classifier."""
    timm = timm_or_skip()
    import torch

    pixels, content = picture
    made = embedder("timm:resnet10t", pretrained=False, batch_size=2)
    rows = made.embed([pixels, content, pixels[::-1].copy()])
    assert rows.shape == (3, 512)
    assert rows.dtype == np.float32
    assert np.allclose(rows[0], rows[1], atol=1e-5)
    assert np.abs(rows[0] - rows[2]).max() > 1e-4
    model = timm.create_model("resnet10t", pretrained=False).eval()
    model.load_state_dict(made.model.state_dict(), strict=False)  # type: ignore[attr-defined]
    prepare = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    with torch.inference_mode():
        features = model.forward_head(
            model.forward_features(prepare(open_picture(pixels, 0)).unsqueeze(0)), pre_logits=True
        )
    assert np.allclose(rows[0], features[0].numpy(), atol=1e-5)
    assert made.name.startswith("timm:resnet10t@")


def test_timm_models_not_here_sentence() -> None:
    """Timm models that are not here are one sentence."""
    timm_or_skip()
    for model in ("no_such_model", "resnet10t.c3_in1k"):
        with pytest.raises(FileError, match=rf"^The timm model '{model}' cannot be loaded \(") as caught:
            embedder(f"timm:{model}")
        assert "\n" not in str(caught.value)


def test_dlib_describes_middle_finds_no_face() -> None:
    """Dlib describes the middle where it finds no face."""
    dlib = pytest.importorskip("dlib")
    pytest.importorskip("PIL")
    folder = neural._face_models()
    pixels = np.random.default_rng(5).integers(0, 256, (96, 80, 3), dtype=np.uint8)
    made = embedder("dlib")
    with pytest.raises(InvalidInput, match=r"^No face was found in picture 0; missing='centre' takes its middle"):
        made.embed([pixels])
    rows = embedder("dlib", missing="centre").embed([pixels])
    assert rows.shape == (1, 128)
    shape = dlib.shape_predictor(str(folder / "shape_predictor_68_face_landmarks.dat"))(
        pixels, dlib.rectangle(20, 24, 60, 72)
    )
    network = dlib.face_recognition_model_v1(str(folder / "dlib_face_recognition_resnet_model_v1.dat"))
    assert np.allclose(rows[0], np.array(network.compute_face_descriptor(pixels, shape)), atol=1e-5)


def test_several_faces_nearest_middle_taken() -> None:
    """Of several faces the one nearest the middle is taken."""
    dlib = pytest.importorskip("dlib")
    made = embedder("dlib")
    boxes = [dlib.rectangle(0, 0, 30, 30), dlib.rectangle(30, 30, 70, 70), dlib.rectangle(0, 0, 99, 40)]
    asked: list[int] = []

    def detect(_: Any, enlargements: int) -> list[Any]:
        asked.append(enlargements)
        return boxes if enlargements else []

    made.detect = detect  # type: ignore[attr-defined]
    assert made._face(np.zeros((100, 100, 3), np.uint8), 0) == boxes[1]  # type: ignore[attr-defined]
    assert asked == [0, 1]
