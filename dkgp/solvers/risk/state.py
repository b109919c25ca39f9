"""The state that all methods for a risk share: the function found, its values, and both bounds on the least risk.

Values and gradient follow from recursions between products, and are evaluated anew in float64 when the driver asks.
Where products are approximate both bounds give way by as much as the products may be off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.solvers.conjugate.kernel_cg import kernel_product, ratio
from dkgp.solvers.risk.problem import Risk
from dkgp.solvers.state import SolverState, nothing
from dkgp.solvers.stopping import Progress

# To evaluate values and gradient anew takes two float64 products, after every round more than rounds of float64.
MOST_HASTY = 3


@dataclass
class RiskState(SolverState):
    """A minimisation between two rounds; `rhs` are the targets, `gradient` the functional gradient's coefficients.

    - `values` (n, p): f = K alpha, by recursion.
    - `gradient_image` (n, p): K g in float64 where it is known of g as it is; empty elsewhere.
    - `bound` (q,): the best bound from below so far.
    - `excess` (q,): by how much the risk may be above what its evaluation says, where products are approximate.
    - `width` (q,): <g, g>_K / (2 lambda) as it was known last, and what approximate products may add to it; infinite
      before.
    - `doubt`: what a distance between products is multiplied by: twice as much after each that float64 did not confirm.
    - `hasty`: float32 rounds in a row after each of which values had to be evaluated anew, and at which `iteration` the
      last was.
    - `product_error`: bound on the errors of the last entries of `values` and `gradient_image` that were evaluated
      anew.
    """

    saved = (*SolverState.saved, "values", "gradient_image", "bound", "excess", "width")
    counted = (*SolverState.counted, "doubt", "hasty", "renewed")

    risk: Risk = field(init=False)
    values: FloatArray = field(default_factory=nothing)
    gradient_image: FloatArray = field(default_factory=nothing)
    bound: FloatArray = field(default_factory=lambda: np.zeros(0))
    excess: FloatArray = field(default_factory=lambda: np.zeros(0))
    width: FloatArray = field(default_factory=lambda: np.zeros(0))
    doubt: float = 1.0
    hasty: int = 0
    renewed: int = -1
    product_error: float = 0.0

    @property
    def here(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Targets, alpha and values: what the risk is a function of."""
        return self.rhs, self.alpha, self.values

    @property
    def risks(self) -> FloatArray:
        """The risk by problem, (q,); where products are approximate, what it is at most."""
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
        # ||g||_K goes up and down, and that before the step is what was known: claimed in vain, it is claimed later.
        if recursion and self.precision == "double":
            self.doubt *= 2.0
        if self.precision == "single" or self.moved.any() or operator.approximate:
            self.bound = self.risk.least_value(self.rhs)
        self.values = kernel_product(operator, self.alpha, "double")
        of_values = operator.error_bound
        self.settle()
        self.gradient_image = kernel_product(operator, self.gradient, "double")
        self.product_error = max(of_values, operator.error_bound)
        self.excess, below = self._excess(of_values, operator.error_bound)
        self.raise_bound(self.gradient_image, below)
        # With R - D <= width + above + below, |f - f*|^2 + |f* - f_u|^2 <= 2 (R - D) / lambda about their middle.
        self.width = self.width + 2.0 * self.excess + 4.0 * below
        if self.product_error > 0.0:
            self.width = np.minimum(self.width, self._width_by_length(operator, of_values, operator.error_bound))
        self.moved = np.zeros(self.alpha.shape[1])
        self.exact = True
        self.verified = self.measured(operator) if recursion else None

    def _excess(self, of_values: float, of_image: float) -> tuple[FloatArray, FloatArray]:
        """Bounds on how far the risk lies above its evaluation, and the dual below its own: (q,) each.

        Values are off by e, K g by e'. By the bound c on curvatures l(f) <= l(f~) + |l'(f~)| e + c e^2 / 2, of a
        coupled loss over all its columns, and |alpha'(f~ - f)| <= |alpha|_1 e. The dual at u = w l'(y, f~) is
        sum w l - u'f~ - u'K u / (2 lambda), which R - <g, g>_K / (2 lambda), as evaluated, exceeds by
        (lambda alpha / 2 + u)'(f~ - f) - g'e' / (2 lambda).
        """
        risk, p = self.risk, self.rhs.shape[1]
        if of_values == 0.0 and of_image == 0.0:
            return np.zeros_like(self.bound), np.zeros_like(self.bound)
        ones = np.ones_like(self.alpha)
        total = float(len(self.rhs)) if risk.weights is None else float(risk.weights.sum())
        pulls = risk.inner(np.abs(risk.slope(self.rhs, self.values)), ones)
        first = (pulls + 0.5 * risk.regularisation * risk.inner(np.abs(self.alpha), ones)) * of_values
        second = 0.5 * risk.loss.curvature_bound * total * (p if risk.loss.coupled else 1) * of_values**2
        below = first + risk.inner(np.abs(self.gradient), ones) * of_image / (2.0 * risk.regularisation)
        return first + second, below

    def _width_by_length(self, operator: KernelOperator, of_values: float, of_image: float) -> FloatArray:
        """Return 2 lambda r^2 for a ball of radius r about f - g / (2 lambda) that has the minimiser: (q,).

        Here g is as evaluated. Values are off by e, K g by e'. The curvature is at most c, so an entry of g is off by
        w_i c e at most, of a coupled loss a row by sqrt(p) times that; and the length of sum_i d_i k(., x_i) is at most
        sum_i |d_i| sqrt(k_ii). By so much the exact gradient may be longer, and the ball's centre be elsewhere. This is
        of the first order in e where the risk's own bounds are of the order sqrt(e).
        """
        risk, p = self.risk, self.rhs.shape[1]
        roots = np.sqrt(operator.diagonal())
        weighed = float(roots.sum() if risk.weights is None else risk.weights @ roots)
        away = risk.loss.curvature_bound * of_values * (math.sqrt(p) if risk.loss.coupled else 1.0) * weighed
        absolute = risk.inner(np.abs(self.gradient), np.ones_like(self.gradient))
        squares = risk.inner(self.gradient, self.gradient_image) + absolute * of_image
        length = np.sqrt(np.maximum(squares, 0.0)) + 2.0 * away
        return np.asarray(length**2 / (2.0 * risk.regularisation))

    def measured(self, operator: KernelOperator) -> Progress:
        """Return where the minimisation stands: the objective is the risk, targets added up."""
        risk = float(np.sum(self.risks))
        below = float(np.sum(self.bound))
        at_zero = self.risk.slope(self.rhs, np.zeros_like(self.rhs))
        norms, scale = np.linalg.norm(self.gradient, axis=0), np.linalg.norm(at_zero, axis=0)
        size = max(abs(risk), abs(below))
        doubt = 1.0 if self.exact else self.doubt
        width = np.where(np.isfinite(self.width), self.width, self.risks - self.bound)
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
            distance=doubt * math.sqrt(float(np.max(np.maximum(width, 0.0))) / (2.0 * self.risk.regularisation)),
        )
