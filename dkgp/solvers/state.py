"""The common part of every method's state: alpha, the gradient, how it was computed, and where the solve stands."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.solvers.measures import Sums, weight_of
from dkgp.solvers.stopping import Progress


def nothing() -> FloatArray:
    """An array that is not there yet."""
    return np.zeros((0, 0))


@dataclass
class SolverState:
    """A solve between two rounds.

    - `saved`, `counted`: the arrays and the numbers that a checkpoint holds, by the name of their attribute.
    - `alpha`, `gradient`, `rhs` (n, p): the solution so far, g = Kbar alpha - y by the solver's recursion, and y.
    - `iteration`, `columns`: rounds done and kernel columns evaluated for them.
    - `precision`: of the tiles of the coming rounds.
    - `exact`: whether `gradient` is one float64 product with alpha as it is, or with alpha before a step that a product
      in the same pass gave the share of, and no other step's share was added to it since.
    - `stepped` (n, p): |P| |A| of that step P A, for the roundings that it adds; empty where there was none.
    - `moved` (p,): sum of squared float32 steps in alpha since the gradient was last computed in float64; what its
      drift grows with.
    - `risk_width`: how far the regularised risk is from its least at most, by a bound that the solver knows of besides
      ||g||^2 / 2, targets added up; infinite where it knows of none.
    - `verified`: where the solve stood, before any step that came with it, when a recursion's gradient was last
      computed anew.
    - `stuck`: whether the last round, in float64, changed nothing that a next one would start from.
    - `needed_fall`: by how much the gradient must still fall, as the driver notes before a round; see
      `StoppingRule.needed_fall`.
    """

    saved: ClassVar[tuple[str, ...]] = ("alpha", "gradient", "moved")
    counted: ClassVar[tuple[str, ...]] = ("iteration", "columns", "precision", "exact", "risk_width")

    alpha: FloatArray
    gradient: FloatArray
    rhs: FloatArray
    iteration: int = 0
    columns: int = 0
    precision: Precision = "single"
    exact: bool = False
    stepped: FloatArray = field(default_factory=nothing)
    moved: FloatArray = field(default_factory=lambda: np.zeros(1))
    risk_width: float = math.inf
    verified: Progress | None = None
    stuck: bool = False
    needed_fall: float = math.inf

    def begin(self, operator: KernelOperator, warm: bool, gradient: FloatArray | None) -> None:
        """Find the gradient at the start: -y at alpha = 0; at a warm start a float64 product where it is not given."""
        if not warm:
            self.gradient = -self.rhs
        else:
            self.gradient = operator.matmat(self.alpha) - self.rhs if gradient is None else gradient.copy()
        self.moved = np.zeros(self.rhs.shape[1])
        # A gradient that is given may be of several products, in whatever order.
        self.exact = not warm or gradient is None

    def note_step(self, squared_norm: FloatArray) -> None:
        """Count a step in alpha, squared norms (p,), towards the gradient's drift, where its image is float32.

        In float64 a recursion drifts too, if far less, and no bound on it is kept.
        """
        self.exact, self.stepped = False, nothing()
        if self.precision == "single":
            self.moved = self.moved + squared_norm

    def arrays(self) -> dict[str, FloatArray]:
        """Arrays of a checkpoint."""
        stepped = {"stepped": self.stepped} if self.stepped.size else {}
        return {name: getattr(self, name) for name in self.saved} | stepped

    def metadata(self) -> dict[str, Any]:
        """Scalars of a checkpoint."""
        numbers = {name: getattr(self, name) for name in self.counted}
        return {**numbers, "risk_width": self.risk_width if math.isfinite(self.risk_width) else None}

    def read(self, arrays: dict[str, FloatArray], metadata: dict[str, Any]) -> None:
        """Take over a checkpoint's arrays and scalars."""
        for name in self.saved:
            setattr(self, name, arrays[name])
        self.stepped = arrays.get("stepped", self.stepped)
        numbers = {"risk_width": None, **metadata}  # older checkpoints have none
        for name in self.counted:
            if name in numbers or name in SolverState.counted:  # nor have they all of a method's own: these begin anew
                setattr(self, name, numbers[name])
        if numbers["risk_width"] is None:
            self.risk_width = math.inf

    def renew_gradient(self, operator: KernelOperator) -> None:
        """Compute the gradient anew in float64; it stays exact until a step."""
        self.take_gradient(operator, operator.matmat(self.alpha) - self.rhs)

    def take_gradient(self, operator: KernelOperator, gradient: FloatArray) -> None:
        """Go on from a gradient that was computed anew in float64, and note where that says the solve stood."""
        recursion = not self.exact
        if self.precision == "single":  # so is what the solver's own bound was evaluated in
            self.risk_width = math.inf
        self.gradient = gradient
        self.moved = np.zeros(gradient.shape[1])
        self.exact, self.stepped = True, nothing()
        self.verified = self.measured(operator) if recursion else None

    def sums(self, operator: KernelOperator) -> Sums:
        """Return the sums over the samples that tell where the solve stands."""
        weight = weight_of(operator.noise, operator.noise_variance)
        return Sums.of(self.alpha, self.gradient, self.rhs, weight)

    def measured(self, operator: KernelOperator) -> Progress:
        """Return where the solve stands; seconds and kernel entries are the record's to count."""
        sums = self.sums(operator)
        squares, weighed, objective = sums.squares, sums.weighed, sums.objective
        norms, scale = np.sqrt(squares), self._scale
        # Bounds on the least of Q = R - ||y||^2 / 2, targets added up; half the squared gradient lies between them.
        # By sample, the noise weighs the squares: R = (y - f)' W (y - f) / 2 + s2 alpha' K alpha / 2, s2 its least and
        # W = diag(s2 / s2_i), so that y - f = D alpha - g gives R + s2 f(alpha) = g' W g / 2, as with one variance.
        weight = weight_of(operator.noise, operator.noise_variance)
        at_zero = weight @ self.rhs**2 if weight.size else scale**2
        lower = -operator.noise_variance * float(np.sum(objective)) - 0.5 * float(np.sum(at_zero))
        width = 0.5 * float(np.sum(weighed))
        if self.risk_width < width:
            lower, width = lower + (width - self.risk_width), self.risk_width
        middle = 0.5 * (abs(lower) + abs(lower + width))
        return Progress(
            iteration=self.iteration,
            column_passes=self.columns / operator.n,
            kernel_evaluations=0,
            seconds=0.0,
            gradient_inf_norm=sums.largest,
            gradient_norm=float(np.max(norms, initial=0.0)),
            relative_residual=float(np.max(np.divide(norms, scale, out=np.zeros_like(norms), where=scale > 0.0))),
            objective=float(np.sum(objective)),
            objective_gap_bound=float(np.sum(weighed)) / (2.0 * operator.noise_variance),
            duality_gap=width / middle if middle > 0.0 else (0.0 if width == 0.0 else math.inf),
        )

    @cached_property
    def _scale(self) -> FloatArray:
        return np.asarray(np.linalg.norm(self.rhs, axis=0))
