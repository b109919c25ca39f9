"""Slopes of a sparse model's evidence on workers: W_nm contracted with dK_nm, a run of samples at a time.

The weights are of rank m and are made where they are used: with f = L^-1 k_m(x), C C' = I + F'DF, alpha = D (y - F z),

    W_nm = [alpha z' - p D F (C C')^-1 - diag(g) F] L^-1,

g = -p D of the variational bound, the diagonal of alpha alpha' - p (Q + S)^-1 of FITC. Each row begins with a
triangular solve: an explicit L^-T .. L^-1 against K_nm would lose the digits that K_mm's condition takes once more. Of
the bound the rest is one product, p D F (I - (C C')^-1) L^-1; where every row has its own g, three more solves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.kernels import Kernel, count_entries
from dkgp.operators.base import FloatArray
from dkgp.operators.blas import blas
from dkgp.operators.cross.tasks import Prototypes, Run, piece_rows
from dkgp.operators.exact_sums import RunSums

# Rows and columns of a tile of derivatives, as in `dkgp.operators.contract_tasks`; arrays of it that are there at once.
TILE_ROWS, ARRAYS_PER_TILE = 256, 12
# Derivatives of k(x, x) come from those of pairs of samples: with this many at a time they cost little beside m.
PAIRED_ROWS = 16


@dataclass(frozen=True)
class FittedWeights:
    """A fit, as its slopes are found with."""

    # (m, p): z, and beta = L^-T z
    whitened: FloatArray
    weights: FloatArray
    normal: FloatArray  # (m, m), Fortran order: FITC's C; L^-T (I - (C C')^-1) of the bound
    fitc: bool


def slopes_bytes(m: int, threads: int) -> int:
    """Bytes that tasks take beside those of a whitened Gram: C, and pieces and tiles of each thread."""
    return threads * (2 * 8 * m * m + 3 * 8 * m * piece_rows(m) + ARRAYS_PER_TILE * 8 * TILE_ROWS * TILE_ROWS)


@needs_one_arithmetic
def slopes_task(prototypes: Prototypes, fit: FittedWeights, runs: list[Run]) -> list[RunSums]:
    """Sums over each run: W dK (q,), g dk(x, x) / 2 (q,), |alpha|^2; of FITC g, and F' diag(g) F.

    A run has the targets, `right`, and the `variances` S, FITC's terms included. The first two are with respect to the
    logarithms of the kernel's parameters, the second is zero where the kernel is stationary.
    """
    return [_slopes(prototypes, fit, run) for run in runs]


def _slopes(prototypes: Prototypes, fit: FittedWeights, run: Run) -> RunSums:
    context, m, p = prototypes.context, prototypes.count, fit.whitened.shape[1]
    evaluator, triangle, kernel = context.evaluator("double"), prototypes.triangle(), context.kernel
    inputs = np.concatenate([context.block_rows_cached(block).values for block in run.blocks])
    cross, prior = np.zeros(len(kernel.parameters())), np.zeros(len(kernel.parameters()))
    squares, total = 0.0, 0.0
    weighted = np.zeros((m, m) if fit.fitc else (0, 0), order="F")
    for rows, where in run.pieces(context, "double", piece_rows(m)):
        d = 1.0 / run.rows["variances"][where]
        f = np.asfortranarray(evaluator.tile(triangle.features, rows))
        _solve(triangle.lower, f)
        alpha = d[:, None] * (run.rows["right"][where] - f.T @ fit.whitened)
        length = np.einsum("it,it->i", alpha, alpha)
        squares += float(length.sum())
        if fit.fitc:
            solved = f.copy(order="F")
            _solve(fit.normal, solved)
            g = length - p * d * (1.0 - d * np.einsum("mi,mi->i", solved, solved))
            weighted += (f * g) @ f.T
            total += float(g.sum())
            _solve(fit.normal, solved, transposed=True)
            solved *= -p * d
            solved -= f * g
            _solve(triangle.lower, solved, transposed=True)
        else:
            g = -p * d
            f *= p * d
            solved = np.empty((m, rows.n), order="F")
            blas("gemm", b"N", b"N", m, rows.n, m, 1.0, fit.normal, m, f, m, 0.0, solved, m)
        solved += fit.weights @ alpha.T
        cross += contract_tiles(kernel, inputs[where], prototypes.inputs, solved)
        if not kernel.stationary:
            prior += prior_slopes(kernel, inputs[where], 0.5 * g)
    return RunSums((cross, prior, np.array([squares, total]), weighted))


def _solve(lower: FloatArray, right: FloatArray, transposed: bool = False) -> None:
    """L^-1 B, or L^-T B, in the place of B (m, b), both in Fortran order."""
    m, count = right.shape
    blas("trsm", b"L", b"L", b"T" if transposed else b"N", b"N", m, count, 1.0, lower, m, right, m)


def contract_tiles(kernel: Kernel, rows: FloatArray, prototypes: FloatArray, weights: FloatArray) -> FloatArray:
    """sum_ij W_ij dk(x_i, z_j), W' = `weights` (m, b), tile by tile."""
    total = np.zeros(len(kernel.parameters()))
    for a in range(0, len(rows), TILE_ROWS):
        for b in range(0, len(prototypes), TILE_ROWS):
            row_tile, column_tile = rows[a : a + TILE_ROWS], prototypes[b : b + TILE_ROWS]
            _, pull = kernel.linearise(row_tile, column_tile)
            count_entries(len(row_tile) * len(column_tile))
            total += pull(np.ascontiguousarray(weights[b : b + TILE_ROWS, a : a + TILE_ROWS].T))
    return total


def prior_slopes(kernel: Kernel, rows: FloatArray, weights: FloatArray) -> FloatArray:
    """sum_i w_i dk(x_i, x_i) with respect to the logarithms of the kernel's parameters: (q,)."""
    if kernel.stationary:  # the same everywhere
        return np.asarray(kernel.contract(rows[:1], rows[:1], np.array([[weights.sum()]])))
    total = np.zeros(len(kernel.parameters()))
    for start in range(0, len(rows), PAIRED_ROWS):
        piece = rows[start : start + PAIRED_ROWS]
        count_entries(len(piece) ** 2)
        total += kernel.linearise(piece, piece)[1](np.diag(weights[start : start + PAIRED_ROWS]))
    return total
