"""Sums over samples for a linear regression: of all samples, of all but a fold, centred; and errors from sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.models.linear.paths import LinearPath
from dkgp.operators.base import FloatArray, IndexArray

# A share of a feature's square over all samples: less than that in a part of them is rounding of a difference of sums.
CONSTANT = 1e-12
# Matrices of the sums' size that the coordinator works with, beside those of the folds.
WORKING = 5
# Copies of a block's rows that a task has at once: as read, standardised, with targets, and a group's.
BLOCKS = 5
# Levels of the tree that a sum goes up by, each of which may hold a value.
LEVELS = 7


@dataclass(frozen=True)
class RowSums:
    """Z'Z of rows Z = [1, X, y]."""

    values: FloatArray  # (1 + d + p, 1 + d + p)
    size: int  # features, d
    scale: FloatArray  # (d,): diagonal of X'X over all samples, also where these sums are of a part

    @classmethod
    def of(cls, values: FloatArray, size: int) -> RowSums:
        """Sums over all samples."""
        return cls(values, size, np.diagonal(values)[1 : 1 + size].copy())

    @property
    def n(self) -> int:
        """Samples."""
        return round(float(self.values[0, 0]))

    @property
    def means(self) -> FloatArray:
        """Of all columns of X and y: (d + p,)."""
        return np.asarray(self.values[0, 1:] / self.values[0, 0])

    def without(self, part: FloatArray) -> RowSums:
        """Sums over the samples that are not in a part, whose sums these are."""
        return RowSums(self.values - part, self.size, self.scale)

    def centred(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """X'X (d, d), X'y (d, p) and the squares y'y (p,) of centred columns.

        A feature that hardly varies here, though it does elsewhere, is left out: its row and column are zero.
        """
        inner = self.values[1:, 1:] - np.outer(self.values[0, 1:], self.means)
        A, b = inner[: self.size, : self.size].copy(), inner[: self.size, self.size :].copy()
        flat = ~(np.diagonal(A) > CONSTANT * self.scale)
        A[flat], A[:, flat], b[flat] = 0.0, 0.0, 0.0
        return A, b, np.maximum(np.diagonal(inner)[self.size :], 0.0)

    def intercept(self, support: IndexArray, weights: FloatArray, target: int) -> float:
        """The intercept that least squares gives to these weights."""
        means = self.means
        return float(means[self.size + target] - weights @ means[support])

    def squared_errors(self, part: FloatArray, path: LinearPath, target: int) -> FloatArray:
        """Sums of squared errors in another part of the samples, by cardinality, of a path fitted to these."""
        errors = np.empty(path.longest + 1)
        for k, (support, weights) in enumerate(zip(path.supports, path.weights, strict=True)):
            # y - w'x - c is a sum of columns of Z, and its square a quadratic form of their sums.
            columns = np.concatenate([[0], 1 + support, [1 + self.size + target]])
            factors = np.concatenate([[-self.intercept(support, weights, target)], -weights, [1.0]])
            errors[k] = factors @ part[np.ix_(columns, columns)] @ factors
        return np.maximum(errors, 0.0)


def sums_bytes(d: int, p: int, groups: int, threads: int) -> int:
    """Bytes in the coordinator's process of sums by group, while `threads` threads add them up and work with them."""
    one = 8 * (1 + d + p) ** 2
    return one * (groups * (threads + LEVELS) + WORKING)


def reading_bytes(chunk_bytes: int, block_bytes: int, threads: int) -> int:
    """Bytes that `threads` threads take to read rows and multiply them."""
    return threads * (2 * chunk_bytes + BLOCKS * block_bytes)
