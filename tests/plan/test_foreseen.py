"""A run foreseen: the solver, its counts and its memory are those of the run itself."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from dkgp.bench.scaling.study import Scaling, compare_with_model
from dkgp.cluster import LocalExecutor
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset, write_friedman1
from dkgp.errors import MemoryBudgetError, UsageError
from dkgp.models import Hyperparameters, read_hyperparameters
from dkgp.models.exact import train
from dkgp.models.memory import RUNTIME_BYTES, plan_training
from dkgp.operators.vecchia.memory import vecchia_bytes
from dkgp.plan.figures import MachineFigures
from dkgp.plan.foreseen import Foreseen, foresee
from dkgp.plan.network import ClusterFigures, Network
from dkgp.solvers.prices import Prices


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_friedman1(tmp_path_factory.mktemp("foreseen") / "f.zarr", None, 4000, chunk_rows=1000)[0]


@pytest.fixture(scope="module")
def hyper(tmp_path_factory: pytest.TempPathFactory) -> Hyperparameters:
    path = tmp_path_factory.mktemp("hyper") / "hyper.json"
    path.write_text(json.dumps({"kernel": {"type": "rbf", "gamma": [0.05] * 10}, "noise_variance": 0.04}))
    return read_hyperparameters(path)


def foreseen(dataset: Dataset, hyper: Hyperparameters, *, count: float | None = None, **options: Any) -> Foreseen:
    return foresee(dataset, hyper, SolverOptions(**options), SilentReporter(), count=count)


@pytest.mark.parametrize("options", [{"solver": "gbcd"}, {"solver": "pcg", "halo": 0, "rank": 100}])
def test_what_a_run_takes_lies_in_the_interval(
    options: dict[str, Any], dataset: Dataset, hyper: Hyperparameters
) -> None:
    found = foreseen(dataset, hyper, **options)
    executor = LocalExecutor()
    try:
        taken = train(dataset, hyper.kernel, hyper.noise_variance, executor, solver=found.solver)
    finally:
        executor.close()
    # A check steps as well as it verifies.
    assert found.counts.low <= taken.summary["column_passes"] + taken.summary["refreshes"]
    assert taken.summary["column_passes"] <= found.counts.high
    assert taken.summary["refreshes"] <= found.counts.checks


def test_auto_is_settled_as_train_settles_it(dataset: Dataset, hyper: Hyperparameters) -> None:
    options = SolverOptions("auto")
    found = foreseen(dataset, hyper, solver="auto")
    decided, choice = options.decided(dataset, hyper)
    assert found.options == decided
    assert found.choice == choice
    assert found.solver.settings() == decided.build(4000, 10, 1, SilentReporter()).settings()


def test_solvers_whose_work_is_not_counted_are_refused(dataset: Dataset, hyper: Hyperparameters) -> None:
    for options in ({"solver": "smo"}, {"solver": "bcdc"}, {"solver": "gbcd", "exhaustive": True}, {"solver": "cg"}):
        with pytest.raises(UsageError, match=r"gbcd, pcg and cholesky|greedy selection"):
            foreseen(dataset, hyper, count=3.0, **options)


def test_memory_is_what_training_plans(dataset: Dataset, hyper: Hyperparameters) -> None:
    found = foreseen(dataset, hyper, solver="pcg", halo=0, rank=200, count=9.0)
    plan = found.memory_plan(2**30, None)
    expected = plan_training(
        4000,
        10,
        1,
        found.memory,
        resident_bytes=plan.resident_bytes,
        shares_process=False,
        overlaps=True,
        holds_inputs=True,
        cache_bytes=2**30,
        width=found.width,
    )
    assert plan == expected
    assert found.memory.factor_bytes >= 4 * 4000 * 200
    assert plan.worker_process_bytes(7) == 7 + RUNTIME_BYTES + plan.worker_bytes
    # Workers share a factor out between them.
    four = found.memory_plan(2**30, None, workers=4)
    assert plan.worker_bytes - four.worker_bytes == found.memory.factor_bytes * 3 // 4
    with pytest.raises(MemoryBudgetError, match="the budget is 200 MiB"):
        found.memory_plan(2**30, 200 * 2**20)


def test_leaves_are_spilled_as_far_as_caches_have_no_room(dataset: Dataset, hyper: Hyperparameters) -> None:
    found = foreseen(dataset, hyper, solver="pcg", halo=400, leaf=200, rank=0, count=9.0)
    kept = vecchia_bytes(4000, 400, 200).kept
    features = 16 * 4000 * (found.width + 1)
    assert found.memory.cached_bytes >= kept  # as large as it may grow
    assert found.spilled(features + kept, 1) == 0.0
    assert found.spilled(features + kept // 4, 1) == pytest.approx(0.75, abs=1e-3)
    assert found.spilled(features + kept // 4, 3) == pytest.approx(0.25, abs=1e-3)
    assert found.spilled(0, 8) == 1.0
    # A worker's cache is never larger than its budget.
    plans = [found.memory_plan(features + kept // 4, None, workers) for workers in (1, 2)]
    assert plans[0].worker_bytes == plans[1].worker_bytes


def test_what_was_measured_is_set_beside_the_model(dataset: Dataset, hyper: Hyperparameters) -> None:
    def run(seconds: float, product: float) -> dict[str, Any]:
        return {
            "seconds": seconds,
            "product_seconds": product,
            "phases": {"update": 1.0},
            "column_passes": 9.0,
            "refreshes": 2,
            "worker_peak_bytes": 3e8,
            "coordinator_peak_bytes": 3e8,
        }

    scaling = Scaling(
        {1: [run(10.0, 0.2), run(20.0, 0.4), run(12.0, 0.2)], 2: [run(8.0, 0.1), run(10.0, 0.25), run(9.0, 0.1)]},
        {1: [1e9, 1e9, 1e9], 2: [1.9e9, 1.6e9, 1.7e9]},
    )
    machine = MachineFigures(10, Prices.nominal(10), (1.0, 1.9))
    cluster = ClusterFigures(Network(0.008, 0.001, 0.0002, 1e9), 1, 10**8, 0)
    found = foreseen(dataset, hyper, solver="pcg", rank=100, count=30.0)
    one, two = compare_with_model(scaling, found, machine, cluster)
    assert (one["product_speedup"], one["ceiling"], one["speedup"]) == (1.0, 1.0, 1.0)
    assert two["product_speedup"] == pytest.approx(2.0)  # the median of 2, 1.6 and 2
    assert two["ceiling"] == pytest.approx(1.7)
    assert two["share_of_ceiling"] == pytest.approx(2.0 / 1.7)
    assert two["speedup"] == pytest.approx(12.0 / 9.0)
    assert one["seconds"] == 12.0
    assert one["seconds_to_model"] == pytest.approx(12.0 / one["seconds_model"])
    # The model is given what the runs took, not what was foreseen.
    assert one["phases_model"]["products"] == pytest.approx(9.0 * one["product_seconds_model"])


def test_inputs_beyond_the_coordinators_budget_are_planned_as_training_plans_them(
    dataset: Dataset, hyper: Hyperparameters
) -> None:
    found = foreseen(dataset, hyper, solver="gbcd", count=3.0)
    huge = replace(found, sizes=replace(found.sizes, n=20_000_000))
    assert found.memory_plan(2**30, 2**40).inputs_bytes > 0
    assert huge.memory_plan(2**30, 2**40).inputs_bytes == 0
