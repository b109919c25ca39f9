"""The compiled inner loops: distance stage, profile stage, product stage over one cache-sized tile.

A tile holds `TILE_COLUMNS` kernel columns by up to `tile_rows` rows and never leaves the core's cache. The three
stages run over it one after the other, each a plain loop over contiguous rows that the compiler turns into full-width
vector code. Measured against a single fused loop this costs a few percent and buys that a new kernel is one new
branch in `apply_profile`.

Rows are the vector dimension and each row's value is a sum over the columns in the order given. Row counts are padded
to whole vectors (`LANES`), so a row is never computed by a scalar remainder loop: its value does not depend on which
rows it shares a tile with. The distributed engine's bit-reproducibility rests on this.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

__all__ = [
    "FAST_MATH",
    "LANES",
    "PROFILE_EXP2",
    "TILE_COLUMNS",
    "gather_columns",
    "profile_value",
    "squared_norms",
    "tile_into",
    "tile_matmat",
    "tile_pair",
]

LANES = 16
TILE_COLUMNS = 16
FLUSH_COLUMNS = 128
PROFILE_EXP2 = 0

# No reassociation: the order of a sum is part of the result's definition, and the rounding trick in exp2 must survive.
FAST_MATH = {"contract", "nsz", "nnan", "ninf", "arcp"}


@intrinsic
def prefer_full_vectors(typing_context: Any) -> Any:
    """Ask LLVM for 512-bit vectors in the calling function; it prefers 256 on most CPUs, which costs a quarter here.

    A hint without effect on machines that have no such registers. Functions that are inlined need it too: loops are
    turned into vector code before their callers see them.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def shift_exponent(typing_context: Any, mantissa: Any, shifted: Any) -> Any:
    """`mantissa * 2**k`, where `shifted` is k + 1.5 * 2**(mantissa bits), so that k sits in its low bits."""
    bits = 32 if mantissa == types.float32 else 64
    exponent_position = 23 if bits == 32 else 52

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        integer = ir.IntType(bits)
        value = builder.bitcast(arguments[0], integer)
        power = builder.bitcast(arguments[1], integer)
        moved = builder.add(value, builder.shl(power, ir.Constant(integer, exponent_position)))
        return builder.bitcast(moved, arguments[0].type)

    return mantissa(mantissa, shifted), generate


def exp2(power: Any) -> Any:
    """2**power for power <= 0, for one element of a vector loop; a NumPy stand-in for the two compiled versions."""
    return np.exp2(power)


_F32 = np.float32
_ROUND_F32 = _F32(1.5 * 2**23)
_ROUND_F64 = 1.5 * 2.0**52
# Entries no smaller than this: times a weight, a smaller one would be denormal, which costs tens of normal ones. With
# short length scales most entries are this small.
_FLOOR_F32 = _F32(-96.0)
_FLOOR_F64 = -960.0
# Minimax fit to 2**f on [-1/2, 1/2] in relative error (8.1e-8) with constant term 1, so that k(x, x) is exactly 1.
_C32 = tuple(
    _F32(c)
    for c in (
        0.001327463336532476,
        0.009671961679595494,
        0.05550678368720907,
        0.2402223532236195,
        0.693147061560251,
        1.0,
    )
)
_P5, _P4, _P3, _P2, _P1, _P0 = _C32


def _exp2_float32(power: Any) -> Any:
    bounded = max(power, _FLOOR_F32)
    shifted = bounded + _ROUND_F32
    f = bounded - (shifted - _ROUND_F32)
    value = ((((_P5 * f + _P4) * f + _P3) * f + _P2) * f + _P1) * f + _P0
    return shift_exponent(value, shifted)


# Minimax fit of degree 11 to 2**f on [-1/2, 1/2]: 3.2e-18 in relative error, the constant term exactly 1.
_T0, _T1, _T2, _T3, _T4, _T5 = (
    1.0,
    0.69314718055994530925,
    0.24022650695910159567,
    0.055504108664821627039,
    0.0096181291075872566681,
    0.0013333558146406470697,
)
_T6, _T7, _T8, _T9, _T10, _T11 = (
    0.00015403530463724354209,
    1.5252733841556772589e-05,
    1.3215432535912376166e-06,
    1.0178057087733941105e-07,
    7.0741942972285210056e-09,
    4.455817908336064493e-10,
)


def _exp2_float64(power: Any) -> Any:
    bounded = max(power, _FLOOR_F64)
    shifted = bounded + _ROUND_F64
    f = bounded - (shifted - _ROUND_F64)
    value = ((((_T11 * f + _T10) * f + _T9) * f + _T8) * f + _T7) * f + _T6
    value = (((((value * f + _T5) * f + _T4) * f + _T3) * f + _T2) * f + _T1) * f + _T0
    return shift_exponent(value, shifted)


@overload(exp2, inline="always")
def _exp2_overload(power: Any) -> Any:
    return _exp2_float32 if power == types.float32 else _exp2_float64


# The stages index whole arrays instead of slicing rows: a slice costs reference counting, which at these loop lengths
# shows.


@njit(fastmath=FAST_MATH, nogil=True, forceinline=True)
def subtract_squares(tile, width, count, rows, columns, first_column):  # type: ignore[no-untyped-def]
    """Distance stage by direct differences: `tile[j, i] = -|a_i - b_j|^2`, four features at a time."""
    prefer_full_vectors()
    d = rows.shape[0]
    for j in range(width):
        c = first_column + j
        f = 0
        if d >= 4:
            b0, b1, b2, b3 = columns[c, 0], columns[c, 1], columns[c, 2], columns[c, 3]
            for i in range(count):
                u0, u1, u2, u3 = rows[0, i] - b0, rows[1, i] - b1, rows[2, i] - b2, rows[3, i] - b3
                tile[j, i] = -(u0 * u0) - u1 * u1 - u2 * u2 - u3 * u3
            f = 4
        elif d >= 2:
            b0, b1 = columns[c, 0], columns[c, 1]
            for i in range(count):
                u0, u1 = rows[0, i] - b0, rows[1, i] - b1
                tile[j, i] = -(u0 * u0) - u1 * u1
            f = 2
        else:
            b0 = columns[c, 0]
            for i in range(count):
                u0 = rows[0, i] - b0
                tile[j, i] = -(u0 * u0)
            f = 1
        while f + 4 <= d:
            b0, b1, b2, b3 = columns[c, f], columns[c, f + 1], columns[c, f + 2], columns[c, f + 3]
            for i in range(count):
                u0, u1, u2, u3 = rows[f, i] - b0, rows[f + 1, i] - b1, rows[f + 2, i] - b2, rows[f + 3, i] - b3
                tile[j, i] = tile[j, i] - u0 * u0 - u1 * u1 - u2 * u2 - u3 * u3
            f += 4
        if f + 2 <= d:
            b0, b1 = columns[c, f], columns[c, f + 1]
            for i in range(count):
                u0, u1 = rows[f, i] - b0, rows[f + 1, i] - b1
                tile[j, i] = tile[j, i] - u0 * u0 - u1 * u1
            f += 2
        if f < d:
            b0 = columns[c, f]
            for i in range(count):
                u0 = rows[f, i] - b0
                tile[j, i] = tile[j, i] - u0 * u0


@njit(fastmath=FAST_MATH, nogil=True, forceinline=True)
def fill_tile(tile, width, count, rows, columns, first_column, expanded, profile):  # type: ignore[no-untyped-def]
    """Distance and profile stages: `tile[j, i] = k(a_i, b_j)` of unit amplitude.

    The expanded form is one BLAS product of the operands that `pack_rows` and `pack_columns` extended by the squared
    norms. It always has the same shape, whatever part of the tile is wanted: BLAS may sum in another order for another.
    """
    prefer_full_vectors()
    if expanded:
        np.dot(columns[first_column : first_column + TILE_COLUMNS], rows, tile)
    else:
        subtract_squares(tile, width, count, rows, columns, first_column)
    apply_profile(tile, width, count, profile)


@njit(nogil=True, forceinline=True)
def pack_columns(B, norms_b, n_columns, expanded):  # type: ignore[no-untyped-def]
    """Columns of K as rows of one array: `b`, or `(2 b, -|b|^2, -1)` for the expanded form; padded with zeros."""
    d = B.shape[0]
    columns = np.zeros((-(-n_columns // TILE_COLUMNS) * TILE_COLUMNS, d + 2 if expanded else d), B.dtype)
    for f in range(d):
        for j in range(n_columns):
            columns[j, f] = B[f, j] + B[f, j] if expanded else B[f, j]
    if expanded:
        for j in range(n_columns):
            columns[j, d] = -norms_b[j]
            columns[j, d + 1] = -1.0
    return columns


@njit(fastmath=FAST_MATH, nogil=True, forceinline=True)
def apply_profile(tile, width, count, profile):  # type: ignore[no-untyped-def]
    """Profile stage, in place: negative squared distance -> kernel value of unit amplitude; a branch a profile."""
    prefer_full_vectors()
    if profile == PROFILE_EXP2:
        for j in range(width):
            for i in range(count):
                tile[j, i] = exp2(tile[j, i])


@njit(nogil=True, cache=True)
def profile_value(squared_distance, profile):  # type: ignore[no-untyped-def]
    """Kernel value of unit amplitude at one squared distance of scaled inputs; what `apply_profile` does to many."""
    if profile == PROFILE_EXP2:
        return 2.0 ** (-squared_distance)
    return np.nan


@njit(fastmath=FAST_MATH, nogil=True, forceinline=True)
def accumulate(totals, target, tile, width, count, weights, first_column):  # type: ignore[no-untyped-def]
    """Product stage: `totals[target] += tile' weights[first_column:, target]`, by four columns, in their order."""
    prefer_full_vectors()
    j = 0
    while j + 4 <= width:
        c = first_column + j
        w0, w1, w2, w3 = weights[c, target], weights[c + 1, target], weights[c + 2, target], weights[c + 3, target]
        for i in range(count):
            totals[target, i] = (
                totals[target, i] + tile[j, i] * w0 + tile[j + 1, i] * w1 + tile[j + 2, i] * w2 + tile[j + 3, i] * w3
            )
        j += 4
    while j < width:
        w0 = weights[first_column + j, target]
        for i in range(count):
            totals[target, i] = totals[target, i] + tile[j, i] * w0
        j += 1


@njit(nogil=True, forceinline=True)
def empty_rows(A, tile_rows, expanded):  # type: ignore[no-untyped-def]
    """Room for a tile's rows, feature-major: `a`, or `(a, 1, |a|^2)` for the expanded form."""
    d = A.shape[0]
    rows = np.zeros((d + 2 if expanded else d, tile_rows), A.dtype)
    if expanded:
        rows[d] = 1.0
    return rows


@njit(fastmath=FAST_MATH, nogil=True, forceinline=True)
def pack_rows(rows, A, norms_a, start, count, expanded):  # type: ignore[no-untyped-def]
    """Copy a tile's rows next to each other: features a power of two apart in memory would evict one another."""
    prefer_full_vectors()
    d = A.shape[0]
    for f in range(d):
        for i in range(count):
            rows[f, i] = A[f, start + i]
    if expanded:
        for i in range(count):
            rows[d + 1, i] = norms_a[start + i]


@njit(fastmath=FAST_MATH, nogil=True, cache=True)
def tile_matmat(A, norms_a, B, norms_b, n_columns, weights, out, profile, expanded, tile_rows):  # type: ignore[no-untyped-def]
    """`out[t, i] = sum_j k(a_i, b_j) weights[j, t]` for all padded rows i of A and the first `n_columns` rows of B.

    Sums run in the tile's precision over `FLUSH_COLUMNS` columns and are then added to the float64 result, so the
    rounding error does not grow with the number of columns.
    """
    prefer_full_vectors()
    padded, targets = A.shape[1], weights.shape[1]
    tile = np.empty((TILE_COLUMNS, tile_rows), A.dtype)
    totals = np.empty((targets, tile_rows), A.dtype)
    rows = empty_rows(A, tile_rows, expanded)
    columns = pack_columns(B, norms_b, n_columns, expanded)
    for start in range(0, padded, tile_rows):
        count = min(tile_rows, padded - start)
        pack_rows(rows, A, norms_a, start, count, expanded)
        for t in range(targets):
            out[t, start : start + count] = 0.0
        for first in range(0, n_columns, FLUSH_COLUMNS):
            last = min(first + FLUSH_COLUMNS, n_columns)
            totals[:, :] = 0.0
            for column in range(first, last, TILE_COLUMNS):
                width = min(TILE_COLUMNS, last - column)
                fill_tile(tile, width, count, rows, columns, column, expanded, profile)
                for t in range(targets):
                    accumulate(totals, t, tile, width, count, weights, column)
            for t in range(targets):
                for i in range(count):
                    out[t, start + i] += totals[t, i]


@njit(fastmath=FAST_MATH, nogil=True, cache=True)
def tile_pair(  # type: ignore[no-untyped-def]
    A, norms_a, B, norms_b, n_columns, weights_b, weights_a, out_a, out_b, profile, expanded, tile_rows
):
    """Both products of one block of a symmetric matrix from one evaluation of its entries.

    `out_a[t, i] = sum_j k(a_i, b_j) weights_b[j, t]` and `out_b[t, j] = sum_i k(a_i, b_j) weights_a[t, i]`. Weights of
    padded rows are zero. Sums run over tiles in the tile's precision and between tiles in float64.
    """
    prefer_full_vectors()
    padded, targets = A.shape[1], weights_b.shape[1]
    tile = np.zeros((TILE_COLUMNS, tile_rows), A.dtype)
    local_weights = np.zeros((targets, tile_rows), A.dtype)
    totals = np.empty((targets, tile_rows), A.dtype)
    rows = empty_rows(A, tile_rows, expanded)
    columns = pack_columns(B, norms_b, n_columns, expanded)
    out_b[:, :] = 0.0
    for start in range(0, padded, tile_rows):
        count = min(tile_rows, padded - start)
        pack_rows(rows, A, norms_a, start, count, expanded)
        for t in range(targets):
            out_a[t, start : start + count] = 0.0
            local_weights[t, :count] = weights_a[t, start : start + count]
            local_weights[t, count:] = 0.0
        for first in range(0, n_columns, FLUSH_COLUMNS):
            last = min(first + FLUSH_COLUMNS, n_columns)
            totals[:, :] = 0.0
            for column in range(first, last, TILE_COLUMNS):
                width = min(TILE_COLUMNS, last - column)
                fill_tile(tile, width, count, rows, columns, column, expanded, profile)
                for t in range(targets):
                    accumulate(totals, t, tile, width, count, weights_b, column)
                    # A sum along vectors, by BLAS: left to the compiler, its order would depend on where arrays lie.
                    sums = np.dot(tile, local_weights[t])
                    for j in range(width):
                        out_b[t, column + j] += sums[j]
            for t in range(targets):
                for i in range(count):
                    out_a[t, start + i] += totals[t, i]


@njit(fastmath=FAST_MATH, nogil=True, cache=True)
def tile_into(A, norms_a, B, norms_b, n_columns, out, profile, expanded, tile_rows, amplitude):  # type: ignore[no-untyped-def]
    """`out[j, i] = amplitude k(a_i, b_j)`: the kernel itself, for all padded rows i of A and `n_columns` rows of B."""
    prefer_full_vectors()
    padded = A.shape[1]
    tile = np.empty((TILE_COLUMNS, tile_rows), A.dtype)
    rows = empty_rows(A, tile_rows, expanded)
    columns = pack_columns(B, norms_b, n_columns, expanded)
    for start in range(0, padded, tile_rows):
        count = min(tile_rows, padded - start)
        pack_rows(rows, A, norms_a, start, count, expanded)
        for column in range(0, n_columns, TILE_COLUMNS):
            width = min(TILE_COLUMNS, n_columns - column)
            fill_tile(tile, width, count, rows, columns, column, expanded, profile)
            for j in range(width):
                for i in range(count):
                    out[column + j, start + i] = amplitude * tile[j, i]


@njit(nogil=True, cache=True)
def squared_norms(values, out):  # type: ignore[no-untyped-def]
    """`out[i] = sum_l values[l, i]^2`, in feature order, so that a row's norm is the same wherever it stands."""
    out[:] = 0.0
    for f in range(values.shape[0]):
        for i in range(values.shape[1]):
            out[i] += values[f, i] * values[f, i]


@njit(nogil=True, cache=True)
def gather_columns(A, norms_a, indices, out, norms_out):  # type: ignore[no-untyped-def]
    """Copy the features of chosen rows (columns of the feature-major `A`) and pad with the last one."""
    count = indices.shape[0]
    for feature in range(A.shape[0]):
        source, target = A[feature], out[feature]
        for i in range(count):
            target[i] = source[indices[i]]
        for i in range(count, out.shape[1]):
            target[i] = target[count - 1]
    for i in range(count):
        norms_out[i] = norms_a[indices[i]]
    for i in range(count, out.shape[1]):
        norms_out[i] = norms_out[count - 1]
