"""Student's t as a value: weights and densities against their formulas and independent quadrature."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from dkgp.models.noise.student import StudentT

CASES = [StudentT(2.2, 0.01), StudentT(4.0, 0.3), StudentT(60.0, 2.0)]


def convolved(t: StudentT, error: float, latent: float) -> float:
    """The density of an error, by quadrature over the function's value."""
    scale, deviation = math.sqrt(t.scale), math.sqrt(latent)

    def integrand(f: float) -> float:
        return float(stats.t(t.degrees, scale=scale).pdf(error - f) * stats.norm(scale=deviation).pdf(f))

    points = sorted({0.0, error, *(error + k * scale for k in (-5, 5)), *(k * deviation for k in (-5, 5))})
    ends = -12.0 * deviation, 12.0 * deviation
    inside = [point for point in points if ends[0] < point < ends[1]]
    return float(integrate.quad(integrand, *ends, points=inside, limit=400, epsabs=1e-13)[0])


@pytest.mark.covering
@pytest.mark.parametrize("t", CASES)
@pytest.mark.parametrize(("error", "latent"), [(0.0, 0.01), (0.3, 0.5), (-2.0, 0.02), (8.0, 1.0)])
def test_density_is_the_convolution(t: StudentT, error: float, latent: float) -> None:
    found = t.log_density(np.array([error]), np.array([latent]))[0]
    assert found == pytest.approx(math.log(convolved(t, error, latent)), abs=2e-5)


@pytest.mark.parametrize("t", CASES)
def test_density_without_a_function_is_that_of_t(t: StudentT) -> None:
    errors = np.array([0.0, 1e-3, 0.1, -1.0, 30.0])
    expected = stats.t(t.degrees, scale=math.sqrt(t.scale)).logpdf(errors)
    np.testing.assert_allclose(t.log_density(errors, np.zeros(5)), expected, atol=1e-6)


@pytest.mark.parametrize("t", CASES)
def test_scores_are_normal_where_errors_are_as_told(t: StudentT) -> None:
    rng = np.random.default_rng(1)
    latent = np.full(4000, 0.2)
    errors = np.sqrt(t.scale) * rng.standard_t(t.degrees, 4000) + np.sqrt(latent) * rng.standard_normal(4000)
    scores = t.normal_scores(errors, latent)
    assert stats.kstest(scores, "norm").pvalue > 1e-3
    assert np.array_equal(np.sign(scores), np.sign(errors))
    exact = stats.norm.isf(stats.t(t.degrees).sf(np.array([0.5, 3.0])))
    found = t.normal_scores(np.array([0.5, 3.0]) * math.sqrt(t.scale), np.zeros(2))
    np.testing.assert_allclose(found, exact, rtol=1e-5)


@pytest.mark.parametrize("t", CASES)
def test_intervals_hold_what_they_should(t: StudentT) -> None:
    latent = np.concatenate([[0.0], np.geomspace(1e-6, 50.0, 200)]) * t.scale
    half = t.half_widths(latent, 1.959963984540054)
    inside = 2.0 * stats.norm.cdf(t.normal_scores(half, latent)) - 1.0
    np.testing.assert_allclose(inside, 0.95, atol=2e-4)
    assert half[0] == pytest.approx(math.sqrt(t.scale) * stats.t(t.degrees).ppf(0.975), rel=1e-5)


@pytest.mark.parametrize("t", CASES)
def test_weights_are_the_mean_precision_given_what_is_left(t: StudentT) -> None:
    for left in (0.0, 0.2, 5.0):
        beyond = t.beyond_least(np.array([left**2]))
        # lambda given r has a gamma distribution of the shape (nu + 1) / 2 and the rate (nu + r^2 / s2) / 2.
        expected = stats.gamma((t.degrees + 1) / 2, scale=2 / (t.degrees + left**2 / t.scale)).mean()
        assert t.weights(beyond)[0] == pytest.approx(expected, rel=1e-12)
        assert t.scale / t.weights(beyond)[0] == pytest.approx(t.least + beyond[0], rel=1e-12)
    assert t.variance == pytest.approx(t.scale * stats.t(t.degrees).var(), rel=1e-12)


def test_new_observations_have_the_variance_of_t() -> None:
    t = StudentT(4.0, 0.3)
    model = t.of_observations(3)
    np.testing.assert_allclose(model.variances(np.random.default_rng(0).normal(size=(5, 3))), t.variance)
    assert model.lowest == t.least


def test_it_travels_with_hyperparameters_as_json() -> None:
    hyperparameters = Hyperparameters(SquaredExponential((1.0,)), 0.6, student_t=StudentT(4.0, 0.3))
    assert Hyperparameters.from_json(json.loads(json.dumps(hyperparameters.to_json()))) == hyperparameters


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"degrees": 2.0, "scale": 1.0}, "above 2 and finite; got 2.0"),
        ({"degrees": 4.0, "scale": 0.0}, "positive and finite; got 0.0"),
        ({"degrees": "many", "scale": 1.0}, "must be numbers"),
        ({"degrees": 4.0}, "needs degrees and scale"),
        ([4.0, 1.0], "needs degrees and scale"),
    ],
)
def test_what_is_no_distribution_is_refused(document: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        StudentT.held(document)
