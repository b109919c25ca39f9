"""Small labelled problems, trained on a basis, and the exact minimiser over all functions by dense algebra."""

from __future__ import annotations

from typing import Any

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.kernels import Kernel, SquaredExponential
from dkgp.models.classification.basis import BasisSettings, TrainedOnBasis, train_on_basis
from dkgp.models.classification.labels import LabelledData, Labels
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.hyperparameters import Hyperparameters
from tests.solvers.basis_risk.dense import dense_minimum
from tests.watching import in_context

KERNEL = SquaredExponential((0.3, 0.3, 0.3))


def samples(rng: np.random.Generator, n: int = 300, n_classes: int = 2) -> tuple[Dataset, Labels]:
    """A data set in memory, and labels that overlap."""
    X = rng.standard_normal((n, 3))
    score = X[:, 0] + np.sin(2.0 * X[:, 1]) + 0.4 * rng.standard_normal(n)
    codes = np.digitize(score, np.quantile(score, np.linspace(0, 1, n_classes + 1)[1:-1]))
    dataset = memory_dataset(X, codes.astype(np.float64))
    return dataset, Labels(tuple(f"c{code}" for code in range(n_classes)), codes)


def trained(
    dataset: Dataset,
    labels: Labels,
    *,
    kernel: Kernel = KERNEL,
    link: Any = "logit",
    multi_class: Any = "ovr",
    size: int = 30,
    threads: int = 2,
    settings: dict[str, Any] | None = None,
    weights: np.ndarray | None = None,
    **more: Any,
) -> TrainedOnBasis:
    """Train on a basis in this process."""
    executor = LocalExecutor(threads)
    try:
        return train_on_basis(
            LabelledData(dataset, labels, weights),
            Hyperparameters(kernel, 1.0),
            in_context(executor, more),
            BasisSettings(size, **{"tolerance": 1e-8, **(settings or {})}),
            likelihood=Likelihood.of(link, multi_class, labels.n_classes),
            **more,
        )
    finally:
        executor.close()


def exact_decisions(
    dataset: Dataset,
    labels: Labels,
    tests: np.ndarray,
    kernel: Kernel,
    likelihood: Likelihood,
    regularisation: float,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """The minimiser over all functions at standardised inputs: by the eigenvectors of K that rounding leaves."""
    X = dataset.inputs(0, dataset.n_samples)
    values, vectors = np.linalg.eigh(kernel(X, X))
    kept = values > 1e-13 * values[-1]
    features = vectors[:, kept] * np.sqrt(values[kept])
    each = np.ones(len(X)) if weights is None else weights
    targets = likelihood.targets(labels)
    _, found = dense_minimum(features, targets, likelihood.loss, regularisation, each, False)
    alpha = -each[:, None] * likelihood.loss.slope(targets, found) / regularisation
    return np.asarray(kernel(tests, X) @ alpha)
