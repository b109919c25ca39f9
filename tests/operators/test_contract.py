"""Every operator against the dense matrix, by one contract."""

from __future__ import annotations

import pytest

from dkgp.operators import ArrayInputs, BlockedKernelOperator, DenseKernelOperator
from tests.operators.contract import MakeOperator, OperatorContract


class TestDense(OperatorContract):
    @pytest.fixture
    def make(self) -> MakeOperator:
        return DenseKernelOperator


class TestBlockedOnOneThread(OperatorContract):
    @pytest.fixture
    def make(self, one_thread) -> MakeOperator:
        return lambda kernel, s2, X: BlockedKernelOperator(kernel, s2, ArrayInputs(X), one_thread)


class TestBlockedOnTwoThreads(OperatorContract):
    @pytest.fixture
    def make(self, two_threads) -> MakeOperator:
        return lambda kernel, s2, X: BlockedKernelOperator(kernel, s2, ArrayInputs(X), two_threads)


class TestBlockedOutOfCore(OperatorContract):
    @pytest.fixture
    def make(self, two_threads) -> MakeOperator:
        return lambda kernel, s2, X: BlockedKernelOperator(
            kernel, s2, ArrayInputs(X), two_threads, coordinator_input_bytes=1
        )
