"""Kernels of a scaled squared distance, k(x, x') = v f(s): what they share, so that each adds its f and f'.

The derivatives with respect to all d length scales come from one matrix product. With D_ij = w_ij v f'(s_ij) and
z_l = sqrt(gamma_l) x_l,

    sum_ij w_ij dk_ij / dlog gamma_l = sum_ij D_ij (z_il - z'_jl)^2 = (z_l^2)' D 1 + 1' D z'_l^2 - 2 z_l' D z'_l.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from dkgp.kernels.assembly import ProgramBuilder
from dkgp.kernels.base import FloatArray, Kernel, Parameter, Pullback, require_positive
from dkgp.kernels.fields import (
    GAMMA_BOUNDS,
    VARIANCE_BOUNDS,
    by_feature,
    checked_features,
    checked_per_feature,
    feature_parameters,
    gamma_of_length_scales,
    integer_from_json,
    length_scales_of_gamma,
    list_from_json,
    number_from_json,
    replaced,
)

__all__ = ["LOG2_E", "DistanceKernel", "spread", "squared_distances"]

LOG2_E = 1.0 / math.log(2.0)
# A squared distance by a matrix product is off by some 1e-16 of the largest squared norm.
_FEW_DIGITS = 1e-9


@dataclass(frozen=True)
class DistanceKernel(Kernel):
    """k(x, x') = v f(s), s = sum_l gamma_l (x_l - x'_l)^2.

    Parameters
    ----------
    gamma : float or sequence of d floats
        Inverse squared length scales, gamma_l = 1 / (2 lengthscale_l^2); zero switches a feature off. A single value
        with `n_features` is the gamma of all features: an isotropic kernel, with one parameter for them.
    variance : float, default 1.0
        The amplitude v.
    n_features : int, optional
        Number of features d; the length of `gamma` by default.

    Raises
    ------
    InputError
        A negative, infinite or missing gamma, an amplitude that is not positive, or another number of features.
    """

    gamma: tuple[float, ...]
    variance: float = 1.0
    n_features: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", checked_per_feature("gamma", self.gamma, zero=True))
        object.__setattr__(self, "variance", require_positive("the kernel's variance", self.variance))
        object.__setattr__(self, "n_features", checked_features(self.n_features, gamma=self.gamma))

    @classmethod
    def from_length_scales(
        cls, length_scales: ArrayLike, variance: float = 1.0, n_features: int = 0, **others: Any
    ) -> Self:
        """The kernel with these length scales, one for each feature or one for all (d,); infinite: switched off."""
        return cls(gamma=gamma_of_length_scales(length_scales), variance=variance, n_features=n_features, **others)

    @property
    def length_scales(self) -> tuple[float, ...]:
        """lengthscale_l = 1 / sqrt(2 gamma_l), as many as there are `gamma`."""
        return length_scales_of_gamma(self.gamma)

    @property
    def isotropic(self) -> bool:
        """True if one length scale serves several features."""
        return len(self.gamma) < self.n_features

    @property
    def feature_gamma(self) -> tuple[float, ...]:
        """gamma_1 .. gamma_d, also where one value serves all."""
        return by_feature(self.gamma, self.n_features)

    @property
    def stationary(self) -> bool:
        """K(x, x) = v f(0) everywhere."""
        return True

    # ------------------------------------------------------------------------------------------------------ evaluation

    @abstractmethod
    def profile(self, s: FloatArray) -> FloatArray:
        """f(s), entry by entry, in a new array."""

    @abstractmethod
    def slope(self, s: FloatArray, f: FloatArray) -> FloatArray:
        """f'(s), entry by entry, in a new array, from s and f(s); zero where it is infinite, at s = 0."""

    def __call__(self, A: ArrayLike, B: ArrayLike) -> FloatArray:
        """Evaluate all pairs by direct differences in float64; see `Kernel.__call__`."""
        left, right = self.rows(A, B)
        s = np.zeros((left.shape[0], right.shape[0]))
        for column, weight in enumerate(self.feature_gamma):
            s += weight * (left[:, None, column] - right[None, :, column]) ** 2
        return self.variance * self.profile(s)

    def diagonal(self, A: ArrayLike) -> FloatArray:
        """K(x, x) = v f(0) for each row of `A`."""
        at_zero = float(self.profile(np.zeros(1))[0])
        return np.full(self.one_side(A).shape[0], self.variance * at_zero)

    def linearise(self, A: ArrayLike, B: ArrayLike) -> tuple[FloatArray, Pullback]:
        """Values and derivatives by matrix products; see `Kernel.linearise`."""
        left, right = self.rows(A, B)
        z_left, z_right, s = self._scaled_distances(left, right)
        f = self.profile(s)
        values = f if self.variance == 1.0 else self.variance * f

        def pullback(weights: FloatArray) -> FloatArray:
            total = float(np.vdot(weights, values))
            D = self.slope(s, f)
            D *= weights
            if self.isotropic:
                gradient = np.array([np.vdot(D, s)]) if self.gamma[0] > 0.0 else np.empty(0)
            else:
                gradient = spread(D, z_left, z_right)
            others = self._other_gradients(s, f, weights)
            return np.concatenate([self.variance * gradient, [total], self.variance * others])

        return values, pullback

    def _scaled_distances(self, left: FloatArray, right: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        gamma = np.asarray(self.feature_gamma)
        active = np.flatnonzero(gamma > 0.0)
        scale = np.sqrt(gamma[active])
        # The common centre costs nothing and saves digits where inputs lie far from the origin.
        centre = right[:, active].mean(axis=0) if right.shape[0] else 0.0
        z_right = (right[:, active] - centre) * scale
        z_left = z_right if left is right else (left[:, active] - centre) * scale
        return z_left, z_right, squared_distances(z_left, z_right)

    # ------------------------------------------------------------------------------------------------------ parameters

    def parameters(self) -> tuple[Parameter, ...]:
        """gamma_1 .. gamma_d (or the one for all; none for those that are zero), then v."""
        if self.isotropic:
            found = [replace(one, feature=None) for one in feature_parameters("gamma", self.gamma, GAMMA_BOUNDS)]
        else:
            found = feature_parameters("gamma", self.gamma, GAMMA_BOUNDS)
        return (*found, Parameter("variance", self.variance, *VARIANCE_BOUNDS), *self._other_parameters())

    def with_parameters(self, values: ArrayLike) -> Self:
        """The same kernel with other parameters; see `Kernel.with_parameters`."""
        checked = self.checked_values(values)
        count = sum(value > 0.0 for value in self.gamma)
        gamma = replaced(self.gamma, checked[:count])
        return replace(self, gamma=gamma, variance=checked[count], **self._with_others(checked[count + 1 :]))

    def _other_parameters(self) -> tuple[Parameter, ...]:
        return ()

    def _with_others(self, values: list[float]) -> dict[str, Any]:
        return {}

    def _other_gradients(self, s: FloatArray, f: FloatArray, weights: FloatArray) -> FloatArray:
        return np.empty(0)

    # ---------------------------------------------------------------------------------------------------- descriptions

    @abstractmethod
    def emit(self, builder: ProgramBuilder, columns: tuple[int, ...]) -> float:
        """Push the profile; see `Kernel.emit`."""

    def to_json(self) -> dict[str, Any]:
        """`{"type": ..., "variance": v, "gamma": [...]}`, and the number of features where one gamma serves several."""
        document: dict[str, Any] = {"type": self.type_name, "variance": self.variance, "gamma": list(self.gamma)}
        return {**document, "n_features": self.n_features} if self.isotropic else document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Rebuild from `to_json`'s form; `variance` may be left out (1)."""
        return cls(
            gamma=list_from_json(document, "gamma"),
            variance=number_from_json(document, "variance", "the kernel's variance", 1.0),
            n_features=integer_from_json(document, "n_features", 0),
            **cls._others_from_json(document),
        )

    @classmethod
    def _others_from_json(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        return {}


def squared_distances(left: FloatArray, right: FloatArray) -> FloatArray:
    """|a_i - b_j|^2 by one matrix product; by differences where that would leave few digits or none: (a, b)."""
    left_norms, right_norms = np.einsum("il,il->i", left, left), np.einsum("jl,jl->j", right, right)
    s = left @ right.T
    s *= -2.0
    s += left_norms[:, None]
    s += right_norms
    largest = left_norms.max(initial=0.0) + right_norms.max(initial=0.0)
    near = np.nonzero(s <= _FEW_DIGITS * largest)
    if near[0].size:
        exact = np.zeros(near[0].size)
        for a, b in zip(left.T, right.T, strict=True):
            exact += (a[near[0]] - b[near[1]]) ** 2
        s[near] = exact
    return s


def spread(D: FloatArray, left: FloatArray, right: FloatArray) -> FloatArray:
    """sum_ij D_ij (a_il - b_jl)^2 for each feature, by one matrix product: (d,)."""
    product = D @ np.column_stack([right, np.ones(right.shape[0])])
    own = (left * left).T @ product[:, -1] + (right * right).T @ D.sum(axis=0)
    mixed: FloatArray = np.einsum("il,il->l", left, product[:, :-1])
    difference: FloatArray = own - 2.0 * mixed
    return difference
