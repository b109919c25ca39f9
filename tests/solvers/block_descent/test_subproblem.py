"""The growing dense subproblem against a dense solve of the same variables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import cholesky, solve_triangular

from dkgp.errors import NumericalError
from dkgp.kernels import parse_kernel
from dkgp.operators import DenseKernelOperator
from dkgp.solvers.block_descent import selection as module
from dkgp.solvers.block_descent.selection import Subproblem, matmat_in_parallel
from tests.solvers.problems import Problem, smooth_problem

PROBLEM = smooth_problem(200, 3, targets=3, variance=1.5)
OPERATOR = PROBLEM.dense()
CHUNKS = [1, 7, 2, 30, 1, 11]


def grown(problem: Problem, chunks: list[int], *, single: bool | None, targets: int = 3) -> Subproblem:
    """A subproblem grown by chunks of arbitrary variables."""
    chosen = np.random.default_rng(3).permutation(problem.n)
    subproblem = Subproblem(problem.dense(), sum(chunks) + 5, targets, single=single)
    start = 0
    for chunk in chunks:
        indices = chosen[start : start + chunk]
        subproblem.append(indices, problem.y[indices, :targets])
        start += chunk
    return subproblem


def minimiser(problem: Problem, subproblem: Subproblem) -> np.ndarray:
    """-Kbar_BB^-1 g_B."""
    B = subproblem.indices
    return -np.linalg.solve(problem.matrix[np.ix_(B, B)], subproblem.gradient[: len(B)])


def residual(problem: Problem, subproblem: Subproblem, step: np.ndarray) -> float:
    """Largest |Kbar_BB delta + g_B| relative to |g_B|."""
    B, gradient = subproblem.indices, subproblem.gradient[: subproblem.size]
    return float(np.abs(problem.matrix[np.ix_(B, B)] @ step + gradient).max() / np.abs(gradient).max())


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("single", [False, True])
def test_agrees_with_the_dense_solve(single: bool, targets: int) -> None:
    subproblem = grown(PROBLEM, CHUNKS, single=single, targets=targets)
    expected = minimiser(PROBLEM, subproblem)
    assert subproblem.single is single
    assert subproblem.size == sum(CHUNKS)
    assert expected.shape == (sum(CHUNKS), targets)
    np.testing.assert_allclose(subproblem.guide(), expected, atol=1e-3 if single else 1e-11)
    np.testing.assert_allclose(subproblem.solve(), expected, atol=1e-6 if single else 1e-11)
    assert residual(PROBLEM, subproblem, subproblem.solve()) <= (1e-7 if single else 1e-13)


@pytest.mark.parametrize("single", [False, True])
@given(chunks=st.lists(st.integers(1, 40), min_size=1, max_size=6).filter(lambda chunks: sum(chunks) <= 120))
def test_any_chunks_give_the_same_minimiser(single: bool, chunks: list[int]) -> None:
    subproblem = grown(PROBLEM, chunks, single=single)
    np.testing.assert_allclose(subproblem.solve(), minimiser(PROBLEM, subproblem), atol=1e-6 if single else 1e-11)


@pytest.mark.parametrize("single", [False, True])
def test_guide_is_the_minimiser_at_every_size(single: bool) -> None:
    subproblem = Subproblem(OPERATOR, 40, 3, single=single)
    assert subproblem.guide().shape == (0, 3)
    for start in range(0, 40, 5):
        indices = np.arange(start, start + 5)
        subproblem.append(indices, PROBLEM.y[indices])
        np.testing.assert_array_equal(subproblem.indices, np.arange(start + 5))
        np.testing.assert_allclose(subproblem.guide(), minimiser(PROBLEM, subproblem), atol=1e-3 if single else 1e-11)


def test_emptied_and_filled_again_it_remembers_nothing() -> None:
    subproblem = grown(PROBLEM, [20, 20], single=True)
    subproblem.reset()
    assert subproblem.guide().shape == (0, 3)
    indices = np.array([5, 3, 199])
    subproblem.append(indices, PROBLEM.y[indices])
    fresh = Subproblem(OPERATOR, 45, 3, single=True)
    fresh.append(indices, PROBLEM.y[indices])
    np.testing.assert_array_equal(subproblem.solve(), fresh.solve())


def test_refinement_reaches_what_a_float32_factor_alone_does_not() -> None:
    problem = smooth_problem(200, 2, targets=3, noise_variance=3e-3, gamma=0.1)
    subproblem = grown(problem, [80, 40], single=True)
    assert residual(problem, subproblem, subproblem.guide()) > 1e-6
    assert residual(problem, subproblem, subproblem.solve()) <= 1e-6
    assert subproblem.single


def test_precision_of_the_factor_follows_the_noise_variance() -> None:
    assert Subproblem(smooth_problem(50, noise_variance=0.05).dense(), 50, 1).single
    assert not Subproblem(smooth_problem(50, noise_variance=1e-5).dense(), 50, 1).single


def test_entries_that_are_known_to_be_small_allow_a_float32_factor_with_less_noise() -> None:
    problem = smooth_problem(400, 8, noise_variance=5e-4, gamma=1.0)
    operator = problem.dense()
    assert not Subproblem(operator, 300, 1).single
    subproblem = Subproblem(operator, 300, 1, typical_entry=operator.typical_entry())
    assert subproblem.single
    for start in range(0, 300, 50):
        indices = np.arange(start, start + 50)
        subproblem.append(indices, problem.y[indices])
    expected = minimiser(problem, subproblem)
    assert subproblem.single
    np.testing.assert_allclose(subproblem.solve(), expected, atol=1e-6 * np.abs(expected).max())


def test_refinement_that_diverges_is_replaced_by_a_float64_factor() -> None:
    subproblem = grown(PROBLEM, CHUNKS, single=True)
    subproblem._factor *= np.float32(0.5)  # corrections four times too long
    assert residual(PROBLEM, subproblem, subproblem.guide()) > 0.9
    np.testing.assert_allclose(subproblem.solve(), minimiser(PROBLEM, subproblem), atol=1e-11)


def no_other(*arguments: object, **options: object) -> None:
    raise AssertionError("a float64 factor was called for")


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_rough_factor_is_refined_as_long_as_it_takes(sign: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each correction leaves a 26th of a residual of one sign: five of them reach the tolerance, none before."""
    indices = np.arange(60)
    subproblem = Subproblem(OPERATOR, 60, 1, single=True)
    subproblem.append(indices, np.full((60, 1), sign))
    subproblem._factor *= np.float32(1.02)
    monkeypatch.setattr(module, "Subproblem", no_other)
    assert residual(PROBLEM, subproblem, subproblem.solve()) <= 1e-7
    np.testing.assert_allclose(subproblem.solve(), minimiser(PROBLEM, subproblem), atol=1e-6)


@pytest.mark.parametrize("magnitude", [1e-6, 1.0, 1e6])
def test_refinement_is_relative_to_the_gradient(magnitude: float, monkeypatch: pytest.MonkeyPatch) -> None:
    indices = np.arange(60)
    subproblem = Subproblem(OPERATOR, 60, 3, single=True)
    subproblem.append(indices, magnitude * PROBLEM.y[indices])
    monkeypatch.setattr(module, "Subproblem", no_other)
    assert residual(PROBLEM, subproblem, subproblem.solve()) <= 1e-7


@pytest.mark.parametrize("text", ["rbf", "linear + constant", "polynomial(degree=2)"])
def test_no_block_has_an_eigenvalue_above_the_bound(text: str, rng: np.random.Generator) -> None:
    """Met by the largest trace of so many: a few samples are far out, and each has a noise of its own."""
    X = rng.normal(size=(50, 2)) * np.where(np.arange(50) % 10 == 3, 30.0, 1.0)[:, None]
    kernel, noise = parse_kernel(text, 2), rng.uniform(0.1, 2.0, 50)
    operator = DenseKernelOperator(kernel, noise, X)
    K = kernel(X, X) + np.diag(noise)
    for size in (1, 7, 50):
        bound = module._largest_eigenvalue(operator, size)
        for _ in range(20):
            B = rng.permutation(50)[:size]
            assert np.linalg.eigvalsh(K[np.ix_(B, B)])[-1] <= bound
        if text == "rbf":
            assert bound == pytest.approx(size * K.diagonal().max())
        else:
            assert bound == pytest.approx(np.sort(K.diagonal())[-size:].sum())
    assert module._largest_eigenvalue(operator, 0) == 0.0


@pytest.mark.parametrize(("share", "single"), [(0.98, False), (1.02, True)])
def test_float32_begins_at_twenty_roundings_of_the_largest_eigenvalue(share: float, single: bool) -> None:
    """By the diagonal's largest, noise by sample included, or by the Frobenius norm where that is less."""
    X, size, typical = smooth_problem(60).X, 40, 0.05
    kernel = smooth_problem(60).kernel
    most = {None: 40 * 1.5, typical: np.sqrt(40 * 1.5**2 + (40 * typical) ** 2)}
    for entry, largest in most.items():
        noise = np.full(60, share * 20.0 * 2.0**-23 * largest)
        noise[7] = 0.5
        assert Subproblem(DenseKernelOperator(kernel, noise, X), size, 1, typical_entry=entry).single is single


@pytest.mark.parametrize("chunks", [[30, 30, 30], [150]])
def test_float32_breakdown_goes_on_in_float64(chunks: list[int]) -> None:
    problem = smooth_problem(200, 2, targets=3, noise_variance=1e-8, gamma=0.01)
    subproblem = grown(problem, chunks, single=True)
    assert not subproblem.single
    assert subproblem.size == sum(chunks)
    reference = grown(problem, chunks, single=False)
    np.testing.assert_array_equal(subproblem.indices, reference.indices)
    np.testing.assert_array_equal(subproblem.gradient, reference.gradient)
    assert residual(problem, subproblem, subproblem.solve()) <= 1e-6
    subproblem.reset()
    subproblem.append(np.array([0]), problem.y[[0]])
    np.testing.assert_allclose(subproblem.solve(), -problem.y[[0]], rtol=1e-7)


def test_matrix_that_is_singular_in_float64_is_told() -> None:
    problem = smooth_problem(200, 2, targets=3, noise_variance=1e-18, gamma=0.01)
    message = r"not positive definite at \d+ variables with noise variance 1e-18.*Raise the noise variance, or lower"
    with pytest.raises(NumericalError, match=message):
        grown(problem, [50, 50], single=True)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 40])
def test_half_solve_against_scipy(rows: int, single: bool) -> None:
    subproblem = grown(PROBLEM, CHUNKS, single=single)
    samples = np.arange(100, 100 + rows)
    K = PROBLEM.kernel(PROBLEM.X[samples], PROBLEM.X[subproblem.indices])
    tile = subproblem.rows(samples)
    assert tile.dtype == (np.float32 if single else np.float64)
    np.testing.assert_allclose(tile, K, atol=1e-5 if single else 1e-13)
    before = tile.copy()
    half = subproblem.half_solve(tile)
    np.testing.assert_array_equal(tile, before)
    B = subproblem.indices
    factor = cholesky(PROBLEM.matrix[np.ix_(B, B)], lower=True)
    np.testing.assert_allclose(half, solve_triangular(factor, K.T, lower=True).T, atol=1e-4 if single else 1e-12)


def test_features_of_the_active_set_are_in_order_of_selection() -> None:
    subproblem = grown(PROBLEM, CHUNKS, single=False)
    expected = OPERATOR.double.prepare(PROBLEM.X[subproblem.indices])
    features = subproblem.features
    assert features.n == subproblem.size
    np.testing.assert_array_equal(features.values[:, : features.n], expected.values[:, : features.n])


@pytest.mark.parametrize("rows", [1, 511, 512, 513, 1300])
@pytest.mark.parametrize("threads", [1, 2, None])
def test_products_shared_between_threads_are_the_same_bits(
    rng: np.random.Generator, rows: int, threads: int | None
) -> None:
    evaluator = OPERATOR.single
    A, B = evaluator.prepare(rng.standard_normal((rows, 3))), evaluator.prepare(rng.standard_normal((50, 3)))
    W = rng.standard_normal((50, 2))
    np.testing.assert_array_equal(matmat_in_parallel(evaluator, A, B, W, threads), evaluator.matmat(A, B, W))
