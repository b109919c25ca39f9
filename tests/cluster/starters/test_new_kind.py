"""A kind of cluster that somebody adds in one file, used from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dkgp.data import dataset_from_arrays, open_model
from tests.plugin import dkgp, install

KIND = '''
    """A cluster of threads that is slow to say so: any of dask's cluster objects will do."""
    from dkgp.cluster.options import KINDS, ClusterKind
    from dkgp.cluster.starters.security import check_settings
    from dkgp.registry import Extra

    def start(options, security, stack):
        from distributed import LocalCluster

        check_settings(options.kind, options.settings, {"trace"})
        assert security is None
        open(options.settings["trace"], "w").write(f"{options.workers}")
        return stack.enter_context(
            LocalCluster(n_workers=options.workers, threads_per_worker=1, processes=False, dashboard_address=None)
        )

    KINDS.add(
        ClusterKind(
            "threads",
            "threads that are slow to say so",
            start,
            extra=Extra("slowly", package="distributed", module="distributed"),
            in_process=True,
            queues=True,
            adaptive=None,
            no_workers="look at it again",
        )
    )
'''


@pytest.mark.slow
def test_a_cluster_kind_is_one_file(tmp_path: Path, rng: np.random.Generator) -> None:
    environment = {**install(tmp_path, "dkgp.clusters", "thread_cluster", KIND), "OPENBLAS_NUM_THREADS": "1"}
    X = rng.normal(size=(60, 2))
    dataset_from_arrays(tmp_path / "train.zarr", X, np.sin(X[:, 0]))
    kernel = {"kernel": {"type": "rbf", "gamma": [0.5, 0.5]}, "noise_variance": 0.01}
    (tmp_path / "hyper.json").write_text(json.dumps(kernel))
    train = "train train.zarr --hyper hyper.json --out model.zarr --cluster threads --json"
    helped, info, done, *refused = dkgp(
        environment,
        tmp_path,
        "train --help",
        "info --json",
        f"{train} --workers 2 --cluster-option trace=started",
        f"{train} --overwrite",
        f"{train} --overwrite --adaptive 1 2",
        f"{train} --overwrite --workers 2 --cluster-option trce=started",
    )
    assert "threads: threads that are slow to say so" in " ".join(helped.stdout.split())
    assert json.loads(info.stdout)["extras"]["slowly"] is True
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "started").read_text() == "2"
    assert json.loads(done.stdout)["converged"] is True
    assert open_model(tmp_path / "model.zarr").n_samples == 60
    for result, words in zip(
        refused,
        (
            "--cluster threads needs the number of workers",
            "a cluster of kind 'threads' cannot be adaptive",
            "has no setting 'trce'; did you mean trace?",
        ),
        strict=True,
    ):
        assert result.exit_code == 2
        assert words in result.stderr
