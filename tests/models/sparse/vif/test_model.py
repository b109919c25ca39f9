"""A model with neighbours, trained, stored and opened: its predictions, what is proven of them, and what is refused."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset, dataset_from_arrays, open_prediction
from dkgp.data.stores.models.regression import SparseRecord, save_sparse_model
from dkgp.errors import InputError, NumericalError, StoreError
from dkgp.kernels import Kernel, Matern32, SquaredExponential, Sum
from dkgp.models.prediction.posterior import Columns, standardised
from dkgp.models.prediction.predict import Destination, predict
from dkgp.models.prediction.sparse import PredictionMemory, SparseEvaluator
from dkgp.models.sparse.ladder import LadderTarget, climb
from dkgp.models.sparse.settings import SparseSettings
from dkgp.models.sparse.stored import (
    OpenedSparse,
    open_sparse,
    opened_sparse,
    save_sparse,
    sparse_record,
    update_sparse,
)
from dkgp.models.sparse.train import SparseProblem, TrainedSparse, train_sparse
from dkgp.models.variance.settings import VarianceSettings
from tests.models.posteriors import sparse_posterior

KERNEL, SUM = Matern32((4.0, 2.0)), Sum((Matern32((4.0, 2.0)), SquaredExponential((0.3, 0.0), 0.5)))
N, S2 = 150, 0.02


NOISE = np.random.default_rng(3).uniform(0.001, 0.1, N)


def problem(folder: Path, *, n: int = N, d: int = 2) -> Dataset:
    rng = np.random.default_rng(4)
    X = rng.standard_normal((n, d))
    Y = np.stack([np.sin(3.0 * X[:, 0]) + 0.1 * rng.standard_normal(n), X[:, 1] ** 2], axis=1)
    return dataset_from_arrays(folder / "train.zarr", X, Y)


def trained(
    dataset: Dataset, kernel: Kernel, executor: LocalExecutor, neighbours: int, *, by_sample: bool = False
) -> TrainedSparse:
    settings = SparseSettings("vif", 12, neighbours=neighbours, seed=1)
    return train_sparse(dataset, kernel, S2, executor, settings, sample_noise=NOISE if by_sample else None)


def evaluated(opened: OpenedSparse, T: np.ndarray) -> tuple[Columns, int]:
    """Predictions, and rows whose neighbours may not be the nearest."""
    return SparseEvaluator(opened, variance=False, latent=False).at(standardised(opened.record, T))


def predictions(model: TrainedSparse, dataset: Dataset, T: np.ndarray) -> Columns:
    return sparse_posterior(opened_sparse(sparse_record(model, dataset)), variance=True, latent=True)(T)


def exact(dataset: Dataset, kernel: Kernel, T: np.ndarray, *, by_sample: bool) -> tuple[np.ndarray, np.ndarray]:
    """Means (t, p) and variances (t, p) of the exact model, in the targets' units."""
    X, Y, to = dataset.inputs(0, dataset.n_samples), dataset.all_targets(), dataset.standardisation
    noise = S2 + (NOISE if by_sample else np.zeros(len(X)))
    across = np.asarray(kernel(to.inputs(T), X))
    solved = np.linalg.solve(np.asarray(kernel(X, X)) + np.diag(noise), np.hstack([Y, across.T]))
    variance = kernel.diagonal(to.inputs(T)) - np.einsum("ij,ji->i", across, solved[:, 2:])
    return across @ solved[:, :2] * to.target_std + to.target_mean, np.outer(variance, to.target_std**2)


@pytest.mark.parametrize("kernel", [KERNEL, SUM], ids=["one distance", "sum"])
@pytest.mark.parametrize("by_sample", [False, True])
def test_with_all_samples_near_it_is_the_exact_model(
    kernel: Kernel, by_sample: bool, tmp_path: Path, one_thread: LocalExecutor
) -> None:
    dataset, T = problem(tmp_path), np.random.default_rng(5).standard_normal((30, 2))
    mean, variance = exact(dataset, kernel, T, by_sample=by_sample)
    # All of the others: a quarter of so many are in a leaf, which has all that come before it.
    found = predictions(trained(dataset, kernel, one_thread, 4 * N, by_sample=by_sample), dataset, T)
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found["variance"], variance, rtol=1e-5)


@pytest.mark.parametrize("neighbours", [1, 8, 40])
@pytest.mark.parametrize("by_sample", [False, True])
def test_the_exact_mean_is_within_what_is_proven(
    neighbours: int, by_sample: bool, tmp_path: Path, one_thread: LocalExecutor
) -> None:
    """Of samples, too, and of inputs far from all."""
    dataset = problem(tmp_path)
    T = np.concatenate([np.random.default_rng(6).standard_normal((40, 2)), [[9.0, -9.0], [1e3, 0.0]]])
    T = np.concatenate(
        [T, dataset.inputs(0, 5) * dataset.standardisation.input_std + dataset.standardisation.input_mean]
    )
    mean, variance = exact(dataset, KERNEL, T, by_sample=by_sample)
    model = trained(dataset, KERNEL, one_thread, neighbours, by_sample=by_sample)
    found = predictions(model, dataset, T)
    apart = np.abs(found["mean"] - mean)
    assert (apart <= found["mean_error_bound"]).all()
    # Worth something: no more than what the basis alone proves, and how far the two means are apart.
    alone = replace(opened_sparse(sparse_record(model, dataset)), near=None)
    basis = sparse_posterior(alone, variance=True, latent=True)(T)
    assert (
        found["mean_error_bound"] <= (basis["mean_error_bound"] + np.abs(found["mean"] - basis["mean"])) * (1.0 + 1e-12)
    ).all()
    assert np.sqrt(np.mean(apart**2)) < 0.9 * np.sqrt(np.mean((basis["mean"] - mean) ** 2))
    assert (found["variance_lower"] <= variance * (1.0 + 1e-9)).all()
    assert (variance <= found["variance_upper"] * (1.0 + 1e-9)).all()


@pytest.mark.parametrize("kernel", [pytest.param(KERNEL, marks=pytest.mark.slow), SUM], ids=["one distance", "sum"])
def test_what_was_saved_predicts_the_same_without_the_training_set(
    kernel: Kernel, tmp_path: Path, one_thread: LocalExecutor
) -> None:
    dataset, rng = problem(tmp_path), np.random.default_rng(8)
    T = rng.standard_normal((240, 2))
    test = dataset_from_arrays(tmp_path / "test.zarr", T, T)
    model = trained(dataset, kernel, one_thread, 16, by_sample=True)
    before = predictions(model, dataset, T)
    save_sparse(model, tmp_path / "model.zarr", dataset)
    shutil.rmtree(tmp_path / "train.zarr")
    opened = open_sparse(tmp_path / "model.zarr")
    assert opened.record.neighbours == 16
    after = sparse_posterior(opened, variance=True, latent=True, threads=2)(T)
    np.testing.assert_array_equal(after["mean"], before["mean"])
    np.testing.assert_array_equal(after["variance"], before["variance"])
    np.testing.assert_array_equal(after["mean_error_bound"], before["mean_error_bound"])
    stores = []
    for threads, chunk_rows in ((1, 80), (2, None)):
        executor = LocalExecutor(threads)
        try:
            url = str(tmp_path / f"{threads}.zarr")
            predict(opened.record, test, Destination(url, chunk_rows), executor, variance=VarianceSettings(latent=True))
        finally:
            executor.close()
        stores.append(open_prediction(url).read("mean", 0, 240))
    np.testing.assert_array_equal(stores[1], before["mean"])
    np.testing.assert_allclose(stores[0], before["mean"], rtol=1e-12, atol=1e-12)


def test_a_store_without_its_neighbours_is_refused(tmp_path: Path, one_thread: LocalExecutor) -> None:
    dataset = problem(tmp_path)
    record = sparse_record(trained(dataset, KERNEL, one_thread, 8), dataset)
    for damaged in (
        replace(record, near_targets=None),
        replace(record, near_normal=None),
        replace(record, neighbours=None),
        replace(record, neighbours=N + 1),
        replace(record, search_samples=0),
    ):
        with pytest.raises(StoreError, match="train again"):
            opened_sparse(damaged)
    with pytest.raises(InputError, match=r"'near_inputs' .* shape"):
        save_sparse_as(replace(record, near_inputs=record.near_inputs[:, :1]), tmp_path)  # type: ignore[index]
    save_sparse_as(record, tmp_path)
    manifest = next(iter((tmp_path / "model.zarr").glob("*manifest*")))
    text = json.loads(manifest.read_text())
    text["metadata"]["neighbours"] = "many"
    manifest.write_text(json.dumps(text))
    with pytest.raises(StoreError):
        open_sparse(tmp_path / "model.zarr")


def save_sparse_as(record: SparseRecord, folder: Path) -> None:
    save_sparse_model(folder / "model.zarr", record, overwrite=True)


def test_what_has_no_meaning_is_refused(tmp_path: Path, one_thread: LocalExecutor) -> None:
    dataset = problem(tmp_path)
    model = trained(dataset, KERNEL, one_thread, 8)
    with pytest.raises(InputError, match="a model by vif cannot take in new samples"):
        update_sparse(opened_sparse(sparse_record(model, dataset)), dataset)
    with pytest.raises(InputError, match="the mean of vif is proven where it predicts alone"):
        climb(SparseProblem.of(dataset, KERNEL, S2), one_thread, SparseSettings("vif"), LadderTarget(0.1, None, None))
    with pytest.raises(InputError, match="`neighbours` belongs to the method vif, and this one is vfe"):
        SparseSettings("vfe", neighbours=5)
    with pytest.raises(InputError, match="`search_samples` belongs to the method vif, and this one is sr"):
        SparseSettings("sr", search_samples=5)
    with pytest.raises(InputError, match="`neighbours` must be at least 1; got 0"):
        SparseSettings("vif", neighbours=0)
    close = dataset_from_arrays(tmp_path / "close.zarr", np.linspace(0.0, 1.0, 200)[:, None], np.arange(200.0))
    with pytest.raises(NumericalError, match="what the basis leaves of .* samples is not positive definite"):
        train_sparse(close, SquaredExponential((0.1,)), 1e-17, one_thread, SparseSettings("vif", 2))


def test_a_limited_search_says_of_how_many_it_may_have_missed_nearer_ones(
    tmp_path: Path, one_thread: LocalExecutor
) -> None:
    """A model of all of them where the limit is large enough, and else another one that predicts nearly as well."""
    dataset, T = problem(tmp_path, n=800, d=9), np.random.default_rng(9).standard_normal((40, 9))
    kernel, found, shares = Matern32((0.4,) * 9), [], []
    for limit in (40, 800, 32_768):
        settings = SparseSettings("vif", 12, neighbours=16, search_samples=limit, seed=1)
        model = train_sparse(dataset, kernel, S2, one_thread, settings)
        shares.append(model.summary["neighbours_unproven"])
        save_sparse(model, tmp_path / f"{limit}.zarr", dataset)
        stored = open_sparse(tmp_path / f"{limit}.zarr")
        assert stored.record.search_samples == limit
        found.append(evaluated(stored, T))
    (limited, missed), (enough, none), (default, nothing) = found
    assert 0.5 < shares[0] <= 1.0
    assert shares[1:] == [0.0, 0.0]
    assert 0.5 * len(T) < missed <= len(T)
    assert none == nothing == 0
    np.testing.assert_array_equal(enough["mean"], default["mean"])
    assert np.abs(limited["mean"] - enough["mean"]).max() > 0.0
    assert np.sqrt(np.mean((limited["mean"] - enough["mean"]) ** 2)) < 0.3 * enough["mean"].std()
    # A store of before there was a limit is exact.
    old = opened_sparse(replace(open_sparse(tmp_path / "40.zarr").record, search_samples=None))
    assert evaluated(old, T)[1] == 0


@pytest.mark.long
@pytest.mark.parametrize("d", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_memory_is_what_is_planned_at_most(d: int, tmp_path: Path, one_thread: LocalExecutor) -> None:
    """Of a fit, and of predictions, whose neighbours the plan takes to be all different: peaks are not far below."""
    n, m, p = 20_000, 60, 2
    dataset, kernel = problem(tmp_path, n=n, d=d), Matern32((0.5,) * d)
    settings = SparseSettings("vif", m, "uniform")
    plan = settings.memory(n, d, p, one_thread, 2**28, d)
    planned = plan.coordinator_parts + plan.worker_parts
    train_sparse(problem(tmp_path / "few", n=600, d=d), kernel, S2, one_thread, settings)  # compiled, and imported
    tracemalloc.start()
    model = train_sparse(dataset, kernel, S2, one_thread, settings)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.25 * planned < peak < planned
    record = sparse_record(model, dataset)
    planned = PredictionMemory.of(record, 1, True).worker_bytes
    T = np.random.default_rng(1).standard_normal((1024, d))
    tracemalloc.start()
    opened = opened_sparse(replace(record, near_inputs=record.near_inputs.copy()))  # type: ignore[union-attr]
    sparse_posterior(opened, variance=True, threads=1)(T)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.1 * planned < peak < planned
