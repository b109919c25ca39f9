"""The periodic kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from dkgp.kernels.base import FloatArray, Parameter, Pullback, Settings, register_kernel, require_positive
from dkgp.kernels.distance import LOG2_E, spread, squared_distances
from dkgp.kernels.fields import (
    GAMMA_BOUNDS,
    PERIOD_BOUNDS,
    VARIANCE_BOUNDS,
    LengthScaleKernel,
    by_feature,
    centred,
    checked_features,
    checked_per_feature,
    feature_parameters,
    gamma_of_length_scales,
    gamma_setting,
    known_settings,
    per_feature_setting,
    replaced,
)
from dkgp.kernels.program import ProgramBuilder
from dkgp.kernels.stationary import EXP2


@register_kernel
@dataclass(frozen=True)
class Periodic(LengthScaleKernel):
    """k(x, x') = v exp(-4 sum_l gamma_l sin^2(pi (x_l - x'_l) / period_l)).

    MacKay's kernel (1998; Rasmussen and Williams 2006, equation 4.31): a squared exponential of points on circles, each
    feature x being mapped to c(x) = (cos, sin)(2 pi x / period), and |c(x) - c(x')|^2 = 4 sin^2(pi (x - x') / period).
    With gamma_l = 1 / (2 lengthscale_l^2) the exponent is -2 sum_l sin^2(...) / lengthscale_l^2.

    Parameters
    ----------
    gamma : float or sequence of d floats
        Inverse squared length scales on the circle; zero switches a feature off. A single value with `n_features` is
        the gamma of all features.
    period : float or sequence of d floats, default 1.0
        In units of the (standardised) inputs; one value may serve all features.
    variance : float, default 1.0
        The amplitude v.
    n_features : int, optional
        Number of features d; the greater number of values given by default.

    Raises
    ------
    InputError
        A parameter that is not positive (gamma: or zero) and finite, or counts that do not fit.
    """

    gamma: tuple[float, ...]
    period: tuple[float, ...] = (1.0,)
    variance: float = 1.0
    n_features: int = 0

    type_name: ClassVar[str] = "periodic"

    def __post_init__(self) -> None:
        self.settle(gamma=checked_per_feature("gamma", self.gamma, zero=True))
        self.settle(period=checked_per_feature("period", self.period, zero=False))
        self.settle(variance=require_positive("the kernel's variance", self.variance))
        self.settle(n_features=checked_features(self.n_features, gamma=self.gamma, period=self.period))

    @classmethod
    def from_length_scales(
        cls, length_scales: ArrayLike, period: ArrayLike = 1.0, variance: float = 1.0, n_features: int = 0
    ) -> Self:
        """The kernel with these length scales and periods, one for each feature or one for all (d,)."""
        periods = tuple(np.atleast_1d(np.asarray(period, dtype=np.float64)).tolist())
        return cls(gamma_of_length_scales(length_scales), periods, variance, n_features)

    @property
    def feature_period(self) -> tuple[float, ...]:
        """period_1 .. period_d, also where one value serves all."""
        return by_feature(self.period, self.n_features)

    def __call__(self, A: ArrayLike, B: ArrayLike) -> FloatArray:
        """Evaluate all pairs by direct differences in float64; see `Kernel.__call__`."""
        left, right = self.rows(A, B)
        exponent = np.zeros((left.shape[0], right.shape[0]))
        for column, (weight, period) in enumerate(zip(self.feature_gamma, self.feature_period, strict=True)):
            difference = left[:, None, column] - right[None, :, column]
            exponent -= 4.0 * weight * np.sin(math.pi * difference / period) ** 2
        return self.variance * np.exp(exponent)

    def diagonal(self, A: ArrayLike) -> FloatArray:
        """k(x, x) = v for each row of `A`."""
        return np.full(self.one_side(A).shape[0], self.variance)

    def linearise(self, A: ArrayLike, B: ArrayLike) -> tuple[FloatArray, Pullback]:
        """Values and derivatives by products of points on circles; see `Kernel.linearise`.

        With angles t = 2 pi x / period and c = sqrt(gamma) (cos t, sin t), the exponent is -|c - c'|^2, and
        dk / dlog period = 2 k gamma (t - t') sin(t - t'), where sin(t - t') = sin t cos t' - cos t sin t'.
        """
        left, right = self.rows(A, B)
        active = np.flatnonzero(self.feature_gamma)
        root = np.sqrt(np.asarray(self.feature_gamma)[active])
        frequency = 2.0 * math.pi / np.asarray(self.feature_period)[active]
        # Derivatives grow with the angles.
        t_left, t_right = centred(left, right, active, frequency)
        c_right = np.hstack([root * np.cos(t_right), root * np.sin(t_right)])
        c_left = c_right if left is right else np.hstack([root * np.cos(t_left), root * np.sin(t_left)])
        values = squared_distances(c_left, c_right)
        np.negative(values, out=values)
        np.exp(values, out=values)
        values *= self.variance
        count = active.size

        def pullback(weights: FloatArray) -> FloatArray:
            D = weights * values
            by_coordinate = spread(D, c_left, c_right)
            gamma = -(by_coordinate[:count] + by_coordinate[count:])
            cos_left, sin_left = c_left[:, :count], c_left[:, count:]
            product = D @ np.hstack([c_right, np.tile(t_right, 2) * c_right])
            plain, turned = product[:, : 2 * count], product[:, 2 * count :]
            period = 2.0 * np.einsum(
                "il,il->l", sin_left, t_left * plain[:, :count] - turned[:, :count]
            ) - 2.0 * np.einsum("il,il->l", cos_left, t_left * plain[:, count:] - turned[:, count:])
            return np.concatenate([self._gathered(gamma, self.gamma), self._gathered(period, self.period), [D.sum()]])

        return values, pullback

    def _gathered(self, gradient: FloatArray, values: tuple[float, ...]) -> FloatArray:
        """A gradient by active feature as one by free parameter."""
        if len(values) == self.n_features:
            return gradient
        return np.array([gradient.sum()]) if gradient.size else np.empty(0)

    def parameters(self) -> tuple[Parameter, ...]:
        """gamma_1 .. gamma_d, period_1 .. period_d (or the one for all; none of a feature that is off), then v."""
        gammas = feature_parameters("gamma", self.gamma, GAMMA_BOUNDS, self.n_features)
        periods = feature_parameters("period", self._free(), PERIOD_BOUNDS, self.n_features)
        return (*gammas, *periods, Parameter("variance", self.variance, *VARIANCE_BOUNDS))

    def with_parameters(self, values: ArrayLike) -> Self:
        """Return the kernel with other parameters; see `Kernel.with_parameters`."""
        checked = iter(self.checked_values(values))
        gamma = replaced(self.gamma, checked)
        free = replaced(self._free(), checked)
        period = tuple(new or old for new, old in zip(free, self.period, strict=True))
        return replace(self, gamma=gamma, period=period, variance=next(checked))

    def _free(self) -> tuple[float, ...]:
        """The periods, zero where they change nothing."""
        if len(self.period) < self.n_features:
            return self.period if any(self.gamma) else (0.0,)
        return tuple(period if weight else 0.0 for period, weight in zip(self.period, self.feature_gamma, strict=True))

    def frequencies(self, count: int, rng: np.random.Generator) -> FloatArray:
        """Whole numbers of waves in a period; see `Kernel.frequencies`.

        exp(z (cos t - 1)) = sum_j exp(-z) I_j(z) cos(j t): j is distributed as the difference of two Poisson counts.
        """
        z, shape = 2.0 * np.asarray(self.feature_gamma), (count, self.n_features)
        waves = rng.poisson(z / 2.0, shape) - rng.poisson(z / 2.0, shape)
        return np.asarray(2.0 * np.pi * waves / np.asarray(self.feature_period))

    def emit(self, builder: ProgramBuilder, columns: tuple[int, ...]) -> float:
        """exp(-s) = 2**(-s log2 e) of points on circles; see `Kernel.emit`."""
        scale = [math.sqrt(value * LOG2_E) for value in self.feature_gamma]
        builder.leaf(EXP2, columns, scale, periods=self.feature_period)
        return self.variance

    @classmethod
    def start(cls, settings: Settings, n_features: int) -> Self:
        """See `Kernel.start`; periods 1 by default, and gamma as of a `DistanceKernel`."""
        isotropic = settings.get("isotropic") is True
        gamma = gamma_setting(settings, n_features)
        periods = tuple(np.atleast_1d(settings.pop("period", 1.0)).tolist())
        period = per_feature_setting("period", periods, n_features, isotropic)
        known = known_settings(settings, "length_scale", "isotropic", "period")
        return cls(gamma, period, n_features=n_features, **known)
