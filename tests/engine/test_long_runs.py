"""A long solve leaves nothing behind on the scheduler, however many rounds it takes."""

from __future__ import annotations

import time
from typing import Any

import pytest
from distributed import Client

from dkgp.solvers import GradientInfNorm, GreedyBlockCoordinateDescent, MaxIterations, Progress
from tests.engine.helpers import Problem, opened

pytestmark = pytest.mark.portable

ROUNDS = 200


def census(dask_scheduler: Any) -> dict[str, int]:
    """Everything that a scheduler keeps for each task, key, prefix, group or client."""
    counted = ("tasks", "task_prefixes", "task_groups", "clients", "unrunnable", "task_metadata", "replicated_tasks")
    found = {name: len(getattr(dask_scheduler, name)) for name in counted}
    workers = dask_scheduler.workers.values()
    return {
        **found,
        "held by workers": sum(len(worker.has_what) for worker in workers),
        "wanted": sum(len(client.wants_what) for client in dask_scheduler.clients.values()),
        "extensions": sum(
            len(value) for value in dask_scheduler.extensions.values() if isinstance(value, (dict, list, set))
        ),
    }


def settled(client: Client) -> dict[str, int]:
    """The census once messages on their way have arrived and the threads have gone: the least of a few."""
    counts: list[dict[str, int]] = []
    while len(counts) < 5 or (counts[-1]["tasks"] and len(counts) < 100):
        counts.append(client.run_on_scheduler(census))
        time.sleep(0.02)
    return {name: min(count[name] for count in counts) for name in counts[0]}


@pytest.mark.parametrize(
    "resident", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["resident", "out_of_core"]
)
def test_task_count_is_flat(problem: Problem, resident: bool) -> None:
    with opened("local", 2) as executor:
        client: Client = executor._client  # type: ignore[attr-defined]
        found: dict[int, dict[str, int]] = {}

        def count(progress: Progress) -> None:
            if progress.iteration % 50 == 0:
                found[progress.iteration] = settled(client)

        problem.train(
            executor,
            resident=resident,
            callback=count,
            solver=GreedyBlockCoordinateDescent(block_size=24),
            stopping=GradientInfNorm(1e-9) | MaxIterations(ROUNDS),
        )
        assert list(found) == [50, 100, 150, 200]
        # Between rounds there is nothing at all, and a prefix for each kind of round that threads were called for.
        prefixes = [each.pop("task_prefixes") for each in found.values()]
        assert max(prefixes) <= 3
        assert found[200] == found[150] == found[100] == found[50]
        assert found[200]["tasks"] == 0
