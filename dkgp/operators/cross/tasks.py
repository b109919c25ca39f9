"""Tasks on runs of blocks: stateless functions of the prototypes and a run, which return the run's sums.

A piece of K(Z, X_b), or of F' = L^-1 K(Z, X_b), lies column by column in memory, as BLAS takes it, and is changed in
place. Tiles, triangular solves and sums are float64: errors of float32 in K_mn D K_nm would swamp the noise's
part of its smallest eigenvalues. Products with n-vectors, (m, t, 1), have digits number by number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import worker_cache
from dkgp.kernels import Features, TileEvaluator
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray
from dkgp.operators.blas import blas, leading_dimension
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.cross.columns import columns_between
from dkgp.operators.cross.runs import Run, piece_rows
from dkgp.operators.exact_sums import RunSums, Triangles
from dkgp.operators.low_rank.products import LandmarkTriangle


@dataclass(frozen=True)
class Prototypes:
    """Prototypes Z as tasks see them."""

    context: BlockContext
    inputs: FloatArray  # (m, d)
    label: str  # tells prototypes of one run apart

    @property
    def count(self) -> int:
        """Number of prototypes, m."""
        return len(self.inputs)

    def features(self, precision: Precision = "double") -> Features:
        """Prepared prototypes, from this worker's cache or made anew."""
        return worker_cache().get(
            (self.context.run_id, self.label, precision),
            lambda: self.context.evaluator(precision).prepare(self.inputs),
        )

    def triangle(self) -> LandmarkTriangle:
        """L L' = K_mm, its jitter included, from this worker's cache or made anew."""
        return LandmarkTriangle.cached(self.context, self.inputs, self.label)


def _columns(evaluator: TileEvaluator, prototypes: Features, rows: Features) -> NDArray[Any]:
    """K(Z, X_b): (m, b), columns whole in memory; valid until this thread's next call."""
    return columns_between(evaluator, prototypes, rows, "columns").T


@needs_one_arithmetic
def gram_task(prototypes: Prototypes, whitened: bool, fitc: bool, product: bool, runs: list[Run]) -> list[RunSums]:
    """C D C' and C D V for each run, C = K(Z, X_b) or, whitened, F'; and the squared length of each column of C.

    A run's `variances` are D's inverses; fitc adds what F F' leaves of the run's `prior`, k(x, x), to them. Without
    them D = I. C D C' (1, m, m) is (0, 0, 0) without `product`.
    """
    return [_gram(prototypes, whitened, fitc, product, run) for run in runs]


def _gram(prototypes: Prototypes, whitened: bool, fitc: bool, product: bool, run: Run) -> RunSums:
    context, m = prototypes.context, prototypes.count
    evaluator = context.evaluator("double")
    triangle = prototypes.triangle() if whitened else None
    features = prototypes.features() if triangle is None else triangle.features
    right, variances = run.rows.get("right"), run.rows.get("variances")
    gram = np.zeros((m, m) if product else (0, 0), order="F")
    projected = np.zeros((m, 0 if right is None else right.shape[1]))
    squares = np.empty(run.samples(context))
    for rows, where in run.pieces(context, "double", piece_rows(m)):
        columns = _columns(evaluator, features, rows)
        stride = leading_dimension(columns)
        if triangle is not None:
            blas("trsm", b"L", b"L", b"N", b"N", m, rows.n, 1.0, triangle.lower, m, columns, stride)
        squares[where] = np.einsum("ij,ij->i", columns.T, columns.T)
        targets = None if right is None else right[where]
        if variances is not None:
            remainder = np.maximum(run.rows["prior"][where] - squares[where], 0.0) if fitc else 0.0
            scale = 1.0 / np.sqrt(variances[where] + remainder)
            columns *= scale
            targets = None if targets is None else scale[:, None] * targets
        if targets is not None:
            projected += columns @ targets
        if product:
            blas("syrk", b"L", b"N", m, rows.n, 1.0, columns, stride, 1.0, gram, m)
    return RunSums((Triangles(gram.T[None] if product else np.empty((0, 0, 0))), projected[..., None]), squares)


def project_task(prototypes: Prototypes, runs: list[Run]) -> list[RunSums]:
    """K(Z, X_b) V for the `right` of each run: (m, t)."""
    context, results = prototypes.context, []
    evaluator, features = context.evaluator("double"), prototypes.features()
    for run in runs:
        total = np.zeros((prototypes.count, run.rows["right"].shape[1]))
        for rows, where in run.pieces(context, "double", context.block_rows):
            total += evaluator.matmat(features, rows, np.ascontiguousarray(run.rows["right"][where]))
        results.append(RunSums((total[..., None],)))
    return results


@needs_one_arithmetic
def residual_task(prototypes: Prototypes, weights: FloatArray, returned: bool, runs: list[Run]) -> list[RunSums]:
    """K(Z, X_b) D r (m, t) and r' D r (t,) for r = V - K(X_b, Z) W, each entry evaluated once; r itself on request.

    V is a run's `right`, D the inverse of its `variances` or I. Without `right` r = K(X_b, Z) W.
    """
    context = prototypes.context
    evaluator, features = context.evaluator("double"), prototypes.features()
    results = []
    for run in runs:
        total, squares = np.zeros(weights.shape), np.zeros(weights.shape[1])
        residuals = np.empty((run.samples(context), weights.shape[1])) if returned else None
        for rows, where in run.pieces(context, "double", piece_rows(prototypes.count)):
            columns = _columns(evaluator, features, rows)
            image = columns.T @ weights
            residual = run.rows["right"][where] - image if "right" in run.rows else image
            weighted = residual / run.rows["variances"][where, None] if "variances" in run.rows else residual
            squares += np.einsum("it,it->t", residual, weighted)
            total += columns @ weighted
            if residuals is not None:
                residuals[where] = residual
        results.append(RunSums((total[..., None], squares), residuals))
    return results
