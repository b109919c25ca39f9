"""The table between scikit-learn's kernels and dkgp's, line by line, both ways, by entries; and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.gaussian_process import kernels as sk

from dkgp.errors import InputError
from dkgp.estimators.drop_in.translation import LINES, to_dkgp, to_scikit_learn
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


class Mine(sk.RBF):
    """A user's kernel: a subclass may compute anything."""


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
