"""Gradients that worker processes hold by rows: workers and coordinators killed, and bytes counted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tornado.iostream import IOStream, SSLIOStream

from dkgp.data import CheckpointStore
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.solvers import Checkpointing, GreedyBlockCoordinateDescent, MaxIterations, Progress
from dkgp.solvers.block_descent import gbcd, rows
from dkgp.solvers.block_descent.block_size import moved_by_rows
from tests.engine.helpers import Bits, Problem, bits, client_of, opened, worker_pids
from tests.solvers.problems import smooth_problem

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("quiet_dask")]


@pytest.fixture
def rebuilt(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have workers hold rows; the numbers of blocks whose rows were handed out."""
    monkeypatch.setattr(gbcd, "pays_by_rows", lambda *_: True)
    found: list[int] = []
    start = rows.DescentRows.start

    def noted(self: Any, recipe: Any, asked: Any, rebuild: bool) -> Any:
        if rebuild:
            found.append(len(asked))
        return start(self, recipe, asked, rebuild)

    monkeypatch.setattr(rows.DescentRows, "start", noted)
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("resident", [True, False])
def test_workers_that_are_killed_change_nothing(
    problem: Problem, reference: Bits, rebuilt: list[int], resident: bool
) -> None:
    handed: list[int] = []
    with opened("processes", 3) as executor:
        client = client_of(executor)

        def kill(progress: Progress) -> None:
            if progress.iteration in (15, 40):
                handed.append(len(rebuilt))
                os.kill(worker_pids(client)[0], signal.SIGKILL)

        trained = problem.train(executor, callback=kill, resident=resident)
    assert bits(trained) == reference
    # Each loss was mended, besides the rows that went out at the start and after a verification.
    assert len(handed) == 2
    assert len(rebuilt) >= 1 + trained.solution.refreshes - 1 + len(handed)
    assert 0 < min(rebuilt) < max(rebuilt)


COORDINATOR = """
import sys
from tests.engine.helpers import Problem, opened
from dkgp.data import CheckpointStore, open_dataset
from dkgp.kernels import SquaredExponential
from dkgp.solvers import Checkpointing
from dkgp.solvers.block_descent import gbcd

if __name__ == "__main__":
    gbcd.pays_by_rows = lambda *_: True
    problem = Problem(open_dataset(sys.argv[1]), SquaredExponential((0.2, 0.2, 0.15, 0.05, 0.05, 0.01)), 0.05)
    with opened("processes", 2) as executor:
        problem.train(
            executor,
            callback=lambda progress: print(progress.iteration, flush=True),
            checkpointing=Checkpointing(CheckpointStore(sys.argv[2]), every_seconds=0.3),
        )
"""


@pytest.mark.timeout(900)
def test_a_coordinator_that_is_killed_is_resumed(
    problem: Problem, reference: Bits, rebuilt: list[int], tmp_path: Path
) -> None:
    script, url = tmp_path / "coordinator.py", str(tmp_path / "checkpoints")
    script.write_text(COORDINATOR)
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, str(script), problem.dataset.url, url]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root}
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            checkpoint = CheckpointStore(url).load_latest() if int(line) >= 12 else None
            if checkpoint is not None and checkpoint.sequence_number >= 4:
                process.kill()
                break
    store = CheckpointStore(url)
    found = store.load_latest()
    assert found is not None
    assert 4 <= found.sequence_number < 60
    with opened("processes", 2) as executor:
        resumed = problem.train(executor, checkpointing=Checkpointing(store, 1000.0, resume=True))
    assert bits(resumed) == reference
    assert rebuilt


@pytest.mark.timeout(900)
def test_few_bytes_come_to_the_coordinator(rebuilt: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Counted at the sockets of this process, where the scheduler is as well: bytes that pass it count twice."""
    made, read = smooth_problem(40_000, 2), Counter[str]()
    dataset = dataset_from_arrays(str(tmp_path / "train.zarr"), made.X, made.y)
    problem = Problem(dataset, made.kernel, made.noise_variance)

    for stream in (IOStream, SSLIOStream):

        def counted(self: Any, buf: Any, taken: Any = stream.read_from_fd) -> int | None:
            size: int | None = taken(self, buf)
            read["bytes"] += size or 0
            return size

        monkeypatch.setattr(stream, "read_from_fd", counted)
    solver = GreedyBlockCoordinateDescent(block_size=20, largest_block_size=20)
    a_round, found = [], []
    with opened("processes", 2) as executor:
        for by_rows in (False, True):
            monkeypatch.setattr(gbcd, "pays_by_rows", lambda *_, by_rows=by_rows: by_rows)
            marks: dict[int, int] = {}
            note = lambda progress, marks=marks: marks.setdefault(progress.iteration, read["bytes"])  # noqa: E731
            found.append(problem.train(executor, solver=solver, stopping=MaxIterations(11), callback=note))
            a_round.append((marks[11] - marks[3]) / 8)
    assert bits(found[0]) == bits(found[1])
    assert a_round[0] > 8 * 40_000
    assert a_round[1] < 1.5 * moved_by_rows(1, 5, 20, 60) + 30_000, a_round
