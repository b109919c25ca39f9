from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dkgp.data import Dataset, dataset_from_arrays
from tests.data.stores.factors import Factor, random_factor, save

Place = Callable[[str], str]
Arrays = tuple[np.ndarray, np.ndarray]


@pytest.fixture
def dataset(place: Place, arrays: Arrays) -> Dataset:
    return dataset_from_arrays(place("train.zarr"), *arrays, chunk_rows=300)


@pytest.fixture
def model(place: Place, dataset: Dataset) -> str:
    """The address of a model of 1,000 samples."""
    return save(place("model.zarr"), dataset)


@pytest.fixture
def local(tmp_path: Path, arrays: Arrays) -> Path:
    """The folder of such a model on a local disk."""
    return Path(save(str(tmp_path / "local.zarr"), dataset_from_arrays(tmp_path / "data.zarr", *arrays)))


@pytest.fixture
def factor(rng: np.random.Generator) -> Factor:
    return random_factor(rng)
