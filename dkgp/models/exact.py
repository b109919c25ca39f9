"""The exact Gaussian process: train by solving Kbar alpha = y, save, predict the mean with its proven error bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors import BlockExecutor, split_evenly
from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset, ModelRecord, PredictionWriter, exists, open_model, save_model
from dkgp.errors import InputError, InterruptedRunError
from dkgp.kernels import Kernel, kernel_from_json
from dkgp.models.certificate import Certificate
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES
from dkgp.solvers import Checkpointing, Progress, Solution, Solver, StoppingRule, solve

__all__ = ["PredictSummary", "TrainedModel", "predict", "run_identity", "save", "train"]

PREDICTION_PIECE_ROWS = 512


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


@dataclass(frozen=True)
class PredictSummary:
    """What a prediction run did.

    Attributes
    ----------
    n_samples, n_support : int
    seconds : float
    largest_mean_error_bound : float
        In the targets' own units; the largest over samples and targets.
    url : str
    """

    n_samples: int
    n_support: int
    seconds: float
    largest_mean_error_bound: float
    url: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class _CachedModel:
    record: ModelRecord

    @property
    def nbytes(self) -> int:
        return int(self.record.alpha.nbytes)


@dataclass(frozen=True)
class SupportInputs:
    """A stored model's support inputs as an input source; travels as a URL and opens where it is used.

    Attributes
    ----------
    url : str
        Of the model store.
    version : str
        Tells one run's use of a URL from the next in a worker's cache.
    n_samples, n_features : int
    """

    url: str
    version: str
    n_samples: int
    n_features: int

    def record(self) -> ModelRecord:
        """Open the model, or take it from this worker's cache."""
        return worker_cache().get((self.version, "model"), lambda: _CachedModel(open_model(self.url))).record

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Standardised support inputs start:stop."""
        return self.record().inputs(start, stop)


def mean_task(context: BlockContext, test: Dataset, pieces: list[tuple[int, int]]) -> list[FloatArray]:
    """k_x' alpha for the test rows of each piece, standardised, in float64: (rows, p) each."""
    assert isinstance(context.source, SupportInputs)
    alpha = context.source.record().alpha
    evaluator = context.evaluator("double")
    means = []
    for start, stop in pieces:
        rows = evaluator.prepare(test.inputs(start, stop))
        mean = np.zeros((rows.n, alpha.shape[1]))
        for block in range(context.n_blocks):
            first, last = context.bounds(block)
            mean += evaluator.matmat(rows, context.block_features(block, "double"), alpha[first:last])
        means.append(mean)
    return means


def predict(
    model: ModelRecord,
    dataset: Dataset,
    url: str,
    executor: BlockExecutor,
    *,
    chunk_rows: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    overwrite: bool = False,
    resume: bool = False,
    interrupted: Callable[[], bool] | None = None,
) -> PredictSummary:
    """Predict means with their proven error bounds, streamed to a prediction store in the targets' own units.

    Parameters
    ----------
    model : ModelRecord
    dataset : Dataset
        Test inputs; its features are matched to the model's by name and mapped by the model's standardisation.
    url : str
        Where the prediction store goes.
    executor : BlockExecutor
    chunk_rows : int, optional
        Rows of a chunk of the store.
    progress : callable, optional
        Called with (samples done, samples in all).
    overwrite : bool
    resume : bool
        Continue a prediction store that was interrupted; chunks already there are not computed again.
    interrupted : callable, optional
        Asked between chunks; when it answers true the chunks done stay, for `resume`.

    Returns
    -------
    PredictSummary

    Raises
    ------
    InputError
        The test store lacks a feature of the model, or the store to resume was made from something else.
    """
    started = time.perf_counter()
    kernel = kernel_from_json(model.kernel)
    certificate = Certificate.from_json(dict(model.certificate))
    test = dataset.as_seen_by(model.feature_names, model.target_names, model.standardisation)
    version = f"{model.fingerprint}-{time.time_ns():x}"
    source = SupportInputs(model.url, version, model.n_samples, model.n_features)
    context = BlockContext(version, source, kernel, model.n_samples)
    scale = np.asarray(model.standardisation.target_std)
    attributes = {
        "model": model.url,
        "model_fingerprint": model.fingerprint,
        "data_fingerprint": dataset.fingerprint,
        "target_std": scale.tolist(),
    }
    if resume and exists(url):
        writer = PredictionWriter.open_to_resume(url)
        if writer.attributes != attributes:
            raise InputError(f"'{url}' was predicted from another model or other data; start afresh with --overwrite")
    else:
        writer = PredictionWriter.create(
            url, dataset.n_samples, model.target_names, ("mean", "mean_error_bound"), chunk_rows, attributes, overwrite
        )
    bound = certificate.mean_error_bound(kernel.diagonal(np.zeros((1, kernel.n_features))))[0] * scale
    try:
        with single_threaded_blas():
            todo = [
                (start, min(start + writer.chunk_rows, last))
                for first, last in writer.pending_regions()
                for start in range(first, last, writer.chunk_rows)
            ]
            done = dataset.n_samples - sum(stop - start for start, stop in todo)
            for start, stop in todo:
                if interrupted is not None and interrupted():
                    raise InterruptedRunError(
                        f"interrupted after {done} of {dataset.n_samples} test samples; continue with --resume", url
                    )
                pieces = [(a, min(a + PREDICTION_PIECE_ROWS, stop)) for a in range(start, stop, PREDICTION_PIECE_ROWS)]
                groups = split_evenly(pieces, executor.parallelism)
                mean = np.concatenate(executor.submit("kmean", mean_task, (context, test), groups).result())
                raw = model.standardisation.targets_back(mean)
                writer.write(start, mean=raw, mean_error_bound=np.broadcast_to(bound, raw.shape).copy())
                done += stop - start
                if progress is not None:
                    progress(done, dataset.n_samples)
        writer.commit()
    except BaseException:
        if not writer.done_regions():
            writer.abort()
        raise
    finally:
        worker_cache().discard_run(version)
    return PredictSummary(
        dataset.n_samples, model.n_samples, time.perf_counter() - started, float(np.max(bound)), str(url)
    )
