"""pcg with its factor on inputs that nobody should give it: solved as dense float64 algebra does, or refused."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError
from dkgp.kernels import Kernel, SquaredExponential
from dkgp.kernels.expression import parse_kernel
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.solvers import (
    ConjugateGradient,
    FactorPreconditioning,
    GradientInfNorm,
    MaxIterations,
    Solution,
    solve,
)

N = 300
FACTOR = FactorPreconditioning(40, 20, 10)


def rbf(d: int = 3, gamma: float = 1 / 3, variance: float = 1.0) -> SquaredExponential:
    return SquaredExponential(gamma=(gamma,) * d, variance=variance)


def drawn(n: int = N, d: int = 3) -> np.ndarray:
    return np.random.default_rng([n, d]).standard_normal((n, d))


def targets(n: int, p: int = 1) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, p))


def solved(
    executor: LocalExecutor,
    X: np.ndarray,
    kernel: Kernel | None = None,
    noise: Any = 0.01,
    factor: FactorPreconditioning = FACTOR,
    tolerance: float = 1e-6,
) -> Solution:
    """A solve to the end, its gradient and its solution as dense algebra has them."""
    kernel = kernel or rbf(X.shape[1])
    operator = BlockedKernelOperator(kernel, noise, ArrayInputs(X), executor)
    y, stopping = targets(len(X)), GradientInfNorm(tolerance) | MaxIterations(300)
    found = solve(operator, y, solver=ConjugateGradient(factor), stopping=stopping)
    assert found.converged
    K = kernel(X, X) + np.diag(np.broadcast_to(noise, len(X)))
    assert np.abs(K @ found.alpha - y).max() <= 2.0 * tolerance
    np.testing.assert_allclose(K @ found.alpha - y, found.gradient, rtol=0, atol=0.5 * tolerance)
    # |alpha - alpha*| <= |K^-1| |g|, whatever K is like.
    least = np.linalg.eigvalsh(K)[0]
    expected = np.linalg.solve(K, y)
    assert np.linalg.norm(found.alpha - expected) <= 3.0 * np.linalg.norm(found.gradient) / least + 1e-9
    return found


def with_column(values: Any) -> np.ndarray:
    X = drawn()
    X[:, 1] = values
    return X


INPUTS = {
    "every row twice": np.repeat(drawn(150), 2, axis=0),
    "every row twenty times": np.repeat(drawn(15), 20, axis=0),
    "all rows equal": np.ones((N, 3)),
    "one feature constant": with_column(7.0),
    "one feature of scale 1e12": with_column(1e12 * drawn()[:, 1]),
    "one feature far from zero": with_column(1e12 + drawn()[:, 1]),
    "one feature of scale 1e-30": with_column(1e-30 * drawn()[:, 1]),
    "one value far out": with_column(np.r_[1e30, drawn()[1:, 1]]),
    "one feature": drawn(d=1),
    "three hundred features": drawn(d=300),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs(executor: LocalExecutor, name: str) -> None:
    solved(executor, INPUTS[name])


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
def test_a_value_beyond_float32(executor: LocalExecutor) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        solved(executor, with_column(np.r_[1e39, -1e200, drawn()[2:, 1]]))


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("factor", [FactorPreconditioning(), FACTOR, FactorPreconditioning(1, 1, 1)])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_few_samples(executor: LocalExecutor, n: int, factor: FactorPreconditioning, equal: bool) -> None:
    solved(executor, np.ones((n, 3)) if equal else drawn(n), factor=factor)


@pytest.mark.covering
@pytest.mark.parametrize(
    "factor",
    [
        FactorPreconditioning(N, 20, 0),
        FactorPreconditioning(10 * N, 10 * N, 10 * N),
        FactorPreconditioning(40, 1, 10),
        FactorPreconditioning(1, 1, 0),
        FactorPreconditioning(1, N, 0),
        FactorPreconditioning(40, 20, N),
        FactorPreconditioning(0, rank=N),
    ],
    ids=["halo n", "all beyond n", "leaf 1", "halo 1", "leaf n", "rank n", "rank n alone"],
)
@pytest.mark.parametrize("every", [1, 4])
def test_sizes(executor: LocalExecutor, factor: FactorPreconditioning, every: int) -> None:
    found = solved(executor, np.repeat(drawn(N // every), every, axis=0), factor=factor)
    if max(factor.halo, factor.leaf if factor.halo else 0, factor.rank) >= N:
        assert found.progress.iteration <= 5


def test_landmarks_that_are_all_one_sample(executor: LocalExecutor) -> None:
    solved(executor, np.ones((N, 3)), factor=FactorPreconditioning(40, 20, 200, "uniform"))


@pytest.mark.parametrize("factor", [FACTOR, FactorPreconditioning(150, 75, 0)])
@pytest.mark.parametrize("every", [1, 2])
def test_noise_by_sample_of_ten_orders(executor: LocalExecutor, every: int, factor: FactorPreconditioning) -> None:
    noise = 10.0 ** np.random.default_rng(3).uniform(-8.0, 2.0, N)
    X = np.repeat(drawn(N // every), every, axis=0)
    solved(executor, X, noise=noise, factor=factor, tolerance=1e-4)


@pytest.mark.parametrize("noise", [1e-8, 1e-6, 1e10])
@pytest.mark.parametrize("every", [1, 2])
def test_noise(executor: LocalExecutor, noise: float, every: int) -> None:
    solved(executor, np.repeat(drawn(N // every), every, axis=0), noise=noise, tolerance=1e-4)


@pytest.mark.parametrize(("variance", "gamma"), [(1e-8, 0.3), (1e-38, 0.3), (1.0, 1e10), (1.0, 1e-10), (1e6, 0.3)])
def test_kernels_parameters(executor: LocalExecutor, variance: float, gamma: float) -> None:
    solved(executor, drawn(), rbf(3, gamma, variance), tolerance=1e-4)


@pytest.mark.covering
@pytest.mark.parametrize("noise", [0.01, 1e-6])
@pytest.mark.parametrize(
    "text", ["linear", "polynomial(degree=3)", "constant", "periodic * rbf", "rbf * linear", "linear + matern12"]
)
def test_kernels_without_a_metric(executor: LocalExecutor, text: str, noise: float) -> None:
    solved(executor, np.repeat(drawn(N // 2), 2, axis=0), parse_kernel(text, 3), noise, tolerance=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_inputs_that_are_not_finite_are_refused(executor: LocalExecutor, bad: float) -> None:
    with pytest.raises(InputError, match=f"inputs must be finite; got {bad} in row 3, column 1"):
        solved(executor, with_column(np.r_[drawn()[:3, 1], bad, drawn()[4:, 1]]))


@pytest.mark.parametrize("noise", [0.0, -1.0, np.nan, np.r_[0.0, np.ones(N - 1)]])
def test_noise_that_is_none_is_refused(executor: LocalExecutor, noise: Any) -> None:
    with pytest.raises(InputError, match=r"noise variances? must be finite and positive; got (0\.0|-1\.0|nan)"):
        solved(executor, drawn(), noise=noise)


@pytest.mark.parametrize("noise", [1e-12, 1e-14, 1e-16])
def test_noise_beyond_float64_is_never_called_solved(executor: LocalExecutor, noise: float) -> None:
    """Every row twice: what rounding leaves of K is larger, and no tolerance is met by what is not a solution."""
    X, y = np.repeat(drawn(N // 2), 2, axis=0), targets(N)
    operator = BlockedKernelOperator(rbf(), noise, ArrayInputs(X), executor)
    stopping = GradientInfNorm(1e-4) | MaxIterations(100)
    found = solve(operator, y, solver=ConjugateGradient(FACTOR), stopping=stopping)
    # Which of them depends on the processor's roundings.
    assert found.reason.rule in ("rounding", "max_iterations")
    assert not found.converged
    assert "noise variance" in found.reason.advice or found.reason.rule == "max_iterations"
    assert np.abs((rbf()(X, X) + noise * np.eye(N)) @ found.alpha - y).max() > 1e-4


@pytest.mark.parametrize("noise", [0.1, 1e-6])
@pytest.mark.parametrize("factor", [FactorPreconditioning(4, 3, 2), FactorPreconditioning(12, 12, 0)])
def test_a_dozen_samples_against_fifty_digits(
    executor: LocalExecutor, factor: FactorPreconditioning, noise: float
) -> None:
    X, y = drawn(12, 2), targets(12)
    operator = BlockedKernelOperator(rbf(2, 0.7, 1.3), noise, ArrayInputs(X), executor)
    stopping = GradientInfNorm(1e-9) | MaxIterations(100)
    found = solve(operator, y, solver=ConjugateGradient(factor), stopping=stopping)
    assert found.converged
    with mpmath.workdps(50):
        K = mpmath.matrix(12, 12)
        for i in range(12):
            for j in range(12):
                square = sum((mpmath.mpf(a) - mpmath.mpf(b)) ** 2 for a, b in zip(X[i], X[j], strict=True))
                K[i, j] = mpmath.mpf(1.3) * mpmath.exp(-mpmath.mpf(0.7) * square) + (noise if i == j else 0)
        expected = mpmath.lu_solve(K, mpmath.matrix(y[:, 0].tolist()))
        gradient = K * mpmath.matrix(found.alpha[:, 0].tolist()) - mpmath.matrix(y[:, 0].tolist())
    assert max(abs(value) for value in gradient) <= 1.1e-9
    exact = np.array([float(value) for value in expected])
    np.testing.assert_allclose(found.alpha[:, 0], exact, rtol=0, atol=2e-9 / noise)
