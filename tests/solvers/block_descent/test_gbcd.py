"""Greedy block coordinate descent: the paper's method to the letter, and what the memory of steps adds to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, repeat

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.solvers import (
    CyclicSelection,
    GradientInfNorm,
    GradientSelection,
    GreedyBlockCoordinateDescent,
    GreedySelection,
    MaxIterations,
    MaxPasses,
    solve,
)
from tests.solvers.paper import block_coordinate_descent, dealt
from tests.solvers.problems import Problem, arm_problem, rounds, smooth_problem

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


@pytest.mark.parametrize("block_size", [1, 2, 17, 64, 80, 1000, "auto"])
def test_any_block_size(executor, block_size) -> None:
    problem = smooth_problem(80, 2, noise_variance=0.2)
    solver = GreedyBlockCoordinateDescent(block_size=block_size)
    solution = solve(problem.blocked(executor), problem.y, solver=solver, stopping=GradientInfNorm(1e-5))
    np.testing.assert_allclose(solution.alpha, problem.solution, rtol=0, atol=1e-3)
    assert np.abs(problem.gradient(solution.alpha)).max() <= 1.01e-5
    assert solution.solver["block_size"] == (min(block_size, 80) if block_size != "auto" else 80)


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
