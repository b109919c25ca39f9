"""Products with all of K: every pair once, the same bits whoever computes and whatever is kept, within the budget."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.cluster import LocalExecutor
from dkgp.cluster.executors.base import PendingRound
from dkgp.cluster.tile_budget import TileBudget
from dkgp.kernels import SquaredExponential, parse_kernel
from dkgp.operators import ArrayInputs, BlockedKernelOperator, full_products
from dkgp.operators.full_products import pieces_of
from dkgp.operators.keeping import Keeping, kept_bytes_of
from dkgp.operators.kept_tiles import worker_tiles

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
    """A process that pretends to be several, and notes who was asked for what."""

    def __init__(self, workers: dict[str, int], tiles: TileBudget | None = None) -> None:
        super().__init__(2, tiles)
        self.there = workers
        self.rounds: list[dict[Any, str]] = []

    @property
    def workers(self) -> dict[str, int]:
        return self.there

    def submit(self, name: str, task: Any, arguments: tuple[Any, ...], groups: Any, owners: Any = None) -> PendingRound:
        if name == "kpass":
            pairs = zip(groups, owners or [""] * len(groups), strict=True)
            self.rounds.append({piece: owner for group, owner in pairs for work in group for piece in work.pieces})
        return super().submit(name, task, arguments, groups)


def products(X: np.ndarray, V: np.ndarray, tiles: TileBudget | None, count: int = 3, threads: int = 2) -> Any:
    """Products one after the other, their shares read, and the tiles that were held at the end."""
    executor = LocalExecutor(threads, tiles)
    with BlockedKernelOperator(KERNEL, NOISE, ArrayInputs(X), executor) as operator:
        found = [(operator.matmat(V, "single"), operator.kept_share) for _ in range(count)]
        held = worker_tiles().nbytes
    executor.close()
    return [product for product, _ in found], [share for _, share in found], held


@given(st.integers(1, 140))
def test_pieces_cover_the_lower_half_once(n_blocks: int) -> None:
    pairs = [pair for piece in pieces_of(n_blocks) for pair in piece.pairs]
    assert sorted(pairs) == [(i, j) for i in range(n_blocks) for j in range(i + 1)]
    assert all({i, j} <= set(piece.blocks) for piece in pieces_of(n_blocks) for i, j in piece.pairs)


@pytest.mark.covering
@pytest.mark.parametrize("kernel", [KERNEL, parse_kernel("matern32 + linear", D)])
@pytest.mark.parametrize("t", [1, 5])
def test_products_are_the_naive_ones(
    kernel: Any, t: int, inputs: np.ndarray, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    V = rng.standard_normal((N, t))
    expected = kernel(inputs, inputs) @ V + NOISE * V
    for single_blocks in (16, 1):  # one by one, and two by two
        monkeypatch.setattr(full_products, "SINGLE_BLOCKS", single_blocks)
        executor = LocalExecutor(2, TileBudget(10**9))
        with BlockedKernelOperator(kernel, NOISE, ArrayInputs(inputs), executor) as operator:
            np.testing.assert_allclose(operator.matmat(V), expected, rtol=1e-11, atol=1e-10)
            for _ in range(2):
                np.testing.assert_allclose(operator.matmat(V, "single"), expected, atol=3e-4)
        executor.close()


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


def test_pieces_keep_their_workers_and_only_those_of_lost_ones_move(
    inputs: np.ndarray, rng: np.random.Generator
) -> None:
    V = rng.standard_normal((N, 1))
    executor = Workers({"a": 1, "b": 1, "c": 2})
    with BlockedKernelOperator(KERNEL, NOISE, ArrayInputs(inputs), executor) as operator:
        results = [operator.matmat(V, "single") for _ in range(2)]
        executor.there = {"a": 1, "c": 2}
        results.append(operator.matmat(V, "single"))
    first, second, third = executor.rounds
    assert first == second
    assert set(first.values()) == {"a", "b", "c"}
    assert all(third[piece] == owner for piece, owner in first.items() if owner != "b")
    assert set(third.values()) == {"a", "c"}
    for result in results:
        np.testing.assert_array_equal(result, results[0])
    executor.close()


def test_rounds_are_bounded_and_overlap(
    inputs: np.ndarray, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_products, "ROUND_BYTES", 1)
    under_way: list[int] = []
    waiting = 0

    class Counting(Workers):
        def submit(self, name: str, *rest: Any) -> PendingRound:
            nonlocal waiting
            pending = super().submit(name, *rest)
            waiting += 1
            under_way.append(waiting)
            result = pending.result

            def taken() -> list[Any]:
                nonlocal waiting
                waiting -= 1
                return result()

            pending.result = taken  # type: ignore[method-assign]
            return pending

    V = rng.standard_normal((N, 2))
    executor = Counting({"": 2})
    told: list[tuple[int, int]] = []
    with (
        BlockedKernelOperator(KERNEL, NOISE, ArrayInputs(inputs), executor) as operator,
        operator.watched(lambda progress: told.append((progress.done, progress.total or 0))),
    ):
        product = operator.matmat(V, "single")
    np.testing.assert_array_equal(product, products(inputs, V, None, 1)[0][0])
    assert all(len(round_) <= 8 for round_ in executor.rounds)
    assert max(under_way) == 2
    pieces = len(pieces_of(operator.context.n_blocks))
    assert told[-1] == (pieces, pieces)
    assert all(before < after for (before, _), (after, _) in itertools.pairwise(told))
    executor.close()


@pytest.mark.parametrize(("side", "held"), [(1, 10), (2, 9)])
def test_results_of_a_round_take_no_more_than_is_said(
    side: int, held: int, inputs: np.ndarray, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_products, "SINGLE_BLOCKS", 16 if side == 1 else 1)
    executor, V = Workers({"": 2}), rng.standard_normal((N, 3))
    with BlockedKernelOperator(KERNEL, NOISE, ArrayInputs(inputs), executor) as operator:
        # Of a piece, its rows' and its columns' products, float64.
        piece_bytes = 2 * side * operator.context.block_rows * 3 * 8
        monkeypatch.setattr(full_products, "ROUND_BYTES", held * piece_bytes + piece_bytes // 2)
        operator.matmat(V, "single")
        pieces = len(pieces_of(operator.context.n_blocks))
    assert [len(round_) for round_ in executor.rounds] == [held] * (pieces // held) + [pieces % held][: pieces % held]
    executor.close()


class Elsewhere(Workers):
    """Pretends that its workers are other processes, and notes the tasks of each round."""

    shares_memory = False

    def __init__(self, workers: dict[str, int], tiles: TileBudget | None = None) -> None:
        super().__init__(workers, tiles)
        self.tasks: list[tuple[str, int, Any]] = []

    def submit(self, name: str, task: Any, arguments: tuple[Any, ...], groups: Any, owners: Any = None) -> PendingRound:
        self.tasks.append((name, len(groups), owners))
        return super().submit(name, task, arguments, groups, owners)


@pytest.mark.parametrize("side", [1, 2])
@pytest.mark.parametrize(("parts", "tasks"), [(0.4, 1), (1.5, 1), (3.5, 3), (100.0, 8)])
def test_tasks_of_other_processes_are_as_large_as_pays(
    side: int, parts: float, tasks: int, inputs: np.ndarray, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the entries that a thread evaluates in a round: eight tasks for it at most, and one at least."""
    monkeypatch.setattr(full_products, "SINGLE_BLOCKS", 16 if side == 1 else 1)
    executor, V = Elsewhere({"": 2}), rng.standard_normal((N, 1))
    with BlockedKernelOperator(KERNEL, NOISE, ArrayInputs(inputs), executor) as operator:
        pieces = len(pieces_of(operator.context.n_blocks))
        entries = pieces * (side * operator.context.block_rows) ** 2
        monkeypatch.setattr(full_products, "TASK_ENTRIES", int(entries / 2 / parts))
        product = operator.matmat(V, "single")
    assert executor.tasks == [("kpass", min(2 * tasks, pieces), None)]
    np.testing.assert_array_equal(product, products(inputs, V, None, 1)[0][0])
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
    assert operator.kept["reason"] == ("as asked for" if budget else "")
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

    def submit(self, name: str, task: Any, arguments: tuple[Any, ...], groups: Any, owners: Any = None) -> PendingRound:
        if name == "kpass" and len(arguments) == 4 and arguments[3] is not None:
            self.terms.append(arguments[3])
        return super().submit(name, task, arguments, groups, owners)


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
