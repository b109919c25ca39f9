"""Kernels that look at no feature: a constant, which is an unknown offset of the targets, and white noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from dkgp.errors import InputError
from dkgp.kernels.base import FloatArray, Kernel, Parameter, Pullback, Settings, register_kernel, require_positive
from dkgp.kernels.fields import VARIANCE_BOUNDS, PlainKernel, checked_features, known_settings
from dkgp.kernels.program import ProgramBuilder
from dkgp.kernels.spectrum import RandomFeatures, Waves


@dataclass(frozen=True)
class _Featureless(PlainKernel):
    """A variance, and a number of features that only serves for checks."""

    variance: float = 1.0
    n_features: int = 0

    featureless: ClassVar[bool] = True

    def __post_init__(self) -> None:
        variance = require_positive("the kernel's variance", self.variance)
        self.settle(variance=variance, n_features=checked_features(self.n_features))

    @property
    def stationary(self) -> bool:
        """k(x, x) is the variance everywhere."""
        return True

    def diagonal(self, A: ArrayLike) -> FloatArray:
        """The variance for each row of `A`: (a,)."""
        return np.full(self.one_side(A).shape[0], self.variance)

    def linearise(self, A: ArrayLike, B: ArrayLike) -> tuple[FloatArray, Pullback]:
        """A kernel that is its only parameter times a pattern is its own derivative; see `Kernel.linearise`."""
        values = self(A, B)
        return values, lambda weights: np.array([np.vdot(weights, values)])

    def parameters(self) -> tuple[Parameter, ...]:
        """The variance."""
        return (Parameter("variance", self.variance, *VARIANCE_BOUNDS),)

    def with_parameters(self, values: ArrayLike) -> Self:
        """Return the kernel with another variance; see `Kernel.with_parameters`."""
        (variance,) = self.checked_values(values)
        return replace(self, variance=variance)

    @classmethod
    def start(cls, settings: Settings, n_features: int) -> Self:
        """See `Kernel.start`; `variance` alone may be set."""
        return cls(n_features=n_features, **known_settings(settings))


@register_kernel
@dataclass(frozen=True)
class Constant(_Featureless):
    """k(x, x') = v: an offset with prior variance v, as part of a sum.

    Parameters
    ----------
    variance : float, default 1.0
        v.
    n_features : int, optional
        Number of features d, checked against inputs; any number by default.
    """

    type_name: ClassVar[str] = "constant"

    def __call__(self, A: ArrayLike, B: ArrayLike) -> FloatArray:
        """The variance for all pairs; see `Kernel.__call__`."""
        left, right = self.rows(A, B)
        return np.full((left.shape[0], right.shape[0]), self.variance)

    def random_features(self, n_features: int, count: int, rng: np.random.Generator) -> list[RandomFeatures]:
        """A wave of frequency zero; see `Kernel.random_features`."""
        return [Waves(np.zeros((1, n_features)), self.variance)]

    def emit(self, builder: ProgramBuilder, columns: tuple[int, ...]) -> float:
        """Push 1; see `Kernel.emit`."""
        builder.constant(1.0)
        return self.variance


@register_kernel
@dataclass(frozen=True)
class White(_Featureless):
    """k(x_i, x_j) = v if i = j, else 0: independent noise, part of a sum that `fold_white` takes it out of.

    Samples are told apart by where they stand, not by their inputs: `kernel(A, A)`, with the very same array, has v on
    its diagonal, and `kernel(A, B)` is zero for any other `B`.

    Parameters
    ----------
    variance : float, default 1.0
        v.
    n_features : int, optional
        Number of features d, checked against inputs; any number by default.
    """

    type_name: ClassVar[str] = "white"

    def __call__(self, A: ArrayLike, B: ArrayLike) -> FloatArray:
        """The variance on the diagonal where `A` is `B`; see `Kernel.__call__`."""
        left, right = self.rows(A, B)
        values = np.zeros((left.shape[0], right.shape[0]))
        if left is right:
            np.fill_diagonal(values, self.variance)
        return values

    @property
    def pairwise(self) -> bool:
        """No."""
        return False

    def split_white(self) -> tuple[Kernel | None, float]:
        """Nothing, and the variance; see `Kernel.split_white`."""
        return None, self.variance

    def emit(self, builder: ProgramBuilder, columns: tuple[int, ...]) -> float:
        """Refuse: samples cannot be told apart in a tile. Always an `InputError`."""
        raise InputError(
            "a kernel with white noise cannot be compiled; take the noise out with "
            "dkgp.kernels.fold_white(kernel, noise_variance), which adds it to the noise variance"
        )


def fold_white(kernel: Kernel, noise_variance: float) -> tuple[Kernel, float]:
    """Take all white noise out of a kernel and add it to the noise variance.

    Parameters
    ----------
    noise_variance : float
        s2.

    Returns
    -------
    kernel : Kernel
        Without `White`; the same object where there was none.
    noise_variance : float
        s2 and the variance taken out.

    Raises
    ------
    InputError
        Nothing but white noise, or white noise times a kernel that is not stationary.

    Examples
    --------
    >>> fold_white(Constant(2.0) + 0.5 * White(0.2), 0.01)
    (Constant(variance=2.0, n_features=0), 0.11)
    """
    rest, white = kernel.split_white()
    if rest is None:
        raise InputError(
            "the kernel is nothing but white noise, so there is nothing to learn from inputs; add another kernel to it"
        )
    return rest, noise_variance + white
