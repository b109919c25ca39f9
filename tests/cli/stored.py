"""A small regression problem in a store, and as dense arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dkgp.data import dataset_from_arrays, open_dataset
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters, write_hyperparameters


class Stored:
    """A regression problem in a store, and as dense arrays."""

    def __init__(self, folder: Path, n: int, gamma: float, noise: float) -> None:
        rng = np.random.default_rng(n)
        X = rng.uniform(-2.0, 2.0, (n, 3))
        y = np.sin(2.0 * X[:, :1]) + X[:, 1:2] * X[:, 2:] + 0.2 * rng.standard_normal((n, 1))
        self.store, self.hyper, self.noise = folder / "train.zarr", folder / "hyper.json", noise
        dataset_from_arrays(self.store, X, y)
        self.kernel = SquaredExponential(gamma=(gamma, 0.7 * gamma, 1.3 * gamma))
        write_hyperparameters(self.hyper, Hyperparameters(self.kernel, noise))
        dataset = open_dataset(str(self.store))
        self.X, self.y = dataset.inputs(0, n), dataset.targets(0, n)
        self.K = self.kernel(self.X, self.X)
        self.Kbar = self.K + noise * np.eye(n)
