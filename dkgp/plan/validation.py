"""Compare the cost model with actual solves on 1, 2, ... worker processes of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.cluster.threads import available_cores
from dkgp.commands.reporting.measurements import median, median_ratio
from dkgp.commands.reporting.memory import own_peak_bytes
from dkgp.commands.reporting.outputs import dump
from dkgp.commands.reporting.progress import Reporter, SilentReporter, WorkProgress
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset, dataset_from_arrays, open_dataset
from dkgp.errors import DkgpError, NotConvergedError
from dkgp.kernels import Kernel, TileEvaluator
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.models import Hyperparameters, read_hyperparameters, write_hyperparameters
from dkgp.models.exact import train
from dkgp.operators import BlockedKernelOperator
from dkgp.plan.fleet import Fleet, product_seconds, project
from dkgp.plan.foreseen import Foreseen
from dkgp.plan.machine import ClusterFigures, MachineFigures, measure_cluster
from dkgp.solvers import GreedyBlockCoordinateDescent

# Rows of each block in the timed pair, as in the products themselves, and the minimum duration of the timing.
PAIR_ROWS, LEAST_SECONDS = 8192, 0.5


def entry_seconds(kernel: Kernel, precision: Precision, cores: int | None = None) -> float:
    """Return the seconds of one core per kernel entry, while `cores` cores work concurrently.

    An entry serves both its row and its column.

    Parameters
    ----------
    precision : {"single", "double"}
        Precision of the tiles.
    cores : int, optional
        Number of busy cores; by default all cores that this process may use.
    """
    cores = cores or available_cores()
    evaluator = TileEvaluator(kernel, precision)
    rng = np.random.default_rng(0)
    left, right = (evaluator.prepare(rng.standard_normal((PAIR_ROWS, kernel.n_features))) for _ in range(2))
    weights = np.ones((PAIR_ROWS, 1))

    def work(_: int) -> int:
        count, until = 0, time.perf_counter() + LEAST_SECONDS
        while time.perf_counter() < until:
            evaluator.pair(left, right, weights, weights)
            count += 1
        return count

    evaluator.pair(left, right, weights, weights)  # compile, and fill the caches
    with ThreadPoolExecutor(cores) as pool:
        began = time.perf_counter()
        pairs = sum(pool.map(work, range(cores)))
        return (time.perf_counter() - began) * cores / (pairs * PAIR_ROWS**2)


WARM_UP_SAMPLES = 1024


def run_contender(
    description: dict[str, Any], module: str, *, warn: Callable[[str], None] = lambda message: None
) -> dict[str, Any]:
    """Run one contender of a module in a new process; return its figures, and forward its warnings.

    Raises
    ------
    DkgpError
        If the contender failed; the message contains the end of its standard error.
    """
    finished = subprocess.run(
        [sys.executable, "-P", "-m", module],
        input=json.dumps(description),
        capture_output=True,
        text=True,
        env=found_environment(module),
        check=False,
    )
    if finished.returncode != 0:
        reason = finished.stderr.strip().splitlines()[-1:] or [f"exit code {finished.returncode}"]
        raise DkgpError(f"the contender {description['contender']} failed: {reason[0]}")
    figures: dict[str, Any] = json.loads(finished.stdout)
    for message in figures.pop("cluster_warnings", ()):
        warn(message)
    return figures


def found_environment(module: str) -> dict[str, str]:
    """Return an environment in which a child process can import dkgp and the module's package.

    The environment works for every folder that these were imported from.
    """
    specs = (find_spec(package) for package in ("dkgp", module.partition(".")[0]))
    folders = [str(Path(spec.origin).resolve().parents[1]) for spec in specs if spec is not None and spec.origin]
    path = [*dict.fromkeys(folders), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def write_warm_up(train: Dataset, url: str) -> None:
    """Write the first training samples to a separate store, which is solved first to load compiled code."""
    rows = min(WARM_UP_SAMPLES, train.n_samples)
    dataset_from_arrays(
        url,
        train.raw_inputs(0, rows),
        train.targets(0, rows, standardised=False),
        feature_names=train.raw_feature_names,
        target_names=train.target_names,
        standardisation=train.standardisation,
    )


MODULE = "dkgp.plan.validation"
WARM_ROUNDS = 1
PRODUCTS = 5


def solve_on_workers(description: dict[str, Any]) -> dict[str, Any]:
    """Train on worker processes like `dkgp train`; then time products while nothing else runs."""
    dataset = open_dataset(description["train"])
    found = read_hyperparameters(description["hyper"], n_features=dataset.n_features)
    options = SolverOptions(**description["solver"])
    cluster = ClusterOptions(
        kind="processes", workers=description["workers"], threads_per_worker=description["threads_per_worker"]
    )
    with open_executor(cluster, dataset.n_samples) as executor:
        for url in (description["warm"], description["train"]):
            data = open_dataset(url)
            solver = options.build(data.n_samples, data.n_features, data.n_targets, SilentReporter())
            if isinstance(solver, GreedyBlockCoordinateDescent):
                solver = replace(solver, largest_block_size=solver.block_size)  # the plan assumes this block size
            began = time.perf_counter()
            trained = train(
                data, found.kernel, found.noise_variance, executor, solver=solver, stopping=options.stopping()
            )
            seconds = time.perf_counter() - began
        workers_peak = sorted(_children_peaks(), reverse=True)[: description["workers"]]
        own_peak = own_peak_bytes()
        with BlockedKernelOperator(found.kernel, found.noise_variance, dataset, executor) as operator:
            product = _product_alone(operator, dataset.n_targets)
    if not trained.solution.converged:
        raise NotConvergedError(trained.solution.reason.message)
    names = ("column_passes", "iterations", "refreshes", "gradient_inf_norm")
    return {
        "seconds": seconds,
        "product_seconds": product,
        "phases": trained.solution.seconds_by_part,
        **{name: trained.summary[name] for name in names},
        "coordinator_peak_bytes": own_peak,
        "worker_peak_bytes": max(workers_peak, default=0),
    }


def _product_alone(operator: BlockedKernelOperator, targets: int) -> float:
    """Return the median seconds of a float32 product with all of K."""
    vectors = np.random.default_rng(0).standard_normal((operator.n, targets))
    times = []
    for _ in range(WARM_ROUNDS + PRODUCTS):
        began = time.perf_counter()
        operator.matmat(vectors, "single")
        times.append(time.perf_counter() - began)
    return median(times[WARM_ROUNDS:])


def _children_peaks() -> Iterator[int]:
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(OSError, ValueError, IndexError, psutil.Error):
            for line in Path(f"/proc/{child.pid}/status").read_text(encoding="ascii").splitlines():
                if line.startswith("VmHWM:"):
                    yield int(line.split()[1]) * 1024


def main() -> None:
    """Read a description from standard input, run it, and print the figures."""
    print(dump(solve_on_workers(json.load(sys.stdin))))


# Numbers of worker processes for which the plan is compared with actual runs.
WORKERS = (1, 2)


@dataclass(frozen=True)
class Scaling:
    """Runs by number of workers, and the throughput of as many threads that only evaluate kernel entries.

    Each list has one value per repeat; throughputs are entries per second. `again` and `ceilings_again` are the second
    measurements of the first number of workers, if there are any.
    """

    runs: dict[int, list[dict[str, Any]]]
    ceilings: dict[int, list[float]]
    again: list[dict[str, Any]] = field(default_factory=list)
    ceilings_again: list[float] = field(default_factory=list)

    def median(self, workers: int, name: str) -> float:
        """Median of a figure over the repeats."""
        return median([run[name] for run in self.runs[workers]])

    def ratio(self, workers: int, base: int, name: str) -> float:
        """Return the median over the repeats of the ratio of the figure for `base` workers to the one for `workers`."""
        first = [run[name] for run in self.runs[base]]
        null = ([run[name] for run in self.again], first) if self.again else None
        return median_ratio(first, [run[name] for run in self.runs[workers]], null)

    def ceiling(self, workers: int, base: int) -> float:
        """Return the median over the repeats of the machine's own speed-up from additional threads."""
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
    """Run each number of workers once per repeat; with `null`, run the first number twice per repeat.

    `problem` contains the stores `train` and `warm` (the first training samples) and the hyperparameter file `hyper`.
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
    """Return one row per number of workers: the measured figures and the model's figures for the same run.

    The model receives the measured number of products or passes, so the comparison covers only their cost.
    """
    base = next(iter(scaling.runs))
    cache_bytes = ClusterOptions().cache_bytes
    rows = []
    for count, runs in scaling.runs.items():
        speedups, least = machine.speedups, cluster.least_task_evaluations
        fleet = Fleet(count, 1, speedups, cluster.network, one_machine=True, least_task_evaluations=least)
        taken = replace(foreseen, counts=replace(foreseen.counts, checks=runs[-1]["refreshes"]))
        # One product with the whole matrix equals one column pass.
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
    """Train once for each number of workers; return rows like those of `dkgp bench scaling`, and the number of passes.

    Each worker has one thread and shares this machine with the coordinator, regardless of the planned cluster. The
    model receives the measured number of products or passes. The accuracy of the predicted number is reported
    separately.
    """
    with tempfile.TemporaryDirectory(prefix="dkgp-plan-") as folder:
        warm, hyper = str(Path(folder) / "warm.zarr"), str(Path(folder) / "hyper.json")
        write_warm_up(dataset, warm)
        write_hyperparameters(hyper, hyperparameters)
        problem = {"train": dataset.url, "warm": warm, "hyper": hyper}
        scaling = measure_scaling(problem, foreseen.options, WORKERS, 1, reporter)
    # The plan may be for another cluster, but these runs used worker processes on this machine.
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


if __name__ == "__main__":
    main()
