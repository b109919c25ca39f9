"""Random functions from a Gaussian process prior, as functions: drawn once, then evaluated anywhere.

A stationary kernel is v E[cos(w'(x - x'))] over its spectral distribution of w (Bochner), so that

    f(x) = sqrt(v / M) sum_j a_j cos(w_j'x) + b_j sin(w_j'x),      a_j, b_j ~ N(0, 1),

has covariance v mean_j cos(w_j'(x - x')): right at x = x', and elsewhere off by at most about v / sqrt(2 M) (standard
deviation over draws of w; 1.1 % of v with the 4,096 frequencies here). A linear kernel has d features that are exact.

References
----------
A. Rahimi, B. Recht, Random features for large-scale kernel machines (2007).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from dkgp.kernels import (
    ActiveDimensions,
    Constant,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Product,
    RationalQuadratic,
    Scaled,
    SquaredExponential,
    Sum,
)
from dkgp.operators.base import FloatArray

__all__ = ["PriorFunctions", "draw_prior_functions"]

FREQUENCIES = 4096
PIECE_ROWS = 512
_TWICE_NU = {Matern12: 1.0, Matern32: 3.0, Matern52: 5.0}


@dataclass(frozen=True)
class _Waves:
    """A stationary part: frequencies (M, d) and its variance v."""

    frequencies: FloatArray
    variance: float

    @property
    def count(self) -> int:
        return 2 * len(self.frequencies)

    def features(self, inputs: FloatArray) -> FloatArray:
        phases = inputs @ self.frequencies.T
        scale = np.sqrt(self.variance / len(self.frequencies))
        return np.asarray(scale * np.hstack([np.cos(phases), np.sin(phases)]))


@dataclass(frozen=True)
class _Slopes:
    """A linear part: the prior variance of each feature's coefficient, (d,)."""

    variances: FloatArray

    @property
    def count(self) -> int:
        return len(self.variances)

    def features(self, inputs: FloatArray) -> FloatArray:
        return np.asarray(inputs * np.sqrt(self.variances))


@dataclass(frozen=True)
class PriorFunctions:
    """Independent functions; `functions(inputs)` evaluates them."""

    parts: tuple[_Waves | _Slopes, ...]
    coefficients: tuple[FloatArray, ...]

    def __call__(self, inputs: FloatArray) -> FloatArray:
        """Values at standardised inputs (r, d): (r, count)."""
        values = np.zeros((len(inputs), self.coefficients[0].shape[1]))
        for start in range(0, len(inputs), PIECE_ROWS):
            rows = slice(start, start + PIECE_ROWS)
            for part, coefficients in zip(self.parts, self.coefficients, strict=True):
                values[rows] += part.features(inputs[rows]) @ coefficients
        return values


def draw_prior_functions(
    kernel: Kernel, n_features: int, count: int, rng: np.random.Generator, frequencies: int = FREQUENCIES
) -> PriorFunctions | None:
    """Draw functions from the prior of a kernel, without white noise.

    Parameters
    ----------
    kernel : Kernel
    n_features : int
        d.
    count : int
        How many functions.
    rng : numpy.random.Generator
    frequencies : int
        M, for each stationary part.

    Returns
    -------
    PriorFunctions or None
        None for a kernel that is not a sum of linear kernels and of products of stationary ones with known spectra.
    """
    parts = _parts(kernel, n_features, frequencies, rng)
    if parts is None:
        return None
    return PriorFunctions(tuple(parts), tuple(rng.standard_normal((part.count, count)) for part in parts))


def _parts(kernel: Kernel, d: int, count: int, rng: np.random.Generator) -> list[_Waves | _Slopes] | None:
    """The parts that a kernel is the sum of."""
    if isinstance(kernel, Sum):
        found = [_parts(part, d, count, rng) for part in kernel.parts]
        return None if None in found else [part for parts in found if parts is not None for part in parts]
    if isinstance(kernel, Product):
        factors = [_parts(part, d, count, rng) for part in kernel.parts]
        if any(parts is None or any(isinstance(part, _Slopes) for part in parts) for parts in factors):
            return None
        # A product of sums is the sum of all products; the spectrum of a product is that of a sum of frequencies.
        choices = itertools.product(*(parts for parts in factors if parts is not None))
        return [_product([part for part in choice if isinstance(part, _Waves)], rng) for choice in choices]
    if isinstance(kernel, Scaled):
        inner = _parts(kernel.kernel, d, count, rng)
        return None if inner is None else [_scaled(part, kernel.scale) for part in inner]
    if isinstance(kernel, ActiveDimensions):
        inner = _parts(kernel.kernel, len(kernel.features), count, rng)
        return None if inner is None else [_placed(part, kernel.features, d) for part in inner]
    if isinstance(kernel, Linear):
        return [_Slopes(kernel.variance * _by_feature(kernel.weight, d))]
    if isinstance(kernel, Constant):
        return [_Waves(np.zeros((1, d)), kernel.variance)]
    frequencies = _frequencies(kernel, d, count, rng)
    return None if frequencies is None else [_Waves(frequencies, getattr(kernel, "variance", 1.0))]


def _frequencies(kernel: Kernel, d: int, count: int, rng: np.random.Generator) -> FloatArray | None:
    """Draws from the spectral distribution: (count, d)."""
    if isinstance(kernel, Periodic):
        # exp(z (cos t - 1)) = sum_j exp(-z) I_j(z) cos(j t): j is distributed as the difference of two Poisson counts.
        z = 2.0 * np.asarray(kernel.feature_gamma)
        waves = rng.poisson(z / 2.0, (count, d)) - rng.poisson(z / 2.0, (count, d))
        return np.asarray(2.0 * np.pi * waves / np.asarray(kernel.feature_period))
    if not isinstance(kernel, SquaredExponential | Matern12 | Matern32 | Matern52 | RationalQuadratic):
        return None
    normal = np.sqrt(2.0 * np.asarray(kernel.feature_gamma)) * rng.standard_normal((count, d))
    if isinstance(kernel, RationalQuadratic):
        # (1 + s / alpha)^-alpha = E[exp(-u s)], u of a gamma distribution with mean 1.
        return np.asarray(normal * np.sqrt(rng.gamma(kernel.alpha, 1.0 / kernel.alpha, (count, 1))))
    for kind, degrees in _TWICE_NU.items():
        if isinstance(kernel, kind):  # Student's t with 2 nu degrees of freedom
            return np.asarray(normal / np.sqrt(rng.chisquare(degrees, (count, 1)) / degrees))
    return normal


def _product(waves: list[_Waves], rng: np.random.Generator) -> _Waves:
    most = max(len(part.frequencies) for part in waves)
    total = np.zeros((most, waves[0].frequencies.shape[1]))
    for part in waves:
        total += part.frequencies[rng.permutation(most) % len(part.frequencies)]
    return _Waves(total, float(np.prod([part.variance for part in waves])))


def _scaled(part: _Waves | _Slopes, factor: float) -> _Waves | _Slopes:
    if isinstance(part, _Waves):
        return _Waves(part.frequencies, factor * part.variance)
    return _Slopes(factor * part.variances)


def _placed(part: _Waves | _Slopes, features: tuple[int, ...], d: int) -> _Waves | _Slopes:
    if isinstance(part, _Waves):
        frequencies = np.zeros((len(part.frequencies), d))
        frequencies[:, features] = part.frequencies
        return _Waves(frequencies, part.variance)
    variances = np.zeros(d)
    variances[list(features)] = part.variances
    return _Slopes(variances)


def _by_feature(values: tuple[float, ...], d: int) -> FloatArray:
    return np.broadcast_to(np.asarray(values, dtype=np.float64), (d,)).copy()
