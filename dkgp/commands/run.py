"""The course of every command that computes on a cluster; each command says in hooks what differs.

    check         options that do not go together, and places that need no data to be refused
    open          data, models and hyperparameters, each store once; what "auto" stands for is decided
    tell          what is odd about them, and what was decided
    finished      an earlier run of the same did it all: its record is returned
    refuse        whatever can be found wrong before any work
    work          on a cluster that is started for it
    conclude      save what came of it, and report

What commands that train a model share beyond that is in `dkgp/commands/training.py`.
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
        Its name.
    job
        What was asked for.
    dataset
        From `open` on.
    checkpointing
        From `refuse` on; None of a run that saves no checkpoints.
    """

    command: ClassVar[str]
    job: Any
    dataset: Dataset
    checkpointing: Checkpointing | None = None

    def __init__(self, job: Any, reporter: Reporter) -> None:
        self.job, self.reporter = job, reporter

    def run(self) -> Document:
        """Do what the job says; return the record.

        Raises
        ------
        InputError
            Anything that can be found wrong beforehand; nothing has been written.
        MemoryBudgetError
            The work does not fit.
        NumericalError
            Rounding is in the way of a factor.
        InterruptedRunError
            A signal asked for the end; what is done is in the checkpoint, where there is one.
        ClusterError
            No cluster, or one that was lost.
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
            # Worker processes are gone by now; the peak tells of them too.
            peak_bytes = memory.bytes
        return self.conclude(result, peak_bytes)

    # Hooks that are empty here (B027) are not abstract: most commands have nothing to add to one or another of them.

    @property
    def places(self) -> list[str]:
        """Places that no other run may write to meanwhile; files beside them are replaced whole."""
        return [self.job.out]

    @property
    def samples(self) -> int:
        """Samples by whose number the cluster "auto" is decided."""
        return self.dataset.n_samples

    def check(self) -> None:  # noqa: B027
        """Refuse what takes no data to be found wrong; `UsageError` or `InputError`."""

    @abstractmethod
    def open(self) -> None:
        """Open everything that the work takes, once; `InputError` where it is of no use."""

    def tell(self) -> None:  # noqa: B027
        """Tell what is odd about data and hyperparameters, and what they decided."""

    def finished(self) -> Document | None:
        """Return the record of an earlier run that is to be resumed, and was done; None where there is work left."""
        return None

    def refuse(self) -> None:  # noqa: B027
        """Check everything else that can be checked without computing; errors as of `run`."""

    def compiling(self) -> AbstractContextManager[None]:
        """Compile in the background, while the context is open, what the work takes."""
        return nullcontext()

    def refuse_on(self, executor: BlockExecutor) -> None:  # noqa: B027
        """Refuse what the cluster has no memory for, as far as that is known before any work."""

    @abstractmethod
    def work(self, executor: BlockExecutor) -> Any:
        """Compute, and return the result as `conclude` takes it; `MemoryBudgetError` beyond the budget."""

    @abstractmethod
    def conclude(self, result: Any, peak_bytes: int) -> Document:
        """Save the result, where it is not saved yet, and return the record."""

    def open_data(self) -> Dataset:
        """Open a regression's data; `InputError` where there is nothing to train on."""
        dataset = open_dataset(self.job.dataset)
        if dataset.n_targets == 0:
            raise InputError(f"'{dataset.url}' has no targets to train on; ingest the data again with --target")
        return dataset


def warn_of_labels(dataset: Dataset, hyperparameters: Hyperparameters | None, reporter: Reporter) -> None:
    """Say that a regression on labels is one on their codes, and so of hyperparameters that are of labels."""
    if hyperparameters is not None and (caution := likelihood_caution(hyperparameters, None)) is not None:
        reporter.warn(caution)
    if dataset.classes is not None:
        reporter.warn(
            f"'{dataset.target_names[0]}' is a label of the {len(dataset.classes)} classes "
            f"{quoted(dataset.classes)}; this regression takes their codes, 0 to {len(dataset.classes) - 1}, for "
            "numbers. To tell the classes apart, run dkgp classify"
        )
