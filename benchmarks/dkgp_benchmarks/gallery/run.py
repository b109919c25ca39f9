"""`dkgp bench gallery`: every example by both packages, their pictures beside each other, and how far they differ."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dkgp.commands.reporting.measurements import Column, check_record_file, report, write_record
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter, WorkProgress
from dkgp.errors import InputError, UsageError
from dkgp_benchmarks.gallery.classification import equal_probabilities, exclusive_or, iris, threshold
from dkgp_benchmarks.gallery.example import Example, FloatArray, differences
from dkgp_benchmarks.gallery.pictures import beside
from dkgp_benchmarks.gallery.regression import (
    co2,
    kernel_ridge,
    noise_level,
    noisy_targets,
    prior_and_posterior,
    sequences,
)

EXAMPLES: dict[str, Callable[[], Example]] = {
    "noisy-targets": noisy_targets,
    "noise-level": noise_level,
    "prior-posterior": prior_and_posterior,
    "kernel-ridge": kernel_ridge,
    "co2": co2,
    "sequences": sequences,
    "threshold": threshold,
    "iris": iris,
    "equal-probabilities": equal_probabilities,
    "exclusive-or": exclusive_or,
}

COLUMNS = (
    Column("example", "example", text=True),
    Column("n", "samples", ",d"),
    Column("mean", "mean", ".1e"),
    Column("std", "std", ".1e"),
    Column("probability", "probability", ".1e"),
    Column("theta", "theta", ".1e"),
    Column("likelihood", "log likelihood", ".1e"),
    Column("seconds", "dkgp, s", ".2f"),
    Column("their_seconds", "scikit-learn, s", ".2f"),
)


@dataclass(frozen=True)
class BenchGalleryJob:
    """Examples by name (all by default), a folder for pictures, and a file of CO2's measurements."""

    examples: tuple[str, ...] = ()
    pictures: str | None = None
    co2_file: str | None = None
    out: str | None = None


def run_bench_gallery(job: BenchGalleryJob, reporter: Reporter) -> Document:
    """Solve each example by scikit-learn's classes and by dkgp's, and compare; a row each.

    Raises
    ------
    UsageError
        An example that is not here.
    InputError
        A file that is no table of dates and measurements.
    """
    check_record_file(job.out)
    unknown = [name for name in job.examples if name not in EXAMPLES]
    if unknown:
        raise UsageError(f"there is no example '{unknown[0]}'; --example takes {', '.join(EXAMPLES)}")
    months = None if job.co2_file is None else read_months(job.co2_file)
    names = [name for name in EXAMPLES if not job.examples or name in job.examples]
    folder = None if job.pictures is None else Path(job.pictures)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with reporter.work("gallery") as show:
        for number, name in enumerate(names):
            show(WorkProgress(name, number, len(names), "examples"))
            rows.append(_row(co2(months) if name == "co2" else EXAMPLES[name](), folder))
        show(WorkProgress("done", len(names), len(names), "examples"))
    kinds = ("mean", "std", "probability", "theta", "likelihood")
    largest = {
        f"largest_{kind}": max(values)
        for kind in kinds
        if (values := [row[kind] for row in rows if row[kind] is not None])
    }
    title = "scikit-learn's gallery: largest differences between dkgp's and scikit-learn's results"
    return write_record(report("gallery", title, COLUMNS, rows, largest, **vars(job)), job.out)


def read_months(path: str) -> tuple[FloatArray, FloatArray]:
    """Monthly means of a CSV file of dates (19580329, or 1958-03-29) and ppm: years (n,) and ppm (n,).

    Months without a measurement are left out. `InputError` for another table.
    """
    import pandas as pd

    try:
        table = pd.read_csv(path, dtype={"date": str})
        weeks = pd.Series(table["co2"].to_numpy(dtype=np.float64), index=pd.to_datetime(table["date"]))
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"'{path}' is no CSV file with the columns date and co2 ({error})") from error
    means = weeks.resample("ME").mean().dropna()
    index: Any = means.index
    return (index.year + index.month / 12.0).to_numpy(dtype=np.float64), means.to_numpy(dtype=np.float64)


def _row(example: Example, folder: Path | None) -> dict[str, Any]:
    import sklearn.gaussian_process as theirs

    import dkgp

    solved, seconds = [], []
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # both sides warn of the same bounds
        for room in (dkgp, theirs):
            began = time.perf_counter()
            solved.append(example.solve(room))
            seconds.append(time.perf_counter() - began)
    figures = differences(solved[0], solved[1], example.spread)
    if folder is not None:
        beside(folder / f"{example.name}.png", example, solved[0], solved[1], figures)
    return {"example": example.name, "n": example.n, **figures, "seconds": seconds[0], "their_seconds": seconds[1]}
