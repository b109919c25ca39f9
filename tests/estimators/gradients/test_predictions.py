"""`predict_gradients` of estimators: forms, units, features that were constant, and what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import dask.array
import numpy as np
import pandas as pd
import pytest

from dkgp import GPRegressor, SparseGPRegressor
from dkgp.errors import InputError
from dkgp.estimators import PredictionGradients
from dkgp.kernels import Linear, Matern12, SquaredExponential
from dkgp.solvers import GreedyBlockCoordinateDescent
from tests.estimators.conftest import KERNEL, NOISE, Problem

SPARSE = {"noise_variance": NOISE, "basis_size": 50}


def differences(gp: Any, X: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Central differences of fourth order of means and deviations, (r, d) each."""
    steps = np.diag(np.where(np.ptp(X, axis=0) > 0.0, 2e-3 * np.ptp(X, axis=0), 1.0))
    results = []
    for step in steps:
        at = [gp.predict(X + times * step, return_std=True, **options) for times in (-2, -1, 1, 2)]
        results.append(
            [(at[0][i] - 8.0 * at[1][i] + 8.0 * at[2][i] - at[3][i]) / (12.0 * step.max()) for i in range(2)]
        )
    means, deviations = np.moveaxis(np.array(results), 0, 2)
    return means, deviations


def assert_close(actual: Any, expected: np.ndarray, share: float) -> None:
    """By each feature's largest derivative."""
    assert actual.shape == expected.shape
    assert (np.abs(actual - expected).max(axis=0) <= share * np.abs(expected).max(axis=0) + 1e-9).all()


@pytest.mark.parametrize("latent", [False, True])
def test_of_an_exact_model(problem: Problem, latent: bool) -> None:
    gp = GPRegressor(KERNEL, noise_variance=NOISE, tol=1e-9, variance_gap=1e-7).fit(problem.X, problem.y)
    X = problem.X_new[:7]
    got = gp.predict_gradients(X, return_std=True, latent=latent)
    means, deviations = differences(gp, X, latent=latent)
    assert_close(got.mean_gradient, means, 1e-5)
    assert_close(got.std_gradient, deviations, 1e-4)
    assert (got.mean_gradient[:, 1] == 0.0).all()  # the feature that was constant
    mean, std = gp.predict(X, return_std=True, latent=latent)
    np.testing.assert_array_equal(got.mean, mean)
    np.testing.assert_allclose(got.std, std, rtol=1e-6)
    assert got.std_gradient_error is not None
    assert (got.mean_gradient_error[:, [0, 2, 3]] > 0.0).all()
    assert (got.mean_gradient_error.max(axis=0) < 1e-3 * np.abs(got.mean_gradient).max(axis=0) + 1e-300).all()


def test_the_bound_holds_of_a_loose_fit(problem: Problem) -> None:
    loose, tight = (
        GPRegressor(KERNEL, noise_variance=NOISE, tol=tol, solver=solver).fit(problem.X, problem.y)
        for tol, solver in ((0.1, GreedyBlockCoordinateDescent(block_size=8)), (1e-9, "auto"))
    )
    rough, fine = loose.predict_gradients(problem.X_new), tight.predict_gradients(problem.X_new)
    off = np.abs(rough.mean_gradient - fine.mean_gradient)
    assert (off <= rough.mean_gradient_error + fine.mean_gradient_error).all()
    assert off.max() > 100.0 * fine.mean_gradient_error.max()


@pytest.mark.parametrize("method", ["vfe", "sr", "sd", "fitc"])
def test_of_a_sparse_model(problem: Problem, method: str) -> None:
    kernel = KERNEL + Linear((0.3, 0.1, 0.2))  # k(x, x) has a derivative of its own
    gp = SparseGPRegressor(kernel, method=method, **SPARSE).fit(problem.X, problem.y)
    for latent in (False, True):
        got = gp.predict_gradients(problem.X_new[:7], return_std=True, latent=latent)
        means, deviations = differences(gp, problem.X_new[:7], latent=latent)
        assert_close(got.mean_gradient, means, 1e-5)
        assert_close(got.std_gradient, deviations, 1e-3)
        assert got.std_gradient_error is None
    # As far from the exact model's as is proven at most.
    exact = GPRegressor(kernel, noise_variance=NOISE, tol=1e-9).fit(problem.X, problem.y)
    off = np.abs(got.mean_gradient - exact.predict_gradients(problem.X_new[:7]).mean_gradient)
    assert (off <= got.mean_gradient_error + 1e-3).all()
    assert off.max() > 0.0


def test_several_targets(problem: Problem) -> None:
    both = np.column_stack([problem.y, 3.0 * problem.y + 1.0])
    gp = GPRegressor(KERNEL, noise_variance=NOISE).fit(problem.X, both)
    got = gp.predict_gradients(problem.X_new, return_std=True)
    assert got.mean.shape == (60, 2)
    assert got.mean_gradient.shape == got.std_gradient.shape == (60, 2, 4)
    np.testing.assert_allclose(got.mean_gradient[:, 1], 3.0 * got.mean_gradient[:, 0], atol=1e-3)


def test_without_deviations_there_are_none(problem: Problem, fitted: GPRegressor) -> None:
    got = fitted.predict_gradients(problem.X_new)
    assert isinstance(got, PredictionGradients)
    assert got.std is got.std_gradient is got.std_gradient_error is None


def test_means_alone_take_no_variance(
    problem: Problem, fitted: GPRegressor, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted.save(str(tmp_path / "model.zarr"))
    loaded = GPRegressor.load(str(tmp_path / "model.zarr"))

    def used(*_: Any, **__: Any) -> None:
        raise AssertionError("not for means")

    monkeypatch.setattr("dkgp.models.prediction.exact.chosen_run", used)
    monkeypatch.setattr("dkgp.models.variance.whole_matrix.WholeFactor.weights", used)
    got = loaded.predict_gradients(problem.X_new)
    np.testing.assert_array_equal(got.mean_gradient, fitted.predict_gradients(problem.X_new).mean_gradient)
    with pytest.raises(AssertionError, match="not for means"):
        loaded.predict_gradients(problem.X_new, return_std=True)


def test_inputs_of_every_form(problem: Problem, fitted: GPRegressor, tmp_path: Any) -> None:
    expected = fitted.predict_gradients(problem.X_new)
    frame = pd.DataFrame(problem.X_new, index=np.arange(60) + 7)
    lazy = dask.array.from_array(problem.X_new, chunks=(25, -1))
    copied = pickle.loads(pickle.dumps(fitted))
    fitted.save(str(tmp_path / "model.zarr"))
    loaded = GPRegressor.load(str(tmp_path / "model.zarr"))
    for gp, X in ((fitted, frame), (fitted, lazy), (copied, problem.X_new), (loaded, problem.X_new)):
        np.testing.assert_array_equal(gp.predict_gradients(X).mean_gradient, expected.mean_gradient)


def test_what_has_no_gradient_is_refused(problem: Problem) -> None:
    rough = Matern12(KERNEL.gamma)
    for gp in (GPRegressor(rough, noise_variance=NOISE), SparseGPRegressor(rough, **SPARSE)):
        gp.fit(problem.X, problem.y)
        with pytest.raises(InputError, match="'matern12' has no gradient in its inputs.*Take matern32"):
            gp.predict_gradients(problem.X_new)


def test_a_noise_model_has_gradients_of_the_function_alone() -> None:
    rng = np.random.default_rng(3)
    X = rng.uniform(-2.0, 2.0, (400, 1))
    y = np.sin(X[:, 0]) + np.exp(X[:, 0] - 1.0) * rng.normal(size=400)
    gp = GPRegressor("rbf", noise_model="linear", subset_size=200, tol=1e-8, variance_gap=1e-7).fit(X, y)
    points = np.linspace(-1.5, 1.5, 5)[:, None]
    with pytest.raises(InputError, match="the noise of this model depends on the inputs.*`latent`"):
        gp.predict_gradients(points, return_std=True)
    got = gp.predict_gradients(points, return_std=True, latent=True)
    means, deviations = differences(gp, points, latent=True)
    assert_close(got.mean_gradient, means, 1e-4)
    assert_close(got.std_gradient, deviations, 1e-3)


def test_known_noise(problem: Problem) -> None:
    noise = np.random.default_rng(4).uniform(1.0, 400.0, len(problem.y))
    gp = GPRegressor(SquaredExponential(KERNEL.gamma), noise_variance=NOISE, tol=1e-8, variance_gap=1e-7)
    gp.fit(problem.X, problem.y, sample_noise=noise)
    got = gp.predict_gradients(problem.X_new[:5], return_std=True)
    means, deviations = differences(gp, problem.X_new[:5])
    assert_close(got.mean_gradient, means, 1e-5)
    assert_close(got.std_gradient, deviations, 1e-4)
