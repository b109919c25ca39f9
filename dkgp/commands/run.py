"""The stages of every command that computes on a cluster. Each command implements them as hooks.

    check         refuse contradictory options and unusable paths, without reading data
    open          open data, models and hyperparameters, each store once; resolve "auto"
    tell          warn of unusual data and hyperparameters, and report the decisions
    finished      return the record of an earlier run if it finished this job
    refuse        raise every error that can be found before the work starts
    work          compute on a cluster that is started for it
    conclude      save the result, and report

`dkgp/commands/training.py` adds the stages of commands that train a model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from dkgp.cluster import BlockExecutor, open_executor
from dkgp.commands.reporting.memory import PeakMemory
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter, announce
from dkgp.commands.resuming import going_on
from dkgp.commands.signals import stop_requested
from dkgp.data import Dataset, open_dataset
from dkgp.data.remote.claims import locked
from dkgp.data.types import quoted
from dkgp.errors import InputError
from dkgp.models import Hyperparameters
from dkgp.models.hyperparameters import likelihood_caution
from dkgp.solvers import Checkpointing


class Run(ABC):
    """A run of one command, from its job to its record.

    Attributes
    ----------
    command
        Name of the command.
    job
        The job to run.
    dataset
        The data; set by `open`.
    checkpointing
        The checkpoints; set by `refuse`. None for a run without checkpoints.
    """

    command: ClassVar[str]
    knows_covariates: ClassVar[bool] = False
    job: Any
    dataset: Dataset
    checkpointing: Checkpointing | None = None

    def __init__(self, job: Any, reporter: Reporter) -> None:
        self.job, self.reporter = job, reporter

    def run(self) -> Document:
        """Run the job; return the record.

        Raises
        ------
        InputError
            Any error that can be found before the work starts. Nothing has been written then.
        MemoryBudgetError
            The work exceeds the memory limit.
        NumericalError
            Rounding errors prevent a factorisation.
        InterruptedRunError
            A signal requested a stop. A command with checkpoints saves its state first.
        ClusterError
            No cluster is available, or the cluster was lost.
        OutputExistsError
            Another process writes to one of the local `places`.
        """
        with locked(*self.places):
            return self._run()

    def _run(self) -> Document:
        with PeakMemory() as memory:
            self.check()
            self.open()
            self.tell()
            if (document := self.finished()) is not None:
                return document
            self.refuse()
            with (
                self.compiling(),
                open_executor(self.job.cluster, self.samples, self.reporter, stop_requested) as executor,
            ):
                self.refuse_on(executor)
                announce(executor, self.reporter)
                with going_on(self.checkpointing):
                    result = self.work(executor)
            # The worker processes have ended, so the peak includes theirs.
            peak_bytes = memory.bytes
        return self.conclude(result, peak_bytes)

    # Empty hooks (B027) are not abstract: most commands leave some of them empty.

    @property
    def places(self) -> list[str]:
        """Paths that no other run may write to meanwhile; files beside them are replaced as a whole."""
        return [self.job.out]

    @property
    def samples(self) -> int:
        """The number of samples, by which "auto" decides the cluster."""
        return self.dataset.n_samples

    def check(self) -> None:  # noqa: B027
        """Raise the errors that can be found without data; `UsageError` or `InputError`."""

    @abstractmethod
    def open(self) -> None:
        """Open all stores that the work needs, each once; `InputError` if one is unusable."""

    def tell(self) -> None:  # noqa: B027
        """Warn of unusual data and hyperparameters, and report the decisions that follow from them."""

    def finished(self) -> Document | None:
        """Return the record of an earlier run if this run resumes it and it was done; None if work remains."""
        return None

    def refuse(self) -> None:  # noqa: B027
        """Run all other checks that need no computation; errors as in `run`."""

    def compiling(self) -> AbstractContextManager[None]:
        """Compile the code that the work needs in the background while the context is open."""
        return nullcontext()

    def refuse_on(self, executor: BlockExecutor) -> None:  # noqa: B027
        """Raise an error if the cluster's memory is insufficient, as far as that is known before the work."""

    @abstractmethod
    def work(self, executor: BlockExecutor) -> Any:
        """Compute and return the result for `conclude`; `MemoryBudgetError` beyond the memory limit."""

    @abstractmethod
    def conclude(self, result: Any, peak_bytes: int) -> Document:
        """Save the result unless it is saved already, and return the record."""

    def open_data(self) -> Dataset:
        """Open the data of a regression; `InputError` without targets, or with covariates that no mean takes."""
        dataset = open_dataset(self.job.dataset)
        if dataset.n_targets == 0:
            raise InputError(f"'{dataset.url}' has no targets to train on; ingest the data again with --target")
        if dataset.covariate_names and not self.knows_covariates:
            raise InputError(
                f"'{dataset.url}' has the covariates {', '.join(dataset.covariate_names)}, which only the mean of "
                f"dkgp train uses. For dkgp {self.command}, ingest without `covariates`"
            )
        return dataset


def warn_of_labels(dataset: Dataset, hyperparameters: Hyperparameters | None, reporter: Reporter) -> None:
    """Warn that a regression on labels fits their codes, and of hyperparameters that were tuned for labels."""
    if hyperparameters is not None and (caution := likelihood_caution(hyperparameters, None)) is not None:
        reporter.warn(caution)
    if dataset.classes is not None:
        reporter.warn(
            f"'{dataset.target_names[0]}' is a label of the {len(dataset.classes)} classes "
            f"{quoted(dataset.classes)}; this regression uses their codes, 0 to {len(dataset.classes) - 1}, as "
            f"numbers. For classification, run dkgp classify"
        )
