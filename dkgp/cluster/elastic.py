"""Size of a cluster that is started here with `adaptive` limits: it follows the rounds of tasks.

Dask's own rule looks at single moments: it closes workers that wait while the coordinator computes, or while a short
round runs. This rule asks for a thread for each task of a long round, or of short rounds that keep the workers busy. It
keeps the workers through the pauses, and never closes a worker that computes.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

from distributed.deploy.adaptive import Adaptive

# A size that a round asked for holds for so long after the round.
HOLD_SECONDS = 300.0
# Short rounds ask for workers if so many of the last looks saw tasks.
LOOKS, BUSY_LOOKS = 10, 8


class RoundAdaptive(Adaptive):
    """Asks for a thread for each task of a round that lasts; the scheduler must run in this process.

    A round lasts if one of its tasks waits or runs at two looks in a row, `interval` apart. Short rounds count too if
    one follows the other.
    """

    cluster: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._tasks: set[Any] = set()
        self._counts: deque[int] = deque([0] * LOOKS, maxlen=LOOKS)
        self._requests: deque[tuple[float, int]] = deque()

    async def target(self) -> int:
        """Return the largest number of workers that a round of the last `HOLD_SECONDS` could use."""
        scheduler, now = self.cluster.scheduler, time.monotonic()
        tasks = {state.key for worker in scheduler.workers.values() for state in worker.processing}
        tasks.update(state.key for state in (*scheduler.queued, *scheduler.unrunnable))
        self._counts.append(len(tasks))
        lasting = len(tasks) if tasks & self._tasks else 0
        busy = max(self._counts) if sum(count > 0 for count in self._counts) >= BUSY_LOOKS else 0
        if wanted := max(lasting, busy):
            threads = max((worker.nthreads for worker in scheduler.workers.values()), default=1)
            self._requests.append((now, math.ceil(wanted / threads)))
        self._tasks = tasks
        while self._requests and now - self._requests[0][0] > HOLD_SECONDS:
            self._requests.popleft()
        return max((count for _, count in self._requests), default=0)

    async def workers_to_close(self, target: int) -> list[Any]:
        """Return names of idle workers, those with the fewest results first; jobs with a busy worker stay whole."""
        workers = list(self.cluster.scheduler.workers.values())
        job_of = {
            f"{name}{suffix}": name
            for name, spec in self.cluster.worker_spec.items()
            for suffix in spec.get("group", ())
        }
        busy = {job_of.get(worker.name, worker.name) for worker in workers if worker.processing}
        idle = [worker for worker in workers if job_of.get(worker.name, worker.name) not in busy]
        idle.sort(key=lambda worker: int(worker.nbytes))
        return [worker.name for worker in idle[: max(0, len(workers) - target)]]
