"""Settings of a regularised risk's minimisation, and the rule that it is good enough for decisions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from dkgp.models.classification.labelled import REACH, DecisionTolerance
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.solvers import DualityGap, Progress, StoppingRule
from dkgp.solvers.registry import AUTO
from dkgp.solvers.risk import RiskMethod

# By default decisions are within so much of the exact minimiser's; a probability is then within a quarter of it.
RISK_TOLERANCE = 1e-3
# An operator's noise plays no part in a risk, and this disappears beside any entry.
NO_NOISE = 2.0**-300


@dataclass(frozen=True)
class RiskError(DecisionTolerance):
    """Converged when decisions are near the exact minimiser's: ||grad R|| / (2 lambda) max sqrt(k(x, x)) <= tolerance.

    That is the radius of the ball in which the minimiser lies (theorem 12), taken at the samples. Roundings that its
    proof counts are added, so that the bound that is stored is within the tolerance. Where roundings take nearly all of
    the tolerance, no further round brings the bound within it, and the rule goes by the radius alone.

    Parameters
    ----------
    tolerance : float
        On a decision.
    largest : float
        max k(x, x).
    """

    tolerance: float
    largest: float

    def measure(self, progress: Progress) -> float:
        """Distance that decisions may be at from the exact ones."""
        scale = math.sqrt(self.largest)
        rounding = progress.rounding * scale
        return progress.distance * scale + (rounding if rounding <= REACH * self.tolerance else 0.0)


@dataclass(frozen=True)
class RiskSettings:
    """The risk sum_i w_i l(y_i, f(x_i)) + lambda |f|^2 / 2, and how it is minimised.

    Parameters
    ----------
    likelihood : Likelihood
        Its negative logarithm is the loss l.
    regularisation : float
        lambda.
    method : str or RiskMethod
        Of `dkgp.solvers.risk.RISK_METHODS`, or "auto"; see `minimise_risk`.
    tolerance : float
        Stop where decisions are within about this of the exact minimiser's; see `RiskError`.
    gap : float, optional
        Stop where the risk is proven to be within this share of the least instead.
    limits : StoppingRule, optional
        Rules at which it stops too, such as `MaxPasses(50)`.
    precision : {"mixed", "double"}
        Of the kernel products on the way.
    seed : int
        Of what a method draws.
    """

    likelihood: Likelihood
    regularisation: float = 1.0
    method: str | RiskMethod[Any] = AUTO
    tolerance: float = RISK_TOLERANCE
    gap: float | None = None
    limits: StoppingRule | None = None
    precision: Literal["mixed", "double"] = "mixed"
    seed: int = 0

    def error(self, largest: float) -> RiskError:
        """The rule on decisions, of a kernel with max k(x, x) = `largest`; `InputError` for its tolerance."""
        return RiskError(self.tolerance, largest)

    def converged(self, largest: float) -> StoppingRule:
        """The rule that says when the risk is minimised: on decisions, or on the risk itself."""
        rule = self.error(largest)
        return rule if self.gap is None else DualityGap(self.gap)
