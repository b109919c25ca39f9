"""The interface of kernels: immutable values, evaluated, differentiated, combined, described in JSON, compiled.

All that is known of a kernel stands in its own file: it derives from `Kernel` (of a distance, from
`dkgp.kernels.distance.DistanceKernel`, which leaves little to do), and `register_kernel` makes it known by its name.

The naive evaluation (`kernel(A, B)`) is the reference that every other path is tested against: `linearise`, the same by
matrix products and with derivatives, and the tile program of the compiled loops. A kernel's parameters are its positive
numbers; the search for hyperparameters works on their logarithms, so derivatives are with respect to those.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dkgp.codec import register
from dkgp.errors import InputError
from dkgp.kernels.program import ProgramBuilder, TileProgram
from dkgp.kernels.spectrum import RandomFeatures, Waves
from dkgp.registry import load_entry_points

FloatArray: TypeAlias = NDArray[np.float64]
_CONTRACTED_ENTRIES = 2**17
Pullback: TypeAlias = Callable[[FloatArray], FloatArray]
"""weights (a, b) -> sum_ij weights_ij d k(a_i, b_j) / d log(parameter), one for each parameter"""
Settings: TypeAlias = dict[str, Any]
"""Settings of a kernel in an expression, by name: numbers, lists of numbers, truth values, words"""


@dataclass(frozen=True)
class Parameter:
    """One free, positive number of a kernel.

    Attributes
    ----------
    name : str
        "gamma", "variance", "alpha" ...; in a composite with the path of its part, "product.rbf.gamma".
    lower, upper : float
        Bounds for a search on standardised inputs.
    feature : int or None
        The feature that a length scale, weight or period belongs to; None for a parameter of all features.
    """

    name: str
    value: float
    lower: float
    upper: float
    feature: int | None = None

    def within(self, path: str) -> Parameter:
        """Return the parameter under its name in a composite that calls its part `path`."""
        return replace(self, name=f"{path}.{self.name}")


class Kernel(ABC):
    """A positive definite function k(x, x') on rows of d features.

    Attributes
    ----------
    type_name : str
        Its "type" in JSON, and its name in expressions.
    composite : bool
        Whether it is made of other kernels, and written in expressions by other means than a name.
    featureless : bool
        Whether it looks at no feature.
    """

    type_name: ClassVar[str]
    composite: ClassVar[bool] = False
    featureless: ClassVar[bool] = False

    # NumPy's numbers leave `number * kernel` to `__rmul__` instead of wrapping the kernel in an array.
    __array_ufunc__: ClassVar[None] = None

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Number of features d that the kernel expects; 0 where it takes any number (a constant)."""

    @property
    def stationary(self) -> bool:
        """True if k(x, x) is the same everywhere."""
        return False

    @property
    def label(self) -> str:
        """The kernel's name in the names of a composite's parameters."""
        return self.type_name

    @property
    def children(self) -> tuple[Kernel, ...]:
        """The kernels that this one is made of; none for a plain one."""
        return ()

    @property
    def pairwise(self) -> bool:
        """True if a value depends on two rows alone; that of white noise depends on their places."""
        return all(child.pairwise for child in self.children)

    @property
    def unproven(self) -> str | None:
        """Name of a function whose positive definiteness and rounding are not proven; None for dkgp's own."""
        return None

    def walk(self) -> Iterator[Kernel]:
        """The kernel and all that it is made of, from the outside in."""
        yield self
        for child in self.children:
            yield from child.walk()

    # ------------------------------------------------------------------------------------------------------ evaluation

    @abstractmethod
    def __call__(self, A: ArrayLike, B: ArrayLike) -> FloatArray:
        """Evaluate all pairs in float64 by broadcasting: the slow, obvious reference.

        Parameters
        ----------
        A, B : (a, d) and (b, d) array_like

        Returns
        -------
        (a, b) float64
        """

    @abstractmethod
    def diagonal(self, A: ArrayLike) -> FloatArray:
        """k(x, x) for each row of `A`: (a,) float64."""

    def prior_variance(self, n_features: int) -> float | None:
        """Return k(x, x) if it is the same everywhere, or None."""
        return float(self.diagonal(np.zeros((1, n_features)))[0]) if self.stationary else None

    @property
    def diagonal_roundings(self) -> float:
        """Bound on the relative error of `diagonal`, in roundings: of v f(0), a user's f being good to sixteen."""
        return 18.0

    @abstractmethod
    def linearise(self, A: ArrayLike, B: ArrayLike) -> tuple[FloatArray, Pullback]:
        """Values by matrix products, and a function that contracts weights with their derivatives.

        Parameters
        ----------
        A, B : (a, d) and (b, d) array_like

        Returns
        -------
        values : (a, b) float64
            To be read, not written: the pullback may use them.
        pullback : callable
            See `Pullback`. Holds one or two (a, b) arrays for each plain kernel, does not modify the weights, and its
            result is of shape (q,), in the order of `parameters`.
        """

    def matrix(self, A: ArrayLike, B: ArrayLike) -> FloatArray:
        """Like a call, by matrix products: (a, b) float64; rounding is relative to the squared norms of scaled rows."""
        return self.linearise(A, B)[0]

    def contract(self, A: ArrayLike, B: ArrayLike, weights: ArrayLike) -> FloatArray:
        """sum_ij weights_ij d k(a_i, b_j) / d log(parameter) for each parameter.

        Parameters
        ----------
        A, B : (a, d) and (b, d) array_like
        weights : (a, b) array_like
            Not modified.

        Returns
        -------
        (q,) float64
            In the order of `parameters`.
        """
        left, right = self.rows(A, B)
        checked = self.checked_weights(left, right, weights)
        step = max(64, _CONTRACTED_ENTRIES // max(1, right.shape[0]))
        if left.shape[0] <= step or (left is right and not self.pairwise):
            return self.linearise(left, right)[1](checked)
        # Some rows at a time: few arrays, that stay in the cache.
        pieces = range(0, left.shape[0], step)
        parts = [self.linearise(left[i : i + step], right)[1](checked[i : i + step]) for i in pieces]
        gradient: FloatArray = np.sum(parts, axis=0)
        return gradient

    # ------------------------------------------------------------------------------------------------------ parameters

    @abstractmethod
    def parameters(self) -> tuple[Parameter, ...]:
        """The free parameters: positive numbers that change the kernel, each in its own way; a zero stays zero."""

    @abstractmethod
    def with_parameters(self, values: ArrayLike) -> Kernel:
        """Return the kernel with these values (q,), not logarithms, in the order of `parameters`; a gamma may be zero.

        Raises
        ------
        InputError
            Another number of values than there are parameters, or one that is not positive and finite.
        """

    @property
    def amplitude_index(self) -> int | None:
        """Index in `parameters` of the whole kernel's amplitude; None where no single one is."""
        return self.parameters_and_amplitude()[1]

    def parameters_and_amplitude(self) -> tuple[tuple[Parameter, ...], int | None]:
        """`parameters` and `amplitude_index` at once: a composite asks each part once for both, however deep it is."""
        parameters = self.parameters()
        return parameters, next((i for i, parameter in enumerate(parameters) if parameter.name == "variance"), None)

    # ------------------------------------------------------------------------------------------------------- composing

    def __add__(self, other: object) -> Kernel:
        return _composite("sum", (self, other)) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: object) -> Kernel:
        if isinstance(other, Kernel):
            return _composite("product", (self, other))
        if isinstance(other, int | float | np.integer | np.floating) and not isinstance(other, bool):
            return _composite("scaled", self, float(other))
        return NotImplemented

    def __rmul__(self, other: object) -> Kernel:
        return self.__mul__(other)

    def on(self, features: Sequence[int], n_features: int) -> Kernel:
        """The kernel of some columns of inputs with `n_features` features, in the order given."""
        return _composite("on", self, tuple(features), n_features)

    def split_white(self) -> tuple[Kernel | None, float]:
        """Split off white noise: the rest of this kernel (None: nothing), and the noise's variance."""
        return self, 0.0

    # ---------------------------------------------------------------------------------------------------------- draws

    def frequencies(self, count: int, rng: np.random.Generator) -> FloatArray | None:
        """Draws of w (count, d) from the spectral distribution of k, where k(x, x') = k(x, x) E[cos(w'(x - x'))].

        None for a kernel that is not stationary, or whose distribution is not known: functions are then drawn jointly.
        """
        return None

    def random_features(self, n_features: int, count: int, rng: np.random.Generator) -> list[RandomFeatures] | None:
        """Features whose sum of products is k in expectation, in parts that add up; None where none are known.

        Parameters
        ----------
        n_features : int
            d.
        count : int
            Frequencies of each stationary part.
        rng : numpy.random.Generator
        """
        drawn = self.frequencies(count, rng)
        return None if drawn is None else [Waves(drawn, float(self.diagonal(np.zeros((1, n_features)))[0]))]

    # ---------------------------------------------------------------------------------------------------- descriptions

    def tile_program(self) -> TileProgram:
        """Describe the kernel for the compiled loops: a `dkgp.kernels.program.TileProgram`."""
        builder = ProgramBuilder()
        amplitude = self.emit(builder, tuple(range(self.n_features)))
        return builder.program(amplitude)

    @abstractmethod
    def emit(self, builder: ProgramBuilder, columns: tuple[int, ...]) -> float:
        """Add the steps that leave this kernel, but for a factor, on the stack.

        Parameters
        ----------
        columns : tuple of d int
            The columns of X that are this kernel's features.

        Returns
        -------
        float
            The factor.
        """

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Describe the kernel in plain JSON types; `kernel_from_json` is the inverse."""

    @classmethod
    @abstractmethod
    def from_json(cls, document: Mapping[str, Any]) -> Kernel:
        """Rebuild the kernel from the form of `to_json`."""

    @classmethod
    def start(cls, settings: Settings, n_features: int) -> Kernel:
        """The kernel that an expression's `name(setting=value)` stands for; from where a search starts.

        Parameters
        ----------
        settings : dict
            May be changed.
        n_features : int
            d of standardised inputs.

        Raises
        ------
        InputError
            A setting that this kernel does not have, or a value that is not admissible.
        """
        raise InputError(f"a kernel of type {cls.type_name!r} has no name in expressions")

    # ---------------------------------------------------------------------------------------------- for subclasses

    def settle(self, **values: Any) -> None:
        """Replace the fields of a frozen dataclass by their checked values."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def one_side(self, values: ArrayLike) -> FloatArray:
        """Rows as (a, d) float64; `InputError` where they do not fit the kernel."""
        rows = np.asarray(values, dtype=np.float64)
        if rows.ndim != 2 or (self.n_features and rows.shape[1] != self.n_features):
            expected = self.n_features or "any number of"
            raise InputError(f"expected rows of {expected} features; got an array of shape {rows.shape}")
        return rows

    def rows(self, A: ArrayLike, B: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Both sides by `one_side`; one array twice where `A` is `B`, so that samples differ from their twins."""
        left = self.one_side(A)
        return left, left if B is A else self.one_side(B)

    def checked_weights(self, left: FloatArray, right: FloatArray, weights: ArrayLike) -> FloatArray:
        """Weights as (a, b) float64; `InputError` where they do not fit the rows."""
        array = np.ascontiguousarray(weights, dtype=np.float64)
        if array.shape != (left.shape[0], right.shape[0]):
            expected = (left.shape[0], right.shape[0])
            raise InputError(
                f"expected one weight for each pair of rows, an array of shape {expected}; got {array.shape}"
            )
        return array

    def checked_values(self, values: ArrayLike) -> list[float]:
        """Values for `with_parameters` as a floats; only a gamma may be zero. `InputError` where they do not fit."""
        array = np.asarray(values, dtype=np.float64)
        parameters = self.parameters()
        expected = len(parameters)
        if array.shape != (expected,):
            raise InputError(
                f"a kernel of type {self.type_name!r} has {expected} parameters; got values of shape {array.shape}"
            )
        may_be_zero = np.array([parameter.name.rpartition(".")[2] == "gamma" for parameter in parameters], dtype=bool)
        if not bool(np.all(((array > 0.0) | (may_be_zero & (array == 0.0))) & np.isfinite(array))):
            raise InputError(f"a kernel's parameters must be positive and finite; got {array.tolist()}")
        return [float(value) for value in array]


K = TypeVar("K", bound=Kernel)
_REGISTRY: dict[str, type[Kernel]] = {}


def register_kernel(cls: type[K]) -> type[K]:
    """Class decorator: make a kernel known to files and expressions by its `type_name`."""
    _REGISTRY[cls.type_name] = cls
    return cls


def kernel_types() -> Mapping[str, type[Kernel]]:
    """All kernels that are known, by their `type_name`: dkgp's, and those of the entry point group "dkgp.kernels"."""
    _load_installed()
    return MappingProxyType(_REGISTRY)


@cache
def _load_installed() -> None:
    load_entry_points("dkgp.kernels", "kernel")


def _composite(name: str, *parts: Any) -> Kernel:
    """Make a kernel of kernels: they know their parts, and not the other way round."""
    make: Callable[..., Kernel] = _REGISTRY[name]
    return make(*parts)


class _PartError(InputError):
    """An error somewhere inside a composite's description."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"in {path}: {reason}")
        self.path, self.reason = path, reason


def kernel_from_json(document: Mapping[str, Any]) -> Kernel:
    """Rebuild a kernel from its JSON description.

    Raises
    ------
    InputError
        The description has no type, an unknown type, or parameters that are not admissible; names the part by its path.
    """
    if not isinstance(document, Mapping) or "type" not in document:
        raise InputError(
            f'a kernel description needs a "type"; got {document!r}, known types: {sorted(kernel_types())}'
        )
    try:
        cls = kernel_types()[document["type"]]
    except (KeyError, TypeError):
        raise InputError(f"unknown kernel type {document['type']!r}; known types: {sorted(kernel_types())}") from None
    try:
        return cls.from_json(document)
    except RecursionError:
        raise InputError(
            "the kernel's description is nested too deeply; write sums and products as flat lists"
        ) from None


def part_from_json(document: Any, place: str) -> Kernel:
    """Rebuild a part of a composite; errors name its path, `place` being the last step there."""
    try:
        return kernel_from_json(document)
    except _PartError as error:
        raise _PartError(f"{place}.{error.path}", error.reason) from None
    except InputError as error:
        raise _PartError(place, str(error)) from None


def require_positive(name: str, value: float, *, admits: Callable[[float], bool] = lambda v: v > 0.0) -> float:
    """`value` as a float; `InputError` where it is not admissible."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number; got {value!r}") from None
    if not math.isfinite(number) or not admits(number):
        raise InputError(f"{name} must be finite and positive; got {number!r}")
    return number


register(Kernel, lambda kernel: kernel.to_json(), kernel_from_json)
