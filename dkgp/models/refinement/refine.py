"""Refining: hyperparameters on all samples, starting from those of a subset.

The subset's optimum is near, so a few long steps suffice, on stochastic gradients of the full log marginal likelihood
(`dkgp.models.refinement.estimates`) with their errors. The search ends when the gradient is within its error. No n x n
matrix exists, and the solutions of one step start the next. Samples that are held out decide in the end whether the
refined values predict better (`dkgp.models.refinement.validation`); otherwise the start is kept.

With many samples the optimum of a small subset is far away: noise and length scales fall as samples are added. The
search then climbs on a share of the samples first, at a share of the cost, and takes its last steps on all of them.

The search is BFGS within a radius, without values of the function, whose log determinant would cost too much: it has no
line search. The first step is Newton's with the Fisher information's diagonal. From then on gradients before and after
a step give the curvature along it, because their probes are frozen. A step that goes past the maximum by more than it
went up is taken back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset
from dkgp.data.types import BoolArray, FloatArray
from dkgp.errors import InputError, InterruptedRunError, NumericalError
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters, TunedParameter, with_switched_off
from dkgp.models.noise import SAME_NOISE
from dkgp.models.refinement.estimates import (
    GradientEstimate,
    GradientEstimator,
    LogLikelihood,
    draw_probes,
    estimate_log_likelihood,
)
from dkgp.models.refinement.record import Refinement, RefineSettings, RefineStep
from dkgp.models.refinement.validation import ExceptRows, HeldOut, HeldOutScore, SomeRows, held_out_rows, score_held_out
from dkgp.models.tuning.search import Choices, SearchProblem, SearchSettings
from dkgp.operators.block_tasks import InputSource
from dkgp.operators.vecchia.factor import VecchiaFactor
from dkgp.solvers import ConjugateGradient, MaxPasses, RelativeResidual, solve
from dkgp.solvers.base import Clock
from dkgp.solvers.driver import Watch

# In logarithms: no hyperparameter changes by more than a factor of 1.65 in a step.
RADIUS = 0.5
LEAST_RADIUS = 1e-3
# Random signs vary more than data do, two to four times on the data sets examined: half errs on the safe side.
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
        """Return the root mean square of the free components in units of their errors; at most 1 at a maximum."""
        return float(np.sqrt(np.mean(_ratios(self.gradient, self.error)[free] ** 2))) if np.any(free) else 0.0


class QuasiNewton:
    """Proposes steps uphill and learns curvature from their results.

    `bounds` (q, 2) are those of the log parameters, `curvature` (q,) is an estimate of minus the second derivatives at
    the start, and `movable` (q,) is the mask of parameters that may move.
    """

    def __init__(self, bounds: FloatArray, curvature: FloatArray, movable: BoolArray) -> None:
        self._bounds, self._movable = bounds, movable
        self._radius = RADIUS
        self._hessian = np.diag(np.maximum(SHARE_OF_CURVATURE * curvature, np.finfo(np.float64).tiny))

    def free(self, point: Point) -> BoolArray:
        """Return the mask of parameters that can follow the gradient, movable and within their bounds: (q,) bool."""
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
        """Return the next point to try: (q,) parameters within the bounds."""
        free = np.flatnonzero(self.free(point))
        step = np.zeros_like(point.parameters)
        gradient = point.gradient[free]
        # A direction without curvature, such as a weak feature, goes as far as its slope is significant.
        hessian = self._hessian[np.ix_(free, free)]
        floor = np.abs(gradient) / self._radius
        hessian = hessian + np.diag(np.maximum(floor - hessian.diagonal(), 0.0))
        step[free] = np.linalg.solve(hessian, gradient)
        step = np.clip(step, -self._radius, self._radius)
        if not step @ point.gradient > 0.0:
            step[free] = np.clip(gradient / hessian.diagonal(), -self._radius, self._radius)
        return np.asarray(np.clip(point.parameters + step, *self._bounds.T))

    def learn(self, old: Point, new: Point) -> bool:
        """Learn from a step; return whether to stay at the new point."""
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
        """Shorten the radius: the last step led too far."""
        self._radius *= 0.25

    @property
    def stuck(self) -> bool:
        """True once steps have become too short to matter."""
        return self._radius < LEAST_RADIUS


def estimated_gain(old: Point, new: Point) -> float:
    """Return the rise of the log likelihood in a step, in nats, by the trapezoid rule."""
    return float((new.parameters - old.parameters) @ (old.gradient + new.gradient)) / 2.0


def gain_error(first: Point, now: Point) -> float:
    """Return the error of the gain between two points: gradients with frozen probes err alike on the way."""
    way = now.parameters - first.parameters
    return float(np.linalg.norm(way * np.maximum(first.error, now.error)))


def _ratios(gradient: FloatArray, error: FloatArray) -> FloatArray:
    """Return the gradient in units of its error, at least `NEGLIGIBLE`."""
    return np.asarray(gradient / np.maximum(error, NEGLIGIBLE))


@dataclass(frozen=True)
class RefineSpace(SearchProblem):
    """The search of a refinement, on the log parameters of the hyperparameters that it starts from."""

    @classmethod
    def of_start(
        cls, start: Hyperparameters, feature_names: Sequence[str], *, learn_variance: bool = False, **choices: Any
    ) -> RefineSpace:
        """Return the search from `start` on; `bounds`, `fixed`, `priors` and errors are those of `dkgp.models.tune`."""
        settings = SearchSettings(learn_variance=learn_variance)
        found = cls.of(tuple(feature_names), Choices(start=start, **choices), settings)
        values = np.array([parameter.value for parameter in start.kernel.parameters()])
        logs = np.log(np.append(values[found.space.positions], start.noise_variance))
        return replace(found, first=np.asarray(logs))

    @property
    def start(self) -> Hyperparameters:
        """Hyperparameters that the search starts from."""
        assert self.choices.start is not None
        return self.choices.start

    def unmoved(self) -> Hyperparameters:
        """Return `start`, or the nearest values within bounds and fixed ones; with its parameters by name."""
        inside = self.space.within(self.first)
        if not np.allclose(inside, self.first, rtol=0.0, atol=1e-9):
            return self.moved(inside)
        return replace(self.start, parameters=self.start.parameters or self._named(inside))

    def moved(self, parameters: FloatArray) -> Hyperparameters:
        """Return `start` with other values, without the figures and the noise model that belong to the old ones."""
        kernel, noise_variance = self.point(parameters)
        old = (
            *("log_marginal_likelihood", "leave_one_out_log_likelihood", "log_prior", "projected_gradient", "sparse"),
            *("scores", "candidates", "noise_model", "student_t", "noise_comparison"),
        )
        named = self._named(parameters)
        changes: dict[str, Any] = dict.fromkeys(old)
        return replace(self.start, kernel=kernel, noise_variance=noise_variance, parameters=named, **changes)

    def _named(self, parameters: FloatArray) -> tuple[TunedParameter, ...]:
        return with_switched_off(self.parameters_from_start(parameters), self.start.parameters or ())


INTERRUPTED = "interrupted"
# Stages on shares of the samples: from how many samples on, the factor between stages, the fewest samples of one.
STAGED_FROM, STAGE_FACTOR, LEAST_STAGE = 100_000, 8, 10_000
# A climb ends if the remaining gain, in nats a sample, is too small to show in predictions.
LEFT = 1e-4
# Loosest relative residual; the solver's part of a gradient's error to aim at; the part from which a gradient is rough.
LOOSEST, SOLVER_PART, ROUGH = 0.03, 0.1, 0.5


def refine(
    dataset: Dataset,
    space: RefineSpace,
    context: RunContext | BlockExecutor,
    settings: RefineSettings | None = None,
    *,
    note: Callable[[str], None] | None = None,
) -> Refinement:
    """Refine hyperparameters on all samples of a dataset, from the start of the space.

    The context's `callback` is called with a `RefineStep` after each evaluation, `note`, by default the context's, with
    a line on the current computation. If `interrupted` returns true between passes, the best values so far are
    returned, not validated.

    Raises `InputError`: no targets, or too few samples; `NumericalError`: Kbar is not numerically positive definite at
    the start.
    """
    # Pieces of derivatives run side by side, one thread each.
    with single_threaded_blas():
        decided = (settings or RefineSettings()).decided(dataset, space.start)
        run = _Run(dataset, space, RunContext.of(context), decided)
        run.note = run.note if note is None else note
        return run.run()


class _Run:
    def __init__(self, dataset: Dataset, space: RefineSpace, context: RunContext, settings: RefineSettings) -> None:
        self.note = context.note
        self._context = context
        self._clock = Clock()
        self._problem, self._space, self._settings = space, space.space, settings
        self._first = self._space.within(space.first)
        n = dataset.n_samples
        rows = held_out_rows(n, settings.held_out, settings.seed)
        targets = dataset.all_targets()
        if targets.shape[1] == 0:
            raise InputError("there are no targets to refine hyperparameters on; ingest the data again and name them")
        self._targets = np.delete(targets, rows, axis=0)
        noise = SAME_NOISE.beside(dataset)
        self._held_out = HeldOut(dataset.input_rows(rows), targets[rows], noise.rows(rows)) if len(rows) else None
        self._n, self._n_held_out = n, len(rows)
        self._source: InputSource = ExceptRows(dataset, rows) if len(rows) else dataset
        self._noise = noise.rows(np.delete(np.arange(n), rows))
        self._estimator = self._all_samples = self._estimator_of(1)
        self._history: list[RefineStep] = []
        self._passes, self._contractions = 0.0, 0
        self._gain = self._gain_error = 0.0
        self._best = self._first
        self._tolerance = settings.tolerance

    def _estimator_of(self, every: int) -> GradientEstimator:
        """Return gradients on all samples that are not held out, or on one of every `every` of them."""
        source, settings = self._source, self._settings
        targets, noise = self._targets, self._noise
        if every > 1:
            source = SomeRows(source, every, settings.seed)
            rows = source.rows(0, source.n_samples)
            targets, noise = targets[rows], noise.rows(rows)
        return GradientEstimator(
            source,
            targets,
            draw_probes(source.n_samples, settings.probes_for(source.n_samples), settings.seed),
            self._context if every == 1 else replace(self._context, note=None),
            preconditioner=settings.preconditioner(),
            noise=noise,
            tolerance=settings.tolerance,
            max_passes=settings.max_passes,
        )

    def run(self) -> Refinement:
        try:
            refinement = self._refine()
            if not self._settings.evidence:
                return refinement
            parameters = self._best if refinement.kept == "refined" else self._first
            if self.note is not None:
                self.note("estimating the log marginal likelihood of the values that are kept")
            evidence = self._evidence(parameters)
            return replace(refinement, evidence=evidence, column_passes=self._passes, seconds=self._clock.seconds)
        except InterruptedRunError:
            return self._interrupted()

    def _refine(self) -> Refinement:
        first, p = self._first, self._targets.shape[1]
        start = self._approach(first)
        estimate = self._estimate(start, None)
        start_alpha = estimate.solutions[:, :p].copy() if np.array_equal(start, first) else None
        estimate, reason = self._climb(start, estimate, LEFT * len(self._targets))
        if np.array_equal(first, self._best):
            return self._result(None, reason, f"nothing was gained: {reason} at the start")
        if self._held_out is None:
            return self._result(self._best, reason, "the refined values are kept, not validated")
        if self.note is not None:
            self.note(f"{reason}; predicting {self._n_held_out:,} held-out samples with the old and the new values")
        before = self._score(first, start_alpha)
        after = self._score(self._best, estimate.solutions[:, :p])
        return self._judge(reason, before, after)

    def _approach(self, first: FloatArray) -> FloatArray:
        """Climb on shares of the samples, small ones first; return where that ends."""
        n, every, point = len(self._targets), [STAGE_FACTOR], first
        if n < STAGED_FROM:
            return first
        while n >= STAGE_FACTOR * LEAST_STAGE * every[-1]:
            every.append(STAGE_FACTOR * every[-1])
        for share in reversed(every):
            self._estimator = self._estimator_of(share)
            if self.note is not None:
                self.note(f"refining first on {n // share:,} of {n:,} samples")
            self._climb(point, self._estimate(point, None), LEFT * (n // share))
            point = self._best
            # The optimum of more samples is some way off: a rough gradient shows the direction.
            self._tolerance = max(self._tolerance, LOOSEST)
        self._estimator = self._all_samples
        return point

    def _climb(self, first: FloatArray, estimate: GradientEstimate, negligible: float) -> tuple[GradientEstimate, str]:
        """Climb until at most `negligible` nats remain to gain; return the last gradient and the reason to stop."""
        space = self._space
        search = QuasiNewton(space.bounds, space.select(estimate.curvature), space.free)
        start = point = self._point(first, estimate)
        self._best, self._gain, self._gain_error, begun = first, 0.0, 0.0, len(self._history)
        self._record(0, point, estimate, search, accepted=True)
        while (significant := point.significance(search.free(point)) > 1.0) or self._rough(estimate):
            if len(self._history) - begun > self._settings.steps:
                return estimate, f"{self._settings.steps} steps were taken"
            if search.stuck:
                return estimate, "steps became too short to matter"
            if significant and search.gain_left(point) < negligible:
                return estimate, f"at most {negligible:.2g} nats are left to gain"
            proposed = search.propose(point) if significant else point.parameters
            try:
                proposal = self._estimate(proposed, estimate.solutions)
            except NumericalError:
                search.retreat()
                continue
            new = self._point(proposed, proposal)
            accepted = search.learn(point, new)
            if accepted:
                self._gain, self._gain_error = self._gain + estimated_gain(point, new), gain_error(start, new)
                point, estimate, self._best = new, proposal, new.parameters
            self._record(len(self._history) - begun, new, proposal, search, accepted=accepted)
        return estimate, "the gradient is within its standard error"

    def _estimate(self, parameters: FloatArray, initial: FloatArray | None) -> GradientEstimate:
        if self._context.interrupted is not None and self._context.interrupted():
            raise InterruptedRunError("interrupted between two steps")
        kernel, noise_variance = self._problem.point(parameters)
        moved = np.zeros(len(kernel.parameters()), dtype=bool)
        moved[self._space.positions] = self._space.free[:-1]
        estimate = self._estimator(kernel, noise_variance, initial, moved, self._tolerance)
        change = min(max(SOLVER_PART / max(self._solver_part(estimate), 1e-300), 0.25), 4.0)
        loosest = max(self._settings.tolerance, LOOSEST)
        self._tolerance = min(max(change * self._tolerance, self._settings.tolerance), loosest)
        self._passes += estimate.column_passes
        self._contractions += estimate.contractions
        return estimate

    def _solver_part(self, estimate: GradientEstimate) -> float:
        """Return the largest part of the solver's error in the error of a free component."""
        movable = self._space.free
        solver, error = (self._space.select(each)[movable] for each in (estimate.solver_error, estimate.error))
        return float(np.max(solver / np.maximum(error, 1e-300), initial=0.0))

    def _rough(self, estimate: GradientEstimate) -> bool:
        """Return True if tighter solves, within the settings, would make the gradient's error much smaller."""
        return self._solver_part(estimate) > ROUGH and estimate.tolerance > self._settings.tolerance

    def _point(self, parameters: FloatArray, estimate: GradientEstimate) -> Point:
        _, slope = self._space.log_prior(parameters)
        gradient = self._space.select(estimate.gradient) + slope
        return Point(parameters, gradient, self._space.select(estimate.error))

    def _record(
        self, number: int, point: Point, estimate: GradientEstimate, search: QuasiNewton, *, accepted: bool
    ) -> None:
        free = search.free(point)
        names = self._space.names
        solver = self._space.select(estimate.solver_error)
        step = RefineStep(
            step=number,
            steps=self._settings.steps,
            accepted=accepted,
            gradient_norm=float(np.linalg.norm(point.gradient[free])),
            error_norm=float(np.linalg.norm(point.error[free])),
            significance=point.significance(free),
            solver_share=float(np.max(solver[free] / np.maximum(point.error[free], 1e-300), initial=0.0)),
            gain=self._gain,
            gain_error=self._gain_error,
            noise_variance=math.exp(point.parameters[-1]),
            values=self._space.named(point.parameters),
            gradient=dict(zip(names, point.gradient.tolist(), strict=True)),
            error=dict(zip(names, point.error.tolist(), strict=True)),
            column_passes=estimate.column_passes,
            contractions=estimate.contractions,
            relative_residual=estimate.relative_residual,
            tolerance=estimate.tolerance,
            seconds=estimate.seconds,
            samples=len(estimate.solutions),
        )
        self._history.append(step)
        if self._context.callback is not None:
            self._context.callback(step)

    def _judge(self, reason: str, before: HeldOutScore, after: HeldOutScore) -> Refinement:
        """Keep the values that predicted the held-out samples better."""
        improvement = before.losses - after.losses
        mean = float(improvement.mean())
        spread = float(improvement.std(ddof=1)) / math.sqrt(len(improvement)) if len(improvement) > 1 else math.inf
        figures = (
            f"NLPD {before.nlpd:.4f} nats per sample before, {after.nlpd:.4f} after, on {self._n_held_out:,} held-out "
            f"samples ({abs(mean):.4f} {'better' if mean > 0.0 else 'worse'}, standard error {spread:.2g}; RMSE "
            f"{before.rmse:.4f} before, {after.rmse:.4f} after; targets standardised)"
        )
        if mean > 0.0:
            return self._result(self._best, reason, f"the refined values are kept: {figures}", before, after)
        verdict = f"refining did not improve predictions, the values to start from are kept: {figures}"
        return self._result(None, reason, verdict, before, after)

    def _score(self, parameters: FloatArray, initial: FloatArray | None) -> HeldOutScore:
        assert self._held_out is not None
        kernel, noise_variance = self._problem.point(parameters)
        with self._estimator.operator(kernel, noise_variance) as operator:
            score = score_held_out(
                operator,
                self._targets,
                self._held_out.with_noise(noise_variance),
                self._estimator.preconditioner,
                self._settings.landmarks(),
                initial=initial,
                interrupted=self._context.interrupted,
            )
        self._passes += score.column_passes
        return score

    def _evidence(self, parameters: FloatArray) -> LogLikelihood:
        """Estimate the log marginal likelihood of all samples that are not held out."""
        kernel, noise_variance = self._problem.point(parameters)
        settings, estimator = self._settings, self._all_samples
        factor = settings.without_landmarks().resolved(len(self._targets), kernel.n_features)
        with estimator.operator(kernel, noise_variance) as operator:
            solution = solve(
                operator,
                self._targets,
                solver=ConjugateGradient(factor),
                stopping=RelativeResidual(settings.tolerance) | MaxPasses(settings.max_passes),
                watch=Watch(interrupted=self._context.interrupted),
            )
            estimate = estimate_log_likelihood(
                operator,
                VecchiaFactor(operator, int(factor.halo), int(factor.leaf)),
                self._targets,
                solution.alpha,
                solution.gradient,
                probes=settings.probes_for(len(self._targets)),
                seed=settings.seed,
            )
        self._passes += solution.progress.column_passes + solution.refreshes + estimate.steps
        return estimate

    def _interrupted(self) -> Refinement:
        done = sum(step.step > 0 for step in self._history)
        if self._gain > self._gain_error:
            samples = self._history[-1].samples
            share = "" if samples == len(self._targets) else f" on {samples:,} samples"
            verdict = (
                f"interrupted after {done} steps: the values so far are kept, likelier{share} by {self._gain:.1f} nats "
                f"(error {self._gain_error:.2g}), but not validated"
            )
            return self._result(self._best, INTERRUPTED, verdict)
        return self._result(None, INTERRUPTED, f"interrupted after {done} steps: the values to start from are kept")

    def _result(
        self,
        parameters: FloatArray | None,
        reason: str,
        verdict: str,
        before: HeldOutScore | None = None,
        after: HeldOutScore | None = None,
    ) -> Refinement:
        kept = self._problem.unmoved() if parameters is None else self._problem.moved(parameters)
        return Refinement(
            hyperparameters=replace(kept, n_samples=self._n),
            kept="start" if parameters is None else "refined",
            reason=reason,
            verdict=verdict,
            history=self._history,
            before=before,
            after=after,
            settings=self._settings,
            n_samples=self._n,
            n_held_out=self._n_held_out,
            column_passes=self._passes,
            contractions=self._contractions,
            seconds=self._clock.seconds,
            interrupted=reason == INTERRUPTED,
        )
