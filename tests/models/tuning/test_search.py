"""The search: names, bounds, priors and starts; the conditions at its end; features that it switches off."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from dkgp.codec import from_json
from dkgp.data import memory_dataset
from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.kernels import Kernel, Matern52, SquaredExponential, parse_kernel
from dkgp.models import Hyperparameters, LogNormal, read_hyperparameters, tune, tune_dataset, write_hyperparameters
from dkgp.models.hyperparameters import TunedParameter, stopped
from dkgp.models.tuning.families import ArdSquaredExponential
from dkgp.models.tuning.objectives import LogMarginalLikelihood
from dkgp.models.tuning.search import (
    LARGEST_GAMMA,
    MOST_LOST,
    Choices,
    LikelihoodSearch,
    Optimum,
    Rest,
    SearchProblem,
    SearchSettings,
    candidates,
    switch_off,
)
from dkgp.models.tuning.space import SearchSpace, as_prior, search_space

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
        ({"bounds": {"gama*": (0.1, 1.0)}}, "there is no hyperparameter 'gama.'; available: gamma.lat, .*noise_var"),
        ({"fixed": {"lat": 1.0}}, "there is no hyperparameter 'lat'"),
        ({"priors": {"alpha": LogNormal(1.0, 1.0)}}, "there is no hyperparameter 'alpha'"),
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
    assert any(text.startswith("gamma of 'x0' is at the upper bound") for text in found.warnings)


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


def standardised(values: FloatArray) -> FloatArray:
    return np.asarray((values - values.mean()) / values.std())


@pytest.fixture
def samples(rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    inputs = rng.uniform(-1.7, 1.7, (120, 2))
    return inputs, standardised(np.sin(2.0 * inputs[:, 0]) + 0.3 * rng.standard_normal(120))


def box(lower: FloatArray, upper: FloatArray, free: FloatArray) -> SearchSpace:
    q = len(lower)
    names = tuple(f"t{index}" for index in range(q))
    bounds = np.column_stack([lower, upper])
    return SearchSpace(names, names, (None,) * q, bounds, np.zeros(q, dtype=bool), free, np.zeros(0, dtype=np.intp))


def test_the_projected_gradient_is_zero_where_the_conditions_of_kkt_hold(rng: np.random.Generator) -> None:
    """Beside the conditions written out, and beside P(t + g) - t, which is zero at the same points alone."""
    optimal = 0
    for _ in range(400):
        lower, upper = np.full(3, -1.0), np.full(3, 2.0)
        point = rng.choice([-1.0, 2.0, 0.5], 3)
        slopes = rng.choice([-3.0, 0.0, 3.0], 3)
        rest = Rest.of(box(lower, upper, np.full(3, np.nan)), point, slopes, 1)
        kkt = True
        for t, g, low, high in zip(point, slopes, lower, upper, strict=True):
            # g = mu_upper - mu_lower, no multiplier negative, each of them zero away from its bound.
            kkt &= g == 0.0 or (g > 0.0 and t == high) or (g < 0.0 and t == low)
        step = np.clip(point + slopes, lower, upper) - point
        assert (rest.projected_norm == 0.0) == kkt == (not step.any())
        np.testing.assert_array_equal(np.sign(rest.projected), np.sign(step))
        optimal += kkt
    assert 20 < optimal < 380


def test_what_is_held_fixed_has_no_part_in_it() -> None:
    space = box(np.zeros(2), np.ones(2), np.array([np.nan, 1.0]))
    rest = Rest.of(space, np.array([1.0, 1.0]), np.array([5.0, 0.0]), 1)
    assert rest.sides.tolist() == [1, 0]
    assert [item.pressed for item in rest.judged(space.tuned(np.ones(2), np.zeros(2), ()))] == [True, False]


@pytest.mark.parametrize("bounds", [{"gamma*": (1e-8, 1e4)}, {"noise_variance": (0.3, 1.0)}])
def test_the_gradient_on_record_is_that_of_the_density(
    samples: tuple[FloatArray, FloatArray], bounds: dict[str, tuple[float, float]]
) -> None:
    """By differences of a normal density, without the noise where its bound holds it."""
    inputs, targets = samples
    found = tune(inputs, targets, bounds=bounds, tolerance=1e-3)
    distances = (inputs[:, None] - inputs[None]) ** 2

    def density(logs: FloatArray) -> float:
        covariance = np.exp(-distances @ np.exp(logs[:-1])) + math.exp(logs[-1]) * np.eye(len(inputs))
        return float(stats.multivariate_normal(cov=covariance).logpdf(targets))

    here, step = np.log([*found.gamma, found.noise_variance]), 1e-5
    slopes = np.array([(density(here + e) - density(here - e)) / (2.0 * step) for e in step * np.eye(3)])
    if "noise_variance" in bounds:
        assert slopes[-1] < -1.0  # noisier than it is
        assert found.converged is False
        slopes = slopes[:-1]
    assert found.projected_gradient == pytest.approx(float(np.abs(slopes).max()), abs=2e-6)
    assert 0.0 <= (found.projected_gradient or 0.0) < 1e-3 * len(inputs)


@pytest.mark.parametrize("times", [2, 3])
def test_repeated_rows_are_no_optimum_and_said_to_be_the_cause(
    samples: tuple[FloatArray, FloatArray], times: int
) -> None:
    inputs, targets = samples
    assert tune(inputs, targets).converged is True
    found = tune(np.repeat(inputs, times, axis=0), np.repeat(targets, times))
    assert found.noise_variance == pytest.approx(1e-6)
    assert found.converged is False
    assert [item.name for item in found.parameters or () if item.pressed] == ["noise_variance"]
    beginning = "the noise variance is at the lower bound of the search, 1e-06"
    [warning] = [text for text in found.warnings if text.startswith(beginning)]
    assert f"{120 * (times - 1)} of the {120 * times} samples repeat another one, target included" in warning
    assert "remove the repeats" in warning
    assert Hyperparameters.from_json(found.to_json()) == found


def test_a_repeat_is_no_alarm(samples: tuple[FloatArray, FloatArray]) -> None:
    inputs, targets = samples
    found = tune(np.vstack([inputs, inputs[:1]]), np.append(targets, targets[:1]))
    assert (found.converged, found.warnings) == (True, ())


def test_targets_without_noise_are_told_and_may_have_it_held(samples: tuple[FloatArray, FloatArray]) -> None:
    inputs, targets = samples[0], standardised(np.sin(2.0 * samples[0][:, 0]))
    found = tune(inputs, targets)
    assert found.converged is False
    [warning] = found.warnings
    assert "The targets have hardly any noise. To fix it, tune with `fixed` noise_variance=1e-5" in warning
    assert "`fixed` noise_variance=1e-5" in warning
    assert stopped(found.parameters or ()) == "noise_variance stopped at its lower bound, 1e-06"
    held = tune(inputs, targets, fixed={"noise_variance": 1e-5})
    assert (held.converged, held.warnings) == (True, ())


@pytest.mark.parametrize("kernel", ["rbf", "rq"])
def test_a_feature_that_does_not_matter_is_no_alarm(rng: np.random.Generator, kernel: str) -> None:
    inputs = rng.uniform(-1.7, 1.7, (250, 6))
    found = tune(inputs, standardised(np.sin(2.0 * inputs[:, 0]) + 0.1 * rng.standard_normal(250)), kernel=kernel)
    idle = [item for item in found.parameters or () if item.idle]
    assert idle
    assert all(item.words == "irrelevant" and (item.length_scale or 0.0) > 300.0 for item in idle)
    assert all(item.idle == (item.value < 5.5e-6) for item in found.parameters or () if item.is_gamma)
    assert not any(item.pressed for item in found.parameters or ())
    assert (found.converged, found.warnings) == (True, ())


def test_a_part_of_a_sum_that_is_not_needed_is_no_alarm() -> None:
    inputs = np.linspace(-1.7, 1.7, 200)[:, None]
    found = tune(inputs, standardised(inputs[:, 0]), kernel="linear + rbf", fixed={"noise_variance": 1e-3})
    told = {item.name: item for item in found.parameters or ()}
    assert told["rbf.variance"].words == "not needed"
    assert not any(item.pressed for item in told.values())
    assert (found.converged, found.warnings) == (True, ())


@pytest.mark.parametrize(("slope", "stationary"), [(1e-3, True), (5.0, False)])
def test_a_line_search_without_a_way_on_is_judged_by_its_gradient(slope: float, stationary: bool) -> None:
    """Rounding, as it were: the value falls wherever one goes, whatever the gradient says."""
    calls: list[FloatArray] = []

    def objective(parameters: FloatArray) -> tuple[float, FloatArray]:
        calls.append(parameters)
        return -100.0 - len(calls), np.array([slope])

    space = box(np.array([-5.0]), np.array([5.0]), np.array([np.nan]))
    optimum = LikelihoodSearch(objective, space, SearchSettings()).run(np.zeros(1))
    assert optimum is not None
    assert optimum.rested
    assert optimum.slopes.tolist() == [slope]
    # Nothing was learned of the curvature: it is taken for one.
    assert optimum.gain == pytest.approx(0.5 * slope**2)
    assert Rest.of(space, optimum.parameters, optimum.slopes, 100).is_optimum(optimum.gain, 1e-4) is stationary


def test_a_rest_with_a_slope_is_no_optimum_and_said(
    samples: tuple[FloatArray, FloatArray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LikelihoodSearch, "_promised", lambda self, optimum: 0.1)
    found = tune(*samples)
    assert found.converged is False
    assert f"with a gradient of {found.projected_gradient:.3g} nats" in found.warnings[0]
    assert not any("evaluations" in text for text in found.warnings)
    monkeypatch.undo()
    assert tune(*samples).converged is True


def test_a_stiff_parameter_may_have_a_slope_that_promises_nothing() -> None:
    """For -1e6 (t - u)^2 / 2 - (s - 1)^2 / 2 small steps leave any slope in t; Newton's gain remains."""
    u = 0.123456789

    def objective(parameters: FloatArray) -> tuple[float, FloatArray]:
        t, s = parameters
        return -0.5e6 * (t - u) ** 2 - 0.5 * (s - 1.0) ** 2 - 100.0, np.array([-1e6 * (t - u), 1.0 - s])

    space = box(np.full(2, -5.0), np.full(2, 5.0), np.full(2, np.nan))
    optimum = LikelihoodSearch(objective, space, SearchSettings(tolerance=1e-3)).run(np.zeros(2))
    assert optimum is not None
    left = -100.0 - optimum.value
    assert optimum.rested
    assert 0.2 * left - 1e-9 <= optimum.gain <= 5.0 * left + 1e-9
    # A bound keeps t off: its slope of 1e6 / 10 is no gain within the box.
    held = box(np.array([u + 0.1, -5.0]), np.full(2, 5.0), np.full(2, np.nan))
    stopped_at = LikelihoodSearch(objective, held, SearchSettings(tolerance=1e-6)).run(np.array([1.0, 0.0]))
    assert stopped_at is not None
    assert stopped_at.slopes[0] == pytest.approx(-1e5)
    assert stopped_at.gain < 1e-3


@pytest.mark.long
def test_a_small_step_on_a_slope_is_no_end_and_a_lower_tolerance_goes_on() -> None:
    """A season: a step along the ridge that its period makes met the tolerance, nearly two nats below the top."""
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0.0, 20.0, 1040))
    season = (1.0 + 0.03 * times) * np.sin(2.0 * np.pi * times) + 0.4 * np.sin(4.0 * np.pi * times)
    level = 0.25 * times + 0.012 * times**2 + season + rng.normal(0.0, 0.3, len(times))
    known = times < 15.0
    kernel = f"periodic(period={1.0 / times[known].std():.4f})"
    series = memory_dataset(times[known, None], level[known])
    early = tune_dataset(series, kernel=kernel, subset=500)
    later = tune_dataset(series, kernel=kernel, subset=500, tolerance=1e-5)
    further = tune_dataset(series, kernel=kernel, subset=500, start=early)
    assert early.converged is False
    assert "with a gradient of 2.8" in early.warnings[0]
    for better in (later, further):
        assert (better.converged, better.warnings) == (True, ())
        assert better.log_marginal_likelihood is not None
        assert better.log_marginal_likelihood - 1.0 > (early.log_marginal_likelihood or 0.0)


def test_an_end_by_the_limit_is_said_as_such(samples: tuple[FloatArray, FloatArray]) -> None:
    found = tune(*samples, max_evaluations=4)
    assert found.converged is False
    assert "stopped at 4 evaluations" in found.warnings[0]
    assert not any("beside" in text for text in found.warnings)


def test_a_bound_that_a_file_names_is_one() -> None:
    document = {"name": "noise_variance", "value": 1.0, "start": 1.0, "lower": 1.0, "upper": 2.0, "bound": "lower"}
    assert from_json(TunedParameter, document).bound == "lower"
    with pytest.raises(InputError, match="a tuned parameter: `bound` is 'left'"):
        from_json(TunedParameter, {**document, "bound": "left"})


# Bounds of one's own keep a feature: here, those that there are anyway.
KEPT = {"gamma*": (1e-8, 1e4)}


def problem(d: int, seed: int, n: int = 220) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    inputs = rng.uniform(-1.7, 1.7, (n, d))
    targets = np.sin(2.0 * inputs[:, 1]) + 0.5 * inputs[:, 0] + 0.2 * rng.standard_normal(n)
    return inputs, (targets - targets.mean()) / targets.std()


def density(kernel: Kernel, noise: float, inputs: FloatArray, targets: FloatArray) -> float:
    covariance = kernel(inputs, inputs) + noise * np.eye(len(inputs))
    return float(stats.multivariate_normal(cov=covariance).logpdf(targets))


def gammas(found: Hyperparameters) -> FloatArray:
    assert isinstance(found.kernel, SquaredExponential | Matern52)
    return np.array(found.kernel.gamma)


@pytest.mark.spread(1)
@pytest.mark.covering
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kernel", ["rbf", "matern52"])
def test_as_many_are_switched_off_as_cost_a_tenth_of_a_nat(kernel: str, seed: int) -> None:
    """By the densities of a normal distribution, of the search's end as it was and of each that may follow."""
    inputs, targets = problem(7, seed)
    before, found = (tune(inputs, targets, kernel=kernel, bounds=bounds) for bounds in (KEPT, None))
    gamma, off = gammas(before), gammas(found) == 0.0
    np.testing.assert_array_equal(gammas(found)[~off], gamma[~off])
    assert gamma.all()
    assert found.noise_variance == before.noise_variance
    order = [index for index in np.argsort(gamma) if gamma[index] <= LARGEST_GAMMA]
    assert sorted(order[: off.sum()]) == np.flatnonzero(off).tolist()
    assert isinstance(before.kernel, SquaredExponential | Matern52)
    best = density(before.kernel, before.noise_variance, inputs, targets)
    lost = []
    for count in range(1, len(order) + 1):
        values = gamma.copy()
        values[order[:count]] = 0.0
        off_kernel = replace(before.kernel, gamma=tuple(values.tolist()))
        lost.append(best - density(off_kernel, before.noise_variance, inputs, targets))
    assert off.sum() == sum(loss <= MOST_LOST for loss in lost) >= 1
    assert found.log_marginal_likelihood == pytest.approx(best - lost[off.sum() - 1], abs=1e-6)


def test_a_bisection_finds_the_most() -> None:
    space = _space(12)
    parameters = np.log(np.append(np.linspace(1e-8, 3e-5, 12), 0.1))
    parameters[11] = 0.0
    tried: list[int] = []

    def likelihood(at: FloatArray) -> tuple[float, FloatArray]:
        off = int(np.isinf(at).sum())
        tried.append(off)
        return 5.0 - 0.03 * off, np.full(13, 0.5)

    best = Optimum(parameters, 5.0, 5.0, np.zeros(13))
    found, evaluations = switch_off(likelihood, space, best, names(12))
    assert np.flatnonzero(np.isinf(found.parameters)).tolist() == [0, 1, 2]
    assert (found.log_likelihood, found.value) == pytest.approx((4.91, 4.91))
    assert evaluations == len(tried) <= 1 + math.ceil(math.log2(11))
    assert tried[0] == 11
    np.testing.assert_array_equal(best.parameters, parameters)
    nowhere, _ = switch_off(lambda at: None, space, best, names(12))
    assert nowhere is best
    nowhere, _ = switch_off(lambda at: (math.nan, np.zeros(13)), space, best, names(12))
    assert nowhere is best


def names(d: int) -> tuple[str, ...]:
    """One with what looks like a parameter's."""
    return tuple(f"x{index}" if index else "a.gamma.b" for index in range(d))


def _space(d: int, expression: str = "rbf", **choices: object) -> SearchSpace:
    made = SearchProblem.of(names(d), Choices(kernel=expression, **choices), SearchSettings())  # type: ignore[arg-type]
    return made.space


def test_what_was_given_bounds_a_prior_or_a_value_stays() -> None:
    flat = np.full(5, math.log(1e-7))
    assert candidates(_space(4), np.append(flat[:3], [0.0, 0.0]), names(4)) == [0, 1, 2]
    given = _space(
        4,
        bounds={"gamma.a.gamma.b": (1e-8, 1.0)},
        fixed={"gamma.x1": 1e-7},
        priors={"gamma.x2": "lognormal(1e-7, 1)"},
    )
    assert candidates(given, flat, names(4)) == [3]


def test_a_weight_and_what_has_a_period_stay() -> None:
    for expression in ("linear", "periodic"):
        space = _space(4, expression)
        logs = np.full(len(space.names), math.log(1e-7))
        logs[space.gamma_like.nonzero()[0][-1]] = 0.0
        assert candidates(space, logs, names(4)) == []


def test_a_part_of_a_kernel_keeps_a_feature() -> None:
    space = _space(2, "rbf + matern32")
    logs = np.full(len(space.names), math.log(1e-7))
    assert candidates(space, logs, names(2)) == []
    second = [place for place, name in enumerate(space.names) if "gamma" in name][2]
    logs[second] = 0.0
    named = [space.names[place] for place in candidates(space, logs, names(2))]
    assert len(named) == 1
    assert named[0] == space.names[second + 1]


@pytest.mark.parametrize("expression", ["rbf + linear", "matern32 * rbf"])
def test_sums_and_products_have_their_gradients_at_the_end(expression: str) -> None:
    inputs, targets = problem(5, 3)
    found = tune(inputs, targets, kernel=expression, max_evaluations=60)
    assert found.log_marginal_likelihood == pytest.approx(
        density(found.kernel, found.noise_variance, inputs, targets), abs=1e-5
    )
    assert any(item.value == 0.0 and item.words == "irrelevant" for item in found.parameters or ())


def test_a_file_may_hold_zeros_but_not_zeros_alone(tmp_path: Path) -> None:
    inputs, targets = problem(6, 4)
    found = tune(inputs, targets, feature_names=tuple("abcdef"))
    write_hyperparameters(tmp_path / "hyper.json", found)
    assert read_hyperparameters(tmp_path / "hyper.json") == found
    off = [item for item in found.parameters or () if item.value == 0.0]
    assert off
    assert all((item.length_scale, item.words) == (math.inf, "irrelevant") for item in off)
    document = json.loads((tmp_path / "hyper.json").read_text())
    document["kernel"]["gamma"] = [0.0] * 6
    (tmp_path / "hyper.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"gamma\[0\] must be positive and finite; got 0.0"):
        read_hyperparameters(tmp_path / "hyper.json")


def test_a_search_goes_on_without_them_and_still_lists_them() -> None:
    inputs, targets = problem(6, 5)
    first = tune(inputs, targets)
    zeros = [item.name for item in first.parameters or () if item.value == 0.0]
    assert zeros
    for kernel in (None, "rbf"):
        second = tune(inputs, targets, kernel=kernel, start=first)
        assert [item.name for item in second.parameters or ()] == [item.name for item in first.parameters or ()]
        assert set(zeros) <= {item.name for item in second.parameters or () if item.value == 0.0}
    with pytest.raises(InputError, match="of another kernel"):
        tune(inputs, targets, kernel="matern32", start=first)


def test_values_of_a_kernel_may_be_zero_for_gammas_alone() -> None:
    kernel = SquaredExponential((0.5, 0.2), variance=2.0)
    assert kernel.with_parameters([0.5, 0.0, 2.0]) == SquaredExponential((0.5, 0.0), variance=2.0)
    with pytest.raises(InputError, match="positive and finite"):
        kernel.with_parameters([0.5, 0.2, 0.0])
    total = parse_kernel("rbf + linear", 2)
    values = [parameter.value for parameter in total.parameters()]
    place = next(index for index, item in enumerate(total.parameters()) if item.name.endswith("gamma"))
    values[place] = 0.0
    assert len(total.with_parameters(values).parameters()) == len(values) - 1
    assert isinstance(Hyperparameters(total.with_parameters(values), 0.1), Hyperparameters)


def test_a_search_that_knows_the_curvature_begins_with_a_step_of_the_right_length(rng: np.random.Generator) -> None:
    """A parabola of unlike curvatures: in its units the first step is nearly right; without them it is far too long."""
    space = space_of(bounds={"*": (math.exp(-9.0), math.exp(9.0))})
    steepness = np.array([4e4, 1e3, 2e2, 50.0, 10.0])

    def climbed(centre: FloatArray, inverse: FloatArray | None) -> tuple[list[FloatArray], Optimum]:
        points = []

        def objective(parameters: FloatArray) -> tuple[float, FloatArray]:
            points.append(parameters)
            return -0.5 * float(steepness @ (parameters - centre) ** 2), -steepness * (parameters - centre)

        optimum = LikelihoodSearch(objective, space, SearchSettings(), 1e-6).run(np.zeros(5), inverse)
        assert optimum is not None
        assert optimum.rested
        np.testing.assert_allclose(optimum.parameters, centre, atol=1e-3)
        return points, optimum

    near = rng.uniform(-0.2, 0.2, 5)
    known, optimum = climbed(near, np.diag(1.0 / steepness))
    plain, _ = climbed(near, None)
    assert len(known) <= 4 < len(plain)
    assert optimum.inverse_curvature is not None
    np.testing.assert_allclose(np.diagonal(optimum.inverse_curvature), 1.0 / steepness, rtol=0.2)
    # Far from the optimum, or if the curvature is another one, no logarithm moves by more than this.
    for inverse in (np.diag(1.0 / steepness), np.eye(5)):
        first, second, *_ = climbed(5.0 + near, inverse)[0]
        assert np.abs(second - first).max() == pytest.approx(0.3)
