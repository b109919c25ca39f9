"""The methods "logistic" and "gp" of `dkgp classify` on all samples: a risk's minimiser, certified."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dkgp.cluster import BlockExecutor
from dkgp.commands.classify.job import ClassifyJob
from dkgp.commands.classify.likelihood import cautioned, check_likelihood, evidence_of, likelihood_of
from dkgp.commands.classify.method import ClassifyMethod, Opened, Prepared
from dkgp.commands.classify.tuned import found_or_tuned
from dkgp.commands.reporting.progress import Measure, Reporter
from dkgp.commands.reporting.risk_plot import plot_risk
from dkgp.commands.solving import (
    check_tree_error,
    check_tree_kernel,
    effort_limits,
    input_bytes,
    planned_solve,
    solving,
)
from dkgp.data import ClassifierRecord
from dkgp.errors import InputError, UsageError
from dkgp.kernels import fold_white
from dkgp.models.classification.exact.train import DECISION_TOLERANCE
from dkgp.models.classification.laplace.train import TrainedGP, require_separate, train_gp
from dkgp.models.classification.logistic.train import train_logistic
from dkgp.models.classification.records import gp_record, logistic_record
from dkgp.solvers.registry import AUTO
from dkgp.solvers.risk import RISK_METHODS, risk_memory

__all__ = ["OfSamples"]


class OfSamples(ClassifyMethod):
    """Kernel logistic regression, or a Gaussian process classifier, of all samples.

    Parameters
    ----------
    said : {"logistic", "gp"}
    """

    def __init__(self, said: Literal["logistic", "gp"]) -> None:
        self.name = self.said = said

    def check(self, job: ClassifyJob) -> None:
        """Refuse solvers of other methods, a tree that makes no sense, and softmax of probits."""
        check_likelihood(job)
        if job.solver not in (AUTO, *RISK_METHODS):
            names = ", ".join((AUTO, *RISK_METHODS))
            raise InputError(f"`solver` must be one of {names} for `method` {self.said}; got '{job.solver}'")
        if job.gap is not None and job.tolerance != DECISION_TOLERANCE:
            raise UsageError("`gap` and `tolerance` both say when to stop; leave one of them out")
        check_tree_error(job.tree_error, job.tolerance if job.gap is None else math.inf, job.solver)

    def check_data(self, job: ClassifyJob, opened: Opened, reporter: Reporter | None) -> None:
        """Refuse a kernel or features that a tree cannot serve; tell of hyperparameters for something else."""
        found = opened.hyperparameters
        if self.said == "gp":
            require_separate(likelihood_of(job, opened.labels), opened.labels.n_samples)
        if found is None:
            return
        if job.tree_error is not None:
            check_tree_kernel(fold_white(found.kernel, found.noise_variance)[0])
        cautioned(found, evidence_of(likelihood_of(job, opened.labels)), reporter)

    def identity(self, job: ClassifyJob, opened: Opened) -> dict[str, Any]:
        """Return the options of the method, and the likelihood."""
        likelihood = likelihood_of(job, opened.labels).to_json()
        return {**super().identity(job, opened), "likelihood": likelihood, "regularisation": job.regularisation}

    def train(
        self, job: ClassifyJob, prepared: Prepared, executor: BlockExecutor, reporter: Reporter
    ) -> ClassifierRecord:
        """Minimise the risk until decisions, or the risk itself, are near enough."""
        dataset, labels = prepared.dataset, prepared.labels
        likelihood = likelihood_of(job, labels)
        found = found_or_tuned(job, prepared, reporter, likelihood)
        self.check_data(job, Opened(dataset, labels, found), None)
        kernel, _ = fold_white(found.kernel, found.noise_variance)
        columns = likelihood.n_outputs
        memory = risk_memory(job.solver, dataset.n_samples, columns, dataset.n_features)
        plan = planned_solve(job, dataset, kernel, columns, memory, prepared.checkpointing, executor)
        prepared.begin(job)
        goal: tuple[float, Measure] = (job.tolerance, "distance") if job.gap is None else (job.gap, "duality_gap")
        with solving(job, "classify", goal[0], reporter, measure=goal[1]) as rounds:
            trained = (train_gp if self.said == "gp" else train_logistic)(
                dataset,
                labels,
                found,
                executor,
                likelihood=likelihood,
                regularisation=job.regularisation,
                method=job.solver,
                tolerance=job.tolerance,
                gap=job.gap,
                limits=effort_limits(job.max_passes, job.max_seconds),
                weights=prepared.weights,
                tree_error=job.tree_error,
                **rounds.arguments(),
                checkpointing=prepared.checkpointing,
                coordinator_input_bytes=input_bytes(plan),
                seed=job.settings.seed,
            )
        summary = {**trained.summary, "method": self.said, "memory_plan": plan.to_json()}
        if isinstance(trained, TrainedGP):
            return gp_record(trained, dataset, labels, prepared.weights, summary)
        return logistic_record(trained, dataset, labels, prepared.weights, summary)

    def draw(
        self, path: str, record: ClassifierRecord, history: Sequence[Mapping[str, Any]], title: str, job: ClassifyJob
    ) -> None:
        """Draw the gap of the risk by products."""
        plot_risk(path, history, title=title, goal=job.gap)
