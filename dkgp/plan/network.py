"""Costs of messages on a cluster, measured with tasks that do nothing: round trip, further tasks, bytes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

from dkgp.cluster import BlockExecutor
from dkgp.cluster.cache import TileBudget
from dkgp.commands.reporting.measurements import median

ROUND_TRIPS = 15
MANY_TASKS = 24
PAYLOAD_BYTES = 4 * 1024**2
REPEATS = 5
# Faster than any wire: what is assumed where the payload's own time is lost in the round trip's.
MOST_BYTES_PER_SECOND = 2e10
LEAST_SECONDS = 1e-5


@dataclass(frozen=True)
class Network:
    """Costs of messages."""

    round_trip_seconds: float  # of one empty task: from its submission to its result at the coordinator
    task_seconds: float  # what each further task of the same round adds to that, at the scheduler
    submit_seconds: float  # what submitting a task costs the coordinator itself
    bytes_per_second: float  # of what tasks carry, either way


@dataclass(frozen=True)
class ClusterFigures:
    """Figures of a cluster."""

    network: Network  # what messages cost on it
    threads: int  # tasks that it runs at once, now
    # What a worker process holds before it has any work; the coordinator's where they share a process.
    worker_resident_bytes: int
    least_task_evaluations: int  # kernel entries below which a task is not worth its messages
    tiles: TileBudget = field(default_factory=TileBudget)  # what each worker may keep of a kernel matrix


def echo_task(payload: Any, blocks: list[int]) -> list[Any]:
    """Return the payload for each block."""
    return [payload for _ in blocks]


def resident_task(blocks: list[int]) -> list[int]:
    """Return the resident bytes of the process that runs this, for each block."""
    return [int(psutil.Process().memory_info().rss) for _ in blocks]


def measure_cluster(executor: BlockExecutor) -> ClusterFigures:
    """Measure a cluster by rounds of empty tasks, in a second or two."""

    def timed(payload: Any, tasks: int) -> tuple[float, float]:
        began = time.perf_counter()
        pending = executor.submit("kprobe", echo_task, (payload,), [[index] for index in range(tasks)])
        submitted = time.perf_counter()
        pending.result()
        return time.perf_counter() - began, submitted - began

    resident_bytes = int(max(executor.submit("kprobe", resident_task, (), [[0]]).result()))
    for tasks in (1, MANY_TASKS):
        timed(None, tasks)  # connections are made
    single = [timed(None, 1) for _ in range(ROUND_TRIPS)]
    many = [timed(None, MANY_TASKS) for _ in range(REPEATS)]
    # Noise, and pages never written, would compress or be shared.
    payload = np.random.default_rng(0).integers(0, 256, PAYLOAD_BYTES, dtype=np.uint8)
    heavy = [timed(payload, 1)[0] for _ in range(REPEATS)]
    round_trip = median([seconds for seconds, _ in single])
    submit = median([seconds for _, seconds in many]) / MANY_TASKS
    task = (median([seconds for seconds, _ in many]) - round_trip) / (MANY_TASKS - 1)
    wire = max(median(heavy) - round_trip, 2 * PAYLOAD_BYTES / MOST_BYTES_PER_SECOND)
    network = Network(
        round_trip_seconds=max(round_trip - submit, LEAST_SECONDS),
        # The coordinator's own part is counted where it submits.
        task_seconds=max(task - submit, LEAST_SECONDS),
        submit_seconds=max(submit, LEAST_SECONDS / 10.0),
        bytes_per_second=2 * PAYLOAD_BYTES / wire,
    )
    return ClusterFigures(
        network, executor.parallelism, resident_bytes, executor.least_task_evaluations, executor.tiles
    )
