"""The history of a solve: where it stood after each round and what it has taken, earlier runs included."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dkgp.operators.base import KernelOperator
from dkgp.solvers.state import SolverState
from dkgp.solvers.stopping import Progress, StoppingRule

# Rounds that it takes to foretell how many are left, and how many more are looked at.
LEAST_FORETOLD, MOST_FORETOLD_BY = 3, 9


class Record:
    """The history of a solve, with its clock and its count of kernel entries; `callback` hears of every round."""

    def __init__(self, operator: KernelOperator, callback: Callable[[Progress], None] | None) -> None:
        self.history: list[Progress] = []
        self._operator, self._callback = operator, callback
        self._seconds_before = 0.0
        self._evaluations_before = 0
        self._started = time.perf_counter()
        self._evaluations_at_start = operator.kernel_evaluations

    def measure(self, state: SolverState, timings: dict[str, float] | None = None) -> Progress:
        """Return where a solve stands, and what it has taken to get there."""
        standing = state.measured(self._operator)
        return replace(standing, seconds=self._seconds(), kernel_evaluations=self._evaluations(), timings=timings or {})

    def add(self, progress: Progress) -> None:
        """Keep the record of a round, and tell of it."""
        self.history.append(progress)
        if self._callback is not None:
            self._callback(progress)

    def lefts(self, rule: StoppingRule, rounds: int = 4) -> list[float]:
        """By how much the gradient had to fall after each of the last rounds, the current one among them."""
        return [rule.left(progress) for progress in self.history[-rounds:]]

    def rounds_left(self, rule: StoppingRule) -> float:
        """Rounds that the fall over the last ones foretells; zero where nothing does yet.

        Never more than twice those that there were: a residual that goes up and down tells little.
        """
        lefts = self.lefts(rule, LEAST_FORETOLD + MOST_FORETOLD_BY)
        if len(lefts) < LEAST_FORETOLD or not all(1.0 < left < math.inf for left in (lefts[0], lefts[-1])):
            return 0.0
        fall, most = math.log(lefts[0] / lefts[-1]) / (len(lefts) - 1), 2.0 * len(self.history)
        return most if fall * most <= math.log(lefts[-1]) else math.log(lefts[-1]) / fall

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, for a checkpoint."""
        return {
            "history": [progress.to_json() for progress in self.history],
            "seconds": self._seconds(),
            "kernel_evaluations": self._evaluations(),
        }

    def resume(self, saved: dict[str, Any]) -> None:
        """Go on from a checkpoint's record.

        What restoring took is not counted: the run that was interrupted has counted it when it started.
        """
        self.history = [Progress(**record) for record in saved["history"]]
        self._seconds_before = saved["seconds"]
        self._evaluations_before = saved["kernel_evaluations"]
        self._evaluations_at_start = self._operator.kernel_evaluations

    def _seconds(self) -> float:
        return self._seconds_before + time.perf_counter() - self._started

    def _evaluations(self) -> int:
        return self._evaluations_before + self._operator.kernel_evaluations - self._evaluations_at_start
