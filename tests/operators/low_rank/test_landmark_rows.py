"""Products with pieces of a kernel matrix, and with F that is not held, against NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.cluster.executors.base import HereExecutor, LocalExecutor
from dkgp.data import standardised_inputs
from dkgp.kernels import Matern32, SquaredExponential, TileEvaluator
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.low_rank.pivots import LandmarkRows, multiply_pieces


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
