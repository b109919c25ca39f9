"""Rules for when to stop, which combine with `|` (any) and `&` (all), as `GradientInfNorm(1e-4) | MaxPasses(50)`.

A rule is asked with the current `Progress` and answers with a reason or nothing. Rules that mean "solved" set
`converged`; a rule about effort does not.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dkgp.codec import rule, to_json
from dkgp.errors import InputError


def _rounded(timings: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in timings.items()}


@dataclass(frozen=True)
class Progress:
    """State of a solve after a round; one structured record.

    Attributes
    ----------
    iteration : int
        Rounds done.
    column_passes : float
        Kernel columns evaluated, in units of n.
    kernel_evaluations : int
        Kernel entries evaluated: for columns, in selection and dense subproblems, for float64 products, anywhere. The
        count varies a little with timing: the coordinator evaluates entries instead of waiting for a cluster.
    seconds : float
        Wall time, earlier runs of the same solve included.
    gradient_inf_norm : float
        max |g|, g = Kbar alpha - y, over samples and targets.
    gradient_norm, rhs_norm : float
        Euclidean norms of g and y (largest target).
    relative_residual : float
        Largest ||g_t|| / ||y_t|| over targets t.
    objective : float
        f(alpha) = alpha' Kbar alpha / 2 - y' alpha, summed over targets (GBCD paper, equation 3).
    objective_gap_bound : float
        ||g||^2 / (2 s2), never below f(alpha) - min f.
    timings : dict of str to float
        Seconds spent in this round, by phase.
    duality_gap : float
        Relative gap between a bound above and one below the least regularised risk; see `DualityGap`.
    distance : float
        Of a risk: radius of the ball in the RKHS in which the function that has the least is, ||g||_K / (2 lambda) with
        the functional gradient g, of the worst problem. Between products of K with g it is of the last that was taken.
    rounding : float
        Of a risk: by how much the distance that can be proven exceeds that, mostly roundings, where it is known.
    """

    iteration: int
    column_passes: float
    kernel_evaluations: int
    seconds: float
    gradient_inf_norm: float
    gradient_norm: float
    relative_residual: float
    objective: float
    objective_gap_bound: float
    timings: dict[str, float] = field(default_factory=dict, metadata=rule(write=_rounded))
    duality_gap: float = np.inf
    distance: float = np.inf
    rounding: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the record in plain JSON types."""
        return dict(to_json(self))


@dataclass(frozen=True)
class StopReason:
    """Reason why a solve stopped; `advice` is for a solve that stopped short."""

    rule: str
    converged: bool
    message: str
    advice: str = ""

    def summary(self) -> dict[str, Any]:
        """The end of a run, as summaries of training tell it."""
        return {"converged": self.converged, "reason": self.message, "advice": self.advice}


class StoppingRule(ABC):
    """A condition on progress."""

    @property
    def limits_effort(self) -> bool:
        """True if every solve meets it at some time, however little it gains."""
        return False

    @abstractmethod
    def check(self, progress: Progress) -> StopReason | None:
        """Return a reason to stop now, or None."""

    def needed_fall(self, progress: Progress) -> float:
        """Return by how much the gradient must fall until this calls it solved; infinite where it never does."""
        return math.inf

    @property
    def gradient_limit(self) -> float | None:
        """The max |g| at which the rule calls a problem solved; None for a rule on other measures."""
        return None

    def __or__(self, other: StoppingRule) -> StoppingRule:
        return AnyOf((self, other))

    def __and__(self, other: StoppingRule) -> StoppingRule:
        return AllOf((self, other))


@dataclass(frozen=True)
class AnyOf(StoppingRule):
    """Stops when one of its rules does; a rule that means converged wins."""

    rules: tuple[StoppingRule, ...]

    def check(self, progress: Progress) -> StopReason | None:
        """Return the first converged reason, else the first reason."""
        reasons = [reason for rule in self.rules if (reason := rule.check(progress)) is not None]
        return next((reason for reason in reasons if reason.converged), reasons[0] if reasons else None)

    @property
    def limits_effort(self) -> bool:
        """True if one of its rules limits it."""
        return any(rule.limits_effort for rule in self.rules)

    @property
    def gradient_limit(self) -> float | None:
        """The least limit of its rules."""
        return min((limit for rule in self.rules if (limit := rule.gradient_limit) is not None), default=None)

    def needed_fall(self, progress: Progress) -> float:
        """Return the least that any rule leaves."""
        return min(rule.needed_fall(progress) for rule in self.rules)


@dataclass(frozen=True)
class AllOf(StoppingRule):
    """Stops when all of its rules do; converged when all are."""

    rules: tuple[StoppingRule, ...]

    def check(self, progress: Progress) -> StopReason | None:
        """Return a joint reason when every rule has one."""
        reasons = [rule.check(progress) for rule in self.rules]
        if any(reason is None for reason in reasons):
            return None
        known = [reason for reason in reasons if reason is not None]
        return StopReason(
            " & ".join(reason.rule for reason in known),
            all(reason.converged for reason in known),
            "; ".join(reason.message for reason in known),
            "; ".join(reason.advice for reason in known if reason.advice),
        )

    @property
    def limits_effort(self) -> bool:
        """True if all of its rules limit it."""
        return all(rule.limits_effort for rule in self.rules)

    def needed_fall(self, progress: Progress) -> float:
        """Return the most that any rule leaves."""
        return max(rule.needed_fall(progress) for rule in self.rules)


# A solve stands still where neither the gradient falls by this share, nor the objective by that of itself, over so many
# rounds and column passes: passes that are as many as all before them, since slow solves gain little at a time.
LEAST_FALL, LEAST_DESCENT = 0.01, 1e-9
STANDSTILL_ROUNDS, STANDSTILL_PASSES = 50, 200.0
# Where nobody limits the effort, these passes do, and twice as many for each time that the remaining fall has halved.
DEFAULT_PASSES = 10_000.0


class Standstill:
    """Ends a solve that comes no closer to its rule, which would go on for ever; shown the progress of every round."""

    def __init__(self, rule: StoppingRule) -> None:
        self._rule = rule
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget the rounds so far: their gain was not real, or belongs to another precision."""
        self._since: tuple[int, float] | None = None  # rounds and passes at the last gain
        self._needed = self._norm = self._objective = self._needed_before = math.inf
        self._allowed = DEFAULT_PASSES / 2.0

    def check(self, progress: Progress) -> StopReason | None:
        """Return a reason to stop if nothing was gained for long, or too little for an end to come."""
        needed, norm, objective = self._rule.needed_fall(progress), progress.gradient_norm, progress.objective
        share = 1.0 - LEAST_FALL
        descent = LEAST_DESCENT * abs(self._objective) if math.isfinite(self._objective) else 0.0
        gained = needed < share * self._needed or norm < share * self._norm or objective < self._objective - descent
        if self._since is None or gained:
            self._since = progress.iteration, progress.column_passes
            self._needed, self._norm = min(needed, self._needed), min(norm, self._norm)
            self._objective = min(objective, self._objective)
        if not self._rule.limits_effort and progress.column_passes >= self._allowed:
            if self._allowed >= DEFAULT_PASSES and not self._needed <= 0.5 * self._needed_before:
                cause = f"{progress.column_passes:,.0f} column passes, and the second half came little closer"
                return stands_still(progress, cause)
            self._needed_before, self._allowed = self._needed, 2.0 * self._allowed
        rounds, passes = progress.iteration - self._since[0], progress.column_passes - self._since[1]
        if rounds < STANDSTILL_ROUNDS or 0.0 < passes < max(STANDSTILL_PASSES, self._since[1]):
            return None
        return stands_still(progress, f"the last {rounds:,} rounds ({passes:,.0f} column passes) gained nothing")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, for a checkpoint."""
        measures = (self._needed, self._norm, self._objective, self._needed_before)
        finite = [value if math.isfinite(value) else None for value in measures]
        return {"standstill": {"since": self._since, "allowed": self._allowed, "measures": finite}}

    def restore(self, saved: dict[str, Any]) -> None:
        """Take over the numbers of a checkpoint; one of an earlier version has none."""
        if "standstill" in saved:
            document = saved["standstill"]
            self._since = None if document["since"] is None else tuple(document["since"])
            self._allowed = document["allowed"]
            measures = [math.inf if value is None else value for value in document["measures"]]
            self._needed, self._norm, self._objective, self._needed_before = measures


def stands_still(progress: Progress, cause: str) -> StopReason:
    """Reason of a solve that can come no closer."""
    return StopReason(
        "standstill",
        False,
        f"{cause}: max|g| stays at {progress.gradient_inf_norm:.3g}",
        "raise the noise variance or the tolerance, leave out samples whose known noise is many orders of magnitude "
        "above the others', take another solver, or set `max_passes` where little by little is enough",
    )


def _require(name: str, value: float, least: float = 0.0) -> None:
    if not np.isfinite(value) or value <= least:
        raise InputError(f"{name} must be finite and above {least:g}; got {value!r}")


class ToTolerance(StoppingRule):
    """Converged when a measure of progress has come down to a tolerance; a subclass defines the measure and its words.

    - `rule`, `message`: of the reason; the message has places for the `measure` and the `tolerance`.
    - `subject`: the name of the tolerance in errors.
    """

    rule: ClassVar[str]
    message: ClassVar[str]
    subject: ClassVar[str] = "the tolerance"
    tolerance: float

    def __post_init__(self) -> None:
        _require(self.subject, self.tolerance)

    @abstractmethod
    def measure(self, progress: Progress) -> float:
        """Return the measure, which falls with the gradient."""

    def check(self, progress: Progress) -> StopReason | None:
        """Compare the measure."""
        measure = self.measure(progress)
        if not measure <= self.tolerance:  # not: NaN is never converged
            return None
        message = self.message.format(measure=measure, tolerance=self.tolerance)
        return StopReason(self.rule, True, message)

    def needed_fall(self, progress: Progress) -> float:
        """Compare the measure."""
        return self.measure(progress) / self.tolerance


@dataclass(frozen=True)
class GradientInfNorm(ToTolerance):
    """Converged when max |g| <= tolerance; the GBCD paper's criterion, 1e-4 there."""

    rule = "gradient_inf_norm"
    message = "max|g| = {measure:.3g} <= {tolerance:.3g}"
    tolerance: float = 1e-4

    @property
    def gradient_limit(self) -> float:
        """The tolerance."""
        return self.tolerance

    def measure(self, progress: Progress) -> float:
        """max |g|."""
        return progress.gradient_inf_norm


@dataclass(frozen=True)
class RelativeResidual(ToTolerance):
    """Converged when ||g|| / ||y|| <= tolerance for every target."""

    rule = "relative_residual"
    message = "||r||/||y|| = {measure:.3g} <= {tolerance:.3g}"
    tolerance: float = 1e-4

    def measure(self, progress: Progress) -> float:
        """Largest ||g|| / ||y||."""
        return progress.relative_residual


@dataclass(frozen=True)
class ObjectiveGap(StoppingRule):
    """Converged when the objective is proven to be near its minimum: ||g||^2 / (2 s2) <= tolerance |f|."""

    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        _require("the tolerance", self.tolerance)

    def check(self, progress: Progress) -> StopReason | None:
        """Compare the bound on the objective's gap."""
        target = self.tolerance * abs(progress.objective)
        if not (progress.objective_gap_bound <= target < np.inf):
            return None
        gap = progress.objective_gap_bound
        return StopReason("objective_gap", True, f"objective within {gap:.3g} of its minimum {progress.objective:.6g}")

    def needed_fall(self, progress: Progress) -> float:
        """Compare the bound, which falls with the gradient's square."""
        target = self.tolerance * abs(progress.objective)
        return math.sqrt(progress.objective_gap_bound / target) if target > 0.0 else math.inf


@dataclass(frozen=True)
class DualityGap(ToTolerance):
    """Converged when the regularised risk is proven to be near the least there is.

    With R(alpha) = ||y - K alpha||^2 / 2 + s2 alpha' K alpha / 2, Q = R - ||y||^2 / 2 and the objective f,
    min R = -s2 min f, so that any alpha bounds min Q from above, by Q(alpha), and from below, by -s2 f(alpha) -
    ||y||^2 / 2. The two differ by ||g||^2 / 2, which costs nothing to know. The gap is that difference over the mean of
    their magnitudes: Smola and Bartlett (2001), Theorem 1 and their stopping criterion; after Gibbs and MacKay. It says
    nothing about any single prediction; `GradientInfNorm` does. Where a solver knows of a narrower difference
    (`SolverState.risk_width`), that counts. Of another loss (`Risk`) the gap is that of R itself, over the larger of
    the two bounds' magnitudes.
    """

    rule = "duality_gap"
    message = "duality gap {measure:.3g} <= {tolerance:.3g}"
    tolerance: float = 0.025

    def measure(self, progress: Progress) -> float:
        """The relative gap."""
        return progress.duality_gap

    def needed_fall(self, progress: Progress) -> float:
        """Compare the gap, which falls with the gradient's square."""
        return math.sqrt(max(progress.duality_gap, 0.0) / self.tolerance)


class _Effort(StoppingRule):
    """Stops when a measure of effort reaches a limit; a subclass defines both and the words of the reason.

    - `limit`, `measure`: the field of the rule, and that of the progress.
    - `message`: of the reason, with places for the `limit` and the `progress`.
    """

    limit: ClassVar[str]
    measure: ClassVar[str]
    message: ClassVar[str]
    advice: ClassVar[str]

    def __post_init__(self) -> None:
        _require(f"the number of {self.limit}", getattr(self, self.limit))

    @property
    def limits_effort(self) -> bool:
        """Always."""
        return True

    def check(self, progress: Progress) -> StopReason | None:
        """Compare the effort so far."""
        limit = getattr(self, self.limit)
        if getattr(progress, self.measure) < limit:
            return None
        message = self.message.format(limit=limit, progress=progress)
        return StopReason(f"max_{self.limit}", False, message, self.advice)


@dataclass(frozen=True)
class MaxIterations(_Effort):
    """Stops after so many rounds."""

    limit, measure = "iterations", "iteration"
    message = "the limit of {progress.iteration} iterations was reached"
    advice = "allow more iterations, or a larger tolerance"
    iterations: int


@dataclass(frozen=True)
class MaxPasses(_Effort):
    """Stops after so many column passes (rounds * m / n)."""

    limit, measure = "passes", "column_passes"
    message = "the limit of {limit:g} passes over the kernel matrix was reached"
    advice = "resume with a larger `max_passes` or `tolerance`"
    passes: float


@dataclass(frozen=True)
class MaxSeconds(_Effort):
    """Stops after so many seconds of wall time."""

    limit = measure = "seconds"
    message = "the limit of {limit:g} s was reached, after {progress.seconds:.0f} s"
    advice = "resume with a larger `max_seconds`"
    seconds: float


OUT_OF_TIME = StopReason("time", False, "the time limit of the run was near", "allow more time, or a larger tolerance")
