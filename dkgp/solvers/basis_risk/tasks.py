"""Tasks on runs of blocks: a loss, its slopes and curvatures at the samples, and their sums, of one look at each entry.

Values f = K_nm W + b, losses, K_mn u for the slopes u_i = w_i l'(y_i, f_i), and on request F' W F for curvatures
W_i = w_i l''(y_i, f_i), F = K_nm L^-T: Grams of one pass share the entries and the triangular solve.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.operators.base import FloatArray
from dkgp.operators.blas import blas
from dkgp.operators.cross.columns import columns_between, scratch
from dkgp.operators.cross.runs import Run, piece_rows
from dkgp.operators.cross.tasks import Prototypes
from dkgp.operators.exact_sums import RunSums, Triangles
from dkgp.solvers.losses import Loss

# Which Grams are summed: none; one that serves all columns, whose curvatures are alike; one of each column; or of a
# coupled loss one of each pair of columns.
Curvatures = Literal["none", "shared", "columns", "blocks"]


def block_pairs(columns: int) -> list[tuple[int, int]]:
    """Pairs (c, c'), c' <= c, of columns whose Grams make up a coupled loss's Hessian."""
    return [(c, other) for c in range(columns) for other in range(c + 1)]


@needs_one_arithmetic
def basis_risk_task(
    prototypes: Prototypes,
    loss: Loss,
    weights: FloatArray,
    intercept: FloatArray,
    curvatures: Curvatures,
    runs: list[Run],
) -> list[RunSums]:
    """Sums over each run, and f at its samples (rows, t).

    Of the run's `targets` (rows, t) and `weights` (rows,), ones without: K(Z, X_b) u (m, t); losses (p,); u (t,); Grams
    F_b' W F_b (g, m, m); F_b' W 1 (g, m); 1' W 1 (g,); and the sum
    of the squares of F_b (1,), zero without Grams.
    """
    return [_sums(prototypes, loss, weights, intercept, curvatures, run) for run in runs]


def _sums(
    prototypes: Prototypes, loss: Loss, weights: FloatArray, intercept: FloatArray, curvatures: Curvatures, run: Run
) -> RunSums:
    context, (m, t) = prototypes.context, weights.shape
    evaluator = context.evaluator("double")
    triangle = None if curvatures == "none" else prototypes.triangle()
    features = prototypes.features() if triangle is None else triangle.features
    count = {"none": 0, "shared": 1, "columns": t, "blocks": t * (t + 1) // 2}[curvatures]
    projected, slopes = np.zeros((m, t)), np.zeros(t)
    losses = np.zeros(1 if loss.coupled else t)
    grams, borders, corners = np.zeros((count, m, m)), np.zeros((count, m)), np.zeros(count)
    explained, values = np.zeros(1), np.empty((run.samples(context), t))
    for rows, where in run.pieces(context, "double", piece_rows(m)):
        kernel = columns_between(evaluator, features, rows, "columns")
        f = kernel @ weights + intercept
        values[where], y = f, run.rows["targets"][where]
        counts = run.rows["weights"][where, None] if "weights" in run.rows else None
        u, lost = loss.slope(y, f), loss.value(y, f)
        if counts is not None:
            u, lost = counts * u, counts * lost
        projected += kernel.T @ u
        slopes += u.sum(axis=0)
        losses += lost.sum(axis=0)
        if triangle is None:
            continue
        curved = _curved(loss, y, f, curvatures)
        if counts is not None:
            curved = counts * curved
        stride = kernel.strides[0] // kernel.itemsize
        blas("trsm", b"L", b"L", b"N", b"N", m, rows.n, 1.0, triangle.lower, m, kernel, stride)
        explained += np.einsum("ij,ij->", kernel, kernel)
        for number in range(count):
            _add_gram(kernel, curved[:, number], grams[number], borders[number])
        corners += curved.sum(axis=0)
    return RunSums((projected, losses, slopes, Triangles(grams), borders, corners, explained), values)


def _curved(loss: Loss, y: FloatArray, f: FloatArray, curvatures: Curvatures) -> FloatArray:
    """Curvatures that the Grams are weighted with: (b, g)."""
    if curvatures == "shared":
        if not loss.coupled:
            return np.asarray(loss.curvature(y, f)[:, :1])
        # On differences of classes, to which a coupled loss answers at equal values by the same number for all.
        unit = np.zeros(f.shape)
        unit[:, 0], unit[:, 1] = 1.0, -1.0
        return np.asarray(loss.curvature_times(y, f, unit)[:, :1])
    if curvatures == "columns":
        return np.asarray(loss.curvature(y, f))
    unit, columns = np.zeros(f.shape), []
    for c in range(f.shape[1]):
        unit[:, c] = 1.0
        columns.append(loss.curvature_times(y, f, unit))
        unit[:, c] = 0.0
    return np.stack([columns[c][:, other] for c, other in block_pairs(f.shape[1])], axis=1)


def _add_gram(kernel: NDArray[np.float64], curved: FloatArray, gram: FloatArray, border: FloatArray) -> None:
    """Add F_b' W F_b and F_b' W 1, W of one sign."""
    rows, m = kernel.shape
    negative = bool((curved < 0.0).any())
    scale = np.sqrt(-curved if negative else curved)[:, None]
    weighted = scratch("weighted", rows, m, kernel.dtype)
    np.multiply(kernel, scale, out=weighted)
    sign = -1.0 if negative else 1.0
    blas("syrk", b"L", b"N", m, rows, sign, weighted, m, 1.0, gram, m)
    border += sign * (weighted.T @ scale[:, 0])
