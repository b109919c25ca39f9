"""Products of a float32 factor with float64 vectors, against NumPy's on a float64 copy."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.operators.low_rank.products import FEW_VECTORS, factor_times, factor_transposed_times

SHAPES = [(1, 1), (1, 40), (3, 16), (4, 17), (5, 15), (1027, 33), (130, 129)]


def problem(rows: int, rank: int, vectors: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng([rows, rank, vectors])
    factor = rng.standard_normal((rows, rank)).astype(np.float32)
    return factor, rng.standard_normal((rank, vectors)), rng.standard_normal((rows, vectors))


@pytest.mark.parametrize("vectors", [1, 2, FEW_VECTORS, FEW_VECTORS + 1])
@pytest.mark.parametrize(("rows", "rank"), SHAPES)
def test_against_a_double_copy(rows: int, rank: int, vectors: int) -> None:
    factor, weights, left = problem(rows, rank, vectors)
    copy = factor.astype(np.float64)
    scale = np.abs(copy).sum()
    np.testing.assert_allclose(factor_times(factor, weights), copy @ weights, rtol=0, atol=1e-15 * scale)
    np.testing.assert_allclose(factor_transposed_times(factor, left), copy.T @ left, rtol=0, atol=1e-15 * scale)


def test_products_are_summed_in_double() -> None:
    # In float32 the small terms would vanish beside the first.
    factor = np.ones((1, 1001), np.float32)
    weights = np.full((1001, 1), 1e-9)
    weights[0] = 1.0
    assert factor_times(factor, weights)[0, 0] == pytest.approx(1.0 + 1e-6, rel=1e-12)
    assert factor_transposed_times(factor.T.copy(), weights)[0, 0] == pytest.approx(1.0 + 1e-6, rel=1e-12)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    factor, weights, _ = problem(41, 70, 2)
    whole = factor_times(factor, weights)
    for start in (0, 1, 2, 3, 38):
        np.testing.assert_array_equal(factor_times(factor[start:], weights), whole[start:])
