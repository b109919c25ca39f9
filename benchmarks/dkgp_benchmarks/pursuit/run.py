"""`dkgp bench pursuit`: figures 3 to 13 of the paper, in the order of their numbers.

P. Karsmakers, K. Pelckmans, K. De Brabanter, H. Van hamme, J. A. K. Suykens, Sparse conjugate directions pursuit with
application to fixed-size kernel models, Machine Learning 85 (2011).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dkgp.commands.reporting.measurements import Column, check_record_file, report, write_record
from dkgp.commands.reporting.outputs import Document, check_output_file, plain
from dkgp.commands.reporting.plots import check_plot_file, drawn
from dkgp.commands.reporting.progress import Reporter
from dkgp.errors import InputError
from dkgp_benchmarks.pursuit.job import BenchPursuitJob, PaperFigure

# Number -> module of this package, function of (job, reporter); it returns a PaperFigure, or None: data are absent.
FIGURES: dict[str, tuple[str, str]] = {
    "3": ("planes", "figure_3"),
    "4": ("planes", "figure_4"),
    "5": ("sensing", "figure_5"),
    "6": ("sensing", "figure_6"),
    "7": ("ripley", "figure_7"),
    "8": ("ripley", "figure_8"),
    "9": ("fronts", "figure_9"),
    "10": ("fronts", "figure_10"),
    "11": ("clock", "figure_11"),
    "12": ("homotopies", "figure_12"),
    "13": ("homotopies", "figure_13"),
}

COLUMNS = (
    Column("figure", "figure", text=True),
    Column("data", "data", text=True),
    Column("method", "method", text=True),
    Column("what", "what", text=True),
    Column("value", "value", ".4g"),
    Column("spread", "+-", ".2g"),
    Column("paper", "paper", text=True),
)
CAUTIONS = {
    "machine": "The paper's seconds are MATLAB's on a Core 2 Quad; seconds here compare with seconds here alone, of "
    "one run on one machine.",
    "parameters": "The paper does not print the hyperparameters that its figures were made with: they are tuned here.",
}


def run_bench_pursuit(job: BenchPursuitJob, reporter: Reporter) -> Document:
    """Make the figures; return the record.

    Raises
    ------
    InputError
        A folder or numbers that cannot be worked with.
    OutputExistsError
        A picture that is there already.
    """
    job.check()
    numbers = [number for number in FIGURES if not job.figures or number in job.figures]
    check_record_file(job.out)
    _check_pictures(job, numbers)
    rows: list[dict[str, Any]] = []
    figures: dict[str, Any] = {}
    curves, absent, pictures, remarks = {}, [], [], {}
    for number in numbers:
        found = make_figure(number, job, reporter)
        if found is None:
            reporter.warn(f"figure {number} is left out: its data are not in the folder `data`")
            absent.append(number)
            continue
        rows += [{"figure": number, **row} for row in found.rows]
        figures |= {f"figure {number}: {what}": value for what, value in found.figures.items()}
        curves[number] = found.curves
        if found.remarks:
            remarks[number] = found.remarks
        if job.plots is not None:
            path = picture_of(job.plots, number)
            with drawn(path, found.width, found.height, f"Figure {number}: {found.title}") as figure:
                found.draw(figure)
            pictures.append(str(path))
        # Figures may take minutes: those that are done are not lost where a later one is interrupted.
        write_record(_record(job, rows, figures, curves, absent, pictures, remarks), job.out)
    return write_record(_record(job, rows, figures, curves, absent, pictures, remarks), job.out)


def make_figure(number: str, job: BenchPursuitJob, reporter: Reporter) -> PaperFigure | None:
    """Measure one figure; None where its data are not in the folder `data`."""
    module, name = FIGURES[number]
    make: Callable[[BenchPursuitJob, Reporter], PaperFigure | None]
    make = getattr(importlib.import_module(f"dkgp_benchmarks.pursuit.{module}"), name)
    return make(job, reporter)


def _record(
    job: BenchPursuitJob,
    rows: list[dict[str, Any]],
    figures: dict[str, Any],
    curves: dict[str, Any],
    absent: list[str],
    pictures: list[str],
    remarks: dict[str, Any],
) -> Document:
    without = ("figures", "plots", "overwrite", "out", "keep")
    settings = {name: value for name, value in asdict(job).items() if name not in without}
    document = report("pursuit", "Sparse conjugate directions pursuit", COLUMNS, rows, figures, **settings)
    document |= plain({"curves": curves, "absent": absent, "pictures": pictures, "remarks": remarks})
    document["cautions"] = CAUTIONS
    return document


def picture_of(folder: str, number: str) -> Path:
    """File of a figure's picture."""
    return Path(folder).expanduser() / f"figure_{number}.png"


def _check_pictures(job: BenchPursuitJob, numbers: list[str]) -> None:
    if job.plots is None:
        return
    if Path(job.plots).expanduser().is_file():
        raise InputError(f"`plots` needs a folder; '{job.plots}' is a file")
    for number in numbers:
        path = picture_of(job.plots, number)
        check_plot_file(path)
        check_output_file(path, replace=job.overwrite, option="`plots`")
