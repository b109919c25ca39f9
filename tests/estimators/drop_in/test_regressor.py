"""`dkgp.GaussianProcessRegressor` beside scikit-learn's class of that name."""

from __future__ import annotations

import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor as Theirs
from sklearn.gaussian_process import kernels as sk
from sklearn.model_selection import GridSearchCV

from dkgp import GaussianProcessRegressor
from dkgp.errors import InputError

KERNEL = sk.ConstantKernel() * sk.RBF([1.0, 1.0]) + sk.WhiteKernel(0.1)


def both(*parameters: Any, **named: Any) -> tuple[GaussianProcessRegressor, Theirs]:
    return GaussianProcessRegressor(*parameters, **named), Theirs(*parameters, **named)


def test_the_signature() -> None:
    mine, theirs = both()
    assert mine.get_params() == theirs.get_params()
    with pytest.raises(TypeError):
        GaussianProcessRegressor(None, 1e-3)  # type: ignore[misc]  # keyword-only there, and here


@pytest.mark.parametrize("normalize_y", [False, True])
def test_the_same_search_and_predictions(normalize_y: bool, waves: Any) -> None:
    X, y, X_new = waves
    mine, theirs = both(KERNEL, normalize_y=normalize_y, n_restarts_optimizer=1, random_state=3)
    mine.fit(X, y)
    theirs.fit(X, y)
    np.testing.assert_allclose(mine.kernel_.theta, theirs.kernel_.theta, atol=2e-3)
    assert mine.log_marginal_likelihood_value_ == pytest.approx(theirs.log_marginal_likelihood_value_, rel=1e-6)
    theta = theirs.kernel_.theta + 0.1
    for one, other in zip(
        mine.log_marginal_likelihood(theta, eval_gradient=True),
        theirs.log_marginal_likelihood(theta, eval_gradient=True),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    mine.kernel = theirs.kernel = theirs.kernel_
    mine.optimizer = theirs.optimizer = None
    mine.fit(X, y)
    theirs.fit(X, y)
    for asked in ({"return_std": True}, {"return_cov": True}):
        for one, other in zip(mine.predict(X_new, **asked), theirs.predict(X_new, **asked), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-10)
    np.testing.assert_allclose(mine.L_, theirs.L_, atol=1e-12)
    np.testing.assert_allclose(mine.alpha_, theirs.alpha_, atol=1e-8 * np.abs(theirs.alpha_).max())
    np.testing.assert_allclose(mine.sample_y(X_new, 3, random_state=1), theirs.sample_y(X_new, 3, random_state=1))
    assert mine.score(X, y) == pytest.approx(theirs.score(X, y))


def test_fixed_numbers_stay_and_others_keep_to_their_bounds(waves: Any) -> None:
    X, y, _ = waves
    kernel = sk.ConstantKernel(2.0, "fixed") * sk.Matern(0.5, (0.4, 0.6), nu=1.5) + sk.WhiteKernel(0.3, (0.2, 0.5))
    with pytest.warns(match="close to the specified upper bound"):
        gp = GaussianProcessRegressor(kernel).fit(X, y)
    parameters = gp.kernel_.get_params()
    assert parameters["k1__k1__constant_value"] == 2.0
    assert 0.4 <= parameters["k1__k2__length_scale"] <= 0.6 * (1.0 + 1e-12)
    assert gp.kernel_.theta.shape == (2,)
    assert kernel.theta[0] == np.log(0.5)  # the kernel that was given stays as it is


def test_parameters_of_kernels_are_searched_by_grid(waves: Any) -> None:
    X, y, _ = waves
    gp = GaussianProcessRegressor(sk.ConstantKernel(4.0) * sk.RBF(), alpha=0.1, normalize_y=True, optimizer=None)
    assert clone(gp).set_params(kernel__k2__length_scale=0.3).kernel.k2.length_scale == 0.3
    grid = GridSearchCV(gp, {"kernel__k2__length_scale": [0.01, 1.0], "kernel": [gp.kernel, sk.Matern(nu=1.5)]}, cv=3)
    with pytest.raises(ValueError, match="k2"):  # a Matern kernel has no second part
        GridSearchCV(gp, grid.param_grid, cv=3, error_score="raise").fit(X, y)
    best = GridSearchCV(gp, {"kernel__k2__length_scale": [0.01, 1.0]}, cv=3).fit(X, y)
    assert best.best_params_ == {"kernel__k2__length_scale": 1.0}


def test_an_optimizer_of_the_users(waves: Any) -> None:
    X, y, _ = waves
    asked: list[np.ndarray] = []

    def optimizer(obj_func: Any, initial_theta: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, float]:
        asked.append(initial_theta)
        value, gradient = obj_func(initial_theta)
        stepped = initial_theta - 1e-6 * gradient
        assert obj_func(stepped, eval_gradient=False) < value
        return stepped, obj_func(stepped, eval_gradient=False)

    gp = GaussianProcessRegressor(KERNEL, optimizer=optimizer, n_restarts_optimizer=2, random_state=0).fit(X, y)
    assert len(asked) == 3
    bounds = KERNEL.bounds
    assert all(((bounds[:, 0] <= theta) & (theta <= bounds[:, 1])).all() for theta in asked)
    assert gp.log_marginal_likelihood(gp.kernel_.theta) == pytest.approx(gp.log_marginal_likelihood())


@pytest.mark.parametrize("n_targets", [None, 1, 3])
def test_before_fit(n_targets: int | None, waves: Any) -> None:
    mine, theirs = both(sk.RBF(0.5) + sk.WhiteKernel(0.3), n_targets=n_targets)
    for asked in ({"return_std": True}, {"return_cov": True}):
        for one, other in zip(mine.predict(waves[2], **asked), theirs.predict(waves[2], **asked), strict=True):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(mine.sample_y(waves[2], 2), theirs.sample_y(waves[2], 2))
    bounds = mine.predict(waves[2], return_bounds=True)[1]
    exact = Fraction(0.5) * 2 + Fraction(0.3)
    assert all(
        Fraction(low) <= exact <= Fraction(high)
        for low, high in zip(bounds.variance_lower.ravel(), bounds.variance_upper.ravel(), strict=True)
    )
    assert (bounds.variance_upper - bounds.variance_lower < 2e-15).all()


def test_a_data_frame_a_pickle_and_the_array_itself(waves: Any) -> None:
    X, y, X_new = waves
    frame = pd.DataFrame(X, columns=["east", "north"])
    gp = GaussianProcessRegressor(KERNEL, optimizer=None).fit(frame, y)
    assert gp.feature_names_in_.tolist() == ["east", "north"]
    copy = pickle.loads(pickle.dumps(gp))
    new = pd.DataFrame(X_new, columns=["east", "north"])
    np.testing.assert_array_equal(copy.predict(new), gp.predict(new))
    shared = GaussianProcessRegressor(KERNEL, optimizer=None, copy_X_train=False).fit(X, y)
    assert shared.X_train_ is X


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"kernel": "rbf"}, "kernel= takes a kernel of sklearn.gaussian_process.kernels or None; got 'rbf'"),
        ({"optimizer": "adam"}, "optimizer= takes 'fmin_l_bfgs_b', a function or None; got 'adam'"),
        ({"n_restarts_optimizer": -1}, "n_restarts_optimizer= takes a whole number from 0; got -1"),
        ({"normalize_y": "yes"}, "normalize_y= takes True or False; got 'yes'"),
        ({"alpha": -1.0}, "alpha= takes a finite number from 0, or one for each sample; got -1.0"),
        ({"alpha": np.ones(7)}, r"alpha must be a scalar or an array with same number of entries as y. \(7 != 120\)"),
        ({"alpha": np.full(120, -1.0)}, "alpha= takes a finite number from 0, or one for each sample; got -1.0"),
        ({"n_targets": 0}, "n_targets= takes a whole number from 1"),
        ({"n_targets": 2}, "different from the parameter `n_targets`: got 1 != 2"),
        ({"kernel": sk.RBF([1.0, 2.0, 3.0])}, "Anisotropic kernel must have the same number of dimensions as data"),
    ],
)
def test_refused(parameters: dict[str, Any], words: str, waves: Any) -> None:
    with pytest.raises(InputError, match=words):
        GaussianProcessRegressor(**parameters).fit(*waves[:2])
