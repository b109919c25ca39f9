"""Kbar by row blocks: the operator for training, in this process or on a cluster, as its executor decides.

Its tasks count the kernel entries that they evaluate, wherever they run. The count comes back with a task's results, so
that a task that was lost with its worker and run again counts once.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor, BlockTask, PendingRound, Rounds, RoundTasks, split_evenly
from dkgp.cluster.executors.sums import PendingTotal, Progress, Totals
from dkgp.errors import InputError
from dkgp.kernels import EntryCount, Features, Kernel, counting
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import (
    FloatArray,
    IndexArray,
    KernelOperator,
    PendingColumns,
    ReadyColumns,
    check_columns,
    check_indices,
    check_vectors,
)
from dkgp.operators.block_tasks import (
    BlockContext,
    InputSource,
    apply_columns_task,
    centre_of,
    diagonal_task,
    feature_width,
    row_errors_task,
    rows_task,
)
from dkgp.operators.full_products import FullProducts

# The key of the entries that the tasks of a total evaluate.
ENTRIES = "entries evaluated"


def counted_task(task: BlockTask, *arguments: Any) -> list[tuple[int, list[Any]]]:
    """Run a task on its group, the last of `arguments`: one pair of the entries evaluated and the task's results.

    Where sums overflow, results are infinite or NaN, and their user refuses them or proves nothing by them; NumPy's
    warnings, one a thread and worker, would say no more.
    """
    with counting() as count, np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        results = task(*arguments)
    return [(count.value, results)]


def counted_totals_task(task: BlockTask, *arguments: Any) -> list[Totals]:
    """Run a task of a total on its group; the entries evaluated are one more key of its totals."""
    ((entries, (totals,)),) = counted_task(task, *arguments)
    return [totals | {ENTRIES: np.array([entries], np.int64)}]


class CountedTotal:
    """A total of `counted_totals_task`, and a count that grows when it is taken."""

    def __init__(self, pending: PendingTotal, entries: EntryCount) -> None:
        self._pending, self._entries = pending, entries

    def result(self, progress: Progress | None = None) -> Totals:
        """Wait for the totals; to be called once."""
        totals = self._pending.result(progress)
        self._entries.add(int(totals.pop(ENTRIES)[0]))
        return totals


class CountedRound:
    """A round of `counted_task`: the tasks' results, and a count that grows when they are taken."""

    def __init__(self, pending: PendingRound, entries: EntryCount) -> None:
        self._pending, self._entries = pending, entries

    def done(self) -> bool:
        """True if `result` would return without waiting."""
        return self._pending.done()

    def result(self) -> list[Any]:
        """One result for each block, in block order; to be called once."""
        parts = self._pending.result()
        self._entries.add(sum(entries for entries, _ in parts))
        return [value for _, results in parts for value in results]


DEFAULT_COORDINATOR_INPUT_BYTES = 2 * 1024**3
TASKS_PER_WORKER_THREAD = 1


def coordinator_input_bytes_needed(n: int, d: int, width: int | None = None) -> int:
    """Bytes of all inputs at the coordinator: float64 rows (a copy in passing too), float32 features with norms.

    `width` is the kernel's `feature_width`; d by default.
    """
    return n * (16 * d + 4 * ((width or d) + 1))


class BlockedKernelOperator(KernelOperator, Rounds):
    """Kbar by row blocks, each block's products computed by stateless tasks of an executor.

    Parameters
    ----------
    noise_variance : float or (n,) array_like
    source : InputSource
        Standardised inputs, readable by range from wherever the tasks run.
    executor : BlockExecutor
        Runs the tasks. Not closed by this operator.
    coordinator_input_bytes : int, default 2 GiB
        Most that the coordinator may spend on the inputs of all samples. Beyond it, the inputs of the next round's
        candidates come back with each round and the coordinator never holds X.

    Attributes
    ----------
    context : BlockContext
        The data that block tasks of this run share.
    """

    def __init__(
        self,
        kernel: Kernel,
        noise_variance: float | ArrayLike,
        source: InputSource,
        executor: BlockExecutor,
        *,
        coordinator_input_bytes: int = DEFAULT_COORDINATOR_INPUT_BYTES,
    ) -> None:
        super().__init__(kernel, noise_variance, source.n_samples, centre_of(source))
        if source.n_features != kernel.n_features:
            raise InputError(f"the kernel is of {kernel.n_features} features, the data have {source.n_features}")
        self._source = source
        self.executor = executor
        self.context = BlockContext(f"run-{uuid.uuid4().hex[:12]}", source, kernel, self.n)
        self._products = FullProducts(self.context, executor, self.start_total, self.prior, entries=self.entries)
        self._diagonal: FloatArray | None = None
        self._prior: FloatArray | None = None
        needed = coordinator_input_bytes_needed(self.n, kernel.n_features, feature_width(kernel))
        self.holds_inputs = needed <= coordinator_input_bytes
        self._resident: Features | None = None
        self._resident_rows: FloatArray | None = None
        self._announced: IndexArray | None = None
        self._brought: list[tuple[IndexArray, FloatArray]] = []

    @property
    def overlaps(self) -> bool:
        """True where a round waits on messages or other machines."""
        return self.executor.overlaps

    @property
    def distributed(self) -> bool:
        """True where tasks run in other processes, and vectors travel to them and back."""
        return self.executor.overlaps and not self.executor.shares_memory

    @property
    def overlap_evaluations(self) -> int:
        """Kernel entries worth evaluating at the coordinator instead of waiting for a round."""
        return self.executor.overlap_evaluations

    def start(self, tasks: RoundTasks) -> PendingRound:
        """Start a round of tasks, and count the entries that they evaluate."""
        arguments, hints = (tasks.task, *tasks.arguments), () if tasks.owners is None else (tasks.owners,)
        if tasks.needs is not None:
            counted = replace(tasks, task=counted_task, arguments=arguments)
            return CountedRound(self.executor.start(counted), self.entries)
        pending = self.executor.submit(tasks.name, counted_task, arguments, tasks.groups, *hints)
        return CountedRound(pending, self.entries)

    def start_total(self, tasks: RoundTasks) -> PendingTotal:
        """Start a total of the tasks' results, and count the entries that they evaluate."""
        counted = replace(tasks, task=counted_totals_task, arguments=(tasks.task, *tasks.arguments))
        return CountedTotal(self.executor.start_total(counted), self.entries)

    def inputs(self, indices: IndexArray) -> FloatArray:
        """Standardised inputs of the samples `indices`, in that order: (m, d)."""
        check_indices(self.n, indices)
        return self._rows(indices)

    def with_noise(self, noise_variance: float | ArrayLike) -> Self:
        """Return the same K beside another noise."""
        other = super().with_noise(noise_variance)
        other._diagonal = None
        return other

    def diagonal(self) -> FloatArray:
        """Kbar's diagonal: (n,)."""
        if self._diagonal is None:
            self._diagonal = self.prior() + self.noise
        return self._diagonal

    def prior(self) -> FloatArray:
        """k(x, x) of all samples: (n,). One round of n kernel entries, once; stationary kernels need none."""
        if self.kernel.stationary:
            return np.full(self.n, float(self.kernel.diagonal(np.zeros((1, self.kernel.n_features)))[0]))
        if self._prior is None:
            groups = split_evenly(range(self.context.n_blocks), self.executor.parallelism)
            parts = self.executor.submit("kdiagonal", diagonal_task, (self.context,), groups).result()
            self._prior = np.concatenate(parts)
            self.entries.add(self.n)
        return self._prior

    def row_errors(self) -> FloatArray:
        """Errors that the samples' own rounding adds to float64 entries of K: (n,). One round; no kernel entries."""
        groups = split_evenly(range(self.context.n_blocks), self.executor.parallelism)
        return np.concatenate(self.executor.submit("krounding", row_errors_task, (self.context,), groups).result())

    def features(self, indices: IndexArray, precision: Precision = "single") -> Features:
        """Prepared features of the samples `indices`, in that order, at the coordinator."""
        check_indices(self.n, indices)
        if self.holds_inputs and precision == "single":
            return self._all_features().take(indices)
        return self.evaluator(precision).prepare(self._rows(indices))

    def announce(self, indices: IndexArray) -> None:
        """Have the inputs of these samples brought back with the next round, where the coordinator does not hold X."""
        if not self.holds_inputs:
            self._announced = np.unique(indices)

    def take_announced(self) -> IndexArray | None:
        """Return the samples whose inputs the next round is to bring, sorted, and forget them."""
        announced, self._announced = self._announced, None
        return announced

    def submit_columns(self, indices: IndexArray, delta: FloatArray, precision: Precision = "single") -> PendingColumns:
        """Start Kbar[:, B] @ delta as one round of block tasks."""
        check_columns(self.n, indices, delta)
        if not len(indices):
            return ReadyColumns(np.zeros((self.n, delta.shape[1])))
        announced = self.take_announced()
        pending = self.submit(
            "kblock",
            apply_columns_task,
            (self.context, self.features(indices, precision), delta, precision, announced),
            self._cut(self.context.n_blocks, TASKS_PER_WORKER_THREAD, self.n * len(indices)),
        )
        return _PendingColumns(self, pending, indices, delta, announced)

    def matmat(self, V: FloatArray, precision: Precision = "double") -> FloatArray:
        """Kbar @ V, each pair of samples evaluated once, or read from kept tiles (see `full_products`)."""
        check_vectors(self.n, V)
        result = self.noise_times(V)
        kept = f" ({self.kept_share:.0%} of K kept)" if self.kept_share else ""
        phase = f"product{kept}" if precision == "single" else "float64 product"
        self._products.add(V, precision, result, lambda done, total: self.tell(phase, done, total, "tasks"))
        self.kept_share = self._products.kept_share
        return result

    def foresee(self, done: int, remaining: float) -> None:
        """Tell workers how long tiles will be of use."""
        self._products.foresee(done, remaining)

    @property
    def kept(self) -> dict[str, Any]:
        """Bytes that workers kept of K, and why, in plain JSON types."""
        return self._products.kept

    @property
    def kept_bytes(self) -> int:
        """Bytes of kept tiles that the last product in single precision read."""
        return self._products.kept_bytes

    def close(self) -> None:
        """Forget this run's tiles, and its features in this process; a worker drops features as new runs need room."""
        self._products.close()
        worker_cache().discard_run(self.context.run_id)
        self._resident = self._resident_rows = None

    def _cut(self, count: int, tasks_per_thread: int, evaluations: int) -> list[list[int]]:
        """Cut `count` pieces of work into tasks; into fewer, where they would be too small to pay."""
        parts, least = self.executor.parallelism * tasks_per_thread, self.executor.least_task_evaluations
        if least:
            parts = min(parts, max(1, round(evaluations / least)))
        return split_evenly(range(count), parts)

    def _all_rows(self) -> FloatArray:
        if self._resident_rows is None:
            blocks = range(self.context.n_blocks)
            self._resident_rows = np.concatenate([self._source.inputs(*self.context.bounds(block)) for block in blocks])
        return self._resident_rows

    def _all_features(self) -> Features:
        if self._resident is None:
            self._resident = self.single.prepare(self._all_rows())
        return self._resident

    def _rows(self, indices: IndexArray) -> FloatArray:
        if self.holds_inputs:
            return self._all_rows()[indices]
        rows = np.empty((len(indices), self.kernel.n_features))
        missing = np.ones(len(indices), dtype=bool)
        for known, values in self._brought:
            position = np.minimum(np.searchsorted(known, indices), len(known) - 1)
            brought = missing & (known[position] == indices)
            rows[brought] = values[position[brought]]
            missing &= ~brought
        if missing.any():
            rows[missing] = self._fetch(indices[missing])
        return rows

    def _fetch(self, indices: IndexArray) -> FloatArray:
        """Inputs of samples that no round brought, in a round of their own."""
        samples, inverse = np.unique(indices, return_inverse=True)
        blocks = np.unique(samples // self.context.block_rows).tolist()
        groups = split_evenly(blocks, self.executor.parallelism)
        rows = self.executor.submit("krows", rows_task, (self.context, samples), groups).result()
        return np.asarray(np.concatenate(rows)[inverse])

    def receive(self, announced: IndexArray, parts: list[FloatArray]) -> None:
        """Keep the inputs of announced samples, which a round brought, for the next selections."""
        # The last two: a selection may be reading the one while the other arrives for the next.
        self._brought = [*self._brought[-1:], (announced, np.concatenate(parts))]


class _PendingColumns:
    def __init__(
        self,
        operator: BlockedKernelOperator,
        pending: PendingRound,
        indices: IndexArray,
        delta: FloatArray,
        announced: IndexArray | None,
    ) -> None:
        self._operator, self._pending = operator, pending
        self._indices, self._delta, self._announced = indices, delta, announced

    def done(self) -> bool:
        return self._pending.done()

    def result(self) -> FloatArray:
        parts = self._pending.result()
        product = np.concatenate([part[0] for part in parts])
        product[self._indices] += self._operator.noise_times(self._delta, self._indices)
        if self._announced is not None:
            self._operator.receive(self._announced, [part[1] for part in parts])
        return product
