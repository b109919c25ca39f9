"""Blocks of a blocked Cholesky factorisation, worked on in place: products, squares and small factors by BLAS.

Blocks are views into larger row-major arrays, float32 or float64. SciPy's wrappers would copy them and hold the GIL;
the functions that SciPy exports for compiled code take a leading dimension, and ctypes lets other threads run
meanwhile. A row-major matrix is its transpose, column-major, which is how each call below reads.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import scipy.linalg.cython_blas
import scipy.linalg.cython_lapack
from numpy.typing import NDArray

__all__ = ["factor_lower", "subtract_product", "subtract_square"]

_SCALARS = {np.dtype(np.float32): ctypes.c_float, np.dtype(np.float64): ctypes.c_double}


def _functions(module: Any, name: str, arguments: int) -> dict[np.dtype[Any], Any]:
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    found = {}
    for dtype, letter in ((np.dtype(np.float32), "s"), (np.dtype(np.float64), "d")):
        capsule = module.__pyx_capi__[letter + name]
        prototype = ctypes.CFUNCTYPE(None, *([ctypes.c_void_p] * arguments))
        found[dtype] = prototype(get_pointer(capsule, get_name(capsule)))
    return found


_GEMM = _functions(scipy.linalg.cython_blas, "gemm", 13)
_SYRK = _functions(scipy.linalg.cython_blas, "syrk", 10)
_POTRF = _functions(scipy.linalg.cython_lapack, "potrf", 5)


def subtract_product(block: NDArray[Any], left: NDArray[Any], right: NDArray[Any]) -> None:
    """`block -= left @ right.T` in place, for block (m, n), left (m, k), right (n, k)."""
    (m, n), k = block.shape, left.shape[1]
    if left.shape != (m, k) or right.shape != (n, k):
        raise ValueError(f"shapes do not fit: {block.shape} -= {left.shape} @ {right.shape}.T")
    strides = [_stride(array, block.dtype) for array in (right, left, block)]
    if not m or not n or not k:
        return
    scalar = _SCALARS[block.dtype]
    _GEMM[block.dtype](
        b"T", b"N", _int(n), _int(m), _int(k), _pointer(scalar(-1.0)), right.ctypes.data, strides[0],
        left.ctypes.data, strides[1], _pointer(scalar(1.0)), block.ctypes.data, strides[2],
    )  # fmt: skip


def subtract_square(block: NDArray[Any], left: NDArray[Any]) -> None:
    """`block -= left @ left.T` in place, in the lower triangle alone, for block (m, m), left (m, k)."""
    m, k = left.shape
    if block.shape != (m, m):
        raise ValueError(f"shapes do not fit: {block.shape} -= {left.shape} @ {left.shape}.T")
    strides = [_stride(array, block.dtype) for array in (left, block)]
    if not m or not k:
        return
    scalar = _SCALARS[block.dtype]
    _SYRK[block.dtype](
        b"U", b"T", _int(m), _int(k), _pointer(scalar(-1.0)), left.ctypes.data, strides[0],
        _pointer(scalar(1.0)), block.ctypes.data, strides[1],
    )  # fmt: skip


def factor_lower(block: NDArray[Any]) -> int:
    """Put Cholesky's lower factor in the lower triangle of `block` (m, m).

    Returns
    -------
    int
        0, or the number of the leading minor, from 1, that is not positive definite.
    """
    m = len(block)
    if block.shape != (m, m):
        raise ValueError(f"a square block is wanted; got {block.shape}")
    info = ctypes.c_int(0)
    _POTRF[block.dtype](b"U", _int(m), block.ctypes.data, _stride(block, block.dtype), _pointer(info))
    if info.value == 0 and not np.isfinite(block.diagonal()).all():  # OpenBLAS lets NaN through
        return int(np.argmin(np.isfinite(block.diagonal()))) + 1
    return info.value


def _pointer(value: Any) -> Any:
    return ctypes.cast(ctypes.pointer(value), ctypes.c_void_p)


def _int(value: int) -> Any:
    return _pointer(ctypes.c_int(value))


def _stride(array: NDArray[Any], dtype: np.dtype[Any]) -> Any:
    if array.dtype != dtype or (array.size and array.strides[1] != array.itemsize):
        raise ValueError("blocks must share one type and have contiguous rows")
    return _int(max(array.strides[0] // array.itemsize, array.shape[1], 1))
