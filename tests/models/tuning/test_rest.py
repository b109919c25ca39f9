"""The end of a search: a projected gradient, bounds that stopped it, and bounds that do no harm."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dkgp.codec import from_json
from dkgp.data import memory_dataset
from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.models import Hyperparameters, tune, tune_dataset
from dkgp.models.hyperparameters import TunedParameter, stopped
from dkgp.models.tuning.search import LikelihoodSearch, Rest, SearchSettings
from dkgp.models.tuning.space import SearchSpace


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
    [warning] = [text for text in found.warnings if text.startswith("on its lower bound, 1e-06: the noise variance")]
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
    assert "No sample is repeated: the targets have hardly any noise" in warning
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
    assert f"its gradient is still {found.projected_gradient:.2g} nats" in found.warnings[0]
    assert not any("evaluations" in text for text in found.warnings)
    monkeypatch.undo()
    assert tune(*samples).converged is True


def test_a_stiff_parameter_may_have_a_slope_that_promises_nothing() -> None:
    """Of -1e6 (t - u)^2 / 2 - (s - 1)^2 / 2: small steps leave t any slope, and Newton's gain is what is left."""
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
    assert "its gradient is still 2.8 nats" in early.warnings[0]
    for better in (later, further):
        assert (better.converged, better.warnings) == (True, ())
        assert better.log_marginal_likelihood is not None
        assert better.log_marginal_likelihood - 1.0 > (early.log_marginal_likelihood or 0.0)


def test_an_end_by_the_limit_is_said_as_such(samples: tuple[FloatArray, FloatArray]) -> None:
    found = tune(*samples, max_evaluations=4)
    assert found.converged is False
    assert "at most 4 evaluations" in found.warnings[0]
    assert not any("beside" in text for text in found.warnings)


def test_a_bound_that_a_file_names_is_one() -> None:
    document = {"name": "noise_variance", "value": 1.0, "start": 1.0, "lower": 1.0, "upper": 2.0, "bound": "lower"}
    assert from_json(TunedParameter, document).bound == "lower"
    with pytest.raises(InputError, match="a tuned parameter: `bound` is 'left'"):
        from_json(TunedParameter, {**document, "bound": "left"})
