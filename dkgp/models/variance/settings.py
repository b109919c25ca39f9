"""Settings of variances, and the test samples that they are of."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Protocol

from dkgp.errors import InputError
from dkgp.operators.base import FloatArray

__all__ = ["TestRows", "VarianceSettings"]


# Settings that a basis for each sample has no use for.
_FACTOR_ONLY = ("max_passes", "rank", "halo", "keep_factor")


class TestRows(Protocol):
    """Test samples as a model sees them."""

    @property
    def n_samples(self) -> int:
        """Their number."""

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Standardised rows start:stop."""


@dataclass(frozen=True)
class VarianceSettings:
    """Settings of variances: how they are computed, and how tight their intervals are to be.

    Attributes
    ----------
    gap : float
        Relative gap, (upper - lower) / upper, at which a sample is done.
    max_passes : float
        Products with the whole kernel matrix that a batch may spend; with 0 the factor alone has to do.
    latent : bool
        False: the variance of a new observation at x, noise included. True: of the function itself, without it.
    rank : int, optional
        Landmarks of the partial Cholesky factor; chosen from smoothness, time and memory by default.
    halo : int, optional
        Samples that a leaf of the block-Vecchia factor is conditioned on, twice those of a leaf; 0 for none, which
        leaves preconditioning to the partial Cholesky factor. Chosen like the rank by default.
    batch_size : int, optional
        Samples of a task; chosen from memory by default.
    memory_bytes : int, optional
        Working memory of one worker process: half of it at most for the partial Cholesky factor while it is made, half
        for the block-Vecchia factor, the rest for the batches under way. By default 704 MiB, more for more than 45,000
        training samples, up to a third of what is free.
    keep_factor : bool
        Keep the factor with the model, and use it next time.
    basis : int, optional
        Bound each variance by a basis of its own of up to so many training samples, chosen until the bounds on what is
        taken off k(x, x) differ by less than `gap` of their mean; see `dkgp.models.variance.greedy`. Of the other
        settings latent, batch_size, memory_bytes and seed go with it.
    seed : int
        Of the landmarks' choice, or the bases'.
    """

    gap: float = 0.02
    max_passes: float = 20.0
    latent: bool = False
    rank: int | None = None
    halo: int | None = None
    batch_size: int | None = None
    memory_bytes: int | None = None
    keep_factor: bool = False
    basis: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gap) and self.gap > 0.0):
            raise InputError(f"the variance gap must be a positive number, such as 0.02 for 2 %; got {self.gap}")
        if not (math.isfinite(self.max_passes) and self.max_passes >= 0.0):
            raise InputError(f"the passes for variances must be a number that is not negative; got {self.max_passes}")
        sizes = {"rank": self.rank, "batch size": self.batch_size, "memory": self.memory_bytes, "basis": self.basis}
        for name, value in sizes.items():
            if value is not None and value < 1:
                raise InputError(f"the variance {name} must be at least 1; got {value}")
        if self.halo is not None and self.halo < 0:
            raise InputError(f"the variance halo must not be negative; got {self.halo}")
        if self.seed < 0:
            raise InputError(f"the seed must not be negative; got {self.seed}")
        if self.basis is not None:
            default = {each.name: each.default for each in fields(VarianceSettings)}
            other = [name for name in _FACTOR_ONLY if getattr(self, name) != default[name]]
            if other:
                named = ", ".join(f"`{name}`" for name in other)
                raise InputError(
                    f"{named}: of the factor that test samples share; with a `basis` for each there is none. Leave one "
                    "or the other out"
                )
