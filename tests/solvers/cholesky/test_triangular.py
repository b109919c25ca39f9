"""Substitution on part of a growing factor, against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import solve_triangular

from dkgp.solvers.cholesky.dense import solve_lower, solve_lower_transposed

RELATIVE_ERROR = {np.float32: 2e-5, np.float64: 1e-13}
SOLVE = {"N": solve_lower, "T": solve_lower_transposed}


def random_factor(rng: np.random.Generator, capacity: int, dtype: type) -> np.ndarray:
    """A lower triangle; what stands above the diagonal must not be looked at."""
    factor = rng.standard_normal((capacity, capacity)) / np.sqrt(capacity)
    factor[np.diag_indices(capacity)] = rng.uniform(1.0, 2.0, capacity)
    factor[np.triu_indices(capacity, 1)] = np.nan
    return factor.astype(dtype)


def check(transposed: str, factor: np.ndarray, order: int, right: np.ndarray) -> None:
    expected = solve_triangular(
        np.tril(np.nan_to_num(factor[:order, :order])).astype(np.float64),
        right[:, :order].T.astype(np.float64),
        lower=True,
        trans=transposed,
    ).T
    beyond = right[:, order:].copy()
    SOLVE[transposed](factor, order, right)
    scale = np.abs(expected).max(initial=1.0)
    assert np.abs(right[:, :order] - expected).max(initial=0.0) <= RELATIVE_ERROR[right.dtype.type] * scale
    np.testing.assert_array_equal(right[:, order:], beyond)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("transposed", ["N", "T"])
@given(capacity=st.integers(1, 60), cut=st.integers(1, 60), systems=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_agrees_with_scipy(dtype: type, transposed: str, capacity: int, cut: int, systems: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    order = min(cut, capacity)
    factor = random_factor(rng, capacity, dtype)
    check(transposed, factor, order, rng.standard_normal((systems, order)).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("transposed", ["N", "T"])
def test_rows_of_a_larger_array_are_solved_in_place(rng: np.random.Generator, dtype: type, transposed: str) -> None:
    # How the subproblem uses it: the new rows of the factor are right-hand sides, and have room to their right.
    factor = random_factor(rng, 50, dtype)
    check(transposed, factor[:40], 33, rng.standard_normal((7, 50)).astype(dtype))


def test_two_substitutions_solve_the_normal_equations(rng: np.random.Generator) -> None:
    factor = random_factor(rng, 90, np.float64)
    L = np.tril(np.nan_to_num(factor))
    right = rng.standard_normal((3, 90))
    solved = right.copy()
    solve_lower(factor, 90, solved)
    solve_lower_transposed(factor, 90, solved)
    np.testing.assert_allclose(solved @ (L @ L.T), right, atol=1e-10)


@pytest.mark.parametrize(
    ("factor", "right"),
    [
        (np.eye(3), np.ones((1, 3), np.float32)),
        (np.asfortranarray(np.tril(np.ones((3, 3)))), np.ones((1, 3))),
        (np.eye(3), np.ones((3, 2)).T),
    ],
)
def test_arrays_that_blas_would_misread_are_refused(factor: np.ndarray, right: np.ndarray) -> None:
    with pytest.raises(ValueError, match="share one type and have contiguous rows"):
        solve_lower(factor, 3, right)
