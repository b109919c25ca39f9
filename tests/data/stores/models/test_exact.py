"""Stores of exact models: rows on demand, references to training sets, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from dkgp.data import Dataset, dataset_from_arrays, open_model, save_model
from dkgp.errors import InputError, NumericalError, StoreError
from tests.data.stores.kinds import FACTS

Arrays = tuple[np.ndarray, np.ndarray]


def _save(url: str, dataset: Dataset, **changes: Any) -> np.ndarray:
    alpha = np.random.default_rng(3).normal(size=(dataset.n_samples, dataset.n_targets))
    save_model(url, **{**FACTS, "alpha": alpha, "dataset": dataset, **changes})
    return alpha


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


def test_xarray_shows_several_targets(tmp_path: Path, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(tmp_path / "train.zarr", arrays[0], np.stack([arrays[1], -arrays[1]], axis=1))
    alpha = _save(str(tmp_path / "model.zarr"), dataset)
    shown = xr.open_zarr(tmp_path / "model.zarr")
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
