"""Training of a classifier as a command: checked and planned beforehand, resumed, saved, and told in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dkgp.cluster import open_executor
from dkgp.commands.classify.job import ClassifyJob
from dkgp.commands.classify.method import Opened, Prepared
from dkgp.commands.classify.methods import check_job, method_of
from dkgp.commands.own_work import (
    checkpointing_of,
    difference,
    has_checkpoint,
    is_unfinished_model,
    remove_checkpoint,
)
from dkgp.commands.presets import announce_preset, preset_record, settled
from dkgp.commands.reporting.documents import Document, plain
from dkgp.commands.reporting.memory import PeakMemory
from dkgp.commands.reporting.outputs import check_side_files
from dkgp.commands.reporting.progress import Reporter, announce
from dkgp.commands.solving import going_on
from dkgp.data import CheckpointStore, ClassifierRecord, ensure_writable, open_classifier, open_dataset
from dkgp.data import save_classifier as save
from dkgp.data.stores.classifier.classifier_store import CLASSIFIER_KIND
from dkgp.data.stores.references import check_reference
from dkgp.errors import InputError
from dkgp.kernels import fold_white
from dkgp.models import read_hyperparameters
from dkgp.models.classification.labels import label_weights, labels_of
from dkgp.models.warm_up import helped
from dkgp.solvers import Checkpointing

__all__ = ["finished_classify", "run_classify"]

# Of the samples of all classes together: where the rarest has less, an error rate alone says little.
RARE = 0.2


def run_classify(job: ClassifyJob, reporter: Reporter) -> Document:
    """Train and save; return the record, with `converged` false where an exact one's solve stopped short.

    Where a run that is resumed had saved its model before it was killed, there is nothing left to do: its record is
    returned.

    Raises
    ------
    InputError
        Anything that can be found wrong beforehand; nothing has been written.
    NumericalError
        Prototypes that rounding cannot tell apart.
    InterruptedRunError
        A signal asked for the end; what is done is in the checkpoint.
    ClusterError
        No cluster, or one that was lost.
    """
    with PeakMemory() as memory:
        job = settled("classify", job)
        check_job(job)
        announce_preset("classify", job, reporter)
        opened = _opened(job)
        if job.resume:
            finished = _finished(job, reporter, opened, converged=True)
            if finished is not None:
                return finished
        prepared, overwrite = _prepare(job, opened, reporter)
        found = opened.hyperparameters
        with (
            helped(None if found is None else found.kernel, method_of(job).compiles),
            open_executor(job.cluster, opened.dataset.n_samples, reporter) as executor,
        ):
            announce(executor, reporter)
            with going_on(prepared.checkpointing.store):
                record = method_of(job).train(job, prepared, executor, reporter)
        # Worker processes are gone by now; the summary in the store tells of them too.
        record.summary.update({"peak_memory_bytes": memory.bytes, "asked": _asked(job, opened)})
        record.summary.update(preset_record("classify", job))
    dataset = opened.dataset
    save(job.out, record, dataset=dataset, by_reference=job.by_reference, overwrite=overwrite)
    return _conclude(job, dataset.url, record, reporter)


def finished_classify(job: ClassifyJob, reporter: Reporter, *, converged: bool = False) -> Document | None:
    """Return the record of the model at `job.out` where it is what the job would make; do what is left to do.

    For a run that ended between saving its model and saying so. None where the model is incomplete, or of other data,
    hyperparameters or settings; with `converged`, also where its solve stopped short.
    """
    try:
        job = settled("classify", job)
        opened = _opened(job)
    except InputError:
        return None
    return _finished(job, reporter, opened, converged=converged)


def _opened(job: ClassifyJob) -> Opened:
    """Open a job's data and hyperparameters; `InputError` where there is nothing to tell apart."""
    dataset = open_dataset(job.dataset)
    labels = labels_of(dataset)
    if job.hyper is None:
        return Opened(dataset, labels, None)
    found = read_hyperparameters(job.hyper, n_features=dataset.n_features, feature_names=dataset.feature_names)
    return Opened(dataset, labels, found)


def _asked(job: ClassifyJob, opened: Opened) -> dict[str, Any]:
    """Everything that determines the model."""
    found = opened.hyperparameters
    given: dict[str, Any] = {"kernel": None, "noise_variance": None}
    if found is not None:
        kernel, noise = fold_white(found.kernel, found.noise_variance)
        given = {"kernel": kernel.to_json()}
        given["noise_variance"] = noise if method_of(job).takes_noise(job) else None
    given |= {"method": job.method, "class_weight": sorted(job.class_weight), **method_of(job).identity(job, opened)}
    whole: dict[str, Any] = plain({"fingerprint": opened.dataset.fingerprint, **given})
    return whole


def _finished(job: ClassifyJob, reporter: Reporter, opened: Opened, *, converged: bool) -> Document | None:
    try:
        model = open_classifier(job.out)
    except InputError:
        return None
    if converged and not model.summary["converged"]:
        return None
    asked = model.summary.get("asked", {})  # an estimator's has none
    held = {"fingerprint": model.fingerprint, **asked, "by_reference": model.by_reference}
    other = difference(held, {**_asked(job, opened), "by_reference": job.by_reference})
    if other is not None:
        reporter.note(f"the model '{job.out}' is of a run with another {other}")
        return None
    reporter.note(f"the model '{job.out}' is done: it was complete when an earlier run ended")
    check_side_files(job.plot, None, replace=True)
    return _conclude(job, opened.dataset.url, model, reporter)


def _prepare(job: ClassifyJob, opened: Opened, reporter: Reporter) -> tuple[Prepared, bool]:
    """Check everything that can be checked without computing; say if what is at the output may be replaced."""
    dataset, labels = opened.dataset, opened.labels
    weights = label_weights(labels, job.weights_by_class, dataset.all_weights())
    method_of(job).check_data(job, opened, reporter)
    if job.by_reference:
        check_reference(dataset.url)
    overwrite = job.overwrite or (job.resume and is_unfinished_model(job.out, dataset, CLASSIFIER_KIND))
    ensure_writable(job.out, overwrite, CLASSIFIER_KIND)
    check_side_files(job.plot, job.log_json, replace=job.overwrite or job.resume)
    checkpointing: Checkpointing = checkpointing_of(job, _asked(job, opened), None, reporter)
    return Prepared(dataset, labels, opened.hyperparameters, weights, checkpointing), overwrite


def _conclude(job: ClassifyJob, dataset_url: str, model: ClassifierRecord, reporter: Reporter) -> Document:
    """End a run whose model is saved: draw the plot, describe it, warn, remove checkpoints that served their turn."""
    summary = model.summary
    if job.plot is not None:
        title = f"{model.form}: n = {summary['n']:,}, d = {summary['d']}, {len(model.classes)} classes"
        method_of(job).draw(job.plot, model, model.history, title, job)
    checkpoints = CheckpointStore(job.checkpoint_url)
    kept = not summary["converged"] and has_checkpoint(checkpoints)
    if summary["converged"]:
        remove_checkpoint(checkpoints)
    for warning in [*_warnings(summary, weighted=bool(job.class_weight)), *method_of(job).warnings(summary, job)]:
        reporter.warn(warning)
    told = {name: value for name, value in summary.items() if name != "asked"}
    return {
        "command": "classify",
        "out": job.out,
        "dataset": dataset_url,
        **plain(told),
        "kernel": plain(model.kernel),
        "noise_variance": model.noise_variance,
        "intercept": plain(model.intercept),
        "class_weights": model.class_weights,
        "probabilities": model.calibration is not None or model.likelihood is not None,
        "likelihood": model.likelihood,
        "path": plain(model.path),
        "certificate": plain(model.certificate),
        "resumed": job.resume,
        "checkpoint": job.checkpoint_url if kept else None,
        "plot": job.plot,
        "log_json": job.log_json,
        "warnings": list(reporter.warnings),
    }


def _warnings(summary: Mapping[str, Any], *, weighted: bool) -> list[str]:
    """Everything that a user must know of a model by any method, in words."""
    found = []
    if not summary["converged"]:
        found.append(f"not converged: {summary['reason']}; {summary['advice']}")
    counts, names = summary["counts"], summary["classes"]
    rarest = min(range(len(counts)), key=counts.__getitem__)
    if not weighted and counts[rarest] < RARE * sum(counts) / (len(counts) / 2):
        found.append(
            f"the class '{names[rarest]}' has {counts[rarest]:,} of {sum(counts):,} samples: a low error rate may hide "
            "that it is never found. Look at the balanced error, or give `class_weight` balanced"
        )
    return found
