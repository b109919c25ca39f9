"""The base of every method for a risk: its problem, how it begins, and what a checkpoint of it must match."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np

from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.solvers.base import Method
from dkgp.solvers.conjugate.kernel_cg import NULL_SHARE
from dkgp.solvers.risk.line_search import line_minima
from dkgp.solvers.risk.problem import Risk
from dkgp.solvers.risk.state import RiskState

State = TypeVar("State", bound=RiskState)


@dataclass(frozen=True)
class RiskMethod(Method[State], Generic[State]):
    """A method for a risk.

    - `precision`: "mixed" takes float32 kernel tiles and lets the driver verify in float64: bounds on the way are as
      good as float32 is, those at the end are evaluated anew.
    """

    risk: Risk
    precision: Literal["mixed", "double"] = "mixed"

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types."""
        return {**super().settings(), **self.risk.settings()}

    def equip(self, operator: KernelOperator, state: State) -> None:
        """Tell the state what is minimised."""
        state.risk = self.risk


Line: TypeAlias = tuple[FloatArray, FloatArray]
"""A direction h and its image K h, (n, p) each."""


def descend(state: RiskState, line: Line) -> FloatArray:
    """Go to the least risk along a line; return the steps, (q,)."""
    step = line_minima(state.risk, *state.here, *line)
    state.move(step, *line)
    return step


def descend_or_settle(
    state: RiskState, line: Line, gradient_image: FloatArray, steepest: Line, length: float
) -> tuple[FloatArray, FloatArray]:
    """Go to the least risk along a line, or where K g vanishes to alpha = -w l'(y, f) / lambda; return the line taken.

    There the function is the best there is, and its coefficients are not. `length` times `steepest`, which is -g and
    its image up to a factor, leads to them. A search along a line that finds nothing says the same of float64 products;
    of float32 ones, that K g is their rounding.
    """
    risk, gradient = state.risk, state.gradient
    step = line_minima(risk, *state.here, *line)
    squares = risk.inner(gradient, gradient)
    stuck = (squares > 0.0) & (step == 0.0)
    if state.precision == "single" and stuck.any():
        state.precision = "double"
    else:
        lost = stuck | ((squares > 0.0) & (risk.inner(gradient, gradient_image) <= NULL_SHARE * squares))
        line = np.where(lost, steepest[0], line[0]), np.where(lost, steepest[1], line[1])
        step = np.where(lost, length, step)
    state.move(step, *line)
    return line
