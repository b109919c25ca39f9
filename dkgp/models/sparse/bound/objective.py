"""A sparse model's evidence on all samples, with its gradient: what hyperparameters are chosen by, out of core.

With Q = F F' = K_nm (L L')^-1 K_mn <= K, E = K - Q, noise S = s2 I, and p targets that share the hyperparameters,

    bound    log N(Y; 0, Q + S) - p tr(S^-1 E) / 2          (Titsias 2009), never above the exact log p(Y)
    fitc     log N(Y; 0, Q + S + diag(E))                   (Snelson and Ghahramani 2006), which is no bound.

Both are one function of Q and the samples' variances, with alpha = (Q + S)^-1 Y, S with FITC's terms in it:

    d = sum_ij M_ij dQ_ij + sum_i g_i dk(x_i, x_i) / 2,     2 M = alpha alpha' - p (Q + S)^-1 - diag(g),

g = -p / s2 or, of FITC, the diagonal of alpha alpha' - p (Q + S)^-1. With F: W_nm = 2 M K_nm (L L')^-1 against dK_nm,
and against d(L L')

    W_mm = -L^-T [z z' - p (I - B^-1) - F' diag(g) F] L^-1 / 2,     B = C C' = I + F'S^-1 F,  z = F'alpha.

L L' is K_mm with its jitter, a share of its diagonal: so the weights of that diagonal count once more by this share.
That the share itself, of a large basis, goes with the inputs' rounding is left out: it moves the last digits alone.

One evaluation is three passes over n m kernel entries: the fit and its verification (`fit_regressors`), 2 n m^2 FLOPS,
and the slopes, 3 n m^2 (FITC's 6) and n m derivatives. Values are by residuals, as the risk is; a fit that rounding
spoils is refused.

References
----------
M. K. Titsias, Variational learning of inducing variables in sparse Gaussian processes (2009).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel
from dkgp.models.context import RunContext
from dkgp.models.sparse.bound.slopes import FittedWeights, prior_slopes, slopes_task
from dkgp.models.sparse.fit import RegressorFit, fit_regressors
from dkgp.operators.base import FloatArray
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.operators.inputs import InputSource
from dkgp.operators.low_rank.pivots import jitter, whiten


@dataclass(frozen=True)
class BoundValue:
    """The evidence at one point."""

    value: float  # summed over targets, in nats
    gradient: FloatArray  # (q + 1,), by the logarithms of the kernel's parameters, in their order, and of s2
    unexplained: float  # share of the samples' k(x, x) that the basis leaves, tr E / tr K


class BoundObjective:
    """Evidence of a sparse model of some samples, as one point after another is evaluated.

    `source` has standardised inputs, `targets` are (n, p); with `fitc` it is FITC's likelihood instead of the bound.
    The context's `within` is told of the progress of each pass; what it raises ends the evaluation.
    """

    def __init__(
        self, source: InputSource, targets: FloatArray, context: RunContext | BlockExecutor, *, fitc: bool = False
    ) -> None:
        if targets.ndim != 2 or len(targets) != source.n_samples or not targets.shape[1]:
            raise InputError(f"expected targets of shape ({source.n_samples:,}, p); got {targets.shape}")
        self._source, self._context, self._targets, self._fitc = source, RunContext.of(context), targets, fitc

    @contextmanager
    def operator(self, kernel: Kernel, noise_variance: float) -> Iterator[BlockedKernelOperator]:
        """Kbar of the samples, watched by the context."""
        context = self._context
        with context.operator(kernel, noise_variance, self._source) as operator, operator.watched(context.within):
            yield operator

    def __call__(self, kernel: Kernel, noise_variance: float, basis: FloatArray) -> BoundValue:
        """The evidence and its gradient for a basis (m, d), which is held.

        Raises `NumericalError`: as of `fit_regressors`, or the value overflows.
        """
        with self.operator(kernel, noise_variance) as operator:
            fit = fit_regressors(CrossKernel(operator, basis), self._targets, fitc=self._fitc)
            value = self._value(operator, fit)
            gradient = self._gradient(operator, fit)
            unexplained = 1.0 - float(fit.squares.sum()) / float(operator.prior().sum())
        if not (math.isfinite(value) and np.isfinite(gradient).all()):
            raise NumericalError("the evidence of the sparse model overflows: bring inputs that are far out closer")
        return BoundValue(value, gradient, unexplained)

    def _value(self, operator: BlockedKernelOperator, fit: RegressorFit) -> float:
        n, p = self._targets.shape
        variances = np.broadcast_to(fit.variances, (n,))
        determinant = float(np.log(variances).sum()) + 2.0 * float(np.log(fit.normal.diagonal()).sum())
        trace = 0.0 if self._fitc else float(np.sum(operator.prior() - fit.squares)) / operator.noise_variance
        quadratic = 2.0 * float(np.sum(fit.risk))
        return float(-0.5 * (p * (n * math.log(2.0 * math.pi) + determinant + trace) + quadratic))

    def _gradient(self, operator: BlockedKernelOperator, fit: RegressorFit) -> FloatArray:
        n, p = self._targets.shape
        cross, kernel, s2, m = fit.cross, operator.kernel, operator.noise_variance, fit.cross.m
        lower, basis = cross.lower, cross.prototypes
        with single_threaded_blas():
            inverse = np.asarray(scipy.linalg.cho_solve((fit.normal, True), np.eye(m), check_finite=False))
            normal = fit.normal if self._fitc else whiten(lower, np.eye(m) - inverse, transposed=True)
        weights = FittedWeights(fit.whitened, fit.weights, normal, self._fitc)
        rows = {"right": self._targets, "variances": np.broadcast_to(fit.variances, (n,)).copy()}
        contracted, prior, (squares, total), weighted = cross.sums(
            "kslopes", "slopes", slopes_task, (weights,), rows
        ).sums
        if self._fitc:
            noise = s2 * total
        else:
            # tr (Q + S)^-1 = (n - m + tr B^-1) / s2
            trace = p * float(np.sum(operator.prior() - fit.squares)) / s2
            noise = s2 * squares - p * (n - m + float(np.trace(inverse))) + trace
            total, weighted = -p * n / s2, p * (np.eye(m) - fit.normal @ fit.normal.T)
        if kernel.stationary:
            prior = prior_slopes(kernel, basis[:1], np.array([0.5 * total]))
        with single_threaded_blas():
            inner = fit.whitened @ fit.whitened.T + p * (inverse - np.eye(m)) - weighted
            half = whiten(lower, inner, transposed=True)
            matrix = -0.5 * whiten(lower, np.asfortranarray(half.T), transposed=True)
            matrix = 0.5 * (matrix + matrix.T)
            share = jitter(m, 1.0, 2.0 * float(operator.double.row_errors(basis).max()))
            matrix[np.diag_indices(m)] *= 1.0 + share
            contracted = contracted + prior + kernel.contract(basis, basis, matrix)
        return np.append(contracted, 0.5 * noise)
