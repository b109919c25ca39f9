"""Recovery of a job's attempt from the files of earlier attempts of the same job.

Before a job runs for the first time, the runner notes which files lie at the job's outputs. Files that have changed
since is the job's work. Later attempts go on with it where it is unfinished. Where it is complete (the process died
after finishing its output, before it recorded that) it counts as done and is not made again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dkgp.commands.recipe import recipe_of
from dkgp.commands.reporting.outputs import Document
from dkgp.data import CheckpointStore, PredictionWriter, recognise
from dkgp.data.remote.storage import (
    TEMPORARY_PREFIX,
    filesystem,
    list_object_bytes,
    remove_tree,
    write_object,
)
from dkgp.data.stores.prediction_store import VARIABLES
from dkgp.errors import CheckpointError, DkgpError, StoreError

if TYPE_CHECKING:
    from dkgp.commands.classify import ClassifyJob
    from dkgp.commands.predict.job import PredictJob
    from dkgp.commands.reporting.progress import Reporter
    from dkgp.commands.sparse import SparseJob
    from dkgp.commands.train import TrainJob
    from dkgp.commands.tune import TuneJob
    from dkgp.service.specification import Job

T = TypeVar("T", "TrainJob", "SparseJob", "ClassifyJob")

# Facts that tell versions of an object apart, under the names that the file systems give them.
_TELLING = ("ino", "mtime", "size", "ETag", "etag", "LastModified", "last_modified", "updated", "generation")

# Entries of the store of a model, a sparse model, a classifier or a prediction.
_STORE_NAMES = {
    *("zarr.json", "dkgp-manifest.json", "dkgp-claim.json", "regions", "class_name"),
    *("alpha", "inputs", "indices", "intercept", "ones", "curvature"),
    *("prototypes", "weights", "lower", "normal", "kernel_lower", "posterior_lower"),
    *VARIABLES,
}


class Traces:
    """Traces at a job's outputs, from before its first attempt and before the attempts since it was last resumed.

    The job has its options as they were submitted; `generation` counts how often the user has resumed it.
    """

    def __init__(self, folder: Path, job: Any, generation: int) -> None:
        self._path = folder / "traces.json"
        now = {url: _content(url) for url in _places(job)}
        noted = self._noted()
        if noted is None or noted["generation"] != generation:
            noted = {"generation": generation, "first": now if noted is None else noted["first"], "latest": now}
            write_object(self._path, json.dumps(noted).encode())
        self._first, self._latest, self._now = noted["first"], noted["latest"], now

    def made_by_job(self, url: str) -> bool:
        """True if something is there that some attempt of this job made."""
        return self._changed_since(self._first, url)

    def is_new(self, url: str) -> bool:
        """True if something is there that was made since the user last submitted or resumed the job."""
        return self._changed_since(self._latest, url)

    def _changed_since(self, before: Mapping[str, dict[str, str]], url: str) -> bool:
        now = self._now[url]
        return bool(now) and not (before.get(url, {}).items() & now.items())

    def is_free(self, url: str) -> bool:
        """True if nothing is there that is not this job's."""
        return not self._now[url] or self.made_by_job(url)

    def _noted(self) -> Any:
        try:
            return json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return None


def keep_document(folder: Path, generation: int, document: Document) -> None:
    """Write the job's document to a file, before it is recorded in the queue."""
    with contextlib.suppress(DkgpError):
        write_object(folder / "document.json", json.dumps({"generation": generation, "document": document}).encode())


def kept_document(folder: Path, generation: int) -> Document | None:
    """Return the document of an earlier attempt that was done, but could not record it any more."""
    try:
        record = json.loads((folder / "document.json").read_bytes())
    except (OSError, ValueError):
        return None
    if record["generation"] != generation:
        return None
    document: Document = record["document"]
    return document


def going_on(job: Any, traces: Traces, reporter: Reporter) -> Job | Document:
    """Return the job as an attempt after the first has to run it, or the document of one that was done already."""
    return _GOING_ON.get(recipe_of(job).name, _by_own_files)(job, traces, reporter)


def _trained(job: T, traces: Traces, reporter: Reporter) -> T | Document:
    """A training run: returns the document of a finished one, else resumes from a whole checkpoint."""
    if traces.is_new(job.out):
        document = recipe_of(job).finished(job, reporter)
        if document is not None:
            return document
    _clear(job.out, traces, reporter)
    resume = job.resume or (
        traces.made_by_job(job.checkpoint_url) and _has_whole_checkpoint(job.checkpoint_url, reporter)
    )
    return replace(job, resume=resume, overwrite=_may_replace(job, traces))


def _tune(job: TuneJob, traces: Traces, reporter: Reporter) -> Job | Document:
    # A file that is the job's own and whole counts as done; one that an interruption left is made again, from the
    # checkpoint of a search on all samples where that is the job's own too.
    begun = job.checkpoint_url is not None and traces.made_by_job(job.checkpoint_url)
    resume = job.resume or traces.is_new(job.out) or begun
    return replace(job, resume=resume, overwrite=_may_replace(job, traces))


def _predict(job: PredictJob, traces: Traces, reporter: Reporter) -> Job | Document:
    _clear(job.store_url, traces, reporter)
    # The output itself is the job's own where it has taken an earlier one's place, whole.
    stores = [job.store_url] if job.is_table else [job.store_url, job.out]
    if any(traces.made_by_job(store) and _can_be_resumed(store) for store in stores):
        return replace(job, resume=True)
    if traces.made_by_job(job.store_url) or traces.made_by_job(job.out):
        return replace(job, overwrite=True)
    return job


def _by_own_files(job: Any, traces: Traces, reporter: Reporter) -> Job | Document:
    """A job of another command: resumes from its own store or record, where it can, else starts over."""
    begun = recipe_of(job).resumes and traces.made_by_job(getattr(job, "store_url", job.out))
    return replace(job, overwrite=_may_replace(job, traces), **({"resume": True} if begun else {}))


_GOING_ON: dict[str, Callable[[Any, Traces, Reporter], Job | Document]] = {
    "train": _trained,
    "sparse": _trained,
    "classify": _trained,
    "krige fit": _trained,
    "tune": _tune,
    "predict": _predict,
}


def _may_replace(job: Any, traces: Traces) -> bool:
    """True if the job may replace its outputs: the user allowed it, or the job itself wrote them."""
    outputs = [getattr(job, name, None) for name in ("out", "plot", "log_json")]
    return bool(job.overwrite) or all(traces.is_free(url) for url in outputs if url is not None)


def _has_whole_checkpoint(url: str, reporter: Reporter) -> bool:
    from dkgp.operators.product_error import OLD_NAME

    try:
        latest = CheckpointStore(url).load_latest()
    except CheckpointError as error:
        reporter.warn(f"{error} Training starts from the beginning")
        return False
    if latest is not None and (latest.metadata.get("identity") or {}).get(OLD_NAME) is not None:
        reporter.warn(
            f"the checkpoint in '{url}' is from an earlier version with a kind of products that no longer exists. "
            f"Training starts from the beginning"
        )
        return False
    return latest is not None


def _can_be_resumed(url: str) -> bool:
    """True if the prediction store is complete enough to resume, and not of a retired kind of products."""
    from dkgp.operators.product_error import OLD_NAME

    try:
        writer = PredictionWriter.begun(url)
    except StoreError:
        return False
    return writer is not None and OLD_NAME not in writer.attributes


def _clear(url: str, traces: Traces, reporter: Reporter) -> None:
    """Remove parts of a store that this job had begun to write, or to replace, when its process died.

    Such a place is no store yet, or no longer one, and would be taken for somebody's own folder. Where anything lies
    in it that no store has, it is left alone.
    """
    if not traces.made_by_job(url) or recognise(url) is not None:
        return
    names = {name.split("/")[0] for name in list_object_bytes(url)}
    if names and all(name in _STORE_NAMES or name.startswith(TEMPORARY_PREFIX) for name in names):
        reporter.note(f"removing the unfinished output of an earlier attempt at '{url}'")
        remove_tree(url)


def _places(job: Any) -> list[str]:
    names = ("out", "store_url", "checkpoint_url", "plot", "log_json")
    return [place for name in names if (place := getattr(job, name, None)) is not None]


def _content(url: str) -> dict[str, str]:
    """Versions of the objects at a place, by name; of a store only that of its first object."""
    file_system, path = filesystem(url)
    file_system.invalidate_cache()
    if not file_system.exists(path):
        return {}
    if file_system.isfile(path):
        return {".": _version(file_system.info(path))}
    children = file_system.ls(path, detail=True)
    entries = {entry["name"].rsplit("/", 1)[-1]: _version(entry) for entry in children if entry["type"] == "file"}
    return {"zarr.json": entries["zarr.json"]} if "zarr.json" in entries else entries or {"": "folder"}


def _version(entry: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={entry[name]}" for name in _TELLING if entry.get(name) is not None)
