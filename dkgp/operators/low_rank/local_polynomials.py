"""A low-rank preconditioner for few features: K is interpolated from Chebyshev nodes in the cells of a grid.

Let C be the kernel matrix of all nodes, p^d of them in each cell that has samples, and P the polynomials of degree
below p of each cell at its samples, zero elsewhere. Then M = P C P' + D is near Kbar = K + D where the kernel is smooth
over a cell. With D^-1/2 P = Q R, Q of orthonormal columns, and A = I + R C R',

    M^-1 = D^-1/2 (I - Q (I - A^-1) Q') D^-1/2.

A has m = (cells) p^d rows, however many samples there are. No array as tall as the samples is kept except their places
in the grid, and an application takes n p^d operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import RoundTasks, split_evenly
from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError
from dkgp.kernels import Kernel, TileEvaluator
from dkgp.kernels.compiler import cached_njit, njit
from dkgp.kernels.terms import MOST_FEATURES, terms_of
from dkgp.operators.base import FloatArray, Variances
from dkgp.operators.blas import lapack
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.exact_sums import MOST_UNITS, RunSums, exact_sums
from dkgp.operators.low_rank.pivots import regularised_factor

# Samples that say how many cells have some; a grid of more cells than it should have is made coarser.
LOOKED_AT, MOST_BEYOND, COARSER = 20_000, 1.1, 1.1
# Directions of a cell's polynomials with eigenvalues below this share of the largest are dropped.
NEGLIGIBLE = 1e-8
# Groups of blocks; and samples of a unit of moments, which take little time a sample.
GROUPS, UNIT_SAMPLES = 32, 65_536
# Orders that are tried.
ORDERS = (3, 4, 6, 8)
# Points of a cell at which the error of interpolation is estimated.
TRIED_POINTS = 128


@dataclass(frozen=True)
class Grid:
    """Cells of a grid over some features, and the order p of their polynomials."""

    features: tuple[int, ...]
    lower: FloatArray  # corner of the grid: (d,)
    sides: FloatArray  # of a cell: (d,)
    shape: tuple[int, ...]  # cells along each feature
    order: int
    codes: NDArray[np.int64]  # of the cells that have samples, ascending: (cells,)

    @property
    def functions(self) -> int:
        """Polynomials of a cell, p^d."""
        return int(self.order ** len(self.features))

    def place(self, inputs: FloatArray) -> Places:
        """Cells of samples (n, n_features) and coordinates in them."""
        scaled = (inputs[:, list(self.features)] - self.lower) / self.sides
        cells = np.clip(np.floor(scaled), 0, np.array(self.shape) - 1)
        codes = np.ravel_multi_index(tuple(cells.astype(np.int64).T), self.shape)
        return Places(np.ascontiguousarray(2.0 * (scaled - cells) - 1.0), codes)

    def block(self, context: BlockContext, number: int) -> Places:
        """Places of a block's samples, from this worker's cache or made anew; cells by their number in `codes`."""

        def build() -> Places:
            places = self.place(context.source.inputs(*context.bounds(number)))
            return replace(places, cells=np.searchsorted(self.codes, places.cells).astype(np.int64))

        return worker_cache().get((context.run_id, "grid", self.shape, number), build)

    def nodes(self, n_features: int) -> FloatArray:
        """Chebyshev nodes of all cells, as rows of inputs: (cells * p^d, n_features)."""
        axes = np.meshgrid(*[(chebyshev_nodes(self.order) + 1.0) / 2.0] * len(self.features), indexing="ij")
        inside = np.stack([axis.ravel() for axis in axes], axis=1)
        cells = np.stack(np.unravel_index(self.codes, self.shape), axis=1)
        rows = np.zeros((len(cells), len(inside), n_features))
        rows[:, :, list(self.features)] = self.lower + (cells[:, None] + inside) * self.sides
        return rows.reshape(-1, n_features)


@dataclass(frozen=True)
class Places:
    """Coordinates of samples in their cells, (n, d) in [-1, 1], and the cells, (n,)."""

    points: FloatArray
    cells: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.points.nbytes + self.cells.nbytes


def chebyshev_nodes(order: int) -> FloatArray:
    """Return the zeros of T_p: (p,)."""
    return np.asarray(np.cos((2 * np.arange(order) + 1) * math.pi / (2 * order)))


def coefficients_of_values(order: int, d: int) -> FloatArray:
    """Return the map from values at the nodes to Chebyshev coefficients: (p^d, p^d)."""
    k, m = np.arange(order)[:, None], np.arange(order)[None]
    one = np.cos(k * (2 * m + 1) * math.pi / (2 * order)) * (2.0 / order)
    one[0] /= 2.0
    out: FloatArray = np.ones((1, 1))
    for _ in range(d):
        out = np.asarray(np.kron(out, one), np.float64)
    return out


@njit(nogil=True, forceinline=True, no_cpython_wrapper=True)
def _chebyshev(points, i, order, T):  # type: ignore[no-untyped-def]
    """Put T_k of each coordinate of point i, k < order, to `T` (3, order), whose first column is one."""
    for f in range(points.shape[1]):
        if order > 1:
            T[f, 1] = points[i, f]
        for k in range(2, order):
            T[f, k] = 2.0 * points[i, f] * T[f, k - 1] - T[f, k - 2]


@cached_njit(nogil=True)
def add_moments(points, cells, weights, order, out):  # type: ignore[no-untyped-def]
    """Add each sample's weights (n, t) times the polynomials of its cell to `out` (cells, p^d, t)."""
    n, d = points.shape
    t = weights.shape[1]
    T = np.ones((3, order))
    sizes = (order, order if d > 1 else 1, order if d > 2 else 1)
    for i in range(n):
        _chebyshev(points, i, order, T)
        cell = cells[i]
        place = 0
        for a in range(sizes[0]):
            for b in range(sizes[1]):
                ab = T[0, a] * T[1, b] if d > 1 else T[0, a]
                for c in range(sizes[2]):
                    value = ab * T[2, c] if d > 2 else ab
                    for j in range(t):
                        out[cell, place, j] += value * weights[i, j]
                    place += 1


@cached_njit(nogil=True)
def evaluate_polynomials(points, cells, coefficients, order, out):  # type: ignore[no-untyped-def]
    """Values (n, t) at samples of the polynomials with coefficients (cells, p^d, t)."""
    n, d = points.shape
    t = out.shape[1]
    T = np.ones((3, order))
    sizes = (order, order if d > 1 else 1, order if d > 2 else 1)
    for i in range(n):
        _chebyshev(points, i, order, T)
        cell = cells[i]
        for j in range(t):
            out[i, j] = 0.0
        place = 0
        for a in range(sizes[0]):
            for b in range(sizes[1]):
                ab = T[0, a] * T[1, b] if d > 1 else T[0, a]
                for c in range(sizes[2]):
                    value = ab * T[2, c] if d > 2 else ab
                    for j in range(t):
                        out[i, j] += value * coefficients[cell, place, j]
                    place += 1


# One block's share of the work: its number, the noise of its samples, and their rows of vectors.
Share = tuple[int, Variances, FloatArray | None]


def codes_task(context: BlockContext, grid: Grid, shares: list[Share]) -> list[NDArray[np.int64]]:
    """Cells that have samples of any of the blocks."""
    parts = [np.unique(grid.place(context.source.inputs(*context.bounds(share[0]))).cells) for share in shares]
    return [np.unique(np.concatenate(parts))]


def box_task(context: BlockContext, features: list[int], shares: list[Share]) -> list[FloatArray]:
    """Least and greatest coordinates of the blocks' samples: (2, d)."""
    rows = [context.source.inputs(*context.bounds(share[0]))[:, features] for share in shares]
    return [np.array([np.min([r.min(axis=0) for r in rows], axis=0), np.max([r.max(axis=0) for r in rows], axis=0)])]


def moments_task(context: BlockContext, grid: Grid, order: int, units: list[list[Share]]) -> list[RunSums]:
    """Moments of the blocks' vectors over their noise: (cells * order^d, t); of ones without vectors."""
    results, shape = [], (len(grid.codes), order ** len(grid.features))
    for shares in units:
        vectors = shares[0][2]
        total = np.zeros((*shape, 1 if vectors is None else vectors.shape[1]))
        for number, noise, vectors in shares:
            places = grid.block(context, number)
            scale = np.broadcast_to(1.0 / np.asarray(noise, np.float64), (len(places.cells),))[:, None]
            weights = np.ascontiguousarray(scale if vectors is None else scale * vectors)
            add_moments(places.points, places.cells, weights, order, total)
        results.append(RunSums((total.reshape(-1, total.shape[2]),)))
    return results


def polynomials_task(
    context: BlockContext, grid: Grid, coefficients: FloatArray, shares: list[Share]
) -> list[FloatArray]:
    """M^-1 r at the blocks' samples, from r and the coefficients of the correction."""
    results = []
    for number, noise, vectors in shares:
        places = grid.block(context, number)
        assert vectors is not None
        values = np.empty(vectors.shape)
        evaluate_polynomials(places.points, places.cells, coefficients, grid.order, values)
        scale = np.broadcast_to(np.asarray(noise, np.float64), (len(values),))[:, None]
        results.append((vectors - values) / scale)
    return results


class LocalPolynomialPreconditioner:
    """M^-1 of an operator whose kernel looks at up to three features, with about `rank` nodes.

    `order` is p, the nodes of a cell along each feature; by default the best of a few.

    Raises `InputError`: a kernel that is no sum of stationary ones, or that looks at more features.
    """

    second_step = math.inf

    def __init__(self, operator: BlockedKernelOperator, rank: int, order: int | None = None) -> None:
        self._operator = operator
        self._grid = grid = _grid(operator, rank, order)
        order, d = grid.order, len(grid.features)
        moments = self._sum(2 * order - 1)[:, :, 0]
        gram = _gram(moments.reshape(-1, *(2 * order - 1,) * d), order, d)
        values, vectors = np.linalg.eigh(gram)
        kept = values > NEGLIGIBLE * values[:, -1:]
        root = np.sqrt(np.where(kept, values, 0.0))
        # Orthonormal polynomials by their Chebyshev coefficients, and their coefficients of values at the nodes.
        self._mixing = vectors * np.divide(1.0, root, out=np.zeros_like(root), where=kept)[:, None]
        maps = root[:, :, None] * vectors.transpose(0, 2, 1) @ coefficients_of_values(order, d)
        # Threads of BLAS take ten times the processor time where others work beside them.
        with single_threaded_blas():
            self._lower = regularised_factor(_compressed(operator.double, grid, maps, operator.kernel.n_features), 1.0)

    @property
    def rank(self) -> int:
        """Nodes, m."""
        return len(self._lower)

    def apply(self, residual: NDArray[Any]) -> NDArray[Any]:
        """M^-1 r for r (n, t), a new array."""
        t = residual.shape[1]
        vectors = np.asarray(residual, np.float64)
        moments = self._sum(self._grid.order, vectors)
        with single_threaded_blas():
            projected = self._mixing.transpose(0, 2, 1) @ moments
            weights = np.array(projected.reshape(-1, t), order="F")
            lapack("potrs", b"L", self.rank, t, self._lower, self.rank, weights, self.rank)
            coefficients = self._mixing @ (projected - weights.reshape(projected.shape))
        out = np.empty(vectors.shape)
        parts = self._operator.submit(
            "kgrid",
            polynomials_task,
            (self._operator.context, self._grid, coefficients),
            _shares(self._operator, vectors),
        ).result()
        for block, part in enumerate(parts):
            out[slice(*self._operator.context.bounds(block))] = part
        return out

    def _sum(self, order: int, vectors: FloatArray | None = None) -> FloatArray:
        operator, grid = self._operator, self._grid
        units = _shares(operator, vectors, max(GROUPS, min(MOST_UNITS, operator.n // UNIT_SAMPLES)))
        groups = split_evenly(list(enumerate(units)), max(GROUPS, operator.executor.parallelism))
        tasks = RoundTasks(moments_task, (operator.context, grid, order), groups, None, "kgridsum")
        (total,) = exact_sums(operator, tasks).sums
        return np.asarray(total.reshape(len(grid.codes), -1, total.shape[1]))


def _shares(
    operator: BlockedKernelOperator, vectors: FloatArray | None = None, groups: int = GROUPS
) -> list[list[Share]]:
    """Groups of blocks, each block with its noise and its rows of vectors."""
    context, noise = operator.context, operator.noise

    def share(block: int) -> Share:
        rows = slice(*context.bounds(block))
        return (
            block,
            noise if isinstance(noise, float) else noise[rows],
            None if vectors is None else np.ascontiguousarray(vectors[rows]),
        )

    return [[share(block) for block in group] for group in split_evenly(range(context.n_blocks), groups)]


def grid_scales(kernel: Kernel) -> dict[int, float]:
    """Return the largest factor of a term on each feature that the kernel looks at; `InputError` for other kernels."""
    scales: dict[int, float] = {}
    for term in terms_of(kernel).terms:
        for feature, scale in zip(term.features, term.scale, strict=True):
            scales[feature] = max(scale, scales.get(feature, 0.0))
    if not 1 <= len(scales) <= MOST_FEATURES:
        raise InputError(
            f"local polynomials take one to {MOST_FEATURES} features; the kernel looks at {len(scales)}. Take pivoted "
            "landmarks"
        )
    return scales


def cut_box(extents: FloatArray, order: int, rank: int) -> tuple[int, ...]:
    """Return the cells along each side of a box, in the kernel's units, with at most about `rank` nodes in all."""
    most = max(1.0, rank / order ** len(extents))
    side = float(math.exp((np.log(np.maximum(extents, 1e-300)).sum() - math.log(most)) / len(extents)))
    while (counts := np.maximum(1, np.ceil(extents / side - 1e-9))).prod() > most:
        side *= 1.01
    return tuple(int(count) for count in counts)


def choose_order(kernel: Kernel, extents: FloatArray, rank: int, weight: float) -> tuple[int, float]:
    """Return the order of polynomials whose grid of `rank` nodes has the least condition number, and that number.

    `extents` (d,) are of the samples' box in the kernel's units; `weight` is the sum of 1 / s2 over the samples.
    """
    numbers = {}
    for order in ORDERS:
        counts = np.array(cut_box(extents, order, rank))
        numbers[order] = 1.0 + weight / counts.prod() * interpolation_error(kernel, order, extents / counts)
    best = min(numbers, key=lambda order: numbers[order])
    return best, numbers[best]


def interpolation_error(kernel: Kernel, order: int, cell: FloatArray) -> float:
    """Return the largest eigenvalue of the error of interpolating the kernel in a cell, for points of weight one.

    `cell` (d,) are its sides, in the kernel's units.
    """
    scales = grid_scales(kernel)
    d, sides = len(scales), cell / np.array(list(scales.values()))
    grid = Grid(tuple(scales), np.zeros(d), sides, (1,) * d, order, np.zeros(1, np.int64))
    places = Places(np.random.default_rng(0).uniform(-1.0, 1.0, (TRIED_POINTS, d)), np.zeros(TRIED_POINTS, np.int64))
    values = np.empty((TRIED_POINTS, grid.functions))
    evaluate_polynomials(places.points, places.cells, coefficients_of_values(order, d)[None], order, values)
    nodes, points = grid.nodes(kernel.n_features), np.zeros((TRIED_POINTS, kernel.n_features))
    points[:, list(scales)] = (places.points + 1.0) / 2.0 * sides
    error = kernel(points, points) - values @ kernel(nodes, nodes) @ values.T
    return float(np.abs(np.linalg.eigvalsh(error)).max() / TRIED_POINTS)


def _grid(operator: BlockedKernelOperator, rank: int, order: int | None) -> Grid:
    """A grid whose occupied cells have about `rank` nodes; with the best of a few orders, where none is named."""
    scales = grid_scales(operator.kernel)
    features, factors = list(scales), np.array(list(scales.values()))
    run: Callable[..., Any] = operator.executor.submit
    boxes = np.array(run("kgridbox", box_task, (operator.context, features), _shares(operator)).result())
    lower, upper = boxes[:, 0].min(axis=0), boxes[:, 1].max(axis=0)
    extents = np.maximum((upper - lower) * factors, 1e-9)
    if order is None:
        weight = float(np.sum(np.broadcast_to(1.0 / np.asarray(operator.noise), (operator.n,))))
        order, _ = choose_order(operator.kernel, extents, rank, weight)
    some = np.sort(np.random.default_rng(0).choice(operator.n, min(operator.n, LOOKED_AT), replace=False))
    sample, most = operator.inputs(some.astype(np.intp)), max(1, rank // order ** len(features))
    nodes = float(rank)
    while True:
        shape = cut_box(extents, order, int(nodes))
        sides = (upper - lower) / np.array(shape)
        grid = Grid(tuple(features), lower, np.maximum(sides, 1e-9 / factors), shape, order, np.zeros(0, np.int64))
        if len(np.unique(grid.place(sample).cells)) <= most:
            parts = run("kgridcells", codes_task, (operator.context, grid), _shares(operator)).result()
            codes = np.unique(np.concatenate(parts))
            if len(codes) <= max(1.0, MOST_BEYOND * most):
                return replace(grid, codes=codes)
        nodes /= COARSER


def _gram(moments: FloatArray, order: int, d: int) -> FloatArray:
    """Inner products of T_a and T_b, (cells, p^d, p^d), from moments of orders below 2 p - 1, by T_a T_b as a sum."""
    a, b = np.arange(order)[:, None], np.arange(order)[None]
    out: FloatArray = np.zeros(())
    for signs in np.ndindex(*(2,) * d):
        index: list[Any] = [slice(None)]
        for axis, sign in enumerate(signs):
            shape = [1] * (2 * d)
            shape[axis], shape[d + axis] = order, order
            index.append((np.abs(a - b) if sign else a + b).reshape(shape))
        out = out + moments[tuple(index)]
    return np.asarray(out.reshape(len(moments), order**d, order**d) / 2.0**d)


def _compressed(evaluator: TileEvaluator, grid: Grid, maps: FloatArray, n_features: int) -> FloatArray:
    """R C R': (m, m), in Fortran order, with R's block of a cell in `maps` (cells, p^d, p^d)."""
    cells, q = len(grid.codes), grid.functions
    features = evaluator.prepare(grid.nodes(n_features))
    rows = grid.nodes(n_features).reshape(cells, q, n_features)
    out = np.empty((cells * q, cells * q), order="F")
    transposed = maps.transpose(0, 2, 1)
    for cell in range(cells):
        strip = maps[cell] @ np.asarray(evaluator.tile(evaluator.prepare(rows[cell]), features))
        columns = strip.reshape(q, cells, q).transpose(1, 0, 2) @ transposed
        out[:, cell * q : (cell + 1) * q] = columns.transpose(0, 2, 1).reshape(cells * q, q)
    return out
