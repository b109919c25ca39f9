"""`GPRegressor(mean=...)`: under the kernel, or a regressor of scikit-learn's before it."""

from __future__ import annotations

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

KERNEL = SquaredExponential((2.0, 2.0), 0.1)


def truth(X: np.ndarray) -> np.ndarray:
    return np.asarray(5.0 + 2.0 * X[:, 0] - X[:, 1] + np.sin(2.0 * X[:, 0]))


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 10.0, (300, 2))
    return X, truth(X) + 0.1 * rng.standard_normal(300), rng.uniform(11.0, 15.0, (30, 2))


def fitted(data: Any, mean: Any, **more: Any) -> GPRegressor:
    return GPRegressor(KERNEL, noise_variance=1e-3, mean=mean, **more).fit(*data[:2])


def test_beyond_the_data(data: Any) -> None:
    errors = {
        mean: np.abs(fitted(data, mean).predict(data[2]) - truth(data[2])).max()
        for mean in ("centred", "constant", "linear")
    }
    assert errors["linear"] < 3.0
    assert errors["centred"] > 8.0
    assert errors["constant"] > 8.0
    assert np.abs(fitted(data, LinearRegression()).predict(data[2]) - truth(data[2])).max() < 2.0


def test_a_regressor_is_fitted_first_and_the_process_on_its_residuals(data: Any) -> None:
    X, y, T = data
    gp = fitted(data, Ridge(alpha=3.0), variance_gap=1e-6)
    first = Ridge(alpha=3.0).fit(X, y)
    second = GPRegressor(KERNEL, noise_variance=1e-3, variance_gap=1e-6).fit(X, y - first.predict(X))
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
def test_the_bound_has_the_rounding_of_the_sum(data: Any, offset: float, framed: bool) -> None:
    X, _, T = data
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


def test_bounds_of_several_targets_are_widened_by_their_own_sums(data: Any) -> None:
    X, y, T = data
    offsets = np.array([2e9, 0.0])
    both = np.column_stack([y, y]) + offsets
    gp = GPRegressor(KERNEL, noise_variance=1e-3, mean=Offset(offsets)).fit(X, both)
    mean, bounds = gp.predict(T, return_bounds=True)
    error = np.asarray(bounds.mean_error)
    assert (error[:, 0] - error[:, 1] > 1e-8).all()
    np.testing.assert_allclose(error[:, 0] - error[:, 1], np.asarray(mean)[:, 0] * 2.0**-53, rtol=0.05)


def test_frames_and_several_targets(data: Any) -> None:
    X, y, T = data
    frame, both = pd.DataFrame(X, columns=["a", "b"]), pd.DataFrame({"u": y, "v": -3.0 * y})
    for mean in ("linear", LinearRegression()):
        gp = GPRegressor(KERNEL, noise_variance=1e-3, mean=mean).fit(frame, both)
        predicted = gp.predict(pd.DataFrame(T, columns=["a", "b"], index=range(5, 35)))
        assert list(predicted.columns) == ["u", "v"]
        assert list(predicted.index) == list(range(5, 35))
        np.testing.assert_allclose(predicted["v"], -3.0 * predicted["u"], rtol=1e-4)
        np.testing.assert_allclose(predicted["u"], fitted(data, mean).predict(T), rtol=1e-4)


@pytest.mark.parametrize("mean", ["linear", LinearRegression()], ids=["linear", "regressor"])
def test_copies_and_pickles(data: Any, mean: Any) -> None:
    gp = fitted(data, mean)
    expected = gp.predict(data[2], return_std=True)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(gp)).predict(data[2], return_std=True), expected)
    np.testing.assert_array_equal(clone(gp).fit(*data[:2]).predict(data[2], return_std=True), expected)


def test_a_store_keeps_a_linear_mean_and_says_that_it_keeps_no_regressor(data: Any, tmp_path: Path) -> None:
    gp = fitted(data, "linear")
    gp.save(tmp_path / "model.zarr")
    loaded = GPRegressor.load(tmp_path / "model.zarr")
    assert loaded.mean == "linear"
    np.testing.assert_array_equal(loaded.predict(data[2]), gp.predict(data[2]))
    for each in (gp, loaded):
        each.update(data[2], truth(data[2]))
    np.testing.assert_allclose(loaded.predict(data[0]), gp.predict(data[0]), atol=1e-6)
    with pytest.raises(InputError, match=r"hold the regressor of mean=, LinearRegression\. Pickle the estimator"):
        fitted(data, LinearRegression()).save(tmp_path / "other.zarr")
    assert not (tmp_path / "other.zarr").exists()


def test_lazy_predictions_know_the_mean(data: Any) -> None:
    X, y, T = data
    gp = GPRegressor(KERNEL, noise_variance=1e-3, mean="linear").fit(da.from_array(X, chunks=(100, 2)), y)
    np.testing.assert_allclose(
        gp.predict(da.from_array(T, chunks=(10, 2))).compute(), fitted(data, "linear").predict(T), rtol=1e-6
    )


def test_what_does_not_go_together_is_refused(data: Any) -> None:
    X, y, _ = data
    lazy = da.from_array(X, chunks=(100, 2))
    for estimator, words in (
        (GPRegressor(mean="cubic"), "mean= is one of 'centred', 'constant', 'linear', or a regressor .* got 'cubic'"),
        (GPRegressor(mean=3.0), r"or a regressor of scikit-learn's; got 3\.0"),
        (GPRegressor(mean="linear", noise_model="auto"), "found about a centred mean, and mean='linear'"),
        (GPRegressor(mean="linear", likelihood="student-t"), "found about a centred mean"),
        (GPRegressor(mean="linear", optimizer="loo"), "the objective loo knows no `mean` linear"),
    ):
        with pytest.raises(InputError, match=words):
            estimator.fit(X, y)
    with pytest.raises(InputError, match=r"take mean=\"linear\" for dask arrays"):
        GPRegressor(KERNEL, noise_variance=1e-3, mean=LinearRegression()).fit(lazy, y)
    with pytest.raises(InputError, match=r"take mean=\"linear\" for dask arrays"):
        fitted(data, LinearRegression()).predict(lazy)
    with pytest.raises(InputError, match="nothing is known of the derivatives of the regressor of mean=, LinearReg"):
        fitted(data, LinearRegression()).predict_gradients(X)
