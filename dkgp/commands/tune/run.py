"""`dkgp tune`: hyperparameters by maximum likelihood on random subsets of a store, or a sparse model of all of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields, replace
from typing import Any

from dkgp.cluster import BlockExecutor, open_executor
from dkgp.cluster.kinds import KINDS
from dkgp.commands.reporting.documents import Document, plain
from dkgp.commands.reporting.memory import available_bytes, own_peak_bytes
from dkgp.commands.reporting.outputs import check_output_file, check_side_files
from dkgp.commands.reporting.progress import Reporter, announce
from dkgp.commands.reporting.tune_plot import plot_tuning
from dkgp.commands.resuming import difference
from dkgp.commands.tune.bound import check_bound_job, check_bound_options, found_by_bound
from dkgp.commands.tune.job import TuneJob
from dkgp.commands.tune.refine import check_refinement, check_refinement_memory, raise_if_interrupted, refine_found
from dkgp.data import Dataset, open_dataset
from dkgp.errors import InputError, MemoryBudgetError, UsageError
from dkgp.models import (
    Hyperparameters,
    projected_tuning_bytes,
    read_hyperparameters,
    tune_dataset,
    write_hyperparameters,
)
from dkgp.models.classification.hyperparameters import LabelTuning, tune_labels
from dkgp.models.classification.labelled import LabelledData
from dkgp.models.classification.labels import Labels, label_weights, labels_of
from dkgp.models.sparse.bound.trail import Trail
from dkgp.models.tuning.likelihood_search import SearchSettings
from dkgp.models.tuning.problem import Choices
from dkgp.models.tuning.run import check_tuning
from dkgp.models.tuning.subsets import plan_subsets
from dkgp.models.warm_up import helped

# Of a starting point, as of a regression's.
MOST_EVALUATIONS = 300


def run_tune(job: TuneJob, reporter: Reporter) -> Document:
    """Tune and write the hyperparameter file; return its content and where it is.

    Raises
    ------
    UsageError
        Options of another form than they have.
    InputError
        A store that cannot be tuned on, names that do not exist, or settings out of range.
    MemoryBudgetError
        The matrices of the subsets that are evaluated at the same time exceed the memory available.
    OutputExistsError, StorageError
        The file is there already, or cannot be written.
    ClusterError
        No cluster, or one that was lost.
    InterruptedRunError
        A refinement was interrupted; the values so far are in the file. Or a search on all samples was; what it
        evaluated is in its checkpoint.
    """
    named = job.named()
    check_bound_options(job)
    check_label_options(job)
    check_refinement(job.refine, only=job.refine_only, start=job.start, kernel=job.kernel)
    check_side_files(job.plot, None, replace=job.overwrite or job.resume)
    if job.plot is not None and job.plot == job.out:
        raise UsageError(f"--plot and --out name the same file, '{job.plot}'; choose two")
    dataset = open_dataset(job.dataset)
    if dataset.n_targets == 0:
        raise InputError(f"'{dataset.url}' has no targets; ingest the data again with --target")
    labels = None if job.likelihood is None else labels_of(dataset)
    if dataset.classes is not None and labels is None:
        dataset = dataset.as_signs()
        reporter.note("the target is a label: tuned is the regression on the signs of its classes, for classification")
    start = None if job.start is None else read_hyperparameters(job.start, feature_names=dataset.feature_names)
    signature = _signature(job, dataset, start)
    earlier = _earlier(job, signature, reporter) if job.resume else None
    if earlier is not None and not _was_interrupted(earlier):
        reporter.note(f"the hyperparameters in '{job.out}' are done: they were complete when an earlier run ended")
        for message in earlier.warnings:
            reporter.warn(message)
        return _conclude(job, earlier, reporter)
    overwrite = job.overwrite or earlier is not None
    check_output_file(job.out, replace=overwrite, option="--out", local=False)
    if start is None or not job.refine_only:
        _check_choices(job, dataset, labels, start, named, reporter)
    refinement, trail, of_all = None, Trail(), job.refine is not None or job.evidence is not None
    # One evaluation takes much longer than a round of messages: without a cluster that is asked for, threads do.
    with helped(), open_executor(job.cluster, dataset.n_samples if of_all else 1, reporter) as executor:
        if job.refine is not None:
            check_refinement_memory(dataset, job.refine, executor, job.cluster.cache_bytes)
        if start is not None and job.refine_only:
            announce(executor, reporter)
            tuned = start
        elif job.evidence is not None:
            announce(executor, reporter)
            tuned, trail = found_by_bound(job, dataset, start, executor, named, signature, reporter)
        else:
            _check_memory(job, dataset, labels, start, executor)
            announce(executor, reporter)
            tuned = _search(job, dataset, labels, start, executor, named, reporter)
        for message in tuned.warnings:
            reporter.warn(message)
        if job.refine is not None:
            options: dict[str, Any] = {"learn_variance": job.learn_variance, "named": named}
            tuned, refinement = refine_found(
                dataset, tuned, job.refine, executor, reporter, cache_bytes=job.cluster.cache_bytes, **options
            )
    tuned = replace(tuned, run=signature)
    write_hyperparameters(job.out, tuned, overwrite=overwrite)
    trail.remove()
    document = _conclude(job, tuned, reporter)
    raise_if_interrupted(refinement, job.out)
    return document


def check_label_options(job: TuneJob) -> None:
    """Refuse options that do not go with a likelihood of labels; `UsageError`."""
    if job.likelihood is None:
        return
    if job.objective != "likelihood":
        raise UsageError(
            f"`objective` {job.objective} is of regressions; leave it out with the `likelihood` of labels, whose "
            "evidence is maximised"
        )
    if job.refine is not None:
        raise UsageError("`refine` is of regressions; leave it out with the `likelihood` of labels")


def _conclude(job: TuneJob, tuned: Hyperparameters, reporter: Reporter) -> Document:
    """End a run whose file is written: draw the plot, and describe it."""
    if job.plot is not None:
        plot_tuning(job.plot, tuned)
    return {
        "command": "tune",
        "out": job.out,
        **tuned.to_json(),
        "plot": job.plot,
        "warnings": list(reporter.warnings),
        "peak_memory_bytes": own_peak_bytes(),
    }


def _signature(job: TuneJob, dataset: Dataset, start: Hyperparameters | None) -> dict[str, Any]:
    """Of which data a run is, and with which settings that are not the defaults; JSON."""
    values = asdict(job)
    aside = ("dataset", "out", "start", "plot", "overwrite", "resume", "cluster")
    chosen = {each.name: values[each.name] for each in fields(job) if getattr(job, each.name) != each.default}
    signature = {name: value for name, value in chosen.items() if name not in aside}
    if start is not None:
        signature["start"] = hashlib.sha256(json.dumps(start.to_json(), sort_keys=True).encode()).hexdigest()[:16]
    document: dict[str, Any] = plain({"fingerprint": dataset.fingerprint, **signature})
    return document


def _earlier(job: TuneJob, signature: dict[str, Any], reporter: Reporter) -> Hyperparameters | None:
    """Read what an earlier run of this job wrote, finished or interrupted; None where there is nothing of the kind."""
    try:
        earlier = read_hyperparameters(job.out)
    except InputError:
        return None
    other = "run, which is not on record" if earlier.run is None else difference(earlier.run, signature)
    if other is not None:
        reporter.note(f"the hyperparameters in '{job.out}' are of another {other}")
        return None
    return earlier


def _was_interrupted(earlier: Hyperparameters) -> bool:
    return bool(earlier.refinement is not None and earlier.refinement.get("interrupted"))


def _check_choices(
    job: TuneJob,
    dataset: Dataset,
    labels: Labels | None,
    start: Hyperparameters | None,
    named: dict[str, Any],
    reporter: Reporter,
) -> None:
    """Refuse kernels, names and numbers that do not fit the data, before a cluster is started."""
    if job.evidence is not None:
        check_bound_job(job, dataset, start, named, reporter)
        return
    plan = plan_subsets(dataset.n_samples, job.subset, subsets=job.subsets, seed=job.seed, holdout=job.holdout)
    choices = Choices(job.kernel, job.of_subsets, start=start, folds=job.folds, likelihood=job.likelihood, **named)
    settings = SearchSettings(job.seed, job.learn_variance, job.tolerance, job.restarts)
    if labels is not None:
        label_weights(labels, None, dataset.all_weights())
    check_tuning(plan, tuple(dataset.feature_names), choices, settings)


def _search(
    job: TuneJob,
    dataset: Dataset,
    labels: Labels | None,
    start: Hyperparameters | None,
    executor: BlockExecutor,
    named: dict[str, Any],
    reporter: Reporter,
) -> Hyperparameters:
    size = min(job.subset, dataset.n_samples)
    where = f"{job.subsets} subsets of {size:,}" if job.subsets > 1 else f"{size:,}"
    kernel = job.kernel or ("rbf" if job.start is None else f"the kernel of '{job.start}'")
    reporter.note(f"tuning {kernel} of {dataset.n_features} features on {where} of {dataset.n_samples:,} samples")
    with reporter.search("tune") as progress:
        settings: dict[str, Any] = {
            "kernel": job.kernel,
            "subset": job.subset,
            "subsets": job.subsets,
            "seed": job.seed,
            "learn_variance": job.learn_variance,
            **named,
            "start": start,
            "tolerance": job.tolerance,
            "restarts": job.restarts,
            "folds": job.folds,
            "holdout": job.holdout,
            "progress": progress,
        }
        if labels is None:
            return tune_dataset(dataset, objective=job.of_subsets, executor=executor, **settings)
        data = LabelledData(dataset, labels, label_weights(labels, None, dataset.all_weights()))
        search = LabelTuning(likelihood=job.likelihood, max_evaluations=MOST_EVALUATIONS, **settings)
        return tune_labels(data, search, executor)


def _check_memory(
    job: TuneJob, dataset: Dataset, labels: Labels | None, start: Hyperparameters | None, executor: BlockExecutor
) -> None:
    """Refuse subsets whose matrices do not fit where they are evaluated, as far as that is known here."""
    size = min(job.subset, dataset.n_samples)
    here = executor.shares_memory or (KINDS.find(job.cluster.kind).on_this_machine and job.cluster.address() is None)
    at_once = min(job.subsets, executor.parallelism if here else executor.threads_per_process)
    available = available_bytes() if here else job.cluster.worker_memory_bytes
    if available is None:
        return
    projected = projected_tuning_bytes(
        size,
        dataset.n_targets if labels is None else labels.n_outputs,
        dataset.feature_names,
        kernel=job.kernel,
        start=start,
        objective=job.of_subsets,
        likelihood=job.likelihood,
        subsets=job.subsets,
        at_once=at_once,
    )
    if projected > available:
        together = f", {at_once} of {job.subsets} subsets at a time" if job.subsets > 1 else ""
        where = "" if here else " in a worker"
        raise MemoryBudgetError(
            f"tuning on {size} samples{together} takes {projected:,} bytes; {available:,} bytes are available{where}. "
            f"Lower --subset{', or --workers, so that fewer run at the same time' if at_once > 1 else ''}"
        )
