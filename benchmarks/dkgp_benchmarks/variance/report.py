"""`dkgp bench variance`: predictive variances against Cholesky, which gives the exact ones, and a plain NumPy pass."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dkgp.commands.reporting.measurements import Column, check_record_file, report, write_record
from dkgp.commands.reporting.outputs import Document, check_side_files
from dkgp.commands.reporting.progress import Reporter
from dkgp_benchmarks.variance.measure import REFERENCES, VarianceTrial, contender_of, measure_variances
from dkgp_benchmarks.variance.plot import plot_intervals

Figures = dict[str, Any]

COLUMNS = (
    Column("contender", "method", text=True),
    Column("seconds", "seconds", ".2f"),
    Column("milliseconds_per_sample", "ms per sample", ".2f"),
    Column("milliseconds_per_sample_after_factor", "without the factor", ".2f"),
    Column("shared_seconds", "factor, s", ".2f"),
    Column("rank", "rank", "d"),
    Column("halo", "halo", "d"),
    Column("products_float32", "float32 products", ".2f"),
    Column("products_float64", "float64 products", ".2f"),
    Column("met_share", "narrow enough", ".1%"),
    Column("gap_mean", "mean width", ".2%"),
    Column("gap_95", "95 % of widths up to", ".2%"),
    Column("gap_max", "largest width", ".2%"),
    Column("peak_memory_bytes", "peak memory", "bytes"),
)
LABELS = {"cholesky": "Cholesky", "plain_pass": "NumPy pass"}
# Below the table: what Cholesky says of the intervals, and the ratios that count.
SHOWN = (
    "samples_outside_interval",
    "largest_excess",
    "relative_rmse",
    "gap_median",
    "column_passes",
    "product_share",
    "seconds_to_cholesky",
    "seconds_to_cholesky_factor_alone",
    "memory_to_cholesky_matrix",
    "memory_to_cholesky",
    "seconds_to_plain_pass",
)


@dataclass(frozen=True)
class BenchVarianceJob:
    """A measurement, and where to draw the intervals (`plot`) and keep the figures (`out`)."""

    trial: VarianceTrial = field(default_factory=VarianceTrial)
    plot: str | None = None
    overwrite: bool = False
    out: str | None = None


def run_bench_variance(job: BenchVarianceJob, reporter: Reporter) -> Document:
    """Measure; return seconds, gaps and memory of each contender, and the ratios."""
    check_record_file(job.out)
    check_side_files(job.plot, None, replace=job.overwrite)
    trial = job.trial
    with tempfile.TemporaryDirectory(prefix="dkgp-bench-") as name:
        measured = measure_variances(trial, Path(name), reporter)
    by_gap = [measured.figures(intervals) for intervals in measured.intervals]
    rows = [_row(contender_of(figures["gap"]), figures) for figures in by_gap]
    rows += [_row(LABELS[name], measured.timed(name)) for name in REFERENCES if name in measured.runs]
    source = trial.problem.data if trial.model is None else f"{trial.model} at samples of {trial.problem.data}"
    title = (
        f"Variances: {source}, n = {measured.n:,}, d = {measured.d}, {measured.n_test:,} test samples, "
        f"median of {trial.repeats}"
    )
    if job.plot is not None:
        plot_intervals(job.plot, measured.intervals, title=title)
    names = ("n", "d", "n_test", "kernel", "noise_variance", "runs")
    settings = {**asdict(trial), **{name: getattr(measured, name) for name in names}}
    document = report("variance", title, COLUMNS, rows, _shown(by_gap), **settings)
    document["plot"] = job.plot
    document["warnings"] = list(reporter.warnings)
    return write_record(document, job.out)


def _row(contender: str, figures: Figures) -> Figures:
    milliseconds = {
        name.replace("seconds_", "milliseconds_", 1): 1000.0 * figures[name]
        for name in ("seconds_per_sample", "seconds_per_sample_after_factor")
        if name in figures
    }
    return {"contender": contender, **figures, **milliseconds}


def _shown(by_gap: Sequence[Figures]) -> Figures:
    return {
        (name if len(by_gap) == 1 else f"{name}_at_gap_{figures['gap']:g}"): figures[name]
        for name in SHOWN
        for figures in by_gap
        if name in figures
    }
