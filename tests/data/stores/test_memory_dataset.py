"""Data sets in memory: what a store of the same arrays would be, shared within a process and refused in another."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import (
    append_rows,
    dataset_from_arrays,
    memory_dataset,
    memory_model,
    open_model,
    open_prediction,
    save_model,
)
from dkgp.data.stores.models.regression import ModelRecord
from dkgp.errors import InputError, StoreError
from dkgp.kernels import parse_kernel
from dkgp.models import predict, save, train

pytestmark = pytest.mark.filterwarnings("ignore:The feature:UserWarning")


@pytest.fixture
def arrays(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    X = np.column_stack([rng.normal(5.0, 2.0, 50), np.full(50, 3.0), rng.normal(size=50)])
    return X, rng.normal(size=(50, 2)) * (1.0, 100.0)


def test_it_is_what_a_store_of_the_same_arrays_is(arrays: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    stored, held = dataset_from_arrays(tmp_path / "d.zarr", *arrays), memory_dataset(*arrays)
    assert held.fingerprint == stored.fingerprint
    assert held.standardisation == stored.standardisation
    assert (held.feature_names, held.target_names) == (stored.feature_names, stored.target_names)
    assert (held.n_samples, held.n_features, held.n_targets) == (50, 2, 2)
    rows = np.array([7, 3, 3, 49])
    np.testing.assert_array_equal(held.inputs(5, 20), stored.inputs(5, 20))
    np.testing.assert_array_equal(held.input_rows(rows), stored.input_rows(rows))
    np.testing.assert_array_equal(held.targets(5, 20), stored.targets(5, 20))
    np.testing.assert_allclose(held.inputs(0, 9, False), stored.inputs(0, 9, False), rtol=1e-14)
    np.testing.assert_allclose(held.targets(0, 9, False), stored.targets(0, 9, False), rtol=1e-13)


@pytest.mark.parametrize("stored", [False, True])
def test_appended_rows_keep_the_scale(arrays: tuple[np.ndarray, np.ndarray], tmp_path: Path, stored: bool) -> None:
    X, y = arrays
    first = dataset_from_arrays(tmp_path / "d.zarr", X[:40], y[:40]) if stored else memory_dataset(X[:40], y[:40])
    longer = append_rows(append_rows(first, X[40:45], y[40:45]), X[45:], y[45:])
    standardisation = first.standardisation
    assert (longer.n_samples, longer.standardisation) == (50, standardisation)
    np.testing.assert_array_equal(longer.inputs(0, 50), standardisation.inputs(X))
    np.testing.assert_array_equal(longer.inputs(38, 47), standardisation.inputs(X[38:47]))
    np.testing.assert_array_equal(longer.targets(38, 47), standardisation.targets(y[38:47]))
    rows = np.array([48, 2, 39, 40, 44])
    np.testing.assert_array_equal(longer.input_rows(rows), standardisation.inputs(X[rows]))
    assert len({first.fingerprint, longer.fingerprint, append_rows(first, X[40:], y[40:]).fingerprint}) == 3
    with pytest.raises(InputError, match="finite"):
        append_rows(first, X[40:] * np.nan, y[40:])
    with pytest.raises(InputError, match="shape"):
        append_rows(first, X[40:, :2], y[40:])


def test_constant_columns(rng: np.random.Generator) -> None:
    only = memory_dataset(np.full((5, 2), 4.0), np.full(5, 3.0))
    np.testing.assert_array_equal(only.inputs(0, 5), np.zeros((5, 2)))
    np.testing.assert_array_equal(only.targets(0, 5), np.zeros((5, 1)))
    with pytest.raises(InputError, match="too large"):
        memory_dataset(np.array([[1e200], [-1e200]]), [0.0, 1.0])


def test_another_process_is_told_where_the_rows_are(arrays: tuple[np.ndarray, np.ndarray]) -> None:
    held = memory_dataset(*arrays)
    sent = pickle.dumps(held)
    assert len(sent) < 2_000
    np.testing.assert_array_equal(pickle.loads(sent).inputs(0, 50), held.inputs(0, 50))
    code = "import pickle, sys\ntry:\n pickle.load(sys.stdin.buffer).inputs(0, 5)\nexcept Exception as e:\n print(e)"
    answer = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True).stdout
    assert b"another process's memory" in answer


def test_models_in_memory_and_what_training_goes_on_from(
    arrays: tuple[np.ndarray, np.ndarray], rng: np.random.Generator, tmp_path: Path
) -> None:
    dataset = memory_dataset(*arrays)
    alpha, gradient = rng.normal(size=(50, 2)), rng.normal(size=(50, 2))
    model = memory_model(dataset, kernel={"type": "rbf"}, noise_variance=0.1, alpha=alpha)
    address = model.address
    assert ModelRecord.find(address) is model
    np.testing.assert_array_equal(model.inputs(3, 9), dataset.inputs(3, 9))
    del model
    with pytest.raises(StoreError):
        ModelRecord.find(address)
    common = {"kernel": {"type": "rbf"}, "noise_variance": 0.1, "alpha": alpha, "dataset": dataset}
    save_model(tmp_path / "m.zarr", gradient=gradient, **common)
    state = open_model(tmp_path / "m.zarr").training_state()
    assert state is not None
    np.testing.assert_array_equal(state[1], gradient)
    np.testing.assert_array_equal(state[0].targets(0, 50), dataset.targets(0, 50))
    np.testing.assert_array_equal(state[0].input_rows(np.array([4, 1])), dataset.input_rows(np.array([4, 1])))
    assert state[0].fingerprint == dataset.fingerprint
    with pytest.raises(InputError, match="gradient has shape"):
        save_model(tmp_path / "n.zarr", gradient=gradient[:3], **common)
    assert not (tmp_path / "n.zarr").exists()


def test_another_training_set_sees_it_as_it_sees_a_store(
    arrays: tuple[np.ndarray, np.ndarray], rng: np.random.Generator, tmp_path: Path
) -> None:
    # The training set keeps a feature that is constant here, and has them in another order.
    train = memory_dataset(
        rng.normal(2.0, 3.0, (30, 3)), rng.normal(7.0, 0.1, (30, 2)), feature_names=["x2", "x1", "x0"]
    )
    stored, held = dataset_from_arrays(tmp_path / "d.zarr", *arrays), memory_dataset(*arrays)
    seen_by = train.feature_names, train.target_names, train.standardisation
    expected, found = stored.as_seen_by(*seen_by), held.as_seen_by(*seen_by)
    rows = np.array([7, 3, 3, 49])
    np.testing.assert_allclose(found.inputs(5, 20), expected.inputs(5, 20), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.input_rows(rows), expected.input_rows(rows), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.targets(5, 20), expected.targets(5, 20), rtol=1e-12)
    np.testing.assert_allclose(found.targets(5, 20, False), arrays[1][5:20], rtol=1e-13)
    swapped = memory_dataset(*arrays).with_standardisation(
        dataset_from_arrays(tmp_path / "other.zarr", 2.0 * arrays[0], -arrays[1]).standardisation
    )
    np.testing.assert_allclose(
        swapped.inputs(0, 50), (arrays[0] - 2.0 * arrays[0].mean(0))[:, [0, 2]] / (2.0 * arrays[0].std(0)[[0, 2]])
    )


def test_predictions_at_samples_in_memory_are_those_at_a_store_of_them(
    arrays: tuple[np.ndarray, np.ndarray], rng: np.random.Generator, tmp_path: Path
) -> None:
    train_inputs = rng.normal(0.0, 1.0, (40, 3))
    dataset = memory_dataset(train_inputs, train_inputs.sum(axis=1), target_names=["sum"])
    executor, kernel = LocalExecutor(), parse_kernel("rbf(length_scale=1)", 3)
    trained = train(dataset, kernel, 0.1, executor)
    save(trained, str(tmp_path / "model.zarr"), dataset)
    model, X = open_model(tmp_path / "model.zarr"), arrays[0] - 4.0
    # One sample alone is constant in every feature.
    tests = {
        "stored": dataset_from_arrays(tmp_path / "test.zarr", X, X[:, 0]),
        "held": memory_dataset(X, X[:, 0]),
        "one": memory_dataset(X[:1], X[:1, 0]),
    }
    found = {}
    for name, test in tests.items():
        predict(model, test, str(tmp_path / f"{name}.pred"), executor)
        found[name] = open_prediction(tmp_path / f"{name}.pred").read("mean").ravel()
    executor.close()
    np.testing.assert_allclose(found["held"], found["stored"], rtol=1e-12)
    np.testing.assert_allclose(found["one"], found["stored"][:1], rtol=1e-12)
    x, centre, scale = (X - train_inputs.mean(0)) / train_inputs.std(0), train_inputs.mean(0), train_inputs.std(0)
    z, sums = (train_inputs - centre) / scale, train_inputs.sum(axis=1)
    weights = np.linalg.solve(kernel(z, z) + 0.1 * np.eye(40), (sums - sums.mean()) / sums.std())
    np.testing.assert_allclose(found["held"], kernel(x, z) @ weights * sums.std() + sums.mean(), atol=1e-3)


def test_labels_in_memory_are_matched_by_the_names_of_their_classes(arrays: tuple[np.ndarray, np.ndarray]) -> None:
    held = memory_dataset(arrays[0], np.arange(50) % 2, target_names=["kind"], classes=("cat", "dog"))
    seen = held.as_seen_by(held.feature_names, ("kind",), held.standardisation, classes=("ape", "dog", "cat"))
    np.testing.assert_array_equal(seen.all_labels(), np.where(np.arange(50) % 2 == 0, 2, 1))
    signs = held.as_signs()
    again = signs.with_standardisation(signs.standardisation)
    np.testing.assert_array_equal(again.all_targets(), signs.all_targets())


def test_features_that_nobody_knows_any_more_are_missing(
    arrays: tuple[np.ndarray, np.ndarray], rng: np.random.Generator
) -> None:
    more = append_rows(memory_dataset(*arrays), *arrays)
    train = memory_dataset(rng.normal(size=(9, 3)), rng.normal(size=9))
    assert np.isnan(more.as_seen_by(train.feature_names, (), train.standardisation).inputs(0, 2)[:, 1]).all()


@pytest.mark.parametrize("where", ["inputs", "targets"])
@pytest.mark.parametrize("scale", [1e-165, 1e-200, 1e-310])
def test_a_tiny_column_among_others_is_refused_in_memory_and_in_a_store(
    rng: np.random.Generator, tmp_path: Path, where: str, scale: float
) -> None:
    X, y = rng.normal(size=(30, 2)), rng.normal(size=(30, 2))
    (X if where == "inputs" else y)[:, 1] *= scale
    words = f"The values of '{'x1' if where == 'inputs' else 'y1'}' are too near to each other to be standardised"
    with pytest.raises(InputError, match=words):
        memory_dataset(X, y)
    with pytest.raises(InputError, match=words):
        dataset_from_arrays(tmp_path / "d.zarr", X, y)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [0.1, 1e-310, 1.7e308])
def test_equal_numbers_are_their_own_mean(value: float) -> None:
    held = memory_dataset(np.full((1000, 1), value), np.full(1000, value))
    assert held.standardisation.target_mean.tolist() == held.standardisation.input_mean.tolist() == [value]
    assert not held.all_targets().any()
    assert not held.inputs(0, 1000).any()


def test_appended_rows_that_overflow_are_refused(rng: np.random.Generator) -> None:
    held = memory_dataset(1e-100 * rng.normal(size=(20, 2)), rng.normal(size=20))
    with pytest.raises(
        InputError, match=r"The inputs hold 1e\+300 in row 1, column 0, which overflows under the training"
    ):
        append_rows(held, [[0.0, 0.0], [1e300, 0.0]], [0.0, 1.0])
