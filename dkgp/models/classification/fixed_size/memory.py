"""Memory of a fixed-size LS-SVM: planned before anything is computed, and refused with numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from dkgp.errors import MemoryBudgetError
from dkgp.models.classification.fixed_size.paths import path_bytes
from dkgp.operators.cross.folds import fold_bytes, triangle_numbers

__all__ = ["FixedSizeMemory", "plan_fixed_size"]

MEBIBYTE = 1024**2
# Compiled code, thread stacks, the scheduler of an in-process cluster; see `dkgp.models.memory`.
RUNTIME_BYTES = 256 * MEBIBYTE


@dataclass(frozen=True)
class FixedSizeMemory:
    """Projected peaks, in bytes, beside what a process holds already.

    Attributes
    ----------
    pool, folds, together : int
        Prototypes M, folds, and kernels of one pass.
    grams_bytes : int
        At the coordinator: triangles of all folds of each kernel, and its two matrices.
    paths_bytes : int
        At the coordinator: paths of all folds, as far as they may go.
    vectors_bytes : int
        At the coordinator: n-vectors.
    worker_bytes : int
        Of each worker's process; in the coordinator's where the cluster is.
    shares_process : bool
    """

    pool: int
    folds: int
    together: int
    grams_bytes: int
    paths_bytes: int
    vectors_bytes: int
    worker_bytes: int
    shares_process: bool

    @property
    def coordinator_bytes(self) -> int:
        """Projected peak of the coordinator's process: sums are taken, or gone through, and not both at once."""
        worker = self.worker_bytes if self.shares_process else 0
        return RUNTIME_BYTES + self.vectors_bytes + self.grams_bytes + max(self.paths_bytes, worker)

    def to_json(self) -> dict[str, int | bool]:
        """Plain JSON types."""
        return {**asdict(self), "coordinator_bytes": self.coordinator_bytes}

    def require(self, budget_bytes: int, resident_bytes: int = 0) -> None:
        """Refuse training that would take more than the budget.

        Raises
        ------
        MemoryBudgetError
            Names the parts and what makes them smaller.
        """
        needed = resident_bytes + self.coordinator_bytes
        if needed <= budget_bytes:
            return
        raise MemoryBudgetError(
            f"a fixed-size classifier with a pool of {self.pool:,} prototypes and {self.folds} folds is projected to "
            f"need {_mib(needed)} in the coordinator's process; the budget is {_mib(budget_bytes)}. Sums of "
            f"{self.together} kernels at once {_mib(self.grams_bytes)} (a quarter with "
            f"half the `pool`, half with half the `folds`), paths {_mib(self.paths_bytes)} (less with a smaller "
            f"`max_basis`), vectors {_mib(self.vectors_bytes)}, workers {_mib(self.worker_bytes)} "
            f"({'within this process' if self.shares_process else 'elsewhere'}), libraries and compiled code "
            f"{_mib(RUNTIME_BYTES)}, {_mib(resident_bytes)} held already"
        )


def plan_fixed_size(
    n: int,
    d: int,
    t: int,
    *,
    pool: int,
    max_basis: int | None,
    folds: int,
    together: int,
    threads: int,
    shares_process: bool,
    cache_bytes: int,
    width: int | None = None,
    copies: int = 1,
    budget_bytes: int | None = None,
) -> FixedSizeMemory:
    """Project the peak of training.

    Parameters
    ----------
    n, d, t : int
        Samples, features, outputs.
    pool, max_basis, folds
        See `FixedSizeSettings`.
    together : int
        Kernels of a pass at most.
    threads : int
        At work in one process.
    shares_process : bool
        Whether workers share the coordinator's.
    cache_bytes : int
        Budget of a worker's cache, which keeps inputs.
    width : int, optional
        The kernel's `feature_width`; d by default.
    copies : int
        Of the triangles: another one where an intercept is put beside the prototypes.
    budget_bytes : int, optional
        Free in the coordinator's process: fewer kernels go together where all would not fit.
    """
    m = min(pool, n)
    most = min(max_basis or m, m)
    paths = (folds + 1) * path_bytes(m, most, t)
    vectors = 8 * n * (4 * t + 8)
    plan: FixedSizeMemory | None = None
    for count in range(max(1, together), 0, -1):
        thread, waiting, _ = fold_bytes(n, d, m, t, folds, count, width or d)
        grams = 8 * count * (copies * folds * triangle_numbers(m) + 3 * m * m + 2 * folds * m * (t + 1))
        worker = threads * thread + waiting + min(cache_bytes, 8 * n * (d + 2 * (width or d) + 2))
        plan = FixedSizeMemory(m, folds, count, grams, paths, vectors, worker, shares_process)
        if budget_bytes is None or plan.coordinator_bytes <= budget_bytes:
            break
    assert plan is not None
    return plan


def _mib(count: int) -> str:
    return f"{count / MEBIBYTE:,.0f} MiB"
