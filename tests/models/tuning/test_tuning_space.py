"""Names, bounds, fixed values, priors and starts of a hyperparameter search."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, stats

from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters, LogNormal, tune
from dkgp.models.tuning.families import ArdSquaredExponential
from dkgp.models.tuning.objectives import LogMarginalLikelihood
from dkgp.models.tuning.space import SearchSpace, as_prior, search_space

FloatArray = NDArray[np.float64]
NAMES = ("lat", "lon", "day")


@pytest.fixture
def waves(rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    inputs = rng.standard_normal((120, 3))
    return inputs, np.sin(2.0 * inputs[:, 0]) + 0.5 * inputs[:, 1] + 0.2 * rng.standard_normal(120)


def space_of(learn_variance: bool = True, **given: Any) -> SearchSpace:
    family = ArdSquaredExponential(np.zeros((2, 3)), learn_variance=learn_variance, feature_names=NAMES)
    return search_space(family, NAMES, **given)


def test_parameters_have_names_to_address_them_by() -> None:
    assert space_of().names == ("gamma.lat", "gamma.lon", "gamma.day", "variance", "noise_variance")
    assert space_of(False).names == ("gamma.lat", "gamma.lon", "gamma.day", "noise_variance")
    assert space_of().features == (0, 1, 2, None, None)
    np.testing.assert_array_equal(space_of().gamma_like, [True, True, True, False, False])


def test_patterns_choose_parameters_and_the_last_one_counts() -> None:
    space = space_of(bounds={"gamma*": (0.01, 10.0), "gamma.l?n": (0.1, 1.0)}, fixed={"noise_variance": 0.25})
    np.testing.assert_allclose(np.exp(space.bounds[:3]), [[0.01, 10.0], [0.1, 1.0], [0.01, 10.0]])
    np.testing.assert_array_equal(space.free, [True, True, True, True, False])
    full = space.full(np.arange(4.0))
    np.testing.assert_allclose(full, [0.0, 1.0, 2.0, 3.0, math.log(0.25)])
    inside = space.within(np.full(5, 3.0))
    np.testing.assert_allclose(inside, [math.log(10.0), 0.0, math.log(10.0), 3.0, math.log(0.25)])


def test_a_feature_with_a_pattern_for_a_name_can_be_named() -> None:
    names = ("a", "b[0]", "*")
    family = ArdSquaredExponential(np.zeros((2, 3)), learn_variance=False, feature_names=names)
    space = search_space(family, names, fixed={"gamma.b[0]": 1.0})
    np.testing.assert_array_equal(space.free, [True, False, True, True])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bounds": {"gama*": (0.1, 1.0)}}, "no hyperparameter is called 'gama.'; there are gamma.lat, .*noise_var"),
        ({"fixed": {"lat": 1.0}}, "no hyperparameter is called 'lat'"),
        ({"priors": {"alpha": LogNormal(1.0, 1.0)}}, "no hyperparameter is called 'alpha'"),
        ({"bounds": {"variance": (1.0, 1.0)}}, "low < high; got 1:1"),
        ({"bounds": {"variance": (0.0, 1.0)}}, "the bounds of 'variance' must be positive and finite"),
        ({"fixed": {"variance": -1.0}}, "the value of 'variance' must be positive and finite; got -1.0"),
        ({"fixed": {"variance": math.nan}}, "positive and finite; got nan"),
        (
            {"fixed": {"gamma.lat": 1.0}, "bounds": {"gamma*": (0.1, 1.0)}},
            "'gamma.lat' is held fixed and also given bo",
        ),
        ({"fixed": {"gamma.*": 1.0}, "priors": {"gamma.day": LogNormal(1.0, 1.0)}}, "'gamma.day' .* given a prior"),
    ],
)
def test_names_and_values_that_do_not_fit_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        space_of(**given)


def test_prior_is_the_density_of_the_logarithm() -> None:
    prior = LogNormal(0.1, 0.7)
    expected = stats.norm(math.log(0.1), 0.7)
    for value in (0.001, 0.1, 5.0):
        density, slope = prior.log_density(math.log(value))
        assert density == pytest.approx(expected.logpdf(math.log(value)))
        # scipy's log-normal is the density of the value itself.
        assert density - math.log(value) == pytest.approx(stats.lognorm(0.7, scale=0.1).logpdf(value))
        step = 1e-6
        ahead, behind = (prior.log_density(math.log(value) + side)[0] for side in (step, -step))
        assert slope == pytest.approx((ahead - behind) / (2.0 * step), rel=1e-6, abs=1e-6)


def test_priors_are_read_from_text() -> None:
    assert as_prior(" LogNormal( 0.1 ,2e-1 ) ") == LogNormal(0.1, 0.2)
    assert as_prior(str(LogNormal(0.1, 1.0))) == LogNormal(0.1, 1.0)


@pytest.mark.parametrize(
    "text", ["normal(0, 1)", "lognormal(1)", "lognormal(a, b)", "lognormal(1, 2, 3)", "lognormal(1, 2) + 1", ""]
)
def test_other_texts_are_no_priors(text: str) -> None:
    with pytest.raises(InputError, match=r"lognormal\(MEDIAN, SIGMA\)"):
        as_prior(text)


@pytest.mark.parametrize(("median", "sigma"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (math.inf, 1.0), (1.0, math.nan)])
def test_inadmissible_priors_are_refused(median: float, sigma: float) -> None:
    with pytest.raises(InputError, match="log-normal prior must be positive and finite"):
        LogNormal(median, sigma)
    with pytest.raises(InputError, match="log-normal prior must be positive and finite"):
        as_prior(f"lognormal({median}, {sigma})")


def test_fixed_values_are_held_and_the_others_are_as_good_as_they_get(waves: tuple[FloatArray, FloatArray]) -> None:
    inputs, targets = waves
    found = tune(inputs, targets, fixed={"noise_variance": 0.1, "gamma.x2": 0.02}, tolerance=1e-6)
    assert found.noise_variance == pytest.approx(0.1)
    assert found.gamma[2] == pytest.approx(0.02)
    family = ArdSquaredExponential(inputs, learn_variance=False, feature_names=NAMES)
    likelihood = LogMarginalLikelihood(family, targets[:, None])

    def negative(parameters: FloatArray) -> float:
        outcome = likelihood(np.array([*parameters, math.log(0.02), math.log(0.1)]))
        return -outcome[0]

    reference = optimize.minimize(negative, np.log([0.5, 0.1]), method="Nelder-Mead", options={"fatol": 1e-6})
    assert found.log_marginal_likelihood == pytest.approx(-reference.fun, abs=1e-3)


def test_nothing_free_is_one_evaluation(waves: tuple[FloatArray, FloatArray]) -> None:
    found = tune(*waves, fixed={"gamma*": 0.5, "noise_variance": 0.1})
    assert (found.evaluations, found.converged, found.warnings) == (1, True, ())
    np.testing.assert_allclose(found.gamma, 0.5)
    family = ArdSquaredExponential(waves[0], learn_variance=False, feature_names=NAMES)
    outcome = LogMarginalLikelihood(family, waves[1][:, None])(np.log([0.5, 0.5, 0.5, 0.1]))
    assert found.log_marginal_likelihood == pytest.approx(outcome[0])


def test_bounds_are_kept_and_told(waves: tuple[FloatArray, FloatArray]) -> None:
    free = tune(*waves)
    assert free.gamma[0] > 0.1
    found = tune(*waves, bounds={"gamma.x0": (0.01, 0.1)})
    assert found.gamma[0] == pytest.approx(0.1)
    assert any(text.startswith("on its upper bound, 0.1: gamma of 'x0'") for text in found.warnings)


def test_priors_move_the_optimum_to_where_the_sum_is_largest(waves: tuple[FloatArray, FloatArray]) -> None:
    inputs, targets = waves
    prior = LogNormal(5.0, 0.1)
    found = tune(inputs, targets, priors={"gamma.x0": prior, "gamma.x[12]": "lognormal(0.1, 1)"}, tolerance=1e-6)
    free = tune(inputs, targets, tolerance=1e-6)
    assert free.gamma[0] < found.gamma[0] < 5.0
    assert free.log_prior is None
    family = ArdSquaredExponential(inputs, learn_variance=False, feature_names=NAMES)
    likelihood = LogMarginalLikelihood(family, targets[:, None])
    known = [stats.norm(math.log(5.0), 0.1), *(2 * [stats.norm(math.log(0.1), 1.0)])]

    def parts(parameters: FloatArray) -> tuple[float, float]:
        outcome = likelihood(parameters)
        return outcome[0], sum(float(one.logpdf(x)) for one, x in zip(known, parameters[:3], strict=True))

    here = np.log([*found.gamma, found.noise_variance])
    assert found.log_marginal_likelihood == pytest.approx(parts(here)[0])
    assert found.log_prior == pytest.approx(parts(here)[1])
    reference = optimize.minimize(lambda point: -sum(parts(point)), here + 0.2, method="L-BFGS-B")
    assert sum(parts(here)) == pytest.approx(-reference.fun, abs=1e-3)
    np.testing.assert_allclose(here[0], reference.x[0], atol=1e-2)


def test_a_warm_start_takes_few_evaluations(waves: tuple[FloatArray, FloatArray]) -> None:
    cold = tune(*waves, learn_variance=True)
    warm = tune(*waves, learn_variance=True, start=cold)
    assert warm.evaluations <= max(4, cold.evaluations // 3)
    assert warm.log_marginal_likelihood == pytest.approx(cold.log_marginal_likelihood, abs=1e-2)
    starts = [parameter.start for parameter in warm.parameters if parameter.value > 0.0]
    assert isinstance(cold.kernel, SquaredExponential)
    gammas = [gamma for gamma in cold.gamma if gamma > 0.0]
    np.testing.assert_allclose(starts, [*gammas, cold.kernel.variance, cold.noise_variance])
    assert [item.name for item in warm.parameters] == [item.name for item in cold.parameters]
    assert (warm.gamma == 0.0).tolist() == (cold.gamma == 0.0).tolist()


def test_starts_that_do_not_fit_are_refused(waves: tuple[FloatArray, FloatArray]) -> None:
    with pytest.raises(InputError, match="are for 2 features, but the data have 3"):
        tune(*waves, start=Hyperparameters(SquaredExponential((0.1, 0.1)), 0.1))
    with pytest.raises(InputError, match="the start is of another kernel than the one to tune"):
        tune(*waves, kernel="matern32", start=Hyperparameters(SquaredExponential((0.1, 0.1, 0.1)), 0.1))
    other = Hyperparameters(SquaredExponential((0.1, 0.1, 0.1)), 0.1, feature_names=("a", "b", "c"))
    with pytest.raises(InputError, match="at position 0 got 'a', expected 'x0'"):
        tune(*waves, start=other)


def test_a_start_keeps_its_amplitude_and_what_is_switched_off(waves: tuple[FloatArray, FloatArray]) -> None:
    start = Hyperparameters(SquaredExponential((0.5, 0.1, 0.0), variance=4.0), 0.1)
    found = tune(*waves, start=start, max_evaluations=5)
    assert [parameter.name for parameter in found.parameters] == ["gamma.x0", "gamma.x1", "noise_variance"]
    assert isinstance(found.kernel, SquaredExponential)
    assert (found.gamma[2], found.kernel.variance) == (0.0, 4.0)
    assert found.gamma[0] != 0.5


def test_the_result_tells_of_each_parameter(waves: tuple[FloatArray, FloatArray]) -> None:
    found = tune(*waves, feature_names=NAMES, fixed={"gamma.day": 0.01}, bounds={"noise*": (1e-3, 1.0)})
    told = {parameter.name: parameter for parameter in found.parameters}
    assert set(told) == {"gamma.lat", "gamma.lon", "gamma.day", "noise_variance"}
    assert [parameter.feature for parameter in found.parameters] == ["lat", "lon", "day", None]
    assert [parameter.fixed for parameter in found.parameters] == [False, False, True, False]
    assert told["gamma.lat"].value == pytest.approx(found.gamma[0])
    assert told["gamma.lat"].start == pytest.approx(1.0 / 6.0)
    assert told["gamma.lat"].length_scale == pytest.approx(1.0 / math.sqrt(2.0 * found.gamma[0]))
    assert told["noise_variance"].length_scale is None
    assert (told["noise_variance"].lower, told["noise_variance"].upper) == pytest.approx((1e-3, 1.0))
    assert Hyperparameters.from_json(found.to_json()) == found


def test_an_unknown_objective_is_refused(waves: tuple[FloatArray, FloatArray]) -> None:
    with pytest.raises(InputError, match="objective must be one of likelihood, loo; got 'rmse'"):
        tune(*waves, objective="rmse")  # type: ignore[arg-type]
