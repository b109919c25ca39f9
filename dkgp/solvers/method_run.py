"""The run of a linear method: rounds in float32, verified by a gradient in float64.

Float32 tiles serve a solve twice over: they take half the time, and their error is bounded if the gradient is one
float64 product with alpha as it is. Three things can go wrong with them, and `PrecisionPolicy` answers each: the
recursion's gradient drifts from the true one (it is computed anew), float32 rounds come no closer (the solve goes on in
float64), or they break down altogether (it begins again in float64).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.threads import require_single_threaded_blas, single_threaded_blas
from dkgp.data.stores.checkpoint import Checkpoint
from dkgp.errors import InputError, NumericalError
from dkgp.limits import should_finish
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.solvers.base import Clock, Method, SolverState, nothing
from dkgp.solvers.driver import NOBODY, Iteration, Loop, Watch
from dkgp.solvers.stopping import OUT_OF_TIME, Progress, Standstill, StoppingRule, StopReason, stands_still

State = TypeVar("State", bound=SolverState)

# A float32 recursion's gradient drifts from the true one by about 2.3e-7 times the rms kernel entry times the norm of
# all steps taken, and by about five times that at the worst sample: measured on kin40k and Friedman1, n = 10,000 to
# 40,000.
DRIFT_PER_STEP = 5 * 2.3e-7
# Nearly all of alpha's length is walked in the first rounds. Once the gradient has fallen to ten times their drift it
# is computed anew, and the drift of the remaining, short steps stays far below.
LARGEST_DRIFT_SHARE = 0.1
# If rounds can compute the gradient anew, the last one does so: the drift until then may be up to this share of the
# tolerance.
LARGEST_DRIFT_AT_THE_END = 0.3
# The next round is taken to meet the tolerance where as large a step as the last ones were on average does with so much
# to spare.
FORESEEN = 0.7
# The first round's fall is the larger: the next one leaves so many times as large a share (Friedman1 and a wave
# in two dimensions, low-rank factors, n = 8,000: 3 to 8 times where the first round leaves 1e-4 to .02).
AFTER_THE_FIRST = 8.0
# A verification in float64 that does not take the gradient below this share of the last one's has met its rounding.
LEAST_GAIN = 0.5
# A gradient that is so much larger than the recursion's says that the recursion is not to be believed.
SURPRISE = 2.0
# Larger by this much, it says that the rounds' approximate products are too loose for the weights.
DECEPTION = 10.0


def opens_in_double(operator: KernelOperator, state: SolverState, length: float, second: float) -> bool:
    """True if the first product is best one of float64, of a step of about so much `length`, the largest of a target.

    Nearly all of alpha's length is walked in it. In float32 it would take the gradient from the true one by more than
    the tolerance allows, so that a float64 product has to follow before the last one. Where the `second`, in units of
    its length, and later ones take it by less, that product takes the first one's place.
    """
    if state.iteration or state.precision == "double" or operator.approximate:
        return False
    if not (math.isfinite(length) and state.needed_fall > 0.0):
        return False
    tolerance = float(np.abs(state.gradient).max(initial=0.0)) / state.needed_fall
    return only_the_first_drifts(operator.typical_entry(), length, second, tolerance)


def only_the_first_drifts(typical_entry: float, length: float, second: float, tolerance: float) -> bool:
    """True if a first float32 step of a length drifts by more than max|g| may at the end, and the others do not."""
    allowed, drift = LARGEST_DRIFT_AT_THE_END * tolerance, DRIFT_PER_STEP * typical_entry * length
    return second * drift <= allowed < drift


class PrecisionPolicy:
    """Float32 rounds for as long as they do; `refreshes` counts the gradients computed in float64."""

    def __init__(self, operator: KernelOperator) -> None:
        self.refreshes = 0
        self._operator = operator
        self._sharpenings = 0
        self._switched = False
        self._typical_entry: float | None = None
        self._single_failed = False
        self._verified = math.inf
        self._foresight, self._foreseen = True, False
        self._start_objective = self._true_objective = self._start_norm = 0.0
        self._in_double = False

    def begin(self, state: SolverState, start: Progress) -> None:
        """Note where it starts, the objective that no round may exceed, and whether any is to be one of float32."""
        self._start_objective = self._true_objective = start.objective
        self._start_norm = start.gradient_inf_norm
        self._in_double = state.precision == "double"

    def broke_down(self, state: SolverState, progress: Progress) -> bool:
        """True if the recursion's numbers cannot be true: not finite, or an objective above the start's."""
        highest = self._start_objective + 1e-6 * abs(self._start_objective) + 1e-9 * state.rhs.size
        if self._operator.approximate:
            # The objective before and the objective now each rest on one product with alpha, off by so much.
            highest += self._operator.error_bound * float(np.abs(state.alpha).sum())
        return not (math.isfinite(progress.gradient_inf_norm) and progress.objective <= highest)

    def start_over(self, state: State, progress: Progress, start: Callable[[], State]) -> State:
        """Begin again in float64 after float32 broke down altogether, the rounds so far counted.

        Raises `NumericalError`: since it began, all was float64.
        """
        if self._in_double:
            raise NumericalError(
                f"the solve broke down in float64 after {state.iteration} rounds (max|g| = "
                f"{progress.gradient_inf_norm:.3g}, objective {progress.objective:.3g}). Raise the noise variance, and "
                "check that inputs and targets are standardised"
            )
        self._single_failed = self._in_double = True
        fresh = start()
        fresh.iteration, fresh.columns, fresh.precision = state.iteration, state.columns, "double"
        return fresh

    def is_due(self, state: SolverState, progress: Progress, falls: Sequence[float]) -> bool:
        """True if the gradient is to be computed anew before a rule is met: it has drifted, or the end is foreseen.

        Where float32 rounds were given up it is, before any of float64: they may have led anywhere.

        `falls` is by how much the gradient had to fall after each of the last rounds, of a method whose rounds can
        compute it anew on their way. Then drift is no matter where the end comes before it is, and the round that
        should meet the tolerance, extrapolated from the last ones, is to be such a round.
        """
        if state.precision == "double" and state.moved.any():
            return True
        drift, norm, self._foreseen = self._drift(state), progress.gradient_inf_norm, False
        if drift > LARGEST_DRIFT_SHARE * norm and not (
            falls and drift * state.needed_fall <= LARGEST_DRIFT_AT_THE_END * norm
        ):
            return True
        share = 1.0
        if len(falls) == 1 and self._start_norm:
            share = AFTER_THE_FIRST * norm / self._start_norm
        elif len(falls) > 1:
            share = (falls[-1] / falls[0]) ** (1.0 / (len(falls) - 1))
        self._foreseen = self._foresight and share < 1.0 and falls[-1] * share <= FORESEEN
        return self._foreseen

    def _drift(self, state: SolverState) -> float:
        """Estimate the drift of the gradient by float32 steps, at the worst sample."""
        if not state.moved.any():
            return 0.0
        if self._typical_entry is None:
            self._typical_entry = self._operator.typical_entry()
        return DRIFT_PER_STEP * self._typical_entry * math.sqrt(float(state.moved.max()))

    def must_verify(self, state: SolverState) -> bool:
        """True if a float64 product is needed to tell where the solve stands.

        The errors of an approximate operator's products have added up in the recursion; those of one are bounded.
        """
        return not state.exact or self._operator.approximate

    def note_renewal(self, state: SolverState, progress: Progress) -> None:
        """Count a gradient computed in float64; where rounds gained nothing since the last one, leave float32 for good.

        Approximate products are made more accurate first. On nearly equal samples with little noise, float32 kernel
        entries need not form a positive definite matrix with s2 on its diagonal, and descent along its columns need not
        descend.
        """
        self.refreshes += 1
        if state.verified is not None and not state.verified.objective < self._true_objective:
            self._single_failed = self._single_failed or state.precision == "double" or not self._sharpen()
        self._true_objective = progress.objective
        self._switched = self._single_failed and state.precision == "single"
        if self._single_failed:
            state.precision = "double"

    def _sharpen(self) -> bool:
        """Make the rounds' products more accurate, where they are approximate and can be."""
        if not self._operator.sharpen():
            return False
        self._sharpenings, self._verified = self._sharpenings + 1, math.inf
        return True

    def stalled(self, state: SolverState, true: Progress, believed: Progress, claimed: bool) -> StopReason | None:
        """After a verification that failed: go on in float64 where float32 comes no closer; give up where it does not.

        Float32 may be the reason too if the solver's bound on the risk was evaluated in it. If the recursion had not
        `claimed` success, and the gradient is close to the `believed` one, the recursion is not to blame; but a
        projection of the end that failed is not made again.
        """
        verified = state.verified or true
        deceived = verified.gradient_norm > DECEPTION * believed.gradient_norm
        if self._switched or (state.precision == "single" and deceived and self._sharpen()):
            self._verified = math.inf
            return None
        if not claimed and verified.gradient_norm <= SURPRISE * believed.gradient_norm:
            self._foresight = self._foresight and not self._foreseen
            return None
        before, self._verified = self._verified, verified.gradient_norm
        if self._verified < LEAST_GAIN * before:
            return None
        if state.precision == "single":
            if not self._sharpen():
                state.precision, self._verified = "double", math.inf
            return None
        return StopReason(
            "rounding",
            False,
            f"float64 does not come closer: max|g| = {true.gradient_inf_norm:.3g}, recomputed, is above "
            "the tolerance, though the solver's own recursion is below it",
            self.advice("raise the tolerance, or the noise variance"),
        )

    def advice(self, otherwise: str) -> str:
        """Return the advice where float64 products come no closer; `otherwise` where each evaluates every entry."""
        off = self._operator.error_bound if self._operator.approximate else 0.0
        if off == 0.0:
            return otherwise
        return f"products are within {off:.2g}: give a smaller `product_error`, auto or none, or raise the tolerance"

    @property
    def was_deceived(self) -> bool:
        """True if a recursion of the rounds' precision met the tolerance, and the gradient computed anew did not."""
        return math.isfinite(self._verified)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, for a checkpoint."""
        return {
            "refreshes": self.refreshes,
            "single_failed": self._single_failed,
            "verified": self._verified if math.isfinite(self._verified) else None,
            "foresight": self._foresight,
            "sharpenings": self._sharpenings,
            "in_double": self._in_double,
            "start_objective": self._start_objective,
            "start_norm": self._start_norm,
            "true_objective": self._true_objective,
            "typical_entry": self._typical_entry,
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Take over the numbers of a checkpoint."""
        self.refreshes = saved["refreshes"]
        self._single_failed = saved["single_failed"]
        self._verified = math.inf if saved.get("verified") is None else saved["verified"]
        self._foresight = saved.get("foresight", True)
        for _ in range(saved.get("sharpenings", 0)):
            self._sharpenings += self._operator.sharpen()
        self._in_double = saved.get("in_double", False)
        self._start_objective, self._true_objective = saved["start_objective"], saved["true_objective"]
        self._start_norm = saved.get("start_norm", 0.0)
        self._typical_entry = saved.get("typical_entry")


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
        """Seconds of all rounds, earlier runs included, by the parts that the solver distinguishes."""
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
    """The history of a solve, with its clock and its count of kernel entries."""

    def __init__(self, operator: KernelOperator) -> None:
        self.history: list[Progress] = []
        self._operator, self._clock = operator, Clock()
        self._evaluations_before = 0
        self._evaluations_at_start = operator.kernel_evaluations

    def measure(self, state: SolverState, timings: dict[str, float] | None = None) -> Progress:
        """Return the record of the current state, with the time and the kernel entries so far."""
        standing = state.measured(self._operator)
        seconds, evaluations = self._clock.seconds, self._evaluations()
        return replace(standing, seconds=seconds, kernel_evaluations=evaluations, timings=timings or {})

    def needed_falls(self, rule: StoppingRule, rounds: int = 4) -> list[float]:
        """Return by how much the gradient had to fall after each of the last rounds, the current one among them."""
        return [rule.needed_fall(progress) for progress in self.history[-rounds:]]

    def rounds_left(self, rule: StoppingRule) -> float:
        """Extrapolate the fall over the last rounds to the number of rounds to come; zero after too few rounds.

        Never more than twice the rounds so far: a residual that goes up and down tells little.
        """
        falls = self.needed_falls(rule, LEAST_FORETOLD + MOST_FORETOLD_BY)
        if len(falls) < LEAST_FORETOLD or not all(1.0 < fall < math.inf for fall in (falls[0], falls[-1])):
            return 0.0
        fall, most = math.log(falls[0] / falls[-1]) / (len(falls) - 1), 2.0 * len(self.history)
        return most if fall * most <= math.log(falls[-1]) else math.log(falls[-1]) / fall

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types, for a checkpoint."""
        return {
            "history": [progress.to_json() for progress in self.history],
            "seconds": self._clock.seconds,
            "kernel_evaluations": self._evaluations(),
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Continue the record of a checkpoint.

        The time that restoring took is not counted: the interrupted run counted it when it started.
        """
        self.history = [Progress(**record) for record in saved["history"]]
        self._clock.add_earlier(saved["seconds"])
        self._evaluations_before = saved["kernel_evaluations"]
        self._evaluations_at_start = self._operator.kernel_evaluations

    def _evaluations(self) -> int:
        return self._evaluations_before + self._operator.kernel_evaluations - self._evaluations_at_start


class MethodRun(Iteration, Generic[State]):
    """A method's run on one right-hand side or target matrix (n, p), verified in float64.

    The method's settings are resolved. `initial` and `initial_gradient` are those of `dkgp.solvers.solve`.
    """

    keeps_last = False
    state: State

    def __init__(
        self,
        operator: KernelOperator,
        rhs: FloatArray,
        method: Method[State],
        rule: StoppingRule,
        initial: FloatArray | None = None,
        initial_gradient: FloatArray | None = None,
    ) -> None:
        self._operator, self._rhs, self._method, self._rule = operator, rhs, method, rule
        self._begin = partial(method.start, operator, rhs, initial, initial_gradient)
        self.precision, self._standstill = PrecisionPolicy(operator), Standstill(rule)
        self._record, self._renews = Record(operator), False
        self._reason: StopReason | None = None
        self._verified = False  # the reason to stop is that of a gradient computed anew

    @property
    def iteration(self) -> int:  # type: ignore[override]
        """Rounds done."""
        return self.state.iteration

    @property
    def history(self) -> list[Progress]:  # type: ignore[override]
        """Records of the rounds."""
        return self._record.history

    def start(self) -> None:
        """Take the gradient at the start."""
        self.state = self._begin()
        self.progress = self._record.measure(self.state)
        self.precision.begin(self.state, self.progress)
        self._open()

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint."""
        metadata = checkpoint.metadata
        self.state = self._method.restore(self._operator, self._rhs, checkpoint.arrays, metadata["state"])
        self._record.restore(metadata["loop"])
        self.precision.restore(metadata["loop"])
        self._standstill.restore(metadata["loop"])
        self.progress = self._record.measure(self.state)
        self._open()

    def _open(self) -> None:
        progress = self.progress
        if not math.isfinite(progress.gradient_inf_norm) or not math.isfinite(progress.relative_residual):
            raise InputError("the right-hand side or warm start is too large to work with; standardise the targets")
        self._renews = self._method.renews_in_rounds(self._operator)
        self._reason, self.state.needed_fall = self._rule.check(progress), self._rule.needed_fall(progress)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of a checkpoint."""
        return self.state.arrays()

    def metadata(self) -> dict[str, Any]:
        """Return the rest of a checkpoint."""
        return self.state.metadata()

    def loop_metadata(self) -> dict[str, Any]:
        """Return the history, the precision policy and the standstill rule."""
        return {**self._record.to_json(), **self.precision.to_json(), **self._standstill.to_json()}

    def stop(self) -> StopReason | None:
        """Return the reason to stop."""
        return self._reason

    def advance(self) -> None:
        """Do a round of the method, or compute the gradient anew if it has drifted or the end is foreseen."""
        state, record, precision = self.state, self._record, self.precision
        if precision.is_due(state, self.progress, record.needed_falls(self._rule) if self._renews else ()):
            self._reason = self._renew(None)
            self._verified = self._reason is not None
            return
        self._operator.foresee(len(record.history), record.rounds_left(self._rule))
        timings = self._method.advance(self._operator, state)
        progress = record.measure(state, timings)
        if precision.broke_down(state, progress):
            self._start_over(progress)
            progress = record.measure(self.state, timings)
        elif self._renews and state.exact:
            precision.note_renewal(state, progress)
        self.progress = progress
        record.history.append(progress)
        reason, self.state.needed_fall = self._rule.check(progress), self._rule.needed_fall(progress)
        self._reason = reason or self._standing_still() or (OUT_OF_TIME if should_finish() else None)

    def verify(self, reason: StopReason) -> StopReason | None:
        """Check a reason to stop by a gradient computed in float64, unless the gradient is one."""
        if not self._verified and self.precision.must_verify(self.state):
            self._reason = self._renew(reason)
        return self._reason

    def finish(self, reason: StopReason) -> None:
        """Release the method's resources."""
        if reason.converged:
            self._method.finish(self.state)

    def _renew(self, claimed: StopReason | None) -> StopReason | None:
        """Compute the gradient anew and return the reason to stop by it; `claimed` is the one of the recursion."""
        state, precision, believed = self.state, self.precision, self.progress
        stopped_short = claimed is not None and not claimed.converged
        moving = None
        if self._renews and not stopped_short:
            moving = partial(_short_of, None if claimed is None else self._rule)
        progress = self._record.measure(state, self._method.renew(self._operator, state, moving))
        if moving is not None:
            self.history.append(progress)
        precision.note_renewal(state, progress)
        if (state.verified or progress).gradient_norm > SURPRISE * believed.gradient_norm:
            self._standstill.begin_anew()
        self.progress = progress
        if not stopped_short and precision.broke_down(state, progress):
            self._start_over(progress)
            self.progress = self._record.measure(self.state)
            reason = None
        elif stopped_short:
            reason = self._rule.check(progress) or claimed
        else:
            reason = (
                self._rule.check(progress)
                or precision.stalled(state, progress, believed, claimed is not None)
                or self._standing_still()
            )
        self.state.needed_fall = self._rule.needed_fall(self.progress)
        return reason

    def _start_over(self, progress: Progress) -> None:
        self.state = self.precision.start_over(self.state, progress, self._begin)
        self._standstill.begin_anew()

    def _standing_still(self) -> StopReason | None:
        """Return a reason to stop a solve that comes no closer; float32 rounds that do not are given up first."""
        state, precision = self.state, self.precision
        if state.stuck:
            return stands_still(self.progress, "no further round would change anything")
        reason = self._standstill.check(self.progress)
        if reason is None:
            return None
        if state.precision == "single":
            state.precision = "double"
            self._standstill.begin_anew()
            return None
        reason = replace(reason, advice=precision.advice(reason.advice))
        if precision.was_deceived:
            return replace(reason, rule="rounding", message=f"float64 does not come closer: {reason.message}")
        return reason


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
    """Run a method, its settings resolved, for a right-hand side or targets (n, p); return the solution and the state.

    `dkgp.solvers.solve` documents the other arguments and the errors.
    """
    loop = Loop(watch, method.settings())
    with single_threaded_blas(), operator.watched(loop.pass_on):
        require_single_threaded_blas("the coordinator")
        solve = MethodRun(operator, rhs, method, rule, initial, initial_gradient)
        reason = loop.run(solve)
        state = solve.state
        return Solution(
            state.alpha,
            state.gradient,
            reason,
            solve.progress,
            solve.history,
            method.settings(),
            solve.precision.refreshes,
            state.stepped,
            # Of the last product, which was with alpha.
            last_errors(operator),
        ), state


def last_errors(operator: KernelOperator) -> FloatArray:
    """Return bounds on the errors of an operator's last product, (n, t); empty if it was exact but for rounding."""
    return operator.error_rows if operator.error_rows.any() else nothing()


def _short_of(rule: StoppingRule | None, progress: Progress) -> bool:
    """Return True unless the rule is met at this progress: a step may then take max|g| above the tolerance again."""
    reason = None if rule is None else rule.check(progress)
    return reason is None or not reason.converged
