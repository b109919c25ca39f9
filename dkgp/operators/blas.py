"""BLAS and LAPACK on arrays' memory, in place, while other threads run.

SciPy's wrappers hold the GIL, and copy arrays of another layout than they need. The functions that SciPy exports for
compiled code are the same library's, so they give the same bits; they take leading dimensions, and called through
ctypes they let other threads run meanwhile. BLAS reads matrices column by column: a row-major matrix is its transpose.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

Argument = bytes | int | np.integer[Any] | float | NDArray[Any]
_SCALARS: dict[np.dtype[Any], tuple[str, Any]] = {
    np.dtype(np.float32): ("s", ctypes.c_float),
    np.dtype(np.float64): ("d", ctypes.c_double),
}


def blas(routine: str, *arguments: Argument) -> None:
    """Call a routine of BLAS, such as "gemm" (without the letter of its type), in the type of its arrays.

    Arguments are those of its Fortran interface: flags, counts, numbers, and arrays, by their address
    alone. The caller sees to it that arrays are of one type and lie as the counts say.
    """
    _call("scipy.linalg.cython_blas", routine, arguments)


def lapack(routine: str, *arguments: Argument) -> int:
    """Call a routine of LAPACK, as `blas` does, but for its last argument: return that, INFO, 0 for success."""
    info = ctypes.c_int(0)
    _call("scipy.linalg.cython_lapack", routine, arguments, ctypes.byref(info))
    return info.value


def leading_dimension(matrix: NDArray[Any]) -> int:
    """Numbers from one row of a matrix to the next, or from one column where columns lie whole in memory."""
    return max(matrix.strides) // matrix.itemsize


def _call(library: str, routine: str, arguments: tuple[Argument, ...], *last: Any) -> None:
    dtype = next(argument.dtype for argument in arguments if isinstance(argument, np.ndarray))
    letter, scalar = _SCALARS[dtype]
    pointers: list[Any] = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            pointers.append(argument.ctypes.data)
        elif isinstance(argument, bytes):
            pointers.append(argument)
        else:
            counted = isinstance(argument, (int, np.integer))
            pointers.append(ctypes.byref(ctypes.c_int(int(argument)) if counted else scalar(argument)))
    _function(library, letter + routine, len(arguments) + len(last))(*pointers, *last)


@functools.cache
def _function(library: str, name: str, arguments: int) -> Any:
    from numba.extending import get_cython_function_address

    prototype = ctypes.CFUNCTYPE(None, *([ctypes.c_void_p] * arguments))
    return prototype(get_cython_function_address(library, name))
