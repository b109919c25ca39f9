"""Models by address: whichever kind it is, stored or resident, and refused in words where it is none."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dkgp.data import (
    Dataset,
    ModelRecord,
    SparseRecord,
    dataset_from_arrays,
    find_any_model,
    find_model,
    is_resident,
    memory_model,
    memory_sparse_model,
    open_any_model,
    save_model,
    save_sparse_model,
)
from dkgp.data.stores.memory_model import find_sparse_model
from dkgp.data.stores.model_store import about_model
from dkgp.errors import StoreError

Place = Callable[[str], str]
Arrays = tuple[np.ndarray, np.ndarray]
KERNEL = {"type": "rbf", "variance": 1.0, "gamma": [0.1, 0.2, 1 / 3]}
M = 5


def exact(dataset: Dataset) -> dict[str, Any]:
    return {"kernel": KERNEL, "noise_variance": 0.01, "alpha": np.ones((dataset.n_samples, 1))}


def sparse(dataset: Dataset) -> SparseRecord:
    return SparseRecord(
        **about_model(dataset, kernel=KERNEL, noise_variance=0.01, summary={"converged": True}),
        method="vfe",
        prototypes=dataset.inputs(0, M),
        weights=np.arange(M, dtype=np.float64)[:, None],
        lower=np.eye(M),
        basis_noise=np.full(M, 0.02),
    )


def test_either_kind_opens_and_says_the_same_of_itself(place: Place, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(place("train.zarr"), *arrays)
    save_model(place("exact.zarr"), dataset=dataset, **exact(dataset))
    save_sparse_model(place("sparse.zarr"), sparse(dataset))
    whole, few = open_any_model(place("exact.zarr")), open_any_model(place("sparse.zarr"))
    assert isinstance(whole, ModelRecord)
    assert isinstance(few, SparseRecord)
    for name in ("kernel", "noise_variance", "feature_names", "target_names", "fingerprint", "standardisation"):
        assert getattr(whole, name) == getattr(few, name)
    assert whole.training_url == few.training_url == dataset.url
    assert few.basis_noise is not None
    np.testing.assert_array_equal(few.basis_noise, 0.02)


def test_what_is_no_model_is_refused(place: Place, arrays: Arrays) -> None:
    dataset_from_arrays(place("train.zarr"), *arrays)
    with pytest.raises(StoreError, match="holds a dkgp dataset store; expected a model store"):
        open_any_model(place("train.zarr"))
    with pytest.raises(StoreError, match="There is no model store at"):
        find_any_model(place("nothing.zarr"))


def test_residents_are_found_for_as_long_as_they_are_held(place: Place, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(place("train.zarr"), *arrays)
    whole = memory_model(dataset, **exact(dataset))
    few = memory_sparse_model(sparse(dataset))
    assert find_any_model(whole.url) is find_model(whole.url) is whole
    assert find_any_model(few.url) is few
    assert few.summary == {"converged": True}
    with pytest.raises(StoreError, match="A sparse model is in memory there"):
        find_model(few.url)
    with pytest.raises(StoreError, match="An exact model is in memory there"):
        find_sparse_model(whole.url)
    assert is_resident(whole.url)
    assert not is_resident(place("train.zarr"))
    address = few.url
    del few
    gc.collect()
    with pytest.raises(StoreError):
        find_any_model(address)
