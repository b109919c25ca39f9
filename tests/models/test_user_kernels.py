"""Training with a kernel that a user wrote starts with a look at its matrix."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential, UserKernel
from dkgp.models.exact import train


def indefinite(s):
    return 1.0 - s if s < 1.0 else 0.0


def test_training_refuses_a_function_that_is_not_positive_definite(tmp_path, rng: np.random.Generator) -> None:
    X = rng.standard_normal((400, 2))
    dataset = dataset_from_arrays(tmp_path / "train.zarr", X, X.sum(axis=1))
    kernel = SquaredExponential((0.5, 0.5)) + 2.0 * UserKernel(indefinite, (0.5, 0.5))
    executor = LocalExecutor(1)
    try:
        with pytest.raises(InputError, match="not positive definite: its matrix on 256 samples has the eigenvalue -"):
            train(dataset, kernel, 0.01, executor)
    finally:
        executor.close()
