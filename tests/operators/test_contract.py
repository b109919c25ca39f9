"""Rules of every kernel operator, against the dense matrix; a new one is a line in `OPERATORS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError
from dkgp.kernels import Kernel, SquaredExponential, TileEvaluator, parse_kernel
from dkgp.operators import (
    ArrayInputs,
    BlockedKernelOperator,
    CachedColumnsOperator,
    DenseKernelOperator,
    KernelOperator,
    contract_tasks,
)
from dkgp.operators.cells.operator import CellKernelOperator
from dkgp.operators.contract_tasks import Mixing, contract, tiles_bytes

NOISE_VARIANCE = 0.07
# Three row blocks of 256, 256 and 188 rows in the blocked operators.
N, D = 700, 2
# One problem for all tests: products by cells prove their expansions once.
KERNEL = SquaredExponential(gamma=(0.25, 0.55), variance=1.4)
X = np.random.default_rng(20).standard_normal((N, D))
K = KERNEL(X, X)

MakeOperator = Callable[[SquaredExponential, float | np.ndarray, np.ndarray], KernelOperator]


def _blocked(executor: LocalExecutor, **options: Any) -> MakeOperator:
    return lambda kernel, noise, X: BlockedKernelOperator(kernel, noise, ArrayInputs(X), executor, **options)


def _cells(executor: LocalExecutor, **options: Any) -> MakeOperator:
    return lambda kernel, noise, X: CellKernelOperator(kernel, noise, ArrayInputs(X), executor, error=1e-10, **options)


def _cached(executor: LocalExecutor) -> MakeOperator:
    make = _blocked(executor)
    return lambda kernel, noise, X: CachedColumnsOperator(make(kernel, noise, X))


# Each makes an operator's maker from an executor.
OPERATORS: dict[str, Callable[[LocalExecutor], MakeOperator]] = {
    "dense": lambda executor: DenseKernelOperator,
    "blocked": _blocked,
    "blocked, out of core": lambda executor: _blocked(executor, coordinator_input_bytes=1),
    "cells": _cells,
    "cells, out of core": lambda executor: _cells(executor, coordinator_input_bytes=1),
    "cached columns": _cached,
}


@pytest.fixture(params=OPERATORS)
def make(request: pytest.FixtureRequest, two_threads: LocalExecutor) -> MakeOperator:
    return OPERATORS[request.param](two_threads)


@dataclass
class Case:
    """An operator with the matrix that it stands for."""

    operator: KernelOperator
    matrix: np.ndarray


# Error allowed relative to the sum of absolute weights.
TOLERANCE = {"single": 1e-5, "double": 1e-12}


def largest_error(found: np.ndarray, expected: np.ndarray, weights: np.ndarray) -> float:
    assert found.shape == expected.shape
    assert found.dtype == np.float64
    return float(np.max(np.abs(found - expected) / np.abs(weights).sum(axis=0)))


@pytest.fixture
def case(make: MakeOperator) -> Iterator[Case]:
    with make(KERNEL, NOISE_VARIANCE, X) as operator:
        yield Case(operator, K + NOISE_VARIANCE * np.eye(N))


def test_describes_itself(case: Case) -> None:
    assert case.operator.n == N
    assert case.operator.kernel == KERNEL
    assert case.operator.noise_variance == NOISE_VARIANCE
    assert (case.operator.single.precision, case.operator.double.precision) == ("single", "double")
    assert case.operator.evaluator("single") is case.operator.single
    assert case.operator.evaluator("double") is case.operator.double


def test_diagonal(case: Case) -> None:
    np.testing.assert_allclose(case.operator.diagonal(), case.matrix.diagonal(), rtol=1e-14)


def test_submatrix(case: Case, rng: np.random.Generator) -> None:
    rows = rng.choice(N, 40, replace=False)
    columns = np.concatenate([rows[:10], rng.choice(N, 15), [0, N - 1, 0]])
    block = case.operator.submatrix(rows, columns)
    np.testing.assert_allclose(block, case.matrix[np.ix_(rows, columns)], rtol=0, atol=1e-12)


@pytest.mark.parametrize("precision", ["single", "double"])
def test_features_are_the_rows_in_the_order_asked_for(case: Case, rng: np.random.Generator, precision: str) -> None:
    for indices in (rng.choice(N, 33), np.array([N - 1, 0, 300, 0]), np.arange(N), np.array([5])):
        found = case.operator.features(indices, precision)
        expected = TileEvaluator(KERNEL, precision).prepare(X[indices])
        assert found.n == len(indices)
        np.testing.assert_array_equal(found.values[:, : found.n], expected.values[:, : found.n])
        np.testing.assert_array_equal(found.squared_norms[:, : found.n], expected.squared_norms[:, : found.n])


@pytest.mark.covering
@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize(("columns", "targets"), [(1, 1), (1, 3), (40, 1), (40, 3), (N, 2)])
def test_apply_columns(case: Case, rng: np.random.Generator, precision: str, columns: int, targets: int) -> None:
    indices = rng.choice(N, columns, replace=False)
    delta = rng.standard_normal((columns, targets))
    found = case.operator.apply_columns(indices, delta, precision)
    assert largest_error(found, case.matrix[:, indices] @ delta, delta) <= TOLERANCE[precision]


def test_no_columns_are_nothing(case: Case) -> None:
    found = case.operator.apply_columns(np.empty(0, dtype=np.intp), np.empty((0, 2)))
    np.testing.assert_array_equal(found, np.zeros((N, 2)))


def test_submitted_columns_are_the_applied_ones(case: Case, rng: np.random.Generator) -> None:
    batches = [(rng.choice(N, 30, replace=False), rng.standard_normal((30, 1))) for _ in range(3)]
    pending = [case.operator.submit_columns(indices, delta) for indices, delta in batches]
    results = [round_.result() for round_ in reversed(pending)][::-1]
    assert all(round_.done() for round_ in pending)
    for (indices, delta), result in zip(batches, results, strict=True):
        np.testing.assert_array_equal(result, case.operator.apply_columns(indices, delta))


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("precision", ["single", "double"])
def test_matmat(case: Case, rng: np.random.Generator, precision: str, targets: int) -> None:
    V = rng.standard_normal((N, targets))
    found = case.operator.matmat(V, precision)
    assert largest_error(found, case.matrix @ V, V) <= TOLERANCE[precision]


def test_matmat_does_not_touch_its_argument(case: Case, rng: np.random.Generator) -> None:
    V = rng.standard_normal((N, 2))
    before = V.copy()
    first = case.operator.matmat(V)
    np.testing.assert_array_equal(V, before)
    np.testing.assert_array_equal(case.operator.matmat(V), first)


def test_typical_entry_is_the_root_mean_square(case: Case) -> None:
    off_diagonal = K[~np.eye(N, dtype=bool)]
    assert case.operator.typical_entry() == pytest.approx(np.sqrt(np.mean(off_diagonal**2)), rel=0.1)


@pytest.mark.parametrize(
    ("indices", "delta", "message"),
    [
        (np.array([0, 1]), np.zeros(2), r"expected indices \(m,\) and delta \(m, t\); got \(2,\) and \(2,\)"),
        (np.array([0, 1]), np.zeros((3, 1)), r"got \(2,\) and \(3, 1\)"),
        (np.array([[0, 1]]), np.zeros((1, 1)), r"got \(1, 2\) and \(1, 1\)"),
        (np.array([0, N]), np.zeros((2, 1)), rf"indices must lie in 0..{N - 1}; got 0..{N}"),
        (np.array([3, -1]), np.zeros((2, 1)), rf"indices must lie in 0..{N - 1}; got -1..3"),
    ],
)
def test_columns_that_do_not_fit_are_refused(case: Case, indices, delta, message: str) -> None:
    with pytest.raises(InputError, match=message):
        case.operator.apply_columns(indices, delta)


@pytest.mark.parametrize("shape", [(N,), (N + 1, 1), (N - 1, 2), (1, N)])
def test_vectors_of_another_shape_are_refused(case: Case, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=rf"expected an array of shape \({N}, t\); got"):
        case.operator.matmat(np.zeros(shape))


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("index", [N, -1])
def test_features_out_of_range_are_refused(case: Case, index: int, precision: str) -> None:
    with pytest.raises(InputError, match=rf"indices must lie in 0..{N - 1}"):
        case.operator.features(np.array([0, index]), precision)
    with pytest.raises(InputError, match=rf"indices must lie in 0..{N - 1}"):
        case.operator.submatrix(np.array([0]), np.array([index]))


@pytest.mark.parametrize("noise_variance", [0.0, -0.1, np.nan, np.inf])
def test_noise_variances_that_make_no_sense_are_refused(make: MakeOperator, noise_variance: float) -> None:
    with pytest.raises(InputError, match="noise variance must be finite and positive; got"):
        make(SquaredExponential(gamma=(0.5,)), noise_variance, np.zeros((3, 1)))


def test_noise_by_sample_lies_on_the_diagonal(make: MakeOperator, rng: np.random.Generator) -> None:
    noise = 0.03 * 10.0 ** rng.uniform(0.0, 2.0, N)
    matrix = K + np.diag(noise)
    indices, delta, V = rng.choice(N, 40, replace=False), rng.standard_normal((40, 2)), rng.standard_normal((N, 3))
    columns = np.append(indices[::-1], indices[3])
    with make(KERNEL, noise, X) as operator:
        assert operator.noise_variance == noise.min()
        np.testing.assert_array_equal(operator.noise, noise)
        np.testing.assert_allclose(operator.diagonal(), matrix.diagonal(), rtol=1e-14)
        found = operator.submatrix(indices, columns)
        np.testing.assert_allclose(found, matrix[np.ix_(indices, columns)], rtol=0, atol=1e-12)
        for precision in ("single", "double"):
            close = TOLERANCE[precision]
            assert largest_error(operator.matmat(V, precision), matrix @ V, V) <= close
            found = operator.apply_columns(indices, delta, precision)
            assert largest_error(found, matrix[:, indices] @ delta, delta) <= close


def test_noise_by_sample_is_a_copy_that_nobody_writes_to(make: MakeOperator) -> None:
    noise = np.array([0.3, 0.1, 0.2])
    with make(SquaredExponential(gamma=(0.5,)), noise, np.zeros((3, 1))) as operator:
        noise[:] = 7.0
        np.testing.assert_array_equal(operator.noise, [0.3, 0.1, 0.2])
        assert not operator.noise.flags.writeable


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (np.full(2, 0.1), r"a number, or one for each of 3 samples; got shape \(2,\)"),
        (np.full((3, 1), 0.1), r"got shape \(3, 1\)"),
        ([0.1, 0.0, 0.1], "finite and positive; got 0.0 for sample 1"),
        ([0.1, 0.2, np.nan], "finite and positive; got nan for sample 2"),
    ],
)
def test_noise_by_sample_that_makes_no_sense_is_refused(make: MakeOperator, noise, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(SquaredExponential(gamma=(0.5,)), noise, np.zeros((3, 1)))


def test_kernel_of_other_data_is_refused(make: MakeOperator) -> None:
    with pytest.raises(InputError, match="2 .*features"):
        make(SquaredExponential(gamma=(0.5, 0.5)), 0.1, np.zeros((5, 3)))


def test_one_sample(make: MakeOperator) -> None:
    with make(SquaredExponential(gamma=(0.5,), variance=2.0), 0.5, np.array([[0.3]])) as operator:
        product = operator.matmat(np.array([[2.0]]))
        np.testing.assert_allclose(product, [[5.0]], rtol=1e-14, atol=operator.error_bound)
        np.testing.assert_allclose(operator.apply_columns(np.array([0]), np.array([[4.0]])), [[10.0]], rtol=1e-7)
        assert operator.typical_entry() == pytest.approx(2.0)


# Contractions of derivatives on all pairs of blocks, against the kernel's own on whole matrices.


TASKS_N, TASKS_D = 700, 3  # three blocks
KERNELS = [SquaredExponential((0.4, 0.2, 1.1), 1.3), parse_kernel("matern52 + 0.5 * linear", TASKS_D)]


def problem(rng: np.random.Generator, n: int = TASKS_N) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Inputs, N = [five vectors], and two C, one of them with rows of zeros."""
    matrices = [rng.normal(size=(5, 5)) for _ in range(2)]
    matrices = [matrix + matrix.T for matrix in matrices]
    matrices[1][2] = matrices[1][:, 2] = 0.0
    return rng.normal(size=(n, TASKS_D)), rng.normal(size=(n, 5)), matrices


def contracted(kernel: Kernel, X: np.ndarray, executor: Any, vectors: np.ndarray, matrices: Any) -> np.ndarray:
    with BlockedKernelOperator(kernel, 0.1, ArrayInputs(X), executor) as operator:
        return contract(operator, vectors, matrices)


@pytest.mark.parametrize("kernel", KERNELS, ids=["rbf", "sum"])
@pytest.mark.parametrize("piece", [256, 100])
def test_it_is_the_whole_matrix_contraction(
    kernel: Kernel, piece: int, rng: np.random.Generator, two_threads: LocalExecutor, monkeypatch: Any
) -> None:
    monkeypatch.setattr(contract_tasks, "TILE_ROWS", piece)
    X, vectors, matrices = problem(rng)
    expected = [kernel.contract(X, X, vectors @ matrix @ vectors.T) for matrix in matrices]
    found = contracted(kernel, X, two_threads, vectors, matrices)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-8 * np.abs(expected).max())


def test_no_tile_is_larger_than_it_should_be(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    sizes = []

    class Watched(SquaredExponential):
        def linearise(self, A: Any, B: Any) -> Any:
            sizes.append((len(A), len(B)))
            return super().linearise(A, B)

    X, vectors, matrices = problem(rng, 5000)
    contracted(Watched((0.4, 0.2, 1.1)), X, one_thread, vectors, matrices)
    assert max(max(size) for size in sizes) == contract_tasks.TILE_ROWS
    # Half of all pairs, and the diagonal pieces in full; whatever the number of matrices.
    entries = sum(a * b for a, b in sizes)
    assert 5000**2 / 2 < entries < 0.6 * 5000**2


@pytest.mark.parametrize("piece", [256, 100])
def test_entries_that_are_evaluated_are_counted(
    piece: int, rng: np.random.Generator, two_threads: LocalExecutor, monkeypatch: Any
) -> None:
    """Once for all matrices: of blocks that mirror each other one, of a block itself the tiles up to the diagonal."""
    monkeypatch.setattr(contract_tasks, "TILE_ROWS", piece)
    X, vectors, matrices = problem(rng)
    with BlockedKernelOperator(KERNELS[0], 0.1, ArrayInputs(X), two_threads) as operator:
        contract(operator, vectors, matrices)
        expected = 0
        blocks = [operator.context.bounds(block) for block in range(operator.context.n_blocks)]
        for start, stop in blocks:
            for a in range(start, stop, piece):
                rows = min(a + piece, stop) - a
                expected += rows * (start + min(a - start + piece, stop - start))
        assert len(blocks) == 3
        assert operator.kernel_evaluations == expected


def test_bytes_are_those_of_twelve_tiles_a_thread() -> None:
    assert tiles_bytes(3) == 3 * 12 * 8 * 256 * 256


def test_a_mixing_skips_what_is_zero() -> None:
    matrix = np.zeros((6, 6))
    matrix[1, 4] = matrix[4, 1] = 2.0
    mixing = Mixing.of(matrix)
    assert mixing.columns.tolist() == [1, 4]
    rows = np.arange(12.0).reshape(2, 6)
    np.testing.assert_array_equal(mixing.weights(rows, rows), rows @ matrix @ rows.T)


@pytest.mark.parametrize(
    ("vectors", "matrix", "words"),
    [
        (np.ones((TASKS_N, 2)), np.array([[0.0, 1.0], [0.0, 0.0]]), "symmetric"),
        (np.ones((TASKS_N, 2)), np.eye(3), "one row for each vector"),
        (np.ones((TASKS_N - 1, 2)), np.eye(2), f"shape \\({N}, m\\)"),
    ],
)
def test_what_does_not_fit_is_refused(
    vectors: np.ndarray, matrix: np.ndarray, words: str, rng: np.random.Generator, one_thread: LocalExecutor
) -> None:
    with pytest.raises(InputError, match=words):
        contracted(KERNELS[0], rng.normal(size=(TASKS_N, TASKS_D)), one_thread, vectors, [matrix])
