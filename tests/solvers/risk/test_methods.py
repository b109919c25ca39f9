"""All methods for a risk alike: one least risk, the same bits after any stop and on any number of workers.

Kernel CG and parameter CG, step by step, against the paper's algorithm written down as it is printed.

N. Ratliff, J. A. Bagnell, Kernel Conjugate Gradient for Fast Kernel Machines (2007), Algorithm 1, on a dense matrix,
every line minimised by a root finder; parameter CG is the same with the ordinary gradient and inner product.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.operators import ArrayInputs, BlockedKernelOperator, CachedColumnsOperator, DenseKernelOperator, ProductError
from dkgp.operators.base import FloatArray
from dkgp.solvers import (
    Cholesky,
    ConjugateGradient,
    FactorPreconditioning,
    GreedyBlockCoordinateDescent,
    MaxIterations,
    Progress,
)
from dkgp.solvers.losses import HuberLoss, LogisticLoss, ProbitLoss, SoftmaxLoss, SquaredHingeLoss, SquaredLoss
from dkgp.solvers.risk import (
    RISK_HELP,
    RISK_METHODS,
    Risk,
    RiskMajorisation,
    RiskNewton,
    RiskSolution,
    minimise_by,
    risk_memory,
)
from tests.resuming import Resuming, kill, require_same_bits
from tests.solvers.problems import smooth_problem
from tests.solvers.risk.running import minimised_by

PROBLEM = smooth_problem(240, 2, gamma=2.0)
LABELS = np.where(PROBLEM.y[:, 0] > 0.1, 1.0, -1.0)
ONE_HOT = np.eye(3)[np.digitize(PROBLEM.y[:, 0], [-0.3, 0.4])]
WEIGHTS = 0.5 + np.arange(240) % 3
FAST = ("kcg", "newton", "majorisation", "auto")
QUICK = [
    ("kcg", "mixed", LogisticLoss()),
    ("newton", "mixed", SoftmaxLoss()),
    ("gradient", "double", LogisticLoss()),
    ("paramcg", "mixed", SoftmaxLoss()),
    ("auto", "double", LogisticLoss()),
]
slow = pytest.mark.slow
every_method = pytest.mark.parametrize(
    "method", ["kcg", "newton", pytest.param("majorisation", marks=pytest.mark.slow), "auto"]
)


def minimised(executor: LocalExecutor, targets: np.ndarray, loss: Any, **options: Any) -> RiskSolution:
    return minimised_by(PROBLEM.blocked(executor), targets, loss=loss, **({"regularisation": 0.05} | options))


@pytest.mark.parametrize(
    "loss",
    [
        LogisticLoss(),
        SoftmaxLoss(),
        *(pytest.param(l, marks=slow) for l in (ProbitLoss(), SquaredHingeLoss(), HuberLoss(0.3))),
    ],
)
def test_methods_meet_one_risk(loss: Any, executor: LocalExecutor) -> None:
    targets = ONE_HOT if loss.coupled else LABELS
    found = [
        minimised(executor, targets, loss, method=method, gap=1e-9, regularisation=1.0, max_iterations=5000)
        for method in FAST
    ]
    assert all(each.solution.converged for each in found)
    for one, other in itertools.pairwise(found):
        assert one.risk[0] == pytest.approx(other.risk[0], rel=1e-8)
        assert max(one.lower_bound[0], other.lower_bound[0]) <= min(one.risk[0], other.risk[0]) * (1 + 1e-13)


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("method", "precision", "loss"),
    [
        pytest.param(method, precision, loss, marks=() if (method, precision, loss) in QUICK else slow)
        for method in (*RISK_METHODS, "auto")
        for precision in ("mixed", "double")
        for loss in (LogisticLoss(), SoftmaxLoss())
    ],
)
def test_stopped_after_any_round_it_ends_in_the_same_bits(
    method: str, precision: str, loss: Any, executor: LocalExecutor, tmp_path: Path
) -> None:
    targets = ONE_HOT if loss.coupled else LABELS
    options = {"method": method, "precision": precision, "weights": WEIGHTS}
    options |= {"regularisation": 0.05, "gap": 1e-6} if method in FAST else {"regularisation": 1.0, "gap": 1e-2}
    kept = Resuming(partial(minimised, executor, targets, loss, **options), tmp_path, data="a")
    assert kept.whole.solution.converged
    rounds = kept.whole.solution.progress.iteration
    for stop in range(1, rounds, 1 + rounds // (7 if method in FAST else 3)):
        kept.interrupt(stop)
        kept.require_same()
    kept.require_refused(
        "its solver is .*'regularisation'.*; this run's is .*'regularisation': 0.2", regularisation=0.2
    )


@pytest.mark.long
@pytest.mark.parametrize("method", ["newton", *(pytest.param(each, marks=slow) for each in FAST if each != "newton")])
def test_threads_change_no_bits(method: str) -> None:
    X, labels = np.tile(PROBLEM.X, (8, 1)) + np.repeat(np.arange(8.0), 240)[:, None] / 9.0, np.tile(LABELS, 8)
    found = []
    for threads in (1, 2, 5):
        executor = LocalExecutor(threads)
        with BlockedKernelOperator(PROBLEM.kernel, 1.0, ArrayInputs(X), executor) as operator:
            solution = minimised_by(operator, labels, loss=LogisticLoss(), regularisation=0.1, method=method)
        executor.close()
        assert solution.solution.converged
        found.append(solution)
        require_same_bits(solution, found[0])


@pytest.mark.parametrize(
    "solver", [GreedyBlockCoordinateDescent(block_size=40), ConjugateGradient(FactorPreconditioning(halo=0, rank=60))]
)
def test_majorisation_by_any_solver(solver: Any, executor: LocalExecutor, tmp_path: Path) -> None:
    """Monotone, and resumed to the same bits in the course of a solve."""
    method = RiskMajorisation(Risk(LogisticLoss(), 1.0, WEIGHTS), solver=solver)
    options: dict[str, Any] = {"regularisation": 1.0, "weights": WEIGHTS, "method": method, "gap": 1e-7}
    seen: list[Progress] = []
    whole = minimised(executor, LABELS, LogisticLoss(), **options, callback=seen.append)
    reference = minimised(executor, LABELS, LogisticLoss(), **(options | {"method": "kcg"}))
    assert whole.solution.converged
    assert whole.risk[0] == pytest.approx(reference.risk[0], rel=2e-7)
    assert all(later.objective <= earlier.objective * (1 + 1e-12) for earlier, later in itertools.pairwise(seen))
    kept = Resuming(partial(minimised, executor, LABELS, LogisticLoss(), **options), tmp_path)
    kept.interrupt(6)
    kept.require_same(whole)


def test_auto_takes_newton_where_conjugate_gradients_would_take_long(executor: LocalExecutor) -> None:
    easy = minimised(executor, LABELS, LogisticLoss(), regularisation=10.0)
    assert easy.method == easy.choice["method"] == "kcg"
    hard, plain = (
        minimised(executor, LABELS, LogisticLoss(), regularisation=1e-3, gap=1e-6, method=method)
        for method in ("auto", "kcg")
    )
    assert hard.method == hard.choice["method"] == "newton"
    assert hard.choice["projected_products"] > hard.choice["most_products"]
    assert 1.5 * hard.solution.progress.column_passes < plain.solution.progress.column_passes
    # Without rounds there is no preconditioner, and nothing to take over.
    dense = minimised_by(PROBLEM.dense(), LABELS, loss=LogisticLoss(), regularisation=1e-3, gap=1e-6, max_iterations=50)
    assert dense.method == "kcg"


def test_newton_takes_few_products_with_a_good_factor(executor: LocalExecutor) -> None:
    risk = Risk(LogisticLoss(), 0.01)
    counts = [
        minimised(
            executor, LABELS, LogisticLoss(), regularisation=0.01, gap=1e-8, method=RiskNewton(risk, rank=rank)
        ).solution.progress.column_passes
        for rank in (0, 30, 240)
    ]
    assert counts[2] < 0.5 * counts[0]
    assert counts[2] < counts[1]
    with pytest.raises(InputError, match="the rank of Newton's preconditioner must be 'auto' or not negative; got -1"):
        RiskNewton(risk, rank=-1)


@pytest.mark.parametrize("method", RISK_METHODS)
def test_what_a_method_holds(method: str) -> None:
    held, auto = risk_memory(method, 10_000, 3, 8), risk_memory("auto", 10_000, 3, 8)
    assert held.memory <= auto.memory
    assert (held.factor_bytes > 0) == (method in ("newton", "majorisation"))
    assert RISK_HELP[method]


def test_kept_columns_are_shared_between_noises(executor: LocalExecutor) -> None:
    kept = CachedColumnsOperator(PROBLEM.blocked(executor))
    some, delta = np.array([3, 40, 7]), np.ones((3, 1))
    first = kept.apply_columns(some, delta)
    other = kept.with_noise(np.arange(1.0, 241.0))
    np.testing.assert_allclose(
        (other.apply_columns(some, delta) - first)[some, 0], some + 1.0 - PROBLEM.noise_variance, atol=1e-6
    )
    fresh = np.array([9, 11])
    other.apply_columns(fresh, delta[:2])
    np.testing.assert_allclose(kept.apply_columns(fresh, delta[:2])[:, 0], PROBLEM.matrix[:, fresh].sum(1), atol=1e-5)
    for operator in (PROBLEM.dense(), PROBLEM.blocked(executor), kept):
        found = operator.with_noise(2.0)
        np.testing.assert_allclose(found.matmat(np.eye(240)), PROBLEM.matrix + 1.95 * np.eye(240), atol=1e-9)
        np.testing.assert_allclose(found.diagonal(), 3.0)
        assert operator.noise_variance == PROBLEM.noise_variance


# ------------------------------------------------------------------------------------------------------------- hostile


@every_method
@pytest.mark.parametrize("loss", [LogisticLoss(), ProbitLoss(), SoftmaxLoss(), SquaredHingeLoss()])
def test_separable_with_hardly_any_penalty(method: str, loss: Any, executor: LocalExecutor) -> None:
    """Nothing overflows, the bounds hold, and the risk falls far below the start's."""
    inputs = np.concatenate([np.linspace(-3.0, -1.0, 30), np.linspace(1.0, 3.0, 30)])[:, None]
    labels = np.repeat([-1.0, 1.0], 30)
    targets = np.column_stack([labels < 0.0, labels > 0.0]).astype(float) if loss.coupled else labels
    operator = BlockedKernelOperator(SquaredExponential((1.0,)), 1.0, ArrayInputs(inputs), executor)
    seen: list[Progress] = []
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        found = minimised_by(
            operator,
            targets,
            loss=loss,
            regularisation=1e-9,
            method=method,
            max_iterations=60,
            callback=seen.append,
        )
    assert np.isfinite(found.solution.alpha).all()
    assert found.risk[0] <= 1e-3 * seen[0].objective or found.risk[0] < 1e-4
    assert 0.0 <= found.lower_bound[0] <= found.risk[0]


@every_method
def test_a_warm_start_with_huge_scores_comes_back(method: str, executor: LocalExecutor) -> None:
    least = minimised(executor, LABELS, LogisticLoss(), gap=1e-8).risk[0]
    found = minimised(
        executor, LABELS, LogisticLoss(), method=method, gap=1e-6, initial=-1e6 * LABELS, max_iterations=3000
    )
    assert found.solution.converged
    assert found.risk[0] == pytest.approx(least, rel=2e-6)


@every_method
@pytest.mark.parametrize("precision", ["mixed", "double"])
@pytest.mark.parametrize("inputs", ["equal", "pairs", "two"])
def test_samples_that_are_alike(method: str, precision: str, inputs: str, executor: LocalExecutor) -> None:
    """A constant kernel, duplicates with both labels, one sample a class."""
    X = {"equal": np.zeros((20, 1)), "pairs": np.repeat(np.arange(10.0), 2)[:, None], "two": np.arange(2.0)[:, None]}
    labels = np.where(np.arange(len(X[inputs])) % 2 == 0, 1.0, -1.0)
    labels[: len(labels) // 4] = 1.0
    operator = BlockedKernelOperator(SquaredExponential((0.3,)), 1.0, ArrayInputs(X[inputs]), executor)
    found = minimised_by(
        operator, labels, loss=LogisticLoss(), regularisation=0.5, method=method, precision=precision, gap=1e-9
    )
    assert found.solution.converged
    K = SquaredExponential((0.3,))(X[inputs], X[inputs])
    # At the least alpha = -l'(y, K alpha) / lambda, whatever K's null space.
    slope = -labels / (1.0 + np.exp(labels * found.values[:, 0]))
    np.testing.assert_allclose(K @ found.solution.alpha[:, 0], -K @ slope / 0.5, atol=1e-3)


@every_method
def test_started_at_the_answer_no_round_is_taken(method: str, executor: LocalExecutor) -> None:
    answer = minimised(executor, LABELS, LogisticLoss(), gap=1e-6)
    found = minimised(executor, LABELS, LogisticLoss(), gap=1e-5, method=method, initial=answer.solution.alpha)
    assert found.solution.progress.iteration == 0
    assert found.gradient_image.shape == (240, 1)


# ----------------------------------------------------------------------------------------------------- bounded products


@pytest.mark.parametrize("error", [1e-2, 1e-6])
@every_method
def test_bounds_allow_for_the_errors_of_products(method: str, error: float, executor: LocalExecutor) -> None:
    rng = np.random.default_rng(3)
    X, kernel = rng.uniform(0.0, 30.0, (700, 2)), SquaredExponential((1.0, 1.0))
    labels = np.where(np.sin(X).sum(axis=1) + 0.3 * rng.standard_normal(700) > 0.0, 1.0, -1.0)
    K, options = kernel(X, X), {"loss": LogisticLoss(), "regularisation": 1.0}
    with BlockedKernelOperator(kernel, 1.0, ArrayInputs(X), executor) as exact:
        least = minimised_by(exact, labels, **options, gap=1e-11, precision="double")
    with ProductError(error).operator(kernel, 1.0, ArrayInputs(X), executor) as bounded:
        found = minimised_by(bounded, labels, **options, gap=1e-4, method=method, max_iterations=300)
    alpha = found.solution.alpha
    off = [np.abs(found.values - K @ alpha).max(), np.abs(found.gradient_image - K @ found.gradient).max()]
    assert max(off) <= found.product_error <= 2.0 * error
    assert found.product_error > 0.0
    true = float(np.logaddexp(0.0, -labels[:, None] * (K @ alpha)).sum() + 0.5 * np.sum(alpha * (K @ alpha)))
    assert found.lower_bound[0] <= least.risk[0] * (1 + 1e-12)
    assert true <= found.risk[0] * (1 + 1e-12)
    away = alpha - least.solution.alpha
    assert np.sqrt(np.sum(away * (K @ away))) <= 2.0 * found.solution.progress.distance + 1e-4
    assert found.solution.converged


class RoughOperator(DenseKernelOperator):
    """Products that are off by as much as they say, this way and that."""

    approximate = True
    rough = 0.0

    def matmat(self, V: np.ndarray, precision: Any = "double") -> np.ndarray:
        self.error_rows = np.full(V.shape, self.rough)
        return super().matmat(V, precision) + self.rough * np.sign(np.sin(1e6 * V + np.arange(len(V))[:, None]))


@pytest.mark.spread(2)
@pytest.mark.parametrize("loss", [LogisticLoss(), HuberLoss(0.3), SoftmaxLoss()], ids=["logistic", "huber", "softmax"])
@pytest.mark.parametrize("rough", [0.1, pytest.param(1e-3, marks=slow), 1e-7])
@pytest.mark.parametrize("method", ["newton", *(pytest.param(each, marks=slow) for each in FAST if each != "newton")])
def test_bounds_allow_for_products_that_are_off(method: str, rough: float, loss: Any, executor: LocalExecutor) -> None:
    targets = ONE_HOT if loss.coupled else LABELS[:, None]
    options: dict[str, Any] = {"loss": loss, "regularisation": 1.0, "weights": WEIGHTS}
    least = minimised_by(PROBLEM.blocked(executor), targets, **options, gap=1e-11, precision="double")
    operator = RoughOperator(PROBLEM.kernel, 1.0, PROBLEM.X)
    operator.rough = rough
    found = minimised_by(operator, targets, **options, gap=1e-4, method=method, max_iterations=400)
    K, alpha = PROBLEM.matrix - PROBLEM.noise_variance * np.eye(240), found.solution.alpha
    assert found.product_error == rough
    true = Risk(loss, 1.0, WEIGHTS).value(targets, alpha, K @ alpha)
    assert found.lower_bound[0] <= least.risk[0] * (1 + 1e-12)
    assert true[0] <= found.risk[0] * (1 + 1e-12)
    assert found.solution.converged == (rough < 1e-6)
    # f* lies in the ball about f - g / (2 lambda).
    away = alpha - found.gradient / 2.0 - least.solution.alpha
    slack = np.sqrt(2.0 * (least.risk[0] - least.lower_bound[0]))
    assert np.sqrt(np.sum(away * (K @ away))) <= found.solution.progress.distance + slack


# --------------------------------------------------------------------------------------------------------------- faults

KILLED = """
import os, signal, sys
from dkgp.cluster import LocalExecutor
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.solvers import Checkpointing
from dkgp.solvers.losses import LogisticLoss
from tests.solvers.risk.test_methods import LABELS, minimised

def kill(progress):
    if progress.iteration == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

minimised(LocalExecutor(1), LABELS, LogisticLoss(), gap=1e-8, method=sys.argv[2], callback=kill,
          checkpointing=Checkpointing(CheckpointStore(sys.argv[1]), 0.0, {}))
"""


@pytest.mark.faults
@every_method
def test_killed_it_loses_no_more_than_a_round(method: str, executor: LocalExecutor, tmp_path: Path) -> None:
    kept = Resuming(partial(minimised, executor, LABELS, LogisticLoss(), gap=1e-8, method=method), tmp_path)
    for at in (3, kept.whole.solution.progress.iteration - 2):
        kept.store.clear()
        kill(KILLED, kept.store.url, method, at)
        kept.require_same()


# Roundings grow with the condition number on parameter CG's way: one of a few dozens lets it be followed for long.
PATH_PROBLEM = smooth_problem(60, 2, gamma=40.0)
PATH_K = PATH_PROBLEM.kernel(PATH_PROBLEM.X, PATH_PROBLEM.X)
PATH_LABELS = np.where(PATH_PROBLEM.y[:, 0] > 0.1, 1.0, -1.0)
PATH_GAP, MOST = 1e-3, 25


@dataclass(frozen=True)
class Written:
    """A loss for labels: its value, slope and conjugate, sample by sample."""

    loss: Any
    value: Callable[[FloatArray], FloatArray]
    slope: Callable[[FloatArray], FloatArray]
    conjugate: Callable[[FloatArray], FloatArray]


def entropy(share: FloatArray) -> FloatArray:
    inside = np.clip(share, 1e-300, 1.0 - 1e-16)
    found = inside * np.log(inside) + (1.0 - inside) * np.log1p(-inside)
    return np.where((share >= 0.0) & (share <= 1.0), found, np.inf)


LOSSES = {
    "logit": Written(
        LogisticLoss(),
        lambda f: np.log1p(np.exp(-PATH_LABELS * f)),
        lambda f: -PATH_LABELS / (1.0 + np.exp(PATH_LABELS * f)),
        lambda u: entropy(-PATH_LABELS * u),
    ),
    "squared hinge": Written(
        SquaredHingeLoss(),
        lambda f: 0.5 * np.maximum(1.0 - PATH_LABELS * f, 0.0) ** 2,
        lambda f: np.where(PATH_LABELS * f < 1.0, f - PATH_LABELS, 0.0),
        lambda u: np.where(PATH_LABELS * u <= 0.0, PATH_LABELS * u + 0.5 * u**2, np.inf),
    ),
    "squares": Written(
        SquaredLoss(),
        lambda f: 0.5 * (PATH_LABELS - f) ** 2,
        lambda f: f - PATH_LABELS,
        lambda u: u * PATH_LABELS + 0.5 * u**2,
    ),
}


@dataclass(frozen=True)
class Followed:
    """Coefficients and risks after 0, 1, ... iterations; bounds from below that are known by then; and steps' lengths.

    Of the gradient at a point the bound tells after the product that the next iteration begins with.
    """

    alpha: list[FloatArray]
    risk: list[float]
    known: list[float]
    bound: list[float]
    newton: list[float]
    steps: list[float]

    def gap(self, k: int, bounds: list[float]) -> float:
        return (self.risk[k] - bounds[k]) / max(abs(self.risk[k]), abs(bounds[k]))


def as_printed(written: Written, penalty: float, kernel: bool, iterations: int, enough: float = 0.0) -> Followed:
    """Algorithm 1 from f = 0, until the gap that is known is small enough, or for so many iterations."""

    def inner(a: FloatArray, b: FloatArray) -> float:
        return float(a @ (PATH_K @ b)) if kernel else float(a @ b)

    def gradient(alpha: FloatArray) -> FloatArray:
        functional = written.slope(PATH_K @ alpha) + penalty * alpha
        return functional if kernel else PATH_K @ functional

    def risk(alpha: FloatArray) -> float:
        return float(written.value(PATH_K @ alpha).sum() + 0.5 * penalty * alpha @ PATH_K @ alpha)

    def dual(slopes: FloatArray) -> float:
        return float(-slopes @ PATH_K @ slopes / (2.0 * penalty) - written.conjugate(slopes).sum())

    def below(alpha: FloatArray) -> float:
        return max(dual(written.slope(PATH_K @ alpha)), dual(-penalty * alpha))

    alpha = np.zeros(len(PATH_K))
    g = gradient(alpha)
    h = -g
    least = dual(np.zeros(len(PATH_K)))
    path = Followed([alpha], [risk(alpha)], [least], [max(least, below(alpha))], [], [])
    while len(path.steps) < iterations and path.gap(-1, path.known) > enough:

        def along(step: float, start: FloatArray = alpha, way: FloatArray = h) -> float:
            at = start + step * way
            return float((PATH_K @ way) @ (written.slope(PATH_K @ at) + penalty * at))

        high = 1.0
        while along(high) < 0.0:
            high *= 2.0
        step = scipy.optimize.brentq(along, 0.0, high, xtol=1e-300, rtol=4.0 * np.finfo(float).eps)
        curved = (along(1e-6 * step) - along(0.0)) / (1e-6 * step)
        alpha = alpha + step * h
        after = gradient(alpha)
        eta = inner(after - g, after) / inner(g, g)
        g, h = after, -after + eta * h
        path.alpha.append(alpha)
        path.risk.append(risk(alpha))
        path.known.append(path.bound[-1])
        path.bound.append(max(path.bound[-1], below(alpha)))
        path.newton.append(-along(0.0) / curved)
        path.steps.append(step)
    return path


def majorised(written: Written, curvature: float, penalty: float, steps: int) -> list[FloatArray]:
    """Coefficients after 0, 1, ... steps of majorisation: least squares solved exactly, steps conjugate to the last.

    Nonlinear conjugate gradients of Polak and Ribiere, whose preconditioned gradient z is the way from alpha to the
    least squares' solution, turned round: beta = max(z' K (g - g_before) / (z_before' K g_before), 0).
    """
    shifted = PATH_K + penalty / curvature * np.eye(len(PATH_K))
    alpha, before = np.zeros(len(PATH_K)), None
    path, way = [alpha], np.zeros(len(PATH_K))
    for _ in range(steps):
        f = PATH_K @ alpha
        g = written.slope(f) + penalty * alpha
        z = alpha - np.linalg.solve(shifted, f - written.slope(f) / curvature)
        beta = 0.0 if before is None else max(z @ PATH_K @ (g - before[0]) / (before[1] @ PATH_K @ before[0]), 0.0)
        way = beta * way - z
        if g @ PATH_K @ way >= 0.0:
            way = -z

        def along(step: float, start: FloatArray = alpha, way: FloatArray = way) -> float:
            at = start + step * way
            return float((PATH_K @ way) @ (written.slope(PATH_K @ at) + penalty * at))

        high = 1.0
        while along(high) < 0.0:
            high *= 2.0
        alpha = alpha + scipy.optimize.brentq(along, 0.0, high, xtol=1e-300, rtol=4.0 * np.finfo(float).eps) * way
        before = (g, z)
        path.append(alpha)
    return path


@pytest.mark.parametrize("penalty", [0.1, 0.01])
def test_every_step_of_majorisation_is_conjugate_to_the_last(penalty: float) -> None:
    written, count = LOSSES["logit"], 8
    path = majorised(written, written.loss.curvature_bound, penalty, count)
    method = RiskMajorisation(Risk(written.loss, penalty), "double", Cholesky())
    rounds = 0
    for k in range(1, count + 1):
        # A step may take several rounds of its solve, which ends with a look at what remains.
        while True:
            rounds += 1
            found = minimise_by(PATH_PROBLEM.dense(), PATH_LABELS, method, stopping=MaxIterations(rounds))
            alpha = found.solution.alpha[:, 0]
            if not np.array_equal(alpha, path[k - 1]) and np.abs(alpha - path[k]).max() <= 1e-6 * np.abs(path[k]).max():
                break
            assert rounds <= 3 * k, f"step {k} of majorisation is not what is written down"


def path_of(written: Written, penalty: float, method: str, **options: Any) -> RiskSolution:
    return minimised_by(
        PATH_PROBLEM.dense(),
        PATH_LABELS,
        loss=written.loss,
        regularisation=penalty,
        method=method,
        precision="double",
        **options,
    )


@pytest.mark.covering
@pytest.mark.parametrize("penalty", [0.1, 0.01])
@pytest.mark.parametrize("method", ["kcg", "paramcg"])
@pytest.mark.parametrize("name", LOSSES)
def test_every_iterate_is_the_papers(name: str, method: str, penalty: float) -> None:
    written, count = LOSSES[name], 10
    path = as_printed(written, penalty, method == "kcg", count)
    for k in range(1, count + 1):
        found = path_of(written, penalty, method, gap=1e-300, max_iterations=k)
        assert found.solution.reason.rule == "max_iterations"
        assert found.solution.progress.iteration == k
        scale = np.abs(path.alpha[k]).max()
        np.testing.assert_allclose(found.solution.alpha[:, 0], path.alpha[k], atol=1e-8 * scale)
        assert found.risk[0] == pytest.approx(path.risk[k], rel=1e-10)
        assert found.lower_bound[0] == pytest.approx(path.bound[k], rel=1e-6)
    if name != "squares":
        # Newton's first step along the line is not where the line ends: it does not pass for a search.
        away = np.abs(np.array(path.newton) / np.array(path.steps) - 1.0)
        assert (away > 0.01).any()


@pytest.mark.parametrize("penalty", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("method", ["kcg", "paramcg"])
@pytest.mark.parametrize("name", LOSSES)
def test_it_stops_where_and_as_the_paper_does(name: str, method: str, penalty: float) -> None:
    """After as many iterations, with the same gap, or cut off by the same count."""
    written = LOSSES[name]
    path = as_printed(written, penalty, method == "kcg", MOST, PATH_GAP)
    last = len(path.steps)
    found = path_of(written, penalty, method, gap=PATH_GAP, max_iterations=MOST)
    reason = found.solution.reason
    assert found.solution.progress.iteration == last
    if path.gap(last, path.known) <= PATH_GAP:
        assert (reason.rule, reason.converged) == ("duality_gap", True)
        assert reason.message == f"duality gap {found.solution.progress.duality_gap:.3g} <= {PATH_GAP:g}"
    else:
        assert (reason.rule, reason.converged) == ("max_iterations", False)
        assert reason.message == f"the limit of {MOST} iterations was reached"
    assert found.solution.progress.duality_gap == pytest.approx(path.gap(last, path.bound), rel=1e-3)
