"""Array back ends: the same algorithm runs on NumPy and on PyTorch through the array API."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf

from scoreshield import _validation
from scoreshield.errors import InvalidInput

#: An array of NumPy or PyTorch. The array API has no static type yet.
Array = Any
#: Called with the number of iterations done and the largest possible number.
Progress = Callable[[int, int], None]
_LARGE = 1 << 25  # bytes: from here on, a copy from a GPU is divided
_COPIERS = 8  # threads
_SMALL = 2000  # rows: up to this, a second matrix of at most 32 MB is taken for speed


def to_device(matrix: NDArray[np.float64], device: str) -> Array:
    """Move a matrix to a device: "cpu" is NumPy, "torch" is PyTorch on the CPU, "cuda" or "cuda:1" is a GPU."""
    check_device_name(device)
    if device == "cpu":
        return matrix
    try:
        import torch
    except ImportError:
        raise InvalidInput(f"The device {device!r} needs the 'gpu' extra: pip install 'scoreshield[gpu]'.") from None
    if device != "torch" and not torch.cuda.is_available():
        raise InvalidInput(f"The device {device!r} is not available: PyTorch sees no GPU; use device='cpu'.")
    if device == "torch":
        return torch.from_numpy(matrix.copy())  # not shared with the caller, as on a GPU
    matrix = matrix if matrix.flags.writeable else matrix.copy()  # PyTorch has no read-only arrays
    return torch.from_numpy(matrix).to(device)


def check_device_name(device: Any, name: str = "device") -> str:
    """Check that a device can exist; not that it is here."""
    if not isinstance(device, str) or (device != "cpu" and device.split(":")[0] not in ("torch", "cuda")):
        _validation.reject(name, "'cpu', 'cuda', 'cuda:N' or 'torch'", device)
    return device


def check_device(device: str) -> None:
    """Raise an error if matrices cannot be moved to a device of this process."""
    to_device(np.zeros((1, 1)), device)


def to_numpy(array: Array) -> NDArray[np.float64]:
    """Convert an array to NumPy."""
    if isinstance(array, np.ndarray):
        return array
    if array.device.type == "cpu" or array.nbytes < _LARGE:
        result: NDArray[np.float64] = array.cpu().numpy()
        return result
    return _fetch(array)


def _fetch(array: Array) -> NDArray[np.float64]:
    """Copy a large matrix from a GPU by several threads, each with a buffer that the GPU can write to directly.

    One thread would spend its time on new pages of memory.
    """
    import torch

    found = np.empty(array.shape)
    rows = max(1, _LARGE // (2 * found[0].nbytes))

    def fetch(start: int) -> None:
        panel = array[start : start + rows, :]
        buffer = torch.empty(panel.shape, dtype=array.dtype, pin_memory=True)
        buffer.copy_(panel)
        found[start : start + rows] = buffer.numpy()

    with ThreadPoolExecutor(_COPIERS) as pool:
        for _ in pool.map(fetch, range(0, len(found), rows)):  # raises what a thread raised
            pass
    return found


def like(values: NDArray[np.floating], array: Array) -> Array:
    """Convert a NumPy array to the library and the device of another array."""
    if isinstance(array, np.ndarray):
        return values
    return array_namespace(array).asarray(values, device=array.device)


def draw_normal(rng: np.random.Generator, shape: tuple[int, ...], array: Array) -> Array:
    """Draw normal numbers in single precision, in the library and on the device of an array. A GPU draws its own."""
    if isinstance(array, np.ndarray) or array.device.type == "cpu":
        return like(rng.standard_normal(shape, dtype=np.float32), array)
    import torch

    generator = torch.Generator(array.device)
    generator.manual_seed(int(rng.integers(2**63)))
    return torch.randn(shape, generator=generator, device=array.device)


def diagonal(matrix: Array) -> Array:
    """Return the diagonal of a contiguous square matrix as a view."""
    return matrix.reshape(-1)[:: matrix.shape[0] + 1]


def norm(array: Array) -> float:
    """Compute the Euclidean norm; for a matrix, the Frobenius norm."""
    return float(array_namespace(array).linalg.vector_norm(array))


def row_dots(a: Array, b: Array) -> Array:
    """Compute the inner product of each row of a with the same row of b."""
    return np.vecdot(a, b) if isinstance(a, np.ndarray) else (a * b).sum(-1)


def normalise_factor(factor: Array) -> Array:
    """Scale rows to unit length. A zero row stays zero."""
    xp = array_namespace(factor)
    return factor / xp.clip(xp.sqrt(row_dots(factor, factor)), 1e-30, None)[:, None]


def outer_square(factor: Array) -> Array:
    """Compute F F^T, exactly symmetric."""
    product = factor @ factor.T
    if not isinstance(product, np.ndarray):  # NumPy computes it as a symmetric product already
        product = product + product.T
        product /= 2
    return product


def factor_cholesky(matrix: Array) -> Array | None:
    """Compute the lower Cholesky factor of a symmetric matrix; None where the factorisation fails."""
    if isinstance(matrix, np.ndarray):
        try:
            return np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            return None
    import torch

    root, info = torch.linalg.cholesky_ex(matrix)
    return None if int(info) else root


def invert_triangle(lower: Array) -> Array:
    """Compute the inverse of a small lower triangular matrix.

    NumPy's general inverse, although SciPy has one for triangles: the two libraries bring an OpenBLAS each, whose
    waiting threads take each other's cores. Between products by NumPy, one call of SciPy costs tens of milliseconds.
    """
    if isinstance(lower, np.ndarray):
        return np.tril(np.linalg.inv(lower))
    import torch

    one = torch.eye(lower.shape[0], dtype=lower.dtype, device=lower.device)
    return torch.linalg.solve_triangular(lower, one, upper=False)


def is_single_faster(array: Array) -> bool:
    """Whether products in single precision take half the time on the array's device: true on a CPU."""
    return isinstance(array, np.ndarray) or array.device.type == "cpu"


def list_panels(n: int) -> list[tuple[int, int]]:
    """Divide n rows into panels, for work that would otherwise need a second matrix: at least 128 rows, or n / 32."""
    rows = max(128, n // 32)
    return [(start, min(start + rows, n)) for start in range(0, n, rows)]


def fill_outer_square(factor: Array, out: Array) -> None:
    """Write F F^T into a matrix, exactly symmetric, by panels and with no further matrix."""
    xp = array_namespace(factor)
    for start, end in list_panels(factor.shape[0]):
        panel = factor[start:end, :] @ factor[start:, :].T
        corner = panel[:, : end - start]
        panel[:, : end - start] = xp.triu(corner) + xp.triu(corner, k=1).T
        out[start:end, start:] = panel
        out[end:, start:end] = panel[:, end - start :].T


def has_cholesky_factor(matrix: Array) -> bool:
    """Whether a Cholesky factorisation in floating point succeeds. The symmetric matrix may be overwritten."""
    if isinstance(matrix, np.ndarray):
        if len(matrix) <= _SMALL:  # by NumPy, for the reason in `invert_triangle`
            root = factor_cholesky(matrix)
        else:  # the transpose is in Fortran order, so that LAPACK works in place
            root, info = dpotrf(matrix.T, lower=1, clean=0, overwrite_a=1)
            root = None if info else root
        # OpenBLAS passes over a NaN on the diagonal.
        return root is not None and bool(np.all(np.isfinite(root.diagonal())))
    import torch

    there = matrix.mT
    info = torch.empty((), dtype=torch.int32, device=matrix.device)
    torch.linalg.cholesky_ex(there, out=(there, info))
    return not int(info)
