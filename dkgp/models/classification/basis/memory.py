"""Memory of a classifier on a basis: planned before anything is computed, and refused with numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from dkgp.errors import MemoryBudgetError
from dkgp.operators.cross.memory import cross_bytes
from dkgp.operators.cross.runs import MOST_RUNS, piece_rows
from dkgp.solvers.basis_risk.minimise import MOST_BLOCK_ROWS
from dkgp.solvers.basis_risk.problem import GRAM_BYTES
from dkgp.solvers.basis_risk.state import MOST_PAIRS

__all__ = ["BasisMemory", "plan_basis"]

MEBIBYTE = 1024**2
# Compiled code, thread stacks, the scheduler of an in-process cluster; see `dkgp.models.memory`.
RUNTIME_BYTES = 256 * MEBIBYTE


@dataclass(frozen=True)
class BasisMemory:
    """Projected peaks, in bytes, beside what a process holds already.

    Attributes
    ----------
    basis_size : int
        m.
    grams : int
        That a pass sums at most.
    matrices_bytes, vectors_bytes : int
        At the coordinator: m x m matrices and factors, and n-vectors.
    worker_bytes : int
        Of each worker's process; in the coordinator's where the cluster is.
    shares_process : bool
    """

    basis_size: int
    grams: int
    matrices_bytes: int
    vectors_bytes: int
    worker_bytes: int
    shares_process: bool

    @property
    def coordinator_bytes(self) -> int:
        """Projected peak of the coordinator's process."""
        own = RUNTIME_BYTES + self.matrices_bytes + self.vectors_bytes
        return own + (self.worker_bytes if self.shares_process else 0)

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
            f"a classifier of {self.basis_size:,} basis samples is projected to need {_mib(needed)} in the "
            f"coordinator's process; the budget is {_mib(budget_bytes)}. Matrices of that size "
            f"{_mib(self.matrices_bytes)} (a quarter with half the `basis_size`), vectors {_mib(self.vectors_bytes)}, "
            f"workers, which sum up to {self.grams} matrices in a pass, {_mib(self.worker_bytes)} "
            f"({'within this process' if self.shares_process else 'elsewhere'}), libraries and compiled code "
            f"{_mib(RUNTIME_BYTES)}, {_mib(resident_bytes)} held already"
        )


def plan_basis(
    n: int,
    d: int,
    m: int,
    t: int,
    *,
    coupled: bool,
    threads: int,
    shares_process: bool,
    cache_bytes: int,
    width: int | None = None,
) -> BasisMemory:
    """Project the peak of training.

    Parameters
    ----------
    n, d, m, t : int
        Samples, features, basis samples, columns of decisions.
    coupled : bool
        Whether the columns hang together, as of softmax: pairs of columns have matrices then.
    threads : int
        At work in one process.
    shares_process : bool
        Whether workers share the coordinator's.
    cache_bytes : int
        Budget of a worker's feature cache.
    width : int, optional
        The kernel's `feature_width`; d by default.
    """
    matrix = 8 * m * m
    if coupled:
        whole = m * t <= MOST_BLOCK_ROWS
        grams, factors = (t * (t + 1) // 2, 2 * t * t) if whole else (1, 1)
    else:
        grams, factors = min(t, max(1, GRAM_BYTES // max(1, matrix))), t
    cross = cross_bytes(n, d, m, t)
    levels = max(1, (MOST_RUNS - 1).bit_length())
    # Beside what one Gram takes: the others in flight, and a weighted copy of a piece.
    more = (grams - 1) * matrix * (3 * threads + levels) + threads * 8 * m * piece_rows(m)
    features = min(cache_bytes, 8 * n * ((width or d) + 1))
    pairs = 2 * MOST_PAIRS * 8 * m * t
    return BasisMemory(
        m,
        grams,
        (3 + grams + factors) * matrix + pairs,
        # Targets, values before, at and after a trial, slopes and curvatures, and as many on their way.
        8 * n * (12 * t + 4),
        cross.worker(threads) + more + features,
        shares_process,
    )


def _mib(count: int) -> str:
    return f"{count / MEBIBYTE:,.0f} MiB"
