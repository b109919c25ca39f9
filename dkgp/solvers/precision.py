"""Float32 rounds under a float64 gradient: when it is computed anew, and when float32 is given up.

Float32 tiles serve a solve twice over: they take half the time, and what they are off by is bounded where the gradient
is one float64 product with alpha as it is. Three things can go wrong with them, and each has its answer here: the
recursion's gradient drifts from the true one (it is computed anew), float32 rounds come no closer (the solve goes on
in float64), or they break down altogether (it begins again in float64).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from dkgp.errors import NumericalError
from dkgp.operators.base import KernelOperator
from dkgp.solvers.state import SolverState
from dkgp.solvers.stopping import Progress, StopReason

State = TypeVar("State", bound=SolverState)

# A float32 recursion's gradient drifts from the true one by about 2.3e-7 times the rms kernel entry times the norm of
# all steps taken, and by about five times that at the worst sample: measured on kin40k and Friedman1, n = 10,000 to
# 40,000.
DRIFT_PER_STEP = 5 * 2.3e-7
# Nearly all of alpha's length is walked in the first rounds. Once the gradient has fallen to ten times their drift it
# is computed anew, and what the remaining, short steps add to it stays far below.
LARGEST_DRIFT_SHARE = 0.1
# Of a method whose rounds can compute the gradient anew, the last one does so: what has drifted until then may be up to
# this share of what the tolerance allows.
LARGEST_DRIFT_AT_THE_END = 0.3
# The next round is taken to meet the tolerance where as large a step as the last ones were on average does with so much
# to spare.
FORESEEN = 0.7
# The first round's fall is the larger: what is left of the one after it is so many times as much (Friedman1 and a wave
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
            # Two products with alpha, each off by so much, say what it was and what it is.
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
        should meet the tolerance, by what the last ones gained, is to be such a round.
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
        """Estimate what float32 steps have taken the gradient from the true one by, at the worst sample."""
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

        Float32 it may be that does not, too, because what the solver knows of the risk was evaluated in it. Where the
        recursion had not `claimed` success, and the gradient is about what it was `believed` to be, there is nothing to
        blame it for; but what was foreseen in vain is not foreseen again.
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
            f"float64 does not come closer: max|g| = {true.gradient_inf_norm:.3g}, evaluated anew, is above the "
            "tolerance, though the solver's own recursion is below it",
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

    def resume(self, saved: dict[str, Any]) -> None:
        """Go on from what a checkpoint tells."""
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
