"""Prototypes that lie apart: farthest-first traversal in two levels, and Lloyd's iterations.

The distance is the kernel's own, k(x, x) + k(z, z) - 2 k(x, z), so that length scales count; of a kernel that is a
function of a scaled distance, that distance itself, which still grows where the kernel is zero. A traversal of all
samples would wait for the workers once for every prototype. So each run of blocks has its own, and another one goes
over the samples that they chose, which keeps the radius within four times the best one's (two for one level).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.kernels import Features, Kernel, Linear, TileEvaluator
from dkgp.kernels.distance import DistanceKernel
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES, BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.operators.cross.runs import Run, piece_rows, runs_of
from dkgp.operators.cross.tasks import Prototypes
from dkgp.operators.exact_sums import RunSums
from dkgp.operators.inputs import centre_of

# Runs of blocks with a traversal of their own, at most: the choice depends on them.
MOST_TRAVERSALS = 64
# Of what k(x, x) comes to: nearer points are the same one.
LEAST_DISTANCE = 1e-12
# Candidates of a traversal: so many, or this share of all; and how many prototypes and samples meet at once.
LEAST_CANDIDATES, CANDIDATES_SHARE = 256, 32
POINTS_AT_ONCE, ROWS_AT_ONCE = 64, 1024
# Where no k(x, x) is above this, all distances are numbers.
LARGEST_PRIOR = 1e300


def farthest_first(operator: BlockedKernelOperator, size: int, seed: int | None = None) -> IndexArray:
    """Samples, at most `size`, each the farthest from those before; fewer where no others are left but duplicates.

    Every run begins with a sample drawn by the seed; without one with its first, so that data alone decide.
    """
    distance, source = distance_kernel(operator.kernel), operator.context.source
    # Products of inputs that lie far from zero would cancel.
    if distance != operator.kernel and centre_of(source) is None:
        room = DEFAULT_COORDINATOR_INPUT_BYTES if operator.holds_inputs else 0
        with BlockedKernelOperator(
            distance, 1.0, source, operator.executor, coordinator_input_bytes=room
        ) as by_distance:
            return _farthest_first(by_distance, size, seed)
    return _farthest_first(operator, size, seed)


def distance_kernel(kernel: Kernel) -> Kernel:
    """The kernel by whose distance samples are apart: x'Gz, with G the inverse squared length scales.

    Any profile of a scaled distance falls with it, so that the order of distances is the same; but far enough out the
    profile is zero, and all points are equally far.
    """
    if isinstance(kernel, DistanceKernel) and any(kernel.gamma):
        return Linear(kernel.gamma, n_features=kernel.n_features)
    return kernel


def _farthest_first(operator: BlockedKernelOperator, size: int, seed: int | None) -> IndexArray:
    groups = [[run] for run in runs_of(operator.context, {}, most=MOST_TRAVERSALS)]
    pending = operator.submit("kfarthest", farthest_task, (operator.context, size, seed), groups)
    by_run = [np.asarray(part, dtype=np.intp) for part in pending.result()]
    union = np.concatenate(by_run)
    if len(by_run) == 1:
        return union
    evaluator, features = operator.double, operator.features(union, "double")
    prior = np.asarray(operator.kernel.diagonal(operator.inputs(union)), dtype=np.float64)
    return union[_traverse(evaluator, [features], prior, size, 0)]


def farthest_task(context: BlockContext, size: int, seed: int | None, runs: list[Run]) -> list[list[int]]:
    """Samples of each run, in the order of the traversal."""
    evaluator, results = context.evaluator("double"), []
    for run in runs:
        parts = [context.block_features(block, "double") for block in run.blocks]
        rows = [context.source.inputs(*context.bounds(block)) for block in run.blocks]
        prior = np.concatenate([np.asarray(context.kernel.diagonal(some), dtype=np.float64) for some in rows])
        first = context.bounds(run.blocks[0])[0]
        place = 0 if seed is None else int(_draws(seed, first).integers(len(prior)))
        results.append([first + place for place in _traverse(evaluator, parts, prior, size, place)])
    return results


def _draws(seed: int, first: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, first])))


@dataclass
class _Candidates:
    """Samples that the next prototype is among, of `members` (c,) in order: their rows by part, and k(x, x).

    - `values` (c,): squared distances to the nearest prototype.
    - `threshold`: all other samples are nearer than that to one.
    """

    members: IndexArray
    rows: list[Features]
    prior: FloatArray
    values: FloatArray
    threshold: float


# Where k(x, x) overflows no distance is a number, and no sample the farthest.
@np.errstate(over="ignore", invalid="ignore")
def _traverse(evaluator: TileEvaluator, parts: list[Features], prior: FloatArray, size: int, place: int) -> list[int]:
    """Places of the samples of a traversal that begins at `place`, in its order.

    Distances to the nearest prototype only fall. So the farthest of a few candidates, those that were farthest when
    they were picked out, is the farthest of all until it is nearer than they were then; only then are distances of the
    others made up for, to all prototypes since at once: the same samples, in the same order, as looking at all of them
    for every one (Minoux 1978 of greedy choices).
    """
    n, places = len(prior), [place]
    starts = np.cumsum([0, *(part.n for part in parts)])
    nearest = np.full(n, np.inf)
    few = max(LEAST_CANDIDATES, n // CANDIDATES_SHARE)
    # What is no number is seen by no comparison.
    lazily = few < n and bool(prior.max() < LARGEST_PRIOR)
    near = _Candidates(np.arange(n, dtype=np.intp), parts, prior, nearest.copy(), np.inf if lazily else -np.inf)
    since = 0
    while len(places) < min(size, n):
        place = places[-1]
        part = int(np.searchsorted(starts, place, side="right")) - 1
        point = parts[part].take(np.asarray([place - starts[part]], dtype=np.intp))
        column = np.concatenate([np.asarray(evaluator.tile(some, point))[:, 0] for some in near.rows])
        np.minimum(near.values, near.prior + prior[place] - 2.0 * column, out=near.values)
        near.values[np.searchsorted(near.members, place)] = 0.0
        best = int(np.argmax(near.values))
        if near.values[best] < near.threshold:
            if len(near.members) < n:
                _make_up(evaluator, parts, prior, nearest, np.asarray(places[since:], dtype=np.intp))
            nearest[near.members], since = near.values, len(places)
            near = _farthest(parts, prior, nearest, few)
            best = int(np.argmax(near.values))
        place = int(near.members[best])
        if not near.values[best] > LEAST_DISTANCE * prior[place]:
            break
        places.append(place)
    return places


def _make_up(
    evaluator: TileEvaluator, parts: list[Features], prior: FloatArray, nearest: FloatArray, places: IndexArray
) -> None:
    """Lower squared distances (n,) to those to further prototypes, in place."""
    starts = np.cumsum([0, *(part.n for part in parts)])
    owner = np.searchsorted(starts, places, side="right") - 1
    for holder in np.unique(owner):
        here = places[owner == holder]
        for first in range(0, len(here), POINTS_AT_ONCE):
            some = here[first : first + POINTS_AT_ONCE]
            points = parts[holder].take(some - starts[holder])
            for part, start in zip(parts, starts, strict=False):
                for begin in range(0, part.n, ROWS_AT_ONCE):
                    end = min(begin + ROWS_AT_ONCE, part.n)
                    where = slice(start + begin, start + end)
                    squares = np.add.outer(prior[some], prior[where])
                    squares -= 2.0 * np.asarray(evaluator.tile(part.slice(begin, end), points)).T
                    np.minimum(nearest[where], squares.min(axis=0), out=nearest[where])


def _farthest(parts: list[Features], prior: FloatArray, nearest: FloatArray, few: int) -> _Candidates:
    """Samples that are as far as the `few`-th farthest from all prototypes, or farther."""
    threshold = float(np.partition(nearest, len(nearest) - few)[len(nearest) - few])
    members = np.flatnonzero(nearest >= threshold)
    starts = np.cumsum([0, *(part.n for part in parts)])
    by_part = [
        part.take(members[(members >= start) & (members < start + part.n)] - start)
        for part, start in zip(parts, starts, strict=False)
    ]
    return _Candidates(members, [rows for rows in by_part if rows.n], prior[members], nearest[members], threshold)


def moved_centres(cross: CrossKernel) -> FloatArray:
    """Means of the samples that are nearest to each prototype, itself where it has none: (m, d). n m entries."""
    totals, counts = cross.sums("klloyd", "centres", lloyd_task).sums
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
