"""Laplace's approximation of latent functions that softmax couples: mode, evidence and its gradient, dense.

For C classes with one covariance K, one-hot labels y_c, probabilities pi_c and D_c = diag(w pi_c), w the samples'
weights, the curvature of sample i is w_i (diag(pi_i) - pi_i pi_i'). With

    B_c = I + D_c^1/2 K D_c^1/2,  E_c = D_c^1/2 B_c^-1 D_c^1/2,  S = sum_c E_c = M M',  V_c = M^-1 E_c

all that is needed of matrices of order C n is in such of order n (Rasmussen and Williams 2006, Alg. 3.3 and 3.4):

    R = (W^-1 + K)^-1,  R_cc' = E_c delta_cc' - V_c' V_c',    log|I + K W| = sum_c log|B_c| + log|S| - sum_i log w_i.

The gradient of the evidence is one weighted sum of dK: with a_c = w (y_c - pi_c), f_c = K a_c at the mode,

    G = 1/2 sum_c [a_c a_c' - R_cc + u_c a_c' + a_c u_c'],   u = s - R K s,
    s_ic = -1/2 w_i sum_b P_bc (T_bb - 2 (T pi)_b),   P = diag(pi) - pi pi',   T = K - K R K, the block of sample i.

2 C + 5 matrices of order n are held. What does not fit is for classes one against the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.special

from dkgp.data.types import FloatArray
from dkgp.models.tuning.dense_algebra import factor, fill_upper, invert_factored
from dkgp.models.tuning.laplace.columns import LabelEvidence, SeenSamples, newton_ascent
from dkgp.models.tuning.laplace.expectation import averaged_softmax

# A sample that counts for nothing; its logarithm has to exist.
LEAST_WEIGHT = 1e-12


@dataclass(frozen=True)
class SoftmaxMode:
    """The mode, and what the evidence and predictions take of its curvature."""

    # (n, C): f, a and pi; f = K a
    values: FloatArray
    alpha: FloatArray
    probabilities: FloatArray
    inner: FloatArray  # (C, n, n): E_c
    root: FloatArray  # (n, n): M
    # Psi, and log|I + K W|
    objective: float
    log_determinant: float
    steps: int  # Newton's

    def whitened(self, right: FloatArray) -> FloatArray:
        """M^-1 times the right side (n, t)."""
        return np.asarray(scipy.linalg.solve_triangular(self.root, right, lower=True, check_finite=False))

    def solved(self, right: FloatArray) -> FloatArray:
        """R times the right side (n, C)."""
        separate = np.column_stack([inner @ column for inner, column in zip(self.inner, right.T, strict=True)])
        shared = scipy.linalg.cho_solve((self.root, True), separate.sum(axis=1), check_finite=False)
        return np.asarray(separate - np.column_stack([inner @ shared for inner in self.inner]))


def softmax_mode(
    matrix: FloatArray, one_hot: FloatArray, weights: FloatArray | None = None, alpha: FloatArray | None = None
) -> SoftmaxMode | None:
    """Find the mode by Newton's iterations; None where a matrix is not positive definite.

    `matrix` (n, n): K, both triangles. `one_hot` (n, C). `weights` (n,). `alpha` (n, C): where to start, if it is
    better than zero, the default.
    """
    n, n_classes = one_hot.shape
    w = np.ones(n) if weights is None else np.maximum(weights, LEAST_WEIGHT)

    def psi(coefficients: FloatArray, values: FloatArray) -> float:
        fit = np.einsum("ic,ic->i", one_hot, values) - scipy.special.logsumexp(values, axis=1)
        return float(-0.5 * np.vdot(coefficients, values) + w @ fit)

    inner, root = np.empty((n_classes, n, n)), np.empty((n, n))

    def expand(a: FloatArray, f: FloatArray, objective: float, steps: int) -> tuple[SoftmaxMode, FloatArray] | None:
        probabilities = scipy.special.softmax(f, axis=1)
        logs = _inner(matrix, w[:, None] * probabilities, inner)
        np.sum(inner, axis=0, out=root)
        lower = np.asfortranarray(root)
        if logs is None or not factor(lower):
            return None
        determinant = logs + 2.0 * float(np.log(np.diagonal(lower)).sum()) - float(np.log(w).sum())
        mode = SoftmaxMode(f, a, probabilities, inner, np.tril(lower), objective, determinant, steps)
        mean = np.einsum("ic,ic->i", probabilities, f)
        b = w[:, None] * (probabilities * (f - mean[:, None]) + one_hot - probabilities)
        return mode, b - mode.solved(matrix @ b)

    return newton_ascent(matrix, psi, np.zeros((n, n_classes)), alpha, expand)


def _inner(matrix: FloatArray, curvature: FloatArray, out: FloatArray) -> float | None:
    """Fill in E_c of all classes; the sum of log|B_c|, or None where one is not positive definite."""
    logs = 0.0
    for column, target in zip(curvature.T, out, strict=True):
        root = np.sqrt(column)
        work = np.asfortranarray(matrix * root * root[:, None])
        np.einsum("ii->i", work)[:] += 1.0
        if not factor(work):
            return None
        logs += 2.0 * float(np.log(np.diagonal(work)).sum())
        if not invert_factored(work):
            return None
        fill_upper(work)
        np.multiply(work, root, out=target)
        target *= root[:, None]
    return logs


class SoftmaxEvidence(LabelEvidence):
    """Of classes that softmax couples, three or more; targets (n, C) are signs."""

    n_matrices = 2

    @classmethod
    def matrices(cls, n_targets: int) -> int:
        """Matrices of order n that an evaluation holds."""
        return 2 * n_targets + 5

    @staticmethod
    def independent(targets: FloatArray, weights: FloatArray | None = None) -> float:
        """Log likelihood of the classes' shares."""
        counts = np.ones(len(targets)) if weights is None else weights
        totals = counts @ (targets > 0.0)
        return float((scipy.special.xlogy(totals, totals / totals.sum())).sum())

    @classmethod
    def probabilities(cls, samples: SeenSamples) -> FloatArray | None:
        """As of `LabelEvidence`, by `averaged_softmax`."""
        matrix, targets, weights, cross, prior = samples
        mode = softmax_mode(matrix, (targets > 0.0).astype(np.float64), weights)
        if mode is None:
            return None
        covariance = np.empty((len(prior), len(mode.inner), len(mode.inner)))
        halves = [mode.whitened(inner @ cross) for inner in mode.inner]
        for c, inner in enumerate(mode.inner):
            for other in range(c + 1):
                shared = np.einsum("ij,ij->j", halves[c], halves[other])
                covariance[:, c, other] = covariance[:, other, c] = shared
            covariance[:, c, c] += prior - np.einsum("ij,ij->j", cross, inner @ cross)
        return averaged_softmax(cross.T @ mode.alpha, covariance)

    def __call__(self, parameters: FloatArray) -> tuple[float, FloatArray] | None:
        """As of `DenseObjective`: for each class two inverses' time a step of Newton's, and four products."""
        matrix, total = self._kernel_matrix, self._work
        self._family.matrix(parameters[:-1], matrix)
        one_hot = (self._targets > 0.0).astype(np.float64)
        mode = softmax_mode(matrix, one_hot, self._weights, self.start)
        if mode is None:
            return None
        value = mode.objective - 0.5 * mode.log_determinant
        if not math.isfinite(value):
            return None
        self.reached = mode.alpha
        w = np.ones(len(one_hot)) if self._weights is None else np.maximum(self._weights, LEAST_WEIGHT)
        total[...] = 0.0
        spread, halves = np.empty((len(one_hot), len(mode.inner), len(mode.inner))), np.empty_like(mode.inner)
        for c, inner in enumerate(mode.inner):
            half = mode.whitened(inner)
            total += 0.5 * (half.T @ half - inner)
            np.matmul(half, matrix, out=halves[c])
            for other in range(c + 1):
                shared = np.einsum("ij,ij->j", halves[c], halves[other])
                spread[:, c, other] = spread[:, other, c] = shared
            spread[:, c, c] += np.diagonal(matrix) - np.einsum("ij,ij->j", matrix, inner @ matrix)
        pi = mode.probabilities
        towards = np.einsum("icc->ic", spread) - 2.0 * np.einsum("icb,ib->ic", spread, pi)
        s = -0.5 * w[:, None] * pi * (towards - np.einsum("ic,ic->i", pi, towards)[:, None])
        u = s - mode.solved(matrix @ s)
        total += 0.5 * (mode.alpha @ mode.alpha.T + u @ mode.alpha.T + mode.alpha @ u.T)
        return value, np.append(self._family.contract(parameters[:-1], matrix, total), 0.0)
