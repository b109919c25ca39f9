"""The low-rank factor as a preconditioner, held by the workers or evaluated as it is needed, against dense algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.kernels import SquaredExponential
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.inputs import ArrayInputs
from dkgp.operators.low_rank import factor as factor_module
from dkgp.operators.low_rank.factor import HELD_BYTES, LowRankFactor, LowRankPreconditioner, low_rank_bytes

N, RANK = 900, 60
KERNEL = SquaredExponential(gamma=(3.0, 3.0))


@pytest.fixture(params=["held", "evaluated"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(factor_module, "HELD_BYTES", HELD_BYTES if request.param == "held" else 0)
    return bool(request.param == "held")


def preconditioner(threads: int, noise: Any) -> tuple[BlockedKernelOperator, LowRankPreconditioner]:
    X = np.random.default_rng(0).standard_normal((N, 2))
    operator = BlockedKernelOperator(KERNEL, noise, ArrayInputs(X), LocalExecutor(threads))
    factor = LowRankFactor(operator, np.arange(0, N, N // RANK, dtype=np.intp)[:RANK])
    return operator, LowRankPreconditioner(factor, operator.noise_variance)


@pytest.mark.parametrize("by_sample", [False, True])
def test_it_is_the_inverse_of_the_low_rank_matrix(held: bool, by_sample: bool, rng: np.random.Generator) -> None:
    noise = 0.01 * np.exp(rng.standard_normal(N)) if by_sample else 0.01
    operator, found = preconditioner(2, noise)
    X = operator.inputs(np.arange(N))
    landmarks = X[:: N // RANK][:RANK]
    # Leading directions, of which a small difference of large numbers is left, and any others.
    right = np.column_stack([np.ones(N), KERNEL(X, X[:1])[:, 0], rng.standard_normal((N, 6))])
    cross, inner = KERNEL(X, landmarks), KERNEL(landmarks, landmarks)
    dense = cross @ np.linalg.solve(inner + 1e-12 * np.eye(RANK), cross.T) + np.diag(np.broadcast_to(noise, N))
    expected = np.linalg.solve(dense, right)
    applied = found.apply(right)
    np.testing.assert_allclose(applied, expected, atol=2e-4 * np.abs(expected).max(axis=0).min())
    # What is one factor in every product is symmetric.
    against = right.T @ applied
    np.testing.assert_allclose(against, against.T, atol=1e-7 * np.abs(against).max())


def test_threads_change_no_bit(held: bool, rng: np.random.Generator) -> None:
    right = rng.standard_normal((N, 2))
    one, three = (preconditioner(threads, 0.01)[1].apply(right) for threads in (1, 3))
    np.testing.assert_array_equal(one, three)


def test_what_is_evaluated_takes_entries_instead_of_memory(held: bool, rng: np.random.Generator) -> None:
    operator, found = preconditioner(1, 0.01)
    before = operator.kernel_evaluations
    found.apply(rng.standard_normal((N, 1)))
    assert operator.kernel_evaluations - before == (0 if held else 2 * N * RANK)


def test_bytes_stay_bounded_as_samples_grow() -> None:
    largest = max(low_rank_bytes(n, rank, 2) for n in (10**5, 10**6, 10**7) for rank in (100, 600, 2000))
    assert low_rank_bytes(10**6, 200) == 4 * 10**6 * 200 + 16 * 200**2
    assert largest < 1.2 * HELD_BYTES
