"""Train kernel logistic regression, or the mode of a Gaussian process of labels: a risk's minimiser, certified."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data import Dataset
from dkgp.data.types import ProgressCallback
from dkgp.errors import InputError
from dkgp.kernels import Kernel, check_positive_definite, fold_white, has_user_function
from dkgp.models.classification.belonging import belonging
from dkgp.models.classification.labels import Labels
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.logistic.certificate import Found, GradientLength, RiskCertificate
from dkgp.models.classification.logistic.entries import entries_not_negative
from dkgp.models.classification.logistic.foreseen import FORESEEN_FROM, foreseen_products
from dkgp.models.classification.logistic.stopping import NO_NOISE, RISK_TOLERANCE, RiskError
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.rounding import assumptions
from dkgp.models.tuning.tune import draw_subset
from dkgp.operators import TreeKernelOperator
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES, BlockedKernelOperator
from dkgp.solvers import Checkpointing, DualityGap, Progress, Solution, StoppingRule
from dkgp.solvers.conjugate.kernel_cg import kernel_product
from dkgp.solvers.risk import Risk, RiskMethod, RiskSolution, minimise_risk

__all__ = ["TrainedLogistic", "train_logistic"]


@dataclass(frozen=True, eq=False)
class TrainedLogistic:
    """The minimiser of sum_i w_i l(y_i, f(x_i)) + lambda |f|^2 / 2, as nearly as it was found.

    Attributes
    ----------
    kernel : Kernel
        Of the standardised inputs, without white noise.
    regularisation : float
        lambda.
    likelihood : Likelihood
    classes : tuple of str
    alpha : (n, t) float64
    values : (n, t) float64
        The decisions at the samples, K alpha.
    curvature : (n, t) float64
        W there, the weights of samples included: the loss' second derivative, of softmax its diagonal.
    certificate : RiskCertificate
    solution : Solution
        Of the search: history, and why it stopped. Its alpha is what the search ended in, from which `alpha` may be
        half a step along the gradient, at the centre of the ball in which the exact minimiser lies.
    summary : dict
        n, d, classes, counts, columns, likelihood, regularisation, solver (the method), converged, iterations,
        column_passes, kernel_evaluations, seconds, risk, risk_lower_bound, risk_gap (relative), decision_error by
        column and so on.
    product_error : float
        Bound on the errors of products beside rounding (tree sums).
    """

    kernel: Kernel
    regularisation: float
    likelihood: Likelihood
    classes: tuple[str, ...]
    alpha: FloatArray
    values: FloatArray
    curvature: FloatArray
    certificate: RiskCertificate
    solution: Solution
    summary: dict[str, Any]
    product_error: float = 0.0

    @property
    def history(self) -> list[dict[str, Any]]:
        """The search's records, in plain JSON types."""
        return [progress.to_json() for progress in self.solution.history]


def train_logistic(
    dataset: Dataset,
    labels: Labels,
    hyperparameters: Hyperparameters,
    executor: BlockExecutor,
    *,
    likelihood: Likelihood,
    regularisation: float = 1.0,
    method: str | RiskMethod[Any] = "auto",
    tolerance: float = RISK_TOLERANCE,
    gap: float | None = None,
    limits: StoppingRule | None = None,
    weights: FloatArray | None = None,
    tree_error: float | None = None,
    precision: Literal["mixed", "double"] = "mixed",
    initial: ArrayLike | None = None,
    callback: Callable[[Progress], None] | None = None,
    within: ProgressCallback | None = None,
    checkpointing: Checkpointing | None = None,
    interrupted: Callable[[], bool] | None = None,
    coordinator_input_bytes: int = DEFAULT_COORDINATOR_INPUT_BYTES,
    seed: int = 0,
) -> TrainedLogistic:
    """Minimise the regularised risk of labels on all samples, and prove how near decisions are.

    Parameters
    ----------
    dataset : Dataset
        Its standardised inputs are read by whoever needs them; its targets are not.
    labels : Labels
        Of its samples.
    hyperparameters : Hyperparameters
        The kernel; white noise that is part of it, and the noise variance, play no part.
    executor : BlockExecutor
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
    weights : (n,) float64, optional
        w, how often each sample counts, not negative.
    tree_error : float, optional
        Take products by pruned sums, each entry good to this; see `TreeKernelOperator`. The certificate allows for it.
    precision : {"mixed", "double"}
        Of the kernel products on the way.
    initial : (n, t) array_like, optional
        Warm start.
    callback, within, checkpointing, interrupted
        See `dkgp.solvers.solve`.
    coordinator_input_bytes : int
        See `BlockedKernelOperator`.
    seed : int
        Of what a method draws.

    Returns
    -------
    TrainedLogistic

    Raises
    ------
    InputError
        Labels or weights of another number of samples or classes, weights below zero, a regularisation, tolerance or
        gap that is not positive, a kernel for another number of features, or one whose white noise cannot be told from
        the rest.
    UsageError
        No such method.
    CheckpointError
        The checkpoint belongs to another run.
    InterruptedRunError
        As was wished.
    """
    n = dataset.n_samples
    if labels.n_samples != n:
        raise InputError(f"there are labels of {labels.n_samples:,} samples; '{dataset.url}' has {n:,}")
    kernel, _ = fold_white(hyperparameters.kernel, hyperparameters.noise_variance)
    targets = likelihood.targets(labels)
    risk = Risk(likelihood.loss, regularisation, weights)
    risk.check(targets)
    if has_user_function(kernel):
        check_positive_definite(kernel, dataset.input_rows(draw_subset(n, 256, 0)))
    options: dict[str, Any] = {"coordinator_input_bytes": coordinator_input_bytes}
    operators: type[BlockedKernelOperator] = BlockedKernelOperator
    if tree_error is not None:
        operators, options["error"] = TreeKernelOperator, tree_error
    settings: dict[str, Any] = {"likelihood": likelihood.to_json(), "regularisation": regularisation}
    cold = initial is None and tree_error is None and precision == "mixed"
    if cold and n >= FORESEEN_FROM and executor.tiles.measured:
        goal: dict[str, Any] = {"method": method, "regularisation": regularisation, "tolerance": tolerance, "gap": gap}
        foreseen = foreseen_products(dataset, labels, kernel, likelihood, **goal, seed=seed)
        executor.tiles = replace(executor.tiles, products=foreseen.count)
    with operators(kernel, NO_NOISE, dataset, executor, **options) as operator:
        prior = operator.prior()
        rule = RiskError(tolerance, float(prior.max()))
        converged: StoppingRule = rule if gap is None else DualityGap(gap)
        solved = minimise_risk(
            operator,
            targets,
            loss=risk.loss,
            regularisation=regularisation,
            weights=risk.weights,
            method=method,
            stopping=converged if limits is None else converged | limits,
            precision=precision,
            initial=initial,
            callback=callback,
            within=within,
            checkpointing=belonging(checkpointing, labels, weights, **settings),
            interrupted=interrupted,
            seed=seed,
        )
        share, errors = operator.kept_share, operator.row_errors()
        found = Found(
            regularisation=regularisation,
            alpha=solved.solution.alpha,
            values=solved.values,
            gradient=solved.gradient,
            gradient_image=solved.gradient_image,
            product_error=solved.product_error,
            noise=NO_NOISE,
        )
        length = GradientLength.of(found, targets, likelihood, prior, errors, risk.weights)
        sharpened = _is_coarse(length, rule, regularisation) and entries_not_negative(kernel)
        if sharpened:
            multiply = partial(_multiplied, operator)
            length = GradientLength.of(found, targets, likelihood, prior, errors, risk.weights, multiply)
    chosen, certificate = _chosen(found, length, risk, targets, prior, errors, assumptions(kernel), rule, gap is None)
    alpha, values = found.stepped(chosen), found.stepped_values(chosen)
    summary = _summary(dataset, labels, solved, certificate, rule)
    summary |= {"likelihood": likelihood.to_json(), "regularisation": regularisation}
    summary |= _risks(risk, targets, alpha, values, solved) | {"centred": chosen > 0.0, "sharpened": sharpened}
    summary |= {"kept_share": share, "weighted": weights is not None, "chosen": solved.chosen}
    summary |= {} if tree_error is None else {"tree_error": float(tree_error)}
    curvature = risk.weighted(likelihood.curvature(targets, values))
    return TrainedLogistic(
        kernel,
        regularisation,
        likelihood,
        labels.classes,
        alpha,
        values,
        curvature,
        certificate,
        solved.solution,
        summary,
        solved.product_error,
    )


def _multiplied(operator: KernelOperator, vectors: FloatArray) -> tuple[FloatArray, float]:
    """K V, and a bound on its errors beside rounding."""
    product = kernel_product(operator, vectors, "double")
    return product, operator.error_bound


def _is_coarse(length: GradientLength, rule: RiskError, regularisation: float) -> bool:
    """True if what products may have rounded is a tenth of the tolerance, and of the gradient, or more."""
    off, own = max(length.off), max(length.length)
    away = off / regularisation * math.sqrt(rule.largest)
    return math.isfinite(off) and off > 0.1 * own and away > 0.1 * rule.tolerance


def _chosen(
    found: Found,
    length: GradientLength,
    risk: Risk,
    targets: FloatArray,
    prior: FloatArray,
    errors: FloatArray,
    assumes: str | None,
    rule: RiskError,
    to_tolerance: bool,
) -> tuple[float, RiskCertificate]:
    """Share of a step to the function that is stored, 0 or 1/2, and its certificate.

    The centre of the ball has half the bound, but is a step along the gradient, and far from the minimum no good
    function. It is taken where its risk is no higher; and where the tolerance is proven there alone, so that the step
    moves no decision by more than that.
    """
    own, centre = (RiskCertificate.of(found, length, share, prior, errors, assumes) for share in (0.0, 0.5))
    risks = [
        float(np.sum(risk.value(targets, found.stepped(share), found.stepped_values(share)))) for share in (0.0, 0.5)
    ]
    scale = math.sqrt(rule.largest)
    step = max(length.length) / (2.0 * risk.regularisation) * scale
    needed = to_tolerance and step <= rule.tolerance < max(own.radius) * scale
    return (0.5, centre) if risks[1] <= risks[0] or needed else (0.0, own)


def _risks(
    risk: Risk, targets: FloatArray, alpha: FloatArray, values: FloatArray, solved: RiskSolution
) -> dict[str, float]:
    """The risk of what is stored, a bound from below on the least, and their relative distance."""
    value, below = float(np.sum(risk.value(targets, alpha, values))), float(np.sum(solved.lower_bound))
    size = max(abs(value), abs(below))
    return {"risk": value, "risk_lower_bound": below, "risk_gap": (value - below) / size if size else 0.0}


def _summary(
    dataset: Dataset, labels: Labels, solved: RiskSolution, certificate: RiskCertificate, rule: RiskError
) -> dict[str, Any]:
    solution = solved.solution
    progress = solution.progress
    largest = math.sqrt(rule.largest)
    errors = [length * largest for length in certificate.radius]
    return {
        "method": "logistic",
        "n": dataset.n_samples,
        "d": dataset.n_features,
        "classes": list(labels.classes),
        "counts": labels.counts().tolist(),
        "columns": len(errors),
        "solver": solved.method,
        "converged": solution.converged,
        "reason": solution.reason.message,
        "advice": solution.reason.advice,
        "iterations": progress.iteration,
        "column_passes": progress.column_passes,
        "kernel_evaluations": progress.kernel_evaluations,
        "refreshes": solution.refreshes,
        "seconds": progress.seconds,
        "seconds_by_part": {name: round(seconds, 3) for name, seconds in solution.seconds_by_part.items()},
        "gradient_inf_norm": progress.gradient_inf_norm,
        "relative_residual": progress.relative_residual,
        # What a decision among the samples misses at most, about; None where nothing is proven.
        "decision_error": [error if math.isfinite(error) else None for error in errors],
        "settings": solution.solver,
        **({} if certificate.assumes is None else {"assumes": certificate.assumes}),
    }
