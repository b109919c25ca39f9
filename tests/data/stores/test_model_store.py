from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr

from dkgp.data import Dataset, dataset_from_arrays, open_model, save_model
from dkgp.errors import InputError, NumericalError, OutputExistsError, StoreError

Place = Callable[[str], str]
Arrays = tuple[np.ndarray, np.ndarray]

KERNEL = {"type": "rbf", "variance": 1.0, "gamma": [0.1, 0.2, 1 / 3]}


def _save(url: str, dataset: Dataset, **changes: Any) -> np.ndarray:
    alpha = np.random.default_rng(3).normal(size=(dataset.n_samples, dataset.n_targets))
    options: dict[str, Any] = {
        "kernel": KERNEL,
        "noise_variance": 0.01,
        "alpha": alpha,
        "dataset": dataset,
        "history": [{"round": 1, "gradient_inf_norm": np.float64(0.5)}],
        "certificate": {"residual_norm": 1e-5},
        "summary": {"converged": True},
    }
    save_model(url, **{**options, **changes})
    return alpha


@pytest.mark.parametrize("by_reference", [False, True])
def test_round_trip(place: Place, arrays: Arrays, by_reference: bool) -> None:
    dataset = dataset_from_arrays(place("train.zarr"), *arrays, chunk_rows=300)
    alpha = _save(place("model.zarr"), dataset, by_reference=by_reference)
    model = pickle.loads(pickle.dumps(open_model(place("model.zarr"))))
    np.testing.assert_array_equal(model.alpha, alpha)
    np.testing.assert_array_equal(model.inputs(100, 700), dataset.inputs(100, 700))
    np.testing.assert_array_equal(model.input_rows(np.array([5, 2])), dataset.input_rows(np.array([5, 2])))
    assert model.kernel == KERNEL
    assert model.noise_variance == 0.01
    assert model.standardisation == dataset.standardisation
    assert (model.feature_names, model.target_names) == (dataset.feature_names, dataset.target_names)
    assert model.fingerprint == dataset.fingerprint
    assert model.history == [{"round": 1, "gradient_inf_norm": 0.5}]
    assert model.certificate == {"residual_norm": 1e-5}
    assert model.summary == {"converged": True}
    assert (model.n_samples, model.n_features, model.n_targets) == (1000, 3, 1)
    assert model.row_chunks() == dataset.row_chunks()
    assert {"python", "numpy", "zarr"} <= set(model.versions)
    assert model.by_reference is by_reference


@pytest.mark.parametrize("by_reference", [False, True])
def test_rows_in_any_order_touch_only_their_chunks(tmp_path: Path, arrays: Arrays, by_reference: bool) -> None:
    dataset = dataset_from_arrays(tmp_path / "train.zarr", *arrays, chunk_rows=300)
    _save(str(tmp_path / "model.zarr"), dataset, by_reference=by_reference)
    model = open_model(tmp_path / "model.zarr")
    indices = np.array([950, 3, 299, 900, 3])
    expected = model.inputs(0, 1000)[indices]
    folder = tmp_path / "train.zarr" / "X" if by_reference else tmp_path / "model.zarr" / "inputs"
    for gone in (1, 2):
        (folder / "c" / str(gone) / "0").unlink()
    np.testing.assert_array_equal(model.input_rows(indices), expected)
    assert model.input_rows(np.array([], dtype=np.int64)).shape == (0, 3)
    with pytest.raises(StoreError, match=r"c/2/0 \(rows 600 to 899\).*is missing"):
        model.input_rows(np.array([950, 601]))
    with pytest.raises(InputError, match="has 1000 rows"):
        model.input_rows(np.array([0, 1000]))


def test_xarray_shows_it(place: Place, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(place("train.zarr"), arrays[0], np.stack([arrays[1], -arrays[1]], axis=1))
    alpha = _save(place("model.zarr"), dataset)
    shown = xr.open_zarr(place("model.zarr"))
    assert shown["alpha"].dims == ("sample", "target")
    assert shown["inputs"].dims == ("sample", "feature")
    np.testing.assert_array_equal(shown["alpha"].values, alpha)


def test_a_copy_outlives_its_training_set_and_a_reference_does_not(tmp_path: Path, arrays: Arrays) -> None:
    X, y = arrays
    dataset = dataset_from_arrays(tmp_path / "train.zarr", X, y)
    _save(str(tmp_path / "copy.zarr"), dataset)
    _save(str(tmp_path / "reference.zarr"), dataset, by_reference=True)
    expected = dataset.inputs(0, 10)
    dataset_from_arrays(tmp_path / "train.zarr", X + 1, y, overwrite=True)
    with pytest.raises(StoreError, match="whose content has changed"):
        open_model(tmp_path / "reference.zarr")
    shutil.rmtree(tmp_path / "train.zarr")
    with pytest.raises(StoreError, match="refers to its training set"):
        open_model(tmp_path / "reference.zarr")
    np.testing.assert_array_equal(open_model(tmp_path / "copy.zarr").inputs(0, 10), expected)


def test_damage_is_found(place: Place, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(place("train.zarr"), *arrays, chunk_rows=100)
    _save(place("model.zarr"), dataset)
    file_system, path = fsspec.core.url_to_fs(place("model.zarr"))
    file_system.rm_file(f"{path}/inputs/c/4/0")
    with pytest.raises(StoreError, match=r"Chunk inputs/c/4/0 \(rows 400 to 499\)"):
        open_model(place("model.zarr"))
    with pytest.raises(StoreError, match="holds a dkgp dataset store; expected a model store"):
        open_model(place("train.zarr"))


def test_overwriting_never_takes_the_training_set(place: Place, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(place("train.zarr"), *arrays)
    with pytest.raises(OutputExistsError, match="holds a dkgp dataset store"):
        _save(place("train.zarr"), dataset, overwrite=True)
    _save(place("model.zarr"), dataset)
    with pytest.raises(OutputExistsError, match="`overwrite`"):
        _save(place("model.zarr"), dataset)
    _save(place("model.zarr"), dataset, overwrite=True, noise_variance=0.5)
    assert open_model(place("model.zarr")).noise_variance == 0.5
    assert dataset.inputs(0, 1).shape == (1, 3)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"alpha": np.zeros(999)}, InputError, r"alpha has shape \(999,\)"),
        ({"alpha": np.full(1000, np.nan)}, NumericalError, "row 0"),
        ({"noise_variance": 0.0}, InputError, "must be positive"),
        ({"summary": {"a": object()}}, TypeError, "JSON"),
    ],
)
def test_what_cannot_be_saved_leaves_nothing(
    tmp_path: Path, arrays: Arrays, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    dataset = dataset_from_arrays(tmp_path / "train.zarr", *arrays)
    with pytest.raises(error, match=message):
        _save(str(tmp_path / "model.zarr"), dataset, **changes)
    assert not (tmp_path / "model.zarr").exists()


def test_manifest_is_plain_json(tmp_path: Path, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(tmp_path / "train.zarr", *arrays)
    _save(str(tmp_path / "model.zarr"), dataset)
    content = json.loads((tmp_path / "model.zarr" / "dkgp-manifest.json").read_text())
    assert content["kind"] == "model"
    assert content["metadata"]["kernel"] == KERNEL
