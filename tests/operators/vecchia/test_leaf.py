"""One leaf: its rows of T and V against float64 algebra, and products with them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

from dkgp.kernels import SquaredExponential, TileEvaluator
from dkgp.operators.vecchia.leaves import Leaf, factor_leaf, takes_double, values_held
from dkgp.operators.vecchia.products import FEW_VECTORS, backward, forward, sweep

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
