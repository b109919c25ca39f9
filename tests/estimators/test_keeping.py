"""Saved, loaded, carried on: without the training set, and between Python and the command line."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

from dkgp import GPRegressor
from dkgp.cluster import LocalExecutor
from dkgp.data import dataset_from_arrays, open_dataset, open_model, open_prediction, save_model
from dkgp.errors import InputError
from dkgp.models.exact import save, train
from dkgp.models.prediction.predict import predict
from dkgp.solvers import Cholesky
from tests.estimators.conftest import KERNEL, NOISE, Problem
from tests.estimators.dense import dense_posterior


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
