"""Kept columns: the same products as the operator's own, each column evaluated once."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.kernels import SquaredExponential
from dkgp.operators import ArrayInputs, BlockedKernelOperator, CachedColumnsOperator
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
