"""`dkgp pursue`: linear regression with few weights, by sparse conjugate directions pursuit or another method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from dkgp.cluster import BlockExecutor, ClusterOptions
from dkgp.commands.job_options import DATASET, MEMORY_LIMIT, MODEL_OUT, OVERWRITE
from dkgp.commands.recipe import command
from dkgp.commands.reporting.memory import memory_budget
from dkgp.commands.reporting.outputs import Document, check_side_files, plain
from dkgp.commands.reporting.plots import plot_weights
from dkgp.commands.reporting.progress import Reporter, WorkProgress
from dkgp.commands.run import Run, warn_of_labels
from dkgp.data import LINEAR_MODEL_KIND, Dataset, ensure_writable, save_linear_model
from dkgp.models.linear import LinearSettings, PathOfTarget, TrainedLinear, train_linear
from dkgp.operators.base import FloatArray
from dkgp.options import Checked, Part
from dkgp.registry import Option

PLOT = Option(
    help="Plot weights and errors against the number of weights into a .png, .pdf or .svg file.",
    metavar="FILE",
    place="write",
)


@command(
    """
    The command adds one feature after another to a linear model, and chooses their number by cross-validation. Weights
    are printed in the features' own units. `dkgp predict` and `dkgp evaluate` read the model; its means have no proven
    bounds. Memory grows with F d² for d features and F folds. If this is too much, a numeric --cardinality uses less
    memory and takes one pass over the samples per feature.
    """,
    "dkgp pursue train.zarr --out weights.zarr",
    "dkgp pursue train.zarr --out weights.zarr --cardinality 5 --plot path.png",
    "dkgp pursue train.zarr --out weights.zarr --method lasso --cardinality one-standard-error --json",
)
@dataclass(frozen=True)
class PursueJob(Checked):
    """Data, settings and outputs of a sparse linear regression."""

    dataset: Annotated[str, DATASET]
    out: Annotated[str, MODEL_OUT]
    settings: Annotated[LinearSettings, Part()] = field(default_factory=LinearSettings)
    memory_limit_bytes: Annotated[int | None, MEMORY_LIMIT] = None
    plot: Annotated[str | None, PLOT] = None
    overwrite: Annotated[bool, OVERWRITE] = False
    cluster: Annotated[ClusterOptions, Part()] = field(default_factory=ClusterOptions)


class PursueRun(Run):
    """A run of `dkgp pursue`."""

    command = "pursue"
    job: PursueJob

    def check(self) -> None:
        """Refuse existing outputs."""
        check_side_files(self.job.plot, None, replace=self.job.overwrite)
        ensure_writable(self.job.out, self.job.overwrite, LINEAR_MODEL_KIND)

    def open(self) -> None:
        """Open the data."""
        self.dataset = self.open_data()

    def tell(self) -> None:
        """Warn of labels, and of known noise, which a linear regression ignores."""
        warn_of_labels(self.dataset, None, self.reporter)
        if self.dataset.noise_name is not None:
            self.reporter.warn(
                f"the known noise '{self.dataset.noise_name}' is not used by a linear regression: all samples have "
                f"the same weight"
            )

    def work(self, executor: BlockExecutor) -> TrainedLinear:
        """Select the features of each target within the memory limit."""
        resident, budget = memory_budget(self.job.memory_limit_bytes)
        with self.reporter.work("pursue") as show:
            return train_linear(
                self.dataset,
                self.job.settings,
                executor,
                memory_bytes=max(0, budget - resident),
                told=lambda what, done, of: show(WorkProgress(what, done, of, "parts")),
            )

    def conclude(self, result: TrainedLinear, peak_bytes: int) -> Document:
        """Save the weights; return the path and the selection of each target, the run time and the memory."""
        job, dataset, method = self.job, self.dataset, self.job.settings.method
        summary: dict[str, Any] = plain(
            {
                "method": method,
                "choice": _choice(job.settings),
                "n": dataset.n_samples,
                "d": dataset.n_features,
                "p": dataset.n_targets,
                "targets": [
                    _of_target(dataset, target, path, float(result.intercept[target]))
                    for target, path in enumerate(result.targets)
                ],
                "passes": result.passes,
                "seconds": result.seconds,
                "peak_memory_bytes": peak_bytes,
            }
        )
        _warn(job, result, self.reporter, dataset)
        save_linear_model(job.out, dataset, result.coefficients, result.intercept, summary, overwrite=job.overwrite)
        if job.plot is not None:
            plot_weights(job.plot, result.targets, dataset, title=f"{method}: {summary['choice']}")
        return {
            "command": self.command,
            "out": job.out,
            "dataset": dataset.url,
            **summary,
            "plot": job.plot,
            "warnings": list(self.reporter.warnings),
        }


def _choice(settings: LinearSettings) -> str:
    if not settings.validates:
        return f"{settings.cardinality} weights, as requested"
    if settings.held_out is not None:  # a single fold has no standard deviation
        return f"least error on a held-out {settings.held_out:.0%} of the samples"
    rule = {
        "best": "least error",
        "tenth": "the fewest weights whose error is within a tenth of a standard deviation of the least error",
        "one-standard-error": "the fewest weights whose error is within one standard error of the least error",
    }
    return f"{rule[str(settings.cardinality)]}, on {settings.folds} folds"


def _of_target(dataset: Dataset, target: int, some: PathOfTarget, intercept: float) -> Document:
    """Describe a target's selection, with its standardised intercept, and its path in the units of the data."""
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
    """Warn if a path ended before the requested cardinality, or if no feature helps."""
    for name, some in zip(dataset.target_names, trained.targets, strict=True):
        cardinality = job.settings.cardinality
        if isinstance(cardinality, int) and some.path.longest < cardinality:
            reporter.warn(f"the path of '{name}' ends at {some.path.longest} of {cardinality} weights: {some.reason}")
        if some.cardinality == 0:
            reporter.warn(
                f"no feature lowers the error of '{name}' on held-out samples, so the model predicts its mean"
            )
        elif some.scores is not None and int(np.argmin(some.scores)) == job.settings.most(dataset.n_features) < (
            dataset.n_features
        ):
            reporter.warn(
                f"the error of '{name}' on held-out samples is smallest at the end of the path, with "
                f"{some.path.longest} features. A longer path (`longest`) may lower it"
            )
