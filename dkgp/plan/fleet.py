"""A solve's phases laid out over workers: seconds by phase, and what they would be shorter without.

A phase's work is cut into tasks, at most as many as it has pieces; a round of them lasts as long as the longer of the
computing and of their messages, which pass the scheduler one after another, and a round trip besides. A product with
all of K is one round of squares, whose sums workers add up among themselves. The coordinator's own part follows, or
runs beside the phase before it. Threads of one machine share it: with k of them busy they run at
the speed-up measured for k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dkgp.operators.full_products import TASKS_A_THREAD, cut_of, tasks_a_thread, words_apart
from dkgp.plan.machine import Network
from dkgp.solvers.prices import Phase, Prices, Sizes, Work, product_phase

# More workers are worth having while they save this share of the time.
WORTHWHILE_SHARE = 0.1
# Round trips of a product in turn: vectors, squares, additions, and the sums.
TURNS = 4
# Parts of a sum that one task adds, as in `dkgp.cluster.executors.dask`, which loads Dask.
FAN_IN = 8


@dataclass(frozen=True)
class Fleet:
    """The workers and the coordinator of a run."""

    # Worker processes, and tasks that each runs at once.
    workers: int
    threads_per_worker: int
    # Speed of 1, 2, ... busy threads of a machine together, in units of one thread alone; further threads add
    # nothing.
    speedups: tuple[float, ...]
    network: Network  # what messages cost
    # Whether the workers share the coordinator's machine. Each has a machine to itself otherwise.
    one_machine: bool = False
    least_task_evaluations: int = 0  # kernel entries below which a task is not worth its messages

    @property
    def threads(self) -> int:
        """Tasks that run at once."""
        return self.workers * self.threads_per_worker

    def speed(self, threads: float) -> float:
        """Speed of so many threads of a machine together; between two whole numbers on a line."""
        most = len(self.speedups)
        below = min(max(1, math.floor(threads)), most)
        above = min(below + 1, most)
        return self.speedups[below - 1] + (threads - below) * (self.speedups[above - 1] - self.speedups[below - 1])

    def workers_speed(self, tasks: int) -> float:
        """Speed of the workers together with so many tasks at hand, which go round them."""
        busy = min(tasks, self.threads)
        if self.one_machine:
            return self.speed(busy)
        spread = min(self.workers, busy)
        return spread * self.speed(busy / spread)


@dataclass(frozen=True)
class Projection:
    """Seconds of a run on a fleet."""

    seconds: dict[str, float]  # by phase, in their order; of work that runs beside another phase, what it adds to that
    # The same seconds by what would make them fewer: "workers", "tasks", "messages", or a phase of the coordinator's.
    limits: dict[str, float]

    @property
    def total(self) -> float:
        """Seconds of the run."""
        return sum(self.seconds.values())

    @property
    def limit(self) -> str:
        """The one that takes most of the time."""
        return max(self.limits, key=lambda name: self.limits[name])


def project(phases: Sequence[Phase], sizes: Sizes, prices: Prices, fleet: Fleet) -> Projection:
    """Lay a solve out; everyone reads X first, in each precision."""
    reading = prices.seconds(Work(read=float(sizes.n) * sizes.d))
    each = fleet.speed(fleet.threads) / fleet.workers if fleet.one_machine else fleet.speed(fleet.threads_per_worker)
    seconds = {"reading": reading + 2.0 * reading / each}
    limits = {"reading": seconds["reading"]}
    beside = busy = 0.0
    for each_phase in phases:
        phase = (each_phase.by_rows if fleet.workers > 1 else None) or each_phase
        workers, limit = _workers_seconds(phase, prices, fleet)
        # What each process makes for itself takes no less with more of them.
        alike = prices.seconds(phase.each) / each
        threaded, alone = prices.seconds(phase.threaded), prices.seconds(phase.alone)
        own = threaded / fleet.speedups[-1] + alone
        if phase.hidden:
            # On one machine nothing is gained but what cores lay idle.
            both = (busy + threaded + alone) / fleet.speedups[-1] if fleet.one_machine else 0.0
            own = max(own - beside, both - beside, 0.0)
        seconds[phase.name] = phase.times * (workers + alike + own)
        limits[phase.name] = limits.get(phase.name, 0.0) + phase.times * (alike + own)
        limits[limit] = limits.get(limit, 0.0) + phase.times * workers
        beside, busy = workers, prices.seconds(phase.shared)
    return Projection(seconds, limits)


def product_seconds(sizes: Sizes, prices: Prices, fleet: Fleet, *, kept: float = 0.0) -> float:
    """Seconds of one float32 product with all of K, a share of which is read from kept tiles."""
    return product_parts(sizes, prices, fleet, kept=kept).seconds


def product_parts(sizes: Sizes, prices: Prices, fleet: Fleet, *, kept: float = 0.0) -> Parts:
    """Lay one float32 product with all of K out, a share of which is read from kept tiles."""
    product = product_phase("products", sizes, 1.0, kept=kept)
    return replace(_paired(product, prices, fleet), adding=prices.seconds(product.alone))


@dataclass(frozen=True)
class Parts:
    """Seconds of a product with all of K, by what takes them, and its messages.

    Computing and scheduling run beside each other, but share the cores of one machine. `total` are the workers' seconds
    and the messages', `seconds` those and the coordinator's.
    """

    computing: float  # of the workers, side by side
    scheduling: float  # of all tasks, at the scheduler and the coordinator
    moving: float  # of the vectors and sums, through the coordinator's link and each worker's
    ends: float  # round trips
    tasks: int  # squares, parts of their sums, additions, vectors
    moved_bytes: float  # through the coordinator's link
    disturbing: float = 0.0  # of the computing's seconds, what messages take of the same cores
    all_at_work: bool = True  # whether there is a piece for each thread
    adding: float = 0.0  # of the coordinator: the sums, to the result

    @property
    def total(self) -> float:
        """Seconds until the last result has come."""
        return max(self.computing, self.scheduling) + self.moving + self.ends

    @property
    def seconds(self) -> float:
        """Seconds in all."""
        return self.total + self.adding

    @property
    def limit(self) -> str:
        """The part that it would be shorter without: "workers" or "tasks", or "messages"."""
        if self.computing - self.disturbing < self.scheduling + self.moving + self.ends:
            return "messages"
        return "workers" if self.all_at_work else "tasks"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        names = ("computing", "scheduling", "moving", "ends", "adding")
        return {
            "seconds": self.seconds,
            **{f"{name}_seconds": getattr(self, name) for name in names},
            **{name: getattr(self, name) for name in ("tasks", "moved_bytes", "limit")},
        }


def _paired(phase: Phase, prices: Prices, fleet: Fleet) -> Parts:
    """A product's tasks, as `dkgp.operators.full_products` cuts them and `dkgp.cluster.executors` adds their sums."""
    blocks = (math.isqrt(8 * phase.pieces + 1) - 1) // 2
    work, threads, network = phase.shared, fleet.threads, fleet.network
    entries = work.entries + work.double_entries + work.kept + work.filled
    a_thread = tasks_a_thread(entries, threads) if fleet.workers > 1 else TASKS_A_THREAD
    needs = cut_of(blocks, threads, a_thread).needs
    # A range's sums are parts of the results of all tasks that need it.
    ranges, parts = 1 + max(map(max, needs)), sum(map(len, needs))
    if words_apart(phase.returned, ranges):
        tasks = len(needs) + ranges + (parts + parts // (FAN_IN - 1) if fleet.workers > 1 else 0)
    else:
        tasks = len(needs) + 1 + len(needs) // (FAN_IN - 1)
    scheduling = tasks * (network.task_seconds + network.submit_seconds)
    # Workers pass a range on to each other as they do its parts; all their links are busy at once.
    passed = parts / ranges * (phase.sent + phase.returned) / fleet.workers if fleet.workers > 1 else 0.0
    moved = phase.sent + phase.returned
    moving = (moved + passed) / network.bytes_per_second
    at_work = min(threads, len(needs))
    # A thread has one small task more than another.
    uneven = max(_unevenness(phase.pieces, at_work), 1.0 + at_work / (2.0 * len(needs)) if a_thread > 1 else 1.0)
    computing = prices.seconds(work) * uneven / fleet.workers_speed(at_work)
    disturbing = 0.0
    if fleet.one_machine and threads >= len(fleet.speedups):  # messages take the workers' cores
        disturbing = (scheduling + moving) / fleet.speedups[-1]
    ends = TURNS * network.round_trip_seconds
    return Parts(computing + disturbing, scheduling, moving, ends, tasks, moved, disturbing, threads <= phase.pieces)


def _workers_seconds(phase: Phase, prices: Prices, fleet: Fleet) -> tuple[float, str]:
    """Seconds of a phase's rounds of tasks, each time it comes about, and their limit."""
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
    """Return the largest share of so many tasks over the mean one: a worker with one piece more is waited for."""
    return math.ceil(pieces / tasks) * tasks / pieces


def most_useful_workers(workers: Sequence[int], seconds: Sequence[float]) -> int:
    """Return the fewest workers beyond which none of the larger numbers saves a tenth of the time.

    Parameters
    ----------
    workers, seconds : sequences
        Rising numbers of workers, and what each takes.
    """
    for number, count in enumerate(workers):
        if min(seconds[number:]) > (1.0 - WORTHWHILE_SHARE) * seconds[number]:
            return count
    return workers[-1]
