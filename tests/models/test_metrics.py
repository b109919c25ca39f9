"""Evaluation against direct formulas, with training and test sets that are standardised differently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from dkgp.data import Dataset, Prediction, PredictionWriter
from dkgp.data.dataset_writer import dataset_from_arrays
from dkgp.errors import ExitCode, InputError
from dkgp.models.metrics import evaluate

TRAIN_STD = np.array([40.0, 0.03])
N = 90


@pytest.fixture
def y(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(N, 2)) * [50.0, 0.02] + [1000.0, -3.0]


@pytest.fixture
def dataset(rng: np.random.Generator, y: np.ndarray, tmp_path: Path) -> Dataset:
    return dataset_from_arrays(tmp_path / "test", rng.normal(size=(N, 3)), y, target_names=("a", "b"), chunk_rows=40)


def written(
    folder: Path, dataset: Dataset, arrays: dict[str, np.ndarray], *, names: tuple[str, ...] = ("a", "b"), **more: Any
) -> Prediction:
    attributes = {"target_std": TRAIN_STD[: len(names)].tolist(), "data_fingerprint": dataset.fingerprint, **more}
    attributes = {key: value for key, value in attributes.items() if value is not None}
    n = len(arrays["mean"])
    writer = PredictionWriter.create(folder / "prediction", n, names, tuple(arrays), 25, attributes)
    for start in range(0, n, 25):
        writer.write(start, **{name: values[start : start + 25] for name, values in arrays.items()})
    return writer.commit()


def test_means_alone(rng: np.random.Generator, y: np.ndarray, dataset: Dataset, tmp_path: Path) -> None:
    mean = y + rng.normal(size=y.shape) * [5.0, 0.01]
    bound = np.abs(rng.normal(size=y.shape)) * [0.1, 0.001]
    found = evaluate(written(tmp_path, dataset, {"mean": mean, "mean_error_bound": bound}), dataset)
    rmse = np.sqrt(np.mean((y - mean) ** 2 / TRAIN_STD**2, axis=0))
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2 / TRAIN_STD**2)))
    assert found["rmse_raw"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)))
    assert found["mae_raw"] == pytest.approx(np.mean(np.abs(y - mean)))
    assert found["mean_error_bound"] == pytest.approx(np.max(bound / TRAIN_STD))
    assert [found["per_target"][name]["rmse"] for name in "ab"] == pytest.approx(rmse.tolist())
    assert (found["n"], found["nlpd"], found["coverage_95"]) == (N, None, None)
    json.dumps(found)


def test_with_variances(rng: np.random.Generator, y: np.ndarray, dataset: Dataset, tmp_path: Path) -> None:
    std = np.exp(rng.normal(size=y.shape)) * [5.0, 0.01]
    mean = y + 1.3 * std * rng.normal(size=y.shape)
    found = evaluate(written(tmp_path, dataset, {"mean": mean, "variance": std**2}), dataset)
    # The density of the targets on the standardised scale, where a change of units makes no difference.
    density = norm.logpdf(y / TRAIN_STD, mean / TRAIN_STD, std / TRAIN_STD)
    assert found["nlpd"] == pytest.approx(-np.mean(density))
    low, high = norm.interval(0.95, mean, std)
    inside = np.mean((low <= y) & (y <= high))
    assert 0.5 < inside < 0.95
    assert found["coverage_95"] == pytest.approx(inside)


def test_perfect_predictions(y: np.ndarray, dataset: Dataset, tmp_path: Path) -> None:
    found = evaluate(written(tmp_path, dataset, {"mean": y}), dataset)
    assert (found["rmse"], found["rmse_raw"], found["mae_raw"]) == (0.0, 0.0, 0.0)


def test_one_target(rng: np.random.Generator, y: np.ndarray, tmp_path: Path) -> None:
    single = dataset_from_arrays(tmp_path / "single", rng.normal(size=(N, 2)), y[:, 0], target_names=("a",))
    found = evaluate(written(tmp_path, single, {"mean": y[:, :1] + 20.0}, names=("a",)), single)
    assert found["rmse"] == pytest.approx(0.5)
    assert found["rmse_raw"] == pytest.approx(20.0)
    assert "per_target" not in found


def test_predicting_the_training_mean_is_an_rmse_of_one(rng: np.random.Generator, tmp_path: Path) -> None:
    y = rng.normal(size=2000) * 40.0 + 7.0
    dataset = dataset_from_arrays(tmp_path / "large", rng.normal(size=(2000, 1)), y, target_names=("a",))
    found = evaluate(written(tmp_path, dataset, {"mean": np.full((2000, 1), 7.0)}, names=("a",)), dataset)
    assert found["rmse"] == pytest.approx(1.0, abs=0.06)


def test_without_the_training_deviation_the_datasets_own_is_used(
    y: np.ndarray, dataset: Dataset, tmp_path: Path
) -> None:
    found = evaluate(written(tmp_path, dataset, {"mean": y + y.std(axis=0)}, target_std=None), dataset)
    assert found["rmse"] == pytest.approx(1.0)


def test_other_numbers_of_samples_are_refused(y: np.ndarray, dataset: Dataset, tmp_path: Path) -> None:
    shorter = written(tmp_path, dataset, {"mean": y[:75]}, data_fingerprint=None)
    with pytest.raises(InputError, match=r"has 75 samples, .* has 90") as caught:
        evaluate(shorter, dataset)
    assert caught.value.exit_code is ExitCode.BAD_INPUT


def test_other_data_of_the_same_length_are_refused(y: np.ndarray, dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="other data"):
        evaluate(written(tmp_path, dataset, {"mean": y}, data_fingerprint="0" * 64), dataset)


@pytest.mark.parametrize("names", [("a", "c"), ("b", "a")])
def test_other_targets_are_refused(y: np.ndarray, dataset: Dataset, tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="targets"):
        evaluate(written(tmp_path, dataset, {"mean": y}, names=names), dataset)


def test_data_without_targets_are_refused(
    rng: np.random.Generator, y: np.ndarray, dataset: Dataset, tmp_path: Path
) -> None:
    blind = dataset_from_arrays(tmp_path / "blind", rng.normal(size=(N, 3)), None)
    with pytest.raises(InputError, match="no targets"):
        evaluate(written(tmp_path, dataset, {"mean": y}), blind)
