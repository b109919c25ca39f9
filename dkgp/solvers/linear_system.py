"""Solve Kbar alpha = y by any method: what is refused, and what is taken by default."""

from __future__ import annotations

from collections.abc import Callable

from numpy.typing import ArrayLike

from dkgp.data.types import ProgressCallback
from dkgp.errors import InputError
from dkgp.operators.base import KernelOperator
from dkgp.solvers.base import Solver, as_columns
from dkgp.solvers.block_descent.gbcd import GreedyBlockCoordinateDescent
from dkgp.solvers.checkpointing import Checkpointing
from dkgp.solvers.driver import Solution, run
from dkgp.solvers.stopping import GradientInfNorm, Progress, StoppingRule

__all__ = ["solve"]


def solve(
    operator: KernelOperator,
    rhs: ArrayLike,
    *,
    solver: Solver | None = None,
    stopping: StoppingRule | None = None,
    initial: ArrayLike | None = None,
    initial_gradient: ArrayLike | None = None,
    callback: Callable[[Progress], None] | None = None,
    within: ProgressCallback | None = None,
    checkpointing: Checkpointing | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> Solution:
    """Solve Kbar alpha = y.

    Parameters
    ----------
    operator : KernelOperator
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
    callback : callable, optional
        Called with a `Progress` after every round.
    within : callable, optional
        Called with a `dkgp.data.Progress` in the course of what takes long within a round, such as a product.
    checkpointing : Checkpointing, optional
    interrupted : callable, optional
        Asked between rounds, and where the last one is saved also within one; when it answers true the state is saved
        and `InterruptedRunError` raised.

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
        `interrupted` answered true.
    """
    y = as_columns(rhs, operator.n, "the right-hand side")
    n, p = y.shape
    start = None if initial is None else as_columns(initial, n, "the warm start", p)
    if initial_gradient is not None and start is None:
        raise InputError("the gradient of a warm start was given, and no warm start; give both, or none")
    known = None if initial_gradient is None else as_columns(initial_gradient, n, "the warm start's gradient", p)
    chosen = (solver or GreedyBlockCoordinateDescent()).resolved(n, operator.kernel.n_features, p)
    solution, _ = run(
        operator,
        y,
        chosen,
        stopping or GradientInfNorm(),
        initial=start,
        initial_gradient=known,
        callback=callback,
        within=within,
        checkpointing=checkpointing,
        interrupted=interrupted,
    )
    return solution
