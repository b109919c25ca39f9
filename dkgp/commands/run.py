"""A training run, as `dkgp train`, `sparse` and `classify` share it; each of them says in hooks what differs.

    open          data and hyperparameters, each store once; what "auto" stands for is decided
    tell          what is odd about them, and what was decided
    refuse        whatever can be found wrong before any work
    go on, begin  an earlier run's finished model, its checkpoint, or neither
    work          on a cluster that is started for it
    save          the model
    report        plot, warnings, record; checkpoints that served their turn go

A process may be killed at any moment, also between the last byte of its model and its end: the same command with
`--resume` then goes on as if it had not been.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dkgp.cluster import BlockExecutor, open_executor
from dkgp.commands.presets import announce_preset, preset_record, settled
from dkgp.commands.reporting.documents import Document
from dkgp.commands.reporting.memory import PeakMemory
from dkgp.commands.reporting.outputs import check_side_files
from dkgp.commands.reporting.progress import Reporter, announce
from dkgp.commands.resuming import going_on, has_checkpoint, is_unfinished_model, remove_checkpoint
from dkgp.data import CheckpointStore, Dataset, ensure_writable, open_dataset
from dkgp.data.stores.models.references import check_reference
from dkgp.data.types import quoted
from dkgp.errors import InputError
from dkgp.models import Hyperparameters, read_hyperparameters
from dkgp.models.hyperparameters import likelihood_caution
from dkgp.models.warm_up import helped
from dkgp.solvers import Checkpointing


@dataclass(frozen=True)
class Outcome:
    """A model as a run reports it, trained just now or read from its store; in plain JSON types but for the model."""

    model: Any
    summary: Mapping[str, Any]
    certificate: Mapping[str, Any] | None
    history: Sequence[Mapping[str, Any]]
    memory_plan: Document | None = None


class TrainingRun(ABC):
    """A run of one command, from its job to its record.

    Attributes
    ----------
    command
        Its name.
    kind
        Of the store that it writes.
    job
        With the paper's settings, where it asks for them.
    dataset, hyperparameters
        From `open` on; None where the hyperparameters are to be found from the data.
    checkpointing
        From `refuse` on; None of a run that saves no checkpoints.
    """

    command: ClassVar[str]
    kind: ClassVar[str]
    job: Any
    dataset: Dataset
    hyperparameters: Hyperparameters | None
    checkpointing: Checkpointing | None = None
    _overwrite = False

    def __init__(self, job: Any, reporter: Reporter) -> None:
        self.job, self.reporter = settled(self.command, job), reporter

    # ------------------------------------------------------------------------------------------------------ the course

    def run(self) -> Document:
        """Train and save; return the record, with `converged` false where what was asked for is not met.

        Where a run that is resumed had saved its model before it was killed, there is nothing left to do: its record
        is returned.

        Raises
        ------
        InputError
            Anything that can be found wrong beforehand; nothing has been written.
        NumericalError
            Rounding is in the way of a factor.
        InterruptedRunError
            A signal asked for the end; what is done is in the checkpoint, where there is one.
        ClusterError
            No cluster, or one that was lost.
        """
        with PeakMemory() as memory:
            self.check()
            announce_preset(self.command, self.job, self.reporter)
            self.open()
            self.tell()
            if self.job.resume and (document := self.finished(converged=True)) is not None:
                return document
            self.refuse()
            with (
                helped(None if self.hyperparameters is None else self.hyperparameters.kernel, self.compiles),
                open_executor(self.job.cluster, self.dataset.n_samples, self.reporter) as executor,
            ):
                announce(executor, self.reporter)
                with going_on(self.checkpointing):
                    trained = self.work(executor)
            # Worker processes are gone by now; the summary in the store tells of them too.
            measured = {"peak_memory_bytes": memory.bytes, **preset_record(self.command, self.job)}
        return self.report(self.save(trained, measured, overwrite=self._overwrite))

    def refuse(self) -> None:
        """Check everything that can be checked without computing; errors as of `run`."""
        job = self.job
        if getattr(job, "by_reference", False):
            check_reference(self.dataset.url)
        self._overwrite = job.overwrite or (job.resume and is_unfinished_model(job.out, self.dataset, self.kind))
        ensure_writable(job.out, self._overwrite, self.kind)
        check_side_files(job.plot, job.log_json, replace=job.overwrite or job.resume)
        self.prepare()
        self.checkpointing = self.checkpoints()

    @property
    def held_bytes(self) -> int:
        """Bytes of a checkpoint that was looked at, and waits for the work."""
        return 0 if self.checkpointing is None else self.checkpointing.held_bytes

    def begin(self) -> None:
        """Remove an earlier run's checkpoints, now that nothing can be refused any more."""
        if self.checkpointing is not None and not self.job.resume:
            self.checkpointing.store.clear()

    def finished(self, *, converged: bool = False) -> Document | None:
        """Return the record of the model at `job.out` where it is what this run would make; do what is left to do.

        For a run that ended between saving its model and saying so. None where the model is incomplete, or of other
        data, hyperparameters or settings; with `converged`, also where it misses what was asked for.
        """
        job = self.job
        try:
            model = self.stored()
            if converged and not model.summary["converged"]:
                return None
            other = self.difference(model, converged)
        except InputError:
            return None
        if other is not None:
            self.reporter.note(f"the model '{job.out}' is of a run with another {other}")
            return None
        self.reporter.note(f"the model '{job.out}' is done: it was complete when an earlier run ended")
        check_side_files(job.plot, None, replace=True)
        return self.report(Outcome(model, model.summary, model.certificate, model.history))

    def report(self, outcome: Outcome) -> Document:
        """End a run whose model is saved: draw the plot, describe it, warn, remove checkpoints that are done with."""
        job, checkpoints = self.job, CheckpointStore(self.job.checkpoint_url)
        if job.plot is not None:
            self.draw(outcome)
        kept = not outcome.summary["converged"] and has_checkpoint(checkpoints)
        if outcome.summary["converged"]:
            remove_checkpoint(checkpoints)
        for warning in self.warnings(outcome):
            self.reporter.warn(warning)
        return {
            "command": self.command,
            "out": job.out,
            "dataset": self.dataset.url,
            **self.described(outcome),
            "resumed": job.resume,
            "checkpoint": job.checkpoint_url if kept else None,
            "plot": job.plot,
            "log_json": job.log_json,
            "warnings": list(self.reporter.warnings),
        }

    # ------------------------------------------------------------------------------------------------ what differs

    # Hooks that are empty here (B027) are not abstract: most commands have nothing to add to one or another of them.

    @property
    def compiles(self) -> tuple[str, ...]:
        """Compiled code that it needs besides the kernel's; see `dkgp.models.warm_up.helped`."""
        return ()

    def check(self) -> None:  # noqa: B027
        """Refuse options that do not go together, which takes no data; `UsageError` or `InputError`."""

    def open(self) -> None:
        """Open a regression's data and hyperparameters; `InputError` where there is nothing to train on."""
        dataset, job = open_dataset(self.job.dataset), self.job
        if dataset.n_targets == 0:
            raise InputError(f"'{dataset.url}' has no targets to train on; ingest the data again with --target")
        self.dataset = dataset
        self.hyperparameters = read_hyperparameters(
            job.hyper, n_features=dataset.n_features, feature_names=dataset.feature_names
        )

    def tell(self) -> None:  # noqa: B027
        """Tell what is odd about data and hyperparameters, and what they decided."""

    def prepare(self) -> None:  # noqa: B027
        """Refuse what does not go with the data, and read what else the work begins with; `InputError`."""

    @abstractmethod
    def checkpoints(self) -> Checkpointing | None:
        """Return where the state is saved, once what is there is known to be this run's; None without checkpoints."""

    @abstractmethod
    def work(self, executor: BlockExecutor) -> Any:
        """Plan the memory, train, and return the model as `save` takes it; `MemoryBudgetError` beyond the budget."""

    @abstractmethod
    def save(self, trained: Any, measured: Mapping[str, Any], *, overwrite: bool) -> Outcome:
        """Write the model, with what was `measured` of the run in its summary."""

    @abstractmethod
    def stored(self) -> Any:
        """Open the model at `job.out`; `InputError` where it is none of this kind."""

    @abstractmethod
    def difference(self, model: Any, converged: bool) -> str | None:
        """Say in which name a stored model's run differs from this one; None where it is this run's."""

    @abstractmethod
    def draw(self, outcome: Outcome) -> None:
        """Draw the course of the run into the job's plot."""

    @abstractmethod
    def described(self, outcome: Outcome) -> Document:
        """Return the model's part of the record."""

    @abstractmethod
    def warnings(self, outcome: Outcome) -> list[str]:
        """Return what a user must know of the model, in words."""


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


def finished_run(run: type[TrainingRun], job: Any, reporter: Reporter) -> Document | None:
    """Return what `TrainingRun.finished` does of a job that nothing is known of yet; None where it cannot be run."""
    try:
        training = run(job, reporter)
        training.stored()  # quickly told, where there is no model at all
        training.open()
    except InputError:
        return None
    return training.finished()
