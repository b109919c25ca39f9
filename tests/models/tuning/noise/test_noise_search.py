"""Noise models: the likelihood with noise by sample against its formula, and what is found against the truth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, stats

from dkgp.data import Dataset, Standardisation
from dkgp.data.stores.memory_dataset import assembled_dataset
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters, tune_dataset
from dkgp.models.noise import NoiseModel
from dkgp.models.refinement.refine import RefineSpace
from dkgp.models.tuning.families import ArdSquaredExponential
from dkgp.models.tuning.noise import (
    MEAN_LOG_CHI_SQUARED,
    VARIANCE_LOG_CHI_SQUARED,
    fit_noise,
    log_noise,
    noise_features,
    pivoted_factor,
    tune_noise,
)
from dkgp.models.tuning.objectives import BY_DESIGN, OBJECTIVES, DenseObjective, ObjectiveName
from dkgp.models.tuning.search import Choices, SearchSettings
from dkgp.models.tuning.subsets import Subsets, plan_subsets

FloatArray = NDArray[np.float64]
NAMES = ("a", "b")
# Deviations of the noise at inputs between -2 and 2, the first of which it depends on.
DEVIATIONS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "same": lambda x: np.full(len(x), 0.3),
    "linear": lambda x: np.exp(-1.5 + 0.8 * x),
    "bump": lambda x: 0.05 + 0.8 * np.exp(-4.0 * x**2),
}


def drawn(noise: str, seed: int, n: int = 450) -> tuple[Dataset, FloatArray]:
    """Standardised samples, and the deviations of their noise on the targets' scale."""
    rng = np.random.default_rng([seed, 9])
    x = rng.uniform(-2.0, 2.0, (n, 2))
    deviations = DEVIATIONS[noise](x[:, 0])
    y = np.sin(2.0 * x[:, 0]) + 0.5 * x[:, 1] ** 2 + deviations * rng.standard_normal(n)
    inputs, targets = (x - x.mean(axis=0)) / x.std(axis=0), (y - y.mean()) / y.std()
    identity = Standardisation.identity(2, 1)
    return assembled_dataset(inputs, targets[:, None], identity, NAMES, ("y",), ""), deviations / y.std()


def found(dataset: Dataset, kind: str, seed: int = 0, subset: int = 300) -> tuple[Hyperparameters, Hyperparameters]:
    start = tune_dataset(dataset, subset=subset, seed=seed)
    settings = SearchSettings(seed=seed)
    return start, tune_noise(dataset, start, kind, choices=Choices(), settings=settings, subset=subset)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------- objective


def objective_with(name: str, rng: np.random.Generator) -> tuple[DenseObjective, FloatArray, FloatArray, FloatArray]:
    inputs, targets, design = rng.standard_normal((30, 2)), rng.standard_normal((30, 2)), rng.standard_normal((30, 3))
    family = ArdSquaredExponential(inputs, learn_variance=True, feature_names=NAMES)
    return BY_DESIGN[name](family, targets, design), inputs, targets, design  # type: ignore[index]


PARAMETERS = np.array([-0.5, 0.3, 0.2, 0.4, -0.7, 0.1, -1.5])  # gamma, gamma, v, w, w, w, s2


def test_likelihood_is_the_density_with_noise_by_sample(rng: np.random.Generator) -> None:
    objective, inputs, targets, design = objective_with("likelihood", rng)
    gamma, variance = np.exp(PARAMETERS[:2]), math.exp(PARAMETERS[2])
    kernel = SquaredExponential(gamma=tuple(gamma.tolist()), variance=variance)
    covariance = kernel(inputs, inputs) + np.diag(np.exp(PARAMETERS[-1] + design @ PARAMETERS[3:6]))
    expected = sum(stats.multivariate_normal(cov=covariance).logpdf(column) for column in targets.T)
    outcome = objective(PARAMETERS)
    assert outcome is not None
    assert outcome[0] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("name", ["likelihood", "loo"])
def test_gradient_is_that_of_the_value(name: str, rng: np.random.Generator) -> None:
    objective, *_ = objective_with(name, rng)

    def value(parameters: FloatArray) -> float:
        outcome = objective(parameters)
        assert outcome is not None
        return outcome[0]

    outcome = objective(PARAMETERS)
    assert outcome is not None
    numerical = optimize.approx_fprime(PARAMETERS, value, 1e-6)
    np.testing.assert_allclose(outcome[1], numerical, rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["likelihood", "loo"])
def test_without_weights_it_is_the_objective_of_tuning(name: ObjectiveName, rng: np.random.Generator) -> None:
    inputs, targets = rng.standard_normal((30, 2)), rng.standard_normal((30, 1))
    family = ArdSquaredExponential(inputs, learn_variance=False, feature_names=NAMES)
    parameters = np.array([-0.5, 0.3, -1.5])
    plain = OBJECTIVES[name](family, targets)(parameters)
    empty = BY_DESIGN[name](family, targets, np.zeros((30, 0)))(parameters)
    assert plain is not None
    assert empty is not None
    assert plain[0] == pytest.approx(empty[0], rel=1e-14)
    np.testing.assert_allclose(plain[1], empty[1], rtol=1e-12)


def test_noise_that_overflows_has_no_likelihood(rng: np.random.Generator) -> None:
    objective, *_ = objective_with("likelihood", rng)
    assert objective(np.array([0.0, 0.0, 0.0, 800.0, 0.0, 0.0, 0.0])) is None


# -------------------------------------------------------------------------------------------------------- features


def test_logarithm_of_chi_squared_has_these_moments() -> None:
    mean, square = (stats.chi2(1).expect(lambda x, k=k: np.log(x) ** k, lb=0.0) for k in (1, 2))
    assert mean == pytest.approx(MEAN_LOG_CHI_SQUARED, abs=1e-4)
    assert square - mean**2 == pytest.approx(VARIANCE_LOG_CHI_SQUARED, rel=1e-3)


def test_log_noise_is_of_predictions_from_all_other_samples(rng: np.random.Generator) -> None:
    inputs, targets = rng.standard_normal((20, 2)), rng.standard_normal((20, 2))
    kernel, noise = SquaredExponential(gamma=(0.4, 0.9)), 0.3
    residuals = np.empty((20, 2))
    for i in range(20):
        others = np.arange(20) != i
        system = kernel(inputs[others], inputs[others]) + noise * np.eye(19)
        residuals[i] = targets[i] - (kernel(inputs[[i]], inputs[others]) @ np.linalg.solve(system, targets[others]))[0]
    expected = (np.log(residuals**2) - MEAN_LOG_CHI_SQUARED).mean(axis=1)
    np.testing.assert_allclose(log_noise(Hyperparameters(kernel, noise), inputs, targets), expected, rtol=1e-8)


def test_pivoted_factor_is_exact_at_its_pivots_and_below_elsewhere(rng: np.random.Generator) -> None:
    inputs, kernel = rng.standard_normal((200, 2)), SquaredExponential(gamma=(0.1, 0.3), variance=1.7)
    factor, pivots = pivoted_factor(kernel, inputs)
    matrix = kernel(inputs, inputs)
    assert factor.shape == (200, len(pivots))
    assert 5 < len(pivots) <= 50
    np.testing.assert_allclose(factor @ factor[pivots].T, matrix[:, pivots], atol=1e-10)
    left = np.diagonal(matrix) - np.einsum("ij,ij->i", factor, factor)
    assert left.min() > -1e-12
    assert left.max() <= 0.01 * 1.7
    np.testing.assert_allclose(np.triu(factor[pivots], 1), 0.0)


def test_stored_model_is_what_the_search_had() -> None:
    dataset, _ = drawn("bump", 0, 200)
    inputs, targets = dataset.inputs(0, 200), dataset.all_targets()
    start = tune_dataset(dataset, subset=200)
    features = noise_features("gp", start, inputs, targets)
    model = fit_noise("gp", start, inputs, targets, Choices(), SearchSettings(tolerance=1e-3)).noise_model
    assert model is not None
    assert model.kernel is not None
    assert model.basis is not None
    # Weights of the features from coefficients of the kernel: w = L' a.
    assert features.lower is not None
    weights = features.lower.T @ np.array(model.weights)
    expected = np.exp(model.offset + features.design @ weights)
    np.testing.assert_allclose(model.variances(inputs), np.clip(expected, model.lowest, model.highest), rtol=1e-6)
    again = NoiseModel.from_json(model.to_json())
    assert again == model
    assert np.array_equal(again.variances(inputs), model.variances(inputs))


# ------------------------------------------------------------------------------------------------ what is found


@pytest.mark.parametrize(
    ("noise", "kind", "off"),
    [("linear", "linear", 0.2), pytest.param("linear", "gp", 0.3, marks=pytest.mark.slow), ("bump", "gp", 0.6)],
)
def test_the_noise_is_found(noise: str, kind: str, off: float) -> None:
    dataset, deviations = drawn(noise, 1)
    start, tuned = found(dataset, kind, subset=450)
    assert tuned.noise_model is not None
    assert tuned.noise_model.kind == kind
    variances = tuned.noise_model.variances(dataset.inputs(0, 450))
    error = math.sqrt(float(np.mean((np.log(variances) - 2.0 * np.log(deviations)) ** 2)))
    alike = math.sqrt(float(np.mean((math.log(start.noise_variance) - 2.0 * np.log(deviations)) ** 2)))
    assert error < off < 0.5 * alike
    assert tuned.noise_variance == pytest.approx(variances.mean())
    assert tuned.log_marginal_likelihood > start.log_marginal_likelihood + 50.0  # type: ignore[operator]


@pytest.mark.parametrize("noise", ["linear", "bump"])
def test_auto_takes_what_held_out_samples_say(noise: str) -> None:
    _, tuned = found(drawn(noise, 2)[0], "auto")
    comparison = tuned.noise_comparison
    assert comparison is not None
    assert comparison["held_out"] == 150
    scores = {row["kind"]: row["nlpd"] for row in comparison["kinds"]}
    assert comparison["kind"] == {"linear": "linear", "bump": "gp"}[noise]
    assert scores[comparison["kind"]] < scores["none"] - 0.3


@pytest.mark.long
def test_auto_leaves_noise_alone_that_is_the_same_everywhere() -> None:
    taken = []
    for seed in range(10):
        dataset, _ = drawn("same", seed, 240)
        start, tuned = found(dataset, "auto", seed, 160)
        assert tuned.noise_comparison is not None
        taken.append(tuned.noise_comparison["kind"])
        if taken[-1] == "none":
            assert replace(tuned, noise_comparison=None) == start
    assert taken.count("none") >= 9


def test_scores_of_auto_are_those_of_dense_predictions() -> None:
    dataset, _ = drawn("linear", 3, 150)
    start, tuned = found(dataset, "auto", subset=100)
    comparison = tuned.noise_comparison
    assert comparison is not None
    assert comparison["samples"] == 100
    source = Subsets(dataset, plan_subsets(150, 100, seed=0, holdout=0.5))
    (inputs, targets), (new, truth) = source.rows(0), source.held_out()
    model = start
    system = model.kernel(inputs, inputs) + model.noise_variance * np.eye(100)
    cross = model.kernel(new, inputs)
    mean = cross @ np.linalg.solve(system, targets)
    variance = 1.0 - np.einsum("ij,ji->i", cross, np.linalg.solve(system, cross.T)) + model.noise_variance
    expected = -stats.norm(mean[:, 0], np.sqrt(variance)).logpdf(truth[:, 0]).mean()
    assert comparison["kinds"][0]["nlpd"] == pytest.approx(expected, rel=1e-8)


def test_several_targets_share_the_noise() -> None:
    dataset, deviations = drawn("linear", 4)
    rng = np.random.default_rng(4)
    inputs, first = dataset.inputs(0, 450), dataset.all_targets()[:, 0]
    second = np.cos(inputs[:, 1]) + deviations * rng.standard_normal(450)
    targets = np.column_stack([first, second])
    both = assembled_dataset(inputs, targets, Standardisation.identity(2, 2), NAMES, ("y", "z"), "")
    tuned = found(both, "linear", subset=450)[1]
    assert tuned.noise_model is not None
    errors = np.log(tuned.noise_model.variances(inputs)) - 2.0 * np.log(deviations)
    assert math.sqrt(float(np.mean(errors**2))) < 0.15


def test_a_refinement_keeps_no_noise_model() -> None:
    dataset, _ = drawn("linear", 5, 200)
    tuned = found(dataset, "linear", subset=200)[1]
    space = RefineSpace.of_start(tuned, NAMES)
    assert space.unmoved().noise_model == tuned.noise_model
    moved = space.moved(space.first + 0.1)
    assert moved.noise_model is None
    assert moved.noise_variance == pytest.approx(tuned.noise_variance * math.exp(0.1))


def test_known_noise_of_the_data_is_not_reckoned_too() -> None:
    dataset, _ = drawn("same", 0, 60)
    start = tune_dataset(dataset)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(dataset), "all_sample_noise", lambda self: np.full(60, 0.1))
        with pytest.raises(InputError, match="known beside the common one"):
            tune_noise(dataset, start, "linear", choices=Choices(), settings=SearchSettings(), subset=60)
        model = NoiseModel("linear", -2.0, (0.3, 0.0), lowest=0.05, highest=0.5)
        noise = replace(start, noise_model=model).noise_of(dataset)
        expected = model.variances(dataset.inputs(0, 60)) + 0.1
        np.testing.assert_allclose(noise.diagonal, expected, rtol=1e-12)


def test_what_cannot_be_is_refused() -> None:
    dataset, _ = drawn("same", 0, 19)
    start = tune_dataset(dataset)
    held = tune_dataset(dataset, fixed={"noise_variance": 0.1})
    with pytest.raises(InputError, match="needs 20; there are 19"):
        tune_noise(dataset, start, "auto", choices=Choices(), settings=SearchSettings(), subset=19)
    with pytest.raises(InputError, match="held fixed"):
        tune_noise(dataset, held, "linear", choices=Choices(), settings=SearchSettings(), subset=19)
