"""Problems in the manner of scikit-learn's gallery, solved by both: the same curves to the tolerances stated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import gaussian_process as theirs
from sklearn.gaussian_process import kernels as sk

import dkgp


def both(name: str, X: Any, y: Any, *parameters: Any, **named: Any) -> tuple[Any, Any]:
    """dkgp's and scikit-learn's estimator of a name, fitted."""
    return tuple(getattr(room, name)(*parameters, **named).fit(X, y) for room in (dkgp, theirs))  # type: ignore[return-value]


def assert_curves(models: tuple[Any, Any], X_new: np.ndarray, tolerance: float) -> None:
    """Means and standard deviations differ by less than a share standard deviations of the targets."""
    (mean, std), (their_mean, their_std) = (model.predict(X_new, return_std=True) for model in models)
    spread = float(np.std(models[1].y_train_ * models[1]._y_train_std))
    assert np.abs(mean - their_mean).max() < tolerance * spread
    assert np.abs(std - their_std).max() < tolerance * spread


def test_noise_free_and_noisy_targets(rng: np.random.Generator) -> None:
    X = np.linspace(0.0, 10.0, 1000)[:, None]
    y = np.squeeze(X * np.sin(X))
    rows = rng.choice(1000, size=6, replace=False)
    kernel = sk.ConstantKernel() * sk.RBF(1.0, (1e-2, 1e2))
    models = both("GaussianProcessRegressor", X[rows], y[rows], kernel, n_restarts_optimizer=9, random_state=0)
    assert_curves(models, X, 1e-3)
    noise = rng.uniform(0.2, 1.0, 6)
    noisy = y[rows] + noise * rng.normal(size=6)
    models = both(
        "GaussianProcessRegressor", X[rows], noisy, kernel, alpha=noise**2, n_restarts_optimizer=9, random_state=0
    )
    assert_curves(models, X, 1e-3)


@pytest.mark.parametrize(("length_scale", "noise_level"), [(100.0, 1.0), (0.1, 1e-2)])
def test_the_level_of_noise_is_estimated(length_scale: float, noise_level: float, rng: np.random.Generator) -> None:
    """Two optima: all is noise, or little is; each search ends at the one that it starts near."""
    X = rng.uniform(0.0, 5.0, (20, 1))
    y = 0.5 * np.sin(3.0 * X[:, 0]) + rng.normal(0.0, 0.3, 20)
    kernel = sk.RBF(length_scale, (1e-2, 1e3)) + sk.WhiteKernel(noise_level, (1e-10, 1e1))
    models = both("GaussianProcessRegressor", X, y, 1.0 * kernel, alpha=0.0)
    assert_curves(models, np.linspace(0.0, 5.0, 50)[:, None], 1e-2)
    np.testing.assert_allclose(*(model.log_marginal_likelihood_value_ for model in models), rtol=1e-5)


@pytest.mark.parametrize(
    "kernel",
    [
        1.0 * sk.RBF(1.0, (1e-1, 10.0)),
        1.0 * sk.RationalQuadratic(0.1, 1.0, alpha_bounds=(1e-5, 1e15)),
        1.0 * sk.ExpSineSquared(1.0, 3.0, (0.1, 10.0), (1.0, 10.0)),
        sk.ConstantKernel(0.1, (0.01, 10.0)) * sk.DotProduct(1.0, (0.1, 10.0)) ** 2,
        1.0 * sk.Matern(1.0, (1e-1, 10.0), nu=1.5),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:The optimal value", "ignore:Predicted variances")
def test_prior_and_posterior_of_each_kernel(kernel: Any, rng: np.random.Generator) -> None:
    X = rng.uniform(0.0, 5.0, (5, 1))
    grid = np.linspace(0.0, 5.0, 60)[:, None]
    y = np.sin((X[:, 0] - 2.5) ** 2)
    priors = [room.GaussianProcessRegressor(kernel, random_state=0) for room in (dkgp, theirs)]
    for one, other in zip(*(prior.predict(grid, return_std=True) for prior in priors), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(*(prior.sample_y(grid, 5) for prior in priors))
    # The quadratic kernel has a rank of three, and its posterior of five samples is of `alpha`'s making.
    models = both("GaussianProcessRegressor", X, y, kernel, alpha=1e-6, random_state=0)
    assert_curves(models, grid, 1e-2)


@pytest.mark.filterwarnings("ignore:The optimal value", "ignore:lbfgs failed")
def test_a_rising_yearly_curve_of_a_compound_kernel(rng: np.random.Generator) -> None:
    """A trend, a season that slowly changes, irregularities and noise: eleven numbers, of which one is fixed."""
    X = np.arange(1990.0, 2002.0, 1.0 / 8.0)[:, None]
    t = X[:, 0] - 1990.0
    y = 350.0 + 1.5 * t + 0.02 * t**2 + 3.0 * np.sin(2.0 * np.pi * t) + rng.normal(0.0, 0.3, t.size)
    trend = 50.0**2 * sk.RBF(50.0)
    season = 2.0**2 * sk.RBF(100.0) * sk.ExpSineSquared(1.0, 1.0, periodicity_bounds="fixed")
    irregular = 0.5**2 * sk.RationalQuadratic(1.0, 1.0)
    noise = 0.1**2 * sk.RBF(0.1) + sk.WhiteKernel(0.1**2, (1e-5, 1e5))
    kernel = trend + season + irregular + noise
    fixed = both("GaussianProcessRegressor", X, y - y.mean(), kernel, optimizer=None)
    ahead = np.arange(2000.0, 2006.0, 0.1)[:, None]
    assert_curves(fixed, ahead, 1e-7)
    models = both("GaussianProcessRegressor", X, y - y.mean(), kernel)
    values = [model.log_marginal_likelihood_value_ for model in models]
    assert values[0] == pytest.approx(values[1], abs=0.5)
    assert_curves(models, ahead, 0.05)
    assert models[0].kernel_.get_params()["k1__k1__k2__k2__periodicity"] == 1.0


def test_exclusive_or(rng: np.random.Generator) -> None:
    X = rng.normal(size=(120, 2))
    y = np.logical_xor(X[:, 0] > 0.0, X[:, 1] > 0.0)
    grid = np.stack(np.meshgrid(np.linspace(-3.0, 3.0, 12), np.linspace(-3.0, 3.0, 12)), axis=-1).reshape(-1, 2)
    for kernel in (1.0 * sk.RBF(1.15), 1.0 * sk.DotProduct(1.0) ** 2):
        models = both("GaussianProcessClassifier", X, y, kernel, warm_start=True)
        np.testing.assert_allclose(*(model.predict_proba(grid) for model in models), atol=2e-3)


def test_lines_of_equal_probability(rng: np.random.Generator) -> None:
    X = rng.uniform(-5.0, 6.0, (40, 2))
    y = (5.0 - X[:, 1] - 0.5 * X[:, 0] ** 2 > 0.0).astype(int)
    kernel = sk.ConstantKernel(0.1, (1e-5, 1e3)) * sk.DotProduct(0.1) ** 2
    grid = rng.uniform(-8.0, 8.0, (200, 2))
    mine, scikits = both("GaussianProcessClassifier", X, y, kernel)
    assert mine.log_marginal_likelihood_value_ == pytest.approx(scikits.log_marginal_likelihood_value_, rel=1e-3)
    assert np.abs(mine.predict_proba(grid) - scikits.predict_proba(grid)).max() < 0.02
    # Without an upper bound a step of the search goes where no factor is, which ends scikit-learn's.
    unbounded = sk.ConstantKernel(0.1, (1e-5, np.inf)) * sk.DotProduct(0.1) ** 2
    model = dkgp.GaussianProcessClassifier(unbounded).fit(X, y)
    assert model.log_marginal_likelihood_value_ >= mine.log_marginal_likelihood_value_ - 1.0
