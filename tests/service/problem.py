"""A problem small enough to train in a second, and a stand-in for jobs' processes that starts in no time."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.queue.records import JobRecord
from tests.problem import Stored, store

WAIT_SECONDS = 120.0


class Problem(Stored):
    """Paths of the problem's files."""

    def training(self, out: object, **more: Any) -> dict[str, Any]:
        """Options of a training that converges within a second."""
        return super().training(out, **{"solver": {"block_size": 50}, **more})

    def long_training(self, out: Path, **more: Any) -> dict[str, Any]:
        """Options of one of 1,000 rounds that stops at a number of passes, with a checkpoint every moment."""
        solver = {"block_size": 4, "tolerance": 1e-12, "max_passes": 10}
        return {**self.training(out), "solver": solver, "checkpoint_seconds": 0.1, **more}


def make_problem(folder: Path) -> Problem:
    """A smooth function of three features with noise, and hyperparameters that suit it."""
    generator = np.random.default_rng(0)
    X = generator.random((400, 3))
    y = np.sin(4.0 * X).sum(axis=1) + 0.3 * generator.normal(size=400)
    store(folder, X, y, [0.3, 0.3, 0.3], 0.1)
    return Problem(folder)


def claim(queue: JobQueue) -> JobRecord | None:
    """Make the next job `running` without a process that holds its lock."""
    claimed = queue.ledger.claim()
    if claimed is None:
        return None
    claimed.lock.release()
    return claimed.record


def until(condition: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """Wait for a condition to hold; return what it answered."""
    end = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.02)
    return answer


# Takes a runner's place: notes that it was started, then does what the job's name says. The lock that it was handed is
# held until it ends, as a runner's.
_STAND_IN = """
    import os, signal, sqlite3, sys, time
    folder, job_id, attempt = sys.argv[3:6]
    with open(os.path.join(folder, ".started"), "a") as file:
        file.write(f"{job_id} {attempt} {os.getppid()}\\n")
    connection = sqlite3.connect(os.path.join(folder, "queue.sqlite"), timeout=240, isolation_level=None)
    (name,) = connection.execute("SELECT name FROM jobs WHERE id = ?", (job_id,)).fetchone()
    words = (name or "done").split()
    if words[0] == "wait":
        while not os.path.exists(os.path.join(folder, ".go")):
            time.sleep(0.02)
    if words[0] == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("deaf now", file=sys.stderr, flush=True)
        time.sleep(600)
    if words[0] == "grow":
        # Itself and a child, each so many MiB; the child hears SIGTERM as well, and neither where it is deaf.
        if words[-1] == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = os.fork()
        held = bytearray(b"x") * (int(words[1]) * 2**20)
        while not os.path.exists(os.path.join(folder, ".go")) and (child or os.getppid() != 1):
            time.sleep(0.02)
        if child == 0:
            os._exit(0)
    if words[0] == "die" and int(attempt) <= int(words[1]):
        with open(os.path.join(folder, "jobs", job_id, "process.json"), "w") as file:
            file.write(f'{{"pid": {os.getpid()}, "began": 0, "attempt": {attempt}}}')
        print("the last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if words[0] == "exit":
        print("cannot begin", file=sys.stderr, flush=True)
        sys.exit(3)
    connection.execute("UPDATE jobs SET state = 'done', finished_at = 0 WHERE id = ? AND attempt = ?",
                       (job_id, int(attempt)))
    connection.execute("DELETE FROM outputs WHERE job_id = ?", (job_id,))
"""


def make_stand_in(folder: Path) -> str:
    """Write the stand-in; return what to give a `Supervisor` as its interpreter."""
    path = folder / "stand-in"
    path.write_text(f"#!{sys.executable} -IS\n{textwrap.dedent(_STAND_IN)}")
    path.chmod(0o755)
    return str(path)
