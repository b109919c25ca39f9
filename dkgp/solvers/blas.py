"""BLAS with a leading dimension: triangular solves on part of a growing factor, without copying it.

SciPy's array wrappers copy a sliced triangle on every call, which at these sizes costs several times the arithmetic. The function
pointers that SciPy exports for compiled code take a leading dimension; ctypes calls them, and lets other threads run meanwhile.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import scipy.linalg.cython_blas
from numpy.typing import NDArray

__all__ = ["solve_lower", "solve_lower_transposed"]


def _function(name: str) -> Any:
    capsule = scipy.linalg.cython_blas.__pyx_capi__[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = get_pointer(capsule, get_name(capsule))
    return ctypes.CFUNCTYPE(None, *([ctypes.c_void_p] * 11))(address)


_TRSM = {np.dtype(np.float64): _function("dtrsm"), np.dtype(np.float32): _function("strsm")}
_SCALAR = {np.dtype(np.float64): ctypes.c_double, np.dtype(np.float32): ctypes.c_float}


def _triangular_solve(transpose: bytes, factor: NDArray[Any], order: int, right: NDArray[Any]) -> None:
    """Solve in place for `right` (r, >= order), one system a row, with the leading `order` rows of a row-major lower factor.

    A row-major lower triangle L is a column-major upper triangle U = L', and a row of `right` is a column of the system.
    """
    if factor.dtype != right.dtype or factor.strides[1] != factor.itemsize or right.strides[1] != right.itemsize:
        raise ValueError("factor and right-hand sides must share one type and have contiguous rows")
    integer = ctypes.c_int
    rows, columns = integer(order), integer(right.shape[0])
    one = _SCALAR[factor.dtype](1.0)
    factor_stride = integer(factor.strides[0] // factor.itemsize)
    right_stride = integer(max(right.strides[0] // right.itemsize, order, 1))
    _TRSM[factor.dtype](
        ctypes.cast(b"L", ctypes.c_void_p),
        ctypes.cast(b"U", ctypes.c_void_p),
        ctypes.cast(transpose, ctypes.c_void_p),
        ctypes.cast(b"N", ctypes.c_void_p),
        ctypes.addressof(rows),
        ctypes.addressof(columns),
        ctypes.addressof(one),
        factor.ctypes.data,
        ctypes.addressof(factor_stride),
        right.ctypes.data,
        ctypes.addressof(right_stride),
    )


def solve_lower(factor: NDArray[Any], order: int, right: NDArray[Any]) -> None:
    """`right[i] = L^-1 right[i]` in place for each row i, L the leading `order` rows and columns of `factor`."""
    _triangular_solve(b"T", factor, order, right)


def solve_lower_transposed(factor: NDArray[Any], order: int, right: NDArray[Any]) -> None:
    """`right[i] = L^-T right[i]` in place for each row i, L the leading `order` rows and columns of `factor`."""
    _triangular_solve(b"N", factor, order, right)
