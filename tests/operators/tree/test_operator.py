"""Pruned sums: the contract of every operator, the error asked for, and what pruning saves."""

from __future__ import annotations

import itertools
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkgp.cluster import LocalExecutor, worker_cache
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.operators import ArrayInputs
from dkgp.operators.tree.operator import TreeKernelOperator, tree_task
from dkgp.solvers import (
    ConjugateGradient,
    FactorPreconditioning,
    GradientInfNorm,
    GreedyBlockCoordinateDescent,
    KernelConjugateGradient,
    MaxIterations,
    solve,
)
from tests.solvers.problems import OverlappingExecutor, Problem

NOISE_VARIANCE = 0.05


def terrain(n: int = 3000, targets: int = 1, reach: float = 0.03) -> Problem:
    """Rough ground over the unit square: a kernel that falls to 1e-6 within five hundredths of it."""
    rng = np.random.default_rng(5)
    X = rng.uniform(size=(n, 2))
    waves = rng.standard_normal((2, 8)) * 20.0
    y = np.sin(X @ waves[:, :targets]) + 0.1 * rng.standard_normal((n, targets))
    gamma = 1.0 / (2.0 * (reach / 3.0) ** 2)
    return Problem(SquaredExponential((gamma, gamma)), NOISE_VARIANCE, X, y)


def over(problem: Problem, executor: Any, **options: Any) -> TreeKernelOperator:
    return TreeKernelOperator(problem.kernel, problem.noise_variance, ArrayInputs(problem.X), executor, **options)


EXECUTOR = LocalExecutor(2)


@st.composite
def problems(draw: st.DrawFn) -> tuple[SquaredExponential, np.ndarray, np.ndarray]:
    """Points spread, clustered, repeated or far from the origin; a kernel of any reach; weights of very unlike size."""
    n, d, targets = draw(st.integers(1, 500)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    X = rng.standard_normal((n, d))
    kind = draw(st.sampled_from(["spread", "clustered", "repeated", "equal", "far"]))
    if kind == "clustered":
        X = rng.standard_normal((8, d))[rng.integers(0, 8, n)] + 1e-4 * X
    elif kind == "repeated":
        X = X[rng.integers(0, -(-n // 7), n)]
    elif kind == "equal":
        X[:] = X[0]
    elif kind == "far":
        X += 300.0
    gamma = 10.0 ** rng.uniform(-4.0, draw(st.sampled_from([0.0, 3.0, 8.0])), d)
    V = rng.standard_normal((n, targets)) * 10.0 ** rng.uniform(-8.0, 3.0, targets)
    V[rng.random(n) < draw(st.sampled_from([0.0, 0.5, 0.95]))] = 0.0
    return SquaredExponential(tuple(gamma), variance=float(rng.uniform(0.1, 3.0))), X, V


@settings(max_examples=150)
@given(
    problem=problems(),
    exponent=st.floats(-9.0, -2.0),
    precision=st.sampled_from(["single", "double"]),
)
def test_no_entry_is_further_off_than_the_bound(problem: Any, exponent: float, precision: str) -> None:
    kernel, X, V = problem
    error = 10.0**exponent
    with TreeKernelOperator(kernel, NOISE_VARIANCE, ArrayInputs(X), EXECUTOR, error=error) as operator:
        found = operator.matmat(V, precision)
        bound = operator.error_bound
        columns = np.flatnonzero(V.any(axis=1))
        again = operator.apply_columns(columns, V[columns], precision)
        if columns.size:
            np.testing.assert_array_equal(again, found)
    exact = kernel(X, X) @ V + NOISE_VARIANCE * V
    off = np.abs(found - exact).max(axis=0)
    # What the float64 reference is itself good to: inputs a distance apart that cancel have lost some digits.
    total = kernel.variance * np.abs(V).sum(axis=0)
    reference = 1e-14 * total * (1.0 + np.abs(X).max())
    assert (off <= bound + reference).all()
    # Each target by itself: in proportion where its weights are small.
    asked = error * np.minimum(1.0, np.abs(V).max(axis=0))
    coordinates = np.sqrt(np.array(kernel.gamma)) * np.abs(X).max(axis=0)
    rounding = (1e-12 if precision == "double" else 3e-5) * total * (1.0 + 1e-3 * coordinates.sum())
    assert (off <= asked + rounding).all()
    assert bound <= asked.max() + (1.0 + NOISE_VARIANCE) * rounding.max() * (1.0 if precision == "double" else 10.0)


@pytest.mark.parametrize("error", [1e-2, 1e-4, 1e-6, 1e-8])
def test_the_error_asked_for_is_spent(two_threads: LocalExecutor, rng: np.random.Generator, error: float) -> None:
    problem = terrain(1500)
    V = rng.uniform(-1.0, 1.0, (problem.n, 2))
    exact = problem.matrix @ V
    with over(problem, two_threads, error=error) as operator:
        off = np.abs(operator.matmat(V) - exact).max()
        assert 0.1 * error < operator.error_bound <= error + 1e-10
        # A bound adds up what errors of either sign partly cancel.
        assert 1e-3 * error < off <= operator.error_bound
        # The single tiles add their own rounding, which the bound covers too.
        assert np.abs(operator.matmat(V, "single") - exact).max() <= min(operator.error_bound, error + 1e-5)


def test_a_larger_error_and_a_shorter_reach_cost_less(two_threads: LocalExecutor, rng: np.random.Generator) -> None:
    V = rng.uniform(-1.0, 1.0, (3000, 1))
    costs = []
    for reach, error in [(0.3, 1e-6), (0.1, 1e-6), (0.1, 1e-2), (0.03, 1e-6)]:
        with over(terrain(reach=reach), two_threads, error=error) as operator:
            operator.matmat(V)
            costs.append(operator.kernel_evaluations / 3000**2)
    assert all(cost > 1.1 * cheaper for cost, cheaper in itertools.pairwise(costs))
    # The blocked operator's pass counts one half.
    assert costs[3] < 0.2


def two_places(elsewhere: int) -> np.ndarray:
    """Samples at 0, a box from 1 to 2 with one sample at its near end, and others out of reach."""
    return np.r_[np.zeros(128), 1.0, np.full(127, 2.0), np.full(elsewhere, 100.0)][:, None]


@pytest.mark.parametrize("far_weight", [0.0, 1.0])
def test_the_worst_case_of_pruning_is_what_the_bound_says(two_threads: LocalExecutor, far_weight: float) -> None:
    """All of a part's weight sits where the kernel is farthest from its middle value.

    With weight elsewhere the part is beyond its share, and is bought with what the distant weights left.
    """
    X = two_places(256)
    kernel = SquaredExponential((np.log(2.0),))
    V = np.zeros((512, 1))
    V[128], V[256:] = 1.0, far_weight
    with TreeKernelOperator(kernel, NOISE_VARIANCE, ArrayInputs(X), two_threads, error=0.3) as operator:
        off = np.abs(operator.matmat(V) - kernel(X, X) @ V - NOISE_VARIANCE * V)
        # From its own box, (1 - 1/2) / 2; from zero, (1/2 - 1/16) / 2.
        assert off[128, 0] == pytest.approx(0.25)
        assert off[0, 0] == pytest.approx(0.21875)
        assert operator.error_bound == pytest.approx(0.25)


def test_a_target_with_large_weights_is_not_pruned_for_the_sake_of_another(two_threads: LocalExecutor) -> None:
    X = two_places(0)
    kernel = SquaredExponential((np.log(2.0),))
    V = np.zeros((256, 3))
    V[128] = [1.0, 100.0, 1.0]
    V[200:, 2] = 1.0
    with TreeKernelOperator(kernel, NOISE_VARIANCE, ArrayInputs(X), two_threads, error=0.3) as operator:
        off = np.abs(operator.matmat(V) - kernel(X, X) @ V - NOISE_VARIANCE * V)
        assert off.max() <= operator.error_bound <= 0.3 + 1e-10


def test_the_worst_case_of_float32_sums_is_bounded(two_threads: LocalExecutor, rng: np.random.Generator) -> None:
    """Weights that lose half a unit in the last place with every addition once 64 of them are summed."""
    X, V = rng.uniform(0.0, 1e-4, (256, 1)), np.full((256, 1), 1.0 + 2.0**-18 - 2.0**-22)
    kernel = SquaredExponential((1.0,))
    with TreeKernelOperator(kernel, NOISE_VARIANCE, ArrayInputs(X), two_threads, error=1e-9) as operator:
        off = np.abs(operator.matmat(V, "single") - kernel(X, X) @ V - NOISE_VARIANCE * V).max()
        assert 20.0 * 2.0**-24 * V.sum() < off <= operator.error_bound


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_what_adding_the_noise_rounds_off_is_in_the_bound(
    two_threads: LocalExecutor, rng: np.random.Generator, sign: float
) -> None:
    """A sample with itself, k = 1, beside a noise that is far larger: sums of two, against fractions."""
    X, noise = np.zeros((1, 1)), 3.3e12
    with TreeKernelOperator(SquaredExponential((1.0,)), noise, ArrayInputs(X), two_threads) as operator:
        for weight in sign * rng.uniform(0.5, 2.0, 20):
            for product in (
                operator.matmat(np.full((1, 1), weight)),
                operator.apply_columns(np.array([0]), np.full((1, 1), weight), "double"),
            ):
                exact = Fraction(weight) * (1 + Fraction(noise))
                assert abs(Fraction(float(product[0, 0])) - exact) <= Fraction(operator.error_bound)
                assert operator.error_bound <= 4.0 * np.finfo(float).eps * abs(float(product[0, 0]))


def test_additions_that_a_sum_takes_are_counted(two_threads: LocalExecutor, rng: np.random.Generator) -> None:
    """All samples are one part, taken at once: those of two leaves, the walk, the part, and its boxes' corners.

    Each may cost eps of the weights times what an entry comes to and, by a distance's own rounding, its steepest slope.
    """
    d, eps = 3, np.finfo(float).eps
    X, V = np.full((500, d), 0.7), rng.standard_normal((500, 1))
    with TreeKernelOperator(SquaredExponential((1.0,) * d), 1e-9, ArrayInputs(X), two_threads, error=1e-6) as operator:
        product = operator.matmat(V)
        additions = 2 * 32 + 64 + 1 + 4 * d
        expected = additions * eps * (1.0 + np.exp(-1.0)) * np.abs(V).sum() + 2.0 * eps * np.abs(product).max()
        assert operator.error_bound == pytest.approx(expected, rel=2e-3, abs=0.0)


def test_all_samples_equal_are_one_number(two_threads: LocalExecutor, rng: np.random.Generator) -> None:
    X, V = np.full((500, 2), 0.7), rng.standard_normal((500, 2))
    kernel = SquaredExponential((3.0, 1.0), variance=2.0)
    with TreeKernelOperator(kernel, NOISE_VARIANCE, ArrayInputs(X), two_threads, error=1e-9) as operator:
        found = operator.matmat(V)
        assert operator.kernel_evaluations == 0
    np.testing.assert_allclose(found, 2.0 * V.sum(axis=0) + NOISE_VARIANCE * V, rtol=0, atol=1e-11)


def test_short_length_scales_far_from_the_origin_do_not_spoil_float32(two_threads: LocalExecutor) -> None:
    """Tiles of coordinates as they are would be off by a tenth here."""
    rng = np.random.default_rng(0)
    X = 1000.0 + 1e-2 * rng.standard_normal((800, 2))
    kernel, V = SquaredExponential((1e6, 1e6)), rng.standard_normal((800, 1))
    exact = kernel(X, X) @ V + NOISE_VARIANCE * V
    with TreeKernelOperator(kernel, NOISE_VARIANCE, ArrayInputs(X), two_threads, error=1e-8) as operator:
        assert np.abs(operator.matmat(V, "single") - exact).max() < 1e-4


def test_errors_shrink_with_the_weights(two_threads: LocalExecutor, rng: np.random.Generator) -> None:
    problem = terrain(1000)
    V = rng.uniform(-1.0, 1.0, (1000, 2))
    V[0] = 1.0
    with over(problem, two_threads, error=1e-4) as operator:
        whole, bound = operator.matmat(V), operator.error_bound
        np.testing.assert_array_equal(operator.matmat(V / 1024) * 1024, whole)
        assert operator.error_bound == pytest.approx(bound / 1024)
        # Above one they do not grow.
        operator.matmat(1024 * V)
        assert operator.error_bound <= 1.01e-4


def test_a_task_takes_arrays_that_came_in_a_message(one_thread: LocalExecutor, rng: np.random.Generator) -> None:
    problem = terrain(600)
    weights, active = rng.standard_normal((40, 1)), np.sort(rng.choice(600, 40, replace=False))
    with over(problem, one_thread) as operator:
        context = pickle.loads(pickle.dumps(operator.context))
        expected = tree_task(context, active, weights, np.array([1e-6]), "double", [0])
        for array in (weights, active):
            array.setflags(write=False)
        found = tree_task(context, active, weights, np.array([1e-6]), "double", [0])
        np.testing.assert_array_equal(found[0][0], expected[0][0])


@pytest.mark.parametrize(
    "solver",
    [
        GreedyBlockCoordinateDescent(block_size=100),
        GreedyBlockCoordinateDescent(block_size=100, precision="double"),
        ConjugateGradient(),
        ConjugateGradient(FactorPreconditioning(0, rank=50)),
        KernelConjugateGradient(),
    ],
    ids=["gbcd", "gbcd-double", "cg", "pcg", "kcg"],
)
def test_solvers_converge_on_it(solver: Any, two_threads: LocalExecutor) -> None:
    problem = terrain(400, targets=2, reach=0.1)
    with over(problem, two_threads, error=1e-6) as operator:
        solution = solve(operator, problem.y, solver=solver, stopping=GradientInfNorm(1e-4) | MaxIterations(500))
        operator.matmat(solution.alpha)
        bound = operator.error_bound
        assert operator.kernel_evaluations > 0
    assert solution.converged
    assert bound <= 1.1e-6
    # The true gradient is what the solver saw, but for the error of its products.
    true = problem.gradient(solution.alpha)
    assert np.abs(true).max() <= 1.1e-4
    error = np.linalg.norm(solution.alpha - problem.solution, axis=0)
    assert (error <= np.linalg.norm(true, axis=0) / NOISE_VARIANCE * (1 + 1e-9)).all()


def test_a_solve_over_messages_has_the_same_bits(two_threads: LocalExecutor) -> None:
    """Where rounds overlap, solvers evaluate entries of a coming product themselves: not those of pruned sums."""
    problem = terrain(800)
    solver, stopping = GreedyBlockCoordinateDescent(block_size=60), GradientInfNorm(1e-3) | MaxIterations(200)
    overlapping = OverlappingExecutor(2)
    found = set()
    for executor in (two_threads, overlapping):
        with over(problem, executor, error=1e-4) as operator:
            assert not operator.overlaps
            assert operator.overlap_evaluations == 0
            found.add(solve(operator, problem.y, solver=solver, stopping=stopping).alpha.tobytes())
    overlapping.close()
    assert len(found) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_stay_so(
    two_threads: LocalExecutor, rng: np.random.Generator, value: float
) -> None:
    problem = terrain(300)
    V = rng.standard_normal((300, 2))
    with over(problem, two_threads) as operator:
        whole = operator.matmat(V)
        V[17, 1] = value
        found = operator.matmat(V)
        assert not np.isfinite(found[:, 1]).any()
        np.testing.assert_array_equal(found[:, 0], whole[:, 0])
        assert not np.isfinite(operator.apply_columns(np.array([17]), V[[17]])[:, 1]).any()


@pytest.mark.parametrize("shape", [(300, 2), (300, 0)])
def test_nothing_is_nothing(two_threads: LocalExecutor, shape: tuple[int, int]) -> None:
    with over(terrain(300), two_threads) as operator:
        np.testing.assert_array_equal(operator.matmat(np.zeros(shape)), np.zeros(shape))
        assert operator.kernel_evaluations == 0
        assert operator.error_bound == 0.0


def test_the_tree_is_built_once_and_forgotten_on_close(two_threads: LocalExecutor, rng: np.random.Generator) -> None:
    problem, before = terrain(700), worker_cache().nbytes
    operator = over(problem, two_threads, coordinator_input_bytes=0)
    misses = worker_cache().misses
    for precision in ("single", "double"):
        operator.matmat(rng.standard_normal((700, 1)), precision)
    assert worker_cache().misses == misses + 1
    assert worker_cache().nbytes > before
    operator.close()
    assert worker_cache().nbytes == before


def test_features_that_the_kernel_does_not_look_at_do_not_count(
    two_threads: LocalExecutor, rng: np.random.Generator
) -> None:
    X, V = rng.standard_normal((200, 9)), rng.standard_normal((200, 1))
    kernel = SquaredExponential((0.0, 1.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    with TreeKernelOperator(kernel, NOISE_VARIANCE, ArrayInputs(X), two_threads, error=1e-10) as operator:
        np.testing.assert_allclose(operator.matmat(V), kernel(X, X) @ V + NOISE_VARIANCE * V, rtol=0, atol=2e-10)
    with pytest.raises(InputError, match="up to 6 features; got 9, where boxes"):
        TreeKernelOperator(SquaredExponential((1.0,) * 9), NOISE_VARIANCE, ArrayInputs(X), two_threads)


@pytest.mark.parametrize("error", [0.0, -1e-3, np.nan, np.inf])
def test_errors_that_make_no_sense_are_refused(two_threads: LocalExecutor, error: float) -> None:
    with pytest.raises(InputError, match="the error of tree sums must be finite and positive; got"):
        over(terrain(50), two_threads, error=error)
