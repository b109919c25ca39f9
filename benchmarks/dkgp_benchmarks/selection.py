"""`dkgp bench selection`: greedy against cyclic and gradient selection, same block size (GBCD paper, Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dkgp.bench.problem import ProblemJob
from dkgp.cluster import BlockExecutor, ClusterOptions, open_executor
from dkgp.commands.reporting.measurements import ENTRIES, Column, report, write_record
from dkgp.commands.reporting.outputs import Document, check_side_files
from dkgp.commands.reporting.plots import drawn
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset, open_dataset
from dkgp.models import Hyperparameters, read_hyperparameters
from dkgp.models.context import RunContext
from dkgp.models.exact import TrainedModel, train

LABELS = {
    "gbcd": "GBCD (greedy)",
    "bcdc": "BCDC (cyclic)",
    "bcdg": "BCDG (gradient)",
}
# The objective's minimum is taken from a solve this much tighter.
REFERENCE_TIGHTENING = 100.0

COLUMNS = (
    Column("selection", "selection", text=True),
    Column("converged", "converged", text=True),
    Column("iterations", "rounds", "d"),
    Column("column_passes", "passes", ".2f"),
    ENTRIES,
    Column("gradient_inf_norm", "largest residual", ".2e"),
    Column("objective_gap", "objective above its minimum", ".3e"),
    Column("seconds", "seconds", ".2f"),
)


@dataclass(frozen=True)
class BenchSelectionJob(ProblemJob):
    """A comparison of selections; without conjugate memory, one variable a step unless asked for, as in the paper."""

    solver: SolverOptions = field(
        default_factory=lambda: SolverOptions("gbcd", memory=0, max_passes=30.0, variables_per_step=1)
    )
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    plot: str | None = None
    overwrite: bool = False


def run_bench_selection(job: BenchSelectionJob, reporter: Reporter) -> Document:
    """Run all three; return where each ended, and draw gradient and objective by iteration where asked for."""
    check_side_files(job.plot, None, replace=job.overwrite)
    trained: dict[str, TrainedModel] = {}
    with job.prepared(reporter) as (prepared, _):
        dataset = open_dataset(prepared.train)
        found = read_hyperparameters(prepared.hyper)
        with open_executor(job.cluster, dataset.n_samples, reporter) as executor:
            for solver, label in LABELS.items():
                per_step = job.solver.variables_per_step if solver == "gbcd" else None
                options = job.solver.changed(solver=solver, variables_per_step=per_step)
                trained[label] = _train(options, dataset, found, executor, reporter, label)
            tight = SolverOptions("gbcd", tolerance=job.solver.tolerance / REFERENCE_TIGHTENING, precision="double")
            reference = _train(tight, dataset, found, executor, reporter, "reference")
    minimum = float(reference.summary["objective"])
    rows = [_row(label, model, minimum) for label, model in trained.items()]
    histories = {label: [progress.to_json() for progress in model.solution.history] for label, model in trained.items()}
    block_size = trained[LABELS["gbcd"]].solution.solver["block_size"]
    title = job.title("Selection", prepared, f"m = {block_size:,}")
    if job.plot is not None:
        plot_comparison(job.plot, histories, minimum=minimum, tolerance=job.solver.tolerance, title=title)
    figures = {"objective_minimum": minimum, "block_size": block_size}
    document = report("selection", title, COLUMNS, rows, figures, **job.settings(prepared), histories=histories)
    document["plot"] = job.plot
    return write_record(document, job.out)


def plot_comparison(
    path: str, histories: Mapping[str, Sequence[Mapping[str, Any]]], *, minimum: float, tolerance: float, title: str
) -> None:
    """Draw several methods on one problem, as Figure 3 of the GBCD paper does: by iteration, logarithmic.

    Parameters
    ----------
    histories : mapping
        Name of the method -> its records.
    minimum : float
        The objective's minimum, as well as it is known; the gap to it is drawn.
    tolerance : float
        Drawn as a line.
    """
    with drawn(path, 11.0, 4.5, title) as figure:
        left, right = figure.subplots(1, 2)
        for name, history in histories.items():
            columns = ("iteration", "gradient_inf_norm", "objective")
            rounds, gradient, objective = np.array([[row[column] for column in columns] for row in history]).T
            left.semilogy(rounds, gradient, label=name)
            gap = objective - minimum
            # What lies at the minimum to within rounding has no place on a logarithmic axis.
            shown = gap > 1e-12 * abs(minimum)
            right.semilogy(rounds[shown], gap[shown], label=name)
        left.axhline(tolerance, color="grey", linestyle="--", linewidth=1, label="tolerance")
        left.set(xlabel="iteration", ylabel="max |g|")
        right.set(xlabel="iteration", ylabel="objective above its minimum")
        for axis in (left, right):
            axis.grid(alpha=0.3)
            axis.legend()


def _train(
    options: SolverOptions,
    dataset: Dataset,
    found: Hyperparameters,
    executor: BlockExecutor,
    reporter: Reporter,
    label: str,
) -> TrainedModel:
    solver = options.build(dataset.n_samples, dataset.n_features, dataset.n_targets, reporter)
    with reporter.solve(label, options.tolerance) as show:
        return train(
            dataset,
            found.kernel,
            found.noise_variance,
            RunContext(executor, callback=show),
            solver=solver,
            stopping=options.stopping(),
        )


def _row(label: str, trained: TrainedModel, minimum: float) -> dict[str, Any]:
    summary = trained.summary
    names = ("converged", "iterations", "column_passes", "gradient_inf_norm", "seconds")
    return {
        "selection": label,
        "objective_gap": summary["objective"] - minimum,
        "entries": summary["kernel_evaluations"] / summary["n"] ** 2,
        **{name: summary[name] for name in names},
    }
