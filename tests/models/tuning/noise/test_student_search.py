"""Student's t found on a subset: weights against a dense transcription, and what `auto` takes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dkgp.data import Dataset, Standardisation
from dkgp.data.stores.memory_dataset import assembled_dataset
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters, tune_dataset
from dkgp.models.noise import StudentT
from dkgp.models.tuning.noise import Gain, NoiseLikelihood, tune_likelihood, weigh
from dkgp.models.tuning.search import Choices, SearchSettings

NAMES, T = ("a", "b"), StudentT(3.0, 0.02)


def drawn(share: float, seed: int, n: int = 240) -> Dataset:
    rng = np.random.default_rng([seed, 3])
    x = rng.uniform(-2.0, 2.0, (n, 2))
    noise = np.where(rng.random(n) < share, rng.normal(0.0, 2.0, n), rng.normal(0.0, 0.1, n))
    y = np.sin(2.0 * x[:, 0]) + 0.5 * x[:, 1] ** 2 + noise
    inputs, targets = (x - x.mean(axis=0)) / x.std(axis=0), (y - y.mean()) / y.std()
    return assembled_dataset(inputs, targets[:, None], Standardisation.identity(2, 1), NAMES, ("y",), "")


def found(dataset: Dataset, likelihood: NoiseLikelihood, seed: int = 0) -> tuple[Hyperparameters, Hyperparameters]:
    start, size = tune_dataset(dataset, subset=160, seed=seed), 160
    settings = SearchSettings(seed=seed)
    return start, tune_likelihood(dataset, start, likelihood, choices=Choices(), settings=settings, subset=size)


@pytest.mark.parametrize("sure", [False, True])
def test_weights_are_those_of_variational_expectations(sure: bool) -> None:
    dataset = drawn(0.05, 0, 80)
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
        start, tuned = found(drawn(0.0, seed), "auto", seed)
        assert tuned.noise_comparison is not None
        assert tuned.noise_comparison["kind"] == "gaussian"
        assert replace(tuned, noise_comparison=None) == start
        start, tuned = found(drawn(0.06, seed), "auto", seed)
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


def test_what_cannot_be_is_refused() -> None:
    dataset = drawn(0.0, 0, 19)
    start = tune_dataset(dataset)
    with pytest.raises(InputError, match="needs 20; there are 19"):
        tune_likelihood(dataset, start, "auto", choices=Choices(), settings=SearchSettings(), subset=19)
    held = tune_dataset(dataset, fixed={"noise_variance": 0.1})
    with pytest.raises(InputError, match="held fixed"):
        tune_likelihood(dataset, held, "student-t", choices=Choices(), settings=SearchSettings(), subset=19)
    assert tune_likelihood(dataset, held, "gaussian", choices=Choices(), settings=SearchSettings(), subset=19) is held
