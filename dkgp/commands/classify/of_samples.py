"""The methods "logistic" and "gp" of `dkgp classify` on all samples: a risk's minimiser, certified."""

from __future__ import annotations

import math

from dkgp.cluster import BlockExecutor
from dkgp.commands.classify.job import ClassifyJob
from dkgp.commands.classify.run import LikelihoodRun
from dkgp.commands.reporting.plots import plot_risk
from dkgp.commands.reporting.progress import Measure
from dkgp.commands.solver_options import check_decisions, check_product_error
from dkgp.commands.solving import effort_limits, input_bytes, planned_solve, solving
from dkgp.data import ClassifierRecord
from dkgp.errors import InputError, UsageError
from dkgp.models import Hyperparameters
from dkgp.models.classification.exact import DECISION_TOLERANCE
from dkgp.models.classification.logistic import RiskSettings, product_limit, require_separate, train_gp, train_logistic
from dkgp.operators.product_error import ProductError
from dkgp.solvers.registry import AUTO
from dkgp.solvers.risk import RISK_METHODS, risk_memory


class LogisticRun(LikelihoodRun):
    """A run of kernel logistic regression of all samples."""

    method = "logistic"

    @classmethod
    def check_options(cls, job: ClassifyJob) -> None:
        """Refuse solvers of other methods, a `product_error` that makes no sense, and softmax of probits."""
        super().check_options(job)
        if job.solver not in (AUTO, *RISK_METHODS):
            names = ", ".join((AUTO, *RISK_METHODS))
            raise InputError(f"`solver` must be one of {names} for `method` {cls.method}; got '{job.solver}'")
        if job.gap is not None and job.tolerance != DECISION_TOLERANCE:
            raise UsageError("`gap` and `tolerance` both say when to stop; leave one of them out")
        tolerance = job.tolerance if job.gap is None else math.inf
        check_product_error(ProductError.of(job.product_error), tolerance, job.solver)

    def check_hyperparameters(self, hyperparameters: Hyperparameters | None) -> None:
        """Refuse data that `product_error` cannot serve, before any work where the kernel is known."""
        super().check_hyperparameters(hyperparameters)
        if hyperparameters is not None:
            self.check_limit(hyperparameters)

    def check_limit(self, hyperparameters: Hyperparameters) -> None:
        """Refuse a `product_error` that is too large for the tolerance of decisions; `UsageError`."""
        limit = product_limit(self.data, hyperparameters.kernel, self.risk_settings)
        check_decisions(self.product_error, limit, self.job.tolerance)

    @property
    def risk_settings(self) -> RiskSettings:
        """The risk, and when its minimum is near enough."""
        job = self.job
        return RiskSettings(
            self.likelihood,
            regularisation=job.regularisation,
            method=job.solver,
            tolerance=job.tolerance,
            gap=job.gap,
            limits=effort_limits(job.max_passes, job.max_seconds),
            seed=job.settings.seed,
        )

    def work(self, executor: BlockExecutor) -> ClassifierRecord:
        """Minimise the risk until decisions, or the risk itself, are near enough."""
        job, dataset, likelihood = self.job, self.dataset, self.likelihood
        hyperparameters = self.kernel_and_noise()
        self.check_limit(hyperparameters)
        memory = risk_memory(job.solver, dataset.n_samples, likelihood.n_outputs, dataset.n_features)
        plan = planned_solve(self, hyperparameters.kernel, likelihood.n_outputs, memory, executor)
        goal: tuple[float, Measure] = (job.tolerance, "distance") if job.gap is None else (job.gap, "duality_gap")
        with solving(self, executor, input_bytes(plan), goal[0], measure=goal[1]) as context:
            train = train_gp if self.method == "gp" else train_logistic
            trained = train(self.data, hyperparameters, context, self.risk_settings)
        summary = {**trained.summary, "method": self.method, "memory_plan": plan.to_json()}
        return trained.record(self.data, summary)

    def plot(self, path: str, record: ClassifierRecord, title: str) -> None:
        """Draw the gap of the risk by products."""
        plot_risk(path, record.history, title=title, goal=self.job.gap)


class GPRun(LogisticRun):
    """A run of a Gaussian process classifier of all samples."""

    method = "gp"

    def check_hyperparameters(self, hyperparameters: Hyperparameters | None) -> None:
        """Refuse softmax, whose approximation couples the classes, and what `product_error` cannot serve."""
        require_separate(self.likelihood, self.labels.n_samples)
        super().check_hyperparameters(hyperparameters)
