"""Fits of every method against dense formulas, against each other, and against a least-squares solver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Matern32, SquaredExponential
from dkgp.models.sparse import model as fit_module
from dkgp.models.sparse.model import METHODS, Basis, fit_regressors, fit_sparse, method_named
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from tests.models.sparse.dense_models import Dense
from tests.workers import on_dask

N, M = 400, 30
KERNEL = Matern32(gamma=(0.5, 0.8), variance=1.4)


def problem(seed: int = 0, by_sample: bool = True) -> Dense:
    rng = np.random.default_rng(seed)
    X, T = rng.standard_normal((N, 2)), 1.5 * rng.standard_normal((25, 2))
    noise = rng.uniform(0.02, 0.2, N) if by_sample else np.full(N, 0.05)
    y = np.column_stack([np.sin(2.0 * X[:, 0]) + X[:, 1], X[:, 0] * X[:, 1]]) + 0.2 * rng.standard_normal((N, 2))
    return Dense(KERNEL, X, y, noise, X[:: N // M][:M], T)


def operator_of(dense: Dense, executor: Any, by_sample: bool = True) -> BlockedKernelOperator:
    noise = dense.noise if by_sample else float(dense.noise[0])
    return BlockedKernelOperator(dense.kernel, noise, ArrayInputs(dense.X), executor)


@pytest.mark.parametrize("by_sample", [False, True])
@pytest.mark.parametrize("name", ["sr", "dtc", "vfe", "fitc", "sggp"])
def test_means_and_variances_are_those_of_the_formulas(name: str, by_sample: bool, one_thread: LocalExecutor) -> None:
    dense = problem(by_sample=by_sample)
    operator = operator_of(dense, one_thread, by_sample)
    found = fit_sparse(operator, dense.y, Basis(dense.Z), METHODS[name])
    mean, variance = dense.predictive(name)
    np.testing.assert_allclose(found.model.mean(dense.T), mean, atol=1e-6)
    np.testing.assert_allclose(found.model.variance(dense.T), variance, atol=1e-6)
    assert found.regressors.passes == 2


def test_the_subset_of_data_is_the_exact_model_of_its_samples(one_thread: LocalExecutor) -> None:
    dense, chosen = problem(), np.arange(0, N, 5)
    operator = operator_of(dense, one_thread)
    found = fit_sparse(operator, dense.y, Basis(dense.X[chosen], chosen), METHODS["sd"])
    own = Dense(KERNEL, dense.X[chosen], dense.y[chosen], dense.noise[chosen], dense.Z, dense.T)
    for mine, exact in zip((found.model.mean(dense.T), found.model.variance(dense.T)), own.exact(), strict=True):
        np.testing.assert_allclose(mine, exact, atol=1e-10)
    assert found.regressors is None
    with pytest.raises(InputError, match="needs a basis of training samples"):
        fit_sparse(operator, dense.y, Basis(dense.Z), METHODS["sd"])


@pytest.mark.parametrize("name", ["dtc", "fitc", "sd"])
def test_all_samples_as_the_basis_give_the_exact_model(name: str, one_thread: LocalExecutor) -> None:
    dense = problem()
    found = fit_sparse(operator_of(dense, one_thread), dense.y, Basis(dense.X, np.arange(N)), METHODS[name])
    mean, variance = dense.exact()
    np.testing.assert_allclose(found.model.mean(dense.T), mean, atol=1e-5)
    np.testing.assert_allclose(found.model.variance(dense.T), variance, atol=1e-5)


@pytest.mark.parametrize(("gamma", "noise"), [(0.5, 1e-2), (1e-3, 1e-2), (1e-3, 1e-6), (0.05, 1e-8)])
def test_weights_are_as_good_as_those_of_orthogonal_factors(
    gamma: float, noise: float, one_thread: LocalExecutor
) -> None:
    """R of least squares on [D^1/2 K_nm; L'] by QR, which squares no condition number, is no smaller."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((N, 2))
    y = np.sin(X @ np.array([[1.0], [0.5]])) + np.sqrt(noise) * rng.standard_normal((N, 1))
    kernel = SquaredExponential(gamma=(gamma, gamma))
    operator = BlockedKernelOperator(kernel, noise, ArrayInputs(X), one_thread)
    cross = CrossKernel(operator, X[:: N // M][:M])
    fit = fit_regressors(cross, y)
    stacked = np.concatenate([kernel(X, cross.prototypes) / np.sqrt(noise), cross.lower.T])
    right = np.concatenate([y / np.sqrt(noise), np.zeros((cross.m, 1))])
    Q, R = scipy.linalg.qr(stacked, mode="economic")
    best = scipy.linalg.solve_triangular(R, Q.T @ right)
    risk = [0.5 * float(np.sum((right - stacked @ beta) ** 2)) for beta in (best, fit.weights)]
    assert fit.risk[0] == pytest.approx(risk[1], rel=1e-6)
    assert risk[1] <= risk[0] * (1.0 + 1e-7)
    assert fit.decrement[0] <= 1e-7 * risk[0]


def test_what_rounding_exceeds_is_refused(one_thread: LocalExecutor) -> None:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((N, 2))
    kernel = SquaredExponential(gamma=(0.01, 0.01), variance=1e6)
    operator = BlockedKernelOperator(kernel, 1e-14, ArrayInputs(X), one_thread)
    with pytest.raises(NumericalError, match=r"rounding exceeds|which rounding exceeds"):
        fit_regressors(CrossKernel(operator, X[:200]), np.sin(X[:, :1]))
    with pytest.raises(NumericalError, match=r"subset's 400 samples is not positive definite.*noise variance 1e-14"):
        fit_sparse(operator, np.sin(X[:, :1]), Basis(X, np.arange(N)), METHODS["sd"])


def test_a_factor_that_is_rough_is_refined_and_one_that_is_useless_refused(
    one_thread: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense = problem(by_sample=False)
    cross = CrossKernel(operator_of(dense, one_thread, by_sample=False), dense.Z)
    exact = fit_regressors(cross, dense.y)
    factor = fit_module.normal_factor

    def off_by(share: float) -> None:
        monkeypatch.setattr(fit_module, "normal_factor", lambda matrix, noise: factor((1.0 + share) * matrix, noise))

    off_by(0.02)
    refined = fit_regressors(cross, dense.y)
    assert refined.passes > exact.passes
    np.testing.assert_allclose(refined.weights, exact.weights, rtol=1e-4, atol=1e-6)
    off_by(-0.9)  # each step overshoots ten times
    with pytest.raises(NumericalError, match=r"does not come closer .* after \d passes over the data"):
        fit_regressors(cross, dense.y)


def test_an_unknown_method_is_told_of_those_there_are() -> None:
    with pytest.raises(
        InputError, match="unknown sparse method 'nys'; there are sd, sr, dtc, fitc, vfe, vif, sggp, mpgp"
    ):
        method_named("nys")


def test_the_subset_of_regressors_is_overconfident_far_away(one_thread: LocalExecutor) -> None:
    dense = problem()
    operator = operator_of(dense, one_thread)
    far = 50.0 + dense.T
    sr, dtc = (fit_sparse(operator, dense.y, Basis(dense.Z), METHODS[name]).model for name in ("sr", "dtc"))
    assert sr.variance(far).max() < 1e-6
    np.testing.assert_allclose(dtc.variance(far), 1.4, rtol=1e-6)


def test_any_number_of_workers_gives_the_same_bits(one_thread: LocalExecutor) -> None:
    dense = problem()
    mine = fit_sparse(operator_of(dense, one_thread), dense.y, Basis(dense.Z), METHODS["fitc"]).model
    with on_dask(3, processes=False) as (executor, _):
        theirs = fit_sparse(operator_of(dense, executor), dense.y, Basis(dense.Z), METHODS["fitc"]).model
    for name in ("weights", "lower", "normal"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
