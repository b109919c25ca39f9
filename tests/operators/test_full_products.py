"""Products with all of K: every pair once, the same bits whoever computes and whatever is kept, within the budget."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import TileBudget
from dkgp.cluster.executors.base import PendingRound, RoundTasks
from dkgp.errors import InputError, MemoryBudgetError
from dkgp.kernels import Linear, SquaredExponential, parse_kernel
from dkgp.operators import ArrayInputs, BlockedKernelOperator, ProductError, full_products
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.cells.operator import CellKernelOperator, Forecast
from dkgp.operators.full_products import cut_of
from dkgp.operators.keeping import Keeping, kept_bytes_of, worker_tiles
from dkgp.operators.product_error import read_product_error, renamed

N, D, NOISE = 2600, 3, 0.1
KERNEL = SquaredExponential(gamma=(0.4, 0.2, 0.3), variance=1.7)


@pytest.fixture
def inputs(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((N, D))


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert worker_tiles().nbytes == 0


class Workers(LocalExecutor):
    """A process that pretends to be several, and notes the tasks of each product and their workers."""

    def __init__(self, workers: dict[str, int], tiles: TileBudget | None = None) -> None:
        super().__init__(2, tiles)
        self.there = workers
        self.products: list[RoundTasks] = []

    @property
    def workers(self) -> dict[str, int]:
        return self.there

    def start_total(self, tasks: RoundTasks) -> Any:
        self.products.append(tasks)
        return super().start_total(tasks)

    def owners(self, product: int) -> dict[Any, str]:
        tasks = self.products[product]
        return dict(zip(tasks.groups, tasks.owners or [], strict=True))


def products(
    X: np.ndarray, V: np.ndarray, tiles: TileBudget | None, count: int = 3, threads: int = 2, precision: Any = "single"
) -> Any:
    """Products one after the other, their shares read, and the tiles that were held at the end."""
    executor = LocalExecutor(threads, tiles)
    with BlockedKernelOperator(KERNEL, NOISE, ArrayInputs(X), executor) as operator:
        found = [(operator.matmat(V, precision), operator.kept_share) for _ in range(count)]
        held = worker_tiles().nbytes
    executor.close()
    return [product for product, _ in found], [share for _, share in found], held


@given(st.integers(1, 140), st.integers(1, 40), st.integers(1, 30))
def test_tasks_cover_the_lower_half_once(n_blocks: int, threads: int, a_thread: int) -> None:
    cut = cut_of(n_blocks, threads, a_thread)
    assert (cut.edges[0], cut.edges[-1]) == (0, n_blocks)
    assert all(start < stop for start, stop in map(cut.blocks, cut.names))
    pairs = [
        (i, j)
        for task in cut.tasks
        for rows, columns in task
        for i in range(*cut.blocks(rows))
        for j in range(*cut.blocks(columns))
        if j <= i
    ]
    assert sorted(pairs) == [(i, j) for i in range(n_blocks) for j in range(i + 1)]
    assert all({*itertools.chain(*task)} == set(needed) for task, needed in zip(cut.tasks, cut.needs, strict=True))


@pytest.mark.parametrize("threads", [2, 16, 64, 256])
def test_large_tasks_come_before_small_ones_of_neighbouring_ranges(threads: int) -> None:
    blocks = 1221
    cut = cut_of(blocks, threads)
    sides = np.diff(cut.edges)
    sizes = np.array([sum(sides[a] * sides[b] * (0.5 if a == b else 1.0) for a, b in task) for task in cut.tasks])
    large, small = sizes[: 3 * threads], sizes[3 * threads :]
    mean = blocks**2 / 2 / threads / 4
    assert np.mean(large) == pytest.approx(mean, rel=0.1)
    assert np.mean(small) == pytest.approx(mean / 4, rel=0.3)
    assert small.max() <= 0.7 * mean
    # A thread's tasks are neighbours: together they need few of the ranges.
    needs = cut.needs
    for thread in range(0, threads, max(1, threads // 8)):
        mine = needs[thread : 3 * threads : threads]
        assert len({name for task in mine for name in task}) <= 0.9 * sum(map(len, mine))


@pytest.mark.covering
@pytest.mark.parametrize("kernel", [KERNEL, parse_kernel("matern32 + linear", D)])
@pytest.mark.parametrize("t", [1, 5])
def test_products_are_the_naive_ones(kernel: Any, t: int, inputs: np.ndarray, rng: np.random.Generator) -> None:
    V = rng.standard_normal((N, t))
    expected = kernel(inputs, inputs) @ V + NOISE * V
    executor = LocalExecutor(2, TileBudget(10**9))
    with BlockedKernelOperator(kernel, NOISE, ArrayInputs(inputs), executor) as operator:
        np.testing.assert_allclose(operator.matmat(V), expected, rtol=1e-11, atol=1e-10)
        for _ in range(2):
            np.testing.assert_allclose(operator.matmat(V, "single"), expected, atol=3e-4)
    executor.close()


@pytest.mark.parametrize("precision", ["single", "double"])
def test_bits_depend_neither_on_cuts_nor_on_other_columns(
    precision: Any, inputs: np.ndarray, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns of any size, alone and together, whatever the tasks and their workers."""
    monkeypatch.setattr(full_products, "TASK_ENTRIES", 1)
    V = rng.standard_normal((N, 4)) * [1.0, 1e-30, 1e30, 0.0]
    expected = [products(inputs, V[:, [column]], None, 1, precision=precision)[0][0][:, 0] for column in range(4)]
    for executor in (LocalExecutor(1), Elsewhere({"a": 1, "b": 1}), Elsewhere({"": 5})):
        with BlockedKernelOperator(KERNEL, NOISE, ArrayInputs(inputs), executor) as operator:
            np.testing.assert_array_equal(operator.matmat(V, precision), np.transpose(expected))
        executor.close()


@pytest.mark.parametrize("precision", ["single", "double"])
def test_a_column_with_a_number_that_is_none_is_nan_and_others_are_not(
    precision: Any, inputs: np.ndarray, rng: np.random.Generator
) -> None:
    V = rng.standard_normal((N, 4))
    V[7, 1], V[2000, 2] = np.nan, -np.inf
    found = products(inputs, V, None, 1, precision=precision)[0][0]
    assert np.isnan(found[:, 1:3]).all()
    np.testing.assert_array_equal(found[:, [0, 3]], products(inputs, V[:, [0, 3]], None, 1, precision=precision)[0][0])


def test_numbers_from_the_smallest_to_the_largest(inputs: np.ndarray, rng: np.random.Generator) -> None:
    """Subnormal and huge weights, and sums beyond float64, are as for weights of one."""
    v = rng.standard_normal((N, 1))
    expected = products(inputs, v, None, 1, precision="double")[0][0]
    V = np.hstack([np.ldexp(v, 1010), np.ldexp(v, -1000), np.ldexp(v, -1060)])
    found = products(inputs, V, None, 1, precision="double")[0][0]
    np.testing.assert_allclose(np.ldexp(found[:, [0]], -1010), expected, rtol=1e-12, atol=1e-11)
    np.testing.assert_allclose(np.ldexp(found[:, [1]], 1000), expected, rtol=1e-12, atol=1e-11)
    np.testing.assert_allclose(np.ldexp(found[:, [2]], 1060), expected, atol=1.0)


@pytest.mark.parametrize("variance", [1e-300, 1e-38, 1e38, 1e300])
def test_variances_from_the_smallest_to_the_largest(
    variance: float, inputs: np.ndarray, rng: np.random.Generator
) -> None:
    V, kernel = rng.standard_normal((N, 1)), SquaredExponential(gamma=(0.4, 0.2, 0.3), variance=variance)
    executor = LocalExecutor(2)
    with BlockedKernelOperator(kernel, 1e-320, ArrayInputs(inputs), executor) as operator:
        np.testing.assert_allclose(operator.matmat(V), kernel(inputs, inputs) @ V, rtol=1e-9, atol=1e-11 * variance)
    executor.close()


def test_rows_of_small_variance_are_as_exact_as_those_of_large_one(rng: np.random.Generator) -> None:
    """By a linear kernel: sqrt(k(x, x)) over 24 orders of magnitude, and a row of zeros."""
    X = rng.standard_normal((N, D)) * 10.0 ** rng.uniform(-12, 12, (N, 1))
    X[5] = 0.0
    kernel, V = parse_kernel("linear", D), rng.standard_normal((N, 2))
    executor = LocalExecutor(2)
    with BlockedKernelOperator(kernel, 1e-300, ArrayInputs(X), executor) as operator:
        found = operator.matmat(V, "double")
        roots, errors = np.sqrt(operator.prior()), operator.row_errors()
    executor.close()
    exact = np.asarray(X, np.longdouble) @ (np.asarray(X, np.longdouble).T @ V)
    weight = float(kernel(np.ones((1, D)), np.ones((1, D)))[0, 0]) / D
    terms = (roots[:, None] * (roots @ np.abs(V))) * (1.0 + errors[:, None])
    assert (np.abs(found - np.asarray(weight * exact, float)) <= 1e-13 * terms + 1e-290).all()
    assert (found[5] == 1e-300 * V[5]).all()  # the noise alone


def test_bits_do_not_depend_on_what_is_kept(inputs: np.ndarray, rng: np.random.Generator) -> None:
    V = rng.standard_normal((N, 3))
    whole = kept_bytes_of(N)
    expected = products(inputs, V, None)[0][0]
    for tiles, least, most in [
        (None, 0.0, 0.0),
        (TileBudget(0), 0.0, 0.0),
        (TileBudget(1), 0.0, 0.0),
        (TileBudget(whole // 2), 0.3, 0.8),
        (TileBudget(whole), 1.0, 1.0),
    ]:
        for threads in (1, 3):
            found, shares, held = products(inputs, V, tiles, threads=threads)
            for product in found:
                np.testing.assert_array_equal(product, expected)
            assert shares[0] == 0.0
            assert least <= shares[2] <= most
            assert held <= (tiles.bytes if tiles is not None else 0)


def test_bits_do_not_depend_on_a_measurement(inputs: np.ndarray, rng: np.random.Generator) -> None:
    V = rng.standard_normal((N, 1))
    expected = products(inputs, V, None)[0][0]
    for product in products(inputs, V, TileBudget(kept_bytes_of(N), measured=True))[0]:
        np.testing.assert_array_equal(product, expected)


def test_what_is_kept_is_used_with_other_vectors(inputs: np.ndarray, rng: np.random.Generator) -> None:
    executor = LocalExecutor(2, TileBudget(kept_bytes_of(N)))
    with BlockedKernelOperator(KERNEL, NOISE, ArrayInputs(inputs), executor) as operator:
        operator.matmat(rng.standard_normal((N, 1)), "single")
        evaluated = operator.kernel_evaluations
        V = rng.standard_normal((N, 4))
        np.testing.assert_array_equal(operator.matmat(V, "single"), products(inputs, V, None, 1)[0][0])
        assert operator.kernel_evaluations == evaluated
        # Float64 is evaluated: checks are to be what they were.
        operator.matmat(V)
        assert operator.kernel_evaluations > evaluated
    executor.close()


def test_operators_do_not_read_each_others_tiles(inputs: np.ndarray, rng: np.random.Generator) -> None:
    V, others = rng.standard_normal((N, 1)), rng.standard_normal((N, D))
    executor = LocalExecutor(2, TileBudget(2 * kept_bytes_of(N)))
    with (
        BlockedKernelOperator(KERNEL, NOISE, ArrayInputs(inputs), executor) as first,
        BlockedKernelOperator(KERNEL, NOISE, ArrayInputs(others), executor) as second,
    ):
        for _ in range(2):
            for operator, X in ((first, inputs), (second, others)):
                np.testing.assert_array_equal(operator.matmat(V, "single"), products(X, V, None, 1)[0][0])
    executor.close()


def test_tasks_keep_their_workers_and_only_those_of_lost_ones_move(
    inputs: np.ndarray, rng: np.random.Generator
) -> None:
    V = rng.standard_normal((N, 1))
    executor = Workers({"a": 1, "b": 1, "c": 2})
    with BlockedKernelOperator(KERNEL, NOISE, ArrayInputs(inputs), executor) as operator:
        results = [operator.matmat(V, "single") for _ in range(2)]
        executor.there = {"a": 1, "c": 2}
        results.append(operator.matmat(V, "single"))
    first, second, third = map(executor.owners, range(3))
    assert first == second
    assert set(first.values()) == {"a", "b", "c"}
    assert all(third[task] == owner for task, owner in first.items() if owner != "b")
    assert set(third.values()) == {"a", "c"}
    for result in results:
        np.testing.assert_array_equal(result, results[0])
    executor.close()


def test_progress_is_told_to_the_end(inputs: np.ndarray, rng: np.random.Generator) -> None:
    told: list[tuple[int, int]] = []
    executor = Workers({"": 2})
    with (
        BlockedKernelOperator(KERNEL, NOISE, ArrayInputs(inputs), executor) as operator,
        operator.watched(lambda progress: told.append((progress.done, progress.total or 0))),
    ):
        operator.matmat(rng.standard_normal((N, 2)), "single")
    tasks = len(executor.products[0].groups)
    assert told[-1] == (tasks, tasks)
    assert all(before < after for (before, _), (after, _) in itertools.pairwise(told))
    executor.close()


@pytest.mark.parametrize(("n", "t"), [(60_000, 32), (1_000_000, 1), (1_000_000, 32)])
def test_words_of_a_task_in_one_process_are_few(n: int, t: int) -> None:
    """About two megabytes; where one pair of blocks takes more, a task is that pair."""
    context = BlockContext("run", ArrayInputs(np.zeros((n, 1))), SquaredExponential(gamma=(1.0,)), n)
    executor = LocalExecutor(2)
    products = full_products.FullProducts(context, executor, executor.start_total, lambda: np.ones(n))
    cut = products._cut_for(np.zeros((n, t)), 2)
    rows = [context.bounds(last - 1)[1] - context.bounds(first)[0] for first, last in map(cut.blocks, cut.names)]
    largest = max(sum(16 * t * rows[name] for name in needed) for needed in cut.needs)
    assert largest <= max(4 * full_products.SHARED_TASK_BYTES, 2 * 16 * t * context.block_rows)
    executor.close()


@pytest.mark.parametrize(("n", "least", "most"), [(200, 1, 1), (600, 1, 2), (3000, 8, 40)])
def test_tasks_in_one_process_take_longer_than_starting_them(n: int, least: int, most: int) -> None:
    context = BlockContext("run", ArrayInputs(np.zeros((n, 1))), SquaredExponential(gamma=(1.0,)), n)
    with closing(LocalExecutor(2)) as executor:
        products = full_products.FullProducts(context, executor, executor.start_total, lambda: np.ones(n))
        assert least <= len(products._cut_for(np.zeros((n, 1)), 2).tasks) <= most


class Elsewhere(Workers):
    """Pretends that its workers are other processes, and notes the tasks of each round."""

    shares_memory = False

    def __init__(self, workers: dict[str, int], tiles: TileBudget | None = None) -> None:
        super().__init__(workers, tiles)
        self.tasks: list[tuple[str, int, Any]] = []

    @property
    def parallelism(self) -> int:
        return sum(self.there.values())

    def submit(self, name: str, task: Any, arguments: tuple[Any, ...], groups: Any, owners: Any = None) -> PendingRound:
        self.tasks.append((name, len(groups), owners))
        return super().submit(name, task, arguments, groups, owners)


@pytest.mark.parametrize(("share", "large", "small"), [(0.4, 2, 0), (1.5, 2, 0), (2.5, 2, 8), (100.0, 6, 8)])
def test_tasks_of_other_processes_are_as_large_as_pays(
    share: float, large: int, small: int, inputs: np.ndarray, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the entries of a thread: four tasks for it at most, one of them in small parts, and one task at least."""
    executor, V = Elsewhere({"": 2}), rng.standard_normal((N, 1))
    monkeypatch.setattr(full_products, "TASK_ENTRIES", int(0.5 * N * N / 2 / share))
    with BlockedKernelOperator(KERNEL, NOISE, ArrayInputs(inputs), executor) as operator:
        product = operator.matmat(V, "single")
    assert len(executor.products[0].groups) == large + small
    np.testing.assert_array_equal(product, products(inputs, V, None, 1)[0][0])
    executor.close()


def test_the_cut_follows_the_threads_once_they_are_twice_as_many(
    inputs: np.ndarray, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_products, "TASK_ENTRIES", 1)
    executor, V = Elsewhere({"a": 1, "b": 1}), rng.standard_normal((N, 1))
    with BlockedKernelOperator(KERNEL, NOISE, ArrayInputs(inputs), executor) as operator:
        for count in (2, 4, 5, 3):
            executor.there = {f"{number}": 1 for number in range(count)}
            operator.matmat(V, "single")
    groups = [product.groups for product in executor.products]
    assert groups[0] == groups[1]
    assert groups[1] != groups[2] == groups[3]
    executor.close()


@pytest.mark.parametrize("budget", [0, 10**9])
def test_all_workers_that_may_keep_tiles_are_told_to_forget_them(
    budget: int, inputs: np.ndarray, rng: np.random.Generator
) -> None:
    executor, V = Elsewhere({"a": 1, "b": 1}, TileBudget(budget)), rng.standard_normal((N, 1))
    operator = BlockedKernelOperator(KERNEL, NOISE, ArrayInputs(inputs), executor)
    for _ in range(2):
        operator.matmat(V, "single")
    # All entries were evaluated once, where they are kept, and are of four bytes.
    expected = 4 * operator.kernel_evaluations if budget else 0
    assert operator.kept["bytes"] == operator.kept_bytes == expected <= worker_tiles().nbytes
    assert operator.kept["reason"] == ("as requested" if budget else "")
    operator.matmat(V)
    assert operator.kept_bytes == expected  # float64 reads none
    executor.tasks.clear()
    for _ in range(2):
        operator.close()
        assert worker_tiles().nbytes == 0
    assert executor.tasks == ([("kforget", 2, ["a", "b"])] if budget else [])
    executor.close()


class Clock:
    """A clock that goes on by sleeping alone."""

    def __init__(self) -> None:
        self.now = 7.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Answer:
    """A round that is done at some time of a clock."""

    def __init__(self, clock: Clock, at: float) -> None:
        self.clock, self.at = clock, at

    def done(self) -> bool:
        return self.clock.now >= self.at


@pytest.mark.parametrize(("answered", "waited"), [(0.0, 0.0), (2.0, 2.0), (4.9, 4.9), (1e9, 5.0)])
def test_who_does_not_answer_is_waited_for_five_seconds(
    answered: float, waited: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, executor = Clock(), Elsewhere({"a": 1, "b": 1})
    monkeypatch.setattr(full_products, "time", clock)
    monkeypatch.setattr(executor, "submit", lambda *arguments: Answer(clock, 7.0 + answered))
    full_products.forget_everywhere(executor, "run")
    assert clock.now - 7.0 == pytest.approx(waited, abs=0.02)
    executor.close()


class Told(LocalExecutor):
    """Notes the terms that products go out with."""

    def __init__(self, tiles: TileBudget) -> None:
        super().__init__(2, tiles)
        self.terms: list[Keeping] = []

    def start_total(self, tasks: RoundTasks) -> Any:
        if tasks.arguments[-1] is not None:
            self.terms.append(tasks.arguments[-1])
        return super().start_total(tasks)


def told(products: float | None, rounds: list[tuple[int, float] | None]) -> list[Keeping]:
    """Terms of products, before each of which a solver may have said what it has done and foresees."""
    executor = Told(TileBudget(kept_bytes_of(600), measured=True, products=products))
    X = np.random.default_rng(5).standard_normal((600, D))
    with BlockedKernelOperator(KERNEL, NOISE, ArrayInputs(X), executor) as operator:
        for each in rounds:
            if each is not None:
                operator.foresee(*each)
            operator.matmat(np.ones((600, 1)), "single")
    executor.close()
    return executor.terms


def test_products_that_are_left_are_those_foreseen_less_those_done() -> None:
    assert [each.products for each in told(2.7, 4 * [None])] == pytest.approx([2.7, 1.7, 0.7, 0.0])
    assert [each.products for each in told(None, 3 * [None])] == 3 * [0.0]
    # A solver that goes on from a checkpoint has done more than this process knows.
    assert [each.products for each in told(20.0, [(12, 0.0), (13, 0.0)])] == [8.0, 7.0]
    # A run that takes longer than foreseen: what its residuals foretell counts then.
    assert [each.products for each in told(3.0, [(0, 0.0), (1, 0.0), (2, 0.0), (3, 6.0)])] == [3.0, 2.0, 1.0, 6.0]
    # Rounds of two products each.
    terms = told(1.0, [(0, 0.0), None, (1, 4.0), None, (2, 3.0)])
    assert [terms[turn].products for turn in (0, 2, 4)] == [1.0, 8.0, 6.0]


def test_the_share_of_the_run_is_known_from_the_second_product_on() -> None:
    shares = [each.run_share for each in told(10.0, 4 * [None])]
    assert shares[0] == 0.0
    assert all(0.0 < share <= 1.0 for share in shares[1:])


# The value class `ProductError`: values that it takes, old names that it reads, and the operators it makes.


STEEP = SquaredExponential((40.0, 40.0))


@pytest.mark.parametrize(("text", "value"), [("1e-5", 1e-5), (" Auto", "auto"), ("none", "none"), ("nan", np.nan)])
def test_text_is_read(text: str, value: Any) -> None:
    np.testing.assert_equal(read_product_error(text), value)


def test_text_that_is_no_value_is_refused() -> None:
    with pytest.raises(ValueError, match="'small' is no number; expected a positive finite number, auto or none"):
        read_product_error("small")


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf, True, "small"])
def test_values_out_of_range_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match="`product_error` must be a positive finite number, auto or none; got"):
        ProductError.of(value)


def test_an_identity_has_what_changes_results() -> None:
    assert ProductError.of(1e-5).record(STEEP, 100) == {"product_error": 1e-5}
    for word in ("none", None, "auto"):
        assert ProductError.of(word).record(STEEP, 100) == {}
    # By a forecast from counts alone.
    assert ProductError.of("auto").record(STEEP, 10**6) == {"product_error": "auto"}
    assert ProductError.of("none").record(STEEP, 10**6) == {}
    assert ProductError.of("auto").record(SquaredExponential((1.0,) * 4), 10**6) == {}
    assert ProductError.of(ProductError(2.0)).number == 2.0
    assert [ProductError.of(each).to_json() for each in (None, "auto", 1e-5)] == ["none", "auto", 1e-5]


def test_options_of_earlier_versions_are_read() -> None:
    assert renamed({"solver": "cg", "tree_error": 1e-6}) == {"solver": "cg", "product_error": 1e-6}
    assert renamed({"tree_error": None, "out": "/m"}) == {"out": "/m"}
    assert renamed({"tree_error": 1e-6, "product_error": "none"}) == {"product_error": "none"}


@pytest.mark.parametrize("value", ["none", "auto", 1e-6])
def test_the_operator_keeps_to_its_error(value: Any, rng: np.random.Generator) -> None:
    X, V = rng.uniform(size=(400, 2)), rng.standard_normal((400, 3))
    exact = STEEP(X, X) @ V + 0.1 * V
    executor = LocalExecutor(1)
    with ProductError.of(value).operator(STEEP, 0.1, ArrayInputs(X), executor, tolerance=1e-4) as operator:
        product = operator.matmat(V)
        off = np.abs(product - exact).max()
        assert off <= operator.error_bound + 1e-11
        assert operator.error_bound <= (1.01e-6 if value == 1e-6 else 0.0)
    executor.close()


def test_auto_limits_the_length_of_errors_where_proofs_take_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.operators.cells.operator.choose", lambda *_: Forecast(True, "many samples"))
    executor, source = LocalExecutor(1), ArrayInputs(np.zeros((5, 2)))
    limits = []
    for by_length in (False, True):
        options = {"tolerance": 1e-4, "by_length": by_length}
        with ProductError("auto").operator(STEEP, 0.1, source, executor, **options) as operator:
            assert isinstance(operator, CellKernelOperator)
            limits.append((operator.error, operator.mean_error))
    executor.close()
    np.testing.assert_allclose(limits, [(1e-5, 1e-5), (5e-5, 1e-5)])


def test_a_kernel_without_a_bound_is_refused_for_a_number_alone() -> None:
    for word in ("auto", "none"):
        ProductError.of(word).require_kernel(Linear((1.0, 1.0)))
        memory = ProductError.of(word).memory(Linear((1.0, 1.0)), 10**9, 1, 1)
        assert memory is not None
        assert memory.kept_bytes == 0
    with pytest.raises(InputError, match="a part of dot products. Take `product_error` auto or none"):
        ProductError(1e-4).require_kernel(Linear((1.0, 1.0)))


def test_memory_beyond_a_workers_cache_is_refused() -> None:
    memory = ProductError(1e-4).memory(STEEP, 10_000, 1, 2**30)
    assert memory is not None
    assert memory.kept_bytes > 10_000 * 2 * 8
    more = ProductError(1e-4).memory(STEEP, 10_000, 5, 2**30)
    assert more is not None
    assert more.work_bytes > 4 * memory.work_bytes
    assert ProductError("auto").memory(STEEP, 10**6, 1, 2**20) is None
    with pytest.raises(MemoryBudgetError, match=r"`product_error` 0.0001 over 10,000 samples take .*none"):
        ProductError(1e-4).memory(STEEP, 10_000, 1, memory.kept_bytes - 1)


@pytest.mark.parametrize("amplitude", [1.0, 1e-3])
def test_a_number_below_all_roundings_is_refused(amplitude: float) -> None:
    kernel = SquaredExponential((40.0, 40.0), amplitude)
    words = r"`product_error` 1e-20 is below the roundings .* has an error of 4\.4e-1[69]\. Give a larger number"
    with pytest.raises(InputError, match=words):
        ProductError(1e-20).require_kernel(kernel)
    ProductError(1e-15).require_kernel(kernel)


@pytest.mark.parametrize("error", [1e-15, 1e-12])
def test_weights_that_are_too_large_for_a_number_take_every_entry_and_a_line(
    error: float, rng: np.random.Generator
) -> None:
    X, V = rng.uniform(size=(400, 2)), 1e4 * rng.standard_normal((400, 1))
    exact = STEEP(X, X) @ V + 0.1 * V
    executor = LocalExecutor(1)
    notes: list[str] = []
    product = ProductError(error)
    with product.operator(STEEP, 0.1, ArrayInputs(X), executor, note=notes.append) as operator:
        for _ in range(2):
            assert np.abs(operator.matmat(V) - exact).max() <= 1e-8
            assert operator.error_bound == 0.0
        assert "roundings" in operator.products["every entry"]
        assert operator.products["reached"] > error
    executor.close()
    assert len(notes) == 1
    assert "evaluate every kernel entry" in notes[0]
    assert f"the requested error, {error:.2g}; weights whose magnitudes add up to" in notes[0]
