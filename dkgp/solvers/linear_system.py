"""Solve Kbar alpha = y by any method: what is refused, and what is taken by default."""

from __future__ import annotations

from numpy.typing import ArrayLike

from dkgp.errors import InputError
from dkgp.operators.base import KernelOperator
from dkgp.solvers.base import Solver, as_columns
from dkgp.solvers.block_descent.gbcd import GreedyBlockCoordinateDescent
from dkgp.solvers.driver import Solution, run
from dkgp.solvers.stopping import GradientInfNorm, StoppingRule
from dkgp.solvers.watch import NOBODY, Watch


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
    y = as_columns(rhs, operator.n, "the right-hand side")
    n, p = y.shape
    start = None if initial is None else as_columns(initial, n, "the warm start", p)
    if initial_gradient is not None and start is None:
        raise InputError("the gradient of a warm start was given, and no warm start; give both, or none")
    gradient = None if initial_gradient is None else as_columns(initial_gradient, n, "the warm start's gradient", p)
    resolved = (solver or GreedyBlockCoordinateDescent()).resolved(n, operator.kernel.n_features, p)
    solution, _ = run(
        operator,
        y,
        resolved,
        stopping or GradientInfNorm(),
        initial=start,
        initial_gradient=gradient,
        watch=watch,
    )
    return solution
