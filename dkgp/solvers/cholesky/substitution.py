"""Systems L F = C and L'V = F with a factor in tiles, for many right-hand sides at once, in place.

Block row after block row, and tile after tile within one, in one order on any number of threads. Row-major (rows, t) is
column-major (t, rows), which is how the calls of BLAS read; a single right-hand side takes matrix-vector products,
which read a tile at the speed of memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from dkgp.cluster.threads import in_parallel
from dkgp.operators.base import FloatArray
from dkgp.operators.blas import blas
from dkgp.solvers.cholesky.factor_tasks import TileContext


def substitute(tiles: TileContext, right: FloatArray, threads: int, *, transposed: bool = False) -> None:
    """C becomes F = L^-1 C, or transposed F becomes V = L^-T F, for float64 (n, t) in rows.

    Each corner is solved with in turn, and what it gave is taken off the block rows to come, which threads share.
    """
    rows = [slice(*tiles.layout.bounds(k)) for k in range(tiles.layout.n_panels)]
    order = range(len(rows))[::-1] if transposed else range(len(rows))
    for position, k in enumerate(order):
        _solve(tiles.read(k, k), right[rows[k]], transposed=transposed)
        later = order[position + 1 :]

        def take_off(index: int, k: int = k, later: Sequence[int] = later) -> None:
            i = later[index]
            tile = tiles.read(k, i) if transposed else tiles.read(i, k)
            _subtract(tile, right[rows[k]], right[rows[i]], transposed=transposed)

        in_parallel(take_off, len(later), threads)


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
