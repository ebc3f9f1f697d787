"""Array back ends: the same algorithm runs on NumPy and on PyTorch through the array API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield.errors import InvalidInput

#: An array of NumPy or PyTorch. The array API has no static type yet.
Array = Any
#: Called with the number of iterations done and the largest possible number.
Progress = Callable[[int, int], None]


def to_device(matrix: NDArray[np.float64], device: str) -> Array:
    """Move a matrix to a device: "cpu" is NumPy, "torch" is PyTorch on the CPU, "cuda" or "cuda:1" is a GPU."""
    if device == "cpu":
        return matrix
    if not isinstance(device, str) or device.split(":")[0] not in ("torch", "cuda"):
        _validation.reject("device", "'cpu', 'cuda', 'cuda:N' or 'torch'", device)
    try:
        import torch
    except ImportError:
        raise InvalidInput(f"The device {device!r} needs the 'gpu' extra: pip install 'scoreshield[gpu]'.") from None
    if device != "torch" and not torch.cuda.is_available():
        raise InvalidInput(f"The device {device!r} is not available: PyTorch sees no GPU; use device='cpu'.")
    matrix = matrix if matrix.flags.writeable else matrix.copy()  # PyTorch has no read-only arrays
    return torch.from_numpy(matrix).to("cpu" if device == "torch" else device)


def to_numpy(array: Array) -> NDArray[np.float64]:
    """Convert an array to NumPy."""
    if isinstance(array, np.ndarray):
        return array
    result: NDArray[np.float64] = array.cpu().numpy()
    return result


def like(values: NDArray[np.float64], array: Array) -> Array:
    """Convert a NumPy array to the library and the device of another array."""
    if isinstance(array, np.ndarray):
        return values
    return array_namespace(array).asarray(values, device=array.device)


def diagonal(matrix: Array) -> Array:
    """Return the diagonal of a contiguous square matrix as a view."""
    return matrix.reshape(-1)[:: matrix.shape[0] + 1]


def norm(array: Array) -> float:
    """Compute the Euclidean norm; for a matrix, the Frobenius norm."""
    return float(array_namespace(array).linalg.vector_norm(array))


def row_dots(a: Array, b: Array) -> Array:
    """Compute the inner product of each row of a with the same row of b."""
    return array_namespace(a).vecdot(a, b)


def outer_square(factor: Array) -> Array:
    """Compute F F^T, exactly symmetric."""
    product = factor @ factor.T
    if not isinstance(product, np.ndarray):  # NumPy computes it as a symmetric product already
        product = product + product.T
        product /= 2
    return product
