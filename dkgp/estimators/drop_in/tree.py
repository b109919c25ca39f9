"""A scikit-learn kernel as a tree that fills kernel matrices in place, and pulls gradients back without their tensor.

scikit-learn's `kernel(X, eval_gradient=True)` makes an (n, n, q) array for the q free numbers of `theta`. What a search
needs of it are sums over all pairs, sum_ij W_ij dK_ij / dtheta, which each leaf adds up from pieces of rows that fit a
cache. White noise stands beside the matrix all along, as the diagonal that it is: k = dense + delta noise, so that
(a + delta m)(b + delta n) = a b + delta (m b(x, x) + n a(x, x) + m n).

A kernel of a class that is none of scikit-learn's own, a user's for instance, is a leaf that calls it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from scipy.spatial.distance import cdist

from dkgp.models.rounding import LOST, UNIT, known
from dkgp.operators.base import FloatArray

Entries: TypeAlias = "FloatArray | float"
"""Of a matrix or a diagonal; a number where all entries are one"""
Pullback: TypeAlias = Callable[[FloatArray], FloatArray]
"""weights W (a, b) -> sum_ij W_ij dk_ij / dtheta, (q,)"""

# Absolute error of a product below the smallest normal number, in units of u.
LOST_UNITS = LOST / UNIT

# Entries of a piece of rows: of float64 what a processor's second cache holds.
_PIECE_ENTRIES = 2**16


class Pair:
    """Rows of both sides of a kernel matrix, with what its leaves have in common.

    Parameters
    ----------
    left, right
        (a, d) and (b, d) arrays, or whatever else the kernel's leaves take.
    """

    def __init__(self, left: Any, right: Any) -> None:
        self.left, self.right = left, right
        self.same = left is right
        self.shape = (len(left), len(right))

    @cached_property
    def vectors(self) -> tuple[FloatArray, FloatArray]:
        """Both sides in float64, row by row."""
        left = np.ascontiguousarray(self.left, dtype=np.float64)
        return left, left if self.same else np.ascontiguousarray(self.right, dtype=np.float64)

    @cached_property
    def largest(self) -> float:
        """Largest magnitude of an input of either side."""
        return max(float(np.max(np.abs(side), initial=0.0)) for side in self.vectors)

    @cached_property
    def squared_distances(self) -> FloatArray:
        """|a_i - b_j|^2 by direct differences, (a, b): to be read, not written."""
        distances: FloatArray = cdist(*self.vectors, "sqeuclidean")
        return distances

    @cached_property
    def distances(self) -> FloatArray:
        """|a_i - b_j|, (a, b): to be read, not written."""
        root: FloatArray = np.sqrt(self.squared_distances)
        return root

    def weighted_distances(self, weights: FloatArray) -> FloatArray:
        """sum_l w_l (a_il - b_jl)^2 by direct differences, (a, b)."""
        distances: FloatArray = cdist(*self.vectors, "sqeuclidean", w=weights)
        return distances

    def pieces(self) -> list[slice]:
        """Rows of the left side, some at a time."""
        a, b = self.shape
        step = max(1, _PIECE_ENTRIES // max(1, b))
        return [slice(start, min(start + step, a)) for start in range(0, a, step)]


class Node(ABC):
    """A kernel, or a part of one.

    Attributes
    ----------
    size : int
        q, its numbers in `theta`: those that are not fixed.
    arrays : int
        (n, n) arrays that `linearised` and its pullback hold at a time.
    unknown : tuple of str
        Classes that are none of scikit-learn's own.
    divisible : bool
        True if every power k^e with e > 0 is positive definite.
    """

    size: int
    arrays: int
    unknown: tuple[str, ...] = ()
    divisible: bool = False

    @abstractmethod
    def move(self, theta: FloatArray) -> None:
        """Take other values: logarithms (q,), in scikit-learn's order."""

    @abstractmethod
    def dense(self, pair: Pair) -> Entries:
        """Entries without white noise, in a new array, which the caller may write to."""

    @abstractmethod
    def linearised(self, pair: Pair) -> tuple[Entries, Pullback]:
        """Entries of `dense`, to be read, of one set of rows with itself, and their pullback."""

    @abstractmethod
    def diagonal(self, rows: Any) -> Entries:
        """k(x, x) of each row, without white noise."""

    def diagonal_pullback(self, rows: Any, weights: FloatArray) -> FloatArray:
        """sum_i w_i dk(x_i, x_i) / dtheta, (q,)."""
        return np.zeros(self.size)

    def noise(self, rows: Any) -> Entries:
        """White noise of each row."""
        return 0.0

    def noise_pullback(self, rows: Any, weights: FloatArray) -> FloatArray:
        """sum_i w_i dnoise_i / dtheta, (q,)."""
        return np.zeros(self.size)

    @abstractmethod
    def error(self, pair: Pair, largest: float) -> float:
        """Bound on the error of `dense`, entry by entry, in units of u = 2^-53; infinite where none is proven.

        `largest` is a bound on |k| over both sides' rows (`largest_diagonal`).
        """

    def diagonal_error(self, rows: Any) -> Entries:
        """Bound on the error of `diagonal`, row by row, in units of u."""
        return 0.0

    def noise_error(self, rows: Any) -> Entries:
        """Bound on the error of `noise`, row by row, in units of u."""
        return 0.0

    def largest_diagonal(self, pair: Pair) -> float:
        """A bound on |dense| over a pair's entries: max sqrt(k(x, x) k(x', x')), k being positive definite."""
        sides = [np.abs(self.diagonal(side)) + UNIT * self.diagonal_error(side) for side in (pair.left, pair.right)]
        return max(float(np.max(side, initial=0.0)) for side in sides)

    def matrix(self, pair: Pair) -> FloatArray:
        """Entries without white noise, as an array of their own, (a, b)."""
        return filled(self.dense(pair), pair.shape)


def filled(entries: Entries, shape: tuple[int, ...]) -> FloatArray:
    """Entries as an array."""
    return entries if isinstance(entries, np.ndarray) else np.full(shape, float(entries))


def _product_error(first: Any, first_error: Any, second: Any, second_error: Any) -> Any:
    """Return by how much a product of two sizes moves with errors of both, all in units of u but the sizes."""
    return known(np.asarray(first_error * second + second_error * first + UNIT * first_error * second_error))


def _times(weights: FloatArray, factor: Entries, pullback: Pullback, size: int) -> FloatArray:
    """pullback(weights factor), which is linear; nothing where there is no number to pull back to."""
    if not size:
        return np.empty(0)
    return pullback(weights * factor) if isinstance(factor, np.ndarray) else factor * pullback(weights)


class _Binary(Node):
    """Two parts; theta is the first one's and then the second one's."""

    def __init__(self, first: Node, second: Node) -> None:
        self.first, self.second = first, second
        self.size = first.size + second.size
        self.arrays = first.arrays + second.arrays + 1
        self.unknown = first.unknown + second.unknown

    def move(self, theta: FloatArray) -> None:
        """As `Node.move`."""
        self.first.move(theta[: self.first.size])
        self.second.move(theta[self.first.size :])


class SumNode(_Binary):
    """k = a + b."""

    def dense(self, pair: Pair) -> Entries:
        """As `Node.dense`."""
        first, second = self.first.dense(pair), self.second.dense(pair)
        if not isinstance(first, np.ndarray):
            first, second = second, first
        if isinstance(second, np.ndarray) or second != 0.0:  # white noise has nothing to add
            first += second
        return first

    def linearised(self, pair: Pair) -> tuple[Entries, Pullback]:
        """As `Node.linearised`."""
        (first, pull_first), (second, pull_second) = self.first.linearised(pair), self.second.linearised(pair)
        nothing = [isinstance(part, float) and part == 0.0 for part in (first, second)]
        values = second if nothing[0] else first if nothing[1] else first + second
        return values, lambda W: np.concatenate([pull_first(W), pull_second(W)])

    def diagonal(self, rows: Any) -> Entries:
        """As `Node.diagonal`."""
        return self.first.diagonal(rows) + self.second.diagonal(rows)

    def diagonal_pullback(self, rows: Any, weights: FloatArray) -> FloatArray:
        """As `Node.diagonal_pullback`."""
        parts = (self.first, self.second)
        return np.concatenate([part.diagonal_pullback(rows, weights) for part in parts])

    def noise(self, rows: Any) -> Entries:
        """As `Node.noise`."""
        return self.first.noise(rows) + self.second.noise(rows)

    def noise_pullback(self, rows: Any, weights: FloatArray) -> FloatArray:
        """As `Node.noise_pullback`."""
        return np.concatenate([part.noise_pullback(rows, weights) for part in (self.first, self.second)])

    def error(self, pair: Pair, largest: float) -> float:
        """As `Node.error`."""
        return sum(part.error(pair, part.largest_diagonal(pair)) for part in (self.first, self.second)) + 2.0 * largest

    def diagonal_error(self, rows: Any) -> Entries:
        """As `Node.diagonal_error`."""
        errors = self.first.diagonal_error(rows) + self.second.diagonal_error(rows)
        return 1.01 * (errors + np.abs(self.diagonal(rows)))

    def noise_error(self, rows: Any) -> Entries:
        """As `Node.noise_error`."""
        errors = self.first.noise_error(rows) + self.second.noise_error(rows)
        return 1.01 * (errors + np.abs(self.noise(rows)))


class ProductNode(_Binary):
    """k = a b."""

    def dense(self, pair: Pair) -> Entries:
        """As `Node.dense`."""
        first, second = self.first.dense(pair), self.second.dense(pair)
        if isinstance(first, np.ndarray):
            first *= second
            return first
        second *= first
        return second

    def linearised(self, pair: Pair) -> tuple[Entries, Pullback]:
        """As `Node.linearised`."""
        (first, pull_first), (second, pull_second) = self.first.linearised(pair), self.second.linearised(pair)

        def pullback(W: FloatArray) -> FloatArray:
            left = _times(W, second, pull_first, self.first.size)
            return np.concatenate([left, _times(W, first, pull_second, self.second.size)])

        return first * second, pullback

    def diagonal(self, rows: Any) -> Entries:
        """As `Node.diagonal`."""
        return self.first.diagonal(rows) * self.second.diagonal(rows)

    def diagonal_pullback(self, rows: Any, weights: FloatArray) -> FloatArray:
        """As `Node.diagonal_pullback`."""
        first, second = self.first, self.second
        return np.concatenate(
            [
                first.diagonal_pullback(rows, weights * second.diagonal(rows)),
                second.diagonal_pullback(rows, weights * first.diagonal(rows)),
            ]
        )

    def noise(self, rows: Any) -> Entries:
        """As `Node.noise`."""
        first, second = self.first.noise(rows), self.second.noise(rows)
        return first * self.second.diagonal(rows) + second * self.first.diagonal(rows) + first * second

    def noise_pullback(self, rows: Any, weights: FloatArray) -> FloatArray:
        """As `Node.noise_pullback`."""
        parts = ((self.first, self.second), (self.second, self.first))
        return np.concatenate(
            [
                part.noise_pullback(rows, weights * (other.diagonal(rows) + other.noise(rows)))
                + part.diagonal_pullback(rows, weights * other.noise(rows))
                for part, other in parts
            ]
        )

    def error(self, pair: Pair, largest: float) -> float:
        """As `Node.error`."""
        first, second = self.first.largest_diagonal(pair), self.second.largest_diagonal(pair)
        first_error, second_error = self.first.error(pair, first), self.second.error(pair, second)
        inherited = _product_error(first, first_error, second, second_error)
        return float(1.01 * (inherited + 2.0 * largest) + LOST_UNITS)

    @property
    def divisible(self) -> bool:  # type: ignore[override]
        """As of `Node`: a product of such kernels is one."""
        return self.first.divisible and self.second.divisible

    def diagonal_error(self, rows: Any) -> Entries:
        """As `Node.diagonal_error`."""
        first, second = (np.abs(part.diagonal(rows)) for part in (self.first, self.second))
        errors = (part.diagonal_error(rows) for part in (self.first, self.second))
        inherited = _product_error(first, next(errors), second, next(errors))
        error: Entries = 1.01 * (inherited + 2.0 * first * second) + LOST_UNITS
        return error

    def noise_error(self, rows: Any) -> Entries:
        """By the three products of `noise` and their two sums."""
        a, b = self.first, self.second
        first, second = (np.abs(part.noise(rows)) for part in (a, b))
        k_first, k_second = (np.abs(part.diagonal(rows)) for part in (a, b))
        errors = [part.noise_error(rows) for part in (a, b)]
        k_errors = [part.diagonal_error(rows) for part in (a, b)]
        inherited = (
            _product_error(first, errors[0], k_second, k_errors[1])
            + _product_error(k_first, k_errors[0], second, errors[1])
            + _product_error(first, errors[0], second, errors[1])
        )
        sizes = first * k_second + k_first * second + first * second
        error: Entries = 1.01 * (inherited + 4.0 * sizes) + 3.0 * LOST_UNITS
        return error


class PowerNode(Node):
    """k = a^e; theta is that of a."""

    def __init__(self, base: Node, exponent: float) -> None:
        self.base, self.exponent = base, exponent
        self.size, self.arrays, self.unknown = base.size, base.arrays + 2, base.unknown

    def move(self, theta: FloatArray) -> None:
        """As `Node.move`."""
        self.base.move(theta)

    def dense(self, pair: Pair) -> Entries:
        """As `Node.dense`."""
        return self.base.dense(pair) ** self.exponent

    def linearised(self, pair: Pair) -> tuple[Entries, Pullback]:
        """As `Node.linearised`."""
        base, pull = self.base.linearised(pair)
        slope = self.exponent * base ** (self.exponent - 1.0)
        return base**self.exponent, lambda W: _times(W, slope, pull, self.size)

    def diagonal(self, rows: Any) -> Entries:
        """As `Node.diagonal`."""
        return self.base.diagonal(rows) ** self.exponent

    def diagonal_pullback(self, rows: Any, weights: FloatArray) -> FloatArray:
        """As `Node.diagonal_pullback`."""
        slope = self.exponent * self.base.diagonal(rows) ** (self.exponent - 1.0)
        return self.base.diagonal_pullback(rows, weights * slope)

    def noise(self, rows: Any) -> Entries:
        """(a(x, x) + noise)^e less what `diagonal` has of it."""
        latent, noise = self.base.diagonal(rows), self.base.noise(rows)
        return (latent + noise) ** self.exponent - latent**self.exponent

    def noise_pullback(self, rows: Any, weights: FloatArray) -> FloatArray:
        """As `Node.noise_pullback`."""
        latent, noise = self.base.diagonal(rows), self.base.noise(rows)
        whole = self.exponent * (latent + noise) ** (self.exponent - 1.0)
        of_latent = whole - self.exponent * latent ** (self.exponent - 1.0)
        return self.base.noise_pullback(rows, weights * whole) + self.base.diagonal_pullback(rows, weights * of_latent)

    @property
    def divisible(self) -> bool:  # type: ignore[override]
        """As of `Node`: as the base is."""
        return self.base.divisible

    def error(self, pair: Pair, largest: float) -> float:
        """By the slope e a^(e-1), which for e < 1 has no bound; and the power itself, to 4 units in the last place.

        Infinite where the power need not be positive definite.
        """
        if not (self.exponent.is_integer() or self.base.divisible):
            return float("inf")
        base = self.base.largest_diagonal(pair)
        return float(self._moved(base, self.base.error(pair, base)) + 10.0 * largest + LOST_UNITS)

    def diagonal_error(self, rows: Any) -> Entries:
        """As `Node.diagonal_error`."""
        base = np.abs(self.base.diagonal(rows))
        moved = self._moved(base, self.base.diagonal_error(rows))
        error: Entries = moved + 10.0 * base**self.exponent + LOST_UNITS
        return error

    def noise_error(self, rows: Any) -> Entries:
        """By both powers of `noise`, which may cancel, and their difference."""
        latent, noise = np.abs(self.base.diagonal(rows)), np.abs(self.base.noise(rows))
        inner = self.base.diagonal_error(rows) + self.base.noise_error(rows) + latent + noise
        whole = self._moved(latent + noise, inner) + 11.0 * (latent + noise) ** self.exponent
        error: Entries = whole + self.diagonal_error(rows) + np.abs(self.noise(rows)) + 2.0 * LOST_UNITS
        return error

    def _moved(self, base: Any, inner: Any) -> Any:
        """Return by how much a^e moves where a moves by `inner` u, in units of u; infinite for e < 1."""
        if self.exponent < 1.0:
            return float("inf")
        return known(np.asarray(1.01 * self.exponent * (base + UNIT * inner) ** (self.exponent - 1.0) * inner))
