"""A factor that grows: where a solve proves harder than foreseen, one with a larger halo, and the search goes on.

Decided by counts and residuals alone, so that a run comes to the same bits wherever it runs and however often it is
resumed. What the last iterations gained says how many are left; a factor of twice the halo should need 2^-3/4 of them,
and costs what it takes to make, by the nominal prices of `dkgp.solvers.prices`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

# Iterations whose residuals say how fast it goes; conjugate gradients' norms go up and down.
WINDOW = 12
# The number of products falls about as s^-3/4: kin40k and others, n = 30,000, s from 500 to 2,000.
PRODUCTS_BY_HALO = 0.75
# What must be gained beyond the price, for what is left is a guess.
LEAST_RETURN = 1.5
MOST_LEVELS = 3


@dataclass(frozen=True)
class Price:
    """Nominal seconds of a factor: to make it, and of an iteration with it, product included."""

    build: float
    iteration: float


@dataclass
class Growth:
    """Count of how often the factor has grown, and how the residual fell since.

    - `level`: times that the halo was doubled.
    - `norms`: ||g|| before the last iterations with the factor at hand.
    """

    level: int = 0
    norms: list[float] = field(default_factory=list)

    def note(self, norm: float) -> None:
        """Take in where an iteration starts from."""
        self.norms = [*self.norms[-WINDOW:], norm]

    def is_worth(self, left: float, now: Price, larger: Price) -> bool:
        """True if a larger factor should pay, where the gradient must still fall by `left`."""
        if self.level >= MOST_LEVELS or len(self.norms) <= WINDOW or not 1.0 < left < math.inf:
            return False
        fall = math.log(self.norms[0] / self.norms[-1]) / WINDOW if self.norms[-1] > 0.0 else math.inf
        iterations = math.log(left) / max(fall, 1e-9)
        fewer = iterations / math.pow(2.0, PRODUCTS_BY_HALO)
        return iterations * now.iteration > fewer * larger.iteration + LEAST_RETURN * larger.build

    def grow(self) -> None:
        """Go on with a larger factor."""
        self.level, self.norms = self.level + 1, []

    def metadata(self) -> dict[str, Any]:
        """Plain JSON types, for a checkpoint."""
        return {"level": self.level, "norms": self.norms}

    @classmethod
    def of(cls, saved: dict[str, Any]) -> Growth:
        """Go on from a checkpoint; one of before factors grew has no such thing."""
        return cls(int(saved.get("level", 0)), list(saved.get("norms", ())))
