"""Float32 rounds under a float64 gradient, down to little noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.errors import NumericalError
from dkgp.kernels import Kernel, SquaredExponential, TileEvaluator
from dkgp.kernels.expression import parse_kernel
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.solvers import (
    ConjugateGradient,
    FactorPreconditioning,
    GradientInfNorm,
    MaxIterations,
    Solution,
    StoppingRule,
    choose_solver,
    solve,
)
from dkgp.solvers.conjugate.gradient import ConjugateGradientState
from dkgp.solvers.conjugate.probe import Probe, _least_at
from dkgp.solvers.driver import Watch
from dkgp.solvers.method_run import PrecisionPolicy
from dkgp.solvers.registry import build_solver
from dkgp.solvers.stopping import Progress
from tests.resuming import Resuming
from tests.solvers.problems import Problem, smooth_problem

PROBLEM = smooth_problem(400, 3, targets=2, noise_variance=0.1)
QUICK = ConjugateGradient(FactorPreconditioning(0, rank=120))


def watched(executor: LocalExecutor, **options: Any) -> tuple[Solution, list[tuple[str, int]]]:
    """A solve, and the precision and the columns of its products with the whole matrix."""
    operator, products = PROBLEM.blocked(executor), []
    matmat = operator.matmat

    def listening(V: np.ndarray, precision: str = "double") -> np.ndarray:
        products.append((precision, V.shape[1]))
        return matmat(V, precision)

    operator.matmat = listening
    return solve(operator, PROBLEM.y, **options), products


def test_a_quick_solve_is_verified_by_its_last_round(executor: LocalExecutor) -> None:
    solution, products = watched(executor, solver=QUICK, stopping=GradientInfNorm(1e-4))
    assert solution.converged
    assert solution.refreshes == 1
    assert products == [("single", 2)] * (solution.progress.iteration - 1) + [("double", 4)]
    assert solution.progress.column_passes == solution.progress.iteration - 1
    true = PROBLEM.gradient(solution.alpha)
    assert np.abs(true).max() <= 1.01e-4
    np.testing.assert_allclose(solution.gradient, true, rtol=0, atol=1e-10)
    # The round before had yet to meet the tolerance.
    assert solution.history[-2].gradient_inf_norm > 1e-4


def test_an_answer_is_not_stepped_away_from(executor: LocalExecutor) -> None:
    """The step that comes with the last product would take max|g| above the tolerance again, twice, and be the end."""
    rng = np.random.default_rng([150, 3])
    X, kernel = np.repeat(rng.standard_normal((150, 3)), 2, axis=0), parse_kernel("rbf * linear", 3)
    y = np.random.default_rng(300).standard_normal((300, 1))
    operator = BlockedKernelOperator(kernel, 1e-6, ArrayInputs(X), executor)
    solver = ConjugateGradient(FactorPreconditioning(40, 20, 10))
    found = solve(operator, y, solver=solver, stopping=GradientInfNorm(1e-4) | MaxIterations(300))
    assert found.converged
    true = (kernel(X, X) + 1e-6 * np.eye(300)) @ found.alpha - y
    assert np.abs(true).max() <= 1e-4
    np.testing.assert_allclose(found.gradient, true, rtol=0, atol=1e-6)
    # Its last round has looked at what the one before believed, and left alpha as it was.
    assert "check" in found.history[-1].timings
    assert not found.stepped.size


def test_float64_throughout_takes_no_product_more(executor: LocalExecutor) -> None:
    solver = ConjugateGradient(QUICK.preconditioner, "double")
    solution, products = watched(executor, solver=solver, stopping=GradientInfNorm(1e-4))
    assert products == [("double", 2)] * (solution.progress.iteration - 1) + [("double", 4)]


def test_a_solve_that_is_stopped_short_is_verified_where_it_stands(executor: LocalExecutor) -> None:
    solution, products = watched(executor, solver=QUICK, stopping=GradientInfNorm(1e-4) | MaxIterations(2))
    assert (solution.converged, solution.progress.iteration) == (False, 2)
    assert products == [("single", 2), ("single", 2), ("double", 2)]
    assert not solution.stepped.size


def ranked(rank: int, precision: str = "mixed") -> ConjugateGradient:
    return ConjugateGradient(FactorPreconditioning(0, rank=rank), precision)


class TestAFirstProductInDouble:
    """The first step would drift above the tolerance, and the later ones would not."""

    @pytest.mark.parametrize(
        ("rank", "tolerance", "products"),
        [
            (200, 1e-5, "DV"),  # the second round should be the last, and is
            (160, 1e-5, "DSV"),
            (160, 1e-4, "SSV"),  # the first step's drift is within the tolerance
            (60, 1e-5, "SSSSSSSSVSSV"),  # steps after the first one drift too far as well
            (160, 1e-8, "SSVSV"),
        ],
    )
    def test_takes_the_place_of_one_in_single_and_a_check(
        self, executor: LocalExecutor, rank: int, tolerance: float, products: str
    ) -> None:
        """D and S: of the directions alone, in float64 and in float32; V: with alpha, which verifies the gradient."""
        solution, taken = watched(executor, solver=ranked(rank), stopping=GradientInfNorm(tolerance))
        named = {("double", 2): "D", ("single", 2): "S", ("double", 4): "V"}
        assert "".join(named[product] for product in taken) == products
        assert solution.converged
        assert solution.refreshes == len(products) - products.count("S")
        true = PROBLEM.gradient(solution.alpha)
        assert np.abs(true).max() <= tolerance + 1e-10
        np.testing.assert_allclose(solution.gradient, true, rtol=0, atol=1e-10)

    def test_is_the_first_of_a_solve_in_double(self, executor: LocalExecutor) -> None:
        """Its step is of the textbook, its gradient the true one, so that nothing has drifted yet."""
        stopping = GradientInfNorm(1e-5) | MaxIterations(1)
        found, products = watched(executor, solver=ranked(160), stopping=stopping)
        double, _ = watched(executor, solver=ranked(160, "double"), stopping=stopping)
        assert products == [("double", 2)]
        np.testing.assert_array_equal(found.alpha, double.alpha)
        np.testing.assert_allclose(found.gradient, PROBLEM.gradient(found.alpha), rtol=0, atol=1e-12)
        assert np.abs(found.gradient).max() > 1e-5

    def test_needs_no_check_where_its_step_is_enough(self, executor: LocalExecutor) -> None:
        found, products = watched(executor, solver=ranked(240), stopping=GradientInfNorm(8e-5))
        assert (found.converged, found.refreshes, products) == (True, 1, [("double", 2)])
        assert np.abs(PROBLEM.gradient(found.alpha)).max() <= 8e-5 + 1e-10
        assert found.stepped.shape == found.alpha.shape

    @pytest.mark.parametrize("stop_after", [1, 2])
    def test_resumes_to_the_same_bits(self, executor: LocalExecutor, tmp_path: Path, stop_after: int) -> None:
        products: list[Any] = []

        def run(**watch: Any) -> Solution:
            options = {"solver": ranked(160), "stopping": GradientInfNorm(1e-6), "watch": Watch(**watch)}
            solution, products[:] = watched(executor, **options)
            return solution

        kept = Resuming(run, tmp_path)
        kept.interrupt(stop_after)
        assert kept.require_same(run()).refreshes == 2
        assert products == [("single", 2), ("double", 4)][stop_after - 1 :]

    def test_is_not_taken_for_landmarks_at_random(self, executor: LocalExecutor) -> None:
        """Nothing tells what they leave."""
        solver = ConjugateGradient(FactorPreconditioning(0, rank=200, landmarks="uniform"))
        _, products = watched(executor, solver=solver, stopping=GradientInfNorm(1e-5))
        assert products[0] == ("single", 2)


class Astray(BlockedKernelOperator):
    """Float32 products with another matrix: what rounding makes of some kernels on some processors, here on any."""

    less = 0.0

    def matmat(self, V: np.ndarray, precision: str = "double") -> np.ndarray:
        product = super().matmat(V, precision)
        return product - self.less * V if precision == "single" else product


LITTLE = 0.01
# Its eigenvalues along equal samples are just below zero, where noise is all that Kbar has of them.
INDEFINITE = 1.01 * LITTLE


@pytest.mark.parametrize(
    ("kernel", "noise", "every", "less"),
    [
        # Steps along float32 tiles that are not positive definite may come to worse than the start.
        ("polynomial(degree=3)", 1e-6, 2, 0.0),
        ("rbf", 1e-7, 2, 0.0),
        ("1e6 * rbf", 1e-2, 1, 0.0),
        # These do.
        ("rbf", LITTLE, 2, INDEFINITE),
    ],
)
def test_float32_that_led_astray_is_begun_again_in_float64(
    executor: LocalExecutor, kernel: str, noise: float, every: int, less: float
) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((400, 3)), np.random.default_rng(5).standard_normal((400, 1))
    X = np.repeat(X[: 400 // every], every, axis=0)
    parsed, seen = parse_kernel(kernel, 3), []
    solver = ConjugateGradient(
        FactorPreconditioning(40, 20, 10),
        observe=lambda state: seen.append((state.precision, bool(state.alpha.any()))),
    )
    operator = Astray(parsed, noise, ArrayInputs(X), executor)
    operator.less = less
    found = solve(operator, y, solver=solver, stopping=GradientInfNorm(1e-4) | MaxIterations(200))
    assert found.converged
    K = parsed(X, X) + noise * np.eye(400)
    assert np.abs(K @ found.alpha - y).max() <= 1.1e-4
    expected = np.linalg.solve(K, y)
    np.testing.assert_allclose(found.alpha, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    begun_again = seen.count(("double", False))
    if less:
        assert (begun_again, seen[1]) == (1, ("single", True))
    else:
        assert begun_again <= 1


@pytest.mark.spread(2)
@pytest.mark.parametrize("last", [1, 2, 3, 20])
def test_begun_again_and_broken_off_it_resumes_to_the_same_bits(
    executor: LocalExecutor, tmp_path: Path, last: int
) -> None:
    """Before, as, and after float32 is given up in the second round."""
    rng = np.random.default_rng(0)
    X, y = np.repeat(rng.standard_normal((400, 3))[:200], 2, axis=0), np.random.default_rng(5).standard_normal((400, 1))
    kernel = parse_kernel("rbf", 3)

    def solved(**watch: Any) -> Solution:
        operator = Astray(kernel, LITTLE, ArrayInputs(X), executor)
        operator.less = INDEFINITE
        solver = ConjugateGradient(FactorPreconditioning(40, 20, 10))
        stopping = GradientInfNorm(1e-4) | MaxIterations(200)
        return solve(operator, y, solver=solver, stopping=stopping, watch=Watch(**watch))

    kept = Resuming(solved, tmp_path)
    kept.interrupt(last)
    kept.require_same()
    assert kept.whole.history[1].objective == 0.0 > kept.whole.history[2].objective


@pytest.mark.parametrize("precision", ["mixed", "double"])
def test_float64_that_breaks_down_is_an_error_in_words(precision: str) -> None:
    operator, products = PROBLEM.dense(), []
    exact = operator.matmat

    def breaking(V: np.ndarray, precision: str = "double") -> np.ndarray:
        products.append(precision)
        return np.full(V.shape, np.nan) if len(products) > 3 else exact(V, precision)

    operator.matmat = breaking
    with pytest.raises(NumericalError, match="(broke down in|rounds the kernel matrix, in) float64.*Raise the noise"):
        solve(operator, PROBLEM.y, solver=ConjugateGradient(None, precision))
    # Once begun again, where it began in float32; not again and again.
    assert len(products) < 10


def test_a_matrix_without_curvature_is_an_error_in_words() -> None:
    operator = PROBLEM.dense()
    operator.matmat = lambda V, precision="double": -V
    for precision in ("mixed", "double"):
        with pytest.raises(NumericalError, match="no curvature along the gradient: it is not positive definite"):
            solve(operator, PROBLEM.y, solver=ConjugateGradient(None, precision))


def state(moved: float, needed_fall: float) -> ConjugateGradientState:
    found = ConjugateGradient().start(PROBLEM.dense(), PROBLEM.y)
    found.moved, found.needed_fall = np.array([moved, 0.0]), needed_fall  # the target that has moved farthest counts
    return found


class TestWhenItIsDue:
    @pytest.mark.parametrize(
        ("falls", "due"),
        [
            ((), False),
            ((1.2,), False),
            ((100.0, 30.0, 9.0, 2.0), True),  # the next should be about a half
            ((5.0, 4.0, 3.0, 2.0), False),
            ((1.4, 1.3, 1.2, 1.1), False),  # nearly there, but slowly
            ((1.1, 1.2, 1.3, 1.01), False),
            ((2.0, 3.0), False),
            ((1.2, 1.0), False),  # five sixths
            ((10.0, 12.0, 12.0, 0.8), True),  # to and fro, but a twelfth of what it was
        ],
    )
    def test_the_end_is_foreseen_by_the_last_rounds(self, falls: tuple[float, ...], due: bool) -> None:
        found = state(0.0, falls[-1] if falls else np.inf)
        progress = found.measured(PROBLEM.dense())
        policy = PrecisionPolicy(PROBLEM.dense())
        assert policy.is_due(found, progress, falls) is due
        if due:
            # In vain, and the recursion was right about what it had: then it is waited for.
            assert policy.stalled(found, progress, progress, claimed=False) is None
            assert not policy.is_due(found, progress, falls)
            again = PrecisionPolicy(PROBLEM.dense())
            again.restore(policy.to_json() | {"typical_entry": 1.0})
            assert not again.is_due(found, progress, falls)

    @pytest.mark.parametrize(("share", "due"), [(0.01, True), (0.02, False), (0.5, False)])
    def test_after_the_first_round_an_eighth_of_its_fall_is_foreseen(self, share: float, due: bool) -> None:
        """A fall of 7 is left: 8 shares of a hundredth are .56, of a fiftieth 1.12."""
        found, start = state(0.0, 7.0), state(0.0, np.inf).measured(PROBLEM.dense())
        policy = PrecisionPolicy(PROBLEM.dense())
        policy.begin(found, start)
        found.gradient = share * found.gradient
        progress = found.measured(PROBLEM.dense())
        for one in (policy, PrecisionPolicy(PROBLEM.dense())):
            one.restore(policy.to_json())
            assert one.is_due(found, progress, (7.0,)) is due
        # Of a checkpoint that does not say where the solve began, nothing is foreseen yet.
        policy.restore({name: value for name, value in policy.to_json().items() if name != "start_norm"})
        assert not policy.is_due(found, progress, (7.0,))

    def test_only_what_was_foreseen_was_foreseen_in_vain(self) -> None:
        """Before any round, and where drift alone asked for the gradient: the end may be foreseen yet."""
        operator, falls = PROBLEM.dense(), (100.0, 30.0, 9.0, 2.0)
        drifted, found = state(1e12, np.inf), state(0.0, 2.0)
        policy, progress = PrecisionPolicy(operator), found.measured(operator)
        assert policy.stalled(found, progress, progress, claimed=False) is None
        assert policy.is_due(found, progress, falls)
        assert policy.is_due(drifted, progress, falls)
        assert policy.stalled(found, progress, progress, claimed=False) is None
        assert policy.is_due(found, progress, falls)

    def test_drift_counts_where_it_would_matter_at_the_end(self) -> None:
        # A drift of about a seventh of the gradient, and an end that is near, or far below it.
        operator = PROBLEM.dense()
        for left, near in ((1.01, True), (1e5, False)):
            found = state((0.25 / (5 * 2.3e-7 * operator.typical_entry())) ** 2, left)
            policy, progress = PrecisionPolicy(operator), found.measured(operator)
            assert 1.6 < progress.gradient_inf_norm < 4.0
            assert policy.is_due(found, progress, ())
            assert policy.is_due(found, progress, (left, left)) is not near

    def test_a_recursion_that_is_far_off_is_not_believed_again(self) -> None:
        operator = PROBLEM.dense()
        found = state(1.0, 2.0)
        policy, believed = PrecisionPolicy(operator), found.measured(operator)
        found.exact, found.gradient = False, 1e-3 * found.gradient
        small = found.measured(operator)
        found.renew_gradient(operator)
        # The gradient is a thousand times what the recursion had it: float64 from the second time on.
        assert policy.stalled(found, believed, small, claimed=False) is None
        assert found.precision == "single"
        assert policy.stalled(found, believed, small, claimed=False) is None
        assert found.precision == "double"
        # And where that comes no closer either it is the end, in this run or one that is resumed.
        assert policy.stalled(found, believed, small, claimed=False) is None
        resumed = PrecisionPolicy(operator)
        resumed.restore(policy.to_json())
        for each in (policy, resumed):
            reason = each.stalled(found, believed, small, claimed=False)
            assert reason is not None
            assert (reason.rule, reason.converged) == ("rounding", False)


class TestWhetherFloat32IsToBeBelieved:
    """For a solve from an objective of -10 (n = 400, two targets) no later one is higher, up to rounding."""

    @staticmethod
    def begun(**differing: Any) -> tuple[PrecisionPolicy, ConjugateGradientState, Progress]:
        operator = PROBLEM.dense()
        for name, value in differing.items():
            setattr(operator, name, value)
        policy, found = PrecisionPolicy(operator), state(1.0, 2.0)
        start = replace(found.measured(operator), objective=-10.0)
        policy.begin(found, start)
        return policy, found, start

    @pytest.mark.parametrize(
        ("objective", "largest", "broke"),
        [
            (-11.0, 1e9, False),
            (-10.0 + 1.0e-5, 1.0, False),  # rounding of the objective, and of each entry's share in it
            (-10.0 + 1.2e-5, 1.0, True),
            (-9.9, 1.0, True),
            (5.0, 1.0, True),
            (np.nan, 1.0, True),
            (-11.0, np.inf, True),
            (-11.0, np.nan, True),
        ],
    )
    def test_an_objective_above_the_start_is_not(self, objective: float, largest: float, broke: bool) -> None:
        policy, found, start = self.begun()
        assert policy.broke_down(found, replace(start, objective=objective, gradient_inf_norm=largest)) is broke

    def test_an_approximate_product_may_be_off_by_its_bound(self) -> None:
        policy, found, start = self.begun(approximate=True, error_rows=np.full((1, 1), 0.5))
        found.alpha = np.zeros((400, 2))
        found.alpha[[3, 7], [0, 1]] = -2.0, 1.0  # half of |-2| + |1|
        assert not policy.broke_down(found, replace(start, objective=-8.51))
        assert policy.broke_down(found, replace(start, objective=-8.49))

    def test_rounds_go_on_in_it_for_as_long_as_they_gain(self) -> None:
        policy, found, start = self.begun()
        # What is verified is held against what was, not against what the recursion had.
        for objective, precision in ((-11.0, "single"), (-12.0, "single"), (-11.5, "double")):
            found.verified = replace(start, objective=objective)
            policy.note_renewal(found, found.verified)
            assert found.precision == precision
        assert policy.refreshes == 3
        # Nor is it gone back to, in this run or one that is resumed.
        resumed = PrecisionPolicy(PROBLEM.dense())
        resumed.restore(policy.to_json())
        for each in (policy, resumed):
            found.precision, found.verified = "single", replace(start, objective=-13.0)
            each.note_renewal(found, found.verified)
            assert (found.precision, each.refreshes) == ("double", 4)

    def test_products_that_gain_nothing_are_sharpened_as_long_as_they_can_be(self) -> None:
        digits = iter((True, True, False))
        policy, found, start = self.begun(sharpen=lambda: next(digits))
        for objective, precision in ((-11.0, "single"), (-10.5, "single"), (-10.2, "single"), (-10.1, "double")):
            found.verified = replace(start, objective=objective)
            policy.note_renewal(found, found.verified)
            assert found.precision == precision
        # The rounds of float64 have had no chance yet.
        assert policy.stalled(found, start, start, True) is None
        operator, calls = PROBLEM.dense(), []
        operator.sharpen = lambda: calls.append(1) or True  # type: ignore[method-assign,func-returns-value]
        PrecisionPolicy(operator).restore(policy.to_json())
        assert len(calls) == 2

    def test_the_same_objective_is_no_gain_but_no_recursion_is_none_to_blame(self) -> None:
        policy, found, start = self.begun()
        found.verified = None
        policy.note_renewal(found, start)
        assert found.precision == "single"
        found.verified = start
        policy.note_renewal(found, start)
        assert found.precision == "double"


TOLERANCE = 1e-4
STOPPING = GradientInfNorm(TOLERANCE) | MaxIterations(300)
SETTINGS = [(3, 0.3), (3, 5.0), (8, 0.1), (32, 0.02), (256, 0.002)]
NOISES = (1e-2, 1e-4, 1e-6, 1e-8)


def problem(n: int, d: int, gamma: float, noise: float, duplicates: bool = False) -> Problem:
    """Waves over Gaussian inputs; 256 features lie near a plane of six, as those of images do."""
    rng = np.random.default_rng(d)
    X = rng.standard_normal((n, d))
    if d == 256:
        X = 0.4 * X[:, :6] @ rng.standard_normal((6, d)) + 0.05 * X
    if duplicates:
        X[n // 2 :] = X[: n - n // 2]
    y = np.sin(X @ rng.standard_normal((d, 2)) * 1.5 / np.sqrt(d)) + np.sqrt(noise) * rng.standard_normal((n, 2))
    return Problem(SquaredExponential((gamma,) * d), noise, X, (y / y.std(axis=0))[:, : 1 + duplicates])


def problems(n: int) -> Iterator[Problem]:
    for d, gamma in SETTINGS:
        for noise in NOISES:
            for duplicates in (False, True):
                yield problem(n, d, gamma, noise, duplicates)


def require_solved(found: Problem, executor: LocalExecutor, solver: Any) -> Any:
    with found.blocked(executor) as operator:
        solution = solve(operator, found.y, solver=solver, stopping=STOPPING)
    assert solution.converged
    assert np.abs(found.gradient(solution.alpha)).max() <= 1.01 * TOLERANCE
    return solution


@pytest.mark.long
def test_the_factor_as_it_comes_solves_them_all(executor: LocalExecutor) -> None:
    for found in problems(300):
        require_solved(
            found, executor, ConjugateGradient(FactorPreconditioning()).resolved(300, found.kernel.n_features)
        )


@pytest.mark.slow
def test_without_room_for_the_matrix_auto_picks_what_gets_there(executor: LocalExecutor) -> None:
    picked = set()
    for found in list(problems(500))[::3]:
        d = found.kernel.n_features
        choice = choose_solver(found.kernel, found.noise_variance, found.X[::2], 500, memory_bytes=400_000)
        solver = build_solver(choice.solver, choice.options, precision=choice.precision)
        require_solved(found, executor, solver.resolved(500, d))
        picked.add((choice.solver, choice.precision))
    assert {("pcg", "mixed"), ("pcg", "double")} <= picked
    assert "cholesky" not in {solver for solver, _ in picked}


# Float32 entries take 1e-6 from eigenvalues that are next to nothing, so that the matrix with this noise is indefinite.
HARD = (400, 3, 0.3, 5e-8)


def test_float32_that_leads_astray_is_given_up_before_float64_goes_on(executor: LocalExecutor) -> None:
    found = problem(*HARD)
    with found.blocked(executor) as operator:
        features = operator.single.prepare(found.X)
        single = np.asarray(operator.single.tile(features, features), dtype=np.float64)
    assert np.linalg.eigvalsh(single)[0] < -found.noise_variance
    solution = require_solved(found, executor, ConjugateGradient(FactorPreconditioning()).resolved(400, 3))
    in_double = require_solved(found, executor, ConjugateGradient(FactorPreconditioning(), "double").resolved(400, 3))
    # Some rounds of float32, a float64 product, and the same way from the start.
    rounds = len(in_double.history) - 1
    norms, wanted = ([each.gradient_norm for each in run.history[-rounds:]] for run in (solution, in_double))
    assert norms == wanted
    assert solution.refreshes > in_double.refreshes


@pytest.mark.spread(2)
@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 6])
def test_broken_off_while_it_finds_that_out_it_resumes_to_the_same_bits(
    executor: LocalExecutor, tmp_path: Any, rounds: int
) -> None:
    found, solver = problem(*HARD), ConjugateGradient(FactorPreconditioning()).resolved(400, 3)
    require_solved(found, executor, solver)

    def run(stopping: StoppingRule = STOPPING, **watch: Any) -> Solution:
        with found.blocked(executor) as operator:
            return solve(operator, found.y, solver=solver, stopping=stopping, watch=Watch(**watch))

    kept = Resuming(run, tmp_path)
    kept.start(every_seconds=0.0, stopping=GradientInfNorm(TOLERANCE) | MaxIterations(rounds))
    assert kept.require_same(every_seconds=0.0).converged


FEW = np.random.default_rng(0).uniform(-(3**0.5), 3**0.5, (1250, 8))  # of variance one


@cache
def least_in_float32(kernel: Kernel) -> float:
    """The least eigenvalue of the few samples' matrix, as float32 has it."""
    single = TileEvaluator(kernel, "single")
    features = single.prepare(FEW)
    return float(np.linalg.eigvalsh(np.asarray(single.tile(features, features), dtype=np.float64))[0])


class TestTheLook:
    @pytest.mark.long
    @pytest.mark.parametrize(
        ("d", "gamma", "noise", "double"),
        [
            (3, 0.3, 1e-2, False),
            (3, 0.3, 1e-4, False),
            (3, 0.3, 1e-6, True),
            (8, 1.0, 1e-8, False),  # every sample on its own: float32 leaves the matrix as it is
            (256, 0.002, 1e-4, False),
            (256, 0.002, 1e-8, False),
        ],
    )
    def test_it_says_where_float32_will_not_do(self, d: int, gamma: float, noise: float, double: bool) -> None:
        found = problem(1000, d, gamma, noise)
        probe = Probe(found.kernel, noise, found.X, 2000)
        assert probe.double is double
        # And counts come to an end, that of float64 where float32 has none.
        assert 2 <= probe.iterations(500, 250, 0) <= 200

    @pytest.mark.covering
    @pytest.mark.parametrize("variance", [1.0, 400.0])
    @pytest.mark.parametrize(
        ("n", "noise", "double"),
        [
            (4_000, 1e-8, False),
            (10_000, 1e-8, True),
            (10_000, 1e-4, False),
            (30_000, 1e-8, True),
            (30_000, 1e-4, False),
        ],
    )
    def test_it_says_what_float32_takes_of_all_samples_and_not_of_the_few(
        self, n: int, noise: float, double: bool, variance: float
    ) -> None:
        kernel = SquaredExponential((0.12,) * 8, variance)
        probe = Probe(kernel, noise * variance, FEW, n)
        assert probe.double is double
        # The few alone, which are positive definite in float32 by far, say nothing of it.
        assert least_in_float32(kernel) > 1e-5 * variance

    @pytest.mark.long
    def test_the_least_eigenvalue_of_all_is_foreseen_from_the_few(self) -> None:
        inputs = np.random.default_rng(1).standard_normal((2000, 8))
        matrix = SquaredExponential((0.2,) * 8)(inputs, inputs)
        lower = np.asarray(np.linalg.cholesky(matrix[:500, :500]), dtype=np.float64)
        foreseen = _least_at(2000, lower)
        few, known = (np.linalg.eigvalsh(matrix[:size, :size])[0] for size in (500, 2000))
        assert known / 2.0 < foreseen < 8.0 * known < 0.5 * few
        assert _least_at(500, lower) == pytest.approx(few, rel=0.2)

    def test_a_breakdown_is_no_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = problem(1000, 3, 0.3, 1e-8)
        monkeypatch.setattr("dkgp.solvers.conjugate.probe._Subset.takes_double", lambda self, noise, n: False)
        assert Probe(found.kernel, 1e-8, found.X, 2000).iterations(100, 50, 0) == np.inf

    def test_what_it_says_is_what_the_solver_is_told(self) -> None:
        found = problem(1000, 3, 0.3, 1e-6)
        choice = choose_solver(found.kernel, 1e-6, found.X, 100_000)
        assert choice.solver != "cholesky"
        assert choice.precision == "double"
        assert choose_solver(found.kernel, 0.1, found.X, 100_000).precision == "mixed"
