"""Decisions, classes and probabilities of each form of classifier, and what of them is proven.

A decider has two halves. Decisions are sums over the points of the model, all samples or a few prototypes, which tasks
take on the worker that runs them. Classes and probabilities follow from decisions by arithmetic of one row, at the
coordinator: library functions need not have the same bits on every processor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.data import ClassifierRecord, find_classifier
from dkgp.data.stores.prediction_store import LATENT_VARIABLES
from dkgp.kernels import fold_white, kernel_from_json
from dkgp.models.classification.basis.posterior import BasisPosterior
from dkgp.models.classification.calibration import Calibration
from dkgp.models.classification.exact.certificate import DecisionCertificate, certified_labels
from dkgp.models.classification.exact.decisions import certified_decisions
from dkgp.models.classification.labels import decided
from dkgp.models.classification.laplace.averages import averaged, averaged_intervals, averaged_softmax
from dkgp.models.classification.laplace.train import LEAST_CURVATURE
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.logistic.certificate import RiskCertificate
from dkgp.models.rounding import assumptions, certified_row_errors
from dkgp.models.sums import EVERY_ENTRY, Sums, cross_products
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext

__all__ = [
    "BasisProcessDecider",
    "ClassifierSupport",
    "Decider",
    "ExactDecider",
    "FixedSizeDecider",
    "GaussianDecider",
    "RiskDecider",
    "decider_of",
]

Found = dict[str, FloatArray]


@dataclass(frozen=True)
class _Cached:
    record: ClassifierRecord

    @property
    def nbytes(self) -> int:
        return int(self.record.coefficients.nbytes)


@dataclass(frozen=True)
class ClassifierSupport:
    """A classifier's points as an input source; travels as an address and opens where it is used.

    Attributes
    ----------
    url : str
        Of the classifier: a store that the process can read, or a model in its own memory.
    version : str
        Under which the process's cache keeps what belongs to the run.
    n_samples, n_features : int
    reference : str
        As of `SupportInputs`.
    """

    url: str
    version: str
    n_samples: int
    n_features: int
    reference: str

    @classmethod
    def of(cls, model: ClassifierRecord, version: str) -> ClassifierSupport:
        """The points of a classifier that is open here."""
        return cls(model.url, version, model.n_support, model.n_features, model.reference)

    def record(self) -> ClassifierRecord:
        """Open the classifier, or take it from this worker's cache."""
        found = worker_cache().get(
            (self.version, "classifier"), lambda: _Cached(find_classifier(self.url, reference=self.reference))
        )
        return found.record

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Standardised points start:stop."""
        return self.record().inputs(start, stop)

    def precision_roots(self, column: int, start: int, stop: int) -> FloatArray:
        """sqrt(W) of the points start:stop in a column, of a Gaussian process of all samples; see `PrecisionSource`.

        W below `LEAST_CURVATURE` is that: what it comes to is counted.
        """
        curvature = self.record().curvature
        assert curvature is not None
        return np.sqrt(np.maximum(curvature[start:stop, column], LEAST_CURVATURE))


class Decider(Protocol):
    """A form's way from inputs to classes; small, for it travels with tasks.

    Attributes
    ----------
    variables : tuple of str
        What it finds of `CLASS_VARIABLES`.
    assumes : str or None
        What bounds take on trust.
    lacks : str or None
        A line on what the model was trained without.
    takes_blas : bool
        Whether decisions take BLAS besides the tile loops, whose bits every processor has.
    """

    takes_blas: ClassVar[bool]

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of what it finds."""

    @property
    def assumes(self) -> str | None:
        """Words on what bounds take on trust."""

    @property
    def lacks(self) -> str | None:
        """A line on what the model was trained without."""

    def at(self, context: BlockContext, inputs: FloatArray, sums: Sums = EVERY_ENTRY) -> Found:
        """Take sums at standardised inputs (r, d): `decision` (r, t), and what else they tell. Where tasks run."""

    def told(self, found: Found) -> Found:
        """Tell `class` and what else follows of rows, and return all `variables`. At the coordinator."""


@dataclass(frozen=True)
class FixedSizeDecider:
    """Of a fixed-size LS-SVM: sums over prototypes, an intercept and calibrated probabilities.

    Attributes
    ----------
    calibration : Calibration or None
    """

    calibration: Calibration | None
    assumes: str | None = None

    takes_blas: ClassVar[bool] = False

    @property
    def variables(self) -> tuple[str, ...]:
        """Decision, class, and probability where there is one."""
        return ("decision", *(() if self.calibration is None else ("probability",)), "class")

    @property
    def lacks(self) -> str | None:
        """A line on probabilities."""
        return _lacks(self.calibration)

    def at(self, context: BlockContext, inputs: FloatArray, sums: Sums = EVERY_ENTRY) -> Found:
        """Decisions."""
        model = _record(context)
        return {"decision": cross_products(context, inputs, model.coefficients) + model.intercept}

    def told(self, found: Found) -> Found:
        """Classes and probabilities."""
        return _calibrated(found, self.calibration)


@dataclass(frozen=True)
class ExactDecider:
    """Of an exact LS-SVM: sums over all samples with proven bounds, an intercept and calibrated probabilities.

    Attributes
    ----------
    certificate : DecisionCertificate
    calibration : Calibration or None
    assumes : str or None
    """

    certificate: DecisionCertificate
    calibration: Calibration | None
    assumes: str | None = None

    takes_blas: ClassVar[bool] = False

    @property
    def variables(self) -> tuple[str, ...]:
        """Decision, its bound, class, certified, and probability where there is one."""
        probability = () if self.calibration is None else ("probability",)
        return ("decision", "decision_error_bound", *probability, "class", "certified")

    @property
    def lacks(self) -> str | None:
        """A line on probabilities."""
        return _lacks(self.calibration)

    def at(self, context: BlockContext, inputs: FloatArray, sums: Sums = EVERY_ENTRY) -> Found:
        """Decisions and their bounds."""
        model = _record(context)
        assert model.alpha is not None
        assert model.ones is not None
        decisions, bounds = certified_decisions(
            context, self.certificate, model.alpha, model.ones, model.intercept, inputs, sums
        )
        return {
            "decision": decisions,
            "decision_error_bound": bounds,
            "certified": certified_labels(decisions, bounds).astype(np.float64),
        }

    def told(self, found: Found) -> Found:
        """Classes and probabilities."""
        return _calibrated(found, self.calibration)


@dataclass(frozen=True)
class RiskDecider:
    """Of the minimiser of a regularised risk, over all samples or prototypes: probabilities are the likelihood's.

    Attributes
    ----------
    likelihood : Likelihood
    certificate : RiskCertificate or None
        None where nothing is proven.
    assumes : str or None
    """

    likelihood: Likelihood
    certificate: RiskCertificate | None
    assumes: str | None = None
    lacks: str | None = None

    takes_blas: ClassVar[bool] = False

    @property
    def variables(self) -> tuple[str, ...]:
        """Decision, class and probability; where there is a certificate bounds, intervals, and what is certified."""
        if self.certificate is None:
            return ("decision", "probability", "class")
        intervals = ("probability", "probability_lower", "probability_upper")
        return ("decision", "decision_error_bound", *intervals, "class", "certified")

    def at(self, context: BlockContext, inputs: FloatArray, sums: Sums = EVERY_ENTRY) -> Found:
        """Decisions and their bounds."""
        decisions, off = sums.products(context, inputs, _record(context).coefficients)
        if self.certificate is None:
            return {"decision": decisions}
        prior, errors = context.kernel.diagonal(inputs), certified_row_errors(context.kernel, context.source, inputs)
        bounds = self.certificate.decision_error_bound(decisions, prior, errors, 0.0 if off is None else off)
        certified = self.certificate.certified(decisions, bounds, prior, errors)
        return {
            "decision": decisions,
            "decision_error_bound": bounds,
            "certified": certified.astype(np.float64),
        }

    def told(self, found: Found) -> Found:
        """Classes, probabilities, and the ends between which these are proven to lie."""
        decisions = found["decision"]
        told = {
            **found,
            "class": decided(decisions).astype(np.float64),
            "probability": self.likelihood.probabilities(decisions),
        }
        if self.certificate is not None:
            ends = self.likelihood.intervals(decisions, found["decision_error_bound"])
            told["probability_lower"], told["probability_upper"] = ends
        return told


@dataclass(frozen=True)
class BasisProcessDecider:
    """Of a Gaussian process on a basis: probabilities are averages over Laplace's posterior of the latent functions.

    Attributes
    ----------
    likelihood : Likelihood
    certificate : RiskCertificate or None
        Of the mode, where it was certified. The basis' variances have no proven distance to the exact ones.
    assumes : str or None
    """

    likelihood: Likelihood
    certificate: RiskCertificate | None
    assumes: str | None = None
    lacks: str | None = None

    takes_blas: ClassVar[bool] = True

    @property
    def variables(self) -> tuple[str, ...]:
        """Decision, probability, class and the latent variance; where there is a certificate, what it certifies."""
        bounds, certified = ((), ()) if self.certificate is None else (("decision_error_bound",), ("certified",))
        return ("decision", *bounds, "probability", "class", *certified, *LATENT_VARIABLES)

    def at(self, context: BlockContext, inputs: FloatArray, sums: Sums = EVERY_ENTRY) -> Found:
        """Decisions and their bounds; latent variances, of softmax covariances."""
        found = RiskDecider(self.likelihood, self.certificate).at(context, inputs, sums)
        return {**found, "latent": _basis_variances(context, inputs)}

    def told(self, found: Found) -> Found:
        """Classes, averaged probabilities, and the variances, whose ends are alike: they are the basis' own."""
        decisions, latent = found["decision"], found["latent"]
        own = latent
        if self.likelihood.coupled:
            own = np.diagonal(latent, axis1=1, axis2=2)
            probability = averaged_softmax(decisions, latent)
        else:
            probability = averaged(self.likelihood, decisions, latent)
        variances = dict.fromkeys(LATENT_VARIABLES, own)
        return {**found, "class": decided(decisions).astype(np.float64), "probability": probability, **variances}


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
        assert model.kernel_lower is not None
        assert model.posterior_lower is not None
        assert model.regularisation is not None
        return BasisPosterior.of(model.kernel_lower, model.posterior_lower, model.n_outputs, model.regularisation)

    return worker_cache().get((context.run_id, "posterior"), made)


@dataclass(frozen=True)
class GaussianDecider:
    """Of a Gaussian process of all samples in Laplace's approximation: probabilities are averages.

    `told` takes the ends of the latent variances with the decisions: rounds of their own find them.

    Attributes
    ----------
    mode : RiskDecider
        Of the decisions, which are the latent functions' means.
    """

    mode: RiskDecider
    lacks: str | None = None

    takes_blas: ClassVar[bool] = False

    @property
    def assumes(self) -> str | None:
        """Whatever bounds take on trust."""
        return self.mode.assumes

    @property
    def variables(self) -> tuple[str, ...]:
        """Those of the mode, and the ends of variances."""
        return (*self.mode.variables, "latent_variance_lower", "latent_variance_upper")

    def at(self, context: BlockContext, inputs: FloatArray, sums: Sums = EVERY_ENTRY) -> Found:
        """Decisions and their bounds."""
        return self.mode.at(context, inputs, sums)

    def told(self, found: Found) -> Found:
        """Averages at the middle of each variance's interval, the most likely class, and what of both is proven."""
        likelihood, mean, bound = self.mode.likelihood, found["decision"], found["decision_error_bound"]
        low, high = found["latent_variance_lower"], found["latent_variance_upper"]
        probability = averaged(likelihood, mean, 0.5 * (low + high))
        lower, upper = averaged_intervals(likelihood, mean, bound, low, high)
        codes = decided(mean) if mean.shape[1] == 1 else probability.argmax(axis=1)
        rows = np.arange(len(codes))
        others = upper.copy()
        others[rows, codes] = 0.0
        return {
            **found,
            "class": codes.astype(np.float64),
            "probability": probability,
            "probability_lower": lower,
            "probability_upper": upper,
            "certified": (lower[rows, codes] > others.max(axis=1)).astype(np.float64),
        }


def decider_of(model: ClassifierRecord, *, plug_in: bool = False) -> Decider:
    """The decider of a classifier's form; `plug_in` leaves a Gaussian process's probabilities unaveraged."""
    if model.form in ("logistic", "gp"):
        assert model.likelihood is not None
        # One of prototypes proves something where that was asked for.
        risk = RiskCertificate.from_json(dict(model.certificate)) if model.certificate else None
        likelihood, assumes = Likelihood.from_json(model.likelihood), _assumes(model, proven=risk is not None)
        if model.form == "gp" and model.is_sparse and not plug_in:
            return BasisProcessDecider(likelihood, risk, assumes)
        mode = RiskDecider(likelihood, risk, assumes)
        return GaussianDecider(mode) if model.form == "gp" and not model.is_sparse and not plug_in else mode
    calibration = None if model.calibration is None else Calibration.from_json(model.calibration)
    if model.form == "exact":
        certificate = DecisionCertificate.from_json(dict(model.certificate))
        return ExactDecider(certificate, calibration, _assumes(model, proven=True))
    return FixedSizeDecider(calibration)


def _assumes(model: ClassifierRecord, *, proven: bool) -> str | None:
    kernel, _ = fold_white(kernel_from_json(model.kernel), model.noise_variance)
    return assumptions(kernel) if proven else None


def _record(context: BlockContext) -> ClassifierRecord:
    assert isinstance(context.source, ClassifierSupport)
    return context.source.record()


def _calibrated(found: Found, calibration: Calibration | None) -> Found:
    told = {**found, "class": decided(found["decision"]).astype(np.float64)}
    if calibration is not None:
        told["probability"] = calibration.probabilities(found["decision"])
    return told


def _lacks(calibration: Calibration | None) -> str | None:
    if calibration is not None:
        return None
    return "the classifier was trained without calibration: no probabilities are predicted"
