"""Predictions of classifiers on a basis: stored, in memory, on workers, and against dense formulas."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr, softmax

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset, dataset_from_arrays, open_classifier, open_prediction, save_classifier
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models.classification.labels import LabelledData, labels_of
from dkgp.models.prediction.predict import Destination, predict
from tests.models.classification.problems import exact_decisions, trained
from tests.models.posteriors import class_posterior

KERNEL = SquaredExponential(gamma=(0.3, 0.7, 0.1))
TESTS, ROWS = 150, 50


@pytest.fixture
def unseen(rng: np.random.Generator, tmp_path: Path) -> Dataset:
    return dataset_from_arrays(
        tmp_path / "test.zarr", 2.0 * rng.standard_normal((TESTS, 3)) + 1.0, None, chunk_rows=ROWS
    )


def training_set(rng: np.random.Generator, folder: Path, n_classes: int) -> Dataset:
    X = 2.0 * rng.standard_normal((150, 3)) + 1.0
    codes = np.digitize(X[:, 0] + rng.standard_normal(150), (0.5, 1.5)[: n_classes - 1])
    return dataset_from_arrays(folder / "train.zarr", X, codes.astype(float), classes=("a", "b", "c")[:n_classes])


def stored(rng: np.random.Generator, folder: Path, n_classes: int = 3, **more: Any) -> tuple[Dataset, Any]:
    dataset = training_set(rng, folder, n_classes)
    labels = labels_of(dataset)
    found = trained(dataset, labels, kernel=KERNEL, size=25, **more)
    save_classifier(str(folder / "model.zarr"), found.record(LabelledData(dataset, labels)))
    return dataset, found


def predicted(folder: Path, unseen: Dataset, executor: Any, name: str = "pred") -> dict[str, np.ndarray]:
    predict(
        open_classifier(folder / "model.zarr"),
        unseen,
        Destination(str(folder / f"{name}.zarr"), chunk_rows=ROWS),
        executor,
    )
    held = open_prediction(str(folder / f"{name}.zarr"))
    return {variable: held.read(variable) for variable in held.variables}


def test_a_logistic_one_and_its_certificate(rng: np.random.Generator, unseen: Dataset, tmp_path: Path) -> None:
    dataset, found = stored(rng, tmp_path, multi_class="softmax", settings={"certify": True})
    with closing(LocalExecutor(2)) as executor:
        values = predicted(tmp_path, unseen, executor)
    X = dataset.standardisation.inputs(unseen.raw_inputs(0, TESTS))
    decisions = KERNEL(X, found.prototypes) @ found.weights
    np.testing.assert_allclose(values["decision"], decisions, atol=1e-11)
    np.testing.assert_allclose(values["probability"], softmax(decisions, axis=1), atol=1e-11)
    np.testing.assert_array_equal(values["class"][:, 0], decisions.argmax(axis=1))
    exact = exact_decisions(dataset, labels_of(dataset), X, KERNEL, found.likelihood, 1.0)
    assert (np.abs(values["decision"] - exact) <= values["decision_error_bound"]).all()
    assert (values["probability_lower"] <= softmax(exact, axis=1)).all()
    assert (values["probability_upper"] >= softmax(exact, axis=1)).all()
    certified = values["certified"][:, 0] > 0
    assert (values["class"][certified, 0] == exact.argmax(axis=1)[certified]).all()


def test_a_process_averages(rng: np.random.Generator, unseen: Dataset, tmp_path: Path) -> None:
    dataset, found = stored(rng, tmp_path, 2, form="gp", link="probit", settings={"certify": True})
    with closing(LocalExecutor(2)) as executor:
        values = predicted(tmp_path, unseen, executor)
    X = dataset.standardisation.inputs(unseen.raw_inputs(0, TESTS))
    phi = np.linalg.solve(found.kernel_lower, KERNEL(found.prototypes, X))
    solved = np.linalg.solve(found.posterior_lower[0], phi)
    variance = 1.0 - (phi**2).sum(axis=0) + (solved**2).sum(axis=0)
    mean = KERNEL(X, found.prototypes) @ found.weights[:, 0]
    np.testing.assert_allclose(values["latent_variance_lower"][:, 0], variance, atol=1e-8)
    np.testing.assert_array_equal(values["latent_variance_lower"], values["latent_variance_upper"])
    np.testing.assert_allclose(values["probability"][:, 1], ndtr(mean / np.sqrt(1.0 + variance)), atol=1e-8)
    assert "certified" in values
    assert "probability_lower" not in values


@pytest.mark.parametrize("more", [{"multi_class": "softmax"}, {"multi_class": "ovr"}], ids=["softmax", "ovr"])
def test_several_classes_average_in_memory_as_in_a_store(
    more: dict[str, Any], rng: np.random.Generator, unseen: Dataset, tmp_path: Path
) -> None:
    dataset, found = stored(rng, tmp_path, form="gp", **more)
    with closing(LocalExecutor(2)) as executor:
        values = predicted(tmp_path, unseen, executor)
    predictor = class_posterior(open_classifier(tmp_path / "model.zarr"), f"in-memory-{tmp_path}", threads=2)
    here = predictor(unseen.raw_inputs(0, TESTS))
    np.testing.assert_allclose(here["probability"], values["probability"], atol=1e-12)
    np.testing.assert_array_equal(here["class"].astype(int), values["class"][:, 0])
    np.testing.assert_allclose(here["probability"].sum(axis=1), 1.0, atol=1e-12)
    with pytest.raises(InputError, match="certify the basis of one"):
        _ = here["certified"] > 0.0
    if more["multi_class"] == "softmax":
        # By draws of the latent values' joint posterior, a few inputs.
        X = dataset.standardisation.inputs(unseen.raw_inputs(0, 5))
        phi = np.linalg.solve(found.kernel_lower, KERNEL(found.prototypes, X))
        for row in range(5):
            wide = np.kron(np.eye(3), phi[:, row])
            solved = np.linalg.solve(found.posterior_lower[0], wide.T)
            covariance = solved.T @ solved + (1.0 - phi[:, row] @ phi[:, row]) * np.eye(3)
            draws = rng.multivariate_normal(here["decision"][row], covariance, 50_000)
            np.testing.assert_allclose(here["probability"][row], softmax(draws, axis=1).mean(axis=0), atol=1e-2)
