"""The exact Gaussian process: train by solving Kbar alpha = y, save, and update with new samples.

Under Student's t the solve is repeated until the samples' weights converge. All samples have the noise s2 in the first
turn. The residual of the targets, r = N alpha - g of a solution alpha with the gradient g under the noise N, determines
each sample's noise of the next turn (`StudentT`). The next turn starts from this turn's solution. The result is the
mode of the function's posterior under Student's t, to within a hundredth in every weight; each turn raises its density.
The certificate is that of the last turn's equations, with their weights.

An update starts from alpha = [alpha_old, 0]. The gradient of the old samples does not change, and that of the new
samples needs only their rows of K. The remaining right-hand side is small, but it changes every old sample a little, so
the solve needs the same columns of K repeatedly. Columns are therefore kept if they fit in memory, and each is
evaluated once (kin40k, n = 10,000 and 100 more: 1.0 passes; the warm start alone took 7.7, a fresh fit 11.5).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psutil
from numpy.typing import ArrayLike, NDArray

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.codec import to_json
from dkgp.data import Dataset, ModelRecord
from dkgp.data.stores.models.regression import exact_model
from dkgp.errors import InputError, InterruptedRunError
from dkgp.kernels import Kernel, check_positive_definite, has_user_function
from dkgp.models.certificate import Certificate
from dkgp.models.context import RunContext
from dkgp.models.mean_option import MeanValue
from dkgp.models.noise import Noise, NoiseModel, StudentT
from dkgp.models.problem import Problem
from dkgp.models.rounding import assumptions
from dkgp.models.trend import CENTRED, Drift, Trend, fit_trend
from dkgp.operators import BlockedKernelOperator, CachedColumnsOperator, KernelOperator
from dkgp.operators.base import FloatArray
from dkgp.operators.cached_columns import cached_columns_bytes
from dkgp.operators.product_error import EVERY_ENTRY, ProductError
from dkgp.solvers import (
    GradientInfNorm,
    GreedyBlockCoordinateDescent,
    GreedySelection,
    Solution,
    Solver,
    StoppingRule,
    solve,
)
from dkgp.solvers.block_descent.selection import matmat_in_parallel
from dkgp.solvers.driver import Iteration, Loop, Watch, interrupted
from dkgp.solvers.registry import needs_rounds
from dkgp.solvers.stopping import StopReason


@dataclass(frozen=True)
class TrainedModel:
    """A fitted exact GP.

    Attributes
    ----------
    kernel, noise_variance
        Kernel and s2 for standardised inputs and targets; s2 includes white noise of the kernel.
    sample_noise : (n,) float64, optional
        Known noise variances v_i of the samples, on the scale of the standardised targets: s2_i = s2 + v_i. None if all
        samples have s2.
    noise_model : NoiseModel, optional
        The model behind the known noise: s2 is its least variance, and it gives the noise of new observations.
    trend : Trend, optional
        Coefficients of the mean: the solution then has q more columns, after the columns of the p targets.
    solution : Solution
        alpha, its float64 gradient, the history, and the reason why the solve stopped.
    certificate : Certificate
        Proven bounds on the solution's error.
    summary : dict
        n, d, p, solver, converged, iterations, column_passes, kernel_evaluations, kept_share, refreshes, seconds,
        seconds_by_part, gradient_inf_norm, relative_residual, duality_gap, objective, reason, settings; product_error
        where one was asked for, assumes where a proof does, mean where it has coefficients, given_mean where it is
        known.
    mean : Drift
        The mean of the function.
    """

    kernel: Kernel
    noise_variance: float
    solution: Solution
    certificate: Certificate
    summary: dict[str, Any]
    sample_noise: FloatArray | None = None
    noise_model: NoiseModel | None = None
    trend: Trend | None = None
    mean: Drift = CENTRED

    def model(self, dataset: Dataset) -> ModelRecord:
        """Return the model of the training set, as a store holds it."""
        return exact_model(
            self.mean.about(dataset),
            kernel=self.kernel.to_json(),
            noise_variance=self.noise_variance,
            alpha=self.solution.alpha,
            gradient=self.solution.gradient,
            history=[progress.to_json() for progress in self.solution.history],
            certificate=self.certificate.to_json(),
            summary=self.summary,
            sample_noise=self.sample_noise,
            noise_model=to_json(self.noise_model),
            trend=to_json(self.trend),
        )


def train(
    dataset: Dataset,
    kernel: Kernel,
    noise_variance: float | Noise,
    context: RunContext | BlockExecutor,
    *,
    sample_noise: ArrayLike | None = None,
    mean: Drift | MeanValue = CENTRED,
    solver: Solver | None = None,
    stopping: StoppingRule | None = None,
    initial: ArrayLike | None = None,
    initial_gradient: ArrayLike | None = None,
) -> TrainedModel:
    """Fit an exact GP to a dataset.

    Parameters
    ----------
    dataset : Dataset
        Workers read standardised inputs and targets from it.
    kernel : Kernel
        White noise in it is folded into the noise variance.
    noise_variance : float or Noise
        s2, on the standardised scale; or the noise of all samples as one value, `sample_noise` included. With Student's
        t as its law the samples are weighted in turns, and a checkpoint holds the state between two turns.
    sample_noise : (n,) or (n, 1) array_like, optional
        Known noise variances v_i of the samples, on the same scale (a variance in the target's units over the square
        of its standard deviation): sample i has the noise s2 + v_i, which has to be positive. By default those that the
        data set has.
    mean : {"centred", "constant", "linear", "quadratic"}, float or Drift
        The mean of the function: the targets' average; or a polynomial of the inputs of degree 0, 1 or 2, whose
        coefficients are fitted by generalised least squares, as further right-hand sides of the same solve. Their
        uncertainty is part of the variances, and the certificate allows for them. Or a known mean, in the targets'
        units: nothing is fitted, and the variances do not grow.
    context : RunContext or BlockExecutor
        Who computes, and who watches; see `dkgp.cluster.open_executor`.
    solver, stopping, initial, initial_gradient
        See `dkgp.solvers.solve`; the start has a column for each right-hand side.

    Returns
    -------
    TrainedModel
        Under Student's t with the samples' noise of the last turn. Its `summary` has `student_t` and `weights`: the
        number of turns, the change of a weight that the last one would make, the least weight, and how many samples
        weigh less than a half. It has not converged if weights still change after 60 turns.

    Raises
    ------
    InputError
        No targets, a kernel for another number of features, one whose white noise cannot be told from the rest, or a
        user's function that is not positive definite on some of the samples; known noise that is not finite, not of
        the samples, or leaves one without any; columns of the mean that are sums of each other; Student's t for
        several targets, or beside known noise of the data set.
    NumericalError
        A solve that ended before the mean's coefficients have a bound.
    InterruptedRunError
        The run was interrupted; the last checkpoint, or the turns of Student's t before, are stored.
    """
    noise, context = Noise.of(noise_variance, sample_noise), RunContext.of(context)
    how = _Solve(solver, stopping or GradientInfNorm(), initial, initial_gradient)
    if isinstance(noise.law, StudentT):
        if Drift.parse(mean) != CENTRED:
            raise InputError(
                f"Student's t is of a centred mean; got `mean` {Drift.parse(mean).word}. Leave one of them out"
            )
        return _train_in_turns(dataset, kernel, noise.law, context, how)
    problem = Problem.of(dataset, kernel, noise, mean)
    if has_user_function(problem.kernel):
        check_positive_definite(problem.kernel, _some_rows(dataset))
    return _solved(problem, context, how)


@dataclass(frozen=True)
class _Solve:
    """Solver, stopping rule and start of a system; see `dkgp.solvers.solve`."""

    solver: Solver | None
    stopping: StoppingRule
    initial: ArrayLike | None
    initial_gradient: ArrayLike | None = None


def _solved(problem: Problem, context: RunContext, how: _Solve) -> TrainedModel:
    right, limit = problem.right_hand_sides, how.stopping.gradient_limit
    if limit is not None and (conflict := context.product_error.conflict(limit)) is not None:
        raise InputError(conflict)
    context.require_products(how.solver)
    with problem.operator(context, tolerance=limit, by_length=True) as operator:
        solution = solve(
            operator,
            right,
            solver=how.solver,
            stopping=how.stopping,
            initial=how.initial,
            initial_gradient=how.initial_gradient,
            watch=context,
        )
        return trained_model(problem, operator, solution, context.product_error)


def trained_model(
    problem: Problem, operator: KernelOperator, solution: Solution, product_error: ProductError = EVERY_ENTRY
) -> TrainedModel:
    """Certify a solution of the problem's right-hand sides, and summarise the solve."""
    dataset, kernel, right = problem.dataset, operator.kernel, problem.right_hand_sides
    # The diagonal of Kbar is not used, since it is rounded at the size of the noise, and k(x, x) may be far smaller.
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
    if problem.mean.is_fitted:
        p, solved = dataset.n_targets, (solution.alpha, solution.gradient, right)
        trend, certificate = fit_trend(problem.mean, *solved, p, operator.noise, certificate)
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
        **({} if problem.mean.value is None else {"given_mean": problem.mean.value}),
    }
    noise = problem.noise
    return TrainedModel(
        kernel,
        float(noise.common),
        solution,
        certificate,
        summary,
        sample_noise=noise.by_sample,
        noise_model=noise.of_observations,
        trend=trend,
        mean=problem.mean,
    )


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


# ----------------------------------------------------------------------------------------------------- Student's t

WEIGHT_TOLERANCE, MOST_TURNS = 0.01, 60
# Summary entries that are summed over all turns.
_SUMS = ("column_passes", "kernel_evaluations", "seconds")


class _Turns(Iteration):
    """Turns of solves with Student's t; an interrupted turn starts again and gives the same bits.

    A checkpoint holds the start of a turn:

    - `number`: of the turn, from 0; `iteration`: rounds of the turns before it.
    - `beyond` (n,): noise variances of the samples beyond the least one.
    - `alpha` (n, 1): coefficients that the solve starts from.
    - `sums`: passes, entries and seconds of the turns before it.
    """

    saved = ("beyond", "alpha")
    counted = ("iteration", "number", "sums")
    keeps_last = False

    def __init__(
        self, dataset: Dataset, kernel: Kernel, likelihood: StudentT, context: RunContext, how: _Solve
    ) -> None:
        self._dataset, self._kernel, self._likelihood = dataset, kernel, likelihood
        self._context, self._how = context, how
        n = dataset.n_samples
        self.loop = Loop(context, {} if how.solver is None else how.solver.settings())
        self.history, self.number = [], 0
        self.beyond = np.full(n, likelihood.scale - likelihood.least)
        self.alpha = np.zeros((n, 1)) if how.initial is None else np.array(how.initial, dtype=np.float64).reshape(n, 1)
        self.sums: dict[str, float] = dict.fromkeys(_SUMS, 0.0)
        self.save_now = True
        self._ended: StopReason | None = None

    def start(self) -> None:
        """Save the first turn, whose samples all have the noise s2."""
        self.loop.save(self)

    def stop(self) -> StopReason | None:
        """Return the reason to stop, once the weights have settled or the turns are used up."""
        return self._ended

    def advance(self) -> None:
        """Solve with the weights of this turn, and compute the weights of the next turn."""
        likelihood, beyond = self._likelihood, self.beyond
        try:
            trained = train(
                self._dataset,
                self._kernel,
                Noise(likelihood.least, beyond),
                _within(self._context, self.iteration),
                solver=self._how.solver,
                stopping=self._how.stopping,
                initial=self.alpha,
            )
        except InterruptedRunError:
            url = None if self.loop.saved_iteration is None else self.loop.url
            raise interrupted(f"in turn {self.number + 1} of weights", url) from None
        alpha, gradient = trained.solution.alpha[:, 0], trained.solution.gradient[:, 0]
        after = likelihood.beyond_least(((likelihood.least + beyond) * alpha - gradient) ** 2)
        change = float(np.max(np.abs(likelihood.weights(after) - likelihood.weights(beyond))))
        iterations = int(trained.summary["iterations"])
        sums = {name: self.sums[name] + trained.summary[name] for name in _SUMS}
        if change <= WEIGHT_TOLERANCE or self.number + 1 == MOST_TURNS or not trained.summary["converged"]:
            self._conclude(trained, sums, change)
            return
        self.number, self.iteration = self.number + 1, self.iteration + max(1, iterations)
        self.beyond, self.alpha, self.sums = after, trained.solution.alpha, sums

    def _conclude(self, trained: TrainedModel, sums: dict[str, float], change: float) -> None:
        """Keep the last turn's model, with a summary of all turns."""
        likelihood = self._likelihood
        weights = likelihood.weights(self.beyond)
        summary = {
            **trained.summary,
            **sums,
            "iterations": self.iteration + trained.summary["iterations"],
            "student_t": to_json(likelihood),
            "weights": {
                "turns": self.number + 1,
                "change": change,
                "least": float(weights.min()),
                "below_half": int(np.sum(weights < 0.5)),
            },
        }
        if trained.summary["converged"] and change > WEIGHT_TOLERANCE:
            summary |= {
                "converged": False,
                "reason": f"weights still changed by {change:.2g} after {MOST_TURNS} turns",
                "advice": "the model holds for the weights that it has; tune again, with a larger `subset`",
            }
        noise_model = likelihood.of_observations(self._dataset.n_features)
        self.trained = replace(trained, summary=summary, noise_model=noise_model)
        # The checkpoint holds the start of this turn already.
        self.save_now = False
        self._ended = StopReason("weights", True, summary["reason"])


def _train_in_turns(
    dataset: Dataset, kernel: Kernel, likelihood: StudentT, context: RunContext, how: _Solve
) -> TrainedModel:
    """Fit an exact GP whose noise has Student's t."""
    require_one_target(dataset)
    turns = _Turns(dataset, kernel, likelihood, context, how)
    turns.loop.run(turns)
    return turns.trained


def require_one_target(dataset: Dataset) -> None:
    """Raise `InputError` for data whose samples Student's t cannot weigh."""
    if dataset.n_targets > 1:
        raise InputError(
            f"Student's t weighs samples by one target; '{dataset.url}' has {dataset.n_targets}. Train them one by "
            "one, or tune with the normal distribution"
        )
    if dataset.all_sample_noise() is not None:
        raise InputError(
            f"the noise of the samples of '{dataset.url}' is known, and Student's t finds it; ingest without that "
            "column, or tune with the normal distribution"
        )


def _within(context: RunContext, before: int) -> RunContext:
    """Return the context of a turn's solve: it counts rounds from `before` on, and saves no checkpoints."""
    callback = context.callback

    def counted(progress: Any) -> None:
        assert callback is not None
        callback(replace(progress, iteration=before + progress.iteration))

    count: Callable[[Any], None] | None = None if callback is None else counted
    return replace(context, checkpointing=None, callback=count)


def save(
    trained: TrainedModel, url: str, dataset: Dataset, *, by_reference: bool = False, overwrite: bool = False
) -> None:
    """Write a trained model to a store; with its support inputs unless `by_reference`."""
    model = trained.model(dataset)
    if trained.solution.product_errors.size:
        # After approximate products the gradient is not exact, so no later run may start from it.
        model = replace(model, _gradient=None)
    model.save(url, by_reference=by_reference, overwrite=overwrite)


# Share of the free memory.
COLUMNS_SHARE = 1 / 3
# Kept columns cost almost nothing, so the search for the best column takes most of the time. With fewer candidates than
# the default of 60 there are more rounds, in half the time.
CANDIDATES_OF_KEPT_COLUMNS = 20
ROWS_AT_A_TIME = 8192


def update(
    dataset: Dataset,
    kernel: Kernel,
    noise_variance: float | Noise,
    context: RunContext | BlockExecutor,
    initial: tuple[FloatArray, FloatArray],
    *,
    sample_noise: ArrayLike | None = None,
    mean: Drift | MeanValue = CENTRED,
    solver: Solver | None = None,
    stopping: StoppingRule | None = None,
    columns_bytes: int | None = None,
) -> TrainedModel:
    """Continue training from a model of the first samples of a data set.

    Parameters
    ----------
    dataset : Dataset
        The samples of the model, under its standardisation, followed by the new samples.
    kernel, noise_variance, context, solver, stopping
        As for `dkgp.models.exact.train`; kernel and noise are the model's. Products are those of blocks.
    sample_noise : (n,) array_like, optional
        As for `train`: the known noise of all samples, those of the model first; zero stands for none.
    mean : {"centred", "constant", "linear", "quadratic"}, float or Drift
        The model's mean, whose coefficients are fitted again; `Drift.from_model` reads it.
    initial : tuple of (n_old, p) float64
        The model's coefficients alpha, and Kbar alpha - y evaluated in float64; with a column for each of the mean's.
    columns_bytes : int, optional
        Memory limit of kernel columns in this process; a third of the free memory by default. Columns are kept only if
        all of them fit, and only for a solver that uses them one by one.

    Returns
    -------
    TrainedModel
        `summary` counts the update alone, without the cost of the old samples.

    Raises
    ------
    InputError
        As many coefficients as there are samples, or more: nothing is new.
    """
    context, (alpha, gradient) = RunContext.of(context), initial
    old, n = len(alpha), dataset.n_samples
    if alpha.shape != gradient.shape or not 0 < old < n:
        raise InputError(
            f"an update needs the first samples' coefficients and gradient, and samples after them; got coefficients "
            f"{alpha.shape}, gradient {gradient.shape} and {n} samples"
        )
    budget = int(psutil.virtual_memory().available * COLUMNS_SHARE) if columns_bytes is None else columns_bytes

    problem = Problem.of(dataset, kernel, Noise.of(noise_variance, sample_noise), mean)
    right = problem.right_hand_sides
    with BlockedKernelOperator(
        problem.kernel,
        problem.noise.diagonal,
        dataset,
        context.executor,
        coordinator_input_bytes=context.coordinator_input_bytes,
    ) as blocked:
        operator: KernelOperator = blocked
        by_blocks = solver is not None and needs_rounds(solver)
        if not by_blocks and cached_columns_bytes(n) <= budget and blocked.holds_inputs:
            operator = CachedColumnsOperator(blocked)
            if solver is None:
                solver = GreedyBlockCoordinateDescent(selection=GreedySelection(CANDIDATES_OF_KEPT_COLUMNS))
        solution = solve(
            operator,
            right,
            solver=solver,
            stopping=stopping,
            initial=np.concatenate([alpha, np.zeros((n - old, alpha.shape[1]))]),
            initial_gradient=_extended(gradient, operator, alpha, right),
            watch=Watch(callback=context.callback),
        )
        return trained_model(problem, operator, solution)


def _extended(gradient: FloatArray, operator: KernelOperator, alpha: FloatArray, targets: FloatArray) -> FloatArray:
    """Return the gradient at [alpha_old, 0]: unchanged for old samples, k(x, X_old) alpha_old - y for new samples."""
    old, n = len(alpha), operator.n
    new = operator.features(np.arange(old, n, dtype=np.intp), "double")
    product = np.zeros((n - old, alpha.shape[1]))
    for start in range(0, old, ROWS_AT_A_TIME):
        part = np.arange(start, min(start + ROWS_AT_A_TIME, old), dtype=np.intp)
        product += matmat_in_parallel(operator.double, new, operator.features(part, "double"), alpha[part])
    return np.concatenate([gradient, product - targets[old:]])
