"""Project a solve's phases onto a fleet of workers: seconds by phase, and the resource that limits each phase.

A phase's work is cut into tasks, at most as many as it has pieces. One round of tasks lasts as long as the longer of
its computation and its messages, plus one round trip. The messages pass the scheduler one after another. A product
with all of K is one round of squares; the workers add up its sums among themselves. The coordinator's own work
follows the round, or overlaps the previous phase. Busy threads share the speed of their machine: k threads run at the
speed-up measured for k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dkgp.operators.full_products import TASKS_A_THREAD, cut_of, tasks_a_thread, words_apart
from dkgp.plan.machine import Network
from dkgp.solvers.prices import Phase, Prices, Sizes, Work, product_phase

# Additional workers are worthwhile while they save at least this share of the time.
WORTHWHILE_SHARE = 0.1
# Sequential round trips of a product: vectors, squares, additions, and the sums.
TURNS = 4
# Number of partial sums that one task adds. Equals the constant in `dkgp.cluster.executors.dask`, which loads Dask.
FAN_IN = 8


@dataclass(frozen=True)
class Fleet:
    """The workers and the coordinator of a run."""

    # Number of worker processes, and of concurrent tasks in each worker.
    workers: int
    threads_per_worker: int
    # Combined speed of 1, 2, ... busy threads of a machine, in units of a single thread. Further threads add nothing.
    speedups: tuple[float, ...]
    network: Network  # costs of messages
    # Whether the workers share the coordinator's machine. Otherwise each worker has a machine to itself.
    one_machine: bool = False
    least_task_evaluations: int = 0  # a task with fewer kernel entries costs less than its messages

    @property
    def threads(self) -> int:
        """Number of tasks that run concurrently."""
        return self.workers * self.threads_per_worker

    def speed(self, threads: float) -> float:
        """Return the combined speed of busy threads of one machine, interpolated linearly between whole numbers."""
        most = len(self.speedups)
        below = min(max(1, math.floor(threads)), most)
        above = min(below + 1, most)
        return self.speedups[below - 1] + (threads - below) * (self.speedups[above - 1] - self.speedups[below - 1])

    def workers_speed(self, tasks: int) -> float:
        """Return the combined speed of the workers when `tasks` tasks are distributed over them in turn."""
        busy = min(tasks, self.threads)
        if self.one_machine:
            return self.speed(busy)
        spread = min(self.workers, busy)
        return spread * self.speed(busy / spread)


@dataclass(frozen=True)
class Projection:
    """Seconds of a run on a fleet."""

    # By phase, in order of execution. A phase that overlaps another one counts only the time that it adds.
    seconds: dict[str, float]
    # The same seconds by limiting resource: "workers", "tasks", "messages", or the name of a coordinator's phase.
    limits: dict[str, float]

    @property
    def total(self) -> float:
        """Seconds of the run."""
        return sum(self.seconds.values())

    @property
    def limit(self) -> str:
        """The limit that accounts for most of the time."""
        return max(self.limits, key=lambda name: self.limits[name])


def project(phases: Sequence[Phase], sizes: Sizes, prices: Prices, fleet: Fleet) -> Projection:
    """Project a solve onto the fleet. The coordinator and all workers first read X, in each precision."""
    reading = prices.seconds(Work(read=float(sizes.n) * sizes.d))
    each = fleet.speed(fleet.threads) / fleet.workers if fleet.one_machine else fleet.speed(fleet.threads_per_worker)
    seconds = {"reading": reading + 2.0 * reading / each}
    limits = {"reading": seconds["reading"]}
    beside = busy = 0.0
    for each_phase in phases:
        phase = (each_phase.by_rows if fleet.workers > 1 else None) or each_phase
        workers, limit = _workers_seconds(phase, prices, fleet)
        # Work that every process does for itself does not shrink with more processes.
        alike = prices.seconds(phase.each) / each
        threaded, alone = prices.seconds(phase.threaded), prices.seconds(phase.alone)
        own = threaded / fleet.speedups[-1] + alone
        if phase.hidden:
            # On a single machine, overlapping only uses cores that would otherwise be idle.
            both = (busy + threaded + alone) / fleet.speedups[-1] if fleet.one_machine else 0.0
            own = max(own - beside, both - beside, 0.0)
        seconds[phase.name] = phase.times * (workers + alike + own)
        limits[phase.name] = limits.get(phase.name, 0.0) + phase.times * (alike + own)
        limits[limit] = limits.get(limit, 0.0) + phase.times * workers
        beside, busy = workers, prices.seconds(phase.shared)
    return Projection(seconds, limits)


def product_seconds(sizes: Sizes, prices: Prices, fleet: Fleet, *, kept: float = 0.0) -> float:
    """Return the seconds of one float32 product with all of K, if the share `kept` is read from kept tiles."""
    return product_parts(sizes, prices, fleet, kept=kept).seconds


def product_parts(sizes: Sizes, prices: Prices, fleet: Fleet, *, kept: float = 0.0) -> Parts:
    """Project one float32 product with all of K, if the share `kept` is read from kept tiles."""
    product = product_phase("products", sizes, 1.0, kept=kept)
    return replace(_paired(product, prices, fleet), adding=prices.seconds(product.alone))


@dataclass(frozen=True)
class Parts:
    """Parts of the seconds of a product with all of K, and counts of its messages.

    Computing and scheduling overlap, but share the cores of a single machine. `total` covers the workers and the
    messages; `seconds` covers the coordinator as well.
    """

    computing: float  # by the workers, in parallel
    scheduling: float  # of all tasks, by the scheduler and the coordinator
    moving: float  # vectors and sums, through the coordinator's link and each worker's link
    ends: float  # round trips
    tasks: int  # squares, partial sums, additions, vectors
    moved_bytes: float  # through the coordinator's link
    disturbing: float = 0.0  # part of `computing` that is lost because messages use the same cores
    all_at_work: bool = True  # whether there is a piece for each thread
    adding: float = 0.0  # by the coordinator: accumulates the sums into the result

    @property
    def total(self) -> float:
        """Seconds until the last result arrives."""
        return max(self.computing, self.scheduling) + self.moving + self.ends

    @property
    def seconds(self) -> float:
        """Total seconds, including the coordinator's additions."""
        return self.total + self.adding

    @property
    def limit(self) -> str:
        """The resource that limits the product: "workers", "tasks" or "messages"."""
        if self.computing - self.disturbing < self.scheduling + self.moving + self.ends:
            return "messages"
        return "workers" if self.all_at_work else "tasks"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types."""
        names = ("computing", "scheduling", "moving", "ends", "adding")
        return {
            "seconds": self.seconds,
            **{f"{name}_seconds": getattr(self, name) for name in names},
            **{name: getattr(self, name) for name in ("tasks", "moved_bytes", "limit")},
        }


def _paired(phase: Phase, prices: Prices, fleet: Fleet) -> Parts:
    """Project a product, cut as in `dkgp.operators.full_products`, with sums added as in `dkgp.cluster.executors`."""
    blocks = (math.isqrt(8 * phase.pieces + 1) - 1) // 2
    work, threads, network = phase.shared, fleet.threads, fleet.network
    entries = work.entries + work.double_entries + work.kept + work.filled
    a_thread = tasks_a_thread(entries, threads) if fleet.workers > 1 else TASKS_A_THREAD
    needs = cut_of(blocks, threads, a_thread).needs
    # The sums of a range are part of the result of every task that needs the range.
    ranges, parts = 1 + max(map(max, needs)), sum(map(len, needs))
    if words_apart(phase.returned, ranges):
        tasks = len(needs) + ranges + (parts + parts // (FAN_IN - 1) if fleet.workers > 1 else 0)
    else:
        tasks = len(needs) + 1 + len(needs) // (FAN_IN - 1)
    scheduling = tasks * (network.task_seconds + network.submit_seconds)
    # Workers pass ranges and partial sums on to each other. All their links are busy at the same time.
    passed = parts / ranges * (phase.sent + phase.returned) / fleet.workers if fleet.workers > 1 else 0.0
    moved = phase.sent + phase.returned
    moving = (moved + passed) / network.bytes_per_second
    at_work = min(threads, len(needs))
    # Some threads have one small task more than others.
    uneven = max(_unevenness(phase.pieces, at_work), 1.0 + at_work / (2.0 * len(needs)) if a_thread > 1 else 1.0)
    computing = prices.seconds(work) * uneven / fleet.workers_speed(at_work)
    disturbing = 0.0
    if fleet.one_machine and threads >= len(fleet.speedups):  # messages use the workers' cores
        disturbing = (scheduling + moving) / fleet.speedups[-1]
    ends = TURNS * network.round_trip_seconds
    return Parts(computing + disturbing, scheduling, moving, ends, tasks, moved, disturbing, threads <= phase.pieces)


def _workers_seconds(phase: Phase, prices: Prices, fleet: Fleet) -> tuple[float, str]:
    """Return the seconds of one execution of a phase's rounds of tasks, and their limit."""
    if not phase.rounds:
        return 0.0, "workers"
    if phase.paired:
        parts = _paired(phase, prices, fleet)
        return parts.total, parts.limit
    tasks, rounds = min(fleet.threads, phase.pieces), phase.rounds
    evaluations = phase.shared.entries + phase.shared.double_entries
    if fleet.least_task_evaluations and evaluations:
        tasks = min(tasks, max(1, round(evaluations / fleet.least_task_evaluations)))
    messages = tasks * rounds
    network = fleet.network
    computing = prices.seconds(phase.shared) * _unevenness(phase.pieces, tasks) / fleet.workers_speed(tasks)
    moved = phase.sent + phase.returned + messages * phase.sent_to_each
    sending = messages * (network.task_seconds + network.submit_seconds) + moved / network.bytes_per_second
    waiting = rounds * network.round_trip_seconds
    if computing >= sending + waiting:
        limit = "workers" if tasks == fleet.threads else "tasks"
    else:
        limit = "messages"
    return max(computing, sending) + waiting, limit


def _unevenness(pieces: int, tasks: int) -> float:
    """Return the ratio of the largest task to the mean task. A round waits for the worker with one additional piece."""
    return math.ceil(pieces / tasks) * tasks / pieces


def most_useful_workers(workers: Sequence[int], seconds: Sequence[float]) -> int:
    """Return the smallest number of workers for which no larger number saves a tenth of the time.

    Parameters
    ----------
    workers, seconds : sequences
        Increasing numbers of workers, and the seconds for each number.
    """
    for number, count in enumerate(workers):
        if min(seconds[number:]) > (1.0 - WORTHWHILE_SHARE) * seconds[number]:
            return count
    return workers[-1]
