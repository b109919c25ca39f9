"""Kernels of a weighted dot product: linear and polynomial (Rasmussen and Williams 2006, section 4.2.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from dkgp.errors import InputError
from dkgp.kernels.assembly import ProgramBuilder
from dkgp.kernels.base import FloatArray, Kernel, Parameter, Pullback, register_kernel, require_positive
from dkgp.kernels.fields import (
    GAMMA_BOUNDS,
    VARIANCE_BOUNDS,
    by_feature,
    checked_features,
    checked_per_feature,
    feature_parameters,
    integer_from_json,
    list_from_json,
    number_from_json,
    replaced,
)
from dkgp.kernels.program import Profile

__all__ = ["Linear", "Polynomial"]


@dataclass(frozen=True)
class _DotProduct(Kernel):
    """A kernel of t = sum_l w_l x_l x'_l, with weights w by feature or one for all."""

    weight: tuple[float, ...] = (1.0,)

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", _some_positive("weight", self.weight))
        object.__setattr__(self, "variance", require_positive("the kernel's variance", self.variance))
        object.__setattr__(self, "n_features", checked_features(self.n_features, weight=self.weight))

    def __call__(self, A: ArrayLike, B: ArrayLike) -> FloatArray:
        """Evaluate all pairs feature by feature in float64; see `Kernel.__call__`."""
        return self.variance * self._products(A, B)

    def diagonal(self, A: ArrayLike) -> FloatArray:
        """K(x, x) = v sum_l w_l x_l^2 for each row of `A`."""
        return self.variance * self._squared_norms(A)

    def linearise(self, A: ArrayLike, B: ArrayLike) -> tuple[FloatArray, Pullback]:
        """Values and derivatives by matrix products; see `Kernel.linearise`."""
        left, right = self.rows(A, B)
        values = (left * (self.variance * self._feature_weights)) @ right.T

        def pullback(weights: FloatArray) -> FloatArray:
            if self._by_feature:
                return self.variance * self._weight_gradient(weights, left, right)
            return np.array([np.vdot(weights, values)])

        return values, pullback

    def parameters(self) -> tuple[Parameter, ...]:
        """The weights that are not zero where there are several, otherwise v."""
        if self._by_feature:
            return tuple(feature_parameters("weight", self.weight, GAMMA_BOUNDS))
        return (Parameter("variance", self.variance, *VARIANCE_BOUNDS),)

    def with_parameters(self, values: ArrayLike) -> Self:
        """The same kernel with other parameters; see `Kernel.with_parameters`."""
        checked = self.checked_values(values)
        if self._by_feature:
            return replace(self, weight=replaced(self.weight, checked))
        return replace(self, variance=checked[0])

    def emit(self, builder: ProgramBuilder, columns: tuple[int, ...]) -> float:
        """A polynomial of degree 1; see `Kernel.emit`."""
        scale = [math.sqrt(value) for value in self._feature_weights]
        builder.leaf(Profile.POLYNOMIAL, columns, scale, product=True, parameters=(1.0, 0.0))
        return self.variance

    def to_json(self) -> dict[str, Any]:
        """`{"type": "linear", "variance": v, "weight": [...]}`, and `n_features` where one weight serves several."""
        document = {"type": self.type_name, "variance": self.variance, "weight": list(self.weight)}
        return document if len(self.weight) == self.n_features else {**document, "n_features": self.n_features}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Rebuild from `to_json`'s form; `variance` may be left out (1)."""
        return cls(
            weight=list_from_json(document, "weight"),
            variance=number_from_json(document, "variance", "the kernel's variance", 1.0),
            n_features=integer_from_json(document, "n_features", 0),
        )


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", _some_positive("weight", self.weight))
        object.__setattr__(self, "offset", require_positive("the offset", self.offset, admits=lambda c: c >= 0.0))
        object.__setattr__(self, "variance", require_positive("the kernel's variance", self.variance))
        if isinstance(self.degree, bool) or not isinstance(self.degree, int | np.integer) or self.degree < 1:
            raise InputError(f"the degree of a polynomial kernel must be a whole number from 1; got {self.degree!r}")
        object.__setattr__(self, "degree", int(self.degree))
        object.__setattr__(self, "n_features", checked_features(self.n_features, weight=self.weight))

    def __call__(self, A: ArrayLike, B: ArrayLike) -> FloatArray:
        """Evaluate all pairs feature by feature in float64; see `Kernel.__call__`."""
        return self.variance * (self._products(A, B) + self.offset) ** self.degree

    def diagonal(self, A: ArrayLike) -> FloatArray:
        """K(x, x) for each row of `A`."""
        base = self._squared_norms(A) + self.offset
        values = base.copy()
        for bit in f"{self.degree:b}"[1:]:  # by squaring: the bits of NumPy's powers depend on the processor
            values *= values
            if bit == "1":
                values *= base
        return self.variance * values

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

    def parameters(self) -> tuple[Parameter, ...]:
        """Several weights but for zeros, the offset if it is not zero, and v where there is a single weight."""
        offset = (Parameter("offset", self.offset, *VARIANCE_BOUNDS),) if self.offset > 0.0 else ()
        if self._by_feature:
            return (*feature_parameters("weight", self.weight, GAMMA_BOUNDS), *offset)
        return (*offset, Parameter("variance", self.variance, *VARIANCE_BOUNDS))

    def with_parameters(self, values: ArrayLike) -> Self:
        """The same kernel with other parameters; see `Kernel.with_parameters`."""
        checked = iter(self.checked_values(values))
        weight = replaced(self.weight, checked) if self._by_feature else self.weight
        offset = next(checked) if self.offset > 0.0 else 0.0
        variance = self.variance if self._by_feature else next(checked)
        return replace(self, weight=weight, offset=offset, variance=variance)

    def emit(self, builder: ProgramBuilder, columns: tuple[int, ...]) -> float:
        """(t + offset)^degree; see `Kernel.emit`."""
        scale = [math.sqrt(value) for value in self._feature_weights]
        parameters = (float(self.degree), self.offset)
        builder.leaf(Profile.POLYNOMIAL, columns, scale, product=True, parameters=parameters)
        return self.variance

    def to_json(self) -> dict[str, Any]:
        """`{"type": "polynomial", "variance": v, "weight": [...], "offset": c, "degree": p}` and maybe `n_features`."""
        document: dict[str, Any] = {
            "type": self.type_name,
            "variance": self.variance,
            "weight": list(self.weight),
            "offset": self.offset,
            "degree": self.degree,
        }
        return document if len(self.weight) == self.n_features else {**document, "n_features": self.n_features}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Rebuild from `to_json`'s form; `variance` may be left out (1)."""
        return cls(
            weight=list_from_json(document, "weight"),
            offset=number_from_json(document, "offset", "the offset"),
            degree=integer_from_json(document, "degree"),
            variance=number_from_json(document, "variance", "the kernel's variance", 1.0),
            n_features=integer_from_json(document, "n_features", 0),
        )


def _some_positive(name: str, values: Any) -> tuple[float, ...]:
    checked = checked_per_feature(name, values, zero=True)
    if not any(checked):
        raise InputError(f"{name} must be positive for at least one feature; got zeros only")
    return checked
