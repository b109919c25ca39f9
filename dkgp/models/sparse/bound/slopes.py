"""Slopes of a sparse model's evidence on workers: W_nm contracted with dK_nm, a run of samples at a time.

The weights are of rank m and are made where they are used: with f = L^-1 k_m(x), C C' = I + F'DF, alpha = D (y - F z),

    W_nm = [alpha z' - p D F (C C')^-1 - diag(g) F] L^-1,

g = -p D of the variational bound, the diagonal of alpha alpha' - p (Q + S)^-1 of FITC. Triangular solves end each row,
as they begin it: an explicit L^-T .. L^-1 would lose the digits that K_mm's condition takes once more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.kernels import Kernel, count_entries
from dkgp.operators.base import FloatArray
from dkgp.operators.blas import blas
from dkgp.operators.cross.runs import Run, RunSums, piece_rows
from dkgp.operators.cross.tasks import Prototypes

__all__ = ["FittedWeights", "prior_slopes", "slopes_bytes", "slopes_task"]

# Rows and columns of a tile of derivatives, as in `dkgp.operators.contract_tasks`; arrays of it that are there at once.
TILE_ROWS, ARRAYS_PER_TILE = 256, 12
# Of k(x, x) no derivatives are known but those of pairs: so many samples at a time cost little beside m.
PAIRED_ROWS = 16


@dataclass(frozen=True)
class FittedWeights:
    """A fit, as its slopes are found with.

    Attributes
    ----------
    whitened : (m, p) float64
        z.
    normal : (m, m) float64, Fortran order
        C.
    fitc : bool
    """

    whitened: FloatArray
    normal: FloatArray
    fitc: bool


def slopes_bytes(m: int, threads: int) -> int:
    """Bytes that tasks take beside those of a whitened Gram: C, and pieces and tiles of each thread."""
    return threads * (2 * 8 * m * m + 3 * 8 * m * piece_rows(m) + ARRAYS_PER_TILE * 8 * TILE_ROWS * TILE_ROWS)


@needs_one_arithmetic
def slopes_task(prototypes: Prototypes, fit: FittedWeights, runs: list[Run]) -> list[RunSums]:
    """Sums over each run: W dK (q,), g dk(x, x) / 2 (q,), and diag(alpha alpha' - p (Q + S)^-1); F' diag(g) F of FITC.

    A run has the targets, `right`, and the `variances` S, FITC's terms included. The first two are with respect to the
    logarithms of the kernel's parameters, the second is zero where the kernel is stationary.
    """
    return [_slopes(prototypes, fit, run) for run in runs]


def _slopes(prototypes: Prototypes, fit: FittedWeights, run: Run) -> RunSums:
    context, m, p = prototypes.context, prototypes.count, fit.whitened.shape[1]
    evaluator, triangle, kernel = context.evaluator("double"), prototypes.triangle(), context.kernel
    inputs = np.concatenate([context.block_rows_cached(block).values for block in run.blocks])
    cross, own, spread = np.zeros(len(kernel.parameters())), np.zeros(len(kernel.parameters())), 0.0
    weighted = np.zeros((m, m) if fit.fitc else (0, 0), order="F")
    solve = ("trsm", b"L", b"L")
    for rows, where in run.pieces(context, "double", piece_rows(m)):
        count, d = rows.n, 1.0 / run.rows["variances"][where]
        f = np.asfortranarray(evaluator.tile(triangle.features, rows))
        blas(*solve, b"N", b"N", m, count, 1.0, triangle.lower, m, f, m)
        solved = f.copy(order="F")
        blas(*solve, b"N", b"N", m, count, 1.0, fit.normal, m, solved, m)
        explained = np.einsum("mi,mi->i", solved, solved)
        blas(*solve, b"T", b"N", m, count, 1.0, fit.normal, m, solved, m)
        alpha = d[:, None] * (run.rows["right"][where] - f.T @ fit.whitened)
        diagonal = np.einsum("it,it->i", alpha, alpha) - p * d * (1.0 - d * explained)
        spread += float(diagonal.sum())
        g = diagonal if fit.fitc else -p * d
        if fit.fitc:
            weighted += (f * g) @ f.T
        solved *= -p * d
        solved -= f * g
        solved += fit.whitened @ alpha.T
        blas(*solve, b"T", b"N", m, count, 1.0, triangle.lower, m, solved, m)
        cross += _contract(kernel, inputs[where], prototypes.inputs, solved)
        if not kernel.stationary:
            own += prior_slopes(kernel, inputs[where], 0.5 * g)
    return RunSums((cross, own, np.array([spread]), weighted))


def _contract(kernel: Kernel, rows: FloatArray, prototypes: FloatArray, weights: FloatArray) -> FloatArray:
    """sum_ij W_ij dk(x_i, z_j), W' = `weights` (m, b), tile by tile."""
    total = np.zeros(len(kernel.parameters()))
    for a in range(0, len(rows), TILE_ROWS):
        for b in range(0, len(prototypes), TILE_ROWS):
            some, others = rows[a : a + TILE_ROWS], prototypes[b : b + TILE_ROWS]
            _, pull = kernel.linearise(some, others)
            count_entries(len(some) * len(others))
            total += pull(np.ascontiguousarray(weights[b : b + TILE_ROWS, a : a + TILE_ROWS].T))
    return total


def prior_slopes(kernel: Kernel, rows: FloatArray, weights: FloatArray) -> FloatArray:
    """sum_i w_i dk(x_i, x_i) with respect to the logarithms of the kernel's parameters: (q,)."""
    if kernel.stationary:  # the same everywhere
        return np.asarray(kernel.contract(rows[:1], rows[:1], np.array([[weights.sum()]])))
    total = np.zeros(len(kernel.parameters()))
    for start in range(0, len(rows), PAIRED_ROWS):
        some = rows[start : start + PAIRED_ROWS]
        count_entries(len(some) ** 2)
        total += kernel.linearise(some, some)[1](np.diag(weights[start : start + PAIRED_ROWS]))
    return total
