"""Tuning: optima against known truths and scikit-learn's, kernels of all kinds, progress, memory, refusals."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import linalg
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern, WhiteKernel

from dkgp.data.types import FloatArray
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Linear, Matern32, Matern52, SquaredExponential, White
from dkgp.models import Hyperparameters, TuneProgress, projected_peak_bytes, projected_tuning_bytes, tune, tune_dataset
from dkgp.models.tuning import search
from dkgp.models.tuning.families import ArdSquaredExponential
from dkgp.models.tuning.objectives import LogMarginalLikelihood
from dkgp.models.tuning.search import LikelihoodSearch, SearchSettings
from dkgp.models.tuning.space import SearchSpace
from dkgp.models.tuning.subsets import draw_subset


def likelihood(inputs: FloatArray, targets: FloatArray, learn_variance: bool) -> LogMarginalLikelihood:
    names = tuple(f"x{index}" for index in range(inputs.shape[1]))
    family = ArdSquaredExponential(inputs, learn_variance=learn_variance, feature_names=names)
    return LogMarginalLikelihood(family, targets)


def evaluate(function: LogMarginalLikelihood, parameters: FloatArray) -> tuple[float, FloatArray]:
    outcome = function(parameters)
    return outcome


def sample_gp(
    rng: np.random.Generator, n: int, gamma: FloatArray, noise_variance: float
) -> tuple[FloatArray, FloatArray]:
    inputs = rng.standard_normal((n, gamma.size))
    kernel_matrix = SquaredExponential(gamma=tuple(gamma.tolist()))(inputs, inputs)
    factor = linalg.cholesky(kernel_matrix + noise_variance * np.eye(n), lower=True)
    return inputs, factor @ rng.standard_normal(n)


def test_optimum_agrees_with_scikit_learn(rng: np.random.Generator) -> None:
    inputs, targets = sample_gp(rng, 150, np.array([0.5, 0.1]), 0.1)
    kernel = RBF([1.0, 1.0], (1e-2, 1e3)) + WhiteKernel(0.5, (1e-5, 4.0))
    reference = GaussianProcessRegressor(kernel=kernel, alpha=0.0, n_restarts_optimizer=2, random_state=0)
    reference.fit(inputs, targets)
    found = tune(inputs, targets)
    assert found.log_marginal_likelihood == pytest.approx(reference.log_marginal_likelihood_value_, abs=1e-2)
    np.testing.assert_allclose(found.gamma, 0.5 / reference.kernel_.k1.length_scale**2, rtol=1e-2)
    assert found.noise_variance == pytest.approx(reference.kernel_.k2.noise_level, rel=1e-2)


def test_recovers_the_hyperparameters_of_a_sampled_process(rng: np.random.Generator) -> None:
    gamma = np.array([0.8, 0.05, 0.2])
    inputs, targets = sample_gp(rng, 500, gamma, 0.05)
    found = tune(inputs, targets)
    assert found.converged
    assert found.warnings == ()
    np.testing.assert_allclose(np.log(found.gamma), np.log(gamma), atol=0.5)
    assert found.noise_variance == pytest.approx(0.05, rel=0.25)
    truth, _ = evaluate(likelihood(inputs, targets[:, None], False), np.log([*gamma, 0.05]))
    assert found.log_marginal_likelihood >= truth


def test_amplitude_is_learnt_where_asked(rng: np.random.Generator) -> None:
    inputs, targets = sample_gp(rng, 300, np.array([0.5, 0.5]), 0.01)
    free = tune(inputs, 3.0 * targets, learn_variance=True)
    fixed = tune(inputs, 3.0 * targets)
    assert isinstance(free.kernel, SquaredExponential)
    assert isinstance(fixed.kernel, SquaredExponential)
    assert 4.0 < free.kernel.variance < 20.0
    assert fixed.kernel.variance == 1.0
    assert free.log_marginal_likelihood > fixed.log_marginal_likelihood + 1.0


def test_irrelevant_features_get_a_small_gamma(rng: np.random.Generator) -> None:
    inputs = rng.standard_normal((300, 6))
    targets = np.sin(2.0 * inputs[:, 1]) + 0.5 * inputs[:, 4] ** 2 + 0.1 * rng.standard_normal(300)
    found = tune(inputs, (targets - targets.mean()) / targets.std())
    relevant = [1, 4]
    assert found.gamma[relevant].min() > 20.0 * np.delete(found.gamma, relevant).max()


@pytest.mark.long
@pytest.mark.parametrize(
    "initial_noise_variance", [search._INITIAL_NOISE_VARIANCE, pytest.param(0.1, marks=pytest.mark.slow)]
)
def test_does_not_settle_on_islands(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, initial_noise_variance: float
) -> None:
    # Few of many features matter: a search from a small noise variance runs off to gamma = infinity, which explains
    # nothing. The first start does not; should it ever, the further starting points find the way.
    monkeypatch.setattr(search, "_INITIAL_NOISE_VARIANCE", initial_noise_variance)
    inputs = rng.standard_normal((400, 32))
    targets = np.sin(2.0 * inputs[:, 3]) * inputs[:, 7] + 0.2 * rng.standard_normal(400)
    found = tune(inputs, (targets - targets.mean()) / targets.std())
    assert 0.02 < found.noise_variance < 0.2
    assert set(np.argsort(found.gamma)[-2:]) == {3, 7}
    assert not any("no structure" in text for text in found.warnings)


def test_targets_share_hyperparameters(rng: np.random.Generator) -> None:
    inputs, first = sample_gp(rng, 120, np.array([0.5, 0.1]), 0.1)
    alone = tune(inputs, first)
    twice = tune(inputs, np.column_stack([first, -first]))
    np.testing.assert_allclose(twice.gamma, alone.gamma, rtol=1e-2)
    assert twice.log_marginal_likelihood == pytest.approx(2.0 * alone.log_marginal_likelihood, rel=1e-4)


def test_same_seed_same_result_other_seed_other_subset(rng: np.random.Generator) -> None:
    inputs, targets = sample_gp(rng, 200, np.array([0.5]), 0.1)
    first, again, other = (tune(inputs, targets, subset=80, seed=seed) for seed in (1, 1, 2))
    assert first.kernel == again.kernel
    assert first.noise_variance == again.noise_variance
    assert first.kernel != other.kernel
    assert (first.subset_size, first.n_samples, first.seed) == (80, 200, 1)


def test_restarts_only_improve(rng: np.random.Generator) -> None:
    inputs, targets = sample_gp(rng, 80, np.array([2.0, 0.1]), 0.2)
    once, thrice = tune(inputs, targets), tune(inputs, targets, restarts=3)
    assert thrice.log_marginal_likelihood >= once.log_marginal_likelihood
    assert thrice.evaluations > once.evaluations


@dataclass
class ArrayDataset:
    """The part of a dataset that `tune_dataset` reads, on arrays."""

    all_inputs: FloatArray
    all_targets: FloatArray
    chunk_rows: int
    feature_names: tuple[str, ...]
    covariate_names: tuple[str, ...] = ()

    @property
    def n_samples(self) -> int:
        return len(self.all_inputs)

    def all_sample_noise(self) -> None:
        """None is known."""

    def rows_at(self, indices: NDArray[np.int64]) -> FloatArray:
        return self.all_inputs[indices]

    input_rows = rows_at

    def targets(self, start: int, stop: int) -> FloatArray:
        assert stop - start <= self.chunk_rows
        return self.all_targets[start:stop]


@pytest.mark.parametrize("subset", [50, 1000])
@pytest.mark.parametrize("chunk_rows", [7, 64, 1000])
def test_dataset_and_arrays_give_the_same(rng: np.random.Generator, chunk_rows: int, subset: int) -> None:
    inputs, targets = sample_gp(rng, 130, np.array([0.5, 0.5]), 0.1)
    dataset = ArrayDataset(inputs, targets[:, None], chunk_rows, ("a", "b"))
    stored = tune_dataset(dataset, subset=subset, seed=5, max_evaluations=4)
    arrays = tune(inputs, targets, subset=subset, seed=5, max_evaluations=4, feature_names=("a", "b"))
    assert stored.kernel == arrays.kernel
    assert (stored.noise_variance, stored.feature_names) == (arrays.noise_variance, ("a", "b"))


def test_subset_is_sorted_and_without_repeats() -> None:
    indices = draw_subset(10_000, 500, seed=3)
    assert indices.shape == (500,)
    assert np.all(np.diff(indices) > 0)
    assert indices.min() >= 0
    assert indices.max() < 10_000
    np.testing.assert_array_equal(draw_subset(20, 500, seed=3), np.arange(20))


def test_progress_reports_every_evaluation(rng: np.random.Generator) -> None:
    inputs, targets = sample_gp(rng, 60, np.array([0.5]), 0.1)
    seen: list[TuneProgress] = []
    found = tune(inputs, targets, progress=seen.append)
    assert [item.evaluation for item in seen] == list(range(1, len(seen) + 1))
    assert found.evaluations == len(seen)
    assert max(item.log_marginal_likelihood for item in seen) == found.log_marginal_likelihood
    assert seen[0].gradient_inf_norm > 1.0
    assert seen[-1].gradient_inf_norm < 0.1


def test_evaluation_limit_is_kept_and_told(rng: np.random.Generator) -> None:
    inputs, targets = sample_gp(rng, 60, np.array([0.5, 0.5]), 0.1)
    found = tune(inputs, targets, max_evaluations=3)
    assert found.evaluations == 3
    assert found.converged is False
    assert "stopped at 3 evaluations" in found.warnings[0]


def test_pure_noise_and_parameters_on_bounds_are_told(rng: np.random.Generator) -> None:
    found = tune(rng.standard_normal((150, 2)), rng.standard_normal(150))
    assert any("no structure found" in text for text in found.warnings)
    exact = tune(np.linspace(-2.0, 2.0, 80)[:, None], np.sin(np.linspace(-2.0, 2.0, 80)) * 1.4)
    assert any("noise variance is at the lower bound" in text for text in exact.warnings)


def test_targets_off_the_standardised_scale_are_told(rng: np.random.Generator) -> None:
    inputs, targets = sample_gp(rng, 60, np.array([0.5]), 0.1)
    assert any("standardise the targets" in text for text in tune(inputs, 100.0 * targets, max_evaluations=5).warnings)
    assert not any("standardise" in text for text in tune(inputs, targets / targets.std(), max_evaluations=5).warnings)


def test_indefinite_matrices_on_the_way_are_stepped_back_from() -> None:
    # A concave likelihood with its maximum at 1 that does not exist beyond 1.5, where the first step lands.
    def partial(parameters: FloatArray) -> tuple[float, FloatArray] | None:
        if parameters[0] > 1.5:
            return None
        return -10.0 * float((parameters[0] - 1.0) ** 4), -40.0 * (parameters - 1.0) ** 3

    failures = []
    settings = SearchSettings(progress=lambda item: failures.append(math.isinf(item.log_marginal_likelihood)))
    free, nowhere = np.array([np.nan]), np.zeros(0, dtype=np.intp)
    space = SearchSpace(("t",), ("t",), (None,), np.array([[-5.0, 5.0]]), np.array([False]), free, nowhere)
    search = LikelihoodSearch(partial, space, settings)
    search.run(np.array([0.6]))
    assert any(failures)
    assert search.best.parameters[0] == pytest.approx(1.0, abs=0.05)


def test_no_likelihood_anywhere_is_an_error(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogMarginalLikelihood, "__call__", lambda self, parameters: None)
    with pytest.raises(NumericalError, match="not positive definite at any starting point"):
        tune(rng.standard_normal((20, 2)), rng.standard_normal(20))


@pytest.mark.parametrize(("n", "d", "p"), [(600, 10, 1), (600, 10, 3), (300, 60, 2)])
def test_projected_memory_is_true(rng: np.random.Generator, n: int, d: int, p: int) -> None:
    inputs, targets = rng.standard_normal((n, d)), rng.standard_normal((n, p))
    tune(inputs[:50], targets[:50], max_evaluations=2)  # what is imported or compiled once is not counted
    tracemalloc.start()
    tune(inputs, targets, max_evaluations=3)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.5 * projected_peak_bytes(n, d, p) <= peak_bytes <= projected_peak_bytes(n, d, p)


def test_unfit_arguments_are_refused(rng: np.random.Generator) -> None:
    inputs, targets = rng.standard_normal((20, 2)), rng.standard_normal(20)
    with pytest.raises(InputError, match=r"shape \(n, d\).*got \(20,\)"):
        tune(targets, targets)
    with pytest.raises(InputError, match="inputs have 20 rows, but targets 19"):
        tune(inputs, targets[:-1])
    with pytest.raises(InputError, match="at least 2 samples; got 1"):
        tune(inputs[:1], targets[:1])
    with pytest.raises(InputError, match="`subset` must be at least 2; got 1"):
        tune(inputs, targets, subset=1)
    with pytest.raises(InputError, match="tolerance must be positive"):
        tune(inputs, targets, tolerance=-1.0)
    with pytest.raises(InputError, match="`restarts` must be at least 1"):
        tune(inputs, targets, restarts=0)
    with pytest.raises(InputError, match="2 features, but 1 names"):
        tune(inputs, targets, feature_names=("a",))
    inputs[4, 1] = np.nan
    with pytest.raises(
        InputError, match="inputs hold 1 values that are NaN or infinite, the first in .* row 4, column 1"
    ):
        tune(inputs, targets)


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
def test_projected_memory_of_any_kernel_is_true(rng: np.random.Generator, text: str, objective: str) -> None:
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
