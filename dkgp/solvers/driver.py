"""The loop that every method shares: round after round, until a rule says stop and float64 agrees.

It knows no method and no problem: what is minimised, and how, is said by a `Method` and its `SolverState`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dkgp.cluster.threads import require_single_threaded_blas, single_threaded_blas
from dkgp.errors import InputError
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.solvers.base import Method
from dkgp.solvers.checkpointing import Checkpoints, Interruption
from dkgp.solvers.precision import SURPRISE, PrecisionPolicy
from dkgp.solvers.state import SolverState, nothing
from dkgp.solvers.stopping import Progress, Standstill, StoppingRule, StopReason, stands_still
from dkgp.solvers.watch import NOBODY, Watch

State = TypeVar("State", bound=SolverState)

# Rounds that it takes to foretell how many are left, and how many more are looked at.
LEAST_FORETOLD, MOST_FORETOLD_BY = 3, 9


@dataclass(frozen=True)
class Solution:
    """The result of a solve.

    Attributes
    ----------
    alpha : (n, p) float64
    gradient : (n, p) float64
        Kbar alpha - y, evaluated anew in float64 after the last step, or with it.
    reason : StopReason
        Why it stopped; `reason.converged` says whether the tolerance was met by the float64 gradient.
    progress : Progress
        The last record, from the float64 gradient.
    history : list of Progress
    solver : dict
        Settings, automatic choices made.
    refreshes : int
        Full float64 passes that were needed.
    stepped : (n, p) float64
        |P| |A| of the step that came with it, see `SolverState.stepped`; empty where there was none.
    product_errors : (n, p) float64
        Bounds on the errors of the entries of `gradient`, where the operator is approximate; empty elsewhere.
    """

    alpha: FloatArray
    gradient: FloatArray
    reason: StopReason
    progress: Progress
    history: list[Progress]
    solver: dict[str, Any]
    refreshes: int
    stepped: FloatArray
    product_errors: FloatArray = field(default_factory=nothing)

    @property
    def product_error(self) -> float:
        """Greatest of `product_errors`; zero where there are none."""
        return float(self.product_errors.max(initial=0.0))

    @property
    def converged(self) -> bool:
        """True if the tolerance was met."""
        return self.reason.converged

    @property
    def seconds_by_part(self) -> dict[str, float]:
        """Seconds of all rounds, earlier runs of a resumed solve included, by the parts that the solver tells apart."""
        parts: dict[str, float] = {}
        for progress in self.history:
            for name, seconds in progress.timings.items():
                parts[name] = parts.get(name, 0.0) + seconds
        return parts

    def summary(self) -> dict[str, Any]:
        """The figures of the solve, as summaries of training tell them."""
        progress = self.progress
        return {
            **self.reason.summary(),
            "iterations": progress.iteration,
            "column_passes": progress.column_passes,
            "kernel_evaluations": progress.kernel_evaluations,
            "refreshes": self.refreshes,
            "seconds": progress.seconds,
            "seconds_by_part": {name: round(seconds, 3) for name, seconds in self.seconds_by_part.items()},
            "gradient_inf_norm": progress.gradient_inf_norm,
            "relative_residual": progress.relative_residual,
        }


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

    def needed_falls(self, rule: StoppingRule, rounds: int = 4) -> list[float]:
        """By how much the gradient had to fall after each of the last rounds, the current one among them."""
        return [rule.needed_fall(progress) for progress in self.history[-rounds:]]

    def rounds_left(self, rule: StoppingRule) -> float:
        """Rounds that the fall over the last ones foretells; zero where nothing does yet.

        Never more than twice those that there were: a residual that goes up and down tells little.
        """
        falls = self.needed_falls(rule, LEAST_FORETOLD + MOST_FORETOLD_BY)
        if len(falls) < LEAST_FORETOLD or not all(1.0 < fall < math.inf for fall in (falls[0], falls[-1])):
            return 0.0
        fall, most = math.log(falls[0] / falls[-1]) / (len(falls) - 1), 2.0 * len(self.history)
        return most if fall * most <= math.log(falls[-1]) else math.log(falls[-1]) / fall

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


# Rounds that overflow break down: their measures are not finite, which starts over in float64, and then is an error.
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def run(
    operator: KernelOperator,
    rhs: FloatArray,
    method: Method[State],
    rule: StoppingRule,
    *,
    initial: FloatArray | None = None,
    initial_gradient: FloatArray | None = None,
    watch: Watch = NOBODY,
) -> tuple[Solution, State]:
    """Run a method, its settings resolved, for a right-hand side or targets (n, p); return what it ends in, and how.

    The other arguments are those of `dkgp.solvers.solve`, which says what is raised.
    """
    record, precision, standstill = Record(operator, watch.callback), PrecisionPolicy(operator), Standstill(rule)
    checkpoints = Checkpoints(
        watch.checkpointing,
        method.settings(),
        lambda: {**record.to_json(), **precision.to_json(), **standstill.to_json()},
    )
    interruption = Interruption(watch.interrupted, checkpoints)
    with single_threaded_blas(), operator.watched(interruption.heed_within, watch.within):
        require_single_threaded_blas("the coordinator")
        start = partial(method.start, operator, rhs, initial, initial_gradient)

        checkpoint = checkpoints.latest()
        if checkpoint is None:
            state = start()
        else:
            state = method.restore(operator, rhs, checkpoint.arrays, checkpoint.metadata["state"])
            record.resume(checkpoint.metadata["loop"])
            precision.resume(checkpoint.metadata["loop"])
            standstill.resume(checkpoint.metadata["loop"])
        progress = record.measure(state)
        if checkpoint is None:
            precision.begin(state, progress)
        del checkpoint  # its arrays are the state's, or have served
        if not math.isfinite(progress.gradient_inf_norm) or not math.isfinite(progress.relative_residual):
            raise InputError("the right-hand side or warm start is too large to work with; standardise the targets")

        renews = method.renews_in_rounds(operator)
        reason = rule.check(progress)
        while True:
            state.needed_fall = rule.needed_fall(progress)
            while reason is None and not precision.is_due(state, progress, record.needed_falls(rule) if renews else ()):
                interruption.heed(state)
                operator.foresee(len(record.history), record.rounds_left(rule))
                timings = method.advance(operator, state)
                progress = record.measure(state, timings)
                if precision.broke_down(state, progress):
                    state = precision.start_over(state, progress, start)
                    progress = record.measure(state, timings)
                    standstill.begin_anew()
                elif renews and state.exact:
                    precision.note_renewal(state, progress)
                record.add(progress)
                reason, state.needed_fall = rule.check(progress), rule.needed_fall(progress)
                reason = reason or _standing_still(standstill, precision, state, progress)
                checkpoints.save_if_due(state)
            # Before the gradient is verified: a run that resumes from here ends in the bits of one that never stopped.
            stopped_short = reason is not None and not reason.converged
            if stopped_short:
                checkpoints.save(state)
            if reason is None:
                interruption.heed(state)
            elif not precision.must_verify(state):
                break
            believed, claimed = progress, reason is not None
            moving = partial(_short_of, rule if claimed else None) if renews and not stopped_short else None
            progress = record.measure(state, method.renew(operator, state, moving))
            if moving is not None:
                record.add(progress)
            precision.note_renewal(state, progress)
            if (state.verified or progress).gradient_norm > SURPRISE * believed.gradient_norm:
                standstill.begin_anew()
            if not stopped_short and precision.broke_down(state, progress):
                state = precision.start_over(state, progress, start)
                progress, reason = record.measure(state), None
                standstill.begin_anew()
                checkpoints.save_if_due(state)
                continue
            reason = rule.check(progress) or (
                reason
                if stopped_short
                else precision.stalled(state, progress, believed, claimed)
                or _standing_still(standstill, precision, state, progress)
            )
            if reason is not None:
                break
            checkpoints.save_if_due(state)
        if reason.converged:
            method.finish(state)
        elif not stopped_short:
            checkpoints.save(state)
        return Solution(
            state.alpha,
            state.gradient,
            reason,
            progress,
            record.history,
            method.settings(),
            precision.refreshes,
            state.stepped,
            # Of the last product, which was with alpha.
            last_errors(operator),
        ), state


def last_errors(operator: KernelOperator) -> FloatArray:
    """Return bounds on the errors of an operator's last product, (n, t); empty where it was exact but for rounding."""
    return operator.error_rows if operator.error_rows.any() else nothing()


def _standing_still(
    standstill: Standstill, precision: PrecisionPolicy, state: SolverState, progress: Progress
) -> StopReason | None:
    """Return a reason to stop a solve that comes no closer; float32 rounds that do not are given up first."""
    if state.stuck:
        return stands_still(progress, "no further round would change anything")
    reason = standstill.check(progress)
    if reason is not None and state.precision == "single":
        state.precision = "double"
        standstill.begin_anew()
        return None
    if reason is not None:
        reason = replace(reason, advice=precision.advice(reason.advice))
    if reason is not None and precision.was_deceived:
        return replace(reason, rule="rounding", message=f"float64 does not come closer: {reason.message}")
    return reason


def _short_of(rule: StoppingRule | None, stands: Progress) -> bool:
    """True unless the rule is met where the solve stands: then a step may take max|g| above the tolerance again."""
    reason = None if rule is None else rule.check(stands)
    return reason is None or not reason.converged
