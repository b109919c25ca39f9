from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dkgp
from dkgp.cluster import LocalExecutor
from dkgp.data import ModelRecord, open_model
from dkgp.data.sources.synthetic import friedman1
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.kernels import SquaredExponential
from dkgp.models.exact import save
from dkgp.solvers import MaxIterations
from tests.engine.helpers import Bits, ManualCluster, Problem, TrainCommand, bits
from tests.leaks import no_module_leaks as no_module_leaks
from tests.leaks import nothing_leaks as nothing_leaks

REPOSITORY = str(Path(dkgp.__file__).resolve().parents[1])


@pytest.fixture(scope="session")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    X, y = friedman1(2000, n_features=6, seed=7)
    targets = np.column_stack([y, np.sin(y / 3) + X[:, 5]])
    url = str(tmp_path_factory.mktemp("engine") / "train.zarr")
    dataset = dataset_from_arrays(url, X, targets, chunk_rows=300)
    return Problem(dataset, SquaredExponential((0.2, 0.2, 0.15, 0.05, 0.05, 0.01)), 0.05)


@pytest.fixture(scope="session")
def reference(problem: Problem) -> Bits:
    """The bits of one thread without Dask."""
    executor = LocalExecutor(1)
    trained = problem.train(executor)
    executor.close()
    assert trained.solution.converged
    # Long enough for faults to come in between, with float32 rounds, a refresh and float64 rounds.
    assert trained.solution.progress.iteration > 50
    assert trained.solution.refreshes > 1
    return bits(trained)


@pytest.fixture(scope="session")
def model(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> ModelRecord:
    """A model after one round, in a store."""
    url = str(tmp_path_factory.mktemp("model") / "model.zarr")
    executor = LocalExecutor(1)
    save(problem.train(executor, stopping=MaxIterations(1)), url, problem.dataset)
    executor.close()
    return open_model(url)


@pytest.fixture
def quiet_dask() -> Iterator[None]:
    """Losing workers on purpose is not worth a screenful of log."""
    loggers = [logging.getLogger(name) for name in ("distributed", "tornado")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


StartProcess = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start_process() -> Iterator[StartProcess]:
    """Start `python -m ...` in the background; whatever still runs afterwards is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": REPOSITORY, **options.pop("environment", {})}
        command = [sys.executable, "-m", *(str(argument) for argument in arguments)]
        given = {
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
            "text": True,
            "env": environment,
            **options,
        }
        started.append(subprocess.Popen(command, **given))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def manual_cluster(start_process: StartProcess, tmp_path: Path) -> Callable[..., ManualCluster]:
    """`dask scheduler` and so many `dask worker`, as a user types them."""

    def start(n_workers: int, *worker_options: str) -> ManualCluster:
        path = tmp_path / "scheduler.json"
        local = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", path)
        scheduler = start_process("dask", "scheduler", *local)
        until = time.monotonic() + 240.0
        while not path.exists():
            assert scheduler.poll() is None
            assert time.monotonic() < until, "the scheduler wrote no file"
            time.sleep(0.05)
        options = ("--scheduler-file", path, "--nthreads", "1", "--no-dashboard", "--local-directory", tmp_path)
        workers = [start_process("dask", "worker", *options, *worker_options) for _ in range(n_workers)]
        return ManualCluster(str(path), scheduler, workers)

    return start


@pytest.fixture
def command(problem: Problem, reference: Bits, start_process: StartProcess, tmp_path: Path) -> TrainCommand:
    """`dkgp train` on the problem, in the test's folder."""
    return TrainCommand(problem, reference, start_process, tmp_path)
