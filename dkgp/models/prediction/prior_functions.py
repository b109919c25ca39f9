"""Random functions from a Gaussian process prior, as functions: drawn once, then evaluated anywhere.

A stationary kernel is v E[cos(w'(x - x'))] over its spectral distribution of w (Bochner), so that

    f(x) = sqrt(v / M) sum_j a_j cos(w_j'x) + b_j sin(w_j'x),      a_j, b_j ~ N(0, 1),

has covariance v mean_j cos(w_j'(x - x')): right at x = x', and elsewhere off by at most about v / sqrt(2 M) (standard
deviation over draws of w; 1.1 % of v with the 4,096 frequencies here). A linear kernel has d features that are exact.

References
----------
A. Rahimi, B. Recht, Random features for large-scale kernel machines (2007).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.kernels import Kernel
from dkgp.kernels.spectrum import RandomFeatures
from dkgp.operators.base import FloatArray

FREQUENCIES = 4096
PIECE_ROWS = 512


@dataclass(frozen=True)
class PriorFunctions:
    """Independent functions; `functions(inputs)` evaluates them."""

    parts: tuple[RandomFeatures, ...]
    coefficients: tuple[FloatArray, ...]

    def __call__(self, inputs: FloatArray) -> FloatArray:
        """Values at standardised inputs (r, d): (r, count)."""
        values = np.zeros((len(inputs), self.coefficients[0].shape[1]))
        for start in range(0, len(inputs), PIECE_ROWS):
            rows = slice(start, start + PIECE_ROWS)
            for part, coefficients in zip(self.parts, self.coefficients, strict=True):
                values[rows] += part.features(inputs[rows]) @ coefficients
        return values


def draw_prior_functions(
    kernel: Kernel, n_features: int, count: int, rng: np.random.Generator, frequencies: int = FREQUENCIES
) -> PriorFunctions | None:
    """Draw functions from the prior of a kernel, without white noise.

    Parameters
    ----------
    n_features : int
        d.
    count : int
        How many functions.
    frequencies : int
        M, for each stationary part.

    Returns
    -------
    PriorFunctions or None
        None for a kernel that is not a sum of linear kernels and of products of stationary ones with known spectra.
    """
    parts = kernel.random_features(n_features, frequencies, rng)
    if parts is None:
        return None
    return PriorFunctions(tuple(parts), tuple(rng.standard_normal((part.count, count)) for part in parts))
