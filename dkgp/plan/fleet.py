"""A solve's phases laid out over workers: seconds by phase, and what they would be shorter without.

A phase's work is cut into tasks, at most as many as it has pieces; a round of them lasts as long as the longer of the
computing and of their messages, which pass the scheduler one after another, and a round trip besides. The coordinator's
own part follows, or runs beside the phase before it. Threads of one machine share it: with k of them busy they run at
the speed-up measured for k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkgp.operators.full_products import round_length, side_of, tasks_a_thread
from dkgp.plan.network import Network
from dkgp.solvers.prices import Phase, Prices, Sizes, Work, product_phase

# More workers are worth having while they save this share of the time.
WORTHWHILE_SHARE = 0.1
# Tasks of a product whose results are not fetched before the last one is done, at most.
LAST_TASKS = 3
# Rounds, and workers, that are looked at to see what tasks carry.
LOOKED_AT = 8


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
    for phase in phases:
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

    Computing and messages run beside each other, but share the cores of one machine. `total` are the workers' seconds
    and the messages', `seconds` those and the coordinator's.
    """

    computing: float  # of the workers, side by side
    scheduling: float  # of all tasks, at the scheduler and the coordinator
    moving: float  # of all bytes, through the coordinator's link
    ends: float  # the first tasks' way out, the last ones' way back (or their work), and a round trip
    rounds: int
    tasks: int
    moved_bytes: float
    disturbing: float = 0.0  # of the computing's seconds, what messages take of the same cores
    all_at_work: bool = True  # whether there is a piece for each thread
    adding: float = 0.0  # of the coordinator: the pieces' products, one after another

    @property
    def total(self) -> float:
        """Seconds until the last result has come."""
        return max(self.computing, self.scheduling + self.moving) + self.ends

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
            **{name: getattr(self, name) for name in ("rounds", "tasks", "moved_bytes", "limit")},
        }


def _paired(phase: Phase, prices: Prices, fleet: Fleet) -> Parts:
    """A product's rounds, as `dkgp.operators.full_products` cuts them; two are under way at any time."""
    blocks = (math.isqrt(8 * phase.pieces + 1) - 1) // 2
    side = side_of(blocks)
    ranges = -(-blocks // side)
    pieces = ranges * (ranges + 1) // 2
    # Each range of blocks comes back once for every range.
    block_bytes = phase.returned / (ranges * blocks)
    work = phase.shared
    entries = (work.entries + work.double_entries + work.kept + work.filled) / phase.pieces * side**2
    threads, network = fleet.threads, fleet.network
    length = min(pieces, round_length(side, block_bytes, threads))
    rounds = math.ceil(pieces / length)
    tasks = min(length, threads * tasks_a_thread(length, entries, threads))
    sent = _ranges_named(ranges, length, tasks, fleet.workers) * blocks / ranges * block_bytes
    returned = phase.returned / (rounds * tasks)
    scheduling = rounds * tasks * (network.task_seconds + network.submit_seconds)
    moving = rounds * tasks * sent / network.bytes_per_second + phase.returned / network.bytes_per_second
    uneven = math.ceil(pieces / min(threads, pieces)) * min(threads, pieces) / pieces
    computing = prices.seconds(work) * uneven / fleet.workers_speed(min(threads, pieces))
    disturbing = 0.0
    if fleet.one_machine and threads >= len(fleet.speedups):  # messages take the workers' cores
        disturbing = (scheduling + moving) / fleet.speedups[-1]
    computing, messages = computing + disturbing, scheduling + moving
    # Each worker's first task goes out before the others', and what the last ones bring is waited for; where messages
    # take longer, both are among them, and the last task's work is waited for.
    first = fleet.workers * (network.task_seconds + network.submit_seconds + sent / network.bytes_per_second)
    last = min(tasks, LAST_TASKS) * returned / network.bytes_per_second
    at_last = computing * min(1.0, threads / (rounds * tasks))
    with_ends = max(computing + min(first, messages) + last, messages + at_last)
    ends = with_ends - max(computing, messages) + network.round_trip_seconds
    return Parts(
        computing,
        scheduling,
        moving,
        ends,
        rounds,
        rounds * tasks,
        rounds * tasks * sent + phase.returned,
        disturbing,
        threads <= pieces,
    )


def _ranges_named(ranges: int, length: int, tasks: int, workers: int) -> float:
    """Ranges of blocks that a task's pieces name, on average over some of the rounds.

    A worker has every so many-th piece (`dkgp.cluster.executors.homes`), of which a task has consecutive ones.
    """
    rows, columns = np.tril_indices(ranges)
    starts = range(0, len(rows), length)
    named = []
    for start in starts[:: -(-len(starts) // LOOKED_AT)]:
        numbers = np.arange(start, min(start + length, len(rows)))
        for worker in range(min(workers, LOOKED_AT)):
            held = numbers[numbers % workers == worker]
            parts = np.array_split(held, max(1, min(tasks // workers, len(held))))
            named += [len(np.union1d(rows[part], columns[part])) for part in parts]
    return float(np.mean(named))


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
    # A worker with one piece more than another is waited for.
    uneven = math.ceil(phase.pieces / tasks) * tasks / phase.pieces
    computing = prices.seconds(phase.shared) * uneven / fleet.workers_speed(tasks)
    moved = phase.sent + phase.returned + messages * phase.sent_to_each
    sending = messages * (network.task_seconds + network.submit_seconds) + moved / network.bytes_per_second
    waiting = rounds * network.round_trip_seconds
    if computing >= sending + waiting:
        limit = "workers" if tasks == fleet.threads else "tasks"
    else:
        limit = "messages"
    return max(computing, sending) + waiting, limit


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
