"""Promises of the blocked operator: the cut into blocks, the same bits everywhere, few messages."""

from __future__ import annotations

import gc
import itertools
import json
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.cluster import LocalExecutor, worker_cache
from dkgp.cluster.cache import TileBudget
from dkgp.cluster.executors.base import split_evenly
from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import dataset_from_arrays
from dkgp.errors import ClusterError, InputError, MemoryBudgetError
from dkgp.kernels import SquaredExponential, parse_kernel
from dkgp.kernels.tiles.blocks import LANES
from dkgp.operators import ArrayInputs, BlockedKernelOperator, CachedColumnsOperator, DenseKernelOperator
from dkgp.operators.blas import blas, lapack
from dkgp.operators.block_tasks import BlockContext, feature_width
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES, coordinator_input_bytes_needed
from dkgp.operators.cached_columns import cached_columns_bytes

N, D, NOISE_VARIANCE = 1500, 4, 0.05
KERNEL = SquaredExponential(gamma=(0.3, 0.2, 0.5, 0.1), variance=1.2)


class RecordingExecutor(LocalExecutor):
    """Notes the name and the number of groups of every round."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.rounds: list[tuple[str, int]] = []

    def submit(
        self, name: str, task: Any, arguments: tuple[Any, ...], groups: Sequence[Sequence[Any]], *hints: Any
    ) -> Any:
        self.rounds.append((name, len(groups)))
        return super().submit(name, task, arguments, groups, *hints)


class RecordingInputs(ArrayInputs):
    """Notes which thread read which rows."""

    def __init__(self, X: np.ndarray) -> None:
        super().__init__(X)
        self.reads: list[tuple[str, int, int]] = []

    def inputs(self, start: int, stop: int) -> np.ndarray:
        self.reads.append((threading.current_thread().name, start, stop))
        return super().inputs(start, stop)


@pytest.fixture
def inputs() -> np.ndarray:
    return np.random.default_rng(11).standard_normal((N, D))


@pytest.fixture
def executor():
    executor = RecordingExecutor(2)
    yield executor
    executor.close()


def blocked(inputs: np.ndarray, executor: LocalExecutor, **options: Any) -> BlockedKernelOperator:
    return BlockedKernelOperator(KERNEL, NOISE_VARIANCE, ArrayInputs(inputs), executor, **options)


def context(n: int) -> BlockContext:
    return BlockContext("run", ArrayInputs(np.zeros((1, D))), KERNEL, n)


@given(n=st.one_of(st.integers(1, 5000), st.integers(1, 50_000_000)))
def test_blocks_cover_every_row_once(n: int) -> None:
    blocks = context(n)
    bounds = [blocks.bounds(block) for block in range(min(blocks.n_blocks, 100))]
    assert bounds[0][0] == 0
    assert all(stop == following for (_, stop), (following, _) in itertools.pairwise(bounds))
    assert all(start < stop for start, stop in bounds)
    assert all((stop - start) % LANES == 0 for start, stop in bounds[:-1])
    assert blocks.bounds(blocks.n_blocks - 1)[1] == n
    # Enough of them for a few workers, and none that takes long.
    assert blocks.n_blocks >= min(6, n // 256)
    assert blocks.block_rows <= 8192 + LANES
    assert blocks.block_rows % LANES == 0


@given(items=st.integers(0, 200), parts=st.integers(1, 50))
def test_groups_are_even_and_in_order(items: int, parts: int) -> None:
    groups = split_evenly(range(items), parts)
    assert [item for group in groups for item in group] == list(range(items))
    assert len(groups) == min(parts, items)
    sizes = {len(group) for group in groups}
    assert not sizes or max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("precision", ["single", "double"])
def test_coordinator_gets_the_workers_bits(
    inputs: np.ndarray, executor: LocalExecutor, rng: np.random.Generator, precision: str
) -> None:
    # What lets the selection evaluate a few samples itself while a round is under way.
    operator = blocked(inputs, executor)
    columns, delta = rng.choice(N, 90, replace=False), rng.standard_normal((90, 2))
    samples = np.setdiff1d(rng.choice(N, 200), columns)
    here = operator.evaluator(precision).matmat(
        operator.features(samples, precision), operator.features(columns, precision), delta
    )
    np.testing.assert_array_equal(here, operator.apply_columns(columns, delta, precision)[samples])


def test_kernel_evaluations_are_counted(inputs: np.ndarray, executor: LocalExecutor) -> None:
    operator = blocked(inputs, executor)
    assert operator.kernel_evaluations == 0
    operator.apply_columns(np.arange(30), np.ones((30, 3)))
    assert operator.kernel_evaluations == 30 * N
    operator.matmat(np.ones((N, 2)))
    # Blocks on the diagonal as a whole, of the others one half.
    rows = np.diff([operator.context.bounds(block) for block in range(operator.context.n_blocks)])[:, 0]
    product = (N * N + int(np.sum(rows**2))) // 2
    assert operator.kernel_evaluations == 30 * N + product
    operator.submatrix(np.arange(5), np.arange(7))
    assert operator.kernel_evaluations == 30 * N + product + 35


def test_inputs_stay_with_the_workers_out_of_core(inputs: np.ndarray, executor: RecordingExecutor) -> None:
    source = RecordingInputs(inputs)
    operator = BlockedKernelOperator(KERNEL, NOISE_VARIANCE, source, executor, coordinator_input_bytes=1)
    assert not operator.holds_inputs
    operator.apply_columns(np.arange(0, N, 7), np.ones((len(range(0, N, 7)), 1)))
    operator.diagonal()
    assert source.reads
    assert all(name.startswith("dkgp-block") for name, _, _ in source.reads)


@pytest.mark.parametrize(("bytes_", "holds"), [(-1, False), (0, True)])
def test_inputs_are_held_up_to_the_budget(
    inputs: np.ndarray, executor: LocalExecutor, bytes_: int, holds: bool
) -> None:
    needed = coordinator_input_bytes_needed(N, D)
    assert needed >= inputs.nbytes + 4 * inputs.size
    assert blocked(inputs, executor, coordinator_input_bytes=needed + bytes_).holds_inputs is holds


def test_announced_rows_come_with_the_round(
    inputs: np.ndarray, executor: RecordingExecutor, rng: np.random.Generator
) -> None:
    operator = blocked(inputs, executor, coordinator_input_bytes=1)
    announced = rng.integers(0, N, 200)
    operator.announce(announced)
    operator.apply_columns(np.array([3, 1400]), np.ones((2, 1)))
    assert [name for name, _ in executor.rounds] == ["krows", "kblock"]
    executor.rounds.clear()
    for indices in (announced, announced[:50], announced[::-1]):
        for precision in ("single", "double"):
            found = operator.features(indices, precision)
            expected = operator.evaluator(precision).prepare(inputs[indices])
            np.testing.assert_array_equal(found.values, expected.values)
    assert executor.rounds == []
    missing = np.setdiff1d(np.arange(N), announced)[:3]
    mixed = np.concatenate([announced[:3], missing])
    np.testing.assert_array_equal(
        operator.features(mixed).values[:, :6], operator.single.prepare(inputs[mixed]).values[:, :6]
    )
    assert [name for name, _ in executor.rounds] == ["krows"]


def test_announcing_is_free_where_the_inputs_are_at_hand(inputs: np.ndarray, executor: RecordingExecutor) -> None:
    operator = blocked(inputs, executor)
    operator.announce(np.arange(100))
    operator.apply_columns(np.array([5]), np.ones((1, 1)))
    operator.features(np.arange(100))
    assert [name for name, _ in executor.rounds] == ["kblock"]


def test_round_is_one_task_for_each_thread(inputs: np.ndarray, executor: RecordingExecutor) -> None:
    blocked(inputs, executor).apply_columns(np.array([5]), np.ones((1, 1)))
    assert executor.rounds == [("kblock", 2)]


@pytest.mark.parametrize(("least", "tasks"), [(0, 4), (N * 30, 4), (N * 60, 2), (N * 10_000, 1)])
def test_tasks_are_fewer_where_they_would_be_too_small_to_pay(inputs: np.ndarray, least: int, tasks: int) -> None:
    executor = RecordingExecutor(4)
    executor.least_task_evaluations = least
    indices, delta = np.arange(120), np.ones((120, 1))
    found = blocked(inputs, executor).apply_columns(indices, delta)
    assert executor.rounds == [("kblock", tasks)]
    np.testing.assert_array_equal(found, blocked(inputs, RecordingExecutor(1)).apply_columns(indices, delta))
    executor.close()


def test_what_the_last_two_rounds_brought_is_at_hand(
    inputs: np.ndarray, executor: RecordingExecutor, rng: np.random.Generator
) -> None:
    operator = blocked(inputs, executor, coordinator_input_bytes=1)
    parts = np.split(rng.permutation(N)[:90], 3)
    for part in parts:
        operator.announce(part)
        operator.apply_columns(np.array([7]), np.ones((1, 1)))
    executor.rounds.clear()
    both = rng.permutation(np.concatenate(parts[1:]))
    np.testing.assert_array_equal(operator.inputs(both), inputs[both])
    assert executor.rounds == []
    one = np.append(both, parts[0][5])
    np.testing.assert_array_equal(operator.inputs(one), inputs[one])
    assert executor.rounds == [("krows", 1)]  # of the one block that it is in


def test_what_k_of_x_with_itself_comes_to_is_asked_once(inputs: np.ndarray, executor: RecordingExecutor) -> None:
    kernel = parse_kernel("linear + 0.3 * rbf", D)
    operator = BlockedKernelOperator(kernel, NOISE_VARIANCE, ArrayInputs(inputs), executor)
    for _ in range(2):
        np.testing.assert_array_equal(operator.prior(), kernel.diagonal(inputs))
        np.testing.assert_array_equal(operator.diagonal(), kernel.diagonal(inputs) + NOISE_VARIANCE)
    assert executor.rounds == [("kdiagonal", 2)]
    assert operator.kernel_evaluations == N
    other = operator.with_noise(0.5)
    np.testing.assert_array_equal(other.diagonal(), kernel.diagonal(inputs) + 0.5)
    np.testing.assert_array_equal(operator.diagonal(), kernel.diagonal(inputs) + NOISE_VARIANCE)


@pytest.mark.parametrize("text", ["linear", "polynomial(degree=3)", "rbf + linear"])
def test_a_diagonal_that_varies_is_the_kernels(text: str, inputs: np.ndarray, executor: LocalExecutor) -> None:
    kernel = parse_kernel(text, D)
    found = BlockedKernelOperator(kernel, NOISE_VARIANCE, ArrayInputs(inputs), executor).diagonal()
    expected = np.array([kernel(row[None], row[None])[0, 0] for row in inputs]) + NOISE_VARIANCE
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    dense = DenseKernelOperator(kernel, NOISE_VARIANCE, inputs[:60]).diagonal()
    np.testing.assert_allclose(dense, found[:60], rtol=1e-13)


def test_the_diagonal_of_a_stationary_kernel_needs_no_round(inputs: np.ndarray, executor: RecordingExecutor) -> None:
    kernel = parse_kernel("matern32 + constant(variance=0.5)", D)
    operator = BlockedKernelOperator(kernel, NOISE_VARIANCE, ArrayInputs(inputs), executor)
    np.testing.assert_array_equal(operator.diagonal(), np.full(N, 1.5 + NOISE_VARIANCE))
    assert not executor.rounds
    assert operator.kernel_evaluations == 0


def test_memory_is_planned_by_what_features_take() -> None:
    """A sum whose parts scale their inputs apart holds them once for each part; one of few features still all rows."""
    one = SquaredExponential((0.2, 0.3, 0.4))
    assert feature_width(one) == 3
    assert feature_width(SquaredExponential((0.2, 0.0, 0.0))) == 3
    assert coordinator_input_bytes_needed(100, 3, feature_width(one)) == coordinator_input_bytes_needed(100, 3) == 6400
    assert feature_width(one + SquaredExponential((0.7, 0.1, 0.9))) >= 6


def test_progress_names_the_product_and_what_is_kept(inputs: np.ndarray) -> None:
    executor, phases, told = LocalExecutor(2, TileBudget(10**9)), set[str](), list[str]()
    with blocked(inputs, executor) as operator, operator.watched(lambda progress: phases.add(progress.phase)):
        for precision in ("single", "single", "single", "double"):
            phases.clear()
            operator.matmat(np.ones((N, 1)), precision)
            told += phases
    assert told == ["product", "product", "product (100% of K kept)", "float64 product"]
    executor.close()


def test_what_the_coordinator_may_hold_and_lets_go(inputs: np.ndarray, executor: LocalExecutor) -> None:
    assert DEFAULT_COORDINATOR_INPUT_BYTES == 2 * 2**30
    # Rows and their copy, float64; float32 features, and a norm.
    assert coordinator_input_bytes_needed(100, 8) == 100 * (2 * 8 * 8 + 4 * 8 + 4)
    assert coordinator_input_bytes_needed(100, 8, 20) == 100 * (2 * 8 * 8 + 4 * 20 + 4)
    operator = blocked(inputs, executor)
    rows, features = operator._all_rows(), operator._all_features()
    assert operator._all_rows() is rows
    assert operator._all_features() is features
    operator.close()
    assert (operator._resident, operator._resident_rows) == (None, None)


def test_blocks_are_read_once_and_forgotten_on_close(inputs: np.ndarray, executor: RecordingExecutor) -> None:
    source = RecordingInputs(inputs)
    before = worker_cache().nbytes
    operator = BlockedKernelOperator(KERNEL, NOISE_VARIANCE, source, executor, coordinator_input_bytes=1)
    for _ in range(3):
        operator.matmat(np.ones((N, 1)))
    assert sorted((start, stop) for _, start, stop in source.reads) == [
        operator.context.bounds(block) for block in range(operator.context.n_blocks)
    ]
    assert worker_cache().nbytes > before
    operator.close()
    assert worker_cache().nbytes == before


def test_what_travels_with_a_task_is_small(inputs: np.ndarray, executor: LocalExecutor) -> None:
    assert len(pickle.dumps(blocked(inputs, executor).context)) < 1000


def test_two_operators_do_not_mix_their_blocks(executor: LocalExecutor, rng: np.random.Generator) -> None:
    first, second = rng.standard_normal((2, 300, D))
    V = rng.standard_normal((300, 1))
    operators = [blocked(first, executor), blocked(second, executor)]
    for data, operator in [(first, operators[0]), (second, operators[1]), (first, operators[0])]:
        np.testing.assert_allclose(operator.matmat(V), KERNEL(data, data) @ V + NOISE_VARIANCE * V, atol=1e-10)


def test_kernel_and_data_must_have_the_same_features(executor: LocalExecutor) -> None:
    with pytest.raises(InputError, match="the kernel is of 4 features, the data have 2"):
        blocked(np.zeros((10, 2)), executor)


# Arrays in memory as inputs: what they admit, and how they travel.


def test_rows_by_range(rng: np.random.Generator) -> None:
    X = rng.standard_normal((20, 3)).astype(np.float32)
    source = ArrayInputs(X)
    assert (source.n_samples, source.n_features) == (20, 3)
    rows = source.inputs(5, 9)
    assert rows.dtype == np.float64
    np.testing.assert_array_equal(rows, X[5:9])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_located(bad: float) -> None:
    X = np.zeros((10, 4))
    X[7, 2] = X[8, 0] = bad
    with pytest.raises(InputError, match=f"inputs must be finite; got {bad} in row 7, column 2"):
        ArrayInputs(X)


@pytest.mark.parametrize("shape", [(5,), (0, 3), (3, 0), (2, 2, 2)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"expected|must be an array of shape \(n, d\) with n, d >= 1"):
        ArrayInputs(np.zeros(shape))


def test_pickles_to_a_token_that_this_process_redeems() -> None:
    source = ArrayInputs(np.zeros((10_000, 3)))
    sent = pickle.dumps(source)
    assert len(sent) < 200
    assert pickle.loads(sent) is source
    assert pickle.loads(sent).read(2, 4).shape == source.rows(np.array([7, 5])).shape == (2, 3)


def test_token_of_a_forgotten_array_says_so() -> None:
    sent = pickle.dumps(ArrayInputs(np.zeros((4, 1))))
    gc.collect()
    stray = pickle.loads(sent)
    with pytest.raises(ClusterError, match="store that they can read: ingest the data first"):
        stray.inputs(0, 1)


@pytest.mark.portable
def test_token_in_another_process_says_so() -> None:
    source = ArrayInputs(np.zeros((4, 1)))
    script = "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1])).inputs(0, 1)"
    result = subprocess.run(
        [sys.executable, "-c", script, pickle.dumps(source).hex()], capture_output=True, text=True, check=False
    )
    assert result.returncode != 0
    assert "ClusterError: A task asked for rows that are in another process's memory" in result.stderr


# Kept columns: the same products as the operator's own, each column evaluated once.


CACHED_N = 700


@pytest.fixture
def operator(rng: np.random.Generator) -> CachedColumnsOperator:
    X = rng.normal(size=(CACHED_N, 5))
    kernel = SquaredExponential(gamma=(0.3, 0.2, 0.1, 0.4, 0.05), variance=1.7)
    return CachedColumnsOperator(BlockedKernelOperator(kernel, 0.1, ArrayInputs(X), LocalExecutor(2)))


def test_each_column_is_evaluated_once(operator: CachedColumnsOperator, rng: np.random.Generator) -> None:
    first, second = np.arange(100), np.arange(60, 180)
    assert operator.columns_to_evaluate(first) == 100
    before = operator.kernel_evaluations
    operator.apply_columns(first, rng.normal(size=(100, 1)))
    assert operator.kernel_evaluations - before == 100 * CACHED_N
    assert operator.columns_to_evaluate(second) == 80
    assert operator.columns_to_evaluate(second, "double") == 120
    operator.apply_columns(second, rng.normal(size=(120, 1)))
    operator.apply_columns(first, rng.normal(size=(100, 1)))
    assert operator.kernel_evaluations - before == 180 * CACHED_N
    assert cached_columns_bytes(CACHED_N) == 4 * CACHED_N * CACHED_N


# The dense operator: its matrix within the budget.


CACHED_KERNEL = SquaredExponential(gamma=(0.5, 0.5))


def test_matrix_beyond_the_budget_is_refused_with_both_numbers() -> None:
    with pytest.raises(MemoryBudgetError, match=r"of 1000 samples takes 8,000,000 bytes; the budget is 7,999,999 "):
        DenseKernelOperator(CACHED_KERNEL, 0.1, np.zeros((1000, 2)), budget_bytes=7_999_999)
    operator = DenseKernelOperator(CACHED_KERNEL, 0.1, np.zeros((1000, 2)), budget_bytes=8_000_000)
    assert operator.matrix.nbytes == 8_000_000


def test_budget_is_checked_before_anything_is_allocated() -> None:
    with pytest.raises(MemoryBudgetError, match="raise budget_bytes"):
        DenseKernelOperator(CACHED_KERNEL, 0.1, np.zeros((2_000_000, 2)))


def test_inputs_must_be_rows() -> None:
    with pytest.raises(InputError, match=r"shape \(n, d\); got shape \(4,\)"):
        DenseKernelOperator(CACHED_KERNEL, 0.1, np.zeros(4))


def test_diagonal_is_not_the_matrixs_own() -> None:
    operator = DenseKernelOperator(CACHED_KERNEL, 0.1, np.zeros((3, 2)))
    operator.diagonal()[:] = 0.0
    np.testing.assert_array_equal(operator.diagonal(), np.full(3, 1.1))


# BLAS and LAPACK by their own interface: right letters, counts and numbers, and the GIL let go.


both_types = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@both_types
def test_a_product_in_the_arrays_type(rng: np.random.Generator, dtype: type) -> None:
    left, right = (np.asfortranarray(rng.normal(size=shape), dtype) for shape in ((5, 3), (3, 4)))
    total = np.asfortranarray(rng.normal(size=(5, 4)), dtype)
    expected = 2.0 * left @ right - 0.5 * total
    # A count may be NumPy's, as lengths and strides often are; other numbers are never taken for one.
    blas("gemm", b"N", b"N", 5, np.int64(4), 3, 2.0, left, 5, right, 3, np.float64(-0.5), total, 5)
    np.testing.assert_allclose(total, expected, atol=100 * np.finfo(dtype).eps)


@both_types
def test_a_factor_and_what_is_wrong_with_one(dtype: type) -> None:
    matrix = np.asfortranarray([[4.0, 2.0], [2.0, 5.0]], dtype)
    assert lapack("potrf", b"L", 2, matrix, 2) == 0
    np.testing.assert_allclose(np.tril(matrix), [[2.0, 0.0], [1.0, 2.0]])
    assert lapack("potrf", b"L", 2, np.asfortranarray([[4.0, 0.0], [2.0, 1.5]], dtype), 2) == 0
    assert lapack("potrf", b"L", 2, np.asfortranarray([[4.0, 0.0], [2.0, 0.5]], dtype), 2) == 2


def test_a_routine_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="dgemmm"):
        blas("gemmm", np.zeros(1))


@pytest.mark.parametrize("routine", ["gemm", "potrf"])
def test_other_threads_run_meanwhile(routine: str) -> None:
    """If a call held the GIL, a counter in another thread would advance once between two calls, and not within one."""
    n, counted = 700, 0
    matrix, total = np.eye(n, order="F"), np.zeros((n, n), order="F")
    ended = threading.Event()

    def count() -> None:
        nonlocal counted
        while not ended.is_set():
            time.sleep(1e-4)
            counted += 1

    def advance() -> int:
        before = counted
        if routine == "gemm":
            blas("gemm", b"N", b"N", n, n, n, 1.0, matrix, n, matrix, n, 0.0, total, n)
        else:
            assert lapack("potrf", b"L", n, matrix, n) == 0
        return counted - before

    with single_threaded_blas():
        thread = threading.Thread(target=count)
        thread.start()
        try:
            # On a busy machine the counter can miss its turn in any one call.
            assert any(advance() >= 3 for _ in range(2000))
        finally:
            ended.set()
            thread.join()


# The preload module of workers: after it, a first task neither imports anything nor loads Numba's tables.


PROGRAM = """
import json, pickle, sys
import numpy as np
if sys.argv[1] == "preloaded":
    from dkgp.operators import preload
    preload.dask_setup(None)
before = set(sys.modules)
context, V = pickle.loads(bytes.fromhex(sys.stdin.read()))
from dkgp.operators.full_products import RangeRows, cut_of, matmat_task, scale_of
cut = cut_of(context.n_blocks, 1, 1)
ranges = {name: RangeRows(cut.blocks(name), V) for name in cut.names}
scale = scale_of(V, np.ones(context.n), "single", context.n_blocks)
(totals,) = matmat_task(context, scale, "single", None, ranges, cut.tasks[0])
print(json.dumps([sorted(set(sys.modules) - before), totals[0].tolist()]))
"""


def first_task(how: str, pickled: str) -> list[list[object]]:
    run = [sys.executable, "-c", PROGRAM, how]
    result: list[list[object]] = json.loads(
        subprocess.run(run, input=pickled, capture_output=True, text=True, check=True).stdout
    )
    return result


@pytest.mark.long
def test_a_preloaded_worker_loads_nothing_with_its_first_task(tmp_path: Path) -> None:
    X = np.linspace(0.0, 1.0, 60).reshape(30, 2)
    dataset = dataset_from_arrays(str(tmp_path / "samples.zarr"), X, X[:, :1])
    context = BlockContext("preload", dataset, SquaredExponential(gamma=(1.0, 2.0)), 30)
    pickled = pickle.dumps((context, np.ones((30, 1)))).hex()
    (preloaded, totals), (plain, same) = (first_task(how, pickled) for how in ("preloaded", "plain"))
    assert [name for name in preloaded if str(name).startswith(("dkgp", "numba", "zarr", "scipy"))] == []
    assert len(plain) > 500
    assert totals == same
