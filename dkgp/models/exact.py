"""The exact Gaussian process: train by solving Kbar alpha = y, and save."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data import Dataset, ModelRecord
from dkgp.data.stores.models.regression import exact_model
from dkgp.errors import InputError
from dkgp.kernels import Kernel, check_positive_definite, fold_white, has_user_function
from dkgp.models.certificate import Certificate
from dkgp.models.context import RunContext
from dkgp.models.noise import NoiseModel
from dkgp.models.rounding import assumptions
from dkgp.models.trend.columns import CENTRED, MeanKind, right_sides
from dkgp.models.trend.trend import Trend, found_trend
from dkgp.operators import KernelOperator
from dkgp.operators.base import FloatArray, total_noise
from dkgp.operators.product_error import EVERY_ENTRY, ProductError
from dkgp.solvers import GradientInfNorm, Solution, Solver, StoppingRule, solve
from dkgp.solvers.cholesky.factor_tasks import digest


@dataclass(frozen=True)
class TrainedModel:
    """A fitted exact GP.

    Attributes
    ----------
    kernel, noise_variance
        Of the standardised inputs and targets; white noise that was part of the kernel is part of s2.
    sample_noise : (n,) float64, optional
        Known noise variances v_i of the samples, on the scale of the standardised targets: s2_i = s2 + v_i. None where
        s2 is all there is.
    noise_model : NoiseModel, optional
        By which the known noise was reckoned: s2 is its least, and a new observation at x has what it says there.
    trend : Trend, optional
        The mean's coefficients, where it has some: the solution then has its q columns after those of the p targets.
    solution : Solution
        alpha, its float64 gradient, history, why the solve stopped.
    certificate : Certificate
        What is proven about it.
    summary : dict
        n, d, p, solver, converged, iterations, column_passes, kernel_evaluations, kept_share, refreshes, seconds,
        seconds_by_part, gradient_inf_norm, relative_residual, duality_gap, objective, reason, settings; product_error
        where one was asked for, assumes where a proof does, mean where it has coefficients.
    """

    kernel: Kernel
    noise_variance: float
    solution: Solution
    certificate: Certificate
    summary: dict[str, Any]
    sample_noise: FloatArray | None = None
    noise_model: NoiseModel | None = None
    trend: Trend | None = None

    def model(self, dataset: Dataset) -> ModelRecord:
        """Return the model of the training set, as a store holds it."""
        return exact_model(
            dataset,
            kernel=self.kernel.to_json(),
            noise_variance=self.noise_variance,
            alpha=self.solution.alpha,
            gradient=self.solution.gradient,
            history=[progress.to_json() for progress in self.solution.history],
            certificate=self.certificate.to_json(),
            summary=self.summary,
            sample_noise=self.sample_noise,
            noise_model=None if self.noise_model is None else self.noise_model.to_json(),
            trend=None if self.trend is None else self.trend.to_json(),
        )

    def beside(self, noise_variance: float, sample_noise: ArrayLike | None) -> TrainedModel:
        """The model with its noise told apart: s2, which new observations have too, and what is known of the samples.

        A model without known noise as it is.
        """
        if sample_noise is None:
            return self
        known = np.array(sample_noise, dtype=np.float64).reshape(-1)
        return replace(self, noise_variance=float(noise_variance), sample_noise=known)


def run_identity(
    dataset: Dataset,
    kernel: Kernel,
    noise_variance: float,
    product_error: ProductError = EVERY_ENTRY,
    *,
    sample_noise: FloatArray | None = None,
    mean: MeanKind = CENTRED,
) -> dict[str, Any]:
    """The identity of a training run: a checkpoint is resumed only by a run of the same one.

    Known noise that is no part of the data set is told by the SHA-256 of its variances (n,).
    """
    kernel, noise_variance = fold_white(kernel, noise_variance)
    exact = {"fingerprint": dataset.fingerprint, "kernel": kernel.to_json(), "noise_variance": float(noise_variance)}
    exact |= {} if mean == CENTRED else {"mean": mean}
    return {**exact, **known_noise(sample_noise), **product_error.record(kernel, dataset.n_samples)}


def known_noise(sample_noise: FloatArray | None) -> dict[str, str]:
    """The part of a run's identity that known noise (n,) is; nothing where there is none."""
    return {} if sample_noise is None else {"sample_noise": digest(np.ravel(sample_noise))}


def train(
    dataset: Dataset,
    kernel: Kernel,
    noise_variance: float,
    context: RunContext | BlockExecutor,
    *,
    sample_noise: ArrayLike | None = None,
    mean: MeanKind = CENTRED,
    solver: Solver | None = None,
    stopping: StoppingRule | None = None,
    initial: ArrayLike | None = None,
    initial_gradient: ArrayLike | None = None,
) -> TrainedModel:
    """Fit an exact GP to a dataset.

    Parameters
    ----------
    dataset : Dataset
        Standardised inputs and targets are read from it by whoever needs them.
    kernel : Kernel
        White noise in it is folded into the noise variance.
    noise_variance : float
        s2, on the standardised scale.
    sample_noise : (n,) or (n, 1) array_like, optional
        Known noise variances v_i of the samples, on the same scale (a variance in the target's units over the square
        of its standard deviation): sample i has the noise s2 + v_i, which has to be positive. By default those that the
        data set has.
    mean : {"centred", "constant", "linear"}
        What the function varies about: the targets' average; or a constant, or a linear function of the inputs, whose
        coefficients are found by generalised least squares, as further right-hand sides of the same solve. Their
        uncertainty is part of the variances, and the certificate allows for them.
    context : RunContext or BlockExecutor
        Who computes, and who watches; see `dkgp.cluster.open_executor`.
    solver, stopping, initial, initial_gradient
        See `dkgp.solvers.solve`; the start has a column for each right-hand side.

    Returns
    -------
    TrainedModel

    Raises
    ------
    InputError
        No targets, a kernel for another number of features, one whose white noise cannot be told from the rest, or a
        user's function that is not positive definite on some of the samples; known noise that is not finite, not of
        the samples, or leaves one without any; a linear mean of features that are sums of each other.
    NumericalError
        A solve that ended before anything is known of the mean's coefficients.
    """
    if dataset.n_targets == 0:
        raise InputError(
            f"'{dataset.url}' has no targets; training needs at least one. Ingest the data again and name it"
        )
    kernel, noise_variance = fold_white(kernel, noise_variance)
    if sample_noise is None:
        sample_noise = dataset.all_sample_noise()
    noise = total_noise(noise_variance, sample_noise, dataset.n_samples)
    if has_user_function(kernel):
        check_positive_definite(kernel, _some_rows(dataset))
    right = right_sides(mean, dataset)
    context = RunContext.of(context)
    stopping = stopping or GradientInfNorm()
    limit = stopping.gradient_limit
    if limit is not None and (conflict := context.product_error.conflict(limit)) is not None:
        raise InputError(conflict)
    context.require_products(solver)
    with context.operator(kernel, noise, dataset, tolerance=limit, by_length=True) as operator:
        solution = solve(
            operator,
            right,
            solver=solver,
            stopping=stopping,
            initial=initial,
            initial_gradient=initial_gradient,
            watch=context,
        )
        trained = trained_model(dataset, operator, solution, right, context.product_error, mean)
        return trained.beside(noise_variance, sample_noise)


def trained_model(
    dataset: Dataset,
    operator: KernelOperator,
    solution: Solution,
    right: FloatArray,
    product_error: ProductError = EVERY_ENTRY,
    mean: MeanKind = CENTRED,
) -> TrainedModel:
    """Certify and sum up what was solved for `right` (n, p + q), standardised targets and the columns of the mean."""
    kernel = operator.kernel
    # Not from the diagonal of Kbar, which is rounded to the size of the noise: k(x, x) may be far smaller.
    diagonal = (
        kernel.diagonal(np.zeros((1, kernel.n_features)))[0]
        if kernel.stationary
        else np.concatenate([kernel.diagonal(dataset.inputs(*rows)) for rows in dataset.row_chunks()])
    )
    certificate = Certificate.of(
        solution.alpha,
        solution.gradient,
        right,
        operator.noise,
        diagonal,
        operator.row_errors(),
        stepped=solution.stepped,
        product_errors=solution.product_errors,
    )
    certificate = replace(certificate, assumes=assumptions(operator.kernel))
    trend: Trend | None = None
    if mean != CENTRED:
        p, solved = dataset.n_targets, (solution.alpha, solution.gradient, right)
        trend, certificate = found_trend(mean, *solved, p, operator.noise, certificate)
    progress = solution.progress
    products = {**operator.products, **_proven_errors(certificate)}
    summary = {
        "n": dataset.n_samples,
        "d": dataset.n_features,
        "p": dataset.n_targets,
        "solver": solution.solver["solver"],
        **solution.summary(),
        "kept_share": operator.kept_share,
        "kept_tiles": operator.kept,
        "duality_gap": progress.to_json()["duality_gap"],
        "objective": progress.objective,
        "settings": solution.solver,
        **product_error.record(operator.kernel, dataset.n_samples, products),
        **({} if certificate.assumes is None else {"assumes": certificate.assumes}),
        **({} if trend is None else {"mean": trend.described(dataset)}),
    }
    return TrainedModel(operator.kernel, operator.noise_variance, solution, certificate, summary, trend=trend)


def _proven_errors(certificate: Certificate) -> dict[str, Any]:
    """Return proven errors of a gradient by products that do not evaluate every entry, for the record."""
    if not certificate.product_error:
        return {}
    mean = float(certificate.product_lengths.max()) / np.sqrt(certificate.n)
    return {"proven": {"largest": certificate.product_error, "root_mean_square": float(mean)}}


def _some_rows(dataset: Dataset, count: int = 256) -> NDArray[np.float64]:
    """Return standardised inputs of a random subset: (count, d)."""
    rows = np.random.default_rng(0).choice(dataset.n_samples, size=min(count, dataset.n_samples), replace=False)
    return dataset.input_rows(np.sort(rows))


def save(
    trained: TrainedModel, url: str, dataset: Dataset, *, by_reference: bool = False, overwrite: bool = False
) -> None:
    """Write a trained model to a store; with its support inputs unless `by_reference`."""
    model = trained.model(dataset)
    if trained.solution.product_errors.size:
        # After approximate products the gradient is not the true one, so that no later run may start from it.
        model = replace(model, _gradient=None)
    model.save(url, by_reference=by_reference, overwrite=overwrite)
