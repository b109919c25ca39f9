"""Tuning kernels other than the squared exponential: against scikit-learn, by name, from text and from a start."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Matern, WhiteKernel

from dkgp.errors import InputError
from dkgp.kernels import Linear, Matern32, Matern52, SquaredExponential, White, parse_kernel
from dkgp.models import Hyperparameters, projected_tuning_bytes, tune
from dkgp.models.tuning.families import family_of
from dkgp.models.tuning.objectives import LeaveOneOut, LogMarginalLikelihood

FloatArray = NDArray[np.float64]


@pytest.fixture
def trend(rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """A straight trend in one feature and a wave in the other."""
    inputs = rng.standard_normal((100, 2))
    targets = inputs[:, 0] + 0.5 * np.sin(3.0 * inputs[:, 1]) + 0.2 * rng.standard_normal(100)
    return inputs, (targets - targets.mean()) / targets.std()


def test_a_matern_kernel_is_tuned_as_by_scikit_learn(trend: tuple[FloatArray, FloatArray]) -> None:
    inputs, targets = trend
    found = tune(inputs, targets, kernel="matern52", learn_variance=True, tolerance=1e-6)
    assert isinstance(found.kernel, Matern52)
    kernel = ConstantKernel(1.0, (1e-4, 1e4)) * Matern([1.0, 1.0], (1e-2, 1e3), nu=2.5) + WhiteKernel(0.5, (1e-6, 4.0))
    reference = GaussianProcessRegressor(kernel=kernel, alpha=0.0, n_restarts_optimizer=2, random_state=0)
    reference.fit(inputs, targets)
    assert found.log_marginal_likelihood == pytest.approx(reference.log_marginal_likelihood_value_, abs=1e-2)
    scales = reference.kernel_.k1.k2.length_scale
    np.testing.assert_allclose(np.sqrt(0.5 / np.asarray(found.kernel.gamma)), scales, rtol=0.05)
    assert found.noise_variance == pytest.approx(reference.kernel_.k2.noise_level, rel=0.05)


def test_a_sum_is_worth_what_scikit_learn_says(trend: tuple[FloatArray, FloatArray]) -> None:
    inputs, targets = trend
    found = tune(inputs, targets, kernel="matern32['x1'] + linear['x0']", tolerance=1e-6)
    told = {parameter.name: parameter.value for parameter in found.parameters}
    assert len(told) == 4
    wave, line = (part for part in found.kernel.children)
    (matern,), (linear,) = wave.children, line.children
    assert isinstance(matern, Matern32)
    assert isinstance(linear, Linear)
    first, second = Matern([math.sqrt(0.5 / matern.gamma[0])], nu=1.5), DotProduct(0.0)
    covariance = matern.variance * first(inputs[:, 1:]) + linear(inputs[:1, :1], inputs[:1, :1])[0, 0] / (
        inputs[0, 0] ** 2
    ) * second(inputs[:, :1])
    covariance += found.noise_variance * np.eye(len(inputs))
    _, log_determinant = np.linalg.slogdet(covariance)
    expected = -0.5 * (targets @ np.linalg.solve(covariance, targets) + log_determinant + 100 * math.log(2.0 * math.pi))
    assert found.log_marginal_likelihood == pytest.approx(expected, rel=1e-8)
    plain = tune(inputs, targets)
    assert found.log_marginal_likelihood > plain.log_marginal_likelihood + 3.0


@pytest.mark.covering
@pytest.mark.parametrize(
    ("text", "learn_variance"),
    [
        ("rbf", False),
        ("rbf", True),
        ("rq + constant", True),
        ("periodic['x0'] * rbf['x1'] + 0.5 * linear", True),
        ("polynomial + matern12", True),
    ],
)
@pytest.mark.parametrize("n_targets", [1, 2])
@pytest.mark.parametrize("objective", [LogMarginalLikelihood, LeaveOneOut])
def test_gradients_agree_with_differences(
    rng: np.random.Generator,
    text: str,
    learn_variance: bool,
    n_targets: int,
    objective: type[LogMarginalLikelihood | LeaveOneOut],
) -> None:
    inputs, targets = rng.standard_normal((30, 2)), rng.standard_normal((30, n_targets))
    family = family_of(parse_kernel(text, 2, ("x0", "x1")), inputs, learn_variance, ("x0", "x1"))
    function = objective(family, targets)

    def value(point: FloatArray) -> float:
        outcome = function(point)
        return outcome[0]

    parameters = np.append(family.initial() + rng.uniform(-0.3, 0.3, len(family.names)), math.log(0.3))
    outcome = function(parameters)
    expected = [(value(parameters + step) - value(parameters - step)) / 2e-5 for step in 1e-5 * np.eye(parameters.size)]
    np.testing.assert_allclose(outcome[1], expected, rtol=1e-5, atol=1e-5)


def test_parts_of_a_sum_are_addressed_by_their_paths(trend: tuple[FloatArray, FloatArray]) -> None:
    inputs, targets = trend
    found = tune(
        inputs,
        targets,
        kernel="rbf + matern32['lon']",
        feature_names=("lat", "lon"),
        bounds={"rbf.gamma.*": (0.01, 1.0)},
        fixed={"*matern32*variance": 0.3},
        priors={"noise_variance": "lognormal(0.05, 1)"},
        max_evaluations=20,
    )
    told = {parameter.name: parameter for parameter in found.parameters}
    assert {"rbf.gamma.lat", "rbf.gamma.lon", "rbf.variance", "noise_variance"} < set(told)
    assert (told["rbf.gamma.lat"].lower, told["rbf.gamma.lat"].upper) == pytest.approx((0.01, 1.0))
    held = [parameter for parameter in found.parameters if parameter.fixed]
    assert len(held) == 1
    assert held[0].value == pytest.approx(0.3)
    assert found.kernel.parameters()[-1].value != 1.0
    assert Hyperparameters.from_json(found.to_json()) == found


def test_features_of_a_part_have_their_own_names(trend: tuple[FloatArray, FloatArray]) -> None:
    found = tune(*trend, kernel="rbf['lon'] + linear['lat']", feature_names=("lat", "lon"), max_evaluations=3)
    features = {parameter.name: parameter.feature for parameter in found.parameters}
    assert [feature for name, feature in features.items() if "gamma" in name] == ["lon"]


def test_white_noise_in_a_kernel_is_the_noise(trend: tuple[FloatArray, FloatArray]) -> None:
    with_white, without = (tune(*trend, kernel=text, max_evaluations=20) for text in ("matern32 + white", "matern32"))
    assert with_white.kernel == without.kernel
    assert with_white.noise_variance == without.noise_variance
    given = tune(*trend, kernel=Matern32((0.5, 0.5)) + White(0.3), max_evaluations=1)
    assert given.noise_variance == pytest.approx(0.3)


def test_a_kernel_given_is_where_the_search_starts(trend: tuple[FloatArray, FloatArray]) -> None:
    found = tune(*trend, kernel=Matern32((0.7, 0.2)), max_evaluations=1)
    assert isinstance(found.kernel, Matern32)
    np.testing.assert_allclose(found.kernel.gamma, (0.7, 0.2))
    squared = tune(*trend, kernel=SquaredExponential((0.7, 0.2)), max_evaluations=1)
    np.testing.assert_allclose(squared.gamma, (0.7, 0.2))


def test_a_sum_is_gone_on_from(trend: tuple[FloatArray, FloatArray]) -> None:
    cold = tune(*trend, kernel="rbf + linear")
    warm = tune(*trend, start=cold)
    assert warm.evaluations < cold.evaluations
    assert warm.log_marginal_likelihood == pytest.approx(cold.log_marginal_likelihood, abs=0.05)
    again = tune(*trend, kernel="rbf + linear", start=cold, max_evaluations=1)
    assert again.log_marginal_likelihood == pytest.approx(cold.log_marginal_likelihood, abs=1e-6)
    with pytest.raises(InputError, match="of another kernel than the one to tune"):
        tune(*trend, kernel="rbf + periodic", start=cold)


def test_kernels_that_do_not_fit_are_refused(trend: tuple[FloatArray, FloatArray]) -> None:
    with pytest.raises(InputError, match="3 features.* 2"):
        tune(*trend, kernel=Matern32((0.1, 0.1, 0.1)))
    with pytest.raises(InputError, match="nosuchkernel"):
        tune(*trend, kernel="rbf + nosuchkernel")
    with pytest.raises(InputError, match="nothing but white noise"):
        tune(*trend, kernel="white")


@pytest.mark.parametrize(("text", "objective"), [("rbf", "loo"), ("matern32 + linear", "likelihood")])
def test_projected_memory_is_true(rng: np.random.Generator, text: str, objective: str) -> None:
    n, d = 600, 10
    inputs, targets = rng.standard_normal((n, d)), rng.standard_normal(n)
    names = tuple(f"x{index}" for index in range(d))
    tune(inputs[:50], targets[:50], kernel=text, objective=objective, max_evaluations=2)  # type: ignore[arg-type]
    tracemalloc.start()
    tune(inputs, targets, kernel=text, objective=objective, max_evaluations=3)  # type: ignore[arg-type]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    projected = projected_tuning_bytes(n, 1, names, kernel=text, objective=objective)  # type: ignore[arg-type]
    assert 0.3 * projected <= peak_bytes <= projected


def test_subsets_at_the_same_time_take_their_memory_each() -> None:
    one, both = (projected_tuning_bytes(500, 1, ("a", "b"), subsets=4, at_once=count) for count in (1, 2))
    assert both - one == 8 * 500 * (2 * 500 + 3 * 256)  # two matrices, and three block columns of the inverse
