"""Products with the whole kernel matrix that variances took, counted and timed; nothing is decided by it."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import Any

from numpy.typing import NDArray

from dkgp.kernels import TileEvaluator
from dkgp.operators.low_rank.landmark_rows import Pieces, multiply_pieces


@dataclass
class ProductTally:
    """Products so far."""

    # Columns that Kbar was multiplied with, in float32 and in float64.
    single_columns: int = 0
    double_columns: int = 0
    seconds: float = 0.0  # what the products took
    # What they would have taken by BLAS alone, kernel entries given: a thread's share of all threads' time in it.
    gemm_seconds: float = 0.0

    def multiply(
        self,
        evaluator: TileEvaluator,
        rows: Pieces,
        columns: Pieces,
        vectors: NDArray[Any],
        images: NDArray[Any],
        threads: int,
        scale: float = 1.0,
    ) -> None:
        """Add `scale` K V to the images in place; see `multiply_pieces`."""
        started = time.perf_counter()
        gemm = multiply_pieces(evaluator, rows, columns, vectors, images, threads, scale)
        self.seconds += time.perf_counter() - started
        self.gemm_seconds += gemm / max(1, min(threads, len(rows)))
        if images.dtype.itemsize == 4:
            self.single_columns += vectors.shape[1]
        else:
            self.double_columns += vectors.shape[1]

    def add(self, other: ProductTally) -> None:
        """Add another's figures."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
