"""Sums and products of kernels.

Values, derivatives and tile programs of a composite follow from those of its parts. Where several numbers could only
change together, one of them is a parameter: a product has one amplitude however many of its parts have one.
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
from dkgp.kernels.base import FloatArray, Kernel, Parameter, Pullback, part_from_json, register_kernel
from dkgp.kernels.constants import Constant
from dkgp.kernels.program import ProgramBuilder
from dkgp.kernels.spectrum import RandomFeatures, Waves, product_of_waves

# A part's `Kernel.parameters_and_amplitude`.
_Described: TypeAlias = tuple[tuple[Parameter, ...], int | None]


class Composite(Kernel):
    """A kernel made of others, its `children`."""

    composite: ClassVar[bool] = True

    @property
    def n_features(self) -> int:
        """Number of features d; 0 where the kernels take any number."""
        return max(child.n_features for child in self.children)

    @property
    def stationary(self) -> bool:
        """True if all its kernels are."""
        return all(child.stationary for child in self.children)

    def parameters(self) -> tuple[Parameter, ...]:
        """The free parameters; see `Kernel.parameters`."""
        return self.parameters_and_amplitude()[0]


@dataclass(frozen=True)
class _Parts(Composite):
    """Two or more kernels of the same features; parts of the same kind are spliced in."""

    parts: tuple[Kernel, ...]

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
        self.settle(parts=tuple(flat))

    @property
    def children(self) -> tuple[Kernel, ...]:
        """The parts."""
        return self.parts

    def parameters_and_amplitude(self) -> tuple[tuple[Parameter, ...], int | None]:
        """The parts' parameters in their order, named by the parts, and no amplitude: the parts have their own."""
        return self._named(self._described()), None

    def with_parameters(self, values: ArrayLike) -> Self:
        """Return the kernel with other parameters; see `Kernel.with_parameters`."""
        supply = iter(self.checked_values(values))
        described = self._described()
        parts = []
        for part, (parameters, _), free in zip(self.parts, described, self._free(described), strict=True):
            part_values = [parameter.value for parameter in parameters]
            for index in free:
                part_values[index] = next(supply)
            parts.append(part.with_parameters(part_values))
        return replace(self, parts=tuple(parts))

    def _described(self) -> list[_Described]:
        return [part.parameters_and_amplitude() for part in self.parts]

    def _free(self, described: list[_Described]) -> list[list[int]]:
        """Indices of each part's parameters that are parameters of the composite."""
        return [list(range(len(parameters))) for parameters, _ in described]

    def _named(self, described: list[_Described]) -> tuple[Parameter, ...]:
        return tuple(
            parameters[index].within(label)
            for (parameters, _), label, free in zip(described, self._labels(), self._free(described), strict=True)
            for index in free
        )

    def _labels(self) -> list[str]:
        """The parts' labels; a number tells twins apart."""
        labels = [part.label for part in self.parts]
        total, seen = Counter(labels), Counter[str]()
        numbered = []
        for label in labels:
            seen[label] += 1
            numbered.append(f"{label}#{seen[label]}" if total[label] > 1 else label)
        return numbered

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
        """The largest of any part, as none is negative, and the additions."""
        return max(part.diagonal_roundings for part in self.parts) + len(self.parts)

    def linearise(self, A: ArrayLike, B: ArrayLike) -> tuple[FloatArray, Pullback]:
        """The sum rule; see `Kernel.linearise`."""
        left, right = self.rows(A, B)
        parts, pullbacks = zip(*(part.linearise(left, right) for part in self.parts), strict=True)
        values = parts[0] + parts[1]
        for part in parts[2:]:
            values += part
        return values, lambda weights: np.concatenate([pullback(weights) for pullback in pullbacks])

    def contract(self, A: ArrayLike, B: ArrayLike, weights: ArrayLike) -> FloatArray:
        """Part by part, so that only one part's arrays are held at a time; see `Kernel.contract`."""
        left, right = self.rows(A, B)
        checked = self.checked_weights(left, right, weights)
        return np.concatenate([part.contract(left, right, checked) for part in self.parts])

    def split_white(self) -> tuple[Kernel | None, float]:
        """Split off white noise: the rest of the sum, and the noise's variance; see `Kernel.split_white`."""
        split = [part.split_white() for part in self.parts]
        rest = [part for part, _ in split if part is not None]
        white = math.fsum(variance for _, variance in split)
        if len(rest) < 2:
            return (rest[0] if rest else None), white
        return Sum(tuple(rest)), white

    def random_features(self, n_features: int, count: int, rng: np.random.Generator) -> list[RandomFeatures] | None:
        """Random features of all parts; see `Kernel.random_features`."""
        drawn = [part.random_features(n_features, count, rng) for part in self.parts]
        return None if None in drawn else [features for part in drawn if part is not None for features in part]

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
        with np.errstate(over="ignore", invalid="ignore"):  # as in a dot product's; NaN becomes infinite
            values: FloatArray = np.prod([part.diagonal(rows) for part in self.parts], axis=0)
        values[np.isnan(values)] = np.inf
        return values

    @property
    def diagonal_roundings(self) -> float:
        """Roundings of all parts, and of the products."""
        return sum(part.diagonal_roundings for part in self.parts) + len(self.parts)

    def linearise(self, A: ArrayLike, B: ArrayLike) -> tuple[FloatArray, Pullback]:
        """The product rule; see `Kernel.linearise`."""
        left, right = self.rows(A, B)
        values, pullbacks = zip(*(part.linearise(left, right) for part in self.parts), strict=True)
        # before[i] is the product of the values up to part i, after[i] that of those from part i on.
        before = list(itertools.accumulate(values, mul))
        after = list(itertools.accumulate(values[::-1], mul))[::-1]

        def contracted(weights: FloatArray) -> FloatArray:
            last = len(values) - 1
            gradients = []
            for index, (pullback, free) in enumerate(zip(pullbacks, self._free(self._described()), strict=True)):
                factor = weights * before[index - 1] if index else weights
                if index < last:
                    factor = factor * after[index + 1]
                gradients.append(pullback(factor)[free])
            return np.concatenate(gradients)

        return before[-1], contracted

    def parameters_and_amplitude(self) -> tuple[tuple[Parameter, ...], int | None]:
        """The parts' parameters but for later amplitudes; the amplitude of the first part that has one."""
        described, before = self._described(), 0
        named = self._named(described)
        for parameters, amplitude in described:
            if amplitude is not None:
                return named, before + amplitude
            before += len(parameters)
        return named, None

    def _free(self, described: list[_Described]) -> list[list[int]]:
        free, has_amplitude = [], False
        for parameters, amplitude in described:
            free.append([index for index in range(len(parameters)) if not (has_amplitude and index == amplitude)])
            has_amplitude = has_amplitude or amplitude is not None
        return free

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
        rest = Product(tuple(part for part, _ in split if part is not None))
        return rest, total - math.prod(everywhere)

    def random_features(self, n_features: int, count: int, rng: np.random.Generator) -> list[RandomFeatures] | None:
        """A product of sums is the sum of all products, of stationary parts; see `Kernel.random_features`."""
        factors = []
        for part in self.parts:
            drawn = part.random_features(n_features, count, rng)
            factors.append([waves for waves in drawn or () if isinstance(waves, Waves)])
            if not drawn or len(factors[-1]) < len(drawn):
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


def _at_any_sample(kernel: Kernel) -> float:
    return float(kernel.diagonal(np.zeros((1, kernel.n_features)))[0])
