"""Variances of a Gaussian process classifier's latent functions, in proven intervals, for its averaged probabilities.

Each column of decisions has its own noise, 1 / W at the mode. So each is a regression with its own factor and its own
`VarianceRun` (`dkgp.models.variance.scaled`); all columns share the memory. Intervals hold the exact approximation's
variances: the certificate bounds the factor by which W at the exact mode may differ, and variances differ by no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor, PendingRound
from dkgp.data import ClassifierRecord
from dkgp.errors import InputError
from dkgp.models.classification.laplace import LEAST_CURVATURE, settled
from dkgp.models.prediction.deciders import ClassifierSupport, Decider
from dkgp.models.prediction.streaming import Together
from dkgp.models.rounding import EPS, outward
from dkgp.models.variance.batch import Enough
from dkgp.models.variance.iterative import VarianceRun, default_memory_bytes
from dkgp.models.variance.scaled import ScaledInputs, ScaledSupport, ScaledTest, scaled_kernel
from dkgp.models.variance.settings import TestRows, VarianceSettings
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext


def latent_settings(settings: VarianceSettings | None) -> VarianceSettings:
    """The settings of latent variances: those given, or the defaults; a function of labels has no noise to include."""
    return replace(settings or VarianceSettings(), latent=True)


@dataclass(frozen=True)
class AverageNeeds:
    """The precision that averaged probabilities have use for in the variances of a column; see `settled`."""

    context: BlockContext  # of the model's points
    decider: Decider
    column: int
    factor: float  # by which the curvature may differ

    def at(self, inputs: FloatArray) -> Enough:
        """The rule for standardised test samples (x, 1), by their decisions and these' bounds."""
        values = self.decider.decide(self.context, np.ascontiguousarray(inputs[:, :-1]))
        mean, bound = (values[name][:, self.column] for name in ("decision", "decision_error_bound"))
        likelihood = self.decider.likelihood
        return lambda which, lower, upper: settled(likelihood, mean[which], bound[which], lower, upper, self.factor)


class ClassVariances:
    """The variances of one prediction by a Gaussian process of all samples; one `VarianceRun` for each column.

    `context`: of the model's points. `test`: as the model sees them. `settings`: of all columns together, as they were
    asked for; by default no variance is computed more precisely than averages have use for, by decisions of `decider`.
    `stored`: plans of the prediction that is resumed. `n_test`: test samples in all, where `test` is a part of them.

    Raises `InputError`: variances are asked for to a gap, and the prediction to resume was started without.
    """

    def __init__(
        self,
        model: ClassifierRecord,
        context: BlockContext,
        test: TestRows,
        executor: BlockExecutor,
        settings: VarianceSettings | None,
        decider: Decider,
        stored: Sequence[dict[str, Any]] | None = None,
        *,
        n_test: int | None = None,
    ) -> None:
        assert isinstance(context.source, ClassifierSupport)
        n, t = model.n_support, model.n_outputs
        for_averages = settings is None if stored is None else "averages" in stored[0]
        if for_averages and settings is not None:
            raise InputError(
                "the prediction to resume was started with variances as averages need them, not all to a gap; leave "
                "their options out, or `overwrite`"
            )
        self._for_averages, settings = for_averages, latent_settings(settings)
        factors = model.certificate.get("curvature_factor") or [None] * t
        self._factors = np.array([math.inf if factor is None else float(factor) for factor in factors])
        self._kernel = context.kernel
        self._neglected = float(n) * LEAST_CURVATURE * _largest(model, context)
        memory = (settings.memory_bytes or default_memory_bytes(n)) // t
        kernel = scaled_kernel(context.kernel, model.n_features)
        self._test = test
        self._supports: list[ScaledSupport] = []
        self._runs: list[VarianceRun] = []
        for column in range(t):
            source = ScaledInputs(context.source, column)
            support = ScaledSupport(source)
            column_context = BlockContext(f"{context.run_id}/column-{column}", source, kernel, n)
            run = VarianceRun(
                support,
                kernel,
                column_context,
                None,
                ScaledTest(test),
                executor,
                replace(settings, memory_bytes=memory),
                None if stored is None else stored[column],
                n_test=n_test,
                factors=t,
                needs=AverageNeeds(context, decider, column, float(self._factors[column])) if for_averages else None,
            )
            run.plan |= {"averages": True} if for_averages else {}
            self._supports.append(support)
            self._runs.append(run)
        # All runs go through the same regions, as long as the longest that one of them wants.
        self.region_rows = max(run.region_rows for run in self._runs)
        self.depth = self._runs[0].depth

    @property
    def plan(self) -> list[dict[str, Any]]:
        """The plan of each column, in plain JSON types."""
        return [run.plan for run in self._runs]

    def at(self, test: TestRows) -> ClassVariances:
        """The same runs at another part of the test samples, with figures of their own."""
        copy = object.__new__(ClassVariances)
        copy.__dict__ |= self.__dict__
        copy._test = test
        copy._runs = [run.at(ScaledTest(test)) for run in self._runs]
        return copy

    def prepare(self) -> str:
        """Have the factors built on the workers; say what was done."""
        notes = [run.prepare(support) for run, support in zip(self._runs, self._supports, strict=True)]
        if len(notes) == 1:
            return f"latent variances: {notes[0]}"
        return "; ".join(f"latent variances of column {column}: {words}" for column, words in enumerate(notes))

    def submit(self, start: int, stop: int) -> PendingRound:
        """Start a region: the rounds of all columns."""
        return Together([run.submit(start, stop) for run in self._runs])

    def collect(self, results: list[list[Any]], start: int, stop: int) -> dict[str, FloatArray]:
        """Join a region's results: the ends of intervals of the exact approximation's variances, (r, t) both."""
        columns = [run.collect(result)[2:] for run, result in zip(self._runs, results, strict=True)]
        lower, upper = (np.column_stack(ends) for ends in zip(*columns, strict=True))
        prior = np.asarray(self._kernel.diagonal(self._test.inputs(start, stop)), dtype=np.float64)[:, None]
        slack = prior * self._neglected
        with np.errstate(over="ignore"):
            high = upper * self._factors * (1.0 + 4.0 * EPS) + slack
        low, high = outward(lower / self._factors * (1.0 - 4.0 * EPS) - slack, high)
        # No posterior variance is above the prior's: where nothing is known of W, that is the only bound.
        most = np.nextafter(prior * (1.0 + 16.0 * EPS), np.inf)
        return {
            "latent_variance_lower": np.maximum(low, 0.0),
            "latent_variance_upper": np.maximum(np.fmin(high, most), np.maximum(low, 0.0)),
        }

    def summary(self, seconds: float) -> dict[str, Any]:
        """Figures of this run's samples: those of `VarianceRun`, the widest or the sum over columns."""
        figures = [run.summary(seconds) for run in self._runs]
        return {
            "gap": figures[0]["gap"],
            "gap_mean": float(np.mean([run["gap_mean"] for run in figures])),
            "gap_max": max(run["gap_max"] for run in figures),
            "unmet": sum(run["unmet"] for run in figures),
            "for_averages": self._for_averages,
            "column_passes": sum(run["column_passes"] for run in figures),
            "rank": [run["rank"] for run in figures],
            "halo": [run["halo"] for run in figures],
            "factor_seconds": sum(run["factor_seconds"] for run in figures),
            "curvature_factor": [factor if math.isfinite(factor) else None for factor in self._factors.tolist()],
        }


def _largest(model: ClassifierRecord, context: BlockContext) -> float:
    """Upper bound on the largest k(x, x) of the samples."""
    kernel = context.kernel
    if kernel.stationary:
        return float(kernel.diagonal(model.inputs(0, 1))[0]) * 1.01
    blocks = (context.bounds(block) for block in range(context.n_blocks))
    return 1.01 * max(float(kernel.diagonal(model.inputs(*rows)).max()) for rows in blocks)
