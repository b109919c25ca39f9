"""Remembered steps against dense algebra: conjugate, of exact length, and the same bits row by row."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.solvers.block_descent.conjugate_memory import BlockStep, ConjugateMemory
from tests.solvers.problems import smooth_problem

PROBLEM = smooth_problem(90, 2, targets=2)
A = PROBLEM.matrix


def descend(memory: ConjugateMemory, rounds: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, BlockStep]:
    """Block steps on random active sets, by dense algebra; alpha, the gradient, and the last step."""
    alpha, gradient = np.zeros((90, 2)), -PROBLEM.y.copy()
    for _ in range(rounds):
        active = rng.choice(90, 12, replace=False)
        delta = -np.linalg.solve(A[np.ix_(active, active)], gradient[active])
        step = memory.conjugate(active, delta, gradient[active])
        squared = memory.move(alpha, step)
        np.testing.assert_allclose(squared, np.sum((step.step * memory.directions[step.slot]) ** 2, axis=0), rtol=1e-12)
        memory.settle(gradient, step, A[:, active] @ delta)
    return alpha, gradient, step


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_steps_are_conjugate_to_those_held(steps: int, rng: np.random.Generator) -> None:
    memory = ConjugateMemory(90, 2, steps)
    alpha, gradient, last = descend(memory, 6, rng)
    np.testing.assert_allclose(gradient, PROBLEM.gradient(alpha), rtol=0, atol=1e-12)
    assert len(memory.held) == steps
    for target in range(2):
        P = memory.directions[memory.held, :, target]
        gram = P @ A @ P.T
        np.testing.assert_allclose(
            gram, np.diag(np.diag(gram)), rtol=0, atol=1e-11 * max(1.0, np.abs(gram).max(initial=0))
        )
        np.testing.assert_allclose(memory.curvatures[memory.held, target], np.diag(gram), rtol=1e-10)
        # The length is exact: the gradient is orthogonal to the direction just taken.
        assert abs(memory.directions[last.slot, :, target] @ gradient[:, target]) < 1e-11


def test_the_last_steps_are_those_that_are_remembered(rng: np.random.Generator) -> None:
    memory, slots = ConjugateMemory(90, 2, 3), list[int]()
    for _ in range(8):
        slots.append(descend(memory, 1, rng)[2].slot)
        assert memory.held == slots[-3:]
        assert len(set(memory.held)) == len(memory.held)


def test_a_row_ahead_has_the_bits_of_all(rng: np.random.Generator) -> None:
    memory = ConjugateMemory(90, 2, 3)
    _, gradient, _ = descend(memory, 4, rng)
    active, delta = np.arange(5, 17), rng.standard_normal((12, 2))
    step = memory.conjugate(active, delta, gradient[active])
    product, rows = A[:, active] @ delta, np.array([3, 70, 11])
    ahead = memory.settled_at(rows, gradient, step, product[rows])
    memory.settle(gradient, step, product)
    np.testing.assert_array_equal(ahead, gradient[rows])


def test_what_is_saved_is_remembered(rng: np.random.Generator) -> None:
    memory, again = ConjugateMemory(90, 2, 3), ConjugateMemory(90, 2, 3)
    _, gradient, _ = descend(memory, 5, rng)
    again.restore(memory.arrays())
    active, delta = np.arange(12), rng.standard_normal((12, 2))
    one, other = (m.conjugate(active, delta, gradient[active]) for m in (memory, again))
    np.testing.assert_array_equal(one.coefficients, other.coefficients)
    np.testing.assert_array_equal(one.step, other.step)
    memory.clear()
    assert memory.arrays()["directions"].shape == (0, 90, 2)


def test_a_step_that_the_memory_all_but_cancels_is_taken_as_it_comes(rng: np.random.Generator) -> None:
    """What is left of a target's step after the last one is taken out: a 20,000th of it, or a 5,000th."""
    everyone, lower = np.arange(90), np.linalg.cholesky(A)
    last, other = (np.linalg.solve(lower.T, unit)[:, None] for unit in np.linalg.qr(rng.normal(size=(90, 2)))[0].T)
    memory = ConjugateMemory(90, 2, 2)
    first = np.hstack([last, last])
    gradient = -A @ first
    step = memory.conjugate(everyone, first, gradient)
    np.testing.assert_allclose(step.step, 1.0)
    memory.move(np.zeros((90, 2)), step)
    memory.settle(gradient, step, A @ first)
    squares = np.array([0.5e-4, 2e-4])
    second = last + np.sqrt(squares) * other
    step = memory.conjugate(everyone, second, -A @ second)
    np.testing.assert_allclose(step.coefficients, [[0.0, 1.0]], atol=1e-9)
    np.testing.assert_allclose(step.step, [1.0, (1.0 + squares[1]) / squares[1]], rtol=1e-6)
    # And nothing at all where there is no slope.
    np.testing.assert_array_equal(memory.conjugate(everyone, 0.0 * second, 0.0 * second).step, 0.0)
