"""The methods "logistic" and "gp" of `dkgp classify` on a basis: Newton's method on the weights of a few samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

from dkgp.cluster import BlockExecutor
from dkgp.commands.classify.job import ClassifyJob
from dkgp.commands.classify.run import LikelihoodRun
from dkgp.commands.reporting.plots import plot_newton
from dkgp.commands.solving import inputs_within, room, solving
from dkgp.data import ClassifierRecord
from dkgp.errors import UsageError
from dkgp.kernels import Kernel
from dkgp.models.classification.basis import DEFAULT_BASIS, BasisSettings, NewtonMemory
from dkgp.models.classification.near import NearSettings, train_with_basis
from dkgp.models.memory import TrainingSizes
from dkgp.models.sparse.vif import SEARCHED
from dkgp.operators.block_tasks import feature_width


class LogisticOnBasisRun(LikelihoodRun):
    """A run of kernel logistic regression on a basis."""

    method = "logistic on a basis"
    form: ClassVar[Literal["logistic", "gp"]] = "logistic"

    @property
    def settings(self) -> BasisSettings:
        """Settings of the basis that the job asks for."""
        job = self.job
        assert job.basis_size is not None
        return BasisSettings(
            job.basis_size, job.basis or DEFAULT_BASIS, job.certify, tolerance=job.tolerance, seed=job.settings.seed
        )

    def identity(self) -> dict[str, Any]:
        """Return the options of the method, the basis that they stand for, and the likelihood."""
        return {**super().identity(), "basis": self.job.basis or DEFAULT_BASIS}

    def work(self, executor: BlockExecutor) -> ClassifierRecord:
        """Choose the basis, take Newton's steps, and prove the distance where that was asked for."""
        job, hyperparameters = self.job, self.kernel_and_noise()
        plan, inputs_bytes = self._planned(hyperparameters.kernel, executor)
        if plan.useful_bytes:
            executor.tiles = replace(executor.tiles, bytes=plan.kept_bytes)
        with solving(self, executor, inputs_bytes, job.tolerance, measure="relative_residual") as context:
            trained = train_with_basis(
                self.data,
                hyperparameters,
                context,
                self.settings,
                likelihood=self.likelihood,
                form=self.form,
                regularisation=job.regularisation,
            )
        summary = {**trained.summary, "method": self.form, "memory_plan": plan.to_json()}
        return trained.record(self.data, summary)

    def _planned(self, kernel: Kernel, executor: BlockExecutor) -> tuple[NewtonMemory, int]:
        """The projected memory, and bytes of inputs that the coordinator may hold; `MemoryBudgetError` beyond it."""
        likelihood, width = self.likelihood, feature_width(kernel)
        n, d = self.dataset.n_samples, self.dataset.n_features
        resident, budget = room(self)
        sizes = TrainingSizes(n, d, likelihood.n_outputs, executor, self.job.cluster.cache_bytes, width)
        plan = self.settings.memory(sizes, coupled=likelihood.coupled)
        plan.require(budget, resident)
        inputs = inputs_within(self, width, budget - resident - plan.coordinator_bytes)
        return plan.with_kept(executor.tiles, budget - inputs, resident) if plan.useful_bytes else plan, inputs

    def plot(self, path: str, record: ClassifierRecord, title: str) -> None:
        """Draw Newton's steps."""
        plot_newton(path, record.history, tolerance=self.job.tolerance, title=title)


class GPOnBasisRun(LogisticOnBasisRun):
    """A run of a Gaussian process classifier on a basis, or on one with neighbours."""

    method, form = "gp on a basis", "gp"

    @classmethod
    def check_options(cls, job: ClassifyJob) -> None:
        """Refuse what does not go with neighbours, or without."""
        super().check_options(job)
        if job.neighbours is None:
            if job.search_samples is not None:
                raise UsageError("`search_samples` is of `neighbours`: give those, or leave it out")
        elif job.certify:
            raise UsageError("nothing is proven of a basis with `neighbours`: leave `certify` out, or the neighbours")
        elif job.multi_class == "softmax":
            raise UsageError(
                "`neighbours` are of one latent function, and softmax couples the classes: take `multi_class` ovr, or "
                "leave the neighbours out"
            )

    @property
    def settings(self) -> BasisSettings:
        """Settings of the basis, and of neighbours where the job has some."""
        settings, job = super().settings, self.job
        if job.neighbours is None:
            return settings
        searched = SEARCHED if job.search_samples is None else job.search_samples
        return NearSettings(
            settings.size,
            settings.basis,
            tolerance=settings.tolerance,
            seed=settings.seed,
            neighbours=job.neighbours,
            searched=searched,
        )
