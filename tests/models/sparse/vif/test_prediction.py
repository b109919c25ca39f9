"""Predictions with neighbours against the joint Gaussian that they are of, and their limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.kernels import Kernel, Matern32, SquaredExponential, Sum
from dkgp.kernels.tiles.slopes import SlopeEvaluator
from dkgp.models.context import RunContext
from dkgp.models.sparse import near as prediction
from dkgp.models.sparse.near import Near, NearPredictor, fit_near
from dkgp.models.sparse.vif import Neighbourhood, Neighbours
from dkgp.operators import ArrayInputs
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from tests.models.exact_gp import entry, numbers
from tests.models.sparse.dense_models import Dense
from tests.models.sparse.vif.dense_vif import covariance, low_rank
from tests.models.sparse.vif.test_objective import KERNEL, S2, N, rows

T = np.random.default_rng(7).standard_normal((9, 2))
SUM = Sum((KERNEL, Matern32((0.3, 3.0))))


def predicted(
    kernel: Kernel, basis: np.ndarray, neighbours: Neighbours, size: int, executor: LocalExecutor, noise: object = S2
) -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """Means, variances, the leaves, and Sigma^-1 Y."""
    X, Y, _ = rows()
    context = RunContext.of(executor)
    with context.operator(kernel, noise, ArrayInputs(X)) as operator:  # type: ignore[arg-type]
        held = Neighbourhood(operator, neighbours)
        model = held.described(operator, basis)
        joint = held.joint(operator, model, Y)
        weights = held.weights(operator, model, joint, Y)
        mean, variance = of_basis(operator, Y, basis, neighbours, size)(T)
        leaves = []
        for number in range(held.leaves.n_bundles):
            bundle = held.leaves.bundle(number)
            for places, halo in zip(bundle.places, bundle.halos, strict=True):
                leaves.append((bundle.samples[places[:halo]], bundle.samples[places[halo:]]))
    return mean, variance, leaves, weights


def of_basis(
    operator: BlockedKernelOperator, Y: np.ndarray, basis: np.ndarray, neighbours: Neighbours, size: int
) -> NearPredictor:
    """Predictions behind `size` neighbours, which need not be those of the fit."""
    near: Near = replace(fit_near(operator, Y, basis, neighbours).near, size=size)
    lower = CrossKernel(operator, basis).lower if len(basis) else np.empty((0, 0))
    return NearPredictor(operator.kernel, basis, lower, near)


@pytest.mark.parametrize("basis", [0, 8])
@pytest.mark.parametrize("by_sample", [False, True])
def test_they_are_the_joint_gaussians(basis: int, by_sample: bool, one_thread: LocalExecutor) -> None:
    """What remains of a new sample and of its nearest ones, given what they all share, and that given all targets."""
    X, Y, Z = rows()
    Z, size = Z[:basis], 7
    noise = S2 * np.random.default_rng(2).uniform(0.5, 2.0, N) if by_sample else np.full(N, S2)
    used = noise if by_sample else S2
    mean, variance, leaves, weights = predicted(KERNEL, Z, Neighbours(6, 10), size, one_thread, used)
    Sigma = covariance(KERNEL, noise, X, Z, leaves)
    np.testing.assert_allclose(weights, np.linalg.solve(Sigma, Y), rtol=1e-8, atol=1e-9)
    gamma = np.array([2.0, 0.7])
    left = np.asarray(KERNEL(X, X)) - low_rank(KERNEL, X, X, Z) + np.diag(noise)
    across = np.asarray(KERNEL(X, T)) - low_rank(KERNEL, X, T, Z)
    for t, x in enumerate(T):
        J = np.argsort(((X - x) ** 2) @ gamma)[:size]
        A = np.zeros(N)
        A[J] = np.linalg.solve(left[np.ix_(J, J)], across[J, t])
        # f = F_* u + A'(Y - F u) + what is its own: with u, Cov(f, Y) = (F_* - A'F) F' + A'Sigma.
        shared = low_rank(KERNEL, x[None], X, Z)[0] - A @ low_rank(KERNEL, X, X, Z)
        with_targets = shared + A @ Sigma
        inner = low_rank(KERNEL, x[None], x[None], Z)[0, 0] - 2.0 * A @ low_rank(KERNEL, X, x[None], Z)[:, 0]
        inner += A @ low_rank(KERNEL, X, X, Z) @ A
        own = float(KERNEL.diagonal(x[None])[0]) - low_rank(KERNEL, x[None], x[None], Z)[0, 0] - A @ across[:, t]
        prior = own + inner + 2.0 * shared @ A + A @ Sigma @ A
        np.testing.assert_allclose(mean[t], with_targets @ np.linalg.solve(Sigma, Y), rtol=1e-8, atol=1e-9)
        conditional = prior - with_targets @ np.linalg.solve(Sigma, with_targets)
        assert variance[t] == pytest.approx(conditional, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("kernel", [KERNEL, SUM], ids=["one distance", "sum"])
@pytest.mark.parametrize("basis", [0, 8])
def test_with_all_samples_near_they_are_the_exact_models(kernel: Kernel, basis: int, one_thread: LocalExecutor) -> None:
    X, Y, Z = rows()
    mean, variance, _, weights = predicted(kernel, Z[:basis], Neighbours(8, N), N, one_thread)
    Kbar, across = np.asarray(kernel(X, X)) + S2 * np.eye(N), np.asarray(kernel(T, X))
    alpha = np.linalg.solve(Kbar, Y)
    np.testing.assert_allclose(weights, alpha, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(mean, across @ alpha, rtol=1e-8, atol=1e-9)
    exact = kernel.diagonal(T) - np.einsum("ij,ij->i", across, np.linalg.solve(Kbar, across.T).T)
    np.testing.assert_allclose(variance, exact, rtol=1e-7)


def test_without_neighbours_they_are_fitcs(one_thread: LocalExecutor) -> None:
    X, Y, Z = rows()
    mean, variance, _, _ = predicted(KERNEL, Z, Neighbours(1, 0), 0, one_thread)
    expected, spread = Dense(KERNEL, X, Y, np.full(N, S2), Z, T).predictive("fitc")
    np.testing.assert_allclose(mean, expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(variance, spread, rtol=1e-6)


def test_a_new_sample_where_one_is_has_a_variance_and_nothing_has_no_predictions(one_thread: LocalExecutor) -> None:
    X, Y, Z = rows()
    context = RunContext.of(one_thread)
    with context.operator(SquaredExponential((1.0, 1.0)), 1e-8, ArrayInputs(X)) as operator:
        predict = of_basis(operator, Y, Z, Neighbours(4, 4), 20)
        mean, variance = predict(X[:3])
        np.testing.assert_allclose(mean, Y[:3], atol=1e-2)
        assert (variance >= 0.0).all()
        assert (variance < 1e-3).all()
        mean, variance = predict(X[:0])
        assert mean.shape == (0, 2)
        assert variance.shape == (0,)


def test_rows_that_are_held_are_those_that_are_made_for_each(
    one_thread: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the same bits in any order, one by one, together or by threads; to roundings without any that are held."""
    X, Y, Z = rows()
    T = np.random.default_rng(11).standard_normal((30, 2))
    with RunContext.of(one_thread).operator(KERNEL, S2, ArrayInputs(X)) as operator:

        def predictor() -> NearPredictor:
            return of_basis(operator, Y, Z, Neighbours(4, 6), 9)

        together = predictor()
        mean, variance = together(T)
        assert together._made.any()
        shared = predictor().predicted(np.repeat(T, 4, axis=0), 3)
        for found, expected in zip(shared, (mean, variance), strict=False):
            np.testing.assert_array_equal(found, np.repeat(expected, 4, axis=0))
        backwards = predictor()
        for row in range(len(T))[::-1]:
            one, spread = backwards(T[row : row + 1])
            np.testing.assert_array_equal(one[0], mean[row])
            assert spread[0] == variance[row]
        monkeypatch.setattr(prediction, "MOST_HELD", 0)
        without = predictor()
        for found, expected in zip(without(T), (mean, variance), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
        assert not without._made.any()


@pytest.mark.parametrize("basis", [0, 5])
@pytest.mark.parametrize("by_sample", [False, True])
def test_slopes_are_those_of_the_formulas_in_forty_digits(
    basis: int, by_sample: bool, one_thread: LocalExecutor
) -> None:
    """Differences of the module's formulas, entry by entry, from neighbours that a sort of all distances gives."""
    mp = mpmath.mp.clone()
    mp.dps = 40
    X, Y, Z = rows()
    Z, size, step = Z[:basis], 6, mp.mpf(10) ** -15
    noise = S2 * np.random.default_rng(2).uniform(0.5, 2.0, N) if by_sample else S2
    with RunContext.of(one_thread).operator(KERNEL, noise, ArrayInputs(X)) as operator:  # type: ignore[arg-type]
        near = replace(fit_near(operator, Y, Z, Neighbours(6, 10)).near, size=size)
        lower = CrossKernel(operator, Z).lower if basis else np.empty((0, 0))
    predictor, evaluator = NearPredictor(KERNEL, Z, lower, near), SlopeEvaluator(KERNEL)
    coordinates = evaluator.coordinates(Z)
    means, halves = (predictor.slopes(T[:3], evaluator, coordinates, of_variance=which) for which in (False, True))
    for t, x in enumerate(numbers(T[:3])):
        J = np.argsort(((X - T[t]) ** 2) @ np.array([2.0, 0.7]))[:size]

        def formulas(x: list[Any], J: np.ndarray = J) -> tuple[list[Any], Any]:
            """Means and variance at one input."""
            points = [*numbers(X[J]), x]
            F = mp.matrix(size + 1, max(basis, 1))
            if basis:
                for i, point in enumerate(points):
                    F[i, :] = mp.lu_solve(mp.matrix(lower), mp.matrix([entry(KERNEL, z, point) for z in numbers(Z)])).T
            R = mp.matrix([[entry(KERNEL, a, b) for b in points] for a in points]) - F * F.T
            C, across, F_J, F_x = R[:size, :size], R[:size, size], F[:size, :], F[size, :].T
            for i, sample in enumerate(J):
                C[i, i] += mp.mpf(float(noise[sample] if isinstance(noise, np.ndarray) else noise))
            A = mp.lu_solve(C, across)
            w = F_x - F_J.T * A
            mean, variance = (A.T * mp.matrix(Y[J])), R[size, size] - (A.T * across)[0]
            if basis:
                mean += w.T * mp.matrix(near.whitened)
                half = mp.lu_solve(mp.matrix(near.normal), w)
                variance += (half.T * half)[0]
            return list(mean), variance

        for feature in range(2):
            above, below = list(x), list(x)
            above[feature] += step
            below[feature] -= step
            (up, wide), (down, narrow) = formulas(above), formulas(below)
            expected = [float((a - b) / (2 * step)) for a, b in zip(up, down, strict=True)]
            np.testing.assert_allclose(means[t, :, feature], expected, rtol=1e-9, atol=1e-11)
            assert halves[t, 0, feature] == pytest.approx(float((wide - narrow) / (4 * step)), rel=1e-8, abs=1e-11)
