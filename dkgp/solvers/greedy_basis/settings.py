"""Settings of a greedy choice, what its rounds tell, and what it ends in."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from dkgp.errors import InputError
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.solvers.greedy_basis.scores import SCORES, Score
from dkgp.solvers.stopping import StopReason

# Best of so many drawn at random is one of the best 5 % with a probability of 95 %: ceil(log .05 / log .95);
# section 3.5.2 of the pursuit paper.
CANDIDATES = 59


@dataclass(frozen=True)
class GreedySettings:
    """Settings that determine a choice.

    - `size`: basis samples at most, m.
    - `candidates`: kappa: each choice is the best of its own random draw of this many.
    - `per_round`: choices a round, each from its own draw by the weights before the round. 1 is the papers'; more spare
      rounds.
    - `exhaustive`: score every sample at every choice; for small n.
    - `kept`: best of earlier candidates that were not chosen, scored again in every round.
    - `screen`: of each draw, score no more than this many, the best by `single`, which takes no products with the
      basis.
    - `score_rows`: screen by a fresh random sample of so many rows instead of all; `screen` is one at least then.
    - `gap`: stop at this duality gap; choosing S* for it takes entries here, and none elsewhere.
    - `gap_of`: over what the two bounds' difference is taken: Smola and Bartlett's gap, over the log posterior's size,
      or over the mean of the bounds on the least risk. That is half of y' Kbar^-1 y, what is taken off a variance where
      y is a kernel column: their error bars are judged by it.
    - `dual`: find the gap in any case.
    """

    size: int
    score: Score = "refit"
    candidates: int = CANDIDATES
    per_round: int = 1
    exhaustive: bool = False
    kept: int = 0
    screen: int = 0
    score_rows: int | None = None
    gap: float | None = None
    gap_of: Literal["posterior", "risk"] = "posterior"
    dual: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("size", "candidates", "per_round"):
            if getattr(self, name) < 1:
                raise InputError(f"`{name}` must be at least 1; got {getattr(self, name)}")
        if self.score not in SCORES:
            raise InputError(f"`score` must be one of {', '.join(SCORES)}; got {self.score!r}")
        if self.gap_of not in ("posterior", "risk"):
            raise InputError(f"`gap_of` must be posterior or risk; got {self.gap_of!r}")
        for name in ("kept", "screen"):
            if getattr(self, name) < 0:
                raise InputError(f"`{name}` must be at least 0; got {getattr(self, name)}")
        if self.score_rows is not None and self.score_rows < 2:
            raise InputError(f"`score_rows` must be at least 2; got {self.score_rows}")
        if self.score_rows is not None and not self.screen:
            object.__setattr__(self, "screen", 1)
        if self.gap is not None and not (np.isfinite(self.gap) and self.gap > 0.0):
            raise InputError(f"the duality gap must be positive; got {self.gap}")

    def checked(self, n: int) -> GreedySettings:
        """Return the settings for n samples; `InputError` where the basis would have more."""
        if self.size > n:
            raise InputError(f"a basis of {self.size:,} samples was asked for; there are {n:,}")
        return self

    def gap_between(self, risk: float, least: float, square: float) -> float:
        """The gap of bounds on the least risk, for y' D y = `square`."""
        middle = square - risk - least if self.gap_of == "posterior" else risk + least
        return 2.0 * (risk - least) / max(middle, float(np.finfo(float).tiny))

    @property
    def tracks_gap(self) -> bool:
        """True if S* is chosen, too."""
        return self.dual or self.gap is not None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)

    def identity(self) -> dict[str, Any]:
        """Settings that a choice must share with one that it goes on from: all but the size."""
        return {name: value for name, value in self.to_json().items() if name != "size"}


@dataclass(frozen=True)
class GreedyProgress:
    """State after a round.

    - `round`, `size`: rounds done, basis samples.
    - `risk`: R of the refitted weights, summed over targets: what the data say of the weights before the round, less
      what the round is known to take off.
    - `least`: min R is at least this, by S*, but for roundings.
    - `gap`: see `GreedySettings.gap_of`.
    """

    round: int
    size: int
    risk: float
    least: float | None
    gap: float | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class GreedyBasis:
    """A basis that was chosen.

    - `indices` (m,): in the order of choice: any first part is the basis that a smaller m would have had, if chosen one
      a round.
    - `weights` (m, p): by the factor that grew with it; a fit in whitened form is more accurate.
    - `dual` (m*,): S*, empty where it was not asked for.
    - `system` (m, m): A_SS = K_mn D K_nm + K_mm as it was summed; None once a fit has had it.
    """

    indices: IndexArray
    weights: FloatArray
    dual: IndexArray
    reason: StopReason
    history: list[GreedyProgress] = field(default_factory=list)
    system: FloatArray | None = None
