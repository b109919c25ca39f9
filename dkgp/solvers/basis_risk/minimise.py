"""Newton's method on a basis, with as few Grams as it takes.

A pass that sums slopes evaluates n m entries; one that sums a Hessian, F' W F, adds about n m^2 multiply-adds: at
m = 1,000 it is worth some twenty of the others. So a Hessian's factor is kept while it serves, as the metric of a
limited-memory quasi-Newton method (Nocedal and Wright, *Numerical Optimization*, 2006, algorithm 7.4): where the
Hessian has hardly changed its steps are Newton's, and elsewhere its pairs learn the change. Once the passes to come, by
how fast the gradient falls, cost more than another Hessian, that is summed. The first is taken at zero, where the
columns' curvatures are alike: one factor then serves all classes.

Every pass evaluates values, risk and gradient anew from the coefficients; a step that does not lower the risk enough
is followed by the least risk along it, found from values at the samples without a pass. In whitened coordinates the
risk is lambda-strongly convex, so that

    |f - f_S| <= |g| / lambda    and    R - R(f_S) <= |g|^2 / (2 lambda),    f_S the basis' best function, |.| H's norm.

A minimisation on a basis between two steps, and as a checkpoint holds it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.solvers.basis_risk.problem import BasisRisk, Curvatures, Evaluated, Factor, Mask
from dkgp.solvers.driver import NOBODY, Loop, Watch, interrupted
from dkgp.solvers.losses import Loss
from dkgp.solvers.risk.problem import Risk
from dkgp.solvers.stopping import Progress, StopReason

# Coefficients of all columns together up to which a coupled loss's whole Hessian is factored.
MOST_BLOCK_ROWS = 6000
# Of Wolfe's conditions, the least share of a decrease, and of a slope the share that may be left; of a risk, roundings.
DECREASE, SLOPE, ROUNDING = 1e-4, 0.9, 1e-12
# A bound that falls to this share is a gain, and so many steps without any are enough.
GAINED, MOST_IDLE = 0.9, 8
# Steps by one factor before it is judged, and passes that a new one is expected to need besides its own.
LEAST_STEPS, AFTER = 2, 3
# Multiply-adds that an entry's evaluation is worth, a feature of it, and a column's part in a pass of slopes.
ENTRY, FEATURE, COLUMN = 24.0, 1.0, 3.0


@dataclass(frozen=True)
class BasisRiskSolution:
    """The best function of a basis, as near as it was wanted.

    Attributes
    ----------
    weights : (m, t) float64
        beta.
    whitened : (m, t) float64
        z = L' beta.
    intercept : (t,) float64
        Zeros without one.
    values : (n, t) float64
        f at the samples.
    gradient : (q, t) float64
        In whitened coordinates, evaluated by the pass that evaluated the values.
    risk : (p,) float64
    distance : (p,) float64
        |g| / lambda: f is no farther from the basis' best function, in H's norm and up to roundings. With an intercept
        an estimate, by the factor.
    hessian : Factor or None
        Of the Hessian at this point, where it was asked for.
    explained : float
        Sum of the squares of F: the share of sum k(x, x) that the basis accounts for.
    history : list of Progress
    passes, gram_passes : int
        Times that all entries were evaluated, and those that summed Grams.
    kind : str
        Of the last factor: one "shared" by all columns, of all "columns", or of all "blocks" of a coupled loss.
    """

    weights: FloatArray
    whitened: FloatArray
    intercept: FloatArray
    values: FloatArray
    gradient: FloatArray
    risk: FloatArray
    distance: FloatArray
    hessian: Factor | None
    explained: float
    reason: StopReason
    history: list[Progress]
    passes: int
    gram_passes: int
    kind: Curvatures


def minimise_on_basis(
    cross: CrossKernel,
    targets: FloatArray,
    *,
    loss: Loss,
    regularisation: float,
    weights: FloatArray | None = None,
    intercept: bool = False,
    tolerance: float = 1e-4,
    initial: FloatArray | None = None,
) -> BasisRiskSolution:
    """Minimise a regularised risk over the span of K_nm's columns; `BasisDescent` has what a long run takes besides.

    Raises `InputError`: arguments that do not fit; `NumericalError`: a Hessian that is not positive definite in
    float64, or a risk that overflows.

    Parameters
    ----------
    targets : (n, t) float64
    weights : (n,) float64, optional
        Of each sample's loss.
    intercept : bool
        Add one to every column, unpenalised.
    tolerance : float
        Stop where f(x) is within this of the basis' best function for all x: |g| sqrt(max k(x, x)) / lambda.
    initial : (q, t) float64, optional
        Whitened coefficients to start from; zero by default.
    """
    problem = BasisRisk(cross, targets, Risk(loss, regularisation, weights), intercept)
    return BasisDescent(problem, tolerance).run(initial)


class BasisDescent:
    """Newton's method on a basis, for one risk.

    Parameters
    ----------
    tolerance : float
        See `minimise_on_basis`.
    hessian : bool
        Also factor the Hessian where it ends; of a coupled loss the whole one.

    Raises
    ------
    InputError
        Arguments that do not fit; a whole Hessian of more than `MOST_BLOCK_ROWS` coefficients.
    """

    def __init__(
        self, problem: BasisRisk, tolerance: float = 1e-4, max_iterations: int = 200, hessian: bool = False
    ) -> None:
        rows = math.prod(problem.shape)
        if not (math.isfinite(tolerance) and tolerance > 0.0) or max_iterations < 0:
            raise InputError(
                f"expected a positive `tolerance` and `max_iterations` from 0; got {tolerance}, {max_iterations}"
            )
        if hessian and problem.loss.coupled and rows > MOST_BLOCK_ROWS:
            raise InputError(
                f"the Hessian of {problem.shape[1]} columns that hang together has {rows:,} rows with "
                f"{problem.cross.m:,} basis samples, and would take {8 * rows**2 / 2**30:,.1f} GiB; up to "
                f"{MOST_BLOCK_ROWS:,} rows are factored. Take fewer basis samples, or one class against the rest "
                "(`ovr`)"
            )
        self._problem, self._tolerance, self._most, self._hessian = problem, tolerance, max_iterations, hessian
        self._callback: Callable[[Progress], None] | None = None
        prior = problem.cross.operator.prior()
        self._scale = math.sqrt(float(prior.max()))
        self._began = time.perf_counter()
        self._entries = problem.cross.operator.kernel_evaluations
        self._fine: Curvatures = "blocks" if problem.loss.coupled else "columns"

    def run(
        self,
        start: BasisRiskState | FloatArray | None = None,
        *,
        indices: IndexArray | None = None,
        watch: Watch = NOBODY,
        checkpoints: Loop | None = None,
    ) -> BasisRiskSolution:
        """Go on from a checkpoint's state, or begin at coefficients (q, t); zero by default.

        `indices` (m,) of the basis are kept in checkpoints, which the caller opens: settings in `watch` play no part.

        Raises
        ------
        NumericalError
            A Hessian that is not positive definite in float64, or a risk that overflows.
        InterruptedRunError
            `watch.interrupted` answered true.
        """
        self._callback = watch.callback
        checkpoints = Loop(NOBODY, {}) if checkpoints is None else checkpoints
        with single_threaded_blas():
            state = start if isinstance(start, BasisRiskState) else self._start(start, indices)
            return self._descend(state, watch.interrupted, checkpoints)

    def _descend(
        self, state: BasisRiskState, interruption: Callable[[], bool] | None, checkpoints: Loop
    ) -> BasisRiskSolution:
        problem = self._problem
        self._entries = problem.cross.operator.kernel_evaluations
        self._began = time.perf_counter()
        while (reason := self._reason(state)) is None:
            if interruption is not None and interruption():
                checkpoints.save(state)
                done = f"{state.iteration} steps"
                raise interrupted(f"after {done}", checkpoints.url, f"{done} are")
            began = time.perf_counter()
            if self._pays(state):
                self._refresh(state)
            self._step(state)
            self._note(state, time.perf_counter() - began)
            checkpoints.save_if_due(state)
        if checkpoints.saved_iteration != state.iteration:
            checkpoints.save(state)
        if self._hessian and not (state.fresh.all() and state.factor.kind == self._fine):
            state.evaluated, state.factor = problem.factored(state.theta, self._fine)
        return self._solution(state, reason)

    def _start(self, initial: FloatArray | None, indices: IndexArray | None) -> BasisRiskState:
        problem = self._problem
        theta = np.zeros(problem.shape) if initial is None else np.array(initial, dtype=np.float64)
        if theta.shape != problem.shape or not np.isfinite(theta).all():
            raise InputError(f"expected finite coefficients of shape {problem.shape} to start from; got {theta.shape}")
        alike = self._alike(theta)
        kind: Curvatures = "shared"
        if not alike:
            kind = "columns" if not problem.loss.coupled else "blocks" if self._affordable else "shared"
        evaluated, factor = problem.factored(theta, kind)
        exact = alike or kind != "shared"
        state = BasisRiskState(
            theta,
            evaluated,
            factor,
            problem.cross.prototypes,
            indices,
            fresh=np.full(problem.problems, exact),
            stuck=np.zeros(problem.problems, dtype=bool),
            ended=np.zeros(problem.problems, dtype=bool),
            idle=np.zeros(problem.problems, dtype=np.int64),
            least=np.full(problem.problems, np.inf),
        )
        self._note(state, time.perf_counter() - self._began)
        return state

    def _alike(self, theta: FloatArray) -> bool:
        """True at zero where all columns are curved alike there: what one factor serves."""
        problem = self._problem
        if theta.any():
            return False
        if problem.loss.coupled:
            return True
        curved = problem.loss.curvature(problem.targets, np.zeros(problem.targets.shape))
        return bool((curved == curved[:, :1]).all())

    @property
    def _affordable(self) -> bool:
        """True unless a coupled loss's whole Hessian is too large."""
        return not self._problem.loss.coupled or math.prod(self._problem.shape) <= MOST_BLOCK_ROWS

    def _bounds(self, state: BasisRiskState) -> FloatArray:
        """Bounds on the distance from the basis' best function, in H's norm: (p,)."""
        problem, g = self._problem, state.evaluated.gradient
        if problem.intercept:
            with np.errstate(invalid="ignore"):
                return np.sqrt(np.maximum(problem.dots(g, state.factor.solve(g)), 0.0) / problem.regularisation)
        return np.asarray(np.sqrt(problem.dots(g, g)) / problem.regularisation)

    def _reason(self, state: BasisRiskState) -> StopReason | None:
        distance = self._bounds(state) * self._scale
        open_ = distance > self._tolerance
        if not open_.any():
            return StopReason(
                "decision", True, f"decisions within {distance.max():.3g} of the basis' best <= {self._tolerance:.3g}"
            )
        state.ended |= ~open_
        if state.ended.all():
            return StopReason(
                "rounding",
                False,
                f"roundings leave decisions within {distance.max():.3g} of the basis' best > {self._tolerance:.3g}",
                "raise the `regularisation`, take fewer basis samples, or a larger `tolerance`",
            )
        if state.iteration >= self._most:
            return StopReason(
                "iterations",
                False,
                f"{state.iteration} steps; decisions within {distance.max():.3g} of the basis' best > "
                f"{self._tolerance:.3g}",
                "raise `max_iterations`, or the `regularisation`",
            )
        return None

    def _pays(self, state: BasisRiskState) -> bool:
        """True if a Hessian costs less than the passes that are to come without it."""
        if not self._affordable or state.fresh[~state.ended].all():
            return False
        if (state.stuck & ~state.ended).any():
            return True
        if len(state.pairs) < LEAST_STEPS:
            return False
        now, before = self._bounds(state), state.before[-LEAST_STEPS]
        open_ = ~state.ended
        rate = (np.log(before[open_]) - np.log(now[open_])) / LEAST_STEPS
        remaining = np.log(now[open_] * self._scale / self._tolerance)
        with np.errstate(divide="ignore", invalid="ignore"):
            to_come = np.where(rate > 0.0, remaining / rate, np.inf)
        return bool(to_come.max() > self._price(int(open_.sum())) + AFTER)

    def _price(self, columns: int) -> float:
        """Passes of slopes that a Hessian of so many columns is worth."""
        (q, t), cross = self._problem.shape, self._problem.cross
        grams = t * (t + 1) / 2 if self._problem.loss.coupled else columns
        entry = ENTRY + FEATURE * cross.operator.kernel.n_features + COLUMN * t
        dense = (q * t) ** 3 / 6.0 if self._problem.loss.coupled else columns * q**3 / 6.0
        return 1.0 + 0.5 * (1.0 + grams) * q / entry + dense / (cross.n * cross.m * entry)

    def _refresh(self, state: BasisRiskState) -> None:
        """Take the Hessian where the open problems are."""
        open_ = ~state.ended
        state.evaluated, state.factor = self._problem.factored(
            state.theta, self._fine, open_, state.evaluated, state.factor
        )
        state.pairs, state.before = [], []
        state.fresh, state.stuck = state.fresh | open_, np.zeros_like(state.stuck)

    def _step(self, state: BasisRiskState) -> None:
        """A quasi-Newton step in the factor's metric, in place."""
        problem, old, open_ = self._problem, state.evaluated, ~state.ended
        direction = self._direction(state) * open_
        slope = problem.dots(old.gradient, direction)
        # Roundings have spoilt the pairs.
        if (uphill := open_ & ~(slope < 0.0)).any():
            direction = np.where(uphill, -state.factor.solve(old.gradient), direction)
            slope = problem.dots(old.gradient, direction)
        trial = problem.evaluate(state.theta + direction, open_, old)
        then, noise = problem.dots(trial.gradient, direction), ROUNDING * np.abs(old.risk)
        enough = ~open_ | ((trial.risk <= old.risk + DECREASE * slope) & (then >= SLOPE * slope))
        enough |= (trial.risk <= old.risk + noise) & (np.abs(then) <= SLOPE * np.abs(slope))
        steps = open_.astype(np.float64)
        for place in np.flatnonzero(~enough):
            steps[place] = problem.line_minimum(state.theta, direction, old, trial, int(place))
        if not enough.all():
            trial = problem.evaluate(state.theta + steps * direction, ~enough, trial)
        better = open_ & (trial.risk <= old.risk + noise) & (steps > 0.0)
        self._take(state, steps * better * direction, trial.where(better, old), better)

    def _take(self, state: BasisRiskState, step: FloatArray, new: Evaluated, better: Mask) -> None:
        """Take the steps that lower the risk; note those that did not, or by no more than roundings."""
        old, lengths = state.evaluated, self._bounds(state)
        state.before.append(lengths)
        state.pairs = [*state.pairs, (step, new.gradient - old.gradient)][-MOST_PAIRS:]
        state.theta, state.evaluated = state.theta + step, new
        state.iteration += 1
        after = self._bounds(state)
        lowered = (old.risk - new.risk > ROUNDING * np.abs(old.risk)) | (after <= GAINED * state.least)
        state.least = np.minimum(state.least, after)
        state.idle = np.where(lowered & better, 0, state.idle + 1)
        failed = ~state.ended & (state.idle > 0)
        if not self._affordable and (failed & ~better).any():
            state.pairs, state.before = [], []
        # With the Hessian of this very point there is no better step; where that is not to be had, several may be idle.
        hopeless = failed & (state.fresh if self._affordable else state.idle >= MOST_IDLE)
        state.stuck, state.ended = failed & ~hopeless, state.ended | hopeless
        state.fresh = state.fresh & ~better

    def _direction(self, state: BasisRiskState) -> FloatArray:
        """-H^-1 g by the pairs since the factor, in its metric."""
        problem, q = self._problem, state.evaluated.gradient.copy()
        shares = []
        for step, change in reversed(state.pairs):
            curved = problem.dots(step, change)
            share = _quotient(problem.dots(step, q), curved)
            q -= share * change
            shares.append(share)
        direction = state.factor.solve(q)
        for (step, change), share in zip(state.pairs, reversed(shares), strict=True):
            curved = problem.dots(step, change)
            direction = direction + (share - _quotient(problem.dots(change, direction), curved)) * step
        return -direction

    def _note(self, state: BasisRiskState, seconds: float) -> None:
        problem, distance = self._problem, self._bounds(state)
        state.seconds += time.perf_counter() - self._began
        self._began = time.perf_counter()
        operator = problem.cross.operator
        state.entries += operator.kernel_evaluations - self._entries
        self._entries = operator.kernel_evaluations
        state.passes, problem.passes = state.passes + problem.passes, 0
        state.gram_passes, problem.gram_passes = state.gram_passes + problem.gram_passes, 0
        gap = 0.5 * problem.regularisation * distance**2
        risk = float(state.evaluated.risk.sum())
        norms = np.sqrt(problem.dots(state.evaluated.gradient, state.evaluated.gradient))
        progress = Progress(
            iteration=state.iteration,
            column_passes=state.passes * problem.cross.m / problem.cross.n,
            kernel_evaluations=state.entries,
            seconds=state.seconds,
            gradient_inf_norm=float(np.abs(state.evaluated.gradient).max()),
            gradient_norm=float(norms.max()),
            relative_residual=float(distance.max() * self._scale),
            objective=risk,
            objective_gap_bound=float(gap.sum()),
            timings={"step": seconds},
            duality_gap=float(gap.sum()) / abs(risk) if risk else 0.0,
        )
        state.history.append(progress)
        if self._callback is not None:
            self._callback(progress)

    def _solution(self, state: BasisRiskState, reason: StopReason) -> BasisRiskSolution:
        problem = self._problem
        weights, intercept = problem.coefficients(state.theta)
        return BasisRiskSolution(
            weights,
            state.theta[: problem.cross.m],
            intercept,
            state.evaluated.values,
            state.evaluated.gradient,
            state.evaluated.risk,
            self._bounds(state),
            state.factor if self._hessian else None,
            state.evaluated.explained or 0.0,
            reason,
            state.history,
            state.passes + problem.passes,
            state.gram_passes + problem.gram_passes,
            state.factor.kind,
        )


def _quotient(left: FloatArray, right: FloatArray) -> FloatArray:
    """left / right, and zero where a column has not moved."""
    return np.divide(left, right, out=np.zeros_like(left), where=right > 0.0)


# Steps and changes of the gradient that are remembered.
MOST_PAIRS = 12


@dataclass
class BasisRiskState:
    """Everything that determines how a minimisation goes on.

    - `theta` (q, t): coefficients.
    - `factor`: of a Hessian.
    - `prototypes` (m, d): the basis, and which samples it is of: `indices` (m,) or None.
    - `fresh`, `stuck`, `ended` (p,): problems whose factor is of this very point; whose last step was of no use; and
      that are done with.
    - `idle` (p,): steps in a row that have gained nothing.
    - `least` (p,): the least bound on the distance so far.
    - `pairs`: steps since the factor, and what they changed of the gradient.
    - `before`: bounds on the distance before each of these steps.
    """

    theta: FloatArray
    evaluated: Evaluated
    factor: Factor
    prototypes: FloatArray
    indices: IndexArray | None
    fresh: NDArray[np.bool_]
    stuck: NDArray[np.bool_]
    ended: NDArray[np.bool_]
    idle: NDArray[np.int64]
    least: FloatArray
    pairs: list[tuple[FloatArray, FloatArray]] = field(default_factory=list)
    before: list[FloatArray] = field(default_factory=list)
    iteration: int = 0
    passes: int = 0
    gram_passes: int = 0
    entries: int = 0
    seconds: float = 0.0
    history: list[Progress] = field(default_factory=list)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays of a checkpoint."""
        q, t = self.theta.shape
        arrays = {
            "theta": self.theta,
            **{name: getattr(self.evaluated, name) for name in ("values", "risk", "gradient")},
            **self.factor.arrays(),
            "prototypes": self.prototypes,
            **{name: getattr(self, name).astype(np.int64) for name in (*_MASKS, "idle")},
            "least": self.least,
        }
        if self.indices is not None:
            arrays["indices"] = self.indices
        if self.pairs:
            arrays["steps"] = np.array([step for step, _ in self.pairs]).reshape(-1, q, t)
            arrays["changes"] = np.array([change for _, change in self.pairs]).reshape(-1, q, t)
            arrays["before"] = np.array(self.before)
        return arrays

    def metadata(self) -> dict[str, Any]:
        """The rest, in plain JSON types."""
        return {
            **{name: getattr(self, name) for name in _NUMBERS},
            "explained": self.evaluated.explained,
            "factor": [self.factor.kind, self.factor.coupled, self.factor.regularisation],
            "history": [progress.to_json() for progress in self.history],
        }

    @classmethod
    def restored(cls, metadata: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> BasisRiskState:
        """Rebuild from a checkpoint."""
        kind, coupled, regularisation = metadata["factor"]
        steps, changes = arrays.get("steps", ()), arrays.get("changes", ())
        masks: dict[str, Any] = {name: arrays[name].astype(bool) for name in _MASKS}
        return cls(
            theta=arrays["theta"],
            evaluated=Evaluated(
                arrays["values"], arrays["risk"], arrays["gradient"], float(metadata["explained"] or 0.0)
            ),
            factor=Factor.restored(kind, arrays["lowers"], bool(coupled), float(regularisation)),
            prototypes=arrays["prototypes"],
            indices=arrays.get("indices"),
            **masks,
            idle=arrays["idle"],
            least=arrays["least"],
            pairs=list(zip(steps, changes, strict=True)),
            before=list(arrays.get("before", ())),
            **{name: metadata[name] for name in _NUMBERS},
            history=[Progress(**record) for record in metadata["history"]],
        )


_MASKS = ("fresh", "stuck", "ended")
_NUMBERS = ("iteration", "passes", "gram_passes", "entries", "seconds")
