"""Kernel conjugate gradient (Ratliff and Bagnell 2007, Algorithm 1) for least squares, and its rival on parameters.

Both minimise the regularised risk R(alpha) = ||y - K alpha||^2 / 2 + s2 alpha' K alpha / 2 (equation 4). Kernel CG
follows the functional gradient, whose coefficients are g = Kbar alpha - y (equation 7), in the inner product of the
RKHS, a' K b: one kernel product an iteration. Parameter CG follows the ordinary gradient K g with the Hessian
A = K'K + s2 K: the condition number is squared, and an iteration takes two products.

Noise by sample weighs the squares, W = diag(s2 / s2_i) with s2 the least of them: R = (y - K alpha)' W (y - K alpha)
/ 2 + s2 alpha' K alpha / 2. The coefficients are then W g, since W (K alpha - y) + s2 alpha = W (Kbar alpha - y), and
the Hessian is K W K + s2 K.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.solvers.base import Clock, Method, SolverState, nothing
from dkgp.solvers.registry import SolverDeclaration, register_solver

# Where <g, g>_K has sunk to this share of g'g, rounding is all that is left of it.
NULL_SHARE = 1e-13


@dataclass
class LeastSquaresState(SolverState):
    """A solve between two iterations.

    - `direction`, `image` (n, p): coefficients h of the search direction, and K h; empty before the first.
    - `slope`, `slope_image` (n, p): the gradient that the direction was made from (g, or K g for parameter CG), and for
      kernel CG its product K g.
    """

    saved = (*SolverState.saved, "direction", "image", "slope", "slope_image")

    direction: FloatArray = field(default_factory=nothing)
    image: FloatArray = field(default_factory=nothing)
    slope: FloatArray = field(default_factory=nothing)
    slope_image: FloatArray = field(default_factory=nothing)


@dataclass(frozen=True)
class _LeastSquaresSolver(Method[LeastSquaresState]):
    precision: Literal["mixed", "double"] = "mixed"

    state_type = LeastSquaresState


def column_products(left: FloatArray, right: FloatArray) -> FloatArray:
    """Inner products of two (n, p) arrays by column: (p,)."""
    return np.asarray(np.einsum("ip,ip->p", left, right))


def ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Divide by target; zero where there is nothing left to divide by: a target that is solved stands still."""
    sound = (denominator > 0.0) & np.isfinite(denominator)
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=sound)


def kernel_product(operator: KernelOperator, vectors: FloatArray, precision: Precision) -> FloatArray:
    """K V, without the noise on the diagonal."""
    return operator.matmat(vectors, precision) - operator.noise_times(vectors)


def _product(operator: KernelOperator, state: LeastSquaresState, vectors: FloatArray) -> FloatArray:
    state.columns += operator.n
    return kernel_product(operator, vectors, state.precision)


def _weighed(operator: KernelOperator, vectors: FloatArray) -> FloatArray:
    """W V: the squares' weights, which are one where all samples have the same noise."""
    if isinstance(operator.noise, float):
        return vectors
    return (operator.noise_variance / operator.noise)[:, None] * vectors


def _curvature(operator: KernelOperator, state: LeastSquaresState) -> FloatArray:
    """h' (K W K + s2 K) h of each target's direction: (p,)."""
    of_squares = column_products(_weighed(operator, state.image), state.image)
    return of_squares + operator.noise_variance * column_products(state.direction, state.image)


def _move(operator: KernelOperator, state: LeastSquaresState, step: FloatArray) -> None:
    """Go `step` along the direction: alpha, and g by its image Kbar h."""
    state.alpha += step * state.direction
    state.gradient += step * (state.image + operator.noise_times(state.direction))
    state.note_step(column_products(state.direction, state.direction) * step * step)
    state.iteration += 1


@dataclass(frozen=True)
class KernelConjugateGradient(_LeastSquaresSolver):
    """Conjugate gradients in function space: Algorithm 1 with the closed-form step of least squares.

    Parameters
    ----------
    precision : {"mixed", "double"}
        "mixed" takes float32 kernel tiles and lets the driver verify in float64.

    References
    ----------
    N. Ratliff and J. A. Bagnell, Kernel Conjugate Gradient for Fast Kernel Machines (2007), Algorithm 1, section 3.
    """

    name = "kcg"

    def advance(self, operator: KernelOperator, state: LeastSquaresState) -> dict[str, float]:
        """One iteration, in place; seconds by phase."""
        clock = Clock()
        slope = _weighed(operator, state.gradient.copy())
        slope_image = _product(operator, state, slope)
        if not state.direction.size:
            state.direction, state.image = -slope, -slope_image
        else:
            # eta = <g_new - g, g_new>_K / <g, g>_K (line 8); K h follows from K g, so one product does.
            eta = ratio(
                column_products(slope - state.slope, slope_image), column_products(state.slope, state.slope_image)
            )
            eta = np.maximum(eta, 0.0)
            state.direction = eta * state.direction - slope
            state.image = eta * state.image - slope_image
        step = ratio(-column_products(slope, state.image), _curvature(operator, state))
        self._leave_the_null_space(operator, state, slope, slope_image, step)
        state.slope, state.slope_image = slope, slope_image
        _move(operator, state, step)
        return {"update": clock.seconds}

    def _leave_the_null_space(
        self,
        operator: KernelOperator,
        state: LeastSquaresState,
        slope: FloatArray,
        slope_image: FloatArray,
        step: FloatArray,
    ) -> None:
        """Step along -W g, to 1 / s2, where K W g vanishes: the function is the best, its coefficients are not.

        Equal samples make K singular: the risk does not see how alpha is shared out among them, Kbar alpha = y does.
        """
        squares = column_products(slope, slope)
        lost = (squares > 0.0) & (column_products(slope, slope_image) <= NULL_SHARE * squares)
        if lost.any():
            state.direction[:, lost], state.image[:, lost] = -slope[:, lost], -slope_image[:, lost]
            step[lost] = 1.0 / operator.noise_variance


@dataclass(frozen=True)
class ParameterConjugateGradient(_LeastSquaresSolver):
    """Conjugate gradients on the risk's parameters, Hessian K'K + s2 K: the rival of kernel CG.

    Its gradient is K g: if K is nearly singular, as of a smooth kernel, it cannot see the rest of g, and max |g|
    comes down slowly or not at all. It is here to be measured, not to be used.

    The duality gap does come down, with the dual variables that belong to the function K alpha itself, beta = (y - K
    alpha) / s2: then it is (alpha - beta)' K (alpha - beta) s2 / 2 = g' K g / (2 s2), to which the null space adds
    nothing. That of Theorem 1, with beta = alpha, is ||g||^2 / 2. With noise by sample it is g' W K W g / (2 s2).

    Parameters
    ----------
    precision : {"mixed", "double"}
        "mixed" takes float32 kernel tiles and lets the driver verify in float64.

    References
    ----------
    N. Ratliff and J. A. Bagnell (2007), sections 3 and 5: condition number kappa(K) times kernel CG's.
    """

    name = "paramcg"

    def advance(self, operator: KernelOperator, state: LeastSquaresState) -> dict[str, float]:
        """One iteration, in place; seconds by phase."""
        clock = Clock()
        weighed = _weighed(operator, state.gradient)
        slope = _product(operator, state, weighed)
        # Of the risk before this step, which only lowers it.
        overlap = float(np.sum(column_products(weighed, slope)))
        state.risk_width = max(overlap, 0.0) / (2.0 * operator.noise_variance)
        if not state.direction.size:
            state.direction = -slope
        else:
            eta = ratio(column_products(slope - state.slope, slope), column_products(state.slope, state.slope))
            state.direction = np.maximum(eta, 0.0) * state.direction - slope
        state.image = _product(operator, state, state.direction)
        step = ratio(-column_products(slope, state.direction), _curvature(operator, state))
        state.slope = slope
        _move(operator, state, step)
        return {"update": clock.seconds}


register_solver(SolverDeclaration("kcg", "kernel conjugate gradient", KernelConjugateGradient))
register_solver(
    SolverDeclaration(
        "paramcg", "conjugate gradients in the parameters, for comparisons with kcg", ParameterConjugateGradient
    )
)
