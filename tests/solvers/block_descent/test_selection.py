"""Which variables a round moves: the paper's choice, word for word and by brute force; the two older ones."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.solvers import CyclicSelection, GradientSelection, GreedySelection, Selection
from dkgp.solvers.block_descent.rows import SettledGradient
from dkgp.solvers.block_descent.selection import Subproblem, best_in_groups
from tests.solvers.paper import best_by_brute_force, dealt, greedy_approximation
from tests.solvers.problems import Problem, smooth_problem

PROBLEM = smooth_problem(240, 3, targets=2)
OPERATOR = PROBLEM.dense()
SEEDS = range(8)


def fill(
    selection: Selection, size: int, *, problem: Problem = PROBLEM, targets: int = 1, seed: int = 0, iteration: int = 0
) -> Subproblem:
    """One round's active set and step, from a gradient that has no structure that could hide a wrong choice."""
    operator = OPERATOR if problem is PROBLEM else problem.dense()
    subproblem = Subproblem(operator, size, targets)
    selection.fill(subproblem, operator, SettledGradient(gradient(problem, targets, seed)), size, seed, iteration)
    return subproblem


def gradient(problem: Problem, targets: int, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal((problem.n, targets))
    return 0.3 * noise - problem.y[:, :targets]


def steepest(targets: int, seed: int) -> int:
    return int(np.argmax(np.sum(gradient(PROBLEM, targets, seed) ** 2, axis=1)))


@pytest.mark.covering
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("candidates", [1, 5, 60])
def test_one_variable_a_step_is_algorithm_2(candidates: int, seed: int) -> None:
    m = 40
    selection = GreedySelection(candidates=candidates, variables_per_step=1)
    subproblem = fill(selection, m, seed=seed, iteration=3)
    draw = dealt(PROBLEM.n, candidates, seed, 3)
    B, step = greedy_approximation(PROBLEM.matrix, gradient(PROBLEM, 1, seed)[:, 0], m, draw)
    assert subproblem.indices.tolist() == B
    assert len(B) == m
    np.testing.assert_allclose(subproblem.solve()[:, 0], step, atol=1e-6)


@pytest.mark.covering
@pytest.mark.parametrize("seed", SEEDS[:3])
@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("prefitting", [False, True])
def test_exhaustive_choice_is_the_best_of_all(prefitting: bool, targets: int, seed: int) -> None:
    selection = GreedySelection(exhaustive=True, variables_per_step=1, prefitting=prefitting)
    chosen = fill(selection, 15, targets=targets, seed=seed).indices.tolist()
    g = gradient(PROBLEM, targets, seed)
    for size, variable in enumerate(chosen):
        assert variable == best_by_brute_force(PROBLEM.matrix, g, chosen[:size], prefitting=prefitting)


def test_prefitting_chooses_otherwise_and_decreases_more() -> None:
    def decrease(prefitting: bool) -> float:
        selection = GreedySelection(exhaustive=True, variables_per_step=1, prefitting=prefitting)
        subproblem = fill(selection, 30, problem=smooth_problem(240, 2, noise_variance=0.01, gamma=1.0))
        return -0.5 * float(np.sum(subproblem.gradient[:30] * subproblem.solve()))

    assert decrease(True) > decrease(False)


def test_several_variables_a_step_are_the_best_of_their_own_draws() -> None:
    # The first step of a block, before any variable is chosen: scores are g_i^2 / Kbar_ii.
    selection = GreedySelection(candidates=10, variables_per_step=8)
    chosen = fill(selection, 32, seed=2).indices
    scores = np.sum(gradient(PROBLEM, 1, 2) ** 2, axis=1)
    draw, taken = dealt(PROBLEM.n, 10, 2, 0), list[int]()
    for _ in range(8):
        taken.append(max((i for i in draw(range(PROBLEM.n)) if i not in taken), key=lambda i: scores[i]))
    assert chosen[:8].tolist() == taken


@pytest.mark.parametrize(("size", "per_step"), [(11, 10), (30, 7), (128, None)])
def test_exhaustive_steps_of_several_variables_fill_the_block(size: int, per_step: int | None) -> None:
    chosen = fill(GreedySelection(exhaustive=True, variables_per_step=per_step), size, seed=2).indices
    assert chosen[0] == steepest(1, 2)
    assert len(set(chosen.tolist())) == len(chosen) == size


@pytest.mark.covering(2)
@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize(
    "selection",
    [
        GreedySelection(candidates=1),
        GreedySelection(candidates=3, variables_per_step=7),
        GreedySelection(candidates=3, variables_per_step=1),
        GreedySelection(),
        GreedySelection(variables_per_step=1000),
        GradientSelection(),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 31, 64, 100])
def test_chosen_are_distinct_and_the_steepest_is_among_them(selection: Selection, size: int, targets: int) -> None:
    for seed in SEEDS:
        chosen = fill(selection, size, targets=targets, seed=seed).indices
        assert 1 <= len(chosen) <= size
        assert len(set(chosen.tolist())) == len(chosen)
        # What the proof of convergence needs (Theorem 2).
        assert steepest(targets, seed) in chosen


def test_greedy_fills_the_block_where_candidates_suffice() -> None:
    assert all(fill(GreedySelection(), 100, seed=seed).size == 100 for seed in SEEDS)


def test_block_of_all_variables() -> None:
    problem = smooth_problem(40)
    for selection in (
        GreedySelection(),
        GreedySelection(candidates=7),
        GreedySelection(candidates=1, variables_per_step=1),
        GreedySelection(exhaustive=True, variables_per_step=1),
    ):
        everyone = fill(selection, 40, problem=problem).indices
        np.testing.assert_array_equal(np.sort(everyone), np.arange(40))


@pytest.mark.parametrize("targets", [1, 2])
def test_result_does_not_depend_on_threads(targets: int) -> None:
    # A step's candidates (60 x 20) are more than one thread's share.
    results = [
        fill(GreedySelection(variables_per_step=20, threads=threads), 80, targets=targets) for threads in (1, 2, None)
    ]
    for other in results[1:]:
        np.testing.assert_array_equal(other.indices, results[0].indices)
        np.testing.assert_array_equal(other.solve(), results[0].solve())


def test_what_a_round_looks_at_was_announced() -> None:
    selection = GreedySelection(candidates=4, variables_per_step=6)
    announced = selection.announced(OPERATOR, 30, 1, 2)
    chosen = fill(selection, 30, seed=1, iteration=2).indices
    assert set(chosen.tolist()) <= {*announced.tolist(), steepest(1, 1)}
    assert GreedySelection(exhaustive=True).announced(OPERATOR, 30, 1, 2) is None
    assert GradientSelection().announced(OPERATOR, 30, 1, 2) is None


@pytest.mark.parametrize(("size", "rounds"), [(240, 1), (100, 3), (60, 4), (7, 35)])
def test_cyclic_visits_everything_once_a_cycle(size: int, rounds: int) -> None:
    cycles = []
    for cycle in range(2):
        blocks = [fill(CyclicSelection(), size, iteration=cycle * rounds + i).indices.tolist() for i in range(rounds)]
        cycles.append([variable for block in blocks for variable in block])
        assert sorted(cycles[-1]) == list(range(PROBLEM.n))
    assert cycles[0] != cycles[1]


@pytest.mark.parametrize("targets", [1, 2])
def test_gradient_takes_the_largest(targets: int) -> None:
    chosen = fill(GradientSelection(), 25, targets=targets, seed=4).indices
    norms = np.linalg.norm(gradient(PROBLEM, targets, 4), axis=1)
    assert set(chosen.tolist()) == set(np.argsort(norms)[-25:].tolist())


def test_a_run_that_lost_its_best_takes_its_next_best_or_nothing() -> None:
    candidates = np.array([4, 2, 4, 3, 2, 2])
    scores = np.array([9.0, 5.0, 9.0, 1.0, 7.0, 6.0])
    chosen = np.zeros(5, dtype=bool)
    assert best_in_groups(scores, candidates, 3, chosen).tolist() == [4, 3, 2]
    assert np.flatnonzero(chosen).tolist() == [2, 3, 4]
    assert best_in_groups(scores, candidates, 3, chosen).tolist() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": 0}, "number of candidates must be at least 1; got 0"),
        ({"variables_per_step": 0}, "variables per step must be at least 1; got 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        GreedySelection(**options)
