"""`dkgp tune --objective bound`: hyperparameters by a sparse model's evidence on all samples of the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psutil

from dkgp.cluster import BlockExecutor
from dkgp.commands.reporting.memory import available_bytes
from dkgp.commands.reporting.outputs import check_output_file
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.signals import interruptible
from dkgp.commands.tune.job import TuneJob
from dkgp.data import Dataset
from dkgp.data.remote.storage import exists
from dkgp.errors import InterruptedRunError, UsageError
from dkgp.models import Hyperparameters, RunContext
from dkgp.models.sparse.bound.search import BASIS_SIZE, EVIDENCES, check_bound, plan_bound, tune_by_bound
from dkgp.models.sparse.bound.trail import Trail
from dkgp.models.tuning.likelihood_search import SearchSettings
from dkgp.models.tuning.problem import Choices

# Of subsets, which there are none of here; with their defaults.
_OF_SUBSETS = {"subset": 2000, "subsets": 1, "folds": None, "holdout": None}


def check_bound_options(job: TuneJob) -> None:
    """Refuse options that do not go together; `UsageError`."""
    if job.evidence is None:
        if job.basis_size is not None:
            raise UsageError(
                f"`basis_size` is of the objectives {' and '.join(EVIDENCES)}; this one, {job.objective}, looks at a "
                "subset. Choose one of them, or leave it out"
            )
        return
    for name, default in _OF_SUBSETS.items():
        if getattr(job, name) != default:
            raise UsageError(
                f"`objective` {job.objective} looks at all samples; leave out `{name}`, which is of subsets"
            )


def check_bound_job(
    job: TuneJob, dataset: Dataset, start: Hyperparameters | None, named: Mapping[str, Any], reporter: Reporter
) -> None:
    """Refuse kernels, names, numbers and places that do not fit, before a cluster is started."""
    choices = Choices(job.kernel, start=start, **named)
    settings = SearchSettings(job.seed, job.learn_variance, job.tolerance, job.restarts)
    check_bound(dataset, choices, settings, _basis_size(job, dataset))
    assert job.checkpoint_url is not None
    check_output_file(job.checkpoint_url, replace=True, option="--out", local=False)
    if not job.resume and exists(job.checkpoint_url):
        reporter.warn(
            f"the checkpoint '{job.checkpoint_url}' is of an earlier run and will be replaced; --resume would go on "
            "from it"
        )


def found_by_bound(
    job: TuneJob,
    dataset: Dataset,
    start: Hyperparameters | None,
    executor: BlockExecutor,
    named: Mapping[str, Any],
    signature: dict[str, Any],
    reporter: Reporter,
) -> tuple[Hyperparameters, Trail]:
    """Search, with one line for each basis; the trail is to be removed once the result is written.

    Raises
    ------
    MemoryBudgetError
        The matrices of a basis of this size do not fit.
    InterruptedRunError
        What was evaluated is in the checkpoint.
    """
    assert job.evidence is not None
    executor.require_one_arithmetic()
    size = _basis_size(job, dataset)
    n, d, p = dataset.n_samples, dataset.n_features, dataset.n_targets
    resident = int(psutil.Process().memory_info().rss)
    plan = plan_bound(n, d, size, p, executor, job.cluster.cache_bytes)
    plan.require(resident + available_bytes(), resident)
    trail = Trail(job.checkpoint_url, signature)
    if job.resume and trail.load():
        reporter.note(f"going on from '{trail.url}', {len(trail)} evaluations")
    reporter.note(
        f"maximising the {EVIDENCES[job.evidence]} of {size:,} basis samples on {n:,} samples of {d} features"
    )
    with interruptible(reporter.warn) as interruption, reporter.search("tune") as progress:
        try:
            hyperparameters = tune_by_bound(
                dataset,
                RunContext(executor, interrupted=interruption),
                Choices(job.kernel, start=start, **named),
                SearchSettings(job.seed, job.learn_variance, job.tolerance, job.restarts, progress=progress),
                objective=job.evidence,
                basis_size=size,
                note=reporter.note,
                trail=trail,
            )
        except InterruptedRunError as error:
            raise InterruptedRunError(f"{error}. Go on with the same command and --resume", error.checkpoint) from None
    return hyperparameters, trail


def _basis_size(job: TuneJob, dataset: Dataset) -> int:
    return min(BASIS_SIZE, dataset.n_samples) if job.basis_size is None else job.basis_size
