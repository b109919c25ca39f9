"""A model on raw data with a constant feature and scales far apart, and what a dense GP makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg

from dkgp.cluster import BlockExecutor, PendingRound
from dkgp.data import Dataset, ModelRecord, Prediction, open_model
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.errors import NumericalError
from dkgp.kernels import SquaredExponential
from dkgp.models.exact import save, train
from dkgp.models.variance.settings import VarianceSettings
from dkgp.solvers import MaxIterations

N, TESTS = 400, 90
NAMES, TARGETS = ("temperature", "pressure", "unused", "humidity"), ("power", "cost")
AMPLITUDE, NOISE, GAMMA = 1.3, 0.05, (0.3, 0.5, 0.1)
KERNEL = SquaredExponential(GAMMA, AMPLITUDE)
QUICK = VarianceSettings(gap=0.01, rank=40, halo=50, batch_size=30)


@dataclass(frozen=True)
class World:
    """Raw data with a constant feature and scales far apart, in stores, and what a dense GP makes of them."""

    folder: Path
    train: Dataset
    test: Dataset
    model: ModelRecord
    latent: np.ndarray  # (t, p), in the targets' units squared
    noise: np.ndarray  # (p,)


def draw(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, 4))
    X = Z * [8.0, 1500.0, 0.0, 0.1] + [20.0, 1e5, 7.0, 0.5]
    power = 300.0 * (np.sin(1.5 * Z[:, 0]) + Z[:, 1] * Z[:, 3]) + 5000.0
    cost = 0.01 * np.cos(Z[:, 3] + 0.2 * rng.normal(size=n))
    return X, np.column_stack([power, cost])


def dense_variance(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the variances of the functions and of the noise in the targets' units, without dkgp's code."""
    Z, Z_test = ((values - X.mean(axis=0)) / X.std(axis=0) for values in (X, X_test))

    def k(A: np.ndarray, B: np.ndarray) -> np.ndarray:
        distance = sum(g * (A[:, None, l] - B[None, :, l]) ** 2 for l, g in enumerate(GAMMA))
        return np.asarray(AMPLITUDE * np.exp(-np.asarray(distance)))

    half = scipy.linalg.cholesky(k(Z, Z) + NOISE * np.eye(len(Z)), lower=True)
    left = AMPLITUDE - np.sum(scipy.linalg.solve_triangular(half, k(Z, Z_test), lower=True) ** 2, axis=0)
    return left[:, None] * y.var(axis=0), NOISE * y.var(axis=0)


def make_world(folder: Path, executor: BlockExecutor) -> World:
    """Train on N samples for two rounds, which is all that variances need."""
    (X, y), (X_test, y_test) = draw(N, 1), draw(TESTS, 2)
    names: dict[str, Any] = {"feature_names": NAMES, "target_names": TARGETS}
    train_set = dataset_from_arrays(folder / "train", X, y, chunk_rows=170, **names)
    test_set = dataset_from_arrays(folder / "test", X_test, y_test, chunk_rows=40, **names)
    save(train(train_set, KERNEL, NOISE, executor, stopping=MaxIterations(2)), str(folder / "model"), train_set)
    kept = [0, 1, 3]
    latent, noise = dense_variance(X[:, kept], y, X_test[:, kept])
    return World(folder, train_set, test_set, open_model(str(folder / "model")), latent, noise)


def gaps(stored: Prediction) -> np.ndarray:
    lower, upper = stored.read("variance_lower")[:, 0], stored.read("variance_upper")[:, 0]
    return np.asarray((upper - lower) / upper)


class Counting:
    """An executor that notes the batches asked for, and may fail after so many rounds of variances."""

    def __init__(self, executor: BlockExecutor, fail_after: int | None = None) -> None:
        self._executor, self._fail_after = executor, fail_after
        self.names: list[str] = []
        self.batches: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def submit(
        self, name: str, task: Any, arguments: tuple[Any, ...], groups: Sequence[Any], *hints: Any
    ) -> PendingRound:
        if name == "kvariance" and self.names.count(name) == self._fail_after:
            raise NumericalError("on purpose")
        self.names.append(name)
        if name == "kvariance":
            self.batches += [batch for group in groups for batch in group]
        return self._executor.submit(name, task, arguments, groups, *hints)
