"""Products with F = K_nI L^-T that is not held: from kernel columns of the landmarks, evaluated as they are needed.

For the hundreds of vectors of a batch evaluating the entries costs little beside the products, and F, the largest
array of a worker, is not held. F Z = K_nI (L^-T Z), F'V = L^-1 (K_In V).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.threads import in_parallel
from dkgp.kernels import Features, TileEvaluator
from dkgp.operators.base import FloatArray
from dkgp.operators.blas import blas, leading_dimension

Pieces = list[tuple[Features, slice]]
# Landmarks that a thread takes at a time.
LANDMARKS_AT_ONCE = 512
# Rows of F that are held at once while F'F is computed.
ROWS_AT_ONCE = 4096


def multiply_pieces(
    evaluator: TileEvaluator,
    rows: Pieces,
    columns: Pieces,
    vectors: NDArray[Any],
    images: NDArray[Any],
    threads: int,
    scale: float = 1.0,
) -> float:
    """Add `scale` K(rows, columns) V to the images, in their type, in place, a tile and a BLAS product at a time.

    A term passes through the additions of one tile's sum, in any order, and one more for each tile of its row. Returns
    the seconds that all threads together spent in BLAS.
    """
    count, dtype = vectors.shape[1], images.dtype
    seconds = np.zeros(len(rows))

    def multiply(index: int) -> None:
        features, where = rows[index]
        target = images[where]
        for others, columns_where in columns:
            stored = evaluator.tile(features, others).T
            if stored.strides[1] != stored.itemsize:
                stored = np.ascontiguousarray(stored)
            weights = np.ascontiguousarray(vectors[columns_where], dtype=dtype)
            stride = leading_dimension(stored)
            started = time.perf_counter()
            sizes = count, features.n, others.n
            blas("gemm", b"N", b"T", *sizes, scale, weights, count, stored, stride, 1.0, target, count)
            seconds[index] += time.perf_counter() - started

    if not images.flags.c_contiguous:
        raise AssertionError("images must lie row by row")
    if count:
        in_parallel(multiply, len(rows), threads)
    return float(seconds.sum())


def multiply_symmetric(
    evaluator: TileEvaluator,
    pieces: Pieces,
    vectors: NDArray[Any],
    images: NDArray[Any],
    threads: int,
    scale: float = 1.0,
) -> float:
    """Add `scale` K V to the images as `multiply_pieces` does, K of the pieces among themselves: each entry once.

    A tile of two pieces adds to the images of both. Pieces meet in rounds, i with the j for which i + j is the round's
    number modulo theirs, so that no two pairs of a round share one: threads do not get in each other's way, and each
    image takes its additions in the same order on any number of them.
    """
    count, dtype = vectors.shape[1], images.dtype
    if not images.flags.c_contiguous:
        raise AssertionError("images must lie row by row")
    if not count:
        return 0.0
    meetings = len(pieces) + 1 - len(pieces) % 2
    seconds = np.zeros(len(pieces))

    def weights(where: slice) -> NDArray[Any]:
        return np.ascontiguousarray(vectors[where], dtype=dtype)

    def meet(i: int, j: int) -> None:
        (features, where), (others, others_where) = pieces[i], pieces[j]
        stored = evaluator.tile(features, others).T
        if stored.strides[1] != stored.itemsize:
            stored = np.ascontiguousarray(stored)
        stride, started = leading_dimension(stored), time.perf_counter()
        sizes = count, features.n, others.n
        blas("gemm", b"N", b"T", *sizes, scale, weights(others_where), count, stored, stride, 1.0, images[where], count)
        if i != j:
            sizes, target = (count, others.n, features.n), images[others_where]
            blas("gemm", b"N", b"N", *sizes, scale, weights(where), count, stored, stride, 1.0, target, count)
        seconds[i] += time.perf_counter() - started

    for number in range(meetings):
        partners = ((i, (number - i) % meetings) for i in range(len(pieces)))
        pairs = [(i, j) for i, j in partners if i <= j < len(pieces)]
        in_parallel(lambda index, pairs=pairs: meet(*pairs[index]), len(pairs), threads)  # type: ignore[misc]
    return float(seconds.sum())


def whiten(lower: NDArray[Any], right: NDArray[Any], *, transposed: bool) -> NDArray[Any]:
    """L^-1 B, or L^-T B, for L (R, R) in Fortran order and B (R, t): in L's type, Fortran order."""
    result = np.array(right, dtype=lower.dtype, order="F")
    rank, count = result.shape
    if count:
        flag = b"T" if transposed else b"N"
        blas("trsm", b"L", b"L", flag, b"N", rank, count, 1.0, lower, rank, result, rank)
    return result


@dataclass(frozen=True)
class LandmarkRows:
    """All rows of F, with the products of `dkgp.operators.low_rank.products.FactorRows`."""

    evaluator: TileEvaluator  # in L's type
    pieces: Callable[[], Pieces]  # training inputs in short runs: prepared features, and their rows
    landmarks: Features
    lower: NDArray[Any]  # L: (R, R) float32 or float64, Fortran order
    n: int
    threads: int = 1  # results do not depend on their number

    @property
    def rank(self) -> int:
        """Landmarks, R."""
        return self.landmarks.n

    def expand(self, weights: NDArray[Any]) -> FloatArray:
        """F Z for Z (R, t): (n, t) float64."""
        beta = np.ascontiguousarray(whiten(self.lower, weights, transposed=True))
        out = np.zeros((self.n, beta.shape[1]), self.lower.dtype)
        whole = [(self.landmarks, slice(0, self.rank))]
        multiply_pieces(self.evaluator, self.pieces(), whole, beta, out, self.threads)
        return out.astype(np.float64, copy=False)

    def project(self, vectors: NDArray[Any]) -> FloatArray:
        """F' V for V (n, t): (R, t) float64."""
        total = np.zeros((self.rank, vectors.shape[1]), self.lower.dtype)
        starts = range(0, self.rank, LANDMARKS_AT_ONCE)
        parts = [slice(start, min(start + LANDMARKS_AT_ONCE, self.rank)) for start in starts]
        rows = [(self.landmarks.slice(part.start, part.stop), part) for part in parts]
        multiply_pieces(self.evaluator, rows, self.pieces(), vectors, total, self.threads)
        return whiten(self.lower, total, transposed=False).astype(np.float64)
