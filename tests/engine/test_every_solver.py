"""Every iterative solver: killed and resumed, its workers killed, on any number of workers: the same bits."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dkgp.cli import main
from dkgp.cluster import LocalExecutor
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset, open_model
from dkgp.models.exact import TrainedModel
from dkgp.solvers import MaxIterations
from tests.engine.helpers import Bits, Problem, bits, hyperparameters, opened, with_a_worker_killed

StartProcess = Callable[..., subprocess.Popen[str]]
Reference = Callable[..., Bits]

# Every iterative solver, as one says it on the command line, with settings that give many short rounds.


__all__ = ["SOLVERS", "solver_command", "train_with"]

# Enough passes for a kill to come in between; parameter CG would not end by itself.
SOLVERS: dict[str, SolverOptions] = {
    "gbcd": SolverOptions("gbcd", block_size=60, tolerance=1e-3),
    "bcdc": SolverOptions("bcdc", block_size=60, tolerance=1e-2),
    "bcdg": SolverOptions("bcdg", block_size=60, tolerance=1e-2, max_passes=20.0),
    "smo": SolverOptions("smo", tolerance=1e-3),
    "cg": SolverOptions("cg", tolerance=1e-3),
    "pcg": SolverOptions("pcg", halo=40, leaf=30, rank=10, tolerance=1e-6),
    "pcg low rank": SolverOptions("pcg", halo=0, rank=20, tolerance=1e-6),
    "kcg": SolverOptions("kcg", tolerance=1e-4, max_passes=200.0),
    "paramcg": SolverOptions("paramcg", tolerance=1e-4, max_passes=150.0),
    "tiled-cholesky": SolverOptions("tiled-cholesky", tolerance=1e-8),
}


def train_with(problem: Problem, executor: Any, options: SolverOptions, **more: Any) -> TrainedModel:
    """Train in this process."""
    dataset: Dataset = problem.dataset
    solver = options.build(dataset.n_samples, dataset.n_features, dataset.n_targets, SilentReporter())
    more.setdefault("stopping", options.stopping())
    return problem.train(executor, solver=solver, **more)


def solver_command(problem: Problem, folder: Path, options: SolverOptions, *more: object) -> list[str]:
    """Return the solver's command line without `dkgp`, with a checkpoint after every round."""
    given: tuple[object, ...] = ("train", problem.dataset.url, "--hyper", hyperparameters(problem, folder))
    given += ("--out", folder / "model.zarr", "--solver", options.solver, "--tol", options.tolerance)
    for name in ("block_size", "halo", "leaf", "rank", "max_passes"):
        value = getattr(options, name)
        if value not in (None, "auto"):
            given += (f"--{name.replace('_', '-')}", value)
    given += ("--checkpoint-every", 0, "--cluster", "none", "--workers", 1, "--quiet", "--json")
    return [str(argument) for argument in (*given, *more)]


every_solver = pytest.mark.parametrize("name", SOLVERS)


@pytest.fixture(scope="module")
def of_one_thread(problem: Problem) -> Reference:
    """The bits of a solver on one thread without Dask, to its end or after so many rounds."""

    @functools.cache
    def solved(name: str, rounds: int | None = None) -> Bits:
        executor = LocalExecutor(1)
        limit = {} if rounds is None else {"stopping": MaxIterations(rounds)}
        trained = train_with(problem, executor, SOLVERS[name], **limit)
        executor.close()
        return bits(trained)

    return solved


# ------------------------------------------------------------------------------------- any number of workers


@every_solver
def test_any_number_of_threads(problem: Problem, of_one_thread: Reference, name: str) -> None:
    with opened("none", 3) as executor:
        trained = train_with(problem, executor, SOLVERS[name], stopping=MaxIterations(6))
    assert bits(trained) == of_one_thread(name, 6)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_worker_processes(problem: Problem, of_one_thread: Reference, workers: int) -> None:
    with opened("processes", workers) as executor:
        assert executor.parallelism == workers
        for name, options in SOLVERS.items():
            trained = train_with(problem, executor, options, stopping=MaxIterations(10))
            assert bits(trained) == of_one_thread(name, 10), name


# ----------------------------------------------------------------------------------------------------- killed workers


# What each solver sends to the workers, and the how-manieth of these rounds the worker dies in.
ROUNDS = [
    ("bcdc", "kblock", 6),
    ("bcdg", "kblock", 6),
    ("smo", "kpass", 0),
    ("cg", "kpass", 8),
    ("pcg", "kvbuild", 3),
    ("pcg", "kvforward", 5),
    ("pcg", "kvbackward", 7),
    ("pcg", "kpass", 6),
    ("pcg low rank", "kgram", 0),
    ("pcg low rank", "kproject", 5),
    ("kcg", "kpass", 8),
    ("paramcg", "kpass", 20),
    ("tiled-cholesky", "kpanel", 3),
    ("tiled-cholesky", "ksubstitute", 2),
]


@pytest.mark.faults
@pytest.mark.usefixtures("quiet_dask")
@pytest.mark.parametrize(("name", "kind", "count"), ROUNDS, ids=[f"{name}-{kind}" for name, kind, _ in ROUNDS])
def test_a_worker_killed_under_a_solver(
    problem: Problem, of_one_thread: Reference, name: str, kind: str, count: int
) -> None:
    trained = with_a_worker_killed(
        kind, count, lambda executor: train_with(problem, executor, SOLVERS[name], stopping=MaxIterations(12))
    )
    assert bits(trained) == of_one_thread(name, 12)


# ------------------------------------------------------------------------------------------------- a killed command


def rounds_saved(folder: Path) -> int:
    """Rounds that the last checkpoint holds, by its name."""
    return max((int(path.stem.partition("-")[2]) for path in folder.glob("checkpoint-*.dkgp")), default=0)


@pytest.mark.faults
@every_solver
def test_kill_9_of_a_solver_resumes_to_the_same_bits(
    problem: Problem, of_one_thread: Reference, start_process: StartProcess, tmp_path: Path, name: str
) -> None:
    options = SOLVERS[name]
    expected = of_one_thread(name)
    checkpoints, model = tmp_path / "model.zarr.checkpoint", tmp_path / "model.zarr"
    # On a busy machine the test is to have its turn before the run's end.
    process = start_process("dkgp", *solver_command(problem, tmp_path, options), preexec_fn=lambda: os.nice(3))
    wanted = min(10, expected[2] // 3)
    until = time.monotonic() + 180.0
    while rounds_saved(checkpoints) < wanted:
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < until, f"the run did not get to round {wanted}"
        time.sleep(0.005)
    process.kill()
    assert process.wait(timeout=240) == -signal.SIGKILL
    assert not model.exists()
    assert wanted <= rounds_saved(checkpoints) < expected[2]
    result = CliRunner().invoke(main, solver_command(problem, tmp_path, options, "--resume"))
    assert result.exit_code in (0, 4), result.stderr
    document = json.loads(result.stdout)
    assert document["resumed"] is True
    assert document["iterations"] == expected[2]
    assert open_model(model).alpha.tobytes() == expected[0]
