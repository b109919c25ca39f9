"""Variances foreseen: factors, batches and memory are those of the prediction itself, products near what it takes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset, dataset_from_arrays, memory_model, open_prediction
from dkgp.errors import MemoryBudgetError
from dkgp.models import Hyperparameters, read_hyperparameters
from dkgp.models.exact import train
from dkgp.models.prediction.predict import predict
from dkgp.models.variance.iterative import BatchLayout
from dkgp.models.variance.neighbours import run
from dkgp.models.variance.settings import VarianceSettings
from dkgp.models.variance.ways import variance_memory, whole_memory_bytes
from dkgp.models.variance.whole_matrix import whole_layout
from dkgp.plan.foreseen import ForeseenVariances, PlannedWorkers, foresee_variances
from dkgp.solvers.prices import Phase, Prices, Sizes, core_seconds

N, D, TESTS = 1200, 4, 90
ROUGH = {"kernel": {"type": "rbf", "gamma": [2.0] * D}, "noise_variance": 0.01}
SMOOTH = {"kernel": {"type": "rbf", "gamma": [0.01] * D}, "noise_variance": 0.1}
SMALL = {"rank": 150, "halo": 100, "memory_bytes": 2**28}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    rng = np.random.default_rng(3)
    X = rng.uniform(-1.5, 1.5, (N, D))
    y = np.sin(3.0 * X).sum(axis=1) + 0.1 * rng.standard_normal(N)
    return dataset_from_arrays(tmp_path_factory.mktemp("variances") / "d.zarr", X, y)


@pytest.fixture(scope="module")
def tests(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    X = np.random.default_rng(4).uniform(-1.5, 1.5, (TESTS, D))
    return dataset_from_arrays(tmp_path_factory.mktemp("variances") / "t.zarr", X, None)


def hyper(document: dict[str, Any], folder: Path) -> Hyperparameters:
    (folder / "hyper.json").write_text(json.dumps(document))
    return read_hyperparameters(folder / "hyper.json")


def predicted(
    dataset: Dataset, tests: Dataset, found: Hyperparameters, settings: VarianceSettings, workers: int, folder: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plan that a prediction stores, and its summary."""
    executor = LocalExecutor(1)
    trained = train(dataset, found.kernel, found.noise_variance, executor)
    model = memory_model(
        dataset,
        kernel=found.kernel.to_json(),
        noise_variance=found.noise_variance,
        alpha=trained.solution.alpha,
        certificate=trained.certificate.to_json(),
    )
    out = os.fspath(folder / f"pred{workers}.zarr")
    summary = predict(model, tests, out, PlannedWorkers(workers, 1), variance=settings)
    executor.close()
    assert summary.variance is not None
    return open_prediction(out).attributes["variance"], summary.variance


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_the_layout_is_the_predictions(workers: int, dataset: Dataset, tests: Dataset, tmp_path: Path) -> None:
    found, settings = hyper(ROUGH, tmp_path), VarianceSettings(**SMALL)
    planned = foresee_variances(dataset, found, settings, TESTS)
    plan, summary = predicted(dataset, tests, found, settings, workers, tmp_path)
    assert planned.on(workers, 1).plan == plan
    assert (plan["rank"], plan["halo"]) == (150, 100)
    assert not plan["smooth"]
    assert 0.0 < planned.single.low <= summary["products_float32"] <= planned.single.high
    assert 0.0 < planned.double.low <= summary["products_float64"] <= planned.double.high
    assert planned.single.high + planned.double.high <= 2.0 * settings.max_passes


def test_a_factor_that_suffices_takes_no_products(dataset: Dataset, tests: Dataset, tmp_path: Path) -> None:
    found, settings = hyper(SMOOTH, tmp_path), VarianceSettings(way="iterative")
    planned = foresee_variances(dataset, found, settings, TESTS)
    plan, summary = predicted(dataset, tests, found, settings, 1, tmp_path)
    assert planned.run.plan == plan
    assert plan["smooth"]
    assert planned.single.high == planned.double.high == summary["products_float64"] == 0.0
    without = foresee_variances(dataset, hyper(ROUGH, tmp_path), VarianceSettings(max_passes=0.0, rank=40), TESTS)
    assert without.single.high == without.double.high == 0.0


def test_memory_is_refused_as_the_prediction_refuses_it(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(MemoryBudgetError, match="a factor of rank 900"):
        foresee_variances(dataset, hyper(ROUGH, tmp_path), VarianceSettings(rank=900, memory_bytes=2**24), TESTS)


def foreseen(dataset: Dataset, folder: Path, **settings: Any) -> ForeseenVariances:
    return foresee_variances(dataset, hyper(ROUGH, folder), VarianceSettings(**{**SMALL, **settings}), TESTS)


def test_a_workers_memory_is_what_it_holds(dataset: Dataset, tmp_path: Path) -> None:
    planned = foreseen(dataset, tmp_path)
    run, one = planned.run, planned.memory(planned.run)
    # Threads share a batch, and neither batches nor memory depend on their number.
    many = planned.on(3, 4)
    assert (many.plan, many.memory) == (run.plan, run.memory)
    assert planned.memory(many) == one
    assert one["factor_bytes"] == run.memory.fixed < one.worker_parts - one["features_bytes"]


def test_work_grows_with_products_and_samples(dataset: Dataset, tmp_path: Path) -> None:
    planned = foreseen(dataset, tmp_path)
    sizes, prices = Sizes(N, D), Prices.nominal(D)

    def seconds(single: float, double: float) -> float:
        return core_seconds(planned.phases(planned.run, sizes, single, double), prices)

    # A sample's part in a product with K is 2 n^2 operations; an entry is evaluated once for its row and its column.
    more = seconds(3.0, 1.0) - seconds(2.0, 1.0)
    least = TESTS * 2.0 * N * N * prices.operations + N * N / 2.0 * prices.entries
    assert least < more < 2.0 * least
    dearer = seconds(2.0, 2.0) - seconds(2.0, 1.0)
    assert dearer > TESTS * 2.0 * N * N * prices.double_operations + N * N / 2.0 * prices.double_entries
    names = [phase.name for phase in planned.phases(planned.run, sizes, 2.0, 1.0)]
    assert names == ["landmarks", "factor", "batches"]


def test_a_batch_that_all_workers_share_is_laid_out_as_products(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, sizes, prices = foreseen(dataset, tmp_path), Sizes(N, D), Prices.nominal(D)
    monkeypatch.setattr(BatchLayout, "is_shared", property(lambda self: True))
    run = planned.on(4, 1)
    assert run.is_shared
    phases = planned.phases(run, sizes, 2.0, 1.0)
    assert {"factor", "products", "check", "proofs", "directions"} <= {phase.name for phase in phases}
    assert [phase.paired for phase in phases if phase.name in ("products", "check")] == [True, True]

    def seconds(phases: list[Phase]) -> float:
        work = ((phase.times, each) for phase in phases for each in (phase.shared, phase.threaded, phase.each))
        return sum(times * prices.seconds(each) for times, each in work)

    assert seconds(phases) == pytest.approx(seconds(planned.phases(planned.run, sizes, 2.0, 1.0)), rel=0.5)


def test_counting_leaves_nothing_in_the_workers_cache(dataset: Dataset, tmp_path: Path) -> None:
    from dkgp.cluster.cache import worker_cache

    before = worker_cache().nbytes
    foreseen(dataset, tmp_path)
    assert worker_cache().nbytes <= before


@pytest.mark.spread(1)
@pytest.mark.parametrize(("gamma", "least", "serves"), [(50.0, 100, True), (50.0, N + 1, False), (1e-6, 100, False)])
def test_neighbours_are_tried_on_a_made_up_map(
    gamma: float, least: int, serves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They serve many samples of a rough kernel; the gap is out of reach of a smooth one with next to no noise."""
    monkeypatch.setattr("dkgp.plan.foreseen.LEAST_NEAR", least)
    monkeypatch.setattr(run, "MOST", 288)
    X = np.random.default_rng(3).uniform(-1.5, 1.5, (N, 2))
    data = dataset_from_arrays(tmp_path / "d.zarr", X, X[:, 0])
    kernel = {"type": "matern12" if serves else "rbf", "gamma": [gamma] * 2}
    found = hyper({"kernel": kernel, "noise_variance": 0.05 if serves else 1e-9}, tmp_path)
    settings = VarianceSettings(gap=0.05 if serves else 1e-7)
    planned = foresee_variances(data, found, settings, 10_000)
    assert (planned.neighbours is not None) == serves
    assert (planned.to_json()["neighbours"] is not None) == serves
    if planned.neighbours is not None:
        assert planned.neighbours.neighbours == 192
        assert 0.0 < planned.neighbours.seconds_per_sample < 1.0


def test_the_peak_includes_a_whole_factor_that_may_be_chosen(dataset: Dataset, tmp_path: Path) -> None:
    found, resident = hyper(ROUGH, tmp_path), 2**27
    peaks = {}
    for way in ("auto", "iterative"):
        planned = foresee_variances(dataset, found, VarianceSettings(way=way, memory_bytes=2**28), TESTS)
        peaks[way] = planned.peak_bytes(planned.run, resident)
        assert peaks[way] >= planned.memory(planned.run).worker_process_bytes(resident)
    tiles = whole_layout(N).disk_bytes
    assert tiles >= 4 * N * N
    assert whole_memory_bytes(N, TESTS, 1, 2**28) >= tiles
    assert whole_memory_bytes(N, TESTS, 1, tiles - 1) == 0
    large = whole_memory_bytes(50_000, TESTS, 1, 2**40)
    assert large >= 4 * 50_000**2
    # A limit leaves room for a factor that fits, and else for the usual working memory.
    assert variance_memory(50_000, 2 * large) >= large
    assert variance_memory(50_000, large) < large
    assert variance_memory(N, 100) == 70
