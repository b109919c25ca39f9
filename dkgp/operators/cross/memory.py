"""Memory of sums with K(X, Z): of a thread at work, of a worker's process, and of the coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from dkgp.operators.cross.runs import MOST_RUNS, piece_rows


@dataclass(frozen=True)
class CrossBytes:
    """Projected bytes of a whitened Gram."""

    thread: int  # of each thread of a worker: a task's sum and its piece of F, and an addition of two sums
    process: int  # L and the prototypes' features, while L is made, and sums that wait for their neighbours
    coordinator: int  # the sum, F' D V, and n-vectors on their way

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
