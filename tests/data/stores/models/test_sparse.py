"""Stores of sparse models: what may be absent, how small they are, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import dataset_from_arrays, open_sparse_model, save_sparse_model
from dkgp.errors import InputError, NumericalError
from tests.data.stores.kinds import M
from tests.data.stores.kinds import sparse_record as record

Arrays = tuple[np.ndarray, np.ndarray]


@pytest.mark.parametrize("absent", ["normal", "indices", "basis_noise"])
def test_what_may_be_absent(tmp_path: Path, arrays: Arrays, absent: str) -> None:
    written = record(dataset_from_arrays(tmp_path / "train.zarr", *arrays), **{absent: None})
    save_sparse_model(tmp_path / "model.zarr", written)
    found = open_sparse_model(tmp_path / "model.zarr")
    assert getattr(found, absent) is None
    np.testing.assert_array_equal(found.lower, written.lower)
    assert found.lower.flags.f_contiguous
    assert (found.method, found.basis_size, found.n_features, found.n_targets) == ("vfe", M, 3, 1)


def test_it_needs_no_training_set_and_takes_the_models_own_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    dataset = dataset_from_arrays(tmp_path / "train.zarr", rng.standard_normal((20_000, 3)), np.arange(20_000.0))
    save_sparse_model(tmp_path / "model.zarr", record(dataset))
    shutil.rmtree(tmp_path / "train.zarr")
    assert open_sparse_model(tmp_path / "model.zarr").basis_size == M
    written = sum(path.stat().st_size for path in (tmp_path / "model.zarr").rglob("*") if path.is_file())
    assert written < 8 * (2 * M**2 + M * 5) + 20_000


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"weights": np.zeros((M, 2))}, InputError, r"'weights' .* has shape \(12, 2\); expected \(12, 1\)"),
        ({"lower": np.zeros((M, 3))}, InputError, r"'lower' .* expected \(12, 12\)"),
        ({"normal": np.full((M, M), np.nan)}, NumericalError, "'normal' .* is not finite; the model is not saved"),
        ({"indices": np.arange(3)}, InputError, r"'indices' .* expected \(12,\)"),
        ({"basis_noise": np.full(M, np.inf)}, NumericalError, "'basis_noise' .* is not finite"),
        ({"noise_variance": 0.0}, InputError, "noise variance must be positive; got 0.0"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(
    tmp_path: Path, arrays: Arrays, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    dataset = dataset_from_arrays(tmp_path / "train.zarr", *arrays)
    with pytest.raises(error, match=words):
        save_sparse_model(tmp_path / "model.zarr", record(dataset, **changes))
    assert not (tmp_path / "model.zarr").exists()
