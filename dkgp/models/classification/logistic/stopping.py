"""The rule that a regularised risk's minimisation is good enough for decisions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dkgp.errors import InputError
from dkgp.solvers import Progress, StoppingRule, StopReason

__all__ = ["NO_NOISE", "RISK_TOLERANCE", "RiskError"]

# By default decisions are within so much of the exact minimiser's; a probability is then within a quarter of it.
RISK_TOLERANCE = 1e-3
# An operator's noise plays no part in a risk, and this disappears beside any entry.
NO_NOISE = 2.0**-300


@dataclass(frozen=True)
class RiskError(StoppingRule):
    """Converged when decisions are near the exact minimiser's: ||grad R|| / (2 lambda) max sqrt(k(x, x)) <= tolerance.

    That is the radius of the ball in which the minimiser lies (theorem 12), taken at the samples. What is proven of
    each decision is evaluated afterwards, for what was found and with all roundings; this only says when to stop.

    Parameters
    ----------
    tolerance : float
        On a decision.
    largest : float
        max k(x, x).
    """

    tolerance: float
    largest: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tolerance) and self.tolerance > 0.0):
            raise InputError(f"the tolerance of decisions must be finite and above 0; got {self.tolerance!r}")

    def error(self, progress: Progress) -> float:
        """Distance that decisions may be at from the exact ones."""
        return progress.distance * math.sqrt(self.largest)

    def check(self, progress: Progress) -> StopReason | None:
        """Compare the decisions' error."""
        error = self.error(progress)
        if not error <= self.tolerance:
            return None
        return StopReason("decision_error", True, f"decisions within {error:.3g} <= {self.tolerance:.3g}")

    def left(self, progress: Progress) -> float:
        """Compare the decisions' error, which falls with the gradient."""
        return self.error(progress) / self.tolerance
