"""A model with neighbours of a store on S3 (moto's server), kept on S3: the same predictions as from a disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import dataset_from_arrays, open_dataset
from dkgp.models.sparse.settings import SparseSettings
from dkgp.models.sparse.stored import open_sparse, save_sparse
from dkgp.models.sparse.train import train_sparse
from tests.models.posteriors import sparse_posterior
from tests.models.sparse.vif.test_model import KERNEL, S2, problem
from tests.s3 import s3_server, use_s3


@pytest.mark.slow  # a server of its own: what is read from S3 elsewhere goes by the same stores
def test_it_predicts_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: LocalExecutor) -> None:
    settings, T = SparseSettings("vif", 12, neighbours=16, search_samples=64), np.full((5, 2), 0.3)
    on_disk = problem(tmp_path)
    means = []
    with s3_server() as server:
        use_s3(monkeypatch, server)
        url = server.url("near/train.zarr")
        X = on_disk.raw_inputs(0, on_disk.n_samples)
        Y = on_disk.standardisation.target_mean + on_disk.standardisation.target_std * on_disk.all_targets()
        dataset_from_arrays(url, X, Y, standardisation=on_disk.standardisation)
        for place, dataset in ((str(tmp_path / "model.zarr"), on_disk), (server.url("near/m.zarr"), open_dataset(url))):
            save_sparse(train_sparse(dataset, KERNEL, S2, one_thread, settings), place, dataset)
            stored = open_sparse(place)
            assert stored.record.search_samples == 64
            means.append(sparse_posterior(stored, variance=True)(T).mean)
    np.testing.assert_allclose(means[1], means[0], rtol=1e-10)
