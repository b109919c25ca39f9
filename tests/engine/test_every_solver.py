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

import pytest
from click.testing import CliRunner

from dkgp.cli import main
from dkgp.cluster import LocalExecutor
from dkgp.data import open_model
from dkgp.solvers import MaxIterations
from tests.engine.helpers import Bits, Problem, bits, opened, with_a_worker_killed
from tests.engine.solver_table import SOLVERS, solver_command, train_with

StartProcess = Callable[..., subprocess.Popen[str]]
Reference = Callable[..., Bits]

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
    assert process.wait(timeout=30) == -signal.SIGKILL
    assert not model.exists()
    assert wanted <= rounds_saved(checkpoints) < expected[2]
    result = CliRunner().invoke(main, solver_command(problem, tmp_path, options, "--resume"))
    assert result.exit_code in (0, 4), result.stderr
    document = json.loads(result.stdout)
    assert document["resumed"] is True
    assert document["iterations"] == expected[2]
    assert open_model(model).alpha.tobytes() == expected[0]
