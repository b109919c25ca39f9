"""Student's t as the distribution of the noise: outliers count for less, the further off they are.

t of nu degrees of freedom and the scale s is a normal distribution of the variance s2 / lambda, with lambda from a
gamma distribution of mean one. Given what is left of a target, r, lambda is (nu + 1) / (nu + r^2 / s2) on average: the
weight of a sample, whose noise is s2 over it, (nu s2 + r^2) / (nu + 1). Solving under this noise, and reckoning it from
what is left, in turns, is iteratively reweighted least squares; each turn raises the posterior density of the function
(K. L. Lange, R. J. A. Little, J. M. G. Taylor, *Robust Statistical Modeling Using the t Distribution*, JASA 84, 1989).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special

from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.models.noise.model import NoiseModel

# Nodes in log lambda, on which sums converge fast: the integrand and all its derivatives vanish at both ends.
_NODES = np.linspace(-36.0, 6.0, 281)
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class StudentT:
    """The distribution of the noise on standardised targets.

    Parameters
    ----------
    degrees : float
        nu, above 2, so that the noise has a variance.
    scale : float
        s2, the square of the scale.

    Raises
    ------
    InputError
        Values out of range.
    """

    degrees: float
    scale: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.degrees) and self.degrees > 2.0):
            raise InputError(f"a t distribution's degrees of freedom must be above 2 and finite; got {self.degrees!r}")
        if not (math.isfinite(self.scale) and self.scale > 0.0):
            raise InputError(f"the squared scale of a t distribution must be positive and finite; got {self.scale!r}")

    @property
    def variance(self) -> float:
        """The variance of the noise of a new observation, s2 nu / (nu - 2)."""
        return self.scale * self.degrees / (self.degrees - 2.0)

    @property
    def least(self) -> float:
        """The noise variance of a sample of which nothing is left: the least."""
        return self.scale * self.degrees / (self.degrees + 1.0)

    def beyond_least(self, squares: FloatArray) -> FloatArray:
        """By how much the noise of samples exceeds `least`, given squares of what is left of them: both (n,)."""
        return np.asarray(squares / (self.degrees + 1.0))

    def weights(self, beyond: FloatArray) -> FloatArray:
        """Weights of samples, at most 1 + 1 / nu, by how much their noise exceeds `least`: both (n,)."""
        return np.asarray(self.scale / (self.least + beyond))

    def log_density(self, errors: FloatArray, latent: FloatArray) -> FloatArray:
        """Log density of errors (n,) of normal predictions with variances `latent` (n,), 0 or more, of the function."""
        log_weight, result = self._log_weights(), np.empty(len(errors))
        for rows, variance in self._variances(latent):
            normal = -0.5 * (np.log(2.0 * math.pi * variance) + errors[rows, None] ** 2 / variance)
            result[rows] = scipy.special.logsumexp(normal + log_weight, axis=1)
        return result

    def normal_scores(self, errors: FloatArray, latent: FloatArray) -> FloatArray:
        """Numbers (n,), standard normal for errors (n,) distributed as `log_density` has it, and in their order."""
        weight, result = np.exp(self._log_weights()), np.empty(len(errors))
        for rows, variance in self._variances(latent):
            beyond = scipy.special.ndtr(-np.abs(errors[rows, None]) / np.sqrt(variance)) @ weight
            result[rows] = -scipy.special.ndtri(np.clip(beyond, np.finfo(np.float64).tiny, 0.5))
        return np.asarray(np.copysign(result, errors))

    def half_widths(self, latent: FloatArray, score: float) -> FloatArray:
        """Errors (n,) whose normal score is `score`, positive: half the width of a central interval.

        Interpolated between 65 variances of the function, to about a part in ten thousand.
        """
        wide = np.sqrt(latent + self.scale)
        knots = np.linspace(wide.min(), wide.max(), 65)
        at = np.maximum(knots**2 - self.scale, 0.0)
        low, high = np.zeros(len(at)), 60.0 * score * np.sqrt(at + self.variance)
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = self.normal_scores(middle, at) < score
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.asarray(np.interp(wide, knots, 0.5 * (low + high)))

    def _log_weights(self) -> FloatArray:
        """Logarithms of the weights of `_NODES`, by which a sum is the mean over lambda."""
        half = 0.5 * self.degrees
        density = half * (math.log(half) + _NODES - np.exp(_NODES)) - scipy.special.gammaln(half)
        return np.asarray(density + math.log(_NODES[1] - _NODES[0]))

    def _variances(self, latent: FloatArray) -> Iterator[tuple[slice, FloatArray]]:
        """Variances of errors given lambda, (rows, nodes), some rows at a time."""
        noise = self.scale * np.exp(-_NODES)
        for start in range(0, len(latent), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            yield rows, latent[rows, None] + noise

    def of_observations(self, n_features: int) -> NoiseModel:
        """The noise of new observations, the same everywhere, beside the least of the samples', as a noise model."""
        variance = self.variance
        return NoiseModel("student-t", math.log(variance), (0.0,) * n_features, self.least, variance)

    def to_json(self) -> dict[str, float]:
        """Plain JSON types."""
        return {"degrees": self.degrees, "scale": self.scale}

    @classmethod
    def held(cls, document: object) -> StudentT | None:
        """Rebuild from `to_json`'s form, None from None; `InputError` for another."""
        if document is None:
            return None
        if not isinstance(document, Mapping) or not {"degrees", "scale"} <= set(document):
            raise InputError(f"a t distribution needs degrees and scale; got {document!r}")
        try:
            values: dict[str, Any] = {name: float(document[name]) for name in ("degrees", "scale")}
        except (TypeError, ValueError) as error:
            raise InputError(f"degrees and scale of a t distribution must be numbers: {error}") from None
        return cls(**values)
