"""Intervals of the variances at a tile of neighbouring test points.

With v on the samples S near the tile and b on some points z_j near it, f = k(x, .) - sum v_j k(., x_j) - g:

    u = k(x, x) - v'(k_x + r),   r = k_x - Kbar v,   V = u - r' Kbar^-1 r,
    r' Kbar^-1 r <= sum_i (r_i - g(x_i))^2 / n_i + b' C_ZZ b,   g = sum b_j k(., z_j),

which holds for all v, b and z_j (docs/proofs.md, "By neighbours"). The sum is over all samples: those near the tile
enter one by one. Outside of S, r - g is f. Further off f is taken from its values at Chebyshev points of the tile's
box, and the samples of whole boxes from the box's weighted points.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import scipy.linalg

from dkgp.models.rounding import EPS, EVALUATION, UNIT, highest_prior
from dkgp.models.variance.neighbours.expansion import Boxes, basis, basis_error, nodes
from dkgp.models.variance.neighbours.samples import Samples, position_error
from dkgp.operators.base import FloatArray, IndexArray

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
class Ends:
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

    def ends(self, count: int, width: float, noise_variance: float = 0.0) -> Ends:
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
            return Ends(np.zeros(len(value)), value + slack, loosened=True)
        far = self._far(split, box)
        beside = np.setdiff1d(samples.members(split.beside), near, assume_unique=True)
        square = self._remainder((near, v, residual), (beside, ring), (split, far), box, (entry, noisy))
        below = prior * (highest_share(samples) + 4.0 * UNIT)
        return Ends(value - slack - below - square, value + slack, loosened)

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
            cells, mass = Boxes(samples.box.centre[boxes], samples.box.half[boxes]), samples.mass[boxes]
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
