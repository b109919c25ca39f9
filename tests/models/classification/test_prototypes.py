"""Prototypes: each kind is as good as it says, depends on data and seed alone, and takes a point once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.cluster.executors.dask import DaskExecutor
from dkgp.errors import InputError
from dkgp.kernels import Matern32, SquaredExponential
from dkgp.models.classification.prototypes import DEFAULT_PROTOTYPES, PROTOTYPES, choose_prototypes
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.cross.kernel import distance_kernel
from tests.workers import on_dask

N, M = 700, 25
KERNEL = SquaredExponential(gamma=(0.5, 2.0), variance=1.3)


def inputs(n: int = N) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, 2))


def signs(X: np.ndarray) -> np.ndarray:
    return np.where(np.sin(2.0 * X[:, 0]) + X[:, 1] > 0.4, 1.0, -1.0)[:, None]


def operator(executor: Any, X: np.ndarray | None = None, kernel: Any = KERNEL) -> BlockedKernelOperator:
    return BlockedKernelOperator(kernel, 0.1, ArrayInputs(inputs() if X is None else X), executor)


def scaled_distances(X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    return np.sqrt(np.sum((0.5, 2.0) * (X[:, None] - Z) ** 2, axis=2))


def radius(X: np.ndarray, chosen: Any) -> float:
    return float(scaled_distances(X, X[list(chosen)]).min(axis=1).max())


@pytest.fixture(scope="module")
def three_workers() -> Iterator[DaskExecutor]:
    with on_dask(3, processes=False) as (executor, _):
        yield executor


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", PROTOTYPES)
def test_any_number_of_workers_chooses_the_same(
    name: str, one_thread: LocalExecutor, three_workers: DaskExecutor
) -> None:
    X, y = inputs(), signs(inputs())
    indices, Z = choose_prototypes(name, operator(one_thread), M, 3, targets=y)
    assert Z.shape == (M, 2)
    assert len(np.unique(Z, axis=0)) == M
    assert (indices is None) == (name == "k-means")
    if indices is not None:
        np.testing.assert_array_equal(Z, X[indices])
    _, theirs = choose_prototypes(name, operator(three_workers), M, 3, targets=y)
    np.testing.assert_array_equal(theirs, Z)


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", PROTOTYPES)
def test_another_seed_chooses_others(name: str, one_thread: LocalExecutor) -> None:
    X = inputs(9000)  # more than stand for all
    chosen = [choose_prototypes(name, operator(one_thread, X), M, seed, targets=signs(X))[1] for seed in (0, 1)]
    assert not np.array_equal(*chosen)


@pytest.mark.parametrize("name", PROTOTYPES)
def test_duplicates_are_taken_once_and_more_than_there_are_is_all(name: str, one_thread: LocalExecutor) -> None:
    X = np.repeat(inputs(9), 80, axis=0)
    for size in (30, 10_000):
        _, Z = choose_prototypes(name, operator(one_thread, X), size, targets=signs(X))
        assert len(np.unique(Z, axis=0)) == len(Z) <= 9
        # Entropy's draw of samples need not have seen all of them; a few are chosen greedily one by one.
        assert len(Z) == 9 or name in ("uniform", "entropy", "greedy")
    _, alone = choose_prototypes(name, operator(one_thread, np.ones((40, 2))), 5, targets=signs(X)[:40])
    np.testing.assert_array_equal(alone, np.ones((1, 2)))


class TestKCentre:
    @pytest.mark.parametrize("n", [5, 9, 14])
    @pytest.mark.parametrize("size", [1, 2, 4])
    def test_one_run_is_within_twice_the_best_radius(self, n: int, size: int, one_thread: LocalExecutor) -> None:
        X = inputs(n)
        best = min(radius(X, some) for some in combinations(range(n), size))
        for seed in range(5):
            indices, _ = choose_prototypes("k-centre", operator(one_thread, X), size, seed)
            assert indices is not None
            assert radius(X, indices) <= 2.0 * best * (1.0 + 1e-9)

    @pytest.mark.parametrize("size", [2, 3, 4])
    def test_several_runs_are_within_four_times_the_best_radius(
        self, size: int, one_thread: LocalExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Runs of three samples.
        monkeypatch.setattr(BlockContext, "block_rows", 3)
        X = inputs(15)
        own = operator(one_thread, X)
        assert own.context.n_blocks == 5
        best = min(radius(X, some) for some in combinations(range(15), size))
        for seed in range(10):
            indices, _ = choose_prototypes("k-centre", own, size, seed)
            assert indices is not None
            assert len(indices) == size
            assert radius(X, indices) <= 4.0 * best * (1.0 + 1e-9)

    def test_it_is_the_naive_traversal(self, one_thread: LocalExecutor) -> None:
        X = inputs(60)
        indices, _ = choose_prototypes("k-centre", operator(one_thread, X), 12, 5)
        assert indices is not None
        S = [int(indices[0])]
        while len(S) < 12:
            S.append(int(np.argmax(scaled_distances(X, X[S]).min(axis=1))))
        assert indices.tolist() == S

    @pytest.mark.parametrize("kind", [SquaredExponential, Matern32])
    def test_a_kernel_that_is_zero_between_all_points_still_tells_near_from_far(
        self, kind: Any, one_thread: LocalExecutor
    ) -> None:
        X = inputs(60)
        wide, narrow = kind(gamma=(0.5, 2.0)), kind(gamma=(0.5e7, 2.0e7))
        # As far as float64 tells: the kernel's own distance between any two points is one.
        np.testing.assert_array_equal(1.0 - narrow(X, X), 1.0 - np.eye(60))
        chosen = [choose_prototypes("k-centre", operator(one_thread, X, kernel), 12, 5)[0] for kernel in (wide, narrow)]
        np.testing.assert_array_equal(*chosen)

    def test_far_from_zero_as_near(self, one_thread: LocalExecutor) -> None:
        # Powers of two: what is added changes no bit that counts.
        X = np.round(inputs(60) * 2**20) / 2**20
        here, there = (choose_prototypes("k-centre", operator(one_thread, some), 12, 5)[0] for some in (X, X + 2.0**22))
        np.testing.assert_array_equal(here, there)

    def test_a_kernel_without_length_scales_has_its_own_distance(self) -> None:
        kernel = SquaredExponential(gamma=(1.0, 2.0)) + SquaredExponential(gamma=(3.0, 0.0))
        assert distance_kernel(kernel) is kernel


def test_greedy_prototypes_fit_the_labels_better_than_blind_ones(one_thread: LocalExecutor) -> None:
    X, own = inputs(), operator(one_thread)
    y = signs(X) - signs(X).mean()

    def risk(Z: np.ndarray) -> float:
        """The least of |y - K_nm b|^2 / s2 + b'K_mm b, by dense algebra."""
        across, within = KERNEL(X, Z), KERNEL(Z, Z)
        b = np.linalg.solve(across.T @ across + 0.1 * within, across.T @ y)
        return float(np.sum((y - across @ b) ** 2) / 0.1 + b[:, 0] @ within @ b[:, 0])

    found = {name: risk(choose_prototypes(name, own, 12, 0, targets=signs(X))[1]) for name in PROTOTYPES}
    assert found["greedy"] == min(found.values())


def test_what_cannot_be_chosen_is_refused(one_thread: LocalExecutor) -> None:
    assert DEFAULT_PROTOTYPES == PROTOTYPES[0] == "k-centre"
    own = operator(one_thread)
    with pytest.raises(InputError, match="unknown prototypes 'best'; there are k-centre, uniform, .*, greedy"):
        choose_prototypes("best", own, 3)
    with pytest.raises(InputError, match="at least one prototype; got 0"):
        choose_prototypes("uniform", own, 0)
    with pytest.raises(InputError, match="greedy prototypes are chosen by the labels: give `targets`"):
        choose_prototypes("greedy", own, 3)
