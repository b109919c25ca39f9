"""Targets before they are fitted: gaps, which split them into groups, and a regressor's mean."""

from __future__ import annotations

import logging
import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.linear_model import LinearRegression, Ridge

from dkgp import GPRegressor
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential

KERNEL, S2 = SquaredExponential((1.0, 0.5)), 0.02
Data = tuple[np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def data() -> Data:
    """Five targets, of which the first, third and fourth have the same gaps and the last has none."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (160, 2))
    waves = [np.sin((1.0 + k) * X[:, 0]) + 10.0**k * X[:, 1] for k in range(5)]
    Y = np.column_stack(waves) + 0.1 * rng.standard_normal((160, 5))
    Y[rng.uniform(size=160) < 0.4, 0] = np.nan
    Y[np.isnan(Y[:, 0]), 2] = Y[np.isnan(Y[:, 0]), 3] = np.nan
    Y[:100, 1] = np.nan
    return X, Y, rng.uniform(-2.0, 2.0, (20, 2))


def dense(X: np.ndarray, y: np.ndarray, T: np.ndarray, v: np.ndarray | float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of an observation of the samples whose target is known, in the target's units."""
    known = ~np.isnan(y)
    X, y = X[known], y[known]
    v = np.broadcast_to(v, known.shape)[known] / y.var()
    x, t = (X - X.mean(axis=0)) / X.std(axis=0), (T - X.mean(axis=0)) / X.std(axis=0)
    inverse = np.linalg.inv(KERNEL(x, x) + np.diag(S2 + v))
    k = KERNEL(x, t)
    mean = k.T @ inverse @ (y - y.mean()) / y.std()
    variance = 1.0 + S2 - np.einsum("ij,ij->j", k, inverse @ k)
    return mean * y.std() + y.mean(), variance * y.var()


def estimator(**more: Any) -> GPRegressor:
    return GPRegressor(KERNEL, noise_variance=S2, tol=1e-10, variance_gap=1e-6, **more)


def test_each_target_is_the_process_of_its_own_samples(data: Data, caplog: pytest.LogCaptureFixture) -> None:
    X, Y, T = data
    with caplog.at_level(logging.INFO, logger="dkgp.estimators"):
        gp = estimator().fit(X, Y)
    assert gp.groups_ == (("y0", "y2", "y3"), ("y1",), ("y4",))
    count = int((~np.isnan(Y[:, 0])).sum())
    assert f"3 of 5 targets share {count} of 160 samples: y0, y2, y3" in caplog.text
    mean, variance, bounds = gp.predict(T, return_var=True, return_bounds=True)
    assert mean.shape == variance.shape == bounds.mean_error.shape == (20, 5)
    for target in range(5):
        expected, its_variance = dense(X, Y[:, target], T)
        scale = np.nanstd(Y[:, target])
        assert (np.abs(mean[:, target] - expected) <= bounds.mean_error[:, target] + 1e-10 * scale).all()
        assert bounds.mean_error[:, target].max() < 1e-5 * scale
        np.testing.assert_allclose(variance[:, target], its_variance, rtol=1e-5)


def test_targets_with_the_same_gaps_are_solved_together(data: Data) -> None:
    X, Y, _ = data
    gp = estimator(solver="cg").fit(X, Y)
    together = gp.parts_[0]
    assert together.solution_["p"] == 3
    assert together.solution_["n"] == int((~np.isnan(Y[:, 0])).sum())
    alone = estimator(solver="cg").fit(X[~np.isnan(Y[:, 0])], Y[~np.isnan(Y[:, 0]), 0])
    assert together.solution_["column_passes"] < 2.0 * alone.solution_["column_passes"]
    assert len(together.certificate_.residual_norm) == 3


def test_frames_names_and_the_order_of_targets(data: Data) -> None:
    X, Y, T = data
    names = ["u", "v", "w", "x", "z"]
    gp = estimator().fit(pd.DataFrame(X, columns=["a", "b"]), pd.DataFrame(Y, columns=names))
    assert gp.groups_ == (("u", "w", "x"), ("v",), ("z",))
    assert list(gp.feature_names_in_) == ["a", "b"]
    predicted, std = gp.predict(pd.DataFrame(T, columns=["a", "b"], index=range(7, 27)), return_std=True)
    assert list(predicted.columns) == names
    assert list(std.index) == list(range(7, 27))
    np.testing.assert_allclose(np.asarray(predicted), estimator().fit(X, Y).predict(T), rtol=1e-10)
    lazily = gp.predict(da.from_array(T, chunks=(8, 2)))
    assert lazily.chunks == ((8, 8, 4), (5,))
    np.testing.assert_allclose(lazily.compute(), np.asarray(predicted), rtol=1e-10)


def test_inputs_beyond_memory(data: Data) -> None:
    X, Y, T = data
    gp = estimator().fit(da.from_array(X, chunks=(50, 2)), Y)
    np.testing.assert_allclose(gp.predict(T), estimator().fit(X, Y).predict(T), rtol=1e-9)


def test_copies_pickles_and_new_fits(data: Data) -> None:
    X, Y, T = data
    gp = estimator().fit(X, Y)
    expected = gp.predict(T)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(gp)).predict(T), expected)
    np.testing.assert_array_equal(clone(gp).fit(X, Y).predict(T), expected)
    whole = np.nan_to_num(Y)
    gp.fit(X, whole)
    assert not hasattr(gp, "parts_")
    np.testing.assert_array_equal(gp.predict(T), estimator().fit(X, whole).predict(T))
    gp.fit(X, Y)
    assert not hasattr(gp, "solution_")
    np.testing.assert_array_equal(gp.predict(T), expected)
    assert gp.score(T, expected) == 1.0
    gradients = gp.predict_gradients(T, return_std=True)
    np.testing.assert_array_equal(gradients.mean, expected)
    for column, (part, place) in enumerate([(0, 0), (1, 0), (0, 1), (0, 2), (2, 0)]):
        its_own = gp.parts_[part].predict_gradients(T, return_std=True)
        np.testing.assert_array_equal(gradients.mean_gradient[:, column], its_own.mean_gradient[:, place])
        assert gradients.std is not None
        assert its_own.std is not None
        np.testing.assert_array_equal(gradients.std[:, column], its_own.std[:, place])


def test_an_update_goes_to_the_groups_that_it_tells_of(data: Data) -> None:
    X, Y, T = data
    gp = estimator().fit(X[:150], Y[:150])
    new = Y[150:].copy()
    new[:, [0, 2, 3]] = np.where(np.arange(10)[:, None] < 4, [1.0, 2.0, 3.0], np.nan)
    before = gp.predict(T)
    gp.partial_fit(X[150:], new)
    after = gp.predict(T)
    assert [part.solution_["n"] for part in gp.parts_] == [
        int((~np.isnan(Y[:150, 0])).sum()) + 4,
        50 + 10,
        150 + 10,
    ]
    assert (np.abs(after - before).max(axis=0) > 0.0).all()
    new[0, 2] = np.nan
    with pytest.raises(InputError, match="sample 0 has some of the targets y0, y2, y3, which were fitted together"):
        gp.update(X[150:], new)


def test_noise_of_each_target(data: Data) -> None:
    X, Y, T = data
    rng = np.random.default_rng(1)
    whole, scales = np.nan_to_num(Y), 10.0 ** (2 * np.arange(5))
    noise = rng.uniform(0.0, 0.5, whole.shape) * scales
    for targets in (whole, Y):
        gp = estimator().fit(X, targets, sample_noise=noise)
        assert [len(group) for group in gp.groups_] == [1] * 5
        mean = gp.predict(T)
        for target in range(5):
            expected, _ = dense(X, targets[:, target], T, noise[:, target])
            np.testing.assert_allclose(mean[:, target], expected, rtol=1e-5, atol=1e-6 * np.sqrt(scales[target]))
    weights = rng.uniform(0.5, 2.0, 160)
    gp = estimator().fit(X, Y, sample_weight=weights)
    expected, _ = dense(X, Y[:, 1], T, S2 * (1.0 / weights - 1.0) * np.nanvar(Y[:, 1]))
    np.testing.assert_allclose(gp.predict(T)[:, 1], expected, rtol=1e-5)


def test_hyperparameters_are_each_groups_own(data: Data) -> None:
    X, Y, _ = data
    gp = GPRegressor().fit(X, Y)
    assert len({part.noise_variance_ for part in gp.parts_}) == 3
    linear = GPRegressor(KERNEL, noise_variance=S2, mean="linear").fit(X, Y)
    assert set(linear.parts_[0].solution_["mean"]["coefficients"]) == {"y0", "y1", "y2"}


def test_what_cannot_be_left_out_is_said(data: Data, tmp_path: Any) -> None:
    X, Y, T = data
    row, column = Y.copy(), Y.copy()
    row[[7, 9]] = np.nan
    column[:, 1] = np.nan
    for targets, words in (
        (row, "sample 7 has no target at all, and so have 2 in all; leave such samples out"),
        (column, "the target 'y1' is known of 0 samples; a target needs 2 at least"),
    ):
        with pytest.raises(InputError, match=words):
            estimator().fit(X, targets)
    with pytest.raises(ValueError, match="NaN"):
        estimator().fit(X, Y[:, 0])
    with pytest.raises(InputError, match=r"give \(n, p\), a column for each"):
        estimator().fit(X, Y, sample_noise=np.ones(160))
    with pytest.raises(InputError, match=r"sample_noise has shape \(160, 2\); expected \(160, 5\)"):
        estimator().fit(X, Y, sample_noise=np.ones((160, 2)))
    with pytest.raises(InputError, match="X has 159 samples, and y 160"):
        estimator().fit(X[1:], Y)
    gp = estimator().fit(X, Y)
    with pytest.raises(InputError, match=r"are 3 models; a store holds one\. Save each of parts_"):
        gp.save(tmp_path / "model.zarr")
    gp.parts_[1].save(tmp_path / "part.zarr")
    np.testing.assert_array_equal(GPRegressor.load(tmp_path / "part.zarr").predict(T), gp.predict(T)[:, [1]])


WIDE = SquaredExponential((2.0, 2.0), 0.1)


def truth(X: np.ndarray) -> np.ndarray:
    return np.asarray(5.0 + 2.0 * X[:, 0] - X[:, 1] + np.sin(2.0 * X[:, 0]))


@pytest.fixture(scope="module")
def curve() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 10.0, (300, 2))
    return X, truth(X) + 0.1 * rng.standard_normal(300), rng.uniform(11.0, 15.0, (30, 2))


def fitted(curve: Any, mean: Any, **more: Any) -> GPRegressor:
    return GPRegressor(WIDE, noise_variance=1e-3, mean=mean, **more).fit(*curve[:2])


def test_beyond_the_data(curve: Any) -> None:
    errors = {
        mean: np.abs(fitted(curve, mean).predict(curve[2]) - truth(curve[2])).max()
        for mean in ("centred", "constant", "linear")
    }
    assert errors["linear"] < 3.0
    assert errors["centred"] > 8.0
    assert errors["constant"] > 8.0
    assert np.abs(fitted(curve, LinearRegression()).predict(curve[2]) - truth(curve[2])).max() < 2.0


def test_a_regressor_is_fitted_first_and_the_process_on_its_residuals(curve: Any) -> None:
    X, y, T = curve
    gp = fitted(curve, Ridge(alpha=3.0), variance_gap=1e-6)
    first = Ridge(alpha=3.0).fit(X, y)
    second = GPRegressor(WIDE, noise_variance=1e-3, variance_gap=1e-6).fit(X, y - first.predict(X))
    mean, std, bounds = gp.predict(T, return_std=True, return_bounds=True)
    expected, its_std, its_bounds = second.predict(T, return_std=True, return_bounds=True)
    np.testing.assert_array_equal(mean, expected + first.predict(T))
    np.testing.assert_array_equal(std, its_std)
    np.testing.assert_allclose(bounds.mean_error, its_bounds.mean_error, atol=1.1 * 2.0**-53 * np.abs(mean).max())
    np.testing.assert_allclose(
        gp.sample_y(T, 3, random_state=1), second.sample_y(T, 3, random_state=1) + first.predict(T)[:, None]
    )
    gp.update(T, truth(T))
    second.update(T, truth(T) - first.predict(T))
    np.testing.assert_allclose(gp.predict(X), second.predict(X) + first.predict(X), rtol=1e-10)
    assert not hasattr(gp.mean, "coef_")


class Offset(RegressorMixin, BaseEstimator):
    """A regressor that predicts a number for each target, whatever the inputs."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def fit(self, X: Any, y: Any) -> Offset:
        return self

    def predict(self, X: Any) -> np.ndarray:
        return np.broadcast_to(self.values, (len(X), *np.shape(self.values))).copy()


@pytest.mark.parametrize("offset", [1.1e9, -3.7e5, 1e-7, 7.3e12, 1.9e-300])
@pytest.mark.parametrize("framed", [False, True])
def test_the_bound_has_the_rounding_of_the_sum(curve: Any, offset: float, framed: bool) -> None:
    X, _, T = curve
    kernel, residuals = SquaredExponential((0.5, 0.5), 1.0), np.sin(X[:, 0])
    means, y, named = Offset(offset), residuals + offset, pd.DataFrame(T, columns=["a", "b"], index=range(5, 35))
    if framed:
        X, T = pd.DataFrame(X, columns=["a", "b"]), named
    gp = GPRegressor(kernel, noise_variance=1e-1, mean=means).fit(X, y)
    mean, bounds = gp.predict(T, return_bounds=True)
    alone = GPRegressor(kernel, noise_variance=1e-1).fit(X, y - offset)
    expected, its = alone.predict(T, return_bounds=True)
    off = [
        float(abs(Fraction(sum_) - Fraction(part) - Fraction(offset)) + Fraction(error))
        for sum_, part, error in zip(np.asarray(mean), np.asarray(expected), np.asarray(its.mean_error), strict=True)
    ]
    assert (np.asarray(bounds.mean_error) >= off).all()
    assert np.asarray(bounds.mean_error).max() <= np.max(its.mean_error) * 1.001 + 1.2e-16 * np.abs(mean).max()
    if framed:
        assert list(bounds.mean_error.index) == list(named.index)
        assert bounds.mean_error.name == its.mean_error.name


def test_bounds_of_several_targets_are_widened_by_their_own_sums(curve: Any) -> None:
    X, y, T = curve
    offsets = np.array([2e9, 0.0])
    both = np.column_stack([y, y]) + offsets
    gp = GPRegressor(WIDE, noise_variance=1e-3, mean=Offset(offsets)).fit(X, both)
    mean, bounds = gp.predict(T, return_bounds=True)
    error = np.asarray(bounds.mean_error)
    assert (error[:, 0] - error[:, 1] > 1e-8).all()
    np.testing.assert_allclose(error[:, 0] - error[:, 1], np.asarray(mean)[:, 0] * 2.0**-53, rtol=0.05)


def test_frames_and_several_targets(curve: Any) -> None:
    X, y, T = curve
    frame, both = pd.DataFrame(X, columns=["a", "b"]), pd.DataFrame({"u": y, "v": -3.0 * y})
    for mean in ("linear", LinearRegression()):
        gp = GPRegressor(WIDE, noise_variance=1e-3, mean=mean).fit(frame, both)
        predicted = gp.predict(pd.DataFrame(T, columns=["a", "b"], index=range(5, 35)))
        assert list(predicted.columns) == ["u", "v"]
        assert list(predicted.index) == list(range(5, 35))
        np.testing.assert_allclose(predicted["v"], -3.0 * predicted["u"], rtol=1e-4)
        np.testing.assert_allclose(predicted["u"], fitted(curve, mean).predict(T), rtol=1e-4)


@pytest.mark.parametrize("mean", ["linear", LinearRegression()], ids=["linear", "regressor"])
def test_copies_and_pickles(curve: Any, mean: Any) -> None:
    gp = fitted(curve, mean)
    expected = gp.predict(curve[2], return_std=True)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(gp)).predict(curve[2], return_std=True), expected)
    np.testing.assert_array_equal(clone(gp).fit(*curve[:2]).predict(curve[2], return_std=True), expected)


def test_a_store_keeps_a_linear_mean_and_says_that_it_keeps_no_regressor(curve: Any, tmp_path: Path) -> None:
    gp = fitted(curve, "linear")
    gp.save(tmp_path / "model.zarr")
    loaded = GPRegressor.load(tmp_path / "model.zarr")
    assert loaded.mean == "linear"
    np.testing.assert_array_equal(loaded.predict(curve[2]), gp.predict(curve[2]))
    for each in (gp, loaded):
        each.update(curve[2], truth(curve[2]))
    np.testing.assert_allclose(loaded.predict(curve[0]), gp.predict(curve[0]), atol=1e-6)
    with pytest.raises(InputError, match=r"hold the regressor of mean=, LinearRegression\. Pickle the estimator"):
        fitted(curve, LinearRegression()).save(tmp_path / "other.zarr")
    assert not (tmp_path / "other.zarr").exists()


def test_lazy_predictions_know_the_mean(curve: Any) -> None:
    X, y, T = curve
    gp = GPRegressor(WIDE, noise_variance=1e-3, mean="linear").fit(da.from_array(X, chunks=(100, 2)), y)
    np.testing.assert_allclose(
        gp.predict(da.from_array(T, chunks=(10, 2))).compute(), fitted(curve, "linear").predict(T), rtol=1e-6
    )


def test_what_does_not_go_together_is_refused(curve: Any) -> None:
    X, y, _ = curve
    lazy = da.from_array(X, chunks=(100, 2))
    for estimator, words in (
        (GPRegressor(mean="cubic"), "mean= is one of 'centred', .* or a number, .* or a regressor .* got 'cubic'"),
        (GPRegressor(mean=[3.0]), r"or a regressor of scikit-learn's; got \[3\.0\]"),
        (GPRegressor(mean=3.0, likelihood="student-t"), "found about a centred mean, and mean=3.0"),
        (GPRegressor(mean="linear", noise_model="auto"), "found about a centred mean, and mean='linear'"),
        (GPRegressor(mean="linear", likelihood="student-t"), "found about a centred mean"),
        (GPRegressor(mean="linear", optimizer="loo"), "the objective loo knows no `mean` linear"),
    ):
        with pytest.raises(InputError, match=words):
            estimator.fit(X, y)
    with pytest.raises(InputError, match=r"take mean=\"linear\" for dask arrays"):
        GPRegressor(WIDE, noise_variance=1e-3, mean=LinearRegression()).fit(lazy, y)
    with pytest.raises(InputError, match=r"take mean=\"linear\" for dask arrays"):
        fitted(curve, LinearRegression()).predict(lazy)
    with pytest.raises(InputError, match="nothing is known of the derivatives of the regressor of mean=, LinearReg"):
        fitted(curve, LinearRegression()).predict_gradients(X)


def test_covariates_enter_the_mean_alone(tmp_path: Path) -> None:
    """Arrays, frames and dask arrays, columns by index and name, stored, pickled and updated models agree."""
    rng = np.random.default_rng(7)
    X, T = (
        np.column_stack([rng.uniform(0.0, high, n), rng.uniform(0.0, 4.0, (n, 2))])
        for n, high in ((160, 5.0), (20, 15.0))
    )
    y = 3.0 + 6.0 * X[:, 0] + np.sin(3.0 * X[:, 1]) + 0.1 * rng.standard_normal(160)
    frame = pd.DataFrame(X, columns=["height", "a", "b"])
    options: dict[str, Any] = {"noise_variance": 1e-3, "mean": "constant", "tol": 1e-10, "variance_gap": 1e-6}
    kernel = SquaredExponential((1.0, 0.3), 0.1)
    gp = GPRegressor(kernel, covariates=[0], **options).fit(X, y)
    x, t = (X - X.mean(axis=0)) / X.std(axis=0), (T - X.mean(axis=0)) / X.std(axis=0)
    H, h = (np.column_stack([np.ones(len(rows)), rows[:, 0]]) for rows in (x, t))
    inverse, k = np.linalg.inv(kernel(x[:, 1:], x[:, 1:]) + 1e-3 * np.eye(160)), kernel(t[:, 1:], x[:, 1:])
    G, scaled = H.T @ inverse @ H, (y - y.mean()) / y.std()
    beta = np.linalg.solve(G, H.T @ inverse @ scaled)
    R = h - k @ inverse @ H
    expected = (h @ beta + k @ inverse @ (scaled - H @ beta)) * y.std() + y.mean()
    variance = 0.1 - np.einsum("ij,ij->i", k @ inverse, k) + np.einsum("ij,ij->i", R, np.linalg.solve(G, R.T).T)
    mean, deviation = gp.predict(T, return_std=True, latent=True)
    np.testing.assert_allclose(mean, expected, rtol=1e-8)
    np.testing.assert_allclose(deviation, np.sqrt(variance) * y.std(), rtol=1e-5)
    draws = gp.sample_y(T, 3, random_state=1)
    by_name = GPRegressor(kernel, covariates=["height"], **options).fit(frame, y)
    rows = pd.DataFrame(T, columns=["height", "a", "b"])
    np.testing.assert_allclose(by_name.predict(rows), mean, rtol=1e-11)
    lazy = GPRegressor(kernel, covariates=["x0"], store=str(tmp_path / "store"), **options)
    np.testing.assert_allclose(lazy.fit(da.from_array(X, chunks=(50, 3)), y).predict(T), mean, rtol=1e-9)
    np.testing.assert_allclose(gp.predict(da.from_array(T, chunks=(7, 3))).compute(), mean, rtol=1e-9)
    gp.save(tmp_path / "model")
    for again in (GPRegressor.load(tmp_path / "model"), pickle.loads(pickle.dumps(gp))):
        np.testing.assert_allclose(again.predict(T), mean, rtol=1e-12)
        np.testing.assert_allclose(again.sample_y(T, 3, random_state=1), draws, rtol=1e-6)
    first = GPRegressor(kernel, covariates=[0], **options).fit(X[:100], y[:100])
    assert first.update(X[100:], y[100:]).solution_["mean"]["coefficients"]["y"].keys() == {"constant", "x0"}
    tuned = GPRegressor(covariates=[0], mean="constant", subset_size=100).fit(X, y)
    assert tuned.kernel_.n_features == 2
    for wrong, words in (
        (GPRegressor(kernel, covariates=[0], noise_variance=1e-3), "has the covariates x0, which enter a mean"),
        (
            GPRegressor(covariates=["z"], mean="linear"),
            "covariates= takes names or indices of features; got 'z' of 'x0'",
        ),
        (GPRegressor(covariates="x0", mean="linear"), "takes a sequence of names or indices of features; got 'x0'"),
        (GPRegressor(covariates=[7], mean="linear"), "got 7 of 'x0', 'x1', 'x2'"),
    ):
        with pytest.raises(InputError, match=words):
            wrong.fit(X, y)
    with pytest.raises(InputError, match="the mean of this model has the covariates x0"):
        gp.predict_gradients(T)
