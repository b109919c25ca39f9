"""The log marginal likelihood of a GP on a subset that fits in memory, with its gradient: what `tune` maximises.

With Kbar = K(theta) + s2 I, alpha = Kbar^-1 Y and p target columns that share the hyperparameters,

    log p(Y) = -1/2 tr(Y' alpha) - p/2 log det Kbar - n p/2 log(2 pi),
    d log p / d theta = 1/2 sum_ij G_ij dK_ij/dtheta,    G = alpha alpha' - p Kbar^-1

(Rasmussen and Williams 2006, equations 2.30 and 5.9). Of a mean H beta with q coefficients it is that of what no
coefficients move (restricted likelihood; their equation 2.45),

    -1/2 tr(Y' alpha) - p/2 (log det Kbar + log det A) - (n - q) p/2 log(2 pi),    A = H' Kbar^-1 H,
    G = alpha alpha' - p (Kbar^-1 - Kbar^-1 H A^-1 H' Kbar^-1),

with alpha = Kbar^-1 (Y - H beta) at the best beta. The likelihood owns the factorisation and G; what a kernel has to
supply is its matrix and the contraction of a given G with its derivatives, so further kernels are one class each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Protocol, cast

import numpy as np
import scipy.linalg

from dkgp.data.types import FloatArray
from dkgp.kernels import Kernel, SquaredExponential
from dkgp.models.noise import Noise
from dkgp.models.tuning.dense_algebra import BLOCK_ROWS, invert, rank_update, symmetric_product
from dkgp.models.tuning.subsets import SAME_NOISE

# What the search itself holds: its history, and Python's own objects.
SEARCH_BYTES = 2**19
# On standardised inputs a gamma of 1e-8 moves no exponent that matters, and one of 1e4 makes every sample an island.
GAMMA_BOUNDS = (1e-8, 1e4)
VARIANCE_BOUNDS = (1e-4, 1e4)


class KernelFamily(Protocol):
    """A kernel with free parameters, all in log space, on fixed inputs of shape (n, d)."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters in messages."""

    @property
    def bounds(self) -> FloatArray:
        """Lower and upper bound of each log parameter: (parameters, 2)."""

    def initial(self) -> FloatArray:
        """The starting point: (parameters,) log values."""

    def kernel(self, parameters: FloatArray) -> Kernel:
        """The kernel that the log parameters stand for."""

    def matrix(self, parameters: FloatArray, out: FloatArray) -> None:
        """Write K into `out`, (n, n) in Fortran order, both triangles."""

    def contract(self, parameters: FloatArray, matrix: FloatArray, weights: FloatArray) -> FloatArray:
        """sum_ij weights_ij dK_ij / dparameter for each parameter: (parameters,).

        `matrix` is what the method `matrix` wrote. Only the lower triangle of the symmetric `weights` means anything,
        and `weights` may be overwritten.
        """


class ArdSquaredExponential:
    """k(x, x') = v exp(-sum_l gamma_l (x_l - x'_l)^2); parameters log gamma_1 .. log gamma_d and, by choice, log v.

    Inputs (n, d) are standardised, `feature_names` are for messages. Without `learn_variance` v stays where it starts.
    Every gamma of the start is positive; by default gamma_l = 1 / (2 d) and v = 1, as in the GBCD paper.
    """

    def __init__(
        self,
        inputs: FloatArray,
        *,
        learn_variance: bool,
        feature_names: tuple[str, ...],
        start: SquaredExponential | None = None,
    ) -> None:
        n_samples, self._n_features = inputs.shape
        self._inputs = np.ascontiguousarray(inputs)
        self._squares = inputs * inputs
        # A column of ones beside the inputs makes the row sums of W part of the one product that the gradient needs.
        self._inputs_and_one = np.asfortranarray(np.column_stack([inputs, np.ones(n_samples)]))
        self._learn_variance = learn_variance
        self._start = start
        self._held_variance = 1.0 if start is None else start.variance
        self.names = tuple(f"gamma of '{name}'" for name in feature_names) + ("the amplitude v",) * learn_variance

    @property
    def bounds(self) -> FloatArray:
        """Lower and upper bound of each log parameter: (parameters, 2)."""
        pairs = [GAMMA_BOUNDS] * self._n_features + [VARIANCE_BOUNDS] * self._learn_variance
        return cast(FloatArray, np.log(np.array(pairs)))

    def initial(self) -> FloatArray:
        """gamma_l = 1 / (2 d): standardised samples are 2 d apart in mean squared distance, so a mean exponent of 1."""
        start = np.zeros(len(self.names))
        default = 1.0 / (2.0 * self._n_features)
        if self._start is None or self._start.gamma == (default,) * self._n_features:
            start[: self._n_features] = -math.log(2.0 * self._n_features)
        else:
            start[: self._n_features] = np.log(self._start.gamma)
        if self._learn_variance:
            start[-1] = math.log(self._held_variance)
        return start

    def kernel(self, parameters: FloatArray) -> SquaredExponential:
        """The kernel that the log parameters stand for."""
        gamma = np.exp(parameters[: self._n_features])
        return SquaredExponential(gamma=tuple(gamma.tolist()), variance=self._variance(parameters))

    def matrix(self, parameters: FloatArray, out: FloatArray) -> None:
        """Write K into `out`, (n, n) in Fortran order, both triangles."""
        scaled = self._inputs * np.exp(0.5 * parameters[: self._n_features])
        squared_norm = np.einsum("ij,ij->i", scaled, scaled)
        # NumPy sends a product with its own transpose to a symmetric rank-k update: half the work, exactly symmetric.
        np.dot(scaled, scaled.T, out=out.T)
        out *= 2.0
        out -= squared_norm
        out -= squared_norm[:, None]
        np.minimum(out, 0.0, out=out)
        np.fill_diagonal(out, 0.0)
        np.exp(out, out=out)
        if self._learn_variance or self._held_variance != 1.0:
            out *= self._variance(parameters)

    def contract(self, parameters: FloatArray, matrix: FloatArray, weights: FloatArray) -> FloatArray:
        """sum_ij weights_ij dK_ij / dparameter, all d + 1 of them from one symmetric product.

        With W = weights * K elementwise, sum_ij W_ij (x_il - x_jl)^2 = 2 (sum_i x_il^2 (W 1)_i - x_l' W x_l).
        """
        weights *= matrix
        product = symmetric_product(weights, self._inputs_and_one)
        row_sums = product[:, -1]
        spread = self._squares.T @ row_sums - np.einsum("ij,ij->j", self._inputs, product[:, :-1])
        gradient = np.empty(len(self.names))
        gradient[: self._n_features] = -2.0 * np.exp(parameters[: self._n_features]) * spread
        if self._learn_variance:
            gradient[-1] = row_sums.sum()
        return gradient

    def _variance(self, parameters: FloatArray) -> float:
        return math.exp(parameters[-1]) if self._learn_variance else self._held_variance


class DenseObjective:
    """A value and its gradient at theta = (the kernel's log parameters, log s2), by dense algebra on one subset.

    Spends its time without the GIL, as far as the family does.

    The `family` is on the same n inputs as the standardised `targets` (n, p), of which the p columns share the
    hyperparameters, and their values add up. `matrices` are `n_matrices` arrays (n, n) in Fortran order to work in,
    reused by every evaluation. Samples have `weights` (n,) in objectives of labels alone, and `noise` of their own
    in those of numbers alone: s2 is then what it is a function of. A mean has the columns `trend` (n, q).
    """

    n_matrices: ClassVar[int]
    # Of labels, (n, t): coefficients where the search for a mode begins, as those of a mode at parameters nearby save
    # half of it; and those of the mode that was found last.
    start: FloatArray | None = None
    reached: FloatArray | None = None

    def __init__(
        self,
        family: KernelFamily,
        targets: FloatArray,
        matrices: Sequence[FloatArray] | None = None,
        weights: FloatArray | None = None,
        noise: Noise = SAME_NOISE,
        trend: FloatArray | None = None,
    ) -> None:
        n_samples = targets.shape[0]
        self._family, self._weights, self._noise, self._trend = family, weights, noise, trend
        self._targets = np.asfortranarray(targets)
        if matrices is None:
            matrices = [np.empty((n_samples, n_samples), order="F") for _ in range(self.n_matrices)]
        self._kernel_matrix, self._work, *self._more = matrices

    def __call__(self, parameters: FloatArray) -> tuple[float, FloatArray] | None:
        """The value and its gradient, or None where Kbar is not numerically positive definite."""
        raise NotImplementedError

    @classmethod
    def matrices(cls, n_targets: int) -> int:
        """Matrices of order n that an evaluation holds, those that it is lent among them."""
        return cls.n_matrices

    @staticmethod
    def independent(targets: FloatArray, weights: FloatArray | None = None) -> float:
        """The value of the best model of samples that have nothing to do with their inputs, for `targets` (n, p)."""
        variances = np.maximum(np.mean(targets * targets, axis=0), np.finfo(np.float64).tiny)
        return -0.5 * len(targets) * float(np.log(2.0 * math.pi * math.e * variances).sum())

    def _fill(self, parameters: FloatArray) -> None:
        """K in the first matrix, Kbar in the second."""
        self._family.matrix(parameters[:-1], self._kernel_matrix)
        np.copyto(self._work, self._kernel_matrix)
        np.einsum("ii->i", self._work)[:] += self._noise.with_common(math.exp(parameters[-1])).diagonal

    def _slopes(self, parameters: FloatArray, weights: FloatArray) -> FloatArray:
        """sum_ij weights_ij dKbar_ij / dtheta for each parameter, by the lower triangle of `weights`: it may change."""
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

    def __call__(self, parameters: FloatArray) -> tuple[float, FloatArray] | None:
        """As of `DenseObjective`: a Cholesky factorisation, the inverse from it, an (n, n) by (n, d + 1) product."""
        n_samples, n_targets = self._targets.shape
        self._fill(parameters)
        if self._trend is not None:
            return self._restricted(parameters, self._trend)
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

    def _restricted(self, parameters: FloatArray, trend: FloatArray) -> tuple[float, FloatArray] | None:
        """The restricted likelihood of a mean with these columns, and its gradient; Kbar is in the second matrix."""
        (n, p), q = self._targets.shape, trend.shape[1]
        inverted = invert(self._work, np.asfortranarray(np.column_stack([self._targets, trend])))
        if inverted is None:
            return None
        solved, log_determinant = inverted
        of_columns = solved[:, p:]
        try:
            lower = np.linalg.cholesky(trend.T @ of_columns)
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
    def independent_about(targets: FloatArray, trend: FloatArray) -> float:
        """As `independent`, about a mean: the restricted likelihood of samples that have nothing but noise."""
        (n, q), rest = trend.shape, targets - trend @ np.linalg.lstsq(trend, targets, rcond=None)[0]
        variances = np.maximum((rest * rest).sum(axis=0) / (n - q), np.finfo(np.float64).tiny)
        determinant = float(np.linalg.slogdet(trend.T @ trend)[1])
        return -0.5 * float(((n - q) * np.log(2.0 * math.pi * math.e * variances) + determinant).sum())


def projected_peak_bytes(
    subset_size: int, n_features: int, n_targets: int, *, subsets: int = 1, at_once: int = 1, matrices: int = 2
) -> int:
    """Bytes that tuning holds at its peak in one process.

    Parameters
    ----------
    subset_size, n_features, n_targets : int
        n, d and p of a subset.
    subsets : int
        How many there are; each holds a few arrays of (n, d) and (n, p).
    at_once : int
        How many are evaluated at the same time; each takes `matrices` arrays of (n, n).
    matrices : int
        2 for the likelihood, 3 for the leave-one-out objective; what a composed kernel adds is told by `family_bytes`.
    """
    rows = 9 * (n_features + 1) + 4 * n_targets
    # The inverse copies a block column, and each of its products is an array.
    copies = 3 * min(BLOCK_ROWS, subset_size)
    return SEARCH_BYTES + 8 * subset_size * (at_once * (matrices * subset_size + copies) + subsets * rows)
