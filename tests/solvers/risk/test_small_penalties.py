"""Penalties far below what a low-rank factor or float32 tells apart: the least risk is reached all the same.

The reference is Newton's method on dense matrices, its steps solved for alpha as (W K + lambda I) alpha' = W f - l' by
LU and halved until the risk falls: no roots, no preconditioner, no duality.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.errors import InterruptedRunError
from dkgp.kernels import SquaredExponential
from dkgp.operators import ArrayInputs, BlockedKernelOperator, ProductError
from dkgp.solvers import Checkpointing
from dkgp.solvers.losses import LogisticLoss, Loss, SoftmaxLoss, SquaredHingeLoss
from dkgp.solvers.risk import Risk, RiskSolution, risk_memory
from dkgp.solvers.risk.newton import MOST_BYTES, MOST_ITERATIONS, MOST_SHARE_OF_STEPS, WholeCurvature, whole_bytes
from tests.solvers.risk.running import minimised_by

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
    assert "factors of the whole matrix" in hard.choice["reason"]
    options: dict[str, Any] = {"method": "kcg", "max_iterations": 500}
    assert not minimised(executor, "noisy", "smooth", "logit", **options).solution.converged


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


@pytest.mark.parametrize("stop", [9, 14, 30, 55])
def test_stopped_about_the_hand_over_it_ends_in_the_same_bits(
    stop: int, executor: LocalExecutor, tmp_path: Path
) -> None:
    whole = minimised(executor, "noisy", "smooth", "logit", max_iterations=500)
    assert whole.solution.progress.iteration > stop
    store, rounds = CheckpointStore(tmp_path / "checkpoints"), [0]
    with pytest.raises(InterruptedRunError):
        minimised(
            executor,
            "noisy",
            "smooth",
            "logit",
            max_iterations=500,
            callback=lambda progress: rounds.__setitem__(0, progress.iteration),
            interrupted=lambda: rounds[0] >= stop,
            checkpointing=Checkpointing(store, 1e9, {}),
        )
    again = Checkpointing(store, 1e9, {}, resume=True)
    resumed = minimised(executor, "noisy", "smooth", "logit", max_iterations=500, checkpointing=again)
    assert resumed.solution.alpha.tobytes() == whole.solution.alpha.tobytes()
    assert resumed.choice == whole.choice


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
