"""Solve Kbar alpha = y by any method: what is refused, what is taken by default, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dkgp.errors import InputError
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.solvers.base import Solver
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
    y = right_hand_side(rhs, operator.n)
    start = None if initial is None else right_hand_side(initial, operator.n, "the warm start")
    if start is not None and start.shape != y.shape:
        raise InputError(f"the warm start has shape {start.shape}; expected {y.shape}")
    known = None
    if initial_gradient is not None:
        known = right_hand_side(initial_gradient, operator.n, "the warm start's gradient")
        if start is None or known.shape != y.shape:
            raise InputError(f"the warm start's gradient has shape {known.shape}; expected a warm start and {y.shape}")
    chosen = (solver or GreedyBlockCoordinateDescent()).resolved(operator.n, operator.kernel.n_features, y.shape[1])
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


def right_hand_side(values: ArrayLike, n: int, name: str = "the right-hand side") -> FloatArray:
    """Return y as (n, p) float64 numbers; refuse other shapes, and what is not finite."""
    y = np.array(values, dtype=np.float64)
    if y.ndim == 1:
        y = y[:, None]
    if y.ndim != 2 or y.shape[0] != n or y.shape[1] == 0:
        raise InputError(f"{name} must have shape ({n},) or ({n}, p); got {y.shape}")
    if not np.isfinite(y).all():
        raise InputError(f"{name} must be finite; row {int(np.argwhere(~np.isfinite(y))[0][0])} is not")
    return y
