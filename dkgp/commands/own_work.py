"""A training job's inputs, memory and own work: what it opens, and what of an earlier run it may go on from or replace.

A process may be killed at any moment: while it writes its output, and between the last byte of that and its end. The
same command with `--resume` then goes on as if it had not been; what belongs to another run it leaves alone.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import psutil

from dkgp.cluster.arithmetic import own_arithmetic
from dkgp.commands.reporting.documents import plain
from dkgp.commands.reporting.memory import available_bytes
from dkgp.commands.reporting.outputs import check_output_file
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import (
    CheckpointStore,
    ClassifierRecord,
    Dataset,
    ModelRecord,
    is_committed,
    open_any_model,
    open_dataset,
    recognise,
)
from dkgp.data.remote.storage import exists, is_local, join, read_object
from dkgp.data.stores.model_store import MODEL_KIND
from dkgp.data.stores.sparse.sparse_store import SparseRecord
from dkgp.data.types import quoted
from dkgp.errors import CheckpointError, InputError, StoreError
from dkgp.models import Hyperparameters, read_hyperparameters
from dkgp.models.hyperparameters import likelihood_caution
from dkgp.models.sparse.start import start_from_sparse
from dkgp.models.sparse.stored import opened_sparse
from dkgp.operators.base import FloatArray
from dkgp.solvers import Checkpointing
from dkgp.solvers.registry import resuming

__all__ = [
    "CheckpointedJob",
    "LimitedJob",
    "TrainingJob",
    "checkpointing_of",
    "difference",
    "has_checkpoint",
    "is_unfinished_model",
    "memory_budget",
    "model_difference",
    "opened",
    "remove_checkpoint",
    "warm_start",
]


class LimitedJob(Protocol):
    """A job whose memory may be limited."""

    @property
    def memory_limit_bytes(self) -> int | None:
        """Memory for the processes on this machine; None for what is available."""


class CheckpointedJob(LimitedJob, Protocol):
    """A job that trains, and saves checkpoints."""

    @property
    def checkpoint_url(self) -> str:
        """The place of checkpoints."""

    @property
    def checkpoint_seconds(self) -> float:
        """Seconds from one to the next."""

    @property
    def resume(self) -> bool:
        """True to go on from what is there."""


class TrainingJob(CheckpointedJob, Protocol):
    """A job that trains with hyperparameters that are given."""

    @property
    def dataset(self) -> str:
        """Dataset store."""

    @property
    def hyper(self) -> str:
        """Hyperparameter file."""


def opened(job: TrainingJob) -> tuple[Dataset, Hyperparameters]:
    """Open a job's data and hyperparameters; `InputError` where there is nothing to train on."""
    dataset = open_dataset(job.dataset)
    if dataset.n_targets == 0:
        raise InputError(f"'{dataset.url}' has no targets to train on; ingest the data again with --target")
    found = read_hyperparameters(job.hyper, n_features=dataset.n_features, feature_names=dataset.feature_names)
    return dataset, found


def warn_of_labels(dataset: Dataset, found: Hyperparameters | None, reporter: Reporter) -> None:
    """Say that a regression on labels is one on their codes, and so of hyperparameters that are of labels."""
    if found is not None and (caution := likelihood_caution(found, None)) is not None:
        reporter.warn(caution)
    if dataset.classes is not None:
        reporter.warn(
            f"'{dataset.target_names[0]}' is a label of the {len(dataset.classes)} classes "
            f"{quoted(dataset.classes)}; this regression takes their codes, 0 to {len(dataset.classes) - 1}, for "
            "numbers. To tell the classes apart, run dkgp classify"
        )


def memory_budget(job: LimitedJob) -> tuple[int, int]:
    """Bytes that this process holds, and what the processes on this machine may take."""
    resident_bytes = int(psutil.Process().memory_info().rss)
    return resident_bytes, job.memory_limit_bytes or resident_bytes + available_bytes()


def checkpointing_of(
    job: CheckpointedJob, identity: dict[str, Any], solver: dict[str, Any] | None, reporter: Reporter
) -> Checkpointing:
    """Check the place of a job's checkpoints, and what is there: one to go on from, or one to be replaced.

    Parameters
    ----------
    identity, solver : dict
        The run's and its solver's settings, as checkpoints hold them; without the latter, what determines the run is
        in the former, and a checkpoint may hold more.

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
    if solver is None:
        held = dict(latest.metadata.get("identity") or {})
        _require_same(url, {name: value for name, value in held.items() if name in identity}, identity)
    else:
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


def difference(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """Say in which name two runs differ first; None where they are the same. A name that one lacks counts, too."""
    expected = plain(wanted)
    for name in {**expected, **held}:
        if held.get(name) != expected.get(name):
            if name == "fingerprint":
                return "data set"
            what = name.replace("_", " ")
            return f"{what} (its {what}: {held.get(name)!r}; this run's: {expected.get(name)!r})"
    return None


def model_difference(
    model: ModelRecord, identity: Mapping[str, Any], settings: Mapping[str, Any], by_reference: bool
) -> str | None:
    """Say what a model has otherwise than the run that would make it; None where it is that run's.

    Parameters
    ----------
    identity : dict
        The run's, as checkpoints hold it (`run_identity`).
    settings : dict
        Its solver's.
    by_reference : bool
        Whether it would leave the inputs where they are.
    """
    held = {"fingerprint": model.fingerprint, "kernel": model.kernel, "noise_variance": model.noise_variance}
    held |= {"tree_error": model.summary["tree_error"]} if "tree_error" in model.summary else {}
    wanted = {**identity, **settings, "by_reference": by_reference}
    return difference({**held, **model.summary.get("settings", {}), "by_reference": model.by_reference}, wanted)


def is_unfinished_model(url: str, dataset: Dataset, kind: str = MODEL_KIND) -> bool:
    """True if a model of these data is there that resuming may replace: it stopped short, or its writing did."""
    if not exists(url) or recognise(url) != kind:
        return False
    try:
        model = open_any_model(url)
    except StoreError:
        return _was_begun(url, dataset)
    return model.fingerprint == dataset.fingerprint and not model.summary.get("converged", True)


def warm_start(
    url: str, dataset: Dataset, found: Hyperparameters, identity: Mapping[str, Any], reporter: Reporter
) -> tuple[FloatArray | None, FloatArray | None]:
    """Coefficients to start from, and their gradient where the model knows it: finding it takes a float64 product.

    None for a sparse model that the solve would take longer from than from zero; the reporter is told.

    Raises `InputError` where the model is of other samples, or a classifier.
    """
    model = open_any_model(url)
    if isinstance(model, ClassifierRecord):
        raise InputError(
            f"'{url}' is a classifier, whose coefficients are no regression's; a warm start needs a model of the same "
            "targets. Leave --warm-start out, or name such a model"
        )
    if model.fingerprint != dataset.fingerprint:
        raise InputError(
            f"the model '{url}' was trained on other data than '{dataset.url}'; a warm start needs a model of the same "
            "samples. Leave --warm-start out, or name such a model"
        )
    held = {"fingerprint": model.fingerprint, "kernel": model.kernel, "noise_variance": model.noise_variance}
    own = {name: identity[name] for name in held}
    if isinstance(model, SparseRecord):
        if difference(held, own) is not None:
            reporter.warn(
                f"the sparse model '{url}' has other hyperparameters than this run: its residual says nothing of the "
                "solution, and the solve starts from zero. Choose a sparse model of the same ones, or an exact model"
            )
            return None, None
        return _sparse_start(model, dataset, found, reporter), None
    state = model.training_state() if difference(held, identity) is None else None
    return model.alpha, None if state is None else state[1]


def _sparse_start(
    record: SparseRecord, dataset: Dataset, found: Hyperparameters, reporter: Reporter
) -> FloatArray | None:
    """A sparse model's residual over the noise, where it pays."""
    start = start_from_sparse(dataset, opened_sparse(record), found.kernel, found.noise_variance)
    shares = ", ".join(f"{100.0 * share:.3g} %" for share in start.share)
    told = (
        f"the residual of {record.basis_size:,} basis samples leaves {shares} of the way from zero to the solution's "
        f"objective, by {start.rows:,} rows of a product"
    )
    if start.alpha is None:
        reporter.note(f"the sparse model is no start: {told}; the solve starts from zero, and saves its product")
    else:
        reporter.note(f"the solve starts from the sparse model, which takes one product in float64: {told}")
    return start.alpha


def has_checkpoint(store: CheckpointStore) -> bool:
    """True if there is a checkpoint, a damaged one included."""
    try:
        return exists(store.url) and store.load_latest() is not None
    except CheckpointError:
        return True


def _require_same(url: str, found: object, expected: dict[str, Any]) -> None:
    held = found if isinstance(found, dict) else {}
    other = difference(held, expected)
    if other is not None:
        same = f"what it was written with ({resuming(held)})" if "solver" in expected else "the same data and options"
        raise CheckpointError(
            f"the checkpoint in '{url}' belongs to another {other}. Resume with {same}, or start afresh without "
            "--resume"
        )


def _was_begun(url: str, dataset: Dataset) -> bool:
    """True if the writing of a model of these data began there and did not end; no manifest is there yet."""
    if is_committed(url):
        return False  # finished, and damaged since: that is for the user to look at
    try:
        begun = json.loads(read_object(join(url, "zarr.json")))["attributes"]
    except FileNotFoundError:
        return True  # on an object store, the claim alone, which says that it is a model's place
    except (ValueError, KeyError):
        return False
    return bool(begun.get("fingerprint") == dataset.fingerprint)
