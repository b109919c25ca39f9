"""Training of a sparse model as a command: checked and planned beforehand, resumed, saved, and told in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkgp.cluster import BlockExecutor, open_executor
from dkgp.commands.own_work import (
    checkpointing_of,
    difference,
    has_checkpoint,
    is_unfinished_model,
    memory_budget,
    opened,
    remove_checkpoint,
    warn_of_labels,
)
from dkgp.commands.reporting.basis_plot import plot_basis
from dkgp.commands.reporting.documents import Document, plain
from dkgp.commands.reporting.memory import PeakMemory
from dkgp.commands.reporting.outputs import check_side_files
from dkgp.commands.reporting.progress import ChoiceProgress, Reporter, announce
from dkgp.commands.reporting.records import RecordLog
from dkgp.commands.signals import interruptible
from dkgp.commands.sparse.given import digest, read_given_basis
from dkgp.commands.sparse.job import SparseJob
from dkgp.data import CheckpointStore, Dataset, ensure_writable
from dkgp.data.stores.sparse.sparse_store import SPARSE_MODEL_KIND, open_sparse_model
from dkgp.errors import InputError, InterruptedRunError
from dkgp.models import Hyperparameters
from dkgp.models.exact import run_identity
from dkgp.models.sparse.ladder import Rung, climb
from dkgp.models.sparse.ladder.plan import FIRST_RUNG
from dkgp.models.sparse.memory import SparseMemory
from dkgp.models.sparse.stored import save_sparse
from dkgp.models.sparse.train import TrainedSparse, train_sparse
from dkgp.models.warm_up import compiling_bytes, helped
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES, coordinator_input_bytes_needed
from dkgp.solvers import Checkpointing

__all__ = ["finished_sparse", "run_sparse"]

# Of the targets' standard deviation: the mean of the targets alone is about one away from the exact mean.
SAYS_LITTLE = 0.5


@dataclass(frozen=True)
class _Prepared:
    """Everything that could be checked without computing."""

    dataset: Dataset
    hyperparameters: Hyperparameters
    given: IndexArray | FloatArray | None
    checkpointing: Checkpointing | None
    overwrite: bool


@dataclass(frozen=True)
class _Plan:
    """Projected memory, of a ladder for each rung by itself; bytes of inputs here; what else is free; what is kept."""

    sparse: SparseMemory | None
    inputs_bytes: int
    free_bytes: int
    kept_bytes: int


def run_sparse(job: SparseJob, reporter: Reporter) -> Document:
    """Train, certify and save; return the record, with `converged` false where what was asked for is not proven.

    Where a run that is resumed had saved its model before it was killed, there is nothing left to do: its record is
    returned.

    Raises
    ------
    InputError
        Anything that can be found wrong beforehand; nothing has been written.
    NumericalError
        Rounding exceeds the noise variance.
    InterruptedRunError
        A signal asked for the end; a greedy choice is in the checkpoint.
    ClusterError
        No cluster, or one that was lost.
    """
    with PeakMemory() as memory:
        job.check()
        dataset, found = opened(job)
        warn_of_labels(dataset, found, reporter)
        given = None if job.given_basis is None else read_given_basis(job.given_basis, dataset)
        job = _sized(job, dataset, given, reporter)
        if job.resume:
            finished = _finished(job, reporter, dataset, found, given, converged=True)
            if finished is not None:
                return finished
        prepared = _prepare(job, dataset, found, given, reporter)
        with helped(found.kernel), open_executor(job.cluster, dataset.n_samples, reporter) as executor:
            announce(executor, reporter)
            plan = _plan(job, prepared, executor)
            trained = _train(job, prepared, plan, executor, reporter)
        # Worker processes are gone by now; the summary in the store tells of them too.
        trained = replace(trained, summary={**trained.summary, "peak_memory_bytes": memory.bytes})
    save_sparse(trained, job.out, dataset, overwrite=prepared.overwrite)
    history = [] if trained.greedy is None else [progress.to_json() for progress in trained.greedy.history]
    planned = None if plan.sparse is None else plan.sparse.to_json()
    certificate = trained.certificate.to_json()
    return _conclude(job, dataset.url, trained.summary, certificate, history, planned, reporter)


def finished_sparse(job: SparseJob, reporter: Reporter, *, converged: bool = False) -> Document | None:
    """Return the record of the model at `job.out` where it is what the job would make; do what is left to do.

    For a run that ended between saving its model and saying so. None where the model is incomplete, or of other data,
    hyperparameters or settings; with `converged`, also where it misses what was asked for.
    """
    try:
        dataset, found = opened(job)
        given = None if job.given_basis is None else read_given_basis(job.given_basis, dataset)
        job = _sized(job, dataset, given)
    except InputError:
        return None
    return _finished(job, reporter, dataset, found, given, converged=converged)


def _finished(
    job: SparseJob,
    reporter: Reporter,
    dataset: Dataset,
    found: Hyperparameters,
    given: IndexArray | FloatArray | None,
    *,
    converged: bool,
) -> Document | None:
    try:
        model = open_sparse_model(job.out)
    except InputError:
        return None
    if converged and not model.summary["converged"]:
        return None
    held = {"fingerprint": model.fingerprint, "kernel": model.kernel, "noise_variance": model.noise_variance}
    wanted = {**run_identity(dataset, found.kernel, found.noise_variance), **job.identity(digest(given))}
    other = difference({**held, **model.summary["settings"]}, wanted)
    if other is not None:
        reporter.note(f"the model '{job.out}' is of a run with another {other}")
        return None
    reporter.note(f"the model '{job.out}' is done: it was complete when an earlier run ended")
    check_side_files(job.plot, None, replace=True)
    return _conclude(job, dataset.url, model.summary, model.certificate, model.history, None, reporter)


def _conclude(
    job: SparseJob,
    dataset_url: str,
    summary: Mapping[str, Any],
    certificate: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    memory_plan: Document | None,
    reporter: Reporter,
) -> Document:
    """End a run whose model is saved: draw the plot, describe it, warn, remove checkpoints that served their turn."""
    if job.plot is not None:
        plot_basis(job.plot, history, summary, certificate, title=_title(summary))
    checkpoints = CheckpointStore(job.checkpoint_url)
    kept = not summary["converged"] and has_checkpoint(checkpoints)
    if summary["converged"]:
        remove_checkpoint(checkpoints)
    for warning in _warnings(summary):
        reporter.warn(warning)
    return {
        "command": "sparse",
        "out": job.out,
        "dataset": dataset_url,
        **plain(summary),
        "certificate": plain(certificate),
        "memory_plan": memory_plan,
        "resumed": job.resume,
        "checkpoint": job.checkpoint_url if kept else None,
        "plot": job.plot,
        "log_json": job.log_json,
        "warnings": list(reporter.warnings),
    }


def _warnings(summary: Mapping[str, Any]) -> list[str]:
    """Everything that a user must know of a model, in words."""
    found = []
    if not summary["converged"]:
        advice = f"; {summary['advice']}" if summary["advice"] else ""
        found.append(f"not proven to be as near as was asked for: {summary['reason']}{advice}")
    if summary["method"] == "sr":
        found.append(
            "the variances of `method` sr are overconfident: they go to nothing away from the basis. The interval of "
            "the exact variance beside them holds; `method` dtc has the same mean with variances that count"
        )
    worst = max(summary["rms_bound"])
    if worst >= SAYS_LITTLE:
        found.append(
            f"the proven distance to the exact mean, {worst:.2g} standard deviations of the targets, says little: the "
            "targets' own mean is about as near. The sparse mean may be much nearer than that; `certify_passes` or a "
            "larger `basis_size` proves more"
        )
    return found


def _sized(
    job: SparseJob, dataset: Dataset, given: IndexArray | FloatArray | None, reporter: Reporter | None = None
) -> SparseJob:
    n, default = dataset.n_samples, job.settings.basis_size
    sized = job.sized(n, None if given is None else len(given))
    if reporter is not None and given is None and job.basis_size is None and default > n:
        reporter.note(f"the basis is all {n:,} samples: the default of {default:,} is more than there are")
    return sized


def _prepare(
    job: SparseJob,
    dataset: Dataset,
    found: Hyperparameters,
    given: IndexArray | FloatArray | None,
    reporter: Reporter,
) -> _Prepared:
    overwrite = job.overwrite or (job.resume and is_unfinished_model(job.out, dataset, SPARSE_MODEL_KIND))
    ensure_writable(job.out, overwrite, SPARSE_MODEL_KIND)
    check_side_files(job.plot, job.log_json, replace=job.overwrite or job.resume)
    checkpointing = None
    if job.grows:
        identity = run_identity(dataset, found.kernel, found.noise_variance)
        checkpointing = checkpointing_of(job, identity, job.solver_settings, reporter)
    return _Prepared(dataset, found, given, checkpointing, overwrite)


def _plan(job: SparseJob, prepared: _Prepared, executor: BlockExecutor) -> _Plan:
    """Project the memory, and bytes of inputs that fit at the coordinator; `MemoryBudgetError` where it is too much."""
    dataset, kernel = prepared.dataset, prepared.hyperparameters.kernel
    resident, budget = memory_budget(job)
    resident += compiling_bytes(kernel)
    resident -= 0 if prepared.checkpointing is None else prepared.checkpointing.held_bytes
    n, d, width = dataset.n_samples, dataset.n_features, feature_width(kernel)
    # A ladder refuses each rung by itself: what it begins with is what must have room.
    size = job.settings.basis_size if job.target is None else min(FIRST_RUNG, job.settings.basis_size)
    settings = replace(job.settings, basis_size=size)
    plan = settings.memory(n, d, dataset.n_targets, executor, job.cluster.cache_bytes, width)
    inputs = coordinator_input_bytes_needed(n, d, width)
    if inputs > DEFAULT_COORDINATOR_INPUT_BYTES or resident + plan.coordinator_bytes + inputs > budget:
        inputs = 0
    plan.require(budget, resident)
    # What a ladder's first rung has a use for is all that its later ones keep.
    plan = plan.with_kept(executor.tiles, budget - inputs, resident)
    free = budget - resident - inputs - (plan.kept_bytes if plan.shares_process else 0)
    return _Plan(plan if job.target is None else None, inputs, free, plan.kept_bytes)


def _train(
    job: SparseJob, prepared: _Prepared, plan: _Plan, executor: BlockExecutor, reporter: Reporter
) -> TrainedSparse:
    checkpointing, hyperparameters = prepared.checkpointing, prepared.hyperparameters
    if checkpointing is not None and not job.resume:
        checkpointing.store.clear()
    executor.tiles = replace(executor.tiles, bytes=plan.kept_bytes)
    size = None if job.basis_size == "auto" and job.largest_basis is None else job.settings.basis_size
    with (
        RecordLog(job.log_json, resume=job.resume) as log,
        reporter.choice("sparse", size) as show,
        interruptible(reporter.warn) as interruption,
    ):

        def after_round(progress: ChoiceProgress) -> None:
            show(progress)
            log.write({"iteration": progress.round, **progress.to_json()})

        def after_rung(rung: Rung) -> None:
            gap = "" if rung.gap is None else f", gap {rung.gap:.3g}"
            reporter.note(f"{rung.size:,} basis samples: proven distance {rung.distance:.3g}{gap}")
            if not job.is_greedy:
                log.write({"iteration": rung.size, **rung.to_json()})

        problem = (prepared.dataset, hyperparameters.kernel, hyperparameters.noise_variance, executor, job.settings)
        common: dict[str, Any] = {
            "callback": after_round,
            "within": show,
            "checkpointing": checkpointing,
            "interrupted": interruption,
            "coordinator_input_bytes": plan.inputs_bytes,
        }
        try:
            if job.target is None:
                trained = train_sparse(*problem, given=prepared.given, **common)
            else:
                trained = climb(
                    *problem,
                    job.target,
                    rung_callback=after_rung,
                    memory_bytes=plan.free_bytes,
                    cache_bytes=job.cluster.cache_bytes,
                    **common,
                )
        except InterruptedRunError as error:
            if checkpointing is None or not has_checkpoint(checkpointing.store):
                raise
            url = checkpointing.store.url
            kept = "" if error.checkpoint is not None else f"; the choice is saved in {url}"
            raise InterruptedRunError(f"{error}{kept}. Go on with the same command and --resume", url) from None
    return _judged(job, prepared, trained)


def _judged(job: SparseJob, prepared: _Prepared, trained: TrainedSparse) -> TrainedSparse:
    """Note what was asked for, what is proven in the targets' units, and if the one is the other; ladders know."""
    bound = trained.certificate.rms_bound
    raw = bound * prepared.dataset.standardisation.target_std
    summary = {
        **trained.summary,
        "target_names": list(prepared.dataset.target_names),
        "rms_bound_raw": raw.tolist(),
        "settings": job.identity(digest(prepared.given)),
    }
    if job.target is not None:
        return replace(trained, summary=summary)
    worst, target = float(np.max(bound)), job.target_distance
    if target is not None and summary["converged"]:
        met = worst <= target
        summary["converged"] = met
        summary["reason"] = f"proven distance {worst:.3g} {'<=' if met else '>'} {target:.3g}: {summary['reason']}"
        if not met:
            summary["advice"] = "a larger `basis_size` brings the mean nearer, more `certify_passes` prove more of it"
    return replace(trained, summary=summary)


def _title(summary: Mapping[str, Any]) -> str:
    return f"{summary['method']}: n = {summary['n']:,}, d = {summary['d']}, m = {summary['basis_size']:,}"
