"""Predictions of classifiers against the dense formulas; regions that are there are not computed again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.codec import from_json, to_json
from dkgp.data import (
    ClassifierRecord,
    Dataset,
    PredictionWriter,
    dataset_from_arrays,
    memory_classifier,
    memory_dataset,
    open_classifier,
    open_prediction,
    save_classifier,
)
from dkgp.data.stores.models.classifier import FixedSizeRecord
from dkgp.data.stores.models.model import about_model
from dkgp.errors import InputError, InterruptedRunError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from dkgp.models.classification.calibration import Calibration
from dkgp.models.classification.exact import ExactSettings, train_exact
from dkgp.models.classification.labels import LabelledData, labels_of
from dkgp.models.context import RunContext
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
    interrupted: Callable[[], bool] | None = None,
    variance: VarianceSettings | None = None,
    **place: Any,
) -> dict[str, np.ndarray]:
    save_classifier(folder / "model.zarr", record, overwrite=True)
    with closing(LocalExecutor(2)) as executor:
        context = RunContext(executor, interrupted=interrupted)
        out = Destination(str(folder / "pred.zarr"), **place)
        predict(open_classifier(folder / "model.zarr"), unseen, out, context, variance=variance)
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


def test_an_interrupted_prediction_goes_on_where_it_was(
    train: Dataset, unseen: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = fixed(train, 3)
    whole = predicted(record, unseen, tmp_path, chunk_rows=ROWS)
    asked: list[int] = []

    def after_two() -> bool:
        asked.append(1)
        return len(asked) > 2

    with pytest.raises(InterruptedRunError, match="interrupted after 400 of 700 test samples"):
        predicted(record, unseen, tmp_path, chunk_rows=ROWS, overwrite=True, interrupted=after_two)
    written: list[int] = []
    write = PredictionWriter.write
    monkeypatch.setattr(
        PredictionWriter, "write", lambda self, start, **given: written.append(start) or write(self, start, **given)
    )
    with closing(LocalExecutor(2)) as executor:
        model = open_classifier(tmp_path / "model.zarr")
        summary = predict(model, unseen, Destination(str(tmp_path / "pred.zarr"), resume=True), executor)
        assert written == [400, 600]
        stored = open_prediction(str(tmp_path / "pred.zarr"))
        for name, values in whole.items():
            assert stored.read(name).tobytes() == values.tobytes()
        assert summary.classes is not None
        counts = np.bincount(stored.labels(), minlength=3)
        assert summary.classes["counts"] == dict(zip("abc", counts.tolist(), strict=True))
        assert summary.classes["computed"] == 300
        other = replace(model, fingerprint="other")
        with pytest.raises(InputError, match="was predicted from another model"):
            predict(other, unseen, Destination(str(tmp_path / "pred.zarr"), resume=True), executor)


def test_variances_are_refused(train: Dataset, unseen: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="`variance`: .* is a classifier, which has no variances"):
        predicted(fixed(train, 2), unseen, tmp_path, variance=VarianceSettings())
    assert not (tmp_path / "pred.zarr").exists()


# A classifier's predictor of rows in memory, against a naive sum over its points.


ONE_KERNEL = SquaredExponential(gamma=(0.7, 0.2))


def fixed_size(rng: np.random.Generator, names: tuple[str, ...], calibrated: bool = True) -> ClassifierRecord:
    t = 1 if len(names) == 2 else len(names)
    dataset = memory_dataset(rng.normal(size=(30, 2)) * (3.0, 0.1) + 5.0, np.arange(30) % len(names), classes=names)
    calibration = Calibration(rng.uniform(1.0, 3.0, size=t), rng.normal(size=t))
    return memory_classifier(
        ClassifierRecord(
            **about_model(dataset, kernel=ONE_KERNEL.to_json(), noise_variance=0.1),
            form="fixed-size",
            classes=names,
            intercept=rng.normal(size=t),
            prototypes=rng.normal(size=(7, 2)),
            weights=rng.normal(size=(7, t)),
            calibration=to_json(calibration) if calibrated else None,
        )
    )


@pytest.mark.parametrize("names", [("no", "yes"), ("ape", "bee", "cat")])
def test_decisions_are_sums_over_prototypes(rng: np.random.Generator, names: tuple[str, ...]) -> None:
    record = fixed_size(rng, names)
    # More than one piece.
    X = rng.normal(size=(3000, 2)) * (3.0, 0.1) + 5.0
    assert record.prototypes is not None
    assert record.weights is not None
    known = ONE_KERNEL(record.standardisation.inputs(X), record.prototypes) @ record.weights + record.intercept
    found = class_posterior(record, f"test-sums-{len(names)}")(X)
    np.testing.assert_allclose(found["decision"], known, rtol=1e-10, atol=1e-12)
    codes = (known[:, 0] >= 0.0).astype(int) if len(names) == 2 else known.argmax(axis=1)
    np.testing.assert_array_equal(found["class"].astype(int), codes)
    assert record.calibration is not None
    np.testing.assert_allclose(found["probability"], from_json(Calibration, record.calibration).probabilities(known))


def test_what_is_not_there_is_said(rng: np.random.Generator) -> None:
    predictor = class_posterior(fixed_size(rng, ("no", "yes"), calibrated=False), "test-missing")
    found = predictor(np.zeros((2, 2)))
    assert "decision_error_bound" not in found
    with pytest.raises(InputError, match="trained without probabilities"):
        _ = found["probability"]
    with pytest.raises(InputError, match="proves nothing of an exact one"):
        _ = found["certified"] > 0.0
