"""Settings of a classifier on a basis."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.errors import InputError
from dkgp.models.classification.basis.memory import BasisMemory, plan_basis
from dkgp.models.classification.prototypes import PROTOTYPES, check_prototypes

__all__ = ["BASES", "DEFAULT_BASIS", "BasisSettings"]

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

    def memory(
        self,
        n: int,
        d: int,
        t: int,
        executor: BlockExecutor,
        cache_bytes: int,
        width: int | None = None,
        *,
        coupled: bool = False,
    ) -> BasisMemory:
        """Project what training takes; `coupled` of softmax."""
        return plan_basis(
            n,
            d,
            min(self.size, n),
            t,
            coupled=coupled,
            threads=executor.threads_per_process,
            shares_process=executor.shares_memory,
            cache_bytes=cache_bytes,
            width=width,
        )
