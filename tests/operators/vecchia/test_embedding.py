"""Points that tell near samples from far ones, of kernels that are no function of one distance."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.cluster.executors.base import LocalExecutor
from dkgp.errors import InputError
from dkgp.kernels import Kernel, SquaredExponential, TileEvaluator, Wendland
from dkgp.kernels.expression import parse_kernel
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.vecchia.factor import VecchiaFactor
from dkgp.operators.vecchia.leaves import EMBEDDING_RANK, embed, embedding_landmarks, is_one_distance
from dkgp.solvers import GradientInfNorm, solve
from dkgp.solvers.registry import build_solver

D = 3


def points_of(kernel: Kernel, X: np.ndarray, executor: LocalExecutor) -> np.ndarray:
    with BlockedKernelOperator(kernel, 0.1, ArrayInputs(X), executor) as operator:
        points = embed(operator.context, embedding_landmarks(operator))
        assert points.shape[1] <= max(EMBEDDING_RANK, kernel.n_features)
        return points


def squared_distances(points: np.ndarray) -> np.ndarray:
    wide = points.astype(np.float64)
    return np.asarray(((wide[:, None] - wide[None]) ** 2).sum(axis=2))


@pytest.mark.parametrize("text", ["linear", "polynomial(degree=2)", "linear + constant"])
def test_distances_are_the_kernels_own(text: str, rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    """Of a kernel of low rank, exactly: |phi/|phi| - phi'/|phi'||^2 = 2 - 2 k(x, x') / sqrt(k(x, x) k(x', x'))."""
    X, kernel = rng.normal(size=(200, D)), parse_kernel(text, D)
    assert not is_one_distance(TileEvaluator(kernel, "single"))
    K = kernel(X, X)
    scale = np.sqrt(K.diagonal())
    expected = 2.0 - 2.0 * K / scale / scale[:, None]
    np.testing.assert_allclose(squared_distances(points_of(kernel, X, one_thread)), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("text", ["rbf", "matern32(length_scale=2)"])
def test_of_one_distance_it_is_that_one(text: str, rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    X, kernel = rng.normal(size=(200, D)), parse_kernel(text, D)
    assert is_one_distance(TileEvaluator(kernel, "single"))
    found = squared_distances(points_of(kernel, X, one_thread))
    order = np.argsort(-kernel(X[:1], X)[0])
    assert (np.diff(found[0, order]) >= -1e-5).all()


def test_samples_at_which_the_kernel_vanishes_are_near_each_other(
    rng: np.random.Generator, one_thread: LocalExecutor
) -> None:
    """Whole blocks of them as well: they are not measured by their own largest."""
    X = np.zeros((200, D))
    X[:5] = rng.normal(size=(5, D))
    found = points_of(parse_kernel("linear", D), X, one_thread)
    assert np.isfinite(found).all()
    assert not found[5:].any()
    np.testing.assert_allclose(np.linalg.norm(found[:5], axis=1), 1.0, atol=1e-5)
    kernel = parse_kernel("linear", D)
    with BlockedKernelOperator(kernel, 0.1, ArrayInputs(X), one_thread) as operator:
        factor = VecchiaFactor(operator, 200, 20)
        applied = factor.apply(rng.normal(size=(200, 1)))
        assert np.isfinite(applied).all()
        y = rng.normal(size=(200, 1))
        expected = np.linalg.solve(kernel(X, X) + 0.1 * np.eye(200), y)
        np.testing.assert_allclose(factor.apply(y), expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("size", [0.0, 1e-160, 1e160])
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_a_kernel_that_is_zero_or_not_finite_is_refused(
    size: float, rng: np.random.Generator, one_thread: LocalExecutor
) -> None:
    X = size * rng.normal(size=(200, D))
    with (
        BlockedKernelOperator(parse_kernel("linear", D), 0.1, ArrayInputs(X), one_thread) as operator,
        pytest.raises(InputError, match=f"which is {'zero' if size < 1.0 else 'not finite'}.*Scale the inputs"),
    ):
        VecchiaFactor(operator, 80, 40)


@pytest.mark.parametrize("kernel", [SquaredExponential((0.0, 0.0), variance=1.5), Wendland((0.0, 0.0), variance=1.5)])
def test_a_distance_without_features_is_a_constant(
    kernel: Kernel, one_thread: LocalExecutor, rng: np.random.Generator
) -> None:
    # K = c 1 1', so alpha = (y - c sum(y) / (s2 + c n)) / s2.
    X, y, s2 = rng.standard_normal((600, 2)), rng.standard_normal((600, 1)), 0.02
    with BlockedKernelOperator(kernel, s2, ArrayInputs(X), one_thread) as operator:
        alpha = solve(operator, y, solver=build_solver("pcg"), stopping=GradientInfNorm(1e-7)).alpha
    np.testing.assert_allclose(alpha, (y - 1.5 * y.sum() / (s2 + 1.5 * 600)) / s2, rtol=1e-4, atol=1e-4)
