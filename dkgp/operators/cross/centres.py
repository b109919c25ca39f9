"""Prototypes that lie apart: farthest-first traversal in two levels, and Lloyd's iterations.

The distance is the kernel's own, k(x, x) + k(z, z) - 2 k(x, z), so that length scales count. A traversal of all samples
would wait for the workers once for every prototype: each run of blocks has its own, and another one goes over what
they chose, which keeps the radius within four times the best one's (two for one level).
"""

from __future__ import annotations

import numpy as np

from dkgp.kernels import Features, TileEvaluator
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.operators.cross.runs import Run, RunSums, piece_rows, runs_of
from dkgp.operators.cross.tasks import Prototypes

__all__ = ["farthest_first", "lloyd_task", "moved_centres"]

# Of what k(x, x) comes to: nearer points are the same one.
LEAST_DISTANCE = 1e-12


def farthest_first(operator: BlockedKernelOperator, size: int) -> IndexArray:
    """Samples, at most `size`, each the farthest from those before; fewer where no others are left but duplicates.

    The first sample of every run begins, so the choice depends on the data alone.
    """
    groups = runs_of(operator.context, {})
    pending = operator.submit("kfarthest", farthest_task, (operator.context, size), groups)
    found = [np.asarray(part, dtype=np.intp) for part in pending.result()]
    union = np.concatenate(found)
    if len(found) == 1:
        return union
    evaluator, features = operator.double, operator.features(union, "double")
    prior = np.asarray(operator.kernel.diagonal(operator.inputs(union)), dtype=np.float64)
    return union[_traverse(evaluator, [features], prior, size)]


def farthest_task(context: BlockContext, size: int, runs: list[Run]) -> list[list[int]]:
    """Samples of each run, in the order of the traversal."""
    evaluator, results = context.evaluator("double"), []
    for run in runs:
        parts = [context.block_features(block, "double") for block in run.blocks]
        rows = [context.source.inputs(*context.bounds(block)) for block in run.blocks]
        prior = np.concatenate([np.asarray(context.kernel.diagonal(some), dtype=np.float64) for some in rows])
        first = context.bounds(run.blocks[0])[0]
        results.append([first + place for place in _traverse(evaluator, parts, prior, size)])
    return results


def _traverse(evaluator: TileEvaluator, parts: list[Features], prior: FloatArray, size: int) -> list[int]:
    starts = np.cumsum([0, *(part.n for part in parts)])
    nearest = np.full(len(prior), np.inf)
    chosen, place = [], 0
    while True:
        chosen.append(place)
        if len(chosen) == min(size, len(prior)):
            return chosen
        part = int(np.searchsorted(starts, place, side="right")) - 1
        point = parts[part].take(np.asarray([place - starts[part]], dtype=np.intp))
        column = np.concatenate([np.asarray(evaluator.tile(some, point))[:, 0] for some in parts])
        np.minimum(nearest, prior + prior[place] - 2.0 * column, out=nearest)
        nearest[place] = 0.0
        place = int(np.argmax(nearest))
        if not nearest[place] > LEAST_DISTANCE * prior[place]:
            return chosen


def moved_centres(cross: CrossKernel) -> FloatArray:
    """Means of the samples that are nearest to each prototype, itself where it has none: (m, d). n m entries."""
    found = cross.sums("klloyd", "centres", lloyd_task)
    totals, counts = found.sums
    empty = counts == 0.0
    return np.where(empty[:, None], cross.prototypes, totals / np.where(empty, 1.0, counts)[:, None])


def lloyd_task(prototypes: Prototypes, runs: list[Run]) -> list[RunSums]:
    """Sums of the inputs that are nearest to each prototype, and their number: (m, d) and (m,)."""
    context, m = prototypes.context, prototypes.count
    evaluator, features = context.evaluator("double"), prototypes.features()
    half = 0.5 * np.asarray(context.kernel.diagonal(prototypes.inputs), dtype=np.float64)
    results = []
    for run in runs:
        inputs = np.concatenate([context.block_rows_cached(block).values for block in run.blocks])
        totals, counts = np.zeros((m, inputs.shape[1])), np.zeros(m)
        for rows, where in run.pieces(context, "double", piece_rows(m)):
            nearest = np.argmax(np.asarray(evaluator.tile(features, rows)).T - half, axis=1)
            counts += np.bincount(nearest, minlength=m)
            for feature in range(inputs.shape[1]):
                totals[:, feature] += np.bincount(nearest, weights=inputs[where, feature], minlength=m)
        results.append(RunSums((totals, counts)))
    return results
