"""Dense algebra in place: triangles, blocks, and the factor of the whole matrix in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import solve_triangular

from dkgp.cluster import LocalExecutor
from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError, MemoryBudgetError, NumericalError
from dkgp.kernels import SquaredExponential
from dkgp.solvers import GradientInfNorm, MaxIterations, Solution, solve
from dkgp.solvers.cholesky import in_memory as module
from dkgp.solvers.cholesky.dense import (
    factor_lower,
    factor_strips,
    solve_lower,
    solve_lower_transposed,
    solve_strips,
    strip_bounds,
    subtract_product,
    subtract_square,
)
from dkgp.solvers.cholesky.in_memory import Cholesky, cholesky_bytes
from dkgp.solvers.driver import Watch
from tests.resuming import Resuming
from tests.solvers.problems import Problem, smooth_problem

RELATIVE_ERROR = {np.float32: 2e-5, np.float64: 1e-13}
SOLVE = {"N": solve_lower, "T": solve_lower_transposed}


def random_factor(rng: np.random.Generator, capacity: int, dtype: type) -> np.ndarray:
    """A lower triangle; what stands above the diagonal must not be looked at."""
    factor = rng.standard_normal((capacity, capacity)) / np.sqrt(capacity)
    factor[np.diag_indices(capacity)] = rng.uniform(1.0, 2.0, capacity)
    factor[np.triu_indices(capacity, 1)] = np.nan
    return factor.astype(dtype)


def check(transposed: str, factor: np.ndarray, order: int, right: np.ndarray) -> None:
    expected = solve_triangular(
        np.tril(np.nan_to_num(factor[:order, :order])).astype(np.float64),
        right[:, :order].T.astype(np.float64),
        lower=True,
        trans=transposed,
    ).T
    beyond = right[:, order:].copy()
    SOLVE[transposed](factor, order, right)
    scale = np.abs(expected).max(initial=1.0)
    assert np.abs(right[:, :order] - expected).max(initial=0.0) <= RELATIVE_ERROR[right.dtype.type] * scale
    np.testing.assert_array_equal(right[:, order:], beyond)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("transposed", ["N", "T"])
@given(capacity=st.integers(1, 60), cut=st.integers(1, 60), systems=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_agrees_with_scipy(dtype: type, transposed: str, capacity: int, cut: int, systems: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    order = min(cut, capacity)
    factor = random_factor(rng, capacity, dtype)
    check(transposed, factor, order, rng.standard_normal((systems, order)).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("transposed", ["N", "T"])
def test_rows_of_a_larger_array_are_solved_in_place(rng: np.random.Generator, dtype: type, transposed: str) -> None:
    # How the subproblem uses it: the new rows of the factor are right-hand sides, and have room to their right.
    factor = random_factor(rng, 50, dtype)
    check(transposed, factor[:40], 33, rng.standard_normal((7, 50)).astype(dtype))


def test_two_substitutions_solve_the_normal_equations(rng: np.random.Generator) -> None:
    factor = random_factor(rng, 90, np.float64)
    L = np.tril(np.nan_to_num(factor))
    right = rng.standard_normal((3, 90))
    solved = right.copy()
    solve_lower(factor, 90, solved)
    solve_lower_transposed(factor, 90, solved)
    np.testing.assert_allclose(solved @ (L @ L.T), right, atol=1e-10)


@pytest.mark.parametrize(
    ("factor", "right"),
    [
        (np.eye(3), np.ones((1, 3), np.float32)),
        (np.asfortranarray(np.tril(np.ones((3, 3)))), np.ones((1, 3))),
        (np.eye(3), np.ones((3, 2)).T),
    ],
)
def test_arrays_that_blas_would_misread_are_refused(factor: np.ndarray, right: np.ndarray) -> None:
    with pytest.raises(ValueError, match="share one type and have contiguous rows"):
        solve_lower(factor, 3, right)


both_types = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@both_types
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (5, 3, 7), (64, 33, 20), (4, 0, 3), (4, 2, 0)])
def test_products_on_views(rng: np.random.Generator, dtype: type, m: int, n: int, k: int) -> None:
    whole = rng.standard_normal((m + 2, n + 3)).astype(dtype)
    left, right = rng.standard_normal((m, k + 1)).astype(dtype), rng.standard_normal((n, k + 4)).astype(dtype)
    expected = whole.copy()
    expected[1 : m + 1, 2 : n + 2] -= left[:, :k] @ right[:, 1 : k + 1].T
    subtract_product(whole[1 : m + 1, 2 : n + 2], left[:, :k], right[:, 1 : k + 1])
    np.testing.assert_allclose(whole, expected, rtol=0, atol=100 * np.finfo(dtype).eps)


@both_types
def test_squares_touch_the_lower_triangle_alone(rng: np.random.Generator, dtype: type) -> None:
    block, left = rng.standard_normal((9, 12)).astype(dtype), rng.standard_normal((9, 4)).astype(dtype)
    expected = block.copy()
    expected[:, 2:11] -= np.tril(left[:, 1:] @ left[:, 1:].T)
    subtract_square(block[:, 2:11], left[:, 1:])
    np.testing.assert_allclose(block, expected, rtol=0, atol=100 * np.finfo(dtype).eps)


@both_types
def test_factor(rng: np.random.Generator, dtype: type) -> None:
    half = rng.standard_normal((20, 20))
    matrix = (half @ half.T + 20 * np.eye(20)).astype(dtype)
    block = np.zeros((20, 25), dtype)
    block[:, 3:23] = matrix
    assert factor_lower(block[:, 3:23]) == 0
    tolerance = 1000 * np.finfo(dtype).eps
    np.testing.assert_allclose(np.tril(block[:, 3:23]), np.linalg.cholesky(matrix), rtol=tolerance, atol=tolerance)


@both_types
@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_where_it_is_not_positive_definite(dtype: type, value: float) -> None:
    matrix = np.eye(7, dtype=dtype)
    matrix[4, 4] = value
    assert factor_lower(matrix) == 5


def test_what_does_not_fit_is_refused_before_blas_sees_it() -> None:
    block = np.zeros((4, 4))
    with pytest.raises(ValueError, match="shapes do not fit"):
        subtract_product(block, np.zeros((4, 2)), np.zeros((3, 2)))
    with pytest.raises(ValueError, match="shapes do not fit"):
        subtract_square(block, np.zeros((3, 2)))
    with pytest.raises(ValueError, match="share one type and have contiguous rows"):
        subtract_product(block, np.zeros((4, 2), np.float32), np.zeros((4, 2)))
    with pytest.raises(ValueError, match="contiguous rows"):
        subtract_square(block, np.zeros((2, 4)).T)
    with pytest.raises(ValueError, match="square"):
        factor_lower(block[:3])


PROBLEM = smooth_problem(300, 3, targets=2)


@pytest.fixture(params=[512, 96, 7], ids=["one strip", "four strips", "narrow strips"])
def strip_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(module, "STRIP_ROWS", request.param)
    return int(request.param)


def solved(
    executor: Any,
    problem: Problem = PROBLEM,
    tolerance: float = 1e-9,
    stopping: Any = None,
    initial: Any = None,
    **watch: Any,
) -> Solution:
    rule, operator = stopping or GradientInfNorm(tolerance), problem.blocked(executor)
    return solve(operator, problem.y, solver=Cholesky(), stopping=rule, initial=initial, watch=Watch(**watch))


@pytest.mark.usefixtures("strip_rows")
def test_one_round_gives_the_answer(executor: LocalExecutor) -> None:
    solution = solved(executor)
    assert solution.converged
    assert solution.progress.iteration == 1
    assert solution.progress.column_passes == 1.0
    np.testing.assert_allclose(solution.alpha, PROBLEM.solution, rtol=0, atol=1e-9 * np.abs(PROBLEM.solution).max())
    np.testing.assert_allclose(solution.gradient, PROBLEM.gradient(solution.alpha), rtol=0, atol=1e-11)
    assert solution.refreshes == 0


def test_on_an_operator_that_holds_the_matrix() -> None:
    solution = solve(PROBLEM.dense(), PROBLEM.y, solver=Cholesky(), stopping=GradientInfNorm(1e-9))
    np.testing.assert_allclose(solution.alpha, PROBLEM.solution, rtol=1e-8, atol=1e-8)


def test_without_inputs_at_the_coordinator(executor: LocalExecutor) -> None:
    operator = PROBLEM.blocked(executor, coordinator_input_bytes=0)
    solution = solve(operator, PROBLEM.y, solver=Cholesky(), stopping=GradientInfNorm(1e-9))
    assert solution.alpha.tobytes() == solved(executor).alpha.tobytes()


@pytest.mark.parametrize("rows", [7, 64, 150, 400])
def test_the_factor_is_lapacks(rng: np.random.Generator, rows: int) -> None:
    half = rng.standard_normal((150, 150))
    matrix = half @ half.T + 150 * np.eye(150)
    given = matrix.copy()
    strips = [given[start:stop, :stop] for start, stop in strip_bounds(150, rows)]
    factor_strips(strips)
    expected = scipy.linalg.cholesky(matrix, lower=True)
    np.testing.assert_allclose(np.tril(given), expected, rtol=0, atol=1e-12)
    for start, stop in strip_bounds(150, rows):  # what is right of the strips is not theirs
        np.testing.assert_array_equal(given[start:stop, stop:], matrix[start:stop, stop:])
    right = rng.standard_normal((150, 3))
    kept = right.copy()
    np.testing.assert_allclose(matrix @ solve_strips(strips, right), right, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(right, kept)


@pytest.mark.usefixtures("strip_rows")
def test_the_same_bits_on_any_number_of_threads() -> None:
    found = set()
    for threads in (1, 2, 3):
        executor = LocalExecutor(threads)
        solution = solved(executor)
        executor.close()
        found.add((solution.alpha.tobytes(), solution.gradient.tobytes()))
    assert len(found) == 1


def test_a_warm_start_is_corrected(executor: LocalExecutor, rng: np.random.Generator) -> None:
    solution = solved(executor, initial=rng.standard_normal((300, 2)))
    assert solution.progress.iteration == 1
    np.testing.assert_allclose(solution.alpha, PROBLEM.solution, rtol=0, atol=1e-8)


def test_further_rounds_refine(executor: LocalExecutor) -> None:
    """With little noise the first solution leaves a gradient above what a second solve can reach."""
    problem = smooth_problem(300, 2, noise_variance=1e-9)
    first = solved(executor, problem, stopping=MaxIterations(1))
    reached = first.progress.gradient_inf_norm
    with pytest.raises(NumericalError, match=r"float64 does not come closer: max\|g\| = .* Raise the tolerance"):
        solved(executor, problem, tolerance=1e-30)
    assert reached < 1e-5


def test_interrupted_before_and_after_its_round(executor: LocalExecutor, tmp_path: Path) -> None:
    kept = Resuming(partial(solved, executor), tmp_path)
    for rounds in (0, 1):
        kept.interrupt(rounds, tolerance=1e-30)
        assert len(kept.require_same().history) == 1


@pytest.mark.parametrize("n", [1, 7, 513])
def test_one_sample_and_equal_samples(executor: LocalExecutor, n: int) -> None:
    problem = Problem(
        SquaredExponential((1.0, 2.0), variance=2.5), 0.1, np.ones((n, 2)), np.linspace(-1, 2, n)[:, None]
    )
    solution = solved(executor, problem)
    np.testing.assert_allclose(solution.alpha, problem.solution, rtol=0, atol=1e-8)


def test_a_matrix_that_is_not_positive_definite(executor: LocalExecutor) -> None:
    problem = Problem(SquaredExponential((1.0, 2.0)), 1e-18, np.ones((9, 2)), np.linspace(-1.0, 1.0, 9)[:, None])
    with pytest.raises(NumericalError, match=r"breaks down at sample \d of 9\. Raise the noise variance"):
        solved(executor, problem)


def test_a_budget_that_does_not_suffice_is_refused_with_numbers(executor: LocalExecutor) -> None:
    needed = cholesky_bytes(300, 3, 2)
    assert needed > 8 * 300 * 300  # one strip: the whole matrix
    Cholesky(budget_bytes=needed).resolved(300, 3, 2)
    with pytest.raises(MemoryBudgetError) as caught:
        solve(PROBLEM.blocked(executor), PROBLEM.y, solver=Cholesky(budget_bytes=needed - 1))
    for part in (f"{needed:,}", f"{needed - 1:,}", "'tiled-cholesky'", "'gbcd'"):
        assert part in str(caught.value)
    assert Cholesky().resolved(32_000, 8)
    with pytest.raises(MemoryBudgetError):
        Cholesky().resolved(33_000, 8)


def test_half_of_the_matrix_is_enough() -> None:
    assert cholesky_bytes(20_000, 8) < 0.53 * 8 * 20_000**2


def test_settings() -> None:
    assert Cholesky().settings() == {"solver": "cholesky", "precision": "double"}
    with pytest.raises(InputError, match="budget must be positive; got 0"):
        Cholesky(budget_bytes=0)


ROOT = Path(__file__).resolve().parents[3]
PAGE = 4096
Arrays = tuple[np.ndarray, ...]


def placed(array: np.ndarray, offset: int) -> np.ndarray:
    """A copy that begins so many bytes after the beginning of a page."""
    room = np.empty(array.nbytes + 2 * PAGE, np.uint8)
    start = -room.ctypes.data % PAGE + offset
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def in_place(change: Callable[..., Any], which: int = 0) -> Callable[..., np.ndarray]:
    """Return the argument as the function leaves it."""

    def changed(*arrays: np.ndarray) -> np.ndarray:
        change(*arrays)
        return arrays[which]

    return changed


def solved_by_library(lower: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.asarray(scipy.linalg.solve_triangular(lower, right, lower=True, check_finite=False))


# What marked tasks call, on (tall, wide, few, one, square, lower) of sizes that are no multiples of anything.
CALLS: dict[str, tuple[Callable[..., np.ndarray], tuple[int, ...]]] = {
    "gram": (lambda tall: tall.T @ tall, (0,)),
    "product": (lambda tall, few: tall @ few, (0, 2)),
    "product with a vector": (lambda tall, one: tall @ one, (0, 3)),
    "transposed product with a vector": (lambda square, one: square.T @ one, (4, 3)),
    "cholesky": (lambda square: scipy.linalg.cholesky(square, lower=True, check_finite=False), (4,)),
    "triangle": (solved_by_library, (5, 1)),
    "sums of squares": (lambda tall: np.einsum("ri,ri->i", tall, tall), (0,)),
    "exponential": (lambda tall: np.exp(-tall * tall), (0,)),
    "tile less a product": (in_place(subtract_product), (1, 5, 6)),
    "tile less a square": (in_place(subtract_square), (4, 5)),
    "tile factored": (in_place(factor_lower), (4,)),
    "tile solved": (in_place(lambda lower, square: solve_lower(lower, len(lower), square), 1), (5, 4)),
}


def operands(rng: np.random.Generator, dtype: str) -> Arrays:
    tall, wide = rng.standard_normal((517, 203)), rng.standard_normal((203, 301))
    square = tall.T @ tall / 500.0 + np.eye(203)
    arrays = (tall, wide, wide[:, :7], wide[:, :1], square, np.linalg.cholesky(square), tall[:301])
    return tuple(np.ascontiguousarray(array, dtype=dtype) for array in arrays)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CALLS)
def test_where_arrays_lie_changes_nothing(rng: np.random.Generator, name: str, dtype: str) -> None:
    call, chosen = CALLS[name]
    arrays = [operands(rng, dtype)[index] for index in chosen]
    size = np.dtype(dtype).itemsize
    with single_threaded_blas():
        found = {
            call(*(placed(array, offset * (2 * place + 1) % 128) for place, array in enumerate(arrays))).tobytes()
            for offset in range(0, 64 + size, size)
        }
    assert len(found) == 1


TRAIN = """
import hashlib
from dkgp.cluster import LocalExecutor
from dkgp.solvers import *
from tests.solvers.problems import smooth_problem

problem, executor = smooth_problem(1200, 3, noise_variance=0.1), LocalExecutor(2)
pcg = ConjugateGradient(preconditioner=FactorPreconditioning(0, rank=200))
for solver in (GreedyBlockCoordinateDescent(block_size=150), pcg, Cholesky(), TiledCholesky(tile_rows=300)):
    stopping = GradientInfNorm(1e-4) | MaxPasses(20)
    solution = solve(problem.blocked(executor), problem.y, solver=solver, stopping=stopping)
    print(solver.name, hashlib.sha256(solution.alpha.tobytes()).hexdigest()[:8])
"""


@pytest.mark.slow
def test_threads_that_the_blas_begins_with_change_nothing() -> None:
    """A solve gives BLAS one thread; what it would do with several must not be seen."""
    found = []
    for threads in ("1", "2", "4"):
        done = subprocess.run(
            [sys.executable, "-P", "-c", TRAIN],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            timeout=250,
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.splitlines())
    assert len(found[0]) == 4
    assert found[1:] == found[:1] * 2
