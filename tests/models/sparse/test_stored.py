"""A sparse model that was saved predicts the same bits, with the same proofs, where there is no training set."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import dataset_from_arrays
from dkgp.kernels import Matern32
from dkgp.models.sparse.model import interval_of
from dkgp.models.sparse.stored import open_sparse, save_sparse
from dkgp.models.sparse.train import SparseSettings, train_sparse

KERNEL = Matern32(gamma=(0.5, 0.8), variance=1.2)


@pytest.mark.parametrize(("method", "basis"), [("vfe", None), ("sd", None), ("dtc", "k-means"), ("sggp", None)])
def test_what_was_saved_predicts_the_same(
    method: str, basis: str | None, tmp_path: Path, one_thread: LocalExecutor
) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 2))
    dataset = dataset_from_arrays(tmp_path / "train.zarr", X, np.sin(X[:, 0]) + 0.1 * rng.standard_normal(400))
    trained = train_sparse(dataset, KERNEL, 0.05, one_thread, SparseSettings(method, 30, basis))
    save_sparse(trained, tmp_path / "model.zarr", dataset)
    shutil.rmtree(tmp_path / "train.zarr")
    found, T = open_sparse(tmp_path / "model.zarr"), 1.5 * rng.standard_normal((20, 2))
    np.testing.assert_array_equal(found.model.mean(T), trained.model.mean(T))
    np.testing.assert_array_equal(found.model.variance(T), trained.model.variance(T))
    assert found.certificate == trained.certificate
    assert found.model.method is trained.model.method
    noise = None if basis == "k-means" else 0.05
    expected = interval_of(trained.model, noise, trained.certificate.normal_share)(T)
    for mine, theirs in zip(found.interval()(T), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert len(found.record.history) == (30 if method == "sggp" else 0)
    assert found.record.summary == trained.summary
