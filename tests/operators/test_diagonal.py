"""A diagonal that varies: one round of block tasks, to the same bits whoever computes it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dkgp.kernels import Kernel, SquaredExponential, parse_kernel
from dkgp.operators import ArrayInputs, BlockedKernelOperator, DenseKernelOperator
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.blocked import coordinator_input_bytes_needed
from tests.operators.recording import RecordingExecutor

NOISE, D = 0.3, 3
VARYING = ("linear", "polynomial(degree=3)", "rbf + linear")


class Unread(ArrayInputs):
    """Inputs that the coordinator must not read."""

    def __init__(self, X: np.ndarray) -> None:
        super().__init__(X)
        self.threads: set[str] = set()

    def inputs(self, start: int, stop: int) -> np.ndarray:
        self.threads.add(threading.current_thread().name)
        return super().inputs(start, stop)


@pytest.fixture
def inputs(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(2100, D))


def diagonal(kernel: Kernel, X: np.ndarray, threads: int) -> np.ndarray:
    executor = RecordingExecutor(threads)
    try:
        with BlockedKernelOperator(kernel, NOISE, ArrayInputs(X), executor) as operator:
            return operator.diagonal()
    finally:
        executor.close()


@pytest.mark.parametrize("text", VARYING)
def test_it_is_the_kernels_to_the_same_bits_for_any_number_of_threads(text: str, inputs: np.ndarray) -> None:
    kernel = parse_kernel(text, D)
    alone = diagonal(kernel, inputs, 1)
    np.testing.assert_allclose(
        alone, np.array([kernel(row[None], row[None])[0, 0] for row in inputs]) + NOISE, rtol=1e-13
    )
    for threads in (2, 3, 5):
        np.testing.assert_array_equal(diagonal(kernel, inputs, threads), alone)
    np.testing.assert_allclose(DenseKernelOperator(kernel, NOISE, inputs[:60]).diagonal(), alone[:60], rtol=1e-13)


def test_it_is_computed_once_by_the_workers_and_counted(inputs: np.ndarray) -> None:
    source, executor = Unread(inputs), RecordingExecutor(2)
    with BlockedKernelOperator(parse_kernel("linear", D), NOISE, source, executor, coordinator_input_bytes=1) as held:
        first = held.diagonal()
        assert held.diagonal() is first
        assert executor.rounds == [("kdiagonal", 2)]
        assert held.kernel_evaluations == len(inputs)
    executor.close()
    assert all(name.startswith("dkgp-block") for name in source.threads)


def test_a_stationary_kernel_needs_no_round(inputs: np.ndarray) -> None:
    executor = RecordingExecutor(2)
    kernel = parse_kernel("matern32 + constant(variance=0.5)", D)
    with BlockedKernelOperator(kernel, NOISE, ArrayInputs(inputs), executor) as operator:
        np.testing.assert_array_equal(operator.diagonal(), np.full(len(inputs), 1.5 + NOISE))
        assert not executor.rounds
        assert operator.kernel_evaluations == 0
    executor.close()


def test_memory_is_planned_by_what_features_take() -> None:
    """A sum whose parts scale their inputs apart holds them once for each part; one of few features still all rows."""
    one = SquaredExponential((0.2, 0.3, 0.4))
    assert feature_width(one) == D
    assert feature_width(SquaredExponential((0.2, 0.0, 0.0))) == D
    assert coordinator_input_bytes_needed(100, 3, feature_width(one)) == coordinator_input_bytes_needed(100, 3) == 6400
    assert feature_width(one + SquaredExponential((0.7, 0.1, 0.9))) >= 2 * D
    assert coordinator_input_bytes_needed(100, 3, 7) == 100 * (16 * 3 + 4 * 8)
