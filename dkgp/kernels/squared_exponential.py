"""The squared exponential kernel with one length scale per feature (automatic relevance determination)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dkgp.kernels.assembly import ProgramBuilder
from dkgp.kernels.base import FloatArray, register_kernel
from dkgp.kernels.distance import LOG2_E, DistanceKernel
from dkgp.kernels.program import Profile

__all__ = ["SquaredExponential"]


@register_kernel
@dataclass(frozen=True)
class SquaredExponential(DistanceKernel):
    """k(x, x') = v exp(-sum_l gamma_l (x_l - x'_l)^2), the kernel of the GBCD paper (section 3) with an amplitude v.

    Parameters
    ----------
    gamma : float or sequence of d floats
        Inverse squared length scales, gamma_l = 1 / (2 lengthscale_l^2); zero switches a feature off. A single value
        with `n_features` is the gamma of all features: an isotropic kernel, with one parameter for them.
    variance : float, default 1.0
        The amplitude v = k(x, x); 1 in the paper.
    n_features : int, optional
        Number of features d; the length of `gamma` by default.

    Raises
    ------
    InputError
        A negative, infinite or missing gamma, an amplitude that is not positive, or another number of features.

    Examples
    --------
    >>> kernel = SquaredExponential(gamma=(0.5, 0.5))
    >>> float(kernel([[0.0, 0.0]], [[1.0, 1.0]])[0, 0]) == math.exp(-1.0)
    True
    """

    type_name: ClassVar[str] = "rbf"

    def profile(self, s: FloatArray) -> FloatArray:
        """f(s) = exp(-s)."""
        f = np.negative(s)
        return np.exp(f, out=f)

    def slope(self, s: FloatArray, f: FloatArray) -> FloatArray:
        """f'(s) = -f(s)."""
        return np.negative(f)

    def emit(self, builder: ProgramBuilder, columns: tuple[int, ...]) -> float:
        """exp(-s) = 2**(-s log2 e): the log2 e goes into the scale; see `Kernel.emit`."""
        builder.leaf(Profile.EXP2, columns, [math.sqrt(value * LOG2_E) for value in self.feature_gamma])
        return self.variance
