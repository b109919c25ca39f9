"""Squared distances by one matrix product, and by differences where that would leave few digits; their spread."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dkgp.kernels.distance import spread, squared_distances


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_near_pairs_are_taken_by_differences_and_no_others(rng: np.random.Generator, offset: float) -> None:
    """A share of 1e-9 of the largest squared norms parts them."""
    A = offset + rng.normal(size=(40, 3))
    largest = 2.0 * float(np.max(np.sum(A * A, axis=1)))
    steps = np.sqrt(largest) * 10.0 ** rng.uniform(-7.0, -2.5, 40)
    B = A + steps[:, None] * np.array([1.0, 0.0, 0.0])
    found = squared_distances(A, B)
    by_product = -2.0 * (A @ B.T) + np.einsum("il,il->i", A, A)[:, None] + np.einsum("jl,jl->j", B, B)
    exact = np.array(
        [[float(sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(x, z, strict=True))) for z in B] for x in A]
    )
    near, far = exact < 0.9e-9 * largest, exact > 1.1e-9 * largest
    assert near.any()
    assert far[np.diag_indices(40)].any()
    np.testing.assert_allclose(found[near], exact[near], rtol=1e-14)
    np.testing.assert_array_equal(found[far], by_product[far])
    assert np.abs(found - exact).max() <= 1e-14 * largest
    assert (squared_distances(A, A)[np.diag_indices(40)] == 0.0).all()


def test_spread_is_the_sum_over_all_pairs(rng: np.random.Generator) -> None:
    D, left, right = rng.normal(size=(7, 5)), rng.normal(size=(7, 3)), rng.normal(size=(5, 3))
    expected = [sum(D[i, j] * (left[i, f] - right[j, f]) ** 2 for i in range(7) for j in range(5)) for f in range(3)]
    np.testing.assert_allclose(spread(D, left, right), expected, rtol=1e-12)
