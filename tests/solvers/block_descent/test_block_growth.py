"""Blocks that grow where a solve gets on slowly: when, how far, and to the same bits whoever computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.errors import InputError
from dkgp.solvers import (
    Checkpointing,
    CyclicSelection,
    GradientInfNorm,
    GreedyBlockCoordinateDescent,
    GreedySelection,
    MaxIterations,
    MaxPasses,
    Solution,
    solve,
)
from dkgp.solvers.block_descent.block_size import (
    BlockGrowth,
    BlockSizes,
    automatic_block_size,
    grown_block_size,
    grown_candidates,
    largest_automatic_block_size,
    projected_round,
)
from dkgp.solvers.driver import Watch
from dkgp.solvers.registry import SolverMemory, solver_memory
from tests.solvers.problems import OverlappingExecutor, Problem, arm_problem, smooth_problem

HARD = arm_problem(900)
EASY = smooth_problem(2400, 2, noise_variance=0.5)
STOPPING = GradientInfNorm(1e-3) | MaxPasses(100.0)
GROWING = GreedyBlockCoordinateDescent(block_size=60, largest_block_size=240)


def solved(
    problem: Problem,
    executor: LocalExecutor,
    solver: Any = GROWING,
    *,
    stopping: Any = STOPPING,
    coordinator_input_bytes: int = 2**31,
    **watch: Any,
) -> Solution:
    operator = problem.blocked(executor, coordinator_input_bytes=coordinator_input_bytes)
    return solve(operator, problem.y, solver=solver, stopping=stopping, watch=Watch(**watch))


def block_sizes(solution: Solution) -> list[int]:
    """Variables of each round."""
    n = len(solution.alpha)
    passes = [0.0, *(progress.column_passes for progress in solution.history)]
    return [round(size) for size in np.diff(passes) * n]


@pytest.fixture(scope="module")
def grown(executor: LocalExecutor) -> Solution:
    """A slow solve to its end."""
    return solved(HARD, executor)


@pytest.mark.long
def test_a_slow_solve_grows_its_blocks_and_takes_fewer_passes(executor: LocalExecutor, grown: Solution) -> None:
    fixed = solved(HARD, executor, GreedyBlockCoordinateDescent(block_size=60))
    assert grown.converged
    assert fixed.converged
    sizes = block_sizes(grown)
    assert sizes == sorted(sizes)
    assert sizes[0] == 60
    assert 60 < sizes[-1] <= 240
    # The first pass tells nothing yet.
    assert sum(size for size in sizes if size == 60) >= HARD.n
    assert set(block_sizes(fixed)) == {60}
    assert grown.progress.column_passes < 0.8 * fixed.progress.column_passes
    error = np.linalg.norm(HARD.gradient(grown.alpha)) / HARD.noise_variance
    assert np.linalg.norm(grown.alpha - HARD.solution) <= error


def test_a_quick_solve_keeps_its_blocks(executor: LocalExecutor) -> None:
    solver = GreedyBlockCoordinateDescent(block_size=750, largest_block_size=2000)
    solution = solved(EASY, executor, solver)
    assert solution.converged
    assert solution.progress.column_passes > 1.5
    assert set(block_sizes(solution)) == {750}


@pytest.fixture(scope="module")
def expected(executor: LocalExecutor) -> Solution:
    """Of the first rounds."""
    return solved(HARD, executor, stopping=MaxIterations(24))


@pytest.mark.covering
@pytest.mark.parametrize("budget", [2**31, 0], ids=["resident", "out_of_core"])
@pytest.mark.parametrize("executor_type", [LocalExecutor, OverlappingExecutor])
def test_the_same_bits_whoever_computes(expected: Solution, executor_type: Any, budget: int) -> None:
    other = executor_type(3)
    found = solved(HARD, other, coordinator_input_bytes=budget, stopping=MaxIterations(24))
    other.close()
    assert len(set(block_sizes(found))) > 1
    assert block_sizes(found) == block_sizes(expected)
    assert found.alpha.tobytes() == expected.alpha.tobytes()


@pytest.mark.parametrize("stop", [8, pytest.param(17, marks=pytest.mark.slow), 22])
def test_resumed_before_and_after_growing_it_ends_in_the_same_bits(
    executor: LocalExecutor, grown: Solution, tmp_path: Path, stop: int
) -> None:
    """Eight rounds: the rate's first measurement is under way; twenty-two: the blocks have grown."""
    store = CheckpointStore(tmp_path / "checkpoints")
    short = solved(HARD, executor, stopping=MaxIterations(stop), checkpointing=Checkpointing(store))
    assert len(short.history) == stop
    resumed = solved(HARD, executor, checkpointing=Checkpointing(store, resume=True))
    assert block_sizes(resumed) == block_sizes(grown)
    assert resumed.alpha.tobytes() == grown.alpha.tobytes()


def test_automatic_blocks_of_the_greedy_selection_may_grow_and_no_others() -> None:
    automatic = GreedyBlockCoordinateDescent().resolved(100_000, 8)
    assert automatic.largest_block_size == 4000
    assert automatic.resolved(100_000, 8) == automatic
    assert GreedyBlockCoordinateDescent().resolved(3000, 8).largest_block_size == 1500
    fixed = (
        GreedyBlockCoordinateDescent(block_size=500),
        GreedyBlockCoordinateDescent(selection=CyclicSelection()),
        GreedyBlockCoordinateDescent(selection=CyclicSelection(), largest_block_size=3000),
        GreedyBlockCoordinateDescent(block_size=500, largest_block_size=20),
    )
    for solver in fixed:
        settings = solver.resolved(100_000, 8)
        assert settings.largest_block_size == settings.block_size
    assert GreedyBlockCoordinateDescent(block_size=5, largest_block_size=500).resolved(100, 8).largest_block_size == 100
    assert automatic.settings()["largest_block_size"] == 4000


@pytest.mark.parametrize("size", [0, -1, 2.5, "large"])
def test_a_largest_size_that_is_none_is_refused(size: Any) -> None:
    with pytest.raises(InputError, match='largest block size must be a positive integer or "auto"'):
        GreedyBlockCoordinateDescent(largest_block_size=size)


@given(
    st.integers(100, 10**7),
    st.integers(1, 100),
    st.integers(1, 300),
    st.floats(1e-6, np.inf),
    st.floats(1.0, 3.0),
)
def test_slower_solves_get_larger_blocks(n: int, d: int, candidates: int, pace: float, factor: float) -> None:
    start = automatic_block_size(n, d, candidates)
    largest = largest_automatic_block_size(n, start)
    size = grown_block_size(n, d, candidates, start, start, pace, largest)
    assert start <= size <= largest <= n
    assert size <= grown_block_size(n, d, candidates, start, start, factor * pace, largest)
    if pace <= 0.8:
        assert size == start


SIZES = (250, 500, 750, 1000, 1500, 2000, 3000, 4000)


def seconds_of_a_round(n: int, d: int, candidates: int, m: int) -> float:
    """Kernel entries, of candidates half with a full block on average, choices, algebra and messages, one by one."""
    entry = (0.30 + 0.012 * d) * 1e-9
    return entry * n * m + entry * candidates * m * m / 2 + 18e-6 * m + 0.0036e-9 * m**3 + 0.005


PROBLEMS = [(n, d, kappa) for n in (300, 3000, 40_000, 10**6, 2 * 10**7) for d in (1, 21) for kappa in (1, 60, 300)]


@pytest.mark.parametrize(("n", "d", "candidates"), PROBLEMS)
def test_sizes_are_those_of_the_least_projected_cost(n: int, d: int, candidates: int) -> None:
    for m in SIZES:
        assert projected_round(n, d, candidates, m) == pytest.approx(seconds_of_a_round(n, d, candidates, m))
    start = min(SIZES, key=lambda m: seconds_of_a_round(n, d, candidates, m) / m**1.2)
    assert automatic_block_size(n, d, candidates) == min(n, start)
    start = min(n, 250)
    largest = max(start, min(4000, n // 2))
    for pace in (0.7, 0.81, 1.0, 1.7, 3.0, 10.0, 1e3, np.inf):

        def cost(m: int) -> float:
            passes = 0.8 + (min(pace, 1e3) - 0.8) * start / m  # noqa: B023
            kappa = min(candidates, max(20, candidates * start // m))
            return passes / m * seconds_of_a_round(n, d, kappa, m)

        best = min([start, *(m for m in SIZES if start < m < largest), largest], key=cost)
        expected = start if pace < 0.8 or cost(best) > 0.9 * cost(start) else best
        assert grown_block_size(n, d, candidates, start, start, pace, largest) == expected


def test_growth_goes_by_the_gradient_and_the_columns_since_it_was_last_considered() -> None:
    sizes = BlockSizes(100_000, 8, 60, 250, 4000)
    growth = BlockGrowth(sizes, 250)
    growth.review(49_999, lambda: 2.0)
    assert (growth.size, growth.review_columns, growth.review_norm) == (250, 0, 0.0)  # not half a pass yet
    growth.review(50_000, lambda: 2.0)
    assert (growth.size, growth.review_columns, growth.review_norm) == (250, 50_000, 2.0)
    growth.review(210_000, lambda: 1.6)
    pace = 1.6 / np.log10(2.0 / 1.6)
    assert growth.size == grown_block_size(100_000, 8, 60, 250, 250, pace, 4000) > 250
    assert (growth.review_columns, growth.review_norm) == (210_000, 1.6)
    # Where it did not fall at all, as far as it may; and no more once that is reached.
    growth.review(260_000, lambda: 1.7)
    assert growth.size == grown_block_size(100_000, 8, 60, 250, growth.size, np.inf, 4000)
    growth.size, columns = 4000, growth.review_columns
    growth.review(900_000, lambda: 1.7)
    assert (growth.size, growth.review_columns) == (4000, columns)


def test_a_gradient_of_zero_says_nothing_of_the_pace() -> None:
    growth = BlockGrowth(BlockSizes(1000, 8, 60, 100, 500), 100)
    growth.review(500, lambda: 0.0)
    growth.review(1000, lambda: 2.0)
    assert growth.size == 100
    growth.review(1500, lambda: 0.0)
    assert (growth.size, growth.review_norm) == (100, 0.0)


def test_a_gradient_that_is_no_number_says_nothing_either() -> None:
    growth = BlockGrowth(BlockSizes(1000, 8, 60, 100, 500), 100)
    for columns, value in ((500, 1.0), (1000, np.nan), (1500, 0.9)):
        growth.review(columns, lambda: 2.0 * value)  # noqa: B023
        assert growth.size == 100
    growth.review(2000, lambda: 1.8)
    assert growth.size > 100  # from here on it is known that it does not fall


@given(st.integers(1, 500), st.integers(1, 4000), st.integers(0, 4000))
def test_grown_blocks_look_at_as_many_candidates_in_all(candidates: int, start: int, more: int) -> None:
    kappa = grown_candidates(candidates, start, start + more)
    assert min(candidates, 20) <= kappa <= candidates
    assert kappa * (start + more) <= max(candidates * start, 20 * (start + more))
    assert (kappa + 1) * (start + more) > min(candidates * start, candidates * (start + more))


def test_memory_is_planned_for_the_largest_blocks() -> None:
    automatic = GreedyBlockCoordinateDescent().resolved(100_000, 8)
    start = automatic.block_size
    assert isinstance(start, int)
    needed = solver_memory(automatic, 100_000, 8)
    assert needed.block_size == 4000
    grown = automatic.grown_selection(4000)
    assert isinstance(grown, GreedySelection)
    assert needed.block_size * needed.candidates >= max(60 * start, 4000 * grown.candidates)
    given = GreedyBlockCoordinateDescent(block_size=500).resolved(100_000, 8)
    assert solver_memory(given, 100_000, 8) == SolverMemory(memory=5, block_size=500, candidates=60)
