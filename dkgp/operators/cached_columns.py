"""Kbar with its columns kept: each kernel column is evaluated once, by the round that needs it first.

Where all of K fits in memory in float32 (4 n^2 bytes), a solve that returns to the same columns pays for one pass over
the kernel matrix at most. Every later product with a column reads it, without a worker and about as fast as a cheap
kernel is evaluated. Solves that start near their solution, such as the one after new samples, consist of such products.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from dkgp.cluster.threads import in_parallel
from dkgp.kernels import Features
from dkgp.kernels.compiler import cached_njit
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.kernels.tiles.loops import FLUSH_COLUMNS
from dkgp.kernels.vector_math import FAST_MATH, fma, prefer_full_vectors
from dkgp.operators.base import FloatArray, IndexArray, KernelOperator, PendingColumns, ReadyColumns, check_columns

PIECE_ROWS = 2048


def cached_columns_bytes(n: int) -> int:
    """Bytes of the columns of n samples once all of them have been needed."""
    return 4 * n * n


class CachedColumnsOperator(KernelOperator):
    """Another operator with its float32 columns kept in this process; float64 products are the other operator's.

    Parameters
    ----------
    operator : KernelOperator
        Of the same samples. It is not closed by this one, and shares its count of entries.

    Notes
    -----
    Memory grows by 4 n bytes with each new column, to `cached_columns_bytes`.
    """

    def __init__(self, operator: KernelOperator) -> None:
        # Not by the base class: its evaluators and its count are the other operator's.
        self._operator = operator
        self.kernel, self.n = operator.kernel, operator.n
        self.noise, self.noise_variance = operator.noise, operator.noise_variance
        self.entries, self.single, self.double = operator.entries, operator.single, operator.double
        self._typical_entries = operator._typical_entries
        # Room for all of them, which takes memory only as it is written to.
        self._columns = np.empty((self.n, self.n), np.float32)
        self._slots = np.full(self.n, -1, dtype=np.intp)

    def with_noise(self, noise_variance: float | ArrayLike) -> Self:
        """Return the same K beside another noise, its columns shared."""
        other = super().with_noise(noise_variance)
        other._operator = self._operator.with_noise(noise_variance)
        return other

    def diagonal(self) -> FloatArray:
        """Kbar's diagonal: (n,)."""
        return self._operator.diagonal()

    def row_errors(self) -> FloatArray:
        """Errors that the samples' own rounding adds to entries of K: (n,)."""
        return self._operator.row_errors()

    def features(self, indices: IndexArray, precision: Precision = "single") -> Features:
        """Prepared features of the samples `indices`."""
        return self._operator.features(indices, precision)

    def matmat(self, V: FloatArray, precision: Precision = "double") -> FloatArray:
        """Kbar @ V, by the other operator."""
        return self._operator.matmat(V, precision)

    def columns_to_evaluate(self, indices: IndexArray, precision: Precision = "single") -> int:
        """Number of these columns that are not kept yet; in float64 none is."""
        return len(indices) if precision == "double" else int(np.count_nonzero(self._slots[indices] < 0))

    def submit_columns(self, indices: IndexArray, delta: FloatArray, precision: Precision = "single") -> PendingColumns:
        """Kbar[:, B] @ delta, summed as the tile loops sum."""
        if precision == "double":
            return self._operator.submit_columns(indices, delta, precision)
        check_columns(self.n, indices, delta)
        self._evaluate(indices[self._slots[indices] < 0])
        slots, weights = self._slots[indices], np.ascontiguousarray(delta.T, dtype=np.float32)
        result = np.zeros((delta.shape[1], self.n))

        def multiply(piece: int) -> None:
            first, last = piece * PIECE_ROWS, min((piece + 1) * PIECE_ROWS, self.n)
            _add_products(self._columns, slots, weights, result, first, last)

        in_parallel(multiply, -(-self.n // PIECE_ROWS))
        product = np.ascontiguousarray(result.T)
        product[indices] += self.noise_times(delta, indices)
        return ReadyColumns(product)

    def _evaluate(self, missing: IndexArray) -> None:
        if not len(missing):
            return
        samples = self.features(np.arange(self.n, dtype=np.intp))
        columns = self.features(missing)
        used = int(np.count_nonzero(self._slots >= 0))
        places = slice(used, used + len(missing))

        def fill(piece: int) -> None:
            first, last = piece * PIECE_ROWS, min((piece + 1) * PIECE_ROWS, self.n)
            self._columns[places, first:last] = self.single.tile(samples.slice(first, last), columns).T

        in_parallel(fill, -(-self.n // PIECE_ROWS))
        self._slots[missing] = np.arange(places.start, places.stop)


@cached_njit(fastmath=FAST_MATH, nogil=True)
def _add_products(columns, slots, weights, result, first, last):  # type: ignore[no-untyped-def]
    """`result[t, i] += sum_j columns[slots[j], i] weights[t, j]` for first <= i < last.

    In float32 over `FLUSH_COLUMNS` columns at a time, by four, then in float64.
    """
    prefer_full_vectors()
    count = slots.shape[0]
    total = np.empty(last - first, np.float32)
    for t in range(weights.shape[0]):
        for start in range(0, count, FLUSH_COLUMNS):
            stop = min(start + FLUSH_COLUMNS, count)
            total[:] = np.float32(0.0)
            j = start
            while j + 4 <= stop:
                s0, s1, s2, s3 = slots[j], slots[j + 1], slots[j + 2], slots[j + 3]
                w0, w1, w2, w3 = weights[t, j], weights[t, j + 1], weights[t, j + 2], weights[t, j + 3]
                for i in range(last - first):
                    value = fma(columns[s1, first + i], w1, fma(columns[s0, first + i], w0, total[i]))
                    total[i] = fma(columns[s3, first + i], w3, fma(columns[s2, first + i], w2, value))
                j += 4
            while j < stop:
                s0, w0 = slots[j], weights[t, j]
                for i in range(last - first):
                    total[i] = fma(columns[s0, first + i], w0, total[i])
                j += 1
            for i in range(last - first):
                result[t, first + i] += total[i]
