"""Settings of a classifier on a basis, and the memory that training takes: refused with numbers before it begins."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from dkgp.cluster.tile_budget import TileBudget
from dkgp.errors import InputError
from dkgp.models.classification.prototypes import PROTOTYPES, check_prototypes
from dkgp.models.memory import Memory, TrainingSizes, kept_that_fits, mib, remainder
from dkgp.operators.cross.runs import MOST_RUNS, cross_bytes, piece_rows
from dkgp.solvers.basis_risk.minimise import MOST_BLOCK_ROWS
from dkgp.solvers.basis_risk.problem import GRAM_BYTES
from dkgp.solvers.basis_risk.state import MOST_PAIRS

DEFAULT_BASIS = "pivoted"
BASES = (DEFAULT_BASIS, *(name for name in PROTOTYPES if name != DEFAULT_BASIS))


@dataclass(frozen=True)
class BasisSettings:
    """Settings of a classifier on a basis.

    Parameters
    ----------
    size : int, default 1000
        Basis samples, m, at most.
    basis : str, default "pivoted"
        One of `BASES`; see `dkgp.models.classification.prototypes`.
    certify : bool, default False
        Also prove how far decisions are from those of the minimiser over all functions: one product with K.
    tolerance : float, default 1e-4
        Of decisions: how far they may be from those of the basis' own best function, for all inputs.
    max_iterations : int, default 200
        Steps of Newton's method.
    seed : int

    Raises
    ------
    InputError
        A setting out of range, or a basis that is none.
    """

    size: int = 1000
    basis: str = DEFAULT_BASIS
    certify: bool = False
    tolerance: float = 1e-4
    max_iterations: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        check_prototypes(self.basis)
        for name, least in (("size", 1), ("max_iterations", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"`{name}` must be at least {least}; got {getattr(self, name)}")
        if not (math.isfinite(self.tolerance) and self.tolerance > 0.0):
            raise InputError(f"`tolerance` must be positive and finite; got {self.tolerance}")

    def identity(self) -> dict[str, Any]:
        """The settings that determine Newton's steps."""
        return {name: value for name, value in vars(self).items() if name != "certify"}

    def memory(self, sizes: TrainingSizes, *, coupled: bool = False) -> BasisMemory:
        """Project what training takes; of columns that hang together, as of softmax, pairs have matrices."""
        n, d, t, executor = sizes.n, sizes.d, sizes.t, sizes.executor
        m, threads = min(self.size, n), executor.threads_per_process
        matrix = 8 * m * m
        if coupled:
            at_once = m * t <= MOST_BLOCK_ROWS
            grams, factors = (t * (t + 1) // 2, 2 * t * t) if at_once else (1, 1)
        else:
            grams, factors = min(t, max(1, GRAM_BYTES // max(1, matrix))), t
        cross = cross_bytes(n, d, m, t)
        levels = max(1, (MOST_RUNS - 1).bit_length())
        # Beside what one Gram takes: the others in flight, and a weighted copy of a piece.
        extra = (grams - 1) * matrix * (3 * threads + levels) + threads * 8 * m * piece_rows(m)
        features = min(sizes.cache_bytes, 8 * n * (sizes.width + 1))
        pairs = 2 * MOST_PAIRS * 8 * m * t
        return BasisMemory(
            m,
            grams,
            (3 + grams + factors) * matrix + pairs,
            # Targets, values before, at and after a trial, slopes and curvatures, and as many on their way.
            8 * n * (12 * t + 4),
            cross.worker(threads) + extra + features,
            executor.shares_memory,
        )


@dataclass(frozen=True)
class BasisMemory(Memory):
    """Projected peaks, in bytes, beside what a process holds already."""

    basis_size: int  # m
    grams: int  # Gram matrices that a pass sums at most
    matrices_bytes: int  # at the coordinator: m x m matrices and factors
    vectors_bytes: int  # at the coordinator: n-vectors
    worker_bytes: int  # of each worker's process; in the coordinator's where the cluster is
    shares_process: bool
    useful_bytes: int = 0  # of leaves' matrices, at most, that workers have a use for in every step
    kept_bytes: int = 0  # what each worker's process may keep of them

    @property
    def computation(self) -> str:
        """The training."""
        return f"a classifier of {self.basis_size:,} basis samples"

    @property
    def coordinator_parts(self) -> int:
        """Bytes of matrices and vectors."""
        return self.matrices_bytes + self.vectors_bytes

    @property
    def worker_parts(self) -> int:
        """Bytes of tasks under way, of features, and of leaves' matrices that are kept."""
        return self.worker_bytes + self.kept_bytes

    def with_kept(self, wanted: TileBudget, budget_bytes: int, resident_bytes: int = 0) -> BasisMemory:
        """The same with room for leaves' matrices, as much as is wanted, is of use, and fits.

        Raises `MemoryBudgetError` where a user's own figure does not fit.
        """
        spare_bytes = self.spare_bytes(budget_bytes, resident_bytes)
        return replace(self, kept_bytes=kept_that_fits(wanted, self.useful_bytes, spare_bytes, "the leaves' matrices"))

    def advice(self, resident_bytes: int) -> str:
        """The parts, and the settings of a basis that make them smaller."""
        return (
            f"Matrices of that size {mib(self.matrices_bytes)} (a quarter with half the `basis_size`), vectors "
            f"{mib(self.vectors_bytes)}, workers, which sum up to {self.grams} matrices in a pass, "
            f"{mib(self.worker_bytes)} ({'within this process' if self.shares_process else 'elsewhere'}), "
            f"{remainder(resident_bytes)}"
        )
