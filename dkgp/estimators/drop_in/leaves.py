"""Leaves of kernel trees: scikit-learn's plain kernels, and kernels that are called; `tree_of` grows the tree.

A kernel of a distance takes its function of s, and that function's slope, from the dkgp kernel that its line in
`dkgp.estimators.drop_in.translation` names: entries have one formula, in whichever way they are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dkgp.errors import InputError
from dkgp.estimators.drop_in.theirs import kernels as sk
from dkgp.estimators.drop_in.translation import to_dkgp
from dkgp.estimators.drop_in.tree import (
    LOST_UNITS,
    Entries,
    Node,
    Pair,
    PowerNode,
    ProductNode,
    Pullback,
    SumNode,
    filled,
)
from dkgp.estimators.scikit_learn import clone
from dkgp.models.rounding import LOST, UNIT
from dkgp.operators.base import FloatArray

# Squared periodic length scales that are shorter have a weight that is too small.
LEAST_SQUARE = 1e-300
# Exponents of length scales, of inputs, and of inputs over length scales, beyond which differences are scaled before
# they are squared; and the largest scaled square, whose products with other numbers are finite.
MOST_EXPONENT, LARGEST_SQUARE = 400, 2.0**900


def tree_of(kernel: Any) -> Node:
    """The tree of a scikit-learn kernel, with its values as they are now."""
    match kernel:
        case sk.Sum() if type(kernel) is sk.Sum:
            return SumNode(tree_of(kernel.k1), tree_of(kernel.k2))
        case sk.Product() if type(kernel) is sk.Product:
            return ProductNode(tree_of(kernel.k1), tree_of(kernel.k2))
        case sk.Exponentiation() if type(kernel) is sk.Exponentiation:
            return PowerNode(tree_of(kernel.kernel), float(kernel.exponent))
    grown = _LEAVES.get(type(kernel))
    if grown is None or (type(kernel) is sk.Matern and kernel.nu not in (0.5, 1.5, 2.5, np.inf)):
        return _CalledLeaf(kernel)
    return grown(kernel)


class _Leaf(Node):
    """A kernel whose numbers are its own; fields by the names of scikit-learn's parameters, in the order of theta."""

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
        """Derivatives with respect to the numbers that are free."""
        return np.array([value for value, free in zip(gradients, self.free, strict=True) if free])


class _NumberLeaf(_Leaf):
    """One number, where it counts at all; `_summed` is its derivative's sum over what is weighed."""

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
    """Noise: nothing but a diagonal."""

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
        # 2 / l^2: of the shortest length scales a value that is too small, of which nothing is claimed.
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
            # scikit-learn's own class and words, to the letter: what it refuses is no value but a use.
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
        """Return (x - y)^2 of one feature, in a new array; scaled, where `_is_scaled`."""
        left, right = pair.vectors
        difference, scaled = np.subtract.outer(left[rows, feature], right[:, feature]), self._is_scaled(pair)
        if scaled:
            np.ldexp(difference, -self.exponents[feature if self.several else 0], out=difference)
        difference *= difference
        return np.minimum(difference, LARGEST_SQUARE, out=difference) if scaled else difference

    def _s(self, pair: Pair) -> Callable[[slice], FloatArray]:
        """s of a piece of rows, in a new array."""
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
    """A kernel object that is called: a user's, one of strings or graphs, Matern of general nu."""

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
