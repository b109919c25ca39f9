"""One run of `dkgp bench scaling` in a process of its own: a solve on worker processes, or tiles beside others' tiles.

`python -m dkgp.bench.scaling.run` reads a description from standard input and prints figures, both JSON.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from dkgp.bench.contenders import found_environment
from dkgp.cluster import ClusterOptions, open_executor
from dkgp.commands.reporting.documents import dump
from dkgp.commands.reporting.measurements import median
from dkgp.commands.reporting.memory import own_peak_bytes
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import open_dataset
from dkgp.errors import DkgpError, NotConvergedError
from dkgp.kernels import TileEvaluator
from dkgp.models import read_hyperparameters
from dkgp.models.exact import train
from dkgp.operators import BlockedKernelOperator
from dkgp.solvers import GreedyBlockCoordinateDescent

__all__ = ["MODULE", "measure_ceiling"]

MODULE = "dkgp.bench.scaling.run"
WARM_ROUNDS = 1
PRODUCTS = 5
CEILING_SECONDS = 2.0


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
    phases: dict[str, float] = {}
    for progress in trained.solution.history:
        for name, value in progress.timings.items():
            phases[name] = phases.get(name, 0.0) + value
    names = ("column_passes", "iterations", "refreshes", "gradient_inf_norm")
    return {
        "seconds": seconds,
        "product_seconds": product,
        "phases": phases,
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


def tiles_beside_others(description: dict[str, Any]) -> dict[str, Any]:
    """Evaluate tiles on one thread for a while, once told to; return entries a second."""
    kernel = read_hyperparameters(description["hyper"]).kernel
    evaluator = TileEvaluator(kernel, "single")
    generator = np.random.default_rng(0)
    rows, columns = (evaluator.prepare(generator.standard_normal((size, kernel.n_features))) for size in (8192, 1000))
    weights = np.ones((1000, 1))
    evaluator.matmat(rows, columns, weights)
    print("ready", flush=True)
    sys.stdin.readline()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < CEILING_SECONDS:
        evaluator.matmat(rows, columns, weights)
        count += 1
    return {"entries_per_second": count * rows.n * columns.n / (time.perf_counter() - began)}


def measure_ceiling(hyper: str, processes: int) -> float:
    """Entries a second of so many independent single-threaded processes together: what the machine itself allows.

    Raises
    ------
    DkgpError
        One of them failed.
    """
    description = json.dumps({"contender": "tiles", "hyper": hyper}) + "\n"
    running = [
        subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=found_environment(),
        )
        for _ in range(processes)
    ]
    try:
        for child in running:
            assert child.stdin is not None
            child.stdin.write(description)
            child.stdin.flush()
        for child in running:
            assert child.stdout is not None
            child.stdout.readline()
        for child in running:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write("go\n")
                child.stdin.flush()
        outputs = [child.communicate() for child in running]
    finally:
        for child in running:
            if child.poll() is None:
                child.kill()
                child.wait()
    total = 0.0
    for child, (printed, errors) in zip(running, outputs, strict=True):
        if child.returncode != 0:
            reason = errors.strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
            raise DkgpError(f"a process that evaluates tiles failed: {reason[0]}")
        total += float(json.loads(printed)["entries_per_second"])
    return total


def main() -> None:
    """Read a description, run it, print the figures."""
    description = json.loads(sys.stdin.readline())
    run = {"solve": solve_on_workers, "tiles": tiles_beside_others}[description["contender"]]
    print(dump(run(description)))


if __name__ == "__main__":
    main()
