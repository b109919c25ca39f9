"""The method "exact" of `dkgp classify`: the LS-SVM of all samples, by any solver of dkgp's."""

from __future__ import annotations

from typing import Any

from dkgp.cluster import BlockExecutor
from dkgp.commands.classify.job import ClassifyJob
from dkgp.commands.classify.run import ClassifyRun
from dkgp.commands.reporting.memory import memory_budget
from dkgp.commands.reporting.plots import plot_convergence
from dkgp.commands.solver_options import check_decisions, check_product_error
from dkgp.commands.solving import effort_limits, input_bytes, planned_solve, solving
from dkgp.data import ClassifierRecord, Dataset
from dkgp.errors import InputError, UsageError
from dkgp.kernels import Kernel
from dkgp.models import Hyperparameters
from dkgp.models.classification.exact import DecisionError, ExactSettings, solver_for_labels, train_exact
from dkgp.models.context import RunContext
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.product_error import ProductError
from dkgp.solvers import Solver
from dkgp.solvers.registry import AUTO, build_solver, solver_memory, solver_names


class ExactRun(ClassifyRun):
    """A run of the exact LS-SVM; see `dkgp.models.classification.exact`."""

    method = "exact"

    @classmethod
    def check_options(cls, job: ClassifyJob) -> None:
        """Refuse an intercept that is chosen, solvers of other methods, and `product_error` where it serves nothing."""
        if job.settings.intercept == "selected":
            raise UsageError("`intercept` selected competes with prototypes; `method` exact has none of them")
        if job.solver not in (AUTO, *solver_names()):
            names = ", ".join((AUTO, *solver_names()))
            raise InputError(f"`solver` must be one of {names} for `method` exact; got '{job.solver}'")
        check_product_error(ProductError.of(job.product_error), job.tolerance, job.solver)

    @property
    def takes_noise(self) -> bool:
        """True: s2 = 1/gamma_K is part of the problem."""
        return True

    def identity(self) -> dict[str, Any]:
        """Return the options of the method; an intercept is there, or it is not."""
        return {**super().identity(), "intercept": self.job.fit_intercept}

    def check_hyperparameters(self, hyperparameters: Hyperparameters | None) -> None:
        """Refuse data that `product_error` cannot serve, before any work where the kernel is known."""
        super().check_hyperparameters(hyperparameters)
        if hyperparameters is not None:
            self._check_limit(hyperparameters)

    def _check_limit(self, hyperparameters: Hyperparameters) -> None:
        if self.product_error.number is not None:
            limit = self._rule(hyperparameters).gradient_tolerance(self.dataset.n_samples)
            check_decisions(self.product_error, limit, self.job.tolerance)

    def _rule(self, hyperparameters: Hyperparameters) -> DecisionError:
        """Return the rule that decisions are within the tolerance."""
        n, noise, weights = self.dataset.n_samples, hyperparameters.noise_variance, self.weights
        least = noise if weights is None else noise / float(weights.max())
        level = noise / n * (1.0 if weights is None else float((1.0 / weights).mean()))
        largest = _largest(self.dataset, hyperparameters.kernel)
        return DecisionError(self.job.tolerance, least, largest, self.job.fit_intercept, level)

    def work(self, executor: BlockExecutor) -> ClassifierRecord:
        """Solve for alpha and the intercept until decisions are near enough."""
        job, dataset, labels = self.job, self.dataset, self.labels
        hyperparameters = self.kernel_and_noise()
        kernel = hyperparameters.kernel
        rule = self._rule(hyperparameters)
        least, tolerance = rule.noise_variance, rule.gradient_tolerance(dataset.n_samples)
        solver, choice = self._solver(kernel, least, tolerance, executor)
        if choice:
            reason = choice["auto"]["reason"]
            told = f"the solver is {solver.name}"
            self.reporter.note(f"{told}, which should be quickest", f"{told}: {reason}")
        self._check_limit(hyperparameters)
        plan = planned_solve(
            self,
            kernel,
            labels.n_outputs + job.fit_intercept,
            solver_memory(solver, dataset.n_samples, feature_width(kernel)),
            executor,
            products=choice["auto"]["products"] if choice else None,
        )
        with solving(self, executor, input_bytes(plan), tolerance) as context:
            settings = ExactSettings(
                solver=solver,
                tolerance=job.tolerance,
                limits=effort_limits(job.max_passes, job.max_seconds),
                fit_intercept=job.fit_intercept,
                calibrate=job.settings.probability,
                seed=job.settings.seed,
            )
            trained = train_exact(self.data, hyperparameters, context, settings)
        summary = {
            **trained.summary,
            **choice,
            "solver": choice["auto"]["solver"] if choice else job.solver,
            "memory_plan": plan.to_json(),
            "gradient_tolerance": tolerance,
        }
        return trained.record(self.data, summary)

    def plot(self, path: str, record: ClassifierRecord, title: str) -> None:
        """Draw the convergence, where there were rounds."""
        if record.history:
            plot_convergence(path, record.history, tolerance=record.summary["gradient_tolerance"], title=title)

    def _solver(
        self, kernel: Kernel, noise_variance: float, tolerance: float, executor: BlockExecutor
    ) -> tuple[Solver, dict[str, Any]]:
        """The job's solver, or the one that "auto" stands for, and why."""
        job, dataset = self.job, self.dataset
        if job.solver != AUTO:
            solver = build_solver(job.solver, {}, seed=job.settings.seed)
            return solver.resolved(dataset.n_samples, dataset.n_features), {}
        return solver_for_labels(
            dataset,
            kernel,
            noise_variance,
            self.labels.n_outputs + job.fit_intercept,
            tolerance,
            RunContext(executor, product_error=self.product_error),
            job.settings.seed,
            memory_budget(job.memory_limit_bytes)[1],
        )


def _largest(dataset: Dataset, kernel: Kernel) -> float:
    """The largest k(x, x) among the samples."""
    if kernel.stationary:
        return float(kernel.diagonal(dataset.inputs(0, 1))[0])
    return max(float(kernel.diagonal(dataset.inputs(*rows)).max()) for rows in dataset.row_chunks())
