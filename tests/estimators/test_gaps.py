"""Several targets with gaps, and with noise of their own: each against a dense Gaussian process of its own samples."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

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
