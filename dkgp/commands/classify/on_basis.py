"""The methods "logistic" and "gp" of `dkgp classify` on a basis: Newton's method on the weights of a few samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dkgp.cluster import BlockExecutor
from dkgp.commands.classify.job import ClassifyJob
from dkgp.commands.classify.likelihood import cautioned, check_likelihood, evidence_of, likelihood_of
from dkgp.commands.classify.method import ClassifyMethod, Opened, Prepared
from dkgp.commands.classify.tuned import found_or_tuned
from dkgp.commands.own_work import memory_budget
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.reporting.risk_plot import plot_newton
from dkgp.commands.solving import solving
from dkgp.data import ClassifierRecord
from dkgp.kernels import Kernel, fold_white
from dkgp.models.classification.basis.memory import BasisMemory
from dkgp.models.classification.basis.settings import DEFAULT_BASIS, BasisSettings
from dkgp.models.classification.basis.train import train_on_basis
from dkgp.models.classification.records import basis_record
from dkgp.models.warm_up import compiling_bytes
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES, coordinator_input_bytes_needed

__all__ = ["OnBasis"]


class OnBasis(ClassifyMethod):
    """Kernel logistic regression, or a Gaussian process classifier, on a basis.

    Parameters
    ----------
    said : {"logistic", "gp"}
    """

    def __init__(self, said: Literal["logistic", "gp"]) -> None:
        self.said = self.form = said
        self.name = f"{said} on a basis"

    def check(self, job: ClassifyJob) -> None:
        """Refuse softmax of probits."""
        check_likelihood(job)

    def check_data(self, job: ClassifyJob, opened: Opened, reporter: Reporter | None) -> None:
        """Tell of hyperparameters for something else."""
        if opened.hyperparameters is not None:
            cautioned(opened.hyperparameters, evidence_of(likelihood_of(job, opened.labels)), reporter)

    def identity(self, job: ClassifyJob, opened: Opened) -> dict[str, Any]:
        """Return the options of the method, the basis that they stand for, and the likelihood."""
        likelihood = likelihood_of(job, opened.labels).to_json()
        values = super().identity(job, opened)
        return {
            **values,
            "likelihood": likelihood,
            "regularisation": job.regularisation,
            "basis": job.basis or DEFAULT_BASIS,
        }

    def train(
        self, job: ClassifyJob, prepared: Prepared, executor: BlockExecutor, reporter: Reporter
    ) -> ClassifierRecord:
        """Choose the basis, take Newton's steps, and prove the distance where that was asked for."""
        dataset, labels = prepared.dataset, prepared.labels
        likelihood = likelihood_of(job, labels)
        found = found_or_tuned(job, prepared, reporter, likelihood)
        settings = settings_of(job)
        plan, inputs_bytes = _planned(job, prepared, fold_white(found.kernel, found.noise_variance)[0], executor)
        prepared.begin(job)
        with solving(job, "classify", job.tolerance, reporter, measure="relative_residual") as rounds:
            trained = train_on_basis(
                dataset,
                labels,
                found,
                executor,
                settings,
                likelihood=likelihood,
                form=self.form,
                regularisation=job.regularisation,
                weights=prepared.weights,
                **rounds.arguments(),
                checkpointing=prepared.checkpointing,
                coordinator_input_bytes=inputs_bytes,
            )
        summary = {**trained.summary, "method": self.said, "memory_plan": plan.to_json()}
        return basis_record(trained, dataset, labels, prepared.weights, summary)

    def draw(
        self, path: str, record: ClassifierRecord, history: Sequence[Mapping[str, Any]], title: str, job: ClassifyJob
    ) -> None:
        """Draw Newton's steps."""
        plot_newton(path, history, tolerance=job.tolerance, title=title)


def settings_of(job: ClassifyJob) -> BasisSettings:
    """Settings of the basis that a job asks for."""
    assert job.basis_size is not None
    return BasisSettings(
        job.basis_size, job.basis or DEFAULT_BASIS, job.certify, tolerance=job.tolerance, seed=job.settings.seed
    )


def _planned(job: ClassifyJob, prepared: Prepared, kernel: Kernel, executor: BlockExecutor) -> tuple[BasisMemory, int]:
    """The projected memory, and bytes of inputs that the coordinator may hold; `MemoryBudgetError` where it is much."""
    dataset, likelihood = prepared.dataset, likelihood_of(job, prepared.labels)
    n, d, width = dataset.n_samples, dataset.n_features, feature_width(kernel)
    resident, budget = memory_budget(job)
    resident += compiling_bytes(kernel) - prepared.checkpointing.held_bytes
    plan = settings_of(job).memory(
        n, d, likelihood.n_outputs, executor, job.cluster.cache_bytes, width, coupled=likelihood.coupled
    )
    plan.require(budget, resident)
    inputs = coordinator_input_bytes_needed(n, d, width)
    if inputs > DEFAULT_COORDINATOR_INPUT_BYTES or resident + plan.coordinator_bytes + inputs > budget:
        inputs = 0
    return plan, inputs
