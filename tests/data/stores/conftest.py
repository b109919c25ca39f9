from __future__ import annotations

import shutil
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


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data set and such a model, written once."""
    folder, generator = tmp_path_factory.mktemp("saved"), np.random.default_rng(7)
    X = generator.normal([0.0, 1e6, -3.0], [1.0, 50.0, 1e-4], size=(1000, 3))
    save(str(folder / "local.zarr"), dataset_from_arrays(folder / "data.zarr", X, X[:, 0]))
    return folder


@pytest.fixture
def local(tmp_path: Path, saved: Path) -> Path:
    """The folder of such a model on a local disk."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    return tmp_path / "local.zarr"


@pytest.fixture
def factor(rng: np.random.Generator) -> Factor:
    return random_factor(rng)
