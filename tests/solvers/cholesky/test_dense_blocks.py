from __future__ import annotations

import numpy as np
import pytest

from dkgp.solvers.cholesky.dense import factor_lower, subtract_product, subtract_square

both_types = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@both_types
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (5, 3, 7), (64, 33, 20), (4, 0, 3), (4, 2, 0)])
def test_products_on_views(rng: np.random.Generator, dtype: type, m: int, n: int, k: int) -> None:
    whole = rng.standard_normal((m + 2, n + 3)).astype(dtype)
    left, right = rng.standard_normal((m, k + 1)).astype(dtype), rng.standard_normal((n, k + 4)).astype(dtype)
    expected = whole.copy()
    expected[1 : m + 1, 2 : n + 2] -= left[:, :k] @ right[:, 1 : k + 1].T
    subtract_product(whole[1 : m + 1, 2 : n + 2], left[:, :k], right[:, 1 : k + 1])
    np.testing.assert_allclose(whole, expected, rtol=0, atol=100 * np.finfo(dtype).eps)


@both_types
def test_squares_touch_the_lower_triangle_alone(rng: np.random.Generator, dtype: type) -> None:
    block, left = rng.standard_normal((9, 12)).astype(dtype), rng.standard_normal((9, 4)).astype(dtype)
    expected = block.copy()
    expected[:, 2:11] -= np.tril(left[:, 1:] @ left[:, 1:].T)
    subtract_square(block[:, 2:11], left[:, 1:])
    np.testing.assert_allclose(block, expected, rtol=0, atol=100 * np.finfo(dtype).eps)


@both_types
def test_factor(rng: np.random.Generator, dtype: type) -> None:
    half = rng.standard_normal((20, 20))
    matrix = (half @ half.T + 20 * np.eye(20)).astype(dtype)
    block = np.zeros((20, 25), dtype)
    block[:, 3:23] = matrix
    assert factor_lower(block[:, 3:23]) == 0
    tolerance = 1000 * np.finfo(dtype).eps
    np.testing.assert_allclose(np.tril(block[:, 3:23]), np.linalg.cholesky(matrix), rtol=tolerance, atol=tolerance)


@both_types
@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_where_it_is_not_positive_definite(dtype: type, value: float) -> None:
    matrix = np.eye(7, dtype=dtype)
    matrix[4, 4] = value
    assert factor_lower(matrix) == 5


def test_what_does_not_fit_is_refused_before_blas_sees_it() -> None:
    block = np.zeros((4, 4))
    with pytest.raises(ValueError, match="shapes do not fit"):
        subtract_product(block, np.zeros((4, 2)), np.zeros((3, 2)))
    with pytest.raises(ValueError, match="shapes do not fit"):
        subtract_square(block, np.zeros((3, 2)))
    with pytest.raises(ValueError, match="share one type and have contiguous rows"):
        subtract_product(block, np.zeros((4, 2), np.float32), np.zeros((4, 2)))
    with pytest.raises(ValueError, match="contiguous rows"):
        subtract_square(block, np.zeros((2, 4)).T)
    with pytest.raises(ValueError, match="square"):
        factor_lower(block[:3])
