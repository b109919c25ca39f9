"""`dkgp predict --variance --variance-basis`: of exact and of sparse models, against a dense Gaussian process."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import dataset_from_arrays, open_dataset, open_prediction, save_sparse_model
from dkgp.kernels import Matern32
from dkgp.models.exact import save, train
from dkgp.models.sparse.stored import sparse_record
from dkgp.models.sparse.train import SparseSettings, train_sparse
from tests.cli.invoke import refused, run, run_json

N, TESTS, NOISE = 300, 9, 0.05
KERNEL = Matern32(gamma=(2.0, 2.0), variance=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("bases"), np.random.default_rng(0)

    def arrays(n: int) -> tuple[np.ndarray, np.ndarray]:
        X = rng.standard_normal((n, 2))
        return X, 50.0 * np.sin(2.0 * X[:, 0]) + rng.standard_normal(n)

    dataset = dataset_from_arrays(folder / "train.zarr", *arrays(N))
    dataset_from_arrays(folder / "test.zarr", *arrays(TESTS))
    executor = LocalExecutor(1)
    save(train(dataset, KERNEL, NOISE, executor), str(folder / "exact.zarr"), dataset)
    for name, settings in (("vfe", SparseSettings("vfe", 15)), ("sr", SparseSettings("sr", 15))):
        trained = train_sparse(dataset, KERNEL, NOISE, executor, settings)
        save_sparse_model(folder / f"{name}.zarr", sparse_record(trained, dataset))
    executor.close()
    return folder


@pytest.fixture(scope="module")
def dense(folder: Path) -> np.ndarray:
    """Variances of new observations, in the targets' units."""
    dataset = open_dataset(folder / "train.zarr")
    test = open_dataset(folder / "test.zarr").with_standardisation(dataset.standardisation)
    X, T = dataset.inputs(0, N), test.inputs(0, TESTS)
    k = KERNEL(X, T)
    explained = np.sum(k * np.linalg.solve(KERNEL(X, X) + NOISE * np.eye(N), k), axis=0)
    return (1.0 + NOISE - explained) * float(dataset.standardisation.target_std[0]) ** 2


def predicted(folder: Path, model: str, out: Path, *more: object) -> tuple[object, ...]:
    return ("predict", folder / f"{model}.zarr", folder / "test.zarr", "--out", out, "--variance", "--cluster", "none",
            *more)  # fmt: skip


@pytest.mark.parametrize("model", ["exact", "vfe"])
def test_intervals_hold_the_exact_variance(model: str, folder: Path, dense: np.ndarray, tmp_path: Path) -> None:
    out = tmp_path / "p.zarr"
    told = run_json(*predicted(folder, model, out, "--variance-basis", 200, "--variance-gap", 0.01, "--json"))
    figures = told["variance"]
    assert (figures["basis"], figures["basis_gap"], figures["met"], figures["unmet"]) == (200, 0.01, TESTS, 0)
    assert 1.0 < figures["kernels_mean"] <= figures["kernels_max"] < 200
    stored = open_prediction(out)
    lower, upper, variance = (stored.read(name)[:, 0] for name in ("variance_lower", "variance_upper", "variance"))
    assert (lower <= dense * (1.0 + 1e-12)).all()
    assert (dense <= upper * (1.0 + 1e-12)).all()
    if model == "exact":
        assert np.array_equal(variance, lower + 0.5 * (upper - lower))
        assert told["warnings"] == []
        return
    plain = tmp_path / "plain.zarr"
    run_json(*predicted(folder, model, plain, "--json"))
    before = open_prediction(plain)
    was = before.read("variance_upper") - before.read("variance_lower")
    assert (upper - lower <= was[:, 0]).all()
    assert np.sum(upper - lower) < 0.5 * np.sum(was)
    assert np.array_equal(before.read("variance")[:, 0], variance)
    judged = run_json("evaluate", out, folder / "test.zarr")
    assert judged["variance_gap_max"] == pytest.approx(np.max((upper - lower) / upper))


def test_tables_and_warnings(folder: Path, tmp_path: Path) -> None:
    result = run(*predicted(folder, "exact", tmp_path / "p.zarr", "--variance-basis", 2))
    assert result.exit_code == 0
    assert "by a basis for each" in result.stdout
    assert "a basis of its own, up to 2 of 300 samples" in " ".join(result.stderr.split())
    assert "raise --variance-basis (now 2)" in " ".join(result.stderr.split())
    # Its own variances are too small, of which narrow intervals are proof.
    sparse = run(*predicted(folder, "sr", tmp_path / "s.zarr", "--variance-basis", 200, "--variance-gap", 0.002))
    assert "by a basis for each" in sparse.stdout
    assert "proven to be wrong" in " ".join(sparse.stderr.split())


def test_a_training_set_that_moved_is_named(folder: Path, tmp_path: Path) -> None:
    """A sparse model does not have its own."""
    out = tmp_path / "p.zarr"
    shutil.move(folder / "train.zarr", folder / "moved.zarr")
    try:
        moved = run(*predicted(folder, "vfe", out, "--variance-basis", 5))
        refused(moved, "refers to its training set at")
    finally:
        shutil.move(folder / "moved.zarr", folder / "train.zarr")
    assert not out.exists()
