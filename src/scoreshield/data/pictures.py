"""One picture from whatever names it: a path, the bytes of a file, an array of pixels, or a Pillow image."""

from __future__ import annotations

import importlib
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from scoreshield.errors import FileError, InvalidInput


def open_picture(item: Any, place: int) -> Any:
    """The picture as a Pillow image in RGB; ``place`` is its number, for the error message."""
    try:
        image = importlib.import_module("PIL.Image")
    except ImportError:
        raise InvalidInput(
            "Pictures need the 'image-embedders' extra: pip install 'scoreshield[image-embedders]'."
        ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", image.DecompressionBombWarning)
            return _open(item, image)
    except FileNotFoundError:
        raise FileError(f"Picture {place} is missing: there is no file {item}.") from None
    except InvalidInput as error:
        raise InvalidInput(f"Picture {place} {error}") from None
    except Exception as error:  # a damaged picture can make its decoder fail in any way at all
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        name = item if isinstance(item, str | Path) else "given as bytes or pixels"
        raise InvalidInput(f"Picture {place} ({name}) cannot be decoded: {reason}.") from None


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
    if isinstance(item, str | Path):
        with image.open(item) as opened:
            return opened.convert("RGB")
    raise InvalidInput(f"must be a path, bytes, an array of pixels or a Pillow image; it is a {type(item).__name__}.")
