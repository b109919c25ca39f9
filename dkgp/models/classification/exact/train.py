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
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data import Dataset
from dkgp.data.types import IntArray, ProgressCallback
from dkgp.errors import ClusterError, InputError
from dkgp.kernels import Kernel, check_positive_definite, fold_white, has_user_function
from dkgp.models.classification.belonging import belonging
from dkgp.models.classification.calibration import Calibration
from dkgp.models.classification.exact.calibrate import calibrated
from dkgp.models.classification.exact.certificate import DecisionCertificate
from dkgp.models.classification.exact.stopping import DecisionError
from dkgp.models.classification.labels import Labels
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.rounding import assumptions
from dkgp.models.solver_choice import choose_solver_for
from dkgp.models.tuning.tune import draw_subset
from dkgp.operators.base import FloatArray, Noise
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES, BlockedKernelOperator
from dkgp.operators.tree.operator import TreeKernelOperator
from dkgp.solvers import Checkpointing, Progress, Solution, Solver, StoppingRule, solve
from dkgp.solvers.registry import build_solver

__all__ = ["DECISION_TOLERANCE", "TrainedExact", "solver_for_labels", "train_exact"]

# By default decisions are within so much of the exact ones, of margins at -1 and 1.
DECISION_TOLERANCE = 1e-3


@dataclass(frozen=True)
class TrainedExact:
    """A trained exact LS-SVM.

    Attributes
    ----------
    kernel, noise_variance
        Of the standardised inputs, and s2 of a sample of weight one; white noise of the kernel is part of it.
    alpha : (n, t) float64
    ones : (n,) float64
        E_2, which bounds take; zero without an intercept.
    intercept : (t,) float64
    certificate : DecisionCertificate
    solution : Solution
        Of the t + 1 columns (t without an intercept), with the gradient evaluated anew in float64.
    classes : tuple of str
    calibration : Calibration or None
        From decisions to probabilities, by samples of a subset left out one at a time.
    summary : dict
        n, d, classes, columns, solver, converged, iterations, column_passes, kernel_evaluations, seconds, the proven
        lengths of residuals and so on.
    """

    kernel: Kernel
    noise_variance: float
    alpha: FloatArray
    ones: FloatArray
    intercept: FloatArray
    certificate: DecisionCertificate
    solution: Solution
    classes: tuple[str, ...]
    calibration: Calibration | None
    summary: dict[str, Any]

    @property
    def history(self) -> list[dict[str, Any]]:
        """The solve's records, in plain JSON types."""
        return [progress.to_json() for progress in self.solution.history]

    def record(self) -> dict[str, Any]:
        """Arrays that a store holds of it, and the rest in plain JSON types."""
        return {
            "kernel": self.kernel.to_json(),
            "noise_variance": self.noise_variance,
            "alpha": self.alpha,
            "ones": self.ones,
            "intercept": self.intercept,
            "classes": self.classes,
            "calibration": None if self.calibration is None else self.calibration.to_json(),
            "certificate": self.certificate.to_json(),
            "history": self.history,
            "summary": self.summary,
        }


def train_exact(
    dataset: Dataset,
    labels: Labels,
    hyperparameters: Hyperparameters,
    executor: BlockExecutor,
    *,
    solver: Solver | None = None,
    tolerance: float = DECISION_TOLERANCE,
    limits: StoppingRule | None = None,
    weights: FloatArray | None = None,
    fit_intercept: bool = True,
    initial: ArrayLike | None = None,
    callback: Callable[[Progress], None] | None = None,
    within: ProgressCallback | None = None,
    checkpointing: Checkpointing | None = None,
    interrupted: Callable[[], bool] | None = None,
    coordinator_input_bytes: int = DEFAULT_COORDINATOR_INPUT_BYTES,
    calibrate: bool = True,
    calibration_subset: int = 2000,
    seed: int = 0,
    tree_error: float | None = None,
) -> TrainedExact:
    """Train the exact LS-SVM on all samples.

    Parameters
    ----------
    dataset : Dataset
        Its standardised inputs are read by whoever needs them; its targets are not.
    labels : Labels
        Of its samples.
    hyperparameters : Hyperparameters
        The kernel and s2 = 1/gamma_K; see `dkgp.models.classification.hyperparameters.tune_labels`.
    executor : BlockExecutor
    solver : Solver, optional
        By default what suits the problem, as "auto" of the command line.
    tolerance : float
        Stop where decisions are within about this of the exact ones; see `DecisionError`.
    limits : StoppingRule, optional
        Rules at which it stops too, such as `MaxPasses(50)`.
    weights : (n,) float64, optional
        Of each sample's squared error, positive.
    fit_intercept : bool
    initial : (n, t + 1) array_like, optional
        Warm start of E, (n, t) without an intercept.
    callback, within, checkpointing, interrupted
        See `dkgp.solvers.solve`.
    coordinator_input_bytes : int
        See `BlockedKernelOperator`.
    calibrate : bool
        Also find the map to probabilities.
    calibration_subset : int
        Samples that it is found by, at most.
    seed : int
        Of the solver that is chosen, and of that subset.
    tree_error : float, optional
        Take products by pruned sums, each entry good to this; see `TreeKernelOperator`. The certificate allows for it.

    Returns
    -------
    TrainedExact

    Raises
    ------
    InputError
        Labels or weights of another number of samples, weights that are not positive, a kernel for another number of
        features, or one whose white noise cannot be told from the rest.
    CheckpointError
        The checkpoint belongs to another run.
    InterruptedRunError
        As was wished.
    """
    n = dataset.n_samples
    if labels.n_samples != n:
        raise InputError(f"there are labels of {labels.n_samples:,} samples; '{dataset.url}' has {n:,}")
    kernel, noise_variance = fold_white(hyperparameters.kernel, hyperparameters.noise_variance)
    noise = _noise(noise_variance, weights, n)
    if has_user_function(kernel):
        check_positive_definite(kernel, dataset.input_rows(draw_subset(n, 256, 0)))
    signs = labels.signs()
    right = np.column_stack([signs, np.ones(n)]) if fit_intercept else signs
    options: dict[str, Any] = {"coordinator_input_bytes": coordinator_input_bytes}
    operators: type[BlockedKernelOperator] = BlockedKernelOperator
    if tree_error is not None:
        operators, options["error"] = TreeKernelOperator, tree_error
    with operators(kernel, noise, dataset, executor, **options) as operator:
        prior = operator.prior()
        level = float(np.broadcast_to(noise, n).mean()) / n
        rule = DecisionError(tolerance, operator.noise_variance, float(prior.max()), fit_intercept, level)
        chosen: dict[str, Any] = {}
        if solver is None:
            solver, chosen = solver_for_labels(
                dataset,
                kernel,
                operator.noise_variance,
                right.shape[1],
                rule.gradient_tolerance(n),
                executor,
                seed,
                tree_error=tree_error,
            )
            executor.tiles = replace(executor.tiles, products=chosen["auto"]["products"])
        solution = solve(
            operator,
            right,
            solver=solver,
            stopping=rule if limits is None else rule | limits,
            initial=initial,
            callback=callback,
            within=within,
            checkpointing=belonging(checkpointing, labels, weights, fit_intercept=fit_intercept),
            interrupted=interrupted,
        )
        errors, share = operator.row_errors(), operator.kept_share
    alpha, ones, intercept = _split(solution.alpha, labels.n_outputs)
    certificate = DecisionCertificate.of(
        alpha,
        intercept,
        solution.alpha,
        solution.gradient,
        noise,
        prior,
        errors,
        fit_intercept=fit_intercept,
        stepped=solution.stepped,
        product_error=solution.product_error,
        assumes=assumptions(kernel),
    )
    calibration = None
    if calibrate:
        calibration = calibrated(dataset, labels, kernel, noise, fit_intercept, calibration_subset, seed)
    summary = _summary(dataset, labels, solution, certificate, rule, intercept)
    summary |= {"kept_share": share, "weighted": weights is not None, "fit_intercept": fit_intercept, **chosen}
    summary |= {} if tree_error is None else {"tree_error": float(tree_error)}
    return TrainedExact(
        kernel, noise_variance, alpha, ones, intercept, certificate, solution, labels.classes, calibration, summary
    )


@dataclass(frozen=True)
class _Columns:
    """A data set as choosing a solver looks at it, with as many targets as are solved for."""

    dataset: Dataset
    n_targets: int

    @property
    def n_samples(self) -> int:
        return self.dataset.n_samples

    def input_rows(self, indices: IntArray) -> FloatArray:
        return self.dataset.input_rows(indices)


def solver_for_labels(
    dataset: Dataset,
    kernel: Kernel,
    noise_variance: float,
    t: int,
    tolerance: float,
    executor: BlockExecutor,
    seed: int = 0,
    memory_bytes: int | None = None,
    tree_error: float | None = None,
) -> tuple[Solver, dict[str, Any]]:
    """Choose a solver for t right-hand sides by a look at the problem, `tolerance` on max |g|; and say why, as JSON.

    `noise_variance` is the least of the samples'; `memory_bytes` what the run may take; `tree_error` that of products,
    where they are taken by a tree.
    """
    choice = choose_solver_for(
        _Columns(dataset, t),
        kernel,
        noise_variance,
        tolerance=tolerance,
        tree_error=tree_error,
        memory_bytes=memory_bytes,
        one_arithmetic=_alike(executor),
        seed=seed,
    )
    solver = build_solver(choice.solver, choice.options, precision=choice.precision, seed=seed)
    return solver, {"auto": choice.to_json()}


def _alike(executor: BlockExecutor) -> bool:
    """True if all workers compute alike, so that solvers whose tasks take LAPACK may be chosen."""
    try:
        executor.require_one_arithmetic()
    except ClusterError:
        return False
    return True


def _noise(noise_variance: float, weights: FloatArray | None, n: int) -> Noise:
    """Noise of each sample, s2 / w_i."""
    if weights is None:
        return noise_variance
    values = np.asarray(weights, dtype=np.float64)
    if values.shape != (n,):
        raise InputError(f"`weights` have shape {values.shape}; expected ({n},), one for each sample")
    usable = np.isfinite(values) & (values > 0.0)
    if not usable.all():
        row = int(np.argmin(usable))
        raise InputError(
            f"`weights` must be positive and finite for the exact LS-SVM; got {values[row]} for sample {row}. Leave "
            "samples without weight out of the training set"
        )
    return np.asarray(noise_variance / values)


def _split(solved: FloatArray, t: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Alpha (n, t), E_2 (n,) and b (t,) of E: equation 23, with sums that are rounded once."""
    if solved.shape[1] == t:
        return solved, np.zeros(len(solved)), np.zeros(t)
    ones = np.array(solved[:, t])
    total = math.fsum(ones.tolist())
    intercept = np.array([math.fsum(column) / total if total else 0.0 for column in solved[:, :t].T.tolist()])
    return np.asarray(solved[:, :t] - ones[:, None] * intercept), ones, intercept


def _summary(
    dataset: Dataset,
    labels: Labels,
    solution: Solution,
    certificate: DecisionCertificate,
    rule: DecisionError,
    intercept: FloatArray,
) -> dict[str, Any]:
    progress = solution.progress
    largest = math.sqrt(rule.variance)
    return {
        "method": "exact",
        "n": dataset.n_samples,
        "d": dataset.n_features,
        "classes": list(labels.classes),
        "counts": labels.counts().tolist(),
        "columns": labels.n_outputs,
        "intercept": intercept.tolist(),
        "solver": solution.solver["solver"],
        "converged": solution.converged,
        "reason": solution.reason.message,
        "advice": solution.reason.advice,
        "iterations": progress.iteration,
        "column_passes": progress.column_passes,
        "kernel_evaluations": progress.kernel_evaluations,
        "refreshes": solution.refreshes,
        "seconds": progress.seconds,
        "seconds_by_part": {name: round(seconds, 3) for name, seconds in solution.seconds_by_part.items()},
        "gradient_inf_norm": progress.gradient_inf_norm,
        "relative_residual": progress.relative_residual,
        # What a decision among the samples misses at most, about.
        "decision_error": [length * largest for length in certificate.residual],
        "settings": solution.solver,
        **({} if certificate.assumes is None else {"assumes": certificate.assumes}),
    }
