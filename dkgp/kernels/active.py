"""A kernel of some of the features only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from dkgp.errors import InputError
from dkgp.kernels.base import FloatArray, Kernel, Parameter, Pullback, part_from_json, register_kernel
from dkgp.kernels.fields import integer_from_json
from dkgp.kernels.program import ProgramBuilder
from dkgp.kernels.spectrum import RandomFeatures

__all__ = ["ActiveDimensions"]


@register_kernel
@dataclass(frozen=True)
class ActiveDimensions(Kernel):
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

    kernel: Kernel
    features: tuple[int, ...]
    n_features: int = 0

    type_name: ClassVar[str] = "on"
    composite: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, Kernel):
            raise InputError(f"a kernel of type {self.type_name!r} is made of a kernel; got {self.kernel!r}")
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
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "n_features", total)

    @property
    def stationary(self) -> bool:
        """True if the kernel is."""
        return self.kernel.stationary

    @property
    def label(self) -> str:
        """The kernel's own."""
        return self.kernel.label

    @property
    def children(self) -> tuple[Kernel, ...]:
        """The kernel."""
        return (self.kernel,)

    def __call__(self, A: ArrayLike, B: ArrayLike) -> FloatArray:
        """The kernel's values on its columns; see `Kernel.__call__`."""
        return self.kernel(*self._columns(A, B))

    def diagonal(self, A: ArrayLike) -> FloatArray:
        """The kernel's diagonal: (a,)."""
        return self.kernel.diagonal(self.one_side(A)[:, self.features])

    @property
    def diagonal_roundings(self) -> float:
        """The kernel's own."""
        return self.kernel.diagonal_roundings

    def linearise(self, A: ArrayLike, B: ArrayLike) -> tuple[FloatArray, Pullback]:
        """The kernel's own on its columns; see `Kernel.linearise`."""
        return self.kernel.linearise(*self._columns(A, B))

    def contract(self, A: ArrayLike, B: ArrayLike, weights: ArrayLike) -> FloatArray:
        """The kernel's own on its columns; see `Kernel.contract`."""
        return self.kernel.contract(*self._columns(A, B), weights)

    def _columns(self, A: ArrayLike, B: ArrayLike) -> tuple[FloatArray, FloatArray]:
        left, right = self.rows(A, B)
        chosen = left[:, self.features]
        return chosen, chosen if left is right else right[:, self.features]

    def parameters(self) -> tuple[Parameter, ...]:
        """The kernel's parameters, of the features that they are of."""
        return self.parameters_and_amplitude()[0]

    def parameters_and_amplitude(self) -> tuple[tuple[Parameter, ...], int | None]:
        """The kernel's own; see `Kernel.parameters_and_amplitude`."""
        own, amplitude = self.kernel.parameters_and_amplitude()
        placed = tuple(
            parameter if parameter.feature is None else replace(parameter, feature=self.features[parameter.feature])
            for parameter in own
        )
        return placed, amplitude

    def with_parameters(self, values: ArrayLike) -> ActiveDimensions:
        """The same kernel with other parameters; see `Kernel.with_parameters`."""
        return replace(self, kernel=self.kernel.with_parameters(self.checked_values(values)))

    def split_white(self) -> tuple[Kernel | None, float]:
        """Split off white noise: the rest, on the same features, and the noise's variance; see `Kernel.split_white`."""
        left, white = self.kernel.split_white()
        if left is None or white == 0.0:
            return (None if left is None else self), white
        return replace(self, kernel=left), white

    def random_features(self, n_features: int, count: int, rng: np.random.Generator) -> list[RandomFeatures] | None:
        """The kernel's own, of its columns; see `Kernel.random_features`."""
        found = self.kernel.random_features(len(self.features), count, rng)
        return None if found is None else [part.placed(self.features, n_features) for part in found]

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
