"""`dkgp bench chaos`: a solve and a batch of variances on worker processes that are killed, cut off, sent away, joined.

Both run first undisturbed, on as many processes, as the commands that users type; then again while the cluster goes on
losing members and the command itself is killed and resumed. What comes of it must be the same to the bit; what it costs
is the ratio of the seconds.
"""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.bench.problem import PreparedProblem, ProblemJob, write_rows
from dkgp.commands.reporting.measurements import Column, report, write_record
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.plots import check_plot_file
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import Progress, open_dataset, open_model, open_prediction
from dkgp.errors import DkgpError, UsageError
from dkgp.plan.validation import found_environment
from dkgp_benchmarks.chaos.members import Members, TimeLine, Worker
from dkgp_benchmarks.chaos.plot import plot_chaos

COLUMNS = (
    Column("task", "task", text=True),
    Column("quiet_seconds", "without failures, s", ",.1f"),
    Column("seconds", "with failures, s", ",.1f"),
    Column("ratio", "ratio", ".2f"),
    Column("killed", "killed", "d"),
    Column("cut", "disconnected", "d"),
    Column("sent_away", "retired", "d"),
    Column("joined", "joined", "d"),
    Column("resumed", "resumed", "d"),
    Column("equal", "same bits", text=True),
)
# A run that takes so many times what the quiet one did, and this many seconds, is not waited for any longer.
_PATIENCE, _PATIENCE_SECONDS = 20.0, 300.0


@dataclass(frozen=True)
class BenchChaosJob(ProblemJob):
    """A problem, a cluster, and what befalls it.

    Attributes
    ----------
    workers
        Worker processes of one thread each.
    kill_every
        Seconds between two kills of a worker, each followed by another that joins. In between, by turns, a worker's
        network is cut and one is asked to leave.
    coordinator_kills
        Kills of the command itself, spread over the quiet run's seconds; it is started again with `resume`.
    variances
        Test samples whose variances are computed.
    plot
        File for the time lines.
    """

    workers: int = 4
    kill_every: float = 4.0
    coordinator_kills: int = 2
    variances: int = 200
    plot: str | None = None

    def __post_init__(self) -> None:
        if self.workers < 2:
            raise UsageError(f"`workers` must be at least 2, so that one is left when one dies; got {self.workers}")
        if not self.kill_every > 0.0:
            raise UsageError(f"`kill_every` must be a positive number of seconds; got {self.kill_every}")
        if min(self.coordinator_kills, self.variances) < 0:
            raise UsageError("`coordinator_kills` and `variances` must not be negative")


@dataclass(frozen=True)
class Task:
    """A command that can be resumed, and the digest of what it leaves behind."""

    name: str
    command: Callable[[Path], list[str]]
    digest: Callable[[Path], str]


def run_bench_chaos(job: BenchChaosJob, reporter: Reporter) -> Document:
    """Run solve and variances quietly and under faults; return seconds, ratios, counts, and if the bits are the same.

    Raises
    ------
    DkgpError
        A command failed, or did not end within twenty times the quiet run's time.
    """
    if job.plot is not None:
        check_plot_file(job.plot)
    with job.prepared(reporter) as (prepared, folder):
        tasks = _tasks(job, prepared, folder)
        rows, lines = [], {}
        for task in tasks:
            quiet = _run(job, task, folder, "quiet", None, reporter)
            rough = _run(job, task, folder, "chaos", quiet.seconds, reporter)
            equal = task.digest(folder / "quiet") == task.digest(folder / "chaos")
            rows.append(_row(task, quiet, rough, equal, job.workers))
            lines[task.name] = (quiet.seconds, rough)
    title = job.title(
        f"A kill every {job.kill_every:g} s", prepared, f"{job.workers} worker processes, {job.variances} variances"
    )
    figures = {"same_bits": all(row["equal"] == "yes" for row in rows)}
    figures |= {f"{row['task']}_ratio": row["ratio"] for row in rows}
    settings = {"workers": job.workers, "kill_every": job.kill_every, "coordinator_kills": job.coordinator_kills}
    document = report("chaos", title, COLUMNS, rows, figures, **job.settings(prepared), **settings)
    if job.plot is not None:
        plot_chaos(job.plot, lines, title=title)
    return write_record(document, job.out)


def _tasks(job: BenchChaosJob, prepared: PreparedProblem, folder: Path) -> Sequence[Task]:
    def training(out: Path) -> list[str]:
        options = ["--hyper", prepared.hyper, "--tol", f"{job.solver.tolerance:g}", "--checkpoint-every", "2"]
        return ["train", prepared.train, "--out", str(out / "model.zarr"), *options]

    def predicting(out: Path) -> list[str]:
        # The quiet run's model: the chaos is that of this task alone.
        model = str(folder / "quiet" / "model.zarr")
        rows = str(folder / "some.zarr")
        return ["predict", model, rows, "--out", str(out / "p.zarr"), "--variance", "--variance-batch", "50"]

    tasks = [Task("solve", training, lambda out: _digest([open_model(out / "model.zarr").alpha]))]
    if job.variances:
        _write_some(prepared, job.variances, folder / "some.zarr")
        tasks.append(Task("variances", predicting, lambda out: _prediction_digest(out / "p.zarr")))
    return tasks


def _write_some(prepared: PreparedProblem, count: int, url: Path) -> None:
    if prepared.test is None:
        raise UsageError("variances need test samples, and all samples are trained on; name fewer to train on")
    test = open_dataset(prepared.test)
    write_rows(test, np.arange(min(count, test.n_samples)), url, test.standardisation)


def _digest(arrays: Sequence[np.ndarray]) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()


def _prediction_digest(url: Path) -> str:
    stored = open_prediction(str(url))
    return _digest([stored.read(name) for name in sorted(stored.variables)])


def _row(task: Task, quiet: TimeLine, rough: TimeLine, equal: bool, workers: int) -> dict[str, Any]:
    return {
        "task": task.name,
        "quiet_seconds": quiet.seconds,
        "seconds": rough.seconds,
        "ratio": rough.seconds / quiet.seconds,
        "killed": rough.count("killed"),
        "cut": rough.count("cut off"),
        "sent_away": rough.count("left"),
        "died": rough.count("died"),
        "joined": len(rough.workers) - workers,
        "resumed": len(rough.starts) - 1,
        "equal": "yes" if equal else "NO",
    }


def _run(
    job: BenchChaosJob, task: Task, folder: Path, name: str, quiet_seconds: float | None, reporter: Reporter
) -> TimeLine:
    """Run a task on a cluster of its own, undisturbed or, where the quiet run's seconds are known, not."""
    out, home = folder / name, folder / f"{name}-{task.name}"
    out.mkdir(exist_ok=True)
    home.mkdir()
    line = TimeLine()
    with Members(home, job.workers) as members, (home / "command.log").open("w+", encoding="utf-8") as log:
        chaos = None if quiet_seconds is None else Chaos(job, members, quiet_seconds)
        members.settle()
        begun = members.seconds
        command: subprocess.Popen[bytes] | None = None
        with reporter.work(f"{task.name}, {name}") as show:
            try:
                while command is None or command.poll() is None or command.returncode == -9:
                    if command is None or command.poll() is not None:
                        words = [*task.command(out), "--scheduler-file", str(members.scheduler_file), "--quiet"]
                        command = _start([*words, *(["--resume"] if line.starts else [])], log)
                        line.starts.append(members.seconds - begun)
                    passed = members.seconds - begun
                    if chaos is not None and chaos.strike(passed):
                        command.kill()
                        command.wait()
                    show(Progress("at work", int(passed), None, "s"))
                    if quiet_seconds is not None and passed > max(_PATIENCE_SECONDS, _PATIENCE * quiet_seconds):
                        raise DkgpError(
                            f"{task.name} is not done after {passed:.0f} s, and the quiet run took {quiet_seconds:.0f}"
                        )
                    time.sleep(0.02)
            finally:
                if command is not None and command.poll() is None:
                    command.kill()
                    command.wait()
        if command.returncode != 0:
            log.seek(0)
            last = log.read().strip().splitlines()[-1:] or [f"exit code {command.returncode}"]
            raise DkgpError(f"{task.name}, {name}: {last[0]}")
        line.seconds = members.seconds - begun
        # Members that are replaced are counted; those that end with this block stayed.
        line.workers = members.workers
        for worker in members.workers:
            worker.started -= begun
            worker.ended = None if worker.ended is None else worker.ended - begun
    return line


def _start(words: list[str], log: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "dkgp", *words],
        env=found_environment("dkgp_benchmarks"),
        stdout=subprocess.DEVNULL,
        stderr=log,
        start_new_session=True,
    )


class Chaos:
    """Faults that befall a cluster: the same deeds at the same seconds, to workers that are drawn by a seed."""

    def __init__(self, job: BenchChaosJob, members: Members, quiet_seconds: float) -> None:
        self._members, self._every = members, job.kill_every
        self._random = np.random.default_rng(job.problem.seed)
        self._next_kill, self._next_other = job.kill_every, 1.5 * job.kill_every
        self._others = itertools.cycle((members.cut, members.send_away))
        kills = job.coordinator_kills
        self._coordinator = [quiet_seconds * (number + 1) / (kills + 1) for number in range(kills)]

    def strike(self, passed: float) -> bool:
        """Do what is due after so many seconds; True where the command is to be killed."""
        if passed >= self._next_kill:
            self._members.kill(self._one())
            self._members.join()
            self._next_kill += self._every
        if passed >= self._next_other:
            next(self._others)(self._one())
            self._members.join()
            self._next_other += 2.0 * self._every
        if self._coordinator and passed >= self._coordinator[0]:
            del self._coordinator[0]
            return True
        return False

    def _one(self) -> Worker:
        alive = self._members.alive
        while len(alive) < 2:  # the last one is not taken: others are on their way
            alive.append(self._members.join())
        return alive[int(self._random.integers(len(alive)))]
