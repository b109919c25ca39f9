"""Stochastic gradients and values of the likelihood of all samples, against dense algebra."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import ClusterOptions, LocalExecutor, open_executor
from dkgp.errors import InputError, InterruptedRunError
from dkgp.kernels import SquaredExponential, parse_kernel
from dkgp.models import RunContext
from dkgp.models.noise import Noise
from dkgp.models.refinement.estimates import (
    GradientEstimator,
    Remembered,
    draw_probes,
    estimate_log_likelihood,
    quadratures,
)
from dkgp.models.tuning.families import ArdSquaredExponential
from dkgp.models.tuning.objectives import LogMarginalLikelihood
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.product_error import ProductError
from dkgp.operators.vecchia.factor import VecchiaFactor
from dkgp.solvers import ConjugateGradient, RelativeResidual, solve
from dkgp.solvers.conjugate.preconditioner import FactorPreconditioning
from tests.models.refinement.refine_problems import (
    ApproximateContext,
    ArrayDataset,
    dense_gradient,
    draw,
    log_likelihood,
)

KERNEL, NOISE = SquaredExponential((0.5, 0.3), 1.2), 0.2
GENERAL = parse_kernel("matern32 + 0.3 * linear", 2)


def estimator(data: ArrayDataset, probes: np.ndarray, executor: Any, **options: Any) -> GradientEstimator:
    options = {"preconditioner": FactorPreconditioning(60, rank=10), "tolerance": 1e-6, **options}
    options["noise"] = Noise(1.0, data.noise)
    return GradientEstimator(ArrayInputs(data.X), data.y, probes, executor, **options)


@pytest.mark.covering
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("kernel", [KERNEL, GENERAL], ids=["rbf", "sum"])
@pytest.mark.parametrize("halo", [0, 20], ids=["low rank", "halo"])
@pytest.mark.parametrize("own", [False, True], ids=["one noise", "by sample"])
def test_with_the_columns_of_the_identity_it_is_exact(
    own: bool, halo: int, kernel: Any, p: int, rng: np.random.Generator, executor: LocalExecutor
) -> None:
    data = draw(rng, kernel, NOISE, 70, p)
    if own:
        data.noise = NOISE * 30.0 ** rng.random(70)
    probes = np.sqrt(70.0) * np.eye(70)  # their outer products average to the identity
    options = {"preconditioner": FactorPreconditioning(halo, rank=10), "tolerance": 1e-10}
    found = estimator(data, probes, executor, **options)(kernel, NOISE)
    expected = dense_gradient(kernel, NOISE, data.X, data.y, data.noise)
    np.testing.assert_allclose(found.gradient, expected, rtol=1e-5, atol=1e-4)
    assert found.solver_error.max() < 1e-5


def test_random_probes_are_off_by_a_few_standard_errors(rng: np.random.Generator, executor: LocalExecutor) -> None:
    data = draw(rng, KERNEL, NOISE, 600)
    start = np.log([0.2, 0.6, 1.0, 0.1])
    family = ArdSquaredExponential(data.X, learn_variance=True, feature_names=("a", "b"))
    outcome = LogMarginalLikelihood(family, data.y)(start)
    found = estimator(data, draw_probes(600, 8, 1), executor, tolerance=0.01)(family.kernel(start[:-1]), 0.1)
    assert (np.abs(found.gradient - outcome[1]) < 4.0 * found.error).all()
    assert found.error.max() < 0.3 * np.abs(outcome[1]).max()
    assert found.converged
    assert found.relative_residual <= 0.01


def test_errors_are_calibrated(rng: np.random.Generator, executor: LocalExecutor) -> None:
    n = 80
    data = draw(rng, KERNEL, NOISE, n)
    kernel = SquaredExponential((0.8, 0.2), 1.0)
    exact = dense_gradient(kernel, 0.3, data.X, data.y)
    ratios = []
    for seed in range(25):
        found = estimator(data, draw_probes(n, 8, seed), executor, preconditioner=FactorPreconditioning(0, rank=20))(
            kernel, 0.3
        )
        ratios.append((found.gradient - exact) / found.error)
    # Student's t with 7 degrees of freedom: half of them within 0.71, 95 % within 2.36; 25 draws of 4 components.
    assert 0.3 <= np.mean(np.abs(ratios) < 0.71) <= 0.7
    assert 0.85 <= np.mean(np.abs(ratios) < 2.36) <= 0.99


def test_many_probes_are_taken_in_groups(rng: np.random.Generator, executor: LocalExecutor) -> None:
    n = 200
    data = draw(rng, KERNEL, NOISE, n)
    exact = dense_gradient(KERNEL, NOISE, data.X, data.y)
    few = estimator(data, draw_probes(n, 4, 0), executor)(KERNEL, NOISE)
    many = estimator(data, draw_probes(n, 100, 0), executor)(KERNEL, NOISE)
    assert (few.contractions, many.contractions) == (5, 9)
    assert (np.abs(many.gradient - exact) < 4.0 * many.error).all()
    assert np.linalg.norm(many.standard_error) < 0.6 * np.linalg.norm(few.standard_error)


def test_the_solvers_error_covers_what_a_loose_solve_leaves(rng: np.random.Generator, executor: LocalExecutor) -> None:
    # Little noise and a poor preconditioner, so that a solve takes many passes.
    data = draw(rng, SquaredExponential((3.0, 3.0)), 0.01, 500)
    probes = draw_probes(500, 8, 0)
    options = {"preconditioner": FactorPreconditioning(0, rank=10)}
    tight = estimator(data, probes, executor, **options)(SquaredExponential((2.0, 4.0)), 0.01)
    loose = estimator(data, probes, executor, tolerance=0.05, **options)(SquaredExponential((2.0, 4.0)), 0.01)
    off = np.abs(loose.gradient - tight.gradient)
    assert off.max() > 1e-3
    assert (off < 4.0 * loose.solver_error + 1e-3 * off.max()).all()
    assert loose.column_passes < tight.column_passes


@pytest.mark.long
def test_a_warm_start_saves_passes_and_changes_nothing(rng: np.random.Generator, executor: LocalExecutor) -> None:
    data = draw(rng, SquaredExponential((3.0, 3.0)), 0.01, 500)
    options = {"preconditioner": FactorPreconditioning(0, rank=10), "tolerance": 1e-3}
    at = estimator(data, draw_probes(500, 4, 0), executor, **options)
    near = at(SquaredExponential((2.0, 4.0)), 0.01)
    cold = at(SquaredExponential((2.02, 3.98)), 0.0101)
    warm = at(SquaredExponential((2.02, 3.98)), 0.0101, near.solutions)
    assert warm.column_passes < 0.8 * cold.column_passes
    np.testing.assert_allclose(warm.gradient, cold.gradient, atol=0.1 * float(cold.error.min()))


@pytest.mark.parametrize("product_error", ["none", 1e-3])
def test_the_bits_do_not_depend_on_the_executor(product_error: Any, rng: np.random.Generator) -> None:
    data = draw(rng, KERNEL, NOISE, 600)
    results = []

    def add(executor: Any) -> None:
        context = RunContext(executor, product_error=ProductError.of(product_error))
        results.append(estimator(data, draw_probes(600, 3, 0), context)(KERNEL, NOISE))

    for threads in (1, 2):
        executor = LocalExecutor(threads)
        add(executor)
        executor.close()
    with open_executor(ClusterOptions(kind="local", workers=2), 600) as dask:
        add(dask)
    for other in results[1:]:
        assert other.gradient.tobytes() == results[0].gradient.tobytes()
        assert other.error.tobytes() == results[0].error.tobytes()
        assert other.solutions.tobytes() == results[0].solutions.tobytes()


def test_the_noises_curvature_is_its_fisher_information(rng: np.random.Generator, executor: LocalExecutor) -> None:
    data = draw(rng, KERNEL, NOISE, 300)
    found = estimator(data, draw_probes(300, 30, 0), executor)(KERNEL, NOISE)
    inverse = np.linalg.inv(KERNEL(data.X, data.X) + NOISE * np.eye(300))
    assert found.curvature[-1] == pytest.approx(0.5 * NOISE**2 * np.sum(inverse**2), rel=0.1)
    assert (found.curvature > 0.0).all()


def test_an_interruption_ends_the_solve(rng: np.random.Generator, executor: LocalExecutor) -> None:
    data = draw(rng, KERNEL, NOISE, 100)
    with pytest.raises(InterruptedRunError):
        estimator(data, draw_probes(100, 2, 0), RunContext(executor, interrupted=lambda: True))(KERNEL, NOISE)


def test_probes_are_signs_and_seeded() -> None:
    probes = draw_probes(1000, 3, 7)
    assert set(np.unique(probes)) == {-1.0, 1.0}
    assert abs(probes.mean()) < 0.1
    np.testing.assert_array_equal(probes, draw_probes(1000, 3, 7))
    assert not np.array_equal(probes, draw_probes(1000, 3, 8))
    with pytest.raises(InputError, match="at least 2 probes"):
        draw_probes(10, 1, 0)


KERNELS = {
    "rbf": SquaredExponential((0.5, 0.3), 1.2),
    "isotropic": parse_kernel("1.5 * matern52(isotropic=True)", 2),
    "rough": parse_kernel("matern12", 2),
    "shape": parse_kernel("rq(alpha=0.7)", 2),
    "sum": parse_kernel("2.0 * matern32 + 0.5 * rbf['a'] + 0.3 * constant", 2, ("a", "b")),
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", KERNELS)
def test_gradients_by_products_are_those_by_entries(name: str, rng: np.random.Generator, executor: Any) -> None:
    kernel, n = KERNELS[name], 300
    data = draw(rng, kernel, NOISE, n)
    data.noise = NOISE * 3.0 ** rng.random(n)
    probes = draw_probes(n, 5, 0)
    options = {"tolerance": 1e-8}
    by_entries = estimator(data, probes, executor, **options)(kernel, NOISE)
    by_products = estimator(data, probes, ApproximateContext(executor), **options)(kernel, NOISE)
    # Of the two terms, of which the gradient is the difference.
    matrix = kernel(data.X, data.X) + np.diag(NOISE + data.noise)
    inverse = np.linalg.inv(matrix)
    for index, (exact, found) in enumerate(zip(by_entries.gradient[:-1], by_products.gradient[:-1], strict=True)):
        trace = 0.5 * kernel.contract(data.X, data.X, inverse)[index]
        assert abs(found - exact) < 1e-4 * abs(trace)
    assert by_products.gradient[-1] == pytest.approx(by_entries.gradient[-1], rel=1e-6)
    np.testing.assert_allclose(by_products.standard_error, by_entries.standard_error, rtol=1e-3)


def test_gradients_by_products_with_the_identity_are_exact(rng: np.random.Generator, executor: Any) -> None:
    data = draw(rng, KERNEL, NOISE, 300)
    probes = np.sqrt(300.0) * np.eye(300)
    found = estimator(data, probes, ApproximateContext(executor), tolerance=1e-10)(KERNEL, NOISE)
    expected = dense_gradient(KERNEL, NOISE, data.X, data.y)
    np.testing.assert_allclose(found.gradient, expected, rtol=1e-4, atol=2e-3)
    assert found.contractions == 5  # two for each gamma, one for the amplitude


def test_parameters_that_stay_take_no_products(rng: np.random.Generator, executor: Any) -> None:
    data = draw(rng, KERNEL, NOISE, 200)
    at = estimator(data, draw_probes(200, 4, 0), ApproximateContext(executor))
    everything, some = at(KERNEL, NOISE), at(KERNEL, NOISE, None, np.array([False, True, False]))
    assert some.contractions == 2
    np.testing.assert_array_equal(some.gradient[[1, 3]], everything.gradient[[1, 3]])
    np.testing.assert_array_equal(some.gradient[[0, 2]], 0.0)


def test_errors_of_products_hardly_show(rng: np.random.Generator, executor: Any) -> None:
    data = draw(rng, KERNEL, NOISE, 300)
    probes = draw_probes(300, 4, 0)
    exact, found = (
        estimator(data, probes, ApproximateContext(executor, size=size), tolerance=1e-3)(KERNEL, NOISE)
        for size in (0.0, 1e-6)
    )
    assert (np.abs(found.gradient - exact.gradient) < 0.05 * exact.standard_error).all()


@pytest.mark.long
@pytest.mark.parametrize("name", ["rough", pytest.param("sum", marks=pytest.mark.long)])
def test_gradients_with_a_product_error_are_those_of_every_entry(
    name: str, rng: np.random.Generator, executor: Any
) -> None:
    kernel, n = KERNELS[name], 700
    data = draw(rng, kernel, NOISE, n)
    contexts = [RunContext(executor, product_error=ProductError.of(value)) for value in ("none", 1e-3)]
    exact, found = (estimator(data, draw_probes(n, 4, 0), each, tolerance=1e-6)(kernel, NOISE) for each in contexts)
    products = 2 * len(kernel.parameters()) - (kernel.amplitude_index is not None)
    assert (exact.contractions, found.contractions) == (5, products)
    inverse = np.linalg.inv(kernel(data.X, data.X) + NOISE * np.eye(n))
    # Of what the probes' terms come to: those of the constant hardly cancel on average.
    terms = np.abs(0.5 * kernel.contract(data.X, data.X, inverse)) + exact.standard_error[:-1]
    assert (np.abs(found.gradient - exact.gradient)[:-1] < 1e-4 * terms).all()
    np.testing.assert_allclose(found.standard_error, exact.standard_error, rtol=1e-3)


EVIDENCE_KERNELS = {"rbf": SquaredExponential((0.5, 0.3), 1.2), "rough": parse_kernel("matern12 + 0.2 * rbf", 2)}


@pytest.mark.parametrize("name", EVIDENCE_KERNELS)
@pytest.mark.parametrize("halo", [0, 40])
@pytest.mark.parametrize("own", [False, True], ids=["one noise", "by sample"])
def test_it_is_the_dense_one_within_its_error(own: bool, halo: int, name: str, rng: Any, executor: Any) -> None:
    kernel, n = EVIDENCE_KERNELS[name], 400
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
    kernel, n = EVIDENCE_KERNELS["rough"], 150
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
    kernel, n = EVIDENCE_KERNELS["rbf"], 120
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
    with BlockedKernelOperator(EVIDENCE_KERNELS["rbf"], 0.1, ArrayInputs(X), executor) as operator:
        values, steps = quadratures(operator, VecchiaFactor(operator, 100, 20), probes=4, seed=0)
    assert np.abs(values).max() < 0.01
    assert steps <= 3


def test_the_bits_of_quadratures_do_not_depend_on_the_threads(rng: np.random.Generator) -> None:
    X, values = rng.normal(size=(300, 2)), []
    for threads in (1, 3):
        executor = LocalExecutor(threads)
        with BlockedKernelOperator(EVIDENCE_KERNELS["rbf"], 0.1, ArrayInputs(X), executor) as operator:
            values.append(quadratures(operator, VecchiaFactor(operator, 20, 10), probes=3, seed=0)[0].tobytes())
        executor.close()
    assert values[0] == values[1]


SHORT, LITTLE, N = SquaredExponential((2.0, 2.0)), 0.01, 500


@pytest.fixture
def operator(rng: np.random.Generator) -> Iterator[BlockedKernelOperator]:
    executor = LocalExecutor(2)
    with BlockedKernelOperator(SHORT, LITTLE, ArrayInputs(rng.normal(size=(N, 2))), executor) as operator:
        yield operator
    executor.close()


def dense_matrix(operator: BlockedKernelOperator) -> np.ndarray:
    X = operator.inputs(np.arange(N))
    return SHORT(X, X) + LITTLE * np.eye(N)


def test_it_remembers_the_first_solution_that_is_near(
    operator: BlockedKernelOperator, rng: np.random.Generator
) -> None:
    rhs = rng.normal(size=(N, 3))
    remembered = Remembered(0.04)
    found = solve(operator, rhs, solver=ConjugateGradient(observe=remembered), stopping=RelativeResidual(0.01))
    residual = rhs - dense_matrix(operator) @ remembered.solution
    largest = float(np.max(np.linalg.norm(residual, axis=0) / np.linalg.norm(rhs, axis=0)))
    assert largest == pytest.approx(remembered.residual, rel=1e-3)
    assert found.progress.relative_residual < largest <= 0.04
