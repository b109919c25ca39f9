"""Products with the whole of K: its lower half in squares of blocks, each evaluated or read once for both products.

Rows and columns of K are cut into ranges of blocks, and the squares of ranges into tasks along a Z-order. A task adds
the products of its pairs of blocks as fixed-point words, range by range. Workers add up the words of each range, and n
numbers a column come back. Integer sums are exact, so bits depend on the pairs alone, not on the cut, the workers or
the tiles that they keep.

The cut depends on the cluster: about four tasks a thread, the last ones small. A task goes where its tiles may be kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.executors.base import BlockExecutor, HereExecutor, QuickExecutor, RoundTasks
from dkgp.cluster.executors.homes import Homes
from dkgp.cluster.executors.sums import PendingTotal, Progress
from dkgp.errors import ClusterError
from dkgp.kernels.tiles.evaluator import EntryCount, KeptTiles, Precision, counting
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.exact_sums import UNBOUNDED, Scale, low_bits
from dkgp.operators.keeping import Keeping, TileRequest, kept_bytes_of, worker_tiles

# Tasks a thread, and the parts that the last of them is cut into: the end of a product waits for small ones.
TASKS_A_THREAD, LAST_PARTS = 4, 4
# Entries below which a task on another process is not worth its messages: a tenth of a second.
TASK_ENTRIES = 500_000_000
# Entries of a task in one process that take a few times as long as starting it: a quarter of a millisecond.
SHARED_TASK_ENTRIES = 250_000
# Words of a task in one process: little beside the vectors.
SHARED_TASK_BYTES = 2 * 1024**2
# Bytes of a range's words from which they are added apart: fewer cost less to move than a task of their own.
APART_BYTES = 128 * 1024
# Ranges at most: 20,000 squares.
MOST_RANGES = 200
# Rows whose sqrt(k(x, x)) is this many powers of two below the largest have weights of their own.
ROW_BITS = 24
# Roundings of the bound on totals, and those of entries, weights and sums as computed.
BOUND_MARGIN = 1.01
# Samples up to which evaluating a tile takes no longer than measuring whether it pays to keep it.
FEW = 512
# How long workers may take to forget.
FORGET_SECONDS = 5.0
# Key of a task's counts: entries read, entries evaluated, and refused numbers by column.
COUNTS = "counts"

Square = tuple[int, int]


@dataclass(frozen=True)
class Cut:
    """Ranges of blocks, from edge to edge, and tasks: squares (row range, column range) of the lower half."""

    edges: tuple[int, ...]
    tasks: tuple[tuple[Square, ...], ...]

    def blocks(self, name: int) -> tuple[int, int]:
        """Return the first block of a range, and the first after it."""
        return self.edges[name], self.edges[name + 1]

    @property
    def names(self) -> range:
        """Names of the ranges: their numbers."""
        return range(len(self.edges) - 1)

    @property
    def needs(self) -> list[list[int]]:
        """Ranges of each task."""
        return [sorted({name for square in task for name in square}) for task in self.tasks]


def cut_of(n_blocks: int, threads: int, tasks_a_thread: int = TASKS_A_THREAD) -> Cut:
    """Cut the lower half of a matrix of so many blocks into tasks for so many threads, large ones before small ones.

    Tasks with the same number modulo `threads` are neighbours.
    """
    large = max(0, tasks_a_thread - 1)
    ranges = min(n_blocks, MOST_RANGES, math.ceil(math.sqrt(8.0 * threads * tasks_a_thread)))
    edges = np.linspace(0, n_blocks, ranges + 1).round().astype(int)
    rows, columns = np.tril_indices(ranges)
    order = np.argsort(_z_order(rows, columns))
    rows, columns = rows[order], columns[order]
    sides = np.diff(edges)
    weights = np.cumsum(np.where(rows == columns, 0.5, 1.0) * sides[rows] * sides[columns])
    # Tasks of a thread, and the share of each thread's work that one of them has.
    last = LAST_PARTS if large else 1
    shares = np.repeat([1.0, 1.0 / last], [threads * large, threads * last]) / (threads * tasks_a_thread)
    middles = (weights + np.append(0.0, weights[:-1])) / (2.0 * weights[-1])
    squares: list[list[Square]] = [[] for _ in shares]
    for place, *square in zip(np.searchsorted(np.cumsum(shares)[:-1], middles), rows, columns, strict=True):
        squares[place].append((int(square[0]), int(square[1])))
    tasks = [squares[at] for first in range(large) for at in range(first, threads * large, large)]
    tasks += [squares[at] for first in range(last) for at in range(threads * large + first, len(squares), last)]
    return Cut(tuple(edges.tolist()), tuple(tuple(task) for task in tasks if task))


def _z_order(rows: NDArray[Any], columns: NDArray[Any]) -> NDArray[Any]:
    """Interleave the bits of two coordinates."""
    bits = range(int(rows.max()).bit_length())
    return np.asarray(
        np.sum([((rows >> bit & 1) << 2 * bit + 1) | ((columns >> bit & 1) << 2 * bit) for bit in bits], axis=0)
    )


@dataclass(frozen=True)
class RangeRows:
    """The rows of V of a range of blocks, and the bits by which the exponents of its rows are smaller, or None."""

    blocks: tuple[int, int]
    vectors: NDArray[Any]
    shifts: NDArray[np.int64] | None = None


def matmat_task(
    context: BlockContext,
    scale: Scale,
    precision: Precision,
    keeping: Keeping | None,
    ranges: dict[int, RangeRows],
    squares: Sequence[Square],
) -> list[dict[Any, NDArray[np.int64]]]:
    """Return the words of the products of K's squares with the vectors of their ranges, (words, t, rows) by range."""
    sums = {name: _RangeSum(context, scale, each) for name, each in ranges.items()}
    counts = np.zeros(2 + scale.exponents.shape[0], np.int64)
    for names in squares:
        (first, last), (start, stop) = (ranges[name].blocks for name in names)
        for pair in [(i, j) for i in range(first, last) for j in range(start, min(stop, i + 1))]:
            vectors = [sums[name].rows(block) for name, block in zip(names, pair, strict=True)]
            products, read, entries = _pair_products(context, vectors, precision, keeping, pair)
            counts[0 if read else 1] += entries
            for name, block, product in zip(names, pair, products, strict=False):
                counts[2:] += sums[name].add(block, product)
    return [{**{name: each.words.swapaxes(1, 2) for name, each in sums.items()}, COUNTS: counts}]


class _RangeSum:
    """Sum of the products for the rows of a range."""

    def __init__(self, context: BlockContext, scale: Scale, ranges: RangeRows) -> None:
        self._context, self._scale, self._range = context, scale, ranges
        self._start = context.bounds(ranges.blocks[0])[0]
        self.words = scale.zeros(len(ranges.vectors))

    def rows(self, block: int) -> FloatArray:
        """Return the vectors of a block, in float64."""
        return self._range.vectors[self._place(block)].astype(np.float64, copy=False)

    def add(self, block: int, product: FloatArray) -> NDArray[np.int64]:
        """Add the product for a block; return the refused numbers by column."""
        place, shifts = self._place(block), self._range.shifts
        scale = self._scale if shifts is None else self._scale.shifted(shifts[place])
        return scale.add(self.words[:, place], product)

    def _place(self, block: int) -> slice:
        first, last = self._context.bounds(block)
        return slice(first - self._start, last - self._start)


def _pair_products(
    context: BlockContext,
    vectors: Sequence[FloatArray],
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
            products = (evaluator.symmetric(rows, vectors[0], tiles),)
        else:
            products = evaluator.pair(rows, columns, vectors[1], vectors[0], tiles)

    if keeping is None:
        read = False
        multiply(None)
    else:
        request = TileRequest(context.run_id, pair, keeping, lambda: evaluator.room(rows, columns))
        read = worker_tiles().use(request, multiply)
    return products, read, evaluator.entries_of(rows, columns)


def tasks_a_thread(entries: float, threads: int) -> int:
    """Return the large tasks of a product of so many entries for each thread of worker processes."""
    return max(1, min(int(entries / (TASK_ENTRIES * threads)), TASKS_A_THREAD))


def words_apart(words_bytes: float, ranges: int) -> bool:
    """Return True if ranges have tasks of their own for their vectors and the additions of their words."""
    return words_bytes / ranges >= APART_BYTES


def reason_task(run_id: str, keeping: Keeping, blocks: list[int]) -> list[str]:
    """Return in words why this worker keeps tiles of a run, or none."""
    return [worker_tiles().reason(run_id, keeping) for _ in blocks]


def forget_task(run_id: str, workers: list[int]) -> list[None]:
    """Let this worker forget a run's tiles."""
    worker_tiles().discard_run(run_id)
    return [None for _ in workers]


def scale_of(V: NDArray[Any], roots: FloatArray, precision: Precision, n_blocks: int) -> Scale:
    """Return the weights of the words of K @ V, of `roots` sqrt(k_ii): by max sqrt(k_ii) sum_j sqrt(k_jj) |v_j|."""
    largest = float(roots.max(initial=0.0))
    exponents = np.empty(V.shape[1], np.int64)
    for column in range(V.shape[1]):
        # Powers of two keep sums of the largest and of the smallest numbers within float64.
        terms = np.abs(V[:, column])
        top = int(np.frexp(terms.max(initial=0.0))[1])
        bound = BOUND_MARGIN * largest * float(np.sum(roots * np.ldexp(terms, -top)))
        exponents[column] = np.frexp(bound)[1] + top if math.isfinite(bound) else UNBOUNDED
    return Scale(exponents, 1 if precision == "single" else 2, low_bits(n_blocks))


class FullProducts:
    """Products of one operator with its whole matrix.

    `start_total` starts a sum of tasks, `prior` returns k(x, x) of all samples. Without `keeps` workers keep no tiles.
    With `entries`, which counts evaluated entries, products of one block need no task where the executor runs here.
    """

    def __init__(
        self,
        context: BlockContext,
        executor: BlockExecutor,
        start_total: Callable[[RoundTasks], PendingTotal],
        prior: Callable[[], FloatArray],
        *,
        keeps: bool = True,
        entries: EntryCount | None = None,
    ) -> None:
        self._context, self._executor, self._start_total, self._prior = context, executor, start_total, prior
        self._keeps, self._entries = keeps, entries
        self._cut, self._homes = Cut((0, 1), ()), Homes(0)
        self._layout = (0, 0)  # threads, and tasks a thread, of the cut
        self._roots: tuple[FloatArray, NDArray[np.int64] | None] | None = None
        self._turns = 0
        self._terms: Keeping | None = None  # of the last product for which workers may have kept tiles
        # Share of the last product's entries that were read from kept tiles, and their bytes.
        self.kept_share, self.kept_bytes = 0.0, 0
        self._most_kept_bytes = 0
        self._rounds_done, self._rounds_remaining, self._rounds = 0, 0.0, 0
        self._opened_at = time.perf_counter()
        self._last: tuple[float, float] | None = None  # when the last product began, and its seconds

    def foresee(self, done: int, remaining: float) -> None:
        """Note how many rounds a solve has done, and how many it foresees from here."""
        self._rounds_done, self._rounds_remaining, self._rounds = done, remaining, self._rounds + 1

    def _keeping(self, precision: Precision) -> Keeping | None:
        """Terms for the next product; float64 is for checks, and evaluated."""
        budget = self._executor.tiles
        few = budget.measured and self._context.n <= FEW
        if precision == "double" or budget.bytes <= 0 or few or not self._keeps:
            return None
        products, share = self._products_remaining(budget.products or 0.0), 0.0
        if self._last is not None:
            now, (began, seconds) = time.perf_counter(), self._last
            share = products * seconds / (now - self._opened_at + products * (now - began))
        self._turns += 1
        bytes_a_worker = kept_bytes_of(self._context.n) // max(1, len(self._executor.workers))
        self._terms = Keeping(budget, self._turns, bytes_a_worker, products, share)
        return self._terms

    def _products_remaining(self, foreseen: float) -> float:
        """Products that remain of those foreseen at the start, or that the remaining rounds take: the larger number."""
        by_rounds = self._rounds_remaining * max(1.0, self._turns / max(1, self._rounds - 1))
        return max(0.0, foreseen - max(self._turns, self._rounds_done), by_rounds)

    @property
    def kept(self) -> dict[str, Any]:
        """The most bytes of kept tiles that a product has read, and why tiles are kept, in plain JSON types."""
        reason = ""
        if self._terms is not None:
            executor = self._executor
            arguments = (self._context.run_id, self._terms)
            reason = executor.submit("kreason", reason_task, arguments, [[0]], list(executor.workers)[:1]).result()[0]
        return {"bytes": self._most_kept_bytes, "reason": reason}

    def add(
        self, V: NDArray[Any], precision: Precision, result: NDArray[Any], progress: Progress | None = None
    ) -> None:
        """Add K @ V to `result`; `progress` is called with the tasks that are done, and all.

        Either may be float32, independently of the precision of the products. Columns are NaN where a number is NaN or
        infinite, in V or on the way.
        """
        keeping, began = self._keeping(precision), time.perf_counter()
        roots, shifts = self._square_roots()
        scale = scale_of(V, roots, precision, self._context.n_blocks)
        is_here = self._entries is not None and isinstance(self._executor, QuickExecutor)
        if is_here and keeping is None and self._context.n_blocks == 1:
            self._add_here(V, precision, result, scale if shifts is None else scale.shifted(shifts))
            if progress is not None:
                progress(1, 1)
            return
        cut, bounds = self._cut_for(V, scale.words), self._context.bounds
        names = cut.names
        rows = [slice(bounds(first)[0], bounds(last - 1)[1]) for first, last in map(cut.blocks, names)]
        ranges: dict[Hashable, RangeRows] = {
            name: RangeRows(cut.blocks(name), V[rows[name]], None if shifts is None else shifts[rows[name]])
            for name in names
        }
        workers = self._executor.workers
        owners = self._homes.owners(workers) if len(workers) > 1 else None
        arguments = (self._context, scale, precision, keeping)
        needs = cut.needs
        apart = words_apart(8.0 * scale.words * V.size, len(names))
        gives = needs if apart else None
        tasks = RoundTasks(matmat_task, arguments, cut.tasks, owners, "kpass", ranges, needs, gives, not apart)
        totals = self._start_total(tasks).result(progress)
        counts = totals.pop(COUNTS)
        for name in names:
            words = totals.pop(name).swapaxes(1, 2)
            each = scale if shifts is None else scale.shifted(shifts[rows[name]])
            result[rows[name]] += each.decode(words)
        result[:, counts[2:] > 0] = np.nan
        if precision == "single":
            read, evaluated = int(counts[0]), int(counts[1])
            self.kept_share, self.kept_bytes = read / max(1, read + evaluated), 4 * read
            self._most_kept_bytes = max(self._most_kept_bytes, 4 * read)
            self._last = began, time.perf_counter() - began

    def _add_here(self, V: NDArray[Any], precision: Precision, result: NDArray[Any], scale: Scale) -> None:
        """Add K @ V of one block to `result`, on this thread: the words of `matmat_task`."""
        context, words = self._context, scale.zeros(len(V))
        with counting() as count, np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            rows = context.block_features(0, precision)
            product = context.evaluator(precision).symmetric(rows, V.astype(np.float64, copy=False))
            refused = scale.add(words, product)
        result += scale.decode(words)
        result[:, refused > 0] = np.nan
        assert self._entries is not None
        self._entries.add(count.value)

    def _square_roots(self) -> tuple[FloatArray, NDArray[np.int64] | None]:
        """Return sqrt(k(x, x)) of all samples, and by how many bits exponents of rows are smaller; None for zeros."""
        if self._roots is None:
            roots = np.sqrt(self._prior())
            bits, positive = np.frexp(roots)[1].astype(np.int64), roots > 0.0
            shifts = np.where(positive, np.maximum(bits.max(where=positive, initial=-2000) - bits - ROW_BITS, 0), 0)
            self._roots = roots, shifts if shifts.any() else None
        return self._roots

    def _cut_for(self, V: NDArray[Any], words: int) -> Cut:
        """Return the cut for the threads that there are now; the one before while they are about as many."""
        executor, context = self._executor, self._context
        now, threads = executor.parallelism, self._layout[0]
        if not 0.5 * threads <= now <= 2.0 * threads:
            threads = now
        wanted = tasks_a_thread(0.5 * context.n**2, threads)
        if executor.shares_memory or isinstance(executor, HereExecutor):
            # In one process a task costs next to nothing, and its words should be few.
            shares = 24.0 * context.n * V.shape[1] * words / SHARED_TASK_BYTES
            least = min(TASKS_A_THREAD, math.ceil(0.5 * context.n**2 / (SHARED_TASK_ENTRIES * threads)))
            wanted = min(max(least, math.ceil(0.5 * shares**2 / threads)), context.n_blocks**2)
        if (threads, wanted) != self._layout:
            self._layout, self._cut = (threads, wanted), cut_of(context.n_blocks, threads, wanted)
            self._homes = Homes(len(self._cut.tasks))
        return self._cut

    def close(self) -> None:
        """Have all workers forget the tiles."""
        run_id = self._context.run_id
        if self._terms is not None:
            forget_everywhere(self._executor, run_id)
        else:
            worker_tiles().discard_run(run_id)
        self._terms = None


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
