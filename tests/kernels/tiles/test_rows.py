"""Slices and selections of features: a row's bits depend on neither its neighbours nor its place.

The engine's reproducibility rests on this: blocks, workers and the coordinator evaluate the same row in different
company and must get the same bits.
"""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.kernels import Features, SquaredExponential, TileEvaluator

N, M = 700, 150


class Rows:
    """All rows of a data set evaluated together, and any of them in other company."""

    def __init__(self, rng: np.random.Generator, d: int, precision: str, expanded: bool, targets: int = 2) -> None:
        kernel = SquaredExponential(gamma=tuple(rng.uniform(0.2, 1.0, d) / d), variance=1.9)
        self.evaluator = TileEvaluator(kernel, precision, expanded=expanded)
        self.X = rng.standard_normal((N, d))
        self.A = self.evaluator.prepare(self.X)
        self.B = self.evaluator.prepare(rng.standard_normal((M, d)))
        self.W = rng.standard_normal((M, targets))
        self.product, self.tile = self.evaluate(self.A)

    def evaluate(self, rows: Features) -> tuple[np.ndarray, np.ndarray]:
        return self.evaluator.matmat(rows, self.B, self.W), self.evaluator.tile(rows, self.B)

    def require_same_bits(self, rows: Features, indices: np.ndarray | slice) -> None:
        product, tile = self.evaluate(rows)
        np.testing.assert_array_equal(product, self.product[indices])
        np.testing.assert_array_equal(tile, self.tile[indices])


@pytest.fixture(params=[1, 4, 13])
def rows(request: pytest.FixtureRequest, rng: np.random.Generator, precision: str, expanded: bool) -> Rows:
    return Rows(rng, request.param, precision, expanded)


def test_slices(rows: Rows) -> None:
    for start, stop in [(0, 256), (256, 512), (512, N), (16, 17), (3, 3), (5, 250), (N - 1, N), (0, N)]:
        rows.require_same_bits(rows.A.slice(start, stop), slice(start, stop))


def test_taken_features_are_the_rows_prepared_alone(rng: np.random.Generator, precision: str) -> None:
    evaluator = TileEvaluator(SquaredExponential(gamma=(0.5, 0.25, 0.1)), precision)
    X = rng.standard_normal((50, 3))
    features = evaluator.prepare(X)
    for indices in (np.array([49, 0, 0, 17]), np.arange(50)[::-1].copy(), np.arange(16)):
        taken, alone = features.take(indices), evaluator.prepare(X[indices])
        assert taken.n == len(indices)
        np.testing.assert_array_equal(taken.values, alone.values)
        np.testing.assert_array_equal(taken.squared_norms, alone.squared_norms)
    assert features.take(np.array([], dtype=np.intp)).n == 0
    scale = np.sqrt(np.array([0.5, 0.25, 0.1]) / np.log(2.0))
    np.testing.assert_allclose(features.values[:, :50], (X * scale).T, rtol=1e-6 if precision == "single" else 1e-15)
    np.testing.assert_allclose(features.squared_norms[0, :50], ((X * scale) ** 2).sum(axis=1), rtol=1e-6)
    assert features.nbytes == (3 + 1) * 64 * features.values.itemsize


def test_slices_on_whole_vectors_are_views_and_others_copies(rng: np.random.Generator) -> None:
    evaluator = TileEvaluator(SquaredExponential(gamma=(0.5,)))
    features = evaluator.prepare(rng.standard_normal((50, 1)))
    for start, stop, view in [(0, 32, True), (16, 50, True), (32, 48, True), (1, 32, False), (16, 40, False)]:
        part = features.slice(start, stop)
        assert part.n == stop - start
        assert np.shares_memory(part.values, features.values) == view
        np.testing.assert_array_equal(part.values[:, : part.n], features.values[:, start:stop])
        np.testing.assert_array_equal(part.squared_norms[:, : part.n], features.squared_norms[:, start:stop])
