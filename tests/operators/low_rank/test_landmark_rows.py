"""Products with pieces of a kernel matrix, against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.kernels import Matern32, SquaredExponential, TileEvaluator
from dkgp.operators.low_rank.landmark_rows import multiply_pieces, multiply_symmetric


@pytest.mark.parametrize("count", [1, 2, 5, 6])
@pytest.mark.parametrize("single", [False, True])
def test_pieces_that_meet_once_give_the_whole_product(count: int, single: bool, rng: np.random.Generator) -> None:
    sizes = rng.integers(1, 40, count)
    X, ends = rng.standard_normal((sizes.sum(), 3)), np.cumsum(sizes)
    kernel = SquaredExponential((0.3, 1.0, 0.5)) if count % 2 else 2.0 * Matern32((0.4, 0.4, 0.4))
    evaluator = TileEvaluator(kernel, "double")
    features = evaluator.prepare(X)
    pieces = [(features.slice(end - size, end), slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    vectors = rng.standard_normal((len(X), 7)).astype(np.float32 if single else np.float64)
    before = rng.standard_normal(vectors.shape)
    images = []
    for threads in (1, 3):
        images.append(before.copy())
        multiply_symmetric(evaluator, pieces, vectors, images[-1], threads, -0.5)
    expected = before - 0.5 * kernel(X, X) @ vectors.astype(np.float64)
    np.testing.assert_allclose(images[0], expected, rtol=0.0, atol=1e-13 * len(X))
    assert images[0].tobytes() == images[1].tobytes()
    by_tiles = before.copy()
    multiply_pieces(evaluator, pieces, pieces, vectors, by_tiles, 1, -0.5)
    np.testing.assert_allclose(images[0], by_tiles, rtol=0.0, atol=1e-13 * len(X))


def test_each_entry_is_evaluated_once(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = TileEvaluator(SquaredExponential((1.0,)), "double")
    features, sizes = evaluator.prepare(rng.standard_normal((40, 1))), []
    pieces = [(features.slice(first, first + 10), slice(first, first + 10)) for first in range(0, 40, 10)]
    tile = TileEvaluator.tile
    monkeypatch.setattr(
        TileEvaluator, "tile", lambda self, left, right: sizes.append(left.n * right.n) or tile(self, left, right)
    )
    multiply_symmetric(evaluator, pieces, np.ones((40, 2)), np.zeros((40, 2)), 1)
    # Four pieces with themselves, and six pairs.
    assert sum(sizes) == 10 * 100
