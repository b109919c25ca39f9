"""LAPACK and BLAS on one symmetric matrix, in place and without the GIL: subsets are tuned side by side in threads.

SciPy's array wrappers hold the GIL. The functions that SciPy exports for compiled code are the same library's, so they
give the same bits, and ctypes lets other threads run meanwhile. Matrices are (n, n) float64 in Fortran order with the
lower triangle meaningful; right-hand sides are (n, t) in Fortran order.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import scipy.linalg.cython_blas
import scipy.linalg.cython_lapack
from numpy.typing import NDArray

__all__ = [
    "add_outer_products",
    "factor",
    "fill_upper",
    "invert_factored",
    "rank_update",
    "solve_factored",
    "solve_half",
    "symmetric_product",
]

FloatArray = NDArray[np.float64]

_LOWER, _LEFT, _PLAIN, _NOT_UNIT = b"L", b"L", b"N", b"N"
_TILE = 64


def _function(module: Any, name: str, arguments: int) -> Any:
    capsule = module.__pyx_capi__[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    prototype = ctypes.CFUNCTYPE(None, *([ctypes.c_void_p] * arguments))
    return prototype(get_pointer(capsule, get_name(capsule)))


_POTRF = _function(scipy.linalg.cython_lapack, "dpotrf", 5)
_POTRS = _function(scipy.linalg.cython_lapack, "dpotrs", 8)
_POTRI = _function(scipy.linalg.cython_lapack, "dpotri", 5)
_SYRK = _function(scipy.linalg.cython_blas, "dsyrk", 10)
_SYR2K = _function(scipy.linalg.cython_blas, "dsyr2k", 12)
_SYMM = _function(scipy.linalg.cython_blas, "dsymm", 12)
_TRSM = _function(scipy.linalg.cython_blas, "dtrsm", 11)


def factor(matrix: FloatArray) -> bool:
    """Put Cholesky's lower factor in the place of the lower triangle; False where the matrix is not positive definite.

    Then what the lower triangle holds means nothing.
    """
    n, info = _order(matrix), ctypes.c_int(0)
    _POTRF(_LOWER, _int(n), matrix.ctypes.data, _int(n), _pointer(info))
    return info.value == 0


def solve_factored(lower: FloatArray, right: FloatArray) -> FloatArray:
    """(L L')^-1 B for the factor L of order n and B (n, t): a new array (n, t)."""
    n, solution = _order(lower), _columns(right, lower).copy(order="F")
    info = ctypes.c_int(0)
    _POTRS(
        _LOWER, _int(n), _int(solution.shape[1]), lower.ctypes.data, _int(n), solution.ctypes.data, _int(n),
        _pointer(info),
    )  # fmt: skip
    return solution


def solve_half(lower: FloatArray, right: FloatArray) -> None:
    """B = L^-1 B in place, for the factor L of order n and B (n, t)."""
    n = _order(lower)
    _columns(right, lower)
    _TRSM(
        _LEFT, _LOWER, _PLAIN, _NOT_UNIT, _int(n), _int(right.shape[1]), _real(1.0), lower.ctypes.data, _int(n),
        right.ctypes.data, _int(n),
    )  # fmt: skip


def invert_factored(lower: FloatArray) -> bool:
    """Put the lower triangle of (L L')^-1 in the place of L; False where L has a zero on its diagonal."""
    n, info = _order(lower), ctypes.c_int(0)
    _POTRI(_LOWER, _int(n), lower.ctypes.data, _int(n), _pointer(info))
    return info.value == 0


def rank_update(matrix: FloatArray, columns: FloatArray, *, scale: float, keep: float) -> None:
    """A = scale B B' + keep A in place, in the lower triangle alone, for B (n, t). With `keep` zero A is not read."""
    n = _order(matrix)
    _columns(columns, matrix)
    _SYRK(
        _LOWER, _PLAIN, _int(n), _int(columns.shape[1]), _real(scale), columns.ctypes.data, _int(n), _real(keep),
        matrix.ctypes.data, _int(n),
    )  # fmt: skip


def add_outer_products(matrix: FloatArray, left: FloatArray, right: FloatArray, *, scale: float) -> None:
    """A += scale (B C' + C B') in place, in the lower triangle alone, for B and C (n, t)."""
    n = _order(matrix)
    _columns(left, matrix)
    _columns(right, matrix)
    _SYR2K(
        _LOWER, _PLAIN, _int(n), _int(left.shape[1]), _real(scale), left.ctypes.data, _int(n), right.ctypes.data,
        _int(n), _real(1.0), matrix.ctypes.data, _int(n),
    )  # fmt: skip


def symmetric_product(matrix: FloatArray, right: FloatArray) -> FloatArray:
    """A B for the symmetric A, of which the lower triangle is read, and B (n, t): a new array (n, t)."""
    n, t = _order(matrix), _columns(right, matrix).shape[1]
    product = np.zeros((n, t), order="F")
    _SYMM(
        _LEFT, _LOWER, _int(n), _int(t), _real(1.0), matrix.ctypes.data, _int(n), right.ctypes.data, _int(n),
        _real(0.0), product.ctypes.data, _int(n),
    )  # fmt: skip
    return product


def fill_upper(matrix: FloatArray) -> None:
    """Copy the lower triangle into the upper one, tile by tile."""
    n = _order(matrix)
    for first in range(0, n, _TILE):
        last = min(first + _TILE, n)
        corner = matrix[first:last, first:last]
        corner[...] = np.tril(corner) + np.tril(corner, -1).T
        matrix[first:last, last:] = matrix[last:, first:last].T


def _order(matrix: FloatArray) -> int:
    n = len(matrix)
    if matrix.shape != (n, n) or matrix.dtype != np.float64 or not matrix.flags.f_contiguous:
        raise ValueError(f"expected a square float64 matrix in Fortran order; got {matrix.dtype} {matrix.shape}")
    return n


def _columns(right: FloatArray, matrix: FloatArray) -> FloatArray:
    if right.ndim != 2 or len(right) != len(matrix) or right.dtype != np.float64 or not right.flags.f_contiguous:
        raise ValueError(
            f"expected ({len(matrix)}, t) float64 columns in Fortran order; got {right.dtype} {right.shape}"
        )
    return right


def _pointer(value: Any) -> Any:
    return ctypes.cast(ctypes.pointer(value), ctypes.c_void_p)


def _int(value: int) -> Any:
    return _pointer(ctypes.c_int(value))


def _real(value: float) -> Any:
    return _pointer(ctypes.c_double(value))
