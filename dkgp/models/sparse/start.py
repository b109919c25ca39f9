"""A sparse model as a start of the exact solve: its residual over the noise, where that lies below zero's objective.

The exact alpha is D (y - f*) for the exact mean f*, so alpha_0 = D (y - f) is what a sparse mean f stands for. Its
error is D (f* - f), and the objective a' Kbar a / 2 - y'a counts that times Kbar D: a good fit of a smooth kernel is
nearly the solution. On a rough one f is off by what no basis of that size can follow, and alpha_0 lies farther off than
zero does: it would cost products, and is not taken. The objective tells which of the two it is, below zero's, 0, or
above, by the rows of the product that belong to a random part of the samples.

(The basis' own weights, put on the basis samples, were tried, too: of the same norm as alpha, but elsewhere. They saved
no products anywhere.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.data import Dataset
from dkgp.kernels import Kernel, fold_white
from dkgp.models.noise import Noise
from dkgp.models.sparse.model import SparseModel
from dkgp.models.sparse.stored import OpenedSparse
from dkgp.operators.base import FloatArray, column_of
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel

# Rows of the product that the objective is estimated by: of residuals with far outliers, to a fifth or so.
ROWS = 2048
FEW_ROWS = 512


@dataclass(frozen=True)
class SparseStart:
    """A start of the exact solve."""

    alpha: FloatArray | None  # (n, p): zero for targets whose residual does not pay; None where that is all of them
    # (p,): the part of the way from zero to the least objective that the start leaves, at most, up to sampling: 0 means
    # solved, 1 no better than zero, more is worse
    share: FloatArray
    rows: int  # of the product that this was estimated by

    @property
    def pays(self) -> FloatArray:
        """True for targets that start from the residual: (p,)."""
        return np.asarray(self.share < 1.0)


def residual_start(
    operator: BlockedKernelOperator, targets: FloatArray, model: SparseModel, seed: int = 0
) -> tuple[FloatArray, FloatArray]:
    """alpha_0 of a fit, (n, p), and an estimate of the bound on min R that a product with it would prove: (p,)."""
    noise, n = operator.noise, operator.n
    residual = targets - CrossKernel(operator, model.prototypes).columns(model.weights)
    alpha = residual / column_of(noise)
    rows = np.sort(np.random.default_rng(seed).choice(n, min(n, FEW_ROWS), replace=False)).astype(np.intp)
    images = CrossKernel(operator, operator.inputs(rows)).project(alpha) + residual[rows]
    quadratic = n / len(rows) * np.einsum("rp,rp->p", alpha[rows], images)
    product = np.einsum("np,np->p", alpha, targets)
    # At the best multiple, as it would be proven.
    return alpha, np.asarray(0.5 * product**2 / np.maximum(quadratic, np.finfo(float).tiny))


def start_from_sparse(
    dataset: Dataset, opened: OpenedSparse, kernel: Kernel, noise_variance: float, *, seed: int = 0
) -> SparseStart:
    """Make a start of a sparse model of the same data, kernel and noise; a few thousand times n kernel entries.

    `dataset`: standardised targets and inputs are read, a part at a time. `seed`: of the rows that are looked at.
    """
    kernel, noise_variance = fold_white(kernel, noise_variance)
    model, targets, n = opened.model, dataset.all_targets(), dataset.n_samples
    chunks = list(dataset.row_chunks())
    residual = np.concatenate([targets[slice(*rows)] - model.mean(dataset.inputs(*rows)) for rows in chunks])
    noise = Noise(noise_variance).beside(dataset).checked(n)
    alpha = residual / column_of(noise.diagonal)
    samples = np.sort(np.random.default_rng(seed).choice(n, min(n, ROWS), replace=False))
    evaluator = model.evaluator()
    looked_at = evaluator.prepare(dataset.input_rows(samples))
    images = column_of(noise.rows(samples).diagonal) * alpha[samples]
    for rows in chunks:
        images += evaluator.matmat(looked_at, evaluator.prepare(dataset.inputs(*rows)), alpha[slice(*rows)])
    quadratic = n / len(samples) * np.einsum("rp,rp->p", alpha[samples], images)
    gained = 2.0 * np.einsum("np,np->p", alpha, targets) - quadratic
    # No more can be gained than 2 min R, and that is at most what the sparse mean's own risk comes to.
    most = 2.0 * np.asarray(opened.certificate.risk)
    start = SparseStart(None, np.asarray(1.0 - gained / most), len(samples))
    return SparseStart(alpha * start.pays, start.share, start.rows) if start.pays.any() else start
