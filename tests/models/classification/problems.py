"""Small labelled problems, of which trainers' tests have their own kinds; and builders of samples."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from dkgp.data import Dataset
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.models.classification.labels import LabelledData, Labels
from tests.models.exact_gp import mp


class Problem:
    """What follows from raw inputs (n, d), codes (n,) and raw test inputs (r, d)."""

    X: np.ndarray
    codes: np.ndarray
    T: np.ndarray
    weights: np.ndarray | None
    n_classes: int | None = None

    @cached_property
    def dataset(self) -> Dataset:
        return memory_dataset(self.X, self.codes.astype(np.float64))

    @cached_property
    def labels(self) -> Labels:
        n_classes = self.n_classes or max(2, int(self.codes.max()) + 1)
        return Labels(tuple(f"c{code}" for code in range(n_classes)), self.codes)

    @property
    def data(self) -> LabelledData:
        return LabelledData(self.dataset, self.labels, self.weights)

    @cached_property
    def tests(self) -> np.ndarray:
        return np.asarray(self.dataset.standardisation.inputs(self.T))


def digit_ratios(decisions: np.ndarray, bounds: np.ndarray, exact: list[list[Any]]) -> np.ndarray:
    """Error over bound of each decision, by 50 digits: (r, t)."""
    return np.array(
        [
            [float(abs(mp.mpf(float(f)) - true) / mp.mpf(float(b))) for f, b, true in zip(*rows, strict=True)]
            for rows in zip(decisions, bounds, exact, strict=True)
        ]
    )


def noisy_sine(rng: np.random.Generator, n: int = 150, classes: int = 2) -> tuple[Dataset, Labels]:
    """Classes by a sine of the first of three features, with logistic noise."""
    X = rng.standard_normal((n, 3))
    latent = 3.0 * np.sin(2.0 * X[:, 0]) + rng.logistic(size=n)
    codes = np.digitize(latent, np.quantile(latent, np.linspace(0.0, 1.0, classes + 1)[1:-1])).astype(np.int64)
    return memory_dataset(X, codes.astype(np.float64)), Labels(tuple("abcd"[:classes]), codes)
