"""The blocked inverse against NumPy's, at orders around its blocks, and its bits on any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.cluster import threads
from dkgp.models.tuning.dense_algebra import BLOCK_ROWS, invert


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
