"""Sizes of a prediction's variances: rank, halo, samples solved for together, as memory and time have it.

A product with the kernel matrix takes 2 n^2 operations a sample. A factor of rank R takes 2 n R^2, and what it proves
6 n R a sample; each doubling of R narrows intervals about as much as a product does. A halo of s samples takes 4 n s^2,
and products fall about as s^(-3/4). So R and s are where what the last step took is what it saved, memory permitting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import psutil

from dkgp.errors import MemoryBudgetError
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.models.variance.nystrom import factor_bytes
from dkgp.models.variance.remainder import GROUP, LARGE_GROUP, remainder_bytes
from dkgp.models.variance.search import product_bytes, vectors_at_once
from dkgp.operators.low_rank.landmark_rows import ROWS_AT_ONCE
from dkgp.operators.vecchia.factor import vecchia_bytes
from dkgp.solvers.conjugate.phases import COLUMNS_AT_ONCE

MEBIBYTE = 1024**2
LEAST_MEMORY_BYTES = 704 * MEBIBYTE
MEMORY_BYTES_PER_SAMPLE = 16384
# Of the memory, the most that a factor may take while it is made, the block-Vecchia factor, and large blocks.
FACTOR_SHARE, HALO_SHARE, GROUP_SHARE = 0.5, 0.5, 0.125
# Operations that a factor may cost in any case, two or three seconds of work: small problems get the whole matrix.
FREE_OPERATIONS = 1e11
# What a rank R saves is what it takes at R^2 + R t = 0.8 n t, and a halo at s^(11/4) = 110 n t, as measured on kin40k.
RANK_WORTH, HALO_WORTH, HALO_POWER = 0.8, 110.0, 4.0 / 11.0
LEAST_HALO = 256
# Samples that are to be solved for together at least, if there are so many: entries are evaluated once for all.
LEAST_TOGETHER = 100
# A search in float32 holds v, k_x - Kbar v, directions, their images and M^-1 r. Float64 then holds v in float32 and r,
# and of the fifth that goes on at a time also v, r, M^-1 r, images, and directions in float32.
SEARCH_BYTES, DOUBLE_BYTES = 5 * 4, 4 + 8 + (4 * 8 + 4) // 5
# Without a search: v, r, M^-1 r and images, the preconditioner's input.
START_BYTES = 5 * 8
# Largest eigenvalue (trace(K) at most) times float32's epsilon, over s2: beyond it a float32 preconditioner is mostly
# noise. And what a factor must leave of trace(K) for its triangle to be of use in float32.
SINGLE_PRECISION_UP_TO, SINGLE_PRECISION_TRACE = 1.0, 1e-4


def default_memory_bytes(n: int) -> int:
    """Working memory of one worker process where none is given."""
    return max(LEAST_MEMORY_BYTES, min(MEMORY_BYTES_PER_SAMPLE * n, int(psutil.virtual_memory().available) // 3))


def building_bytes(n: int, rank: int) -> int:
    """Bytes that making a factor takes at its peak, without F: three squares in float64, some rows of F, n-vectors."""
    return 24 * rank * rank + 4 * min(n, ROWS_AT_ONCE) * rank + 24 * n


def chosen_rank(n: int, tests: int, requested: int | None, memory_bytes: int) -> int:
    """Landmarks, at most, for n samples and so many tests.

    Raises
    ------
    MemoryBudgetError
        The rank that is asked for does not fit.
    """
    budget = int(FACTOR_SHARE * memory_bytes) - 24 * n
    linear = 4 * min(n, ROWS_AT_ONCE)
    # 24 R^2 + linear R <= budget
    fits = int((math.sqrt(linear * linear + 96.0 * max(budget, 0)) - linear) / 48.0)
    if requested is not None:
        rank = min(requested, n)
        if rank > fits:
            raise MemoryBudgetError(
                f"a factor of rank {rank:,} takes {building_bytes(n, rank) / 1e6:,.3g} MB to make; its share of "
                f"the variance memory is {FACTOR_SHARE * memory_bytes / 1e6:,.3g} MB. "
                f"Lower `rank` to {max(fits, 0):,} or raise `memory_bytes`"
            )
        return rank
    balanced = int(math.sqrt(RANK_WORTH * n * tests + tests * tests / 4.0) - tests / 2.0)
    free = int(math.sqrt(FREE_OPERATIONS / (2.0 * n)))
    return max(1, min(n, fits, max(balanced, free)))


def chosen_group(n: int, memory_bytes: int) -> int:
    """Samples of a block of what a factor leaves, where narrow intervals are worth their memory."""
    return LARGE_GROUP if remainder_bytes(n, LARGE_GROUP) <= GROUP_SHARE * memory_bytes else GROUP


def precision_of(proves: bool, residual: float, trace: float, noise_variance: float) -> Precision:
    """Precision of a factor's triangles, from trace(K - Q) and trace(K).

    float32 where the factor neither proves by itself nor has taken the kernel to its end.
    """
    hopeless = 2.0**-23 * trace > SINGLE_PRECISION_UP_TO * noise_variance
    return "double" if proves or hopeless or not is_rough(residual, trace) else "single"


def is_rough(residual: float, trace: float) -> bool:
    """True if a factor leaves so much that its triangle, rounded to float32, still tells F by kernel columns alone."""
    return residual >= SINGLE_PRECISION_TRACE * trace


@dataclass(frozen=True)
class Memory:
    """Memory of a process that solves a batch, one after the other, by all of its threads."""

    total: int  # bytes that all may take
    n: int
    rank: int
    halo: int
    precision: Precision
    held: bool  # whether F is held
    width: int  # the kernel's `feature_width`
    proves: bool = False  # whether the factor certifies by itself
    group: int = GROUP  # of its blocks, samples

    @property
    def fixed(self) -> int:
        """Bytes that do not depend on the samples."""
        holds: dict[str, Any] = {"held": self.held, "proves": self.proves, "group": self.group}
        factor = factor_bytes(self.n, self.rank, self.precision, **holds)
        if not self.halo:
            return factor
        at_once = vectors_at_once(self.n)
        vecchia = vecchia_bytes(self.n, self.halo, -(-self.halo // 2), width=self.width, vectors=at_once)
        at_once = vecchia.coordinator + 24 * self.n * at_once
        return factor + vecchia.kept + vecchia.points + at_once

    @property
    def of_a_sample(self) -> int:
        """Bytes for each sample of a batch."""
        return self.n * (max(SEARCH_BYTES, DOUBLE_BYTES) if self.halo else START_BYTES)

    @property
    def samples(self) -> int:
        """Samples that may be solved for together; none where the budget does not hold even one."""
        room = self.total - self.fixed
        few = room // (self.of_a_sample + product_bytes(self.n, 1))
        many = (room - product_bytes(self.n, max(0, few))) // self.of_a_sample
        return max(0, few if few < COLUMNS_AT_ONCE else many)

    def of_batch(self, samples: int) -> int:
        """Bytes of a process that solves for so many samples together."""
        return self.fixed + samples * self.of_a_sample + product_bytes(self.n, samples)


def chosen_halo(without: Memory, tests: int) -> int:
    """Samples of a halo; 0 where the factor is nearly the whole matrix, or memory allows no halo of use.

    `without` is the memory without a halo, and without F. The number of threads does not count: see `leaf_makers`.
    """
    n, total = without.n, without.total
    if 2 * without.rank >= n:
        return 0
    halo = min(n // 4, int((HALO_WORTH * n * tests) ** HALO_POWER))
    while halo >= LEAST_HALO:
        leaves = vecchia_bytes(n, halo, -(-halo // 2), width=without.width)
        kept = leaves.kept + leaves.points
        # Leaves are made before there are any batches.
        made = kept <= HALO_SHARE * total and kept + leaves.making <= total - without.fixed
        if made and replace(without, halo=halo).samples >= min(tests, LEAST_TOGETHER):
            return halo
        halo = halo * 15 // 16
    return 0


def leaf_makers(memory: Memory) -> int:
    """Return the threads of a process that may make leaves at once."""
    leaves = vecchia_bytes(memory.n, memory.halo, -(-memory.halo // 2), width=memory.width)
    return max(1, (memory.total - memory.fixed) // max(1, leaves.making))
