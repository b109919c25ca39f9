"""`dkgp krige check`: cross-validation of a kriged field, sample by sample or by blocks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from dkgp.cluster import BlockExecutor, ClusterOptions
from dkgp.commands.job_options import OVERWRITE
from dkgp.commands.recipe import command
from dkgp.commands.reporting.layout import Figure, sheet_of
from dkgp.commands.reporting.outputs import Document, check_output_file, check_side_files, dump, plain, write_text
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.signals import interruptible
from dkgp.kriging.commands.krige import FieldRun
from dkgp.kriging.commands.options import DOCUMENT, FIELD, PLOT
from dkgp.kriging.crossvalidation import BlockKFold, folds_errors, leave_one_out, sample_coordinates, scores
from dkgp.kriging.pictures import plot_cross_validation
from dkgp.options import SEED, Part, check_ranges
from dkgp.registry import Option


@command(
    """
    MODEL is a field of `dkgp krige fit`. Predicts each sample from the others: one by one, or with --blocks from the
    samples outside its fold of blocks, so that no close neighbour helps. The variogram is that of all samples. Reports
    ME (mean error), RMSE, R2, SRMSE (error over deviation; 1 is ideal), LE68 and LE90 (percentiles of the absolute
    error), and the coverage of 95 % intervals.
    """,
    "dkgp krige check zinc.zarr",
    "dkgp krige check zinc.zarr --blocks 500 --folds 10 --plot cv.png",
)
@dataclass(frozen=True)
class KrigeCheckJob:
    """A field, and the folds of its cross-validation."""

    model: Annotated[str, FIELD]
    blocks: Annotated[
        float | None, Option(help="Size of the blocks that are left out together, in map units.", above=0)
    ] = None
    folds: Annotated[int, Option(help="Folds of blocks.", least=2)] = 10
    plot: Annotated[str | None, PLOT] = None
    out: Annotated[str | None, DOCUMENT] = None
    overwrite: Annotated[bool, OVERWRITE] = False
    seed: Annotated[int, SEED] = 0
    cluster: Annotated[ClusterOptions, Part()] = field(default_factory=ClusterOptions)

    def __post_init__(self) -> None:
        check_ranges(self)


class KrigeCheckRun(FieldRun):
    """A run of `dkgp krige check`."""

    command = "krige check"
    job: KrigeCheckJob

    @property
    def places(self) -> list[str]:
        """Nothing that other runs would write to meanwhile."""
        return []

    def check(self) -> None:
        """Refuse files that are there."""
        check_side_files(self.job.plot, None, replace=self.job.overwrite)
        if self.job.out is not None:
            check_output_file(self.job.out, replace=self.job.overwrite, option="`out`")

    def work(self, executor: BlockExecutor) -> tuple[Any, Any, float]:
        """Predict the samples."""
        began, one, job = time.perf_counter(), self.kriging.field_, self.job
        if job.blocks is None:
            left = leave_one_out(one)
            return left.error, left.variance, time.perf_counter() - began
        x, y = list(sample_coordinates(one).values())[:2]
        folds = BlockKFold(job.blocks, n_splits=job.folds, shuffle=True, random_state=job.seed)
        parts = folds.folds(np.column_stack([x, y]))
        with interruptible(self.reporter.note) as interruption:
            errors = folds_errors(one, parts, context=self.context(executor, interruption))
        return *errors, time.perf_counter() - began

    def conclude(self, result: tuple[Any, Any, float], peak_bytes: int) -> Document:
        """Return the figures by target; draw and write them."""
        errors, variances, seconds = result
        job, one = self.job, self.kriging.field_
        figures = {
            name: scores(one.values[:, target], errors[:, target], variances[:, target])
            for target, name in enumerate(one.record.target_names)
        }
        kind = "leave-one-out" if job.blocks is None else f"{job.folds} folds of blocks of {job.blocks:g}"
        if job.plot is not None:
            target = one.record.target_names[0]
            title = f"{target}, {kind}: RMSE {figures[target]['RMSE']:.4g}"
            plot_cross_validation(Path(job.plot), one.values[:, 0], errors[:, 0], variances[:, 0], title)
        document: Document = plain(
            {
                "command": self.command,
                "model": job.model,
                "kind": kind,
                "n": one.n_samples,
                "figures": figures,
                **({} if job.plot is None else {"plot": job.plot}),
                **({} if job.out is None else {"out": job.out}),
                **self.cost(seconds, peak_bytes),
            }
        )
        if job.out is not None:
            write_text(job.out, dump(document) + "\n")
        return document


def run_krige_check(job: KrigeCheckJob, reporter: Reporter) -> Document:
    """Cross-validate; see `Run.run`."""
    return KrigeCheckRun(job, reporter).run()


def tables_krige_check(document: Document) -> list[Any]:
    """Return the figures of each target."""
    tables = []
    for target, figures in document["figures"].items():
        rows = [Figure(name, lambda of, name=name: f"{of[name]:.4g}") for name in figures if name != "n"]  # type: ignore[misc]
        title = f"Cross-validation of {target}: {document['kind']}, {document['n']:,} samples"
        tables.append(sheet_of(title, rows, figures))
    return tables
