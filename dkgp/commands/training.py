"""Preparations that commands share which train a model: inputs opened, memory counted, checkpoints looked at."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Protocol

import psutil

from dkgp.cluster.arithmetic import own_arithmetic
from dkgp.commands.own_work import difference
from dkgp.commands.reporting.memory import available_bytes
from dkgp.commands.reporting.outputs import check_output_file
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import CheckpointStore, Dataset, open_dataset
from dkgp.data.remote.storage import exists, is_local
from dkgp.errors import CheckpointError, InputError
from dkgp.models import Hyperparameters, read_hyperparameters
from dkgp.solvers import Checkpointing
from dkgp.solvers.registry import resuming

__all__ = ["TrainingJob", "checkpointing_of", "has_checkpoint", "memory_budget", "opened", "remove_checkpoint"]


class TrainingJob(Protocol):
    """A job that trains with hyperparameters that are given, and saves checkpoints."""

    @property
    def dataset(self) -> str:
        """Dataset store."""

    @property
    def hyper(self) -> str:
        """Hyperparameter file."""

    @property
    def memory_limit_bytes(self) -> int | None:
        """What the processes on this machine may take; None for what is available."""

    @property
    def checkpoint_url(self) -> str:
        """The place of checkpoints."""

    @property
    def checkpoint_seconds(self) -> float:
        """How often they are saved."""

    @property
    def resume(self) -> bool:
        """True to go on from what is there."""


def opened(job: TrainingJob) -> tuple[Dataset, Hyperparameters]:
    """Open a job's data and hyperparameters; `InputError` where there is nothing to train on."""
    dataset = open_dataset(job.dataset)
    if dataset.n_targets == 0:
        raise InputError(f"'{dataset.url}' has no targets to train on; ingest the data again with --target")
    found = read_hyperparameters(job.hyper, n_features=dataset.n_features, feature_names=dataset.feature_names)
    return dataset, found


def memory_budget(job: TrainingJob) -> tuple[int, int]:
    """Bytes that this process holds, and what the processes on this machine may take."""
    resident_bytes = int(psutil.Process().memory_info().rss)
    return resident_bytes, job.memory_limit_bytes or resident_bytes + available_bytes()


def checkpointing_of(
    job: TrainingJob, identity: dict[str, Any], solver: dict[str, Any], reporter: Reporter
) -> Checkpointing:
    """Check the place of a job's checkpoints, and what is there: one to go on from, or one to be replaced.

    Parameters
    ----------
    identity, solver : dict
        The run's and its solver's settings, as checkpoints hold them.

    Raises
    ------
    CheckpointError
        What is there belongs to another run.
    InputError, StorageError
        The place cannot be written to.
    """
    url = job.checkpoint_url
    store = CheckpointStore(url)
    if is_local(url):
        check_output_file(Path(url) / "checkpoint", replace=True, option="--checkpoint")
    checkpointing = Checkpointing(store, job.checkpoint_seconds, identity, job.resume)
    if not job.resume:
        if has_checkpoint(store):
            reporter.warn(
                f"the checkpoint in '{url}' is of an earlier run and will be replaced; --resume would go on from it"
            )
        return checkpointing
    latest = checkpointing.latest()
    if latest is None:
        reporter.warn(f"there is no checkpoint in '{url}' to resume; training starts from the beginning")
        return checkpointing
    for name in latest.skipped:
        reporter.warn(f"the checkpoint {name} in '{url}' is damaged; going on from the one before it")
    for name, expected in {"identity": identity, "solver": solver}.items():
        _require_same(url, latest.metadata.get(name), expected)
    reporter.note(f"resuming after round {latest.metadata['state']['iteration']}")
    differences = own_arithmetic().differences(latest.metadata.get("arithmetic"))
    if differences is not None:
        reporter.warn(
            f"the checkpoint in '{url}' was written where the arithmetic is another ({differences}): the model will "
            "meet its tolerance and its certificate will hold, but its last bits may differ from those of a run that "
            "had stayed there"
        )
    return checkpointing


def remove_checkpoint(store: CheckpointStore) -> None:
    """Remove the checkpoints of a run that is done."""
    store.clear()
    if is_local(store.url):
        # The folder goes too, unless something else lies in it.
        with contextlib.suppress(OSError):
            os.rmdir(store.url)


def _require_same(url: str, found: object, expected: dict[str, Any]) -> None:
    held = found if isinstance(found, dict) else {}
    other = difference(held, expected)
    if other is not None:
        same = f"what it was written with ({resuming(held)})" if "solver" in expected else "the same data and options"
        raise CheckpointError(
            f"the checkpoint in '{url}' belongs to another {other}. Resume with {same}, or start afresh without "
            "--resume"
        )


def has_checkpoint(store: CheckpointStore) -> bool:
    """True if there is a checkpoint, a damaged one included."""
    try:
        return exists(store.url) and store.load_latest() is not None
    except CheckpointError:
        return True
