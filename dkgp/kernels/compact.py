"""Spherical, cubic and Wendland kernels: polynomials of the distance that are zero from a range on.

Geostatistics fits them as variograms; most entries of a kernel matrix with a short range are exactly zero. They are
positive definite in up to three dimensions (Chiles and Delfiner 2012, section 2.5; Wendland 1995).

With u = r / range, w = 1 - u, and zero from u = 1 on:

    spherical   w^2 (1 + u/2)                    = 1 - 3/2 u + 1/2 u^3
    cubic       w^4 (1 + 4 u + 3 u^2 + 3/4 u^3)  = 1 - 7 u^2 + 35/4 u^3 - 7/2 u^5 + 3/4 u^7
    Wendland    w^4 (1 + 4 u)                    = 1 - 10 u^2 + 20 u^3 - 15 u^4 + 4 u^5

The compiled loops read s = u^2 and take the first form, none of whose factors is negative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from dkgp.errors import InputError
from dkgp.kernels.base import FloatArray, Settings, register_kernel
from dkgp.kernels.distance import DistanceKernel
from dkgp.kernels.program import Functions, Profile
from dkgp.kernels.spectrum import radial_frequencies
from dkgp.kernels.vector_math import fma

MOST_DIMENSIONS = 3
# A search starts from a range of three deviations a feature, where half of the pairs of samples still tell of it.
_START_RANGE = 3.0
# Above the relative rounding of every modulus.
_MODULUS_ROUNDINGS = 1.0 + 1e-12


@dataclass(frozen=True)
class _Form:
    """(1 - u)^power times a polynomial of u whose coefficients are positive, `factors` of u^0, u^1, ..."""

    power: int
    factors: tuple[float, ...]

    def at(self, u: Any) -> Any:
        """Return the value at a distance u, of any type of numbers."""
        return (1 - u) ** self.power * self._factor(u)

    def formula(self, s: Any, parameter: float, functions: Functions) -> Any:
        """See `Profile.formula`."""
        return self.at(functions.sqrt(s))

    def value(self, s: float, parameter: float) -> Any:
        """See `Profile.value`."""
        return self.at(min(np.sqrt(s), 1.0))

    def modulus(self, re_s: Any, re_root: Any, size: Any, parameter: float) -> Any:
        """See `Profile.modulus`; uses |1 - u|^2 = 1 - 2 Re u + |u|^2."""
        re_root, size = np.maximum(re_root, 0.0), np.asarray(size)
        # The last term is for the roundings of the others.
        inside = np.maximum(1.0 - 2.0 * re_root + size * size, 0.0) + 1e-15 * (1.0 + size * size)
        return _MODULUS_ROUNDINGS * inside ** (self.power // 2) * self._factor(size)

    def _factor(self, u: Any) -> Any:
        value = self.factors[-1]
        for factor in self.factors[-2::-1]:
            value = factor + u * value
        return value


_SPHERICAL_FORM = _Form(2, (1.0, 0.5))
_CUBIC_FORM = _Form(4, (1.0, 4.0, 3.0, 0.75))
_WENDLAND_FORM = _Form(4, (1.0, 4.0))


# ------------------------------------------------------------------------------------------------------------ spherical


def _spherical(values, parameters, floor):  # type: ignore[no-untyped-def]
    convert = values.dtype.type
    zero, half, one = convert(0.0), convert(0.5), convert(1.0)
    for i in range(len(values)):
        u = min(np.sqrt(max(-values[i], zero)), one)
        w = one - u
        values[i] = w * w * fma(half, u, one)


def _steepest_spherical(r: float, parameter: float) -> Any:
    return 1.5 * max(1.0 - r * r, 0.0)


def _bulge_spherical(r: float, parameter: float) -> Any:
    bulge = min(max(r, math.sqrt(1.0 / 3.0)), 1.0)
    return 0.75 * bulge * (1.0 - bulge * bulge)


SPHERICAL = Profile(
    "spherical",
    _spherical,
    rounding=7.0,
    steepest=_steepest_spherical,
    bulge=_bulge_spherical,
    value=_SPHERICAL_FORM.value,
    formula=_SPHERICAL_FORM.formula,
    modulus=_SPHERICAL_FORM.modulus,
    branch=0.0,
    support=1.0,
)
"""(1 - u)^2 (1 + u/2), u = sqrt(s) < 1"""


# ---------------------------------------------------------------------------------------------------------------- cubic

# Where |dk/du| and u |dk/du| are greatest: roots of 4 - 7u - 18u^2 - 9u^3 and 8 - 13/2 u - 21u^2 - 21/2 u^3.
_CUBIC_STEEPEST_AT = 0.30182466868864485
_CUBIC_BULGE_AT = 0.4457535782549816


def _cubic(values, parameters, floor):  # type: ignore[no-untyped-def]
    convert = values.dtype.type
    zero, one = convert(0.0), convert(1.0)
    three_quarters, three, four = convert(0.75), convert(3.0), convert(4.0)
    for i in range(len(values)):
        u = min(np.sqrt(max(-values[i], zero)), one)
        w = one - u
        square = w * w
        values[i] = square * square * fma(u, fma(u, fma(u, three_quarters, three), four), one)


def _slopes_cubic(values, parameters, floor):  # type: ignore[no-untyped-def]
    convert = values.dtype.type
    zero, one = convert(0.0), convert(1.0)
    first, second, third = convert(-7.0), convert(-7.875), convert(-2.625)
    for i in range(len(values)):
        u = min(np.sqrt(max(-values[i], zero)), one)
        w = one - u
        values[i] = w * w * w * fma(u, fma(u, third, second), first)


def _steepest_cubic(r: float, parameter: float) -> Any:
    u = min(max(r, _CUBIC_STEEPEST_AT), 1.0)
    return u * (1.0 - u) ** 3 * (14.0 + u * (15.75 + 5.25 * u))


def _bulge_cubic(r: float, parameter: float) -> Any:
    u = min(max(r, _CUBIC_BULGE_AT), 1.0)
    return u * u * (1.0 - u) ** 3 * (7.0 + u * (7.875 + 2.625 * u))


CUBIC = Profile(
    "cubic",
    _cubic,
    rounding=13.0,
    steepest=_steepest_cubic,
    bulge=_bulge_cubic,
    value=_CUBIC_FORM.value,
    slope_at_zero=lambda parameter: 7.0,
    slopes=_slopes_cubic,
    formula=_CUBIC_FORM.formula,
    modulus=_CUBIC_FORM.modulus,
    branch=0.0,
    support=1.0,
)
"""(1 - u)^4 (1 + 4 u + 3 u^2 + 3/4 u^3), u = sqrt(s) < 1"""


# ------------------------------------------------------------------------------------------------------------- Wendland


def _wendland(values, parameters, floor):  # type: ignore[no-untyped-def]
    convert = values.dtype.type
    zero, one, four = convert(0.0), convert(1.0), convert(4.0)
    for i in range(len(values)):
        u = min(np.sqrt(max(-values[i], zero)), one)
        w = one - u
        square = w * w
        values[i] = square * square * fma(four, u, one)


def _slopes_wendland(values, parameters, floor):  # type: ignore[no-untyped-def]
    convert = values.dtype.type
    zero, one, factor = convert(0.0), convert(1.0), convert(-10.0)
    for i in range(len(values)):
        w = one - min(np.sqrt(max(-values[i], zero)), one)
        values[i] = factor * (w * w * w)


def _steepest_wendland(r: float, parameter: float) -> Any:
    steepest = min(max(r, 0.25), 1.0)
    return 20.0 * steepest * (1.0 - steepest) ** 3


def _bulge_wendland(r: float, parameter: float) -> Any:
    bulge = min(max(r, 0.4), 1.0)
    return 10.0 * bulge * bulge * (1.0 - bulge) ** 3


WENDLAND = Profile(
    "wendland",
    _wendland,
    rounding=11.0,
    steepest=_steepest_wendland,
    bulge=_bulge_wendland,
    value=_WENDLAND_FORM.value,
    slope_at_zero=lambda parameter: 10.0,
    slopes=_slopes_wendland,
    formula=_WENDLAND_FORM.formula,
    modulus=_WENDLAND_FORM.modulus,
    branch=0.0,
    support=1.0,
)
"""(1 - u)^4 (1 + 4 u), u = sqrt(s) < 1"""


# -------------------------------------------------------------------------------------------------------------- kernels


@dataclass(frozen=True)
class _Compact(DistanceKernel):
    """A kernel of u = sqrt(2 s) = r / range, which is zero from u = 1 on.

    The length scale of a feature is its range: gamma_l = 1 / (2 range_l^2), as for every kernel of a distance.
    """

    _instead: ClassVar[str]
    _form: ClassVar[_Form]
    # Coefficients of u^0, u^1, ...
    _polynomial: ClassVar[tuple[float, ...]]

    def __post_init__(self) -> None:
        super().__post_init__()
        dimensions = sum(gamma > 0.0 for gamma in self.feature_gamma)
        if dimensions > MOST_DIMENSIONS:
            raise InputError(
                f"a {self.type_name} kernel is no covariance in {dimensions} dimensions, only in up to "
                f"{MOST_DIMENSIONS}; take {self._instead}, or name up to {MOST_DIMENSIONS} features, as in "
                f"'{self.type_name}[0, 1]'"
            )

    @property
    def ranges(self) -> tuple[float, ...]:
        """The distance along each feature from which on the kernel is zero: the length scales."""
        return self.length_scales

    def profile(self, s: FloatArray) -> FloatArray:
        """f(s), a polynomial of u; see the module."""
        return np.asarray(self._form.at(self._distance(s)))

    def _distance(self, s: FloatArray) -> FloatArray:
        u = 2.0 * s
        np.sqrt(u, out=u)
        return np.minimum(u, 1.0, out=u)

    def _scale(self, gamma: float) -> float:
        """u^2 = 2 s."""
        return math.sqrt(2.0 * gamma)

    def frequencies(self, count: int, rng: np.random.Generator) -> FloatArray:
        """Draw from the spectral distribution in three dimensions, projected where there are fewer."""
        active = np.flatnonzero(np.asarray(self.feature_gamma) > 0.0)
        result = np.zeros((count, self.n_features))
        scale = np.sqrt(2.0 * np.asarray(self.feature_gamma)[active])
        result[:, active] = scale * radial_frequencies(self._polynomial, count, rng)[:, : len(active)]
        return result

    @classmethod
    def start(cls, settings: Settings, n_features: int) -> Self:
        """See `Kernel.start`; a range of three deviations times the root of d by default."""
        settings.setdefault("length_scale", _START_RANGE * math.sqrt(n_features))
        return super().start(settings, n_features)


@register_kernel
@dataclass(frozen=True)
class Spherical(_Compact):
    """k(x, x') = v (1 - 3/2 u + 1/2 u^3) for u < 1, else 0: continuous but not smooth, for up to three features.

    Parameters are those of `DistanceKernel`: u = r / range, and the range is the length scale, gamma_l = 1 / (2
    range_l^2). `Spherical.from_length_scales(ranges)` takes ranges.

    Examples
    --------
    >>> kernel = Spherical.from_length_scales((2.0, 2.0))
    >>> kernel([[0.0, 0.0]], [[1.0, 0.0], [0.0, 2.0]]).tolist()
    [[0.3125, 0.0]]
    """

    type_name: ClassVar[str] = "spherical"
    compiled: ClassVar[Profile] = SPHERICAL
    _form: ClassVar[_Form] = _SPHERICAL_FORM
    _instead: ClassVar[str] = "matern12"
    _polynomial: ClassVar[tuple[float, ...]] = (1.0, -1.5, 0.0, 0.5)

    def slope(self, s: FloatArray, f: FloatArray) -> FloatArray:
        """f'(s) = -3/2 (1 - u^2) / u; zero at s = 0, where it is infinite but times a difference of zero."""
        u = self._distance(s)
        result = np.zeros_like(u)
        # Rounding makes distances as small as this of zero.
        np.divide(1.0 - u * u, u, out=result, where=u > 1e-7)
        result *= -1.5
        return result


@register_kernel
@dataclass(frozen=True)
class Cubic(_Compact):
    """k(x, x') = v (1 - 7 u^2 + 35/4 u^3 - 7/2 u^5 + 3/4 u^7) for u < 1, else 0, for up to three features.

    Functions are differentiable once. Parameters are those of `DistanceKernel`: u = r / range, and the range is the
    length scale, gamma_l = 1 / (2 range_l^2). `Cubic.from_length_scales(ranges)` takes ranges.
    """

    type_name: ClassVar[str] = "cubic"
    compiled: ClassVar[Profile] = CUBIC
    _form: ClassVar[_Form] = _CUBIC_FORM
    _instead: ClassVar[str] = "matern32"
    _polynomial: ClassVar[tuple[float, ...]] = (1.0, 0.0, -7.0, 8.75, 0.0, -3.5, 0.0, 0.75)

    def slope(self, s: FloatArray, f: FloatArray) -> FloatArray:
        """f'(s) = -(1 - u)^3 (14 + 63/4 u + 21/4 u^2)."""
        u = self._distance(s)
        return np.asarray((u - 1.0) ** 3 * (14.0 + u * (15.75 + 5.25 * u)))


@register_kernel
@dataclass(frozen=True)
class Wendland(_Compact):
    """k(x, x') = v (1 - u)^4 (1 + 4 u) for u < 1, else 0: Wendland's C2 function, for up to three features.

    Functions are differentiable once. Parameters are those of `DistanceKernel`: u = r / range, and the range is the
    length scale, gamma_l = 1 / (2 range_l^2). `Wendland.from_length_scales(ranges)` takes ranges.
    """

    type_name: ClassVar[str] = "wendland"
    compiled: ClassVar[Profile] = WENDLAND
    _form: ClassVar[_Form] = _WENDLAND_FORM
    _instead: ClassVar[str] = "matern32"
    _polynomial: ClassVar[tuple[float, ...]] = (1.0, 0.0, -10.0, 20.0, -15.0, 4.0)

    def slope(self, s: FloatArray, f: FloatArray) -> FloatArray:
        """f'(s) = -20 (1 - u)^3."""
        u = self._distance(s)
        return np.asarray(20.0 * (u - 1.0) ** 3)
