"""Sums for greedy choices against NumPy's, with the basis' columns kept, kept in part, and evaluated anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import TileBudget
from dkgp.errors import InputError
from dkgp.kernels import Kernel, Linear, SquaredExponential
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.cross import candidates, tasks
from dkgp.operators.cross.candidates import CandidateSums, GrowingBasis
from dkgp.operators.keeping import worker_tiles

N, D, T = 2100, 3, 2
KERNELS = [SquaredExponential(gamma=(0.5, 0.8, 1.1), variance=1.3), Linear(weight=(1.0, 0.4, 2.0), variance=0.7)]
PLENTY = TileBudget(2**30)


@pytest.fixture(autouse=True, scope="module")
def short() -> Iterator[None]:
    """Several pieces of each run, several slabs of a small basis."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tasks, "LARGEST_PIECE", 128)
        patched.setattr(tasks, "SMALLEST_PIECE", 64)
        patched.setattr(tasks, "SLAB_COLUMNS", 16)
        yield


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("by_sample", [False, True])
@pytest.mark.parametrize("kernel", KERNELS, ids=["stationary", "linear"])
def test_sums(kernel: Kernel, by_sample: bool, few: bool, rng: np.random.Generator) -> None:
    executor = LocalExecutor(2, PLENTY)
    X, V = rng.standard_normal((N, D)), rng.standard_normal((N, T))
    noise = rng.uniform(0.05, 0.3, N) if by_sample else None
    operator = BlockedKernelOperator(kernel, 0.1, ArrayInputs(X), executor)
    samples = np.sort(rng.choice(N, 333, replace=False)) if few else None
    rows = slice(None) if samples is None else samples
    C, S, W = X[3::211], X[:40], rng.standard_normal((40, T))
    own, across = kernel(X[rows], C), kernel(X[rows], S)
    scale = np.ones((N, 1))[rows] if noise is None else 1.0 / noise[rows, None]
    r = V[rows] - across @ W
    basis = GrowingBasis(operator, noise)
    close: Callable[..., None] = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-7)
    for _ in range(2):  # filled, and read
        found = basis.sums(C, V, S, W, between=True, inner=True, samples=samples)
        close(found.projected, own.T @ (r * scale))
        close(found.squares, np.sum(own**2 * scale, axis=0))
        close(found.between, across.T @ (own * scale))
        close(found.inner, own.T @ (own * scale))
        close(found.misfit, np.sum(r**2 * scale, axis=0))
        close(found.residual, r)
    given = basis.sums(C, r if samples is None else V, samples=samples)
    close(given.projected, own.T @ ((r if samples is None else V[rows]) * scale))
    assert given.between is given.inner is None
    looked = basis.sums(C, V, S, W, single=True, samples=samples)
    float32 = 3e-6 * np.abs(own).max() * np.abs(r * scale).sum(axis=0).max()
    np.testing.assert_allclose(looked.projected, found.projected, atol=float32)
    np.testing.assert_allclose(looked.squares, found.squares, rtol=1e-5)
    np.testing.assert_array_equal(looked.residual, found.residual)
    assert not np.array_equal(looked.squares, found.squares)
    basis.close()
    executor.close()


def grown(
    source: Any, executor: Any, between_rounds: Callable[[int], None] = lambda number: None
) -> tuple[list[np.ndarray], list[int]]:
    """Return the passes' products for a basis that grows by seven, and the entries that each evaluated."""
    rng = np.random.default_rng(3)
    X, V, noise = rng.standard_normal((60, D)), rng.standard_normal((N, T)), rng.uniform(0.1, 0.2, N)
    operator = BlockedKernelOperator(KERNELS[0], noise, source, executor)
    basis, arrays, entries = GrowingBasis(operator, noise), [], []
    for number, k in enumerate(range(0, 43, 7)):
        before = operator.kernel_evaluations
        W = rng.standard_normal((k, T))
        one = basis.sums(X[:9], V, X[:k], W, single=True)
        two = basis.sums(X[9:20], one.residual, X[:k], between=True, inner=True)
        entries.append(operator.kernel_evaluations - before)
        arrays += [value for found in (one, two) for value in _arrays(found)]
        between_rounds(number)
    basis.close()
    operator.close()
    return arrays, entries


def _arrays(found: CandidateSums) -> list[np.ndarray]:
    values = (found.projected, found.squares, found.between, found.inner, found.misfit, found.residual)
    return [np.array(value) for value in values if value is not None]


@pytest.fixture(scope="module")
def source() -> ArrayInputs:
    return ArrayInputs(np.random.default_rng(0).standard_normal((N, D)))


@pytest.fixture(scope="module")
def anew(short: None, source: ArrayInputs) -> list[np.ndarray]:
    executor = LocalExecutor(1)
    found, entries = grown(source, executor)
    executor.close()
    assert entries == [N * (9 + 11 + 2 * k) for k in range(0, 43, 7)]
    return found


def test_columns_are_evaluated_once_and_forgotten_at_the_end(source: ArrayInputs, anew: list[np.ndarray]) -> None:
    held: list[int] = []
    executor = LocalExecutor(2, PLENTY)
    before = worker_tiles().nbytes
    found, entries = grown(source, executor, lambda number: held.append(worker_tiles().nbytes - before))
    executor.close()
    assert entries == [N * 20] + [N * (20 + 7)] * 6
    assert held == [tasks.slab_bytes(N, k) for k in range(0, 43, 7)]
    assert worker_tiles().nbytes == before
    for one, other in zip(found, anew, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_finds_no_room_is_evaluated_to_the_same_bits(source: ArrayInputs, anew: list[np.ndarray]) -> None:
    budget = tasks.slab_bytes(N, 16) * 3 // 2
    executor = LocalExecutor(2, TileBudget(budget))
    held: list[int] = []
    found, entries = grown(source, executor, lambda number: held.append(worker_tiles().nbytes))
    executor.close()
    assert 0 < max(held) <= budget
    assert N * 20 < entries[-1] - N * 20 < N * 84
    for one, other in zip(found, anew, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_pass_that_fails_half_way_leaves_nothing_that_is_read(
    source: ArrayInputs, anew: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    blas, calls = candidates.blas, count()

    def failing(*arguments: Any) -> None:
        if next(calls) == 40:
            raise RuntimeError("half way")
        blas(*arguments)

    rng, executor = np.random.default_rng(3), LocalExecutor(2, PLENTY)
    X, V = rng.standard_normal((60, D)), np.ones((N, 1))
    operator = BlockedKernelOperator(KERNELS[0], 0.1, source, executor)
    basis, other = GrowingBasis(operator), GrowingBasis(operator)
    basis.sums(X[50:], V, X[:9], between=True)
    with monkeypatch.context() as patched:
        patched.setattr(candidates, "blas", failing)
        with pytest.raises(RuntimeError, match="half way"):
            basis.sums(X[50:], V, X[:30], between=True)
    found, wanted = (one.sums(X[50:], V, X[:40], between=True) for one in (basis, other))
    np.testing.assert_array_equal(np.asarray(found.between), np.asarray(wanted.between))
    basis.close()
    other.close()
    executor.close()


@pytest.mark.parametrize(
    ("right", "weights", "words"),
    [
        (np.ones((N, 1)), np.ones((4, 1)), r"weights of shape \(5, 1\); got \(4, 1\)"),
        (np.ones((N - 1, 1)), np.ones((5, 1)), r"right-hand sides of shape \(2,100, t\); got \(2099, 1\)"),
    ],
)
def test_what_does_not_fit_is_refused(
    source: ArrayInputs, right: np.ndarray, weights: np.ndarray, words: str, one_thread: LocalExecutor
) -> None:
    basis = GrowingBasis(BlockedKernelOperator(KERNELS[0], 0.1, source, one_thread))
    with pytest.raises(InputError, match=words):
        basis.sums(np.zeros((2, D)), right, np.zeros((5, D)), weights)
