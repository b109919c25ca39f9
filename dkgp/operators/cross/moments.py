"""Sums over samples of kernel columns and of their squares, from one look at each entry, which is not kept."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.kernels import Features, TileEvaluator
from dkgp.kernels.tiles.code_cache import cached_njit
from dkgp.kernels.tiles.loops import (
    FLUSH_COLUMNS,
    TILE_COLUMNS,
    accumulate,
    fill_tile,
    pack_columns,
    pack_rows,
    packed_inputs,
    padded_columns,
)
from dkgp.kernels.vector_math import FAST_MATH, prefer_full_vectors
from dkgp.operators.base import FloatArray
from dkgp.operators.cross.columns import plain

__all__ = ["column_moments"]


def column_moments(
    evaluator: TileEvaluator, prototypes: Features, rows: Features, vectors: FloatArray, scale: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """K(Z, X_b) V for V (b, t), and the columns' squares weighted by `scale` (b,): (m, t) and (m,).

    As for `TileEvaluator.matmat`, tile sums run in the evaluator's precision, their total in float64.
    """
    evaluator.count(prototypes.n * rows.n)
    amplitude = evaluator.amplitude
    weights = np.concatenate([vectors * amplitude, scale[:, None] * amplitude**2], axis=1).astype(evaluator.dtype)
    out = np.empty((weights.shape[1], prototypes.values.shape[1]))
    _moments(*plain(prototypes), *plain(rows), rows.n, weights, out, evaluator.program, evaluator.tile_rows)
    return out[:-1, : prototypes.n].T, out[-1, : prototypes.n]


@cached_njit(fastmath=FAST_MATH, nogil=True)
def _moments(  # type: ignore[no-untyped-def]
    A: NDArray[Any], norms_a, B, norms_b, n_columns, weights, out, program, tile_rows
):
    """`out[t, i] = sum_j k(a_i, b_j) weights[j, t]`, for the last t of the squares of k; see `loops.tile_matmat`."""
    prefer_full_vectors()
    padded, targets = A.shape[1], weights.shape[1]
    n_padded = padded_columns(n_columns)
    stack = np.empty((program[0, 1] * TILE_COLUMNS, tile_rows), A.dtype)
    totals = np.empty((targets, tile_rows), A.dtype)
    rows = np.empty(packed_inputs(program) * tile_rows, A.dtype)
    columns = pack_columns(B, norms_b, n_columns, program)
    for start in range(0, padded, tile_rows):
        count = min(tile_rows, padded - start)
        pack_rows(rows, tile_rows, A, norms_a, start, count, program)
        out[:, start : start + count] = 0.0
        for first in range(0, n_columns, FLUSH_COLUMNS):
            last = min(first + FLUSH_COLUMNS, n_columns)
            totals[:, :] = 0.0
            for column in range(first, last, TILE_COLUMNS):
                width = min(TILE_COLUMNS, last - column)
                fill_tile(stack, width, count, rows, columns, n_padded, column, program)
                for t in range(targets - 1):
                    accumulate(totals, t, stack, width, count, weights, column)
                for j in range(width):
                    for i in range(count):
                        stack[j, i] *= stack[j, i]
                accumulate(totals, targets - 1, stack, width, count, weights, column)
            for t in range(targets):
                for i in range(count):
                    out[t, start + i] += totals[t, i]
