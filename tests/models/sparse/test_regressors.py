"""F'DF from the sums of a choice: within its bound in 50 digits, and what is said of models that come of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.kernels import Kernel, Linear, Matern12, Matern32, SquaredExponential
from dkgp.models.rounding import UNIT
from dkgp.models.sparse import model as fit_module
from dkgp.models.sparse.bounds import normal_error, sample_sum_roundings
from dkgp.models.sparse.model import METHODS, Basis, fit_regressors, fit_sparse, whitened_system
from dkgp.models.sparse.train import SparseSettings, train_sparse
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.solvers.greedy_basis import GreedySettings, choose_greedily
from tests.models.exact_gp import mp
from tests.models.sparse.judge import Judged, Problem

N, M = 20, 8


def se(gamma: float, variance: float = 1.0) -> SquaredExponential:
    return SquaredExponential(gamma=(gamma, gamma), variance=variance)


CASES: dict[str, tuple[Kernel, Any]] = {
    "rough": (se(2.0), 0.1),
    "smooth": (se(0.05), 0.1),
    "very smooth": (se(1e-3), 1e-3),
    "little noise": (Matern32(gamma=(1.0, 1.0)), 1e-9),
    "noise by sample, of six orders": (Matern12(gamma=(1.0, 1.0)), np.logspace(-6.0, 0.0, N)),
    "amplitude 1e4": (se(1.0, 1e4), 0.1),
    "of rank two": (Linear(weight=(1.0, 0.5)), 0.1),
}


def problem(name: str, p: int = 1) -> Problem:
    kernel, noise = CASES[name]
    rng = np.random.default_rng(3)
    X, y = rng.standard_normal((N, 2)), rng.standard_normal((N, p))
    return Problem(kernel, noise, X, np.sin(2.0 * X[:, :1]) + 0.2 * y, 1.3 * rng.standard_normal((2, 2)))


def operator_of(given: Problem, executor: Any) -> BlockedKernelOperator:
    return BlockedKernelOperator(given.kernel, given.noise, ArrayInputs(given.X), executor)


def as_large_as_may_be(cross: CrossKernel, system: np.ndarray) -> np.ndarray:
    """The system with the errors that its sums may have, all of them in the direction that L^-1 makes the most of."""
    sizes, inverse = np.sqrt(system.diagonal()), np.linalg.inv(cross.lower)
    worst = np.argmax(np.abs(inverse) @ sizes)
    signed = np.where(inverse[worst] < 0.0, -sizes, sizes)
    return np.asarray(system + (sample_sum_roundings(cross.n) + 7.0) * UNIT * np.outer(signed, signed))


def distance(cross: CrossKernel, given: Problem, matrix: np.ndarray) -> float:
    """|Y - L^-1 K_mn D K_nm L^-T| in Frobenius' norm, of entries as float64 evaluates them, in 50 digits."""
    double = cross.operator.double
    columns = double.tile(double.prepare(cross.prototypes), double.prepare(given.X))
    lower, m = cross.lower, cross.m
    F = []
    for column in columns.T:
        solved: list[Any] = []
        for i in range(m):
            total = mp.fsum(mp.mpf(lower[i, k]) * s for k, s in enumerate(solved))
            solved.append((mp.mpf(column[i]) - total) / mp.mpf(lower[i, i]))
        F.append(solved)
    squares = mp.zero
    for i in range(m):
        for j in range(m):
            exact = mp.fsum(f[i] * f[j] / s2 for f, s2 in zip(F, given.each, strict=True))
            squares += (mp.mpf(matrix[max(i, j), min(i, j)]) - exact) ** 2
    return float(mp.sqrt(squares))


@pytest.mark.parametrize("name", CASES)
def test_it_is_no_farther_off_than_is_said(name: str, one_thread: LocalExecutor) -> None:
    """As a choice summed it, and with errors as large as those that are allowed for, which the bound does not dwarf."""
    given = problem(name)
    operator = operator_of(given, one_thread)
    found = choose_greedily(operator, given.y, GreedySettings(M))
    cross = CrossKernel(operator, given.X[found.indices])
    if name == "of rank two":
        assert cross.m == 2
    for system, share in ((found.system, 0.0), (as_large_as_may_be(cross, found.system), 0.02)):
        known = whitened_system(cross, system)
        matrix, off = known
        assert share * off < distance(cross, given, matrix) <= off


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", CASES)
def test_what_is_said_of_models_holds_with_the_largest_errors(
    name: str, one_thread: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variances, the evidence and its bounds count what the sums are off by: in 50 digits."""
    monkeypatch.setattr(fit_module, "_good_enough", lambda cross, matrix, off: off < 0.5)
    given = problem(name, p=2)
    operator = operator_of(given, one_thread)
    found = choose_greedily(operator, given.y, GreedySettings(M, per_round=3))
    hostile = as_large_as_may_be(CrossKernel(operator, given.X[found.indices]), found.system)
    for system in (found.system, hostile):
        judged = Judged(given, "vfe", one_thread, found.indices, system).judge()
        assert judged.broken == []
        assert 0.0 < judged.fit.regressors.off < judged.certificate.normal_share


def test_a_rough_kernel_takes_the_sums_and_a_smooth_one_sums_anew(one_thread: LocalExecutor) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.7, 1.7, (3000, 6))
    y = np.sin(X[:, :2]) + 0.3 * rng.standard_normal((3000, 2))
    for gamma, taken in ((1.0, True), (0.02, False)):
        operator = BlockedKernelOperator(SquaredExponential(gamma=(gamma,) * 6), 0.1, ArrayInputs(X), one_thread)
        found = choose_greedily(operator, y, GreedySettings(60, per_round=10, screen=2))
        cross = CrossKernel(operator, X[found.indices])
        mine, own = fit_regressors(cross, y, system=found.system), fit_regressors(cross, y)
        assert own.off == 0.0
        assert (mine.off > 0.0) == taken
        np.testing.assert_array_equal(mine.squares, own.squares)
        if not taken:
            np.testing.assert_array_equal(mine.weights, own.weights)
            np.testing.assert_array_equal(mine.normal, own.normal)
            continue
        np.testing.assert_allclose(mine.weights, own.weights, atol=1e-11)
        apart = np.linalg.norm(mine.normal @ mine.normal.T - own.normal @ own.normal.T, 2)
        assert 0.0 < apart <= mine.off + 2.0 * normal_error(own.normal, 3000)
        # FITC's variances are not those of the choice.
        fitc = [
            fit_sparse(operator, y, Basis(cross.prototypes), METHODS["fitc"], system) for system in (None, found.system)
        ]
        np.testing.assert_array_equal(fitc[0].model.weights, fitc[1].model.weights)


def test_a_model_is_said_to_be_that_much_less_certain(
    one_thread: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.7, 1.7, (1500, 6))
    data = memory_dataset(X, np.sin(X[:, :1]) + 0.3 * rng.standard_normal((1500, 1)))
    settings, kernel = SparseSettings("sggp", basis_size=40), SquaredExponential(gamma=(0.5,) * 6)
    mine = train_sparse(data, kernel, 0.1, one_thread, settings)
    assert mine.greedy.system is None
    monkeypatch.setattr(fit_module, "whitened_system", lambda cross, system: None)
    own = train_sparse(data, kernel, 0.1, one_thread, settings)
    assert own.certificate.normal_share < mine.certificate.normal_share < 1e-5
    less = own.certificate.evidence.lower - mine.certificate.evidence.lower
    assert 0.0 < less < 1e-4
    np.testing.assert_allclose(mine.certificate.rms_bound, own.certificate.rms_bound, rtol=1e-9)
