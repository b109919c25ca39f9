"""A partial Cholesky factor F that lies with the workers, a row block each; and the preconditioner that any F makes.

With landmarks I and L L' = K_II (a jitter included), F = K_nI L^-T gives Q = F F' <= K, and by Woodbury's identity

    M = Q + s2 I,    M^-1 r = (r - F z) / s2,    z = (F'F + s2 I)^-1 F' r.

Where the noise is by sample, D = diag(s2_i), all is scaled first: with S = diag(sqrt(s2 / s2_i)), s2 the least of it,
(Q + D)^-1 = S (S Q S + s2 I)^-1 S, so that rows of F and vectors times S take the place of F and r.

A block of F is built by whichever worker is asked for it first and kept in its cache; lost, it is built again. What
travels is the landmarks' inputs and vectors. A process that solves by itself holds F whole (`FactorRows`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import split_evenly
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.blas import lapack
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.low_rank.landmark_rows import LandmarkRows
from dkgp.operators.low_rank.pivots import regularised_factor
from dkgp.operators.low_rank.products import PIECE_ROWS, FactorRows, LandmarkTriangle

__all__ = ["LowRankFactor", "LowRankPreconditioner"]


@dataclass(frozen=True)
class _FactorContext:
    """Context of a task that builds its blocks of F."""

    context: BlockContext
    landmark_inputs: FloatArray
    label: str
    scale: FloatArray | None

    def _triangle(self) -> LandmarkTriangle:
        return worker_cache().get(
            (self.context.run_id, self.label, "triangle"),
            lambda: LandmarkTriangle.of(self.context.evaluator("double"), self.landmark_inputs),
        )

    def block(self, block: int) -> FactorRows:
        """Rows of F, from this worker's cache or built anew."""

        def build() -> FactorRows:
            triangle, evaluator = self._triangle(), self.context.evaluator("double")
            features = self.context.block_features(block, "double")
            start, stop = self.context.bounds(block)
            values = np.empty((stop - start, triangle.features.n), np.float32)
            for first in range(0, stop - start, PIECE_ROWS):
                last = min(first + PIECE_ROWS, stop - start)
                values[first:last] = triangle.columns(evaluator, features.slice(first, last)).T
            if self.scale is not None:
                values *= self.scale[start:stop, None]
            return FactorRows(values)

        cache = worker_cache()
        rank = len(self.landmark_inputs)
        # Evicted, F would be built again for every product; its user planned with this memory.
        cache.budget_bytes = max(cache.budget_bytes, 4 * self.context.n * rank + 16 * rank * rank)
        return cache.get((self.context.run_id, self.label, block), build)


@needs_one_arithmetic
def gram_task(factor: _FactorContext, blocks: list[int]) -> list[FloatArray]:
    """F_b' F_b for each block: (R, R) float64."""
    return [factor.block(block).gram() for block in blocks]


@needs_one_arithmetic
def project_task(factor: _FactorContext, vectors: dict[int, FloatArray], blocks: list[int]) -> list[FloatArray]:
    """F_b' V_b for each block: (R, t) float64."""
    return [factor.block(block).project(vectors[block]) for block in blocks]


@needs_one_arithmetic
def expand_task(factor: _FactorContext, weights: FloatArray, blocks: list[int]) -> list[FloatArray]:
    """F_b Z for each block: (rows, t) float64."""
    return [factor.block(block).expand(weights) for block in blocks]


class LowRankFactor:
    """F F', never as a whole in one place unless there is one place only.

    Parameters
    ----------
    operator : BlockedKernelOperator
        Of the kernel; its executor does the work.
    landmarks : (R,) int
        Samples that F is built on.

    Attributes
    ----------
    scale : (n,) float64 or None
        What rows of F are multiplied by, sqrt(s2 / s2_i), where the operator's noise is by sample.
    """

    def __init__(self, operator: BlockedKernelOperator, landmarks: IndexArray) -> None:
        context, noise = operator.context, operator.noise
        self.scale = None if isinstance(noise, float) else np.sqrt(operator.noise_variance / noise)
        label = f"factor-{len(landmarks)}"
        self._factor = _FactorContext(context, operator.inputs(landmarks), label, self.scale)
        self._operator, self._executor = operator, operator.executor
        self._bounds = [context.bounds(block) for block in range(context.n_blocks)]
        self.n, self.rank = context.n, len(landmarks)

    def gram(self) -> FloatArray:
        """F' F: (R, R)."""
        total = np.zeros((self.rank, self.rank), order="F")
        # A few blocks at a time: each answer is a matrix.
        for group in split_evenly(
            range(len(self._bounds)), -(-len(self._bounds) // max(1, self._executor.parallelism))
        ):
            parts = self._operator.submit("kgram", gram_task, (self._factor,), [[block] for block in group]).result()
            for part in parts:
                total += part
        return total

    def project(self, vectors: FloatArray) -> FloatArray:
        """F' V for V (n, t): (R, t)."""
        pending = [
            self._operator.submit("kproject", project_task, (self._factor, self._rows_of(vectors, group)), [group])
            for group in self._groups()
        ]
        total = np.zeros((self.rank, vectors.shape[1]))
        for round_ in pending:
            for part in round_.result():
                total += part
        return total

    def expand(self, weights: FloatArray) -> FloatArray:
        """F Z for Z (R, t): (n, t)."""
        parts = self._operator.submit("kexpand", expand_task, (self._factor, weights), self._groups()).result()
        return np.concatenate(parts)

    def _groups(self) -> list[list[int]]:
        return split_evenly(range(len(self._bounds)), self._executor.parallelism)

    def _rows_of(self, vectors: FloatArray, blocks: list[int]) -> dict[int, FloatArray]:
        return {block: vectors[slice(*self._bounds[block])] for block in blocks}


class LowRankPreconditioner:
    """M^-1.

    Parameters
    ----------
    factor : LowRankFactor, FactorRows or LandmarkRows
    noise_variance : float
        s2; the least, where the factor's rows are scaled by the noise of each sample.
    lower : (R, R), optional
        Cholesky factor of F'F + s2 I where it is there already, in Fortran order; its type is that of z.
    """

    def __init__(
        self,
        factor: LowRankFactor | FactorRows | LandmarkRows,
        noise_variance: float,
        lower: NDArray[Any] | None = None,
    ) -> None:
        self._factor, self._noise_variance = factor, noise_variance
        scale = factor.scale if isinstance(factor, LowRankFactor) else None
        self._scale = None if scale is None else scale[:, None]
        if lower is None:
            assert not isinstance(factor, LandmarkRows), "its user knows F'F"
            lower = regularised_factor(factor.gram(), noise_variance)
        self.lower = lower

    @property
    def rank(self) -> int:
        """Landmarks, R."""
        return self._factor.rank

    def weights(self, projected: FloatArray) -> NDArray[Any]:
        """(F'F + s2 I)^-1 A for A (R, t): z where A is F' r."""
        z = np.array(projected, dtype=self.lower.dtype, order="F")
        lapack("potrs", b"L", self.rank, z.shape[1], self.lower, self.rank, z, self.rank)
        return z

    def solve(self, residual: FloatArray) -> tuple[FloatArray, NDArray[Any]]:
        """M^-1 r for r (n, t), and the z that it comes from: (n, t) and (R, t)."""
        if self._scale is not None:
            residual = self._scale * residual
        z = self.weights(self._factor.project(residual))
        result = self._factor.expand(z)
        np.subtract(residual, result, out=result)
        result /= self._noise_variance
        if self._scale is not None:
            result *= self._scale
        return result, z

    def apply(self, residual: FloatArray) -> FloatArray:
        """M^-1 r for r (n, t)."""
        return self.solve(residual)[0]
