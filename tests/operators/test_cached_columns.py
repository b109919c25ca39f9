"""Kept columns: the same products as the operator's own, each column evaluated once."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.operators import ArrayInputs, BlockedKernelOperator, CachedColumnsOperator
from dkgp.operators.cached_columns import cached_columns_bytes

N = 700


@pytest.fixture
def operator(rng: np.random.Generator) -> CachedColumnsOperator:
    X = rng.normal(size=(N, 5))
    kernel = SquaredExponential(gamma=(0.3, 0.2, 0.1, 0.4, 0.05), variance=1.7)
    return CachedColumnsOperator(BlockedKernelOperator(kernel, 0.1, ArrayInputs(X), LocalExecutor(2)))


def naive(operator: CachedColumnsOperator) -> np.ndarray:
    return operator.submatrix(np.arange(N), np.arange(N))


@pytest.mark.parametrize("targets", [1, 3])
def test_products_are_those_of_the_matrix(
    operator: CachedColumnsOperator, rng: np.random.Generator, targets: int
) -> None:
    matrix = naive(operator)
    for size in (1, 37, 301, N):
        indices = rng.permutation(N)[:size]
        delta = rng.normal(size=(size, targets))
        exact = matrix[:, indices] @ delta
        scale = np.abs(matrix[:, indices]) @ np.abs(delta)
        single = operator.apply_columns(indices, delta)
        assert np.max(np.abs(single - exact) / scale) < 2e-6
        double = operator.apply_columns(indices, delta, "double")
        assert np.max(np.abs(double - exact) / scale) < 1e-13
    np.testing.assert_allclose(operator.diagonal(), matrix.diagonal(), rtol=1e-14)
    np.testing.assert_allclose(operator.matmat(np.eye(N)[:, :2]), matrix[:, :2], rtol=1e-13)


def test_each_column_is_evaluated_once(operator: CachedColumnsOperator, rng: np.random.Generator) -> None:
    first, second = np.arange(100), np.arange(60, 180)
    assert operator.columns_to_evaluate(first) == 100
    before = operator.kernel_evaluations
    operator.apply_columns(first, rng.normal(size=(100, 1)))
    assert operator.kernel_evaluations - before == 100 * N
    assert operator.columns_to_evaluate(second) == 80
    assert operator.columns_to_evaluate(second, "double") == 120
    operator.apply_columns(second, rng.normal(size=(120, 1)))
    operator.apply_columns(first, rng.normal(size=(100, 1)))
    assert operator.kernel_evaluations - before == 180 * N
    assert cached_columns_bytes(N) == 4 * N * N


def test_foreign_columns_are_refused(operator: CachedColumnsOperator) -> None:
    with pytest.raises(InputError, match=r"0\.\.699"):
        operator.apply_columns(np.array([N]), np.ones((1, 1)))
