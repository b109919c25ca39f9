"""Models by address: whichever kind it is, stored or resident, and refused in words where it is none."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

from dkgp.data import (
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
from dkgp.errors import StoreError
from tests.data.stores.kinds import FACTS, sparse_record

Place = Callable[[str], str]
Arrays = tuple[np.ndarray, np.ndarray]
ALPHA = np.ones((1000, 1))


def test_either_kind_opens_and_says_the_same_of_itself(place: Place, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(place("train.zarr"), *arrays)
    save_model(place("exact.zarr"), dataset=dataset, alpha=ALPHA, **FACTS)
    save_sparse_model(place("sparse.zarr"), sparse_record(dataset))
    whole, few = open_any_model(place("exact.zarr")), open_any_model(place("sparse.zarr"))
    assert isinstance(whole, ModelRecord)
    assert isinstance(few, SparseRecord)
    for name in ("kernel", "noise_variance", "feature_names", "target_names", "fingerprint", "standardisation"):
        assert getattr(whole, name) == getattr(few, name)
    assert whole.training_url == few.training_url == dataset.url


def test_what_is_no_model_is_refused(place: Place, arrays: Arrays) -> None:
    dataset_from_arrays(place("train.zarr"), *arrays)
    with pytest.raises(StoreError, match="holds a dkgp dataset store; expected a model store"):
        open_any_model(place("train.zarr"))
    with pytest.raises(StoreError, match="There is no model store at"):
        find_any_model(place("nothing.zarr"))


def test_residents_are_found_for_as_long_as_they_are_held(place: Place, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(place("train.zarr"), *arrays)
    whole = memory_model(dataset, alpha=ALPHA, **FACTS)
    few = memory_sparse_model(sparse_record(dataset))
    assert find_any_model(whole.url) is find_model(whole.url) is whole
    assert find_any_model(few.url) is few
    assert few.summary == {"converged": True}
    with pytest.raises(StoreError, match="A sparse model is in memory there"):
        find_model(few.url)
    with pytest.raises(StoreError, match="An exact model is in memory there"):
        SparseRecord.find(whole.url)
    assert is_resident(whole.url)
    assert not is_resident(place("train.zarr"))
    address = few.url
    del few
    gc.collect()
    with pytest.raises(StoreError):
        find_any_model(address)
