"""Intervals of the variances at a tile of neighbouring test points.

With v on the samples S near the tile and b on some points z_j near it, f = k(x, .) - sum v_j k(., x_j) - g:

    u = k(x, x) - v'(k_x + r),   r = k_x - Kbar v,   V = u - r' Kbar^-1 r,
    r' Kbar^-1 r <= sum_i (r_i - g(x_i))^2 / n_i + b' C_ZZ b,   g = sum b_j k(., z_j),

which holds for all v, b and z_j (docs/proofs.md, "By neighbours"). The sum is over all samples: those near the tile
enter one by one. Outside of S, r - g is f. Further off f is taken from its values at Chebyshev points of the tile's
box, and the samples of whole boxes from the box's weighted points.

A run cuts each batch into tiles of neighbouring test points, and bounds each tile by itself.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import scipy

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import PendingRound
from dkgp.errors import InputError, MemoryBudgetError
from dkgp.models.rounding import EPS, EVALUATION, UNIT, highest_prior
from dkgp.models.sums import NoisySupport
from dkgp.models.variance.batch import BatchVariance, ProductTally, VarianceBounds
from dkgp.models.variance.neighbours.samples import (
    Boxes,
    Distances,
    Samples,
    basis,
    basis_error,
    held_bytes,
    nodes,
    plain_context,
    position_error,
)
from dkgp.models.variance.run import REGIONS, UNPROVEN, Ends, Parts, Request, VarianceRun
from dkgp.models.variance.settings import TestRows
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.registry import byte_text

# Chebyshev points of a tile's box in each feature, by features.
SOURCE_ORDER = {1: 20, 2: 16, 3: 8}
# Rings of points around the samples that are solved for: distance from the middle over that of these, points a side.
RINGS = {
    1: ((0.6, 1), (0.8, 1), (0.9, 1), (1.0, 1), (1.1, 1), (1.2, 1), (1.5, 1)),
    2: ((0.8, 6), (1.0, 6), (1.2, 6), (1.5, 5)),
    3: ((0.8, 3), (1.05, 4), (1.4, 3)),
}
# Of the width that is asked for, the most that far samples' approximation may take.
FAR_SHARE = 0.015
# Boxes that share it.
BOXES = {1: 25.0, 2: 100.0, 3: 400.0}
PIECE = 1024
# Samples that are taken one by one at most, besides those that are solved for, by features: in three, expansions
# replace few. Where they are more, expansions may be off by so many times more, up to so often; after that there is no
# lower end.
MOST_BESIDE = {1: 60_000, 2: 60_000, 3: 200_000}
LOOSER, LOOSENED = 10.0, 6
# Samples and points beside that b is found from, spread over all of them: a thread holds their values, 3 kB each, and
# adds the others up in pieces.
MOST_FITTED = 2560
JITTER = 1e-12


@dataclass(frozen=True)
class TileEnds:
    """Bounds of the function's variance at test points: (t,) each.

    `loosened`: True if too many samples were near for an approximation of the others that is as good as asked for.
    """

    lower: FloatArray
    upper: FloatArray
    loosened: bool = False


@dataclass(frozen=True)
class _Split:
    """Boxes of samples.

    Attributes
    ----------
    beside : (c,)
        Near leaves, whose samples are taken one by one.
    near : (c,)
        Near boxes that are taken by their weighted points.
    single, whole : (c,)
        Far leaves, and far boxes that are taken by their points.
    near_error, error : float
        As that of `_Far`: of the near boxes and of the far ones.
    """

    beside: IndexArray
    near: IndexArray
    single: IndexArray
    whole: IndexArray
    near_error: float
    error: float


@dataclass(frozen=True)
class _Far:
    """Samples that are taken at Chebyshev points of the tile's box.

    Attributes
    ----------
    matrix : (q, q)
        Sum of w k k' over the far samples and points.
    mass : float
        Sum of w.
    error : float
        Bound of the root of sum w (f - its approximation)^2, for weights of f whose sizes add up to one.
    """

    matrix: FloatArray
    mass: float
    error: float
    count: int


@dataclass(frozen=True)
class Tile:
    """Test points of a tile and all samples.

    Attributes
    ----------
    samples : Samples
    points : (t, k)
        Active features of the test points.
    prior, row_error : float
        Upper bound of k(x, x); greatest `TileEvaluator.row_errors` of the test points.
    """

    samples: Samples
    points: FloatArray
    prior: float
    row_error: float

    @classmethod
    def of(cls, samples: Samples, inputs: FloatArray) -> Tile:
        """Make a tile of standardised inputs (t, d)."""
        kernel = samples.distances.kernel
        prior = highest_prior(kernel, np.asarray(kernel.diagonal(inputs[:1]), dtype=np.float64))
        errors = samples.evaluator.row_errors(inputs)
        return cls(samples, inputs[:, list(samples.distances.features)], float(prior[0]), float(errors.max()))

    def ends(self, count: int, width: float, noise_variance: float = 0.0) -> TileEnds:
        """Bound the variances by `count` samples nearest to the tile.

        `width`: of intervals, relative to the upper end with `noise_variance` added. Far samples' approximation is as
        good as that needs; no bound takes it on trust.
        """
        samples, evaluator = self.samples, self.samples.evaluator
        near = samples.nearest(self.points.min(axis=0), self.points.max(axis=0), count)
        points, noise = samples.points[near], samples.noise[near]
        tests = evaluator.prepare(samples.rows(self.points))
        solved = evaluator.prepare(samples.rows(points))
        matrix, columns = np.asarray(evaluator.tile(solved, solved)), np.asarray(evaluator.tile(solved, tests))
        v = _solved(matrix + np.diag(noise), columns)
        residual = columns - matrix @ v - noise[:, None] * v
        ring = self._ring(points)
        corners = np.concatenate([points, self.points, ring])
        box = Boxes.around(corners.min(axis=0), corners.max(axis=0))
        entry = self._entry_error(box)
        sizes = np.abs(v).sum(axis=0)
        m, prior = len(near), self.prior
        noisy = (noise[:, None] * np.abs(v)).max(axis=0)
        off = EVALUATION * (entry * (1.0 + sizes) + (m + 6.0) * UNIT * (prior * (1.0 + sizes) + noisy))
        value = prior - np.einsum("it,it->t", v, columns) - np.einsum("it,it->t", v, residual)
        parts = np.einsum("it,it->t", np.abs(v), np.abs(columns) + np.abs(residual))
        slack = sizes * (entry + off) + (m + 6.0) * UNIT * parts + 8.0 * UNIT * (prior + np.abs(value))
        slack = EVALUATION * slack
        wanted = FAR_SHARE * width * max(float(np.median(value)) + noise_variance, 0.0)
        tolerance = np.sqrt(wanted / float(samples.mass[0])) / (1.5 + float(sizes.max()))
        loosened = False
        for _ in range(1 + LOOSENED):
            split = self._split(box, tolerance)
            if samples.count(split.beside) <= MOST_BESIDE[len(box.centre)]:
                break
            tolerance, loosened = tolerance * LOOSER, True
        else:
            return TileEnds(np.zeros(len(value)), value + slack, loosened=True)
        far = self._far(split, box)
        beside = np.setdiff1d(samples.members(split.beside), near, assume_unique=True)
        square = self._remainder((near, v, residual), (beside, ring), (split, far), box, (entry, noisy))
        below = prior * (highest_share(samples) + 4.0 * UNIT)
        return TileEnds(value - slack - below - square, value + slack, loosened)

    def _ring(self, points: FloatArray) -> FloatArray:
        """Points around the samples that are solved for, and within: (q, k)."""
        low = np.minimum(points.min(axis=0), self.points.min(axis=0))
        high = np.maximum(points.max(axis=0), self.points.max(axis=0))
        middle, half = 0.5 * (low + high), 0.5 * (high - low)
        half = np.maximum(
            half, 0.25 * float((half * self.samples.distances.metric).max()) / self.samples.distances.metric
        )
        rings = [_surface(side, points.shape[1]) * (factor * half) for factor, side in RINGS[points.shape[1]]]
        return np.asarray(middle + np.concatenate(rings))

    def _entry_error(self, box: Boxes) -> float:
        """Bound on the rounding of a kernel entry between any two of the points that a tile looks at."""
        low, high = (box.centre - box.half)[None], (box.centre + box.half)[None]
        corners = self.samples.evaluator.row_errors(self.samples.rows(np.concatenate([low, high])))
        position = position_error(self.samples.distances, low, high)
        worst = max(self.row_error, self.samples.row_error, len(box.centre) * float(corners.max()) + position)
        return EVALUATION * 2.0 * worst * EPS * self.prior

    def _split(self, box: Boxes, tolerance: float) -> _Split:
        """Tell boxes of samples that are far from the tile's box from those that are taken one by one.

        `tolerance`: largest error of an expansion, for weights of f whose sizes add up to one.
        """
        samples, width = self.samples, len(box.centre)
        order, distances = SOURCE_ORDER[width], samples.distances
        # No box with samples that are solved for is apart from the tile's box, which they lie in.
        kinds: dict[str, list[IndexArray]] = {"beside": [], "near": [], "single": [], "whole": []}
        near_square = square = 0.0
        boxes = np.array([0])
        while len(boxes):
            cells = Boxes(samples.box.centre[boxes], samples.box.half[boxes])
            # f is zero at samples beyond the support of a compact kernel.
            reached = np.flatnonzero(~distances.are_zero(cells, box))
            boxes, cells = boxes[reached], Boxes(cells.centre[reached], cells.half[reached])
            mass = samples.mass[boxes]
            # Each box may add as much as any other.
            most = tolerance * np.sqrt(samples.mass[0] / (BOXES[width] * mass))
            source = distances.errors(np.broadcast_to(box.centre, cells.centre.shape), box.half, cells, order)
            leaf, apart = samples.child[boxes] < 0, source <= most
            target = np.full(len(boxes), np.inf)
            if not leaf.all():
                target[~leaf] = distances.errors(cells.centre[~leaf], cells.half[~leaf], box, samples.order)
            by_points = target <= most
            for name, some in (
                ("beside", leaf & ~apart),
                ("near", by_points & ~apart),
                ("single", leaf & apart),
                ("whole", by_points & apart),
            ):
                kinds[name].append(boxes[some])
            roots, of_points = np.sqrt(mass), np.sqrt(samples.weights[boxes].sum(axis=1))
            with np.errstate(invalid="ignore"):
                off = roots * target
                both = off + of_points * source
            near_square += float((off[by_points & ~apart] ** 2).sum())
            # Two approximations: of samples by points, of the points by the tile's box.
            square += float(((roots * source)[leaf & apart] ** 2).sum() + (both[by_points & apart] ** 2).sum())
            inner = boxes[~leaf & ~by_points]
            boxes = np.concatenate([samples.child[inner], samples.child[inner] + 1])
        beside, near, single, whole = (np.concatenate(parts) for parts in kinds.values())
        near_error, error = float(np.sqrt(near_square)) * EVALUATION, float(np.sqrt(square)) * EVALUATION
        return _Split(beside, near, single, whole, near_error, error)

    def _far(self, split: _Split, box: Boxes) -> _Far | None:
        """Sum over far samples and points of boxes."""
        samples = self.samples
        positions = samples.members(split.single)
        points = np.concatenate([samples.points[positions], samples.box_points(split.whole)])
        if not len(points):
            return None
        masses = np.concatenate([1.0 / samples.noise[positions], samples.weights[split.whole].ravel()])
        evaluator = samples.evaluator
        sources = evaluator.prepare(samples.rows(nodes(box, SOURCE_ORDER[len(box.centre)])))
        matrix = np.zeros((sources.n, sources.n))
        for start in range(0, len(points), PIECE):
            rows = slice(start, start + PIECE)
            columns = evaluator.tile(sources, evaluator.prepare(samples.rows(points[rows])))
            columns = columns * np.sqrt(masses[rows])
            matrix += columns @ columns.T
        return _Far(matrix, float(masses.sum()) * (1.0 + len(masses) * EPS), split.error, len(points))

    def _remainder(
        self,
        solved: tuple[IndexArray, FloatArray, FloatArray],
        taken: tuple[IndexArray, FloatArray],
        apart: tuple[_Split, _Far | None],
        box: Boxes,
        errors: tuple[float, FloatArray],
    ) -> FloatArray:
        """Upper bound of r' Kbar^-1 r, with b that makes it small: (t,)."""
        samples, evaluator = self.samples, self.samples.evaluator
        (near, v, residual), (beside, ring), (entry, noisy) = solved, taken, errors
        split, far = apart
        tests = evaluator.prepare(samples.rows(self.points))
        held, rings = evaluator.prepare(samples.rows(samples.points[near])), evaluator.prepare(samples.rows(ring))
        t, q, m = len(self.points), len(ring), len(near)
        points = np.concatenate([samples.points[beside], samples.box_points(split.near)])
        masses = np.concatenate([1.0 / samples.noise[beside], samples.weights[split.near].ravel()])
        fitted = np.zeros(len(points), dtype=bool)
        fitted[:: -(-len(points) // MOST_FITTED) or 1] = True
        inverse = np.sqrt(np.concatenate([1.0 / samples.noise[near], masses[fitted]]))
        rest, smooth = np.empty((len(inverse), t)), np.empty((len(inverse), q))
        rest[:m] = residual
        smooth[:m] = evaluator.tile(held, rings)
        for start in range(0, len(inverse) - m, PIECE):
            rows = slice(m + start, min(m + start + PIECE, len(inverse)))
            some = evaluator.prepare(samples.rows(points[fitted][start : start + PIECE]))
            rest[rows] = evaluator.tile(some, tests) - evaluator.tile(some, held) @ v
            smooth[rows] = evaluator.tile(some, rings)
        rest *= inverse[:, None]
        smooth *= inverse[:, None]
        between = np.asarray(evaluator.tile(rings, rings))
        share = np.ones(len(inverse))
        share[m:] = masses.sum() / max(
            masses[fitted].sum(), UNIT
        )  # those that b is found from stand for the others too
        normal, right = between + (smooth.T * share) @ smooth, (smooth.T * share) @ rest
        moments = ring_moments = None
        if far is not None:
            order = SOURCE_ORDER[len(box.centre)]
            moments = basis(self.points, box, order).T - basis(samples.points[near], box, order).T @ v
            ring_moments = basis(ring, box, order).T
            half = far.matrix @ ring_moments
            normal = normal + ring_moments.T @ half
            right = right + half.T @ moments
        normal[np.diag_indices(q)] += JITTER * (np.trace(normal) / q + self.prior)
        b = _solved(normal, right)
        rest -= smooth @ b
        sizes = 1.0 + np.abs(v).sum(axis=0) + np.abs(b).sum(axis=0)
        ring_sizes = np.abs(b).sum(axis=0)
        terms = m + q + 8.0
        off = entry * sizes + terms * UNIT * (self.prior * sizes + noisy)
        squares, mass, both = np.einsum("it,it->t", rest, rest), float(np.sum(inverse**2)), np.concatenate([v, b])
        columns = evaluator.prepare(samples.rows(np.concatenate([samples.points[near], ring])))
        others, of_others = points[~fitted], masses[~fitted]
        for start in range(0, len(others), PIECE):
            rows = slice(start, start + PIECE)
            some = evaluator.prepare(samples.rows(others[rows]))
            f = evaluator.tile(some, tests) - evaluator.tile(some, columns) @ both
            f *= np.sqrt(of_others[rows])[:, None]
            squares += np.einsum("it,it->t", f, f)
        mass += float(np.sum(of_others))
        count = len(inverse) + len(others)
        mass *= 1.0 + (count + 4.0) * EPS
        length = np.sqrt(squares) * (1.0 + (count + 16.0) * UNIT)
        length += EVALUATION * (np.sqrt(mass) * off * (1.0 + 8.0 * UNIT) + split.near_error * sizes)
        quadratic = np.einsum("qt,qt->t", b, between @ b)
        quadratic += EVALUATION * ring_sizes**2 * (entry + 2.0 * (q + 2.0) * UNIT * self.prior)
        total = length**2 + np.maximum(quadratic, 0.0)
        if far is not None and moments is not None and ring_moments is not None:
            total += self._far_square(far, moments - ring_moments @ b, sizes, entry, m + q) ** 2
        return np.asarray(total * (1.0 + 16.0 * EPS))

    def _far_square(self, far: _Far, moments: FloatArray, sizes: FloatArray, entry: float, terms: int) -> FloatArray:
        """Upper bound of the root of sum (f(x_i))^2 / n_i over far samples: (t,)."""
        width, q = self.points.shape[1], len(moments)
        square = np.einsum("qt,qt->t", moments, far.matrix @ moments)
        roots = np.sqrt(np.diagonal(far.matrix))
        sums = PIECE + far.count / PIECE + 2.0 * q + 12.0
        square = np.maximum(square, 0.0) + EVALUATION * sums * UNIT * (roots @ np.abs(moments)) ** 2
        rounded = q * self.prior * (basis_error(SOURCE_ORDER[width], width) + (terms + 4.0) * UNIT * 2.0 ** (width / 2))
        off = np.sqrt(far.mass) * (entry * np.abs(moments).sum(axis=0) + rounded * sizes)
        return np.asarray(np.sqrt(square) + EVALUATION * (off + far.error * sizes))


def working_bytes(points: int, count: int, width: int) -> int:
    """Bytes that a thread works in, for a tile of so many points with so many samples that are solved for."""
    rings, sources = sum(len(_surface(side, width)) for _, side in RINGS[width]), SOURCE_ORDER[width] ** width
    fitted = (count + MOST_FITTED) * (points + 3 * rings)
    pieces = PIECE * (count + 3 * points + 2 * rings + 2 * sources)
    square = 3 * count * count + 3 * sources * sources
    return int(8 * (square + 4 * count * points + fitted + pieces + 8 * MOST_BESIDE[width]))


def highest_share(samples: Samples) -> float:
    """Upper bound of how far `Tile.prior` may exceed k(x, x), relative to it."""
    return 2.0 * EVALUATION * UNIT * (samples.distances.kernel.diagonal_roundings + 2.0)


def _solved(matrix: FloatArray, right: FloatArray) -> FloatArray:
    """Solve approximately; a zero solution where the matrix has no Cholesky factor."""
    try:
        factor = scipy.linalg.cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
        return np.asarray(scipy.linalg.cho_solve(factor, right, check_finite=False))
    except (scipy.linalg.LinAlgError, ValueError):
        return np.zeros_like(right)


def _surface(side: int, width: int) -> FloatArray:
    """Points on the surface of the cube [-1, 1]^k, `side` to each edge: (q, k)."""
    if width == 1:
        return np.array([[-1.0], [1.0]])
    ticks = np.linspace(-1.0, 1.0, side + 1)
    points = np.array(list(product(ticks, repeat=width)))
    return np.asarray(points[(np.abs(points) == 1.0).any(axis=1)])


# Test points of a tile at most; samples within its box at most, over those that are solved for.
TILE_POINTS, INSIDE = 256, 0.6
# Samples that are solved for: the least number, the next one over each, and the greatest. Between the last number that
# does not suffice and the first that does, so many more are tried.
LEAST, STEP, MOST, HALVINGS = {1: 64, 2: 192, 3: 288}, 1.5, 3300, 2
# Where no test points are known yet.
USUAL = {1: 96, 2: 648, 3: 972}
# Further attempts at points that miss the gap, each with more samples.
ATTEMPTS = 2
# Test points of a region of the store, and of a batch at most: neighbours within the region.
REGION_ROWS, BATCH_POINTS = 131_072, 1024
# Test points from which further numbers of samples are worth a trial; batches of a region for each thread at least,
# so that no other region needs to be under way.
WORTH_HALVING, WAVES = 20_000, 8
# Regions of which one tile each is tried to choose the number of samples; share of the points that must meet the gap.
TRIED, LEAST_MET = 3, 0.95


@dataclass(frozen=True)
class Trial:
    """A few tiles that were tried: the share of points that met the gap, and core-seconds for each."""

    met: float
    seconds: float


def serves(context: BlockContext) -> bool:
    """Return True if the kernel is of distances in one to three features, so that neighbours prove its variances."""
    try:
        Distances.of(plain_context(context).kernel)
    except InputError:
        return False
    return True


@dataclass(frozen=True)
class NeighbourOptions:
    """Options of a batch."""

    gap: float
    latent: bool
    count: int  # samples that are solved for at first
    most: int = MOST  # and at most


def _halved(scaled: FloatArray, crowded: Callable[[IndexArray], bool]) -> list[IndexArray]:
    """Halve points (t, k) at the median of their widest feature while parts of them are crowded: their indices."""
    parts, todo = [], [np.arange(len(scaled))]
    while todo:
        part = todo.pop()
        if len(part) == 1 or not crowded(part):
            parts.append(part)
            continue
        column = scaled[part][:, int(np.argmax(np.ptp(scaled[part], axis=0)))]
        order = np.argsort(column, kind="stable")
        middle = len(part) // 2
        todo += [part[np.sort(order[middle:])], part[np.sort(order[:middle])]]
    return parts


def tiles(samples: Samples, points: FloatArray, inside: float) -> list[IndexArray]:
    """Cut points (t, k) into tiles of neighbours, with at most so many samples within each box: their indices."""

    def crowded(part: IndexArray) -> bool:
        if len(part) > TILE_POINTS:
            return True
        some = points[part]
        return bool(np.ptp(some, axis=0).any()) and samples.inside(some.min(axis=0), some.max(axis=0)) > inside

    return _halved(points * samples.distances.metric, crowded)


@dataclass(frozen=True)
class _Batches:
    """Batches of neighbours that a region is cut into: the rows of each, counted from the region's first."""

    rows: list[IndexArray]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(rows.nbytes for rows in self.rows)

    @classmethod
    def of(cls, distances: Distances, inputs: FloatArray, size: int) -> _Batches:
        """Cut standardised inputs (t, d) into batches of at most `size` points."""
        scaled = inputs[:, list(distances.features)] * distances.metric
        return cls(_halved(scaled, lambda part: len(part) > size))


def largest_count(memory_bytes: int, n: int, width: int, threads: int) -> int:
    """Return the most samples around a tile with which a process of so many threads keeps within its memory.

    Raises `MemoryBudgetError` where not even the least number does.
    """

    def taken(count: int) -> int:
        return held_bytes(n, width) + threads * working_bytes(TILE_POINTS, count, width)

    least = min(LEAST[width], n)
    if taken(least) > memory_bytes:
        raise MemoryBudgetError(
            f"variances by neighbours of {n:,} training samples take {byte_text(taken(least))} at least in a "
            f"process of {threads} threads; the variance memory is {byte_text(memory_bytes)}. Raise "
            "`memory_bytes`, or use fewer threads a worker"
        )
    return max(count for count in range(least, MOST + 1) if taken(count) <= memory_bytes)


def batch_count(points: int, size: int) -> int:
    """Return the number of batches that so many points are cut into."""
    if points <= size:
        return 1
    return batch_count(points // 2, size) + batch_count(points - points // 2, size)


def tighten_tile(
    samples: Samples,
    inputs: FloatArray,
    which: IndexArray,
    bounds: VarianceBounds,
    options: NeighbourOptions,
    noise: float,
) -> None:
    """Tighten the bounds of some of the standardised inputs (t, d); again with more samples where they miss the gap."""
    count = float(options.count)
    for _ in range(1 + ATTEMPTS):
        ends = Tile.of(samples, inputs[which]).ends(int(count), options.gap, noise)
        bounds.tighten(which, ends.lower, ends.upper, ends.upper - ends.lower)
        which = which[bounds.gaps(which) > options.gap]
        if not len(which) or count >= min(samples.n, options.most):
            return
        count = min(count * STEP, options.most)


def batch_bounds(samples: Samples, inputs: FloatArray, noise: float, options: NeighbourOptions) -> VarianceBounds:
    """Bound the variances at standardised inputs (t, d); `noise` is added to those of new observations."""
    prior = np.asarray(samples.distances.kernel.diagonal(inputs), dtype=np.float64)
    bounds = VarianceBounds(highest_prior(samples.distances.kernel, prior), noise, options.gap)
    points = inputs[:, list(samples.distances.features)]
    for which in tiles(samples, points, INSIDE * options.count):
        tighten_tile(samples, inputs, which, bounds, options, noise)
    return bounds


@dataclass(frozen=True)
class NeighbourSource:
    """The source of a worker's samples, and how a batch is bounded by them."""

    context: BlockContext
    noise_variance: float
    options: NeighbourOptions

    def samples(self) -> Samples:
        """Return all training samples in their tree, from this process's cache or the model."""
        key = (self.context.run_id, "neighbours", self.noise_variance)
        return worker_cache().get(key, lambda: Samples.of(self.context, self.noise_variance))

    def plain(self, inputs: FloatArray) -> FloatArray:
        """Return the model's own inputs from those of the context."""
        scaled = isinstance(self.context.source, NoisySupport)
        return np.ascontiguousarray(inputs[:, :-1]) if scaled else inputs

    def batches(self, inputs: FloatArray, region: tuple[int, int], size: int) -> list[IndexArray]:
        """Return the rows of each batch of a region, from its standardised inputs (t, d)."""
        plain = plain_context(self.context)
        key = (self.context.run_id, "batches", *region)
        distances = Distances.of(plain.kernel)
        return worker_cache().get(key, lambda: _Batches.of(distances, self.plain(inputs), size)).rows

    def bounds(self, inputs: FloatArray) -> BatchVariance:
        """Bound the variances at standardised inputs (t, d) of the context."""
        noise = 0.0 if self.options.latent else self.noise_variance
        bounds = batch_bounds(self.samples(), self.plain(inputs), noise, self.options)
        return bounds.reported(np.zeros(len(inputs)), ProductTally())


@needs_one_arithmetic
@UNPROVEN
def neighbour_task(
    source: NeighbourSource, test: TestRows, region: tuple[int, int], size: int, batches: list[int]
) -> list[FloatArray]:
    """Return rows of batches of a region, and bounds of the variances there, standardised: (3, rows) each."""
    inputs = test.inputs(*region)
    parts = source.batches(inputs, region, size)
    results = []
    for batch in batches:
        bounds = source.bounds(inputs[parts[batch]])
        results.append(np.stack([parts[batch].astype(np.float64), bounds.lower, bounds.upper]))
    return results


class _Region:
    """A region under way: a batch starts as another ends, and each result is kept as soon as it arrives."""

    def __init__(self, submit: Callable[[int], PendingRound], count: int, ahead: int, parts: Parts | None) -> None:
        self._submit, self._ahead, self._parts = submit, ahead, parts
        self._results: dict[int, FloatArray] = {} if parts is None else parts.load(count)
        self._todo = deque(batch for batch in range(count) if batch not in self._results)
        self._under_way: deque[tuple[int, PendingRound]] = deque()
        self._start()

    def _start(self) -> None:
        while self._todo and len(self._under_way) < self._ahead:
            batch = self._todo.popleft()
            self._under_way.append((batch, self._submit(batch)))

    def done(self) -> bool:
        """True if `result` would return without waiting."""
        return not self._todo and all(pending.done() for _, pending in self._under_way)

    def result(self) -> list[FloatArray]:
        """Wait for all batches; `InterruptedRunError` where an end is asked for: those under way are kept first."""
        while self._under_way:
            batch, pending = self._under_way.popleft()
            self._results[batch] = pending.result()[0]
            if self._parts is not None:
                self._parts.keep(batch, self._results[batch])
                if self._parts.interrupted():
                    self._todo.clear()
                    if not self._under_way:
                        self._parts.end()
            self._start()
        return [self._results[batch] for batch in sorted(self._results)]


class NeighbourRun(VarianceRun):
    """Variances by neighbours.

    Parameters
    ----------
    request : Request
    patience : float
        Core-seconds after which no larger number of neighbours is tried.

    Attributes
    ----------
    plan : dict
        Entries: way, gap, max_passes, latent, seed, neighbours, most_neighbours, batch_size.
    trial : Trial
        The trial of the number of neighbours; of no tiles where the stored plan has it.

    Raises
    ------
    InputError
        A kernel that is not of distances in one to three features; other settings than those of the stored
        plan.
    """

    has_means = False
    _label = "kneighbours"
    _most = MOST  # samples around a tile

    def __init__(self, request: Request, patience: float = math.inf) -> None:
        super().__init__(request)
        context, s2, settings = request.context, request.model.noise_variance, request.settings
        self._width = len(Distances.of(plain_context(context).kernel).features)
        self._source = NeighbourSource(context, s2, NeighbourOptions(settings.gap, settings.latent, 0))
        self._batch = int(settings.batch_size or BATCH_POINTS)
        if settings.memory_bytes is not None:
            threads = request.executor.threads_per_process
            self._most = largest_count(settings.memory_bytes, context.n, self._width, threads)
        stored = request.stored
        self.plan = {
            "way": "neighbours",
            **self._requested,
            "neighbours": 0 if stored is None else int(stored.get("neighbours", 0)),
            "most_neighbours": self._most,
            "batch_size": self._batch,
        }
        self._require_same(self.plan)
        self.trial = Trial(1.0, 0.0)
        if stored is None:
            self.plan["neighbours"] = self._chosen_count(context.n, patience)

    @UNPROVEN
    def _chosen_count(self, n: int, patience: float) -> int:
        """Return the least number of samples to solve for with which nearly all points of a few tiles meet the gap."""
        count, most = LEAST[self._width], min(n, self._most)
        if not self.request.rows.n_samples:
            return min(USUAL[self._width], n)
        samples, settings = self._source.samples(), self._settings
        noise = 0.0 if settings.latent else self._source.noise_variance
        batches = self._tried_batches()
        Tile.of(samples, batches[0][:1]).ends(count, settings.gap)  # what is compiled is not timed
        deadline = time.thread_time() + patience

        def suffices(count: int) -> bool:
            met, tried, began, loosened = 0, 0, time.thread_time(), True
            for inputs in batches:
                points = inputs[:, list(samples.distances.features)]
                parts = tiles(samples, points, INSIDE * count)
                some = inputs[parts[len(parts) // 2]]
                ends = Tile.of(samples, some).ends(count, settings.gap, noise)
                upper = ends.upper + noise
                met += int(np.count_nonzero(ends.upper - np.fmax(ends.lower, 0.0) <= settings.gap * upper))
                tried += len(some)
                loosened &= ends.loosened
            self.trial = Trial(met / tried, (time.thread_time() - began) / tried)
            if loosened and not met:
                raise InputError(
                    f"variances by neighbours are of no use here: more than {MOST_BESIDE[self._width]:,} of {n:,} "
                    "training samples are too near to test samples, at these length scales in "
                    f"{self._width} features, to be approximated well enough for the gap of {settings.gap:.2g}. "
                    "Take `way` iterative, or a wider gap"
                )
            return self.trial.met >= LEAST_MET

        short = 0
        while not suffices(count) and count < most and time.thread_time() < deadline:
            short, count = count, min(int(count * STEP), most)
        count = min(count, most)
        trial, tries = self.trial, HALVINGS if short and self.request.rows.n_samples > WORTH_HALVING else 0
        for _ in range(tries if trial.met >= LEAST_MET else 0):
            between = int(math.sqrt(short * count))
            if suffices(between):
                count, trial = between, self.trial
            else:
                short = between
        self.trial = trial
        return count

    def _tried_batches(self) -> list[FloatArray]:
        """Inputs of one batch in the middle of each of a few regions."""
        n, size, source = self.request.rows.n_samples, self._batch, self._source
        rows = min(self._rows, n)
        distances = Distances.of(plain_context(source.context).kernel)
        batches = []
        for start in np.unique(np.linspace(0, n - rows, TRIED).astype(int)):
            inputs = source.plain(self.request.test.inputs(int(start), int(start) + rows))
            parts = _Batches.of(distances, inputs, size).rows
            batches.append(inputs[parts[len(parts) // 2]])
        return batches

    @property
    def _rows(self) -> int:
        return self._settings.batch_size or REGION_ROWS

    @property
    def region_rows(self) -> int:
        """Rows of a region of the store."""
        return min(self._n_test, max(self._rows, math.ceil(self._n_test / REGIONS)))

    @property
    def depth(self) -> int:
        """Regions under way at once: one, unless its batches keep the worker threads busy for moments only."""
        threads, batches = self._executor.parallelism, batch_count(self.region_rows, self._batch)
        return 1 if WAVES * threads <= batches else 1 + math.ceil(threads / batches)

    def submit(self, rows: TestRows, start: int, stop: int, parts: Parts | None = None) -> _Region:
        """Start a region; batches that end are kept in `parts`."""
        source = self._way(1)
        arguments = (source, self.request.subject.tests(rows), (start, stop), self._batch)

        def begin(batch: int) -> PendingRound:
            return self._executor.submit(self._label, neighbour_task, arguments, [[batch]])

        return _Region(begin, batch_count(stop - start, self._batch), self._executor.parallelism + 1, parts)

    def collect(self, results: list[Any]) -> Ends:
        """Put a region's batches in the order of its rows, without means, and count them."""
        rows, *ends = np.concatenate(results, axis=1)
        in_order = [np.empty_like(end) for end in ends]
        for array, end in zip(in_order, ends, strict=True):
            array[rows.astype(np.intp)] = end
        none = np.zeros((len(rows), 0))
        return super().collect([(none, none, *in_order, np.zeros(len(rows)), ProductTally())])

    def prepare(self) -> str:
        """Return a line on the tiles; each worker makes its tree of samples when it needs it."""
        return (
            f"variances by neighbours: the test samples are cut into tiles of at most {TILE_POINTS}. Each tile is "
            f"conditioned on the {self.plan['neighbours']:,} samples around it; a bound covers all other samples"
        )

    def _way(self, batches: int) -> NeighbourSource:
        options = replace(self._source.options, count=int(self.plan["neighbours"]), most=self._most)
        return replace(self._source, options=options)

    def summary(self, seconds: float) -> dict[str, Any]:
        """Return the figures of the samples that this run computed."""
        count = int(self.plan["neighbours"])
        return {**super().summary(seconds), "way": "neighbours", "rank": count, "halo": 0, "smooth": False}
