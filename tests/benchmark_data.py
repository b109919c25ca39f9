"""The real data sets, where they are at hand: folder, arrays, and hyperparameters that fit them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

__all__ = ["HYPERPARAMETERS", "StandardisedData", "benchmark_folder", "standardised"]


@dataclass(frozen=True)
class StandardisedData:
    """Samples of a data set, zero mean and unit variance, and hyperparameters for them."""

    X: np.ndarray
    y: np.ndarray
    gamma: tuple[float, ...]
    noise_variance: float


# gamma of each feature and s2 by maximum likelihood on 400 samples (variance 1), rounded; features that hardly count
# are left out.
HYPERPARAMETERS: dict[str, tuple[tuple[float, ...], float]] = {
    "kin40k": ((0.022, 0.032, 0.31, 0.22, 0.24, 0.33, 0.35, 0.19), 0.029),
    "california": ((0.042, 0.013, 0.12, 0.064, 0.0, 0.085, 0.44, 0.39), 0.17),
    "abalone": ((0.0, 0.0, 0.023, 0.11, 0.095, 0.0, 0.084, 0.16, 0.0, 0.15), 0.36),
    "pumadyn32nm": (
        (
            *(0.00057, 0.0, 0.00036, 0.039, 0.71, 0.00067, 0.0, 0.0, 0.0, 0.0, 0.00026, 0.00019, 0.0, 0.0, 0.034, 0.11),
            *(0.00085, 0.0, 0.00012, 0.00029, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0008, 0.0, 0.0, 0.0, 0.0, 0.0),
        ),
        0.042,
    ),
    "concrete_raw": ((0.22, 0.078, 0.046, 0.037, 0.05, 0.057, 0.0097, 1.3), 0.074),
    "airfoil": ((6.0, 0.24, 0.53, 0.048, 1.9), 0.036),
    "sarcos_test4449": (
        (
            *(0.011, 0.015, 0.0088, 0.018, 0.11, 0.046, 0.017, 0.014, 0.0041, 0.0074, 0.0076, 0.014, 0.0025, 0.0082),
            *(0.044, 0.035, 0.026, 0.054, 0.021, 0.0075, 0.0078),
        ),
        0.015,
    ),
}


def benchmark_folder() -> Path:
    """The folder of benchmark data; skips the test where there is none."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ["DKGP_TEST_DATA"]) if "DKGP_TEST_DATA" in os.environ else beside
    if not folder.is_dir():
        pytest.skip("no benchmark data: set DKGP_TEST_DATA to the folder of .npz files")
    return folder


def standardised(name: str, n: int, target: str = "y") -> StandardisedData:
    """The first `n` samples of a data set in a random order (all of them where there are fewer), standardised."""
    with np.load(benchmark_folder() / f"{name}.npz") as source:
        X, y = source["X"].astype(np.float64), source[target].astype(np.float64)
    chosen = np.random.default_rng(0).permutation(len(X))[:n]
    X, y = X[chosen], y[chosen].reshape(len(chosen), -1)
    deviation = X.std(axis=0)
    gamma, noise_variance = HYPERPARAMETERS[name]
    return StandardisedData(
        (X - X.mean(axis=0)) / np.where(deviation > 0.0, deviation, 1.0),
        (y - y.mean(axis=0)) / y.std(axis=0),
        gamma,
        noise_variance,
    )
