"""Tuning: likelihood and gradient against independent references, optima against known truths."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import linalg, stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from dkgp.errors import InputError, NumericalError
from dkgp.kernels import SquaredExponential
from dkgp.models import TuneProgress, projected_peak_bytes, tune, tune_dataset
from dkgp.models.tuning import search
from dkgp.models.tuning.families import ArdSquaredExponential
from dkgp.models.tuning.objectives import LogMarginalLikelihood
from dkgp.models.tuning.search import LikelihoodSearch, SearchSettings
from dkgp.models.tuning.space import SearchSpace
from dkgp.models.tuning.subsets import draw_subset

FloatArray = NDArray[np.float64]


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


@pytest.mark.parametrize("learn_variance", [False, True])
@pytest.mark.parametrize("n_targets", [1, 3])
def test_value_is_the_density_of_the_targets(rng: np.random.Generator, learn_variance: bool, n_targets: int) -> None:
    inputs, targets = rng.standard_normal((40, 3)), rng.standard_normal((40, n_targets))
    gamma, variance, noise_variance = np.array([0.3, 1.2, 0.05]), 1.7 if learn_variance else 1.0, 0.2
    parameters = np.log(np.concatenate([gamma, [variance] * learn_variance, [noise_variance]]))
    covariance = np.empty((40, 40))
    for i in range(40):
        for j in range(40):
            covariance[i, j] = variance * math.exp(-sum(gamma * (inputs[i] - inputs[j]) ** 2)) + noise_variance * (
                i == j
            )
    expected = sum(stats.multivariate_normal(cov=covariance).logpdf(column) for column in targets.T)
    value, _ = evaluate(likelihood(inputs, targets, learn_variance), parameters)
    assert value == pytest.approx(expected, rel=1e-10)


def test_value_and_gradient_agree_with_scikit_learn(rng: np.random.Generator) -> None:
    inputs, targets = rng.standard_normal((80, 3)), rng.standard_normal((80, 1))
    gamma, variance, noise_variance = np.array([0.4, 0.02, 3.0]), 0.6, 0.15
    kernel = ConstantKernel(variance) * RBF(1.0 / np.sqrt(2.0 * gamma)) + WhiteKernel(noise_variance)
    reference = GaussianProcessRegressor(kernel=kernel, optimizer=None, alpha=0.0).fit(inputs, targets[:, 0])
    expected, in_their_logs = reference.log_marginal_likelihood(reference.kernel_.theta, eval_gradient=True)
    value, gradient = evaluate(likelihood(inputs, targets, True), np.log([*gamma, variance, noise_variance]))
    assert value == pytest.approx(expected, rel=1e-10)
    # Theirs: log v, log lengthscale_1..3, log s2, and log lengthscale = -(log gamma + log 2) / 2.
    np.testing.assert_allclose(gradient, [*(-0.5 * in_their_logs[1:4]), in_their_logs[0], in_their_logs[4]], rtol=1e-8)


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
    """What `tune_dataset` needs of a dataset, on arrays."""

    all_inputs: FloatArray
    all_targets: FloatArray
    chunk_rows: int
    feature_names: tuple[str, ...]

    @property
    def n_samples(self) -> int:
        return len(self.all_inputs)

    def all_sample_noise(self) -> None:
        """None is known."""

    def input_rows(self, indices: NDArray[np.int64]) -> FloatArray:
        return self.all_inputs[indices]

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
    assert "at most 3 evaluations" in found.warnings[0]


def test_pure_noise_and_parameters_on_bounds_are_told(rng: np.random.Generator) -> None:
    found = tune(rng.standard_normal((150, 2)), rng.standard_normal(150))
    assert any("no structure found" in text for text in found.warnings)
    exact = tune(np.linspace(-2.0, 2.0, 80)[:, None], np.sin(np.linspace(-2.0, 2.0, 80)) * 1.4)
    assert any(text.startswith("on its lower bound") and "noise variance" in text for text in exact.warnings)


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


def test_cholesky_failure_gives_no_likelihood() -> None:
    # Two equal samples, an amplitude and no noise to speak of: singular to the last bit.
    function = likelihood(np.zeros((2, 1)), np.ones((2, 1)), True)
    assert function(np.array([0.0, 40.0, -40.0])) is None


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
    with pytest.raises(InputError, match="subset must be at least 2; got 1"):
        tune(inputs, targets, subset=1)
    with pytest.raises(InputError, match="tolerance must be positive"):
        tune(inputs, targets, tolerance=-1.0)
    with pytest.raises(InputError, match="restarts must be at least 1"):
        tune(inputs, targets, restarts=0)
    with pytest.raises(InputError, match="2 features, but 1 names"):
        tune(inputs, targets, feature_names=("a",))
    inputs[4, 1] = np.nan
    with pytest.raises(
        InputError, match="inputs hold 1 values that are NaN or infinite, the first in .* row 4, column 1"
    ):
        tune(inputs, targets)
