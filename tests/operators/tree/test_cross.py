"""Sums by a tree at other points than its own: within their bounds of the naive sum, whatever the company."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.kernels import Matern32, SquaredExponential
from dkgp.operators import ArrayInputs
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.tree.forest import cross_sums, near_order

N = 900


def naive(kernel: SquaredExponential | Matern32, T: np.ndarray, X: np.ndarray, V: np.ndarray) -> np.ndarray:
    """In longdouble, entry by entry from the definition."""
    length = np.sqrt(np.asarray(kernel.gamma, dtype=np.longdouble))
    scaled = [np.asarray(points, dtype=np.longdouble) * length for points in (T, X)]
    squares = np.sum((scaled[0][:, None, :] - scaled[1][None, :, :]) ** 2, axis=2)
    if isinstance(kernel, Matern32):
        root = np.sqrt(np.longdouble(6.0) * squares)
        entries = (1.0 + root) * np.exp(-root)
    else:
        entries = np.exp(-squares)
    return np.asarray(kernel.variance * entries @ V)


@pytest.mark.parametrize("kernel", [SquaredExponential((90.0, 40.0), 2.0), Matern32((300.0, 500.0), 0.5)])
@pytest.mark.parametrize("error", [1e-3, 1e-9])
def test_entries_are_within_their_bounds(
    rng: np.random.Generator, kernel: SquaredExponential | Matern32, error: float
) -> None:
    X, T = rng.uniform(size=(N, 2)), rng.uniform(-0.5, 1.5, size=(333, 2))
    V = rng.standard_normal((N, 2)) * [1.0, 50.0]
    context = BlockContext(f"{kernel}{error}", ArrayInputs(X), kernel, N)
    found, bounds = cross_sums(context, T, V, error)
    away = np.abs(np.asarray(found - naive(kernel, T, X, V), dtype=np.float64))
    assert (away <= bounds).all()
    assert (bounds <= 1.5 * error + 1e-8).all()
    # Something was pruned where that was allowed.
    assert (away.max() > 1e-8) == (error == 1e-3)


def test_far_and_equal_points_and_a_single_one(rng: np.random.Generator) -> None:
    kernel = SquaredExponential((1e4, 1e4))
    X = np.repeat(rng.uniform(size=(30, 2)), 30, axis=0)
    T = np.concatenate([X[:40], np.full((3, 2), 1e6), X[:1] + 1e-9])
    V = rng.standard_normal((N, 1))
    context = BlockContext("equal", ArrayInputs(X), kernel, N)
    found, bounds = cross_sums(context, T, V, 1e-6)
    assert (np.abs(np.asarray(found - naive(kernel, T, X, V), dtype=float)) <= bounds).all()
    assert np.abs(found[40:43]).max() <= bounds[40:43].max()
    one, bound = cross_sums(context, T[7:8], V, 1e-6)
    assert np.abs(one - naive(kernel, T[7:8], X, V)).astype(float).max() <= bound.max()


def test_neighbours_stand_together(rng: np.random.Generator) -> None:
    X, T = rng.uniform(size=(50, 2)), rng.uniform(size=(4096, 2))
    context = BlockContext("order", ArrayInputs(X), SquaredExponential((1.0, 1.0)), 50)
    order = near_order(context, T)
    assert sorted(order) == list(range(4096))
    pieces = T[order].reshape(8, 512, 2)
    assert np.ptp(pieces, axis=1).prod(axis=1).sum() < 1.2
