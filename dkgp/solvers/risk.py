"""Kernel conjugate gradient for any differentiable convex loss (Ratliff and Bagnell 2007, Algorithm 1, equation 2).

Minimises R[f] = sum_i l(y_i, f(x_i)) + lambda ||f||^2 / 2 over f = sum_i alpha_i k(x_i, .). The functional gradient has
the coefficients g_i = l'(y_i, f(x_i)) + lambda alpha_i (equation 5). One kernel product an iteration: the values f, the
direction's image K h and hence every point of the line are known from it, so the line search is exact and free of
kernel evaluations. Fenchel's dual gives the bound from below, with which the driver knows when to stop.

The squared loss has a closed form: `KernelConjugateGradient`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import scipy.optimize
from numpy.typing import ArrayLike

from dkgp.errors import InputError
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.solvers.base import Method, as_columns
from dkgp.solvers.checkpointing import Checkpointing
from dkgp.solvers.conjugate.kernel_cg import NULL_SHARE, column_products, kernel_product, ratio
from dkgp.solvers.driver import Solution, run
from dkgp.solvers.losses import Loss
from dkgp.solvers.state import SolverState
from dkgp.solvers.stopping import DualityGap, MaxIterations, Progress

__all__ = ["Risk", "RiskConjugateGradient", "RiskSolution", "RiskState", "minimise_risk"]

LARGEST_STEP = 2.0**60


@dataclass(frozen=True)
class Risk:
    """A regularised risk, of each target by itself.

    Attributes
    ----------
    loss : Loss
    regularisation : float
        lambda.
    """

    loss: Loss
    regularisation: float

    def value(self, targets: FloatArray, alpha: FloatArray, values: FloatArray) -> FloatArray:
        """R[f] of alpha and f = K alpha, (n, p) each: (p,)."""
        penalty = 0.5 * self.regularisation * column_products(alpha, values)
        return np.asarray(np.sum(self.loss.value(targets, values), axis=0) + penalty)

    def gradient(self, targets: FloatArray, alpha: FloatArray, values: FloatArray) -> FloatArray:
        """Coefficients of the functional gradient: (n, p) (equation 5)."""
        return self.loss.slope(targets, values) + self.regularisation * alpha

    def dual(self, targets: FloatArray, slopes: FloatArray, image: FloatArray) -> FloatArray:
        """Bound that no function's risk is below, by Fenchel's dual: (p,), perhaps minus infinity.

        Parameters
        ----------
        targets, slopes, image : (n, p) float64
            y, u and K beta for u = -lambda beta.
        """
        return np.asarray(0.5 * column_products(slopes, image) - np.sum(self.loss.conjugate(targets, slopes), axis=0))

    def lower_bound(self, targets: FloatArray, alpha: FloatArray, values: FloatArray) -> FloatArray:
        """Bound from below by the dual at alpha itself."""
        return self.dual(targets, -self.regularisation * alpha, values)

    def bound_by_gradient(self, targets: FloatArray, values: FloatArray, gradient_image: FloatArray) -> FloatArray:
        """Bound from below, finite whatever f, and no further from R[f] than ||grad R||^2 / (2 lambda).

        The dual at beta = -l'(y, f) / lambda = alpha - g / lambda: K beta follows from K g.
        """
        return self.dual(targets, self.loss.slope(targets, values), values - gradient_image / self.regularisation)


@dataclass
class RiskState(SolverState):
    """A minimisation between two iterations; `rhs` are the targets, `gradient` the functional gradient's coefficients.

    Attributes
    ----------
    risk : Risk
    values : (n, p) float64
        f = K alpha, by recursion.
    direction, image : (n, p) float64
        Coefficients h of the search direction, and K h; empty before the first.
    before, square : (n, p) and (p,) float64
        The gradient that the direction was made from, and its squared norm in the RKHS.
    bound : (p,) float64
        The best bound from below so far.
    """

    saved = (*SolverState.saved, "values", "direction", "image", "before", "square", "bound")

    risk: Risk = field(init=False)
    values: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    direction: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    image: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    before: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    square: FloatArray = field(default_factory=lambda: np.zeros(0))
    bound: FloatArray = field(default_factory=lambda: np.zeros(0))

    @property
    def here(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Targets, alpha and values: what the risk is a function of."""
        return self.rhs, self.alpha, self.values

    def begin(self, operator: KernelOperator, warm: bool, gradient: FloatArray | None) -> None:
        """Find the values at the start, which a given gradient does not tell: a warm start costs two products."""
        self.values, self.bound = np.zeros_like(self.rhs), np.full(self.rhs.shape[1], -np.inf)
        super().begin(operator, False, None)
        if warm:
            self.renew_gradient(operator)
        else:
            self.settle()

    def settle(self) -> None:
        """Let the gradient follow from alpha and the values."""
        self.gradient = self.risk.gradient(*self.here)

    def raise_bound(self, gradient_image: FloatArray) -> None:
        """Take the better of the bounds that are known here, K g at hand, and that was known before."""
        by_gradient = self.risk.bound_by_gradient(self.rhs, self.values, gradient_image)
        self.bound = np.maximum.reduce([self.bound, self.risk.lower_bound(*self.here), by_gradient])

    def renew_gradient(self, operator: KernelOperator) -> None:
        """Compute the values anew in float64, and the bound where it was evaluated in float32."""
        if self.precision == "single" or self.moved.any():
            self.bound = np.full(self.alpha.shape[1], -np.inf)
        self.values = kernel_product(operator, self.alpha, "double")
        self.settle()
        self.raise_bound(kernel_product(operator, self.gradient, "double"))
        self.moved = np.zeros(self.alpha.shape[1])
        self.exact = True
        self.verified = self.measured(operator)

    def measured(self, operator: KernelOperator) -> Progress:
        """Return where the minimisation stands: the objective is the risk, targets added up."""
        risk = float(np.sum(self.risk.value(*self.here)))
        below = float(np.sum(np.maximum(self.bound, self.risk.lower_bound(*self.here))))
        at_zero = self.risk.loss.slope(self.rhs, np.zeros_like(self.rhs))
        norms, scale = np.linalg.norm(self.gradient, axis=0), np.linalg.norm(at_zero, axis=0)
        size = max(abs(risk), abs(below))
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
        )


@dataclass(frozen=True)
class RiskConjugateGradient(Method[RiskState]):
    """Kernel conjugate gradients for a convex risk, one full kernel product an iteration for all targets.

    Parameters
    ----------
    risk : Risk
    precision : {"mixed", "double"}
        "mixed" takes float32 kernel tiles and lets the driver verify in float64: bounds on the way are as good as
        float32 is, those at the end are evaluated anew.

    References
    ----------
    N. Ratliff and J. A. Bagnell, Kernel Conjugate Gradient for Fast Kernel Machines (2007), Algorithm 1.
    """

    risk: Risk
    precision: Literal["mixed", "double"] = "mixed"

    name = "risk-cg"
    state_type = RiskState

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types."""
        return {**super().settings(), "loss": repr(self.risk.loss), "regularisation": self.risk.regularisation}

    def equip(self, operator: KernelOperator, state: RiskState) -> None:
        """Tell the state what is minimised."""
        state.risk = self.risk

    def advance(self, operator: KernelOperator, state: RiskState) -> dict[str, float]:
        """One iteration, in place; seconds by phase."""
        started = time.perf_counter()
        slope = state.gradient
        slope_image = kernel_product(operator, slope, state.precision)
        timings = {"update": time.perf_counter() - started}
        started = time.perf_counter()
        square = column_products(slope, slope_image)
        if not state.direction.size:
            state.direction, state.image = -slope, -slope_image
        else:
            # eta = <g_new - g, g_new>_K / <g, g>_K (line 8); K h follows from K g, so one product does.
            eta = np.maximum(ratio(column_products(slope - state.before, slope_image), state.square), 0.0)
            state.direction, state.image = eta * state.direction - slope, eta * state.image - slope_image
            uphill = column_products(slope, state.image) >= 0.0  # begin anew along the gradient
            state.direction[:, uphill], state.image[:, uphill] = -slope[:, uphill], -slope_image[:, uphill]
        step = self._line_minima(state)
        squares = column_products(slope, slope)
        stuck = (squares > 0.0) & (step == 0.0)
        if state.precision == "single" and stuck.any():  # what is left of K g is float32's rounding
            state.precision = "double"
        else:
            state.raise_bound(slope_image)
            # Where K g vanishes the function is the best there is, and alpha = -l'(y, f) / lambda says so.
            lost = stuck | ((squares > 0.0) & (square <= NULL_SHARE * squares))
            state.direction[:, lost], state.image[:, lost] = -slope[:, lost], -slope_image[:, lost]
            step[lost] = 1.0 / self.risk.regularisation
        state.alpha = state.alpha + step * state.direction
        state.values = state.values + step * state.image
        state.before, state.square = slope, square
        state.settle()
        state.note_step(column_products(state.direction, state.direction) * step * step)
        state.iteration += 1
        state.columns += operator.n
        timings["line search"] = time.perf_counter() - started
        return timings

    def _line_minima(self, state: RiskState) -> FloatArray:
        """Steps at which the risk's slope along the lines vanishes (line 6): (p,)."""
        penalty = self.risk.regularisation
        linear = penalty * column_products(state.alpha, state.image)
        quadratic = penalty * column_products(state.direction, state.image)
        columns = zip(state.rhs.T.copy(), state.values.T.copy(), state.image.T.copy(), linear, quadratic, strict=True)
        return np.array([_line_minimum(self.risk.loss, *column) for column in columns])


def _line_minimum(
    loss: Loss, targets: FloatArray, values: FloatArray, image: FloatArray, linear: float, quadratic: float
) -> float:
    def slope(step: float) -> float:
        return float(loss.slope(targets, values + step * image) @ image + linear + step * quadratic)

    if slope(0.0) >= 0.0:  # no way down
        return 0.0
    upper = 1.0
    while slope(upper) < 0.0 and upper < LARGEST_STEP:
        upper *= 2.0
    if not slope(upper) > 0.0:
        return upper
    return float(scipy.optimize.brentq(slope, 0.0, upper, xtol=1e-14 * upper, rtol=1e-12))


@dataclass(frozen=True)
class RiskSolution:
    """The function found.

    Attributes
    ----------
    solution : Solution
        Its coefficients alpha, why the search stopped, and the way there: `objective` of a record is the risk,
        `objective_gap_bound` how far it is from the least at most, `duality_gap` that over the larger magnitude of the
        risk and the bound below it.
    values : (n, p) float64
        Its values at the samples: K alpha, evaluated anew in float64 after the last step.
    lower_bound : (p,) float64
        No function's risk is below it.
    """

    solution: Solution
    values: FloatArray
    lower_bound: FloatArray


def minimise_risk(
    operator: KernelOperator,
    targets: ArrayLike,
    *,
    loss: Loss,
    regularisation: float,
    gap: float = 1e-4,
    max_iterations: int = 1000,
    precision: Literal["mixed", "double"] = "double",
    initial: ArrayLike | None = None,
    callback: Callable[[Progress], None] | None = None,
    checkpointing: Checkpointing | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> RiskSolution:
    """Minimise the regularised risk by kernel conjugate gradients.

    Parameters
    ----------
    operator : KernelOperator
        Its noise variance plays no part.
    targets : (n,) or (n, p) array_like
        Each column is a problem of its own; kernel products are shared.
    loss : Loss
    regularisation : float
        lambda.
    gap : float
        Converged when the risk is proven to be within this share of the least.
    max_iterations : int
    precision : {"double", "mixed"}
        Of the kernel products; see `RiskConjugateGradient`.
    initial : (n,) or (n, p) array_like, optional
        Warm start.
    callback, checkpointing, interrupted
        See `dkgp.solvers.solve`.

    Raises
    ------
    InputError
        Targets of another shape, not finite or not for this loss; settings out of range.
    """
    y = as_columns(targets, operator.n, "the targets")
    loss.check(y)
    for name, value in (("the regularisation", regularisation), ("the gap", gap), ("max_iterations", max_iterations)):
        if not value > 0.0 or not np.isfinite(value):
            raise InputError(f"{name} must be finite and positive; got {value!r}")
    start = None if initial is None else as_columns(initial, operator.n, "the warm start", y.shape[1])
    solution, state = run(
        operator,
        y,
        RiskConjugateGradient(Risk(loss, regularisation), precision),
        DualityGap(gap) | MaxIterations(max_iterations),
        initial=start,
        callback=callback,
        checkpointing=checkpointing,
        interrupted=interrupted,
    )
    return RiskSolution(solution, state.values, np.maximum(state.bound, state.risk.lower_bound(*state.here)))
