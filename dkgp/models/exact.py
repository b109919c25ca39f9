"""The exact Gaussian process: train by solving Kbar alpha = y, and save."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dkgp.cluster.executors import BlockExecutor
from dkgp.data import Dataset, save_model
from dkgp.errors import InputError
from dkgp.kernels import Kernel
from dkgp.models.certificate import Certificate
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES
from dkgp.solvers import Checkpointing, Progress, Solution, Solver, StoppingRule, solve

__all__ = ["TrainedModel", "run_identity", "save", "train"]


@dataclass(frozen=True)
class TrainedModel:
    """A fitted exact GP.

    Attributes
    ----------
    kernel, noise_variance
        As given; the noise variance s2 on the standardised scale.
    solution : Solution
        alpha, its float64 gradient, history, why the solve stopped.
    certificate : Certificate
        What is proven about it.
    summary : dict
        n, d, p, solver, converged, iterations, column_passes, kernel_evaluations, seconds, gradient_inf_norm,
        relative_residual, objective, reason, settings.
    """

    kernel: Kernel
    noise_variance: float
    solution: Solution
    certificate: Certificate
    summary: dict[str, Any]


def run_identity(dataset: Dataset, kernel: Kernel, noise_variance: float) -> dict[str, Any]:
    """Say what a training run is of; a checkpoint is resumed only by a run with the same identity."""
    return {"fingerprint": dataset.fingerprint, "kernel": kernel.to_json(), "noise_variance": float(noise_variance)}


def train(
    dataset: Dataset,
    kernel: Kernel,
    noise_variance: float,
    executor: BlockExecutor,
    *,
    solver: Solver | None = None,
    stopping: StoppingRule | None = None,
    initial: ArrayLike | None = None,
    callback: Callable[[Progress], None] | None = None,
    checkpointing: Checkpointing | None = None,
    interrupted: Callable[[], bool] | None = None,
    coordinator_input_bytes: int = DEFAULT_COORDINATOR_INPUT_BYTES,
) -> TrainedModel:
    """Fit an exact GP to a dataset.

    Parameters
    ----------
    dataset : Dataset
        Standardised inputs and targets are read from it by whoever needs them.
    kernel : Kernel
    noise_variance : float
        s2, on the standardised scale.
    executor : BlockExecutor
        Who computes; see `dkgp.cluster.open_executor`.
    solver, stopping, initial, callback, checkpointing, interrupted
        See `dkgp.solvers.solve`.
    coordinator_input_bytes : int
        What the coordinator may spend on inputs; see `BlockedKernelOperator`.

    Returns
    -------
    TrainedModel

    Raises
    ------
    InputError
        No targets, or a kernel for another number of features.
    """
    if dataset.n_targets == 0:
        raise InputError(f"'{dataset.url}' has no targets; training needs at least one. Ingest with --target NAME")
    targets = np.concatenate([dataset.targets(start, stop) for start, stop in dataset.row_chunks()])
    with BlockedKernelOperator(
        kernel, noise_variance, dataset, executor, coordinator_input_bytes=coordinator_input_bytes
    ) as operator:
        solution = solve(
            operator,
            targets,
            solver=solver,
            stopping=stopping,
            initial=initial,
            callback=callback,
            checkpointing=checkpointing,
            interrupted=interrupted,
        )
        largest = float(np.max(operator.diagonal())) - operator.noise_variance
    certificate = Certificate.of(solution.alpha, solution.gradient, noise_variance, largest)
    progress = solution.progress
    summary = {
        "n": dataset.n_samples,
        "d": dataset.n_features,
        "p": dataset.n_targets,
        "solver": solution.solver["solver"],
        "converged": solution.converged,
        "reason": solution.reason.message,
        "advice": solution.reason.advice,
        "iterations": progress.iteration,
        "column_passes": progress.column_passes,
        "kernel_evaluations": progress.kernel_evaluations,
        "refreshes": solution.refreshes,
        "seconds": progress.seconds,
        "gradient_inf_norm": progress.gradient_inf_norm,
        "relative_residual": progress.relative_residual,
        "objective": progress.objective,
        "settings": solution.solver,
    }
    return TrainedModel(kernel, float(noise_variance), solution, certificate, summary)


def save(
    trained: TrainedModel, url: str, dataset: Dataset, *, by_reference: bool = False, overwrite: bool = False
) -> None:
    """Write a trained model to a store; with its support inputs unless `by_reference`."""
    save_model(
        url,
        kernel=trained.kernel.to_json(),
        noise_variance=trained.noise_variance,
        alpha=trained.solution.alpha,
        dataset=dataset,
        history=[progress.to_json() for progress in trained.solution.history],
        certificate=trained.certificate.to_json(),
        summary=trained.summary,
        by_reference=by_reference,
        overwrite=overwrite,
    )
