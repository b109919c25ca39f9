from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

import dkgp
from tests import benchmark_data

Arrays = tuple[np.ndarray, np.ndarray]


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Makes the address of a name, once below a local folder and once in fsspec's memory file system."""
    if request.param == "local":
        yield lambda name: str(tmp_path / name)
        return
    root = f"memory://{tmp_path.name}"
    yield lambda name: f"{root}/{name}"
    memory = fsspec.filesystem("memory")
    if memory.exists(f"/{tmp_path.name}"):
        memory.rm(f"/{tmp_path.name}", recursive=True)


@pytest.fixture
def arrays() -> Arrays:
    """1,000 samples, 3 features of very different scale, one target."""
    generator = np.random.default_rng(7)
    X = generator.normal([0.0, 1e6, -3.0], [1.0, 50.0, 1e-4], size=(1000, 3))
    return X, X[:, 0] + generator.normal(size=1000)


@pytest.fixture
def importable() -> dict[str, str]:
    """An environment in which a process of its own finds the package under test."""
    return {**os.environ, "PYTHONPATH": str(Path(dkgp.__file__).resolve().parents[1])}


@pytest.fixture
def benchmark_folder() -> Path:
    """The folder of benchmark data, where there is one."""
    return benchmark_data.benchmark_folder()
