"""Features of the inputs whose products are a kernel, exactly or in expectation: functions are drawn with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
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
        """The same of `factor` times the kernel."""
        return replace(self, variance=factor * self.variance)

    def placed(self, features: tuple[int, ...], n_features: int) -> Waves:
        """The same of some columns of inputs with more features."""
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
        """The same of `factor` times the kernel."""
        return Slopes(factor * self.variances)

    def placed(self, features: tuple[int, ...], n_features: int) -> Slopes:
        """The same of some columns of inputs with more features."""
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
