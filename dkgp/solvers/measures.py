"""Sums over the n-vectors of a linear system, for a progress record.

They are added up block by block, as `dkgp.operators.block_tasks` cuts the samples into blocks: the bits are the same
whether one process holds the vectors, or workers hold blocks of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.data.types import block_rows
from dkgp.kernels.tiles.code_cache import cached_njit
from dkgp.operators.base import FloatArray, Variances

NO_WEIGHT = np.zeros(0)


@dataclass(frozen=True)
class Sums:
    """Sums over the samples, or over a block of them.

    - `largest`: max |g|, NaN where any g is.
    - `squares`, `weighed` (p,): sums of g_i^2, and of w_i g_i^2 with w_i = s2 / s2_i, by target.
    - `objective` (p,): alpha' (g - y) / 2, whose sum is the objective (equation 3, since Kbar alpha = g + y).
    """

    largest: float
    squares: FloatArray
    weighed: FloatArray
    objective: FloatArray

    @classmethod
    def of(cls, alpha: FloatArray, gradient: FloatArray, rhs: FloatArray, weight: FloatArray) -> Sums:
        """Return the sums over all rows; `weight` is (n,), or empty where all weights are one."""
        largest, squares, weighed, objective = measures(alpha, gradient, rhs, weight, block_rows(len(rhs)))
        return cls(float(largest), squares, weighed, objective)

    @classmethod
    def of_block(cls, alpha: FloatArray, gradient: FloatArray, rhs: FloatArray, weight: FloatArray) -> Sums:
        """Return the sums over the rows of one block."""
        largest, squares, weighed, objective = measures(alpha, gradient, rhs, weight, len(rhs))
        return cls(float(largest), squares, weighed, objective)


def steepness(gradient: FloatArray, diagonal: FloatArray) -> FloatArray:
    """Return g_i^2 / Kbar_ii of each row: (n,)."""
    return np.asarray(np.sum(gradient**2, axis=1) / diagonal)


def weight_of(noise: Variances, least: float) -> FloatArray:
    """Return w_i = s2 / s2_i, s2 the `least` noise variance: (n,); empty where the noise is one variance."""
    return NO_WEIGHT if isinstance(noise, float) else np.asarray(least / noise)


@cached_njit(nogil=True)
def measures(alpha, gradient, rhs, weight, rows):  # type: ignore[no-untyped-def]
    """Return the numbers of `Sums` in one pass, added up by blocks of so many rows."""
    n, p = gradient.shape
    largest = 0.0
    squares, weighed, objective = np.zeros(p), np.zeros(p), np.zeros(p)
    block_squares, block_weighed, block_objective = np.zeros(p), np.zeros(p), np.zeros(p)
    for first in range(0, n, rows):
        for t in range(p):
            block_squares[t] = block_weighed[t] = block_objective[t] = 0.0
        for i in range(first, min(first + rows, n)):
            for t in range(p):
                value = gradient[i, t]
                if not abs(value) <= largest and largest == largest:  # once NaN, always NaN
                    largest = abs(value)
                block_squares[t] += value * value
                if weight.shape[0]:
                    block_weighed[t] += weight[i] * (value * value)
                block_objective[t] += 0.5 * alpha[i, t] * (value - rhs[i, t])
        for t in range(p):
            squares[t] += block_squares[t]
            weighed[t] += block_weighed[t] if weight.shape[0] else block_squares[t]
            objective[t] += block_objective[t]
    return largest, squares, weighed, objective
