"""A training run, which `dkgp train`, `sparse` and `classify` share: checkpoints, model, plot and record.

A process may be killed at any moment, even after it has written its model and before it ends. The same command with
`--resume` then continues as if the process had not been killed.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dkgp.commands.presets import announce_preset, preset_record, settled
from dkgp.commands.reporting.outputs import Document, RecordLog, check_side_files, plain
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.resuming import bounded_products, has_checkpoint, is_unfinished_model, remove_checkpoint
from dkgp.commands.run import Run
from dkgp.data import CheckpointStore, ensure_writable
from dkgp.data.stores.models.references import check_reference
from dkgp.errors import InputError
from dkgp.models import Hyperparameters, read_hyperparameters
from dkgp.models.warm_up import BOUNDED_PRODUCTS, helped
from dkgp.operators.product_error import AUTO, EVERY_ENTRY, ProductError
from dkgp.solvers import Checkpointing


@dataclass(frozen=True)
class Outcome:
    """A trained or stored model with its results for the report; all but the model are plain JSON types."""

    model: Any
    summary: Mapping[str, Any]
    certificate: Mapping[str, Any] | None
    history: Sequence[Mapping[str, Any]]
    memory_plan: Document | None = None


class TrainingRun(Run):
    """A run that trains a model and saves it.

    A model that misses the requested accuracy is saved too, with `converged` false in its record. If a resumed run
    had saved its model before it was killed, no work remains and its record is returned.

    Attributes
    ----------
    record
        The kind of model that the run writes: a dataclass of `dkgp.data.stores.models`.
    job
        The job, with the paper's settings if it asks for them.
    product_error : ProductError
        Allowed error of products. With "auto", all entries are evaluated if other products exceed the memory.
    hyperparameters
        Set by `open`; None if they are estimated from the data.
    """

    record: ClassVar[type[Any]]
    knows_noise_models: ClassVar[bool] = False
    hyperparameters: Hyperparameters | None
    _overwrite = False
    _earlier: Any | None = None  # the model at `job.out`, in a resumed run

    def __init__(self, job: Any, reporter: Reporter) -> None:
        super().__init__(settled(self.command, job), reporter)
        self.product_error = ProductError.of(self.job.product_error)

    # ------------------------------------------------------------------------------------------------------- stages

    @property
    def places(self) -> list[str]:
        """The paths of the model and of its checkpoints."""
        return [*super().places, self.job.checkpoint_url]

    def check(self) -> None:
        """Report the settings that come from a paper."""
        announce_preset(self.command, self.job, self.reporter)

    def open(self) -> None:
        """Open data and hyperparameters."""
        self.dataset = self.open_data()
        self.hyperparameters = self.read_hyperparameters(self.job.hyper)

    def keep_to_products(self) -> None:
        """With "auto", continue with the kind of products of the run to resume.

        Runs of earlier versions evaluated all entries, and versions differ in their forecasts.
        """
        kernel = None if self.hyperparameters is None else self.hyperparameters.kernel
        if not self.job.resume or self.product_error != AUTO or kernel is None:
            return
        summary = None
        if not self.job.overwrite:
            with contextlib.suppress(InputError):
                model = self.stored()
                summary = model.summary if model.fingerprint == self.dataset.fingerprint else None
        bounded = bounded_products(CheckpointStore(self.job.checkpoint_url), summary)
        if bounded is None or bounded == self.product_error.bounds(kernel, self.dataset.n_samples):
            return
        self.product_error = ProductError("auto", began=True) if bounded else EVERY_ENTRY
        kind = "are within a bound" if bounded else "evaluate every kernel entry"
        self.reporter.note(f"products {kind}, as they {'were' if bounded else 'did'} when the run began")

    def read_hyperparameters(self, location: str) -> Hyperparameters:
        """Read hyperparameters for these data; `InputError` if they belong to other data."""
        d, names = self.dataset.n_features, self.dataset.feature_names
        found = read_hyperparameters(location, n_features=d, feature_names=names)
        if (found.noise_model or found.student_t) is not None and not self.knows_noise_models:
            what = "the noise model" if found.student_t is None else "Student's t"
            self.reporter.warn(
                f"dkgp {self.command} assumes normal noise with the same variance everywhere and uses the mean "
                f"variance. {what} in '{location}' is for dkgp train"
            )
        return found

    def finished(self) -> Document | None:
        """Return the record of the model at `job.out` if a resumed run had saved it."""
        if not self.job.resume:
            return None
        try:
            self._earlier = self.stored()
        except InputError:
            return None
        return self.done(self._earlier, converged=True)

    def refuse(self) -> None:
        """Refuse unsuitable outputs, data and settings; read the checkpoint."""
        job = self.job
        if getattr(job, "by_reference", False):
            check_reference(self.dataset.url)
        unfinished = job.resume and is_unfinished_model(job.out, self.dataset, self.record.kind, self._earlier)
        self._overwrite = job.overwrite or unfinished
        ensure_writable(job.out, self._overwrite, self.record.kind)
        check_side_files(job.plot, job.log_json, replace=job.overwrite or job.resume)
        self.prepare()
        self.checkpointing = self.checkpoints()

    def compiling(self) -> AbstractContextManager[None]:
        """Compile the code of the kernel and of the method."""
        kernel = None if self.hyperparameters is None else self.hyperparameters.kernel
        bounded = kernel is not None and self.product_error.bounds(kernel, self.dataset.n_samples)
        return helped(kernel, (*self.compiles, *((BOUNDED_PRODUCTS,) if bounded else ())))

    def conclude(self, result: Any, peak_bytes: int) -> Document:
        """Save the model, and report."""
        measured = {"peak_memory_bytes": peak_bytes, **preset_record(self.command, self.job)}
        return self.report(self.save(result, measured, overwrite=self._overwrite))

    @property
    def held_bytes(self) -> int:
        """Bytes of a checkpoint that was read before the work."""
        return 0 if self.checkpointing is None else self.checkpointing.held_bytes

    def begin(self) -> None:
        """Remove an earlier run's checkpoints once all checks have passed."""
        if self.checkpointing is not None and not self.job.resume:
            self.checkpointing.store.clear()

    def done(self, model: Any, *, converged: bool = False) -> Document | None:
        """Return the record of a stored model if this run would compute the same one; complete its missing outputs.

        This serves a run that was killed after it saved its model and before it reported. Return None if the model is
        incomplete or has other data, hyperparameters or settings. With `converged`, also return None if the model
        misses the requested accuracy.
        """
        job = self.job
        try:
            if converged and not model.summary["converged"]:
                return None
            other = self.difference(model, converged)
        except InputError:
            return None
        if other is not None:
            self.reporter.note(f"the model '{job.out}' is from a run with another {other}")
            return None
        self.reporter.note(f"the model '{job.out}' is already complete: an earlier run finished it")
        check_side_files(job.plot, job.log_json, replace=True)
        if job.log_json is not None and not Path(job.log_json).exists():
            with RecordLog(job.log_json) as log:
                for index, record in enumerate(model.history):
                    log.write({"iteration": record.get("round", index), **record})
        return self.report(Outcome(model, model.summary, model.certificate, model.history))

    def report(self, outcome: Outcome) -> Document:
        """Finish a run whose model is saved: write the other outputs, plot, warn, and remove old checkpoints."""
        job, checkpoints = self.job, CheckpointStore(self.job.checkpoint_url)
        self.finish_beside()
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

    # -------------------------------------------------------------------------------- hooks of each kind of model

    @property
    def compiles(self) -> tuple[str, ...]:
        """Compiled code that the method needs besides the kernel's; see `dkgp.models.warm_up.helped`."""
        return ()

    def prepare(self) -> None:
        """Refuse settings that contradict the data, and read the other inputs of the work; `InputError`."""

    @abstractmethod
    def checkpoints(self) -> Checkpointing | None:
        """Return the checkpoints after a check that they belong to this run; None for a run without checkpoints."""

    @abstractmethod
    def save(self, trained: Any, measured: Mapping[str, Any], *, overwrite: bool) -> Outcome:
        """Write the model; its summary includes the `measured` values of the run."""

    def finish_beside(self) -> None:
        """Write the outputs beside the model unless an earlier run did; the model is complete without them."""

    @classmethod
    def earlier(cls, job: Any, reporter: Reporter) -> Document | None:
        """Return `done` of a new run of a job; None if the job cannot be run."""
        try:
            training = cls(job, reporter)
            model = training.stored()  # fast if there is no model
            training.open()
        except InputError:
            return None
        return training.done(model)

    def stored(self) -> Any:
        """Open the model at `job.out`; `InputError` if it is of another kind."""
        return self.record.open(self.job.out)

    @abstractmethod
    def difference(self, model: Any, converged: bool) -> str | None:
        """Return the name of a setting in which a stored model's run differs from this one; None if none differs."""

    @abstractmethod
    def draw(self, outcome: Outcome) -> None:
        """Plot the progress of the run to the job's plot file."""

    def described(self, outcome: Outcome) -> Document:
        """Return the model's part of the record."""
        described = {"certificate": plain(outcome.certificate), "memory_plan": outcome.memory_plan}
        return {**plain(outcome.summary), **described}

    def warnings(self, outcome: Outcome) -> list[str]:
        """Return warnings about the model; by default, the reason why the solve stopped early."""
        summary = outcome.summary
        return [] if summary["converged"] else [f"not converged: {summary['reason']}; {summary['advice']}"]
