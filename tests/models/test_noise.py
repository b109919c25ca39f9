"""Noise models and Student's t as values: formulas, independent quadrature, ends, JSON, and refusals."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from dkgp.codec import from_json, to_json
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from dkgp.models.noise import NoiseModel, StudentT

LINEAR = NoiseModel("linear", -2.0, (0.5, -1.0), lowest=0.01, highest=1.5)
GP = NoiseModel(
    "gp",
    -1.0,
    (0.7, -0.4, 0.1),
    lowest=0.02,
    highest=3.0,
    kernel=SquaredExponential(gamma=(0.3, 0.1)),
    basis=((0.0, 0.0), (1.0, -1.0), (0.5, 2.0)),
)


def by_formula(model: NoiseModel, x: np.ndarray) -> float:
    log_variance = model.offset
    for j, weight in enumerate(model.weights):
        if model.basis is None:
            log_variance += weight * x[j]
        else:
            (p, q), z = (0.3, 0.1), model.basis[j]
            log_variance += weight * math.exp(-p * (x[0] - z[0]) ** 2 - q * (x[1] - z[1]) ** 2)
    return min(max(math.exp(log_variance), model.lowest), model.highest)


@pytest.mark.parametrize("model", [LINEAR, GP])
def test_variances_are_those_of_the_formula(model: NoiseModel, rng: np.random.Generator) -> None:
    inputs = 3.0 * rng.standard_normal((5000, 2))
    variances = model.variances(inputs)
    np.testing.assert_allclose(variances, [by_formula(model, x) for x in inputs], rtol=1e-12)
    assert model.lowest <= variances.min() < variances.max() <= model.highest
    np.testing.assert_array_equal(model.beyond_least(inputs), variances - model.lowest)
    # No bit of a row depends on which rows are asked for together.
    np.testing.assert_array_equal(model.variances(inputs[4000:4700]), variances[4000:4700])


def test_a_linear_model_does_not_run_away() -> None:
    ends = LINEAR.variances(np.array([[-1e6, 1e6], [1e6, -1e6], [1e308, -1e308]]))
    np.testing.assert_allclose(ends, [0.01, 1.5, 1.5])


@pytest.mark.parametrize("law", [{"noise_model": LINEAR}, {"noise_model": GP}, {"student_t": StudentT(4.0, 0.3)}])
def test_it_travels_with_hyperparameters_as_json(law: dict[str, Any]) -> None:
    hyperparameters = Hyperparameters(SquaredExponential(gamma=(1.0, 2.0)), 0.6, **law)
    again = Hyperparameters.from_json(json.loads(json.dumps(hyperparameters.to_json(), allow_nan=False)))
    assert again == hyperparameters
    assert not {*law} & {*Hyperparameters(hyperparameters.kernel, 0.1).to_json()}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "cubic"}, "linear, gp, student-t; got 'cubic'"),
        ({"offset": math.inf}, "must be finite"),
        ({"weights": [0.1, math.nan]}, "must be finite"),
        ({"weights": ["much"]}, r"`weights\[0\]` must be a number; got 'much'"),
        ({"lowest": 0.0}, "must be positive"),
        ({"lowest": 2.0}, "at most its greatest; got 2 and 1.5"),
        ({"kind": "gp"}, "needs a kernel"),
        ({"offset": None}, "`offset` is missing"),
    ],
)
def test_a_malformed_noise_model_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        from_json(NoiseModel, {**to_json(LINEAR), **change})


def test_missing_names_and_other_features_are_named() -> None:
    with pytest.raises(InputError, match="a noise model: `offset`, `weights` are missing; got `kind`, `lowest`"):
        from_json(NoiseModel, {"kind": "linear", "lowest": 1.0, "highest": 2.0})
    with pytest.raises(InputError, match=r"object; got \[\]"):
        from_json(NoiseModel, [])
    with pytest.raises(InputError, match="is of 2 features; got inputs of shape"):
        LINEAR.variances(np.zeros((3, 5)))
    with pytest.raises(InputError, match="is of 2 features, the kernel of 3"):
        Hyperparameters(SquaredExponential(gamma=(1.0,) * 3), 0.1, noise_model=LINEAR)
    with pytest.raises(InputError, match="as many points of its features as its 3 weights"):
        from_json(NoiseModel, {**to_json(GP), "basis": [[0.0, 0.0]]})


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
def test_scores_are_normal_for_errors_of_the_distribution(t: StudentT) -> None:
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
def test_intervals_hold_their_share_of_errors(t: StudentT) -> None:
    latent = np.concatenate([[0.0], np.geomspace(1e-6, 50.0, 200)]) * t.scale
    half = t.half_widths(latent, 1.959963984540054)
    inside = 2.0 * stats.norm.cdf(t.normal_scores(half, latent)) - 1.0
    np.testing.assert_allclose(inside, 0.95, atol=2e-4)
    assert half[0] == pytest.approx(math.sqrt(t.scale) * stats.t(t.degrees).ppf(0.975), rel=1e-5)


@pytest.mark.parametrize("t", CASES)
def test_weights_are_the_mean_precision_given_the_residual(t: StudentT) -> None:
    for residual in (0.0, 0.2, 5.0):
        beyond = t.beyond_least(np.array([residual**2]))
        # lambda given r has a gamma distribution of the shape (nu + 1) / 2 and the rate (nu + r^2 / s2) / 2.
        expected = stats.gamma((t.degrees + 1) / 2, scale=2 / (t.degrees + residual**2 / t.scale)).mean()
        assert t.weights(beyond)[0] == pytest.approx(expected, rel=1e-12)
        assert t.scale / t.weights(beyond)[0] == pytest.approx(t.least + beyond[0], rel=1e-12)
    assert t.variance == pytest.approx(t.scale * stats.t(t.degrees).var(), rel=1e-12)


def test_new_observations_have_the_variance_of_t() -> None:
    t = StudentT(4.0, 0.3)
    model = t.of_observations(3)
    np.testing.assert_allclose(model.variances(np.random.default_rng(0).normal(size=(5, 3))), t.variance)
    assert model.lowest == t.least


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"degrees": 2.0, "scale": 1.0}, "above 2 and finite; got 2.0"),
        ({"degrees": 4.0, "scale": 0.0}, "positive and finite; got 0.0"),
        ({"degrees": "many", "scale": 1.0}, "`degrees` must be a number; got 'many'"),
        ({"degrees": 4.0}, "a t distribution: `scale` is missing"),
        ([4.0, 1.0], "must be a JSON object"),
    ],
)
def test_a_malformed_distribution_is_refused(document: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        StudentT.held(document)
