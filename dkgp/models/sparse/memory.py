"""Memory of a sparse fit: planned before anything is computed, and refused with numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from dkgp.cluster.tile_budget import TileBudget
from dkgp.errors import MemoryBudgetError
from dkgp.models.memory import kept_that_fits
from dkgp.operators.cross.columns import slab_bytes
from dkgp.operators.cross.memory import cross_bytes
from dkgp.solvers.greedy_basis.engine import CANDIDATES_AT_ONCE

__all__ = ["SparseMemory", "plan_sparse"]

MEBIBYTE = 1024**2
# m x m matrices that are there at once while a fit is certified: L, C, C C', a fit with more noise, and while L's
# inverse is judged, that, its absolute value and two pieces.
COORDINATOR_MATRICES = 8
# Compiled code, thread stacks, the scheduler of an in-process cluster; see `dkgp.models.memory`.
RUNTIME_BYTES = 256 * MEBIBYTE


@dataclass(frozen=True)
class SparseMemory:
    """Projected peaks, in bytes, beside what a process holds already.

    Attributes
    ----------
    basis_size : int
        m.
    matrices_bytes, vectors_bytes, choice_bytes : int
        At the coordinator: m x m matrices, n-vectors, and what a greedy choice holds.
    worker_bytes : int
        Of each worker's process; in the coordinator's where the cluster is.
    shares_process : bool
    useful_bytes : int
        Of a growing basis' columns in all samples: what workers have a use for while it is chosen.
    kept_bytes : int
        What each worker's process may keep of them; gone before the fit.
    """

    basis_size: int
    matrices_bytes: int
    vectors_bytes: int
    choice_bytes: int
    worker_bytes: int
    shares_process: bool
    useful_bytes: int = 0
    kept_bytes: int = 0

    @property
    def coordinator_bytes(self) -> int:
        """Projected peak of the coordinator's process."""
        own = RUNTIME_BYTES + self.matrices_bytes + self.vectors_bytes + self.choice_bytes
        return own + (self.worker_bytes + self.kept_bytes if self.shares_process else 0)

    def with_kept(self, wanted: TileBudget, budget_bytes: int, resident_bytes: int = 0) -> SparseMemory:
        """The same with room for columns that are kept, as much as is wanted, is of use, and fits.

        Raises
        ------
        MemoryBudgetError
            A user's own figure does not fit.
        """
        spare_bytes = budget_bytes - resident_bytes - self.coordinator_bytes if self.shares_process else None
        kept_bytes = kept_that_fits(wanted, self.useful_bytes, spare_bytes, "the basis' columns")
        return replace(self, kept_bytes=kept_bytes)

    def to_json(self) -> dict[str, int | bool]:
        """Plain JSON types."""
        return {**asdict(self), "coordinator_bytes": self.coordinator_bytes}

    def require(self, budget_bytes: int, resident_bytes: int = 0) -> None:
        """Refuse a fit that would take more than the budget.

        Raises
        ------
        MemoryBudgetError
            Names the parts and what makes them smaller.
        """
        needed = resident_bytes + self.coordinator_bytes
        if needed <= budget_bytes:
            return
        raise MemoryBudgetError(
            f"a sparse model of {self.basis_size:,} basis samples is projected to need {_mib(needed)} in the "
            f"coordinator's process; the budget is {_mib(budget_bytes)}. Matrices of that size "
            f"{_mib(self.matrices_bytes)} (a quarter with half the `basis_size`), vectors {_mib(self.vectors_bytes)}, "
            f"choice {_mib(self.choice_bytes)} (less with a smaller `per_round`, and not `exhaustive`), "
            f"workers {_mib(self.worker_bytes)} (elsewhere on a cluster of processes or at a scheduler), "
            f"libraries and compiled code {_mib(RUNTIME_BYTES)}, {_mib(resident_bytes)} held already"
        )


def plan_sparse(
    n: int,
    d: int,
    m: int,
    p: int,
    *,
    threads: int,
    shares_process: bool,
    cache_bytes: int,
    width: int | None = None,
    candidates: int = 0,
    greedy_factors: int = 0,
) -> SparseMemory:
    """Project the peak of a sparse fit and its certificate.

    Parameters
    ----------
    n, d, m, p : int
        Samples, features, basis samples, targets.
    threads : int
        At work in one process.
    shares_process : bool
        Whether workers share the coordinator's.
    cache_bytes : int
        Budget of a worker's feature cache.
    width : int, optional
        The kernel's `feature_width`; d by default.
    candidates : int
        Of a greedy choice's round, q: its sums have k columns for each, and its tasks' pieces a row; tasks take
        `CANDIDATES_AT_ONCE` at most.
    greedy_factors : int
        Factors that grow with it.
    """
    cross = cross_bytes(n, d, m, 3 * p)
    # A greedy choice looks at candidates in float32, too.
    features = min(cache_bytes, (12 if candidates else 8) * n * ((width or d) + 1))
    sums, every = (8 * q * (m + p + 2) for q in (min(candidates, CANDIDATES_AT_ONCE), candidates))
    return SparseMemory(
        m,
        COORDINATOR_MATRICES * 8 * m * m,
        8 * n * (8 * p + 10),
        greedy_factors * 8 * m * m + 2 * sums + 2 * every,
        cross.worker(threads) + features + (3 * threads + 6) * sums,
        shares_process,
        slab_bytes(n, m) if candidates else 0,
    )


def _mib(count: int) -> str:
    return f"{count / MEBIBYTE:,.0f} MiB"
