"""The low-rank factor as a preconditioner, held by the workers or evaluated as it is needed, against dense algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.cluster.executors.base import HereExecutor
from dkgp.data import standardised_inputs
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel, Linear, Matern12, Matern32, SquaredExponential, TileEvaluator, parse_kernel
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.block_tasks import ArrayInputs, BlockContext
from dkgp.operators.low_rank import factor as factor_module
from dkgp.operators.low_rank.factor import HELD_BYTES, LowRankFactor, LowRankPreconditioner, low_rank_bytes
from dkgp.operators.low_rank.local_polynomials import (
    LocalPolynomialPreconditioner,
    choose_order,
    cut_box,
    grid_scales,
    interpolation_error,
)
from dkgp.operators.low_rank.pivots import (
    LandmarkRows,
    RandomlyPivotedCholesky,
    counted,
    jitter,
    jittered,
    multiply_pieces,
    regularised_factor,
    samples_drawn_from,
    stand_in,
    whiten,
)
from dkgp.operators.low_rank.products import FEW_VECTORS, PIECE_COLUMNS, PIECE_ROWS, FactorRows
from dkgp.solvers import ConjugateGradient, FactorPreconditioning, solve

N, RANK = 900, 60
KERNEL = SquaredExponential(gamma=(3.0, 3.0))


@pytest.fixture(params=["held", "evaluated"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(factor_module, "HELD_BYTES", HELD_BYTES if request.param == "held" else 0)
    return bool(request.param == "held")


def preconditioner(threads: int, noise: Any) -> tuple[BlockedKernelOperator, LowRankPreconditioner]:
    X = np.random.default_rng(0).standard_normal((N, 2))
    operator = BlockedKernelOperator(KERNEL, noise, ArrayInputs(X), LocalExecutor(threads))
    factor = LowRankFactor(operator, np.arange(0, N, N // RANK, dtype=np.intp)[:RANK])
    return operator, LowRankPreconditioner(factor, operator.noise_variance)


@pytest.mark.parametrize("by_sample", [False, True])
def test_it_is_the_inverse_of_the_low_rank_matrix(held: bool, by_sample: bool, rng: np.random.Generator) -> None:
    noise = 0.01 * np.exp(rng.standard_normal(N)) if by_sample else 0.01
    operator, found = preconditioner(2, noise)
    X = operator.inputs(np.arange(N))
    landmarks = X[:: N // RANK][:RANK]
    # Leading directions, of which a small difference of large numbers is left, and any others.
    right = np.column_stack([np.ones(N), KERNEL(X, X[:1])[:, 0], rng.standard_normal((N, 6))])
    cross, inner = KERNEL(X, landmarks), KERNEL(landmarks, landmarks)
    dense = cross @ np.linalg.solve(inner + 1e-12 * np.eye(RANK), cross.T) + np.diag(np.broadcast_to(noise, N))
    expected = np.linalg.solve(dense, right)
    applied = found.apply(right)
    np.testing.assert_allclose(applied, expected, atol=2e-4 * np.abs(expected).max(axis=0).min())
    # What is one factor in every product is symmetric.
    against = right.T @ applied
    np.testing.assert_allclose(against, against.T, atol=1e-7 * np.abs(against).max())


@pytest.mark.parametrize("by_sample", [False, True])
@pytest.mark.parametrize("weighed", [False, True])
def test_its_parts_are_those_of_dense_algebra(
    held: bool, by_sample: bool, weighed: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of several pieces: F'WF, F'V and F Z, with F's rows times the roots of the noise's shares."""
    monkeypatch.setattr(factor_module, "PIECE_ROWS", 100)
    noise = 0.01 * np.exp(rng.standard_normal(N)) if by_sample else 0.01
    operator, found = preconditioner(2, noise)
    X = operator.inputs(np.arange(N))
    landmarks = X[:: N // RANK][:RANK]
    lower = np.linalg.cholesky(KERNEL(landmarks, landmarks) + 1e-9 * np.eye(RANK))
    F = np.linalg.solve(lower, KERNEL(landmarks, X)).T * np.sqrt(np.min(noise) / np.broadcast_to(noise, N))[:, None]
    weights = rng.uniform(0.0, 2.0, N) if weighed else None
    told: list[tuple[str, int, int, str]] = []
    with operator.watched(lambda progress: told.append((progress.phase, progress.done, progress.total, progress.unit))):
        gram = found._factor.gram(weights)
    expected = F.T @ (F if weights is None else weights[:, None] * F)
    np.testing.assert_allclose(gram, expected, atol=1e-4 * np.abs(expected).max())
    blocks = operator.context.n_blocks
    assert told == [("factor", min(done, blocks), blocks, "blocks") for done in range(2, blocks + 2, 2)]
    scale = 1.0 if found._scale is None else found._scale
    V, Z = scale * rng.standard_normal((N, 3)), rng.standard_normal((RANK, 2))
    rows = F if held else F / scale  # what is not held is multiplied where it is evaluated
    assert found._factor.rank == found.rank == RANK
    np.testing.assert_allclose(found._factor.project(V), F.T @ V, atol=1e-4 * np.abs(F.T @ V).max())
    np.testing.assert_allclose(found._factor.expand(Z), F @ Z, atol=1e-4 * np.abs(rows @ Z).max())


def test_threads_change_no_bit(held: bool, rng: np.random.Generator) -> None:
    right = rng.standard_normal((N, 2))
    one, three = (preconditioner(threads, 0.01)[1].apply(right) for threads in (1, 3))
    np.testing.assert_array_equal(one, three)


def test_what_is_evaluated_takes_entries_instead_of_memory(held: bool, rng: np.random.Generator) -> None:
    operator, found = preconditioner(1, 0.01)
    before = operator.kernel_evaluations
    found.apply(rng.standard_normal((N, 1)))
    assert operator.kernel_evaluations - before == (0 if held else 2 * N * RANK)


def test_bytes_stay_bounded_as_samples_grow() -> None:
    largest = max(low_rank_bytes(n, rank, 2) for n in (10**5, 10**6, 10**7) for rank in (100, 600, 2000))
    assert low_rank_bytes(10**6, 200) == 4 * 10**6 * 200 + 16 * 200**2
    assert largest < 1.2 * HELD_BYTES
    # Of one that is not held, by default with one thread at work: two pieces of columns, float64, and two triangles.
    assert low_rank_bytes(10**7, 500) == 16 * 500**2 + 8 * 500 * (2 * PIECE_ROWS + 2 * 500)
    assert low_rank_bytes(10**7, 500, 3) == 16 * 500**2 + 3 * 8 * 500 * (2 * PIECE_ROWS + 2 * 500)


# Products of a float32 factor with float64 vectors, against NumPy's on a float64 copy.


SHAPES = [(1, 1), (1, 40), (3, 16), (4, 17), (5, 15), (1027, 33), (130, 129)]


def problem(rows: int, rank: int, vectors: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng([rows, rank, vectors])
    factor = rng.standard_normal((rows, rank)).astype(np.float32)
    return factor, rng.standard_normal((rank, vectors)), rng.standard_normal((rows, vectors))


@pytest.mark.parametrize("vectors", [1, 2, FEW_VECTORS, FEW_VECTORS + 1])
@pytest.mark.parametrize(("rows", "rank"), SHAPES)
def test_against_a_double_copy(rows: int, rank: int, vectors: int) -> None:
    factor, weights, left = problem(rows, rank, vectors)
    copy = factor.astype(np.float64)
    scale = np.abs(copy).sum()
    found = FactorRows(factor)
    np.testing.assert_allclose(found.expand(weights), copy @ weights, rtol=0, atol=1e-15 * scale)
    np.testing.assert_allclose(found.project(left), copy.T @ left, rtol=0, atol=1e-15 * scale)
    np.testing.assert_allclose(found.gram(), copy.T @ copy, rtol=0, atol=1e-15 * scale**2)


def test_products_are_summed_in_double() -> None:
    # In float32 the small terms would vanish beside the first.
    factor = np.ones((1, 1001), np.float32)
    weights = np.full((1001, 1), 1e-9)
    weights[0] = 1.0
    assert FactorRows(factor).expand(weights)[0, 0] == pytest.approx(1.0 + 1e-6, rel=1e-12)
    assert FactorRows(factor.T.copy()).project(weights)[0, 0] == pytest.approx(1.0 + 1e-6, rel=1e-12)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    factor, weights, _ = problem(41, 70, 2)
    whole = FactorRows(factor).expand(weights)
    for start in (0, 1, 2, 3, 38):
        np.testing.assert_array_equal(FactorRows(factor[start:]).expand(weights), whole[start:])


@pytest.mark.parametrize("precision", ["single", "double"])
def test_threads_change_nothing_and_precision_the_last_digits(precision: str) -> None:
    factor, weights, left = problem(2100, PIECE_COLUMNS + 30, FEW_VECTORS + 1)
    copy = factor.astype(np.float64)
    one, three = (FactorRows(factor, precision, threads) for threads in (1, 3))  # type: ignore[arg-type]
    eps = float(np.finfo(np.float32 if precision == "single" else np.float64).eps)
    for name, argument, expected in (
        ("expand", (weights,), copy @ weights),
        ("project", (left,), copy.T @ left),
        ("gram", (), copy.T @ copy),
    ):
        found = getattr(one, name)(*argument)
        assert found.dtype == np.float64
        assert found.tobytes() == getattr(three, name)(*argument).tobytes()
        np.testing.assert_allclose(found, expected, rtol=0, atol=100 * eps * np.sqrt(np.mean(expected**2)) * 50)
    # Few vectors are multiplied in float64 either way, whatever type they come in.
    few = FactorRows(factor, precision).expand(weights[:, :2].astype(np.float32))  # type: ignore[arg-type]
    np.testing.assert_allclose(few, copy @ weights[:, :2].astype(np.float32), rtol=0, atol=1e-9)


def test_a_product_with_itself_is_whole() -> None:
    """Both triangles, to the last bit: the upper one is what a factorisation that fails goes back to."""
    gram = FactorRows(problem(300, 2 * PIECE_COLUMNS + 5, 1)[0], "single").gram()
    assert np.array_equal(gram, gram.T)
    assert (gram.diagonal() > 0.0).all()


# Random pivots of kernels whose diagonal varies by orders of magnitude.


D = 3


def factor_of(kernel: Kernel, X: np.ndarray, rank: int, seed: int = 0) -> RandomlyPivotedCholesky:
    evaluator = TileEvaluator(kernel, "double")
    features = evaluator.prepare(X)
    factor = RandomlyPivotedCholesky(evaluator, features, kernel.diagonal(X), rank, np.random.default_rng(seed))
    while not factor.complete:
        factor.extend()
    return factor


@pytest.mark.parametrize(("text", "rank"), [("linear", 3), ("polynomial(degree=2)", 10), ("linear + constant", 4)])
def test_the_factor_ends_at_the_kernels_rank(text: str, rank: int, rng: np.random.Generator) -> None:
    X = rng.normal(size=(200, D)) * np.where(np.arange(200) < 3, 50.0, 1.0)[:, None]
    X[10] = 0.0
    kernel = parse_kernel(text, D)
    factor = factor_of(kernel, X, 150)
    assert factor.rank == rank
    K = kernel(X, X)
    scale = np.sqrt(counted(np.diag(K)))
    assert np.max(np.abs(factor.rows.T @ factor.rows - K) / scale / scale[:, None]) < 1e-9


def test_samples_far_out_do_not_end_it_early(rng: np.random.Generator) -> None:
    """A rough part, small beside the few largest entries, is still resolved to the end."""
    X = rng.normal(size=(120, D)) * np.where(np.arange(120) < 3, 3000.0, 1.0)[:, None]
    kernel = parse_kernel("rbf(length_scale=0.3) + polynomial(degree=3)", D)
    assert kernel.diagonal(X).max() > 1e12
    factor = factor_of(kernel, X, 120)
    assert factor.rank > 110
    assert factor.residual.max() < 1e-8


def test_jitter_goes_with_each_landmarks_own_value() -> None:
    matrix = np.diag([4.0, 1.0, 1e6, 0.0])
    added = np.diag(jittered(matrix.copy()) - matrix)
    np.testing.assert_allclose(added, jitter(4, 1.0) * np.array([4.0, 1.0, 1e6, 1e-14]), rtol=1e-6)
    same = np.full((3, 3), 0.5)
    np.testing.assert_array_equal(np.diag(jittered(same.copy())), np.full(3, 0.5 + jitter(3, 0.5)))


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_gram_matrix_whose_rounding_exceeds_the_noise_is_raised(order: str, rng: np.random.Generator) -> None:
    F = 1e5 * rng.normal(size=(40, 6)) @ rng.normal(size=(6, 30))
    rounded = (F.T @ F).astype(np.float32).astype(np.float64)
    assert np.linalg.eigvalsh(rounded).min() < -1e-3
    lower = regularised_factor(np.array(rounded, order=order), 1e-3)
    assert np.array_equal(lower, np.tril(lower))
    np.testing.assert_allclose(lower @ lower.T, rounded, rtol=0.0, atol=1e-4 * rounded.diagonal().max())
    sound = np.array(F.T @ F / 1e10, order=order)
    expected = np.linalg.cholesky(sound + 0.5 * np.eye(30))
    np.testing.assert_allclose(regularised_factor(sound.copy(order=order), 0.5), expected, rtol=1e-9, atol=1e-12)


def test_a_matrix_that_is_no_gram_matrix_is_refused() -> None:
    with pytest.raises(NumericalError, match="Raise the noise variance"):
        regularised_factor(np.array([[1.0, 5.0], [5.0, 1.0]]), 0.1)


@pytest.mark.parametrize("rank", [4, 2000, 3000, 30_000])
@pytest.mark.parametrize("entry_error", [64.0, 900.0])
def test_jitter_is_twice_what_rounding_may_take_off(rank: int, entry_error: float) -> None:
    """L L' is off by gamma_(R + 1) of a diagonal, entries by so many eps; a matrix is no longer than R times those."""
    eps = np.finfo(np.float64).eps
    found = jitter(rank, 3.0) if entry_error == 64.0 else jitter(rank, 3.0, entry_error)
    gamma = (rank + 1) * eps / 2.0 / (1.0 - (rank + 1) * eps / 2.0)
    needed = 2.0 * rank * (gamma + entry_error * eps)
    assert max(1e-9, needed) <= found / 3.0 <= max(1e-9, 1.03 * needed)
    assert found == pytest.approx(3.0 * max(1e-9, 2.0 * rank * (0.51 * (rank + 2) + entry_error) * eps), rel=1e-12)


@pytest.mark.parametrize("text", ["rbf(length_scale=0.8)", "matern32 * (linear + 0.01 * constant)"])
def test_a_factor_of_many_samples_is_the_partial_cholesky_of_its_pivots(text: str, rng: np.random.Generator) -> None:
    """More samples than a thread works on at a time: Q = K_nI K_II^-1 K_In, and the residual what it leaves."""
    X, kernel = rng.normal(size=(2300, D)), parse_kernel(text, D)
    factor = factor_of(kernel, X, 90)
    assert factor.rank == len(set(factor.pivots.tolist())) == 90
    cross, inner = kernel(X, X[factor.pivots]), kernel(X[factor.pivots], X[factor.pivots])
    diagonal = kernel.diagonal(X)
    Q = factor.rows.T @ factor.rows[:, ::100]
    expected = cross @ np.linalg.solve(inner, cross[::100].T)
    np.testing.assert_allclose(Q, expected, atol=1e-7 * diagonal.max())
    left = diagonal - np.sum(factor.rows**2, axis=0)
    np.testing.assert_allclose(factor.residual, np.maximum(left, 0.0), atol=1e-12 * diagonal.max())
    assert (factor.residual[factor.pivots] == 0.0).all()
    assert (factor.residual >= 0.0).all()


def test_pivots_are_drawn_in_proportion_to_what_is_left() -> None:
    """Half of the samples have a quarter of the others' k(x, x), and so a share of a fifth in the draw."""
    X, kernel = np.repeat([[2.0], [-1.0]], 50, axis=0), parse_kernel("linear", 1)
    drawn = [factor_of(kernel, X, 1, seed).pivots[0] >= 50 for seed in range(400)]
    assert np.mean(drawn) == pytest.approx(0.2, abs=4.0 * np.sqrt(0.16 / 400))


def test_samples_that_stand_for_all() -> None:
    assert [samples_drawn_from(rank) for rank in (1, 2666, 2668, 10_000)] == [4000, 4000, 4002, 15_000]
    rng = np.random.default_rng(3)
    drawn = stand_in(10_000, 3000, rng)
    assert len(drawn) == len(set(drawn.tolist())) == 4500
    assert (np.diff(drawn) > 0).all()
    assert stand_in(50, 10, rng).tolist() == list(range(50))


@pytest.mark.parametrize(("prior", "words"), [(0.0, "zero for a factor"), (1e-260, "zero"), (np.inf, "not finite")])
def test_a_kernel_that_is_zero_or_infinite_is_refused(prior: float, words: str) -> None:
    evaluator = TileEvaluator(parse_kernel("linear", 1), "double")
    features = evaluator.prepare(np.ones((3, 1)))
    with pytest.raises(InputError, match=words):
        RandomlyPivotedCholesky(evaluator, features, np.full(3, prior), 2, np.random.default_rng(0))


def unfinished(X: np.ndarray, rank: int) -> RandomlyPivotedCholesky:
    kernel = parse_kernel("linear", X.shape[1])
    evaluator = TileEvaluator(kernel, "double")
    return RandomlyPivotedCholesky(evaluator, evaluator.prepare(X), kernel.diagonal(X), rank, np.random.default_rng(0))


def test_where_no_pivot_is_left_the_factor_has_ended() -> None:
    """With powers of two nothing is rounded: one pivot leaves a residual of zero."""
    factor = unfinished(2.0 ** (np.arange(60) % 7)[:, None], 20)
    while not factor.complete:
        factor.extend()
    assert factor.rank == 1
    factor.residual[:] = 1.0
    assert not factor.complete
    factor.extend()
    assert factor.complete
    assert factor.rank == 1


def test_what_rounding_leaves_of_small_samples_is_not_drawn() -> None:
    """Each is judged by its own k(x, x): one has more left of it than rounding leaves, and 1,000 have less."""
    X = np.r_[1000.0, np.ones(1001)][:, None]
    factor = unfinished(X, 5)
    # A ten-billionth of each one's own.
    factor.residual[0] = 0.0
    factor.residual[1:] = 0.9e-10 * parse_kernel("linear", 1).diagonal(X)[1:]
    factor.residual[500] *= 2.0 / 0.9
    factor.extend()
    assert factor.pivots.tolist() == [500]


# Products with pieces of a kernel matrix, and with F that is not held, against NumPy's.


@pytest.mark.parametrize("count", [1, 2, 5, 6])
@pytest.mark.parametrize("single", [False, True])
def test_pieces_give_the_whole_product(count: int, single: bool, rng: np.random.Generator) -> None:
    sizes = rng.integers(1, 40, count)
    X, ends = rng.standard_normal((sizes.sum(), 3)), np.cumsum(sizes)
    kernel = SquaredExponential((0.3, 1.0, 0.5)) if count % 2 else 2.0 * Matern32((0.4, 0.4, 0.4))
    evaluator = TileEvaluator(kernel, "double")
    features = evaluator.prepare(X)
    pieces = [(features.slice(end - size, end), slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    vectors = rng.standard_normal((len(X), 7)).astype(np.float32 if single else np.float64)
    images = before = rng.standard_normal(vectors.shape)
    expected = before + kernel(X, X) @ vectors.astype(np.float64)
    multiply_pieces(evaluator, pieces, pieces, vectors, images)
    np.testing.assert_allclose(images, expected, rtol=0.0, atol=1e-13 * len(X))


@pytest.mark.parametrize("precision", ["single", "double"])
def test_products_with_landmarks_have_the_same_bits_on_any_threads(precision: Any, rng: np.random.Generator) -> None:
    X, some = rng.standard_normal((1500, 2)), np.arange(0, 1500, 19)
    kernel = 3.0 * Matern32((0.7, 0.4))
    context = BlockContext("rows", standardised_inputs(X, ["a", "b"]), kernel, len(X))
    assert context.n_blocks > 3
    evaluator = context.evaluator(precision)
    K = kernel(X, X[some])
    lower = np.linalg.cholesky(K[some] + 1e-3 * np.eye(len(some)))
    factor = np.linalg.solve(lower, K.T).T
    landmarks, lower = evaluator.prepare(X[some]), np.asfortranarray(lower, dtype=evaluator.dtype)
    vectors, weights = rng.standard_normal((len(X), 5)), rng.standard_normal((len(some), 5))
    tolerance = 1e-3 if precision == "single" else 1e-9
    found = []
    for executor in (HereExecutor(1), HereExecutor(3), LocalExecutor(2)):
        roots = np.sqrt(np.full(len(X), 3.0))
        rows = LandmarkRows(context, precision, landmarks, lower, roots, executor)
        found.append([rows.project(vectors), rows.expand(weights), rows.misfit(vectors, weights)])
        executor.close()
    expected = [factor.T @ vectors, factor @ weights, np.sum((vectors - K @ weights) ** 2, axis=0)]
    for one, two in zip(found[0], expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=0.0, atol=tolerance * np.abs(two).max())
    for others in found[1:]:
        assert [each.tobytes() for each in others] == [each.tobytes() for each in found[0]]


def test_a_number_that_is_not_finite_spoils_its_column_alone(rng: np.random.Generator) -> None:
    X = rng.standard_normal((300, 1))
    kernel = SquaredExponential((1.0,))
    context = BlockContext("spoilt", standardised_inputs(X, ["a"]), kernel, len(X))
    lower = np.asfortranarray(np.eye(10))
    landmarks = context.evaluator("double").prepare(X[:10])
    rows = LandmarkRows(context, "double", landmarks, lower, np.ones(300), HereExecutor())
    vectors = rng.standard_normal((300, 3))
    vectors[7, 1] = np.inf
    found = rows.project(vectors)
    assert np.isnan(found[:, 1]).all()
    np.testing.assert_allclose(found[:, [0, 2]], kernel(X[:10], X) @ vectors[:, [0, 2]], atol=1e-12)


# A preconditioner of local polynomials: its inverse, solves with it, and bits.


def operator(kernel, X, noise, threads=2):
    return BlockedKernelOperator(kernel, noise, ArrayInputs(X), LocalExecutor(threads))


def preconditioned_spectrum(inverse: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Eigenvalues of M^-1 Kbar: those of L' M^-1 L, L L' = Kbar, which is symmetric."""
    L = np.linalg.cholesky(matrix)
    return np.linalg.eigvalsh(L.T @ inverse @ L)


@pytest.mark.spread(2)
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("by_sample", [False, True])
def test_it_inverts_the_matrix_that_interpolation_makes(d: int, by_sample: bool) -> None:
    """If cells are small beside the length scales, this is the kernel matrix itself."""
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


@pytest.mark.portable
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


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rank", [3, 12, 50, 130])
def test_other_columns_do_not_change_the_bits_of_a_triangular_solve(
    rank: int, transposed: bool, dtype: type[np.floating]
) -> None:
    """OpenBLAS for Haswell and Zen solves a remainder of columns by other code than the rest."""
    rng = np.random.default_rng(rank)
    lower = np.asfortranarray(np.linalg.cholesky(np.cov(rng.standard_normal((rank, 3 * rank)))), dtype=dtype)
    right = np.asarray(rng.standard_normal((rank, 300)), dtype=dtype)
    whole = whiten(lower, right, transposed=transposed)
    expected = np.linalg.solve(lower.T if transposed else lower, right.astype(np.float64))
    np.testing.assert_allclose(whole, expected, rtol=0, atol=2e4 * np.finfo(dtype).eps * np.abs(expected).max())
    for count in (1, 2, 3, 5, 7, 11, 74, 257):
        for start in (0, 1, 5, 40):
            where = slice(start, start + count)
            np.testing.assert_array_equal(whiten(lower, right[:, where], transposed=transposed), whole[:, where])
