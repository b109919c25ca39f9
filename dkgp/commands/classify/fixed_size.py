"""The method "fixed-size" of `dkgp classify`: a few prototypes, all of it found by cross-validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dkgp.cluster import BlockExecutor
from dkgp.commands.classify.job import ClassifyJob
from dkgp.commands.classify.likelihood import cautioned
from dkgp.commands.classify.method import ClassifyMethod, Opened, Prepared
from dkgp.commands.own_work import memory_budget
from dkgp.commands.reporting.path_plot import plot_path
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.reporting.records import RecordLog
from dkgp.commands.signals import interruptible
from dkgp.data import ClassifierRecord
from dkgp.errors import UsageError
from dkgp.kernels import Kernel, SquaredExponential, fold_white
from dkgp.models.classification.fixed_size.memory import FixedSizeMemory
from dkgp.models.classification.fixed_size.train import train_fixed_size
from dkgp.models.classification.labels import stratified_folds
from dkgp.models.classification.records import fixed_size_record
from dkgp.models.warm_up import compiling_bytes
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES, coordinator_input_bytes_needed

__all__ = ["FixedSize"]


class FixedSize(ClassifyMethod):
    """A fixed-size LS-SVM; see `dkgp.models.classification.fixed_size`."""

    name = "fixed-size"
    compiles = ("fixed-size",)

    def check(self, job: ClassifyJob) -> None:
        """Refuse noises that contradict each other; the settings check themselves."""
        if job.given_noise and job.hyper is None:
            raise UsageError("`given_noise` is that of `hyper`; give it, or leave `given_noise` out")
        if job.given_noise and job.settings.noise_variances is not None:
            raise UsageError("`given_noise` and `noise_variances` both say which noise to take; leave one of them out")

    def check_data(self, job: ClassifyJob, opened: Opened, reporter: Reporter | None) -> None:
        """Refuse more folds than a class has samples; tell of hyperparameters for something else."""
        stratified_folds(opened.labels, job.settings.folds, job.settings.seed)
        if opened.hyperparameters is not None and job.given_noise:
            cautioned(opened.hyperparameters, None, reporter)

    def takes_noise(self, job: ClassifyJob) -> bool:
        """True where it was asked for."""
        return job.given_noise

    def train(
        self, job: ClassifyJob, prepared: Prepared, executor: BlockExecutor, reporter: Reporter
    ) -> ClassifierRecord:
        """Search and fit, a note and a record for each kernel that is looked at."""
        found = prepared.hyperparameters
        kernel = noise_variance = None
        if found is not None:
            kernel, noise = fold_white(found.kernel, found.noise_variance)
            noise_variance = noise if job.given_noise else None
        plan, inputs_bytes = _planned(job, prepared, kernel, executor)
        prepared.begin(job)
        with (
            RecordLog(job.log_json, resume=job.resume) as log,
            reporter.work("classify") as show,
            interruptible(reporter.warn) as interruption,
        ):

            def after_evaluation(record: dict[str, Any]) -> None:
                reporter.note(
                    f"pass {record['pass']}: scale {record['scale']:.4g}, noise variance "
                    f"{record['noise_variance']:.3g}: score {record['score']:.5g} with {record['cardinality']:,} "
                    "prototypes"
                )
                log.write({"iteration": record["pass"], **record})

            trained = train_fixed_size(
                prepared.dataset,
                prepared.labels,
                job.settings,
                executor,
                kernel=kernel,
                noise_variance=noise_variance,
                weights=prepared.weights,
                together=plan.together,
                checkpointing=prepared.checkpointing,
                callback=after_evaluation,
                within=show,
                interrupted=interruption,
                coordinator_input_bytes=inputs_bytes,
            )
        record = fixed_size_record(trained, prepared.dataset, prepared.labels, prepared.weights)
        record.summary["memory_plan"] = plan.to_json()
        return record

    def draw(
        self, path: str, record: ClassifierRecord, history: Sequence[Mapping[str, Any]], title: str, job: ClassifyJob
    ) -> None:
        """Draw scores by cardinality, and the search."""
        plot_path(path, record.path, history, record.summary, title=title)


def _planned(
    job: ClassifyJob, prepared: Prepared, kernel: Kernel | None, executor: BlockExecutor
) -> tuple[FixedSizeMemory, int]:
    """The projected memory, and bytes of inputs that the coordinator may hold.

    Raises `MemoryBudgetError` where a pool does not fit, one kernel at a time.
    """
    dataset = prepared.dataset
    n, d = dataset.n_samples, dataset.n_features
    expected = SquaredExponential(gamma=(1.0,) * d) if kernel is None else kernel
    width = feature_width(expected)
    resident, budget = memory_budget(job)
    resident += compiling_bytes(expected) - prepared.checkpointing.held_bytes
    inputs = coordinator_input_bytes_needed(n, d, width)

    def plan(free: int) -> FixedSizeMemory:
        outputs, cache = prepared.labels.n_outputs, job.cluster.cache_bytes
        return job.settings.memory(n, d, outputs, executor, cache, width, budget_bytes=free)

    found = plan(budget - resident - inputs)
    if inputs > DEFAULT_COORDINATOR_INPUT_BYTES or resident + found.coordinator_bytes + inputs > budget:
        inputs, found = 0, plan(budget - resident)
    found.require(budget, resident)
    return found, inputs
