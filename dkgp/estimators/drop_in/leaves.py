"""Leaves of kernel trees: scikit-learn's plain kernels, and kernels that are called; `tree_of` grows the tree.

A kernel of a distance takes its function of s, and that function's slope, from the dkgp kernel that its line in
`dkgp.estimators.drop_in.translation` names: entries have one formula, in whichever way they are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dkgp.errors import InputError
from dkgp.estimators.drop_in.theirs import kernels as sk
from dkgp.estimators.drop_in.translation import to_dkgp
from dkgp.estimators.drop_in.tree import Entries, Node, Pair, PowerNode, ProductNode, Pullback, SumNode, filled
from dkgp.estimators.scikit_learn import clone
from dkgp.operators.base import FloatArray


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
        self.offset = values[0] ** 2

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

    def diagonal_pullback(self, rows: Any, weights: FloatArray) -> FloatArray:
        return self._kept(2.0 * self.offset * float(np.sum(np.broadcast_to(weights, (len(rows),)))))

    def error(self, pair: Pair, largest: float) -> float:
        """d products and additions and the offset's two roundings, of terms whose sizes sum to `largest` at most."""
        return float((pair.vectors[0].shape[1] + 4.0) * largest)


class _PeriodicLeaf(_Leaf):
    """k = exp(-2 sin^2(pi r / p) / l^2), r the distance."""

    names = ("length_scale", "periodicity")
    holds = 3

    def set(self, *values: float) -> None:
        self.length_scale, self.period = values

    def dense(self, pair: Pair) -> Entries:
        values, r = np.empty(pair.shape), pair.distances
        for rows in pair.pieces():
            sine = r[rows] * (np.pi / self.period)
            np.sin(sine, out=sine)
            sine *= sine
            sine *= -2.0 / self.length_scale**2
            np.exp(sine, out=values[rows])
        return values

    def linearised(self, pair: Pair) -> tuple[Entries, Pullback]:
        values = filled(self.dense(pair), pair.shape)

        def pullback(W: FloatArray) -> FloatArray:
            by_scale, by_period, factor = 0.0, 0.0, 4.0 / self.length_scale**2
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
        """sin^2 at angles t up to T moves by t times its relative error; the exponent by 2 / l^2 of that."""
        d, reach = pair.vectors[0].shape[1], float(np.max(pair.distances, initial=0.0)) * np.pi / self.period
        return float(2.0 / self.length_scale**2 * (reach * (d + 8.0) + 20.0) + 40.0)


class _DistanceLeaf(Node):
    """k = f(s), s = sum_l (x_l - y_l)^2 / (2 l_l^2): RBF, Matern, RationalQuadratic."""

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
        self.kernel.length_scale = self.scales if self.several else float(self.scales[0])
        function: Any = to_dkgp(self.kernel, self.scales.size)
        self.function, self.gamma = function, np.asarray(function.gamma)

    def _s(self, pair: Pair) -> Callable[[slice], FloatArray]:
        """s of a piece of rows, in a new array."""
        d = pair.vectors[0].shape[1]
        if not self.several:
            gamma, distances = float(self.gamma[0]), pair.squared_distances
            return lambda rows: distances[rows] * gamma
        if d != self.scales.size:
            raise InputError(
                f"Anisotropic kernel must have the same number of dimensions as data ({self.scales.size}!={d}): give "
                f"{type(self.kernel).__name__} one length scale, or {d}"
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
            x, y = pair.vectors
            for rows in pair.pieces() if self.size else []:
                at, f = s(rows), values[rows]
                D = self.function.slope(at, f)
                D *= W[rows]
                if not self.several:
                    by_scale[0] += np.vdot(D, at)
                else:
                    for feature, gamma in enumerate(self.gamma.tolist()):
                        difference = np.subtract.outer(x[rows, feature], y[:, feature])
                        difference *= difference
                        by_scale[feature] += gamma * np.vdot(D, difference)
                if self.mixture_free:
                    by_mixture += float(self.function._shape_gradients(at, f, W[rows])[0])
            # gamma goes with the scale to the power -2.
            gradient = -2.0 * by_scale if self.scales_free else np.empty(0)
            return np.concatenate([[by_mixture], gradient]) if self.mixture_free else gradient

        return values, pullback

    def diagonal(self, rows: Any) -> Entries:
        return 1.0

    def error(self, pair: Pair, largest: float) -> float:
        """s is right to d + 5 roundings, and s |f'(s)| <= 1 / e for these mixtures of exp(-t s); f to 40 more."""
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


_LEAVES: dict[type[Any], Callable[[Any], Node]] = {
    sk.RBF: _DistanceLeaf,
    sk.Matern: _DistanceLeaf,
    sk.RationalQuadratic: _DistanceLeaf,
    sk.ExpSineSquared: _PeriodicLeaf,
    sk.DotProduct: _DotProductLeaf,
    sk.ConstantKernel: _ConstantLeaf,
    sk.WhiteKernel: _WhiteLeaf,
}
