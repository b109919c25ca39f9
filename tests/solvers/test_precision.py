"""When the gradient is computed anew in float64, and at what cost: in a round of its own product where a method can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import CheckpointStore
from dkgp.errors import InterruptedRunError, NumericalError
from dkgp.kernels.expression import parse_kernel
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.solvers import (
    Checkpointing,
    ConjugateGradient,
    FactorPreconditioning,
    GradientInfNorm,
    MaxIterations,
    Solution,
    solve,
)
from dkgp.solvers.conjugate.gradient import ConjugateGradientState
from dkgp.solvers.precision import PrecisionPolicy
from dkgp.solvers.watch import Watch
from tests.solvers.problems import smooth_problem

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


@pytest.mark.parametrize("last", [1, 2, 3, 20])
def test_begun_again_and_broken_off_it_resumes_to_the_same_bits(
    executor: LocalExecutor, tmp_path: Path, last: int
) -> None:
    """Before, as, and after float32 is given up in the second round."""
    rng = np.random.default_rng(0)
    X, y = np.repeat(rng.standard_normal((400, 3))[:200], 2, axis=0), np.random.default_rng(5).standard_normal((400, 1))
    kernel, done = parse_kernel("rbf", 3), [0]
    store = CheckpointStore(tmp_path / "checkpoints")

    def solved(**watch: Any) -> Solution:
        operator = Astray(kernel, LITTLE, ArrayInputs(X), executor)
        operator.less = INDEFINITE
        solver = ConjugateGradient(FactorPreconditioning(40, 20, 10))
        stopping = GradientInfNorm(1e-4) | MaxIterations(200)
        return solve(operator, y, solver=solver, stopping=stopping, watch=Watch(**watch))

    whole = solved()
    with pytest.raises(InterruptedRunError):
        solved(
            checkpointing=Checkpointing(store, 1e9),
            callback=lambda progress: done.__setitem__(0, progress.iteration),
            interrupted=lambda: done[0] >= last,
        )
    resumed = solved(checkpointing=Checkpointing(store, 1e9, resume=True))
    assert resumed.alpha.tobytes() == whole.alpha.tobytes()
    assert [each.gradient_norm for each in resumed.history] == [each.gradient_norm for each in whole.history]
    assert whole.history[1].objective == 0.0 > whole.history[2].objective


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
    found.moved, found.needed_fall = np.array([moved]), needed_fall
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
            again.resume(policy.to_json() | {"typical_entry": 1.0})
            assert not again.is_due(found, progress, falls)

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
