"""`dkgp krige check`: cross-validation of a kriged field, sample by sample or by blocks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.cluster import BlockExecutor
from dkgp.commands.reporting.layout import Figure, plain_number, sheet_of
from dkgp.commands.reporting.outputs import Document, check_results, plain, with_results
from dkgp.commands.signals import interruptible
from dkgp.kriging.commands.jobs import KrigeCheckJob
from dkgp.kriging.commands.krige import FieldRun
from dkgp.kriging.crossvalidation import BlockKFold, folds_errors, leave_one_out, sample_coordinates, scores
from dkgp.kriging.pictures import plot_cross_validation


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
        check_results(self.job)

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
        kind = "leave-one-out" if job.blocks is None else f"{job.folds} folds of blocks with sides of {job.blocks:g}"
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
                **self.cost(seconds, peak_bytes),
            }
        )
        return with_results(document, job)


SCORES = (
    Figure("mean error", lambda of: plain_number(of["ME"])),
    Figure("root mean square error", lambda of: plain_number(of["RMSE"])),
    Figure("R²", "{R2:.4f}"),
    Figure("absolute error of 68 % of the samples", lambda of: f"at most {plain_number(of['LE68'])}"),
    Figure("absolute error of 90 % of the samples", lambda of: f"at most {plain_number(of['LE90'])}"),
    Figure("root mean square standardised error", "{SRMSE:.4f}, 1 for a calibrated model"),
    Figure("coverage of 95 % intervals", "{coverage95:.4f}"),
    Figure("negative log predictive density", lambda of: f"{-of['log_score']:.4f}"),
)


def tables_krige_check(document: Document) -> list[Any]:
    """Return the figures of each target."""
    return [
        sheet_of(
            f"Cross-validation of {target}, errors in its units: {document['kind']}, {document['n']:,} samples",
            SCORES,
            figures,
        )
        for target, figures in document["figures"].items()
    ]
