"""Systems A w = b that a pursuit takes columns of: the interface, and A given as an array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import psutil
from numpy.typing import ArrayLike

from dkgp.errors import InputError, MemoryBudgetError
from dkgp.operators.base import FloatArray, IndexArray


@dataclass(frozen=True)
class CandidateProducts:
    """Of q candidates C, a path S with weights w.

    - `gradient` (q, t): b_C - A_CS w.
    - `between` (k, q): A_SC.
    - `inner` (q, q): A_CC.
    """

    gradient: FloatArray
    between: FloatArray
    inner: FloatArray


class PursuitSystem(Protocol):
    """A symmetric positive semidefinite matrix A (D, D) that need not exist, and b = `project(rhs)`."""

    @property
    def size(self) -> int:
        """Regressors, D."""

    def project(self, rhs: FloatArray) -> FloatArray:
        """b (D, t) of what the system is given: b itself, or targets y (n, t)."""

    def square(self, rhs: FloatArray) -> FloatArray | None:
        """|y|^2 (t,), where b is a projection of targets."""

    def diagonal(self) -> FloatArray:
        """A's diagonal: (D,)."""

    def columns(self, which: IndexArray) -> FloatArray:
        """A's columns: (D, c)."""

    def candidates(
        self, rhs: FloatArray, which: IndexArray, path: IndexArray, weights: FloatArray
    ) -> CandidateProducts:
        """Products of candidates (q,) with each other, a path (k,), and what its weights (k, t) leave."""

    def misfit(self, rhs: FloatArray, path: IndexArray, weights: FloatArray) -> float | None:
        """Squared residual of weights (k, t), from residuals; None where only differences are to be had."""


class GramSystem:
    """A as it is given.

    Parameters
    ----------
    matrix : (D, D) array_like
        A, symmetric; it is neither copied nor written to where it is float64.
    square : float or (t,) array_like, optional
        |y|^2, where b = X'y: residuals are known then.
    memory_bytes : int, optional
        What A may take; what is free by default, and more than that is refused.

    Raises
    ------
    InputError
        Not a square, symmetric and finite matrix, negative numbers on the diagonal, or others of more than the
        geometric mean of theirs.
    MemoryBudgetError
        A takes more than it may.
    """

    def __init__(
        self, matrix: ArrayLike, square: float | ArrayLike | None = None, memory_bytes: int | None = None
    ) -> None:
        shape = np.shape(matrix)
        if len(shape) != 2 or shape[0] != shape[1] or not shape[0]:
            raise InputError(f"expected a system of shape (D, D) with D >= 1; got {shape}")
        if not (isinstance(matrix, np.ndarray) and matrix.dtype == np.float64):
            _require_memory(8 * shape[0] ** 2, memory_bytes, f"a system of {shape[0]:,} x {shape[0]:,} numbers")
        self._matrix = np.asarray(matrix, dtype=np.float64)
        self.size = int(shape[0])
        self._square = None if square is None else np.atleast_1d(np.asarray(square, dtype=np.float64))
        diagonal = np.diagonal(self._matrix)
        if not np.isfinite(diagonal).all() or (diagonal < 0.0).any():
            wrong = int(np.flatnonzero(~(diagonal >= 0.0) | ~np.isfinite(diagonal))[0])
            raise InputError(
                f"a system's diagonal is finite and not negative; got {diagonal[wrong]} in row {wrong}. Leave out rows "
                "that are not numbers"
            )
        # By strips: no second matrix is made for the sake of a check.
        for start in range(0, self.size, 256):
            strip = self._matrix[start : start + 256]
            other = self._matrix[:, start : start + 256].T
            if not np.isfinite(strip).all():
                row, column = np.argwhere(~np.isfinite(strip))[0]
                raise InputError(f"a system is finite; got {strip[row, column]} in row {start + row}, column {column}")
            limit = 1e-300 + np.sqrt(np.outer(diagonal[start : start + 256], diagonal))
            far = np.abs(strip - other) > 1e-8 * limit
            if far.any():
                row, column = np.argwhere(far)[0]
                raise InputError(
                    f"a system is symmetric; got {strip[row, column]} in row {start + row}, column {column}, and "
                    f"{other[row, column]} across the diagonal"
                )
            # Float32's rounding of twins' products is let through.
            large = np.abs(strip) > (1.0 + 1e-5) * limit
            if large.any():
                row, column = np.argwhere(large)[0]
                raise InputError(
                    f"a system is positive semidefinite; got {strip[row, column]} in row {start + row}, column "
                    f"{column}, and {diagonal[start + row]} and {diagonal[column]} on the diagonal"
                )

    def project(self, rhs: FloatArray) -> FloatArray:
        """b as it is."""
        if len(rhs) != self.size:
            raise InputError(f"expected right-hand sides of shape ({self.size:,}, t); got {rhs.shape}")
        return rhs

    def square(self, rhs: FloatArray) -> FloatArray | None:
        """As it was given."""
        if self._square is not None and self._square.shape != (rhs.shape[1],):
            raise InputError(f"expected `square` of shape ({rhs.shape[1]},); got {self._square.shape}")
        return self._square

    def diagonal(self) -> FloatArray:
        """A's diagonal."""
        return np.diagonal(self._matrix).copy()

    def columns(self, which: IndexArray) -> FloatArray:
        """A's columns, by its rows, which lie together: (D, c)."""
        return np.asarray(self._matrix[which].T)

    def candidates(
        self, rhs: FloatArray, which: IndexArray, path: IndexArray, weights: FloatArray
    ) -> CandidateProducts:
        """See `PursuitSystem`."""
        between = self._matrix[np.ix_(which, path)].T
        return CandidateProducts(rhs[which] - between.T @ weights, between, self._matrix[np.ix_(which, which)])

    def misfit(self, rhs: FloatArray, path: IndexArray, weights: FloatArray) -> float | None:
        """None: there is no residual without targets."""
        return None


def as_system(system: PursuitSystem | ArrayLike, memory_bytes: int | None = None) -> PursuitSystem:
    """A system as it is, or of an array."""
    if hasattr(system, "columns") and hasattr(system, "project"):
        return system  # type: ignore[return-value]
    return GramSystem(system, memory_bytes=memory_bytes)


def right_hand_sides(values: ArrayLike) -> FloatArray:
    """Right-hand sides (r, t), of (r,) or (r, t); `InputError` where they are not finite."""
    rhs = np.asarray(values, dtype=np.float64)
    rhs = rhs[:, None] if rhs.ndim == 1 else rhs
    if rhs.ndim != 2 or 0 in rhs.shape:
        raise InputError(f"expected right-hand sides of shape (r,) or (r, t); got {np.shape(values)}")
    if not np.isfinite(rhs).all():
        row, column = np.argwhere(~np.isfinite(rhs))[0]
        raise InputError(f"right-hand sides must be finite; got {rhs[row, column]} in row {row}, column {column}")
    return rhs


def columns_that_fit(size: int, most: int, memory_bytes: int | None, asked: bool) -> int:
    """Columns of length `size` that a path may keep: `most`, or fewer where nobody asked for so many.

    Raises `MemoryBudgetError`: they take more than they may.
    """
    budget = memory_bytes if memory_bytes is not None else psutil.virtual_memory().available // 2
    fit = int(budget // (8 * (size + most)))
    if fit >= most:
        return most
    if asked or fit < 1:
        _require_memory(8 * most * (size + most), int(budget), f"{most:,} columns of {size:,} numbers, and a factor,")
    return fit


def _require_memory(bytes_needed: int, memory_bytes: int | None, what: str) -> None:
    budget = int(psutil.virtual_memory().available if memory_bytes is None else memory_bytes)
    if bytes_needed > budget:
        raise MemoryBudgetError(
            f"{what} take {bytes_needed / 2**20:,.0f} MiB, more than the {budget / 2**20:,.0f} MiB that they may; "
            "give X by its rows, which are never held together, ask for a shorter path, or draw random "
            "`candidates`, which keep no columns"
        )
