"""Predictions of a sparse model with neighbours: of new samples, each by itself behind the samples nearest to it.

A new sample is a leaf of one behind its halo J, of all samples: with C = (K - F F')_JJ + S, A = C^-1 (K - F F')_J* and
w = F_* - F_J'A, what is known of the basis' part, its mean z and covariance B^-1, gives the function at it

    mean = A'Y_J + w'z,      variance = k_** - |F_*|^2 - A'(K - F F')_J* + w'B^-1 w.

Where halos are everything these are the exact model's; without them, FITC's.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.threads import single_threaded_blas
from dkgp.kernels import Features, Kernel
from dkgp.models.sparse.vif.leaf import factor_leaf
from dkgp.models.sparse.vif.objective import LEAF, Neighbourhood, Neighbours
from dkgp.models.sparse.vif.tasks import refuse_leaf
from dkgp.operators.base import FloatArray, IndexArray, Noise, noise_at
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.inputs import ArrayInputs
from dkgp.operators.low_rank.landmark_rows import whiten
from dkgp.operators.vecchia.embedding import embed, embed_inputs
from dkgp.operators.vecchia.halos import OrderedPoints, kd_order

# Of new samples that are worked on together, neighbours of each other: how many at most, and numbers of their F.
TOGETHER, ROOM = 64, 1 << 21


@dataclass(frozen=True)
class Near:
    """What predictions take beside the basis: the samples, and what they all say of the basis' part."""

    inputs: FloatArray  # (n, d): standardised
    targets: FloatArray  # (n, p)
    noise: Noise  # of the samples
    size: int  # neighbours of a new sample, at most
    whitened: FloatArray  # z: (m, p)
    normal: FloatArray  # lower Cholesky factor of B: (m, m), Fortran order
    embedding: FloatArray | None = None  # landmarks (e, d) of `dkgp.operators.vecchia.embedding`

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays, and of the samples' points."""
        arrays = (self.inputs, self.targets, self.whitened, self.normal)
        return sum(array.nbytes for array in arrays) + points_bytes(*self.inputs.shape)


def points_bytes(n: int, d: int) -> int:
    """Bytes of the points of n samples in kd order, and of their order."""
    return n * (4 * d + 8)


def rows_together(size: int, m: int) -> int:
    """New samples that are worked on together, behind as many neighbours each."""
    return max(1, min(TOGETHER, ROOM // max(1, size * m)))


def near_task_bytes(size: int, d: int, m: int, p: int) -> int:
    """Bytes of new samples that are worked on together."""
    rows = rows_together(size, m) * (size + 1)
    return 8 * rows * (3 * (m + p) + 5 * d) + 8 * 6 * (size + 1) ** 2


def fit_near(
    operator: BlockedKernelOperator, targets: FloatArray, basis: FloatArray, neighbours: Neighbours
) -> tuple[Near, float]:
    """Fit a basis (m, d) with neighbours to standardised targets (n, p); return also the log likelihood, in nats.

    A new sample gets as many neighbours as a leaf and its halo have together. Raises `NumericalError`: rounding exceeds
    the noise variance.
    """
    n, source = operator.n, operator.context.source
    held = Neighbourhood(operator, neighbours)
    joint = held.joint(operator, held.described(operator, basis), targets)
    size = min(n, neighbours.leaf + neighbours.halo)
    # As a store has them: another order of numbers in memory would be other bits of sums.
    inputs, targets, whitened = map(np.ascontiguousarray, (source.inputs(0, n), targets, joint.whitened))
    return Near(inputs, targets, operator.noise, size, whitened, joint.normal, held.leaves.embedding), joint.value


class NearPredictor:
    """Predicts rows in memory by a basis, its L (m, m), and what is near."""

    def __init__(self, kernel: Kernel, prototypes: FloatArray, lower: FloatArray, near: Near) -> None:
        self._near, self._lower = near, lower
        self._context = BlockContext(f"near-{uuid.uuid4().hex}", ArrayInputs(near.inputs), kernel, len(near.inputs))
        try:
            points = embed(self._context, near.embedding)
        finally:
            worker_cache().discard_run(self._context.run_id)
        order, bounds = kd_order(points, LEAF)
        self._points = OrderedPoints(points[order], order, bounds)
        self._evaluator = self._context.evaluator("double")
        self._prototypes = self._evaluator.prepare(prototypes) if len(prototypes) else None
        # Of an observation: with its noise, no duplicate of a sample is without a variance.
        self._noise = float(np.min(near.noise))

    def __call__(self, inputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Means (r, p) and variances (r,) of the function at standardised inputs (r, d).

        Raises `NumericalError`: rounding exceeds the noise variance.
        """
        near = self._near
        mean, variance = np.empty((len(inputs), near.targets.shape[1])), np.empty(len(inputs))
        if not len(inputs):
            return mean, variance
        points = embed_inputs(self._context, near.embedding, inputs)
        order, bounds = kd_order(points, rows_together(near.size, len(near.whitened)))
        with single_threaded_blas():
            for start, stop in pairwise(bounds.tolist()):
                rows = order[start:stop]
                halos = [self._near_to(point) for point in points[rows]]
                mean[rows], variance[rows] = self._predicted(inputs[rows], halos)
        return mean, variance

    def _near_to(self, point: NDArray[np.float32]) -> IndexArray:
        return self._points.order[self._points.near(point, self._near.size)].astype(np.intp)

    def _predicted(self, inputs: FloatArray, halos: list[IndexArray]) -> tuple[FloatArray, FloatArray]:
        near, t, (rank, p) = self._near, len(inputs), self._near.whitened.shape
        samples = np.unique(np.concatenate(halos))
        features = self._evaluator.prepare(np.concatenate([near.inputs[samples], inputs]))
        known = np.concatenate([near.targets[samples], np.zeros((t, p))])
        right = np.concatenate([self._factor_rows(features), known], axis=1)
        mean, variance, means = np.empty((t, p)), np.empty(t), np.empty((t, rank))
        for number, halo in enumerate(halos):
            places = np.append(np.searchsorted(samples, halo), len(samples) + number)
            noise = np.append(np.broadcast_to(noise_at(near.noise, halo), (len(halo),)), self._noise)
            rows = right[places]
            leaf = factor_leaf(self._evaluator, features.take(places), len(halo), noise, rows, rank)
            if leaf is None:
                raise refuse_leaf(len(halo), noise)
            scale = 1.0 / leaf.rows[0, -1]
            means[number] = scale * leaf.images[0, :rank]  # w
            mean[number] = means[number] @ near.whitened - scale * leaf.images[0, rank:]
            variance[number] = max(scale * scale - self._noise, 0.0)
        if rank:
            half = scipy.linalg.solve_triangular(near.normal, means.T, lower=True, check_finite=False)
            variance += np.einsum("mi,mi->i", half, half)
        return mean, variance

    def _factor_rows(self, features: Features) -> FloatArray:
        """Rows of F for some samples: (c, m)."""
        if self._prototypes is None:
            return np.empty((features.n, 0))
        return np.asarray(whiten(self._lower, self._evaluator.tile(self._prototypes, features), transposed=False).T)
