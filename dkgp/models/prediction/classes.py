"""The posterior of a classifier: decisions, classes and probabilities, and proofs of these.

Pieces of a region are the same whoever computes them, and so are the bits.

A Gaussian process's averaged probabilities take its latent functions' variances, in proven intervals. Each column of
decisions has its own noise, 1 / W at the mode. So each is a regression with its own factor and its own run of variances
(`dkgp.models.variance.scaled`); all columns share the memory. Intervals hold the exact approximation's variances: the
certificate bounds the factor by which W at the exact mode may differ, and variances differ by no more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.base import PendingRound
from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import ClassifierRecord
from dkgp.data.stores.prediction_store import PROBABILITIES
from dkgp.errors import InputError
from dkgp.kernels import fold_white, kernel_from_json
from dkgp.models.classification.laplace import LEAST_CURVATURE, settled
from dkgp.models.prediction.deciders import UNPROVEN, ClassifierSupport, Decider, decider_of
from dkgp.models.prediction.posterior import Columns, Pending, Posterior, Streamed, Want
from dkgp.models.prediction.sparse import PredictionMemory, of_unproven
from dkgp.models.rounding import EPS, outward
from dkgp.models.sums import EVERY_ENTRY, MemorySums, Piece, Rows, Sums, chosen_sums
from dkgp.models.variance.batch import Enough
from dkgp.models.variance.iterative import IterativeRun, default_memory_bytes
from dkgp.models.variance.run import Parts, Request
from dkgp.models.variance.scaled import ScaledInputs, ScaledSupport, Subject, scaled_kernel
from dkgp.models.variance.settings import SentRows, TestRows, VarianceSettings
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext

# Rows that latent variances are planned for, where nobody knows how many will come.
ROWS_PLANNED_FOR = 1024

Decided = tuple[IndexArray, dict[str, FloatArray]]


def decision_task(
    context: BlockContext, decider: Decider, sums: Sums, test: Rows, pieces: list[Piece]
) -> list[Decided]:
    """Rows of each piece, their decisions, and what goes with them."""
    decisions = []
    for piece in pieces:
        rows, inputs = sums.read(context, test, piece)
        decisions.append((rows, decider.decide(context, inputs, sums)))
    return decisions


@needs_one_arithmetic
def library_decision_task(
    context: BlockContext, decider: Decider, sums: Sums, test: Rows, pieces: list[Piece]
) -> list[Decided]:
    """Decisions as by `decision_task`, of sums within an error or by a method that takes BLAS."""
    return decision_task(context, decider, sums, test, pieces)


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
    """The variances of one prediction by a Gaussian process of all samples; one run for each column.

    By default no variance is computed more precisely than averages have use for, by decisions of `decider`; the
    settings of variances that are wanted are those of all columns together. `context`: of the model's points.

    Raises `InputError`: variances are asked for to a gap, and the prediction to resume was started without.
    """

    def __init__(self, model: ClassifierRecord, context: BlockContext, want: Want, decider: Decider) -> None:
        assert isinstance(context.source, ClassifierSupport)
        n, t = model.n_support, model.n_outputs
        stored = None if want.stored is None else want.stored.get("latent_variance")
        for_averages = want.variance is None if stored is None else "averages" in stored[0]
        if for_averages and want.variance is not None:
            raise InputError(
                "the prediction to resume was started with variances as averages need them, not all to a gap; leave "
                "their options out, or `overwrite`"
            )
        self._for_averages, settings = for_averages, latent_settings(want.variance)
        factors = model.certificate.get("curvature_factor") or [None] * t
        self._factors = np.array([math.inf if factor is None else float(factor) for factor in factors])
        self._kernel = context.kernel
        self._neglected = float(n) * LEAST_CURVATURE * _largest(model, context)
        settings = replace(settings, memory_bytes=(settings.memory_bytes or default_memory_bytes(n)) // t)
        kernel = scaled_kernel(context.kernel, model.n_features)
        rows, tests = want.rows(model.n_features), None if want.test is not None else want.n_test
        self._runs: list[IterativeRun] = []
        for column in range(t):
            source = ScaledInputs(context.source, column)
            column_context = BlockContext(f"{context.run_id}/column-{column}", source, kernel, n)
            plan = None if stored is None else stored[column]
            subject = Subject(ScaledSupport(source), kernel, column_context)
            request = Request(subject, None, rows, want.executor, settings, plan, tests)
            needs = AverageNeeds(context, decider, column, float(self._factors[column])) if for_averages else None
            run = IterativeRun(request, factors=t, needs=needs)
            run.plan |= {"averages": True} if for_averages else {}
            self._runs.append(run)
        # All runs go through the same regions, as long as the longest that one of them wants.
        self.region_rows = max(run.region_rows for run in self._runs)
        self.depth = self._runs[0].depth

    @property
    def plan(self) -> list[dict[str, Any]]:
        """The plan of each column, in plain JSON types."""
        return [run.plan for run in self._runs]

    def prepare(self) -> str:
        """Build the factors on the workers; return a line on them."""
        notes = [run.prepare() for run in self._runs]
        if len(notes) == 1:
            return f"latent variances: {notes[0]}"
        return "; ".join(f"latent variances of column {column}: {words}" for column, words in enumerate(notes))

    def submit(self, rows: TestRows, start: int, stop: int) -> list[PendingRound]:
        """Start a region: the rounds of all columns."""
        return [run.submit(rows, start, stop) for run in self._runs]

    def collect(self, results: list[list[Any]], inputs: FloatArray) -> dict[str, FloatArray]:
        """Join a region's results: the ends of intervals of the exact approximation's variances, (r, t) both."""
        ends = [run.collect(result) for run, result in zip(self._runs, results, strict=True)]
        lower = np.column_stack([each.lower for each in ends])
        upper = np.column_stack([each.upper for each in ends])
        prior = np.asarray(self._kernel.diagonal(inputs), dtype=np.float64)[:, None]
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


class ClassPosterior(Posterior[ClassifierRecord]):
    """Predictions of a classifier.

    Sums of decisions are within the wanted error; those of a Gaussian process with latent variances evaluate every
    entry, which takes less than the variances.

    Raises
    ------
    InputError
        A number as the error of sums over a few prototypes, or for a kernel without proven bounds; other settings of
        variances than those of the prediction to resume, or any where there are none.
    MemoryBudgetError
        Latent variances do not fit in their working memory.
    StoreError
        The model's support inputs cannot be read.
    """

    def __init__(self, model: ClassifierRecord, want: Want) -> None:
        self.model, self._want = model, want
        kernel, _ = fold_white(kernel_from_json(model.kernel), model.noise_variance)
        points = ClassifierSupport.of(model, want.version)
        self._context = BlockContext(want.version, points, kernel, model.n_support)
        self._require_sums(want)
        decider = self._decider = decider_of(model, plug_in=want.plug_in)
        self._variances: ClassVariances | None = None
        averages = model.form == "gp" and not model.is_sparse and not want.plug_in
        if want.test is not None:
            if model.neighbours is not None:
                PredictionMemory.of(model, want.executor.threads_per_process, variance=True).require(None)
            if want.variance is not None and not averages:
                self._refuse_variances(want)
        if averages:
            with single_threaded_blas():
                self._variances = ClassVariances(model, self._context, want, decider)
        self._sums = self._chosen_sums(want)
        self._computed = self._unproven = 0
        if self._variances is not None:
            self.depth, self.region_rows = self._variances.depth, self._variances.region_rows
        elif isinstance(self._sums, Sums):
            self.region_rows = self._sums.region_rows
        self.classes = model.classes
        self.n_support, self.assumes, self.variables = model.n_support, decider.assumes, decider.variables
        self.attributes = self._described(want)
        want.say(decider.lacks)

    def _require_sums(self, want: Want) -> None:
        model = self.model
        if want.test is None:
            return
        if want.error.number is not None and model.is_sparse:
            raise InputError(
                f"`product_error` is of sums over all training samples; '{model.url}' is a sum over "
                f"{model.n_support:,} prototypes, which takes no time. Leave it out"
            )
        model.inputs(0, min(1, model.n_support))  # points that are gone are noticed before anything is written

    def _refuse_variances(self, want: Want) -> None:
        if self.model.form == "gp" and not want.plug_in:
            raise InputError(
                f"`variance`: '{self.model.url}' is a classifier on a basis, which predicts its latent functions' "
                "variances without it; leave it out"
            )
        raise InputError(
            f"`variance`: '{self.model.url}' is a classifier, which has no variances; leave it out. A Gaussian process "
            "of all samples has those of its latent functions; bounds of decisions tell what of others is proven"
        )

    def _chosen_sums(self, want: Want) -> Sums | MemorySums:
        model, context, decider = self.model, self._context, self._decider
        if self._variances is not None or model.is_sparse:
            return EVERY_ENTRY
        if want.test is None:
            return MemorySums(context, want.error, lambda: decider.weighted(model, context))
        weights, errors = decider.weighted(model, context)
        return chosen_sums(
            context, want.executor, weights, want.test.n_samples, want.error, errors, want.stored, want.note
        )

    def _described(self, want: Want) -> dict[str, Any]:
        """Return the attributes of a store."""
        model = self.model
        attributes: dict[str, Any] = {} if self.assumes is None else {"assumes": self.assumes}
        attributes |= {"classes": list(model.classes), "method": model.form, "basis_size": model.n_support}
        if model.likelihood is not None:
            attributes["likelihood"] = model.likelihood["name"]
        if want.plug_in:
            attributes["plug_in"] = True
        if isinstance(self._sums, Sums):
            attributes |= self._sums.attributes
        if self._variances is not None:
            attributes["latent_variance"] = self._variances.plan
        return attributes

    def prepare(self) -> str | None:
        """Build the factors of latent variances; without these, a worker's first task opens the model."""
        return None if self._variances is None else self._variances.prepare()

    def remark(self) -> str | None:
        """Say of how many samples the neighbours may not be the nearest, if of any."""
        return of_unproven(self._unproven, self._computed, self.model.search_samples)

    def _shape(self, name: str) -> tuple[int, ...]:
        if name in ("class", "certified"):
            return ()
        return (len(self.model.classes),) if name in PROBABILITIES else (self.model.n_outputs,)

    def submit(self, rows: TestRows, start: int, stop: int, parts: Parts | None = None) -> Pending:
        """Start a region."""
        sums, order = (self._sums, None) if isinstance(self._sums, Sums) else self._sums.at(rows.inputs(start, stop))
        taken = rows if order is None else SentRows(rows.inputs(start, stop)[order])
        portable = sums.errors is None and not self._decider.takes_blas
        task = decision_task if portable else library_decision_task
        arguments = (self._context, self._decider, sums, taken)
        rounds = [self._start("kdecide", task, arguments, sums.pieces(start, stop))]
        if self._variances is not None:
            rounds += self._variances.submit(rows, start, stop)

        def conclude(results: list[Any]) -> Columns:
            decisions, *of_columns = results
            latent = {}
            if self._variances is not None:
                latent = self._variances.collect(of_columns, rows.inputs(start, stop))
            return self._columns(decisions, order, latent)

        return Pending(rounds, conclude)

    def _columns(self, decisions: list[Decided], order: IndexArray | None, latent: dict[str, FloatArray]) -> Columns:
        """Join a region's pieces; classes and probabilities follow from its decisions."""
        joined, places = dict(latent), np.concatenate([rows for rows, _ in decisions])
        places = places if order is None else order[places]
        for name in decisions[0][1]:
            by_piece = np.concatenate([values[name] for _, values in decisions])
            joined[name] = np.empty_like(by_piece)
            joined[name][places] = by_piece
        self._computed += len(places)
        self._unproven += int(joined.pop(UNPROVEN, np.zeros(0)).sum())
        values = self._decider.conclude(joined)
        return Columns({name: values[name] for name in self.variables})

    def summary(self, seconds: float, streamed: Streamed) -> dict[str, Any]:
        """Return figures of the classes: method, counts by name, certified (None where nothing is proven), computed."""
        widths = streamed.interval_widths
        return {
            "method": self.attributes["method"],
            "counts": dict(zip(self.model.classes, streamed.counts, strict=True)),
            "certified": streamed.certified,
            "interval_width_mean": None if widths is None else widths[0],
            "interval_width_max": None if widths is None else widths[1],
            "seconds_per_sample": seconds / max(1, streamed.computed),
            "computed": streamed.computed,
            **({} if self._variances is None else {"latent_variance": self._variances.summary(seconds)}),
        }
