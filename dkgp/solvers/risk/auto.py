"""The method "auto": kernel conjugate gradients, and Newton's method where they would take long.

They begin alike, and which one goes on is found out on the way: from the tenth iteration on the last ones' gain says
how many products conjugate gradients would still take to the gap that is asked for. Beyond `MOST_PRODUCTS` Newton's
method takes over where it stands, once and for all. Its factor and the algebra of its steps cost about as many, and it
takes a sixteenth to an eighth of theirs where there are hundreds (docs/experiments.md). Counts and bounds decide, and
nothing that is timed: a run comes to the same bits wherever it runs.

A step that its factor does not serve hands over to conjugate gradients from where it has come to. They take a quarter
of the time that factors of the whole matrix would take, and go on as long as they are foretold to arrive sooner than
these; then Newton's steps are solved by these, where they fit into memory. Where they do not, Newton's method comes
back after a while, and has half as many products as conjugate gradients have taken.

Not among the choices: majorisation (above Newton's count where lambda is large, and far above where it is small),
gradient descent and conjugate gradients on parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dkgp.operators.base import KernelOperator
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.solvers.risk.newton import PATIENCE, NewtonState, RiskNewton
from dkgp.solvers.risk.whole import WholeCurvature, whole_products

# Iterations that are looked at: the best of the later half against the best of the earlier one.
WINDOW = 10
# Products that conjugate gradients may still need, for Newton's method not to take over.
MOST_PRODUCTS = 40
# What conjugate gradients have taken over may take, as a share of the whole matrix's factors, whatever is foretold:
# widths go up and down.
LEAST_SHARE_OF_WHOLE = 0.25
# What Newton's steps may take beside conjugate gradients, as a share of their products, where a step has failed and no
# factors of the whole matrix are to come.
MOST_SHARE_OF_STEPS = 0.5
# Where the stopping rule does not say by how much the gradient must fall.
USUAL_GAP = 1e-4


@dataclass
class AutoState(NewtonState):
    """A minimisation between two rounds.

    - `widths`: <g, g>_K / (2 lambda), problems added up, before each of the last iterations of conjugate gradients.
    - `projected`: products that these would still have taken, as it was last found.
    - `steps`: whether Newton's method has taken over.
    - `handed`: iterations of conjugate gradients before Newton's method handed over to them, with factors of the whole
      matrix to come; -1 where it has not.
    """

    counted = (*NewtonState.counted, "widths", "projected", "steps", "handed")

    widths: list[float] = field(default_factory=list)
    projected: float | None = None
    steps: bool = False
    handed: int = -1

    @property
    def choice(self) -> dict[str, Any]:
        """The figures that the choice rests on, in plain JSON types; `reason` where a method handed over."""
        told = {}
        if self.whole:
            told["reason"] = (
                "a low-rank factor was beyond this penalty: steps by factors of the whole matrix, in float64"
            )
        elif self.failures and not self.steps:
            told["reason"] = (
                "a low-rank factor was beyond this penalty: conjugate gradients went on from where it came to"
            )
        return {
            **told,
            "method": "newton" if self.steps else "kcg",
            "iterations": self.descents,
            "projected_products": self.projected,
            "most_products": MOST_PRODUCTS,
            "failed_steps": self.failures,
            "whole_matrix": self.whole,
        }

    def note_width(self) -> None:
        """Take in what the last iteration came to, and project what is left."""
        width = float(np.sum(self.width))
        if not math.isfinite(width):
            return
        self.widths = [*self.widths[1 - WINDOW :], width]
        if len(self.widths) < WINDOW:
            return
        early, late = min(self.widths[: WINDOW // 2]), min(self.widths[WINDOW // 2 :])
        fall = self._fall(late)
        if fall <= 1.0:
            self.projected = 0.0
        elif late >= early:
            self.projected = math.inf
        else:
            self.projected = math.log(fall) / (math.log(early / late) / (WINDOW / 2))

    def _fall(self, width: float) -> float:
        """By how much a width must fall."""
        risk, gap = float(np.sum(self.risks)), float(np.sum(self.risks - self.bound))
        if not math.isfinite(self.needed_fall):
            return width / (USUAL_GAP * risk) if risk > 0.0 else 1.0
        # The gap may be below the width, by an earlier bound; the rule tells by how much it must fall.
        return self.needed_fall**2 * (max(width / gap, 1.0) if gap > 0.0 else 1.0)


@dataclass(frozen=True)
class RiskAuto(RiskNewton):
    """Kernel conjugate gradients, and Newton's method where these would take long.

    - `risk`, `precision`, `rank`, `seed`: see `RiskNewton`.
    """

    name = "auto"
    state_type = AutoState

    def _is_far(self, operator: KernelOperator, state: NewtonState) -> bool:
        """True while conjugate gradients go on, and again after a step that took too long."""
        assert isinstance(state, AutoState)
        if state.search.size:
            return False
        if state.steps and self._take_too_much(state):
            least = math.ceil((state.iteration - state.descents) / MOST_SHARE_OF_STEPS)
            state.until = max(least, state.descents + PATIENCE)
        if state.steps and state.descents < state.until:
            state.steps, state.widths = False, []
        if state.steps:
            return False
        # Without a preconditioner Newton's method takes more products, not fewer.
        if state.descents and isinstance(operator, BlockedKernelOperator) and self.rank != 0:
            state.note_width()
            most = self._most_products(operator, state)
            if state.descents >= state.until and state.projected is not None and state.projected > most:
                state.steps = True
                if state.handed >= 0:
                    state.take_the_whole()
                return False
        state.descents += 1
        return True

    def _most_products(self, operator: KernelOperator, state: AutoState) -> float:
        """Products that conjugate gradients may still need, for Newton's method not to take over."""
        if state.handed < 0:
            return MOST_PRODUCTS
        return max(MOST_PRODUCTS, self._whole_products(operator, state) - (state.descents - state.handed))

    def _take_too_much(self, state: AutoState) -> bool:
        """True where steps that succeed, by a little each, have had more than their share of the products."""
        if not state.failures or state.whole or state.handed >= 0 or state.descents < state.until:
            return False
        return state.iteration - state.descents > MOST_SHARE_OF_STEPS * state.descents

    def _whole_products(self, operator: KernelOperator, state: NewtonState) -> float:
        return whole_products(operator.n, operator.kernel.n_features, state.rhs.shape[1], self.risk.loss.coupled)

    def _note_failure(self, operator: KernelOperator, state: NewtonState) -> None:
        """Let conjugate gradients go on, and factors of the whole matrix after them."""
        assert isinstance(state, AutoState)
        if state.whole or not WholeCurvature.fits(operator, state.rhs.shape[1], self.risk.loss.coupled):
            super()._note_failure(operator, state)
            return
        state.steps, state.widths, state.projected, state.handed = False, [], None, state.descents
        state.until = state.descents + math.ceil(LEAST_SHARE_OF_WHOLE * self._whole_products(operator, state))
        state.failures, state.poor = state.failures + 1, 0
