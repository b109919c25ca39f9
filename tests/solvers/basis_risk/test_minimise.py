"""Newton's method on a basis against dense references: every loss, weights, intercepts, and hostile bases.

The same bits on any number of workers, in any number of passes, and after any interruption.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import SquaredExponential
from dkgp.operators.block_tasks import ArrayInputs
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.solvers.basis_risk import minimise, problem
from dkgp.solvers.basis_risk.minimise import BasisDescent, BasisRiskSolution, minimise_on_basis
from dkgp.solvers.basis_risk.problem import BasisRisk
from dkgp.solvers.driver import NOBODY, Loop, Watch
from dkgp.solvers.losses import HuberLoss, LogisticLoss, ProbitLoss, SoftmaxLoss, SquaredHingeLoss, SquaredLoss
from dkgp.solvers.risk import Risk
from tests.resuming import Resuming, require_same_bits
from tests.solvers.basis_risk.dense import dense_minimum
from tests.workers import on_dask

KERNEL = SquaredExponential((0.3, 0.3, 0.3))
LOSSES = [SquaredLoss(), LogisticLoss(), ProbitLoss(), SquaredHingeLoss(), HuberLoss(0.5), SoftmaxLoss()]


def inputs(rng: np.random.Generator, n: int = 400) -> np.ndarray:
    return rng.standard_normal((n, 3))


def targets_of(loss: Any, X: np.ndarray, rng: np.random.Generator, t: int = 3) -> np.ndarray:
    scores = np.stack([np.sin(2.0 * X[:, 0]), X[:, 1], X[:, 2] ** 2 - 1.0], axis=1)[:, :t]
    noisy = scores + 0.5 * rng.standard_normal(scores.shape)
    if isinstance(loss, SquaredLoss | HuberLoss):
        return noisy
    hot = (noisy == noisy.max(axis=1, keepdims=True)).astype(np.float64)
    return hot if loss.coupled else np.where(noisy > 0.0, 1.0, -1.0)


def cross_of(X: np.ndarray, Z: np.ndarray, executor: LocalExecutor, kernel: Any = KERNEL) -> CrossKernel:
    return CrossKernel(BlockedKernelOperator(kernel, 1.0, ArrayInputs(X), executor), Z)


def features_of(cross: CrossKernel, X: np.ndarray) -> np.ndarray:
    return np.linalg.solve(cross.lower, cross.operator.kernel(X, cross.prototypes).T).T


@pytest.mark.covering
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("loss", "intercept"),
    [(loss, intercept) for loss in LOSSES for intercept in (False, True) if not (loss.coupled and intercept)],
    ids=lambda value: value if isinstance(value, bool) else type(value).__name__,
)
def test_every_loss_reaches_the_dense_minimum(
    loss: Any, weighted: bool, intercept: bool, rng: np.random.Generator, executor: LocalExecutor
) -> None:
    X = inputs(rng)
    Y = targets_of(loss, X, rng)
    weights = rng.integers(0, 4, len(X)).astype(np.float64) if weighted else None
    cross = cross_of(X, X[:40], executor)
    found = minimise_on_basis(
        cross, Y, loss=loss, regularisation=0.1, weights=weights, intercept=intercept, tolerance=1e-9
    )
    assert found.reason.converged
    each = np.ones(len(X)) if weights is None else weights
    z, values = dense_minimum(features_of(cross, X), Y, loss, 0.1, each, intercept)
    np.testing.assert_allclose(found.values, values, atol=1e-7)
    np.testing.assert_allclose(found.whitened, z[:40], atol=1e-6)
    np.testing.assert_allclose(found.intercept, z[40] if intercept else np.zeros(3), atol=1e-7)
    np.testing.assert_allclose(KERNEL(X, X[:40]) @ found.weights + found.intercept, found.values, atol=1e-8)
    dense = each[:, None] * loss.value(Y, values)
    penalty = 0.05 * np.sum(z[:40] ** 2, axis=0)
    expected = [dense.sum() + penalty.sum()] if loss.coupled else dense.sum(axis=0) + penalty
    np.testing.assert_allclose(found.risk, expected, rtol=1e-10)


def test_a_distance_is_never_less_than_it_is(rng: np.random.Generator, executor: LocalExecutor) -> None:
    X = inputs(rng)
    Y = targets_of(LogisticLoss(), X, rng)
    cross = cross_of(X, X[:40], executor)
    z, _ = dense_minimum(features_of(cross, X), Y, LogisticLoss(), 0.1, np.ones(len(X)), False)
    for steps in range(5):
        found = BasisDescent(BasisRisk(cross, Y, Risk(LogisticLoss(), 0.1)), max_iterations=steps).run()
        away = np.linalg.norm(found.whitened - z, axis=0)
        assert (found.distance >= away * (1.0 - 1e-9)).all()
        assert found.reason.rule == "iterations"
        assert not found.reason.converged
        assert len(found.history) == steps + 1


def test_whole_hessians_are_those_of_finite_differences(rng: np.random.Generator, executor: LocalExecutor) -> None:
    X = inputs(rng, 200)
    for loss in (SoftmaxLoss(), LogisticLoss()):
        Y = targets_of(loss, X, rng)
        problem = BasisRisk(cross_of(X, X[:12], executor), Y, Risk(loss, 0.3))
        theta = 0.3 * rng.standard_normal((12, 3))
        base, factor = problem.factored(theta, "blocks" if loss.coupled else "columns")
        for _ in range(3):
            towards = rng.standard_normal((12, 3))
            ends = [
                problem.evaluate(theta + side * 1e-5 * towards, np.ones(problem.problems, dtype=bool), base).gradient
                for side in (1.0, -1.0)
            ]
            image = (ends[0] - ends[1]) / 2e-5
            np.testing.assert_allclose(factor.solve(image), towards, atol=1e-5)


def test_all_samples_as_the_basis_give_the_exact_model(rng: np.random.Generator, executor: LocalExecutor) -> None:
    X = inputs(rng, 150)
    Y = targets_of(LogisticLoss(), X, rng, 1)
    found = minimise_on_basis(cross_of(X, X, executor), Y, loss=LogisticLoss(), regularisation=0.5, tolerance=1e-10)
    K, f = KERNEL(X, X), np.zeros(150)
    for _ in range(50):
        p = 1.0 / (1.0 + np.exp(Y[:, 0] * f))
        W = p * (1.0 - p)
        f = K @ np.linalg.solve(W[:, None] * K + 0.5 * np.eye(150), W * f + Y[:, 0] * p)
    np.testing.assert_allclose(found.values[:, 0], f, atol=1e-8)


def test_logistic_regression_on_nystrom_features(rng: np.random.Generator, executor: LocalExecutor) -> None:
    X = inputs(rng)
    Y = targets_of(LogisticLoss(), X, rng, 1)
    nystroem = Nystroem(kernel="rbf", gamma=0.3, n_components=30, random_state=0).fit(X)
    # The penalty in scikit-learn's coordinates is the same: Phi Phi' is K_nm K_mm^-1 K_mn there, too.
    peer = LogisticRegression(C=1.0 / 0.2, fit_intercept=True, tol=1e-10, max_iter=2000)
    peer.fit(nystroem.transform(X), Y[:, 0])
    found = minimise_on_basis(
        cross_of(X, nystroem.components_, executor), Y, loss=LogisticLoss(), regularisation=0.2, intercept=True,
        tolerance=1e-8,
    )  # fmt: skip
    np.testing.assert_allclose(found.values[:, 0], peer.decision_function(nystroem.transform(X)), atol=1e-4)


def irls(K: np.ndarray, inner: np.ndarray, y: np.ndarray, width: float, regularisation: float) -> np.ndarray:
    """Huber's regression by least squares that are reweighted: values at the samples."""
    beta = np.zeros(K.shape[1])
    for _ in range(3000):
        residual = np.abs(y - K @ beta)
        weights = np.minimum(1.0, width / np.maximum(residual, 1e-300))
        new = np.linalg.solve(K.T @ (weights[:, None] * K) + regularisation * inner, K.T @ (weights * y))
        if np.abs(K @ (new - beta)).max() < 1e-13:
            break
        beta = new
    return np.asarray(K @ beta)


def test_huber_is_a_regression_that_outliers_do_not_turn(rng: np.random.Generator, executor: LocalExecutor) -> None:
    X = inputs(rng)
    truth = np.sin(2.0 * X[:, 0]) + X[:, 1]
    y = truth + 0.1 * rng.standard_normal(len(X))
    spoilt = rng.choice(len(X), 40, replace=False)
    y[spoilt] += 20.0
    cross = cross_of(X, X[:60], executor)
    robust = minimise_on_basis(cross, y[:, None], loss=HuberLoss(0.2), regularisation=0.1, tolerance=1e-9)
    inner = cross.lower @ cross.lower.T
    np.testing.assert_allclose(robust.values[:, 0], irls(KERNEL(X, X[:60]), inner, y, 0.2, 0.1), atol=1e-7)
    plain = minimise_on_basis(cross, y[:, None], loss=SquaredLoss(), regularisation=0.1)
    errors = [np.sqrt(np.mean((found.values[:, 0] - truth) ** 2)) for found in (robust, plain)]
    assert errors[0] < 0.3 < 4.0 * errors[0] < errors[1]
    assert plain.passes <= 3


def test_hostile_bases(rng: np.random.Generator, executor: LocalExecutor) -> None:
    X = inputs(rng, 30)
    Y = targets_of(LogisticLoss(), X, rng, 1)
    far = rng.standard_normal((50, 3))
    for Z in (X[:1], np.repeat(X[:5], 3, axis=0), far, np.full((2, 3), 100.0)):
        cross = cross_of(X, Z, executor)
        found = minimise_on_basis(cross, Y, loss=LogisticLoss(), regularisation=0.1, tolerance=1e-7)
        assert found.reason.converged
        _, values = dense_minimum(features_of(cross, X), Y, LogisticLoss(), 0.1, np.ones(30), False)
        np.testing.assert_allclose(found.values, values, atol=1e-5)


def test_hard_problems_end_with_words(rng: np.random.Generator, executor: LocalExecutor) -> None:
    X = inputs(rng)
    Y = np.where(X[:, :1] > 0.0, 1.0, -1.0)  # separable
    cross = cross_of(X, X[:50], executor)
    found = minimise_on_basis(cross, Y, loss=LogisticLoss(), regularisation=1e-9, tolerance=1e-12)
    assert not found.reason.converged
    assert found.reason.rule == "rounding"
    assert "roundings leave decisions within" in found.reason.message
    assert ((found.values > 0.0) == (Y > 0.0)).all()
    easy = minimise_on_basis(cross, Y, loss=LogisticLoss(), regularisation=1e-3, tolerance=1e-6)
    assert easy.reason.converged


def test_a_start_at_the_answer_takes_no_steps(rng: np.random.Generator, executor: LocalExecutor) -> None:
    X = inputs(rng)
    for loss in (LogisticLoss(), SoftmaxLoss()):
        Y = targets_of(loss, X, rng)
        cross = cross_of(X, X[:30], executor)
        first = minimise_on_basis(cross, Y, loss=loss, regularisation=0.1, tolerance=1e-6)
        again = minimise_on_basis(cross, Y, loss=loss, regularisation=0.1, tolerance=1e-6, initial=first.whitened)
        assert again.history[-1].iteration == 0
        assert again.passes == 1
        near = minimise_on_basis(cross, Y, loss=loss, regularisation=0.1, tolerance=1e-8, initial=first.whitened)
        np.testing.assert_allclose(near.values, first.values, atol=1e-5)


def solved(cross: CrossKernel, Y: np.ndarray, loss: Any, hessian: bool = False) -> BasisRiskSolution:
    return BasisDescent(BasisRisk(cross, Y, Risk(loss, 0.05)), 1e-7, hessian=hessian).run()


def test_a_coupled_hessian_that_is_too_large_is_done_without(
    rng: np.random.Generator, executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = inputs(rng)
    Y = targets_of(SoftmaxLoss(), X, rng)
    cross = cross_of(X, X[:40], executor)
    whole = solved(cross, Y, SoftmaxLoss(), hessian=True)
    assert whole.kind == "blocks"
    monkeypatch.setattr(minimise, "MOST_BLOCK_ROWS", 119)
    bounded = solved(cross, Y, SoftmaxLoss())
    assert (bounded.kind, bounded.gram_passes) == ("shared", 1)
    assert bounded.reason.converged
    np.testing.assert_allclose(bounded.values, whole.values, atol=1e-6)
    with pytest.raises(InputError, match=r"120 rows with 40 basis samples.* one class against the rest"):
        solved(cross, Y, SoftmaxLoss(), hessian=True)


def test_columns_are_problems_of_their_own(rng: np.random.Generator, executor: LocalExecutor) -> None:
    X = inputs(rng)
    Y = targets_of(LogisticLoss(), X, rng)
    Y[:, 1] = 1.0  # nothing to tell: done long before the others
    cross = cross_of(X, X[:40], executor)
    together = solved(cross, Y, LogisticLoss(), hessian=True)
    for column in range(3):
        alone = solved(cross, Y[:, [column]], LogisticLoss(), hessian=True)
        np.testing.assert_allclose(together.values[:, column], alone.values[:, 0], atol=3e-7)
        np.testing.assert_allclose(together.hessian.lowers[column], alone.hessian.lowers[0], atol=1e-4)


def test_bad_arguments_are_refused(rng: np.random.Generator, executor: LocalExecutor) -> None:
    X = inputs(rng, 20)
    cross, Y = cross_of(X, X[:4], executor), np.ones((20, 1))
    for message, more in (
        (r"regularisation must be finite and positive; got 0", {"regularisation": 0.0}),
        (r"expected targets of shape \(20, t\)", {"targets": np.ones((19, 1))}),
        (r"needs labels of -1 and 1", {"targets": np.full((20, 1), 2.0)}),
        (r"must be finite", {"targets": np.full((20, 1), np.nan)}),
        (r"a weight for each of 20 samples", {"weights": np.ones(3)}),
        (r"a finite number for each, none negative", {"weights": -np.ones(20)}),
        (r"positive `tolerance`", {"tolerance": 0.0}),
        (r"coefficients of shape \(4, 1\)", {"initial": np.ones((3, 1))}),
        (r"no intercept here", {"loss": SoftmaxLoss(), "targets": np.eye(2)[np.arange(20) % 2], "intercept": True}),
    ):
        with pytest.raises(InputError, match=message):
            minimise_on_basis(cross, **({"targets": Y, "loss": LogisticLoss(), "regularisation": 1.0} | more))
    with pytest.raises(NumericalError, match="not positive definite|overflow"):
        minimise_on_basis(
            cross_of(X, X[:10], executor, SquaredExponential((1e-6,) * 3, variance=1e306)),
            rng.standard_normal((20, 1)),
            loss=SquaredLoss(),
            regularisation=1e-12,
        )


def solved_in(
    X: np.ndarray,
    Y: np.ndarray,
    loss: Any,
    executor: Any,
    watch: Watch = NOBODY,
) -> BasisRiskSolution:
    cross = cross_of(X, X[:30], executor)
    descent = BasisDescent(BasisRisk(cross, Y, Risk(loss, 0.01)), 1e-6, hessian=True)
    found = descent.run(Loop(watch, {}, unit="step", waits=False))
    assert found.reason.converged
    return found


@pytest.mark.parametrize("loss", [LogisticLoss(), SoftmaxLoss()], ids=["ovr", "softmax"])
def test_any_number_of_workers(loss: Any, rng: np.random.Generator, executor: LocalExecutor) -> None:
    X = inputs(rng, 900)
    Y = targets_of(loss, X, rng)
    two = solved_in(X, Y, loss, executor)
    for count in (1, 5):
        local = LocalExecutor(count)
        require_same_bits(two, solved_in(X, Y, loss, local))
        local.close()
    with on_dask(5, processes=False) as (cluster, _):
        require_same_bits(two, solved_in(X, Y, loss, cluster))


def test_grams_in_several_passes(
    rng: np.random.Generator, executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = inputs(rng)
    Y = targets_of(LogisticLoss(), X, rng)
    together = solved_in(X, Y, LogisticLoss(), executor)
    monkeypatch.setattr(problem, "GRAM_BYTES", 8 * 30 * 30)
    apart = solved_in(X, Y, LogisticLoss(), executor)
    assert apart.gram_passes > together.gram_passes
    for one, other in zip(together.hessian.lowers, apart.hessian.lowers, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss", [LogisticLoss(), SoftmaxLoss()], ids=["ovr", "softmax"])
def test_interrupted_after_any_step(
    loss: Any, rng: np.random.Generator, executor: LocalExecutor, tmp_path: Path
) -> None:
    X = inputs(rng)
    Y = targets_of(loss, X, rng)
    kept = Resuming(lambda **watch: solved_in(X, Y, loss, executor, Watch(**watch)), tmp_path)
    for stop in range(kept.whole.history[-1].iteration):
        assert f"interrupted after {stop} steps; {stop} steps are saved in" in str(kept.interrupt(stop))
        kept.require_same()
