"""A dense Gaussian process written out in NumPy: the reference for what an estimator returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg

FloatArray = np.ndarray


@dataclass(frozen=True)
class DensePosterior:
    """Mean and covariance at `points`, on the targets' own scale; `noise` is the observations' variance there."""

    mean: FloatArray
    covariance: FloatArray
    noise: FloatArray


def dense_posterior(
    kernel: Callable[[FloatArray, FloatArray], FloatArray],
    noise_variance: float,
    X: FloatArray,
    y: FloatArray,
    points: FloatArray,
    like: tuple[FloatArray, FloatArray] | None = None,
) -> DensePosterior:
    """`like` are the samples whose standardisation is used, by default X and y; constant features are left out."""
    inputs, targets = (X, y) if like is None else like
    varies = inputs.std(axis=0) > 0
    mean, std = inputs[:, varies].mean(axis=0), inputs[:, varies].std(axis=0)
    target_mean, target_std = targets.mean(axis=0), targets.std(axis=0)
    Z, Z_new = (X[:, varies] - mean) / std, (points[:, varies] - mean) / std
    lower = scipy.linalg.cholesky(kernel(Z, Z) + noise_variance * np.eye(len(Z)), lower=True)
    cross = kernel(Z_new, Z)
    half = scipy.linalg.solve_triangular(lower, cross.T, lower=True)
    alpha = scipy.linalg.cho_solve((lower, True), (y - target_mean) / target_std)
    covariance = kernel(Z_new, Z_new) - half.T @ half
    return DensePosterior(
        cross @ alpha * target_std + target_mean,
        covariance * np.max(target_std) ** 2,
        noise_variance * target_std**2,
    )
