"""Bases by name: which samples, or points, a sparse model stands on.

| name | chosen |
|---|---|
| uniform | at random |
| pivoted | in proportion to the residual of k(x, x): randomly pivoted Cholesky |
| variance | at the largest residual of k(x, x) |
| k-centre | the farthest from those before, by the kernel's own distance |
| k-means | centres of Lloyd's iterations, which are no samples |
| entropy | to raise the quadratic Renyi entropy, one swap after the other |
| greedy | by the targets: the decrease of the risk (`dkgp.solvers.greedy_basis`) |
| given | by their user |

pivoted, variance and the seeds of k-means look at a random part of the samples; none looks at the targets but greedy.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential, TileEvaluator
from dkgp.models.sparse.model import Basis
from dkgp.operators.base import FloatArray, IndexArray, check_indices
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel, farthest_first, moved_centres
from dkgp.operators.low_rank.pivots import LEAST_PIVOT, PIVOTS_A_STEP, RandomlyPivotedCholesky, stand_in

LLOYD_ITERATIONS = 10
# Swaps that are tried for each sample of an entropy basis, and candidates that are looked at together.
SWAPS_PER_SAMPLE, CANDIDATES_AT_ONCE = 20, 256


def blind_basis(operator: BlockedKernelOperator, name: str, size: int, seed: int = 0) -> Basis:
    """Choose a basis without the targets.

    `name`: one of `BLIND_BASES`. `size`: m; fewer samples are returned where others would be duplicates, or of the
    others' span as far as float64 tells.

    Raises `InputError`: an unknown name, or a size that is not in 1..n.
    """
    check_basis_name(name)
    if not 1 <= size <= operator.n:
        raise InputError(f"a basis has 1 to {operator.n:,} samples here; got {size:,}")
    with single_threaded_blas():
        return BLIND_BASES[name](operator, size, np.random.default_rng(seed))


def check_basis_name(name: str) -> None:
    """Refuse a name that is neither in `BLIND_BASES` nor greedy; `InputError` lists the names."""
    if name not in (*BLIND_BASES, "greedy"):
        raise InputError(f"unknown basis {name!r}; there are {', '.join((*BLIND_BASES, 'greedy'))}, or given samples")


def given_basis(operator: BlockedKernelOperator, basis: IndexArray | FloatArray) -> Basis:
    """The basis of a user: sample numbers (m,), or standardised inputs (m, d).

    Raises `InputError`: numbers of no sample, values that are not finite, or a point given twice.
    """
    if np.issubdtype(basis.dtype, np.integer):
        indices = np.asarray(basis, dtype=np.intp)
        check_indices(operator.n, indices)
        inputs = operator.inputs(indices)
        _require_distinct(inputs)
        return Basis(inputs, indices)
    inputs = CrossKernel(operator, basis).prototypes
    _require_distinct(inputs)
    return Basis(inputs)


def _require_distinct(inputs: FloatArray) -> None:
    _, first, counts = np.unique(inputs, axis=0, return_index=True, return_counts=True)
    if counts.max() > 1:
        twice = inputs[first[int(np.argmax(counts))]]
        rows = np.flatnonzero((inputs == twice).all(axis=1))[:2]
        raise InputError(
            f"rows {rows[0]} and {rows[1]} of the basis are the same point: {len(first):,} of {len(inputs):,} are "
            "distinct. Give each once"
        )


def _samples(operator: BlockedKernelOperator, indices: IndexArray) -> Basis:
    return Basis(operator.inputs(indices), indices)


def _uniform(operator: BlockedKernelOperator, size: int, rng: np.random.Generator) -> Basis:
    order = rng.permutation(operator.n).astype(np.intp)
    drawn = min(operator.n, 2 * size + 64)
    while True:
        # A few more than are needed, for those that are duplicates; twice as many where most of them are.
        _, first = np.unique(operator.inputs(order[:drawn]), axis=0, return_index=True)
        if len(first) >= size or drawn == operator.n:
            return _samples(operator, order[np.sort(first)[:size]])
        drawn = min(operator.n, 2 * drawn)


def _part(operator: BlockedKernelOperator, size: int, rng: np.random.Generator) -> tuple[IndexArray, FloatArray]:
    """Samples that stand for all, and their inputs."""
    subset = stand_in(operator.n, size, rng)
    return subset, operator.inputs(subset)


def _pivoted(operator: BlockedKernelOperator, size: int, rng: np.random.Generator) -> Basis:
    subset, inputs = _part(operator, size, rng)
    evaluator = operator.double
    prior = np.asarray(operator.kernel.diagonal(inputs), dtype=np.float64)
    # Whole draws: so a larger basis begins with a smaller one, if both are drawn from the same number of samples.
    most = min(size + PIVOTS_A_STEP, len(subset))
    factor = RandomlyPivotedCholesky(evaluator, evaluator.prepare(inputs), prior, most, rng)
    while factor.rank < size and not factor.complete:
        factor.extend()
    return _samples(operator, subset[factor.pivots[:size]])


def _variance(operator: BlockedKernelOperator, size: int, rng: np.random.Generator) -> Basis:
    subset, inputs = _part(operator, size, rng)
    evaluator, features = operator.double, operator.double.prepare(inputs)
    residual = np.array(operator.kernel.diagonal(inputs), dtype=np.float64)
    # Where k(x, x) is zero, nothing is left to explain.
    prior, rows = np.where(residual > 0.0, residual, np.inf), np.zeros((min(size, len(subset)), len(subset)))
    pivots: list[int] = []
    while len(pivots) < len(rows):
        place = int(np.argmax(residual / prior))
        if not residual[place] > LEAST_PIVOT * prior[place]:
            break
        k = len(pivots)
        column = np.asarray(evaluator.tile(features, features.take(np.asarray([place]))))[:, 0]
        rows[k] = (column - rows[:k, place] @ rows[:k]) / np.sqrt(residual[place])
        residual = np.maximum(residual - rows[k] ** 2, 0.0)
        residual[place] = 0.0
        pivots.append(place)
    return _samples(operator, subset[pivots])


def _k_centre(operator: BlockedKernelOperator, size: int, rng: np.random.Generator) -> Basis:
    return _samples(operator, farthest_first(operator, size))


def _k_means(operator: BlockedKernelOperator, size: int, rng: np.random.Generator) -> Basis:
    subset, inputs = _part(operator, size, rng)
    evaluator, features = operator.double, operator.double.prepare(inputs)
    prior = np.asarray(operator.kernel.diagonal(inputs), dtype=np.float64)
    # Seeds in proportion to the squared distance from those before.
    nearest, seeds = np.full(len(subset), np.inf), [int(rng.integers(len(subset)))]
    while len(seeds) < min(size, len(subset)):
        place = seeds[-1]
        column = np.asarray(evaluator.tile(features, features.take(np.asarray([place]))))[:, 0]
        nearest = np.maximum(np.minimum(nearest, prior + prior[place] - 2.0 * column), 0.0)
        nearest[place] = 0.0
        total = np.cumsum(nearest)
        if not total[-1] > 0.0:
            break
        seeds.append(int(np.searchsorted(total, rng.uniform(0.0, total[-1]), side="right").clip(max=len(subset) - 1)))
    centres = np.unique(inputs[seeds], axis=0)
    for _ in range(LLOYD_ITERATIONS):
        moved = moved_centres(CrossKernel(operator, centres))
        if np.array_equal(moved, centres):
            break
        centres = moved
    return Basis(np.unique(centres, axis=0))


def _entropy(operator: BlockedKernelOperator, size: int, rng: np.random.Generator) -> Basis:
    """H = -log(1' K_h 1 / m^2), K_h of a density's width, not the model's: Silverman's for each feature."""
    indices = np.asarray(_uniform(operator, size, rng).indices)
    drawn = rng.choice(operator.n, min(operator.n, SWAPS_PER_SAMPLE * len(indices)), replace=False).astype(np.intp)
    spread = operator.inputs(stand_in(operator.n, len(indices), rng)).std(axis=0)
    d = operator.kernel.n_features
    width = np.where(spread > 0.0, spread, 1.0) * operator.n ** (-1.0 / (d + 4))
    # sqrt(2) h: exp(-(x - x')^2 / (4 h^2)).
    evaluator = TileEvaluator(SquaredExponential(tuple((0.25 / width**2).tolist())), "double")
    members, basis = indices.copy(), evaluator.prepare(operator.inputs(indices))
    sums = np.asarray(evaluator.tile(basis, basis)).sum(axis=1)  # sum_j k(z_i, z_j), itself among them
    for start in range(0, len(drawn), CANDIDATES_AT_ONCE):
        candidates = drawn[start : start + CANDIDATES_AT_ONCE]
        features = evaluator.prepare(operator.inputs(candidates))
        tile = np.array(evaluator.tile(features, basis))
        for row, sample in enumerate(candidates):
            out = int(rng.integers(len(members)))
            # k(z, z) = 1, so only the entries between points change.
            gain = (sums[out] - 1.0) - (tile[row].sum() - tile[row, out])
            # A point of the basis would only add weight.
            if not gain > 0.0 or tile[row].max() >= 1.0:
                continue
            point = features.take(np.asarray([row]))
            gone = np.asarray(evaluator.tile(basis, basis.take(np.asarray([out]))))[:, 0]
            sums += tile[row] - gone
            sums[out] = tile[row].sum() - tile[row, out] + 1.0
            basis.put(out, point)
            tile[:, out] = np.asarray(evaluator.tile(features, point))[:, 0]
            members[out] = sample
    return _samples(operator, members)


BLIND_BASES: dict[str, Callable[[BlockedKernelOperator, int, np.random.Generator], Basis]] = {
    "uniform": _uniform,
    "pivoted": _pivoted,
    "variance": _variance,
    "k-centre": _k_centre,
    "k-means": _k_means,
    "entropy": _entropy,
}
