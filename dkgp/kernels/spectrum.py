"""Features of the inputs whose products are a kernel, exactly or in expectation: functions are drawn with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Waves:
    """A stationary part: frequencies (M, d) and its variance v."""

    frequencies: FloatArray
    variance: float

    @property
    def count(self) -> int:
        """Number of features: a cosine and a sine of each frequency."""
        return 2 * len(self.frequencies)

    def features(self, inputs: FloatArray) -> FloatArray:
        """sqrt(v / M) (cos, sin)(w'x) of rows (r, d): (r, count)."""
        phases = inputs @ self.frequencies.T
        scale = np.sqrt(self.variance / len(self.frequencies))
        return np.asarray(scale * np.hstack([np.cos(phases), np.sin(phases)]))

    def scaled(self, factor: float) -> Waves:
        """Return the part of `factor` times the kernel."""
        return replace(self, variance=factor * self.variance)

    def placed(self, features: tuple[int, ...], n_features: int) -> Waves:
        """Return the part that reads the columns `features` of inputs with more features."""
        frequencies = np.zeros((len(self.frequencies), n_features))
        frequencies[:, features] = self.frequencies
        return replace(self, frequencies=frequencies)


@dataclass(frozen=True)
class Slopes:
    """A linear part: the prior variance of each feature's coefficient, (d,)."""

    variances: FloatArray

    @property
    def count(self) -> int:
        """Number of features: d."""
        return len(self.variances)

    def features(self, inputs: FloatArray) -> FloatArray:
        """Rows (r, d) times the coefficients' standard deviations."""
        return np.asarray(inputs * np.sqrt(self.variances))

    def scaled(self, factor: float) -> Slopes:
        """Return the part of `factor` times the kernel."""
        return Slopes(factor * self.variances)

    def placed(self, features: tuple[int, ...], n_features: int) -> Slopes:
        """Return the part that reads the columns `features` of inputs with more features."""
        variances = np.zeros(n_features)
        variances[list(features)] = self.variances
        return Slopes(variances)


RandomFeatures: TypeAlias = Waves | Slopes


def product_of_waves(waves: list[Waves], rng: np.random.Generator) -> Waves:
    """Features of the product of stationary kernels, whose spectrum is that of a sum of frequencies."""
    most = max(len(part.frequencies) for part in waves)
    total = np.zeros((most, waves[0].frequencies.shape[1]))
    for part in waves:
        total += part.frequencies[rng.permutation(most) % len(part.frequencies)]
    return Waves(total, float(np.prod([part.variance for part in waves])))


# Below this frequency a quadrature has all digits, and beyond it integration by parts.
_SMOOTH = 16.0


class _RadialSpectrum:
    """Frequencies in three dimensions of k(r), a polynomial of r that is zero from r = 1 on and one at r = 0.

    The length w of a frequency has the density p(w) = (2 / pi) w I(w), I(w) the integral of q(r) sin(w r) over [0, 1],
    q(r) = r k(r). Integration by parts gives I(w) exactly, a sum of powers of 1 / w with bounded factors: so p(w) <=
    tail w^-order beyond `_SMOOTH`.
    """

    def __init__(self, coefficients: tuple[float, ...]) -> None:
        derivatives = [Polynomial((0.0, *coefficients))]
        while derivatives[-1].degree() > 0:
            derivatives.append(derivatives[-1].deriv())
        # Terms that cancel in exact numbers are zero here.
        self._ends = np.array([[derivative(0.0), derivative(1.0)] for derivative in derivatives])
        self._ends[np.abs(self._ends) < 1e-9] = 0.0
        self._nodes, weights = np.polynomial.legendre.leggauss(40)
        self._nodes = 0.5 * (self._nodes + 1.0)
        self._weights = 0.5 * weights * derivatives[0](self._nodes)
        bounds = np.abs(self._ends[:, 1])
        bounds[::2] += np.abs(self._ends[::2, 0])  # odd derivatives at zero are times sin(0)
        powers = np.arange(len(bounds))
        self.order = int(powers[bounds > 0.0][0])
        self.tail = 2.0 / np.pi * float(np.sum(bounds * _SMOOTH ** (self.order - powers)))
        self.peak = 1.01 * float(self.density(np.linspace(0.0, _SMOOTH, 2001)).max())

    def density(self, w: FloatArray) -> FloatArray:
        """p(w)."""
        integral = np.empty_like(w)
        near, far = w < _SMOOTH, w[w >= _SMOOTH]
        integral[near] = np.sin(np.multiply.outer(w[near], self._nodes)) @ self._weights
        total = np.zeros(len(far), np.complex128)
        for number, (at_zero, at_one) in enumerate(self._ends):
            total -= (at_one * np.exp(1j * far) - at_zero) * (1j / far) ** (number + 1)
        integral[~near] = total.imag
        return np.asarray(2.0 / np.pi * w * integral)

    def lengths(self, count: int, rng: np.random.Generator) -> FloatArray:
        """Draw by rejection from a constant up to `_SMOOTH` and a power beyond: (count,)."""
        masses = self.peak * _SMOOTH, self.tail * _SMOOTH ** (1.0 - self.order) / (self.order - 1.0)
        accepted = np.empty(0)
        while len(accepted) < count:
            below = rng.random(count) * sum(masses) < masses[0]
            uniform = 1.0 - rng.random(count)
            w = _SMOOTH * np.where(below, uniform, uniform ** (-1.0 / (self.order - 1.0)))
            height = np.where(below, self.peak, self.tail * w**-self.order)
            accepted = np.append(accepted, w[rng.random(count) * height < self.density(w)])
        return accepted[:count]


_spectrum_of = lru_cache(maxsize=16)(_RadialSpectrum)


def radial_frequencies(coefficients: tuple[float, ...], count: int, rng: np.random.Generator) -> FloatArray:
    """Draw frequencies of the kernel k(r) = sum_k coefficients_k r^k, zero from r = 1 on, in 3-d space: (count, 3).

    The kernel must be positive definite there, and k(0) = 1. Leading columns are frequencies in fewer dimensions.
    """
    direction = rng.standard_normal((count, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    return np.asarray(direction * _spectrum_of(coefficients).lengths(count, rng)[:, None])
