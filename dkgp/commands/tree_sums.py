"""Checks of `--tree-error` against the other options, and the memory that the tree takes."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError, MemoryBudgetError, UsageError
from dkgp.kernels import Kernel
from dkgp.operators import ArrayInputs, TreeKernelOperator
from dkgp.operators.tree.memory import building_bytes, tree_bytes
from dkgp.solvers.registry import Need, SolverMemory, solvers_that_need

__all__ = ["add_tree_memory", "check_tree_error", "check_tree_gradient", "check_tree_kernel", "require_tree_room"]


def check_tree_error(error: float | None, tolerance: float, solver: str) -> None:
    """Refuse an error of tree sums that makes no sense beside the tolerance and the solver of this name.

    Raises
    ------
    InputError, UsageError
    """
    if error is None:
        return
    if not math.isfinite(error) or error <= 0.0:
        raise InputError(f"the error of tree sums (--tree-error) must be finite and positive; got {error!r}")
    if error >= tolerance:
        raise UsageError(
            f"--tree-error must be below --tol, or its errors decide the gradient; got {error:g} with --tol "
            f"{tolerance:g}. Give {tolerance / 10:g} or less"
        )
    # Pruned products would serve them for the gradient at the end alone.
    if solver in solvers_that_need(Need.ENTRIES):
        raise UsageError(
            f"--tree-error is for solvers that work by kernel products; {solver} evaluates the entries themselves. "
            "Leave it out, or take --solver gbcd or pcg, say"
        )


def check_tree_gradient(error: float | None, gradient_tolerance: float, tolerance: float) -> None:
    """Refuse an error of tree sums above what a gradient may be off for decisions within a tolerance; `UsageError`."""
    if error is not None and error >= gradient_tolerance:
        raise UsageError(
            f"decisions within --tol {tolerance:g} of these samples take a gradient within {gradient_tolerance:.3g}; "
            f"--tree-error must be below that, or its errors decide them; got {error:g}. Give "
            f"{gradient_tolerance / 10:.2g} or less"
        )


def check_tree_kernel(kernel: Kernel) -> None:
    """Refuse, before anything is started, a kernel or a number of features that a tree cannot serve; `InputError`."""
    with closing(LocalExecutor(1)) as executor:
        TreeKernelOperator(kernel, 1.0, ArrayInputs(np.zeros((1, kernel.n_features))), executor).close()


def require_tree_room(n: int, width: int, cache_bytes: int) -> int:
    """Return the bytes of a tree over n samples of so many numbers; `MemoryBudgetError` above a worker's cache."""
    needed = tree_bytes(n, width)
    if needed > cache_bytes:
        raise MemoryBudgetError(
            f"the tree of --tree-error over {n:,} samples takes {needed:,} bytes in each process; a worker's cache "
            f"holds {cache_bytes:,}. Give the workers more with --worker-memory, or leave --tree-error out"
        )
    return needed


def add_tree_memory(memory: SolverMemory, n: int, width: int, shares_process: bool, cache_bytes: int) -> SolverMemory:
    """Add a tree in each process, the coordinator's included, to what `solver_memory` says.

    Parameters
    ----------
    memory : SolverMemory
        What the solver holds.
    n, width : int
        Samples, and numbers that the tree holds of each.
    shares_process : bool
        Whether the workers share the coordinator's process, and so its tree.
    cache_bytes : int
        Budget of a worker's cache, which the tree has to fit in.

    Raises
    ------
    MemoryBudgetError
        It does not.
    """
    needed = require_tree_room(n, width, cache_bytes)
    peak = needed + building_bytes(n, width)
    own = 0 if shares_process else peak
    return replace(memory, own_bytes=memory.own_bytes + own, factor_bytes=memory.factor_bytes + peak)
