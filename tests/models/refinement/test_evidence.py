"""The log marginal likelihood of all samples by Lanczos quadrature, against dense algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.kernels import SquaredExponential, parse_kernel
from dkgp.models.refinement.estimates import estimate_log_likelihood, quadratures
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.vecchia.factor import VecchiaFactor
from tests.models.refinement.refine_problems import draw, log_likelihood

KERNELS = {"rbf": SquaredExponential((0.5, 0.3), 1.2), "rough": parse_kernel("matern12 + 0.2 * rbf", 2)}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("halo", [0, 40])
@pytest.mark.parametrize("own", [False, True], ids=["one noise", "by sample"])
def test_it_is_the_dense_one_within_its_error(own: bool, halo: int, name: str, rng: Any, executor: Any) -> None:
    kernel, n = KERNELS[name], 400
    data = draw(rng, kernel, 0.1, n, 2)
    noise = 0.1 * 5.0 ** rng.random(n) if own else np.full(n, 0.1)
    matrix = kernel(data.X, data.X) + np.diag(noise)
    alpha = np.linalg.solve(matrix, data.y) * (1.0 + 1e-3 * rng.normal(size=data.y.shape))
    with BlockedKernelOperator(kernel, noise if own else 0.1, ArrayInputs(data.X), executor) as operator:
        factor = VecchiaFactor(operator, halo, 25)
        gradient = matrix @ alpha - data.y
        found = estimate_log_likelihood(operator, factor, data.y, alpha, gradient, probes=8, seed=0)
    determinant = np.linalg.slogdet(matrix)[1]
    assert found.value == pytest.approx(log_likelihood(kernel, noise, data.X, data.y), abs=4.0 * found.standard_error)
    assert found.log_determinant == pytest.approx(determinant, abs=4.0 * found.standard_error)
    assert 0.0 < found.standard_error < (3.0 if halo else 20.0)
    assert found.steps < (12 if halo else 30)
    # What is known of the factor is most of it.
    assert abs(found.of_factor - determinant) < (0.05 if halo else 0.5) * abs(determinant)


def test_the_factors_determinant_is_that_of_its_matrix(rng: np.random.Generator, executor: Any) -> None:
    kernel, n = KERNELS["rough"], 150
    X = rng.normal(size=(n, 2))
    with BlockedKernelOperator(kernel, 0.1, ArrayInputs(X), executor) as operator:
        for landmarks in (None, np.array([3, 50, 90])):
            factor = VecchiaFactor(operator, 30, 20, landmarks)
            inverse = factor.apply(np.eye(n))
            assert factor.log_determinant == pytest.approx(-np.linalg.slogdet(inverse)[1], rel=1e-5)
        with_all = VecchiaFactor(operator, n, 20)
    determinant = np.linalg.slogdet(kernel(X, X) + 0.1 * np.eye(n))[1]
    assert with_all.log_determinant == pytest.approx(determinant, rel=1e-4)


def test_probes_are_signs_times_a_root_of_the_inverse(rng: np.random.Generator, executor: Any) -> None:
    kernel, n = KERNELS["rbf"], 120
    X = rng.normal(size=(n, 2))
    with BlockedKernelOperator(kernel, 0.1, ArrayInputs(X), executor) as operator:
        factor = VecchiaFactor(operator, 30, 20)
        M, probes = np.linalg.inv(factor.apply(np.eye(n))), factor.probes(2000, 1)
        np.testing.assert_allclose(np.einsum("is,ij,js->s", probes, M, probes), n, rtol=1e-3)
        covariance = probes @ probes.T / 2000
    assert np.abs(covariance @ M - np.eye(n)).max() < 0.5
    assert np.abs(np.trace(covariance @ M) / n - 1.0) < 1e-3


def test_a_factor_that_is_the_matrix_leaves_nothing(rng: np.random.Generator, executor: Any) -> None:
    X = rng.normal(size=(100, 2))
    with BlockedKernelOperator(KERNELS["rbf"], 0.1, ArrayInputs(X), executor) as operator:
        values, steps = quadratures(operator, VecchiaFactor(operator, 100, 20), probes=4, seed=0)
    assert np.abs(values).max() < 0.01
    assert steps <= 3


def test_the_bits_do_not_depend_on_the_threads(rng: np.random.Generator) -> None:
    X, values = rng.normal(size=(300, 2)), []
    for threads in (1, 3):
        executor = LocalExecutor(threads)
        with BlockedKernelOperator(KERNELS["rbf"], 0.1, ArrayInputs(X), executor) as operator:
            values.append(quadratures(operator, VecchiaFactor(operator, 20, 10), probes=3, seed=0)[0].tobytes())
        executor.close()
    assert values[0] == values[1]
