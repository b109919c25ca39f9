"""The whole matrix in memory: the reference that the others are tested against, and honest about its size."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from dkgp.errors import InputError, MemoryBudgetError
from dkgp.kernels import Features, Kernel
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import (
    FloatArray,
    IndexArray,
    KernelOperator,
    PendingColumns,
    ReadyColumns,
    check_columns,
    check_indices,
    check_vectors,
)

DEFAULT_BUDGET_BYTES = 4 * 1024**3
PIECE_ROWS = 512


class DenseKernelOperator(KernelOperator):
    """Kbar held as one n x n float64 array, evaluated by the kernel's naive formula unless told otherwise.

    Parameters
    ----------
    noise_variance : float or (n,) array_like
    X : (n, d) array_like
        Standardised inputs.
    budget_bytes : int, default 4 GiB
        Most bytes of the matrix.
    compiled : bool, default False
        Evaluate it by compiled float64 tiles instead: as exact, and quicker by far where there are many features.

    Raises
    ------
    MemoryBudgetError
        8 n^2 bytes exceed the budget.
    """

    def __init__(
        self,
        kernel: Kernel,
        noise_variance: float | ArrayLike,
        X: ArrayLike,
        *,
        budget_bytes: int = DEFAULT_BUDGET_BYTES,
        compiled: bool = False,
    ) -> None:
        inputs = np.asarray(X, dtype=np.float64)
        if inputs.ndim != 2:
            raise InputError(f"inputs must be an array of shape (n, d); got shape {inputs.shape}")
        n = inputs.shape[0]
        if 8 * n * n > budget_bytes:
            raise MemoryBudgetError(
                f"a dense kernel matrix of {n} samples takes {8 * n * n:,} bytes; the budget is {budget_bytes:,} "
                "bytes. Use a blocked operator, or raise budget_bytes"
            )
        super().__init__(kernel, noise_variance, n)
        self._inputs = inputs
        self.matrix = self._tiled() if compiled else kernel(inputs, inputs)
        self._prior = self.matrix.diagonal().copy()
        self.matrix[np.diag_indices(n)] += self.noise
        self.entries.add(n * n)

    def _tiled(self) -> FloatArray:
        """K in pieces of rows by compiled tiles."""
        evaluator = self.evaluator("double")
        columns, matrix = evaluator.prepare(self._inputs), np.empty((self.n, self.n))
        for start in range(0, self.n, PIECE_ROWS):
            rows = evaluator.prepare(self._inputs[start : start + PIECE_ROWS])
            matrix[start : start + PIECE_ROWS] = evaluator.tile(rows, columns)
        return matrix

    def with_noise(self, noise_variance: float | ArrayLike) -> Self:
        """Return the same K beside another noise, in a matrix of its own."""
        other = super().with_noise(noise_variance)
        other.matrix = self.matrix.copy()
        other.matrix[np.diag_indices(self.n)] = self._prior + other.noise
        return other

    def diagonal(self) -> FloatArray:
        """Kbar's diagonal: (n,)."""
        return self.matrix.diagonal().copy()

    def row_errors(self) -> FloatArray:
        """Errors that the samples' own rounding adds to entries of K: (n,)."""
        return self.double.row_errors(self._inputs)

    def features(self, indices: IndexArray, precision: Precision = "single") -> Features:
        """Prepared features of the samples `indices`."""
        check_indices(self.n, indices)
        return self.evaluator(precision).prepare(self._inputs[indices])

    def submit_columns(self, indices: IndexArray, delta: FloatArray, precision: Precision = "single") -> PendingColumns:
        """Kbar[:, B] @ delta from the stored matrix, always in float64."""
        check_columns(self.n, indices, delta)
        return ReadyColumns(self.matrix[:, indices] @ delta)

    def matmat(self, V: FloatArray, precision: Precision = "double") -> FloatArray:
        """Kbar @ V."""
        check_vectors(self.n, V)
        return np.asarray(self.matrix @ V)
