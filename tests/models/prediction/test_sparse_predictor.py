"""Sparse predictions in the targets' units, against the exact model in 50 digits and the formulas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset, dataset_from_arrays
from dkgp.kernels import Matern32
from dkgp.models.prediction.posterior import standardised
from dkgp.models.sparse.stored import OpenedSparse, open_sparse, save_sparse
from dkgp.models.sparse.train import SparseSettings, train_sparse
from tests.models.exact_gp import ExactGP, mp
from tests.models.posteriors import share_outside, sparse_posterior

N, NOISE = 60, 0.05
KERNEL = Matern32(gamma=(0.5, 0.8), variance=1.2)


def problem(folder: Path, method: str) -> tuple[Dataset, np.ndarray, np.ndarray, OpenedSparse]:
    rng = np.random.default_rng(0)
    X = rng.normal([3.0, -20.0], [2.0, 0.1], (N, 2))
    y = np.column_stack([1e3 + 40.0 * np.sin(X[:, 0]), X[:, 1]]) + rng.standard_normal((N, 2))
    dataset = dataset_from_arrays(folder / "train.zarr", X, y)
    executor = LocalExecutor(1)
    trained = train_sparse(dataset, KERNEL, NOISE, executor, SparseSettings(method, 15))
    executor.close()
    save_sparse(trained, folder / "model.zarr", dataset)
    return dataset, rng.normal([3.0, -20.0], [2.5, 0.15], (6, 2)), y, open_sparse(folder / "model.zarr")


@pytest.mark.covering
@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("method", ["vfe", "sr", "sd"])
def test_bounds_hold_in_the_targets_units(method: str, latent: bool, tmp_path: Path) -> None:
    dataset, T, y, opened = problem(tmp_path, method)
    found = sparse_posterior(opened, variance=True, latent=latent)(T)
    to = dataset.standardisation
    rows = [
        [
            (mp.mpf(float(value)) - mp.mpf(float(mean))) / mp.mpf(float(std))
            for value, mean, std in zip(row, to.target_mean, to.target_std, strict=True)
        ]
        for row in y
    ]
    exact = ExactGP(dataset.inputs(0, N), standardised(opened.record, T), rows, KERNEL, NOISE)
    for row in range(len(T)):
        for target in range(2):
            std = mp.mpf(float(to.target_std[target]))
            mean = exact.mean[row][target] * std + mp.mpf(float(to.target_mean[target]))
            variance = (exact.variance[row] + (0 if latent else mp.mpf(NOISE))) * std**2
            assert abs(mp.mpf(float(found["mean"][row, target])) - mean) <= mp.mpf(
                float(found["mean_error_bound"][row, target])
            )
            assert mp.mpf(float(found["variance_lower"][row, target])) <= variance
            assert variance <= mp.mpf(float(found["variance_upper"][row, target]))
    own = opened.model.variance(standardised(opened.record, T)) + (0.0 if latent else NOISE)
    np.testing.assert_allclose(found["variance"], own[:, None] * np.asarray(to.target_std) ** 2, rtol=1e-12)
    assert share_outside(found) == 0.0


def test_means_alone_have_the_wider_bound(tmp_path: Path) -> None:
    _, T, _, opened = problem(tmp_path, "vfe")
    T = np.repeat(T, 400, axis=0)
    both, alone = sparse_posterior(opened, variance=True)(T), sparse_posterior(opened, threads=1)(T)
    np.testing.assert_array_equal(both["mean"], alone["mean"])
    assert np.all(both["mean_error_bound"] <= alone["mean_error_bound"])
    assert list(alone) == ["mean", "mean_error_bound"]
