"""Rounds that predict with an exact model: certified means, and beside them variances by `VarianceRun`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.base import BlockExecutor, PendingRound, split_evenly
from dkgp.data import Dataset, ModelRecord
from dkgp.data.stores.manifest import described_whole
from dkgp.errors import InputError
from dkgp.kernels import fold_white, kernel_from_json
from dkgp.models.certificate import Certificate
from dkgp.models.noise import NoiseModel, StudentT
from dkgp.models.prediction.streaming import MEANS, VARIANCES, Rounds, Streamed, Together
from dkgp.models.rounding import mean_in_units, middle, variance_in_units
from dkgp.models.sums import (
    EVERY_ENTRY,
    SHARE_OF_BOUND,
    Piece,
    Rows,
    Sums,
    SupportInputs,
    bounded_means,
    chosen_sums,
    joined,
)
from dkgp.models.trend import Trend
from dkgp.models.variance.batched import BatchedRun
from dkgp.models.variance.greedy import BasisRun
from dkgp.models.variance.neighbours.run import NeighbourRun
from dkgp.models.variance.scaled import Subject
from dkgp.models.variance.settings import VarianceSettings
from dkgp.models.variance.ways import Request, chosen_run
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.product_error import EVERY_ENTRY as EXACT_PRODUCTS
from dkgp.operators.product_error import ProductError

Means = tuple[IndexArray, *tuple[FloatArray, ...]]


def mean_task(
    context: BlockContext, certificate: Certificate, sums: Sums, test: Rows, pieces: list[Piece]
) -> list[Means]:
    """Rows of each piece, their predicted means, and bounds on their errors: (rows, p), standardised, float64.

    Where not every entry is evaluated, the part of the bounds that this adds comes third.
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


def exact_rounds(
    model: ModelRecord,
    test: Dataset,
    executor: BlockExecutor,
    version: str,
    variance: VarianceSettings | None,
    stored: dict[str, Any] | None,
    note: Callable[[str], None] | None,
    error: ProductError = EXACT_PRODUCTS,
) -> Rounds:
    """Rounds that predict `test`, as the model sees it; workers' caches keep what they need under `version`.

    `stored` are the attributes of a prediction that is resumed. Sums are within `error`; those of means with variances
    evaluate every entry, unless variances are by neighbours.

    Raises `InputError` for other settings than those of the prediction to resume and for a number as the `error` of a
    kernel without proven bounds, `StoreError` where the model's support inputs cannot be read, `MemoryBudgetError`
    where variances do not fit in their working memory.
    """
    kernel, noise_variance = fold_white(kernel_from_json(model.kernel), model.noise_variance)
    if noise_variance != model.noise_variance:
        model = replace(model, kernel=kernel.to_json(), noise_variance=noise_variance)
    context = BlockContext(version, SupportInputs.of(model, version), kernel, model.n_samples)
    model.inputs(0, 1)  # support inputs that are gone are found out before anything is written
    with described_whole(model.url, "train again"):
        certificate = Certificate.from_json(dict(model.certificate))
    if note is not None and not certificate.complete:
        note(
            "the model was certified by an older version, which did not count every rounding; train it again (a warm "
            "start from it takes one pass) for bounds that do"
        )

    def means_by(sums: Sums) -> _Means:
        return _Means(context, test, executor, model, certificate, sums)

    def sums_within() -> Sums:
        errors = allowed_errors(model, context, certificate)
        return chosen_sums(context, executor, model.alpha, test.n_samples, error, errors, stored, note)

    if variance is None:
        return means_by(sums_within())
    plan = None if stored is None else stored.get("variance")
    if plan is not None and ("basis" in plan) != (variance.basis is not None):
        raise InputError(
            "the prediction to resume found its variances another way, with a `basis` for each or without; repeat it "
            "as it was, or `overwrite`"
        )
    subject = Subject.of(model, context)
    rows = subject.tests(test)
    if variance.basis is not None:
        by_basis = BasisRun(subject.context, model.noise_variance, certificate, rows, executor, variance)
        return _MeansAndVariances(means_by(EVERY_ENTRY), by_basis, model, subject)
    asked = Request(subject.model, subject.kernel, subject.context, certificate, rows, executor, variance, plan)
    run = chosen_run(asked, note)
    if isinstance(run, NeighbourRun):
        # Variances of many rows that take less than means of all entries would.
        return _MeansAndVariances(means_by(sums_within()), run.without_means(), model, subject)
    return _MeansAndVariances(means_by(EVERY_ENTRY), run, model, subject)


def allowed_errors(model: ModelRecord, context: BlockContext, certificate: Certificate) -> FloatArray:
    """Return the errors of each column's sums, (t,), that a forecast may choose: they depend on the model alone.

    That is a share of a mean's bound, or of the noise's deviation where that is less: a solve that stopped early has
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


def student_attributes(model: ModelRecord, scale: FloatArray) -> dict[str, Any]:
    """The distribution of a new observation's noise in the target's units, where it is Student's t."""
    t = StudentT.held(model.summary.get("student_t"))
    return {} if t is None else {"student_t": replace(t, scale=t.scale * float(scale[0]) ** 2).to_json()}


class _Means(Rounds):
    variables = MEANS
    depth = 1

    def __init__(
        self,
        context: BlockContext,
        test: Dataset,
        executor: BlockExecutor,
        model: ModelRecord,
        certificate: Certificate,
        sums: Sums,
    ) -> None:
        self._context, self.test, self._executor, self._sums = context, test, executor, sums
        self._standardisation, self._certificate = model.standardisation, certificate
        self.trend = Trend.held(model.trend)
        self.n_support, self.assumes = model.n_samples, certificate.assumes
        self.attributes = {} if certificate.assumes is None else {"assumes": certificate.assumes}
        self.attributes |= sums.attributes
        self.region_rows = sums.region_rows

    def submit(self, start: int, stop: int) -> PendingRound:
        pending = self.start(start, stop)
        return pending if self.trend is None else Together([pending], also=((start, stop),))

    def start(self, start: int, stop: int) -> PendingRound:
        """Start the sums of a region."""
        groups = split_evenly(self._sums.pieces(start, stop), self._executor.parallelism)
        task = mean_task if self._sums.errors is None else bounded_mean_task
        arguments = (self._context, self._certificate, self._sums, self.test)
        return self._executor.submit("kmean", task, arguments, groups)

    def values(self, results: list[Any]) -> dict[str, FloatArray]:
        if self.trend is None:
            return self.of(*joined(results)[:2])
        means, rows = results
        mean, bound, *off = joined(means)
        taken = self.trend.at(mean, bound, self.test.inputs(*rows), *off)
        return self.of(taken.mean, taken.bound)

    def by_variance(self, bound: FloatArray, highest: FloatArray) -> FloatArray:
        """Return bounds (r, p) that take the upper ends of variances (r,) into account."""
        return self._certificate.by_variance(bound, self._context.kernel, highest)

    def of(self, mean: FloatArray, bound: FloatArray) -> dict[str, FloatArray]:
        to = self._standardisation
        raw, raw_bound = mean_in_units(mean, bound, to.target_std, to.target_mean)
        return {"mean": raw, "mean_error_bound": raw_bound}


class _MeansAndVariances(Rounds):
    variables: tuple[str, ...] = VARIANCES

    def __init__(self, means: _Means, run: BatchedRun | BasisRun, model: ModelRecord, subject: Subject) -> None:
        self._means, self._run, self._subject = means, run, subject
        self._scale = np.asarray(model.standardisation.target_std)
        self.n_support, self.assumes = means.n_support, means.assumes
        self._noise = NoiseModel.held(model.noise_model)
        if self._noise is not None:
            self.variables = (*VARIANCES, "noise")
        self.attributes = {
            **means.attributes,
            "variance": run.plan,
            "noise_variance": (model.noise_variance * self._scale**2).tolist(),
            **student_attributes(model, self._scale),
        }
        self.depth = run.depth
        self._apart = isinstance(run, NeighbourRun)  # means are by rounds of their own
        self.region_rows = run.region_rows

    def prepare(self) -> str:
        return self._run.prepare(self._subject.model)

    def submit(self, start: int, stop: int) -> PendingRound:
        if isinstance(self._run, NeighbourRun):
            parts = None if self.parts is None else self.parts(start, stop)
            variances = self._run.submit(start, stop, parts)
            return Together([variances, self._means.start(start, stop)], also=((start, stop),))
        pending = self._run.submit(start, stop)
        alone = self._noise is None and self._means.trend is None
        return pending if alone else Together([pending], also=((start, stop),))

    def values(self, results: list[Any]) -> dict[str, FloatArray]:
        trend, off = self._means.trend, []
        if self._noise is None and trend is None and not self._apart:
            return self._values(*self._collected(results))
        of_run, *of_means, rows = results
        mean, bound, lower, upper = self._collected(of_run)
        if self._apart:
            mean, bound, *off = joined(of_means[0])
            bound = self._means.by_variance(bound, upper)
        inputs = self._means.test.inputs(*rows)
        if trend is not None:
            taken = trend.at(mean, bound, inputs, *off)
            mean, bound = taken.mean, taken.bound
            lower, upper = taken.widened(lower, upper)
        if self._noise is None:
            return self._values(mean, bound, lower, upper)
        if not self._run.plan["latent"]:
            lower, upper = self._noise.widened(lower, upper, inputs)
        beyond = self._noise.beyond_least(inputs)[:, None] * self._scale**2
        return {**self._values(mean, bound, lower, upper), "noise": beyond}

    def _collected(self, results: list[Any]) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Means, their bounds, and ends of variances' intervals, standardised."""
        mean, bound, lower, upper = self._run.collect(results)
        lower, upper = self._subject.interval(lower, upper)
        return mean, bound if self._apart else self._means.by_variance(bound, upper), lower, upper

    def _values(
        self, mean: FloatArray, bound: FloatArray, lower: FloatArray, upper: FloatArray
    ) -> dict[str, FloatArray]:
        low, high = variance_in_units(lower, upper, self._scale)
        ends = {"variance_lower": low, "variance_upper": high}
        return {**self._means.of(mean, bound), "variance": middle(low, high), **ends}

    def summary(self, seconds: float, streamed: Streamed) -> dict[str, Any]:
        figures = self._run.summary(seconds)
        return {**figures, **streamed.gaps(figures["gap"])}
