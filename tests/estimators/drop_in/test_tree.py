"""Kernel trees against the kernels that they are grown of: entries, diagonals, and gradients against the tensor."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from sklearn.gaussian_process import kernels as sk

from dkgp.estimators.drop_in.dense import DensePosterior, Evidence, search_bytes
from dkgp.estimators.drop_in.parameters import solve_bytes
from dkgp.estimators.drop_in.tree import Pair, tree_of


class Mine(sk.RBF):
    """A user's kernel, which is called."""


KERNELS: list[Any] = [
    sk.RBF(0.7),
    sk.RBF([0.5, 1.0, 2.0]),
    sk.RBF(0.7, "fixed"),
    sk.Matern(0.5, nu=0.5),
    sk.Matern([0.5, 1.0, 2.0], nu=0.5),
    sk.Matern([0.5, 1.0, 2.0], nu=1.5),
    sk.Matern(0.5, nu=2.5),
    sk.Matern(0.5, nu=np.inf),
    sk.Matern(0.5, nu=0.9),
    sk.RationalQuadratic(0.4, 0.6),
    sk.RationalQuadratic(0.4, 0.6, length_scale_bounds="fixed"),
    sk.RationalQuadratic(0.4, 0.6, alpha_bounds="fixed"),
    sk.ExpSineSquared(0.8, 1.3),
    sk.ExpSineSquared(0.8, 1.3, periodicity_bounds="fixed"),
    sk.DotProduct(0.6),
    sk.ConstantKernel(2.0) * sk.RBF(0.7) + sk.WhiteKernel(0.3),
    sk.ConstantKernel(2.0, "fixed") * sk.RBF(0.7) + sk.ConstantKernel(0.5),
    (sk.RBF(0.5) + sk.WhiteKernel(0.2) + sk.ConstantKernel(0.3)) ** 2,
    (sk.DotProduct(0.5) + sk.WhiteKernel(0.3)) * (sk.RBF(0.4) + sk.WhiteKernel(0.2)),
    (2.0 * sk.RBF(0.3) + sk.ConstantKernel(0.4) + sk.WhiteKernel(0.3)) ** 1.5,
    sk.PairwiseKernel(metric="rbf"),
    Mine(0.6) * sk.RBF(0.4) + sk.WhiteKernel(0.1),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_entries_diagonals_and_gradients(kernel: Any, rng: np.random.Generator) -> None:
    X, other = rng.normal(size=(40, 3)), rng.normal(size=(9, 3))
    shifted = kernel.clone_with_theta(kernel.theta + 0.1)
    tree = tree_of(kernel)
    tree.move(shifted.theta)
    assert tree.size == kernel.n_dims
    pair = Pair(X, X)
    noise = np.broadcast_to(tree.noise(X), (40,))
    np.testing.assert_allclose(tree.matrix(pair) + np.diag(noise), shifted(X), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(tree.matrix(Pair(other, X)), shifted(other, X), rtol=1e-12, atol=1e-13)
    diagonal = np.broadcast_to(tree.diagonal(X) + tree.noise(X), (40,))
    np.testing.assert_allclose(diagonal, shifted.diag(X), rtol=1e-12)
    W = rng.normal(size=(40, 40))
    W += W.T
    values, pull = tree.linearised(pair)
    np.testing.assert_array_equal(np.broadcast_to(values, (40, 40)), tree.matrix(pair))
    gradient = pull(W) + tree.noise_pullback(X, np.diagonal(W))
    expected = np.einsum("ij,ijq->q", W, shifted(X, eval_gradient=True)[1])
    np.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_the_bound_on_entries_errors(kernel: Any, rng: np.random.Generator) -> None:
    """Against the same formulas in extended precision, at inputs far from each other and from the origin."""
    X = 40.0 + 30.0 * rng.normal(size=(30, 3))
    tree, pair = tree_of(kernel), Pair(X, X)
    bound = tree.error(pair, tree.largest_diagonal(pair)) * 2.0**-53
    sum_to_a_fraction = isinstance(kernel, sk.Exponentiation) and kernel.exponent == 1.5
    if tree.unknown or isinstance(kernel, sk.ExpSineSquared) or sum_to_a_fraction:
        assert bound == np.inf  # of another class, or not known to be positive definite
        if not isinstance(kernel, sk.ExpSineSquared):
            return
        X = X[:, :1]
        pair = Pair(X, X)
        bound = tree.error(pair, tree.largest_diagonal(pair)) * 2.0**-53
    exact = in_long_doubles(kernel, X.astype(np.longdouble))
    assert np.abs(tree.matrix(pair) - exact).max() <= bound
    assert bound <= 1e-11 * max(1.0, float(np.abs(exact).max()))


def in_long_doubles(kernel: Any, X: Any) -> Any:
    """Entries without white noise, by the textbook."""
    wide = np.longdouble
    if isinstance(kernel, sk.Sum):
        return in_long_doubles(kernel.k1, X) + in_long_doubles(kernel.k2, X)
    if isinstance(kernel, sk.Product):
        return in_long_doubles(kernel.k1, X) * in_long_doubles(kernel.k2, X)
    if isinstance(kernel, sk.Exponentiation):
        return in_long_doubles(kernel.kernel, X) ** wide(kernel.exponent)
    if isinstance(kernel, sk.WhiteKernel):
        return np.zeros((len(X), len(X)), dtype=wide)
    if isinstance(kernel, sk.ConstantKernel):
        return np.full((len(X), len(X)), wide(kernel.constant_value))
    if isinstance(kernel, sk.DotProduct):
        return X @ X.T + wide(kernel.sigma_0) ** 2
    # gamma is a double, as dkgp's kernels have it.
    gamma = np.asarray(0.5 / np.square(np.atleast_1d(kernel.length_scale))).astype(wide)
    difference = X[:, None] - X[None]
    if isinstance(kernel, sk.ExpSineSquared):
        r = np.sqrt(np.sum(difference**2, axis=2))
        pi = wide("3.14159265358979323846264338327950288")
        return np.exp(-2 * (np.sin(pi * r / wide(kernel.periodicity)) / wide(kernel.length_scale)) ** 2)
    s = np.sum(gamma * difference**2, axis=2)
    if isinstance(kernel, sk.RationalQuadratic):
        return (1 + s / wide(kernel.alpha)) ** -wide(kernel.alpha)
    nu = getattr(kernel, "nu", np.inf)
    if nu == np.inf:
        return np.exp(-s)
    u = np.sqrt(4 * wide(nu) * s)
    return {0.5: 1 + 0 * u, 1.5: 1 + u, 2.5: 1 + u + u * u / 3}[nu] * np.exp(-u)


@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if not tree_of(kernel).unknown], ids=str)
def test_memory_is_as_foreseen(kernel: Any, rng: np.random.Generator) -> None:
    n, d = 600, 1 if isinstance(kernel, sk.ExpSineSquared) else 3  # periodic in a distance it is not definite
    X, y = rng.normal(size=(n, d)), rng.normal(size=(n, 1))
    tree, evidence = tree_of(kernel), Evidence(Pair(X, X), y, 0.1)
    Evidence(Pair(X[:9], X[:9]), y[:9], 0.1)(tree, gradient=True)  # what is loaded on first use does not count
    slack = 2**21  # of pieces of rows
    tracemalloc.start()
    evidence(tree, gradient=True)
    searched = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    tracemalloc.start()
    DensePosterior(tree, Evidence(Pair(X, X), y, 0.1))
    solved = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert searched <= search_bytes(n, tree) + slack
    assert solved <= solve_bytes(n) + slack
