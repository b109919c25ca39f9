"""Kernels that a search starts from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset
from dkgp.kernels import Kernel, SquaredExponential
from dkgp.models.classification.hyperparameters import LabelTuning, tune_labels
from dkgp.models.classification.labelled import LabelledData
from dkgp.models.tuning.subsets import draw_subset
from dkgp.operators.inputs import centre_of

# The paper's kernel has one length scale; with few features or samples no more can be learned beforehand.
FEW_FEATURES, FEW_SAMPLES = 3, 1000
MEDIAN_SAMPLES, TUNED_SAMPLES = 1000, 1000
# A start wants no more than this of a search that ends with another one.
TUNING = LabelTuning(subset=TUNED_SAMPLES, tolerance=1e-2, max_evaluations=60)


def median_kernel(dataset: Dataset, seed: int = 0) -> Kernel:
    """exp(-r^2 / sigma^2), sigma^2 the median of the squared distances between a thousand samples."""
    subset = draw_subset(dataset.n_samples, MEDIAN_SAMPLES, seed)
    inputs = dataset.input_rows(subset)
    inputs = inputs - (inputs.mean(axis=0) if (centre := centre_of(dataset)) is None else centre)
    with single_threaded_blas():
        squares = np.einsum("id,id->i", inputs, inputs)
        distances = squares[:, None] + squares - 2.0 * (inputs @ inputs.T)
    apart = distances[np.triu_indices(len(inputs), 1)]
    apart = apart[apart > 1e-12 * squares.max(initial=1e-300)]
    middle = float(np.median(apart)) if len(apart) else 1.0
    return SquaredExponential(gamma=(1.0 / middle,), n_features=dataset.n_features)


def start_kernel(data: LabelledData, *, isotropic: bool, seed: int = 0) -> tuple[Kernel, str]:
    """A kernel to start from, and how it was found: "median" or "likelihood"."""
    dataset = data.dataset
    if isotropic or dataset.n_features <= FEW_FEATURES or dataset.n_samples <= FEW_SAMPLES:
        return median_kernel(dataset, seed), "median"
    return tune_labels(data, replace(TUNING, seed=seed)).kernel, "likelihood"
