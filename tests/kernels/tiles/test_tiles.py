"""Compiled tiles against the naive kernel: every number of features, precision, distance form and awkward size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential, TileEvaluator

# Relative to the sum of the weights' absolute values times the amplitude.
BOUND = {"single": 1e-5, "double": 1e-12}
DTYPE = {"single": np.float32, "double": np.float64}
# Around one vector (16 rows), around the largest tile (512 rows), and across it.
ROW_COUNTS = (1, 15, 16, 17, 511, 512, 513)
# Around one tile's columns (16) and around a flush to float64 (128).
COLUMN_COUNTS = (1, 4, 15, 16, 17, 127, 128, 129, 300)


def random_kernel(rng: np.random.Generator, d: int, variance: float = 1.7) -> SquaredExponential:
    """Length scales such that kernel values spread over (0, v) at any d."""
    return SquaredExponential(gamma=tuple(rng.uniform(0.2, 1.0, d) / d), variance=variance)


def largest_error(found: np.ndarray, expected: np.ndarray, weights: np.ndarray, variance: float) -> float:
    """Largest error over targets, relative to sum |w| v."""
    assert found.shape == expected.shape
    return float(np.max(np.abs(found - expected) / (np.abs(weights).sum(axis=0) * variance)))


@pytest.mark.parametrize("d", [*range(1, 14), 20, 40])
def test_all_products_agree_with_the_naive_kernel(
    rng: np.random.Generator, d: int, precision: str, expanded: bool
) -> None:
    kernel = random_kernel(rng, d)
    evaluator = TileEvaluator(kernel, precision, expanded=expanded)
    X, Z = rng.standard_normal((83, d)), rng.standard_normal((37, d))
    A, B = evaluator.prepare(X), evaluator.prepare(Z)
    W, V = rng.standard_normal((37, 3)), rng.standard_normal((83, 3))
    K = kernel(X, Z)

    tile = evaluator.tile(A, B)
    assert tile.dtype == DTYPE[precision]
    assert tile.shape == K.shape
    assert np.abs(tile - K).max() <= BOUND[precision] * kernel.variance
    # A tile that is far below its bound by chance would also pass with wrong values everywhere near zero.
    assert 0.05 < K.mean() < 0.95 * kernel.variance

    product = evaluator.matmat(A, B, W)
    assert product.dtype == np.float64
    assert largest_error(product, K @ W, W, kernel.variance) <= BOUND[precision]

    left, right = evaluator.pair(A, B, W, V)
    assert largest_error(left, K @ W, W, kernel.variance) <= BOUND[precision]
    assert largest_error(right, K.T @ V, V, kernel.variance) <= BOUND[precision]


@pytest.mark.parametrize("rows", ROW_COUNTS)
@pytest.mark.parametrize("targets", [1, 2, 5])
def test_row_counts_around_vector_and_tile_boundaries(
    rng: np.random.Generator, rows: int, targets: int, precision: str, expanded: bool
) -> None:
    kernel = random_kernel(rng, 3, variance=0.4)
    evaluator = TileEvaluator(kernel, precision, expanded=expanded)
    X, Z = rng.standard_normal((rows, 3)), rng.standard_normal((21, 3))
    A, B = evaluator.prepare(X), evaluator.prepare(Z)
    W, V = rng.standard_normal((21, targets)), rng.standard_normal((rows, targets))
    K = kernel(X, Z)
    assert np.abs(evaluator.tile(A, B) - K).max() <= BOUND[precision] * kernel.variance
    assert largest_error(evaluator.matmat(A, B, W), K @ W, W, kernel.variance) <= BOUND[precision]
    left, right = evaluator.pair(A, B, W, V)
    assert largest_error(left, K @ W, W, kernel.variance) <= BOUND[precision]
    assert largest_error(right, K.T @ V, V, kernel.variance) <= BOUND[precision]


@pytest.mark.parametrize("columns", COLUMN_COUNTS)
def test_column_counts_around_tile_and_flush_boundaries(
    rng: np.random.Generator, columns: int, precision: str, expanded: bool
) -> None:
    kernel = random_kernel(rng, 5)
    evaluator = TileEvaluator(kernel, precision, expanded=expanded)
    X, Z = rng.standard_normal((70, 5)), rng.standard_normal((columns, 5))
    A, B = evaluator.prepare(X), evaluator.prepare(Z)
    W, V = rng.standard_normal((columns, 2)), rng.standard_normal((70, 2))
    K = kernel(X, Z)
    assert np.abs(evaluator.tile(A, B) - K).max() <= BOUND[precision] * kernel.variance
    assert largest_error(evaluator.matmat(A, B, W), K @ W, W, kernel.variance) <= BOUND[precision]
    left, right = evaluator.pair(A, B, W, V)
    assert largest_error(left, K @ W, W, kernel.variance) <= BOUND[precision]
    assert largest_error(right, K.T @ V, V, kernel.variance) <= BOUND[precision]


def test_float32_sums_do_not_lose_digits_with_the_number_of_columns(rng: np.random.Generator) -> None:
    # All entries positive: a float32 running total over 20,000 of them would be off by far more than one rounding.
    kernel = SquaredExponential(gamma=(0.01, 0.01))
    evaluator = TileEvaluator(kernel, "single")
    X, Z = rng.standard_normal((17, 2)), rng.standard_normal((20_000, 2))
    W = rng.uniform(0.5, 1.5, (20_000, 1))
    product = evaluator.matmat(evaluator.prepare(X), evaluator.prepare(Z), W)
    np.testing.assert_allclose(product, kernel(X, Z) @ W, rtol=3e-7)


@given(
    d=st.integers(1, 24),
    rows=st.integers(1, 70),
    columns=st.integers(1, 70),
    targets=st.integers(1, 4),
    variance=st.floats(0.01, 100.0),
    precise=st.booleans(),
    expanded=st.sampled_from([None, False, True]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape_agrees_with_the_naive_kernel(d, rows, columns, targets, variance, precise, expanded, seed) -> None:
    rng, precision = np.random.default_rng(seed), "double" if precise else "single"
    kernel = random_kernel(rng, d, variance)
    evaluator = TileEvaluator(kernel, precision, expanded=expanded)
    X, Z = rng.standard_normal((rows, d)), rng.standard_normal((columns, d))
    W, V = rng.standard_normal((columns, targets)), rng.standard_normal((rows, targets))
    A, B, K = evaluator.prepare(X), evaluator.prepare(Z), kernel(X, Z)
    left, right = evaluator.pair(A, B, W, V)
    assert np.abs(evaluator.tile(A, B) - K).max() <= BOUND[precision] * variance
    assert largest_error(evaluator.matmat(A, B, W), K @ W, W, variance) <= BOUND[precision]
    assert largest_error(left, K @ W, W, variance) <= BOUND[precision]
    assert largest_error(right, K.T @ V, V, variance) <= BOUND[precision]


def test_features_with_zero_gamma_change_nothing(rng: np.random.Generator, precision: str, expanded: bool) -> None:
    full = SquaredExponential(gamma=(0.0, 0.4, 0.0, 0.2), variance=1.3)
    reduced = SquaredExponential(gamma=(0.4, 0.2), variance=1.3)
    X, W = rng.standard_normal((40, 4)), rng.standard_normal((40, 2))
    wide, narrow = (TileEvaluator(kernel, precision, expanded=expanded) for kernel in (full, reduced))
    A, B = wide.prepare(X), narrow.prepare(X[:, [1, 3]])
    np.testing.assert_array_equal(wide.tile(A, A), narrow.tile(B, B))
    np.testing.assert_array_equal(wide.matmat(A, A, W), narrow.matmat(B, B, W))
    assert np.abs(wide.tile(A, A) - full(X, X)).max() <= BOUND[precision] * full.variance


def test_all_gammas_zero_is_a_constant_kernel(rng: np.random.Generator, precision: str, expanded: bool) -> None:
    evaluator = TileEvaluator(SquaredExponential(gamma=(0.0, 0.0), variance=3.0), precision, expanded=expanded)
    A = evaluator.prepare(rng.standard_normal((20, 2)))
    np.testing.assert_array_equal(evaluator.tile(A, A), np.full((20, 20), 3.0))
    np.testing.assert_allclose(evaluator.matmat(A, A, np.ones((20, 1))), 60.0, rtol=1e-6)


@pytest.mark.parametrize("d", [1, 4, 12])
def test_diagonal_is_the_amplitude_to_the_bit_by_differences(rng: np.random.Generator, d: int, precision: str) -> None:
    kernel = random_kernel(rng, d, variance=2.7)
    evaluator = TileEvaluator(kernel, precision, expanded=False)
    A = evaluator.prepare(10.0 * rng.standard_normal((100, d)))
    tile = evaluator.tile(A, A)
    np.testing.assert_array_equal(tile.diagonal(), np.full(100, DTYPE[precision](2.7)))
    np.testing.assert_array_equal(tile, tile.T)
    # One column with weight one: the product is the entry.
    column = evaluator.matmat(A.take(np.array([3])), A.take(np.array([3])), np.ones((1, 1)))
    assert column[0, 0] == DTYPE[precision](2.7)


@pytest.mark.parametrize("spread", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("d", [4, 12])
def test_expanded_form_loses_no_more_than_the_norms_rounding(
    rng: np.random.Generator, d: int, spread: float, precision: str
) -> None:
    # Pairs of equal and of close rows, far from the origin: the worst that the expanded form can meet.
    kernel = random_kernel(rng, d, variance=2.7)
    evaluator = TileEvaluator(kernel, precision, expanded=True)
    X = spread * rng.standard_normal((300, d))
    Z = X + 0.2 * rng.standard_normal((300, d))
    A, B = evaluator.prepare(X), evaluator.prepare(Z)
    largest_squared_norm = float(A.squared_norms.max())
    bound = 2.7 * (largest_squared_norm + 4.0) * 4 * np.finfo(DTYPE[precision]).eps
    assert np.abs(evaluator.tile(A, A) - kernel(X, X)).max() <= bound
    assert np.abs(evaluator.tile(A, B) - kernel(X, Z)).max() <= bound


def test_float64_tiles_are_positive_definite_with_a_little_noise(rng: np.random.Generator, expanded: bool) -> None:
    # Nearly equal rows: the kernel matrix alone is singular to working precision.
    X = np.repeat(rng.standard_normal((30, 6)), 5, axis=0) + 1e-7 * rng.standard_normal((150, 6))
    evaluator = TileEvaluator(random_kernel(rng, 6, variance=1.0), "double", expanded=expanded)
    A = evaluator.prepare(X)
    K = np.array(evaluator.tile(A, A))
    K = (K + K.T) / 2
    noise_variance = 1e-9
    assert np.linalg.eigvalsh(K).min() < noise_variance
    assert np.linalg.eigvalsh(K + noise_variance * np.eye(150)).min() > 0.9 * noise_variance


@pytest.mark.parametrize(
    ("precision", "d", "gamma", "chosen"),
    [
        ("single", 2, 0.5, False),
        ("single", 40, 0.5, True),
        # Many short length scales: the expanded form would lose too many of float32's digits.
        ("single", 40, 5.0, False),
        # What is proven is evaluated in double precision.
        ("double", 40, 0.5, False),
    ],
)
def test_default_form_is_accurate_and_as_documented(
    rng: np.random.Generator, precision: str, d: int, gamma: float, chosen: bool
) -> None:
    kernel = SquaredExponential(gamma=(gamma,) * d)
    X = rng.standard_normal((60, d))
    Z = X + 0.1 * rng.standard_normal((60, d)) / np.sqrt(d)
    tiles = {}
    for form in (None, False, True):
        evaluator = TileEvaluator(kernel, precision, expanded=form)
        tiles[form] = evaluator.tile(evaluator.prepare(X), evaluator.prepare(Z))
    assert not np.array_equal(tiles[False], tiles[True])
    np.testing.assert_array_equal(tiles[None], tiles[chosen])
    # At the threshold of 64 for the expected squared norm the expanded form is at its worst.
    assert np.abs(tiles[None] - kernel(X, Z)).max() <= (5e-5 if precision == "single" else 1e-12)


def test_no_rows_and_no_columns(rng: np.random.Generator, precision: str, expanded: bool) -> None:
    evaluator = TileEvaluator(random_kernel(rng, 3), precision, expanded=expanded)
    some, none = evaluator.prepare(rng.standard_normal((5, 3))), evaluator.prepare(np.empty((0, 3)))
    assert evaluator.tile(some, none).shape == (5, 0)
    assert evaluator.tile(none, some).shape == (0, 5)
    np.testing.assert_array_equal(evaluator.matmat(some, none, np.empty((0, 2))), np.zeros((5, 2)))
    assert evaluator.matmat(none, some, np.ones((5, 2))).shape == (0, 2)


def test_misuse_is_told() -> None:
    evaluator = TileEvaluator(SquaredExponential(gamma=(0.5, 0.5)))
    with pytest.raises(InputError, match='precision must be "single" or "double"; got \'half\''):
        TileEvaluator(evaluator.kernel, "half")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"expected rows of 2 features; got an array of shape \(4, 3\)"):
        evaluator.prepare(np.zeros((4, 3)))
    A, B = evaluator.prepare(np.zeros((4, 2))), evaluator.prepare(np.zeros((3, 2)))
    for weights in (np.zeros((4, 1)), np.zeros(3)):
        with pytest.raises(InputError, match=r"expected weights of shape \(3, t\) for 3 kernel columns"):
            evaluator.matmat(A, B, weights)
    for weights in (np.zeros((3, 1)), np.zeros((4, 2))):
        with pytest.raises(InputError, match=r"expected weights \(3, t\) and \(4, t\)"):
            evaluator.pair(A, B, np.zeros((3, 1)), weights)
