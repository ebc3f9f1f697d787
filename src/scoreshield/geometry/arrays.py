"""One text for NumPy and PyTorch: matrices go to a device, algorithms use the array API, results come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield.errors import InvalidInput

#: An array of whichever library; the array API has no static type yet.
Array = Any
#: Told how many iterations are done, and how many there can be.
Progress = Callable[[int, int], None]


def to_device(matrix: NDArray[np.float64], device: str) -> Array:
    """The matrix on a device: "cpu" is NumPy, "torch" is PyTorch on the CPU, "cuda" or "cuda:1" a GPU."""
    if device == "cpu":
        return matrix
    if not isinstance(device, str) or device.split(":")[0] not in ("torch", "cuda"):
        _validation.reject("device", "'cpu', 'cuda', 'cuda:N' or 'torch'", device)
    try:
        import torch
    except ImportError:
        raise InvalidInput(f"The device {device!r} needs the 'gpu' extra: pip install 'scoreshield[gpu]'.") from None
    if device != "torch" and not torch.cuda.is_available():
        raise InvalidInput(f"The device {device!r} is not there: PyTorch sees no GPU; use device='cpu'.")
    matrix = matrix if matrix.flags.writeable else matrix.copy()  # PyTorch has no read-only arrays
    return torch.from_numpy(matrix).to("cpu" if device == "torch" else device)


def to_numpy(array: Array) -> NDArray[np.float64]:
    """The array back as NumPy's."""
    if isinstance(array, np.ndarray):
        return array
    result: NDArray[np.float64] = array.cpu().numpy()
    return result


def like(values: NDArray[np.float64], array: Array) -> Array:
    """A NumPy array as one of the same library, on the same device."""
    if isinstance(array, np.ndarray):
        return values
    return array_namespace(array).asarray(values, device=array.device)


def diagonal(matrix: Array) -> Array:
    """The diagonal of a contiguous square matrix, as a view."""
    return matrix.reshape(-1)[:: matrix.shape[0] + 1]


def norm(array: Array) -> float:
    """Euclidean (for matrices, Frobenius) norm."""
    return float(array_namespace(array).linalg.vector_norm(array))


def row_dots(a: Array, b: Array) -> Array:
    """The inner product of each row of a with the same row of b."""
    return array_namespace(a).vecdot(a, b)


def outer_square(factor: Array) -> Array:
    """F F^T, exactly symmetric."""
    product = factor @ factor.T
    if not isinstance(product, np.ndarray):  # NumPy computes it as a symmetric product already
        product = product + product.T
        product /= 2
    return product
