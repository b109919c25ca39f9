"""A scikit-learn kernel as a tree that fills kernel matrices in place, and pulls gradients back without their tensor.

scikit-learn's `kernel(X, eval_gradient=True)` makes an (n, n, q) array for the q free numbers of `theta`. A search
needs only sums over all pairs, sum_ij W_ij dK_ij / dtheta, which each leaf adds up from pieces of rows that fit a
cache. White noise stands beside the matrix as the diagonal that it is: k = dense + delta noise, so that (a + delta m)(b
+ delta n) = a b + delta (m b(x, x) + n a(x, x) + m n).

A kernel of a distance takes its function of s, and that function's slope, from the dkgp kernel that its line in
`dkgp.estimators.drop_in.translation` names: entries have one formula in all ways of computing them. A kernel of a
class that is not scikit-learn's own, a user's for instance, is a leaf that calls it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from scipy.spatial.distance import cdist

from dkgp.errors import InputError
from dkgp.estimators.drop_in.parameters import kernels as sk
from dkgp.estimators.drop_in.translation import to_dkgp
from dkgp.estimators.scikit_learn import clone
from dkgp.models.rounding import LOST, UNIT, known
from dkgp.operators.base import FloatArray

Entries: TypeAlias = "FloatArray | float"
"""Entries of a matrix or a diagonal; a number if all are equal"""
Pullback: TypeAlias = Callable[[FloatArray], FloatArray]
"""weights W (a, b) -> sum_ij W_ij dk_ij / dtheta, (q,)"""

# Absolute error of a product below the smallest normal number, in units of u.
LOST_UNITS = LOST / UNIT

# Entries of a piece of rows: in float64 as many as a processor's second cache holds.
_PIECE_ENTRIES = 2**16


class Pair:
    """Rows of both sides of a kernel matrix, with arrays that its leaves share.

    Parameters
    ----------
    left, right
        (a, d) and (b, d) arrays, or other objects that the kernel's leaves take.
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
    """Bound on the change of a product of two sizes whose factors have these errors, in units of u."""
    return known(np.asarray(first_error * second + second_error * first + UNIT * first_error * second_error))


def _times(weights: FloatArray, factor: Entries, pullback: Pullback, size: int) -> FloatArray:
    """pullback(weights factor), which is linear in the weights; empty without parameters."""
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
        self.first.move(theta[: self.first.size])
        self.second.move(theta[self.first.size :])


class _SumNode(_Binary):
    """k = a + b."""

    def dense(self, pair: Pair) -> Entries:
        first, second = self.first.dense(pair), self.second.dense(pair)
        if not isinstance(first, np.ndarray):
            first, second = second, first
        if isinstance(second, np.ndarray) or second != 0.0:  # white noise has nothing to add
            first += second
        return first

    def linearised(self, pair: Pair) -> tuple[Entries, Pullback]:
        (first, pull_first), (second, pull_second) = self.first.linearised(pair), self.second.linearised(pair)
        nothing = [isinstance(part, float) and part == 0.0 for part in (first, second)]
        values = second if nothing[0] else first if nothing[1] else first + second
        return values, lambda W: np.concatenate([pull_first(W), pull_second(W)])

    def diagonal(self, rows: Any) -> Entries:
        return self.first.diagonal(rows) + self.second.diagonal(rows)

    def diagonal_pullback(self, rows: Any, weights: FloatArray) -> FloatArray:
        parts = (self.first, self.second)
        return np.concatenate([part.diagonal_pullback(rows, weights) for part in parts])

    def noise(self, rows: Any) -> Entries:
        return self.first.noise(rows) + self.second.noise(rows)

    def noise_pullback(self, rows: Any, weights: FloatArray) -> FloatArray:
        return np.concatenate([part.noise_pullback(rows, weights) for part in (self.first, self.second)])

    def error(self, pair: Pair, largest: float) -> float:
        return sum(part.error(pair, part.largest_diagonal(pair)) for part in (self.first, self.second)) + 2.0 * largest

    def diagonal_error(self, rows: Any) -> Entries:
        errors = self.first.diagonal_error(rows) + self.second.diagonal_error(rows)
        return 1.01 * (errors + np.abs(self.diagonal(rows)))

    def noise_error(self, rows: Any) -> Entries:
        errors = self.first.noise_error(rows) + self.second.noise_error(rows)
        return 1.01 * (errors + np.abs(self.noise(rows)))


class _ProductNode(_Binary):
    """k = a b."""

    def dense(self, pair: Pair) -> Entries:
        first, second = self.first.dense(pair), self.second.dense(pair)
        if isinstance(first, np.ndarray):
            first *= second
            return first
        second *= first
        return second

    def linearised(self, pair: Pair) -> tuple[Entries, Pullback]:
        (first, pull_first), (second, pull_second) = self.first.linearised(pair), self.second.linearised(pair)

        def pullback(W: FloatArray) -> FloatArray:
            left = _times(W, second, pull_first, self.first.size)
            return np.concatenate([left, _times(W, first, pull_second, self.second.size)])

        return first * second, pullback

    def diagonal(self, rows: Any) -> Entries:
        return self.first.diagonal(rows) * self.second.diagonal(rows)

    def diagonal_pullback(self, rows: Any, weights: FloatArray) -> FloatArray:
        first, second = self.first, self.second
        return np.concatenate(
            [
                first.diagonal_pullback(rows, weights * second.diagonal(rows)),
                second.diagonal_pullback(rows, weights * first.diagonal(rows)),
            ]
        )

    def noise(self, rows: Any) -> Entries:
        first, second = self.first.noise(rows), self.second.noise(rows)
        return first * self.second.diagonal(rows) + second * self.first.diagonal(rows) + first * second

    def noise_pullback(self, rows: Any, weights: FloatArray) -> FloatArray:
        parts = ((self.first, self.second), (self.second, self.first))
        return np.concatenate(
            [
                part.noise_pullback(rows, weights * (other.diagonal(rows) + other.noise(rows)))
                + part.diagonal_pullback(rows, weights * other.noise(rows))
                for part, other in parts
            ]
        )

    def error(self, pair: Pair, largest: float) -> float:
        first, second = self.first.largest_diagonal(pair), self.second.largest_diagonal(pair)
        first_error, second_error = self.first.error(pair, first), self.second.error(pair, second)
        inherited = _product_error(first, first_error, second, second_error)
        return float(1.01 * (inherited + 2.0 * largest) + LOST_UNITS)

    @property
    def divisible(self) -> bool:  # type: ignore[override]
        return self.first.divisible and self.second.divisible

    def diagonal_error(self, rows: Any) -> Entries:
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


class _PowerNode(Node):
    """k = a^e; theta is that of a."""

    def __init__(self, base: Node, exponent: float) -> None:
        self.base, self.exponent = base, exponent
        self.size, self.arrays, self.unknown = base.size, base.arrays + 2, base.unknown

    def move(self, theta: FloatArray) -> None:
        self.base.move(theta)

    def dense(self, pair: Pair) -> Entries:
        return self.base.dense(pair) ** self.exponent

    def linearised(self, pair: Pair) -> tuple[Entries, Pullback]:
        base, pull = self.base.linearised(pair)
        slope = self.exponent * base ** (self.exponent - 1.0)
        return base**self.exponent, lambda W: _times(W, slope, pull, self.size)

    def diagonal(self, rows: Any) -> Entries:
        return self.base.diagonal(rows) ** self.exponent

    def diagonal_pullback(self, rows: Any, weights: FloatArray) -> FloatArray:
        slope = self.exponent * self.base.diagonal(rows) ** (self.exponent - 1.0)
        return self.base.diagonal_pullback(rows, weights * slope)

    def noise(self, rows: Any) -> Entries:
        """(a(x, x) + noise)^e less the part in `diagonal`."""
        latent, noise = self.base.diagonal(rows), self.base.noise(rows)
        return (latent + noise) ** self.exponent - latent**self.exponent

    def noise_pullback(self, rows: Any, weights: FloatArray) -> FloatArray:
        latent, noise = self.base.diagonal(rows), self.base.noise(rows)
        whole = self.exponent * (latent + noise) ** (self.exponent - 1.0)
        of_latent = whole - self.exponent * latent ** (self.exponent - 1.0)
        return self.base.noise_pullback(rows, weights * whole) + self.base.diagonal_pullback(rows, weights * of_latent)

    @property
    def divisible(self) -> bool:  # type: ignore[override]
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
        """Bound on the change of a^e if a changes by `inner` u, in units of u; infinite for e < 1."""
        if self.exponent < 1.0:
            return float("inf")
        return known(np.asarray(1.01 * self.exponent * (base + UNIT * inner) ** (self.exponent - 1.0) * inner))


# Squared periodic length scales that are shorter have a weight that is too small.
LEAST_SQUARE = 1e-300
# Exponents of length scales, of inputs, and of inputs over length scales, beyond which differences are scaled before
# they are squared; and the largest scaled square, whose products with other numbers are finite.
MOST_EXPONENT, LARGEST_SQUARE = 400, 2.0**900


def tree_of(kernel: Any) -> Node:
    """The tree of a scikit-learn kernel, with its values as they are now."""
    match kernel:
        case sk.Sum() if type(kernel) is sk.Sum:
            return _SumNode(tree_of(kernel.k1), tree_of(kernel.k2))
        case sk.Product() if type(kernel) is sk.Product:
            return _ProductNode(tree_of(kernel.k1), tree_of(kernel.k2))
        case sk.Exponentiation() if type(kernel) is sk.Exponentiation:
            return _PowerNode(tree_of(kernel.kernel), float(kernel.exponent))
    grown = _LEAVES.get(type(kernel))
    if grown is None or (type(kernel) is sk.Matern and kernel.nu not in (0.5, 1.5, 2.5, np.inf)):
        return _CalledLeaf(kernel)
    return grown(kernel)


class _Leaf(Node):
    """A kernel without parts; `names` are scikit-learn's parameters, in the order of theta."""

    names: tuple[str, ...] = ()
    holds = 1  # arrays of pairs, the distances of both among them

    def __init__(self, kernel: Any) -> None:
        self.kernel = clone(kernel)
        self.free = [not getattr(kernel, f"hyperparameter_{name}").fixed for name in self.names]
        self.size, self.arrays = sum(self.free), self.holds
        self.set(*(float(np.squeeze(getattr(kernel, name))) for name in self.names))

    def move(self, theta: FloatArray) -> None:
        supply = iter(np.exp(theta).tolist())
        values = zip(self.names, self.free, strict=True)
        self.set(*(next(supply) if free else float(getattr(self.kernel, name)) for name, free in values))

    def set(self, *values: float) -> None:
        """Take values of `names`."""

    def _kept(self, *gradients: float) -> FloatArray:
        """Derivatives with respect to the free parameters."""
        return np.array([value for value, free in zip(gradients, self.free, strict=True) if free])


class _NumberLeaf(_Leaf):
    """A kernel with one parameter, which is its value; `_summed` is the weighted sum of its derivative."""

    holds = 0

    def set(self, *values: float) -> None:
        (self.value,) = values

    def _summed(self, weights: FloatArray) -> FloatArray:
        return self._kept(self.value * float(np.sum(weights)))

    def error(self, pair: Pair, largest: float) -> float:
        return 0.0


class _ConstantLeaf(_NumberLeaf):
    """k = c: an amplitude in a product, an offset in a sum."""

    names = ("constant_value",)
    divisible = True

    def error(self, pair: Pair, largest: float) -> float:
        """None; but a negative constant is no kernel."""
        return 0.0 if self.value >= 0.0 else float("inf")

    def dense(self, pair: Pair) -> Entries:
        return self.value

    def linearised(self, pair: Pair) -> tuple[Entries, Pullback]:
        return self.value, self._summed

    def diagonal(self, rows: Any) -> Entries:
        return self.value

    def diagonal_pullback(self, rows: Any, weights: FloatArray) -> FloatArray:
        return self._summed(weights)


class _WhiteLeaf(_NumberLeaf):
    """White noise: only a diagonal."""

    names = ("noise_level",)
    divisible = True

    def dense(self, pair: Pair) -> Entries:
        return 0.0

    def linearised(self, pair: Pair) -> tuple[Entries, Pullback]:
        return 0.0, lambda W: np.zeros(self.size)

    def diagonal(self, rows: Any) -> Entries:
        return 0.0

    def noise(self, rows: Any) -> Entries:
        return self.value

    def noise_pullback(self, rows: Any, weights: FloatArray) -> FloatArray:
        return self._summed(weights)


class _DotProductLeaf(_Leaf):
    """k = x'y + sigma_0^2."""

    names = ("sigma_0",)

    def set(self, *values: float) -> None:
        self.offset = values[0] * values[0]

    def dense(self, pair: Pair) -> Entries:
        left, right = pair.vectors
        values: FloatArray = left @ right.T
        values += self.offset
        return values

    def linearised(self, pair: Pair) -> tuple[Entries, Pullback]:
        return self.dense(pair), lambda W: self._kept(2.0 * self.offset * float(W.sum()))

    def diagonal(self, rows: Any) -> Entries:
        vectors = np.asarray(rows, dtype=np.float64)
        values: FloatArray = np.einsum("il,il->i", vectors, vectors) + self.offset
        return values

    def diagonal_error(self, rows: Any) -> Entries:
        """d products and additions, and the offset's two roundings, of terms that are not negative."""
        d = np.shape(rows)[1]
        error: Entries = (d + 4.0) * self.diagonal(rows) + (d + 2.0) * LOST_UNITS
        return error

    def diagonal_pullback(self, rows: Any, weights: FloatArray) -> FloatArray:
        return self._kept(2.0 * self.offset * float(np.sum(np.broadcast_to(weights, (len(rows),)))))

    def error(self, pair: Pair, largest: float) -> float:
        """d products and additions and the offset's two roundings, of terms whose sizes sum to `largest` at most."""
        d = pair.vectors[0].shape[1]
        return float((d + 4.0) * largest + (d + 2.0) * LOST_UNITS)


class _PeriodicLeaf(_Leaf):
    """k = exp(-2 sin^2(pi r / p) / l^2), r the distance."""

    names = ("length_scale", "periodicity")
    holds = 3
    divisible = True

    def set(self, *values: float) -> None:
        self.length_scale, self.period = values
        # 2 / l^2: for the shortest length scales the value is too small, and no bound is claimed.
        self.weight = 2.0 / max(self.length_scale * self.length_scale, LEAST_SQUARE)

    def dense(self, pair: Pair) -> Entries:
        values, r = np.empty(pair.shape), pair.distances
        for rows in pair.pieces():
            sine = r[rows] * (np.pi / self.period)
            np.sin(sine, out=sine)
            sine *= sine
            sine *= -self.weight
            np.exp(sine, out=values[rows])
        return values

    def linearised(self, pair: Pair) -> tuple[Entries, Pullback]:
        values = filled(self.dense(pair), pair.shape)

        def pullback(W: FloatArray) -> FloatArray:
            by_scale, by_period, factor = 0.0, 0.0, 2.0 * self.weight
            for rows in pair.pieces():
                weights = W[rows] * values[rows]
                angle = pair.distances[rows] * (np.pi / self.period)
                sine = np.sin(angle)
                by_scale += factor * float(np.vdot(weights, sine * sine))
                sine *= np.cos(angle)
                by_period += factor * float(np.vdot(weights, np.multiply(sine, angle, out=sine)))
            return self._kept(by_scale, by_period)

        return values, pullback

    def diagonal(self, rows: Any) -> Entries:
        return 1.0

    def error(self, pair: Pair, largest: float) -> float:
        """sin^2 at angles t up to T moves by t times its relative error; the exponent by 2 / l^2 of that.

        Squared differences below the smallest normal number move the distance by up to their root. Infinite for several
        features, of whose distance the function need not be positive definite.
        """
        d, rate = pair.vectors[0].shape[1], math.pi / self.period
        if d != 1 or self.length_scale * self.length_scale < LEAST_SQUARE:
            return float("inf")
        reach = float(np.max(pair.distances, initial=0.0)) * rate
        return float(self.weight * (reach * (d + 8.0) + 20.0 + rate * math.sqrt(LOST) / UNIT) + 40.0)


class _DistanceLeaf(Node):
    """k = f(s), s = sum_l (x_l - y_l)^2 / (2 l_l^2): RBF, Matern, RationalQuadratic.

    Where squares could leave float64, differences are first scaled by the power of two next to each length scale.
    """

    divisible = True

    def __init__(self, kernel: Any) -> None:
        self.kernel = clone(kernel)
        hyperparameters = {item.name: item for item in kernel.hyperparameters}
        self.scales = np.atleast_1d(np.squeeze(np.asarray(kernel.length_scale, dtype=np.float64)))
        if type(kernel) is sk.RationalQuadratic and self.scales.size > 1:
            # scikit-learn's own class and words, to the letter: it refuses a use, not a value.
            raise AttributeError("RationalQuadratic has one length scale, for all features; give it a single number")
        self.several = self.scales.size > 1
        self.scales_free = not hyperparameters["length_scale"].fixed
        self.mixed = type(kernel) is sk.RationalQuadratic
        self.mixture_free = self.mixed and not hyperparameters["alpha"].fixed
        self.size = int(self.mixture_free) + (self.scales.size if self.scales_free else 0)
        self.arrays = 3 if self.several else 2
        self._renew()

    def move(self, theta: FloatArray) -> None:
        values = np.exp(np.asarray(theta, dtype=np.float64))
        if self.mixture_free:
            self.kernel.alpha, values = float(values[0]), values[1:]
        if self.scales_free:
            self.scales = values
        self._renew()

    def _renew(self) -> None:
        scaled, self.exponents = np.frexp(self.scales)
        self.kernel.length_scale = scaled if self.several else float(scaled[0])
        function: Any = to_dkgp(self.kernel, self.scales.size)
        self.function, self.scaled_gamma = function, np.asarray(function.gamma)
        # 1 / (2 l^2) to the same bits; infinite or zero of length scales that are scaled.
        with np.errstate(over="ignore"):
            self.gamma = np.ldexp(self.scaled_gamma, -2 * self.exponents)

    def _is_scaled(self, pair: Pair) -> bool:
        exponents = [*self.exponents.tolist(), math.frexp(pair.largest)[1]]
        return max(map(abs, exponents)) > MOST_EXPONENT or self._reach(pair) > MOST_EXPONENT

    def _reach(self, pair: Pair) -> int:
        """Exponent of the largest input over the shortest length scale."""
        return int(math.frexp(pair.largest)[1] - self.exponents.min())

    def _squares(self, pair: Pair, rows: slice, feature: int) -> FloatArray:
        """(x - y)^2 of one feature, in a new array; scaled if `_is_scaled`."""
        left, right = pair.vectors
        difference, scaled = np.subtract.outer(left[rows, feature], right[:, feature]), self._is_scaled(pair)
        if scaled:
            np.ldexp(difference, -self.exponents[feature if self.several else 0], out=difference)
        difference *= difference
        return np.minimum(difference, LARGEST_SQUARE, out=difference) if scaled else difference

    def _s(self, pair: Pair) -> Callable[[slice], FloatArray]:
        """Return a function that computes s of a piece of rows, in a new array."""
        d = pair.vectors[0].shape[1]
        if not self.several and not self._is_scaled(pair):
            gamma, distances = float(self.gamma[0]), pair.squared_distances
            return lambda rows: distances[rows] * gamma
        if self.several and d != self.scales.size:
            raise InputError(
                f"Anisotropic kernel must have the same number of dimensions as data ({self.scales.size}!={d}): give "
                f"{type(self.kernel).__name__} one length scale, or {d}"
            )
        if self._is_scaled(pair):
            gammas = np.broadcast_to(self.scaled_gamma, (d,)).tolist()
            return lambda rows: sum(
                (gamma * self._squares(pair, rows, feature) for feature, gamma in enumerate(gammas)),
                np.zeros((rows.stop - rows.start, pair.shape[1])),
            )
        whole = pair.weighted_distances(self.gamma)
        return lambda rows: whole[rows]

    def dense(self, pair: Pair) -> Entries:
        s, values = self._s(pair), np.empty(pair.shape)
        for rows in pair.pieces():
            values[rows] = self.function.profile(s(rows))
        return values

    def linearised(self, pair: Pair) -> tuple[Entries, Pullback]:
        s, values = self._s(pair), np.empty(pair.shape)
        for rows in pair.pieces():
            values[rows] = self.function.profile(s(rows))

        def pullback(W: FloatArray) -> FloatArray:
            by_scale, by_mixture = np.zeros(self.scales.size), 0.0
            gammas = self.scaled_gamma if self._is_scaled(pair) else self.gamma
            for rows in pair.pieces() if self.size else []:
                at, f = s(rows), values[rows]
                D = self.function.slope(at, f)
                D *= W[rows]
                if not self.several:
                    by_scale[0] += np.vdot(D, at)
                else:
                    for feature, gamma in enumerate(gammas.tolist()):
                        by_scale[feature] += gamma * np.vdot(D, self._squares(pair, rows, feature))
                if self.mixture_free:
                    by_mixture += float(self.function._shape_gradients(at, f, W[rows])[0])
            # gamma goes with the scale to the power -2.
            gradient = -2.0 * by_scale if self.scales_free else np.empty(0)
            return np.concatenate([[by_mixture], gradient]) if self.mixture_free else gradient

        return values, pullback

    def diagonal(self, rows: Any) -> Entries:
        return 1.0

    def error(self, pair: Pair, largest: float) -> float:
        """s is right to d + 5 roundings, and s |f'(s)| <= 1 / e for these mixtures of exp(-t s); f to 40 more.

        Squares below the smallest normal number move a distance in length scales by less than 2^-80. Infinite where
        squares may exceed `LARGEST_SQUARE` and f is not zero there.
        """
        if self.mixed and self._reach(pair) > MOST_EXPONENT:
            return float("inf")
        return float(pair.vectors[0].shape[1] + 45.0)


class _CalledLeaf(Node):
    """A kernel object that is called: a user's, one of strings or graphs, or Matern of general nu."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = clone(kernel)
        self.size = int(self.kernel.n_dims)
        self.arrays = 2 + 2 * self.size
        self.unknown = (type(kernel).__name__,)

    def move(self, theta: FloatArray) -> None:
        if self.size:
            self.kernel.theta = theta

    def dense(self, pair: Pair) -> Entries:
        values = self.kernel(pair.left) if pair.same else self.kernel(pair.left, pair.right)
        return np.array(values, dtype=np.float64)

    def linearised(self, pair: Pair) -> tuple[Entries, Pullback]:
        values, gradient = self.kernel(pair.left, eval_gradient=True)
        flat = np.asarray(gradient, dtype=np.float64).reshape(-1, self.size)
        return np.array(values, dtype=np.float64), lambda W: W.reshape(-1) @ flat

    def diagonal(self, rows: Any) -> Entries:
        return np.array(self.kernel.diag(rows), dtype=np.float64)

    def error(self, pair: Pair, largest: float) -> float:
        return float("inf")

    def diagonal_error(self, rows: Any) -> Entries:
        return float("inf")


_LEAVES: dict[type[Any], Callable[[Any], Node]] = {
    sk.RBF: _DistanceLeaf,
    sk.Matern: _DistanceLeaf,
    sk.RationalQuadratic: _DistanceLeaf,
    sk.ExpSineSquared: _PeriodicLeaf,
    sk.DotProduct: _DotProductLeaf,
    sk.ConstantKernel: _ConstantLeaf,
    sk.WhiteKernel: _WhiteLeaf,
}
