"""What every iterative solver's state has in common: alpha, the gradient, and how the gradient was computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dkgp.kernels.tiles import Precision
from dkgp.operators.base import FloatArray

__all__ = ["SolverState"]


@dataclass
class SolverState:
    """A solve between two rounds.

    Attributes
    ----------
    alpha, gradient, rhs : (n, p) float64
        The solution so far, g = Kbar alpha - y by the solver's recursion, and y.
    iteration, columns : int
        Rounds done and kernel columns evaluated for them.
    precision : {"single", "double"}
        Of the tiles of the coming rounds.
    exact : bool
        Whether every contribution to `gradient` was evaluated in float64.
    """

    alpha: FloatArray
    gradient: FloatArray
    rhs: FloatArray
    iteration: int = 0
    columns: int = 0
    precision: Precision = "single"
    exact: bool = False

    def arrays(self) -> dict[str, FloatArray]:
        """Arrays of a checkpoint."""
        return {"alpha": self.alpha, "gradient": self.gradient}

    def metadata(self) -> dict[str, Any]:
        """Scalars of a checkpoint."""
        return {
            "iteration": self.iteration,
            "columns": self.columns,
            "precision": self.precision,
            "exact": self.exact,
        }

    def read_metadata(self, metadata: dict[str, Any]) -> None:
        """Take over a checkpoint's scalars."""
        self.iteration = int(metadata["iteration"])
        self.columns = int(metadata["columns"])
        self.precision = metadata["precision"]
        self.exact = bool(metadata["exact"])

    def renew_gradient(self, gradient: FloatArray, precision: Precision) -> None:
        """Continue from a gradient recomputed in float64, with tiles of `precision` from here on.

        It stays exact while all that is added to it is evaluated in float64 too.
        """
        self.gradient = gradient
        self.precision = precision
        self.exact = precision == "double"
