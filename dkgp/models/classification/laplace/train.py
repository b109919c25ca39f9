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
from dkgp.models.classification.labelled import LabelledData
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.logistic.certificate import RiskCertificate
from dkgp.models.classification.logistic.stopping import RiskSettings
from dkgp.models.classification.logistic.train import TrainedLogistic, train_logistic
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.rounding import certified_row_errors
from dkgp.operators.base import FloatArray

# Below it a sample's curvature is left out of the factor, and its part of a variance counted by itself: each takes less
# than so much times k(x, x) k(x_i, x_i) off.
LEAST_CURVATURE = 1e-30
# What the library's functions may be off by in a curvature: of the probit loss, whose hazard loses digits far out.
LIBRARY = {"logit": 1e-12, "probit": 1e-9}


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainedGP(TrainedLogistic):
    """A Gaussian process of labels in Laplace's approximation: the mode, and the curvature there.

    Attributes
    ----------
    curvature_factor : tuple of t floats
        c, by which W at the exact mode may differ at most, either way, of samples whose W is not below
        `LEAST_CURVATURE`; infinite where nothing is proven.
    """

    curvature_factor: tuple[float, ...] = ()

    def stored(self) -> dict[str, Any]:
        """As of the mode, and the curvature."""
        return {**super().stored(), "form": "gp", "curvature": self.curvature}

    def proofs(self) -> dict[str, Any]:
        """The mode's certificate, and the factors."""
        return {**self.certificate.to_json(), "curvature_factor": _finite(self.curvature_factor)}


def train_gp(
    data: LabelledData,
    hyperparameters: Hyperparameters,
    context: RunContext | BlockExecutor,
    settings: RiskSettings,
) -> TrainedGP:
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
    fields = {field.name: getattr(mode, field.name) for field in dataclasses.fields(TrainedLogistic)}
    fields["summary"] = {**mode.summary, "method": "gp", "curvature_factor": _finite(factors)}
    return TrainedGP(**fields, curvature_factor=factors)


def _finite(factors: tuple[float, ...]) -> list[float | None]:
    """Factors as JSON has them: None where nothing is proven."""
    return [factor if math.isfinite(factor) else None for factor in factors]


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
    """By what factor the curvature at the exact mode may differ from the trained one, at most: (t,).

    `dataset` is what was trained on, `targets` (n, t) as of `Likelihood.targets`.
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
