"""One run of `dkgp bench scaling` in a process of its own: a solve on worker processes, or tiles beside others' tiles.

`python -m dkgp.bench.scaling.run` reads a description from standard input and prints figures, both JSON.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil

from dkgp.bench.contenders import found_environment
from dkgp.cluster import BlockExecutor, ClusterOptions, PendingRound, open_executor
from dkgp.cluster.executors.base import BlockTask
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
from dkgp.plan.problem import block_solver

__all__ = ["MODULE", "TimedExecutor", "measure_ceiling"]

MODULE = "dkgp.bench.scaling.run"
WARM_ROUNDS = 4
UPDATE_ROUNDS = 12
CEILING_SECONDS = 2.0


class _TimedRound:
    def __init__(self, pending: PendingRound, began: float, spans: list[tuple[float, float]]) -> None:
        self._pending, self._began, self._spans = pending, began, spans
        self._ended: float | None = None

    def done(self) -> bool:
        done = self._pending.done()
        if done:
            self._end()
        return done

    def result(self) -> list[Any]:
        values = self._pending.result()
        self._end()
        return values

    def _end(self) -> None:
        if self._ended is None:
            self._ended = time.perf_counter()
            self._spans.append((self._began, self._ended))


class TimedExecutor:
    """Runs rounds on another executor and notes when each was submitted and when its end was first seen.

    Attributes
    ----------
    spans : dict of str to list of (float, float)
        By the rounds' name.
    double_columns : int
        Columns of float64 updates.
    """

    def __init__(self, executor: BlockExecutor) -> None:
        self._executor = executor
        self.spans: dict[str, list[tuple[float, float]]] = {}
        self.double_columns = 0

    def __getattr__(self, name: str) -> Any:
        """All else as the executor does."""
        return getattr(self._executor, name)

    def submit(
        self, name: str, task: BlockTask, arguments: tuple[Any, ...], groups: Sequence[Sequence[Any]], *hints: Any
    ) -> PendingRound:
        """Start one round."""
        if name == "kblock" and "double" in [value for value in arguments if isinstance(value, str)]:
            self.double_columns += next(len(value) for value in arguments if isinstance(value, np.ndarray))
        began = time.perf_counter()
        pending = self._executor.submit(name, task, arguments, groups, *hints)
        return _TimedRound(pending, began, self.spans.setdefault(name, []))

    def seconds(self, name: str) -> float:
        """Seconds in which at least one round of that name was under way."""
        total, until = 0.0, -1.0
        for began, ended in sorted(self.spans.get(name, [])):
            total += max(0.0, ended - max(began, until))
            until = max(until, ended)
        return total


def solve_on_workers(description: dict[str, Any]) -> dict[str, Any]:
    """Train as `dkgp train` does on worker processes; then updates alone, with nothing else going on."""
    dataset = open_dataset(description["train"])
    found = read_hyperparameters(description["hyper"], n_features=dataset.n_features)
    options = SolverOptions(**description["solver"])
    cluster = ClusterOptions(
        kind="processes", workers=description["workers"], threads_per_worker=description["threads_per_worker"]
    )
    with open_executor(cluster, dataset.n_samples) as executor:
        for url in (description["warm"], description["train"]):
            data = open_dataset(url)
            solver = block_solver(options, data, SilentReporter())
            solver = replace(solver, largest_block_size=solver.block_size)  # rounds of one size can be timed alone
            timed = TimedExecutor(executor)
            began = time.perf_counter()
            watched = cast(BlockExecutor, timed)
            trained = train(
                data, found.kernel, found.noise_variance, watched, solver=solver, stopping=options.stopping()
            )
            seconds = time.perf_counter() - began
        workers_peak = sorted(_children_peaks(), reverse=True)[: description["workers"]]
        own_peak = own_peak_bytes()
        size = int(solver.block_size)
        with BlockedKernelOperator(found.kernel, found.noise_variance, dataset, executor) as operator:
            update = _updates_alone(operator, size, dataset.n_targets)
    if not trained.solution.converged:
        raise NotConvergedError(trained.solution.reason.message)
    waits = [progress.timings for progress in trained.solution.history]
    return {
        "seconds": seconds,
        "update_seconds": update,
        "update_seconds_in_solve": timed.seconds("kblock"),
        "refresh_seconds": timed.seconds("kpass"),
        **{f"{name}_seconds": sum(wait.get(name, 0.0) for wait in waits) for name in ("select", "vectors", "wait")},
        "block_size": size,
        "double_passes": timed.double_columns / dataset.n_samples,
        **{name: trained.summary[name] for name in ("column_passes", "iterations", "refreshes", "gradient_inf_norm")},
        "coordinator_peak_bytes": own_peak,
        "worker_peak_bytes": max(workers_peak, default=0),
    }


def _updates_alone(operator: BlockedKernelOperator, size: int, targets: int) -> float:
    """Median seconds of an update, from its submission to the whole product at the coordinator."""
    generator = np.random.default_rng(0)
    times = []
    for _ in range(WARM_ROUNDS + UPDATE_ROUNDS):
        indices = generator.choice(operator.n, size, replace=False).astype(np.intp)
        delta = generator.standard_normal((size, targets))
        began = time.perf_counter()
        operator.apply_columns(indices, delta)
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
