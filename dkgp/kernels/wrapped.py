"""A multiple of a kernel, and a kernel of some of the features: each made of one other kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from dkgp.errors import InputError
from dkgp.kernels.base import FloatArray, Kernel, Parameter, Pullback, part_from_json, register_kernel, require_positive
from dkgp.kernels.composite import Composite
from dkgp.kernels.fields import VARIANCE_BOUNDS, integer_from_json, number_from_json
from dkgp.kernels.program import ProgramBuilder
from dkgp.kernels.spectrum import RandomFeatures


@dataclass(frozen=True)
class _Wrapped(Composite):
    """A kernel made of one other."""

    kernel: Kernel

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, Kernel):
            raise InputError(f"a kernel of type {self.type_name!r} is made of a kernel; got {self.kernel!r}")

    @property
    def label(self) -> str:
        """Label of the kernel inside."""
        return self.kernel.label

    @property
    def children(self) -> tuple[Kernel, ...]:
        """The kernel inside."""
        return (self.kernel,)


@register_kernel
@dataclass(frozen=True)
class Scaled(_Wrapped):
    """k(x, x') = scale k_1(x, x'); the scale is the parameter in place of the kernel's own amplitude.

    Parameters
    ----------
    kernel : Kernel
    scale : float
        Positive.
    """

    scale: float

    type_name: ClassVar[str] = "scaled"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.settle(scale=require_positive("the scale of a kernel", self.scale))

    def __call__(self, A: ArrayLike, B: ArrayLike) -> FloatArray:
        """Multiply the kernel's values; see `Kernel.__call__`."""
        return self.scale * self.kernel(*self.rows(A, B))

    def diagonal(self, A: ArrayLike) -> FloatArray:
        """The multiple of the kernel's diagonal: (a,)."""
        with np.errstate(over="ignore"):  # as in a dot product's
            return self.scale * self.kernel.diagonal(A)

    @property
    def diagonal_roundings(self) -> float:
        """Roundings of the kernel inside, and of the product."""
        return self.kernel.diagonal_roundings + 1.0

    def linearise(self, A: ArrayLike, B: ArrayLike) -> tuple[FloatArray, Pullback]:
        """Multiply values and derivatives; see `Kernel.linearise`."""
        values, inner = self.kernel.linearise(*self.rows(A, B))
        free = self._free()[1]

        def pullback(weights: FloatArray) -> FloatArray:
            return self.scale * np.append(inner(weights)[free], np.vdot(weights, values))

        return self.scale * values, pullback

    def parameters_and_amplitude(self) -> tuple[tuple[Parameter, ...], int | None]:
        """The kernel's parameters but for its amplitude, then the scale, which is the amplitude."""
        parameters, free = self._free()
        scale = Parameter("scale", self.scale, *VARIANCE_BOUNDS)
        return (*(parameters[index] for index in free), scale), len(free)

    def with_parameters(self, values: ArrayLike) -> Scaled:
        """Return the kernel with other parameters; see `Kernel.with_parameters`."""
        *checked, scale = self.checked_values(values)
        parameters, free = self._free()
        inner = [parameter.value for parameter in parameters]
        for index, value in zip(free, checked, strict=True):
            inner[index] = value
        return Scaled(self.kernel.with_parameters(inner), scale)

    def _free(self) -> tuple[tuple[Parameter, ...], list[int]]:
        """Parameters of the kernel inside, and indices of those that are parameters of this one."""
        parameters, amplitude = self.kernel.parameters_and_amplitude()
        return parameters, [index for index in range(len(parameters)) if index != amplitude]

    def split_white(self) -> tuple[Kernel | None, float]:
        """Split off white noise: the rest of the kernel, scaled, and the variance; see `Kernel.split_white`."""
        rest, white = self.kernel.split_white()
        return (None if rest is None else replace(self, kernel=rest)), self.scale * white

    def random_features(self, n_features: int, count: int, rng: np.random.Generator) -> list[RandomFeatures] | None:
        """Random features of the kernel inside, scaled; see `Kernel.random_features`."""
        drawn = self.kernel.random_features(n_features, count, rng)
        return None if drawn is None else [part.scaled(self.scale) for part in drawn]

    def emit(self, builder: ProgramBuilder, columns: tuple[int, ...]) -> float:
        """The kernel's steps, and the factor; see `Kernel.emit`."""
        return self.scale * self.kernel.emit(builder, columns)

    def to_json(self) -> dict[str, Any]:
        """`{"type": "scaled", "scale": c, "kernel": {...}}`."""
        return {"type": self.type_name, "scale": self.scale, "kernel": self.kernel.to_json()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Scaled:
        """Rebuild from `to_json`'s form."""
        scale = number_from_json(document, "scale", "the scale of a kernel")
        return cls(part_from_json(document.get("kernel"), "kernel"), scale)


@register_kernel
@dataclass(frozen=True)
class ActiveDimensions(_Wrapped):
    """k(x, x') = k_1(x_F, x'_F), with x_F the features F of x in the order given.

    Parameters
    ----------
    kernel : Kernel
        Of as many features as are given, or of any number.
    features : sequence of int
        F, each from 0 to d - 1, none twice.
    n_features : int
        Number of features d of the inputs.
    """

    features: tuple[int, ...]
    n_features: int = 0

    type_name: ClassVar[str] = "on"

    def __post_init__(self) -> None:
        super().__post_init__()
        total = _whole("n_features", self.n_features)
        features = tuple(_whole(f"features[{index}]", value) for index, value in enumerate(self.features))
        for index, value in enumerate(features):
            if not 0 <= value < total:
                raise InputError(
                    f"features[{index}] must be from 0 to {total - 1}, for inputs with {total} features; got {value}"
                )
        if not features or len(set(features)) < len(features):
            raise InputError(f"a kernel's features must be at least one, and none twice; got {list(features)}")
        if self.kernel.n_features not in (0, len(features)):
            raise InputError(
                f"a kernel of {self.kernel.n_features} features cannot be on {len(features)}, {list(features)}; "
                "expected one feature for each of the kernel's"
            )
        self.settle(features=features, n_features=total)

    def __call__(self, A: ArrayLike, B: ArrayLike) -> FloatArray:
        """The kernel's values on its columns; see `Kernel.__call__`."""
        return self.kernel(*self._columns(A, B))

    def diagonal(self, A: ArrayLike) -> FloatArray:
        """The kernel's diagonal on its columns: (a,)."""
        return self.kernel.diagonal(self.one_side(A)[:, self.features])

    @property
    def diagonal_roundings(self) -> float:
        """Roundings of the kernel inside."""
        return self.kernel.diagonal_roundings

    def linearise(self, A: ArrayLike, B: ArrayLike) -> tuple[FloatArray, Pullback]:
        """The kernel's values and derivatives on its columns; see `Kernel.linearise`."""
        return self.kernel.linearise(*self._columns(A, B))

    def contract(self, A: ArrayLike, B: ArrayLike, weights: ArrayLike) -> FloatArray:
        """The kernel's contraction on its columns; see `Kernel.contract`."""
        return self.kernel.contract(*self._columns(A, B), weights)

    def _columns(self, A: ArrayLike, B: ArrayLike) -> tuple[FloatArray, FloatArray]:
        left, right = self.rows(A, B)
        active = left[:, self.features]
        return active, active if left is right else right[:, self.features]

    def parameters_and_amplitude(self) -> tuple[tuple[Parameter, ...], int | None]:
        """Parameters of the kernel inside, by features of the inputs; see `Kernel.parameters_and_amplitude`."""
        parameters, amplitude = self.kernel.parameters_and_amplitude()
        placed = tuple(
            parameter if parameter.feature is None else replace(parameter, feature=self.features[parameter.feature])
            for parameter in parameters
        )
        return placed, amplitude

    def with_parameters(self, values: ArrayLike) -> ActiveDimensions:
        """Return the kernel with other parameters; see `Kernel.with_parameters`."""
        return replace(self, kernel=self.kernel.with_parameters(self.checked_values(values)))

    def split_white(self) -> tuple[Kernel | None, float]:
        """Split off white noise: the rest, on the same features, and the noise's variance; see `Kernel.split_white`."""
        rest, white = self.kernel.split_white()
        if rest is None or white == 0.0:
            return (None if rest is None else self), white
        return replace(self, kernel=rest), white

    def random_features(self, n_features: int, count: int, rng: np.random.Generator) -> list[RandomFeatures] | None:
        """Random features of the kernel inside, of its columns; see `Kernel.random_features`."""
        drawn = self.kernel.random_features(len(self.features), count, rng)
        return None if drawn is None else [part.placed(self.features, n_features) for part in drawn]

    def emit(self, builder: ProgramBuilder, columns: tuple[int, ...]) -> float:
        """The kernel's steps, of its columns; see `Kernel.emit`."""
        return self.kernel.emit(builder, tuple(columns[feature] for feature in self.features))

    def to_json(self) -> dict[str, Any]:
        """`{"type": "on", "features": [...], "n_features": d, "kernel": {...}}`."""
        return {
            "type": self.type_name,
            "features": list(self.features),
            "n_features": self.n_features,
            "kernel": self.kernel.to_json(),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ActiveDimensions:
        """Rebuild from `to_json`'s form."""
        features = document.get("features")
        if not isinstance(features, Sequence) or isinstance(features, str):
            raise InputError(f'a kernel of type "on" needs "features", a list of whole numbers; got {features!r}')
        total = integer_from_json(document, "n_features")
        return cls(part_from_json(document.get("kernel"), "kernel"), tuple(features), total)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputError(f"{name} must be a whole number; got {value!r}")
    return int(value)
