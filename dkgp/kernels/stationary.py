"""Squared exponential, Matern, rational quadratic (Rasmussen and Williams 2006, section 4.2) and stable kernels.

A stable (powered exponential) kernel exp(-r^a), 0 < a <= 2 (Chiles and Delfiner 2012, section 2.5), is a mixture of
squared exponentials whose weights are a positive stable distribution: a covariance in any number of features.

Each has its parts together: its profile in the compiled loops, its greatest slopes, and the kernel itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dkgp.errors import InputError
from dkgp.kernels.base import FloatArray, register_kernel
from dkgp.kernels.distance import LN2, LOG2_E, DistanceKernel
from dkgp.kernels.fields import SHAPE_BOUNDS
from dkgp.kernels.program import Functions, Profile
from dkgp.kernels.vector_math import exp2, exp2_in_place, fma, log2_1p

_GOLDEN = (1.0 + math.sqrt(5.0)) / 2.0
# Above the relative rounding of every modulus: an exponent is off by some units of itself, and it is 745 at most.
_MODULUS_ROUNDINGS = 1.0 + 1e-12
# Numbers close to the least normal one have lost digits.
_LEAST_POWER = 1e-300


def _exponential_modulus(exponent: Any, factor: Any = 1.0) -> Any:
    """Return `factor` exp(-exponent), rounded up."""
    with np.errstate(over="ignore", under="ignore"):
        return _MODULUS_ROUNDINGS * factor * np.maximum(np.exp(-np.asarray(exponent)), _LEAST_POWER)


def _least_root(re_s: Any, re_root: Any) -> Any:
    """Return a lower bound of Re sqrt(s), which is never negative, and whose square is Re s or more."""
    return np.maximum(np.maximum(re_root, 0.0), np.sqrt(np.maximum(re_s, 0.0)))


# ------------------------------------------------------------------------------------------------- squared exponential


def _power_of_two(values, parameters, floor):  # type: ignore[no-untyped-def]
    exp2_in_place(values, floor)


def _slopes_exp2(values, parameters, floor):  # type: ignore[no-untyped-def]
    factor = values.dtype.type(-LN2)
    for i in range(len(values)):
        values[i] = factor * exp2(values[i], floor)


def _value_exp2(s: float, parameter: float) -> Any:
    return 2.0 ** (-s)


def _steepest_exp2(r: float, parameter: float) -> Any:
    steepest = max(r, math.sqrt(0.5 / LN2))
    return 2.0 * LN2 * steepest * 2.0 ** (-steepest * steepest)


def _bulge_exp2(r: float, parameter: float) -> Any:
    bulge = max(r * r, 1.0 / LN2)
    return LN2 * bulge * 2.0 ** (-bulge)


def _formula_exp2(s: Any, parameter: float, functions: Functions) -> Any:
    return functions.exp(-functions.ln2 * s)


def _modulus_exp2(re_s: Any, re_root: Any, size: Any, parameter: float) -> Any:
    return _exponential_modulus(LN2 * np.asarray(re_s))


EXP2 = Profile(
    "power_of_two",
    _power_of_two,
    rounding=4.0,
    steepest=_steepest_exp2,
    bulge=_bulge_exp2,
    value=_value_exp2,
    slope_at_zero=lambda parameter: LN2,
    multiplies=True,
    slopes=_slopes_exp2,
    formula=_formula_exp2,
    modulus=_modulus_exp2,
    mixture=True,
)
"""2**-s"""


@register_kernel
@dataclass(frozen=True)
class SquaredExponential(DistanceKernel):
    """k(x, x') = v exp(-sum_l gamma_l (x_l - x'_l)^2), the kernel of the GBCD paper (section 3) with an amplitude v.

    Parameters
    ----------
    gamma : float or sequence of d floats
        Inverse squared length scales, gamma_l = 1 / (2 lengthscale_l^2); zero switches a feature off. A single value
        with `n_features` is the gamma of all features: an isotropic kernel, with one parameter for them.
    variance : float, default 1.0
        The amplitude v = k(x, x); 1 in the paper.
    n_features : int, optional
        Number of features d; the length of `gamma` by default.

    Raises
    ------
    InputError
        A negative, infinite or missing gamma, an amplitude that is not positive, or another number of features.

    Examples
    --------
    >>> kernel = SquaredExponential(gamma=(0.5, 0.5))
    >>> float(kernel([[0.0, 0.0]], [[1.0, 1.0]])[0, 0]) == math.exp(-1.0)
    True
    """

    type_name: ClassVar[str] = "rbf"
    compiled: ClassVar[Profile] = EXP2

    def profile(self, s: FloatArray) -> FloatArray:
        """f(s) = exp(-s)."""
        f = np.negative(s)
        return np.exp(f, out=f)

    def slope(self, s: FloatArray, f: FloatArray) -> FloatArray:
        """f'(s) = -f(s)."""
        return np.negative(f)

    def _scale(self, gamma: float) -> float:
        """exp(-s) = 2**(-s log2 e): the log2 e goes into the scale."""
        return math.sqrt(gamma * LOG2_E)

    def frequencies(self, count: int, rng: np.random.Generator) -> FloatArray:
        """Draw from a normal distribution; see `Kernel.frequencies`."""
        return self._normal(count, rng)


# --------------------------------------------------------------------------------------------------------------- Matern


@dataclass(frozen=True)
class _Matern(DistanceKernel):
    """A Matern kernel, of u = sqrt(2 nu) r = sqrt(4 nu s), the exponent."""

    _twice_nu: ClassVar[int]

    def _exponent(self, s: FloatArray) -> FloatArray:
        u = s * (2.0 * self._twice_nu)
        return np.sqrt(u, out=u)

    def _scale(self, gamma: float) -> float:
        """exp(-u) = 2**(-u log2 e), so the scaled squared distance is (u log2 e)^2."""
        return math.sqrt(2.0 * self._twice_nu) * LOG2_E * math.sqrt(gamma)

    def frequencies(self, count: int, rng: np.random.Generator) -> FloatArray:
        """Draw from Student's t distribution with 2 nu degrees of freedom; see `Kernel.frequencies`."""
        normal = self._normal(count, rng)
        return np.asarray(normal / np.sqrt(rng.chisquare(self._twice_nu, (count, 1)) / self._twice_nu))


def _matern12(values, parameters, floor):  # type: ignore[no-untyped-def]
    zero = values.dtype.type(0.0)
    for i in range(len(values)):
        values[i] = exp2(-np.sqrt(max(-values[i], zero)), floor)


def _value_matern12(s: float, parameter: float) -> Any:
    return np.exp(-LN2 * np.sqrt(s))


def _steepest_matern12(r: float, parameter: float) -> Any:
    return LN2 * np.exp(-LN2 * r)


def _bulge_matern12(r: float, parameter: float) -> Any:
    bulge = max(LN2 * r, 1.0)
    return 0.5 * bulge * np.exp(-bulge)


def _formula_matern12(s: Any, parameter: float, functions: Functions) -> Any:
    return functions.exp(-functions.ln2 * functions.sqrt(s))


def _modulus_matern12(re_s: Any, re_root: Any, size: Any, parameter: float) -> Any:
    return _exponential_modulus(LN2 * _least_root(re_s, re_root))


MATERN12 = Profile(
    "matern12",
    _matern12,
    rounding=5.0,
    steepest=_steepest_matern12,
    bulge=_bulge_matern12,
    value=_value_matern12,
    formula=_formula_matern12,
    modulus=_modulus_matern12,
    branch=0.0,
    mixture=True,
)
"""2**-u, u = sqrt(s)"""


@register_kernel
@dataclass(frozen=True)
class Matern12(_Matern):
    """k(x, x') = v exp(-r), r^2 = 2 s: the Matern kernel of nu = 1/2 (equation 4.17), continuous but not smooth.

    Parameters are those of `DistanceKernel`: s = sum_l gamma_l (x_l - x'_l)^2, so r is the distance in length scales.
    """

    type_name: ClassVar[str] = "matern12"
    compiled: ClassVar[Profile] = MATERN12
    _twice_nu: ClassVar[int] = 1

    def profile(self, s: FloatArray) -> FloatArray:
        """f(s) = exp(-r)."""
        u = self._exponent(s)
        np.negative(u, out=u)
        return np.exp(u, out=u)

    def slope(self, s: FloatArray, f: FloatArray) -> FloatArray:
        """f'(s) = -exp(-r) / r; zero at s = 0, where it is infinite but times a difference of zero."""
        u = self._exponent(s)
        result = np.zeros_like(u)
        # Rounding makes distances as small as this of zero.
        np.divide(f, u, out=result, where=u > 1e-7)
        return np.negative(result, out=result)


def _matern32(values, parameters, floor):  # type: ignore[no-untyped-def]
    convert = values.dtype.type
    zero, one, ln2 = convert(0.0), convert(1.0), convert(LN2)
    for i in range(len(values)):
        u = min(np.sqrt(max(-values[i], zero)), -floor)
        values[i] = fma(ln2, u, one) * exp2(-u, floor)


def _slopes_matern32(values, parameters, floor):  # type: ignore[no-untyped-def]
    zero, factor = values.dtype.type(0.0), values.dtype.type(-0.5 * LN2 * LN2)
    for i in range(len(values)):
        values[i] = factor * exp2(-np.sqrt(max(-values[i], zero)), floor)


def _value_matern32(s: float, parameter: float) -> Any:
    v = LN2 * np.sqrt(s)
    return (1.0 + v) * np.exp(-v)


def _steepest_matern32(r: float, parameter: float) -> Any:
    steepest = max(LN2 * r, 1.0)
    return LN2 * steepest * np.exp(-steepest)


def _bulge_matern32(r: float, parameter: float) -> Any:
    bulge = max(LN2 * r, 2.0)
    return 0.5 * bulge * bulge * np.exp(-bulge)


def _formula_matern32(s: Any, parameter: float, functions: Functions) -> Any:
    v = functions.ln2 * functions.sqrt(s)
    return (1 + v) * functions.exp(-v)


def _modulus_matern32(re_s: Any, re_root: Any, size: Any, parameter: float) -> Any:
    return _exponential_modulus(LN2 * _least_root(re_s, re_root), 1.0 + LN2 * np.asarray(size))


MATERN32 = Profile(
    "matern32",
    _matern32,
    rounding=9.0,
    steepest=_steepest_matern32,
    bulge=_bulge_matern32,
    value=_value_matern32,
    slope_at_zero=lambda parameter: LN2**2 / 2.0,
    slopes=_slopes_matern32,
    formula=_formula_matern32,
    modulus=_modulus_matern32,
    branch=0.0,
    mixture=True,
)
"""(1 + v) 2**-u, u = sqrt(s), v = u ln 2"""


@register_kernel
@dataclass(frozen=True)
class Matern32(_Matern):
    """k(x, x') = v (1 + u) exp(-u), u = sqrt(3) r, r^2 = 2 s: the Matern kernel of nu = 3/2 (equation 4.17).

    Parameters are those of `DistanceKernel`: s = sum_l gamma_l (x_l - x'_l)^2, so r is the distance in length scales.
    """

    type_name: ClassVar[str] = "matern32"
    compiled: ClassVar[Profile] = MATERN32
    _twice_nu: ClassVar[int] = 3

    def profile(self, s: FloatArray) -> FloatArray:
        """f(s) = (1 + u) exp(-u)."""
        u = self._exponent(s)
        f = np.exp(-u)
        u += 1.0
        f *= u
        return f

    def slope(self, s: FloatArray, f: FloatArray) -> FloatArray:
        """f'(s) = -3 exp(-u)."""
        u = self._exponent(s)
        np.negative(u, out=u)
        np.exp(u, out=u)
        u *= -3.0
        return u


def _matern52(values, parameters, floor):  # type: ignore[no-untyped-def]
    convert = values.dtype.type
    zero, one, third, ln2 = convert(0.0), convert(1.0), convert(1.0 / 3.0), convert(LN2)
    for i in range(len(values)):
        u = min(np.sqrt(max(-values[i], zero)), -floor)
        v = ln2 * u
        values[i] = fma(v, fma(v, third, one), one) * exp2(-u, floor)


def _slopes_matern52(values, parameters, floor):  # type: ignore[no-untyped-def]
    convert = values.dtype.type
    zero, one, ln2, factor = convert(0.0), convert(1.0), convert(LN2), convert(-LN2 * LN2 / 6.0)
    for i in range(len(values)):
        u = min(np.sqrt(max(-values[i], zero)), -floor)
        values[i] = factor * fma(ln2, u, one) * exp2(-u, floor)


def _value_matern52(s: float, parameter: float) -> Any:
    v = LN2 * np.sqrt(s)
    return (1.0 + v + v * v / 3.0) * np.exp(-v)


def _steepest_matern52(r: float, parameter: float) -> Any:
    steepest = max(LN2 * r, _GOLDEN)
    return LN2 / 3.0 * steepest * (1.0 + steepest) * np.exp(-steepest)


def _bulge_matern52(r: float, parameter: float) -> Any:
    bulge = max(LN2 * r, 1.0 + math.sqrt(3.0))
    return bulge * bulge / 6.0 * (1.0 + bulge) * np.exp(-bulge)


def _formula_matern52(s: Any, parameter: float, functions: Functions) -> Any:
    v = functions.ln2 * functions.sqrt(s)
    return (1 + v + v * v / 3) * functions.exp(-v)


def _modulus_matern52(re_s: Any, re_root: Any, size: Any, parameter: float) -> Any:
    v = LN2 * np.asarray(size)
    return _exponential_modulus(LN2 * _least_root(re_s, re_root), 1.0 + v + v * v / 3.0)


MATERN52 = Profile(
    "matern52",
    _matern52,
    rounding=11.0,
    steepest=_steepest_matern52,
    bulge=_bulge_matern52,
    value=_value_matern52,
    slope_at_zero=lambda parameter: LN2**2 / 6.0,
    slopes=_slopes_matern52,
    formula=_formula_matern52,
    modulus=_modulus_matern52,
    branch=0.0,
    mixture=True,
)
"""(1 + v + v**2 / 3) 2**-u, u = sqrt(s), v = u ln 2"""


@register_kernel
@dataclass(frozen=True)
class Matern52(_Matern):
    """k(x, x') = v (1 + u + u^2/3) exp(-u), u = sqrt(5) r, r^2 = 2 s: the Matern kernel of nu = 5/2 (equation 4.17).

    Parameters are those of `DistanceKernel`: s = sum_l gamma_l (x_l - x'_l)^2, so r is the distance in length scales.
    """

    type_name: ClassVar[str] = "matern52"
    compiled: ClassVar[Profile] = MATERN52
    _twice_nu: ClassVar[int] = 5

    def profile(self, s: FloatArray) -> FloatArray:
        """f(s) = (1 + u + u^2/3) exp(-u)."""
        u = self._exponent(s)
        f = np.exp(-u)
        polynomial = u + 3.0
        polynomial *= u
        polynomial *= 1.0 / 3.0
        polynomial += 1.0
        f *= polynomial
        return f

    def slope(self, s: FloatArray, f: FloatArray) -> FloatArray:
        """f'(s) = -5/3 (1 + u) exp(-u)."""
        u = self._exponent(s)
        result = np.exp(-u)
        u += 1.0
        result *= u
        result *= -5.0 / 3.0
        return result


# --------------------------------------------------------------------------------------------------- rational quadratic


def _rational_quadratic(values, parameters, floor):  # type: ignore[no-untyped-def]
    zero, exponent = values.dtype.type(0.0), values.dtype.type(parameters[0])
    for i in range(len(values)):
        values[i] = exp2(-exponent * log2_1p(max(-values[i], zero)), floor)


def _slopes_rational_quadratic(values, parameters, floor):  # type: ignore[no-untyped-def]
    convert = values.dtype.type
    zero, factor, exponent = convert(0.0), convert(-parameters[0]), convert(-parameters[0] - 1.0)
    for i in range(len(values)):
        values[i] = factor * exp2(exponent * log2_1p(max(-values[i], zero)), floor)


def _value_rational_quadratic(s: float, parameter: float) -> Any:
    return np.exp(-parameter * np.log1p(s))


def _steepest_rational_quadratic(r: float, parameter: float) -> Any:
    steepest = max(r, 1.0 / np.sqrt(2.0 * parameter + 1.0))
    return 2.0 * parameter * steepest * np.exp(-(parameter + 1.0) * np.log1p(steepest * steepest))


def _bulge_rational_quadratic(r: float, parameter: float) -> Any:
    bulge = max(r * r, 1.0 / parameter)
    return parameter * bulge * np.exp(-(parameter + 1.0) * np.log1p(bulge))


def _formula_rational_quadratic(s: Any, parameter: float, functions: Functions) -> Any:
    return functions.exp(-parameter * functions.log1p(s))


def _modulus_rational_quadratic(re_s: Any, re_root: Any, size: Any, parameter: float) -> Any:
    """Use |1 + s| >= 1 + Re s, and 1 + s = (q + i)(q - i), q = sqrt(s): both factors are at least Re q, one at least 1.

    1 + Re s is exact where digits cancel, so the logarithm is off by a few roundings of itself and of one.
    """
    re_root = np.maximum(re_root, 0.0)
    least = np.maximum(1.0 + np.asarray(re_s), re_root * np.maximum(re_root, 1.0))
    with np.errstate(divide="ignore", over="ignore"):
        exponent = parameter * np.log(np.maximum(least, 0.0))
        return _exponential_modulus(exponent - 1e-13 * (parameter + np.abs(exponent)))


RATIONAL_QUADRATIC = Profile(
    "rational_quadratic",
    _rational_quadratic,
    rounding=8.0,
    steepest=_steepest_rational_quadratic,
    bulge=_bulge_rational_quadratic,
    value=_value_rational_quadratic,
    slope_at_zero=lambda parameter: parameter,
    parameters=1,
    slopes=_slopes_rational_quadratic,
    formula=_formula_rational_quadratic,
    modulus=_modulus_rational_quadratic,
    branch=-1.0,
    mixture=True,
)
"""(1 + s)**-a; the parameter is a"""


@register_kernel
@dataclass(frozen=True)
class RationalQuadratic(DistanceKernel):
    """k(x, x') = v (1 + s / alpha)^-alpha, a mixture of squared exponentials of many length scales (equation 4.19).

    Parameters
    ----------
    gamma, variance, n_features
        See `DistanceKernel`; s = sum_l gamma_l (x_l - x'_l)^2.
    alpha : float, default 1.0
        The smaller, the wider the mixture; in the limit of infinity it is the squared exponential with the same gamma.
    """

    alpha: float = 1.0

    type_name: ClassVar[str] = "rq"
    compiled: ClassVar[Profile] = RATIONAL_QUADRATIC
    shapes: ClassVar[Mapping[str, tuple[float, float]]] = {"alpha": SHAPE_BOUNDS}

    def profile(self, s: FloatArray) -> FloatArray:
        """f(s) = (1 + s/alpha)^-alpha."""
        f = s / self.alpha
        np.log1p(f, out=f)
        f *= -self.alpha
        return np.exp(f, out=f)

    def slope(self, s: FloatArray, f: FloatArray) -> FloatArray:
        """f'(s) = -f(s) / (1 + s/alpha)."""
        result = s / -self.alpha
        result -= 1.0
        return np.divide(f, result, out=result)

    def _scale(self, gamma: float) -> float:
        """(1 + s/alpha)^-alpha: the 1/alpha goes into the scale."""
        return math.sqrt(gamma / self.alpha)

    def frequencies(self, count: int, rng: np.random.Generator) -> FloatArray:
        """(1 + s/alpha)^-alpha = E[exp(-u s)], u of a gamma distribution with mean 1; see `Kernel.frequencies`."""
        normal = self._normal(count, rng)
        return np.asarray(normal * np.sqrt(rng.gamma(self.alpha, 1.0 / self.alpha, (count, 1))))

    def _shape_gradients(self, s: FloatArray, f: FloatArray, weights: FloatArray) -> FloatArray:
        """Contract with df/dlog alpha = alpha f (q / (1 + q) - log(1 + q)), q = s / alpha."""
        q = s / self.alpha
        inner = q / (1.0 + q)
        inner -= np.log1p(q, out=q)
        inner *= f
        return np.array([self.alpha * np.vdot(weights, inner)])


# ----------------------------------------------------------------------------------------- stable (powered exponential)

# Below this distance the bounds for an exponent a < 1 take a line above r^a, which is infinitely steep at zero: the
# tangent here.
_TANGENT, _LEAST = 1e-15, 1e-280
# Every bound counts the bulge at least so often, in units of this.
_COUNTED, _UNIT = 12.0, 2.0**-53
# Above the absolute rounding of the exponent of a modulus, in units of the largest power.
_SLACK = 1e-13
# Largest exponent of a covariance.
GREATEST = 2.0


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
        return _exponential_modulus(least)


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
    untuned: ClassVar[tuple[str, ...]] = ("alpha",)

    def __post_init__(self) -> None:
        super().__post_init__()
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

    def frequencies(self, count: int, rng: np.random.Generator) -> FloatArray:
        """exp(-(2 s)^p) = E[exp(-2 u s)], u positive and stable with exponent p (Kanter 1975); see the base."""
        normal, p = self._normal(count, rng), 0.5 * self.alpha
        angle, size = np.pi * rng.uniform(size=(count, 1)), rng.exponential(size=(count, 1))
        u = np.sin(p * angle) / np.sin(angle) ** (1.0 / p) * (np.sin((1.0 - p) * angle) / size) ** ((1.0 - p) / p)
        return np.asarray(normal * np.sqrt(2.0 * u))
