"""Systems L F = C and L'V = F with a factor in tiles, for many right-hand sides at once, in place.

Block row after block row, and tile after tile within one, in one order on any number of threads. Row-major (rows, t) is
column-major (t, rows), which is how the calls of BLAS read; a single right-hand side takes matrix-vector products,
which read a tile at the speed of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dkgp.cluster.threads import in_parallel
from dkgp.operators.base import FloatArray
from dkgp.operators.blas import blas
from dkgp.solvers.cholesky.factor_tasks import TileContext


def solve_forward(tiles: TileContext, right: FloatArray, threads: int = 1) -> None:
    """C becomes F = L^-1 C, for float64 C (n, t) in rows."""
    layout = tiles.layout

    def corner(k: int) -> None:
        rows = slice(*layout.bounds(k))
        _solve(tiles.read(k, k), right[rows], transposed=False)

    def take_off(i: int, k: int) -> None:
        first, done = slice(*layout.bounds(i)), slice(*layout.bounds(k))
        _subtract(tiles.read(i, k), right[done], right[first], transposed=False)

    _sweep(range(layout.n_panels), corner, take_off, threads)


def solve_backward(tiles: TileContext, right: FloatArray, threads: int = 1) -> None:
    """F becomes V = L^-T F, for float64 F (n, t) in rows."""
    layout = tiles.layout

    def corner(k: int) -> None:
        rows = slice(*layout.bounds(k))
        _solve(tiles.read(k, k), right[rows], transposed=True)

    def take_off(i: int, k: int) -> None:
        first, done = slice(*layout.bounds(i)), slice(*layout.bounds(k))
        _subtract(tiles.read(k, i), right[done], right[first], transposed=True)

    _sweep(range(layout.n_panels)[::-1], corner, take_off, threads)


def _sweep(
    order: Sequence[int], corner: Callable[[int], None], take_off: Callable[[int, int], None], threads: int
) -> None:
    """Solve with each corner in turn, and take what it gave off the block rows to come, which threads share."""
    for position, k in enumerate(order):
        corner(k)
        later = order[position + 1 :]
        in_parallel(lambda index, k=k, later=later: take_off(later[index], k), len(later), threads)  # type: ignore[misc]


def _subtract(tile: FloatArray, done: FloatArray, rest: FloatArray, *, transposed: bool) -> None:
    """rest -= L_ik done, or L_ki' done."""
    count, (rows, columns) = done.shape[1], tile.shape
    if count == 1:
        blas("gemv", b"N" if transposed else b"T", columns, rows, -1.0, tile, columns, done, 1, 1.0, rest, 1)
    elif transposed:
        blas("gemm", b"N", b"T", count, columns, rows, -1.0, done, count, tile, columns, 1.0, rest, count)
    else:
        blas("gemm", b"N", b"N", count, rows, columns, -1.0, done, count, tile, columns, 1.0, rest, count)


def _solve(tile: FloatArray, rows: FloatArray, *, transposed: bool) -> None:
    order, count = len(tile), rows.shape[1]
    if count == 1:
        blas("trsv", b"U", b"N" if transposed else b"T", b"N", order, tile, order, rows, 1)
    else:
        flag = b"T" if transposed else b"N"
        blas("trsm", b"R", b"U", flag, b"N", count, order, 1.0, tile, order, rows, count)
