"""`dkgp train`: a dataset store and hyperparameters to a model store, with checkpoints, progress, a log and a plot."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dkgp.cluster import BlockExecutor, LocalExecutor
from dkgp.codec import difference
from dkgp.commands.reporting.outputs import Document, plain
from dkgp.commands.reporting.plots import plot_convergence
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.resuming import checkpointing_of
from dkgp.commands.run import warn_of_labels
from dkgp.commands.solver_options import check_product_error
from dkgp.commands.solving import input_bytes, planned_solve, solving
from dkgp.commands.train.job import TrainJob
from dkgp.commands.train.warm_start import Start, warm_start
from dkgp.commands.training import Outcome, TrainingRun, finished_run
from dkgp.data import CheckpointStore, ModelRecord, open_model
from dkgp.data.remote.storage import exists
from dkgp.data.stores.models.regression import MODEL_KIND
from dkgp.errors import CheckpointError, ClusterError, InputError, NumericalError, StorageError, UsageError
from dkgp.models import Hyperparameters
from dkgp.models.exact import TrainedModel, require_one_target, save, train
from dkgp.models.memory import MemoryPlan
from dkgp.models.problem import Problem, stored_identity
from dkgp.models.trend import CENTRED
from dkgp.models.variance.whole_matrix import keep_whole, kept_tiles
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.product_error import renamed
from dkgp.solvers import Checkpointing, Choice, Solver
from dkgp.solvers.registry import AUTO, Need, solver_memory, solver_names, solvers_that_need


class TrainRun(TrainingRun):
    """A run of `dkgp train`.

    Attributes
    ----------
    choice : Choice or None
        The solver that "auto" stands for, and why; the job's solver is that one from `open` on.
    solver : Solver
        With all that it chooses by itself chosen; from `prepare` on.
    start : Start
        Coefficients that the solve starts from; from `prepare` on.
    problem : Problem
        Samples, kernel, noise and mean; from `open` on.
    """

    command, kind = "train", MODEL_KIND
    knows_noise_models = True
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
        """The places of the model, of its checkpoints, and of a solver's tiles."""
        tiles = self.job.tiles_url
        return [*super().places, *([] if tiles is None else [tiles])]

    def open(self) -> None:
        """Open data and hyperparameters, and choose the solver that "auto" stands for; resumed, it is the same."""
        super().open()
        self.keep_to_products()
        if self.hyperparameters.student_t is not None:
            require_one_target(self.dataset)
            if self.job.mean != CENTRED:
                raise InputError(
                    f"`mean` {self.job.mean} is of noise with a normal distribution, and '{self.job.hyper}' has "
                    "Student's t; leave it out, or tune with the normal one"
                )
        noise = self.hyperparameters.noise_of(self.dataset)
        self.problem = Problem.of(self.dataset, self.hyperparameters.kernel, noise, self.job.mean)
        check_product_error(self.product_error, self.job.solver.tolerance, self.job.solver.solver)
        self.choose_solver()

    def tell(self) -> None:
        """Warn of labels, and name the solver that "auto" stands for."""
        warn_of_labels(self.dataset, self.hyperparameters, self.reporter)
        self.tell_choice()

    def tell_choice(self) -> None:
        """Name the solver that "auto" stands for, and why."""
        if self.choice is not None:
            solver, reason = self.choice.solver, self.choice.reason
            self.reporter.note(f"the solver is {solver}, which should be quickest", f"the solver is {solver}: {reason}")

    def choose_solver(self, *, one_arithmetic: bool = True) -> None:
        """Replace the solver "auto" by the one it stands for, of workers that compute alike or not."""
        job = self._requested
        resumes_other = job.resume and job.solver.solver == AUTO and _resumes_unlike_workers(job)
        solver, self.choice = job.solver.decided(
            self.dataset,
            self.hyperparameters,
            mean=self.job.mean,
            product_error=self.product_error,
            memory_bytes=job.memory_limit_bytes,
            one_arithmetic=one_arithmetic and not resumes_other,
        )
        self.job = replace(job, solver=solver)

    def prepare(self) -> None:
        """Refuse tiles, products and solver's settings that do not fit, and read what the solve starts from."""
        job = self.job
        job.check_tiles()
        if self.hyperparameters.student_t is not None and job.solver.needs(Need.FOLDER):
            raise UsageError(
                f"`solver` {job.solver.solver} keeps one factor, and Student's t solves under other weights time and "
                "again; take another solver, or hyperparameters with the normal distribution"
            )
        if job.mean != CENTRED:
            self.problem.require_columns()
        self.solver = self.built()
        job.solver.stopping()
        check_product_error(self.product_error, job.solver.tolerance, self.solver.name)
        self.product_error.require_kernel(self.hyperparameters.kernel)
        if job.warm_start is not None:
            self.start = warm_start(job.warm_start, self.dataset, self.hyperparameters, self.identity, self.reporter)

    def built(self) -> Solver:
        """The solver with all that it chooses by itself chosen."""
        data, tiles = self.dataset, self.job.tiles_url
        return self.job.solver.build(data.n_samples, data.n_features, self.problem.columns, self.reporter, tiles)

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that a checkpoint must share beside the solver's settings."""
        return self.problem.identity(self.product_error)

    def checkpoints(self) -> Checkpointing:
        """Return where the state of the solve is saved."""
        return checkpointing_of(self.job, self.identity, self.solver.settings(), self.reporter)

    def work(self, executor: BlockExecutor) -> tuple[TrainedModel, MemoryPlan]:
        """Plan the memory, and solve."""
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
                mean=job.mean,
                solver=self.solver,
                stopping=job.solver.stopping(),
                initial=self.start.alpha,
                initial_gradient=self.start.gradient,
            )
        return trained, plan

    def must_choose_again(self, executor: BlockExecutor) -> bool:
        """True if workers differ and the solver of "auto" minds; `ClusterError` for a solver that was named."""
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

    def save(
        self, trained: tuple[TrainedModel, MemoryPlan], measured: Mapping[str, Any], *, overwrite: bool
    ) -> Outcome:
        """Write the model; a solve that stopped short is saved all the same."""
        model, plan = trained
        chosen = {} if self.choice is None else {"auto": self.choice.to_json()}
        summary = {**model.summary, "solver": self.job.solver.solver, **chosen, **measured}
        model = replace(model, summary=summary)
        save(model, self.job.out, self.dataset, by_reference=self.job.by_reference, overwrite=overwrite)
        history = [progress.to_json() for progress in model.solution.history]
        return Outcome(model, summary, model.certificate.to_json(), history, plan.to_json())

    def finish_beside(self) -> None:
        """Keep the factor that variances take with the model, where that is asked for and tiles are missing."""
        model = self.stored()
        if not self.job.with_variances or kept_tiles(model) is not None:
            return
        executor = LocalExecutor()
        try:
            self.reporter.note(keep_whole(model, executor))
        except (StorageError, NumericalError) as error:
            self.reporter.warn(f"the model is saved, without a factor for its variances: {error}")
        finally:
            executor.close()

    def stored(self) -> ModelRecord:
        """Open the model at `job.out`."""
        return open_model(self.job.out)

    def difference(self, model: ModelRecord, converged: bool) -> str | None:
        """Say in which name the stored model's run differs: data, hyperparameters, settings, or a tolerance missed."""
        made = stored_identity(model)
        stored = renamed(model.summary)
        made |= {"product_error": stored["product_error"]} if "product_error" in stored else {}
        made |= {**model.summary.get("settings", {}), "by_reference": model.by_reference}
        other = difference(made, {**self.identity, **self.built().settings(), "by_reference": self.job.by_reference})
        if other is None and converged and not self.job.solver.is_met(model.summary):
            reached = model.summary["gradient_inf_norm"]
            return f"tolerance (it stopped at max|g| = {reached:.3g}; this run's: {self.job.solver.tolerance:g})"
        return other

    def draw(self, outcome: Outcome) -> None:
        """Draw the convergence, where there were rounds."""
        summary = outcome.summary
        title = f"{self.job.solver.solver}: n = {summary['n']:,}, d = {summary['d']}"
        if self.job.plot is not None and outcome.history:
            plot_convergence(self.job.plot, outcome.history, tolerance=self.job.solver.tolerance, title=title)

    def described(self, outcome: Outcome) -> Document:
        """Return the model's part of the record."""
        return {
            **plain(outcome.summary),
            "tolerance": self.job.solver.tolerance,
            "certificate": plain(outcome.certificate),
            "memory_plan": outcome.memory_plan,
        }

    def warnings(self, outcome: Outcome) -> list[str]:
        """Say of a solve that stopped short why."""
        summary = outcome.summary
        return [] if summary["converged"] else [f"not converged: {summary['reason']}; {summary['advice']}"]


def run_train(job: TrainJob, reporter: Reporter) -> Document:
    """Train and save; see `Run.run`."""
    return TrainRun(job, reporter).run()


def finished_training(job: TrainJob, reporter: Reporter) -> Document | None:
    """Return the record of the model at `job.out` where it is what the job would make; see `TrainingRun.done`."""
    return finished_run(TrainRun, job, reporter)


def _resumes_unlike_workers(job: TrainJob) -> bool:
    """True if the checkpoint is of a solver that "auto" took since workers differed, or may as well have taken so."""
    with contextlib.suppress(CheckpointError):
        latest = CheckpointStore(job.checkpoint_url).load_latest() if exists(job.checkpoint_url) else None
        name = None if latest is None else dict(latest.metadata.get("solver") or {}).get("solver")
        return name in solver_names() and name not in solvers_that_need(Need.ROUNDS)
    return False
