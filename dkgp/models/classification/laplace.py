"""Predictions by Laplace's approximation: averaged probabilities E[p(class | F)], their intervals, and variances.

Logit averages of one function are computed by the trapezoidal rule, to 13 digits in either tail
(`dkgp.models.tuning.expectation`), probit averages in closed form, Phi(m / sqrt(1 + v)). Averages of several functions,
one against the rest, are divided by their sum. Softmax's are means over a fixed set of quasi-random draws, the same for
every sample.

Intervals are of the averages at all means within a bound, and all variances within an interval. An average A(m, v) of a
sigmoid rises with m. In v it moves towards 1/2: by the heat equation dA/dv = A_mm / 2, and A_mm has the sign of -m, as
the second derivative of the sigmoid does, which is odd. So both ends are at corners of the box.

Latent functions of a Gaussian process classifier on a basis have Laplace's variances at new inputs:

    Var f(x) = (k(x, x) - |phi|^2 + phi'(I + F'WF / lambda)^-1 phi) / lambda,    phi = L^-1 k_m(x),

the prior's variance outside the basis, and the basis' variance given the samples. With softmax the classes' values have
a covariance, whose diagonal holds the first term for each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkgp.errors import InputError
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.rounding import EPS, known
from dkgp.models.tuning.expectation import RELATIVE_ERROR, averaged_sigmoid, averaged_softmax
from dkgp.operators.base import FloatArray
from dkgp.operators.low_rank.pivots import whiten

__all__ = ["averaged", "averaged_intervals", "averaged_softmax", "settled"]

# A sample with less curvature is left out of `TrainedLogistic.curvature_factor`, and its part of a variance is counted
# by itself: each takes off less than this times k(x, x) k(x_i, x_i).
LEAST_CURVATURE = 1e-30
# SciPy's ndtr is within 2.3 eps (1 + z^2) of itself (`dkgp.models.classification.likelihoods`); its argument m / sqrt(1
# + v) is off by three roundings, to which ndtr answers with z^2 + 1 times as much at most. Beyond -38.6 it is zero.
PROBIT_ERROR, FARTHEST = 32.0 * EPS, 38.6
# More than any value that is left without digits.
TINY = 2.0**-1021
# An unsure variance may add at most this share to the width that an average's interval has by the decision's bound and
# the curvature's factor alone.
VARIANCE_SHARE = 0.1


def averaged(likelihood: Likelihood, mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Averaged probabilities of the classes: (r, C), whose rows sum to one.

    Parameters
    ----------
    likelihood : Likelihood
    mean, variance : (r, t) float64
        Of the latent functions; those of softmax are taken to be independent of each other (`averaged_softmax` takes a
        covariance).

    Raises
    ------
    InputError
        Another number of columns, or variances below zero.
    """
    m, v = _columns(likelihood, mean), _columns(likelihood, variance)
    if not (v >= 0.0).all():
        raise InputError("a latent variance is below zero, or no number")
    if likelihood.coupled:
        with np.errstate(invalid="ignore"):  # an infinite variance times zero
            return averaged_softmax(m, v[:, :, None] * np.eye(m.shape[1]))
    positive, negative = _average(likelihood, m, v)
    if likelihood.n_outputs == 1:
        return np.concatenate([negative, positive], axis=1)
    total = positive.sum(axis=1, keepdims=True)
    # No class is near to likely: all probabilities underflow.
    lost = total < 1e-300
    return np.asarray(np.where(lost, likelihood.probabilities(m), positive / np.where(lost, 1.0, total)))


def averaged_intervals(
    likelihood: Likelihood,
    mean: FloatArray,
    bound: FloatArray,
    variance_lower: FloatArray,
    variance_upper: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Ends between which averaged probabilities lie for all means and variances in the given intervals: (r, C) both.

    Proven, roundings and the quadrature's error included.

    Parameters
    ----------
    likelihood : Likelihood
        Not softmax.
    mean, bound : (r, t) float64
        A mean, and by how much it may be off; perhaps infinite.
    variance_lower, variance_upper : (r, t) float64

    Raises
    ------
    InputError
        Softmax, another number of columns, or an interval that is none.
    """
    if likelihood.coupled:
        raise InputError("softmax averages have no proven intervals; take one against the rest (`multi_class` ovr)")
    m, b = _columns(likelihood, mean), _columns(likelihood, bound)
    low, high = _columns(likelihood, variance_lower), _columns(likelihood, variance_upper)
    if not ((low >= 0.0) & (low <= high) & (b >= 0.0)).all():
        raise InputError("a bound or a latent variance is below zero, or an interval ends before it begins")
    least, most = np.nextafter(m - b, -np.inf), np.nextafter(m + b, np.inf)
    # The wider a function is spread, the nearer to 1/2.
    smallest, its_complement = _average(likelihood, least, np.where(least > 0.0, high, low))
    largest, complement = _average(likelihood, most, np.where(most > 0.0, low, high))
    off = _off(likelihood)
    if likelihood.n_outputs == 1:
        return (
            _below(np.concatenate([complement, smallest], axis=1), off),
            _above(np.concatenate([its_complement, largest], axis=1), off),
        )
    a, z = _below(smallest, off), _above(largest, off)
    rest = EPS * (likelihood.n_classes + 4)
    with np.errstate(invalid="ignore", divide="ignore"):
        lower = a / (a + z.sum(axis=1, keepdims=True) - z)
        upper = z / (z + a.sum(axis=1, keepdims=True) - a)
    return _below(np.nan_to_num(lower, nan=0.0), rest), _above(np.nan_to_num(upper, nan=1.0), rest)


def settled(
    likelihood: Likelihood, mean: FloatArray, bound: FloatArray, lower: FloatArray, upper: FloatArray, factor: float
) -> NDArray[np.bool_]:
    """True where a variance between these ends is known as well as its average has use for: (r,).

    The decision's bound and `factor`, within which the curvature is known, widen an average's interval.
    Where a variance's interval adds no more than `VARIANCE_SHARE` to that, a narrower one would hardly be seen. It
    decides how far a computation goes; nothing is proven by it.

    Parameters
    ----------
    mean, bound : (r,) float64
        As of `averaged_intervals`, of one latent function.
    lower, upper : (r,) float64
        Between which the variance lies that the trained curvature gives.
    factor : float
        See `TrainedLogistic.curvature_factor`; perhaps infinite, and then there is no use for any variance.
    """
    if not np.isfinite(factor):
        return np.ones(len(mean), dtype=bool)
    alone = Likelihood(likelihood.name, 2)

    def widths(low: FloatArray, high: FloatArray) -> FloatArray:
        ends = averaged_intervals(
            alone, mean[:, None], bound[:, None], (low / factor)[:, None], (high * factor)[:, None]
        )
        return np.asarray(ends[1][:, 1] - ends[0][:, 1])

    least = np.minimum(widths(lower, lower), widths(upper, upper))
    return np.asarray(widths(lower, upper) <= (1.0 + VARIANCE_SHARE) * least)


def _average(likelihood: Likelihood, mean: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """E[sigma(F)] and E[sigma(-F)], (r, t) both; of an infinite mean 0 and 1."""
    assert likelihood.name != "softmax"
    finite = np.isfinite(mean)
    positive, negative = averaged_sigmoid(likelihood.name, np.where(finite, mean, 0.0), variance)
    up, down = (mean > 0.0).astype(np.float64), (mean < 0.0).astype(np.float64)
    return np.where(finite, positive, up), np.where(finite, negative, down)


def _off(likelihood: Likelihood) -> float:
    """Share of itself that an average may be off by; of those that `TINY` does not cover anyway."""
    return PROBIT_ERROR * (1.0 + FARTHEST**2) if likelihood.name == "probit" else RELATIVE_ERROR


def _below(values: FloatArray, off: float) -> FloatArray:
    return np.clip(values * (1.0 - off) - TINY, 0.0, 1.0)


def _above(values: FloatArray, off: float) -> FloatArray:
    return np.clip(values * (1.0 + off) + TINY, 0.0, 1.0)


def _columns(likelihood: Likelihood, values: FloatArray) -> FloatArray:
    columns = np.asarray(values, dtype=np.float64)
    if columns.ndim != 2 or columns.shape[1] != likelihood.n_outputs:
        raise InputError(f"means, bounds or variances have shape {columns.shape}; expected (r, {likelihood.n_outputs})")
    return columns


@dataclass(frozen=True)
class BasisPosterior:
    """Factors of a posterior, in Fortran order.

    `kernel_lower` is L (m, m); `posterior_lowers` are (m, m) of each of t columns, or one (t m, t m) of columns that
    hang together.
    """

    kernel_lower: FloatArray
    posterior_lowers: tuple[FloatArray, ...]
    columns: int
    regularisation: float

    @classmethod
    def of(
        cls, kernel_lower: FloatArray, posterior_lower: FloatArray, columns: int, regularisation: float
    ) -> BasisPosterior:
        """From the arrays that a store holds."""
        lowers = tuple(np.asfortranarray(lower) for lower in posterior_lower)
        return cls(np.asfortranarray(kernel_lower), lowers, columns, regularisation)

    @property
    def coupled(self) -> bool:
        """True where the columns hang together."""
        return len(self.posterior_lowers) < self.columns

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.kernel_lower.nbytes + sum(lower.nbytes for lower in self.posterior_lowers)

    def variances(self, columns: NDArray[np.float64], prior: FloatArray) -> FloatArray:
        """Variances by k_m(x) (m, r) and k(x, x) (r,): (r, t); covariances (r, t, t) of columns that hang together.

        Variances that overflow are infinite.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            return known(self._variances(columns, prior))

    def _variances(self, columns: NDArray[np.float64], prior: FloatArray) -> FloatArray:
        phi = whiten(self.kernel_lower, columns, transposed=False)
        unexplained = np.maximum(prior - np.einsum("mr,mr->r", phi, phi), 0.0)
        if not self.coupled:
            solved = (whiten(lower, phi, transposed=False) for lower in self.posterior_lowers)
            explained = np.stack([np.einsum("mr,mr->r", half, half) for half in solved], axis=1)
            return np.asarray((unexplained[:, None] + explained) / self.regularisation)
        (m, r), t = phi.shape, self.columns
        blocks = []
        for column in range(t):
            right = np.zeros((t * m, r))
            right[column * m : (column + 1) * m] = phi
            blocks.append(whiten(self.posterior_lowers[0], right, transposed=False))
        covariance = np.empty((r, t, t))
        for column in range(t):
            for second in range(column + 1):
                entry = np.einsum("qr,qr->r", blocks[column], blocks[second])
                covariance[:, column, second] = covariance[:, second, column] = entry
        covariance[:, np.arange(t), np.arange(t)] += unexplained[:, None]
        return covariance / self.regularisation
