"""Helpers of the engine's tests: a small problem, the bits that must not change, clusters to run it on."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client

from dkgp.cluster import BlockExecutor, ClusterOptions, PendingRound, open_executor
from dkgp.cluster.executors.base import RoundTasks
from dkgp.cluster.executors.sums import PendingTotal
from dkgp.data import Dataset, open_model, open_prediction
from dkgp.errors import ExitCode
from dkgp.kernels import SquaredExponential
from dkgp.models.exact import TrainedModel, train
from dkgp.solvers import GradientInfNorm, GreedyBlockCoordinateDescent, MaxIterations
from tests.watching import in_context

Bits = tuple[bytes, bytes, int]


@dataclass(frozen=True)
class Problem:
    """A small training problem, and how it is trained in these tests."""

    dataset: Dataset
    kernel: SquaredExponential
    noise_variance: float

    def train(self, executor: BlockExecutor, *, resident: bool = True, **options: Any) -> TrainedModel:
        """Train with blocks of 150, with all inputs at the coordinator or with none."""
        options.setdefault("solver", GreedyBlockCoordinateDescent(block_size=150))
        options.setdefault("stopping", GradientInfNorm(1e-3) | MaxIterations(100))
        if not resident:
            options["coordinator_input_bytes"] = 0
        return train(self.dataset, self.kernel, self.noise_variance, in_context(executor, options), **options)


def bits(trained: TrainedModel) -> Bits:
    """Return the results that must not depend on the workers: coefficients, gradient, number of rounds."""
    solution = trained.solution
    return solution.alpha.tobytes(), solution.gradient.tobytes(), solution.progress.iteration


def content(url: Path) -> dict[str, bytes]:
    """The arrays of a prediction store."""
    stored = open_prediction(str(url))
    return {name: stored.read(name).tobytes() for name in stored.variables}


@contextlib.contextmanager
def opened(kind: str, workers: int, **options: Any) -> Iterator[BlockExecutor]:
    """An executor of so many single-threaded workers (of so many threads, without Dask)."""
    chosen = ClusterOptions(kind=kind, workers=workers, threads_per_worker=1, **options)  # type: ignore[arg-type]
    with open_executor(chosen, 10**6) as executor:
        yield executor


@dataclass(frozen=True)
class ManualCluster:
    """A scheduler and workers started by hand, each a process of its own."""

    scheduler_file: str
    scheduler: subprocess.Popen[str]
    workers: list[subprocess.Popen[str]]


def client_of(executor: Any) -> Client:
    client: Client = executor._client
    return client


def worker_pids(client: Client) -> list[int]:
    return [int(pid) for pid in client.run(os.getpid).values()]


class AfterSubmit:
    """An executor that does something once, just after a certain round has gone out to the workers."""

    def __init__(self, executor: BlockExecutor, name: str, count: int, deed: Callable[[], None]) -> None:
        self._executor, self._name, self._countdown, self._deed = executor, name, itertools.count(-count), deed
        self.done = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def submit(
        self, name: str, task: Any, arguments: tuple[Any, ...], groups: Sequence[Any], *hints: Any
    ) -> PendingRound:
        pending = self._executor.submit(name, task, arguments, groups, *hints)
        self._look(name)
        return pending

    def start_total(self, tasks: RoundTasks) -> PendingTotal:
        pending = self._executor.start_total(tasks)
        self._look(tasks.name)
        return pending

    def _look(self, name: str) -> None:
        if name == self._name and next(self._countdown) == 0:
            self._deed()
            self.done = True


def kill_one(client: Client) -> None:
    os.kill(worker_pids(client)[0], signal.SIGKILL)


def with_a_worker_killed(name: str, count: int, work: Callable[[Any], Any]) -> Any:
    """The result of some work on two processes, of which one is killed just after a certain round has gone out."""
    # A cluster of its own: a nanny does not replace a worker that dies within moments of its start.
    with opened("processes", 2) as executor:
        client = client_of(executor)
        before = set(worker_pids(client))
        killed: list[bool] = []

        def kill() -> None:
            kill_one(client)
            killed.append(True)

        result = work(AfterSubmit(executor, name, count, kill))
        assert killed
        client.wait_for_workers(2, timeout=240)
        assert len(set(worker_pids(client)) & before) == 1  # the nanny has started another
    return result


def hyperparameters(problem: Problem, folder: Path) -> Path:
    path = folder / "hyper.json"
    path.write_text(json.dumps({"kernel": problem.kernel.to_json(), "noise_variance": problem.noise_variance}))
    return path


def train_command(problem: Problem, folder: Path, *more: object) -> list[str]:
    given = ("dkgp", "train", problem.dataset.url, "--hyper", hyperparameters(problem, folder))
    given += ("--out", folder / "model.zarr", "--log-json", folder / "run.jsonl", "--json")
    return [str(argument) for argument in (*given, "--block-size", 150, "--tol", 1e-3, *more)]


def wait_for_rounds(process: subprocess.Popen[str], log: Path, rounds: int) -> None:
    until = time.monotonic() + 240.0
    while not (log.exists() and log.read_bytes().count(b"\n") >= rounds):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, f"the run did not get to round {rounds}"
        time.sleep(0.01)


@dataclass(frozen=True)
class TrainCommand:
    """`dkgp train` on a problem, in processes of its own: started, ended by a fault, and resumed to the same bits."""

    problem: Problem
    reference: Bits
    start_process: Callable[..., subprocess.Popen[str]]
    folder: Path

    def start(self, *options: object, rounds: int = 0, **how: Any) -> subprocess.Popen[str]:
        """Start training; return once it has done so many rounds."""
        command = train_command(self.problem, self.folder, *options)
        process = self.start_process(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)
        if rounds:
            wait_for_rounds(process, self.folder / "run.jsonl", rounds)
        return process

    def require_error(self, process: subprocess.Popen[str], code: ExitCode) -> dict[str, Any]:
        """Require that it ends by itself, with this exit code, without a model; return the error that it prints."""
        stdout, stderr = process.communicate(timeout=240)
        assert process.returncode == code, stderr
        assert "Traceback" not in stderr
        assert not (self.folder / "model.zarr").exists()
        error: dict[str, Any] = json.loads(stdout)["error"]
        return error

    def require_resumed(self, *options: object, model: Path | None = None, resumed: bool = True) -> None:
        """Require that the same command with `--resume` ends in the bits of an undisturbed run."""
        process = self.start(*options, "--resume")
        stdout, stderr = process.communicate(timeout=240)
        assert process.returncode == 0, stderr
        document = json.loads(stdout)
        assert document["resumed"] is resumed
        assert document["iterations"] == self.reference[2]
        self.require_model(model)

    def require_model(self, model: Path | None = None) -> None:
        assert open_model(model or self.folder / "model.zarr").alpha.tobytes() == self.reference[0]
