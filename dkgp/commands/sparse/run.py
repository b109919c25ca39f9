"""`dkgp sparse`: a sparse Gaussian process of a dataset store, certified against the exact one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkgp.cluster import BlockExecutor
from dkgp.codec import difference
from dkgp.commands.reporting.outputs import Document, RecordLog, plain
from dkgp.commands.reporting.plots import plot_basis
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.resuming import checkpointing_of
from dkgp.commands.run import warn_of_labels
from dkgp.commands.signals import interruptible
from dkgp.commands.solving import inputs_within, room
from dkgp.commands.sparse.given import digest, read_given_basis
from dkgp.commands.sparse.job import SparseJob
from dkgp.commands.training import Outcome, TrainingRun, finished_run
from dkgp.data.stores.models.regression import SPARSE_MODEL_KIND, SparseRecord, open_sparse_model
from dkgp.models import Hyperparameters
from dkgp.models.context import RunContext
from dkgp.models.noise import Noise
from dkgp.models.problem import Problem
from dkgp.models.sparse.ladder import FIRST_RUNG, Rung, climb
from dkgp.models.sparse.settings import SparseMemory
from dkgp.models.sparse.stored import save_sparse
from dkgp.models.sparse.train import SparseProblem, TrainedSparse, train_sparse
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import feature_width
from dkgp.solvers import Checkpointing
from dkgp.solvers.greedy_basis import GreedyProgress

# Of the targets' standard deviation: the mean of the targets alone is about one away from the exact mean.
SAYS_LITTLE = 0.5


@dataclass(frozen=True)
class _Plan:
    """Projected memory, of a ladder for each rung by itself; bytes of inputs here; what else is free; what is kept."""

    sparse: SparseMemory | None
    inputs_bytes: int
    free_bytes: int
    kept_bytes: int


class SparseRun(TrainingRun):
    """A run of `dkgp sparse`; `basis` is the one that the user gave, sample numbers or standardised inputs."""

    command, kind = "sparse", SPARSE_MODEL_KIND
    job: SparseJob
    hyperparameters: Hyperparameters
    basis: IndexArray | FloatArray | None = None

    def check(self) -> None:
        """Refuse options that do not go together."""
        self.job.check()
        super().check()

    def open(self) -> None:
        """Open data, hyperparameters and a given basis; the job's size is what it means for these data."""
        super().open()
        self._requested = self.job
        if self.job.given_basis is not None:
            self.basis = read_given_basis(self.job.given_basis, self.dataset)
        self.job = self.job.sized(self.dataset.n_samples, None if self.basis is None else len(self.basis))

    def prepare(self) -> None:
        """Refuse a bound on products that the kernel does not have."""
        super().prepare()
        self.product_error.require_kernel(self.hyperparameters.kernel)

    def tell(self) -> None:
        """Warn of labels, and name a basis that is all there is."""
        warn_of_labels(self.dataset, self.hyperparameters, self.reporter)
        n, size = self.dataset.n_samples, self._requested.settings.basis_size
        if self.basis is None and self.job.basis_size is None and size > n:
            self.reporter.note(f"the basis is all {n:,} samples: the default of {size:,} is more than there are")

    @property
    def identity(self) -> dict[str, Any]:
        """Data and hyperparameters."""
        noise = Noise(self.hyperparameters.noise_variance)
        return Problem(self.dataset, self.hyperparameters.kernel, noise).identity()

    def checkpoints(self) -> Checkpointing | None:
        """Return where a basis that grows is saved."""
        if not self.job.grows:
            return None
        return checkpointing_of(self.job, self.identity, self.job.solver_settings, self.reporter)

    def work(self, executor: BlockExecutor) -> tuple[TrainedSparse, _Plan]:
        """Plan the memory, choose and fit a basis, or climb a ladder of them, and certify."""
        plan = self._plan(executor)
        self.begin()
        executor.tiles = replace(executor.tiles, bytes=plan.kept_bytes)
        return self._judged(self._trained(executor, plan)), plan

    def _plan(self, executor: BlockExecutor) -> _Plan:
        """Project the memory, and what of the inputs the coordinator holds; `MemoryBudgetError` beyond the budget."""
        job, dataset, kernel = self.job, self.dataset, self.hyperparameters.kernel
        resident, budget = room(self)
        n, d, width = dataset.n_samples, dataset.n_features, feature_width(kernel)
        # A ladder refuses each rung by itself: what it begins with is what must have room.
        size = job.settings.basis_size if job.target is None else min(FIRST_RUNG, job.settings.basis_size)
        settings = replace(job.settings, basis_size=size)
        plan = settings.memory(n, d, dataset.n_targets, executor, job.cluster.cache_bytes, width)
        inputs = inputs_within(self, width, budget - resident - plan.coordinator_bytes)
        plan.require(budget, resident)
        # What a ladder's first rung has a use for is all that its later ones keep.
        plan = plan.with_kept(executor.tiles, budget - inputs, resident)
        free = budget - resident - inputs - (plan.kept_bytes if plan.shares_process else 0)
        return _Plan(plan if job.target is None else None, inputs, free, plan.kept_bytes)

    def _trained(self, executor: BlockExecutor, plan: _Plan) -> TrainedSparse:
        job, hyperparameters = self.job, self.hyperparameters
        size = None if job.basis_size == "auto" and job.largest_basis is None else job.settings.basis_size
        with (
            RecordLog(job.log_json, resume=job.resume) as log,
            self.reporter.choice("sparse", size) as show,
            interruptible(self.reporter.warn) as interruption,
        ):

            def after_round(progress: GreedyProgress) -> None:
                show(progress)
                log.write({"iteration": progress.round, **progress.to_json()})

            def after_rung(rung: Rung) -> None:
                gap = "" if rung.gap is None else f", gap {rung.gap:.3g}"
                told = f"{rung.size:,} basis samples: proven distance {rung.distance:.3g}"
                self.reporter.note(told, told + gap)
                if not job.is_greedy:
                    log.write({"iteration": rung.size, **rung.to_json()})

            context = RunContext(
                executor,
                plan.inputs_bytes,
                product_error=self.product_error,
                callback=after_round,
                within=show,
                checkpointing=self.checkpointing,
                interrupted=interruption,
            )
            kernel, noise = hyperparameters.kernel, Noise(hyperparameters.noise_variance)
            if job.target is None:
                return train_sparse(self.dataset, kernel, noise, context, job.settings, given=self.basis)
            return climb(
                SparseProblem.of(self.dataset, kernel, noise),
                context,
                job.settings,
                job.target,
                rung_callback=after_rung,
                memory_bytes=plan.free_bytes,
                cache_bytes=job.cluster.cache_bytes,
            )

    def _judged(self, trained: TrainedSparse) -> TrainedSparse:
        """Note what was asked for, what is proven in the targets' units, and if it is met; ladders know that."""
        job, bound = self.job, trained.certificate.rms_bound
        raw = bound * self.dataset.standardisation.target_std
        summary = {
            **trained.summary,
            "target_names": list(self.dataset.target_names),
            "rms_bound_raw": raw.tolist(),
            "settings": job.identity(digest(self.basis)),
        }
        worst, target = float(np.max(bound)), job.target_distance
        if job.target is None and target is not None and summary["converged"]:
            met = worst <= target
            summary["converged"] = met
            summary["reason"] = f"proven distance {worst:.3g} {'<=' if met else '>'} {target:.3g}: {summary['reason']}"
            if not met:
                summary["advice"] = (
                    "a larger `basis_size` brings the mean nearer, more `certify_passes` prove more of it"
                )
        return replace(trained, summary=summary)

    def save(self, trained: tuple[TrainedSparse, _Plan], measured: Mapping[str, Any], *, overwrite: bool) -> Outcome:
        """Write the model."""
        model, plan = trained
        model = replace(model, summary={**model.summary, **measured})
        save_sparse(model, self.job.out, self.dataset, overwrite=overwrite)
        history = [] if model.greedy is None else [progress.to_json() for progress in model.greedy.history]
        planned = None if plan.sparse is None else plan.sparse.to_json()
        return Outcome(model, model.summary, model.certificate.to_json(), history, planned)

    def stored(self) -> SparseRecord:
        """Open the model at `job.out`."""
        return open_sparse_model(self.job.out)

    def difference(self, model: SparseRecord, converged: bool) -> str | None:
        """Say in which name the stored model's run differs."""
        made = {"fingerprint": model.fingerprint, "kernel": model.kernel, "noise_variance": model.noise_variance}
        wanted = {**self.identity, **self.job.identity(digest(self.basis))}
        return difference({**made, **model.summary["settings"]}, wanted)

    def draw(self, outcome: Outcome) -> None:
        """Draw the basis as it grew."""
        summary = outcome.summary
        title = f"{summary['method']}: n = {summary['n']:,}, d = {summary['d']}, m = {summary['basis_size']:,}"
        assert self.job.plot is not None
        plot_basis(self.job.plot, outcome.history, summary, outcome.certificate or {}, title=title)

    def described(self, outcome: Outcome) -> Document:
        """Return the model's part of the record."""
        return {
            **plain(outcome.summary),
            "certificate": plain(outcome.certificate),
            "memory_plan": outcome.memory_plan,
        }

    def warnings(self, outcome: Outcome) -> list[str]:
        """Return everything that a user must know of the model, in words."""
        summary, messages = outcome.summary, []
        if not summary["converged"]:
            advice = f"; {summary['advice']}" if summary["advice"] else ""
            messages.append(f"not proven to be as near as was asked for: {summary['reason']}{advice}")
        if summary["method"] == "sr":
            messages.append(
                "the variances of `method` sr are overconfident: they go to nothing away from the basis. The interval "
                "of the exact variance beside them holds; `method` dtc has the same mean with variances that count"
            )
        worst = max(summary["rms_bound"])
        if worst >= SAYS_LITTLE:
            messages.append(
                f"the proven distance to the exact mean, {worst:.2g} standard deviations of the targets, says little: "
                "the targets' own mean is about as near. The sparse mean may be much nearer than that; "
                "`certify_passes` or a larger `basis_size` proves more"
            )
        return messages


def run_sparse(job: SparseJob, reporter: Reporter) -> Document:
    """Train, certify and save; see `Run.run`."""
    return SparseRun(job, reporter).run()


def finished_sparse(job: SparseJob, reporter: Reporter) -> Document | None:
    """Return the record of the model at `job.out` where it is what the job would make; see `TrainingRun.done`."""
    return finished_run(SparseRun, job, reporter)
