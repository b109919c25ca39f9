"""The rule that a solve for [Y, 1] is good enough for decisions."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from dkgp.errors import InputError
from dkgp.solvers import Progress, StoppingRule, StopReason


@dataclass(frozen=True)
class DecisionError(StoppingRule):
    """Converged when decisions are near the exact ones: (1 + |b|) ||g|| sqrt(max V_b) / s <= tolerance, |b| = 1.

    g is the largest of the gradients of the t + 1 columns, so that this bounds |r| / s of every decision by the
    triangle inequality; |b| <= 1 is what an intercept of labels -1 and 1 is in all but contrived cases. V_b is taken as
    k(x, x), and with an intercept the variance of the noise's mean, which is what a level is unsure by: where s2 is as
    large as n k(x, x), nothing else would tell the start, E = 0 without any intercept, from the solution. What is
    proven of each decision is evaluated afterwards, for the solution's own intercept and with all roundings; this only
    says when to stop.

    `tolerance` is of a decision, whose margins are at -1 and 1; `noise_variance` is s2, the least of all samples';
    `largest` is max k(x, x); `level` is the variance of the noise's mean over the samples, sum_i s2_i / n^2.
    """

    tolerance: float
    noise_variance: float
    largest: float
    intercept: bool = True
    level: float = 0.0

    @property
    def variance(self) -> float:
        """V_b at most, about."""
        return self.largest + (self.level if self.intercept else 0.0)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tolerance) and self.tolerance > 0.0):
            raise InputError(f"the tolerance of decisions must be finite and above 0; got {self.tolerance!r}")

    def error(self, progress: Progress) -> float:
        """Distance that decisions may be at from the exact ones."""
        return progress.gradient_norm * self._sway

    def gradient_tolerance(self, n: int) -> float:
        """The max |g| that goes with it where entries of g are of like size; what a look at the problem goes by.

        Where k(x, x) is 0 everywhere, decisions are 0 whatever g is, and any number will do.
        """
        sway = math.sqrt(n) * self._sway
        return max(self.tolerance / sway, sys.float_info.min) if sway > 0.0 else self.tolerance

    @property
    def _sway(self) -> float:
        """Largest move of a decision for each unit of ||g||: a quotient of roots, for V_b / s2 may overflow."""
        return (2.0 if self.intercept else 1.0) * math.sqrt(self.variance) / math.sqrt(self.noise_variance)

    def check(self, progress: Progress) -> StopReason | None:
        """Compare the decisions' error."""
        error = self.error(progress)
        if not error <= self.tolerance:
            return None
        return StopReason("decision_error", True, f"decisions within {error:.3g} <= {self.tolerance:.3g}")

    def left(self, progress: Progress) -> float:
        """Compare the decisions' error, which falls with the gradient."""
        return self.error(progress) / self.tolerance
