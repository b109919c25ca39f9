"""Few, long steps on a gradient that is known but for its errors, without values of the function: BFGS with a radius.

A log determinant of n samples is not to be had, so there is no line search on values. What there is: the first step is
Newton's with the Fisher information's diagonal; from then on gradients before and after a step tell the curvature along
it, since the probes behind them are frozen. A step that goes past the maximum by more than it went up is taken back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.data.types import BoolArray, FloatArray

# In logarithms: no hyperparameter changes by more than a factor of 1.65 in a step.
RADIUS = 0.5
LEAST_RADIUS = 1e-3
# Random signs vary more than data do, two to four times on the data sets looked at: half of it errs on the safe side.
SHARE_OF_CURVATURE = 0.5
# A step whose slope at the end falls by this many times its slope at the start is taken back.
LARGEST_REVERSAL = 2.0
# In nats for a factor of e: smaller slopes, such as that of a length scale beyond all distances, are not followed.
NEGLIGIBLE = 0.1
# Powell's damping: the least share of the expected curvature that a step may observe.
LEAST_CURVATURE_SHARE = 0.2


@dataclass(frozen=True)
class Point:
    """A point of the search: logarithms of parameters, the gradient, and errors of its components; (q,) each."""

    parameters: FloatArray
    gradient: FloatArray
    error: FloatArray

    def significance(self, free: BoolArray) -> float:
        """Root mean square of the free components in units of their errors; at most 1 where nothing is left to find."""
        return float(np.sqrt(np.mean(_ratios(self.gradient, self.error)[free] ** 2))) if np.any(free) else 0.0


class QuasiNewton:
    """Proposes steps uphill and learns from what came of them.

    `bounds` (q, 2) are those of the parameters, in logarithms, `curvature` (q,) is an estimate of minus the second
    derivatives at the start, and `movable` (q,) says which parameters may move.
    """

    def __init__(self, bounds: FloatArray, curvature: FloatArray, movable: BoolArray) -> None:
        self._bounds, self._movable = bounds, movable
        self._radius = RADIUS
        self._hessian = np.diag(np.maximum(SHARE_OF_CURVATURE * curvature, np.finfo(np.float64).tiny))

    def free(self, point: Point) -> BoolArray:
        """Mask of parameters that can follow the gradient: movable, and not pushed out of their bounds: (q,) bool."""
        lower, upper = self._bounds.T
        out = ((point.parameters <= lower) & (point.gradient < 0.0)) | (
            (point.parameters >= upper) & (point.gradient > 0.0)
        )
        return np.asarray(self._movable & ~out)

    def gain_left(self, point: Point) -> float:
        """Return the rise of the log likelihood to its maximum, by the learnt curvature: half g' H^-1 g, in nats."""
        free = np.flatnonzero(self.free(point))
        gradient = point.gradient[free]
        return 0.5 * float(gradient @ np.linalg.solve(self._hessian[np.ix_(free, free)], gradient))

    def propose(self, point: Point) -> FloatArray:
        """The next point to try: (q,) parameters within the bounds."""
        free = np.flatnonzero(self.free(point))
        step = np.zeros_like(point.parameters)
        gradient = point.gradient[free]
        # A direction without curvature, a feature that hardly counts, goes as far as its slope is significant.
        hessian = self._hessian[np.ix_(free, free)]
        floor = np.abs(gradient) / self._radius
        hessian = hessian + np.diag(np.maximum(floor - hessian.diagonal(), 0.0))
        step[free] = np.linalg.solve(hessian, gradient)
        step = np.clip(step, -self._radius, self._radius)
        if not step @ point.gradient > 0.0:
            step[free] = np.clip(gradient / hessian.diagonal(), -self._radius, self._radius)
        return np.asarray(np.clip(point.parameters + step, *self._bounds.T))

    def learn(self, old: Point, new: Point) -> bool:
        """Take in what a step found; return whether to stay at the new point."""
        step, fall = new.parameters - old.parameters, old.gradient - new.gradient
        step, fall = np.where(self._movable, step, 0.0), np.where(self._movable, fall, 0.0)
        curved = self._hessian @ step
        expected, observed = float(step @ curved), float(step @ fall)
        if expected > 0.0:
            if observed < LEAST_CURVATURE_SHARE * expected:
                share = (1.0 - LEAST_CURVATURE_SHARE) * expected / (expected - observed)
                fall = share * fall + (1.0 - share) * curved
                observed = float(step @ fall)
            self._hessian += np.outer(fall, fall) / observed - np.outer(curved, curved) / expected
        before, after = float(step @ old.gradient), float(step @ new.gradient)
        if after < -LARGEST_REVERSAL * abs(before):
            self.retreat()
            return False
        self._radius = min(RADIUS, 2.0 * self._radius)
        return True

    def retreat(self) -> None:
        """Stay closer from now on: the last step led too far."""
        self._radius *= 0.25

    @property
    def stuck(self) -> bool:
        """True once steps have become too short to matter."""
        return self._radius < LEAST_RADIUS


def estimated_gain(old: Point, new: Point) -> float:
    """The rise of the log likelihood in a step, in nats, by the trapezoid rule."""
    return float((new.parameters - old.parameters) @ (old.gradient + new.gradient)) / 2.0


def gain_error(first: Point, now: Point) -> float:
    """Error of the gain between two points: the probes are frozen, so gradients on the way err in the same way."""
    way = now.parameters - first.parameters
    return float(np.linalg.norm(way * np.maximum(first.error, now.error)))


def _ratios(gradient: FloatArray, error: FloatArray) -> FloatArray:
    """The gradient in units of its error, of which `NEGLIGIBLE` is the least."""
    return np.asarray(gradient / np.maximum(error, NEGLIGIBLE))
