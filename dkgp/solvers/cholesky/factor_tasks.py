"""Tasks of a Cholesky factor in tiles, on disk or in memory: stateless, they read tiles, compute, and write tiles.

Block column k of the factor L ("panel" k) is made from the panels before it, left-looking: tile (i, k) is
(K_ik - sum_{j<k} L_ij L_kj') L_kk^-T, every tile is written once, and a tile's bits depend on nothing but the matrix
and the cut into tiles: a task that runs twice, or a tile that is computed again years later, changes nothing.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import worker_cache
from dkgp.data.stores.tile_store import TILE_HEADER_BYTES
from dkgp.errors import StoreError
from dkgp.kernels import Features, TileEvaluator
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, Variances, noise_at
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.inputs import centre_of
from dkgp.solvers.cholesky.dense_blocks import factor_lower, subtract_product, subtract_square
from dkgp.solvers.cholesky.memory_tiles import MemoryTiles, Tiles
from dkgp.solvers.cholesky.triangular import solve_lower

# One run: a panel and the rows of its tiles that are computed together.
PanelTiles = tuple[int, tuple[int, ...]]

# Tiles that are read while the ones before them are worked on.
READ_AHEAD = 2
# Kernel rows evaluated at a time, in float64 whatever the tiles are: rounded once, they stay positive definite longest.
PIECE_ROWS = 256


@dataclass(frozen=True)
class TileLayout:
    """The cut of the lower triangle into tiles.

    - `rows`: rows and columns of a tile, fewer in the last.
    - `precision`: type of the tiles.
    """

    n: int
    rows: int
    precision: Precision

    @property
    def n_panels(self) -> int:
        """Block rows, and block columns."""
        return -(-self.n // self.rows)

    @property
    def n_tiles(self) -> int:
        """Tiles in all."""
        return self.n_panels * (self.n_panels + 1) // 2

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the tiles."""
        return np.dtype(np.float32 if self.precision == "single" else np.float64)

    @property
    def tile_bytes(self) -> int:
        """Bytes of a whole tile."""
        return self.rows * self.rows * self.dtype.itemsize

    @property
    def disk_bytes(self) -> int:
        """Bytes of all tiles as files."""
        sizes = [stop - start for start, stop in map(self.bounds, range(self.n_panels))]
        entries = sum(size * sum(sizes[: i + 1]) for i, size in enumerate(sizes))
        return entries * self.dtype.itemsize + TILE_HEADER_BYTES * len(sizes) * (len(sizes) + 1) // 2

    def bounds(self, i: int) -> tuple[int, int]:
        """First sample of block row i and the first sample after it."""
        return i * self.rows, min((i + 1) * self.rows, self.n)

    def shape(self, i: int, k: int) -> tuple[int, int]:
        """Rows and columns of tile (i, k)."""
        (first, last), (left, right) = self.bounds(i), self.bounds(k)
        return last - first, right - left

    @staticmethod
    def name(i: int, k: int) -> str:
        """Name of tile (i, k) in the store."""
        return f"{i:05d}-{k:05d}"

    def task_bytes(self, rows_at_once: int) -> int:
        """Bytes of a task that computes so many tiles of a panel together."""
        return (rows_at_once + 2 + READ_AHEAD + 1) * self.tile_bytes + 16 * PIECE_ROWS * self.rows


@dataclass(frozen=True)
class TileContext:
    """Context of a task, besides its tiles."""

    context: BlockContext
    store: Tiles
    layout: TileLayout
    noise: Variances
    expanded: bool | None = None  # whether distances are; see `TileEvaluator`

    @property
    def evaluator(self) -> TileEvaluator:
        """Of the tiles of Kbar, before they are rounded."""
        source = self.context.source
        return TileEvaluator(self.context.kernel, "double", expanded=self.expanded, centre=centre_of(source))

    def read(self, i: int, k: int) -> NDArray[Any]:
        """Tile (i, k) of the factor."""
        layout = self.layout
        return self.store.read(layout.name(i, k), layout.shape(i, k), layout.dtype)

    def read_ahead(self, tiles: Sequence[tuple[int, int]]) -> Iterator[NDArray[Any]]:
        """Tiles one after the other, the next ones on their way while one is worked on."""
        if isinstance(self.store, MemoryTiles):
            yield from (self.read(i, k) for i, k in tiles)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="dkgp-tiles") as reader:
            pending: deque[Future[NDArray[Any]]] = deque()
            try:
                for i, k in tiles:
                    pending.append(reader.submit(self.read, i, k))
                    if len(pending) > READ_AHEAD:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                for future in pending:
                    future.cancel()

    def evaluate(self, i: int, k: int) -> NDArray[Any]:
        """Tile (i, k) of Kbar, from the inputs."""
        layout = self.layout
        rows, columns = self.features(i), self.features(k)
        evaluator = self.evaluator
        tile = np.empty(layout.shape(i, k), layout.dtype)
        for first in range(0, rows.n, PIECE_ROWS):
            last = min(first + PIECE_ROWS, rows.n)
            piece = evaluator.tile(columns, rows.slice(first, last)).T
            if i == k:
                start, _ = layout.bounds(i)
                noise = noise_at(self.noise, slice(start + first, start + last))
                piece[np.arange(last - first), np.arange(first, last)] += noise
            tile[first:last] = piece
        return tile

    def features(self, i: int) -> Features:
        """The samples of block row i, prepared in float64, from this worker's cache or the store."""

        def build() -> Features:
            return self.evaluator.prepare(self.context.source.inputs(*self.layout.bounds(i)))

        return worker_cache().get((self.context.run_id, f"tile-rows-{self.layout.rows}", i), build)


@needs_one_arithmetic
def panel_task(tiles: TileContext, runs: list[PanelTiles]) -> list[int]:
    """Compute and write tiles of a panel, one run of them after the other, `(k, (k,))` being the one on the diagonal.

    For each run comes back 0, or the number (from 1) of the row of a tile on the diagonal where it proved not to be
    positive definite and was not written.
    """
    return [_diagonal(tiles, k) if rows == (k,) else _below(tiles, k, rows) for k, rows in runs]


def _diagonal(tiles: TileContext, k: int) -> int:
    block = tiles.evaluate(k, k)
    for left in tiles.read_ahead([(k, j) for j in range(k)]):
        subtract_square(block, left)
    failed = factor_lower(block)
    if not failed:
        tiles.store.write(tiles.layout.name(k, k), block)
    return failed


def _below(tiles: TileContext, k: int, rows: tuple[int, ...]) -> int:
    blocks = [tiles.evaluate(i, k) for i in rows]
    places = [(i, j) for j in range(k) for i in (k, *rows)]
    tiles_read = tiles.read_ahead([*places, (k, k)])
    for _ in range(k):
        right = next(tiles_read)
        for block in blocks:
            subtract_product(block, next(tiles_read), right)
    corner = next(tiles_read)
    for i, block in zip(rows, blocks, strict=True):
        solve_lower(corner, len(corner), block)
        tiles.store.write(tiles.layout.name(i, k), block)
    return 0


@needs_one_arithmetic
def product_task(
    tiles: TileContext, vector: NDArray[Any], transposed: bool, places: list[tuple[int, int]]
) -> list[NDArray[Any]]:
    """L_ik @ v (or L_ik' @ v) for each tile: (rows, t) in the tiles' type."""
    tiles_read = tiles.read_ahead(places)
    return [(tile.T if transposed else tile) @ vector for tile in tiles_read]


def verify_task(tiles: TileContext, places: list[tuple[int, int]]) -> list[bool]:
    """Tell whether each tile is whole."""
    return [_is_whole(tiles, i, k) for i, k in places]


def _is_whole(tiles: TileContext, i: int, k: int) -> bool:
    try:
        tiles.read(i, k)
    except StoreError:
        return False
    return True


def digest_task(context: BlockContext, blocks: list[int]) -> list[str]:
    """SHA-256 of the inputs of each block."""
    return [digest(context.source.inputs(*context.bounds(block))) for block in blocks]


def digest(numbers: FloatArray) -> str:
    """SHA-256 of an array's numbers."""
    return hashlib.sha256(np.ascontiguousarray(numbers, dtype="<f8").data).hexdigest()
