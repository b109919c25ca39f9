"""`dkgp pursue`: a linear regression with few weights, by sparse conjugate directions pursuit or a rival."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.commands.job_options import DATASET, MEMORY_LIMIT, MODEL_OUT, OVERWRITE
from dkgp.commands.reporting.documents import Document, plain
from dkgp.commands.reporting.memory import PeakMemory, memory_budget
from dkgp.commands.reporting.outputs import check_side_files
from dkgp.commands.reporting.progress import Reporter, WorkProgress, announce
from dkgp.commands.reporting.weights_plot import plot_weights
from dkgp.commands.run import warn_of_labels
from dkgp.data import LINEAR_MODEL_KIND, Dataset, ensure_writable, open_dataset, save_linear_model
from dkgp.errors import InputError
from dkgp.models.linear.train import LinearSettings, PathOfTarget, TrainedLinear, train_linear
from dkgp.operators.base import FloatArray
from dkgp.options import Part, check_ranges
from dkgp.registry import Option

PLOT = Option(
    help="Draw weights and errors against their number into a .png, .pdf or .svg.", metavar="FILE", place="write"
)


@dataclass(frozen=True)
class PursueJob:
    """A linear regression to find, and where it goes."""

    dataset: Annotated[str, DATASET]
    out: Annotated[str, MODEL_OUT]
    settings: Annotated[LinearSettings, Part()] = field(default_factory=LinearSettings)
    memory_limit_bytes: Annotated[int | None, MEMORY_LIMIT] = None
    plot: Annotated[str | None, PLOT] = None
    overwrite: Annotated[bool, OVERWRITE] = False
    cluster: Annotated[ClusterOptions, Part()] = field(default_factory=ClusterOptions)

    def __post_init__(self) -> None:
        check_ranges(self)


def run_pursue(job: PursueJob, reporter: Reporter) -> Document:
    """Find and save; return the path of each target, what was chosen of it, seconds and memory.

    Raises
    ------
    InputError
        Anything that can be found wrong with data or settings; nothing has been written.
    MemoryBudgetError
        What the choice takes does not fit.
    ClusterError
        No cluster, or one that was lost.
    """
    check_side_files(job.plot, None, replace=job.overwrite)
    ensure_writable(job.out, job.overwrite, LINEAR_MODEL_KIND)
    dataset = open_dataset(job.dataset)
    if dataset.n_targets == 0:
        raise InputError(f"'{dataset.url}' has no targets to train on; ingest the data again with --target")
    warn_of_labels(dataset, None, reporter)
    with PeakMemory() as memory:
        with open_executor(job.cluster, dataset.n_samples, reporter) as executor, reporter.work("pursue") as show:
            announce(executor, reporter)
            resident, budget = memory_budget(job.memory_limit_bytes)
            trained = train_linear(
                dataset,
                job.settings,
                executor,
                memory_bytes=max(0, budget - resident),
                told=lambda what, done, of: show(WorkProgress(what, done, of, "parts")),
            )
        peak_bytes = memory.bytes
    targets = [
        _of_target(dataset, target, some, float(trained.intercept[target]))
        for target, some in enumerate(trained.targets)
    ]
    summary: dict[str, Any] = {
        "method": job.settings.method,
        "choice": _choice(job.settings),
        "n": dataset.n_samples,
        "d": dataset.n_features,
        "p": dataset.n_targets,
        "targets": targets,
        "passes": trained.passes,
        "seconds": trained.seconds,
        "peak_memory_bytes": peak_bytes,
    }
    summary = plain(summary)
    _warn(job, trained, reporter, dataset)
    save_linear_model(job.out, dataset, trained.coefficients, trained.intercept, summary, overwrite=job.overwrite)
    if job.plot is not None:
        plot_weights(job.plot, trained.targets, dataset, title=f"{job.settings.method}: {summary['choice']}")
    return {
        "command": "pursue",
        "out": job.out,
        "dataset": dataset.url,
        **summary,
        "plot": job.plot,
        "warnings": list(reporter.warnings),
    }


def _choice(settings: LinearSettings) -> str:
    if not settings.validates:
        return f"{settings.cardinality} weights were asked for"
    if settings.held_out is not None:  # of one part there is no deviation
        return f"least error, on {settings.held_out:.0%} of the samples, held out"
    rule = {
        "best": "least error",
        "tenth": "the fewest weights within a tenth of the deviation of the least error",
        "one-standard-error": "the fewest weights within a standard error of the least error",
    }
    return f"{rule[str(settings.cardinality)]}, on {settings.folds} folds"


def _of_target(dataset: Dataset, target: int, some: PathOfTarget, intercept: float) -> Document:
    """Describe a target's choice, with its standardised intercept, and its path: in the data's own units."""
    to = dataset.standardisation
    scale, names = float(to.target_std[target]), dataset.feature_names
    factors = scale / to.input_std
    path: list[Document] = []
    before: set[int] = set()
    for k, (support, weights) in enumerate(zip(some.path.supports, some.path.weights, strict=True)):
        here = set(support.tolist())
        path.append(
            {
                "cardinality": k,
                "joined": [names[index] for index in support.tolist() if index not in before],
                "left": [names[index] for index in sorted(before - here)],
                "error": float(some.errors[k]) * scale**2,
                "score": None if some.scores is None else float(some.scores[k]) * scale**2,
                "std": None if some.spread is None else float(some.spread[k]) * scale**2,
                "weights": _named(names, support.tolist(), weights * factors[support]),
            }
        )
        before = here
    chosen = path[some.cardinality]
    support, weights = some.path.at(some.cardinality)
    moved = float((weights * factors[support]) @ to.input_mean[support])
    return {
        "name": dataset.target_names[target],
        "cardinality": some.cardinality,
        "error": chosen["error"],
        "score": chosen["score"],
        "weights": chosen["weights"],
        "intercept": float(to.target_mean[target]) + scale * intercept - moved,
        "reason": some.reason,
        "path": path,
    }


def _named(names: tuple[str, ...], support: list[int], weights: FloatArray) -> dict[str, float]:
    return {names[index]: float(weight) for index, weight in zip(support, weights, strict=True)}


def _warn(job: PursueJob, trained: TrainedLinear, reporter: Reporter, dataset: Dataset) -> None:
    """Say where a path did not come to what was asked for, or where no feature helps."""
    for name, some in zip(dataset.target_names, trained.targets, strict=True):
        cardinality = job.settings.cardinality
        if isinstance(cardinality, int) and some.path.longest < cardinality:
            reporter.warn(f"the path of '{name}' ends at {some.path.longest} of {cardinality} weights: {some.reason}")
        if some.cardinality == 0:
            reporter.warn(
                f"no feature lowers the error of '{name}' on samples that were left out; it is its mean alone"
            )
        elif some.scores is not None and int(np.argmin(some.scores)) == job.settings.most(dataset.n_features) < (
            dataset.n_features
        ):
            reporter.warn(
                f"the error of '{name}' on samples that were left out is least at the path's end, {some.path.longest} "
                "features; a longer one (`longest`) may lower it"
            )
