"""Settings of a classifier on a basis, and the memory that training takes: refused with numbers before it begins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dkgp.errors import InputError
from dkgp.models.classification.prototypes import PROTOTYPES, check_prototypes
from dkgp.models.memory import BasisMemory, TrainingSizes, mib, remainder
from dkgp.operators.cross.runs import WAITING_SUMS, cross_bytes, piece_rows
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

    def memory(self, sizes: TrainingSizes, *, coupled: bool = False) -> NewtonMemory:
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
        # Beside what one Gram takes: the others in flight, and a weighted copy of a piece.
        extra = (grams - 1) * matrix * (3 * threads + WAITING_SUMS) + threads * 8 * m * piece_rows(m)
        features = min(sizes.cache_bytes, 8 * n * (sizes.width + 1))
        pairs = 2 * MOST_PAIRS * 8 * m * t
        return NewtonMemory(
            basis_size=m,
            grams=grams,
            matrices_bytes=(3 + grams + factors) * matrix + pairs,
            # Targets, values before, at and after a trial, slopes and curvatures, and as many on their way.
            vectors_bytes=8 * n * (12 * t + 4),
            worker_bytes=cross.worker(threads) + extra + features,
            shares_process=executor.shares_memory,
        )


@dataclass(frozen=True, kw_only=True)
class NewtonMemory(BasisMemory):
    """Of a classifier on a basis; workers keep leaves' matrices from one of Newton's steps to the next."""

    kept = "the leaves' matrices"

    grams: int  # Gram matrices that a pass sums at most

    @property
    def computation(self) -> str:
        """The training."""
        return f"a classifier of {self.basis_size:,} basis samples"

    def advice(self, resident_bytes: int) -> str:
        """The parts, and the settings of a basis that make them smaller."""
        return (
            f"Matrices of that size {mib(self.matrices_bytes)} (a quarter with half the `basis_size`), vectors "
            f"{mib(self.vectors_bytes)}, workers, which sum up to {self.grams} matrices in a pass, "
            f"{mib(self.worker_bytes)} ({'within this process' if self.shares_process else 'elsewhere'}), "
            f"{remainder(resident_bytes)}"
        )
