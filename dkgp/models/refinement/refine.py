"""Refining: hyperparameters on all samples, from a start that a subset gave.

The subset's optimum is near, so a few steps do (`dkgp.models.refinement.optimiser`) on stochastic gradients of the full
log marginal likelihood (`dkgp.models.refinement.gradient`), each with its error, until it is within its error.
Nothing of size n x n is ever there, and solutions of one step start the next. Samples held out of all this say in the
end whether the refined values predict better (`dkgp.models.refinement.validation`); if they do not, the start is kept.

With many samples the optimum of a small subset is far away: noise and length scales fall as samples are added. The
search then climbs on a share of the samples first, at a share of the cost, and takes its last steps on all of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset
from dkgp.errors import InputError, InterruptedRunError, NumericalError
from dkgp.models.context import RunContext
from dkgp.models.noise import SAME_NOISE
from dkgp.models.refinement.evidence import LogLikelihood, estimate_log_likelihood
from dkgp.models.refinement.gradient import GradientEstimate, GradientEstimator, draw_probes
from dkgp.models.refinement.optimiser import Point, QuasiNewton, estimated_gain, gain_error
from dkgp.models.refinement.record import Refinement, RefineSettings, RefineStep
from dkgp.models.refinement.rows import ExceptRows, SomeRows
from dkgp.models.refinement.space import RefineSpace
from dkgp.models.refinement.validation import HeldOut, HeldOutScore, held_out_rows, score_held_out
from dkgp.operators.base import FloatArray
from dkgp.operators.inputs import InputSource
from dkgp.operators.vecchia.factor import VecchiaFactor
from dkgp.solvers import ConjugateGradient, MaxPasses, RelativeResidual, solve
from dkgp.solvers.driver import Watch

INTERRUPTED = "interrupted"
# From so many samples on, others go before: each time so many times fewer samples, and at least so many.
STAGED_FROM, STAGE_FACTOR, LEAST_STAGE = 100_000, 8, 10_000
# A climb ends where so many nats a sample are left to gain: no prediction shows it.
LEFT = 1e-4
# Systems are solved no looser than this, and tighter where the solver's part of a gradient's error exceeds the second.
LOOSEST, SOLVER_PART, ROUGH = 0.03, 0.1, 0.5


def refine(
    dataset: Dataset,
    space: RefineSpace,
    context: RunContext | BlockExecutor,
    settings: RefineSettings | None = None,
    *,
    note: Callable[[str], None] | None = None,
) -> Refinement:
    """Refine hyperparameters on all samples of a dataset, from where the space starts.

    The context's `callback` is called with a `RefineStep` after each evaluation, `note`, by default the context's, with
    a line on the computation under way; when `interrupted` answers true between passes the best so far is returned, not
    validated.

    Raises `InputError`: no targets, or too few samples; `NumericalError`: Kbar is not numerically positive definite at
    the start.
    """
    # Pieces of derivatives are worked on side by side, one thread each.
    with single_threaded_blas():
        decided = (settings or RefineSettings()).decided(dataset, space.start)
        run = _Run(dataset, space, RunContext.of(context), decided)
        run.note = run.note if note is None else note
        return run.run()


class _Run:
    def __init__(self, dataset: Dataset, space: RefineSpace, context: RunContext, settings: RefineSettings) -> None:
        self.note = context.note
        self._context = context
        self._started = time.perf_counter()
        self._space, self._settings = space, settings
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
        self._best = space.first
        self._tolerance = settings.tolerance

    def _estimator_of(self, every: int) -> GradientEstimator:
        """Gradients on all samples that are not held out, or on one of `every` so many."""
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
            parameters = self._best if refinement.kept == "refined" else self._space.first
            if self.note is not None:
                self.note("estimating the log marginal likelihood of the values that are kept")
            evidence = self._evidence(parameters)
            seconds = time.perf_counter() - self._started
            return replace(refinement, evidence=evidence, column_passes=self._passes, seconds=seconds)
        except InterruptedRunError:
            return self._interrupted()

    def _refine(self) -> Refinement:
        first, p = self._space.first, self._targets.shape[1]
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
                self.note(f"climbing on {n // share:,} of {n:,} samples first")
            self._climb(point, self._estimate(point, None), LEFT * (n // share))
            point = self._best
            # The optimum of more samples is some way off: a rough gradient says where.
            self._tolerance = max(self._tolerance, LOOSEST)
        self._estimator = self._all_samples
        return point

    def _climb(self, first: FloatArray, estimate: GradientEstimate, negligible: float) -> tuple[GradientEstimate, str]:
        """Go uphill until at most `negligible` nats are left to gain; return the gradient where that ended, and why."""
        space = self._space.space
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
        kernel, noise_variance = self._space.kernel(parameters), self._space.noise_variance(parameters)
        moved = np.zeros(len(kernel.parameters()), dtype=bool)
        moved[self._space.space.positions] = self._space.space.free[:-1]
        estimate = self._estimator(kernel, noise_variance, initial, moved, self._tolerance)
        change = min(max(SOLVER_PART / max(self._solver_part(estimate), 1e-300), 0.25), 4.0)
        loosest = max(self._settings.tolerance, LOOSEST)
        self._tolerance = min(max(change * self._tolerance, self._settings.tolerance), loosest)
        self._passes += estimate.column_passes
        self._contractions += estimate.contractions
        return estimate

    def _solver_part(self, estimate: GradientEstimate) -> float:
        """The largest part that the solver's error has in that of a component which may move."""
        movable = self._space.space.free
        solver, error = (self._space.space.select(each)[movable] for each in (estimate.solver_error, estimate.error))
        return float(np.max(solver / np.maximum(error, 1e-300), initial=0.0))

    def _rough(self, estimate: GradientEstimate) -> bool:
        """True if tighter solves, which the settings allow, would make the gradient's error much smaller."""
        return self._solver_part(estimate) > ROUGH and estimate.tolerance > self._settings.tolerance

    def _point(self, parameters: FloatArray, estimate: GradientEstimate) -> Point:
        _, slope = self._space.space.log_prior(parameters)
        gradient = self._space.space.select(estimate.gradient) + slope
        return Point(parameters, gradient, self._space.space.select(estimate.error))

    def _record(
        self, number: int, point: Point, estimate: GradientEstimate, search: QuasiNewton, *, accepted: bool
    ) -> None:
        free = search.free(point)
        names = self._space.space.names
        solver = self._space.space.select(estimate.solver_error)
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
            noise_variance=self._space.noise_variance(point.parameters),
            values=self._space.space.named(point.parameters),
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
            f"NLPD {before.nlpd:.4f} before, {after.nlpd:.4f} after, on {self._n_held_out:,} held-out samples "
            f"({abs(mean):.4f} {'better' if mean > 0.0 else 'worse'}, standard error {spread:.2g}; RMSE "
            f"{before.rmse:.4f} and {after.rmse:.4f})"
        )
        if mean > 0.0:
            return self._result(self._best, reason, f"the refined values are kept: {figures}", before, after)
        verdict = f"refining did not improve predictions, the values to start from are kept: {figures}"
        return self._result(None, reason, verdict, before, after)

    def _score(self, parameters: FloatArray, initial: FloatArray | None) -> HeldOutScore:
        assert self._held_out is not None
        kernel, noise_variance = self._space.kernel(parameters), self._space.noise_variance(parameters)
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
        """The log marginal likelihood of all samples that are not held out."""
        kernel, noise_variance = self._space.kernel(parameters), self._space.noise_variance(parameters)
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
        kept = self._space.unmoved() if parameters is None else self._space.hyperparameters(parameters)
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
            seconds=time.perf_counter() - self._started,
            interrupted=reason == INTERRUPTED,
        )
