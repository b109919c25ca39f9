"""Rows of a partial Cholesky factor F: how they are made from landmarks, and products with them.

A preconditioner's factor is kept in float32, but applied to a few vectors in float64: in the leading directions
(r - F w) / s2 is a small difference of large numbers. Such a product is bound by memory, and converting F first, as
NumPy would, takes several times as long as the product itself.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import DTypeLike, NDArray

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.threads import in_parallel
from dkgp.kernels import Features, TileEvaluator
from dkgp.kernels.compiler import cached_njit
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray
from dkgp.operators.blas import blas
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.low_rank.pivots import jittered

# From so many vectors on a conversion to float64 is paid back by BLAS's product.
FEW_VECTORS = 4
# Rows of a piece, which a conversion, or a row of sums, is held for; columns of a thread's share.
PIECE_ROWS, PIECE_COLUMNS = 1024, 512
_LANES = 16


@dataclass(frozen=True)
class LandmarkTriangle:
    """L of the landmarks, and their prepared inputs: rows of F are made with them."""

    lower: NDArray[Any]  # (R, R) float32 or float64, Fortran order
    features: Features

    @classmethod
    def of(cls, evaluator: TileEvaluator, inputs: FloatArray, dtype: DTypeLike = np.float64) -> LandmarkTriangle:
        """Factor K_II of landmarks (R, d), evaluated and factored in float64.

        `numpy.linalg.LinAlgError` where it is not numerically positive definite in spite of the jitter.
        """
        features = evaluator.prepare(inputs)
        errors = evaluator.row_errors(inputs)
        matrix = jittered(np.array(evaluator.tile(features, features)), 2.0 * float(errors.max()))
        lower = scipy.linalg.cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
        return cls(np.asfortranarray(lower, dtype=dtype), features)

    @classmethod
    def cached(cls, context: BlockContext, inputs: FloatArray, *label: Hashable) -> LandmarkTriangle:
        """Return the triangle of landmarks with a label in their run, from this worker's cache or computed anew."""
        return worker_cache().get(
            (context.run_id, *label, "triangle"), lambda: cls.of(context.evaluator("double"), inputs)
        )

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.lower.nbytes + self.features.nbytes

    def columns(self, evaluator: TileEvaluator, rows: Features) -> NDArray[Any]:
        """L^-1 K_Ib, the rows b of F as columns: (R, b) in L's type."""
        kernel = np.asfortranarray(evaluator.tile(rows, self.features).T, dtype=self.lower.dtype)
        rank, count = kernel.shape
        blas("trsm", b"L", b"L", b"N", b"N", rank, count, 1.0, self.lower, rank, kernel, rank)
        return kernel


@dataclass(frozen=True)
class FactorRows:
    """Some rows of F.

    The precision is that of the arithmetic within a piece, for more than a few vectors: many vectors are preconditioned
    in half the time by "single". Pieces are added up in float64 either way. Results do not depend on the threads.
    """

    values: NDArray[np.float32]  # (b, R), C order
    precision: Precision = "double"
    threads: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.values.nbytes

    @property
    def rank(self) -> int:
        """Landmarks, R."""
        return int(self.values.shape[1])

    def expand(self, weights: NDArray[Any]) -> FloatArray:
        """F Z for Z (R, t): (b, t) float64."""
        rows, vectors = len(self.values), weights.shape[1]
        out = np.empty((rows, vectors))
        if vectors <= FEW_VECTORS:
            _expand(self.values, np.ascontiguousarray(weights.T, dtype=np.float64), out)
            return out
        converted = weights.astype(self._dtype, copy=False)

        def multiply(index: int) -> None:
            piece = slice(index * PIECE_ROWS, (index + 1) * PIECE_ROWS)
            out[piece] = self.values[piece].astype(self._dtype, copy=False) @ converted

        in_parallel(multiply, -(-rows // PIECE_ROWS), self.threads)
        return out

    def project(self, vectors: FloatArray) -> FloatArray:
        """F' V for V (b, t): (R, t) float64."""
        count = vectors.shape[1]
        if count <= FEW_VECTORS:
            total = np.zeros((count, self.rank))
            _project(self.values, np.ascontiguousarray(vectors.T), total)
            return total.T
        product = np.zeros((self.rank, count))
        converted = vectors.astype(self._dtype, copy=False)

        def multiply(index: int) -> None:
            columns = slice(index * PIECE_COLUMNS, (index + 1) * PIECE_COLUMNS)
            for piece in self._pieces():
                product[columns] += self.values[piece, columns].astype(self._dtype, copy=False).T @ converted[piece]

        in_parallel(multiply, -(-self.rank // PIECE_COLUMNS), self.threads)
        return product

    def gram(self, roots: FloatArray | None = None) -> FloatArray:
        """F' F of rows that are multiplied by their roots (b,) first, if any: (R, R) float64 in Fortran order."""
        total = np.zeros((self.rank, self.rank), order="F")
        edges = [*range(0, self.rank, PIECE_COLUMNS), self.rank]
        tiles = [(i, j) for i in range(len(edges) - 1) for j in range(i + 1)]

        def multiply(index: int) -> None:
            i, j = tiles[index]
            left, right = slice(edges[i], edges[i + 1]), slice(edges[j], edges[j + 1])
            for piece in self._pieces():
                rows = self.values[piece]
                if roots is not None:
                    rows = rows * roots[piece, None].astype(np.float32)
                total[left, right] += rows[:, left].astype(self._dtype, copy=False).T @ rows[:, right].astype(
                    self._dtype, copy=False
                )
            total[right, left] = total[left, right].T

        in_parallel(multiply, len(tiles), self.threads)
        return total

    @property
    def _dtype(self) -> type[np.floating[Any]]:
        return np.float32 if self.precision == "single" else np.float64

    def _pieces(self) -> list[slice]:
        return [slice(start, start + PIECE_ROWS) for start in range(0, len(self.values), PIECE_ROWS)]


@cached_njit(nogil=True)
def _project(factor: Any, vectors: Any, total: Any) -> None:
    """`total[t] += factor' vectors[t]`: four rows at a time, in their order."""
    rows, rank = factor.shape
    whole = rows // 4 * 4
    for t in range(len(vectors)):
        for i in range(0, whole, 4):
            v0, v1, v2, v3 = vectors[t, i], vectors[t, i + 1], vectors[t, i + 2], vectors[t, i + 3]
            for r in range(rank):
                total[t, r] += (
                    np.float64(factor[i, r]) * v0
                    + np.float64(factor[i + 1, r]) * v1
                    + np.float64(factor[i + 2, r]) * v2
                    + np.float64(factor[i + 3, r]) * v3
                )
        for i in range(whole, rows):
            v0 = vectors[t, i]
            for r in range(rank):
                total[t, r] += np.float64(factor[i, r]) * v0


@cached_njit(nogil=True)
def _expand(factor: Any, weights: Any, out: Any) -> None:
    """`out[:, t] = factor weights[t]`: sums in sixteen lanes, so that their order is the same wherever arrays lie."""
    rows, rank = factor.shape
    whole = rank // _LANES * _LANES
    lanes = np.empty((4, _LANES))
    for t in range(len(weights)):
        for start in range(0, rows, 4):
            # The last rows share the loop, where some are computed twice, to the same values.
            i0 = start
            i1, i2, i3 = min(start + 1, rows - 1), min(start + 2, rows - 1), min(start + 3, rows - 1)
            lanes[:, :] = 0.0
            for r in range(0, whole, _LANES):
                for l in range(_LANES):
                    w = weights[t, r + l]
                    lanes[0, l] += np.float64(factor[i0, r + l]) * w
                    lanes[1, l] += np.float64(factor[i1, r + l]) * w
                    lanes[2, l] += np.float64(factor[i2, r + l]) * w
                    lanes[3, l] += np.float64(factor[i3, r + l]) * w
            for r in range(whole, rank):
                w = weights[t, r]
                lanes[0, r - whole] += np.float64(factor[i0, r]) * w
                lanes[1, r - whole] += np.float64(factor[i1, r]) * w
                lanes[2, r - whole] += np.float64(factor[i2, r]) * w
                lanes[3, r - whole] += np.float64(factor[i3, r]) * w
            for k in range(min(4, rows - start)):
                total = 0.0
                for l in range(_LANES):
                    total += lanes[k, l]
                out[start + k, t] = total
