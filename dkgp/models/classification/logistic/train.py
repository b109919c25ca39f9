"""Train kernel logistic regression, or the mode of a Gaussian process of labels: a risk's minimiser, certified."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.errors import InputError
from dkgp.kernels import (
    ActiveDimensions,
    Constant,
    Cubic,
    Kernel,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Product,
    RationalQuadratic,
    Scaled,
    Spherical,
    SquaredExponential,
    Sum,
    Wendland,
)
from dkgp.models.classification.labelled import LabelledData, beyond_tolerance
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.logistic.certificate import GradientLength, Minimum, RiskCertificate
from dkgp.models.classification.logistic.foreseen import FORESEEN_FROM, foreseen_products
from dkgp.models.classification.logistic.stopping import NO_NOISE, RiskError, RiskSettings
from dkgp.models.classification.trained import TrainedClassifier
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.rounding import assumptions
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.solvers import Solution
from dkgp.solvers.conjugate.kernel_cg import kernel_product
from dkgp.solvers.driver import last_errors
from dkgp.solvers.risk import Risk, RiskSolution, method_for, minimise_by
from dkgp.solvers.risk.state import RiskState

# Kernels none of whose entries is negative, and those that make no others of such parts.
_NOT_NEGATIVE = (
    Constant, Cubic, Matern12, Matern32, Matern52, Periodic, RationalQuadratic, Spherical, SquaredExponential, Wendland
)  # fmt: skip
_COMPOSED = (ActiveDimensions, Product, Scaled, Sum)


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainedLogistic(TrainedClassifier):
    """The minimiser of sum_i w_i l(y_i, f(x_i)) + lambda |f|^2 / 2, as nearly as it was found.

    Attributes
    ----------
    regularisation : float
        lambda.
    likelihood : Likelihood
    alpha : (n, t) float64
    values : (n, t) float64
        The decisions at the samples, K alpha.
    curvature : (n, t) float64
        W there, the weights of samples included: the loss' second derivative, of softmax its diagonal.
    certificate : RiskCertificate
    solution : Solution
        Of the search: history, and why it stopped. Its alpha is what the search ended in, from which `alpha` may be
        half a step along the gradient, at the centre of the ball in which the exact minimiser lies.
    product_error : float
        Bound on the errors of products beside rounding, where products are approximate.
    """

    regularisation: float
    likelihood: Likelihood
    alpha: FloatArray
    values: FloatArray
    curvature: FloatArray
    certificate: RiskCertificate
    solution: Solution
    product_error: float = 0.0

    def stored(self) -> dict[str, Any]:
        """Coefficients, and the risk that they minimise."""
        return {
            "form": "logistic",
            "alpha": self.alpha,
            "intercept": np.zeros(self.likelihood.n_outputs),
            "likelihood": self.likelihood.to_json(),
            "regularisation": self.regularisation,
        }


def train_logistic(
    data: LabelledData,
    hyperparameters: Hyperparameters,
    context: RunContext | BlockExecutor,
    settings: RiskSettings,
) -> TrainedLogistic:
    """Minimise the regularised risk of labels on all samples, and prove how near decisions are.

    Parameters
    ----------
    data : LabelledData
        Weights say how often each sample counts.
    hyperparameters : Hyperparameters
        The kernel; white noise that is part of it, and the noise variance, play no part.
    context : RunContext or BlockExecutor
        Who computes, and who watches.
    settings : RiskSettings

    Raises
    ------
    InputError
        Another number of classes than the likelihood's, a regularisation, tolerance or gap that is not positive, a
        kernel for another number of features, one whose white noise cannot be told from the rest, or a number as
        `product_error` that is too large for the tolerance.
    UsageError
        No such method.
    CheckpointError
        The checkpoint belongs to another run.
    InterruptedRunError
        The context asked for the end.
    """
    likelihood, regularisation = settings.likelihood, settings.regularisation
    kernel, _ = data.kernel(hyperparameters)
    targets = likelihood.targets(data.labels)
    risk = Risk(likelihood.loss, regularisation, data.weights)
    risk.check(targets)
    context = RunContext.of(context)
    limit = product_limit(data, kernel, settings)
    if (conflict := context.product_error.decision_conflict(limit, settings.tolerance)) is not None:
        raise InputError(conflict)
    tiles = context.executor.tiles
    identity: dict[str, Any] = {"likelihood": likelihood.to_json(), "regularisation": regularisation}
    evaluated = not context.product_error.bounds(kernel, data.n) and settings.precision == "mixed"
    if evaluated and data.n >= FORESEEN_FROM and tiles.measured:
        foreseen = foreseen_products(data, kernel, settings)
        context.executor.tiles = replace(tiles, products=foreseen.count)
    with context.operator(kernel, NO_NOISE, data.dataset, tolerance=limit) as operator:
        prior = operator.prior()
        rule, converged = settings.error(float(prior.max())), settings.converged(float(prior.max()))
        proof = _Proof(operator, targets, likelihood, risk, prior, rule)
        minimised = replace(risk, proven=proof.radius) if settings.gap is None else risk
        solved = minimise_by(
            operator,
            targets,
            method_for(minimised, settings.method, settings.precision, settings.seed),
            stopping=converged if settings.limits is None else converged | settings.limits,
            watch=data.identified(context, **identity),
        )
        kept_share, errors, products = operator.kept_share, operator.row_errors(), operator.products
        minimum, length, sharpened = proof.of(
            solved.solution.alpha,
            (solved.values, solved.value_errors),
            solved.gradient,
            (solved.gradient_image, solved.image_errors),
        )
    # Where the search ended, and the centre of the ball, which has half the bound.
    end, centre = (
        RiskCertificate.of(minimum, length, share, prior, errors, assumptions(kernel)) for share in (0.0, 0.5)
    )
    centred = _is_centre_better(minimum, length, end, risk, targets, rule, settings.gap is None)
    share, certificate = (0.5, centre) if centred else (0.0, end)
    alpha, values = minimum.stepped(share), minimum.stepped_values(share)
    decision_errors = [radius * math.sqrt(rule.largest) for radius in certificate.radius]
    beyond: dict[str, str] = {}
    if settings.gap is None and solved.solution.converged:
        remedy = "a larger `regularisation`, or a kernel of less variance"
        beyond = beyond_tolerance(max(decision_errors), settings.tolerance, remedy)
    summary = {
        "method": "logistic",
        **data.summary(),
        "columns": len(decision_errors),
        "solver": solved.method,
        **solved.solution.summary(),
        # About what a decision at a sample misses at most; None where nothing is proven.
        "decision_error": [error if math.isfinite(error) else None for error in decision_errors],
        **beyond,
        "settings": solved.solution.solver,
        **({} if certificate.assumes is None else {"assumes": certificate.assumes}),
        **identity,
        **_risks(risk, targets, alpha, values, solved),
        "centred": centred,
        "sharpened": sharpened,
        "kept_share": kept_share,
        "weighted": data.weights is not None,
        "chosen": solved.choice,
        **context.product_error.record(kernel, data.n, products),
    }
    return TrainedLogistic(
        kernel=kernel,
        classes=data.labels.classes,
        certificate=certificate,
        history=[progress.to_json() for progress in solved.solution.history],
        summary=summary,
        regularisation=regularisation,
        likelihood=likelihood,
        alpha=alpha,
        values=values,
        curvature=risk.weighted(likelihood.curvature(targets, values)),
        solution=solved.solution,
        product_error=solved.product_error,
    )


def product_limit(data: LabelledData, kernel: Kernel, settings: RiskSettings) -> float | None:
    """Return the error of a product's entries that alone may move decisions by the tolerance.

    An error e moves g by w_i c e, and a coupled loss's row of p columns by w_i c sqrt(p) e. So it widens the ball in
    which the minimiser lies by c e sum_i w_i sqrt(k_ii) / lambda (`RiskState`). None for a tolerance on the risk, and
    where k(x, x) differs between samples.
    """
    if settings.gap is not None or not kernel.stationary:
        return None
    loss = settings.likelihood.loss
    variance = float(kernel.diagonal(data.dataset.inputs(0, 1))[0])
    total = float(data.n) if data.weights is None else float(data.weights.sum())
    together = math.sqrt(settings.likelihood.n_outputs) if loss.coupled else 1.0
    moved = loss.curvature_bound * together * total * variance
    return settings.regularisation * settings.tolerance / moved if moved > 0.0 else None


def _errors(rows: FloatArray) -> FloatArray | float:
    return rows if rows.size else 0.0


# A product of K with (n, t), and bounds on its errors; see `RiskState`.
_Evaluated = tuple[FloatArray, FloatArray]


class _Proof:
    """Proofs of the functions that a minimisation reaches; that of the last one is kept."""

    def __init__(
        self,
        operator: KernelOperator,
        targets: FloatArray,
        likelihood: Likelihood,
        risk: Risk,
        prior: FloatArray,
        rule: RiskError,
    ) -> None:
        self._operator, self._targets, self._likelihood, self._risk = operator, targets, likelihood, risk
        self._prior, self._errors, self._rule = prior, operator.row_errors(), rule
        self._last: tuple[Minimum, GradientLength, bool] | None = None

    def radius(self, state: RiskState) -> float:
        """Return the radius that is proven at the centre of the ball, for `Risk.proven`."""
        values, image = (state.values, state.value_errors), (state.gradient_image, state.image_errors)
        minimum, length, _ = self.of(state.alpha, values, state.gradient, image)
        return max(RiskCertificate.of(minimum, length, 0.5, self._prior, self._errors).radius)

    def of(
        self, alpha: FloatArray, values: _Evaluated, gradient: FloatArray, image: _Evaluated
    ) -> tuple[Minimum, GradientLength, bool]:
        """Return the function, the length of its gradient, and whether further products made that sharper."""
        if self._last is not None and self._last[0].alpha is alpha and self._last[0].values is values[0]:
            return self._last
        lambda_ = self._risk.regularisation
        minimum = Minimum(
            lambda_, alpha, values[0], gradient, image[0], _errors(values[1]), _errors(image[1]), NO_NOISE
        )
        arguments = (minimum, self._targets, self._likelihood, self._prior, self._errors, self._risk.weights)
        length = GradientLength.of(*arguments)
        sharpened = _is_coarse(length, self._rule, lambda_) and _entries_not_negative(self._operator.kernel)
        if sharpened:
            length = GradientLength.of(*arguments, multiply=self._multiplied)
        self._last = minimum, length, sharpened
        return self._last

    def _multiplied(self, vectors: FloatArray) -> tuple[FloatArray, FloatArray | float]:
        """K V, and bounds on its errors beside rounding."""
        return kernel_product(self._operator, vectors, "double"), _errors(last_errors(self._operator))


def _is_coarse(length: GradientLength, rule: RiskError, regularisation: float) -> bool:
    """True if what products may have rounded is a tenth of the tolerance, and of the gradient, or more."""
    off, size = max(length.off), max(length.length)
    away = off / regularisation * math.sqrt(rule.largest)
    return math.isfinite(off) and off > 0.1 * size and away > 0.1 * rule.tolerance


def _is_centre_better(
    minimum: Minimum,
    length: GradientLength,
    end: RiskCertificate,
    risk: Risk,
    targets: FloatArray,
    rule: RiskError,
    to_tolerance: bool,
) -> bool:
    """True if the centre of the ball is to be stored instead of the function that the search ended in.

    The centre has half the bound, but is a step along the gradient, and far from the minimum no good function. It is
    taken where its risk is no higher; and where the tolerance is proven there alone, so that the step moves no decision
    by more than that.
    """
    at_end, at_centre = (
        float(np.sum(risk.value(targets, minimum.stepped(share), minimum.stepped_values(share))))
        for share in (0.0, 0.5)
    )
    scale = math.sqrt(rule.largest)
    step = max(length.length) / (2.0 * risk.regularisation) * scale
    needed = to_tolerance and step <= rule.tolerance < max(end.radius) * scale
    return at_centre <= at_end or needed


def _entries_not_negative(kernel: Kernel) -> bool:
    """True if it is known that k(x, x') >= 0 for all x and x': sums of their sizes are then products."""
    return all(isinstance(part, (*_NOT_NEGATIVE, *_COMPOSED)) for part in kernel.walk())


def _risks(
    risk: Risk, targets: FloatArray, alpha: FloatArray, values: FloatArray, solved: RiskSolution
) -> dict[str, float]:
    """The risk of what is stored, a bound from below on the least, and their relative distance."""
    value, below = float(np.sum(risk.value(targets, alpha, values))), float(np.sum(solved.lower_bound))
    size = max(abs(value), abs(below))
    return {"risk": value, "risk_lower_bound": below, "risk_gap": (value - below) / size if size else 0.0}
