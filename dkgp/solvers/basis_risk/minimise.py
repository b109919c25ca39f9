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
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.solvers.base import Clock
from dkgp.solvers.basis_risk.problem import BasisRisk, Curvatures, Evaluated, Factor, Mask
from dkgp.solvers.driver import NOBODY, Iteration, Loop
from dkgp.solvers.losses import Loss
from dkgp.solvers.risk.problem import Risk
from dkgp.solvers.stopping import Progress, StopReason

# Coefficients of all columns together up to which a coupled loss's whole Hessian is factored.
MOST_BLOCK_ROWS = 6000
# Of Wolfe's conditions, the least share of a decrease, and of a slope the share that may be left; of a risk, roundings.
DECREASE, SLOPE, ROUNDING = 1e-4, 0.9, 1e-12
# Steps and changes of the gradient that are remembered.
MOST_PAIRS = 12
# A bound that falls to this share is a gain, and so many steps without any are enough.
GAINED, MOST_IDLE = 0.9, 8
# Steps by one factor before it is judged, and passes that a new one is expected to need besides its own.
LEAST_STEPS, AFTER = 2, 3
# Multiply-adds that an entry's evaluation is worth, a feature of it, and a column's part in a pass of slopes.
ENTRY, FEATURE, COLUMN = 24.0, 1.0, 3.0

_MASKS, _EVALUATED = ("fresh", "stuck", "ended"), ("values", "risk", "gradient")


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
    """Minimise a regularised risk over the span of K_nm's columns; `BasisDescent` adds the options of a long run.

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
    return BasisDescent(problem, tolerance, initial=initial).run()


class BasisDescent(Iteration):
    """Newton's method on a basis, for one risk: resumed to the same bits with the same settings.

    - `theta` (q, t): coefficients.
    - `factor`: of a Hessian.
    - `prototypes` (m, d): the basis, and which samples it is of: `indices` (m,) or None.
    - `fresh`, `stuck`, `ended` (p,): problems whose factor is of this very point; whose last step was of no use; and
      that are done with.
    - `idle` (p,): steps in a row that have gained nothing.
    - `least` (p,): the least bound on the distance so far.
    - `pairs`: steps since the factor, and their changes of the gradient.
    - `before`: bounds on the distance before each of these steps.

    Parameters
    ----------
    tolerance : float
        See `minimise_on_basis`.
    hessian : bool
        Also factor the Hessian where it ends; of a coupled loss the whole one.
    initial : (q, t) float64, optional
        Coefficients to start from; zero by default.
    indices : (m,) int, optional
        Samples that the basis is of, for checkpoints.

    Raises
    ------
    InputError
        Arguments that do not fit; a whole Hessian of more than `MOST_BLOCK_ROWS` coefficients.
    """

    saved = ("theta", "prototypes", "idle", "least", "indices")
    counted = ("iteration", "passes", "gram_passes", "entries", "seconds")
    recorded: ClassVar[Mapping[str, type]] = {"history": Progress}

    theta: FloatArray
    evaluated: Evaluated
    factor: Factor
    pairs: list[tuple[FloatArray, FloatArray]]
    before: list[FloatArray]

    def __init__(
        self,
        problem: BasisRisk,
        tolerance: float = 1e-4,
        max_iterations: int = 200,
        hessian: bool = False,
        *,
        initial: FloatArray | None = None,
        indices: IndexArray | None = None,
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
        self._initial = initial
        self._scale = math.sqrt(float(problem.cross.operator.prior().max()))
        self.clock = Clock()
        self._entries = problem.cross.operator.kernel_evaluations
        self._fine: Curvatures = "blocks" if problem.loss.coupled else "columns"
        p = problem.problems
        self.prototypes, self.indices = problem.cross.prototypes, indices
        self.fresh, self.stuck, self.ended = (np.zeros(p, dtype=bool) for _ in range(3))
        self.idle, self.least = np.zeros(p, dtype=np.int64), np.full(p, np.inf)
        self.pairs, self.before = [], []
        self.passes, self.gram_passes, self.entries = 0, 0, 0
        self.history: list[Progress] = []

    def run(self, loop: Loop | None = None) -> BasisRiskSolution:
        """Minimise in a loop; by default in one without checkpoints.

        Raises
        ------
        NumericalError
            A Hessian that is not positive definite in float64, or a risk that overflows.
        InterruptedRunError
            The user ended the run.
        """
        with single_threaded_blas():
            reason = (Loop(NOBODY, {}, unit="step", waits=False) if loop is None else loop).run(self)
            if self._hessian and not (self.fresh.all() and self.factor.kind == self._fine):
                self.evaluated, self.factor = self._problem.factored(self.theta, self._fine)
        problem = self._problem
        weights, intercept = problem.coefficients(self.theta)
        return BasisRiskSolution(
            weights,
            self.theta[: problem.cross.m],
            intercept,
            self.evaluated.values,
            self.evaluated.gradient,
            self.evaluated.risk,
            self._bounds(),
            self.factor if self._hessian else None,
            self.evaluated.explained or 0.0,
            reason,
            self.history,
            self.passes + problem.passes,
            self.gram_passes + problem.gram_passes,
            self.factor.kind,
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of a checkpoint."""
        arrays = {
            **super().arrays(),
            **{name: getattr(self.evaluated, name) for name in _EVALUATED},
            **{name: getattr(self, name).astype(np.int64) for name in _MASKS},
            "lowers": self.factor.stacked(),
        }
        if self.pairs:
            arrays |= {"steps": np.array([step for step, _ in self.pairs]), "before": np.array(self.before)}
            arrays["changes"] = np.array([change for _, change in self.pairs])
        return arrays

    def metadata(self) -> dict[str, Any]:
        """Return the rest of a checkpoint, in plain JSON types."""
        factor = self.factor
        return {
            **super().metadata(),
            "explained": self.evaluated.explained,
            "factor": [factor.kind, factor.coupled, factor.regularisation],
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> None:
        """Take over a checkpoint."""
        super().restore(arrays, metadata)
        explained = float(metadata["explained"] or 0.0)
        self.evaluated = Evaluated(arrays["values"], arrays["risk"], arrays["gradient"], explained)
        for name in _MASKS:
            setattr(self, name, arrays[name].astype(bool))
        kind, coupled, regularisation = metadata["factor"]
        self.factor = Factor.restored(kind, arrays["lowers"], bool(coupled), float(regularisation))
        self.pairs = list(zip(arrays.get("steps", ()), arrays.get("changes", ()), strict=True))
        self.before = list(arrays.get("before", ()))
        self._entries = self._problem.cross.operator.kernel_evaluations

    def start(self) -> None:
        """Evaluate the risk and a Hessian at the initial coefficients."""
        problem, initial = self._problem, self._initial
        theta = np.zeros(problem.shape) if initial is None else np.array(initial, dtype=np.float64)
        if theta.shape != problem.shape or not np.isfinite(theta).all():
            raise InputError(f"expected finite coefficients of shape {problem.shape} to start from; got {theta.shape}")
        alike = self._alike(theta)
        kind: Curvatures = "shared"
        if not alike:
            kind = "columns" if not problem.loss.coupled else "blocks" if self._affordable else "shared"
        self.theta = theta
        self.evaluated, self.factor = problem.factored(theta, kind)
        self.fresh[:] = alike or kind != "shared"
        self._note()

    def advance(self) -> None:
        """Take a step; before it a Hessian, where that pays."""
        if self._pays():
            self._refresh()
        self._step()
        self._note()

    def _alike(self, theta: FloatArray) -> bool:
        """Return True at zero if all columns are curved alike there, so that one factor serves."""
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

    def _bounds(self) -> FloatArray:
        """Bounds on the distance from the basis' best function, in H's norm: (p,)."""
        problem, g = self._problem, self.evaluated.gradient
        if problem.intercept:
            with np.errstate(invalid="ignore"):
                return np.sqrt(np.maximum(problem.dots(g, self.factor.solve(g)), 0.0) / problem.regularisation)
        return np.asarray(np.sqrt(problem.dots(g, g)) / problem.regularisation)

    def stop(self) -> StopReason | None:
        """Return the reason to stop: decisions are near enough, roundings leave no better, or the steps are over."""
        distance = self._bounds() * self._scale
        open_ = distance > self._tolerance
        if not open_.any():
            return StopReason(
                "decision", True, f"decisions within {distance.max():.3g} of the basis' best <= {self._tolerance:.3g}"
            )
        self.ended |= ~open_
        if self.ended.all():
            return StopReason(
                "rounding",
                False,
                f"roundings leave decisions within {distance.max():.3g} of the basis' best > {self._tolerance:.3g}",
                "raise the `regularisation`, take fewer basis samples, or a larger `tolerance`",
            )
        if self.iteration >= self._most:
            return StopReason(
                "iterations",
                False,
                f"{self.iteration} steps; decisions within {distance.max():.3g} of the basis' best > "
                f"{self._tolerance:.3g}",
                "raise `max_iterations`, or the `regularisation`",
            )
        return None

    def _pays(self) -> bool:
        """True if a Hessian costs less than the passes that are to come without it."""
        if not self._affordable or self.fresh[~self.ended].all():
            return False
        if (self.stuck & ~self.ended).any():
            return True
        if len(self.pairs) < LEAST_STEPS:
            return False
        now, before = self._bounds(), self.before[-LEAST_STEPS]
        open_ = ~self.ended
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

    def _refresh(self) -> None:
        """Take the Hessian where the open problems are."""
        open_ = ~self.ended
        self.evaluated, self.factor = self._problem.factored(self.theta, self._fine, open_, self.evaluated, self.factor)
        self.pairs, self.before = [], []
        self.fresh, self.stuck = self.fresh | open_, np.zeros_like(self.stuck)

    def _step(self) -> None:
        """A quasi-Newton step in the factor's metric, in place."""
        problem, old, open_ = self._problem, self.evaluated, ~self.ended
        direction = self._direction() * open_
        slope = problem.dots(old.gradient, direction)
        # Roundings have spoilt the pairs.
        if (uphill := open_ & ~(slope < 0.0)).any():
            direction = np.where(uphill, -self.factor.solve(old.gradient), direction)
            slope = problem.dots(old.gradient, direction)
        trial = problem.evaluate(self.theta + direction, open_, old)
        then, noise = problem.dots(trial.gradient, direction), ROUNDING * np.abs(old.risk)
        enough = ~open_ | ((trial.risk <= old.risk + DECREASE * slope) & (then >= SLOPE * slope))
        enough |= (trial.risk <= old.risk + noise) & (np.abs(then) <= SLOPE * np.abs(slope))
        steps = open_.astype(np.float64)
        for place in np.flatnonzero(~enough):
            steps[place] = problem.line_minimum(self.theta, direction, old, trial, int(place))
        if not enough.all():
            trial = problem.evaluate(self.theta + steps * direction, ~enough, trial)
        better = open_ & (trial.risk <= old.risk + noise) & (steps > 0.0)
        self._take(steps * better * direction, trial.where(better, old), better)

    def _take(self, step: FloatArray, new: Evaluated, better: Mask) -> None:
        """Take the steps that lower the risk; note those that did not, or by no more than roundings."""
        old, lengths = self.evaluated, self._bounds()
        self.before.append(lengths)
        self.pairs = [*self.pairs, (step, new.gradient - old.gradient)][-MOST_PAIRS:]
        self.theta, self.evaluated = self.theta + step, new
        self.iteration += 1
        after = self._bounds()
        lowered = (old.risk - new.risk > ROUNDING * np.abs(old.risk)) | (after <= GAINED * self.least)
        self.least = np.minimum(self.least, after)
        self.idle = np.where(lowered & better, 0, self.idle + 1)
        failed = ~self.ended & (self.idle > 0)
        if not self._affordable and (failed & ~better).any():
            self.pairs, self.before = [], []
        # With the Hessian of this very point there is no better step; where that is not to be had, several may be idle.
        hopeless = failed & (self.fresh if self._affordable else self.idle >= MOST_IDLE)
        self.stuck, self.ended = failed & ~hopeless, self.ended | hopeless
        self.fresh = self.fresh & ~better

    def _direction(self) -> FloatArray:
        """-H^-1 g by the pairs since the factor, in its metric."""
        problem, q = self._problem, self.evaluated.gradient.copy()
        shares = []
        for step, change in reversed(self.pairs):
            curved = problem.dots(step, change)
            share = _quotient(problem.dots(step, q), curved)
            q -= share * change
            shares.append(share)
        direction = self.factor.solve(q)
        for (step, change), share in zip(self.pairs, reversed(shares), strict=True):
            curved = problem.dots(step, change)
            direction = direction + (share - _quotient(problem.dots(change, direction), curved)) * step
        return -direction

    def _note(self) -> None:
        problem, distance = self._problem, self._bounds()
        operator = problem.cross.operator
        self.entries += operator.kernel_evaluations - self._entries
        self._entries = operator.kernel_evaluations
        self.passes, problem.passes = self.passes + problem.passes, 0
        self.gram_passes, problem.gram_passes = self.gram_passes + problem.gram_passes, 0
        gap = 0.5 * problem.regularisation * distance**2
        risk = float(self.evaluated.risk.sum())
        norms = np.sqrt(problem.dots(self.evaluated.gradient, self.evaluated.gradient))
        progress = Progress(
            iteration=self.iteration,
            column_passes=self.passes * problem.cross.m / problem.cross.n,
            kernel_evaluations=self.entries,
            seconds=self.seconds,
            gradient_inf_norm=float(np.abs(self.evaluated.gradient).max()),
            gradient_norm=float(norms.max()),
            relative_residual=float(distance.max() * self._scale),
            objective=risk,
            objective_gap_bound=float(gap.sum()),
            timings={"step": self.clock.lap("step")},
            duality_gap=float(gap.sum()) / abs(risk) if risk else 0.0,
        )
        self.history.append(progress)


def _quotient(left: FloatArray, right: FloatArray) -> FloatArray:
    """left / right, and zero where a column has not moved."""
    return np.divide(left, right, out=np.zeros_like(left), where=right > 0.0)
