"""A partial Cholesky factor F that lies with the workers, a row block each; and the preconditioner that any F makes.

With landmarks I and L L' = K_II (a jitter included), F = K_nI L^-T gives Q = F F' <= K, and by Woodbury's identity

    M = Q + s2 I,    M^-1 r = (r - F z) / s2,    z = (F'F + s2 I)^-1 F' r.

Where the noise is by sample, D = diag(s2_i), all is scaled first: with S = diag(sqrt(s2 / s2_i)), s2 the least of it,
(Q + D)^-1 = S (S Q S + s2 I)^-1 S, so that rows of F and vectors times S take the place of F and r.

The first worker that needs a block of F builds it and keeps it in its cache; a block that is lost is built again. Only
the landmarks' inputs and vectors travel. A process that solves by itself holds F whole (`FactorRows`).

An F beyond `HELD_BYTES` is not held. Its rows exist while F'F is computed, in float64; from then on F z = K_nI (L^-T z)
and F' r = L^-1 (K_In r) take 2 n R kernel entries, where a product with K takes n^2 / 2. Whether it is held depends on
n and R alone, and so do the bits.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import split_evenly
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.blas import blas, lapack
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.low_rank.pivots import LandmarkRows, regularised_factor, whiten
from dkgp.operators.low_rank.products import PIECE_ROWS, FactorRows, LandmarkTriangle

HELD_BYTES = 1024**3


def low_rank_bytes(n: int, rank: int, threads: int = 1) -> int:
    """Bytes of a factor in all workers together; of one that is not held, with so many threads at work."""
    triangle = 16 * rank * rank
    return triangle + (4 * n * rank if 4 * n * rank <= HELD_BYTES else threads * 8 * rank * (2 * PIECE_ROWS + 2 * rank))


@dataclass(frozen=True)
class _FactorContext:
    """Context of a task that builds its blocks of F."""

    context: BlockContext
    landmark_inputs: FloatArray
    label: str
    scale: FloatArray | None

    def triangle(self) -> LandmarkTriangle:
        """L and the landmarks, from this worker's cache or made anew."""
        return LandmarkTriangle.cached(self.context, self.landmark_inputs, self.label)

    def block(self, block: int) -> FactorRows:
        """Rows of F, from this worker's cache or built anew."""

        def build() -> FactorRows:
            triangle, evaluator = self.triangle(), self.context.evaluator("double")
            features = self.context.block_features(block, "double")
            start, stop = self.context.bounds(block)
            values = np.empty((stop - start, triangle.features.n), np.float32)
            for first in range(0, stop - start, PIECE_ROWS):
                last = min(first + PIECE_ROWS, stop - start)
                # A factor with infinities preconditions nothing: the solve breaks down.
                with np.errstate(over="ignore"):
                    values[first:last] = triangle.columns(evaluator, features.slice(first, last)).T
            if self.scale is not None:
                values *= self.scale[start:stop, None]
            return FactorRows(values)

        cache = worker_cache()
        rank = len(self.landmark_inputs)
        # If F were evicted, every product would build it again; memory was planned with it.
        cache.make_room(4 * self.context.n * rank + 16 * rank * rank)
        return cache.get((self.context.run_id, self.label, block), build)

    @property
    def held(self) -> bool:
        """True if workers hold F."""
        return 4 * self.context.n * len(self.landmark_inputs) <= HELD_BYTES

    def passing_gram(self, block: int, roots: FloatArray | None = None) -> FloatArray:
        """F_b' F_b of rows that are not held, each times its root first: (R, R) float64."""
        triangle, evaluator = self.triangle(), self.context.evaluator("double")
        features, (start, stop) = self.context.block_features(block, "double"), self.context.bounds(block)
        rank = triangle.features.n
        total = np.zeros((rank, rank), order="F")
        for first in range(0, stop - start, PIECE_ROWS):
            last = min(first + PIECE_ROWS, stop - start)
            columns = triangle.columns(evaluator, features.slice(first, last))
            for scale in (self.scale, roots):
                if scale is not None:
                    columns *= scale[start + first : start + last]
            blas("syrk", b"L", b"N", rank, last - first, 1.0, columns, rank, 1.0, total, rank)
        total += np.tril(total, -1).T
        return total

    def against_landmarks(self, block: int, vectors: FloatArray) -> FloatArray:
        """K_Ib V_b: (R, t) float64."""
        features = self.context.block_features(block, "double")
        return self.context.evaluator("double").matmat(self.triangle().features, features, self.scaled(block, vectors))

    def from_landmarks(self, block: int, weights: FloatArray) -> FloatArray:
        """K_bI B for B (R, t): (rows, t) float64."""
        features = self.context.block_features(block, "double")
        return self.scaled(block, self.context.evaluator("double").matmat(features, self.triangle().features, weights))

    def scaled(self, block: int, rows: FloatArray) -> FloatArray:
        """Rows of a block times those of `scale`."""
        return rows if self.scale is None else rows * self.scale[slice(*self.context.bounds(block)), None]


@needs_one_arithmetic
def gram_task(factor: _FactorContext, roots: FloatArray | None, blocks: list[int]) -> list[FloatArray]:
    """F_b' W_b F_b for each block, of the roots of all weights (n,): (R, R) float64."""
    if not factor.held:
        return [factor.passing_gram(block, roots) for block in blocks]
    if roots is None:
        return [factor.block(block).gram() for block in blocks]
    return [factor.block(block).gram(roots[slice(*factor.context.bounds(block))]) for block in blocks]


@needs_one_arithmetic
def project_task(factor: _FactorContext, vectors: dict[int, FloatArray], blocks: list[int]) -> list[FloatArray]:
    """F_b' V_b for each block, or K_Ib V_b where F is not held: (R, t) float64."""
    if factor.held:
        return [factor.block(block).project(vectors[block]) for block in blocks]
    return [factor.against_landmarks(block, vectors[block]) for block in blocks]


@needs_one_arithmetic
def expand_task(factor: _FactorContext, weights: FloatArray, blocks: list[int]) -> list[FloatArray]:
    """F_b Z for each block, or K_bI Z where F is not held: (rows, t) float64."""
    if factor.held:
        return [factor.block(block).expand(weights) for block in blocks]
    return [factor.from_landmarks(block, weights) for block in blocks]


class LowRankFactor:
    """F F' of the samples `landmarks` (R,), spread over the workers of the operator's executor."""

    def __init__(self, operator: BlockedKernelOperator, landmarks: IndexArray) -> None:
        context, noise = operator.context, operator.noise
        # Rows of F are multiplied by it where the operator's noise is by sample.
        self.scale = None if isinstance(noise, float) else np.sqrt(operator.noise_variance / noise)
        # One run may have factors of several noises, of the same landmarks or others.
        drawn = np.asarray(landmarks).tobytes() + (b"" if self.scale is None else self.scale.tobytes())
        label = f"factor-{len(landmarks)}-{hashlib.sha256(drawn).hexdigest()[:16]}"
        self._factor = _FactorContext(context, operator.inputs(landmarks), label, self.scale)
        self._operator, self._executor = operator, operator.executor
        self._bounds = [context.bounds(block) for block in range(context.n_blocks)]
        self.n, self.rank = context.n, len(landmarks)

    def gram(self, weights: FloatArray | None = None) -> FloatArray:
        """F' W F for weights (n,) that are not negative, of one each by default: (R, R)."""
        roots = None if weights is None else np.sqrt(weights)
        total = np.zeros((self.rank, self.rank), order="F")
        # A few blocks at a time: each answer is a matrix.
        for group in split_evenly(
            range(len(self._bounds)), -(-len(self._bounds) // max(1, self._executor.parallelism))
        ):
            parts = self._operator.submit(
                "kgram", gram_task, (self._factor, roots), [[block] for block in group]
            ).result()
            for part in parts:
                total += part
            self._operator.tell("factor", group[-1] + 1, len(self._bounds), "blocks")
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
        return total if self._factor.held else whiten(self._factor.triangle().lower, total, transposed=False)

    def expand(self, weights: FloatArray) -> FloatArray:
        """F Z for Z (R, t): (n, t)."""
        if not self._factor.held:
            weights = whiten(self._factor.triangle().lower, weights, transposed=True)
        parts = self._operator.submit("kexpand", expand_task, (self._factor, weights), self._groups()).result()
        return np.concatenate(parts)

    def _groups(self) -> list[list[int]]:
        return split_evenly(range(len(self._bounds)), self._executor.parallelism)

    def _rows_of(self, vectors: FloatArray, blocks: list[int]) -> dict[int, FloatArray]:
        return {block: vectors[slice(*self._bounds[block])] for block in blocks}


class LowRankPreconditioner:
    """M^-1 for the noise s2, the least where the factor's rows are scaled by the noise of each sample.

    `lower` is the Cholesky factor of F'F + s2 I (R, R), in Fortran order, where it is known; its type is that of z.
    `second_step` is kept for whom it may concern: about how long conjugate gradients' second step is beside the first.
    """

    def __init__(
        self,
        factor: LowRankFactor | FactorRows | LandmarkRows,
        noise_variance: float,
        lower: NDArray[Any] | None = None,
        second_step: float = math.inf,
    ) -> None:
        self._factor, self._noise_variance, self.second_step = factor, noise_variance, second_step
        scale = factor.scale if isinstance(factor, LowRankFactor) else None
        self._scale = None if scale is None else scale[:, None]
        if lower is None:
            assert not isinstance(factor, LandmarkRows), "needs `lower`"
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

    def projected(self, residual: NDArray[Any]) -> tuple[FloatArray, NDArray[Any]]:
        """F' r for r (n, t), and the z that it comes to, where noise is one number: (R, t) each."""
        projected = self._factor.project(residual)
        return projected, self.weights(projected)

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
