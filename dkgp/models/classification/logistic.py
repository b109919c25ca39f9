"""Kernel logistic regression and Gaussian process classification on all samples: a risk's minimiser, certified.

`RiskSettings` has the risk and the rule that its minimiser is good enough for decisions. `foreseen_products` predicts
the number of products by runs on subsets.

The mode of a Gaussian process is the minimiser of kernel logistic regression with lambda 1, found and certified as
that. The approximation is normal around it, with the curvature W of the loss at each sample as the precision of its
noise. W at the exact mode is not known, but its distance is bounded: decisions are proven to be within delta_i of the
exact ones, and

    logit:   |d log W / df| <= 1, so that W_i is within a factor e^delta_i,
    probit:  W falls with y f, so that it lies between its values at both ends.

The largest such factor c over the samples bounds the errors of the latent variances: V rises with the noise, and is a
concave function of it, so that noise between 1 / c and c times ours gives a variance between V / c and c V.
"""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.codec import finite, to_json
from dkgp.data import Dataset
from dkgp.data.stores.models.classifier import ClassifierForm
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
from dkgp.models.classification.certificate import GradientLength, Minimum, RiskCertificate
from dkgp.models.classification.labels import REACH, DecisionTolerance, LabelledData, beyond_tolerance
from dkgp.models.classification.laplace import LEAST_CURVATURE
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.trained import TrainedClassifier
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.rounding import assumptions, certified_row_errors
from dkgp.models.tuning.subsets import draw_subset
from dkgp.operators import ArrayInputs
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.registry import byte_text
from dkgp.solvers import DualityGap, MaxPasses, Progress, Solution, StoppingRule
from dkgp.solvers.conjugate.kernel_cg import kernel_product
from dkgp.solvers.method_run import last_errors
from dkgp.solvers.prices import Expected
from dkgp.solvers.registry import AUTO
from dkgp.solvers.risk import Risk, RiskMethod, RiskSolution, method_for, minimise_by
from dkgp.solvers.risk.method import RiskState

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
        The search: its history, and its reason to stop. Its alpha is the search's last, from which `alpha` may be
        half a step along the gradient, at the centre of the ball in which the exact minimiser lies.
    product_error : float
        Bound on the errors of products beside rounding, where products are approximate.
    curvature_factor : tuple of t floats
        Of a Gaussian process: c, by which W at the exact mode may differ at most, either way, of samples whose W is not
        below `LEAST_CURVATURE`; infinite where nothing is proven.
    """

    form: ClassifierForm = "logistic"
    regularisation: float
    likelihood: Likelihood
    alpha: FloatArray
    values: FloatArray
    curvature: FloatArray
    certificate: RiskCertificate
    solution: Solution
    product_error: float = 0.0
    curvature_factor: tuple[float, ...] = ()

    def proofs(self) -> dict[str, Any]:
        """Return the certificate, with the factors of a Gaussian process."""
        document = self.certificate.to_json()
        return {**document, "curvature_factor": finite(self.curvature_factor)} if self.form == "gp" else document


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
    identity: dict[str, Any] = {"likelihood": to_json(likelihood), "regularisation": regularisation}
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
        # About the largest error of a decision at a sample; None where nothing is proven.
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
    """Return True if the rounding of products is a tenth of the tolerance, and of the gradient, or more."""
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
    """Return the risk of the stored function, a bound from below on the least, and their relative distance."""
    value, below = float(np.sum(risk.value(targets, alpha, values))), float(np.sum(solved.lower_bound))
    size = max(abs(value), abs(below))
    return {"risk": value, "risk_lower_bound": below, "risk_gap": (value - below) / size if size else 0.0}


# By default decisions are within so much of the exact minimiser's; a probability is then within a quarter of it.
RISK_TOLERANCE = 1e-3
# An operator's noise plays no part in a risk, and this disappears beside any entry.
NO_NOISE = 2.0**-300


@dataclass(frozen=True)
class RiskError(DecisionTolerance):
    """Converged when decisions are near the exact minimiser's: ||grad R|| / (2 lambda) max sqrt(k(x, x)) <= tolerance.

    That is the radius of the ball in which the minimiser lies (theorem 12), taken at the samples. Roundings that its
    proof counts are added, so that the bound that is stored is within the tolerance. Where roundings take nearly all of
    the tolerance, no further round brings the bound within it, and the rule goes by the radius alone.

    Parameters
    ----------
    tolerance : float
        On a decision.
    largest : float
        max k(x, x).
    """

    tolerance: float
    largest: float

    def measure(self, progress: Progress) -> float:
        """Distance that decisions may be at from the exact ones."""
        scale = math.sqrt(self.largest)
        rounding = progress.rounding * scale
        return progress.distance * scale + (rounding if rounding <= REACH * self.tolerance else 0.0)


@dataclass(frozen=True)
class RiskSettings:
    """The risk sum_i w_i l(y_i, f(x_i)) + lambda |f|^2 / 2, and how it is minimised.

    Parameters
    ----------
    likelihood : Likelihood
        Its negative logarithm is the loss l.
    regularisation : float
        lambda.
    method : str or RiskMethod
        Of `dkgp.solvers.risk.RISK_METHODS`, or "auto"; see `minimise_risk`.
    tolerance : float
        Stop where decisions are within about this of the exact minimiser's; see `RiskError`.
    gap : float, optional
        Stop where the risk is proven to be within this share of the least instead.
    limits : StoppingRule, optional
        Rules at which it stops too, such as `MaxPasses(50)`.
    precision : {"mixed", "double"}
        Of the kernel products on the way.
    seed : int
        Seed of a method's draws.
    """

    likelihood: Likelihood
    regularisation: float = 1.0
    method: str | RiskMethod[Any] = AUTO
    tolerance: float = RISK_TOLERANCE
    gap: float | None = None
    limits: StoppingRule | None = None
    precision: Literal["mixed", "double"] = "mixed"
    seed: int = 0

    def error(self, largest: float) -> RiskError:
        """The rule on decisions, of a kernel with max k(x, x) = `largest`; `InputError` for its tolerance."""
        return RiskError(self.tolerance, largest)

    def converged(self, largest: float) -> StoppingRule:
        """The rule that says when the risk is minimised: on decisions, or on the risk itself."""
        rule = self.error(largest)
        return rule if self.gap is None else DualityGap(self.gap)


# Samples of the runs that products are foreseen from, and products after which one of them is given up.
SUBSETS, MOST_PRODUCTS = (500, 2000), 400.0
# So many samples are worth these runs on the way: their products have a hundredth of the entries at most.
FORESEEN_FROM = 20_000
# Products grow no faster with n than its root, and the count at hand is unsure by so much.
STEEPEST, UNSURE = 0.5, 1.5


def foreseen_products(data: LabelledData, kernel: Kernel, settings: RiskSettings) -> Expected:
    """Foresee the products with the whole matrix, float32 ones for the most part; the kernel has no white noise.

    They are counted in runs on subsets, and go on with n as they did from the smaller of these to the larger, or up to
    its root; the fewest are also those of Newton's method, which all samples may be handed over to.
    """
    n, likelihood = data.n, settings.likelihood

    def products(size: int, method: str | RiskMethod[Any]) -> float:
        subset = draw_subset(n, size, settings.seed)
        inputs, targets = data.dataset.input_rows(subset), likelihood.targets(data.labels.subset(subset))
        with (
            closing(LocalExecutor(1)) as executor,
            BlockedKernelOperator(kernel, NO_NOISE, ArrayInputs(inputs), executor) as operator,
        ):
            minimiser = method_for(Risk(likelihood.loss, settings.regularisation), method, seed=settings.seed)
            rule = settings.converged(float(operator.prior().max()))
            solved = minimise_by(operator, targets, minimiser, stopping=rule | MaxPasses(MOST_PRODUCTS))
        return solved.solution.progress.column_passes

    sizes = sorted({min(size, n) for size in SUBSETS})
    counts = [products(size, settings.method) for size in sizes]
    # Conjugate gradients on a subset may be Newton's method on all samples.
    least = products(sizes[-1], "newton") if settings.method == AUTO else counts[-1]
    growth = 0.0
    if len(sizes) > 1 and counts[0] > 0.0:
        growth = math.log(counts[-1] / counts[0]) / math.log(sizes[-1] / sizes[0])
    ratio, last = n / sizes[-1], max(1.0, counts[-1])
    expected = last * ratio ** min(max(growth, 0.0), STEEPEST)
    return Expected(expected, max(1.0, min(last, least)) / UNSURE, last * ratio**STEEPEST * UNSURE)


# Relative error of a curvature by the library's functions; the hazard of the probit loss loses digits far out.
LIBRARY = {"logit": 1e-12, "probit": 1e-9}


def train_gp(
    data: LabelledData,
    hyperparameters: Hyperparameters,
    context: RunContext | BlockExecutor,
    settings: RiskSettings,
) -> TrainedLogistic:
    """Find the mode of labels on all samples, and prove how near it is; arguments and errors as of `train_logistic`.

    The kernel's amplitude says how steep probabilities may be: tune it by the labels' evidence. The likelihood is logit
    or probit, several classes each against the rest, and lambda is 1, for a prior with the covariance K / lambda is one
    of another amplitude; `InputError` for others.
    """
    likelihood, regularisation = settings.likelihood, settings.regularisation
    require_separate(likelihood, data.labels.n_samples)
    if regularisation != 1.0:
        raise InputError(
            f"a Gaussian process has no regularisation, got {regularisation:g}: the kernel's amplitude takes its place"
        )
    mode = train_logistic(data, hyperparameters, context, settings)
    factors = curvature_factors(mode, data.dataset, likelihood.targets(data.labels))
    summary = {**mode.summary, "method": "gp", "curvature_factor": finite(factors)}
    return replace(mode, form="gp", summary=summary, curvature_factor=factors)


def require_separate(likelihood: Likelihood, n_samples: int) -> None:
    """Refuse softmax, whose approximation couples the classes of n samples; `InputError`."""
    if likelihood.coupled:
        order = likelihood.n_classes * n_samples
        raise InputError(
            f"softmax couples the {likelihood.n_classes} classes of {n_samples:,} samples in one matrix of order "
            f"{order:,}, {byte_text(8 * order**2)}. Take the classes one against the rest (`multi_class` ovr), or "
            "a basis (`basis_size`)"
        )


def curvature_factors(trained: TrainedLogistic, dataset: Dataset, targets: FloatArray) -> tuple[float, ...]:
    """Bound the factor by which the curvature at the exact mode may differ from the trained one: (t,).

    `dataset` is the training set, `targets` (n, t) as of `Likelihood.targets`.
    """
    worst = np.ones(targets.shape[1])
    stepped = _stepped(trained, dataset)
    for start, stop in dataset.row_chunks():
        inputs = dataset.inputs(start, stop)
        values, prior = trained.values[start:stop], trained.kernel.diagonal(inputs)
        errors = certified_row_errors(trained.kernel, dataset, inputs)
        # Values were found from those before half a step and the step's: as much rounding again, of either.
        away = trained.certificate.decision_error_bound(values, prior, errors, trained.product_error)
        away = away + stepped.decision_error_bound(values, prior, errors, trained.product_error)
        worst = np.maximum(worst, _factors(trained.likelihood, targets[start:stop], values, away))
    return tuple(worst.tolist())


def _factors(likelihood: Likelihood, targets: FloatArray, values: FloatArray, away: FloatArray) -> FloatArray:
    """Return the largest factor over samples whose values are within `away`: (t,)."""
    off = 1.0 + LIBRARY[likelihood.name]
    if likelihood.name == "logit":
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(away.max(axis=0)) * off)
    margins = targets * values
    at = likelihood.curvature(np.ones_like(margins), margins)
    most = likelihood.curvature(np.ones_like(margins), np.nextafter(margins - away, -np.inf)) * off
    least = likelihood.curvature(np.ones_like(margins), np.nextafter(margins + away, np.inf)) / off
    seen = most >= LEAST_CURVATURE
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        factors = np.where(seen, np.maximum(most / at, at / least) * off, 1.0)
    return np.asarray(np.nan_to_num(factors, nan=np.inf).max(axis=0))


def _stepped(trained: TrainedLogistic, dataset: Dataset) -> RiskCertificate:
    """Roundings that the step to the function that is stored adds to its values, as a certificate."""
    step = np.abs(np.asarray(trained.solution.alpha).reshape(trained.alpha.shape) - trained.alpha)
    magnitude, spread = np.zeros(step.shape[1]), np.zeros(step.shape[1])
    for start, stop in dataset.row_chunks():
        inputs = dataset.inputs(start, stop)
        errors = certified_row_errors(trained.kernel, dataset, inputs)
        scale = _scale(trained.kernel, inputs)
        magnitude += 2.02 * (scale @ (step[start:stop] + np.abs(trained.alpha[start:stop])))
        spread += 2.02 * ((scale * errors) @ (step[start:stop] + np.abs(trained.alpha[start:stop])))
    nothing = (0.0,) * step.shape[1]
    return RiskCertificate(trained.certificate.n, nothing, tuple(magnitude.tolist()), tuple(spread.tolist()))


def _scale(kernel: Kernel, inputs: FloatArray) -> FloatArray:
    return np.asarray(np.sqrt(kernel.diagonal(inputs)) * 1.01)
