"""One leaf: its rows of T and V against float64 algebra, and products with them."""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import LocalExecutor
from dkgp.errors import InputError
from dkgp.kernels import Kernel, SquaredExponential, TileEvaluator, Wendland
from dkgp.kernels.expression import parse_kernel
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.vecchia.factor import VecchiaFactor, vecchia_bytes
from dkgp.operators.vecchia.halos import LeafTree, OrderedPoints, kd_order, tree_bytes
from dkgp.operators.vecchia.leaves import (
    EMBEDDING_RANK,
    Leaf,
    ScratchFile,
    embed,
    embedding_landmarks,
    factor_leaf,
    is_one_distance,
    takes_double,
    values_held,
)
from dkgp.operators.vecchia.products import FEW_VECTORS, backward, forward, sweep
from dkgp.solvers import GradientInfNorm, solve
from dkgp.solvers.registry import build_solver
from tests.operators.vecchia.test_factor import by_force

KERNEL = SquaredExponential(gamma=(0.6, 0.9), variance=1.7)
SIZES = [(0, 1), (0, 70), (5, 3), (33, 64), (100, 130), (16, 65)]


def rows_of_t(matrix: np.ndarray, halo: int) -> np.ndarray:
    """[-L22^-1 L21 L11^-1, L22^-1] in float64, by the inverse of L as a whole."""
    lower = np.linalg.cholesky(matrix)
    return scipy.linalg.solve_triangular(lower, np.eye(len(matrix)), lower=True)[halo:]


def dense(leaf: Leaf) -> np.ndarray:
    rows = np.zeros((leaf.padded_rows, leaf.width))
    for taken, strip in leaf.strips():
        rows[taken, : strip.shape[1]] = strip
    assert not rows[leaf.rows :].any()
    assert not rows[:, leaf.halo + leaf.rows :].any()
    return rows[: leaf.rows, : leaf.halo + leaf.rows]


def made(
    rng: np.random.Generator, halo: int, rows: int, rank: int, precision: str, noise: object = 0.1
) -> tuple[Leaf, np.ndarray, np.ndarray | None]:
    X = rng.standard_normal((halo + rows, 2))
    evaluator = TileEvaluator(KERNEL, precision)
    factor = 0.1 * rng.standard_normal((halo + rows, rank)).astype(evaluator.dtype) if rank else None
    matrix = KERNEL(X, X) + np.eye(halo + rows) * noise
    if factor is not None:
        factor *= np.float32(0.1)
        matrix -= factor.astype(np.float64) @ factor.astype(np.float64).T
    leaf = factor_leaf(evaluator, evaluator.prepare(X), halo, noise, factor)
    assert leaf is not None
    assert len(leaf.values) == values_held(halo, rows)
    return leaf, rows_of_t(matrix, halo), factor


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("rank", [0, 3, 20])
@pytest.mark.parametrize(("halo", "rows"), SIZES)
def test_rows_against_the_inverse_of_a_whole_factor(
    rng: np.random.Generator, halo: int, rows: int, rank: int, precision: str
) -> None:
    leaf, expected, factor = made(rng, halo, rows, rank, precision)
    scale = np.abs(expected).max()
    tolerance = 3e-7 if precision == "double" else 3e-5
    np.testing.assert_allclose(dense(leaf), expected, rtol=0, atol=tolerance * scale)
    assert leaf.double == (precision == "double")
    if factor is not None:
        found = leaf.projected[:rows, :rank]
        np.testing.assert_allclose(found, expected @ factor, rtol=0, atol=tolerance * scale)
        assert not leaf.projected[rows:].any()
        assert not leaf.projected[:, rank:].any()


def test_noise_by_sample(rng: np.random.Generator) -> None:
    noise = rng.uniform(0.01, 1.0, 70)
    leaf, expected, _ = made(rng, 30, 40, 0, "double", noise)
    np.testing.assert_allclose(dense(leaf), expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("vectors", [1, 3, FEW_VECTORS, FEW_VECTORS + 1])
@pytest.mark.parametrize("rank", [0, 20])
@pytest.mark.parametrize(("halo", "rows"), SIZES)
def test_products_against_dense_ones(rng: np.random.Generator, halo: int, rows: int, rank: int, vectors: int) -> None:
    leaf, _, _ = made(rng, halo, rows, rank, "single")
    T, V = dense(leaf), leaf.projected[:rows, :rank].astype(np.float64)
    r, w = rng.standard_normal((halo + rows, vectors)), rng.standard_normal((rank, vectors))
    atol = (1e-13 if vectors <= FEW_VECTORS else 1e-5) * np.abs(T).sum()
    image, projected = forward(leaf, r)
    np.testing.assert_allclose(image, T @ r, rtol=0, atol=atol)
    np.testing.assert_allclose(projected, V.T @ (T @ r), rtol=0, atol=atol)
    np.testing.assert_allclose(sweep(leaf, r), T.T @ (T @ r), rtol=0, atol=atol)
    np.testing.assert_allclose(backward(leaf, image, w), T.T @ (image - V @ w), rtol=0, atol=atol * 10)


@pytest.mark.parametrize("vectors", [1, FEW_VECTORS, FEW_VECTORS + 1])
def test_products_of_a_double_leaf_are_double(rng: np.random.Generator, vectors: int) -> None:
    leaf, _, _ = made(rng, 40, 50, 0, "double")
    T, r = dense(leaf), rng.standard_normal((90, vectors))
    np.testing.assert_allclose(sweep(leaf, r), T.T @ (T @ r), rtol=0, atol=1e-13 * np.abs(T).sum())


def test_vectors_do_not_depend_on_their_neighbours(rng: np.random.Generator) -> None:
    leaf, _, _ = made(rng, 45, 70, 20, "single")
    r = rng.standard_normal((115, FEW_VECTORS))
    one = np.hstack([sweep(leaf, r[:, [k]]) for k in range(FEW_VECTORS)])
    np.testing.assert_array_equal(sweep(leaf, r), one)


def test_what_single_precision_cannot_factor_is_none(rng: np.random.Generator) -> None:
    X = np.repeat(rng.standard_normal((10, 2)), 10, axis=0)
    single, double = TileEvaluator(KERNEL, "single"), TileEvaluator(KERNEL, "double")
    assert factor_leaf(single, single.prepare(X), 50, 1e-9, None) is None
    leaf = factor_leaf(double, double.prepare(X), 50, 1e-9, None)
    assert leaf is not None
    assert factor_leaf(double, double.prepare(X), 50, 1e-18, None) is None
    assert factor_leaf(double, double.prepare(X), 50, 1e-18, None, 1e-10) is not None


def test_little_noise_takes_double() -> None:
    assert not takes_double(3000, 1e-3, 1.0)
    assert takes_double(3000, 1e-5, 1.0)
    assert takes_double(3000, 1e-3, 1000.0)


# Points that tell near samples from far ones, of kernels that are no function of one distance.


D = 3


def points_of(kernel: Kernel, X: np.ndarray, executor: LocalExecutor) -> np.ndarray:
    with BlockedKernelOperator(kernel, 0.1, ArrayInputs(X), executor) as operator:
        points = embed(operator.context, embedding_landmarks(operator))
        assert points.shape[1] <= max(EMBEDDING_RANK, kernel.n_features)
        return points


def squared_distances(points: np.ndarray) -> np.ndarray:
    wide = points.astype(np.float64)
    return np.asarray(((wide[:, None] - wide[None]) ** 2).sum(axis=2))


@pytest.mark.parametrize("text", ["linear", "polynomial(degree=2)", "linear + constant"])
def test_distances_are_the_kernels_own(text: str, rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    """For a kernel of low rank it is exact: |phi/|phi| - phi'/|phi'||^2 = 2 - 2 k(x, x') / sqrt(k(x, x) k(x', x'))."""
    X, kernel = rng.normal(size=(200, D)), parse_kernel(text, D)
    assert not is_one_distance(TileEvaluator(kernel, "single"))
    K = kernel(X, X)
    scale = np.sqrt(K.diagonal())
    expected = 2.0 - 2.0 * K / scale / scale[:, None]
    np.testing.assert_allclose(squared_distances(points_of(kernel, X, one_thread)), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("text", ["rbf", "matern32(length_scale=2)"])
def test_of_one_distance_it_is_that_one(text: str, rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    X, kernel = rng.normal(size=(200, D)), parse_kernel(text, D)
    assert is_one_distance(TileEvaluator(kernel, "single"))
    found = squared_distances(points_of(kernel, X, one_thread))
    order = np.argsort(-kernel(X[:1], X)[0])
    assert (np.diff(found[0, order]) >= -1e-5).all()


def test_samples_at_which_the_kernel_vanishes_are_near_each_other(
    rng: np.random.Generator, one_thread: LocalExecutor
) -> None:
    """Whole blocks of them as well: they are not measured by their own largest."""
    X = np.zeros((200, D))
    X[:5] = rng.normal(size=(5, D))
    found = points_of(parse_kernel("linear", D), X, one_thread)
    assert np.isfinite(found).all()
    assert not found[5:].any()
    np.testing.assert_allclose(np.linalg.norm(found[:5], axis=1), 1.0, atol=1e-5)
    kernel = parse_kernel("linear", D)
    with BlockedKernelOperator(kernel, 0.1, ArrayInputs(X), one_thread) as operator:
        factor = VecchiaFactor(operator, 200, 20)
        applied = factor.apply(rng.normal(size=(200, 1)))
        assert np.isfinite(applied).all()
        y = rng.normal(size=(200, 1))
        expected = np.linalg.solve(kernel(X, X) + 0.1 * np.eye(200), y)
        np.testing.assert_allclose(factor.apply(y), expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("size", [0.0, 1e-160, 1e160])
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_a_kernel_that_is_zero_or_not_finite_is_refused(
    size: float, rng: np.random.Generator, one_thread: LocalExecutor
) -> None:
    X = size * rng.normal(size=(200, D))
    with (
        BlockedKernelOperator(parse_kernel("linear", D), 0.1, ArrayInputs(X), one_thread) as operator,
        pytest.raises(InputError, match=f"which is {'zero' if size < 1.0 else 'not finite'}.*Scale the inputs"),
    ):
        VecchiaFactor(operator, 80, 40)


@pytest.mark.parametrize("kernel", [SquaredExponential((0.0, 0.0), variance=1.5), Wendland((0.0, 0.0), variance=1.5)])
def test_a_distance_without_features_is_a_constant(
    kernel: Kernel, one_thread: LocalExecutor, rng: np.random.Generator
) -> None:
    # K = c 1 1', so alpha = (y - c sum(y) / (s2 + c n)) / s2.
    X, y, s2 = rng.standard_normal((600, 2)), rng.standard_normal((600, 1)), 0.02
    with BlockedKernelOperator(kernel, s2, ArrayInputs(X), one_thread) as operator:
        alpha = solve(operator, y, solver=build_solver("pcg"), stopping=GradientInfNorm(1e-7)).alpha
    np.testing.assert_allclose(alpha, (y - 1.5 * y.sum() / (s2 + 1.5 * 600)) / s2, rtol=1e-4, atol=1e-4)


# Foreseen bytes against those that factors take.


@pytest.mark.spread(2)
@pytest.mark.parametrize(("halo", "leaf", "rank"), [(200, 100, 0), (0, 130, 40), (150, 75, 64), (5000, 500, 0)])
def test_bytes_kept_are_foreseen(one_thread: LocalExecutor, halo: int, leaf: int, rank: int) -> None:
    n = 1500
    X = np.random.default_rng(0).standard_normal((n, 3))
    operator = BlockedKernelOperator(SquaredExponential(gamma=(0.5,) * 3), 0.01, ArrayInputs(X), one_thread)
    foreseen = vecchia_bytes(n, halo, leaf, rank, width=3)
    marks = np.arange(rank, dtype=np.intp)
    worker_cache().clear()
    VecchiaFactor(operator, min(10, halo), 10, marks)  # compiles
    tracemalloc.start()
    try:
        factor = VecchiaFactor(operator, halo, leaf, marks)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0.8 * foreseen.kept <= factor.nbytes <= 1.1 * foreseen.kept + 4096
    assert peak <= 1.1 * foreseen.in_process(1) + 1_000_000


# Leaves in a scratch file: read as they were written, and nothing left of one that did not fit.


def leaf(rng: np.random.Generator, halo: int, rows: int, rank: int) -> Leaf:
    values = rng.standard_normal(values_held(halo, rows)).astype(np.float32)
    return Leaf(halo, rows, rank, values, rng.standard_normal((-(-rows // 4) * 4, rank)).astype(np.float32))


def test_leaves_are_read_as_they_were_written(rng: np.random.Generator) -> None:
    leaves = [leaf(rng, 30, 20, 0), leaf(rng, 0, 7, 16), leaf(rng, 100, 64, 32)]
    file = ScratchFile()
    spilled = [file.append(each) for each in leaves]
    for each, there in reversed(list(zip(leaves, spilled, strict=True))):
        found = there.read()
        assert found.spilled
        assert (found.halo, found.rows, found.rank) == (each.halo, each.rows, each.rank)
        np.testing.assert_array_equal(found.values, each.values)
        np.testing.assert_array_equal(found.projected, each.projected)


def test_a_disk_that_gets_full_leaves_the_file_as_it_was(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, first, second = ScratchFile(), leaf(rng, 30, 20, 16), leaf(rng, 50, 40, 16)
    spilled = file.append(first)
    write, room = os.pwrite, 1000

    def little(descriptor: int, content: Any, place: int) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = write(descriptor, content[:room], place)
        room -= count
        return count

    monkeypatch.setattr(os, "pwrite", little)
    size = os.fstat(file._file.fileno()).st_size
    with pytest.raises(OSError, match="No space left"):
        file.append(second)
    assert os.fstat(file._file.fileno()).st_size == size
    room = 10**9
    np.testing.assert_array_equal(file.append(second).read().values, second.values)
    np.testing.assert_array_equal(spilled.read().values, first.values)


def test_a_file_that_is_cut_short_is_an_error(rng: np.random.Generator) -> None:
    file = ScratchFile()
    spilled = file.append(leaf(rng, 30, 20, 16))
    os.ftruncate(file._file.fileno(), 100)
    with pytest.raises(OSError, match="ends at byte 100"):
        spilled.read()


# Searches of a limited number of leaves: against a loop over their definition, and what they prove against all.


def boxes(points: np.ndarray, leaf: int) -> tuple[np.ndarray, np.ndarray]:
    order, bounds = kd_order(points, leaf)
    placed = points[order]
    parts = [placed[start:stop] for start, stop in pairwise(bounds)]
    return np.array([part.min(axis=0) for part in parts]), np.array([part.max(axis=0) for part in parts])


def level_by_level(
    low: np.ndarray, high: np.ndarray, at: tuple[np.ndarray, np.ndarray], before: int, radius: float, budget: int
) -> tuple[list[int], float]:
    """The definition, in Python: ranges of leaves that are cut in two, the nearest middles of those within reach."""

    def within(first: int, count: int) -> tuple[np.float32, np.float32]:
        box_low, box_high = low[first : first + count].min(axis=0), high[first : first + count].max(axis=0)
        box = middle = np.float32(0.0)
        for a, b, c, d in zip(box_low, box_high, *at, strict=True):
            box += max(a - d, c - b, np.float32(0.0)) ** 2
            middle += ((a + b) - (c + d)) ** 2
        return box * np.float32(1.0 - 1e-4), middle

    ranges, unseen = [(0, len(low))], np.inf
    while any(count > 1 for _, count in ranges):
        halves: list[tuple[int, int]] = []
        for first, count in ranges:
            below = count // 2
            halves += [(first, 1)] if count == 1 else [(first, below), (first + below, count - below)]
        reached = [each for each in halves if each[0] < before and within(*each)[0] <= radius]
        ranked = sorted(range(len(reached)), key=lambda place: (within(*reached[place])[1], place))
        unseen = min([unseen, *(float(within(*reached[place])[0]) for place in ranked[budget:])])
        ranges = [reached[place] for place in sorted(ranked[:budget])]
    return sorted(first for first, _ in ranges), unseen


@pytest.mark.parametrize(("n", "features", "radius"), [(300, 2, 0.05), (300, 2, np.inf), (230, 9, np.inf), (7, 3, 1.0)])
@pytest.mark.parametrize("budget", [1, 3, 8, 100])
def test_a_search_is_its_definition(
    n: int, features: int, radius: float, budget: int, rng: np.random.Generator
) -> None:
    low, high = boxes(rng.uniform(size=(n, features)).astype(np.float32), 7)
    tree = LeafTree(low, high)
    assert tree.nbytes <= tree_bytes(len(low), features)
    for before in {1, len(low) // 3 + 1, len(low)}:
        at = (low[before - 1], high[before - 1]) if before < len(low) else (low[0] + 0.1, low[0] + 0.1)
        places, unseen = tree.near(*at, before, radius, budget)
        expected, left_out = level_by_level(low, high, at, before, radius, budget)
        assert (places.tolist(), unseen) == (expected, left_out)


def test_boxes_that_are_alike_are_taken_in_order() -> None:
    low = np.zeros((40, 2), np.float32)
    places, unseen = LeafTree(low, low).near(low[0], low[0], 40, 0.0, 6)
    assert (places.tolist(), unseen) == level_by_level(low, low, (low[0], low[0]), 40, 0.0, 6)
    assert (len(places), unseen) == (6, 0.0)


@pytest.mark.parametrize("features", [2, 5, 14])
def test_what_is_proven_is_the_nearest_whatever_the_limit(features: int, rng: np.random.Generator) -> None:
    """Whole numbers, too, with ties and duplicates everywhere; and limits that are no limit prove everything."""
    counted: Counter[bool] = Counter()
    for points in (rng.standard_normal((900, features)), rng.integers(0, 3, (900, features))):
        points = points.astype(np.float32)
        order, bounds = kd_order(points, 10)
        for searched in (1, 6, 15, 40, 90):
            found = OrderedPoints(points[order], order, bounds, searched)
            for leaf in range(0, 90, 7):
                halo, is_proven = found.searched_halo(leaf, 20)
                assert len(np.unique(halo)) == min(20, bounds[leaf])
                assert not len(halo) or halo.max() < bounds[leaf]
                counted[is_proven] += 1
                if is_proven:
                    np.testing.assert_array_equal(halo, by_force(points, found, leaf, 20))
                assert is_proven or searched < leaf
            for point in points[:5] + np.float32(0.3):
                near, is_proven = found.near(point, 20)
                squares = ((points[order].astype(np.float64) - point) ** 2).sum(axis=1)
                if is_proven:
                    assert squares[near].max() <= np.sort(squares)[19] * (1.0 + 1e-5)
                assert is_proven or searched < 90
    assert min(counted[True], counted[False]) > 10


def test_of_many_features_most_are_found_in_a_part_of_the_leaves(rng: np.random.Generator) -> None:
    points = rng.uniform(size=(12_000, 16)).astype(np.float32)
    order, bounds = kd_order(points, 20)
    limited, exact = (OrderedPoints(points[order], order, bounds, searched) for searched in (100, None))
    leaves = range(400, 600, 20)
    shares = [np.isin(limited.halo(leaf, 60), exact.halo(leaf, 60)).mean() for leaf in leaves]
    # A fifth of the leaves before these; drawn at random they would have a fifth.
    assert 0.6 < np.mean(shares) < 1.0


def test_a_search_looks_at_as_many_leaves_as_it_may_however_many_there_are(rng: np.random.Generator) -> None:
    """Nothing is far in many features: samples at hand grow with the budget alone."""
    for n in (4_000, 16_000):
        points = rng.uniform(size=(n, 30)).astype(np.float32)
        low, high = boxes(points, 20)
        places, _ = LeafTree(low, high).near(low[-1], high[-1], len(low), np.inf, 50)
        assert len(np.unique(places)) == len(places) == 50
