"""Matern and rational quadratic kernels (Rasmussen and Williams 2006, section 4.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dkgp.kernels.assembly import ProgramBuilder
from dkgp.kernels.base import FloatArray, Parameter, register_kernel, require_positive
from dkgp.kernels.distance import LOG2_E, DistanceKernel
from dkgp.kernels.fields import SHAPE_BOUNDS, number_from_json
from dkgp.kernels.program import Profile

__all__ = ["Matern12", "Matern32", "Matern52", "RationalQuadratic"]


@dataclass(frozen=True)
class _Matern(DistanceKernel):
    """A Matern kernel, of u = sqrt(2 nu) r = sqrt(4 nu s), the exponent."""

    _twice_nu: ClassVar[int]
    _program_profile: ClassVar[Profile]

    def _exponent(self, s: FloatArray) -> FloatArray:
        u = s * (2.0 * self._twice_nu)
        return np.sqrt(u, out=u)

    def emit(self, builder: ProgramBuilder, columns: tuple[int, ...]) -> float:
        """exp(-u) = 2**(-u log2 e), so the scaled squared distance is (u log2 e)^2; see `Kernel.emit`."""
        factor = math.sqrt(2.0 * self._twice_nu) * LOG2_E
        builder.leaf(self._program_profile, columns, [factor * math.sqrt(value) for value in self.feature_gamma])
        return self.variance


@register_kernel
@dataclass(frozen=True)
class Matern12(_Matern):
    """k(x, x') = v exp(-r), r^2 = 2 s: the Matern kernel of nu = 1/2 (equation 4.17), continuous but not smooth.

    Parameters are those of `DistanceKernel`: s = sum_l gamma_l (x_l - x'_l)^2, so r is the distance in length scales.
    """

    type_name: ClassVar[str] = "matern12"
    _twice_nu: ClassVar[int] = 1
    _program_profile: ClassVar[Profile] = Profile.MATERN12

    def profile(self, s: FloatArray) -> FloatArray:
        """f(s) = exp(-r)."""
        u = self._exponent(s)
        np.negative(u, out=u)
        return np.exp(u, out=u)

    def slope(self, s: FloatArray, f: FloatArray) -> FloatArray:
        """f'(s) = -exp(-r) / r; zero at s = 0, where it is infinite but times a difference of zero."""
        u = self._exponent(s)
        result = np.zeros_like(u)
        # Distances this small are what rounding left of none.
        np.divide(f, u, out=result, where=u > 1e-7)
        return np.negative(result, out=result)


@register_kernel
@dataclass(frozen=True)
class Matern32(_Matern):
    """k(x, x') = v (1 + u) exp(-u), u = sqrt(3) r, r^2 = 2 s: the Matern kernel of nu = 3/2 (equation 4.17).

    Parameters are those of `DistanceKernel`: s = sum_l gamma_l (x_l - x'_l)^2, so r is the distance in length scales.
    """

    type_name: ClassVar[str] = "matern32"
    _twice_nu: ClassVar[int] = 3
    _program_profile: ClassVar[Profile] = Profile.MATERN32

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


@register_kernel
@dataclass(frozen=True)
class Matern52(_Matern):
    """k(x, x') = v (1 + u + u^2/3) exp(-u), u = sqrt(5) r, r^2 = 2 s: the Matern kernel of nu = 5/2 (equation 4.17).

    Parameters are those of `DistanceKernel`: s = sum_l gamma_l (x_l - x'_l)^2, so r is the distance in length scales.
    """

    type_name: ClassVar[str] = "matern52"
    _twice_nu: ClassVar[int] = 5
    _program_profile: ClassVar[Profile] = Profile.MATERN52

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

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "alpha", require_positive("alpha", self.alpha))

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

    def emit(self, builder: ProgramBuilder, columns: tuple[int, ...]) -> float:
        """(1 + s/alpha)^-alpha, with 1/alpha in the scale; see `Kernel.emit`."""
        scale = [math.sqrt(value / self.alpha) for value in self.feature_gamma]
        builder.leaf(Profile.RATIONAL_QUADRATIC, columns, scale, parameters=(self.alpha,))
        return self.variance

    def to_json(self) -> dict[str, Any]:
        """`{"type": "rq", "variance": v, "gamma": [...], "alpha": a}`."""
        return {**super().to_json(), "alpha": self.alpha}

    @classmethod
    def _others_from_json(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        return {"alpha": number_from_json(document, "alpha", "alpha", 1.0)}

    def _other_parameters(self) -> tuple[Parameter, ...]:
        return (Parameter("alpha", self.alpha, *SHAPE_BOUNDS),)

    def _with_others(self, values: list[float]) -> dict[str, Any]:
        return {"alpha": values[0]}

    def _other_gradients(self, s: FloatArray, f: FloatArray, weights: FloatArray) -> FloatArray:
        """Contract with df/dlog alpha = alpha f (q / (1 + q) - log(1 + q)), q = s / alpha."""
        q = s / self.alpha
        inner = q / (1.0 + q)
        inner -= np.log1p(q, out=q)
        inner *= f
        return np.array([self.alpha * np.vdot(weights, inner)])
