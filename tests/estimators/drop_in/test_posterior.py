"""What is proven of predictions in memory, attacked in 60 digits; and the engine against the dense way."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import mpmath
import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor as Theirs
from sklearn.gaussian_process import kernels as sk

from dkgp import GaussianProcessRegressor
from dkgp.errors import InputError, MemoryBudgetError
from dkgp.estimators.drop_in.engine import EnginePosterior
from dkgp.estimators.drop_in.posterior import DensePosterior


class Small(GaussianProcessRegressor):
    """With room for next to nothing, so that the engine has to work."""

    dense_bytes: ClassVar[int] = 2**16


def exactly(kernel: Any, x: Any, z: Any) -> Any:
    """k(x, z) in mpmath's digits, of RBF, Matern 5/2 and constants; gamma is a double, as dkgp's kernels have it."""
    if isinstance(kernel, sk.Product):
        return exactly(kernel.k1, x, z) * exactly(kernel.k2, x, z)
    if isinstance(kernel, sk.ConstantKernel):
        return mpmath.mpf(kernel.constant_value)
    gamma = np.broadcast_to(0.5 / np.square(np.atleast_1d(kernel.length_scale)), x.shape)
    s = sum(
        mpmath.mpf(float(g)) * (mpmath.mpf(float(a)) - mpmath.mpf(float(b))) ** 2
        for g, a, b in zip(gamma, x, z, strict=True)
    )
    if isinstance(kernel, sk.Matern):
        u = mpmath.sqrt(10 * s)
        return (1 + u + u * u / 3) * mpmath.exp(-u)
    return mpmath.exp(-s)


def exact_posterior(gp: GaussianProcessRegressor, X_new: np.ndarray) -> tuple[list[Any], list[Any]]:
    """Means and variances of a model without `normalize_y`, in 60 digits."""
    X, y, n = gp.X_train_, gp.y_train_, len(gp.X_train_)
    noise = np.broadcast_to(gp.alpha, (n,))
    with mpmath.workdps(60):
        K = mpmath.matrix(n, n)
        for i in range(n):
            for j in range(i + 1):
                K[i, j] = K[j, i] = exactly(gp.kernel_, X[i], X[j])
            K[i, i] += mpmath.mpf(float(noise[i]))
        inverse = K**-1
        alpha = inverse * mpmath.matrix([float(value) for value in y])
        means, variances = [], []
        for x in X_new:
            k = mpmath.matrix([exactly(gp.kernel_, x, z) for z in X])
            means.append((k.T * alpha)[0])
            variances.append(exactly(gp.kernel_, x, x) - (k.T * inverse * k)[0])
    return means, variances


@pytest.mark.parametrize(
    ("kernel", "alpha"),
    [
        (sk.RBF(1.0), 1e-10),
        (sk.RBF([0.7, 1.5]), np.geomspace(1e-10, 1e-2, 30)),
        (sk.ConstantKernel(50.0) * sk.Matern(2.0, nu=2.5), 1e-10),
    ],
)
def test_bounds_hold_and_are_narrow_at_next_to_no_noise(kernel: Any, alpha: Any, rng: np.random.Generator) -> None:
    X = rng.uniform(-2.0, 2.0, (30, 2))
    X[7] = X[3] + 1e-9  # nearly twins, whose eigenvalue is the noise
    X_new = np.vstack([rng.uniform(-3.0, 3.0, (6, 2)), X[:2], X[3:4] + 1e-5])
    gp = GaussianProcessRegressor(kernel, alpha=alpha, optimizer=None).fit(X, 4.0 + np.sin(X[:, 0]) * X[:, 1])
    mean, std, bounds = gp.predict(X_new, return_std=True, return_bounds=True)
    exact_means, exact_variances = exact_posterior(gp, X_new)
    for got, error, exact in zip(mean, bounds.mean_error, exact_means, strict=True):
        assert abs(mpmath.mpf(float(got)) - exact) <= error
    for low, high, exact in zip(bounds.variance_lower, bounds.variance_upper, exact_variances, strict=True):
        assert low <= exact <= high
    assert np.abs(mean - np.array([float(value) for value in exact_means])).max() < 1e-8
    assert bounds.mean_error.max() < 1e-4
    assert (bounds.variance_upper - bounds.variance_lower).max() < 1e-7 * float(kernel.diag(X)[0])
    # The standard deviation is a central one, as scikit-learn's, and rounding alone can take it out of the interval.
    covariance = gp.predict(X_new, return_cov=True)[1]
    np.testing.assert_allclose(std**2, np.diagonal(covariance).clip(0.0), atol=1e-12 * float(kernel.diag(X)[0]))


def test_bounds_hold_of_solutions_that_are_wrong(rng: np.random.Generator) -> None:
    """They are of residuals, whoever made the solution and the factor."""
    X, X_new = rng.uniform(-2.0, 2.0, (20, 1)), rng.uniform(-2.5, 2.5, (8, 1))
    gp = GaussianProcessRegressor(sk.Matern(1.0, nu=2.5), alpha=1e-4, optimizer=None).fit(X, np.sin(X[:, 0]))
    exact_means, exact_variances = exact_posterior(gp, X_new)
    for size in (1e-9, 1e-6, 1e-3):
        posterior = copy.deepcopy(gp._posterior)
        assert isinstance(posterior, DensePosterior)
        posterior.coefficients *= 1.0 + size * rng.normal(size=posterior.coefficients.shape)
        posterior.factor *= 1.0 + size * rng.normal(size=posterior.factor.shape)
        mean, (error, low, high) = posterior.mean(X_new), posterior.bounds(X_new)
        missed = [abs(mpmath.mpf(float(got)) - exact) for got, exact in zip(mean[:, 0], exact_means, strict=True)]
        assert all(distance <= bound for distance, bound in zip(missed, error[:, 0], strict=True))
        assert max(missed) > 1e-3 * size  # it was an attack
        assert all(a <= exact <= b for a, exact, b in zip(low, exact_variances, high, strict=True))


def test_many_test_samples_are_predicted_some_at_a_time(waves: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, _ = waves
    gp = GaussianProcessRegressor(sk.RBF() + sk.WhiteKernel(0.1), optimizer=None).fit(X, y)
    X_new = np.linspace(-3.0, 3.0, 400).reshape(200, 2)
    whole = gp.predict(X_new, return_std=True, return_bounds=True)
    monkeypatch.setattr("dkgp.estimators.drop_in.posterior._HELD_ENTRIES", 1)
    pieces = gp.predict(X_new, return_std=True, return_bounds=True)
    for one, other in zip((*whole[:2], *whole[2]), (*pieces[:2], *pieces[2]), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.05, atol=1e-12)


def test_nothing_is_proven_of_a_users_kernel_or_without_noise(waves: Any) -> None:
    X, y, X_new = waves

    class Mine(sk.RBF):
        pass

    for gp in (
        GaussianProcessRegressor(Mine(), alpha=0.1, optimizer=None),
        GaussianProcessRegressor(sk.Matern(nu=0.5), alpha=0.0, optimizer=None),
    ):
        _, bounds = gp.fit(X, y).predict(X_new, return_bounds=True)
        assert (bounds.mean_error == np.inf).all()
        assert (bounds.variance_lower == 0.0).all()


@pytest.mark.parametrize(
    ("kernel", "alpha", "normalize_y"),
    [
        (2.0 * sk.RBF([1.0, 0.7]) + sk.WhiteKernel(0.02), 1e-10, True),
        (sk.Matern(1.0, nu=1.5) + sk.DotProduct(1.0), np.linspace(0.01, 0.2, 120), False),
        (sk.RBF(1.0) * sk.RationalQuadratic(2.0, 1.0) + sk.ConstantKernel(0.5), 0.01, True),
    ],
)
def test_the_engine_and_the_dense_way(kernel: Any, alpha: Any, normalize_y: bool, waves: Any) -> None:
    X, y, X_new = waves
    y = np.column_stack([y, np.cos(X[:, 1])])
    gp = Small(kernel, alpha=alpha, normalize_y=normalize_y, optimizer=None).fit(X, y)
    assert isinstance(gp._posterior, EnginePosterior)
    mean, std, bounds = gp.predict(X_new, return_std=True, return_bounds=True)
    theirs = Theirs(kernel, alpha=alpha, normalize_y=normalize_y, optimizer=None).fit(X, y)
    their_mean, their_std = theirs.predict(X_new, return_std=True)
    np.testing.assert_allclose(mean, their_mean, atol=1e-4)
    np.testing.assert_allclose(std, their_std, rtol=0.01)
    assert (np.abs(mean - their_mean) <= bounds.mean_error + 1e-9).all()
    assert (bounds.variance_lower <= their_std**2 * (1.0 + 1e-9)).all()
    assert (their_std**2 <= bounds.variance_upper * (1.0 + 1e-9)).all()
    assert gp.alpha_.shape == theirs.alpha_.shape
    np.testing.assert_allclose(gp.alpha_, theirs.alpha_, atol=1e-2 * np.abs(theirs.alpha_).max())


def test_beyond_memory_is_refused_with_numbers(waves: Any) -> None:
    X, y, X_new = waves
    gp = Small(sk.RBF() + sk.WhiteKernel(0.1), optimizer=None).fit(X, y)
    for refused in (
        lambda: gp.L_,
        lambda: gp.predict(X_new, return_cov=True),
        lambda: gp.sample_y(X_new),
        lambda: gp.log_marginal_likelihood(gp.kernel_.theta, eval_gradient=True),
    ):
        with pytest.raises(MemoryBudgetError, match=r"of 120 samples takes \d MiB; the class attribute `dense_bytes`"):
            refused()
    for kernel, words in ((sk.Matern(nu=0.7), "nu = 0.7"), (sk.PairwiseKernel(), "PairwiseKernel is none")):
        with pytest.raises(InputError, match=words):
            Small(kernel).fit(X, y)
    with pytest.raises(InputError, match=r"alpha= is 0, and the kernel has no WhiteKernel"):
        Small(sk.RBF(), alpha=0.0, optimizer=None).fit(X, y)


def test_a_search_on_a_subset_says_so(waves: Any) -> None:
    X, y, _ = waves
    kernel = sk.ConstantKernel() * sk.RBF() + sk.WhiteKernel()
    with pytest.warns(UserWarning, match=r"hyperparameters are searched on 36 of 120 samples"):
        gp = Small(kernel, random_state=0, normalize_y=True).fit(X, y)
    assert not np.allclose(gp.kernel_.theta, kernel.theta)
    assert np.mean((gp.predict(X) - y) ** 2) < 0.1 * np.var(y)
