"""Parts of all certificates of decisions: roundings of a sum over samples, and labels that are beyond doubt.

A decision k_x'alpha is off by roundings in proportion to sqrt(k(x, x)) sum_j sqrt(k(x_j, x_j)) |alpha_j|; the second
factor is its column's magnitude, and its spread the same with each term times its row's error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.data.types import BoolArray
from dkgp.models.rounding import EPS, EVALUATION, UNIT, mean_roundings
from dkgp.operators.base import FloatArray

# Of what is made of bounds by a few operations, each rounded.
FEW = 1.0 + 16.0 * EPS


@dataclass(frozen=True)
class SampleSizes:
    """Sizes of samples' entries: `scale` (n,) is sqrt(k(x_i, x_i)) at most. A column at a time, for n may be large."""

    scale: FloatArray
    row_errors: FloatArray

    def magnitude(self, column: FloatArray) -> float:
        """sum_j sqrt(k(x_j, x_j)) |alpha_j| at most."""
        return float(EVALUATION * (self.scale @ np.abs(column)))

    def spread(self, column: FloatArray) -> float:
        """The same with each term times its row's error."""
        return float(EVALUATION * ((self.scale * self.row_errors) @ np.abs(column)))


def upward(prior_variance: FloatArray, row_errors: FloatArray) -> FloatArray:
    """sqrt(k(x, x)) at most, of k(x, x) as computed: (r,)."""
    return np.asarray(np.sqrt(prior_variance) * (1.0 + EPS * (2.0 * row_errors + 8.0)))


def sum_roundings(
    n: int, row_errors: FloatArray, magnitude: tuple[float, ...], spread: tuple[float, ...]
) -> FloatArray:
    """Roundings of sums of n terms at test samples, (r, t), in units of sqrt(k(x, x))."""
    unit = mean_roundings(n) * UNIT + EPS * row_errors
    return np.asarray(unit[:, None] * np.asarray(magnitude) + EPS * np.asarray(spread))


def certified_labels(decisions: FloatArray, bounds: FloatArray, shared: FloatArray | float = 0.0) -> BoolArray:
    """True where the label is proven to be the exact model's: (r,), of decisions and bounds (r, t).

    Of one column, where |f| exceeds its bound; of one column for each class, where the largest is ahead of every other
    by more than both bounds, less what is `shared` by the two, (r, 1). NaN is never certified.
    """
    if decisions.shape[1] == 1:
        return np.asarray(np.abs(decisions[:, 0]) > bounds[:, 0])
    rows, first = np.arange(len(decisions)), np.argmax(decisions, axis=1)
    ahead = decisions[rows, first][:, None] - decisions
    clear = ahead > (bounds + bounds[rows, first][:, None]) * FEW - shared
    clear[rows, first] = True
    return np.asarray(clear.all(axis=1))
