"""The squared exponential kernel with one length scale per feature (automatic relevance determination)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from dkgp.errors import InputError
from dkgp.kernels.base import FloatArray, Kernel, TileProgram, register_kernel, require_positive
from dkgp.kernels.compiled import PROFILE_EXP2

__all__ = ["SquaredExponential"]

_LOG2_E = 1.0 / math.log(2.0)


@register_kernel
@dataclass(frozen=True)
class SquaredExponential(Kernel):
    """k(x, x') = v exp(-sum_l gamma_l (x_l - x'_l)^2), the kernel of the GBCD paper (section 3) with an amplitude v.

    Parameters
    ----------
    gamma : sequence of d floats
        Inverse squared length scales, gamma_l = 1 / (2 lengthscale_l^2); zero switches a feature off.
    variance : float, default 1.0
        The amplitude v = k(x, x); 1 in the paper.

    Raises
    ------
    InputError
        A negative, infinite or missing gamma, or an amplitude that is not positive.

    Examples
    --------
    >>> kernel = SquaredExponential(gamma=(0.5, 0.5))
    >>> float(kernel([[0.0, 0.0]], [[1.0, 1.0]])[0, 0]) == math.exp(-1.0)
    True
    """

    gamma: tuple[float, ...]
    variance: float = 1.0

    type_name: ClassVar[str] = "rbf"

    def __post_init__(self) -> None:
        values: Sequence[float] = tuple(np.atleast_1d(np.asarray(self.gamma, dtype=object)).tolist())
        if not values:
            raise InputError("gamma needs one value for each feature; got none")
        checked = tuple(
            require_positive(f"gamma[{index}]", value, admits=lambda v: v >= 0.0) for index, value in enumerate(values)
        )
        object.__setattr__(self, "gamma", checked)
        object.__setattr__(self, "variance", require_positive("the kernel's variance", self.variance))

    @property
    def n_features(self) -> int:
        """Number of features d."""
        return len(self.gamma)

    def __call__(self, A: ArrayLike, B: ArrayLike) -> FloatArray:
        """Evaluate all pairs by direct differences in float64; see `Kernel.__call__`."""
        left, right = self._rows(A), self._rows(B)
        squared_distance = np.zeros((left.shape[0], right.shape[0]))
        for column, weight in enumerate(self.gamma):
            squared_distance += weight * (left[:, None, column] - right[None, :, column]) ** 2
        return self.variance * np.exp(-squared_distance)

    def diagonal(self, A: ArrayLike) -> FloatArray:
        """k(x, x) = v for each row of `A`."""
        return np.full(self._rows(A).shape[0], self.variance)

    def tile_program(self) -> TileProgram:
        """exp(-r2) = 2**(-r2 log2 e): the log2 e goes into the length scales, so the profile is a bare power of two."""
        return TileProgram(np.sqrt(np.asarray(self.gamma) * _LOG2_E), PROFILE_EXP2, self.variance)

    def to_json(self) -> dict[str, Any]:
        """`{"type": "rbf", "variance": v, "gamma": [...]}`."""
        return {"type": self.type_name, "variance": self.variance, "gamma": list(self.gamma)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SquaredExponential:
        """Rebuild from `to_json`'s form; `variance` may be left out (1)."""
        if "gamma" not in document:
            raise InputError(
                f'a kernel of type "rbf" needs "gamma", one value for each feature; got {sorted(document)}'
            )
        gamma = document["gamma"]
        if not isinstance(gamma, Sequence) or isinstance(gamma, str):
            raise InputError(f'"gamma" must be a list with one value for each feature; got {gamma!r}')
        return cls(gamma=tuple(gamma), variance=document.get("variance", 1.0))

    def _rows(self, values: ArrayLike) -> FloatArray:
        rows = np.asarray(values, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.n_features:
            raise InputError(f"expected rows of {self.n_features} features; got an array of shape {rows.shape}")
        return rows
