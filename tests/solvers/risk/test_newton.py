"""Decisions of risk methods: projections of "auto", steps of length zero in float32, doubt, and memory.

Penalties far below what a low-rank factor or float32 tells apart: the least risk is reached all the same.

The reference is Newton's method on dense matrices, its steps solved for alpha as (W K + lambda I) alpha' = W f - l' by
LU and halved until the risk falls: no roots, no preconditioner, no duality.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.special

from dkgp.cluster import LocalExecutor
from dkgp.kernels import SquaredExponential
from dkgp.operators import ArrayInputs, BlockedKernelOperator, ProductError
from dkgp.operators.low_rank.pivots import samples_drawn_from
from dkgp.solvers.losses import LogisticLoss, Loss, SoftmaxLoss, SquaredHingeLoss
from dkgp.solvers.prices import Prices
from dkgp.solvers.risk import RiskNewton, RiskSolution, risk_memory
from dkgp.solvers.risk import method as risk_method
from dkgp.solvers.risk.method import RiskConjugateGradient, RiskParameterConjugateGradient
from dkgp.solvers.risk.newton import (
    LARGEST_RANK,
    MOST_BYTES,
    MOST_ITERATIONS,
    MOST_SHARE_OF_STEPS,
    USUAL_GAP,
    WINDOW,
    AutoState,
    RiskAuto,
    WholeCurvature,
    affordable_rank,
    whole_bytes,
)
from dkgp.solvers.risk.problem import Risk
from tests.resuming import Resuming
from tests.solvers.problems import smooth_problem
from tests.solvers.risk.running import minimised_by

PROBLEM = smooth_problem(40, 2, gamma=10.0)
LABELS = np.where(PROBLEM.y > 0.1, 1.0, -1.0)
RISK = Risk(LogisticLoss(), 0.1)


@pytest.mark.parametrize(
    ("left", "width", "gap", "expected"),
    [
        (3.0, 8.0, 2.0, 9.0 * 4.0),  # the width must come down to the gap, and fall by the rule's share
        (3.0, 3.0, 2.0, 9.0 * 1.5),
        (3.0, 1.0, 2.0, 9.0),  # the gap, by an earlier bound, is what the rule speaks of
        (3.0, 8.0, 0.0, 9.0),
        (math.inf, 8.0, 2.0, 8.0 / (USUAL_GAP * 5.0)),
    ],
)
def test_by_how_much_a_width_must_fall(left: float, width: float, gap: float, expected: float) -> None:
    state: Any = SimpleNamespace(needed_fall=left, risks=np.array([2.0, 3.0]), bound=np.array([2.0, 3.0 - gap]))
    assert AutoState._fall(state, width) == pytest.approx(expected)
    nothing: Any = SimpleNamespace(needed_fall=math.inf, risks=np.zeros(2), bound=np.zeros(2))
    assert AutoState._fall(nothing, width) == 1.0


def projected(widths: list[float], wanted: float) -> float | None:
    """Products by two halves of the window: the fall of the best of each, carried on."""
    last = widths[-WINDOW:]
    if len(last) < WINDOW:
        return None
    early, late = min(last[: WINDOW // 2]), min(last[WINDOW // 2 :])
    if wanted <= 1.0:
        return 0.0
    return math.log(wanted) / math.log(early / late) * (WINDOW / 2) if late < early else math.inf


@pytest.mark.parametrize("rate", [0.5, 0.9, 1.0, 1.1])
def test_products_are_projected_from_the_last_iterations(rate: float, rng: np.random.Generator) -> None:
    widths = [float(rate**k * rng.uniform(0.9, 1.1)) for k in range(WINDOW + 7)]
    state: Any = SimpleNamespace(widths=[], projected=None, _fall=lambda width: 50.0 * width)
    for k, width in enumerate(widths):
        state.width = np.array([0.25 * width, 0.75 * width])
        AutoState.note_width(state)
        late = min(widths[: k + 1][-WINDOW // 2 :])
        expected = projected(widths[: k + 1], 50.0 * late)
        assert (state.projected is None) == (expected is None)
        assert expected is None or state.projected == pytest.approx(expected)
    state.width = np.array([math.nan])
    before = list(state.widths)
    AutoState.note_width(state)
    assert state.widths == before


@pytest.mark.parametrize(("n", "p", "d"), [(3000, 1, 4), (10_000, 3, 8), (10_000, 250, 8)])
def test_newton_says_what_its_factor_holds(n: int, p: int, d: int) -> None:
    rank = affordable_rank(n, d, p)
    pivots = 3 * np.empty((rank, rank)).nbytes + np.empty((rank, samples_drawn_from(rank))).nbytes
    apart, coupled = p * np.empty((rank, rank)).nbytes, np.empty((min(p * rank, LARGEST_RANK),) * 2).nbytes
    whole = np.empty((n, n)).nbytes if p == 1 and n == 3000 else 0
    assert risk_memory("newton", n, p, d).own_bytes == pivots + max(apart, coupled, whole)
    assert risk_memory("auto", n, p, d).own_bytes == pivots + max(apart, coupled, whole)


@pytest.mark.parametrize("kind", [RiskConjugateGradient, RiskParameterConjugateGradient])
@pytest.mark.parametrize(("length", "after"), [(0.0, "double"), (1.0, "single"), (0.3, "single")])
def test_a_step_of_no_length_in_float32_asks_for_float64(
    kind: Any, length: float, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, steps = PROBLEM.dense(), np.full(1, length)
    monkeypatch.setattr(risk_method, "line_minima", lambda *_: steps)
    solver = kind(RISK, "mixed")
    state = solver.start(operator, LABELS)
    assert state.precision == "single"
    solver.advance(operator, state)
    assert state.precision == after
    np.testing.assert_allclose(state.alpha, length * state.direction)


@pytest.mark.parametrize("kind", [RiskConjugateGradient, RiskNewton])
def test_in_float64_a_step_of_no_length_ends_at_the_minimum_along_the_gradient(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part of alpha below the digits of K g is removed: alpha = -l' / lambda, as at the minimum."""
    operator = PROBLEM.dense()
    solver = kind(RISK, "double").resolved(40, 2)
    state = solver.start(operator, LABELS)
    gradient, state.until = state.gradient.copy(), 0  # Newton's first step, without descents before it
    monkeypatch.setattr(risk_method, "line_minima", lambda *_: np.zeros(1))
    while not state.alpha.any():
        solver.advance(operator, state)
    np.testing.assert_allclose(state.alpha, -gradient / RISK.regularisation)


@pytest.mark.parametrize(("share", "settles"), [(1e-14, True), (1e-12, False)])
def test_where_the_image_of_the_gradient_vanishes_alpha_settles(
    share: float, settles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the search along the line comes to."""
    state = RiskConjugateGradient(RISK, "double").start(PROBLEM.dense(), LABELS)
    gradient, line = state.gradient.copy(), (np.ones((40, 1)), np.full((40, 1), 2.0))
    monkeypatch.setattr(risk_method, "line_minima", lambda *_: np.full(1, 0.25))
    taken = risk_method.descend_or_settle(state, line, share * gradient, (-3.0 * gradient, gradient), 0.5)
    np.testing.assert_allclose(state.alpha, -1.5 * gradient if settles else np.full((40, 1), 0.25))
    np.testing.assert_array_equal(taken[0], -3.0 * gradient if settles else line[0])
    np.testing.assert_allclose(state.values, 0.5 * gradient if settles else np.full((40, 1), 0.5))


def test_doubt_doubles_where_float64_did_not_confirm() -> None:
    operator = PROBLEM.dense()
    solver = RiskConjugateGradient(RISK, "double")
    state = solver.start(operator, LABELS)
    assert state.doubt == 1.0
    for expected in (2.0, 4.0):
        solver.advance(operator, state)
        state.renew_gradient(operator)
        assert state.doubt == expected
    # What is exact already is confirmed, not doubted.
    state.renew_gradient(operator)
    assert state.doubt == 4.0
    single = RiskConjugateGradient(RISK, "mixed")
    state = single.start(operator, LABELS)
    single.advance(operator, state)
    state.renew_gradient(operator)
    assert state.doubt == 1.0


def test_a_step_that_is_given_up_leaves_nothing(rng: np.random.Generator) -> None:
    operator = PROBLEM.dense()
    state = RiskAuto(RISK).start(operator, LABELS)
    state.inner, state.refreshed, state.energy = 3, True, rng.uniform(size=1)
    for name in ("newton_image", "along", "along_image", "residual", "search"):
        setattr(state, name, rng.standard_normal((40, 1)))
    state.give_up_the_step()
    held = (state.newton_image, state.along, state.along_image, state.residual, state.search, state.energy)
    assert [array.size for array in held] == [0] * 6
    assert (state.inner, state.root, state.refreshed) == (0, None, False)


@pytest.mark.parametrize(("n", "d", "p"), [(1000, 2, 1), (1000, 2, 3), (30_000, 104, 1)])
def test_a_steps_algebra_takes_as_long_as_a_few_products(n: int, d: int, p: int) -> None:
    rank, prices = affordable_rank(n, d, p), Prices.nominal(d)
    # A product evaluates half of the entries, and meets a fraction of a round's nominal seconds.
    product = n * n * (0.5 * prices.entries + 2.0 * p * prices.operations) + 5e-4
    assert n * rank**2 * p * prices.double_operations == pytest.approx(4.0 * product, rel=0.02)
    # The wait for a round does not pay for an algebra that grows with a cube, where there are few samples.
    assert rank < n / 3


N = 240
RNG = np.random.default_rng(5)
INPUTS = RNG.uniform(-3.0, 3.0, (N, 2))
FUNCTION = np.sin(INPUTS[:, 0]) * INPUTS[:, 1]
NOISY = FUNCTION + RNG.standard_normal(N)
KERNELS = {"smooth": SquaredExponential((0.5, 0.5)), "rough": SquaredExponential((30.0, 30.0))}
CASES: dict[str, tuple[Loss, float]] = {
    "softmax": (SoftmaxLoss(), 1e-6),
    "squared hinge": (SquaredHingeLoss(), 1e-4),
    "logit": (LogisticLoss(), 1e-8),
}
slow = pytest.mark.slow
# Functions, kernels and losses; the first three of a kind are those where Newton's steps by a low-rank factor stall.
TABLE = [
    pytest.param("clean", "smooth", "softmax"),
    pytest.param("noisy", "smooth", "logit"),
    pytest.param("clean", "rough", "squared hinge"),
    *(
        pytest.param(function, kernel, loss, marks=slow)
        for function in ("clean", "noisy")
        for kernel in KERNELS
        for loss in CASES
        if (function, kernel, loss)
        not in {("clean", "smooth", "softmax"), ("noisy", "smooth", "logit"), ("clean", "rough", "squared hinge")}
    ),
]


def targets_of(function: str, loss: Loss) -> np.ndarray:
    values = FUNCTION if function == "clean" else NOISY
    if loss.coupled:
        return np.eye(3)[np.digitize(values, np.quantile(values, [0.33, 0.66]))]
    return np.where(values > 0.0, 1.0, -1.0)[:, None]


def losses_of(name: str, y: np.ndarray, f: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """The sum of losses, their slopes (n p,) and curvatures (n p, n p), columns one after the other."""
    if name == "softmax":
        shares = scipy.special.softmax(f, axis=1)
        value = float(np.sum(scipy.special.logsumexp(f, axis=1) - np.sum(y * f, axis=1)))
        blocks = [[np.diag(shares[:, a] * ((a == b) - shares[:, b])) for b in range(3)] for a in range(3)]
        return value, (shares - y).T.ravel(), np.block(blocks)
    margin = (y * f)[:, 0]
    if name == "logit":
        share = scipy.special.expit(-margin)
        return float(np.logaddexp(0.0, -margin).sum()), -y[:, 0] * share, np.diag(share * (1.0 - share))
    slack = np.maximum(1.0 - margin, 0.0)
    return 0.5 * float(slack @ slack), -y[:, 0] * slack, np.diag(1.0 * (slack > 0.0))


def least_risk(name: str, K: np.ndarray, y: np.ndarray, penalty: float) -> float:
    p = y.shape[1]
    whole = np.kron(np.eye(p), K)
    alpha, f = np.zeros(whole.shape[0]), np.zeros(whole.shape[0])

    def risk(alpha: np.ndarray, f: np.ndarray) -> float:
        return losses_of(name, y, f.reshape(p, -1).T)[0] + 0.5 * penalty * float(alpha @ f)

    here = risk(alpha, f)
    for _ in range(200):
        _, slope, curvature = losses_of(name, y, f.reshape(p, -1).T)
        aim = np.linalg.solve(curvature @ whole + penalty * np.eye(len(f)), curvature @ f - slope)
        step, before = 1.0, here
        while step > 1e-9:
            trial = alpha + step * (aim - alpha)
            here = risk(trial, whole @ trial)
            if here < before:
                break
            step *= 0.5
        if not here < before * (1.0 - 1e-9):
            return min(here, before)
        alpha, f = trial, whole @ trial
    raise AssertionError("the reference has not come to rest")


def minimised(executor: LocalExecutor, function: str, kernel: str, case: str, **options: Any) -> RiskSolution:
    loss, penalty = CASES[case]
    with BlockedKernelOperator(KERNELS[kernel], 1.0, ArrayInputs(INPUTS), executor) as operator:
        return minimised_by(operator, targets_of(function, loss), loss=loss, regularisation=penalty, **options)


@pytest.mark.long
@pytest.mark.parametrize(("function", "kernel", "case"), TABLE)
def test_the_least_risk_is_reached(function: str, kernel: str, case: str, executor: LocalExecutor) -> None:
    loss, penalty = CASES[case]
    least = least_risk(case, KERNELS[kernel](INPUTS, INPUTS), targets_of(function, loss), penalty)
    runs = {
        method: minimised(executor, function, kernel, case, method=method, max_iterations=500)
        for method in ("auto", "newton", "kcg")
    }
    for method in ("auto", "newton"):
        run = runs[method]
        assert run.solution.converged, (method, run.solution.reason)
        assert least * (1.0 - 1e-6) <= run.risk[0] <= least * (1.0 + 1.1e-4)
    for run in runs.values():
        assert run.lower_bound[0] <= least * (1.0 + 1e-6)
    # Counts of products, for times of these sizes are of rounds.
    quickest = min(run.solution.progress.column_passes for run in runs.values() if run.solution.converged)
    assert runs["auto"].solution.progress.column_passes <= 1.5 * quickest + 40


def test_it_is_told_when_factors_of_the_whole_matrix_took_over(executor: LocalExecutor) -> None:
    hard = minimised(executor, "noisy", "smooth", "logit", max_iterations=500)
    assert hard.method == "newton"
    assert hard.choice["failed_steps"] >= 1
    assert hard.choice["whole_matrix"]
    assert "each step factorised the whole matrix" in hard.choice["reason"]
    options: dict[str, Any] = {"method": "kcg", "max_iterations": 500}
    assert not minimised(executor, "noisy", "smooth", "logit", **options).solution.converged


@pytest.mark.long
def test_steps_have_half_of_the_products_where_no_whole_matrix_is_to_come(
    executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Separable labels, a rough kernel: steps of 20 to 40 products each bring less than gradients do."""
    monkeypatch.setattr("dkgp.solvers.risk.newton.MOST_BYTES", 0)
    x = np.random.default_rng(12).uniform(-3.0, 3.0, (1000, 2))
    y = np.sign(np.sin(x[:, 0]) * x[:, 1])[:, None]
    runs = {}
    for method in ("auto", "kcg"):
        with BlockedKernelOperator(SquaredExponential((10.0, 10.0)), 1.0, ArrayInputs(x), executor) as operator:
            options: dict[str, Any] = {"method": method, "max_iterations": 600}
            runs[method] = minimised_by(operator, y, loss=LogisticLoss(), regularisation=1e-8, **options)
    run = runs["auto"]
    assert run.solution.converged
    assert run.choice["failed_steps"] >= 1
    gradients = run.choice["iterations"]
    steps = run.solution.progress.iteration - gradients
    # The step that failed, and the one under way when the share was used up, come on top.
    assert steps <= MOST_SHARE_OF_STEPS * gradients + 2 * (MOST_ITERATIONS + 1)
    passes = {method: run.solution.progress.column_passes for method, run in runs.items()}
    assert passes["auto"] <= 1.5 * passes["kcg"]


@pytest.mark.spread(1)
@pytest.mark.parametrize("stop", [9, 14, 30, 55])
def test_stopped_about_the_hand_over_it_ends_in_the_same_bits(
    stop: int, executor: LocalExecutor, tmp_path: Path
) -> None:
    kept = Resuming(partial(minimised, executor, "noisy", "smooth", "logit", max_iterations=500), tmp_path)
    assert kept.whole.solution.progress.iteration > stop
    kept.interrupt(stop)
    kept.require_same()


@pytest.mark.covering
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", [LogisticLoss(), SoftmaxLoss()], ids=["logit", "softmax"])
def test_whole_systems_are_solved(loss: Loss, weighted: bool, executor: LocalExecutor) -> None:
    """B^-1 r against a solve with B written out, down to penalties a billionth of the kernel's."""
    K, y = KERNELS["rough"](INPUTS, INPUTS), targets_of("noisy", loss)
    values, right = RNG.standard_normal(y.shape), RNG.standard_normal(y.shape)
    n, p = y.shape
    for penalty in (1.0, 1e-4, 1e-9):
        root = Risk(loss, penalty, np.resize([0.5, 1.5, 2.5], N) if weighted else None).curvature_root(y, values)
        columns = np.eye(n * p).reshape(n * p, p, n).transpose(0, 2, 1)
        R = np.column_stack([root.times(column).T.ravel() for column in columns])
        B = penalty * np.eye(n * p) + R.T @ np.kron(np.eye(p), K) @ R
        expected = np.linalg.solve(B, right.T.ravel()).reshape(p, n).T
        with BlockedKernelOperator(KERNELS["rough"], 1.0, ArrayInputs(INPUTS), executor) as operator:
            system = WholeCurvature(operator, penalty)
            system.refresh(root, p)
            solved = system.apply(right)
        condition = np.linalg.cond(B)
        assert np.abs(solved - expected).max() <= 1e-15 * condition * np.abs(expected).max() + 1e-13


def test_what_the_whole_matrix_takes(executor: LocalExecutor) -> None:
    assert whole_bytes(1000, 1, False) == 8_000_000
    assert whole_bytes(1000, 3, True) == 40_000_000
    assert risk_memory("newton", 3000, 1, 4).own_bytes >= whole_bytes(3000, 1, False)
    most = int(np.sqrt(MOST_BYTES / 8))
    assert risk_memory("newton", most + 1, 1, 4).own_bytes < whole_bytes(most + 1, 1, False)
    with (
        ProductError(1e-2).operator(KERNELS["rough"], 1.0, ArrayInputs(INPUTS), executor) as bounded,
        BlockedKernelOperator(KERNELS["rough"], 1.0, ArrayInputs(INPUTS), executor) as exact,
    ):
        assert not WholeCurvature.fits(bounded, 1, False)
        assert WholeCurvature.fits(exact, 1, False)
        assert not WholeCurvature.fits(exact, 1200, False)
