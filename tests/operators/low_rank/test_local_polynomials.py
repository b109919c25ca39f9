"""A preconditioner of local polynomials: its inverse, solves with it, and bits."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError
from dkgp.kernels import Linear, Matern12, Matern32, SquaredExponential
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.low_rank.local_polynomials import (
    LocalPolynomialPreconditioner,
    choose_order,
    cut_box,
    grid_scales,
    interpolation_error,
)
from dkgp.solvers import ConjugateGradient, FactorPreconditioning, solve


def operator(kernel, X, noise, threads=2):
    return BlockedKernelOperator(kernel, noise, ArrayInputs(X), LocalExecutor(threads))


def preconditioned_spectrum(inverse: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Eigenvalues of M^-1 Kbar: those of L' M^-1 L, L L' = Kbar, which is symmetric."""
    L = np.linalg.cholesky(matrix)
    return np.linalg.eigvalsh(L.T @ inverse @ L)


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("by_sample", [False, True])
def test_it_inverts_the_matrix_that_interpolation_makes(d: int, by_sample: bool) -> None:
    """Where cells are small beside the length scales that is the kernel matrix itself."""
    rng = np.random.default_rng(0)
    n = 500
    X = rng.uniform(-1.0, 1.0, (n, d + 1))
    kernel, order = SquaredExponential((0.5,) * d).on(list(range(d)), d + 1), {1: 12, 2: 10, 3: 9}[d]
    noise = rng.uniform(0.1, 0.3, n) if by_sample else 0.1
    with operator(kernel, X, noise) as Kbar:
        factor = LocalPolynomialPreconditioner(Kbar, 1200, order)
        dense = kernel(X, X) + np.diag(np.broadcast_to(noise, n))
        inverse = factor.apply(np.eye(n))
        assert np.abs(preconditioned_spectrum(inverse, dense) - 1.0).max() < 5e-3
        V = rng.standard_normal((n, 3))
        assert np.allclose(factor.apply(V[:, :1]), inverse @ V[:, :1], rtol=1e-6)
        alone = operator(kernel, X, noise, threads=1)
        assert np.array_equal(LocalPolynomialPreconditioner(alone, 1200, order).apply(V), factor.apply(V))


def test_it_is_symmetric_and_positive_where_cells_are_coarse_and_sparse() -> None:
    rng = np.random.default_rng(1)
    X = np.concatenate([rng.uniform(-1.0, 1.0, (60, 2)), np.full((30, 2), 0.3), rng.normal(5.0, 1e-4, (200, 2))])
    with operator(Matern32((20.0, 30.0)), X, 1e-3) as Kbar:
        factor = LocalPolynomialPreconditioner(Kbar, 400, 4)
        inverse = factor.apply(np.eye(len(X)))
    assert np.abs(inverse - inverse.T).max() < 1e-9 * np.abs(inverse).max()
    assert np.linalg.eigvalsh((inverse + inverse.T) / 2.0).min() > 0.0
    assert factor.rank <= 1.1 * 400 + 16


def test_the_error_falls_with_the_order_and_the_side() -> None:
    kernel = SquaredExponential((0.5, 2.0))
    left = [interpolation_error(kernel, order, np.ones(2)) for order in (2, 4, 6)]
    assert left[0] > 10.0 * left[1] > 100.0 * left[2] > 0.0
    assert interpolation_error(kernel, 4, np.full(2, 0.5)) < 0.1 * left[1]
    assert cut_box(np.array([4.0, 4.0]), 4, 256) == (4, 4)
    assert cut_box(np.array([8.2, 7.0]), 8, 400) == (3, 2)
    assert cut_box(np.array([1.0]), 8, 4) == (1,)


def test_smooth_kernels_take_high_orders_and_the_condition_number_holds() -> None:
    rng = np.random.default_rng(2)
    X, noise = rng.uniform(0.0, 1.0, (900, 2)), 1e-3
    numbers = {}
    for kernel in (SquaredExponential((18.0, 18.0)), Matern12((2.0, 2.0))):
        extents = np.array(list(grid_scales(kernel).values()))
        order, number = choose_order(kernel, extents, 300, len(X) / noise)
        numbers[kernel.type_name] = order
        with operator(kernel, X, noise) as Kbar:
            inverse = LocalPolynomialPreconditioner(Kbar, 300).apply(np.eye(len(X)))
        spectrum = preconditioned_spectrum(inverse, kernel(X, X) + noise * np.eye(len(X)))
        assert 0.1 * number < spectrum.max() / spectrum.min() < 10.0 * number
    assert numbers["rbf"] > numbers["matern12"]


def test_kernels_of_no_distance_are_refused() -> None:
    X = np.random.default_rng(0).standard_normal((30, 2))
    with operator(Linear((1.0, 1.0)), X, 0.1) as Kbar, pytest.raises(InputError):
        LocalPolynomialPreconditioner(Kbar, 16, 4)


def test_solves_of_smooth_kernels_take_few_rounds() -> None:
    rng = np.random.default_rng(3)
    X, kernel = rng.uniform(-1.0, 1.0, (2000, 2)), SquaredExponential((6.0, 8.0))
    y = np.sin(4.0 * X[:, :1]) + 0.1 * rng.standard_normal((len(X), 1))
    solver = ConjugateGradient(FactorPreconditioning(rank=600, landmarks="polynomials"))
    with operator(kernel, X, 0.01) as Kbar:
        solution = solve(Kbar, y, solver=solver)
    assert solution.converged
    assert solution.progress.iteration <= 15
    assert np.abs(kernel(X, X) @ solution.alpha + 0.01 * solution.alpha - y).max() <= 1.01e-4
    assert solution.solver["preconditioner"]["landmarks"] == "polynomials"
    with pytest.raises(InputError, match="polynomials take no halo; got `halo` 64"):
        FactorPreconditioning(64, landmarks="polynomials")
