"""Solve Kbar alpha = y by any method, with defaults and checks of the arguments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.solvers.base import Solver, as_columns, nothing
from dkgp.solvers.block_descent.gbcd import GreedyBlockCoordinateDescent
from dkgp.solvers.driver import NOBODY, Watch
from dkgp.solvers.method_run import Solution, last_errors, run
from dkgp.solvers.stopping import GradientInfNorm, StoppingRule

# Larger noise is beyond float32, and its squares are beyond float64: a solve is with this one in its place.
LARGEST_NOISE = 1e37


def solve(
    operator: KernelOperator,
    rhs: ArrayLike,
    *,
    solver: Solver | None = None,
    stopping: StoppingRule | None = None,
    initial: ArrayLike | None = None,
    initial_gradient: ArrayLike | None = None,
    watch: Watch = NOBODY,
) -> Solution:
    """Solve Kbar alpha = y.

    Parameters
    ----------
    rhs : (n,) or (n, p) array_like
        y, standardised; several targets share kernel columns.
    solver : Solver, optional
        Greedy block coordinate descent by default.
    stopping : StoppingRule, optional
        max |g| <= 1e-4 by default, the paper's.
    initial : (n,) or (n, p) array_like, optional
        Warm start.
    initial_gradient : (n,) or (n, p) array_like, optional
        Kbar alpha - y of the warm start, every contribution evaluated in float64, where the caller knows it: the solve
        then starts without a pass over the kernel matrix.
    watch : Watch
        Callbacks, checkpoints and interruption; none by default.

    Returns
    -------
    Solution

    Raises
    ------
    InputError
        Shapes that do not fit, or values that are not finite.
    CheckpointError
        The checkpoint belongs to another run.
    InterruptedRunError
        `watch.interrupted` answered true.
    """
    y, share = as_columns(rhs, operator.n, "the right-hand side"), _noise_share(operator)
    n, p = y.shape
    start = None if initial is None else as_columns(initial, n, "the warm start", p)
    if initial_gradient is not None and start is None:
        raise InputError("the gradient of a warm start was given, and no warm start; give both, or none")
    gradient = None if initial_gradient is None else as_columns(initial_gradient, n, "the warm start's gradient", p)
    resolved = (solver or GreedyBlockCoordinateDescent()).resolved(n, operator.kernel.n_features, p)
    solution, _ = run(
        operator if share is None else operator.with_noise(np.minimum(operator.noise, LARGEST_NOISE)),
        y,
        resolved,
        stopping or GradientInfNorm(),
        initial=start if start is None or share is None else start / share,
        initial_gradient=gradient,
        watch=watch,
    )
    if share is None:
        return solution
    # Of a sample with noise s2_i only s2_i alpha_i = y_i - f(x_i) counts: K alpha_i is below any rounding either way.
    alpha = solution.alpha * share
    with single_threaded_blas():
        gradient = operator.matmat(alpha) - y
    return replace(solution, alpha=alpha, gradient=gradient, stepped=nothing(), product_errors=last_errors(operator))


def _noise_share(operator: KernelOperator) -> FloatArray | None:
    """Share of each sample's noise that is solved with, (n, 1); None where all of it is."""
    noise = np.broadcast_to(operator.noise, (operator.n,))[:, None]
    return None if noise.max(initial=0.0) <= LARGEST_NOISE else np.minimum(LARGEST_NOISE / noise, 1.0)
