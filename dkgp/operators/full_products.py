"""Products with the whole of K: its lower half in pieces, each evaluated or read once for both of its products.

A piece is a few blocks by a few blocks. A worker adds up a piece's products, and the coordinator adds up the pieces,
one after the other. The cut of K and the order of sums depend on n alone, so that bits depend neither on the workers
nor on the tiles that they keep. The grouping of pieces into tasks, and their workers, depend on the cluster: a piece
goes where its tiles may be kept.

Pieces are submitted in rounds of bounded size, each before the last one is done, so that workers do not wait for
additions.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor, PendingRound
from dkgp.cluster.executors.homes import Homes
from dkgp.errors import ClusterError
from dkgp.kernels.tiles.evaluator import KeptTiles, Precision
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.keeping import Keeping, kept_bytes_of
from dkgp.operators.kept_tiles import TileRequest, worker_tiles

# From so many blocks on a piece is two by two blocks: half the vectors on the wire for an entry.
SINGLE_BLOCKS = 16
# What the results of a round may take at the coordinator; two rounds are under way.
ROUND_BYTES = 32 * 1024**2
# Pieces a thread gets in a round at least: small rounds leave some waiting for others.
LEAST_PIECES = 4
# A task on another process costs the coordinator 4 ms of Python, during which workers on the same cores wait; so many
# entries take a tenth of a second. More tasks for a thread in a round only help where workers differ.
TASK_ENTRIES = 500_000_000
MOST_TASKS = 8
# How long workers may take to forget.
FORGET_SECONDS = 5.0


@dataclass(frozen=True)
class Piece:
    """Blocks `rows` by blocks `columns` of K, up to its diagonal; both are ranges (first, after the last)."""

    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of blocks."""
        return [(i, j) for i in range(*self.rows) for j in range(self.columns[0], min(self.columns[1], i + 1))]

    @property
    def blocks(self) -> list[int]:
        """Blocks of which it takes vectors, and to whose products it adds."""
        return sorted({*range(*self.rows), *range(*self.columns)})


def side_of(n_blocks: int) -> int:
    """Blocks of a piece's side, for a matrix of so many blocks."""
    return 1 if n_blocks <= SINGLE_BLOCKS else 2


def round_length(side: int, block_bytes: float, threads: int) -> int:
    """Pieces of a round, for vectors of so many bytes a block."""
    return max(LEAST_PIECES * threads, int(ROUND_BYTES // max(1, 2 * side * block_bytes)))


def tasks_a_thread(pieces: int, entries: float, threads: int) -> int:
    """Tasks of a round for each thread of worker processes, for pieces of so many entries."""
    return max(1, min(int(pieces * entries // (TASK_ENTRIES * threads)), MOST_TASKS))


def pieces_of(n_blocks: int) -> list[Piece]:
    """The lower half of a matrix of so many blocks: row after row, and in each from the left to the diagonal."""
    side = side_of(n_blocks)
    ranges = [(first, min(first + side, n_blocks)) for first in range(0, n_blocks, side)]
    return [Piece(rows, columns) for at, rows in enumerate(ranges) for columns in ranges[: at + 1]]


@dataclass(frozen=True)
class PieceWork:
    """Work of one task: pieces, and the rows of V by block, for the blocks that they name."""

    pieces: list[Piece]
    vectors: dict[int, FloatArray]


@dataclass(frozen=True)
class PieceProduct:
    """A piece's part of the product, by block; entries that were read and evaluated for it; why tiles are kept."""

    parts: dict[int, FloatArray]
    entries_read: int
    entries_evaluated: int
    reason: str = ""


def matmat_task(
    context: BlockContext, precision: Precision, keeping: Keeping | None, work: list[PieceWork]
) -> list[list[PieceProduct]]:
    """K's pieces times the vectors that come with them; for each share of the work, its pieces' products in order."""
    return [
        [_piece_product(context, share.vectors, precision, keeping, piece) for piece in share.pieces] for share in work
    ]


def _piece_product(
    context: BlockContext,
    vectors: dict[int, FloatArray],
    precision: Precision,
    keeping: Keeping | None,
    piece: Piece,
) -> PieceProduct:
    parts: dict[int, FloatArray] = {}
    entries = {True: 0, False: 0}
    for pair in piece.pairs:
        products, read, count = _pair_products(context, vectors, precision, keeping, pair)
        entries[read] += count
        for block, product in zip(pair, products, strict=False):
            if block in parts:
                parts[block] += product
            else:
                parts[block] = np.ascontiguousarray(product)
    reason = "" if keeping is None else worker_tiles().reason(context.run_id, keeping)
    return PieceProduct(parts, entries[True], entries[False], reason)


def _pair_products(
    context: BlockContext,
    vectors: dict[int, FloatArray],
    precision: Precision,
    keeping: Keeping | None,
    pair: tuple[int, int],
) -> tuple[tuple[FloatArray, ...], bool, int]:
    """A pair's products for its rows and, off the diagonal, its columns; whether it was read; its entries."""
    evaluator, (i, j) = context.evaluator(precision), pair
    rows = context.block_features(i, precision)
    columns = None if i == j else context.block_features(j, precision)
    products: tuple[FloatArray, ...] = ()

    def multiply(tiles: KeptTiles | None) -> None:
        nonlocal products
        if columns is None:
            products = (evaluator.symmetric(rows, vectors[i], tiles),)
        else:
            products = evaluator.pair(rows, columns, vectors[j], vectors[i], tiles)

    if keeping is None:
        read = False
        multiply(None)
    else:
        request = TileRequest(context.run_id, pair, keeping, lambda: evaluator.room(rows, columns))
        read = worker_tiles().use(request, multiply)
    return products, read, evaluator.entries_of(rows, columns)


def forget_task(run_id: str, workers: list[int]) -> list[None]:
    """Let this worker forget a run's tiles."""
    worker_tiles().discard_run(run_id)
    return [None for _ in workers]


class FullProducts:
    """Products of one operator with its whole matrix; `submit` starts a round of its tasks."""

    def __init__(self, context: BlockContext, executor: BlockExecutor, submit: Callable[..., PendingRound]) -> None:
        self._context, self._executor, self._submit = context, executor, submit
        self._pieces = pieces_of(context.n_blocks)
        self._homes = Homes(len(self._pieces))
        self._turns = 0
        self._kept = False  # whether workers may hold tiles
        # Share of the last product's entries that were read from kept tiles, and their bytes.
        self.kept_share, self.kept_bytes = 0.0, 0
        # In plain JSON types: the most bytes that a product has read, and the latest reason.
        self.kept: dict[str, Any] = {"bytes": 0, "reason": ""}
        self._rounds_done, self._rounds_remaining, self._rounds = 0, 0.0, 0
        self._opened_at = time.perf_counter()
        self._last: tuple[float, float] | None = None  # when the last product began, and its seconds

    def foresee(self, done: int, remaining: float) -> None:
        """Note how many rounds a solve has done, and how many it foresees from here."""
        self._rounds_done, self._rounds_remaining, self._rounds = done, remaining, self._rounds + 1

    def _keeping(self, precision: Precision) -> Keeping | None:
        """Terms for the next product; float64 is for checks, and evaluated."""
        budget = self._executor.tiles
        if precision == "double" or budget.bytes <= 0:
            return None
        products, share = self._products_remaining(budget.products or 0.0), 0.0
        if self._last is not None:
            now, (began, seconds) = time.perf_counter(), self._last
            share = products * seconds / (now - self._opened_at + products * (now - began))
        self._turns += 1
        self._kept = True
        bytes_a_worker = kept_bytes_of(self._context.n) // max(1, len(self._executor.workers))
        return Keeping(budget, self._turns, bytes_a_worker, products, share)

    def _products_remaining(self, foreseen: float) -> float:
        """Products that remain of those foreseen at the start, or that the remaining rounds take: the larger number."""
        by_rounds = self._rounds_remaining * max(1.0, self._turns / max(1, self._rounds - 1))
        return max(0.0, foreseen - max(self._turns, self._rounds_done), by_rounds)

    def add(self, V: FloatArray, precision: Precision, result: FloatArray) -> Iterator[tuple[int, int]]:
        """Add K @ V to `result`; after each round, the number of pieces that are done and of all."""
        keeping, began = self._keeping(precision), time.perf_counter()
        rows = self._context.block_rows
        side = self._pieces[0].rows[1] - self._pieces[0].rows[0]
        length = round_length(side, 8 * rows * V.shape[1], self._executor.parallelism)
        waiting: deque[tuple[range, list[list[int]], PendingRound]] = deque()
        read = evaluated = done = 0
        starts = deque(range(0, len(self._pieces), length))
        while starts or waiting:
            while starts and len(waiting) < 2:
                first = starts.popleft()
                numbers = range(first, min(first + length, len(self._pieces)))
                waiting.append((numbers, *self._start(numbers, V, precision, keeping, rows * rows * side * side)))
            numbers, groups, pending = waiting.popleft()
            by_number: dict[int, PieceProduct] = {}
            for group, products in zip(groups, pending.result(), strict=True):
                by_number.update(zip(group, products, strict=True))
            for number in numbers:
                piece = by_number.pop(number)
                self.kept["reason"] = piece.reason or self.kept["reason"]
                for block, part in piece.parts.items():
                    result[slice(*self._context.bounds(block))] += part
                read, evaluated = read + piece.entries_read, evaluated + piece.entries_evaluated
            done += len(numbers)
            yield done, len(self._pieces)
        if precision == "single":
            self.kept_share, self.kept_bytes = read / max(1, read + evaluated), 4 * read
            self.kept["bytes"] = max(self.kept["bytes"], 4 * read)
            self._last = began, time.perf_counter() - began

    def _start(
        self, numbers: Sequence[int], V: FloatArray, precision: Precision, keeping: Keeping | None, entries: int
    ) -> tuple[list[list[int]], PendingRound]:
        threads, workers = self._executor.parallelism, self._executor.workers
        # In one process a task costs next to nothing.
        parts = len(numbers) if self._executor.shares_memory else tasks_a_thread(len(numbers), entries, threads)
        groups, owners = self._homes.groups(workers, numbers, parts)
        work = [[self._work([self._pieces[number] for number in group], V)] for group in groups]
        hints = owners if len(workers) > 1 else None
        return groups, self._submit("kpass", matmat_task, (self._context, precision, keeping), work, hints)

    def _work(self, pieces: list[Piece], V: FloatArray) -> PieceWork:
        blocks = {block for piece in pieces for block in piece.blocks}
        return PieceWork(pieces, {block: V[slice(*self._context.bounds(block))] for block in sorted(blocks)})

    def close(self) -> None:
        """Have all workers forget the tiles."""
        run_id = self._context.run_id
        if self._kept:
            forget_everywhere(self._executor, run_id)
        else:
            worker_tiles().discard_run(run_id)
        self._kept = False


def forget_everywhere(executor: BlockExecutor, run_id: str) -> None:
    """Have all workers forget a run's tiles; one that does not answer forgets them when others need the room."""
    worker_tiles().discard_run(run_id)
    with suppress(ClusterError):
        workers = list(executor.workers)
        if len(workers) > 1 or not executor.shares_memory:
            pending = executor.submit("kforget", forget_task, (run_id,), [[0] for _ in workers], workers)
            until = time.monotonic() + FORGET_SECONDS
            while not pending.done() and time.monotonic() < until:
                time.sleep(0.01)
