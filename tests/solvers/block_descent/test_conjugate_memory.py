"""The memory of conjugate steps, and the recursions of the gradient and the solution."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.data.types import block_rows
from dkgp.solvers.base import Sums, measures
from dkgp.solvers.block_descent.conjugate_memory import (
    CHUNK,
    BlockStep,
    ConjugateMemory,
    advance_gradient,
    advance_solution,
)
from dkgp.solvers.block_descent.rows import added
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
    """The remainder of a target's step without its last one is a 20,000th of it, or a 5,000th."""
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


SLOTS, M = 4, 20


@pytest.fixture(params=[(7, 1), (CHUNK, 1), (CHUNK + 1, 3), (2500, 2)], ids=str)
def step(request: pytest.FixtureRequest, rng: np.random.Generator) -> dict[str, np.ndarray]:
    n, p = request.param
    m = min(M, n)
    return {
        "vector": rng.standard_normal((n, p)),
        "product": rng.standard_normal((n, p)),
        "indices": rng.choice(n, m, replace=False),
        "delta": rng.standard_normal((m, p)),
        "history": rng.standard_normal((SLOTS, n, p)),
        "used": np.array([3, 0]),
        "coefficients": rng.standard_normal((2, p)),
        "step": rng.uniform(0.5, 2.0, p),
    }


def combined(start: np.ndarray, step: dict[str, np.ndarray]) -> np.ndarray:
    """`start - sum_j c_j history[used[j]]`."""
    for j, slot in enumerate(step["used"]):
        start = start - step["coefficients"][j] * step["history"][slot]
    return start


def test_gradient(step: dict[str, np.ndarray]) -> None:
    image, product = np.full_like(step["vector"], np.nan), step["product"].copy()
    gradient = step["vector"].copy()
    advance_gradient(gradient, product, step["history"], step["used"], step["coefficients"], step["step"], image)
    expected = combined(step["product"], step)
    np.testing.assert_allclose(image, expected, rtol=0, atol=1e-13)
    np.testing.assert_allclose(gradient, step["vector"] + step["step"] * expected, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(product, step["product"])


def test_gradient_at_a_few_samples_has_the_same_bits(step: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    def advanced(rows: np.ndarray) -> np.ndarray:
        gradient, history = step["vector"][rows], np.ascontiguousarray(step["history"][:, rows])
        scalars = step["used"], step["coefficients"], step["step"]
        advance_gradient(gradient, step["product"][rows], history, *scalars, np.empty_like(gradient))
        return gradient

    n = len(step["vector"])
    everywhere = advanced(np.arange(n))
    for rows in (rng.permutation(n), rng.integers(0, n, 5), np.array([n - 1])):
        np.testing.assert_array_equal(advanced(rows), everywhere[rows])


def test_solution(step: dict[str, np.ndarray]) -> None:
    alpha = step["vector"].copy()
    delta = np.zeros_like(alpha)
    delta[step["indices"]] = step["delta"]
    direction = delta.copy()
    scalars = step["used"], step["coefficients"], step["step"]
    moved = advance_solution(alpha, direction, step["history"], *scalars, 1000)
    expected = combined(delta, step)
    np.testing.assert_allclose(direction, expected, rtol=0, atol=1e-13)
    np.testing.assert_allclose(alpha, step["vector"] + step["step"] * expected, rtol=0, atol=1e-13)
    np.testing.assert_allclose(moved, np.sum((step["step"] * expected) ** 2, axis=0), rtol=1e-12)


def test_denormal_remnants_of_old_steps_are_dropped() -> None:
    history = np.full((1, 3, 1), 1e-190)
    direction, alpha = np.array([[0.0], [1.0], [0.0]]), np.zeros((3, 1))
    advance_solution(alpha, direction, history, np.array([0]), np.array([[1e-20]]), np.ones(1), 3)
    np.testing.assert_array_equal(direction[:, 0], [0.0, 1.0, 0.0])


@pytest.mark.parametrize("p", [1, 3])
def test_measures(rng: np.random.Generator, p: int) -> None:
    alpha, gradient, y = rng.standard_normal((3, 1000, p))
    largest, squares, same, objective = measures(alpha, gradient, y, np.zeros(0), 300)
    weight = rng.uniform(0.1, 1.0, 1000)
    np.testing.assert_allclose(measures(alpha, gradient, y, weight, 300)[2], weight @ gradient**2, rtol=1e-12)
    np.testing.assert_array_equal(same, squares)
    assert largest == np.abs(gradient).max()
    np.testing.assert_allclose(squares, np.sum(gradient**2, axis=0), rtol=1e-12)
    np.testing.assert_allclose(objective, 0.5 * np.sum(alpha * (gradient - y), axis=0), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("position", [0, 500, 999])
def test_measures_do_not_hide_what_is_not_finite(rng: np.random.Generator, position: int) -> None:
    alpha, gradient, y = rng.standard_normal((3, 1000, 1))
    gradient[position] = np.nan
    largest, squares, _, objective = measures(alpha, gradient, y, np.zeros(0), 300)
    assert np.isnan(largest)
    assert np.isnan(squares).all()
    assert np.isnan(objective).all()


@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("weighed", [False, True])
def test_sums_of_blocks_are_those_of_all_rows(rng: np.random.Generator, p: int, weighed: bool) -> None:
    """Bit for bit, where the blocks are those of a training set of that size."""
    alpha, gradient, y = rng.standard_normal((3, 2500, p))
    weight = rng.uniform(0.1, 1.0, 2500) if weighed else np.zeros(0)
    starts = range(0, 2500, block_rows(2500))
    assert len(starts) > 5
    parts = [
        Sums.of_block(*(each[start : start + block_rows(2500)] for each in (alpha, gradient, y, weight)))
        for start in starts
    ]
    whole = Sums.of(alpha, gradient, y, weight)
    assert max(part.largest for part in parts) == whole.largest
    for name in ("squares", "weighed", "objective"):
        np.testing.assert_array_equal(added(np.array([getattr(part, name) for part in parts])), getattr(whole, name))
