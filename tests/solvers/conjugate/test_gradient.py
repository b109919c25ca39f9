"""Conjugate gradients, and their block recursion."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg

from dkgp.cluster import LocalExecutor
from dkgp.errors import UsageError
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.low_rank.factor import LowRankFactor, LowRankPreconditioner
from dkgp.solvers import (
    ConjugateGradient,
    DualityGap,
    FactorPreconditioning,
    GradientInfNorm,
    KernelConjugateGradient,
    MaxIterations,
    MaxPasses,
    ParameterConjugateGradient,
    RelativeResidual,
    solve,
)
from dkgp.solvers.conjugate import gradient as block
from dkgp.solvers.conjugate.gradient import BlockDirections, BlockState, add_product, iterate
from dkgp.solvers.conjugate.kernel_cg import LeastSquaresState
from dkgp.solvers.conjugate.preconditioner import Growth, Price
from dkgp.solvers.prices import Sizes
from dkgp.solvers.registry import SolverMemory, resuming, solver_memory
from dkgp.solvers.stopping import Progress
from tests.solvers.problems import arm_problem, smooth_problem

PROBLEM = smooth_problem(300, 3, noise_variance=0.1)


# One variance for all samples, and one for each.
by_noise = pytest.mark.parametrize(
    "noise", [0.1, 0.1 * 30.0 ** np.random.default_rng(3).random(300)], ids=["one", "by sample"]
)


def alphas(solver, executor: LocalExecutor, iterations: int, noise: Any = 0.1) -> list[np.ndarray]:
    """Solutions after 1, 2, ... iterations in float64."""
    return [
        solve(
            BlockedKernelOperator(PROBLEM.kernel, noise, ArrayInputs(PROBLEM.X), executor),
            PROBLEM.y,
            solver=solver,
            stopping=GradientInfNorm(1e-14) | MaxIterations(count),
        ).alpha[:, 0]
        for count in range(1, iterations + 1)
    ]


def textbook(A: np.ndarray, b: np.ndarray, iterations: int, M=None) -> list[np.ndarray]:
    """SciPy's conjugate gradients, iterate by iterate."""
    found: list[np.ndarray] = []
    scipy.sparse.linalg.cg(A, b, rtol=0.0, maxiter=iterations, M=M, callback=lambda x: found.append(x.copy()))
    return found


def test_plain_iterates_are_the_textbooks(executor: LocalExecutor) -> None:
    ours = alphas(ConjugateGradient(precision="double"), executor, 8)
    for mine, theirs in zip(ours, textbook(PROBLEM.matrix, PROBLEM.y[:, 0], 8), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-9)


def test_float32_products_and_not_the_algorithm_cost_iterations(executor: LocalExecutor) -> None:
    """In float64 the count is a naive transcription's; float32 products lose conjugacy in the transcription, too."""
    problem = smooth_problem(300, 3, noise_variance=1e-3)

    def naive(matrix: np.ndarray) -> int:
        residual = problem.y[:, 0]
        direction, count = residual.copy(), 0
        while np.abs(residual).max() > 1e-4:
            image = (matrix @ direction.astype(matrix.dtype)).astype(np.float64)
            last, residual = residual, residual - (residual @ residual) / (direction @ image) * image
            direction = residual + (residual @ residual) / (last @ last) * direction
            count += 1
        return count

    def iterations(precision: Any) -> int:
        solver, rule = ConjugateGradient(precision=precision), GradientInfNorm(1e-4)
        return solve(problem.blocked(executor), problem.y, solver=solver, stopping=rule).progress.iteration

    double, single = naive(problem.matrix), naive(problem.matrix.astype(np.float32))
    assert single > 1.4 * double
    assert iterations("double") == pytest.approx(double, rel=0.1)
    assert iterations("mixed") > 1.4 * double


def test_preconditioned_iterates_are_the_textbooks(executor: LocalExecutor) -> None:
    settings = FactorPreconditioning(0, rank=20)
    preconditioner = settings.build(PROBLEM.blocked(executor))
    M = scipy.sparse.linalg.LinearOperator(
        (300, 300), matvec=lambda r: preconditioner.apply(np.reshape(r, (300, 1)))[:, 0], dtype=np.float64
    )
    ours = alphas(ConjugateGradient(settings, precision="double"), executor, 6)
    for mine, theirs in zip(ours, textbook(PROBLEM.matrix, PROBLEM.y[:, 0], 6, M), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-8)


@by_noise
def test_kernel_cg_is_algorithm_1(executor: LocalExecutor, noise: Any) -> None:
    """For the risk with squares weighted by W the functional gradient is W (K alpha - y) + s2 alpha."""
    s2 = np.min(noise)
    K = PROBLEM.matrix - PROBLEM.noise_variance * np.eye(300)
    W = np.diag(s2 / np.broadcast_to(noise, 300))
    y = PROBLEM.y[:, 0]
    A = K @ W @ K + s2 * K
    alpha, gamma = np.zeros(300), -W @ y
    h = -gamma
    expected = []
    for _ in range(8):
        alpha = alpha - (gamma @ K @ h) / (h @ A @ h) * h
        new = W @ (K @ alpha - y) + s2 * alpha
        eta = ((new - gamma) @ K @ new) / (gamma @ K @ gamma)
        h, gamma = -new + eta * h, new
        expected.append(alpha)
    for mine, theirs in zip(alphas(KernelConjugateGradient("double"), executor, 8, noise), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-8)


@by_noise
def test_parameter_cg_is_cg_on_the_risks_hessian(executor: LocalExecutor, noise: Any) -> None:
    s2 = np.min(noise)
    K = PROBLEM.matrix - PROBLEM.noise_variance * np.eye(300)
    W = np.diag(s2 / np.broadcast_to(noise, 300))
    A, b = K @ W @ K + s2 * K, K @ W @ PROBLEM.y[:, 0]
    ours = alphas(ParameterConjugateGradient("double"), executor, 6, noise)
    for mine, theirs in zip(ours, textbook(A, b, 6), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-8)


@by_noise
def test_parameter_cg_knows_how_far_its_risk_is_from_the_least(executor: LocalExecutor, noise: Any) -> None:
    s2 = np.min(noise)
    K = PROBLEM.matrix - PROBLEM.noise_variance * np.eye(300)
    weights = s2 / np.broadcast_to(noise, 300)
    y = PROBLEM.y[:, 0]

    def risk(alpha: np.ndarray) -> float:
        left = y - K @ alpha
        return float(0.5 * weights @ left**2 + 0.5 * s2 * alpha @ K @ alpha)

    least = risk(np.linalg.solve(K + np.diag(np.broadcast_to(noise, 300)), y))
    operator = BlockedKernelOperator(PROBLEM.kernel, noise, ArrayInputs(PROBLEM.X), executor)
    zero = np.zeros_like(PROBLEM.y)
    state = LeastSquaresState(zero.copy(), zero, PROBLEM.y, precision="double")
    state.begin(operator, False, None)
    solver = ParameterConjugateGradient("double")
    for _ in range(5):
        alpha = state.alpha[:, 0].copy()
        beta = weights * (y - K @ alpha) / s2
        solver.advance(operator, state)
        # The gap to that function's dual, no smaller than what is left.
        np.testing.assert_allclose(state.risk_width, (alpha - beta) @ K @ (alpha - beta) * s2 / 2.0, rtol=1e-9)
        assert risk(alpha) - least <= state.risk_width


def test_products_are_counted(executor: LocalExecutor) -> None:
    for solver, each in ((ConjugateGradient(), 1), (KernelConjugateGradient(), 1), (ParameterConjugateGradient(), 2)):
        solution = solve(PROBLEM.blocked(executor), PROBLEM.y, solver=solver, stopping=MaxIterations(5))
        assert solution.progress.column_passes == 5 * each


def test_kernel_cg_needs_at_most_twice_the_root_of_parameter_cgs_iterations(executor: LocalExecutor) -> None:
    """The theorem of section 5, on a kernel matrix regular enough for parameter CG to end."""
    problem = smooth_problem(300, 3, noise_variance=0.3, gamma=6.0)
    stopping = GradientInfNorm(1e-3) | MaxIterations(4000)
    counts = {}
    for solver in (KernelConjugateGradient("double"), ParameterConjugateGradient("double")):
        solution = solve(problem.blocked(executor), problem.y, solver=solver, stopping=stopping)
        assert solution.converged
        counts[solver.name] = solution.progress.iteration
    assert counts["kcg"] <= 2.0 * np.sqrt(counts["paramcg"])


class TestLowRankAlone:
    def test_it_is_the_inverse_of_its_own_matrix(self, executor: LocalExecutor, rng: np.random.Generator) -> None:
        operator = PROBLEM.blocked(executor)
        landmarks = np.array([5, 17, 40, 100, 299])
        factor = LowRankFactor(operator, landmarks)
        K = PROBLEM.matrix - 0.1 * np.eye(300)
        Q = K[:, landmarks] @ np.linalg.solve(K[np.ix_(landmarks, landmarks)], K[landmarks])
        R = rng.standard_normal((300, 3))
        np.testing.assert_allclose(factor.expand(factor.project(R)), Q @ R, rtol=0, atol=1e-5)
        np.testing.assert_allclose(
            LowRankPreconditioner(factor, 0.1).apply(R), np.linalg.solve(Q + 0.1 * np.eye(300), R), rtol=0, atol=1e-4
        )

    def test_of_full_rank_it_solves_in_a_few_iterations(self, executor: LocalExecutor) -> None:
        problem = arm_problem(400)
        plain, full = (
            solve(problem.blocked(executor), problem.y, solver=ConjugateGradient(chosen))
            for chosen in (None, FactorPreconditioning(0, rank=400))
        )
        assert full.converged
        assert full.progress.iteration <= 5
        assert plain.progress.iteration > 10 * full.progress.iteration

    def test_pivots_beat_chance(self, executor: LocalExecutor) -> None:
        """Clustered inputs: a uniform draw leaves the rare ones out."""
        problem = smooth_problem(600, 2, noise_variance=1e-3)
        problem.X[:560] *= 0.05
        counts = {}
        for landmarks in ("pivoted", "uniform"):
            solver = ConjugateGradient(FactorPreconditioning(0, rank=40, landmarks=landmarks))
            solution = solve(problem.blocked(executor), problem.y, solver=solver)
            assert solution.converged
            counts[landmarks] = solution.progress.iteration
        assert counts["pivoted"] < counts["uniform"]

    def test_an_operator_without_blocks_is_refused(self) -> None:
        with pytest.raises(UsageError, match="BlockedKernelOperator; got DenseKernelOperator"):
            solve(PROBLEM.dense(), PROBLEM.y, solver=ConjugateGradient(FactorPreconditioning(0, rank=5)))


@pytest.mark.parametrize("precision", ["double", "mixed"])
def test_parameter_cg_knows_how_near_the_risk_is(executor: LocalExecutor, precision: str) -> None:
    """On a smooth kernel most of g lies where K sees nothing of it: the bound of Theorem 1 hardly comes down."""
    problem = smooth_problem(300, 2, targets=2, noise_variance=0.1, gamma=0.2)
    least = problem.risk(problem.solution)
    solver, seen = ParameterConjugateGradient(precision), []
    with problem.blocked(executor) as operator:
        state = solver.start(operator, problem.y)
        for _ in range(30):
            before = problem.risk(state.alpha)
            solver.advance(operator, state)
            # The width is of the risk before the step, and the step lowers that.
            assert before - least <= state.risk_width * (1 + 1e-5) + 1e-9
            assert problem.risk(state.alpha) <= before + 1e-9
            seen.append((state.risk_width, 0.5 * float(np.sum(state.gradient**2))))
    assert seen[-1][0] < (1e-2 if precision == "double" else 1e-1) * seen[-1][1]
    solution = solve(
        problem.blocked(executor), problem.y, solver=solver, stopping=DualityGap(1e-3) | MaxIterations(300)
    )
    assert solution.reason.rule == "duality_gap"
    assert problem.risk(solution.alpha) - least <= 1e-3 * (0.5 * float(np.sum(problem.y**2)) - least)


def test_what_parameter_cg_knows_of_the_risk_outlives_a_break() -> None:
    problem = smooth_problem(60, 2)
    solver, operator = ParameterConjugateGradient("double"), problem.dense()
    state = solver.start(operator, problem.y)
    assert state.metadata()["risk_width"] is None
    solver.advance(operator, state)
    again = solver.restore(operator, problem.y, dict(state.arrays()), state.metadata())
    assert again.risk_width == state.risk_width < np.inf
    # Checkpoints of before there was such a bound.
    old = {name: value for name, value in state.metadata().items() if name != "risk_width"}
    assert solver.restore(operator, problem.y, dict(state.arrays()), old).risk_width == np.inf
    # Evaluated in float32, it is not proven.
    state.precision = "single"
    state.renew_gradient(operator)
    assert state.risk_width == np.inf


@pytest.mark.parametrize(
    ("solver", "preconditioning"),
    [
        (ConjugateGradient(), {"precondition": 0}),
        (ConjugateGradient(FactorPreconditioning(0, rank=5)), {"factor": 1_000, "precondition": 100}),
    ],
)
def test_seconds_are_reported_by_phase(
    executor: LocalExecutor,
    solver: ConjugateGradient,
    preconditioning: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr("dkgp.solvers.conjugate.gradient.time", clock)
    monkeypatch.setattr("dkgp.solvers.conjugate.gradient.time", clock)

    def lasting(owner: type, name: str, seconds: int) -> None:
        method = getattr(owner, name)

        def timed(*args: Any) -> Any:
            now[0] += seconds
            return method(*args)

        monkeypatch.setattr(owner, name, timed)

    with PROBLEM.blocked(executor) as operator:
        state = solver.start(operator, PROBLEM.y)
        lasting(FactorPreconditioning, "build", 1_000)
        lasting(LowRankPreconditioner, "apply", 100)
        lasting(BlockedKernelOperator, "matmat", 10)
        lasting(BlockDirections, "advance", 1)
        assert solver.advance(operator, state) == {**preconditioning, "product": 10, "update": 1}
        if "factor" in preconditioning:  # it is built once
            preconditioning = {"factor": 0, "precondition": 100}
        assert solver.advance(operator, state) == {**preconditioning, "product": 10, "update": 1}


def test_gradients_are_renewed_by_a_rounds_own_product_unless_products_are_approximate() -> None:
    solver: Any = ConjugateGradient()
    assert solver.renews_in_rounds(SimpleNamespace(approximate=False)) is True
    assert solver.renews_in_rounds(SimpleNamespace(approximate=True)) is False


@pytest.mark.parametrize("precision", ["single", "double"])
def test_a_larger_factor_is_weighed_by_the_prices_of_the_rounds_to_come(
    executor: LocalExecutor, precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, Price, Price]] = []
    monkeypatch.setattr(Growth, "is_worth", lambda self, *terms: asked.append(terms) or True)
    first = FactorPreconditioning(16, 16, 0)
    solver = ConjugateGradient(first)
    with PROBLEM.blocked(executor) as operator:
        state = solver.start(operator, PROBLEM.y)
        state.precision, state.needed_fall = precision, 77.0
        for _ in range(2):
            solver.advance(operator, state)
    sizes = Sizes(300, 3, 1, precision == "double")
    factors = [first.grown(300, level) for level in range(3)]
    assert [factor.halo for factor in factors] == [16, 32, 64]
    prices = [factor.price(sizes) for factor in factors]
    assert asked == [(77.0, prices[0], prices[1]), (77.0, prices[1], prices[2])]
    assert state.growth.level == 2


def test_a_factor_that_cannot_grow_does_not(executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Growth, "is_worth", lambda self, *terms: True)
    solver = ConjugateGradient(FactorPreconditioning(200, 100, 0))
    with PROBLEM.blocked(executor) as operator:
        state = solver.start(operator, PROBLEM.y)
        solver.advance(operator, state)
        factor = state.preconditioner
        solver.advance(operator, state)
    assert state.growth.level == 0
    assert state.preconditioner is factor


def test_memory_is_of_the_directions_the_round_that_verifies_and_the_factor() -> None:
    assert solver_memory(ConjugateGradient(), 10_000, 8) == SolverMemory(memory=2, repeats_products=True)
    factor = FactorPreconditioning().resolved(10_000, 8)
    found, own = solver_memory(ConjugateGradient(factor), 10_000, 8), factor.memory(10_000, 8)
    assert (found.memory, found.repeats_products) == (2, True)
    assert (found.own_bytes, found.factor_bytes, found.cached_bytes) == (
        own.own_bytes,
        own.factor_bytes,
        own.cached_bytes,
    )


@pytest.mark.parametrize(
    ("preconditioner", "expected"),
    [
        (FactorPreconditioning(40, 20, 0).settings(), "`solver` pcg, `halo` 40, `leaf` 20, `rank` 0"),
        (FactorPreconditioning(0, rank=7).settings(), "`solver` pcg, `halo` 0, `rank` 7"),
        ({}, "`solver` pcg, `halo` 0"),  # of before there was a halo
    ],
)
def test_a_checkpoint_tells_which_options_resume_it(preconditioner: dict[str, Any], expected: str) -> None:
    assert resuming({"solver": "pcg", "preconditioner": preconditioner}) == expected


PROBLEM_BLOCK = smooth_problem(300, 3, noise_variance=0.1)


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
        """For an indefinite matrix, which float32 may produce, a step goes downhill."""
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
        state = solver.start(PROBLEM_BLOCK.dense(), PROBLEM_BLOCK.y)
        for _ in range(2):
            solver.advance(PROBLEM_BLOCK.dense(), state)
        state.gradient += 0.05 * rng.normal(size=state.gradient.shape)
        return state

    def test_the_step_is_exact_for_the_true_gradient(self, rng: np.random.Generator) -> None:
        state, asked = self.state(rng), list[Progress]()
        before, true, columns = state.alpha.copy(), PROBLEM_BLOCK.gradient(state.alpha), state.columns

        def moving(progress: Progress) -> bool:
            asked.append(progress)
            return True

        seconds = iterate(PROBLEM_BLOCK.dense(), state, -state.gradient, moving)
        assert set(seconds) == {"check", "update"}
        assert [progress.gradient_norm for progress in asked] == pytest.approx([np.linalg.norm(true)])
        P = state.directions.vectors
        assert state.gradient[:, 0] == pytest.approx(PROBLEM_BLOCK.gradient(state.alpha)[:, 0], abs=1e-11)
        assert np.abs(P.T @ PROBLEM_BLOCK.gradient(state.alpha)).max() < 1e-11
        assert PROBLEM_BLOCK.objective(state.alpha) < PROBLEM_BLOCK.objective(before)
        moved = state.alpha - before
        np.testing.assert_allclose(state.stepped, np.abs(moved), rtol=1e-9)  # of one direction
        # A product that is made anyway is no round of columns.
        assert (state.iteration, state.columns, state.exact) == (3, columns, True)

    def test_no_step_is_taken_where_none_is_wanted(self, rng: np.random.Generator) -> None:
        state = self.state(rng)
        before = state.alpha.copy()
        iterate(PROBLEM_BLOCK.dense(), state, -state.gradient, lambda progress: False)
        np.testing.assert_array_equal(state.alpha, before)
        np.testing.assert_allclose(state.gradient, PROBLEM_BLOCK.gradient(before), atol=1e-11)
        assert not state.stepped.size

    def test_other_iterations_count_their_columns_and_their_steps(self) -> None:
        solver, operator = ConjugateGradient(), PROBLEM_BLOCK.dense()
        state = solver.start(operator, PROBLEM_BLOCK.y)
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
    found = solve(PROBLEM_BLOCK.blocked(executor), right, solver=solver, stopping=RelativeResidual(1e-6))
    residual = right - PROBLEM_BLOCK.matrix @ found.alpha
    assert (np.linalg.norm(residual, axis=0) <= 1e-6 * np.linalg.norm(right, axis=0)).all()
    np.testing.assert_allclose(found.gradient, -residual, atol=1e-9)


def test_sharing_directions_saves_passes(executor: LocalExecutor, rng: np.random.Generator) -> None:
    right, solver = rng.normal(size=(300, 12)), ConjugateGradient(FactorPreconditioning(0, rank=20))
    passes = [
        solve(
            PROBLEM_BLOCK.blocked(executor), part, solver=solver, stopping=RelativeResidual(1e-4)
        ).progress.column_passes
        for part in (right, right[:, :1])
    ]
    assert passes[0] < 0.7 * passes[1]


def test_dependent_right_hand_sides_do_no_harm(executor: LocalExecutor, rng: np.random.Generator) -> None:
    one = rng.normal(size=(300, 1))
    right = np.hstack([one, one, -2.0 * one, np.zeros((300, 1))])
    solver = ConjugateGradient(FactorPreconditioning(0, rank=100))
    stopping = RelativeResidual(1e-4) | MaxPasses(200)
    found = solve(PROBLEM_BLOCK.blocked(executor), right, solver=solver, stopping=stopping)
    assert found.converged
    np.testing.assert_allclose(found.alpha[:, 2], -2.0 * found.alpha[:, 0], atol=1e-6 * np.abs(found.alpha).max())
    assert not found.alpha[:, 3].any()


def test_it_is_shown_to_who_observes(executor: LocalExecutor, right: np.ndarray) -> None:
    seen: list[tuple[int, float]] = []
    solver = ConjugateGradient(observe=lambda state: seen.append((state.iteration, float(np.abs(state.alpha).max()))))
    solve(PROBLEM_BLOCK.blocked(executor), right, solver=solver, stopping=MaxIterations(3))
    assert [iteration for iteration, _ in seen] == [0, 1, 2]
    assert seen[0][1] == 0.0 < seen[1][1]


@pytest.mark.parametrize("solver", [ConjugateGradient(), ConjugateGradient(FactorPreconditioning(0, rank=20))])
def test_a_checkpoints_state_goes_on(executor: LocalExecutor, right: np.ndarray, solver: ConjugateGradient) -> None:
    operator = PROBLEM_BLOCK.blocked(executor)
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
    operator, solver = PROBLEM_BLOCK.dense(), ConjugateGradient()
    exact = operator.matmat
    operator.matmat = lambda vectors, precision="double": exact(vectors) if precision == "double" else -vectors
    state = solver.start(operator, right)
    solver.advance(operator, state)
    assert (state.precision, state.iteration, state.columns) == ("double", 1, 300)
    assert not state.alpha.any()
    found = solve(operator, right, solver=solver, stopping=RelativeResidual(1e-8))
    np.testing.assert_allclose(found.alpha, np.linalg.solve(PROBLEM_BLOCK.matrix, right), atol=1e-6)


def test_what_float32_tiles_without_curvature_have_come_to_is_computed_anew(
    right: np.ndarray, rng: np.random.Generator
) -> None:
    operator, solver = PROBLEM_BLOCK.dense(), ConjugateGradient()
    state = solver.start(operator, right)
    solver.advance(operator, state)
    state.gradient += 0.1 * rng.normal(size=right.shape)
    exact = operator.matmat
    operator.matmat = lambda vectors, precision="double": exact(vectors) if precision == "double" else -vectors
    alpha = state.alpha.copy()
    solver.advance(operator, state)
    assert (state.precision, state.exact) == ("double", True)
    np.testing.assert_array_equal(state.alpha, alpha)
    np.testing.assert_allclose(state.gradient, PROBLEM_BLOCK.matrix @ alpha - right, atol=1e-11)
