"""The small dense subproblem of a block step: min over delta of delta' Kbar_BB delta / 2 + g_B' delta, as B grows.

GBCD paper, equations (6), (11)-(13), with the incremental Cholesky factor that the paper recommends in place of the
explicit inverse. Variables are appended several at a time, so that the work is triangular solves with many right-hand
sides.

The factor is kept in float32 where the noise variance is far enough above float32 rounding: it then takes half the
time and half the memory. While B grows it only steers the selection; the step that is taken is refined against
float64 kernel entries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.threads import in_parallel
from dkgp.errors import NumericalError
from dkgp.kernels import Features, TileEvaluator
from dkgp.operators.base import FloatArray, IndexArray, KernelOperator, noise_at
from dkgp.solvers.cholesky.triangular import solve_lower, solve_lower_transposed

# The factor of a matrix with eigenvalues in [s2, c] errs by a few eps c: below this margin float32 would not be a good
# guide.
SINGLE_MARGIN = 20.0
REFINEMENT_TOLERANCE = 1e-7
MOST_REFINEMENTS = 5


LEAST_PARALLEL_WORK = 10_000_000
# A run of rows this long is evaluated by one thread: half a millisecond of work, and a whole number of vectors.
PARALLEL_ROWS = 512


def _largest_eigenvalue(operator: KernelOperator, size: int) -> float:
    """Bound on the eigenvalues of Kbar_BB for any B of so many samples: the largest trace that it may have."""
    diagonal = operator.diagonal()
    if operator.kernel.stationary:
        return float(np.max(diagonal)) * size
    return float(np.sum(np.partition(diagonal, -size)[-size:])) if size else 0.0


def matmat_in_parallel(
    evaluator: TileEvaluator, rows: Features, columns: Features, weights: FloatArray, threads: int | None = None
) -> FloatArray:
    """K(rows, columns) @ weights at the coordinator, its rows shared between threads."""
    if rows.n <= PARALLEL_ROWS:
        return evaluator.matmat(rows, columns, weights)
    result = np.empty((rows.n, weights.shape[1]))

    def work(piece: int) -> None:
        start, stop = piece * PARALLEL_ROWS, min((piece + 1) * PARALLEL_ROWS, rows.n)
        result[start:stop] = evaluator.matmat(rows.slice(start, stop), columns, weights)

    in_parallel(work, -(-rows.n // PARALLEL_ROWS), threads)
    return result


class Subproblem:
    """delta = -Kbar_BB^-1 g_B for a growing active set B.

    - `operator`: gives the evaluators and the noise variance; nothing is computed through it.
    - `capacity`: largest size m of B.
    - `targets`: number p of gradient columns.
    - `single`: keep the factor in float32; decided by the noise variance by default. False means float64 in all that
      concerns the block, scores of candidates included.
    - `typical_entry`: root mean square of K's entries off the diagonal, which bounds the largest eigenvalue of Kbar_BB
      more closely than the diagonal alone.
    - `gradient` (capacity, p): g at the variables appended.
    - `scores_in_double`: whether candidates are to be scored by float64 entries.
    """

    def __init__(
        self,
        operator: KernelOperator,
        capacity: int,
        targets: int,
        *,
        single: bool | None = None,
        typical_entry: float | None = None,
    ) -> None:
        self._operator = operator
        largest = _largest_eigenvalue(operator, capacity)
        # Entries of some samples tell of those of others where k(x, x) is the same everywhere.
        if typical_entry is not None and operator.kernel.stationary:
            # No eigenvalue exceeds the Frobenius norm.
            diagonal = float(np.max(operator.diagonal()))
            largest = min(largest, float(np.hypot(np.sqrt(capacity) * diagonal, capacity * typical_entry)))
        margin = operator.noise_variance / (np.finfo(np.float32).eps * largest)
        self._wants_single = bool(margin >= SINGLE_MARGIN) if single is None else single
        self.scores_in_double = single is False
        self._allocate(self._wants_single, capacity, targets)

    def _allocate(self, single: bool, capacity: int, targets: int) -> None:
        operator = self._operator
        self.single = single
        self._evaluator = operator.single if self.single else operator.double
        dtype = self._evaluator.dtype
        self._factor = np.zeros((capacity, capacity), dtype)
        self._half_solved = np.zeros((targets, capacity), dtype)
        self._indices = np.zeros(capacity, dtype=np.intp)
        self._features = self._evaluator.prepare(np.zeros((capacity, operator.kernel.n_features)))
        self.gradient = np.zeros((capacity, targets))
        self.size = 0

    def reset(self) -> None:
        """Empty the active set; the memory is used again, and float32 tried again where it broke down."""
        if self.single != self._wants_single:
            self._allocate(self._wants_single, *self.gradient.shape)
        self.size = 0

    @property
    def capacity(self) -> int:
        """Largest size of B."""
        return len(self.gradient)

    @property
    def indices(self) -> IndexArray:
        """The active set B in order of selection: (size,)."""
        return self._indices[: self.size]

    @property
    def features(self) -> Features:
        """Features of B in the factor's precision."""
        return self._features.first(self.size)

    def guide(self) -> FloatArray:
        """Return the minimiser over the variables so far, (size, p), as good as the selection needs it."""
        solution = self._half_solved[:, : self.size].copy()
        if self.size:
            solve_lower_transposed(self._factor, self.size, solution)
        return solution.T.astype(np.float64)

    def append(self, indices: IndexArray, gradient: FloatArray) -> None:
        """Add variables to B.

        - `indices` (c,).
        - `gradient` (c, p): g at these variables before the block's step.

        Raises `NumericalError`: Kbar_BB lost positive definiteness in float64.
        """
        old, new = self.size, self.size + len(indices)
        features = self._operator.features(indices, self._evaluator.precision)
        self._indices[old:new] = indices
        self._features.put(old, features)
        self.gradient[old:new] = gradient
        self.size = new
        try:
            self._extend(features, old, new)
        except np.linalg.LinAlgError:
            if not self.single:
                raise NumericalError(
                    f"the active set's matrix is not positive definite at {new} variables with noise variance "
                    f"{self._operator.noise_variance:.3g}: rounding exceeds it. Raise the noise variance, or lower the "
                    "block size"
                ) from None
            self._start_over_in_double(new)

    def _extend(self, features: Features, old: int, new: int) -> None:
        rows = self._factor[old:new]
        corner = np.array(self._evaluator.tile(features, features))
        noise = np.asarray(noise_at(self._operator.noise, self._indices[old:new]), self._evaluator.dtype)
        corner[np.diag_indices(new - old)] += noise
        tail = -self.gradient[old:new].T.astype(rows.dtype)
        if old:
            active = self._features.first(old)
            rows[:, :old] = self._evaluator.tile(features, active)
            self._solve_rows(rows, old)
            corner -= rows[:, :old] @ rows[:, :old].T
            tail = tail - self._half_solved[:, :old] @ rows[:, :old].T
        lower = np.linalg.cholesky(corner)
        # Entries that are not finite, as of an amplitude beyond float32, may pass without a word.
        if not (np.isfinite(lower).all() and (lower.diagonal() > 0.0).all()):
            raise np.linalg.LinAlgError
        rows[:, old:new] = lower
        tail = np.ascontiguousarray(tail)
        solve_lower(rows[:, old:new], new - old, tail)
        self._half_solved[:, old:new] = tail

    def _solve_rows(self, rows: NDArray[Any], order: int) -> None:
        """L^-1 for the new rows, in two halves where there is enough to do for two threads."""
        cuts = [0, len(rows) // 2, len(rows)] if len(rows) * order * order >= LEAST_PARALLEL_WORK else [0, len(rows)]
        in_parallel(
            lambda part: solve_lower(self._factor, order, rows[cuts[part] : cuts[part + 1], :order]), len(cuts) - 1
        )

    def solve(self) -> FloatArray:
        """Return the minimiser over B against float64 kernel entries: (size, p).

        A float32 factor is corrected by iterative refinement, each correction costing one product with Kbar_BB; where
        that does not converge the factor is computed again in float64.
        """
        delta = self.guide()
        if not self.single:
            return delta
        active = self._operator.features(self.indices, "double")
        right = -self.gradient[: self.size]
        target = REFINEMENT_TOLERANCE * float(np.max(np.abs(right), initial=0.0))
        for _ in range(MOST_REFINEMENTS):
            product = matmat_in_parallel(self._operator.double, active, active, delta)
            residual = right - product - self._operator.noise_times(delta, self.indices)
            if not np.isfinite(residual).all():
                break
            correction = np.ascontiguousarray(residual.T, dtype=np.float32)
            solve_lower(self._factor, self.size, correction)
            solve_lower_transposed(self._factor, self.size, correction)
            delta = delta + correction.T
            if float(np.max(np.abs(residual), initial=0.0)) <= target:
                return delta
        fresh = Subproblem(self._operator, self._factor.shape[0], self.gradient.shape[1], single=False)
        for start in range(0, self.size, 64):
            stop = min(start + 64, self.size)
            fresh.append(self._indices[start:stop], self.gradient[start:stop])
        return fresh.solve()

    def _start_over_in_double(self, size: int) -> None:
        """Float32 broke down: keep the variables chosen so far and go on in float64 until the block is complete.

        Which blocks that happens to depends on the blocks alone, so a resumed run meets it in the same places.
        """
        indices, gradient = self._indices[:size].copy(), self.gradient[:size].copy()
        self._allocate(False, *self.gradient.shape)
        for start in range(0, size, 64):
            self.append(indices[start : start + 64], gradient[start : start + 64])

    def rows(self, indices: IndexArray) -> NDArray[Any]:
        """k(x_i, B) for samples i: (len, size) in the factor's precision."""
        return self._evaluator.tile(self._operator.features(indices, self._evaluator.precision), self.features)

    def half_solve(self, kernel_rows: NDArray[Any]) -> NDArray[Any]:
        """L^-1 k for kernel rows k(x, B): (r, size), one a row; what prefitting needs (equation 7)."""
        # Always a copy: it is solved in place, and "contiguous" leaves odd strides on a single column.
        solved = np.array(kernel_rows, dtype=self._factor.dtype, order="C", copy=True)
        if self.size:
            solve_lower(self._factor, self.size, solved)
        return solved
