"""The common part of every iterative solver's state: alpha, the gradient, and how the gradient was computed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dkgp.kernels.tiles.evaluator import Precision
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
        Whether `gradient` is one float64 product with alpha as it is, and no step's share was added to it since.
    moved : (p,) float64
        Sum of squared float32 steps in alpha since the gradient was last computed in float64; what its drift grows
        with.
    risk_width : float
        How far the regularised risk is from its least at most, by a bound that the solver knows of besides ||g||^2 / 2,
        targets added up; infinite where it knows of none.
    """

    alpha: FloatArray
    gradient: FloatArray
    rhs: FloatArray
    iteration: int = 0
    columns: int = 0
    precision: Precision = "single"
    exact: bool = False
    moved: FloatArray = field(default_factory=lambda: np.zeros(1))
    risk_width: float = math.inf

    def note_step(self, squared_norm: FloatArray) -> None:
        """Count a step in alpha, squared norms (p,), towards the gradient's drift, where its image is float32.

        In float64 a recursion drifts too, if far less, and no bound on it is kept.
        """
        self.exact = False
        if self.precision == "single":
            self.moved = self.moved + squared_norm

    def arrays(self) -> dict[str, FloatArray]:
        """Arrays of a checkpoint."""
        return {"alpha": self.alpha, "gradient": self.gradient, "moved": self.moved}

    def metadata(self) -> dict[str, Any]:
        """Scalars of a checkpoint."""
        return {
            "iteration": self.iteration,
            "columns": self.columns,
            "precision": self.precision,
            "exact": self.exact,
            "risk_width": self.risk_width if math.isfinite(self.risk_width) else None,
        }

    def read_metadata(self, metadata: dict[str, Any]) -> None:
        """Take over a checkpoint's scalars."""
        self.iteration = int(metadata["iteration"])
        self.columns = int(metadata["columns"])
        self.precision = metadata["precision"]
        self.exact = bool(metadata["exact"])
        width = metadata.get("risk_width")
        self.risk_width = math.inf if width is None else float(width)

    def renew_gradient(self, gradient: FloatArray, precision: Precision) -> None:
        """Continue from a gradient recomputed in float64, with tiles of `precision` from here on.

        It stays exact until the next step.
        """
        if self.precision == "single":  # so is what the solver's own bound was evaluated in
            self.risk_width = math.inf
        self.gradient = gradient
        self.moved = np.zeros(gradient.shape[1])
        self.precision = precision
        self.exact = True
