"""Greedy block coordinate descent: its rounds and growing blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError
from dkgp.solvers import (
    CyclicSelection,
    GradientInfNorm,
    GradientSelection,
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
from tests.resuming import Resuming
from tests.solvers.paper import block_coordinate_descent, dealt
from tests.solvers.problems import OverlappingExecutor, Problem, arm_problem, rounds, smooth_problem

PROBLEM = smooth_problem(300, 3, targets=3)
LETTER = GreedyBlockCoordinateDescent(
    block_size=30, memory=0, precision="double", selection=GreedySelection(candidates=20, variables_per_step=1)
)


@pytest.mark.covering
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("operator", ["dense", "blocked"])
def test_paper_to_the_letter(executor, operator: str, seed: int) -> None:
    problem = smooth_problem(300, 3, seed=seed)
    solver = replace(LETTER, seed=seed)
    draws = (dealt(problem.n, 20, seed, k) for k in range(20))
    expected = list(block_coordinate_descent(problem.matrix, problem.y[:, 0], 30, draws))
    Kbar = problem.dense() if operator == "dense" else problem.blocked(executor)
    states = list(rounds(solver, Kbar, problem.y, 20))
    for before, after, (B, alpha, gradient) in zip(states[:-1], states[1:], expected, strict=True):
        assert set(np.flatnonzero(after.alpha[:, 0] != before.alpha[:, 0])) == set(B)
        assert len(B) == 30
        np.testing.assert_allclose(after.alpha[:, 0], alpha, rtol=0, atol=1e-8)
        np.testing.assert_allclose(after.gradient[:, 0], gradient, rtol=0, atol=1e-8)
    assert [state.iteration for state in states] == list(range(21))
    assert np.abs(expected[-1][2]).max() < 0.2 * np.abs(problem.y).max()


def rounds_to_the_letter(problem: Problem, m: int, kappa: int | None, seed: int) -> int:
    """Rounds of Algorithm 1 to max |g| <= 1e-3: O drawn from N without repetition, or all of it without a kappa."""
    rng = np.random.default_rng(seed)

    def draw(N: Sequence[int]) -> list[int]:
        return list(N) if kappa is None else rng.choice(N, min(kappa, len(N)), replace=False).tolist()

    steps = block_coordinate_descent(problem.matrix, problem.y[:, 0], m, repeat(draw))
    return next(k for k, (_, _, g) in enumerate(steps, 1) if np.abs(g).max() <= 1e-3)


def rounds_of(problem: Problem, executor, m: int, selection: GreedySelection, seed: int = 0) -> int:
    solver = GreedyBlockCoordinateDescent(m, 0, selection, "double", seed)
    stopping = GradientInfNorm(1e-3)
    return solve(problem.blocked(executor), problem.y, solver=solver, stopping=stopping).progress.iteration


def test_exhaustive_search_takes_the_rounds_of_the_letter(executor) -> None:
    problem, m = smooth_problem(240, 3), 30
    letter = rounds_to_the_letter(problem, m, None, 0)
    assert rounds_of(problem, executor, m, GreedySelection(exhaustive=True)) == letter
    # What an exhaustive search is for: with the steps of the default it gives most of that away.
    several = rounds_of(problem, executor, m, GreedySelection(exhaustive=True, variables_per_step=6))
    assert several >= 1.2 * letter
    assert rounds_of(problem, executor, m, GreedySelection(prefitting=True, exhaustive=True)) <= letter


@pytest.mark.long
def test_one_variable_a_step_takes_the_rounds_of_the_letter(executor) -> None:
    """On average, with another generator's draws."""
    problem, m, seeds = smooth_problem(120, 3), 15, range(8)
    letter = np.mean([rounds_to_the_letter(problem, m, 20, seed) for seed in seeds])
    one = GreedySelection(candidates=20, variables_per_step=1)
    assert np.mean([rounds_of(problem, executor, m, one, seed) for seed in seeds]) == pytest.approx(letter, rel=0.05)


@pytest.mark.parametrize("options", [{"exhaustive": True}, {"prefitting": True}])
def test_whoever_pays_for_the_best_choice_gets_one_at_a_time(options: dict[str, bool]) -> None:
    assert GreedySelection(**options).steps(50) == [1] * 50
    assert GreedySelection(**options, variables_per_step=10).steps(50) == [10] * 5
    # A checkpoint of the same options that chose several at a time is of another run.
    solver = GreedyBlockCoordinateDescent(selection=GreedySelection(**options))
    assert solver.settings()["variables_per_step"] == 1
    assert GreedyBlockCoordinateDescent().settings()["variables_per_step"] is None
    assert GreedySelection().steps(100) == [5] * 20


@pytest.mark.spread(3)
@pytest.mark.parametrize("block_size", [1, 2, 17, 64, 80, 1000, "auto"])
def test_any_block_size(executor, block_size) -> None:
    problem = smooth_problem(80, 2, noise_variance=0.2)
    solver = GreedyBlockCoordinateDescent(block_size=block_size)
    solution = solve(problem.blocked(executor), problem.y, solver=solver, stopping=GradientInfNorm(1e-5))
    np.testing.assert_allclose(solution.alpha, problem.solution, rtol=0, atol=1e-3)
    assert np.abs(problem.gradient(solution.alpha)).max() <= 1.01e-5
    assert solution.solver["block_size"] == (min(block_size, 80) if block_size != "auto" else 80)


@pytest.mark.spread(4)
@pytest.mark.covering(2)
@pytest.mark.parametrize("selection", [GreedySelection(), CyclicSelection(), GradientSelection()])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("memory", [0, 1, 5])
def test_objective_decreases_every_round(memory: int, targets: int, selection) -> None:
    solver = GreedyBlockCoordinateDescent(block_size=25, memory=memory, precision="double", selection=selection)
    y = PROBLEM.y[:, :targets]
    states = list(rounds(solver, PROBLEM.dense(), y, 15))
    for t in range(targets):
        problem = replace(PROBLEM, y=y[:, [t]])
        values = [problem.objective(state.alpha[:, [t]]) for state in states]
        assert np.all(np.diff(values) < 0.0)
        for before, after, decrease in zip(states[:-1], states[1:], np.diff(values), strict=True):
            # Theorem 1, equation (15), for the active set that was taken; with memory the step reaches everywhere.
            moved = (after.alpha - before.alpha)[:, t]
            B = np.flatnonzero(moved)
            smallest = np.linalg.eigvalsh(PROBLEM.matrix[np.ix_(B, B)])[0]
            assert decrease <= -0.5 * smallest * np.sum(moved**2) * (1 - 1e-9)


@pytest.mark.parametrize("precision", ["mixed", "double"])
def test_gradient_recursion_is_the_gradient(executor, precision: str) -> None:
    solver = GreedyBlockCoordinateDescent(block_size=25, precision=precision)
    for state in rounds(solver, PROBLEM.blocked(executor), PROBLEM.y, 12):
        error = np.abs(state.gradient - PROBLEM.gradient(state.alpha)).max()
        assert error <= (1e-4 if precision == "mixed" else 1e-11)


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize(("precision", "bound"), [("double", 1e-7), ("mixed", 1e-4)])
def test_steps_are_conjugate_and_the_gradient_orthogonal_to_them(
    executor, precision: str, bound: float, targets: int
) -> None:
    memory, y = 4, PROBLEM.y[:, :targets]
    solver = GreedyBlockCoordinateDescent(block_size=25, memory=memory, precision=precision)
    for k, state in enumerate(rounds(solver, PROBLEM.blocked(executor), y, 10)):
        assert len(state.memory.held) == min(k, memory)
        for t in range(targets):
            P, Q = state.memory.directions[state.memory.held, :, t], state.memory.images[state.memory.held, :, t]
            A = P @ PROBLEM.matrix @ P.T
            np.testing.assert_allclose(Q, P @ PROBLEM.matrix, rtol=0, atol=bound * np.abs(Q).max(initial=1.0))
            np.testing.assert_allclose(state.memory.curvatures[state.memory.held, t], A.diagonal(), rtol=10 * bound)
            lengths = np.sqrt(A.diagonal())
            cosines = A / np.outer(lengths, lengths)
            assert np.abs(cosines - np.eye(len(cosines))).max(initial=0.0) <= bound
            g = state.gradient[:, t]
            along = np.abs(P @ g) / (np.linalg.norm(P, axis=1) * np.linalg.norm(g))
            assert along.max(initial=0.0) <= bound


def test_memory_takes_the_best_step_over_the_remembered_ones() -> None:
    # Two rounds with memory minimise over span(delta, p_1): no combination of the two does better.
    solver = GreedyBlockCoordinateDescent(block_size=25, memory=5, precision="double")
    states = list(rounds(solver, PROBLEM.dense(), PROBLEM.y[:, :1], 2))
    problem = replace(PROBLEM, y=PROBLEM.y[:, :1])
    basis = np.column_stack([(later.alpha - earlier.alpha)[:, 0] for earlier, later in pairwise(states)])
    best = basis @ np.linalg.solve(basis.T @ problem.matrix @ basis, basis.T @ problem.y)
    assert problem.objective(states[2].alpha) == pytest.approx(problem.objective(best), rel=1e-12)


def passes(problem, executor, **options) -> float:
    settings = {"block_size": 100, "memory": 0} | options
    stopping = GradientInfNorm(1e-2) | MaxPasses(60)
    solution = solve(
        problem.blocked(executor), problem.y, solver=GreedyBlockCoordinateDescent(**settings), stopping=stopping
    )
    return solution.progress.column_passes


@pytest.mark.slow
def test_greedy_needs_fewer_passes_than_cyclic_and_gradient_selection(executor) -> None:
    problem = arm_problem(1200)
    greedy = passes(problem, executor)
    assert greedy < 0.8 * passes(problem, executor, selection=CyclicSelection())
    assert greedy < 0.8 * passes(problem, executor, selection=GradientSelection())


@pytest.mark.long
def test_memory_saves_passes(executor) -> None:
    problem = arm_problem(1200)
    assert passes(problem, executor, memory=5) < 0.85 * passes(problem, executor, memory=0)


def test_seed_decides_everything_and_only_it(executor) -> None:
    def alpha(seed: int) -> np.ndarray:
        solver = GreedyBlockCoordinateDescent(block_size=30, seed=seed)
        return solve(PROBLEM.blocked(executor), PROBLEM.y, solver=solver, stopping=MaxIterations(20)).alpha

    np.testing.assert_array_equal(alpha(3), alpha(3))
    assert not np.array_equal(alpha(3), alpha(4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, 'block size must be a positive integer or "auto"; got 0'),
        ({"block_size": -5}, "block size must be a positive integer"),
        ({"block_size": 2.5}, "block size must be a positive integer"),
        ({"block_size": "large"}, "block size must be a positive integer"),
        ({"memory": -1}, "memory must be a whole number of steps, zero or more; got -1"),
        ({"precision": "half"}, "precision must be 'mixed' or 'double'; got 'half'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message: str) -> None:
    with pytest.raises(InputError, match=message):
        GreedyBlockCoordinateDescent(**options)


@pytest.mark.parametrize(("n", "d"), [(10, 1), (249, 8), (10_000, 8), (1_000_000, 40)])
def test_automatic_block_size_is_fixed_by_the_problems_shape(n: int, d: int) -> None:
    sizes = {GreedyBlockCoordinateDescent().resolved(n, d).block_size for _ in range(3)}
    assert len(sizes) == 1
    size = sizes.pop()
    assert 1 <= size <= n
    assert GreedyBlockCoordinateDescent(block_size=2 * n).resolved(n, d).block_size == n


def test_automatic_blocks_grow_with_the_problem() -> None:
    sizes = [GreedyBlockCoordinateDescent().resolved(n, 10).block_size for n in (1000, 10_000, 100_000, 10_000_000)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


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
    """Return the solution of the first rounds."""
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
    kept = Resuming(partial(solved, HARD, executor), tmp_path)
    assert len(kept.start(stopping=MaxIterations(stop)).history) == stop
    assert block_sizes(kept.require_same(grown)) == block_sizes(grown)


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
