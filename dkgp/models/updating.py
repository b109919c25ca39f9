"""New samples for a trained model: the solve goes on from where it was, with alpha = [alpha_old, 0].

The old samples' gradient stays as it was, and that of the new samples takes only their rows of K. The remaining
right-hand side is small, but it changes every old sample a little, so that the solve returns to the same columns of K
again and again. So columns are kept where they fit in memory, and each is evaluated once (kin40k, n = 10,000 and 100
more: 1.0 passes; the warm start alone took 7.7, a fresh fit 11.5).
"""

from __future__ import annotations

import numpy as np
import psutil
from numpy.typing import ArrayLike

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data import Dataset
from dkgp.errors import InputError
from dkgp.kernels import Kernel
from dkgp.models.context import RunContext
from dkgp.models.exact import TrainedModel, trained_model
from dkgp.models.noise import Noise
from dkgp.models.problem import Problem
from dkgp.models.trend import CENTRED, MeanKind
from dkgp.operators import BlockedKernelOperator, CachedColumnsOperator, KernelOperator
from dkgp.operators.base import FloatArray
from dkgp.operators.cached_columns import cached_columns_bytes
from dkgp.solvers import GreedyBlockCoordinateDescent, GreedySelection, Solver, StoppingRule, solve
from dkgp.solvers.block_descent.selection import matmat_in_parallel
from dkgp.solvers.driver import Watch
from dkgp.solvers.registry import needs_rounds

# Of the memory that is free.
COLUMNS_SHARE = 1 / 3
# Kept columns cost next to nothing, so that the search for the best one takes most of the time: with fewer candidates
# for each than the default's 60 there are more rounds, in half the time.
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
    mean: MeanKind = CENTRED,
    solver: Solver | None = None,
    stopping: StoppingRule | None = None,
    columns_bytes: int | None = None,
) -> TrainedModel:
    """Train on from a model of the first samples of a data set.

    Parameters
    ----------
    dataset : Dataset
        The samples of the model, under its standardisation, and after them the new ones.
    kernel, noise_variance, context, solver, stopping
        As for `dkgp.models.exact.train`; kernel and noise are the model's. Products are those of blocks.
    sample_noise : (n,) array_like, optional
        As for `train`: the known noise of all samples, those of the model first; zero stands for none.
    mean : {"centred", "constant", "linear"}
        The model's mean, whose coefficients are fitted again.
    initial : tuple of (n_old, p) float64
        The model's coefficients alpha, and Kbar alpha - y evaluated in float64; with a column for each of the mean's.
    columns_bytes : int, optional
        What kernel columns may take in this process; a third of the free memory by default. They are kept only where
        all of them fit, and for a solver that takes them one by one.

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
    """The gradient at [alpha_old, 0]: as it was for old samples, k(x, X_old) alpha_old - y for new ones."""
    old, n = len(alpha), operator.n
    new = operator.features(np.arange(old, n, dtype=np.intp), "double")
    product = np.zeros((n - old, alpha.shape[1]))
    for start in range(0, old, ROWS_AT_A_TIME):
        part = np.arange(start, min(start + ROWS_AT_A_TIME, old), dtype=np.intp)
        product += matmat_in_parallel(operator.double, new, operator.features(part, "double"), alpha[part])
    return np.concatenate([gradient, product - targets[old:]])
