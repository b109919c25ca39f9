"""Train the exact LS-SVM: Kbar E = [Y, 1] in one solve, from which follow alpha and the intercept.

With Kbar = K + s2 I, s2 = 1/gamma_K, the LS-SVM's system (Karsmakers and others, *Sparse conjugate directions pursuit*,
2011, equations 21 to 23)

    [[Kbar, 1], [1', 0]] (alpha; b) = (y; 0)

has the solution b = 1'E_1 / 1'E_2, alpha = E_1 - b E_2, of Kbar E_1 = y and Kbar E_2 = 1. Labels of C classes are one
column of signs, or C of them, one class against the rest; all share the kernel's entries and the one E_2. A sample that
weighs w in the sum of squared errors has noise s2 / w.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data import Dataset
from dkgp.data.stores.models.classifier import ClassifierForm
from dkgp.errors import ClusterError, InputError
from dkgp.kernels import Kernel
from dkgp.models.classification.calibration import calibrated
from dkgp.models.classification.certificate import DecisionCertificate
from dkgp.models.classification.labels import REACH, DecisionTolerance, LabelledData, beyond_tolerance
from dkgp.models.classification.trained import TrainedClassifier
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.noise import Noise
from dkgp.models.problem import Problem
from dkgp.models.rounding import assumptions
from dkgp.models.solver_choice import choose_solver_for
from dkgp.operators.base import FloatArray, Variances
from dkgp.solvers import Progress, Solution, Solver, StoppingRule, solve
from dkgp.solvers.driver import Watch
from dkgp.solvers.registry import build_solver

# By default decisions are within so much of the exact ones, of margins at -1 and 1.
DECISION_TOLERANCE = 1e-3


@dataclass(frozen=True)
class DecisionError(DecisionTolerance):
    """Converged when decisions are near the exact ones: (1 + |b|) ||g|| sqrt(max V_b) / s <= tolerance, |b| = 1.

    g is the largest of the gradients of the t + 1 columns, so that this bounds |r| / s of every decision by the
    triangle inequality; |b| <= 1 holds for labels -1 and 1 in all but contrived cases. V_b is taken as
    k(x, x), and with an intercept the variance of the noise's mean, by which a level is unsure: where s2 is as
    large as n k(x, x), nothing else would tell the start, E = 0 without any intercept, from the solution. The
    proven bound of each decision is evaluated afterwards, for the solution's intercept and with all roundings; this
    rule only stops the solve.

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

    def measure(self, progress: Progress) -> float:
        """Distance that decisions may be at from the exact ones."""
        return progress.gradient_norm * self._sway

    def gradient_tolerance(self, n: int) -> float:
        """Return the max |g| that goes with it where entries of g are of like size; the choice of a solver goes by it.

        Where k(x, x) is 0 everywhere, decisions are 0 for any g, and any number will do.
        """
        sway = math.sqrt(n) * self._sway
        return max(self.tolerance / sway, sys.float_info.min) if sway > 0.0 else self.tolerance

    @property
    def _sway(self) -> float:
        """Largest move of a decision for each unit of ||g||: a quotient of roots, for V_b / s2 may overflow."""
        return (2.0 if self.intercept else 1.0) * math.sqrt(self.variance) / math.sqrt(self.noise_variance)


@dataclass(frozen=True)
class ExactSettings:
    """Settings of an exact LS-SVM."""

    solver: Solver | None = None  # by default one that suits the problem, as "auto" of the command line
    tolerance: float = DECISION_TOLERANCE  # stop where decisions are within about this of the exact ones
    limits: StoppingRule | None = None  # rules at which it stops too, such as `MaxPasses(50)`
    fit_intercept: bool = True
    calibrate: bool = True  # also fit the map from decisions to probabilities, to so many samples at most
    calibration_subset: int = 2000
    seed: int = 0  # of the solver that is chosen, and of that subset


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainedExact(TrainedClassifier):
    """A trained exact LS-SVM.

    `alpha` (n, t). `ones` (n,): E_2, which bounds take; zero without an intercept. `intercept` (t,). `solution`: of the
    t + 1 columns (t without an intercept), with the gradient evaluated anew in float64.
    """

    form: ClassifierForm = "exact"
    alpha: FloatArray
    ones: FloatArray
    intercept: FloatArray
    certificate: DecisionCertificate
    solution: Solution


def train_exact(
    data: LabelledData,
    hyperparameters: Hyperparameters,
    context: RunContext | BlockExecutor,
    settings: ExactSettings = ExactSettings(),
) -> TrainedExact:
    """Train the exact LS-SVM on all samples.

    Parameters
    ----------
    data : LabelledData
        Weights are of each sample's squared error, and positive.
    hyperparameters : Hyperparameters
        The kernel and s2 = 1/gamma_K; see `dkgp.models.classification.hyperparameters.tune_labels`.
    context : RunContext or BlockExecutor
        Who computes, and who watches.
    settings : ExactSettings

    Raises
    ------
    InputError
        Weights that are not positive, a kernel for another number of features, one whose white noise cannot be told
        from the rest, or a number as `product_error` that is too large for the tolerance.
    CheckpointError
        The checkpoint belongs to another run.
    InterruptedRunError
        The context asked for the end.
    """
    dataset, labels, n = data.dataset, data.labels, data.n
    fit_intercept = settings.fit_intercept
    kernel, noise_variance = data.kernel(hyperparameters)
    noise = _noise(noise_variance, data.weights)
    signs = labels.signs()
    right = np.column_stack([signs, np.ones(n)]) if fit_intercept else signs
    context = RunContext.of(context)
    context.require_products(settings.solver)
    level = float(np.broadcast_to(noise, n).mean()) / n

    def decision_error(largest: float) -> DecisionError:
        return DecisionError(settings.tolerance, float(np.min(noise)), largest, fit_intercept, level)

    limit = None
    if kernel.stationary:
        limit = decision_error(float(kernel.diagonal(dataset.inputs(0, 1))[0])).gradient_tolerance(n)
    if (conflict := context.product_error.decision_conflict(limit, settings.tolerance)) is not None:
        raise InputError(conflict)
    with context.operator(kernel, noise, dataset, tolerance=limit, by_length=True) as operator:
        prior = operator.prior()
        rule = decision_error(float(prior.max()))
        solver = settings.solver
        choice: dict[str, Any] = {}
        if solver is None:
            least, gradient_tolerance = operator.noise_variance, rule.gradient_tolerance(n)
            solver, choice = solver_for_labels(
                dataset, kernel, least, right.shape[1], gradient_tolerance, context, settings.seed
            )
            context.executor.tiles = replace(context.executor.tiles, products=choice["auto"]["products"])
        errors, watch = operator.row_errors(), data.identified(context, fit_intercept=fit_intercept)

        def solved(rule: DecisionError, watch: Watch, start: FloatArray | None) -> tuple[Solution, DecisionCertificate]:
            stopping = rule if settings.limits is None else rule | settings.limits
            solution = solve(operator, right, solver=solver, stopping=stopping, initial=start, watch=watch)
            alpha, _, intercept = _split(solution.alpha, labels.n_outputs)
            return solution, DecisionCertificate.of(
                alpha, intercept, solution, noise, prior, errors, assumptions(kernel)
            )

        largest = math.sqrt(rule.variance)
        solution, certificate = solved(rule, watch, None)
        # The stored bound has roundings in it: where the tolerance has room for them, the gradient leaves it.
        rounding = largest * max(certificate.residual) - rule.measure(solution.progress)
        beyond = largest * max(certificate.residual) > settings.tolerance
        if solution.converged and beyond and rounding <= REACH * settings.tolerance:
            before, closer = solution, replace(rule, tolerance=settings.tolerance - rounding)
            # The checkpoints are of the first part, whose end a run that is resumed comes to again.
            solution, certificate = solved(closer, replace(watch, checkpointing=None), before.alpha)
            solution = _going_on(before, solution)
        kept_share, products = operator.kept_share, operator.products
    alpha, ones, intercept = _split(solution.alpha, labels.n_outputs)
    calibration = None
    if settings.calibrate:
        subset = settings.calibration_subset
        calibration = calibrated(dataset, labels, kernel, noise, fit_intercept, subset, settings.seed)
    decision_errors = [length * largest for length in certificate.residual]
    beyond_words: dict[str, str] = {}
    if solution.converged:
        remedy = "more `noise_variance`, or a kernel of less variance"
        beyond_words = beyond_tolerance(max(decision_errors), settings.tolerance, remedy)
    summary = {
        "method": "exact",
        **data.summary(),
        "intercept": intercept.tolist(),
        "solver": solution.solver["solver"],
        **solution.summary(),
        # About the largest error of a decision at a sample.
        "decision_error": decision_errors,
        **beyond_words,
        "settings": solution.solver,
        **({} if certificate.assumes is None else {"assumes": certificate.assumes}),
        "kept_share": kept_share,
        "weighted": data.weights is not None,
        "fit_intercept": fit_intercept,
        **choice,
        **context.product_error.record(kernel, data.n, products),
    }
    return TrainedExact(
        kernel=kernel,
        noise_variance=noise_variance,
        classes=labels.classes,
        certificate=certificate,
        calibration=calibration,
        history=[progress.to_json() for progress in solution.history],
        summary=summary,
        alpha=alpha,
        ones=ones,
        intercept=intercept,
        solution=solution,
    )


def _going_on(before: Solution, solution: Solution) -> Solution:
    """Return a solution with the record of the solve `before` it, which it went on from."""
    first = before.progress

    def counted(progress: Progress) -> Progress:
        return replace(
            progress,
            iteration=progress.iteration + first.iteration,
            column_passes=progress.column_passes + first.column_passes,
            kernel_evaluations=progress.kernel_evaluations + first.kernel_evaluations,
            seconds=progress.seconds + first.seconds,
        )

    return replace(
        solution,
        progress=counted(solution.progress),
        history=[*before.history, *map(counted, solution.history)],
        refreshes=solution.refreshes + before.refreshes,
    )


def solver_for_labels(
    dataset: Dataset,
    kernel: Kernel,
    noise_variance: float,
    t: int,
    tolerance: float,
    context: RunContext | BlockExecutor,
    seed: int = 0,
    memory_bytes: int | None = None,
) -> tuple[Solver, dict[str, Any]]:
    """Choose a solver for t right-hand sides by a look at the problem, `tolerance` on max |g|; and say why, as JSON.

    `noise_variance` is the least of the samples'; `memory_bytes` the memory of the run.
    """
    context = RunContext.of(context)
    choice = choose_solver_for(
        Problem(dataset, kernel, Noise(noise_variance)),
        columns=t,
        tolerance=tolerance,
        product_error=context.product_error,
        memory_bytes=memory_bytes,
        one_arithmetic=_computes_alike(context.executor),
        seed=seed,
    )
    solver = build_solver(choice.solver, choice.options, precision=choice.precision, seed=seed)
    return solver, {"auto": choice.to_json()}


def _computes_alike(executor: BlockExecutor) -> bool:
    """True if all workers compute alike, so that solvers whose tasks take LAPACK may be chosen."""
    try:
        executor.require_one_arithmetic()
    except ClusterError:
        return False
    return True


def _noise(noise_variance: float, weights: FloatArray | None) -> Variances:
    """Noise of each sample, s2 / w_i."""
    if weights is None:
        return noise_variance
    if not (weights > 0.0).all():
        row = int(np.argmin(weights))
        raise InputError(
            f"`weights` must be positive and finite for the exact LS-SVM; got {weights[row]} for sample {row}. Leave "
            "samples without weight out of the training set"
        )
    return np.asarray(noise_variance / weights)


def _split(solved: FloatArray, t: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Alpha (n, t), E_2 (n,) and b (t,) of E: equation 23, with sums that are rounded once."""
    if solved.shape[1] == t:
        return solved, np.zeros(len(solved)), np.zeros(t)
    ones = np.array(solved[:, t])
    total = math.fsum(ones.tolist())
    intercept = np.array([math.fsum(column) / total if total else 0.0 for column in solved[:, :t].T.tolist()])
    return np.asarray(solved[:, :t] - ones[:, None] * intercept), ones, intercept
