"""Sums, products and multiples of kernels.

Values, derivatives and tile programs of a composite follow from those of its parts. Where several numbers could only
change together, one of them is a parameter: a product has one amplitude however many of its parts have one, and a
multiple has its own instead of its kernel's.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from dkgp.errors import InputError
from dkgp.kernels.base import (
    FloatArray,
    Kernel,
    Parameter,
    Pullback,
    part_from_json,
    register_kernel,
    require_positive,
)
from dkgp.kernels.constants import Constant
from dkgp.kernels.fields import VARIANCE_BOUNDS, number_from_json
from dkgp.kernels.program import ProgramBuilder
from dkgp.kernels.spectrum import RandomFeatures, Waves, product_of_waves

__all__ = ["Product", "Scaled", "Sum"]

# What a part says of itself: see `Kernel.parameters_and_amplitude`.
_Asked: TypeAlias = tuple[tuple[Parameter, ...], int | None]


@dataclass(frozen=True)
class _Parts(Kernel):
    """Two or more kernels of the same features; parts of the same kind are spliced in."""

    parts: tuple[Kernel, ...]

    composite: ClassVar[bool] = True

    def __post_init__(self) -> None:
        flat: list[Kernel] = []
        for part in self.parts:
            if not isinstance(part, Kernel):
                raise InputError(f"a kernel of type {self.type_name!r} is made of kernels; got {part!r}")
            flat += part.parts if isinstance(part, type(self)) else [part]
        if len(flat) < 2:
            raise InputError(f"a kernel of type {self.type_name!r} needs at least two parts; got {len(flat)}")
        counts = {part.n_features for part in flat if part.n_features}
        if len(counts) > 1:
            raise InputError(
                f"the parts of a {self.type_name} must have the same number of features; got {sorted(counts)}. "
                "Give a kernel of some features its place with kernel.on(features, n_features)"
            )
        object.__setattr__(self, "parts", tuple(flat))

    @property
    def n_features(self) -> int:
        """Number of features d; 0 where no part minds."""
        return max(part.n_features for part in self.parts)

    @property
    def stationary(self) -> bool:
        """True if all parts are."""
        return all(part.stationary for part in self.parts)

    @property
    def children(self) -> tuple[Kernel, ...]:
        """The parts."""
        return self.parts

    def parameters(self) -> tuple[Parameter, ...]:
        """The parts' parameters, in the order of the parts, named by them."""
        return self.parameters_and_amplitude()[0]

    def parameters_and_amplitude(self) -> tuple[tuple[Parameter, ...], int | None]:
        """The parts' parameters, and no amplitude: the parts have their own."""
        return self._named(self._asked()), None

    def with_parameters(self, values: ArrayLike) -> Self:
        """The same kernel with other parameters; see `Kernel.with_parameters`."""
        supply = iter(self.checked_values(values))
        asked = self._asked()
        parts = []
        for part, (parameters, _), kept in zip(self.parts, asked, self._kept(asked), strict=True):
            own = [parameter.value for parameter in parameters]
            for index in kept:
                own[index] = next(supply)
            parts.append(part.with_parameters(own))
        return replace(self, parts=tuple(parts))

    def _asked(self) -> list[_Asked]:
        return [part.parameters_and_amplitude() for part in self.parts]

    def _kept(self, asked: list[_Asked]) -> list[list[int]]:
        """Indices of each part's parameters that are parameters of the whole."""
        return [list(range(len(parameters))) for parameters, _ in asked]

    def _named(self, asked: list[_Asked]) -> tuple[Parameter, ...]:
        return tuple(
            parameters[index].within(label)
            for (parameters, _), label, kept in zip(asked, self._labels(), self._kept(asked), strict=True)
            for index in kept
        )

    def _labels(self) -> list[str]:
        """The parts' labels; a number tells twins apart."""
        labels = [part.label for part in self.parts]
        total, seen = Counter(labels), Counter[str]()
        found = []
        for label in labels:
            seen[label] += 1
            found.append(f"{label}#{seen[label]}" if total[label] > 1 else label)
        return found

    def to_json(self) -> dict[str, Any]:
        """`{"type": ..., "parts": [...]}`."""
        return {"type": self.type_name, "parts": [part.to_json() for part in self.parts]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Rebuild from `to_json`'s form."""
        parts = document.get("parts")
        if not isinstance(parts, Sequence) or isinstance(parts, str):
            raise InputError(f'a kernel of type "{cls.type_name}" needs "parts", a list of kernels; got {parts!r}')
        return cls(tuple(part_from_json(part, f"parts[{index}]") for index, part in enumerate(parts)))


@register_kernel
@dataclass(frozen=True)
class Sum(_Parts):
    """k(x, x') = k_1(x, x') + k_2(x, x') + ...

    Parameters
    ----------
    parts : sequence of at least two kernels
        Of the same number of features.
    """

    type_name: ClassVar[str] = "sum"

    def __call__(self, A: ArrayLike, B: ArrayLike) -> FloatArray:
        """The sum of the parts' values; see `Kernel.__call__`."""
        left, right = self.rows(A, B)
        values: FloatArray = np.sum([part(left, right) for part in self.parts], axis=0)
        return values

    def diagonal(self, A: ArrayLike) -> FloatArray:
        """The sum of the parts' diagonals: (a,)."""
        rows = self.one_side(A)
        with np.errstate(over="ignore"):  # as in a dot product's
            values: FloatArray = np.sum([part.diagonal(rows) for part in self.parts], axis=0)
        return values

    @property
    def diagonal_roundings(self) -> float:
        """The most of any part, none of which is negative, and the additions."""
        return max(part.diagonal_roundings for part in self.parts) + len(self.parts)

    def linearise(self, A: ArrayLike, B: ArrayLike) -> tuple[FloatArray, Pullback]:
        """The sum rule; see `Kernel.linearise`."""
        left, right = self.rows(A, B)
        first, *others = (part.linearise(left, right) for part in self.parts)
        pullbacks = [first[1], *(pullback for _, pullback in others)]
        values = first[0] + others[0][0]
        for more, _ in others[1:]:
            values += more
        return values, lambda weights: np.concatenate([pullback(weights) for pullback in pullbacks])

    def contract(self, A: ArrayLike, B: ArrayLike, weights: ArrayLike) -> FloatArray:
        """Part by part, so that only one part's arrays are held at a time; see `Kernel.contract`."""
        left, right = self.rows(A, B)
        checked = self.checked_weights(left, right, weights)
        return np.concatenate([part.contract(left, right, checked) for part in self.parts])

    def split_white(self) -> tuple[Kernel | None, float]:
        """Split off white noise: the rest of the sum, and the noise's variance; see `Kernel.split_white`."""
        split = [part.split_white() for part in self.parts]
        left = [part for part, _ in split if part is not None]
        white = math.fsum(variance for _, variance in split)
        if len(left) < 2:
            return (left[0] if left else None), white
        return Sum(tuple(left)), white

    def random_features(self, n_features: int, count: int, rng: np.random.Generator) -> list[RandomFeatures] | None:
        """Those of all parts; see `Kernel.random_features`."""
        found = [part.random_features(n_features, count, rng) for part in self.parts]
        return None if None in found else [part for parts in found if parts is not None for part in parts]

    def emit(self, builder: ProgramBuilder, columns: tuple[int, ...]) -> float:
        """Add the parts, all relative to the first one's amplitude; see `Kernel.emit`."""
        amplitude = self.parts[0].emit(builder, columns)
        for part in self.parts[1:]:
            builder.scale(part.emit(builder, columns) / amplitude)
            builder.add()
        return amplitude


@register_kernel
@dataclass(frozen=True)
class Product(_Parts):
    """k(x, x') = k_1(x, x') k_2(x, x') ..., positive definite by Schur's product theorem.

    The amplitudes of the parts can only change together: the first one is the parameter.

    Parameters
    ----------
    parts : sequence of at least two kernels
        Of the same number of features.
    """

    type_name: ClassVar[str] = "product"

    def __call__(self, A: ArrayLike, B: ArrayLike) -> FloatArray:
        """The product of the parts' values; see `Kernel.__call__`."""
        left, right = self.rows(A, B)
        values: FloatArray = np.prod([part(left, right) for part in self.parts], axis=0)
        return values

    def diagonal(self, A: ArrayLike) -> FloatArray:
        """The product of the parts' diagonals: (a,)."""
        rows = self.one_side(A)
        with np.errstate(over="ignore", invalid="ignore"):  # as in a dot product's; what is no number is infinite
            values: FloatArray = np.prod([part.diagonal(rows) for part in self.parts], axis=0)
        values[np.isnan(values)] = np.inf
        return values

    @property
    def diagonal_roundings(self) -> float:
        """Those of all parts, and the products."""
        return sum(part.diagonal_roundings for part in self.parts) + len(self.parts)

    def linearise(self, A: ArrayLike, B: ArrayLike) -> tuple[FloatArray, Pullback]:
        """The product rule; see `Kernel.linearise`."""
        left, right = self.rows(A, B)
        values, pullbacks = zip(*(part.linearise(left, right) for part in self.parts), strict=True)
        # before[i] is the product of the values up to part i, after[i] that of those from part i on.
        before = list(itertools.accumulate(values, mul))
        after = list(itertools.accumulate(values[::-1], mul))[::-1]

        def pullback(weights: FloatArray) -> FloatArray:
            last = len(values) - 1
            gradients = []
            for index, (own, kept) in enumerate(zip(pullbacks, self._kept(self._asked()), strict=True)):
                others = weights * before[index - 1] if index else weights
                if index < last:
                    others = others * after[index + 1]
                gradients.append(own(others)[kept])
            return np.concatenate(gradients)

        return before[-1], pullback

    def parameters_and_amplitude(self) -> tuple[tuple[Parameter, ...], int | None]:
        """The parts' parameters but for later amplitudes; the amplitude of the first part that has one."""
        asked, before = self._asked(), 0
        named = self._named(asked)
        for parameters, amplitude in asked:
            if amplitude is not None:
                return named, before + amplitude
            before += len(parameters)
        return named, None

    def _kept(self, asked: list[_Asked]) -> list[list[int]]:
        found, taken = [], False
        for parameters, amplitude in asked:
            found.append([index for index in range(len(parameters)) if not (taken and index == amplitude)])
            taken = taken or amplitude is not None
        return found

    def split_white(self) -> tuple[Kernel | None, float]:
        """Split off white noise: the rest of the product, and the noise's variance.

        With delta one on the diagonal, prod (k_i + w_i delta) = prod k_i + delta (prod (k_i(x, x) + w_i) - prod
        k_i(x, x)), where that is the same everywhere.

        Raises
        ------
        InputError
            White noise times a kernel that is not stationary: noise of another variance at every sample.
        """
        split = [part.split_white() for part in self.parts]
        if all(variance == 0.0 for _, variance in split):
            return self, 0.0
        for index, (part, _) in enumerate(split):
            if part is not None and not part.stationary and any(w for j, (_, w) in enumerate(split) if j != index):
                raise InputError(
                    f"white noise times a kernel of type {part.type_name!r}, which is not stationary, is noise of "
                    "another variance at every sample; add White to the kernel instead of multiplying with it"
                )
        everywhere = [0.0 if part is None else _at_any_sample(part) for part, _ in split]
        total = math.prod(value + variance for value, (_, variance) in zip(everywhere, split, strict=True))
        if any(part is None for part, _ in split):
            return None, total
        left = Product(tuple(part for part, _ in split if part is not None))
        return left, total - math.prod(everywhere)

    def random_features(self, n_features: int, count: int, rng: np.random.Generator) -> list[RandomFeatures] | None:
        """A product of sums is the sum of all products, of stationary parts; see `Kernel.random_features`."""
        factors = []
        for part in self.parts:
            found = part.random_features(n_features, count, rng)
            factors.append([waves for waves in found or () if isinstance(waves, Waves)])
            if not found or len(factors[-1]) < len(found):
                return None
        return [product_of_waves(list(choice), rng) for choice in itertools.product(*factors)]

    def emit(self, builder: ProgramBuilder, columns: tuple[int, ...]) -> float:
        """Multiply the parts; constants among them become factors; see `Kernel.emit`."""
        amplitude, pushed = 1.0, False
        for part in self.parts:
            if isinstance(part, Constant):
                amplitude *= part.variance
                continue
            amplitude *= part.emit(builder, columns)
            if pushed:
                builder.multiply()
            pushed = True
        if not pushed:
            builder.constant(1.0)
        return amplitude


@register_kernel
@dataclass(frozen=True)
class Scaled(Kernel):
    """k(x, x') = scale k_1(x, x'); the scale is the parameter in place of the kernel's own amplitude.

    Parameters
    ----------
    kernel : Kernel
    scale : float
        Positive.
    """

    kernel: Kernel
    scale: float

    type_name: ClassVar[str] = "scaled"
    composite: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, Kernel):
            raise InputError(f"a kernel of type {self.type_name!r} is made of a kernel; got {self.kernel!r}")
        object.__setattr__(self, "scale", require_positive("the scale of a kernel", self.scale))

    @property
    def n_features(self) -> int:
        """Number of features d."""
        return self.kernel.n_features

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
        """Multiply the kernel's values; see `Kernel.__call__`."""
        return self.scale * self.kernel(*self.rows(A, B))

    def diagonal(self, A: ArrayLike) -> FloatArray:
        """The multiple of the kernel's diagonal: (a,)."""
        with np.errstate(over="ignore"):  # as in a dot product's
            return self.scale * self.kernel.diagonal(A)

    @property
    def diagonal_roundings(self) -> float:
        """The kernel's own, and the product."""
        return self.kernel.diagonal_roundings + 1.0

    def linearise(self, A: ArrayLike, B: ArrayLike) -> tuple[FloatArray, Pullback]:
        """Multiply values and derivatives; see `Kernel.linearise`."""
        values, own = self.kernel.linearise(*self.rows(A, B))
        kept = self._asked()[1]

        def pullback(weights: FloatArray) -> FloatArray:
            return self.scale * np.append(own(weights)[kept], np.vdot(weights, values))

        return self.scale * values, pullback

    def parameters(self) -> tuple[Parameter, ...]:
        """The kernel's parameters but for its amplitude, then the scale."""
        return self.parameters_and_amplitude()[0]

    def parameters_and_amplitude(self) -> tuple[tuple[Parameter, ...], int | None]:
        """The kernel's parameters but for its amplitude, then the scale, which is the amplitude."""
        own, kept = self._asked()
        scale = Parameter("scale", self.scale, *VARIANCE_BOUNDS)
        return (*(own[index] for index in kept), scale), len(kept)

    def with_parameters(self, values: ArrayLike) -> Scaled:
        """The same kernel with other parameters; see `Kernel.with_parameters`."""
        *checked, scale = self.checked_values(values)
        parameters, kept = self._asked()
        own = [parameter.value for parameter in parameters]
        for index, value in zip(kept, checked, strict=True):
            own[index] = value
        return Scaled(self.kernel.with_parameters(own), scale)

    def _asked(self) -> tuple[tuple[Parameter, ...], list[int]]:
        """The kernel's parameters, and indices of those that are parameters of this one."""
        own, amplitude = self.kernel.parameters_and_amplitude()
        return own, [index for index in range(len(own)) if index != amplitude]

    def split_white(self) -> tuple[Kernel | None, float]:
        """Split off white noise: the rest of the kernel, scaled, and the variance; see `Kernel.split_white`."""
        left, white = self.kernel.split_white()
        return (None if left is None else replace(self, kernel=left)), self.scale * white

    def random_features(self, n_features: int, count: int, rng: np.random.Generator) -> list[RandomFeatures] | None:
        """The kernel's own, scaled; see `Kernel.random_features`."""
        found = self.kernel.random_features(n_features, count, rng)
        return None if found is None else [part.scaled(self.scale) for part in found]

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


def _at_any_sample(kernel: Kernel) -> float:
    return float(kernel.diagonal(np.zeros((1, kernel.n_features)))[0])
