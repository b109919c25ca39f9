"""Block conjugate gradients, by themselves on dense matrices and behind the solvers' driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.solvers import ConjugateGradient, FactorPreconditioning, MaxIterations, MaxPasses, RelativeResidual, solve
from dkgp.solvers.conjugate import gradient as block
from dkgp.solvers.conjugate.gradient import BlockDirections, BlockState, add_product, iterate
from dkgp.solvers.stopping import Progress
from tests.solvers.problems import smooth_problem

PROBLEM = smooth_problem(300, 3, noise_variance=0.1)


def positive_definite(rng: np.random.Generator, n: int, smallest: float = 0.1) -> np.ndarray:
    vectors = np.linalg.qr(rng.normal(size=(n, n)))[0]
    return (vectors * np.geomspace(smallest, 1.0, n)) @ vectors.T


def run(
    matrix: np.ndarray, right: np.ndarray, iterations: int, directions: BlockDirections | None = None, **options: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Solution and residual, `precondition` applied where one is given."""
    precondition: Callable[[np.ndarray], np.ndarray] = options.get("precondition", np.array)
    directions = directions or BlockDirections()
    x, r = np.zeros_like(right), right.copy()
    for _ in range(iterations):
        step = directions.advance(precondition(r), r, lambda vectors: matrix @ vectors)
        add_product(x, directions.vectors, step)
        add_product(r, directions.images, -step)
    return x, r


class TestDirections:
    def test_n_over_t_iterations_solve(self, rng: np.random.Generator) -> None:
        """Krylov spaces of all columns together are exhausted after n / t."""
        matrix, right = positive_definite(rng, 60), rng.normal(size=(60, 12))
        x, r = run(matrix, right, 5)
        np.testing.assert_allclose(x, np.linalg.solve(matrix, right), atol=1e-9)
        np.testing.assert_allclose(r, right - matrix @ x, atol=1e-12)
        assert np.abs(run(matrix, right, 4)[1]).max() > 1e-4

    def test_each_iterate_is_the_best_of_its_space(self, rng: np.random.Generator) -> None:
        """In the matrix's norm, among all combinations of right-hand sides and their images under the matrix."""
        matrix, right = positive_definite(rng, 80, 1e-3), rng.normal(size=(80, 3))
        space = np.linalg.qr(np.hstack([np.linalg.matrix_power(matrix, k) @ right for k in range(4)]))[0]
        best = space @ np.linalg.solve(space.T @ matrix @ space, space.T @ right)
        np.testing.assert_allclose(run(matrix, right, 4)[0], best, atol=1e-8 * np.abs(best).max())

    def test_directions_are_conjugate_to_the_last_ones_whatever_the_preconditioner(
        self, rng: np.random.Generator
    ) -> None:
        """Even one that is another each time: what is taken out is what the images say."""
        matrix, right = positive_definite(rng, 50), rng.normal(size=(50, 4))
        directions = BlockDirections()
        run(matrix, right, 3, directions, precondition=lambda r: rng.uniform(0.5, 1.5, (50, 1)) * r)
        last, images = directions.vectors, directions.images
        directions.advance(rng.normal(size=right.shape), right, lambda vectors: matrix @ vectors)
        assert np.abs(images.T @ directions.vectors).max() < 1e-12
        assert np.abs(last.T @ last - np.eye(4)).max() < 1e-6

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_columns_may_leave(self, rng: np.random.Generator, dtype: type) -> None:
        matrix, right = positive_definite(rng, 60), rng.normal(size=(60, 6))
        directions = BlockDirections(np.zeros((0, 0), dtype))
        x, r = np.zeros_like(right), right.copy()
        for iteration in range(40):
            if iteration == 3:
                left = x[:, 2:].copy(), r[:, 2:].copy()
                x, r = x[:, :2], r[:, :2]
            step = directions.advance(r.copy(), r, lambda vectors: matrix @ vectors)
            assert directions.vectors.dtype == dtype
            assert directions.vectors.shape[1] <= (6 if iteration < 3 else 2)
            add_product(x, directions.vectors, step)
            add_product(r, directions.images, -step)
        np.testing.assert_allclose(x, np.linalg.solve(matrix, right[:, :2]), atol=1e-9)
        np.testing.assert_allclose(left[1], right[:, 2:] - matrix @ left[0], atol=1e-6)

    def test_dependent_columns_share_a_direction(self, rng: np.random.Generator) -> None:
        matrix, one = positive_definite(rng, 40), rng.normal(size=(40, 1))
        seen: list[int] = []

        def product(vectors: np.ndarray) -> np.ndarray:
            seen.append(vectors.shape[1])
            return np.asarray(matrix @ vectors)

        right = np.hstack([one, np.zeros((40, 1)), -2.0 * one, 1e-9 * one])
        step = BlockDirections().advance(right.copy(), right, product)
        assert seen == [1]
        assert not step[:, 1].any()
        np.testing.assert_allclose(step[:, 2:], step[:, :1] * [-2.0, 1e-9], rtol=1e-12)

    @pytest.mark.parametrize("residual", [0.0, np.nan, np.inf])
    def test_without_a_residual_there_is_nothing_to_gain(self, residual: float) -> None:
        right = np.full((10, 2), residual)
        step = BlockDirections().advance(right.copy(), right, lambda vectors: vectors)
        assert step.shape == (0, 2)

    def test_directions_without_curvature_are_left_out(self, rng: np.random.Generator) -> None:
        """Of an indefinite matrix, as float32 may make of one, a step goes where it goes down."""
        matrix, right = np.diag(np.where(np.arange(30) < 10, -1.0, 2.0)), rng.normal(size=(30, 30))
        directions = BlockDirections()
        step = directions.advance(right.copy(), right, lambda vectors: matrix @ vectors)
        x = directions.vectors @ step
        np.testing.assert_allclose(x[10:], right[10:] / 2.0, atol=1e-5)
        np.testing.assert_allclose(x[:10], 0.0, atol=1e-5)
        none = BlockDirections().advance(right.copy(), right, lambda vectors: -vectors)
        assert none.shape == (0, 30)

    @pytest.mark.parametrize("threads", [1, 2])
    def test_pieces_of_rows_and_columns_make_the_whole(
        self, rng: np.random.Generator, threads: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(block, "PIECE_ROWS", 16)
        monkeypatch.setattr(block, "PIECE_COLUMNS", 4)
        matrix, right = positive_definite(rng, 70), rng.normal(size=(70, 11))
        directions, last = BlockDirections(threads=threads), np.zeros((70, 0))
        for _ in range(2):
            step = directions.advance(right.copy(), right, lambda vectors: matrix @ vectors)
            P = directions.vectors
            np.testing.assert_allclose(P.T @ P, np.eye(11), atol=1e-10)
            np.testing.assert_allclose(step, np.linalg.solve(P.T @ matrix @ P, P.T @ right), rtol=1e-9, atol=1e-10)
            np.testing.assert_allclose(last.T @ matrix @ P, 0.0, atol=1e-12)
            last = P
            target, expected = right.copy(), right - matrix @ P @ step
            add_product(target, directions.images, -step, threads)
            np.testing.assert_allclose(target, expected, atol=1e-12)
            right = expected

    @pytest.mark.parametrize(("dtype", "apart", "kept"), [(np.float64, 1e-6, 4), (np.float32, 1e-6, 3)])
    def test_directions_of_float32_are_told_apart_as_far_as_it_goes(
        self, rng: np.random.Generator, dtype: type, apart: float, kept: int
    ) -> None:
        """Two columns that differ by a millionth, which float32 rounds as much; one too short for it, one of zeros."""
        unit = np.linalg.qr(rng.normal(size=(60, 4)))[0]
        right = np.column_stack([unit[:, 0], unit[:, 0] + apart * unit[:, 1], 1e-20 * unit[:, 2], 1e3 * unit[:, 3]])
        right = np.column_stack([right, np.zeros(60), 1e-32 * unit[:, 1]])
        if dtype is np.float64:
            right[:, 5] = 0.0
        matrix = positive_definite(rng, 60)
        directions = BlockDirections(np.zeros((0, 0), dtype), np.zeros((0, 0), dtype))
        step = directions.advance(right.astype(dtype), right, lambda vectors: (matrix @ vectors).astype(dtype))
        P = directions.vectors.astype(np.float64)
        assert directions.vectors.dtype == dtype
        assert P.shape == (60, kept)
        np.testing.assert_allclose(P.T @ P, np.eye(kept), atol=1e-3)
        np.testing.assert_allclose(
            step[:, :5] / np.linalg.norm(step[:, :4], axis=0).max(),
            np.linalg.solve(P.T @ matrix @ P, P.T @ right[:, :5]) / np.linalg.norm(step[:, :4], axis=0).max(),
            atol=1e-4 if dtype is np.float32 else 1e-10,
        )

    @pytest.mark.parametrize("magnitude", [1e-8, 1.0, 1e8])
    def test_curvature_of_rounding_alone_is_none(self, rng: np.random.Generator, magnitude: float) -> None:
        """Relative to the largest, and to how many there are: 30 eps of it are 6.7e-15."""
        vectors = np.linalg.qr(rng.normal(size=(30, 30)))[0]
        values = np.r_[-1e-3, 1e-15, 3e-14, np.linspace(0.5, 1.0, 27)] * magnitude
        assert block._Curvature((vectors * values) @ vectors.T).rank == 28
        # To solve with, one that rounding moves by a few per cent of it at most: 6.7e-15 are a fifth of 3e-14.
        values[2] *= 10.0
        curvature = block._Curvature((vectors * values) @ vectors.T)
        assert curvature.rank == 28
        right = vectors[:, 2:] @ rng.normal(size=(28, 2))
        expected = vectors[:, 2:] @ ((vectors[:, 2:].T @ right) / values[2:, None])
        np.testing.assert_allclose(curvature.solve(right), expected, rtol=0, atol=0.05 * np.abs(expected).max())
        assert block._Curvature(-np.eye(3)).rank == 0
        for value in (np.nan, np.inf):
            assert block._Curvature(np.diag([1.0, value])).rank == 0


class TestIterationsThatVerify:
    """Their product gives the true gradient as well, and the step along it is exact for that one."""

    def state(self, rng: np.random.Generator) -> BlockState:
        """Two iterations in, with a gradient that has drifted."""
        solver = ConjugateGradient(precision="double")
        state = solver.start(PROBLEM.dense(), PROBLEM.y)
        for _ in range(2):
            solver.advance(PROBLEM.dense(), state)
        state.gradient += 0.05 * rng.normal(size=state.gradient.shape)
        return state

    def test_the_step_is_exact_for_the_true_gradient(self, rng: np.random.Generator) -> None:
        state, asked = self.state(rng), list[Progress]()
        before, true, columns = state.alpha.copy(), PROBLEM.gradient(state.alpha), state.columns

        def moving(progress: Progress) -> bool:
            asked.append(progress)
            return True

        seconds = iterate(PROBLEM.dense(), state, -state.gradient, moving)
        assert set(seconds) == {"check", "update"}
        assert [progress.gradient_norm for progress in asked] == pytest.approx([np.linalg.norm(true)])
        P = state.directions.vectors
        assert state.gradient[:, 0] == pytest.approx(PROBLEM.gradient(state.alpha)[:, 0], abs=1e-11)
        assert np.abs(P.T @ PROBLEM.gradient(state.alpha)).max() < 1e-11
        assert PROBLEM.objective(state.alpha) < PROBLEM.objective(before)
        moved = state.alpha - before
        np.testing.assert_allclose(state.stepped, np.abs(moved), rtol=1e-9)  # of one direction
        # A product that is made anyway is no round of columns.
        assert (state.iteration, state.columns, state.exact) == (3, columns, True)

    def test_no_step_is_taken_where_none_is_wanted(self, rng: np.random.Generator) -> None:
        state = self.state(rng)
        before = state.alpha.copy()
        iterate(PROBLEM.dense(), state, -state.gradient, lambda progress: False)
        np.testing.assert_array_equal(state.alpha, before)
        np.testing.assert_allclose(state.gradient, PROBLEM.gradient(before), atol=1e-11)
        assert not state.stepped.size

    def test_other_iterations_count_their_columns_and_their_steps(self) -> None:
        solver, operator = ConjugateGradient(), PROBLEM.dense()
        state = solver.start(operator, PROBLEM.y)
        seconds = iterate(operator, state, -state.gradient)
        assert set(seconds) == {"product", "update"}
        assert min(seconds.values()) >= 0.0
        assert (state.iteration, state.columns, state.exact) == (1, 300, False)
        assert state.moved == pytest.approx(np.sum(state.alpha**2), rel=1e-4)


@pytest.fixture
def right(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(300, 5))


@pytest.mark.parametrize("rank", [None, 40])
def test_it_solves_all_right_hand_sides(executor: LocalExecutor, right: np.ndarray, rank: int | None) -> None:
    solver = ConjugateGradient(None if rank is None else FactorPreconditioning(0, rank=rank))
    found = solve(PROBLEM.blocked(executor), right, solver=solver, stopping=RelativeResidual(1e-6))
    residual = right - PROBLEM.matrix @ found.alpha
    assert (np.linalg.norm(residual, axis=0) <= 1e-6 * np.linalg.norm(right, axis=0)).all()
    np.testing.assert_allclose(found.gradient, -residual, atol=1e-9)


def test_sharing_directions_saves_passes(executor: LocalExecutor, rng: np.random.Generator) -> None:
    right, solver = rng.normal(size=(300, 12)), ConjugateGradient(FactorPreconditioning(0, rank=20))
    passes = [
        solve(PROBLEM.blocked(executor), part, solver=solver, stopping=RelativeResidual(1e-4)).progress.column_passes
        for part in (right, right[:, :1])
    ]
    assert passes[0] < 0.7 * passes[1]


def test_dependent_right_hand_sides_do_no_harm(executor: LocalExecutor, rng: np.random.Generator) -> None:
    one = rng.normal(size=(300, 1))
    right = np.hstack([one, one, -2.0 * one, np.zeros((300, 1))])
    solver = ConjugateGradient(FactorPreconditioning(0, rank=100))
    stopping = RelativeResidual(1e-4) | MaxPasses(200)
    found = solve(PROBLEM.blocked(executor), right, solver=solver, stopping=stopping)
    assert found.converged
    np.testing.assert_allclose(found.alpha[:, 2], -2.0 * found.alpha[:, 0], atol=1e-6 * np.abs(found.alpha).max())
    assert not found.alpha[:, 3].any()


def test_it_is_shown_to_who_observes(executor: LocalExecutor, right: np.ndarray) -> None:
    seen: list[tuple[int, float]] = []
    solver = ConjugateGradient(observe=lambda state: seen.append((state.iteration, float(np.abs(state.alpha).max()))))
    solve(PROBLEM.blocked(executor), right, solver=solver, stopping=MaxIterations(3))
    assert [iteration for iteration, _ in seen] == [0, 1, 2]
    assert seen[0][1] == 0.0 < seen[1][1]


@pytest.mark.parametrize("solver", [ConjugateGradient(), ConjugateGradient(FactorPreconditioning(0, rank=20))])
def test_a_checkpoints_state_goes_on(executor: LocalExecutor, right: np.ndarray, solver: ConjugateGradient) -> None:
    operator = PROBLEM.blocked(executor)
    state = solver.start(operator, right)
    for _ in range(3):
        solver.advance(operator, state)
    arrays = {name: values.copy() for name, values in state.arrays().items()}
    again = solver.restore(operator, right, arrays, state.metadata())
    for one in (state, again):
        solver.advance(operator, one)
    assert again.alpha.tobytes() == state.alpha.tobytes()
    assert again.iteration == state.iteration == 4
    # One of before directions were shared has none of these: the search starts anew from its solution.
    old = {name: values for name, values in arrays.items() if name not in ("directions", "images")}
    restarted = solver.restore(operator, right, old, state.metadata())
    before = np.abs(restarted.gradient).max()
    for _ in range(4):
        solver.advance(operator, restarted)
    assert np.abs(restarted.gradient).max() < before


def test_float32_without_curvature_goes_on_in_float64(right: np.ndarray) -> None:
    """Little noise beside samples that are alike: float32 tiles need not be positive definite."""
    operator, solver = PROBLEM.dense(), ConjugateGradient()
    exact = operator.matmat
    operator.matmat = lambda vectors, precision="double": exact(vectors) if precision == "double" else -vectors
    state = solver.start(operator, right)
    solver.advance(operator, state)
    assert (state.precision, state.iteration, state.columns) == ("double", 1, 300)
    assert not state.alpha.any()
    found = solve(operator, right, solver=solver, stopping=RelativeResidual(1e-8))
    np.testing.assert_allclose(found.alpha, np.linalg.solve(PROBLEM.matrix, right), atol=1e-6)


def test_what_float32_tiles_without_curvature_have_come_to_is_computed_anew(
    right: np.ndarray, rng: np.random.Generator
) -> None:
    operator, solver = PROBLEM.dense(), ConjugateGradient()
    state = solver.start(operator, right)
    solver.advance(operator, state)
    state.gradient += 0.1 * rng.normal(size=right.shape)
    exact = operator.matmat
    operator.matmat = lambda vectors, precision="double": exact(vectors) if precision == "double" else -vectors
    alpha = state.alpha.copy()
    solver.advance(operator, state)
    assert (state.precision, state.exact) == ("double", True)
    np.testing.assert_array_equal(state.alpha, alpha)
    np.testing.assert_allclose(state.gradient, PROBLEM.matrix @ alpha - right, atol=1e-11)
