"""Kernels of a scaled squared distance, k(x, x') = v f(s): all but their f and f'.

A new one is one file (`dkgp.kernels.stationary` has six to learn from): a class with f and f' in NumPy and, for the
compiled loops, its `Profile`. A further parameter besides gamma and v, or a spectrum, it declares as well.

The derivatives with respect to all d length scales come from one matrix product. With D_ij = w_ij v f'(s_ij) and
z_l = sqrt(gamma_l) x_l,

    sum_ij w_ij dk_ij / dlog gamma_l = sum_ij D_ij (z_il - z'_jl)^2 = (z_l^2)' D 1 + 1' D z'_l^2 - 2 z_l' D z'_l.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from dkgp.kernels.base import FloatArray, Parameter, Pullback, Settings, require_positive
from dkgp.kernels.fields import (
    GAMMA_BOUNDS,
    VARIANCE_BOUNDS,
    LengthScaleKernel,
    centred,
    checked_features,
    checked_per_feature,
    feature_parameters,
    gamma_of_length_scales,
    gamma_setting,
    known_settings,
    replaced,
)
from dkgp.kernels.program import Profile, ProgramBuilder

LN2 = math.log(2.0)
LOG2_E = 1.0 / LN2
# A squared distance by a matrix product is off by some 1e-16 of the largest squared norm.
_FEW_DIGITS = 1e-9
_FURTHEST = 1e305


@dataclass(frozen=True)
class DistanceKernel(LengthScaleKernel):
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

    Attributes
    ----------
    compiled : Profile
        f as the compiled loops have it, of inputs that are scaled by `_scale`.
    shapes : mapping
        Names of the fields that are positive parameters besides, to their bounds; each has a default. Their gradients
        are `_shape_gradients`, and the first are the parameters of the profile, if it has any.
    untuned : tuple of str
        Names of the fields that are positive too and that tuning leaves as they are; parameters of the profile after
        those of `shapes`.
    """

    gamma: tuple[float, ...]
    variance: float = 1.0
    n_features: int = 0

    compiled: ClassVar[Profile]
    shapes: ClassVar[Mapping[str, tuple[float, float]]] = {}
    untuned: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        self.settle(gamma=checked_per_feature("gamma", self.gamma, zero=True))
        self.settle(variance=require_positive("the kernel's variance", self.variance))
        self.settle(n_features=checked_features(self.n_features, gamma=self.gamma))
        self.settle(**{name: require_positive(name, getattr(self, name)) for name in (*self.shapes, *self.untuned)})

    @classmethod
    def from_length_scales(
        cls, length_scales: ArrayLike, variance: float = 1.0, n_features: int = 0, **others: Any
    ) -> Self:
        """The kernel with these length scales, one for each feature or one for all (d,); infinite: switched off."""
        return cls(gamma=gamma_of_length_scales(length_scales), variance=variance, n_features=n_features, **others)

    @property
    def isotropic(self) -> bool:
        """True if one length scale serves several features."""
        return len(self.gamma) < self.n_features

    # ------------------------------------------------------------------------------------------------------ evaluation

    @abstractmethod
    def profile(self, s: FloatArray) -> FloatArray:
        """f(s), entry by entry, in a new array."""

    @abstractmethod
    def slope(self, s: FloatArray, f: FloatArray) -> FloatArray:
        """f'(s), entry by entry, in a new array, from s and f(s); zero where it is infinite, at s = 0."""

    def __call__(self, A: ArrayLike, B: ArrayLike) -> FloatArray:
        """Evaluate all pairs by direct differences in float64; see `Kernel.__call__`."""
        return self.variance * self.profile(self.scaled_distances(*self.rows(A, B)))

    def scaled_distances(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """s of all pairs of rows (a, d) and (b, d), by direct differences: (a, b)."""
        s = np.zeros((left.shape[0], right.shape[0]))
        for column, weight in enumerate(self.feature_gamma):
            s += weight * (left[:, None, column] - right[None, :, column]) ** 2
        return s

    def diagonal(self, A: ArrayLike) -> FloatArray:
        """k(x, x) = v f(0) for each row of `A`."""
        at_zero = float(self.profile(np.zeros(1))[0])
        return np.full(self.one_side(A).shape[0], self.variance * at_zero)

    def linearise(self, A: ArrayLike, B: ArrayLike) -> tuple[FloatArray, Pullback]:
        """Values and derivatives by matrix products; see `Kernel.linearise`."""
        left, right = self.rows(A, B)
        gamma = np.asarray(self.feature_gamma)
        active = np.flatnonzero(gamma > 0.0)
        z_left, z_right = centred(left, right, active, np.sqrt(gamma[active]))
        s = squared_distances(z_left, z_right)
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
            shapes = self._shape_gradients(s, f, weights)
            return np.concatenate([self.variance * gradient, [total], self.variance * shapes])

        return values, pullback

    def _normal(self, count: int, rng: np.random.Generator) -> FloatArray:
        """Draws (count, d) from the spectral distribution of exp(-s), from which those of mixtures of it follow."""
        return np.asarray(np.sqrt(2.0 * np.asarray(self.feature_gamma)) * rng.standard_normal((count, self.n_features)))

    # ------------------------------------------------------------------------------------------------------ parameters

    def parameters(self) -> tuple[Parameter, ...]:
        """gamma_1 .. gamma_d (or the one for all; none for those that are zero), then v."""
        gammas = feature_parameters("gamma", self.gamma, GAMMA_BOUNDS, self.n_features)
        shapes = (Parameter(name, getattr(self, name), *bounds) for name, bounds in self.shapes.items())
        return (*gammas, Parameter("variance", self.variance, *VARIANCE_BOUNDS), *shapes)

    def with_parameters(self, values: ArrayLike) -> Self:
        """Return the kernel with other parameters; see `Kernel.with_parameters`."""
        checked = self.checked_values(values)
        count = sum(value > 0.0 for value in self.gamma)
        gamma = replaced(self.gamma, checked[:count])
        shapes: dict[str, Any] = dict(zip(self.shapes, checked[count + 1 :], strict=True))
        return replace(self, gamma=gamma, variance=checked[count], **shapes)

    def _shape_gradients(self, s: FloatArray, f: FloatArray, weights: FloatArray) -> FloatArray:
        """Contract the weights with df/dlog of each of the `shapes`, from s and f(s)."""
        return np.empty(0)

    # ---------------------------------------------------------------------------------------------------- descriptions

    def _scale(self, gamma: float) -> float:
        """Factor on a feature of the compiled profile: sqrt(gamma), and the constants that are folded into it."""
        return math.sqrt(gamma)

    def emit(self, builder: ProgramBuilder, columns: tuple[int, ...]) -> float:
        """Push the profile; see `Kernel.emit`."""
        scale = [self._scale(value) for value in self.feature_gamma]
        parameters = tuple(getattr(self, name) for name in (*self.shapes, *self.untuned))[: self.compiled.parameters]
        builder.leaf(self.compiled, columns, scale, parameters=parameters)
        return self.variance

    @classmethod
    def start(cls, settings: Settings, n_features: int) -> Self:
        """See `Kernel.start`; gamma_l = 1 / (2 d) by default, so that samples are an exponent of 1 apart."""
        gamma = gamma_setting(settings, n_features)
        known = known_settings(settings, "length_scale", "isotropic", *cls.shapes, *cls.untuned)
        return cls(gamma=gamma, n_features=n_features, **known)


def squared_distances(left: FloatArray, right: FloatArray) -> FloatArray:
    """|a_i - b_j|^2 by one matrix product; by differences where that would leave few digits or none: (a, b).

    Entries by differences are `_FURTHEST` at most, so that no profile of them is infinite times zero.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        left_norms, right_norms = np.einsum("il,il->i", left, left), np.einsum("jl,jl->j", right, right)
        s = left @ right.T
        s *= -2.0
        s += left_norms[:, None]
        s += right_norms
        largest = left_norms.max(initial=0.0) + right_norms.max(initial=0.0)
        near = np.nonzero(~(s > _FEW_DIGITS * largest))  # NaN too, where products overflow
        if near[0].size:
            exact = np.zeros(near[0].size)
            for a, b in zip(left.T, right.T, strict=True):
                exact += (a[near[0]] - b[near[1]]) ** 2
            s[near] = np.minimum(exact, _FURTHEST)
    return s


def spread(D: FloatArray, left: FloatArray, right: FloatArray) -> FloatArray:
    """sum_ij D_ij (a_il - b_jl)^2 for each feature, by one matrix product: (d,)."""
    product = D @ np.column_stack([right, np.ones(right.shape[0])])
    squares = (left * left).T @ product[:, -1] + (right * right).T @ D.sum(axis=0)
    mixed: FloatArray = np.einsum("il,il->l", left, product[:, :-1])
    difference: FloatArray = squares - 2.0 * mixed
    return difference
