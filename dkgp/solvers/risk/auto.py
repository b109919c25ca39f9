"""The method "auto": kernel conjugate gradients, and Newton's method where they would take long.

They begin alike, and which one goes on is found out on the way: from the tenth iteration on the last ones' gain says
how many products conjugate gradients would still take to the gap that is asked for. Beyond `MOST_PRODUCTS` Newton's
method takes over where it stands, once and for all. Its factor and the algebra of its steps cost about as many, and it
takes a sixteenth to an eighth of theirs where there are hundreds (docs/experiments.md). Counts and bounds decide, and
nothing that is timed: a run comes to the same bits wherever it runs.

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
from dkgp.solvers.risk.newton import NewtonState, RiskNewton

# Iterations that are looked at: the best of the later half against the best of the earlier one.
WINDOW = 10
# Products that conjugate gradients may still need, for Newton's method not to take over.
MOST_PRODUCTS = 40
# Where the stopping rule does not say by how much the gradient must fall.
USUAL_GAP = 1e-4


@dataclass
class AutoState(NewtonState):
    """A minimisation between two rounds.

    - `widths`: <g, g>_K / (2 lambda), problems added up, before each of the last iterations of conjugate gradients.
    - `projected`: products that these would still have taken, as it was last found.
    - `steps`: whether Newton's method has taken over.
    """

    counted = (*NewtonState.counted, "widths", "projected", "steps")

    widths: list[float] = field(default_factory=list)
    projected: float | None = None
    steps: bool = False

    @property
    def choice(self) -> dict[str, Any]:
        """The figures that the choice rests on, in plain JSON types."""
        return {
            "method": "newton" if self.steps else "kcg",
            "iterations": self.descents,
            "projected_products": self.projected,
            "most_products": MOST_PRODUCTS,
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
        if state.steps and state.descents < state.until:
            state.steps, state.widths = False, []
        if state.steps:
            return False
        # Without a preconditioner Newton's method takes more products, not fewer.
        if state.descents and isinstance(operator, BlockedKernelOperator) and self.rank != 0:
            state.note_width()
            if state.descents >= state.until and state.projected is not None and state.projected > MOST_PRODUCTS:
                state.steps = True
                return False
        state.descents += 1
        return True
