"""Sparse models with neighbours: likelihood, predictions, training and stores."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset, dataset_from_arrays, open_dataset, open_prediction
from dkgp.data.stores.models.regression import SparseRecord, save_sparse_model
from dkgp.errors import InputError, NumericalError, StoreError
from dkgp.kernels import Kernel, Matern32, SquaredExponential, Sum
from dkgp.kernels.tiles.slopes import SlopeEvaluator
from dkgp.models.context import RunContext
from dkgp.models.memory import RUNTIME_BYTES
from dkgp.models.prediction.posterior import Columns, standardised
from dkgp.models.prediction.predict import Destination, predict
from dkgp.models.prediction.sparse import SparseEvaluator, prediction_memory
from dkgp.models.sparse import near as prediction
from dkgp.models.sparse.bound import BoundObjective
from dkgp.models.sparse.ladder import LadderTarget, climb
from dkgp.models.sparse.near import Near, NearPredictor, fit_near
from dkgp.models.sparse.settings import SparseSettings
from dkgp.models.sparse.stored import (
    OpenedSparse,
    open_sparse,
    opened_sparse,
    save_sparse,
    sparse_record,
    update_sparse,
)
from dkgp.models.sparse.train import SparseProblem, TrainedSparse, train_sparse
from dkgp.models.sparse.vif import Neighbourhood, Neighbours, VifObjective
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators import ArrayInputs
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from tests.kernels.table import CASES, Case
from tests.models.exact_gp import entry, numbers
from tests.models.posteriors import sparse_posterior
from tests.models.sparse.dense_models import Dense
from tests.models.sparse.vif.dense_vif import covariance, log_likelihood, low_rank
from tests.s3 import s3_server, use_s3
from tests.workers import on_dask

N = 50
KERNEL, S2 = SquaredExponential((2.0, 0.7), 1.3), 0.05


def rows(n: int = N, d: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((n, d))
    Y = np.column_stack([np.sin(2.0 * X[:, 0]) + X[:, -1], X[:, 0] ** 2 - 1.0]) + 0.1 * rng.standard_normal((n, 2))
    return X, Y, np.concatenate([X[::9][:6], rng.standard_normal((2, d))])


def objective(X: np.ndarray, Y: np.ndarray, executor: LocalExecutor, leaf: int, halo: int) -> VifObjective:
    return VifObjective(ArrayInputs(X), Y, executor, Neighbours(leaf, halo))


def leaves_of(held: VifObjective) -> list[tuple[np.ndarray, np.ndarray]]:
    """Halo and own samples of each leaf."""
    assert held._held is not None
    leaves = []
    for number in range(held._held.leaves.n_bundles):
        bundle = held._held.leaves.bundle(number)
        for places, halo in zip(bundle.places, bundle.halos, strict=True):
            leaves.append((bundle.samples[places[:halo]], bundle.samples[places[halo:]]))
    return leaves


@pytest.mark.parametrize("basis", [0, 8])
@pytest.mark.parametrize(("leaf", "halo"), [(1, 5), (8, 12), (N, 0), (5, 0)])
def test_value_is_that_of_the_definition(leaf: int, halo: int, basis: int, one_thread: LocalExecutor) -> None:
    X, Y, Z = rows()
    tried = objective(X, Y, one_thread, leaf, halo)
    value = tried(KERNEL, S2, Z[:basis])
    leaves = leaves_of(tried)
    # Every sample is in one leaf, and its halo comes before.
    order = np.concatenate([own for _, own in leaves])
    assert sorted(order.tolist()) == list(range(N))
    place = np.argsort(order)
    assert all(place[before].max(initial=-1) < place[own].min() for before, own in leaves)
    expected = log_likelihood(covariance(KERNEL, S2, X, Z[:basis], leaves), Y)
    assert value.value == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("basis", [0, 8])
def test_with_all_samples_before_it_is_the_exact_likelihood(basis: int, one_thread: LocalExecutor) -> None:
    X, Y, Z = rows()
    value = objective(X, Y, one_thread, 8, N)(KERNEL, S2, Z[:basis])
    exact = log_likelihood(np.asarray(KERNEL(X, X)) + S2 * np.eye(N), Y)
    assert value.value == pytest.approx(exact, rel=1e-10)


def test_without_neighbours_it_is_fitc_value_and_slopes(one_thread: LocalExecutor) -> None:
    X, Y, Z = rows()
    value = objective(X, Y, one_thread, 1, 0)(KERNEL, S2, Z)
    fitc = BoundObjective(ArrayInputs(X), Y, one_thread, fitc=True)(KERNEL, S2, Z)
    assert value.value == pytest.approx(fitc.value, rel=1e-10)
    np.testing.assert_allclose(value.gradient, fitc.gradient, rtol=1e-8)
    assert value.unexplained == pytest.approx(fitc.unexplained, rel=1e-8)


@pytest.mark.long
@pytest.mark.covering
@pytest.mark.parametrize(("leaf", "halo", "basis"), [(8, 12, 8), (1, 6, 8), (8, 12, 0), (6, N, 8)])
@pytest.mark.parametrize("case", [case for case in CASES if case.kernel.pairwise], ids=lambda case: case.name)
def test_gradient_of_every_kernel_is_the_slope_of_the_value(
    case: Case, leaf: int, halo: int, basis: int, rng: np.random.Generator, one_thread: LocalExecutor
) -> None:
    """Along a direction that moves all parameters at once, in the order of where it begins."""
    d = case.kernel.n_features
    if not d:
        pytest.skip("an operator needs features")
    X, Y, Z = rows(d=d)
    tried = objective(X, Y, one_thread, leaf, halo)
    at = np.log([*(parameter.value for parameter in case.kernel.parameters()), 0.05])
    way = rng.standard_normal(len(at))
    tried.hold(case.kernel)

    def value(step: float) -> float:
        moved = np.exp(at + step * way)
        return tried(case.kernel.with_parameters(moved[:-1]), float(moved[-1]), Z[:basis]).value

    h = 1e-4
    slope = (8.0 * (value(h) - value(-h)) - (value(2.0 * h) - value(-2.0 * h))) / (12.0 * h)
    gradient = tried(case.kernel, 0.05, Z[:basis]).gradient
    assert gradient @ way == pytest.approx(slope, rel=1e-6, abs=1e-6 * float(np.abs(gradient).max()))


def test_order_is_held_and_made_anew_on_request(one_thread: LocalExecutor) -> None:
    X, Y, Z = rows()
    tried, other = objective(X, Y, one_thread, 4, 6), SquaredExponential((0.01, 9.0), 1.3)
    first = tried(KERNEL, S2, Z).value
    held = tried(other, S2, Z).value
    assert tried(KERNEL, S2, Z).value == first
    tried.hold(other)
    assert tried(other, S2, Z).value != held


def test_bits_do_not_depend_on_who_computes(one_thread: LocalExecutor) -> None:
    X, Y, Z = rows(600)
    here = objective(X, Y, one_thread, 8, 16)(KERNEL, S2, Z)
    with on_dask(2, processes=False) as (executor, _):
        there = VifObjective(ArrayInputs(X), Y, executor, Neighbours(8, 16))(KERNEL, S2, Z)
    assert here.value == there.value
    np.testing.assert_array_equal(here.gradient, there.gradient)


def test_refusals(one_thread: LocalExecutor) -> None:
    X, Y, Z = rows()
    with pytest.raises(InputError, match="a halo of at least 0 samples, and leaves of at least 1; got -1 and 4"):
        Neighbours(4, -1)
    with pytest.raises(InputError, match=r"expected targets of shape \(50, p\); got \(50,\)"):
        VifObjective(ArrayInputs(X), Y[:, 0], one_thread)
    doubled = np.concatenate([X, X])
    tried = VifObjective(ArrayInputs(doubled), np.concatenate([Y, Y]), one_thread, Neighbours(4, 20))
    with pytest.raises(NumericalError, match="not positive definite with the noise 1e-30: rounding exceeds the noise"):
        tried(KERNEL, 1e-30, Z)


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
    """The residuals of a new sample and of its nearest ones, given the shared basis and all targets."""
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


KERNEL_MODEL, SUM_MODEL = Matern32((4.0, 2.0)), Sum((Matern32((4.0, 2.0)), SquaredExponential((0.3, 0.0), 0.5)))
N_MODEL, S2_MODEL = 150, 0.02


NOISE = np.random.default_rng(3).uniform(0.001, 0.1, N_MODEL)


def problem(folder: Path, *, n: int = N_MODEL, d: int = 2) -> Dataset:
    rng = np.random.default_rng(4)
    X = rng.standard_normal((n, d))
    Y = np.stack([np.sin(3.0 * X[:, 0]) + 0.1 * rng.standard_normal(n), X[:, 1] ** 2], axis=1)
    return dataset_from_arrays(folder / "train.zarr", X, Y)


def trained(
    dataset: Dataset, kernel: Kernel, executor: LocalExecutor, neighbours: int, *, by_sample: bool = False
) -> TrainedSparse:
    settings = SparseSettings("vif", 12, neighbours=neighbours, seed=1)
    return train_sparse(dataset, kernel, S2_MODEL, executor, settings, sample_noise=NOISE if by_sample else None)


def evaluated(opened: OpenedSparse, T: np.ndarray) -> tuple[Columns, int]:
    """Predictions, and rows whose neighbours may not be the nearest."""
    return SparseEvaluator(opened, variance=False, latent=False).at(standardised(opened.record, T))


def predictions(model: TrainedSparse, dataset: Dataset, T: np.ndarray) -> Columns:
    return sparse_posterior(opened_sparse(sparse_record(model, dataset)), variance=True, latent=True)(T)


def exact(dataset: Dataset, kernel: Kernel, T: np.ndarray, *, by_sample: bool) -> tuple[np.ndarray, np.ndarray]:
    """Means (t, p) and variances (t, p) of the exact model, in the targets' units."""
    X, Y, to = dataset.inputs(0, dataset.n_samples), dataset.all_targets(), dataset.standardisation
    noise = S2_MODEL + (NOISE if by_sample else np.zeros(len(X)))
    across = np.asarray(kernel(to.inputs(T), X))
    solved = np.linalg.solve(np.asarray(kernel(X, X)) + np.diag(noise), np.hstack([Y, across.T]))
    variance = kernel.diagonal(to.inputs(T)) - np.einsum("ij,ji->i", across, solved[:, 2:])
    return across @ solved[:, :2] * to.target_std + to.target_mean, np.outer(variance, to.target_std**2)


@pytest.mark.parametrize("kernel", [KERNEL_MODEL, SUM_MODEL], ids=["one distance", "sum"])
@pytest.mark.parametrize("by_sample", [False, True])
def test_with_all_samples_near_it_is_the_exact_model(
    kernel: Kernel, by_sample: bool, tmp_path: Path, one_thread: LocalExecutor
) -> None:
    dataset, T = problem(tmp_path), np.random.default_rng(5).standard_normal((30, 2))
    mean, variance = exact(dataset, kernel, T, by_sample=by_sample)
    # All of the others: a quarter of so many are in a leaf, which has all that come before it.
    found = predictions(trained(dataset, kernel, one_thread, 4 * N_MODEL, by_sample=by_sample), dataset, T)
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found["variance"], variance, rtol=1e-5)


@pytest.mark.parametrize("neighbours", [1, 8, 40])
@pytest.mark.parametrize("by_sample", [False, True])
def test_the_exact_mean_is_within_what_is_proven(
    neighbours: int, by_sample: bool, tmp_path: Path, one_thread: LocalExecutor
) -> None:
    """For samples, and for inputs far from all samples."""
    dataset = problem(tmp_path)
    T = np.concatenate([np.random.default_rng(6).standard_normal((40, 2)), [[9.0, -9.0], [1e3, 0.0]]])
    T = np.concatenate(
        [T, dataset.inputs(0, 5) * dataset.standardisation.input_std + dataset.standardisation.input_mean]
    )
    mean, variance = exact(dataset, KERNEL_MODEL, T, by_sample=by_sample)
    model = trained(dataset, KERNEL_MODEL, one_thread, neighbours, by_sample=by_sample)
    found = predictions(model, dataset, T)
    apart = np.abs(found["mean"] - mean)
    assert (apart <= found["mean_error_bound"]).all()
    # Worth something: no more than what the basis alone proves, and how far the two means are apart.
    alone = replace(opened_sparse(sparse_record(model, dataset)), near=None)
    basis = sparse_posterior(alone, variance=True, latent=True)(T)
    assert (
        found["mean_error_bound"] <= (basis["mean_error_bound"] + np.abs(found["mean"] - basis["mean"])) * (1.0 + 1e-12)
    ).all()
    assert np.sqrt(np.mean(apart**2)) < 0.9 * np.sqrt(np.mean((basis["mean"] - mean) ** 2))
    assert (found["variance_lower"] <= variance * (1.0 + 1e-9)).all()
    assert (variance <= found["variance_upper"] * (1.0 + 1e-9)).all()


@pytest.mark.long
@pytest.mark.parametrize(
    "kernel", [pytest.param(KERNEL_MODEL, marks=pytest.mark.slow), SUM_MODEL], ids=["one distance", "sum"]
)
def test_what_was_saved_predicts_the_same_without_the_training_set(
    kernel: Kernel, tmp_path: Path, one_thread: LocalExecutor
) -> None:
    dataset, rng = problem(tmp_path), np.random.default_rng(8)
    T = rng.standard_normal((240, 2))
    test = dataset_from_arrays(tmp_path / "test.zarr", T, T)
    model = trained(dataset, kernel, one_thread, 16, by_sample=True)
    before = predictions(model, dataset, T)
    save_sparse(model, tmp_path / "model.zarr", dataset)
    shutil.rmtree(tmp_path / "train.zarr")
    opened = open_sparse(tmp_path / "model.zarr")
    assert opened.record.neighbours == 16
    after = sparse_posterior(opened, variance=True, latent=True, threads=2)(T)
    np.testing.assert_array_equal(after["mean"], before["mean"])
    np.testing.assert_array_equal(after["variance"], before["variance"])
    np.testing.assert_array_equal(after["mean_error_bound"], before["mean_error_bound"])
    stores = []
    for threads, chunk_rows in ((1, 80), (2, None)):
        executor = LocalExecutor(threads)
        try:
            url = str(tmp_path / f"{threads}.zarr")
            predict(opened.record, test, Destination(url, chunk_rows), executor, variance=VarianceSettings(latent=True))
        finally:
            executor.close()
        stores.append(open_prediction(url).read("mean", 0, 240))
    np.testing.assert_array_equal(stores[1], before["mean"])
    np.testing.assert_allclose(stores[0], before["mean"], rtol=1e-12, atol=1e-12)


def test_a_store_without_its_neighbours_is_refused(tmp_path: Path, one_thread: LocalExecutor) -> None:
    dataset = problem(tmp_path)
    record = sparse_record(trained(dataset, KERNEL_MODEL, one_thread, 8), dataset)
    for damaged in (
        replace(record, near_targets=None),
        replace(record, near_normal=None),
        replace(record, neighbours=None),
        replace(record, neighbours=N_MODEL + 1),
        replace(record, search_samples=0),
    ):
        with pytest.raises(StoreError, match="train again"):
            opened_sparse(damaged)
    with pytest.raises(InputError, match=r"'near_inputs' .* shape"):
        save_sparse_as(replace(record, near_inputs=record.near_inputs[:, :1]), tmp_path)  # type: ignore[index]
    save_sparse_as(record, tmp_path)
    manifest = next(iter((tmp_path / "model.zarr").glob("*manifest*")))
    text = json.loads(manifest.read_text())
    text["metadata"]["neighbours"] = "many"
    manifest.write_text(json.dumps(text))
    with pytest.raises(StoreError):
        open_sparse(tmp_path / "model.zarr")


def save_sparse_as(record: SparseRecord, folder: Path) -> None:
    save_sparse_model(folder / "model.zarr", record, overwrite=True)


def test_what_has_no_meaning_is_refused(tmp_path: Path, one_thread: LocalExecutor) -> None:
    dataset = problem(tmp_path)
    model = trained(dataset, KERNEL_MODEL, one_thread, 8)
    with pytest.raises(InputError, match="a model by vif cannot take in new samples"):
        update_sparse(opened_sparse(sparse_record(model, dataset)), dataset)
    with pytest.raises(InputError, match="vif has bounds only where it predicts"):
        climb(
            SparseProblem.of(dataset, KERNEL_MODEL, S2_MODEL),
            one_thread,
            SparseSettings("vif"),
            LadderTarget(0.1, None, None),
        )
    with pytest.raises(InputError, match="`neighbours` belongs to method vif; got method vfe"):
        SparseSettings("vfe", neighbours=5)
    with pytest.raises(InputError, match="`search_samples` belongs to method vif; got method sr"):
        SparseSettings("sr", search_samples=5)
    with pytest.raises(InputError, match="`neighbours` must be at least 1; got 0"):
        SparseSettings("vif", neighbours=0)
    close = dataset_from_arrays(tmp_path / "close.zarr", np.linspace(0.0, 1.0, 200)[:, None], np.arange(200.0))
    with pytest.raises(NumericalError, match="the residual covariance of .* samples is not positive definite"):
        train_sparse(close, SquaredExponential((0.1,)), 1e-17, one_thread, SparseSettings("vif", 2))


@pytest.mark.long
def test_a_limited_search_says_of_how_many_it_may_have_missed_nearer_ones(
    tmp_path: Path, one_thread: LocalExecutor
) -> None:
    """A model of all of them where the limit is large enough, and else another one that predicts nearly as well."""
    dataset, T = problem(tmp_path, n=800, d=9), np.random.default_rng(9).standard_normal((40, 9))
    kernel, found, shares = Matern32((0.4,) * 9), [], []
    for limit in (40, 800, 32_768):
        settings = SparseSettings("vif", 12, neighbours=16, search_samples=limit, seed=1)
        model = train_sparse(dataset, kernel, S2_MODEL, one_thread, settings)
        shares.append(model.summary["neighbours_unproven"])
        save_sparse(model, tmp_path / f"{limit}.zarr", dataset)
        stored = open_sparse(tmp_path / f"{limit}.zarr")
        assert stored.record.search_samples == limit
        found.append(evaluated(stored, T))
    (limited, missed), (enough, none), (default, nothing) = found
    assert 0.5 < shares[0] <= 1.0
    assert shares[1:] == [0.0, 0.0]
    assert 0.5 * len(T) < missed <= len(T)
    assert none == nothing == 0
    np.testing.assert_array_equal(enough["mean"], default["mean"])
    assert np.abs(limited["mean"] - enough["mean"]).max() > 0.0
    assert np.sqrt(np.mean((limited["mean"] - enough["mean"]) ** 2)) < 0.3 * enough["mean"].std()
    # A store of before there was a limit is exact.
    old = opened_sparse(replace(open_sparse(tmp_path / "40.zarr").record, search_samples=None))
    assert evaluated(old, T)[1] == 0


@pytest.mark.long
@pytest.mark.parametrize("d", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_memory_is_what_is_planned_at_most(d: int, tmp_path: Path, one_thread: LocalExecutor) -> None:
    """The plan assumes that all neighbours differ; peaks of a fit and of predictions are a little below it."""
    n, m, p = 20_000, 60, 2
    dataset, kernel = problem(tmp_path, n=n, d=d), Matern32((0.5,) * d)
    settings = SparseSettings("vif", m, "uniform")
    plan = settings.memory(n, d, p, one_thread, 2**28, d)
    planned = plan.coordinator_bytes - RUNTIME_BYTES
    train_sparse(
        problem(tmp_path / "few", n=600, d=d), kernel, S2_MODEL, one_thread, settings
    )  # compiled, and imported
    tracemalloc.start()
    model = train_sparse(dataset, kernel, S2_MODEL, one_thread, settings)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.25 * planned < peak < planned
    record = sparse_record(model, dataset)
    planned = prediction_memory(record, 1, True).worker_parts
    T = np.random.default_rng(1).standard_normal((1024, d))
    tracemalloc.start()
    opened = opened_sparse(replace(record, near_inputs=record.near_inputs.copy()))  # type: ignore[union-attr]
    sparse_posterior(opened, variance=True, threads=1)(T)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.1 * planned < peak < planned


@pytest.mark.slow  # a server of its own: what is read from S3 elsewhere goes by the same stores
def test_it_predicts_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: LocalExecutor) -> None:
    settings, T = SparseSettings("vif", 12, neighbours=16, search_samples=64), np.full((5, 2), 0.3)
    on_disk = problem(tmp_path)
    means = []
    with s3_server() as server:
        use_s3(monkeypatch, server)
        url = server.url("near/train.zarr")
        X = on_disk.raw_inputs(0, on_disk.n_samples)
        Y = on_disk.standardisation.target_mean + on_disk.standardisation.target_std * on_disk.all_targets()
        dataset_from_arrays(url, X, Y, standardisation=on_disk.standardisation)
        for place, dataset in ((str(tmp_path / "model.zarr"), on_disk), (server.url("near/m.zarr"), open_dataset(url))):
            save_sparse(train_sparse(dataset, KERNEL, S2, one_thread, settings), place, dataset)
            stored = open_sparse(place)
            assert stored.record.search_samples == 64
            means.append(sparse_posterior(stored, variance=True)(T)["mean"])
    np.testing.assert_allclose(means[1], means[0], rtol=1e-10)
