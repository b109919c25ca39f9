"""The base of every method for a risk: its problem, how it begins, and what a checkpoint of it must match."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.solvers.base import Method
from dkgp.solvers.risk.line_search import line_minima
from dkgp.solvers.risk.problem import Risk
from dkgp.solvers.risk.state import RiskState

__all__ = ["RiskMethod", "descend"]

State = TypeVar("State", bound=RiskState)


@dataclass(frozen=True)
class RiskMethod(Method[State], Generic[State]):
    """A method for a risk.

    Parameters
    ----------
    risk : Risk
    precision : {"mixed", "double"}
        "mixed" takes float32 kernel tiles and lets the driver verify in float64: bounds on the way are as good as
        float32 is, those at the end are evaluated anew.
    """

    risk: Risk
    precision: Literal["mixed", "double"] = "mixed"

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types."""
        return {**super().settings(), **self.risk.settings()}

    def equip(self, operator: KernelOperator, state: State) -> None:
        """Tell the state what is minimised."""
        state.risk = self.risk


def descend(state: RiskState, direction: FloatArray, image: FloatArray) -> FloatArray:
    """Go to the least risk along a direction (n, p) with its image K h; return the steps, (q,)."""
    step = line_minima(state.risk, *state.here, direction, image)
    state.move(step, direction, image)
    return step
