"""The run of `dkgp train`: with `tune`, first tune the hyperparameters as `dkgp tune` does, then train the model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dkgp.cluster import BlockExecutor, LocalExecutor
from dkgp.codec import difference
from dkgp.commands.reporting.outputs import Document, check_output_file, check_side_files, plain
from dkgp.commands.reporting.plots import plot_convergence
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.resuming import checkpointing_of
from dkgp.commands.run import warn_of_labels
from dkgp.commands.searches import run_tune
from dkgp.commands.solver_options import check_product_error
from dkgp.commands.solving import input_bytes, planned_solve, solving
from dkgp.commands.train import TrainJob
from dkgp.commands.training import Outcome, TrainingRun
from dkgp.commands.tune import TuneJob
from dkgp.data import CheckpointStore, ClassifierRecord, Dataset, ModelRecord, ensure_writable, open_any_model
from dkgp.data.remote.storage import exists
from dkgp.data.stores.models.regression import MODEL_KIND, SparseRecord
from dkgp.errors import CheckpointError, ClusterError, InputError, NumericalError, StorageError, UsageError
from dkgp.kernels import kernel_from_json
from dkgp.models import Hyperparameters
from dkgp.models.exact import TrainedModel, require_one_target, save, train
from dkgp.models.memory import Memory
from dkgp.models.problem import Problem, stored_identity
from dkgp.models.trend import Drift
from dkgp.models.variance.whole_matrix import keep_whole, kept_tiles
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.product_error import renamed
from dkgp.solvers import Checkpointing, Choice, Solver
from dkgp.solvers.registry import AUTO, Need, solver_memory, solver_names, solvers_that_need


@dataclass(frozen=True)
class Start:
    """Coefficients (n, p), and their gradient if it is known; `alpha` is None for a start from zero."""

    alpha: FloatArray | None = None
    gradient: FloatArray | None = None


def warm_start(
    url: str, dataset: Dataset, hyperparameters: Hyperparameters, identity: Mapping[str, Any], reporter: Reporter
) -> Start:
    """Return the start from the model at `url`; a gradient known to the model saves a float64 product.

    If a start from zero takes less time than one from a sparse model, start from zero and report that. Raises
    `InputError` if the model has other samples or is a classifier.
    """
    model = open_any_model(url)
    if model.kind == ClassifierRecord.kind:
        raise InputError(
            f"'{url}' is a classifier; a warm start needs a regression model of the same targets. Leave `warm_start` "
            f"out, or name such a model"
        )
    if model.fingerprint != dataset.fingerprint:
        raise InputError(
            f"the model '{url}' was trained on other data than '{dataset.url}'; a warm start needs a model of the same "
            "samples. Leave `warm_start` out, or name such a model"
        )
    mean, its_mean = Drift.from_json(identity.get("mean", "centred")), Drift.from_model(model)
    if its_mean.count(dataset.n_features) != mean.count(dataset.n_features):
        raise InputError(
            f"the model '{url}' has the mean {its_mean.word}, and this run {mean.word}; a warm start needs as many "
            f"right-hand sides. Leave `warm_start` out, or train with `mean` {its_mean.word}"
        )
    start = _STARTS[model.kind]
    return start(model, dataset, hyperparameters, identity, reporter)


def _exact_start(
    model: ModelRecord,
    dataset: Dataset,
    hyperparameters: Hyperparameters,
    identity: Mapping[str, Any],
    reporter: Reporter,
) -> Start:
    """Start from an exact model's coefficients, and from its gradient if both runs have the same hyperparameters."""
    state = model.training_state() if difference(stored_identity(model), identity) is None else None
    return Start(model.alpha, None if state is None else state[1])


def _sparse_start(
    model: SparseRecord,
    dataset: Dataset,
    hyperparameters: Hyperparameters,
    identity: Mapping[str, Any],
    reporter: Reporter,
) -> Start:
    """Start from a sparse model's residual over the noise, if its hyperparameters match and this saves time."""
    made = {"fingerprint": model.fingerprint, "kernel": model.kernel, "noise_variance": model.noise_variance}
    if difference(made, {name: identity[name] for name in made}) is not None:
        reporter.warn(
            f"the sparse model '{model.url}' has other hyperparameters than this run, so the solve starts from zero. "
            f"Choose a sparse model with the same hyperparameters, or an exact model"
        )
        return Start()
    kernel, noise_variance = hyperparameters.kernel, hyperparameters.noise_variance
    # Imported here because most runs start without a sparse model.
    from dkgp.models.sparse.stored import opened_sparse, start_from_sparse

    start = start_from_sparse(dataset, opened_sparse(model), kernel, noise_variance)
    shares = ", ".join(f"{100.0 * share:.3g} %" for share in start.share)
    gain = (
        f"the residual of {model.basis_size:,} basis samples leaves {shares} of the distance from zero to the "
        f"solution's objective, estimated from {start.rows:,} rows of a product"
    )
    if start.alpha is None:
        reporter.note(f"the sparse model would not help: {gain}. The solve starts from zero")
    else:
        reporter.note(f"the solve starts from the sparse model (one product in float64): {gain}")
    return Start(start.alpha)


_STARTS: dict[str, Callable[[Any, Dataset, Hyperparameters, Mapping[str, Any], Reporter], Start]] = {
    ModelRecord.kind: _exact_start,
    SparseRecord.kind: _sparse_start,
}


class TrainRun(TrainingRun):
    """A run of `dkgp train`.

    Attributes
    ----------
    choice : Choice or None
        The solver that "auto" selects, with the reason; `open` sets it, and the solver in the job.
    solver : Solver
        The solver with its automatic settings resolved; set by `prepare`.
    start : Start
        Coefficients from which the solve starts; set by `prepare`.
    problem : Problem
        Samples, kernel, noise and mean; set by `open`.
    """

    command, record = "train", ModelRecord
    knows_noise_models = knows_covariates = True
    job: TrainJob
    hyperparameters: Hyperparameters
    solver: Solver

    def __init__(self, job: TrainJob, reporter: Reporter) -> None:
        super().__init__(job, reporter)
        self._requested = self.job
        self.choice: Choice | None = None
        self.start = Start()

    @property
    def places(self) -> list[str]:
        """The paths of the model, of its checkpoints and of a solver's tiles."""
        tiles = self.job.tiles_url
        return [*super().places, *([] if tiles is None else [tiles])]

    def open(self) -> None:
        """Open data and hyperparameters, and resolve the solver "auto"; a resumed run keeps its solver."""
        super().open()
        self.keep_to_products()
        if self.hyperparameters.student_t is not None:
            require_one_target(self.dataset)
            if self.job.mean != "centred":
                raise InputError(
                    f"`mean` {self.job.mean} needs normal noise, and '{self.job.hyper}' has Student's t. Leave it "
                    f"out, or tune with normal noise"
                )
        noise = self.hyperparameters.noise_of(self.dataset)
        self.problem = Problem.of(self.dataset, self.hyperparameters.kernel, noise, self.job.mean)
        check_product_error(self.product_error, self.job.solver.tolerance, self.job.solver.solver)
        self.choose_solver()

    def tell(self) -> None:
        """Warn of labels, and report the solver that "auto" selects."""
        warn_of_labels(self.dataset, self.hyperparameters, self.reporter)
        self.tell_choice()

    def tell_choice(self) -> None:
        """Report the solver that "auto" selects, and the reason."""
        if self.choice is not None:
            solver, reason = self.choice.solver, self.choice.reason
            self.reporter.note(
                f"the solver is {solver}, forecast to be the fastest", f"the solver is {solver}: {reason}"
            )

    def choose_solver(self, *, one_arithmetic: bool = True) -> None:
        """Replace the solver "auto" by its selection, which depends on whether all workers produce identical bits."""
        job = self._requested
        resumes_other = job.resume and job.solver.solver == AUTO and _resumes_unlike_workers(job)
        solver, self.choice = job.solver.decided(
            self.dataset,
            self.hyperparameters,
            problem=self.problem,
            product_error=self.product_error,
            memory_bytes=job.memory_limit_bytes,
            one_arithmetic=one_arithmetic and not resumes_other,
        )
        self.job = replace(job, solver=solver)

    def prepare(self) -> None:
        """Refuse unsuitable tiles, products and solver settings, and read the start of the solve."""
        job = self.job
        job.check_tiles()
        if self.hyperparameters.student_t is not None and job.solver.needs(Need.FOLDER):
            raise UsageError(
                f"`solver` {job.solver.solver} keeps one factor, but Student's t solves with changing weights. Choose "
                f"another solver, or hyperparameters with normal noise"
            )
        if self.problem.mean.is_fitted:
            self.problem.require_columns()
        self.solver = self.built()
        job.solver.stopping()
        check_product_error(self.product_error, job.solver.tolerance, self.solver.name)
        self.product_error.require_kernel(self.hyperparameters.kernel)
        if job.warm_start is not None:
            self.start = warm_start(job.warm_start, self.dataset, self.hyperparameters, self.identity, self.reporter)

    def built(self) -> Solver:
        """Return the solver with its automatic settings resolved."""
        data, tiles = self.dataset, self.job.tiles_url
        return self.job.solver.build(data.n_samples, data.n_features, self.problem.columns, self.reporter, tiles)

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that a checkpoint must share, except those of the solver."""
        return self.problem.identity(self.product_error)

    def checkpoints(self) -> Checkpointing:
        """Return the checkpoints of the solve."""
        return checkpointing_of(self.job, self.identity, self.solver.settings(), self.reporter)

    def work(self, executor: BlockExecutor) -> tuple[TrainedModel, Memory]:
        """Plan the memory and solve."""
        if self.must_choose_again(executor):
            self.choose_solver(one_arithmetic=False)
            self.tell_choice()
            self.refuse()
        job, dataset, kernel = self.job, self.dataset, self.hyperparameters.kernel
        plan = planned_solve(
            self,
            kernel,
            self.problem.columns,
            solver_memory(self.solver, dataset.n_samples, feature_width(kernel)),
            executor,
            needs_inputs=job.solver.solver if job.solver.needs(Need.INPUTS) else None,
            products=None if self.choice is None else self.choice.products,
        )
        with solving(self, executor, input_bytes(plan), job.solver.tolerance) as context:
            trained = train(
                dataset,
                kernel,
                self.problem.noise,
                context,
                mean=self.problem.mean,
                solver=self.solver,
                stopping=job.solver.stopping(),
                initial=self.start.alpha,
                initial_gradient=self.start.gradient,
            )
        return trained, plan

    def must_choose_again(self, executor: BlockExecutor) -> bool:
        """Return True if workers differ and the solver of "auto" needs equal ones; `ClusterError` if it was named."""
        if not self.job.solver.needs(Need.ROUNDS):
            return False
        try:
            executor.require_one_arithmetic()
        except ClusterError as error:
            if self.choice is not None:
                return True
            others = [name for name in solver_names() if name not in solvers_that_need(Need.ROUNDS)]
            raise ClusterError(f"{error}. Such solvers are {', '.join(others)}") from None
        return False

    def save(self, trained: tuple[TrainedModel, Memory], measured: Mapping[str, Any], *, overwrite: bool) -> Outcome:
        """Write the model, even if the solve stopped short."""
        model, plan = trained
        chosen = {} if self.choice is None else {"auto": self.choice.to_json()}
        gap = {} if self.job.variance_gap is None else {"variance_gap": self.job.variance_gap}
        summary = {**model.summary, "solver": self.job.solver.solver, **gap, **chosen, **measured}
        model = replace(model, summary=summary)
        save(model, self.job.out, self.dataset, by_reference=self.job.by_reference, overwrite=overwrite)
        history = [progress.to_json() for progress in model.solution.history]
        return Outcome(model, summary, model.certificate.to_json(), history, plan.to_json())

    def finish_beside(self) -> None:
        """Store the factor for variances with the model, if the job asks for it and no tiles are kept."""
        model = self.stored()
        if not self.job.with_variances or kept_tiles(model) is not None:
            return
        executor = LocalExecutor()
        try:
            self.reporter.note(keep_whole(model, executor))
        except (StorageError, NumericalError) as error:
            self.reporter.warn(f"the model is saved without a factor for variances: {error}")
        finally:
            executor.close()

    def difference(self, model: ModelRecord, converged: bool) -> str | None:
        """Return the name of a difference to the stored run: data, hyperparameters, settings or a missed tolerance."""
        made = stored_identity(model)
        stored = renamed(model.summary)
        made |= {"product_error": stored["product_error"]} if "product_error" in stored else {}
        made |= {**model.summary.get("settings", {}), "by_reference": model.by_reference}
        job, made["variance_gap"] = self.job, model.variance_gap
        kept = {"by_reference": job.by_reference, "variance_gap": job.variance_gap}
        other = difference(made, {**self.identity, **self.built().settings(), **kept})
        if other is None and converged and not self.job.solver.is_met(model.summary):
            reached = model.summary["gradient_inf_norm"]
            return f"tolerance (it stopped at max|g| = {reached:.3g}; this run's: {self.job.solver.tolerance:g})"
        return other

    def draw(self, outcome: Outcome) -> None:
        """Plot the convergence if the solver has rounds."""
        summary = outcome.summary
        title = f"{self.job.solver.solver}: n = {summary['n']:,}, d = {summary['d']}"
        if self.job.plot is not None and outcome.history:
            plot_convergence(self.job.plot, outcome.history, tolerance=self.job.solver.tolerance, title=title)

    def described(self, outcome: Outcome) -> Document:
        """Return the model's part of the record."""
        kernel, d = outcome.model.kernel, outcome.summary["d"]
        kernel = kernel_from_json(kernel) if isinstance(kernel, dict) else kernel
        own = {"tolerance": self.job.solver.tolerance, "prior_variance": kernel.prior_variance(d)}
        return {**plain(outcome.summary), **own, **super().described(outcome)}


def run_training(job: TrainJob, reporter: Reporter) -> Document:
    """Train and save, without tuning; see `Run.run`."""
    return TrainRun(job, reporter).run()


def run_train(job: TrainJob, reporter: Reporter) -> Document:
    """Train; with `tune`, first search for hyperparameters with default settings.

    The record of the search is `tuned` in the model's record.

    A resumed run uses the hyperparameters at `hyper` if the same search wrote them.

    Raises the errors of both steps. Errors in the model's path are raised before the search.
    """
    if not job.tune:
        return run_training(job, reporter)
    if not job.resume:
        ensure_writable(job.out, job.overwrite, MODEL_KIND)
        check_side_files(job.plot, job.log_json, replace=job.overwrite)
        check_output_file(job.hyper, replace=job.overwrite, option="`hyper`", local=False)
    search = TuneJob(
        job.dataset,
        job.hyper,
        seed=job.solver.seed,
        mean=job.mean,
        resume=job.resume,
        overwrite=job.overwrite,
        cluster=job.cluster,
    )
    tuned = run_tune(search, reporter)
    return {**run_training(job, reporter), "tuned": tuned}


def _resumes_unlike_workers(job: TrainJob) -> bool:
    """Return True if "auto" may have chosen the checkpoint's solver because workers differed."""
    with contextlib.suppress(CheckpointError):
        latest = CheckpointStore(job.checkpoint_url).load_latest() if exists(job.checkpoint_url) else None
        name = None if latest is None else dict(latest.metadata.get("solver") or {}).get("solver")
        return name in solver_names() and name not in solvers_that_need(Need.ROUNDS)
    return False
