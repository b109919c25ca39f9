"""Hyperparameters by the evidence of labels: what is found, on subsets, with weights, and to the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import optimize

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from dkgp.models.classification.hyperparameters import LabelTuning, labelled_subsets, tune_labels
from dkgp.models.classification.labels import LabelledData, Labels
from dkgp.models.tuning.kernel_family import family_of
from dkgp.models.tuning.laplace.columns import LogitEvidence
from tests.models.classification.problems import noisy_sine


def test_the_optimum_is_a_general_searchs(rng: np.random.Generator) -> None:
    data, labels = noisy_sine(rng, 70)
    found = tune_labels(LabelledData(data, labels), LabelTuning(likelihood="logit", tolerance=1e-6, isotropic=True))
    inputs = data.inputs(0, 70)
    kernel = SquaredExponential(gamma=(1 / 6,), n_features=3)
    evidence = LogitEvidence(family_of(kernel, inputs, True, data.feature_names), labels.signs())

    def negative(logs: np.ndarray) -> float:
        return -evidence(np.append(logs, 0.0))[0]  # type: ignore[index]

    best = optimize.minimize(negative, np.log([1 / 6, 1.0]), method="Nelder-Mead", options={"fatol": 1e-6})
    assert found.log_marginal_likelihood is not None
    assert_allclose(found.log_marginal_likelihood, -best.fun, rtol=1e-6)
    assert (found.likelihood, found.noise_variance, found.converged) == ("logit", 1.0, True)
    assert [parameter.name for parameter in found.parameters or ()] == ["gamma", "variance"]
    assert Hyperparameters.from_json(found.to_json()) == found


def test_length_scales_tell_the_features_that_matter(rng: np.random.Generator) -> None:
    data, labels = noisy_sine(rng)
    found = tune_labels(LabelledData(data, labels), LabelTuning(likelihood="probit"))
    assert found.gamma[0] > 10.0 * max(found.gamma[1:])


@pytest.mark.parametrize(
    "likelihood",
    ["logit", pytest.param("probit", marks=pytest.mark.slow), pytest.param("softmax", marks=pytest.mark.slow)],
)
def test_subsets_add_up_to_the_same_bits_on_any_number_of_threads(likelihood: str, rng: np.random.Generator) -> None:
    data, labels = noisy_sine(rng, 300, 3)
    weights = rng.uniform(0.5, 2.0, 300)
    results = []
    for threads in (1, 2, 5):
        executor = LocalExecutor(threads)
        try:
            found = tune_labels(
                LabelledData(data, labels, weights),
                LabelTuning(
                    likelihood=likelihood,  # type: ignore[arg-type]
                    kernel="rbf(isotropic=True)",
                    subset=60,
                    subsets=3,
                    folds=3,
                    holdout=0.5,
                    max_evaluations=6,
                ),
                executor,
            )
        finally:
            executor.close()
        results.append(replace(found, seconds=None))
    assert results[0] == results[1] == results[2]
    scores = results[0].scores or {}
    assert scores["folds"]["predictions"] == 180
    assert scores["holdout"]["rows"] == 30
    assert 0.0 < scores["holdout"]["error_rate"] < 0.6
    assert 0.3 < scores["folds"]["log_loss"] < np.log(3.0)


def test_a_rare_class_is_in_every_subset_and_none_is_of_one_class(rng: np.random.Generator) -> None:
    n = 2000
    codes = np.zeros(n, dtype=np.int64)
    codes[:12] = 1
    labels = Labels(("no", "yes"), codes)
    data = memory_dataset(rng.standard_normal((n, 2)), codes.astype(np.float64))
    drawn = labelled_subsets(LabelledData(data, labels), LabelTuning(100, 1, subsets=3, holdout=0.2))
    assert all((signs > 0.0).sum() >= 5 for signs in drawn.labels)
    held = drawn.plan.held_out()
    assert all(len(np.intersect1d(chosen, held)) == 0 for chosen in drawn.indices)
    with pytest.raises(InputError, match="of one class only"):
        labelled_subsets(LabelledData(data, Labels(("no", "yes"), np.zeros(n, dtype=np.int64))), LabelTuning(100))


def test_noise_of_labels_is_said_to_find_nothing(rng: np.random.Generator) -> None:
    data, _ = noisy_sine(rng)
    codes = rng.integers(0, 2, 150)
    found = tune_labels(
        LabelledData(data, Labels(("a", "b"), codes)), LabelTuning(likelihood="logit", kernel="rbf(isotropic=True)")
    )
    assert any("no structure found" in message for message in found.warnings)


def test_what_is_refused(rng: np.random.Generator) -> None:
    data, labels = noisy_sine(rng)
    with pytest.raises(InputError, match="no hyperparameter is called 'noise_variance'; there are"):
        tune_labels(LabelledData(data, labels), LabelTuning(likelihood="logit", fixed={"noise_variance": 0.1}))
    with pytest.raises(InputError, match="leave white noise out of the kernel"):
        tune_labels(LabelledData(data, labels), LabelTuning(likelihood="logit", kernel="rbf + 0.1 * white"))
    with pytest.raises(InputError, match="must be one of logit, probit, softmax"):
        tune_labels(LabelledData(data, labels), LabelTuning(likelihood="gauss"))  # type: ignore[arg-type]
