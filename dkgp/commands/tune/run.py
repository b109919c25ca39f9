"""`dkgp tune`: hyperparameters by maximum likelihood on random subsets of a store, or a sparse model of all of it."""

from __future__ import annotations

import hashlib
import json
from contextlib import AbstractContextManager
from dataclasses import asdict, fields, replace
from typing import Any

from dkgp.cluster import BlockExecutor
from dkgp.cluster.options import KINDS
from dkgp.codec import difference
from dkgp.commands.reporting.memory import available_bytes, own_peak_bytes
from dkgp.commands.reporting.outputs import Document, check_output_file, check_side_files, plain
from dkgp.commands.reporting.plots import plot_tuning
from dkgp.commands.run import Run
from dkgp.commands.tune.job import TuneJob
from dkgp.commands.tune.refine import check_refinement_memory, raise_if_interrupted, refined
from dkgp.data import open_dataset
from dkgp.errors import InputError, MemoryBudgetError, UsageError
from dkgp.models import (
    Hyperparameters,
    projected_tuning_bytes,
    read_hyperparameters,
    tune_dataset,
    write_hyperparameters,
)
from dkgp.models.classification.hyperparameters import LabelTuning, tune_labels
from dkgp.models.classification.labels import LabelledData, Labels, label_weights, labels_of
from dkgp.models.trend import CENTRED
from dkgp.models.tuning.noise import tune_likelihood, tune_noise
from dkgp.models.tuning.subsets import plan_subsets
from dkgp.models.tuning.tune import check_tuning
from dkgp.models.warm_up import helped

# Of a starting point, as of a regression's.
MOST_EVALUATIONS = 300


class TuneRun(Run):
    """A run of `dkgp tune`, by default one on random subsets.

    Attributes
    ----------
    labels
        Where their likelihood is maximised; from `open` on.
    start
        Hyperparameters to start from, where they were named; from `open` on.
    signature
        Of which data a run is, and with which settings that are not the defaults, in JSON types; from `open` on.
    """

    command = "tune"
    job: TuneJob
    labels: Labels | None = None
    start: Hyperparameters | None = None
    signature: dict[str, Any]
    _overwrite = False

    @property
    def places(self) -> list[str]:
        """The places of the hyperparameters, and of a search's checkpoint."""
        checkpoint = self.job.checkpoint_url
        return [*super().places, *([] if checkpoint is None else [checkpoint])]

    @property
    def samples(self) -> int:
        """As one: an evaluation takes longer than messages do. Unless a cluster is asked for, threads do without."""
        return 1 if self.job.refine is None else self.dataset.n_samples

    def check(self) -> None:
        """Refuse options that do not go together, and a plot that cannot be drawn."""
        job = self.job
        job.check()
        check_side_files(job.plot, None, replace=job.overwrite or job.resume)
        if job.plot is not None and job.plot == job.out:
            raise UsageError(f"`plot` and `out` name the same file, '{job.plot}'; choose two")

    def open(self) -> None:
        """Open the data, of labels their signs where no likelihood of theirs is named, and what to start from.

        Raises `InputError` for data without targets, and for labels with a noise model.
        """
        job, dataset = self.job, open_dataset(self.job.dataset)
        if dataset.n_targets == 0:
            raise InputError(f"'{dataset.url}' has no targets; ingest the data again with --target")
        if job.of_labels is not None:
            self.labels = labels_of(dataset)
        elif dataset.classes is not None:
            if job.mean != CENTRED:
                raise InputError(
                    f"the target of '{dataset.url}' is a label, and classifiers have no mean of their own; leave "
                    "`mean` out"
                )
            if job.noise_model != "none" or job.of_noise != "gaussian":
                raise InputError(
                    f"the target of '{dataset.url}' is a label, whose noise is no regression's; leave `noise_model` "
                    f"and `likelihood` {job.of_noise} out"
                )
            dataset = dataset.as_signs()
            self.reporter.note(
                "the target is a label: tuned is the regression on the signs of its classes, for classification"
            )
        self.dataset = dataset
        if job.start is not None:
            self.start = read_hyperparameters(job.start, feature_names=dataset.feature_names)
        self.signature = self._signature()

    def _signature(self) -> dict[str, Any]:
        values = asdict(self.job)
        aside = ("dataset", "out", "start", "plot", "overwrite", "resume", "cluster")
        changed = {
            field.name: values[field.name]
            for field in fields(self.job)
            if field.name not in aside and getattr(self.job, field.name) != field.default
        }
        if self.start is not None:
            text = json.dumps(self.start.to_json(), sort_keys=True)
            changed["start"] = hashlib.sha256(text.encode()).hexdigest()[:16]
        document: dict[str, Any] = plain({"fingerprint": self.dataset.fingerprint, **changed})
        return document

    def finished(self) -> Document | None:
        """Return the record of the file at `out` where this job wrote it; an interrupted refinement begins again."""
        if not self.job.resume:
            return None
        out = self.job.out
        try:
            earlier = read_hyperparameters(out)
        except InputError:
            return None
        other = "run, which is not on record" if earlier.run is None else difference(earlier.run, self.signature)
        if other is not None:
            self.reporter.note(f"the hyperparameters in '{out}' are of another {other}")
            return None
        if earlier.refinement is not None and earlier.refinement.get("interrupted"):
            self._overwrite = True
            return None
        self.reporter.note(f"the hyperparameters in '{out}' are done: they were complete when an earlier run ended")
        for message in earlier.warnings:
            self.reporter.warn(message)
        return self.report(earlier)

    def refuse(self) -> None:
        """Refuse an output that is there, and kernels, names and numbers that do not fit the data."""
        self._overwrite |= self.job.overwrite
        check_output_file(self.job.out, replace=self._overwrite, option="`out`", local=False)
        if not self.job.refine_only:
            self.check_choices()

    def compiling(self) -> AbstractContextManager[None]:
        """Compile what most runs begin with."""
        return helped()

    def refuse_on(self, executor: BlockExecutor) -> None:
        """Refuse a refinement, or subsets, that do not fit where they are worked on."""
        if self.job.refine is not None:
            check_refinement_memory(self, self.job.refine, executor)
        if not self.job.refine_only:
            self.check_memory(executor)

    def work(self, executor: BlockExecutor) -> Hyperparameters:
        """Search, unless the values to start from are to be refined alone, refine, and find a noise model."""
        tuned = self.start if self.start is not None and self.job.refine_only else self.search(executor)
        for message in tuned.warnings:
            self.reporter.warn(message)
        if self.job.refine is not None:
            tuned = refined(self, tuned, executor)
        interrupted = tuned.refinement is not None and tuned.refinement["interrupted"]
        return tuned if interrupted else self.with_noise(tuned)

    def with_noise(self, tuned: Hyperparameters) -> Hyperparameters:
        """Let the noise depend on the inputs, or have outliers, where that is asked for, or held-out samples say so."""
        job, reporter = self.job, self.reporter
        if job.noise_model == "none" and job.of_noise == "gaussian":
            return tuned
        what = f"noise model ({job.noise_model})" if job.noise_model != "none" else f"likelihood ({job.of_noise})"
        reporter.note(f"looking for a {what} on {min(job.subset, self.dataset.n_samples):,} samples")
        with reporter.search("noise") as progress:
            settings: dict[str, Any] = {
                "choices": job.choices(None),
                "settings": job.search(progress),
                "subset": job.subset,
                "note": reporter.note,
            }
            if job.noise_model != "none":
                found = tune_noise(self.dataset, tuned, job.noise_model, **settings)
            else:
                found = tune_likelihood(self.dataset, tuned, job.of_noise, **settings)
        for message in found.warnings[len(tuned.warnings) :]:
            reporter.warn(message)
        return found

    def conclude(self, result: Hyperparameters, peak_bytes: int) -> Document:
        """Write the file, and report; `InterruptedRunError` where a refinement was interrupted."""
        tuned = replace(result, run=self.signature)
        write_hyperparameters(self.job.out, tuned, overwrite=self._overwrite)
        self.written()
        document = self.report(tuned)
        raise_if_interrupted(tuned, self.job.out)
        return document

    def report(self, tuned: Hyperparameters) -> Document:
        """End a run whose file is written: draw the plot, and describe it."""
        if self.job.plot is not None:
            plot_tuning(self.job.plot, tuned)
        return {
            "command": self.command,
            "out": self.job.out,
            **tuned.to_json(),
            "plot": self.job.plot,
            "warnings": list(self.reporter.warnings),
            "peak_memory_bytes": own_peak_bytes(),
        }

    # ------------------------------------------------------------------------- the search, here on subsets

    def check_choices(self) -> None:
        """Refuse kernels, names and numbers that do not fit the data, before a cluster is started."""
        job, dataset = self.job, self.dataset
        plan = plan_subsets(dataset.n_samples, job.subset, subsets=job.subsets, seed=job.seed, holdout=job.holdout)
        choices, settings = job.choices(self.start), job.search()
        if self.labels is not None:
            label_weights(self.labels, None, dataset.all_weights())
        check_tuning(plan, tuple(dataset.feature_names), choices, settings)

    def check_memory(self, executor: BlockExecutor) -> None:
        """Refuse subsets whose matrices do not fit where they are evaluated, as far as that is known here."""
        job, size = self.job, min(self.job.subset, self.dataset.n_samples)
        here = executor.shares_memory or (
            KINDS.find(job.cluster.kind).on_this_machine and job.cluster.address() is None
        )
        at_once = min(job.subsets, executor.parallelism if here else executor.threads_per_process)
        available = available_bytes() if here else job.cluster.worker_memory_bytes
        if available is None:
            return
        projected = projected_tuning_bytes(
            size,
            self.dataset.n_targets if self.labels is None else self.labels.n_outputs,
            self.dataset.feature_names,
            kernel=job.kernel,
            start=self.start,
            objective=job.of_subsets,
            likelihood=job.of_labels,
            subsets=job.subsets,
            at_once=at_once,
        )
        if projected > available:
            together = f", {at_once} of {job.subsets} subsets at a time" if job.subsets > 1 else ""
            where = "" if here else " in a worker"
            raise MemoryBudgetError(
                f"tuning on {size} samples{together} takes {projected:,} bytes; {available:,} bytes are available"
                f"{where}. Lower `subset`{', or `workers`, so that fewer run at the same time' if at_once > 1 else ''}"
            )

    def search(self, executor: BlockExecutor) -> Hyperparameters:
        """Search, with one line for each evaluation."""
        job, dataset, size = self.job, self.dataset, min(self.job.subset, self.dataset.n_samples)
        where = f"{job.subsets} subsets of {size:,}" if job.subsets > 1 else f"{size:,}"
        kernel = job.kernel or ("rbf" if job.start is None else f"the kernel of '{job.start}'")
        self.reporter.note(
            f"tuning {kernel} of {dataset.n_features} features on {where} of {dataset.n_samples:,} samples"
        )
        with self.reporter.search("tune") as progress:
            names = (
                "kernel",
                "subset",
                "subsets",
                "seed",
                "learn_variance",
                "tolerance",
                "restarts",
                "folds",
                "holdout",
            )
            mean: dict[str, Any] = {} if job.mean == CENTRED else {"mean": job.mean}
            settings: dict[str, Any] = {
                **{name: getattr(job, name) for name in names},
                **job.named(),
                "start": self.start,
                "progress": progress,
            }
            if self.labels is None:
                return tune_dataset(dataset, objective=job.of_subsets, executor=executor, **settings, **mean)
            data = LabelledData(dataset, self.labels, label_weights(self.labels, None, dataset.all_weights()))
            search = LabelTuning(likelihood=job.of_labels, max_evaluations=MOST_EVALUATIONS, **settings)
            return tune_labels(data, search, executor)

    def written(self) -> None:
        """Remove what only a search under way has a use for."""
