"""Predictions of classifiers against the dense formulas; regions that are there are not computed again."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.codec import to_json
from dkgp.data import (
    ClassifierRecord,
    Dataset,
    dataset_from_arrays,
    memory_classifier,
    open_classifier,
    open_prediction,
    save_classifier,
)
from dkgp.data.stores.models.classifier import FixedSizeRecord
from dkgp.data.stores.models.model import about_model
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from dkgp.models.classification.calibration import Calibration
from dkgp.models.classification.exact import ExactSettings, train_exact
from dkgp.models.classification.labels import LabelledData, labels_of
from dkgp.models.prediction.predict import Destination, predict
from dkgp.models.variance.settings import VarianceSettings
from tests.models.posteriors import class_posterior

K, TESTS, ROWS = 9, 700, 200
GAMMA = np.array([0.3, 0.7, 0.1])
KERNEL = SquaredExponential(gamma=tuple(GAMMA))


def dense(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.exp(-(((a[:, None] - b[None]) ** 2) * GAMMA).sum(axis=2))  # type: ignore[no-any-return]


@pytest.fixture
def train(rng: np.random.Generator, tmp_path: Path) -> Dataset:
    X = rng.standard_normal((150, 3)) * (1.0, 20.0, 0.1) + (0.0, 5.0, 1.0)
    return dataset_from_arrays(
        tmp_path / "train.zarr", X, rng.integers(0, 3, 150).astype(float), classes=("a", "b", "c")
    )


@pytest.fixture
def unseen(rng: np.random.Generator, tmp_path: Path, train: Dataset) -> Dataset:
    X = rng.standard_normal((TESTS, 3)) * (1.0, 20.0, 0.1) + (0.0, 5.0, 1.0)
    return dataset_from_arrays(tmp_path / "test.zarr", X, None, chunk_rows=ROWS)


def fixed(train: Dataset, n_classes: int, seed: int = 0) -> FixedSizeRecord:
    rng, t = np.random.default_rng(seed), 1 if n_classes == 2 else n_classes
    about = about_model(train, kernel=KERNEL.to_json(), noise_variance=0.1, summary={"converged": True})
    return FixedSizeRecord(
        **about,
        classes=("a", "b", "c")[:n_classes],
        prototypes=rng.standard_normal((K, 3)),
        weights=rng.standard_normal((K, t)),
        intercept=rng.standard_normal(t),
        calibration=to_json(Calibration(slope=(2.0,) * t, offset=(0.3,) * t)),
    )


def predicted(
    record: ClassifierRecord,
    unseen: Dataset,
    folder: Path,
    *,
    variance: VarianceSettings | None = None,
    **place: Any,
) -> dict[str, np.ndarray]:
    save_classifier(folder / "model.zarr", record, overwrite=True)
    with closing(LocalExecutor(2)) as executor:
        out = Destination(str(folder / "pred.zarr"), **place)
        predict(open_classifier(folder / "model.zarr"), unseen, out, executor, variance=variance)
    stored = open_prediction(str(folder / "pred.zarr"))
    return {name: stored.read(name) for name in stored.variables}


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_fixed_size_ones_decisions_are_the_sums(
    train: Dataset, unseen: Dataset, tmp_path: Path, n_classes: int
) -> None:
    record = fixed(train, n_classes)
    found = predicted(record, unseen, tmp_path, chunk_rows=ROWS)
    X = train.standardisation.inputs(unseen.raw_inputs(0, TESTS))
    decisions = dense(X, record.prototypes) @ record.weights + record.intercept
    np.testing.assert_allclose(found["decision"], decisions, rtol=1e-12, atol=1e-13)
    sure = 1.0 / (1.0 + np.exp(-(2.0 * decisions + 0.3)))
    if n_classes == 2:
        codes, probability = (decisions[:, 0] >= 0).astype(int), np.column_stack([1.0 - sure, sure])
    else:
        codes, probability = decisions.argmax(axis=1), sure / sure.sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(found["class"][:, 0], codes)
    np.testing.assert_allclose(found["probability"], probability, rtol=1e-10)
    assert found.keys() == {"decision", "class", "probability"}


def test_an_exact_ones_decisions_are_within_their_bounds_of_the_dense_solution(
    train: Dataset, unseen: Dataset, tmp_path: Path
) -> None:
    labels, noise = labels_of(train), 0.05
    with closing(LocalExecutor(2)) as executor:
        # So far from converged that bounds matter.
        data, settings = LabelledData(train, labels), ExactSettings(tolerance=0.3)
        record = train_exact(data, Hyperparameters(KERNEL, noise), executor, settings).record(data)
    save_classifier(tmp_path / "model.zarr", record, dataset=train)
    with closing(LocalExecutor(2)) as executor:
        summary = predict(open_classifier(tmp_path / "model.zarr"), unseen, str(tmp_path / "pred.zarr"), executor)
    stored = open_prediction(str(tmp_path / "pred.zarr"))
    X, Z = train.standardisation.inputs(unseen.raw_inputs(0, TESTS)), train.inputs(0, 150)
    bordered = np.block([[dense(Z, Z) + noise * np.eye(150), np.ones((150, 1))], [np.ones((1, 150)), np.zeros((1, 1))]])
    solved = np.linalg.solve(bordered, np.vstack([labels.signs(), np.zeros((1, 3))]))
    best = dense(X, Z) @ solved[:150] + solved[150]
    decisions, bounds = stored.read("decision"), stored.read("decision_error_bound")
    assert (np.abs(decisions - best) <= bounds).all()
    certified = stored.certified()
    np.testing.assert_array_equal(stored.labels()[certified], best.argmax(axis=1)[certified])
    assert summary.classes is not None
    assert summary.classes["certified"] == certified.sum()
    assert summary.classes["largest_decision_error_bound"] == bounds.max()
    assert summary.largest_mean_error_bound is None


def test_variances_are_refused(train: Dataset, unseen: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="`variance`: .* is a classifier, which has no variances"):
        predicted(fixed(train, 2), unseen, tmp_path, variance=VarianceSettings())
    assert not (tmp_path / "pred.zarr").exists()


def test_what_is_not_there_is_said(train: Dataset) -> None:
    predictor = class_posterior(memory_classifier(replace(fixed(train, 2), calibration=None)), "test-missing")
    found = predictor(np.zeros((2, 3)))
    assert "decision_error_bound" not in found
    with pytest.raises(InputError, match="trained without probabilities"):
        _ = found["probability"]
    with pytest.raises(InputError, match="proves nothing of an exact one"):
        _ = found["certified"] > 0.0
