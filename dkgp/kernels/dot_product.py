"""Kernels of a weighted dot product: linear and polynomial (Rasmussen and Williams 2006, section 4.2.2)."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from dkgp.errors import InputError
from dkgp.kernels.base import FloatArray, Parameter, Pullback, Settings, register_kernel, require_positive
from dkgp.kernels.fields import (
    GAMMA_BOUNDS,
    VARIANCE_BOUNDS,
    PlainKernel,
    by_feature,
    checked_features,
    checked_per_feature,
    feature_parameters,
    isotropic_setting,
    known_settings,
    replaced,
)
from dkgp.kernels.program import Profile, ProgramBuilder
from dkgp.kernels.spectrum import RandomFeatures, Slopes


def _polynomial(values, parameters, floor):  # type: ignore[no-untyped-def]
    """By repeated squaring from the leading bit of p down."""
    degree, offset = int(parameters[0]), values.dtype.type(parameters[1])
    if degree == 3:  # the same products in one pass, without the copy: half the time of the general way
        for i in range(len(values)):
            base_value = values[i] + offset
            values[i] = base_value * base_value * base_value
        return
    for i in range(len(values)):
        values[i] = values[i] + offset
    if degree > 1:
        leading = 2
        while 2 * leading <= degree:
            leading *= 2
        # Read again where the degree is no power of two.
        base = values.copy() if degree & (degree - 1) else values
        bit = leading // 2
        while bit > 0:
            for i in range(len(values)):
                values[i] = values[i] * values[i]
            if degree & bit:
                for i in range(len(values)):
                    values[i] = values[i] * base[i]
            bit //= 2


def _slopes_polynomial(values, parameters, floor):  # type: ignore[no-untyped-def]
    """p (t + c)**(p - 1), one product after the other."""
    degree, offset = int(parameters[0]), values.dtype.type(parameters[1])
    factor = values.dtype.type(parameters[0])
    for i in range(len(values)):
        base, power = values[i] + offset, factor
        for _ in range(degree - 1):
            power = power * base
        values[i] = power


# Each power rounds; the degree's share of a dot product is added with the inputs.
POLYNOMIAL = Profile(
    "polynomial",
    _polynomial,
    rounding=2.0,
    steepest=lambda r, degree: 0.0,
    bulge=lambda r, degree: degree,
    parameters=2,
    reads="product",
    slopes=_slopes_polynomial,
)
"""(t + c)**p; the parameters are p, a whole number from 1, and c; linear for p = 1, c = 0"""


class _DotProduct(PlainKernel):
    """k(x, x') = v (t + offset)^degree, t = sum_l w_l x_l x'_l with weights w by feature or one for all."""

    weight: tuple[float, ...]
    variance: float

    @property
    @abstractmethod
    def offset(self) -> float:
        """Weighs lower powers."""

    @property
    @abstractmethod
    def degree(self) -> int:
        """From 1."""

    def __post_init__(self) -> None:
        weight = checked_per_feature("weight", self.weight, zero=True)
        if not any(weight):
            raise InputError("weight must be positive for at least one feature; got zeros only")
        variance = require_positive("the kernel's variance", self.variance)
        self.settle(weight=weight, variance=variance, n_features=checked_features(self.n_features, weight=weight))

    def __call__(self, A: ArrayLike, B: ArrayLike) -> FloatArray:
        """Evaluate all pairs feature by feature in float64; see `Kernel.__call__`."""
        return self.variance * (self._products(A, B) + self.offset) ** self.degree

    def diagonal(self, A: ArrayLike) -> FloatArray:
        """k(x, x) for each row of `A`: (a,); infinite where it overflows, which the caller refuses."""
        with np.errstate(over="ignore"):
            base = self._squared_norms(A) + self.offset
            values = base.copy()
            for bit in f"{self.degree:b}"[1:]:  # by squaring: the bits of NumPy's powers depend on the processor
                values *= values
                if bit == "1":
                    values *= base
            return self.variance * values

    @property
    def diagonal_roundings(self) -> float:
        """Roundings of a sum of d products of three and the offset, its power, and v times it: no term is negative."""
        return (self.n_features + 5.0) * self.degree + 1.0

    def parameters(self) -> tuple[Parameter, ...]:
        """Several weights but for zeros, the offset if it is not zero, and v where there is a single weight."""
        offset = (Parameter("offset", self.offset, *VARIANCE_BOUNDS),) if self.offset > 0.0 else ()
        if self._by_feature:
            return (*feature_parameters("weight", self.weight, GAMMA_BOUNDS, self.n_features), *offset)
        return (*offset, Parameter("variance", self.variance, *VARIANCE_BOUNDS))

    def with_parameters(self, values: ArrayLike) -> Self:
        """Return the kernel with other parameters; see `Kernel.with_parameters`."""
        checked = iter(self.checked_values(values))
        new: dict[str, Any] = {"weight": replaced(self.weight, checked)} if self._by_feature else {}
        if self.offset > 0.0:
            new["offset"] = next(checked)
        if not self._by_feature:
            new["variance"] = next(checked)
        return replace(self, **new)

    def emit(self, builder: ProgramBuilder, columns: tuple[int, ...]) -> float:
        """(t + offset)^degree; see `Kernel.emit`."""
        scale = [math.sqrt(value) for value in self._feature_weights]
        builder.leaf(POLYNOMIAL, columns, scale, parameters=(float(self.degree), self.offset))
        return self.variance

    @staticmethod
    def _starting_weight(settings: Settings, d: int) -> tuple[float, ...]:
        """1 / d each, so that k(x, x) is 1 in the mean; a single one where an expression says `isotropic`."""
        return (1.0 / d,) * (1 if isotropic_setting(settings) else d)

    @property
    def _by_feature(self) -> bool:
        """True if the weights are parameters; the amplitude then only changes all of them together."""
        return len(self.weight) > 1

    @property
    def _feature_weights(self) -> FloatArray:
        return np.asarray(by_feature(self.weight, self.n_features))

    def _products(self, A: ArrayLike, B: ArrayLike) -> FloatArray:
        left, right = self.rows(A, B)
        t = np.zeros((left.shape[0], right.shape[0]))
        for column, weight in enumerate(self._feature_weights):
            t += weight * (left[:, None, column] * right[None, :, column])
        return t

    def _squared_norms(self, A: ArrayLike) -> FloatArray:
        """sum_l w_l x_l^2, feature by feature: workers take these, and a matrix product has the bits of its BLAS."""
        rows = self.one_side(A)
        norms = np.zeros(rows.shape[0])
        for column, weight in enumerate(self._feature_weights):
            norms += weight * (rows[:, column] * rows[:, column])
        return norms

    def _weight_gradient(self, D: FloatArray, left: FloatArray, right: FloatArray) -> FloatArray:
        """sum_ij D_ij w_l a_il b_jl for each feature with a weight, by one matrix product."""
        active = np.flatnonzero(self._feature_weights)
        sums: FloatArray = np.einsum("il,il->l", left[:, active], D @ right[:, active])
        return self._feature_weights[active] * sums


@register_kernel
@dataclass(frozen=True)
class Linear(_DotProduct):
    """k(x, x') = v sum_l w_l x_l x'_l: Bayesian linear regression through the origin; add a `Constant` for an offset.

    Parameters
    ----------
    weight : float or sequence of d floats, default 1.0
        The prior variance w_l of each feature's coefficient, relative to v; zero switches a feature off. Several are
        parameters, and v, which could only change all of them together, is then held; a single one is held, and v is
        the parameter.
    variance : float, default 1.0
        v.
    n_features : int, optional
        Number of features d; the number of weights by default.

    Raises
    ------
    InputError
        A negative or infinite weight, none that is positive, a variance that is not positive, or counts that do not
        fit.
    """

    weight: tuple[float, ...] = (1.0,)
    variance: float = 1.0
    n_features: int = 0

    type_name: ClassVar[str] = "linear"

    @property
    def offset(self) -> float:
        """0."""
        return 0.0

    @property
    def degree(self) -> int:
        """1."""
        return 1

    def linearise(self, A: ArrayLike, B: ArrayLike) -> tuple[FloatArray, Pullback]:
        """Values and derivatives by matrix products; see `Kernel.linearise`."""
        left, right = self.rows(A, B)
        values = (left * (self.variance * self._feature_weights)) @ right.T

        def pullback(weights: FloatArray) -> FloatArray:
            if self._by_feature:
                return self.variance * self._weight_gradient(weights, left, right)
            return np.array([np.vdot(weights, values)])

        return values, pullback

    def random_features(self, n_features: int, count: int, rng: np.random.Generator) -> list[RandomFeatures]:
        """The features themselves, which are exact; see `Kernel.random_features`."""
        return [Slopes(self.variance * self._feature_weights)]

    @classmethod
    def start(cls, settings: Settings, n_features: int) -> Self:
        """See `Kernel.start`; weights 1 / d."""
        weight = cls._starting_weight(settings, n_features)
        return cls(weight, n_features=n_features, **known_settings(settings, "isotropic"))


@register_kernel
@dataclass(frozen=True)
class Polynomial(_DotProduct):
    """k(x, x') = v (sum_l w_l x_l x'_l + offset)^degree.

    Parameters
    ----------
    weight : float or sequence of d floats, default 1.0
        w_l, zero switches a feature off. Several are parameters, and v is then held, because it could only
        change all of them and the offset together; a single one is held, and v is the parameter.
    offset : float, default 1.0
        Weighs lower powers; a parameter unless it is zero.
    degree : int, default 2
        From 1.
    variance : float, default 1.0
        v.
    n_features : int, optional
        Number of features d; the number of weights by default.

    Raises
    ------
    InputError
        A negative or infinite weight or offset, no weight that is positive, a degree that is no whole number from 1, a
        variance that is not positive, or counts that do not fit.
    """

    weight: tuple[float, ...] = (1.0,)
    offset: float = 1.0
    degree: int = 2
    variance: float = 1.0
    n_features: int = 0

    type_name: ClassVar[str] = "polynomial"
    required: ClassVar[tuple[str, ...]] = ("offset", "degree")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.settle(offset=require_positive("the offset", self.offset, admits=lambda c: c >= 0.0))
        if isinstance(self.degree, bool) or not isinstance(self.degree, int | np.integer) or self.degree < 1:
            raise InputError(f"the degree of a polynomial kernel must be a whole number from 1; got {self.degree!r}")
        self.settle(degree=int(self.degree))

    def linearise(self, A: ArrayLike, B: ArrayLike) -> tuple[FloatArray, Pullback]:
        """Values and derivatives by matrix products; see `Kernel.linearise`."""
        left, right = self.rows(A, B)
        base = (left * self._feature_weights) @ right.T
        base += self.offset
        values = self.variance * base**self.degree

        def pullback(weights: FloatArray) -> FloatArray:
            D = self.variance * self.degree * base ** (self.degree - 1)
            D *= weights
            offset = [self.offset * D.sum()] if self.offset > 0.0 else []
            if self._by_feature:
                return np.concatenate([self._weight_gradient(D, left, right), offset])
            return np.array([*offset, np.vdot(weights, values)])

        return values, pullback

    @classmethod
    def start(cls, settings: Settings, n_features: int) -> Self:
        """See `Kernel.start`; weights 1 / d, and a variance that makes up for (1 + 1)^degree in the mean."""
        weight = cls._starting_weight(settings, n_features)
        degree = settings.get("degree", 2)
        if isinstance(degree, int):
            # As it is, it would start far from the targets' variance of 1.
            settings.setdefault("variance", 2.0**-degree)
        known = known_settings(settings, "isotropic", "degree", "offset")
        return cls(weight, n_features=n_features, **known)
