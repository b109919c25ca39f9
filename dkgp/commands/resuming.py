"""Earlier runs: checkpoints to resume from, and unfinished models that may be replaced.

Checkpoints and models of other runs are never changed.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dkgp.cluster.arithmetic import process_arithmetic
from dkgp.codec import difference
from dkgp.commands.job_options import TrainingJob
from dkgp.commands.reporting.outputs import check_output_file
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import CheckpointStore, Dataset, is_committed, recognise
from dkgp.data.remote.storage import exists, is_local, join, read_object
from dkgp.errors import CheckpointError, InterruptedRunError
from dkgp.operators.product_error import OLD_NAME, renamed
from dkgp.solvers import Checkpointing
from dkgp.solvers.registry import resuming


def checkpointing_of(
    job: TrainingJob, identity: dict[str, Any], solver: dict[str, Any] | None, reporter: Reporter
) -> Checkpointing:
    """Check the path of a job's checkpoints; an existing checkpoint is resumed or replaced.

    Raises `CheckpointError`: the path contains data of another run. Raises `InputError`, `StorageError`: the path is
    not writable.

    Parameters
    ----------
    identity, solver : dict
        The settings of the run and of its solver, as checkpoints store them. If `solver` is None, `identity` contains
        all settings that determine the run, and a checkpoint may contain more.
    """
    url = job.checkpoint_url
    store = CheckpointStore(url)
    if is_local(url):
        check_output_file(Path(url) / "checkpoint", replace=True, option="`checkpoint`")
    checkpointing = Checkpointing(store, job.checkpoint_seconds, identity, job.resume)
    if not job.resume:
        if has_checkpoint(store):
            reporter.warn(
                f"the checkpoint in '{url}' is from an earlier run and will be replaced; to continue that run, give "
                f"`resume`"
            )
        return checkpointing
    latest = checkpointing.latest()
    if latest is None:
        reporter.warn(f"there is no checkpoint in '{url}' to resume; training starts from the beginning")
        return checkpointing
    for name in latest.skipped:
        reporter.warn(f"the checkpoint {name} in '{url}' is damaged; continuing from the one before it")
    if solver is None:
        held = dict(latest.metadata.get("identity") or {})
        compared = {*identity, OLD_NAME, "product_error"}
        _require_same(url, {name: value for name, value in held.items() if name in compared}, identity)
    else:
        for name, expected in {"identity": identity, "solver": solver}.items():
            _require_same(url, latest.metadata.get(name), expected)
    reporter.note(f"resuming after round {latest.metadata['state']['iteration']}")
    differences = process_arithmetic().differences(latest.metadata.get("arithmetic"))
    if differences is not None:
        reporter.warn(
            f"the checkpoint in '{url}' was written on a machine with different arithmetic ({differences}). The model "
            f"will meet its tolerance and its certificate will hold, but its last bits may differ"
        )
    return checkpointing


@contextmanager
def going_on(checkpointing: Checkpointing | None) -> Iterator[None]:
    """Add to the message of an interruption how to resume, if there is a checkpoint."""
    try:
        yield
    except InterruptedRunError as error:
        if checkpointing is None or not has_checkpoint(checkpointing.store):
            raise
        url = checkpointing.store.url
        kept = "" if error.checkpoint is not None else f"; the state is saved in {url}"
        raise InterruptedRunError(f"{error}{kept}. Continue with the same command and `resume`", url) from None


def remove_checkpoint(store: CheckpointStore) -> None:
    """Remove the checkpoints of a finished run."""
    store.clear()
    if is_local(store.url):
        # The folder is removed too, unless it contains other files.
        with contextlib.suppress(OSError):
            os.rmdir(store.url)


def bounded_products(store: CheckpointStore, summary: Mapping[str, Any] | None) -> bool | None:
    """Return whether "auto" chose bounded products in an earlier run, by its checkpoint or its model's summary.

    Return None if there is no such run, or if it had another choice.
    """
    latest = store.latest_metadata() if exists(store.url) else None
    begun = summary if latest is None else latest.get("identity")
    if not isinstance(begun, Mapping) or OLD_NAME in begun or begun.get("product_error", "auto") != "auto":
        return None
    return "product_error" in begun


def is_unfinished_model(url: str, dataset: Dataset, kind: str, model: Any | None) -> bool:
    """Return True if resuming may replace the model there: it is of these data, and unconverged or partly written.

    `model` is the model that was opened there; None if there is no complete model of this kind.
    """
    if model is None:
        return exists(url) and recognise(url) == kind and _was_begun(url, dataset)
    return bool(model.fingerprint == dataset.fingerprint and not model.summary.get("converged", True))


def has_checkpoint(store: CheckpointStore) -> bool:
    """Return True if there is a checkpoint, even a damaged one."""
    try:
        return exists(store.url) and store.load_latest() is not None
    except CheckpointError:
        return True


def _require_same(url: str, found: object, expected: dict[str, Any]) -> None:
    held = found if isinstance(found, dict) else {}
    if held.get(OLD_NAME) is not None:
        raise CheckpointError(
            f"the checkpoint in '{url}' is from an earlier version of dkgp, with `{OLD_NAME}` {held[OLD_NAME]!r}, "
            f"which "
            f"this version no longer has. The run cannot continue to the same result. Start again without `resume` "
            f"and with `product_error` {held[OLD_NAME]!r} for the same bound"
        )
    other = difference(renamed(held), expected)
    if other is not None:
        same = (
            f"the options that it was written with ({resuming(held)})"
            if "solver" in expected
            else ("the same data and options")
        )
        raise CheckpointError(
            f"the checkpoint in '{url}' belongs to another {other}. Resume with {same}, or start again without `resume`"
        )


def _was_begun(url: str, dataset: Dataset) -> bool:
    """Return True if the writing of a model of these data began there and did not end; it has no manifest yet."""
    if is_committed(url):
        return False  # finished and damaged later: the user must inspect it
    try:
        begun = json.loads(read_object(join(url, "zarr.json")))["attributes"]
    except FileNotFoundError:
        return True  # an object store with only the claim, which marks the place of a model
    except (ValueError, KeyError):
        return False
    return bool(begun.get("fingerprint") == dataset.fingerprint)
