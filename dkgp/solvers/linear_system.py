"""Solve Kbar alpha = y by any method: what is refused, what is taken by default, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from dkgp.errors import InputError
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.solvers.base import Solver, as_columns
from dkgp.solvers.block_descent.gbcd import GreedyBlockCoordinateDescent
from dkgp.solvers.checkpointing import Checkpointing
from dkgp.solvers.driver import run
from dkgp.solvers.stopping import GradientInfNorm, Progress, StoppingRule, StopReason

__all__ = ["Solution", "solve"]


@dataclass(frozen=True)
class Solution:
    """What a solve returns.

    Attributes
    ----------
    alpha : (n, p) float64
    gradient : (n, p) float64
        Kbar alpha - y, evaluated anew in float64 after the last step.
    reason : StopReason
        Why it stopped; `reason.converged` says whether the tolerance was met by the float64 gradient.
    progress : Progress
        The last record, from the float64 gradient.
    history : list of Progress
    solver : dict
        Settings, automatic choices made.
    refreshes : int
        Full float64 passes that were needed.
    product_error : float
        Bound on the error of an entry of `gradient`, where the operator is approximate (tree sums); 0 elsewhere.
    """

    alpha: FloatArray
    gradient: FloatArray
    reason: StopReason
    progress: Progress
    history: list[Progress]
    solver: dict[str, Any]
    refreshes: int
    product_error: float = 0.0

    @property
    def converged(self) -> bool:
        """Whether the tolerance was met."""
        return self.reason.converged


def solve(
    operator: KernelOperator,
    rhs: ArrayLike,
    *,
    solver: Solver | None = None,
    stopping: StoppingRule | None = None,
    initial: ArrayLike | None = None,
    initial_gradient: ArrayLike | None = None,
    callback: Callable[[Progress], None] | None = None,
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
    checkpointing : Checkpointing, optional
    interrupted : callable, optional
        Asked between rounds; when it answers true the state is saved and `InterruptedRunError` raised.

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
    done = run(
        operator,
        y,
        chosen,
        stopping or GradientInfNorm(),
        initial=start,
        initial_gradient=known,
        callback=callback,
        checkpointing=checkpointing,
        interrupted=interrupted,
    )
    return Solution(
        done.state.alpha,
        done.state.gradient,
        done.reason,
        done.progress,
        done.history,
        chosen.settings(),
        done.refreshes,
        # Of the last product, which was with alpha.
        operator.error_bound,
    )
