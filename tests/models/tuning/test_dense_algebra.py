"""The blocked inverse against NumPy's, at orders around its blocks, and its bits on any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.cluster import threads
from dkgp.models.tuning.dense_algebra import (
    BLOCK_ROWS,
    add_outer_products,
    factor,
    fill_upper,
    invert,
    invert_factored,
    rank_update,
    solve_factored,
    solve_half,
    symmetric_product,
)


def test_algebra_in_place_is_what_numpy_computes(rng: np.random.Generator) -> None:
    n, t = 37, 4
    square = rng.standard_normal((n, n))
    matrix = np.asfortranarray(square @ square.T + n * np.eye(n))
    b, c = (np.asfortranarray(rng.standard_normal((n, t))) for _ in range(2))
    np.testing.assert_allclose(symmetric_product(matrix, b), matrix @ b)

    lower = matrix.copy(order="F")
    assert factor(lower)
    np.testing.assert_allclose(np.tril(lower), np.linalg.cholesky(matrix))
    np.testing.assert_allclose(solve_factored(lower, b), np.linalg.solve(matrix, b))
    half = b.copy(order="F")
    solve_half(lower, half)
    np.testing.assert_allclose(np.tril(lower) @ half, b)
    assert invert_factored(lower)
    fill_upper(lower)
    np.testing.assert_allclose(lower, np.linalg.inv(matrix))

    updated = matrix.copy(order="F")
    rank_update(updated, b, scale=2.0, keep=-0.5)
    add_outer_products(updated, b, c, scale=0.25)
    expected = 2.0 * b @ b.T - 0.5 * matrix + 0.25 * (b @ c.T + c @ b.T)
    np.testing.assert_allclose(np.tril(updated), np.tril(expected))
    np.testing.assert_array_equal(np.triu(updated, 1), np.triu(matrix, 1))


def test_algebra_says_where_there_is_no_factor_and_refuses_other_layouts() -> None:
    assert not factor(np.asfortranarray([[1.0, 2.0], [2.0, 1.0]]))
    assert not invert_factored(np.zeros((2, 2), order="F"))
    with pytest.raises(ValueError, match="Fortran order"):
        factor(np.zeros((3, 3))[:, :2])
    with pytest.raises(ValueError, match="columns in Fortran order"):
        solve_factored(np.eye(3, order="F"), np.ones((3, 2)))
    with pytest.raises(ValueError, match="square float64"):
        factor(np.asfortranarray(np.eye(3, dtype=np.float32)))


def test_upper_triangles_larger_than_a_tile_are_filled(rng: np.random.Generator) -> None:
    matrix = np.asfortranarray(rng.standard_normal((300, 300)))
    expected = np.tril(matrix) + np.tril(matrix, -1).T
    fill_upper(matrix)
    np.testing.assert_array_equal(matrix, expected)


def positive_definite(rng: np.random.Generator, n: int) -> np.ndarray:
    square = rng.standard_normal((n, n + 5))
    return np.asfortranarray(square @ square.T / n + np.eye(n))


@pytest.mark.parametrize("n", [1, 7, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 2 * BLOCK_ROWS + 40])
def test_inverse_solution_and_determinant(rng: np.random.Generator, n: int) -> None:
    matrix, right = positive_definite(rng, n), rng.standard_normal((n, 2))
    place = matrix.copy(order="F")
    found = invert(place, right)
    solution, log_determinant = found
    inverse = np.linalg.inv(matrix)
    np.testing.assert_allclose(np.tril(place), np.tril(inverse), atol=1e-12)
    np.testing.assert_allclose(solution, inverse @ right, atol=1e-12)
    assert log_determinant == pytest.approx(np.linalg.slogdet(matrix)[1], rel=1e-12)


def test_a_matrix_that_is_not_positive_definite_has_none(rng: np.random.Generator) -> None:
    matrix = positive_definite(rng, BLOCK_ROWS + 20)
    matrix[-1, -1] = -1.0
    assert invert(matrix, rng.standard_normal((len(matrix), 1))) is None


def test_bits_are_the_same_on_any_number_of_threads(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, right = positive_definite(rng, 3 * BLOCK_ROWS), rng.standard_normal((3 * BLOCK_ROWS, 1))
    results = []
    with threads.single_threaded_blas():
        for count in (1, 2, 3):
            monkeypatch.setattr("dkgp.models.tuning.dense_algebra.process_threads", lambda count=count: count)
            place = matrix.copy(order="F")
            found = invert(place, right)
            results.append((np.tril(place).tobytes(), found[0].tobytes(), found[1]))
    assert results[0] == results[1] == results[2]
