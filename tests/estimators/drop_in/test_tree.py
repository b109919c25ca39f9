"""Kernel trees, and the table of kernels between scikit-learn and dkgp."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from sklearn.gaussian_process import kernels as sk

from dkgp.errors import InputError
from dkgp.estimators.drop_in.dense import DensePosterior, Evidence, search_bytes
from dkgp.estimators.drop_in.parameters import solve_bytes
from dkgp.estimators.drop_in.translation import LINES, to_dkgp, to_scikit_learn
from dkgp.estimators.drop_in.tree import Pair, tree_of
from dkgp.kernels import (
    Constant,
    Kernel,
    Linear,
    Matern32,
    Periodic,
    Polynomial,
    RationalQuadratic,
    Scaled,
    SquaredExponential,
    White,
)


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


FORWARD = [
    sk.RBF(0.7),
    sk.RBF([0.5, 1.0, 2.0]),
    sk.Matern(0.5, nu=0.5),
    sk.Matern([0.5, 1.0, 2.0], nu=1.5),
    sk.Matern(0.5, nu=2.5),
    sk.Matern(0.5, nu=np.inf),
    sk.RationalQuadratic(0.4, 0.6),
    sk.DotProduct(0.6),
    sk.DotProduct(0.0, "fixed"),
    sk.ConstantKernel(2.3),
    sk.WhiteKernel(0.2),
    sk.RBF(0.7) + sk.WhiteKernel(0.1) + 0.4,
    2.0 * sk.RBF(0.7) * sk.RationalQuadratic(0.4, 0.6),
    3.0 * (sk.RBF(0.7) + sk.DotProduct(0.3)),
    (sk.RBF(0.5) + sk.WhiteKernel(0.2) + 0.3) ** 2,
    (2.0 * sk.RBF(0.3)) ** 1.5,
    sk.Matern(0.5, nu=0.5) ** 0.7,
    sk.Matern(0.5, nu=1.5) ** 3,
    (2.0 * sk.RationalQuadratic(0.4, 0.6)) ** 0.5,
    (2.0 * sk.DotProduct(0.6)) ** 3,
    (3.0 * (sk.RBF(0.7) + sk.DotProduct(0.3))) ** 2,
    sk.ConstantKernel(2.3) ** 0.5,
]
OF_ONE_FEATURE = [sk.ExpSineSquared(0.8, 1.3), 2.0 * sk.ExpSineSquared(0.8, 1.3) ** 1.4 * sk.RBF(0.9)]
BACK = [
    SquaredExponential((0.5, 0.2, 0.0), 2.0),
    Matern32((0.5,), 1.5, 3),
    RationalQuadratic((0.5,), 1.5, 3, 0.7),
    Linear((0.4,), 1.2, 3),
    Polynomial((0.4,), offset=0.3, degree=3, variance=1.2, n_features=3),
    Constant(2.0) + White(0.3) + SquaredExponential((0.5,), 1.0, 3),
    Scaled(SquaredExponential((0.5,), 1.0, 3) * Linear((0.4,), 1.2, 3) * Matern32((0.5,), 1.5, 3), 1.7),
]


def entries_of(kernel: Any, A: np.ndarray, B: np.ndarray) -> list[np.ndarray]:
    """Entries of rows with others, and with themselves, noise included."""
    if isinstance(kernel, Kernel):
        return [kernel(A, B), kernel(A, A), kernel.diagonal(A)]
    return [kernel(A, B), kernel(A), kernel.diag(A)]


def assert_same(one: Any, other: Any, d: int, rng: np.random.Generator) -> None:
    A, B = rng.normal(size=(9, d)), rng.normal(size=(7, d))
    for mine, theirs in zip(entries_of(one, A, B), entries_of(other, A, B), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("kernel", FORWARD, ids=str)
def test_forward(kernel: Any, rng: np.random.Generator) -> None:
    assert_same(to_dkgp(kernel, 3), kernel, 3, rng)


@pytest.mark.parametrize("kernel", OF_ONE_FEATURE, ids=str)
def test_forward_of_one_feature(kernel: Any, rng: np.random.Generator) -> None:
    assert_same(to_dkgp(kernel, 1), kernel, 1, rng)


@pytest.mark.parametrize("kernel", FORWARD + OF_ONE_FEATURE, ids=str)
def test_forward_and_back(kernel: Any, rng: np.random.Generator) -> None:
    d = 1 if kernel in OF_ONE_FEATURE else 3
    assert_same(to_scikit_learn(to_dkgp(kernel, d)), kernel, d, rng)


@pytest.mark.parametrize("kernel", BACK, ids=str)
def test_back(kernel: Kernel, rng: np.random.Generator) -> None:
    assert_same(to_scikit_learn(kernel), kernel, 3, rng)


def test_every_line_is_tried() -> None:
    tried = {type(part) for kernel in FORWARD + OF_ONE_FEATURE for part in parts_of(kernel)}
    assert {line.theirs for line in LINES} == tried
    ours = {type(part) for kernel in BACK + [to_dkgp(k, 1) for k in OF_ONE_FEATURE] for part in kernel.walk()}
    assert {line.theirs for line in LINES if ours & set(line.ours)} == {line.theirs for line in LINES}


def parts_of(kernel: Any) -> list[Any]:
    inner = [getattr(kernel, name) for name in ("k1", "k2", "kernel") if hasattr(kernel, name)]
    return [kernel, *(part for one in inner for part in parts_of(one))]


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (sk.Matern(nu=0.7), "Matern of nu = 0.7 is one that dkgp does not have"),
        (Mine(), "Mine is none of scikit-learn's kernels"),
        (sk.RBF() + sk.PairwiseKernel(), "PairwiseKernel is none of scikit-learn's kernels"),
        (sk.ExpSineSquared(), "need not be positive definite"),
        (sk.Matern(nu=1.5) ** 0.5, r"Exponentiation \*\* 0.5 of a kernel of dkgp's type 'matern32' is not exact"),
        (sk.RBF() ** -1.0, r"Exponentiation \*\* -1"),
        (sk.RBF([1.0, 2.0]), "RBF has 2 length scales; expected one, or one for each of 3 features"),
    ],
)
def test_refused(kernel: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as refusal:
        to_dkgp(kernel, 3)
    assert "dense_bytes" in str(refusal.value) or "expected" in str(refusal.value)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (SquaredExponential((0.5,)).on([1], 3), "no kernel of dkgp's type 'on'"),
        (Linear((0.4, 0.2)), "got 2 weights"),
        (RationalQuadratic((0.5, 0.2)), "has one length scale; got 2"),
        (Periodic((0.5, 0.2)), "got a kernel of 2 features"),
    ],
)
def test_refused_back(kernel: Kernel, words: str) -> None:
    with pytest.raises(InputError, match=words):
        to_scikit_learn(kernel)
