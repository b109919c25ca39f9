"""Runs on growing numbers of worker processes, and what the cost model says of them; so `dkgp plan --validate`.

Each worker has one thread. A product alone is timed with nothing else going on; beside its speed-up stands the
machine's own ceiling: as many threads that evaluate entries and do nothing else, against one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.commands.reporting.measurements import median, median_ratio
from dkgp.commands.reporting.progress import Reporter, WorkProgress
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset
from dkgp.models import Hyperparameters, read_hyperparameters, write_hyperparameters
from dkgp.plan.figures import MachineFigures
from dkgp.plan.fleet import Fleet, product_seconds, project
from dkgp.plan.foreseen import Foreseen
from dkgp.plan.network import ClusterFigures, measure_cluster
from dkgp.plan.validation.entries import entry_seconds
from dkgp.plan.validation.processes import run_contender, write_warm_up
from dkgp.plan.validation.run import MODULE

# Worker processes that a plan is held against.
WORKERS = (1, 2)


@dataclass(frozen=True)
class Scaling:
    """Runs by number of workers, and entries a second of as many threads that do nothing else, repeat by repeat.

    `again` and `ceilings_again` are those of the first number's second turns, if it took any.
    """

    runs: dict[int, list[dict[str, Any]]]
    ceilings: dict[int, list[float]]
    again: list[dict[str, Any]] = field(default_factory=list)
    ceilings_again: list[float] = field(default_factory=list)

    def median(self, workers: int, name: str) -> float:
        """Median of a figure over the repeats."""
        return median([run[name] for run in self.runs[workers]])

    def ratio(self, workers: int, base: int, name: str) -> float:
        """Median over the repeats of how many times longer `base` workers took within the same repeat."""
        first = [run[name] for run in self.runs[base]]
        null = ([run[name] for run in self.again], first) if self.again else None
        return median_ratio(first, [run[name] for run in self.runs[workers]], null)

    def ceiling(self, workers: int, base: int) -> float:
        """Median over the repeats of what the machine gains from more threads."""
        first = self.ceilings[base]
        return median_ratio(self.ceilings[workers], first, (self.ceilings_again, first) if self.again else None)


def measure_scaling(
    problem: Mapping[str, Any],
    solver: SolverOptions,
    workers: Sequence[int],
    repeats: int,
    reporter: Reporter,
    *,
    null: bool = False,
) -> Scaling:
    """Run everything, each number of workers taking its turn in every repeat, with `null` the first of them twice.

    `problem` names the stores `train` and `warm`, its first samples, and the hyperparameter file `hyper`.
    """
    scaling = Scaling({count: [] for count in workers}, {count: [] for count in workers})
    turns = [(count, scaling.runs[count], scaling.ceilings[count]) for count in workers]
    turns += [(workers[0], scaling.again, scaling.ceilings_again)] * null
    total, done = 2 * repeats * len(turns), 0
    kernel = read_hyperparameters(problem["hyper"]).kernel
    with reporter.work("worker processes") as show:
        for _ in range(repeats):
            for count, runs, _ceilings in turns:
                show(WorkProgress(f"{count} workers", done, total, "runs"))
                description = {
                    "contender": "solve",
                    **problem,
                    "solver": solver.to_json(),
                    "workers": count,
                    "threads_per_worker": 1,
                }
                runs.append(run_contender(description, MODULE))
                done += 1
            for count, _runs, ceilings in turns:
                show(WorkProgress(f"entries alone on {count}", done, total, "runs"))
                ceilings.append(count / entry_seconds(kernel, "single", count))
                done += 1
        show(WorkProgress("done", total, total, "runs"))
    return scaling


def compare_with_model(
    scaling: Scaling, foreseen: Foreseen, machine: MachineFigures, cluster: ClusterFigures
) -> list[dict[str, Any]]:
    """Return what was measured for each number of workers, beside what the cost model says of the same run.

    The model is given the products or passes that the runs took: what is compared is what they cost.
    """
    base = next(iter(scaling.runs))
    cache_bytes = ClusterOptions().cache_bytes
    rows = []
    for count, runs in scaling.runs.items():
        speedups, least = machine.speedups, cluster.least_task_evaluations
        fleet = Fleet(count, 1, speedups, cluster.network, one_machine=True, least_task_evaluations=least)
        taken = replace(foreseen, counts=replace(foreseen.counts, checks=runs[-1]["refreshes"]))
        # A product with the whole matrix is a column pass.
        projection = project(taken.phases(runs[-1]["column_passes"]), foreseen.sizes, machine.prices, fleet)
        memory = foreseen.memory_plan(cache_bytes, None, count)
        planned = memory.worker_process_bytes(cluster.worker_resident_bytes)
        names = ("seconds", "product_seconds", "worker_peak_bytes")
        measured = {name: scaling.median(count, name) for name in names}
        alone = product_seconds(foreseen.sizes, machine.prices, fleet)
        speedup, ceiling = scaling.ratio(count, base, "product_seconds"), scaling.ceiling(count, base)
        rows.append(
            {
                "workers": count,
                **measured,
                "product_speedup": speedup,
                "ceiling": ceiling,
                "share_of_ceiling": speedup / ceiling,
                "speedup": scaling.ratio(count, base, "seconds"),
                "product_seconds_model": alone,
                "product_to_model": measured["product_seconds"] / alone,
                "seconds_model": projection.total,
                "seconds_to_model": measured["seconds"] / projection.total,
                "phases": runs[-1]["phases"],
                "phases_model": projection.seconds,
                "limit": projection.limit,
                "coordinator_peak_bytes": scaling.median(count, "coordinator_peak_bytes"),
                "worker_memory_bytes": planned,
                "worker_memory_to_model": measured["worker_peak_bytes"] / planned,
            }
        )
    return rows


def validate(
    dataset: Dataset, hyperparameters: Hyperparameters, foreseen: Foreseen, machine: MachineFigures, reporter: Reporter
) -> dict[str, Any]:
    """Train for each number of workers once; return rows as `dkgp bench scaling` has them, and the passes taken.

    Each worker has one thread and shares this machine with the coordinator, whatever the plan is for. The model is
    given the products or passes that were taken: how well those were foreseen is said apart.
    """
    with tempfile.TemporaryDirectory(prefix="dkgp-plan-") as folder:
        warm, hyper = str(Path(folder) / "warm.zarr"), str(Path(folder) / "hyper.json")
        write_warm_up(dataset, warm)
        write_hyperparameters(hyper, hyperparameters)
        problem = {"train": dataset.url, "warm": warm, "hyper": hyper}
        scaling = measure_scaling(problem, foreseen.options, WORKERS, 1, reporter)
    # The plan may be for another cluster; these runs were on worker processes here.
    with open_executor(ClusterOptions(kind="processes", workers=1, threads_per_worker=1), 0, reporter) as executor:
        cluster = measure_cluster(executor)
    taken, counts = scaling.runs[WORKERS[0]][0]["column_passes"], foreseen.counts
    return {
        "rows": compare_with_model(scaling, foreseen, machine, cluster),
        "unit": counts.unit,
        "taken": taken,
        "expected": counts.expected,
        "within_interval": counts.low <= taken <= counts.high,
    }
