"""The method "fixed-size" of `dkgp classify`: a few prototypes, all of it found by cross-validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dkgp.cluster import BlockExecutor
from dkgp.commands.classify.job import ClassifyJob
from dkgp.commands.classify.run import ClassifyRun
from dkgp.commands.reporting.outputs import RecordLog
from dkgp.commands.reporting.plots import plot_path
from dkgp.commands.signals import interruptible
from dkgp.commands.solving import inputs_within, room
from dkgp.data import ClassifierRecord
from dkgp.errors import UsageError
from dkgp.kernels import Kernel, SquaredExponential
from dkgp.models import Hyperparameters
from dkgp.models.classification.fixed_size.settings import FixedSizeMemory, foresee_search, most_widths
from dkgp.models.classification.fixed_size.train import considered_weights, train_fixed_size, weighing_words
from dkgp.models.classification.labels import stratified_folds
from dkgp.models.context import RunContext
from dkgp.models.memory import TrainingSizes
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.blocked import coordinator_input_bytes_needed


class FixedSizeRun(ClassifyRun):
    """A run of a fixed-size LS-SVM; see `dkgp.models.classification.fixed_size`."""

    method = "fixed-size"
    compiles = ("fixed-size",)

    @classmethod
    def check_options(cls, job: ClassifyJob) -> None:
        """Refuse noises that contradict each other; the settings check themselves."""
        if job.given_noise and job.hyper is None:
            raise UsageError("`given_noise` is that of `hyper`; give it, or leave `given_noise` out")
        if job.given_noise and job.settings.noise_variances is not None:
            raise UsageError("`given_noise` and `noise_variances` both say which noise to take; leave one of them out")

    @property
    def takes_noise(self) -> bool:
        """True where it was asked for."""
        return self.job.given_noise

    def check_hyperparameters(self, hyperparameters: Hyperparameters | None) -> None:
        """Refuse more folds than a class has samples."""
        stratified_folds(self.labels, self.job.settings.folds, self.job.settings.seed)

    def caution(self, hyperparameters: Hyperparameters) -> None:
        """Tell of hyperparameters for something else, where their noise is taken too."""
        if self.takes_noise:
            super().caution(hyperparameters)

    def work(self, executor: BlockExecutor) -> ClassifierRecord:
        """Search and fit, a note and a record for each kernel that is looked at."""
        job, kernel, noise_variance = self.job, None, None
        if self.hyperparameters is not None:
            kernel = self.hyperparameters.kernel
            noise_variance = self.hyperparameters.noise_variance if job.given_noise else None
        plan, inputs_bytes = self._planned(kernel, executor)
        self.begin()
        with (
            RecordLog(job.log_json, resume=job.resume) as log,
            self.reporter.work("classify") as show,
            interruptible(self.reporter.warn) as interruption,
        ):

            def after_evaluation(record: dict[str, Any]) -> None:
                self.reporter.note(tried(record))
                log.write({"iteration": record["pass"], **record})

            considered = self._considered()
            if job.settings.judges_by_pools:
                self._announce(executor, plan.together, 1 if considered is None else 2)
            trained = train_fixed_size(
                self.data,
                job.settings,
                RunContext(
                    executor,
                    inputs_bytes,
                    callback=after_evaluation,
                    within=show,
                    checkpointing=self.checkpointing,
                    interrupted=interruption,
                ),
                kernel=kernel,
                noise_variance=noise_variance,
                considered=considered,
                together=plan.together,
            )
        record = trained.record(self.data)
        record.summary["memory_plan"] = plan.to_json()
        return record

    def _considered(self) -> FloatArray | None:
        """Weights that a search considers where nobody said which to take, and a class is rare."""
        if self.job.class_weight:
            return None
        return considered_weights(self.job.settings, self.labels, self.dataset.all_weights())

    def _announce(self, executor: BlockExecutor, together: int, weighings: int) -> None:
        """Say what the search will take."""
        settings, n, outputs = self.job.settings, self.dataset.n_samples, self.labels.n_outputs
        foreseen = foresee_search(
            (n, self.dataset.n_features, outputs), settings.pool_size(n, outputs), folds=settings.folds,
            threads=executor.parallelism, together=together, search=settings.search, weighings=weighings,
        )  # fmt: skip
        balanced = " with and without class weights" if weighings > 1 else ""
        self.reporter.note(
            f"foreseen: {foreseen.passes} passes over {n:,} samples at most, about {shown_seconds(foreseen.seconds)} "
            f"of idle cores: up to {most_widths(settings.search)} widths judged by {foreseen.judging:,} prototypes, "
            f"then all {foreseen.pool:,}{balanced}"
        )

    def of_rare(self, summary: Mapping[str, Any]) -> str:
        """Say which class weights were taken, and what they change."""
        if not self.job.settings.judges_by_pools:
            return super().of_rare(summary)
        return f"{weighing_words(summary)}. `class_weight` none or balanced decides it"

    def _planned(self, kernel: Kernel | None, executor: BlockExecutor) -> tuple[FixedSizeMemory, int]:
        """The projected memory, and bytes of inputs that the coordinator may hold.

        Raises `MemoryBudgetError` where a pool does not fit, one kernel at a time.
        """
        n, d = self.dataset.n_samples, self.dataset.n_features
        width = feature_width(SquaredExponential(gamma=(1.0,) * d) if kernel is None else kernel)
        resident, budget = room(self)

        def plan(free: int) -> FixedSizeMemory:
            sizes = TrainingSizes(n, d, self.labels.n_outputs, executor, self.job.cluster.cache_bytes, width)
            return self.job.settings.memory(sizes, budget_bytes=free)

        memory = plan(budget - resident - coordinator_input_bytes_needed(n, d, width))
        inputs = inputs_within(self, width, budget - resident - memory.coordinator_bytes)
        if not inputs:
            memory = plan(budget - resident)
        memory.require(budget, resident)
        return memory, inputs

    def plot(self, path: str, record: ClassifierRecord, title: str) -> None:
        """Draw scores by cardinality, and the search."""
        plot_path(path, record.path, record.history, record.summary, title=title)


def shown_seconds(seconds: float) -> str:
    """Seconds or minutes, as far as they can be foreseen."""
    return f"{max(1.0, seconds):.0f} s" if seconds < 90.0 else f"{seconds / 60.0:.0f} min"


def tried(record: Mapping[str, Any]) -> str:
    """A line of what a search looked at: pass, width, penalty, error, prototypes, and what is left."""
    most = record.get("passes_at_most")
    at_most = "" if most is None else f" of {most} at most"
    width = record["scale"] ** -0.5
    error = f"squared error {record['score']:.4g}"
    if "error" in record:
        error = f"error {record['error']:.2%}"
        if record["weighted"]:
            error = f"with class weights balanced error {record['balanced_error']:.2%}, {error}"
    left = record.get("seconds_left")
    coming = f"; {shown_seconds(left)} left at most" if left else ""
    return (
        f"pass {record['pass']}{at_most}: width {width:.3g}, penalty {record['noise_variance']:.3g}: {error} with "
        f"{record['cardinality']:,} prototypes{coming}"
    )
