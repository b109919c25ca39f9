"""Decisions, classes and probabilities of each form of classifier, and proofs of these.

A decider has two halves. Tasks on workers compute decisions: sums over the points of the model, which are all samples
or a few prototypes. The coordinator computes classes and probabilities, each row from its decisions: these take library
functions, which need not have the same bits on every processor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.codec import from_json
from dkgp.data import ClassifierRecord, find_classifier
from dkgp.data.stores.manifest import described_whole
from dkgp.data.stores.prediction_store import LATENT_VARIABLES
from dkgp.errors import StoreError
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
)
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.rounding import assumptions, certified_row_errors
from dkgp.models.sparse.near import NearPredictor, near_of
from dkgp.models.sums import EVERY_ENTRY, SHARE_OF_BOUND, CachedModel, StoredPoints, Sums
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext

Values = dict[str, FloatArray]

# Of a decider with neighbours, beside what is stored.
UNPROVEN = "unproven"
PROBABILITY_ENDS = ("probability_lower", "probability_upper")
# The largest error that a forecast allows to sums of decisions, whose margins are at -1 and 1: a minimisation that
# stopped early has larger bounds.
MOST_ERROR = 1e-3


class ClassifierSupport(StoredPoints[ClassifierRecord]):
    """The points of a classifier: all samples, or a few prototypes."""

    @classmethod
    def of(cls, model: ClassifierRecord, version: str) -> ClassifierSupport:
        """The points of a classifier that is open here."""
        return cls(model.url, version, model.n_support, model.n_features, model.reference)

    def _opened(self) -> CachedModel[ClassifierRecord]:
        record = find_classifier(self.url, reference=self.reference)
        return CachedModel(record, int(record.coefficients.nbytes))

    def precision_roots(self, column: int, start: int, stop: int) -> FloatArray:
        """sqrt(W) of the points start:stop in a column, of a Gaussian process of all samples; see `PrecisionSource`.

        W is taken to be `LEAST_CURVATURE` at least; bounds allow for the difference.
        """
        curvature = self.record().curvature
        assert curvature is not None
        return np.sqrt(np.maximum(curvature[start:stop, column], LEAST_CURVATURE))


@dataclass(frozen=True)
class Decider:
    """A classifier's way from inputs to classes; small, for it travels with tasks."""

    probabilities: Calibration | Likelihood | None  # from decisions; None where the model was trained without
    certificate: DecisionCertificate | RiskCertificate | None = None  # None where nothing is proven
    assumes: str | None = None  # what bounds take on trust

    # Whether decisions take BLAS besides the tile loops, whose bits every processor has
    takes_blas: ClassVar[bool] = False

    @property
    def likelihood(self) -> Likelihood:
        """Of a model that has one."""
        assert isinstance(self.probabilities, Likelihood)
        return self.probabilities

    @property
    def has_intervals(self) -> bool:
        """True if probabilities have proven intervals; a calibration has none, since it depends on a subset."""
        return self.certificate is not None and isinstance(self.probabilities, Likelihood)

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the `CLASS_VARIABLES` that it computes."""
        bounds, certified = ((), ()) if self.certificate is None else (("decision_error_bound",), ("certified",))
        probability = () if self.probabilities is None else ("probability",)
        intervals = PROBABILITY_ENDS if self.has_intervals else ()
        return ("decision", *bounds, *probability, *intervals, "class", *certified)

    @property
    def lacks(self) -> str | None:
        """A line on what the model cannot predict, since it was trained without it."""
        if self.probabilities is not None:
            return None
        return "the classifier was trained without calibration: no probabilities are predicted"

    def weighted(self, model: ClassifierRecord, context: BlockContext) -> tuple[FloatArray, FloatArray]:
        """Return the weights of the sums that decisions and their bounds take, and errors that a forecast may choose.

        Weights (n, columns), errors (columns,). They add about a hundredth to a decision's bound: with an intercept,
        that of k_x'E changes V_b by so much of k(x, x) at most. Where nothing is proven no error is allowed.
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
            assert model.ones is not None
            weights = np.column_stack([weights, model.ones])
            errors = np.append(errors, SHARE_OF_BOUND * prior * certificate.ones_sum[0])
        return weights, errors

    def decide(self, context: BlockContext, inputs: FloatArray, sums: Sums = EVERY_ENTRY) -> Values:
        """Take sums at standardised inputs (r, d): `decision` (r, t), and what is proven of it. Where tasks run."""
        model = _record(context)
        if self.certificate is None:
            return {"decision": sums.products(context, inputs, model.coefficients)[0] + model.intercept}
        if isinstance(self.certificate, DecisionCertificate):
            assert model.alpha is not None
            assert model.ones is not None
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
        """Add `class` and all that follows from decisions, row by row: all `variables`. At the coordinator."""
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
    """Of a Gaussian process on a basis: probabilities are averages over Laplace's posterior of the latent functions.

    A certificate is of the mode: the basis' variances have no proven distance to the exact ones.
    """

    takes_blas: ClassVar[bool] = True

    @property
    def has_intervals(self) -> bool:
        """False: averages go by the basis' own variances."""
        return False

    @property
    def variables(self) -> tuple[str, ...]:
        """Those of the mode, and the latent variance."""
        return (*super().variables, *LATENT_VARIABLES)

    def decide(self, context: BlockContext, inputs: FloatArray, sums: Sums = EVERY_ENTRY) -> Values:
        """Decisions and their bounds; latent variances, of softmax covariances."""
        return {**super().decide(context, inputs, sums), "latent": _basis_variances(context, inputs)}

    def conclude(self, values: Values) -> Values:
        """Classes, averaged probabilities, and the variances, whose ends are alike: they are the basis' own."""
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
    """Of a Gaussian process on a basis with neighbours: no decision is a sum over the basis, and none is proven."""

    takes_blas: ClassVar[bool] = True

    def decide(self, context: BlockContext, inputs: FloatArray, sums: Sums = EVERY_ENTRY) -> Values:
        """Decisions, the latent variances that come with them, and a one where neighbours may not be the nearest."""
        decision, latent, unproven = _near_predictor(context).predictor.predicted(inputs)
        return {"decision": decision, "latent": latent, UNPROVEN: unproven.astype(np.float64)}


@dataclass(frozen=True)
class NearProcessDecider(NearDecider, BasisProcessDecider):
    """The same, with averaged probabilities."""


@dataclass(frozen=True)
class _HeldNear:
    predictor: NearPredictor
    nbytes: int  # never more than a cache would keep


def _near_predictor(context: BlockContext) -> _HeldNear:
    """The samples near, from this worker's cache or the model."""

    def made() -> _HeldNear:
        model = _record(context)
        with described_whole(model.url, "train again"):
            near = near_of(model)
            if model.kernel_lower is None or model.prototypes is None:
                raise ValueError("a basis without its factor")
        lower = np.asfortranarray(model.kernel_lower)
        predictor = NearPredictor(context.kernel, model.prototypes, lower, near)
        return _HeldNear(predictor, min(near.nbytes + lower.nbytes, worker_cache().budget_bytes))

    return worker_cache().get((context.run_id, "near"), made)


def _basis_variances(context: BlockContext, inputs: FloatArray) -> FloatArray:
    """Latent variances of a Gaussian process on a basis at standardised inputs (r, d): (r, t), or (r, t, t)."""
    evaluator, posterior = context.evaluator("double"), _posterior(context)
    rows = evaluator.prepare(inputs)
    columns = [
        np.asarray(evaluator.tile(context.block_features(block, "double"), rows)) for block in range(context.n_blocks)
    ]
    return posterior.variances(np.concatenate(columns), context.kernel.diagonal(inputs))


def _posterior(context: BlockContext) -> BasisPosterior:
    """The factors, from this worker's cache or the model."""

    def made() -> BasisPosterior:
        model = _record(context)
        if model.kernel_lower is None or model.posterior_lower is None or model.regularisation is None:
            raise StoreError(f"'{model.url}' lacks the factors of its latent functions; train it again")
        return BasisPosterior.of(model.kernel_lower, model.posterior_lower, model.n_outputs, model.regularisation)

    return worker_cache().get((context.run_id, "posterior"), made)


@dataclass(frozen=True)
class GaussianDecider(Decider):
    """Of a Gaussian process of all samples in Laplace's approximation: probabilities are averages.

    Decisions are the latent functions' means. `conclude` also takes the ends of the latent variances, which other
    rounds compute.
    """

    @property
    def variables(self) -> tuple[str, ...]:
        """Those of the mode, and the ends of variances."""
        return (*super().variables, *LATENT_VARIABLES)

    def conclude(self, values: Values) -> Values:
        """Averages at the middle of each variance's interval, the most likely class, and what of both is proven."""
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
    """The decider of a classifier's form; `plug_in` leaves a Gaussian process's probabilities unaveraged.

    Raises `StoreError` where the store tells nothing that a decider can be made of.
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
    kind: type[Decider] = Decider
    if model.neighbours is not None:
        near_of(model)  # what is missing is found out before anything is written
        kind = NearDecider if plug_in else NearProcessDecider
    elif model.form == "gp" and not plug_in:
        kind = BasisProcessDecider if model.is_sparse else GaussianDecider
    assumes = None if certificate is None else _assumes(model)
    return kind(from_json(Likelihood, model.likelihood), certificate, assumes)


def _assumes(model: ClassifierRecord) -> str | None:
    return assumptions(fold_white(kernel_from_json(model.kernel), model.noise_variance)[0])


def _record(context: BlockContext) -> ClassifierRecord:
    assert isinstance(context.source, ClassifierSupport)
    return context.source.record()
