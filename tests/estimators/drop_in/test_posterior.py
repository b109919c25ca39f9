"""Proven bounds of predictions in memory, attacked in 60 digits, and the engine against the dense way."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import mpmath
import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor as Theirs
from sklearn.gaussian_process import kernels as sk

from dkgp import GaussianProcessClassifier, GaussianProcessRegressor
from dkgp.errors import InputError, MemoryBudgetError, NumericalError
from dkgp.estimators.drop_in.dense import DensePosterior
from dkgp.estimators.drop_in.regressor import EnginePosterior


class Small(GaussianProcessRegressor):
    """With room for next to nothing, so that the engine has to work."""

    dense_bytes: ClassVar[int] = 2**16


def number(value: Any) -> Any:
    return mpmath.mpf(float(value))


def exactly(kernel: Any, x: Any, z: Any, same: bool = False) -> Any:
    """k(x, z) in mpmath's digits, with white noise where both are the `same` sample."""
    match kernel:
        case sk.Sum():
            return exactly(kernel.k1, x, z, same) + exactly(kernel.k2, x, z, same)
        case sk.Product():
            return exactly(kernel.k1, x, z, same) * exactly(kernel.k2, x, z, same)
        case sk.Exponentiation():
            return exactly(kernel.kernel, x, z, same) ** number(kernel.exponent)
        case sk.ConstantKernel():
            return number(kernel.constant_value)
        case sk.WhiteKernel():
            return number(kernel.noise_level) if same else mpmath.mpf(0)
        case sk.DotProduct():
            products = (number(a) * number(b) for a, b in zip(x, z, strict=True))
            return mpmath.fsum(products) + number(kernel.sigma_0) ** 2
    lengths = np.broadcast_to(np.atleast_1d(kernel.length_scale), np.shape(x))
    scaled = [(number(a) - number(b)) / number(length) for a, b, length in zip(x, z, lengths, strict=True)]
    s = mpmath.fsum(each * each for each in scaled)
    match kernel:
        case sk.ExpSineSquared():
            turns = mpmath.sqrt(s) * number(kernel.length_scale) / number(kernel.periodicity)
            return mpmath.exp(-2 * (mpmath.sin(mpmath.pi * turns) / number(kernel.length_scale)) ** 2)
        case sk.RationalQuadratic():
            return (1 + s / (2 * number(kernel.alpha))) ** -number(kernel.alpha)
        case sk.Matern():
            u = mpmath.sqrt(2 * number(kernel.nu) * s)
            return {0.5: 1, 1.5: 1 + u, 2.5: 1 + u + u * u / 3}[kernel.nu] * mpmath.exp(-u)
    return mpmath.exp(-s / 2)


def exact_posterior(gp: GaussianProcessRegressor, X_new: np.ndarray) -> tuple[list[Any], list[Any]]:
    """Means and variances of a model without `normalize_y`, in 60 digits."""
    X, y, n = gp.X_train_, gp.y_train_, len(gp.X_train_)
    noise = np.broadcast_to(gp.alpha, (n,))
    with mpmath.workdps(60):
        K = mpmath.matrix(n, n)
        for i in range(n):
            for j in range(i + 1):
                K[i, j] = K[j, i] = exactly(gp.kernel_, X[i], X[j], i == j)
            K[i, i] += number(noise[i])
        inverse = K**-1
        alpha = inverse * mpmath.matrix([float(value) for value in y])
        means, variances = [], []
        for x in X_new:
            k = mpmath.matrix([exactly(gp.kernel_, x, z) for z in X])
            means.append((k.T * alpha)[0])
            variances.append(exactly(gp.kernel_, x, x, True) - (k.T * inverse * k)[0])
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


def require_bounds(gp: GaussianProcessRegressor, X_new: np.ndarray) -> Any:
    """Compare predictions and their bounds with 60 digits; return the bounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mean, bounds = gp.predict(X_new, return_bounds=True)
        assert np.isfinite(gp.predict(X_new)).all()
    exact_means, exact_variances = exact_posterior(gp, X_new)
    for got, error, exact in zip(mean, bounds.mean_error, exact_means, strict=True):
        assert abs(number(got) - exact) <= number(error), (gp.kernel_, got, exact, error)
    for low, high, exact in zip(bounds.variance_lower, bounds.variance_upper, exact_variances, strict=True):
        assert number(low) <= exact <= number(high), (gp.kernel_, low, high, exact)
    return bounds


LEAVES: list[Callable[[float], Any]] = [
    lambda l: sk.RBF(l),
    lambda l: sk.RBF([l, 3.0 * l, 0.4 * l]),
    lambda l: sk.Matern(l, nu=0.5),
    lambda l: sk.Matern([l, l, 2.0 * l], nu=1.5),
    lambda l: sk.Matern(l, nu=2.5),
    lambda l: sk.RationalQuadratic(l, 0.4),
    lambda l: 2.5 * sk.RBF(l) * sk.Matern(2.0 * l, nu=1.5) + sk.RationalQuadratic(l, 2.0) ** 1.5,
]


@pytest.mark.parametrize("scale", [1e-160, 1e-155, 1e-80, 1.0, 1e80, 1e155, 1e200])
@pytest.mark.parametrize("leaf", range(len(LEAVES)))
def test_units_of_inputs_that_squares_do_not_take(leaf: int, scale: float, rng: np.random.Generator) -> None:
    kernel, X, X_new = LEAVES[leaf](0.7 * scale), scale * rng.normal(size=(9, 3)), scale * rng.normal(size=(3, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gp = GaussianProcessRegressor(kernel, alpha=1e-8, optimizer=None).fit(X, np.sin(X[:, 0] / scale))
        gradient = gp.log_marginal_likelihood(gp.kernel_.theta, eval_gradient=True)[1]
    bounds = require_bounds(gp, np.vstack([X_new, X[:1]]))
    assert bounds.mean_error.max() < 1e-6
    # As in units in which nothing is out of the ordinary, where scikit-learn has the gradient, too.
    theirs = Theirs(LEAVES[leaf](0.7), alpha=1e-8, optimizer=None).fit(X / scale, np.sin(X[:, 0] / scale))
    assert gradient == pytest.approx(theirs.log_marginal_likelihood(theirs.kernel_.theta, eval_gradient=True)[1])


@pytest.mark.parametrize("scale", [1e-160, 1e160])
def test_inputs_far_beyond_length_scales_and_far_below_them(scale: float, rng: np.random.Generator) -> None:
    X, X_new = scale * rng.normal(size=(7, 3)), scale * rng.normal(size=(3, 3))
    X[3] = 0.0
    for make in LEAVES:
        require_bounds(GaussianProcessRegressor(make(1.3), alpha=1e-6, optimizer=None).fit(X, X[:, 0] / scale), X_new)


@pytest.mark.parametrize(
    "kernel",
    [
        sk.WhiteKernel(0.3) * sk.DotProduct(0.7),
        sk.WhiteKernel(0.3) * sk.DotProduct(0.7) ** 2.0 + sk.RBF(20.0),
        (sk.DotProduct(30.0) + sk.WhiteKernel(1e-12)) ** 2.0 + sk.WhiteKernel(0.1),
        (sk.RBF(20.0) + sk.WhiteKernel(1e-3)) * (sk.DotProduct(0.1) + sk.WhiteKernel(0.2)) * sk.DotProduct(2.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("d", [1, 120])
def test_noise_of_many_roundings(kernel: Any, d: int, rng: np.random.Generator) -> None:
    X, X_new = rng.normal(size=(5, d)), rng.normal(size=(4, d))
    gp = GaussianProcessRegressor(kernel, alpha=1e-6, optimizer=None).fit(X, X[:, 0])
    bounds = require_bounds(gp, X_new)
    prior = GaussianProcessRegressor(kernel).predict(X_new, return_bounds=True)[1]
    with mpmath.workdps(60):
        for x, low, high in zip(X_new, prior.variance_lower, prior.variance_upper, strict=True):
            assert number(low) <= exactly(kernel, x, x, True) <= number(high)
            assert high - low < 1e-11 * high
    assert np.isfinite(bounds.mean_error).all()


@pytest.mark.parametrize("size", [1e-160, 1e-100, 1e100])
def test_products_that_underflow_or_are_large(size: float, rng: np.random.Generator) -> None:
    X, X_new = size * rng.normal(size=(6, 3)), size * rng.normal(size=(3, 3))
    for kernel in (sk.DotProduct(size), 1e300 * sk.DotProduct(size) * sk.RBF(size), sk.DotProduct(size) ** 2.0):
        for alpha in (1e-10, 1e-300):
            try:
                gp = GaussianProcessRegressor(kernel, alpha=alpha, optimizer=None).fit(X, 1e9 * rng.normal(size=6))
            except np.linalg.LinAlgError:
                continue
            require_bounds(gp, X_new)


@pytest.mark.parametrize("scale", [1e-160, 1e155, 1e200])
def test_labels_and_the_engine_in_such_units(scale: float, rng: np.random.Generator) -> None:
    class Engine(GaussianProcessRegressor):
        dense_bytes: ClassVar[int] = 64

    X, words = rng.normal(size=(20, 2)), f"length scales must be between 1e-154 and 1e153, or infinite; got {scale:g}"
    labels = (X[:, 0] > 0.0).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in (sk.RBF, sk.Matern):
            plain = GaussianProcessClassifier(kind(1.0), optimizer=None).fit(X, labels).predict_proba(X)
            far = GaussianProcessClassifier(kind(scale), optimizer=None).fit(scale * X, labels)
            np.testing.assert_allclose(far.predict_proba(scale * X), plain, rtol=1e-9)
            with pytest.raises(InputError, match=re.escape(words)):
                Engine(kind(scale), alpha=0.1, optimizer=None).fit(scale * X, X[:, 0])
        if scale > 1.0:
            with pytest.raises(NumericalError, match="prediction at test sample 0 is not finite"):
                GaussianProcessClassifier(sk.DotProduct(), optimizer=None).fit(X, labels).predict([[1e308, 1e308]])
            with pytest.raises(InputError, match="offset must be finite and positive; got inf"):
                Engine(sk.DotProduct(scale), alpha=0.1, optimizer=None).fit(X, X[:, 0])


def test_bounds_of_what_need_not_be_positive_definite(rng: np.random.Generator) -> None:
    X, X_new = rng.normal(size=(12, 2)), rng.normal(size=(3, 2))
    for kernel in (
        sk.ExpSineSquared(1.0, 2.0),
        sk.RBF(0.5) * sk.ExpSineSquared(1.0, 2.0) + sk.WhiteKernel(0.1),
        (sk.RBF(0.5) + sk.ConstantKernel(0.3)) ** 1.5,
        sk.DotProduct(3.0) ** 1.5,
    ):
        gp = GaussianProcessRegressor(kernel, alpha=1.0, optimizer=None).fit(X, X[:, 0])
        bounds = gp.predict(X_new, return_bounds=True)[1]
        assert (bounds.mean_error == np.inf).all()
        assert (bounds.variance_lower == 0.0).all()
        assert (bounds.variance_upper == np.inf).all()
    one = GaussianProcessRegressor(sk.ExpSineSquared(1.0, 2.0), alpha=1e-2, optimizer=None).fit(X[:, :1], X[:, 0])
    assert require_bounds(one, X_new[:, :1]).mean_error.max() < 1e-9


def test_a_variance_that_is_negative_is_refused(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    X = rng.normal(size=(30, 2))
    kernel = sk.ExpSineSquared(1.0, 0.9)
    monkeypatch.setattr("dkgp.estimators.drop_in.tree._PeriodicLeaf.error", lambda *_: 100.0)
    least = -np.linalg.eigvalsh(kernel(X)).min()
    gp = GaussianProcessRegressor(kernel, alpha=least + 1e-6, optimizer=None).fit(X, X[:, 0])
    with pytest.raises(NumericalError, match="exact variance at a test sample is at most -.*not positive definite"):
        gp.predict(X + 0.01, return_bounds=True)


def test_predictions_that_are_not_finite_are_refused(rng: np.random.Generator) -> None:
    X = rng.normal(size=(6, 1))
    gp = GaussianProcessRegressor(sk.DotProduct() ** 2.0, alpha=1.0, optimizer=None).fit(X, X[:, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for asked in ({}, {"return_std": True}, {"return_cov": True}):
            with pytest.raises(
                NumericalError, match="prediction at test sample 1 is not finite: entries of the kernel"
            ):
                gp.predict([[1.0], [1e308]], **asked)
        with pytest.raises(np.linalg.LinAlgError, match="not returning a positive definite matrix"):
            GaussianProcessRegressor(sk.DotProduct(1e200), optimizer=None).fit(X, X[:, 0])


@pytest.mark.parametrize("offset", [1.6e9, -3e5])
@pytest.mark.parametrize("noise", [1e-2, np.linspace(1e-2, 1e-1, 16)], ids=["common", "by sample"])
def test_beyond_memory_inputs_may_lie_anywhere(offset: float, noise: Any, rng: np.random.Generator) -> None:
    class Engine(GaussianProcessRegressor):
        dense_bytes: ClassVar[int] = 64

    kernel = 2.0 * sk.RBF([1.0, 2.0]) + sk.Matern(1.5, nu=0.5) * sk.ConstantKernel(0.5)
    X, X_new = rng.normal(size=(16, 2)), rng.normal(size=(4, 2))
    X[:, 0] += offset
    X_new[:, 0] += offset * np.array([1.0, 1.0, 1.0, 1.7])
    y = np.sin(X[:, 1])
    gp = Engine(kernel, alpha=noise, optimizer=None).fit(X, y)
    assert isinstance(gp._posterior, EnginePosterior)
    near = Engine(kernel, alpha=noise, optimizer=None).fit(X - [offset, 0.0], y)
    bounds = require_bounds(gp, X_new)
    _, without = near.predict(X_new - [offset, 0.0], return_bounds=True)
    assert (bounds.mean_error[:3] < 1.1 * without.mean_error[:3] + 1e-12).all()
    # The rounding of a far sample's own difference counts, and that alone.
    assert bounds.mean_error[3] < 1e-2


@pytest.mark.parametrize("offset", [2e4, -7e8])
def test_beyond_memory_periods_far_from_the_origin(offset: float, rng: np.random.Generator) -> None:
    class Engine(GaussianProcessRegressor):
        dense_bytes: ClassVar[int] = 64

    X = offset + rng.normal(size=(12, 1))
    X_new = np.vstack([offset * np.array([[1.7], [-0.3], [0.01]]), X[:1] + 1e-3])
    for kernel in (sk.ExpSineSquared(0.8, 2.3), sk.ExpSineSquared(1.3, 0.7) * sk.RBF(3.0)):
        gp = Engine(kernel, alpha=1e-2, optimizer=None).fit(X, np.sin(X[:, 0] - offset))
        assert require_bounds(gp, X_new).mean_error[-1] < 1e-9


@pytest.mark.parametrize("alpha", [0.0, 1e-7, np.geomspace(1e-9, 3.0, 16)], ids=["none", "common", "by sample"])
def test_beyond_memory_white_noise_is_added_to_intervals(alpha: Any, rng: np.random.Generator) -> None:
    class Engine(GaussianProcessRegressor):
        dense_bytes: ClassVar[int] = 64

    for noise in (1.7e-3, 0.3, 2.0**20 / 3.0):
        kernel = sk.ConstantKernel(2.0) * (sk.RBF(1.0) + sk.WhiteKernel(noise)) + sk.WhiteKernel(0.1)
        X, X_new = rng.normal(size=(16, 2)), rng.normal(size=(6, 2))
        require_bounds(Engine(kernel, alpha=alpha, optimizer=None).fit(X, np.sin(X[:, 1])), X_new)


def test_beyond_memory_dot_products_are_of_inputs_as_they_are(rng: np.random.Generator) -> None:
    class Engine(GaussianProcessRegressor):
        dense_bytes: ClassVar[int] = 64

    kernel = sk.DotProduct(1.0) + sk.RBF(1.0)
    X, X_new = 30.0 + rng.normal(size=(20, 2)), 30.0 + rng.normal(size=(4, 2))
    require_bounds(Engine(kernel, alpha=1.0, optimizer=None).fit(X, np.sin(X[:, 1])), X_new)


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
    monkeypatch.setattr("dkgp.estimators.drop_in.dense._HELD_ENTRIES", 1)
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
        with pytest.raises(
            MemoryBudgetError, match=r"of 120 samples takes [\d.]+ MiB; the class attribute `dense_bytes`"
        ):
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
