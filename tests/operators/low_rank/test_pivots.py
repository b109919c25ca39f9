"""Random pivots of kernels whose diagonal varies by orders of magnitude."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.cluster.executors.base import HereExecutor, LocalExecutor
from dkgp.data import standardised_inputs
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel, Matern32, SquaredExponential, TileEvaluator, parse_kernel
from dkgp.operators.block_tasks import BlockContext
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
)

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
    """Of powers of two, which round nothing, one pivot leaves nothing, whatever seems to be left."""
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
