"""The exact Gaussian process in 50 decimal digits, for a few dozen samples, with kernels by their formulas.

It shares nothing with dkgp but the numbers that a kernel is made of.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import mpmath
import numpy as np

from dkgp import kernels as k
from dkgp.kernels.distance import DistanceKernel

DIGITS = 50
mp = mpmath.mp.clone()
mp.dps = DIGITS
Row = list[Any]


def in_digits() -> Any:
    """Python's own decimal numbers, ten times as fast as mpmath's, with as many digits as these and a few more."""
    return decimal.localcontext(decimal.Context(prec=mp.dps + 5, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX))


def decimals(rows: Any) -> np.ndarray:
    """Numbers of mpmath, in rows or not, as an array of decimal ones."""
    values = np.asarray(rows, object)
    found = np.empty(values.shape, object)
    with in_digits():
        for place in np.ndindex(values.shape):
            sign, mantissa, exponent, _ = values[place]._mpf_
            number = decimal.Decimal(int(mantissa)) * decimal.Decimal(2) ** exponent
            found[place] = -number if sign else number
    return found


def of_decimals(values: Any) -> Any:
    """Decimal numbers as mpmath's, in lists."""
    return np.vectorize(lambda value: mp.mpf(str(value)), otypes=[object])(values).tolist()


def solved(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """matrix^-1 right, of decimal numbers, by elimination as it comes: for definite matrices and such with a border."""
    n, A, B = len(matrix), matrix.copy(), right.copy()
    with in_digits():
        for j in range(n):
            share = A[j + 1 :, j] / A[j, j]
            A[j + 1 :, j + 1 :] -= np.multiply.outer(share, A[j, j + 1 :])
            B[j + 1 :] -= np.multiply.outer(share, B[j])
        for j in reversed(range(n)):
            for above in range(j + 1, n):
                B[j] -= A[j, above] * B[above]
            B[j] /= A[j, j]
    return B


@cache
def _exactly(values: tuple[float, ...]) -> Row:
    """Float64 numbers as mpmath's."""
    return [mp.mpf(value) for value in values]


def _weighted(weights: Row, differences: Iterable[Any]) -> Any:
    """The sum of squares."""
    total = mp.zero
    for weight, difference in zip(weights, differences, strict=True):
        total += weight * difference * difference
    return total


def entry(kernel: k.Kernel, x: Row, z: Row) -> Any:
    """k(x, z) of two rows of mpmath's numbers."""
    if isinstance(kernel, k.Sum):
        return mp.fsum(entry(part, x, z) for part in kernel.parts)
    if isinstance(kernel, k.Product):
        return mp.fprod(entry(part, x, z) for part in kernel.parts)
    if isinstance(kernel, k.Scaled):
        return mp.mpf(kernel.scale) * entry(kernel.kernel, x, z)
    if isinstance(kernel, k.ActiveDimensions):
        own = [[row[feature] for feature in kernel.features] for row in (x, z)]
        return entry(kernel.kernel, *own)
    if isinstance(kernel, k.Constant):
        return mp.mpf(kernel.variance)
    if isinstance(kernel, k.Linear | k.Polynomial):
        weights = kernel.weight if len(kernel.weight) > 1 else kernel.weight * len(x)
        t = mp.fsum(mp.mpf(w) * a * b for w, a, b in zip(weights, x, z, strict=True))
        return mp.mpf(kernel.variance) * (t if isinstance(kernel, k.Linear) else (t + kernel.offset) ** kernel.degree)
    assert isinstance(kernel, DistanceKernel | k.Periodic)
    gamma = _exactly(kernel.gamma if len(kernel.gamma) > 1 else kernel.gamma * len(x))
    if isinstance(kernel, k.Periodic):
        period = _exactly(kernel.period if len(kernel.period) > 1 else kernel.period * len(x))
        waves = (2 * mp.sin(mp.pi * (a - b) / p) for p, a, b in zip(period, x, z, strict=True))
        return mp.mpf(kernel.variance) * mp.exp(-_weighted(gamma, waves))
    s = _weighted(gamma, (a - b for a, b in zip(x, z, strict=True)))
    if isinstance(kernel, k.SquaredExponential):
        value = mp.exp(-s)
    elif isinstance(kernel, k.RationalQuadratic):
        value = (1 + s / mp.mpf(kernel.alpha)) ** (-mp.mpf(kernel.alpha))
    elif isinstance(kernel, k.Stable):
        value = mp.exp(-((2 * s) ** (mp.mpf(kernel.alpha) / 2)))
    elif isinstance(kernel, k.Spherical | k.Cubic | k.Wendland):
        u = min(mp.sqrt(2 * s), mp.mpf(1))
        value = {
            "spherical": 1 - 3 * u / 2 + u**3 / 2,
            "cubic": 1 - 7 * u**2 + 35 * u**3 / 4 - 7 * u**5 / 2 + 3 * u**7 / 4,
            "wendland": 1 - 10 * u**2 + 20 * u**3 - 15 * u**4 + 4 * u**5,
        }[kernel.type_name]
    else:
        twice_nu = {k.Matern12: 1, k.Matern32: 3, k.Matern52: 5}[type(kernel)]
        u = mp.sqrt(2 * twice_nu * s)
        value = mp.exp(-u) * {1: 1, 3: 1 + u, 5: 1 + u + u * u / 3}[twice_nu]
    return mp.mpf(kernel.variance) * value


def numbers(values: np.ndarray) -> list[Row]:
    """An array (rows, columns) of float64 as mpmath's numbers, exactly."""
    return [[mp.mpf(float(value)) for value in row] for row in values]


@dataclass(frozen=True, eq=False)
class ExactGP:
    """Training and test inputs, standardised and as rounded, and targets, which may have more digits than float64.

    Attributes
    ----------
    X, T : (n, d) and (t, d) float64
    targets : n rows of p numbers
    kernel, noise_variance
        s2 may be an array (n,) of each sample's.
    """

    X: np.ndarray
    T: np.ndarray
    targets: list[Row]
    kernel: k.Kernel
    noise_variance: float | np.ndarray  # s2, or s2_i of each sample

    @cached_property
    def _noise(self) -> Row:
        return [mp.mpf(float(value)) for value in np.broadcast_to(self.noise_variance, len(self.X))]

    @cached_property
    def _solved(self) -> tuple[list[Row], list[Any]]:
        """Means, t rows of p, and variances of the function, by elimination on [Kbar, K(X, T), y]."""
        rows, tests = numbers(self.X), numbers(self.T)
        t = len(tests)
        right = [[entry(self.kernel, row, x) for x in tests] + list(self.targets[i]) for i, row in enumerate(rows)]
        with in_digits():
            K, right = self.matrix, decimals(right)
            variance = decimals([entry(self.kernel, x, x) for x in tests])
            mean = np.full((t, len(self.targets[0])), decimal.Decimal(0))
            for j in range(len(rows)):
                pivot, own = K[j, j], right[j].copy()
                assert pivot > 0, "the reference has too few digits for this problem"
                variance -= own[:t] * own[:t] / pivot
                mean += np.multiply.outer(own[:t] / pivot, own[t:])
                share = K[j + 1 :, j] / pivot
                right[j + 1 :] -= np.multiply.outer(share, own)
                K[j + 1 :, j + 1 :] -= np.multiply.outer(share, K[j, j + 1 :])
        return of_decimals(mean), of_decimals(variance)

    @property
    def matrix(self) -> np.ndarray:
        """Kbar, a copy: (n, n) decimal numbers."""
        rows, noise = numbers(self.X), self._noise
        half = [[entry(self.kernel, row, other) for other in rows[: i + 1]] for i, row in enumerate(rows)]
        for i, row in enumerate(half):
            row[i] += noise[i]
        return decimals([[half[max(i, j)][min(i, j)] for j in range(len(rows))] for i in range(len(rows))])

    @property
    def mean(self) -> list[Row]:
        """t rows of p."""
        return self._solved[0]

    @property
    def variance(self) -> list[Any]:
        """Return the t variances of the function."""
        return self._solved[1]

    def gradient(self, alpha: np.ndarray) -> list[Row]:
        """Kbar alpha - y for float64 coefficients (n, p)."""
        rows, weights = numbers(self.X), numbers(alpha)
        result = []
        for i, row in enumerate(rows):
            column = [entry(self.kernel, row, other) for other in rows]
            column[i] += self._noise[i]
            result.append(
                [
                    mp.fsum(a * w[target] for a, w in zip(column, weights, strict=True)) - self.targets[i][target]
                    for target in range(len(weights[0]))
                ]
            )
        return result


# Gradients of the exact Gaussian process in 50 decimal digits, by differences of steps of 1e-15.


STEP = mp.mpf(10) ** -15


@dataclass(frozen=True, eq=False)
class ExactGradients:
    """Gradients of `gp` at its test samples, on the standardised scale."""

    gp: ExactGP

    @cached_property
    def _rows(self) -> list[Row]:
        return numbers(self.gp.X)

    @cached_property
    def _inverse(self) -> np.ndarray:
        n = len(self._rows)
        return solved(self.gp.matrix, decimals([[mp.mpf(i == j) for j in range(n)] for i in range(n)]))

    @cached_property
    def _alpha(self) -> np.ndarray:
        return solved(self.gp.matrix, decimals(self.gp.targets))

    def _column(self, x: Row) -> np.ndarray:
        return decimals([entry(self.gp.kernel, x, row) for row in self._rows])

    def _derivatives(self, function: Callable[[Row], Any], x: Row) -> list[Any]:
        """One for each feature, by a central difference: off by some 1e-30 of the third derivative."""
        found = []
        for feature in range(len(x)):
            above, below = list(x), list(x)
            above[feature] += STEP
            below[feature] -= STEP
            found.append((function(above) - function(below)) / (2 * STEP))
        return found

    @property
    def means(self) -> list[list[Row]]:
        """d mean_t / d x_l at each test sample: (t, p, d)."""

        def mean(x: Row) -> Any:
            with in_digits():
                return mp.matrix(of_decimals(self._column(x) @ self._alpha))

        found = [self._derivatives(mean, x) for x in numbers(self.gp.T)]
        return [[list(row) for row in zip(*of_features, strict=True)] for of_features in found]

    def deviation(self, x: Row, noise: float) -> Any:
        """sqrt(V + noise)."""
        column = self._column(x)
        with in_digits():
            explained = mp.mpf(str(column @ self._inverse @ column))
        return mp.sqrt(entry(self.gp.kernel, x, x) - explained + mp.mpf(noise))

    def deviations(self, noise: float) -> list[Row]:
        """d sqrt(V + noise) / d x_l: (t, d)."""
        return [self._derivatives(lambda z: self.deviation(z, noise), x) for x in numbers(self.gp.T)]
