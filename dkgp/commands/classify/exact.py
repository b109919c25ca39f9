"""The method "exact" of `dkgp classify`: the LS-SVM of all samples, by any solver of dkgp's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dkgp.cluster import BlockExecutor
from dkgp.commands.classify.job import ClassifyJob
from dkgp.commands.classify.likelihood import cautioned
from dkgp.commands.classify.method import ClassifyMethod, Opened, Prepared
from dkgp.commands.classify.tuned import found_or_tuned
from dkgp.commands.own_work import memory_budget
from dkgp.commands.reporting.plots import plot_convergence
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.solving import (
    check_tree_error,
    check_tree_gradient,
    check_tree_kernel,
    effort_limits,
    input_bytes,
    planned_solve,
    solving,
)
from dkgp.data import ClassifierRecord, Dataset
from dkgp.errors import InputError, UsageError
from dkgp.kernels import Kernel, fold_white
from dkgp.models.classification.exact.stopping import DecisionError
from dkgp.models.classification.exact.train import solver_for_labels, train_exact
from dkgp.models.classification.records import exact_record
from dkgp.operators.block_tasks import feature_width
from dkgp.solvers import Solver
from dkgp.solvers.registry import AUTO, build_solver, solver_memory, solver_names

__all__ = ["Exact"]


class Exact(ClassifyMethod):
    """The exact LS-SVM; see `dkgp.models.classification.exact`."""

    name = "exact"

    def check(self, job: ClassifyJob) -> None:
        """Refuse an intercept that is chosen, solvers of other methods, and tree sums where they serve nothing."""
        if job.settings.intercept == "selected":
            raise UsageError("`intercept` selected competes with prototypes; `method` exact has none of them")
        if job.solver not in (AUTO, *solver_names()):
            names = ", ".join((AUTO, *solver_names()))
            raise InputError(f"`solver` must be one of {names} for `method` exact; got '{job.solver}'")
        check_tree_error(job.tree_error, job.tolerance, job.solver)

    def check_data(self, job: ClassifyJob, opened: Opened, reporter: Reporter | None) -> None:
        """Refuse a kernel or features that a tree cannot serve; tell of hyperparameters for something else."""
        found = opened.hyperparameters
        if found is None:
            return
        if job.tree_error is not None:
            check_tree_kernel(fold_white(found.kernel, found.noise_variance)[0])
        cautioned(found, None, reporter)

    def identity(self, job: ClassifyJob, opened: Opened) -> dict[str, Any]:
        """Return the options of the method; an intercept is there, or it is not."""
        return {**super().identity(job, opened), "intercept": job.fit_intercept}

    def takes_noise(self, job: ClassifyJob) -> bool:
        """True: s2 = 1/gamma_K is part of the problem."""
        return True

    def train(
        self, job: ClassifyJob, prepared: Prepared, executor: BlockExecutor, reporter: Reporter
    ) -> ClassifierRecord:
        """Solve for alpha and the intercept until decisions are near enough."""
        dataset, labels = prepared.dataset, prepared.labels
        found = found_or_tuned(job, prepared, reporter)
        self.check_data(job, Opened(dataset, labels, found), None)
        kernel, noise = fold_white(found.kernel, found.noise_variance)
        least = noise if prepared.weights is None else noise / float(prepared.weights.max())
        level = (
            noise / dataset.n_samples * (1.0 if prepared.weights is None else float((1.0 / prepared.weights).mean()))
        )
        rule = DecisionError(job.tolerance, least, _largest(dataset, kernel), job.fit_intercept, level)
        tolerance = rule.gradient_tolerance(dataset.n_samples)
        solver, chosen = _solver(job, prepared, kernel, least, tolerance, executor)
        if chosen:
            reporter.note(f"the solver is {solver.name}: {chosen['auto']['reason']}")
        check_tree_gradient(job.tree_error, tolerance, job.tolerance)
        memory = solver_memory(solver, dataset.n_samples, feature_width(kernel))
        columns = labels.n_outputs + job.fit_intercept
        products = chosen["auto"]["products"] if chosen else None
        plan = planned_solve(job, dataset, kernel, columns, memory, prepared.checkpointing, executor, products=products)
        prepared.begin(job)
        with solving(job, "classify", tolerance, reporter) as rounds:
            trained = train_exact(
                dataset,
                labels,
                found,
                executor,
                solver=solver,
                tolerance=job.tolerance,
                limits=effort_limits(job.max_passes, job.max_seconds),
                weights=prepared.weights,
                fit_intercept=job.fit_intercept,
                **rounds.arguments(),
                checkpointing=prepared.checkpointing,
                coordinator_input_bytes=input_bytes(plan),
                calibrate=job.settings.probability,
                seed=job.settings.seed,
                tree_error=job.tree_error,
            )
        summary = {
            **trained.summary,
            **chosen,
            "solver": chosen["auto"]["solver"] if chosen else job.solver,
            "memory_plan": plan.to_json(),
            "gradient_tolerance": tolerance,
        }
        return exact_record(trained, dataset, labels, prepared.weights, summary)

    def draw(
        self, path: str, record: ClassifierRecord, history: Sequence[Mapping[str, Any]], title: str, job: ClassifyJob
    ) -> None:
        """Draw the convergence, where there were rounds."""
        if history:
            plot_convergence(path, history, tolerance=record.summary["gradient_tolerance"], title=title)


def _solver(
    job: ClassifyJob,
    prepared: Prepared,
    kernel: Kernel,
    noise_variance: float,
    tolerance: float,
    executor: BlockExecutor,
) -> tuple[Solver, dict[str, Any]]:
    if job.solver != AUTO:
        solver = build_solver(job.solver, {}, seed=job.settings.seed)
        return solver.resolved(prepared.dataset.n_samples, prepared.dataset.n_features), {}
    return solver_for_labels(
        prepared.dataset,
        kernel,
        noise_variance,
        prepared.labels.n_outputs + job.fit_intercept,
        tolerance,
        executor,
        job.settings.seed,
        memory_budget(job)[1],
        tree_error=job.tree_error,
    )


def _largest(dataset: Dataset, kernel: Kernel) -> float:
    """The largest k(x, x) among the samples."""
    if kernel.stationary:
        return float(kernel.diagonal(dataset.inputs(0, 1))[0])
    return max(float(kernel.diagonal(dataset.inputs(*rows)).max()) for rows in dataset.row_chunks())
