"""spSVM: its optimum is scikit-learn's on the basis' features, its slopes are zero, and growing lowers the risk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import SquaredExponential
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp_benchmarks.classify.spsvm import SparseSVM, SparseSVMSettings, train_spsvm, validated_errors

N, S2 = 300, 0.05
KERNEL = SquaredExponential(gamma=(0.8, 1.1))


@pytest.fixture
def executor() -> Iterator[LocalExecutor]:
    made = LocalExecutor(1)
    yield made
    made.close()


def problem(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    X = rng.standard_normal((N, 2))
    noisy = np.sin(2.0 * X[:, 0]) + X[:, 1] - 0.5 + 0.4 * rng.standard_normal(N)
    return X, np.where(noisy > 0.0, 1.0, -1.0)


def trained(executor: Any, X: np.ndarray, y: np.ndarray, s2: float = S2, **settings: Any) -> SparseSVM:
    return train_spsvm(BlockedKernelOperator(KERNEL, s2, ArrayInputs(X), executor), y, SparseSVMSettings(**settings))


def risk(svm: SparseSVM, X: np.ndarray, y: np.ndarray, size: int | None = None) -> float:
    beta, _ = svm.path[(size or svm.size) - 1]
    Z = svm.prototypes[: len(beta)]
    slack = np.maximum(0.0, 1.0 - y * svm.decisions(X, size))
    return float(0.5 * slack @ slack + 0.5 * S2 * beta @ KERNEL(Z, Z) @ beta)


def test_without_an_intercept_it_is_scikit_learns_on_the_same_features(
    executor: LocalExecutor, rng: np.random.Generator
) -> None:
    svm = pytest.importorskip("sklearn.svm")
    X, y = problem(rng)
    own = trained(executor, X, y, size=12, intercept=False)
    lower = np.linalg.cholesky(KERNEL(own.prototypes, own.prototypes))
    F = np.linalg.solve(lower, KERNEL(own.prototypes, X)).T
    theirs = svm.LinearSVC(
        loss="squared_hinge", C=0.5 / S2, fit_intercept=False, dual=False, tol=1e-10, max_iter=20_000
    )
    theirs.fit(F, y)
    np.testing.assert_allclose(own.decisions(X), theirs.decision_function(F), atol=1e-6)


def test_with_an_intercept_every_slope_is_zero(executor: LocalExecutor, rng: np.random.Generator) -> None:
    svm = pytest.importorskip("sklearn.svm")
    X, y = problem(rng)
    own = trained(executor, X, y, size=12)
    beta, intercept = own.path[-1]
    K, within = KERNEL(X, own.prototypes), KERNEL(own.prototypes, own.prototypes)
    slack = np.maximum(0.0, 1.0 - y * own.decisions(X))
    np.testing.assert_allclose(K.T @ (y * slack), S2 * within @ beta, atol=1e-8)
    assert abs(np.sum(y * slack)) < 1e-8
    # scikit-learn holds the intercept back, by so little where its column is large.
    F = np.linalg.solve(np.linalg.cholesky(within), K.T).T
    theirs = svm.LinearSVC(
        loss="squared_hinge", C=0.5 / S2, intercept_scaling=300.0, dual=False, tol=1e-10, max_iter=20_000
    )
    theirs.fit(F, y)
    np.testing.assert_allclose(own.decisions(X), theirs.decision_function(F), atol=1e-4)
    assert intercept == pytest.approx(theirs.intercept_[0], abs=1e-4)


def test_the_risk_falls_with_every_sample_and_is_what_is_told(
    executor: LocalExecutor, rng: np.random.Generator
) -> None:
    X, y = problem(rng)
    own = trained(executor, X, y, size=21)
    assert own.size == len(set(own.indices.tolist())) == 21
    np.testing.assert_array_equal(own.prototypes, X[own.indices])
    assert (np.diff(own.objective) < 0.0).all()
    for size in range(1, 22):
        assert own.objective[size - 1] == pytest.approx(risk(own, X, y, size), rel=1e-9)
    np.testing.assert_allclose(
        own.path_decisions(X), [own.decisions(X, size) for size in range(1, 22)], rtol=1e-9, atol=1e-12
    )


def test_the_choice_is_the_naive_one(executor: LocalExecutor, rng: np.random.Generator) -> None:
    """The first: all are candidates, and the constant is the start."""
    X, y = problem(rng)
    own = trained(executor, X, y, size=1, candidates=N)
    b = 0.0
    for _ in range(100):  # the best constant
        b = y[y * b < 1.0].mean()
    K, inside = KERNEL(X, X), y * b < 1.0
    slope = K[:, inside] @ (y[inside] - b)
    score = slope**2 / (np.sum(K[:, inside] ** 2, axis=1) + S2)
    assert own.indices.tolist() == [int(np.argmax(score))]


def test_candidates_come_from_the_pool_and_the_seed(executor: LocalExecutor, rng: np.random.Generator) -> None:
    X, y = problem(rng)
    pool = np.arange(0, N, 10)
    first, again, other = (trained(executor, X, y, size=6, candidates=3, pool=pool, seed=seed) for seed in (1, 1, 2))
    assert set(first.indices.tolist()) <= set(pool.tolist())
    np.testing.assert_array_equal(first.path[-1][0], again.path[-1][0])
    assert first.indices.tolist() != other.indices.tolist()
    assert trained(executor, X, y, size=50, pool=pool).size <= 30


def test_separable_labels_and_duplicates(executor: LocalExecutor) -> None:
    X = np.repeat(np.array([[-3.0, 0.0], [3.0, 0.0]]), 20, axis=0)
    y = np.repeat([-1.0, 1.0], 20)
    own = trained(executor, X, y, s2=1e-8, size=10)
    assert own.size <= 10
    np.testing.assert_array_equal(np.sign(own.decisions(X)), y)


@pytest.mark.long
def test_validated_errors_are_those_of_machines_trained_without_the_fold(
    executor: LocalExecutor, rng: np.random.Generator
) -> None:
    X, y = problem(rng)
    folds = np.arange(N) % 3
    found = validated_errors(executor, KERNEL, S2, X, y, folds, SparseSVMSettings(9, seed=4))
    assert found.shape == (3, 9)
    for fold in range(3):
        alone = trained(executor, X[folds != fold], y[folds != fold], size=9, seed=4)
        for size in (1, 6, 9):
            wrong = np.mean((alone.decisions(X[folds == fold], size) >= 0.0) != (y[folds == fold] > 0.0))
            assert found[fold, size - 1] == wrong


def test_what_is_no_label_is_refused(executor: LocalExecutor, rng: np.random.Generator) -> None:
    X, _ = problem(rng)
    with pytest.raises(InputError, match="a sign, -1 or \\+1, for each of 300 samples"):
        trained(executor, X, np.zeros(N), size=3)
    with pytest.raises(InputError, match="`size` and `candidates` must be at least 1; got 0 and 59"):
        SparseSVMSettings(0)


def test_a_machine_that_no_sample_is_of_use_to_is_refused(executor: LocalExecutor, rng: np.random.Generator) -> None:
    """The intercept alone meets labels of one class."""
    X, _ = problem(rng)
    with pytest.raises(NumericalError, match="no sample lowers"):
        trained(executor, X, np.ones(N), size=3)
