"""Memory that sums with K(X, Z) take: what a thread works with, what a process keeps, and what the coordinator gets."""

from __future__ import annotations

from dataclasses import dataclass

from dkgp.operators.cross.runs import MOST_RUNS, piece_rows

__all__ = ["CrossBytes", "cross_bytes"]


@dataclass(frozen=True)
class CrossBytes:
    """Projected bytes of a whitened Gram.

    Attributes
    ----------
    thread : int
        A task's sum and its piece of F, and an addition of two sums: of each thread of a worker.
    process : int
        L and the prototypes' features, while L is made, and sums that wait for their neighbours.
    coordinator : int
        The sum, F' D V, and n-vectors on their way.
    """

    thread: int
    process: int
    coordinator: int

    def worker(self, threads: int) -> int:
        """Bytes of a worker's process with so many threads."""
        return self.process + threads * self.thread

    def in_process(self, threads: int) -> int:
        """Bytes of one process that does everything itself, with so many threads."""
        return self.worker(threads) + self.coordinator


def cross_bytes(n: int, d: int, m: int, t: int = 1) -> CrossBytes:
    """Project the memory of a whitened Gram of n samples of d features with m prototypes and t right-hand sides."""
    matrix = 8 * m * m
    levels = max(1, (MOST_RUNS - 1).bit_length())
    piece = 8 * (m + 16) * piece_rows(m)
    run = -(-n // MOST_RUNS) * 8 * (2 * t + 3)
    return CrossBytes(
        thread=3 * matrix + 2 * piece + run,
        process=3 * matrix + levels * matrix + 16 * m * (d + 2),
        coordinator=2 * matrix + 8 * (m + n) * (t + 2),
    )
