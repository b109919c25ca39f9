"""Noise that differs between inputs or has heavy tails, fitted on a subset: a model of its variance, or Student's t.

The choice on held-out samples. A model with more parameters than the plain one is taken where its mean log density of
the held-out samples is greater by more than twice the standard error of the difference, sample by sample, and by a
least gain; if the plain model is right, that is rarely so. A single sample's gain counts for three nats at most, so
that a few outliers, which gain most, neither decide alone nor hide behind the standard error that they cause.

A noise model: log s2 is a sum of features, the inputs or those of a Gaussian process. The variation of log s2 under a
Gaussian process is learnt from residuals (Kersting, Plagemann, Pfaff and Burgard, *Most Likely Heteroscedastic Gaussian
Process Regression*, ICML 2007, section 4), here from those of each sample given all others, e_i. If e_i is normal with
variance s2_i, log e_i^2 is log s2_i and the logarithm of a chi-squared variable of one degree of freedom: its mean,
psi(1/2) + log 2 = -1.2704, is subtracted, and its variance is pi^2 / 2. The likelihood fits the weights themselves; it
wastes less of the data than these logarithms do. Weights and kernel are taken together at the maximum of the subset's
likelihood times the prior of the weights, as by Binois, Gramacy and Ludkovski, *Practical Heteroscedastic Gaussian
Process Modeling for Large Simulation Experiments*, Journal of Computational and Graphical Statistics 27, 2018. The
derivative by log s2_i is s2_i G_ii, of the same matrix that has the kernel's derivatives.

Student's t, in turns: the samples' weights, by the residual of each and the variance of the function there (variational
EM: lambda is given by r^2 + V on average); nu and s2, by the density of each sample given all others, of t around a
normal; and the kernel, by the objective of tuning under the samples' noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import scipy

from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset
from dkgp.data.types import FloatArray
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.noise import KINDS, SAME_NOISE, Noise, NoiseModel, StudentT
from dkgp.models.tuning.dense_algebra import factor, invert, solve_factored, solve_half
from dkgp.models.tuning.families import family_of
from dkgp.models.tuning.objectives import BY_DESIGN, OBJECTIVES
from dkgp.models.tuning.search import Choices, LikelihoodSearch, SearchProblem, SearchSettings
from dkgp.models.tuning.space import NOISE_VARIANCE_BOUNDS, LogNormal, SearchSpace
from dkgp.models.tuning.subsets import SubsetPlan, Subsets, plan_subsets
from dkgp.models.tuning.tune import ScoreSums, scores_of, tune

NoiseKind: TypeAlias = Literal["none", "linear", "gp", "auto"]
NOISE_KINDS: tuple[NoiseKind, ...] = get_args(NoiseKind)


# Standardised inputs (n, d) and targets (n, p) of a subset.
Rows: TypeAlias = tuple[FloatArray, FloatArray]
Fit: TypeAlias = Callable[[FloatArray, FloatArray], Hyperparameters]
# Predicts held-out samples from a subset's rows, by dense algebra; `NumericalError` if Kbar is not positive definite.
Predict: TypeAlias = "Callable[[Hyperparameters, Rows, Rows], Prediction]"

# Held-out samples that decide, as a fraction of the subset, and the fewest samples of a data set.
HELD_OUT, FEWEST = 0.5, 20
# Least gain of a larger model: standard errors of the difference, and nats; greatest gain that a sample counts for.
_ERRORS, _LEAST_GAIN, _MOST_GAIN = 2.0, 0.005, 3.0


@dataclass(frozen=True)
class Prediction:
    """A model's prediction of held-out samples: `losses` (m,), negative log densities, mean over targets; scores."""

    losses: FloatArray
    sums: ScoreSums

    def row(self) -> dict[str, Any]:
        """Return the scores; the density is that of the losses, which need not be normal."""
        scores = {name: value for name, value in scores_of([self.sums]).items() if name != "predictions"}
        return {**scores, "nlpd": float(self.losses.mean())}


@dataclass(frozen=True)
class Gain:
    """Gain of one model over another on held-out samples: mean log density, in nats, and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, before: FloatArray, after: FloatArray) -> Gain:
        """Compare losses (m,) of the same samples."""
        gains = np.minimum(before - after, _MOST_GAIN)
        return cls(float(gains.mean()), float(gains.std(ddof=1)) / math.sqrt(len(gains)))

    @property
    def decides(self) -> bool:
        """True if the gain suffices to take the other model."""
        return self.mean > max(_ERRORS * self.error, _LEAST_GAIN)


@dataclass(frozen=True)
class NoiseSearch:
    """A search for a noise model beyond `start`, on a subset of at most `size` samples; `subject` names it in words.

    Raises `InputError` if the noise is fixed, or known.
    """

    subject: str
    dataset: Dataset
    start: Hyperparameters
    size: int
    seed: int
    note: Callable[[str], None] = lambda line: None

    def __post_init__(self) -> None:
        if any(parameter.name == "noise_variance" and parameter.fixed for parameter in self.start.parameters or ()):
            raise InputError(
                f"the noise variance is held fixed, and a {self.subject} finds it from the data; leave one of them out"
            )
        if not SAME_NOISE.beside(self.dataset).is_common:
            raise InputError(
                f"the noise of the samples is known beside the common one, and a {self.subject} finds all of it from "
                f"the data. Leave the {self.subject} out, or ingest without the column of known noise"
            )

    def fitted(self, fit: Fit) -> Hyperparameters:
        """Return the model that the user named, fitted on the whole subset."""
        n = self.dataset.n_samples
        return fit(*Subsets(self.dataset, plan_subsets(n, min(self.size, n), seed=self.seed)).rows(0))

    def best_of(self, plain: str, fits: Mapping[str, Fit], predict: Predict) -> Hyperparameters:
        """Return the best of `start`, named `plain`, and the results of `fits`, with the comparison.

        Raises `InputError` for fewer than 20 samples.
        """
        if self.dataset.n_samples < FEWEST:
            raise InputError(
                f"a {self.subject} by `auto` holds samples out, and needs {FEWEST}; there are "
                f"{self.dataset.n_samples}. Name the {self.subject}, or leave it out"
            )
        plan = self._plan()
        source = Subsets(self.dataset, plan)
        rows, held_out = source.rows(0), source.held_out()
        kind, best, taken = plain, self.start, predict(self.start, rows, held_out)
        table = [{"kind": plain, **taken.row(), "against": None, "gain": None, "standard_error": None}]
        for name, fit in fits.items():
            try:
                tuned = fit(*rows)
                predicted = predict(tuned, rows, held_out)
            except NumericalError as failure:
                self.note(f"{self.subject} {name}: {failure}")
                continue
            gain = Gain.of(taken.losses, predicted.losses)
            of_gain = {"against": kind, "gain": gain.mean, "standard_error": gain.error}
            table.append({"kind": name, **predicted.row(), **of_gain})
            if gain.decides:
                kind, best, taken = name, tuned, predicted
        self._tell(table, plan)
        self.note(f"the {self.subject} is {kind}")
        if kind != plain and plan.size < min(self.size, self.dataset.n_samples):
            best = self.fitted(fits[kind])  # the held-out samples have decided; now they train too
        comparison = {"kind": kind, "samples": plan.size, "held_out": plan.holdout, "kinds": table}
        return replace(best, noise_comparison=comparison)

    def _plan(self) -> SubsetPlan:
        """Plan a subset and hold out half as many samples; of few samples, a third."""
        n = self.dataset.n_samples
        size, third = min(self.size, n), n // 3
        plan = plan_subsets(n, size, seed=self.seed, holdout=HELD_OUT)
        return plan if plan.size == size else replace(plan, size=n - third, holdout=third)

    def _tell(self, table: list[dict[str, Any]], plan: SubsetPlan) -> None:
        for row in table:
            against = row["against"]
            gained = ""
            if against is not None:
                limits = f"standard error {row['standard_error']:.4f}, a sample counts for at most {_MOST_GAIN:g} nats"
                gained = f"; gain over {against} {row['gain']:+.4f} ({limits})"
            samples = f"{plan.holdout:,} held-out samples"
            self.note(f"{self.subject} {row['kind']}: NLPD {row['nlpd']:.4f} nats per sample on {samples}{gained}")


def held_out_function(
    kernel: Kernel, noise: FloatArray, rows: Rows, inputs: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return mean (m, p) and variance (m,) of the function at inputs (m, d), given samples' noise variances (n,).

    Raises `NumericalError` if Kbar is not positive definite.
    """
    matrix = np.asfortranarray(kernel.matrix(rows[0], rows[0]))
    np.einsum("ii->i", matrix)[:] += noise
    if not factor(matrix):
        raise NumericalError("the kernel matrix of the subset is not positive definite")
    cross = np.asfortranarray(kernel.matrix(rows[0], inputs))
    mean = cross.T @ solve_factored(matrix, np.asfortranarray(rows[1]))
    solve_half(matrix, cross)
    return mean, np.maximum(kernel.diagonal(inputs) - np.einsum("ij,ij->j", cross, cross), 0.0)


def normal_losses(errors: FloatArray, variance: FloatArray) -> FloatArray:
    """Return negative log densities (m,) of errors (m, p) under normals of variance (m,); mean over targets."""
    losses = 0.5 * (np.log(2.0 * math.pi * variance)[:, None] + errors**2 / variance[:, None])
    return np.asarray(losses.mean(axis=1))


def tune_noise(
    dataset: Dataset,
    start: Hyperparameters,
    kind: NoiseKind,
    *,
    choices: Choices,
    settings: SearchSettings,
    subset: int,
    note: Callable[[str], None] | None = None,
) -> Hyperparameters:
    """Fit a noise model that depends on the inputs, and the kernel with it.

    Raises `InputError`: a noise variance that is held fixed, known noise of the samples, or fewer than 20 of them for
    `auto`; `NumericalError`: a kernel matrix is not positive definite.

    Parameters
    ----------
    dataset : Dataset
        The training set.
    start : Hyperparameters
        The result of `tune_dataset`, with the same noise everywhere.
    kind : {"none", "linear", "gp", "auto"}
        log s2 is linear in the inputs or a Gaussian process; auto: held-out samples choose, "none" included.
    choices, settings
        Those of the search for `start`; bounds, fixed values and priors still apply.
    subset : int
        Samples of the subset; for `auto` half as many more are held out, of few samples a third of them.
    note : callable, optional
        Called with a line for each kind that is tried.

    Returns
    -------
    Hyperparameters
        With a noise model, or `start`; after `auto` with the comparison.
    """
    if kind == "none":
        return start
    settings = replace(settings, tolerance=max(settings.tolerance, 1e-3), restarts=1, max_evaluations=150)
    search = NoiseSearch("noise model", dataset, start, subset, settings.seed, note or (lambda line: None))
    fits = {
        name: partial(fit_noise, name, start, choices=choices, settings=settings)
        for name in (KINDS if kind == "auto" else (kind,))
    }
    with single_threaded_blas():
        return search.best_of("none", fits, _predicted_by_model) if kind == "auto" else search.fitted(fits[kind])


def _predicted_by_model(hyperparameters: Hyperparameters, rows: Rows, held_out: Rows) -> Prediction:
    new, truth = held_out
    noise = Noise(hyperparameters.noise_variance, law=hyperparameters.noise_model)
    mean, latent = held_out_function(hyperparameters.kernel, noise.at(rows[0]), rows, new)
    variance = latent + noise.at(new)
    return Prediction(normal_losses(truth - mean, variance), ScoreSums.of(truth, mean, variance))


MEAN_LOG_CHI_SQUARED, VARIANCE_LOG_CHI_SQUARED = -1.2703628454614782, math.pi**2 / 2.0
# Squares below this share of their mean are raised to it before the logarithm: a residual may be zero.
_LEAST_SHARE = 1e-8
# Samples for tuning the noise's kernel; its length scales are at least half a deviation of an input.
_KERNEL_SAMPLES, _GAMMA_BOUNDS = 1000, (1e-6, 2.0)
# Most points of a basis, and the share of the prior variance that it may leave at any sample.
_MOST_POINTS, _LEFT = 50, 0.01
# Prior deviations of weights: of a linear model per deviation of an input; those of a Gaussian process are normalised.
_LINEAR_DEVIATION, _GP_DEVIATION = 2.0, 1.0


@dataclass(frozen=True)
class NoiseFeatures:
    """Features of a subset's samples, and of any other input.

    Attributes
    ----------
    design : (n, q) float64
        log s2_i = b + design_i' w.
    deviation : float
        Deviation of the weights' normal prior around zero.
    kernel, points, lower
        k, the basis z (q, d), and L with L L' = k(z, z) of a Gaussian process; None if the inputs are the features.
    """

    design: FloatArray
    deviation: float
    kernel: Kernel | None = None
    points: FloatArray | None = None
    lower: FloatArray | None = None

    def coefficients(self, weights: FloatArray) -> FloatArray:
        """Return the coefficients of the inputs, or of k(x, z_j), for weights (q,) of the features: (q,)."""
        if self.lower is None:
            return weights
        return np.asarray(scipy.linalg.solve_triangular(self.lower, weights, lower=True, trans="T"))


def noise_features(kind: str, start: Hyperparameters, inputs: FloatArray, targets: FloatArray) -> NoiseFeatures:
    """Return features of `kind` for standardised inputs (n, d) and targets (n, p), from residuals of `start`.

    Raises `NumericalError` if the kernel matrix of `start` is not positive definite.
    """
    if kind == "linear":
        return NoiseFeatures(inputs, _LINEAR_DEVIATION)
    kernel = _kernel_of(log_noise(start, inputs, targets), inputs, targets.shape[1], start.seed or 0)
    design, pivots = pivoted_factor(kernel, inputs)
    return NoiseFeatures(design, _GP_DEVIATION, kernel, inputs[pivots], design[pivots])


def log_noise(start: Hyperparameters, inputs: FloatArray, targets: FloatArray) -> FloatArray:
    """Estimate the log variance of each residual given all other samples, (n,), mean over targets, without bias.

    e_i = alpha_i / (Kbar^-1)_ii (Rasmussen and Williams 2006, equation 5.12); `NumericalError` as `noise_features`.
    """
    matrix = np.asfortranarray(start.kernel.matrix(inputs, inputs))
    np.einsum("ii->i", matrix)[:] += start.noise_variance
    inverted = invert(matrix, np.asfortranarray(targets))
    if inverted is None:
        raise NumericalError(
            "the kernel matrix of a subset is not positive definite with the hyperparameters that were found, so that "
            "no noise model can be found from its residuals. Raise the lower bound of the noise variance"
        )
    squares = (inverted[0] / np.diagonal(matrix)[:, None]) ** 2
    least = np.maximum(_LEAST_SHARE * squares.mean(axis=0), np.finfo(np.float64).tiny)
    return np.asarray((np.log(np.maximum(squares, least)) - MEAN_LOG_CHI_SQUARED).mean(axis=1))


def _kernel_of(logs: FloatArray, inputs: FloatArray, n_targets: int, seed: int) -> Kernel:
    """Return the squared exponential, with amplitude and a length scale a feature, that fits `logs` (n,) best."""
    scale = max(float(logs.std()), 1e-3)
    found = tune(
        inputs,
        (logs - logs.mean()) / scale,
        subset=_KERNEL_SAMPLES,
        learn_variance=True,
        seed=seed,
        tolerance=1e-3,
        bounds={"gamma*": _GAMMA_BOUNDS},
        fixed={"noise_variance": VARIANCE_LOG_CHI_SQUARED / n_targets / scale**2},
    )
    values = [parameter.value for parameter in found.kernel.parameters()]
    position = found.kernel.amplitude_index
    assert position is not None
    values[position] *= scale**2
    return found.kernel.with_parameters(values)


def pivoted_factor(kernel: Kernel, inputs: FloatArray) -> tuple[FloatArray, list[int]]:
    """Return F (n, q) with F F' <= K and equality at the pivots, by greedy pivoted Cholesky, and the q pivots.

    It ends with 50 pivots, or when a hundredth of every prior variance is left.
    """
    left = kernel.diagonal(inputs).astype(np.float64)
    enough = _LEFT * float(left.max())
    columns: list[FloatArray] = []
    pivots: list[int] = []
    while len(pivots) < min(_MOST_POINTS, len(inputs)):
        pivot = int(np.argmax(left))
        if pivots and left[pivot] <= enough:
            break
        column = kernel.matrix(inputs, inputs[[pivot]])[:, 0]
        for before in columns:
            column = column - before * before[pivot]
        column = column / math.sqrt(left[pivot])
        column[pivots] = 0.0  # but for rounding
        columns.append(column)
        pivots.append(pivot)
        left = np.maximum(left - column**2, 0.0)
        left[pivots] = 0.0
    return np.column_stack(columns), pivots


_WEIGHT_BOUND = 20.0


def fit_noise(
    kind: str,
    start: Hyperparameters,
    inputs: FloatArray,
    targets: FloatArray,
    choices: Choices,
    settings: SearchSettings,
) -> Hyperparameters:
    """Fit a noise model of `kind`, and the kernel with it, from `start` on.

    Raises `NumericalError`: the kernel matrix is not positive definite at the start.

    Parameters
    ----------
    kind : {"linear", "gp"}
    start : Hyperparameters
        Tuned with the same noise everywhere.
    inputs, targets
        A subset, standardised: (n, d) and (n, p).
    choices, settings
        Those of the search for `start`; its kernel and start are ignored.

    Returns
    -------
    Hyperparameters
        With a noise model; `noise_variance` is its mean over the subset.
    """
    problem = SearchProblem.from_start(start, choices, settings)
    features = noise_features(kind, start, inputs, targets)
    q = features.design.shape[1]
    family = family_of(problem.kernel, inputs, problem.settings.learn_variance, problem.feature_names)
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
    of_likelihood = choices.objective == "likelihood"
    unmet = () if best.rested else (f"the search for a noise model of kind {kind} stopped before its tolerance",)
    return replace(
        start,
        kernel=problem.family.kernel(of_kernel),
        noise_variance=float(at_samples.mean()),
        noise_model=model,
        parameters=problem.parameters_from_start(without),
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
    """Return the space with q weights before the noise variance, each normal around zero."""
    k = len(space.names) - 1
    names = tuple(f"noise_weight.{index}" for index in range(q))

    moved = tuple((position + q * (position == k), prior) for position, prior in space.priors)
    # A logarithm that is normal around log 1 is the search's form of a normal weight.
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


NoiseLikelihood: TypeAlias = Literal["gaussian", "student-t", "auto"]
NOISE_LIKELIHOODS: tuple[NoiseLikelihood, ...] = get_args(NoiseLikelihood)

_START_DEGREES, _DEGREES = 4.0, (2.2, 200.0)
_TURNS, _TURN_TOLERANCE = 6, 0.02
_MOST_REWEIGHTED, WEIGHT_TOLERANCE = 40, 0.01


@dataclass(frozen=True)
class Weighed:
    """A subset's samples under their noise `least + beyond`, of a mode or a variational mean.

    Attributes
    ----------
    beyond
        Noise variances of the samples beyond the least one, (n,).
    errors, latent
        Residual of each sample given all others, and the variance of the function there, (n,).
    """

    beyond: FloatArray
    errors: FloatArray
    latent: FloatArray


def weigh(
    kernel_matrix: FloatArray, targets: FloatArray, likelihood: StudentT, beyond: FloatArray, *, sure: bool = False
) -> Weighed:
    """Reweigh samples until no weight changes by more than a hundredth, for targets (n,), from `beyond` (n,) on.

    `sure` ignores the function's variance, as training does: the result is the posterior's mode.

    Raises `NumericalError` if Kbar is not positive definite.
    """
    for _ in range(_MOST_REWEIGHTED):
        noise = likelihood.least + beyond
        matrix = np.array(kernel_matrix, order="F")
        np.einsum("ii->i", matrix)[:] += noise
        inverted = invert(matrix, np.asfortranarray(targets[:, None]))
        if inverted is None:
            raise NumericalError("the kernel matrix of the subset is not positive definite under the samples' noise")
        alpha, precision = inverted[0][:, 0], np.diagonal(matrix).copy()
        left, variance = noise * alpha, np.maximum(noise - noise**2 * precision, 0.0)
        found = likelihood.beyond_least(left**2 + (0.0 if sure else variance))
        change = float(np.max(np.abs(likelihood.weights(found) - likelihood.weights(beyond))))
        if change <= WEIGHT_TOLERANCE:
            break
        beyond = found
    return Weighed(noise - likelihood.least, alpha / precision, np.maximum(1.0 / precision - noise, 0.0))


def fit_student(
    start: Hyperparameters, inputs: FloatArray, targets: FloatArray, choices: Choices, settings: SearchSettings
) -> Hyperparameters:
    """Fit nu, s2 and the kernel from `start` on, on a standardised subset: (n, d) and (n, 1).

    Raises `NumericalError` if a kernel matrix is not positive definite.
    """
    y, value, tuned = targets[:, 0], math.nan, start
    likelihood = StudentT(_START_DEGREES, start.noise_variance / 2.0)
    beyond = np.full(len(y), likelihood.scale - likelihood.least)
    for _ in range(_TURNS):
        matrix = tuned.kernel.matrix(inputs, inputs)
        weighed = weigh(matrix, y, likelihood, beyond)
        found = _likeliest(likelihood, weighed)
        moved = abs(math.log(found.scale / likelihood.scale)) + abs(math.log(found.degrees / likelihood.degrees))
        likelihood, beyond = found, weigh(matrix, y, found, weighed.beyond).beyond
        tuned = replace(tuned, noise_variance=likelihood.scale)
        noise = Noise(1.0, relative=(likelihood.least + beyond) / likelihood.scale)
        tuned, value = _kernel_under((inputs, targets), noise, tuned, choices, settings)
        if moved < _TURN_TOLERANCE:
            break
    of_likelihood = choices.objective == "likelihood"
    *of_kernel, noise_parameter = tuned.parameters or ()
    return replace(
        tuned,
        parameters=(*of_kernel, replace(noise_parameter, value=likelihood.variance, fixed=False)),
        noise_variance=likelihood.variance,
        student_t=likelihood,
        log_prior=None,
        scores=None,
        log_marginal_likelihood=value if of_likelihood else None,
        leave_one_out_log_likelihood=None if of_likelihood else value,
    )


def _likeliest(likelihood: StudentT, weighed: Weighed) -> StudentT:
    """Return the distribution under which samples are likeliest, each given all others."""

    def at(parameters: FloatArray) -> StudentT:
        degrees = float(np.clip(2.0 + math.exp(float(parameters[0])), *_DEGREES))
        return StudentT(degrees, math.exp(float(np.clip(parameters[1], -30.0, 30.0))))

    first = np.array([math.log(likelihood.degrees - 2.0), math.log(likelihood.scale)])
    result = scipy.optimize.minimize(
        lambda parameters: -float(at(parameters).log_density(weighed.errors, weighed.latent).sum()),
        first,
        method="Nelder-Mead",
        options={"xatol": 1e-3, "fatol": 1e-3, "maxfev": 120},
    )
    return at(result.x)


def _kernel_under(
    samples: tuple[FloatArray, FloatArray],
    noise: Noise,
    start: Hyperparameters,
    choices: Choices,
    settings: SearchSettings,
) -> tuple[Hyperparameters, float]:
    """Return `start` with the best kernel under the samples' noise, at its fixed s2, and the objective's value."""
    (inputs, targets), problem = samples, SearchProblem.from_start(start, choices, settings)
    family = family_of(problem.kernel, inputs, problem.settings.learn_variance, problem.feature_names)
    held = problem.space.fixed.copy()
    held[-1] = math.log(start.noise_variance)
    space = replace(problem.space, fixed=held)
    objective = OBJECTIVES[choices.objective](family, targets, noise=noise)
    best = LikelihoodSearch(objective, space, settings).run(space.within(problem.first))
    if best is None:
        raise NumericalError("the kernel matrix of the subset is not positive definite under the samples' noise")
    kernel, parameters = problem.family.kernel(best.parameters[:-1]), problem.parameters_from_start(best.parameters)
    return replace(start, kernel=kernel, parameters=parameters), best.log_likelihood


def tune_likelihood(
    dataset: Dataset,
    start: Hyperparameters,
    likelihood: NoiseLikelihood,
    *,
    choices: Choices,
    settings: SearchSettings,
    subset: int,
    note: Callable[[str], None] | None = None,
) -> Hyperparameters:
    """Fit Student's t as the law of the noise, and the kernel with it.

    Raises `InputError`: several targets, known noise of the samples, a noise variance that is held fixed, or too few
    samples for `auto`; `NumericalError`: a kernel matrix is not positive definite.

    Parameters
    ----------
    dataset, start, choices, settings, subset, note
        As for `tune_noise`.
    likelihood : {"gaussian", "student-t", "auto"}
        auto: Student's t if held-out samples have a better density by more than twice the standard error.

    Returns
    -------
    Hyperparameters
        With `student_t`, or `start`; after `auto` with the comparison.
    """
    if likelihood == "gaussian":
        return start
    if dataset.n_targets != 1:
        raise InputError(
            f"the likelihood {likelihood} weighs samples by one target; there are {dataset.n_targets}. Train them one "
            "by one, or take the normal distribution"
        )
    settings = replace(settings, tolerance=max(settings.tolerance, 1e-3), restarts=1, max_evaluations=40)
    search = NoiseSearch("likelihood", dataset, start, subset, settings.seed, note or (lambda line: None))
    fit = partial(fit_student, start, choices=choices, settings=settings)
    with single_threaded_blas():
        if likelihood == "auto":
            return search.best_of("gaussian", {"student-t": fit}, _predicted_by_student)
        return search.fitted(fit)


def _predicted_by_student(hyperparameters: Hyperparameters, rows: Rows, held_out: Rows) -> Prediction:
    """Scores count coverage by a normal distribution of the same variance."""
    (inputs, targets), (new, truth) = rows, held_out
    kernel, likelihood = hyperparameters.kernel, hyperparameters.student_t
    noise = np.full(len(inputs), hyperparameters.noise_variance)
    if likelihood is not None:
        matrix = np.asfortranarray(kernel.matrix(inputs, inputs))
        even = np.full(len(inputs), likelihood.scale - likelihood.least)
        noise = likelihood.least + weigh(matrix, targets[:, 0], likelihood, even, sure=True).beyond
    mean, latent = held_out_function(kernel, noise, rows, new)
    variance = latent + hyperparameters.noise_variance
    losses = normal_losses(truth - mean, variance)
    if likelihood is not None:
        losses = -likelihood.log_density((truth - mean)[:, 0], latent)
    return Prediction(losses, ScoreSums.of(truth, mean, variance))
