"""Models with kernels of all kinds, and what dense float64 algebra makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.linalg

from dkgp.cluster import BlockExecutor
from dkgp.data import Dataset, ModelRecord, open_model, open_prediction
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.kernels import Kernel, parse_kernel
from dkgp.models.exact import save, train
from dkgp.models.prediction.predict import Destination, PredictSummary, predict
from dkgp.models.variance.settings import VarianceSettings
from dkgp.solvers import Cholesky, GradientInfNorm

N, TESTS, D, NOISE = 260, 50, 4, 0.05
VARYING = ("rbf + linear", "polynomial(degree=3)", "rbf * linear")
KERNELS = ("rbf", "matern32", "constant(variance=1.7) * rbf", *VARYING[:2])


@dataclass(frozen=True)
class Fitted:
    """A trained model of one kernel, its test set, and the exact answers on the standardised scale.

    Attributes
    ----------
    X, T : (n, d) and (t, d)
        Standardised.
    alpha, mean : (n, 1) and (t, 1)
    latent : (t,)
        Variance of the function.
    """

    folder: Path
    kernel: Kernel
    train: Dataset
    test: Dataset
    model: ModelRecord
    X: np.ndarray
    T: np.ndarray
    y: np.ndarray
    alpha: np.ndarray
    mean: np.ndarray
    latent: np.ndarray

    @property
    def matrix(self) -> np.ndarray:
        return np.asarray(self.kernel(self.X, self.X) + NOISE * np.eye(len(self.X)))

    def predicted(
        self, name: str, executor: BlockExecutor, variance: VarianceSettings | None = None
    ) -> tuple[dict[str, np.ndarray], PredictSummary]:
        """Return the standardised content of a prediction store, and the summary of the run."""
        url = str(self.folder / f"{name}.zarr")
        summary = predict(
            self.model, self.test, Destination(url, chunk_rows=TESTS, overwrite=True), executor, variance=variance
        )
        stored, standardisation = open_prediction(url), self.model.standardisation
        scale = float(standardisation.target_std[0])
        values = {name: stored.read(name).reshape(-1) for name in stored.variables}
        values["mean"] = (values["mean"] - float(standardisation.target_mean[0])) / scale
        values["mean_error_bound"] = values["mean_error_bound"] / scale
        return {name: v / scale**2 if name.startswith("variance") else v for name, v in values.items()}, summary


def draw(outliers: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets, and test inputs like them, equal to some and far from all; three samples so many times out."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(N, D))
    X[:3] *= outliers
    y = np.sin(X[:, 0]) + X[:, 1] * np.clip(X[:, 2], -3.0, 3.0) + 0.2 * rng.normal(size=N)
    T = np.concatenate([rng.normal(size=(TESTS - 8, D)), X[:5], 5.0 * rng.normal(size=(3, D))])
    return X, y[:, None], T


def fit(text: str, folder: Path, executor: BlockExecutor, outliers: float = 1.0) -> Fitted:
    """Train by Cholesky and save; solve densely beside it."""
    X, y, T = draw(outliers)
    kernel = parse_kernel(text, D)
    data = dataset_from_arrays(folder / "train.zarr", X, y, chunk_rows=N)
    test = dataset_from_arrays(folder / "test.zarr", T, np.linspace(0.0, 1.0, TESTS)[:, None], chunk_rows=TESTS)
    trained = train(data, kernel, NOISE, executor, solver=Cholesky(), stopping=GradientInfNorm(1e-8))
    url = str(folder / "model.zarr")
    save(trained, url, data)
    Z, targets = data.inputs(0, N), data.targets(0, N)
    tests = (T - X.mean(axis=0)) / X.std(axis=0)
    half = scipy.linalg.cho_factor(kernel(Z, Z) + NOISE * np.eye(N), lower=True)
    columns = kernel(Z, tests)
    alpha = scipy.linalg.cho_solve(half, targets)
    explained = np.sum(columns * scipy.linalg.cho_solve(half, columns), axis=0)
    latent = kernel.diagonal(tests) - explained
    return Fitted(folder, kernel, data, test, open_model(url), Z, tests, targets, alpha, columns.T @ alpha, latent)
