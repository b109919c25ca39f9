"""Train a Gaussian process classifier: the mode of Laplace's approximation, certified, and what averages need of it.

The mode is the minimiser of kernel logistic regression with lambda 1, found and certified as that. The approximation is
normal around it, with the curvature W of the loss at each sample as the precision of its noise. W at the exact mode is
not known, but how far it may be: decisions are proven to be within delta_i of the exact ones, and

    logit:   |d log W / df| <= 1, so that W_i is within a factor e^delta_i,
    probit:  W falls with y f, so that it lies between its values at both ends.

The largest such factor c over the samples bounds what the latent variances may be off by: V rises with the noise, and
is a concave function of it, so that noise between 1 / c and c times ours gives a variance between V / c and c V.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data import Dataset
from dkgp.errors import InputError
from dkgp.kernels import Kernel
from dkgp.models.classification.labels import Labels
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.logistic.certificate import RiskCertificate
from dkgp.models.classification.logistic.train import TrainedLogistic, train_logistic
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.rounding import certified_row_errors
from dkgp.operators.base import FloatArray

__all__ = ["LEAST_CURVATURE", "TrainedGP", "curvature_factors", "require_separate", "train_gp"]

# Below it a sample's curvature is left out of the factor, and its part of a variance counted by itself: each takes less
# than so much times k(x, x) k(x_i, x_i) off.
LEAST_CURVATURE = 1e-30
# What the library's functions may be off by in a curvature: of the probit loss, whose hazard loses digits far out.
LIBRARY = {"logit": 1e-12, "probit": 1e-9}


@dataclass(frozen=True, eq=False)
class TrainedGP(TrainedLogistic):
    """A Gaussian process of labels in Laplace's approximation: the mode, and the curvature there.

    Attributes
    ----------
    curvature_factor : tuple of t floats
        c, by which W at the exact mode may differ at most, either way, of samples whose W is not below
        `LEAST_CURVATURE`; infinite where nothing is proven.
    """

    curvature_factor: tuple[float, ...] = ()


def train_gp(
    dataset: Dataset,
    labels: Labels,
    hyperparameters: Hyperparameters,
    executor: BlockExecutor,
    *,
    likelihood: Likelihood,
    regularisation: float = 1.0,
    weights: FloatArray | None = None,
    **settings: Any,
) -> TrainedGP:
    """Find the mode of labels on all samples, and prove how near it is.

    Parameters
    ----------
    dataset, labels, hyperparameters, executor
        As of `train_logistic`. The kernel's amplitude says how steep probabilities may be: tune it by the labels'
        evidence.
    likelihood : Likelihood
        Logit or probit, several classes each against the rest.
    regularisation : float
        1: a prior with the covariance K / lambda is one of another amplitude.
    weights : (n,) float64, optional
        How often each sample counts.
    settings
        As of `train_logistic`.

    Returns
    -------
    TrainedGP

    Raises
    ------
    InputError
        Softmax, another regularisation, and as `train_logistic`; other errors as there.
    """
    require_separate(likelihood, labels.n_samples)
    if regularisation != 1.0:
        raise InputError(
            f"a Gaussian process has no regularisation, got {regularisation:g}: the kernel's amplitude takes its place"
        )
    trained = train_logistic(
        dataset, labels, hyperparameters, executor, likelihood=likelihood, weights=weights, **settings
    )
    factors = curvature_factors(trained, dataset, likelihood.targets(labels))
    own = {field.name: getattr(trained, field.name) for field in dataclasses.fields(TrainedLogistic)}
    told = [factor if math.isfinite(factor) else None for factor in factors]
    own["summary"] = {**trained.summary, "method": "gp", "curvature_factor": told}
    return TrainedGP(**own, curvature_factor=factors)


def require_separate(likelihood: Likelihood, n_samples: int) -> None:
    """Refuse softmax, whose approximation couples the classes of n samples; `InputError`."""
    if likelihood.coupled:
        order = likelihood.n_classes * n_samples
        raise InputError(
            f"softmax couples the {likelihood.n_classes} classes of {n_samples:,} samples in one matrix of order "
            f"{order:,}, {8 * order**2 / 1e9:,.3g} GB. Take the classes one against the rest (`multi_class` ovr), or "
            "a basis (`basis_size`)"
        )


def curvature_factors(trained: TrainedLogistic, dataset: Dataset, targets: FloatArray) -> tuple[float, ...]:
    """By what factor the curvature at the exact mode may differ from that at hand, at most, of each column: t.

    Parameters
    ----------
    trained : TrainedLogistic
    dataset : Dataset
        It was trained on.
    targets : (n, t) float64
        As of `Likelihood.targets`.
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
    """The largest factor over samples of which values are within `away`: (t,)."""
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
        found = np.where(seen, np.maximum(most / at, at / least) * off, 1.0)
    return np.asarray(np.nan_to_num(found, nan=np.inf).max(axis=0))


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
