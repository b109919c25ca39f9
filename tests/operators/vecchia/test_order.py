"""The kd order: a permutation in leaves of even sizes, whose parts do not overlap along the feature that cut them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dkgp.operators.vecchia.halos import kd_order, leaf_count


@pytest.mark.parametrize(("n", "leaf"), [(1, 1), (7, 10), (100, 1), (1000, 64), (1013, 37)])
def test_it_is_a_permutation_in_even_leaves(rng: np.random.Generator, n: int, leaf: int) -> None:
    order, bounds = kd_order(rng.standard_normal((n, 3)).astype(np.float32), leaf)
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
    sizes = np.diff(bounds)
    assert (bounds[0], bounds[-1], len(sizes)) == (0, n, leaf_count(n, leaf))
    assert 1 <= sizes.min() <= sizes.max() <= leaf
    assert sizes.max() - sizes.min() <= max(2, leaf // 8)
    for start, stop in itertools.pairwise(bounds):
        assert (np.diff(order[start:stop]) > 0).all()


def test_halves_are_cut_at_the_median_of_the_widest_feature(rng: np.random.Generator) -> None:
    points = (rng.standard_normal((1024, 3)) * [1.0, 4.0, 1.0]).astype(np.float32)
    order, _ = kd_order(points, 512)
    assert points[order[:512], 1].max() < points[order[512:], 1].min()
    order, _ = kd_order(points, 256)
    first, second = points[order[:256]], points[order[256:512]]
    axis = int(points[order[:512]].var(axis=0).argmax())
    assert first[:, axis].max() < second[:, axis].min()


def test_duplicates_and_both_zeros_are_told_apart_by_their_number() -> None:
    points = np.zeros((64, 2), np.float32)
    points[::2] = -0.0
    order, bounds = kd_order(points, 8)
    np.testing.assert_array_equal(order, np.arange(64))
    assert np.diff(bounds).tolist() == [8] * 8


def test_leaves_are_compact(rng: np.random.Generator) -> None:
    points = rng.uniform(size=(4096, 2)).astype(np.float32)
    order, bounds = kd_order(points, 64)
    spread = [np.ptp(points[order[a:b]], axis=0).prod() for a, b in itertools.pairwise(bounds)]
    assert sum(spread) < 1.0  # boxes of 64 leaves cover the unit square about once
