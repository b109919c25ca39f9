"""Properties that every solver shares: several targets, other kernels, noise by sample, kernel entries."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.errors import CheckpointError, InputError, NumericalError
from dkgp.kernels import SquaredExponential, TileEvaluator, parse_kernel
from dkgp.models.certificate import Certificate
from dkgp.operators import ArrayInputs, BlockedKernelOperator, CachedColumnsOperator, ProductError
from dkgp.operators.low_rank.factor import LowRankFactor, LowRankPreconditioner
from dkgp.solvers import (
    Cholesky,
    ConjugateGradient,
    CyclicSelection,
    DualityGap,
    FactorPreconditioning,
    GradientInfNorm,
    GradientSelection,
    GreedyBlockCoordinateDescent,
    GreedySelection,
    KernelConjugateGradient,
    MaxIterations,
    MaxPasses,
    ParameterConjugateGradient,
    SequentialMinimalOptimization,
    Solution,
    Solver,
    StoppingRule,
    TiledCholesky,
    solve,
)
from dkgp.solvers.block_descent.selection import Subproblem
from dkgp.solvers.driver import Watch
from dkgp.solvers.losses import SquaredLoss
from dkgp.solvers.registry import declaration_of, solver_names
from dkgp.solvers.risk import minimise_risk
from tests.benchmark_data import standardised
from tests.covering import few
from tests.resuming import Resuming, require_same_bits
from tests.solvers.problems import OverlappingExecutor, Problem, smooth_problem

SOLVERS: dict[str, Any] = {
    "gbcd": GreedyBlockCoordinateDescent(block_size=40),
    "gbcd-growing": GreedyBlockCoordinateDescent(block_size=10, largest_block_size=60),
    "gbcd-paper": GreedyBlockCoordinateDescent(40, 0, GreedySelection(variables_per_step=1)),
    "gbcd-prefitting": GreedyBlockCoordinateDescent(30, selection=GreedySelection(prefitting=True)),
    "gbcd-exhaustive": GreedyBlockCoordinateDescent(30, selection=GreedySelection(exhaustive=True)),
    "bcdc": GreedyBlockCoordinateDescent(block_size=40, selection=CyclicSelection()),
    "bcdg": GreedyBlockCoordinateDescent(block_size=40, selection=GradientSelection()),
    "smo": SequentialMinimalOptimization(),
    "cg": ConjugateGradient(),
    "pcg": ConjugateGradient(FactorPreconditioning(40, 20, 10)),
    "pcg-low-rank": ConjugateGradient(FactorPreconditioning(0, rank=30)),
    "pcg-nystrom": ConjugateGradient(FactorPreconditioning(0, rank=30, landmarks="uniform")),
    "kcg": KernelConjugateGradient(),
    "paramcg": ParameterConjugateGradient(),
    "cholesky": Cholesky(),
    "tiled-cholesky": TiledCholesky(tile_rows=64),
}
# Factors of the matrix; others come closer round by round.
DIRECT = ("cholesky", "tiled-cholesky")
# Other choices of the same steps, whose answer is asked for with noise by sample: the rest is seen by gbcd.
CHOICES = ("gbcd-prefitting", "gbcd-exhaustive")
# Short length scales and much noise: parameter CG squares the condition number, and is to end some day.
PROBLEM = smooth_problem(260, 3, targets=2, noise_variance=0.3, gamma=6.0)
every_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())


def all_but(*names: str) -> pytest.MarkDecorator:
    kept = {name: solver for name, solver in SOLVERS.items() if name not in names}
    return pytest.mark.parametrize("solver", kept.values(), ids=kept.keys())


def solved(
    solver: Any,
    executor: Any,
    problem: Problem = PROBLEM,
    *,
    tolerance: float = 1e-4,
    stopping: StoppingRule | None = None,
    initial: np.ndarray | None = None,
    **watch: Any,
) -> Solution:
    rule = stopping or GradientInfNorm(tolerance) | MaxPasses(2000.0)
    operator = problem.blocked(executor)
    return solve(operator, problem.y, solver=solver, stopping=rule, initial=initial, watch=Watch(**watch))


@pytest.fixture(scope="module")
def whole(executor: LocalExecutor) -> Callable[[Any], Solution]:
    """A solver's run to its end on two threads; each is made once."""
    return functools.cache(lambda solver: solved(solver, executor))


def in_double(solver: Any) -> Any:
    return solver if solver.precision == "double" else replace(solver, precision="double")


def test_the_suite_has_every_solver_that_is_declared() -> None:
    named = {name.split("-")[0] if name != "tiled-cholesky" else name for name in SOLVERS}
    assert named == {name for name in solver_names() if declaration_of(name).build.__module__.startswith("dkgp.")}


@all_but(*CHOICES)
def test_the_answer_of_dense_cholesky(solver: Any, executor: LocalExecutor) -> None:
    solution = solved(in_double(solver), executor, tolerance=1e-9)
    assert solution.converged
    error = np.linalg.norm(solution.alpha - PROBLEM.solution) / np.linalg.norm(PROBLEM.solution)
    assert error < 1e-6


@pytest.mark.spread(6)
@all_but(*CHOICES)
def test_single_precision_tiles_end_in_a_true_gradient(solver: Any, whole: Callable[[Any], Solution]) -> None:
    solution = whole(solver)
    assert solution.converged
    true = PROBLEM.gradient(solution.alpha)
    assert np.abs(true).max() <= 1e-4 * (1 + 1e-6)
    np.testing.assert_allclose(solution.gradient, true, rtol=0, atol=1e-10)


@pytest.mark.spread(11)
@pytest.mark.parametrize("largest", [1e39, 1e150, 1e300])
@all_but(*CHOICES, "gbcd-growing", "gbcd-paper", "pcg-nystrom")
def test_noise_beyond_float32_ends_in_the_answer_or_in_words(
    solver: Any, largest: float, executor: LocalExecutor
) -> None:
    """No rule limits these solves; samples of such noise say nothing, and the others are as without them."""
    y = PROBLEM.y[:120] / 10.0
    X, noise = PROBLEM.X[:120], np.full(120, 0.3)
    y[:4], noise[:4] = y[:4] + 6.0, largest
    rule, operator = GradientInfNorm(1e-4), BlockedKernelOperator(PROBLEM.kernel, noise, ArrayInputs(X), executor)
    if solver.name == "paramcg":
        with pytest.raises(NumericalError, match="broke down in float64"):
            solve(operator, y, solver=solver, stopping=rule)
        return
    solution = solve(operator, y, solver=solver, stopping=rule)
    K = PROBLEM.kernel(X, X)
    np.testing.assert_allclose(solution.gradient, K @ solution.alpha + noise[:, None] * solution.alpha - y, atol=1e-9)
    if solver.name == "cg":  # without a preconditioner: its condition number is that of the noise
        # By the processor's roundings it is found by its rounds, or by the gradient in float64.
        assert solution.reason.rule in ("standstill", "rounding")
        assert not solution.converged
        return
    assert solution.converged
    kept = slice(4, None)
    expected = np.linalg.solve(K[kept, kept] + 0.3 * np.eye(116), y[kept])
    np.testing.assert_allclose(solution.alpha[kept], expected, atol=5e-4)
    np.testing.assert_allclose(noise[:4, None] * solution.alpha[:4], y[:4] - K[:4, kept] @ expected, atol=5e-4)
    warm = solve(operator, y, solver=solver, stopping=rule, initial=solution.alpha)
    assert (warm.converged, warm.history) == (True, [])


@pytest.mark.long
@all_but(*CHOICES)
def test_each_target_as_if_it_were_alone(solver: Any, executor: LocalExecutor) -> None:
    """A target that is solved at once (zero) or later must not disturb the others."""
    y = np.column_stack([PROBLEM.y[:, 0], np.zeros(260), 1e-3 * PROBLEM.y[:, 1]])
    solution = solved(in_double(solver), executor, replace(PROBLEM, y=y), tolerance=1e-10)
    assert solution.converged
    expected = np.column_stack([PROBLEM.solution[:, 0], np.zeros(260), 1e-3 * PROBLEM.solution[:, 1]])
    np.testing.assert_allclose(solution.alpha, expected, rtol=0, atol=1e-8)
    assert not solution.alpha[:, 1].any()


@all_but(*CHOICES)
def test_started_at_the_answer_it_does_nothing(solver: Any, executor: LocalExecutor) -> None:
    nothing = replace(PROBLEM, y=np.zeros((260, 2)))
    for problem, answer in ((PROBLEM, PROBLEM.solution), (nothing, None)):
        solution = solved(solver, executor, problem, initial=answer)
        assert solution.converged
        assert (solution.progress.iteration, solution.history) == (0, [])
        np.testing.assert_array_equal(solution.alpha, nothing.y if answer is None else answer)


@all_but(*DIRECT, *CHOICES)
def test_a_start_near_the_answer_saves_passes(
    solver: Any, executor: LocalExecutor, whole: Callable[[Any], Solution], rng: np.random.Generator
) -> None:
    near = PROBLEM.solution * (1 + 1e-3 * rng.standard_normal((260, 2)))
    warm, cold = solved(solver, executor, initial=near), whole(solver)
    assert warm.converged
    assert 0 < warm.progress.column_passes < cold.progress.column_passes


@all_but(*CHOICES)
def test_the_duality_gap_is_a_stopping_rule(solver: Any, executor: LocalExecutor) -> None:
    solution = solved(solver, executor, stopping=DualityGap(1e-3) | MaxPasses(2000.0))
    assert solution.reason.rule == "duality_gap"
    least = PROBLEM.risk(PROBLEM.solution)
    assert 0.0 <= PROBLEM.risk(solution.alpha) - least <= 1e-3 * (0.5 * np.sum(PROBLEM.y**2) - least)


@pytest.mark.spread(6)
@all_but(*CHOICES)
def test_the_same_bits_on_any_number_of_threads(solver: Any, whole: Callable[[Any], Solution]) -> None:
    executor = LocalExecutor(5)  # one thread against three: tests/engine/test_every_solver.py
    require_same_bits(solved(solver, executor), whole(solver))
    executor.close()


@pytest.mark.spread(6)
@every_solver
def test_broken_off_anywhere_and_resumed_it_ends_in_the_same_bits(
    solver: Any, executor: LocalExecutor, whole: Callable[[Any], Solution], tmp_path: Path
) -> None:
    """Interrupted, or stopped by a limit."""
    rounds = whole(solver).progress.iteration
    assert rounds >= (1 if solver.name == "cholesky" else 2)
    # Other choices of GBCD's steps halfway alone: what begins anew or has done one round is seen by it.
    early = () if solver.name == "gbcd" and solver != SOLVERS["gbcd"] else (0, 1)
    kept = Resuming(functools.partial(solved, solver, executor), tmp_path, data="a")
    for stop in sorted({min(stop, rounds // 2) for stop in (*early, rounds)}):
        kept.interrupt(stop)
        kept.require_same(whole(solver))
    kept.require_refused("another run", identity={"data": "b"})
    if rounds > 1:
        short = kept.start(stopping=GradientInfNorm(1e-4) | MaxIterations((rounds + 1) // 2))
        assert (short.converged, short.reason.rule) == (False, "max_iterations")
        kept.require_same(whole(solver))


@all_but("paramcg", *CHOICES)
def test_one_sample_and_equal_samples(solver: Any, executor: LocalExecutor) -> None:
    kernel = SquaredExponential((1.0, 2.0))
    for X in (np.ones((1, 2)), np.ones((7, 2)), np.repeat([[0.0, 1.0], [1.0, 0.0]], 5, axis=0)):
        problem = Problem(kernel, 0.1, X, np.linspace(-1.0, 1.0, len(X))[:, None] + 0.5)
        solution = solved(in_double(solver), executor, problem, tolerance=1e-8)
        assert solution.converged
        np.testing.assert_allclose(solution.alpha, problem.solution, rtol=0, atol=1e-6)


# From a twentieth to five: no one variance is near all of them.
NOISE = 0.05 * 100.0 ** np.random.default_rng(11).random(260)


def with_noise_by_sample(executor: LocalExecutor) -> BlockedKernelOperator:
    return BlockedKernelOperator(PROBLEM.kernel, NOISE, ArrayInputs(PROBLEM.X), executor)


@pytest.mark.long
@every_solver
def test_noise_by_sample(solver: Any, executor: LocalExecutor) -> None:
    stopping = GradientInfNorm(1e-5) | MaxPasses(2000.0)
    solution = solve(with_noise_by_sample(executor), PROBLEM.y, solver=solver, stopping=stopping)
    assert solution.converged
    matrix = PROBLEM.kernel(PROBLEM.X, PROBLEM.X) + np.diag(NOISE)
    np.testing.assert_allclose(solution.gradient, matrix @ solution.alpha - PROBLEM.y, rtol=0, atol=1e-11)
    answer = np.linalg.solve(matrix, PROBLEM.y)
    assert np.abs(solution.alpha - answer).max() <= 1e-5 * np.sqrt(260) / NOISE.min()


@all_but("cholesky")
def test_settings_are_checked_and_told(solver: Any) -> None:
    with pytest.raises(InputError, match="""precision must be ['"]mixed['"] or ['"]double['"]; got 'half'"""):
        replace(solver, precision="half")
    assert solver.resolved(260, 3, 2).settings()["solver"] == solver.name


NAMES = ("gbcd", "bcdc", "bcdg", "smo", "cg", "pcg", "pcg-low-rank", "kcg", "cholesky", "tiled-cholesky")
# Passes of all together against those of the target that needs most. Blocks are chosen for all targets at once, so
# none has the block that it would choose for itself.
LARGEST_RATIO = {"gbcd": 2.5, "bcdc": 1.2, "bcdg": 2.0}


def solved_several_targets(
    problem: Problem, executor: LocalExecutor, solver: Any, y: np.ndarray, tolerance: float
) -> Solution:
    stopping = GradientInfNorm(tolerance) | MaxPasses(20_000.0)
    solution = solve(problem.blocked(executor), y, solver=solver, stopping=stopping)
    assert solution.converged
    return solution


def compared(problem: Problem, executor: LocalExecutor, solver: Any, tolerance: float) -> tuple[float, float, float]:
    """Largest relative difference of a target's alpha; passes together over the worst's, and over all singles'."""
    together = solved_several_targets(problem, executor, solver, problem.y, tolerance)
    singles = [
        solved_several_targets(problem, executor, solver, problem.y[:, t], tolerance) for t in range(problem.y.shape[1])
    ]
    difference = max(
        float(np.linalg.norm(together.alpha[:, [t]] - single.alpha) / np.linalg.norm(single.alpha))
        for t, single in enumerate(singles)
    )
    passes = [single.progress.column_passes for single in singles]
    return difference, together.progress.column_passes / max(passes), together.progress.column_passes / sum(passes)


@pytest.mark.long
@pytest.mark.parametrize("name", few(NAMES, "gbcd", "smo", "cg", "pcg-low-rank", "cholesky"))
def test_seven_targets_cost_about_as_much_as_the_worst_of_them(executor: LocalExecutor, name: str) -> None:
    problem = smooth_problem(140, 3, targets=7, noise_variance=0.1, gamma=1.0)
    difference, over_worst, over_sum = compared(problem, executor, in_double(SOLVERS[name]), 1e-8)
    assert difference < 1e-6
    if name == "smo":  # pairs are a target's own, and so are their columns
        assert over_sum == pytest.approx(1.0, rel=0.1)
    else:
        assert over_worst <= LARGEST_RATIO.get(name, 1.1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["gbcd", "bcdc", "cg", "pcg", "pcg-low-rank", "kcg", "tiled-cholesky"])
def test_the_seven_torques_of_a_robot_arm(executor: LocalExecutor, name: str) -> None:
    """SARCOS: 21 joint positions, velocities and accelerations, and seven torques."""
    data = standardised("sarcos_test4449", 3559, "Y7")
    problem = Problem(SquaredExponential(data.gamma), data.noise_variance, data.X, data.y)
    solver = in_double(SOLVERS[name])
    if name in ("gbcd", "bcdc"):
        solver = replace(solver, block_size=500)
    if name.startswith("pcg"):
        solver = ConjugateGradient(FactorPreconditioning(0 if name == "pcg-low-rank" else "auto"), "double")
    if name == "tiled-cholesky":
        solver = TiledCholesky(precision="double")
    difference, over_worst, over_sum = compared(problem, executor, solver, 1e-7 * problem.noise_variance)
    print(f"\n{name}: alpha to {difference:.1e}; passes: {over_worst:.2f} of the worst's, {over_sum:.2f} of the sum's")
    assert difference < 1e-6
    assert over_worst <= LARGEST_RATIO.get(name, 1.1)
    assert over_sum < 0.5


N, D, NOISE_OTHER_KERNELS = 200, 3, 0.05
KERNELS = ("rbf", "matern32", "constant(variance=1.7) * rbf", "rbf + linear", "polynomial(degree=3)")
SOLVERS_OTHER_KERNELS: dict[str, Solver] = {
    "gbcd": GreedyBlockCoordinateDescent(block_size=40),
    "gbcd in float64": GreedyBlockCoordinateDescent(block_size=40, precision="double"),
    "cg": ConjugateGradient(),
    "pcg": ConjugateGradient(FactorPreconditioning(40, 20, 0)),
    "pcg low rank": ConjugateGradient(FactorPreconditioning(0, rank=60)),
    "pcg uniform": ConjugateGradient(FactorPreconditioning(0, rank=60, landmarks="uniform")),
    "kcg": KernelConjugateGradient(),
    "smo": SequentialMinimalOptimization(steps_per_round=200),
    "cholesky": Cholesky(),
    "tiled-cholesky": TiledCholesky(tile_rows=64),
}


def problem(outliers: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(N, D))
    X[:3] *= outliers
    return X, np.sin(2.0 * X[:, :1]) + 0.3 * rng.normal(size=(N, 1))


@pytest.mark.covering
@pytest.mark.parametrize("text", KERNELS)
@pytest.mark.parametrize("name", SOLVERS_OTHER_KERNELS)
def test_all_solvers_agree_with_dense_algebra(name: str, text: str, executor: LocalExecutor) -> None:
    X, y = problem()
    kernel = parse_kernel(text, D)
    Kbar = kernel(X, X) + NOISE_OTHER_KERNELS * np.eye(N)
    with BlockedKernelOperator(kernel, NOISE_OTHER_KERNELS, ArrayInputs(X), executor) as operator:
        solution = solve(operator, y, solver=SOLVERS_OTHER_KERNELS[name], stopping=GradientInfNorm(1e-5))
    assert solution.converged
    assert np.abs(Kbar @ solution.alpha - y).max() <= 1.01e-5
    off = np.linalg.norm(solution.alpha - np.linalg.solve(Kbar, y))
    assert off <= np.linalg.norm(Kbar @ solution.alpha - y) / NOISE_OTHER_KERNELS + 1e-9


@pytest.mark.parametrize("name", ["gbcd", "pcg", "pcg uniform", "cholesky", "tiled-cholesky"])
def test_entries_of_a_million_do_not_keep_them_from_the_tolerance(name: str, executor: LocalExecutor) -> None:
    X, y = problem(outliers=15.0)
    X[7] = 0.0  # of which a polynomial without an offset knows nothing
    kernel = parse_kernel("polynomial(degree=3, offset=0)", D) + parse_kernel("rbf", D)
    assert kernel.diagonal(X).max() > 1e5 * np.median(kernel.diagonal(X))
    Kbar = kernel(X, X) + NOISE_OTHER_KERNELS * np.eye(N)
    with BlockedKernelOperator(kernel, NOISE_OTHER_KERNELS, ArrayInputs(X), executor) as operator:
        solution = solve(operator, y, solver=SOLVERS_OTHER_KERNELS[name], stopping=GradientInfNorm(1e-5))
    assert solution.converged
    assert np.abs(Kbar @ solution.alpha - y).max() <= 1.01e-5


def test_a_few_large_entries_do_not_cost_a_block_its_float32_factor(executor: LocalExecutor) -> None:
    """The largest trace of a block counts, not its size times the largest entry."""
    X, _ = problem(outliers=15.0)
    kernel = parse_kernel("polynomial(degree=3)", D)
    diagonal = np.sort(kernel.diagonal(X)) + 5.0
    limit = 5.0 / (20.0 * float(np.finfo(np.float32).eps))
    assert diagonal[-40:].sum() < limit < 40 * diagonal[-1]
    with BlockedKernelOperator(kernel, 5.0, ArrayInputs(X), executor) as operator:
        assert Subproblem(operator, 40, 1).single
    with BlockedKernelOperator(kernel, 0.01, ArrayInputs(X), executor) as operator:
        assert not Subproblem(operator, 40, 1).single


N_BY_SAMPLE = 300
KERNEL = SquaredExponential((6.0, 5.0, 4.0), 1.5)
RNG = np.random.default_rng(11)
X = RNG.standard_normal((N_BY_SAMPLE, 3))
# From a twentieth to five: no one variance is near all of them.
NOISE_BY_SAMPLE = 0.05 * 100.0 ** RNG.random(N_BY_SAMPLE)
Y = np.sin(2.0 * X[:, :2]) + np.sqrt(NOISE_BY_SAMPLE)[:, None] * RNG.standard_normal((N_BY_SAMPLE, 2))
MATRIX = KERNEL(X, X) + np.diag(NOISE_BY_SAMPLE)
ANSWER = np.linalg.solve(MATRIX, Y)
LEAST = float(NOISE_BY_SAMPLE.min())


def blocked(executor: LocalExecutor, **options: Any) -> BlockedKernelOperator:
    return BlockedKernelOperator(KERNEL, NOISE_BY_SAMPLE, ArrayInputs(X), executor, **options)


def objective(alpha: np.ndarray) -> float:
    return float(np.sum(alpha * (0.5 * MATRIX @ alpha - Y)))


def test_a_selection_under_way_sees_the_noise_of_its_candidates(executor: LocalExecutor) -> None:
    solver, stopping = SOLVERS["gbcd"], GradientInfNorm(1e-5)
    overlapping = OverlappingExecutor(2)
    found = solve(blocked(overlapping), Y, solver=solver, stopping=stopping)
    overlapping.close()
    assert found.alpha.tobytes() == solve(blocked(executor), Y, solver=solver, stopping=stopping).alpha.tobytes()


@pytest.mark.long
def test_kept_columns_and_approximate_products(executor: LocalExecutor) -> None:
    flat = SquaredExponential((6.0, 5.0), 1.5).on((0, 2), 3)
    matrix = flat(X, X) + np.diag(NOISE_BY_SAMPLE)
    with ProductError(1e-9).operator(flat, NOISE_BY_SAMPLE, ArrayInputs(X), executor) as bounded:
        assert np.abs(bounded.matmat(Y) - matrix @ Y).max() <= bounded.error_bound <= 1.01e-9
        some = np.array([7, 200, 3])
        off = np.abs(bounded.apply_columns(some, Y[some], "double") - matrix[:, some] @ Y[some]).max()
        assert off <= bounded.error_bound
    for operator in (CachedColumnsOperator(blocked(executor)), blocked(executor, coordinator_input_bytes=1)):
        assert operator.noise_variance == LEAST
        found = solve(operator, Y, solver=SOLVERS["gbcd"], stopping=GradientInfNorm(1e-5))
        assert np.abs(found.alpha - ANSWER).max() <= 1e-5 * np.sqrt(N_BY_SAMPLE) / LEAST


def test_the_preconditioner_is_the_inverse_of_factor_and_noise(executor: LocalExecutor) -> None:
    landmarks = np.arange(0, N_BY_SAMPLE, 6)
    K = KERNEL(X, X)
    nystrom = K[:, landmarks] @ np.linalg.solve(K[np.ix_(landmarks, landmarks)], K[landmarks])
    with blocked(executor) as operator:
        factor = LowRankFactor(operator, landmarks)
        found = LowRankPreconditioner(factor, operator.noise_variance).apply(Y)
    np.testing.assert_allclose(found, np.linalg.solve(nystrom + np.diag(NOISE_BY_SAMPLE), Y), rtol=0, atol=2e-5)


@pytest.mark.parametrize("solver", [SOLVERS["gbcd"], SOLVERS["cg"]], ids=["gbcd", "cg"])
@pytest.mark.parametrize("rounds", [1, 3, 6])
def test_bounds_on_objective_and_risk_hold(solver: Any, rounds: int, executor: LocalExecutor) -> None:
    """R = (y - f)' W (y - f) / 2 + s2 alpha' K alpha / 2 with W = diag(s2 / s2_i): what the noise weighs."""

    def risk(alpha: np.ndarray) -> float:
        function = MATRIX @ alpha - NOISE_BY_SAMPLE[:, None] * alpha
        weight = (LEAST / NOISE_BY_SAMPLE)[:, None]
        return 0.5 * float(np.sum(weight * (Y - function) ** 2) + LEAST * np.sum(alpha * function))

    solution = solve(blocked(executor), Y, solver=solver, stopping=MaxIterations(rounds))
    progress = solution.progress
    assert progress.objective == pytest.approx(objective(solution.alpha), rel=1e-6)
    assert objective(solution.alpha) - objective(ANSWER) <= progress.objective_gap_bound * (1.0 + 1e-6)
    least, start = risk(ANSWER), risk(np.zeros_like(Y))
    assert risk(solution.alpha) - least <= progress.duality_gap * (start - least) * (1.0 + 1e-6)
    # The bound is the dual's, to the last bit of it that rounding leaves: not merely a valid one.
    upper = risk(solution.alpha) - start
    lower = -LEAST * objective(solution.alpha) - start
    assert progress.duality_gap == pytest.approx(2.0 * (upper - lower) / abs(upper + lower), rel=1e-5)
    assert lower <= least - start


def test_certificate_weighs_the_residual_by_the_noise() -> None:
    gradient = MATRIX @ (ANSWER + 1e-3) - Y
    arguments = (ANSWER + 1e-3, gradient, Y)
    found = Certificate.of(*arguments, NOISE_BY_SAMPLE, 1.5, np.ones(N_BY_SAMPLE))
    assert found.noise_variance == LEAST
    weighed = np.sqrt(np.sum(gradient**2 * (LEAST / NOISE_BY_SAMPLE)[:, None], axis=0))
    np.testing.assert_allclose(found.residual_norm, weighed, rtol=1e-12)
    by_least, by_largest = (
        Certificate.of(*arguments, float(end), 1.5, np.ones(N_BY_SAMPLE)) for end in (LEAST, NOISE_BY_SAMPLE.max())
    )
    assert (found.proven_residual_norm < 0.6 * by_least.proven_residual_norm).all()
    assert (np.array(found.residual_rounding) < by_largest.residual_rounding).all()
    assert (np.linalg.norm(np.full((N_BY_SAMPLE, 2), 1e-3), axis=0) <= found.alpha_error_bound).all()
    tests = RNG.standard_normal((50, 3))
    off = np.abs(KERNEL(tests, X) @ np.full((N_BY_SAMPLE, 2), 1e-3))
    assert (off <= found.mean_error_bound(np.full(50, 1.5), np.ones(50))).all()


def test_noise_plays_no_part_in_a_risk(executor: LocalExecutor) -> None:
    found = minimise_risk(blocked(executor), Y, loss=SquaredLoss(), regularisation=0.3, gap=1e-10)
    K = KERNEL(X, X)
    np.testing.assert_allclose(found.values, K @ np.linalg.solve(K + 0.3 * np.eye(N_BY_SAMPLE), Y), rtol=0, atol=1e-4)


def test_tiles_on_disk_are_of_the_noise_that_they_were_made_with(executor: LocalExecutor, tmp_path: Path) -> None:
    solver = TiledCholesky(tile_rows=64, folder=str(tmp_path / "tiles"), keep=True)
    first = solve(blocked(executor), Y, solver=solver)
    assert solve(blocked(executor), Y, solver=solver).alpha.tobytes() == first.alpha.tobytes()
    for other in (NOISE_BY_SAMPLE[::-1], LEAST):
        with (
            BlockedKernelOperator(KERNEL, other, ArrayInputs(X), executor) as operator,
            pytest.raises(CheckpointError, match="belong to another factorisation: their noise variance is 'by sample"),
        ):
            solve(operator, Y, solver=solver)


PROBLEM_ENTRIES = smooth_problem(600, 3, targets=2)
GBCD = GreedyBlockCoordinateDescent

SOLVERS_ENTRIES: dict[str, Solver] = {
    "gbcd": GBCD(block_size=60),
    "paper": GBCD(block_size=30, memory=0, selection=GreedySelection(variables_per_step=1)),
    "prefitting": GBCD(block_size=30, selection=GreedySelection(prefitting=True)),
    "cyclic": GBCD(block_size=60, selection=CyclicSelection()),
    "cg": ConjugateGradient(None),
    "pcg": ConjugateGradient(FactorPreconditioning(0, rank=20)),
    "cholesky": Cholesky(),
    "tiled-cholesky": TiledCholesky(),
}


class Witness:
    """Counts what goes in and out of the evaluator's methods, in whatever thread, beside the evaluator's own count."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries, self._lock = 0, threading.Lock()
        for name in ("matmat", "pair", "tile"):
            monkeypatch.setattr(TileEvaluator, name, self._watched(getattr(TileEvaluator, name)))
        monkeypatch.setattr(TileEvaluator, "symmetric", self._watched_square(TileEvaluator.symmetric))

    def _watched(self, method: Any) -> Any:
        def watched(evaluator: TileEvaluator, A: Any, B: Any, *more: Any) -> Any:
            with self._lock:
                self.entries += A.n * B.n
            return method(evaluator, A, B, *more)

        return watched

    def _watched_square(self, method: Any) -> Any:
        def watched(evaluator: TileEvaluator, A: Any, *more: Any) -> Any:
            # Tiles across the diagonal whole, those on one side of it, none on the other.
            least, most = A.n * (A.n + 1) // 2, A.n * (A.n + evaluator.tile_rows)
            assert least <= evaluator.entries_of(A) <= most
            with self._lock:
                self.entries += evaluator.entries_of(A)
            return method(evaluator, A, *more)

        return watched


@pytest.mark.covering
@pytest.mark.parametrize("name", SOLVERS_ENTRIES)
@pytest.mark.parametrize("overlaps", [False, True])
def test_all_that_is_evaluated_is_counted(
    name: str,
    overlaps: bool,
    executor: LocalExecutor,
    overlapping: OverlappingExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operator = PROBLEM_ENTRIES.blocked(overlapping if overlaps else executor)
    witness = Witness(monkeypatch)
    solution = solve(
        operator, PROBLEM_ENTRIES.y, solver=SOLVERS_ENTRIES[name], stopping=GradientInfNorm(1e-3) | MaxIterations(20)
    )
    assert solution.progress.kernel_evaluations == operator.kernel_evaluations == witness.entries > 0


def test_pairs_count_the_columns_that_they_evaluate(executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """SMO's compiled loop evaluates columns past the evaluator's methods; without room to keep any, all of them."""
    witness = Witness(monkeypatch)
    solver = SequentialMinimalOptimization(steps_per_round=5, cache_bytes=0, precision="double")
    solution = solve(
        PROBLEM_ENTRIES.blocked(executor), PROBLEM_ENTRIES.y[:, :1], solver=solver, stopping=MaxIterations(3)
    )
    evaluated = solution.progress.kernel_evaluations - witness.entries
    assert evaluated % PROBLEM_ENTRIES.n == 0
    # Two columns a step, but where a step's column is one of the last step's.
    assert 15 * PROBLEM_ENTRIES.n <= evaluated <= 30 * PROBLEM_ENTRIES.n


@pytest.mark.parametrize("precision", ["mixed", "double"])
@pytest.mark.parametrize("per_step", [1, 5, 20])
def test_what_selection_and_subproblem_evaluate_by_hand(executor: LocalExecutor, per_step: int, precision: Any) -> None:
    n, m, kappa, rounds = PROBLEM_ENTRIES.n, 60, 60, 4
    selection = GreedySelection(candidates=kappa, variables_per_step=per_step)
    solver = GBCD(block_size=m, selection=selection, precision=precision)
    solution = solve(
        PROBLEM_ENTRIES.blocked(executor), PROBLEM_ENTRIES.y, solver=solver, stopping=MaxIterations(rounds)
    )
    sizes = range(0, m, per_step)
    # Each step scores kappa candidates for each of its variables against B, and factors its rows of Kbar_BB.
    scored = sum(kappa * per_step * size for size in sizes)
    factored = sum(per_step * per_step + per_step * size for size in sizes)
    typical = (n // 2) ** 2
    assert solution.progress.column_passes == rounds * m / n
    refined = solution.progress.kernel_evaluations - typical - rounds * (n * m + scored + factored)
    refined -= of_a_verification(executor)
    # What is left are products with Kbar_BB in float64: a round's step is refined where its factor is in float32.
    assert refined % m**2 == 0
    least, most = (rounds, 5 * rounds) if precision == "mixed" else (0, 0)
    assert least <= refined // m**2 <= most


def test_a_block_of_a_tenth_takes_three_squares_a_pass_beside_it(executor: LocalExecutor) -> None:
    """Costs that passes alone hide, at kappa = 60 and m = n / 10: 10 rounds of 60 m^2 / 2 candidates' entries."""
    selection = GreedySelection(variables_per_step=1)
    solver = GBCD(block_size=PROBLEM_ENTRIES.n // 10, memory=0, selection=selection, precision="double")
    progress = solve(
        PROBLEM_ENTRIES.blocked(executor), PROBLEM_ENTRIES.y, solver=solver, stopping=MaxIterations(10)
    ).progress
    assert progress.column_passes == 1.0
    assert 4.0 < (progress.kernel_evaluations - of_a_verification(executor)) / PROBLEM_ENTRIES.n**2 < 4.7


def of_a_verification(executor: LocalExecutor) -> int:
    """Entries of one float64 product with Kbar: about half of them, by symmetry."""
    operator = PROBLEM_ENTRIES.blocked(executor)
    operator.matmat(np.ones((PROBLEM_ENTRIES.n, 1)))
    assert PROBLEM_ENTRIES.n**2 / 2 <= operator.kernel_evaluations <= PROBLEM_ENTRIES.n**2
    return operator.kernel_evaluations
