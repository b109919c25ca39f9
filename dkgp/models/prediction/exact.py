"""The posterior of an exact model: certified means, and variances in proven intervals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.base import PendingRound
from dkgp.cluster.threads import single_threaded_blas
from dkgp.codec import to_json
from dkgp.data import ModelRecord
from dkgp.data.stores.manifest import described_whole
from dkgp.errors import InputError
from dkgp.forks import fork_safe
from dkgp.kernels import fold_white, kernel_from_json
from dkgp.models.certificate import Certificate
from dkgp.models.noise import Noise, StudentT
from dkgp.models.prediction.posterior import MEANS, VARIANCES, Columns, Pending, Posterior, Streamed, Want
from dkgp.models.prediction.vif_variances import VifRun
from dkgp.models.rounding import mean_in_units, middle, noise_in_units, variance_in_units
from dkgp.models.sums import (
    EVERY_ENTRY,
    SHARE_OF_BOUND,
    MemorySums,
    Piece,
    Rows,
    Sums,
    SupportInputs,
    bounded_means,
    chosen_sums,
    joined,
)
from dkgp.models.trend import Trend
from dkgp.models.variance.run import Ends, Parts, Request, VarianceRun
from dkgp.models.variance.scaled import Subject
from dkgp.models.variance.settings import SentRows, TestRows, VarianceSettings, require_as_begun
from dkgp.models.variance.ways import chosen_run
from dkgp.models.variance.whole_matrix import WholeFactor, WholeRun
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext

# The ends of proven intervals in a store; approximate variances have none.
INTERVAL = ("variance_lower", "variance_upper")

Means = tuple[IndexArray, *tuple[FloatArray, ...]]


def mean_task(
    context: BlockContext, certificate: Certificate, sums: Sums, test: Rows, pieces: list[Piece]
) -> list[Means]:
    """Return rows of each piece, their predicted means, and bounds on their errors: (rows, p), standardised, float64.

    If some entries are not evaluated, the resulting part of the bounds is the third item.
    """
    means: list[Means] = []
    for piece in pieces:
        rows, inputs = sums.read(context, test, piece)
        mean, bound, off = bounded_means(context, certificate, inputs, sums)
        means.append((rows, mean, bound) if off is None else (rows, mean, bound, off))
    return means


@needs_one_arithmetic
def bounded_mean_task(
    context: BlockContext, certificate: Certificate, sums: Sums, test: Rows, pieces: list[Piece]
) -> list[Means]:
    """Means as by `mean_task`, of sums within an error, whose tables come from NumPy and whose products from BLAS."""
    return mean_task(context, certificate, sums, test, pieces)


def allowed_errors(model: ModelRecord, context: BlockContext, certificate: Certificate) -> FloatArray:
    """Return the errors of each column's sums, (t,), that a forecast may choose: they depend on the model alone.

    They are a share of a mean's bound, or of the noise's deviation where that is less: a solve that stopped early has
    bounds of many deviations, and its means are far closer to the exact ones than these.
    """
    bound = certificate.mean_error_bound(context.kernel.diagonal(model.inputs(0, 1)))[0]
    errors: FloatArray = SHARE_OF_BOUND * np.minimum(bound, np.sqrt(model.noise_variance))
    trend = Trend.held(model.trend)
    if trend is not None:
        # Each share of a target's bound goes half to its sum, half to those of the columns of the mean.
        p, beta = model.n_targets, np.abs(np.array(trend.coefficients))
        weight = np.maximum(beta.sum(axis=0), 1e-300)
        errors[:p] *= 0.5
        errors[p:] = np.minimum(errors[p:], np.min(errors[:p] / weight))
    return errors


class ExactPosterior(Posterior[ModelRecord]):
    """Means of an exact model, and variances on request.

    In a store sums of means are within the wanted error; beside variances they evaluate every entry, unless variances
    are by neighbours. For rows in memory a forecast decides for each call, and the first call chooses the way to
    variances, by its rows.

    Raises
    ------
    InputError
        If settings differ from those of the stored plan, or if a kernel without proven bounds has a
        number as error.
    StoreError
        If the model's support inputs cannot be read.
    MemoryBudgetError
        If variances do not fit in their working memory.
    """

    _run: VarianceRun | None = None
    _request: Request | None = None

    def __init__(self, model: ModelRecord, want: Want) -> None:
        kernel, noise_variance = fold_white(kernel_from_json(model.kernel), model.noise_variance)
        if noise_variance != model.noise_variance:
            model = replace(model, kernel=kernel.to_json(), noise_variance=noise_variance)
        self.model, self._want = model, want
        self._context = BlockContext(want.version, SupportInputs.of(model, want.version), kernel, model.n_samples)
        with described_whole(model.url, "train again"):
            self._certificate = Certificate.from_json(dict(model.certificate))
        self._trend, self._noise = Trend.held(model.trend), Noise.of_model(model).of_observations
        self._scale = np.asarray(model.standardisation.target_std)
        self.n_support, self.assumes = model.n_samples, self._certificate.assumes
        self._lock = fork_safe(threading.Lock())
        if want.test is not None:
            model.inputs(0, 1)  # report missing support inputs before anything is written
            if not self._certificate.complete:
                want.say(
                    "the model was certified by an older version, which did not count every rounding; train it again "
                    "(a warm start from it takes one pass) for bounds that do"
                )
        self.variables = MEANS if want.variance is None else VARIANCES
        if want.variance is not None and self._noise is not None:
            self.variables = (*VARIANCES, "noise")
        run = self._run = None if want.variance is None else self._asked(want, want.variance)
        if isinstance(run, VifRun):
            self.variables = tuple(name for name in self.variables if name not in INTERVAL)
        self._sums: Sums | MemorySums = self._memory_sums() if want.test is None else self._store_sums(want)
        self.depth = 1 if run is None else run.depth
        if run is not None:
            self.region_rows = run.region_rows
        elif isinstance(self._sums, Sums):
            self.region_rows = self._sums.region_rows
        self.attributes = self._described(want)

    def _asked(self, want: Want, settings: VarianceSettings) -> VarianceRun | None:
        """Request variances; return their run, unless rows that are yet to come choose its way."""
        plan = None if want.stored is None else want.stored.get("variance")
        subject, rows = Subject.of(self.model, self._context), want.rows(self.model.n_features)
        tests = None if want.test is not None else max(1, want.n_test)
        self._request = Request(subject, self._certificate, rows, want.executor, settings, plan, tests)
        if want.test is not None:
            return _run_of(self._request, want.note)
        if settings.basis is not None:
            raise InputError(
                "a `basis` for each variance can be used only for predictions of a stored regression; leave it out"
            )
        return self._run_at(rows) if settings.way == "cholesky" or settings.keep_factor else None

    def _store_sums(self, want: Want) -> Sums:
        assert want.test is not None
        if self._run is not None and self._run.has_means:
            return EVERY_ENTRY
        errors = allowed_errors(self.model, self._context, self._certificate)
        tests, weights = want.test.n_samples, self.model.alpha
        return chosen_sums(self._context, want.executor, weights, tests, want.error, errors, want.stored, want.note)

    def _memory_sums(self) -> MemorySums:
        model, context = self.model, self._context
        return MemorySums(
            context, self._want.error, lambda: (model.alpha, allowed_errors(model, context, self._certificate))
        )

    def _described(self, want: Want) -> dict[str, Any]:
        """Return the attributes of a store."""
        attributes: dict[str, Any] = {} if self.assumes is None else {"assumes": self.assumes}
        if isinstance(self._sums, Sums):
            attributes |= self._sums.attributes
        if want.variance is not None:
            student = StudentT.held(self.model.summary.get("student_t"))
            attributes["variance"] = {"latent": self._latent} if self._run is None else self._run.plan
            attributes["noise_variance"] = noise_in_units(self.model.noise_variance, self._scale)
            if student is not None:
                attributes["student_t"] = to_json(replace(student, scale=student.scale * float(self._scale[0]) ** 2))
        return attributes

    @property
    def _latent(self) -> bool:
        return self._request is not None and self._request.settings.latent

    def prepare(self) -> str | None:
        """Build the factors of variances."""
        return None if self._run is None else self._run.prepare()

    def _run_at(self, rows: TestRows) -> VarianceRun:
        """Return the run of variances, which the first rows choose."""
        assert self._request is not None
        with self._lock, single_threaded_blas():
            if self._run is None:
                request = self._request
                if rows.n_samples:
                    request = replace(request, rows=rows, tests=max(rows.n_samples, request.n_test))
                self._run = _run_of(request)
                if isinstance(self._run, WholeRun):
                    self._run.prepare()
                self._run.request = self._request  # the first rows need not stay
            return self._run

    def interval(self, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the ends of the variances' intervals at standardised rows (r, d), without a noise model: (r,) each."""
        test = SentRows(rows)
        run = self._run_at(test)
        with single_threaded_blas():
            ends = run.collect(run.submit(test, 0, len(rows)).result())
        return ends.lower, ends.upper

    def whole_factor(self) -> WholeFactor:
        """Return the factor of all samples that variances come from, where their `way` is "cholesky"."""
        assert self._request is not None
        run = self._run_at(self._request.rows)
        assert isinstance(run, WholeRun)
        return run.factor()

    def submit(self, rows: TestRows, start: int, stop: int, parts: Parts | None = None) -> Pending:
        """Start a region."""
        run = None if self._request is None else self._run_at(rows)
        rounds: list[PendingRound] = [] if run is None else [run.submit(rows, start, stop, parts)]
        order, apart = None, run is None or not run.has_means
        if apart:
            means, order = self._start_means(rows, start, stop)
            rounds.append(means)

        def conclude(results: list[Any]) -> Columns:
            ends = None if run is None else run.collect(results[0])
            off: list[FloatArray] = []
            if ends is None or apart:
                mean, bound, *off = joined(results[-1], order)
            else:
                mean, bound = ends.mean, ends.error
            if ends is not None:
                bound = self._certificate.by_variance(bound, self._context.kernel, ends.upper)
            depends = self._trend is not None or (self._noise is not None and ends is not None)
            return self._columns(mean, bound, off, rows.rows(start, stop) if depends else None, ends)

        return Pending(rounds, conclude)

    def _start_means(self, rows: TestRows, start: int, stop: int) -> tuple[PendingRound, IndexArray | None]:
        """Start the sums of a region's means; return the order of its rows too, where they are taken in another."""
        sums, order = (self._sums, None) if isinstance(self._sums, Sums) else self._sums.at(rows.inputs(start, stop))
        if order is not None:
            rows = SentRows(rows.inputs(start, stop)[order])
        task = mean_task if sums.errors is None else bounded_mean_task
        arguments = (self._context, self._certificate, sums, rows)
        return self._start("kmean", task, arguments, sums.pieces(start, stop)), order

    def _columns(
        self, mean: FloatArray, bound: FloatArray, off: list[FloatArray], rows: FloatArray | None, ends: Ends | None
    ) -> Columns:
        """Return standardised predictions in the targets' units; rows are known where a trend or noise needs them."""
        taken = None if self._trend is None or rows is None else self._trend.at(mean, bound, rows, *off)
        if taken is not None:
            mean, bound = taken.mean, taken.bound
        to = self.model.standardisation
        columns = Columns(zip(MEANS, mean_in_units(mean, bound, to.target_std, to.target_mean), strict=True))
        if ends is None:
            return columns
        lower, upper = ends[2:4] if ends.approximate is None else (ends.approximate, ends.approximate)
        if taken is not None:
            lower, upper = taken.widened(lower, upper)
        if self._noise is not None and rows is not None:
            inputs = rows[:, : self.model.n_features]
            if not self._latent:
                lower, upper = self._noise.widened(lower, upper, inputs)
            columns["noise"] = self._noise.beyond_least(inputs)[:, None] * self._scale**2
        low, high = variance_in_units(lower, upper, self._scale)
        columns["variance"] = middle(low, high)
        return (
            columns
            if ends.approximate is not None
            else Columns(columns | dict(zip(INTERVAL, (low, high), strict=True)))
        )

    def summary(self, seconds: float, streamed: Streamed) -> dict[str, Any] | None:
        """Return figures of the variances."""
        if self._run is None:
            return None
        figures = self._run.summary(seconds)
        if isinstance(self._run, VifRun):
            return {**figures, "computed": streamed.computed}
        return {**figures, **streamed.gaps(figures["gap"])}


def _run_of(request: Request, note: Callable[[str], None] | None = None) -> VarianceRun:
    """Return the run by the requested way, by that of the stored plan, or by the quickest proven one."""
    way, stored = request.settings.way, request.stored
    begun = None if stored is None else str(stored.get("way", "iterative"))
    if "vif" not in (way, begun):
        return chosen_run(request, note)
    if begun is not None and way not in ("auto", begun):
        require_as_begun(f"the `way` {begun}", f"the `way` {way}")
    return VifRun(request)
