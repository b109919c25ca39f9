"""Stores of sparse models: what comes back, what is refused, and what damage is told of."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import Dataset, dataset_from_arrays, open_model, recognise
from dkgp.data.stores.model_store import about_model
from dkgp.data.stores.sparse.sparse_store import SparseRecord, open_sparse_model, save_sparse_model
from dkgp.errors import InputError, NumericalError, OutputExistsError, StoreError

Place = Callable[[str], str]
Arrays = tuple[np.ndarray, np.ndarray]
M = 12


def record(dataset: Dataset, **changes: Any) -> SparseRecord:
    rng = np.random.default_rng(1)
    about = about_model(
        dataset,
        kernel={"type": "rbf", "variance": 1.0, "gamma": [0.1, 0.2, 1 / 3]},
        noise_variance=0.01,
        history=[{"round": 1, "risk": 0.5}],
        certificate={"risk": [1.0]},
        summary={"converged": True},
    )
    known = SparseRecord(
        **about,
        method="vfe",
        prototypes=dataset.inputs(0, M),
        weights=rng.standard_normal((M, 1)),
        lower=np.asfortranarray(np.tril(rng.standard_normal((M, M)))),
        normal=np.tril(rng.standard_normal((M, M))),
        indices=np.arange(M),
        basis_noise=rng.uniform(0.01, 0.1, M),
    )
    return replace(known, **changes)


@pytest.mark.parametrize("absent", [(), ("normal",), ("indices",), ("basis_noise",)])
def test_round_trip(place: Place, arrays: Arrays, absent: tuple[str, ...]) -> None:
    dataset = dataset_from_arrays(place("train.zarr"), *arrays)
    written = record(dataset, **dict.fromkeys(absent))
    save_sparse_model(place("model.zarr"), written)
    found = pickle.loads(pickle.dumps(open_sparse_model(place("model.zarr"))))
    for name in ("prototypes", "weights", "lower", "normal", "indices", "basis_noise"):
        if getattr(written, name) is None:
            assert getattr(found, name) is None
        else:
            np.testing.assert_array_equal(getattr(found, name), getattr(written, name))
    for name in ("kernel", "method", "noise_variance", "history", "certificate", "summary", "training_url", "versions"):
        assert getattr(found, name) == getattr(written, name)
    assert found.standardisation == dataset.standardisation
    assert (found.feature_names, found.target_names) == (dataset.feature_names, dataset.target_names)
    assert (found.fingerprint, found.url) == (dataset.fingerprint, place("model.zarr"))
    assert (found.basis_size, found.n_features, found.n_targets) == (M, 3, 1)
    assert {"python", "numpy", "zarr"} <= set(found.versions)


def test_it_needs_no_training_set_and_takes_the_models_own_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    dataset = dataset_from_arrays(tmp_path / "train.zarr", rng.standard_normal((20_000, 3)), np.arange(20_000.0))
    save_sparse_model(tmp_path / "model.zarr", record(dataset))
    shutil.rmtree(tmp_path / "train.zarr")
    assert open_sparse_model(tmp_path / "model.zarr").basis_size == M
    written = sum(path.stat().st_size for path in (tmp_path / "model.zarr").rglob("*") if path.is_file())
    assert written < 8 * (2 * M**2 + M * 5) + 20_000


def test_it_is_a_kind_of_its_own(tmp_path: Path, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(tmp_path / "train.zarr", *arrays)
    save_sparse_model(tmp_path / "model.zarr", record(dataset))
    assert recognise(str(tmp_path / "model.zarr")) == "sparse model"
    with pytest.raises(StoreError, match="holds a dkgp sparse model store; expected a model store"):
        open_model(tmp_path / "model.zarr")
    with pytest.raises(OutputExistsError):
        save_sparse_model(tmp_path / "model.zarr", record(dataset))
    save_sparse_model(tmp_path / "model.zarr", record(dataset, method="sr"), overwrite=True)
    assert open_sparse_model(tmp_path / "model.zarr").method == "sr"
    with pytest.raises(OutputExistsError):
        save_sparse_model(tmp_path / "train.zarr", record(dataset), overwrite=True)


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


def test_damage_is_told(tmp_path: Path, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(tmp_path / "train.zarr", *arrays)
    save_sparse_model(tmp_path / "model.zarr", record(dataset))
    chunk = tmp_path / "model.zarr" / "lower" / "c" / "0" / "0"
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(bytes(content))
    with pytest.raises(StoreError, match="lower/c/0/0 .* is damaged"):
        open_sparse_model(tmp_path / "model.zarr")
    chunk.unlink()
    with pytest.raises(StoreError, match="lower/c/0/0 .* is missing"):
        open_sparse_model(tmp_path / "model.zarr")
