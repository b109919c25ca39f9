"""Convergence of a solve so far, and when it may be done, from its gradient norms or gaps."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

# Of a round: `seconds`, and the measure under its name.
Round: TypeAlias = Any

# Gradient norms of a greedy method fall on a line in log space, with jumps: a shorter window would chase the jumps.
_LEAST_WINDOW = 8
# An extrapolation over more than so many times the rounds it comes from says nothing.
_FARTHEST = 1e4


class ConvergenceEstimate:
    """Follows max |g|, or another measure, on its way down to the tolerance, on a logarithmic scale.

    Parameters
    ----------
    tolerance : float
        The solve is done when the measure is at or below it.
    measure : str
        A field of the rounds' records, perhaps not finite at first.
    """

    def __init__(self, tolerance: float, measure: str = "gradient_inf_norm") -> None:
        self.tolerance, self._measure = tolerance, measure
        self._seconds: list[float] = []
        self._log_best: list[float] = []

    def update(self, progress: Round) -> None:
        """Take a round's record in."""
        value = float(getattr(progress, self._measure))
        if not math.isfinite(value):
            return
        norm = math.log(max(value, 1e-300))
        self._seconds.append(progress.seconds)
        self._log_best.append(min(norm, self._log_best[-1]) if self._log_best else norm)

    def to_json(self) -> dict[str, Any]:
        """Figures of the rounds so far, which `solve_line` takes beside the last one."""
        return {
            "measure": self._measure,
            "tolerance": self.tolerance,
            "fraction": self.fraction,
            "decades_per_minute": self.decades_per_minute,
            "seconds_left": self.seconds_left,
        }

    @property
    def fraction(self) -> float:
        """Share of the way from the first gradient norm to the tolerance, 0 to 1; it never falls."""
        if not self._log_best:
            return 0.0
        goal = math.log(self.tolerance)
        if self._log_best[-1] <= goal:
            return 1.0
        return (self._log_best[0] - self._log_best[-1]) / (self._log_best[0] - goal)

    @property
    def decades_per_minute(self) -> float | None:
        """Rate of the recent half of the rounds, in powers of ten; None while there is none."""
        slope = self._slope()
        return None if slope is None else -60.0 * slope / math.log(10.0)

    @property
    def seconds_left(self) -> float | None:
        """Time to the tolerance at the recent rate; None if the measure does not fall, or too slowly to tell."""
        slope = self._slope()
        missing = self._log_best[-1] - math.log(self.tolerance) if self._log_best else math.inf
        if missing <= 0.0:
            return 0.0
        if slope is None or missing > -slope * _FARTHEST * (self._seconds[-1] - self._seconds[0]):
            return None
        return missing / -slope

    def _slope(self) -> float | None:
        """Slope of log max |g| against seconds over the recent half; None if it does not fall."""
        count = max(_LEAST_WINDOW, len(self._seconds) // 2)
        seconds = np.asarray(self._seconds[-count:])
        norms = np.asarray(self._log_best[-count:])
        # The best values never rise. Where they are equal, the slope would be a rounding of zero.
        if len(seconds) < 2 or seconds[-1] <= seconds[0] or norms[-1] >= norms[0]:
            return None
        centred = seconds - seconds.mean()
        slope = float(centred @ (norms - norms.mean()) / (centred @ centred))
        return slope if slope < 0.0 else None
