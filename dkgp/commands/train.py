"""`dkgp train`: a dataset store and hyperparameters to a model store, with checkpoints, progress, a log and a plot."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from dkgp.cluster import BlockExecutor, ClusterOptions, open_executor
from dkgp.commands.job_options import (
    AS_IN_THE_PAPER,
    BY_REFERENCE,
    CHECKPOINT,
    CHECKPOINT_SECONDS,
    DATASET,
    HYPER,
    LOG_JSON,
    MEMORY_LIMIT,
    MODEL_OUT,
    OVERWRITE,
    PLOT,
    RESUME,
)
from dkgp.commands.own_work import (
    checkpointing_of,
    is_unfinished_model,
    model_difference,
    opened,
    remove_checkpoint,
    warm_start,
    warn_of_labels,
)
from dkgp.commands.presets import announce_preset, preset_record, settled
from dkgp.commands.reporting.documents import Document, plain
from dkgp.commands.reporting.memory import PeakMemory
from dkgp.commands.reporting.outputs import check_side_files
from dkgp.commands.reporting.plots import plot_convergence
from dkgp.commands.reporting.progress import Reporter, announce
from dkgp.commands.solver_options import SolverOptions
from dkgp.commands.solving import check_tree_error, check_tree_kernel, going_on, input_bytes, planned_solve, solving
from dkgp.data import CheckpointStore, Dataset, ensure_writable, open_model
from dkgp.data.remote.storage import exists
from dkgp.data.stores.model_store import MODEL_KIND
from dkgp.data.stores.references import check_reference
from dkgp.errors import CheckpointError, ClusterError, InputError, UsageError
from dkgp.models import Hyperparameters
from dkgp.models.exact import TrainedModel, run_identity, save, train
from dkgp.models.memory import MemoryPlan
from dkgp.models.warm_up import helped
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import feature_width
from dkgp.options import Part, check_ranges
from dkgp.registry import Option
from dkgp.solvers import Checkpointing, Choice, Solver
from dkgp.solvers.registry import AUTO, Need, said, solver_memory, solver_names, solvers_that_need

__all__ = ["TrainJob", "finished_training", "run_train"]


def _tiles() -> dict[str, str]:
    place = f"Where {' or '.join(solvers_that_need(Need.FOLDER))} keeps its factor"
    return {"help": f"{place}, to go on with after an interruption.  [default: OUT.tiles]"}


TILES = Option(metavar="FOLDER", place="write", late=_tiles)
TREE_ERROR = Option(
    help="Take kernel products by a tree that prunes what hardly contributes, each entry good to E, a tenth of "
    "`tolerance` or less. Pays for 2 or 3 features (at most 6) with short length scales; the certificate allows for "
    "it.",
    metavar="E",
    above=0,
)
WARM_START = Option(help="Start from a model of the same data, exact or sparse.", metavar="MODEL", place="read")


@dataclass(frozen=True)
class TrainJob:
    """A model to train: data, hyperparameters, solver, and where everything goes."""

    dataset: Annotated[str, DATASET]
    hyper: Annotated[str, HYPER]
    out: Annotated[str, MODEL_OUT]
    solver: Annotated[SolverOptions, Part()] = field(default_factory=SolverOptions)
    as_in_the_paper: Annotated[bool | tuple[str, ...], AS_IN_THE_PAPER] = False
    tiles: Annotated[str | None, TILES] = None
    tree_error: Annotated[float | None, TREE_ERROR] = None
    warm_start: Annotated[str | None, WARM_START] = None
    by_reference: Annotated[bool, BY_REFERENCE] = False
    memory_limit_bytes: Annotated[int | None, MEMORY_LIMIT] = None
    checkpoint: Annotated[str | None, CHECKPOINT] = None
    checkpoint_seconds: Annotated[float, CHECKPOINT_SECONDS] = 30.0
    resume: Annotated[bool, RESUME] = False
    plot: Annotated[str | None, PLOT] = None
    log_json: Annotated[str | None, LOG_JSON] = None
    overwrite: Annotated[bool, OVERWRITE] = False
    cluster: Annotated[ClusterOptions, Part()] = field(default_factory=ClusterOptions)

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def tiles_url(self) -> str | None:
        """The place of tiles; None for a solver that has none."""
        if not self.solver.needs(Need.FOLDER):
            return None
        return self.tiles or f"{self.out.rstrip('/')}.tiles"

    def check_tiles(self) -> None:
        """Refuse a place for tiles where the solver has none; `UsageError`."""
        if self.tiles is not None and self.tiles_url is None:
            named = said(solvers_that_need(Need.FOLDER))
            raise UsageError(f"`tiles` belongs to {named}; got `solver` {self.solver.solver}")

    @property
    def begun(self) -> bool:
        """True if an earlier run left something to go on from: a checkpoint, or its model."""
        return exists(self.out) or exists(self.checkpoint_url)

    @property
    def checkpoint_url(self) -> str:
        """The place of checkpoints."""
        return self.checkpoint or f"{self.out.rstrip('/')}.checkpoint"


@dataclass(frozen=True)
class _Prepared:
    """Everything that could be checked without computing."""

    dataset: Dataset
    hyperparameters: Hyperparameters
    solver: Solver
    checkpointing: Checkpointing
    initial: FloatArray | None
    initial_gradient: FloatArray | None
    overwrite: bool


def run_train(job: TrainJob, reporter: Reporter) -> Document:
    """Train and save; return the training record, with `converged` false where the tolerance was not met.

    A solve that stops short is saved all the same, and its checkpoint is kept to go on from. Where a run that is
    resumed had saved its model before it was killed, there is nothing left to do: its record is returned.

    Raises
    ------
    InputError
        Anything that can be found wrong beforehand; nothing has been written.
    InterruptedRunError
        A signal asked for the end; the state is in the checkpoint.
    ClusterError
        No cluster, or one that was lost.
    """
    with PeakMemory() as memory:
        job = settled("train", job)
        announce_preset("train", job, reporter)
        dataset, found = opened(job)
        warn_of_labels(dataset, found, reporter)
        asked = job
        job, choice = _decided(asked, dataset, found, reporter)
        if job.resume:
            finished = finished_training(job, reporter, converged=True, at_hand=(dataset, found))
            if finished is not None:
                return finished
        prepared = _prepare(job, dataset, found, reporter)
        with (
            helped(prepared.hyperparameters.kernel),
            open_executor(job.cluster, prepared.dataset.n_samples, reporter) as executor,
        ):
            announce(executor, reporter)
            if _differ(job, choice, executor):
                job, choice = _decided(asked, dataset, found, reporter, one_arithmetic=False)
                prepared = _prepare(job, dataset, found, reporter)
            width = feature_width(prepared.hyperparameters.kernel)
            plan = planned_solve(
                job,
                dataset,
                prepared.hyperparameters.kernel,
                dataset.n_targets,
                solver_memory(prepared.solver, dataset.n_samples, width),
                prepared.checkpointing,
                executor,
                needs_inputs=job.solver.solver if job.solver.needs(Need.INPUTS) else None,
                products=None if choice is None else choice.products,
            )
            trained = _solve(job, prepared, plan, executor, reporter)
        # Worker processes are gone by now; the summary in the store tells of them too.
        chosen = {} if choice is None else {"auto": choice.to_json()}
        measured = {"solver": job.solver.solver, **chosen, "peak_memory_bytes": memory.bytes}
        measured |= preset_record("train", job)
        trained = replace(trained, summary={**trained.summary, **measured})
    save(trained, job.out, prepared.dataset, by_reference=job.by_reference, overwrite=prepared.overwrite)
    history = [progress.to_json() for progress in trained.solution.history]
    checkpoints = prepared.checkpointing.store
    certificate = trained.certificate.to_json()
    return _conclude(
        job, prepared.dataset.url, trained.summary, certificate, history, plan.to_json(), checkpoints, reporter
    )


def finished_training(
    job: TrainJob,
    reporter: Reporter,
    *,
    converged: bool = False,
    at_hand: tuple[Dataset, Hyperparameters] | None = None,
) -> Document | None:
    """Return the training record of the model at `job.out` where it is what the job would make; do what is left to do.

    For a run that ended between saving its model and saying so. None where the model is incomplete, or of other data,
    hyperparameters or settings; with `converged`, also where it misses the tolerance. `at_hand` are the job's dataset
    and hyperparameters.
    """
    try:
        job = settled("train", job)
        model = open_model(job.out)
        if converged and not model.summary["converged"]:
            return None
        dataset, found = at_hand or opened(job)
        job, _ = _decided(job, dataset, found)
        solver = job.solver.build(dataset.n_samples, dataset.n_features, dataset.n_targets, reporter, job.tiles_url)
    except InputError:
        return None
    identity = run_identity(dataset, found.kernel, found.noise_variance, job.tree_error)
    other = model_difference(model, identity, solver.settings(), job.by_reference)
    if other is None and converged and not job.solver.is_met(model.summary):
        reached = model.summary["gradient_inf_norm"]
        other = f"tolerance (it stopped at max|g| = {reached:.3g}; this run's: {job.solver.tolerance:g})"
    if other is not None:
        reporter.note(f"the model '{job.out}' is of a run with another {other}")
        return None
    reporter.note(f"the model '{job.out}' is done: it was complete when an earlier run ended")
    check_side_files(job.plot, None, replace=True)
    store = CheckpointStore(job.checkpoint_url)
    return _conclude(job, dataset.url, model.summary, model.certificate, model.history, None, store, reporter)


def _conclude(
    job: TrainJob,
    dataset_url: str,
    summary: Mapping[str, Any],
    certificate: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    memory_plan: Document | None,
    checkpoints: CheckpointStore,
    reporter: Reporter,
) -> Document:
    """End a run whose model is saved: draw the plot, describe it, remove checkpoints that served their turn."""
    if job.plot is not None and history:
        plot_convergence(job.plot, history, tolerance=job.solver.tolerance, title=_title(job, summary))
    document: Document = {
        "command": "train",
        "out": job.out,
        "dataset": dataset_url,
        **plain(summary),
        "tolerance": job.solver.tolerance,
        "certificate": plain(certificate),
        "memory_plan": memory_plan,
        "resumed": job.resume,
        "checkpoint": None,
        "plot": job.plot,
        "log_json": job.log_json,
    }
    if summary["converged"]:
        remove_checkpoint(checkpoints)
    else:
        document["checkpoint"] = job.checkpoint_url
        reporter.warn(f"not converged: {summary['reason']}; {summary['advice']}")
    document["warnings"] = list(reporter.warnings)
    return document


def _decided(
    job: TrainJob,
    dataset: Dataset,
    found: Hyperparameters,
    reporter: Reporter | None = None,
    *,
    one_arithmetic: bool = True,
) -> tuple[TrainJob, Choice | None]:
    """Replace the solver "auto" by the one it stands for, and say so; a run that is resumed comes to the same."""
    alike = one_arithmetic and not (job.resume and job.solver.solver == AUTO and _resumes_unlike_workers(job))
    limit = job.memory_limit_bytes
    solver, choice = job.solver.decided(
        dataset, found, tree_error=job.tree_error, memory_bytes=limit, one_arithmetic=alike
    )
    if choice is not None and reporter is not None:
        reporter.note(f"the solver is {choice.solver}: {choice.reason}")
    return replace(job, solver=solver), choice


def _resumes_unlike_workers(job: TrainJob) -> bool:
    """True if the checkpoint is of a solver that "auto" took since workers differed, or may as well have taken so."""
    with contextlib.suppress(CheckpointError):
        latest = CheckpointStore(job.checkpoint_url).load_latest() if exists(job.checkpoint_url) else None
        name = None if latest is None else dict(latest.metadata.get("solver") or {}).get("solver")
        return name in solver_names() and name not in solvers_that_need(Need.ROUNDS)
    return False


def _prepare(job: TrainJob, dataset: Dataset, found: Hyperparameters, reporter: Reporter) -> _Prepared:
    job.check_tiles()
    if job.by_reference:
        check_reference(dataset.url)
    overwrite = job.overwrite or (job.resume and is_unfinished_model(job.out, dataset))
    ensure_writable(job.out, overwrite, MODEL_KIND)
    check_side_files(job.plot, job.log_json, replace=job.overwrite or job.resume)
    solver = job.solver.build(dataset.n_samples, dataset.n_features, dataset.n_targets, reporter, job.tiles_url)
    job.solver.stopping()
    check_tree_error(job.tree_error, job.solver.tolerance, solver.name)
    if job.tree_error is not None:
        check_tree_kernel(found.kernel)
    identity = run_identity(dataset, found.kernel, found.noise_variance, job.tree_error)
    initial = gradient = None
    if job.warm_start is not None:
        initial, gradient = warm_start(job.warm_start, dataset, found, identity, reporter)
    checkpointing = checkpointing_of(job, identity, solver.settings(), reporter)
    return _Prepared(dataset, found, solver, checkpointing, initial, gradient, overwrite)


def _differ(job: TrainJob, choice: Choice | None, executor: BlockExecutor) -> bool:
    """True if "auto" must choose again, since workers differ and its solver minds; `ClusterError` for a named one."""
    if not job.solver.needs(Need.ROUNDS):
        return False
    try:
        executor.require_one_arithmetic()
    except ClusterError as error:
        if choice is not None:
            return True
        others = [name for name in solver_names() if name not in solvers_that_need(Need.ROUNDS)]
        raise ClusterError(f"{error}. Such solvers are {', '.join(others)}") from None
    return False


def _solve(
    job: TrainJob, prepared: _Prepared, plan: MemoryPlan, executor: BlockExecutor, reporter: Reporter
) -> TrainedModel:
    checkpoints = prepared.checkpointing.store
    if not job.resume:
        checkpoints.clear()
    with going_on(checkpoints), solving(job, "train", job.solver.tolerance, reporter) as rounds:
        return train(
            prepared.dataset,
            prepared.hyperparameters.kernel,
            prepared.hyperparameters.noise_variance,
            executor,
            solver=prepared.solver,
            stopping=job.solver.stopping(),
            initial=prepared.initial,
            initial_gradient=prepared.initial_gradient,
            **rounds.arguments(),
            checkpointing=prepared.checkpointing,
            coordinator_input_bytes=input_bytes(plan),
            tree_error=job.tree_error,
        )


def _title(job: TrainJob, summary: Mapping[str, Any]) -> str:
    return (
        f"{job.solver.solver}: n = {summary['n']:,}, d = {summary['d']}, {summary['column_passes']:.2f} column passes"
    )
