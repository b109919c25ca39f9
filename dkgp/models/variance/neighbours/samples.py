"""All training samples in a tree of boxes, with a few weighted points in the place of the samples of each box.

A kernel is interpolated on a box by tensor products of Chebyshev points, with proven errors. A profile f(s) = int
exp(-t s) dmu(t), mu >= 0, is analytic for complex s with Re s > 0, and |f(s)| <= f(Re s) there. So Bernstein's theorem
bounds the interpolation error of the kernel in one point, for all positions of the other one in a second box. A compact
profile is zero between boxes beyond its support, and is not interpolated elsewhere. The proof is in docs/proofs.md ("By
neighbours").

For a polynomial h of degree below p in each feature, sum_i w_i h(x_i)^2 over the samples of a box is a quadratic form
of h's values at the box's p^k Chebyshev points. Its matrix G is bounded by a diagonal one, so that

    sum_i w_i h(x_i)^2 <= sum_a W_a h(t_a)^2.

The weights W depend on the samples alone, and all tiles of test points share them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

import numpy as np
import scipy

from dkgp.data.types import BoolArray
from dkgp.errors import InputError
from dkgp.kernels import Kernel, TileEvaluator
from dkgp.kernels.terms import Term, Terms, terms_of
from dkgp.models.rounding import EPS, EVALUATION, UNIT
from dkgp.models.sums import NoisySupport
from dkgp.models.variance.row_scales import differences
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext

MOST_FEATURES = 3
# Sums of half axes of the ellipses that are tried; the least bound counts.
ELLIPSES = np.geomspace(1.15, 40.0, 26)
# |1 - exp(-z)| <= DIFFERENCE (1 - exp(-|z|)) for Re z >= 0: 2 / (1 - 1/e), rounded up.
DIFFERENCE = 3.17
# More than the roundings of the bounds themselves.
MARGIN = 1e-9


@dataclass(frozen=True)
class Distances:
    """The terms of a kernel over its active features, at most three.

    Attributes
    ----------
    kernel : Kernel
    terms : Terms
    features : tuple of int
        Columns of the inputs that the kernel reads.
    """

    kernel: Kernel
    terms: Terms
    features: tuple[int, ...]

    @classmethod
    def of(cls, kernel: Kernel) -> Distances:
        """Return the terms of a kernel.

        Raises `InputError` for more than three features and for kernels without a proven expansion.
        """
        try:
            terms = terms_of(kernel)
        except InputError as error:
            raise InputError(
                f"variances by neighbours are not for this kernel: {error}. Take `way` auto or iterative"
            ) from None
        for term in terms.terms:
            if not (term.profile.mixture or math.isfinite(term.profile.support)):
                raise InputError(
                    "variances by neighbours take squared exponential, Matern, rational quadratic and compact kernels "
                    f"and their sums; got {kernel.type_name!r}. Take `way` auto or iterative"
                )
        features = tuple(sorted({feature for term in terms.terms for feature in term.features}))
        if not 1 <= len(features) <= MOST_FEATURES:
            raise InputError(
                f"variances by neighbours take kernels of one to {MOST_FEATURES} features; this one reads "
                f"{len(features)}"
            )
        return cls(kernel, terms, features)

    @cached_property
    def scales(self) -> FloatArray:
        """Factor on each active feature within each term: (terms, k)."""
        table = np.zeros((len(self.terms.terms), len(self.features)))
        for row, term in zip(table, self.terms.terms, strict=True):
            for feature, scale in zip(term.features, term.scale, strict=True):
                row[self.features.index(feature)] = scale
        return table

    @cached_property
    def metric(self) -> FloatArray:
        """Factor on each active feature for the choice of neighbours: that of the shortest term, (k,)."""
        return np.asarray(self.scales.max(axis=0))

    @property
    def is_compact(self) -> bool:
        """Return True if the kernel is zero from a distance on."""
        return self.terms.constant == 0.0 and all(math.isfinite(term.profile.support) for term in self.terms.terms)

    def errors(self, centres: FloatArray, halves: FloatArray, others: Boxes, order: int) -> FloatArray:
        """Bound the error of interpolation at `order` points a feature, for unit weight: (c,).

        The kernel is interpolated in one point, within boxes (c, k); the other point lies anywhere in the boxes
        `others`, (c, k) or (k,). Infinite where nothing is proven.
        """
        offset = np.abs(centres - others.centre)
        total = np.zeros(len(offset))
        for term, scale in zip(self.terms.terms, self.scales, strict=True):
            size = np.broadcast_to(halves, offset.shape) * scale
            if math.isfinite(term.profile.support):
                total += np.where(_is_zero(term, offset * scale, size + others.half * scale), 0.0, np.inf)
            else:
                total += abs(term.amplitude) * _term_errors(term, offset * scale, size, others.half * scale, order)
        return np.asarray(total * (1.0 + MARGIN))

    def are_zero(self, boxes: Boxes, other: Boxes) -> BoolArray:
        """Return True for boxes (c, k) where the kernel is zero between all points of the box and of another: (c,)."""
        offset, zero = np.abs(boxes.centre - other.centre), np.full(len(boxes.centre), self.is_compact)
        for term, scale in zip(self.terms.terms, self.scales, strict=True):
            zero &= _is_zero(term, offset * scale, (boxes.half + other.half) * scale)
        return zero


@dataclass(frozen=True)
class Boxes:
    """Boxes with their sides along the features: centres and half widths, (c, k) or (k,)."""

    centre: FloatArray
    half: FloatArray

    @classmethod
    def around(cls, low: FloatArray, high: FloatArray) -> Boxes:
        """Boxes that contain all between two corners, roundings of their own numbers included."""
        slack = 4.0 * UNIT * (np.abs(low) + np.abs(high))
        return cls(0.5 * (low + high), 0.5 * (high - low) * (1.0 + 8.0 * UNIT) + slack + np.finfo(np.float64).tiny)


def _is_zero(term: Term, offset: FloatArray, reach: FloatArray) -> BoolArray:
    """Return True where boxes lie beyond a term's support, from scaled offsets of centres and half widths: (c,)."""
    least = np.maximum(offset - reach, 0.0) * (1.0 - MARGIN)
    return np.asarray(np.einsum("ck,ck->c", least, least) >= term.profile.support**2)


def _term_errors(term: Term, offset: FloatArray, half: FloatArray, other: FloatArray, order: int) -> FloatArray:
    """Bound the error of one term of unit amplitude, in the term's scaled coordinates: (c,)."""
    value, parameter = term.profile.value, term.parameter
    assert value is not None
    width = offset.shape[1]
    least = np.maximum(offset - other, 0.0)  # from the box's centre to the other box, in each feature
    most = offset + other
    near, far = np.maximum(least - half, 0.0) ** 2, (most + half) ** 2
    rho = ELLIPSES[None, :]
    bounds = np.zeros((len(offset), width))
    for j in range(width):
        long, short = half[:, j, None] * (rho + 1.0 / rho) / 2.0, half[:, j, None] * (rho - 1.0 / rho) / 2.0
        away, squares = least[:, j, None], long**2 + short**2
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            # (away - long cos)^2 - short^2 sin^2 is least at cos = away long / squares, or at cos = 1.
            inner = short**2 * (away**2 / squares - 1.0)
            lowest = np.where(away * long < squares, inner, (away - long) ** 2)
        others = near.sum(axis=1) - near[:, j]
        real = np.maximum(others, 0.0)[:, None] * (1.0 - MARGIN) + lowest
        real -= MARGIN * (np.abs(lowest) + short**2)
        size = (far.sum(axis=1) - far[:, j])[:, None] + (most[:, j, None] + long) ** 2 + short**2
        with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
            plain = value(np.maximum(real, 0.0), parameter)
            differences = DIFFERENCE * (1.0 - value(size * (1.0 + MARGIN), parameter) + 16.0 * UNIT)
            bound = 4.0 * np.minimum(plain, differences) * rho ** (1.0 - order) / (rho - 1.0)
        bounds[:, j] = np.where(np.isfinite(bound) & (real > 0.0), bound, np.inf).min(axis=1)
    bounds = -np.sort(-bounds, axis=1)
    return np.asarray(bounds @ lebesgue(order) ** np.arange(width) if width > 1 else bounds[:, 0])


def lebesgue(order: int) -> float:
    """Bound on the Lebesgue constant of so many Chebyshev points (Rivlin 1974)."""
    return 1.0 + 2.0 / math.pi * math.log(order)


@lru_cache
def _table(order: int) -> tuple[FloatArray, FloatArray]:
    """The Chebyshev points (q,), and the matrix (q, q) from values of T_0 .. T_(q-1) to Lagrange's polynomials."""
    odd = 2 * np.arange(order) + 1
    angles = (np.arange(order)[:, None] * odd[None, :]) % (4 * order)
    values = np.cos(math.pi * angles / (2 * order)) * (2.0 / order)
    values[0] = 1.0 / order
    return np.cos(math.pi * odd / (2 * order)), values


@lru_cache
def _grid(order: int, width: int) -> FloatArray:
    """Tensor product of the Chebyshev points: (q^k, k), the last feature fastest."""
    return np.array(list(product(_table(order)[0], repeat=width)))


def nodes(box: Boxes, order: int) -> FloatArray:
    """Chebyshev points of a box: (q^k, k); of boxes (c, k): (c q^k, k)."""
    grid = _grid(order, box.centre.shape[-1])
    points = box.centre[..., None, :] + box.half[..., None, :] * grid
    return np.asarray(points.reshape(-1, box.centre.shape[-1]))


def basis(points: FloatArray, box: Boxes, order: int) -> FloatArray:
    """Lagrange's polynomials of a box's nodes at points (n, k) within it: (n, q^k)."""
    places = np.clip((points - box.centre) / box.half, -1.0, 1.0)
    values = np.empty((order, *places.shape))
    values[0], values[1] = 1.0, places
    for degree in range(2, order):
        values[degree] = 2.0 * places * values[degree - 1] - values[degree - 2]
    table = _table(order)[1]
    result = values[:, :, 0].T @ table
    for column in range(1, places.shape[1]):
        result = (result[:, :, None] * (values[:, :, column].T @ table)[:, None, :]).reshape(len(points), -1)
    return np.asarray(result)


def basis_error(order: int, width: int) -> float:
    """Bound on the rounding of an entry of `basis`, none of which exceeds 2^(k/2) in size."""
    one = 16.0 * (order * order + 2.0) * UNIT
    return float(1.01 * width * 2.0 ** (width / 2.0) * (one + 2.0 * UNIT))


# Samples of a leaf at most, and points of a box in each feature, by features.
LEAF = {1: 64, 2: 128, 3: 256}
ORDER = {1: 14, 2: 12, 3: 6}
# Samples of a box whose matrix G is summed from themselves; of larger boxes, from the points of boxes so far below.
SUMMED, BELOW = 2048, 3
LEAST_SHARE = 1e-9


def plain_context(context: BlockContext) -> BlockContext:
    """The context of the model's own inputs and kernel, where the given one is of inputs scaled by their noise."""
    return context.source.plain if isinstance(context.source, NoisySupport) else context


def noise_variances(context: BlockContext, noise_variance: float) -> FloatArray:
    """Return the noise variances of all training samples: (n,)."""
    if isinstance(context.source, NoisySupport):
        return np.asarray(context.source.noise.with_common(noise_variance).diagonal)
    return np.full(context.n, noise_variance)


@dataclass(frozen=True, eq=False)
class Samples:
    """Training samples, in the order of the tree.

    Attributes
    ----------
    distances : Distances
    evaluator : TileEvaluator
        Of the kernel, in float64.
    points : (n, k)
        Active features of the samples.
    noise : (n,)
        Noise variances.
    start, stop : (c,) int
        Samples of each box.
    child : (c,) int
        The first of two children; -1 of a leaf.
    box : Boxes
        (c, k).
    mass : (c,)
        Upper bounds on the sum of 1 / noise of each box.
    weights : (c, p^k)
        Those of the points of a box; zero of leaves.
    row_error : float
        Bound on the `TileEvaluator.row_errors` of samples and of points of boxes.
    """

    distances: Distances
    evaluator: TileEvaluator
    points: FloatArray
    noise: FloatArray
    start: IndexArray
    stop: IndexArray
    child: IndexArray
    box: Boxes
    mass: FloatArray
    weights: FloatArray
    row_error: float

    @classmethod
    def of(cls, context: BlockContext, noise_variance: float) -> Samples:
        """Read a model's samples and make their tree."""
        noise = noise_variances(context, noise_variance)
        plain = plain_context(context)
        distances, evaluator = Distances.of(plain.kernel), differences(plain)
        columns, row_error = list(distances.features), 0.0
        points = np.empty((plain.n, len(columns)))
        for block in range(plain.n_blocks):
            rows = plain.source.inputs(*plain.bounds(block))
            points[slice(*plain.bounds(block))] = rows[:, columns]
            row_error = max(row_error, float(evaluator.row_errors(rows).max()))
        order, start, stop, child = _halved(points * distances.metric, LEAF[len(columns)])
        points, noise = points[order], noise[order]
        low = np.array([points[first:last].min(axis=0) for first, last in zip(start, stop, strict=True)])
        high = np.array([points[first:last].max(axis=0) for first, last in zip(start, stop, strict=True)])
        box = Boxes.around(low, high)
        inverse = 1.0 / noise
        mass = np.array([inverse[first:last].sum() for first, last in zip(start, stop, strict=True)])
        mass *= 1.0 + plain.n * EPS
        row_error += position_error(distances, box.centre[:1] - box.half[:1], box.centre[:1] + box.half[:1])
        if distances.is_compact:  # no box is taken by its points
            weights = np.zeros((len(start), ORDER[len(columns)] ** len(columns)))
        else:
            weights = _weights(points, noise, (start, stop, child), box, mass)
        return cls(distances, evaluator, points, noise, start, stop, child, box, mass, weights, row_error)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        arrays = (self.points, self.noise, self.start, self.stop, self.child, self.mass, self.weights)
        return sum(array.nbytes for array in arrays) + self.box.centre.nbytes + self.box.half.nbytes

    @property
    def n(self) -> int:
        """Number of samples."""
        return len(self.points)

    @property
    def order(self) -> int:
        """Points of a box in each feature."""
        return ORDER[len(self.distances.features)]

    def rows(self, points: FloatArray) -> FloatArray:
        """Inputs of all features, (n, d), from active ones; the kernel does not read the others."""
        result = np.zeros((len(points), self.distances.kernel.n_features))
        result[:, list(self.distances.features)] = points
        return result

    def leaves(self) -> IndexArray:
        """Numbers of the leaves."""
        return np.flatnonzero(self.child < 0)

    def count(self, boxes: IndexArray) -> int:
        """Number of samples in boxes that do not overlap."""
        return int((self.stop - self.start)[boxes].sum())

    def members(self, boxes: IndexArray) -> IndexArray:
        """Samples of boxes, as positions, in ascending order."""
        if not len(boxes):
            return np.zeros(0, dtype=np.intp)
        return np.concatenate([np.arange(self.start[box], self.stop[box]) for box in np.sort(boxes)]).astype(np.intp)

    def box_points(self, boxes: IndexArray) -> FloatArray:
        """Points of boxes: (boxes p^k, k)."""
        return nodes(Boxes(self.box.centre[boxes], self.box.half[boxes]), self.order)

    def nearest(self, low: FloatArray, high: FloatArray, count: int) -> IndexArray:
        """Positions of the `count` samples nearest to the box between two corners, in ascending order."""
        if count >= self.n:
            return np.arange(self.n)
        leaves, scale = self.leaves(), self.distances.metric
        centre, half = 0.5 * (low + high), 0.5 * (high - low)
        away = np.abs(self.box.centre[leaves] - centre) - half
        least = np.einsum("ck->c", (np.maximum(away - self.box.half[leaves], 0.0) * scale) ** 2)
        most = np.einsum("ck->c", (np.maximum(away + self.box.half[leaves], 0.0) * scale) ** 2)
        ranked = np.argsort(most, kind="stable")
        enough = np.cumsum((self.stop - self.start)[leaves[ranked]]) >= count
        limit = most[ranked[int(np.argmax(enough))]]
        some = self.members(leaves[least <= limit])
        outside = np.maximum(np.abs(self.points[some] - centre) - half, 0.0) * scale
        squared = np.einsum("ik->i", outside**2)
        return np.sort(some[np.argsort(squared, kind="stable")[:count]])

    def inside(self, low: FloatArray, high: FloatArray) -> int:
        """Return the number of samples in the box between two corners."""
        leaves = self.leaves()
        away = np.abs(self.box.centre[leaves] - 0.5 * (low + high)) - 0.5 * (high - low)
        some = self.points[self.members(leaves[(away <= self.box.half[leaves]).all(axis=1)])]
        return int(np.count_nonzero(((some >= low) & (some <= high)).all(axis=1)))


def held_bytes(n: int, width: int) -> int:
    """Bytes of `Samples` of so many samples in so many features, which a process holds once."""
    boxes = 2 ** (1 + max(0, math.ceil(math.log2(n / LEAF[width]))))
    return int(8 * (n * (width + 1) + boxes * (2 * width + 4 + ORDER[width] ** width)))


def position_error(distances: Distances, low: FloatArray, high: FloatArray) -> float:
    """Bound on `TileEvaluator.row_errors` that points between two corners, (1, k), have from rounding their positions.

    A Chebyshev point is off by at most 3u of the coordinates of its box: twice the error of an input that is not
    centred is more.
    """
    evaluator = TileEvaluator(distances.kernel, "double", expanded=False)
    corner = np.zeros((1, distances.kernel.n_features))
    corner[:, list(distances.features)] = np.maximum(np.abs(low), np.abs(high))
    return 2.0 * float(evaluator.row_errors(corner)[0])


def _halved(scaled: FloatArray, leaf: int) -> tuple[IndexArray, IndexArray, IndexArray, IndexArray]:
    """Halve samples (n, k) at the median of their widest feature: their order, and starts, stops and first children."""
    order = np.arange(len(scaled))
    start, stop, child = [0], [len(scaled)], [-1]
    number = 0
    while number < len(start):
        first, last = start[number], stop[number]
        if last - first > leaf:
            some = scaled[order[first:last]]
            column = some[:, int(np.argmax(np.ptp(some, axis=0)))]
            middle = (last - first) // 2
            order[first:last] = order[first:last][np.argpartition(column, middle)]
            child[number] = len(start)
            start += [first, first + middle]
            stop += [first + middle, last]
            child += [-1, -1]
        number += 1
    return order, np.array(start), np.array(stop), np.array(child)


def _weights(
    points: FloatArray,
    noise: FloatArray,
    tree: tuple[IndexArray, IndexArray, IndexArray],
    box: Boxes,
    mass: FloatArray,
) -> FloatArray:
    """Weights of the points of each box: (c, p^k)."""
    start, stop, child = tree
    width = points.shape[1]
    order = ORDER[width]
    weights = np.zeros((len(start), order**width))
    inverse = 1.0 / noise
    for number in np.flatnonzero(child >= 0)[::-1]:
        own = Boxes(box.centre[number], box.half[number])
        if stop[number] - start[number] <= SUMMED:
            rows = slice(start[number], stop[number])
            some, masses = points[rows], inverse[rows]
        else:
            below = np.array([number])
            for _ in range(BELOW):
                inner = below[child[below] >= 0]
                below = np.concatenate([below[child[below] < 0], child[inner], child[inner] + 1])
            inner, leaves = below[child[below] >= 0], below[child[below] < 0]
            parts = [nodes(Boxes(box.centre[inner], box.half[inner]), order)]
            parts += [points[start[leaf] : stop[leaf]] for leaf in leaves]
            some = np.concatenate(parts)
            masses = np.concatenate([weights[inner].ravel(), *(inverse[start[leaf] : stop[leaf]] for leaf in leaves)])
        weights[number] = _bounded(basis(some, own, order), masses, width)
    return weights


def _bounded(values: FloatArray, masses: FloatArray, width: int) -> FloatArray:
    """Diagonal weights W with sum_i m_i (values_i h)^2 <= sum_a W_a h_a^2 for all h, from values (n, q)."""
    n, q = values.shape
    total = float(masses.sum()) * (1.0 + (n + 4.0) * UNIT)
    matrix = values.T @ (values * masses[:, None])
    size = 2.0 ** (width / 2.0)
    entry = total * (2.0 * size * basis_error(ORDER[width], width) + (n + 8.0) * UNIT * size * size)
    # Sums of the rows' sizes would do by themselves, and total little more than the samples' own weights.
    diagonal = np.abs(matrix).sum(axis=1) + LEAST_SHARE * total / q
    roots = np.sqrt(diagonal)
    largest = float(scipy.linalg.eigvalsh(matrix / np.outer(roots, roots), check_finite=False)[-1])
    return np.asarray(largest * (1.0 + 1e-8) * diagonal + EVALUATION**2 * q * entry)
