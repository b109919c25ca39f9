"""Points whose Euclidean distances tell how much two samples have to do with each other.

Of a kernel that is one function of one distance they are its prepared features. Elsewhere (sums and products of several
distances, dot products, a user's function) they are rows of a partial Cholesky factor of modest rank, each divided by
sqrt k(x, x): their distances are nearly the kernel's own, |phi(x)/|phi(x)| - phi(x')/|phi(x')||.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dkgp.kernels import TileEvaluator
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.low_rank.pivots import RandomlyPivotedCholesky, counted, stand_in
from dkgp.operators.low_rank.products import LandmarkTriangle

# Landmarks of an embedding: enough for distances between samples, not for the kernel itself.
EMBEDDING_RANK = 48
_SEED = 0


def is_one_distance(evaluator: TileEvaluator) -> bool:
    """Return whether the kernel is a function of one distance, that between its prepared features, of at least one."""
    features = evaluator.prepare(np.zeros((1, evaluator.kernel.n_features)))
    return int(evaluator.program[0, 0]) == 1 and features.squared_norms.shape[0] == 1 and len(features.values) > 0


def embedding_landmarks(operator: BlockedKernelOperator) -> FloatArray | None:
    """Inputs (e, d) of samples that the embedding is built on; None where it is the features themselves."""
    if is_one_distance(operator.single):
        return None
    rng = np.random.default_rng(_SEED)
    inputs = operator.inputs(stand_in(operator.n, EMBEDDING_RANK, rng))
    prior = np.asarray(operator.kernel.diagonal(inputs), dtype=np.float64)
    factor = RandomlyPivotedCholesky(
        operator.double, operator.double.prepare(inputs), prior, min(EMBEDDING_RANK, len(inputs)), rng
    )
    while not factor.complete:
        factor.extend()
    return inputs[factor.pivots]


def embed(context: BlockContext, landmarks: FloatArray | None) -> NDArray[np.float32]:
    """Points of all samples, in their order: (n, e)."""
    blocks = range(context.n_blocks)
    if landmarks is None:
        features = [context.block_features(block, "single") for block in blocks]
        return np.concatenate([rows.values[:, : rows.n].T for rows in features])
    evaluator = context.evaluator("double")
    triangle = LandmarkTriangle.of(evaluator, landmarks)
    largest = float(context.kernel.diagonal(landmarks).max())
    points = np.empty((context.n, len(landmarks)), np.float32)
    for block in blocks:
        start, stop = context.bounds(block)
        inputs = context.source.inputs(start, stop)
        prior = counted(np.asarray(context.kernel.diagonal(inputs), dtype=np.float64), largest)
        columns = triangle.columns(evaluator, context.block_features(block, "double"))
        points[start:stop] = (columns / np.sqrt(prior)).T
    return points


def embed_inputs(context: BlockContext, landmarks: FloatArray | None, inputs: FloatArray) -> NDArray[np.float32]:
    """Points of standardised inputs (t, d) that are no samples: (t, e)."""
    if landmarks is None:
        features = context.evaluator("single").prepare(inputs)
        return np.ascontiguousarray(features.values[:, : features.n].T)
    evaluator = context.evaluator("double")
    largest = float(context.kernel.diagonal(landmarks).max())
    prior = counted(np.asarray(context.kernel.diagonal(inputs), dtype=np.float64), largest)
    columns = LandmarkTriangle.of(evaluator, landmarks).columns(evaluator, evaluator.prepare(inputs))
    with np.errstate(over="ignore", invalid="ignore"):
        points = np.ascontiguousarray((columns / np.sqrt(prior)).T, dtype=np.float32)
    # Where k(x, x) overflows, no neighbour is nearer than another.
    return np.nan_to_num(points, nan=0.0, posinf=0.0, neginf=0.0)
