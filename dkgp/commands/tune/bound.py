"""`dkgp tune --objective bound`: hyperparameters by a sparse model's evidence on all samples of the store.

With `vif` and a likelihood of labels by their evidence, in Laplace's approximation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dkgp.cluster import BlockExecutor
from dkgp.commands.reporting.memory import memory_budget
from dkgp.commands.reporting.outputs import check_output_file
from dkgp.commands.signals import interruptible
from dkgp.commands.tune.run import TuneRun
from dkgp.data.remote.storage import exists
from dkgp.errors import InterruptedRunError
from dkgp.models import Hyperparameters, RunContext
from dkgp.models.classification.labels import LabelledData, label_weights
from dkgp.models.classification.near import TITLE, tune_labels_by_neighbours
from dkgp.models.sparse.search import BASIS_SIZES, EVIDENCES, Trail, check_bound, plan_bound, tune_by_bound
from dkgp.models.sparse.vif import Neighbours, kept_bytes


class BoundRun(TuneRun):
    """A run on all samples; what was evaluated is kept in a trail until the result is written."""

    trail = Trail()

    @property
    def samples(self) -> int:
        """All are looked at."""
        return self.dataset.n_samples

    @property
    def basis_size(self) -> int:
        """Basis samples, as many as were asked for."""
        if self.job.basis_size is not None:
            return self.job.basis_size
        assert self.job.evidence is not None
        return min(BASIS_SIZES[self.job.evidence], self.dataset.n_samples)

    def check_choices(self) -> None:
        """Refuse kernels, names, numbers and places that do not fit, before a cluster is started."""
        checkpoint = self.job.checkpoint_url
        assert checkpoint is not None
        check_bound(self.dataset, self.job.choices(self.start), self.job.search(), self.basis_size)
        if self.labels is not None:
            label_weights(self.labels, None, self.dataset.all_weights())
        check_output_file(checkpoint, replace=True, option="`out`", local=False)
        if not self.job.resume and exists(checkpoint):
            self.reporter.warn(
                f"the checkpoint '{checkpoint}' is of an earlier run and will be replaced; `resume` would go on from it"
            )

    def check_memory(self, executor: BlockExecutor) -> None:
        """Nothing: what fits depends on workers that compute alike, which `search` asks for."""

    def search(self, executor: BlockExecutor) -> Hyperparameters:
        """Search, with one line for each basis.

        Raises
        ------
        MemoryBudgetError
            The matrices of a basis of this size do not fit.
        InterruptedRunError
            What was evaluated is in the checkpoint.
        """
        job, dataset, size, reporter = self.job, self.dataset, self.basis_size, self.reporter
        assert job.evidence is not None
        executor.require_one_arithmetic()
        n, d, p, title = dataset.n_samples, dataset.n_features, dataset.n_targets, EVIDENCES[job.evidence]
        if self.labels is not None:
            # The targets that labels stand for, beside what is kept of each latent function.
            p, title = 2 + self.labels.n_outputs, TITLE
        resident, budget = memory_budget()
        plan = plan_bound(n, d, size, p, executor, job.cluster.cache_bytes, job.evidence)
        plan.require(budget, resident)
        if self.labels is not None:
            # Each of Newton's steps goes over the same leaves.
            plan = replace(plan, useful_bytes=kept_bytes(n, size, Neighbours()))
            plan = plan.with_kept(executor.tiles, budget, resident)
            executor.tiles = replace(executor.tiles, bytes=plan.kept_bytes)
        self.trail = Trail(job.checkpoint_url, self.signature)
        if job.resume and self.trail.load():
            reporter.note(f"going on from '{self.trail.url}', {len(self.trail)} evaluations")
        reporter.note(f"maximising the {title} of {size:,} basis samples on {n:,} samples of {d} features")
        with interruptible(reporter.warn) as interruption, reporter.search("tune") as progress:
            context, settings = RunContext(executor, interrupted=interruption), job.search(progress)
            choices = job.choices(self.start)
            options: dict[str, Any] = {"basis_size": size, "note": reporter.note, "trail": self.trail}
            try:
                if self.labels is None:
                    return tune_by_bound(dataset, context, choices, settings, objective=job.evidence, **options)
                data = LabelledData(dataset, self.labels, label_weights(self.labels, None, dataset.all_weights()))
                return tune_labels_by_neighbours(data, context, choices, settings, **options)
            except InterruptedRunError as error:
                raise InterruptedRunError(
                    f"{error}. Go on with the same command and `resume`", error.checkpoint
                ) from None

    def written(self) -> None:
        """Remove the trail."""
        self.trail.remove()
