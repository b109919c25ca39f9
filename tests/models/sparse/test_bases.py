"""Bases that look at no targets: what each promises, naive versions of them, and what is refused."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models.sparse.bases import BLIND_BASES, blind_basis, given_basis
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from tests.workers import on_dask

N, M = 700, 25
KERNEL = SquaredExponential(gamma=(0.5, 2.0), variance=1.3)


def inputs(n: int = N) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, 2))


def operator(executor: Any, X: np.ndarray | None = None) -> BlockedKernelOperator:
    return BlockedKernelOperator(KERNEL, 0.1, ArrayInputs(inputs() if X is None else X), executor)


def distances(X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """The kernel's own."""
    return np.sqrt(np.maximum(2.0 * 1.3 - 2.0 * KERNEL(X, Z), 0.0))


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", BLIND_BASES)
def test_any_number_of_workers_chooses_the_same(name: str, one_thread: LocalExecutor) -> None:
    found = blind_basis(operator(one_thread), name, M, seed=3)
    assert found.inputs.shape == (M, 2)
    assert len(np.unique(found.inputs, axis=0)) == M
    if name == "k-means":
        assert found.indices is None
    else:
        np.testing.assert_array_equal(found.inputs, inputs()[found.indices])
    again = blind_basis(operator(one_thread), name, M, seed=3)
    np.testing.assert_array_equal(again.inputs, found.inputs)
    with on_dask(3, processes=False) as (executor, _):
        theirs = blind_basis(operator(executor), name, M, seed=3)
    np.testing.assert_array_equal(theirs.inputs, found.inputs)


@pytest.mark.parametrize("name", sorted(set(BLIND_BASES) - {"k-centre"}))
def test_another_seed_chooses_others(name: str, one_thread: LocalExecutor) -> None:
    X = inputs(9000)  # more than stand for all
    bases = [blind_basis(operator(one_thread, X), name, M, seed=seed).inputs for seed in (0, 1)]
    assert not np.array_equal(*bases)


@pytest.mark.parametrize("name", BLIND_BASES)
def test_duplicates_are_taken_once(name: str, one_thread: LocalExecutor) -> None:
    X = np.repeat(inputs(9), 80, axis=0)
    found = blind_basis(operator(one_thread, X), name, 30)
    assert len(np.unique(found.inputs, axis=0)) == len(found.inputs) <= 9
    # Entropy's draw of samples, and pivots, need not have seen all of them.
    assert len(found.inputs) == 9 or name in ("uniform", "entropy")


def test_the_largest_variance_is_chosen(one_thread: LocalExecutor) -> None:
    X, S = inputs(), []
    for _ in range(M):
        left = np.full(N, 1.3)
        if S:
            across = KERNEL(X, X[S])
            left = left - np.einsum("ns,sn->n", across, np.linalg.solve(KERNEL(X[S], X[S]), across.T))
        S.append(int(np.argmax(left)))
    found = blind_basis(operator(one_thread), "variance", M)
    assert set(found.indices) == set(S)


def test_k_centre_is_the_traversal_within_a_run(one_thread: LocalExecutor) -> None:
    X = inputs(14)
    found = blind_basis(operator(one_thread, X), "k-centre", 4)
    radius = distances(X, found.inputs).min(axis=1).max()
    best = min(distances(X, X[list(some)]).min(axis=1).max() for some in combinations(range(14), 4))
    assert radius <= 2.0 * best + 1e-9
    S = [0]
    while len(S) < 4:
        S.append(int(np.argmax(distances(X, X[S]).min(axis=1))))
    assert found.indices.tolist() == S


def test_k_centre_of_several_runs_is_within_four_times_the_best_radius(one_thread: LocalExecutor) -> None:
    X = inputs()
    assert operator(one_thread).context.n_blocks > 1
    radius = distances(X, blind_basis(operator(one_thread), "k-centre", M).inputs).min(axis=1).max()
    # Points of one traversal and the next one are further apart than the best radius.
    S = [0]
    while len(S) < M:
        S.append(int(np.argmax(distances(X, X[S]).min(axis=1))))
    assert radius <= 4.0 * distances(X, X[S]).min(axis=1).max()
    uniform = distances(X, blind_basis(operator(one_thread), "uniform", M).inputs).min(axis=1).max()
    assert radius < uniform


def test_k_means_centres_are_means_of_what_is_nearest_to_them(one_thread: LocalExecutor) -> None:
    clusters = np.repeat(np.array([[-6.0, 0.0], [0.0, 6.0], [6.0, 0.0]]), 200, axis=0)
    X = clusters + 0.1 * np.random.default_rng(1).standard_normal(clusters.shape)
    found = blind_basis(operator(one_thread, X), "k-means", 3).inputs
    means = np.array([X[:200].mean(axis=0), X[200:400].mean(axis=0), X[400:].mean(axis=0)])
    np.testing.assert_allclose(found[np.argsort(found[:, 0])], means, atol=1e-12)


def test_entropy_rises(one_thread: LocalExecutor) -> None:
    X = inputs()
    width = X.std(axis=0) * N ** (-1.0 / 6.0)
    density = SquaredExponential(gamma=tuple(0.25 / width**2))

    def entropy(Z: np.ndarray) -> float:
        return -float(np.log(density(Z, Z).mean()))

    chosen = blind_basis(operator(one_thread), "entropy", M, seed=1).inputs
    drawn = [entropy(X[np.random.default_rng(seed).choice(N, M, replace=False)]) for seed in range(50)]
    assert entropy(chosen) > max(drawn)


def test_pivoted_leaves_less_than_uniform_and_variance_less_at_worst(one_thread: LocalExecutor) -> None:
    X = inputs()

    def left(Z: np.ndarray) -> np.ndarray:
        across = KERNEL(X, Z)
        return 1.3 - np.einsum("nm,mn->n", across, np.linalg.solve(KERNEL(Z, Z), across.T))

    found = {
        name: left(blind_basis(operator(one_thread), name, M).inputs) for name in ("uniform", "pivoted", "variance")
    }
    assert found["pivoted"].sum() < found["uniform"].sum()
    assert found["variance"].max() < min(found["pivoted"].max(), found["uniform"].max())


def test_what_is_no_basis_is_refused(one_thread: LocalExecutor) -> None:
    own = operator(one_thread)
    with pytest.raises(
        InputError, match="unknown basis 'best'; there are uniform, pivoted, .*, greedy, or given samples"
    ):
        blind_basis(own, "best", 3)
    for size in (0, N + 1):
        with pytest.raises(InputError, match=f"a basis has 1 to 700 samples here; got {size:,}"):
            blind_basis(own, "uniform", size)
    with pytest.raises(InputError, match=r"rows 1 and 2 of the basis are the same point: 3 of 4 are distinct"):
        given_basis(own, np.array([5, 8, 8, 2]))
    with pytest.raises(InputError, match=r"sample indices must lie in 0..699"):
        given_basis(own, np.array([5, 700]))
    with pytest.raises(InputError, match="must be finite"):
        given_basis(own, np.array([[np.nan, 1.0]]))
    with pytest.raises(InputError, match="the same point"):
        given_basis(own, np.ones((2, 2)))


def test_a_given_basis_is_taken_as_it_is(one_thread: LocalExecutor) -> None:
    own, Z = operator(one_thread), np.random.default_rng(2).standard_normal((6, 2))
    assert given_basis(own, Z).indices is None
    np.testing.assert_array_equal(given_basis(own, Z).inputs, Z)
    found = given_basis(own, np.array([9, 4, 600]))
    np.testing.assert_array_equal(found.inputs, inputs()[[9, 4, 600]])
