"""Sparse models as starts of the exact solve: the objective they start from, and the products that are saved or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.kernels import Kernel, Matern32, SquaredExponential
from dkgp.models.exact import train
from dkgp.models.sparse import stored as start
from dkgp.models.sparse.stored import OpenedSparse, SparseStart, opened_sparse, sparse_record, start_from_sparse
from dkgp.models.sparse.train import SparseSettings, train_sparse
from dkgp.solvers import ConjugateGradient, GradientInfNorm, GreedyBlockCoordinateDescent

N, S2 = 1200, 0.05
SMOOTH: Kernel = SquaredExponential(gamma=(0.3, 0.2))
ROUGH: Kernel = Matern32(gamma=(40.0, 40.0))


def problem() -> Dataset:
    rng = np.random.default_rng(8)
    X = rng.standard_normal((N, 2))
    y = np.column_stack([np.sin(2.0 * X[:, 0]), X[:, 1] ** 2]) + 0.2 * rng.standard_normal((N, 2))
    return memory_dataset(X, y)


def sparse(executor: Any, dataset: Dataset, kernel: Kernel, m: int = 100) -> OpenedSparse:
    trained = train_sparse(dataset, kernel, S2, executor, SparseSettings(basis_size=m))
    return opened_sparse(sparse_record(trained, dataset))


def share(dataset: Dataset, opened: OpenedSparse, kernel: Kernel) -> np.ndarray:
    """By dense algebra, over the sparse mean's own bound."""
    X, y = dataset.inputs(0, N), dataset.all_targets()
    alpha = (y - opened.model.mean(X)) / S2
    matrix = kernel(X, X) + S2 * np.eye(N)
    gained = 2.0 * np.sum(alpha * y, axis=0) - np.sum(alpha * (matrix @ alpha), axis=0)
    return np.asarray(1.0 - gained / (2.0 * np.asarray(opened.certificate.risk)))


@pytest.mark.parametrize("kernel", [SMOOTH, ROUGH])
def test_the_objective_is_that_of_the_residual(
    kernel: Kernel, one_thread: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = problem()
    opened = sparse(one_thread, dataset, kernel)
    whole = start_from_sparse(dataset, opened, kernel, S2)
    assert whole.rows == N
    np.testing.assert_allclose(whole.share, share(dataset, opened, kernel), rtol=1e-8, atol=1e-10)
    # A part of the rows comes to the same, or so.
    monkeypatch.setattr(start, "ROWS", 400)
    part = start_from_sparse(dataset, opened, kernel, S2)
    assert part.rows == 400
    np.testing.assert_array_equal(part.pays, whole.pays)
    np.testing.assert_allclose(1.0 - part.share, 1.0 - whole.share, rtol=0.5)


@pytest.mark.parametrize("solver", [ConjugateGradient(), GreedyBlockCoordinateDescent(block_size=100)])
def test_a_smooth_problem_starts_near_its_solution(solver: Any, one_thread: LocalExecutor) -> None:
    dataset = problem()
    found = start_from_sparse(dataset, sparse(one_thread, dataset, SMOOTH), SMOOTH, S2)
    assert np.all(found.share < 0.1)

    def passes(initial: Any) -> float:
        trained = train(dataset, SMOOTH, S2, one_thread, solver=solver, stopping=GradientInfNorm(1e-4), initial=initial)
        assert trained.solution.converged
        return trained.solution.progress.column_passes

    # Half of the work at least.
    assert passes(found.alpha) <= 0.5 * passes(None)


def test_a_rough_problem_starts_from_zero(one_thread: LocalExecutor) -> None:
    dataset = problem()
    found = start_from_sparse(dataset, sparse(one_thread, dataset, ROUGH, 30), ROUGH, S2)
    assert found.alpha is None
    assert not found.pays.any()
    assert np.all(found.share >= 1.0)


def test_each_target_starts_where_it_pays() -> None:
    found = SparseStart(None, np.asarray([0.2, 3.0]), 10)
    np.testing.assert_array_equal(found.pays, [True, False])
