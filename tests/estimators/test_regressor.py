"""What an estimator returns for arrays: against a dense Gaussian process, and what it refuses."""

from __future__ import annotations

import math
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

import dkgp
from dkgp import GPRegressor, SparseGPRegressor
from dkgp.cluster import LocalExecutor
from dkgp.data import dataset_from_arrays, memory_dataset
from dkgp.errors import InputError
from dkgp.estimators import PredictionBounds
from dkgp.estimators.outputs.outputs import what_holds
from dkgp.kernels import SquaredExponential, UserKernel, White
from dkgp.models import Hyperparameters
from dkgp.models.certificate import Certificate
from dkgp.models.sparse.search import tune_by_bound
from dkgp.models.tuning.search import Choices, SearchSettings
from dkgp.solvers import Cholesky
from tests.estimators.conftest import KERNEL, NOISE, Problem
from tests.estimators.dense import dense_posterior


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
    words = f"The target '{{}}' is constant: all {n} samples hold 4.5. There is nothing to learn; choose another target"
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
    assert "if the user's function in the kernel is positive definite, which was looked at on samples alone" in said
    assert "user" not in what_holds(KERNEL)


def test_stopping_short_is_a_warning(problem: Problem) -> None:
    solver = dkgp.solvers.GreedyBlockCoordinateDescent(block_size=20)
    with pytest.warns(ConvergenceWarning, match="not converged: .*column passes done.*hold all the same$") as caught:
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
    with pytest.warns(ConvergenceWarning, match="not converged; .*100 of the 200 samples repeat another.*noise_vari"):
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


def test_rows_do_not_depend_on_their_neighbours(problem: Problem, fitted: GPRegressor) -> None:
    together = fitted.predict(problem.X_new)
    np.testing.assert_array_equal([fitted.predict(row[None])[0] for row in problem.X_new[:7]], together[:7])


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
    """Of a model that is loaded: no factor is looked for, and one sample is the work of the thread that asks."""
    fitted.save(tmp_path / "model.zarr")
    loaded = GPRegressor.load(tmp_path / "model.zarr")

    def used(*_: Any, **__: Any) -> None:
        raise AssertionError("not for means")

    monkeypatch.setattr("dkgp.models.prediction.predictor.chosen_run", used)
    monkeypatch.setattr("dkgp.cluster.executors.base.LocalExecutor.start", used)
    one = loaded.predict(problem.X_new[:1])
    with pytest.raises(AssertionError, match="not for means"):
        loaded.predict(problem.X_new[:1], return_std=True)
    monkeypatch.undo()
    np.testing.assert_array_equal(one, loaded.predict(problem.X_new)[:1])
