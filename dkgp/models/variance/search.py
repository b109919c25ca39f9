"""Solutions of a batch's systems Kbar v = k_x, good enough to prove with: block conjugate gradients in float32.

Nothing here proves anything: `dkgp.models.variance.bounds` holds for any v, and is evaluated in float64. So products,
vectors and their algebra are float32, twice as fast and half as large. A product evaluates each kernel entry once for
`COLUMNS_AT_ONCE` columns.

The first directions are local: for each test sample the solution that its nearest training samples alone would have, by
a small Cholesky factor of its own. The next ones are preconditioned residuals, conjugate to the last. What all samples'
directions span serves each. A sample leaves once float64 is likely to find it within the gap, and takes its last step
without a product; the search ends where all have left, or where float32 has nothing more to give.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.base import BlockExecutor, RoundTasks, split_evenly
from dkgp.cluster.threads import in_parallel
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.models.variance.bounds import Queries
from dkgp.models.variance.nystrom import PIECE_ROWS, NystromFactor
from dkgp.models.variance.row_scales import ProofContext
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.blas import lapack
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.full_products import FullProducts
from dkgp.operators.vecchia.leaves import gathered
from dkgp.solvers.conjugate.block import BlockDirections, add_product, row_pieces
from dkgp.solvers.conjugate.phases import COLUMNS_AT_ONCE
from dkgp.solvers.conjugate.preconditioner import Preconditioner

SingleArray = NDArray[np.float32]

# Tasks of local solutions for each thread.
LOCAL_TASKS = 4
# Vectors that are preconditioned at once: what they take in float64 is not to grow with n.
MOST_AT_ONCE, LEAST_AT_ONCE, NUMBERS_AT_ONCE = 64, 8, 2_000_000
# Of what a product takes, the local solutions of as many samples take a tenth: s^3 / 3 = n^2 / 5.
LOCAL_SHARE = 0.6
# Samples leave where so many are expected within the gap: the others' directions cost as much the fewer they are.
LEAVING_SHARE = 0.2
# What a step is taken to make of a width before there was one to tell by, and at best; and by how much the next one
# falls short of the last. A sample that is let go too early takes kernel entries in float64 all by itself.
FIRST_FACTOR, LEAST_FACTOR, SLOWING = 0.4, 0.3, 1.4
# A step's length along M^-1 r before there was one, and at least; Kbar is rarely above twice M.
FIRST_LENGTH, SHORTEST = 0.6, 0.3
# Without a quarter of the samples' widths halved in so many products, float32 has done what it can, or nothing helps.
STALLED_PRODUCTS, STALLED_FACTOR, STALLED_SHARE = 6, 0.5, 0.25
# What float32 leaves of a residual, against the length of k_x.
SINGLE_FLOOR = 8.0 * float(np.finfo(np.float32).eps)


@dataclass
class ProductTally:
    """Products with the whole kernel matrix so far, counted and timed; nothing is decided by it."""

    # Columns that Kbar was multiplied with, in float32 and in float64.
    single_columns: int = 0
    double_columns: int = 0
    seconds: float = 0.0  # what the products took
    settled: int = 0  # samples whose intervals stayed wider than the gap, since nothing needs them narrower

    def add(self, other: ProductTally) -> None:
        """Add another's figures."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


def product_bytes(n: int, columns: int) -> int:
    """Bytes that a product takes beside its vectors and images: a copy of some columns, and two words a number."""
    return 24 * n * min(columns, COLUMNS_AT_ONCE)


class BatchWork:
    """Work of a batch: products and solutions by an executor's tasks, the rest by threads of this process.

    Bits depend neither on the executor nor on the number of threads.

    Parameters
    ----------
    factor : NystromFactor
    executor : BlockExecutor
        `HereExecutor` for a batch that one worker solves, or the run's for one that all workers share.
    threads : int
        Of this process.
    tally : ProductTally
        Counts the products.
    """

    def __init__(
        self, factor: NystromFactor, executor: BlockExecutor, threads: int = 1, tally: ProductTally | None = None
    ) -> None:
        self.factor, self.executor, self.threads = factor, executor, threads
        self.tally = ProductTally() if tally is None else tally
        self._products = {
            precision: FullProducts(context, executor, executor.start_total, lambda: factor.prior, keeps=False)
            for precision, context in (("single", factor.context), ("double", ProofContext.of(factor.context)))
        }

    def add_product(
        self, images: NDArray[Any], vectors: NDArray[Any], precision: Precision, scale: float = 1.0
    ) -> None:
        """Add `scale` Kbar V to the images (n, k), which have the type of the precision, in place."""
        started, count = time.perf_counter(), vectors.shape[1]
        for columns in np.array_split(np.arange(count), -(-count // COLUMNS_AT_ONCE)) if count else ():
            where = slice(columns[0], columns[-1] + 1)
            some = np.array(vectors[:, where], dtype=images.dtype, order="C")
            some *= images.dtype.type(scale)
            self._products[precision].add(some, precision, images[:, where])
            # Last, where it is rounded once: it may be far larger than all the rest.
            some *= images.dtype.type(self.factor.noise_variance)
            images[:, where] += some
        self.tally.seconds += time.perf_counter() - started
        if precision == "single":
            self.tally.single_columns += count
        else:
            self.tally.double_columns += count

    def expected_widths(self, residual: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
        """r' (Q + s2 I)^-1 r, what the proof comes to but for roundings, and the z that it is made with: (t,), (R, t).

        With p = F'r and z = (F'F + s2 I)^-1 p it is (r'r - p'z) / s2.
        """
        projected, z = self.factor.preconditioner(self.executor).projected(residual)
        square = column_dots(residual, residual, self.threads) - np.einsum("rt,rt->t", projected, z)
        return np.abs(square) / self.factor.noise_variance, z


@dataclass(frozen=True)
class Wanted:
    """Widths at which samples are done."""

    gap: float  # relative to the upper end, noise included where it is
    noise: float  # what is added to the function's variance

    def widths(self, upper: FloatArray) -> FloatArray:
        """For samples whose function has this variance at most."""
        return np.asarray(self.gap * (np.maximum(upper, 0.0) + self.noise))


def vectors_at_once(n: int) -> int:
    """Vectors that are preconditioned at once, of n numbers each."""
    return max(LEAST_AT_ONCE, min(MOST_AT_ONCE, NUMBERS_AT_ONCE // n))


def local_samples(n: int) -> int:
    """Training samples of a local solution."""
    return max(1, min(n, int((LOCAL_SHARE * n * n) ** (1.0 / 3.0))))


def search(
    factor: NystromFactor,
    inputs: FloatArray,
    test: Queries,
    preconditioner: Preconditioner,
    target: Wanted,
    limit: int,
    work: BatchWork,
) -> tuple[SingleArray, FloatArray]:
    """Find v near Kbar^-1 k_x for test samples: (n, t), and the products that each took part in: (t,).

    Parameters
    ----------
    factor : NystromFactor
        What the bounds to come will be made with.
    test : Queries
        The same samples.
    limit : int
        Products at most.
    """
    single, threads = _Single(work), work.threads
    r = single.columns(inputs)
    solutions = v = np.zeros_like(r)
    todo = np.arange(r.shape[1])
    floor = (SINGLE_FLOOR * np.sqrt(column_dots(r, r, threads))) ** 2 / factor.noise_variance
    directions = BlockDirections(np.zeros((0, 0), np.float32), np.zeros((0, 0), np.float32), threads)
    z, along = single.local(inputs), np.zeros(r.shape[1])
    pace, products, taken = _Pace(), 0, np.zeros(r.shape[1])
    explained = np.zeros(r.shape[1])
    while products < limit:
        step = directions.advance(z, r, single.product)
        if not len(step) or not np.isfinite(step).all():
            break
        add_product(v, directions.vectors, step, threads)
        add_product(r, directions.images, -step, threads)
        products += 1
        taken[todo] += 1
        before, explained = explained, single.explained(v, r, inputs[todo])
        pace.note_step(explained - before, along)
        widths = work.expected_widths(r)[0]
        goal = np.maximum(target.widths(test.prior[todo] - explained), floor[todo])
        within = pace.within(widths, goal)
        if pace.stalled:
            break
        last = products >= limit or bool(within.all())
        del z
        z = _preconditioned(preconditioner, r)
        along = column_dots(z, r, threads)
        if not last and within.mean() < LEAVING_SHARE:
            continue
        # What a product would be spent on next is worth most of that as it is: its length is what the last one was.
        directions.conjugate(z)
        leaving = np.ones_like(within) if last else within
        for rows in row_pieces(len(r)):
            solutions[rows, todo[leaving]] = v[rows, leaving] + pace.length * z[rows, leaving]
        if last:
            todo = todo[:0]
            break
        rest = ~within
        directions = BlockDirections(np.zeros((0, 0), np.float32), np.zeros((0, 0), np.float32), threads)
        todo, along, explained = todo[rest], along[rest], explained[rest]
        v = v[:, rest]  # one after the other, so that only one of them is there twice at a time
        r = r[:, rest]
        z = z[:, rest]
        pace.keep(rest)
    if v is not solutions and len(todo):
        solutions[:, todo] = v
    solutions[~np.isfinite(solutions)] = 0.0
    return solutions, taken


class _Pace:
    """Foresees from the samples' widths what the next step of a search will bring."""

    def __init__(self) -> None:
        self._best: list[FloatArray] = []
        self._factor = FIRST_FACTOR
        self.length = np.float32(FIRST_LENGTH)

    def note_step(self, gained: FloatArray, along: FloatArray) -> None:
        """Note what a step took off the variances, and r'M^-1 r before it: their ratio is its length along M^-1 r."""
        total = float(along.sum())
        if total > 0.0:
            self.length = np.float32(np.clip(float(gained.sum()) / total, SHORTEST, 1.0))

    def within(self, widths: FloatArray, goal: FloatArray) -> NDArray[np.bool_]:
        """The samples that one more step is likely to bring within their goals."""
        if self._best:
            ratio = np.median(widths / np.maximum(self._best[-1], np.finfo(np.float64).tiny))
            self._factor = float(np.clip(SLOWING * ratio, LEAST_FACTOR, 1.0))
        self._best.append(np.minimum(self._best[-1], widths) if self._best else widths)
        return np.asarray(self._factor * widths <= goal)

    def keep(self, which: NDArray[np.bool_]) -> None:
        """Go on with some of the samples."""
        self._best = [widths[which] for widths in self._best]

    @property
    def stalled(self) -> bool:
        """True where few widths have halved for long: float32 has done what it can, or nothing helps."""
        if len(self._best) <= STALLED_PRODUCTS:
            return False
        then, now = self._best[-1 - STALLED_PRODUCTS], self._best[-1]
        return bool(np.mean(now < STALLED_FACTOR * then) < STALLED_SHARE)


def _preconditioned(preconditioner: Preconditioner, residual: SingleArray) -> SingleArray:
    count = residual.shape[1]
    # In float32 twice as many take no more.
    groups = np.array_split(np.arange(count), -(-count // (2 * vectors_at_once(len(residual)))))
    z = np.empty(residual.shape, np.float32)
    for group in groups:
        columns = slice(group[0], group[-1] + 1)
        z[:, columns] = preconditioner.apply(residual[:, columns])
    return z


def column_dots(left: NDArray[Any], right: NDArray[Any], threads: int = 1) -> FloatArray:
    """Inner products by column, in float64 and in runs short enough for `NystromFactor.unit` to count: (t,)."""
    starts = range(0, len(left), PIECE_ROWS)
    parts = np.empty((len(starts), left.shape[1]))

    def add(index: int) -> None:
        rows = slice(starts[index], starts[index] + PIECE_ROWS)
        parts[index] = np.einsum("it,it->t", left[rows], right[rows], dtype=np.float64)

    in_parallel(add, len(starts), threads)
    return np.asarray(parts.sum(axis=0))


class _Single:
    """Kbar in float32."""

    def __init__(self, work: BatchWork) -> None:
        self._factor, self._work, self._threads = work.factor, work, work.threads
        self._evaluator = self._factor.context.evaluator("single")
        self._rows = self._factor.pieces("single", PIECE_ROWS)

    def columns(self, inputs: FloatArray) -> SingleArray:
        """k_x of test samples: (n, t)."""
        test = self._evaluator.prepare(inputs)
        out = np.empty((self._factor.n, test.n), np.float32)

        def fill(index: int) -> None:
            rows, where = self._rows[index]
            out[where] = self._evaluator.tile(rows, test)

        in_parallel(fill, len(self._rows), self._threads)
        return out

    def product(self, vectors: SingleArray) -> SingleArray:
        """Kbar V for V (n, k)."""
        images = np.zeros(vectors.shape, np.float32)
        self._work.add_product(images, vectors, "single")
        return images

    def explained(self, v: SingleArray, r: SingleArray, inputs: FloatArray) -> FloatArray:
        """v'(k_x + r), what an approximate solution takes off the variance: (t,)."""
        test = self._evaluator.prepare(inputs)
        parts = np.empty((len(self._rows), test.n))

        def add(index: int) -> None:
            rows, where = self._rows[index]
            parts[index] = column_dots(v[where], self._evaluator.tile(rows, test) + r[where])

        in_parallel(add, len(self._rows), self._threads)
        return np.asarray(parts.sum(axis=0))

    def local(self, inputs: FloatArray) -> SingleArray:
        """Solutions by each sample's nearest training samples alone: (n, t)."""
        factor, executor = self._factor, self._work.executor
        solutions = np.zeros((factor.n, len(inputs)), np.float32)
        groups = split_evenly(range(len(inputs)), LOCAL_TASKS * executor.parallelism)
        values: dict[Hashable, Any] = {"prior": factor.prior}
        needs = [["prior"]] * len(groups)
        arguments = (factor.context, factor.noise_variance, inputs)
        pending = executor.start(RoundTasks(local_task, arguments, groups, None, "klocal", values, needs))
        for index, (nearest, solution) in enumerate(pending.result()):
            solutions[nearest, index] = solution
        return solutions


@needs_one_arithmetic
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def local_task(
    context: BlockContext, noise_variance: float, inputs: FloatArray, values: dict[str, FloatArray], tests: list[int]
) -> list[tuple[IndexArray, SingleArray]]:
    """Return, for each test sample, its nearest training samples and the solution that they alone would have.

    The nearest are those with the largest k(x, x_i)^2 / k(x_i, x_i).
    """
    evaluator, count, results = context.evaluator("single"), local_samples(context.n), []
    prior = values["prior"].astype(np.float32)
    for index in tests:
        test = evaluator.prepare(inputs[index : index + 1])
        blocks = [context.block_features(block, "single") for block in range(context.n_blocks)]
        column = np.concatenate([evaluator.tile(rows, test)[:, 0] for rows in blocks])
        likeness = np.nan_to_num(column * column / prior)
        nearest = np.sort(np.argpartition(likeness, context.n - count)[context.n - count :])
        rows = gathered(context, nearest.astype(np.int32), "single")
        matrix = np.asfortranarray(evaluator.tile(rows, rows))
        matrix[np.diag_indices(count)] += np.float32(noise_variance)
        right = np.asfortranarray(column[nearest])
        # Where float32 finds it indefinite, the others' directions will have to do.
        trouble = lapack("potrf", b"L", count, matrix, count) or lapack(
            "potrs", b"L", count, 1, matrix, count, right, count
        )
        solved = not trouble and bool(np.isfinite(right).all())
        results.append((nearest, right) if solved else (nearest[:0], right[:0]))
    return results
