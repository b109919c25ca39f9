"""A method of `dkgp classify`: what a job by it may say, and how it is checked, trained, drawn and warned about."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dkgp.cluster import BlockExecutor
from dkgp.commands.classify.job import ClassifyJob
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import ClassifierRecord, Dataset
from dkgp.models import Hyperparameters
from dkgp.models.classification.labels import Labels
from dkgp.operators.base import FloatArray
from dkgp.options import deciding_values
from dkgp.solvers import Checkpointing

__all__ = ["ClassifyMethod", "Opened", "Prepared"]


@dataclass(frozen=True)
class Opened:
    """A job's data and hyperparameters; None where these are to be found."""

    dataset: Dataset
    labels: Labels
    hyperparameters: Hyperparameters | None


@dataclass(frozen=True)
class Prepared(Opened):
    """Everything that could be checked without computing; `weights` are (n,), None where all count the same."""

    weights: FloatArray | None
    checkpointing: Checkpointing

    def begin(self, job: ClassifyJob) -> None:
        """Remove checkpoints of an earlier run, now that nothing can be refused any more."""
        if not job.resume:
            self.checkpointing.store.clear()


class ClassifyMethod(ABC):
    """One way to train a classifier.

    Attributes
    ----------
    name
        By which options say that they belong to it.
    compiles
        What of dkgp's compiled code it needs besides the kernel's; see `dkgp.models.warm_up.helped`.
    """

    name: str
    compiles: tuple[str, ...] = ()

    @abstractmethod
    def check(self, job: ClassifyJob) -> None:
        """Refuse what can be seen to be wrong without the data, of options that are its own; `InputError`."""

    @abstractmethod
    def check_data(self, job: ClassifyJob, opened: Opened, reporter: Reporter | None) -> None:
        """Refuse what does not go with the data, and tell what is odd; `InputError`."""

    def identity(self, job: ClassifyJob, opened: Opened) -> dict[str, Any]:
        """Return what determines the model beside data, hyperparameters and weights: options of the method."""
        return deciding_values(job, self.name, "settings")

    def takes_noise(self, job: ClassifyJob) -> bool:
        """True if the noise variance of the hyperparameters determines the model too."""
        return False

    @abstractmethod
    def train(
        self, job: ClassifyJob, prepared: Prepared, executor: BlockExecutor, reporter: Reporter
    ) -> ClassifierRecord:
        """Plan the memory, train, and return the model as it is to be stored.

        Raises
        ------
        MemoryBudgetError
            It is projected to take more than there is.
        InterruptedRunError
            A signal asked for the end.
        """

    @abstractmethod
    def draw(
        self, path: str, record: ClassifierRecord, history: Sequence[Mapping[str, Any]], title: str, job: ClassifyJob
    ) -> None:
        """Draw the course of the run into a file."""

    def warnings(self, summary: Mapping[str, Any], job: ClassifyJob) -> list[str]:
        """Return what a user must know of its models beside what is true of all."""
        return []
