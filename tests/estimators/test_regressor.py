"""`GPRegressor`: against a dense Gaussian process; kept and loaded; updated by every solver; forecasts of its cost."""

from __future__ import annotations

import json
import math
import shutil
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.linalg
from click.testing import CliRunner
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

import dkgp
import dkgp.estimators.settings
import dkgp.models.classification.exact
import dkgp.models.classification.logistic
import dkgp.models.prediction.exact
from dkgp import LSSVC, GPClassifier, GPRegressor, KernelLogisticClassifier, SparseGPRegressor
from dkgp.cli import main
from dkgp.cluster import LocalExecutor
from dkgp.data import (
    dataset_from_arrays,
    memory_dataset,
    open_classifier,
    open_dataset,
    open_model,
    open_prediction,
    save_model,
)
from dkgp.errors import InputError
from dkgp.estimators import PredictionBounds
from dkgp.estimators.outputs import what_holds
from dkgp.kernels import Matern32, SquaredExponential, UserKernel, White
from dkgp.models import Hyperparameters, write_hyperparameters
from dkgp.models.certificate import Certificate
from dkgp.models.classification.labels import LabelledData, labels_of
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.logistic import RiskSettings
from dkgp.models.exact import save, train
from dkgp.models.prediction.predict import predict
from dkgp.models.sparse.search import tune_by_bound
from dkgp.models.tuning.search import Choices, SearchSettings
from dkgp.models.variance import ways
from dkgp.models.variance.nystrom import NystromFactor
from dkgp.models.variance.run import Request, VarianceRun
from dkgp.models.variance.ways import Forecast
from dkgp.operators.full_products import FullProducts
from dkgp.operators.keeping import Keeping
from dkgp.solvers import Choice, Cholesky, ConjugateGradient, FactorPreconditioning, TiledCholesky
from dkgp.solvers.cholesky.tile_factor import TileFactor
from dkgp.solvers.registry import solver_names
from tests.estimators.conftest import KERNEL, NOISE, Problem


def test_mean_and_variance_are_the_dense_ones(problem: Problem, fitted: GPRegressor) -> None:
    dense = dense_posterior(KERNEL, NOISE, problem.X, problem.y, problem.X_new)
    mean, std, variance, bounds = fitted.predict(problem.X_new, return_std=True, return_var=True, return_bounds=True)
    assert isinstance(bounds, PredictionBounds)
    assert np.all(np.abs(mean - dense.mean) <= bounds.mean_error)
    exact = dense.covariance.diagonal() + dense.noise
    assert np.all(bounds.variance_lower <= exact * (1 + 1e-12))
    assert np.all(exact <= bounds.variance_upper * (1 + 1e-12))
    assert np.all(bounds.variance_upper - bounds.variance_lower <= 0.02 * bounds.variance_upper)
    np.testing.assert_allclose(variance, 0.5 * (bounds.variance_lower + bounds.variance_upper), rtol=1e-15)
    np.testing.assert_allclose(std, np.sqrt(exact), rtol=0.01)


def test_latent_variances_leave_the_noise_out(problem: Problem, fitted: GPRegressor) -> None:
    dense = dense_posterior(KERNEL, NOISE, problem.X, problem.y, problem.X_new)
    _, latent = fitted.predict(problem.X_new, return_var=True, latent=True)
    np.testing.assert_allclose(latent, dense.covariance.diagonal(), rtol=0.02)


def test_variances_are_planned_at_the_first_prediction(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its rows: neither fit nor a prediction of means chooses a way to variances."""
    seen: list[tuple[int, int]] = []
    chosen = dkgp.models.prediction.exact.chosen_run

    def choose(request: Request, *rest: Any) -> VarianceRun:
        seen.append((request.rows.n_samples, request.n_test))
        return chosen(request, *rest)

    monkeypatch.setattr(dkgp.models.prediction.exact, "chosen_run", choose)
    model = GPRegressor(KERNEL, noise_variance=NOISE).fit(problem.X, problem.y)
    model.predict(problem.X_new)
    assert seen == []
    model.predict(problem.X_new, return_std=True)
    model.predict(problem.X_new[:50], return_std=True)
    assert seen == [(60, 64)]  # calls of similar size share a plan


def test_a_few_deviations_take_no_factor_of_all_samples(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two features the samples near the rows do: no factor of n x n is made, and bounds hold as they did."""
    monkeypatch.setattr(ways, "LEAST_NEAR", 100)
    monkeypatch.setattr(Forecast, "whole", lambda self: 1e3)
    X, kernel = rng.uniform(size=(700, 2)), Matern32(gamma=(1.0, 1.0))
    y = np.sin(7.0 * X[:, 0]) * X[:, 1] + 0.1 * rng.normal(size=700)
    model = GPRegressor(kernel, noise_variance=NOISE, variance_gap=0.05).fit(X, y)
    factors: list[object] = []
    for module in (TileFactor, NystromFactor):
        monkeypatch.setattr(module, "__init__", lambda self, *rest, **options: factors.append(self))
    new = rng.uniform(size=(9, 2))
    std, variance, bounds = model.predict(new, return_std=True, return_var=True, return_bounds=True)[1:]
    assert factors == []
    dense = dense_posterior(kernel, NOISE, X, y, new)
    exact = dense.covariance.diagonal() + dense.noise
    assert (bounds.variance_lower <= exact * (1.0 + 1e-9)).all()
    assert (exact <= bounds.variance_upper * (1.0 + 1e-9)).all()
    assert (bounds.variance_upper - bounds.variance_lower <= 0.05 * bounds.variance_upper * (1.0 + 1e-6)).all()
    np.testing.assert_allclose(std, np.sqrt(variance))


def test_several_targets(problem: Problem) -> None:
    Y = np.column_stack([problem.y, -3.0 * problem.y + problem.X[:, 2], 1e-3 * problem.y**2])
    model = GPRegressor(KERNEL, noise_variance=NOISE).fit(problem.X, Y)
    dense = dense_posterior(KERNEL, NOISE, problem.X, Y, problem.X_new)
    mean, std = model.predict(problem.X_new, return_std=True)
    assert mean.shape == std.shape == (60, 3)
    np.testing.assert_allclose(mean, dense.mean, atol=1e-3 * Y.std(axis=0).max())
    np.testing.assert_allclose(std[:, 1] / std[:, 0], Y[:, 1].std() / Y[:, 0].std(), rtol=1e-12)
    column = GPRegressor(KERNEL, noise_variance=NOISE).fit(problem.X, problem.y[:, None])
    assert column.predict(problem.X_new).shape == (60, 1)


def test_tuning_finds_what_matters_and_does_not_change_parameters(problem: Problem) -> None:
    model = GPRegressor(subset_size=150).fit(problem.X, problem.y)
    assert model.kernel == "rbf"
    assert model.noise_variance is None
    gamma = np.asarray(model.kernel_.gamma)  # of the features that vary
    assert gamma.shape == (3,)
    assert gamma[2] < 0.1 * min(gamma[0], gamma[1])
    assert model.hyperparameters_.subset_size == 150
    assert model.score(problem.X_new, problem.y_new) > 0.97
    fixed = GPRegressor(subset_size=150, noise_variance=0.2).fit(problem.X, problem.y)
    assert fixed.noise_variance_ == pytest.approx(0.2)
    untuned = GPRegressor(optimizer=None).fit(problem.X, problem.y)
    assert untuned.kernel_ == dkgp.kernels.parse_kernel("rbf", 3)


def test_hyperparameters_may_be_given_in_three_ways(problem: Problem, fitted: GPRegressor) -> None:
    expected = fitted.predict(problem.X_new)
    for model in (
        GPRegressor(KERNEL + White(NOISE)),
        GPRegressor(Hyperparameters(KERNEL, NOISE)),
        GPRegressor(Hyperparameters(KERNEL, 5.0), noise_variance=NOISE),
    ):
        found = model.fit(problem.X, problem.y).predict(problem.X_new)
        np.testing.assert_allclose(found, expected, atol=1e-6 * problem.y.std())
        assert model.noise_variance_ == pytest.approx(NOISE)


def test_attributes_tell_of_the_fit(problem: Problem, fitted: GPRegressor) -> None:
    assert fitted.n_features_in_ == 4
    assert fitted.target_names_ == ("y",)
    assert fitted.solution_["converged"]
    assert fitted.solution_["gradient_inf_norm"] <= 1e-4
    assert len(fitted.history_) == fitted.solution_["iterations"]
    assert isinstance(fitted.certificate_, Certificate)
    largest = fitted.certificate_.mean_error_bound(np.ones(1))[0, 0] * problem.y.std()
    _, bounds = fitted.predict(problem.X_new, return_bounds=True)
    # By the variance at each sample in the place of k(x, x) = 1; each has roundings of its own.
    assert bounds.variance_upper is not None
    expected = largest * np.sqrt(bounds.variance_upper) / problem.y.std()
    np.testing.assert_allclose(bounds.mean_error, expected, rtol=0.0, atol=1e-2 * largest)
    assert (bounds.mean_error >= expected).all()
    assert np.median(bounds.mean_error) < 0.2 * largest


@pytest.mark.parametrize("kind", [GPRegressor, SparseGPRegressor])
def test_a_constant_target_is_refused_in_the_words_of_ingestion(
    kind: type[GPRegressor | SparseGPRegressor], problem: Problem, tmp_path: Path
) -> None:
    n = len(problem.X)
    constant = np.full(n, 4.5)
    words = f"The target '{{}}' is constant: all {n} samples are 4.5. There is nothing to learn; choose another target"
    with pytest.raises(InputError) as of_python:
        kind().fit(problem.X, constant)
    with pytest.raises(InputError) as of_ingestion:
        dataset_from_arrays(tmp_path / "train.zarr", problem.X, constant)
    assert str(of_python.value) == str(of_ingestion.value) == words.format("y") + "."
    # Of several targets, the one that is; in a DataFrame by its name.
    two = pd.DataFrame({"price": problem.y, "year": constant})
    with pytest.raises(InputError) as of_several:
        kind().fit(problem.X, two)
    assert str(of_several.value) == words.format("year") + ", or leave this one out."
    # Nearly constant is not constant.
    assert kind().fit(problem.X, constant + 1e-6 * problem.y).predict(problem.X_new).std() > 0.0


def test_solver_is_of_choice(problem: Problem, fitted: GPRegressor) -> None:
    model = GPRegressor(KERNEL, noise_variance=NOISE, solver=Cholesky()).fit(problem.X, problem.y)
    assert model.solution_["solver"] == "cholesky"
    np.testing.assert_allclose(model.predict(problem.X_new), fitted.predict(problem.X_new), atol=1e-2)
    auto = GPRegressor(KERNEL, noise_variance=NOISE, solver="auto").fit(problem.X, problem.y)
    assert auto.solution_["solver"] == "cholesky"  # 300 samples are few
    assert auto.update(problem.X_new[:3], problem.y_new[:3]).solution_["converged"]


def falls_off(s: float) -> float:
    return 1.0 / (1.0 + s)


def test_what_a_user_function_leaves_unproven_is_said() -> None:
    said = what_holds(KERNEL + 0.5 * UserKernel(falls_off, KERNEL.gamma))
    assert "the user's function in the kernel is positive definite, which was checked on samples alone" in said
    assert "user" not in what_holds(KERNEL)


def test_stopping_short_is_a_warning(problem: Problem) -> None:
    solver = dkgp.solvers.GreedyBlockCoordinateDescent(block_size=20)
    words = (
        "not converged: .*passes over the kernel matrix was reached.*valid for this solution, but wider than requested$"
    )
    with pytest.warns(ConvergenceWarning, match=words) as caught:
        model = GPRegressor(KERNEL, noise_variance=NOISE, solver=solver, max_passes=0.2).fit(problem.X, problem.y)
    # Proven is what converged; of this one it is said what its bounds are worth.
    assert "proven" not in str(caught[0].message)
    assert not model.solution_["converged"]
    dense = dense_posterior(KERNEL, NOISE, problem.X, problem.y, problem.X_new)
    mean, bounds = model.predict(problem.X_new, return_bounds=True)
    assert np.all(np.abs(mean - dense.mean) <= bounds.mean_error)
    assert bounds.mean_error.min() > 0.1


def test_a_noise_at_its_bound_is_a_warning_that_says_why() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.3 * rng.standard_normal(100)
    with pytest.warns(
        ConvergenceWarning, match="not converged; .*100 of the 200 samples repeat another.*remove the repeats"
    ):
        GPRegressor(max_passes=1.0).fit(np.repeat(X, 2, axis=0), np.repeat(y, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        GPRegressor().fit(X, y)


def test_training_data_may_change_afterwards(problem: Problem) -> None:
    X, y = problem.X.copy(), problem.y.copy()
    model = GPRegressor(KERNEL, noise_variance=NOISE).fit(X, y)
    expected = model.predict(problem.X_new)
    X[:], y[:] = 0.0, 0.0
    np.testing.assert_array_equal(model.predict(problem.X_new), expected)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kernel": "rbv"}, "rbv"),
        ({"kernel": 3}, "takes an expression"),
        ({"kernel": KERNEL}, "needs a noise variance"),
        ({"kernel": SquaredExponential(gamma=(1.0,)), "noise_variance": 0.1}, "features"),
        ({"kernel": Hyperparameters(SquaredExponential(gamma=(1.0,)), 0.1)}, "features"),
        ({"optimizer": "fmin"}, "optimizer= takes 'marginal_likelihood', 'loo', 'vif' or None"),
        ({"optimizer": "vif", "mean": "linear"}, "'vif' are found about a centred mean"),
        ({"optimizer": "vif", "likelihood": "student-t"}, "tuned on a subset; .*'marginal_likelihood', 'loo'"),
        ({"solver": "adam"}, "dkgp.solvers"),
        ({"tol": 0.0}, "tol= takes a finite number above 0; got 0.0"),
        ({"tol": math.nan}, "tol= takes a finite number above 0; got nan"),
        ({"max_passes": -1.0}, "passes"),
    ],
)
def test_bad_parameters_are_refused(problem: Problem, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        GPRegressor(**parameters).fit(problem.X, problem.y)


def test_values_by_the_evidence_of_all_samples_are_those_of_the_search(problem: Problem) -> None:
    X, y = problem.X[:220, :2], problem.y[:220]
    dataset = memory_dataset(X, y)
    with closing(LocalExecutor(1)) as executor:
        known = tune_by_bound(dataset, executor, Choices(), SearchSettings(5), objective="vif", basis_size=200)
    found = GPRegressor(optimizer="vif", random_state=5).fit(X, y).hyperparameters_
    assert found.sparse is not None
    assert found.kernel.to_json() == known.kernel.to_json()
    assert found.noise_variance == known.noise_variance
    with pytest.raises(InputError, match="leave sample_noise out"):
        GPRegressor(optimizer="vif").fit(X, y, sample_noise=np.full(220, 0.1))


def test_bad_data_are_refused(problem: Problem, fitted: GPRegressor) -> None:
    with pytest.raises(NotFittedError):
        GPRegressor().predict(problem.X)
    with pytest.raises(ValueError, match="NaN"):
        fitted.predict(np.full((2, 4), np.nan))
    with pytest.raises(ValueError, match="features"):
        fitted.predict(problem.X_new[:, :2])
    with pytest.raises(InputError, match="variance_gap= takes a finite number above 0"):
        GPRegressor(KERNEL, noise_variance=NOISE, variance_gap=0.0).fit(problem.X, problem.y).predict(
            problem.X_new, return_std=True
        )


def test_pipeline_and_grid_search(problem: Problem) -> None:
    X, y = problem.X[:80], problem.y[:80]
    pipeline = make_pipeline(PolynomialFeatures(2, include_bias=True), GPRegressor(optimizer=None))
    assert pipeline.fit(X, y).score(X, y) > 0.8
    mean, std = pipeline.predict(X, return_std=True)
    assert mean.shape == std.shape == (80,)
    search = GridSearchCV(GPRegressor(KERNEL), {"noise_variance": [NOISE, 1e3]}, cv=3).fit(X, y)
    assert search.best_params_ == {"noise_variance": NOISE}
    assert cross_val_score(search.best_estimator_, X, y, cv=3).min() > 0.5


def test_means_alone_take_no_variance_and_no_thread(
    problem: Problem, fitted: GPRegressor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loaded model looks for no factor, and one sample is computed on the calling thread."""
    fitted.save(tmp_path / "model.zarr")
    loaded = GPRegressor.load(tmp_path / "model.zarr")

    def used(*_: Any, **__: Any) -> None:
        raise AssertionError("not for means")

    monkeypatch.setattr("dkgp.models.prediction.exact.chosen_run", used)
    monkeypatch.setattr("dkgp.cluster.executors.base.LocalExecutor.start", used)
    one = loaded.predict(problem.X_new[:1])
    with pytest.raises(AssertionError, match="not for means"):
        loaded.predict(problem.X_new[:1], return_std=True)
    monkeypatch.undo()
    np.testing.assert_array_equal(one, loaded.predict(problem.X_new)[:1])


def test_a_saved_model_draws_and_updates_alone(problem: Problem, tmp_path: Path) -> None:
    model = GPRegressor(KERNEL, noise_variance=NOISE, variance_gap=0.05).fit(problem.X, problem.y)
    model.save(tmp_path / "model.zarr")
    loaded = GPRegressor.load(tmp_path / "model.zarr")
    np.testing.assert_array_equal(loaded.sample_y(problem.X_new, 2), model.sample_y(problem.X_new, 2))
    loaded.update(problem.X_new[:4], problem.y_new[:4])
    model.update(problem.X_new[:4], problem.y_new[:4])
    np.testing.assert_array_equal(loaded.predict(problem.X_new), model.predict(problem.X_new))
    loaded.save(tmp_path / "longer.zarr")
    shutil.rmtree(tmp_path / "model.zarr")
    again = GPRegressor.load(tmp_path / "longer.zarr")
    np.testing.assert_array_equal(again.predict(problem.X_new), model.predict(problem.X_new))


def test_text_kernels_and_several_targets_survive(problem: Problem, tmp_path: Path) -> None:
    model = GPRegressor("rbf", optimizer=None, noise_variance=0.05).fit(problem.X, np.column_stack([problem.y]))
    model.save(tmp_path / "model.zarr")
    loaded = GPRegressor.load(tmp_path / "model.zarr")
    assert loaded.kernel == "rbf"
    assert loaded.predict(problem.X_new).shape == (60, 1)
    assert json.dumps(open_model(tmp_path / "model.zarr").summary["estimator"])


def test_engine_predicts_from_a_saved_estimator(problem: Problem, fitted: GPRegressor, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model.zarr")
    new = dataset_from_arrays(tmp_path / "new.zarr", problem.X_new, None)
    predict(open_model(tmp_path / "model.zarr"), new, str(tmp_path / "out.zarr"), LocalExecutor(1))
    found = open_prediction(tmp_path / "out.zarr")
    np.testing.assert_array_equal(found.read("mean", 0, 60)[:, 0], fitted.predict(problem.X_new))


@pytest.mark.filterwarnings("ignore:The feature:UserWarning")
def test_estimator_loads_what_the_engine_trained(problem: Problem, fitted: GPRegressor, tmp_path: Path) -> None:
    names = ["east", "unused", "north", "depth"]
    url = str(tmp_path / "train.zarr")
    dataset = dataset_from_arrays(url, problem.X, problem.y, feature_names=names, target_names=["load"])
    trained = train(dataset, KERNEL, NOISE, LocalExecutor(1), solver=Cholesky())  # what auto picks for so few
    save(trained, str(tmp_path / "model.zarr"), dataset)
    shutil.rmtree(url)
    loaded = GPRegressor.load(tmp_path / "model.zarr")
    assert loaded.target_names_ == ("load",)
    known = fitted.predict(problem.X_new)
    np.testing.assert_array_equal(loaded.predict(problem.X_new), known)
    loaded.update(problem.X_new[:3], problem.y_new[:3])
    assert loaded.solution_["n"] == 303


def test_model_without_targets_says_that_it_cannot_be_updated(problem: Problem, tmp_path: Path) -> None:
    dataset = dataset_from_arrays(tmp_path / "train.zarr", problem.X[:, [0, 2, 3]], problem.y)
    trained = train(dataset, KERNEL, NOISE, LocalExecutor(1))
    save_model(
        tmp_path / "bare.zarr",
        kernel=KERNEL.to_json(),
        noise_variance=NOISE,
        alpha=trained.solution.alpha,
        dataset=dataset,
        certificate=trained.certificate.to_json(),
    )
    assert open_model(tmp_path / "bare.zarr").training_state() is None
    loaded = GPRegressor.load(tmp_path / "bare.zarr")
    with pytest.raises(InputError, match="without its training targets"):
        loaded.update(problem.X_new[:, [0, 2, 3]], problem.y_new)
    loaded.save(tmp_path / "copy.zarr")
    copy = GPRegressor.load(tmp_path / "copy.zarr")
    np.testing.assert_array_equal(
        copy.predict(problem.X_new[:, [0, 2, 3]]), loaded.predict(problem.X_new[:, [0, 2, 3]])
    )
    assert open_dataset(tmp_path / "train.zarr").n_samples == 300


def test_update_is_fitting_with_all_samples_under_the_old_scale(problem: Problem) -> None:
    model = GPRegressor(KERNEL, noise_variance=NOISE)
    assert model.partial_fit(problem.X, problem.y) is model
    old = model.kernel_
    for start in range(0, 30, 10):
        model.partial_fit(problem.X_new[start : start + 10], problem.y_new[start : start + 10])
    assert model.kernel_ == old
    assert model.solution_["n"] == 330
    X, y = np.vstack([problem.X, problem.X_new[:30]]), np.concatenate([problem.y, problem.y_new[:30]])
    dense = dense_posterior(KERNEL, NOISE, X, y, problem.X_new, like=(problem.X, problem.y))
    mean, bounds = model.predict(problem.X_new, return_bounds=True)
    assert np.all(np.abs(mean - dense.mean) <= bounds.mean_error)


def test_update_refuses_other_features_and_targets(problem: Problem, fitted: GPRegressor) -> None:
    with pytest.raises(ValueError, match="features"):
        fitted.update(problem.X_new[:, :2], problem.y_new)
    with pytest.raises(InputError, match="2 targets; expected 1"):
        fitted.update(problem.X_new, np.column_stack([problem.y_new, problem.y_new]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fitted.solution_["n"] == 300


# Slow to the last digits, and measured for its speed alone.
EVERY = [name for name in ("auto", *solver_names()) if name != "paramcg"]
SETTINGS: list[Any] = [ConjugateGradient(FactorPreconditioning(40, 20, 10)), TiledCholesky(tile_rows=64)]
OLD, ALL = slice(0, 110), slice(0, 130)


def standardised(problem: Problem, rows: slice) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets on the scale of the first samples."""
    X, y = problem.X[:, [0, 2, 3]], problem.y
    inputs = (X[rows] - X[OLD].mean(axis=0)) / X[OLD].std(axis=0)
    return inputs, (y[rows] - y[OLD].mean()) / y[OLD].std()


def updated(gp: Any, problem: Problem, **noise: Any) -> Any:
    old = {name: values[OLD] for name, values in noise.items()}
    new = {name: values[110:130] for name, values in noise.items()}
    return gp.fit(problem.X[OLD], problem.y[OLD], **old).update(problem.X[110:130], problem.y[110:130], **new)


@pytest.mark.long
@pytest.mark.parametrize("solver", [*EVERY, *SETTINGS], ids=str)
def test_an_update_by_every_solver_is_the_dense_solution(solver: Any, problem: Problem) -> None:
    gp = updated(GPRegressor(KERNEL, noise_variance=NOISE, solver=solver, tol=1e-7), problem)
    assert gp.solution_["converged"]
    Z, y = standardised(problem, ALL)
    alpha = np.linalg.solve(KERNEL(Z, Z) + NOISE * np.eye(130), y)
    np.testing.assert_allclose(gp._fitted.record.alpha[:, 0], alpha, atol=1e-4)
    again = gp.update(problem.X[130:140], problem.y[130:140])
    assert again.solution_["converged"]
    assert again._fitted.record.n_samples == 140


SPARSE = {"noise_variance": NOISE, "basis_size": 40}
MODELS: dict[str, Callable[[], Any]] = {
    "linear mean": lambda: GPRegressor(KERNEL, noise_variance=NOISE, mean="linear", tol=1e-9),
    "constant mean, pcg": lambda: GPRegressor(KERNEL, noise_variance=NOISE, mean="constant", solver="pcg", tol=1e-9),
    "with variances": lambda: GPRegressor(KERNEL, noise_variance=NOISE, with_variances=True, tol=1e-9),
    **{name: lambda name=name: SparseGPRegressor(KERNEL, method=name, **SPARSE) for name in ("vfe", "sr", "dtc")},
}


@pytest.mark.filterwarnings("ignore:the subset of regressors' variances")
@pytest.mark.parametrize("by_sample", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_an_updated_model_predicts_as_one_of_all_samples(name: str, by_sample: bool, problem: Problem) -> None:
    """Both under the standardisation of all samples, which the first ones are rescaled to have."""
    X, y = problem.X[ALL].copy(), problem.y[ALL].copy()
    for part in (OLD, slice(110, 130)):  # of each part mean and deviation are the same, and so are those of all
        X[part] = (X[part] - X[part].mean(axis=0)) / np.where(X[part].std(axis=0) > 0.0, X[part].std(axis=0), 1.0)
        y[part] = (y[part] - y[part].mean()) / y[part].std()
    alike = Problem(X, y, problem.X_new, problem.y_new)
    noise = {"sample_noise": np.linspace(0.01, 0.3, 130)} if by_sample else {}
    gp = MODELS[name]()
    if name in ("vfe", "sr", "dtc"):
        gp.basis = np.arange(0, 80, 2)  # of the first samples, for both
    found, whole = updated(gp, alike, **noise), MODELS[name]()
    whole.basis = gp.basis if hasattr(gp, "basis") else None
    whole.fit(X, y, **noise)
    points = X[::7] + 0.1
    got, expected = (gp.predict(points, return_std=True) for gp in (found, whole))
    np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(got[1], expected[1], rtol=0.02)  # the width of an exact model's interval


@pytest.mark.parametrize("method", ["sd", "fitc", "vif"])
def test_models_without_an_update_refuse_it(method: str, problem: Problem) -> None:
    gp = SparseGPRegressor(KERNEL, method=method, **SPARSE)
    with pytest.raises(InputError, match=method):
        updated(gp, problem)


def test_no_estimator_with_an_update_is_forgotten() -> None:
    able = {name for name in dkgp.__all__ if hasattr(getattr(dkgp, name), "update")}
    assert able == {"GPRegressor", "SparseGPRegressor"}


SEVEN, LITTLE, N = SquaredExponential((0.8, 0.3)), 0.05, 600


@pytest.fixture
def samples(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    X = rng.normal(size=(N, 2))
    return X, np.sin(2.0 * X[:, 0]) + X[:, 1]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The products, with itself, that each float32 product was decided by."""
    found: list[float] = []
    terms = FullProducts._keeping

    def keeping(self: FullProducts, precision: Any) -> Keeping | None:
        told = terms(self, precision)
        if told is not None:
            assert told.budget.measured
            found.append(told.products)
        return told

    monkeypatch.setattr(FullProducts, "_keeping", keeping)
    return found


def choose(monkeypatch: pytest.MonkeyPatch, where: Any, products: float | None) -> None:
    """Have "auto" take conjugate gradients, which so few samples would not be given, and foresee so many products."""
    choice = Choice("cg", "as the test says", products=products)
    monkeypatch.setattr(where, "choose_solver_for", lambda *_, **__: replace(choice))


def test_regressor(samples: tuple[np.ndarray, np.ndarray], asked: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    models = {}
    for products in (None, 9.5, 400.0):
        asked.clear()
        choose(monkeypatch, dkgp.estimators.settings, products)
        models[products] = GPRegressor(SEVEN, noise_variance=LITTLE).fit(*samples)
        # Less one after each; from the third on the fall of the gradient may foresee more.
        assert len(asked) > 4
        assert asked[:3] == ([0.0] * 3 if products is None else [products, products - 1.0, products - 2.0])
    means = {products: model.predict(samples[0]).tobytes() for products, model in models.items()}
    assert len(set(means.values())) == 1
    # One that is named foresees nothing.
    asked.clear()
    GPRegressor(SEVEN, noise_variance=LITTLE, solver="cg").fit(*samples)
    assert asked[:3] == [0.0] * 3


def test_classifier(
    samples: tuple[np.ndarray, np.ndarray], asked: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    X, labels = samples[0], (samples[1] > 0.0).astype(int)
    dataset_from_arrays(tmp_path / "d.zarr", X, labels.astype(float), classes=("no", "yes"))
    write_hyperparameters(tmp_path / "h.json", Hyperparameters(SEVEN, LITTLE))
    decisions, alphas = [], []
    for products in (None, 7.5):
        wanted = [0.0] * 3 if products is None else [7.5, 6.5, 5.5]
        choose(monkeypatch, dkgp.models.classification.exact, products)
        asked.clear()
        decisions.append(LSSVC(SEVEN, noise_variance=LITTLE).fit(X, labels).decision_function(X).tobytes())
        assert asked[:3] == wanted
        asked.clear()
        out = tmp_path / f"{products}.zarr"
        command = ["classify", tmp_path / "d.zarr", "--out", out, "--method", "exact", "--hyper", tmp_path / "h.json"]
        ran = CliRunner().invoke(main, [str(each) for each in command])
        assert ran.exit_code == 0, ran.output
        assert asked[:3] == wanted
        alpha = open_classifier(str(out)).alpha
        assert alpha is not None
        alphas.append(alpha.tobytes())
    assert len(set(decisions)) == 1
    assert len(set(alphas)) == 1


@pytest.mark.parametrize("estimator", [KernelLogisticClassifier, pytest.param(GPClassifier, marks=pytest.mark.slow)])
def test_likelihoods(
    estimator: Any,
    samples: tuple[np.ndarray, np.ndarray],
    asked: list[float],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """By runs on subsets, where there are samples enough for these to be nothing beside the rest."""
    X, labels = samples[0], (samples[1] > 0.0).astype(int)
    kernel = SquaredExponential((0.8, 0.3), variance=5.0)
    few = estimator(kernel).fit(X, labels).predict_proba(X)
    assert asked[:3] == [0.0] * 3
    monkeypatch.setattr(dkgp.models.classification.logistic, "SUBSETS", (100, 300))
    monkeypatch.setattr(dkgp.models.classification.logistic, "FORESEEN_FROM", N)
    asked.clear()
    model = estimator(kernel).fit(X, labels)
    # Those on the subsets are decided by nobody: the first run of three or more that falls by one.
    wanted = dkgp.models.classification.logistic.foreseen_products
    dataset = memory_dataset(X, labels.astype(float), classes=("no", "yes"))
    likelihood = Likelihood.of("logit", "softmax", 2)
    expected = wanted(LabelledData(dataset, labels_of(dataset)), kernel, RiskSettings(likelihood)).count
    told = [products for products in asked if products > 0.0]
    assert told[:3] == pytest.approx([expected, expected - 1.0, expected - 2.0])
    assert model.predict_proba(X).tobytes() == few.tobytes()
    # And so by the command.
    dataset_from_arrays(tmp_path / "d.zarr", X, labels.astype(float), classes=("no", "yes"))
    write_hyperparameters(tmp_path / "h.json", Hyperparameters(kernel, 1.0))
    method = "gp" if estimator is GPClassifier else "logistic"
    asked.clear()
    command = ["classify", tmp_path / "d.zarr", "--out", tmp_path / "m.zarr", "--method", method]
    ran = CliRunner().invoke(main, [str(each) for each in (*command, "--hyper", tmp_path / "h.json")])
    assert ran.exit_code == 0, ran.output
    assert next(products for products in asked if products > 0.0) == pytest.approx(expected)


# A dense Gaussian process written out in NumPy: the reference for what an estimator returns.


FloatArray = np.ndarray


@dataclass(frozen=True)
class DensePosterior:
    """Mean and covariance at `points`, on the targets' own scale; `noise` is the observations' variance there."""

    mean: FloatArray
    covariance: FloatArray
    noise: FloatArray


def dense_posterior(
    kernel: Callable[[FloatArray, FloatArray], FloatArray],
    noise_variance: float,
    X: FloatArray,
    y: FloatArray,
    points: FloatArray,
    like: tuple[FloatArray, FloatArray] | None = None,
) -> DensePosterior:
    """`like` are the samples whose standardisation is used, by default X and y; constant features are left out."""
    inputs, targets = (X, y) if like is None else like
    varies = inputs.std(axis=0) > 0
    mean, std = inputs[:, varies].mean(axis=0), inputs[:, varies].std(axis=0)
    target_mean, target_std = targets.mean(axis=0), targets.std(axis=0)
    Z, Z_new = (X[:, varies] - mean) / std, (points[:, varies] - mean) / std
    lower = scipy.linalg.cholesky(kernel(Z, Z) + noise_variance * np.eye(len(Z)), lower=True)
    cross = kernel(Z_new, Z)
    half = scipy.linalg.solve_triangular(lower, cross.T, lower=True)
    alpha = scipy.linalg.cho_solve((lower, True), (y - target_mean) / target_std)
    covariance = kernel(Z_new, Z_new) - half.T @ half
    return DensePosterior(
        cross @ alpha * target_std + target_mean,
        covariance * np.max(target_std) ** 2,
        noise_variance * target_std**2,
    )
