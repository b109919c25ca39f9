"""Training on a basis: choose it, minimise by Newton's method, and prove how far the best of all functions may be.

f = K_nm beta minimises sum_i w_i l(y_i, f_i) + lambda beta' K_mm beta / 2 over beta. As a Gaussian process classifier,
with prior covariance K / lambda, it is the mode of Laplace's approximation, whose covariance on the basis is that of
(F'WF + lambda I)^-1 in whitened coordinates; what the basis leaves of k(x, x) is the prior's, as in regression.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data import Dataset
from dkgp.data.types import Progress as Within
from dkgp.data.types import ProgressCallback
from dkgp.errors import InputError, InterruptedRunError
from dkgp.kernels import Kernel, check_positive_definite, fold_white, has_user_function
from dkgp.models.classification.basis.certificate import CertifiedBasis, certify_basis
from dkgp.models.classification.basis.settings import BasisSettings
from dkgp.models.classification.labels import Labels
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.logistic.certificate import RiskCertificate
from dkgp.models.classification.prototypes import choose_prototypes
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.sparse.bases import given_basis
from dkgp.models.tuning.tune import draw_subset
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES, BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.solvers import Checkpointing, Progress
from dkgp.solvers.basis_risk.minimise import BasisRiskSolution, minimise_on_basis
from dkgp.solvers.basis_risk.state import BasisRiskState
from dkgp.solvers.checkpointing import Checkpoints

__all__ = ["BasisForm", "TrainedOnBasis", "train_on_basis"]

BasisForm = Literal["logistic", "gp"]


@dataclass(frozen=True)
class TrainedOnBasis:
    """A classifier on a basis.

    Attributes
    ----------
    form : {"logistic", "gp"}
    kernel : Kernel
    regularisation : float
        lambda.
    likelihood : Likelihood
    classes : tuple of str
    prototypes : (m, d) float64
        Standardised.
    indices : (m,) int or None
        Samples that they are; None where they are none.
    weights : (m, t) float64
        beta.
    kernel_lower : (m, m) float64 or None
        L, of a Gaussian process.
    posterior_lower : (t, m, m) float64 or None
        Lower factors of I + F'WF / lambda, of a Gaussian process; of softmax (1, t m, t m).
    certificate : RiskCertificate or None
        The distance to the best of all functions, where it was wanted.
    solution : BasisRiskSolution
    summary : dict
        method, n, d, classes, counts, columns, solver, likelihood, regularisation, basis, basis_size, left, risk,
        converged, reason, advice, iterations, passes, hessians, column_passes, kernel_evaluations, seconds,
        seconds_by_part, decision_error (to the basis' own best); evidence of a Gaussian process; where certified
        risk_lower_bound, risk_gap and distance (of decisions at the samples, to the best of all functions).
    """

    form: BasisForm
    kernel: Kernel
    regularisation: float
    likelihood: Likelihood
    classes: tuple[str, ...]
    prototypes: FloatArray
    indices: IndexArray | None
    weights: FloatArray
    kernel_lower: FloatArray | None
    posterior_lower: FloatArray | None
    certificate: RiskCertificate | None
    solution: BasisRiskSolution
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def history(self) -> list[dict[str, Any]]:
        """Newton's steps, in plain JSON types."""
        return [progress.to_json() for progress in self.solution.history]


def train_on_basis(
    dataset: Dataset,
    labels: Labels,
    hyperparameters: Hyperparameters,
    executor: BlockExecutor,
    settings: BasisSettings,
    *,
    likelihood: Likelihood,
    form: BasisForm = "logistic",
    regularisation: float = 1.0,
    weights: FloatArray | None = None,
    given: IndexArray | FloatArray | None = None,
    callback: Callable[[Progress], None] | None = None,
    within: ProgressCallback | None = None,
    checkpointing: Checkpointing | None = None,
    interrupted: Callable[[], bool] | None = None,
    coordinator_input_bytes: int = DEFAULT_COORDINATOR_INPUT_BYTES,
) -> TrainedOnBasis:
    """Train a logistic or a Gaussian process classifier on a basis.

    Parameters
    ----------
    dataset : Dataset
        Its standardised inputs are read by whoever needs them; its targets are not.
    labels : Labels
        Of its samples.
    hyperparameters : Hyperparameters
        The kernel; noise plays no part.
    executor : BlockExecutor
    settings : BasisSettings
    likelihood : Likelihood
    form : {"logistic", "gp"}
        A Gaussian process also keeps the covariance of Laplace's approximation.
    regularisation : float
        lambda.
    weights : (n,) float64, optional
        Of each sample's loss, not negative.
    given : (m,) int or (m, d) float64, optional
        A basis of the user's own, samples or standardised inputs.
    callback : callable, optional
        Called after each step.
    within, checkpointing, interrupted
        See `dkgp.solvers.solve`; checkpoints are of Newton's steps.
    coordinator_input_bytes : int
        See `BlockedKernelOperator`.

    Raises
    ------
    InputError
        Labels or weights of another number of samples, or that do not fit; a basis that is none; the covariance of
        softmax with more coefficients than a factor may have rows.
    NumericalError
        See `minimise_on_basis`.
    CheckpointError
        A checkpoint of another run.
    InterruptedRunError
        As was wished.
    """
    _check(dataset, labels, weights, form, regularisation)
    kernel, _ = fold_white(hyperparameters.kernel, 1.0)
    if has_user_function(kernel):
        check_positive_definite(kernel, dataset.input_rows(draw_subset(dataset.n_samples, 256, 0)))
    targets, timings, began = likelihood.targets(labels), {}, time.perf_counter()

    def lap(part: str) -> None:
        nonlocal began
        timings[part], began = round(time.perf_counter() - began, 3), time.perf_counter()

    said = _described(labels, settings, likelihood, form, regularisation, weights, given)
    checkpoints = Checkpoints(checkpointing, said, dict)
    found = checkpoints.latest()
    state = None if found is None else BasisRiskState.restored(found.metadata["state"], found.arrays)

    def heed(progress: Within) -> None:
        if interrupted is not None and interrupted():
            where = None if checkpoints.saved_iteration is None else checkpoints.url
            kept = "nothing was saved" if where is None else f"{checkpoints.saved_iteration} steps are saved in {where}"
            raise InterruptedRunError(f"interrupted in the {progress.phase}; {kept}", where)

    # Least squares that bound the loss from above have this noise: what a greedy choice is judged by.
    noise = regularisation / likelihood.loss.curvature_bound
    options = {"coordinator_input_bytes": coordinator_input_bytes}
    with BlockedKernelOperator(kernel, noise, dataset, executor, **options) as operator, operator.watched(heed, within):
        if state is not None:
            prototypes, indices = state.prototypes, state.indices
        elif given is not None:
            basis = given_basis(operator, given)
            prototypes, indices = basis.inputs, basis.indices
        else:
            indices, prototypes = choose_prototypes(
                settings.basis, operator, settings.size, settings.seed, targets=labels.signs()
            )
        lap("choice")
        cross = CrossKernel(operator, prototypes)
        solution = minimise_on_basis(
            cross,
            targets,
            loss=likelihood.loss,
            regularisation=regularisation,
            weights=weights,
            tolerance=settings.tolerance,
            max_iterations=settings.max_iterations,
            hessian=form == "gp",
            indices=indices,
            state=state,
            callback=callback,
            checkpoints=checkpoints,
            interrupted=interrupted,
        )
        lap("fit")
        proven: CertifiedBasis | None = None
        if settings.certify:
            proven = certify_basis(
                operator, cross, solution.weights, solution.values, targets, likelihood, regularisation, weights
            )
            lap("certificate")
        lower = cross.lower if form == "gp" else None
        scale = math.sqrt(float(operator.prior().max())) * (1.0 + 1e-9)
        left = 1.0 - solution.explained / float(operator.prior().sum())
        entries = operator.kernel_evaluations
    summary = {
        **_summary(dataset, labels, solution, proven, scale),
        "method": form,
        "likelihood": likelihood.to_json(),
        "regularisation": regularisation,
        "basis": "given" if given is not None else settings.basis,
        "basis_size": len(prototypes),
        "left": left,
        "kernel_evaluations": entries,
        "seconds": round(sum(timings.values()), 3),
        "seconds_by_part": timings,
    }
    posterior = None
    if solution.hessian is not None:
        posterior = np.stack([factor / np.sqrt(regularisation) for factor in solution.hessian.lowers])
        summary["evidence"] = _evidence(solution, posterior)
    return TrainedOnBasis(
        form,
        kernel,
        regularisation,
        likelihood,
        labels.classes,
        cross.prototypes,
        indices,
        solution.weights,
        lower,
        posterior,
        None if proven is None else proven.certificate,
        solution,
        summary,
    )


def _check(dataset: Dataset, labels: Labels, weights: FloatArray | None, form: str, regularisation: float) -> None:
    if not (math.isfinite(regularisation) and regularisation > 0.0):
        raise InputError(f"`regularisation` must be positive and finite; got {regularisation}")
    if form not in ("logistic", "gp"):
        raise InputError(f"`form` is 'logistic' or 'gp'; got {form!r}")
    if labels.n_samples != dataset.n_samples:
        raise InputError(f"there are labels of {labels.n_samples:,} samples; '{dataset.url}' has {dataset.n_samples:,}")
    if weights is None:
        return
    if weights.shape != (dataset.n_samples,) or not (np.isfinite(weights) & (weights >= 0.0)).all():
        raise InputError(
            f"`weights` must be finite and not negative, one for each of {dataset.n_samples:,} samples; got shape "
            f"{weights.shape}"
        )
    totals = np.bincount(labels.codes, weights=weights, minlength=labels.n_classes)
    if (totals <= 0.0).any():
        name = labels.classes[int(np.argmin(totals))]
        raise InputError(f"the samples of the class '{name}' have weight 0 in all; give some a positive one")


def _digest(array: Any, dtype: str) -> str | None:
    return None if array is None else sha256(np.ascontiguousarray(array, dtype=dtype).tobytes()).hexdigest()


def _described(
    labels: Labels,
    settings: BasisSettings,
    likelihood: Likelihood,
    form: str,
    regularisation: float,
    weights: FloatArray | None,
    given: IndexArray | FloatArray | None,
) -> dict[str, Any]:
    """Everything that determines the steps, beside data and kernel, in plain JSON types."""
    own = {name: value for name, value in vars(settings).items() if name != "certify"}
    return {
        **own,
        "likelihood": likelihood.to_json(),
        "form": form,
        "regularisation": regularisation,
        "classes": list(labels.classes),
        "labels": _digest(labels.codes, "<i8"),
        "weights": _digest(weights, "<f8"),
        "given": _digest(given, "<f8"),
    }


def _evidence(solution: BasisRiskSolution, posterior: FloatArray) -> float:
    """Laplace's log p(y) under the basis' covariance F F' / lambda: -R - log|I + F'WF / lambda| / 2."""
    logarithms = [float(np.log(lower.diagonal()).sum()) for lower in posterior]
    return -float(solution.risk.sum()) - sum(logarithms)


def _summary(
    dataset: Dataset, labels: Labels, solution: BasisRiskSolution, proven: CertifiedBasis | None, scale: float
) -> dict[str, Any]:
    progress, risk = solution.history[-1], float(solution.risk.sum())
    found: dict[str, Any] = {
        "n": dataset.n_samples,
        "d": dataset.n_features,
        "classes": list(labels.classes),
        "counts": labels.counts().tolist(),
        "columns": labels.n_outputs,
        "solver": "newton",
        "converged": solution.reason.converged,
        "reason": solution.reason.message,
        "advice": solution.reason.advice,
        "iterations": progress.iteration,
        "passes": solution.passes,
        "hessians": solution.gram_passes,
        "hessian": solution.kind,
        "column_passes": progress.column_passes,
        "risk": risk,
        # By how much decisions may miss those of the basis' own best function.
        "decision_error": [progress.relative_residual] * labels.n_outputs,
    }
    if proven is not None:
        excess, assumes = sum(proven.excess), proven.certificate.assumes
        # No risk is below zero.
        found |= {"risk_lower_bound": max(risk - excess, 0.0), "risk_gap": min(excess / risk, 1.0)}
        # Of decisions, at the samples; everywhere where k(x, x) is the same.
        found |= {"distance": [radius * scale for radius in proven.certificate.radius]}
        found |= {} if assumes is None else {"assumes": assumes}
    return found
