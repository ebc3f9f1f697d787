"""Embedders around trained networks: sentence-transformers for texts, timm for images, dlib for faces.

Each loads its package and weights when it is made. Its name ends in a digest of the weights, of how the model is set
up (pooling, length limit, tokenizer, prompts, texts per batch, preparation of pictures) and of the versions of the
packages, so that embeddings that were kept (`embedders.embed_cached`) are never taken for those of another model.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import io
import itertools
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._loading import describe_error
from scoreshield.bench.data._fields import Float32, Items
from scoreshield.bench.data.embedders import Progress, check_text_items, gather
from scoreshield.errors import FileError, InvalidInput

_WEIGHTS = (
    "weights are downloaded once where there is a network and kept by the package; without one, copy what it keeps "
    "from a machine that has them"
)


class SentenceEmbedder:
    """Texts through a sentence-transformers model, by its name or the path of a folder.

    Args:
        model: Such as "all-MiniLM-L6-v2", which cuts texts at 256 tokens and gives rows of length one.
        batch_size: Texts at a time. With one, the default, a row depends on its own text alone; with more, texts that
            are padded together change each other's last bits (`scoreshield.integrations.text.find_batch_effect`).
        device: "cpu", "cuda" and so on; None lets the package choose.
        local: True uses only weights that are on this machine.
    """

    def __init__(self, model: str, *, batch_size: int = 1, device: str | None = None, local: bool = False) -> None:
        package = _import_package("sentence_transformers", "text-embedders")
        self.batch_size = _validation.check_count(batch_size, "batch_size")
        try:
            self.model = package.SentenceTransformer(model, device=device, local_files_only=local)
        except Exception as error:  # a hub, a file system, a parser or torch, each with errors of its own
            raise _make_load_error(f"sentence-transformers model {model!r}", error) from None
        self.model.eval()
        packages = ("sentence-transformers", "transformers", "tokenizers", "torch")
        batches = f"{self.batch_size} texts at a time".encode()
        digest = _digest(_iterate_weights(self.model), _set_up(self.model), _versions(*packages), [batches])
        self.name = f"sentence-transformers:{model}@{digest}"

    def embed(self, items: Items, *, progress: Progress | None = None) -> Float32:
        """Embed each text as one row."""

        def encode(batch: Items, _: int) -> NDArray[Any]:
            return np.asarray(self.model.encode(list(batch), batch_size=self.batch_size, show_progress_bar=False))

        return gather(check_text_items(items), encode, self.batch_size, progress)


class ImageEmbedder:
    """Images through a timm model without its classifier, prepared as the model requires.

    Args:
        model: Such as "vit_base_patch14_dinov2.lvd142m".
        pretrained: False leaves the weights random, which is for tests of a pipeline and for nothing else.
        batch_size: Images at a time. All have one size, so replacing one image changes no shape in the computation.
        device: "cpu", "cuda" and so on.
    """

    def __init__(self, model: str, *, pretrained: bool = True, batch_size: int = 32, device: str = "cpu") -> None:
        timm = _import_package("timm", "image-embedders")
        self.torch = _import_package("torch", "image-embedders")
        self.batch_size = _validation.check_count(batch_size, "batch_size")
        try:
            self.model = timm.create_model(model, pretrained=pretrained, num_classes=0).to(device).eval()
            pictures = timm.data.resolve_model_data_config(self.model)
            self.prepare = timm.data.create_transform(**pictures, is_training=False)
        except Exception as error:  # as above
            raise _make_load_error(f"timm model {model!r}", error) from None
        self.device = device
        set_up = [repr(sorted(pictures.items())).encode(), repr(self.prepare).encode(), repr(self.model).encode()]
        digest = _digest(_iterate_weights(self.model), set_up, _versions("timm", "torch", "torchvision", "pillow"))
        self.name = f"timm:{model}@{digest}"

    def embed(self, items: Items, *, progress: Progress | None = None) -> Float32:
        """Embed each image as one row."""

        def run(batch: Items, start: int) -> NDArray[Any]:
            pictures = [self.prepare(open_picture(item, start + place)) for place, item in enumerate(batch)]
            with self.torch.inference_mode():
                rows = self.model(self.torch.stack(pictures).to(self.device))
            return np.asarray(rows.float().cpu().numpy())

        return gather(items, run, self.batch_size, progress)


class FaceEmbedder:
    """Faces through dlib: frontal detector, 68 landmarks, aligned crop, 128-dimensional descriptor (not of length one).

    Of several faces the one nearest the middle is taken. Where none is found the picture is enlarged once.

    Args:
        missing: What to do where still none is found: "error", or "centre", which takes the middle half of the picture;
            one of the 7,701 LFW pictures of the official pairs needs that.
    """

    def __init__(self, *, missing: str = "error") -> None:
        self.missing = _validation.check_option(missing, "missing", ("error", "centre"))
        self.dlib = _import_package("dlib", "face-embedders")
        folder = _face_models()
        landmarks = folder / "shape_predictor_68_face_landmarks.dat"
        network = folder / "dlib_face_recognition_resnet_model_v1.dat"
        try:
            self.detect = self.dlib.get_frontal_face_detector()
            self.landmarks = self.dlib.shape_predictor(str(landmarks))
            self.network = self.dlib.face_recognition_model_v1(str(network))
            digest = _digest(_files(landmarks, network), _versions("dlib", "dlib-bin", "pillow"))
        except (RuntimeError, OSError) as error:
            raise _make_load_error("dlib face model", error) from None
        self.name = f"dlib:{self.missing}@{digest}"

    def embed(self, items: Items, *, progress: Progress | None = None) -> Float32:
        """Embed each picture as one row."""

        def describe(batch: Items, start: int) -> NDArray[Any]:
            pictures = [np.asarray(open_picture(item, start + place)) for place, item in enumerate(batch)]
            return np.stack([self._describe(picture, start + place) for place, picture in enumerate(pictures)])

        return gather(items, describe, 16, progress)

    def _describe(self, picture: NDArray[np.uint8], place: int) -> NDArray[np.float64]:
        shape = self.landmarks(picture, self._face(picture, place))
        return np.array(self.network.compute_face_descriptor(picture, shape, 0))

    def _face(self, picture: NDArray[np.uint8], place: int) -> Any:
        height, width = picture.shape[:2]
        for enlargements in (0, 1):
            found = list(self.detect(picture, enlargements))
            if found:
                return min(
                    found, key=lambda box: (box.center().x - width / 2) ** 2 + (box.center().y - height / 2) ** 2
                )
        if self.missing == "error":
            raise InvalidInput(f"No face was found in picture {place}; missing='centre' takes its middle instead.")
        return self.dlib.rectangle(width // 4, height // 4, 3 * width // 4, 3 * height // 4)


def _import_package(name: str, extra: str) -> Any:
    """Import a package that is needed only here."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # a broken installation can fail in any way at all
        missing = isinstance(error, ModuleNotFoundError) and error.name == name
        state = "are not installed" if missing else f"cannot be imported ({describe_error(error)})"
        shown = name.replace("_", "-")
        raise InvalidInput(
            f"The {shown} embedders {state}; they need the '{extra}' extra: pip install 'scoreshield[{extra}]'."
        ) from None


def _face_models() -> Path:
    # The package itself cannot be imported beside a recent setuptools, and only its files are needed.
    found = importlib.util.find_spec("face_recognition_models")
    if found is None or not found.submodule_search_locations:
        raise InvalidInput(
            "The dlib embedder needs the 'face-embedders' extra: pip install 'scoreshield[face-embedders]'."
        )
    return Path(next(iter(found.submodule_search_locations))) / "models"


def _make_load_error(what: str, error: Exception) -> FileError:
    return FileError(f"The {what} cannot be loaded ({describe_error(error)}); {_WEIGHTS}.")


def _digest(*parts: Iterable[bytes]) -> str:
    """Compute the first half-dozen bytes of the SHA-256 of the digests of all pieces, in their order."""
    digest = hashlib.sha256()
    for piece in itertools.chain(*parts):
        digest.update(hashlib.sha256(piece).digest())
    return digest.hexdigest()[:12]


def _files(*paths: Path) -> Iterator[bytes]:
    """Read files, each after its name."""
    for path in paths:
        yield path.name.encode()
        yield path.read_bytes()


def _iterate_weights(model: Any) -> Iterator[bytes]:
    """Yield all weights, in the order of their names."""
    for name, tensor in sorted(model.state_dict().items()):
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
        yield np.ascontiguousarray(tensor.detach().float().cpu().numpy()).tobytes()


def _set_up(model: Any) -> Iterator[bytes]:
    """List what else decides the rows of a sentence-transformers model: modules, options, prompts and tokenizer."""
    yield repr(model).encode()
    for option in ("max_seq_length", "prompts", "default_prompt_name", "truncate_dim"):
        yield repr(getattr(model, option, None)).encode()
    for module in model:
        yield repr(module.get_config_dict() if hasattr(module, "get_config_dict") else module).encode()
        network = getattr(module, "auto_model", None)
        yield b"" if network is None else network.config.to_json_string().encode()
    tokenizer: Any = getattr(model, "tokenizer", None)
    if hasattr(tokenizer, "save_pretrained"):
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            yield from _files(*sorted(path for path in Path(folder).rglob("*") if path.is_file()))
    elif hasattr(tokenizer, "to_str"):  # of the tokenizers package, as static embeddings use it
        yield tokenizer.to_str().encode()


def _versions(*packages: str) -> Iterator[bytes]:
    """List the installed versions of packages, where they are installed under these names."""
    for package in packages:
        try:
            yield f"{package} {importlib.metadata.version(package)}".encode()
        except importlib.metadata.PackageNotFoundError:
            yield package.encode()


# ---- Pictures.


def open_picture(item: Any, place: int) -> Any:
    """Open a picture as a Pillow image in RGB; ``place`` is its number, for the error message.

    A text must name a file that exists. It is never repeated in a message: it may be a private text that was meant for
    another embedder.
    """
    try:
        image = importlib.import_module("PIL.Image")
    except ImportError:
        raise InvalidInput(
            "Pictures need the 'image-embedders' extra: pip install 'scoreshield[image-embedders]'."
        ) from None
    named = f"Picture {place} ({item})" if isinstance(item, Path) else f"Picture {place}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", image.DecompressionBombWarning)
            return _open(item, image)
    except InvalidInput as error:
        raise InvalidInput(f"{named} {error}") from None
    except image.UnidentifiedImageError:  # whose message repeats the item
        raise InvalidInput(f"{named} is not a picture file.") from None
    except Exception as error:  # a damaged picture can make its decoder fail in any way at all
        if isinstance(error, OSError) and error.strerror:
            raise FileError(f"{named} cannot be read: {error.strerror}.") from None
        raise InvalidInput(f"{named} cannot be decoded: {describe_error(error)}.") from None


def _open(item: Any, image: Any) -> Any:
    if isinstance(item, image.Image):
        return item.convert("RGB")
    if isinstance(item, np.ndarray):
        if item.dtype != np.uint8 or item.ndim not in (2, 3) or item.shape[2:] not in ((), (3,)) or not item.size:
            raise InvalidInput(
                f"must be a uint8 array of shape (height, width, 3); it has shape {item.shape} and type {item.dtype}."
            )
        return image.fromarray(item).convert("RGB")
    if isinstance(item, bytes):
        with image.open(io.BytesIO(item)) as opened:
            return opened.convert("RGB")
    if isinstance(item, str) and not _names_a_file(item):
        raise InvalidInput("is not a picture file: a text must be the path of a file that exists.")
    if isinstance(item, str | Path):
        with image.open(item) as opened:
            return opened.convert("RGB")
    raise InvalidInput(f"must be a path, bytes, an array of pixels or a Pillow image; it is a {type(item).__name__}.")


def _names_a_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # such as a name that is too long
        return False
