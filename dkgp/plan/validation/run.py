"""A solve on worker processes, and products alone, from a process of its own.

`python -m dkgp.plan.validation.run` reads a description from standard input and prints figures, both JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.commands.reporting.documents import dump
from dkgp.commands.reporting.measurements import median
from dkgp.commands.reporting.memory import own_peak_bytes
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import open_dataset
from dkgp.errors import NotConvergedError
from dkgp.models import read_hyperparameters
from dkgp.models.exact import train
from dkgp.operators import BlockedKernelOperator
from dkgp.solvers import GreedyBlockCoordinateDescent

MODULE = "dkgp.plan.validation.run"
WARM_ROUNDS = 1
PRODUCTS = 5


def solve_on_workers(description: dict[str, Any]) -> dict[str, Any]:
    """Train as `dkgp train` does on worker processes; then products alone, with nothing else going on."""
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
                solver = replace(solver, largest_block_size=solver.block_size)  # as it is planned
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
    """Median seconds of a float32 product with all of K."""
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
    """Read a description, run it, print the figures."""
    print(dump(solve_on_workers(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
