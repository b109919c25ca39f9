"""Kept columns: the same products as the operator's own, each column evaluated once."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError, MemoryBudgetError
from dkgp.kernels import SquaredExponential
from dkgp.operators import ArrayInputs, BlockedKernelOperator, CachedColumnsOperator, DenseKernelOperator
from dkgp.operators.cached_columns import cached_columns_bytes

N = 700


@pytest.fixture
def operator(rng: np.random.Generator) -> CachedColumnsOperator:
    X = rng.normal(size=(N, 5))
    kernel = SquaredExponential(gamma=(0.3, 0.2, 0.1, 0.4, 0.05), variance=1.7)
    return CachedColumnsOperator(BlockedKernelOperator(kernel, 0.1, ArrayInputs(X), LocalExecutor(2)))


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


# .


KERNEL = SquaredExponential(gamma=(0.5, 0.5))


def test_matrix_beyond_the_budget_is_refused_with_both_numbers() -> None:
    with pytest.raises(MemoryBudgetError, match=r"of 1000 samples takes 8,000,000 bytes; the budget is 7,999,999 "):
        DenseKernelOperator(KERNEL, 0.1, np.zeros((1000, 2)), budget_bytes=7_999_999)
    operator = DenseKernelOperator(KERNEL, 0.1, np.zeros((1000, 2)), budget_bytes=8_000_000)
    assert operator.matrix.nbytes == 8_000_000


def test_budget_is_checked_before_anything_is_allocated() -> None:
    with pytest.raises(MemoryBudgetError, match="raise budget_bytes"):
        DenseKernelOperator(KERNEL, 0.1, np.zeros((2_000_000, 2)))


def test_inputs_must_be_rows() -> None:
    with pytest.raises(InputError, match=r"shape \(n, d\); got shape \(4,\)"):
        DenseKernelOperator(KERNEL, 0.1, np.zeros(4))


def test_diagonal_is_not_the_matrixs_own() -> None:
    operator = DenseKernelOperator(KERNEL, 0.1, np.zeros((3, 2)))
    operator.diagonal()[:] = 0.0
    np.testing.assert_array_equal(operator.diagonal(), np.full(3, 1.1))
