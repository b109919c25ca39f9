"""The layout of a run: each batch on a worker, or one batch after the other on all workers together.

Bits are the same either way. The forecast counts work and messages at nominal prices and times nothing, so that a run
is laid out alike every time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dkgp.solvers.conjugate.phases import Batches, shared_phases, variance_phases
from dkgp.solvers.prices import Phase, Prices, Sizes

# Products of a sample that a forecast counts on, in float32 and float64, with a block-Vecchia factor and without.
SEARCHED, UNSEARCHED = (4.0, 1.0), (0.0, 4.0)
# Seconds of a round of tasks, of each of its tasks, and of a byte through the coordinator's link, of 1 Gbit/s.
ROUND, TASK, BYTE = 0.02, 1.3e-3, 8e-9
# Tasks of a round for each thread, additions of their sums among them.
TASKS_A_THREAD = 8
# Share of the time that sharing a batch must save.
WORTHWHILE = 0.1


@dataclass(frozen=True)
class BatchLayout:
    """Seconds of a run by each layout, and the one that is taken."""

    batches: int
    workers: int
    alone: float  # with a batch a worker
    together: float  # with all workers on each batch

    @classmethod
    def of(cls, sizes: Sizes, batches: Batches, workers: int, threads: int) -> BatchLayout:
        """Forecast a run on `workers` processes with so many threads each; counts of products are nominal."""
        prices = Prices.nominal(sizes.d)
        return cls(
            batches.batches,
            workers,
            _seconds(variance_phases(sizes, batches), prices, workers, threads),
            _seconds(shared_phases(sizes, batches), prices, workers, threads),
        )

    @property
    def is_shared(self) -> bool:
        """True if all workers solve each batch together."""
        return self.workers > 1 and self.together < (1.0 - WORTHWHILE) * self.alone

    def __str__(self) -> str:
        counted = f"{self.batches:,} batch{'es' if self.batches > 1 else ''} on {self.workers:,} workers"
        taken, other = (self.together, self.alone) if self.is_shared else (self.alone, self.together)
        words = ("all workers share each batch", "a batch a worker")
        first, second = words if self.is_shared else words[::-1]
        return f"{counted}: {first}, about {taken:.2g} s ({second}: {other:.2g} s)"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"shared": self.is_shared, "alone_seconds": self.alone, "shared_seconds": self.together}


def _seconds(phases: Iterable[Phase], prices: Prices, workers: int, threads: int) -> float:
    """Seconds of phases in turn; a piece of work takes all threads of its process."""
    total = 0.0
    for phase in phases:
        at_work = min(workers, phase.pieces)
        share = math.ceil(phase.pieces / at_work) / phase.pieces
        of_each = prices.seconds(phase.each) + prices.seconds(phase.threaded)
        seconds = (prices.seconds(phase.shared) * share + of_each) / threads + prices.seconds(phase.alone)
        if phase.rounds:
            tasks = min(phase.pieces, TASKS_A_THREAD * workers * threads)
            moved = phase.sent + phase.returned + workers * phase.sent_to_each
            seconds += phase.rounds * (ROUND + TASK * tasks) + BYTE * moved
        total += phase.times * seconds
    return total
