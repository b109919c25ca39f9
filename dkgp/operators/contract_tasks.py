"""Derivatives of the kernel matrix in the kernel's parameters: contractions with weights, and products with vectors.

**Contractions**, sum_ij W_ij dK_ij / dlog(parameter), never hold an (n, n) array. The weights of a likelihood's
gradient are of low rank: W = N C N' with a few n-vectors N = [alpha, V, Z] and a small symmetric C. A tile of W is
computed from rows of N when it is used. K is symmetric too, so one of two mirrored tiles is evaluated, and counts
twice. Several C share each evaluation of the kernel.

**Products** dK W are central differences of products with K. Where a product with K takes far less than n^2
evaluations, so does its derivative along the logarithm of a parameter:

    dK W / d log theta ~= (K(theta e^h) W - K(theta e^-h) W) / 2h,

for any kernel and its way of taking products. The truncation error is h^2 / 6 times the third derivative: at h = 0.01
1.7e-5 of the derivative for an amplitude, and about 2.5e-5 for a length scale (squared exponential, Matern, rational
quadratic). An error e of the products adds e / h. An amplitude of the whole kernel needs no difference: the derivative
is K itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.base import split_evenly
from dkgp.data.types import BoolArray
from dkgp.errors import InputError
from dkgp.kernels import Kernel, count_entries
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.blocked import BlockedKernelOperator

# Rows and columns of a tile. A kernel's derivatives hold a few arrays of this size, which should fit the caches: a
# squared exponential of 8 features and nine C took 28 ns an entry with 256, 40 with 512, 61 with 1,024.
TILE_ROWS = 256
# Arrays of a tile in memory at once: the weights, and those of a sum or product of a few kernels.
ARRAYS_PER_TILE = 12


@dataclass(frozen=True)
class Mixing:
    """A symmetric C, (m, m), of W = N C N', without its zero rows and columns."""

    columns: IndexArray  # rows and columns of C that are not zero: (r,)
    matrix: FloatArray  # C at these: (r, r)

    @classmethod
    def of(cls, matrix: FloatArray) -> Mixing:
        """Return the non-zero part of a whole C; `InputError` where it is not symmetric."""
        if matrix.ndim != 2 or not np.array_equal(matrix, matrix.T):
            raise InputError(f"weights N C N' need a symmetric matrix C; got one of shape {matrix.shape}")
        columns = np.flatnonzero(np.any(matrix != 0.0, axis=1))
        return cls(columns, matrix[np.ix_(columns, columns)])

    def weights(self, rows: FloatArray, columns: FloatArray) -> FloatArray:
        """A tile of W: (a, b) for rows (a, m) and columns (b, m) of N."""
        return np.asarray((rows[:, self.columns] @ self.matrix) @ columns[:, self.columns].T)


def tiles_bytes(threads: int) -> int:
    """Bytes that contractions take for their tiles, by how many threads work in one process."""
    return threads * ARRAYS_PER_TILE * 8 * TILE_ROWS * TILE_ROWS


@needs_one_arithmetic
def contract_task(
    context: BlockContext, vectors: dict[int, FloatArray], mixings: tuple[Mixing, ...], pairs: list[tuple[int, int]]
) -> list[FloatArray]:
    """Contributions of each pair of blocks (i, j) and its mirror image, (len(mixings), q) each.

    `vectors` holds the rows of N by block, for the blocks that the pairs name.
    """
    return [_contract_pair(context, vectors, mixings, i, j) for i, j in pairs]


def _contract_pair(
    context: BlockContext, vectors: dict[int, FloatArray], mixings: tuple[Mixing, ...], i: int, j: int
) -> FloatArray:
    left, right = context.block_rows_cached(i).values, context.block_rows_cached(j).values
    total = np.zeros((len(mixings), len(context.kernel.parameters())))
    for a in range(0, len(left), TILE_ROWS):
        rows = slice(a, a + TILE_ROWS)
        # Of a block with itself, the tiles up to the diagonal.
        for b in range(0, len(right) if i != j else a + 1, TILE_ROWS):
            columns = slice(b, b + TILE_ROWS)
            A = left[rows]
            on_diagonal = i == j and a == b
            _, pull = context.kernel.linearise(A, A if on_diagonal else right[columns])
            count_entries(len(A) * len(right[columns]))
            times = 1.0 if on_diagonal else 2.0
            for index, mixing in enumerate(mixings):
                total[index] += times * pull(mixing.weights(vectors[i][rows], vectors[j][columns]))
    return total


def contract(operator: BlockedKernelOperator, vectors: FloatArray, matrices: list[FloatArray]) -> FloatArray:
    """sum_ij W_ij dK_ij / dlog(parameter) for the weights W = N C N' of each C: (number of C, q).

    N is `vectors` (n, m), the C are the symmetric `matrices` (m, m). Columns are in the order of the kernel's
    `parameters`, with the same bits for any number of workers. `InputError` for shapes that do not fit, or a C that is
    not symmetric.
    """
    context, executor = operator.context, operator.executor
    if vectors.ndim != 2 or vectors.shape[0] != operator.n:
        raise InputError(f"expected vectors of shape ({operator.n}, m); got {vectors.shape}")
    if any(matrix.shape != (vectors.shape[1],) * 2 for matrix in matrices):
        raise InputError(f"each C must be of shape {(vectors.shape[1],) * 2}, one row for each vector")
    mixings = tuple(Mixing.of(matrix) for matrix in matrices)
    blocks = range(context.n_blocks)
    pairs = [(i, j) for i in blocks for j in range(i + 1)]
    total = np.zeros((len(mixings), len(context.kernel.parameters())))
    # As for a product with the matrix: enough pairs a round to keep everyone busy, and few vectors in flight.
    per_round = max(8 * executor.parallelism, len(blocks))
    for first in range(0, len(pairs), per_round):
        groups = split_evenly(pairs[first : first + per_round], 2 * executor.parallelism)
        pending = []
        for group in groups:
            blocks_of_group = sorted({block for pair in group for block in pair})
            rows = {block: vectors[slice(*context.bounds(block))] for block in blocks_of_group}
            pending.append(operator.submit("kcontract", contract_task, (context, rows, mixings), [group]))
        for round_ in pending:
            for part in round_.result():
                total += part
    return total


# h, on a logarithmic scale.
STEP = 0.01


def slope_products(
    product: Callable[[Kernel], FloatArray], kernel: Kernel, moved: BoolArray
) -> Iterator[tuple[int, FloatArray]]:
    """Yield each moved parameter's index and dK W / d log(parameter), (n, t).

    Parameters
    ----------
    product : callable
        Returns K W, without noise, for a kernel; the array may be written to.
    moved : (q,) bool
        Parameters of `kernel` whose derivatives are needed.
    """
    values = np.array([parameter.value for parameter in kernel.parameters()])
    amplitude = kernel.amplitude_index
    for index in np.flatnonzero(moved):
        if values[index] == 0.0:  # a feature that is switched off has no logarithm to move
            continue
        if index == amplitude:
            yield int(index), product(kernel)
            continue
        shifts = np.zeros(len(values))
        shifts[index] = STEP
        slopes = product(kernel.with_parameters(values * np.exp(shifts)))
        slopes -= product(kernel.with_parameters(values * np.exp(-shifts)))
        slopes /= 2.0 * STEP
        yield int(index), slopes
