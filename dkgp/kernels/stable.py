"""Stable (powered exponential) kernel, exp(-r^a) with 0 < a <= 2 (Chiles and Delfiner 2012, section 2.5).

It is a mixture of squared exponentials whose weights are a positive stable distribution, so it is a covariance in any
number of features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from dkgp.errors import InputError
from dkgp.kernels.base import FloatArray, Settings, register_kernel, require_positive
from dkgp.kernels.distance import DistanceKernel
from dkgp.kernels.fields import gamma_setting, known_settings
from dkgp.kernels.program import Functions, Profile, ProgramBuilder
from dkgp.kernels.vector_math import exp2, log2_1p

LOG2_E = 1.0 / math.log(2.0)
GREATEST = 2.0
# Below this distance the bounds for a < 1 take a line above r^a, which is infinitely steep at zero: the tangent here.
_TANGENT = 1e-15
_LEAST = 1e-280
# Every bound counts the bulge at least so often, in units of this.
_COUNTED, _UNIT = 12.0, 2.0**-53
# Above the relative rounding of a modulus, and the absolute one of its exponent in units of the largest power.
_MODULUS_ROUNDINGS, _SLACK = 1.0 + 1e-12, 1e-13


def _stable(values, parameters, floor):  # type: ignore[no-untyped-def]
    convert = values.dtype.type
    zero, one, power = convert(0.0), convert(1.0), convert(0.5 * parameters[0])
    tiny, factor = np.finfo(values.dtype).tiny, convert(-LOG2_E)
    for i in range(len(values)):
        s = max(-values[i], tiny)
        # log2 s, from a number of at least one
        size = log2_1p(max(s, one / s) - one)
        root = exp2(power * (size if s > one else -size), floor)
        values[i] = exp2(factor * root, floor) if -values[i] > zero else one


def _value(s: float, parameter: float) -> Any:
    return np.exp(-(np.asarray(s, np.float64) ** (0.5 * parameter)))


def _steepest(r: float, parameter: float) -> Any:
    """See `Profile.steepest`; for a < 1, |r^a - q^a| <= |r - q|^a <= (1 - a) t^a + a t^(a - 1) |r - q| for every t > 0.

    The constant is part of `_bulge`.
    """
    if parameter < 1.0:
        if r < _TANGENT:
            return parameter * _TANGENT ** (parameter - 1.0)
        return parameter * r ** (parameter - 1.0) * np.exp(-(r**parameter))
    steepest = max(r, (1.0 - 1.0 / parameter) ** (1.0 / parameter))
    return parameter * steepest ** (parameter - 1.0) * np.exp(-(steepest**parameter))


def _bulge(r: float, parameter: float) -> Any:
    power = max(r**parameter, 1.0)
    constant = 0.0
    if parameter < 1.0 and r < _TANGENT:
        constant = (1.0 - parameter) * _TANGENT**parameter / (_COUNTED * _UNIT)
    return 0.5 * parameter * power * np.exp(-power) + constant


def _formula(s: Any, parameter: float, functions: Functions) -> Any:
    # log s to an absolute error however small s is, from a function that every type of numbers has.
    q = s + _LEAST
    return functions.exp(-functions.exp(0.5 * parameter * (functions.log1p(q) - functions.log1p(1.0 / q))))


def _modulus(re_s: Any, re_root: Any, size: Any, parameter: float) -> Any:
    """Bound exp(-Re s^(a/2)): with q = sqrt(s), Re q^a is harmonic in the half-disc Re q >= re_root, |q| <= size.

    It is least at the corners for a > 1, where it is size^a cos(a acos(re_root / size)). For a <= 1 it is at least
    re_root^a, and Re s^(a/2) at least (Re s)^(a/2) where Re s > 0, since log cos is concave.
    """
    re_s, re_root, size = (np.asarray(value, np.float64) for value in (re_s, np.maximum(re_root, 0.0), size))
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        least = np.where(re_s > 0.0, np.maximum(re_s, 0.0) ** (0.5 * parameter), -np.inf)
        if parameter <= 1.0:
            least = np.maximum(least, re_root**parameter)
        else:
            share = np.minimum(re_root / size, 1.0)
            # Roundings of the share change its angle most where it is one.
            angle = np.minimum(np.arccos(share) + 4e-15 + 4e-8 * (share > 0.99), 0.5 * np.pi)
            least = np.maximum(least, size**parameter * np.cos(parameter * angle))
        least = least - _SLACK * size**parameter
        return _MODULUS_ROUNDINGS * np.maximum(np.exp(-least), 1e-300)


STABLE = Profile(
    "stable",
    _stable,
    rounding=14.0,
    steepest=_steepest,
    bulge=_bulge,
    value=_value,
    parameters=1,
    formula=_formula,
    modulus=_modulus,
    branch=0.0,
    mixture=True,
)
"""exp(-s**(a/2)); the parameter is a"""


@register_kernel
@dataclass(frozen=True)
class Stable(DistanceKernel):
    """k(x, x') = v exp(-r^alpha), r^2 = 2 s: Matern 1/2 for alpha = 1, a squared exponential for alpha = 2.

    Parameters
    ----------
    gamma, variance, n_features
        See `DistanceKernel`; s = sum_l gamma_l (x_l - x'_l)^2, so r is the distance in length scales.
    alpha : float, default 1.5
        The exponent, above 0 and at most 2. Tuning leaves it as it is.

    Examples
    --------
    >>> kernel = Stable.from_length_scales((2.0, 2.0), alpha=1.5)
    >>> float(kernel([[0.0, 0.0]], [[2.0, 0.0]])[0, 0]) == math.exp(-1.0)
    True
    """

    alpha: float = 1.5

    type_name: ClassVar[str] = "stable"
    compiled: ClassVar[Profile] = STABLE

    def __post_init__(self) -> None:
        super().__post_init__()
        self.settle(alpha=require_positive("alpha", self.alpha))
        if self.alpha > GREATEST:
            raise InputError(f"a stable kernel is a covariance for alpha up to {GREATEST:g}; got {self.alpha:g}")

    def profile(self, s: FloatArray) -> FloatArray:
        """f(s) = exp(-(2 s)^(alpha/2))."""
        f = 2.0 * s
        f **= 0.5 * self.alpha
        np.negative(f, out=f)
        return np.exp(f, out=f)

    def slope(self, s: FloatArray, f: FloatArray) -> FloatArray:
        """f'(s) = -alpha (2 s)^(alpha/2 - 1) f(s); zero at s = 0, where it may be infinite but times zero."""
        result = np.zeros_like(s)
        # Rounding makes distances as small as this of zero.
        far = s > 1e-14
        np.power(2.0 * s, 0.5 * self.alpha - 1.0, out=result, where=far)
        result *= f
        result *= -self.alpha
        return result

    def _scale(self, gamma: float) -> float:
        """r^2 = 2 s."""
        return math.sqrt(2.0 * gamma)

    def emit(self, builder: ProgramBuilder, columns: tuple[int, ...]) -> float:
        """Push the profile with its exponent; see `Kernel.emit`."""
        scale = [self._scale(value) for value in self.feature_gamma]
        builder.leaf(self.compiled, columns, scale, parameters=(self.alpha,))
        return self.variance

    def frequencies(self, count: int, rng: np.random.Generator) -> FloatArray:
        """exp(-(2 s)^p) = E[exp(-2 u s)], u positive and stable with exponent p (Kanter 1975); see the base."""
        normal, p = self._normal(count, rng), 0.5 * self.alpha
        angle, size = np.pi * rng.uniform(size=(count, 1)), rng.exponential(size=(count, 1))
        u = np.sin(p * angle) / np.sin(angle) ** (1.0 / p) * (np.sin((1.0 - p) * angle) / size) ** ((1.0 - p) / p)
        return np.asarray(normal * np.sqrt(2.0 * u))

    @classmethod
    def start(cls, settings: Settings, n_features: int) -> Self:
        """See `Kernel.start`; `alpha` is a setting too."""
        gamma = gamma_setting(settings, n_features)
        return cls(gamma=gamma, n_features=n_features, **known_settings(settings, "length_scale", "isotropic", "alpha"))
