"""One leaf: its rows of T and V against float64 algebra, and products with them."""

from __future__ import annotations

import errno
import os
import tracemalloc
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
    """Of a kernel of low rank, exactly: |phi/|phi| - phi'/|phi'||^2 = 2 - 2 k(x, x') / sqrt(k(x, x) k(x', x'))."""
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
