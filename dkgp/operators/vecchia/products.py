"""Products with the rows of T and V that a leaf keeps, for one or many vectors.

Few vectors are bound by memory: float32 values are read once for all of them, and multiplied and added in float64 by
loops of dkgp's own. A sum along a row runs in sixteen chains of fused multiply-adds that are added up by halves, a sum
over rows in their order: so its bits depend on neither the processor nor where arrays lie. Many vectors are BLAS's, in
the precision that the leaf was factored in.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dkgp.kernels.compiler import cached_njit, cgutils, intrinsic, ir, types
from dkgp.kernels.tiles.blocks import sum_of_lanes
from dkgp.kernels.vector_math import fma_of, prefer_full_vectors
from dkgp.operators.base import FloatArray
from dkgp.operators.blas import blas
from dkgp.operators.vecchia.leaves import LANES, ROWS, STRIP_ROWS, Leaf

# Up to so many vectors the loops are quicker than BLAS, which has float32 alone to offer at that price.
FEW_VECTORS = 8


def forward(leaf: Leaf, vectors: FloatArray) -> tuple[FloatArray, FloatArray]:
    """q = T_GI r_I and V_G' q, for r_I (m, t): (rows, t) and (R, t)."""
    count = vectors.shape[1]
    if count > FEW_VECTORS:
        image = _many_forward(leaf, vectors).astype(np.float64, copy=False)
        return image, leaf.projected[: leaf.rows, : leaf.rank].astype(np.float64).T @ image
    image = np.empty((count, leaf.padded_rows))
    _forward(leaf.values, leaf.halo, leaf.rows, _padded(vectors, leaf.width), image)
    total = np.zeros((count, leaf.projected.shape[1]))
    _add(leaf.projected, image, total)
    return image[:, : leaf.rows].T, total[:, : leaf.rank].T


def backward(leaf: Leaf, image: FloatArray, weights: FloatArray) -> FloatArray:
    """T_GI' (q - V_G w) for q (rows, t) and w (R, t): (m, t)."""
    count = image.shape[1]
    if count > FEW_VECTORS:
        return _many_backward(leaf, image - leaf.projected[: leaf.rows, : leaf.rank].astype(np.float64) @ weights)
    low_rank = np.empty((count, leaf.padded_rows))
    _times(leaf.projected, _padded(weights, leaf.projected.shape[1]), low_rank)
    out = np.zeros((count, leaf.width))
    _backward(leaf.values, leaf.halo, leaf.rows, _padded(image, leaf.padded_rows) - low_rank, out)
    return out[:, : leaf.halo + leaf.rows].T


def sweep(leaf: Leaf, vectors: FloatArray) -> FloatArray:
    """T_GI' T_GI r_I for r_I (m, t), from one reading of T: (m, t)."""
    count = vectors.shape[1]
    if count > FEW_VECTORS:
        return _many_backward(leaf, _many_forward(leaf, vectors))
    out = np.zeros((count, leaf.width))
    _sweep(leaf.values, leaf.halo, leaf.rows, _padded(vectors, leaf.width), out)
    return out[:, : leaf.halo + leaf.rows].T


def _padded(vectors: FloatArray, width: int) -> FloatArray:
    """Vectors (m, t) row by row, with zeros up to `width`: (t, width)."""
    rows = np.zeros((vectors.shape[1], width))
    rows[:, : len(vectors)] = vectors.T
    return rows


def _many_forward(leaf: Leaf, vectors: FloatArray) -> FloatArray:
    dtype: Any = np.float64 if leaf.double else np.float32
    converted = np.zeros((leaf.width, vectors.shape[1]), dtype)
    converted[: len(vectors)] = vectors
    image = np.empty((leaf.padded_rows, vectors.shape[1]), dtype)
    for rows, strip in leaf.strips():
        np.matmul(strip.astype(dtype, copy=False), converted[: strip.shape[1]], out=image[rows])
    return image[: leaf.rows]


def _many_backward(leaf: Leaf, image: FloatArray) -> FloatArray:
    dtype: Any = np.float64 if leaf.double else np.float32
    count = image.shape[1]
    converted, out = np.zeros((leaf.padded_rows, count), dtype), np.zeros((leaf.width, count), dtype)
    converted[: leaf.rows] = image
    for rows, strip in leaf.strips():
        values = strip.astype(dtype, copy=False)
        height, width = values.shape
        # Added where the sum is, as NumPy's product of a transposed matrix would not.
        blas("gemm", b"N", b"T", count, width, height, 1.0, converted[rows], count, values, width, 1.0, out, count)
    return out[: leaf.halo + leaf.rows]


# ------------------------------------------------------------------------------------------------------ compiled loops


def _singles() -> Any:
    return ir.VectorType(ir.FloatType(), LANES)


def _doubles() -> Any:
    return ir.VectorType(ir.DoubleType(), LANES)


def _data(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    return context.make_array(kind)(context, builder, array).data


def _vector(builder: Any, base: Any, offset: Any, kind: Any, align: int) -> Any:
    return builder.load(builder.bitcast(builder.gep(base, [offset]), kind.as_pointer()), align=align)


@intrinsic
def _dot_rows(typing_context, values, start, width, vectors, vector, sums):  # type: ignore[no-untyped-def]
    """`sums[k] = sum_j values[start + k width + j] vectors[vector + j]` for `ROWS` rows of a width of whole lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        rows = builder.gep(_data(context, builder, kinds[0], arguments[0]), [arguments[1]])
        width = arguments[2]
        other = builder.gep(_data(context, builder, kinds[3], arguments[3]), [arguments[4]])
        out = _data(context, builder, kinds[5], arguments[5])
        index = ir.IntType(64)
        totals = [cgutils.alloca_once(builder, _doubles()) for _ in range(ROWS)]
        for total in totals:
            builder.store(ir.Constant(_doubles(), [0.0] * LANES), total)
        with cgutils.for_range_slice(builder, index(0), width, index(LANES)) as (place, _):
            factor = _vector(builder, other, place, _doubles(), 8)
            for k, total in enumerate(totals):
                at = builder.add(builder.mul(width, index(k)), place)
                row = builder.fpext(_vector(builder, rows, at, _singles(), 4), _doubles())
                builder.store(fma_of(builder, row, factor, builder.load(total)), total)
        for k, total in enumerate(totals):
            builder.store(sum_of_lanes(builder, builder.load(total)), builder.gep(out, [index(k)]))
        return context.get_dummy_value()

    return types.void(values, types.intp, types.intp, vectors, types.intp, sums), generate


@intrinsic
def _add_rows(typing_context, values, start, width, factors, factor, out, place):  # type: ignore[no-untyped-def]
    """`out[place + j] += sum_k factors[factor + k] values[start + k width + j]`, of `ROWS` rows in their order."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        rows = builder.gep(_data(context, builder, kinds[0], arguments[0]), [arguments[1]])
        width = arguments[2]
        weights = builder.gep(_data(context, builder, kinds[3], arguments[3]), [arguments[4]])
        target = builder.gep(_data(context, builder, kinds[5], arguments[5]), [arguments[6]])
        index = ir.IntType(64)
        spread = [_broadcast(builder, builder.load(builder.gep(weights, [index(k)]))) for k in range(ROWS)]
        with cgutils.for_range_slice(builder, index(0), width, index(LANES)) as (here, _):
            total = _vector(builder, target, here, _doubles(), 8)
            for k, weight in enumerate(spread):
                at = builder.add(builder.mul(width, index(k)), here)
                row = builder.fpext(_vector(builder, rows, at, _singles(), 4), _doubles())
                total = fma_of(builder, row, weight, total)
            pointer = builder.bitcast(builder.gep(target, [here]), _doubles().as_pointer())
            builder.store(total, pointer, align=8)
        return context.get_dummy_value()

    return types.void(values, types.intp, types.intp, factors, types.intp, out, types.intp), generate


def _broadcast(builder: Any, value: Any) -> Any:
    first = builder.insert_element(ir.Constant(_doubles(), ir.Undefined), value, ir.IntType(32)(0))
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(first, ir.Constant(_doubles(), ir.Undefined), lanes)


@cached_njit(nogil=True)
def _forward(values: Any, halo: int, rows: int, vectors: Any, image: Any) -> None:
    """`image[t] = T vectors[t]`."""
    prefer_full_vectors()
    count, stride = vectors.shape
    flat, sums = vectors.reshape(-1), np.empty(ROWS)
    place = 0
    for first in range(0, rows, STRIP_ROWS):
        last = min(first + STRIP_ROWS, rows)
        width = -(-(halo + last) // LANES) * LANES
        for row in range(first, last, ROWS):
            for t in range(count):
                _dot_rows(values, place, width, flat, t * stride, sums)
                for k in range(ROWS):
                    image[t, row + k] = sums[k]
            place += ROWS * width


@cached_njit(nogil=True)
def _backward(values: Any, halo: int, rows: int, image: Any, out: Any) -> None:
    """`out[t] += T' image[t]`."""
    prefer_full_vectors()
    count, height = image.shape
    stride = out.shape[1]
    weights, target = image.reshape(-1), out.reshape(-1)
    place = 0
    for first in range(0, rows, STRIP_ROWS):
        last = min(first + STRIP_ROWS, rows)
        width = -(-(halo + last) // LANES) * LANES
        for row in range(first, last, ROWS):
            for t in range(count):
                _add_rows(values, place, width, weights, t * height + row, target, t * stride)
            place += ROWS * width


@cached_njit(nogil=True)
def _sweep(values: Any, halo: int, rows: int, vectors: Any, out: Any) -> None:
    """`out[t] += T' T vectors[t]`, a few rows at a time while they are in the core's cache."""
    prefer_full_vectors()
    count, stride = vectors.shape
    flat, target, sums = vectors.reshape(-1), out.reshape(-1), np.empty(ROWS)
    place = 0
    for first in range(0, rows, STRIP_ROWS):
        last = min(first + STRIP_ROWS, rows)
        width = -(-(halo + last) // LANES) * LANES
        for _ in range(first, last, ROWS):
            for t in range(count):
                _dot_rows(values, place, width, flat, t * stride, sums)
                _add_rows(values, place, width, sums, 0, target, t * stride)
            place += ROWS * width


@cached_njit(nogil=True)
def _times(matrix: Any, vectors: Any, out: Any) -> None:
    """`out[t] = matrix vectors[t]`."""
    prefer_full_vectors()
    rows, width = matrix.shape
    values, flat, sums = matrix.reshape(-1), vectors.reshape(-1), np.empty(ROWS)
    for row in range(0, rows, ROWS):
        for t in range(len(vectors)):
            _dot_rows(values, row * width, width, flat, t * width, sums)
            for k in range(ROWS):
                out[t, row + k] = sums[k]


@cached_njit(nogil=True)
def _add(matrix: Any, weights: Any, out: Any) -> None:
    """`out[t] += matrix' weights[t]`."""
    prefer_full_vectors()
    rows, width = matrix.shape
    values, flat, target = matrix.reshape(-1), weights.reshape(-1), out.reshape(-1)
    for row in range(0, rows, ROWS):
        for t in range(len(weights)):
            _add_rows(values, row * width, width, flat, t * rows + row, target, t * width)
