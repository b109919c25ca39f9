"""Descent along gradients: kernel conjugate gradient, kernel gradient descent, and conjugate gradients on parameters.

In the inner product of the RKHS the gradient has the coefficients g = w l'(y, f) + lambda alpha (Ratliff and Bagnell
2007, equation 5). One kernel product an iteration: the values f, the direction's image K h and hence every point of the
line are known from it, so the line search is exact and free of kernel evaluations. On parameters the gradient is K g,
whose line takes a second product. Fenchel's dual gives the bound from below, with which the driver knows when to stop.

The squared loss has closed forms: `dkgp.solvers.conjugate.kernel_cg`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.solvers.base import PhaseClock
from dkgp.solvers.conjugate.kernel_cg import ratio
from dkgp.solvers.risk.method import RiskMethod, descend, descend_or_settle
from dkgp.solvers.risk.state import RiskState
from dkgp.solvers.state import nothing


@dataclass
class DescentState(RiskState):
    """A descent between two iterations.

    - `direction`, `image` (n, p): coefficients h of the search direction, and K h; empty before the first.
    - `before`, `square` (n, p) and (q,): the gradient that the direction was made from (g, or K g on parameters), and
      its squared norm.
    """

    saved = (*RiskState.saved, "direction", "image", "before", "square")

    direction: FloatArray = field(default_factory=nothing)
    image: FloatArray = field(default_factory=nothing)
    before: FloatArray = field(default_factory=nothing)
    square: FloatArray = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class RiskConjugateGradient(RiskMethod[DescentState]):
    """Kernel conjugate gradients for a convex risk, one full kernel product an iteration for all targets.

    References
    ----------
    N. Ratliff and J. A. Bagnell, Kernel Conjugate Gradient for Fast Kernel Machines (2007), Algorithm 1.
    """

    name = "kcg"
    state_type = DescentState

    def advance(self, operator: KernelOperator, state: DescentState) -> dict[str, float]:
        """One iteration, in place; seconds by phase."""
        clock, slope = PhaseClock(), state.gradient
        slope_image = state.image_of_gradient(operator)
        clock.lap("update")
        self.turn(state, slope, slope_image)
        line, steepest = (state.direction, state.image), (-slope, -slope_image)
        length = 1.0 / self.risk.regularisation
        state.direction, state.image = descend_or_settle(state, line, slope_image, steepest, length)
        state.before, state.square = slope, self.risk.inner(slope, slope_image)
        state.iteration += 1
        clock.lap("line search")
        return clock.seconds

    def turn(self, state: DescentState, slope: FloatArray, slope_image: FloatArray) -> None:
        """Turn the direction towards the gradient; K h follows from K g, so that one product does."""
        if not state.direction.size:
            state.direction, state.image = -slope, -slope_image
            return
        # eta = <g_new - g, g_new>_K / <g, g>_K (line 8).
        eta = np.maximum(ratio(self.risk.inner(slope - state.before, slope_image), state.square), 0.0)
        state.direction, state.image = eta * state.direction - slope, eta * state.image - slope_image
        uphill = self.risk.inner(slope, state.image) >= 0.0
        state.direction = np.where(uphill, -slope, state.direction)
        state.image = np.where(uphill, -slope_image, state.image)


@dataclass(frozen=True)
class RiskGradientDescent(RiskConjugateGradient):
    """Kernel gradient descent: the same without a memory of directions (Ratliff and Bagnell 2007, section 2.4)."""

    name = "gradient"

    def turn(self, state: DescentState, slope: FloatArray, slope_image: FloatArray) -> None:
        """Go along the gradient."""
        state.direction, state.image = -slope, -slope_image


@dataclass(frozen=True)
class RiskParameterConjugateGradient(RiskMethod[DescentState]):
    """Conjugate gradients on the risk's parameters, gradient K g: what kernel CG is compared with.

    Two products an iteration, and a condition number that has K's as a factor more. It is here to be measured.

    References
    ----------
    N. Ratliff and J. A. Bagnell (2007), sections 3 and 5.
    """

    name = "paramcg"
    state_type = DescentState

    def advance(self, operator: KernelOperator, state: DescentState) -> dict[str, float]:
        """One iteration, in place; seconds by phase."""
        clock, gradient = PhaseClock(), state.gradient
        slope = state.image_of_gradient(operator)
        if not state.direction.size:
            state.direction = -slope
        else:
            eta = ratio(self.risk.inner(slope - state.before, slope), state.square)
            state.direction = np.maximum(eta, 0.0) * state.direction - slope
            uphill = self.risk.inner(slope, state.direction) >= 0.0
            state.direction = np.where(uphill, -slope, state.direction)
        state.image = state.product(operator, state.direction)
        clock.lap("update")
        state.before, state.square = slope, self.risk.inner(slope, slope)
        step = descend(state, (state.direction, state.image))
        if state.precision == "single" and ((step == 0.0) & (self.risk.inner(gradient, gradient) > 0.0)).any():
            state.precision = "double"
        state.iteration += 1
        clock.lap("line search")
        return clock.seconds
