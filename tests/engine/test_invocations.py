"""Nothing runs twice without a reason: each task once, and those of a worker that died once more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import pytest

from tests.engine.helpers import Bits, Problem, bits, client_of, opened, with_a_worker_killed, worker_pids
from tests.engine.plugins import Invocations, invocations

pytestmark = pytest.mark.usefixtures("quiet_dask")


def train_counted(problem: Problem, executor: Any, folder: Path) -> tuple[Bits, set[int]]:
    """Bits of a solve, and the workers that are there when it is done; tasks are noted in the folder."""
    client = client_of(executor)
    client.register_plugin(Invocations(str(folder)))
    trained = bits(problem.train(executor))
    return trained, set(worker_pids(client))


def repeated(begun: dict[Any, list[int]]) -> dict[Any, list[int]]:
    return {task: processes for task, processes in begun.items() if len(processes) > 1}


@pytest.mark.faults
def test_each_task_runs_once(problem: Problem, reference: Bits, tmp_path: Path) -> None:
    with opened("processes", 2) as executor:
        trained, _ = train_counted(problem, executor, tmp_path)
    assert trained == reference
    begun = invocations(tmp_path)
    assert len(begun) > 60
    assert repeated(begun) == {}
    # Both have something to do.
    assert len({process for processes in begun.values() for process in processes}) == 2


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "count", "allowed_failures"),
    # With no failures allowed the scheduler gives the tasks up, and it is the round that submits them again.
    [("kblock", 8, 3), ("kblock", 25, 3), ("kpass", 1, 3), ("kblock", 8, 0)],
)
def test_of_a_worker_that_died_its_tasks_alone_run_again(
    problem: Problem, reference: Bits, tmp_path: Path, name: str, count: int, allowed_failures: int
) -> None:
    with dask.config.set({"distributed.scheduler.allowed-failures": allowed_failures}):
        trained, alive = with_a_worker_killed(name, count, lambda executor: train_counted(problem, executor, tmp_path))
    assert trained == reference
    begun = invocations(tmp_path)
    again = repeated(begun)
    for task, processes in again.items():
        # It was begun in the process that died, or waited for something that went down with it, and once elsewhere.
        dead = [process for process in processes if process not in alive]
        assert len(processes) == 2, (task, processes, alive)
        assert dead, (task, processes, alive)
    # One round was under way, and with it at most a wait for the next.
    rounds = {task[:3] for task in again}
    assert len(rounds) <= 2, rounds
    print(f"\n{name} {count}: {len(again)} of {len(begun)} tasks began twice, of the rounds {sorted(map(str, rounds))}")
