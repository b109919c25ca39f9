"""A run foreseen: the solver, its counts and its memory are those of the run itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import TileBudget
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset, dataset_from_arrays, write_friedman1
from dkgp.errors import MemoryBudgetError, UsageError
from dkgp.models import Hyperparameters, read_hyperparameters
from dkgp.models.exact import train
from dkgp.models.memory import RUNTIME_BYTES, Processes, plan_training
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.keeping import LEAST_GAIN, READ_TOGETHER, worker_tiles
from dkgp.operators.product_error import ProductError
from dkgp.operators.vecchia.factor import vecchia_bytes
from dkgp.plan.foreseen import Foreseen, Tiles, foresee
from dkgp.plan.machine import ClusterFigures, MachineFigures, Network
from dkgp.plan.validation import Scaling, compare_with_model
from dkgp.solvers.prices import Prices, core_seconds
from tests.problem import write_hyper


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_friedman1(tmp_path_factory.mktemp("foreseen") / "f.zarr", None, 4000, chunk_rows=1000)[0]


@pytest.fixture(scope="module")
def hyper(tmp_path_factory: pytest.TempPathFactory) -> Hyperparameters:
    return read_hyperparameters(write_hyper(tmp_path_factory.mktemp("hyper") / "hyper.json", [0.05] * 10, 0.04))


def foreseen(dataset: Dataset, hyper: Hyperparameters, *, count: float | None = None, **options: Any) -> Foreseen:
    return foresee(dataset, hyper, SolverOptions(**options), SilentReporter(), count=count)


@pytest.mark.long
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
        Processes(plan["resident_bytes"], shares_process=False, overlaps=True, cache_bytes=2**30),
        holds_inputs=True,
        width=found.width,
    )
    assert plan == expected
    assert found.memory.factor_bytes >= 4 * 4000 * 200
    assert plan.worker_process_bytes(7) == 7 + RUNTIME_BYTES + plan["worker_bytes"]
    # Workers share a factor out between them.
    four = found.memory_plan(2**30, None, workers=4)
    assert plan["worker_bytes"] - four["worker_bytes"] == found.memory.factor_bytes * 3 // 4
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
    assert plans[0]["worker_bytes"] == plans[1]["worker_bytes"]


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_what_is_kept_is_what_a_run_keeps(share: float, dataset: Dataset, hyper: Hyperparameters) -> None:
    found = foreseen(dataset, hyper, solver="pcg", halo=0, rank=100, count=9.0)
    budget = TileBudget(int(share * found.tiles_bytes))
    planned = found.tiles(budget, 1, Prices.nominal(10))
    executor = LocalExecutor(1, budget)
    V = np.ones((dataset.n_samples, 1))
    with BlockedKernelOperator(hyper.kernel, hyper.noise_variance, dataset, executor) as operator:
        for _ in range(2):
            operator.matmat(V, precision="single")
        kept_share, kept_bytes = operator.kept_share, operator.kept_bytes
        held = worker_tiles().nbytes
    executor.close()
    # Whole pairs of blocks are kept: of eight blocks a pair is up to a thirty-second part.
    assert planned.share - 1.0 / 32.0 <= kept_share <= planned.share + 0.01
    assert held <= planned.bytes <= held + found.tiles_bytes // 32
    assert kept_bytes <= held
    if share == 1.0:
        assert (planned.share, planned.bytes, kept_share) == (1.0, held, 1.0)


def test_workers_share_what_is_kept(dataset: Dataset, hyper: Hyperparameters) -> None:
    found = foreseen(dataset, hyper, solver="pcg", halo=0, rank=100, count=9.0)
    prices, half = Prices.nominal(10), TileBudget(found.tiles_bytes // 2)
    assert found.tiles(half, 1, prices).share == pytest.approx(0.5, abs=1e-6)
    quarter = -(-found.tiles_bytes // 4)
    assert found.tiles(half, 4, prices) == Tiles(quarter, 1.0, quarter)
    assert found.tiles(TileBudget(0), 4, prices) == Tiles()
    # dkgp's own choice keeps what pays, by the rule of the workers; a user's figure is kept in any case.
    dear, own = replace(prices, kept=2.0 * prices.entries), replace(half, measured=True)
    assert found.tiles(half, 1, dear).share > 0.0
    for count in (2.0, 3.0, 9.0, 100.0):
        foretold = foreseen(dataset, hyper, solver="pcg", halo=0, rank=100, count=count)
        for each in (prices, dear, replace(prices, kept=0.1 * prices.entries)):
            without, kept = (
                sum(phase.core_seconds(each) for phase in foretold.phases(count, kept=share)) for share in (0.0, 0.5)
            )
            # Of half of the tiles, the first time on new pages; others read meanwhile.
            entries = 4000**2 / 2
            kept += 0.5 * entries * (count - 1.0) * (READ_TOGETHER - 1.0) * each.kept
            gain = 1.0 - kept / without
            if abs(gain - LEAST_GAIN) > 0.02:
                pays = gain > LEAST_GAIN
                expected = Tiles(own.bytes, pytest.approx(0.5), own.bytes) if pays else Tiles(0, 0.0, own.bytes)
                assert foretold.tiles(own, 1, each) == expected
    # Block descent takes no such products, and what is kept is float32.
    for options in ({"solver": "gbcd"}, {"solver": "pcg", "rank": 100, "precision": "double"}):
        assert foreseen(dataset, hyper, count=9.0, **options).tiles(half, 1, prices) == Tiles()


def test_products_within_a_bound_keep_no_tiles(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with such products holds their plan instead of kernel entries."""
    X = rng.uniform(-1.0, 1.0, (3000, 2))
    data = dataset_from_arrays(tmp_path / "d.zarr", X, X[:, 0])
    hyper = read_hyperparameters(write_hyper(tmp_path / "hyper.json", [0.5] * 2, 0.04))
    options = {"solver": "pcg", "halo": 0, "rank": 100, "count": 9.0}
    wanted, prices = TileBudget(2**30), Prices.nominal(2)
    exact = foreseen(data, hyper, **options)
    monkeypatch.setattr("dkgp.plan.foreseen.AUTO_PRODUCTS", ProductError(1e-6))
    bounded = foreseen(data, hyper, **options)
    assert exact.tiles(wanted, 1, prices).most_bytes > 0
    assert bounded.tiles(wanted, 1, prices) == Tiles()
    more = ProductError(1e-6).memory(hyper.kernel, 3000, 1, None)
    assert more is not None
    plans = [found.memory_plan(2**30, 2**40, resident_bytes=2**28) for found in (exact, bounded)]
    assert plans[1].worker_parts - plans[0].worker_parts == more.kept_bytes + more.work_bytes > 0


def test_products_that_are_read_cost_what_reading_does(dataset: Dataset, hyper: Hyperparameters) -> None:
    found = foreseen(dataset, hyper, solver="pcg", halo=0, rank=100, count=9.0)
    prices, entries = Prices.nominal(10), 4000**2 / 2

    def seconds(kept: float, *names: str) -> float:
        phases = found.phases(9.0, kept=kept)
        assert [phase.name for phase in phases if "product" in phase.name] == list(names)
        return core_seconds(phases, prices)

    evaluated, half = seconds(0.0, "products"), seconds(0.5, "first product", "products")
    filled, saved = prices.filled - prices.entries, 8.0 * (prices.entries - prices.kept)
    assert half - evaluated == pytest.approx(0.5 * entries * (filled - saved))


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
    assert found.memory_plan(2**30, 2**40)["inputs_bytes"] > 0
    assert huge.memory_plan(2**30, 2**40)["inputs_bytes"] == 0
