"""What a kernel is: an immutable value with a naive evaluation, a JSON description and a tile program.

The naive evaluation (`kernel(A, B)`) is the reference that every compiled path is tested against. The tile program is
what the compiled loops need to know: a scale for each feature and the number of a profile, the scalar function of the
scaled squared distance that is applied in place to a tile. A new stationary kernel adds a profile and a class; no
loop changes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dkgp.errors import InputError

__all__ = ["Kernel", "TileProgram", "kernel_from_json", "register_kernel", "require_positive"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class TileProgram:
    """What the compiled loops evaluate: `amplitude * profile(sum_l (scale_l (x_l - x'_l))^2)`.

    Attributes
    ----------
    feature_scale : (d,) float64
        Factor on each feature. Constants that the profile would multiply by (log2 e for a `2**-r2`) are folded in here.
    profile : int
        Number of the profile in `dkgp.kernels.compiled`.
    amplitude : float
        Factor on the profile's value; folded into the vector that the tile is multiplied with.
    """

    feature_scale: FloatArray
    profile: int
    amplitude: float


class Kernel(ABC):
    """A positive definite function k(x, x') on rows of d features."""

    type_name: ClassVar[str]

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Number of features d that the kernel expects."""

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

    @abstractmethod
    def tile_program(self) -> TileProgram:
        """What the compiled loops need to know of this kernel."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Describe the kernel in plain JSON types; `kernel_from_json` is the inverse."""

    @classmethod
    @abstractmethod
    def from_json(cls, document: Mapping[str, Any]) -> Kernel:
        """Rebuild the kernel from what `to_json` gave."""


_REGISTRY: dict[str, type[Kernel]] = {}


def register_kernel(cls: type[Kernel]) -> type[Kernel]:
    """Class decorator: make a kernel known to `kernel_from_json` by its `type_name`."""
    _REGISTRY[cls.type_name] = cls
    return cls


def kernel_from_json(document: Mapping[str, Any]) -> Kernel:
    """Rebuild a kernel from its JSON description.

    Raises
    ------
    InputError
        The description has no type, an unknown type, or parameters that are not admissible.
    """
    if not isinstance(document, Mapping) or "type" not in document:
        raise InputError(f'a kernel description needs a "type"; got {document!r}, known types: {sorted(_REGISTRY)}')
    try:
        cls = _REGISTRY[document["type"]]
    except (KeyError, TypeError):
        raise InputError(f"unknown kernel type {document['type']!r}; known types: {sorted(_REGISTRY)}") from None
    return cls.from_json(document)


def require_positive(name: str, value: float, *, admits: Callable[[float], bool] = lambda v: v > 0.0) -> float:
    """Return `value` as a float, or say why it is not admissible."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number; got {value!r}") from None
    if not math.isfinite(number) or not admits(number):
        raise InputError(f"{name} must be finite and positive; got {number!r}")
    return number
