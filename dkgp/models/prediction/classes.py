"""The posterior of a classifier: decisions, classes and probabilities, and proofs of these.

A `Decider` has two halves. Tasks on workers compute decisions: sums over the model's points, which are all samples or a
few prototypes. The coordinator computes classes and probabilities, each row from its decisions. These need library
functions, whose bits may differ between processors. The pieces of a region do not depend on the worker that computes
them, and neither do the bits.

A Gaussian process's averaged probabilities need its latent functions' variances, in proven intervals. Each column of
decisions has its own noise, 1 / W at the mode. Each column is therefore a regression with its own factor and its own
run of variances (`dkgp.models.variance.scaled`); all columns share the memory. Intervals contain the exact
approximation's variances. The certificate bounds the factor by which W at the exact mode may differ, and variances
differ by at most that factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import PendingRound
from dkgp.cluster.threads import single_threaded_blas
from dkgp.codec import from_json
from dkgp.data import ClassifierRecord
from dkgp.data.stores.manifest import described_whole
from dkgp.data.stores.models.classifier import BasisProcessRecord, NearProcessRecord, ProcessRecord
from dkgp.data.stores.prediction_store import LATENT_VARIABLES, PROBABILITIES
from dkgp.errors import InputError
from dkgp.kernels import fold_white, kernel_from_json
from dkgp.models.classification.calibration import Calibration
from dkgp.models.classification.certificate import (
    DecisionCertificate,
    RiskCertificate,
    certified_decisions,
    certified_labels,
)
from dkgp.models.classification.labels import decided
from dkgp.models.classification.laplace import (
    LEAST_CURVATURE,
    BasisPosterior,
    averaged,
    averaged_intervals,
    averaged_softmax,
    settled,
)
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.prediction.posterior import Columns, Pending, Posterior, Streamed, Want
from dkgp.models.prediction.sparse import of_unproven, prediction_memory
from dkgp.models.rounding import EPS, assumptions, certified_row_errors, outward
from dkgp.models.sparse.near import NearPredictor, near_of
from dkgp.models.sums import (
    EVERY_ENTRY,
    SHARE_OF_BOUND,
    MemorySums,
    Piece,
    Rows,
    Sums,
    SupportInputs,
    chosen_sums,
)
from dkgp.models.variance.batch import Enough
from dkgp.models.variance.iterative import IterativeRun, default_memory_bytes
from dkgp.models.variance.run import Parts, Request
from dkgp.models.variance.scaled import ScaledInputs, ScaledSupport, Subject, scaled_kernel
from dkgp.models.variance.settings import SentRows, TestRows, VarianceSettings, require_as_begun
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext

Values = dict[str, FloatArray]

# Additional column of a decider with neighbours.
UNPROVEN = "unproven"
PROBABILITY_ENDS = ("probability_lower", "probability_upper")
# The largest error that a forecast allows for sums of decisions, whose margins are at -1 and 1. A minimisation that
# stopped early has larger bounds.
MOST_ERROR = 1e-3


class ClassifierSupport(SupportInputs):
    """The points of a classifier: all samples, or a few prototypes."""

    def precision_roots(self, column: int, start: int, stop: int) -> FloatArray:
        """Return sqrt(W) of the points start:stop in a column.

        This applies to a Gaussian process of all samples. W is taken to be at least `LEAST_CURVATURE`; bounds allow for
        the difference.
        """
        curvature: FloatArray = self.record().curvature[start:stop, column]
        return np.sqrt(np.maximum(curvature, LEAST_CURVATURE))


@dataclass(frozen=True)
class Decider:
    """Computes classes from a classifier's inputs; small, because it travels with tasks."""

    # From decisions; None if the model was trained without probabilities.
    probabilities: Calibration | Likelihood | None
    certificate: DecisionCertificate | RiskCertificate | None = None  # None if nothing is proven
    assumes: str | None = None  # assumption of the bounds

    # Whether decisions use BLAS in addition to the tile loops, whose bits are equal on every processor
    takes_blas: ClassVar[bool] = False

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of a model that has one."""
        assert isinstance(self.probabilities, Likelihood)
        return self.probabilities

    @property
    def has_intervals(self) -> bool:
        """True if probabilities have proven intervals. A calibration has none, because it depends on a subset."""
        return self.certificate is not None and isinstance(self.probabilities, Likelihood)

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the `CLASS_VARIABLES` that the decider computes."""
        bounds, certified = ((), ()) if self.certificate is None else (("decision_error_bound",), ("certified",))
        probability = () if self.probabilities is None else ("probability",)
        intervals = PROBABILITY_ENDS if self.has_intervals else ()
        return ("decision", *bounds, *probability, *intervals, "class", *certified)

    @property
    def lacks(self) -> str | None:
        """A message about the columns that the model cannot predict because it was trained without them."""
        if self.probabilities is not None:
            return None
        return "the classifier was trained without calibration: no probabilities are predicted"

    def weighted(self, model: Any, context: BlockContext) -> tuple[FloatArray, FloatArray]:
        """Return the weights of the sums for decisions and their bounds, and the errors that a forecast may choose.

        Weights are (n, columns), errors (columns,). The errors add about a hundredth to a decision's bound. With an
        intercept, the error of k_x'E changes V_b by at most the same share of k(x, x). No error is allowed if nothing
        is proven.
        """
        certificate, weights = self.certificate, model.coefficients
        if certificate is None:
            return weights, np.zeros(weights.shape[1])
        prior, zeros = context.kernel.diagonal(model.inputs(0, 1)), np.zeros((1, certificate.n_columns))
        if isinstance(certificate, RiskCertificate):
            bounds = certificate.decision_error_bound(zeros, prior, np.zeros(1))
        else:
            # With k_x'E = 1/2, V_b is k(x, x).
            bounds = certificate.decision_error_bound(zeros, np.full(1, 0.5), prior, np.zeros(1))
        errors = np.minimum(SHARE_OF_BOUND * bounds[0], MOST_ERROR)
        if isinstance(certificate, DecisionCertificate) and certificate.intercept:
            weights = np.column_stack([weights, model.ones])
            errors = np.append(errors, SHARE_OF_BOUND * prior * certificate.ones_sum[0])
        return weights, errors

    def decide(self, context: BlockContext, inputs: FloatArray, sums: Sums = EVERY_ENTRY) -> Values:
        """Compute sums at standardised inputs (r, d) on a worker: `decision` (r, t), and its proven bounds."""
        model = _record(context)
        if self.certificate is None:
            return {"decision": sums.products(context, inputs, model.coefficients)[0] + model.intercept}
        if isinstance(self.certificate, DecisionCertificate):
            decisions, bounds = certified_decisions(
                context, self.certificate, model.alpha, model.ones, model.intercept, inputs, sums
            )
            certified = certified_labels(decisions, bounds)
        else:
            decisions, off = sums.products(context, inputs, model.coefficients)
            prior = context.kernel.diagonal(inputs)
            errors = certified_row_errors(context.kernel, context.source, inputs)
            bounds = self.certificate.decision_error_bound(decisions, prior, errors, 0.0 if off is None else off)
            certified = self.certificate.certified(decisions, bounds, prior, errors)
        return {
            "decision": decisions,
            "decision_error_bound": bounds,
            "certified": certified.astype(np.float64),
        }

    def conclude(self, values: Values) -> Values:
        """Add `class` and all other `variables` that follow from decisions, row by row, at the coordinator."""
        decisions = values["decision"]
        result = {**values, "class": decided(decisions).astype(np.float64)}
        if self.probabilities is not None:
            result["probability"] = self.probabilities.probabilities(decisions)
        if self.has_intervals:
            ends = self.likelihood.intervals(decisions, values["decision_error_bound"])
            result |= dict(zip(PROBABILITY_ENDS, ends, strict=True))
        return result


@dataclass(frozen=True)
class BasisProcessDecider(Decider):
    """Decider of a Gaussian process on a basis: averages over Laplace's posterior of the latent functions.

    A certificate concerns only the mode: the basis' variances have no proven distance to the exact ones.
    """

    takes_blas: ClassVar[bool] = True

    @property
    def has_intervals(self) -> bool:
        """False: averages use the basis' own variances."""
        return False

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables of the mode, and the latent variance."""
        return (*super().variables, *LATENT_VARIABLES)

    def decide(self, context: BlockContext, inputs: FloatArray, sums: Sums = EVERY_ENTRY) -> Values:
        """Return decisions and their bounds, and latent variances; for softmax, covariances."""
        return {**super().decide(context, inputs, sums), "latent": _basis_variances(context, inputs)}

    def conclude(self, values: Values) -> Values:
        """Add classes, averaged probabilities and variances; both ends of a variance are the basis' own value."""
        decisions, latent = values["decision"], values["latent"]
        variances = latent
        if self.likelihood.coupled:
            variances = np.diagonal(latent, axis1=1, axis2=2)
            probability = averaged_softmax(decisions, latent)
        else:
            probability = averaged(self.likelihood, decisions, latent)
        classes = decided(decisions).astype(np.float64)
        return {**values, "class": classes, "probability": probability, **dict.fromkeys(LATENT_VARIABLES, variances)}


@dataclass(frozen=True)
class NearDecider(Decider):
    """Decider of a Gaussian process on a basis with neighbours: decisions are no sums over the basis, and unproven."""

    takes_blas: ClassVar[bool] = True

    def decide(self, context: BlockContext, inputs: FloatArray, sums: Sums = EVERY_ENTRY) -> Values:
        """Return decisions, latent variances, and a one for each row whose neighbours may not be the nearest."""
        decision, latent, unproven = _near_predictor(context).predictor.predicted(inputs)
        return {"decision": decision, "latent": latent, UNPROVEN: unproven.astype(np.float64)}


@dataclass(frozen=True)
class NearProcessDecider(NearDecider, BasisProcessDecider):
    """Decider with neighbours and averaged probabilities."""


@dataclass(frozen=True)
class _HeldNear:
    predictor: NearPredictor
    nbytes: int  # never more than a cache would keep


def _near_predictor(context: BlockContext) -> _HeldNear:
    """Return the predictor with neighbours, from this worker's cache or from the model."""

    def made() -> _HeldNear:
        model = _record(context)
        with described_whole(model.url, "train again"):
            near = near_of(model)
        lower = np.asfortranarray(model.kernel_lower)
        predictor = NearPredictor(context.kernel, model.prototypes, lower, near)
        return _HeldNear(predictor, min(near.nbytes + lower.nbytes, worker_cache().budget_bytes))

    return worker_cache().get((context.run_id, "near"), made)


def _basis_variances(context: BlockContext, inputs: FloatArray) -> FloatArray:
    """Return latent variances of a Gaussian process on a basis at standardised inputs (r, d): (r, t), or (r, t, t)."""
    evaluator, posterior = context.evaluator("double"), _posterior(context)
    rows = evaluator.prepare(inputs)
    columns = [
        np.asarray(evaluator.tile(context.block_features(block, "double"), rows)) for block in range(context.n_blocks)
    ]
    return posterior.variances(np.concatenate(columns), context.kernel.diagonal(inputs))


def _posterior(context: BlockContext) -> BasisPosterior:
    """Return the factors, from this worker's cache or from the model."""

    def made() -> BasisPosterior:
        model = _record(context)
        return BasisPosterior.of(model.kernel_lower, model.posterior_lower, model.n_outputs, model.regularisation)

    return worker_cache().get((context.run_id, "posterior"), made)


@dataclass(frozen=True)
class GaussianDecider(Decider):
    """Decider of a Gaussian process of all samples in Laplace's approximation: probabilities are averages.

    Decisions are the latent functions' means. `conclude` also takes the ends of the latent variances, which other
    rounds compute.
    """

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables of the mode, and the ends of variances."""
        return (*super().variables, *LATENT_VARIABLES)

    def conclude(self, values: Values) -> Values:
        """Add averages at the middle of each variance's interval, the most likely class, and proven bounds of both."""
        likelihood, mean, bound = self.likelihood, values["decision"], values["decision_error_bound"]
        low, high = (values[name] for name in LATENT_VARIABLES)
        probability = averaged(likelihood, mean, 0.5 * (low + high))
        lower, upper = averaged_intervals(likelihood, mean, bound, low, high)
        codes = decided(mean) if mean.shape[1] == 1 else probability.argmax(axis=1)
        rows = np.arange(len(codes))
        others = upper.copy()
        others[rows, codes] = 0.0
        return {
            **values,
            "class": codes.astype(np.float64),
            "probability": probability,
            "probability_lower": lower,
            "probability_upper": upper,
            "certified": (lower[rows, codes] > others.max(axis=1)).astype(np.float64),
        }


def decider_of(model: ClassifierRecord, *, plug_in: bool = False) -> Decider:
    """Return the decider for a classifier; `plug_in` leaves a Gaussian process's probabilities unaveraged.

    Raises `StoreError` if the store lacks the information for a decider.
    """
    with described_whole(model.url, "train again"):
        return _decider_of(model, plug_in)


def _decider_of(model: ClassifierRecord, plug_in: bool) -> Decider:
    if model.likelihood is None:
        probabilities = None if model.calibration is None else from_json(Calibration, model.calibration)
        if model.form != "exact":
            return Decider(probabilities)
        return Decider(probabilities, DecisionCertificate.from_json(dict(model.certificate)), _assumes(model))
    # A classifier of prototypes has a certificate if it was trained with `certify`.
    certificate = RiskCertificate.from_json(dict(model.certificate)) if model.certificate else None
    if type(model) is NearProcessRecord:
        near_of(model)  # report missing data before anything is written
    averaging, plain = _DECIDERS.get(type(model), (Decider, Decider))
    assumes = None if certificate is None else _assumes(model)
    return (plain if plug_in else averaging)(from_json(Likelihood, model.likelihood), certificate, assumes)


# Deciders of Gaussian processes, with averaged probabilities and without.
_DECIDERS: dict[type[ClassifierRecord], tuple[type[Decider], type[Decider]]] = {
    ProcessRecord: (GaussianDecider, Decider),
    BasisProcessRecord: (BasisProcessDecider, Decider),
    NearProcessRecord: (NearProcessDecider, NearDecider),
}


def _assumes(model: ClassifierRecord) -> str | None:
    return assumptions(fold_white(kernel_from_json(model.kernel), model.noise_variance)[0])


def _record(context: BlockContext) -> Any:
    """Return the classifier, which has the arrays that its decider uses."""
    assert isinstance(context.source, ClassifierSupport)
    return context.source.record()


# Rows that latent variances are planned for if the number of rows is unknown.
ROWS_PLANNED_FOR = 1024

Decided = tuple[IndexArray, dict[str, FloatArray]]


def decision_task(
    context: BlockContext, decider: Decider, sums: Sums, test: Rows, pieces: list[Piece]
) -> list[Decided]:
    """Return the rows of each piece, their decisions, and the accompanying values."""
    decisions = []
    for piece in pieces:
        rows, inputs = sums.read(context, test, piece)
        decisions.append((rows, decider.decide(context, inputs, sums)))
    return decisions


@needs_one_arithmetic
def library_decision_task(
    context: BlockContext, decider: Decider, sums: Sums, test: Rows, pieces: list[Piece]
) -> list[Decided]:
    """Return decisions like `decision_task`, of sums within an error or by a method that uses BLAS."""
    return decision_task(context, decider, sums, test, pieces)


def latent_settings(settings: VarianceSettings | None) -> VarianceSettings:
    """Return the given settings of latent variances, or the defaults. A function of labels has no noise to include."""
    if settings is not None and settings.way not in ("auto", "iterative"):
        raise InputError(
            f"the `way` {settings.way} gives variances of a regression; a classifier takes the `way` iterative for its "
            "latent variances. Leave the `way` out"
        )
    return replace(settings or VarianceSettings(), latent=True)


@dataclass(frozen=True)
class AverageNeeds:
    """The precision of a column's variances that averaged probabilities need; see `settled`."""

    context: BlockContext  # of the model's points
    decider: Decider
    column: int
    factor: float  # factor by which the curvature may differ

    def at(self, inputs: FloatArray) -> Enough:
        """Return the rule for standardised test samples (x, 1), from their decisions and the bounds of these."""
        values = self.decider.decide(self.context, np.ascontiguousarray(inputs[:, :-1]))
        mean, bound = (values[name][:, self.column] for name in ("decision", "decision_error_bound"))
        likelihood = self.decider.likelihood
        return lambda which, lower, upper: settled(likelihood, mean[which], bound[which], lower, upper, self.factor)


class ClassVariances:
    """The variances of one prediction by a Gaussian process of all samples; one run for each column.

    By default no variance is more precise than averages need, for the decisions of `decider`. The given settings of
    variances apply to all columns together. `context` contains the model's points.

    Raises `InputError` if variances need a gap, and the stored prediction was begun without one.
    """

    def __init__(self, model: ClassifierRecord, context: BlockContext, want: Want, decider: Decider) -> None:
        assert isinstance(context.source, ClassifierSupport)
        n, t = model.n_support, model.n_outputs
        stored = None if want.stored is None else want.stored.get("latent_variance")
        for_averages = want.variance is None if stored is None else "averages" in stored[0]
        if for_averages and want.variance is not None:
            require_as_begun("variances as averages need them", "all to a gap", "leave their options out")
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
            source = ScaledInputs(context.source, partial(context.source.precision_roots, column))
            column_context = BlockContext(f"{context.run_id}/column-{column}", source, kernel, n)
            plan = None if stored is None else stored[column]
            subject = Subject(ScaledSupport(source), kernel, column_context)
            request = Request(subject, None, rows, want.executor, settings, plan, tests)
            needs = AverageNeeds(context, decider, column, float(self._factors[column])) if for_averages else None
            run = IterativeRun(request, factors=t, needs=needs)
            run.plan |= {"averages": True} if for_averages else {}
            self._runs.append(run)
        # All runs process the same regions, as long as the longest region of any run.
        self.region_rows = max(run.region_rows for run in self._runs)
        self.depth = self._runs[0].depth

    @property
    def plan(self) -> list[dict[str, Any]]:
        """Return the plan of each column, in plain JSON types."""
        return [run.plan for run in self._runs]

    def prepare(self) -> str:
        """Build the factors on the workers; return a message about them."""
        notes = [run.prepare() for run in self._runs]
        if len(notes) == 1:
            return f"latent variances: {notes[0]}"
        numbered = (f"function {number} of {len(notes)}: {words}" for number, words in enumerate(notes, 1))
        return f"latent variances, {'; '.join(numbered)}"

    def submit(self, rows: TestRows, start: int, stop: int) -> list[PendingRound]:
        """Start a region: the rounds of all columns."""
        return [run.submit(rows, start, stop) for run in self._runs]

    def collect(self, results: list[list[Any]], inputs: FloatArray) -> dict[str, FloatArray]:
        """Join a region's results: both ends of intervals of the exact approximation's variances, (r, t) each."""
        ends = [run.collect(result) for run, result in zip(self._runs, results, strict=True)]
        lower = np.column_stack([each.lower for each in ends])
        upper = np.column_stack([each.upper for each in ends])
        prior = np.asarray(self._kernel.diagonal(inputs), dtype=np.float64)[:, None]
        slack = prior * self._neglected
        with np.errstate(over="ignore"):
            high = upper * self._factors * (1.0 + 4.0 * EPS) + slack
        low, high = outward(lower / self._factors * (1.0 - 4.0 * EPS) - slack, high)
        # No posterior variance exceeds the prior's. If nothing is known about W, that is the only bound.
        most = np.nextafter(prior * (1.0 + 16.0 * EPS), np.inf)
        return {
            "latent_variance_lower": np.maximum(low, 0.0),
            "latent_variance_upper": np.maximum(np.fmin(high, most), np.maximum(low, 0.0)),
        }

    def summary(self, seconds: float) -> dict[str, Any]:
        """Return figures of this run's samples, like `VarianceRun`: the maximum or the sum over columns."""
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
    """Return an upper bound on the largest k(x, x) of the samples."""
    kernel = context.kernel
    if kernel.stationary:
        return float(kernel.diagonal(model.inputs(0, 1))[0]) * 1.01
    blocks = (context.bounds(block) for block in range(context.n_blocks))
    return 1.01 * max(float(kernel.diagonal(model.inputs(*rows)).max()) for rows in blocks)


class ClassPosterior(Posterior[ClassifierRecord]):
    """Predictions of a classifier.

    Sums of decisions are within the allowed error. A Gaussian process with latent variances evaluates every entry,
    which costs less than the variances.

    Raises
    ------
    InputError
        If a number is given as the error of sums over a few prototypes, or for a kernel without proven bounds. If
        settings of variances differ from those of the stored plan, or the classifier has no variances.
    MemoryBudgetError
        If latent variances do not fit in their working memory.
    StoreError
        If the model's support inputs cannot be read.
    """

    def __init__(self, model: ClassifierRecord, want: Want) -> None:
        self.model, self._want = model, want
        kernel, _ = fold_white(kernel_from_json(model.kernel), model.noise_variance)
        points = ClassifierSupport.of(model, want.version)
        self._context = BlockContext(want.version, points, kernel, model.n_support)
        if want.test is not None:
            model.inputs(0, min(1, model.n_support))  # report missing points before anything is written
        decider = self._decider = decider_of(model, plug_in=want.plug_in)
        self._variances: ClassVariances | None = None
        averages = isinstance(decider, GaussianDecider)
        if want.test is not None:
            if type(model) is NearProcessRecord:
                prediction_memory(model, want.executor.threads_per_process, variance=True).require(None)
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

    def _refuse_variances(self, want: Want) -> None:
        if self.model.form == "gp" and not want.plug_in:
            raise InputError(
                f"`variance`: '{self.model.url}' is a classifier on a basis, which predicts its latent functions' "
                "variances without it; leave it out"
            )
        raise InputError(
            f"`variance`: '{self.model.url}' is a classifier, which has no variances; leave it out. A Gaussian process "
            "of all samples has variances of its latent functions; other classifiers have proven bounds of decisions"
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
        """Build the factors of latent variances; without variances, a worker's first task opens the model."""
        return None if self._variances is None else self._variances.prepare()

    def remark(self) -> str | None:
        """Return a message with the number of samples whose neighbours may not be the nearest, if there are any."""
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
        """Join a region's pieces; compute classes and probabilities from its decisions."""
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
        """Return figures of the classes: method, counts by name, certified (None if nothing is proven), computed."""
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
