from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from dkgp import LSSVC, FixedSizeLSSVC
from dkgp.kernels import SquaredExponential

NOISE = 0.1
KERNEL = SquaredExponential(gamma=(0.8, 0.6))
NAMES = ("ape", "bee", "cat")


@dataclass(frozen=True)
class Labelled:
    """Samples with a constant feature and units far apart, labels as text, and new points."""

    X: np.ndarray
    y: np.ndarray
    X_new: np.ndarray
    y_new: np.ndarray

    @property
    def two(self) -> np.ndarray:
        """Labels of the same inputs with two classes."""
        return np.where(self.y == "ape", "ape", "other")


def make_labelled(n: int, new: int, seed: int) -> Labelled:
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.arange(n + new) % 3)
    centres = np.array([[0.0, 0.0], [2.0, 0.5], [0.5, 2.0]])
    features = centres[codes] + 0.8 * rng.normal(size=(n + new, 2))
    X = np.column_stack([100.0 + 30.0 * features[:, 0], np.full(n + new, 7.0), 0.01 * features[:, 1]])
    y = np.array(NAMES)[codes]
    return Labelled(X[:n], y[:n], X[n:], y[n:])


@pytest.fixture(scope="session")
def labelled() -> Labelled:
    return make_labelled(150, 40, seed=5)


@pytest.fixture(scope="session")
def exact(labelled: Labelled) -> LSSVC:
    """A classifier of three classes with fixed hyperparameters; tests must not change it."""
    return LSSVC(KERNEL, noise_variance=NOISE, tol=1e-8).fit(labelled.X, labelled.y)


@pytest.fixture(scope="session")
def fixed(labelled: Labelled) -> FixedSizeLSSVC:
    """A classifier of three classes with a few prototypes; tests must not change it."""
    return FixedSizeLSSVC(KERNEL, noise_variance=NOISE, pool=40, folds=3, search="none").fit(labelled.X, labelled.y)


def standard(data: Labelled) -> tuple[np.ndarray, np.ndarray]:
    """Inputs as the models see them: without the feature that is constant."""
    X, new = data.X[:, [0, 2]], data.X_new[:, [0, 2]]
    return (X - X.mean(axis=0)) / X.std(axis=0), (new - X.mean(axis=0)) / X.std(axis=0)
