"""A fleet of workers: phases laid out by hand, measured figures of machine and cluster, and what validates a plan."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dkgp.plan.fleet
from dkgp.bench.messages import NoInputs
from dkgp.bench.tiles import BenchTilesJob, run_bench_tiles
from dkgp.cluster import ClusterOptions, open_executor
from dkgp.cluster.cache import TileBudget
from dkgp.cluster.executors import dask as dask_executors
from dkgp.cluster.executors.base import RoundTasks
from dkgp.cluster.executors.dask import Graph
from dkgp.commands.reporting.outputs import dump
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.data import dataset_from_arrays
from dkgp.errors import DkgpError, InputError
from dkgp.kernels import SquaredExponential
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.full_products import COUNTS, FullProducts, cut_of, tasks_a_thread
from dkgp.plan.fleet import Fleet, most_useful_workers, product_parts, product_seconds, project
from dkgp.plan.machine import (
    MachineFigures,
    Network,
    measure_cluster,
    measure_machine,
    measure_speedups,
    read_bench,
    read_figures,
    with_bench,
    write_figures,
)
from dkgp.plan.validation import entry_seconds, run_contender
from dkgp.solvers.block_descent.block_size import descent_phases
from dkgp.solvers.conjugate.preconditioner import conjugate_phases
from dkgp.solvers.prices import Phase, Prices, Sizes, Work

FREE = Network(0.0, 0.0, 0.0, 1e30)
NETWORK = Network(0.008, 0.001, 0.0002, 1e9)
# A second for each kind of work, so that phases are written in seconds.
SECONDS = Prices(**dict.fromkeys(vars(Work()), 1.0))
SPEEDUPS = (1.0, 1.9, 2.8, 3.6)
NO_SAMPLES = Sizes(0, 1)
PRICES = Prices.nominal(8)
SIZES = Sizes(n=1_000_000, d=8, blocks=123)


def fleet(workers: int, *, threads: int = 1, network: Network = FREE, **others: Any) -> Fleet:
    return Fleet(workers, threads, **{"speedups": SPEEDUPS, "network": network, **others})


def work(seconds: float, pieces: int = 10**6, **others: Any) -> Phase:
    return Phase("work", 1.0, Work(operations=seconds), rounds=1, pieces=pieces, **others)


def seconds_of(phases: list[Phase], given: Fleet) -> float:
    return project(phases, NO_SAMPLES, SECONDS, given).total


def test_machines_of_their_own_add_up_and_one_machine_is_shared() -> None:
    assert seconds_of([work(8.0)], fleet(8)) == pytest.approx(1.0, rel=1e-4)
    assert seconds_of([work(8.0)], fleet(2, threads=2)) == pytest.approx(8.0 / 3.8, rel=1e-4)
    assert seconds_of([work(8.0)], fleet(2, one_machine=True)) == pytest.approx(8.0 / 1.9, rel=1e-4)
    # Further threads than there are cores add nothing.
    assert seconds_of([work(8.0)], fleet(9, one_machine=True)) == pytest.approx(8.0 / 3.6, rel=1e-4)


def test_whoever_has_a_piece_more_is_waited_for() -> None:
    assert seconds_of([work(9.0, pieces=9)], fleet(4)) == pytest.approx(3.0)  # 3, 2, 2 and 2 pieces
    found = project([work(9.0, pieces=2)], NO_SAMPLES, SECONDS, fleet(4))
    assert found.total == pytest.approx(4.5)
    assert found.limit == "tasks"


def test_the_coordinators_part_comes_after() -> None:
    phase = work(2.0, threaded=Work(operations=3.6), alone=Work(operations=5.0))
    found = project([replace(phase, times=3.0)], NO_SAMPLES, SECONDS, fleet(2))
    assert found.total == pytest.approx(3 * (1.0 + 1.0 + 5.0), rel=1e-4)
    assert found.limit == "work"


def test_hidden_work_costs_what_is_longer_than_the_phase_before() -> None:
    short, long = (Phase("selection", 1.0, alone=Work(operations=seconds), hidden=True) for seconds in (1.5, 5.0))
    assert seconds_of([work(4.0), short], fleet(2)) == pytest.approx(2.0, rel=1e-4)
    assert seconds_of([work(4.0), long], fleet(2)) == pytest.approx(5.0, rel=1e-4)
    # On one machine of two cores, both are work for the same two.
    shared = fleet(2, one_machine=True, speedups=(1.0, 2.0))
    assert seconds_of([work(4.0), short], shared) == pytest.approx((4.0 + 1.5) / 2, rel=1e-4)
    assert seconds_of([work(4.0), long], shared) == pytest.approx(5.0, rel=1e-4)


def test_messages_take_turns_and_are_waited_for() -> None:
    network = Network(0.5, 0.01, 0.01, 1e6)
    phase = work(0.001, sent=1e6, returned=1e6, sent_to_each=1e5)
    # Ten tasks at .02 each, two megabytes and ten times a tenth of one, and a round trip.
    found = project([phase], NO_SAMPLES, SECONDS, fleet(10, network=network))
    assert found.total == pytest.approx(0.5 + 0.2 + 2.0 + 1.0)
    assert found.limit == "messages"


def test_small_tasks_are_not_cut_further() -> None:
    phase = Phase("work", 1.0, Work(entries=8.0), rounds=1, pieces=100)
    found = project([phase], NO_SAMPLES, SECONDS, fleet(8, least_task_evaluations=4))
    assert found.total == pytest.approx(4.0)
    assert found.limit == "tasks"


class Counting:
    """An executor's face that runs nothing, and counts what products send and bring back."""

    tiles, shares_memory = TileBudget(), False

    def __init__(self, workers: int) -> None:
        self.parallelism = workers
        self.workers = {f"worker-{number:03d}": 1 for number in range(workers)}
        self.tasks, self.sent = 0, 0.0

    def start_total(self, tasks: RoundTasks) -> Any:
        nodes = Graph.build_total(tasks).nodes
        self.tasks += len(nodes)
        self.sent += sum(8.0 * len(value.vectors) for value in tasks.values.values())
        totals: dict[Any, Any] = {
            name: np.zeros((1, 1, len(value.vectors)), np.int64) for name, value in tasks.values.items()
        }
        return SimpleNamespace(result=lambda progress: totals | {COUNTS: np.zeros(3, np.int64)})


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("n", "workers"),
    [
        *((30_000, 2), (100_000, 2), (100_000, 16), (300_000, 4), (1_000_000, 16)),
        *(pytest.param(10_000_000, workers, marks=pytest.mark.long) for workers in (64, 256)),
    ],
)
def test_a_products_messages_are_those_that_it_sends(n: int, workers: int) -> None:
    context = BlockContext("counted", NoInputs(n), SquaredExponential(gamma=(1.0,)), n)
    counting, result = Counting(workers), np.zeros((n, 1))
    FullProducts(context, counting, counting.start_total, lambda: np.ones(n)).add(  # type: ignore[arg-type]
        np.ones((n, 1)), "single", result
    )
    parts = product_parts(Sizes(n, 1, blocks=context.n_blocks), PRICES, fleet(workers, network=Network(0, 0, 0, 1.0)))
    assert parts.tasks == pytest.approx(counting.tasks, rel=0.05, abs=4)
    # The vectors once, the sums once.
    assert counting.sent == 8.0 * n
    assert parts.moved_bytes == 16.0 * n
    # A byte a second: what moves in seconds is what moves in bytes, by the links of workers that work at once too.
    assert parts.moving == pytest.approx(16.0 * n * (1.0 + needed_ranges(context.n_blocks, n, workers) / workers))


def needed_ranges(blocks: int, n: int, workers: int) -> float:
    """Return how many tasks need a range, on average."""
    cut = cut_of(blocks, workers, tasks_a_thread(n * n / 2.0, workers))
    return sum(map(len, cut.needs)) / len(cut.names)


def test_a_product_ends_with_its_sums_after_its_work() -> None:
    sizes = Sizes(100_000, 1, blocks=13)
    slow = Network(0.5, 0.01, 0.01, 1e6)
    free, taken = (product_parts(sizes, PRICES, fleet(2, network=each)) for each in (FREE, slow))
    assert free.total == pytest.approx(free.computing) == pytest.approx(taken.computing)
    assert taken.scheduling == pytest.approx(0.02 * taken.tasks)
    assert taken.ends == pytest.approx(4 * 0.5)
    assert taken.total == pytest.approx(max(taken.scheduling, taken.computing) + taken.moving + taken.ends)
    # On one machine of two cores, messages are work for the same two.
    shared = product_parts(sizes, PRICES, fleet(2, network=slow, one_machine=True, speedups=(1.0, 2.0)))
    alone = product_parts(sizes, PRICES, fleet(2, one_machine=True, speedups=(1.0, 2.0)))
    assert shared.computing == pytest.approx(alone.computing + (shared.scheduling + shared.moving) / 2.0)


def test_as_many_parts_are_added_at_once_as_on_dask() -> None:
    assert dkgp.plan.fleet.FAN_IN == dask_executors.FAN_IN


@pytest.mark.parametrize(
    ("n", "workers", "gigabits", "most"),
    [(10**7, 64, 1, 1.15), (10**7, 256, 1, 1.3), (10**7, 256, 10, 1.3), (10**6, 16, 1, 1.2)],
)
def test_products_take_little_longer_than_their_computing(n: int, workers: int, gigabits: int, most: float) -> None:
    network = Network(0.008, 0.001, 0.0003, 1.25e8 * gigabits)
    blocks = BlockContext("size", NoInputs(n), SquaredExponential(gamma=(1.0,)), n).n_blocks
    parts = product_parts(Sizes(n, 1, blocks=blocks), PRICES, fleet(workers, network=network))
    assert 1.0 < parts.seconds / (PRICES.seconds(Sizes(n, 1).whole()) / workers) <= most
    assert parts.limit == "workers"


def test_a_product_is_limited_by_what_it_would_be_shorter_without() -> None:
    """Computing that takes less than messages is not the limit, though it is more than half of the product."""
    sizes = Sizes(100_000, 1, blocks=13)
    computing = product_parts(sizes, PRICES, fleet(2)).computing

    def limited(share: float, **others: Any) -> str:
        """Messages take this share of the computing's time."""
        tasks = product_parts(sizes, PRICES, fleet(2)).tasks
        return product_parts(
            sizes, PRICES, fleet(2, network=Network(0.0, share * computing / tasks, 0.0, 1e30), **others)
        ).limit

    assert limited(0.5) == "workers"
    assert limited(1.1) == "messages"
    # More workers than pieces.
    assert product_parts(sizes, PRICES, fleet(200)).limit == "tasks"
    # The cores of one machine compute and pass messages on: without these it would be as much shorter.
    shared = {"one_machine": True, "speedups": (1.0, 2.0)}
    assert limited(0.5, **shared) == "workers"
    assert limited(1.1, **shared) == "messages"


def test_reading_is_everyones_own() -> None:
    found = project([], Sizes(1000, 3), SECONDS, fleet(4))
    assert found.seconds == {"reading": 3 * 3000.0}
    assert project([], Sizes(1000, 3), SECONDS, fleet(4, one_machine=True)).total == pytest.approx(
        3000.0 + 2 * 3000.0 * 4 / 3.6
    )


@pytest.mark.parametrize("solver", ["pcg", "gbcd"])
def test_more_workers_help_until_something_else_is_the_limit(solver: str) -> None:
    phases = (
        conjugate_phases(SIZES, 20, halo=1000, leaf=500, rank=300)
        if solver == "pcg"
        else descent_phases(SIZES, 4000, 60, 3.0)
    )
    workers = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    found = {count: project(phases, SIZES, PRICES, fleet(count, network=NETWORK)) for count in workers}
    seconds = [found[count].total for count in workers]
    best = seconds.index(min(seconds))
    assert all(later < earlier for earlier, later in itertools.pairwise(seconds[: best + 1]))
    assert found[1].limit == "workers"
    assert found[256].limit != "workers"
    assert 2 <= most_useful_workers(workers, seconds) <= 128
    for projection in found.values():
        assert sum(projection.limits.values()) == pytest.approx(projection.total)
        assert min(projection.seconds.values()) >= 0.0


def test_several_workers_hold_the_rows_of_a_large_descent() -> None:
    """At 10 million samples the whole product would take .64 s of a link of 1 Gbit/s in each round."""
    sizes, network = Sizes(10_000_000, 8, blocks=1221), Network(2e-3, 1e-4, 1e-4, 1.25e8)
    phases = descent_phases(sizes, 1000, 60, 1.0, checks=0.0)
    whole = [replace(phase, by_rows=None) for phase in phases]
    rounds = sizes.n / 1000
    for workers, quicker in ((1, 1.0), (64, 5.0), (256, 5.0)):
        given = fleet(workers, network=network)
        before, after = (project(each, sizes, PRICES, given).seconds["products"] for each in (whole, phases))
        assert before / after >= quicker
        assert workers > 1 or after == before
        assert workers == 1 or before / rounds > 8 * sizes.n / network.bytes_per_second
        assert after / rounds < 0.2 or workers == 1


def test_a_product_alone_is_a_products_share_of_a_solve() -> None:
    phases = conjugate_phases(SIZES, 20, rank=300)
    given = fleet(4, network=NETWORK)
    products = project(phases, SIZES, PRICES, given).seconds["products"]
    assert product_seconds(SIZES, PRICES, given) == pytest.approx(products / 20)


def test_the_most_useful_number_of_workers() -> None:
    assert most_useful_workers((1, 2, 4, 8), (8.0, 4.0, 2.0, 1.0)) == 8
    assert most_useful_workers((1, 2, 4, 8), (8.0, 4.0, 3.9, 3.8)) == 2
    assert most_useful_workers((1, 2, 4), (1.0, 1.0, 2.0)) == 1
    # A tenth that comes late is a tenth all the same.
    assert most_useful_workers((1, 2, 4, 8), (8.0, 7.9, 7.8, 2.0)) == 8


MACHINE = MachineFigures(3, Prices.nominal(3), (1.0, 1.5))


def test_measured_figures_are_of_the_right_kind(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp.plan.machine.SELECTION_SIZES", (50, 100, 200))
    monkeypatch.setattr("dkgp.plan.machine.TILE_SHAPE", (1024, 512))
    monkeypatch.setattr("dkgp.plan.machine.LEAVES", 2)
    monkeypatch.setattr("dkgp.plan.machine.LEAST_SECONDS", 0.002)
    dataset = dataset_from_arrays(tmp_path / "d.zarr", rng.standard_normal((500, 3)), rng.standard_normal((500, 2)))
    found = measure_machine(dataset, SquaredExponential(gamma=(0.3,) * 3), 0.1)
    assert found.d == 3
    # Whatever runs this takes between a picosecond and a microsecond for any of these.
    units = ("entries", "double_entries", "operations", "double_operations", "bytes", "spilled", "vectors")
    assert all(1e-12 < getattr(found.prices, unit) < 1e-6 for unit in units)
    assert 0.0 < found.prices.read < 1e-3
    assert found.prices.drawn + found.prices.dense > 0.0
    assert MachineFigures.from_json(json.loads(dump(found.to_json()))) == found


def test_speedups_begin_at_one_and_do_not_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.plan.machine.TILE_SHAPE", (1024, 512))
    monkeypatch.setattr("dkgp.plan.machine.LEAST_SECONDS", 0.002)
    speedups = measure_speedups(SquaredExponential(gamma=(1.0, 1.0)), cores=3)
    assert len(speedups) == 3
    assert speedups[0] == 1.0
    assert all(1.0 <= earlier <= later <= 3.0 for earlier, later in itertools.pairwise(speedups))


def test_messages_are_measured_on_a_cluster() -> None:
    with open_executor(ClusterOptions(kind="local", workers=1, threads_per_worker=2), 10) as executor:
        found = measure_cluster(executor)
    assert found.threads == 2
    assert found.worker_resident_bytes > 20e6
    assert all(0.0 < value < 5.0 for name, value in asdict(found.network).items() if name != "bytes_per_second")
    assert found.network.bytes_per_second > 1e6


@pytest.mark.parametrize(
    "damage",
    [
        {"entries": None},
        {"entries": 0.0},
        {"dense": -1.0},
        {"bytes": float("nan")},
        {"speedups": []},
        {"speedups": [1.0, 0.0]},
        {"d": "three"},
    ],
)
def test_damaged_figures_are_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="measure them again"):
        MachineFigures.from_json({**MACHINE.to_json(), **damage})


def dearer(figures: MachineFigures, entries: float) -> MachineFigures:
    return replace(figures, prices=replace(figures.prices, entries=entries))


def test_figures_are_kept_for_each_number_of_features(tmp_path: Path) -> None:
    path, reporter = str(tmp_path / "machine.json"), SilentReporter()
    assert read_figures(path, 3, reporter) is None
    other = replace(MACHINE, d=8)
    for each in (other, MACHINE, dearer(MACHINE, 2e-9)):
        write_figures(path, each)
    assert read_figures(path, 3, reporter) == dearer(MACHINE, 2e-9)
    assert read_figures(path, 8, reporter) == other
    assert read_figures(path, 4, reporter) is None
    assert reporter.warnings == []


def test_another_machines_figures_are_used_with_a_warning(tmp_path: Path) -> None:
    path, reporter = tmp_path / "machine.json", SilentReporter()
    write_figures(str(path), MACHINE)
    document = json.loads(path.read_text())
    document["machine"]["processor"] = "abacus"
    path.write_text(json.dumps(document))
    assert read_figures(str(path), 3, reporter) == MACHINE
    assert "abacus" in reporter.warnings[0]
    write_figures(str(path), replace(MACHINE, d=8))
    assert [row["d"] for row in json.loads(path.read_text())["rows"]] == [8]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"command": "tune"}', '{"command": "bench", "rows": 3}'])
def test_other_files_are_no_figures(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InputError, match="`figures`"):
        read_figures(str(path), 3, SilentReporter())
    with pytest.raises(InputError, match="`bench`"):
        read_bench(str(path))
    assert path.read_text() == text


def test_a_record_of_tiles_stands_in_for_entries(tmp_path: Path) -> None:
    path = tmp_path / "tiles.json"
    job = BenchTilesJob(features=(2, 4), rows=256, columns=256, repeats=1, pass_seconds=0.001, out=str(path))
    run_bench_tiles(job, SilentReporter())
    document = json.loads(path.read_text())
    nanoseconds = {("single", 2): 0.4, ("single", 4): 0.8, ("double", 2): 1.0, ("double", 4): 3.0}
    for row in document["rows"]:
        row["dkgp_ns"] = nanoseconds[row["precision"], row["d"]]
    path.write_text(json.dumps(document))
    found = with_bench(MACHINE, read_bench(str(path)))
    assert found.prices.entries == pytest.approx(0.6e-9)  # d = 3 lies half way
    assert found.prices.double_entries == pytest.approx(2e-9)
    assert found.prices.dense == MACHINE.prices.dense


def test_records_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_bench(str(tmp_path / "none.json"))
    record = {"command": "bench", "benchmark": "overhead", "rows": [], "machine": {"processor": "x"}}
    (tmp_path / "o.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="dkgp bench overhead"):
        read_bench(str(tmp_path / "o.json"))
    scaling = {"benchmark": "scaling", "settings": {"machine_figures": replace(MACHINE, d=9).to_json()}}
    with pytest.raises(InputError, match="for 9 features"):
        with_bench(MACHINE, scaling)
    scaling["settings"] = {"machine_figures": MACHINE.to_json()}
    assert with_bench(dearer(MACHINE, 1.0), scaling) == MACHINE
    for damaged in ({"benchmark": "tiles", "rows": []}, {"benchmark": "tiles", "rows": [{"d": 1}]}):
        with pytest.raises(InputError, match="damaged"):
            with_bench(MACHINE, damaged)


@pytest.mark.long
def test_an_entry_takes_no_longer_than_numpy_needs() -> None:
    kernel = SquaredExponential(gamma=(0.3, 0.3))
    single, double = (entry_seconds(kernel, precision, 1) for precision in ("single", "double"))
    assert 1e-12 < single < double < 1e-7


ADDER = """
import json, sys
import dkgp.errors

terms = json.load(sys.stdin)["terms"]
if not terms:
    raise SystemExit("nothing to add")
print(json.dumps({"sum": sum(terms), "cluster_warnings": ["slow"]}))
"""


def test_a_contender_is_found_wherever_its_package_was_imported_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "contenders_of_mine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "adder.py").write_text(ADDER)
    monkeypatch.syspath_prepend(tmp_path)
    warnings: list[str] = []
    module = "contenders_of_mine.adder"
    figures = run_contender({"contender": "adder", "terms": [1, 2]}, module, warn=warnings.append)
    assert (figures, warnings) == ({"sum": 3}, ["slow"])
    with pytest.raises(DkgpError, match="the contender adder failed: nothing to add"):
        run_contender({"contender": "adder", "terms": []}, module)
