"""`SparseGPRegressor`: against dense formulas, its settings, and how it is kept."""

from __future__ import annotations

import gc
import math
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from click.testing import CliRunner
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from dkgp import GPRegressor, SparseGPRegressor
from dkgp.cli import main
from dkgp.cluster import LocalExecutor
from dkgp.data import dataset_from_arrays, open_prediction
from dkgp.errors import InputError, NumericalError
from dkgp.estimators import OverconfidenceWarning, PredictionBounds
from dkgp.kernels import SquaredExponential, White
from dkgp.models import Hyperparameters, write_hyperparameters
from dkgp.models.sparse.certificate import SparseCertificate
from dkgp.models.sparse.stored import open_sparse, save_sparse
from dkgp.models.sparse.train import SparseSettings, train_sparse
from tests.estimators.conftest import KERNEL, NOISE, Problem
from tests.estimators.test_conformance import table_of
from tests.models.posteriors import sparse_posterior
from tests.models.sparse.dense_models import Dense

KEPT = [0, 2, 3]  # of the features: one is constant


def dense(problem: Problem, model: SparseGPRegressor, noise: Any = NOISE, targets: Any = None) -> Dense:
    """The problem on the standardised scale, with the estimator's basis."""
    y = problem.y if targets is None else targets
    y = y.reshape(len(y), -1)
    X, T = problem.X[:, KEPT], problem.X_new[:, KEPT]
    scale = (X.mean(axis=0), X.std(axis=0))
    X, T, Z = ((values - scale[0]) / scale[1] for values in (X, T, model.basis_inputs_))
    return Dense(KERNEL, X, (y - y.mean(axis=0)) / y.std(axis=0), np.broadcast_to(noise, len(y)), Z, T)


@pytest.mark.covering
@pytest.mark.parametrize("by_sample", [False, True])
@pytest.mark.parametrize(
    ("method", "basis"),
    [("vfe", None), ("sr", "uniform"), ("dtc", "k-means"), ("fitc", "variance"), ("sggp", None), ("mpgp", None)],
)
@pytest.mark.filterwarnings("ignore::dkgp.estimators.OverconfidenceWarning")
def test_predictions_are_those_of_the_formulas(
    problem: Problem, method: str, basis: str | None, by_sample: bool
) -> None:
    relative = np.random.default_rng(0).uniform(0.2, 5.0, 300) if by_sample else None
    model = SparseGPRegressor(KERNEL, noise_variance=NOISE, method=method, basis=basis, basis_size=40)
    model.fit(problem.X, problem.y, relative)
    known = dense(problem, model, NOISE if relative is None else NOISE * relative)
    mean, variance = known.predictive(method)
    exact, exact_variance = known.exact()
    y_mean, y_std = problem.y.mean(), problem.y.std()
    found, std, latent, bounds = model.predict(
        problem.X_new, return_std=True, return_var=True, return_bounds=True, latent=True
    )
    np.testing.assert_allclose(found, y_mean + y_std * mean[:, 0], atol=1e-5 * y_std)
    np.testing.assert_allclose(latent, y_std**2 * variance, atol=1e-5 * y_std**2)
    np.testing.assert_array_equal(std, np.sqrt(latent))
    # What is proven, of the exact model.
    assert isinstance(bounds, PredictionBounds)
    distance = np.abs(found - (y_mean + y_std * exact[:, 0]))
    assert np.all(distance <= bounds.mean_error)
    assert np.all(bounds.variance_lower <= y_std**2 * exact_variance * (1 + 1e-9))
    assert np.all(y_std**2 * exact_variance <= bounds.variance_upper * (1 + 1e-9))
    _, observed = model.predict(problem.X_new, return_var=True)
    np.testing.assert_allclose(observed - latent, y_std**2 * NOISE, rtol=1e-6)


@pytest.mark.parametrize("method", ["vfe", "fitc", "sd", "sggp"])
def test_the_distance_is_one_of_the_exact_means(problem: Problem, fitted: GPRegressor, method: str) -> None:
    model = SparseGPRegressor(KERNEL, noise_variance=NOISE, method=method, basis_size=150).fit(problem.X, problem.y)
    off = np.sqrt(np.mean((model.predict(problem.X) - fitted.predict(problem.X)) ** 2))
    assert 0.0 < off <= model.distance_
    assert model.distance_ < (1.0 if method in ("vfe", "sggp") else 8.0)
    # Passes over the kernel matrix prove more of the same mean.
    spent = SparseGPRegressor(KERNEL, noise_variance=NOISE, method=method, basis_size=150, certify_passes=3.0)
    spent.fit(problem.X, problem.y)
    np.testing.assert_array_equal(spent.predict(problem.X_new), model.predict(problem.X_new))
    assert spent.distance_ <= model.distance_


def test_all_samples_give_the_exact_model(problem: Problem, fitted: GPRegressor) -> None:
    model = SparseGPRegressor(KERNEL, noise_variance=NOISE, method="sd", basis_size=300).fit(problem.X, problem.y)
    expected = fitted.predict(problem.X_new, return_std=True)
    mean, std = model.predict(problem.X_new, return_std=True)
    np.testing.assert_allclose(mean, expected[0], atol=1e-4)
    np.testing.assert_allclose(std, expected[1], rtol=1e-2)
    assert model.distance_ < 1e-3


def test_several_targets(problem: Problem) -> None:
    Y = np.column_stack([problem.y, -3.0 * problem.y + problem.X[:, 2], 1e-3 * problem.y**2])
    model = SparseGPRegressor(KERNEL, noise_variance=NOISE, basis_size=40).fit(problem.X, Y)
    mean, variance = dense(problem, model, targets=Y).predictive("vfe")
    found, std = model.predict(problem.X_new, return_std=True)
    assert found.shape == std.shape == (60, 3)
    np.testing.assert_allclose(found, Y.mean(axis=0) + Y.std(axis=0) * mean, atol=1e-5 * Y.std(axis=0).max())
    np.testing.assert_allclose(std, np.sqrt(variance + NOISE)[:, None] * Y.std(axis=0), rtol=1e-5)
    assert model.distance_.shape == model.gap_.shape == (3,)
    column = SparseGPRegressor(KERNEL, noise_variance=NOISE, basis_size=40).fit(problem.X, problem.y[:, None])
    assert column.predict(problem.X_new).shape == (60, 1)


def test_attributes_tell_of_the_fit(problem: Problem, sparse: SparseGPRegressor) -> None:
    assert isinstance(sparse.certificate_, SparseCertificate)
    assert (sparse.method_, sparse.n_features_in_, sparse.target_names_) == ("vfe", 4, ("y",))
    assert sparse.basis_indices_.shape == (60,)
    np.testing.assert_allclose(sparse.basis_inputs_, problem.X[sparse.basis_indices_][:, KEPT], rtol=1e-12)
    known = dense(problem, sparse)
    covariance = known.low_rank(known.X, known.X) + NOISE * np.eye(300)
    y, n = known.y[:, 0], 300
    left = np.sum(KERNEL.diagonal(known.X) - covariance.diagonal() + NOISE) / NOISE
    elbo = -0.5 * (y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(covariance)[1] + n * np.log(2 * np.pi) + left)
    # Roundings, and the jitter, are counted.
    assert elbo - 0.01 <= sparse.elbo_ <= elbo
    exact = KERNEL(known.X, known.X) + NOISE * np.eye(300)
    evidence = -0.5 * (y @ np.linalg.solve(exact, y) + np.linalg.slogdet(exact)[1] + n * np.log(2 * np.pi))
    lower, upper = sparse.log_evidence_bounds_
    assert lower == sparse.elbo_
    assert lower <= evidence <= upper
    assert 0.0 < sparse.gap_ < 1.0
    assert sparse.solution_["basis_size"] == 60
    assert sparse.history_ == []
    centres = SparseGPRegressor(KERNEL, noise_variance=NOISE, basis="k-means", basis_size=20).fit(problem.X, problem.y)
    assert centres.basis_indices_ is None
    subset = SparseGPRegressor(KERNEL, noise_variance=NOISE, method="sd", basis_size=20).fit(problem.X, problem.y)
    assert subset.elbo_ is None
    assert subset.log_evidence_bounds_ is None


def test_a_gap_is_reached_or_said_to_be_missed(problem: Problem) -> None:
    model = SparseGPRegressor(KERNEL, noise_variance=NOISE, method="sggp", gap=0.1).fit(problem.X, problem.y)
    assert model.gap_ <= 0.1 * (1.0 + 1e-6)
    assert model.solution_["basis_size"] == len(model.basis_indices_) < 300
    assert model.history_[-1]["size"] == len(model.basis_indices_)
    with pytest.warns(ConvergenceWarning, match="not converged: .*larger basis.*Its error bounds are valid"):
        SparseGPRegressor(KERNEL, noise_variance=NOISE, method="sggp", basis_size=10, gap=1e-3).fit(
            problem.X, problem.y
        )


@pytest.mark.long
def test_a_basis_grows_until_the_distance_is_proven(problem: Problem, fitted: GPRegressor) -> None:
    small: dict[str, Any] = {"kernel": KERNEL, "noise_variance": NOISE, "basis_size": "auto", "target_distance": 1e-3}
    with pytest.warns(ConvergenceWarning, match="times as long as the exact model"):
        SparseGPRegressor(**{**small, "target_distance": 1e-6}).fit(problem.X, problem.y)
    model = SparseGPRegressor(**small, largest_basis=300)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(problem.X, problem.y)
    assert model.distance_ <= 1e-3 * problem.y.std() * (1.0 + 1e-12)
    off = model.predict(problem.X) - fitted.predict(problem.X)
    assert np.sqrt(np.mean(off**2)) <= model.distance_
    assert model.solution_["ladder"]["rungs"][-1]["size"] == len(model.basis_inputs_)
    relative = np.random.default_rng(0).uniform(0.2, 5.0, 300)
    by_sample = clone(model).fit(problem.X, problem.y, relative)
    np.testing.assert_allclose(by_sample.predict(problem.X_new), model.predict(problem.X_new), atol=problem.y.std())
    known = dense(problem, by_sample, NOISE * relative)
    mean = known.predictive("vfe")[0][:, 0] * problem.y.std() + problem.y.mean()
    np.testing.assert_allclose(by_sample.predict(problem.X_new), mean, atol=1e-4 * problem.y.std())
    assert by_sample.certificate_.largest_noise == pytest.approx(NOISE * relative.max())


def test_a_distance_that_is_missed_is_told(problem: Problem) -> None:
    parameters: dict[str, Any] = {"kernel": KERNEL, "noise_variance": NOISE, "basis_size": 30}
    with pytest.warns(ConvergenceWarning, match=r"distance .* \(requested: 1e-06\) with 30 basis .*tighten the proof"):
        SparseGPRegressor(**parameters, target_distance=1e-6).fit(problem.X, problem.y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SparseGPRegressor(**parameters, target_distance=1.0).fit(problem.X, problem.y)


def test_a_basis_may_be_given(problem: Problem) -> None:
    chosen = np.arange(0, 300, 7)
    parameters: dict[str, Any] = {"kernel": KERNEL, "noise_variance": NOISE}
    by_number = SparseGPRegressor(**parameters, basis=chosen).fit(problem.X, problem.y)
    np.testing.assert_array_equal(by_number.basis_indices_, chosen)
    by_list = SparseGPRegressor(**parameters, basis=chosen.tolist()).fit(problem.X, problem.y)
    expected = by_number.predict(problem.X_new)
    np.testing.assert_array_equal(by_list.predict(problem.X_new), expected)
    for points in (problem.X[chosen], problem.X[chosen][:, KEPT]):
        found = SparseGPRegressor(**parameters, basis=points).fit(problem.X, problem.y)
        assert found.basis_indices_ is None
        np.testing.assert_allclose(found.predict(problem.X_new), expected, atol=1e-6)


def test_the_subset_of_regressors_warns_once_of_its_variances(problem: Problem) -> None:
    far = problem.X_new + 100.0
    model = SparseGPRegressor(KERNEL, noise_variance=NOISE, method="sr", basis_size=40).fit(problem.X, problem.y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(far)
    with pytest.warns(OverconfidenceWarning, match="too narrow"):
        _, variance, bounds = model.predict(far, return_var=True, return_bounds=True, latent=True)
    # Nothing far away, where the exact model knows nothing.
    assert np.all(variance < 1e-3 * problem.y.var())
    assert np.all(bounds.variance_upper > 0.99 * problem.y.var())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(far, return_std=True)
        SparseGPRegressor(KERNEL, noise_variance=NOISE, basis_size=40).fit(problem.X, problem.y).predict(
            far, return_std=True
        )


def test_a_sample_of_half_the_noise_counts_twice(problem: Problem) -> None:
    """Under the same standardisation, that of a data set in which each sample is as often."""
    X, y = problem.X[:100], problem.y[:100]
    basis = X[::4]
    parameters: dict[str, Any] = {"kernel": KERNEL, "noise_variance": NOISE, "basis": basis}
    twice = SparseGPRegressor(**parameters).fit(np.repeat(X, 2, axis=0), np.repeat(y, 2))
    once = SparseGPRegressor(**parameters).fit(X, y, relative_noise=np.full(100, 0.5))
    np.testing.assert_allclose(once.predict(problem.X_new), twice.predict(problem.X_new), rtol=1e-8)
    # What s2 is relative to is the noise of new observations.
    assert once.noise_variance_ == NOISE
    plain = SparseGPRegressor(**parameters).fit(X, y)
    assert np.abs(once.predict(problem.X_new) - plain.predict(problem.X_new)).max() > 1e-3


@pytest.mark.parametrize("noise", [None, 0.5])
def test_update_is_fitting_with_all_samples_under_the_old_scale(problem: Problem, noise: float | None) -> None:
    model = SparseGPRegressor(KERNEL, noise_variance=NOISE, basis_size=40)
    assert model.partial_fit(problem.X, problem.y) is model
    model.partial_fit(problem.X_new[:10], problem.y_new[:10])
    relative = np.ones(330) if noise is None else np.r_[np.ones(310), np.full(20, noise)]
    model.update(problem.X_new[10:30], problem.y_new[10:30], None if noise is None else relative[310:])
    X, y = np.vstack([problem.X, problem.X_new[:30]])[:, KEPT], np.r_[problem.y, problem.y_new[:30]]
    mean, std = problem.X[:, KEPT].mean(axis=0), problem.X[:, KEPT].std(axis=0)
    X, T, Z = ((values - mean) / std for values in (X, problem.X_new[:, KEPT], model.basis_inputs_))
    shift, scale = problem.y.mean(), problem.y.std()
    known = Dense(KERNEL, X, (y[:, None] - shift) / scale, NOISE * relative, Z, T)
    found, bounds = model.predict(problem.X_new, return_bounds=True)
    np.testing.assert_allclose(found, shift + scale * known.predictive("vfe")[0][:, 0], atol=1e-5 * scale)
    assert np.all(np.abs(found - shift - scale * known.exact()[0][:, 0]) <= bounds.mean_error)
    assert model.certificate_.n == 330
    again = pickle.loads(pickle.dumps(model)).update(problem.X_new[30:31], problem.y_new[30:31])
    assert again.certificate_.n == 331
    with pytest.raises(InputError, match="2 targets; expected 1"):
        model.update(problem.X_new, np.column_stack([problem.y_new, problem.y_new]))
    with pytest.raises(ValueError, match="features"):
        model.update(problem.X_new[:, :2], problem.y_new)
    subset = SparseGPRegressor(KERNEL, noise_variance=NOISE, method="sd", basis_size=20).fit(problem.X, problem.y)
    with pytest.raises(InputError, match="a model by sd cannot take in new samples"):
        subset.update(problem.X_new, problem.y_new)


def test_noise_by_sample_joins_white_noise_of_the_kernel(problem: Problem) -> None:
    relative = np.random.default_rng(1).uniform(0.5, 2.0, 300)
    parts = SparseGPRegressor(KERNEL + White(0.6 * NOISE), noise_variance=0.4 * NOISE, basis_size=30)
    whole = SparseGPRegressor(KERNEL, noise_variance=NOISE, basis_size=30)
    found, expected = (model.fit(problem.X, problem.y, relative) for model in (parts, whole))
    np.testing.assert_allclose(found.predict(problem.X_new), expected.predict(problem.X_new), rtol=1e-9)


def test_tuning_does_not_change_parameters(problem: Problem) -> None:
    model = SparseGPRegressor(subset_size=150, basis_size=80).fit(problem.X, problem.y)
    assert model.kernel == "rbf"
    assert model.noise_variance is None
    assert model.hyperparameters_.subset_size == 150
    assert model.score(problem.X_new, problem.y_new) > 0.97


@pytest.mark.parametrize("objective", ["bound", pytest.param("fitc", marks=pytest.mark.slow)])
def test_tuning_on_all_samples_raises_the_evidence(problem: Problem, objective: str) -> None:
    """By a few samples' likelihood, and by all samples' bound, of the same model."""
    X, y = problem.X[:150], problem.y[:150]
    few = SparseGPRegressor(subset_size=40, basis_size=30).fit(X, y)
    all_of_them = SparseGPRegressor(optimizer=objective, basis_size=30).fit(X, y)
    assert all_of_them.kernel == "rbf"
    if objective == "bound":
        assert all_of_them.elbo_ > few.elbo_ + 1.0
    assert all_of_them.score(problem.X_new, problem.y_new) > 0.9
    fixed = SparseGPRegressor(optimizer=objective, basis_size=20, noise_variance=0.2).fit(X, y)
    assert fixed.noise_variance_ == pytest.approx(0.2)
    with pytest.raises(InputError, match="optimizer= takes 'marginal_likelihood', 'loo', 'vif' or None; got 'bound'"):
        GPRegressor(optimizer="bound").fit(X, y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"method": "nystrom"},
            "method= takes 'sd', 'sr', 'dtc', 'fitc', 'vfe', 'vif', 'sggp' or 'mpgp'; got 'nystrom'",
        ),
        ({"basis": "best"}, "`basis` must be one of .*; got 'best'"),
        ({"basis_size": 301}, "a basis has 1 to 300 samples here; got 301"),
        ({"basis_size": 301, "method": "sggp"}, "a basis has 1 to 300 samples here; got 301"),
        ({"basis_size": 0}, "basis_size= takes a whole number from 1, 'auto' or None; got 0"),
        ({"gap": 0.1}, "a duality gap is reached by a greedy basis; this one is pivoted"),
        ({"certify_passes": -1.0}, "certify_passes= takes a finite number from 0; got -1.0"),
        ({"certify_passes": math.nan}, "certify_passes= takes a finite number from 0; got nan"),
        ({"basis": [3, 300]}, "300"),
        ({"basis": [3, 3]}, "are the same point"),
        ({"basis": np.zeros((4, 2))}, r"inputs \(m, 4\); got an array of float64 and shape \(4, 2\)"),
        ({"basis": [0.5, 1.5]}, r"numbers of samples \(m,\)"),
        ({"basis": [["a", "b", "c", "d"]]}, "basis holds text"),
        ({"basis": np.full((3, 4), np.nan)}, "finite"),
        ({"basis": np.zeros((0, 4))}, "basis"),
        ({"method": "sd", "basis": "k-means"}, "needs a basis of training samples"),
        ({"kernel": "rbv"}, "rbv"),
        ({"kernel": "rbf", "optimizer": "fmin"}, "takes 'marginal_likelihood', 'loo', 'bound', 'fitc', 'vif' or None"),
        ({"noise_variance": None}, "needs a noise variance"),
        ({"method": "sggp", "candidates": 0}, "candidates"),
        ({"basis_size": "many"}, "takes a whole number from 1, 'auto' or None; got 'many'"),
        ({"basis_size": 2.5}, "takes a whole number"),
        ({"basis_size": "auto"}, "needs a target: a `target_distance`, or a `gap`"),
        ({"basis_size": "auto", "gap": 0.1, "basis": [1, 2]}, "a basis that is given does not grow"),
        ({"method": "sggp", "gap": 0.1, "basis": [1, 2]}, "a basis that is given does not grow"),
        ({"target_distance": 0.0}, "target_distance= takes a finite number above 0 or None; got 0.0"),
    ],
)
def test_bad_parameters_are_refused(problem: Problem, parameters: dict[str, Any], message: str) -> None:
    parameters = {"kernel": KERNEL, "noise_variance": NOISE, "basis_size": 20, **parameters}
    with pytest.raises(InputError, match=message):
        SparseGPRegressor(**parameters).fit(problem.X, problem.y)


@pytest.mark.parametrize(
    ("parameters", "noise"),
    [
        ({"basis_size": 301}, None),
        ({"basis_size": 301, "method": "mpgp"}, None),
        ({"basis": "best"}, None),
        ({"basis": np.zeros((4, 2))}, None),
        ({"gap": 0.1}, None),
        ({}, np.zeros(300)),
    ],
)
def test_what_can_be_is_refused_before_tuning(
    problem: Problem, parameters: dict[str, Any], noise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparseGPRegressor, "_hyperparameters", lambda *_: pytest.fail("tuned"))
    with pytest.raises(InputError):
        SparseGPRegressor(**parameters).fit(problem.X, problem.y, noise)


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (np.ones(299), r"`relative_noise` has shape \(299,\); expected \(300,\)"),
        (np.ones((300, 1)), "a value for each sample"),
        (np.r_[np.ones(200), 0.0, np.ones(99)], "positive and finite; got 0.0 for sample 200"),
        (np.r_[np.ones(299), np.nan], "got nan for sample 299"),
    ],
)
def test_noise_that_is_none_is_refused(problem: Problem, noise: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SparseGPRegressor(KERNEL, noise_variance=NOISE, basis_size=20).fit(problem.X, problem.y, noise)


def test_bad_data_are_refused(problem: Problem, sparse: SparseGPRegressor) -> None:
    with pytest.raises(NotFittedError):
        SparseGPRegressor().predict(problem.X)
    with pytest.raises(ValueError, match="NaN"):
        sparse.predict(np.full((2, 4), np.nan))
    with pytest.raises(ValueError, match="NaN"):
        SparseGPRegressor().fit(np.where(problem.X > 101.0, np.nan, problem.X), problem.y)
    with pytest.raises(ValueError, match="features"):
        sparse.predict(problem.X_new[:, :2])
    smooth = SparseGPRegressor(SquaredExponential(gamma=(1e-3,) * 3), noise_variance=1e-18, method="sd", basis_size=200)
    with pytest.raises(NumericalError, match="rounding exceeds the noise variance 1e-18. Raise it, or take fewer"):
        smooth.fit(problem.X, problem.y)


def test_pipeline_and_grid_search_over_the_basis(problem: Problem) -> None:
    X, y = problem.X[:120], problem.y[:120]
    pipeline = make_pipeline(PolynomialFeatures(2, include_bias=True), SparseGPRegressor(optimizer=None))
    assert pipeline.fit(X, y).score(X, y) > 0.8
    mean, std = pipeline.predict(X, return_std=True)
    assert mean.shape == std.shape == (120,)
    search = GridSearchCV(
        SparseGPRegressor(KERNEL, noise_variance=NOISE),
        {"basis_size": [2, 50], "method": ["vfe", "fitc"], "basis": ["uniform", None]},
        cv=3,
    )
    assert search.fit(X, y).best_params_["basis_size"] == 50
    assert cross_val_score(search.best_estimator_, X, y, cv=3).min() > 0.5
    # What goes with samples is split as they are.
    GridSearchCV(SparseGPRegressor(KERNEL, noise_variance=NOISE), {"basis_size": [20]}, cv=3).fit(
        X, y, relative_noise=np.linspace(0.5, 2.0, 120)
    )


def test_a_pickle_holds_nothing_of_the_training_set(sparse: SparseGPRegressor) -> None:
    """Basis, weights, two triangles, and the certificate."""
    assert len(pickle.dumps(sparse)) < 8 * (2 * 60**2 + 60 * 4) + 10_000


ALL: dict[str, Any] = {"return_std": True, "return_var": True, "return_bounds": True}


def assert_same(found: Any, known: Any) -> None:
    for mine, theirs in zip((*found[:3], *found[3]), (*known[:3], *known[3]), strict=True):
        np.testing.assert_array_equal(mine, theirs)


# ----------------------------------------------------------------------------------------------------------- in stores


def test_a_store_holds_the_certificate(problem: Problem, tmp_path: Path) -> None:
    relative = np.random.default_rng(0).uniform(0.5, 2.0, 300)
    model = SparseGPRegressor(KERNEL, noise_variance=NOISE, method="sggp", basis_size=50, per_round=5, store=None)
    model.fit(problem.X, problem.y, relative)
    model.save(tmp_path / "model.zarr")
    loaded = SparseGPRegressor.load(tmp_path / "model.zarr")
    assert_same(loaded.predict(problem.X_new, **ALL), model.predict(problem.X_new, **ALL))
    for name in ("basis_indices_", "basis_inputs_", "distance_", "gap_", "elbo_", "log_evidence_bounds_", "history_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name))
    assert loaded.certificate_ == model.certificate_
    # Unlike an exact one it needs no training set, so that a pickle needs no store.
    shutil.rmtree(tmp_path / "model.zarr")
    assert_same(pickle.loads(pickle.dumps(loaded)).predict(problem.X_new, **ALL), model.predict(problem.X_new, **ALL))


def test_it_is_what_the_engine_saves_and_opens(problem: Problem, sparse: SparseGPRegressor, tmp_path: Path) -> None:
    sparse.save(tmp_path / "mine.zarr")
    found = sparse_posterior(open_sparse(tmp_path / "mine.zarr"), variance=True)(problem.X_new)
    mean, _, variance, bounds = sparse.predict(problem.X_new, **ALL)
    np.testing.assert_array_equal(found["mean"][:, 0], mean)
    np.testing.assert_array_equal(found["variance"][:, 0], variance)
    np.testing.assert_array_equal(found["variance_upper"][:, 0], bounds.variance_upper)
    names = ["east", "unused", "north", "depth"]
    with pytest.warns(UserWarning, match="The feature"):
        dataset = dataset_from_arrays(
            tmp_path / "train.zarr", problem.X, problem.y, feature_names=names, target_names=["load"]
        )
    trained = train_sparse(dataset, KERNEL, NOISE, LocalExecutor(1), SparseSettings(basis_size=60))
    save_sparse(trained, tmp_path / "engine.zarr", dataset)
    shutil.rmtree(tmp_path / "train.zarr")
    loaded = SparseGPRegressor.load(tmp_path / "engine.zarr")
    assert loaded.target_names_ == ("load",)
    assert (loaded.method, loaded.basis_size, loaded.noise_variance) == ("vfe", 60, NOISE)
    np.testing.assert_array_equal(loaded.predict(problem.X_new), mean)


def test_a_training_set_in_a_temporary_folder_goes_with_the_fit(problem: Problem, tmp_path: Path) -> None:
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        X = da.from_array(problem.X, chunks=(90, 4))
        model = SparseGPRegressor(KERNEL, noise_variance=NOISE, basis_size=40).fit(X, problem.y)
        gc.collect()
        assert list(tmp_path.iterdir()) == []
    known = SparseGPRegressor(KERNEL, noise_variance=NOISE, basis_size=40).fit(problem.X, problem.y)
    np.testing.assert_allclose(model.predict(problem.X_new), known.predict(problem.X_new), atol=1e-6)


# ------------------------------------------------------------------------------------------------------------- lazily


def test_noise_of_samples_may_have_coordinates(problem: Problem, sparse: SparseGPRegressor) -> None:
    model = SparseGPRegressor(KERNEL, noise_variance=NOISE, basis_size=60)
    model.fit(table_of(problem.X, problem.y), "load", relative_noise=xr.DataArray(np.ones(300), dims="time"))
    np.testing.assert_allclose(model.predict(problem.X_new), sparse.predict(problem.X_new), rtol=1e-9)


# ----------------------------------------------------------------------------------------------------------- on workers


# ------------------------------------------------------------------------------------------------ on the command line


def test_the_command_line_reads_and_writes_the_same_models(
    problem: Problem, sparse: SparseGPRegressor, tmp_path: Path
) -> None:
    def run(*arguments: Any) -> None:
        done = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert done.exit_code == 0, done.output

    names = ["east", "unused", "north", "depth"]
    frame = pd.DataFrame(problem.X, columns=names).assign(load=problem.y)
    frame.to_parquet(tmp_path / "train.parquet")
    pd.DataFrame(problem.X_new, columns=names).to_parquet(tmp_path / "new.parquet")
    for name, more in (("train", ["--target", "load"]), ("new", [])):
        run("ingest", tmp_path / f"{name}.parquet", tmp_path / f"{name}.zarr", *more)
    # What Python saved, predicted by the command.
    model = SparseGPRegressor(KERNEL, noise_variance=NOISE, basis_size=60).fit(frame[names], frame["load"])
    model.save(tmp_path / "mine.zarr")
    run("predict", tmp_path / "mine.zarr", tmp_path / "new.zarr", "--out", tmp_path / "pred.zarr", "--variance")
    found, (mean, _, variance, bounds) = open_prediction(tmp_path / "pred.zarr"), sparse.predict(problem.X_new, **ALL)
    np.testing.assert_allclose(found.read("mean", 0, 60)[:, 0], mean, rtol=1e-9)
    np.testing.assert_allclose(found.read("variance", 0, 60)[:, 0], variance, rtol=1e-6)
    np.testing.assert_allclose(found.read("variance_upper", 0, 60)[:, 0], bounds.variance_upper, rtol=1e-6)
    # What the command trained, loaded in Python.
    write_hyperparameters(tmp_path / "hyper.json", Hyperparameters(KERNEL, NOISE))
    run(
        "sparse",
        tmp_path / "train.zarr",
        "--hyper",
        tmp_path / "hyper.json",
        "--out",
        tmp_path / "theirs.zarr",
        "--basis-size",
        60,
    )
    loaded = SparseGPRegressor.load(tmp_path / "theirs.zarr")
    assert loaded.target_names_ == ("load",)
    np.testing.assert_allclose(loaded.predict(problem.X_new), mean, rtol=1e-9)
    assert loaded.distance_ == pytest.approx(sparse.distance_, rel=1e-6)
