"""Memory of a block-Vecchia factor: of its leaves, of making one, and of the coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from dkgp.operators.vecchia.factor import BYTES_AT_ONCE, VECTORS_AT_ONCE
from dkgp.operators.vecchia.leaf import STRIP_ROWS
from dkgp.operators.vecchia.order import leaf_count


@dataclass(frozen=True)
class VecchiaBytes:
    """Projected bytes of a factor."""

    kept: int  # leaves, of all workers together; on disk as far as their memory does not suffice
    making: int  # of each thread of a worker: a task that makes a leaf, at its peak
    points: int  # points of all samples and their order, in each worker's process while leaves are made
    coordinator: int  # vectors in pieces on their way, lists of samples, and I + V'V

    def in_process(self, threads: int) -> int:
        """Bytes of one process that does everything itself, with so many threads."""
        return self.kept + self.points + self.coordinator + threads * self.making


def vecchia_bytes(
    n: int, halo: int, leaf: int, rank: int = 0, *, width: int = 0, vectors: int = 1, double: bool = False
) -> VecchiaBytes:
    """Project the memory of a factor of n samples, with at most `halo` of a halo and `leaf` of a leaf, and R landmarks.

    `width` is the kernel's `feature_width`; t `vectors` are multiplied at a time; leaves are factored in `double`
    precision where there is little noise.
    """
    halo, leaf = min(halo, n), min(leaf, n)
    leaves = leaf_count(n, leaf)
    rows = -(-n // leaves)
    # The first leaves have fewer samples before them than a halo holds.
    short = min(leaves, -(-halo // rows))
    halos = (leaves - short) * halo + sum(min(halo, k * rows) for k in range(short))
    kept = 4 * (rows * halos + leaves * rows * (rows + STRIP_ROWS) // 2 + leaves * rows * rank) + 4 * (halos + n)
    columns = halo + rows
    number = 8 if double else 4
    making = number * columns * (columns + 256 + rank) + 8 * columns * rank + 4 * rows * (columns + rank)
    united = halos + n
    at_once = max(1, min(vectors, VECTORS_AT_ONCE, BYTES_AT_ONCE // (8 * united)))
    coordinator = 4 * united + 8 * (united + n) * at_once + 3 * 8 * rank * rank
    return VecchiaBytes(kept, making, n * (12 * width + 16), coordinator)
