"""Acquisition functions against 60 digits, in the far tails too, and against differences of a model's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from dkgp import GPRegressor
from dkgp.errors import InputError
from dkgp.estimators import (
    Acquisition,
    PredictionGradients,
    expected_improvement,
    log_expected_improvement,
    upper_confidence_bound,
)
from tests.estimators.conftest import Problem

mp = mpmath.mp.clone()
mp.dps = 60
Function = Callable[..., Acquisition]
# From where everything underflows to where the improvement is certain; across the forms' borders, -5 and -1.
SCORES = np.array([-1e150, -1e20, -1e6, -1e3, -40.0, -38.0, -5.0 - 1e-9, -5.0, -3.0, -1.0 - 1e-9, -1.0, -0.3, 0.0])
SCORES = np.concatenate([SCORES, [0.7, 5.0, 38.0, 1e3, 1e20]])


def predicted(mean: Any, std: Any, mean_gradient: Any, std_gradient: Any) -> PredictionGradients:
    mean, std = np.asarray(mean, float), np.asarray(std, float)
    none = np.zeros_like(mean)
    return PredictionGradients(
        mean, none, np.asarray(mean_gradient, float), none[:, None], std, np.asarray(std_gradient, float), None
    )


def exact(mean: float, std: float, best: float, slopes: tuple[float, float]) -> tuple[Any, Any]:
    """The expected improvement and its derivative along slopes of mean and deviation, in 60 digits."""
    mean, std, best = (mp.mpf(float(value)) for value in (mean, std, best))
    z = (mean - best) / std
    # Further out than 1e3 the distribution by its continued fraction: mpmath's own has no digits of the difference.
    if z < -100:
        t, q = -z, mp.zero
        for k in range(60, 0, -1):
            q = k / (t + q)
        density, m = mp.exp(-t * t / 2) / mp.sqrt(2 * mp.pi), 1 / (t + q)
        h, distribution = density * q * m, density * m
    else:
        density, distribution = mp.npdf(z), mp.ncdf(z)
        h = density + z * distribution
    return std * h, distribution * mp.mpf(slopes[0]) + density * mp.mpf(slopes[1])


@pytest.mark.parametrize("std", [1.0, 1e-7, 3e5])
@pytest.mark.parametrize("minimise", [False, True])
def test_logarithms_are_right_in_the_tails(std: float, minimise: bool) -> None:
    best, sign = 2.0 * std, -1.0 if minimise else 1.0
    mean = best + sign * SCORES * std
    slopes = np.array([[0.7 * std], [-0.2 * std]])
    mean_gradient, std_gradient = (np.repeat(slope[None], len(SCORES), axis=0) for slope in slopes)
    of = predicted(mean, np.full(len(SCORES), std), mean_gradient, std_gradient)
    got = log_expected_improvement(of, best, minimise=minimise)
    for i in range(len(SCORES)):
        # As the function sees it: the mean as rounded.
        value, slope = exact(sign * mean[i], std, sign * best, (sign * slopes[0, 0], slopes[1, 0]))
        np.testing.assert_allclose(got.value[i], float(mp.log(value)), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(got.gradient[i, 0], float(slope / value), rtol=1e-11)
    assert np.isfinite(got.value).all()
    assert np.isfinite(got.gradient).all()


@pytest.mark.parametrize("minimise", [False, True])
def test_expected_improvement_is_right_where_it_can_be_told(minimise: bool) -> None:
    sign = -1.0 if minimise else 1.0
    scores = SCORES[(SCORES > -37.0) & (SCORES < 1e10)]
    n = len(scores)
    got = expected_improvement(
        predicted(sign * scores * 0.5, np.full(n, 0.5), np.full((n, 1), 0.7), np.full((n, 1), -0.2)),
        0.0,
        minimise=minimise,
    )
    for i, score in enumerate(scores):
        value, slope = exact(0.5 * score, 0.5, 0.0, (sign * 0.7, -0.2))
        np.testing.assert_allclose(got.value[i], float(value), rtol=1e-12)
        np.testing.assert_allclose(got.gradient[i, 0], float(slope), rtol=1e-12)
    far = expected_improvement(predicted([-100.0], [1.0], [[1.0]], [[0.0]]), 0.0)
    assert far.value[0] == far.gradient[0, 0] == 0.0  # the plateau, on which the logarithm rises
    assert log_expected_improvement(predicted([-100.0], [1.0], [[1.0]], [[0.0]]), 0.0).gradient[0, 0] > 99.0


def test_confidence_bounds() -> None:
    of = predicted([3.0], [0.5], [[1.0, -2.0]], [[0.1, 0.2]])
    up, down = upper_confidence_bound(of, 3.0), upper_confidence_bound(of, 3.0, minimise=True)
    np.testing.assert_allclose(up.value, [4.5])
    np.testing.assert_allclose(up.gradient, [[1.3, -1.4]])
    np.testing.assert_allclose(down.value, [-1.5])
    np.testing.assert_allclose(down.gradient, [[-0.7, 2.6]])


@pytest.mark.parametrize("function", [expected_improvement, log_expected_improvement], ids=lambda f: f.__name__)
def test_nothing_is_uncertain_without_a_deviation(function: Function) -> None:
    got = function(predicted([3.0, 1.0], [0.0, 0.0], [[2.0], [2.0]], [[0.0], [0.0]]), 2.0)
    expected = [1.0, 0.0] if function is expected_improvement else [0.0, -np.inf]
    np.testing.assert_array_equal(got.value, expected)
    np.testing.assert_array_equal(got.gradient, [[2.0], [0.0]])


@pytest.mark.parametrize("minimise", [False, True])
@pytest.mark.parametrize("function", [expected_improvement, log_expected_improvement, upper_confidence_bound])
def test_gradients_of_a_model_are_differences(problem: Problem, function: Function, minimise: bool) -> None:
    X = problem.X[:, [0, 2, 3]]
    gp = GPRegressor(optimizer=None, noise_variance=0.05, tol=1e-9, variance_gap=1e-7).fit(X, problem.y)
    # Of plain improvement, where it is no number below 1e-200.
    best = (
        np.median(problem.y) if function is expected_improvement else problem.y.min() if minimise else problem.y.max()
    )
    argument = 2.0 if function is upper_confidence_bound else float(best)

    def value(points: np.ndarray) -> Acquisition:
        return function(gp.predict_gradients(points, return_std=True, latent=True), argument, minimise=minimise)

    points = problem.X_new[:4, [0, 2, 3]]
    got = value(points)
    for feature, step in enumerate((1e-3, 1e-3, 1e-5)):
        along = np.zeros(3)
        along[feature] = step
        at = [value(points + times * along).value for times in (-2, -1, 1, 2)]
        expected = (at[0] - 8.0 * at[1] + 8.0 * at[2] - at[3]) / (12.0 * step)
        scale = np.abs(got.gradient[:, feature]).max()
        np.testing.assert_allclose(got.gradient[:, feature], expected, rtol=1e-4, atol=1e-5 * scale)


def test_what_cannot_be_is_refused() -> None:
    of = predicted([3.0], [0.5], [[1.0]], [[0.1]])
    with pytest.raises(InputError, match=r"no deviations; predict with predict_gradients\(X, return_std=True\)"):
        expected_improvement(of._replace(std=None), 0.0)
    with pytest.raises(InputError, match=r"of one target; got means of shape \(1, 2\)"):
        log_expected_improvement(of._replace(mean=np.zeros((1, 2))), 0.0)
    with pytest.raises(InputError, match="best= takes a finite number; got nan"):
        expected_improvement(of, float("nan"))
    with pytest.raises(InputError, match="beta= takes a finite number from 0; got -1.0"):
        upper_confidence_bound(of, -1.0)
