"""Sparse predictions in stores and in memory, against the exact model in 50 digits and the formulas."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import BlockExecutor, LocalExecutor
from dkgp.data import (
    Dataset,
    SparseRecord,
    dataset_from_arrays,
    memory_sparse_model,
    open_prediction,
    open_sparse_model,
)
from dkgp.errors import InputError, MemoryBudgetError
from dkgp.kernels import Matern32
from dkgp.models.metrics import evaluate
from dkgp.models.prediction.posterior import standardised
from dkgp.models.prediction.predict import Destination, predict
from dkgp.models.prediction.sparse import PIECE_ROWS, plan_prediction
from dkgp.models.sparse.stored import OpenedSparse, open_sparse, save_sparse
from dkgp.models.sparse.train import SparseSettings, train_sparse
from dkgp.models.variance.settings import VarianceSettings
from tests.engine.helpers import content, opened
from tests.models.exact_gp import ExactGP, mp
from tests.models.posteriors import share_outside, sparse_posterior

N, M, TESTS, CHUNK = 500, 30, 2 * PIECE_ROWS + 700, PIECE_ROWS + 300
KERNEL = Matern32(gamma=(0.5, 0.8), variance=1.2)
NOISE = 0.05


@dataclass(frozen=True)
class World:
    folder: Path
    train: Dataset
    test: Dataset
    X_test: np.ndarray

    def model(self, method: str) -> SparseRecord:
        return open_sparse_model(self.folder / f"{method}.zarr")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder, rng = tmp_path_factory.mktemp("sparse"), np.random.default_rng(0)
    # The test samples go farther out than the training samples do, and have a column more.
    X, T = rng.normal(3.0, 1.0, (N, 2)), rng.normal(3.0, 2.0, (TESTS, 3))

    def f(X: np.ndarray) -> np.ndarray:
        noise = 0.2 * rng.standard_normal((len(X), 2))
        return np.column_stack([40.0 * np.sin(2.0 * X[:, 0]), X[:, 1] * np.cos(X[:, 0])]) + noise

    train = dataset_from_arrays(folder / "train.zarr", X, f(X), feature_names=("a", "b"))
    test = dataset_from_arrays(folder / "test.zarr", T[:, [2, 1, 0]], f(T), feature_names=("other", "b", "a"))
    executor = LocalExecutor(1)
    for method in ("vfe", "sr", "sd"):
        save_sparse(
            train_sparse(train, KERNEL, NOISE, executor, SparseSettings(method, M)), folder / f"{method}.zarr", train
        )
    executor.close()
    return World(folder, train, test, T[:, :2])


@pytest.fixture(scope="module")
def expected(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    url = tmp_path_factory.mktemp("expected") / "p"
    with opened("none", 1) as executor:
        predict(
            world.model("vfe"),
            world.test,
            Destination(str(url), chunk_rows=CHUNK),
            executor,
            variance=VarianceSettings(),
        )
    return content(url)


@pytest.mark.spread(1)
@pytest.mark.covering
@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("method", ["vfe", "sr", "sd"])
def test_the_store_holds_what_rows_in_memory_get(method: str, latent: bool, world: World, tmp_path: Path) -> None:
    model = world.model(method)
    with opened("none", 2) as executor:
        settings = VarianceSettings(latent=latent)
        summary = predict(
            model, world.test, Destination(str(tmp_path / "p"), chunk_rows=PIECE_ROWS), executor, variance=settings
        )
    found = sparse_posterior(open_sparse(model.url), variance=True, latent=latent)(world.X_test)
    stored = open_prediction(str(tmp_path / "p"))
    for name in stored.variables:
        np.testing.assert_array_equal(stored.read(name), found[name])
    assert (stored.attributes["method"], stored.attributes["basis_size"]) == (method, M)
    assert stored.attributes["variance"] == {"latent": latent, "gap": None}
    figures = summary.variance
    assert figures is not None
    assert figures["outside"] == share_outside(found)
    assert (figures["method"], figures["latent"], figures["computed"]) == (method, latent, TESTS)
    assert summary.n_support == M
    assert summary.largest_mean_error_bound == found["mean_error_bound"].max()


def test_of_the_function_and_of_observations_differ_by_the_noise(world: World, tmp_path: Path) -> None:
    read = {}
    with opened("none", 1) as executor:
        for latent in (False, True):
            settings, url = VarianceSettings(latent=latent), str(tmp_path / str(latent))
            predict(world.model("vfe"), world.test, url, executor, variance=settings)
            read[latent] = open_prediction(url).read("variance")
    noise = NOISE * np.asarray(world.train.standardisation.target_std) ** 2
    np.testing.assert_allclose(read[False], read[True] + noise, rtol=1e-12)
    figures = [evaluate(open_prediction(str(tmp_path / str(latent))), world.test) for latent in (False, True)]
    assert figures[0]["nlpd"] == pytest.approx(figures[1]["nlpd"])


@pytest.mark.slow
def test_a_model_that_is_not_stored_is_refused_by_other_processes(world: World, tmp_path: Path) -> None:
    resident = memory_sparse_model(world.model("vfe"))
    with opened("processes", 2) as executor, pytest.raises(Exception, match="dkgp-model"):
        predict(resident, world.test, str(tmp_path / "q"), executor)
    assert not (tmp_path / "q").exists()


def test_means_alone_and_a_model_that_is_not_stored(world: World, expected: dict[str, bytes], tmp_path: Path) -> None:
    resident = memory_sparse_model(world.model("vfe"))
    with opened("none", 2) as executor:
        summary = predict(resident, world.test, Destination(str(tmp_path / "p"), chunk_rows=CHUNK), executor)
    assert summary.variance is None
    assert open_prediction(str(tmp_path / "p")).variables == ("mean", "mean_error_bound")
    assert content(tmp_path / "p")["mean"] == expected["mean"]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"gap": 0.5}, ("`gap`",)),
        ({"rank": 3, "halo": 0}, ("`rank`", "`halo`")),
        ({"max_passes": 0.0}, ("`max_passes`",)),
        ({"batch_size": 3}, ("`batch_size`",)),
        ({"keep_factor": True}, ("`keep_factor`",)),
        ({"way": "cholesky"}, ("`way`", "got cholesky", "Leave this out")),
        ({"way": "vif", "gap": 0.5}, ("`gap`, `way`", "got 0.5, vif")),
    ],
)
def test_what_exact_models_alone_take_is_refused(
    given: dict[str, Any], names: tuple[str, ...], world: World, executor: BlockExecutor, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="can be set only for exact models") as caught:
        predict(world.model("vfe"), world.test, str(tmp_path / "p"), executor, variance=VarianceSettings(**given))
    assert all(name in str(caught.value) for name in names)
    assert not (tmp_path / "p").exists()


def test_a_model_that_does_not_fit_is_refused_with_numbers(
    world: World, executor: BlockExecutor, tmp_path: Path
) -> None:
    model, needed = (
        world.model("vfe"),
        plan_prediction((M, 2, 2), executor.threads_per_process, True).coordinator_bytes,
    )
    enough, less = VarianceSettings(memory_bytes=needed), VarianceSettings(memory_bytes=needed - 1)
    predict(model, world.test, str(tmp_path / "p"), executor, variance=enough)
    with pytest.raises(MemoryBudgetError, match=r"30 basis samples is projected to need .*`memory_bytes`"):
        predict(model, world.test, str(tmp_path / "q"), executor, variance=less)
    assert not (tmp_path / "q").exists()


@pytest.mark.long
@pytest.mark.parametrize("variance", [False, True])
def test_the_plan_holds_what_predicting_takes(variance: bool, tmp_path: Path) -> None:
    """NumPy's arrays are traced: opening a model, and a piece of rows."""
    rng, m = np.random.default_rng(0), 600
    X = rng.standard_normal((1_000, 3))
    dataset = dataset_from_arrays(tmp_path / "train.zarr", X, np.sin(X[:, 0]))
    executor = LocalExecutor(1)
    kernel = Matern32(gamma=(1.0, 1.0, 1.0), variance=1.0)
    save_sparse(train_sparse(dataset, kernel, 0.1, executor, SparseSettings("vfe", m)), tmp_path / "m", dataset)
    executor.close()
    T = rng.standard_normal((PIECE_ROWS, 3))
    sparse_posterior(open_sparse(tmp_path / "m"), variance=variance, threads=1)(T)
    planned = plan_prediction((m, 3, 1), 1, variance)
    tracemalloc.start()
    try:
        predictor = sparse_posterior(open_sparse(tmp_path / "m"), variance=variance, threads=1)
        kept, opening = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        predictor(T)
        task = tracemalloc.get_traced_memory()[1] - kept
    finally:
        tracemalloc.stop()
    assert 0.9 * planned["model_bytes"] <= kept <= planned["model_bytes"] + 500_000
    assert 0.5 * (planned["model_bytes"] + planned["opening_bytes"]) <= opening
    assert opening <= planned["model_bytes"] + planned["opening_bytes"] + 500_000
    assert 0.3 * planned["tasks_bytes"] <= task <= planned["tasks_bytes"]


FEW = 60


def problem(folder: Path, method: str) -> tuple[Dataset, np.ndarray, np.ndarray, OpenedSparse]:
    rng = np.random.default_rng(0)
    X = rng.normal([3.0, -20.0], [2.0, 0.1], (FEW, 2))
    y = np.column_stack([1e3 + 40.0 * np.sin(X[:, 0]), X[:, 1]]) + rng.standard_normal((FEW, 2))
    dataset = dataset_from_arrays(folder / "train.zarr", X, y)
    executor = LocalExecutor(1)
    trained = train_sparse(dataset, KERNEL, NOISE, executor, SparseSettings(method, 15))
    executor.close()
    save_sparse(trained, folder / "model.zarr", dataset)
    return dataset, rng.normal([3.0, -20.0], [2.5, 0.15], (6, 2)), y, open_sparse(folder / "model.zarr")


@pytest.mark.spread(1)
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
    exact = ExactGP(dataset.inputs(0, FEW), standardised(opened.record, T), rows, KERNEL, NOISE)
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
