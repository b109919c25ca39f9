"""Random pivots of kernels whose diagonal varies by orders of magnitude."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.errors import NumericalError
from dkgp.kernels import Kernel, TileEvaluator, parse_kernel
from dkgp.operators.low_rank.pivots import RandomlyPivotedCholesky, counted, jitter, jittered, regularised_factor

D = 3


def factor_of(kernel: Kernel, X: np.ndarray, rank: int, seed: int = 0) -> RandomlyPivotedCholesky:
    evaluator = TileEvaluator(kernel, "double")
    features = evaluator.prepare(X)
    factor = RandomlyPivotedCholesky(evaluator, features, kernel.diagonal(X), rank, np.random.default_rng(seed))
    while not factor.complete:
        factor.extend()
    return factor


@pytest.mark.parametrize(("text", "rank"), [("linear", 3), ("polynomial(degree=2)", 10), ("linear + constant", 4)])
def test_the_factor_ends_at_the_kernels_rank(text: str, rank: int, rng: np.random.Generator) -> None:
    X = rng.normal(size=(200, D)) * np.where(np.arange(200) < 3, 50.0, 1.0)[:, None]
    X[10] = 0.0
    kernel = parse_kernel(text, D)
    factor = factor_of(kernel, X, 150)
    assert factor.rank == rank
    K = kernel(X, X)
    scale = np.sqrt(counted(np.diag(K)))
    assert np.max(np.abs(factor.rows.T @ factor.rows - K) / scale / scale[:, None]) < 1e-9


def test_samples_far_out_do_not_end_it_early(rng: np.random.Generator) -> None:
    """A rough part, small beside the few largest entries, is still resolved to the end."""
    X = rng.normal(size=(120, D)) * np.where(np.arange(120) < 3, 3000.0, 1.0)[:, None]
    kernel = parse_kernel("rbf(length_scale=0.3) + polynomial(degree=3)", D)
    assert kernel.diagonal(X).max() > 1e12
    factor = factor_of(kernel, X, 120)
    assert factor.rank > 110
    assert factor.residual.max() < 1e-8


def test_jitter_goes_with_each_landmarks_own_value() -> None:
    matrix = np.diag([4.0, 1.0, 1e6, 0.0])
    added = np.diag(jittered(matrix.copy()) - matrix)
    np.testing.assert_allclose(added, jitter(4, 1.0) * np.array([4.0, 1.0, 1e6, 1e-14]), rtol=1e-6)
    same = np.full((3, 3), 0.5)
    np.testing.assert_array_equal(np.diag(jittered(same.copy())), np.full(3, 0.5 + jitter(3, 0.5)))


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_gram_matrix_whose_rounding_exceeds_the_noise_is_raised(order: str, rng: np.random.Generator) -> None:
    F = 1e5 * rng.normal(size=(40, 6)) @ rng.normal(size=(6, 30))
    rounded = (F.T @ F).astype(np.float32).astype(np.float64)
    assert np.linalg.eigvalsh(rounded).min() < -1e-3
    lower = regularised_factor(np.array(rounded, order=order), 1e-3)
    assert np.array_equal(lower, np.tril(lower))
    np.testing.assert_allclose(lower @ lower.T, rounded, rtol=0.0, atol=1e-4 * rounded.diagonal().max())
    sound = np.array(F.T @ F / 1e10, order=order)
    expected = np.linalg.cholesky(sound + 0.5 * np.eye(30))
    np.testing.assert_allclose(regularised_factor(sound.copy(order=order), 0.5), expected, rtol=1e-9, atol=1e-12)


def test_a_matrix_that_is_no_gram_matrix_is_refused() -> None:
    with pytest.raises(NumericalError, match="Raise the noise variance"):
        regularised_factor(np.array([[1.0, 5.0], [5.0, 1.0]]), 0.1)
