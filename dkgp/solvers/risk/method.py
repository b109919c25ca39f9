"""Methods for a risk: the state that they share, their base, and descent along gradients.

The state has the function, its values, and both bounds on the least risk. Values and gradient follow from recursions
between products, and are evaluated anew in float64 when the driver asks. Where products are approximate both bounds
give way by as much as the products may be off.

Descent is kernel conjugate gradient, kernel gradient descent, or conjugate gradients on parameters. In the inner
product of the RKHS the gradient has the coefficients g = w l'(y, f) + lambda alpha (Ratliff and Bagnell 2007, equation
5). One kernel product an iteration: the values f, the direction's image K h and hence every point of the line are known
from it, so the line search is exact and free of kernel evaluations. On parameters the gradient is K g, whose line takes
a second product. Fenchel's dual gives the bound from below, with which the driver knows when to stop.

The squared loss has closed forms: `dkgp.solvers.conjugate.kernel_cg`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np

from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.solvers.base import Clock, Method, SolverState, nothing
from dkgp.solvers.conjugate.kernel_cg import NULL_SHARE, kernel_product, ratio
from dkgp.solvers.risk.problem import Risk, line_minima
from dkgp.solvers.stopping import Progress

# To evaluate values and gradient anew takes two float64 products, after every round more than rounds of float64.
MOST_HASTY = 3


@dataclass
class RiskState(SolverState):
    """A minimisation between two rounds; `rhs` are the targets, `gradient` the functional gradient's coefficients.

    - `values` (n, p): f = K alpha, by recursion.
    - `gradient_image` (n, p): K g in float64 where it is known of g as it is; empty elsewhere.
    - `bound` (q,): the best bound from below so far.
    - `excess` (q,): by how much the risk may exceed its evaluation, where products are approximate.
    - `width` (q,): <g, g>_K / (2 lambda) as known last, and the share of approximate products; infinite
      before.
    - `doubt`: factor of a distance between products, doubled after each that float64 did not confirm.
    - `hasty`: float32 rounds in a row that each needed values evaluated anew, and at which `iteration` the
      last was.
    - `value_errors`, `image_errors` (n, p): bounds on the errors of the last entries of `values` and `gradient_image`
      that were evaluated anew; empty where products are exact.
    - `rounding`: by how much the distance that is proven exceeds that of `width`, by the risk's `proven`.
    """

    saved = (*SolverState.saved, "values", "gradient_image", "bound", "excess", "width")
    counted = (*SolverState.counted, "doubt", "hasty", "renewed", "rounding")

    risk: Risk = field(init=False)
    values: FloatArray = field(default_factory=nothing)
    gradient_image: FloatArray = field(default_factory=nothing)
    bound: FloatArray = field(default_factory=lambda: np.zeros(0))
    excess: FloatArray = field(default_factory=lambda: np.zeros(0))
    width: FloatArray = field(default_factory=lambda: np.zeros(0))
    doubt: float = 1.0
    hasty: int = 0
    renewed: int = -1
    value_errors: FloatArray = field(default_factory=nothing)
    image_errors: FloatArray = field(default_factory=nothing)
    rounding: float = 0.0

    @property
    def here(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Targets, alpha and values: the arguments of the risk."""
        return self.rhs, self.alpha, self.values

    @property
    def risks(self) -> FloatArray:
        """The risk by problem, (q,); an upper bound where products are approximate."""
        return self.risk.value(*self.here) + self.excess

    def begin(self, operator: KernelOperator, warm: bool, gradient: FloatArray | None) -> None:
        """Find the values at the start, which a given gradient does not tell: a warm start costs two products."""
        self.values = np.zeros_like(self.rhs)
        self.bound = self.risk.least_value(self.rhs)
        self.excess, self.width = np.zeros_like(self.bound), np.full_like(self.bound, np.inf)
        super().begin(operator, False, None)
        if warm:
            self.renew_gradient(operator)
        else:
            self.settle()

    def settle(self) -> None:
        """Let the gradient follow from alpha and the values."""
        self.gradient = self.risk.gradient(*self.here)
        self.gradient_image = nothing()

    def product(self, operator: KernelOperator, vectors: FloatArray) -> FloatArray:
        """K V in the precision of the round, counted: (n, t)."""
        self.columns += operator.n
        return kernel_product(operator, vectors, self.precision)

    def image_of_gradient(self, operator: KernelOperator) -> FloatArray:
        """K g, for which a product is taken where it is not known; the bound from below rises by it."""
        if self.gradient_image.size:
            return self.gradient_image
        image = self.product(operator, self.gradient)
        self.raise_bound(image)
        return image

    def raise_bound(self, gradient_image: FloatArray, excess: FloatArray | float = 0.0) -> None:
        """Take the better of the bounds that are known here, K g at hand, and that was known before."""
        self.width = self.risk.width(self.gradient, gradient_image)
        by_gradient = self.risk.value(*self.here) - self.width
        here = np.maximum(by_gradient, self.risk.lower_bound(*self.here)) - excess
        self.bound = np.maximum(self.bound, here)

    def move(self, step: FloatArray, direction: FloatArray, image: FloatArray) -> None:
        """Go so far along a direction (n, p) whose image is K h: alpha, values, and the gradient that follows."""
        self.alpha = self.alpha + step * direction
        self.values = self.values + step * image
        self.settle()
        self.note_step(np.einsum("ip,ip->p", direction, direction) * step * step)

    def renew_gradient(self, operator: KernelOperator) -> None:
        """Compute the values anew in float64, and the bound where it was evaluated in float32."""
        recursion = not self.exact
        self.hasty = self.hasty + 1 if self.precision == "single" and self.iteration == self.renewed + 1 else 0
        self.renewed = self.iteration
        if self.hasty >= MOST_HASTY:
            self.precision = "double"
        # ||g||_K goes up and down, and only that before the step is known: after a claim in vain the next comes later.
        if recursion and self.precision == "double":
            self.doubt *= 2.0
        if self.precision == "single" or self.moved.any() or operator.approximate:
            self.bound = self.risk.least_value(self.rhs)
        self.values = kernel_product(operator, self.alpha, "double")
        self.value_errors = _errors(operator)
        self.settle()
        self.gradient_image = kernel_product(operator, self.gradient, "double")
        self.image_errors = _errors(operator)
        self.excess, below = self._excess()
        self.raise_bound(self.gradient_image, below)
        # With R - D <= width + above + below, |f - f*|^2 + |f* - f_u|^2 <= 2 (R - D) / lambda about their middle.
        self.width = self.width + 2.0 * self.excess + 4.0 * below
        if self.value_errors.size or self.image_errors.size:
            self.width = np.minimum(self.width, self._width_by_length(operator))
        self.moved = np.zeros(self.alpha.shape[1])
        self.exact = True
        if self.risk.proven is not None:
            beyond = self.risk.proven(self) - self._distance
            self.rounding = max(0.0, beyond) if math.isfinite(beyond) else 0.0
        self.verified = self.measured(operator) if recursion else None

    def _excess(self) -> tuple[FloatArray, FloatArray]:
        """Bounds on how far the risk lies above its evaluation, and the dual below its own: (q,) each.

        Values are off by e, K g by e', both by row and column. By the bound c on curvatures l(f) <= l(f~) + |l'(f~)| e
        + c e^2 / 2, of a coupled loss summed over its columns, and |alpha'(f~ - f)| <= |alpha|'e. The dual at
        u = w l'(y, f~) is sum w l - u'f~ - u'K u / (2 lambda), which R - <g, g>_K / (2 lambda), as evaluated, exceeds
        by (lambda alpha / 2 + u)'(f~ - f) - g'e' / (2 lambda).
        """
        risk = self.risk
        first = second = below = np.zeros_like(self.bound)
        if self.value_errors.size:
            errors = self.value_errors
            pulls = risk.inner(np.abs(risk.slope(self.rhs, self.values)), errors)
            first = pulls + 0.5 * risk.regularisation * risk.inner(np.abs(self.alpha), errors)
            second = 0.5 * risk.loss.curvature_bound * risk.inner(risk.weighted(errors), errors)
        if self.image_errors.size:
            below = risk.inner(np.abs(self.gradient), self.image_errors) / (2.0 * risk.regularisation)
        return first + second, first + below

    def _width_by_length(self, operator: KernelOperator) -> FloatArray:
        """Return 2 lambda r^2 for a ball of radius r about f - g / (2 lambda) that has the minimiser: (q,).

        Here g is as evaluated. Values are off by e, K g by e', both by row and column. The curvature is at most c, so
        an entry of g is off by w_i c e_i at most, of a coupled loss a row by the length of the row e_i times w_i c; and
        the length of sum_i d_i k(., x_i) is at most sum_i |d_i| sqrt(k_ii). By so much the exact gradient may be
        longer, and the ball's centre be elsewhere. This is of the first order in e where the risk's own bounds are of
        the order sqrt(e).
        """
        risk = self.risk
        squares, away = risk.inner(self.gradient, self.gradient_image), np.zeros_like(self.bound)
        if self.value_errors.size:
            errors = self.value_errors
            errors = np.linalg.norm(errors, axis=1, keepdims=True) if risk.loss.coupled else errors
            away = risk.loss.curvature_bound * (np.sqrt(operator.diagonal()) @ risk.weighted(errors))
        if self.image_errors.size:
            squares = squares + risk.inner(np.abs(self.gradient), self.image_errors)
        length = np.sqrt(np.maximum(squares, 0.0)) + 2.0 * away
        return np.asarray(length**2 / (2.0 * risk.regularisation))

    @property
    def _distance(self) -> float:
        """Radius of the ball in which the function that has the least risk is, of the worst problem."""
        width = np.where(np.isfinite(self.width), self.width, self.risks - self.bound)
        return math.sqrt(float(np.max(np.maximum(width, 0.0))) / (2.0 * self.risk.regularisation))

    def measured(self, operator: KernelOperator) -> Progress:
        """Return where the minimisation stands: the objective is the risk, targets added up."""
        risk = float(np.sum(self.risks))
        below = float(np.sum(self.bound))
        at_zero = self.risk.slope(self.rhs, np.zeros_like(self.rhs))
        norms, scale = np.linalg.norm(self.gradient, axis=0), np.linalg.norm(at_zero, axis=0)
        size = max(abs(risk), abs(below))
        doubt = 1.0 if self.exact else self.doubt
        return Progress(
            iteration=self.iteration,
            column_passes=self.columns / operator.n,
            kernel_evaluations=0,
            seconds=0.0,
            gradient_inf_norm=float(np.max(np.abs(self.gradient))),
            gradient_norm=float(np.max(norms)),
            relative_residual=float(np.max(ratio(norms, scale))),
            objective=risk,
            objective_gap_bound=risk - below,
            duality_gap=(math.inf if math.isinf(size) else (risk - below) / size) if size > 0.0 else 0.0,
            distance=doubt * self._distance,
            rounding=self.rounding,
        )


def _errors(operator: KernelOperator) -> FloatArray:
    """Return bounds on the errors of an operator's last product, (n, t); empty where it was exact but for rounding."""
    return operator.error_rows if operator.error_rows.any() else nothing()


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
        """Give the state its risk."""
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
        clock, slope = Clock(), state.gradient
        slope_image = state.image_of_gradient(operator)
        clock.lap("update")
        self.turn(state, slope, slope_image)
        line, steepest = (state.direction, state.image), (-slope, -slope_image)
        length = 1.0 / self.risk.regularisation
        state.direction, state.image = descend_or_settle(state, line, slope_image, steepest, length)
        state.before, state.square = slope, self.risk.inner(slope, slope_image)
        state.iteration += 1
        clock.lap("line search")
        return clock.parts

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
    """Conjugate gradients on the risk's parameters, gradient K g: the rival of kernel CG.

    Two products an iteration, and a condition number that has K's as a factor more. It is here to be measured.

    References
    ----------
    N. Ratliff and J. A. Bagnell (2007), sections 3 and 5.
    """

    name = "paramcg"
    state_type = DescentState

    def advance(self, operator: KernelOperator, state: DescentState) -> dict[str, float]:
        """One iteration, in place; seconds by phase."""
        clock, gradient = Clock(), state.gradient
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
        return clock.parts
