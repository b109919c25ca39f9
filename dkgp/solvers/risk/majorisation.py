"""Majorisation: every step a regularised least squares problem, which dkgp's own solvers solve.

No curvature of the loss is above c, so that a quadratic of curvature c at f lies above the risk and meets it there. Its
least has (K + D) alpha = f - l'(y, f) / c with D = lambda / (c w_i) by sample, one matrix for all steps: for the
logistic loss s2 = 4 lambda, for softmax 2 lambda and all classes in one solve (Boehning 1992). The solve begins at
alpha itself, where its gradient is g / (c w), without a product, and goes on until a share of that is left; its result
is a direction whose image is known from its gradient, along which the risk is searched exactly. Steps are made
conjugate to the last one, as nonlinear conjugate gradients do with a preconditioner: no risk is above the one before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dkgp.operators.base import FloatArray, KernelOperator, Variances
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.solvers.base import Clock, Solver, SolverState, nothing
from dkgp.solvers.conjugate.gradient import ConjugateGradient, ConjugateGradientState
from dkgp.solvers.conjugate.kernel_cg import ratio
from dkgp.solvers.registry import build_solver
from dkgp.solvers.risk.method import DescentState, RiskMethod, descend_or_settle
from dkgp.solvers.risk.problem import Risk

# A step is solved until so much of its gradient is left, or for so many rounds.
SHARE_LEFT, MOST_ROUNDS = 0.1, 200
# A sample that hardly counts is majorised as if it counted this share of the one that counts most: still from above.
LEAST_WEIGHT = 1e-6


@dataclass
class MajorisationState(DescentState):
    """A minimisation between two rounds, in the course of a step; `square` is of `before` and the majoriser's own step.

    - `rounds`: rounds of the step under way.
    - `gradient_product` (n, p): K g of the step under way.
    - `step`: the solve under way, or the last one: of conjugate gradients factor and directions serve on.
    - `shifted`: K + D.
    """

    saved = (*DescentState.saved, "gradient_product")
    counted = (*DescentState.counted, "rounds")
    parts = ("step",)

    rounds: int = 0
    gradient_product: FloatArray = field(default_factory=nothing)
    step: SolverState | None = None
    shifted: KernelOperator = field(init=False)

    def renew_gradient(self, operator: KernelOperator) -> None:
        """Compute values and gradient anew; the step under way, which began from the ones before, begins anew."""
        super().renew_gradient(operator)
        self.rounds = 0

    @property
    def least_squares_targets(self) -> FloatArray:
        """f - l'(y, f) / c: (n, p)."""
        return self.values - majoriser(self.risk, len(self.rhs))[1] * self.risk.slope(self.rhs, self.values)


def majoriser(risk: Risk, n: int) -> tuple[Variances, FloatArray | float]:
    """Return D, and 1 / (c w) that slopes are multiplied by: numbers, or by sample (n,) and (n, 1)."""
    bound = risk.loss.curvature_bound
    if risk.weights is None:
        return risk.regularisation / bound, 1.0 / bound
    weights = np.maximum(risk.weights, LEAST_WEIGHT * risk.weights.max())
    return risk.regularisation / (bound * weights), (1.0 / (bound * weights))[:, None]


@dataclass(frozen=True)
class RiskMajorisation(RiskMethod[MajorisationState]):
    """Majorisation by least squares, each problem solved by another solver.

    Parameters
    ----------
    risk, precision
        See `RiskMethod`.
    solver : Solver, optional
        Of the least squares problems: conjugate gradients with an automatic factor by default, or without one where the
        operator's rounds cannot build it. Its precision is this method's.

    References
    ----------
    D. Boehning, Multinomial logistic regression algorithm (1992).
    """

    solver: Solver | None = None

    name = "majorisation"
    state_type = MajorisationState

    def resolved(self, n: int, d: int, p: int = 1) -> RiskMajorisation:
        """Return the settings with the solver, and its own automatic choices, made."""
        solver = self.solver or build_solver("pcg", precision=self.precision)
        return replace(self, solver=solver.resolved(n, d, p))

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types."""
        return {**super().settings(), "step": None if self.solver is None else self.solver.settings()}

    def equip(self, operator: KernelOperator, state: MajorisationState) -> None:
        """Give the state its risk, and build K + D."""
        super().equip(operator, state)
        state.shifted = operator.with_noise(majoriser(self.risk, operator.n)[0])

    def restore(
        self, operator: KernelOperator, rhs: FloatArray, arrays: dict[str, FloatArray], metadata: dict[str, Any]
    ) -> MajorisationState:
        """State from a checkpoint, with the solve under way."""
        state = super().restore(operator, rhs, arrays, metadata)
        if metadata.get("step") is not None:
            saved = {name.removeprefix("step_"): array for name, array in arrays.items() if name.startswith("step_")}
            targets = state.least_squares_targets
            state.step = self._solver(operator).restore(state.shifted, targets, saved, metadata["step"])
        return state

    def _solver(self, operator: KernelOperator) -> Solver:
        assert self.solver is not None, "settings are resolved before a run"
        if isinstance(operator, BlockedKernelOperator) or not isinstance(self.solver, ConjugateGradient):
            return self.solver
        return replace(self.solver, preconditioner=None)

    def advance(self, operator: KernelOperator, state: MajorisationState) -> dict[str, float]:
        """One round of the solve under way, and the step where that is its last, in place; seconds by phase."""
        solver, clock = self._solver(operator), Clock()
        if state.rounds == 0:
            state.gradient_product = state.image_of_gradient(operator)
            self._begin(solver, state)
        step = state.step
        assert step is not None
        clock.lap("product")
        before = step.columns
        clock.count(solver.advance(state.shifted, step))
        state.columns += step.columns - before
        state.rounds += 1
        if self._is_done(state, step):
            self._step(state, step)
        clock.lap("line search")
        state.iteration += 1
        return clock.parts

    def _begin(self, solver: Solver, state: MajorisationState) -> None:
        """Begin a solve at alpha, where its gradient is known; conjugate gradients keep their factor and directions."""
        targets, gradient = state.least_squares_targets, majoriser(self.risk, len(state.rhs))[1] * state.gradient
        step = state.step
        if not isinstance(step, ConjugateGradientState):
            step = solver.start(state.shifted, targets, state.alpha, gradient)
        step.alpha, step.gradient, step.rhs = state.alpha.copy(), gradient, targets
        step.precision, step.moved, step.exact = state.precision, np.zeros(targets.shape[1]), False
        state.step = step

    def _is_done(self, state: MajorisationState, step: SolverState) -> bool:
        """True if little of the gradient is left in every problem, or the solve stands still."""
        if step.precision == "double" and state.precision == "single":  # it has found that float32 does no more
            state.precision = "double"
        remaining = step.gradient / majoriser(self.risk, len(state.rhs))[1]
        squares, first = self.risk.inner(remaining, remaining), self.risk.inner(state.gradient, state.gradient)
        return state.rounds >= MOST_ROUNDS or bool((squares <= SHARE_LEFT**2 * first).all())

    def _step(self, state: MajorisationState, step: SolverState) -> None:
        """Go to the least risk along the solve's step, made conjugate to the last one."""
        risk, gradient, product = self.risk, state.gradient, state.gradient_product
        direction = step.alpha - state.alpha
        # K alpha = gradient + targets - D alpha, of the solve.
        direction_image = step.gradient + step.rhs - state.shifted.noise_times(step.alpha) - state.values
        overlap = risk.inner(gradient, direction_image)
        if state.direction.size:
            eta = np.maximum(ratio(risk.inner(state.before, direction_image) - overlap, state.square), 0.0)
            eta = np.where(risk.inner(gradient, direction_image + eta * state.image) < 0.0, eta, 0.0)
            state.direction, state.image = direction + eta * state.direction, direction_image + eta * state.image
        else:
            state.direction, state.image = direction, direction_image
        line, steepest = (state.direction, state.image), (-gradient, -product)
        state.direction, state.image = descend_or_settle(state, line, product, steepest, 1.0 / risk.regularisation)
        state.before, state.square = gradient, -overlap
        if state.precision == "single":
            state.moved = np.maximum(state.moved, step.moved)
        state.rounds, state.gradient_product = 0, nothing()
