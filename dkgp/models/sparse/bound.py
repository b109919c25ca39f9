"""A sparse model's evidence on all samples, with its gradient, out of core: the objective of a search.

With Q = F F' = K_nm (L L')^-1 K_mn <= K, E = K - Q, noise S = s2 I, and p targets that share the hyperparameters,

    bound    log N(Y; 0, Q + S) - p tr(S^-1 E) / 2          (Titsias 2009), never above the exact log p(Y)
    fitc     log N(Y; 0, Q + S + diag(E))                   (Snelson and Ghahramani 2006), which is no bound.

Both are one function of Q and the samples' variances, with alpha = (Q + S)^-1 Y, S with FITC's terms in it:

    d = sum_ij M_ij dQ_ij + sum_i g_i dk(x_i, x_i) / 2,     2 M = alpha alpha' - p (Q + S)^-1 - diag(g),

g = -p / s2 or, for FITC, the diagonal of alpha alpha' - p (Q + S)^-1. With F: W_nm = 2 M K_nm (L L')^-1 against dK_nm,
and against d(L L')

    W_mm = -L^-T [z z' - p (I - B^-1) - F' diag(g) F] L^-1 / 2,     B = C C' = I + F'S^-1 F,  z = F'alpha.

L L' is K_mm with its jitter, a share of its diagonal: so the weights of that diagonal count once more by this share.
The dependence of the share itself on the inputs' rounding, for a large basis, is left out: it moves the last digits
alone.

Workers contract W_nm with dK_nm, a run of samples at a time (`slopes_task`). The weights are of rank m and are made in
place: with f = L^-1 k_m(x), D = S^-1 and alpha = D (y - F z),

    W_nm = [alpha z' - p D F (C C')^-1 - diag(g) F] L^-1.

Each row begins with a triangular solve: an explicit L^-T .. L^-1 against K_nm would lose the digits that K_mm's
condition takes once more. For the bound the rest is one product, p D F (I - (C C')^-1) L^-1; if every row has its own
g, three more solves.

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
import scipy

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel, count_entries
from dkgp.models.context import RunContext
from dkgp.models.sparse.model import RegressorFit, fit_regressors
from dkgp.operators.base import FloatArray
from dkgp.operators.blas import blas
from dkgp.operators.block_tasks import InputSource
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.operators.cross.tasks import Prototypes, Run, piece_rows
from dkgp.operators.exact_sums import RunSums
from dkgp.operators.low_rank.pivots import jitter, whiten

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


@dataclass(frozen=True)
class BoundValue:
    """The evidence at one point."""

    value: float  # summed over targets, in nats
    gradient: FloatArray  # (q + 1,), by the logarithms of the kernel's parameters, in their order, and of s2
    unexplained: float  # share of the samples' k(x, x) that the basis leaves, tr E / tr K


class BoundObjective:
    """Evidence of a sparse model of some samples, as one point after another is evaluated.

    `source` has standardised inputs, `targets` are (n, p); with `fitc` it is FITC's likelihood instead of the bound.
    The context's `within` hears the progress of each pass; an exception in it ends the evaluation.
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
