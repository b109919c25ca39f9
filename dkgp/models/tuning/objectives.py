"""Objectives of tuning on a subset that fits in memory, each with its gradient: likelihood and leave-one-out.

Marginal likelihood. With Kbar = K(theta) + s2 I, alpha = Kbar^-1 Y and p target columns that share the hyperparameters,

    log p(Y) = -1/2 tr(Y' alpha) - p/2 log det Kbar - n p/2 log(2 pi),
    d log p / d theta = 1/2 sum_ij G_ij dK_ij/dtheta,    G = alpha alpha' - p Kbar^-1

(Rasmussen and Williams 2006, equations 2.30 and 5.9). With a mean H beta of q coefficients, the restricted likelihood
is that of the data which no coefficients move (their equation 2.45),

    -1/2 tr(Y' alpha) - p/2 (log det Kbar + log det A) - (n - q) p/2 log(2 pi),    A = H' Kbar^-1 H,
    G = alpha alpha' - p (Kbar^-1 - Kbar^-1 H A^-1 H' Kbar^-1),

with alpha = Kbar^-1 (Y - H beta) at the best beta. The objective owns the factorisation and G. A kernel supplies its
matrix and the contraction of G with its derivatives (`KernelFamily`).

Leave-one-out: the log density of each target given all others. With A = Kbar^-1, alpha = A Y and c_i = A_ii, the target
y_i given all others is normal with mean y_i - alpha_i / c_i and variance 1 / c_i, so that

    L = sum_i [p/2 log c_i - s_i / (2 c_i)] - n p/2 log(2 pi),    s_i = sum_t alpha_it^2

(their equations 5.10 to 5.12). A change dK of the kernel matrix changes A by -A dK A, so that equation 5.13 for all
parameters is one weighted sum of the entries of dK:

    dL = sum_ij W_ij dK_ij,    W = 1/2 (beta alpha' + alpha beta') - A diag(q) A,
    beta = A r,  r_it = alpha_it / c_i,  q_i = p / (2 c_i) + s_i / (2 c_i^2).

It takes twice the arithmetic of the likelihood's gradient. For a fold F of several samples the same holds in blocks:
the mean is y_F - A_FF^-1 alpha_F, the covariance A_FF^-1.

Noise by a design: with s2_i = s2 exp(design_i' w) the weights w are among the parameters. Both objectives have a
symmetric matrix W with dL = sum_ij W_ij dKbar_ij. The derivative by log s2 is sum_i W_ii s2_i, that by w_j is
sum_i W_ii s2_i design_ij.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol, TypeAlias

import numpy as np
import scipy

from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import NumericalError
from dkgp.models.noise import SAME_NOISE, Noise
from dkgp.models.tuning.dense_algebra import (
    BLOCK_ROWS,
    add_outer_products,
    factor,
    fill_upper,
    invert,
    invert_factored,
    rank_update,
    solve_factored,
    symmetric_product,
)
from dkgp.models.tuning.families import KernelFamily

ObjectiveName: TypeAlias = Literal["likelihood", "loo"]
# The value and its gradient (q,); None where they do not exist, such as where Kbar is not positive definite.
ValueAndGradient: TypeAlias = tuple[float, FloatArray] | None
# Memory of the search itself: its history, and Python's own objects.
SEARCH_BYTES = 2**19


class Objective(Protocol):
    """A function of log parameters (q,) that a search maximises."""

    def __call__(self, parameters: FloatArray) -> ValueAndGradient:
        """Return the value and its gradient."""


class DenseObjective:
    """An objective at theta = (the kernel's log parameters, log s2), by dense algebra on one subset, without the GIL.

    `family` and the standardised `targets` (n, p) have the same n samples; the p columns share the hyperparameters, and
    their values add up. `matrices` are `n_matrices` arrays (n, n) in Fortran order, work space of every evaluation.
    Objectives of labels take `weights` (n,) of the samples, those of numbers their `noise`, as a function of s2. A mean
    has `columns` (n, q).
    """

    n_matrices: ClassVar[int]
    # Coefficients (n, t) of labels: where the search for a mode begins (a mode at parameters nearby saves half of it),
    # and those of the last mode.
    start: FloatArray | None = None
    reached: FloatArray | None = None

    def __init__(
        self,
        family: KernelFamily,
        targets: FloatArray,
        matrices: Sequence[FloatArray] | None = None,
        weights: FloatArray | None = None,
        noise: Noise = SAME_NOISE,
        columns: FloatArray | None = None,
    ) -> None:
        n_samples = targets.shape[0]
        self._family, self._weights, self._noise, self._columns = family, weights, noise, columns
        self._targets = np.asfortranarray(targets)
        if matrices is None:
            matrices = [np.empty((n_samples, n_samples), order="F") for _ in range(self.n_matrices)]
        self._kernel_matrix, self._work, *self._more = matrices

    def __call__(self, parameters: FloatArray) -> ValueAndGradient:
        """Return the value and its gradient; None if Kbar is not numerically positive definite."""
        raise NotImplementedError

    @classmethod
    def matrices(cls, n_targets: int) -> int:
        """Return the number of matrices of order n that an evaluation holds, `matrices` included."""
        return cls.n_matrices

    @staticmethod
    def independent(targets: FloatArray, weights: FloatArray | None = None) -> float:
        """Return the value of the best model in which `targets` (n, p) do not depend on their inputs."""
        variances = np.maximum(np.mean(targets * targets, axis=0), np.finfo(np.float64).tiny)
        return -0.5 * len(targets) * float(np.log(2.0 * math.pi * math.e * variances).sum())

    def _fill(self, parameters: FloatArray) -> None:
        """Write K into the first matrix, Kbar into the second."""
        self._family.matrix(parameters[:-1], self._kernel_matrix)
        np.copyto(self._work, self._kernel_matrix)
        np.einsum("ii->i", self._work)[:] += self._noise.with_common(math.exp(parameters[-1])).diagonal

    def _slopes(self, parameters: FloatArray, weights: FloatArray) -> FloatArray:
        """Return sum_ij weights_ij dKbar_ij / dtheta for each parameter; reads and may change the lower triangle."""
        noise = math.exp(parameters[-1])
        if self._noise.is_common:
            noise *= float(np.trace(weights))
        else:
            multiples = self._noise.relative
            noise *= float(np.diagonal(weights) @ (np.ones(len(weights)) if multiples is None else multiples))
        return np.append(self._family.contract(parameters[:-1], self._kernel_matrix, weights), noise)


class LogMarginalLikelihood(DenseObjective):
    """log p(Y | X, theta)."""

    n_matrices = 2

    def __call__(self, parameters: FloatArray) -> ValueAndGradient:
        """Take a Cholesky factorisation, the inverse from it, and an (n, n) by (n, d + 1) product."""
        n_samples, n_targets = self._targets.shape
        self._fill(parameters)
        if self._columns is not None:
            return self._restricted(parameters, self._columns)
        inverted = invert(self._work, self._targets)
        if inverted is None:
            return None
        alpha, log_determinant = inverted
        value = -0.5 * (
            float(np.vdot(self._targets, alpha))
            + n_targets * log_determinant
            + n_samples * n_targets * math.log(2.0 * math.pi)
        )
        if not math.isfinite(value):
            return None
        rank_update(self._work, alpha, scale=1.0, keep=-float(n_targets))
        return value, 0.5 * self._slopes(parameters, self._work)

    def _restricted(self, parameters: FloatArray, columns: FloatArray) -> ValueAndGradient:
        """Return the restricted likelihood of a mean with these columns, and its gradient, with Kbar in `_work`."""
        (n, p), q = self._targets.shape, columns.shape[1]
        inverted = invert(self._work, np.asfortranarray(np.column_stack([self._targets, columns])))
        if inverted is None:
            return None
        solved, log_determinant = inverted
        of_columns = solved[:, p:]
        try:
            lower = np.linalg.cholesky(columns.T @ of_columns)
        except np.linalg.LinAlgError:
            return None
        half = scipy.linalg.solve_triangular(lower, of_columns.T, lower=True, check_finite=False)
        alpha = np.asfortranarray(solved[:, :p] - half.T @ (half @ self._targets))
        log_determinant += 2.0 * float(np.log(np.diagonal(lower)).sum())
        fit = float(np.vdot(self._targets, alpha))
        value = -0.5 * (fit + p * log_determinant + (n - q) * p * math.log(2.0 * math.pi))
        if not math.isfinite(value):
            return None
        rank_update(self._work, alpha, scale=1.0, keep=-float(p))
        rank_update(self._work, np.asfortranarray(half.T), scale=float(p), keep=1.0)
        return value, 0.5 * self._slopes(parameters, self._work)

    @staticmethod
    def independent_about(targets: FloatArray, columns: FloatArray) -> float:
        """Return the restricted likelihood of samples that are a mean and noise; see `independent`."""
        (n, q), rest = columns.shape, targets - columns @ np.linalg.lstsq(columns, targets, rcond=None)[0]
        variances = np.maximum((rest * rest).sum(axis=0) / (n - q), np.finfo(np.float64).tiny)
        determinant = float(np.linalg.slogdet(columns.T @ columns)[1])
        return -0.5 * float(((n - q) * np.log(2.0 * math.pi * math.e * variances) + determinant).sum())


class LeaveOneOut(DenseObjective):
    """The sum of log p(y_i | X, y_-i, theta)."""

    n_matrices = 3

    def __call__(self, parameters: FloatArray) -> ValueAndGradient:
        """Take a factorisation, the inverse and a product of two matrices."""
        n_samples, n_targets = self._targets.shape
        self._fill(parameters)
        if not factor(self._work):
            return None
        alpha = solve_factored(self._work, self._targets)
        if not invert_factored(self._work):
            return None
        precision = np.diagonal(self._work).copy()
        squares = np.einsum("ij,ij->i", alpha, alpha)
        value = 0.5 * float(
            (n_targets * np.log(precision) - squares / precision).sum()
            - n_samples * n_targets * math.log(2.0 * math.pi)
        )
        if not math.isfinite(value):
            return None
        beta = symmetric_product(self._work, np.asfortranarray(alpha / precision[:, None]))
        share = 0.5 * (n_targets + squares / precision) / precision
        fill_upper(self._work)
        self._work *= np.sqrt(share)
        weights = self._more[0]
        rank_update(weights, self._work, scale=-1.0, keep=0.0)
        add_outer_products(weights, alpha, beta, scale=0.5)
        return value, self._slopes(parameters, weights)


def factored(family: KernelFamily, parameters: FloatArray, out: FloatArray, noise: Noise = SAME_NOISE) -> FloatArray:
    """Put Cholesky's lower factor of Kbar into `out`, and return it; `NumericalError` if there is none."""
    family.matrix(parameters[:-1], out)
    np.einsum("ii->i", out)[:] += noise.with_common(math.exp(parameters[-1])).diagonal
    if not factor(out):
        raise NumericalError(
            "the kernel matrix of a subset is not positive definite with the hyperparameters that were found, so that "
            "it cannot be scored. Raise the lower bound of the noise variance"
        )
    return out


def fold_predictions(
    family: KernelFamily,
    parameters: FloatArray,
    targets: FloatArray,
    folds: Sequence[IntArray],
    matrices: Sequence[FloatArray] | None = None,
    noise: Noise = SAME_NOISE,
) -> tuple[FloatArray, FloatArray]:
    """Predict each fold's targets from all samples outside of it, in closed form.

    Returns predictive means (n, p), and predictive variances of new observations (n,), with each sample's noise.
    `parameters` are logarithms, the noise variance's last; `folds` are indices of samples, together each sample once;
    `matrices` has one array (n, n) in Fortran order as work space.

    Raises `NumericalError`: Kbar is not numerically positive definite.
    """
    n_samples = targets.shape[0]
    work = np.empty((n_samples, n_samples), order="F") if matrices is None else matrices[0]
    ordered = np.asfortranarray(targets)
    alpha = solve_factored(factored(family, parameters, work, noise), ordered)
    invert_factored(work)
    fill_upper(work)
    mean, variance = np.empty_like(ordered), np.empty(n_samples)
    for fold in folds:
        block = np.asfortranarray(work[np.ix_(fold, fold)])
        if not factor(block):  # a principal part of a positive definite matrix: only rounding fails here
            raise NumericalError("the predictive covariance of a fold is not positive definite; take more folds")
        mean[fold] = ordered[fold] - solve_factored(block, np.asfortranarray(alpha[fold]))
        invert_factored(block)
        variance[fold] = np.diagonal(block)
    return mean, variance


OBJECTIVES: dict[ObjectiveName, type[DenseObjective]] = {"likelihood": LogMarginalLikelihood, "loo": LeaveOneOut}


class ByDesign(DenseObjective):
    """An objective at theta = (the kernel's log parameters, w, log s2), for a `design` (n, q)."""

    def __init__(self, family: KernelFamily, targets: FloatArray, design: FloatArray) -> None:
        super().__init__(family, targets)
        self._design = design

    def _fill(self, parameters: FloatArray) -> None:
        self._family.matrix(self._of_kernel(parameters), self._kernel_matrix)
        np.copyto(self._work, self._kernel_matrix)
        np.einsum("ii->i", self._work)[:] += self._noises(parameters)

    def _slopes(self, parameters: FloatArray, weights: FloatArray) -> FloatArray:
        each = self._noises(parameters) * np.diagonal(weights)
        of_kernel = self._family.contract(self._of_kernel(parameters), self._kernel_matrix, weights)
        return np.concatenate([of_kernel, self._design.T @ each, [each.sum()]])

    def _of_kernel(self, parameters: FloatArray) -> FloatArray:
        return parameters[: -1 - self._design.shape[1]]

    def _noises(self, parameters: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):  # Kbar is then not finite, and has no likelihood
            return np.asarray(np.exp(parameters[-1] + self._design @ parameters[-1 - self._design.shape[1] : -1]))


class LikelihoodByDesign(ByDesign, LogMarginalLikelihood):
    """log p(Y | X, theta)."""


class LeaveOneOutByDesign(ByDesign, LeaveOneOut):
    """The sum of log p(y_i | X, y_-i, theta)."""


BY_DESIGN: dict[ObjectiveName, type[ByDesign]] = {"likelihood": LikelihoodByDesign, "loo": LeaveOneOutByDesign}


def projected_peak_bytes(
    subset_size: int, n_features: int, n_targets: int, *, subsets: int = 1, at_once: int = 1, matrices: int = 2
) -> int:
    """Return the bytes that tuning holds at its peak in one process.

    Parameters
    ----------
    subset_size, n_features, n_targets : int
        n, d and p of a subset.
    subsets : int
        Number of subsets; each holds a few arrays of (n, d) and (n, p).
    at_once : int
        Number of subsets that are evaluated at a time; each takes `matrices` arrays of (n, n).
    matrices : int
        2 for the likelihood, 3 for the leave-one-out objective; `family_bytes` are those of a composed kernel.
    """
    rows = 9 * (n_features + 1) + 4 * n_targets
    # The inverse copies a block column, and each of its products is an array.
    copies = 3 * min(BLOCK_ROWS, subset_size)
    return SEARCH_BYTES + 8 * subset_size * (at_once * (matrices * subset_size + copies) + subsets * rows)
