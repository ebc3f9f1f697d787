"""One picture from whatever names it: a path, the bytes of a file, an array of pixels, or a Pillow image."""

from __future__ import annotations

import importlib
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from scoreshield.bench.data._files import first_line
from scoreshield.errors import FileError, InvalidInput


def open_picture(item: Any, place: int) -> Any:
    """The picture as a Pillow image in RGB; ``place`` is its number, for the error message.

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
        raise InvalidInput(f"{named} cannot be decoded: {first_line(error)}.") from None


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
