"""Noise models and Student's t found on a subset: dense transcriptions, known truths, and the choices of `auto`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dkgp.codec import from_json, to_json
from dkgp.data import Dataset, Standardisation
from dkgp.data.stores.memory_dataset import assembled_dataset
from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters, tune_dataset
from dkgp.models.noise import NoiseModel, StudentT
from dkgp.models.refinement.refine import RefineSpace
from dkgp.models.tuning.noise import (
    MEAN_LOG_CHI_SQUARED,
    VARIANCE_LOG_CHI_SQUARED,
    Gain,
    NoiseLikelihood,
    fit_noise,
    log_noise,
    noise_features,
    pivoted_factor,
    tune_likelihood,
    tune_noise,
    weigh,
)
from dkgp.models.tuning.search import Choices, SearchSettings
from dkgp.models.tuning.subsets import Subsets, plan_subsets

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
    again = from_json(NoiseModel, to_json(model))
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


@pytest.mark.spread(1)
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


T = StudentT(3.0, 0.02)


def with_outliers(share: float, seed: int, n: int = 240) -> Dataset:
    rng = np.random.default_rng([seed, 3])
    x = rng.uniform(-2.0, 2.0, (n, 2))
    noise = np.where(rng.random(n) < share, rng.normal(0.0, 2.0, n), rng.normal(0.0, 0.1, n))
    y = np.sin(2.0 * x[:, 0]) + 0.5 * x[:, 1] ** 2 + noise
    inputs, targets = (x - x.mean(axis=0)) / x.std(axis=0), (y - y.mean()) / y.std()
    return assembled_dataset(inputs, targets[:, None], Standardisation.identity(2, 1), NAMES, ("y",), "")


def found_likelihood(
    dataset: Dataset, likelihood: NoiseLikelihood, seed: int = 0
) -> tuple[Hyperparameters, Hyperparameters]:
    start, size = tune_dataset(dataset, subset=160, seed=seed), 160
    settings = SearchSettings(seed=seed)
    return start, tune_likelihood(dataset, start, likelihood, choices=Choices(), settings=settings, subset=size)


@pytest.mark.parametrize("sure", [False, True])
def test_weights_are_those_of_variational_expectations(sure: bool) -> None:
    dataset = with_outliers(0.05, 0, 80)
    X, y = dataset.inputs(0, 80), dataset.all_targets()[:, 0]
    K, w = SquaredExponential((0.5, 0.3))(X, X), np.ones(80)
    while True:
        noise = np.diag(T.scale / w)
        gain = K @ np.linalg.inv(K + noise)
        mean, variance = gain @ y, np.diagonal(K - gain @ K)
        square = (y - mean) ** 2 + (0.0 if sure else variance)
        new = (T.degrees + 1.0) / (T.degrees + square / T.scale)
        if np.abs(new - w).max() <= 0.01:
            break
        w = new
    weighed = weigh(K, y, T, np.full(80, T.scale - T.least), sure=sure)
    np.testing.assert_allclose(T.weights(weighed.beyond), w, rtol=1e-7)
    # Errors and variances are of each sample given all others under these weights.
    for i in (0, 17, 79):
        others = np.arange(80) != i
        system = (K + noise)[np.ix_(others, others)]
        cross = K[i, others]
        assert weighed.errors[i] == pytest.approx(y[i] - cross @ np.linalg.solve(system, y[others]), abs=1e-8)
        latent = K[i, i] - cross @ np.linalg.solve(system, cross)
        assert weighed.latent[i] == pytest.approx(latent, abs=1e-8)


@pytest.mark.long
def test_scale_and_degrees_are_those_of_the_noise() -> None:
    rng = np.random.default_rng(2)
    x = rng.uniform(-2.0, 2.0, (600, 2))
    y = np.sin(2.0 * x[:, 0]) + 0.5 * x[:, 1] ** 2 + 0.15 * rng.standard_t(4.0, 600)
    inputs, targets = (x - x.mean(axis=0)) / x.std(axis=0), (y - y.mean()) / y.std()
    dataset = assembled_dataset(inputs, targets[:, None], Standardisation.identity(2, 1), NAMES, ("y",), "")
    start = tune_dataset(dataset, subset=600)
    tuned = tune_likelihood(dataset, start, "student-t", choices=Choices(), settings=SearchSettings(), subset=600)
    t = tuned.student_t
    assert t is not None
    assert 2.8 < t.degrees < 7.0
    assert math.sqrt(t.scale) * y.std() == pytest.approx(0.15, rel=0.12)
    assert tuned.noise_variance == t.variance
    assert tuned.parameters is not None
    assert tuned.parameters[-1].value == t.variance


@pytest.mark.long
def test_auto_takes_student_where_there_are_outliers_and_nowhere_else() -> None:
    for seed in range(2):
        start, tuned = found_likelihood(with_outliers(0.0, seed), "auto", seed)
        assert tuned.noise_comparison is not None
        assert tuned.noise_comparison["kind"] == "gaussian"
        assert replace(tuned, noise_comparison=None) == start
        start, tuned = found_likelihood(with_outliers(0.06, seed), "auto", seed)
        assert tuned.noise_comparison is not None
        scores = {row["kind"]: row["nlpd"] for row in tuned.noise_comparison["kinds"]}
        assert tuned.noise_comparison["kind"] == "student-t"
        assert scores["student-t"] < scores["gaussian"] - 0.2
        assert tuned.student_t is not None
        assert tuned.student_t.degrees < 8.0


def test_a_single_sample_decides_nothing() -> None:
    before = np.zeros(50)
    one = before.copy()
    one[3] = -1000.0
    assert not Gain.of(before, one).decides
    assert Gain.of(before, one).mean == pytest.approx(3.0 / 50)
    assert Gain.of(before, before - 0.1).decides
    assert not Gain.of(before, before - 0.004).decides
    # Losses are not limited.
    worse = before - 0.1
    worse[3] = 1000.0
    assert Gain.of(before, worse).mean < -10.0


def test_searches_of_a_likelihood_that_cannot_be_are_refused() -> None:
    dataset = with_outliers(0.0, 0, 19)
    start = tune_dataset(dataset)
    with pytest.raises(InputError, match="needs 20; there are 19"):
        tune_likelihood(dataset, start, "auto", choices=Choices(), settings=SearchSettings(), subset=19)
    held = tune_dataset(dataset, fixed={"noise_variance": 0.1})
    with pytest.raises(InputError, match="held fixed"):
        tune_likelihood(dataset, held, "student-t", choices=Choices(), settings=SearchSettings(), subset=19)
    assert tune_likelihood(dataset, held, "gaussian", choices=Choices(), settings=SearchSettings(), subset=19) is held
