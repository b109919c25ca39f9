"""`dkgp tune --kernel auto`: a few kernels on the same samples, scored on the same held-out ones; the best is tuned.

Each is tuned on one subset of at most `COMPARED` samples, which costs an eighth of a search on the usual 2,000, and
predicts rows that were held out of it. The one of the least negative log predictive density is then tuned as if it had
been named.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dkgp.cluster import BlockExecutor
from dkgp.commands.tune.job import TuneJob
from dkgp.commands.tune.run import TuneRun
from dkgp.errors import InputError, NumericalError, UsageError
from dkgp.models import Hyperparameters, tune_dataset
from dkgp.options import check_ranges

AUTO_KERNEL = "auto"
# In the order in which they are tried, so that a budget that ends early has seen the smooth, the rough and the linear.
COMPARED_KERNELS = ("rbf", "matern32", "rbf + linear", "matern52", "rq", "matern12")
COMPARED, HELD_OUT = 1000, 0.5
# Below which a held-out density says little.
LEAST_SAMPLES = 20


class KernelsRun(TuneRun):
    """A run that compares kernels first; `job` has the one that was taken from then on."""

    asked: TuneJob

    def check(self) -> None:
        """Refuse options of another search beside `kernel` auto."""
        job = self.asked = self.job
        check_ranges(job)
        for name, value in (("likelihood", job.of_labels), ("start", job.start)):
            if value is not None:
                raise UsageError(
                    f"`kernel` auto compares kernels of regressions from their own start; leave `{name}` out"
                )
        if job.evidence is not None:
            raise UsageError(
                f"`kernel` auto compares kernels on subsets; leave out `objective` {job.objective}, or name the kernel"
            )
        super().check()

    def open(self) -> None:
        """Open the data; `InputError` where they are too few to hold some out."""
        super().open()
        if self.dataset.n_samples < LEAST_SAMPLES:
            raise InputError(
                f"`kernel` auto holds samples out to compare kernels, and needs {LEAST_SAMPLES}; "
                f"'{self.dataset.url}' has {self.dataset.n_samples}. Name the kernel"
            )

    def check_choices(self) -> None:
        """Refuse what does not fit one of the kernels."""
        for _ in self._each_kernel():
            super().check_choices()

    def check_memory(self, executor: BlockExecutor) -> None:
        """Refuse what does not fit for one of the kernels."""
        for _ in self._each_kernel():
            super().check_memory(executor)

    def search(self, executor: BlockExecutor) -> Hyperparameters:
        """Compare, then tune the best kernel as if it had been named."""
        comparison = self._compare(executor)
        kernel = comparison["kernel"]
        self.job = replace(self.asked, kernel=kernel)
        return replace(super().search(executor), comparison=comparison)

    def _each_kernel(self) -> Iterator[str]:
        for kernel in COMPARED_KERNELS:
            self.job = replace(self.asked, kernel=kernel)
            yield kernel
        self.job = self.asked

    def _compare(self, executor: BlockExecutor) -> dict[str, Any]:
        """Tune and score one kernel after another, until the budget is spent."""
        job, began = self.asked, time.perf_counter()
        size = min(job.subset, COMPARED, self.dataset.n_samples)
        rows: list[dict[str, Any]] = []
        for kernel in COMPARED_KERNELS:
            spent = time.perf_counter() - began
            longest = max((row["seconds"] for row in rows), default=0.0)
            if rows and spent + longest > job.kernel_seconds:
                left_out = COMPARED_KERNELS[len(rows) :]
                self.reporter.warn(
                    f"{len(rows)} of {len(COMPARED_KERNELS)} kernels were compared in the {job.kernel_seconds:.3g} s "
                    f"that this may take; left out: {', '.join(left_out)}"
                )
                break
            rows.append(self._scored(kernel, size, executor))
        scored = [row for row in rows if row["nlpd"] is not None and math.isfinite(row["nlpd"])]
        if not scored:
            raise NumericalError(
                f"none of the kernels {', '.join(row['kernel'] for row in rows)} could be tuned on {size:,} samples; "
                "name one with `kernel`"
            )
        best = min(scored, key=lambda row: row["nlpd"])
        self.reporter.note(
            f"the kernel is {best['kernel']}: NLPD {best['nlpd']:.4f} on {best['rows']:,} held-out samples, the least "
            f"of {len(scored)} kernels"
        )
        return {"kernel": best["kernel"], "samples": size, "held_out": best["rows"], "kernels": rows}

    def _scored(self, kernel: str, size: int, executor: BlockExecutor) -> dict[str, Any]:
        """A kernel's held-out figures; None for those of one that could not be tuned."""
        job, began = self.asked, time.perf_counter()
        figures: dict[str, Any] = {"rows": 0, "nlpd": None, "rmse": None, "coverage_95": None}
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
                    holdout=HELD_OUT,
                    progress=progress,
                    **job.named(),
                )
            except NumericalError as error:
                self.reporter.note(f"{kernel} could not be tuned: {error}")
            else:
                assert tuned.scores is not None
                figures = {name: tuned.scores["holdout"][name] for name in figures}
        seconds = time.perf_counter() - began
        self.reporter.note(f"{kernel}: " + ("no result" if figures["nlpd"] is None else f"NLPD {figures['nlpd']:.4f}"))
        return {"kernel": kernel, **figures, "seconds": seconds}
