"""Contractions of derivatives on all pairs of blocks, against the kernel's own on whole matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError
from dkgp.kernels import Kernel, SquaredExponential, parse_kernel
from dkgp.operators import ArrayInputs, BlockedKernelOperator, contract_tasks
from dkgp.operators.contract_tasks import Mixing, contract, tiles_bytes

N, D = 700, 3  # three blocks
KERNELS = [SquaredExponential((0.4, 0.2, 1.1), 1.3), parse_kernel("matern52 + 0.5 * linear", D)]


def problem(rng: np.random.Generator, n: int = N) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Inputs, N = [five vectors], and two C, one of them with rows of zeros."""
    matrices = [rng.normal(size=(5, 5)) for _ in range(2)]
    matrices = [matrix + matrix.T for matrix in matrices]
    matrices[1][2] = matrices[1][:, 2] = 0.0
    return rng.normal(size=(n, D)), rng.normal(size=(n, 5)), matrices


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
        (np.ones((N, 2)), np.array([[0.0, 1.0], [0.0, 0.0]]), "symmetric"),
        (np.ones((N, 2)), np.eye(3), "one row for each vector"),
        (np.ones((N - 1, 2)), np.eye(2), f"shape \\({N}, m\\)"),
    ],
)
def test_what_does_not_fit_is_refused(
    vectors: np.ndarray, matrix: np.ndarray, words: str, rng: np.random.Generator, one_thread: LocalExecutor
) -> None:
    with pytest.raises(InputError, match=words):
        contracted(KERNELS[0], rng.normal(size=(N, D)), one_thread, vectors, [matrix])
