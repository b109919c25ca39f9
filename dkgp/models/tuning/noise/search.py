"""A noise model and a kernel together: the search of `tune`, with the weights of log s2 among its parameters.

Both are taken at the maximum of the subset's likelihood times the prior of the weights, as by Binois, Gramacy and
Ludkovski, *Practical Heteroscedastic Gaussian Process Modeling for Large Simulation Experiments*, Journal of
Computational and Graphical Statistics 27, 2018. The derivative with respect to log s2_i is s2_i G_ii: the same matrix
that has the kernel's derivatives.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dkgp.data.types import FloatArray
from dkgp.errors import NumericalError
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.noise import NoiseModel
from dkgp.models.tuning.kernel_family import family_of
from dkgp.models.tuning.likelihood_search import LikelihoodSearch, SearchSettings
from dkgp.models.tuning.noise.features import NoiseFeatures, noise_features
from dkgp.models.tuning.noise.objective import BY_DESIGN
from dkgp.models.tuning.problem import Choices, SearchProblem
from dkgp.models.tuning.search_space import NOISE_VARIANCE_BOUNDS, LogNormal, SearchSpace

_WEIGHT_BOUND = 20.0


def fit_noise(
    kind: str,
    start: Hyperparameters,
    inputs: FloatArray,
    targets: FloatArray,
    choices: Choices,
    settings: SearchSettings,
) -> Hyperparameters:
    """Find a noise model of `kind`, and move the kernel with it, from `start` on.

    Raises `NumericalError`: the kernel matrix is not positive definite at the start.

    Parameters
    ----------
    kind : {"linear", "gp"}
    start : Hyperparameters
        Found with the same noise everywhere.
    inputs, targets
        A subset, standardised: (n, d) and (n, p).
    choices, settings
        As of the search that found `start`; its kernel and start do not matter.

    Returns
    -------
    Hyperparameters
        With a noise model; `noise_variance` is its mean over the subset.
    """
    names = start.feature_names or tuple(f"x{index}" for index in range(start.n_features))
    problem = SearchProblem.of(names, replace(choices, kernel=None, start=start), settings)
    features = noise_features(kind, start, inputs, targets)
    q = features.design.shape[1]
    family = family_of(problem.kernel, inputs, problem.settings.learn_variance, names)
    objective = BY_DESIGN[choices.objective](family, targets, features.design)
    space = _with_weights(problem.space, q, features.deviation)
    first = np.concatenate([problem.first[:-1], np.zeros(q), problem.first[-1:]])
    best = LikelihoodSearch(objective, space, settings).run(space.within(first))
    if best is None:
        raise NumericalError(
            "the kernel matrix was not positive definite where the search for a noise model begins. Leave the noise "
            "model out, or raise the lower bound of the noise variance"
        )
    of_kernel, weights, offset = np.split(best.parameters, [-1 - q, -1])
    model = _model(kind, features, weights, float(offset[0]))
    at_samples = model.variances(inputs)
    without = np.append(of_kernel, np.log(at_samples.mean()))
    tuned = problem.space.tuned(without, problem.space.within(problem.first), names)
    begun = {parameter.name: parameter.start for parameter in start.parameters or ()}
    of_likelihood = choices.objective == "likelihood"
    unmet = () if best.rested else (f"the search for a noise model of kind {kind} stopped before its tolerance",)
    return replace(
        start,
        kernel=problem.family.kernel(of_kernel),
        noise_variance=float(at_samples.mean()),
        noise_model=model,
        parameters=tuple(replace(item, start=begun.get(item.name, item.start)) for item in tuned),
        warnings=(*start.warnings, *unmet),
        log_prior=None,
        scores=None,
        log_marginal_likelihood=best.log_likelihood if of_likelihood else None,
        leave_one_out_log_likelihood=None if of_likelihood else best.log_likelihood,
    )


def _model(kind: str, features: NoiseFeatures, weights: FloatArray, offset: float) -> NoiseModel:
    logs = offset + features.design @ weights
    low, high = NOISE_VARIANCE_BOUNDS
    points = None if features.points is None else tuple(tuple(row) for row in features.points.tolist())
    return NoiseModel(
        kind,
        offset,
        tuple(features.coefficients(weights).tolist()),
        lowest=float(np.clip(np.exp(logs.min()), low, high)),
        highest=float(np.clip(np.exp(logs.max()), low, high)),
        kernel=features.kernel,
        basis=points,
    )


def _with_weights(space: SearchSpace, q: int, deviation: float) -> SearchSpace:
    """The space with q weights before the noise variance, each normal around zero."""
    k = len(space.names) - 1
    names = tuple(f"noise_weight.{index}" for index in range(q))

    moved = tuple((position + q * (position == k), prior) for position, prior in space.priors)
    # Of a logarithm that is normal around log 1: the search's own form of a normal weight.
    normal = LogNormal(1.0, deviation)
    return replace(
        space,
        names=(*space.names[:k], *names, *space.names[k:]),
        labels=(*space.labels[:k], *names, *space.labels[k:]),
        features=(*space.features[:k], *(None,) * q, *space.features[k:]),
        bounds=np.insert(space.bounds, [k] * q, [-_WEIGHT_BOUND, _WEIGHT_BOUND], axis=0),
        gamma_like=np.insert(space.gamma_like, [k] * q, False),
        fixed=np.insert(space.fixed, [k] * q, np.nan),
        priors=(*moved, *((k + index, normal) for index in range(q))),
    )
