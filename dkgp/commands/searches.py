"""The runs of `dkgp tune`: on subsets, by a sparse model's evidence, over several kernels; and the refinement."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

from dkgp.cluster import BlockExecutor
from dkgp.cluster.options import KINDS
from dkgp.codec import difference, from_json, to_json
from dkgp.commands.candidates import Choice, affordable_subset, evaluation_seconds, judging_reserve
from dkgp.commands.reporting.memory import available_bytes, memory_budget, own_peak_bytes
from dkgp.commands.reporting.outputs import Document, check_output_file, check_side_files, plain
from dkgp.commands.reporting.plots import plot_tuning
from dkgp.commands.reporting.progress import Reporter, scored_by
from dkgp.commands.resuming import going_on, has_checkpoint, remove_checkpoint
from dkgp.commands.run import Run
from dkgp.commands.signals import interruptible
from dkgp.commands.tune import AUTO_KERNEL, COMPARED_KERNELS, LEAST_SAMPLES, OF_SUBSETS, TuneJob
from dkgp.data import open_dataset
from dkgp.data.remote.storage import is_folder, read_object, remove_object, write_object
from dkgp.data.stores.manifest import checksum
from dkgp.errors import InputError, InterruptedRunError, MemoryBudgetError, NumericalError, UsageError
from dkgp.kernels import Kernel
from dkgp.limits import elapsed_clock, finishing_within, measured_slowness, seconds_to_finish, should_finish
from dkgp.models import (
    Hyperparameters,
    RunContext,
    projected_tuning_bytes,
    read_hyperparameters,
    tune_dataset,
    write_hyperparameters,
)
from dkgp.models.classification.hyperparameters import LabelTuning, tune_labels
from dkgp.models.classification.labels import LabelledData, Labels, label_weights, labels_of
from dkgp.models.classification.near import TITLE, tune_labels_by_neighbours
from dkgp.models.memory import Memory
from dkgp.models.refinement.record import RefineSettings, plan_refinement, product_bytes
from dkgp.models.refinement.refine import RefineSpace, refine
from dkgp.models.sparse.search import (
    BASIS_SIZES,
    EVIDENCES,
    SearchStore,
    check_bound,
    plan_bound,
    tune_by_bound,
)
from dkgp.models.sparse.vif import Neighbours, kept_bytes
from dkgp.models.tuning.noise import tune_likelihood, tune_noise
from dkgp.models.tuning.subsets import plan_subsets
from dkgp.models.tuning.tune import check_tuning
from dkgp.models.warm_up import helped
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES, coordinator_input_bytes_needed
from dkgp.operators.product_error import ProductError
from dkgp.options import check_ranges
from dkgp.registry import byte_text
from dkgp.solvers import Checkpointing


def check_refinement_memory(
    run: Run, settings: RefineSettings, executor: BlockExecutor, kernel: Kernel | None = None
) -> Memory:
    """Project the memory of a refinement; the coordinator holds all inputs only if they fit too.

    Products within a bound are included once the kernel is known.

    Raises `MemoryBudgetError`: the refinement fits neither with nor without the inputs. Raises `InputError`: the
    preconditioner's rank exceeds its memory.
    """
    dataset = run.dataset
    resident, budget = memory_budget()
    n, d = dataset.n_samples, dataset.n_features
    products, columns = 0, 2 * dataset.n_targets + settings.probes_for(n)
    if kernel is not None:
        error = ProductError.of(settings.product_error)
        products = product_bytes(error.memory(kernel, n, columns, run.job.cluster.worker_memory_bytes))
    plan = partial(
        plan_refinement,
        n,
        d,
        dataset.n_targets,
        settings,
        executor,
        resident_bytes=resident,
        cache_bytes=run.job.cluster.cache_bytes,
    )
    if coordinator_input_bytes_needed(n, d) <= DEFAULT_COORDINATOR_INPUT_BYTES:
        holding = plan(holds_inputs=True).plus(products_bytes=products)
        if holding.coordinator_bytes <= budget:
            return holding.with_tiles(executor.tiles, n, budget)
    lean = plan(holds_inputs=False).plus(products_bytes=products)
    lean.require(budget)
    return lean.with_tiles(executor.tiles, n, budget)


def refined(run: Run, start: Hyperparameters, executor: BlockExecutor) -> Hyperparameters:
    """Refine from a start, with one line per step; the returned hyperparameters contain the refinement's record.

    Raises
    ------
    InputError, MemoryBudgetError
        An error found before any work.
    NumericalError
        The kernel matrix is not positive definite at the start.
    ClusterError
        The cluster was lost.
    """
    job, dataset, reporter = run.job, run.dataset, run.reporter
    settings: RefineSettings = job.refine.decided(dataset, start)
    error = ProductError.of(settings.product_error)
    error.require_kernel(start.kernel)
    plan = check_refinement_memory(run, settings, executor, start.kernel)
    executor.tiles = replace(executor.tiles, bytes=plan["tiles_bytes"])
    space = RefineSpace.of_start(start, dataset.feature_names, learn_variance=job.learn_variance, **job.named())
    reporter.note(
        f"refining {int(space.space.free.sum())} hyperparameters on {dataset.n_samples:,} samples with "
        f"{settings.probes_for(dataset.n_samples)} random vectors for each gradient"
    )

    with interruptible(reporter.warn) as interruption:
        refinement = refine(
            dataset,
            space,
            RunContext(
                executor,
                callback=lambda step: reporter.note(step.plain, str(step)),
                interrupted=interruption,
                product_error=error,
                note=reporter.note,
                # The plan reserves memory for all inputs at the coordinator, or for none.
                coordinator_input_bytes=DEFAULT_COORDINATOR_INPUT_BYTES if plan["inputs_bytes"] else 0,
            ),
            settings,
            note=reporter.note,
        )
    if refinement.kept == "refined":
        reporter.note(refinement.verdict)
    elif not refinement.interrupted:
        reporter.warn(refinement.verdict)
    short = sum(step.relative_residual > step.tolerance for step in refinement.history)
    if short:
        reporter.warn(
            f"{short} of {len(refinement.history)} steps did not reach their relative residual within "
            f"{settings.max_passes:g} passes, so that their gradients are less accurate. Raise "
            "`refine_max_passes`, `refine_rank` or `refine_tolerance`"
        )
    kept = refinement.hyperparameters
    record = {**to_json(refinement), "memory_plan": plan.to_json()}
    return replace(kept, refinement=record)


def raise_if_interrupted(tuned: Hyperparameters, out: str) -> None:
    """Report how to resume, once the current hyperparameters have been written to `out`.

    Raises `InterruptedRunError` if the refinement was interrupted.
    """
    refinement = tuned.refinement
    if refinement is not None and refinement["interrupted"]:
        raise InterruptedRunError(
            f"{refinement['verdict']}; they are in '{out}'. To continue, run the same command with `start` '{out}' "
            f"`refine_only`, and another `out` or `overwrite`"
        )


# Limit for each starting point, the same as for a regression.
MOST_EVALUATIONS = 300


class TuneRun(Run):
    """A run of `dkgp tune`, by default one on random subsets.

    Attributes
    ----------
    labels
        The labels if their likelihood is maximised, else None; set by `open`.
    start
        Hyperparameters to start from, if the user gave any; set by `open`.
    signature
        The data and the non-default settings that identify the run, in JSON types; set by `open`.
    """

    command = "tune"
    job: TuneJob
    labels: Labels | None = None
    start: Hyperparameters | None = None
    signature: dict[str, Any]
    is_label = False
    _overwrite = False
    # Time of evaluations over the nominal one and the optimum of the compared kernel; None without a comparison.
    _slowness: float | None = None
    _compared: Hyperparameters | None = None

    @property
    def places(self) -> list[str]:
        """The paths of the hyperparameters and of a search's checkpoint."""
        checkpoint = self.job.checkpoint_url
        return [*super().places, *([] if checkpoint is None else [checkpoint])]

    @property
    def samples(self) -> int:
        """Samples by which "auto" decides the cluster: 1 without a refinement.

        An evaluation takes longer than its messages. Threads suffice unless the user asks for a cluster.
        """
        return 1 if self.job.refine is None else self.dataset.n_samples

    def check(self) -> None:
        """Refuse contradictory options, and a plot that cannot be written."""
        job = self.job
        job.check()
        check_side_files(job.plot, None, replace=job.overwrite or job.resume)
        if job.plot is not None and job.plot == job.out:
            raise UsageError(f"`plot` and `out` name the same file, '{job.plot}'; choose two")

    def open(self) -> None:
        """Open the data and the starting values. Without a likelihood for labels, their signs are the targets.

        Raises `InputError` for data without targets, and for labels with a noise model.
        """
        job, dataset = self.job, open_dataset(self.job.dataset)
        if dataset.n_targets == 0:
            raise InputError(f"'{dataset.url}' has no targets; ingest the data again with --target")
        if job.of_labels is not None:
            self.labels = labels_of(dataset)
        elif dataset.classes is not None:
            if job.mean != "centred":
                raise InputError(
                    f"the target of '{dataset.url}' is a label, and classifiers have no mean; leave `mean` out"
                )
            if job.noise_model != "none" or job.of_noise != "gaussian":
                raise InputError(
                    f"the target of '{dataset.url}' is a label, which has no noise variance; leave out `noise_model` "
                    f"and `likelihood` {job.of_noise}"
                )
            dataset, self.is_label = dataset.as_signs(), True
            self.reporter.note("the target is a label; tuning a regression on the signs of its classes, for an LS-SVM")
        if dataset.covariate_names:
            job.choices(None).drift.over(dataset)  # refuses covariates that no mean takes
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
        """Return the record of the file at `out` if this job wrote it; an interrupted refinement starts over."""
        if not self.job.resume:
            return None
        out = self.job.out
        try:
            earlier = read_hyperparameters(out)
        except InputError:
            return None
        other = "run (the file does not say which)" if earlier.run is None else difference(earlier.run, self.signature)
        if other is not None:
            self.reporter.note(f"the hyperparameters in '{out}' are from another {other}")
            return None
        if earlier.refinement is not None and earlier.refinement.get("interrupted"):
            self._overwrite = True
            return None
        self.reporter.note(f"the hyperparameters in '{out}' are already complete: an earlier run finished them")
        for message in earlier.warnings:
            self.reporter.warn(message)
        return self.report(earlier)

    def refuse(self) -> None:
        """Refuse an existing output, and kernels, names and numbers that do not match the data."""
        self._overwrite |= self.job.overwrite
        check_output_file(self.job.out, replace=self._overwrite, option="`out`", local=False)
        if not self.job.refine_only:
            self.check_choices()

    def compiling(self) -> AbstractContextManager[None]:
        """Compile the code that most runs need first."""
        return helped()

    def refuse_on(self, executor: BlockExecutor) -> None:
        """Refuse a refinement or subsets that exceed the memory of the machine that evaluates them."""
        if self.job.refine is not None:
            check_refinement_memory(self, self.job.refine, executor)
        if not self.job.refine_only:
            self.check_memory(executor)

    def work(self, executor: BlockExecutor) -> Hyperparameters:
        """Search (unless only the starting values are refined), refine, and fit a noise model."""
        tuned = self.start if self.start is not None and self.job.refine_only else self.chosen(executor)
        for message in tuned.warnings:
            self.reporter.warn(message)
        if self.job.refine is not None:
            tuned = refined(self, tuned, executor)
        interrupted = tuned.refinement is not None and tuned.refinement["interrupted"]
        return tuned if interrupted else self.with_noise(tuned)

    def chosen(self, executor: BlockExecutor) -> Hyperparameters:
        """Search; for numbers with equal noise, also compare the result with others on held-out samples."""
        tuned, dataset = self.search(executor), self.dataset
        known = dataset.noise_name is not None or dataset.covariate_names or self.is_label
        if not self.job.goes_beyond or known:
            return tuned
        if not executor.shares_memory:
            self.reporter.note("keeping the subset's values: other candidates are compared only without a cluster")
            return tuned
        return Choice(self, tuned, executor).best()

    def with_noise(self, tuned: Hyperparameters) -> Hyperparameters:
        """Fit input-dependent noise or outliers, if the job asks for them or held-out samples favour them."""
        job, reporter = self.job, self.reporter
        if job.noise_model == "none" and job.of_noise == "gaussian":
            return tuned
        what = f"noise model ({job.noise_model})" if job.noise_model != "none" else f"likelihood ({job.of_noise})"
        reporter.note(f"tuning the {what} on {min(job.subset, self.dataset.n_samples):,} samples")
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
        """Write the file and report; `InterruptedRunError` if a refinement was interrupted."""
        tuned = replace(result, run=self.signature)
        write_hyperparameters(self.job.out, tuned, overwrite=self._overwrite)
        self.written()
        document = self.report(tuned)
        raise_if_interrupted(tuned, self.job.out)
        return document

    def report(self, tuned: Hyperparameters) -> Document:
        """Finish a run whose file is written: draw the plot and describe the file."""
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

    # ------------------------------------------------------------------------- search hooks, here on subsets

    def check_choices(self) -> None:
        """Refuse kernels, names and numbers that do not match the data, before a cluster is started."""
        job, dataset = self.job, self.dataset
        plan = plan_subsets(dataset.n_samples, job.subset, subsets=job.subsets, seed=job.seed, holdout=job.holdout)
        choices, settings = job.choices(self.start), job.search()
        if self.labels is not None:
            label_weights(self.labels, None, dataset.all_weights())
        check_tuning(plan, tuple(dataset.feature_names), choices, settings)

    def check_memory(self, executor: BlockExecutor) -> None:
        """Refuse subsets whose matrices exceed the memory where they are evaluated, as far as that is known here."""
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
                f"tuning on {size} samples{together} takes {byte_text(projected)}; {byte_text(available)} are available"
                f"{where}. Lower `subset`{', or `workers`, so that fewer run at the same time' if at_once > 1 else ''}"
            )

    def search(self, executor: BlockExecutor) -> Hyperparameters:
        """Search, with one line per evaluation."""
        job, dataset = self.job, self.dataset
        wanted = min(job.subset, dataset.n_samples)
        seconds = seconds_to_finish() - (judging_reserve(dataset.n_samples, wanted) if job.goes_beyond else 0.0)
        size = self._affordable(wanted, seconds)
        where = f"{job.subsets} subsets of {size:,}" if job.subsets > 1 else f"{size:,}"
        kernel = job.kernel or ("rbf" if job.start is None else f"the kernel of '{job.start}'")
        n, d = dataset.n_samples, f"{dataset.n_features} feature{'' if dataset.n_features == 1 else 's'}"
        on = f"all {n:,} samples" if where == f"{n:,}" else f"{where} of {n:,} samples"
        self.reporter.note(f"tuning {kernel} of {d} on {on}")
        with self.reporter.search("tune") as progress, finishing_within(seconds):
            names = [*OF_SUBSETS, "kernel", "seed", "learn_variance", "tolerance", "restarts"]
            mean: dict[str, Any] = {} if job.mean == "centred" else {"mean": job.mean}
            settings: dict[str, Any] = {
                **{name: getattr(job, name) for name in names},
                **job.named(),
                "subset": size,
                # There may be time for few evaluations only.
                "start": self._compared if size < wanted and self._compared is not None else self.start,
                "progress": progress,
            }
            if self.labels is None:
                return tune_dataset(dataset, objective=job.of_subsets, executor=executor, **settings, **mean)
            data = LabelledData(dataset, self.labels, label_weights(self.labels, None, dataset.all_weights()))
            search = LabelTuning(likelihood=job.of_labels, max_evaluations=MOST_EVALUATIONS, **settings)
            return tune_labels(data, search, executor)

    def _affordable(self, size: int, seconds: float) -> int:
        """Return the subset for a search within the time; only a run with a deadline has a smaller one."""
        if self.labels is not None or math.isinf(seconds_to_finish()):
            return size
        smaller = affordable_subset(size, seconds, self._slowness or measured_slowness())
        if smaller < size:
            self.reporter.note(f"the time that is left suffices for a subset of {smaller:,} samples, not {size:,}")
        return smaller

    def written(self) -> None:
        """Remove files that only an unfinished search needs."""


class BoundRun(TuneRun):
    """A run on all samples; checkpoints hold its evaluations until the result is written."""

    @property
    def samples(self) -> int:
        """The number of samples; every evaluation uses all of them."""
        return self.dataset.n_samples

    @property
    def basis_size(self) -> int:
        """The number of basis samples that the job asks for, or the default."""
        if self.job.basis_size is not None:
            return self.job.basis_size
        assert self.job.evidence is not None
        return min(BASIS_SIZES[self.job.evidence], self.dataset.n_samples)

    def check_choices(self) -> None:
        """Refuse unsuitable kernels, names, numbers and paths before a cluster is started."""
        checkpoint = self.job.checkpoint_url
        assert checkpoint is not None
        check_bound(self.dataset, self.job.choices(self.start), self.job.search(), self.basis_size)
        if self.labels is not None:
            label_weights(self.labels, None, self.dataset.all_weights())
        if not is_folder(checkpoint):
            check_output_file(checkpoint, replace=True, option="`out`", local=False)
        if not self.job.resume and has_checkpoint(SearchStore(checkpoint)):
            self.reporter.warn(
                f"the checkpoint '{checkpoint}' is from an earlier run and will be replaced; to continue that run, "
                "give `resume`"
            )

    def check_memory(self, executor: BlockExecutor) -> None:
        """Do nothing: the memory depends on whether workers produce identical bits, which `search` checks."""

    def search(self, executor: BlockExecutor) -> Hyperparameters:
        """Search, with one line per basis.

        Raises
        ------
        MemoryBudgetError
            The matrices of a basis of this size exceed the memory.
        InterruptedRunError
            The run was interrupted; the checkpoint contains its evaluations.
        """
        job, dataset, size, reporter = self.job, self.dataset, self.basis_size, self.reporter
        assert job.evidence is not None
        executor.require_one_arithmetic()
        n, d, p, title = dataset.n_samples, dataset.n_features, dataset.n_targets, EVIDENCES[job.evidence]
        if self.labels is not None:
            # The working targets of labels, in addition to the vectors of each latent function.
            p, title = 2 + self.labels.n_outputs, TITLE
        resident, budget = memory_budget()
        plan = plan_bound(n, d, size, p, executor, job.cluster.cache_bytes, job.evidence)
        plan.require(budget, resident)
        if self.labels is not None:
            # All Newton steps visit the same leaves.
            plan = plan.plus(useful_bytes=kept_bytes(n, size, Neighbours()))
            plan = plan.with_kept(executor.tiles, budget, resident)
            executor.tiles = replace(executor.tiles, bytes=plan["kept_bytes"])
        checkpointing = self._checkpointing()
        reporter.note(f"maximising the {title} of {size:,} basis samples on {n:,} samples of {d} features")
        with interruptible(reporter.warn) as interruption, reporter.search("tune") as progress:
            context = RunContext(executor, interrupted=interruption, checkpointing=checkpointing)
            choices, settings = job.choices(self.start), job.search(progress)
            options: dict[str, Any] = {"basis_size": size, "note": reporter.note}
            with going_on(checkpointing):
                if self.labels is None:
                    return tune_by_bound(dataset, context, choices, settings, objective=job.evidence, **options)
                data = LabelledData(dataset, self.labels, label_weights(self.labels, None, dataset.all_weights()))
                return tune_labels_by_neighbours(data, context, choices, settings, **options)

    def _checkpointing(self) -> Checkpointing:
        """Return the checkpoints; those of another search are replaced."""
        assert self.job.checkpoint_url is not None
        store = SearchStore(self.job.checkpoint_url)
        checkpointing = Checkpointing(store, identity=self.signature, resume=self.job.resume)
        latest = checkpointing.latest()
        if latest is not None and latest.metadata.get("identity") != self.signature:
            return Checkpointing(store, identity=self.signature)
        if latest is not None:
            self.reporter.note(
                f"continuing from '{store.url}' after {latest.metadata['state']['iteration']} evaluations"
            )
        return checkpointing

    def written(self) -> None:
        """Remove the checkpoints."""
        assert self.job.checkpoint_url is not None
        remove_checkpoint(SearchStore(self.job.checkpoint_url))


# Samples of the subset that kernels are compared on, the share that is held out, and the folds of a smaller data set.
COMPARED, HELD_OUT, COMPARED_FOLDS = 1000, 0.5, 10
# Share of the time of a search with a deadline.
SHARE_OF_KERNELS = 0.6
# A search that was cut off is repeated if this multiple of its time is left.
REPEATED = 1.5
# Settings that a resumed comparison must share.
OF_COMPARISON = (
    "fingerprint",
    "objective",
    "learn_variance",
    "tolerance",
    "bounds",
    "fixed",
    "priors",
    "seed",
    "subset",
)


@dataclass(frozen=True)
class FinishedKernel:
    """A compared kernel whose search was complete: its scores and its optimum."""

    row: dict[str, Any]
    tuned: Hyperparameters


@dataclass(frozen=True)
class FinishedKernels:
    """The finished part of a comparison: its settings, the samples of its subset, and the kernels."""

    identity: dict[str, Any]
    samples: int
    kernels: tuple[FinishedKernel, ...]


class KernelsRun(TuneRun):
    """A run that compares kernels first. From then on, `job` contains the selected kernel."""

    asked: TuneJob

    def __init__(self, job: TuneJob, reporter: Reporter) -> None:
        super().__init__(job, reporter)
        self._tuned: dict[str, Hyperparameters] = {}
        self._finished: list[FinishedKernel] = []

    def check(self) -> None:
        """Refuse options of other searches together with `kernel` auto."""
        job = self.asked = self.job
        check_ranges(job)
        for name, value in (("likelihood", job.of_labels), ("start", job.start)):
            if value is not None:
                raise UsageError(
                    f"`kernel` auto compares kernels of regressions from default starting points; leave `{name}` out"
                )
        if job.evidence is not None:
            raise UsageError(
                f"`kernel` auto compares kernels on subsets; leave out `objective` {job.objective}, or name the kernel"
            )
        super().check()

    def open(self) -> None:
        """Open the data; `InputError` if they are too few to hold samples out."""
        super().open()
        if self.dataset.n_samples < LEAST_SAMPLES:
            raise InputError(
                f"`kernel` auto compares kernels on held-out samples and needs at least {LEAST_SAMPLES}; "
                f"'{self.dataset.url}' has {self.dataset.n_samples}. Name the kernel"
            )

    def check_choices(self) -> None:
        """Refuse options that do not match each of the kernels."""
        for _ in self._each_kernel():
            super().check_choices()

    def check_memory(self, executor: BlockExecutor) -> None:
        """Refuse the run if any of the kernels exceeds the memory."""
        for _ in self._each_kernel():
            super().check_memory(executor)

    def search(self, executor: BlockExecutor) -> Hyperparameters:
        """Compare the kernels, then tune the best one as if the user had named it."""
        comparison = self._compare(executor)
        kernel = comparison["kernel"]
        self.job, self._compared = replace(self.asked, kernel=kernel), self._tuned[kernel]
        job, samples = self.asked, comparison["samples"]
        is_same = comparison["held_out"] == samples == min(job.subset, self.dataset.n_samples) and kernel in (
            finished.row["kernel"] for finished in self._finished
        )
        plain = all(
            getattr(job, name) == getattr(TuneJob, name) for name in ("subsets", "folds", "holdout", "restarts")
        )
        if is_same and plain and job.mean == "centred":
            # The comparison had the same samples, so that another search would end at the same values.
            return replace(self._compared, comparison=comparison)
        return replace(super().search(executor), comparison=comparison)

    def written(self) -> None:
        """Remove the file of the comparison."""
        remove_object(self.asked.comparison_url)

    @property
    def _identity(self) -> dict[str, Any]:
        return {name: self.signature[name] for name in OF_COMPARISON if name in self.signature}

    def _earlier(self) -> FinishedKernels | None:
        """Return the finished part of the comparison to resume; None if there is none with the same settings."""
        if not self.asked.resume:
            return None
        try:
            document = json.loads(read_object(self.asked.comparison_url))
            written = document.pop("checksum")
            earlier = from_json(FinishedKernels, document)
        except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, InputError):
            return None
        return earlier if written == checksum(document) and earlier.identity == self._identity else None

    def _keep(self, samples: int) -> None:
        """Write the finished kernels, which a resumed comparison does not search again."""
        document = to_json(FinishedKernels(self._identity, samples, tuple(self._finished)))
        write_object(self.asked.comparison_url, json.dumps({**document, "checksum": checksum(document)}).encode())

    def _each_kernel(self) -> Iterator[str]:
        for kernel in COMPARED_KERNELS:
            self.job = replace(self.asked, kernel=kernel)
            yield kernel
        self.job = self.asked

    def _compare(self, executor: BlockExecutor) -> dict[str, Any]:
        """Tune and score the kernels one by one and share the time limit among them.

        The score of a search that the limit cut off is that of its best values so far; complete, it may be better. A
        resumed comparison repeats such a search.
        """
        job, clock, earlier = self.asked, elapsed_clock(), self._earlier()
        began, limit = clock(), min(job.kernel_seconds, SHARE_OF_KERNELS * seconds_to_finish())
        size = self._affordable(min(job.subset, COMPARED, self.dataset.n_samples), limit / len(COMPARED_KERNELS))
        if earlier is not None:
            size, self._finished = earlier.samples, list(earlier.kernels)
            self._tuned = {finished.row["kernel"]: finished.tuned for finished in self._finished}
            self.reporter.note(f"continuing the comparison of kernels; finished before: {', '.join(self._tuned)}")
        self.reporter.note("comparing kernels by NLPD (negative log predictive density, smaller is better)")
        rows = {finished.row["kernel"]: finished.row for finished in self._finished}
        todo = [kernel for kernel in COMPARED_KERNELS if kernel not in rows]
        while todo:
            time_left = limit - (clock() - began)
            if rows and time_left <= 0.0:
                self.reporter.warn(
                    f"compared {len(rows)} of {len(COMPARED_KERNELS)} kernels within the time limit of {limit:.3g} s "
                    f"(`kernel_seconds` of `dkgp tune`); not tried: {', '.join(todo)}"
                )
                break
            # Time that a kernel does not use is shared among those after it.
            share = max(0.0, time_left / len(todo))
            kernel = todo.pop(0)
            rows[kernel] = self._in_time(kernel, size, executor, share)
        # Kernels after a search that was cut off may have left time for it.
        for kernel in [kernel for kernel, row in rows.items() if row.get("cut_off")]:
            time_left = limit - (clock() - began)
            if time_left > REPEATED * rows[kernel]["seconds"]:
                rows[kernel] = self._in_time(kernel, size, executor, time_left)
        able = [row for row in rows.values() if row["nlpd"] is not None and math.isfinite(row["nlpd"])]
        if not able:
            raise NumericalError(
                f"none of the kernels {', '.join(rows)} could be tuned on {size:,} samples; name one with `kernel`"
            )
        cut_off = [row["kernel"] for row in able if row.get("cut_off")]
        if cut_off:
            self.reporter.warn(
                f"the time limit of {limit:.3g} s (`kernel_seconds` of `dkgp tune`) cut off the search of "
                f"{', '.join(cut_off)}; more time may give a smaller NLPD"
            )
        best = min(able, key=lambda row: row["nlpd"])
        rank = f"the smallest of {len(able)} kernels" if len(able) > 1 else "the only kernel that was tuned"
        scored = scored_by({"samples": size, "held_out": best["rows"]})
        self.reporter.note(f"the kernel is {best['kernel']}: NLPD {best['nlpd']:.4f} nats per sample {scored}, {rank}")
        compared = [rows[kernel] for kernel in COMPARED_KERNELS if kernel in rows]
        comparison = {"kernel": best["kernel"], "samples": size, "held_out": best["rows"], "kernels": compared}
        return {**comparison, "not_tried": todo} if todo else comparison

    def _in_time(self, kernel: str, size: int, executor: BlockExecutor, seconds: float) -> dict[str, Any]:
        """Return a kernel's row; a finished search is kept for a resumed comparison."""
        with finishing_within(seconds):
            row = self._scored(kernel, size, executor, seconds)
        if row["nlpd"] is not None and not row.get("cut_off"):
            self._finished.append(FinishedKernel(row, self._tuned[kernel]))
            self._keep(size)
        return row

    def _scored(self, kernel: str, size: int, executor: BlockExecutor, limit: float) -> dict[str, Any]:
        """Return a kernel's held-out scores, tuned within `limit` seconds; they are None if it could not be tuned."""
        job, clock = self.asked, elapsed_clock()
        began = clock()
        # Held-out samples would be missed in the subset of a small data set.
        is_large = self.dataset.n_samples >= (1.0 + HELD_OUT) * size
        scoring: dict[str, Any] = {"holdout": HELD_OUT} if is_large else {"folds": min(COMPARED_FOLDS, size)}
        figures: dict[str, Any] = {"rows": 0, "nlpd": None, "rmse": None, "coverage_95": None}
        cut_off = False
        with self.reporter.search(f"compare {kernel}") as progress:
            try:
                tuned = tune_dataset(
                    self.dataset,
                    objective=job.of_subsets,
                    executor=executor,
                    kernel=kernel,
                    subset=size,
                    seed=job.seed,
                    learn_variance=job.learn_variance,
                    tolerance=job.tolerance,
                    seconds=limit,
                    progress=progress,
                    **scoring,
                    **job.named(),
                )
            except NumericalError as error:
                self.reporter.note(f"{kernel} could not be tuned: {error}")
            else:
                assert tuned.scores is not None
                self._tuned[kernel] = replace(tuned, scores=None)
                scores = {"rows": size, **tuned.scores[next(iter(scoring))]}
                figures = {name: scores[name] for name in figures}
                cut_off = not tuned.converged and (should_finish() or (tuned.seconds or 0.0) >= limit)
                # The scores take about as long as two evaluations.
                speed = (clock() - began) / ((2 + (tuned.evaluations or 0)) * evaluation_seconds(size))
                self._slowness = min(self._slowness or speed, speed)
        row = {"kernel": kernel, **figures, "seconds": clock() - began}
        shown = "no result" if row["nlpd"] is None else f"NLPD {row['nlpd']:.4f}"
        self.reporter.note(f"{kernel}: {shown}{' (search cut off)' if cut_off else ''}")
        return {**row, "cut_off": True} if cut_off else row


def run_tune(job: TuneJob, reporter: Reporter) -> Document:
    """Tune and write the hyperparameter file; return its content and its path. See `Run.run`."""
    if job.kernel is not None and job.kernel.strip() == AUTO_KERNEL:
        return KernelsRun(job, reporter).run()
    return (TuneRun if job.evidence is None else BoundRun)(job, reporter).run()
