"""A preconditioner for conjugate gradients: M = F F' + s2 I of a partial Cholesky factor on chosen landmarks."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from dkgp.errors import InputError, UsageError
from dkgp.operators.base import FloatArray, IndexArray, KernelOperator
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.low_rank.factor import LowRankFactor, LowRankPreconditioner
from dkgp.operators.low_rank.pivots import RandomlyPivotedCholesky, stand_in

__all__ = ["PartialCholesky", "Preconditioner", "Preconditioning"]

GIBIBYTE = 1024**3
# The factor takes 2 n R^2 operations and saves passes of n^2 kernel entries each: with R = 10 sqrt(n) both weigh about
# the same at 100 passes saved.
RANK_PER_SQRT_N = 10.0


class Preconditioner(Protocol):
    """M^-1 for some M near Kbar, of many vectors at once."""

    def apply(self, residual: FloatArray) -> FloatArray:
        """M^-1 r for r (n, t), a new array."""


class Preconditioning(Protocol):
    """Settings of a solver's preconditioner, and the making of it."""

    def resolved(self, n: int, d: int, p: int = 1) -> Preconditioning:
        """Return the settings with every automatic choice made."""

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types."""

    def build(self, operator: KernelOperator) -> Preconditioner:
        """Make M for an operator."""


@dataclass(frozen=True)
class PartialCholesky:
    """Settings of the preconditioner.

    Parameters
    ----------
    rank : int or "auto"
        Landmarks, R; "auto" takes 10 sqrt(n), or what the memory allows if that is less.
    landmarks : {"pivoted", "uniform"}
        "pivoted" draws them by randomly pivoted Cholesky, "uniform" at random (the Nystrom method).
    memory_bytes : int
        What F may take in float32, in all workers together.
    seed : int

    References
    ----------
    M. Diaz, E. Epperly, Z. Frangella, J. Tropp, R. Webber, Robust, randomized preconditioning for kernel ridge
    regression (2023).
    """

    rank: int | Literal["auto"] = "auto"
    landmarks: Literal["pivoted", "uniform"] = "pivoted"
    memory_bytes: int = GIBIBYTE
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rank != "auto" and self.rank < 1:
            raise InputError(f"the preconditioner's rank must be 'auto' or at least 1; got {self.rank!r}")
        if self.landmarks not in ("pivoted", "uniform"):
            raise InputError(f"landmarks must be 'pivoted' or 'uniform'; got {self.landmarks!r}")
        if self.memory_bytes < 1 or self.seed < 0:
            raise InputError(
                f"memory and seed of a preconditioner must not be negative; got {self.memory_bytes}, {self.seed}"
            )

    def resolved(self, n: int, d: int, p: int = 1) -> PartialCholesky:
        """Return the settings with the rank chosen for n samples."""
        affordable = max(1, self.memory_bytes // (4 * n))
        if self.rank == "auto":
            return replace(self, rank=min(n, affordable, math.ceil(RANK_PER_SQRT_N * math.sqrt(n))))
        if self.rank > affordable:
            raise InputError(
                f"a factor of rank {self.rank:,} for {n:,} samples takes {4 * n * self.rank:,} bytes; the "
                f"preconditioner may take {self.memory_bytes:,}. Lower the rank to {affordable:,}, or allow more memory"
            )
        return replace(self, rank=min(n, self.rank))

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types."""
        return asdict(self)

    def build(self, operator: KernelOperator) -> LowRankPreconditioner:
        """Choose landmarks and factorise; every worker builds its own rows of F."""
        if not isinstance(operator, BlockedKernelOperator):
            raise UsageError(
                f"a partial Cholesky preconditioner needs a BlockedKernelOperator; got {type(operator).__name__}"
            )
        operator.executor.require_one_arithmetic()
        return LowRankPreconditioner(LowRankFactor(operator, self.choose(operator)), operator.noise_variance)

    def choose(self, operator: BlockedKernelOperator) -> IndexArray:
        """Draw the landmarks: (rank,) samples, sorted; fewer where the kernel's numerical rank is reached."""
        n = operator.n
        rank = n if self.rank == "auto" else self.rank
        rng = np.random.default_rng(self.seed)
        if self.landmarks == "uniform":
            return np.sort(rng.permutation(n)[:rank]).astype(np.intp)
        subset = stand_in(n, rank, rng)
        inputs = operator.inputs(subset)
        prior = np.asarray(operator.kernel.diagonal(inputs), dtype=np.float64)
        factor = RandomlyPivotedCholesky(operator.double, operator.double.prepare(inputs), prior, rank, rng)
        while not factor.complete:
            factor.extend()
            if factor.rank >= rank // 2:
                factor.continue_in_single_if_rough()
        return np.sort(subset[factor.pivots])
