"""Kernel conjugate gradient for any differentiable convex loss (Ratliff and Bagnell 2007, Algorithm 1, equation 2).

Minimises R[f] = sum_i l(y_i, f(x_i)) + lambda ||f||^2 / 2 over f = sum_i alpha_i k(x_i, .). The functional gradient has
the coefficients l'(y_i, f(x_i)) + lambda alpha_i (equation 5). One kernel product an iteration: the values f, the
direction's image K h and hence every point of the line are known from it, so the line search is exact and free of
kernel evaluations. Fenchel's dual gives the bound from below, with which the search knows when to stop.

The squared loss has a closed form and several targets: `KernelConjugateGradient`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import scipy.optimize
import scipy.special
from numpy.typing import ArrayLike

from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, KernelOperator

__all__ = ["HuberLoss", "LogisticLoss", "Loss", "RiskProgress", "RiskSolution", "SquaredLoss", "minimise_risk"]

LARGEST_STEP = 2.0**60


class Loss(Protocol):
    """A loss l(y, z), convex and differentiable in its second argument."""

    def check(self, targets: FloatArray) -> None:
        """Refuse targets that the loss is not made for."""

    def value(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """l(y_i, z_i)."""

    def slope(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """dl/dz at (y_i, z_i)."""

    def conjugate(self, targets: FloatArray, slopes: FloatArray) -> FloatArray:
        """sup_z of u_i z - l(y_i, z); infinite outside its domain."""


@dataclass(frozen=True)
class SquaredLoss:
    """(y - z)^2 / 2: regularised least squares, the mean of a Gaussian process (equation 4)."""

    def check(self, targets: FloatArray) -> None:
        """Any targets will do."""

    def value(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """(y - z)^2 / 2."""
        return 0.5 * (targets - values) ** 2

    def slope(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """Z - y."""
        return values - targets

    def conjugate(self, targets: FloatArray, slopes: FloatArray) -> FloatArray:
        """U y + u^2 / 2."""
        return slopes * targets + 0.5 * slopes**2


@dataclass(frozen=True)
class LogisticLoss:
    """log(1 + exp(-y z)) for labels y of -1 and 1 (equation 3)."""

    def check(self, targets: FloatArray) -> None:
        """Labels must be -1 or 1."""
        odd = targets[(targets != 1.0) & (targets != -1.0)]
        if odd.size:
            raise InputError(f"the logistic loss needs labels of -1 and 1; got {odd[0]:g}")

    def value(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """log(1 + exp(-y z))."""
        return np.logaddexp(0.0, -targets * values)

    def slope(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """-y / (1 + exp(y z)) (equation 6)."""
        return np.asarray(-targets * scipy.special.expit(-targets * values))

    def conjugate(self, targets: FloatArray, slopes: FloatArray) -> FloatArray:
        """S log s + (1 - s) log(1 - s) with s = -u y in [0, 1]; infinite elsewhere."""
        share = -slopes * targets
        inside = np.clip(share, 0.0, 1.0)
        entropy = scipy.special.xlogy(inside, inside) + scipy.special.xlog1py(1.0 - inside, -inside)
        return np.where((share >= 0.0) & (share <= 1.0), entropy, np.inf)


@dataclass(frozen=True)
class HuberLoss:
    """(y - z)^2 / 2 up to |y - z| = width, and from there on a straight line: outliers pull no harder than that.

    Parameters
    ----------
    width : float
        In the units of the standardised targets.
    """

    width: float = 1.0

    def __post_init__(self) -> None:
        if not self.width > 0.0 or not np.isfinite(self.width):
            raise InputError(f"the width of a Huber loss must be finite and positive; got {self.width!r}")

    def check(self, targets: FloatArray) -> None:
        """Any targets will do."""

    def value(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """Huber's function of y - z."""
        return np.asarray(scipy.special.huber(self.width, targets - values))

    def slope(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """Z - y, clipped to the width."""
        return np.clip(values - targets, -self.width, self.width)

    def conjugate(self, targets: FloatArray, slopes: FloatArray) -> FloatArray:
        """U y + u^2 / 2 for |u| <= width; infinite elsewhere."""
        return np.where(np.abs(slopes) <= self.width, slopes * targets + 0.5 * slopes**2, np.inf)


@dataclass(frozen=True)
class RiskProgress:
    """State of a minimisation after an iteration.

    Attributes
    ----------
    iteration : int
        Kernel products so far.
    risk, lower_bound : float
        R[f], and a bound that no function's risk is below.
    gradient_norm : float
        ||grad R|| in the RKHS.
    """

    iteration: int
    risk: float
    lower_bound: float
    gradient_norm: float

    @property
    def gap(self) -> float:
        """(R - bound) / max(|R|, |bound|); infinite while there is no bound."""
        if not np.isfinite(self.lower_bound):
            return np.inf
        scale = max(abs(self.risk), abs(self.lower_bound))
        return (self.risk - self.lower_bound) / scale if scale > 0.0 else 0.0


@dataclass(frozen=True)
class RiskSolution:
    """The function found: alpha (n,), its values at the samples (n,), whether the gap was closed, and the way there."""

    alpha: FloatArray
    values: FloatArray
    converged: bool
    progress: RiskProgress
    history: list[RiskProgress] = field(default_factory=list)


def minimise_risk(
    operator: KernelOperator,
    targets: ArrayLike,
    *,
    loss: Loss,
    regularisation: float,
    gap: float = 1e-4,
    max_iterations: int = 1000,
    precision: Precision = "double",
    callback: Callable[[RiskProgress], None] | None = None,
) -> RiskSolution:
    """Minimise the regularised risk by kernel conjugate gradients.

    Parameters
    ----------
    operator : KernelOperator
        Its noise variance plays no part.
    targets : (n,) array_like
    loss : Loss
    regularisation : float
        lambda.
    gap : float
        Converged when the risk is proven to be within this share of the least.
    max_iterations : int
    precision : {"double", "single"}
        Of the kernel products; with "single" the bounds are as good as float32 tiles are.
    callback : callable, optional
        Called with a `RiskProgress` after every iteration.

    Raises
    ------
    InputError
        Targets of another shape, not finite or not for this loss; settings out of range.

    References
    ----------
    N. Ratliff and J. A. Bagnell, Kernel Conjugate Gradient for Fast Kernel Machines (2007), Algorithm 1.
    """
    y = np.array(targets, dtype=np.float64)
    if y.shape != (operator.n,) or not np.isfinite(y).all():
        raise InputError(f"targets must be {operator.n} finite numbers; got an array of shape {y.shape}")
    loss.check(y)
    for name, value in (("the regularisation", regularisation), ("the gap", gap), ("max_iterations", max_iterations)):
        if not value > 0.0 or not np.isfinite(value):
            raise InputError(f"{name} must be finite and positive; got {value!r}")

    def product(vector: FloatArray) -> FloatArray:
        return (operator.matmat(vector[:, None], precision) - operator.noise_variance * vector[:, None])[:, 0]

    history: list[RiskProgress] = []
    with single_threaded_blas():
        alpha, values = np.zeros(operator.n), np.zeros(operator.n)
        direction, image = np.zeros(operator.n), np.zeros(operator.n)
        before, square_before = np.zeros(operator.n), 0.0
        while True:
            gradient = loss.slope(y, values) + regularisation * alpha
            gradient_image = product(gradient)
            square = float(gradient @ gradient_image)
            progress = RiskProgress(
                len(history) + 1,
                float(np.sum(loss.value(y, values)) + 0.5 * regularisation * (alpha @ values)),
                float(-np.sum(loss.conjugate(y, -regularisation * alpha)) - 0.5 * regularisation * (alpha @ values)),
                float(np.sqrt(max(square, 0.0))),
            )
            history.append(progress)
            if callback is not None:
                callback(progress)
            converged = progress.gap <= gap
            if converged or square <= 0.0 or progress.iteration >= max_iterations:
                return RiskSolution(alpha, values, converged, progress, history)
            eta = max(0.0, float((gradient - before) @ gradient_image) / square_before) if square_before else 0.0
            direction, image = eta * direction - gradient, eta * image - gradient_image
            if gradient @ image >= 0.0:  # no way down: begin anew along the gradient
                direction, image = -gradient, -gradient_image
            step = _line_minimum(loss, y, values, image, regularisation, alpha, direction)
            alpha, values = alpha + step * direction, values + step * image
            before, square_before = gradient, square


def _line_minimum(
    loss: Loss,
    targets: FloatArray,
    values: FloatArray,
    image: FloatArray,
    regularisation: float,
    alpha: FloatArray,
    direction: FloatArray,
) -> float:
    """The step at which the risk's slope along the line vanishes (line 6)."""
    linear, quadratic = regularisation * float(alpha @ image), regularisation * float(direction @ image)

    def slope(step: float) -> float:
        return float(loss.slope(targets, values + step * image) @ image) + linear + step * quadratic

    upper = 1.0
    while slope(upper) < 0.0 and upper < LARGEST_STEP:
        upper *= 2.0
    if not slope(upper) > 0.0:
        return upper
    return float(scipy.optimize.brentq(slope, 0.0, upper, xtol=1e-14 * upper, rtol=1e-12))
