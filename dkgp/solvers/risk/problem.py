"""A regularised risk R[f] = sum_i w_i l(y_i, f(x_i)) + lambda ||f||^2 / 2 over f = sum_i alpha_i k(x_i, .), as a value.

The functional gradient has the coefficients g_i = w_i l'(y_i, f(x_i)) + lambda alpha_i (Ratliff and Bagnell 2007,
equation 5). Fenchel's dual bounds the least risk from below: for any slopes u,

    D(u) = -u'K u / (2 lambda) - sum_i w_i l*(y_i, u_i / w_i) <= R[f]    for all f,

and at those of f itself, u = w l'(y, f), it lies <g, g>_K / (2 lambda) below R[f], to the last digit.

`line_minima` is the exact line search, from known vectors and no kernel entry. The risk of f + t K h is convex in t,
its slope rises, and its second derivative is known: Newton's iteration within a bracket that halves where it would
leave it. Problems that share a product are searched together, each its own line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.errors import InputError
from dkgp.operators.base import FloatArray
from dkgp.solvers.conjugate.kernel_cg import column_products
from dkgp.solvers.losses import CurvatureRoot, Loss


@dataclass(frozen=True, eq=False)
class Risk:
    """A regularised risk, of each target by itself, or of all together where the loss couples them.

    One number for each problem has shape (q,): q = p, or 1 for a coupled loss.

    Parameters
    ----------
    weights : (n,) float64, optional
        w, not negative: how often each sample counts.
    proven : callable, optional
        Takes a `RiskState` whose values and gradient were evaluated anew to the distance that is proven of it, with
        roundings, in the units of `Progress.distance`. It changes no round, but stopping rules may go by it.

    Raises
    ------
    InputError
        A regularisation that is not finite and positive; weights that are negative, not finite, or all zero.
    """

    loss: Loss
    regularisation: float
    weights: FloatArray | None = None
    proven: Callable[[Any], float] | None = None

    def __post_init__(self) -> None:
        if not self.regularisation > 0.0 or not np.isfinite(self.regularisation):
            raise InputError(f"the regularisation must be finite and positive; got {self.regularisation!r}")
        if self.weights is None:
            return
        weights = np.array(self.weights, dtype=np.float64)
        if weights.ndim != 1 or not np.isfinite(weights).all() or (weights < 0.0).any() or not weights.any():
            raise InputError(
                "the weights of samples must be a finite number for each, none negative and not all zero; got shape "
                f"{weights.shape}, from {np.min(weights, initial=0.0):g} to {np.max(weights, initial=0.0):g}"
            )
        weights.flags.writeable = False
        object.__setattr__(self, "weights", weights)

    def settings(self) -> dict[str, Any]:
        """Plain JSON types that tell this risk from another."""
        weights = None if self.weights is None else hashlib.sha256(self.weights.tobytes()).hexdigest()
        return {"loss": repr(self.loss), "regularisation": self.regularisation, "weights": weights}

    def check(self, targets: FloatArray) -> None:
        """Refuse targets (n, p) that the loss is not made for, or that there are not as many weights for."""
        self.loss.check(targets)
        if self.weights is not None and len(self.weights) != len(targets):
            raise InputError(f"expected a weight for each of {len(targets)} samples; got {len(self.weights)}")

    def weighted(self, by_sample: FloatArray) -> FloatArray:
        """Rows (n, t) times their weights."""
        return by_sample if self.weights is None else self.weights[:, None] * by_sample

    def inner(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Inner products of two (n, p) arrays by problem: (q,)."""
        products = column_products(left, right)
        return np.sum(products, keepdims=True) if self.loss.coupled else products

    def value(self, targets: FloatArray, alpha: FloatArray, values: FloatArray) -> FloatArray:
        """R[f] of alpha and f = K alpha, (n, p) each: (q,)."""
        losses = np.sum(self.weighted(self.loss.value(targets, values)), axis=0)
        return np.asarray(losses + 0.5 * self.regularisation * self.inner(alpha, values))

    def slope(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """W l'(y, f): (n, p)."""
        return self.weighted(self.loss.slope(targets, values))

    def gradient(self, targets: FloatArray, alpha: FloatArray, values: FloatArray) -> FloatArray:
        """Coefficients of the functional gradient: (n, p) (equation 5)."""
        return self.slope(targets, values) + self.regularisation * alpha

    def curvature_times(self, targets: FloatArray, values: FloatArray, vectors: FloatArray) -> FloatArray:
        """Second derivative of the loss, weights included, times V by sample: (n, p)."""
        return self.weighted(self.loss.curvature_times(targets, values, vectors))

    def curvature_root(self, targets: FloatArray, values: FloatArray) -> CurvatureRoot:
        """R with R R' the second derivative of the loss by sample, weights included."""
        root = self.loss.curvature_root(targets, values)
        return root if self.weights is None else _WeightedRoot(root, np.sqrt(self.weights)[:, None])

    def dual(self, targets: FloatArray, slopes: FloatArray, image: FloatArray) -> FloatArray:
        """Bound that no function's risk is below, by Fenchel's dual: (q,), perhaps minus infinity.

        Parameters
        ----------
        targets, slopes, image : (n, p) float64
            y, u and K beta for u = -lambda beta.
        """
        if self.weights is None:
            conjugates = self.loss.conjugate(targets, slopes)
        else:
            weights = self.weights[:, None]
            counts = weights > 0.0
            share = np.divide(slopes, weights, out=np.zeros_like(slopes), where=counts)
            conjugates = weights * self.loss.conjugate(targets, share)
            # Where a sample does not count, no slope but zero is one of its loss.
            conjugates = np.where(counts | (slopes == 0.0).all(axis=1, keepdims=True), conjugates, np.inf)
        return np.asarray(0.5 * self.inner(slopes, image) - np.sum(conjugates, axis=0))

    def lower_bound(self, targets: FloatArray, alpha: FloatArray, values: FloatArray) -> FloatArray:
        """Bound from below by the dual at alpha itself: (q,), perhaps minus infinity."""
        return self.dual(targets, -self.regularisation * alpha, values)

    def least_value(self, targets: FloatArray) -> FloatArray:
        """Sum of the losses' least values, which no risk is below: the dual at no slope at all, (q,)."""
        nothing = np.zeros_like(targets)
        return self.dual(targets, nothing, nothing)

    def width(self, gradient: FloatArray, gradient_image: FloatArray) -> FloatArray:
        """<g, g>_K / (2 lambda) for g and K g: how far the dual at f's own slopes lies below R[f], (q,)."""
        return np.maximum(self.inner(gradient, gradient_image), 0.0) / (2.0 * self.regularisation)


@dataclass(frozen=True)
class _WeightedRoot:
    root: CurvatureRoot
    scale: FloatArray

    @property
    def spread(self) -> FloatArray:
        return self.scale * self.root.spread

    @property
    def unit(self) -> FloatArray | None:
        return self.root.unit

    def times(self, vectors: FloatArray) -> FloatArray:
        return self.scale * self.root.times(vectors)

    def transposed_times(self, vectors: FloatArray) -> FloatArray:
        return self.root.transposed_times(self.scale * vectors)

    def entries(self, row: int, column: int) -> FloatArray:
        return self.scale[:, 0] ** 2 * self.root.entries(row, column)


LARGEST_STEP = 2.0**100
# Newton's iteration, and from there on halvings.
MOST_NEWTON, MOST_TRIALS = 40, 100
# A slope at this share of the first, or a bracket as narrow, is as good as none.
NEGLIGIBLE = 1e-13
_EPS = float(np.finfo(np.float64).eps)


def line_minima(
    risk: Risk, targets: FloatArray, alpha: FloatArray, values: FloatArray, direction: FloatArray, image: FloatArray
) -> FloatArray:
    """Steps at which the risk is least along alpha + t h: (q,), zero where that is no way down.

    - `targets`, `alpha`, `values`, `direction`, `image` (n, p): y, alpha, f = K alpha, h and K h.
    """
    linear = risk.regularisation * risk.inner(alpha, image)
    quadratic = np.maximum(risk.regularisation * risk.inner(direction, image), 0.0)

    def slopes(step: FloatArray) -> tuple[FloatArray, FloatArray]:
        at = values + step * image
        first = risk.inner(risk.slope(targets, at), image) + linear + step * quadratic
        return first, risk.inner(risk.curvature_times(targets, at, image), image) + quadratic

    low, high = np.zeros_like(linear), np.full_like(linear, np.inf)
    first, second = slopes(low)
    noise = _EPS * (risk.inner(np.abs(risk.slope(targets, values)), np.abs(image)) + np.abs(linear))
    enough = np.maximum(NEGLIGIBLE * np.abs(first), noise)
    done, step = ~(first < 0.0), np.zeros_like(low)
    for count in range(MOST_TRIALS):
        if done.all():
            break
        newton = step + np.divide(-first, second, out=np.full_like(first, np.inf), where=second > 0.0)
        middle = np.where(np.isfinite(high), 0.5 * (low + high), np.where(low > 0.0, 2.0 * low, 1.0))
        sound = (newton > low) & (newton < high) & (newton <= LARGEST_STEP) & (count < MOST_NEWTON)
        trial = np.where(sound, newton, middle)
        still = np.abs(trial - step) <= NEGLIGIBLE * trial
        step = np.where(done, step, trial)
        first, second = slopes(step)
        low, high = np.where(first < 0.0, step, low), np.where(first >= 0.0, step, high)
        # A share of the lower end: where there is no upper one yet, a share of that would be as infinite as the width.
        done = done | still | (np.abs(first) <= enough) | (high - low <= NEGLIGIBLE * low) | (step >= LARGEST_STEP)
    return step
